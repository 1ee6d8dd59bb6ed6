/*
 * The cpu device's ops on a matrix [rows, c]: batch norm, bias, loss.
 *
 * A matrix is split into *parts*, depending on its shape alone, in one of two ways.
 *   By rows: a sum is taken part by part, each by whichever thread is free, and the partial sums are merged
 *   in part order in double. A second pass visits the parts in reverse order, since the last ones are still
 *   in the cache.
 *   By columns, if rows are few and wide: each part has all rows of some channels and goes through both
 *   passes while it is in the cache, so that nothing is left to merge.
 * Either way the bits do not depend on threads.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <math.h>
#include <string.h>

typedef struct cut {
    size_t rows; /* real rows */
    size_t step; /* rows of a part; all rows: split by columns */
    int c, cols; /* columns; of a part */
    int parts;
} cut;

static cut by_rows(const hvt_typed *el, hvt_rows r, int c)
{
    enum { LEAST = 64, ELEMENTS = 32768 };
    const size_t rows = (size_t)r.blocks * r.real, unit = 8 * (size_t)el->row_step(c);
    const size_t most = HVT_PART_FLOATS / c < HVT_PARTS ? HVT_PART_FLOATS / c : HVT_PARTS;
    size_t step = ELEMENTS / c > LEAST ? ELEMENTS / c : LEAST;

    step = (rows + most - 1) / most > step ? (rows + most - 1) / most : step;
    step = (step + unit - 1) / unit * unit;
    return (cut){rows, step, c, c, (int)((rows + step - 1) / step)};
}

static cut cut_matrix(const hvt_typed *el, hvt_rows r, int c)
{
    enum { FEW = 512, MANY = 256, LEAST = 64, ELEMENTS = 131072, PARTS = 8 };
    const size_t rows = (size_t)r.blocks * r.real;
    int cols;

    if (rows > FEW || c < MANY || !rows)
        return by_rows(el, r, c);
    cols = (int)(ELEMENTS / rows) < c / PARTS ? (int)(ELEMENTS / rows) : c / PARTS;
    cols = cols < LEAST ? LEAST : cols / LEAST * LEAST;
    return (cut){rows, rows, c, cols, (c + cols - 1) / cols};
}

static bool is_by_columns(const cut *k)
{
    return k->cols < k->c;
}

static hvt_part part_at(const cut *k, int i)
{
    if (is_by_columns(k)) {
        int col = i * k->cols;

        return (hvt_part){0, k->rows, col, k->c - col < k->cols ? k->c - col : k->cols};
    }
    size_t first = (size_t)i * k->step;

    return (hvt_part){first, k->rows - first < k->step ? k->rows : first + k->step, 0, k->c};
}

static hvt_status check_channels(int c, int most)
{
    HVT_CHECK(c <= most, E_UNSUPPORTED, "device cpu sums over rows of at most %d channels, not %d", most, c);
    return HVT_OK;
}

/* ---- batch norm ---- */

typedef struct bn {
    const hvt_elementwise *el;
    const hvt_typed *in; /* the type of x */
    hvt_scratch *s;
    cut k;
    hvt_bn_consts consts;
    const hvt_bn_args *fwd;
    const hvt_bn_grad_args *sums, *bwd; /* arguments of backward's first and second pass */
    bool keep;                          /* the first pass stores dz in dresidual */
} bn;

static bn make_bn(hvt_device *d, hvt_dtype t, hvt_rows rows, int c)
{
    const hvt_cpu *cpu = d->state;
    hvt_scratch *s = cpu->scratch;

    return (bn){.el = cpu->isa->el,
                .in = cpu->isa->el->in[t],
                .s = s,
                .k = cut_matrix(cpu->isa->el->in[t], rows, c),
                .consts = {s->consts[0], s->consts[1], s->consts[2]}};
}

/* where part i stores its sums */
static float *sums_of(const bn *b, int which, int i)
{
    return b->s->part[which] + (size_t)i * b->k.cols;
}

static void stats_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;

    (void)thread;
    b->in->bn_stats(b->fwd->rows, b->k.c, b->fwd->x, part_at(&b->k, i), sums_of(b, 0, i), sums_of(b, 1, i));
}

static void apply_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;

    (void)thread;
    b->in->bn_apply(b->fwd, b->consts, part_at(&b->k, b->k.parts - 1 - job));
}

/* Merge the statistics of `parts` parts from part i on, for columns [col, col + cols). */
static void finish(const bn *b, int parts, const size_t *count, int i, int col, int cols)
{
    double *mean = b->s->sum + col, *m2 = b->s->sum + b->k.c + col;

    b->el->bn_join(parts, count, cols, sums_of(b, 0, i), sums_of(b, 1, i), mean, m2);
    b->el->bn_finish(b->fwd, b->k.rows, mean, m2, col, cols, b->consts);
}

static void train_columns_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;
    const hvt_part p = part_at(&b->k, i);

    stats_job(ctx, i, thread);
    finish(b, 1, &b->k.rows, i, p.col, p.cols);
    b->in->bn_apply(b->fwd, b->consts, p);
}

hvt_status hvt__bn_train_cpu(hvt_device *d, const hvt_bn_args *a)
{
    const hvt_cpu *cpu = d->state;
    size_t count[HVT_PARTS];
    bn b;

    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    b = make_bn(d, a->type, a->rows, a->c);
    b.fwd = a;
    if (is_by_columns(&b.k)) {
        hvt__parallel_for(cpu->pool, b.k.parts, train_columns_job, &b);
        return HVT_OK;
    }
    hvt__parallel_for(cpu->pool, b.k.parts, stats_job, &b);
    for (int i = 0; i < b.k.parts; i++) {
        hvt_part p = part_at(&b.k, i);

        count[i] = p.end - p.first;
    }
    finish(&b, b.k.parts, count, 0, 0, a->c);
    hvt__parallel_for(cpu->pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_infer_cpu(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = d->state;
    bn b;

    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    b = make_bn(d, a->type, a->rows, a->c);
    b.fwd = a;
    for (int c = 0; c < a->c; c++)
        b.consts.scale[c] = a->gamma[c] * (float)(1 / sqrt((double)a->rstd[c] + a->eps));
    hvt__parallel_for(cpu->pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_recompute_cpu(hvt_device *d, const hvt_bn_args *a)
{
    const hvt_cpu *cpu = d->state;
    bn b;

    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    b = make_bn(d, a->type, a->rows, a->c);
    b.fwd = a;
    for (int c = 0; c < a->c; c++)
        b.consts.scale[c] = a->gamma[c] * a->rstd[c];
    hvt__parallel_for(cpu->pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

static void sums_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;

    (void)thread;
    b->in->bn_sums(b->sums, b->consts, part_at(&b->k, i), b->keep, sums_of(b, 0, i), sums_of(b, 1, i));
}

static void dx_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;

    (void)thread;
    b->in->bn_dx(b->bwd, b->consts, part_at(&b->k, b->k.parts - 1 - job));
}

static void backward_columns_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;
    const hvt_part p = part_at(&b->k, i);

    sums_job(ctx, i, thread);
    b->el->bn_grad_finish(b->sums, b->k.rows, 1, sums_of(b, 0, i), sums_of(b, 1, i), p.col, p.cols,
                          b->consts);
    b->in->bn_dx(b->bwd, b->consts, p);
}

hvt_status hvt__bn_backward_cpu(hvt_device *d, const hvt_bn_grad_args *a)
{
    const hvt_cpu *cpu = d->state;
    hvt_bn_grad_args second = *a;
    bn b;

    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    b = make_bn(d, a->type, a->rows, a->c);
    b.sums = a;
    b.bwd = &second;
    b.keep = a->y && a->dresidual && !a->add_residual;
    if (b.keep) { /* then it replaces dy and y in the second pass */
        second.dy = a->dresidual;
        second.y = NULL;
        second.dresidual = NULL;
    }
    for (int c = 0; c < a->c; c++)
        b.consts.scale[c] = a->gamma[c] * a->rstd[c];
    if (is_by_columns(&b.k)) {
        hvt__parallel_for(cpu->pool, b.k.parts, backward_columns_job, &b);
        return HVT_OK;
    }
    hvt__parallel_for(cpu->pool, b.k.parts, sums_job, &b);
    b.el->bn_grad_finish(a, b.k.rows, b.k.parts, sums_of(&b, 0, 0), sums_of(&b, 1, 0), 0, a->c, b.consts);
    hvt__parallel_for(cpu->pool, b.k.parts, dx_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_update_cpu(hvt_device *d, const hvt_step_state *step, int c, float rate, float scale,
                              const float *moments, float *run_mean, float *run_var)
{
    const hvt_cpu *cpu = d->state;

    if (step->stop)
        return HVT_OK;
    cpu->isa->el->bn_running((size_t)c, rate, scale, moments, run_mean);
    cpu->isa->el->bn_running((size_t)c, rate, scale, moments + c, run_var);
    return HVT_OK;
}

/* ---- bias ---- */

typedef struct bias {
    const hvt_typed *in;
    hvt_rows rows;
    cut k;
    const float *b;
    const void *dy;
    void *y;
    float *part;
} bias;

static void bias_forward_job(void *ctx, int i, int thread)
{
    const bias *b = ctx;

    (void)thread;
    b->in->bias(b->rows, b->k.c, b->b, b->y, part_at(&b->k, i));
}

hvt_status hvt__bias_forward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    const hvt_cpu *cpu = d->state;
    bias job = {.in = cpu->isa->el->in[t], .rows = rows, .b = b, .y = y};

    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = by_rows(job.in, rows, c);
    hvt__parallel_for(cpu->pool, job.k.parts, bias_forward_job, &job);
    return HVT_OK;
}

static void bias_backward_job(void *ctx, int i, int thread)
{
    const bias *b = ctx;

    (void)thread;
    b->in->sums(b->rows, b->k.c, b->dy, part_at(&b->k, i), b->part + (size_t)i * b->k.c);
}

hvt_status hvt__bias_backward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = d->state;
    bias job = {.in = cpu->isa->el->in[t], .rows = rows, .dy = dy, .part = cpu->scratch->part[0]};

    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = by_rows(job.in, rows, c);
    hvt__parallel_for(cpu->pool, job.k.parts, bias_backward_job, &job);
    for (int i = 0; i < c; i++) {
        double sum = 0;

        for (int p = 0; p < job.k.parts; p++)
            sum += job.part[(size_t)p * c + i];
        db[i] = (float)sum;
    }
    return HVT_OK;
}

/* ---- loss ---- */

typedef struct xent {
    const hvt_typed *in;
    const hvt_xent_args *a;
    size_t rows, step;
    float scale;
} xent;

static void xent_job(void *ctx, int job, int thread)
{
    const xent *x = ctx;
    const hvt_xent_args *a = x->a;
    size_t first = (size_t)job * x->step, end = first + x->step < x->rows ? first + x->step : x->rows;

    (void)thread;
    for (size_t i = first; i < end; i++)
        if (i % a->rows.block < (size_t)a->rows.real)
            x->in->xent_row(a, i, x->scale);
        else if (a->dlogits)
            memset(hvt__at(a->dlogits, a->type, i * a->classes), 0, a->classes * hvt_dtype_size(a->type));
}

hvt_status hvt__xent_cpu(hvt_device *d, const hvt_xent_args *a)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = d->state;
    xent x = {.in = cpu->isa->el->in[a->type],
              .a = a,
              .rows = (size_t)a->rows.blocks * a->rows.block,
              .step = 1 + 2048 / (size_t)a->classes,
              .scale = a->scale ? *a->scale : 1};
    double sum = 0, top1 = 0, top5 = 0;

    hvt__parallel_for(cpu->pool, (int)((x.rows + x.step - 1) / x.step), xent_job, &x);
    for (size_t i = 0; i < x.rows; i++) {
        if (i % a->rows.block >= (size_t)a->rows.real)
            continue;
        sum += a->loss[i];
        top1 += a->label_rank[i] < 1;
        top5 += a->label_rank[i] < 5;
    }
    a->sums[0] = (float)sum;
    a->sums[1] = (float)top1;
    a->sums[2] = (float)top5;
    return HVT_OK;
}
