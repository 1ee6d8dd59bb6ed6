/*
 * Wraps the device's table of ops: each op notes the time and calls the original. Calls from other threads
 * than the model's (a comm's own sums) must not be timed here; such a thread has its own device.
 */
#include "op_times.h"
#include "base_impl.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Bytes of `count` elements of a type. */
static double bytes_of(hvt_dtype t, double count)
{
    return count * (double)hvt_dtype_size(t);
}

static double rows_of(hvt_rows r)
{
    return (double)r.blocks * r.real;
}

static double binary_bytes(const hvt_binary_args *a, int passes)
{
    return passes * bytes_of(a->type, (double)a->n * a->pixels * a->c);
}

/* Passes over a, dy and da, then for db over dy and a again. */
static int slope_passes(const hvt_binary_args *a)
{
    return (a->da ? 3 + a->add_a : 0) + (a->db ? 2 + (a->across == HVT_SAME) : 0);
}

static double norm_bytes(const hvt_norm_args *a, int passes)
{
    return passes * bytes_of(a->type, (double)a->real * a->pixels * a->c);
}

/* Passes of a batch norm over its matrix, as in matrix.c. */
static int train_passes(const hvt_bn_args *a)
{
    return !a->y ? 1 : 2 + (a->residual ? 1 : 0) + 1;
}

static int backward_passes(const hvt_bn_grad_args *a)
{
    const bool keep = a->y && a->dresidual && !a->add_residual;
    const int masks = a->map ? 1 : a->y && !a->beta ? keep ? 1 : 2 : 0;

    return 4 + masks + 1 + a->add + (a->dresidual ? 1 + a->add_residual : 0);
}

static double bn_bytes(hvt_dtype t, hvt_rows rows, int c, int passes)
{
    return passes * bytes_of(t, rows_of(rows) * c);
}

static const hvt_pooling *pooling_of(const hvt_op *op)
{
    return (const hvt_pooling *)op;
}

static double pooling_rows(const hvt_op *op)
{
    const hvt_pooling_desc *d = &pooling_of(op)->d;

    return (double)d->n * d->h * d->w;
}

/* x and y, or their gradients, and a byte for each output of a maximum */
static double pooling_bytes(const hvt_op *op, bool add)
{
    const hvt_pooling *o = pooling_of(op);
    const double in = pooling_rows(op) * o->d.c, out = (double)o->d.n * o->p * o->q * o->d.c;

    return bytes_of(o->d.type, in * (1 + add) + out) + (o->d.mean ? 0 : out);
}

static double augment_bytes(const hvt_augment_args *a)
{
    return (double)a->n * a->h * a->w * (a->c * (a->floats ? 4 : 1) + bytes_of(a->type, a->cx));
}

/* Reads the gradients of all ranks, reads and writes weights and momentum, writes the copy. */
static double sgd_bytes(size_t n, const hvt_sgd_args *a, int ng, const float *v)
{
    return (double)n * 4 * (ng + 2 + (v ? 2 : 0)) + (a->copy ? bytes_of(a->copy_type, (double)n) : 0);
}

/* Queries, keys, values, and the result or its gradient; and the gradients of the former. */
static double attention_bytes(const hvt_attention_args *a, int passes)
{
    const double row = (double)a->real * a->windows * a->heads * a->width;

    return bytes_of(a->type, row * ((passes + 1.0) * a->queries + 2.0 * passes * a->keys));
}

/* GFLOP of `products` products of queries and keys */
static double attention_work(const hvt_attention_args *a, int products)
{
    return 2e-9 * products * a->real * a->windows * a->heads * a->width * a->queries * a->keys;
}

/* In place, only the rotated channels are moved. */
static double rotary_bytes(const hvt_rotary_args *a)
{
    const double channels = a->x == a->y ? (double)a->vectors * a->width : a->c;

    return bytes_of(a->type, (2.0 + a->add) * a->real * a->pixels * channels) + 8.0 * a->pixels * a->width;
}

/* pixels of y */
static double subsampled(const hvt_subsample_desc *s)
{
    return (double)s->n * s->h * s->w / (s->stride * s->stride);
}

/* X(name, entry, parameters, arguments, (rows, columns, bytes read and written)): ops of a step that are
 * timed by kind alone */
#define OPS(X)                                                                                               \
    X(pooling_forward, pooling.forward, (hvt_op * op, int real, const void *x, void *y, void *saved),        \
      (op, real, x, y, saved), (pooling_rows(op), pooling_of(op)->d.c, pooling_bytes(op, false)))            \
    X(pooling_backward, pooling.backward,                                                                    \
      (hvt_op * op, int real, const void *saved, const void *dy, void *dx, bool add),                        \
      (op, real, saved, dy, dx, add), (pooling_rows(op), pooling_of(op)->d.c, pooling_bytes(op, add)))       \
    X(bn_train, matrix.bn_train, (hvt_device * d, const hvt_bn_args *a), (d, a),                             \
      (rows_of(a->rows), a->c, bn_bytes(a->type, a->rows, a->c, train_passes(a))))                           \
    X(bn_infer, matrix.bn_infer, (hvt_device * d, const hvt_bn_args *a), (d, a),                             \
      (rows_of(a->rows), a->c, bn_bytes(a->type, a->rows, a->c, train_passes(a) - 1)))                       \
    X(bn_backward, matrix.bn_backward, (hvt_device * d, const hvt_bn_grad_args *a), (d, a),                  \
      (rows_of(a->rows), a->c, bn_bytes(a->type, a->rows, a->c, backward_passes(a))))                        \
    X(bn_update, matrix.bn_update, (hvt_device * d, const hvt_bn_update_args *a), (d, a),                    \
      (1, a->c, 24.0 * a->c))                                                                                \
    X(bias_forward, matrix.bias_forward,                                                                     \
      (hvt_device * d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y), (d, rows, c, t, b, y),   \
      (rows_of(rows), c, bn_bytes(t, rows, c, 2)))                                                           \
    X(bias_backward, matrix.bias_backward,                                                                   \
      (hvt_device * d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db),                        \
      (d, rows, c, t, dy, db), (rows_of(rows), c, bn_bytes(t, rows, c, 1)))                                  \
    X(subsample_forward, matrix.subsample_forward,                                                           \
      (hvt_device * d, const hvt_subsample_desc *s, const void *x, void *y), (d, s, x, y),                   \
      (subsampled(s), s->k, bytes_of(s->type, subsampled(s) * (s->c + s->k))))                               \
    X(subsample_backward, matrix.subsample_backward,                                                         \
      (hvt_device * d, const hvt_subsample_desc *s, const void *dy, void *dx, bool add),                     \
      (d, s, dy, dx, add),                                                                                   \
      (subsampled(s), s->k,                                                                                  \
       bytes_of(s->type, (subsampled(s) + (double)s->n * s->h * s->w * (1 + add)) * s->c)))                  \
    X(xent, matrix.xent, (hvt_device * d, const hvt_xent_args *a), (d, a),                                   \
      (rows_of(a->rows), a->classes, bn_bytes(a->type, a->rows, a->classes, 2)))                             \
    X(relu_forward, vector.relu_forward, (hvt_device * d, size_t n, hvt_dtype t, const void *x, void *y),    \
      (d, n, t, x, y), ((double)n, 1, bytes_of(t, 2.0 * (double)n)))                                         \
    X(relu_backward, vector.relu_backward,                                                                   \
      (hvt_device * d, size_t n, hvt_dtype t, const void *y, const void *dy, void *dx, bool add),            \
      (d, n, t, y, dy, dx, add), ((double)n, 1, bytes_of(t, (3.0 + add) * (double)n)))                       \
    X(add, vector.add, (hvt_device * d, size_t n, hvt_dtype t, const void *a, const void *b, void *y),       \
      (d, n, t, a, b, y), ((double)n, 1, bytes_of(t, 3.0 * (double)n)))                                      \
    X(map_forward, general.map_forward,                                                                      \
      (hvt_device * d, size_t n, hvt_dtype t, const hvt_map *f, const void *x, void *y), (d, n, t, f, x, y), \
      ((double)n, 1, bytes_of(t, 2.0 * (double)n)))                                                          \
    X(map_backward, general.map_backward,                                                                    \
      (hvt_device * d, size_t n, hvt_dtype t, const hvt_map *f, const void *saved, const void *dy, void *dx, \
       bool add),                                                                                            \
      (d, n, t, f, saved, dy, dx, add), ((double)n, 1, bytes_of(t, (3.0 + add) * (double)n)))                \
    X(binary_forward, general.binary_forward, (hvt_device * d, const hvt_binary_args *a), (d, a),            \
      ((double)a->n * a->pixels, a->c, binary_bytes(a, 2 + (a->across == HVT_SAME))))                        \
    X(binary_backward, general.binary_backward, (hvt_device * d, const hvt_binary_args *a), (d, a),          \
      ((double)a->n * a->pixels, a->c, binary_bytes(a, slope_passes(a))))                                    \
    X(move, general.move, (hvt_device * d, const hvt_move_args *a), (d, a),                                  \
      ((double)a->n * a->h * a->w, a->c, bytes_of(a->type, (2.0 + a->add) * a->n * a->h * a->w * a->c)))     \
    X(transpose, general.transpose,                                                                          \
      (hvt_device * d, size_t n, hvt_dtype t, int rows, int cols, int block, const void *x, void *y,         \
       bool add),                                                                                            \
      (d, n, t, rows, cols, block, x, y, add),                                                               \
      ((double)n * rows, cols * block, bytes_of(t, (2.0 + add) * (double)n * rows * cols * block)))          \
    X(norm_forward, general.norm_forward, (hvt_device * d, const hvt_norm_args *a), (d, a),                  \
      ((double)a->real * a->pixels, a->c, norm_bytes(a, 2)))                                                 \
    X(norm_backward, general.norm_backward, (hvt_device * d, const hvt_norm_args *a), (d, a),                \
      ((double)a->real * a->pixels, a->c, norm_bytes(a, 3 + a->add)))                                        \
    X(attention_forward, general.attention_forward, (hvt_device * d, const hvt_attention_args *a), (d, a),   \
      ((double)a->real * a->windows * a->queries, a->heads * a->width, attention_bytes(a, 1)))               \
    X(attention_backward, general.attention_backward, (hvt_device * d, const hvt_attention_args *a), (d, a), \
      ((double)a->real * a->windows * a->queries, a->heads * a->width, attention_bytes(a, 2)))               \
    X(dropout, general.dropout, (hvt_device * d, const hvt_dropout_args *a), (d, a),                         \
      ((double)a->real * a->pixels, a->c, bytes_of(a->type, (2.0 + a->add) * a->real * a->pixels * a->c)))   \
    X(rotary, general.rotary, (hvt_device * d, const hvt_rotary_args *a), (d, a),                            \
      ((double)a->real * a->pixels, a->c, rotary_bytes(a)))                                                  \
    X(copy, memory.copy, (hvt_device * d, void *dst, const void *src, size_t bytes), (d, dst, src, bytes),   \
      ((double)bytes, 1, 2.0 * (double)bytes))                                                               \
    X(zero, memory.zero, (hvt_device * d, void *dst, size_t bytes), (d, dst, bytes),                         \
      ((double)bytes, 1, (double)bytes))                                                                     \
    X(cast, vector.cast,                                                                                     \
      (hvt_device * d, size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt),           \
      (d, n, s, src, st, dst, dt), ((double)n, 1, bytes_of(st, (double)n) + bytes_of(dt, (double)n)))        \
    X(sgd, vector.sgd,                                                                                       \
      (hvt_device * d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng, float *w, float *v), \
      (d, n, a, g, ng, w, v), ((double)n, 1, sgd_bytes(n, a, ng, v)))                                        \
    X(ema, vector.ema, (hvt_device * d, size_t n, const hvt_step_state *step, const float *w, float *ema),   \
      (d, n, step, w, ema), ((double)n, 1, 12.0 * (double)n))                                                \
    X(augment, augment, (hvt_device * d, const hvt_augment_args *a), (d, a),                                 \
      ((double)a->n * a->h * a->w, a->c, augment_bytes(a)))

enum {
#define KIND(name, entry, params, args, size) K_##name,
    OPS(KIND) KINDS
#undef KIND
};

enum { FORWARD, DATA, WEIGHTS, PASSES, CONVS_MOST = 256 };

static const char *const pass_name[] = {"conv forward", "conv backward data", "conv backward weights"};

typedef struct spent {
    double seconds, bytes, work; /* work: GFLOP, of attention */
    long calls;
} spent;

/* A shape of convolution and the ops that have it. */
typedef struct shape {
    hvt_conv_desc d;
    spent pass[PASSES];
} shape;

static const hvt_device_ops *inner;
static hvt_device_ops timed;
static spent kinds[KINDS];
static shape shapes[CONVS_MOST];
static struct {
    const hvt_op *op;
    int shape;
} planned[4 * CONVS_MOST];
static int shape_count, planned_count;
static int steps;    /* counted steps */
static bool stopped; /* counting has stopped */
static const op_listener *listener;

/* The time at which an op begins. */
static double begin(const char *name, double rows, int columns, double bytes)
{
    if (listener)
        listener->begin(&(op_call){.name = name, .rows = rows, .columns = columns, .bytes = bytes});
    return hvt__now();
}

static hvt_status note(spent *s, double bytes, double start, hvt_status status)
{
    if (listener)
        listener->end();
    if (!stopped) {
        s->seconds += hvt__now() - start;
        s->bytes += bytes;
        s->calls++;
    }
    return status;
}

#define LIST(...)                  __VA_ARGS__
#define LAST(rows, columns, bytes) (bytes)
#define TIMED(name, entry, params, args, size)                                                               \
    static hvt_status timed_##name params                                                                    \
    {                                                                                                        \
        const double moved = LAST size, start = begin(#name, LIST size);                                     \
                                                                                                             \
        return note(&kinds[K_##name], moved, start, inner->entry args);                                      \
    }
OPS(TIMED)

static hvt_status worked_attention_forward(hvt_device *d, const hvt_attention_args *a)
{
    kinds[K_attention_forward].work += stopped ? 0 : attention_work(a, 2);
    return timed_attention_forward(d, a);
}

/* One product is forward's, recomputed. */
static hvt_status worked_attention_backward(hvt_device *d, const hvt_attention_args *a)
{
    kinds[K_attention_backward].work += stopped ? 0 : attention_work(a, 5);
    return timed_attention_backward(d, a);
}

static int shape_of(const hvt_conv_desc *d)
{
    for (int i = 0; i < shape_count; i++)
        if (!memcmp(&shapes[i].d, d, sizeof *d))
            return i;
    if (shape_count == CONVS_MOST) /* the rest are counted together */
        return CONVS_MOST - 1;
    shapes[shape_count].d = *d;
    return shape_count++;
}

static hvt_status timed_conv_plan(hvt_device *d, const hvt_conv_desc *c, hvt_op **ret_op, size_t *ret_weights,
                                  size_t *ret_ws)
{
    hvt_conv_desc key;

    HVT_TRY(inner->conv.plan(d, c, ret_op, ret_weights, ret_ws));
    memset(&key, 0, sizeof key); /* padding, too, because it is compared as bytes */
    key.order = c->order, key.type = c->type, key.n = c->n, key.h = c->h, key.w = c->w, key.c = c->c;
    key.k = c->k, key.r = c->r, key.s = c->s, key.no_dx = c->no_dx;
    key.stride_h = c->stride_h, key.stride_w = c->stride_w, key.groups = c->groups;
    key.top = c->top, key.left = c->left, key.bottom = c->bottom, key.right = c->right;
    key.dilation_h = c->dilation_h, key.dilation_w = c->dilation_w;
    if (planned_count < (int)HVT_LEN(planned)) {
        planned[planned_count].op = *ret_op;
        planned[planned_count++].shape = shape_of(&key);
    }
    return HVT_OK;
}

static shape *of_op(const hvt_op *op)
{
    for (int i = planned_count - 1; i >= 0; i--) /* the newest first: an address may have been reused */
        if (planned[i].op == op)
            return &shapes[planned[i].shape];
    return &shapes[CONVS_MOST - 1];
}

/* Input, weights and output are each moved at least once. */
static double conv_bytes(const hvt_conv_desc *d)
{
    const bool known = d->stride_h; /* otherwise one of the shapes that are counted together */
    const double in = (double)d->n * d->h * d->w * d->c,
                 weights = known ? (double)d->k * d->c / d->groups * d->r * d->s : 0,
                 out = known ? (double)d->n * hvt__conv_height(d) * hvt__conv_width(d) * d->k : 0;

    return bytes_of(d->type, in + out) + 4 * weights;
}

/* Like begin(). */
static double begin_conv(const shape *s, int pass)
{
    if (listener)
        listener->begin(&(op_call){.name = pass_name[pass], .conv = &s->d, .bytes = conv_bytes(&s->d)});
    return hvt__now();
}

static hvt_status timed_conv_forward(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    shape *s = of_op(op);
    double start = begin_conv(s, FORWARD);

    return note(&s->pass[FORWARD], 0, start, inner->conv.forward(op, real, x, w, y, ws));
}

static hvt_status timed_conv_backward_x(hvt_op *op, int real, const void *w, const void *dy, void *dx,
                                        bool add, void *ws)
{
    shape *s = of_op(op);
    double start = begin_conv(s, DATA);

    return note(&s->pass[DATA], 0, start, inner->conv.backward_x(op, real, w, dy, dx, add, ws));
}

static hvt_status timed_conv_backward_w(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                        void *ws)
{
    shape *s = of_op(op);
    double start = begin_conv(s, WEIGHTS);

    return note(&s->pass[WEIGHTS], 0, start, inner->conv.backward_w(op, real, x, dy, dw, ws));
}

void op_times_watch(hvt_device *dev)
{
    inner = dev->ops;
    timed = *inner;
#define SET(name, entry, params, args, size) timed.entry = inner->entry ? timed_##name : NULL;
    OPS(SET)
    if (inner->general.attention_forward) {
        timed.general.attention_forward = worked_attention_forward;
        timed.general.attention_backward = worked_attention_backward;
    }
    timed.conv.plan = timed_conv_plan;
    timed.conv.forward = timed_conv_forward;
    timed.conv.backward_x = timed_conv_backward_x;
    timed.conv.backward_w = timed_conv_backward_w;
    dev->ops = &timed;
}

void op_times_listen(const op_listener *l)
{
    listener = l;
}

void op_times_stop(int counted)
{
    steps = counted;
    stopped = true;
}

void op_times_reset(void)
{
    stopped = false;
    memset(kinds, 0, sizeof kinds);
    for (int i = 0; i < CONVS_MOST; i++)
        memset(shapes[i].pass, 0, sizeof shapes[i].pass);
}

/* GFLOP of one pass over the batch, without padding */
static double work(const hvt_conv_desc *d)
{
    double pairs[2] = {0};

    for (int dim = 0; dim < 2; dim++) {
        int in = dim ? d->w : d->h, window = dim ? d->s : d->r,
            out = dim ? hvt__conv_width(d) : hvt__conv_height(d);

        for (int o = 0; o < out; o++)
            for (int t = 0; t < window; t++) {
                int i = dim ? o * d->stride_w + t * d->dilation_w - d->left
                            : o * d->stride_h + t * d->dilation_h - d->top;

                pairs[dim] += i >= 0 && i < in;
            }
    }
    return 2e-9 * pairs[0] * pairs[1] * d->c / d->groups * d->k * d->n;
}

static double print_kind(const char *name, const spent *s)
{
    double ms = 1e3 * s->seconds / steps;

    if (s->calls && s->work > 0)
        printf("  %-24s %8.1f %10.3f ms %8.1f MB %6.1f GF/s\n", name, (double)s->calls / steps, ms,
               1e-6 * s->bytes / steps, s->work / s->seconds);
    else if (s->calls && s->bytes > 0)
        printf("  %-24s %8.1f %10.3f ms %8.1f MB %6.2f GB/s\n", name, (double)s->calls / steps, ms,
               1e-6 * s->bytes / steps, 1e-9 * s->bytes / s->seconds);
    else if (s->calls)
        printf("  %-24s %8.1f %10.3f ms\n", name, (double)s->calls / steps, ms);
    return ms;
}

static void print_shape(const shape *s, double peak)
{
    const hvt_conv_desc *d = &s->d;

    printf("  %4d -> %4d, %dx%d/%d at %3dx%-3d", d->c, d->k, d->r, d->s, d->stride_h, d->h, d->w);
    for (int pass = FORWARD; pass < PASSES; pass++) {
        double seconds = s->pass[pass].seconds, gf = work(d) * (double)s->pass[pass].calls;

        if (seconds > 0)
            printf("  %8.3f ms %4.0f %%", 1e3 * seconds / steps, 100 * gf / seconds / peak);
        else
            printf("  %18s", "-");
    }
    printf("\n");
}

/* Seconds of all steps' ops without losses: for each the longer of arithmetic and memory, but at most its
 * measured time, since some memory is in caches and reading is faster than copying. */
static double bound(double peak, double copy)
{
    double sum = 0;

    for (int i = 0; i < KINDS; i++)
        sum += fmin(fmax(kinds[i].work / peak, 1e-9 * kinds[i].bytes / copy), kinds[i].seconds);
    for (const shape *s = shapes; s < shapes + shape_count; s++)
        for (int pass = 0; pass < PASSES; pass++) {
            const double arithmetic = work(&s->d) / peak, memory = 1e-9 * conv_bytes(&s->d) / copy;

            sum += fmin((double)s->pass[pass].calls * fmax(arithmetic, memory), s->pass[pass].seconds);
        }
    return sum;
}

void op_times_print(double peak, double copy)
{
    spent all[PASSES] = {{0}};
    double sum = 0;

    for (int i = 0; i < CONVS_MOST; i++)
        for (int pass = 0; pass < PASSES; pass++) {
            all[pass].seconds += shapes[i].pass[pass].seconds;
            all[pass].calls += shapes[i].pass[pass].calls;
        }
    printf("  %-24s %8s %13s %11s %11s\n", "op", "calls", "of a step", "moved", "");
    for (int pass = 0; pass < PASSES; pass++)
        sum += print_kind(pass_name[pass], &all[pass]);
#define PRINT(name, entry, params, args, size) sum += print_kind(#name, &kinds[K_##name]);
    OPS(PRINT)
    printf("  convolutions, ms of a step and share of %.0f GF/s\n  %-29s  %18s  %18s  %18s\n", peak, "",
           "forward", "backward data", "backward weights");
    for (int i = 0; i < shape_count; i++)
        print_shape(&shapes[i], peak);
    printf("  ops %.3f ms\n", sum);
    if (copy > 0)
        printf(
            "  bound %.3f ms, %.0f %% of that: of each op the longer of its arithmetic at %.0f GF/s and its "
            "memory at %.1f GB/s, or what it took\n",
            1e3 * bound(peak, copy) / steps, 1e5 * bound(peak, copy) / steps / sum, peak, copy);
}
