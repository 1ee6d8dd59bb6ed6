/*
 * device_impl.h - the interface of a device backend.
 *
 * Included by src/device, src/model (layers call ops), src/optim, src/comm, src/data/loader.c and cuda/.
 * Nothing else.
 *
 * Contract shared by every op below
 *   - Shapes and types come from the *_plan call or the argument struct; ops do not check them again.
 *   - Ops are asynchronous: they return once enqueued, run in call order, and report late failures at the
 *     next sync, upload or download. "ref" and "cpu" happen to finish before they return.
 *   - Buffers are dense, 64-byte aligned (spans inside an arena: 4-byte aligned; a convolution's w and dw:
 *     32-byte aligned), and do not overlap unless stated.
 *   - Types. An op that takes a type (`type`, `t`) reads and writes activations, their gradients and w in it:
 *     HVT_F32, HVT_F16 or HVT_BF16. It computes in f32 and rounds once, to nearest even, when it stores. Data
 *     declared float is f32 whatever the type: parameters, their gradients, statistics, losses.
 *   - Activations are matrices [rows, C], channels last. The row order is the plan's hvt_order; only conv,
 *     pooling and augment depend on it, other ops take hvt_rows.
 *   - A batch may be short, in training too: of n allocated images, `real` are valid. Reductions read valid
 *     images only. Ops may write outputs of images past `real`; conv_backward_w may also overwrite its inputs
 *     there.
 *   - Conv weights are [K,C/groups,R,S] in files. In memory they have the layout of the device's
 * conv_plan (padding stays zero); conv_permute converts.
 *   - "add" means y += result; otherwise y = result.
 *   - Deterministic: the same inputs give the same bits for any number of threads and any split of an
 *     elementwise op. An image's forward result does not depend on its position in the batch.
 */
#ifndef HVT_DEVICE_IMPL_H
#define HVT_DEVICE_IMPL_H

#include "base/users.h"
#include "hvt/device.h"

typedef uint64_t hvt_mark; /* a point in the device's queue */
typedef struct hvt_op hvt_op;
enum { HVT__PUT_MOST = 256 };

/* A planned operation, owned by its layer. Each backend's own operation struct starts with this. */
struct hvt_op {
    hvt_device *dev;
    void (*free)(hvt_op *op);
    bool takes_norm; /* a convolution that is faster with conv.set_norm */
};

static inline void hvt__op_free(hvt_op *op) /* NULL is fine */
{
    if (op)
        op->free(op);
}

/* The valid rows of a matrix: the first `real` of each of `blocks` blocks of `block` rows. HWN: {pixels, n,
 * real}; NHW: {1, n*pixels, real*pixels}. */
typedef struct hvt_rows {
    int blocks, block, real;
} hvt_rows;

static inline hvt_rows hvt__rows(hvt_order order, int pixels, int n, int real)
{
    return order == HVT_ORDER_HWN ? (hvt_rows){pixels, n, real} : (hvt_rows){1, n * pixels, real * pixels};
}

typedef struct hvt_conv_desc {
    hvt_order order;
    hvt_dtype type; /* type of x, w, y and the gradients of x and y */
    int n, h, w, c; /* input [n,h,w,c] */
    int cx; /* channels stored per pixel of x, >= c, as the device's `channels` prefers; those past c are zero
               and not written in dx */
    int k, r, s; /* k filters of r x s taps */
    int stride_h, stride_w;
    int top, left, bottom, right; /* rows and columns of zeros around the input */
    int dilation_h, dilation_w;   /* pixels from tap to tap; 1: dense */
    int groups; /* filters [g*k/groups, (g+1)*k/groups) read only channels [g*c/groups, ...) */
    bool no_dx; /* x needs no gradient, as in a first layer: backward_x is never called */
} hvt_conv_desc;

/* Members of a desc with one group, equal strides and padding, and no dilation. */
#define HVT_CONV_EVEN(stride, pad)                                                                           \
    .stride_h = (stride), .stride_w = (stride), .top = (pad), .left = (pad), .bottom = (pad),                \
    .right = (pad), .dilation_h = 1, .dilation_w = 1, .groups = 1

/* A convolution's plan, or the start of a backend's. */
typedef struct hvt_conv {
    hvt_op op;
    hvt_conv_desc d;
    int p, q; /* output [n,p,q,k] */
} hvt_conv;

static inline int hvt__conv_out(int in, int window, int stride, int pad)
{
    return (in + 2 * pad - window) / stride + 1;
}

static inline int hvt__conv_height(const hvt_conv_desc *d) /* of the output */
{
    return (d->h + d->top + d->bottom - d->dilation_h * (d->r - 1) - 1) / d->stride_h + 1;
}

static inline int hvt__conv_width(const hvt_conv_desc *d)
{
    return (d->w + d->left + d->right - d->dilation_w * (d->s - 1) - 1) / d->stride_w + 1;
}

/* Channels that a filter reads, as weights store them. */
static inline int hvt__conv_depth(const hvt_conv_desc *d)
{
    return d->cx / d->groups;
}

/* Windows along one dimension: output o reads the existing inputs of [o*stride - pad, o*stride - pad + size);
 * with stride 0 (adaptive) [o*in/out, (o+1)*in/out rounded up). */
typedef struct hvt_window {
    int size, stride, pad, out;
} hvt_window;

typedef struct hvt_pooling_desc {
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c;
    int size, stride, pad;
    bool mean;    /* global mean over h x w (size, stride, pad unused); else maximum over size x size */
    bool windows; /* windows are given by rows and columns, also for means; size, stride and pad are unused */
    bool count_pad; /* a mean divides by the window's size, padding included */
    hvt_window rows, columns;
} hvt_pooling_desc;

typedef struct hvt_pooling {
    hvt_op op;
    hvt_pooling_desc d; /* rows and columns are set, except for a global mean */
    int p, q;           /* output [n,p,q,c] */
} hvt_pooling;

enum { HVT_POOLING_WINDOW = 15, HVT_POOLING_TAPS = 225 }; /* maxima, because the argmax is stored in a byte */

/* Errors: E_UNSUPPORTED type or stored channels, E_SHAPE. */
hvt_status hvt__conv_check(const hvt_device *d, const hvt_conv_desc *c);
/* Entries for backends: pooling_plan; conv_permute for plans that start with an hvt_conv, with weights
 * [K,R,S,cx/groups]. Errors: E_UNSUPPORTED type, E_SHAPE window that does not fit, E_MEM. */
hvt_status hvt__pooling_plan(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved);
void hvt__conv_permute_krsc(const hvt_op *op, bool to_file, float *mine, float *kcrs);
void hvt__op_free_plain(hvt_op *op); /* for an op that is a single block of memory */

/* A function of HVT__MAPS with its arguments. */
typedef struct hvt_map {
    hvt_function f;
    float a, b;
} hvt_map;

/* All functions: constant, name, and whether backward computes f' from x (else from y = f(x), which is
 * usually kept for the next layer). */
/* clang-format off */
#define HVT__MAPS(X)                                                                                         \
    X(RELU, relu, false) X(HARDTANH, hardtanh, false) X(LEAKY_RELU, leaky_relu, false) X(ELU, elu, false)    \
    X(SIGMOID, sigmoid, false) X(HARDSIGMOID, hardsigmoid, true) X(HARDSWISH, hardswish, true)               \
    X(SILU, silu, true) X(GELU, gelu, true) X(GELU_TANH, gelu_tanh, true) X(TANH, tanh, false)               \
    X(SOFTPLUS, softplus, true) X(AFFINE, affine, false) X(CLAMP, clamp, true) X(EXP, exp, false)            \
    X(LOG, log, true) X(POW, pow, true)
/* clang-format on */

/* backward reads x, not y */
static inline bool hvt__slope_from_x(hvt_function f)
{
#define HVT__FROM_X(constant, name, from_x) [HVT_##constant] = from_x,
    static const bool from[] = {HVT__MAPS(HVT__FROM_X)};

    return from[f];
}

typedef struct hvt_bn_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    float eps;
    const void *x;             /* [rows,c] */
    const float *gamma, *beta; /* [c] */
    float *mean, *rstd;        /* [c] train: written, read by backward. infer: read */
    const void *residual;      /* [rows,c] added before relu, or NULL */
    bool relu;
    const hvt_map *map; /* function after it, if there is no residual and no relu; NULL: none */
    void *y; /* [rows,c] = relu?(gamma*(x-mean)*rstd + beta + residual). NULL, on devices with conv.set_norm:
                bn_train computes only the statistics */
    float *moments; /* [2,c] train: weight*mean, weight*unbiased variance; zeros if < 2 values per channel */
    float weight;
    bool is_variance; /* infer: rstd and mean hold the moving variance and mean; else bn_train wrote them, and
                         y is recomputed bit for bit. moments and weight are unused */
} hvt_bn_args;

typedef struct hvt_bn_grad_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    const void *x, *y, *dy; /* y: forward's output, for relu's mask; NULL without relu */
    const float *gamma, *mean, *rstd;
    const float *beta;  /* forward's, if it added no residual: relu's mask may be recomputed from x, which is
                           cheaper than reading y; else NULL */
    const hvt_map *map; /* forward's; it requires dz */
    void *dz; /* [rows,c] for dy times the slope of map; may be dy. bn_backward and bn_sums may write it,
                 bn_dx reads it */
    void *dx; /* [rows,c]; may be dy */
    bool add;
    void *dresidual; /* [rows,c] masked dy, or NULL; may be dy, not dx */
    bool add_residual;
    float *dgamma, *dbeta;      /* [c] */
    const float *share, *slope; /* [c] bn_dx: means over all rows of all shards of dz (the masked dy) and of
                                   dz*(x-mean)*rstd */
} hvt_bn_grad_args;

/* A non-empty shard whose statistics are joined. */
typedef struct hvt_bn_shard {
    int32_t place; /* index of its part */
    int32_t images;
} hvt_bn_shard;

/* Join the results of bn_moments or bn_sums over shards, in f64 and in the order of shards: see
 * device/join.h. */
typedef struct hvt_bn_join_args {
    int c, pixels, shards;
    const hvt_bn_shard *shard; /* [shards] device memory */
    const float *part;         /* [2,c] per shard */
    size_t stride;             /* floats between parts */
    float eps;                 /* for moments */
    float *joined;             /* [2,c] for moments mean and rstd, for sums share and slope */
    float *moments;            /* [2,c] for moments: mean and unbiased variance */
} hvt_bn_join_args;

/* The option A shortcut of He et al.: y[.., p, q, (k-c)/2 + i] = x[.., p*stride, q*stride, i]; other channels
 * are zero. */
typedef struct hvt_subsample_desc {
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c; /* x [n,h,w,c] */
    int stride, k;  /* y [n,p,q,k]; p, q = h, w / stride, rounded up */
} hvt_subsample_desc;

/* Shape of the second operand b, which is broadcast. In the last three cases b is a parameter, so b and its
 * gradient are f32. */
typedef enum hvt_across {
    HVT_SAME,        /* b is [N,H,W,C] */
    HVT_PER_IMAGE,   /* [N,1,1,C] */
    HVT_PER_PIXEL,   /* [N,H,W,1] */
    HVT_PER_CHANNEL, /* [C] */
    HVT_ONE_NUMBER,  /* [1] */
    HVT_PER_ELEMENT  /* [at.count,C], only with HVT_ADD: one row for each pixel from at.first on */
} hvt_across;

/* y = a op b, or b op a if swapped; da (+)= dy * dy/da. db (+)= the same for b, summed over broadcast
 * dimensions and valid images; a parameter's db is overwritten. */
typedef struct hvt_binary_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c; /* of a and y */
    hvt_binary op;
    bool swapped;
    hvt_across across;
    struct {
        int first, count;
    } at; /* HVT_PER_ELEMENT: other pixels of y and da are copies of a and dy */
    const void *a, *b, *dy;
    void *y;
    void *da, *db; /* NULL: not needed; da may be dy */
    bool add_a, add_b;
} hvt_binary_args;

/* A box of pixels and channels in [n,h,w,c], from pixel (y, x) and channel `first` on. */
typedef struct hvt_box {
    int h, w, c;
    int y, x, first;
} hvt_box;

typedef struct hvt_move_args {
    hvt_order order;
    hvt_dtype type;
    int n;
    int h, w, c; /* of both boxes */
    hvt_box src, dst;
    const void *from;
    void *to;
    bool add;
} hvt_move_args;

/*
 * Layer, group and instance norm. Channels form `groups` of equal length. Mean and variance are taken over a
 * group in an image or, with per_pixel, over a group in a pixel.
 *
 *     y = (x - mean) / sqrt(variance + eps) * gamma + beta
 */
typedef struct hvt_norm_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c, groups;
    bool per_pixel;
    bool per_element; /* gamma and beta are [pixels,c], else [c] */
    float eps;
    const void *x;
    const float *gamma, *beta; /* NULL: 1 and 0 */
    float *mean, *rstd;        /* [n,groups], per_pixel [rows,groups]: written by forward, read by backward */
    void *y;
    /* backward */
    const void *dy;
    void *dx; /* NULL: not needed; may be dy */
    bool add;
    float *dgamma, *dbeta; /* NULL: not needed */
} hvt_norm_args;

/*
 * Scaled dot-product attention: for each window w of an image and each of the `heads` heads h, with rows q,
 * k, v of `width` channels,
 *
 *     y[i] = sum over keys j of P[i,j] v[j]
 *     P[i,.] = softmax over j of scale * q[i] . k[j] + table[bias[h,i,j]] + mask[w,i,j]
 *
 * The rows of q, k and v are `pitch` elements apart, so that they may be columns of one matrix; channels are
 * in head order. Several windows require as many keys as queries. Backward recomputes P.
 */
typedef struct hvt_attention_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, heads, width;
    int windows;       /* of an image */
    int queries, keys; /* per window: pixels of q and y, of k and v */
    float scale;
    /* device memory; NULL: none */
    const int32_t *pixel; /* [windows,queries] pixel of each query and key; NULL: in order */
    const float *table;   /* [elements], if that is not 0 */
    const int32_t *bias;  /* [heads,queries,keys], if there is a table */
    const float *mask;    /* [windows,queries,keys], finite */
    struct {
        const void *x;
        void *dx; /* backward: as x; NULL: not needed */
        int pitch;
        bool add;
    } q, k, v;
    void *y;        /* [n,queries,heads*width], dense */
    const void *dy; /* backward: as y */
    /* backward: as table; NULL: not needed. Element e sums the gradients of biases where[first[e]] to
     * where[first[e+1]-1], in this order, and for each over all images and windows in their order */
    float *dtable;
    int elements;
    const int32_t *first, *where;
    void *ws; /* attention_room() bytes; that function reads no pointer */
} hvt_attention_args;

/*
 * Dropout: y (+)= x * noise, noise being 0 or scale, for valid images. Element k of image n is kept if
 * drop_keeps(drop_bits(k, low, high), least), where low and high are the halves of hvt__mix(keys[n] ^ salt)
 * and
 *
 *     k = c * pixels + p    HVT_DROP_ELEMENTS, of channel c and pixel p: the index in [C,H,W]
 *     k = c                 HVT_DROP_CHANNELS, torch.nn.Dropout2d
 *     k = 0                 HVT_DROP_IMAGES, stochastic depth
 *
 * Backward is the same with gradients. x may be y.
 */
typedef enum hvt_drop { HVT_DROP_ELEMENTS, HVT_DROP_CHANNELS, HVT_DROP_IMAGES } hvt_drop;
typedef struct hvt_dropout_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c;
    hvt_drop what;
    int32_t least;
    float scale;
    uint64_t salt;
    const uint64_t *keys; /* [n] device memory */
    const void *x;
    void *y;
    bool add;
} hvt_dropout_args;

/*
 * Rotary embeddings of valid images: `vectors` vectors of `width` channels, from channel `first` of a pixel
 * on, are rotated in pairs of channels c and c'. Both are in one block of 2 * apart channels, `apart` from
 * each other:
 *
 *     y[..,c] (+)= own[p,c] * x[..,c] + other[p,c] * x[..,c']      of pixel p
 *
 * Other channels are copied, or added. Backward is the same with gradients and with other[p,c'] for
 * other[p,c]. x may be y unless y is added to.
 */
typedef struct hvt_rotary_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c;
    int first, vectors, width, apart;
    const float *own, *other; /* [pixels,width] device memory */
    const void *x;
    void *y;
    bool add;
} hvt_rotary_args;

static inline int hvt__rotary_partner(const hvt_rotary_args *a, int c)
{
    return c / a->apart % 2 ? c - a->apart : c + a->apart;
}

/* Sums of a loss over its rows, in this order. Both kinds of loss use the same indices, so that code that
 * sums over shards, ranks and steps need not know the kind. */
enum {
    HVT__SUM_LOSS,
    HVT__SUM_TOP1,                  /* cross-entropy: rows whose label is ranked first */
    HVT__SUM_ERROR = HVT__SUM_TOP1, /* mean squared error: the rows' mean absolute errors */
    HVT__SUM_TOP5,                  /* cross-entropy: rows whose label is among the first five; else 0 */
    HVT__SUMS
};

typedef struct hvt_xent_args {
    hvt_rows rows; /* rows.real rows are valid */
    int classes;
    hvt_dtype type;
    const void *logits;    /* [rows,classes] */
    const int32_t *labels; /* [rows] */
    float smoothing;       /* s: the target is (1 - s) * onehot + s / classes; 0: onehot */
    void *dlogits;         /* [rows,classes] softmax - target, zero in rows past real; NULL: not needed */
    float *loss;           /* [rows] nats */
    int32_t *label_rank;   /* [rows] number of logits that are larger than the label's, or equal with a lower
                              index */
    float *sums;           /* [HVT__SUMS] */
    const float *scale;    /* device memory: factor of dlogits, not of loss and sums; NULL: 1 */
} hvt_xent_args;

/* Mean squared error of each row, over its outputs. */
typedef struct hvt_mse_args {
    hvt_rows rows; /* rows.real rows are valid */
    int outputs;
    hvt_dtype type;
    const void *y;        /* [rows,outputs] */
    const float *targets; /* [rows,outputs] */
    void *dy;     /* [rows,outputs] 2 * (y - target) / outputs, zero in rows past real; NULL: not needed */
    float *loss;  /* [rows] mean of (y - target)^2 */
    float *error; /* [rows] mean of |y - target| */
    float *sums;  /* [HVT__SUMS] */
    const float *scale; /* as in hvt_xent_args */
} hvt_mse_args;

/*
 * A model's step state: inputs, decisions and counts, in device memory. Queued ops read it when they run, so
 * the host need not wait for the values, and a captured graph can be launched again with new ones.
 * hvt__step_decide() of device/step.h has the rules for all devices.
 */
enum {
    HVT__STEP_WORDS = 5,
    HVT__STEP_AGREEMENT = 1 + 2 * HVT__STEP_WORDS,
    HVT__STEP_VOTES = 2,
    HVT__STEP_INPUTS = HVT__STEP_AGREEMENT + HVT__STEP_VOTES,
    HVT__STEP_SUMS = HVT__SUMS + HVT__STEP_INPUTS /* 16: 64 bytes */
};
enum { HVT__SQUARES_BLOCK = 16, HVT__SQUARES_BINS = 24 }; /* see device/squares.h */

typedef struct hvt_step_state {
    /* written before each step, by one put of HVT__STEP_PUT bytes */
    double images;   /* in the global batch */
    int64_t tracked; /* batches seen by batch norms before this step: num_batches_tracked */
    float lr;
    float inputs[HVT__STEP_INPUTS]; /* agreement check and votes, summed over ranks; see device/step.h */
    int32_t skips_in_row;           /* not part of the put: consecutive skipped steps, updated by decide */
    /* loss scaling, torch.amp.GradScaler's; written at the start of a run */
    float loss_scale;             /* xent multiplies dlogits by it; 1: none */
    float growth, backoff, floor; /* 2, 0.5, and the least scale */
    int32_t interval;             /* good steps before it grows; 0: loss_scale is fixed */
    int32_t good;                 /* steps since it last changed */
    /* written by decide */
    float grad_scale; /* gradients are read as grad_scale * g: 1 / (images * loss_scale) */
    int32_t apply;    /* this step updates */
    int32_t fresh;    /* no update so far: momentum is uninitialised */
    int32_t stop;     /* hvt_stop; once set, no more updates are applied */
    uint64_t bad;     /* lowest arena index of a non-finite gradient; UINT64_MAX: none. Lowered by check */
    /* clipping: clip_norm is written once; decide subtracts what squares has added */
    double
        clip_norm; /* maximum norm of grad_scale * g, enforced by decide through grad_scale; 0: no clipping */
    int64_t squares[HVT__SQUARES_BINS];
    /* Adam's averages: beta is written once, the others by decide */
    double beta[2];  /* of each average; 0: none */
    int64_t updates; /* t: updates so far, without skipped ones */
    float bias[2];   /* 1 / (1 - beta[0]^t) and 1 / sqrt(1 - beta[1]^t) */
    /* average of the weights: decay and every are written once, the others by decide */
    double ema_decay;
    int64_t ema_every;   /* updated after updates 1, 1 + every, ...; 0: none */
    int64_t ema_count;   /* number of updates of the average */
    int64_t ema_tracked; /* num_batches_tracked, averaged */
    float ema_share; /* share of the weights after this update; 0: no update of the average; 1: copy them */
    /* counted by decide, never reset */
    int64_t steps, skipped, count;
    int64_t votes[HVT__STEP_VOTES]; /* votes, summed over ranks and steps */
    double sums[HVT__SUMS];         /* of counted images; hits are exact up to 2^53 */
    /* about the step that set `stop` */
    int64_t stop_step;
    double stop_loss;
    uint64_t stop_bad;
} hvt_step_state;

enum { HVT__STEP_PUT = sizeof(double) + sizeof(int64_t) + (1 + HVT__STEP_INPUTS) * sizeof(float) };

typedef enum hvt_stop {
    HVT_STOP_NOT,
    HVT_STOP_LOSS,    /* the loss is not finite */
    HVT_STOP_SCALE,   /* gradients are not finite at the least loss scale, or with a fixed one */
    HVT_STOP_DISAGREE /* ranks have different inputs for this step */
} hvt_stop;

typedef struct hvt_bn_update_args {
    const hvt_step_state *step; /* device memory; does nothing if step->stop */
    int c;
    float rate, scale;
    const float *moments; /* [2,c] */
    float *mean, *var;    /* [c] running statistics: (1-rate)*old + rate*(scale*moments) */
} hvt_bn_update_args;

typedef struct hvt_sgd_args {
    float momentum, dampening, weight_decay;
    bool nesterov;
    const hvt_step_state *step; /* device memory: lr, grad_scale, apply (0: touch nothing), fresh (v = g) */
    void *copy;                 /* 16-bit copy of the new w in copy_type, at the same offsets; NULL: none */
    hvt_dtype copy_type;
} hvt_sgd_args;

typedef struct hvt_adam_args {
    double beta[2];
    float eps, weight_decay;
    bool decoupled;             /* AdamW: decays the weight directly, not through the gradient */
    const hvt_step_state *step; /* device memory: lr, grad_scale, apply, fresh (m and v are 0), bias */
    void *copy;                 /* as above */
    hvt_dtype copy_type;
} hvt_adam_args;

/* PowerSGD's factors of a convolution's gradient G, seen as a matrix [k, m]: P [k, r] and Q [m, r], stored by
 * columns. G and the residual E have the device's layout of k filters; j < m enumerates taps, and channels
 * within a tap. */
typedef struct hvt_factor_args {
    int k, m, r;
    float *g, *e; /* [k,m] */
    float *p;     /* [r][k] */
    float *q;     /* [r][m] */
    float share;
} hvt_factor_args;

typedef struct hvt_augment_args {
    hvt_order order;
    int n, real; /* dst holds n images, src `real` of them */
    int h, w, c;
    bool floats;              /* src holds floats, else bytes */
    const void *src;          /* [real,h,w,c] host memory */
    const int8_t *draws;      /* [real,3] host: crop offset dy, dx in -pad..pad; 1 = mirror. NULL: none */
    const int32_t *labels;    /* [real] host */
    float scale[4], shift[4]; /* x = fma(value, scale[c], shift[c]); a pixel outside the image is 0 */
    hvt_dtype type;
    int cx;              /* channels stored per pixel of dst, >= c; those past c become zero */
    void *dst;           /* [n,h,w,cx] in `order` */
    int32_t *dst_labels; /* [n] device */

    const float *targets; /* [real,outputs] host. NULL: none */
    int outputs;
    float *dst_targets; /* [n,outputs] device */
} hvt_augment_args;
/* Host memory passed here (from alloc_host) may be changed after a mark that follows the op. */

typedef void hvt_job_fn(void *ctx, int job, int thread); /* thread: 0 .. threads-1, for private scratch */

typedef struct hvt_device_ops {
    const char *name;

    /* --- life --- */
    hvt_status (*open)(hvt_device *d, const hvt_device_opts *opts);
    void (*close)(hvt_device *d); /* NULL: nothing to do */
    /* hvt_device_order(); NULL: NHW */
    hvt_order (*order)(const hvt_device *d, int batch, int height, int width);
    int (*channels)(const hvt_device *d, hvt_dtype t,
                    int c); /* best number to store per pixel of c channels; NULL: c */
    void (*describe)(const hvt_device *d, hvt_device_info *ret_info); /* NULL: nothing to say */
    bool recomputes; /* recomputes a batch norm's y instead of keeping it */
    bool host;       /* device memory is host memory, and ops have completed when they return */

    struct {
        hvt_status (*alloc)(hvt_device *d, size_t bytes, void **ret_ptr);      /* zeroed */
        void (*release)(hvt_device *d, void *ptr);                             /* NULL is fine */
        hvt_status (*alloc_host)(hvt_device *d, size_t bytes, void **ret_ptr); /* pinned if it helps */
        void (*release_host)(hvt_device *d, void *ptr);
        hvt_status (*upload)(hvt_device *d, void *dst, const void *host, size_t bytes);
        hvt_status (*download)(hvt_device *d, void *host, const void *src, size_t bytes);
        /* asynchronous; copies from host during the call: a multiple of 4, at most HVT__PUT_MOST bytes */
        hvt_status (*put)(hvt_device *d, void *dst, const void *host, size_t bytes);
        hvt_status (*copy)(hvt_device *d, void *dst, const void *src, size_t bytes);
        hvt_status (*zero)(hvt_device *d, void *dst, size_t bytes);
    } memory;

    struct {                                                   /* NULL: ops have completed when they return */
        hvt_status (*mark)(hvt_device *d, hvt_mark *ret_mark); /* at the current end of the queue */
        hvt_status (*await)(hvt_device *d, hvt_mark mark);     /* the host waits for it */
        hvt_status (*sync)(hvt_device *d);
        /* Graph capture: ops between capture_begin and capture_end are captured, not run; graph_launch(op)
         * enqueues all of them. Addresses and arguments are those at capture; device memory is read at
         * launch. No sync, alloc, upload, download or put in between, and every op must have run once before.
         * A graph is freed before the ops that it contains. NULL: no capture on this device. */
        hvt_status (*capture_begin)(hvt_device *d);
        hvt_status (*capture_end)(hvt_device *d,
                                  hvt_op **ret_op); /* also ends a failed capture, without an op */
        hvt_status (*graph_launch)(hvt_op *op);
    } queue;

    /* Planned once, run every step. A linear layer is a convolution of 1x1 images. */
    struct {
        /* ret_weights: elements of w in its arenas; ret_ws: bytes of workspace */
        hvt_status (*plan)(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                           size_t *ret_ws);
        /* between arrays in host memory; to_file: mine -> kcrs, else kcrs -> mine with zero padding */
        void (*permute)(const hvt_op *op, bool to_file, float *mine, float *kcrs);
        /* Fuse the batch norm before this convolution: from now on forward and backward_w get a->x as x and
         * compute bn_infer(a) on the fly, with the same bits. a has no residual; a NULL ends the fusion. For
         * devices that set takes_norm */
        void (*set_norm)(hvt_op *op, const hvt_bn_args *a);
        hvt_status (*forward)(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws);
        hvt_status (*backward_x)(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                 void *ws);
        hvt_status (*backward_w)(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws);
    } conv;

    struct {
        /* ret_saved: bytes saved by forward for backward */
        hvt_status (*plan)(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved);
        hvt_status (*forward)(hvt_op *op, int real, const void *x, void *y, void *saved);
        hvt_status (*backward)(hvt_op *op, int real, const void *saved, const void *dy, void *dx, bool add);
    } pooling;

    struct { /* ops on matrices [rows, c] */
        hvt_status (*bn_train)(hvt_device *d, const hvt_bn_args *a);
        hvt_status (*bn_infer)(hvt_device *d, const hvt_bn_args *a);
        hvt_status (*bn_backward)(hvt_device *d, const hvt_bn_grad_args *a);
        hvt_status (*bn_update)(hvt_device *d, const hvt_bn_update_args *a);
        /* Batch norm over several shards: a first pass over each shard's rows, bn_join of the results, and a
         * second pass. Forward: a->moments = [2,c] mean, and sum of squared deviations from it; the second
         * pass is bn_infer. Backward: the first pass writes dgamma and dbeta, and may write dresidual; the
         * second gets the same arguments and writes the rest of bn_backward's outputs. */
        hvt_status (*bn_moments)(hvt_device *d, const hvt_bn_args *a);
        hvt_status (*bn_sums)(hvt_device *d, const hvt_bn_grad_args *a);
        hvt_status (*bn_dx)(hvt_device *d, const hvt_bn_grad_args *a);
        hvt_status (*bn_join_moments)(hvt_device *d, const hvt_bn_join_args *a);
        hvt_status (*bn_join_sums)(hvt_device *d, const hvt_bn_join_args *a);
        /* y += b; db = the sum of dy's rows */
        hvt_status (*bias_forward)(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y);
        hvt_status (*bias_backward)(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy,
                                    float *db);
        hvt_status (*subsample_forward)(hvt_device *d, const hvt_subsample_desc *s, const void *x, void *y);
        hvt_status (*subsample_backward)(hvt_device *d, const hvt_subsample_desc *s, const void *dy, void *dx,
                                         bool add);
        hvt_status (*xent)(hvt_device *d, const hvt_xent_args *a);
        hvt_status (*mse)(hvt_device *d, const hvt_mse_args *a);
    } matrix;

    struct { /* ops on n elements */
        hvt_status (*relu_forward)(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y);
        hvt_status (*relu_backward)(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy,
                                    void *dx, bool add);
        /* y may be a or b */
        hvt_status (*add)(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b, void *y);
        /* dst = s * src; src may be dst if their types are the same */
        hvt_status (*cast)(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                           hvt_dtype dt);
        /* out = in[0] + ... + in[count-1] along the tree (2i and 2i+1 are added, an odd last one moves up a
         * level), in f32, rounded once to t; out may be one of the inputs. in[], and the optimizers' g[], is
         * host memory */
        hvt_status (*reduce)(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count,
                             void *out);
        /* the gradients of ng ranks are first added along the tree */
        hvt_status (*sgd)(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                          float *w, float *v);
        hvt_status (*adam)(hvt_device *d, size_t n, const hvt_adam_args *a, const float *const g[], int ng,
                           float *w, float *m, float *v);
        /* ema += step->ema_share * (w - ema); 1: ema = w; 0: nothing */
        hvt_status (*ema)(hvt_device *d, size_t n, const hvt_step_state *step, const float *w, float *ema);
    } vector;

    struct { /* ops of other layers; NULL: not supported, which hvt_model_plan() reports */
        hvt_status (*map_forward)(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *x,
                                  void *y);
        /* saved: forward's x or y, see HVT__MAPS; dx may be dy */
        hvt_status (*map_backward)(hvt_device *d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved,
                                   const void *dy, void *dx, bool add);
        hvt_status (*binary_forward)(hvt_device *d, const hvt_binary_args *a);
        hvt_status (*binary_backward)(hvt_device *d, const hvt_binary_args *a); /* db, then da */
        hvt_status (*move)(hvt_device *d,
                           const hvt_move_args *a); /* copies a box from source to destination */
        /* y[i,k,j,b] (+)= x[i,j,k,b], x [n,rows,cols,block]; with rows and cols swapped the inverse */
        hvt_status (*transpose)(hvt_device *d, size_t n, hvt_dtype t, int rows, int cols, int block,
                                const void *x, void *y, bool add);
        hvt_status (*norm_forward)(hvt_device *d, const hvt_norm_args *a);
        hvt_status (*norm_backward)(hvt_device *d, const hvt_norm_args *a);
        hvt_status (*dropout)(hvt_device *d, const hvt_dropout_args *a);
        hvt_status (*rotary)(hvt_device *d, const hvt_rotary_args *a);
        size_t (*attention_room)(hvt_device *d, const hvt_attention_args *a); /* its workspace, in bytes */
        hvt_status (*attention_forward)(hvt_device *d, const hvt_attention_args *a);
        hvt_status (*attention_backward)(hvt_device *d, const hvt_attention_args *a);
    } general;

    struct { /* NULL unless `host` */
        /* vector.reduce in place: the sum of all `io` is written to each of them */
        hvt_status (*reduce_all)(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count);
        hvt_status (*factor_p)(hvt_device *d, const hvt_factor_args *a);    /* e += g; p = e q */
        hvt_status (*factor_q)(hvt_device *d, const hvt_factor_args *a);    /* q = e^T p */
        hvt_status (*factor_join)(hvt_device *d, const hvt_factor_args *a); /* g = p q^T; e -= share * g */
    } host_only;

    struct { /* the decision of a step */
        /* step->bad = min(step->bad, base + i) over all i for which g[i] is not finite */
        hvt_status (*check)(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step);
        /* step->squares += squares of g, in blocks from its first element on */
        hvt_status (*squares)(hvt_device *d, size_t n, const float *g, hvt_step_state *step);
        /* sums [HVT__STEP_SUMS] over the global batch: loss, agreement check, votes */
        hvt_status (*decide)(hvt_device *d, hvt_step_state *step, const float *sums);
    } step;

    /* job(ctx, i, thread) for all i < jobs, on `threads` host threads, the caller included. NULL: only the
     * caller's. */
    void (*parallel_for)(hvt_device *d, int jobs, hvt_job_fn *job, void *ctx);

    /* crop, flip, normalise, bytes to floats */
    hvt_status (*augment)(hvt_device *d, const hvt_augment_args *a);
} hvt_device_ops;

/* Ops that every device implements: X(entry, stem of the functions' names). A backend generates its table
 * from this list and, if its functions are in several files, their declarations, from the prototypes above.
 */
/* clang-format off */
#define HVT__OPS(X)                                                                                          \
    X(conv.plan, conv_plan) X(conv.forward, conv_forward) X(conv.backward_x, conv_backward_x)                \
    X(conv.backward_w, conv_backward_w) X(pooling.forward, pooling_forward)                                  \
    X(pooling.backward, pooling_backward) X(matrix.bn_train, bn_train) X(matrix.bn_infer, bn_infer)          \
    X(matrix.bn_backward, bn_backward) X(matrix.bn_update, bn_update) X(matrix.bn_moments, bn_moments)       \
    X(matrix.bn_sums, bn_sums) X(matrix.bn_dx, bn_dx) X(matrix.bias_forward, bias_forward)                   \
    X(matrix.bias_backward, bias_backward) X(matrix.subsample_forward, subsample_forward)                    \
    X(matrix.subsample_backward, subsample_backward) X(matrix.xent, xent) X(matrix.mse, mse)                 \
    X(vector.relu_forward, relu_forward) X(vector.relu_backward, relu_backward) X(vector.add, add)           \
    X(vector.cast, cast) X(vector.reduce, reduce) X(vector.sgd, sgd) X(vector.adam, adam)        \
    X(vector.ema, ema) X(step.check, check) X(step.squares, squares)
/* Ops of `general`. */
#define HVT__GENERAL_OPS(X)                                                                                  \
    X(general.map_forward, map_forward) X(general.map_backward, map_backward)                                \
    X(general.binary_forward, binary_forward) X(general.binary_backward, binary_backward)                    \
    X(general.move, move) X(general.transpose, transpose) X(general.norm_forward, norm_forward)                  \
    X(general.norm_backward, norm_backward) X(general.dropout, dropout) X(general.rotary, rotary)            \
    X(general.attention_room, attention_room) X(general.attention_forward, attention_forward)                \
    X(general.attention_backward, attention_backward)
/* clang-format on */
#define HVT__OP_TYPE(entry) __typeof__(*((hvt_device_ops *)0)->entry)

struct hvt_device {
    const hvt_device_ops *ops;
    void *state; /* the backend's */
    const char *isa;
    int index, threads;
    bool deterministic, tf32, share; /* as hvt_device_opts */
    int conv_tile;                   /* as hvt_device_opts */
    bool yield;                      /* waiting threads yield the core at once */
    hvt__users users;
};

/*
 * The calling thread's floating-point environment (MXCSR; FPCR and FPSR). enter sets the mode of all the
 * library's arithmetic, whatever the host program has set: round to nearest, flush subnormal operands and
 * results to zero, no traps. It returns the previous mode, which leave restores, including the exception
 * flags. Both write the register only if it changes, so a nested pair costs only two reads.
 *
 * Host devices call them in every op; their own threads stay in this mode. Other functions that add floats
 * whose bits matter begin with HVT_FLOATS.
 */
uint64_t hvt__floats_enter(void);
void hvt__floats_leave(const uint64_t *was);
#define HVT_FLOATS                                                                                           \
    const uint64_t floats_before_ __attribute__((cleanup(hvt__floats_leave), unused)) = hvt__floats_enter()

/* The device registry. Backends that were not built have null entries. */
extern const hvt_device_ops hvt_device_ref, hvt_device_cpu, hvt_device_cuda;
int hvt__cuda_count(void); /* GPUs that this process can open; 0 without a driver */

#endif /* HVT_DEVICE_IMPL_H */
