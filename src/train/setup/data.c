/* The data of a run: its sets, their checks, the classes, the loaders and the files of predictions. */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>

hvt_dataset_opts hvt__set_opts(const hvt_options *o, bool train)
{
    return (hvt_dataset_opts){.dir = o->data_dir,
                              .train = train,
                              .limit = (uint32_t)o->limit,
                              .seed = (uint64_t)o->seed,
                              .image_size = o->size,
                              .classes = o->classes,
                              .samples = (uint32_t)o->samples,
                              .val_split = o->val_split,
                              .reconstruct = !strcmp(o->target, "image")};
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
    return s ? hvt_world_agree(t->world, hvt__name_option("--data-dir", o->data_dir, s)) : HVT_OK;
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

/* Checks the sets for losses of targets. train may be NULL. */
static hvt_status check_targets(const hvt_dataset_info *train, const hvt_dataset_info *test,
                                const hvt_options *o)
{
    int outputs = train ? train->targets : test->targets;

    if (!strcmp(o->target, "image"))
        return HVT_OK;
    HVT_CHECK(outputs > 0 || o->train_set || o->test_set || !strcmp(o->data, "npy"), E_ARG,
              "--loss %s needs float targets: use --data npy with float labels, not %s; for an autoencoder "
              "--target image",
              o->loss, o->data);
    HVT_CHECK(outputs > 0, E_ARG, "--loss %s: data set '%s' has no targets, expected float labels", o->loss,
              test->name);
    HVT_CHECK(test->targets == outputs, E_ARG,
              "data set '%s': a training image has %d targets, one of the test split %d", test->name, outputs,
              test->targets);
    HVT_CHECK(!o->classes || o->classes == outputs, E_ARG, "--classes %d: an image of '%s' has %d targets",
              o->classes, test->name, outputs);
    return HVT_OK;
}

static hvt_status check_masks(const hvt_dataset_info *train, const hvt_dataset_info *test)
{
    HVT_CHECK(test->masks && (!train || train->masks), E_ARG,
              "data set '%s' has masks for its %s images, but not for its %s images", test->name,
              test->masks ? "test" : "training", test->masks ? "training" : "test");
    return HVT_OK;
}

/* Refuses what is impossible with sets without labels, or without separate test images. */
static hvt_status check_sets(const run *t)
{
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set);
    const hvt_dataset_info *train = t->train_set ? hvt_dataset_describe(t->train_set) : NULL;

    if (hvt_loss_has_targets(t->set.loss.kind))
        return check_targets(train, test, t->opts);
    HVT_CHECK(!(train ? train : test)->targets, E_ARG,
              "data set '%s' has float labels, which are targets: expected --loss mse or mae, or integers%s",
              test->name, (train ? train : test)->targets > 1 ? " (of one-hot labels: argmax(1))" : "");
    if (test->masks || (train && train->masks))
        return check_masks(train, test);
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

/* Checks the batch before planning, which might run out of memory for a wrong one. */
static hvt_status check_batch(const run *t)
{
    const hvt_options *o = t->opts;
    int shards = t->set.shards;
    int64_t images = (int64_t)t->set.batch * shards, count, most;
    char name[HVT_OPTION_VALUE + 80], per_update[80] = "";

    if (!t->train_set)
        return HVT_OK;
    count = hvt_dataset_describe(t->train_set)->count;
    if (t->opts->train_set || !*o->data_dir)
        snprintf(name, sizeof name, "%s", hvt_dataset_describe(t->train_set)->name);
    else
        snprintf(name, sizeof name, "%s", o->data_dir);
    if (o->limit)
        snprintf(name + strlen(name), sizeof name - strlen(name), " with --limit %d", o->limit);
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

/* Sets the batch of --batch auto: 128 images, or fewer, so that an epoch of a small set has four updates.
 * Batch norms over one pixel need two images in the last batch, too. */
static void fit_batch(run *t)
{
    const int64_t count = t->train_set ? hvt_dataset_describe(t->train_set)->count : INT_MAX;
    const int most = (int)(count / t->set.shards < INT_MAX ? count / t->set.shards : INT_MAX);

    if (t->opts->batch || t->opts->global_batch || most >= t->set.batch || !most)
        return;
    t->set.batch = (most + 3) / 4;
    while (most % t->set.batch == 1 && t->set.batch < most)
        t->set.batch++;
    if (t->rank == 0 && t->opts->ask == HVT_ASK_TRAIN && !t->opts->quiet)
        HVT_INFO("note: --batch is %d, because %s%d training images are fewer than the usual 128",
                 t->set.batch, t->set.shards > 1 ? "a shard's " : "", most);
}

/* The classes of both splits. A set whose files do not state the number counts the classes of its labels, so
 * one split may have fewer than the other. */
static int count_classes(const run *t)
{
    int test = hvt_dataset_describe(t->test_set)->classes;
    int train = t->train_set ? hvt_dataset_describe(t->train_set)->classes : 0;

    return train > test ? train : test;
}

/* On rank 0: finds the classes of evaluated weights, if the data has no labels or not every class. */
static hvt_status classes_of_weights(run *t)
{
    int n = 0;
    hvt_status s = hvt__weights_classes(*t->opts->init ? t->opts->init : t->opts->resume, &n);

    if (t->classes && s) /* loading the weights reports the error */
        return HVT_OK;
    t->classes = n > t->classes ? n : t->classes;
    return s;
}

/* The number of targets of an image, or of a pixel if targets are images. */
static int outputs_of(const run *t)
{
    const hvt_dataset_info *i = hvt_dataset_describe(t->test_set);

    if (t->loading.test.reconstruct)
        return hvt_loader_channels(i, &t->loading.test);
    return i->target_h ? i->targets / (i->target_h * i->target_w) : i->targets;
}

/* Checks that the planned model has an output for each label or target. */
static hvt_status check_outputs_of_model(const run *t)
{
    const hvt_dataset_info *set = hvt_dataset_describe(t->train_set ? t->train_set : t->test_set);
    const bool own = t->loading.test.reconstruct, pixels = set->masks || own;
    const int h = pixels          ? t->loading.test.height
                  : set->target_h ? set->target_h
                                  : 1,
              w = pixels          ? t->loading.test.width
                  : set->target_h ? set->target_w
                                  : 1;
    int hwc[3];

    hvt_model_output(t->model, hwc);
    HVT_CHECK(
        (hwc[0] == h && hwc[1] == w) || (set->unlabelled && !pixels && !set->targets), E_ARG,
        "--model %s has outputs of %d x %d x %d (channels, height, width), but an image of data set '%s' "
        "has %s of %d x %d",
        t->opts->model, hwc[2], hwc[0], hwc[1], set->name,
        set->masks             ? "a mask"
        : own || set->target_h ? "an image as target"
        : set->targets         ? "a vector of targets"
                               : "one label, for an output",
        h, w);
    return HVT_OK;
}

static hvt_status find_classes(run *t)
{
    const hvt_options *o = t->opts;

    t->classes = o->classes ? o->classes : count_classes(t);
    if (hvt_loss_has_targets(t->set.loss.kind)) {
        HVT_CHECK(!t->file || !hvt_pt2_describe(t->file).log_softmax, E_ARG,
                  "--loss %s: --model %s ends in log_softmax, which is omitted; export it without", o->loss,
                  o->model);
        t->classes = outputs_of(t);
        HVT_CHECK(
            !t->file || o->classes || hvt_pt2_describe(t->file).classes == t->classes, E_ARG,
            "--model %s has %d output%s, but an image has %d target%s: --classes %d gives it a new last "
            "layer",
            o->model, hvt_pt2_describe(t->file).classes, hvt_pt2_describe(t->file).classes > 1 ? "s" : "",
            t->classes, t->classes > 1 ? "s" : "", t->classes);
        return HVT_OK;
    }
    if (t->file && !o->classes) {
        int classes = hvt_pt2_describe(t->file).classes;

        HVT_CHECK(/* 0: no such outputs; building the model reports it */
                  !classes || classes >= t->classes, E_ARG,
                  "--model %s has %d output%s, but the data have %d classes: --classes %d gives it a new "
                  "last "
                  "layer",
                  o->model, classes, classes > 1 ? "s" : "", t->classes, t->classes);
        t->classes = classes;
        return HVT_OK;
    }
    HVT_CHECK(
        !t->masks || t->classes > 1 || o->evaluate, E_ARG,
        "the masks of data set '%s' have an unknown number of classes: expected --classes N, or %s with a "
        "name per line",
        hvt_dataset_describe(t->test_set)->name, "classes.txt");
    HVT_CHECK(t->masks || t->classes != 1 || o->evaluate, E_ARG,
              "%s has images of one class; expected 2 or more%s", *o->data_dir ? o->data_dir : "the data set",
              strcmp(hvt_dataset_describe(t->test_set)->name, "folder") ? ""
                                                                        : ", each in a folder of its own");
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
    t->masks = hvt_dataset_describe(t->test_set)->masks;
    AGREE(t, hvt__open_model_file(t));
    HVT_TRY(hvt__find_class_names(t));
    fit_batch(t);
    AGREE(t, hvt__resolve_loading(t->opts, &t->set, hvt_dataset_describe(t->test_set), t->file,
                                  &t->placement[t->rank].cores, &t->loading));
    AGREE(t, check_batch(t));
    HVT_TRY(find_classes(t));
    AGREE(t, check_classes(t));
    return HVT_OK;
}

hvt_status hvt__open_loaders(run *t)
{
    hvt_loader_opts train = t->loading.train, test = t->loading.test;

    HVT_TRY(check_outputs_of_model(t));
    train.order = test.order = hvt_model_order(t->model);
    train.type = test.type = hvt_model_input_type(t->model);
    train.channels = test.channels = hvt_model_input_channels(t->model);
    train.classes = test.classes = hvt_model_classes(t->model);
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

hvt_status hvt__check_least(const run *t)
{
    const int shards = t->set.shards;
    const hvt_loader_opts epoch = {.shards = shards, .repeats = t->opts->repeat_augment};
    const uint32_t images = t->train_set ? hvt_loader_images(hvt_dataset_describe(t->train_set), &epoch) : 0;
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

/* Checks the files of predictions. pixels: --predict is a folder of masks, which this creates. */
static hvt_status check_outputs(const run *t, bool pixels)
{
    const char *folder = t->opts->predict;
    struct stat info;

    if (!pixels)
        HVT_TRY(check_output(t, "--predict", t->opts->predict));
    else if (*folder)
        HVT_CHECK((mkdir(folder, 0777) == 0 || errno == EEXIST) && stat(folder, &info) == 0 &&
                      S_ISDIR(info.st_mode),
                  E_IO, "--predict %s: cannot make this folder for masks: %s", folder,
                  strerror(errno == EEXIST ? ENOTDIR : errno));
    return check_output(t, "--predict-logits", t->opts->predict_logits);
}

hvt_status hvt__open_predictions(run *t)
{
    int hwc[3];

    hvt_model_output(t->model, hwc);
    const bool pixels = hwc[0] * hwc[1] > 1;
    const hvt__predictions_opts opts = {.csv = pixels ? "" : t->opts->predict,
                                        .masks = pixels ? t->opts->predict : "",
                                        .h = hwc[0],
                                        .w = hwc[1],
                                        .npy = t->opts->predict_logits,
                                        .set = t->test_set,
                                        .names = t->class_names,
                                        .dev = t->dev,
                                        .world = t->world,
                                        .batch = t->set.batch,
                                        .classes = t->classes};

    if (!*opts.csv && !*opts.npy && !*opts.masks)
        return HVT_OK;
    AGREE(t, t->rank == 0 ? check_outputs(t, pixels) : HVT_OK);
    return hvt__predictions_open(&opts, &t->predictions);
}
