/*
 * PowerSGD: gradients of convolutions and linear layers travel as the factors of a matrix of low rank.
 * Source: Vogels, Karimireddy and Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
 * Optimization", NeurIPS 2019, algorithms 1 and 2.
 *
 * For such a tensor, with gradient G [k filters, m] on each of N ranks and residual E:
 *
 *     E += G;  P = sum of E Q over ranks;  P: orthonormal columns;  Q = sum of E^T P;  G = P Q^T;  E -= G / N
 *
 * Only the space that P's columns span matters, and scaling does not change it. So this code sums where the
 * paper takes means, and scales the columns of Q to length 1 for the next step. A column of zeros has no
 * direction and is drawn again. Every rank computes the same bits from the same sums.
 *
 * A step has two rounds. The first sums `a`, which holds, tensor by tensor in the arena's order, P or, if
 * factors would not be smaller, the gradient itself; the second sums `b`, which holds Q. So a bucket of the
 * arena is a span of either, and takes one sum per round.
 *
 * The next step's Q is taken at the end of a step, and only if the step made its update. Residuals are in the
 * arena's units, which depend on the number of images and the loss scale, and are rescaled when these change:
 * in units of mean gradients, what was sent plus the residual equals the total.
 *
 * Invariant: a residual is finite when it is read. A gradient that is not finite makes a sum that is not, so
 * the update is skipped, and a skipped update discards the residual.
 */
#include "dist.h"
#include "base_impl.h"

#include "hvt/collective.h"

#include <math.h>

enum { UNIT = 16 /* floats: 64 bytes */ };

typedef struct tensor {
    size_t first, count; /* in the arena */
    int k, m;            /* m is 0 for tensors sent as they are */
    size_t a_at, b_at;   /* offset in a; in b and q */
    uint64_t name;       /* a hash of it */
} tensor;

typedef struct factors {
    hvt__powersgd_state saved; /* what checkpoints see */
    int n;
    tensor *t;      /* [n + 1] in the arena's order; the last one is the end */
    size_t a_count; /* length of a; b has saved.q_count */
    float *q;       /* [saved.q_count] the factor from which this step's P is made */
    double *column; /* [largest k] */

    float *residual;       /* device memory, an arena: what factors did not carry */
    double residual_scale; /* value of a mean gradient of 1; 0: no residual */
    int64_t skipped;       /* updates skipped when it was written */
    int64_t inits;         /* initialisations of the model's parameters before the last step */
} factors;

static factors *of(const hvt_distopt *d)
{
    return d->codec_state;
}

/* a and b are in the comm's memory. */
static float *a_of(const hvt_distopt *d)
{
    return d->coded;
}

static float *b_of(const hvt_distopt *d)
{
    return a_of(d) + of(d)->a_count;
}

static void draw_column(const hvt_distopt *d, const tensor *t, int column)
{
    float *q = of(d)->q + t->b_at + (size_t)column * (size_t)t->m;

    for (int j = 0; j < t->m; j++)
        q[j] = 2 * hvt__unit(hvt__draw(d->opts.seed, t->name, (uint64_t)j, (uint64_t)column)) - 1;
}

/* Draws the first step's Q. */
static void draw(const hvt_distopt *d)
{
    const factors *w = of(d);

    for (int i = 0; i < w->n; i++)
        for (int c = 0; w->t[i].m && c < w->saved.r; c++)
            draw_column(d, &w->t[i], c);
}

static size_t whole_units(size_t count)
{
    return (count + UNIT - 1) / UNIT * UNIT;
}

/* True if the tensor is stored as a matrix, with filters padded to whole panels at most. Convolutions in
 * narrow groups have padding between the groups, too. */
static bool is_matrix(const hvt_param *p)
{
    const size_t rows = (size_t)p->dim[0], columns = p->elements / rows;

    return p->op && p->ndim > 1 && (p->count == p->elements || p->count == (rows + 31) / 32 * 32 * columns);
}

/* Lays out a and b: factors for tensors whose factors have fewer elements than the gradient, the gradient for
 * others. */
static void lay(factors *w, const hvt_model *m)
{
    for (int i = 0; i < w->n; i++) {
        const hvt_param *p = &m->param[i];
        const int64_t r = w->saved.r, rows = p->dim[0];
        const int64_t columns = p->ndim > 1 && rows ? (int64_t)p->elements / rows : 0;
        bool shrinks = is_matrix(p) && (rows + columns) * r < rows * columns;
        tensor *t = &w->t[i];

        *t = (tensor){.first = p->offset, .count = p->count, .a_at = w->a_count, .b_at = w->saved.q_count};
        w->a_count += whole_units(shrinks ? (size_t)(rows * r) : p->count);
        if (!shrinks)
            continue;
        t->k = (int)rows;
        t->m = (int)columns;
        t->name = hvt__hash_text(hvt__hash_text(HVT_HASH_INIT, "powersgd."), p->name);
        w->saved.tensor[w->saved.n++] = (hvt__powersgd_tensor){i, t->m, t->b_at};
        w->saved.q_count += whole_units((size_t)(columns * r));
    }
    w->t[w->n] = (tensor){.first = m->grad_count, .a_at = w->a_count, .b_at = w->saved.q_count};
}

static hvt_status check(const hvt_optim *o, const hvt_distopt_opts *opts)
{
    HVT_CHECK(opts->powersgd > 0, E_ARG, "PowerSGD of rank %d, expected 1 or more, or 0 for none",
              opts->powersgd);
    HVT_CHECK(opts->wire == HVT_F32, E_ARG, "PowerSGD sends its factors as f32, not as %s",
              hvt_dtype_name(opts->wire));
    HVT_CHECK(o->m->dev->ops->host_only.factor_p, E_UNSUPPORTED,
              "PowerSGD needs a device of the host's memory, not %s", o->m->dev->ops->name);
    HVT_CHECK(opts->update != HVT_UPDATE_SHARDED, E_ARG,
              "PowerSGD needs a replicated update: factors cannot be cut into slices of gradients");
    return HVT_OK;
}

static hvt_status open(hvt_distopt *d)
{
    hvt_model *m = d->optim->m;
    factors *w = calloc(1, sizeof *w);
    int n = m->ntrained, most = 1;

    HVT_CHECK(w, E_MEM, "no memory for factors of %d tensors", n);
    d->codec_state = w;
    *w = (factors){.saved.r = d->opts.powersgd, .n = n, .inits = m->inits};
    w->t = calloc((size_t)n + 1, sizeof *w->t);
    w->saved.tensor = calloc((size_t)n + 1, sizeof *w->saved.tensor);
    HVT_CHECK(w->t && w->saved.tensor, E_MEM, "no memory for factors of %d tensors", n);
    lay(w, m);
    w->saved.residual_count = m->grad_count;
    for (int i = 0; i < n; i++)
        most = w->t[i].k > most ? w->t[i].k : most;
    w->column = malloc((size_t)most * sizeof *w->column);
    HVT_CHECK(w->column, E_MEM, "no memory for a factor of %d numbers", most);
    HVT_TRY(m->dev->ops->memory.alloc(m->dev, (w->saved.q_count + 1) * sizeof *w->q, (void **)&w->q));
    d->coded_bytes = (w->a_count + w->saved.q_count) * sizeof(float);
    draw(d);
    w->saved.in_use = w->q;
    d->optim->powersgd = &w->saved;
    return m->dev->ops->memory.alloc(m->dev, m->grad_count * sizeof *w->residual, (void **)&w->residual);
}

static void forget(factors *w)
{
    free(w->saved.q);
    free(w->saved.residual);
    w->saved.q = w->saved.residual = NULL;
    w->saved.loaded = false;
}

static void close(hvt_distopt *d)
{
    factors *w = of(d);

    d->codec_state = NULL;
    if (!w)
        return;
    d->optim->powersgd = NULL;
    d->optim->m->dev->ops->memory.release(d->optim->m->dev, w->q);
    d->optim->m->dev->ops->memory.release(d->optim->m->dev, w->residual);
    forget(w);
    free(w->saved.tensor);
    free(w->column);
    free(w->t);
    free(w);
}

static void drop(hvt_distopt *d)
{
    of(d)->residual_scale = 0;
}

/* Converts the residual to the units of a step of `images` images. */
static hvt_status scale_residual(hvt_distopt *d, int64_t images)
{
    hvt_model *m = d->optim->m;
    const hvt_device_ops *ops = m->dev->ops;
    factors *w = of(d);
    double scale = (double)images * (double)m->step->loss_scale, before = w->residual_scale;
    bool dropped = !before || w->skipped != m->step->skipped;

    w->residual_scale = scale;
    w->skipped = m->step->skipped;
    if (dropped)
        return ops->memory.zero(m->dev, w->residual, m->grad_count * sizeof *w->residual);
    if (scale == before)
        return HVT_OK;
    return ops->vector.cast(m->dev, m->grad_count, (float)(scale / before), w->residual, HVT_F32, w->residual,
                            HVT_F32);
}

static hvt_status begin(hvt_distopt *d, int64_t images)
{
    factors *w = of(d);

    HVT_CHECK(!w->saved.loaded, E_ARG,
              "the ranks' residuals were loaded on this rank only; call hvt_distopt_broadcast() first");
    forget(w);
    if (w->inits != d->optim->m->inits) { /* a new run: the last one's residuals are void */
        drop(d);
        draw(d);
        w->inits = d->optim->m->inits;
    }
    return scale_residual(d, images);
}

/* The tensors in the arena's span [first, end), which cuts none. */
static const tensor *tensors_of(const factors *w, size_t first, size_t end, const tensor **ret_end)
{
    const tensor *t = w->t;

    while (t->first < first)
        t++;
    for (*ret_end = t; (*ret_end)->first < end;)
        ++*ret_end;
    return t;
}

static void *span(const hvt_distopt *d, const hvt_bucket *b, size_t *ret_count)
{
    const factors *w = of(d);
    const tensor *end, *t = tensors_of(w, b->first, b->end, &end);

    *ret_count = b->second ? end->b_at - t->b_at : end->a_at - t->a_at;
    return b->second ? b_of(d) + t->b_at : a_of(d) + t->a_at;
}

static hvt_factor_args factors_of(const hvt_distopt *d, const tensor *t, float *q)
{
    return (hvt_factor_args){.k = t->k,
                             .m = t->m,
                             .r = d->opts.powersgd,
                             .g = d->grads + t->first,
                             .e = of(d)->residual + t->first,
                             .p = a_of(d) + t->a_at,
                             .q = q + t->b_at,
                             .share = 1 / (float)d->ranks};
}

/* Runs `work` on tensors that travel as factors; copies others to `a` or, if `back`, to the arena. */
static hvt_status work_through(hvt_distopt *d, size_t first, size_t stop, float *q, bool back,
                               hvt_status (*work)(hvt_device *dev, const hvt_factor_args *a))
{
    const factors *w = of(d);
    hvt_device *dev = d->optim->m->dev;
    const tensor *end;

    for (const tensor *t = tensors_of(w, first, stop, &end); t < end; t++) {
        hvt_factor_args args = factors_of(d, t, q);
        float *a = a_of(d) + t->a_at, *g = d->grads + t->first;

        if (t->m)
            HVT_TRY(work(dev, &args));
        else
            HVT_TRY(dev->ops->memory.copy(dev, back ? g : a, back ? a : g, t->count * sizeof *g));
    }
    return HVT_OK;
}

static hvt_status encode(hvt_distopt *d, const hvt_bucket *b)
{
    return work_through(d, b->first, b->end, of(d)->q, false, d->optim->m->dev->ops->host_only.factor_p);
}

static hvt_status decode(hvt_distopt *d, size_t first, size_t n)
{
    return work_through(d, first, first + n, b_of(d), true, d->optim->m->dev->ops->host_only.factor_join);
}

/* Eight independent sums, so that additions overlap. */
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
 * Gram-Schmidt, each column twice, which is enough (Giraud et al. 2005). A column that depends linearly on
 * those before it, within the precision of doubles, becomes 0. A column that is not finite stays so.
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

static hvt_status second(hvt_distopt *d, const hvt_bucket *b)
{
    HVT_FLOATS;
    const factors *w = of(d);
    hvt_device *dev = d->optim->m->dev;
    const tensor *end;

    for (const tensor *t = tensors_of(w, b->first, b->end, &end); t < end; t++) {
        hvt_factor_args a = factors_of(d, t, b_of(d));

        if (!t->m)
            continue;
        orthonormalise(a.p, t->k, a.r, w->column);
        HVT_TRY(dev->ops->host_only.factor_q(dev, &a));
    }
    return HVT_OK;
}

/* Makes the next step's Q. */
static void end(hvt_distopt *d)
{
    HVT_FLOATS;
    const factors *w = of(d);
    const float *b = b_of(d);

    if (d->optim->m->step->skipped != w->skipped)
        return;
    for (const tensor *t = w->t; t < w->t + w->n; t++)
        for (int c = 0; t->m && c < w->saved.r; c++) {
            const size_t at = t->b_at + (size_t)c * (size_t)t->m;
            double sum = 0, scale;

            for (int j = 0; j < t->m; j++)
                sum += (double)b[at + j] * b[at + j];
            if (sum == 0)
                draw_column(d, t, c);
            scale = 1 / sqrt(sum);
            for (int j = 0; j < t->m && sum != 0; j++)
                w->q[at + j] = (float)(b[at + j] * scale);
        }
}

hvt_status hvt__powersgd_state_alloc(hvt__powersgd_state *saved, int ranks)
{
    size_t count = saved->residual_count * (size_t)ranks;

    free(saved->q);
    free(saved->residual);
    saved->ranks = ranks;
    saved->q = calloc(saved->q_count + 1, sizeof *saved->q);
    saved->residual = calloc(count + 1, sizeof *saved->residual);
    HVT_CHECK(saved->q && saved->residual, E_MEM, "no memory for the residuals of %d ranks (%zu bytes)",
              ranks, count * sizeof *saved->residual);
    memcpy(saved->q, saved->in_use, saved->q_count * sizeof *saved->q);
    return HVT_OK;
}

static hvt_status gather(hvt_distopt *d, int root)
{
    const factors *w = of(d);
    hvt__powersgd_state *saved = &of(d)->saved;
    size_t count = saved->residual_count;
    bool mine = root < 0 || root == d->rank;

    HVT_TRY(hvt_world_agree(d->world, mine ? hvt__powersgd_state_alloc(saved, d->ranks) : HVT_OK));
    saved->residual_scale = w->skipped == d->optim->m->step->skipped ? w->residual_scale : 0;
    if (saved->residual_scale == 0)
        return HVT_OK;
    if (root < 0)
        return hvt_allgather(d->comm, w->residual, count, saved->residual, NULL, HVT_F32, NULL);
    return hvt_gather(d->comm, w->residual, count, saved->residual, NULL, HVT_F32, root, NULL);
}

/* Gives each rank its own residual if there are as many ranks as when the residuals were saved. Otherwise
 * root gets their sum. */
static hvt_status scatter(hvt_distopt *d, int root, int64_t ranks)
{
    const factors *w = of(d);
    size_t count = w->saved.residual_count;

    if (ranks == d->ranks)
        return hvt_scatter(d->comm, w->saved.residual, NULL, w->residual, count, HVT_F32, root, NULL);
    memset(w->residual, 0, count * sizeof *w->residual);
    for (int64_t r = 0; r < ranks && d->rank == root; r++)
        for (size_t i = 0; i < count; i++)
            w->residual[i] += w->saved.residual[(size_t)r * count + i];
    return HVT_OK;
}

static hvt_status broadcast(hvt_distopt *d, int root)
{
    factors *w = of(d);
    struct {
        int64_t loaded, ranks;
        double residual_scale;
    } head = {w->saved.loaded, w->saved.ranks, w->saved.residual_scale};

    HVT_TRY(hvt_world_broadcast(d->world, &head, sizeof head, root));
    w->residual_scale = 0;
    if (head.loaded) {
        if (d->rank == root)
            memcpy(w->q, w->saved.q, w->saved.q_count * sizeof *w->q);
        if (w->saved.q_count)
            HVT_TRY(hvt_comm_broadcast(d->comm, w->q, w->saved.q_count * sizeof *w->q, root));
        HVT_TRY(scatter(d, root, head.ranks));
        w->residual_scale = head.residual_scale;
        w->skipped = d->optim->m->step->skipped;
    }
    forget(w);
    return HVT_OK;
}

const hvt__codec hvt__codec_powersgd = {
    .wire = HVT_F32,
    .whole = true,
    .check = check,
    .open = open,
    .close = close,
    .begin = begin,
    .encode = encode,
    .span = span,
    .second = second,
    .decode = decode,
    .end = end,
    .drop = drop,
    .gather = gather,
    .broadcast = broadcast,
};
