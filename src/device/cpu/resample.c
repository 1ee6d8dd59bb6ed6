/*
 * Interpolation and padding: each output pixel is a weighted sum of input pixels, and backward is the same
 * with the taps transposed. Both are gathers, so no two threads write to one address.
 *
 * A pixel is a vector of elements, and work is split into rows of pixels and slices, as in pooling.c.
 */
#include "cpu_impl.h"
#include "elementwise.h"

/* MOST: pixels of one sum; a longer sum is rounded to the type of y after each MOST pixels. */
enum { MOST = 1024, SLICE = 2048 };

typedef struct pass {
    const hvt_typed *in;
    hvt_dtype type;
    hvt_taps rows, columns;
    bool hwn;
    size_t pixel, elements; /* elements between pixels; valid ones of a pixel */
    int slices;
    const void *from;
    void *to;
    bool add;
} pass;

/* Computes n elements of output pixel (p, q). `in`: their offset in the first input pixel. */
static void gather(const pass *s, size_t n, size_t in, int p, int q, void *to)
{
    const void *x[MOST];
    float weight[MOST];
    bool add = s->add;
    int count = 0;

    for (int i = s->rows.first[p]; i < s->rows.first[p + 1]; i++)
        for (int j = s->columns.first[q]; j < s->columns.first[q + 1]; j++) {
            const hvt_tap *row = &s->rows.tap[i], *column = &s->columns.tap[j];

            if (count == MOST) {
                s->in->window_spread(n, x, weight, count, to, add);
                add = true;
                count = 0;
            }
            x[count] = hvt__at(s->from, s->type,
                               in + ((size_t)row->index * s->columns.in + column->index) * s->pixel);
            weight[count++] = row->weight * column->weight;
        }
    s->in->window_spread(n, x, weight, count, to, add);
}

static void row_job(void *ctx, int job, int thread)
{
    const pass *s = ctx;
    const int slice = job % s->slices, p = job / s->slices;
    const size_t in = s->hwn ? (size_t)slice * SLICE : (size_t)slice * s->rows.in * s->columns.in * s->pixel,
                 out = s->hwn ? in : (size_t)slice * s->rows.out * s->columns.out * s->pixel,
                 n = s->hwn && s->elements - in < SLICE ? s->elements - in
                     : s->hwn                           ? SLICE
                                                        : s->elements;

    for (int q = 0; q < s->columns.out; q++)
        gather(s, n, in, p, q, hvt__at(s->to, s->type, out + ((size_t)p * s->columns.out + q) * s->pixel));
}

static hvt_status run(const hvt_resample *o, int real, pass s)
{
    const hvt_cpu *cpu = hvt__cpu(o->op.dev);

    s.in = cpu->isa->el->in[o->d.type];
    s.type = o->d.type;
    s.hwn = o->d.order == HVT_ORDER_HWN;
    s.pixel = (size_t)(s.hwn ? o->d.n : 1) * o->d.c;
    s.elements = (size_t)(s.hwn ? real : 1) * o->d.c;
    s.slices = s.hwn ? (int)((s.elements + SLICE - 1) / SLICE) : real;
    hvt__parallel_for(cpu->pool, s.slices * s.rows.out, row_job, &s);
    return HVT_OK;
}

hvt_status hvt__resample_forward_cpu(hvt_op *op, int real, const void *x, void *y)
{
    const hvt_resample *o = (const hvt_resample *)op;

    return run(o, real, (pass){.rows = o->d.rows, .columns = o->d.columns, .from = x, .to = y});
}

hvt_status hvt__resample_backward_cpu(hvt_op *op, int real, const void *dy, void *dx, bool add)
{
    const hvt_resample *o = (const hvt_resample *)op;

    return run(o, real,
               (pass){.rows = o->rows_back, .columns = o->columns_back, .from = dy, .to = dx, .add = add});
}
