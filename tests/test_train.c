/*
 * train: what the command line says is what runs; a weights file that is not what it claims is refused by
 * name; files are whole or not there. (What the program does from outside is in test_program.py.)
 */
#include "train/timeline.h"
#include "base_impl.h"
#include "check.h"
#include "model_impl.h"
#include "optim_impl.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- options ---- */

static hvt_status parse(hvt_options *opts, const char *line)
{
    static char text[1024];
    char *argv[32] = {"hvtrain"};
    int argc = 1;

    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    return hvt_options_parse(argc, argv, opts);
}

static int option_index(const char *flag)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!strcmp(hvt__option_flag(i), flag))
            return i;
    CHECK(false, "no option %s", flag);
    return 0;
}

TEST(defaults_are_those_that_scripts_rely_on)
{
    static const struct {
        const char *flag, *value;
    } want[] = {{"--model", "resnet20"},  {"--data", "synth"},    {"--epochs", "10"},
                {"--batch", "128"},       {"--lr", "0.1"},        {"--momentum", "0.9"},
                {"--weight-decay", "0"},  {"--nesterov", "off"},  {"--schedule", "constant"},
                {"--warmup-epochs", "0"}, {"--lr-scale", "none"}, {"--augment", "none"},
                {"--print-freq", "10"},   {"--samples", "10000"}, {"--tail", "exact"},
                {"--shuffle", "on"},      {"--comm", "auto"},     {"--wire", "f32"},
                {"--bucket", "25MiB"},    {"--device", "cpu"}};
    hvt_options o;
    char text[HVT_OPTION_VALUE];

    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(want); i++) {
        hvt__option_text(&o, option_index(want[i].flag), text);
        CHECK(!strcmp(text, want[i].value), "%s is %s, not %s", want[i].flag, text, want[i].value);
    }
    CHECK_OK(hvt_options_check(&o, 1));
    CHECK_OK(hvt_options_check(&o, 4));
}

TEST(both_forms_underscores_and_the_last_of_repeated_flags)
{
    hvt_options o;

    CHECK_OK(parse(&o, "--batch 32 --weight_decay=1e-4 --batch=64 --image-size 64 --data_dir a=b"));
    CHECK(o.batch == 64, "%d", o.batch);
    CHECK(o.weight_decay == 1e-4, "%g", o.weight_decay);
    CHECK(o.image_size == 64, "%d", o.image_size);
    CHECK(!strcmp(o.data_dir, "a=b"), "'%s'", o.data_dir);
    CHECK(o.from[option_index("--batch")] == HVT_FROM_FLAG && !o.from[option_index("--lr")],
          "where values come from is not kept");
}

TEST(switches_take_a_value_or_none)
{
    hvt_options o;

    CHECK_OK(parse(&o, "--nesterov --shuffle off --evaluate=no"));
    CHECK(o.nesterov && !o.shuffle && !o.evaluate, "%d %d %d", o.nesterov, o.shuffle, o.evaluate);
    CHECK_OK(parse(&o, "--nesterov --batch 3 --no-shuffle"));
    CHECK(o.nesterov && o.batch == 3 && !o.shuffle, "%d %d %d", o.nesterov, o.batch, o.shuffle);
    CHECK_OK(parse(&o, "--no-decay norm,bias"));
    CHECK(!strcmp(o.no_decay, "norm,bias"), "'%s'", o.no_decay);
    CHECK_FAILS(parse(&o, "--no-nesterov=on"), E_ARG, "--no-nesterov");
    CHECK_FAILS(parse(&o, "--no-batch"), E_ARG, "--no-batch");
    CHECK_FAILS(parse(&o, "--nesterov maybe"), E_ARG, "'maybe'");
}

TEST(sizes_carry_units)
{
    static const struct {
        const char *text;
        size_t bytes;
    } good[] = {{"25MiB", 25u << 20},    {"64KiB", 65536}, {"1MB", 1000000},  {"1.5MiB", 3u << 19}, {"0", 0},
                {"all", HVT_BUCKET_ALL}, {"512B", 512},    {"1GiB", 1u << 30}};
    static const char *const bad[] = {"25",       "MiB", "-1MiB",  "25 MiB", "25Mib",   "nanMiB",
                                      "1e300GiB", "",    "allMiB", "0.5B",   "1e-10GiB"};
    hvt_options o;

    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(good); i++) {
        CHECK_OK(hvt_options_set(&o, "bucket", good[i].text));
        CHECK(o.bucket == good[i].bytes, "%s is %zu", good[i].text, o.bucket);
    }
    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(hvt_options_set(&o, "bucket", bad[i]), E_ARG, "--bucket: expected a size with its unit");
    CHECK_FAILS(hvt_options_set(&o, "first-bucket", "all"), E_ARG, "--first-bucket");
}

TEST(times_carry_units)
{
    static const struct {
        const char *text;
        double seconds;
    } good[] = {{"30s", 30}, {"500ms", 0.5}, {"5m", 300}, {"1.5h", 5400}, {"0", 0}, {"0s", 0}, {"1ms", 1e-3}};
    static const char *const bad[] = {"30",   "s",      "-1s", "30 s",  "30S",
                                      "nans", "1e300h", "",    "0.5ms", "30sec"};
    hvt_options o;
    char text[HVT_OPTION_VALUE];

    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(good); i++) {
        CHECK_OK(hvt_options_set(&o, "stall-warn", good[i].text));
        CHECK(fabs(o.stall_warn - good[i].seconds) < 1e-12, "%s is %g", good[i].text, o.stall_warn);
    }
    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(hvt_options_set(&o, "stall-warn", bad[i]), E_ARG,
                    "--stall-warn: expected a time with its unit");
    CHECK_OK(hvt_options_set(&o, "stall-warn", "2m"));
    hvt__option_text(&o, option_index("--stall-warn"), text);
    CHECK(!strcmp(text, "120s"), "two minutes are %s", text);
}

TEST(malformed_values_are_named_with_what_was_expected)
{
    static const struct {
        const char *line, *flag, *expected, *came;
    } bad[] = {
        {"--batch abc", "--batch", "a whole number from 1", "'abc'"},
        {"--batch 0", "--batch", "from 1", "'0'"},
        {"--batch 1.5", "--batch", "a whole number", "'1.5'"},
        {"--batch 99999999999", "--batch", "2147483647", "'99999999999'"},
        {"--batch=", "--batch", "a whole number", "''"},
        {"--batch", "--batch", "a whole number", "the end of the command line"},
        {"--batch --lr 1", "--batch", "a whole number", "--lr"},
        {"--threads 0", "--threads", "from 1", "'0'"},
        {"--lr -1", "--lr", "a number >= 0", "'-1'"},
        {"--lr nan", "--lr", "a number", "'nan'"},
        {"--lr inf", "--lr", "a number", "'inf'"},
        {"--lr 1e999", "--lr", "a number", "'1e999'"},
        {"--lr 0.1x", "--lr", "a number", "'0.1x'"},
        {"--wire f64", "--wire", "one of f32 f16 bf16 powersgd:R", "'f64'"},
        {"--wire powersgd", "--wire", "powersgd:R", "'powersgd'"},
        {"--wire powersgd:0", "--wire", "powersgd:R", "'powersgd:0'"},
        {"--wire powersgd:2x", "--wire", "powersgd:R", "'powersgd:2x'"},
        {"--wire powersgd:R", "--wire", "powersgd:R", "'powersgd:R'"},
        {"--comm gloo", "--comm", "auto self shm mpi", "'gloo'"},
        {"--model vgg", "--model", "resnet18", "'vgg'"},
        {"--mean 1,2", "--mean", "one number or three", "'1,2'"},
        {"--mean 1,2,3,4", "--mean", "one number or three", "'1,2,3,4'"},
        {"--mean 1,,3", "--mean", "one number or three", "'1,,3'"},
        {"--std 0", "--std", "each > 0", "'0'"},
        {"--tail exactly", "--tail", "exact pad drop", "'exactly'"},
        {"--limit 0", "--limit", "or 'all'", "'0'"},
    };
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_FAILS(parse(&o, bad[i].line), E_ARG, bad[i].flag);
        CHECK(strstr(hvt_last_error(), bad[i].expected), "%s: %s", bad[i].line, hvt_last_error());
        CHECK(strstr(hvt_last_error(), bad[i].came), "%s: %s", bad[i].line, hvt_last_error());
        CHECK(!strchr(hvt_last_error(), '\n'), "more than one line: %s", hvt_last_error());
    }
}

TEST(unknown_flags_name_the_nearest)
{
    static const struct {
        const char *line, *near;
    } bad[] = {{"--bath 3", "nearest is --batch"},
               {"--batch-size 3", "nearest is --batch"},
               {"--epoch=3", "nearest is --epochs"},
               {"--weigth-decay 1", "nearest is --weight-decay"},
               {"--print_frequency 1", "nearest is --print-freq"},
               {"--hlep", "nearest is --help"},
               {"--no-shufle", "nearest is --no-shuffle"},
               {"--qqqqqqqq", "see --help"},
               {"train", "'train' is not a flag"},
               {"--", "'--' is not a flag"},
               {"-b 3", "(see --help)"},
               {"-lr 0.1", "nearest is --lr"},
               {"-lr=0.1", "nearest is --lr"},
               {"---weight_decay=1", "nearest is --weight-decay"},
               {"-", "'-' is not a flag"},
               {"--help=html", "--help: expected nothing or =markdown, got 'html'"},
               {"--version=1", "--version takes no value, got '1'"}};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(parse(&o, bad[i].line), E_ARG, bad[i].near);
}

TEST(a_failed_parse_leaves_the_result_alone)
{
    hvt_options o;

    memset(&o, 0x5a, sizeof o);
    CHECK(parse(&o, "--batch 3 --lr x") == HVT_E_ARG, "accepted");
    CHECK(o.batch == 0x5a5a5a5a, "%d", o.batch);
}

TEST(every_value_reads_back_from_its_text)
{
    hvt_options o, again;
    char text[HVT_OPTION_COUNT][HVT_OPTION_VALUE], twice[HVT_OPTION_VALUE];

    CHECK_OK(parse(&o,
                   "--lr 0.1234567890123 --bucket 12345B --mean 0.4914,0.4822,0.4465 --std=0.2 --threads 3 "
                   "--augment crop:4,flip --weight-decay 5e-4 --seed 7 --nesterov --limit 17 --wire bf16"));
    hvt_options_default(&again);
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        hvt__option_text(&o, i, text[i]);
        CHECK_OK(hvt_options_set(&again, hvt__option_flag(i) + 2, text[i]));
        hvt__option_text(&again, i, twice);
        CHECK(!strcmp(text[i], twice), "%s: %s became %s", hvt__option_flag(i), text[i], twice);
    }
    CHECK(again.lr == o.lr && again.bucket == o.bucket && !memcmp(&again.mean, &o.mean, sizeof o.mean),
          "a number changed");
}

TEST(options_are_checked_together)
{
    static const struct {
        const char *line;
        int ranks;
        const char *part;
    } bad[] = {
        {"--shards 6", 4, "--shards 6 on 4 ranks"},
        {"--shards 1", 2, "--shards 1 on 2 ranks"},
        {"--global-batch 100", 3, "--global-batch 100 on 3 shards"},
        {"--global-batch 100 --batch 10", 1, "one of them"},
        {"--nesterov --momentum 0", 1, "--nesterov needs --momentum"},
        {"--nesterov --dampening 0.1", 1, "--dampening"},
        {"--augment flop", 1, "'flop'"},
        {"--augment crop:0", 1, "crop:PIXELS"},
        {"--augment crop:4x", 1, "crop:PIXELS"},
        {"--augment crop:128", 1, "--augment: expected none, flip, crop:PIXELS (1 to 127)"},
        {"--threads 257", 1, "--threads: expected 1 to 256"},
        {"--schedule warm", 1, "--schedule warm"},
        {"--schedule cosine --warmup-epochs 20", 1, "--warmup-epochs 20, --epochs 10: "},
        {"--warmup-from 1.5", 1, "--warmup-from: expected a number from 0 to 1, got 1.5"},
        {"--momentum 1e39", 1, "--momentum: expected a number from 0 to 3.40282e+38, got 1e+39"},
        {"--weight-decay 1e300", 1, "--weight-decay"},
        {"--lr 1e308 --lr-scale linear --shards 4", 1, "--lr 1e+308 x 4 shards"},
        {"--batch 2000000000 --shards 2", 1, "--batch 2000000000 x 2 shards = 4000000000"},
        {"--batch 2000000000 --evaluate --init a", 2, "--batch 2000000000 x 2 shards = 4000000000"},
        {"--evaluate --init a --shards 3", 2, "--shards 3 on 2 ranks"},
        {"--no-decay bn", 1, "--no-decay"},
        {"--evaluate", 1, "--evaluate needs weights"},
        {"--evaluate --init a --save b", 1, "--save b"},
        {"--init a --resume b", 1, "one of them"},
        {"--init-skip-head", 1, "needs --init"},
        {"--error-feedback", 2, "--error-feedback is for --wire f16 or bf16"},
        {"--wire bf16 --error-feedback --device cuda", 2, "for --device cpu or ref"},
        {"--wire powersgd:2 --error-feedback", 2, "powersgd:2 always has it"},
        {"--wire powersgd:2 --update sharded", 2, "needs --update replicated"},
        {"--wire powersgd:2 --device cuda", 2, "for --device cpu or ref"},
        {"--data cifar10", 1, "needs --data-dir"},
        {"--data-dir d", 1, "--data-dir d is for --data cifar10"},
        {"--data cifar10 --data-dir d --image-size 64", 1, "--image-size 64"},
        {"--data cifar10 --data-dir d --samples 5", 1, "--samples 5"},
        {"--stem cifar", 1, "--stem cifar"},
        {"--model resnet50 --shortcut B", 1, "--shortcut B"},
        {"--device ref --isa avx2", 1, "--isa avx2"},
        {"--stall-abort 10s", 2, "--stall-abort 10s comes before --stall-warn 30s"},
        {"--device gpu", 1, "--device: expected ref, cpu, cuda or cuda:N, got 'gpu'"},
        {"--device cud", 1, "got 'cud'"},
        {"--device cpu:0", 1, "got 'cpu:0'"},
        {"--device cuda:", 1, "got 'cuda:'"},
        {"--device cuda:1x", 1, "got 'cuda:1x'"},
        {"--device cuda:-1", 1, "got 'cuda:-1'"},
        {"--device cuda:1", 2, "--device cuda:1 names one GPU for 2 ranks"},
        {"--share-gpu", 1, "--share-gpu is for --device cuda, not cpu"},
        {"--tf32 --device ref", 1, "--tf32 is for --device cuda, not ref"},
        {"--device cuda --isa avx2", 1, "--isa avx2 is for --device cpu, not cuda"},
    };
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_OK(parse(&o, bad[i].line));
        CHECK_FAILS(hvt_options_check(&o, bad[i].ranks), E_ARG, bad[i].part);
    }
}

TEST(options_settle_into_one_meaning)
{
    hvt_options o;
    hvt_settled t;

    CHECK_OK(parse(&o,
                   "--global-batch 96 --shards 8 --lr 0.2 --lr-scale linear --augment crop:4,flip --no-decay "
                   "norm,bias --tail pad --wire f16"));
    CHECK_OK(hvt__settle(&o, 4, &t));
    CHECK(t.shards == 8 && t.local_shards == 2 && t.batch == 12, "%d %d %d", t.shards, t.local_shards,
          t.batch);
    CHECK(t.lr == 0.2 * 8, "%g: the rule scales by shards", t.lr);
    CHECK(t.crop == 4 && t.flip && t.no_decay_norm && t.no_decay_bias, "%d %d", t.crop, t.flip);
    CHECK(t.tail == HVT_TAIL_PAD && t.wire == HVT_F16 && !t.powersgd, "%d %d %d", t.tail, t.wire, t.powersgd);
    CHECK(t.first_bucket == 1 << 20, "%zu", t.first_bucket);
    CHECK_OK(parse(&o, "--bucket all"));
    CHECK_OK(hvt__settle(&o, 1, &t));
    CHECK(t.first_bucket == 0, "one bucket for all has no small first one");
    CHECK(!t.on_gpu && !strcmp(t.device, "cpu"), "%s", t.device);
    CHECK_OK(parse(&o, "--device cuda:3"));
    CHECK_OK(hvt__settle(&o, 1, &t));
    CHECK(t.on_gpu && !strcmp(t.device, "cuda") && t.gpu == 3, "%s %d", t.device, t.gpu);
    CHECK_OK(parse(&o, "--device cuda"));
    CHECK_OK(hvt__settle(&o, 4, &t));
    CHECK(t.on_gpu && t.gpu == -1, "%d: the local rank's", t.gpu);
}

TEST(what_a_checkpoint_fills_in_is_not_refused_as_if_a_flag)
{
    hvt_options o;
    hvt_settled t;

    CHECK_OK(parse(&o, "--evaluate --resume a"));
    o.shards = 4;
    CHECK_OK(hvt__settle(&o, 3, &t));
    CHECK(t.shards == 3 && t.local_shards == 1, "%d %d", t.shards, t.local_shards);
    o.evaluate = false;
    CHECK_FAILS(hvt__settle(&o, 3, &t), E_ARG, "--shards 4 on 3 ranks");
    CHECK_OK(parse(&o, "--resume a --data cifar10 --data-dir d"));
    o.image_size = 64; /* of synth, before */
    CHECK_OK(hvt__settle(&o, 1, &t));
}

TEST(help_names_every_flag_and_fits_a_terminal)
{
    for (int markdown = 0; markdown < 2; markdown++) {
        char *help = hvt_options_help(markdown);
        size_t widest = 0;
        for (int i = 0; i < HVT_OPTION_COUNT; i++)
            CHECK(strstr(help, hvt__option_flag(i)), "%s is missing", hvt__option_flag(i));
        for (const char *p = help; !markdown && *p; p += strcspn(p, "\n") + 1)
            widest = strcspn(p, "\n") > widest ? strcspn(p, "\n") : widest;
        CHECK(widest <= 100, "a line has %zu columns", widest);
        free(help);
    }
}

/* ---- safetensors ---- */

static char folder[] = "/tmp/hvt-test-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[4][300];
    static int turn;

    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void clean_folder(void)
{
    static const char *const names[] = {"bad", "odd", "written", "kept", "half"};

    for (size_t i = 0; i < HVT_LEN(names); i++)
        unlink(in_folder(names[i]));
    CHECK(rmdir(folder) == 0, "something else was left in %s", folder);
}

static void put_file(const char *path, const char *header, size_t data_bytes)
{
    FILE *f = fopen(path, "wb");
    uint64_t n = strlen(header);

    fwrite(&n, 8, 1, f);
    fwrite(header, 1, n, f);
    for (size_t i = 0; i < data_bytes; i++)
        fputc((int)i, f);
    fclose(f);
}

TEST(files_that_are_not_what_they_claim_are_refused)
{
    static const struct {
        const char *header;
        size_t data;
        const char *part;
    } bad[] = {
        {"[]", 0, "does not begin with '{'"},
        {"{", 0, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}x", 4, "header"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         8, "duplicate"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", 8, "begins at byte 4"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[2,6]}}",
         6, "tensor b begins at byte 2"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 8,
         "the tensors have 4 bytes, the file has 8"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 3, "bytes 0 to 4 of 3"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", 4,
         "2 elements of F32, but 4 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", 4, "dimension 0"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}", 0,
         "64 bits"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}", 0, "elements"},
        {"{\"a\":{\"dtype\":\"Q7\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unknown dtype 'Q7'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, "two data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,1e1]}}", 4, "two data_offsets"},
        {"{\"a\":7}", 0, "tensor a needs dtype"},
        {"{\"__metadata__\":{\"x\":1}}", 0, "metadata x is no text"},
        {"{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "unable to decode byte"},
    };
    const char *path = in_folder("bad");
    hvt_st *st;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        put_file(path, bad[i].header, bad[i].data);
        CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, bad[i].part);
        CHECK(strstr(hvt_last_error(), path), "the file is not named: %s", hvt_last_error());
    }
    CHECK_FAILS(hvt__st_open(in_folder("none"), &st), E_IO, "none: No such file");
    CHECK_FAILS(hvt__st_open(folder, &st), E_IO, "not a file");
    truncate(path, 5);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "5 bytes are too few");
    put_file(path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4);
    truncate(path, 20);
    CHECK_FAILS(hvt__st_open(path, &st), E_FORMAT, "a header of");
}

TEST(empty_scalar_and_padded_are_allowed)
{
    const char *path = in_folder("odd");
    hvt_st *st = NULL;
    float x[2];

    put_file(path,
             "{\"z\":{\"dtype\":\"F32\",\"shape\":[0,3],\"data_offsets\":[0,0]},"
             "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}    ",
             4);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(hvt__st_count(st) == 2 && hvt__st_find(st, "z")->count == 0 && hvt__st_find(st, "s")->count == 1,
          "%d", hvt__st_count(st));
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "s"), x));
    hvt__st_close(&st);
    put_file(path, "{}", 0);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(hvt__st_count(st) == 0, "%d", hvt__st_count(st));
    hvt__st_close(&st);
}

static hvt_status count_up(void *ctx, const hvt_st_item *item, void *data)
{
    (void)ctx;
    if (item->type == HVT_ST_I64)
        *(int64_t *)data = 7000000000;
    for (int64_t i = 0; item->type == HVT_ST_F32 && i < item->dim[0]; i++)
        ((float *)data)[i] = (float)item->id + (float)i / 8;
    return item->id == 99 ? HVT_FAIL(E_IO, "no more") : HVT_OK;
}

TEST(what_is_written_is_read_back)
{
    hvt_st_item items[] = {{.name = "b", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1},
                           {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {300000}, .id = 2},
                           {.name = "n", .type = HVT_ST_I64, .id = 3}};
    const hvt_st_pair meta[] = {{"epoch", "3"}, {"path", "not \xff utf-8, \"quoted\"\n"}};
    static float x[300000];
    const char *path = in_folder("written");
    unsigned char head[8];
    int64_t n = 0;
    hvt_st *st = NULL;
    FILE *f;

    CHECK_OK(hvt__st_write(path, items, 3, meta, 2, count_up, NULL));
    CHECK(access(in_folder("written.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    CHECK(!strcmp(hvt__st_meta(st, "format"), "pt") && !strcmp(hvt__st_meta(st, "epoch"), "3"), "metadata");
    CHECK(!strcmp(hvt__st_meta(st, "path"), "not ? utf-8, \"quoted\"\n"), "'%s'", hvt__st_meta(st, "path"));
    CHECK(hvt__st_find(st, "n")->first == 0 && hvt__st_find(st, "a")->first == 8,
          "counters first, then by name");
    CHECK_OK(hvt__st_verify(st));
    CHECK_OK(hvt__st_i64(st, hvt__st_find(st, "n"), &n));
    CHECK(n == 7000000000, "%lld", (long long)n);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[299999] == 2 + 299999.0f / 8, "%g", (double)x[299999]);
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "b"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    CHECK_FAILS(hvt__st_f32(st, hvt__st_find(st, "n"), x), E_FORMAT, "tensor n is I64");
    hvt__st_close(&st);

    f = fopen(path, "r+b");
    CHECK(fread(head, 1, 8, f) == 8 && head[0] % 8 == 0, "data does not begin at a multiple of 8");
    fseek(f, -3, SEEK_END); /* one bit of the last tensor */
    n = fgetc(f);
    fseek(f, -3, SEEK_END);
    fputc((int)n ^ 4, f);
    fclose(f);
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_FAILS(hvt__st_verify(st), E_FORMAT, "damaged");
    hvt__st_close(&st);
}

TEST(a_failed_write_leaves_the_file_of_before)
{
    hvt_st_item good = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 1};
    hvt_st_item bad = {.name = "a", .type = HVT_ST_F32, .ndim = 1, .dim = {5}, .id = 99};
    const char *path = in_folder("kept");
    hvt_st *st = NULL;
    float x[5];

    CHECK_OK(hvt__st_write(path, &good, 1, NULL, 0, count_up, NULL));
    CHECK_FAILS(hvt__st_write(path, &bad, 1, NULL, 0, count_up, NULL), E_IO, "no more");
    CHECK(access(in_folder("kept.tmp"), F_OK), "the temporary file is still there");
    CHECK_OK(hvt__st_open(path, &st));
    CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "a"), x));
    CHECK(x[4] == 1.5f, "%g", (double)x[4]);
    hvt__st_close(&st);
    CHECK_FAILS(hvt__st_write(in_folder("no/such"), &good, 1, NULL, 0, count_up, NULL), E_IO, "no/such");
}

/* Every f16, against the definition: sign, 5 bits of exponent, 10 of fraction. */
TEST(halves_become_the_same_number)
{
    const char *path = in_folder("half");
    static uint16_t bits[65536];
    static float x[65536];
    hvt_st *st = NULL;

    for (int pass = 0; pass < 2; pass++) {
        char header[100];
        uint64_t n;
        FILE *f = fopen(path, "wb");
        snprintf(header, sizeof header,
                 "{\"h\":{\"dtype\":\"%s\",\"shape\":[65536],\"data_offsets\":[0,131072]}}",
                 pass ? "BF16" : "F16");
        n = strlen(header);
        for (int i = 0; i < 65536; i++)
            bits[i] = (uint16_t)i;
        fwrite(&n, 8, 1, f);
        fwrite(header, 1, n, f);
        fwrite(bits, 2, 65536, f);
        fclose(f);
        CHECK_OK(hvt__st_open(path, &st));
        CHECK_OK(hvt__st_f32(st, hvt__st_find(st, "h"), x));
        hvt__st_close(&st);
        for (int i = 0; i < 65536; i++) {
            int width = pass ? 7 : 10, bias = pass ? 127 : 15, most = pass ? 255 : 31;
            int e = i >> width & most, m = i & ((1 << width) - 1);
            double v = e == most ? (m ? NAN : INFINITY)
                       : e       ? ldexp(1 + ldexp(m, -width), e - bias)
                                 : ldexp(m, 1 - bias - width);
            v = i & 0x8000 ? -v : v;
            CHECK(v != v ? x[i] != x[i] : (double)x[i] == v, "%s %04x is %g, not %g", pass ? "BF16" : "F16",
                  i, (double)x[i], v);
        }
    }
}

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

/* ---- checkpoints ---- */

/* Folders are synced after each rename; the n-th such moment is when a signal comes. 0: never. */
static int stop_at_sync;

int fsync(int fd)
{
    struct stat info;

    if (fstat(fd, &info) == 0 && S_ISDIR(info.st_mode) && stop_at_sync && --stop_at_sync == 0)
        raise(SIGTERM);
    return (int)syscall(SYS_fsync, fd);
}

typedef struct trained {
    hvt_world *world;
    hvt_device *dev;
    hvt_model *m;
    hvt_optim *o;
} trained;

/* A model with a momentum buffer, as after a step. */
static void open_trained(trained *t)
{
    const hvt_device_opts device = {.threads = 1};
    const hvt_zoo_opts zoo = {0};
    const hvt_optim_opts sgd = {.momentum = 0.9f};

    CHECK_OK(hvt_world_open(NULL, &t->world));
    CHECK_OK(hvt_device_open("ref", &device, &t->dev));
    CHECK_OK(hvt_model_create(t->dev, &t->m));
    CHECK_OK(hvt_model_plan(t->m, 1, hvt_zoo(t->m, "resnet20", hvt_input(t->m, 8, 8, 3), 10, &zoo)));
    CHECK_OK(hvt_model_init(t->m, 1));
    CHECK_OK(hvt_optim_create(t->m, &sgd, &t->o));
    for (int i = 0; i < t->m->nparam_tensors; i++)
        memset(t->o->v + t->m->param[i].offset, 0, t->m->param[i].count * sizeof *t->o->v);
    CHECK_OK(hvt__optim_set_fresh(t->o, false));
}

static void close_trained(trained *t)
{
    hvt_optim_free(&t->o);
    hvt_model_free(&t->m);
    hvt_device_close(&t->dev);
    hvt_world_close(&t->world);
}

static void remove_checkpoints(void)
{
    DIR *d = opendir(folder);
    struct dirent *e;

    while (d && (e = readdir(d)))
        if (!strncmp(e->d_name, "last", 4))
            unlink(in_folder(e->d_name));
    closedir(d);
}

/* The first sync is the momentum's, the second that of the weights that name it. */
TEST(a_signal_while_a_folder_is_synced_leaves_a_whole_checkpoint)
{
    for (int at = 1; at <= 2; at++) {
        hvt_progress p = {.epoch = 1, .steps = 1}, found = {0};
        trained t = {0};
        int status;
        pid_t child;

        fflush(NULL);
        child = fork(); /* all of it in the child: the handlers are a process's */
        if (child == 0) {
            open_trained(&t);
            CHECK_OK(hvt__interrupt_open(t.world));
            CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
            p.steps = 2;
            stop_at_sync = at;
            hvt_checkpoint_save(folder, "last", t.m, t.o, &p);
            _exit(1);
        }
        CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 130,
              "status %x", status);
        open_trained(&t);
        CHECK_OK(hvt_checkpoint_load(folder, t.m, t.o, &found));
        CHECK(found.steps == at, "%lld updates after the signal at sync %d", (long long)found.steps, at);
        free(found.options);
        CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p)); /* and what is left over goes */
        close_trained(&t);
        remove_checkpoints();
    }
}

TEST(numbers_that_are_not_finite_replace_no_checkpoint)
{
    hvt_progress p = {.epoch = 1, .steps = 1}, found = {0};
    trained t = {0};

    open_trained(&t);
    CHECK_OK(hvt_checkpoint_save(folder, "last", t.m, t.o, &p));
    for (int where = 0; where < 3; where++) { /* ref's memory is the host's */
        float *arena = where == 0 ? t.m->params : t.o->v;
        float *x = where == 1 ? t.m->stats : arena + t.m->param[0].offset, was = x[0];
        p.steps = 2;
        x[0] = where == 1 ? -INFINITY : NAN;
        CHECK_FAILS(hvt_checkpoint_save(folder, "last", t.m, t.o, &p), E_DIVERGED,
                    where == 0   ? ".bias holds nan"
                    : where == 1 ? "running_mean holds -inf"
                                 : "optim.momentum_buffer.");
        x[0] = was;
        CHECK_OK(hvt_checkpoint_load(folder, t.m, t.o, &found));
        CHECK(found.steps == 1, "%lld", (long long)found.steps);
        free(found.options);
    }
    close_trained(&t);
    remove_checkpoints();
}

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
    if (hvt__interrupt_last_word())
        fprintf(stderr, "rank %d fails\n", hvt_world_rank(world));
    hvt_world_abort(world, 1);
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

int main(int argc, char **argv)
{
    if (argc > 1 && !strncmp(argv[1], "abort", 5))
        return abort_ranks(!strcmp(argv[1], "abort-all"));
    if (!mkdtemp(folder)) {
        perror(folder);
        return 1;
    }
    RUN(defaults_are_those_that_scripts_rely_on);
    RUN(both_forms_underscores_and_the_last_of_repeated_flags);
    RUN(switches_take_a_value_or_none);
    RUN(sizes_carry_units);
    RUN(times_carry_units);
    RUN(malformed_values_are_named_with_what_was_expected);
    RUN(unknown_flags_name_the_nearest);
    RUN(a_failed_parse_leaves_the_result_alone);
    RUN(every_value_reads_back_from_its_text);
    RUN(options_are_checked_together);
    RUN(options_settle_into_one_meaning);
    RUN(what_a_checkpoint_fills_in_is_not_refused_as_if_a_flag);
    RUN(help_names_every_flag_and_fits_a_terminal);
    RUN(files_that_are_not_what_they_claim_are_refused);
    RUN(empty_scalar_and_padded_are_allowed);
    RUN(what_is_written_is_read_back);
    RUN(a_failed_write_leaves_the_file_of_before);
    RUN(halves_become_the_same_number);
    RUN(a_warning_where_binding_leaves_most_processors_unused);
    RUN(a_warning_where_ranks_of_a_host_cannot_see_each_others_gpus);
    RUN(a_signal_while_a_folder_is_synced_leaves_a_whole_checkpoint);
    RUN(numbers_that_are_not_finite_replace_no_checkpoint);
    RUN(clocks_are_compared_within_what_is_told);
    clean_folder();
    return check_done();
}
