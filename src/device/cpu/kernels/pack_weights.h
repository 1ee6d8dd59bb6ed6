/*
 * pack_weights.h - packs weights of some channels and a panel's filters for backward data, for any type of
 * k-group. Included by gemm_tmpl.c and vnni2.h, after the vectors of their set.
 */
#ifndef HVT_PACK_WEIGHTS_H
#define HVT_PACK_WEIGHTS_H

#ifndef WEIGHTS_ROW
#define WEIGHTS_ROW 32 /* k-groups that hold a panel's 32 columns */
#endif

/* Transpose [c][WEIGHTS_ROW], c <= 32, with k k-groups used, to [k][32]. */
static void pack_weights(const float *w, int c, int k, float *out, bool stream)
{
    for (int first = 0; first < c; first += VL) {
        float *block = out + first;
        int n = c - first < VL ? c - first : VL;

        for (int col = 0; col < k; col += VL) {
            F r[VL];

            UNROLL
            for (int i = 0; i < VL; i++)
                r[i] = i < n ? f_load(w + (first + i) * (long)WEIGHTS_ROW + col, VL) : f_splat(0);
            f_transpose(r);
            UNROLL
            for (int i = 0; i < VL; i++)
                if (col + i < k) {
                    if (stream && VL == 16) /* whole lines */
                        f_stream(block + (col + i) * 32L, r[i]);
                    else
                        f_store(block + (col + i) * 32L, r[i], VL);
                }
        }
    }
}

#endif /* HVT_PACK_WEIGHTS_H */
