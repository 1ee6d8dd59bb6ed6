/*
 * rig.h - trains a small ResNet, for tests of the distributed optimizer, alone and under mpirun.
 *
 * `job` is the world of all ranks; `lone` is a world of this process only, in which a rank computes by itself
 * the result that the job must have. A *setup* describes a training, a *rig* holds its objects, and a
 * *result* is what must be equal to the bit.
 */
#ifndef HVT_RIG_H
#define HVT_RIG_H

#include "optim_impl.h"
#include "base_impl.h"
#include "threads.h"

#include <math.h>

static __thread hvt_world *job, *lone;

enum { STAGES_MAX = 4 };
enum { SIDE = 6, PIXELS = SIDE * SIDE * 3, CLASSES = 5, BATCH = 4, SHARDS_MAX = 64 };

typedef struct setup {
    hvt_world *world;
    const char *device, *comm;
    int threads, shards, batch; /* of the whole job; images per shard */
    hvt_dtype type;             /* of activations */
    bool norm;                  /* with batch norm */
    int classes;
    uint64_t seed;
    const char *freeze; /* prefixes; NULL: none */
    hvt_loss_opts loss;
    hvt_optim_opts sgd;
    int stages;            /* devices of a split model; 0: one */
    bool poisons;          /* activations become NaN where their lifetime ends */
    hvt_split_opts split;  /* devices and count are the rig's */
    bool grouped;          /* a parameter in the middle has its own rate and decay */
    hvt_distopt_opts dist; /* local_shards follows from shards */
} setup;

typedef struct rig {
    setup u;
    hvt_device *dev, *stage[STAGES_MAX]; /* stage[0] is dev */
    hvt_comm *comm;
    hvt_model *m;
    hvt_optim *o;
    hvt_distopt *d;
    float *images;   /* device memory, one batch */
    void *typed;     /* device memory, the same in the model's type */
    int32_t *labels; /* device memory */
    float *targets;  /* device memory; with HVT_LOSS_MSE, instead of labels */
} rig;

typedef struct result {
    uint64_t weights, momentum; /* hashes; momentum: of all state of the optimizer */
    hvt_loss loss;
    int64_t skipped;
} result;

/* ResNet-like, shards of 4 images, momentum and decay, f32, one bucket per layer, comm `auto`. */
static inline setup usual(hvt_world *world, int shards)
{
    return (setup){
        .world = world,
        .device = "ref",
        .comm = world == lone ? "self" : "auto",
        .threads = 1,
        .shards = shards,
        .batch = BATCH,
        .norm = true,
        .classes = CLASSES,
        .seed = 3,
        .sgd = {.momentum = .9f, .weight_decay = 5e-4f},
    };
}

/* A multiple of 4 that gives each rank a power of two. */
static inline int even_shards(void)
{
    int ranks = hvt_world_size(job);

    return 4 % ranks ? 4 * ranks : 4;
}

static inline hvt_value conv_norm(hvt_model *m, const setup *u, hvt_value x, int filters, int size,
                                  int stride)
{
    hvt_value y = hvt_conv2d(m, x, filters, size, stride, size / 2);

    return u->norm ? hvt_batchnorm(m, y) : y;
}

static inline hvt_value small_resnet(hvt_model *m, const setup *u)
{
    hvt_value x, y;

    x = hvt_relu(m, conv_norm(m, u, hvt_input(m, SIDE, SIDE, 3), 8, 3, 1));
    y = hvt_relu(m, conv_norm(m, u, x, 8, 3, 1));
    x = hvt_relu(m, hvt_add(m, conv_norm(m, u, y, 8, 3, 1), x));
    y = hvt_relu(m, conv_norm(m, u, x, 12, 3, 2));
    x = hvt_relu(m, hvt_add(m, conv_norm(m, u, y, 12, 3, 1), conv_norm(m, u, x, 12, 1, 2)));
    return hvt_linear(m, hvt_avgpool(m, x), u->classes);
}

static inline void rig_close(rig *r)
{
    hvt_distopt_free(&r->d);
    hvt_optim_free(&r->o);
    hvt_model_free(&r->m);
    if (r->dev) {
        r->dev->ops->memory.release(r->dev, r->images);
        r->dev->ops->memory.release(r->dev, r->typed);
        r->dev->ops->memory.release(r->dev, r->labels);
        r->dev->ops->memory.release(r->dev, r->targets);
    }
    hvt_comm_close(&r->comm);
    for (int k = 1; k < STAGES_MAX; k++)
        hvt_device_close(&r->stage[k]);
    hvt_device_close(&r->dev);
}

static inline hvt_status rig_split(rig *r, const setup *u)
{
    hvt_device_opts dev = {.threads = u->threads, .yield = true};
    hvt_split_opts split = u->split;

    r->stage[0] = r->dev;
    for (int k = 1; k < u->stages; k++)
        HVT_TRY(hvt_device_open(u->device, &dev, &r->stage[k]));
    split.devices = r->stage;
    split.count = u->stages;
    return u->stages ? hvt_model_split(r->m, &split) : HVT_OK;
}

/* Opens all but the distributed optimizer. */
static inline hvt_status rig_prepare(rig *r, const setup *u)
{
    hvt_device_opts dev = {.threads = u->threads, .yield = true};

    *r = (rig){.u = *u};
    r->u.dist.local_shards = u->shards / hvt_world_size(u->world);
    HVT_TRY(hvt_device_open(u->device, &dev, &r->dev));
    HVT_TRY(hvt_comm_open(u->comm, u->world, r->dev, &r->comm));
    HVT_TRY(hvt_model_create(r->dev, &r->m));
    HVT_TRY(hvt_model_set_type(r->m, u->type));
    HVT_TRY(hvt_model_freeze(r->m, u->freeze));
    HVT_TRY(hvt_model_set_loss(r->m, &u->loss));
    HVT_TRY(rig_split(r, u));
    r->m->poisons = u->poisons;
    HVT_TRY(hvt_model_plan(r->m, u->batch, small_resnet(r->m, u)));
    HVT_TRY(hvt_model_init(r->m, u->seed));
    HVT_TRY(
        r->dev->ops->memory.alloc(r->dev, (size_t)u->batch * PIXELS * sizeof(float), (void **)&r->images));
    HVT_TRY(r->dev->ops->memory.alloc(r->dev, (size_t)u->batch * PIXELS * sizeof(float), &r->typed));
    HVT_TRY(r->dev->ops->memory.alloc(r->dev, (size_t)u->batch * sizeof(int32_t), (void **)&r->labels));
    HVT_TRY(r->dev->ops->memory.alloc(r->dev, (size_t)(u->batch * u->classes) * sizeof(float),
                                      (void **)&r->targets));
    HVT_TRY(hvt_optim_create(r->m, &u->sgd, &r->o));
    return u->grouped ? hvt_optim_group(r->o, r->m->param[r->m->ntrained / 2].name, .5, .1) : HVT_OK;
}

static inline hvt_status rig_open(rig *r, const setup *u)
{
    HVT_TRY(rig_prepare(r, u));
    return hvt_distopt_create(r->o, r->comm, &r->u.dist, NULL, 0, &r->d);
}

/* Images from `first` on of an endless set: noise around a colour that the label chooses. */
static inline hvt_status fill_batch(rig *r, int first, int count, hvt_batch *ret_batch)
{
    int n = r->u.batch;
    float *x = malloc((size_t)n * PIXELS * sizeof *x);
    float *targets = calloc((size_t)(n * r->u.classes), sizeof *targets);
    int32_t *labels = calloc((size_t)n, sizeof *labels);
    hvt_status s;

    for (int i = 0; i < n; i++)
        for (int k = 0; k < PIXELS; k++) {
            uint32_t id = (uint32_t)(first + i);
            float noise = hvt__unit(hvt__draw(1, id, (uint64_t)k, 0)) - .5f;
            size_t row = hvt_model_order(r->m) == HVT_ORDER_HWN ? (size_t)(k / 3 * n + i)
                                                                : (size_t)(i * (PIXELS / 3) + k / 3);

            labels[i] = (int)(id % CLASSES);
            x[row * 3 + (size_t)(k % 3)] = i < count ? noise + .3f * (float)(labels[i] % 3 == k % 3) : 7e3f;
        }
    for (int i = 0; i < n; i++)
        targets[i * r->u.classes + labels[i] % r->u.classes] = 1;
    s = hvt_device_upload(r->dev, r->images, x, (size_t)n * PIXELS * sizeof *x);
    if (s == HVT_OK)
        s = r->dev->ops->vector.cast(r->dev, (size_t)n * PIXELS, 1, r->images, HVT_F32, r->typed, r->u.type);
    if (s == HVT_OK)
        s = hvt_device_upload(r->dev, r->labels, labels, (size_t)n * sizeof *labels);
    if (s == HVT_OK)
        s = hvt_device_upload(r->dev, r->targets, targets, (size_t)(n * r->u.classes) * sizeof *targets);
    free(x);
    free(targets);
    free(labels);
    *ret_batch = (hvt_batch){
        .images = {r->typed, r->u.type, 4, {n, SIDE, SIDE, 3}},
        .labels = {r->labels, HVT_I32, 1, {n, 1, 1, 1}},
        .count = count,
    };
    if (r->u.loss.kind == HVT_LOSS_MSE) {
        ret_batch->labels.data = NULL;
        ret_batch->targets = (hvt_tensor){r->targets, HVT_F32, 2, {n, r->u.classes, 1, 1}};
    }
    if (hvt_model_order(r->m) == HVT_ORDER_HWN)
        memcpy(ret_batch->images.dim, (int[4]){SIDE, SIDE, n, 3}, sizeof ret_batch->images.dim);
    return s;
}

/* Step t: shard s takes counts[s] images from place (t*shards + s)*batch on. */
static inline hvt_status rig_step_counts(rig *r, int t, double lr, const int *counts)
{
    const setup *u = &r->u;
    int local = u->dist.local_shards, first = hvt_world_rank(u->world) * local;
    hvt_batch b;

    hvt_distopt_average(r->d); /* an equal average has the weights after every step */
    HVT_TRY(hvt_distopt_begin(r->d, counts, u->shards, lr));
    for (int s = first; s < first + local; s++) {
        HVT_TRY(fill_batch(r, (t * u->shards + s) * u->batch, counts[s], &b));
        b.shard = s;
        b.shards = u->shards;
        b.shard_counts = counts;
        HVT_TRY(hvt_model_forward(r->m, &b, true));
        HVT_TRY(hvt_model_backward(r->m, hvt_distopt_on_grad, r->d));
    }
    return hvt_distopt_step(r->d);
}

/* A gradient that depends only on shard and element. */
static inline float leaf(int shard, size_t i)
{
    return hvt__unit(hvt__draw(5, (uint64_t)shard, i, 0)) - .5f;
}

/* One step with given gradients, of `each` images per shard, reported in spans of odd lengths. */
static inline hvt_status step_by_hand(rig *r, float (*gradient)(int shard, size_t i), int each, double lr)
{
    int local = r->u.dist.local_shards, first = hvt_world_rank(r->u.world) * local, counts[SHARDS_MAX];
    size_t n = r->m->grad_count;
    float *g = malloc(n * sizeof *g);

    for (int s = 0; s < r->u.shards; s++)
        counts[s] = each;
    HVT_TRY(hvt_distopt_begin(r->d, counts, r->u.shards, lr));
    for (int s = first; s < first + local; s++) {
        for (size_t i = 0; i < n; i++)
            g[i] = gradient(s, i);
        HVT_TRY(hvt_device_upload(r->dev, r->m->grads, g, n * sizeof *g));
        for (size_t at = 0, end; at < n; at = end) {
            end = at + 1 + hvt__below(hvt__draw(9, (uint64_t)s, at, 0), 700);
            if (end > n)
                end = n;
            HVT_TRY(hvt_distopt_on_grad(r->d, at, end));
        }
    }
    free(g);
    return hvt_distopt_step(r->d);
}

/* By turns: full shards, a short one, one with a single image, an empty one. */
static inline hvt_status rig_step(rig *r, int t)
{
    int counts[SHARDS_MAX], batch = r->u.batch, some[4] = {batch, batch - 1, 0, 1};

    for (int s = 0; s < r->u.shards; s++)
        counts[s] = t % 3 == 0 ? batch : r->u.shards == 1 ? batch - t % batch : some[(s + t) % 4];
    return rig_step_counts(r, t, .05, counts);
}

static inline hvt_status rig_result(rig *r, result *ret)
{
    float *state;

    memset(ret, 0, sizeof *ret); /* compared as bytes */
    HVT_TRY(hvt_model_hash(r->m, &ret->weights));
    HVT_TRY(hvt_distopt_gather(r->d, -1));
    HVT_TRY(hvt__optim_state(r->o, false, &state));
    for (int i = 0; state && i < r->o->arenas * r->m->ntrained; i++) {
        const hvt_param *p = &r->m->param[i % r->m->ntrained];
        float *v = malloc(p->elements * sizeof *v);

        HVT_TRY(hvt__model_export(r->m, p, state + (size_t)(i / r->m->ntrained) * r->m->grad_count, v));
        ret->momentum = hvt__hash(ret->momentum, v, p->elements * sizeof *v);
        free(v);
    }
    if (r->o->ema_stats)
        ret->momentum = hvt__hash(ret->momentum, r->o->ema_stats, r->m->stats_count * sizeof(float));
    ret->skipped = hvt_distopt_skipped(r->d);
    return hvt_model_take_loss(r->m, &ret->loss);
}

static inline bool is_fresh(rig *r)
{
    bool fresh = false;

    CHECK_OK(hvt__optim_fresh(r->o, &fresh));
    return fresh;
}

/* Runs steps first .. end-1; closes the rig. */
static inline result rig_finish(rig *r, int first, int end)
{
    result ret;

    memset(&ret, 0, sizeof ret);
    if (r->d) {
        for (int t = first; t < end; t++)
            CHECK_OK(rig_step(r, t));
        CHECK_OK(rig_result(r, &ret));
    }
    rig_close(r);
    return ret;
}

/* In the world of one, rank 0 does the work; tell_all() then gives its result to all ranks of the job. */
static inline bool is_mine(const setup *u)
{
    return u->world != lone || hvt_world_rank(job) == 0;
}

static inline void tell_all(const setup *u, result *ret)
{
    if (u->world == lone)
        CHECK_OK(hvt_world_broadcast(job, ret, sizeof *ret, 0));
}

/* Called by all ranks of the job together. */
static inline result train(const setup *u, int steps)
{
    result ret = {0};
    rig r;

    if (is_mine(u)) {
        CHECK_OK(rig_open(&r, u));
        ret = rig_finish(&r, 0, steps);
    }
    tell_all(u, &ret);
    return ret;
}

static inline bool same(result a, result b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Checks that every rank of the job has the same result. */
static inline void check_replicas(const char *what, result mine)
{
    int n = hvt_world_size(job);
    result *all = malloc((size_t)n * sizeof *all);

    CHECK_OK(hvt_world_allgather(job, &mine, sizeof mine, all));
    for (int r = 1; r < n; r++)
        CHECK(same(all[0], all[r]), "%s: rank %d has weights %016llx, rank 0 %016llx", what, r,
              (unsigned long long)all[r].weights, (unsigned long long)all[0].weights);
    free(all);
}

#define CHECK_SAME(a, b, ...)                                                                                \
    do {                                                                                                     \
        const result a_ = (a), b_ = (b);                                                                     \
        CHECK(a_.weights == b_.weights, __VA_ARGS__);                                                        \
        CHECK(same(a_, b_), __VA_ARGS__);                                                                    \
    } while (0)

/* Canonical values of all parameters, one after the other; free() it. */
static inline float *parameters(rig *r, size_t *ret_count)
{
    size_t n = hvt_model_parameters(r->m), at = 0;
    float *w = malloc(n * sizeof *w);

    for (int i = 0; i < r->m->nparam_tensors; at += r->m->param[i++].elements)
        CHECK_OK(hvt__model_export(r->m, &r->m->param[i], r->m->params, w + at));
    CHECK(at == n, "%zu parameters in tensors, %zu counted", at, n);
    *ret_count = n;
    return w;
}

/* ||a - b|| / ||b - base|| over all parameters. */
static inline double distance(const float *a, const float *b, const float *base, size_t n)
{
    double d = 0, all = 0;

    for (size_t i = 0; i < n; i++) {
        d += pow((double)a[i] - b[i], 2);
        all += pow((double)b[i] - base[i], 2);
    }
    return sqrt(d / all);
}

/* The parameters after `steps` steps from the common start. */
static inline float *walk(const setup *u, int steps, float **ret_start, size_t *ret_count)
{
    float *w = NULL;
    rig r;

    CHECK_OK(rig_open(&r, u));
    if (ret_start)
        *ret_start = parameters(&r, ret_count);
    for (int t = 0; t < steps; t++)
        CHECK_OK(rig_step(&r, t));
    w = parameters(&r, ret_count);
    rig_close(&r);
    return w;
}

/* True if this comm suits these ranks. A suitable one that does not open is a failure. */
static inline bool can_open(const char *comm)
{
    hvt_device *dev = NULL;
    hvt_comm *c = NULL;
    hvt_status s;

    s = hvt_device_open("ref", NULL, &dev);
    if (s == HVT_OK)
        s = hvt_comm_open(comm, job, dev, &c);
    if (s != HVT_OK && s != HVT_E_UNSUPPORTED)
        CHECK_OK(s);
    hvt_comm_close(&c);
    hvt_device_close(&dev);
    return s == HVT_OK;
}

/* Checks that the job has this result of `steps` steps over each comm, with any buckets and threads and with
 * a worker. The update is replicated or automatic. */
static inline void check_every_exchange(setup u, int steps, result want)
{
    static const char *const comms[] = {"mpi", "shm", "self"};
    static const size_t bytes[] = {0, 1000, HVT_BUCKET_ALL, HVT_BUCKET_DEFAULT};

    for (size_t i = 0; i < HVT_LEN(comms) * HVT_LEN(bytes); i++) {
        rig r;
        result got;

        u.comm = comms[i / HVT_LEN(bytes)];
        u.threads = 1 + (int)(i % 3);
        u.dist.bucket_bytes = bytes[i % HVT_LEN(bytes)];
        u.dist.update = i % 2 ? HVT_UPDATE_AUTO : HVT_UPDATE_REPLICATED;
        if (!can_open(u.comm))
            continue;
        CHECK_OK(rig_open(&r, &u));
        if (i % 3 == 1 && hvt_world_size(job) > 1)
            CHECK_OK(hvt_comm_overlap(r.comm, &(hvt_overlap){.yield = true}));
        for (int t = 0; t < steps; t++)
            CHECK_OK(rig_step(&r, t));
        CHECK_OK(rig_result(&r, &got));
        rig_close(&r);
        check_replicas(u.comm, got);
        CHECK_SAME(want, got, "%s over %s, buckets of %zu bytes: other bits", u.device, u.comm,
                   u.dist.bucket_bytes);
    }
}

/* Sets all elements of an arena to `value` (also the padding, which nothing reads). */
static inline void fill(rig *r, float *arena, float value)
{
    size_t n = r->m->arena_count;
    float *host = malloc(n * sizeof *host);

    for (size_t i = 0; i < n; i++)
        host[i] = value;
    CHECK_OK(hvt_device_upload(r->dev, arena, host, n * sizeof *host));
    free(host);
}

/* The first updates of x overflow, so its scale falls; y begins with the scale of x's first update that is
 * made. After four updates both must be equal. */
static inline void skip_first_updates(const setup *u, rig *x, rig *y)
{
    setup high = *u, fit = *u;

    high.dist.scaling = (hvt_scaling){.scale = 0x1p40, .interval = 2000, .floor = 1};
    CHECK_OK(rig_open(x, &high));
    for (int t = 0; t < 40 && hvt_distopt_skipped(x->d) == t; t++)
        CHECK_OK(rig_step(x, 0));
    CHECK(hvt_distopt_skipped(x->d) > 5, "%lld updates were skipped", (long long)hvt_distopt_skipped(x->d));
    CHECK(hvt_distopt_loss_scale(x->d) == ldexp(1, 40 - (int)hvt_distopt_skipped(x->d)), "scale %g",
          hvt_distopt_loss_scale(x->d));
    fit.dist.scaling = high.dist.scaling;
    fit.dist.scaling.scale = hvt_distopt_loss_scale(x->d);
    CHECK_OK(rig_open(y, &fit));
    CHECK_OK(rig_step(y, 0));
    for (int t = 1; t < 4; t++) {
        CHECK_OK(rig_step(x, t));
        CHECK_OK(rig_step(y, t));
    }
    CHECK(hvt_distopt_skipped(y->d) == 0, "the other one has skipped, too");
}

/* ---- a rank without memory ---- */

static const hvt_device_ops *ops_of_device;
static int allocations_left;

static inline hvt_status scarce_alloc(hvt_device *d, size_t bytes, void **ret_ptr)
{
    if (allocations_left-- <= 0)
        return HVT_FAIL(E_MEM, "no memory for %zu bytes (a test)", bytes);
    return ops_of_device->memory.alloc(d, bytes, ret_ptr);
}

/* On the last rank the k-th allocation of hvt_distopt_create() fails, for every k, until there are enough:
 * all ranks get the error and are intact afterwards. Returns the number of allocations. */
static inline int rig_create_scarcely(rig *r)
{
    int rank = hvt_world_rank(r->u.world), size = hvt_world_size(r->u.world), k = 0;
    hvt_device_ops ops;

    ops_of_device = r->dev->ops;
    ops = *ops_of_device;
    ops.memory.alloc = scarce_alloc;
    for (; k < 20 && !r->d; k++) {
        hvt_status s;

        allocations_left = k;
        r->dev->ops = rank == size - 1 ? &ops : ops_of_device;
        s = hvt_distopt_create(r->o, r->comm, &r->u.dist, NULL, 0, &r->d);
        r->dev->ops = ops_of_device;
        CHECK(s == HVT_OK || s == HVT_E_MEM, "%s: allocation %d: %s", r->u.comm, k, hvt_last_error());
        CHECK(s == HVT_OK || (!r->d && !r->m->grads_placed && !r->m->params_placed && !r->o->sliced),
              "%s: allocation %d left something behind", r->u.comm, k);
    }
    CHECK(r->d, "%s: %d allocations were not enough", r->u.comm, k);
    return k;
}

/* ---- main ---- */

/* False, with a message, on failure. */
static inline bool rig_begin(void)
{
    threads_begin();
    CHECK_OK(threads_open(&job));
    CHECK_OK(hvt_world_open("singleton", &lone));
    return job && lone;
}

/* The exit code. */
static inline int rig_end(void)
{
    hvt_world_close(&lone);
    threads_close(&job);
    return check_done();
}

#endif /* HVT_RIG_H */
