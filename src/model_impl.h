/*
 * model_impl.h - the tape, and the interface of a layer.
 *
 * Included by src/model, src/optim and the files of src/train that write and read checkpoints. Nothing else.
 *
 * Arenas. Parameters, gradients and optimizer state have the same offsets (in f32 elements):
 *
 *     [ step statistics | head's bias, head's weight ... first convolution's weight ]
 *
 * in the order in which backward finishes the gradients. The step statistics are the forward pass's sums over
 * shards: weight*mean and weight*variance of every batch norm, then the sums of the loss. Their span of the
 * gradient arena is exchanged like gradients; their span of the parameter arena is unused.
 *
 * Frozen parameters come last, in the same order, and only in the parameter arena.
 */
#ifndef HVT_MODEL_IMPL_H
#define HVT_MODEL_IMPL_H

#include "hvt/model.h"
#include "device_impl.h"

enum { HVT_LAYER_PARAMS = 2, HVT_NAME_MAX = 192 };

typedef struct hvt_layer hvt_layer;

typedef enum hvt_fusion { HVT_FUSE_NOTHING, HVT_FUSE_RELU, HVT_FUSE_MAP, HVT_FUSE_ADD } hvt_fusion;

/* What a layer reads: images; tensors (weight.c); one or the other; images, and tensors after the first. */
typedef enum hvt_takes { HVT_TAKES_IMAGES, HVT_TAKES_WEIGHTS, HVT_TAKES_EITHER, HVT_TAKES_FILTERS } hvt_takes;

/* NULL: nothing to do. */
typedef struct hvt_layer_ops {
    const char *name;
    hvt_status (*plan)(hvt_model *m, hvt_layer *l); /* shape, params, saved bytes, workspace, op */
    hvt_status (*forward)(hvt_model *m, hvt_layer *l);
    hvt_status (*backward)(hvt_model *m, hvt_layer *l);
    bool takes_flattened; /* accepts outputs of hvt_flatten(): it keeps the order of channels */
    /* Recomputes y for backward, if x is kept anyway. NULL: y is kept */
    hvt_status (*recompute)(hvt_model *m, hvt_layer *l);
    /* Continues h with the builder's arguments, except the image size (tape_hash.c). Never NULL; without
     * arguments hvt__hash_no_arguments. */
    uint64_t (*hash)(const hvt_model *m, const hvt_layer *l, uint64_t h);
    bool is_norm, is_conv;
    bool training_only;  /* in inference y is x */
    hvt_fusion may_fuse; /* what a batch norm that it reads may compute for it */
    hvt_takes takes;
} hvt_layer_ops;

typedef enum hvt_role { HVT_ROLE_WEIGHT, HVT_ROLE_NORM, HVT_ROLE_BIAS } hvt_role;
typedef enum hvt_init {
    HVT_INIT_NORMAL,
    HVT_INIT_UNIFORM,
    HVT_INIT_DIRAC, /* uniform, then torch.nn.init.dirac_() of the first dim[1] filters */
    HVT_INIT_FILL
} hvt_init;

/* A trainable tensor: a span of the parameter arena, and the same span of the gradient and optimizer-state
 * arenas. */
typedef struct hvt_param {
    char name[HVT_NAME_MAX]; /* "layer1.0.conv1.weight" */
    int ndim, dim[4];        /* canonical (file) shape; convolutions [K,C,R,S] */
    size_t elements;         /* product of dim */
    size_t offset, count;    /* span in the arenas, in the device's own layout with padding */
    bool shared;             /* by several layers; then: */
    int first_writer;        /* the layer whose backward writes its gradient */
    size_t part;             /* offset in m->parts where the other layers write theirs */
    const hvt_op *op; /* whose conv_permute converts the layout; NULL: device and file layouts are equal */
    int flat; /* > 1: within dim[0], if op, elements are [flat pixels, channels]; in files [channels, pixels]
               */
    hvt_role role;
    bool frozen;   /* it has no gradient */
    bool constant; /* never trained: a buffer of PyTorch */
    hvt_init init;
    float init_arg; /* standard deviation, bound, or value */
} hvt_param;

/* A second name of a parameter. */
typedef struct hvt_alias {
    char name[HVT_NAME_MAX], of[HVT_NAME_MAX];
} hvt_alias;

/* Another tensor of weight files: see hvt_model_attach(). */
typedef struct hvt_attached {
    char name[HVT_NAME_MAX];
    int ndim, dim[4];
    int64_t *whole; /* NULL: */
    float *real;
} hvt_attached;

/* Running statistics: saved, hashed and broadcast, not trained. */
typedef struct hvt_stat {
    char name[HVT_NAME_MAX]; /* "bn1.running_mean" */
    size_t offset, count;    /* in the stats arena */
    float fill;
} hvt_stat;

/* Attention's arrays, concatenated in `data`: each member is the offset of its array, which ends at the next
 * one. `first` and `where` list the places in `bias` of each element of the table. A model's are a linked
 * list. */
typedef struct hvt__constants {
    struct hvt__constants *next;
    size_t pixel, bias, first, where, mask, all;
    int32_t data[];
} hvt__constants;

/* Of interpolation and padding: see hvt_interpolate_opts. */
typedef struct hvt__resampling {
    int kind; /* hvt_interpolation or hvt_padding */
    bool aligned, smoothed;
    double scale[2]; /* 0: that of the sizes */
    int size[2];     /* of the output; 0: by the scale */
    int pad[2];      /* above, to the left */
} hvt__resampling;

struct hvt_layer {
    const hvt_layer_ops *ops;
    char name[HVT_NAME_MAX];
    hvt_value *in;  /* [nin] inputs; -1 for none. At least two: norm may get a residual */
    bool *add;      /* [nin] backward adds to d(in) instead of writing it */
    bool *in_place; /* [nin] backward may overwrite dy with d(in) */
    int nin;
    hvt_value shares;      /* the layer whose parameters it shares; -1: none */
    int size, stride, pad; /* of windows */
    hvt_conv2d_opts conv;  /* of convolutions, with defaults filled in */
    bool relu, maps;       /* norm: fused into it; in[1] is a fused residual */
    int flat;              /* > 1: channels are [flat pixels, channels] of a flattened value */
    union {                /* the builder's arguments; plan, forward and backward complete them */
        hvt_map map;
        hvt_binary_args binary;
        hvt_norm_args norm;
        hvt_attention_args attention;
        hvt_rotary_args rotary;
        hvt_pooling_desc pooling;
        hvt__resampling resample;
        hvt_matmul_args matmul;
        struct {
            int groups, out; /* of channels */
        } maxima;
        hvt_box box; /* of the input within the output, or of the output within the input */
        struct {     /* views an image as [.., rows, cols, block] and swaps rows and cols */
            int rows, cols, block;
        } transpose;
        struct {
            hvt_dropout_args args;
            bool whole_batch; /* the first image's draw applies to all */
        } dropout;
        struct {
            float eps, rate;
            bool fixed;  /* running statistics in training, too */
            hvt_map map; /* fused into it, if `maps` */
        } batchnorm;
        struct {
            int first, stride[4]; /* of a view */
            int along;
            hvt_binary op;
            float eps;
            bool draws; /* init is a deviation */
        } weight;
        struct {            /* computed ones of a convolution, which are in[1]; a bias is in[2] */
            size_t count;   /* in the device's layout */
            size_t scratch; /* offset in bytes in the workspace */
            int flat;       /* of the input */
        } filters;
    } is;
    bool is_weight;     /* y is a tensor, for all images: f32, 1x1xelements; ndim and dim are its shape */
    bool has_parameter; /* binary: instead of a second value; attention: a table; norms: weight and bias */
    bool whole_image;   /* reads or writes an image as contiguous memory */
    int ndim, dim[4];   /* its shape */
    float init;         /* its initial value or deviation */
    bool constant;      /* a constant instead of a parameter */
    hvt_tensor y, dy;   /* output and its gradient, logical shape [N,H,W,C] */
    bool folded;        /* fused into another layer: skipped by forward and backward */
    bool in_reader;     /* norm: not stored in training; the only reader, a convolution, computes it */
    bool requires_grad; /* it or an earlier layer has trained parameters: backward runs it */
    int param[HVT_LAYER_PARAMS];    /* indices into m->param: weight, bias; -1 for none */
    int stat;                       /* index into m->stat of its mean; the variance follows; -1 for none */
    bool saves_input, saves_output; /* backward reads y of in[0]; its own y */
    bool saves_others;              /* y of its other inputs */
    void *recompute_y[2];  /* y is recomputed: its addresses in forward and backward; NULL: it is kept */
    bool recomputes_input; /* y of in[0] is recomputed before this layer's backward */
    void *saved;           /* saved by forward for backward */
    const hvt__constants *constants; /* attention: windows, and what is added to scores; NULL: none */
    void *constants_there;           /* copy in device memory; NULL until planned */
    size_t saved_bytes, ws_bytes;
    hvt_op *op;     /* planned device operation, or NULL */
    size_t moments; /* norm: offset of [2,C] in the step statistics */
};

/*
 * A step whose local shards run together: for synchronized batch norm, over all shards and ranks, or on
 * several devices (sync.c). The caller's functions exchange the parts of batch norms between ranks.
 */
typedef struct hvt__sync_opts {
    int first, local, all; /* this rank's shards, and the number of all */
    /* NULL, as the functions: batch norm statistics are per shard. Else [all] index of each shard's part; a
     * part of 2*c floats takes hvt__part_floats() floats */
    const int *place;
    /* The parts, in device memory. next: where this rank writes its parts for the next exchange; else all
     * parts of the last exchange. */
    float *(*parts)(void *ctx, bool next);
    /* Exchange the parts of layer `name`. Collective. */
    hvt_status (*exchange)(void *ctx, int c, const char *name);
    void *ctx;
} hvt__sync_opts;

enum { HVT__PART_UNIT = 16 }; /* floats; slices of a comm are multiples */

static inline size_t hvt__part_floats(int c)
{
    return (2 * (size_t)c + HVT__PART_UNIT - 1) / HVT__PART_UNIT * HVT__PART_UNIT;
}

struct hvt_model {
    hvt_device *dev; /* borrowed */
    hvt__users users;
    hvt_layer *layer;
    int nlayer, cap;
    hvt_status mistake; /* first builder error; reported by plan */
    char mistake_text[256];
    char next_name[HVT_NAME_MAX]; /* of the layer appended next; "" for none */
    hvt_dtype type;               /* of activations and their gradients; HVT_F32 unless set */
    hvt_loss_opts loss;
    float *class_weights; /* [weighted_classes] NULL: none */
    int weighted_classes;
    bool averages_next; /* the next step's state has `average` */
    char *freeze;       /* hvt_model_freeze()'s prefixes; NULL: none */
    hvt_alias *alias;   /* [naliases] hvt_model_alias() */
    int naliases;
    hvt_attached *attached; /* [nattached] */
    int nattached;
    hvt__constants *constants; /* of all layers */
    bool inference;            /* hvt_model_set_inference() */
    hvt_value next_shares;     /* layer whose parameters the next layer shares; -1: none */
    bool unfused;              /* no fusion (for tests) */
    bool measures;             /* hvt__model_measure(): nothing is allocated, and nothing can run */
    bool poisons;              /* fill memory of activations with NaN when its lifetime ends (for tests) */
    int batch;                 /* 0 until planned */
    hvt_order order;
    hvt_value logits;
    uint64_t tape; /* hvt__tape_hash() */
    hvt_value input;
    int dropouts;   /* layers that draw */
    uint64_t *keys; /* [batch] device memory: keys of the images' draws in this training pass, then [batch]
                       copies of the first key; NULL: no dropout */
    int input_channels; /* channels stored per input pixel: as the device prefers, if only convolutions read
                           it */

    /* the last forward */
    const int32_t *labels; /* borrowed from its batch, as the input's y is; NULL: none */
    const float *targets;  /* the same; without those of its kind there is no loss */
    bool training;
    int real;              /* its valid images; -1 before the first */
    int shard;             /* its shard; -1: unknown */
    int turn;              /* the local shard whose activations the layers point to */
    float *pass_stats;     /* where it writes step statistics; NULL: at their place in grads */
    bool in_backward;      /* a backward pass is running */
    bool backward_pending; /* it was a training pass and backward has not run */

    hvt_param *param; /* in arena order */
    int nparam_tensors;
    int ntrained; /* the first ntrained are not frozen */
    hvt_stat *stat;
    int nstat;

    /* the arenas, one allocation each */
    float *params, *grads;
    float *parts; /* partial gradients of shared parameters; NULL: none */
    size_t parts_count;
    size_t arena_count;      /* of params: step statistics included */
    size_t grad_count;       /* of grads and of the optimizer's arenas: up to the first frozen parameter */
    size_t step_stats_count; /* step statistics are [0, step_stats_count) of grads; the last HVT__STEP_SUMS
                                are the sums of loss, agreement check and votes, see device/step.h */
    uint16_t *copy;  /* 16-bit copy of the parameters in `type`, read by convolutions; NULL: type is f32 */
    bool copy_stale; /* parameters changed outside of an update: the next forward pass must renew the copy */
    float *stats;
    size_t stats_count;
    void *acts;
    size_t acts_bytes;        /* y, dy and saved data of all layers; lifetimes share memory */
    ptrdiff_t acts_shift;     /* offset in bytes of the current shard's activations */
    struct hvt__sync *sync;   /* NULL: each shard's pass runs when it is called */
    struct hvt__split *split; /* NULL: one device, and no limit of its memory */
    struct hvt__stage *stage; /* NULL, unless this is the view of a stage */
    struct hvt_block *ending; /* [nending] its blocks, if poisons */
    int nending;
    void *ws;
    size_t ws_bytes;                  /* maximum over layers */
    bool grads_placed, params_placed; /* in a comm's memory instead of the device's */

    float *
        rows; /* host memory: losses and label ranks of a batch, for hvt_model_rows(); NULL: not needed yet */
    float *dlogits; /* host memory, for hvt_model_backward_from(); NULL: not needed yet */

    /* of hvt_batch_set(), device memory: a label and the targets of each row of the logits; NULL: not needed
     * yet */
    int32_t *own_labels;
    float *own_targets;
    void *answers; /* host memory: either in the order of these rows; NULL: not needed yet */

    /* for predictions and hvt_batch_set(), allocated on first use */
    void *images;    /* a batch in the input's layout and type */
    float *wide;     /* f32 images or logits of a batch, if activations have 16 bits */
    float *arranged; /* host memory: a batch in the input's layout */

    hvt_step_state *step; /* device memory */
    float first_scale;    /* initial loss scale of a run */
    int64_t inits;        /* how often parameters were initialised */
    hvt_loss taken;       /* counts at the last hvt_model_take_loss() */
    uint64_t seed;        /* of the last initialisation */
    int64_t tracked;      /* training steps counted by batch norm: num_batches_tracked */
};

/* For src/optim and checkpoints. */
/* Use `grads` (grad_count floats, zeroed, borrowed) as the gradient arena; NULL: allocate one from the
 * device again. */
hvt_status hvt__model_place(hvt_model *m, float *grads);
/* The same for the parameters. The caller has copied their values to `params`; NULL: copy them back to device
 * memory. */
hvt_status hvt__model_place_params(hvt_model *m, float *params);
/* Mark the 16-bit copy stale. Call it after writing parameters outside of an update, which writes the copy,
 * too. */
void hvt__model_changed(hvt_model *m);
/* Renew the 16-bit copy if it is stale. */
hvt_status hvt__model_refresh(hvt_model *m);
/* Begin a step over `images` images of all shards. inputs: see device/step.h; NULL: no comparison and no
 * votes.
 */
hvt_status hvt__model_begin_step(hvt_model *m, int64_t images, double lr,
                                 const float inputs[HVT__STEP_INPUTS]);
/* Decide the step and, unless it ends the run, update the running statistics. The step statistics must be
 * summed over all shards, and m->step->bad set by check. counts[shards]: images of every shard. */
hvt_status hvt__model_end_step(hvt_model *m, const int *counts, int shards);
/* Read or write the step's state after all queued work; write only between steps. */
hvt_status hvt__model_state(hvt_model *m, hvt_step_state *ret_state);
hvt_status hvt__model_set_state(hvt_model *m, const hvt_step_state *state);
/* E_DIVERGED or E_MISMATCH with the reason if this state ends the run. */
hvt_status hvt__model_stopped(const hvt_model *m, const hvt_step_state *state);
/* From the next step on the local shards run together. Synchronized batch norms need memory for the
 * activations of all of them at once. Errors: E_UNSUPPORTED (layers that share parameters, of several
 * shards), E_ARG (no batch norm), E_MEM. */
hvt_status hvt__sync_open(hvt_model *m, const hvt__sync_opts *opts);
void hvt__sync_close(hvt_model *m); /* a no-op without it */
bool hvt__model_is_split(const hvt_model *m);
/* Begin a step with counts[all] images per shard (borrowed), and end it, also after a failure. No-ops without
 * hvt__sync_open(). */
hvt_status hvt__sync_begin(hvt_model *m, const int *counts);
void hvt__sync_end(hvt_model *m);
/* The local shard whose gradients this thread reports; -1: one shard after the other. */
int hvt__pass_shard(void);
/* The device for work on these gradients. */
hvt_device *hvt__pass_device(const hvt_model *m);
/* True on the thread of a later stage, which may not use comms. */
bool hvt__pass_aside(void);
int hvt__sync_channels(const hvt_model *m); /* maximum over batch norms */
/* The parameter whose span of the arenas contains element `at`. */
int hvt__model_owner(const hvt_model *m, uint64_t at);
/* Elements of the largest parameter. Running statistics are not larger: they are as long as their layer's
 * weight. */
size_t hvt__model_largest(const hvt_model *m);
/* Convert a parameter in host memory from the device's to canonical layout. */
void hvt__param_to_file(const hvt_model *m, const hvt_param *p, const float *mine, float *canonical);
/* Copy a parameter's span of any arena with the parameters' layout (parameters, momentum) to or from
 * canonical layout in host memory; `canonical` has p->elements floats. */
hvt_status hvt__model_export(hvt_model *m, const hvt_param *p, const float *arena, float *canonical);
hvt_status hvt__model_import(hvt_model *m, const hvt_param *p, float *arena, const float *canonical);
/* Get a parameter (or, with p NULL, running statistics) in canonical layout, valid until the next call. */
typedef hvt_status hvt__tensor_fn(void *ctx, const hvt_param *p, const hvt_stat *t, const float **ret_x);
/* hvt_model_hash() of a model of these tensors. */
hvt_status hvt__model_hash_of(const hvt_model *m, hvt__tensor_fn *get, void *ctx, uint64_t *ret_hash);

/* Description of a layer, for people. */
typedef struct hvt__layer_facts {
    const char *name;
    char kind[64];               /* "conv2d 3x3 /2, 32 groups" */
    bool is_input;               /* the images */
    int channels, height, width; /* of its output */
    const char *shares;          /* the layer whose parameters it shares; NULL: none */
    size_t parameters;           /* elements of its own, as hvt_model_parameters() counts them */
    int64_t multiply_adds;       /* products of one image: convolutions, linear layers, attention, matmul */
} hvt__layer_facts;

/* Layer i of a planned model, in the order of execution; false after the last. */
bool hvt__model_describe(const hvt_model *m, int i, hvt__layer_facts *ret);
/* hvt_model_plan() of a model that is only described, to get hvt_model_memory(). Errors: as hvt_model_plan().
 */
hvt_status hvt__model_measure(hvt_model *m, int batch, hvt_value logits);

/* True if the name begins with this prefix of len bytes or, if the prefix ends in $, equals it. */
bool hvt__begins_with(const char *name, const char *prefix, size_t len);
/* List the first components of parameter names, up to the first dot, each once. */
void hvt__model_names(const hvt_model *m, char *ret_text, size_t room);

#endif /* HVT_MODEL_IMPL_H */
