/*
 * A run: epochs of steps, each followed by evaluation and a checkpoint.
 *
 * Two kinds of failure. Agreed ones (a loss that is not finite, a checkpoint that rank 0 could not write)
 * come back on all ranks alike, and everything is closed. A failure inside a step is this rank's alone: the
 * others are on their way into an exchange, so nothing collective may follow, and the caller ends the job.
 *
 * Time is counted in two parts: training, from which img/s and the fractions follow, and the rest.
 */
#include "run.h"
#include "base_impl.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- one update ---- */

static hvt_status next_batch(run *t, hvt_batch *b, bool *ret_end)
{
    double start = hvt__now();
    hvt_status s = hvt_loader_next(t->train_data, b, ret_end);

    t->waited += hvt__now() - start;
    return s;
}

/* One step. Everything else in this program exists to make these lines true. */
static hvt_status step(run *t, double lr, bool *ret_end)
{
    hvt_batch b;

    for (int i = 0; i < t->set.local_shards; i++) {
        HVT_TRY(next_batch(t, &b, ret_end));
        if (*ret_end)
            return HVT_OK;
        if (i == 0)
            HVT_TRY(hvt_distopt_begin(t->dist, b.shard_counts, b.shards));
        HVT_TRY(hvt_model_forward(t->model, &b, true));
        HVT_TRY(hvt_model_backward(t->model, hvt_distopt_on_grad, t->dist));
    }
    for (int i = 0; i < b.shards; i++)
        t->step_images += b.shard_counts[i];
    return hvt_distopt_step(t->dist, lr);
}

/* ---- telling about it ---- */

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

    if (!t->opts->steps)
        return t->opts->epochs;
    return t->epoch + (int)((left + t->steps_per_epoch - 1) / t->steps_per_epoch);
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

    if (!record && !hvt__report_bar_due(t->rep))
        return HVT_OK;
    HVT_TRY(take_loss(t));
    r.loss = t->recent;
    r.img_s = (double)t->recent_images / t->recent_seconds;
    r.step_seconds = t->recent_seconds / (double)t->recent_steps;
    if (hvt__report_bar_due(t->rep))
        hvt__report_bar(t->rep, &r);
    if (!record)
        return HVT_OK;
    t->recent = (hvt_loss){0};
    t->recent_seconds = 0;
    t->recent_images = t->recent_steps = 0;
    return hvt__report_step(t->rep, &r);
}

/* Numbers that are not finite: say when. */
static hvt_status name_step(const run *t, hvt_status s)
{
    bool agreed = hvt_last_error_is_agreed();

    if (s != HVT_E_DIVERGED)
        return s;
    s = HVT_FAIL(E_DIVERGED, "update %" PRId64 " (%u of epoch %d): %s", t->steps + 1, t->step + 1,
                 t->epoch + 1, hvt_last_error());
    hvt__error_agreed(agreed);
    return s;
}

static hvt_status name_last_step(const run *t, hvt_status s)
{
    bool agreed = hvt_last_error_is_agreed();

    if (s != HVT_E_DIVERGED)
        return s;
    s = HVT_FAIL(E_DIVERGED, "after update %" PRId64 ": %s", t->steps, hvt_last_error());
    hvt__error_agreed(agreed);
    return s;
}

/* ---- an epoch ---- */

/* Train from update t->step of the epoch to its end, or to the end of the run. */
static hvt_status train_epoch(run *t)
{
    hvt_epoch_report r = {.epoch = t->epoch + 1, .epochs = epochs_in_all(t)};
    double began = t->seconds;
    int64_t images = t->images;
    uint32_t first = t->step;
    bool end = false;

    t->waited = 0;
    t->epoch_loss = (hvt_loss){0};
    hvt_distopt_take_exposed(t->dist);
    HVT_TRY(hvt_loader_rewind(t->train_data, t->epoch, t->step));
    while (t->steps < t->end) {
        double lr = hvt_schedule_lr(t->schedule, t->epoch, t->step, t->steps_per_epoch), start = hvt__now();
        hvt_status s;
        t->step_images = 0;
        s = step(t, lr, &end);
        if (s)
            return name_step(t, s);
        t->seconds += hvt__now() - start;
        if (end)
            break;
        t->recent_seconds += hvt__now() - start;
        t->recent_images += t->step_images;
        t->images += t->step_images;
        t->recent_steps++;
        t->step++;
        t->steps++;
        if (t->first_update < 0)
            t->first_update = hvt__process_seconds();
        HVT_TRY(tell_step(t, lr));
    }
    HVT_TRY(take_loss(t));
    r.steps = t->step - first;
    r.loss = t->epoch_loss;
    r.seconds = t->seconds - began;
    r.img_s = (double)(t->images - images) / r.seconds;
    r.exposed_comm = hvt_distopt_take_exposed(t->dist) / r.seconds;
    r.data_wait = t->waited / r.seconds;
    if (t->step == t->steps_per_epoch) {
        t->epoch++;
        t->step = 0;
    }
    return hvt__report_epoch(t->rep, &r);
}

/* ---- after an epoch ---- */

static hvt_status evaluate(run *t)
{
    if (t->tested == t->steps)
        return HVT_OK;
    HVT_TRY(name_last_step(t, hvt_evaluate(t->model, t->test_data, t->world, &t->test)));
    t->tested = t->steps;
    return hvt__report_eval(t->rep, t->epoch + (t->step > 0), &t->test);
}

/* On rank 0: `last`, and `best` if it is. */
static hvt_status write_checkpoints(run *t, double top1)
{
    hvt_progress p = {t->epoch, t->step, t->steps, top1, hvt__effective_options(t)};
    hvt_status s;

    HVT_CHECK(p.options, E_MEM, "no memory to save options");
    s = hvt_checkpoint_save(t->opts->save, "last", t->model, t->optim, &p);
    if (s == HVT_OK && top1 > t->best)
        s = hvt_checkpoint_save(t->opts->save, "best", t->model, t->optim, &p);
    free(p.options);
    return s;
}

static hvt_status save(run *t)
{
    double top1 =
        t->tested == t->steps && t->test.count ? 100.0 * (double)t->test.top1 / (double)t->test.count : -1;

    if (!*t->opts->save || (t->saved == t->steps && top1 <= t->best))
        return HVT_OK;
    HVT_TRY(name_last_step(t, hvt_world_agree(t->world, t->rank == 0 ? write_checkpoints(t, top1) : HVT_OK)));
    t->saved = t->steps;
    t->best = top1 > t->best ? top1 : t->best;
    return HVT_OK;
}

static hvt_status train(run *t)
{
    while (t->steps < t->end) {
        HVT_TRY(train_epoch(t));
        /* before saving: weights whose evaluation fails replace nothing */
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
                        .peak_bytes = hvt__process_peak_bytes()};

    HVT_TRY(hvt_world_fold_i64(t->world, HVT_FOLD_MAX, &r.peak_bytes, 1));
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
    run t = {.opts = opts,
             .world = world,
             .rank = hvt_world_rank(world),
             .size = hvt_world_size(world),
             .tested = -1,
             .saved = -1,
             .first_update = -1};
    hvt_report report = {0};
    hvt_status s;

    HVT_TRY_OR(done, hvt__setup(&t));
    if (!opts->evaluate)
        HVT_TRY_OR(done, train(&t));
    HVT_TRY_OR(done, evaluate(&t));
    if (!opts->evaluate)
        HVT_TRY_OR(done, save(&t));
    HVT_TRY_OR(done, finish(&t, &report));
    *ret_report = report;
done:
    if (s == HVT_OK || t.size == 1 || hvt_last_error_is_agreed())
        hvt__teardown(&t); /* else the others are elsewhere, and would not come */
    return s;
}
