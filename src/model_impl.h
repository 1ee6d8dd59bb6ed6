/*
 * model_impl.h - the tape, and what a layer must be able to do.
 *
 * Included by src/model, src/optim and what writes and reads checkpoints in src/train. Nothing else.
 *
 * Arenas. Parameters, gradients and optimizer state lie at the same offsets (in f32 elements):
 *
 *     [ rider | head's bias, head's weight ... first convolution's weight ]
 *
 * in the order backward finishes the gradients. The rider is what the forward pass wants summed over
 * shards: weight*mean and weight*variance of every batch norm, then the loss sums. Its span of the gradient
 * arena travels like gradients do; its span of the parameter arena is unused.
 */
#ifndef HVT_MODEL_IMPL_H
#define HVT_MODEL_IMPL_H

#include "hvt/model.h"
#include "device_impl.h"

enum {
    HVT_LAYER_IN = 2,
    HVT_LAYER_PARAMS = 2,
    HVT_LAYER_ARGS = 5,
    HVT_NAME_MAX = 96
};

typedef struct hvt_layer hvt_layer;

typedef struct hvt_layer_ops {
    const char *name;
    hvt_status (*plan)(hvt_model *m, hvt_layer *l); /* out shape, params, saved, workspace, op */
    hvt_status (*forward)(hvt_model *m, hvt_layer *l, bool train);
    hvt_status (*backward)(hvt_model *m, hvt_layer *l);
} hvt_layer_ops;

typedef enum hvt_role { HVT_ROLE_WEIGHT, HVT_ROLE_NORM, HVT_ROLE_BIAS } hvt_role;
typedef enum hvt_init { HVT_INIT_NORMAL, HVT_INIT_UNIFORM, HVT_INIT_FILL } hvt_init;

/* One trainable tensor: a span of the parameter arena, and of the gradient
 * and optimizer-state arenas at the same offsets. */
typedef struct hvt_param {
    char name[HVT_NAME_MAX]; /* "layer1.0.conv1.weight" */
    int ndim, dim[4];        /* canonical (file) shape; convolutions [K,C,R,S] */
    size_t elements;         /* product of dim */
    size_t offset, count;    /* span in the arenas: the device's own layout, padding included */
    const hvt_op *op;        /* translates layouts by conv_permute; NULL: they are the same */
    hvt_role role;
    hvt_init init;
    float init_arg; /* standard deviation, bound, or value */
} hvt_param;

/* Moving statistics: saved, hashed and broadcast, not trained. */
typedef struct hvt_stat {
    char name[HVT_NAME_MAX]; /* "bn1.running_mean" */
    size_t offset, count;    /* in the stats arena */
    float fill;
} hvt_stat;

struct hvt_layer {
    const hvt_layer_ops *ops;
    char name[HVT_NAME_MAX];
    hvt_value in[HVT_LAYER_IN];  /* values read; -1 for none */
    bool add[HVT_LAYER_IN];      /* backward adds into d(in) instead of writing it */
    int arg[HVT_LAYER_ARGS];     /* builder arguments, in builder order */
    hvt_tensor y, dy;            /* output and its gradient, logical shape [N,H,W,C] */
    bool folded;                 /* computed by another layer: skipped by both walks */
    bool requires_grad;                 /* it or a layer below has parameters: backward visits it */
    int param[HVT_LAYER_PARAMS]; /* indices into m->param: weight, bias; -1 for none */
    int stat;                    /* index into m->stat of the first of two: mean, variance; -1 for none */
    bool saves_input, saves_output;    /* backward reads y of in[0]; its own y */
    bool in_place[HVT_LAYER_IN]; /* backward may write d(in) over dy */
    void *recompute_y[2]; /* y is not kept, but made again: where forward writes it, and where it lies in
                         backward; NULL: it is kept */
    bool recomputes_input;      /* before its backward, y of in[0] is made again */
    void *saved;      /* kept from forward for backward */
    size_t saved_bytes, ws_bytes;
    hvt_op *op; /* prepared device operation, or NULL */
    void *own;  /* layer's private plan data */
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
    bool unfused;                 /* plan folds nothing (tests compare) */
    int batch;                    /* 0 until planned */
    hvt_order order;
    hvt_value logits;
    hvt_value input;
    int input_channels; /* that its pixels are stored with: the device's wish where only convolutions read it
                         */

    /* the last forward */
    const int32_t *labels; /* borrowed from its batch, as the input's y is */
    int real;              /* its images; -1 before the first */
    int shard;             /* its shard; -1: it does not say */
    bool in_backward;       /* a backward pass is under way */
    bool backward_pending;    /* it was a training pass, and backward has not used it up yet */

    hvt_param *param; /* in arena order */
    int nparam_tensors;
    hvt_stat *stat;
    int nstat;

    /* the arenas, each one allocation */
    float *params, *grads;
    size_t arena_count; /* rider included */
    size_t step_stats_count; /* [0, step_stats_count) of grads; the last HVT__STEP_SUMS of it are sum of loss, hits
                           among the first 1 and 5, and what ranks were told of the step, see device/step.h */
    uint16_t *copy;     /* the parameters in `type`, which convolutions read; NULL: that is f32 */
    bool copy_stale;    /* not by an update, which writes it, too: the next forward pass makes it anew */
    float *stats;
    size_t stats_count;
    void *acts;
    size_t acts_bytes; /* y and dy of every layer, and what it keeps for backward, as long as it is needed */
    void *ws;
    size_t ws_bytes;                  /* the largest any layer asked for */
    bool grads_placed, params_placed; /* they belong to a comm, not to the device */

    hvt_step_state *step; /* device memory */
    float first_scale;    /* the loss scale that a run begins with */
    int64_t inits;        /* how often parameters were initialised */
    hvt_loss taken;       /* its counts when the loss was taken last */
    int64_t tracked;      /* training steps seen by batch norm: num_batches_tracked */
    uint64_t version; /* moves whenever parameters change: packed copies made for an older one are stale */
};

/* For optim and checkpoint. */
/* Use `grads` (arena_count floats, zeroed, borrowed) as the gradient arena; NULL: back to one of the
 * device's. */
hvt_status hvt__model_place(hvt_model *m, float *grads);
/* The same for the parameters, whose values the caller has copied; NULL: into memory of the device's, which
 * gets the values that they have. */
hvt_status hvt__model_place_params(hvt_model *m, float *params);
/* Parameters were written: packed copies are stale, and so is the 16-bit one. An update has written the
 * latter along with them. */
void hvt__model_changed(hvt_model *m);
void hvt__model_updated(hvt_model *m);
/* The 16-bit copy, if it is stale. */
hvt_status hvt__model_refresh(hvt_model *m);
/* A step over so many images of all shards begins. told: see device/step.h; NULL: nothing is to be compared.
 */
hvt_status hvt__model_begin_step(hvt_model *m, int64_t images, double lr, const float agreement[HVT__STEP_AGREEMENT]);
/* The rider holds sums over all shards, and m->step->bad what check found: settle the step and, unless it
 * ends the run, update moving statistics. counts[shards]: images of every shard. */
hvt_status hvt__model_end_step(hvt_model *m, const int *counts, int shards);
/* The step's state as it is after everything queued; to change it, between steps. */
hvt_status hvt__model_state(hvt_model *m, hvt_step_state *ret_state);
hvt_status hvt__model_set_state(hvt_model *m, const hvt_step_state *state);
/* E_DIVERGED saying why, if this state ends the run. */
hvt_status hvt__model_stopped(const hvt_model *m, const hvt_step_state *state);
/* Elements of the largest parameter; no moving statistic has more, which are as long as their layer's weight.
 */
size_t hvt__model_largest(const hvt_model *m);
/* Canonical copy of a parameter's span of any arena with the parameters' layout (params, momentum). Host
 * memory; `canonical` has p->elements floats. */
hvt_status hvt__model_export(hvt_model *m, const hvt_param *p, const float *arena, float *canonical);
hvt_status hvt__model_import(hvt_model *m, const hvt_param *p, float *arena, const float *canonical);

#endif /* HVT_MODEL_IMPL_H */
