/*
 * hints: a flag or a word that does not exist is refused with the one that was probably meant.
 */
#include "parse_line.h"

TEST(unknown_flags_name_the_nearest)
{
    static const struct {
        const char *line, *near;
    } bad[] = {
        {"--bath 3", "nearest is --batch"},
        {"--batches 3", "nearest is --batch"},
        {"--epoch=3", "nearest is --epochs"},
        {"--weigth-decay 1", "nearest is --weight-decay"},
        {"--print_frequency 1", "nearest is --print-freq"},
        {"--hlep", "nearest is --help"},
        {"--foo", "unknown option --foo (see --help)"},
        {"--lrr 1", "nearest is --lr"},
        {"--foo 1 --lr 2 --no-tail --bath=3 --help x --help --foo",
         "unknown option --foo (see --help); unknown option --no-tail; use --last-batch; unknown option "
         "--bath; the nearest is --batch; unknown option --foo (see --help)"},
        {"--ema --foo", "--ema: expected none|DECAY[:every=N], got the option --foo"},
        {"--no-shufle", "nearest is --no-shuffle"},
        {"--qqqqqqqq", "see --help"},
        {"train", "'train' is not an option: hvtrain trains by default"},
        {"resnet50", "'resnet50' is not an option: did you mean --model resnet50?"},
        {"ResNet-50", "did you mean --model resnet50?"},
        {"lr=0.1", "options begin with two dashes: --lr=0.1"},
        {"help", "use --help"},
        {"--batch 3 tune", "tune comes before all options"},
        {"--batch 3 report", "report comes before all options"},
        {"raport run.jsonl", "'raport' is not an option: did you mean report?"},
        {"inspekt resnet18", "did you mean inspect?"},
        {"report run.jsonl --output", "--output: expected FILE.html or FILE.svg, got the end"},
        {"report run.jsonl --out x", "unknown option --out; use --output FILE.html"},
        {"pack d -o x", "unknown option -o; use --output DIR/train-%06d.tar"},
        {"--augment crop:4 flip", "write a list with commas and without blanks: --augment none"},
        {"--mean=0.5 0.5 0.5", "write a list with commas and without blanks: --mean X[,X,X]"},
        {"--MODEL resnet50", "nearest is --model"},
        {"\xe2\x80\x93lr 0.1", "it begins with a long dash"},
        {"-j4", "two dashes; use --workers"},
        {"--", "'--' is not an option"},
        {"-q 3", "(see --help)"},
        {"-lr 0.1", "nearest is --lr"},
        {"-lr=0.1", "nearest is --lr"},
        {"---weight_decay=1", "nearest is --weight-decay"},
        {"-", "'-' is not an option"},
        {"/dev", "for the data in a folder, use --data folder --data-dir /dev"},
        {"auto", "options are --name value"},
        {"f32", "options are --name value"},
        {"--help=html",
         "--help: expected a group (all, model, data, training, precision, ranks, starting, files, packing) "
         "or an option, got 'html'"},
        {"--help Date", "got 'Date'"},
        {"--version=1", "--version takes no value, got '1'"}};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(parse(&o, bad[i].line), E_ARG, bad[i].near);
}

TEST(flags_of_other_trainers_name_what_stands_for_them)
{
    static const struct {
        const char *line, *here;
    } bad[] = {{"--arch resnet50", "unknown option --arch; use --model"},
               {"-a resnet50", "two dashes; use --model"},
               {"--batch-size 3", "use --batch (of a rank) or --global-batch"},
               {"--nproc_per_node=4", "use mpirun -np 4 ./hvtrain, or --spawn 4"},
               {"-np 4", "use mpirun -np 4 ./hvtrain"},
               {"-np", "use mpirun -np N ./hvtrain"},
               {"--gpus 2", "use mpirun -np 2 ./hvtrain --device cuda"},
               {"--gpus=0,1", "use --devices cuda:0,cuda:1"},
               {"-g 2", "use mpirun -np 2 ./hvtrain --device cuda"},
               {"--gpu 1", "use --device cuda:1"},
               {"--gpu-id 0,1", "use --devices cuda:0,cuda:1"},
               {"--gpu-id a,b", "use --devices cuda:N"},
               {"--device_ids 0,2,3", "use --devices cuda:0,cuda:2,cuda:3"},
               {"--accum-steps 1,2", "use --accumulate N"},
               {"--dist_backend gloo", "leave it out"},
               {"--min-np 2", "--shards N --resume DIR"},
               {"--nr 0", "use --rank with --init-method"},
               {"--checkpoint-format c-{epoch}", "use --save DIR"},
               {"--gradient-predivide-factor 2", "leave it out"},
               {"--drop-last", "use --last-batch drop"},
               {"--drop_last True", "use --last-batch drop"},
               {"--gradient-accumulation-steps 4", "use --accumulate 4"},
               {"--accumulate-grad-batches=8", "use --accumulate 8"},
               {"--use-deterministic-algorithms", "use --deterministic"},
               {"--broadcast-buffers", "running statistics are averaged over all shards"},
               {"--gradient-as-bucket-view", "gradients lie in the buckets"},
               {"--static-graph", "omits parameters"},
               {"--dry-run", "use hvtrain check"},
               {"--no-cuda", "use --device cpu"},
               {"--oversubscribe", "put flags of mpirun before the program"},
               {"--data-path d", "use --data-dir"},
               {"--mixup-alpha 0.1", "use --mixup 0.1"},
               {"--random-erase 0.1", "use --erase 0.1"},
               {"--reprob", "use --erase N"},
               {"--layer-decay 0.1", "; hvtrain does not have this"},
               {"--smoothing 0.1", "use --label-smoothing"},
               {"--fusion-threshold-mb 64", "use --bucket"},
               {"--error-feedback", "; --compression powersgd:R keeps its residual"},
               {"--no-error-feedback", "; --compression powersgd:R keeps its residual"},
               {"--num-workers 4", "use --workers"},
               {"--wire f16", "unknown option --wire; use --compression"},
               {"--tail=exact", "use --last-batch"},
               {"--update sharded", "use --optimizer-state"},
               {"--replica_check 5", "use --check-replicas"},
               {"--init-skip-head", "use --reset-head"},
               {"--no-init-skip-head", "use --reset-head"},
               {"--thresholds mpi-short=1", "use --comm-cutoffs"},
               {"--image-size 8", "use --size"},
               {"--share-gpu", "use --device cuda:N"},
               {"--loss-scale-min 2", "; a dynamic loss scale never falls below 1"},
               {"--debug", "use HVT_LOG=debug"},
               {"-v", "two dashes; use --verbose"},
               {"--warmup-steps 500", "in epochs"},
               {"--test-size 0.2", "use --val-split FRACTION"},
               {"tune f.json --budget 5", "use hvtrain tune FILE SECONDS"}};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++)
        CHECK_FAILS(parse(&o, bad[i].line), E_ARG, bad[i].here);
    for (int i = 0; i < HVT_OPTION_COUNT; i++) /* else that line could never be said */
        CHECK(!hvt__foreign(HVT__FLAG, hvt__flag_of(&hvt__option_table[i]).text + 2), "%s is a flag of ours",
              hvt__flag_of(&hvt__option_table[i]).text);
}

TEST(words_that_are_none_name_the_one_that_was_meant)
{
    static const struct {
        const char *line, *meant; /* NULL: nothing is like it */
    } bad[] = {{"--model ResNet50", "did you mean resnet50?"},
               {"--model resnet-18", "did you mean resnet18?"},
               {"--model MobileNetV2", "did you mean mobilenet_v2?"},
               {"--model resnt20", "did you mean resnet20?"},
               {"--model vgg", NULL},
               {"--data cifar-10", "did you mean cifar10?"},
               {"--data CIFAR10", "did you mean cifar10?"},
               {"--data imagenet", "did you mean folder?"},
               {"--reduction average", "did you mean mean?"},
               {"--reduction hvd.Adasum", "did you mean adasum?"},
               {"--op adasum", "; use --reduction adasum"},
               {"--amp fp16", "did you mean f16?"},
               {"--amp float16", "did you mean f16?"},
               {"--amp bfloat16", "did you mean bf16?"},
               {"--amp BF16", "did you mean bf16?"},
               {"--amp float32", "did you mean f32?"},
               {"--amp o1", "did you mean O1?"},
               {"--compression fp16", "did you mean f16?"},
               {"--compression PowerSGD:2", "did you mean powersgd:2?"},
               {"--compression f64", NULL},
               {"--compression powersgd:R", NULL},
               {"--comm NCCL", "did you mean nccl?"},
               {"--comm gloo", "'gloo'; leave it out: --comm auto chooses"},
               {"--last-batch keeps", "did you mean keep?"},
               {"--last-batch exact", "did you mean keep?"},
               {"--compression none", "did you mean f32?"},
               {"--shortcut b", "did you mean B?"},
               {"--bucket 25", "did you mean 25MiB?"},
               {"--stall-warn 30", "did you mean 30s?"},
               {"--stall-warn 30sec", "did you mean 30s?"},
               {"--stall-warn soon", NULL},
               {"--bucket 25mb", "did you mean 25MB?"},
               {"--bucket 1g", "did you mean 1GiB?"},
               {"--bucket auto", "; hvtrain tune FILE finds"},
               {"--overlap layers", "use --overlap worker"},
               {"--lr 0,1", "did you mean 0.1?"},
               {"--lr 0.1x", NULL},
               {"--data CIFAR-100", "did you mean cifar100?"},
               {"--data STL", "did you mean stl10?"},
               {"--data ImageFolder", "did you mean folder?"},
               {"--data webdataset", "did you mean tar?"},
               {"--data numpy", "did you mean npy?"},
               {"--data mnist", NULL},
               {"--amp tf32", "--tf32 is an option of its own"},
               {"--data-dir=~/cifar", "write --data-dir ~/cifar"},
               {"--data .", "use --data folder --data-dir ."},
               {"--data /no/such/pictures", "use --data folder --data-dir /no/such/pictures"},
               {"--samples 10k", "write it in digits (10000, or 10240)"},
               {"--batch 64K", "write it in digits (64000, or 65536)"},
               {"--samples 10_000", "did you mean 10000?"},
               {"--samples 10,000", "did you mean 10000?"},
               {"--samples 1e4", "did you mean 10000?"},
               {"--limit 1.5M", "write it in digits (1500000, or 1572864)"},
               {"--samples 10q", NULL},
               {"--samples 1.5", NULL},
               {"--samples 9999M", NULL},
               {"--samples 0,5", NULL},
               {"--loss bcs", NULL},
               {"--loss mad", NULL},
               {"--optimizer nadam", NULL},
               {"--optimizer adamax", NULL},
               {"--optimizer adam2", NULL},
               {"--model resnext50", NULL},
               {"--model seresnet50", NULL},
               {"--model resnet50d", NULL},
               {"--amp mixed", NULL},
               {"--optimizer-state fsdp", NULL},
               {"--data foldr", "did you mean folder?"},
               {"--data fodler", "did you mean folder?"},
               {"--data follder", "did you mean folder?"},
               {"--optimizer adma", "did you mean adam?"},
               {"--model resnat50", "did you mean resnet50?"},
               {"--val-split 10%", "did you mean 0.1?"},
               {"--label-smoothing 12.5%", "did you mean 0.125?"},
               {"--samples 10%", NULL},
               {"--limit -5", NULL},
               {"--lr -0.1", NULL},
               {"--lr 1,000", NULL},
               {"--size 224px", "did you mean 224?"},
               {"--size 224x224", "did you mean 224?"},
               {"--size 224,224", "did you mean 224?"},
               {"--size 224x256", NULL},
               {"--size 224,256", NULL},
               {"--batch 64px", NULL},
               {"--bucket 26214400", "did you mean 26214400B?"},
               {"--stall-warn -5s", NULL},
               {"--stall-warn 50%", NULL}};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        CHECK_FAILS(parse(&o, bad[i].line), E_ARG, bad[i].meant ? bad[i].meant : "got '");
        CHECK(bad[i].meant || !strstr(hvt_last_error(), "did you mean"), "%s: %s", bad[i].line,
              hvt_last_error());
    }
    CHECK_FAILS(hvt_options_parse(3, (char *[]){"hvtrain", "--lr 0.1", "--nesterov"}, &o), E_ARG,
                "--lr and its value are two arguments");
    CHECK_FAILS(hvt_options_set(&o, "wire", "f16"), E_ARG, "unknown option wire; use --compression");
    CHECK_FAILS(hvt_options_set(&o, "--lr", "1"), E_ARG,
                "unknown option --lr; write the name without dashes: lr");
    CHECK_FAILS(hvt_options_set(&o, "zzz", "1"), E_ARG,
                "unknown option zzz; hvtrain --help all lists all options");
    CHECK_OK(parse(&o, "--isa Portable"));
    CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, "got 'Portable'; did you mean portable?");
    CHECK_OK(parse(&o, "--device gpu"));
    CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, "got 'gpu'; did you mean cuda?");
    CHECK_OK(parse(&o, "--device CUDA1"));
    CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, "did you mean cuda:1?");
    CHECK_OK(parse(&o, "--device tpu"));
    CHECK_FAILS(hvt__options_check(&o, 1), E_ARG, "got 'tpu'");
}

int main(void)
{
    RUN(unknown_flags_name_the_nearest);
    RUN(flags_of_other_trainers_name_what_stands_for_them);
    RUN(words_that_are_none_name_the_one_that_was_meant);
    return check_done();
}
