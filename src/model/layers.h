/*
 * layers.h - between the files of src/model: the layer table's entries, how builders append, what a layer
 * may ask for while it is planned, and the arenas' fit.
 *
 * A layer's file holds its builder, plan, forward and backward side by side. Shapes are inferred when a
 * layer is appended (y's dim[0], the batch, stays 0 until the plan), so the first mistake is known at once;
 * it is kept in the model and reported by hvt_model_plan().
 *
 * Included by src/model. Nothing else.
 */
#ifndef HVT_LAYERS_H
#define HVT_LAYERS_H

#include "model_impl.h"

extern const hvt_layer_ops hvt_layer_input, hvt_layer_conv, hvt_layer_norm, hvt_layer_relu, hvt_layer_add,
    hvt_layer_maxpool, hvt_layer_avgpool, hvt_layer_subsample, hvt_layer_linear, hvt_layer_loss;

/* characters of a layer's name; the rest is for what it is followed by */
enum { HVT_LAYER_NAME_MOST = HVT_NAME_MAX - (int)sizeof ".num_batches_tracked" };

enum { HVT_NORM_RELU }; /* index into a norm layer's arg: relu follows, folded; in[1] is the residual */

/* ---- building ---- */

/* The layer appended next, reading a and b (-1: nothing), with its name; NULL after a mistake, also of this
 * call. Valid until hvt__layer_end(). */
hvt_layer *hvt__layer_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value a, hvt_value b);
/* Append it: its output has h x w pixels of c channels. */
hvt_value hvt__layer_end(hvt_model *m, hvt_layer *l, int64_t h, int64_t w, int64_t c);
/* Record the first mistake, in layer l (NULL: of no layer). Returns -1. */
hvt_value hvt__mistake(hvt_model *m, const hvt_layer *l, hvt_status code, const char *fmt, ...)
    HVT_PRINTF(4, 5);

#define HVT_EXPECT(m, l, cond, ...)                                                                          \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return hvt__mistake(m, l, HVT_E_SHAPE, __VA_ARGS__);                                             \
    } while (0)

enum { HVT_MOST = 1 << 20 }; /* of any number a builder is given: sums and products of two stay in range */

/* ---- planning ---- */

/* A trainable tensor of layer l, in its slot: name is the layer's and suffix. op translates its layout, with
 * `count` floats in the arena; NULL: it lies as in files. */
hvt_status hvt__param_add(hvt_model *m, hvt_layer *l, int slot, const hvt_param *p, const char *suffix);
/* Moving statistics of layer l: count of each. */
hvt_status hvt__stats_add(hvt_model *m, hvt_layer *l, int count);
void hvt__model_fold(hvt_model *m, const int *uses); /* uses[nlayer]: how often each value is read */
hvt_status hvt__step_open(hvt_model *m);             /* the step's state, as before the first one */
hvt_status hvt__step_restart(hvt_model *m);          /* the same again, but for what it counts */
/* Free what a plan made; the tape stays. */
void hvt__model_unplan(hvt_model *m);

/* Something that lies in an arena from time `from` to time `to`, both included. */
typedef struct hvt_block {
    size_t bytes; /* 0: takes no room */
    int from, to;
    size_t offset; /* 64-byte aligned */
    int next;      /* hvt__arena_fit's own */
} hvt_block;

/* Give every block an offset such that those alive at one time do not overlap; returns the arena's bytes. */
size_t hvt__arena_fit(hvt_block *block, int n);

/* ---- running ---- */

static inline hvt_layer *hvt__in(hvt_model *m, const hvt_layer *l, int i)
{
    return &m->layer[l->in[i]];
}

static inline int hvt__pixels(const hvt_layer *l)
{
    return l->y.dim[1] * l->y.dim[2];
}

static inline size_t hvt__elements(const hvt_layer *l)
{
    return hvt_tensor_count(&l->y);
}

static inline size_t hvt__bytes(const hvt_layer *l)
{
    return hvt__elements(l) * hvt_dtype_size(l->y.dtype);
}

/* Rows of l's output, those of the last forward's images real. */
static inline hvt_rows hvt__real_rows(const hvt_model *m, const hvt_layer *l)
{
    return hvt__rows(m->order, hvt__pixels(l), m->batch, m->real);
}

/* The span of a layer's parameter in the parameters, in the gradients. */
static inline float *hvt__weight(const hvt_model *m, const hvt_layer *l, int slot)
{
    return m->params + m->param[l->param[slot]].offset;
}

static inline float *hvt__grad(const hvt_model *m, const hvt_layer *l, int slot)
{
    return m->grads + m->param[l->param[slot]].offset;
}

/* Convolution, shared with the linear layer, which is one of 1x1 images. */
hvt_status hvt__conv_plan(hvt_model *m, hvt_layer *l, const hvt_conv_desc *d, hvt_param p);
hvt_status hvt__conv_forward(hvt_model *m, hvt_layer *l);
hvt_status hvt__conv_backward(hvt_model *m, hvt_layer *l);

/* y of norm layer l again, as the last training pass made it. */
hvt_status hvt__norm_recompute(hvt_model *m, hvt_layer *l);
/* Moving statistics of norm layer l from the rider's sums over all shards. */
hvt_status hvt__norm_end_step(hvt_model *m, hvt_layer *l, const int *counts, int shards);

#endif /* HVT_LAYERS_H */
