/*
 * The cpu device's ops on a matrix [rows, c]: batch norm, bias, loss.
 *
 * A matrix is split into *parts* by its shape. Any free thread sums a part, and partial sums are merged in
 * the order of parts in double, so the bits do not depend on threads. A part is some whole rows, because
 * memory is read fastest sequentially (pieces of 1 KiB on Zen 3: half as fast). In a second pass each thread
 * visits its parts in reverse order, since the last ones are still in its cache. If rows are few and wide, a
 * part is some columns of all of them, and both passes run while it is in the cache.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "norm_rows.h"

#include <math.h>
#include <stdatomic.h>

typedef struct cut {
    size_t rows;   /* valid rows */
    size_t step;   /* rows per part */
    int c, cols;   /* columns; columns per part */
    int row_parts; /* parts with the same columns: 1, or all */
    int parts;
} cut;

/* Cuts a matrix into parts of whole rows. */
static cut cut_rows(const hvt_typed *el, hvt_rows r, int c)
{
    enum { LEAST = 16, FEW = 8192, MANY = 32768 /* elements per part */, PARTS = 64 };
    const size_t rows = (size_t)r.blocks * r.real, unit = 8 * (size_t)el->row_step(c),
                 share = rows * (size_t)c / PARTS,
                 elements = share < FEW    ? FEW
                            : share < MANY ? share
                                           : MANY;
    const size_t most = HVT_PART_FLOATS / c < HVT_PARTS ? HVT_PART_FLOATS / c : HVT_PARTS;
    size_t step = elements / c > LEAST ? elements / c : LEAST;
    cut k = {.rows = rows, .c = c, .cols = c};

    step = (rows + most - 1) / most > step ? (rows + most - 1) / most : step;
    k.step = (step + unit - 1) / unit * unit;
    k.row_parts = rows ? (int)((rows + k.step - 1) / k.step) : 1;
    k.parts = k.row_parts;
    return k;
}

static cut cut_matrix(const hvt_typed *el, hvt_rows r, int c)
{
    enum { FEW = 512, WIDE = 256, LEAST = 64, ELEMENTS = 131072, PARTS = 8 };
    const size_t rows = (size_t)r.blocks * r.real;
    int cols;

    if (rows > FEW || c < WIDE || !rows)
        return cut_rows(el, r, c);
    cols = (int)(ELEMENTS / rows) < c / PARTS ? (int)(ELEMENTS / rows) : c / PARTS;
    cols = cols < LEAST ? LEAST : cols / LEAST * LEAST;
    return (cut){rows, rows, c, cols, 1, (c + cols - 1) / cols};
}

static hvt_part part_at(const cut *k, int i)
{
    const int col = i / k->row_parts * k->cols;
    const size_t first = (size_t)(i % k->row_parts) * k->step;

    return (hvt_part){first, k->rows - first < k->step ? k->rows : first + k->step, col,
                      k->c - col < k->cols ? k->c - col : k->cols};
}

/* Returns the part for job `job` of a second pass: each thread does the parts of its first pass in reverse
 * order. */
static int second_visit(const cut *k, const hvt_thread_pool *pool, int job)
{
    const int64_t threads = hvt__thread_pool_size(pool), parts = k->parts,
                  owner = (threads * (job + 1) + parts - 1) / parts - 1;

    return (int)(parts * owner / threads + parts * (owner + 1) / threads) - 1 - job;
}

static hvt_status check_channels(int c, int most)
{
    HVT_CHECK(c <= most, E_UNSUPPORTED, "device cpu sums over rows of at most %d channels, not %d", most, c);
    return HVT_OK;
}

/* ---- batch norm ---- */

typedef struct bn {
    const hvt_elementwise *el;
    const hvt_typed *in; /* functions for the type of x */
    hvt_thread_pool *pool;
    hvt_scratch *s;
    cut k;
    hvt_bn_consts consts;
    const hvt_bn_args *fwd;
    const hvt_bn_grad_args *sums, *bwd; /* arguments of backward's first and second pass */
    const hvt_bn_grad_args
        *mapped;     /* backward's, if a function follows that the passes do not compute; else NULL */
    bool keep;       /* the first pass stores dz in dresidual */
    bool moments;    /* no second pass: forward only computes moments */
    bool together;   /* all threads merge sums after the first pass */
    atomic_int left; /* parts without sums so far */
} bn;

static hvt_status begin(hvt_device *d, hvt_dtype t, hvt_rows rows, int c, bn *ret_bn)
{
    enum { MANY = 16384 }; /* maximum sums that one thread merges while the others wait */
    const hvt_cpu *cpu = hvt__cpu(d);
    const hvt_typed *in = cpu->isa->el->in[t];
    hvt_scratch *s = cpu->scratch;
    cut k;

    HVT_TRY(check_channels(c, HVT_CHANNELS));
    k = cut_matrix(in, rows, c);
    *ret_bn = (bn){.el = cpu->isa->el,
                   .in = in,
                   .pool = cpu->pool,
                   .s = s,
                   .k = k,
                   .consts = {s->consts[0], s->consts[1], s->consts[2]},
                   .together = (long)k.row_parts * c > MANY && k.row_parts > 1,
                   .left = k.parts};
    return HVT_OK;
}

/* Returns the address of part i's sums, [parts of the same columns][c]. */
static float *sums_of(const bn *b, int which, int i)
{
    const hvt_part p = part_at(&b->k, i);

    return b->s->part[which] + (size_t)(i % b->k.row_parts) * p.cols + p.col;
}

/* Merge all parts' sums of `cols` columns from `col` on. */
static void merge(const bn *b, int col, int cols)
{
    const float *sum = b->s->part[0] + col, *dot = b->s->part[1] + col;
    double *mean = b->s->sum + col, *m2 = b->s->sum + b->k.c + col;

    if (b->sums) {
        b->el->bn_grad_finish(b->sums, b->k.rows, b->k.row_parts, (size_t)b->k.c, sum, dot, col, cols,
                              b->consts);
        return;
    }
    b->el->bn_join(b->k.rows ? b->k.row_parts : 0, (size_t)b->k.c, b->k.step, b->k.rows, cols, sum, dot, mean,
                   m2);
    if (!b->moments) {
        b->el->bn_finish(b->fwd, b->k.rows, mean, m2, col, cols, b->consts);
        return;
    }
    for (int c = 0; c < cols; c++) {
        b->fwd->moments[col + c] = (float)mean[c];
        b->fwd->moments[b->k.c + col + c] = (float)m2[c];
    }
}

enum { MERGED = 64 }; /* columns per job */

static void merge_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;

    merge(b, i * MERGED, b->k.c - i * MERGED < MERGED ? b->k.c - i * MERGED : MERGED);
}

/* Called after part i's sums are done. */
static void finish_part(bn *b, int i)
{
    const hvt_part p = part_at(&b->k, i);

    if (b->k.row_parts == 1)
        merge(b, p.col, p.cols);
    else if (!b->together && atomic_fetch_sub(&b->left, 1) == 1)
        merge(b, 0, b->k.c);
}

/* Run the pass that sums, and merge the sums. */
static void run_sums(bn *b, hvt_job_fn *job)
{
    hvt__parallel_for(b->pool, b->k.parts, job, b);
    if (b->together)
        hvt__parallel_for(b->pool, (b->k.c + MERGED - 1) / MERGED, merge_job, b);
}

static void stats_job(void *ctx, int i, int thread)
{
    bn *b = ctx;

    b->in->bn_stats(b->fwd->rows, b->k.c, b->fwd->x, part_at(&b->k, i), sums_of(b, 0, i), sums_of(b, 1, i));
    finish_part(b, i);
}

static void apply(const hvt_bn_args *a, const hvt_typed *in, hvt_bn_consts k, hvt_part p)
{
    if (a->map)
        in->bn_map[a->map->f](a, k, p);
    else
        in->bn_apply(a, k, p);
}

void hvt__bn_rows(const hvt_bn_args *a, const hvt_typed *in, const float *scale, size_t at, int rows, int col,
                  int cols, int ld, void *out)
{
    const int most = cols == ld || in->row_step(ld) == 1 ? rows : 1;

    for (int row = 0; row < rows; row += most) {
        const size_t first = (size_t)row * (size_t)ld;
        const hvt_bn_args part = {.rows = {1, most, most},
                                  .c = most > 1 ? ld : cols,
                                  .x = hvt__at(a->x, a->type, at + first),
                                  .mean = a->mean + col,
                                  .beta = a->beta + col,
                                  .relu = a->relu,
                                  .map = a->map,
                                  .y = hvt__at(out, a->type, first)};

        apply(&part, in, (hvt_bn_consts){.scale = (float *)(uintptr_t)scale + col},
              (hvt_part){0, (size_t)most, 0, cols});
    }
}

static void apply_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;

    apply(b->fwd, b->in, b->consts, part_at(&b->k, second_visit(&b->k, b->pool, job)));
}

static void train_columns_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;

    stats_job(ctx, i, thread);
    apply(b->fwd, b->in, b->consts, part_at(&b->k, i));
}

hvt_status hvt__bn_train_cpu(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    bn b;

    HVT_TRY(begin(d, a->type, a->rows, a->c, &b));
    b.fwd = a;
    run_sums(&b, a->y && b.k.row_parts == 1 ? train_columns_job : stats_job);
    if (a->y && b.k.row_parts > 1)
        hvt__parallel_for(b.pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_moments_cpu(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    bn b;

    HVT_TRY(begin(d, a->type, a->rows, a->c, &b));
    b.fwd = a;
    b.moments = true;
    run_sums(&b, stats_job);
    return HVT_OK;
}

hvt_status hvt__bn_infer_cpu(hvt_device *d, const hvt_bn_args *a)
{
    HVT_FLOATS;
    bn b;

    HVT_TRY(begin(d, a->type, a->rows, a->c, &b));
    b.fwd = a;
    for (int c = 0; c < a->c; c++)
        b.consts.scale[c] =
            a->gamma[c] * (a->is_variance ? (float)(1 / sqrt((double)a->rstd[c] + a->eps)) : a->rstd[c]);
    hvt__parallel_for(b.pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

static void sums_job(void *ctx, int i, int thread)
{
    bn *b = ctx;
    const hvt_part p = part_at(&b->k, i);

    if (b->mapped)
        b->in->bn_slope[b->mapped->map->f](b->mapped, b->consts, p);
    b->in->bn_sums(b->sums, b->consts, p, b->keep, sums_of(b, 0, i), sums_of(b, 1, i));
    finish_part(b, i);
}

static void dx_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;

    b->in->bn_dx(b->bwd, b->consts, part_at(&b->k, second_visit(&b->k, b->pool, job)));
}

static void backward_columns_job(void *ctx, int i, int thread)
{
    const bn *b = ctx;

    sums_job(ctx, i, thread);
    b->in->bn_dx(b->bwd, b->consts, part_at(&b->k, i));
}

/* Set up both passes of backward; second: arguments of the second one. */
static hvt_status begin_backward(hvt_device *d, const hvt_bn_grad_args *a, hvt_bn_grad_args *second, bn *b)
{
    HVT_TRY(begin(d, a->type, a->rows, a->c, b));
    *second = *a;
    b->sums = a;
    b->bwd = second;
    if (a->map && !hvt__is_clamp(a->map)) { /* dz replaces dy in both passes */
        second->map = NULL;
        second->dy = a->dz;
        b->sums = second;
        b->mapped = a;
    }
    b->keep = a->y && a->dresidual && !a->add_residual;
    if (b->keep) { /* dz replaces dy and y in the second pass */
        second->dy = a->dresidual;
        second->y = NULL;
        second->dresidual = NULL;
    }
    for (int c = 0; c < a->c; c++)
        b->consts.scale[c] = a->gamma[c] * a->rstd[c];
    return HVT_OK;
}

hvt_status hvt__bn_sums_cpu(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    hvt_bn_grad_args second;
    bn b;

    HVT_TRY(begin_backward(d, a, &second, &b));
    run_sums(&b, sums_job);
    return HVT_OK;
}

hvt_status hvt__bn_dx_cpu(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    hvt_bn_grad_args second;
    bn b;

    HVT_TRY(begin_backward(d, a, &second, &b));
    for (int c = 0; c < a->c; c++) {
        b.consts.share[c] = a->share[c];
        b.consts.slope[c] = a->slope[c] * a->rstd[c];
    }
    hvt__parallel_for(b.pool, b.k.parts, dx_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_backward_cpu(hvt_device *d, const hvt_bn_grad_args *a)
{
    HVT_FLOATS;
    hvt_bn_grad_args second;
    bn b;

    HVT_TRY(begin_backward(d, a, &second, &b));
    run_sums(&b, b.k.row_parts == 1 ? backward_columns_job : sums_job);
    if (b.k.row_parts > 1)
        hvt__parallel_for(b.pool, b.k.parts, dx_job, &b);
    return HVT_OK;
}

hvt_status hvt__bn_update_cpu(hvt_device *d, const hvt_bn_update_args *a)
{
    const hvt_elementwise *el = hvt__cpu(d)->isa->el;

    if (a->step->stop)
        return HVT_OK;
    el->bn_running((size_t)a->c, a->rate, a->scale, a->moments, a->mean);
    el->bn_running((size_t)a->c, a->rate, a->scale, a->moments + a->c, a->var);
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

    b->in->bias(b->rows, b->k.c, b->b, b->y, part_at(&b->k, i));
}

hvt_status hvt__bias_forward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    const hvt_cpu *cpu = hvt__cpu(d);
    bias job = {.in = cpu->isa->el->in[t], .rows = rows, .b = b, .y = y};

    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = cut_rows(job.in, rows, c);
    hvt__parallel_for(cpu->pool, job.k.parts, bias_forward_job, &job);
    return HVT_OK;
}

static void bias_backward_job(void *ctx, int i, int thread)
{
    const bias *b = ctx;

    b->in->sums(b->rows, b->k.c, b->dy, part_at(&b->k, i), b->part + (size_t)i * b->k.c);
}

hvt_status hvt__bias_backward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = hvt__cpu(d);
    bias job = {.in = cpu->isa->el->in[t], .rows = rows, .dy = dy, .part = cpu->scratch->part[0]};

    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = cut_rows(job.in, rows, c);
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

    for (size_t i = first; i < end; i++)
        if (i % a->rows.block < (size_t)a->rows.real && hvt__host_xent_ignores(a, i))
            continue;
        else if (i % a->rows.block < (size_t)a->rows.real &&
                 (a->smoothing > 0 || a->soft || a->binary || a->weights))
            hvt__host_xent_row(a, i, x->scale); /* scalar code: negligible against a layer's work */
        else if (i % a->rows.block < (size_t)a->rows.real)
            x->in->xent_row(a, i, x->scale);
        else if (a->dlogits)
            memset(hvt__at(a->dlogits, a->type, i * a->classes), 0, a->classes * hvt_dtype_size(a->type));
}

hvt_status hvt__xent_cpu(hvt_device *d, const hvt_xent_args *a)
{
    HVT_FLOATS;
    const hvt_cpu *cpu = hvt__cpu(d);
    xent x = {.in = cpu->isa->el->in[a->type],
              .a = a,
              .rows = (size_t)a->rows.blocks * a->rows.block,
              .step = 1 + 2048 / (size_t)a->classes,
              .scale = (a->scale ? *a->scale : 1) / (float)(a->pixels ? a->pixels : 1)};

    hvt__parallel_for(cpu->pool, (int)((x.rows + x.step - 1) / x.step), xent_job, &x);
    hvt__host_xent_sums(a);
    return HVT_OK;
}

enum { MSE_JOB = 4096 /* outputs */ };

static size_t mse_step(const hvt_mse_args *a)
{
    return 1 + MSE_JOB / (size_t)a->outputs;
}

static void mse_job(void *ctx, int job, int thread)
{
    const hvt_mse_args *a = ctx;
    const size_t rows = (size_t)a->rows.blocks * a->rows.block, first = (size_t)job * mse_step(a);

    hvt__host_mse_rows(a, first, first + mse_step(a) < rows ? first + mse_step(a) : rows);
}

hvt_status hvt__mse_cpu(hvt_device *d, const hvt_mse_args *a)
{
    HVT_FLOATS;
    const size_t rows = (size_t)a->rows.blocks * a->rows.block, step = mse_step(a);
    hvt_mse_args args = *a;

    hvt__parallel_for(hvt__cpu(d)->pool, (int)((rows + step - 1) / step), mse_job, &args);
    hvt__host_mse_sums(a);
    return HVT_OK;
}
