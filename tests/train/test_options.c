/*
 * options: the run has the options of the command line, and an invalid one is named. (test_program.py tests
 * the program from outside.)
 */
#include "parse_line.h"

#include <math.h>

static int option_index(const char *flag)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!strcmp(hvt__flag_of(&hvt__option_table[i]).text, flag))
            return i;
    CHECK(false, "no option %s", flag);
    return 0;
}

TEST(defaults_are_those_that_scripts_rely_on)
{
    static const struct {
        const char *flag, *value;
    } want[] = {
        {"--model", "auto"},        {"--data", "synth"},      {"--epochs", "10"},       {"--batch", "auto"},
        {"--lr", "auto"},           {"--momentum", "0.9"},    {"--weight-decay", "0"},  {"--nesterov", "off"},
        {"--schedule", "constant"}, {"--warmup-epochs", "0"}, {"--lr-scale", "none"},   {"--augment", "none"},
        {"--print-freq", "10"},     {"--samples", "10000"},   {"--last-batch", "keep"}, {"--shuffle", "on"},
        {"--comm", "auto"},         {"--compression", "f32"}, {"--bucket", "25MiB"},    {"--device", "cpu"}};
    hvt_options o;
    char text[HVT_OPTION_VALUE];

    hvt_options_default(&o);
    for (size_t i = 0; i < HVT_LEN(want); i++) {
        hvt__option_text(&o, option_index(want[i].flag), text);
        CHECK(!strcmp(text, want[i].value), "%s is %s, not %s", want[i].flag, text, want[i].value);
    }
    CHECK_OK(hvt__options_check(&o, 1));
    CHECK_OK(hvt__options_check(&o, 4));
}

TEST(both_forms_underscores_and_the_last_of_repeated_flags)
{
    hvt_options o;

    CHECK_OK(parse(&o, "--batch 32 --weight_decay=1e-4 --batch=64 --size 64 --data_dir a=b"));
    CHECK(o.batch == 64, "%d", o.batch);
    CHECK(o.weight_decay == 1e-4, "%g", o.weight_decay);
    CHECK(o.size == 64, "%d", o.size);
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
        {"--compression f64", "--compression", "one of f32 f16 bf16 powersgd:R", "'f64'"},
        {"--compression powersgd", "--compression", "powersgd:R", "'powersgd'"},
        {"--compression powersgd:0", "--compression", "powersgd:R", "'powersgd:0'"},
        {"--compression powersgd:2x", "--compression", "powersgd:R", "'powersgd:2x'"},
        {"--compression powersgd:R", "--compression", "powersgd:R", "'powersgd:R'"},
        {"--comm gloo", "--comm", "auto self shm mpi", "'gloo'"},
        {"--model vgg", "--model", "resnet18", "'vgg'"},
        {"--mean 1,2", "--mean", "one number or three", "'1,2'"},
        {"--mean 1,2,3,4", "--mean", "one number or three", "'1,2,3,4'"},
        {"--mean 1,,3", "--mean", "one number or three", "'1,,3'"},
        {"--std 0", "--std", "each > 0", "'0'"},
        {"--last-batch keeping", "--last-batch", "keep pad drop", "'keeping'"},
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

TEST(a_run_ends_by_what_was_given_and_by_both_whichever_comes_first)
{
    static const struct {
        const char *line;
        bool by_steps, by_epochs;
    } all[] = {{"--lr 0.1", false, true},
               {"--epochs 3", false, true},
               {"--steps 3", true, false},
               {"--steps 3 --epochs 3", true, true},
               {"--steps none --epochs 3", false, true}};
    hvt_options o;
    hvt_resolved t;

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        CHECK_OK(parse(&o, all[i].line));
        CHECK_OK(hvt__resolve(&o, 1, &t));
        CHECK(t.by_steps == all[i].by_steps && t.by_epochs == all[i].by_epochs, "%s: %d %d", all[i].line,
              t.by_steps, t.by_epochs);
    }
    CHECK_OK(parse(&o, "--steps 500"));
    o.from[option_index("--epochs")] = HVT_FROM_CHECKPOINT; /* a run of 10 epochs goes on for 500 updates */
    CHECK_OK(hvt__resolve(&o, 1, &t));
    CHECK(t.by_steps && !t.by_epochs, "the checkpoint's epochs count");
    o.from[option_index("--epochs")] = HVT_FROM_CONFIG;
    CHECK_OK(hvt__resolve(&o, 1, &t));
    CHECK(t.by_steps && t.by_epochs, "the file's epochs do not count");
}

TEST(pack_takes_a_folder_in_front)
{
    static const struct {
        const char *line, *part;
    } bad[] = {{"pack", "pack needs a folder of pictures"},
               {"pack pics", "pack needs --output"},
               {"pack pics --output x.tar", "--output: expected DIR/train-%06d.tar or"},
               {"pack pics --output t/train-%06d.tar --save d", "pack neither trains"},
               {"--output t/train-%06d.tar", "--output is for hvtrain pack"},
               {"--resize 256", "--resize is for hvtrain pack"},
               {"--raw", "--raw is for hvtrain pack"},
               {"--shard-images 7", "--shard-images is for hvtrain pack"}};
    hvt_options o;

    CHECK_OK(parse(&o, "pack pics --output t/val-%03d.tar --resize 256 --raw"));
    CHECK(o.ask == HVT_ASK_PACK && !strcmp(o.data, "folder") && !strcmp(o.data_dir, "pics") && o.raw &&
              o.resize == 256 && o.shard_images == 5000,
          "%s %s %d", o.data, o.data_dir, o.resize);
    CHECK_OK(hvt__options_check(&o, 1));
    CHECK_OK(hvt__options_check(&o, 5));
    CHECK_OK(parse(&o, "pack --data cifar10 --data-dir d --output t/train-%03d.tar"));
    CHECK(!strcmp(o.data, "cifar10") && !strcmp(o.data_dir, "d"), "%s %s", o.data, o.data_dir);
    CHECK_OK(hvt__options_check(&o, 1));
    CHECK_FAILS(parse(&o, "--batch 3 pack pics"), E_ARG, "pack comes before");
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_OK(parse(&o, bad[i].line));
        CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, bad[i].part);
    }
}

TEST(inspect_takes_files_and_check_nothing_in_front)
{
    hvt_options o;

    CHECK_OK(parse(&o, "inspect a.pt2 b --batch 3"));
    CHECK(o.ask == HVT_ASK_INSPECT && o.nfiles == 2 && !strcmp(o.files[0], "a.pt2") &&
              !strcmp(o.files[1], "b") && o.batch == 3,
          "%d files, batch %d", o.nfiles, o.batch);
    CHECK_OK(parse(&o, "inspect --model mlp"));
    CHECK(o.ask == HVT_ASK_INSPECT && !o.nfiles, "%d files", o.nfiles);
    CHECK_OK(parse(&o, "check --batch 3"));
    CHECK(o.ask == HVT_ASK_CHECK && o.batch == 3, "batch %d", o.batch);
    CHECK_FAILS(parse(&o, "check DIR"), E_ARG, "'DIR' is not an option");
    CHECK_FAILS(parse(&o, "--batch 3 inspect a"), E_ARG, "inspect comes before");
}

TEST(tune_takes_a_file_and_seconds_in_front)
{
    hvt_options o;

    CHECK_OK(parse(&o, "tune f.json 20 --batch 3"));
    CHECK(o.ask == HVT_ASK_TUNE && !strcmp(o.tune_file, "f.json") && o.tune_seconds == 20 && o.batch == 3,
          "%s %g %d", o.tune_file, o.tune_seconds, o.batch);
    CHECK_OK(parse(&o, "tune f.json --batch 3"));
    CHECK(!strcmp(o.tune_file, "f.json") && o.tune_seconds == 60, "%s %g", o.tune_file, o.tune_seconds);
    CHECK_OK(hvt__options_check(&o, 2));
    CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, "mpirun -np N hvtrain tune FILE");
    CHECK_OK(parse(&o, "tune --batch 3"));
    CHECK_FAILS(hvt__options_check(&o, 2), E_ARG, "tune needs a FILE");
    CHECK_FAILS(parse(&o, "tune f.json 0.5"), E_ARG,
                "expected a number of seconds >= 1 or an option, got '0.5'");
    CHECK_FAILS(parse(&o, "tune f.json fast"), E_ARG, "got 'fast'");
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

    CHECK_OK(parse(
        &o, "--lr 0.1234567890123 --bucket 12345B --mean 0.4914,0.4822,0.4465 --std=0.2 --threads 3 "
            "--augment crop:4,flip --weight-decay 5e-4 --seed 7 --nesterov --limit 17 --compression bf16"));
    hvt_options_default(&again);
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        hvt__option_text(&o, i, text[i]);
        CHECK_OK(hvt_options_set(&again, hvt__flag_of(&hvt__option_table[i]).text + 2, text[i]));
        hvt__option_text(&again, i, twice);
        CHECK(!strcmp(text[i], twice), "%s: %s became %s", hvt__flag_of(&hvt__option_table[i]).text, text[i],
              twice);
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
        {"--balance 2,2 --shards 5", 2, "--balance 2,2 has 4 shards on 2 ranks; expected 5"},
        {"--shards 1", 2, "--shards 1 on 2 ranks"},
        {"--global-batch 100", 3, "--global-batch 100 on 3 shards"},
        {"--global-batch 100 --batch 10", 1, "one of them"},
        {"--nesterov --momentum 0", 1, "--nesterov needs --momentum"},
        {"--augment flop", 1, "'flop'"},
        {"--augment Trivial", 1, "did you mean trivial?"},
        {"--augment rrc,flip,trivialaugment", 1, "did you mean trivial?"},
        {"--augment rand", 1, "did you mean rand:2,9?"},
        {"--augment RandomCrop,flip", 1, "did you mean crop:4?"},
        {"--augment crop:0", 1, "crop:PIXELS"},
        {"--augment crop:4x", 1, "crop:PIXELS"},
        {"--augment crop:128", 1,
         "--augment: expected none, flip, altflip, crop:PIXELS[:reflect] (1 to 127)"},
        {"--augment rrc:0-1", 1, "0 < LEAST <= MOST <= 1"},
        {"--augment rrc:0.5-0.25", 1, "0 < LEAST <= MOST <= 1"},
        {"--augment rrc:0.25", 1, "rrc:LEAST-MOST"},
        {"--augment rrcx", 1, "rrc:LEAST-MOST"},
        {"--augment rrc,crop:4", 1, "expected one"},
        {"--augment flip,altflip", 1, "expected one of flip and altflip"},
        {"--schedule plato", 1, "or plateau[:PATIENCE[,FACTOR]]"},
        {"--augment rand:2", 1, "rand:N,M"},
        {"--augment rand:2,31", 1, "magnitude 0 to 30"},
        {"--augment rand:17,9", 1, "1 to 16 operations"},
        {"--augment color:0.4,0.4,0.4", 1, "color:B,C,S,H"},
        {"--augment color:0.4,0.4,0.4,0.6", 1, "H at most 0.5"},
        {"--augment trivial,rand:2,9", 1, "expected one of trivial, rand:N,M and auto"},
        {"--augment auto,auto", 1, "expected one of trivial"},
        {"--erase 25", 1, "--erase: expected a probability from 0 to 1, got 25 (25 % is 0.25)"},
        {"--mixup 1e9", 1, "--mixup and --cutmix: expected 0 to 1000"},
        {"--mixup 0.2 --loss mse --data npy --data-dir d", 1, "--loss ce or bce; --loss mse has none"},
        {"--target image", 1, "--target image is for --loss mse or mae, not ce"},
        {"--loss mae --target image --device cuda", 1, "--target image is for --device cpu or ref, not cuda"},
        {"--repeat-augment 300", 1, "--repeat-augment: expected 1 to 255"},
        {"--size 64 --eval-size 63", 1, "expected 64 or more, or 0"},
        {"--val-split 10", 1, "below 1, got 10 (10 % is 0.1)"},
        {"--label-smoothing 5", 1, "from 0 to 1, got 5 (5 % is 0.05)"},
        {"--warmup-from 25", 1, "from 0 to 1, got 25 (25 % is 0.25)"},
        {"--threads 257", 1, "--threads: expected 1 to 256"},
        {"--schedule warm", 1, "--schedule 'warm'"},
        {"--schedule OneCycleLR", 1, "did you mean onecycle?"},
        {"--schedule CosineAnnealingLR", 1, "did you mean cosine?"},
        {"--schedule ExponentialLR", 1, "step:1,GAMMA"},
        {"--device cuda:0,cuda:1", 1, "are --devices cuda:0,cuda:1"},
        {"--recipe torchvision-v1", 1, "--recipe torchvision-v1 needs --data folder --data-dir DIR"},
        {"--recipe finetune", 1,
         "needs --init FILE, the trained weights to start with (or --model FILE.pt2); and --data"},
        {"--recipe finetune --data synth", 1, "needs --init FILE"},
        {"--balance 3,5", 1, "and there is one rank"},
        {"--balance 3,5 --split cpu:0,cpu:1", 1, "--split-at NAME,... says with which layer"},
        {"--split cpu:0,cpu:1 --batch 6 --micro-batches 4", 1, "expected a multiple of 4"},
        {"--schedule step", 1, "expected step:SIZE[,GAMMA], in epochs"},
        {"--schedule multistep", 1, "expected multistep:E1,E2,...[@GAMMA], in epochs"},
        {"--save d --save-every 5", 1, "got '5'; write its unit, 5epochs or 5steps"},
        {"--max-time 30", 1, "got '30'; write its unit, 30m or 30s"},
        {"--schedule cosine --warmup-epochs 20", 1, "--warmup-epochs 20, --epochs 10: "},
        {"--warmup-from 1.5", 1, "--warmup-from: expected a number from 0 to 1, got 1.5"},
        {"--momentum 1e39", 1, "--momentum: expected a number from 0 to 3.40282e+38, got 1e+39"},
        {"--weight-decay 1e300", 1, "--weight-decay"},
        {"--lr 1e308 --lr-scale linear --shards 4", 1, "--lr 1e+308 x 4 shards"},
        {"--batch 2000000000 --shards 2", 1, "--batch 2000000000 x 2 shards = 4000000000"},
        {"--batch 2000000000 --evaluate --init a", 2, "--batch 2000000000 x 2 shards = 4000000000"},
        {"--no-decay bn", 1, "--no-decay"},
        {"--optimizer adam --momentum 0.5", 1,
         "--momentum is for --optimizer sgd, lars or rmsprop, not adam"},
        {"--optimizer adamw --nesterov", 1, "--nesterov is for --optimizer sgd or lars, not adamw"},
        {"--betas 0.5,0.9", 1, "--betas is for --optimizer adam, adamw or lamb, not sgd"},
        {"--eps 1e-3", 1, "--eps is for --optimizer adam, adamw, lamb or rmsprop, not sgd"},
        {"--optimizer lamb --alpha 0.9", 1, "--alpha is for --optimizer rmsprop, not lamb"},
        {"--optimizer rmsprop --alpha 1", 1, "--alpha: expected a number from 0 to below 1, got 1"},
        {"--optimizer lars --device cuda", 1, "--optimizer lars is for --device cpu or ref, not cuda"},
        {"--optimizer adam --betas 0.9", 1, "--betas: expected two numbers"},
        {"--optimizer adam --betas 0.9,1", 1, "--betas: expected two numbers"},
        {"--optimizer adam --betas 0.9,0.99,0.9", 1, "--betas: expected two numbers"},
        {"--optimizer adam --eps 1e39", 1, "--eps"},
        {"--ema 1", 1, "--ema: expected none or DECAY[:every=N]"},
        {"--ema 0", 1, "--ema: expected none"},
        {"--ema -0.5", 1, "--ema: expected none"},
        {"--ema 0.9:every=0", 1, "--ema: expected none"},
        {"--ema 0.9:every", 1, "--ema: expected none"},
        {"--ema 0.9:every=2,", 1, "--ema: expected none"},
        {"--ema 0.9,every=2", 1, "got '0.9,every=2'"},
        {"--ema on", 1, "got 'on'"},
        {"--evaluate", 1, "--evaluate needs weights"},
        {"--evaluate --init a --save b", 1, "--save b"},
        {"--init a --resume b", 1, "one of them"},
        {"--resume auto", 1, "--resume auto needs --save DIR"},
        {"--resume auto --save d --overwrite", 1, "--overwrite would replace"},
        {"--overwrite", 1, "--overwrite needs --save DIR"},
        {"--reset-head", 1, "needs --init"},
        {"--compression powersgd:2 --optimizer-state sharded", 2, "needs --optimizer-state replicated"},
        {"--compression powersgd:2 --device cuda", 2, "for --device cpu or ref"},
        {"--augment flip,erase:0.5", 1, "'flip,erase:0.5'; use --erase P"},
        {"--augment mixup", 1, "'mixup'; use --mixup ALPHA"},
        {"--augment flip,twirl", 1, "'flip,twirl', in which 'twirl' is wrong"},
        {"--reduction adasum --optimizer-state sharded", 2, "needs --optimizer-state replicated"},
        {"--reduction adasum --device cuda", 2, "--reduction adasum is for --device cpu or ref, not cuda"},
        {"--reduction adasum --compression f16", 2, "expected --compression f32, got f16"},
        {"--data cifar10", 1, "needs --data-dir"},
        {"--data-dir d", 1, "--data-dir d needs --data, the kind of its files, such as --data folder"},
        {"--data cifar10 --data-dir d --samples 5", 1, "--samples 5"},
        {"--stem cifar", 1, "--stem cifar"},
        {"--model resnet50 --shortcut B", 1, "--shortcut B"},
        {"--device ref --isa avx2", 1, "--isa avx2"},
        {"--stall-abort 10s", 2, "--stall-abort 10s is earlier than --stall-warn 30s"},
        {"--device gpu", 1, "--device: expected one of ref cpu cuda cuda:N, got 'gpu'"},
        {"--device cud", 1, "got 'cud'"},
        {"--device cpu:0", 1, "got 'cpu:0'"},
        {"--device cuda:", 1, "got 'cuda:'"},
        {"--device cuda:1x", 1, "got 'cuda:1x'"},
        {"--device cuda:-1", 1, "got 'cuda:-1'"},
        {"--tf32 --device ref", 1, "--tf32 is for --device cuda, not ref"},
        {"--device cuda --isa avx2", 1, "--isa avx2 is for --device cpu, not cuda"},
    };
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_OK(parse(&o, bad[i].line));
        CHECK_FAILS(hvt__options_check(&o, bad[i].ranks), E_ARG, bad[i].part);
    }
}

TEST(options_resolve_into_one_meaning)
{
    hvt_options o;
    hvt_resolved t;

    CHECK_OK(parse(&o,
                   "--global-batch 96 --shards 8 --lr 0.2 --lr-scale linear --augment crop:4,flip --no-decay "
                   "norm,bias --last-batch pad --compression f16"));
    CHECK_OK(hvt__resolve(&o, 4, &t));
    CHECK(t.shards == 8 && t.batch == 12, "%d %d", t.shards, t.batch);
    CHECK(t.lr == 0.2 * 8, "%g: the rule scales by shards", t.lr);
    CHECK(t.crop == 4 && t.flip && t.optim.no_decay_norm && t.optim.no_decay_bias, "%d %d", t.crop, t.flip);
    CHECK(t.last_batch == HVT_LAST_BATCH_PAD && t.wire == HVT_F16 && !t.powersgd, "%d %d %d", t.last_batch,
          t.wire, t.powersgd);
    CHECK(t.first_bucket == 1 << 20, "%zu", t.first_bucket);
    CHECK_OK(parse(&o, "--bucket all"));
    CHECK_OK(hvt__resolve(&o, 1, &t));
    CHECK(t.first_bucket == 0, "one bucket for all has no small first one");
    CHECK(!t.on_gpu && !strcmp(t.device, "cpu"), "%s", t.device);
    CHECK_OK(parse(&o, "--device cuda:3"));
    CHECK_OK(hvt__resolve(&o, 1, &t));
    CHECK(t.on_gpu && !strcmp(t.device, "cuda") && t.gpu == 3, "%s %d", t.device, t.gpu);
    CHECK_OK(hvt__resolve(&o, 4, &t));
    CHECK(t.gpu == 3, "%d: one GPU for all ranks of a host", t.gpu);
    CHECK_OK(parse(&o, "--device cuda"));
    CHECK_OK(hvt__resolve(&o, 4, &t));
    CHECK(t.on_gpu && t.gpu == -1, "%d: the local rank's", t.gpu);
}

TEST(auto_micro_batches_divide_the_batch)
{
    static const struct {
        const char *line;
        int ranks, batch, shards;
    } all[] = {{"--split cpu:0,cpu:1", 1, 32, 4},
               {"--split cpu:0,cpu:1,cpu:2", 1, 16, 8},
               {"--split cpu:0,cpu:1 --batch 6", 1, 2, 3},
               {"--split cpu:0,cpu:1 --batch 7", 2, 1, 14},
               {"--split cpu:0,cpu:1 --batch 1", 1, 1, 1},
               {"--split cpu:0,cpu:1 --batch 10", 1, 2, 5},
               {"--split cpu:0,cpu:1 --global-batch 12", 2, 2, 6},
               {"--split cpu:0,cpu:1 --global-batch 24 --accumulate 2", 2, 2, 12}};
    hvt_options o;
    hvt_resolved t;

    for (size_t i = 0; i < HVT_LEN(all); i++) {
        CHECK_OK(parse(&o, all[i].line));
        CHECK_OK(hvt__resolve(&o, all[i].ranks, &t));
        CHECK(t.batch == all[i].batch && t.shards == all[i].shards, "%s: %d x %d", all[i].line, t.batch,
              t.shards);
    }
}

TEST(a_recipe_takes_what_it_needs_from_elsewhere)
{
    static const char *const good[] = {
        "--recipe torchvision-v1 --data synth",         "--recipe finetune --data synth --init a",
        "--recipe finetune --data synth --model a.pt2", "--recipe finetune --resume d",
        "--recipe finetune --evaluate --init a",        "--recipe cifar10-he --data cifar10 --data-dir d"};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(good); i++) {
        CHECK_OK(parse(&o, good[i]));
        CHECK_OK(hvt__options_check(&o, 1));
    }
}

TEST(what_a_checkpoint_fills_in_is_not_refused_as_if_a_flag)
{
    hvt_options o;
    hvt_resolved t;

    CHECK_OK(parse(&o, "--evaluate --resume a"));
    o.shards = 4;
    CHECK_OK(hvt__resolve(&o, 3, &t));
    CHECK(t.shards == 3, "%d", t.shards);
    o.evaluate = false;
    CHECK_OK(hvt__resolve(&o, 3, &t));
    CHECK_FAILS(hvt__resolve(&o, 5, &t), E_ARG, "saved with --shards 4, too few for 5 ranks");
    CHECK_OK(parse(&o, "--resume a --data cifar10 --data-dir d"));
    o.size = 64; /* of synth, before */
    CHECK_OK(hvt__resolve(&o, 1, &t));
}

int main(void)
{
    RUN(defaults_are_those_that_scripts_rely_on);
    RUN(both_forms_underscores_and_the_last_of_repeated_flags);
    RUN(switches_take_a_value_or_none);
    RUN(sizes_carry_units);
    RUN(times_carry_units);
    RUN(malformed_values_are_named_with_what_was_expected);
    RUN(pack_takes_a_folder_in_front);
    RUN(inspect_takes_files_and_check_nothing_in_front);
    RUN(tune_takes_a_file_and_seconds_in_front);
    RUN(a_failed_parse_leaves_the_result_alone);
    RUN(every_value_reads_back_from_its_text);
    RUN(options_are_checked_together);
    RUN(options_resolve_into_one_meaning);
    RUN(a_run_ends_by_what_was_given_and_by_both_whichever_comes_first);
    RUN(auto_micro_batches_divide_the_batch);
    RUN(a_recipe_takes_what_it_needs_from_elsewhere);
    RUN(what_a_checkpoint_fills_in_is_not_refused_as_if_a_flag);
    return check_done();
}
