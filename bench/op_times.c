/*
 * A table of ops in front of the device's own: each notes the time and asks the one behind it. What is called
 * from another thread than the model's (a comm's own sums) must not be timed here: such a thread has a device
 * of its own.
 */
#include "op_times.h"
#include "base_impl.h"

#include <stdio.h>
#include <string.h>

/* X(field, parameters, arguments): ops of a step that are timed by kind alone */
#define OPS(X)                                                                                               \
    X(pooling_forward, (hvt_op * op, int real, const void *x, void *y, void *saved),                         \
      (op, real, x, y, saved))                                                                               \
    X(pooling_backward, (hvt_op * op, int real, const void *saved, const void *dy, void *dx, bool add),      \
      (op, real, saved, dy, dx, add))                                                                        \
    X(bn_train, (hvt_device * d, const hvt_bn_args *a), (d, a))                                              \
    X(bn_backward, (hvt_device * d, const hvt_bn_grad_args *a), (d, a))                                      \
    X(bn_update,                                                                                             \
      (hvt_device * d, const hvt_step_state *step, int c, float rate, float scale, const float *moments,     \
       float *run_mean, float *run_var),                                                                     \
      (d, step, c, rate, scale, moments, run_mean, run_var))                                                 \
    X(bias_forward, (hvt_device * d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y),            \
      (d, rows, c, t, b, y))                                                                                 \
    X(bias_backward, (hvt_device * d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db),         \
      (d, rows, c, t, dy, db))                                                                               \
    X(subsample_forward,                                                                                     \
      (hvt_device * d, hvt_order o, hvt_dtype t, int n, int h, int w, int c, int stride, int channels,       \
       const void *x, void *y),                                                                              \
      (d, o, t, n, h, w, c, stride, channels, x, y))                                                         \
    X(subsample_backward,                                                                                    \
      (hvt_device * d, hvt_order o, hvt_dtype t, int n, int h, int w, int c, int stride, int channels,       \
       const void *dy, void *dx, bool add),                                                                  \
      (d, o, t, n, h, w, c, stride, channels, dy, dx, add))                                                  \
    X(xent, (hvt_device * d, const hvt_xent_args *a), (d, a))                                                \
    X(relu_forward, (hvt_device * d, size_t n, hvt_dtype t, const void *x, void *y), (d, n, t, x, y))        \
    X(relu_backward,                                                                                         \
      (hvt_device * d, size_t n, hvt_dtype t, const void *y, const void *dy, void *dx, bool add),            \
      (d, n, t, y, dy, dx, add))                                                                             \
    X(add, (hvt_device * d, size_t n, hvt_dtype t, const void *a, const void *b, void *y),                   \
      (d, n, t, a, b, y))                                                                                    \
    X(copy, (hvt_device * d, void *dst, const void *src, size_t bytes), (d, dst, src, bytes))                \
    X(zero, (hvt_device * d, void *dst, size_t bytes), (d, dst, bytes))                                      \
    X(cast, (hvt_device * d, size_t n, float s, const void *src, hvt_dtype st, void *dst, hvt_dtype dt),     \
      (d, n, s, src, st, dst, dt))                                                                           \
    X(sgd,                                                                                                   \
      (hvt_device * d, size_t n, const hvt_sgd_args *a, const float *const g[], int ng, float *w, float *v), \
      (d, n, a, g, ng, w, v))                                                                                \
    X(augment, (hvt_device * d, const hvt_augment_args *a), (d, a))

enum {
#define KIND(name, params, args) K_##name,
    OPS(KIND) KINDS
#undef KIND
};

enum { FORWARD, DATA, WEIGHTS, PACK, PASSES, CONVS_MOST = 256 };

static const char *const pass_name[] = {"conv forward", "conv backward data", "conv backward weights",
                                        "conv pack"};

typedef struct spent {
    double seconds;
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
static int steps;    /* that were counted */
static bool stopped; /* nothing more counts */

static hvt_status note(spent *s, double start, hvt_status status)
{
    if (!stopped) {
        s->seconds += hvt__now() - start;
        s->calls++;
    }
    return status;
}

#define TIMED(name, params, args)                                                                            \
    static hvt_status timed_##name params                                                                    \
    {                                                                                                        \
        double start = hvt__now();                                                                           \
                                                                                                             \
        return note(&kinds[K_##name], start, inner->name args);                                              \
    }
OPS(TIMED)

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

    HVT_TRY(inner->conv_plan(d, c, ret_op, ret_weights, ret_ws));
    memset(&key, 0, sizeof key); /* its holes, too: it is compared as bytes */
    key.order = c->order, key.type = c->type, key.n = c->n, key.h = c->h, key.w = c->w, key.c = c->c;
    key.k = c->k, key.r = c->r, key.s = c->s, key.stride = c->stride, key.pad = c->pad, key.no_dx = c->no_dx;
    if (planned_count < (int)HVT_LEN(planned)) {
        planned[planned_count].op = *ret_op;
        planned[planned_count++].shape = shape_of(&key);
    }
    return HVT_OK;
}

static spent *pass_of(const hvt_op *op, int pass)
{
    for (int i = planned_count - 1; i >= 0; i--) /* the newest: an address may have been another's before */
        if (planned[i].op == op)
            return &shapes[planned[i].shape].pass[pass];
    return &shapes[CONVS_MOST - 1].pass[pass];
}

static hvt_status timed_conv_pack_weights(hvt_op *op, const void *w)
{
    double start = hvt__now();

    return note(pass_of(op, PACK), start, inner->conv_pack_weights(op, w));
}

static hvt_status timed_conv_forward(hvt_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    double start = hvt__now();

    return note(pass_of(op, FORWARD), start, inner->conv_forward(op, real, x, w, y, ws));
}

static hvt_status timed_conv_backward_x(hvt_op *op, int real, const void *w, const void *dy, void *dx,
                                        bool add, void *ws)
{
    double start = hvt__now();

    return note(pass_of(op, DATA), start, inner->conv_backward_x(op, real, w, dy, dx, add, ws));
}

static hvt_status timed_conv_backward_w(hvt_op *op, int real, const void *x, const void *dy, float *dw,
                                        void *ws)
{
    double start = hvt__now();

    return note(pass_of(op, WEIGHTS), start, inner->conv_backward_w(op, real, x, dy, dw, ws));
}

void op_times_watch(hvt_device *dev)
{
    inner = dev->ops;
    timed = *inner;
#define SET(name, params, args) timed.name = inner->name ? timed_##name : NULL;
    OPS(SET)
    timed.conv_plan = timed_conv_plan;
    timed.conv_pack_weights = timed_conv_pack_weights;
    timed.conv_forward = timed_conv_forward;
    timed.conv_backward_x = timed_conv_backward_x;
    timed.conv_backward_w = timed_conv_backward_w;
    dev->ops = &timed;
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

/* GFLOP of one pass over the batch, pixels that exist */
static double work(const hvt_conv_desc *d)
{
    double pairs[2] = {0};

    for (int dim = 0; dim < 2; dim++) {
        int in = dim ? d->w : d->h, window = dim ? d->s : d->r;

        for (int o = 0; o < hvt__conv_out(in, window, d->stride, d->pad); o++)
            for (int t = 0; t < window; t++) {
                int i = o * d->stride + t - d->pad;

                pairs[dim] += i >= 0 && i < in;
            }
    }
    return 2e-9 * pairs[0] * pairs[1] * d->c * d->k * d->n;
}

static double print_kind(const char *name, const spent *s)
{
    double ms = 1e3 * s->seconds / steps;

    if (s->calls)
        printf("  %-24s %8.1f %10.3f ms\n", name, (double)s->calls / steps, ms);
    return ms;
}

static void print_shape(const shape *s, double peak)
{
    const hvt_conv_desc *d = &s->d;

    printf("  %4d -> %4d, %dx%d/%d at %3dx%-3d", d->c, d->k, d->r, d->s, d->stride, d->h, d->w);
    for (int pass = FORWARD; pass < PACK; pass++) {
        double seconds = s->pass[pass].seconds, gf = work(d) * (double)s->pass[pass].calls;

        if (seconds > 0)
            printf("  %8.3f ms %4.0f %%", 1e3 * seconds / steps, 100 * gf / seconds / peak);
        else
            printf("  %18s", "-");
    }
    printf("\n");
}

double op_times_print(double peak)
{
    spent all[PASSES] = {{0}};
    double sum = 0;

    for (int i = 0; i < CONVS_MOST; i++)
        for (int pass = 0; pass < PASSES; pass++) {
            all[pass].seconds += shapes[i].pass[pass].seconds;
            all[pass].calls += shapes[i].pass[pass].calls;
        }
    printf("  %-24s %8s %13s\n", "op", "calls", "of a step");
    for (int pass = 0; pass < PASSES; pass++)
        sum += print_kind(pass_name[pass], &all[pass]);
#define PRINT(name, params, args) sum += print_kind(#name, &kinds[K_##name]);
    OPS(PRINT)
    printf("  convolutions, ms of a step and share of %.0f GF/s\n  %-29s  %18s  %18s  %18s\n", peak, "",
           "forward", "backward data", "backward weights");
    for (int i = 0; i < shape_count; i++)
        print_shape(&shapes[i], peak);
    return sum;
}
