/*
 * SIGINT and SIGTERM: end the progress bar's line, say so once, end the log, remove the file that was being
 * written, and leave with 130. Everything here is prepared beforehand; the handlers only write, unlink, wait
 * a moment and _exit.
 *
 * Who says so: rank 0. But a launcher also sends SIGTERM to everyone when one rank aborts, and then the
 * abort's own message has to stay the last. So the ranks of a host have a *word* in common, in shared memory,
 * which one rank takes: the first of those that are about to abort, or rank 0 when it is interrupted. Whoever
 * comes later is silent. With the word lies why it was taken, for the log, which is rank 0's. On a job of
 * several hosts SIGTERM is always quiet: another host may have its word taken. (SIGINT comes from a person.)
 *
 * Where ranks of a host cannot share memory each has a word of its own, and a failure may be told more than
 * once. No signal is sent from rank to rank.
 */
#include "world/node.h"
#include "log_file.h"
#include "base_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct word {
    atomic_bool taken, told; /* told: `why` is whole */
    char why[HVT__LOG_WHY];  /* a JSON string */
} word;

static char doomed[PATH_MAX];
static atomic_bool doomed_set, bar_shown;
static bool speaks, several_ranks, several_hosts;
static struct sigaction was_int, was_term, was_xfsz;
static hvt__node *node;
static _Atomic(word *) shared; /* NULL: not open */

static void say(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

/* The first one of this host. */
static bool take_word(word *w)
{
    return !atomic_exchange(&w->taken, true);
}

static void on_stop(int sig)
{
    const char *name = sig == SIGINT ? "SIGINT" : "SIGTERM";
    word *w = atomic_load(&shared);
    bool first = speaks && w && take_word(w);

    if (bar_shown)
        say("\r\033[K");
    if (first && !(sig == SIGTERM && several_hosts))
        say(sig == SIGINT    ? "hvtrain: interrupted\n"
            : !several_ranks ? "hvtrain: interrupted (SIGTERM)\n"
                             : "hvtrain: interrupted (SIGTERM: the launcher ended the job: another rank "
                               "failed, or Ctrl-C)\n");
    if (speaks && !first && w) /* another rank of this host failed: the launcher's signal is its doing */
        hvt__log_last("failed", name, atomic_load(&w->told) ? w->why : NULL);
    else
        hvt__log_last("interrupted", name, NULL);
    if (doomed_set)
        unlink(doomed);
    if (several_ranks) /* once one has left mpirun kills the rest: rank 0's line must be out by then */
        nanosleep(&(struct timespec){.tv_nsec = speaks ? 100000000 : 300000000}, NULL);
    _exit(130);
}

hvt_status hvt__interrupt_open(hvt_world *world)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};

    HVT_TRY(hvt__node_open(world, sizeof(word), &node));
    atomic_store(&shared, (word *)hvt__node_block(node));
    speaks = hvt_world_rank(world) == 0;
    several_ranks = hvt_world_size(world) > 1;
    several_hosts = hvt_world_nodes(world) > 1;
    sigaddset(&stop.sa_mask, SIGINT);
    sigaddset(&stop.sa_mask, SIGTERM);
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN},
              &was_xfsz); /* a limit is like a full disk */
    sigaction(SIGINT, &stop, &was_int);
    sigaction(SIGTERM, &stop, &was_term);
    hvt__set_report_vote(hvt__interrupt_last_word);
    return HVT_OK;
}

void hvt__interrupt_close(void)
{
    if (!node)
        return;
    hvt__set_report_vote(NULL);
    sigaction(SIGINT, &was_int, NULL);
    sigaction(SIGTERM, &was_term, NULL);
    sigaction(SIGXFSZ, &was_xfsz, NULL);
    atomic_store(&shared, NULL);
    hvt__node_close(&node);
}

bool hvt__interrupt_last_word(const char *why)
{
    word *w = atomic_load(&shared);
    char json[HVT__LOG_WHY];

    if (!w)
        return true;
    hvt__log_quote(why, json);
    if (!take_word(w)) {
        /* what ends the job now must not end the one that speaks before its line is out */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    memcpy(w->why, json, sizeof json);
    atomic_store(&w->told, true);
    hvt__log_last("failed", NULL, json); /* rank 0's, unless it has ended its log already */
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
