/*
 * device_impl.h - what a device must be able to do.
 *
 * Included by src/device, src/model (layers call ops), src/optim, src/comm, src/data/loader.c
 * and cuda/. Nothing else.
 *
 * Contract shared by every op below
 *   - Shapes and types were agreed by the *_plan call or stand in the argument struct; ops do not
 *     re-check them.
 *   - Ops are queued: they return once enqueued, run in call order, and report
 *     late failures at the next sync/upload/download.  "ref" and "cpu" happen
 *     to finish before returning.
 *   - Buffers are dense, 64-byte aligned (spans inside an arena: 4-byte aligned; a convolution's w and dw:
 *     32-byte aligned), and do not overlap unless said so.
 *   - Types. An op that takes a type (`type`, `t`) reads and writes activations, their gradients and w in it:
 *     HVT_F32, HVT_F16 or HVT_BF16. It computes in f32 and rounds once, to nearest even, where it stores.
 *     Everything declared float is f32 whatever the type: parameters, their gradients, statistics, losses.
 *   - Activations are matrices [rows, C] with channels last.  The order of rows is the
 *     plan's hvt_order; only conv, pool and augment look at it, the rest takes hvt_rows.
 *   - A batch may be short, in training too: `real` images are, n are allocated. Reductions read
 *     real images only. Outputs for images past `real` may be written or left alone;
 *     conv_backward_w may also overwrite what its inputs hold past `real`.
 *   - Conv weights are [K,C,R,S] in files; in memory they lie as the device's own
 *     conv_plan says (padding is zero and stays zero), and permute translates.
 *   - "add" means y += result; otherwise y = result.
 *   - Same inputs, same bits: whatever the number of threads, wherever a span of an elementwise op
 *     is cut. An image's forward result does not depend on its place in the batch.
 */
#ifndef HVT_DEVICE_IMPL_H
#define HVT_DEVICE_IMPL_H

#include "base/users.h"
#include "hvt/device.h"

typedef uint64_t hvt_mark; /* a point in the device's queue */
typedef struct hvt_op hvt_op;
enum { HVT__PUT_MOST = 256 };

/* One prepared operation, owned by its layer. A backend's own operations begin with this. */
struct hvt_op {
    hvt_device *dev;
    void (*free)(hvt_op *op);
};

static inline void hvt__op_free(hvt_op *op) /* NULL is fine */
{
    if (op)
        op->free(op);
}

/* Which rows of a matrix are real: the first `real` of each of `blocks` blocks of `block` rows.
 * HWN: {pixels, n, real}; NHW: {1, n*pixels, real*pixels}. */
typedef struct hvt_rows {
    int blocks, block, real;
} hvt_rows;

static inline hvt_rows hvt__rows(hvt_order order, int pixels, int n, int real)
{
    return order == HVT_ORDER_HWN ? (hvt_rows){pixels, n, real} : (hvt_rows){1, n * pixels, real * pixels};
}

typedef struct hvt_conv_desc {
    hvt_order order;
    hvt_dtype type; /* of x, w, y and the gradients of x and y */
    int n, h, w, c; /* input [n,h,w,c] */
    int cx;         /* channels that a pixel of x is stored with, >= c: those past c are zero, and not written
                       in dx. The device's own wish, see `channels`; else c */
    int k, r, s;    /* filters */
    int stride, pad;
    bool no_dx; /* first layer: backward_x is never called */
} hvt_conv_desc;

static inline int hvt__conv_out(int in, int window, int stride, int pad)
{
    return (in + 2 * pad - window) / stride + 1;
}

typedef struct hvt_pooling_desc {
    hvt_order order;
    hvt_dtype type;
    int n, h, w, c;
    int size, stride, pad;
    bool mean; /* global mean over h x w (size, stride, pad unused); else maximum over size x size */
} hvt_pooling_desc;

enum { HVT_POOLING_WINDOW = 15 }; /* the widest: the place of the largest is kept in a byte */

/* What no device pools. */
hvt_status hvt__pooling_check(const hvt_pooling_desc *p);

typedef struct hvt_bn_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    float eps;
    const void *x;             /* [rows,c] */
    const float *gamma, *beta; /* [c] */
    float *mean, *rstd; /* [c] train: written, read by backward. infer: the moving mean and VARIANCE, read */
    const void *residual; /* [rows,c] added before relu, or NULL */
    bool relu;
    void *y;        /* [rows,c] = relu?(gamma*(x-mean)*rstd + beta + residual) */
    float *moments; /* [2,c] train: weight*mean, weight*unbiased variance; zeros if < 2 values per channel */
    float weight;
} hvt_bn_args;

typedef struct hvt_bn_grad_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    const void *x, *y, *dy; /* y: forward's output, for relu's mask; NULL without relu */
    const float *gamma, *mean, *rstd;
    const float *beta; /* forward's, given only where it added no residual: relu's mask may be taken from x
                          again, which is cheaper than reading y; else NULL */
    void *dx;          /* [rows,c]; may be dy */
    bool add;
    void *dresidual; /* [rows,c] masked dy, or NULL; may be dy, not dx */
    bool add_residual;
    float *dgamma, *dbeta; /* [c] */
} hvt_bn_grad_args;

typedef struct hvt_xent_args {
    hvt_rows rows; /* rows.real rows count */
    int classes;
    hvt_dtype type;
    const void *logits;    /* [rows,classes] */
    const int32_t *labels; /* [rows] */
    void *dlogits;         /* [rows,classes] softmax - onehot, zero in rows past real; NULL: not wanted */
    float *loss;           /* [rows] nats */
    int32_t *label_rank;        /* [rows] logits strictly larger, plus equal ones of lower index */
    float *sums;           /* [3] sum of loss, rows with place < 1, with place < 5; in row order */
    const float *scale; /* device memory: dlogits are multiplied by it; NULL: by 1. loss and sums are not */
} hvt_xent_args;

/*
 * What a step is told, decides and counts, in device memory: a queued op reads it when it runs, so the host
 * need not wait to know it, and a recorded step runs again with new values. One per model. The rules are
 * hvt__step_decide's in device/step.h, one text for all devices.
 */
enum { HVT__STEP_WORDS = 6, HVT__STEP_AGREEMENT = 1 + 2 * HVT__STEP_WORDS, HVT__STEP_SUMS = 3 + HVT__STEP_AGREEMENT };

typedef struct hvt_step_state {
    /* written before each step, by one put of HVT__STEP_PUT bytes */
    double images; /* in the global batch */
    float lr;
    float agreement[HVT__STEP_AGREEMENT]; /* summed over ranks, see device/step.h */
    int32_t skips_in_row;       /* not put: settle's own, steps skipped one after the other until now */
    /* loss scaling, torch.amp.GradScaler's; written at the start of a run */
    float loss_scale;             /* xent multiplies dlogits by it; 1: none */
    float growth, backoff, floor; /* 2, 0.5, and the least scale */
    int32_t interval;             /* good steps until it grows; 0: loss_scale is fixed */
    int32_t good;                 /* steps since it last changed */
    /* decided by settle */
    float grad_scale; /* gradients are read as grad_scale * g: 1 / (images * loss_scale) */
    int32_t apply;    /* this step updates */
    int32_t fresh;    /* no update was made yet, so that momentum holds nothing */
    int32_t stop;     /* hvt_stop; once set, nothing is applied any more */
    uint64_t bad; /* lowest arena index of a gradient that is not finite; UINT64_MAX: none. check lowers it */
    /* counted by settle, never reset */
    int64_t steps, skipped, top1, top5, count;
    double loss;
    /* of the step that set stop */
    int64_t stop_step;
    double stop_loss;
    uint64_t stop_bad;
} hvt_step_state;

enum { HVT__STEP_PUT = sizeof(double) + (1 + HVT__STEP_AGREEMENT) * sizeof(float) };

typedef enum hvt_stop {
    HVT_STOP_NOT,
    HVT_STOP_LOSS,  /* the loss is not finite */
    HVT_STOP_SCALE, /* gradients are not finite at the least loss scale, or without one that could fall */
    HVT_STOP_DISAGREE   /* ranks were told different things of this step */
} hvt_stop;

typedef struct hvt_sgd_args {
    float momentum, dampening, weight_decay;
    bool nesterov;
    const hvt_step_state *step; /* device memory: lr, grad_scale, apply (0: touch nothing), fresh (v = g) */
    void *copy;                 /* the new w rounded to copy_type, at the same offsets; NULL: not wanted */
    hvt_dtype copy_type;
} hvt_sgd_args;

/* Factors of a convolution's gradient G, seen as a matrix [k, m] of k filters: P [k, r] and Q [m, r], whose
 * columns lie one after the other. G, and E of its shape, lie as the device lays out k filters; j < m counts
 * taps, and channels within a tap. */
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
    const uint8_t *src;       /* [real,h,w,c] bytes, host memory */
    const int8_t *draws;      /* [real,3] host: crop offset dy, dx in -pad..pad; 1 = mirror. NULL: none */
    const int32_t *labels;    /* [real] host */
    float scale[4], shift[4]; /* x = fma(byte, scale[c], shift[c]); a pixel outside the image is byte 0 */
    hvt_dtype type;
    int cx;              /* channels that a pixel of dst is stored with, >= c; those past c become zero */
    void *dst;           /* [n,h,w,cx] in `order` */
    int32_t *dst_labels; /* [n] device */
} hvt_augment_args;
/* Host memory of these arguments (alloc_host's) may be changed again after a mark that follows the op. */

typedef struct hvt_device_ops {
    const char *name;

    /* --- life --- */
    hvt_status (*open)(hvt_device *d, const hvt_device_opts *opts);
    void (*close)(hvt_device *d);
    hvt_order (*order)(const hvt_device *d, int batch, int height, int width); /* hvt_device_order() */
    int (*channels)(const hvt_device *d, hvt_dtype t, int c); /* how many an image of c is best stored with */
    void (*describe)(const hvt_device *d, hvt_device_info *ret_info);
    bool host; /* its memory is host memory, and ops have ended when they return */

    /* --- memory --- */
    hvt_status (*alloc)(hvt_device *d, size_t bytes, void **ret_ptr);      /* zeroed */
    void (*release)(hvt_device *d, void *ptr);                             /* NULL is fine */
    hvt_status (*alloc_host)(hvt_device *d, size_t bytes, void **ret_ptr); /* pinned if it helps */
    void (*release_host)(hvt_device *d, void *ptr);
    hvt_status (*upload)(hvt_device *d, void *dst, const void *host, size_t bytes);
    hvt_status (*download)(hvt_device *d, void *host, const void *src, size_t bytes);
    hvt_status (*put)(hvt_device *d, void *dst, const void *host, size_t bytes); /* queued; <= HVT__PUT_MOST
                                              bytes, a multiple of 4, taken at the call */

    /* --- order --- */
    hvt_status (*mark)(hvt_device *d, hvt_mark *ret_mark); /* here, in the queue */
    hvt_status (*await)(hvt_device *d, hvt_mark mark);     /* host waits for it */
    hvt_status (*sync)(hvt_device *d);
    /* Recording: between record and record_end ops are noted, not run; run(op) queues them all. Addresses and
     * arguments are those of the recording, contents of device memory are new. No sync, alloc, upload,
     * download or put in between; every op has run once before. A recording is freed before the ops that it
     * holds. NULL: this device does not record. */
    hvt_status (*capture_begin)(hvt_device *d);
    hvt_status (*capture_end)(hvt_device *d, hvt_op **ret_op); /* also after a failure, to stop; then no op */
    hvt_status (*graph_launch)(hvt_op *op);

    /* --- prepared: plan once, run every step. A linear layer is a convolution of 1x1 images. --- */
    hvt_status (*conv_plan)(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                            size_t *ret_ws); /* elements w takes in its arenas; bytes of ws */
    void (*conv_permute)(const hvt_op *op, bool to_file, float *mine,
                         float *kcrs);                  /* host copies; to_file: mine
                                -> kcrs, else kcrs -> mine with zero padding */
    hvt_status (*conv_pack_weights)(hvt_op *op, const void *w); /* before backward_x, after every update */
    hvt_status (*conv_forward)(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws);
    hvt_status (*conv_backward_x)(hvt_op *op, int real, const void *w, const void *dy, void *dx, bool add,
                                  void *ws);
    hvt_status (*conv_backward_w)(hvt_op *op, int real, const void *x, const void *dy, float *dw, void *ws);

    hvt_status (*pooling_plan)(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op,
                            size_t *ret_saved); /* bytes kept from forward to backward */
    hvt_status (*pooling_forward)(hvt_op *op, int real, const void *x, void *y, void *saved);
    hvt_status (*pooling_backward)(hvt_op *op, int real, const void *saved, const void *dy, void *dx, bool add);

    /* --- on a matrix [rows, c] --- */
    hvt_status (*bn_train)(hvt_device *d, const hvt_bn_args *a);
    hvt_status (*bn_infer)(hvt_device *d, const hvt_bn_args *a);
    /* y once more, to the bit, from mean and rstd as bn_train left them; moments and weight unused. NULL:
     * this device rather keeps y than makes it twice */
    hvt_status (*bn_recompute)(hvt_device *d, const hvt_bn_args *a);
    hvt_status (*bn_backward)(hvt_device *d, const hvt_bn_grad_args *a);
    /* run = (1-rate)*run + rate*(scale*moments), for mean and variance; nothing if step->stop */
    hvt_status (*bn_update)(hvt_device *d, const hvt_step_state *step, int c, float rate, float scale,
                            const float *moments, float *run_mean, float *run_var);
    hvt_status (*bias_forward)(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b,
                               void *y); /* y += b */
    hvt_status (*bias_backward)(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db);
    /* He's option A: y[.., p, q, lead + i] = x[.., p*stride, q*stride, i], other channels zero */
    hvt_status (*subsample_forward)(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                    int stride, int channels, const void *x, void *y);
    hvt_status (*subsample_backward)(hvt_device *d, hvt_order o, hvt_dtype t, int n, int h, int w, int c,
                                     int stride, int channels, const void *dy, void *dx, bool add);
    hvt_status (*xent)(hvt_device *d, const hvt_xent_args *a);

    /* --- on n elements --- */
    hvt_status (*relu_forward)(hvt_device *d, size_t n, hvt_dtype t, const void *x, void *y);
    hvt_status (*relu_backward)(hvt_device *d, size_t n, hvt_dtype t, const void *y, const void *dy, void *dx,
                                bool add);
    hvt_status (*add)(hvt_device *d, size_t n, hvt_dtype t, const void *a, const void *b,
                      void *y); /* y may be a or b */
    hvt_status (*copy)(hvt_device *d, void *dst, const void *src, size_t bytes);
    hvt_status (*zero)(hvt_device *d, void *dst, size_t bytes);
    hvt_status (*cast)(hvt_device *d, size_t n, float s, const void *src, hvt_dtype st, void *dst,
                       hvt_dtype dt);
    /* out = in[0] + ... + in[count-1] along the tree (2i and 2i+1 are added, an odd last one moves up),
     * in f32, rounded once to t; out may be one of the inputs */
    hvt_status (*reduce)(hvt_device *d, size_t n, hvt_dtype t, const void *const in[], int count, void *out);
    /* the same sum to every one of `io`, whose own values are added; NULL unless `host` */
    hvt_status (*reduce_all)(hvt_device *d, size_t n, hvt_dtype t, void *const io[], int count);
    hvt_status (*sgd)(hvt_device *d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng,
                      float *w, float *v); /* ng ranks' gradients, added along the tree first */

    /* --- factors of gradients; NULL unless `host` --- */
    hvt_status (*factor_p)(hvt_device *d, const hvt_factor_args *a);    /* e += g; p = e q */
    hvt_status (*factor_q)(hvt_device *d, const hvt_factor_args *a);    /* q = e^T p */
    hvt_status (*factor_join)(hvt_device *d, const hvt_factor_args *a); /* g = p q^T; e -= share * g */

    /* --- a step's decision --- */
    /* step->bad = least of it and base + i over all i whose g[i] is not finite */
    hvt_status (*check)(hvt_device *d, size_t n, const float *g, uint64_t base, hvt_step_state *step);
    /* sums [HVT__STEP_SUMS], over the global batch: loss in nats, hits among the first 1 and 5, what was told
     */
    hvt_status (*decide)(hvt_device *d, hvt_step_state *step, const float *sums);

    /* --- images: crop, flip, normalise, bytes to floats --- */
    hvt_status (*augment)(hvt_device *d, const hvt_augment_args *a);
} hvt_device_ops;

struct hvt_device {
    const hvt_device_ops *ops;
    void *state; /* the backend's own */
    const char *isa;
    int index, threads;
    bool deterministic, tf32, share, direct; /* as hvt_device_opts */
    bool yield;                              /* whoever waits gives the core away at once */
    hvt__users users;
};

/*
 * How the calling thread computes with floats, as the processor keeps it (MXCSR; FPCR and FPSR): enter sets
 * what all of the library's arithmetic runs under, whatever the host program has set: rounding to nearest,
 * subnormals flushed to zero as operands and as results, no traps. It returns what was set before, and leave
 * puts that back, with the exceptions that had been noted before. Both write the register only where
 * something differs, so they may be nested: inside, they cost a read each.
 *
 * Devices that compute on the host do so in every op, and for good in threads of their own; whoever else adds
 * floats whose bits matter does it for as long as that takes: HVT_FLOATS at a function's start.
 */
uint64_t hvt__floats_enter(void);
void hvt__floats_leave(const uint64_t *was);
#define HVT_FLOATS                                                                                           \
    const uint64_t floats_before_ __attribute__((cleanup(hvt__floats_leave), unused)) = hvt__floats_enter()

/* The whole registry.  A null entry was not built. */
extern const hvt_device_ops hvt_device_ref, hvt_device_cpu, hvt_device_cuda;
int hvt__cuda_count(void); /* GPUs that this process can open; 0 without a driver */

#endif /* HVT_DEVICE_IMPL_H */
