/*
 * Pooling. A pixel is a vector of elements that are pooled in parallel: in HWN order the [N, C] matrix of all
 * images, in NHW order the C channels of one. A window is then a list of addresses, and one kernel handles
 * both orders.
 *
 * Work is split into *slices* (HWN: some of a pixel's elements, few enough for the windows of neighbouring
 * outputs to find them in the cache; NHW: an image) and rows of pixels. Backward is a gather as well: an
 * input pixel adds the outputs that chose it, in a fixed order, so no two threads write to one address.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <stdlib.h>

enum { MOST_TAPS = HVT_POOLING_WINDOW * HVT_POOLING_WINDOW, SLICE = 2048 };

typedef struct pooling {
    hvt_op op;
    hvt_pooling_desc d;
    int p, q;            /* output [n,p,q,c] */
    const hvt_typed *in; /* d.type */
    hvt_thread_pool *threads;
    size_t pixel; /* elements between pixels */
} pooling;

static void free_pooling(hvt_op *op)
{
    free(op);
}

hvt_status hvt__pooling_plan_cpu(hvt_device *d, const hvt_pooling_desc *p, hvt_op **ret_op, size_t *ret_saved)
{
    const hvt_cpu *cpu = d->state;
    pooling *o;

    HVT_TRY(hvt__pooling_check(p));
    o = malloc(sizeof *o);
    HVT_CHECK(o, E_MEM, "no memory for %zu bytes of a pooling's plan", sizeof *o);
    *o = (pooling){{d, free_pooling},
                   *p,
                   p->mean ? 1 : hvt__conv_out(p->h, p->size, p->stride, p->pad),
                   p->mean ? 1 : hvt__conv_out(p->w, p->size, p->stride, p->pad),
                   cpu->isa->el->in[p->type],
                   cpu->pool,
                   p->order == HVT_ORDER_HWN ? (size_t)p->n * p->c : (size_t)p->c};
    *ret_op = &o->op;
    *ret_saved = p->mean ? 0 : (size_t)p->n * o->p * o->q * p->c; /* one byte each: the argmax */
    return HVT_OK;
}

/* ---- slices ---- */

typedef struct pass {
    const pooling *o;
    size_t elements; /* valid elements of a pixel */
    int slices, rows;
    const void *from;
    void *to;
    uint8_t *saved;
    bool add;
} pass;

static pass make_pass(const pooling *o, int real, int rows)
{
    const hvt_pooling_desc *d = &o->d;
    bool hwn = d->order == HVT_ORDER_HWN;
    size_t elements = hwn ? (size_t)real * d->c : (size_t)d->c;

    return (pass){.o = o,
                  .elements = elements,
                  .slices = hwn ? (int)((elements + SLICE - 1) / SLICE) : real,
                  .rows = rows};
}

/* Number of elements of a slice, and its offsets in the first pixel of the input and of the output. */
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

/* ---- mean ---- */

static void mean_forward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const pooling *o = s->o;
    size_t in, out, n = slice(s, job, &in, &out);
    int pixels = o->d.h * o->d.w;

    (void)thread;
    o->in->mean_forward(n, from_at(s, in), o->pixel, pixels, 1 / (float)pixels, to_at(s, out));
}

static void mean_backward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const pooling *o = s->o;
    size_t in, out, n = slice(s, job % s->slices, &in, &out);
    int pixels = o->d.h * o->d.w, row = job / s->slices;

    (void)thread;
    for (int w = 0; w < o->d.w; w++)
        o->in->scale(n, 1 / (float)pixels, from_at(s, out),
                     to_at(s, in + ((size_t)row * o->d.w + w) * o->pixel), s->add);
}

/* ---- maximum ---- */

/* One row of outputs. */
static void max_forward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const pooling *o = s->o;
    const hvt_pooling_desc *d = &o->d;
    size_t in, out, n = slice(s, job % s->slices, &in, &out);
    int p = job / s->slices;

    (void)thread;
    for (int q = 0; q < o->q; q++) {
        const void *window[MOST_TAPS];
        uint8_t pos[MOST_TAPS];
        size_t to = out + ((size_t)p * o->q + q) * o->pixel;
        int count = 0;

        for (int r = 0; r < d->size; r++)
            for (int t = 0; t < d->size; t++) {
                int h = p * d->stride - d->pad + r, w = q * d->stride - d->pad + t;

                if (h < 0 || h >= d->h || w < 0 || w >= d->w)
                    continue;
                window[count] = from_at(s, in + ((size_t)h * d->w + w) * o->pixel);
                pos[count++] = (uint8_t)(r * d->size + t);
            }
        o->in->max_forward(n, window, pos, count, to_at(s, to), s->saved + to);
    }
}

/* One row of inputs. */
static void max_backward_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const pooling *o = s->o;
    const hvt_pooling_desc *d = &o->d;
    size_t in, out, n = slice(s, job % s->slices, &in, &out);
    int h = job / s->slices;

    (void)thread;
    for (int w = 0; w < d->w; w++) {
        const void *dy[MOST_TAPS];
        const uint8_t *saved[MOST_TAPS];
        uint8_t pos[MOST_TAPS];
        int count = 0;

        for (int r = d->size - 1; r >= 0; r--)
            for (int t = d->size - 1; t >= 0; t--) {
                int p = h + d->pad - r, q = w + d->pad - t; /* times stride */
                size_t from;

                if (p < 0 || q < 0 || p % d->stride || q % d->stride || p / d->stride >= o->p ||
                    q / d->stride >= o->q)
                    continue;
                from = out + ((size_t)(p / d->stride) * o->q + q / d->stride) * o->pixel;
                dy[count] = from_at(s, from);
                saved[count] = s->saved + from;
                pos[count++] = (uint8_t)(r * d->size + t);
            }
        o->in->max_backward(n, dy, saved, pos, count, to_at(s, in + ((size_t)h * d->w + w) * o->pixel),
                            s->add);
    }
}

hvt_status hvt__pooling_forward_cpu(hvt_op *op, int real, const void *x, void *y, void *saved)
{
    const pooling *o = (const pooling *)op;
    pass s = make_pass(o, real, o->p);

    s.from = x;
    s.to = y;
    s.saved = saved;
    hvt__parallel_for(o->threads, s.slices * s.rows, o->d.mean ? mean_forward_job : max_forward_job, &s);
    return HVT_OK;
}

hvt_status hvt__pooling_backward_cpu(hvt_op *op, int real, const void *saved, const void *dy, void *dx,
                                     bool add)
{
    const pooling *o = (const pooling *)op;
    pass s = make_pass(o, real, o->d.h);

    s.from = dy;
    s.to = dx;
    s.saved = (uint8_t *)saved; /* read only */
    s.add = add;
    hvt__parallel_for(o->threads, s.slices * s.rows, o->d.mean ? mean_backward_job : max_backward_job, &s);
    return HVT_OK;
}
