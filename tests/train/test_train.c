/*
 * train: what a run warns of before it begins, and how the clocks of a timeline are compared; and, for
 * test_program.py, ranks that fail.
 */
#include "train/report/timeline.h"
#include "base_impl.h"
#include "check.h"

#include <math.h>
#include <unistd.h>

/* ---- places ---- */

TEST(a_warning_where_binding_leaves_most_processors_unused)
{
    static const char *const host[] = {"a", "b", "a", "b", "a", "b", "a", "b"};
    hvt_place place[8] = {0};
    char text[HVT_PLACE];

    for (int r = 0; r < 8; r++)
        place[r] = (hvt_place){.cores = {.threads = 2, .mask = 2}, .allowed = 16};
    hvt__place_warning(8, host, place, text); /* 4 ranks x 2 are half of each: few enough to be meant */
    CHECK(!*text, "%s", text);
    for (int r = 1; r < 8; r += 2)
        place[r].cores.mask = 1;
    hvt__place_warning(8, host, place, text);
    CHECK(!strncmp(text, "b: the launcher binds 4 ranks to 4 of 16 processors;", 52) &&
              strstr(text, "PE=4 lets") && !strstr(text, "other"),
          "%s", text);
    place[0].cores.mask = 1;
    hvt__place_warning(8, host, place, text);
    CHECK(!strncmp(text, "a: the launcher binds 4 ranks to 7 of 16", 40) && strstr(text, "on 1 other host)"),
          "%s", text);
    hvt__place_warning(1, host, place, text);
    CHECK(!strncmp(text, "a: the launcher binds 1 rank to 1 of 16", 39), "%s", text);
    place[0].allowed = 0; /* no launcher */
    hvt__place_warning(1, host, place, text);
    CHECK(!*text, "%s", text);
    place[0].cores.crowded = place[2].cores.crowded = true;
    hvt__place_warning(3, host, place, text);
    CHECK(!strncmp(text, "a: 4 threads of 2 ranks share fewer processors", 46), "%s", text);
}

TEST(a_warning_where_ranks_of_a_host_cannot_see_each_others_gpus)
{
    static const char *const host[] = {"a", "b", "a", "b"};
    hvt_place place[4] = {0};
    char text[HVT_PLACE];

    for (int r = 0; r < 4; r++)
        place[r] = (hvt_place){.gpus = 1, .gpu = {.name = "G", .uuid = {'u', (char)('0' + r)}}};
    hvt__gpu_warning(2, host, place, text); /* one rank on each host: nothing to see */
    CHECK(!*text, "%s", text);
    hvt__gpu_warning(4, host, place, text);
    CHECK(!strncmp(text, "a: ranks 0 and 2 each see one GPU", 33) && strstr(text, "--gpu-bind=none"), "%s",
          text);
    place[2].gpus = place[0].gpus = 2;
    hvt__gpu_warning(4, host, place, text);
    CHECK(!strncmp(text, "b: ranks 1 and 3", 16), "%s", text);
    place[3] = place[1]; /* shared, as was asked for */
    hvt__gpu_warning(4, host, place, text);
    CHECK(!*text, "%s", text);
}

/* ---- the timeline ---- */

/* Clocks that began apart, and messages that take their time, another one each way and each round. */
TEST(clocks_are_compared_within_what_is_told)
{
    enum { RANKS = 3, ROUNDS = 8 };
    static const double ahead[RANKS] = {100, -2.5, 1e6};
    double began[ROUNDS * RANKS], ended[ROUNDS * RANKS], got, error, true_time = 5;

    for (int k = 0; k < ROUNDS; k++) {
        double asked[RANKS], last = 0;
        for (int r = 0; r < RANKS; r++) {
            asked[r] = true_time + 1e-3 * hvt__unit(hvt__draw(1, (uint64_t)k, (uint64_t)r, 0));
            last = asked[r] > last ? asked[r] : last;
            began[k * RANKS + r] = asked[r] + ahead[r];
        }
        for (int r = 0; r < RANKS; r++)
            ended[k * RANKS + r] =
                last + 1e-4 + 1e-3 * hvt__unit(hvt__draw(2, (uint64_t)k, (uint64_t)r, 0)) + ahead[r];
        true_time += 1;
    }
    for (int r = 0; r < RANKS; r++) {
        hvt__clock_offset(began, ended, ROUNDS, RANKS, r, &got, &error);
        CHECK(error > 0 && error < 2e-3 && fabs(got - (ahead[r] - ahead[0])) <= error + 1e-9,
              "rank %d: %.6f give or take %.6f, expected %.6f", r, got, error, ahead[r] - ahead[0]);
    }
}

/* ---- ranks that fail ---- */

/* For test_program.py: what hvtrain does when one rank fails by itself, or all do at the same moment. */
static int abort_ranks(bool all)
{
    hvt_world *world = NULL;

    if (hvt_world_open(NULL, &world) || hvt__interrupt_open(world))
        return 2;
    if (hvt_world_rank(world) == 0 && !all)
        for (;;)
            pause();
    if (all)
        hvt_world_agree(world, HVT_OK);
    else
        usleep(300000);
    if (hvt__interrupt_last_word("it fails"))
        fprintf(stderr, "rank %d fails\n", hvt_world_rank(world));
    hvt_world_abort(world, 1);
}

/* ---- what is left ---- */

TEST(the_time_that_is_left_counts_evaluations_and_checkpoints)
{
    /* ten updates in each epoch; an update takes 1 s, an evaluation 100 s, a checkpoint 10000 s */
    static const struct {
        int64_t epoch, done, left;
        int freq;
        double want;
    } all[] = {{0, 0, 100, 1, 100 + 10 * 100 + 10 * 10000.}, /* ten epochs */
               {0, 10, 90, 1, 90 + 10 * 100 + 10 * 10000.},  /* the first one is trained, and no more */
               {1, 1, 89, 1, 89 + 9 * 100 + 9 * 10000.},     /* of the second one an update is done */
               {0, 0, 100, 3, 100 + 4 * 100 + 10 * 10000.},  /* after 3, 6, 9 and at the end */
               {4, 0, 60, 3, 60 + 3 * 100 + 6 * 10000.},     /* after 6, 9 and at the end */
               {0, 0, 100, 0, 100 + 1 * 100 + 10 * 10000.},  /* at the end alone */
               {0, 0, 15, 1, 15 + 2 * 100 + 2 * 10000.},     /* --steps 15 */
               {9, 10, 0, 1, 0 + 1 * 100 + 1 * 10000.}};     /* after the last update */

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        hvt__rest r = {.epoch = all[i].epoch,
                       .done = all[i].done,
                       .left = all[i].left,
                       .per_epoch = 10,
                       .eval_freq = all[i].freq,
                       .update_seconds = 1,
                       .eval_seconds = 100,
                       .save_seconds = 10000};
        double left = hvt__seconds_left(&r);
        CHECK(left == all[i].want, "case %zu: %g s, not %g", i, left, all[i].want);
    }
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strncmp(argv[1], "abort", 5))
        return abort_ranks(!strcmp(argv[1], "abort-all"));
    RUN(a_warning_where_binding_leaves_most_processors_unused);
    RUN(a_warning_where_ranks_of_a_host_cannot_see_each_others_gpus);
    RUN(clocks_are_compared_within_what_is_told);
    RUN(the_time_that_is_left_counts_evaluations_and_checkpoints);
    return check_done();
}
