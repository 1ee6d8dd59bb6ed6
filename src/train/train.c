/*
 * A run: epochs, each followed by evaluation and a checkpoint.
 *
 * There are two kinds of errors. Agreed ones (a training loss that is not finite, a checkpoint that rank 0
 * cannot write) are returned on all ranks, and everything is closed. An error inside a step is one of this
 * rank alone; the other ranks continue into the exchange, so nothing collective may follow, and the caller
 * ends the job.
 *
 * Training time, from which img/s and the fractions are computed, is kept apart from other time. Time in
 * which the process was stopped is not counted.
 */
#include "run.h"
#include "base/trace.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

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

/* Warns once per run: such losses are common and temporary while running statistics are young. */
static void warn_of_losses(run *t, const hvt__odd_losses *odd)
{
    if (odd->nan + odd->inf && !t->warned_infinite && t->rank == 0)
        HVT_WARN("evaluation after update %" PRId64 ": of %" PRId64 " losses %" PRId64 " are NaN and %" PRId64
                 " infinite; training continues (a lower --lr or --warmup-epochs may help)",
                 t->steps, t->test.count, odd->nan, odd->inf);
    else if (odd->large && !t->warned_large && t->rank == 0)
        HVT_WARN(
            "evaluation after update %" PRId64 ": %" PRId64 " of %" PRId64
            " losses are 2^30 or more; training continues (moving statistics may be young, or --lr is too "
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

static hvt_status name_last_step(const run *t, hvt_status s)
{
    char when[40];

    snprintf(when, sizeof when, "after update %" PRId64, t->steps);
    return hvt__name_diverged(t, when, s);
}

/* On rank 0: write `last`, and `best` if it is the best. */
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

/* Weights whose loss is not finite are saved, but never as `best`. */
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
    if (s == HVT_E_DIVERGED && t->steps < t->end) { /* the old files stay; only a training loss ends a run */
        if (t->rank == 0)
            HVT_WARN("after update %" PRId64 ": %s; training continues", t->steps, hvt_last_error());
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
        HVT_TRY(hvt__train_epoch(t));
        /* before saving, because the result decides about `best` */
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

hvt_status hvt__train(const hvt_options *opts, const hvt_resolved *set, hvt_world *world,
                      hvt_report *ret_report)
{
    run t = {.opts = opts,
             .set = *set,
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
        hvt__teardown(&t); /* else the other ranks would not take part */
    if (watched)
        hvt__pause_close();
    return s;
}

hvt_status hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_report, "a place for the report");

    hvt_resolved set;

    HVT_TRY(hvt__resolve_alike(opts, world, &set));
    return hvt__train(opts, &set, world, ret_report);
}
