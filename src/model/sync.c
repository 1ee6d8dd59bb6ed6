/*
 * Training steps whose local shards run together, because batch norms use the statistics of all shards of all
 * ranks, or because the model is split over several devices.
 *
 * Between two synchronized batch norms a shard is independent of the others. So all local shards run, one
 * after the other and in activations of their own, up to the next batch norm; there the ranks exchange their
 * parts. Backward does the same. The layers' code does not handle this: before a shard's turn the layers'
 * pointers are moved to its memory. Weight gradients stay a shard's own and are added along the usual tree,
 * so the result does not depend on which rank has which shard.
 *
 * On several devices each stage's layers have their own memory per shard. Without synchronized batch norms
 * the shards run through the stages as a pipeline (pipeline.c), and this file only keeps their batches.
 *
 * Callers still run one pass per shard. Every pass but the last only stores its batch; the last one runs all
 * shards.
 *
 * Parts stay in device memory, and the device combines them: the host only queues the work, and waits for
 * nothing but the exchanges of a comm that needs it.
 *
 * Invariant: all ranks make the same exchanges in the same order, also with empty shards.
 */
#include "base_impl.h"
#include "layers.h"

static bool is_synchronized(const hvt_layer *l)
{
    return hvt__has_statistics(l) && !l->folded;
}

int hvt__sync_channels(const hvt_model *m)
{
    int most = 0;

    for (const hvt_layer *l = m->layer; l < m->layer + m->nlayer; l++)
        if (is_synchronized(l) && l->y.dim[3] > most)
            most = l->y.dim[3];
    return most;
}

/* ---- memory ---- */

static size_t image_bytes(const hvt_model *m)
{
    const int *d = m->layer[m->input].y.dim;

    return (size_t)m->batch * d[1] * d[2] * m->input_channels * hvt_dtype_size(m->type);
}

static size_t label_bytes(const hvt_model *m)
{
    return (size_t)m->batch * (size_t)hvt__pixels(&m->layer[m->logits]) * sizeof(int32_t);
}

static size_t target_bytes(const hvt_model *m)
{
    return hvt__elements(&m->layer[m->logits]) * sizeof(float);
}

static size_t key_bytes(const hvt_model *m)
{
    return m->keys ? 2 * (size_t)m->batch * sizeof *m->keys : 0;
}

static hvt_status check(const hvt_model *m, const hvt__sync_opts *o)
{
    if (!o->place)
        return HVT_OK;
    HVT_CHECK(hvt__sync_channels(m), E_ARG, "synchronized batch norm, but the model has no batch norm");
    HVT_CHECK(!m->parts_count || o->local == 1, E_UNSUPPORTED,
              "shared parameters, with synchronized batch norm and %d shards on a rank; one is supported",
              o->local);
    return HVT_OK;
}

static hvt_status allocate_sums(hvt_model *m, struct hvt__sync *s)
{
    const hvt_device_ops *ops = m->dev->ops;
    size_t all = (size_t)s->opts.all * sizeof *s->shard, stats = m->step_stats_count * sizeof *s->moments;
    size_t joined = 2 * (size_t)hvt__sync_channels(m) * sizeof *s->joined;
    size_t sums = (size_t)s->opts.local * HVT__STEP_SUMS * sizeof *s->sums;

    s->known = malloc(all);
    HVT_CHECK(s->known, E_MEM, "no memory for the statistics of %d shards", s->opts.all);
    HVT_TRY(ops->memory.alloc(m->dev, all, (void **)&s->shard));
    HVT_TRY(ops->memory.alloc(m->dev, joined, (void **)&s->joined));
    HVT_TRY(ops->memory.alloc(m->dev, stats, (void **)&s->moments));
    HVT_TRY(ops->memory.alloc(m->dev, sums, (void **)&s->sums));
    for (int p = 0; p < s->opts.local; p++)
        s->turn[p].sums = s->sums + (size_t)p * HVT__STEP_SUMS;
    return HVT_OK;
}

/* In a pipeline, a shard's statistics are written before the previous shards' are reported. */
static hvt_status allocate_stats(hvt_model *m, struct hvt__sync *s)
{
    const size_t bytes = (size_t)s->opts.local * m->step_stats_count * sizeof *s->stats;

    HVT_TRY(m->dev->ops->memory.alloc(m->dev, bytes, (void **)&s->stats));
    for (int p = 0; p < s->opts.local; p++)
        s->turn[p].stats = s->stats + (size_t)p * m->step_stats_count;
    return HVT_OK;
}

static hvt_status allocate(hvt_model *m, struct hvt__sync *s)
{
    const hvt_device_ops *ops = m->dev->ops;

    s->turn[0].acts = m->acts;
    s->turn[0].keys = m->keys;
    HVT_TRY(s->opts.place ? allocate_sums(m, s) : allocate_stats(m, s));
    for (int p = 0; p < s->opts.local && s->opts.local > 1; p++) {
        hvt__turn *x = &s->turn[p];

        if (p && m->acts_bytes)
            HVT_TRY(ops->memory.alloc(m->dev, m->acts_bytes, &x->acts));
        if (p && m->keys)
            HVT_TRY(ops->memory.alloc(m->dev, key_bytes(m), (void **)&x->keys));
        HVT_TRY(ops->memory.alloc(m->dev, image_bytes(m), &x->images));
        HVT_TRY(ops->memory.alloc(m->dev, label_bytes(m), (void **)&x->label));
        HVT_TRY(ops->memory.alloc(m->dev, target_bytes(m), (void **)&x->target));
        s->bytes +=
            (p ? m->acts_bytes + key_bytes(m) : 0) + image_bytes(m) + label_bytes(m) + target_bytes(m);
    }
    return HVT_OK;
}

hvt_status hvt__sync_open(hvt_model *m, const hvt__sync_opts *opts)
{
    hvt_status s;

    HVT_TRY(check(m, opts));
    m->sync = calloc(1, sizeof *m->sync + (size_t)opts->local * sizeof *m->sync->turn);
    HVT_CHECK(m->sync, E_MEM, "no memory for %d shards at once", opts->local);
    m->sync->opts = *opts;
    m->turn = 0;
    HVT_TRY_OR(fail, hvt__split_check(m, opts->local));
    HVT_TRY_OR(fail, allocate(m, m->sync));
    if (!hvt__model_is_split(m))
        return HVT_OK;
    HVT_TRY_OR(fail, hvt__split_reserve(m, opts->local));
    hvt__views_refresh(m);
    HVT_TRY_OR(fail, hvt__pipe_open(m));
    return HVT_OK;
fail:
    hvt__sync_close(m);
    return s;
}

/* Moves *address by `by` bytes if it points into the current shard's activations. */
static void move(const hvt_model *m, void *address, ptrdiff_t by)
{
    void **at = address;
    size_t offset = (size_t)((uintptr_t)*at - (uintptr_t)m->acts - (uintptr_t)m->acts_shift);

    if (*at && offset < m->acts_bytes)
        *at = (char *)*at + by;
}

static char *slot_of(const hvt__stage *s, int p)
{
    return s->acts[p > 0 ? p % s->slots : 0];
}

/* Sets where a stage reads the value that crosses from the earlier stage, and writes its gradient. */
static void point_across(hvt_model *m, int p)
{
    const hvt__stage *s = m->stage, *earlier = s - 1;
    ptrdiff_t by = slot_of(earlier, p) - slot_of(earlier, 0);
    hvt_layer *l = &m->layer[s->from];

    l->y.data = (char *)s->from_y + by;
    l->dy.data = s->from_dy ? (char *)s->from_dy + by : NULL;
}

void hvt__turn_to(hvt_model *m, int p)
{
    struct hvt__sync *s = m->sync;
    char *acts = m->stage ? slot_of(m->stage, p) : s->turn[p].acts;
    ptrdiff_t by = acts - ((char *)m->acts + m->acts_shift);

    for (hvt_layer *l = m->layer; l < m->layer + m->nlayer && by; l++) {
        move(m, &l->y.data, by);
        move(m, &l->dy.data, by);
        move(m, &l->saved, by);
        move(m, &l->recompute_y[0], by);
        move(m, &l->recompute_y[1], by);
    }
    m->acts_shift += by;
    if (m->stage && m->stage->first)
        point_across(m, p);
    if (p < 0)
        return;

    const hvt__turn *x = &s->turn[p];

    m->turn = p;
    m->pass_stats = x->stats;
    m->layer[m->input].y.data = x->x;
    m->labels = x->labels;
    m->targets = x->targets;
    m->keys = x->keys;
    m->real = x->real;
    m->shard = s->opts.first + p;
}

void hvt__sync_close(hvt_model *m)
{
    struct hvt__sync *s = m->sync;
    const hvt_device_ops *ops = m->dev->ops;

    if (!s)
        return;
    hvt__pipe_close(m);
    if (m->acts_shift)
        hvt__turn_to(m, 0);
    m->keys = s->turn[0].keys;
    for (int p = 0; p < s->opts.local; p++) {
        if (p) {
            ops->memory.release(m->dev, s->turn[p].acts);
            ops->memory.release(m->dev, s->turn[p].keys);
        }
        ops->memory.release(m->dev, s->turn[p].target);
        ops->memory.release(m->dev, s->turn[p].images);
        ops->memory.release(m->dev, s->turn[p].label);
    }
    ops->memory.release(m->dev, s->stats);
    ops->memory.release(m->dev, s->sums);
    ops->memory.release(m->dev, s->moments);
    ops->memory.release(m->dev, s->joined);
    ops->memory.release(m->dev, s->shard);
    free(s->known);
    free(s);
    m->sync = NULL;
    m->backward_pending = false;
}

/* ---- a step ---- */

/* Uploads the list of shards with images, if it differs from the last step's. */
static hvt_status bring_shards(hvt_model *m, const int *counts)
{
    enum { MOST = HVT__PUT_MOST / sizeof(hvt_bn_shard) };
    struct hvt__sync *s = m->sync;
    const int had = s->shards;
    int n = 0;
    bool same = true;

    for (int i = 0; i < s->opts.all; i++)
        if (counts[i]) {
            const hvt_bn_shard now = {s->opts.place[i], counts[i]};

            same = same && n < had && s->known[n].place == now.place && s->known[n].images == now.images;
            s->known[n++] = now;
        }
    if (same && n == had)
        return HVT_OK;
    s->shards = 0; /* a failure leaves the device's list undefined */
    for (int at = 0; at < n; at += MOST)
        HVT_TRY(m->dev->ops->memory.put(m->dev, s->shard + at, s->known + at,
                                        (size_t)(n - at < MOST ? n - at : MOST) * sizeof *s->shard));
    s->shards = n;
    return HVT_OK;
}

hvt_status hvt__sync_begin(hvt_model *m, const int *counts)
{
    struct hvt__sync *s = m->sync;

    if (!s)
        return HVT_OK;
    if (s->opts.place)
        HVT_TRY(bring_shards(m, counts));
    s->counts = counts;
    s->taken = 0;
    s->ran = false;
    return HVT_OK;
}

void hvt__sync_end(hvt_model *m)
{
    if (m->sync)
        m->sync->counts = NULL;
}

/* ---- reports of gradients by this thread ---- */

static _Thread_local const hvt_model *reported; /* the model, or the view of its stage; NULL: none */
static _Thread_local bool aside;

int hvt__pass_shard(void)
{
    return reported ? reported->turn : -1;
}

hvt_device *hvt__pass_device(const hvt_model *m)
{
    return reported ? reported->dev : m->dev;
}

bool hvt__pass_aside(void)
{
    return aside;
}

void hvt__pass_set_aside(void)
{
    aside = true;
}

static hvt_status reporting(const hvt_model *m, hvt_status s)
{
    reported = m;
    return s;
}

hvt_status hvt__turn_backward(hvt_model *m, hvt_layer *l, hvt_grad_fn *on_grad, void *ctx, size_t *mark)
{
    reported = m;
    return reporting(NULL, hvt__layer_backward(m, l, on_grad, ctx, mark));
}

hvt_status hvt__turn_report(hvt_model *m, hvt_grad_fn *on_grad, void *ctx, size_t first, size_t end)
{
    reported = m;
    return reporting(NULL, on_grad(ctx, first, end));
}

/* Reports the step statistics of the current shard. Moments of synchronized norms are 0 in them: these
 * moments are global, and known already. */
hvt_status hvt__turn_report_stats(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    const hvt_device_ops *ops = m->dev->ops;
    const hvt__turn *x = &m->sync->turn[m->turn];
    const size_t stats = m->step_stats_count;

    if (x->stats && x->real)
        HVT_TRY(ops->memory.copy(m->dev, m->grads, x->stats, stats * sizeof *m->grads));
    else
        HVT_TRY(ops->memory.zero(m->dev, m->grads, stats * sizeof *m->grads));
    if (x->sums)
        HVT_TRY(ops->memory.copy(m->dev, m->grads + stats - HVT__STEP_SUMS, x->sums,
                                 HVT__STEP_SUMS * sizeof *m->grads));
    return hvt__turn_report(m, on_grad, ctx, 0, stats);
}

/* ---- the batches of a step ---- */

/* Copies the batch, because the next one may reuse its memory. */
static hvt_status keep(hvt_model *m, hvt__turn *x)
{
    const hvt_device_ops *ops = m->dev->ops;

    HVT_TRY(ops->memory.copy(m->dev, x->images, x->x, image_bytes(m)));
    x->x = x->images;
    if (x->labels) {
        HVT_TRY(ops->memory.copy(m->dev, x->label, x->labels, label_bytes(m)));
        x->labels = x->label;
    }
    if (x->targets) {
        HVT_TRY(ops->memory.copy(m->dev, x->target, x->targets, target_bytes(m)));
        x->targets = x->target;
    }
    return HVT_OK;
}

/* Assigns the batch to the next local shard. */
static hvt_status take(hvt_model *m, const hvt_batch *b)
{
    struct hvt__sync *s = m->sync;
    hvt__turn *x = &s->turn[s->taken];

    x->x = b->images.data;
    x->labels = b->labels.data;
    x->targets = b->targets.data;
    x->real = b->count;
    m->keys = x->keys;
    if (m->keys)
        HVT_TRY(hvt__dropout_keys(m, b));
    return x->images && b->count ? keep(m, x) : HVT_OK;
}

static hvt_status check_batch(const hvt_model *m, const hvt_batch *b)
{
    const struct hvt__sync *s = m->sync;
    int shard = s->opts.first + s->taken;

    HVT_CHECK(s->counts, E_ARG,
              "a training pass of a split model, or with synchronized batch norm, is part of a step: call "
              "hvt_distopt_begin() first");
    HVT_CHECK(s->taken < s->opts.local && !s->ran, E_ARG, "more than %d training passes in a step",
              s->opts.local);
    HVT_CHECK(!b->shards || b->shard == shard, E_ARG,
              "a batch of shard %d is number %d of this rank's; expected shard %d", b->shard, s->taken,
              shard);
    HVT_CHECK(b->count == s->counts[shard], E_ARG,
              "a batch of %d images of shard %d, but hvt_distopt_begin() got %d", b->count, shard,
              s->counts[shard]);
    return HVT_OK;
}

/* ---- synchronized batch norms ---- */

static hvt_status exchange(hvt_model *m, const hvt_layer *l)
{
    const hvt__sync_opts *o = &m->sync->opts;

    return o->exchange(o->ctx, l->y.dim[3], l->name);
}

/* Writes this shard's part for norm l; zeros if the shard has no images. */
static hvt_status leave_part(hvt_model *m, hvt_layer *l,
                             hvt_status (*pass)(hvt_model *, hvt_layer *, float *))
{
    int c = l->y.dim[3];
    float *part = hvt__sync_part(m, true, c, m->shard);

    return m->real ? pass(m, l, part) : m->dev->ops->memory.zero(m->dev, part, 2 * (size_t)c * sizeof *part);
}

/* The first synchronized norm from layer `from` on; nlayer if there is none. */
static int next_norm(const hvt_model *m, int from)
{
    while (from < m->nlayer && !is_synchronized(&m->layer[from]))
        from++;
    return from;
}

/* Copies the loss sums of the forward pass; zeros if the shard has no images. */
static hvt_status keep_sums(hvt_model *m, float *to)
{
    const hvt_device_ops *ops = m->dev->ops;
    const float *sums = m->grads + m->step_stats_count - HVT__STEP_SUMS;
    size_t bytes = HVT__STEP_SUMS * sizeof *sums;

    return m->real ? ops->memory.copy(m->dev, to, sums, bytes) : ops->memory.zero(m->dev, to, bytes);
}

/* Returns the model or view in which layer i of shard p runs, pointed to that shard. before: the one in which
 * the shard's previous layer ran. */
static hvt_model *view_at(hvt_model *m, int i, int p, const hvt_model *before)
{
    hvt_model *v = hvt__view(m, i);

    if (v != before)
        hvt__turn_to(v, p);
    return v;
}

/* Runs layers [from, to) of every local shard, and writes the parts for layer `to`. */
static hvt_status forward_to(hvt_model *m, int from, int to)
{
    struct hvt__sync *s = m->sync;

    for (int p = 0; p < s->opts.local; p++) {
        hvt_model *v = NULL;

        for (int i = from; i < to; i++) {
            v = view_at(m, i, p, v);
            if (v->real)
                HVT_TRY(hvt__layer_forward(v, &v->layer[i]));
        }
        v = view_at(m, to < m->nlayer ? to : m->nlayer - 1, p, v);
        HVT_TRY(to < m->nlayer ? leave_part(v, &v->layer[to], hvt__norm_moments)
                               : keep_sums(v, s->turn[p].sums));
    }
    return HVT_OK;
}

static hvt_status forward(hvt_model *m)
{
    m->sync->ran = true;
    hvt__views_refresh(m);
    for (int from = 0, to; from < m->nlayer; from = to) {
        to = next_norm(m, from + 1);
        HVT_TRY(forward_to(m, from, to));
        if (to == m->nlayer)
            break;
        HVT_TRY(exchange(m, &m->layer[to]));
        HVT_TRY(hvt__norm_join_moments(m, &m->layer[to]));
    }
    return HVT_OK;
}

hvt_status hvt__sync_forward(hvt_model *m, const hvt_batch *batch)
{
    struct hvt__sync *s = m->sync;

    HVT_TRY(check_batch(m, batch));
    HVT_TRY(take(m, batch));
    if (s->taken == s->opts.local - 1 && s->opts.place)
        HVT_TRY(forward(m));
    m->backward_pending = true;
    return HVT_OK;
}

/* The last synchronized norm below `from` with a gradient; -1 if there is none. */
static int previous_norm(const hvt_model *m, int from)
{
    do
        from--;
    while (from >= 0 && !(is_synchronized(&m->layer[from]) && m->layer[from].requires_grad));
    return from;
}

/* Runs backward of every local shard from layer `from` to the one above `to`, and writes the parts for
 * `to`. */
static hvt_status backward_to(hvt_model *m, int from, int to, hvt_grad_fn *on_grad, void *ctx, size_t *mark)
{
    const size_t first = *mark;

    for (int p = 0; p < m->sync->opts.local; p++) {
        hvt_model *v = NULL;

        *mark = first;
        for (int i = from; i > to; i--) {
            v = view_at(m, i, p, v);
            HVT_TRY(hvt__turn_backward(v, &v->layer[i], on_grad, ctx, mark));
        }
        if (to >= 0) {
            v = view_at(m, to, p, v);
            HVT_TRY(leave_part(v, &v->layer[to], hvt__norm_sums));
        }
    }
    return HVT_OK;
}

static hvt_status backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    size_t mark = m->step_stats_count;

    for (int p = 0; p < m->sync->opts.local; p++)
        HVT_TRY(hvt__turn_report_stats(view_at(m, m->nlayer - 1, p, NULL), on_grad, ctx));
    for (int from = m->nlayer - 1, to; from >= 0; from = to) {
        to = previous_norm(m, from);
        HVT_TRY(backward_to(m, from, to, on_grad, ctx, &mark));
        if (to < 0)
            break;
        HVT_TRY(exchange(m, &m->layer[to]));
        HVT_TRY(hvt__norm_join_sums(m, &m->layer[to]));
    }
    return HVT_OK;
}

hvt_status hvt__sync_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx)
{
    struct hvt__sync *s = m->sync;

    HVT_CHECK(on_grad, E_ARG,
              "for a split model, or with synchronized batch norm, pass hvt_distopt_on_grad() to "
              "hvt_model_backward()");
    HVT_CHECK(s->counts, E_ARG, "call hvt_distopt_begin() before a backward pass");
    if (s->taken++ < s->opts.local - 1) /* the last pass runs all shards */
        return HVT_OK;
    return s->opts.place ? backward(m, on_grad, ctx) : hvt__pipe_run(m, on_grad, ctx);
}
