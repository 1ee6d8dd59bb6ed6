/*
 * A step of a split model: its local shards run through the stages as a pipeline.
 *
 * Each stage has a thread; the first stage's is the caller's. A stage runs the forward and the backward pass
 * of every shard over its layers, in the order of shards. A forward pass waits for the previous stage, a
 * backward pass for the next one. GPipe runs all forward passes first. 1F1B first runs as many forward passes
 * as there are stages from this one on, then a backward pass after each forward pass: as fast, with fewer
 * shards in flight.
 *
 * The gradients of a layer are reported in the order of shards, as they are on one device, so the sums have
 * the same bits. A stage's thread adds them; only the caller's thread sends anything.
 *
 * A stage that fails ends the step: the others stop before their next pass, and the caller gets its error.
 */
#include "base/thread.h"
#include "base/trace.h"
#include "base_impl.h"
#include "layers.h"

#include <errno.h>

struct hvt__pipe {
    hvt_model *m;
    pthread_mutex_t mutex;
    pthread_cond_t moved; /* signalled when a member below or a stage's count changes */
    int step;             /* the step that the threads run, or have run last */
    int running, threads; /* threads that run the step; threads that exist */
    int64_t update;       /* number of the update in traces */
    bool ends;
    hvt_grad_fn *on_grad;
    void *ctx;
    hvt_status status; /* the first failure */
    hvt__error why;
};

typedef struct thread_arg {
    struct hvt__pipe *pipe;
    int stage;
} thread_arg;

/* Waits until a stage's *count exceeds p (count NULL: not at all); false if a stage has failed. */
static bool await(struct hvt__pipe *pipe, const int *count, int p)
{
    bool fine;

    pthread_mutex_lock(&pipe->mutex);
    while (count && *count <= p && pipe->status == HVT_OK)
        pthread_cond_wait(&pipe->moved, &pipe->mutex);
    fine = pipe->status == HVT_OK;
    pthread_mutex_unlock(&pipe->mutex);
    return fine;
}

static void advance(struct hvt__pipe *pipe, int *count)
{
    pthread_mutex_lock(&pipe->mutex);
    ++*count;
    pthread_cond_broadcast(&pipe->moved);
    pthread_mutex_unlock(&pipe->mutex);
}

static void fail(struct hvt__pipe *pipe, hvt_status s)
{
    pthread_mutex_lock(&pipe->mutex);
    if (pipe->status == HVT_OK) {
        pipe->status = s;
        hvt__error_take(&pipe->why);
    }
    pthread_cond_broadcast(&pipe->moved);
    pthread_mutex_unlock(&pipe->mutex);
}

static hvt_status forward(hvt_model *v)
{
    for (int i = v->stage->first; i < v->stage->end && v->real; i++)
        HVT_TRY(hvt__layer_forward(v, &v->layer[i]));
    return HVT_OK;
}

/* Runs backward of the current shard on a stage. The first stage reports the end of the gradients even if a
 * later stage finished them, because only its thread sends buckets. */
static hvt_status backward(hvt_model *v, const struct hvt__pipe *pipe)
{
    hvt__turn *x = &v->sync->turn[v->turn];
    size_t began;

    if (v->stage->end == v->nlayer) {
        x->mark = v->step_stats_count;
        HVT_TRY(hvt__turn_report_stats(v, pipe->on_grad, pipe->ctx));
    }
    began = x->mark;
    for (int i = v->stage->end - 1; i >= v->stage->first; i--)
        HVT_TRY(hvt__turn_backward(v, &v->layer[i], pipe->on_grad, pipe->ctx, &x->mark));
    if (v->stage->first || began < x->mark)
        return HVT_OK;
    return hvt__turn_report(v, pipe->on_grad, pipe->ctx, x->mark, x->mark);
}

/* Runs one pass of shard p through stage k; false if a stage has failed. */
static bool run_pass(struct hvt__pipe *pipe, int k, int p, bool back)
{
    hvt__stage *stage = &pipe->m->split->stage[k];
    const bool first = back ? k == pipe->m->split->stages - 1 : k == 0;
    hvt_status s;

    if (!await(pipe, first ? NULL : back ? &stage[1].backwards : &stage[-1].forwards, p))
        return false;
    hvt__turn_to(&stage->view, p);
    hvt__trace_begin(back ? HVT__BACKWARD : HVT__FORWARD, p);
    s = hvt__traced(back ? backward(&stage->view, pipe) : forward(&stage->view));
    if (s)
        fail(pipe, s);
    else
        advance(pipe, back ? &stage->backwards : &stage->forwards);
    return s == HVT_OK;
}

static void run_stage(struct hvt__pipe *pipe, int k)
{
    const struct hvt__split *split = pipe->m->split;
    const int shards = pipe->m->sync->opts.local;
    const int ahead = split->opts.pipeline == HVT_PIPELINE_1F1B ? split->stages - 1 - k : shards;
    bool fine = true;

    for (int i = 0; i < shards + ahead && fine; i++) {
        if (i < shards)
            fine = run_pass(pipe, k, i, false);
        if (fine && i >= ahead)
            fine = run_pass(pipe, k, i - ahead, true);
    }
}

static void *thread_main(void *arg)
{
    const thread_arg mine = *(const thread_arg *)arg;
    struct hvt__pipe *pipe = mine.pipe;
    const hvt_device *dev = pipe->m->split->stage[mine.stage].dev;
    int seen = 0;

    free(arg);
    hvt__pass_set_aside();
    hvt__floats_enter();
    hvt__trace_thread(HVT__EXCHANGING + mine.stage);
    if (dev->ops->enter)
        dev->ops->enter(dev);
    pthread_mutex_lock(&pipe->mutex);
    for (;;) {
        while (pipe->step == seen && !pipe->ends)
            pthread_cond_wait(&pipe->moved, &pipe->mutex);
        if (pipe->ends)
            break;
        seen = pipe->step;
        pthread_mutex_unlock(&pipe->mutex);
        hvt__trace_step(pipe->update);
        run_stage(pipe, mine.stage);
        pthread_mutex_lock(&pipe->mutex);
        pipe->running--;
        pthread_cond_broadcast(&pipe->moved);
    }
    pthread_mutex_unlock(&pipe->mutex);
    return NULL;
}

hvt_status hvt__pipe_run(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    struct hvt__split *split = m->split;
    struct hvt__pipe *pipe = split->pipe;

    m->sync->ran = true;
    hvt__views_refresh(m);
    pthread_mutex_lock(&pipe->mutex);
    for (int k = 0; k < split->stages; k++)
        split->stage[k].forwards = split->stage[k].backwards = 0;
    pipe->on_grad = on_grad;
    pipe->ctx = ctx;
    pipe->status = HVT_OK;
    pipe->update = hvt__trace_where(hvt__trace_lane()).step;
    pipe->running = pipe->threads;
    pipe->step++;
    pthread_cond_broadcast(&pipe->moved);
    pthread_mutex_unlock(&pipe->mutex);
    run_stage(pipe, 0);
    pthread_mutex_lock(&pipe->mutex);
    while (pipe->running)
        pthread_cond_wait(&pipe->moved, &pipe->mutex);
    pthread_mutex_unlock(&pipe->mutex);
    if (pipe->status)
        hvt__error_put(&pipe->why);
    return pipe->status;
}

hvt_status hvt__pipe_open(hvt_model *m)
{
    struct hvt__split *split = m->split;
    struct hvt__pipe *pipe;

    if (hvt__synchronizes(m)) /* then the stages run one after the other on the caller's thread */
        return HVT_OK;
    pipe = calloc(1, sizeof *pipe);
    HVT_CHECK(pipe, E_MEM, "no memory for a pipeline of %d stages", split->stages);
    pipe->m = m;
    pthread_mutex_init(&pipe->mutex, NULL);
    pthread_cond_init(&pipe->moved, NULL);
    split->pipe = pipe;
    for (int k = 1; k < split->stages; k++) {
        thread_arg *one = malloc(sizeof *one);
        int error = ENOMEM;

        if (one) {
            *one = (thread_arg){pipe, k};
            error = hvt__thread_start(&split->stage[k].thread, thread_main, one);
        }
        if (error) {
            free(one);
            return HVT_FAIL(E_MEM, "no thread for stage %d of %d: %s", k, split->stages, strerror(error));
        }
        pipe->threads++;
    }
    return HVT_OK;
}

void hvt__pipe_close(hvt_model *m)
{
    struct hvt__pipe *pipe = m->split ? m->split->pipe : NULL;

    if (!pipe)
        return;
    pthread_mutex_lock(&pipe->mutex);
    pipe->ends = true;
    pthread_cond_broadcast(&pipe->moved);
    pthread_mutex_unlock(&pipe->mutex);
    for (int k = 1; k <= pipe->threads; k++)
        pthread_join(m->split->stage[k].thread, NULL);
    pthread_cond_destroy(&pipe->moved);
    pthread_mutex_destroy(&pipe->mutex);
    free(pipe);
    m->split->pipe = NULL;
}
