/*
 * Pooling. A pixel is a vector of elements that are pooled in parallel: in HWN order the [N, C] matrix of all
 * images, in NHW order the C channels of one image. A window is then a list of addresses, and one kernel
 * handles both orders.
 *
 * Work is split into rows of pixels and *slices*: in HWN some of a pixel's elements, few enough to stay in
 * the cache for the windows of neighbouring outputs; in NHW an image. Backward is a gather, too: an input
 * pixel adds the gradients of outputs that chose it, in a fixed order, so no two threads write to one
 * address.
 */
#include "cpu_impl.h"
#include "device/host.h"
#include "elementwise.h"

enum { MOST_TAPS = HVT_POOLING_TAPS, SLICE = 2048 };

typedef struct pass {
    const hvt_pooling *o;
    const hvt_typed *in;    /* of o's type */
    size_t pixel, elements; /* elements between pixels; valid ones of a pixel */
    int slices;
    const void *from;
    void *to;
    uint8_t *saved;
    bool add;
} pass;

/* Returns the number of elements of slice i; sets its offsets in the first input and output pixel. */
static size_t slice(const pass *s, int i, size_t *ret_in, size_t *ret_out)
{
    const hvt_pooling_desc *d = &s->o->d;

    if (d->order == HVT_ORDER_HWN) {
        *ret_in = *ret_out = (size_t)i * SLICE;
        return s->elements - *ret_in < SLICE ? s->elements - *ret_in : SLICE;
    }
    *ret_in = (size_t)i * d->h * d->w * d->c;
    *ret_out = (size_t)i * s->o->p * s->o->q * d->c;
    return s->elements;
}

static const void *from_at(const pass *s, size_t i)
{
    return hvt__at(s->from, s->o->d.type, i);
}

static void *to_at(const pass *s, size_t i)
{
    return hvt__at(s->to, s->o->d.type, i);
}

static void mean_forward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    size_t in, out, n = slice(s, job, &in, &out);
    int pixels = s->o->d.h * s->o->d.w;

    s->in->mean_forward(n, from_at(s, in), s->pixel, pixels, 1 / (float)pixels, to_at(s, out));
}

static void mean_backward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const hvt_pooling_desc *d = &s->o->d;
    size_t in, out, n = slice(s, job % s->slices, &in, &out), row = (size_t)(job / s->slices) * d->w;

    for (int w = 0; w < d->w; w++)
        s->in->scale(n, 1 / (float)(d->h * d->w), from_at(s, out), to_at(s, in + (row + w) * s->pixel),
                     s->add);
}

/* Computes one row of outputs. */
static void windows_forward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const hvt_pooling *o = s->o;
    const hvt_pooling_desc *d = &o->d;
    size_t in, out, n = slice(s, job % s->slices, &in, &out);
    int p = job / s->slices, h0, h1, w0, w1, high = hvt__window_at(&d->rows, d->h, p, d->count_pad, &h0, &h1);

    for (int q = 0; q < o->q; q++) {
        const int divisor = high * hvt__window_at(&d->columns, d->w, q, d->count_pad, &w0, &w1);
        const void *window[MOST_TAPS];
        uint8_t pos[MOST_TAPS];
        size_t to = out + ((size_t)p * o->q + q) * s->pixel;
        int count = 0;

        for (int h = h0; h < h1; h++)
            for (int w = w0; w < w1 && !d->mean; w++) {
                window[count] = from_at(s, in + ((size_t)h * d->w + w) * s->pixel);
                pos[count] = (uint8_t)count;
                count++;
            }
        if (d->mean)
            s->in->window_mean(n, from_at(s, in + ((size_t)h0 * d->w + w0) * s->pixel), s->pixel, w1 - w0,
                               (size_t)d->w * s->pixel, h1 - h0, 1 / (float)divisor, to_at(s, to));
        else
            s->in->max_forward(n, window, pos, count, to_at(s, to), s->saved + to);
    }
}

/* Computes the gradient of one row of inputs. */
static void windows_backward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const hvt_pooling *o = s->o;
    const hvt_pooling_desc *d = &o->d;
    size_t in, out, n = slice(s, job % s->slices, &in, &out);
    int h = job / s->slices, p0, p1, q0, q1;

    hvt__readers_of(&d->rows, d->h, h, &p0, &p1);
    for (int w = 0; w < d->w; w++) {
        const void *dy[MOST_TAPS];
        const uint8_t *saved[MOST_TAPS];
        uint8_t pos[MOST_TAPS];
        float part[MOST_TAPS];
        void *to = to_at(s, in + ((size_t)h * d->w + w) * s->pixel);
        int count = 0;

        hvt__readers_of(&d->columns, d->w, w, &q0, &q1);
        for (int p = p0; p < p1; p++)
            for (int q = q0; q < q1; q++) {
                size_t from = out + ((size_t)p * o->q + q) * s->pixel;
                int h0, h1, w0, w1, divisor = hvt__window_at(&d->rows, d->h, p, d->count_pad, &h0, &h1);

                divisor *= hvt__window_at(&d->columns, d->w, q, d->count_pad, &w0, &w1);
                if (h >= h1 || w >= w1)
                    continue;
                dy[count] = from_at(s, from);
                saved[count] = s->saved + from;
                part[count] = 1 / (float)divisor;
                pos[count++] = (uint8_t)((h - h0) * (w1 - w0) + w - w0);
            }
        if (d->mean)
            s->in->window_spread(n, dy, part, count, to, s->add);
        else
            s->in->max_backward(n, dy, saved, pos, count, to, s->add);
    }
}

/* Split `rows` rows between jobs. */
static hvt_status run(pass s, int real, int rows, hvt_job_fn *mean, hvt_job_fn *windows)
{
    const hvt_pooling_desc *d = &s.o->d;
    const hvt_cpu *cpu = hvt__cpu(s.o->op.dev);
    bool hwn = d->order == HVT_ORDER_HWN;

    s.in = cpu->isa->el->in[d->type];
    s.pixel = (size_t)(hwn ? d->n : 1) * d->c;
    s.elements = (size_t)(hwn ? real : 1) * d->c;
    s.slices = hwn ? (int)((s.elements + SLICE - 1) / SLICE) : real;
    hvt__parallel_for(cpu->pool, s.slices * rows, d->mean && !d->windows ? mean : windows, &s);
    return HVT_OK;
}

hvt_status hvt__pooling_forward_cpu(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    const hvt_pooling *o = (const hvt_pooling *)op;

    return run((pass){.o = o, .from = x, .to = y, .saved = saved}, real, o->p, mean_forward_job,
               windows_forward_job);
}

hvt_status hvt__pooling_backward_cpu(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                     bool add)
{
    const hvt_pooling *o = (const hvt_pooling *)op;

    /* saved is only read */
    return run((pass){.o = o, .from = dy, .to = dx, .saved = (uint8_t *)saved, .add = add}, real, o->d.h,
               mean_backward_job, windows_backward_job);
}
