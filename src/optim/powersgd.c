/*
 * PowerSGD: gradients of convolutions and linear layers travel as the factors of a matrix of low rank.
 * Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
 * Optimization", NeurIPS 2019, algorithms 1 and 2.
 *
 * Of such a tensor, G [k filters, m] on each of N ranks, and its rest E:
 *
 *     E += G;  P = sum of E Q over ranks;  P: orthonormal columns;  Q = sum of E^T P;  G = P Q^T;  E -= G / N
 *
 * All that is asked of P is the space that its columns span, which a factor does not change: sums do where
 * the paper has means, and the next step begins with the columns of Q at length 1. A column of 0, which has
 * no direction, is drawn anew. What every rank works out from sums is the same on all of them to the bit.
 *
 * A step has two rounds. What travels in the first lies in `a`, tensor by tensor in the arena's order: P, or
 * the gradient itself where factors would not be smaller; in the second in `b`: Q. So buckets of the arena
 * are spans of both, and all that a bucket has of a round is one sum.
 *
 * The next step's Q is taken when this one is over, and only if its update was made: what overflowed leaves
 * nothing behind.
 */
#include "dist.h"
#include "base_impl.h"

#include "hvt/collective.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { UNIT = 16 /* floats: 64 bytes */ };

typedef struct tensor {
    size_t first, count; /* in the arena */
    int k, m;            /* m 0: travels as it is */
    size_t a_at, b_at;   /* in a; in b and q */
    uint64_t name;       /* its hash */
} tensor;

struct hvt__powersgd {
    hvt__memory memory; /* what checkpoints see */
    int n;
    tensor *t; /* [n] in the arena's order */
    size_t a_count, b_count;
    float *a, *b;   /* in the comm's memory */
    float *q;       /* [b_count] what this step's P is made with */
    double *column; /* [largest k] */
};

/* ---- life ------------------------------------------------------------------------------------------ */

static void draw_column(const hvt_distopt *d, const tensor *t, int column)
{
    float *q = d->powersgd->q + t->b_at + (size_t)column * (size_t)t->m;

    for (int j = 0; j < t->m; j++)
        q[j] = 2 * hvt__unit(hvt__draw(d->opts.seed, t->name, (uint64_t)j, (uint64_t)column)) - 1;
}

void hvt__powersgd_draw(hvt_distopt *d)
{
    const hvt__powersgd *w = d->powersgd;

    for (int i = 0; i < w->n; i++)
        for (int c = 0; w->t[i].m && c < w->memory.r; c++)
            draw_column(d, &w->t[i], c);
}

/* Factors of rank r, where these are fewer numbers. */
static bool shrinks(const hvt_param *p, int r, int *ret_k, int *ret_m)
{
    int64_t k = p->dim[0], m = p->ndim > 1 && k ? (int64_t)p->elements / k : 0;

    *ret_k = (int)k;
    *ret_m = (int)m;
    return p->op && p->ndim > 1 && (k + m) * r < k * m;
}

static size_t whole_units(size_t count)
{
    return (count + UNIT - 1) / UNIT * UNIT;
}

static void lay(hvt__powersgd *w, const hvt_model *m, int r)
{
    for (int i = 0; i < w->n; i++) {
        const hvt_param *p = &m->param[i];
        tensor *t = &w->t[i];

        *t = (tensor){.first = p->offset, .count = p->count, .a_at = w->a_count, .b_at = w->b_count};
        t->name = hvt__hash_text(hvt__hash_text(HVT_HASH_INIT, "powersgd."), p->name);
        if (shrinks(p, r, &t->k, &t->m)) {
            w->memory.tensor[w->memory.n++] = (hvt__factored){i, t->m, w->b_count, w->memory.rest_count};
            w->memory.rest_count += p->count;
            w->a_count += whole_units((size_t)t->k * (size_t)r);
            w->b_count += whole_units((size_t)t->m * (size_t)r);
        } else {
            t->m = 0;
            w->a_count += whole_units(p->count);
        }
    }
}

hvt_status hvt__powersgd_open(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    hvt__powersgd *w = calloc(1, sizeof *w);
    int n = m->nparam_tensors, r = d->opts.powersgd, most = 1;

    HVT_CHECK(w, E_MEM, "no memory for factors of %d tensors", n);
    d->powersgd = w;
    w->n = n;
    w->memory.r = r;
    w->t = calloc((size_t)n + 1, sizeof *w->t);
    w->memory.tensor = calloc((size_t)n + 1, sizeof *w->memory.tensor);
    HVT_CHECK(w->t && w->memory.tensor, E_MEM, "no memory for factors of %d tensors", n);
    lay(w, m, r);
    w->memory.q_count = w->b_count;
    for (int i = 0; i < n; i++)
        most = w->t[i].m && w->t[i].k > most ? w->t[i].k : most;
    w->column = malloc((size_t)most * sizeof *w->column);
    HVT_CHECK(w->column, E_MEM, "no memory for a factor of %d numbers", most);
    HVT_TRY(m->dev->ops->alloc(m->dev, (w->b_count + 1) * sizeof *w->q, (void **)&w->q));
    hvt__powersgd_draw(d);
    w->memory.in_use = w->q;
    d->optim->memory = &w->memory;
    return HVT_OK;
}

size_t hvt__powersgd_bytes(const hvt_distopt *d)
{
    return d->powersgd ? (d->powersgd->a_count + d->powersgd->b_count) * sizeof(float) : 0;
}

void hvt__powersgd_place(hvt_distopt *d, float *at)
{
    d->powersgd->a = at;
    d->powersgd->b = at + d->powersgd->a_count;
}

static void forget(hvt__powersgd *w)
{
    free(w->memory.q);
    free(w->memory.rest);
    w->memory.q = w->memory.rest = NULL;
    w->memory.loaded = false;
}

void hvt__powersgd_close(hvt_distopt *d)
{
    hvt__powersgd *w = d->powersgd;

    d->powersgd = NULL;
    if (!w)
        return;
    d->optim->memory = NULL;
    d->optim->m->dev->ops->release(d->optim->m->dev, w->q);
    forget(w);
    free(w->memory.tensor);
    free(w->column);
    free(w->t);
    free(w);
}

/* ---- a step ---------------------------------------------------------------------------------------- */

/* Tensors of the arena's span [first, end), which holds whole ones. */
static const tensor *tensors_of(const hvt__powersgd *w, size_t first, size_t end, const tensor **ret_end)
{
    const tensor *t = w->t, *last = w->t + w->n;

    while (t < last && t->first < first)
        t++;
    *ret_end = t;
    while (*ret_end < last && (*ret_end)->first < end)
        ++*ret_end;
    return t;
}

float *hvt__powersgd_span(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count)
{
    const hvt__powersgd *w = d->powersgd;
    const tensor *end, *t = tensors_of(w, b->first, b->end, &end), *last = w->t + w->n;
    size_t first = b->second ? w->b_count : w->a_count, stop = first;

    if (t < last)
        first = b->second ? t->b_at : t->a_at;
    if (end < last)
        stop = b->second ? end->b_at : end->a_at;
    *ret_count = stop - first;
    return (b->second ? w->b : w->a) + first;
}

static hvt_factor_args factors_of(const hvt_distopt *d, const tensor *t, float *q)
{
    return (hvt_factor_args){.k = t->k,
                             .m = t->m,
                             .r = d->opts.powersgd,
                             .g = d->grads + t->first,
                             .e = d->rest + t->first,
                             .p = d->powersgd->a + t->a_at,
                             .q = q + t->b_at,
                             .share = 1 / (float)hvt_world_size(hvt_comm_world(d->comm))};
}

static hvt_status encode(const hvt_distopt *d, size_t first, size_t n)
{
    const hvt__powersgd *w = d->powersgd;
    hvt_device *dev = d->optim->m->dev;
    const tensor *end;

    for (const tensor *t = tensors_of(w, first, first + n, &end); t < end; t++) {
        hvt_factor_args a = factors_of(d, t, w->q);

        if (t->m)
            HVT_TRY(dev->ops->factor_p(dev, &a));
        else
            HVT_TRY(dev->ops->copy(dev, w->a + t->a_at, d->grads + t->first, t->count * sizeof *w->a));
    }
    return HVT_OK;
}

/* In eight sums, which do not wait for one another. */
static double dot(const double *x, const float *y, int n)
{
    double part[8] = {0};
    int i = 0;

    for (; i + 8 <= n; i += 8)
        for (int l = 0; l < 8; l++)
            part[l] += x[i + l] * y[i + l];
    for (; i < n; i++)
        part[0] += x[i] * y[i];
    return ((part[0] + part[4]) + (part[1] + part[5])) + ((part[2] + part[6]) + (part[3] + part[7]));
}

static double length(const double *x, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

/*
 * Gram and Schmidt, each column twice, which is enough (Giraud et al. 2005). A column that is a sum of those
 * before it, as far as doubles can tell, becomes 0. What is not finite stays so.
 */
static void orthonormalise(float *p, int k, int r, double *column)
{
    const double tiny = 1e-10;

    for (int c = 0; c < r; c++) {
        float *mine = p + (size_t)c * (size_t)k;
        double before, after;

        for (int i = 0; i < k; i++)
            column[i] = mine[i];
        before = length(column, k);
        for (int twice = 0; twice < 2; twice++)
            for (int o = 0; o < c; o++) {
                const float *other = p + (size_t)o * (size_t)k;
                const double along = dot(column, other, k);

                for (int i = 0; i < k; i++)
                    column[i] -= along * other[i];
            }
        after = length(column, k);
        for (int i = 0; i < k; i++)
            mine[i] = after <= tiny * before ? 0 : (float)(column[i] / after);
    }
}

static hvt_status again(const hvt_distopt *d, size_t first, size_t n)
{
    HVT_FLOATS;
    const hvt__powersgd *w = d->powersgd;
    hvt_device *dev = d->optim->m->dev;
    const tensor *end;

    for (const tensor *t = tensors_of(w, first, first + n, &end); t < end; t++) {
        hvt_factor_args a = factors_of(d, t, w->b);

        if (!t->m)
            continue;
        orthonormalise(a.p, t->k, a.r, w->column);
        HVT_TRY(dev->ops->factor_q(dev, &a));
    }
    return HVT_OK;
}

/* Into the arena, where it came from. */
static hvt_status decode(const hvt_distopt *d, size_t first, size_t n, float s, float *ret_g)
{
    const hvt__powersgd *w = d->powersgd;
    hvt_device *dev = d->optim->m->dev;
    const tensor *end;

    (void)s;
    (void)ret_g;
    for (const tensor *t = tensors_of(w, first, first + n, &end); t < end; t++) {
        hvt_factor_args a = factors_of(d, t, w->b);

        if (t->m)
            HVT_TRY(dev->ops->factor_join(dev, &a));
        else
            HVT_TRY(dev->ops->copy(dev, d->grads + t->first, w->a + t->a_at, t->count * sizeof *w->a));
    }
    return HVT_OK;
}

const hvt__codec hvt__codec_powersgd = {
    .wire = HVT_F32, .encode = encode, .again = again, .decode = decode, .whole = true};

void hvt__powersgd_end(hvt_distopt *d)
{
    HVT_FLOATS;
    hvt__powersgd *w = d->powersgd;

    if (d->optim->m->step->skipped != d->rest_skipped)
        return;
    for (const tensor *t = w->t; t < w->t + w->n; t++)
        for (int c = 0; t->m && c < w->memory.r; c++) {
            const size_t at = t->b_at + (size_t)c * (size_t)t->m;
            double sum = 0, scale;

            for (int j = 0; j < t->m; j++)
                sum += (double)w->b[at + j] * w->b[at + j];
            if (sum == 0)
                draw_column(d, t, c);
            scale = 1 / sqrt(sum);
            for (int j = 0; j < t->m && sum != 0; j++)
                w->q[at + j] = (float)(w->b[at + j] * scale);
        }
}

/* ---- to be saved, and loaded ----------------------------------------------------------------------- */

hvt_status hvt__powersgd_forget(hvt_distopt *d)
{
    HVT_CHECK(!d->powersgd->memory.loaded, E_ARG,
              "what the ranks' gradients left behind was loaded on this rank; hvt_distopt_broadcast() brings "
              "it to them");
    forget(d->powersgd);
    return HVT_OK;
}

/* One number after the other, without what lies between tensors; into: out of them. */
static void pack(const hvt_distopt *d, float *rest, bool into)
{
    const hvt__memory *memory = &d->powersgd->memory;

    for (const hvt__factored *f = memory->tensor; f < memory->tensor + memory->n; f++) {
        const hvt_param *p = &d->optim->m->param[f->param];
        float *there = d->rest + p->offset, *here = rest + f->rest_at;

        memcpy(into ? there : here, into ? here : there, p->count * sizeof *rest);
    }
}

hvt_status hvt__memory_make(hvt__memory *memory, int ranks)
{
    size_t count = memory->rest_count * (size_t)ranks;

    free(memory->q);
    free(memory->rest);
    memory->ranks = ranks;
    memory->q = calloc(memory->q_count + 1, sizeof *memory->q);
    memory->rest = calloc(count + 1, sizeof *memory->rest);
    HVT_CHECK(memory->q && memory->rest, E_MEM,
              "no memory for what the gradients of %d ranks left (%zu bytes)", ranks,
              count * sizeof *memory->rest);
    memcpy(memory->q, memory->in_use, memory->q_count * sizeof *memory->q);
    return HVT_OK;
}

static hvt_status gather(hvt_distopt *d, int root, float *mine, const size_t *counts)
{
    hvt__memory *memory = &d->powersgd->memory;
    hvt_ticket t = 0;

    pack(d, mine, false);
    if (root < 0)
        HVT_TRY(hvt_allgather(d->comm, mine, memory->rest_count, memory->rest, counts, HVT_F32, &t));
    else
        HVT_TRY(hvt_gather(d->comm, mine, memory->rest_count, memory->rest, counts, HVT_F32, root, &t));
    return hvt_comm_wait(d->comm, t);
}

/* A part of each rank, in one's own and in all of them. */
static hvt_status make_room(const hvt_distopt *d, float **ret_mine, size_t **ret_counts)
{
    int ranks = hvt_world_size(hvt_comm_world(d->comm));
    size_t count = d->powersgd->memory.rest_count;

    *ret_mine = calloc(count + 1, sizeof **ret_mine);
    *ret_counts = calloc((size_t)ranks, sizeof **ret_counts);
    HVT_CHECK(*ret_mine && *ret_counts, E_MEM, "no memory for what gradients left (%zu bytes)",
              count * sizeof **ret_mine);
    for (int i = 0; i < ranks; i++)
        (*ret_counts)[i] = count;
    return HVT_OK;
}

hvt_status hvt__powersgd_gather(hvt_distopt *d, int root)
{
    hvt_world *world = hvt_comm_world(d->comm);
    hvt__memory *memory = &d->powersgd->memory;
    float *mine = NULL;
    size_t *counts = NULL;
    hvt_status s = make_room(d, &mine, &counts);

    if (s == HVT_OK && (root < 0 || root == hvt_world_rank(world)))
        s = hvt__memory_make(memory, hvt_world_size(world));
    s = hvt_world_agree(world, s);
    memory->unit = d->rest_skipped == d->optim->m->step->skipped ? d->rest_unit : 0;
    if (s == HVT_OK && memory->unit != 0)
        s = gather(d, root, mine, counts);
    free(mine);
    free(counts);
    return s;
}

/* Ranks are as many as when it was saved: each gets its own. Else the first one gets the sum. */
static hvt_status scatter(hvt_distopt *d, int root, int ranks, float *mine, const size_t *counts)
{
    hvt__memory *memory = &d->powersgd->memory;
    hvt_world *world = hvt_comm_world(d->comm);
    hvt_ticket t = 0;

    if (ranks == hvt_world_size(world)) {
        HVT_TRY(hvt_scatter(d->comm, memory->rest, counts, mine, memory->rest_count, HVT_F32, root, &t));
        HVT_TRY(hvt_comm_wait(d->comm, t));
    } else if (hvt_world_rank(world) == root) {
        for (int r = 0; r < ranks; r++)
            for (size_t i = 0; i < memory->rest_count; i++)
                mine[i] += memory->rest[(size_t)r * memory->rest_count + i];
    }
    pack(d, mine, true);
    return HVT_OK;
}

hvt_status hvt__powersgd_broadcast(hvt_distopt *d, int root)
{
    hvt_world *world = hvt_comm_world(d->comm);
    hvt__powersgd *w = d->powersgd;
    struct {
        int64_t loaded, ranks;
        double unit;
    } told = {w->memory.loaded, w->memory.ranks, w->memory.unit};
    float *mine = NULL;
    size_t *counts = NULL;
    hvt_status s;

    HVT_TRY(hvt_world_broadcast(world, &told, sizeof told, root));
    if (told.loaded) {
        s = hvt_world_agree(world, make_room(d, &mine, &counts));
        if (s == HVT_OK && hvt_world_rank(world) == root)
            memcpy(w->q, w->memory.q, w->b_count * sizeof *w->q);
        if (s == HVT_OK && w->b_count)
            s = hvt_comm_broadcast(d->comm, w->q, w->b_count * sizeof *w->q, root);
        if (s == HVT_OK)
            s = scatter(d, root, (int)told.ranks, mine, counts);
        free(mine);
        free(counts);
        HVT_TRY(s);
        d->rest_unit = told.unit;
        d->rest_skipped = d->optim->m->step->skipped;
    }
    forget(w);
    return HVT_OK;
}
