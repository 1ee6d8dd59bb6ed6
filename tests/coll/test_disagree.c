/*
 * Ranks that disagree about a collective: each gets the difference, both values and the ranks; no rank hangs,
 * and the comm remains usable.
 */
#include "collectives.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif
#include <time.h>

/* After a refusal: all ranks are at the same place, and data still arrives. */
static void goes_on(void)
{
    int32_t x = rank + 1;

    CHECK_OK(hvt_allreduce(c, NULL, &x, 1, HVT_I32, HVT_SUM, NULL, NULL));
    CHECK(x == size * (size + 1) / 2, "%d", x);
}

/* This status and this text is what every rank must have got: rank 0's value and the other one's. */
static void check_named(hvt_status s, const char *what, const char *zero, const char *other, int bad)
{
    char theirs[64], ours[64];

    snprintf(ours, sizeof ours, size == 2 || bad == 1 ? "\"%s\" on rank" : "\"%s\" on ranks 0", zero);
    snprintf(theirs, sizeof theirs, "\"%s\" on rank %d (", other, bad);
    CHECK(s == HVT_E_MISMATCH && hvt_last_error_is_agreed(), "%s: %s", what, hvt_status_name(s));
    CHECK(strstr(hvt_last_error(), what) && strstr(hvt_last_error(), ours) &&
              strstr(hvt_last_error(), theirs),
          "not '%s', '%s' and '%s': %s", what, ours, theirs, hvt_last_error());
    goes_on();
}

TEST(what_differs_is_named_on_every_rank)
{
    double x[64] = {0}, y[640] = {0};
    const hvt_scale twice = {2, 1}, half = {1, 0.5};
    size_t parts[64];

    if (size == 1)
        SKIP("it takes two ranks");
    for (int bad = 1; bad < size; bad++) { /* one rank differs from all others */
        bool odd = rank == bad;
        char root[16], part[64];

        check_named(hvt_allreduce(c, x, y, odd ? 7 : 8, HVT_F32, HVT_SUM, NULL, NULL), ": count differs", "8",
                    "7", bad);
        check_named(hvt_allreduce(c, x, y, odd ? 0 : 8, HVT_F32, HVT_SUM, NULL, NULL), ": count differs", "8",
                    "0", bad);
        check_named(hvt_allreduce(c, x, y, 8, odd ? HVT_F16 : HVT_BF16, HVT_SUM, NULL, NULL),
                    ": type differs", "bf16", "f16", bad);
        check_named(hvt_allreduce(c, x, y, 8, HVT_F32, odd ? HVT_MIN : HVT_MAX, NULL, NULL),
                    ": reduction differs", "max", "min", bad);
        check_named(hvt_allreduce(c, x, y, 8, HVT_F32, HVT_SUM, odd ? &twice : NULL, NULL),
                    ": factor before differs", "1", "2", bad);
        check_named(hvt_allreduce(c, x, y, 8, HVT_F32, HVT_SUM, odd ? &half : NULL, NULL),
                    ": factor after differs", "1", "0.5", bad);
        snprintf(root, sizeof root, "%d", bad);
        check_named(hvt_broadcast(c, x, 8, HVT_F32, odd ? bad : 0, NULL), ": root differs", "0", root, bad);
        check_named(hvt_gather(c, x, 8, y, NULL, HVT_F32, odd ? bad : 0, NULL), ": root differs", "0", root,
                    bad);
        check_named(odd ? hvt_broadcast(c, x, 8, HVT_F32, 0, NULL)
                        : hvt_allreduce(c, x, y, 8, HVT_F32, HVT_SUM, NULL, NULL),
                    "collective ", "allreduce", "broadcast", bad);
        check_named(odd ? hvt_barrier(c, NULL) : hvt_allgather(c, x, 1, y, NULL, HVT_F32, NULL),
                    "collective ", "allgather", "barrier", bad);
        for (int r = 0; r < size; r++)
            parts[r] = 2 + (size_t)(r == 0 && odd);
        snprintf(part, sizeof part, ": count of rank 0's part differs");
        check_named(hvt_allgather(c, x, 2, y, parts, HVT_F64, NULL), part, "2", "3", bad);
        check_named(hvt_reduce_scatter(c, x, y, 2, parts, HVT_F64, HVT_MAX, NULL, NULL), part, "2", "3", bad);
    }
}

/* The lowest failing rank's words, on every rank. */
static void check_told(hvt_status s, hvt_status want, const char *part)
{
    CHECK(s == want && hvt_last_error_is_agreed(), "%s, not %s: %s", hvt_status_name(s),
          hvt_status_name(want), hvt_last_error());
    CHECK(strstr(hvt_last_error(), part), "not '%s': %s", part, hvt_last_error());
    goes_on();
}

TEST(counts_that_only_two_ranks_know_are_compared_too)
{
    double x[640] = {0}, y[640] = {0};
    int last = size - 1;
    size_t gives[64], takes[64];
    char text[128];

    snprintf(text, sizeof text, "gather: rank %d (%s) sends 3 i64, rank 0 (%s) receives 2", last,
             hvt_world_host(world, last), hvt_world_host(world, 0));
    if (last) {
        check_told(hvt_gather(c, x, rank == last ? 3 : 2, y, NULL, HVT_I64, 0, NULL), HVT_E_MISMATCH, text);
        snprintf(text, sizeof text, "scatter: rank 0 (%s) sends 2 i64, rank %d (%s) receives 3",
                 hvt_world_host(world, 0), last, hvt_world_host(world, last));
        check_told(hvt_scatter(c, x, NULL, y, rank == last ? 3 : 2, HVT_I64, 0, NULL), HVT_E_MISMATCH, text);
    }
    for (int r = 0; r < size; r++)
        gives[r] = takes[r] = 2;
    gives[0] = rank == last ? 5 : 2;
    snprintf(text, sizeof text, "alltoall: rank %d (%s) sends 5 f32, rank 0 (%s) receives 2", last,
             hvt_world_host(world, last), hvt_world_host(world, 0));
    check_told(hvt_alltoall(c, x, gives, y, takes, HVT_F32, NULL), HVT_E_MISMATCH, text);
}

TEST(one_ranks_bad_arguments_are_told_to_all)
{
    double x[64] = {0};
    size_t parts[64], huge[64];

    for (int r = 0; r < size; r++) {
        parts[r] = 1;
        huge[r] = SIZE_MAX / 2;
    }
    for (int bad = 0; bad < size; bad++) {
        bool odd = rank == bad;

        check_told(hvt_allreduce(c, NULL, odd ? NULL : x, 4, HVT_F32, HVT_SUM, NULL, NULL), HVT_E_ARG,
                   "allreduce: no buffer for 4 elements");
        check_told(hvt_allreduce(c, NULL, x, 4, odd ? (hvt_dtype)99 : HVT_F32, HVT_SUM, NULL, NULL),
                   HVT_E_ARG, "type 99 is unknown");
        check_told(hvt_allreduce(c, NULL, x, 4, HVT_F32, odd ? (hvt_reduction)9 : HVT_SUM, NULL, NULL),
                   HVT_E_ARG, "reduction 9 is unknown");
        check_told(hvt_broadcast(c, x, 4, HVT_F32, odd ? size : 0, NULL), HVT_E_ARG, "root ");
        check_told(hvt_allgather(c, x, odd ? 2 : 1, x + 2, parts, HVT_F64, NULL), HVT_E_ARG,
                   "this rank's part has 2 elements, but counts[");
        check_told(hvt_allgather(c, NULL, odd ? SIZE_MAX / 2 : 1, x, odd ? huge : parts, HVT_F64, NULL),
                   HVT_E_ARG, "exceed the address space");
        check_told(hvt_alltoall(c, NULL, odd ? NULL : parts, x, parts, HVT_U8, NULL), HVT_E_ARG,
                   "alltoall: no");
    }
}

TEST(a_send_and_its_receive_are_told_of_each_other)
{
    float x[8] = {0};
    char text[128];

    if (rank > 1)
        SKIP("ranks 0 and 1 send and receive");
    CHECK_FAILS(hvt_send(c, x, 1, HVT_F32, rank, NULL), E_ARG, "not another of the");
    CHECK_FAILS(hvt_recv(c, x, 1, HVT_F32, size, NULL), E_ARG, "not another of the");
    if (size == 1)
        return;
    snprintf(text, sizeof text, "rank 0 (%s) sends 8 f32, rank 1 (%s) receives 7 bf16",
             hvt_world_host(world, 0), hvt_world_host(world, 1));
    if (rank)
        CHECK_FAILS(hvt_recv(c, x, 7, HVT_BF16, 0, NULL), E_MISMATCH, text);
    else
        CHECK_FAILS(hvt_send(c, x, 8, HVT_F32, 1, NULL), E_MISMATCH, text);
    if (rank)
        CHECK_FAILS(hvt_recv(c, NULL, 8, HVT_F32, 0, NULL), E_ARG, "no buffer");
    else
        CHECK_FAILS(hvt_send(c, x, 8, HVT_F32, 1, NULL), E_ARG, "rank 1 (");
    x[0] = rank ? 0 : 5; /* and the next one works */
    if (rank)
        CHECK_OK(hvt_recv(c, x, 1, HVT_F32, 0, NULL));
    else
        CHECK_OK(hvt_send(c, x, 1, HVT_F32, 1, NULL));
    CHECK(x[0] == 5, "%g", (double)x[0]);
}

TEST(operations_in_flight_outlive_a_refused_one)
{
    int32_t a = 1, b = 2, d = 3;
    hvt_ticket t[3];

    if (size == 1)
        SKIP("it takes two ranks");
    CHECK_OK(hvt_allreduce(c, NULL, &a, 1, HVT_I32, HVT_SUM, NULL, &t[0]));
    CHECK_OK(hvt_allreduce(c, NULL, &b, rank == 1, HVT_I32, HVT_SUM, NULL, &t[1]));
    CHECK_OK(hvt_allreduce(c, NULL, &d, 1, HVT_I32, HVT_SUM, NULL, &t[2]));
    CHECK_FAILS(hvt_comm_wait(c, t[2]), E_MISMATCH, ": count differs");
    CHECK(a == size && b == 2 && d == 3 * size, "%d %d %d", a, b, d);
    goes_on();
}

static void leaks_are_meant(bool they_are)
{
#ifdef __SANITIZE_ADDRESS__
    (they_are ? __lsan_disable : __lsan_enable)();
#else
    (void)they_are;
#endif
}

/* The lone rank calls a collective while the others exchange gradients, or the other way round. */
static void check_apart(int lone, bool calls, bool worker)
{
    const hvt_overlap overlap = {.yield = true};
    float x[8] = {0}, y = 1;
    hvt_fuse *f = NULL;
    hvt_comm *own = NULL;
    hvt_status s;
    double start = hvt__now();
    char text[128], who[96];

    CHECK_OK(hvt_comm_open(hvt_comm_name(c), world, dev, &own));
    if (worker && hvt_comm_overlap(own, &overlap) != HVT_OK)
        printf("# no worker: %s\n", hvt_last_error());
    leaks_are_meant(true); /* a peer may read a bucket whose messages were dropped, so it is never freed */
    CHECK_OK(hvt_fuse_create(own, &(hvt_piece){"x", x, 8, HVT_F32}, 1, 0, HVT_SUM, &f));
    leaks_are_meant(false);
    CHECK_OK(hvt_fuse_exchange(f));
    CHECK_OK(hvt_allreduce(own, NULL, &y, 1, HVT_F32, HVT_MAX, NULL, NULL));
    if ((rank == lone) == calls)
        s = hvt_allreduce(own, NULL, &y, 1, HVT_F32, HVT_MAX, NULL, NULL);
    else
        s = hvt_fuse_exchange(f);
    CHECK(s == HVT_E_MISMATCH && hvt_last_error_is_agreed(), "%s: %s", hvt_status_name(s), hvt_last_error());
    CHECK(hvt__now() - start < 20, "%g s", hvt__now() - start);
    snprintf(who, sizeof who, "rank %d (%s)", lone, hvt_world_host(world, lone));
    snprintf(text, sizeof text, "%s %s", who, calls ? "calls allreduce" : "exchanges gradients");
    CHECK(strstr(hvt_last_error(), "calls allreduce, but rank ") &&
              strstr(hvt_last_error(), " exchanges gradients") && strstr(hvt_last_error(), text),
          "not '%s': %s", text, hvt_last_error());
    CHECK_FAILS(hvt_barrier(own, NULL), E_COMM, "this comm cannot be used any more");
    CHECK(strstr(hvt_last_error(), "calls allreduce, but"), "%s", hvt_last_error());
    hvt_fuse_free(&f);
    hvt_comm_close(&own);
    goes_on();
}

TEST(an_exchange_and_a_collective_do_not_wait_for_each_other)
{
    if (size == 1)
        SKIP("it takes two ranks");
    check_apart(0, true, false);
    check_apart(size - 1, false, false);
    check_apart(size - 1, true, true);
}

/* Ranks that wait long for each other in operations of the same kind do not disagree. */
TEST(slow_ranks_are_waited_for)
{
    float x = 1;
    hvt_ticket t;

    const struct timespec pause = {rank == size - 1 && size > 1, 0};

    CHECK_OK(hvt_allreduce(c, NULL, &x, 1, HVT_F32, HVT_MAX, NULL, NULL));
    nanosleep(&pause, NULL);
    CHECK_OK(hvt_comm_allreduce(c, &x, 1, HVT_F32, &t));
    CHECK_OK(hvt_allreduce(c, NULL, &x, 1, HVT_F32, HVT_SUM, NULL, NULL));
    nanosleep(&pause, NULL);
    CHECK_OK(hvt_allreduce(c, NULL, &x, 1, HVT_F32, HVT_SUM, NULL, NULL));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK_OK(hvt_barrier(c, NULL));
    goes_on();
}

static void truths(void)
{
    RUN(what_differs_is_named_on_every_rank);
    RUN(counts_that_only_two_ranks_know_are_compared_too);
    RUN(one_ranks_bad_arguments_are_told_to_all);
    RUN(a_send_and_its_receive_are_told_of_each_other);
    RUN(operations_in_flight_outlive_a_refused_one);
    RUN(slow_ranks_are_waited_for);
    RUN(an_exchange_and_a_collective_do_not_wait_for_each_other);
}

int main(void)
{
    return on_every_comm(truths);
}
