/*
 * Ranks that a process starts itself, on its host. The process stays as their launcher: it forwards signals,
 * ends the others when a rank fails, and takes them along if it is killed.
 */
#define _GNU_SOURCE
#include "tcp.h"
#include "base_impl.h"
#include "world_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

int hvt__spawned_door = -1;

static const int forwarded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU};

typedef struct family {
    int n, running, failed; /* failed: the first rank that failed; -1: none */
    int status;             /* its wait status */
    bool explained;         /* the signal that killed it has been logged */
    pid_t *pid;             /* [n] 0: has ended */
} family;

static void be_rank(int rank, int n, int port, const unsigned char *secret, pid_t parent)
{
    char text[2 * HVT__SECRET + 1];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(1);
    if (rank) {
        close(hvt__spawned_door);
        hvt__spawned_door = -1;
    }
    for (int i = 0; i < HVT__SECRET; i++)
        snprintf(text + 2 * i, 3, "%02x", secret[i]);
    setenv("HVT_JOB_SECRET", text, 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    snprintf(text, sizeof text, "%d", port);
    setenv("MASTER_PORT", text, 1);
    snprintf(text, sizeof text, "%d", rank);
    setenv("RANK", text, 1);
    setenv("LOCAL_RANK", text, 1);
    snprintf(text, sizeof text, "%d", n);
    setenv("WORLD_SIZE", text, 1);
    setenv("LOCAL_WORLD_SIZE", text, 1);
    unsetenv("TORCHELASTIC_USE_AGENT_STORE");
    hvt__was_spawned = true;
}

/* Sends a signal to all ranks. passed_on: this process got it. Ranks see SI_QUEUE then, which tells them that
 * no other rank has failed. */
static void signal_all(const family *f, int sig, bool passed_on)
{
    for (int r = 0; r < f->n; r++)
        if (f->pid[r] && passed_on)
            sigqueue(f->pid[r], sig, (union sigval){0});
        else if (f->pid[r])
            kill(f->pid[r], sig);
}

static void collect(family *f)
{
    int status;
    pid_t pid;

    while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
        for (int r = 0; r < f->n; r++) {
            if (f->pid[r] != pid)
                continue;
            f->pid[r] = 0;
            f->running--;
            if (status && f->failed < 0) {
                f->failed = r;
                f->status = status;
            }
        }
}

/* A signal that ended a rank, with its usual cause. */
static const char *signal_text(int sig)
{
    switch (sig) {
    case SIGKILL:
        return "SIGKILL (by kill -9, or by the kernel because memory ran out)";
    case SIGBUS:
        return "SIGBUS (a full /dev/shm is the usual cause)";
    case SIGSEGV:
        return "SIGSEGV (an invalid address)";
    case SIGABRT:
        return "SIGABRT (abort())";
    case SIGILL:
        return "SIGILL (an instruction that this processor lacks)";
    case SIGTERM:
        return "SIGTERM";
    default:
        return strsignal(sig);
    }
}

static bool is_forwarded(int sig)
{
    for (size_t i = 0; i < HVT_LEN(forwarded); i++)
        if (forwarded[i] == sig)
            return true;
    return false;
}

/* Names the signal that killed the failed rank, once. */
static void explain(family *f)
{
    if (WIFSIGNALED(f->status) && !f->explained)
        HVT_ERROR("rank %d was killed by %s; the other ranks are ended", f->failed,
                  signal_text(WTERMSIG(f->status)));
    f->explained = true;
}

/* Ends the ranks that remain after a failure. Ranks that wait for the failed one notice by themselves and
 * report it, so they get a second before SIGTERM and another before SIGKILL. */
static void end_others(family *f, double since, int *stage)
{
    static const double after[] = {1, 2};

    if (*stage == (int)HVT_LEN(after) || hvt__now() - since < after[*stage])
        return;
    explain(f);
    signal_all(f, (*stage)++ ? SIGKILL : SIGTERM, false);
}

static int supervise(family *f, const sigset_t *mask)
{
    const struct timespec moment = {.tv_nsec = 100000000};
    double since = 0;
    int stage = 0;
    siginfo_t info;

    for (collect(f); f->running; collect(f)) {
        int sig = sigtimedwait(mask, &info, &moment);

        /* a signal from the terminal (si_code > 0) has reached the ranks, too */
        if (sig > 0 && sig != SIGCHLD && info.si_code <= 0)
            signal_all(f, sig, true);
        if (f->failed >= 0 && !(since > 0)) {
            since = hvt__now();
            if (!is_forwarded(WTERMSIG(f->status))) /* otherwise the whole job is being ended */
                explain(f);
        }
        if (since > 0)
            end_others(f, since, &stage);
    }
    if (f->failed < 0)
        return 0;
    return WIFEXITED(f->status) ? WEXITSTATUS(f->status) : 128 + WTERMSIG(f->status);
}

static hvt_status open_door(int *ret_port)
{
    hvt__address at = {.v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof at;

    hvt__spawned_door = hvt__listen(&at, 0);
    HVT_CHECK(hvt__spawned_door >= 0 && !getsockname(hvt__spawned_door, &at.any, &bytes), E_COMM,
              "ranks cannot be started here: no socket at 127.0.0.1: %s", strerror(errno));
    *ret_port = hvt__address_port(&at);
    return HVT_OK;
}

hvt_status hvt_spawn(int n, int *ret_exit_code)
{
    unsigned char secret[HVT__SECRET];
    family f = {.n = n, .failed = -1};
    const pid_t parent = getpid();
    sigset_t mask, before;
    int port = 0, error = 0;

    HVT_CHECK(ret_exit_code, E_ARG, "no output pointer for the exit code of %d ranks", n);
    HVT_CHECK(
        hvt__launch(getenv).size <= 1, E_ARG,
        "%d ranks to start, but a launcher has started %d processes like this one (%s): use one of the two",
        n, hvt__launch(getenv).size, hvt__launch(getenv).var);
    HVT_CHECK(n > 0 && n <= 4096, E_ARG, "%d ranks to start: expected 1 to 4096", n);
    f.pid = calloc((size_t)n, sizeof *f.pid);
    HVT_CHECK(f.pid, E_MEM, "no memory to start %d ranks", n);
    if (open_door(&port)) {
        free(f.pid);
        return HVT_E_COMM;
    }
    hvt__random_secret(secret);
    sigemptyset(&mask);
    sigaddset(&mask, SIGCHLD);
    for (size_t i = 0; i < HVT_LEN(forwarded); i++)
        sigaddset(&mask, forwarded[i]);
    pthread_sigmask(SIG_BLOCK, &mask, &before);
    signal(SIGCHLD, SIG_DFL);
    for (int r = 0; r < n && !error; r++) {
        f.pid[r] = fork();
        if (f.pid[r] == 0) {
            be_rank(r, n, port, secret, parent);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            free(f.pid);
            *ret_exit_code = -1;
            return HVT_OK;
        }
        error = f.pid[r] < 0 ? errno : 0;
        f.running += !error;
    }
    close(hvt__spawned_door);
    hvt__spawned_door = -1;
    if (error) {
        f.pid[f.running] = 0;
        signal_all(&f, SIGKILL, false);
    }
    *ret_exit_code = supervise(&f, &mask);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    free(f.pid);
    HVT_CHECK(!error, E_MEM, "%d ranks cannot be started: %s", n, strerror(error));
    return HVT_OK;
}
