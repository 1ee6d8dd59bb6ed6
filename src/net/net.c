/*
 * A net: a world, a device, a comm, a model and its optimizer behind one handle, and the shards of its steps.
 *
 * The number of shards with images depends only on the images of an update. Further shards are empty, so that
 * every rank has one; they do not change the sums.
 */
#include "net_impl.h"
#include "base_impl.h"

#include <libgen.h>
#include <math.h>
#include <unistd.h>

enum { SHARD = 32, STAGES = 64 };

static hvt_status check_opts(const char *name, const hvt_net_opts *o)
{
    bool file = name && strlen(name) > 4 && !strcmp(name + strlen(name) - 4, ".pt2");

    HVT_CHECK(o, E_ARG, "hvt_net_open() needs options, but got NULL");
    HVT_CHECK(!o->refused, E_ARG, "%s", o->refused);
    HVT_CHECK(!name != !o->build, E_ARG,
              "expected either the name of a model or a function that builds one, got %s",
              name ? "both" : "neither");
    HVT_CHECK(file || (o->height > 0 && o->width > 0 && o->channels > 0), E_ARG,
              "images are %d x %d with %d channels, expected sizes above 0", o->height, o->width,
              o->channels);
    HVT_CHECK(file || o->outputs > 0, E_ARG, "%d outputs, expected 1 or more", o->outputs);
    HVT_CHECK(o->lr > 0 && isfinite(o->lr), E_ARG, "lr is %g, expected a learning rate above 0", o->lr);
    HVT_CHECK(o->batch >= 0, E_ARG, "batch is %lld, expected the images of an update, or 0 for all",
              (long long)o->batch);
    HVT_CHECK(o->shard >= 0 && o->threads >= 0, E_ARG, "shard is %d and threads %d, expected 0 or more",
              o->shard, o->threads);
    HVT_CHECK(o->devices >= 0 && o->devices <= STAGES, E_ARG, "%d devices, expected 0 to %d", o->devices,
              STAGES);
    HVT_CHECK(o->compute == HVT_F32 || o->compute == HVT_BF16, E_ARG, "compute is %s, expected f32 or bf16",
              hvt_dtype_name(o->compute));
    return HVT_OK;
}

static hvt_status build(hvt_net *net, const char *name, const hvt_pt2 *file)
{
    hvt_net_opts *o = &net->opts;
    hvt_model *m = net->has.model;
    const hvt_pt2_info info = hvt_pt2_describe(file);
    hvt_value images, logits = -1;
    int hwc[3] = {o->height ? o->height : info.height, o->width ? o->width : info.width,
                  o->channels ? o->channels : info.channels},
        out[3];

    HVT_CHECK(!file || (hwc[0] == info.height && hwc[1] == info.width && hwc[2] == info.channels), E_ARG,
              "%s takes images of %d x %d with %d channels, but the options say %d x %d with %d", name,
              info.height, info.width, info.channels, hwc[0], hwc[1], hwc[2]);
    HVT_TRY(hvt_model_set_loss(m, &o->loss));
    HVT_TRY(hvt_model_set_type(m, o->compute));
    images = hvt_input(m, hwc[0], hwc[1], hwc[2]);
    if (file)
        HVT_TRY(hvt_pt2_build(file, m, images, o->outputs, &logits));
    else
        logits = o->build ? o->build(o->ctx, m, images) : hvt_zoo(m, name, images, o->outputs, &o->zoo);
    if (net->stage)
        HVT_TRY(hvt_model_split(m, &(hvt_split_opts){.devices = net->stage,
                                                     .count = o->devices,
                                                     .at = o->split_at,
                                                     .pipeline = HVT_PIPELINE_1F1B}));
    HVT_TRY(hvt_model_plan(m, o->shard, logits));
    hvt_model_output(m, out);
    net->has.labels = out[0] * out[1];
    net->has.outputs = net->has.labels * out[2];
    net->has.height = hwc[0], net->has.width = hwc[1], net->has.channels = hwc[2];
    net->pixels = (size_t)hwc[0] * (size_t)hwc[1] * (size_t)hwc[2];
    HVT_CHECK(!o->outputs || out[2] == o->outputs, E_SHAPE,
              "the model has %d outputs, but the options say %d", out[2], o->outputs);
    if (!info.weights)
        return hvt_model_init(m, o->seed);
    HVT_TRY(hvt_model_init(m, o->seed)); /* a head of another size keeps these weights */
    return hvt_pt2_load(file, m);
}

/* Opens a device for each of opts.devices equal sets of the rank's threads. */
static hvt_status open_stages(hvt_net *net, const hvt_cores *cores)
{
    const int n = net->opts.devices;

    net->stage = calloc((size_t)n, sizeof *net->stage);
    HVT_CHECK(net->stage, E_MEM, "no memory for %d devices", n);
    for (int k = 0; k < n; k++) {
        const int threads = cores->threads * (k + 1) / n - cores->threads * k / n;
        const hvt_device_opts place = {.threads = threads > 0 ? threads : 1,
                                       .yield = cores->crowded || cores->threads < n};

        HVT_TRY(hvt_device_open(net->opts.device ? net->opts.device : "cpu", &place, &net->stage[k]));
    }
    return HVT_OK;
}

/* Opens all that needs no other rank. */
static hvt_status open_model(hvt_net *net, const char *name, const hvt_cores *cores)
{
    const hvt_net_opts *o = &net->opts;
    const hvt_device_opts place = {.threads = cores->threads, .yield = cores->crowded};
    hvt_pt2 *file = NULL;
    hvt_status s;

    HVT_TRY_OR(done, hvt_device_open(o->device ? o->device : "cpu", &place, &net->has.dev));
    if (o->devices > 1)
        HVT_TRY_OR(done, open_stages(net, cores));
    HVT_TRY_OR(done, hvt_model_create(net->has.dev, &net->has.model));
    if (name && strlen(name) > 4 && !strcmp(name + strlen(name) - 4, ".pt2"))
        HVT_TRY_OR(done, hvt_pt2_open(name, &file));
    HVT_TRY_OR(done, build(net, name, file));
    HVT_TRY_OR(done, hvt_optim_create(net->has.model, &o->optim, &net->has.optim));
done:
    hvt_pt2_close(&file);
    return s;
}

/* Creates a distributed optimizer for these shards, and keeps the optimizer's state. Collective. */
static hvt_status open_exchange(hvt_net *net)
{
    int rank = hvt_world_rank(net->has.world);
    const hvt_distopt_opts exchange = {.bucket_bytes = HVT_BUCKET_DEFAULT,
                                       .local_shards = net->first_of[rank + 1] - net->first_of[rank]};
    char text[4][32];
    hvt_item items[] = {{"batch", text[0]}, {"shard", text[1]}, {"seed", text[2]}, {"lr", text[3]}};

    snprintf(text[0], sizeof text[0], "%lld", (long long)net->opts.batch);
    snprintf(text[1], sizeof text[1], "%d", net->opts.shard);
    snprintf(text[2], sizeof text[2], "%llu", (unsigned long long)net->opts.seed);
    snprintf(text[3], sizeof text[3], "%.17g", net->opts.lr);
    if (net->has.dist) {
        HVT_TRY(hvt_distopt_gather(net->has.dist, -1));
        hvt_distopt_free(&net->has.dist);
    }
    return hvt_distopt_create(net->has.optim, net->has.comm, &exchange, items, HVT_LEN(items),
                              &net->has.dist);
}

/* Gives ranks consecutive shards, each at least one; shards with images are divided equally. */
static void divide(hvt_net *net)
{
    int size = hvt_world_size(net->has.world);

    for (int r = 0; r < size; r++)
        net->first_of[r] = net->used < size ? r : (int)((int64_t)net->used * r / size);
    net->first_of[size] = net->shards;
}

hvt_status hvt__net_divide(hvt_net *net, int64_t n)
{
    int size = hvt_world_size(net->has.world), rank = hvt_world_rank(net->has.world);
    int64_t used = (n + net->opts.shard - 1) / net->opts.shard;
    bool more = used > net->shards, other = used != net->used;

    HVT_CHECK(used <= INT_MAX / 2, E_ARG, "an update of %lld images has %lld shards of %d, expected fewer",
              (long long)n, (long long)used, net->opts.shard);
    if (more || !net->counts) {
        int shards = used > size ? (int)used : size;
        int *grown = realloc(net->counts, (size_t)shards * sizeof *grown);

        HVT_TRY(hvt_world_agree(net->has.world,
                                grown ? HVT_OK : HVT_FAIL(E_MEM, "no memory for %d shards", shards)));
        net->counts = grown;
        net->shards = shards;
    }
    net->used = (int)used;
    divide(net);
    if (more || !net->has.dist)
        HVT_TRY(open_exchange(net));
    else if (other)
        HVT_TRY(hvt_distopt_divide(net->has.dist, net->first_of[rank + 1] - net->first_of[rank]));
    for (int i = 0; i < net->shards; i++)
        net->counts[i] = i < used ? (int)(n * (i + 1) / used - n * i / used) : 0;
    return HVT_OK;
}

hvt_status hvt_net_open(const char *name, const hvt_net_opts *opts, const void *mpi_comm, hvt_net **ret_net)
{
    HVT_GIVEN(ret_net, "an output pointer for the net");

    hvt_net *net = calloc(1, sizeof *net);
    hvt_cores cores;
    hvt_status s;

    HVT_CHECK(net, E_MEM, "no memory for a net");
    HVT_TRY_OR(fail,
               mpi_comm ? hvt_world_wrap(mpi_comm, &net->has.world) : hvt_world_open(NULL, &net->has.world));
    s = check_opts(name, opts);
    net->first_of = calloc((size_t)hvt_world_size(net->has.world) + 1, sizeof *net->first_of);
    net->calls = calloc((size_t)hvt_world_size(net->has.world), sizeof *net->calls);
    if (!net->first_of || !net->calls)
        s = HVT_FAIL(E_MEM, "no memory for a net");
    HVT_TRY_OR(fail, hvt_world_agree(net->has.world, s));
    net->opts = *opts;
    net->opts.shard = opts->shard ? opts->shard : SHARD;
    HVT_TRY_OR(fail, hvt_world_cores(net->has.world, opts->threads, &cores));
    HVT_TRY_OR(fail, hvt_world_agree(net->has.world, open_model(net, name, &cores)));
    HVT_TRY_OR(fail, hvt_comm_open("auto", net->has.world, net->has.dev, &net->has.comm));
    HVT_TRY_OR(fail, hvt__net_divide(net, 1));
    HVT_TRY_OR(fail, hvt_distopt_broadcast(net->has.dist, 0));
    *ret_net = net;
    return HVT_OK;
fail:
    hvt_net_close(&net);
    return s;
}

void hvt_net_close(hvt_net **net)
{
    hvt_net *n = net ? *net : NULL;

    if (!n)
        return;
    hvt_distopt_discard(&n->has.dist);
    hvt_optim_free(&n->has.optim);
    hvt_model_free(&n->has.model);
    hvt_comm_close(&n->has.comm);
    for (int k = 0; n->stage && k < n->opts.devices; k++)
        hvt_device_close(&n->stage[k]);
    free(n->stage);
    hvt_device_close(&n->has.dev);
    hvt_world_close(&n->has.world);
    free(n->first_of);
    free(n->counts);
    free(n->calls);
    free(n);
    *net = NULL;
}

hvt_net_parts hvt_net_describe(const hvt_net *net)
{
    return net ? net->has : (hvt_net_parts){0};
}

hvt_status hvt_net_set_lr(hvt_net *net, double lr)
{
    HVT_GIVEN(net, "a net");
    HVT_CHECK(lr > 0 && isfinite(lr), E_ARG, "lr is %g, expected a learning rate above 0", lr);
    net->opts.lr = lr;
    return HVT_OK;
}

static hvt_status write_file(hvt_net *net, const char *path)
{
    char dir[PATH_MAX], name[PATH_MAX];
    const hvt_progress p = {.steps = net->updates, .epoch = (int)net->epochs, .top1 = -1};

    HVT_TRY(hvt__path(dir, "%s", path));
    HVT_TRY(hvt__path(name, "%s", path));
    return hvt_checkpoint_save(dirname(dir), basename(name), net->has.model, net->has.optim, &p);
}

static hvt_status check_path(const char *path)
{
    HVT_CHECK(path && *path, E_ARG, "expected the path of a checkpoint, got %s",
              path ? "an empty one" : "none");
    return HVT_OK;
}

hvt_status hvt_net_save(hvt_net *net, const char *path)
{
    HVT_GIVEN(net, "a net");
    HVT_TRY(hvt__net_begin(net, HVT__NET_SAVE));

    hvt_world *w = net->has.world;
    hvt_status s = check_path(path);

    HVT_TRY(hvt_world_agree(w, s));
    HVT_TRY(hvt_distopt_gather(net->has.dist, 0));
    return hvt_world_agree(w, hvt_world_rank(w) ? HVT_OK : write_file(net, path));
}

/* Reads PATH.safetensors, as hvt_net_save() writes it, or else a file or folder PATH. */
static hvt_status read_file(hvt_net *net, const char *path, hvt_progress *ret_progress)
{
    char file[PATH_MAX];

    HVT_TRY(hvt__path(file, "%s.safetensors", path));
    return hvt_checkpoint_load(access(file, F_OK) ? path : file, net->has.model, net->has.optim,
                               ret_progress);
}

hvt_status hvt_net_load(hvt_net *net, const char *path)
{
    HVT_GIVEN(net, "a net");
    HVT_TRY(hvt__net_begin(net, HVT__NET_LOAD));

    hvt_world *w = net->has.world;
    hvt_progress p = {0};
    int64_t counters[2];
    hvt_status s = check_path(path);

    if (!s && hvt_world_rank(w) == 0)
        s = read_file(net, path, &p);
    free(p.options);
    free(p.class_names);
    free(p.begun);
    HVT_TRY(hvt_world_agree(w, s));
    HVT_TRY(hvt_distopt_broadcast(net->has.dist, 0));
    counters[0] = p.steps;
    counters[1] = p.epoch;
    HVT_TRY(hvt_world_broadcast(w, counters, sizeof counters, 0));
    net->updates = counters[0];
    net->epochs = counters[1];
    return HVT_OK;
}
