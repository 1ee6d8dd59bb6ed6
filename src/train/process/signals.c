/*
 * The effect of signals on a run.
 *
 * SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU and a SIGALRM of the parent process request the end of
 * the run. A run that *defers* them, as one with --save does, saves and ends after the current update
 * (train/preempt.c); another request ends it at once. If nothing can be saved, the first request ends the
 * process: the handler ends the progress bar's line, prints one line, ends the log, removes the temporary
 * files that are being written, and exits. Signals within a second of the first are the same request, since a
 * launcher and a scheduler may both deliver it; for SIGINT, which people repeat, the limit is a fifth of a
 * second. All data that handlers need are prepared beforehand; handlers only write, unlink, wait for a moment
 * and call _exit().
 *
 * The program installs the handlers first of all. Until it knows whether the run defers, requests are noted.
 *
 * The ranks of a host share a *report* in shared memory (without it each has its own), once there is a world.
 * One rank claims it and prints the line: the first that is about to abort, or rank 0 when it is interrupted.
 * The others print nothing. The report also holds the error's text, which rank 0 writes to its log, and the
 * requesting signal, so that one rank's signal reaches all ranks of its host. In a job on several hosts
 * nothing is printed for SIGTERM, because another host may have an error.
 *
 * A launcher also sends SIGTERM to every rank when one rank has failed. Then no update completes any more,
 * and the failure must remain the last line. This is known if a rank of this host has claimed the report or
 * is dead. Nothing is known about other hosts, or before there is a world; but a launcher that sends SIGTERM
 * sends SIGKILL some time later, so shortly before that the process ends by itself, with a last record in its
 * log.
 */
#include "world/node.h"
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

enum { INTERRUPTED = 130, FAILED = 1, SAME_REQUEST = 1000, SAME_SIGINT = 200 /* ms */ };

typedef struct report {
    atomic_bool claimed, complete; /* complete: `why` is complete */
    atomic_int requested;          /* a signal, or HVT__TIME_IS_UP; 0: no request */
    char why[HVT__LOG_WHY];        /* a JSON string */
    atomic_int pid[];              /* of this host's ranks; 0: on another host, or has left */
} report;

static _Atomic(const char *) temp[256]; /* files to remove; NULL: a free place */
static atomic_bool bar_shown, deferred, leaving, ending;
static bool begun, unsaved;               /* unsaved: the run trains without --save */
static atomic_int exit_code = 143, noted; /* noted: the request before there was a report */
static _Atomic int64_t first;             /* ms: time of the request; 0: none */
static bool is_reporter, several_ranks, several_hosts;
static bool own_output; /* no launcher shows this rank's lines with those of the other ranks of its host */
static atomic_bool alarmed;   /* SIGALRM is ours */
static atomic_bool warned;    /* the launcher sent SIGCONT */
static bool without_mpi;      /* no launcher of MPI has started this rank */
static atomic_bool passed_on; /* hvt_spawn()'s process got the signal; no other rank has failed */
static atomic_bool alone;     /* the signal is not the launcher's, so perhaps no other rank gets one */
static char myself[24];       /* "rank 1: "; "": no launcher */
static int here;              /* ranks in the report */
static double patience;       /* seconds from a launcher's SIGTERM to its SIGKILL */
static pid_t launcher;
static hvt__node node;
static _Atomic(report *) shared; /* NULL: not open */

static const struct {
    int sig;
    const char *name;
    bool may_be_ignored; /* if it was ignored when the program started, it stays so */
} requests[] = {{SIGINT, "SIGINT", true},   {SIGTERM, "SIGTERM", false}, {SIGHUP, "SIGHUP", true},
                {SIGUSR1, "SIGUSR1", true}, {SIGUSR2, "SIGUSR2", true},  {SIGXCPU, "SIGXCPU", true},
                {SIGALRM, "SIGALRM", false}};

static void print(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

/* The signal's name. An alarm of ours follows a SIGTERM, and has that name. */
static const char *name_of(int sig)
{
    for (size_t i = 0; i < HVT_LEN(requests); i++)
        if (requests[i].sig == sig && !(sig == SIGALRM && atomic_load(&alarmed)))
            return requests[i].name;
    return "SIGTERM";
}

/* True for the first rank of the host that claims the report, and for each whose output is its own. */
static bool claim(report *r)
{
    return !atomic_exchange(&r->claimed, true) || own_output;
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

/* Called in the handler of the reporting rank. */
static void print_end(int sig)
{
    bool second = atomic_load(&first) && atomic_load(&deferred);
    bool only_me = sig == SIGTERM && several_ranks && atomic_load(&alone);
    char line[320] = "hvtrain: ";

    strcat(line, only_me ? myself : "");
    strcat(line, "interrupted (");
    strcat(line, second && sig != SIGALRM ? "a second signal" : name_of(sig));
    if (sig == SIGALRM && atomic_load(&alarmed))
        strcat(line, "): not saved, since the launcher kills a second later; the last checkpoint stays, "
                     "if there is one. To save and end, send SIGUSR1 to mpirun, or start it with --mca "
                     "odls_base_sigkill_timeout 30");
    else if (second)
        strcat(line, "): the last checkpoint stays, if there is one");
    else if (sig == SIGTERM && several_ranks && !only_me && !atomic_load(&passed_on))
        strcat(line, ": the launcher ended the job: another rank failed, or Ctrl-C)");
    else
        strcat(line, ")");
    if (!second && unsaved)
        strcat(line, ": without --save DIR nothing is saved");
    strcat(line, "\n");
    print(line);
}

/* True if this rank reports the end of the run. Before there is a world, the launcher's SIGTERM usually
 * follows another rank's error, which that rank has printed. */
static bool reports(report *r, int sig)
{
    if (sig == SIGTERM && several_ranks && (!r || own_output) && !atomic_load(&passed_on))
        return atomic_load(&alone);
    return is_reporter && (!r || claim(r));
}

static int code_of(int sig, const report *r, bool other_failed)
{
    if (sig == SIGINT)
        return INTERRUPTED;
    /* before there is a world, the launcher may have sent it because another rank failed */
    if (other_failed || (sig == SIGALRM && several_hosts) ||
        (!r && several_ranks && !atomic_load(&passed_on)))
        return FAILED;
    return atomic_load(&exit_code);
}

static void end_now(int sig)
{
    const char *path;
    report *r = atomic_load(&shared);
    bool other_failed = r && (atomic_load(&r->claimed) || another_is_dead(r)), mine;
    int code = code_of(sig, r, other_failed);

    while (atomic_exchange(&ending, true)) /* another thread's handler is running */
        pause();
    mine = reports(r, sig);
    for (int i = 0; r && i < here && sig != SIGINT && !other_failed; i++)
        if (atomic_load(&r->pid[i]) == getpid())
            atomic_store(&r->pid[i], 0); /* a requested end is not a failure to the others */
    if (bar_shown)
        print("\r\033[K");
    if (mine && !((sig == SIGTERM || sig == SIGALRM) && several_hosts && !own_output))
        print_end(sig);
    if (is_reporter && !mine && r) /* the launcher sent it because another rank failed */
        hvt__log_last("failed", name_of(sig), atomic_load(&r->complete) ? r->why : NULL);
    else
        hvt__log_last("interrupted", name_of(sig), NULL);
    for (size_t i = 0; i < HVT_LEN(temp); i++)
        if ((path = atomic_load(&temp[i])))
            unlink(path);
    if (several_ranks) /* mpirun kills the others once one has exited: rank 0 prints first */
        nanosleep(&(struct timespec){.tv_nsec = is_reporter ? 100000000 : 300000000}, NULL);
    _exit(code);
}

/* True for a second request on this rank. SIGXCPU does not count: it repeats every second. */
static bool requested_again(int sig)
{
    struct timespec t;
    int64_t now, none = 0;

    clock_gettime(CLOCK_MONOTONIC, &t);
    now = (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
    return !atomic_compare_exchange_strong(&first, &none, now) && sig != SIGXCPU &&
           now - none > (sig == SIGINT ? SAME_SIGINT : SAME_REQUEST);
}

/* Sets a SIGALRM before the launcher's SIGKILL. */
static void set_alarm(double seconds)
{
    double until = seconds > 0.6 ? seconds - 0.3 : seconds / 2;
    struct itimerval at = {.it_value = {.tv_sec = (time_t)until}};

    at.it_value.tv_usec = (suseconds_t)(1e6 * (until - (double)at.it_value.tv_sec));
    atomic_store(&alarmed, seconds > 0);
    setitimer(ITIMER_REAL, &at, NULL);
}

static void note(report *r, int sig)
{
    int none = 0;

    atomic_compare_exchange_strong(r ? &r->requested : &noted, &none, sig);
    if (sig == SIGINT && is_reporter && !none && isatty(STDERR_FILENO))
        print("\r\033[Khvtrain: SIGINT: saving after this update; Ctrl-C once more ends at once\n");
}

static void on_request(int sig, siginfo_t *info, void *context)
{
    report *r = atomic_load(&shared);
    int was = errno;

    atomic_store(&passed_on, info->si_code == SI_QUEUE);
    atomic_store(&alone, without_mpi && info->si_code == SI_USER && info->si_pid != launcher &&
                             info->si_pid != getpid());
    if (atomic_load(&leaving)) { /* a rank that has ended may make the launcher hurry this one */
        if (requested_again(sig))
            _exit(sig == SIGINT ? INTERRUPTED : atomic_load(&exit_code));
        return;
    }
    if (!atomic_load(&deferred) || (sig == SIGALRM && atomic_load(&alarmed)) || requested_again(sig) ||
        (r && (atomic_load(&r->claimed) || another_is_dead(r))))
        end_now(sig);
    note(r, sig);
    if (sig == SIGTERM && info->si_code == SI_USER && info->si_pid == launcher && patience > 0)
        set_alarm(patience);
    errno = was;
}

static void on_continue(int sig, siginfo_t *info, void *context)
{
    report *r = atomic_load(&shared);
    int was = errno;

    if (info->si_code == SI_USER && info->si_pid == launcher && patience > 0 &&
        !(r && (atomic_load(&r->claimed) || another_is_dead(r))))
        atomic_store(&warned, true);
    errno = was;
}

/* Seconds from the launcher's SIGTERM to its SIGKILL. mpirun passes its timeout to its ranks if it was set;
 * SLURM's KillWait is 30 s unless a site changes it. */
static double launchers_patience(void)
{
    const char *mpirun = getenv("OMPI_MCA_odls_base_sigkill_timeout");

    if (getenv("OMPI_COMM_WORLD_SIZE"))
        return mpirun ? atof(mpirun) : 1;
    return getenv("SLURM_STEP_ID") ? 30 : 0;
}

/* An inherited signal mask would block requests. A file size limit is an error of write(), like a full disk,
 * and so is a pipe without a reader. */
static void install(void)
{
    struct sigaction ask = {.sa_sigaction = on_request, .sa_flags = SA_RESTART | SA_SIGINFO}, before;
    struct sigaction go_on = {.sa_sigaction = on_continue, .sa_flags = SA_RESTART | SA_SIGINFO};
    sigset_t none;

    sigaction(SIGCONT, &go_on, NULL);
    for (size_t i = 0; i < HVT_LEN(requests); i++)
        sigaddset(&ask.sa_mask, requests[i].sig);
    for (size_t i = 0; i < HVT_LEN(requests); i++)
        if (sigaction(requests[i].sig, NULL, &before) || !requests[i].may_be_ignored ||
            before.sa_handler != SIG_IGN)
            sigaction(requests[i].sig, &ask, NULL);
    signal(SIGXFSZ, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_DFL);
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
}

double hvt__signals_patience(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE") ? 2 * patience : 0;
}

void hvt__signals_begin(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"};

    launcher = getppid();
    patience = launchers_patience();
    is_reporter = hvt_world_launched_rank() <= 0;
    if (hvt_world_launched_rank() >= 0)
        snprintf(myself, sizeof myself, "rank %d: ", hvt_world_launched_rank());
    without_mpi = true;
    for (size_t i = 0; i < HVT_LEN(sizes); i++)
        without_mpi = without_mpi && !(getenv(sizes[i]) && atoi(getenv(sizes[i])) > 1);
    launcher = without_mpi && !hvt__launch_shows_output() ? 0 : launcher; /* a shell may be the parent */
    several_ranks = !without_mpi || (hvt_world_launched_rank() >= 0 && getenv("WORLD_SIZE") &&
                                     atoi(getenv("WORLD_SIZE")) > 1);
    if (!begun) /* again: the rank is known now */
        atomic_store(&deferred, true);
    begun = true;
    hvt__set_temp(hvt__signals_temp);
    install();
}

void hvt__signals_end_at_once(bool trains)
{
    int sig;

    unsaved = trains;
    atomic_store(&deferred, false);
    sig = atomic_load(&shared) ? atomic_load(&atomic_load(&shared)->requested) : 0;
    sig = sig > 0 ? sig : atomic_load(&noted);
    if (sig > 0)
        end_now(sig);
}

hvt_status hvt__signals_open(hvt_world *world)
{
    int local = hvt_world_local_size(world), me, none = 0, sig;
    report *r;

    HVT_TRY(hvt__node_open(world, sizeof(report) + (size_t)local * sizeof *r->pid, &node));
    r = node.block;
    here = node.shared ? local : 1;
    me = node.shared ? hvt_world_local_rank(world) : 0;
    atomic_store(&r->pid[me], getpid());
    if (!begun) {
        hvt__signals_begin();
        atomic_store(&deferred, false);
    }
    is_reporter = hvt_world_rank(world) == 0;
    several_ranks = hvt_world_size(world) > 1;
    several_hosts = hvt_world_nodes(world) > 1;
    own_output = !strcmp(hvt_world_name(world), "tcp") && !hvt__launch_shows_output();
    atomic_store(&shared, r);
    sig = atomic_load(&noted);
    if (sig)
        atomic_compare_exchange_strong(&r->requested, &none, sig);
    hvt__set_report_vote(hvt__signals_claim_report);
    return HVT_OK;
}

bool hvt__signals_speaks(const hvt_world *world)
{
    if (hvt_world_rank(world) == 0 || strcmp(hvt_world_name(world), "tcp"))
        return hvt_world_rank(world) == 0;
    return hvt_world_local_rank(world) == 0 || !hvt__launch_shows_output();
}

void hvt__signals_close(void)
{
    report *r = atomic_load(&shared);

    hvt__signals_leave();
    if (!node.block)
        return;
    hvt__set_report_vote(NULL);
    for (int i = 0; i < here; i++)
        if (atomic_load(&r->pid[i]) == getpid())
            atomic_store(&r->pid[i], 0);
    atomic_store(&shared, NULL);
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

int hvt__signals_code(void)
{
    const char *name = NULL;

    hvt__signals_requested(&name);
    return name && !strcmp(name, "SIGINT") ? INTERRUPTED : atomic_load(&exit_code);
}

void hvt__signals_leave(void)
{
    if (!begun || atomic_exchange(&leaving, true))
        return;
    set_alarm(0);
    atomic_store(&first, 0);
}

bool hvt__signals_requested(const char **ret_name)
{
    report *r = atomic_load(&shared);
    int requested = r ? atomic_load_explicit(&r->requested, memory_order_relaxed) : 0;

    if (!requested) /* by a handler from before there was a report */
        requested = atomic_load_explicit(&noted, memory_order_relaxed);
    if (ret_name)
        *ret_name = requested && requested != HVT__TIME_IS_UP ? name_of(requested) : NULL;
    return requested;
}

bool hvt__signals_warned(void)
{
    return atomic_exchange(&warned, false);
}

void hvt__signals_time_is_up(void)
{
    report *r = atomic_load(&shared);
    int none = 0;

    if (r)
        atomic_compare_exchange_strong(&r->requested, &none, HVT__TIME_IS_UP);
}

bool hvt__signals_claim_report(const char *why)
{
    report *r = atomic_load(&shared);

    if (!r)
        return true;
    if (!claim(r)) {
        /* the claiming rank needs a moment to print before the job ends */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    hvt__log_quote(why, r->why);
    atomic_store(&r->complete, true);
    hvt__log_last("failed", NULL, r->why); /* rank 0's log, unless it has ended already */
    return true;
}

void hvt__signals_temp(const char *path, bool exists)
{
    for (size_t i = 0; i < HVT_LEN(temp); i++) {
        const char *is = exists ? NULL : path;

        if (atomic_compare_exchange_strong(&temp[i], &is, exists ? path : NULL))
            return;
    }
}

void hvt__signals_bar(bool shown)
{
    bar_shown = shown;
}
