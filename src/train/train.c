/*
 * A run: epochs, evaluations, checkpoints.
 *
 * There are two kinds of errors. Agreed ones (a training loss that is not finite, a checkpoint that rank 0
 * cannot write) are returned on all ranks, and everything is closed. An error inside a step belongs to one
 * rank; the other ranks continue into the exchange, so nothing collective may follow, and the caller ends the
 * job. Time in which the process was stopped does not count as work.
 */
#include "run.h"
#include "base/trace.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

/* Shows the progress of an evaluation: rank 0 has about as many images as any other rank. */
static bool show_evaluation(run *t, int images)
{
    int64_t all = hvt_dataset_describe(t->test_set)->count, done;
    char rest[80];

    t->test.images += images;
    done = t->test.images * t->size < all ? t->test.images * t->size : all;
    snprintf(rest, sizeof rest, "%" PRId64 "/%" PRId64 " images", done, all);
    if (hvt__report_bar_due(t->rep))
        hvt__report_bar(t->rep, "test", (double)done / (double)all, rest);
    if (hvt__report_line_due(t->rep))
        hvt__report_print(t->rep, "test: %s", rest);
    return !hvt__preempt_requested(t);
}

/* Warns once per run: such losses are common and temporary while running statistics are young. */
static void warn_of_losses(run *t, const hvt__odd_losses *odd)
{
    const bool goes_on = !t->opts->evaluate;

    if (odd->nan + odd->inf && !t->test.warned_infinite)
        HVT_WARN("evaluation after update %" PRId64 ": of %" PRId64 " losses %" PRId64 " are NaN and %" PRId64
                 " infinite%s",
                 t->at.steps, t->test.loss.count, odd->nan, odd->inf,
                 goes_on ? "; training continues (a lower --lr or --warmup-epochs may help)" : "");
    else if (odd->large && !t->test.warned_large)
        HVT_WARN(
            "evaluation after update %" PRId64 ": %" PRId64 " of %" PRId64 " losses are 2^30 or more%s",
            t->at.steps, odd->large, t->test.loss.count,
            goes_on
                ? "; training continues (running statistics may not have settled yet, or --lr is too high)"
                : "");
    t->test.warned_infinite |= odd->nan + odd->inf > 0;
    t->test.warned_large |= odd->large > 0;
}

/* Prints a line, and the table of --per-class of the last evaluation: on stdout with --evaluate, unless
 * predictions go there. */
static hvt_status print_evaluation(const run *t, const char *text)
{
    const hvt_options *o = t->opts;
    const bool result = o->evaluate && strcmp(o->predict, "-") != 0 && strcmp(o->predict_logits, "-") != 0;

    if (*o->predict)
        hvt__report_print(t->rep, "predictions: %s", o->predict);
    if (*o->predict_logits)
        hvt__report_print(t->rep, "logits: %s", o->predict_logits);
    if (result)
        HVT_TRY(hvt__report_result(t->rep, text));
    else
        hvt__report_print(t->rep, "%s", text);
    return o->per_class && (o->evaluate || t->at.steps == t->end) ? hvt__per_class_print(t, result) : HVT_OK;
}

static hvt_status report_evaluation(const run *t, const hvt__odd_losses *odd)
{
    hvt__figures x = hvt__figures_of(&t->test.loss, t->set.loss.kind, t->classes, t->masks);
    int epoch = t->at.epoch + (t->at.step > 0 || t->at.sample > 0);
    bool targets = hvt_loss_has_targets(t->set.loss.kind);
    bool unlabelled = hvt_dataset_describe(t->test_set)->unlabelled && !targets && !t->masks;
    json_t *record;
    int64_t averages = t->opts->evaluate ? t->averages : hvt_distopt_averages(t->dist);
    char text[HVT_OPTION_VALUE + 200], of[HVT_OPTION_VALUE + 60];

    if (!t->rep)
        return HVT_OK;
    if (unlabelled)
        x.top1 = x.top5 = NAN;
    record =
        json_pack("{s:s, s:i, s:o, s:o, s:o, s:I, s:I, s:I}", "record", "eval", "epoch", epoch, "loss",
                  hvt__number(x.loss), "top1", hvt__number(x.top1), "top5", hvt__number(x.top5), "count",
                  (json_int_t)t->test.loss.count, "nan", (json_int_t)odd->nan, "inf", (json_int_t)odd->inf);
    hvt__figures_add(&x, true, record);
    json_object_set_new(record, "at_step", json_integer((json_int_t)t->at.steps));
    hvt__per_class_record(&t->test.per_class, record);
    if (t->set.averages)
        json_object_set_new(record, "averages", json_integer((json_int_t)averages));
    HVT_TRY(hvt__report_put(t->rep, record));
    if (t->opts->evaluate && !*t->opts->resume) /* weights without a run */
        snprintf(of, sizeof of, "of %s", *t->opts->init ? t->opts->init : t->opts->model);
    else if (t->at.sample > 0) /* within an epoch */
        snprintf(of, sizeof of, "after step %" PRId64, t->at.steps);
    else
        snprintf(of, sizeof of, "after epoch %d", epoch);
    snprintf(text, sizeof text, "test %s%s: loss %s, %s of %lld %s", of,
             averages ? " (averaged weights)" : "", x.shown.text, x.scores, (long long)t->test.loss.count,
             t->masks ? "labelled pixels" : "images");
    if (unlabelled)
        snprintf(text, sizeof text, "predictions %s%s: %lld images without labels, so without loss and top-1",
                 of, averages ? " (averaged weights)" : "", (long long)t->test.loss.count);
    return print_evaluation(t, text);
}

/* Evaluates the weights' average, if there is one. */
static hvt_status evaluate_average(run *t, hvt__odd_losses *ret_odd, bool *ret_whole)
{
    HVT_TRY(hvt_distopt_use_average(t->dist, true));
    HVT_TRY(hvt__evaluate(t->model, t->test_data, t->world, show_evaluation, t, &t->test.loss, ret_odd,
                          ret_whole));
    return hvt_distopt_use_average(t->dist, false);
}

/* True if an evaluation of the current weights was interrupted. */
static bool is_begun(const run *t)
{
    return t->test.due && t->test.begun.images && t->test.begun.steps == t->at.steps;
}

static hvt_status evaluate(run *t)
{
    double start = hvt__running(), took;
    hvt__odd_losses odd;
    bool whole;

    if (t->test.steps == t->at.steps)
        return HVT_OK;
    t->test.images = is_begun(t) ? t->test.begun.images / t->size : 0;
    hvt__trace_begin(HVT__EVALUATE, -1);
    HVT_TRY(hvt__traced(evaluate_average(t, &odd, &whole)));
    took = hvt__running() - start;
    t->job.spent.evaluate += took;
    t->test.due = t->preempt.stopping = !whole; /* interrupted: the next job continues it */
    t->save.test_unsaved = !whole || (t->save.steps == t->at.steps && t->save.untested);
    if (!whole)
        return HVT_OK;
    t->test.seconds = took;
    t->test.steps = t->at.steps;
    if (t->rank == 0)
        warn_of_losses(t, &odd);
    return report_evaluation(t, &odd);
}

/* On rank 0: starts writing a generation. */
static hvt_status write_checkpoint(run *t, hvt__score score)
{
    hvt_progress p = {.epoch = t->at.epoch,
                      .step = t->at.step,
                      .steps = t->at.steps,
                      .top1 = score.top1,
                      .loss = score.loss > 0 ? score.loss : 0,
                      .patience = t->patience,
                      .run = t->save.run,
                      .options = hvt__effective_options(t),
                      .class_names = t->class_names ? json_dumps(t->class_names, JSON_COMPACT) : NULL,
                      .begun = is_begun(t) ? hvt__begun_text(t) : NULL,
                      .sample = t->at.sample,
                      .untested = t->test.due,
                      .epoch_steps = t->epoch_sum.steps,
                      .epoch_loss = t->epoch_sum.loss,
                      .recent = t->recent.loss,
                      .images = hvt_dataset_describe(t->train_set)->count,
                      .data = t->save.data};
    hvt_status s;

    s = p.options && !p.class_names == !t->class_names && !p.begun == !is_begun(t)
            ? hvt__folder_save(&t->save.folder, t->model, t->optim, &p)
            : HVT_FAIL(E_MEM, "no memory to save options and class names");
    hvt__progress_free(&p);
    return s;
}

/* The number that is highest for `best`: top-1 of the current weights in percent; with labels of pixels the
 * mean IoU in percent; with targets 100 / (1 + loss), which grows as the loss falls. -1: not evaluated, or
 * the loss is not finite. */
static double top1_of(const run *t)
{
    if (t->test.steps != t->at.steps || !t->test.loss.count || !isfinite(t->test.loss.sum))
        return -1;
    if (hvt_loss_has_targets(t->set.loss.kind))
        return 100.0 / (1 + t->test.loss.sum / (double)t->test.loss.count);
    if (t->masks)
        return 100.0 * t->test.loss.iou;
    return 100.0 * (double)t->test.loss.top1 / (double)t->test.loss.count;
}

static hvt__score score_of(const run *t)
{
    const double top1 = top1_of(t);

    return (hvt__score){top1, top1 >= 0 ? t->test.loss.sum / (double)t->test.loss.count : (double)NAN};
}

/* The best score so far, if the save in progress succeeds. */
static hvt__score best_of(const run *t)
{
    return t->save.pending && hvt__is_better(t->save.writing.score, t->save.best) ? t->save.writing.score
                                                                                  : t->save.best;
}

/* Waits for the save in progress, if any; all ranks learn its result. */
static hvt_status await_save(run *t)
{
    double start = hvt__running();
    char when[40];
    hvt_status s;

    if (!t->save.pending)
        return HVT_OK;
    t->save.pending = false;
    hvt__trace_begin(HVT__SAVE, -1);
    s = hvt__traced(hvt_world_agree(t->world, t->rank == 0 ? hvt__folder_wait(&t->save.folder) : HVT_OK));
    t->job.spent.save += hvt__running() - start;
    if (s == HVT_E_DIVERGED && t->save.writing.steps < t->end) {
        /* the old files stay; only a training loss ends a run */
        if (t->rank == 0)
            HVT_WARN("after update %" PRId64 ": %s; training continues", t->save.writing.steps,
                     hvt_last_error());
        return HVT_OK;
    }
    snprintf(when, sizeof when, "after update %" PRId64, t->save.writing.steps);
    HVT_TRY(hvt__name_diverged(t, when, s));
    hvt__saved(t);
    if (t->rank == 0)
        hvt__note_patience(t);
    return HVT_OK;
}

/* Copies what is to be saved; a thread writes it, and await_save() reports the result. Weights whose loss is
 * not finite are saved, but never as `best`. */
static hvt_status save(run *t)
{
    bool good = t->test.steps != t->at.steps || !t->test.loss.count || isfinite(t->test.loss.sum);
    const hvt__score score = score_of(t);
    double start = hvt__running(), before = t->job.spent.save;

    if (!*t->opts->save)
        return HVT_OK;
    HVT_TRY(await_save(t));
    if (t->save.steps == t->at.steps && !hvt__is_better(score, t->save.best) && !t->save.test_unsaved)
        return HVT_OK;
    t->save.test_unsaved = false;
    t->save.untested = t->test.due;
    hvt__trace_begin(HVT__SAVE, -1);
    HVT_TRY(hvt_distopt_gather(t->dist, 0));
    HVT_TRY(hvt__traced(hvt_world_agree(t->world, t->rank == 0 ? write_checkpoint(t, score) : HVT_OK)));
    t->save.seconds = hvt__running() - start;
    t->job.spent.save = before + t->save.seconds; /* includes what await_save() counted */
    t->save.at = hvt__now();
    t->save.pending = true;
    t->save.writing = (hvt__kept){good, t->at.epoch + (t->at.step > 0), t->at.steps, score};
    return HVT_OK;
}

/* True if --early-stop ends the run. */
static bool is_stale(const run *t)
{
    return t->opts->early_stop > 0 && t->patience.stale >= t->opts->early_stop;
}

static void print_stale(const run *t)
{
    const hvt_patience *p = &t->patience;
    char best[60] = "";

    if (p->top1 > 0)
        snprintf(best, sizeof best, "top-1 %.2f %% and ", p->top1);
    hvt__report_print(t->rep, "early stop: the best test was %d evaluation%s ago, with %sloss %g", p->stale,
                      p->stale == 1 ? "" : "s", best, p->loss);
}

/* Updates --early-stop and --schedule plateau after an evaluation, alike on all ranks. As in PyTorch's
 * ReduceLROnPlateau, a loss is better if it is below the least loss by a 10,000th of that. */
static void judge_progress(run *t)
{
    const hvt__score now = score_of(t);
    const bool known = now.top1 >= 0;
    hvt_patience *p = &t->patience;

    p->stale++;
    if (known && (p->least == 0 || hvt__is_better(now, (hvt__score){p->top1, p->loss}))) {
        p->top1 = now.top1;
        p->loss = now.loss;
        p->stale = 0;
    }
    p->bad++;
    if (known && (p->least == 0 || now.loss < p->least * (1 - 1e-4))) {
        p->least = now.loss;
        p->bad = 0;
    }
    if (t->set.plateau.patience >= 0 && p->bad > t->set.plateau.patience) {
        p->bad = 0;
        p->cuts++;
        if (t->rep)
            hvt__report_print(t->rep,
                              "the loss has not fallen for %d evaluations: the rate is multiplied by %g",
                              t->set.plateau.patience + 1, t->set.plateau.factor);
    }
    if (!is_stale(t) || t->at.steps >= t->end)
        return;
    t->end = t->at.steps;
    if (t->rep)
        print_stale(t);
}

/* Evaluates and saves after an epoch, or after the last update of a run that ends within an epoch. The
 * evaluation precedes the checkpoint, because its result decides about `best`. If the run ends early, the
 * next job makes or completes the evaluation. */
static hvt_status end_epoch(run *t)
{
    t->test.due = t->at.steps == t->end ||
                  (t->opts->eval_freq && t->at.step == 0 && t->at.epoch % t->opts->eval_freq == 0);
    if (t->test.due && !t->preempt.stopping) {
        HVT_TRY(evaluate(t));
        if (!t->test.due)
            judge_progress(t);
    }
    if (hvt__is_better(score_of(t), best_of(t)) || hvt__save_due_after_epoch(t))
        t->save.due = true;
    return HVT_OK;
}

static hvt_status save_if_due(run *t)
{
    bool due = t->save.due || t->preempt.stopping;

    t->save.due = false;
    if (!due)
        return HVT_OK;
    HVT_TRY(save(t));
    return t->at.steps < t->end ? hvt__preempt_agree(t) : HVT_OK; /* the next update may be a long one */
}

static hvt_status train(run *t)
{
    if (is_stale(t) && t->at.steps < t->end) {
        t->end = t->at.steps;
        if (t->rep)
            print_stale(t);
        if (t->rank == 0)
            HVT_WARN("--early-stop %d has ended this run: to continue, give a larger number, or none",
                     t->opts->early_stop);
    }
    if (t->test.due && t->at.steps < t->end) { /* left over by the last job */
        HVT_TRY(end_epoch(t));
        HVT_TRY(save_if_due(t));
    }
    while (t->at.steps < t->end && !t->preempt.stopping) {
        HVT_TRY(hvt__train_epoch(t));
        if (!t->lap.open)
            HVT_TRY(end_epoch(t));
        HVT_TRY(save_if_due(t));
    }
    return HVT_OK;
}

/* "--host a:4,b:4 ", the ranks' hosts in order; "" for one host. False if they do not fit. */
static bool format_hosts(const run *t, char *ret_text, size_t room)
{
    size_t n = 0;

    *ret_text = 0;
    for (int r = 0, next; r < t->size && hvt_world_nodes(t->world) > 1 && n < room; r = next) {
        const char *host = hvt_world_host(t->world, r);

        for (next = r + 1; next < t->size && !strcmp(hvt_world_host(t->world, next), host);)
            next++;
        n += (size_t)snprintf(ret_text + n, room - n, "%s%s:%d", n ? "," : "--host ", host, next - r);
    }
    if (n && n + 1 < room)
        strcat(ret_text, " ");
    return n + 1 < room;
}

static bool is_set(const char *variable, const char *value)
{
    return getenv(variable) && !strcmp(getenv(variable), value);
}

/* A command line that starts the same ranks, without the options of the run; "the same start with" if one
 * line cannot do that. */
static void format_program(const run *t, char *ret_text, size_t room)
{
    static const enum hvt__option_at own[] = {HVT__AT_devices, HVT__AT_split, HVT__AT_threads};
    const hvt_options *o = t->opts;
    const char *mpirun = getenv("OMPI_COMM_WORLD_SIZE"), *srun = getenv("SLURM_STEP_NUM_TASKS");
    const int processes = !*o->devices ? t->size : mpirun ? atoi(mpirun) : srun ? atoi(srun) : 1;
    char before[300] = "", after[40] = "", hosts[200];
    size_t n;

    if (processes > 1 && o->spawn)
        snprintf(after, sizeof after, " --spawn %d", processes);
    else if (processes > 1 && mpirun && format_hosts(t, hosts, sizeof hosts))
        snprintf(before, sizeof before, "mpirun %s%s%s%s-np %d ", geteuid() ? "" : "--allow-run-as-root ",
                 is_set("OMPI_MCA_rmaps_base_oversubscribe", "1") ? "--oversubscribe " : "",
                 is_set("OMPI_MCA_hwloc_base_binding_policy", "none") ? "--bind-to none " : "", hosts,
                 processes);
    else if (processes > 1 && srun && !mpirun)
        snprintf(before, sizeof before, "srun -n %d ", processes);
    else if (processes > 1 && hvt_world_nodes(t->world) == 1) /* started by torchrun, or by hand */
        snprintf(after, sizeof after, " --spawn %d", processes);
    else if (processes > 1) {
        snprintf(ret_text, room, "the same start with");
        return;
    }
    n = (size_t)snprintf(ret_text, room, "%s%s%s", before, hvt__process_program(), after);
    for (size_t i = 0; i < HVT_LEN(own) && n < room; i++) {
        char value[HVT_OPTION_VALUE];

        hvt__option_text(o, own[i], value);
        if (o->from[own[i]] == HVT_FROM_FLAG)
            n += (size_t)snprintf(ret_text + n, room - n, " %s %s",
                                  hvt__flag_of(&hvt__option_table[own[i]]).text, value);
    }
}

/* Prints complete command lines that a user can copy. More epochs of a schedule over all of them would raise
 * its rate again. */
static void print_next(const run *t)
{
    const hvt_options *opts = t->opts;
    char program[HVT_SHELL_WORD + 2 * HVT_OPTION_VALUE + 400];
    const char *device = strcmp(opts->device, "cpu") ? opts->device : "";
    const char *name = t->save.best.top1 >= 0 ? "best" : "last";
    int64_t length = t->set.by_epochs ? opts->epochs : opts->steps;
    int64_t whole = (int64_t)opts->epochs * t->steps_per_epoch; /* updates */
    bool rest = t->set.by_epochs && t->at.epoch < opts->epochs; /* --steps ended it early */
    char file[HVT_OPTION_VALUE + 20], dir_word[HVT_SHELL_WORD], file_word[HVT_SHELL_WORD];

    format_program(t, program, sizeof program);
    if (!*opts->save) {
        hvt__report_print(t->rep,
                          "next: nothing was saved; the same command with --save DIR keeps the weights");
        return;
    }
    length = rest ? length : 2 * length;
    if (hvt__schedule_ends(t) && !t->set.by_epochs && length > whole)
        length = whole;
    if (hvt__schedule_ends(t) && t->at.steps >= whole)
        hvt__report_print(t->rep,
                          "next: --schedule %s has ended, and more --epochs would raise its rate again; "
                          "--init %s starts a new run with these weights",
                          opts->schedule, hvt__shell_word(opts->save, dir_word));
    else
        hvt__report_print(t->rep, "next: %s --resume %s --%s %" PRId64 "%s%s%s  # continues", program,
                          hvt__shell_word(opts->save, dir_word), t->set.by_epochs ? "epochs" : "steps",
                          length, is_stale(t) ? " --early-stop none" : "", *device ? " --device " : "",
                          device);
    snprintf(file, sizeof file, "%s/%s.safetensors", opts->save, name);
    hvt__report_print(t->rep, "      %s --resume %s --evaluate%s%s  # tests the %s weights", program,
                      hvt__shell_word(file, file_word), *device ? " --device " : "", device, name);
}

/* bytes: the maximum over ranks; device_bytes: the same for GPU memory, 0 on host devices. */
static hvt_status report_end(const run *t, const hvt_report *r, int64_t bytes, int64_t device_bytes)
{
    const char *whose = *t->opts->devices ? "in a process" : t->size > 1 ? "on a rank" : "of memory";
    char hex[17], took[32], parts[HVT__SPENT_TEXT];
    double mib = hvt__mib((double)bytes);
    json_t *record;

    if (!t->rep)
        return HVT_OK;
    snprintf(hex, sizeof hex, "%016" PRIx64, r->weights);
    record = json_pack("{s:s, s:s, s:o, s:I, s:I, s:o, s:s, s:o, s:I, s:I, s:I}", "record", "end", "status",
                       "done", "seconds", hvt__number(r->seconds), "steps", (json_int_t)t->at.steps,
                       "skipped", (json_int_t)hvt_distopt_skipped(t->dist), "loss_scale",
                       hvt__number(hvt_distopt_loss_scale(t->dist)), "weights", hex, "first_update_s",
                       t->job.first_update < 0 ? json_null() : hvt__number(t->job.first_update), "peak_bytes",
                       (json_int_t)bytes, "device_peak_bytes", (json_int_t)device_bytes, "missing",
                       (json_int_t)t->rep->missing);
    hvt__spent_record(&t->job.spent, r->seconds, record);
    hvt__spent_by_rank(t->spents, t->size, true, record);
    HVT_TRY(hvt__report_put(t->rep, record));
    hvt__log_ended(t->rep->lines_of);
    hvt__pages_write(t);
    hvt__spent_text(&t->job.spent, r->seconds, parts);
    hvt__report_print(t->rep, "where the time%s went: %s", t->size > 1 ? " of rank 0" : "", parts);
    hvt__duration(r->seconds, took);
    if (device_bytes)
        hvt__report_print(t->rep, "GPU memory: at most %.0f MiB%s", hvt__mib((double)device_bytes),
                          t->size > 1 ? " on a rank" : "");
    if (t->job.first_update < 0) { /* nothing was trained */
        hvt__report_print(t->rep, "done: %s; at most %.0f MiB %s; weights %s", took, mib, whose, hex);
        return HVT_OK;
    }
    hvt__report_print(t->rep,
                      "done: %lld updates, %s, the first after %.2f s; at most %.0f MiB %s; weights %s",
                      (long long)t->at.steps, took, t->job.first_update, mib, whose, hex);
    if (!t->opts->train_set) /* no command line names a caller's own images */
        print_next(t);
    return HVT_OK;
}

/* Hashes the weights that were evaluated and saved. */
static hvt_status hash_weights(run *t, uint64_t *ret_hash)
{
    HVT_TRY(hvt_distopt_use_average(t->dist, true));
    HVT_TRY(hvt_world_agree(t->world, hvt_model_hash(t->model, ret_hash)));
    return hvt_distopt_use_average(t->dist, false);
}

/* Gathers where the time of this job went on each rank. */
static hvt_status gather_spent(run *t)
{
    hvt__rank_spent mine = {.spent = t->job.spent};

    return hvt_world_allgather(t->world, &mine, sizeof mine, t->spents);
}

static hvt_status finish(run *t, hvt_report *ret_report)
{
    hvt_report r = {.epochs = t->at.epoch + (t->at.step > 0),
                    .steps = t->at.steps,
                    .test = t->test.loss,
                    .img_s = t->job.seconds > 0 ? (double)t->job.images / t->job.seconds : 0};
    hvt_device_info device;

    hvt_device_describe(t->dev, &device);
    int64_t bytes[] = {hvt__process_peak_bytes(), device.peak_bytes};

    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_MAX, bytes, 2));
    HVT_TRY(hash_weights(t, &r.weights));
    HVT_TRY(gather_spent(t));
    r.seconds = hvt__process_seconds();
    hvt__signals_leave();
    HVT_TRY(hvt_world_agree(t->world, report_end(t, &r, bytes[0], bytes[1])));
    *ret_report = r;
    return HVT_OK;
}

/* Ends a run early, after it has saved. */
static hvt_status leave(run *t, hvt_report *ret_report)
{
    hvt_report r = {.epochs = t->at.epoch + (t->at.step > 0),
                    .steps = t->at.steps,
                    .test = t->test.loss,
                    .img_s = t->job.seconds > 0 ? (double)t->job.images / t->job.seconds : 0,
                    .seconds = hvt__process_seconds(),
                    .preempted = true};

    if (t->lap.open)
        hvt__spent_take(t);
    if (t->rep)
        hvt__report_limit(t, true);
    hvt__signals_leave();
    HVT_TRY(hash_weights(t, &r.weights));
    HVT_TRY(gather_spent(t));
    HVT_TRY(hvt_world_agree(t->world, hvt__report_preempted(t, r.weights)));
    *ret_report = r;
    return HVT_OK;
}

hvt_status hvt_train(const hvt_options *opts, hvt_world *world, hvt_report *ret_report)
{
    HVT_TRY(hvt__options_given(opts, __func__));
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_report, "an output pointer for the report");

    run t;
    hvt_stall stall = {opts->stall_warn, opts->stall_abort};
    hvt_status s;

    HVT_TRY(hvt__run_begin(opts, world, &t));
    bool watched = hvt__pause_open();
    HVT_TRY_OR(done, hvt_world_watch(world, &stall));
    hvt__preempt_open(&t); /* a job makes at least one update, so that restarts make progress */
    hvt__trace_begin(HVT__SETUP, -1);
    HVT_TRY_OR(done, hvt__traced(hvt__setup(&t)));
    t.job.spent.startup = hvt__process_seconds();
    if (!opts->evaluate)
        HVT_TRY_OR(done, train(&t));
    if (!t.preempt.stopping)
        HVT_TRY_OR(done, evaluate(&t));
    if (!opts->evaluate)
        HVT_TRY_OR(done, save(&t));
    HVT_TRY_OR(done, await_save(&t));
    HVT_TRY_OR(done, t.preempt.stopping ? leave(&t, ret_report) : finish(&t, ret_report));
done:
    if (s)
        hvt__report_failed(t.rep, t.at.steps);
    if (s == HVT_OK || t.size == 1 || hvt_last_error_is_agreed())
        hvt__teardown(&t); /* otherwise the other ranks would not take part */
    if (watched)
        hvt__pause_close();
    return s;
}
