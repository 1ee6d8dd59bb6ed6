/*
 * The cpu device's products of matrices. A job is a block of rows of one product. Products use the
 * convolutions' f32 microkernels, whatever the type, and each is one chain of multiply-adds. So the bits
 * depend only on the shape and the instruction set.
 */
#include "matmul.h"
#include "cpu_impl.h"
#include "device/half.h"
#include "elementwise.h"

enum { PANEL = HVT_PANEL, BLOCK = 256 /* maximum rows of a job */ };

void hvt__multiply(const hvt_conv_kernels *kernels, int m, int n, int k, const hvt_floats *a, bool transposed,
                   const hvt_floats *b, const hvt_floats *c, bool add, void (*each)(void *ctx), void *ctx)
{
    static const hvt_entry one = {0, 0};
    const int vl = kernels->vl;

    for (int col = 0; col < n; col += 2 * vl) {
        const int wide = n - col > vl, count = tile_count(m, kernels->rows[wide]);
        hvt_tile t = {.e = &one,
                      .entries = 1,
                      .len = k,
                      .a_row = (long)a->step,
                      .b = b->panels ? b->at + (size_t)(col / PANEL) * b->step + col % PANEL : b->at + col,
                      .b_row = b->panels ? PANEL : (long)b->step,
                      .c_row = (long)c->step,
                      .nc = (wide + 1) * vl,
                      .add = add};

        for (int row = 0, left = count, high; left > 0; row += high, left--) {
            high = tile_count(m - row, left); /* equal heights: low tiles are not faster */
            t.rows = t.high = high;
            t.a = transposed ? a->at + row : a->at + (size_t)row * a->step;
            t.c = c->at + (size_t)row * c->step + col;
            (transposed ? kernels->gemm_tn : kernels->gemm_nn)[wide][high - 1](&t);
            if (each)
                each(ctx);
        }
    }
}

void hvt__widen_transposed(const hvt_conv_kernels *kernels, const hvt_typed *in, int rows, int cols,
                           hvt_rows_fn *row, const void *ctx, float (*scratch)[HVT_PANEL],
                           const hvt_floats *to)
{
    for (int first = 0; first < rows; first += PANEL) {
        const int count = rows - first < PANEL ? rows - first : PANEL;

        for (int c = 0; c < cols; c += PANEL) {
            const int wide = cols - c < PANEL ? cols - c : PANEL;

            for (int i = 0; i < count; i++)
                in->widen((size_t)wide, row(ctx, first + i, c), scratch[i]);
            kernels->pack_weights(scratch[0], count, wide,
                                  to->at + (size_t)(first / PANEL) * to->step + (size_t)c * PANEL, false);
        }
    }
}

/* ---- the operation ---- */

typedef struct product {
    const hvt_matmul_args *a;
    const hvt_conv_kernels *kernels;
    const hvt_typed *in;
    int blocks, rows; /* of a product's rows */
    size_t room;      /* bytes of a thread's scratch */
} product;

/* A thread's scratch: rows of A, or columns of A', and of Y; all of B. */
typedef struct scratch {
    hvt_floats a, b, y;
    float (*transposed)[PANEL];
} scratch;

static scratch lay_out(const product *s, float *base, size_t *ret_floats)
{
    const hvt_matmul_args *a = s->a;
    const size_t rows = (size_t)s->rows, k = (size_t)a->k, n = (size_t)a->n;
    size_t taken = 0;
    scratch w = {.a = a->a_transposed ? hvt__take_floats(base, &taken, k, rows)
                                      : hvt__take_floats(base, &taken, rows, k),
                 .b = a->b_transposed ? hvt__take_panels(base, &taken, k, n)
                                      : hvt__take_floats(base, &taken, k, n),
                 .y = hvt__take_floats(base, &taken, rows, n)};

    w.transposed = (float(*)[PANEL])hvt__take_floats(base, &taken, PANEL, PANEL).at;
    *ret_floats = taken;
    return w;
}

static product begin(hvt_device *d, const hvt_matmul_args *a)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    product s = {a, cpu->isa->conv, cpu->isa->el->in[a->type], .rows = a->m < BLOCK ? a->m : BLOCK};
    size_t taken;

    s.blocks = (a->m + s.rows - 1) / s.rows;
    lay_out(&s, NULL, &taken);
    s.room = (taken * sizeof(float) + 63) / 64 * 64;
    return s;
}

size_t hvt__matmul_room_cpu(hvt_device *d, const hvt_matmul_args *a)
{
    return begin(d, a).room * (size_t)hvt__thread_pool_size(hvt__cpu(d)->pool);
}

/* Widens rows of `cols` elements, `pitch` apart, to floats. */
static void widen(const product *s, const void *x, int rows, int cols, int pitch, const hvt_floats *to)
{
    for (int i = 0; i < rows; i++)
        s->in->widen((size_t)cols, hvt__at(x, s->a->type, (size_t)i * (size_t)pitch),
                     to->at + (size_t)i * to->step);
}

typedef struct matrix {
    const void *x;
    hvt_dtype type;
    int pitch;
} matrix;

static const void *row_of(const void *ctx, int i, int col)
{
    const matrix *b = ctx;

    return hvt__at(b->x, b->type, (size_t)i * (size_t)b->pitch + (size_t)col);
}

static void block_job(void *ctx, int job, int thread)
{
    const product *s = ctx;
    const hvt_matmul_args *a = s->a;
    const size_t i = (size_t)(job / s->blocks), m = (size_t)a->m, n = (size_t)a->n, k = (size_t)a->k;
    const int first = job % s->blocks * s->rows, rows = a->m - first < s->rows ? a->m - first : s->rows;
    const void *b = hvt__at(a->b, a->type, i * n * k);
    const size_t from = a->a_transposed ? (size_t)first : (size_t)first * k;
    size_t taken;
    const scratch w = lay_out(s, (float *)(void *)((char *)a->ws + (size_t)thread * s->room), &taken);

    if (a->a_transposed)
        widen(s, hvt__at(a->a, a->type, i * m * k + from), a->k, rows, a->m, &w.a);
    else
        widen(s, hvt__at(a->a, a->type, i * m * k + from), rows, a->k, a->k, &w.a);
    if (a->b_transposed)
        hvt__widen_transposed(s->kernels, s->in, a->n, a->k, row_of, &(matrix){b, a->type, a->k},
                              w.transposed, &w.b);
    else
        widen(s, b, a->k, a->n, a->n, &w.b);
    hvt__multiply(s->kernels, rows, a->n, a->k, &w.a, a->a_transposed, &w.b, &w.y, false, NULL, NULL);
    s->in->store_tile(rows, a->n, w.y.at, (long)w.y.step,
                      hvt__at(a->y, a->type, i * m * n + (size_t)first * n), (long)n, a->add);
}

hvt_status hvt__matmul_run_cpu(hvt_device *d, const hvt_matmul_args *a)
{
    HVT_FLOATS;
    product s = begin(d, a);

    hvt__parallel_for(hvt__cpu(d)->pool, a->count * s.blocks, block_job, &s);
    return HVT_OK;
}
