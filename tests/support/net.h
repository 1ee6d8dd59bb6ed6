/*
 * net.h - for the model's tests: a model on a device, with a batch of images and labels that are functions of
 * a counter, and every variant in which it can run here.
 */
#ifndef HVT_NET_H
#define HVT_NET_H

#include "base_impl.h"
#include "check.h"
#include "device/half.h"
#include "model/layers.h"

#include <math.h>

enum { SEED = 1007 };

typedef hvt_value build_fn(hvt_model *m, hvt_value x);

/* A variant of running a net. */
typedef struct how {
    const char *device, *isa;
    int threads;
    hvt_dtype type;     /* of activations */
    bool other_order;   /* rows in the device's less preferred order */
    bool unfused;       /* no fusion */
    bool keeps;         /* every y that backward reads is stored */
    bool poisons;       /* activations become NaN where their lifetime ends */
    const char *freeze; /* prefixes; NULL: none */
    bool inference;     /* hvt_model_set_inference() */
} how;

typedef struct net {
    hvt_device *dev;
    const hvt_device_ops *ops; /* the device's own table */
    hvt_device_ops spy;        /* the device's own table */
    hvt_model *m;
    hvt_batch batch;
    int h, w, c, classes;
} net;

static const how ref = {.device = "ref", .threads = 1};

typedef struct shape {
    int batch, h, w, c;
} shape;

static inline void close_net(net *n)
{
    if (n->dev) {
        n->dev->ops = n->ops;
        n->ops->memory.release(n->dev, n->batch.images.data);
        n->ops->memory.release(n->dev, n->batch.labels.data);
    }
    hvt_model_free(&n->m);
    hvt_device_close(&n->dev);
}

static inline hvt_order hwn(const hvt_device *d, int batch, int height, int width)
{
    (void)d;
    (void)batch;
    (void)height;
    (void)width;
    return HVT_ORDER_HWN;
}

static inline hvt_order nhw(const hvt_device *d, int batch, int height, int width)
{
    (void)d;
    (void)batch;
    (void)height;
    (void)width;
    return HVT_ORDER_NHW;
}

/* the table that the model uses */
static inline float pixel(int image, int element)
{
    return 2 * hvt__unit(hvt__draw(SEED, 1, (uint64_t)image, (uint64_t)element)) - 1;
}

/* Images first .. first+count-1 of an endless set; the rest of the batch is poison. */
static inline void feed(net *n, int first, int count)
{
    int rows = n->h * n->w, room = n->m->batch;
    size_t elements = (size_t)room * rows * n->c;
    void *x = malloc(elements * sizeof(float));
    int32_t *labels = malloc((size_t)room * sizeof *labels);

    for (int i = 0; i < room; i++) {
        labels[i] = (int32_t)hvt__below(hvt__draw(SEED, 2, (uint64_t)(first + i), 0), (uint32_t)n->classes);
        for (int p = 0; p < rows; p++) {
            size_t row = n->m->order == HVT_ORDER_HWN ? (size_t)p * room + i : (size_t)i * rows + p;

            for (int c = 0; c < n->c; c++)
                hvt__store(x, n->m->type, row * n->c + c, i < count ? pixel(first + i, p * n->c + c) : 1e30f);
        }
    }
    CHECK_OK(hvt_device_upload(n->dev, n->batch.images.data, x, elements * hvt_dtype_size(n->m->type)));
    CHECK_OK(hvt_device_upload(n->dev, n->batch.labels.data, labels, (size_t)room * sizeof *labels));
    n->batch.count = count;
    free(x);
    free(labels);
}

/* Builds, plans, initialises. False, with a message, on failure. */
static inline bool open_net(net *n, how by, build_fn *build, shape s)
{
    hvt_device_opts opts = {.threads = by.threads, .isa = by.isa};
    int rows[4] = {s.batch, s.h, s.w, s.c};
    hvt_value x;

    *n = (net){.h = s.h, .w = s.w, .c = s.c};
    CHECK_OK(hvt_device_open(by.device, &opts, &n->dev));
    if (!n->dev)
        return false;
    n->ops = n->dev->ops;
    n->spy = *n->ops;
    if (by.other_order)
        n->spy.order = hvt_device_order(n->dev, s.batch, s.h, s.w) == HVT_ORDER_HWN ? nhw : hwn;
    if (by.keeps)
        n->spy.recomputes = false;
    n->dev->ops = &n->spy;
    CHECK_OK(hvt_model_create(n->dev, &n->m));
    CHECK_OK(hvt_model_set_type(n->m, by.type));
    n->m->unfused = by.unfused;
    n->m->poisons = by.poisons;
    x = build(n->m, hvt_input(n->m, s.h, s.w, s.c));
    CHECK_OK(hvt_model_freeze(n->m, by.freeze));
    if (by.inference)
        CHECK_OK(hvt_model_set_inference(n->m));
    CHECK_OK(hvt_model_plan(n->m, s.batch, x));
    if (!n->m->batch)
        return false;
    CHECK_OK(hvt_model_init(n->m, SEED));
    n->classes = hvt_model_classes(n->m);
    if (n->m->order == HVT_ORDER_HWN)
        memcpy(rows, (int[]){s.h, s.w, s.batch, s.c}, sizeof rows);
    n->batch.images = (hvt_tensor){.dtype = by.type, .ndim = 4, .dim = {rows[0], rows[1], rows[2], rows[3]}};
    n->batch.labels = (hvt_tensor){.dtype = HVT_I32, .ndim = 1, .dim = {s.batch, 1, 1, 1}};
    n->batch.shards = 1;
    CHECK_OK(n->ops->memory.alloc(n->dev, hvt_tensor_count(&n->batch.images) * sizeof(float),
                                  &n->batch.images.data));
    CHECK_OK(n->ops->memory.alloc(n->dev, (size_t)s.batch * sizeof(int32_t), &n->batch.labels.data));
    feed(n, 0, s.batch);
    return true;
}

/* Variant i, false past the last: cpu on each instruction set, one and two threads; the other order on both
 * devices. With HVT_HOSTED cuda instead of cpu (tests/cuda/whole/hosted.c). */
static inline bool way(int i, how *ret_way)
{
    int sets = hvt_cpu_isa_count(), k = 0;

    if (i == k++) {
        *ret_way = (how){.device = "ref", .threads = 1, .other_order = true};
        return true;
    }
#ifdef HVT_HOSTED
    if (i == k++) {
        *ret_way = (how){.device = "cuda", .threads = 1};
        return true;
    }
    sets = 0;
#endif
    for (int set = 0; set < sets; set++) {
        if (!hvt_cpu_isa_supported(set))
            continue;
        for (int j = 0; j < 2; j++)
            if (i == k++) {
                *ret_way =
                    (how){.device = "cpu", .isa = hvt_cpu_isa_name(set), .threads = 1 + j, .other_order = j};
                return true;
            }
    }
    return false;
}

static inline const char *way_name(how by)
{
    static char text[64];

    snprintf(text, sizeof text, "%s %s, %d threads%s%s", by.device, by.isa ? by.isa : "", by.threads,
             by.other_order ? ", other order" : "", by.unfused ? ", unfused" : "");
    return text;
}

/* The sum over the rows of the last forward pass, in double. */
static inline double loss_of(net *n)
{
    float *loss = calloc((size_t)n->m->batch, sizeof *loss);
    int32_t *place = calloc((size_t)n->m->batch, sizeof *place);
    double sum = 0;

    CHECK_OK(hvt_model_rows(n->m, loss, place));
    for (int i = 0; i < n->batch.count; i++)
        sum += loss[i];
    free(loss);
    free(place);
    return sum;
}

static inline double train_loss(net *n)
{
    CHECK_OK(hvt_model_forward(n->m, &n->batch, true));
    return loss_of(n);
}

/* A canonical copy of parameter i of an arena; free() it. */
static inline float *canonical(net *n, int i, const float *arena)
{
    float *x = malloc(n->m->param[i].elements * sizeof *x);

    CHECK_OK(hvt__model_export(n->m, &n->m->param[i], arena, x));
    return x;
}

#endif /* HVT_NET_H */
