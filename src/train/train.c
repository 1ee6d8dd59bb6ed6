/*
 * A run: epochs of steps, each followed by evaluation and a checkpoint.
 *
 * Two kinds of failure. Agreed ones (a training loss that is not finite, a checkpoint that rank 0 could not
 * write) come back on all ranks alike, and everything is closed. A failure inside a step is this rank's
 * alone: the others are on their way into an exchange, so nothing collective may follow, and the caller ends
 * the job.
 *
 * Time is counted in two parts: training, from which img/s and the fractions follow, and the rest. Time in
 * which the process was stopped is in neither.
 */
#include "train/process/log_file.h"
#include "run.h"
#include "base/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- one update ---- */

static int64_t images_of(const hvt_batch *b)
{
    int64_t images = 0;

    for (int i = 0; i < b->shards; i++)
        images += b->shard_counts[i];
    return images;
}

/* A step that may be recorded has seen a few others (devices settle things as they go), and has full shards.
 */
static bool recordable(const run *t, const hvt_batch *b)
{
    enum { WARM_UP = 3 };

    for (int i = 0; i < b->shards; i++)
        if (b->shard_counts[i] != t->set.batch)
            return false;
    return t->record && t->steps - t->first_steps >= WARM_UP;
}

/* The rest of a step after its begin, as one launch: captured the first time, run again from then on. */
static hvt_status launch(run *t, const hvt_batch *b)
{
    hvt_status s;

    if (t->graph)
        return hvt_distopt_replay(t->dist, t->graph);
    HVT_TRY(hvt_distopt_capture(t->dist));
    s = hvt_model_forward(t->model, b, true);
    if (s == HVT_OK)
        s = hvt_model_backward(t->model, hvt_distopt_on_grad, t->dist);
    if (s == HVT_OK)
        s = hvt_distopt_step(t->dist);
    if (s == HVT_OK)
        return hvt_distopt_capture_end(t->dist, &t->graph);
    hvt_distopt_capture_end(t->dist, NULL);
    return s;
}

/* One step. Everything else in this program exists to make these lines true. */
hvt_status hvt__step(run *t, double lr, bool *ret_end)
{
    hvt_batch b;

    for (int i = 0; i < t->set.local_shards; i++) {
        HVT_TRY(hvt_loader_next(t->train_data, &b, ret_end));
        if (*ret_end)
            return HVT_OK;
        if (i == 0)
            HVT_TRY(hvt_distopt_begin(t->dist, b.shard_counts, b.shards, lr));
        t->step_images = images_of(&b);
        if (recordable(t, &b))
            return launch(t, &b);
        HVT_TRY(hvt_model_forward(t->model, &b, true));
        HVT_TRY(hvt_model_backward(t->model, hvt_distopt_on_grad, t->dist));
    }
    return hvt_distopt_step(t->dist);
}

/* ---- telling about it ---- */

/* What may keep the numbers finite, for this run's options. */
static void say_remedies(const run *t, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "try a lower --lr (it is %g)", t->set.lr);

    if (t->opts->warmup_epochs == 0)
        n += (size_t)snprintf(text + n, bytes - n, ", --warmup-epochs");
    if (t->set.amp == HVT_F16)
        n += (size_t)snprintf(text + n, bytes - n, ", --amp bf16 or f32");
    else if (t->set.amp == HVT_BF16)
        n += (size_t)snprintf(text + n, bytes - n, ", --amp f32");
    if (t->set.wire == HVT_F16)
        snprintf(text + n, bytes - n, ", --wire bf16 or f32");
}

/* The newest checkpoint of this run whose loss is known to be finite, or was not asked for. */
static void say_checkpoint(const run *t, char *text, size_t bytes)
{
    const hvt__kept *k = t->last_kept.good ? &t->last_kept : &t->best_kept;

    if (*t->opts->resume && (t->saved < 0 || t->saved == t->first_steps)) /* nothing was saved since */
        snprintf(text, bytes, "the last good checkpoint is %s (epoch %" PRId64 ", update %" PRId64 ")",
                 t->opts->resume, t->first_epoch + (t->first_step > 0), t->first_steps);
    else if (k->good)
        snprintf(text, bytes, "the last good checkpoint is %s/%s.safetensors (epoch %d, update %" PRId64 ")",
                 t->opts->save, k == &t->best_kept ? "best" : "last", k->epoch, k->steps);
    else if (*t->opts->save)
        snprintf(text, bytes, "this run has saved no good checkpoint");
    else
        snprintf(text, bytes, "there is no checkpoint (--save DIR keeps some)");
}

/* Numbers that are not finite: say when, what to try, and what to go on from. */
static hvt_status name_diverged(const run *t, const char *when, hvt_status s)
{
    bool agreed = hvt_last_error_is_agreed();
    char remedies[200], checkpoint[HVT_OPTION_VALUE + 200];

    if (s != HVT_E_DIVERGED)
        return s;
    say_remedies(t, remedies, sizeof remedies);
    say_checkpoint(t, checkpoint, sizeof checkpoint);
    s = HVT_FAIL(E_DIVERGED, "%s: %s; %s; %s", when, hvt_last_error(), remedies, checkpoint);
    hvt__error_agreed(agreed);
    return s;
}

/* The distributed optimizer counts the updates of this job. */
static hvt_status name_step(const run *t, hvt_status s)
{
    int64_t nth = t->first_step + hvt_distopt_stopped(t->dist) - 1; /* since the first epoch of this job */
    char when[100];

    snprintf(when, sizeof when, "update %" PRId64 " (%" PRId64 " of epoch %" PRId64 ")",
             t->first_steps + hvt_distopt_stopped(t->dist), nth % t->steps_per_epoch + 1,
             t->first_epoch + nth / t->steps_per_epoch + 1);
    return name_diverged(t, when, s);
}

static hvt_status name_last_step(const run *t, hvt_status s)
{
    char when[40];

    snprintf(when, sizeof when, "after update %" PRId64, t->steps);
    return name_diverged(t, when, s);
}

static void add_loss(hvt_loss *sum, const hvt_loss *more)
{
    sum->sum += more->sum;
    sum->top1 += more->top1;
    sum->top5 += more->top5;
    sum->count += more->count;
}

/* Move what the model has counted to the record's and the epoch's sums. */
static hvt_status take_loss(run *t)
{
    hvt_loss loss;

    HVT_TRY(hvt_model_take_loss(t->model, &loss));
    add_loss(&t->recent, &loss);
    add_loss(&t->epoch_loss, &loss);
    return HVT_OK;
}

static int epochs_in_all(const run *t)
{
    int64_t left = t->end - t->steps + t->step;

    return t->epoch + (int)((left + t->steps_per_epoch - 1) / t->steps_per_epoch);
}

/* An evaluation that was not timed yet: an image's forward is about a third of its share of an update. */
static double seconds_left(const run *t)
{
    double img_s = (double)t->recent_images / t->recent_seconds;
    double guess = hvt_dataset_describe(t->test_set)->count / img_s / 3;

    return hvt__seconds_left(&(hvt__rest){.epoch = t->epoch,
                                          .done = t->step,
                                          .left = t->end - t->steps,
                                          .per_epoch = t->steps_per_epoch,
                                          .eval_freq = t->opts->eval_freq,
                                          .update_seconds = t->recent_seconds / (double)t->recent_steps,
                                          .eval_seconds = t->eval_seconds < 0 ? guess : t->eval_seconds,
                                          .save_seconds = t->save_seconds < 0 ? 0 : t->save_seconds});
}

static hvt_status tell_step(run *t, double lr)
{
    bool record = t->steps % t->opts->print_freq == 0;
    hvt_step_report r = {.epoch = t->epoch + 1,
                         .epochs = epochs_in_all(t),
                         .in_epoch = t->step,
                         .of = t->steps_per_epoch,
                         .step = t->steps,
                         .steps = t->end,
                         .lr = lr};

    if (record)
        HVT_TRY(name_step(t, hvt_distopt_check(t->dist)));
    else if (!hvt__report_bar_due(t->rep))
        return HVT_OK;
    HVT_TRY(take_loss(t));
    r.loss = t->recent;
    r.loss_scale = hvt_distopt_loss_scale(t->dist);
    r.skipped = hvt_distopt_skipped(t->dist);
    r.img_s = (double)t->recent_images / t->recent_seconds;
    r.left = seconds_left(t);
    if (hvt__report_bar_due(t->rep))
        hvt__report_bar(t->rep, &r);
    if (!record)
        return HVT_OK;
    t->recent = (hvt_loss){0};
    t->recent_seconds = 0;
    t->recent_images = t->recent_steps = 0;
    return hvt__report_step(t->rep, &r);
}

/* ---- an epoch ---- */

/* Where the time of an epoch went, and who was waited for: the others wait for the rank that waits least. */
static hvt_status account(const run *t, const double *before, double exposed, hvt_epoch_report *r)
{
    static const hvt__phase work[] = {HVT__FORWARD, HVT__BACKWARD, HVT__COMPRESS, HVT__LAUNCH, HVT__UPDATE};
    double now[HVT__PHASE_COUNT], least = exposed, most = exposed;

    HVT_TRY(hvt_world_allgather(t->world, &exposed, sizeof exposed, t->exposed));
    hvt__trace_seconds(now);
    for (size_t i = 0; i < HVT_LEN(work); i++)
        r->compute += (now[work[i]] - before[work[i]]) / r->seconds;
    r->data_wait = (now[HVT__DATA] - before[HVT__DATA]) / r->seconds;
    r->exposed_comm = exposed / r->seconds;
    r->other = 1 - r->compute - r->data_wait - r->exposed_comm;
    r->waited_for = t->size > 1 ? t->rank : -1;
    for (int i = 0; i < t->size; i++) {
        most = t->exposed[i] > most ? t->exposed[i] : most;
        if (t->exposed[i] < least) {
            least = t->exposed[i];
            r->waited_for = i;
        }
    }
    r->wait_skew = (most - least) / r->seconds;
    r->waited_host = hvt_world_host(t->world, r->waited_for);
    return HVT_OK;
}

/* Train from update t->step of the epoch to its end, or to the end of the run. */
static hvt_status train_epoch(run *t)
{
    hvt_epoch_report r = {.epoch = t->epoch + 1, .epochs = epochs_in_all(t)};
    double began = t->seconds, before[HVT__PHASE_COUNT];
    int64_t images = t->images;
    uint32_t first = t->step;
    bool end = false;

    t->epoch_loss = (hvt_loss){0};
    hvt_distopt_take_exposed(t->dist);
    hvt__trace_seconds(before);
    HVT_TRY(hvt_loader_rewind(t->train_data, t->epoch, t->step));
    while (t->steps < t->end) {
        double lr = hvt_schedule_lr(t->schedule, t->epoch, t->step, t->steps_per_epoch);
        double start = hvt__running();
        double took;
        hvt_status s;
        t->step_images = 0;
        if (t->step < t->steps_per_epoch)
            hvt__trace_step(t->steps + 1);
        s = hvt__step(t, lr, &end);
        if (s)
            return name_step(t, s);
        took = hvt__running() - start;
        t->seconds += took;
        if (end)
            break;
        t->recent_seconds += took;
        t->recent_images += t->step_images;
        t->images += t->step_images;
        t->recent_steps++;
        t->step++;
        t->steps++;
        hvt__log_at(t->steps);
        if (t->first_update < 0)
            t->first_update = hvt__process_seconds();
        HVT_TRY(tell_step(t, lr));
        HVT_TRY(hvt__trial_step(t, took));
        HVT_TRY(hvt__timeline_at(t->timeline, t->steps));
    }
    HVT_TRY(name_step(t, hvt_distopt_check(t->dist)));
    HVT_TRY(take_loss(t));
    r.steps = t->step - first;
    r.loss = t->epoch_loss;
    r.seconds = t->seconds - began;
    r.img_s = (double)(t->images - images) / r.seconds;
    HVT_TRY(account(t, before, hvt_distopt_take_exposed(t->dist), &r));
    r.loss_scale = hvt_distopt_loss_scale(t->dist);
    r.skipped = hvt_distopt_skipped(t->dist);
    if (t->step == t->steps_per_epoch) {
        t->epoch++;
        t->step = 0;
    }
    HVT_TRY(hvt__report_epoch(t->rep, &r));
    return hvt__timeline_flush(t->timeline);
}

/* ---- after an epoch ---- */

/* Rank 0 has about as many images as any other. */
static void show_evaluation(void *ctx, int images)
{
    run *t = ctx;
    int64_t all = hvt_dataset_describe(t->test_set)->count, done;

    t->evaluated += images;
    if (!hvt__report_bar_due(t->rep))
        return;
    done = t->evaluated * t->size;
    hvt__report_eval_bar(t->rep, done < all ? done : all, all);
}

/* Once a run: such losses are common where moving statistics are young, and pass. */
static void warn_of_losses(run *t, const hvt__odd_losses *odd)
{
    if (odd->nan + odd->inf && !t->warned_infinite && t->rank == 0)
        HVT_WARN("evaluation after update %" PRId64 ": of %" PRId64 " losses %" PRId64 " are NaN and %" PRId64
                 " infinite; training goes on (a lower --lr or --warmup-epochs may help)",
                 t->steps, t->test.count, odd->nan, odd->inf);
    else if (odd->large && !t->warned_large && t->rank == 0)
        HVT_WARN("evaluation after update %" PRId64 ": %" PRId64 " of %" PRId64
                 " losses are 2^30 or more; training goes on (moving statistics may be young, or --lr is too "
                 "high)",
                 t->steps, odd->large, t->test.count);
    t->warned_infinite = t->warned_infinite || odd->nan + odd->inf;
    t->warned_large = t->warned_large || odd->large;
}

static hvt_status evaluate(run *t)
{
    double start = hvt__running();
    hvt__odd_losses odd;

    if (t->tested == t->steps)
        return HVT_OK;
    t->evaluated = 0;
    hvt__trace_begin(HVT__EVALUATE, -1);
    HVT_TRY(hvt__traced(hvt__evaluate(t->model, t->test_data, t->world, show_evaluation, t, &t->test, &odd)));
    t->eval_seconds = hvt__running() - start;
    t->tested = t->steps;
    warn_of_losses(t, &odd);
    return hvt__report_eval(t->rep, t->epoch + (t->step > 0), &t->test, &odd);
}

/* On rank 0: `last`, and `best` if it is. */
static hvt_status write_checkpoints(run *t, double top1)
{
    hvt_progress p = {.epoch = t->epoch,
                      .step = t->step,
                      .steps = t->steps,
                      .top1 = top1,
                      .run = t->run,
                      .options = hvt__effective_options(t)};
    hvt_status s;

    HVT_CHECK(p.options, E_MEM, "no memory to save options");
    s = hvt__folder_save(t->folder, t->model, t->optim, &p);
    free(p.options);
    return s;
}

/* Weights whose loss is not finite are kept, but never as the best. */
static hvt_status save(run *t)
{
    bool tested = t->tested == t->steps && t->test.count, good = !tested || isfinite(t->test.sum);
    double top1 = tested && good ? 100.0 * (double)t->test.top1 / (double)t->test.count : -1;
    double start = hvt__running();
    hvt_status s;

    if (!*t->opts->save || (t->saved == t->steps && top1 <= t->best))
        return HVT_OK;
    hvt__trace_begin(HVT__SAVE, -1);
    HVT_TRY(hvt_distopt_gather(t->dist, 0));
    s = hvt__traced(hvt_world_agree(t->world, t->rank == 0 ? write_checkpoints(t, top1) : HVT_OK));
    if (s == HVT_E_DIVERGED && t->steps < t->end) { /* the files of before stay; only the loss ends a run */
        if (t->rank == 0)
            HVT_WARN("after update %" PRId64 ": %s; training goes on", t->steps, hvt_last_error());
        return HVT_OK;
    }
    HVT_TRY(name_last_step(t, s));
    t->save_seconds = hvt__running() - start;
    t->saved = t->steps;
    t->last_kept = (hvt__kept){good, t->epoch + (t->step > 0), t->steps};
    if (top1 > t->best) {
        t->best = top1;
        t->best_kept = t->last_kept;
    }
    return HVT_OK;
}

static hvt_status train(run *t)
{
    while (t->steps < t->end) {
        HVT_TRY(train_epoch(t));
        /* before saving: what is found decides whether these weights are the best */
        if (t->steps == t->end || (t->opts->eval_freq && t->step == 0 && t->epoch % t->opts->eval_freq == 0))
            HVT_TRY(evaluate(t));
        HVT_TRY(save(t));
    }
    return HVT_OK;
}

/* ---- the run ---- */

static hvt_status finish(run *t, hvt_report *ret_report)
{
    hvt_end_report r = {.first_update = t->first_update,
                        .steps = t->steps,
                        .skipped = hvt_distopt_skipped(t->dist),
                        .loss_scale = hvt_distopt_loss_scale(t->dist),
                        .peak_bytes = hvt__process_peak_bytes()};
    hvt_device_info device;

    hvt_device_describe(t->dev, &device);
    r.device_peak_bytes = device.peak_bytes;
    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_MAX, &r.peak_bytes, 1));
    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_MAX, &r.device_peak_bytes, 1));
    HVT_TRY(hvt_world_agree(t->world, hvt_model_hash(t->model, &r.weights)));
    r.seconds = hvt__process_seconds();
    *ret_report = (hvt_report){.epochs = t->epoch + (t->step > 0),
                               .steps = t->steps,
                               .test = t->test,
                               .img_s = t->seconds > 0 ? (double)t->images / t->seconds : 0,
                               .seconds = r.seconds,
                               .weights = r.weights};
    return hvt_world_agree(t->world, hvt__report_end(t->rep, t->opts, &r));
}

hvt_status hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_report, "a place for the report");

    run t = {.opts = opts,
             .world = world,
             .rank = hvt_world_rank(world),
             .size = hvt_world_size(world),
             .tested = -1,
             .saved = -1,
             .first_update = -1,
             .eval_seconds = -1,
             .save_seconds = -1};
    bool watched = hvt__pause_open();
    hvt_report report = {0};
    hvt_stall stall = {opts->stall_warn, opts->stall_abort};
    hvt_status s;

    HVT_TRY_OR(done, hvt_world_watch(world, &stall));
    hvt__trace_begin(HVT__SETUP, -1);
    HVT_TRY_OR(done, hvt__traced(hvt__setup(&t)));
    if (!opts->evaluate)
        HVT_TRY_OR(done, train(&t));
    HVT_TRY_OR(done, evaluate(&t));
    if (!opts->evaluate)
        HVT_TRY_OR(done, save(&t));
    HVT_TRY_OR(done, finish(&t, &report));
    *ret_report = report;
done:
    if (s)
        hvt__report_failed(t.rep, t.steps);
    if (s == HVT_OK || t.size == 1 || hvt_last_error_is_agreed())
        hvt__teardown(&t); /* else the others are elsewhere, and would not come */
    if (watched)
        hvt__pause_close();
    return s;
}
