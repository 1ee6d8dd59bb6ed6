/*
 * Ranks that are threads: hvt_world_open_threads(), and what a rank that fails means to the others. What all
 * worlds have in common is tested by test_world.c and others with HVT_TEST_THREADS.
 */
#define _GNU_SOURCE
#include "check.h"
#include "heap.h"
#include "base_impl.h"
#include "comm_impl.h"
#include "base/thread.h"
#include "base/trace.h"
#include "hvt/collective.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

static hvt_status count_ranks(hvt_world *w, void *ctx)
{
    atomic_int *seen = ctx;

    CHECK(!strcmp(hvt_world_name(w), "threads") && hvt_world_size(w) == 3 && hvt_world_nodes(w) == 1,
          "%s of %d", hvt_world_name(w), hvt_world_size(w));
    atomic_fetch_or(seen, 1 << hvt_world_rank(w));
    return HVT_OK;
}

TEST(every_rank_runs_once)
{
    atomic_int seen = 0;

    CHECK_OK(hvt_world_open_threads(3, count_ranks, &seen));
    CHECK(seen == 7, "ranks %x", seen);
    CHECK_FAILS(hvt_world_open_threads(0, count_ranks, &seen), E_ARG, "0 threads for a world");
    CHECK_FAILS(hvt_world_open_threads(2, NULL, NULL), E_ARG, "a function for the ranks");
}

/* ---- a rank that fails ------------------------------------------------------------------------- */

/* What the others wait for: see `wait_for`. */
typedef enum way { IN_A_BARRIER, IN_A_GATHER, IN_A_SPLIT, IN_A_SUM, IN_A_COLLECTIVE, WAYS } way;

typedef struct failing {
    way way;
    int culprit;
    atomic_int told; /* ranks whose wait failed as it should */
} failing;

static hvt_status wait_in_comm(hvt_world *w, bool sum)
{
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    float x[4] = {1}, y[16];
    hvt_ticket t;
    hvt_status s;

    HVT_TRY(hvt_device_open("ref", NULL, &dev));
    s = hvt_comm_open("shm", w, dev, &c);
    if (s == HVT_OK && sum) {
        s = hvt_comm_allreduce(c, x, 4, HVT_F32, &t);
        s = s ? s : hvt_comm_wait(c, t);
    } else if (s == HVT_OK) {
        s = hvt_allgather(c, x, 4, y, NULL, HVT_F32, NULL);
    }
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    return s;
}

static hvt_status wait_for(hvt_world *w, way how)
{
    char large[1 << 16] = "", *all = calloc(4, sizeof large);
    hvt_world *part = NULL;
    hvt_status s;

    if (how == IN_A_BARRIER)
        s = hvt_world_barrier(w);
    else if (how == IN_A_GATHER)
        s = hvt_world_allgather(w, large, sizeof large, all);
    else
        s = hvt_world_split(w, 0, 0, &part);
    free(all);
    hvt_world_close(&part);
    return s;
}

static hvt_status fail_on_one(hvt_world *w, void *ctx)
{
    failing *f = ctx;
    const bool comm = f->way == IN_A_SUM || f->way == IN_A_COLLECTIVE;
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    char name[40];
    hvt_status s;

    /* its comm stays open, as of a program that gives up; leak checkers would report it */
    if (w->rank == f->culprit && comm && !CHECK_SANITIZED && !heap_memcheck()) {
        HVT_TRY(hvt_device_open("ref", NULL, &dev));
        HVT_TRY(hvt_comm_open("shm", w, dev, &c));
    }
    if (w->rank == f->culprit)
        return HVT_FAIL(E_IO, "disk %d is on fire", w->rank);
    s = comm ? wait_in_comm(w, f->way == IN_A_SUM) : wait_for(w, f->way);
    snprintf(name, sizeof name, "rank %d (", f->culprit);
    if (s == HVT_E_COMM && strstr(hvt_last_error(), name) && strstr(hvt_last_error(), "has ended"))
        atomic_fetch_add(&f->told, 1);
    else
        fprintf(stderr, "way %d, rank %d: %s\n", f->way, w->rank, hvt_last_error());
    return s;
}

TEST(a_rank_that_fails_ends_the_waits_of_the_others_and_its_error_is_returned)
{
    for (way how = 0; how < WAYS; how++)
        for (int culprit = 0; culprit < 3; culprit++) {
            failing f = {.way = how, .culprit = culprit};
            char text[60];

            snprintf(text, sizeof text, culprit ? "rank %d: disk %d is on fire" : "disk 0 is on fire",
                     culprit, culprit);
            CHECK_FAILS(hvt_world_open_threads(3, fail_on_one, &f), E_IO, text);
            CHECK(f.told == 2 && hvt_last_error_is_agreed(), "way %d, culprit %d: %d were told", how, culprit,
                  f.told);
        }
}

static hvt_status agree_on_failure(hvt_world *w, void *ctx)
{
    HVT_TRY(hvt_world_agree(w, w->rank == 1 ? HVT_FAIL(E_SHAPE, "three corners") : HVT_OK));
    return HVT_OK;
}

TEST(an_agreed_error_is_not_prefixed_twice)
{
    CHECK_FAILS(hvt_world_open_threads(2, agree_on_failure, NULL), E_SHAPE, "rank 1 (");
    CHECK(!strstr(hvt_last_error(), "rank 1: "), "%s", hvt_last_error());
}

static hvt_status give_different_bytes(hvt_world *w, void *ctx)
{
    char mine[200] = "", all[400];

    CHECK_FAILS(hvt_world_allgather(w, mine, w->rank ? 200 : 100, all), E_MISMATCH, "rank 1 200");
    CHECK(hvt_last_error_is_agreed(), "each rank sees it");
    CHECK_FAILS(hvt_world_broadcast(w, mine, w->rank ? 8 : 4, 1), E_MISMATCH, "rank 0 has 4 bytes");
    return hvt_world_barrier(w);
}

TEST(ranks_that_name_different_sizes_are_told)
{
    CHECK_OK(hvt_world_open_threads(2, give_different_bytes, NULL));
}

static hvt_status abort_on_one(hvt_world *w, void *ctx)
{
    if (w->rank == 1)
        hvt_world_abort(w, 7);
    return hvt_world_barrier(w);
}

TEST(abort_ends_the_process_with_its_code)
{
    int status;
    pid_t child;

    fflush(NULL);
    child = fork();
    if (child == 0) {
        hvt_world_open_threads(2, abort_on_one, NULL);
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7, "status %x",
          status);
}

/* ---- what is each rank's own ------------------------------------------------------------------- */

static atomic_int lines;

static void count_line(void *ctx, hvt_log_level level, const char *line)
{
    atomic_fetch_add(&lines, 1);
}

static void *log_from_thread(void *arg)
{
    HVT_INFO("a thread");
    return arg;
}

static hvt_status log_something(hvt_world *w, void *ctx)
{
    pthread_t thread;

    HVT_INFO("a note");
    if (w->rank == 2)
        HVT_ERROR("an error");
    CHECK(!hvt__thread_start(&thread, log_from_thread, NULL), "no thread");
    pthread_join(thread, NULL);
    return HVT_OK;
}

TEST(only_rank_0_logs_notes_and_so_do_the_threads_that_it_starts)
{
    if (getenv("HVT_LOG"))
        SKIP("HVT_LOG wants all lines");
    atomic_store(&lines, 0);
    hvt_log_to(count_line, NULL, HVT_LOG_INFO);
    CHECK_OK(hvt_world_open_threads(3, log_something, NULL));
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    CHECK(lines == 3, "%d lines", lines);
}

static hvt_status record_events(hvt_world *w, void *ctx)
{
    const hvt_stall stall = {.warn = 30};
    hvt__event event[8];
    int64_t left, lost;
    size_t n;

    HVT_TRY(hvt_world_watch(w, &stall)); /* as a run does */
    HVT_TRY(hvt__trace_open(8));
    hvt__trace_enable(true);
    for (int i = 0; i <= w->rank; i++) {
        hvt__trace_begin(HVT__DATA, w->rank);
        hvt__trace_end();
    }
    for (int i = 0; i <= w->rank; i++)
        hvt__progressed();
    hvt__trace_enable(false);
    HVT_TRY(hvt_world_barrier(w));
    n = hvt__trace_take(event, 8, &left, &lost);
    CHECK(n == (size_t)w->rank + 1 && event[0].detail == w->rank, "rank %d: %zu events", w->rank, n);
    CHECK(hvt__trace_progress() == (uint64_t)w->rank + 1, "rank %d: progress %d", w->rank,
          (int)hvt__trace_progress());
    hvt__trace_close();
    return HVT_OK;
}

TEST(events_and_progress_are_a_ranks_own)
{
    CHECK_OK(hvt_world_open_threads(3, record_events, NULL));
}

static char warned[2000];
static atomic_bool has_warned;

static void keep_warning(void *ctx, hvt_log_level level, const char *line)
{
    if (level != HVT_LOG_WARN || atomic_load(&has_warned))
        return;
    snprintf(warned, sizeof warned, "%s", line);
    atomic_store(&has_warned, true);
}

static hvt_status wait_for_the_line(hvt_world *w, void *ctx)
{
    const hvt_stall stall = {.warn = 0.2};

    HVT_TRY(hvt_world_watch(w, &stall));
    if (w->rank == 1) {
        hvt__trace_step(12);
        hvt__trace_begin(HVT__DATA, -1);
        for (int ms = 0; ms < 20000 && !atomic_load(&has_warned); ms++)
            usleep(1000);
        hvt__trace_end();
    }
    return hvt_world_barrier(w);
}

TEST(a_rank_that_others_wait_for_is_named_with_what_it_does)
{
    hvt_log_to(keep_warning, NULL, HVT_LOG_WARN);
    CHECK_OK(hvt_world_open_threads(3, wait_for_the_line, NULL));
    hvt_log_to(NULL, NULL, HVT_LOG_INFO);
    CHECK(strstr(warned, "ranks 0, 2 (") && strstr(warned, "have waited") &&
              strstr(warned, "to take part in a barrier") && strstr(warned, "rank 1 (") &&
              strstr(warned, "in phase data of update 12"),
          "'%s'", warned);
}

/* ---- several at once --------------------------------------------------------------------------- */

static hvt_status sum_many(hvt_world *w, void *ctx)
{
    hvt_world *half = NULL;
    int64_t sum;

    for (int i = 0; i < 200; i++) {
        sum = w->rank + i;
        HVT_TRY(hvt_world_allreduce_i64(w, HVT_SUM, &sum, 1));
        HVT_CHECK(sum == (int64_t)w->size * (w->size - 1) / 2 + (int64_t)w->size * i, E_ARG, "sum %d",
                  (int)sum);
    }
    HVT_TRY(hvt_world_split(w, w->rank % 2, -w->rank, &half));
    sum = 1;
    HVT_TRY(hvt_world_allreduce_i64(half, HVT_SUM, &sum, 1));
    HVT_CHECK(sum == hvt_world_size(half) && hvt_world_rank(half) == hvt_world_size(half) - 1 - w->rank / 2,
              E_ARG, "rank %d is %d of %d", w->rank, hvt_world_rank(half), hvt_world_size(half));
    hvt_world_close(&half);
    return HVT_OK;
}

static void *open_another(void *arg)
{
    CHECK_OK(hvt_world_open_threads(4, sum_many, NULL));
    return arg;
}

TEST(worlds_of_several_calls_do_not_meet)
{
    pthread_t thread[3];

    for (size_t i = 0; i < HVT_LEN(thread); i++)
        CHECK(!pthread_create(&thread[i], NULL, open_another, NULL), "no thread");
    for (size_t i = 0; i < HVT_LEN(thread); i++)
        pthread_join(thread[i], NULL);
}

int main(void)
{
    RUN(every_rank_runs_once);
    RUN(a_rank_that_fails_ends_the_waits_of_the_others_and_its_error_is_returned);
    RUN(an_agreed_error_is_not_prefixed_twice);
    RUN(ranks_that_name_different_sizes_are_told);
    RUN(abort_ends_the_process_with_its_code);
    RUN(only_rank_0_logs_notes_and_so_do_the_threads_that_it_starts);
    RUN(events_and_progress_are_a_ranks_own);
    RUN(a_rank_that_others_wait_for_is_named_with_what_it_does);
    RUN(worlds_of_several_calls_do_not_meet);
    return check_done();
}
