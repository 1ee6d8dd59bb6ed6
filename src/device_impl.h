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
#include "device/ops/attention.h"
#include "device/ops/conv.h"
#include "device/ops/elementwise.h"
#include "device/ops/matmul.h"
#include "device/ops/norm.h"
#include "device/ops/resample.h"
#include "device/ops/step.h"
#include "hvt/device.h"

/* Inside the box, x becomes share * x + (1 - share) * y, with the finished image y before it; before the
 * first one is the last one. */
typedef struct hvt_mixing {
    float share;
    int top, left, bottom, right; /* bottom and right are outside; all 0: no mixing */
} hvt_mixing;

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

    /* [real,4] host: top, left, height and width of a box that becomes 0. NULL: none */
    const int16_t *erased;
    hvt_mixing mixing;

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
    /* The calling thread, which issues this device's work from now on, moves to its cores. NULL: it need not
     */
    void (*enter)(const hvt_device *d);
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

    struct { /* NULL: not supported, which hvt_model_plan() reports */
        hvt_status (*plan)(hvt_device *d, const hvt_resample_desc *r, hvt_op **ret_op);
        hvt_status (*forward)(hvt_op *op, int real, const void *x, void *y);
        hvt_status (*backward)(hvt_op *op, int real, const void *dy, void *dx, bool add);
    } resample;

    struct { /* NULL: not supported, which hvt_model_plan() reports */
        size_t (*room)(hvt_device *d, const hvt_matmul_args *a); /* its workspace, in bytes */
        hvt_status (*run)(hvt_device *d, const hvt_matmul_args *a);
    } matmul;

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
