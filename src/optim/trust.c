/*
 * LARS and LAMB scale the update of each parameter by a trust ratio of two norms: of the weights, and of the
 * gradient (LARS) or of Adam's direction (LAMB).
 *
 * The ratios need all sums, so these optimizers have a pass before the update, in which every rank goes
 * through the parameters that it updates. LAMB writes its direction, negated, over the gradients. The squares
 * of both tensors are added exactly (device/squares.h), over the ranks too where updates are sliced. So a
 * ratio has the same bits on any number of ranks and with any buckets.
 */
#include "dist.h"
#include "base_impl.h"

#include <math.h>

typedef struct hvt__norms {
    int64_t w[HVT__SQUARES_BINS], g[HVT__SQUARES_BINS];
} norms;

struct hvt__trust {
    norms *squares; /* [ntrained] */
    float *ratio;   /* [ntrained] */
};

hvt_status hvt__trust_open(hvt_optim *o)
{
    const size_t n = (size_t)o->m->ntrained + 1;

    if (!o->rule->ratio)
        return HVT_OK;
    o->trust = calloc(1, sizeof *o->trust);
    HVT_CHECK(o->trust, E_MEM, "no memory for the norms of %zu parameters", n);
    o->trust->squares = calloc(n, sizeof *o->trust->squares);
    o->trust->ratio = calloc(n, sizeof *o->trust->ratio);
    HVT_CHECK(o->trust->squares && o->trust->ratio, E_MEM, "no memory for the norms of %zu parameters", n);
    return HVT_OK;
}

void hvt__trust_close(hvt_optim *o)
{
    if (!o->trust)
        return;
    free(o->trust->squares);
    free(o->trust->ratio);
    free(o->trust);
}

float hvt__trust_ratio(const hvt_optim *o, const hvt_param *p)
{
    return o->trust ? o->trust->ratio[p - o->m->param] : 1;
}

static hvt_status add_squares(const hvt_optim *o, size_t n, const float *x, int64_t bin[HVT__SQUARES_BINS])
{
    hvt_step_state sum = {0};

    HVT_TRY(o->m->dev->ops->step.squares(o->m->dev, n, x, &sum));
    for (int k = 0; k < HVT__SQUARES_BINS; k++)
        bin[k] += sum.squares[k];
    return HVT_OK;
}

/* A part of one parameter. g: its gradients, at the same offsets as the weights. */
static hvt_status add_part(hvt_optim *o, const hvt_param *p, float *g, size_t at, size_t n)
{
    hvt_device *dev = o->m->dev;
    const hvt__group group = hvt__optim_group_of(o, p);
    norms *sum = &o->trust->squares[p - o->m->param];

    for (size_t done = 0, part; o->rule->direct && done < n; done += part) {
        part = n - done < HVT__RULE_PIECE ? n - done : HVT__RULE_PIECE;
        HVT_TRY(o->rule->direct(o, at + done, part, &group, g + at + done, o->scratch));
        HVT_TRY(dev->ops->memory.copy(dev, g + at + done, o->scratch, part * sizeof *g));
    }
    if (group.weight_decay == 0) /* its ratio is 1 */
        return HVT_OK;
    HVT_TRY(add_squares(o, n, o->m->params + at, sum->w));
    return add_squares(o, n, g + at, sum->g);
}

hvt_status hvt__trust_add(hvt_optim *o, float *g, size_t first, size_t end)
{
    const hvt_model *m = o->m;

    for (const hvt_param *p = m->param; p < m->param + m->ntrained; p++) {
        const size_t from = p->offset < first ? first : p->offset;
        const size_t to = p->offset + p->count < end ? p->offset + p->count : end;

        if (from < to)
            HVT_TRY(add_part(o, p, g, from, to - from));
    }
    return HVT_OK;
}

static double norm_of(const int64_t bin[HVT__SQUARES_BINS])
{
    double sum = 0, unit = 0x1p-384; /* unit of bin 0 */

    for (int k = 0; k < HVT__SQUARES_BINS; k++, unit *= 0x1p32)
        sum += (double)bin[k] * unit;
    return sqrt(sum);
}

void hvt__trust_end(hvt_optim *o)
{
    const hvt_model *m = o->m;

    for (int i = 0; i < m->ntrained; i++) {
        const hvt__group group = hvt__optim_group_of(o, &m->param[i]);
        norms *sum = &o->trust->squares[i];
        const double w = norm_of(sum->w), g = norm_of(sum->g);

        o->trust->ratio[i] =
            w > 0 && g > 0 && group.weight_decay != 0
                ? (float)o->rule->ratio(w, g * (o->rule->direct ? 1 : (double)m->step->grad_scale),
                                        (double)group.weight_decay)
                : 1;
        *sum = (norms){0};
    }
}

size_t hvt__trust_bytes(const hvt_distopt *d)
{
    const hvt_optim *o = d->optim;

    return o->rule->ratio && d->opts.update == HVT_UPDATE_SHARDED
               ? 2 * (size_t)o->m->ntrained * hvt__bin_digits(d) * sizeof(float)
               : 0;
}

/* Adds the squares of all ranks. */
static hvt_status exchange(hvt_distopt *d)
{
    const int n = d->optim->m->ntrained;
    const size_t digits = hvt__bin_digits(d);
    norms *sum = d->optim->trust->squares;
    float *at = d->squares;

    for (int i = 0; i < n; i++, at += 2 * digits) {
        hvt__bins_write(d, sum[i].w, at);
        hvt__bins_write(d, sum[i].g, at + digits);
    }
    hvt__phase_begin(d, HVT__LAUNCH, d->bucket);
    HVT_TRY(hvt__traced(
        hvt_comm_allreduce(d->comm, d->squares, 2 * (size_t)n * digits, HVT_F32, &d->bucket[0].ticket)));
    HVT_TRY(hvt__await(d, d->bucket, false));
    at = d->squares;
    for (int i = 0; i < n; i++, at += 2 * digits) {
        hvt__bins_read(d, at, sum[i].w);
        hvt__bins_read(d, at + digits, sum[i].g);
    }
    return HVT_OK;
}

hvt_status hvt__trust_ratios(hvt_distopt *d)
{
    hvt_optim *o = d->optim;

    if (!o->trust || !o->m->step->apply)
        return HVT_OK;
    for (const hvt_bucket *b = d->bucket; b < d->bucket + d->nbucket; b++) {
        if (b->end <= o->m->step_stats_count)
            continue;
        o->v_at = b->own_first - b->own_at;
        HVT_TRY(hvt__trust_add(o, d->grads, b->own_first, b->own_end));
    }
    if (d->squares)
        HVT_TRY(exchange(d));
    hvt__trust_end(o);
    return HVT_OK;
}
