/*
 * Convolutions of few channels that need no gradient of x, as in a model's first layer. A row of S taps of C
 * channels becomes one tap of S*C channels, if x is copied so that the inputs of an output column's taps are
 * adjacent:
 *
 *     x'[y, ox, s*C + c] = x[y, ox*stride - left + s*dilation, c], or 0 outside the image
 *
 * and x' is convolved directly with R x 1 taps and only a vertical stride. Weights and their gradient,
 * [K/32][r][s][C][32], stay unchanged. (Zen 3, 16 images, GF/s without and with it: 3 -> 64, 7x7/2 at 224x224
 * forward 52 and 65, backward weights 33 and 42; 3 -> 32, 3x3/2 30 and 33, 13 and 24.)
 */
#include "conv_impl.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

enum { MOST_CHANNELS = 32 }; /* of x' */

typedef struct stem {
    conv_op op;
    conv_op *wide; /* of x' */
} stem;

static const conv_op *wide_of(const conv_op *op)
{
    return ((const stem *)op)->wide;
}

/* True if the shape suits. If all filters fit in one tile, x' is reused too little: 3 -> 16, 3x3 at 32x32
 * took a tenth longer on AVX2. */
static bool suits(const conv_op *op)
{
    return op->no_dx && op->blocks == 1 && !op->depthwise && op->s > 1 && op->s * op->c <= MOST_CHANNELS &&
           op->k > 2 * op->kern->vl && op->ow <= op->w && (long)op->r * op->oh * op->ow <= INT_MAX / 2;
}

static hvt_status plan(conv_op *op)
{
    const int c = op->s * op->c;
    conv_op *wide = calloc(1, hvt__conv_direct.size);

    HVT_CHECK(wide, E_MEM, "no memory for a convolution");
    ((stem *)op)->wide = wide;
    *wide = *op;
    wide->algorithm = &hvt__conv_direct;
    wide->depth = wide->c = wide->x_row = c;
    wide->w = op->ow;
    wide->taps = op->r;
    wide->s = wide->stride_w = wide->dilation_w = 1;
    wide->left = 0;
    wide->even = false;
    wide->products = (long)op->r * op->oh * op->ow; /* upper bound */
    wide->x_pixel = c * (op->hwn ? (long)op->n : 1);
    wide->x_image = c * (op->hwn ? 1 : (long)op->h * op->ow);
    return hvt__conv_direct.plan(wide);
}

static void free_stem(conv_op *op)
{
    stem *s = (stem *)op;

    if (s->wide)
        hvt__conv_direct.free(s->wide);
    free(s->wide);
}

static size_t wide_bytes(const conv_op *op)
{
    const size_t elements = (size_t)op->h * (size_t)op->n * (size_t)op->ow * (size_t)wide_of(op)->c;

    return (elements * hvt_dtype_size(op->type) + 63) / 64 * 64;
}

static size_t bytes(const conv_op *op)
{
    return wide_bytes(op) + hvt__conv_direct.bytes(wide_of(op));
}

static void describe(const conv_op *op, char *ret_text, size_t room)
{
    const int n = snprintf(ret_text, room, "%d taps of a row as channels; ", op->s);

    hvt__conv_direct.describe(wide_of(op), ret_text + n, room - (size_t)n);
}

typedef struct widening {
    const conv_op *op;
    int real;
    const char *x;
    char *to;
} widening;

/* Copies some bytes of a pixel for each image. */
static inline __attribute__((always_inline)) void copy(const widening *g, const char *from, char *to,
                                                       const size_t bytes)
{
    const size_t size = hvt_dtype_size(g->op->type), step = size * (size_t)g->op->x_image,
                 to_step = size * (size_t)wide_of(g->op)->x_image;

    for (int i = 0; i < g->real; i++, from += step, to += to_step)
        memcpy(to, from, bytes);
}

static void copy_some(const widening *g, const char *from, char *to, size_t bytes)
{
    if (bytes == 12) /* three floats: a call of memcpy() takes as long as copying a dozen */
        copy(g, from, to, 12);
    else if (bytes == 6)
        copy(g, from, to, 6);
    else
        copy(g, from, to, bytes);
}

static void clear(const widening *g, char *to, size_t bytes)
{
    const size_t step = hvt_dtype_size(g->op->type) * (size_t)wide_of(g->op)->x_image;

    for (int i = 0; i < g->real; i++, to += step)
        memset(to, 0, bytes);
}

/* job = a line of x. Adjacent taps of an image are copied together. */
static void widen_job(void *ctx, int y, int thread)
{
    const widening *g = ctx;
    const conv_op *op = g->op;
    const size_t size = hvt_dtype_size(op->type), tap = size * (size_t)op->c;
    const int together = !op->hwn && op->dilation_w == 1 ? op->s : 1;

    for (int ox = 0; ox < op->ow; ox++) {
        char *to = g->to + size * ((size_t)y * (size_t)op->ow + (size_t)ox) * (size_t)wide_of(op)->x_pixel;

        for (int s = 0; s < op->s; s += together, to += (size_t)together * tap) {
            const int x = ox * op->stride_w - op->left + s * op->dilation_w, left = x < 0 ? -x : 0,
                      before = left < together ? left : together, inside = op->w - x,
                      end = inside < before     ? before
                            : inside < together ? inside
                                                : together;

            if (before > 0)
                clear(g, to, (size_t)before * tap);
            if (end > before)
                copy_some(
                    g, g->x + size * ((size_t)y * (size_t)op->w + (size_t)(x + before)) * (size_t)op->x_pixel,
                    to + (size_t)before * tap, (size_t)(end - before) * tap);
            if (end < together)
                clear(g, to + (size_t)end * tap, (size_t)(together - end) * tap);
        }
    }
}

/* Write x' to ws; returns the rest of ws. */
static void *widen(const conv_op *op, int real, const void *x, void *ws)
{
    widening g = {op, real, x, ws};

    hvt__parallel_for(op->pool, op->h, widen_job, &g);
    return (char *)ws + wide_bytes(op);
}

static void forward(const conv_op *op, int real, const void *x, const void *w, void *y, void *ws)
{
    void *room = widen(op, real, x, ws);

    hvt__conv_direct.forward(wide_of(op), real, ws, w, y, room);
}

static void backward_w(const conv_op *op, int real, const void *x, const void *dy, float *dw, void *ws)
{
    void *room = widen(op, real, x, ws);

    hvt__conv_direct.backward_w(wide_of(op), real, ws, dy, dw, room);
}

const conv_algorithm hvt__conv_stem = {
    .size = sizeof(stem),
    .suits = suits,
    .plan = plan,
    .free = free_stem,
    .bytes = bytes,
    .describe = describe,
    .forward = forward,
    .backward_w = backward_w,
};
