/*
 * train: warnings before a run begins, the comparison of a timeline's clocks, consecutive runs and runs on
 * the caller's data; and, for test_program.py, ranks that fail.
 */
#include "train/run.h"
#include "train/process/process_impl.h"
#include "base_impl.h"
#include "check.h"
#include "heap.h"

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
    CHECK(!strncmp(text, "a: 4 threads of 2 ranks share 2 processors; fewer ranks", 55), "%s", text);
    hvt__placement_warning(1, host, placement, text);
    CHECK(!strcmp(text, "a: 2 threads share 1 processor; --threads 1 would be faster"), "%s", text);
}

TEST(losses_have_one_format)
{
    static const struct {
        double loss;
        const char *text;
    } shown[] = {
        {0, "0.0000"},         {2.302585, "2.3026"},      {0.001, "0.0010"},  {0.00051234, "0.0005123"},
        {3.21e-5, "3.21e-05"}, {999999.5, "999999.5000"}, {1e6, "1e+06"},     {1234567, "1.235e+06"},
        {(double)NAN, "nan"},  {(double)INFINITY, "inf"}, {-0.25, "-0.2500"}, {1e308, "1e+308"}};
    const hvt_loss five = {.sum = 20, .top1 = 1, .top5 = 3, .count = 4},
                   mse = {.sum = 1, .count = 4, .error = 2e-3};

    for (size_t i = 0; i < HVT_LEN(shown); i++)
        CHECK(!strcmp(hvt__loss_shown(shown[i].loss).text, shown[i].text), "%g: %s", shown[i].loss,
              hvt__loss_shown(shown[i].loss).text);
    CHECK(!strcmp(hvt__figures_of(&five, HVT_LOSS_CE, 5, false).scores, "top-1 25.00 %"), "5 classes");
    CHECK(!strcmp(hvt__figures_of(&five, HVT_LOSS_CE, 6, false).scores, "top-1 25.00 %, top-5 75.00 %"),
          "6 classes");
    CHECK(!strcmp(hvt__figures_of(&mse, HVT_LOSS_MSE, 9, false).scores, "mae 0.0005"), "%s",
          hvt__figures_of(&mse, HVT_LOSS_MSE, 9, false).scores);
}

TEST(advice_where_the_threads_of_a_rank_are_far_from_each_other)
{
    static const char *const host[] = {"a", "b"};
    hvt_placement placement[2] = {{.cores = {.threads = 16, .ncpus = 16, .caches = 1, .nodes = 1}},
                                  {.cores = {.threads = 16, .ncpus = 16, .caches = 0, .nodes = 0}}};
    char text[HVT_PLACEMENT_TEXT];

    hvt__domains_advice(2, host, placement, text);
    CHECK(!*text, "one cache, one node: %s", text);
    placement[1].cores.caches = 4;
    hvt__domains_advice(2, host, placement, text);
    CHECK(!strncmp(text, "rank 1 (b) has threads on 4 third-level caches;", 47) &&
              strstr(text, "ppr:1:l3cache --bind-to l3cache, with --batch divided by 4"),
          "%s", text);
    placement[1].cores.nodes = 2;
    hvt__domains_advice(2, host, placement, text);
    CHECK(!strncmp(text, "rank 1 (b) has threads on 2 NUMA nodes;", 39) &&
              strstr(text, "ppr:1:numa --bind-to numa, with --batch divided by 2"),
          "%s", text);
    hvt__domains_advice(1, host + 1, placement + 1, text);
    CHECK(!strncmp(text, "this process has threads on 2 NUMA nodes;", 41), "%s", text);
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

TEST(a_warning_where_sums_in_16_bits_lose_what_is_added)
{
    char text[HVT_PLACEMENT_TEXT];

    hvt__sums_warning("nccl", HVT_BF16, 64, text);
    CHECK(!*text, "%s", text);
    hvt__sums_warning("nccl", HVT_BF16, 128, text);
    CHECK(!strncmp(text, "NCCL adds bf16 in bf16", 22) && strstr(text, "128 ranks") && strstr(text, "f16 or"),
          "%s", text);
    hvt__sums_warning("nccl", HVT_F16, 128, text);
    CHECK(!*text, "%s", text);
    hvt__sums_warning("nccl", HVT_F16, 4096, text);
    CHECK(strstr(text, "4096 ranks") && !strstr(text, "--compression f16"), "%s", text);
    hvt__sums_warning("nccl", HVT_F32, 4096, text);
    CHECK(!*text, "%s", text);
    hvt__sums_warning("mpi", HVT_BF16, 4096, text);
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

/* Four updates in an epoch. */
#define SAMPLES (heap_memcheck() ? "8" : "32")
#define BATCH   (heap_memcheck() ? "2" : "8")

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

static void write_text(const char *file, const char *text)
{
    FILE *f = fopen(file, "we");

    CHECK(f && fputs(text, f) >= 0, "%s", file);
    fclose(f);
}

TEST(runs_in_one_process_are_independent)
{
    const char *const flags[][2] = {{"samples", SAMPLES}, {"size", "8"},    {"batch", BATCH},
                                    {"epochs", "2"},      {"threads", "1"}, {"quiet", "on"},
                                    {"momentum", "0.9"}};
    char folder[] = "/tmp/hvt-train-XXXXXX", log[64], trace[64], command[64];
    hvt_world *world = NULL;
    hvt_report report[3];
    hvt_options o;

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
    CHECK_OK(hvt_options_prepare(&o, world));
    CHECK_OK(hvt_train(&o, world, &report[2]));
    CHECK(report[2].steps == 12 && count_ends(log) == 2, "%lld updates, %d ends", (long long)report[2].steps,
          count_ends(log));
    hvt_options_release(&o);
    CHECK(!*o.resume && o.epochs == 10 && !o.from_files[1], "options that were released");
    hvt_world_close(&world);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
}

TEST(options_are_prepared_from_files_and_checked)
{
    static const struct {
        const char *config, *part;
        hvt_status code;
    } bad[] = {{"{\"zzz\": 1}", "config: unknown option zzz", HVT_E_ARG},
               {"{\"batch\": \"x\"}", "--batch", HVT_E_ARG},
               {"{", "config", HVT_E_ARG},
               {"{\"val-split\": 2}", "--val-split: expected a fraction", HVT_E_ARG},
               {"{\"resume\": \"/nowhere\"}", "/nowhere", HVT_E_IO}};
    char folder[] = "/tmp/hvt-train-XXXXXX", file[64], command[64];
    hvt_world *world = NULL;
    hvt_options o;

    CHECK(mkdtemp(folder), "no folder");
    snprintf(file, sizeof file, "%s/config", folder);
    CHECK_OK(hvt_world_open(NULL, &world));
    char *argv[] = {(char[]){"hvtrain"}, (char[]){"--config"}, file, (char[]){"--lr"}, (char[]){"0.3"}};

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        write_text(file, bad[i].config);
        CHECK_OK(hvt_options_parse(HVT_LEN(argv), argv, &o));
        CHECK(hvt_options_prepare(&o, world) == bad[i].code && strstr(hvt_last_error(), bad[i].part),
              "%s: %s", bad[i].config, hvt_last_error());
        CHECK(hvt_last_error_is_agreed(), "%s", hvt_last_error());
        hvt_options_release(&o);
    }
    write_text(file, "{\"lr\": 0.7, \"schedule\": \"cosine\", \"batch\": 7}");
    CHECK_OK(hvt_options_parse(HVT_LEN(argv), argv, &o));
    CHECK_OK(hvt_options_prepare(&o, world));
    CHECK(o.lr == 0.3 && !strcmp(o.schedule, "cosine") && o.batch == 7, "%g %s %d", o.lr, o.schedule,
          o.batch);
    CHECK_FAILS(hvt_options_prepare(&o, world), E_ARG, "hvt_options_release() comes first");
    hvt_options_release(&o);
    hvt_options_release(&o);
    CHECK(isnan(o.lr) && !strcmp(o.schedule, "constant"), "%g %s", o.lr, o.schedule);
    hvt_world_close(&world);
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK(system(command) == 0, "%s", command);
}

/* ---- data sets of the caller ---- */

static hvt_status get_of_set(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    return hvt_dataset_get(ctx, index, ret_pixels, ret_label);
}

/* A split of synth behind a callback. */
static void open_own(bool train, hvt_dataset **ret_synth, hvt_dataset **ret_own)
{
    hvt_source source = {.get = get_of_set};

    CHECK_OK(hvt_dataset_open(
        "synth", &(hvt_dataset_opts){.train = train, .image_size = 8, .samples = atoi(SAMPLES)}, ret_synth));
    source.info = *hvt_dataset_describe(*ret_synth);
    source.info.name = "mine";
    source.ctx = *ret_synth;
    CHECK_OK(hvt_dataset_from(&source, 0, ret_own));
}

TEST(data_sets_of_the_caller_are_trained_on_as_those_of_data)
{
    const char *const flags[][2] = {{"samples", SAMPLES}, {"size", "8"},    {"batch", BATCH},
                                    {"epochs", "1"},      {"threads", "1"}, {"quiet", "on"}};
    hvt_dataset *synth[2] = {NULL}, *own[2] = {NULL};
    hvt_world *world = NULL;
    hvt_report of_data, of_caller;
    hvt_options o;

    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(flags); i++)
        CHECK_OK(hvt_options_set(&o, flags[i][0], flags[i][1]));
    CHECK_OK(hvt_world_open(NULL, &world));
    CHECK_OK(hvt_train(&o, world, &of_data));
    for (int train = 0; train < 2; train++)
        open_own(train, &synth[train], &own[train]);
    hvt_options_default(&o);
    for (size_t i = 2; i < HVT_LEN(flags); i++) /* the size is the set's */
        CHECK_OK(hvt_options_set(&o, flags[i][0], flags[i][1]));
    o.train_set = own[1];
    CHECK_FAILS(hvt_train(&o, world, &of_caller), E_ARG, "without test_set, expected both");
    o.test_set = own[0];
    o.val_split = 0.5;
    CHECK_FAILS(hvt_train(&o, world, &of_caller), E_ARG, "--val-split do not apply");
    o.val_split = 0;
    for (int again = 0; again < 2; again++) { /* they stay open */
        CHECK_OK(hvt_train(&o, world, &of_caller));
        CHECK(of_caller.weights == of_data.weights && of_caller.test.sum == of_data.test.sum,
              "other weights %016llx, not %016llx", (unsigned long long)of_caller.weights,
              (unsigned long long)of_data.weights);
    }
    o.train_set = NULL;
    CHECK_FAILS(hvt_train(&o, world, &of_caller), E_ARG, "without train_set, expected both");
    for (int train = 0; train < 2; train++) {
        hvt_dataset_close(&own[train]);
        hvt_dataset_close(&synth[train]);
        CHECK(!own[train] && !synth[train], "still in use");
    }
    hvt_world_close(&world);
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
        hvt_options o = {.eval_freq = all[i].freq};
        run r = {.opts = &o,
                 .set.save_every.epochs = 1,
                 .at = {.epoch = (int)all[i].epoch, .step = (uint32_t)all[i].done},
                 .end = all[i].left,
                 .steps_per_epoch = 10,
                 .recent.speed = {.done_seconds = 1, .updates = 1},
                 .test.seconds = 100,
                 .save.seconds = 10000};
        double left = hvt__seconds_left(&r);
        CHECK(left == all[i].want, "case %zu: %g s, not %g", i, left, all[i].want);
    }
}

/* ---- workers ---- */

TEST(a_gpu_does_not_wait_for_images_to_be_drawn)
{
    static const struct {
        const char *set;
        int side, workers; /* asked for; -1: auto */
        bool on_gpu;
        int want;
    } all[] = {{"synth", 32, -1, false, 0}, {"synth", 224, -1, false, 0}, {"synth", 32, -1, true, 5},
               {"synth", 224, -1, true, 5}, {"synth", 224, 0, true, 0},   {"cifar10", 32, -1, true, 0},
               {"stl10", 96, -1, false, 0}};
    const hvt_cores cores = {.threads = 5, .share = 5};

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        hvt_dataset_info info = {.name = all[i].set,
                                 .count = 10,
                                 .classes = 10,
                                 .height = all[i].side,
                                 .width = all[i].side,
                                 .channels = 3,
                                 .type = HVT_U8};
        hvt_resolved set = {.batch = 4, .shards = 1, .on_gpu = all[i].on_gpu};
        hvt__loading loading;
        hvt_options o;

        hvt_options_default(&o);
        o.workers = all[i].workers;
        CHECK_OK(hvt__resolve_loading(&o, &set, &info, NULL, &cores, &loading));
        CHECK(loading.train.workers == all[i].want && loading.test.workers == all[i].want,
              "case %zu: %d workers in training, %d in evaluation, not %d", i, loading.train.workers,
              loading.test.workers, all[i].want);
    }
}

/* ---- images per second ---- */

TEST(time_counts_between_two_waits_for_the_device)
{
    hvt__speed s = {0};

    for (int i = 0; i < 10; i++) { /* a GPU is given ten updates of 64 images in 10 ms, and takes a second */
        hvt__speed_add(&s, 0.001, 64);
        CHECK(isnan(hvt__speed_img_s(&s)) && isnan(hvt__speed_update(&s)), "%d updates count, none is done",
              i + 1);
    }
    hvt__speed_waited(&s, 0.99);
    CHECK(fabs(hvt__speed_img_s(&s) - 640) < 1e-9, "%g img/s, not 640", hvt__speed_img_s(&s));
    CHECK(fabs(hvt__speed_update(&s) - 0.1) < 1e-12, "%g s an update, not 0.1", hvt__speed_update(&s));
    hvt__speed_add(&s, 0.001, 64); /* not done yet: neither its images nor its time count */
    CHECK(fabs(hvt__speed_img_s(&s) - 640) < 1e-9, "%g img/s, not 640", hvt__speed_img_s(&s));
    hvt__speed_waited(&s, 0.099);
    CHECK(fabs(hvt__speed_img_s(&s) - 640) < 1e-9, "%g img/s, not 640", hvt__speed_img_s(&s));
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strncmp(argv[1], "abort", 5))
        return abort_ranks(!strcmp(argv[1], "abort-all"));
    RUN(a_warning_where_binding_leaves_most_processors_unused);
    RUN(losses_have_one_format);
    RUN(advice_where_the_threads_of_a_rank_are_far_from_each_other);
    RUN(a_warning_where_ranks_of_a_host_cannot_see_each_others_gpus);
    RUN(a_warning_where_sums_in_16_bits_lose_what_is_added);
    RUN(clocks_are_compared_within_what_is_told);
    RUN(runs_in_one_process_are_independent);
    RUN(options_are_prepared_from_files_and_checked);
    RUN(data_sets_of_the_caller_are_trained_on_as_those_of_data);
    RUN(the_time_that_is_left_counts_evaluations_and_checkpoints);
    RUN(a_gpu_does_not_wait_for_images_to_be_drawn);
    RUN(time_counts_between_two_waits_for_the_device);
    return check_done();
}
