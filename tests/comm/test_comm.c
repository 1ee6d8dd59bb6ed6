/*
 * The comms: names and choices, slices, and the same truths about `self` and `mpi`. Alone and on 1 to 4
 * ranks. test_shm.c tests `shm`.
 */
#include "config.h"
#include "sums.h"

/* ---- slices ------------------------------------------------------------------------------- */

TEST(slices_are_balanced_and_cover_everything_once)
{
    const size_t counts[] = {0, 1, 15, 16, 17, 1000, 100003};

    for (int n = 1; n <= 40; n++) {
        bool taken[40] = {false};

        for (int r = 0; r < n; r++) {
            int p = hvt__slice_index(r, n);

            CHECK(p >= 0 && p < n && !taken[p], "slice %d of %d, twice or none", p, n);
            taken[p] = true;
        }
        for (size_t i = 0; i < HVT_LEN(counts); i++) {
            size_t at = 0;

            for (int p = 0; p < n; p++) {
                size_t first = hvt__cut(counts[i], p, n), end = hvt__cut(counts[i], p + 1, n);
                size_t fair = (counts[i] + 15) / 16 / (size_t)n * 16;

                CHECK(first == at && (first % 16 == 0 || first == counts[i]), "slice %d of %d begins at %zu",
                      p, n, first);
                CHECK(end - first <= fair + 16 && (end == counts[i] || end - first >= fair),
                      "slice %d of %d of %zu holds %zu", p, n, counts[i], end - first);
                at = end;
            }
            CHECK(at == counts[i], "%zu of %zu", at, counts[i]);
        }
    }
    CHECK(hvt__cut((size_t)1 << 62, 3, 4) == (size_t)3 << 60, "no overflow");
}

/* ---- comms -------------------------------------------------------------------------------- */

TEST(self_is_for_one_rank)
{
    hvt_comm *c = NULL;
    hvt_ticket ticket;
    float x = 3;

    CHECK_FAILS(hvt_comm_open("pigeon", world, dev, &c), E_ARG, "self, shm, mpi, tcp");
    if (size > 1) {
        CHECK_FAILS(hvt_comm_open("self", world, dev, &c), E_UNSUPPORTED, "one rank");
        return;
    }
    CHECK_OK(hvt_comm_open("auto", world, dev, &c));
    CHECK(!strcmp(hvt_comm_name(c), "self") && hvt_comm_world(c) == world, "%s", hvt_comm_name(c));
    CHECK_OK(hvt_comm_allreduce(c, &x, 1, HVT_F32, &ticket));
    CHECK_OK(hvt_comm_wait(c, ticket));
    CHECK(x == 3, "%g", (double)x);
    hvt_comm_close(&c);
}

TEST(self_sums_equal_the_plain_tree)
{
    if (size > 1)
        SKIP("self is for one rank");
    sums_equal_the_plain_tree("self");
    broadcasts_reach_everyone("self");
    a_thousand_rounds("self");
}

#if HVT_HAVE_MPI
TEST(mpi_sums_equal_the_plain_tree)
{
    sums_equal_the_plain_tree(over_messages());
}

TEST(cutoffs_are_set_by_name)
{
    const hvt__cutoffs before = hvt__cutoffs_next;
    hvt_cutoff t;
    int n = 0;

    for (; hvt_comm_cutoff(n, &t); n++) {
        char list[80];
        size_t was = t.value;

        CHECK(t.value >= t.least && t.value <= t.most && t.from <= t.to, "%s: %zu", t.name, t.value);
        snprintf(list, sizeof list, "%s=%zu", t.name, t.least);
        CHECK_OK(hvt_comm_set_cutoffs(list, true));
        CHECK(hvt_comm_cutoff(n, &t) && t.value == was, "%s is %zu after a check", t.name, t.value);
        CHECK_OK(hvt_comm_set_cutoffs(list, false));
        CHECK(hvt_comm_cutoff(n, &t) && t.value == t.least, "%s is %zu", t.name, t.value);
        snprintf(list, sizeof list, "%s=%zu", t.name, t.most + 1);
        CHECK_FAILS(hvt_comm_set_cutoffs(list, false), E_ARG, t.name);
    }
    CHECK(n > 1 && !hvt_comm_cutoff(-1, &t), "%d cutoffs", n);
    hvt__cutoffs_next = before;
    CHECK_OK(hvt_comm_set_cutoffs("", false));
    CHECK_FAILS(hvt_comm_set_cutoffs("mpi-short=4096,mpi-packet", false), E_ARG, "mpi-packet");
    CHECK_FAILS(hvt_comm_set_cutoffs("mpi-short= 4096", false), E_ARG, "' 4096'");
    CHECK_FAILS(hvt_comm_set_cutoffs("mpi-short=4096x", false), E_ARG, "'4096x'");
    CHECK(hvt__cutoffs_next.mpi_short == before.mpi_short, "a list with a mistake has set something");
    CHECK_OK(hvt_comm_set_cutoffs("mpi-short=4096,mpi-packet=65536", false));
    CHECK(hvt__cutoffs_next.mpi_short == 4096 && hvt__cutoffs_next.mpi_packet == 65536, "not both are set");
    CHECK_OK(hvt_comm_set_cutoffs("mpi-packet=65536", false));
    CHECK(hvt__cutoffs_next.mpi_short == before.mpi_short, "a cutoff that is not named is not the default");
    hvt__cutoffs_next = before;
}

TEST(mpi_messages_may_be_cut_anywhere)
{
    const size_t counts[] = {17, 1000, 100003}, most[] = {7, 1000, 4097},
                 before = hvt__cutoffs_next.mpi_message;
    float *buf = aligned_alloc(64, 4 * 100032 + 64);
    hvt_comm *c = NULL;

    for (int i = 0; i < 3; i++) {
        hvt__cutoffs_next.mpi_message = most[i];
        CHECK_OK(hvt_comm_open(over_messages(), world, dev, &c));
        every_sum(c, buf, "cut messages", counts, i ? 3 : 2);
        hvt_comm_close(&c);
    }
    broadcasts_reach_everyone(over_messages());
    hvt__cutoffs_next.mpi_message = before;
    free(buf);
}

TEST(mpi_broadcasts_reach_everyone)
{
    broadcasts_reach_everyone(over_messages());
}

TEST(mpi_runs_a_thousand_rounds)
{
    a_thousand_rounds(over_messages());
}

TEST(mpi_operations_keep_their_order)
{
    operations_keep_their_order(over_messages());
}
#endif

int main(void)
{
    if (!ranks_open())
        return 1;
    if (rank == 0)
        RUN(slices_are_balanced_and_cover_everything_once);
    RUN(self_is_for_one_rank);
    RUN(self_sums_equal_the_plain_tree);
#if HVT_HAVE_MPI
    RUN(mpi_sums_equal_the_plain_tree);
    RUN(cutoffs_are_set_by_name);
    RUN(mpi_messages_may_be_cut_anywhere);
    RUN(mpi_broadcasts_reach_everyone);
    RUN(mpi_runs_a_thousand_rounds);
    RUN(mpi_operations_keep_their_order);
#endif
    return ranks_done();
}
