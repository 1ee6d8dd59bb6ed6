/*
 * PowerSGD: gradients as factors of low rank, against plain loops over all ranks' gradients. Runs alone and
 * under mpirun.
 */
#include "optim/dist.h"
#include "hvt/train.h"
#include "folder.h"
#include "heap.h"
#include "rig.h"

#include <unistd.h>

static const char *const comms[] = {"mpi", "shm", "self"};

static int size, rank;

static float draw(uint64_t a, uint64_t b, uint64_t c)
{
    return 2 * hvt__unit(hvt__draw(17, a, b, c)) - 1;
}

/* ---- products ---- */

typedef struct product {
    int k, c, taps, r; /* taps: a side of the filter */
} product;

static const product products[] = {{5, 3, 3, 1},   {32, 16, 1, 2}, {70, 9, 3, 3},   {33, 65, 1, 4},
                                   {64, 31, 3, 5}, {1, 7, 2, 1},   {96, 130, 1, 9}, {17, 1, 5, 8}};

typedef struct factors {
    float *p, *q, *g, *e; /* [r][k], [r][taps*c], [k,c,taps] twice */
} factors;

static void release(factors *f)
{
    free(f->p), free(f->q), free(f->g), free(f->e);
}

static factors product_on(const char *device, const char *isa, int threads, const product *x)
{
    hvt_device_opts opts = {.threads = threads, .isa = isa, .yield = true};
    hvt_device *dev = NULL;
    hvt_op *op = NULL;
    int taps = x->taps * x->taps, m = taps * x->c;
    size_t elements = (size_t)x->k * (size_t)m, count, ws;
    factors f = {calloc((size_t)(x->k * x->r), 4), calloc((size_t)(m * x->r), 4), calloc(elements, 4),
                 calloc(elements, 4)};
    float *g, *e;

    CHECK_OK(hvt_device_open(device, &opts, &dev));
    CHECK_OK(dev->ops->conv.plan(dev,
                                 &(hvt_conv_desc){.order = hvt_device_order(dev, 2, 6, 6),
                                                  .n = 2,
                                                  .h = 6,
                                                  .w = 6,
                                                  .c = x->c,
                                                  .cx = x->c,
                                                  .k = x->k,
                                                  .r = x->taps,
                                                  .s = x->taps,
                                                  HVT_CONV_EVEN(1, 0)},
                                 &op, &count, &ws));
    CHECK_OK(dev->ops->memory.alloc(dev, count * 4, (void **)&g));
    CHECK_OK(dev->ops->memory.alloc(dev, count * 4, (void **)&e));
    for (size_t i = 0; i < elements; i++) {
        f.g[i] = draw(1, i, 0);
        f.e[i] = draw(2, i, 0);
    }
    for (int i = 0; i < m * x->r; i++)
        f.q[i] = draw(3, (uint64_t)i, 0);
    dev->ops->conv.permute(op, false, g, f.g);
    dev->ops->conv.permute(op, false, e, f.e);
    hvt_factor_args a = {x->k, m, x->r, g, e, f.p, f.q, .25f};
    CHECK_OK(dev->ops->host_only.factor_p(dev, &a));
    CHECK_OK(dev->ops->host_only.factor_q(dev, &a));
    CHECK_OK(dev->ops->host_only.factor_join(dev, &a));
    dev->ops->conv.permute(op, true, g, f.g);
    dev->ops->conv.permute(op, true, e, f.e);
    dev->ops->memory.release(dev, g);
    dev->ops->memory.release(dev, e);
    hvt__op_free(op);
    hvt_device_close(&dev);
    return f;
}

/* The same, in doubles. */
static factors product_here(const product *x)
{
    int taps = x->taps * x->taps, m = taps * x->c;
    size_t elements = (size_t)x->k * (size_t)m;
    factors f = {calloc((size_t)(x->k * x->r), 4), calloc((size_t)(m * x->r), 4), calloc(elements, 4),
                 calloc(elements, 4)};

#define AT(k, j) (((size_t)(k) * (size_t)x->c + (size_t)((j) % x->c)) * (size_t)taps + (size_t)((j) / x->c))
    for (size_t i = 0; i < elements; i++)
        f.e[i] = draw(1, i, 0) + draw(2, i, 0);
    for (int t = 0; t < x->r; t++)
        for (int k = 0; k < x->k; k++) {
            double sum = 0;

            for (int j = 0; j < m; j++)
                sum += (double)f.e[AT(k, j)] * draw(3, (uint64_t)(t * m + j), 0);
            f.p[t * x->k + k] = (float)sum;
        }
    for (int t = 0; t < x->r; t++)
        for (int j = 0; j < m; j++) {
            double sum = 0;

            for (int k = 0; k < x->k; k++)
                sum += (double)f.e[AT(k, j)] * f.p[t * x->k + k];
            f.q[t * m + j] = (float)sum;
        }
    for (int k = 0; k < x->k; k++)
        for (int j = 0; j < m; j++) {
            double sum = 0;

            for (int t = 0; t < x->r; t++)
                sum += (double)f.p[t * x->k + k] * f.q[t * m + j];
            f.g[AT(k, j)] = (float)sum;
            f.e[AT(k, j)] -= .25f * (float)sum;
        }
#undef AT
    return f;
}

/* The most that a is off, for the greatest of b. */
static double off(const float *a, const float *b, int n)
{
    double most = 0, greatest = 0;

    for (int i = 0; i < n; i++) {
        double far = fabs((double)a[i] - b[i]);

        most = far <= most ? most : far; /* a NaN stays */
        greatest = fmax(greatest, fabs((double)b[i]));
    }
    return most / greatest;
}

static void check_products(const char *device, const char *isa)
{
    for (size_t i = 0; i < HVT_LEN(products); i++) {
        const product *x = &products[i];
        int m = x->taps * x->taps * x->c, elements = x->k * m;
        factors want = product_here(x), one = product_on(device, isa, 1, x),
                three = product_on(device, isa, 3, x);
        double far = fmax(fmax(off(one.p, want.p, x->k * x->r), off(one.q, want.q, m * x->r)),
                          fmax(off(one.g, want.g, elements), off(one.e, want.e, elements)));

        CHECK(far < 2e-5, "%s %s: %d filters of %d, %d columns: off by %g", device, isa ? isa : "", x->k, m,
              x->r, far);
        CHECK(!memcmp(one.p, three.p, (size_t)(x->k * x->r) * 4) &&
                  !memcmp(one.q, three.q, (size_t)(m * x->r) * 4) &&
                  !memcmp(one.g, three.g, (size_t)elements * 4) &&
                  !memcmp(one.e, three.e, (size_t)elements * 4),
              "%s %s: other bits with three threads", device, isa ? isa : "");
        release(&want), release(&one), release(&three);
    }
}

TEST(factors_are_those_of_plain_loops)
{
    check_products("ref", NULL);
    for (int i = 0; i < hvt_cpu_isa_count(); i++)
        if (hvt_cpu_isa_supported(i))
            check_products("cpu", hvt_cpu_isa_name(i));
}

/* ---- steps, against plain loops over all ranks' gradients ---- */

static int step_now;

static float any_gradient(int shard, size_t i)
{
    return draw(100 + (uint64_t)step_now, (uint64_t)shard, i) * (float)(1 + i % 3);
}

/* A factor of its own for each rank, step and tensor: all of them span one row and one column. Rows of a
 * tensor are as long as `row`. */
static size_t row_of_tensor, first_of_tensor;

typedef struct model_of_all {
    double *e[8], *g; /* [ranks] what is left; what is applied */
    double *q;        /* of one tensor */
} model_of_all;

static setup by_hand(const char *comm, int r)
{
    setup u = usual(job, size);

    u.comm = comm;
    u.sgd = (hvt_optim_opts){0};
    u.dist.powersgd = r;
    u.dist.seed = 5;
    return u;
}

static void orthonormal(double *p, int k, int r)
{
    for (int t = 0; t < r; t++) {
        double sum = 0;

        for (int o = 0; o < 2 * t; o++) {
            double along = 0;

            for (int i = 0; i < k; i++)
                along += p[t * k + i] * p[o % t * k + i];
            for (int i = 0; i < k; i++)
                p[t * k + i] -= along * p[o % t * k + i];
        }
        for (int i = 0; i < k; i++)
            sum += p[t * k + i] * p[t * k + i];
        for (int i = 0; i < k; i++)
            p[t * k + i] /= sqrt(sum);
    }
}

/* What a step makes of one tensor, g and e at its place; q [r][m] becomes the next step's. ref: a gradient is
 * [k, m] as it lies. */
static void step_here(const hvt_param *t, int r, double *const e[], double *q, double *ret_g)
{
    int k = t->dim[0], m = (int)t->elements / k;
    double *p = calloc((size_t)(k * r), sizeof *p);

    for (int n = 0; n < size; n++)
        for (int i = 0; i < k * m; i++)
            e[n][i] += any_gradient(n, t->offset + (size_t)i);
    for (int c = 0; c < r; c++)
        for (int i = 0; i < k * m; i++)
            for (int n = 0; n < size; n++)
                p[c * k + i / m] += e[n][i] * q[c * m + i % m];
    orthonormal(p, k, r);
    memset(q, 0, (size_t)(r * m) * sizeof *q);
    for (int c = 0; c < r; c++)
        for (int i = 0; i < k * m; i++)
            for (int n = 0; n < size; n++)
                q[c * m + i % m] += e[n][i] * p[c * k + i / m];
    for (int i = 0; i < k * m; i++) {
        ret_g[i] = 0;
        for (int c = 0; c < r; c++)
            ret_g[i] += p[c * k + i / m] * q[c * m + i % m];
        for (int n = 0; n < size; n++)
            e[n][i] -= ret_g[i] / size;
    }
    free(p);
}

static bool travels_as_factors(const hvt_param *p, int r)
{
    int k = p->dim[0], m = (int)p->elements / k;

    return p->ndim > 1 && (k + m) * r < k * m;
}

/* A rig's parameters after each of `steps` steps, against what the loops above say of one tensor. */
static void check_tensor(rig *r, int i, float *const after[], int steps, const float *q, int rank_of_factors)
{
    const hvt_param *t = &r->m->param[i];
    int m = (int)t->elements / t->dim[0];
    double *e[8], *g = calloc(t->elements, sizeof *g),
                  *own = calloc((size_t)(rank_of_factors * m), sizeof *own);
    bool factored = travels_as_factors(t, rank_of_factors);

    for (int n = 0; n < size; n++)
        e[n] = calloc(t->elements, sizeof *e[n]);
    for (int j = 0; factored && j < rank_of_factors * m; j++)
        own[j] = q[j];
    for (step_now = 0; step_now < steps; step_now++) {
        double far = 0, greatest = 0;

        if (factored)
            step_here(t, rank_of_factors, e, own, g);
        for (size_t j = 0; j < t->elements; j++) {
            double got = (double)after[step_now][t->offset + j] - (double)after[step_now + 1][t->offset + j];
            double want = 0;

            for (int n = 0; n < size && !factored; n++)
                want += any_gradient(n, t->offset + j);
            want = (factored ? g[j] : want) / (3.0 * size);
            far = fabs(got - want) <= far ? far : fabs(got - want);
            greatest = fmax(greatest, fabs(want));
        }
        CHECK(far < 1e-4 * greatest, "step %d, %s: off by %g of %g", step_now, t->name, far, greatest);
    }
    for (int n = 0; n < size; n++)
        free(e[n]);
    free(g), free(own);
}

static void check_steps(const char *comm, int r)
{
    enum { STEPS = 4 };
    const int steps = heap_memcheck() ? 2 : STEPS;
    setup u = by_hand(comm, r);
    float *after[STEPS + 1], *q;
    size_t n;
    int factored = 0;
    rig x;

    CHECK_OK(rig_open(&x, &u));
    n = x.m->arena_count;
    CHECK_OK(hvt_distopt_gather(x.d, -1));
    CHECK(x.o->powersgd && x.o->powersgd->residual_scale == 0, "something is left before the first step");
    q = malloc((x.o->powersgd->q_count + 1) * sizeof *q);
    memcpy(q, x.o->powersgd->q, x.o->powersgd->q_count * sizeof *q);
    for (int t = 0; t <= steps; t++) {
        after[t] = malloc(n * sizeof **after);
        memcpy(after[t], x.m->params, n * sizeof **after);
        CHECK_OK(hvt_world_barrier(job));
        step_now = t;
        if (t < steps)
            CHECK_OK(step_by_hand(&x, any_gradient, 3, 1));
    }
    for (int i = 0; i < x.m->nparam_tensors; i++) {
        const hvt__powersgd_tensor *f = &x.o->powersgd->tensor[factored];
        bool is = factored < x.o->powersgd->n && f->param == i;

        CHECK(is == travels_as_factors(&x.m->param[i], r), "%s: factors %d", x.m->param[i].name, is);
        check_tensor(&x, i, after, steps, is ? q + f->q_at : NULL, r);
        factored += is;
    }
    CHECK(factored > 4, "%d tensors travel as factors", factored);
    for (int t = 0; t <= steps; t++)
        free(after[t]);
    free(q);
    rig_close(&x);
}

TEST(steps_are_those_of_plain_loops_over_all_ranks)
{
    for (size_t c = 0; c < HVT_LEN(comms); c++)
        for (int r = 1; r < 4 && can_open(comms[c]); r++)
            check_steps(comms[c], r);
}

TEST(comms_buckets_threads_and_a_worker_do_not_change_a_bit)
{
    const int steps = heap_memcheck() ? 2 : 6;
    result want[2], plain;

    for (int k = 0; k < 2; k++) {
        setup u = usual(job, 2 * size);

        u.device = k ? "cpu" : "ref";
        u.dist.update = HVT_UPDATE_REPLICATED;
        plain = train(&u, steps);
        u.dist.powersgd = 2;
        want[k] = train(&u, steps);
        check_replicas("the first", want[k]);
        CHECK(want[k].weights != plain.weights, "factors change nothing");
        check_every_exchange(u, steps, want[k]);
    }
}

/* ---- steps, against torch's hook ---- */

enum { ROWS = 12, COLUMNS = 10 };

static hvt_status open_linear(rig *r, const setup *u)
{
    *r = (rig){.u = *u};
    r->u.dist.local_shards = 1;
    HVT_TRY(hvt_device_open(u->device, &(hvt_device_opts){.threads = 1, .yield = true}, &r->dev));
    HVT_TRY(hvt_comm_open(u->comm, u->world, r->dev, &r->comm));
    HVT_TRY(hvt_model_create(r->dev, &r->m));
    HVT_TRY(hvt_model_plan(r->m, 1, hvt_linear(r->m, hvt_input(r->m, 1, 1, COLUMNS), ROWS)));
    HVT_TRY(hvt_model_init(r->m, 1));
    HVT_TRY(hvt_optim_create(r->m, &u->sgd, &r->o));
    return hvt_distopt_create(r->o, r->comm, &r->u.dist, NULL, 0, &r->d);
}

/* Begin with torch's Q, [columns][m]. */
static void set_q(rig *r, const float *q)
{
    hvt__powersgd_state *memory = r->o->powersgd;

    CHECK(memory->n == 1 && memory->tensor[0].m == COLUMNS, "%d tensors of factors", memory->n);
    if (rank == 0) {
        CHECK_OK(hvt__powersgd_state_alloc(memory, size));
        memcpy(memory->q, q, (size_t)(memory->r * COLUMNS) * sizeof *q);
        memory->residual_scale = 0;
        memory->loaded = true;
    }
    CHECK_OK(hvt_distopt_broadcast(r->d, 0));
}

/* make_powersgd.py's gradient(). */
static float torch_s_gradient(int step, int at)
{
    return (float)((at * 7919 + at * at * 31 + step * 10477 + rank * 3571) % 1009 - 504) / 256;
}

/* A step's mean gradient of the weight, canonical. */
static void step_of_linear(rig *r, int step, float ret_g[ROWS * COLUMNS])
{
    const hvt_param *p = &r->m->param[1];
    float before[ROWS * COLUMNS], g[ROWS * COLUMNS];

    for (int i = 0; i < ROWS * COLUMNS; i++)
        g[i] = torch_s_gradient(step, i);
    CHECK_OK(hvt__model_export(r->m, p, r->m->params, before));
    CHECK_OK(hvt_distopt_begin(r->d, (int[]){1, 1}, 2, 1));
    CHECK_OK(r->dev->ops->memory.zero(r->dev, r->m->grads, r->m->arena_count * sizeof *g));
    CHECK_OK(hvt__model_import(r->m, p, r->m->grads, g));
    CHECK_OK(hvt_distopt_on_grad(r->d, 0, r->m->arena_count));
    CHECK_OK(hvt_distopt_step(r->d));
    CHECK_OK(hvt__model_export(r->m, p, r->m->params, ret_g));
    for (int i = 0; i < ROWS * COLUMNS; i++)
        ret_g[i] = before[i] - ret_g[i];
}

static void check_torch(FILE *f, const char *device)
{
    int rows = 0, columns = 0, r = 0, steps = 0;
    float q[COLUMNS * COLUMNS], want[ROWS * COLUMNS], got[ROWS * COLUMNS];
    setup u = by_hand("auto", 0);
    rig x;

    rewind(f);
    CHECK(fscanf(f, "%*[^\n] %d %d %d %d", &rows, &columns, &r, &steps) == 4 && rows == ROWS &&
              columns == COLUMNS && r < COLUMNS && steps > 0,
          "%d x %d, %d columns, %d steps", rows, columns, r, steps);
    for (int i = 0; i < r * COLUMNS; i++)
        CHECK(fscanf(f, "%f", &q[i]) == 1, "Q ends after %d numbers", i);
    u.device = device;
    u.dist.powersgd = r;
    CHECK_OK(open_linear(&x, &u));
    set_q(&x, q);
    for (int t = 0; t < steps; t++) {
        for (int i = 0; i < ROWS * COLUMNS; i++)
            CHECK(fscanf(f, "%f", &want[i]) == 1, "step %d ends after %d numbers", t, i);
        step_of_linear(&x, t, got);
        CHECK(off(got, want, ROWS * COLUMNS) < 2e-5, "%s, step %d: off by %g", device, t,
              off(got, want, ROWS * COLUMNS));
    }
    rig_close(&x);
}

TEST(torch_s_hook_makes_the_same)
{
    FILE *f = fopen(check_file("golden/powersgd.txt"), "r");

    CHECK(f, "golden/powersgd.txt cannot be read");
    if (!f)
        return;
    check_torch(f, "ref");
    check_torch(f, "cpu");
    fclose(f);
}

/* ---- what is carried, and what is left ---- */

/* Of one row and one column, whatever the step and rank. */
static float narrow_gradient(int shard, size_t i)
{
    size_t at = i - first_of_tensor;

    return (float)(1 + shard + step_now) * draw(7, at / row_of_tensor, 0) * draw(8, at % row_of_tensor, 0);
}

static rig *narrow_rig;

static float narrow_everywhere(int shard, size_t i)
{
    const hvt_model *m = narrow_rig->m;
    int t = m->nparam_tensors - 1;

    if (i < m->step_stats_count)
        return 0;
    while (t > 0 && m->param[t].offset > i)
        t--;
    first_of_tensor = m->param[t].offset;
    row_of_tensor = m->param[t].elements / (size_t)m->param[t].dim[0];
    return i < first_of_tensor + m->param[t].elements ? narrow_gradient(shard, i) : 0;
}

TEST(gradients_of_low_rank_come_through_whole)
{
    enum { STEPS = 5 };

    for (int r = 1; r < 3; r++) {
        setup u = by_hand("auto", r);
        float *w[2], *start = NULL;
        size_t n = 0;

        for (int k = 0; k < 2; k++) {
            rig x;

            u.dist.powersgd = k ? r : 0;
            CHECK_OK(rig_open(&x, &u));
            narrow_rig = &x;
            if (!k)
                start = parameters(&x, &n);
            for (step_now = 0; step_now < STEPS; step_now++)
                CHECK_OK(step_by_hand(&x, narrow_everywhere, 2, .5));
            w[k] = parameters(&x, &n);
            rig_close(&x);
        }
        CHECK(distance(w[1], w[0], start, n) < 2e-6, "rank %d: off by %g", r, distance(w[1], w[0], start, n));
        free(w[0]), free(w[1]), free(start);
    }
}

/* Steps of unequal numbers of images: in mean gradients nothing is lost. */
TEST(what_factors_cannot_carry_is_sent_later)
{
    enum { STEPS = 24 };
    setup u = by_hand("auto", 1);
    double far = 0, all = 0, left = 0, last = 0;
    float *start;
    rig x;

    CHECK_OK(rig_open(&x, &u));
    start = malloc(x.m->arena_count * sizeof *start);
    memcpy(start, x.m->params, x.m->arena_count * sizeof *start);
    CHECK_OK(hvt_world_barrier(job));
    for (step_now = 0; step_now < STEPS; step_now++)
        CHECK_OK(step_by_hand(&x, any_gradient, 1 + step_now % 4, 1));
    CHECK_OK(hvt_distopt_gather(x.d, -1));
    last = x.o->powersgd->residual_scale;
    CHECK(last == (1 + (STEPS - 1) % 4) * size, "the residuals' scale is %g", last);
    for (int f = 0; f < x.o->powersgd->n; f++) {
        const hvt_param *p = &x.m->param[x.o->powersgd->tensor[f].param];

        for (size_t j = 0; j < p->elements; j++) {
            double sent = (double)start[p->offset + j] - (double)x.m->params[p->offset + j], held = 0,
                   given = 0;

            for (int n = 0; n < size; n++)
                held +=
                    x.o->powersgd->residual[(size_t)n * x.o->powersgd->residual_count + p->offset + j] / last;
            for (step_now = 0; step_now < STEPS; step_now++)
                for (int n = 0; n < size; n++)
                    given += any_gradient(n, p->offset + j) / ((1 + step_now % 4) * size);
            far = fmax(far, fabs(sent + held - given));
            left = fmax(left, fabs(held));
            all = fmax(all, fabs(given));
        }
    }
    CHECK(left > .1 * all, "almost nothing is left: %g of %g", left, all);
    CHECK(far < 3e-5 * all, "%g of %g is neither sent nor held back", far, all);
    free(start);
    CHECK_OK(hvt_world_barrier(job));
    rig_close(&x);
}

/* The first updates overflow; then it is as if training began there. */
TEST(a_skipped_update_leaves_nothing_behind)
{
    setup u = usual(job, size);
    result a, b;
    rig x, y;

    u.type = HVT_F16;
    u.dist.powersgd = 2;
    u.sgd = (hvt_optim_opts){.kind = HVT_OPTIM_ADAM, HVT_ADAM_DEFAULTS};
    u.norm = false; /* moving statistics are kept when an update is skipped */
    skip_first_updates(&u, &x, &y);
    CHECK_OK(rig_result(&x, &a));
    CHECK_OK(rig_result(&y, &b));
    CHECK(a.weights == b.weights && a.momentum == b.momentum, "a skipped update left something behind");
    check_replicas("after skips", a);
    rig_close(&x);
    rig_close(&y);
}

/* ---- checkpoints ---- */

/* `steps` steps from the `first` on, from the checkpoint if there were any before; saved if asked for. */
static result part_of_a_run(const setup *u, int first, int steps, bool saves)
{
    hvt_progress p = {0};
    result ret = {0};
    rig r;

    CHECK_OK(rig_open(&r, u));
    if (first && hvt_world_rank(u->world) == 0) {
        CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
        free(p.options);
        CHECK(r.o->powersgd->loaded, "nothing was loaded");
        if (hvt_world_size(u->world) == 1)
            CHECK_FAILS(rig_step(&r, 0), E_ARG, "hvt_distopt_broadcast()");
    }
    CHECK_OK(hvt_distopt_broadcast(r.d, 0));
    for (int t = first; t < first + steps; t++)
        CHECK_OK(rig_step(&r, t));
    if (saves) {
        if (hvt_world_rank(u->world) == 0)
            CHECK_FAILS(hvt_checkpoint_save(folder, "last", r.m, r.o, &p), E_ARG, "hvt_distopt_gather()");
        CHECK_OK(hvt_distopt_gather(r.d, 0));
        if (hvt_world_rank(u->world) == 0)
            CHECK_OK(hvt_checkpoint_save(folder, "last", r.m, r.o, &p));
    }
    CHECK_OK(hvt_world_barrier(u->world));
    CHECK_OK(rig_result(&r, &ret));
    rig_close(&r);
    return ret;
}

TEST(a_run_that_goes_on_equals_one_that_was_not_stopped)
{
    for (int k = 0; k < 2; k++) {
        setup u = usual(job, 2 * size);
        result straight, halves;

        u.device = k ? "cpu" : "ref";
        u.dist.powersgd = 2;
        straight = part_of_a_run(&u, 0, 7, false);
        part_of_a_run(&u, 0, 3, true);
        halves = part_of_a_run(&u, 3, 4, false);
        CHECK(straight.weights == halves.weights && straight.momentum == halves.momentum,
              "%s: %016llx in one, %016llx in two halves", u.device, (unsigned long long)straight.weights,
              (unsigned long long)halves.weights);
    }
}

/* On one rank what all of them left is one. Other factors take that along, too. */
TEST(what_other_ranks_left_is_summed)
{
    setup u = usual(job, 2 * size), v = usual(lone, 2);
    double *sum, far = 0, all = 0;
    size_t n;
    hvt_progress p = {0};
    rig r;

    u.dist.powersgd = 2;
    part_of_a_run(&u, 0, 3, true);
    if (rank == 0) {
        v.dist.powersgd = 2;
        CHECK_OK(rig_open(&r, &v));
        CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
        free(p.options);
        n = r.o->powersgd->residual_count;
        CHECK(r.o->powersgd->ranks == size, "of %d ranks", r.o->powersgd->ranks);
        sum = calloc(n, sizeof *sum);
        for (size_t i = 0; i < n * (size_t)size; i++)
            sum[i % n] += r.o->powersgd->residual[i];
        CHECK_OK(hvt_distopt_broadcast(r.d, 0));
        CHECK_OK(hvt_distopt_gather(r.d, 0));
        for (size_t i = 0; i < n; i++) {
            far = fmax(far, fabs(r.o->powersgd->residual[i] - sum[i]));
            all = fmax(all, fabs(sum[i]));
        }
        CHECK(all > 0 && far < 1e-6 * all, "off by %g of %g", far, all);
        free(sum);
        rig_close(&r);
        v.dist.powersgd = 1;
        CHECK_OK(rig_open(&r, &v));
        CHECK_OK(hvt_checkpoint_load(folder, r.m, r.o, &p));
        free(p.options);
        CHECK_OK(hvt_distopt_broadcast(r.d, 0));
        CHECK_OK(rig_step(&r, 3));
        rig_close(&r);
    }
    CHECK_OK(hvt_world_barrier(job));
}

/* ---- bytes, and mistakes ---- */

TEST(a_step_sends_fewer_bytes)
{
    setup u = usual(job, size);
    size_t whole, few = 0, want = 0;
    rig r;

    CHECK_OK(rig_open(&r, &u));
    whole = hvt_distopt_bytes(r.d);
    CHECK(whole == r.m->arena_count * sizeof(float), "%zu bytes as f32", whole);
    rig_close(&r);
    u.dist.powersgd = 1;
    CHECK_OK(rig_open(&r, &u));
    few = hvt_distopt_bytes(r.d);
    for (int i = 0; i < r.m->nparam_tensors; i++) {
        const hvt_param *p = &r.m->param[i];
        size_t k = (size_t)p->dim[0], m = p->elements / k;

        want +=
            travels_as_factors(p, 1) ? (k + 15) / 16 * 16 + (m + 15) / 16 * 16 : (p->count + 15) / 16 * 16;
    }
    want += r.m->step_stats_count;
    CHECK(few == want * sizeof(float) && few < whole / 2, "%zu bytes as factors, expected %zu; %zu as f32",
          few, want * sizeof(float), whole);
    rig_close(&r);
}

TEST(what_does_not_fit_together_or_differs_is_refused)
{
    static const struct {
        hvt_distopt_opts dist;
        const char *text;
    } bad[] = {
        {{.powersgd = -1}, "PowerSGD of rank -1"},
        {{.powersgd = 1, .wire = HVT_BF16}, "sends its factors as f32, not as bf16"},
        {{.powersgd = 1, .update = HVT_UPDATE_SHARDED}, "needs a replicated update"},
    };
    rig r;

    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        setup u = usual(job, size);

        u.dist = bad[i].dist;
        CHECK_FAILS(rig_open(&r, &u), E_ARG, bad[i].text);
        rig_close(&r);
    }
    for (int k = 0; k < 2 && size > 1; k++) {
        setup u = usual(job, size);

        u.dist.powersgd = k || rank ? 2 : 1;
        u.dist.seed = k && !rank;
        CHECK_FAILS(rig_open(&r, &u), E_MISMATCH, k ? "PowerSGD's seed" : "wire");
        rig_close(&r);
    }
}

/* One folder for all ranks. */
static bool make_folder(void)
{
    bool made = rank || folder_make();

    CHECK_OK(hvt_world_broadcast(job, folder, sizeof folder, 0));
    return made;
}

int main(void)
{
    if (!rig_begin())
        return 1;
    size = hvt_world_size(job);
    rank = hvt_world_rank(job);
    if (!make_folder())
        return 1;
    RUN(factors_are_those_of_plain_loops);
    RUN(steps_are_those_of_plain_loops_over_all_ranks);
    if (size == 2)
        RUN(torch_s_hook_makes_the_same);
    RUN(comms_buckets_threads_and_a_worker_do_not_change_a_bit);
    RUN(gradients_of_low_rank_come_through_whole);
    RUN(what_factors_cannot_carry_is_sent_later);
    RUN(a_skipped_update_leaves_nothing_behind);
    RUN(a_run_that_goes_on_equals_one_that_was_not_stopped);
    RUN(what_other_ranks_left_is_summed);
    RUN(a_step_sends_fewer_bytes);
    RUN(what_does_not_fit_together_or_differs_is_refused);
    if (rank == 0)
        CHECK(folder_remove(), "%s stays behind", folder);
    return rig_end();
}
