/*
 * A comm's worker: sums have the same bits on ranks with and without one; they complete without a wait; wait
 * reports the worker's errors; nothing is left behind.
 */
#define _GNU_SOURCE
#include "sums.h"

#include <pthread.h>
#include <signal.h>

static __thread const char *comms[] = {"self", "shm", "mpi"};

/* Run a truth for every comm that this world takes. */
static void with_comms(void (*truth)(const char *name))
{
    for (size_t i = 0; i < HVT_LEN(comms); i++) {
        hvt_comm *c = NULL;

        if (hvt_comm_open(comms[i], world, dev, &c) != HVT_OK)
            continue; /* on all ranks alike */
        hvt_comm_close(&c);
        truth(comms[i]);
    }
}

/* With workers on some ranks, then on all. */
static void with_workers(void (*truth)(const char *name))
{
    for (workers = EVEN_RANKS; workers <= EVERY_RANK; workers++)
        with_comms(truth);
    workers = NO_RANK;
}

TEST(sums_equal_the_plain_tree_with_workers)
{
    with_workers(sums_equal_the_plain_tree);
}

TEST(broadcasts_reach_everyone_with_workers)
{
    with_workers(broadcasts_reach_everyone);
}

TEST(operations_keep_their_order_with_workers)
{
    with_workers(operations_keep_their_order);
}

/* ---- without a wait --------------------------------------------------------------------------- */

enum { LONG = 300007 };

static bool comes_true(const volatile float *x, float want)
{
    double start = hvt__now();

    while (*x != want && hvt__now() - start < 100)
        usleep(1000);
    return *x == want;
}

static void nobody_waits(const char *name)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf = NULL;

    if (workers != EVERY_RANK || size == 1)
        return;
    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, LONG * sizeof *buf, (void **)&buf));
    for (int i = 0; i < LONG; i++)
        buf[i] = 1;
    CHECK_OK(hvt_comm_allreduce(c, buf, LONG, HVT_F32, &t));
    CHECK(comes_true(&buf[0], (float)size) && comes_true(&buf[LONG - 1], (float)size), "comm %s: %g and %g",
          name, (double)buf[0], (double)buf[LONG - 1]);
    CHECK_OK(hvt_comm_wait(c, t));
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(an_operation_is_done_though_nobody_waits)
{
    if (size == 1)
        SKIP("a sum of one rank changes nothing");
    with_workers(nobody_waits);
}

/* The world's messages and the worker's, at the same time; and waits that come in another order. */
static void world_speaks_meanwhile(const char *name)
{
    enum { ROUNDS = 30, BUCKETS = 4 };
    hvt_comm *c = NULL;
    hvt_ticket t[BUCKETS];
    float *buf = NULL;
    int wrong = 0;

    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, LONG * sizeof *buf, (void **)&buf));
    for (int round = 0; round < ROUNDS; round++) {
        double said = rank;
        int64_t highest = rank * round;

        for (int i = 0; i < LONG; i++)
            buf[i] = (float)(rank + round % 7);
        for (int b = 0; b < BUCKETS; b++)
            CHECK_OK(hvt_comm_allreduce(c, buf + LONG / BUCKETS * b, LONG / BUCKETS, HVT_F32, &t[b]));
        CHECK_OK(hvt_world_allreduce(world, HVT_SUM, &said, 1));
        CHECK_OK(hvt_world_barrier(world));
        CHECK_OK(hvt_comm_wait(c, t[BUCKETS / 2]));
        CHECK_OK(hvt_world_allreduce_i64(world, HVT_MAX, &highest, 1));
        CHECK_OK(hvt_world_agree(world, HVT_OK));
        CHECK_OK(hvt_comm_wait(c, t[BUCKETS - 1]));
        CHECK_OK(hvt_comm_wait(c, t[0]));
        CHECK(said == size * (size - 1) / 2 && highest == (size - 1) * round, "%g, %lld", said,
              (long long)highest);
        for (int i = 0; i < LONG / BUCKETS * BUCKETS; i++)
            wrong += buf[i] != (float)(size * (size - 1) / 2 + size * (round % 7));
    }
    CHECK(!wrong, "comm %s: %d", name, wrong);
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(the_world_speaks_while_workers_do)
{
    with_workers(world_speaks_meanwhile);
}

/* ---- reduce_apply ------------------------------------------------------------------------------------ */

typedef struct applied {
    pthread_t waits;
    int calls, elsewhere;
    float *out; /* at the buffer's element 0 */
} applied;

static hvt_status add_all(void *ctx, size_t first, size_t end, const void *const in[], int ranks)
{
    applied *w = ctx;

    w->calls++;
    w->elsewhere += !pthread_equal(w->waits, pthread_self());
    for (size_t i = first; i < end; i++)
        for (int r = 0; r < ranks; r++)
            w->out[i] += ((const float *)in[r])[i];
    return HVT_OK;
}

static void reduce_apply_where_it_is_awaited(const char *name)
{
    enum { COUNT = 1000 };
    applied w[2] = {{.waits = pthread_self()}, {.waits = pthread_self()}};
    hvt_comm *c = NULL;
    hvt_ticket before, first, second, behind;
    float *buf = NULL, *out = NULL;
    int wrong = 0;

    CHECK_OK(open_comm(name, &c));
    if (!(hvt_comm_can(c) & HVT_COMM_SHARE)) {
        hvt_comm_close(&c);
        return;
    }
    CHECK_OK(hvt_comm_alloc(c, 4 * COUNT * sizeof *buf, (void **)&buf));
    CHECK_OK(hvt_comm_share(c, 2 * COUNT * sizeof *out, (void **)&out));
    for (int i = 0; i < 4 * COUNT; i++)
        buf[i] = (float)(rank + i % 10);
    w[0].out = out;
    w[1].out = out + COUNT;
    CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &before));
    CHECK_OK(hvt_comm_reduce_apply(c, buf + COUNT, COUNT, HVT_F32, add_all, &w[0], &first));
    CHECK_OK(hvt_comm_reduce_apply(c, buf + 2 * COUNT, COUNT, HVT_F32, add_all, &w[1], &second));
    CHECK_OK(hvt_comm_allreduce(c, buf + 3 * COUNT, COUNT, HVT_F32, &behind));
    CHECK_OK(hvt_comm_wait(c, before));
    CHECK(size == 1 || !w[0].calls, "applied before anybody waited");
    CHECK_OK(hvt_comm_wait(c, behind));
    for (int k = 0; k < 2; k++)
        CHECK(w[k].calls <= 1 && !w[k].elsewhere, "%d: %d calls, %d elsewhere", k, w[k].calls,
              w[k].elsewhere);
    CHECK_OK(hvt_world_barrier(world));
    for (int i = 0; i < 2 * COUNT; i++)
        wrong += out[i] != (float)(size * (size - 1) / 2 + size * (i % 10));
    for (int i = 0; i < COUNT; i++)
        wrong += buf[i] != out[i] || buf[3 * COUNT + i] != out[i];
    CHECK(!wrong, "%d", wrong);
    hvt_comm_release(c, out);
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(a_reduce_apply_runs_where_it_is_awaited)
{
    with_workers(reduce_apply_where_it_is_awaited);
}

/* ---- coming, going, failing ---------------------------------------------------------------------- */

/* On and off at places of its own on every rank; memory stays. */
static void come_and_go(const char *name)
{
    enum { COUNT = 5000, ROUNDS = 20 };
    const hvt_overlap worker = {.yield = true};
    hvt_comm *c = NULL;
    hvt_ticket t = 0;
    float *buf = NULL;

    CHECK_OK(open_comm(name, &c));
    CHECK_OK(hvt_comm_alloc(c, COUNT * sizeof *buf, (void **)&buf));
    for (int round = 0; round < ROUNDS; round++) {
        buf[COUNT - 1] = 1;
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
        CHECK_OK(hvt_comm_overlap(c, (round + rank) % 3 ? &worker : NULL)); /* in flight: waits */
        CHECK(buf[COUNT - 1] == (float)size, "round %d: %g", round, (double)buf[COUNT - 1]);
        CHECK(t == (hvt_ticket)round + 1, "ticket %llu", (unsigned long long)t);
        CHECK(!strcmp(hvt_comm_name(c), name), "it is called %s", hvt_comm_name(c));
    }
    hvt_comm_release(c, buf);
    hvt_comm_close(&c);
}

TEST(workers_come_and_go)
{
    with_workers(come_and_go);
}

static void close_in_flight(const char *name)
{
    enum { COUNT = 100003, DEEP = 20 };
    hvt_comm *c = NULL;
    hvt_ticket t;
    float *buf;

    if (workers != EVERY_RANK) /* a rank without a worker would do nothing of it */
        return;
    buf = calloc(COUNT, sizeof *buf);
    CHECK_OK(open_comm(name, &c));
    for (int i = 0; i < DEEP; i++)
        CHECK_OK(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
    hvt_comm_close(&c);
    CHECK(!c, "close leaves NULL");
    for (int i = 0; i < COUNT; i++)
        buf[i] = 1; /* nobody writes here any more */
    free(buf);
}

TEST(close_comes_while_operations_are_in_flight)
{
    with_workers(close_in_flight);
}

TEST(what_fails_on_a_worker_is_told_by_wait)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[40] = {0};
    char text[2048] = "";

    if (size == 1)
        SKIP("it takes two ranks");
    for (workers = NO_RANK; workers <= EVERY_RANK; workers++) {
        CHECK_OK(open_comm("shm", &c));
        CHECK_OK(hvt_comm_allreduce(c, x, rank ? 40 : 39, HVT_F32, &t));
        CHECK_OK(hvt_comm_allreduce(c, x, 3, HVT_F32, &t));
        CHECK_FAILS(hvt_comm_wait(c, t), E_MISMATCH, "rank 1");
        CHECK(hvt_last_error_is_agreed(), "every rank holds it");
        CHECK(!*text || !strcmp(text, hvt_last_error()), "with a worker: %s", hvt_last_error());
        snprintf(text, sizeof text, "%s", hvt_last_error());
        CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "earlier operation");
        if (workers == EVERY_RANK)
            CHECK_FAILS(hvt_comm_overlap(c, NULL), E_COMM, "earlier operation");
        hvt_comm_close(&c);
    }
    workers = NO_RANK;
}

/* Signals are the main thread's. */
static pthread_t main_thread;
static volatile sig_atomic_t taken_here;

static void take_signal(int number)
{
    (void)number;
    taken_here = pthread_equal(pthread_self(), main_thread);
}

TEST(a_worker_takes_no_signals)
{
    hvt_comm *c = NULL;
    sigset_t usr, before;

    workers = EVERY_RANK;
    CHECK_OK(open_comm("shm", &c));
    workers = NO_RANK;
    main_thread = pthread_self();
    signal(SIGUSR1, take_signal);
    sigemptyset(&usr);
    sigaddset(&usr, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr, &before);
    kill(getpid(), SIGUSR1); /* to any thread that takes it */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    CHECK(taken_here, "another thread took it, or none");
    signal(SIGUSR1, SIG_DFL);
    hvt_comm_close(&c);
}

int main(void)
{
    if (!ranks_open())
        return 1;
    comms[2] = over_messages();
    RUN(sums_equal_the_plain_tree_with_workers);
    RUN(broadcasts_reach_everyone_with_workers);
    RUN(operations_keep_their_order_with_workers);
    RUN(an_operation_is_done_though_nobody_waits);
    RUN(the_world_speaks_while_workers_do);
    RUN(a_reduce_apply_runs_where_it_is_awaited);
    RUN(workers_come_and_go);
    RUN(close_comes_while_operations_are_in_flight);
    RUN(what_fails_on_a_worker_is_told_by_wait);
    if (ranks_are_alone()) /* MPI has threads of its own */
        RUN(a_worker_takes_no_signals);
    return ranks_done();
}
