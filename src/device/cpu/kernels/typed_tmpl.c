/*
 * Kernels on activations and their gradients, each on a part that one thread owns. One source, compiled once
 * per type with -DTYPE and -DNAME, and once per instruction set with -DHVT_ISA=name and that set's flags;
 * depthwise_tmpl.c is the other part. The arithmetic is formula.h's, in floats.
 *
 * A function named ..._at computes one vector of an op: `lanes` elements from element `at` on; `lanes` is VL
 * in a loop's body.
 */
#include "typed.h"

#ifdef f_fraction
#define f_short (TYPE != HVT_F32)
#endif
#include "device/formula.h"
#include "device/functions.h"

#include <math.h>

/* ---- spans ---- */

static void relu(size_t n, const void *x, const void *b, void *y, bool add)
{
    SPAN(n, put(y, i, f_relu(get(x, i, lanes)), lanes););
}

static void relu_grad(size_t n, const void *y, const void *dy, void *dx, bool add)
{
    SPAN(n, put_or_add(dx, i, f_keep(get(y, i, lanes), get(dy, i, lanes)), add, lanes););
}

static void add2(size_t n, const void *a, const void *b, void *y, bool add)
{
    SPAN(n, put(y, i, get(a, i, lanes) + get(b, i, lanes), lanes););
}

static void scale(size_t n, float s, const void *x, void *y, bool add)
{
    const F factor = f_splat(s);

    SPAN(n, put_or_add(y, i, get(x, i, lanes) * factor, add, lanes););
}

INLINE void cast_to(size_t n, float s, const void *x, void *y, hvt_dtype to)
{
    SPAN(n, f_store_as(to, y, i, get(x, i, lanes) * s, lanes););
}

static void cast(size_t n, float s, const void *x, void *y, hvt_dtype to)
{
    if (to == HVT_F32)
        cast_to(n, s, x, y, HVT_F32);
    else if (to == HVT_F16)
        cast_to(n, s, x, y, HVT_F16);
    else
        cast_to(n, s, x, y, HVT_BF16);
}

INLINE void reduce_to(size_t first, size_t n, const void *const in[], int count, void *const out[], int outs)
{
    SPAN(n, const F x = tree(TYPE, in, count, first + i, lanes);
         for (int k = 0; k < outs; k++) put(out[k], first + i, x, lanes););
}

/* Two inputs, the common case, get code without a loop over them. */
static void reduce(size_t first, size_t n, const void *const in[], int count, void *const out[], int outs)
{
    const void *const two[2] = {in[0], in[count > 1]};
    void *const to[2] = {out[0], out[outs > 1]};

    if (count == 2 && outs == 2)
        reduce_to(first, n, two, 2, to, 2);
    else if (count == 2)
        reduce_to(first, n, two, 2, to, 1);
    else if (outs == 1)
        reduce_to(first, n, in, count, to, 1);
    else
        reduce_to(first, n, in, count, out, outs);
}

/* ---- sums over pixels ---- */

/* Pixels summed before they are added to the total, to keep the precision of long sums; and vectors of them
 * at a time, because single vectors are too short to read fast. */
enum { SUMMED = 16, SUMS_AT_ONCE = 4 };

/* As SPAN, but several vectors at a time: statements also see `vectors`. */
#define SPAN_OF_SUMS(n, ...)                                                                                 \
    do {                                                                                                     \
        size_t i = 0;                                                                                        \
                                                                                                             \
        for (; i + SUMS_AT_ONCE * VL <= (size_t)(n); i += SUMS_AT_ONCE * VL) {                               \
            enum { lanes = VL, vectors = SUMS_AT_ONCE };                                                     \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        for (; i + VL <= (size_t)(n); i += VL) {                                                             \
            enum { lanes = VL, vectors = 1 };                                                                \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
        if (i < (size_t)(n)) {                                                                               \
            enum { vectors = 1 };                                                                            \
            const int lanes = (int)((size_t)(n)-i);                                                          \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    } while (0)

/* sum[v] = sum of `term` over `count` pixels, for v < `vectors`; the pixel's elements are `at` further on.
 * `fetch` runs before a pixel's terms. */
#define SUM_PIXELS(count, step, vectors, sum, fetch, term)                                                   \
    do {                                                                                                     \
        UNROLL                                                                                               \
        for (int v = 0; v < (vectors); v++)                                                                  \
            (sum)[v] = f_zero();                                                                             \
        for (int first_ = 0; first_ < (count); first_ += SUMMED) {                                           \
            const int end_ = (count)-first_ < SUMMED ? (count) : first_ + SUMMED;                            \
            F some_[SUMS_AT_ONCE];                                                                           \
                                                                                                             \
            UNROLL                                                                                           \
            for (int v = 0; v < (vectors); v++)                                                              \
                some_[v] = f_zero();                                                                         \
            for (int k_ = first_; k_ < end_; k_++) {                                                         \
                const size_t at = (size_t)k_ * (step);                                                       \
                                                                                                             \
                fetch;                                                                                       \
                UNROLL                                                                                       \
                for (int v = 0; v < (vectors); v++)                                                          \
                    some_[v] = some_[v] + (term);                                                            \
            }                                                                                                \
            UNROLL                                                                                           \
            for (int v = 0; v < (vectors); v++)                                                              \
                (sum)[v] = (sum)[v] + some_[v];                                                              \
        }                                                                                                    \
    } while (0)

/* Prefetch the same vectors of a later pixel. */
INLINE void fetch_pixel(const void *x, size_t at, size_t step, const int vectors)
{
    hvt__prefetch(hvt__at(x, TYPE, at + SUMMED * step), ELEMENT * (size_t)(vectors * VL));
}

#include "typed_matrix.h"
#include "typed_map.h"
#include "typed_general.h"

/* ---- loss ---- */

/* The gradient's memory can hold e^x until the sum is known, except in 16 bits, where it would be rounded
 * twice. */
enum { KEEPS_EXP = TYPE == HVT_F32 };

/* Results of the first pass over a row, per lane. */
typedef struct xent_scan {
    F max, poison;
    I label_rank;
} xent_scan;

/* index: the lanes' classes. */
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

/* See hvt__host_xent_row(). Rows are independent; a row's lanes are joined in a fixed order. */
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

INLINE void pixels_at(const void *x, size_t i, size_t step, int count, const int vectors, F *sum, int lanes)
{
    SUM_PIXELS(count, step, vectors, sum, fetch_pixel(x, i + at, step, vectors),
               get(x, i + at + (size_t)(v * VL), lanes));
}

static void mean_forward(size_t n, const void *x, size_t step, int count, float part, void *y)
{
    SPAN_OF_SUMS(n, F sum[SUMS_AT_ONCE]; pixels_at(x, i, step, count, vectors, sum, lanes);
                 for (int v = 0; v < vectors; v++) put(y, i + (size_t)(v * VL), sum[v] * part, lanes););
}

INLINE F window_at(const void *x, size_t at, size_t step, int wide, size_t line, int high, int lanes)
{
    F sum = f_zero();

    for (int k = 0; k < high; k++) {
        F row;

        pixels_at(x, at + k * line, step, wide, 1, &row, lanes);
        sum = sum + row;
    }
    return sum;
}

static void window_mean(size_t n, const void *x, size_t step, int wide, size_t line, int high, float part,
                        void *y)
{
    SPAN(n, put(y, i, window_at(x, i, step, wide, line, high, lanes) * part, lanes););
}

INLINE F spread_at(const void *const dy[], const float part[], int count, size_t i, int lanes)
{
    F sum = f_zero();

    for (int k = 0; k < count; k++)
        sum = sum + get(dy[k], i, lanes) * part[k];
    return sum;
}

static void window_spread(size_t n, const void *const dy[], const float part[], int count, void *dx, bool add)
{
    SPAN(n, put_or_add(dx, i, spread_at(dy, part, count, i, lanes), add, lanes););
}

/* ---- for convolutions, which compute in f32 ---- */

static void widen_span(size_t n, const void *x, float *out)
{
    SPAN(n, f_store(out + i, get(x, i, lanes), lanes););
}

static void pack_panels(const void *x, long ld, long prefetch, int n, int c, int w, int pitch, long next,
                        float *out)
{
    for (int r = 0; r < n; r++) {
        float *row = out + (long)r * pitch;

        if (prefetch)
            hvt__prefetch(hvt__at(x, TYPE, (size_t)(r * ld + prefetch)), ELEMENT * (size_t)c);
        for (int first = 0; first < c; first += w, row += next) {
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

const hvt_typed HVT_OF_ISA(NAME) = {
    .relu = relu,
    .relu_grad = relu_grad,
    .add = add2,
    .scale = scale,
    .cast = cast,
    .reduce = reduce,
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
    .window_mean = window_mean,
    .window_spread = window_spread,
    .widen = widen_span,
    .pack_panels = pack_panels,
    .store_tile = store_tile,
    .depthwise = OF_TYPE(depthwise),
    .depthwise_dw = OF_TYPE(depthwise_dw),
    .map = {HVT__MAPS(MAP_ENTRY)},
    .bn_map = {HVT__MAPS(BN_MAP_ENTRY)},
    .bn_slope = {HVT__MAPS(BN_SLOPE_ENTRY)},
    .slope = {HVT__MAPS(SLOPE_ENTRY)},
    .binary = binary,
    .binary_slope = binary_slope,
    .binary_columns = binary_columns,
    .binary_dot = binary_dot,
    .move_rows = move_rows,
    .transpose = transpose,
    .group_forward = group_forward,
    .group_backward = group_backward,
    .drop = drop,
    .rotary = rotary,
    .tile = tile,
    .tile_output = tile_output,
    .tile_filter = tile_filter,
    .tile_dw = tile_dw,
};
