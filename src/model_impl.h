/*
 * model_impl.h - the tape, and the interface of a layer.
 *
 * Included by src/model, src/optim and the files of src/train that write and read checkpoints. Nothing else.
 *
 * Arenas. Parameters, gradients and optimizer state have the same offsets (in f32 elements):
 *
 *     [ step statistics | head's bias, head's weight ... first convolution's weight ]
 *
 * in the order in which backward finishes the gradients. The step statistics are what the forward pass wants
 * summed over shards: weight*mean and weight*variance of every batch norm, then the sums of the loss. Their
 * span of the gradient arena is exchanged like gradients; their span of the parameter arena is unused.
 */
#ifndef HVT_MODEL_IMPL_H
#define HVT_MODEL_IMPL_H

#include "hvt/model.h"
#include "device_impl.h"

enum { HVT_LAYER_IN = 2, HVT_LAYER_PARAMS = 2, HVT_LAYER_ARGS = 5, HVT_NAME_MAX = 96 };

typedef struct hvt_layer hvt_layer;

typedef struct hvt_layer_ops {
    const char *name;
    hvt_status (*plan)(hvt_model *m, hvt_layer *l); /* shape, params, saved bytes, workspace, op */
    hvt_status (*forward)(hvt_model *m, hvt_layer *l, bool train);
    hvt_status (*backward)(hvt_model *m, hvt_layer *l);
} hvt_layer_ops;

typedef enum hvt_role { HVT_ROLE_WEIGHT, HVT_ROLE_NORM, HVT_ROLE_BIAS } hvt_role;
typedef enum hvt_init { HVT_INIT_NORMAL, HVT_INIT_UNIFORM, HVT_INIT_FILL } hvt_init;

/* A trainable tensor: a span of the parameter arena, and the same span of the gradient and optimizer-state
 * arenas. */
typedef struct hvt_param {
    char name[HVT_NAME_MAX]; /* "layer1.0.conv1.weight" */
    int ndim, dim[4];        /* canonical (file) shape; convolutions [K,C,R,S] */
    size_t elements;         /* product of dim */
    size_t offset, count;    /* span in the arenas, in the device's own layout with padding */
    const hvt_op *op;        /* its conv_permute converts between layouts; NULL: they are the same */
    hvt_role role;
    hvt_init init;
    float init_arg; /* standard deviation, bound, or value */
} hvt_param;

/* Running statistics: saved, hashed and broadcast, not trained. */
typedef struct hvt_stat {
    char name[HVT_NAME_MAX]; /* "bn1.running_mean" */
    size_t offset, count;    /* in the stats arena */
    float fill;
} hvt_stat;

struct hvt_layer {
    const hvt_layer_ops *ops;
    char name[HVT_NAME_MAX];
    hvt_value in[HVT_LAYER_IN];     /* inputs; -1 for none */
    bool add[HVT_LAYER_IN];         /* backward adds to d(in) instead of writing it */
    int arg[HVT_LAYER_ARGS];        /* builder arguments, in builder order */
    hvt_tensor y, dy;               /* output and its gradient, logical shape [N,H,W,C] */
    bool folded;                    /* fused into another layer: skipped by forward and backward */
    bool requires_grad;             /* it or a layer before it has parameters, so backward runs it */
    int param[HVT_LAYER_PARAMS];    /* indices into m->param: weight, bias; -1 for none */
    int stat;                       /* index into m->stat of the first of two: mean, variance; -1 for none */
    bool saves_input, saves_output; /* backward reads y of in[0]; its own y */
    bool in_place[HVT_LAYER_IN];    /* backward may overwrite dy with d(in) */
    void *recompute_y[2];  /* y is recomputed rather than kept: its address in forward, and in backward; NULL:
                              it is kept */
    bool recomputes_input; /* y of in[0] is recomputed before this layer's backward */
    void *saved;           /* saved by forward for backward */
    size_t saved_bytes, ws_bytes;
    hvt_op *op; /* planned device operation, or NULL */
    void *own;  /* private to the layer */
};

struct hvt_model {
    hvt_device *dev; /* borrowed */
    hvt__users users;
    hvt_layer *layer;
    int nlayer, cap;
    hvt_status mistake; /* first builder error; reported by plan */
    char mistake_text[256];
    char next_name[HVT_NAME_MAX]; /* of the layer appended next; "" for none */
    hvt_dtype type;               /* of activations and their gradients; HVT_F32 unless set */
    bool unfused;                 /* no fusion (for tests) */
    int batch;                    /* 0 until planned */
    hvt_order order;
    hvt_value logits;
    hvt_value input;
    int input_channels; /* channels stored per input pixel: as the device prefers, if only convolutions read
                           it */

    /* the last forward */
    const int32_t *labels; /* borrowed from its batch, as the input's y is */
    int real;              /* its valid images; -1 before the first */
    int shard;             /* its shard; -1: unknown */
    bool in_backward;      /* a backward pass is running */
    bool backward_pending; /* it was a training pass that backward has not used yet */

    hvt_param *param; /* in arena order */
    int nparam_tensors;
    hvt_stat *stat;
    int nstat;

    /* the arenas, one allocation each */
    float *params, *grads;
    size_t arena_count;      /* step statistics included */
    size_t step_stats_count; /* step statistics are [0, step_stats_count) of grads; their last HVT__STEP_SUMS
                                are the sum of the loss, top-1 and top-5 hits, and the agreement check, see
                                device/step.h */
    uint16_t *copy;  /* 16-bit copy of the parameters in `type`, which convolutions read; NULL: type is f32 */
    bool copy_stale; /* parameters changed other than by an update, which writes the copy too: the next
                        forward pass renews it */
    float *stats;
    size_t stats_count;
    void *acts;
    size_t acts_bytes; /* y, dy and saved data of every layer, each as long as it is needed */
    void *ws;
    size_t ws_bytes;                  /* the largest of any layer */
    bool grads_placed, params_placed; /* they are a comm's memory, not the device's */

    hvt_step_state *step; /* device memory */
    float first_scale;    /* initial loss scale of a run */
    int64_t inits;        /* how often parameters were initialised */
    hvt_loss taken;       /* the counts at the last hvt_model_take_loss() */
    int64_t tracked;      /* training steps counted by batch norm: num_batches_tracked */
    uint64_t
        version; /* incremented whenever parameters change: packed weights of an older version are stale */
};

/* For src/optim and checkpoints. */
/* Use `grads` (arena_count floats, zeroed, borrowed) as the gradient arena; NULL: allocate one from the
 * device again. */
hvt_status hvt__model_place(hvt_model *m, float *grads);
/* The same for the parameters, whose values the caller has copied; NULL: back to device memory, to which the
 * values are copied. */
hvt_status hvt__model_place_params(hvt_model *m, float *params);
/* To be called after parameters were written: packed copies are stale, and with hvt__model_changed() also the
 * 16-bit one, which an update writes itself. */
void hvt__model_changed(hvt_model *m);
void hvt__model_updated(hvt_model *m);
/* Renew the 16-bit copy if it is stale. */
hvt_status hvt__model_refresh(hvt_model *m);
/* Begin a step over `images` images of all shards. agreement: see device/step.h; NULL: nothing is
 * compared. */
hvt_status hvt__model_begin_step(hvt_model *m, int64_t images, double lr,
                                 const float agreement[HVT__STEP_AGREEMENT]);
/* The step statistics are summed over all shards, and m->step->bad is what check found: decide the step and,
 * unless it ends the run, update the running statistics. counts[shards]: images of every shard. */
hvt_status hvt__model_end_step(hvt_model *m, const int *counts, int shards);
/* The step's state after everything queued; set it only between steps. */
hvt_status hvt__model_state(hvt_model *m, hvt_step_state *ret_state);
hvt_status hvt__model_set_state(hvt_model *m, const hvt_step_state *state);
/* E_DIVERGED or E_MISMATCH with the reason, if this state ends the run. */
hvt_status hvt__model_stopped(const hvt_model *m, const hvt_step_state *state);
/* Elements of the largest parameter. Running statistics are no larger: they are as long as their layer's
 * weight. */
size_t hvt__model_largest(const hvt_model *m);
/* Copy a parameter's span of any arena with the parameters' layout (parameters, momentum) to or from
 * canonical layout in host memory; `canonical` has p->elements floats. */
hvt_status hvt__model_export(hvt_model *m, const hvt_param *p, const float *arena, float *canonical);
hvt_status hvt__model_import(hvt_model *m, const hvt_param *p, float *arena, const float *canonical);

#endif /* HVT_MODEL_IMPL_H */
