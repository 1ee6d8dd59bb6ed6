/*
 * The comm of several nodes, on one host.
 */
#include "logged.h"
#include "nodes.h"
#include "sums.h"
#include "hvt/collective.h"

#include <errno.h>

static __thread hvt_world *real;

/* Run a truth on every way to lay the ranks on nodes that hier takes, or on every one that it refuses. */
static void everywhere(bool taken, void (*truth)(void))
{
    static const int ways[][8] = {{2, 2},    {2, 1}, {1, 1, 1}, {1, 2},       {1, 3}, {3, 1},
                                  {2, 2, 2}, {4, 2}, {4, 4},    {2, 2, 2, 2}, {4, 3}, {2, 4},
                                  {3, 3},    {2, 6}, {5, 1},    {2, 3},       {6, 2}, {1, 1, 1, 1, 1, 1},
                                  {2, 2, 1}};
    int tried = 0;

    for (size_t i = 0; i < HVT_LEN(ways); i++) {
        hvt_world w;
        int ranks = 0, levels;

        for (int k = 0; k < 8; k++)
            ranks += ways[i][k];
        if (ranks != size)
            continue;
        w = on_nodes(real, ways[i]);
        if ((hvt__levels_inside(&w, &levels) == HVT_OK) == taken) {
            world = &w;
            truth();
            real->channels = w.channels; /* messages that nobody took stay on the channel of their comm */
            tried++;
        }
        world = real;
        free(w.node_of);
    }
    CHECK(tried, "no way for %d ranks", size);
}

static void sum_in_every_way(void)
{
    sums_equal_the_plain_tree("hier");
}

TEST(sums_over_nodes_equal_the_plain_tree)
{
    everywhere(true, sum_in_every_way);
}

static void cut_in_every_way(void)
{
    const size_t counts[] = {17, 1000, 100003}, most[] = {7, 1000, 4097};
    const hvt__cutoffs before = hvt__cutoffs_next;
    float *buf = aligned_alloc(64, 4 * 100032 + 64);

    for (int i = 0; i < 3; i++) {
        hvt_comm *c = NULL;

        hvt__cutoffs_next.mpi_message = most[i];
        hvt__cutoffs_next.mpi_short = i == 1 ? 0 : before.mpi_short;
        hvt__cutoffs_next.mpi_packet = i == 2 ? 1 << 10 : before.mpi_packet;
        CHECK_OK(hvt_comm_open("hier", world, dev, &c));
        every_sum(c, buf, "cut messages", counts, i ? 3 : 2);
        hvt_comm_close(&c);
    }
    hvt__cutoffs_next = before;
    free(buf);
}

TEST(messages_between_nodes_may_be_cut_anywhere)
{
    everywhere(true, cut_in_every_way);
}

static void carry_in_every_way(void)
{
    broadcasts_reach_everyone("hier");
    operations_keep_their_order("hier");
}

TEST(broadcasts_and_order_hold_over_nodes)
{
    everywhere(true, carry_in_every_way);
}

static void run_in_every_way(void)
{
    a_thousand_rounds("hier");
}

TEST(a_thousand_rounds_run_over_nodes)
{
    everywhere(true, run_in_every_way);
}

static void choose(void)
{
    hvt_comm *c = NULL;

    log_forget();
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "hier") && !*logged, "%s: %s", hvt_comm_name(c), logged);
    hvt_comm_close(&c);
}

static void refuse(void)
{
    hvt_comm *c = NULL;

    CHECK_FAILS(hvt_comm_open("hier", world, dev, &c), E_UNSUPPORTED, "comm 'hier'");
    CHECK(hvt_last_error_is_agreed() && !c, "%s", hvt_last_error());
    log_forget();
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), over_messages()), "%s", hvt_comm_name(c));
    CHECK(!!*logged == (rank == 0) && (rank || strstr(logged, "comm 'hier'")), "said: %s", logged);
    hvt_comm_close(&c);
}

TEST(auto_is_hier_where_nodes_are_blocks_else_mpi)
{
    log_keep(HVT_LOG_DEBUG);
    everywhere(true, choose);
    everywhere(false, refuse);
    log_release();
}

/* ---- what fails on one node alone --------------------------------------------------------------- */

static int (*real_create)(size_t bytes);

static int create_none(size_t bytes)
{
    (void)bytes;
    errno = ENOSPC;
    return -1;
}

static void fall_back(void)
{
    hvt_comm *c = NULL;
    void *p = NULL;
    char prefix[32];
    int first = 0; /* of the last node */

    while (world->node_of[first] != world->nodes - 1)
        first++;
    if (rank == first)
        hvt__shm_create = create_none;
    snprintf(prefix, sizeof prefix, "rank %d (", first);
    CHECK_FAILS(hvt_comm_open("hier", world, dev, &c), E_MEM, prefix);
    log_forget();
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), over_messages()) && !!*logged == (rank == 0), "%s: %s", hvt_comm_name(c),
          logged);
    hvt_comm_close(&c);

    hvt__shm_create = real_create;
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    if (rank == first)
        hvt__shm_create = create_none;
    CHECK_OK(hvt_comm_alloc(c, 1000, &p));
    hvt__shm_create = real_create;
    CHECK(!strcmp(hvt_comm_name(c), over_messages()) && p, "%s", hvt_comm_name(c));
    every_sum(c, p, "after falling back", &(size_t){200}, 1);
    hvt_comm_release(c, p);
    hvt_comm_close(&c);
}

TEST(a_node_without_shared_memory_makes_all_fall_back)
{
    if (ranks_are_threads())
        SKIP("it takes ranks with functions of their own");
    real_create = hvt__shm_create;
    log_keep(HVT_LOG_WARN);
    everywhere(true, fall_back);
    log_release();
}

static void collect(void)
{
    hvt_comm *c = NULL;
    int32_t number = rank + 1, all[64];
    float twice[1000];

    CHECK_OK(hvt_comm_open("hier", world, dev, &c));
    for (int i = 0; i < 1000; i++)
        twice[i] = (float)(rank + i);
    CHECK_OK(hvt_allreduce(c, NULL, twice, 1000, HVT_F32, HVT_SUM, &(hvt_scale){2, 1}, NULL));
    CHECK_OK(hvt_allgather(c, &number, 1, all, NULL, HVT_I32, NULL));
    CHECK_OK(hvt_allreduce(c, NULL, &number, 1, HVT_I32, HVT_MAX, NULL, NULL));
    CHECK(number == size && all[0] == 1 && all[size - 1] == size, "%d, %d", number, all[size - 1]);
    CHECK(twice[999] == (float)(size * (size - 1) + 2 * 999 * size), "%g", (double)twice[999]);
    CHECK_FAILS(hvt_broadcast(c, twice, rank ? 10 : 20, HVT_F32, 0, NULL), E_MISMATCH,
                ": count differs: \"20\"");
    CHECK_OK(hvt_broadcast(c, &number, 1, HVT_I32, size - 1, NULL));
    hvt_comm_close(&c);
}

TEST(collectives_run_over_nodes)
{
    everywhere(true, collect);
}

static void differ(void)
{
    hvt_comm *c = NULL;
    hvt_ticket t;
    float x[32] = {0};
    bool last = world->node_of[rank] == world->nodes - 1,
         alone = world->node_of[size - 2] != world->nodes - 1;
    char text[32];

    if (alone)
        return;
    CHECK_OK(hvt_comm_open("hier", world, dev, &c));
    CHECK_OK(hvt_comm_allreduce(c, x, rank == size - 1 ? 31 : 32, HVT_F32, &t));
    snprintf(text, sizeof text, "rank %d (", size - 1);
    if (last) /* the other nodes wait for this one, whose program ends the job */
        CHECK_FAILS(hvt_comm_wait(c, t), E_MISMATCH, text);
    if (last)
        CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "E_MISMATCH");
    hvt_comm_close(&c);
}

TEST(ranks_are_called_by_their_number_in_the_job)
{
    everywhere(true, differ);
}

static void close_on_one(void)
{
    for (int checked = 0; checked < 2; checked++) {
        hvt_comm *c = NULL;
        hvt_ticket t;
        float x[5000] = {0};

        CHECK_OK(hvt_comm_open("hier", world, dev, &c));
        for (int round = 0; round < 2 && (rank != 1 || !round); round++) {
            if (checked)
                CHECK_OK(hvt_allreduce(c, NULL, x, 5000, HVT_F32, HVT_MAX, NULL, &t));
            else
                CHECK_OK(hvt_comm_allreduce(c, x, 5000, HVT_F32, &t));
            if (round)
                CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "has left the comm");
            else
                CHECK_OK(hvt_comm_wait(c, t));
        }
        log_keep(HVT_LOG_WARN);
        hvt_comm_close(&c);
        log_release();
        CHECK(rank != 1 || strstr(logged, "rank 1 ("), "%s", logged);
        CHECK_OK(hvt_world_barrier(real));
    }
}

TEST(a_rank_that_closes_the_comm_alone_is_named)
{
    everywhere(true, close_on_one);
}

int main(void)
{
    if (!ranks_open())
        return 1;
    real = world;
    if (size > 2) {
        RUN(sums_over_nodes_equal_the_plain_tree);
        RUN(messages_between_nodes_may_be_cut_anywhere);
        RUN(broadcasts_and_order_hold_over_nodes);
        if (size <= 4)
            RUN(a_thousand_rounds_run_over_nodes);
        RUN(auto_is_hier_where_nodes_are_blocks_else_mpi);
        RUN(a_node_without_shared_memory_makes_all_fall_back);
        RUN(collectives_run_over_nodes);
        RUN(ranks_are_called_by_their_number_in_the_job);
        if (size <= 4) /* it waits for the rank that has left */
            RUN(a_rank_that_closes_the_comm_alone_is_named);
    }
    return ranks_done();
}
