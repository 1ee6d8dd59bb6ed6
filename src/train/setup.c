/*
 * Setting up a run, in order of dependence. After each step the ranks agree on its status, so that an error
 * on one rank is one message from rank 0 and the same status on all ranks, and no rank waits for one that has
 * returned.
 */
#define _GNU_SOURCE /* sched_getaffinity */

#include "run.h"
#include "base_impl.h"

#include <sched.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All ranks return the error of any rank. */
#define AGREE(t, call) HVT_TRY(hvt_world_agree((t)->world, (call)))

/* ---- who and where ---- */

/* The number of processors that the launcher may use, which is larger than ours if it bound us; 0: no
 * launcher. */
static int launchers_processors(void)
{
    cpu_set_t set;

    if (hvt__process_launched_rank() < 0 || getppid() <= 1 || sched_getaffinity(getppid(), sizeof set, &set))
        return 0;
    return CPU_COUNT(&set);
}

static hvt_status find_placements(run *t)
{
    hvt_placement mine = {.allowed = launchers_processors()};

    t->placement = calloc((size_t)t->size, sizeof *t->placement);
    t->exposed = calloc((size_t)t->size, sizeof *t->exposed);
    AGREE(t, t->placement && t->exposed ? HVT_OK
                                        : HVT_FAIL(E_MEM, "no memory for the places of %d ranks", t->size));
    AGREE(t, hvt_world_cores(t->world, t->opts->threads, &mine.cores));
    return hvt_world_allgather(t->world, &mine, sizeof mine, t->placement);
}

/* The best instruction set that all ranks have. */
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

static hvt_status open_device(run *t)
{
    const hvt_cores *cores = &t->placement[t->rank].cores;
    hvt_device_opts opts = {.threads = cores->threads,
                            .cpus = cores->ncpus ? cores->cpus : NULL,
                            .ncpus = cores->ncpus,
                            .pin_caller = true, /* the process is hvtrain */
                            .yield = cores->crowded};

    if (t->set.on_gpu)
        return hvt__open_gpu(t);
    if (strcmp(t->opts->isa, "auto"))
        opts.isa = t->opts->isa;
    else if (!strcmp(t->set.device, "cpu"))
        HVT_TRY(common_isa(t, &opts.isa));
    return hvt_device_open(t->set.device, &opts, &t->dev);
}

/* ---- data and model ---- */

static hvt_status open_set(const run *t, bool train, hvt_dataset **ret_set)
{
    const hvt_options *o = t->opts;
    hvt_dataset_opts opts = {.dir = o->data_dir,
                             .train = train,
                             .limit = (uint32_t)o->limit,
                             .image_size = o->size,
                             .classes = o->classes,
                             .samples = (uint32_t)o->samples};

    return hvt_dataset_open(o->data, &opts, ret_set);
}

static hvt_status open_data(run *t)
{
    if (!t->opts->evaluate)
        HVT_TRY(open_set(t, true, &t->train_set));
    return open_set(t, false, &t->test_set);
}

/* Checked before planning, which might run out of memory for such a batch. */
static hvt_status check_batch(const run *t)
{
    const hvt_options *o = t->opts;
    int64_t images = (int64_t)t->set.batch * t->set.shards, count;

    if (!t->train_set)
        return HVT_OK;
    count = hvt_dataset_describe(t->train_set)->count;
    HVT_CHECK(images <= count || !o->global_batch, E_ARG,
              "--global-batch %d images per update, but %s has %" PRId64 " training images", o->global_batch,
              o->data, count);
    HVT_CHECK(images <= count, E_ARG,
              "--batch %d x %d shard%s = %" PRId64 " images per update, but %s has %" PRId64
              " training images",
              t->set.batch, t->set.shards, t->set.shards > 1 ? "s" : "", images, o->data, count);
    return HVT_OK;
}

static hvt_status plan_model(run *t)
{
    const hvt_options *o = t->opts;
    const hvt_dataset_info *data = hvt_dataset_describe(t->test_set);
    hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o->stem, "imagenet"),
                        .projection = !strcmp(o->shortcut, "B")};
    hvt_value images;

    HVT_CHECK(!o->classes || o->classes >= data->classes, E_ARG, "--classes %d: %s has labels up to %d",
              o->classes, data->name, data->classes - 1);
    HVT_TRY(hvt_model_create(t->dev, &t->model));
    HVT_TRY(hvt_model_set_type(t->model, t->set.amp));
    images = hvt_input(t->model, data->height, data->width, data->channels);
    return hvt_model_plan(t->model, t->set.batch,
                          hvt_zoo(t->model, o->model, images, o->classes ? o->classes : data->classes, &zoo));
}

static hvt_status open_loaders(run *t)
{
    const hvt_options *o = t->opts;
    hvt_loader_opts train = {.batch = t->set.batch,
                             .shards = t->set.shards,
                             .first_shard = t->rank * t->set.local_shards,
                             .shard_count = t->set.local_shards,
                             .shuffle = o->shuffle,
                             .last_batch = t->set.last_batch,
                             .seed = (uint64_t)o->seed,
                             .crop = t->set.crop,
                             .flip = t->set.flip,
                             .order = hvt_model_order(t->model),
                             .type = hvt_model_input_type(t->model),
                             .channels = hvt_model_input_channels(t->model)};
    hvt_loader_opts test;

    memcpy(train.mean, o->mean.v, sizeof train.mean);
    memcpy(train.std, o->std.v, sizeof train.std);
    test = train;
    test.shards = t->size;
    test.first_shard = t->rank;
    test.shard_count = 1;
    test.shuffle = test.flip = false;
    test.crop = 0;
    test.last_batch = HVT_LAST_BATCH_KEEP;
    HVT_TRY(hvt_loader_open(t->test_set, t->dev, &test, &t->test_data));
    if (!t->train_set)
        return HVT_OK;
    HVT_TRY(hvt_loader_open(t->train_set, t->dev, &train, &t->train_data));
    t->steps_per_epoch = hvt_loader_steps(t->train_data);
    return HVT_OK;
}

/* ---- optimizer and exchange ---- */

static hvt_status open_optim(run *t)
{
    const hvt_options *o = t->opts;
    hvt_optim_opts sgd = {.momentum = (float)o->momentum,
                          .weight_decay = (float)o->weight_decay,
                          .nesterov = o->nesterov,
                          .no_decay_norm = t->set.no_decay_norm,
                          .no_decay_bias = t->set.no_decay_bias};
    hvt_schedule_opts rate = {o->schedule, t->set.lr, o->epochs, o->warmup_epochs, o->warmup_from};

    HVT_TRY(hvt_optim_create(t->model, &sgd, &t->optim));
    return hvt_schedule_create(&rate, &t->schedule);
}

/* The items are compared between ranks, beside options, tensors and buckets. */
static hvt_status open_distopt(run *t)
{
    hvt_distopt_opts opts = {.bucket_bytes = t->opts->bucket,
                             .first_bytes = t->set.first_bucket,
                             .wire = t->set.wire,
                             .powersgd = t->set.powersgd,
                             .seed = (uint64_t)t->opts->seed,
                             .replica_check = t->opts->check_replicas,
                             .update = t->set.update,
                             .local_shards = t->set.local_shards,
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

/* ---- weights ---- */

char *hvt__effective_options(const run *t)
{
    hvt_options o = *t->opts;
    json_t *all;
    char *text;

    o.shards = t->set.shards;
    o.batch = t->set.batch;
    o.global_batch = 0;
    all = hvt__options_json(&o, HVT_SCOPE_RUN);
    json_object_set_new(all, "device", json_string(hvt_device_name(t->dev)));
    json_object_set_new(all, "isa", json_string(hvt_device_isa(t->dev)));
    text = json_dumps(all, JSON_COMPACT);
    json_decref(all);
    return text;
}

/* Calls `differs` for each saved option that has another value now; now NULL: the option does not exist any
 * more. */
static hvt_status compare_options(const run *t, const char *saved, void *ctx,
                                  void differs(void *ctx, const char *flag, const char *was, const char *now))
{
    char *text = hvt__effective_options(t);
    json_t *was = json_loads(saved ? saved : "{}", 0, NULL), *now = text ? json_loads(text, 0, NULL) : NULL;
    const char *flag;
    json_t *value;

    json_object_foreach(was, flag, value)
    {
        const char *is = json_string_value(json_object_get(now, flag));
        const char *it_was = json_string_value(value);
        if (it_was && (!is || strcmp(is, it_was)))
            differs(ctx, flag, it_was, is);
    }
    hvt_status s = was && now ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare options");

    free(text);
    json_decref(was);
    json_decref(now);
    return s;
}

static void warn_of_change(void *ctx, const char *flag, const char *was, const char *now)
{
    static const char *const harmless[] = {"epochs", "data-dir", "eval-freq"};
    const run *t = ctx;
    bool shards = !strcmp(flag, "shards");

    for (size_t i = 0; i < HVT_LEN(harmless); i++)
        if (!strcmp(flag, harmless[i]))
            return;
    if (t->opts->evaluate && shards) /* the result does not depend on it */
        return;
    if (!now)
        HVT_WARN("--%s was %s in %s; there is no such option any more", flag, was, t->opts->resume);
    else if (shards)
        HVT_WARN("--%s was %s in %s, is %s now; an update has %" PRId64 " images", flag, was, t->opts->resume,
                 now, (int64_t)t->set.batch * t->set.shards);
    else
        HVT_WARN("--%s was %s in %s, is %s now", flag, was, t->opts->resume, now);
}

/* The identifier of a new run. It depends on the command only, so that equal runs write equal files. */
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

typedef struct shapes {
    char saved[300], here[300];
} shapes;

/* Collects the options that determine the shapes of tensors. */
static void add_shapes(void *ctx, const char *flag, const char *was, const char *now)
{
    static const char *const flags[] = {"model", "classes", "shortcut", "stem"};
    shapes *x = ctx;

    for (size_t i = 0; now && i < HVT_LEN(flags); i++)
        if (!strcmp(flag, flags[i])) {
            snprintf(x->saved + strlen(x->saved), sizeof x->saved - strlen(x->saved), " --%s %s", flag, was);
            snprintf(x->here + strlen(x->here), sizeof x->here - strlen(x->here), " --%s %s", flag, now);
        }
}

/* If weights do not fit the model, add the options with which they were saved, where these differ. */
static hvt_status explain_shapes(const run *t, const char *path, hvt_status s)
{
    hvt_progress p = {0};
    shapes x = {{0}};
    hvt__error why;

    if (s != HVT_E_SHAPE)
        return s;
    hvt__error_take(&why);
    if (hvt_checkpoint_load(path, NULL, NULL, &p) == HVT_OK)
        compare_options(t, p.options, &x, add_shapes);
    free(p.options);
    hvt__error_put(&why);
    if (!*x.saved)
        return s;
    return hvt__fail(s, __FILE__, __LINE__, "%s; it was saved with%s, this run has%s", why.text, x.saved,
                     x.here);
}

/* On rank 0: the initial weights and progress. */
static hvt_status first_weights(run *t)
{
    const hvt_options *o = t->opts;
    hvt_progress p = {0};
    hvt_status s = HVT_OK;

    if (!*o->resume) {
        HVT_TRY(name_run(t));
        HVT_TRY(hvt_model_init(t->model, (uint64_t)o->seed));
        return *o->init ? explain_shapes(t, o->init, hvt_weights_load(o->init, t->model, o->reset_head))
                        : HVT_OK;
    }
    HVT_TRY(explain_shapes(t, o->resume, hvt_checkpoint_load(o->resume, t->model, t->optim, &p)));
    t->run = p.run;
    if (p.options)
        s = compare_options(t, p.options, t, warn_of_change);
    free(p.options);
    HVT_TRY(s);
    HVT_CHECK(!t->train_set || p.step < t->steps_per_epoch, E_ARG,
              "%s was left after update %u of its epoch, but an epoch has %u updates now", o->resume, p.step,
              t->steps_per_epoch);
    t->epoch = p.epoch;
    t->step = p.step;
    t->steps = p.steps;
    bool by_steps = t->set.by_steps && p.steps >= o->steps;
    if (!o->evaluate && (by_steps || (t->set.by_epochs && p.epoch >= o->epochs)))
        HVT_INFO("note: %s has %d epochs and %" PRId64
                 " updates behind it: nothing is left to train without more %s",
                 o->resume, p.epoch, p.steps, by_steps ? "--steps" : "--epochs");
    return HVT_OK;
}

static hvt_status share_progress(run *t)
{
    struct {
        int64_t epoch, step, steps, by_epochs, is_saved;
        double best;
    } now = {t->epoch,
             t->step,
             t->steps,
             t->set.by_epochs,
             hvt__folder_is_saved(t->folder),
             hvt__folder_best(t->folder)};
    int64_t end;

    HVT_TRY(hvt_world_broadcast(t->world, &now, sizeof now, 0));
    t->epoch = (int)now.epoch;
    t->step = (uint32_t)now.step;
    t->steps = now.steps;
    t->best = now.best;
    t->saved = now.is_saved ? now.steps : -1;
    t->first_epoch = now.epoch;
    t->first_step = now.step;
    t->first_steps = now.steps;
    hvt__log_at(now.steps);
    /* by --epochs: the updates so far, and those of the remaining epochs */
    end = t->steps - t->step + ((int64_t)t->opts->epochs - t->epoch) * t->steps_per_epoch;
    t->end = t->set.by_steps ? t->opts->steps : end;
    if (now.by_epochs && end < t->end) /* from rank 0, since ranks do not compare which flags were given */
        t->end = end;
    return HVT_OK;
}

/* ---- all of it ---- */

static hvt_status announce(run *t)
{
    const size_t *bucket_bytes;
    hvt_device_info device;
    hvt_start s = {.opts = t->opts,
                   .set = &t->set,
                   .world = t->world,
                   .device = hvt_device_name(t->dev),
                   .isa = hvt_device_isa(t->dev),
                   .comm = hvt_comm_name(t->comm),
                   .overlap = t->trial.overlap,
                   .overlap_why = t->trial.why,
                   .graph = t->record ? "on" : "off",
                   .update = hvt_distopt_update(t->dist) == HVT_UPDATE_SHARDED ? "sharded" : "replicated",
                   .exchange_bytes = hvt_distopt_bytes(t->dist),
                   .threads = hvt_device_threads(t->dev),
                   .classes = hvt_model_classes(t->model),
                   .train = t->train_set ? hvt_dataset_describe(t->train_set) : NULL,
                   .test = hvt_dataset_describe(t->test_set),
                   .params = hvt_model_parameters(t->model),
                   .bytes = hvt_model_bytes(t->model),
                   .memory = hvt_model_memory(t->model),
                   .optim_bytes = hvt_distopt_state_bytes(t->dist),
                   .steps_per_epoch = t->steps_per_epoch,
                   .steps = t->end,
                   .done = t->steps,
                   .placement = t->placement};

    hvt_device_describe(t->dev, &device);
    s.device_bytes = device.bytes;
    s.buckets = hvt_distopt_buckets(t->dist, &bucket_bytes);
    s.bucket_bytes = bucket_bytes;
    return hvt__report_start(t->rep, &s);
}

hvt_status hvt__setup(run *t)
{
    AGREE(t, t->rank == 0 ? hvt__report_open(t->opts, &t->rep) : HVT_OK);
    AGREE(t, t->rank == 0 ? hvt__folder_open(t->opts, &t->folder) : HVT_OK);
    HVT_TRY(find_placements(t));
    AGREE(t, open_device(t));
    HVT_TRY(hvt__gather_gpus(t));
    AGREE(t, open_data(t));
    AGREE(t, check_batch(t));
    AGREE(t, plan_model(t));
    AGREE(t, open_loaders(t));
    AGREE(t, open_optim(t));
    AGREE(t, hvt_comm_set_cutoffs(t->opts->comm_cutoffs, false));
    AGREE(t, hvt_comm_open(t->opts->comm, t->world, t->dev, &t->comm));
    AGREE(t, open_distopt(t));
    AGREE(t, t->rank == 0 ? first_weights(t) : HVT_OK);
    AGREE(t, hvt_distopt_broadcast(t->dist, 0));
    HVT_TRY(share_progress(t));
    HVT_TRY(hvt__trial_open(t));
    HVT_TRY(hvt__timeline_open(t->opts, &t->set, t->world, &t->timeline));
    AGREE(t, announce(t));
    return hvt__timeline_at(t->timeline, t->steps);
}

void hvt__teardown(run *t)
{
    hvt__timeline_close(&t->timeline);
    hvt_graph_free(&t->graph); /* before the comm, which would wait for it to be freed */
    hvt_distopt_discard(&t->dist);
    hvt_loader_close(&t->train_data);
    hvt_loader_close(&t->test_data);
    hvt_schedule_free(&t->schedule);
    hvt_optim_free(&t->optim);
    hvt_comm_close(&t->comm);
    hvt_model_free(&t->model);
    hvt_dataset_close(&t->train_set);
    hvt_dataset_close(&t->test_set);
    hvt_device_close(&t->dev);
    hvt__report_close(&t->rep);
    hvt__folder_close(&t->folder);
    free(t->exposed);
    free(t->placement);
}
