/*
 * SIGINT and SIGTERM: end the progress bar's line, print one line, end the log, remove the temporary file
 * that is being written, and exit with 130. Everything that a handler needs is prepared beforehand; handlers
 * only write, unlink, wait for a moment and call _exit().
 *
 * Rank 0 prints the line. But a launcher also sends SIGTERM to every rank when one rank aborts, and then that
 * rank's error message must remain the last line. So the ranks of a host share a *report* in shared memory.
 * One rank claims it: the first that is about to abort, or rank 0 when it is interrupted. The others print
 * nothing. The report also holds the error's text, which rank 0 writes to its log. In a job on several hosts
 * nothing is printed for SIGTERM, because a rank of another host may have claimed the report of that host.
 * (SIGINT comes from a person.)
 *
 * Where the ranks of a host cannot share memory, each has a report of its own, and an error may be printed
 * more than once. Ranks do not send each other signals.
 */
#include "world/node.h"
#include "process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct report {
    atomic_bool claimed, complete; /* complete: all of `why` is there */
    char why[HVT__LOG_WHY];        /* a JSON string */
} report;

static _Atomic(const char *) tmp_path;
static atomic_bool bar_shown;
static bool is_reporter, several_ranks, several_hosts;
static struct sigaction was_int, was_term, was_xfsz;
static hvt__node *node;
static _Atomic(report *) shared; /* NULL: not open */

static void print(const char *text)
{
    ssize_t ignored = write(STDERR_FILENO, text, strlen(text));
    (void)ignored;
}

/* Is this the first rank of the host to ask? */
static bool claim(report *r)
{
    return !atomic_exchange(&r->claimed, true);
}

static void on_stop(int sig)
{
    const char *name = sig == SIGINT ? "SIGINT" : "SIGTERM", *path = atomic_load(&tmp_path);
    report *r = atomic_load(&shared);
    bool first = is_reporter && r && claim(r);

    if (bar_shown)
        print("\r\033[K");
    if (first && !(sig == SIGTERM && several_hosts))
        print(sig == SIGINT    ? "hvtrain: interrupted\n"
              : !several_ranks ? "hvtrain: interrupted (SIGTERM)\n"
                               : "hvtrain: interrupted (SIGTERM: the launcher ended the job: another rank "
                                 "failed, or Ctrl-C)\n");
    if (is_reporter && !first &&
        r) /* another rank of this host failed, and so the launcher sent the signal */
        hvt__log_last("failed", name, atomic_load(&r->complete) ? r->why : NULL);
    else
        hvt__log_last("interrupted", name, NULL);
    if (path)
        unlink(path);
    if (several_ranks) /* mpirun kills the others once one has exited: rank 0's line must be out by then */
        nanosleep(&(struct timespec){.tv_nsec = is_reporter ? 100000000 : 300000000}, NULL);
    _exit(130);
}

hvt_status hvt__signals_open(hvt_world *world)
{
    struct sigaction stop = {.sa_handler = on_stop, .sa_flags = SA_RESTART};

    HVT_TRY(hvt__node_open(world, sizeof(report), &node));
    atomic_store(&shared, (report *)hvt__node_block(node));
    is_reporter = hvt_world_rank(world) == 0;
    several_ranks = hvt_world_size(world) > 1;
    several_hosts = hvt_world_nodes(world) > 1;
    sigaddset(&stop.sa_mask, SIGINT);
    sigaddset(&stop.sa_mask, SIGTERM);
    /* exceeding a file size limit is an error of write(), as a full disk is */
    sigaction(SIGXFSZ, &(struct sigaction){.sa_handler = SIG_IGN}, &was_xfsz);
    sigaction(SIGINT, &stop, &was_int);
    sigaction(SIGTERM, &stop, &was_term);
    hvt__set_report_vote(hvt__signals_claim_report);
    return HVT_OK;
}

void hvt__signals_close(void)
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

bool hvt__signals_claim_report(const char *why)
{
    report *r = atomic_load(&shared);
    char json[HVT__LOG_WHY];

    if (!r)
        return true;
    hvt__log_quote(why, json);
    if (!claim(r)) {
        /* the rank that claimed it needs a moment to print before the job ends */
        nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
        return false;
    }
    memcpy(r->why, json, sizeof json);
    atomic_store(&r->complete, true);
    hvt__log_last("failed", NULL, json); /* rank 0's, unless it has ended its log already */
    return true;
}

void hvt__signals_tmp_path(const char *path)
{
    atomic_store(&tmp_path, path);
}

void hvt__signals_bar(bool shown)
{
    bar_shown = shown;
}
