/*
 * train: what a run warns of before it begins, and how the clocks of a timeline are compared; and, for
 * test_program.py, ranks that fail.
 */
#include "train/report/report_impl.h"
#include "train/process/process_impl.h"
#include "base_impl.h"
#include "check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- places ---- */

TEST(a_warning_where_binding_leaves_most_processors_unused)
{
    static const char *const host[] = {"a", "b", "a", "b", "a", "b", "a", "b"};
    hvt_placement placement[8] = {0};
    char text[HVT_PLACEMENT_TEXT];

    for (int r = 0; r < 8; r++)
        placement[r] = (hvt_placement){.cores = {.threads = 2, .mask = 2}, .allowed = 16};
    hvt__placement_warning(8, host, placement,
                           text); /* 4 ranks x 2 are half of each: few enough to be meant */
    CHECK(!*text, "%s", text);
    for (int r = 1; r < 8; r += 2)
        placement[r].cores.mask = 1;
    hvt__placement_warning(8, host, placement, text);
    CHECK(!strncmp(text, "b: the launcher binds 4 ranks to 4 of 16 processors;", 52) &&
              strstr(text, "PE=4 lets") && !strstr(text, "other"),
          "%s", text);
    placement[0].cores.mask = 1;
    hvt__placement_warning(8, host, placement, text);
    CHECK(!strncmp(text, "a: the launcher binds 4 ranks to 7 of 16", 40) && strstr(text, "on 1 other host)"),
          "%s", text);
    hvt__placement_warning(1, host, placement, text);
    CHECK(!strncmp(text, "a: the launcher binds 1 rank to 1 of 16", 39), "%s", text);
    placement[0].allowed = 0; /* no launcher */
    hvt__placement_warning(1, host, placement, text);
    CHECK(!*text, "%s", text);
    placement[0].cores.crowded = placement[2].cores.crowded = true;
    hvt__placement_warning(3, host, placement, text);
    CHECK(!strncmp(text, "a: 4 threads of 2 ranks share fewer processors", 46), "%s", text);
}

TEST(a_warning_where_ranks_of_a_host_cannot_see_each_others_gpus)
{
    static const char *const host[] = {"a", "b", "a", "b"};
    hvt_placement placement[4] = {0};
    char text[HVT_PLACEMENT_TEXT];

    for (int r = 0; r < 4; r++)
        placement[r] = (hvt_placement){.gpus = 1, .gpu = {.name = "G", .uuid = {'u', (char)('0' + r)}}};
    hvt__gpu_warning(2, host, placement, text); /* one rank on each host: nothing to see */
    CHECK(!*text, "%s", text);
    hvt__gpu_warning(4, host, placement, text);
    CHECK(!strncmp(text, "a: ranks 0 and 2 each see one GPU", 33) && strstr(text, "--gpu-bind=none"), "%s",
          text);
    placement[2].gpus = placement[0].gpus = 2;
    hvt__gpu_warning(4, host, placement, text);
    CHECK(!strncmp(text, "b: ranks 1 and 3", 16), "%s", text);
    placement[3] = placement[1]; /* shared, as was asked for */
    hvt__gpu_warning(4, host, placement, text);
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

    if (hvt_world_open(NULL, &world) || hvt__signals_open(world))
        return 2;
    if (hvt_world_rank(world) == 0 && !all)
        for (;;)
            pause();
    if (all)
        hvt_world_agree(world, HVT_OK);
    else
        usleep(300000);
    if (hvt__signals_claim_report("it fails"))
        fprintf(stderr, "rank %d fails\n", hvt_world_rank(world));
    hvt_world_abort(world, 1);
}

/* ---- one run after another ---- */

/* "end" records of a log whose run came to its end. */
static int count_ends(const char *path)
{
    FILE *f = fopen(path, "r");
    char line[1 << 14];
    int ends = 0;

    while (f && fgets(line, sizeof line, f))
        ends += strstr(line, "\"record\":\"end\",\"status\":\"done\"") != NULL;
    if (f)
        fclose(f);
    return ends;
}

TEST(runs_in_one_process_are_independent)
{
    static const char *const flags[][2] = {{"samples", "32"},  {"size", "8"},    {"batch", "8"},
                                           {"epochs", "2"},    {"threads", "1"}, {"quiet", "on"},
                                           {"momentum", "0.9"}};
    char folder[] = "/tmp/hvt-train-XXXXXX", log[64], trace[64], command[64];
    hvt_world *world = NULL;
    hvt_report report[3];
    hvt_options o;
    void *memory = NULL;

    CHECK(mkdtemp(folder), "no folder");
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(trace, sizeof trace, "%s/trace", folder);
    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(flags); i++)
        CHECK_OK(hvt_options_set(&o, flags[i][0], flags[i][1]));
    CHECK_OK(hvt_options_set(&o, "log", log));
    CHECK_OK(hvt_options_set(&o, "timeline", trace));
    CHECK_OK(hvt_options_set(&o, "save", folder));
    CHECK_OK(hvt_options_set(&o, "overwrite", "on"));
    CHECK_OK(hvt_world_open(NULL, &world));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(hvt_train(&o, world, &report[i]));
        CHECK(report[i].steps == 8 && count_ends(log) == 1, "run %d: %lld updates, %d ends", i,
              (long long)report[i].steps, count_ends(log));
    }
    CHECK(report[0].weights == report[1].weights, "the second run has other weights than the first");
    CHECK_OK(hvt_options_set(&o, "overwrite", "off"));
    CHECK_OK(hvt_options_set(&o, "resume", folder));
    CHECK_OK(hvt_options_set(&o, "epochs", "3"));
    CHECK_OK(hvt_options_resume(&o, world, &memory));
    CHECK_OK(hvt_train(&o, world, &report[2]));
    CHECK(report[2].steps == 12 && count_ends(log) == 2, "%lld updates, %d ends", (long long)report[2].steps,
          count_ends(log));
    free(memory);
    hvt_world_close(&world);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
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
        hvt__remaining r = {.epoch = all[i].epoch,
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
    RUN(runs_in_one_process_are_independent);
    RUN(the_time_that_is_left_counts_evaluations_and_checkpoints);
    return check_done();
}
