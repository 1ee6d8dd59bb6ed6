/*
 * The cpu device's ops on a matrix [rows, c]: batch norm, bias, loss.
 *
 * Rows are cut into *parts* by the shape alone. A sum over rows is taken part by part, each by whichever
 * thread is free, and the parts' sums are joined in their order in double: the bits do not depend on threads.
 * The second pass of an op walks the parts from the last to the first, since the last ones are still in the
 * cache.
 */
#include "base_impl.h"
#include "cpu_impl.h"
#include "device/host.h"
#include "elementwise.h"

#include <math.h>
#include <string.h>

/* How the rows of a matrix are cut. */
typedef struct cut {
    size_t rows, step; /* real rows; of a part */
    int parts;
} cut;

static cut cut_rows(const hvt_elementwise *el, hvt_rows r, int c)
{
    const size_t rows = (size_t)r.blocks * r.real, least = 64, elements = 32768, unit = 8 * el->row_step(c);
    size_t most = HVT_PART_FLOATS / c < HVT_PARTS ? HVT_PART_FLOATS / c : HVT_PARTS;
    size_t step = elements / c > least ? elements / c : least;

    step = (rows + most - 1) / most > step ? (rows + most - 1) / most : step;
    step = (step + unit - 1) / unit * unit;
    return (cut){rows, step, (int)((rows + step - 1) / step)};
}

static size_t part_rows(const cut *k, int part, size_t *ret_end)
{
    size_t first = (size_t)part * k->step;

    *ret_end = k->rows - first < k->step ? k->rows : first + k->step;
    return first;
}

static hvt_status check_channels(int c, int most)
{
    HVT_CHECK(c <= most, E_UNSUPPORTED, "device cpu sums over rows of at most %d channels, not %d", most, c);
    return HVT_OK;
}

/* ---- batch norm ---- */

typedef struct bn {
    const hvt_elementwise *el;
    hvt_scratch *s;
    cut k;
    hvt_bn_consts consts;
    const hvt_bn_args *fwd;
    const hvt_bn_grad_args *bwd;
} bn;

static void stats_job(void *ctx, int part, int thread)
{
    const bn *b = ctx;
    const int c = b->fwd->c;
    size_t end, first = part_rows(&b->k, part, &end);

    (void)thread;
    b->el->bn_stats(b->fwd->rows, c, b->fwd->x, first, end, b->s->part[0] + (size_t)part * c,
                    b->s->part[1] + (size_t)part * c);
}

static void apply_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;
    size_t end, first = part_rows(&b->k, b->k.parts - 1 - job, &end);

    (void)thread;
    b->el->bn_apply(b->fwd, b->consts, first, end);
}

hvt_status bn_train_cpu(hvt_device *d, const hvt_bn_args *a)
{
    const hvt_cpu *cpu = d->state;
    hvt_scratch *s = cpu->scratch;
    bn b = {cpu->isa->el, s, cut_rows(cpu->isa->el, a->rows, a->c), {.scale = s->consts[0]}, a, NULL};
    const double rows = (double)b.k.rows;
    size_t count[HVT_PARTS];

    HVT_CHECK_F32(a->type);
    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    hvt__pool_run(cpu->pool, b.k.parts, stats_job, &b);
    for (int p = 0; p < b.k.parts; p++) {
        size_t end, first = part_rows(&b.k, p, &end);

        count[p] = end - first;
    }
    b.el->bn_join(b.k.parts, count, a->c, s->part[0], s->part[1], s->sum);
    for (int c = 0; c < a->c; c++) {
        double mean = s->sum[c], m2 = s->sum[a->c + c];

        a->mean[c] = (float)mean;
        a->rstd[c] = (float)(1 / sqrt(m2 / (rows > 0 ? rows : 1) + a->eps));
        a->moments[c] = rows < 2 ? 0 : a->weight * (float)mean;
        a->moments[a->c + c] = rows < 2 ? 0 : a->weight * (float)(m2 / (rows - 1));
        s->consts[0][c] = a->gamma[c] * a->rstd[c];
    }
    hvt__pool_run(cpu->pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

hvt_status bn_infer_cpu(hvt_device *d, const hvt_bn_args *a)
{
    const hvt_cpu *cpu = d->state;
    hvt_scratch *s = cpu->scratch;
    bn b = {cpu->isa->el, s, cut_rows(cpu->isa->el, a->rows, a->c), {.scale = s->consts[0]}, a, NULL};

    HVT_CHECK_F32(a->type);
    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    for (int c = 0; c < a->c; c++)
        s->consts[0][c] = a->gamma[c] * (float)(1 / sqrt((double)a->rstd[c] + a->eps));
    hvt__pool_run(cpu->pool, b.k.parts, apply_job, &b);
    return HVT_OK;
}

static void sums_job(void *ctx, int part, int thread)
{
    const bn *b = ctx;
    const int c = b->bwd->c;
    size_t end, first = part_rows(&b->k, part, &end);

    (void)thread;
    b->el->bn_sums(b->bwd, first, end, b->s->part[0] + (size_t)part * c, b->s->part[1] + (size_t)part * c);
}

static void dx_job(void *ctx, int job, int thread)
{
    const bn *b = ctx;
    size_t end, first = part_rows(&b->k, b->k.parts - 1 - job, &end);

    (void)thread;
    b->el->bn_dx(b->bwd, b->consts, first, end);
}

/* sum[c] = the parts' sums, in their order */
static void join(int parts, int c, const float *part, double *sum)
{
    for (int i = 0; i < c; i++)
        sum[i] = 0;
    for (int p = 0; p < parts; p++, part += c)
        for (int i = 0; i < c; i++)
            sum[i] += part[i];
}

hvt_status bn_backward_cpu(hvt_device *d, const hvt_bn_grad_args *a)
{
    const hvt_cpu *cpu = d->state;
    hvt_scratch *s = cpu->scratch;
    bn b = {
        cpu->isa->el, s, cut_rows(cpu->isa->el, a->rows, a->c), {s->consts[0], s->consts[1], s->consts[2]},
        NULL,         a};
    const double rows = b.k.rows ? (double)b.k.rows : 1;

    HVT_CHECK_F32(a->type);
    HVT_TRY(check_channels(a->c, HVT_CHANNELS));
    hvt__pool_run(cpu->pool, b.k.parts, sums_job, &b);
    join(b.k.parts, a->c, s->part[0], s->sum);
    join(b.k.parts, a->c, s->part[1], s->sum + a->c);
    for (int c = 0; c < a->c; c++) {
        double rstd = a->rstd[c], sum = s->sum[c], dot = s->sum[a->c + c];

        a->dbeta[c] = (float)sum;
        a->dgamma[c] = (float)(dot * rstd);
        s->consts[0][c] = a->gamma[c] * a->rstd[c];
        s->consts[1][c] = (float)(sum / rows);
        s->consts[2][c] = (float)(dot * rstd * rstd / rows);
    }
    hvt__pool_run(cpu->pool, b.k.parts, dx_job, &b);
    return HVT_OK;
}

hvt_status bn_update_cpu(hvt_device *d, int c, float rate, float scale, const float *moments, float *run_mean,
                         float *run_var)
{
    const hvt_cpu *cpu = d->state;

    cpu->isa->el->bn_moving((size_t)c, rate, scale, moments, run_mean);
    cpu->isa->el->bn_moving((size_t)c, rate, scale, moments + c, run_var);
    return HVT_OK;
}

/* ---- bias ---- */

typedef struct bias {
    const hvt_elementwise *el;
    hvt_rows rows;
    int c;
    cut k;
    const float *b, *dy;
    float *y, *part;
} bias;

static void bias_forward_job(void *ctx, int part, int thread)
{
    const bias *b = ctx;
    size_t end, first = part_rows(&b->k, part, &end);

    (void)thread;
    b->el->bias(b->rows, b->c, b->b, b->y, first, end);
}

hvt_status bias_forward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const float *b, void *y)
{
    const hvt_cpu *cpu = d->state;
    bias job = {.el = cpu->isa->el, .rows = rows, .c = c, .b = b, .y = y};

    HVT_CHECK_F32(t);
    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = cut_rows(job.el, rows, c);
    hvt__pool_run(cpu->pool, job.k.parts, bias_forward_job, &job);
    return HVT_OK;
}

static void bias_backward_job(void *ctx, int part, int thread)
{
    const bias *b = ctx;
    size_t end, first = part_rows(&b->k, part, &end);

    (void)thread;
    b->el->sums(b->rows, b->c, b->dy, first, end, b->part + (size_t)part * b->c);
}

hvt_status bias_backward_cpu(hvt_device *d, hvt_rows rows, int c, hvt_dtype t, const void *dy, float *db)
{
    const hvt_cpu *cpu = d->state;
    bias job = {.el = cpu->isa->el, .rows = rows, .c = c, .dy = dy, .part = cpu->scratch->part[0]};

    HVT_CHECK_F32(t);
    HVT_TRY(check_channels(c, HVT_PART_FLOATS));
    job.k = cut_rows(job.el, rows, c);
    hvt__pool_run(cpu->pool, job.k.parts, bias_backward_job, &job);
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
    const hvt_elementwise *el;
    const hvt_xent_args *a;
    size_t rows, step;
} xent;

static void xent_job(void *ctx, int job, int thread)
{
    const xent *x = ctx;
    const hvt_xent_args *a = x->a;
    size_t first = (size_t)job * x->step, end = first + x->step < x->rows ? first + x->step : x->rows;

    (void)thread;
    for (size_t i = first; i < end; i++) {
        float *dx = a->dlogits ? (float *)a->dlogits + i * a->classes : NULL;

        if (i % a->rows.block < (size_t)a->rows.real)
            x->el->xent_row((const float *)a->logits + i * a->classes, a->classes, a->labels[i], dx,
                            &a->loss[i], &a->place[i]);
        else if (dx)
            memset(dx, 0, (size_t)a->classes * sizeof *dx);
    }
}

hvt_status xent_cpu(hvt_device *d, const hvt_xent_args *a)
{
    const hvt_cpu *cpu = d->state;
    xent x = {cpu->isa->el, a, (size_t)a->rows.blocks * a->rows.block, 1 + 2048 / a->classes};
    double sum = 0, top1 = 0, top5 = 0;

    HVT_CHECK_F32(a->type);
    hvt__pool_run(cpu->pool, (int)((x.rows + x.step - 1) / x.step), xent_job, &x);
    for (size_t i = 0; i < x.rows; i++) {
        if (i % a->rows.block >= (size_t)a->rows.real)
            continue;
        sum += a->loss[i];
        top1 += a->place[i] < 1;
        top5 += a->place[i] < 5;
    }
    a->sums[0] = (float)sum;
    a->sums[1] = (float)top1;
    a->sums[2] = (float)top5;
    return HVT_OK;
}
