/*
 * When a run saves, and when it ends early: on a signal, or because its time is up.
 *
 * All ranks must do so after the same update, though a signal may reach only one of them, and clocks differ.
 * So each rank *votes* with the step statistics, which travel anyway, and every rank sees the same sum. Only
 * rank 0 reads the clock. On a device with a queue, the host polls the votes after the first update of the
 * job and every POLLS-th one after it, when it waits for the device.
 *
 * A job that ends early has made progress, so consecutive jobs reach the end of the run. It has made at least
 * one update, or has evaluated at least a batch of an evaluation that an earlier job had to leave. The sums
 * of such an evaluation are in the checkpoint (eval.c).
 */
#include "run.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>
#include <time.h>

enum { POLLS = 10 /* updates */ };

/* Seconds on rank 0 until SLURM ends the job, as set by versions newer than 22.05 and the scripts in
 * hostfiles/; INFINITY if unknown. */
static double slurms_limit(void)
{
    const char *end = getenv("SLURM_JOB_END_TIME");
    int64_t at = 0;

    if (!end || !hvt__scan_whole(&end, INT64_MAX, &at) || *end || at <= 0)
        return INFINITY;
    return (double)(at - (int64_t)time(NULL));
}

/* On rank 0: twice the time of a checkpoint and of an update, and 5 s to end. */
double hvt__preempt_margin(const run *t)
{
    double save = t->save.seconds > 0 ? t->save.seconds + hvt__writer_seconds(&t->save.folder.writer) : 5;

    return 5 + 2 * (*t->opts->save ? save : 0) + 2 * t->preempt.slowest;
}

void hvt__preempt_open(run *t)
{
    if (!*t->opts->save || t->opts->evaluate)
        return;
    hvt__signals_defer();
    t->save.at = hvt__now();
}

double hvt__preempt_limit(const run *t)
{
    if (t->set.max_seconds > 0)
        return t->set.max_seconds - hvt__process_seconds();
    return t->set.slurms_limit && *t->opts->save ? slurms_limit() : INFINITY;
}

bool hvt__preempt_requested(run *t)
{
    if (t->rank == 0 && t->preempt.deadline < INFINITY &&
        hvt__now() + hvt__preempt_margin(t) >= t->preempt.deadline)
        hvt__signals_time_is_up();
    else
        return hvt__signals_requested(NULL);
    return true;
}

hvt_status hvt__preempt_agree(run *t)
{
    int64_t requested = hvt__preempt_requested(t);

    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_MAX, &requested, 1));
    t->preempt.stopping |= requested > 0;
    return HVT_OK;
}

/* A job with a limit saves its first update at once: this shows how long a save takes, and an unexpectedly
 * slow later step does not leave the job without progress. */
static bool save_is_due(const run *t)
{
    double every = t->set.save_every.seconds;
    bool first = t->preempt.deadline < INFINITY && !(t->save.seconds > 0);

    return t->rank == 0 && *t->opts->save &&
           (hvt__signals_warned() || first || (every > 0 && hvt__now() - t->save.at >= every));
}

void hvt__preempt_vote(run *t)
{
    hvt_distopt_vote(t->dist, HVT_VOTE_STOP, hvt__preempt_requested(t));
    hvt_distopt_vote(t->dist, HVT_VOTE_SAVE, save_is_due(t));
}

/* True if any rank has voted for `what` since the last poll. */
static bool voted(run *t, hvt_vote what)
{
    int64_t now = hvt_distopt_votes(t->dist, what);
    bool more = now > t->preempt.votes[what];

    t->preempt.votes[what] = now;
    return more;
}

hvt_status hvt__preempt_poll(run *t, double seconds)
{
    int64_t steps = t->set.save_every.steps;

    t->save.due = steps && t->at.steps % steps == 0;
    t->preempt.since_poll += seconds;
    if (t->set.on_gpu &&
        ((t->at.steps - t->began.steps - 1) % POLLS || !(*t->opts->save || t->set.max_seconds > 0)))
        return HVT_OK;
    if (t->set.on_gpu) {
        double start = hvt__running();

        HVT_TRY(hvt_distopt_check(t->dist));
        t->preempt.since_poll += hvt__running() - start;
    }
    t->preempt.slowest = fmax(t->preempt.since_poll, 0.9 * t->preempt.slowest);
    t->preempt.since_poll = 0;
    if (voted(t, HVT_VOTE_SAVE))
        t->save.due = true;
    if (voted(t, HVT_VOTE_STOP))
        t->preempt.stopping = true;
    return HVT_OK;
}

bool hvt__save_due_after_epoch(const run *t)
{
    int64_t epochs = t->set.save_every.epochs;

    return epochs && t->at.step == 0 && t->at.epoch % epochs == 0;
}

void hvt__note_patience(run *t)
{
    const double patience = hvt__signals_patience(), reserve = 0.3; /* s; signals.c exits that early */
    const double takes = t->preempt.slowest + t->save.seconds + hvt__writer_seconds(&t->save.folder.writer);

    if (t->save.noted_patience || t->at.steps >= t->end || !(patience > 0) || takes < patience - reserve)
        return;
    t->save.noted_patience = true;
    HVT_INFO(
        "note: Ctrl-C does not save this run: an update and a save take %.1f s, and mpirun kills after %g s; "
        "SIGUSR1 to mpirun saves and ends it, and so does Ctrl-C with --mca odls_base_sigkill_timeout %.0f",
        takes, patience, ceil(2 * takes));
}

hvt_status hvt__report_preempted(run *t, uint64_t weights)
{
    const char *name, *dir = t->opts->save;
    char hex[17], line[HVT_SHELL_WORD + 400], word[HVT_SHELL_WORD],
        kept[HVT_SHELL_WORD + 100] = "nothing was saved";
    bool requested = hvt__preempt_requested(t);
    double seconds = hvt__process_seconds();
    json_t *record;

    hvt__signals_requested(&name);
    if (!t->rep)
        return HVT_OK;
    snprintf(hex, sizeof hex, "%016" PRIx64, weights);
    record = json_pack("{s:s, s:s, s:o, s:n, s:o, s:I, s:s}", "record", "end", "status", "preempted",
                       "signal", name ? json_string(name) : json_null(), "error", "seconds",
                       hvt__number(seconds), "steps", (json_int_t)t->at.steps, "weights", hex);
    hvt__spent_record(&t->job.spent, seconds, record);
    hvt__spent_by_rank(t->spents, t->size, true, record);
    HVT_TRY(hvt__report_put(t->rep, record));
    hvt__log_ended(t->rep->lines_of);
    hvt__pages_write(t);
    if (t->save.steps == t->at.steps && t->test.due && t->test.begun.images)
        snprintf(kept, sizeof kept,
                 "--resume %s goes on from there, with image %" PRId64 " of the evaluation",
                 hvt__shell_word(dir, word), t->test.begun.images + 1);
    else if (t->save.steps == t->at.steps)
        snprintf(kept, sizeof kept, "--resume %s goes on from there", hvt__shell_word(dir, word));
    else if (t->save.steps >= 0)
        snprintf(kept, sizeof kept, "the checkpoint of update %" PRId64 " stays", t->save.steps);
    snprintf(line, sizeof line, "preempted (%s) after update %" PRId64 " (%u of %u of epoch %d): %s",
             name        ? name
             : requested ? "time is up"
                         : "a rank of another host was asked to end",
             t->at.steps, t->at.step, t->steps_per_epoch, t->at.epoch + 1, kept);
    hvt__log_always(HVT_LOG_INFO, line);
    return HVT_OK;
}
