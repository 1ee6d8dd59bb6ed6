/*
 * Collectives that reduce: allreduce and reduce_scatter.
 *
 * Every rank reduces one part of the vector. It receives that part from all others, a window at a time, folds
 * the ranks' values along the fixed tree and rounds once. An allreduce then sends the parts to all. Sums that
 * the comm itself adds the same way use the comm, which is faster.
 *
 * The tree is walked like a binary counter: value r merges with as many earlier sums as r has trailing 1
 * bits. The remaining sums merge at the end, lowest first, so that an odd last one moves up.
 */
#include "base_impl.h"
#include "coll.h"

#include <math.h>

enum {
    CHUNK = 512, /* elements folded at a time, which fit in the cache */
    LEVELS = 32, /* maximum number of sums that wait for their right halves */
    MOST = 8     /* bytes of the widest type used for folding */
};

size_t hvt__coll_window = (size_t)4 << 20;

/* True if the comm can add these and rounds as documented. */
static bool is_comm_sum(const hvt__call *k)
{
    bool plain = k->how == HVT_SUM && k->scale.pre == 1 && k->scale.post == 1;

    if (k->action != HVT__CALL_ALLREDUCE)
        return false;
    if (k->type == HVT_F32)
        return k->how == HVT_SUM || k->how == HVT_AVERAGE;
    return plain && (k->type == HVT_F16 || k->type == HVT_BF16);
}

/* Offset of [LEVELS][CHUNK] numbers after the windows. */
static size_t sums_at(const hvt__work *w)
{
    return ((size_t)w->c->world->size * w->window * w->bytes + 63) / 64 * 64;
}

size_t hvt__coll_room(hvt__work *w)
{
    size_t most = hvt__coll_window / w->bytes / (size_t)w->c->world->size;

    if (!hvt__call_reduces(w->k) || is_comm_sum(w->k))
        return 0;
    for (int r = 0; r < w->c->world->size; r++)
        if (hvt__part(w->c, w->k, r) > w->longest)
            w->longest = hvt__part(w->c, w->k, r);
    w->window = w->longest < most ? w->longest : most ? most : 1;
    return sums_at(w) + (size_t)LEVELS * CHUNK * MOST;
}

/* Converts x to an integer: truncated, saturated to [least, most]; NaN becomes 0. */
static int64_t whole(double x, int64_t least, int64_t most)
{
    if (isnan(x))
        return 0;
    if (x <= (double)least)
        return least;
    return x >= (double)most ? most : (int64_t)x;
}

#define INTEGERS(X)                                                                                          \
    X(HVT_I8, int8_t, INT8_MIN, INT8_MAX)                                                                    \
    X(HVT_U8, uint8_t, 0, UINT8_MAX)                                                                         \
    X(HVT_I32, int32_t, INT32_MIN, INT32_MAX)                                                                \
    X(HVT_I64, int64_t, INT64_MIN, INT64_MAX)

static void load_integers(hvt_dtype t, const void *src, size_t n, double pre, int64_t *to)
{
    switch (t) {
#define X(type, number, least, most)                                                                         \
    case type:                                                                                               \
        for (size_t i = 0; i < n; i++) {                                                                     \
            int64_t v = ((const number *)src)[i];                                                            \
                                                                                                             \
            to[i] = pre == 1 ? v : whole(pre * (double)v, INT64_MIN, INT64_MAX);                             \
        }                                                                                                    \
        break;
        INTEGERS(X)
#undef X
    default:
        break;
    }
}

static void store_integers(hvt_dtype t, const int64_t *v, size_t n, int64_t divisor, double post, void *dst)
{
    switch (t) {
#define X(type, number, least, most)                                                                         \
    case type:                                                                                               \
        for (size_t i = 0; i < n; i++) {                                                                     \
            int64_t x = divisor == 1 ? v[i] : v[i] / divisor;                                                \
                                                                                                             \
            ((number *)dst)[i] = (number)(post == 1 ? x : whole(post * (double)x, least, most));             \
        }                                                                                                    \
        break;
        INTEGERS(X)
#undef X
    default:
        break;
    }
}

void hvt__scale_f32(float *x, size_t n, double by)
{
    HVT_FLOATS;

    for (size_t i = 0; i < n && by != 1; i++)
        x[i] = (float)((double)x[i] * by);
}

static void scale_f64(double *x, size_t n, double by)
{
    for (size_t i = 0; i < n && by != 1; i++)
        x[i] *= by;
}

static double factor_after(const hvt__call *k, int size)
{
    return k->how == HVT_AVERAGE ? k->scale.post / size : k->scale.post;
}

hvt_status hvt__coll_load(const hvt__work *w, const void *src, size_t n, void *to)
{
    hvt_device *d = w->c->dev;
    double pre = w->k->scale.pre;

    if (hvt__is_narrow_float(w->k->type)) {
        HVT_TRY(d->ops->vector.cast(d, n, 1, src, w->k->type, to, HVT_F32));
        hvt__scale_f32(to, n, pre);
    } else if (w->k->type == HVT_F64) {
        memmove(to, src, n * sizeof(double)); /* may be in place */
        scale_f64(to, n, pre);
    } else {
        load_integers(w->k->type, src, n, pre, to);
    }
    return HVT_OK;
}

hvt_status hvt__coll_store(const hvt__work *w, void *sum, size_t n, void *dst)
{
    hvt_device *d = w->c->dev;
    int size = w->c->world->size;

    if (hvt__is_narrow_float(w->k->type)) {
        hvt__scale_f32(sum, n, factor_after(w->k, size));
        return d->ops->vector.cast(d, n, 1, sum, HVT_F32, dst, w->k->type);
    }
    if (w->k->type == HVT_F64) {
        scale_f64(sum, n, factor_after(w->k, size));
        memcpy(dst, sum, n * sizeof(double));
    } else {
        store_integers(w->k->type, sum, n, w->k->how == HVT_AVERAGE ? size : 1, w->k->scale.post, dst);
    }
    return HVT_OK;
}

/* a = a (+) b, for each type. A value that does not equal itself is a NaN, which is kept. */
#define FOLD(name, number, sum, product)                                                                     \
    static void name(hvt_reduction how, size_t n, number *a, const number *b)                                \
    {                                                                                                        \
        switch (how) {                                                                                       \
        case HVT_SUM:                                                                                        \
        case HVT_AVERAGE:                                                                                    \
            for (size_t i = 0; i < n; i++)                                                                   \
                a[i] = sum;                                                                                  \
            break;                                                                                           \
        case HVT_MIN:                                                                                        \
            for (size_t i = 0; i < n; i++)                                                                   \
                a[i] = b[i] < a[i] || b[i] != b[i] ? b[i] : a[i];                                            \
            break;                                                                                           \
        case HVT_MAX:                                                                                        \
            for (size_t i = 0; i < n; i++)                                                                   \
                a[i] = b[i] > a[i] || b[i] != b[i] ? b[i] : a[i];                                            \
            break;                                                                                           \
        case HVT_PRODUCT:                                                                                    \
            for (size_t i = 0; i < n; i++)                                                                   \
                a[i] = product;                                                                              \
            break;                                                                                           \
        case HVT_ADASUM: /* in adasum.c */                                                                   \
        case HVT_AND:    /* refused earlier */                                                               \
            break;                                                                                           \
        }                                                                                                    \
    }

FOLD(fold_f32, float, a[i] + b[i], a[i] * b[i])
FOLD(fold_f64, double, a[i] + b[i], a[i] * b[i])
FOLD(fold_i64, int64_t, (int64_t)((uint64_t)a[i] + (uint64_t)b[i]),
     (int64_t)((uint64_t)a[i] * (uint64_t)b[i]))

static void fold(const hvt__call *k, size_t n, void *a, const void *b)
{
    if (hvt__is_narrow_float(k->type))
        fold_f32(k->how, n, a, b);
    else if (k->type == HVT_F64)
        fold_f64(k->how, n, a, b);
    else
        fold_i64(k->how, n, a, b);
}

/* Fold n <= CHUNK values of every rank: mine at `mine`, the others' from `theirs` in the first window on. */
static hvt_status fold_chunk(hvt__work *w, size_t n, const char *theirs, const void *mine, void *dst)
{
    HVT_FLOATS;
    char *sums = w->room + sums_at(w);
    const size_t level = (size_t)CHUNK * MOST;
    int top = 0;

    for (int r = 0; r < w->c->world->size; r++) {
        const void *from = r == w->c->world->rank ? mine : theirs + (size_t)r * w->window * w->bytes;

        HVT_TRY(hvt__coll_load(w, from, n, sums + top * level));
        for (int ones = r; ones & 1; ones >>= 1, top--)
            fold(w->k, n, sums + (top - 1) * level, sums + top * level);
        top++;
    }
    for (; top > 1; top--)
        fold(w->k, n, sums + (top - 2) * level, sums + (top - 1) * level);
    return hvt__coll_store(w, sums, n, dst);
}

/* Returns the elements of rank r's part in the window at `at`. */
static size_t inside(const hvt__work *w, int r, size_t at)
{
    size_t count = w->first[r + 1] - w->first[r], left = count > at ? count - at : 0;

    return left < w->window ? left : w->window;
}

/* Reduce my part of all ranks' `in` to `out`. */
static hvt_status reduce_parts(hvt__work *w, const char *in, char *out)
{
    int me = w->c->world->rank, size = w->c->world->size;
    size_t bytes = w->bytes;

    w->first[0] = 0;
    for (int r = 0; r < size; r++)
        w->first[r + 1] = w->first[r] + hvt__part(w->c, w->k, r);
    for (size_t at = 0; at < w->longest; at += w->window) {
        size_t n = inside(w, me, at);
        const char *mine = in + (w->first[me] + at) * bytes;

        for (int r = 0; r < size; r++)
            if (r != me) {
                hvt__work_recv(w, w->room + (size_t)r * w->window * bytes, n * bytes, r, false);
                hvt__work_send(w, in + (w->first[r] + at) * bytes, inside(w, r, at) * bytes, r, false);
            }
        HVT_TRY(hvt__work_exchange(w));
        for (size_t i = 0; i < n; i += CHUNK)
            HVT_TRY(fold_chunk(w, n - i < CHUNK ? n - i : CHUNK, w->room + i * bytes, mine + i * bytes,
                               out + (at + i) * bytes));
    }
    return HVT_OK;
}

static hvt_status sum_by_comm(hvt__work *w, const void *in)
{
    hvt_comm *c = w->c;
    const hvt__call *k = w->k;

    if (in != k->out && k->count)
        HVT_TRY(c->dev->ops->memory.copy(c->dev, k->out, in, k->count * w->bytes));
    if (k->type == HVT_F32)
        hvt__scale_f32(k->out, k->count, k->scale.pre);
    HVT_TRY(hvt__queue_run_now(
        c, &(hvt__op){.kind = HVT__ALLREDUCE, .buf = k->out, .count = k->count, .type = k->type}));
    if (k->type == HVT_F32)
        hvt__scale_f32(k->out, k->count, factor_after(k, c->world->size));
    return HVT_OK;
}

hvt_status hvt__coll_reduce(hvt__work *w)
{
    const hvt__call *k = w->k;
    const void *in = k->in ? k->in : k->out;

    if (is_comm_sum(k))
        return sum_by_comm(w, in);
    if (k->action == HVT__CALL_REDUCE_SCATTER)
        return reduce_parts(w, in, k->out);
    HVT_TRY(reduce_parts(
        w, in, (char *)k->out + hvt__cut(k->count, w->c->world->rank, w->c->world->size) * w->bytes));
    return hvt__coll_move(w);
}
