/* An epoch: its updates, their records, and the accounting of its time. train.c explains errors. */
#include "run.h"
#include "base/trace.h"

#include <inttypes.h>
#include <math.h>

static int64_t images_of(const hvt_batch *b)
{
    int64_t images = 0;

    for (int i = 0; i < b->shards; i++)
        images += b->shard_counts[i];
    return images;
}

static hvt_status compute(run *t, const hvt_batch *b)
{
    HVT_TRY(hvt_model_forward(t->model, b, true));
    return hvt_model_backward(t->model, hvt_distopt_on_grad, t->dist);
}

static hvt_status capture(run *t, const hvt_batch *b)
{
    if (hvt_distopt_capture(t->dist) != HVT_OK || compute(t, b) != HVT_OK ||
        hvt_distopt_step(t->dist) != HVT_OK)
        return hvt_distopt_capture_end(t->dist, NULL);
    return hvt_distopt_capture_end(t->dist, &t->graph);
}

/* Launches the part of a step after hvt_distopt_begin() as one graph, which the first call captures. If a
 * rank cannot capture it, all ranks run this step and all later ones one operation at a time. */
static hvt_status launch(run *t, const hvt_batch *b, double lr)
{
    hvt_status s;

    if (t->graph)
        return hvt_distopt_replay(t->dist, t->graph);
    s = capture(t, b);
    if (s == HVT_OK || t->graph || s == HVT_E_COMM || !strcmp(t->opts->graph, "on"))
        return s;
    if (t->rank == 0)
        HVT_WARN("steps run without a CUDA graph, which is slower: the capture failed: %s", hvt_last_error());
    t->record = false;
    HVT_TRY(hvt_distopt_begin(t->dist, b->shard_counts, b->shards, lr));
    HVT_TRY(compute(t, b));
    return hvt_distopt_step(t->dist);
}

/* Applies --lookahead, after an update and before the first one. */
static hvt_status look_ahead(run *t)
{
    const double part = (double)(t->at.steps + 1) / (double)t->end;

    return t->set.look_power < 0 ? HVT_OK
                                 : hvt_distopt_look_ahead(t->dist, t->set.optim.ema.decay *
                                                                       pow(fmin(part, 1), t->set.look_power));
}

/* --swa: true before the last update of an epoch whose weights are averaged. */
static bool is_averaged(const run *t)
{
    return t->opts->swa && t->at.epoch + 1 >= t->opts->swa && hvt_loader_left(t->train_data) == 1;
}

/* One step: for each local shard its next batch, forward and backward; then the update. */
hvt_status hvt__step(run *t, double lr, bool *ret_end)
{
    enum { WARM_UP = 3 }; /* updates in which devices select algorithms */
    hvt_batch b;

    if (is_averaged(t))
        hvt_distopt_average(t->dist);
    for (int i = t->first_of[t->rank]; i < t->first_of[t->rank + 1]; i++) {
        HVT_TRY(hvt_loader_next(t->train_data, &b, ret_end));
        if (*ret_end)
            return HVT_OK;
        if (i == t->first_of[t->rank])
            HVT_TRY(hvt_distopt_begin(t->dist, b.shard_counts, b.shards, lr));
        t->step_images = images_of(&b);
        if (t->record && t->at.steps - t->began.steps >= WARM_UP &&
            t->step_images == (int64_t)b.shards * t->set.batch) /* all its shards are full */
            return launch(t, &b, lr);
        HVT_TRY(compute(t, &b));
    }
    return hvt_distopt_step(t->dist);
}

/* What a user can change to keep the numbers finite. */
static void format_remedies(const run *t, char *text, size_t bytes)
{
    size_t n = (size_t)snprintf(text, bytes, "try a lower --lr than %g", t->opts->lr);

    if (t->set.optim.momentum >= 1) {
        snprintf(text, bytes, "try --momentum 0.9: with %g old gradients never fade", t->opts->momentum);
        return;
    }
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
    const hvt__kept *k = t->save.last.good ? &t->save.last : &t->save.best_kept;
    const bool unsaved = t->save.steps < 0 || t->save.steps == t->began.steps; /* by this job */

    if (*t->opts->resume && unsaved)
        snprintf(text, bytes, "the last good checkpoint is %s (epoch %d, update %" PRId64 ")",
                 t->opts->resume, t->began.epoch + (t->began.step > 0), t->began.steps);
    else if (k->good)
        snprintf(text, bytes, "the last good checkpoint is %s/%s.safetensors (epoch %d, update %" PRId64 ")",
                 t->opts->save, k == &t->save.best_kept ? "best" : "last", k->epoch, k->steps);
    else if (*t->opts->save)
        snprintf(text, bytes, "this run has saved no good checkpoint");
    else
        snprintf(text, bytes, "there is no checkpoint (--save DIR keeps some)");
}

void hvt__saved(run *t)
{
    t->save.pending = false;
    t->save.steps = t->save.writing.steps;
    t->save.last = t->save.writing;
    if (hvt__is_better(t->save.writing.score, t->save.best)) {
        t->save.best = t->save.writing.score;
        t->save.best_kept = t->save.writing;
    }
}

/* Waits for the save in progress when the run ends, to know whether it can be resumed. Only rank 0, which
 * reports it, waits. */
static void await_last_save(run *t)
{
    hvt__error why;

    hvt__error_take(&why);
    if (t->save.pending && (t->rank != 0 || hvt__folder_wait(&t->save.folder) == HVT_OK))
        hvt__saved(t);
    hvt__error_put(&why);
}

hvt_status hvt__name_diverged(run *t, const char *when, hvt_status s)
{
    bool agreed = hvt_last_error_is_agreed();
    char remedies[200], checkpoint[HVT_OPTION_VALUE + 200];

    if (s != HVT_E_DIVERGED)
        return s;
    await_last_save(t);
    format_remedies(t, remedies, sizeof remedies);
    format_checkpoint(t, checkpoint, sizeof checkpoint);
    s = HVT_FAIL(E_DIVERGED, "%s: %s; %s; %s", when, hvt_last_error(), remedies, checkpoint);
    hvt__error_agreed(agreed);
    return s;
}

/* Adds the update's number to E_DIVERGED. The distributed optimizer counts only the updates of this job. */
static hvt_status name_step(run *t, hvt_status s)
{
    int64_t nth = t->began.step + hvt_distopt_stopped(t->dist) -
                  1; /* counted from the start of this job's first epoch */
    char when[100];

    snprintf(when, sizeof when, "update %" PRId64 " (%" PRId64 " of epoch %" PRId64 ")",
             t->began.steps + hvt_distopt_stopped(t->dist), nth % t->steps_per_epoch + 1,
             t->began.epoch + nth / t->steps_per_epoch + 1);
    return hvt__name_diverged(t, when, s);
}

static void add_loss(hvt_loss *sum, const hvt_loss *more)
{
    sum->sum += more->sum;
    sum->top1 += more->top1;
    sum->top5 += more->top5;
    sum->count += more->count;
    sum->error += more->error;
}

/* Adds the losses that the model has summed to the record's and the epoch's. */
static hvt_status take_loss(run *t)
{
    hvt_loss loss;

    HVT_TRY(hvt_model_take_loss(t->model, &loss));
    add_loss(&t->recent.loss, &loss);
    add_loss(&t->epoch_sum.loss, &loss);
    return HVT_OK;
}

static int epochs_in_all(const run *t)
{
    int64_t left = t->end - t->at.steps + t->at.step;

    return t->at.epoch + (int)((left + t->steps_per_epoch - 1) / t->steps_per_epoch);
}

/* The progress of the run: in updates if --steps ends it, otherwise in epochs. */
typedef struct position {
    char line[80];             /* start of a line */
    char name[40], counts[50]; /* before and after a bar */
    double part;
} position;

static bool is_ended_by_steps(const run *t)
{
    return t->set.by_steps && t->end == t->opts->steps;
}

static position position_of(const run *t)
{
    position p;

    if (is_ended_by_steps(t)) {
        snprintf(p.name, sizeof p.name, "step");
        snprintf(p.counts, sizeof p.counts, "%" PRId64 "/%" PRId64, t->at.steps, t->end);
        snprintf(p.line, sizeof p.line, "step %.50s  epoch %d", p.counts, t->at.epoch + 1);
        p.part = (double)t->at.steps / (double)t->end;
    } else {
        snprintf(p.name, sizeof p.name, "epoch %d/%d", t->at.epoch + 1, epochs_in_all(t));
        snprintf(p.counts, sizeof p.counts, "%u/%u", t->at.step, t->steps_per_epoch);
        snprintf(p.line, sizeof p.line, "%.25s  step %.40s", p.name, p.counts);
        p.part = (double)t->at.step / t->steps_per_epoch;
    }
    return p;
}

/* The number of saves that remain, including the last one. end: the last full epoch; within: the run ends in
 * the middle of the next epoch; training: seconds of updates that remain. */
static double saves_left(const run *t, int64_t end, bool within, double training)
{
    const hvt__every *e = &t->set.save_every;

    if (e->seconds > 0)
        return floor(training / e->seconds) + 1;
    if (e->steps)
        return (double)(t->end / e->steps - t->at.steps / e->steps + (t->end % e->steps != 0));
    return (double)(end / e->epochs - t->at.epoch / e->epochs + (within || end % e->epochs != 0));
}

/* The most recently known speed. */
static const hvt__speed *newest(const run *t)
{
    return t->recent.speed.updates ? &t->recent.speed : &t->shown.speed;
}

double hvt__seconds_left(const run *t)
{
    int64_t left = t->end - t->at.steps,
            updates = t->at.step + left; /* of the current epoch and later ones */
    int64_t end = t->at.epoch + updates / t->steps_per_epoch;
    bool within = updates % t->steps_per_epoch != 0; /* the run ends in the middle of an epoch */
    int freq = t->opts->eval_freq;
    int64_t evals = (freq ? end / freq - t->at.epoch / freq : 0) +
                    (within || !freq || end % freq != 0); /* a run always ends with an evaluation */
    const hvt__speed *speed = newest(t);
    double training = (double)left * hvt__speed_update(speed);
    double saves = saves_left(t, end, within, training);
    double eval = t->test.seconds;

    if (!(eval > 0)) /* a forward pass is about a third of an update */
        eval = hvt_dataset_describe(t->test_set)->count / hvt__speed_img_s(speed) / 3;
    return training + (double)evals * eval + saves * t->save.seconds;
}

/* Shows the bar or a line of progress, with the loss of the updates since the last record. If that would need
 * a wait for the device, shows the loss before that record. */
static void show_step(const run *t, double lr, bool bar)
{
    const hvt__speed *speed = newest(t);
    const hvt__figures x = hvt__figures_of(speed == &t->recent.speed ? &t->recent.loss : &t->shown.loss,
                                           t->set.loss.kind, t->classes, t->masks);
    const position at = position_of(t);
    char rest[200] = "", left[32], rate[40] = "";

    hvt__duration(hvt__seconds_left(t), left);
    if (!bar)
        snprintf(rate, sizeof rate, "lr %g  ", lr);
    if (speed->updates)
        snprintf(rest, sizeof rest, "  loss %s  %s  %s%.0f img/s  eta %s", x.shown.text, x.score, rate,
                 hvt__speed_img_s(speed), left);
    if (!bar) {
        hvt__report_print(t->rep, "%s%s", at.line, rest);
        return;
    }
    char text[300];

    snprintf(text, sizeof text, "%s%s", at.counts, rest);
    hvt__report_bar(t->rep, at.name, at.part, text);
}

/* Shows the bar or a line of progress, if due, and writes the record of the updates since the last one. */
static hvt_status put_step(const run *t, double lr, bool record)
{
    const hvt__figures x = hvt__figures_of(&t->recent.loss, t->set.loss.kind, t->classes, t->masks);
    double img_s = hvt__speed_img_s(&t->recent.speed);
    json_t *step;

    if (!t->rep)
        return HVT_OK;
    if (hvt__report_bar_due(t->rep))
        show_step(t, lr, true);
    if (!record && hvt__report_line_due(t->rep))
        show_step(t, lr, false);
    if (!record)
        return HVT_OK;
    step = json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "record", "step", "epoch",
                     t->at.epoch + 1, "step", (json_int_t)t->at.steps, "loss", hvt__number(x.loss), "top1",
                     hvt__number(x.top1), "lr", hvt__number(lr), "img_s", hvt__number(img_s), "loss_scale",
                     hvt__number(hvt_distopt_loss_scale(t->dist)), "skipped",
                     (json_int_t)hvt_distopt_skipped(t->dist));
    hvt__figures_add(&x, false, step);
    HVT_TRY(hvt__report_put(t->rep, step));
    if (!t->rep->bar)
        show_step(t, lr, false);
    return HVT_OK;
}

/* Waits until the device has done the queued updates, whose time this is, and checks the last update. */
static hvt_status await_updates(run *t)
{
    double start = hvt__running(), took;
    hvt_status s;

    if (t->set.on_gpu)
        hvt__trace_begin(HVT__DEVICE, -1);
    s = hvt_distopt_check(t->dist);
    if (t->set.on_gpu)
        hvt__trace_end();
    took = hvt__running() - start;
    t->job.seconds += took;
    hvt__speed_waited(&t->recent.speed, took);
    return name_step(t, s);
}

/* Warns if the loss has grown so much that the rate must be too high, long before the loss is infinite.
 * Cross-entropy is log(classes) if all classes are equally probable. A mean squared error has no such scale,
 * so the first update must be large enough to give one, and errors below 1 are never large. */
static void warn_of_growth(run *t, const hvt_loss *of)
{
    enum { FACTOR = 20, FACTOR_MSE = 1000, LEAST = 16 };
    const hvt__figures x = hvt__figures_of(of, t->set.loss.kind, t->classes, t->masks);
    const bool mse = hvt_loss_has_targets(t->set.loss.kind);
    const double most = mse ? fmax(1, FACTOR_MSE * t->job.first_loss)
                            : FACTOR * fmax(log(t->classes > 2 ? t->classes : 2), t->job.first_loss);
    const double usual = t->set.optim.kind == HVT_OPTIM_SGD ? 0.1 : 0.001;

    if (t->rank || t->job.warned_growth || !(x.loss > most) || (mse && t->job.first_images < LEAST) ||
        t->set.optim.momentum >= 1) /* which has a warning of its own */
        return;
    t->job.warned_growth = true;
    HVT_WARN("update %" PRId64 ": the loss is %s and was %s in the first update: --lr %g is too high; try "
             "--lr %g%s",
             t->at.steps, x.shown.text, hvt__loss_shown(t->job.first_loss).text, t->opts->lr,
             fmin(t->opts->lr / 10, usual), t->opts->warmup_epochs > 0 ? "" : ", or --warmup-epochs");
}

/* Takes the loss of this job's first update, with which later ones are compared. */
static hvt_status take_first_loss(run *t)
{
    const hvt_loss before = t->recent.loss;
    double images;

    HVT_TRY(take_loss(t));
    images = (double)(t->recent.loss.count - before.count);
    t->job.first_images = (int64_t)images;
    t->job.first_loss = images > 0 ? (t->recent.loss.sum - before.sum) / images : 0;
    return HVT_OK;
}

/* Reports an update. Only a record, not a bar or a line of progress, justifies a wait for a GPU. */
static hvt_status report_step(run *t, double lr)
{
    bool record = t->at.steps % t->opts->print_freq == 0, first = t->at.steps == t->began.steps + 1;

    if (record || first)
        HVT_TRY(await_updates(t));
    else if (!hvt__report_bar_due(t->rep) && !hvt__report_line_due(t->rep))
        return HVT_OK;
    if (first)
        HVT_TRY(take_first_loss(t));
    else if (record || !t->set.on_gpu)
        HVT_TRY(take_loss(t));
    HVT_TRY(put_step(t, lr, record));
    if (record) {
        warn_of_growth(t, &t->recent.loss);
        t->shown = t->recent;
        t->recent = (hvt__recent){0};
    }
    return HVT_OK;
}

/* An epoch's time on this rank, as fractions of its seconds, and the slowest rank: the one that waits least
 * for the others. Time in which all ranks were stopped is excluded; while only some are, the others wait. */
typedef struct shares {
    double seconds, compute, exposed, data, other;
    double wait_skew; /* exposed: maximum - minimum over ranks */
    int waited_for;   /* the rank with the minimum; -1: one rank */
} shares;

static hvt_status account(run *t, shares *r)
{
    const hvt__spent spent = hvt__spent_take(t);
    double least = spent.exposed, most = spent.exposed, all = INFINITY;
    hvt__rank_spent mine = {spent, hvt__paused(hvt__now()) - t->lap.paused};

    HVT_TRY(hvt_world_allgather(t->world, &mine, sizeof mine, t->spents));
    for (int i = 0; i < t->size; i++)
        all = fmin(all, t->spents[i].paused);
    r->seconds += mine.paused - all;
    t->job.seconds += mine.paused - all;
    r->compute = spent.compute / r->seconds;
    r->data = spent.data / r->seconds;
    r->exposed = spent.exposed / r->seconds;
    r->other = 1 - r->compute - r->data - r->exposed;
    r->waited_for = t->size > 1 ? t->rank : -1;
    for (int i = 0; i < t->size; i++) {
        most = fmax(most, t->spents[i].spent.exposed);
        if (t->spents[i].spent.exposed < least) {
            least = t->spents[i].spent.exposed;
            r->waited_for = i;
        }
    }
    r->wait_skew = (most - least) / r->seconds;
    return HVT_OK;
}

/* "epoch 2/3"; if --steps ends the run, "epoch 2", or "epoch 3, 5 of 40 updates". */
static void format_epoch(const run *t, char *text, size_t bytes)
{
    int epoch = t->at.epoch + 1;

    if (!is_ended_by_steps(t))
        snprintf(text, bytes, "epoch %d/%d", epoch, epochs_in_all(t));
    else if (t->at.step == t->steps_per_epoch)
        snprintf(text, bytes, "epoch %d", epoch);
    else
        snprintf(text, bytes, "epoch %d, %u of %u updates", epoch, t->at.step, t->steps_per_epoch);
}

#define WORTH_PRINTING 0.01 /* fraction of the epoch */

static hvt_status report_epoch(const run *t, double img_s, const shares *r)
{
    const hvt__figures x = hvt__figures_of(&t->epoch_sum.loss, t->set.loss.kind, t->classes, t->masks);
    char head[80], exchange[60] = "";
    json_t *record;

    if (!t->rep)
        return HVT_OK;
    record = json_pack(
        "{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}", "record", "epoch",
        "epoch", t->at.epoch + 1, "steps", (json_int_t)t->epoch_sum.steps, "train_loss", hvt__number(x.loss),
        "top1", hvt__number(x.top1), "top5", hvt__number(x.top5), "img_s", hvt__number(img_s), "seconds",
        hvt__number(r->seconds), "compute", hvt__number(r->compute), "exposed_comm", hvt__number(r->exposed),
        "data_wait", hvt__number(r->data), "other", hvt__number(r->other), "wait_skew",
        hvt__number(r->wait_skew), "waited_for",
        r->waited_for < 0 ? json_null() : json_integer(r->waited_for), "loss_scale",
        hvt__number(hvt_distopt_loss_scale(t->dist)), "skipped", (json_int_t)hvt_distopt_skipped(t->dist));
    hvt__figures_add(&x, false, record);
    json_object_set_new(record, "at_step", json_integer((json_int_t)t->at.steps));
    hvt__spent_by_rank(t->spents, t->size, false, record);
    HVT_TRY(hvt__report_put(t->rep, record));
    format_epoch(t, head, sizeof head);
    if (t->size > 1)
        snprintf(exchange, sizeof exchange, ", %.1f %% waiting for the exchange", 100 * r->exposed);
    hvt__report_print(t->rep,
                      "%s: loss %s, %s; %.0f img/s, %.1f s (%.1f %% computing%s, %.1f %% waiting for data)",
                      head, x.shown.text, x.masks ? x.score : x.scores, img_s, r->seconds, 100 * r->compute,
                      exchange, 100 * r->data);
    if (r->waited_for >= 0 && r->wait_skew >= WORTH_PRINTING)
        hvt__report_print(
            t->rep,
            "  rank %d (%s) was the slowest: another rank waited %.1f %% of the time longer for the exchange",
            r->waited_for, hvt_world_host(t->world, r->waited_for), 100 * r->wait_skew);
    return HVT_OK;
}

/* Begins or continues an epoch, after t->at.sample images of its order. */
static hvt_status begin_epoch(run *t)
{
    hvt__spent_begin(t);
    t->lap.paused = hvt__paused(hvt__now());
    t->lap.seconds = t->job.seconds;
    t->lap.images = t->job.images;
    t->lap.open = true;
    HVT_TRY(look_ahead(t));
    return hvt_loader_seek(t->train_data, t->at.epoch, t->at.sample);
}

static hvt_status end_epoch(run *t)
{
    shares r = {0};

    HVT_TRY(await_updates(t));
    HVT_TRY(take_loss(t));
    warn_of_growth(t, &t->recent.loss);
    r.seconds = t->job.seconds - t->lap.seconds;
    HVT_TRY(account(t, &r));
    HVT_TRY(report_epoch(t, (double)(t->job.images - t->lap.images) / r.seconds, &r));
    t->lap.open = false;
    if (t->at.step == t->steps_per_epoch) {
        t->at.epoch++;
        t->at.step = t->at.sample = 0;
        memset(&t->epoch_sum, 0, sizeof t->epoch_sum);
    }
    return hvt__timeline_flush(t->timeline);
}

/* Counts an update that took `took` seconds. */
static void count_step(run *t, double took)
{
    hvt__speed_add(&t->recent.speed, took, t->step_images);
    if (!t->set.on_gpu)
        hvt__speed_waited(&t->recent.speed, 0);
    t->job.images += t->step_images;
    t->epoch_sum.steps++;
    t->at.sample += (uint32_t)(t->set.batch * t->set.shards); /* unused after the last one, which has less */
    t->at.step++;
    t->at.steps++;
    if (t->rep)
        hvt__log_at(t->rep->lines_of, t->at.steps);
    if (t->job.first_update < 0)
        t->job.first_update = hvt__process_seconds();
}

static hvt_status update(run *t, bool *ret_end)
{
    double lr = hvt_schedule_lr(t->schedule, t->at.epoch, t->at.step, t->steps_per_epoch) *
                pow(t->set.plateau.factor, t->patience.cuts);
    double start = hvt__running();
    double took;
    hvt_status s;

    t->step_images = 0;
    if (t->at.step < t->steps_per_epoch)
        hvt__trace_step(t->at.steps + 1);
    hvt__preempt_vote(t);
    s = hvt__step(t, lr, ret_end);
    if (s)
        return name_step(t, s);
    took = hvt__running() - start;
    t->job.seconds += took;
    if (*ret_end)
        return HVT_OK;
    count_step(t, took);
    HVT_TRY(look_ahead(t));
    HVT_TRY(report_step(t, lr));
    HVT_TRY(hvt__balance_step(t));
    HVT_TRY(hvt__timeline_at(t->timeline, t->at.steps));
    return name_step(t, hvt__preempt_poll(t, took));
}

hvt_status hvt__train_epoch(run *t)
{
    bool end = false;

    if (!t->lap.open)
        HVT_TRY(begin_epoch(t));
    while (t->at.steps < t->end && !end) {
        HVT_TRY(update(t, &end));
        if ((t->save.due || t->preempt.stopping) && !end && t->at.step < t->steps_per_epoch &&
            t->at.steps < t->end) {
            HVT_TRY(await_updates(t));
            return take_loss(t);
        }
    }
    return end_epoch(t);
}
