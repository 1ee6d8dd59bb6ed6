/*
 * PowerSGD's factors: products of a convolution's gradient with narrow matrices. One source, compiled once
 * per instruction set like elementwise_tmpl.c.
 *
 * A gradient is in panels, [m][HVT_PANEL], so each lane is a filter. Up to SOME columns are processed at a
 * time; their sums, or their part of P, stay in registers while a panel streams past. The first group of
 * columns also does the work needed once. The order of every sum depends only on the shape.
 */
#include "device/cpu/cpu_impl.h"
#include "device/cpu/elementwise.h"
#include "vec.h"

enum { SOME = 4, WIDE = HVT_PANEL / VL };

/* Number of lanes of vector v of a panel that hold filters. */
INLINE int filters(const hvt_factor_args *a, int panel, int v)
{
    const int left = a->k - panel * HVT_PANEL - v * VL;

    return left < 0 ? 0 : left > VL ? VL : left;
}

INLINE float *column_p(const hvt_factor_args *a, int t, int panel, int v)
{
    return a->p + (size_t)t * (size_t)a->k + panel * HVT_PANEL + v * VL;
}

/* Load columns [t, t + count) of P for a panel's filters; 0 in unused lanes. */
INLINE void load_p(const hvt_factor_args *a, int panel, int t, const int count, F ret_p[SOME][WIDE])
{
    UNROLL
    for (int s = 0; s < count; s++) {
        UNROLL
        for (int v = 0; v < WIDE; v++) {
            const int lanes = filters(a, panel, v);

            ret_p[s][v] = lanes ? f_load(column_p(a, t + s, panel, v), lanes) : f_zero();
        }
    }
}

/* Call FN(a, ..., t, count) for all columns, up to SOME at a time, with a constant count. */
#define BY_COLUMNS(FN, a, ...)                                                                               \
    for (int t = 0; t < (a)->r; t += SOME) {                                                                 \
        if ((a)->r - t == 1)                                                                                 \
            FN(a, __VA_ARGS__, t, 1);                                                                        \
        else if ((a)->r - t == 2)                                                                            \
            FN(a, __VA_ARGS__, t, 2);                                                                        \
        else if ((a)->r - t == 3)                                                                            \
            FN(a, __VA_ARGS__, t, 3);                                                                        \
        else                                                                                                 \
            FN(a, __VA_ARGS__, t, SOME);                                                                     \
    }

INLINE void p_columns(const hvt_factor_args *a, int panel, int t, const int count)
{
    const size_t at = (size_t)panel * (size_t)a->m * HVT_PANEL, m = (size_t)a->m;
    const float *g = a->g + at, *row = a->q + (size_t)t * m;
    float *e = a->e + at;
    F sum[SOME][WIDE] = {0};

    for (size_t j = 0; j < m; j++, e += HVT_PANEL, g += HVT_PANEL) {
        UNROLL
        for (int v = 0; v < WIDE; v++) {
            F x = f_load(e + v * VL, VL);

            if (t == 0) {
                x = x + f_load(g + v * VL, VL);
                f_store(e + v * VL, x, VL);
            }
            UNROLL
            for (int s = 0; s < count; s++)
                sum[s][v] = f_fma(x, f_splat(row[(size_t)s * m + j]), sum[s][v]);
        }
    }
    UNROLL
    for (int s = 0; s < count; s++) {
        UNROLL
        for (int v = 0; v < WIDE; v++)
            if (filters(a, panel, v))
                f_store(column_p(a, t + s, panel, v), sum[s][v], filters(a, panel, v));
    }
}

static void p(const hvt_factor_args *a, int panel, int first, int rows)
{
    BY_COLUMNS(p_columns, a, panel);
}

INLINE float lanes_sum(F x)
{
    float part[VL];

    f_store(part, x, VL);
    for (int n = VL / 2; n; n /= 2)
        for (int l = 0; l < n; l++)
            part[l] += part[l + n];
    return part[0];
}

/* Rows of consecutive panels are far apart: prefetch those of the next panel. */
INLINE void q_columns(const hvt_factor_args *a, int first, int rows, int t, const int count)
{
    const size_t m = (size_t)a->m;
    F sum[HVT_FACTOR_ROWS][SOME], part[SOME][WIDE];

    for (int j = 0; j < rows; j++) {
        UNROLL
        for (int s = 0; s < count; s++)
            sum[j][s] = f_zero();
    }
    for (int panel = 0; panel * HVT_PANEL < a->k; panel++) {
        const float *e = a->e + ((size_t)panel * m + (size_t)first) * HVT_PANEL;
        const size_t next = (panel + 1) * HVT_PANEL < a->k ? m * HVT_PANEL : 0;

        load_p(a, panel, t, count, part);
        for (int j = 0; j < rows; j++, e += HVT_PANEL) {
            __builtin_prefetch(e + next);
            __builtin_prefetch(e + next + HVT_PANEL / 2);
            UNROLL
            for (int s = 0; s < count; s++) {
                UNROLL
                for (int v = 0; v < WIDE; v++)
                    sum[j][s] = f_fma(f_load(e + v * VL, VL), part[s][v], sum[j][s]);
            }
        }
    }
    for (int s = 0; s < count; s++)
        for (int j = 0; j < rows; j++)
            a->q[(size_t)(t + s) * m + (size_t)(first + j)] = lanes_sum(sum[j][s]);
}

static void q(const hvt_factor_args *a, int panel, int first, int rows)
{
    BY_COLUMNS(q_columns, a, first, rows);
}

INLINE void join_columns(const hvt_factor_args *a, int panel, int first, int rows, int t, const int count)
{
    const size_t m = (size_t)a->m, at = ((size_t)panel * m + (size_t)first) * HVT_PANEL;
    const float *row = a->q + (size_t)t * m + (size_t)first;
    float *g = a->g + at, *e = a->e + at;
    const F share = f_splat(-a->share);
    F part[SOME][WIDE];

    load_p(a, panel, t, count, part);
    for (int j = 0; j < rows; j++, g += HVT_PANEL, e += HVT_PANEL) {
        UNROLL
        for (int v = 0; v < WIDE; v++) {
            F x = t ? f_load(g + v * VL, VL) : f_zero();

            UNROLL
            for (int s = 0; s < count; s++)
                x = f_fma(part[s][v], f_splat(row[(size_t)s * m + (size_t)j]), x);
            f_store(g + v * VL, x, VL);
            if (t + count == a->r)
                f_store(e + v * VL, f_fma(share, x, f_load(e + v * VL, VL)), VL);
        }
    }
}

static void join(const hvt_factor_args *a, int panel, int first, int rows)
{
    BY_COLUMNS(join_columns, a, panel, first, rows);
}

const hvt_factors HVT_OF_ISA(factors) = {p, q, join};
