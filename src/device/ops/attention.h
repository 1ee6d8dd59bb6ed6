/* ops/attention.h - arguments of attention and rotary embeddings. */
#ifndef HVT_DEVICE_OPS_ATTENTION_H
#define HVT_DEVICE_OPS_ATTENTION_H

#include "device/ops/op.h"

/*
 * Scaled dot-product attention: for each window w of an image and each of the `heads` heads h, with rows q,
 * k, v of `width` channels,
 *
 *     y[i] = sum over keys j of P[i,j] v[j]
 *     P[i,.] = softmax over j of scale * q[i] . k[j] + table[bias[h,i,j]] + mask[w,i,j]
 *
 * The rows of q, k and v are `pitch` elements apart, so that they may be columns of one matrix; channels are
 * in head order. Several windows require as many keys as queries. Backward recomputes P.
 */
typedef struct hvt_attention_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, heads, width;
    int windows;       /* of an image */
    int queries, keys; /* per window: pixels of q and y, of k and v */
    float scale;
    /* device memory; NULL: none */
    const int32_t *pixel; /* [windows,queries] pixel of each query and key; NULL: in order */
    const float *table;   /* [elements], if that is not 0 */
    const int32_t *bias;  /* [heads,queries,keys], if there is a table */
    const float *mask;    /* [windows,queries,keys], finite */
    struct {
        const void *x;
        void *dx; /* backward: as x; NULL: not needed */
        int pitch;
        bool add;
    } q, k, v;
    void *y;        /* [n,queries,heads*width], dense */
    const void *dy; /* backward: as y */
    /* backward: as table; NULL: not needed. Element e sums the gradients of biases where[first[e]] to
     * where[first[e+1]-1], in this order, and for each over all images and windows in their order */
    float *dtable;
    int elements;
    const int32_t *first, *where;
    void *ws; /* attention_room() bytes; that function reads no pointer */
} hvt_attention_args;

/*
 * Rotary embeddings of valid images: `vectors` vectors of `width` channels, from channel `first` of a pixel
 * on, are rotated in pairs of channels c and c'. Both are in one block of 2 * apart channels, `apart` from
 * each other:
 *
 *     y[..,c] (+)= own[p,c] * x[..,c] + other[p,c] * x[..,c']      of pixel p
 *
 * Other channels are copied, or added. Backward is the same with gradients and with other[p,c'] for
 * other[p,c]. x may be y unless y is added to.
 */
typedef struct hvt_rotary_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c;
    int first, vectors, width, apart;
    const float *own, *other; /* [pixels,width] device memory */
    const void *x;
    void *y;
    bool add;
} hvt_rotary_args;

static inline int hvt__rotary_partner(const hvt_rotary_args *a, int c)
{
    return c / a->apart % 2 ? c - a->apart : c + a->apart;
}

#endif /* HVT_DEVICE_OPS_ATTENTION_H */
