/*
 * What signals do to a run.
 *
 * SIGINT ends the process: the handler ends the progress bar's line, prints one line, ends the log, removes
 * the temporary file that is being written, and exits with 130. So do SIGTERM, SIGUSR1 and SIGUSR2, with the
 * exit code of --preempt-exit, unless the run *defers* them: then the first one only asks the run to save and
 * end (train/preempt.c), and the next one ends the process. Signals within a second of the first are the same
 * request, since a launcher and a scheduler may both deliver it. Everything that a handler needs is prepared
 * beforehand; handlers only write, unlink, wait for a moment and call _exit().
 *
 * The ranks of a host share a *report* in shared memory (without it each has its own). One rank claims it:
 * the first that is about to abort, or rank 0 when it is interrupted, which prints the line. The others print
 * nothing. The report also holds the error's text, which rank 0 writes to its log, and the signal that asks,
 * so that one rank's signal reaches all of its host. In a job on several hosts nothing is printed for
 * SIGTERM, because another host may have an error.
 *
 * A launcher also sends SIGTERM to every rank when one rank has failed. Then no update comes to its end any
 * more, and what failed must remain the last line. This is known where a rank of this host has claimed the
 * report or is dead. Of other hosts nothing is known; but a launcher that sends SIGTERM sends SIGKILL some
 * time later, so shortly before that the process ends by itself, with a log that has its last record.
 */
#include "world/node.h"
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { INTERRUPTED = 130, FAILED = 1, SAME_REQUEST = 1000 /* ms */ };

typedef struct report {
    atomic_bool claimed, complete; /* complete: all of `why` is there */
    atomic_int asked;              /* a signal, or HVT__TIME_IS_UP; 0: nobody asks */
    char why[HVT__LOG_WHY];        /* a JSON string */
    atomic_int pid[];              /* of this host's ranks; 0: it is not here, or has left */
} report;

static _Atomic(const char *) tmp_path[3];
static atomic_bool bar_shown, deferred, leaving;
static atomic_int exit_code = 143;
static _Atomic int64_t first; /* ms: when the request came; 0: none came */
static bool is_reporter, several_ranks, several_hosts;
static int here;        /* ranks in the report */
static double patience; /* s between a launcher's SIGTERM and its SIGKILL */
static pid_t launcher;
static const int handled[] = {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGALRM, SIGXFSZ};
static struct sigaction before[HVT_LEN(handled)];
static hvt__node node;
static _Atomic(report *) shared; /* NULL: not open */

static void print(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static const char *name_of(int sig)
{
    return sig == SIGINT ? "SIGINT" : sig == SIGUSR1 ? "SIGUSR1" : sig == SIGUSR2 ? "SIGUSR2" : "SIGTERM";
}

/* Is this the first rank of the host to ask? */
static bool claim(report *r)
{
    return !atomic_exchange(&r->claimed, true);
}

static bool another_is_dead(report *r)
{
    for (int i = 0; i < here; i++) {
        int pid = atomic_load(&r->pid[i]);

        if (pid && kill(pid, 0) && errno == ESRCH)
            return true;
    }
    return false;
}

/* In rank 0's handler, which has claimed the report. */
static void print_end(int sig)
{
    if (sig == SIGINT)
        print("hvtrain: interrupted\n");
    else if (sig == SIGALRM)
        print(
            "hvtrain: interrupted (SIGTERM): the launcher kills before an update is done and saved; the last "
            "checkpoint stays (mpirun --mca odls_base_sigkill_timeout 30 gives it 30 s)\n");
    else if (atomic_load(&first) && atomic_load(&deferred))
        print("hvtrain: interrupted (a second signal): the last checkpoint stays\n");
    else if (sig == SIGTERM && several_ranks)
        print("hvtrain: interrupted (SIGTERM: the launcher ended the job: another rank failed, or Ctrl-C)\n");
    else if (sig == SIGTERM)
        print("hvtrain: interrupted (SIGTERM)\n");
    else
        print(sig == SIGUSR1 ? "hvtrain: interrupted (SIGUSR1)\n" : "hvtrain: interrupted (SIGUSR2)\n");
}

static void end_now(int sig)
{
    const char *path;
    report *r = atomic_load(&shared);
    bool other_failed = r && (atomic_load(&r->claimed) || another_is_dead(r));
    bool mine = is_reporter && r && claim(r);
    int code = sig == SIGINT                                       ? INTERRUPTED
               : other_failed || (sig == SIGALRM && several_hosts) ? FAILED
                                                                   : atomic_load(&exit_code);

    for (int i = 0; r && i < here && sig != SIGINT && !other_failed; i++)
        if (atomic_load(&r->pid[i]) == getpid())
            atomic_store(&r->pid[i], 0); /* it ends as it was asked to; that is no failure to the others */
    if (bar_shown)
        print("\r\033[K");
    if (mine && !((sig == SIGTERM || sig == SIGALRM) && several_hosts))
        print_end(sig);
    if (is_reporter && !mine && r) /* another rank failed, and so the launcher sent the signal */
        hvt__log_last("failed", name_of(sig), atomic_load(&r->complete) ? r->why : NULL);
    else
        hvt__log_last("interrupted", name_of(sig), NULL);
    for (size_t i = 0; i < HVT_LEN(tmp_path); i++)
        if ((path = atomic_load(&tmp_path[i])))
            unlink(path);
    if (several_ranks) /* mpirun kills the others once one has exited: rank 0's line must be out by then */
        nanosleep(&(struct timespec){.tv_nsec = is_reporter ? 100000000 : 300000000}, NULL);
    _exit(code);
}

static void on_stop(int sig)
{
    end_now(sig);
}

/* Has this rank been asked before, and is this another request? */
static bool asked_again(void)
{
    struct timespec t;
    int64_t now, none = 0;

    clock_gettime(CLOCK_MONOTONIC, &t);
    now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    return !atomic_compare_exchange_strong(&first, &none, now) && now - none > SAME_REQUEST;
}

/* The launcher's SIGKILL comes: SIGALRM before it. */
static void set_alarm(double seconds)
{
    double until = seconds > 0.6 ? seconds - 0.3 : seconds / 2;
    struct itimerval at = {.it_value = {.tv_sec = (time_t)until}};

    at.it_value.tv_usec = (suseconds_t)(1e6 * (until - (double)at.it_value.tv_sec));
    setitimer(ITIMER_REAL, &at, NULL);
}

static void on_ask(int sig, siginfo_t *info, void *context)
{
    report *r = atomic_load(&shared);
    int none = 0, was = errno;

    if (atomic_load(&leaving))
        return;
    if (!atomic_load(&deferred) || !r || asked_again() || atomic_load(&r->claimed) || another_is_dead(r))
        end_now(sig);
    atomic_compare_exchange_strong(&r->asked, &none, sig);
    if (sig == SIGTERM && info->si_code == SI_USER && info->si_pid == launcher && patience > 0)
        set_alarm(patience);
    errno = was;
}

/* mpirun tells its ranks how long it waits if that was set; SLURM's KillWait is 30 s unless a site changes
 * it. */
static double launchers_patience(void)
{
    const char *mpirun = getenv("OMPI_MCA_odls_base_sigkill_timeout");

    if (getenv("OMPI_COMM_WORLD_SIZE"))
        return mpirun ? atof(mpirun) : 1;
    return getenv("SLURM_STEP_ID") ? 30 : 0;
}

static void install(int i)
{
    /* exceeding a file size limit is an error of write(), as a full disk is */
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction ask = {.sa_sigaction = on_ask, .sa_flags = SA_RESTART | SA_SIGINFO};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    bool stops = handled[i] == SIGINT || handled[i] == SIGALRM;

    for (size_t k = 0; k < HVT_LEN(handled) - 1; k++) {
        sigaddset(&stop.sa_mask, handled[k]);
        sigaddset(&ask.sa_mask, handled[k]);
    }
    sigaction(handled[i], handled[i] == SIGXFSZ ? &ignore : stops ? &stop : &ask, &before[i]);
    if ((handled[i] == SIGUSR1 || handled[i] == SIGUSR2) && before[i].sa_handler == SIG_IGN)
        sigaction(handled[i], &ignore, NULL); /* as whoever started us wants it */
}

hvt_status hvt__signals_open(hvt_world *world)
{
    int local = hvt_world_local_size(world), me;
    report *r;

    HVT_TRY(hvt__node_open(world, sizeof(report) + (size_t)local * sizeof *r->pid, &node));
    r = node.block;
    here = node.shared ? local : 1;
    me = node.shared ? hvt_world_local_rank(world) : 0;
    atomic_store(&r->pid[me], getpid());
    atomic_store(&shared, r);
    atomic_store(&first, 0);
    launcher = getppid();
    patience = launchers_patience();
    is_reporter = hvt_world_rank(world) == 0;
    several_ranks = hvt_world_size(world) > 1;
    several_hosts = hvt_world_nodes(world) > 1;
    for (size_t i = 0; i < HVT_LEN(handled); i++)
        install((int)i);
    hvt__set_report_vote(hvt__signals_claim_report);
    return HVT_OK;
}

void hvt__signals_close(void)
{
    report *r = atomic_load(&shared);

    if (!node.block)
        return;
    hvt__set_report_vote(NULL);
    set_alarm(0);
    for (size_t i = 0; i < HVT_LEN(handled); i++)
        if (!atomic_load(&leaving) || handled[i] == SIGINT)
            sigaction(handled[i], &before[i], NULL);
        else
            signal(handled[i], SIG_IGN); /* one that ended before may let the launcher hurry this one */
    for (int i = 0; i < here; i++)
        if (atomic_load(&r->pid[i]) == getpid())
            atomic_store(&r->pid[i], 0);
    atomic_store(&shared, NULL);
    atomic_store(&deferred, false);
    hvt__node_close(&node);
}

void hvt__signals_exit_code(int code)
{
    atomic_store(&exit_code, code);
}

void hvt__signals_defer(void)
{
    atomic_store(&deferred, true);
}

void hvt__signals_leave(void)
{
    atomic_store(&leaving, true);
    if (atomic_load(&shared))
        set_alarm(0);
}

bool hvt__signals_asked(const char **ret_name)
{
    report *r = atomic_load(&shared);
    int asked = r ? atomic_load_explicit(&r->asked, memory_order_relaxed) : 0;

    if (ret_name)
        *ret_name = asked && asked != HVT__TIME_IS_UP ? name_of(asked) : NULL;
    return asked;
}

void hvt__signals_time_is_up(void)
{
    report *r = atomic_load(&shared);
    int none = 0;

    if (r)
        atomic_compare_exchange_strong(&r->asked, &none, HVT__TIME_IS_UP);
}

bool hvt__signals_claim_report(const char *why)
{
    report *r = atomic_load(&shared);

    if (!r)
        return true;
    if (!claim(r)) {
        /* the rank that claimed it needs a moment to print before the job ends */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    hvt__log_quote(why, r->why);
    atomic_store(&r->complete, true);
    hvt__log_last("failed", NULL, r->why); /* rank 0's, unless it has ended its log already */
    return true;
}

void hvt__signals_tmp_path(const char *path)
{
    atomic_store(&tmp_path[0], path);
}

void hvt__signals_output(int which, const char *path)
{
    atomic_store(&tmp_path[1 + which], path);
}

void hvt__signals_bar(bool shown)
{
    bar_shown = shown;
}
