/*
 * typed.h - what the cpu device does with activations and their gradients, on a part that one thread owns.
 * One source, compiled once per type by typed_<type>.c, which defines TYPE and NAME, and once per instruction
 * set with -DHVT_ISA=name and that set's flags. Elements are widened when loaded and rounded when stored
 * (get, put); the arithmetic between is formula.h's, in floats.
 *
 * A function called ..._at does one vector of an op: `lanes` elements from element `at` on, which is VL in a
 * loop's body.
 */
#include "cpu_impl.h"
#include "elementwise.h"
#include "vec.h"

#include "device/formula.h"

#include <math.h>

INLINE F get(const void *p, size_t at, int lanes)
{
    return f_load_as(TYPE, p, at, lanes);
}

INLINE void put(void *p, size_t at, F x, int lanes)
{
    f_store_as(TYPE, p, at, x, lanes);
}

/* p += x, or p = x */
INLINE void put_or_add(void *p, size_t at, F x, bool add, int lanes)
{
    put(p, at, add ? get(p, at, lanes) + x : x, lanes);
}

/* ---- spans ---- */

static void relu(size_t n, const void *x, void *y)
{
    SPAN(n, put(y, i, f_relu(get(x, i, lanes)), lanes););
}

static void relu_grad(size_t n, const void *y, const void *dy, void *dx, bool add)
{
    SPAN(n, put_or_add(dx, i, f_keep(get(y, i, lanes), get(dy, i, lanes)), add, lanes););
}

static void add2(size_t n, const void *a, const void *b, void *y)
{
    SPAN(n, put(y, i, get(a, i, lanes) + get(b, i, lanes), lanes););
}

static void scale(size_t n, float s, const void *x, void *y, bool add)
{
    const F factor = f_splat(s);

    SPAN(n, put_or_add(y, i, get(x, i, lanes) * factor, add, lanes););
}

#include "typed_matrix.h"

/* ---- loss ---- */

/* e^x for x <= 0: 2^n * e^r, |r| <= ln2/2, e^r by its Taylor polynomial to r^7 (error below one unit in the
 * last place). exp(0) is 1 exactly; below -87, where the result would be subnormal, it is 0; a NaN stays
 * one. */
INLINE F exp_below_one(F x)
{
    const float magic = 0x1.8p23f; /* adding it rounds to an integer and leaves that in the low bits */
    F shifted = f_fma(x, f_splat(0x1.715476p0f), f_splat(magic)), n = shifted - magic;
    F r = f_fma(n, f_splat(-0x1.62e4p-1f), x), p = f_splat(1.0f / 5040);

    r = f_fma(n, f_splat(-0x1.7f7d1cp-20f), r);
    p = f_fma(p, r, f_splat(1.0f / 720));
    p = f_fma(p, r, f_splat(1.0f / 120));
    p = f_fma(p, r, f_splat(1.0f / 24));
    p = f_fma(p, r, f_splat(1.0f / 6));
    p = f_fma(p, r, f_splat(0.5f));
    p = f_fma(p, r, f_splat(1));
    p = f_fma(p, r, f_splat(1));
    p = (F)((U)p + (((U)shifted - (U)f_splat(magic)) << 23));
    p = f_select((I)(x < -87), f_zero(), p);
    return f_select((I)(x != x), x, p);
}

/* The gradient's memory can hold e^x until the sum is known; in 16 bits it would be rounded twice. */
enum { KEEPS_EXP = TYPE == HVT_F32 };

/* What the first pass over a row finds, per lane. */
typedef struct xent_scan {
    F max, poison;
    I label_rank;
} xent_scan;

/* `index`: the classes of these lanes. */
INLINE void scan_at(F v, I index, int classes, int label, F target, xent_scan *s)
{
    const I valid = (I)(index < classes);

    s->max = f_select((I)(v > s->max) & valid, v, s->max);
    s->poison = s->poison + xent_poison(v);
    s->label_rank = s->label_rank - (xent_before(v, target, index, i_splat(label)) & valid);
}

INLINE F exp_at(const void *x, size_t at, I index, int classes, F max, int lanes)
{
    return f_select((I)(index < classes), exp_below_one(get(x, at, lanes) - max), f_zero());
}

/* See xent_row of ref.c. Rows are independent; a row's lanes are joined in a fixed order. */
static void xent_row(const hvt_xent_args *a, size_t row, float s)
{
    const size_t at = row * (size_t)a->classes;
    const int classes = a->classes, label = a->labels[row];
    void *dx = a->dlogits;
    const float target = hvt__load(a->logits, TYPE, at + (size_t)label);
    float max = hvt__load(a->logits, TYPE, at), poison = 0;
    xent_scan scan = {f_splat(max), f_zero(), {0}};
    F total = f_zero();
    I first = {0};
    double sum = 0;
    int label_rank = 0;

    for (int l = 0; l < VL; l++)
        first[l] = l;
    SPAN(classes,
         scan_at(get(a->logits, at + i, lanes), first + (int)i, classes, label, f_splat(target), &scan););
    for (int l = 0; l < VL; l++) {
        max = scan.max[l] > max ? scan.max[l] : max;
        poison += scan.poison[l];
        label_rank += scan.label_rank[l];
    }
    SPAN(classes, const F e = exp_at(a->logits, at + i, first + (int)i, classes, f_splat(max), lanes);
         total = total + e; if (KEEPS_EXP && dx) put(dx, at + i, e, lanes););
    for (int l = 0; l < VL; l++)
        sum += total[l];
    if (dx)
        SPAN(classes, const I index = first + (int)i;
             const F e = KEEPS_EXP ? get(dx, at + i, lanes)
                                   : exp_at(a->logits, at + i, index, classes, f_splat(max), lanes);
             put(dx, at + i,
                 xent_grad(e, f_splat((float)sum), f_select((I)(index == label), f_splat(1), f_zero()),
                           f_splat(s)),
                 lanes););
    a->loss[row] = xent_loss(sum, target, max, poison);
    a->label_rank[row] = label_rank;
}

/* ---- pooling ---- */

INLINE void max_forward_at(const void *const in[], const uint8_t pos[], int count, size_t i, void *y,
                           uint8_t *saved, int lanes)
{
    F best = get(in[0], i, lanes);
    I argmax = i_splat(pos[0]);

    for (int k = 1; k < count; k++) {
        const F v = get(in[k], i, lanes);
        const I wins = pooling_wins(v, best);

        best = f_select(wins, v, best);
        argmax = i_select(wins, i_splat(pos[k]), argmax);
    }
    put(y, i, best, lanes);
    i_store_bytes(saved + i, argmax, lanes);
}

static void max_forward(size_t n, const void *const in[], const uint8_t pos[], int count, void *y,
                        uint8_t *saved)
{
    SPAN(n, max_forward_at(in, pos, count, i, y, saved, lanes););
}

INLINE void max_backward_at(const void *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                            int count, size_t i, void *dx, bool add, int lanes)
{
    F sum = f_zero();

    for (int k = 0; k < count; k++) {
        const I chosen = (I)(i_load_bytes(saved[k] + i, lanes) == i_splat(pos[k]));

        sum = sum + f_select(chosen, get(dy[k], i, lanes), f_zero());
    }
    put_or_add(dx, i, sum, add, lanes);
}

static void max_backward(size_t n, const void *const dy[], const uint8_t *const saved[], const uint8_t pos[],
                         int count, void *dx, bool add)
{
    SPAN(n, max_backward_at(dy, saved, pos, count, i, dx, add, lanes););
}

/* Sixteen pixels at a time, so that a long sum keeps its precision. */
INLINE F mean_at(const void *x, size_t at, size_t step, int count, int lanes)
{
    F sum = f_zero();

    for (int first = 0; first < count; first += 16) {
        const int end = count - first < 16 ? count : first + 16;
        F some = f_zero();

        for (int k = first; k < end; k++)
            some = some + get(x, at + k * step, lanes);
        sum = sum + some;
    }
    return sum;
}

static void mean_forward(size_t n, const void *x, size_t step, int count, float part, void *y)
{
    SPAN(n, put(y, i, mean_at(x, i, step, count, lanes) * part, lanes););
}

/* ---- for convolutions, which compute in f32 ---- */

static void widen_span(size_t n, const void *x, float *out)
{
    SPAN(n, f_store(out + i, get(x, i, lanes), lanes););
}

static void pack_panels(const void *x, long ld, long prefetch, int n, int c, int w, int pitch, float *out)
{
    for (int r = 0; r < n; r++) {
        float *row = out + (long)r * pitch;

        if (prefetch)
            hvt__prefetch(hvt__at(x, TYPE, (size_t)(r * ld + prefetch)), hvt_dtype_size(TYPE) * (size_t)c);
        for (int first = 0; first < c; first += w, row += (long)n * pitch) {
            const int count = c - first < w ? c - first : w;
            const size_t at = (size_t)(r * ld + first);

            SPAN(count, f_store(row + i, get(x, at + i, lanes), VL););
        }
    }
}

static void store_tile(int rows, int cols, const float *tile, long tile_row, void *to, long row, bool add)
{
    for (int r = 0; r < rows; r++, tile += tile_row)
        SPAN(cols, put_or_add(to, (size_t)(r * row) + i, f_load(tile + i, lanes), add, lanes););
}

#include "typed_winograd.h"

#define TABLE_OF(isa, name) hvt__##name##_##isa
#define TABLE(isa, name)    TABLE_OF(isa, name)

extern const hvt_typed TABLE(HVT_ISA, NAME);

const hvt_typed TABLE(HVT_ISA, NAME) = {
    .relu = relu,
    .relu_grad = relu_grad,
    .add = add2,
    .scale = scale,
    .row_step = row_step,
    .bn_stats = bn_stats,
    .bn_apply = bn_apply,
    .bn_sums = bn_sums,
    .bn_dx = bn_dx_part,
    .bias = bias,
    .sums = sums,
    .xent_row = xent_row,
    .max_forward = max_forward,
    .max_backward = max_backward,
    .mean_forward = mean_forward,
    .widen = widen_span,
    .pack_panels = pack_panels,
    .store_tile = store_tile,
    .tile_input = tile_input,
    .tile_dy = tile_dy,
    .tile_output = tile_output,
    .tile_filter = tile_filter,
    .tile_dw = tile_dw,
};
