/*
 * Sets up a run, in order of dependence. After each step the ranks agree on its status, so that an error on
 * one rank is one message from rank 0 and the same status on all ranks, and no rank waits for one that has
 * returned.
 */
#include "run.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>
#include <unistd.h>

/* All ranks return the error of any rank. */
#define AGREE(t, call) HVT_TRY(hvt_world_agree((t)->world, (call)))

static hvt_status find_placements(run *t)
{
    hvt_placement mine = {.allowed = hvt__launchers_processors()};

    t->placement = calloc((size_t)t->size, sizeof *t->placement);
    t->spents = calloc((size_t)t->size, sizeof *t->spents);
    AGREE(t, t->placement && t->spents ? HVT_OK
                                       : HVT_FAIL(E_MEM, "no memory for the places of %d ranks", t->size));
    AGREE(t, hvt_world_cores(t->world, t->opts->threads, &mine.cores));
    return hvt_world_allgather(t->world, &mine, sizeof mine, t->placement);
}

/* The best instruction set that all ranks support. */
static hvt_status common_isa(run *t, const char **ret_isa)
{
    int64_t have = 0;

    for (int i = 0; i < hvt_cpu_isa_count() && i < 63; i++)
        have |= (int64_t)hvt_cpu_isa_auto(i) << i;
    HVT_TRY(hvt_world_allreduce_i64(t->world, HVT_AND, &have, 1));
    HVT_CHECK(have, E_UNSUPPORTED, "no instruction set of the cpu device is supported on every rank");
    for (int i = 0; i < hvt_cpu_isa_count() && i < 63; i++)
        if (have >> i & 1)
            *ret_isa = hvt_cpu_isa_name(i);
    return HVT_OK;
}

/* A rank uses the GPU with the number of its local rank, modulo the number of GPUs that it sees. This is
 * right both where the launcher bound each rank to one GPU and where all ranks see all GPUs, but only the
 * latter can use NVLink. */
static hvt_status open_gpu(run *t)
{
    char cache[PATH_MAX];
    hvt_device_opts opts = {
        .share = t->set.gpu >= 0, .deterministic = t->opts->deterministic, .tf32 = t->opts->tf32};
    int count = hvt_device_count("cuda");

    opts.index = t->set.gpu >= 0 ? t->set.gpu : count ? hvt_world_local_rank(t->world) % count : 0;
    hvt__cache_path("plans", cache); /* the fastest algorithms found so far */
    opts.plan_cache = *cache ? cache : NULL;
    return hvt_device_open("cuda", &opts, &t->dev);
}

hvt_status hvt__open_device(run *t)
{
    const hvt_cores *cores = &t->placement[t->rank].cores;
    hvt_device_opts opts = {.threads = cores->threads,
                            .cpus = cores->ncpus ? cores->cpus : NULL,
                            .ncpus = cores->ncpus,
                            .pin_caller = true, /* the process is hvtrain */
                            .yield = cores->crowded};

    if (t->set.on_gpu)
        return open_gpu(t);
    if (strcmp(t->opts->isa, "auto"))
        opts.isa = t->opts->isa;
    else if (!strcmp(t->set.device, "cpu"))
        HVT_TRY(common_isa(t, &opts.isa));
    return hvt_device_open(t->set.device, &opts, &t->dev);
}

/* Two ranks on one GPU are an error unless --device cuda:N asks for it. All ranks check the same placements.
 */
static hvt_status refuse_shared(const run *t)
{
    for (int b = 1; b < t->size && t->set.gpu < 0; b++)
        for (int a = 0; a < b; a++)
            HVT_CHECK(
                !hvt__same_gpu(&t->placement[a], &t->placement[b]), E_ARG,
                "ranks %d and %d (%s) would both use GPU %s (%s): start no more ranks on a host than it "
                "has GPUs, or share one with --device cuda:N",
                a, b, hvt_world_host(t->world, a), t->placement[a].gpu.bus, t->placement[a].gpu.name);
    return HVT_OK;
}

/* Gathers every rank's GPU into t->placement. */
static hvt_status gather_gpus(run *t)
{
    hvt_placement mine = t->placement[t->rank];

    if (!t->set.on_gpu)
        return HVT_OK;
    hvt_device_describe(t->dev, &mine.gpu);
    mine.gpus = hvt_device_count("cuda");
    HVT_TRY(hvt_world_allgather(t->world, &mine, sizeof mine, t->placement));
    return hvt_world_agree(t->world, refuse_shared(t));
}

hvt_dataset_opts hvt__set_opts(const hvt_options *o, bool train)
{
    return (hvt_dataset_opts){.dir = o->data_dir,
                              .train = train,
                              .limit = (uint32_t)o->limit,
                              .seed = (uint64_t)o->seed,
                              .image_size = o->size,
                              .classes = o->classes,
                              .samples = (uint32_t)o->samples,
                              .val_split = o->val_split};
}

static hvt_status open_set(const run *t, bool train, hvt_dataset **ret_set)
{
    const hvt_options *o = t->opts;
    hvt_dataset_opts opts = hvt__set_opts(o, train);
    hvt_status s;

    opts.flat = *o->predict || *o->predict_logits;
    opts.world = t->world;
    s = hvt_dataset_open(o->data, &opts, ret_set);
    if (s == HVT_E_IO && o->evaluate && o->val_split > 0 && o->from[HVT__AT_val_split] == HVT_FROM_CHECKPOINT)
        return hvt_world_agree(t->world, HVT_FAIL(E_IO,
                                                  "%s (--val-split is %g in %s, a part of the training "
                                                  "images; --val-split 0 uses the test split)",
                                                  hvt_last_error(), o->val_split, o->resume));
    if (s == HVT_E_IO && o->from[HVT__AT_data_dir] == HVT_FROM_CHECKPOINT && *o->data_dir != '/')
        return hvt_world_agree(t->world, HVT_FAIL(E_IO,
                                                  "%s (%s names it relative to the folder where the run "
                                                  "started; give its place by --data-dir DIR)",
                                                  hvt_last_error(), o->resume));
    return s;
}

static hvt_status open_model_file(run *t)
{
    const hvt_options *o = t->opts;
    hvt_pt2_info net;
    hvt_status s;

    if (!hvt__is_model_file(o->model))
        return HVT_OK;
    s = hvt_pt2_open(o->model, &t->file);
    HVT_CHECK(s != HVT_E_IO || o->from[HVT__AT_model] != HVT_FROM_CHECKPOINT || *o->model == '/', E_IO,
              "%s (%s names it relative to the folder where the run started; give its place by --model PATH)",
              hvt_last_error(), o->resume);
    HVT_TRY(s);
    net = hvt_pt2_describe(t->file);
    if (net.outputs > 1 && t->rank == 0)
        HVT_WARN("%s has %d outputs: hvtrain trains the first, and omits layers that only the others need, "
                 "such as auxiliary classifiers",
                 o->model, net.outputs);
    if (net.unused && t->rank == 0)
        HVT_WARN("%s: %d parameter%s not lead to its output (%s%s): neither trained nor saved; "
                 "load_state_dict(..., strict=False) reads the others",
                 o->model, net.unused, net.unused > 1 ? "s do" : " does", net.first_unused,
                 net.unused > 1 ? ", ..." : "");
    if (net.changed && t->rank == 0 && !o->evaluate)
        HVT_WARN("%s: the model changes %d buffer%s that its output does not depend on (%s%s), such as a "
                 "call counter; %s saved as in the file",
                 o->model, net.changed, net.changed > 1 ? "s" : "", net.first_changed,
                 net.changed > 1 ? ", ..." : "", net.changed > 1 ? "they are" : "it is");
    if (net.fixed_norms && t->rank == 0)
        HVT_INFO("%s: %d of %d batch norms are in eval() mode and keep their running statistics", o->model,
                 net.fixed_norms, net.norms);
    if (net.eval_mode && t->rank == 0 && !o->evaluate && !o->fix_norms)
        HVT_INFO(
            "%s was exported in eval() mode: its batch norms are trained as in train() mode; --fix-norms "
            "on keeps their running statistics",
            o->model);
    if (net.log_softmax && t->rank == 0)
        HVT_WARN("%s ends in log_softmax, which hvtrain omits because its cross-entropy includes it: "
                 "--predict-logits writes the input of log_softmax",
                 o->model);
    HVT_CHECK(net.weights || !o->evaluate || *o->init || *o->resume, E_ARG,
              "--evaluate: %s has no weights that can be read without Python's pickle; give them by --init "
              "or --resume",
              o->model);
    return HVT_OK;
}

static hvt_status open_sets(run *t)
{
    if (t->opts->test_set) {
        t->train_set = t->opts->evaluate ? NULL : t->opts->train_set;
        t->test_set = t->opts->test_set;
        return HVT_OK;
    }
    if (!t->opts->evaluate)
        HVT_TRY(open_set(t, true, &t->opened[0]));
    HVT_TRY(open_set(t, false, &t->opened[1]));
    t->train_set = t->opened[0];
    t->test_set = t->opened[1];
    return HVT_OK;
}

/* For --loss mse. train may be NULL. */
static hvt_status check_targets(const hvt_dataset_info *train, const hvt_dataset_info *test,
                                const hvt_options *o)
{
    int outputs = train ? train->targets : test->targets;

    HVT_CHECK(outputs > 0, E_ARG, "--loss mse: data set '%s' has no targets, expected float labels",
              test->name);
    HVT_CHECK(test->targets == outputs, E_ARG,
              "data set '%s': a training image has %d targets, one of the test split %d", test->name, outputs,
              test->targets);
    HVT_CHECK(!o->classes || o->classes == outputs, E_ARG, "--classes %d: an image of '%s' has %d targets",
              o->classes, test->name, outputs);
    return HVT_OK;
}

/* Refuses what is impossible with sets without labels, or without separate test images. */
static hvt_status check_sets(const run *t)
{
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set);
    const hvt_dataset_info *train = t->train_set ? hvt_dataset_describe(t->train_set) : NULL;

    if (t->set.loss.kind == HVT_LOSS_MSE)
        return check_targets(train, test, t->opts);
    HVT_CHECK(!(train ? train : test)->targets, E_ARG,
              "data set '%s' has float labels, which are targets: expected --loss mse, or integers%s",
              test->name, (train ? train : test)->targets > 1 ? " (of one-hot labels: argmax(1))" : "");
    HVT_CHECK(!train || !train->unlabelled, E_ARG, "data set '%s' has no labels to train with", train->name);
    HVT_CHECK(!test->unlabelled || t->opts->evaluate, E_ARG,
              "the test images of data set '%s' have no labels to evaluate with: --val-split 0.1 evaluates "
              "on a part "
              "of the training images, and --evaluate with --predict FILE predicts the others",
              test->name);
    HVT_CHECK(!test->unlabelled || *t->opts->predict || *t->opts->predict_logits, E_ARG,
              "data set '%s' has no labels, so there is no loss to evaluate: expected --predict FILE or "
              "--predict-logits FILE",
              test->name);
    if (train && t->rank == 0 && hvt__same_images(t->train_set, t->test_set))
        HVT_WARN("data set '%s': the test images are those of training; --val-split 0.1 holds some out",
                 test->name);
    return HVT_OK;
}

/* Checked before planning, which might run out of memory for such a batch. */
static hvt_status check_batch(const run *t)
{
    const hvt_options *o = t->opts;
    int shards = t->set.shards;
    int64_t images = (int64_t)t->set.batch * shards, count, most;
    char name[HVT_OPTION_VALUE + 40], per_update[80] = "";

    if (!t->train_set)
        return HVT_OK;
    count = hvt_dataset_describe(t->train_set)->count;
    if (t->opts->train_set || !*o->data_dir)
        snprintf(name, sizeof name, "%s", hvt_dataset_describe(t->train_set)->name);
    else
        snprintf(name, sizeof name, "%s", o->data_dir);
    most = count / shards;
    HVT_CHECK(most, E_ARG,
              "%d shards, but %s has %" PRId64 " training images: expected at least one per shard", shards,
              name, count);
    if (shards > 1)
        snprintf(per_update, sizeof per_update, " x %d shards = %" PRId64 " images per update", shards,
                 images);
    HVT_CHECK(images <= count || !o->global_batch, E_ARG,
              "--global-batch %d images per update, but %s has %" PRId64 " training images: %" PRId64
              " is the most",
              o->global_batch, name, count, most * shards);
    HVT_CHECK(images <= count, E_ARG,
              "--batch %d%s: %s has only %" PRId64 " training images: --batch %" PRId64 " is the most",
              t->set.batch, per_update, name, count, most);
    return HVT_OK;
}

/* If a set's files do not state the number of classes, it counts those of its labels, so one split may have
 * fewer than the other. */
static int count_classes(const run *t)
{
    int test = hvt_dataset_describe(t->test_set)->classes;
    int train = t->train_set ? hvt_dataset_describe(t->train_set)->classes : 0;

    return train > test ? train : test;
}

/* On rank 0: the classes of evaluated weights, if the data has no labels or not every class. */
static hvt_status classes_of_weights(run *t)
{
    int n = 0;
    hvt_status s = hvt__weights_classes(*t->opts->init ? t->opts->init : t->opts->resume, &n);

    if (t->classes && s) /* loading them reports the error */
        return HVT_OK;
    t->classes = n > t->classes ? n : t->classes;
    return s;
}

static hvt_status find_classes(run *t)
{
    const hvt_options *o = t->opts;

    t->classes = o->classes ? o->classes : count_classes(t);
    if (t->set.loss.kind == HVT_LOSS_MSE) {
        HVT_CHECK(!t->file || !hvt_pt2_describe(t->file).log_softmax, E_ARG,
                  "--loss mse: --model %s ends in log_softmax, which is omitted; export it without",
                  o->model);
        t->classes = hvt_dataset_describe(t->test_set)->targets;
        HVT_CHECK(!t->file || o->classes || hvt_pt2_describe(t->file).classes == t->classes, E_ARG,
                  "--model %s has %d outputs, but an image has %d targets: --classes %d gives it a new last "
                  "layer",
                  o->model, hvt_pt2_describe(t->file).classes, t->classes, t->classes);
        return HVT_OK;
    }
    if (t->file && !o->classes) {
        int classes = hvt_pt2_describe(t->file).classes;

        HVT_CHECK(/* 0: no such outputs; building the model reports it */
                  !classes || classes >= t->classes, E_ARG,
                  "--model %s has %d outputs, but the data have %d classes: --classes %d gives it a new last "
                  "layer",
                  o->model, classes, t->classes, t->classes);
        t->classes = classes;
        return HVT_OK;
    }
    if (o->classes || !o->evaluate || o->reset_head)
        return HVT_OK;
    AGREE(t, t->rank == 0 ? classes_of_weights(t) : HVT_OK);
    return hvt_world_broadcast(t->world, &t->classes, sizeof t->classes, 0);
}

static hvt_status check_classes(const run *t)
{
    const hvt_options *o = t->opts;
    const char *name = hvt_dataset_describe(t->test_set)->name;
    int classes = count_classes(t);

    HVT_CHECK(!o->classes || o->classes >= classes, E_ARG, "%s has %d classes; --classes %d is too few",
              strcmp(name, "folder") ? name : "the folder", classes, o->classes);
    return HVT_OK;
}

hvt_status hvt__open_data(run *t)
{
    HVT_TRY(open_sets(t));
    AGREE(t, check_sets(t));
    AGREE(t, open_model_file(t));
    HVT_TRY(hvt__find_class_names(t));
    AGREE(t, hvt__resolve_loading(t->opts, &t->set, hvt_dataset_describe(t->test_set), t->file,
                                  &t->placement[t->rank].cores, &t->loading));
    AGREE(t, check_batch(t));
    HVT_TRY(find_classes(t));
    AGREE(t, check_classes(t));
    return HVT_OK;
}

/* An evaluation freezes nothing; auto leaves it to a .pt2. */
static hvt_status plan_frozen(run *t, hvt_value logits)
{
    const char *freeze = t->opts->freeze;
    bool none = t->opts->evaluate || !strcmp(freeze, "none"), by_file = !none && !strcmp(freeze, "auto");
    hvt_status s = by_file ? HVT_OK : hvt_model_freeze(t->model, none ? "" : freeze);

    if (s == HVT_OK && t->opts->evaluate)
        s = hvt_model_set_inference(t->model);
    if (s == HVT_OK)
        s = hvt_model_plan(t->model, t->set.batch, logits);
    if (s == HVT_E_ARG && by_file && t->file)
        return HVT_FAIL(E_ARG,
                        "--model %s: %s (its parameters have requires_grad=False; --freeze none trains them)",
                        t->opts->model, hvt_last_error());
    if (s == HVT_E_ARG && !none && !by_file)
        return HVT_FAIL(E_ARG, "--freeze %s: %s", freeze, hvt_last_error());
    return s && t->file ? hvt__fail(s, __FILE__, __LINE__, "--model %s: %s", t->opts->model, hvt_last_error())
                        : s;
}

/* Random weights have unsuitable statistics. */
static hvt_status fix_norms(const run *t)
{
    const hvt_options *o = t->opts;

    HVT_CHECK(o->evaluate || *o->init || *o->resume || (t->file && hvt_pt2_describe(t->file).weights), E_ARG,
              "--fix-norms keeps the running statistics of batch norms: expected --init FILE with them");
    if (hvt_model_fix_norms(t->model))
        return HVT_FAIL(E_ARG, "--fix-norms: %s", hvt_last_error());
    return HVT_OK;
}

static hvt_status plan_model(run *t)
{
    const hvt_options *o = t->opts;
    const hvt_dataset_info *data = hvt_dataset_describe(t->test_set);
    hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o->stem, "imagenet"),
                        .projection = !strcmp(o->shortcut, "B")};
    hvt_value images, logits;

    HVT_TRY(hvt_model_create(t->dev, &t->model));
    HVT_TRY(hvt_model_set_type(t->model, t->set.amp));
    HVT_TRY(hvt_model_set_loss(t->model, &t->set.loss));
    images = hvt_input(t->model, t->loading.test.height, t->loading.test.width,
                       hvt_loader_channels(data, &t->loading.test));
    if (t->file)
        HVT_TRY(hvt_pt2_build(t->file, t->model, images, t->classes, &logits));
    else
        logits = hvt_zoo(t->model, o->model, images, t->classes, &zoo);
    if (o->fix_norms)
        HVT_TRY(fix_norms(t));
    return plan_frozen(t, logits);
}

/* plan_model(), with advice where its activations are too large. */
static hvt_status plan_what_fits(run *t)
{
    const hvt_status s = plan_model(t);

    if (s != HVT_E_MEM && !(s && strstr(hvt_last_error(), "] has more than ")))
        return s;
    return hvt__fail(
        s, __FILE__, __LINE__, "%s: %d images of %dx%d are too large for model %s; lower --batch or --size",
        hvt_last_error(), t->set.batch, t->loading.test.height, t->loading.test.width, t->opts->model);
}

static hvt_status open_loaders(run *t)
{
    hvt_loader_opts train = t->loading.train, test = t->loading.test;

    train.order = test.order = hvt_model_order(t->model);
    train.type = test.type = hvt_model_input_type(t->model);
    train.channels = test.channels = hvt_model_input_channels(t->model);
    train.shards = t->set.shards;
    train.first_shard = t->first_of[t->rank];
    train.shard_count = t->first_of[t->rank + 1] - t->first_of[t->rank];
    test.shards = t->size;
    test.first_shard = t->rank;
    test.shard_count = 1;
    HVT_TRY(hvt_loader_open(t->test_set, t->dev, &test, &t->test_data));
    if (!t->train_set)
        return HVT_OK;
    HVT_TRY(hvt_loader_open(t->train_set, t->dev, &train, &t->train_data));
    t->steps_per_epoch = hvt_loader_steps(t->train_data);
    return HVT_OK;
}

/* Images of shard i in the last update of an epoch. */
static int64_t last_of_shard(const run *t, uint32_t images, int i)
{
    const hvt_last_batch last = t->set.last_batch;
    const int64_t batch = t->set.batch;
    const int64_t most = hvt_sampler_count(images, t->set.shards, 0, last); /* shard 0 has the most */
    const int64_t left =
        hvt_sampler_count(images, t->set.shards, i, last) - (most + batch - 1) / batch * batch + batch;

    return left < 0 ? 0 : left > batch || last == HVT_LAST_BATCH_DROP ? batch : left;
}

/* Refuses batches that PyTorch refuses when it meets them. For an epoch that starts anew. */
static hvt_status check_least(const run *t)
{
    const uint32_t images = t->train_set ? hvt_dataset_describe(t->train_set)->count : 0;
    const int shards = t->set.shards;
    const char *whose = "a shard has", *advice = "a larger --batch";
    bool alone = t->set.batch == 1, last = false;
    int64_t sum = 0;

    for (int i = 0; i < shards; i++) {
        int64_t n = last_of_shard(t, images, i);

        sum += n;
        last = last || n == 1;
    }
    if (t->opts->sync_bn) { /* a batch norm covers all images of an update */
        whose = "an update has";
        alone = alone && shards == 1;
        last = sum == 1;
    } else if (alone && shards > 1 && sum > 1) {
        advice = "a larger --batch, or --sync-bn";
    }
    if (!alone && last) {
        whose = t->opts->sync_bn ? "the last update has" : "the last batch of a shard has";
        advice = "--last-batch drop, or another --batch";
    }
    HVT_CHECK(!images || !(alone || last) || hvt_model_least(t->model) == 1, E_ARG,
              "--batch %d x %d shard%s of %u images: %s 1 image, but the model has a batch norm over 1x1 "
              "pixels, which needs 2 in training: expected %s",
              t->set.batch, shards, shards > 1 ? "s" : "", images, whose, advice);
    return HVT_OK;
}

static hvt_status check_output(const run *t, const char *flag, const char *path)
{
    return *path && strcmp(path, "-") != 0 ? hvt__report_check_path(t->opts, flag, path) : HVT_OK;
}

static hvt_status check_outputs(const run *t)
{
    HVT_TRY(check_output(t, "--predict", t->opts->predict));
    return check_output(t, "--predict-logits", t->opts->predict_logits);
}

/* Before anything is computed, so that an unwritable file is noticed at once. */
static hvt_status open_predictions(run *t)
{
    const hvt__predictions_opts opts = {.csv = t->opts->predict,
                                        .npy = t->opts->predict_logits,
                                        .set = t->test_set,
                                        .names = t->class_names,
                                        .dev = t->dev,
                                        .world = t->world,
                                        .batch = t->set.batch,
                                        .classes = t->classes};

    if (!*opts.csv && !*opts.npy)
        return HVT_OK;
    AGREE(t, t->rank == 0 ? check_outputs(t) : HVT_OK);
    return hvt__predictions_open(&opts, &t->predictions);
}

/* The schedule of a run of `epochs` epochs. */
static hvt_status open_schedule(const run *t, int epochs, hvt_schedule **ret_schedule)
{
    const hvt_options *o = t->opts;
    hvt_schedule_opts rate = {o->schedule, t->set.lr, epochs, o->warmup_epochs, o->warmup_from};

    return hvt_schedule_create(&rate, ret_schedule);
}

static hvt_status open_groups(const run *t)
{
    const char *at = t->opts->group_lr;
    char prefix[HVT_GROUP_PREFIX];
    double x;

    while (hvt__next_group_lr(&at, prefix, &x)) {
        hvt_status s = hvt_optim_group(t->optim, prefix, x, t->opts->weight_decay);

        if (s)
            return hvt__fail(s, __FILE__, __LINE__, "--group-lr %s: %s", t->opts->group_lr, hvt_last_error());
    }
    return HVT_OK;
}

/* An evaluation's optimizer has nothing to update, and no state. */
static hvt_status open_optim(run *t)
{
    const hvt_optim_opts none = {.kind = HVT_OPTIM_SGD};

    HVT_TRY(hvt_optim_create(t->model, t->opts->evaluate ? &none : &t->set.optim, &t->optim));
    if (!t->opts->evaluate)
        HVT_TRY(open_groups(t));
    return open_schedule(t, t->opts->epochs, &t->schedule);
}

/* The items are compared between ranks, beside options, tensors and buckets. */
static hvt_status open_distopt(run *t)
{
    hvt_distopt_opts opts = {.bucket_bytes = t->opts->bucket,
                             .first_bytes = t->set.first_bucket,
                             .wire = t->set.wire,
                             .powersgd = t->set.powersgd,
                             .seed = (uint64_t)t->opts->seed,
                             .check_replicas = t->opts->check_replicas,
                             .update = t->set.update,
                             .local_shards = t->first_of[t->rank + 1] - t->first_of[t->rank],
                             .clip_norm = t->opts->clip_grad_norm,
                             .sync_batchnorm = t->opts->sync_bn && !t->opts->evaluate,
                             .scaling = t->set.scaling};
    const hvt_dataset_info *train = t->train_set ? hvt_dataset_describe(t->train_set) : NULL;
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set);
    char train_text[64] = "none", test_text[64];
    const char *why;
    const hvt_item items[] = {{"device", hvt_device_name(t->dev)},
                              {"instruction set", hvt_device_isa(t->dev)},
                              {"training images and their labels", train_text},
                              {"test images and their labels", test_text}};

    if (train)
        snprintf(train_text, sizeof train_text, "%u, %016" PRIx64, train->count, train->fingerprint);
    snprintf(test_text, sizeof test_text, "%u, %016" PRIx64, test->count, test->fingerprint);
    HVT_TRY(hvt_distopt_create(t->optim, t->comm, &opts, items, HVT_LEN(items), &t->dist));
    why = hvt_distopt_uncapturable(t->dist);
    HVT_CHECK(!why || strcmp(t->opts->graph, "on"), E_UNSUPPORTED, "--graph on: %s", why);
    t->record = !why && strcmp(t->opts->graph, "off");
    return HVT_OK;
}

static json_t *effective_options(const run *t)
{
    hvt_options o = *t->opts;
    json_t *all;

    o.shards = t->set.shards;
    o.batch = t->set.batch;
    o.global_batch = 0;
    memcpy(o.mean.v, t->loading.train.mean, sizeof o.mean.v); /* floats have their own defaults */
    memcpy(o.std.v, t->loading.train.std, sizeof o.std.v);
    all = hvt__options_json(&o, HVT_SCOPE_RUN);
    json_object_set_new(all, "device", json_string(hvt_device_name(t->dev)));
    json_object_set_new(all, "isa", json_string(hvt_device_isa(t->dev)));
    json_object_set_new(all, "images", hvt__describe_images(t));
    return all;
}

char *hvt__effective_options(const run *t)
{
    json_t *all = effective_options(t);
    char *text = json_dumps(all, JSON_COMPACT);

    json_decref(all);
    return text;
}

static void warn_of_change(const run *t, const char *flag, const char *was, const char *now)
{
    bool shards = !strcmp(flag, "shards");
    char more[60] = "";

    if (hvt__is_word_of("epochs|data-dir|eval-freq|skip-damaged", flag) ||      /* harmless */
        (t->opts->evaluate && hvt__is_word_of("shards|val-split|limit", flag))) /* other images */
        return;
    if (shards)
        snprintf(more, sizeof more, "; an update has %" PRId64 " images",
                 (int64_t)t->set.batch * t->set.shards);
    if (now)
        HVT_WARN("--%s was %s in %s and is %s now%s", flag, was, t->opts->resume, now, more);
    else
        HVT_WARN("%s was saved with --%s %s, an option that this version lacks", t->opts->resume, flag, was);
}

/* Warns of each saved option that has another value now, or no longer exists. */
static hvt_status warn_of_changes(const run *t, const char *saved)
{
    json_t *was = json_loads(saved, 0, NULL), *now = effective_options(t), *value;
    const char *flag;

    json_object_foreach(was, flag, value)
    {
        const char *is = json_string_value(json_object_get(now, flag));
        if (json_is_string(value) && (!is || strcmp(is, json_string_value(value))))
            warn_of_change(t, flag, json_string_value(value), is);
    }
    hvt_status s = was && now ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare options");

    json_decref(was);
    json_decref(now);
    return s;
}

/* A cosine covers all epochs, so with more of them the rate rises again. */
static void warn_of_rise(const run *t, const hvt_progress *p)
{
    json_t *was = json_loads(p->options, 0, NULL);
    const char *epochs = json_string_value(json_object_get(was, "epochs"));
    const char *name = json_string_value(json_object_get(was, "schedule"));
    bool same = epochs && name && !strcmp(name, t->opts->schedule) && !strncmp(name, "cosine", 6);
    uint32_t n = t->steps_per_epoch;
    hvt_schedule *before = NULL;

    if (same && t->train_set && p->steps && open_schedule(t, atoi(epochs), &before) == HVT_OK) {
        double last = p->step ? hvt_schedule_lr(before, p->epoch, p->step - 1, n)
                              : hvt_schedule_lr(before, p->epoch - 1, n - 1, n);
        double next = hvt_schedule_lr(t->schedule, p->epoch, p->step, n);

        if (atoi(epochs) < t->opts->epochs && next > last)
            HVT_WARN("--schedule %s covered %s epochs in %s and covers %d now, so the rate rises from %g to "
                     "%g; to keep it low, start a new run with --init %s",
                     name, epochs, t->opts->resume, t->opts->epochs, last, next, t->opts->resume);
    }
    hvt_schedule_free(&before);
    json_decref(was);
}

/* The identifier of a new run. It depends only on the command, so that equal runs write equal files. */
static hvt_status name_run(run *t)
{
    char *options = hvt__effective_options(t);

    HVT_CHECK(options, E_MEM, "no memory to name the run");
    t->run = hvt__hash_text(hvt__hash_text(HVT_HASH_INIT, options), t->opts->init);
    if (t->train_set)
        t->run ^= hvt__mix(hvt_dataset_describe(t->train_set)->fingerprint);
    t->run += t->run == 0; /* 0: not known */
    free(options);
    return HVT_OK;
}

/* If weights do not fit the model, adds the options with which they were saved, if these differ. */
static hvt_status explain_shapes(const run *t, const char *path, hvt_status s)
{
    static const char *const flags[] = {"model", "stem", "shortcut", "classes"};
    char saved[300] = "", here[300] = "";
    hvt_progress p = {0};
    hvt__error why;

    if (s != HVT_E_SHAPE)
        return s;
    hvt__error_take(&why);
    if (hvt_checkpoint_load(path, NULL, NULL, &p) == HVT_OK && p.options) {
        json_t *was = json_loads(p.options, 0, NULL), *now = effective_options(t);
        for (size_t i = 0; i < HVT_LEN(flags); i++) {
            const char *a = json_string_value(json_object_get(was, flags[i]));
            const char *b = json_string_value(json_object_get(now, flags[i]));
            size_t na = strlen(saved), nb = strlen(here);
            if (!a || !b || !strcmp(a, b))
                continue;
            snprintf(saved + na, sizeof saved - na, " --%s %s", flags[i], a);
            snprintf(here + nb, sizeof here - nb, " --%s %s", flags[i], b);
        }
        json_decref(was);
        json_decref(now);
    }
    hvt__progress_free(&p);
    hvt__error_put(&why);
    const char *misfit = " does not fit the model: ", *from = strstr(why.text, misfit);

    return *saved && from ? hvt__fail(s, __FILE__, __LINE__, "%.*s was saved with%s, but this run has%s: %s",
                                      (int)(from - why.text), why.text, saved, here, from + strlen(misfit))
                          : s;
}

/* The finished images of a checkpoint's epoch. Older checkpoints count updates; their options give the size
 * of these. */
static uint32_t images_behind(const run *t, const hvt_progress *p)
{
    json_t *was = p->options ? json_loads(p->options, 0, NULL) : NULL;
    const char *batch = json_string_value(json_object_get(was, "batch"));
    const char *shards = json_string_value(json_object_get(was, "shards"));
    int64_t images = (int64_t)(batch ? atoi(batch) : t->set.batch) * (shards ? atoi(shards) : t->set.shards);

    json_decref(was);
    images *= p->step;
    return p->sample || !p->step ? p->sample : images < UINT32_MAX ? (uint32_t)images : UINT32_MAX;
}

/* The remaining images of the epoch are its last updates with these shards. Collective. */
static hvt_status find_step(run *t)
{
    uint32_t left;

    t->step = 0;
    if (!t->sample || !t->train_data)
        return HVT_OK;
    HVT_TRY(hvt_world_agree(t->world, hvt_loader_seek(t->train_data, t->epoch, t->sample)));
    left = hvt_loader_left(t->train_data);
    t->step = t->steps_per_epoch - left;
    if (!left) { /* fewer than --last-batch drop omits */
        t->epoch++;
        t->step = t->sample = 0;
    }
    return HVT_OK;
}

static hvt_status begin_weights(run *t)
{
    const hvt_options *o = t->opts;
    const bool stored = t->file && hvt_pt2_describe(t->file).weights;
    /* heads keep their random values if they are reset, or if the .pt2 has another number of classes */
    const bool all = *o->init ? !o->reset_head : stored && !o->classes;

    HVT_TRY((all ? hvt_model_restart : hvt_model_init)(t->model, (uint64_t)o->seed));
    if (*o->init) {
        HVT_TRY(explain_shapes(t, o->init, hvt_weights_load(o->init, t->model, o->reset_head)));
        hvt__warn_of_images(t);
        return HVT_OK;
    }
    if (stored)
        return hvt_pt2_load(t->file, t->model);
    if (t->file)
        HVT_WARN(
            "%s has no weights that can be read without Python's pickle, so they are initialised at random; "
            "safetensors.torch.save_file(model.state_dict(), \"net.safetensors\") writes them for --init",
            o->model);
    return HVT_OK;
}

/* A checkpoint's losses. An older one has no errors of a mean squared error: unknown values are not shown as
 * smaller than they are. */
static hvt_loss earlier_loss(const run *t, hvt_loss saved)
{
    if (t->set.loss.kind == HVT_LOSS_MSE && saved.sum > 0 && saved.error == 0)
        saved.error = NAN;
    return saved;
}

/* True if a checkpoint was saved with the options of this run. */
static bool are_options(const run *t, const char *saved)
{
    json_t *was = json_loads(saved, 0, NULL), *now = effective_options(t);
    bool same = json_equal(was, now);

    json_decref(was);
    json_decref(now);
    return same;
}

/* On rank 0: the initial weights and progress. */
static hvt_status first_weights(run *t)
{
    const hvt_options *o = t->opts;
    const bool raw = t->set.optim.ema.decay <= 0;
    hvt_progress p = {0};
    char file[PATH_MAX];
    hvt_status s = HVT_OK;

    HVT_TRY(hvt__find_data(t));
    if (!*o->resume) {
        HVT_TRY(name_run(t));
        return begin_weights(t);
    }
    HVT_TRY(explain_shapes(t, o->resume,
                           hvt__resume(o->resume, t->model, o->evaluate ? NULL : t->optim, raw, &p, file)));
    t->averages = raw ? 0 : p.averages;
    hvt__folder_resumed(&t->folder, file, &p);
    t->run = p.run;
    t->sample = images_behind(t, &p);
    t->steps = p.steps;
    if (p.options) {
        s = warn_of_changes(t, p.options);
        warn_of_rise(t, &p);
        if (p.untested && !o->evaluate && are_options(t, p.options))
            hvt__begun_read(t, p.begun);
    }
    hvt__progress_free(&p);
    HVT_TRY(s);
    t->epoch = p.epoch;
    t->epoch_steps = p.epoch_steps;
    t->untested = p.untested;
    t->epoch_loss = earlier_loss(t, p.epoch_loss);
    HVT_TRY(hvt__compare_data(t, &p));
    HVT_CHECK(!t->train_set || t->sample < hvt_dataset_describe(t->train_set)->count, E_ARG,
              "%s was left after %u images of its epoch, but an epoch has %u images now", o->resume,
              t->sample, hvt_dataset_describe(t->train_set)->count);
    t->recent = earlier_loss(t, p.recent);
    bool by_steps = t->set.by_steps && p.steps >= o->steps;
    if (!o->evaluate && (by_steps || (t->set.by_epochs && p.epoch >= o->epochs)))
        HVT_INFO("note: %s has finished %d epochs and %" PRId64 " updates, so nothing is left to train; %s",
                 o->resume, p.epoch, p.steps,
                 by_steps ? "--steps N sets another end"
                 : hvt__schedule_ends(t)
                     ? "more --epochs would raise the rate of its cosine again, but --init "
                       "starts a new run with its weights"
                     : "--epochs N sets another end");
    return HVT_OK;
}

static hvt_status share_progress(run *t)
{
    /* by_epochs, too: ranks do not compare which flags were given */
    int64_t end, now[] = {t->epoch, t->sample, t->steps, t->set.by_epochs, t->folder.is_saved, t->untested};

    t->best = t->folder.best;
    HVT_TRY(hvt_world_broadcast(t->world, now, sizeof now, 0));
    HVT_TRY(hvt_world_broadcast(t->world, &t->begun, sizeof t->begun, 0));
    HVT_TRY(hvt_world_broadcast(t->world, &t->best, sizeof t->best, 0));
    t->epoch = (int)now[0];
    t->sample = (uint32_t)now[1];
    t->steps = t->first_steps = now[2];
    t->saved = now[4] ? t->steps : -1;
    t->untested = t->saved_untested = now[5];
    HVT_TRY(find_step(t));
    t->first_epoch = t->epoch;
    t->first_step = t->step;
    hvt__log_at(t->steps);
    /* by --epochs: the updates so far, and those of the remaining epochs */
    end = t->steps - t->step + ((int64_t)t->opts->epochs - t->epoch) * t->steps_per_epoch;
    t->end = t->set.by_steps ? t->opts->steps : end;
    if (now[3] && end < t->end)
        t->end = end;
    return HVT_OK;
}

/* On rank 0: checks that the checkpoints fit on their disk. An epoch that is the best so far is saved,
 * too. */
static hvt_status check_room(const run *t)
{
    const hvt__every *e = &t->set.save_every;
    int64_t updates = t->end - t->steps, saves;

    if (!*t->opts->save || !t->train_set || updates <= 0 || t->opts->ask != HVT_ASK_TRAIN)
        return HVT_OK;
    saves = (t->step + updates + t->steps_per_epoch - 1) / t->steps_per_epoch;
    saves = e->seconds > 0 ? updates : e->steps ? saves + updates / e->steps : saves;
    return hvt__checkpoint_room(t->opts, t->model, t->optim, t->size, t->folder.nown, saves);
}

hvt_status hvt__run_begin(const hvt_options *opts, hvt_world *world, run *ret_run)
{
    *ret_run = (run){.opts = opts,
                     .world = world,
                     .rank = hvt_world_rank(world),
                     .size = hvt_world_size(world),
                     .tested = -1,
                     .saved = -1,
                     .first_update = -1,
                     .deadline = INFINITY};
    HVT_TRY(hvt__options_agree(opts, world));
    return hvt_world_agree(world, hvt__resolve(opts, ret_run->size, &ret_run->set));
}

hvt_status hvt__setup(run *t)
{
    AGREE(t, t->rank == 0 ? hvt__folder_open(t->opts, &t->folder) : HVT_OK); /* the log may be in it */
    AGREE(t, t->rank == 0 ? hvt__report_open(t->opts, &t->rep) : HVT_OK);
    AGREE(t, hvt__pages_open(t));
    HVT_TRY(find_placements(t));
    AGREE(t, hvt__open_device(t));
    HVT_TRY(gather_gpus(t));
    HVT_TRY(hvt__open_data(t));
    AGREE(t, plan_what_fits(t));
    AGREE(t, hvt__per_class_open(t));
    AGREE(t, hvt__balance_open(t));
    AGREE(t, open_loaders(t));
    AGREE(t, check_least(t));
    HVT_TRY(open_predictions(t));
    AGREE(t, open_optim(t));
    AGREE(t, hvt_comm_set_cutoffs(t->opts->comm_cutoffs, false));
    AGREE(t, hvt_comm_open(t->opts->comm, t->world, t->dev, &t->comm));
    AGREE(t, open_distopt(t));
    AGREE(t, t->rank == 0 ? first_weights(t) : HVT_OK);
    AGREE(t, hvt_distopt_broadcast(t->dist, 0));
    HVT_TRY(share_progress(t));
    AGREE(t, t->rank == 0 ? check_room(t) : HVT_OK);
    t->deadline = t->train_set && t->rank == 0 && t->opts->ask == HVT_ASK_TRAIN
                      ? hvt__now() + hvt__preempt_limit(t)
                      : INFINITY;
    HVT_TRY(hvt__trial_open(t));
    HVT_TRY(hvt__timeline_open(t->opts, &t->set, t->world, &t->timeline));
    AGREE(t, hvt__report_start(t));
    return hvt__timeline_at(t->timeline, t->steps);
}

void hvt__teardown(run *t)
{
    hvt__folder_close(&t->folder); /* a save in progress uses the model and the optimizer */
    hvt__timeline_close(&t->timeline);
    hvt__predictions_close(&t->predictions);
    hvt_graph_free(&t->graph); /* before the comm, which waits until it is freed */
    hvt_distopt_discard(&t->dist);
    hvt_loader_close(&t->train_data);
    hvt_loader_close(&t->test_data);
    hvt_schedule_free(&t->schedule);
    hvt_optim_free(&t->optim);
    hvt_comm_close(&t->comm);
    hvt_model_free(&t->model);
    hvt_pt2_close(&t->file);
    hvt_dataset_close(&t->opened[0]);
    hvt_dataset_close(&t->opened[1]);
    hvt_device_close(&t->dev);
    hvt__report_close(&t->rep);
    hvt__pages_close(t);
    json_decref(t->class_names);
    hvt__per_class_close(t);
    hvt__balance_close(t);
    free(t->spents);
    free(t->placement);
}
