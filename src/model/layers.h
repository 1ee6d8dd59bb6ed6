/*
 * layers.h - shared by the files of src/model: the table of layers, what builders and plans call, and the
 * arena allocator.
 *
 * A layer's file has its builder, plan, forward and backward side by side. Shapes are inferred when a layer
 * is appended (y's dim[0], the batch, stays 0 until the plan), so the first mistake is found at once; the
 * model keeps it, and hvt_model_plan() reports it.
 *
 * Included by src/model only.
 */
#ifndef HVT_MODEL_LAYERS_H
#define HVT_MODEL_LAYERS_H

#include "model_impl.h"

#include <pthread.h>

extern const hvt_layer_ops hvt_layer_input, hvt_layer_conv, hvt_layer_norm, hvt_layer_relu, hvt_layer_add,
    hvt_layer_maxpool, hvt_layer_avgpool, hvt_layer_subsample, hvt_layer_linear, hvt_layer_loss,
    hvt_layer_map[HVT_FUNCTIONS], hvt_layer_binary[HVT_BINARIES], hvt_layer_concat, hvt_layer_slice,
    hvt_layer_shuffle, hvt_layer_transpose, hvt_layer_pad, hvt_layer_flatten, hvt_layer_layernorm,
    hvt_layer_groupnorm, hvt_layer_dropout, hvt_layer_sum, hvt_layer_reshape, hvt_layer_zeros,
    hvt_layer_constant, hvt_layer_attention, hvt_layer_rotary, hvt_layer_maxima, hvt_layer_amax,
    hvt_layer_interpolate, hvt_layer_border, hvt_layer_gather, hvt_layer_matmul, hvt_layer_conv_transpose,
    hvt_layer_weight, hvt_layer_weight_numbers, hvt_layer_weight_view, hvt_layer_weight_combine,
    hvt_layer_weight_sum, hvt_layer_weight_matmul, hvt_layer_weight_standardise, hvt_layer_weight_concat;

/* The longest layer name that leaves space for the longest suffix. */
enum { HVT_LAYER_NAME_MOST = HVT_NAME_MAX - (int)sizeof ".num_batches_tracked" };

/* Begins the next layer, which reads in[0 .. count-1], and names it; its y has the shape of in[0]. NULL after
 * a mistake, in this call or an earlier one. Valid until hvt__layer_end(). */
hvt_layer *hvt__layer_begin_many(hvt_model *m, const hvt_layer_ops *ops, const hvt_value *in, int count);
/* The same for a layer with one input. */
hvt_layer *hvt__layer_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value x);
/* Allocates constant arrays of a layer, with space for is->all elements; NULL after a mistake.
 * hvt__constants_put() uploads them at plan time. */
hvt__constants *hvt__constants_begin(hvt_model *m, hvt_layer *l, const hvt__constants *is);
hvt_status hvt__constants_put(hvt_model *m, hvt_layer *l);
/* At plan time: fails if the device does not have this op. */
#define HVT__COMPUTES(m, l, op)                                                                              \
    HVT_CHECK((m)->dev->ops->op, E_UNSUPPORTED, "layer %s (%s): device %s does not compute it", (l)->name,   \
              (l)->ops->name, (m)->dev->ops->name)

/* Append the layer: its output has h x w pixels of c channels. */
hvt_value hvt__layer_end(hvt_model *m, hvt_layer *l, int64_t h, int64_t w, int64_t c);
/* Record the first mistake, of layer l or, if NULL, of the model. Returns -1. */
hvt_value hvt__mistake(hvt_model *m, const hvt_layer *l, hvt_status code, const char *fmt, ...)
    HVT_PRINTF(4, 5);

#define HVT_EXPECT(m, l, cond, ...)                                                                          \
    do {                                                                                                     \
        if (!(cond))                                                                                         \
            return hvt__mistake(m, l, HVT_E_SHAPE, __VA_ARGS__);                                             \
    } while (0)

enum { HVT_MOST = 1 << 20 }; /* maximum of any builder argument: sums and products of two do not overflow */

/* Add a trainable tensor to layer l in `slot`. Its name is the layer's, plus `suffix` unless NULL. p->op
 * converts its layout, of `count` floats in the arena; NULL: the layout is the same as in files. */
hvt_status hvt__param_add(hvt_model *m, hvt_layer *l, int slot, const hvt_param *p, const char *suffix);
/* Add running statistics to layer l, `count` of each. */
hvt_status hvt__stats_add(hvt_model *m, hvt_layer *l, int count);
void hvt__model_fold(hvt_model *m, const int *uses); /* uses[nlayer]: number of readers of each value */
uint64_t hvt__tape_hash(const hvt_model *m, hvt_value logits); /* call before the tape is fused */
uint64_t hvt__hash_no_arguments(const hvt_model *m, const hvt_layer *l, uint64_t h);
/* For hvt_layer_ops.hash: continues the hash h with numbers. */
enum { HVT__ARGUMENTS = 13 };
#define HVT__HASH(h, ...)                                                                                    \
    hvt__hash(h, (const double[HVT__ARGUMENTS]){__VA_ARGS__}, HVT__ARGUMENTS * sizeof(double))
hvt_status hvt__dropout_keys(hvt_model *m, const hvt_batch *batch); /* uploads a training pass's keys */
hvt_status hvt__alias_check(hvt_model *m); /* validates and sorts hvt_model_alias()'s names */
bool hvt__freeze_fits(const hvt_model *m, const char *name); /* hvt_model_freeze() names this parameter */
hvt_status hvt__freeze_check(const hvt_model *m);            /* each prefix fits, one is left to train */
hvt_status hvt__step_open(hvt_model *m);                     /* allocate and initialise the step's state */
hvt_status hvt__step_restart(hvt_model *m);                  /* reinitialise it, except for its counters */
hvt_status hvt__inputs_copy(hvt_model *m);                   /* give every layer its own copy of its inputs */
void hvt__inputs_free(hvt_layer *layer, int n);
void hvt__model_unplan(hvt_model *m); /* frees what the plan allocated, but does not reset m's fields */

/* A block of an arena that is live from time `from` to time `to`, both included. */
typedef struct hvt_block {
    size_t bytes; /* 0: unused */
    int from, to;
    size_t offset; /* 64-byte aligned */
    int next;      /* private to hvt__arena_fit() */
} hvt_block;

/* Give every block an offset such that blocks live at the same time do not overlap; returns the arena's
 * bytes. */
size_t hvt__arena_fit(hvt_block *block, int n);

static inline hvt_layer *hvt__in(hvt_model *m, const hvt_layer *l, int i)
{
    return &m->layer[l->in[i]];
}

/* True if l is a batch norm that computes statistics of the batch. */
static inline bool hvt__has_statistics(const hvt_layer *l)
{
    return l->ops->is_norm && !l->is.batchnorm.fixed;
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

/* Pixels per image of the logits if there are several; otherwise 0. */
static inline int hvt__logit_pixels(const hvt_model *m)
{
    const int pixels = hvt__pixels(&m->layer[m->logits]);

    return pixels > 1 ? pixels : 0;
}

/* Rows of l's output. Only rows of the images of the last forward pass are valid. */
static inline hvt_rows hvt__real_rows(const hvt_model *m, const hvt_layer *l)
{
    return hvt__rows(m->order, hvt__pixels(l), m->batch, m->real);
}

static inline float *hvt__weight(const hvt_model *m, const hvt_layer *l, int slot)
{
    return m->params + m->param[l->param[slot]].offset;
}

static inline bool hvt__is_frozen(const hvt_model *m, const hvt_layer *l, int slot)
{
    return m->param[l->param[slot]].frozen;
}

/* True if backward of l writes its gradient to m->parts. The last layer that shares a parameter runs backward
 * first and writes the gradient arena; hvt_model_backward() adds the parts. Not for frozen parameters. */
static inline bool hvt__writes_part(const hvt_model *m, const hvt_layer *l, int slot)
{
    const hvt_param *p = &m->param[l->param[slot]];

    return p->shared && l != &m->layer[p->first_writer];
}

static inline float *hvt__grad(const hvt_model *m, const hvt_layer *l, int slot)
{
    const hvt_param *p = &m->param[l->param[slot]];

    return hvt__writes_part(m, l, slot) ? m->parts + p->part : m->grads + p->offset;
}

/* hvt__layer_end() for a layer with windows. */
hvt_value hvt__window_end(hvt_model *m, hvt_layer *l, int size, int stride, int pad, int channels);

/* The convolution that l->conv describes; the linear layer uses it, too, as a convolution of 1x1 images. plan
 * sets count, op and role of weight and bias. */
hvt_status hvt__conv_plan(hvt_model *m, hvt_layer *l, hvt_param weight, hvt_param bias);
hvt_status hvt__conv_forward(hvt_model *m, hvt_layer *l);
hvt_status hvt__conv_backward(hvt_model *m, hvt_layer *l);
uint64_t hvt__conv_hash(const hvt_model *m, const hvt_layer *l, uint64_t h);

/* ---- computed weights: weight.c has tensors of the tape, filters.c lets convolutions read them ---- */

/* hvt_combine() of two tensors. */
hvt_value hvt__weight_combine(hvt_model *m, hvt_binary op, hvt_value a, hvt_value b);
/* Begins a layer of x whose filters are `weight` and whose bias is `bias` (-1: none). -1 after a mistake. */
hvt_value hvt__filters_begin(hvt_model *m, const hvt_layer_ops *ops, hvt_value x, hvt_value weight,
                             hvt_value bias, hvt_layer **ret_layer);
/* Checks that the filters have these dimensions, after l->conv is set. -1 after a mistake. */
hvt_value hvt__filters_check(hvt_model *m, hvt_layer *l, int ndim, const int *dim);
/* True if convolution or linear layer l reads its weight as a tensor. */
static inline bool hvt__filters_are_computed(const hvt_layer *l)
{
    return l->in[1] >= 0;
}
/* Plans computed filters. count: their elements in the device's layout. */
hvt_status hvt__filters_plan(hvt_model *m, hvt_layer *l, size_t count);
/* Forward: converts the filters to the device's layout and type, into l->saved. */
hvt_status hvt__filters_bring(hvt_model *m, hvt_layer *l);
/* Backward, in this order: returns where the convolution writes the gradient of its filters; adds that to the
 * tensor's gradient; computes the bias's gradient. */
float *hvt__filters_gradient(const hvt_model *m, const hvt_layer *l);
void hvt__filters_take_gradient(hvt_model *m, hvt_layer *l);
hvt_status hvt__filters_bias_gradient(hvt_model *m, hvt_layer *l);

/* True if the last batch had the labels or targets that the loss reads. */
bool hvt__has_loss(const hvt_model *m);
/* Take the caller's own loss: `loss` becomes the sum among the step statistics; dlogits (f32 [images,
 * classes], host memory) times the loss scale becomes the gradient of the logits. */
hvt_status hvt__loss_bring(hvt_model *m, const float *dlogits, double loss);
/* Batches from the caller's arrays: allocate m->arranged and m->images; upload the one to the other; get
 * m->images as a tensor. */
hvt_status hvt__input_open(hvt_model *m);
hvt_status hvt__input_bring(hvt_model *m);
hvt_tensor hvt__input_tensor(const hvt_model *m);
/* Copy `count` images of c floats or integers per pixel of the logits, in host memory, from [count,c,h,w] to
 * the rows of the model's order, or back. */
void hvt__outputs_order(const hvt_model *m, int count, int c, const void *from, void *to, bool to_rows);
/* Labels (i32 [N], of pixels [N,H,W]) or targets (f32 [N,K] or [N,H,W,K]) of a batch, in the model's row
 * order.
 */
hvt_tensor hvt__answers_tensor(const hvt_model *m, bool labels, void *data);
/* The row of the logits that holds a pixel of image n. */
size_t hvt__logit_row(const hvt_model *m, size_t n, size_t pixel);
/* Allocate m->wide: f32 images or logits of a batch, if the device stores them in 16 bits. */
hvt_status hvt__open_wide(hvt_model *m);
/* ---- passes of a layer, model.c ---- */

hvt_status hvt__layer_forward(hvt_model *m, hvt_layer *l);
/* Gradients that it finishes begin at *mark, which advances to their end. */
hvt_status hvt__layer_backward(hvt_model *m, hvt_layer *l, hvt_grad_fn *on_grad, void *ctx, size_t *mark);

/* ---- statistics of all shards, sync.c ---- */

/* The state of a local shard during a step. */
typedef struct hvt__turn {
    void *acts;     /* its own m->acts */
    void *images;   /* a copy if there are several local shards: the next batch may reuse the memory */
    int32_t *label; /* likewise */
    float *target;  /* likewise, if the loss reads targets */
    uint64_t *keys; /* keys of dropout; the first shard uses the model's */
    void *x;        /* y of the input layer */
    const int32_t *labels;
    const float *targets;
    int real;
    float *sums;  /* [HVT__STEP_SUMS] sums of the loss; device memory */
    float *stats; /* pipeline: the step statistics; device memory */
    size_t mark;  /* pipeline: the end of its gradients so far */
} hvt__turn;

struct hvt__sync {
    hvt__sync_opts opts;
    const int *counts; /* [all] images; borrowed; NULL outside a step */
    int taken;         /* local shards whose passes have run or wait for the last shard's pass */
    bool ran;          /* the forward pass of all shards has run */
    /* Device memory; the host never reads it: */
    float *joined;  /* [2, c] result of the last exchange: mean and rstd; in backward share and slope */
    float *moments; /* global mean and variance of each norm, at its offset in the step statistics */
    float *sums;    /* [local][HVT__STEP_SUMS] */
    float *stats;   /* pipeline: [local][step_stats_count] */
    hvt_bn_shard *shard;
    hvt_bn_shard *known; /* [all] host copy of `shard` */
    int shards;          /* elements in use: the shards with images */
    size_t bytes;        /* allocated for the shards */
    hvt__turn turn[];    /* [local] */
};

/* True if batch norms use the statistics of all shards. */
static inline bool hvt__synchronizes(const hvt_model *m)
{
    return m->sync && m->sync->opts.place;
}

/* A shard's part of the next exchange, which this rank writes, or of the last exchange, from any rank. */
static inline float *hvt__sync_part(const hvt_model *m, bool next, int c, int shard)
{
    const hvt__sync_opts *o = &m->sync->opts;

    return o->parts(o->ctx, next) + (size_t)o->place[shard] * hvt__part_floats(c);
}

/* The rest of hvt_model_forward(train) and hvt_model_backward(), after their checks. */
hvt_status hvt__sync_forward(hvt_model *m, const hvt_batch *batch);
hvt_status hvt__sync_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);
/* Points the layers of m to the memory of local shard p; -1: of a pass without a step. m has one device, or
 * is a stage's view. */
void hvt__turn_to(hvt_model *m, int p);
/* Calls on_grad for the current shard: hvt__layer_backward(), a report of other gradients, a report of the
 * step statistics. */
hvt_status hvt__turn_backward(hvt_model *m, hvt_layer *l, hvt_grad_fn *on_grad, void *ctx, size_t *mark);
hvt_status hvt__turn_report(hvt_model *m, hvt_grad_fn *on_grad, void *ctx, size_t first, size_t end);
hvt_status hvt__turn_report_stats(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);
void hvt__pass_set_aside(void); /* hvt__pass_aside() is true on the calling thread from now on */

/* ---- several devices: split.c chooses the stages, pipeline.c runs them ---- */

/*
 * The layers of one device. A stage's thread works on a view: a copy of the model with layers of its own,
 * whose pointers it moves from shard to shard. One value crosses each cut. The earlier stage owns the memory
 * of that value and of its gradient; in the later stage's view the value's layer points there.
 */
typedef struct hvt__stage {
    hvt_device *dev; /* borrowed */
    int first, end;  /* layers */
    hvt_value from;  /* value read from the earlier stage; its addresses in that stage's first slot: */
    void *from_y, *from_dy;
    size_t acts_bytes, ws_bytes;
    void **acts; /* [slots] activations; shard p uses slot p % slots */
    int slots;
    void *ws;
    hvt_model view;
    /* a step */
    pthread_t thread;
    int forwards, backwards; /* shards whose passes are done */
} hvt__stage;

struct hvt__split {
    hvt_split_opts opts; /* opts.at is owned */
    hvt_device **devices;
    hvt__stage *stage; /* [stages]; NULL until planned */
    int stages;
    struct hvt__pipe *pipe; /* NULL outside of distributed optimizers */
};

void hvt__split_free(hvt_model *m);
/* Chooses the stages at plan time, after the tape is prepared. The next plan uses them. block: the blocks of
 * all layers, `lifetimes` of each. */
hvt_status hvt__split_choose(hvt_model *m, const hvt_block *block, int lifetimes);
/* The stage of layer i; 0 if there is one device. */
int hvt__stage_of(const hvt_model *m, int i);
/* True if layer `reader` is in a later stage than the value v that it reads. */
bool hvt__crosses(const hvt_model *m, int v, int reader);
/* Errors: E_MEM with both numbers if a device's memory for a step of `local` shards exceeds its limit. */
hvt_status hvt__split_check(const hvt_model *m, int local);
/* Allocates the stages' workspaces, and activations for one shard; later for a step of `local` shards. */
hvt_status hvt__split_allocate(hvt_model *m);
hvt_status hvt__split_reserve(hvt_model *m, int local);
size_t hvt__split_workspace(const hvt_model *m, int first, int end); /* bytes for layers [first, end) */
size_t hvt__split_bytes(const hvt_model *m, size_t *ret_ws);         /* bytes for all stages; 0: one device */
/* Makes the views, after all layers have their addresses. block: owned by m, or NULL. */
hvt_status hvt__split_open(hvt_model *m, hvt_block *block, int lifetimes);
void hvt__split_close(hvt_model *m); /* frees what the plan allocated */
/* Returns m or the view in which layer i runs. */
hvt_model *hvt__view(hvt_model *m, int i);
/* Copies changes of m to the views. */
void hvt__views_refresh(hvt_model *m);
/* One pass through all stages, outside a distributed optimizer's step. */
hvt_status hvt__split_forward(hvt_model *m);
hvt_status hvt__split_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx, size_t *mark);
/* The stages' threads, while the model has a sync. */
hvt_status hvt__pipe_open(hvt_model *m);
void hvt__pipe_close(hvt_model *m);
/* Forward and backward of all local shards. */
hvt_status hvt__pipe_run(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);

/* Returns where a training pass writes its step statistics. */
static inline float *hvt__step_stats(const hvt_model *m)
{
    return m->pass_stats ? m->pass_stats : m->grads;
}

/* The first pass of norm layer l over a shard's rows, in forward and backward, writes part [2,c]. join
 * combines all shards' parts for the second pass, which is the layer's own forward or backward. */
hvt_status hvt__norm_moments(hvt_model *m, hvt_layer *l, float *part);
hvt_status hvt__norm_join_moments(hvt_model *m, const hvt_layer *l);
hvt_status hvt__norm_sums(hvt_model *m, hvt_layer *l, float *part);
hvt_status hvt__norm_join_sums(hvt_model *m, const hvt_layer *l);

/* The arguments of a norm in a training pass, for a convolution that computes the norm's y as it reads it
 * (in_reader). */
hvt_bn_args hvt__norm_arguments(hvt_model *m, const hvt_layer *l);
/* Recomputes layer l's input before its backward, if the input was not stored. */
hvt_status hvt__recompute_input(hvt_model *m, const hvt_layer *l);
/* Update the running statistics of norm layer l from the step statistics, summed over all shards. */
hvt_status hvt__norm_end_step(hvt_model *m, hvt_layer *l, const int *counts, int shards);

#endif /* HVT_MODEL_LAYERS_H */
