/*
 * SIGINT and SIGTERM: end the progress bar's line, say so once, remove the file that was being written, and
 * leave with 130. Everything here is prepared beforehand; the handlers only write, unlink, wait a moment and
 * _exit.
 *
 * Who says so: rank 0. But a launcher also sends SIGTERM to everyone when one rank aborts, and then the
 * abort's own message has to stay the last. So a rank about to abort first mutes the others on its host
 * (SIGUSR1), and on a job of several hosts SIGTERM is always quiet. (SIGINT comes from a person.)
 *
 * Several ranks may fail at the same moment. The one that speaks is the one that binds a name which all ranks
 * of this host know: the kernel gives a name to one socket, and takes it back when that process is gone.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static char doomed[PATH_MAX];
static atomic_bool doomed_set, bar_shown, muted;
static bool speaks, several_hosts;
static struct sigaction was_int, was_term, was_usr1, was_xfsz;

/* The ranks of this host, for mute(). Process numbers mean the same only in the same namespace. */
static pid_t *peers;
static int npeers;
static struct sockaddr_un word = {.sun_family = AF_UNIX}; /* the name that is the last word of this host */
static socklen_t word_bytes;

static void say(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

static void on_stop(int sig)
{
    bool quiet = !speaks || muted || (sig == SIGTERM && several_hosts);

    if (bar_shown)
        say("\r\033[K");
    if (!quiet)
        say(sig == SIGINT ? "hvtrain: interrupted\n"
            : npeers ? "hvtrain: interrupted (SIGTERM: the launcher ended the job: another rank failed, or "
                       "Ctrl-C)\n"
                     : "hvtrain: interrupted (SIGTERM)\n");
    if (doomed_set)
        unlink(doomed);
    if (npeers) /* once one has left mpirun kills the rest: rank 0's line must be out and passed on by then */
        nanosleep(&(struct timespec){.tv_nsec = speaks ? 100000000 : 300000000}, NULL);
    _exit(130);
}

static void on_mute(int sig)
{
    (void)sig;
    muted = true;
}

/* Of the least process number of this host's ranks and its namespace. It begins with a NUL: no file. */
static void name_word(int64_t mine, int64_t space)
{
    int64_t least = mine;

    for (int i = 0; i < npeers; i++)
        least = peers[i] < least ? peers[i] : least;
    word_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                             (size_t)snprintf(word.sun_path + 1, sizeof word.sun_path - 1,
                                              "hvtrain-%" PRId64 "-%" PRId64, least, space));
}

hvt_status hvt__interrupt_open(hvt_world *world)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};
    struct sigaction mute = {.sa_handler = on_mute, .sa_flags = SA_RESTART};
    int rank = hvt_world_rank(world), size = hvt_world_size(world);
    struct {
        int64_t pid, space;
    } mine = {getpid(), 0}, *all;
    struct stat ns;

    if (stat("/proc/self/ns/pid", &ns) == 0)
        mine.space = (int64_t)ns.st_ino;
    all = calloc((size_t)size, sizeof *all);
    peers = calloc((size_t)size, sizeof *peers);
    if (!all || !peers) {
        free(all);
        return HVT_FAIL(E_MEM, "no memory for %d process numbers", size);
    }
    hvt_status s = hvt_world_gather(world, &mine, sizeof mine, all);
    for (int r = 0; r < size && s == HVT_OK; r++)
        if (r != rank && all[r].space == mine.space &&
            !strcmp(hvt_world_host(world, r), hvt_world_host(world, rank)))
            peers[npeers++] = (pid_t)all[r].pid;
    name_word(mine.pid, mine.space);
    free(all);
    if (s)
        return hvt__pass(s, __FILE__, __LINE__, "hvt_world_gather");
    speaks = rank == 0;
    several_hosts = hvt_world_nodes(world) > 1;
    for (int sig = 0; sig < 2; sig++) {
        sigaddset(&stop.sa_mask, sig ? SIGTERM : SIGINT);
        sigaddset(&mute.sa_mask, sig ? SIGTERM : SIGINT);
    }
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN},
              &was_xfsz); /* a limit is like a full disk */
    sigaction(SIGUSR1, &mute, &was_usr1);
    sigaction(SIGINT, &stop, &was_int);
    sigaction(SIGTERM, &stop, &was_term);
    hvt__set_last_word(hvt__interrupt_last_word);
    return HVT_OK;
}

void hvt__interrupt_close(void)
{
    if (!peers)
        return;
    hvt__set_last_word(NULL);
    sigaction(SIGINT, &was_int, NULL);
    sigaction(SIGTERM, &was_term, NULL);
    sigaction(SIGUSR1, &was_usr1, NULL);
    sigaction(SIGXFSZ, &was_xfsz, NULL);
    free(peers);
    peers = NULL;
    npeers = 0;
}

bool hvt__interrupt_last_word(void)
{
    int taken = muted ? -1 : socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0); /* open until we end */

    if (muted ||
        (taken >= 0 && bind(taken, (const struct sockaddr *)&word, word_bytes) && errno == EADDRINUSE)) {
        if (taken >= 0)
            close(taken);
        /* what ends the job now must not end the one that speaks before its line is out */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    for (int i = 0; i < npeers; i++)
        kill(peers[i], SIGUSR1);
    muted = true; /* nor shall SIGTERM, which comes back to us, add a line to ours */
    return true;
}

void hvt__interrupt_unlink(const char *path)
{
    doomed_set = false;
    if (path && (size_t)snprintf(doomed, sizeof doomed, "%s", path) < sizeof doomed)
        doomed_set = true;
}

void hvt__interrupt_bar(bool shown)
{
    bar_shown = shown;
}
