/*
 * conv_oracle.h - for test_conv.c: the devices under test, cases of convolutions, and the loop in double over
 * one output element that judges a case.
 */
#ifndef HVT_TESTS_DEVICE_CONV_ORACLE_H
#define HVT_TESTS_DEVICE_CONV_ORACLE_H

#include "devices.h"
#include "device/cpu/cpu_impl.h"

static const hvt_device_ops cpu_ops = {.name = "cpu",
                                       .conv.plan = hvt__conv_plan_cpu,
                                       .conv.permute = hvt__conv_permute_cpu,
                                       .conv.forward = hvt__conv_forward_cpu,
                                       .conv.backward_x = hvt__conv_backward_x_cpu,
                                       .conv.backward_w = hvt__conv_backward_w_cpu};

#if !EMULATED_SETS
static hvt_isa emulated[1];
#else
extern const hvt_conv_kernels hvt__conv_portable, emulated_avx512, emulated_avx512_bf16, emulated_amx;

static hvt_isa emulated[] = {
    {.name = "avx512, emulated", .conv = &emulated_avx512},
    {.name = "avx512_bf16, emulated", .conv = &hvt__conv_portable, .bf16 = &emulated_avx512_bf16},
    {.name = "amx, emulated", .conv = &hvt__conv_portable, .bf16 = &emulated_amx},
};
#endif

enum { MOST_ISAS = 12 };
static hvt_cpu cpus[MOST_ISAS][MOST_THREADS];
static hvt_device devices[MOST_ISAS][MOST_THREADS];
static int isas;

static double products(const hvt_conv_desc *d)
{
    return (double)d->n * d->h * d->w * d->c * d->k * d->r * d->s / d->groups;
}

#define EVEN(order_, type_, n_, h_, w_, c_, k_, r_, s_, stride, pad, no_dx_)                                 \
    {                                                                                                        \
        .order = order_, .type = type_, .n = n_, .h = h_, .w = w_, .c = c_, .cx = c_, .k = k_, .r = r_,      \
        .s = s_, HVT_CONV_EVEN(stride, pad), .no_dx = no_dx_                                                 \
    }

static void set_even(hvt_conv_desc *d, int stride, int pad)
{
    d->stride_h = d->stride_w = stride;
    d->top = d->left = d->bottom = d->right = pad;
    d->dilation_h = d->dilation_w = d->groups = 1;
}

static bool fits(const hvt_conv_desc *d)
{
    return d->h + d->top + d->bottom > (d->r - 1) * d->dilation_h &&
           d->w + d->left + d->right > (d->s - 1) * d->dilation_w;
}

/* Emulated sets are slow: they do only what no other set has shown, and no large shapes. */
static double most_emulated = CHECK_SANITIZED ? 1e5 : 4e5;

static bool takes(int set, const hvt_conv_desc *d)
{
    const hvt_isa *isa = cpus[set][0].isa;

    if (isa < emulated || isa >= emulated + EMULATED_SETS)
        return true;
    return d->type == (isa->bf16 ? HVT_BF16 : HVT_F32) && products(d) <= most_emulated;
}

static float *exactly(size_t count)
{
    return room(count * sizeof(float));
}

/* A sum in double, and that of its terms' absolute values. */
typedef struct exact {
    double sum, size;
} exact;

/* One convolution's data, values of d.type as floats. Weights are canonical. */
typedef struct conv_case {
    hvt_conv_desc d;
    int real, p, q; /* output [n,p,q,k] */
    size_t nx, ny, nw;
    float *x, *dy, *w, *dx0;
    exact *want[3]; /* of y, dx and dw, in the order of check_result(); NULL before its first */
} conv_case;

static size_t row(const conv_case *c, int n, int h, int w, int height, int width)
{
    return c->d.order == HVT_ORDER_HWN ? ((size_t)h * width + w) * c->d.n + n
                                       : ((size_t)n * height + h) * width + w;
}

static float *x_at(const conv_case *c, float *x, int n, int h, int w)
{
    return x + row(c, n, h, w, c->d.h, c->d.w) * c->d.c;
}

static float *y_at(const conv_case *c, float *y, int n, int p, int q)
{
    return y + row(c, n, p, q, c->p, c->q) * c->d.k;
}

static void fill(conv_case *c, float *a, size_t rows, int channels, size_t pixels)
{
    for (size_t r = 0; r < rows; r++) {
        size_t image = c->d.order == HVT_ORDER_HWN ? r % (size_t)c->d.n : r / pixels;

        for (int i = 0; i < channels; i++)
            a[r * channels + i] = image < (size_t)c->real ? value() : NAN;
    }
}

static conv_case make_case(hvt_conv_desc d, int real)
{
    conv_case c = {.d = d, .real = real};
    size_t in = (size_t)d.h * d.w, out;

    c.d.cx = d.c;
    c.p = hvt__conv_height(&d);
    c.q = hvt__conv_width(&d);
    out = (size_t)c.p * c.q;
    c.nx = in * d.n * d.c;
    c.ny = out * d.n * d.k;
    c.nw = (size_t)d.k * (d.c / d.groups) * d.r * d.s;
    c.x = exactly(c.nx);
    c.dx0 = exactly(c.nx);
    c.dy = exactly(c.ny);
    c.w = exactly(c.nw);
    fill(&c, c.x, in * d.n, d.c, in);
    fill(&c, c.dx0, in * d.n, d.c, in);
    fill(&c, c.dy, out * d.n, d.k, out);
    for (size_t i = 0; i < c.nw; i++)
        c.w[i] = value();
    round_all(d.type, c.x, c.nx);
    round_all(d.type, c.dx0, c.nx);
    round_all(d.type, c.dy, c.ny);
    round_all(d.type, c.w, c.nw);
    return c;
}

static void free_case(conv_case *c)
{
    free(c->x);
    free(c->dx0);
    free(c->dy);
    free(c->w);
    for (int kind = 0; kind < 3; kind++)
        free(c->want[kind]);
}

/* What one device makes of it: y, dx stored, dx added to dx0, dw (canonical, and as it lies in memory). */
typedef struct conv_result {
    float *y, *dx, *dx_added, *dw, *raw_dw, *mask;
    size_t weights;
} conv_result;

static int runs;

static conv_result run(hvt_device *dev, const conv_case *c)
{
    const hvt_dtype t = c->d.type;
    const hvt_device_ops *ops = dev->ops;
    conv_result r = {0};
    hvt_op *op = NULL;
    size_t ws_bytes = 0;
    void *x = packed(t, c->x, c->nx), *dy = packed(t, c->dy, c->ny), *y = unwritten(t, c->ny),
         *dx = unwritten(t, c->nx), *dx_added = packed(t, c->dx0, c->nx), *w, *ws;
    float *wide, *dw, *ones;
    int shift = runs++ % 2 * 8; /* 32 bytes are promised, but large gradients take another way at 64 */

    CHECK_OK(ops->conv.plan(dev, &c->d, &op, &r.weights, &ws_bytes));
    if (!op)
        abort();
    ws = room(ws_bytes);
    wide = exactly(r.weights);
    w = exactly(r.weights + shift);
    dw = exactly(r.weights + shift);
    ones = exactly(c->nw);
    r.dw = exactly(c->nw);
    r.mask = exactly(r.weights);
    memset(wide, 0xff, r.weights * sizeof *wide);
    memset(dw, 0xff, (r.weights + shift) * sizeof *dw);
    for (size_t i = 0; i < c->nw; i++)
        ones[i] = 1;

    ops->conv.permute(op, false, r.mask, ones);
    ops->conv.permute(op, false, wide, c->w);
    for (size_t i = 0; i < r.weights; i++)
        hvt__store(w, t, i + shift, wide[i]);
    CHECK_OK(ops->conv.forward(op, c->real, x, at(w, t, shift), y, ws));
    heap_spoil(ws, ws_bytes);
    CHECK_OK(ops->conv.backward_w(op, c->real, x, dy, dw + shift, ws));
    if (!c->d.no_dx) {
        heap_spoil(ws, ws_bytes);
        CHECK_OK(ops->conv.backward_x(op, c->real, at(w, t, shift), dy, dx, false, ws));
        CHECK_OK(ops->conv.backward_x(op, c->real, at(w, t, shift), dy, dx_added, true, ws));
    }
    ops->conv.permute(op, true, dw + shift, r.dw);
    r.raw_dw = exactly(r.weights);
    memcpy(r.raw_dw, dw + shift, r.weights * sizeof *dw);
    r.y = unpacked(t, y, c->ny);
    r.dx = unpacked(t, dx, c->nx);
    r.dx_added = unpacked(t, dx_added, c->nx);
    hvt__op_free(op);
    free(x);
    free(dy);
    free(ws);
    free(wide);
    free(w);
    free(dw);
    free(ones);
    return r;
}

static void free_result(conv_result *r)
{
    free(r->y);
    free(r->dx);
    free(r->dx_added);
    free(r->dw);
    free(r->raw_dw);
    free(r->mask);
}

/* ---- the oracle: one element ---- */

static void accumulate(exact *e, float a, float b)
{
    e->sum += (double)a * b;
    e->size += fabs((double)a * b);
}

/* Channels that a filter reads; of dw's, `ch` counts them. */
static int depth(const conv_case *c)
{
    return c->d.c / c->d.groups;
}

static int filters(const conv_case *c) /* of a group */
{
    return c->d.k / c->d.groups;
}

static float weight(const conv_case *c, int k, int ch, int r, int s)
{
    return c->w[(((size_t)k * depth(c) + ch) * c->d.r + r) * c->d.s + s];
}

/* The input pixel of an output pixel and a tap; false: it is padding. */
static bool input_of(const conv_case *c, int p, int q, int r, int s, int *h, int *w)
{
    *h = p * c->d.stride_h + r * c->d.dilation_h - c->d.top;
    *w = q * c->d.stride_w + s * c->d.dilation_w - c->d.left;
    return *h >= 0 && *w >= 0 && *h < c->d.h && *w < c->d.w;
}

static exact exact_y(const conv_case *c, int n, int p, int q, int k)
{
    const int first = k / filters(c) * depth(c);
    exact e = {0};
    int h, w;

    for (int r = 0; r < c->d.r; r++)
        for (int s = 0; s < c->d.s; s++)
            for (int ch = 0; ch < depth(c) && input_of(c, p, q, r, s, &h, &w); ch++)
                accumulate(&e, x_at(c, c->x, n, h, w)[first + ch], weight(c, k, ch, r, s));
    return e;
}

static exact exact_dx(const conv_case *c, int n, int h, int w, int ch)
{
    const int group = ch / depth(c);
    exact e = {0};

    for (int r = 0; r < c->d.r; r++)
        for (int s = 0; s < c->d.s; s++) {
            int p = h + c->d.top - r * c->d.dilation_h, q = w + c->d.left - s * c->d.dilation_w;

            if (p < 0 || q < 0 || p % c->d.stride_h || q % c->d.stride_w || p / c->d.stride_h >= c->p ||
                q / c->d.stride_w >= c->q)
                continue;
            for (int k = group * filters(c); k < (group + 1) * filters(c); k++)
                accumulate(&e, y_at(c, c->dy, n, p / c->d.stride_h, q / c->d.stride_w)[k],
                           weight(c, k, ch % depth(c), r, s));
        }
    return e;
}

static exact exact_dw(const conv_case *c, int k, int ch, int r, int s)
{
    const int first = k / filters(c) * depth(c);
    exact e = {0};
    int h, w;

    for (int n = 0; n < c->real; n++)
        for (int p = 0; p < c->p; p++)
            for (int q = 0; q < c->q; q++)
                if (input_of(c, p, q, r, s, &h, &w))
                    accumulate(&e, x_at(c, c->x, n, h, w)[first + ch], y_at(c, c->dy, n, p, q)[k]);
    return e;
}

enum { TEXT = 160 };
static const char *text_of(const hvt_conv_desc *d, char *text)
{
    snprintf(
        text, TEXT,
        "%dx%dx%d -> %d, window %dx%d stride %dx%d dilation %dx%d padding %d,%d,%d,%d groups %d order %d",
        d->h, d->w, d->c, d->k, d->r, d->s, d->stride_h, d->stride_w, d->dilation_h, d->dilation_w, d->top,
        d->left, d->bottom, d->right, d->groups, d->order);
    return text;
}

static void near(const conv_case *c, const char *what, hvt_dtype t, float got, exact want)
{
    char text[TEXT];
    double rounding = t == HVT_F32 ? 0 : unit(t) * fabs(want.sum) + (t == HVT_F16 ? 0x1p-25 : 0);

    CHECK(fabs(got - want.sum) <= 1e-5 * want.size + rounding, "%s in %s: %g, not %g; n %d real %d %s", what,
          hvt_dtype_name(c->d.type), got, want.sum, c->d.n, c->real, text_of(&c->d, text));
}

static exact plus(exact e, float x)
{
    return (exact){e.sum + x, e.size + fabs(x)};
}

/* Every element, or about `samples` of each kind if there are more; of one case always as many. */
static void check_result(conv_case *c, const conv_result *got, int samples)
{
    const hvt_conv_desc *d = &c->d;
    size_t all[3] = {(size_t)c->real * c->p * c->q * d->k, (size_t)c->real * d->h * d->w * d->c, c->nw}, i;
    size_t step[3];
    bool first = !c->want[0];
    exact *want;

    for (int kind = 0; kind < 3; kind++) {
        step[kind] = samples && all[kind] > (size_t)samples ? all[kind] / (size_t)samples : 1;
        if (first)
            c->want[kind] = room((all[kind] / step[kind] + 1) * sizeof(exact));
    }
    for (i = 0; i < all[0]; i += step[0]) {
        int k = (int)(i % d->k), q = (int)(i / d->k % c->q), p = (int)(i / d->k / c->q % c->p);
        int n = (int)(i / d->k / c->q / c->p);

        want = &c->want[0][i / step[0]];
        if (first)
            *want = exact_y(c, n, p, q, k);
        near(c, "y", d->type, y_at(c, got->y, n, p, q)[k], *want);
    }
    for (i = 0; i < all[1] && !d->no_dx; i += step[1]) {
        int ch = (int)(i % d->c), w = (int)(i / d->c % d->w), h = (int)(i / d->c / d->w % d->h);
        int n = (int)(i / d->c / d->w / d->h);

        want = &c->want[1][i / step[1]];
        if (first)
            *want = exact_dx(c, n, h, w, ch);
        near(c, "dx", d->type, x_at(c, got->dx, n, h, w)[ch], *want);
        near(c, "dx +=", d->type, x_at(c, got->dx_added, n, h, w)[ch],
             plus(*want, x_at(c, c->dx0, n, h, w)[ch]));
    }
    for (i = 0; i < all[2]; i += step[2]) {
        int s = (int)(i % d->s), r = (int)(i / d->s % d->r), ch = (int)(i / d->s / d->r % depth(c));

        want = &c->want[2][i / step[2]];
        if (first)
            *want = exact_dw(c, (int)(i / d->s / d->r / depth(c)), ch, r, s);
        near(c, "dw", HVT_F32, got->dw[i], *want);
    }
    for (i = 0; i < got->weights; i++)
        CHECK(got->mask[i] == 1 || (got->mask[i] == 0 && got->raw_dw[i] == 0), "padding of dw holds %g",
              got->raw_dw[i]);
}

/* The results that a caller may look at: rows past `real` are nobody's. */
static bool same_bits(const conv_case *c, const conv_result *a, const conv_result *b)
{
    bool same = !memcmp(a->raw_dw, b->raw_dw, a->weights * sizeof(float));

    for (int n = 0; n < c->real; n++) {
        for (int p = 0; p < c->p; p++)
            for (int q = 0; q < c->q; q++)
                same &= !memcmp(y_at(c, a->y, n, p, q), y_at(c, b->y, n, p, q), sizeof(float) * c->d.k);
        for (int h = 0; h < c->d.h && !c->d.no_dx; h++)
            for (int w = 0; w < c->d.w; w++) {
                same &= !memcmp(x_at(c, a->dx, n, h, w), x_at(c, b->dx, n, h, w), sizeof(float) * c->d.c);
                same &= !memcmp(x_at(c, a->dx_added, n, h, w), x_at(c, b->dx_added, n, h, w),
                                sizeof(float) * c->d.c);
            }
    }
    return same;
}

/* 3x3 with tiles of at most n x n outputs; 1: direct; 0: as it pays. */
static void set_tile(int n)
{
    for (int i = 0; i < isas; i++)
        for (int t = 0; t < MOST_THREADS; t++)
            devices[i][t].conv_tile = n;
}

static void check_case(hvt_conv_desc d, int real, int samples)
{
    enum { MOST_SLOWLY = 40 };
    conv_case c = make_case(d, real);

    if (heap_memcheck() && (samples > MOST_SLOWLY || !samples)) /* same_bits() looks at all of them */
        samples = MOST_SLOWLY;
    for (int i = 0; i < isas; i++) {
        conv_result alone;

        if (!takes(i, &d))
            continue;
        alone = run(&devices[i][0], &c);
        check_result(&c, &alone, samples);
        for (int t = heap_memcheck() ? MOST_THREADS - 1 : 1; t < MOST_THREADS; t++) {
            conv_result got = run(&devices[i][t], &c);

            char text[TEXT];

            CHECK(same_bits(&c, &alone, &got), "%s: %d threads give other bits; n %d real %d %s",
                  devices[i][t].isa, t + 1, d.n, real, text_of(&d, text));
            free_result(&got);
        }
        free_result(&alone);
    }
    free_case(&c);
}

#endif /* HVT_TESTS_DEVICE_CONV_ORACLE_H */
