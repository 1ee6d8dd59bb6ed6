/*
 * Loops over strided elements. Neighbouring dimensions that are one dimension for all tensors are joined
 * first, so that most loops are long. A job is a range of the result's elements.
 */
#include "loops.h"
#include "base_impl.h"

enum { PER_JOB = 1 << 14 }; /* approximate evaluations of the formula */

void hvt__jobs(hvt_device *d, int jobs, hvt_job_fn *job, void *ctx)
{
    if (d->ops->parallel_for && jobs > 1)
        d->ops->parallel_for(d, jobs, job, ctx);
    else
        for (int i = 0; i < jobs; i++)
            job(ctx, i, 0);
}

/* Dimensions of the loops, the innermost last, with a stride of each operand. */
typedef struct nest {
    int n, dim[4];
    ptrdiff_t stride[HVT__OPERANDS][4];
} nest;

typedef struct work {
    const hvt__loops *loops;
    nest kept, summed;
    size_t count, per; /* elements of the result; elements per job */
} work;

/* Appends dimension i, or joins it with the last one. */
static void append(nest *k, const hvt__loops *l, int i)
{
    bool joins = k->n > 0;

    for (int o = 0; o < HVT__OPERANDS && joins; o++)
        joins = k->stride[o][k->n - 1] == l->of[o].stride[i] * l->dim[i] &&
                (int64_t)k->dim[k->n - 1] * l->dim[i] <= INT_MAX;
    k->n += !joins;
    k->dim[k->n - 1] = joins ? k->dim[k->n - 1] * l->dim[i] : l->dim[i];
    for (int o = 0; o < HVT__OPERANDS; o++)
        k->stride[o][k->n - 1] = l->of[o].stride[i];
}

static size_t places(const nest *k, int dims)
{
    size_t n = 1;

    for (int i = 0; i < dims; i++)
        n *= (size_t)k->dim[i];
    return n;
}

/* Adds the offsets of place `at` of the first dimensions. */
static void move(const nest *k, int dims, size_t at, float *x[HVT__OPERANDS])
{
    for (int i = dims - 1; i >= 0; at /= (size_t)k->dim[i--])
        for (int o = 0; o < HVT__OPERANDS; o++)
            if (x[o])
                x[o] += (ptrdiff_t)(at % (size_t)k->dim[i]) * k->stride[o][i];
}

static float element(const hvt__loops *l, float u, float v, float dy)
{
    const bool a = l->formula == HVT__SLOPE_A;

    if (l->formula == HVT__COPY)
        return u;
    if (l->formula == HVT__VALUE)
        switch (l->op) {
        case HVT_ADD:
            return u + v;
        case HVT_SUB:
            return u - v;
        case HVT_MUL:
            return u * v;
        case HVT_MAXIMUM:
            return u > v || u != u ? u : v;
        case HVT_MINIMUM:
            return u < v || u != u ? u : v;
        default:
            return u / v;
        }
    switch (l->op) {
    case HVT_ADD:
        return dy;
    case HVT_SUB:
        return a ? dy : -dy;
    case HVT_MUL:
        return dy * (a ? v : u);
    case HVT_MAXIMUM:
        return u == v ? 0.5f * dy : (u > v) == a ? dy : 0;
    case HVT_MINIMUM:
        return u == v ? 0.5f * dy : (u < v) == a ? dy : 0;
    default:
        return a ? dy / v : -dy * u / (v * v);
    }
}

static float at(const float *x, ptrdiff_t i)
{
    return x ? x[i] : 0;
}

/* Computes a line of n elements of the result. */
static void line(const work *w, float *const x[HVT__OPERANDS], int n)
{
    const nest *k = &w->kept;
    const int last = k->n - 1;
    const ptrdiff_t r = k->stride[HVT__RESULT][last], a = k->stride[HVT__A][last],
                    b = k->stride[HVT__B][last], dy = k->stride[HVT__DY][last];

    for (int i = 0; i < n; i++) {
        float *y = x[HVT__RESULT] + i * r;
        const float value = element(w->loops, x[HVT__A][i * a], at(x[HVT__B], i * b), at(x[HVT__DY], i * dy));

        *y = w->loops->add ? *y + value : value;
    }
}

/* Computes one element of the result, a sum. */
static void sum(const work *w, float *const x[HVT__OPERANDS])
{
    const nest *k = &w->summed;
    const int last = k->n - 1;
    const size_t lines = places(k, last);
    double all = 0;

    for (size_t i = 0; i < lines; i++) {
        float *p[HVT__OPERANDS];

        memcpy(p, x, sizeof p);
        move(k, last, i, p);
        for (int j = 0; j < k->dim[last]; j++)
            all += element(w->loops, p[HVT__A][j * k->stride[HVT__A][last]],
                           at(p[HVT__B], j * k->stride[HVT__B][last]),
                           at(p[HVT__DY], j * k->stride[HVT__DY][last]));
    }
    *x[HVT__RESULT] = (float)(w->loops->add ? *x[HVT__RESULT] + all : all);
}

static void job(void *ctx, int job, int thread)
{
    const work *w = ctx;
    const size_t first = (size_t)job * w->per, end = first + w->per < w->count ? first + w->per : w->count;
    const size_t length = (size_t)w->kept.dim[w->kept.n - 1];

    for (size_t i = first, n; i < end; i += n) {
        float *x[HVT__OPERANDS];

        for (int o = 0; o < HVT__OPERANDS; o++)
            x[o] = w->loops->of[o].x;
        move(&w->kept, w->kept.n, i, x);
        n = w->summed.n ? 1 : length - i % length < end - i ? length - i % length : end - i;
        if (w->summed.n)
            sum(w, x);
        else
            line(w, x, (int)n);
    }
}

void hvt__loops_run(hvt_device *d, hvt__loops loops)
{
    work w = {.loops = &loops};
    size_t each;

    for (int i = 0; i < 4; i++)
        if (loops.dim[i] > 1)
            append(loops.of[HVT__RESULT].stride[i] ? &w.kept : &w.summed, &loops, i);
    if (!w.kept.n)
        w.kept.n = w.kept.dim[0] = 1;
    w.count = places(&w.kept, w.kept.n);
    each = places(&w.summed, w.summed.n);
    w.per = each < PER_JOB ? PER_JOB / each : 1;
    hvt__jobs(d, (int)((w.count + w.per - 1) / w.per), job, &w);
}
