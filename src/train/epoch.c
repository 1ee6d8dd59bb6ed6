/*
 * An epoch: its updates, their records, and the accounting of its time.
 *
 * An error inside a step is one of this rank alone. The other ranks continue into the exchange, so nothing
 * collective may follow. Errors that all ranks find, such as a loss that is not finite, are returned on all
 * ranks.
 */
#include "run.h"
#include "base/trace.h"

#include <inttypes.h>
#include <string.h>

/* ---- one update ---- */

static int64_t images_of(const hvt_batch *b)
{
    int64_t images = 0;

    for (int i = 0; i < b->shards; i++)
        images += b->shard_counts[i];
    return images;
}

/* A step can be captured after a few others, in which devices choose algorithms, and if its shards are full.
 */
static bool recordable(const run *t, const hvt_batch *b)
{
    enum { WARM_UP = 3 };

    for (int i = 0; i < b->shards; i++)
        if (b->shard_counts[i] != t->set.batch)
            return false;
    return t->record && t->steps - t->first_steps >= WARM_UP;
}

/* The part of a step after hvt_distopt_begin() as one launch: captured the first time, and replayed from then
 * on. */
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

/* What a user can change to keep the numbers finite. */
static void format_remedies(const run *t, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "try a lower --lr (it is %g)", t->set.lr);

    if (t->opts->warmup_epochs == 0)
        n += (size_t)snprintf(text + n, bytes - n, ", --warmup-epochs");
    if (t->set.amp == HVT_F16)
        n += (size_t)snprintf(text + n, bytes - n, ", --amp bf16 or f32");
    else if (t->set.amp == HVT_BF16)
        n += (size_t)snprintf(text + n, bytes - n, ", --amp f32");
    if (t->set.wire == HVT_F16)
        snprintf(text + n, bytes - n, ", --compression bf16 or f32");
}

/* The newest checkpoint of this run whose loss was finite, or was not evaluated. */
static void format_checkpoint(const run *t, char *text, size_t bytes)
{
    const hvt__kept *k = t->last_kept.good ? &t->last_kept : &t->best_kept;

    if (*t->opts->resume &&
        (t->saved < 0 || t->saved == t->first_steps)) /* nothing has been saved since then */
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

hvt_status hvt__name_diverged(const run *t, const char *when, hvt_status s)
{
    bool agreed = hvt_last_error_is_agreed();
    char remedies[200], checkpoint[HVT_OPTION_VALUE + 200];

    if (s != HVT_E_DIVERGED)
        return s;
    format_remedies(t, remedies, sizeof remedies);
    format_checkpoint(t, checkpoint, sizeof checkpoint);
    s = HVT_FAIL(E_DIVERGED, "%s: %s; %s; %s", when, hvt_last_error(), remedies, checkpoint);
    hvt__error_agreed(agreed);
    return s;
}

/* Adds the number of the update. The distributed optimizer counts those of this job only. */
static hvt_status name_step(const run *t, hvt_status s)
{
    int64_t nth = t->first_step + hvt_distopt_stopped(t->dist) -
                  1; /* counted from the beginning of this job's first epoch */
    char when[100];

    snprintf(when, sizeof when, "update %" PRId64 " (%" PRId64 " of epoch %" PRId64 ")",
             t->first_steps + hvt_distopt_stopped(t->dist), nth % t->steps_per_epoch + 1,
             t->first_epoch + nth / t->steps_per_epoch + 1);
    return hvt__name_diverged(t, when, s);
}

static void add_loss(hvt_loss *sum, const hvt_loss *more)
{
    sum->sum += more->sum;
    sum->top1 += more->top1;
    sum->top5 += more->top5;
    sum->count += more->count;
}

/* Add the losses that the model has summed to those of the record and the epoch. */
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

/* Before the first evaluation its time is estimated: a forward pass takes about a third of an update. */
static double seconds_left(const run *t)
{
    double img_s = (double)t->recent_images / t->recent_seconds;
    double guess = hvt_dataset_describe(t->test_set)->count / img_s / 3;

    return hvt__seconds_left(&(hvt__remaining){.epoch = t->epoch,
                                               .done = t->step,
                                               .left = t->end - t->steps,
                                               .per_epoch = t->steps_per_epoch,
                                               .eval_freq = t->opts->eval_freq,
                                               .update_seconds = t->recent_seconds / (double)t->recent_steps,
                                               .eval_seconds = t->eval_seconds < 0 ? guess : t->eval_seconds,
                                               .save_seconds = t->save_seconds < 0 ? 0 : t->save_seconds});
}

static hvt_status report_step(run *t, double lr)
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

/* Fractions of the epoch's time, and the slowest rank: it is the one that waits least for the others. */
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

hvt_status hvt__train_epoch(run *t)
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
        HVT_TRY(report_step(t, lr));
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
