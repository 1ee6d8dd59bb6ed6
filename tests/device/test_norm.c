/*
 * norm: batch norm of every device equals ref's, over random shapes, both row orders and short batches whose
 * padding holds NaN.
 */
#include "devices.h"

enum { CASES = 60 };

typedef struct bn_result {
    float *y, *mean, *rstd, *moments;
} bn_result;

/* The moments alone, from which shards join theirs, are those that bn_train normalises with. */
static void check_moments(hvt_device *d, hvt_bn_args a, const shape *s)
{
    size_t rows = (size_t)s->pixels * (size_t)s->real;
    float *moments = unwritten(HVT_F32, 2 * (size_t)s->c);

    a.moments = moments;
    CHECK_OK(d->ops->matrix.bn_moments(d, &a));
    CHECK(!memcmp(moments, a.mean, (size_t)s->c * sizeof *moments), "%s: another mean", d->ops->name);
    for (int i = 0; i < s->c && rows; i++) {
        double rstd = 1 / sqrt((double)moments[s->c + i] / (double)rows + a.eps);

        CHECK(fabs(rstd - a.rstd[i]) <= 1e-6 * rstd || (isnan(rstd) && isnan(a.rstd[i])),
              "%s: channel %d: deviation 1/%g, not 1/%g", d->ops->name, i, rstd, (double)a.rstd[i]);
    }
    free(moments);
}

/* In a.type. */
static bn_result run_bn(hvt_device *d, hvt_bn_args a, const shape *s, bool train, const bn_result *given)
{
    bn_result r = {NULL, unwritten(HVT_F32, s->c), unwritten(HVT_F32, s->c), unwritten(HVT_F32, 2 * s->c)};
    void *x = packed(a.type, a.x, s->all), *res = a.residual ? packed(a.type, a.residual, s->all) : NULL,
         *y = unwritten(a.type, s->all);

    a.x = x;
    a.residual = res;
    a.y = y;
    a.mean = r.mean;
    a.rstd = r.rstd;
    a.moments = r.moments;
    a.is_variance = !train;
    if (!train) {
        memcpy(r.mean, given->mean, s->c * 4);
        memcpy(r.rstd, given->rstd, s->c * 4);
    }
    CHECK_OK(train ? d->ops->matrix.bn_train(d, &a) : d->ops->matrix.bn_infer(d, &a));
    if (train)
        check_moments(d, a, s);
    r.y = unpacked(a.type, y, s->all);
    if (train && d->ops->recomputes) {
        float *again;

        a.y = unwritten(a.type, s->all);
        a.is_variance = false;
        CHECK_OK(d->ops->matrix.bn_infer(d, &a));
        again = unpacked(a.type, a.y, s->all);
        for (size_t i = 0; i < s->all; i++)
            if (i / (size_t)s->c % (size_t)s->rows.block >= (size_t)s->rows.real)
                again[i] = r.y[i]; /* rows that are not real */
        CHECK(!memcmp(again, r.y, s->all * sizeof *again), "%s: y made again is another", d->ops->name);
        free(again);
    }
    free(x);
    free(res);
    return r;
}

static void free_bn(bn_result *r)
{
    free(r->y);
    free(r->mean);
    free(r->rstd);
    free(r->moments);
}

/* The first ones are wide and have many rows: they are cut both ways. */
static shape norm_shape(int t)
{
    const int rows = heap_memcheck() ? 520 : t ? 1030 : 700;

    return t < (heap_memcheck() ? 1 : 2) ? make_shape(HVT_ORDER_HWN, 1, rows, rows, t ? 1024 : 520)
                                         : random_shape();
}

TEST(batch_norm_equals_ref)
{
    for (int t = 0; t < cases(CASES); t++) {
        shape s = norm_shape(t);
        float *x = matrix(&s, between(0, 1) ? 3 : 0), *res = matrix(&s, 0), *gamma = floats(s.c),
              *beta = floats(s.c);
        hvt_bn_args a = {.rows = s.rows,
                         .c = s.c,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .residual = between(0, 1) ? res : NULL,
                         .relu = between(0, 1),
                         .weight = 0.25f};
        bn_result want[2] = {{0}}, first[2] = {{0}}; /* train, infer */
        /* with few rows a channel's deviation, and with it every digit, may be lost to its mean */
        double bound = s.pixels * s.real < 8 ? 2e-3 : 2e-5;

        want[0] = run_bn(ref, a, &s, true, NULL);
        for (int i = 0; i < s.c; i++)
            want[0].rstd[i] = 1 / (want[0].rstd[i] * want[0].rstd[i]); /* a variance for infer */
        want[1] = run_bn(ref, a, &s, false, &want[0]);
        for (int i = 0; i < s.c; i++)
            want[0].rstd[i] = 1 / sqrtf(want[0].rstd[i]);
        a.type = s.type;
        for (int dev = 0; dev < ndevs; dev++) {
            bn_result got[2] = {run_bn(devs[dev], a, &s, true, NULL)};

            check_near("mean", dev, NULL, s.c, got[0].mean, want[0].mean, 1e-6);
            check_near("rstd", dev, NULL, s.c, got[0].rstd, want[0].rstd, bound);
            check_near("moments", dev, NULL, 2 * s.c, got[0].moments, want[0].moments, 2e-6);
            check_near("train", dev, &s, s.all, got[0].y, want[0].y, bound);
            for (int i = 0; i < s.c; i++) {
                float deviation = 1 / want[0].rstd[i];

                got[0].rstd[i] = deviation * deviation;
                got[0].mean[i] = want[0].mean[i];
            }
            got[1] = run_bn(devs[dev], a, &s, false, &got[0]);
            check_near("infer", dev, &s, s.all, got[1].y, want[1].y, 1e-4);
            if (dev == one_thread(dev)) {
                free_bn(&first[0]);
                free_bn(&first[1]);
                memcpy(first, got, sizeof first);
                continue;
            }
            check_same("train", dev, &s, s.all, got[0].y, first[0].y);
            check_same("moments", dev, NULL, 2 * s.c, got[0].moments, first[0].moments);
            check_same("infer", dev, &s, s.all, got[1].y, first[1].y);
            free_bn(&got[0]);
            free_bn(&got[1]);
        }
        for (int i = 0; i < 2; i++) {
            free_bn(&want[i]);
            free_bn(&first[i]);
        }
        free(x);
        free(res);
        free(gamma);
        free(beta);
    }
}

TEST(batch_statistics_of_many_rows_keep_their_digits)
{
    static const struct {
        int rows, c;
        float offset;
    } cases[] = {{256 * 16 * 16, 16, 0}, {256 * 16 * 16, 16, 100}, {50001, 3, -30},
                 {4099, 37, 7},          {997, 260, 50},           {1030, 520, 50}};

    for (size_t t = 0; t < HVT_LEN(cases); t++) {
        int rows = cases[t].rows / (heap_memcheck() && cases[t].rows > 10000 ? 8 : 1);
        shape s = make_shape(HVT_ORDER_HWN, 1, rows, rows, cases[t].c);
        float *x = matrix(&s, cases[t].offset), *one = room(s.c * 4);
        hvt_bn_args a = {.rows = s.rows, .c = s.c, .x = x, .gamma = one, .beta = one, .eps = 0, .weight = 1};

        for (int i = 0; i < s.c; i++)
            one[i] = 1;
        for (int i = 0; i < s.c; i++) /* the first rows are far from the rest */
            x[i] += 40;
        for (int dev = 1; dev < ndevs; dev++) {
            bn_result r = run_bn(devs[dev], a, &s, true, NULL);
            double worst_mean = 0, worst_var = 0;

            for (int c = 0; c < s.c; c++) {
                double mean = 0, var = 0;

                for (int i = 0; i < s.n; i++)
                    mean += x[(size_t)i * s.c + c];
                mean /= s.n;
                for (int i = 0; i < s.n; i++)
                    var += (x[(size_t)i * s.c + c] - mean) * (x[(size_t)i * s.c + c] - mean);
                var /= s.n - 1;
                worst_mean = fmax(worst_mean, fabs(r.moments[c] - mean) / (fabs(mean) + sqrt(var)));
                worst_var = fmax(worst_var, fabs(r.moments[s.c + c] - var) / var);
            }
            CHECK(worst_mean < 2e-7, "case %zu on %s: mean off by %.2g", t, hvt_device_isa(devs[dev]),
                  worst_mean);
            /* an offset of 100 leaves the data themselves 2^-18 */
            CHECK(worst_var < 1.5e-6, "case %zu on %s: variance off by %.2g", t, hvt_device_isa(devs[dev]),
                  worst_var);
            free_bn(&r);
        }
        free(x);
        free(one);
    }
}

typedef struct bn_grad_result {
    float *dx, *res, *dgamma, *dbeta;
} bn_grad_result;

enum alias { APART, DX_IS_DY, RES_IS_DY, NO_RES, ALIASES };

/* In two calls, as where other shards' sums come between: here there are none. */
static hvt_status backward_in_two(hvt_device *d, hvt_bn_grad_args *a, const shape *s)
{
    float *means = unwritten(HVT_F32, 2 * (size_t)s->c), rows = (float)(s->pixels * s->real);

    a->share = means;
    a->slope = means + s->c;
    HVT_TRY(d->ops->matrix.bn_sums(d, a));
    for (int i = 0; i < s->c; i++) {
        means[i] = rows > 0 ? a->dbeta[i] / rows : 0;
        means[s->c + i] = rows > 0 ? a->dgamma[i] / rows : 0;
    }
    HVT_TRY(d->ops->matrix.bn_dx(d, a));
    free(means);
    return HVT_OK;
}

/* In a.type. */
static bn_grad_result run_bn_grad(hvt_device *d, hvt_bn_grad_args a, const shape *s, enum alias alias,
                                  bool two, const float *dy0, const float *dx0, const float *res0)
{
    bn_grad_result r = {NULL, NULL, unwritten(HVT_F32, s->c), unwritten(HVT_F32, s->c)};
    void *x = packed(a.type, a.x, s->all), *y = a.y ? packed(a.type, a.y, s->all) : NULL,
         *dy = packed(a.type, dy0, s->all), *dx = packed(a.type, alias == DX_IS_DY ? dy0 : dx0, s->all),
         *res = packed(a.type, alias == RES_IS_DY ? dy0 : res0, s->all);

    a.x = x;
    a.y = y;
    a.dy = alias == DX_IS_DY ? dx : alias == RES_IS_DY ? res : dy;
    a.dz = alias == DX_IS_DY ? dx : dy;
    a.dx = dx;
    a.dresidual = alias == NO_RES ? NULL : res;
    a.add &= alias != DX_IS_DY;
    a.add_residual &= alias != RES_IS_DY;
    a.dgamma = r.dgamma;
    a.dbeta = r.dbeta;
    CHECK_OK(two ? backward_in_two(d, &a, s) : d->ops->matrix.bn_backward(d, &a));
    r.dx = unpacked(a.type, dx, s->all);
    r.res = unpacked(a.type, res, s->all);
    free(x);
    free(y);
    free(dy);
    return r;
}

static void free_bn_grad(bn_grad_result *r)
{
    free(r->dx);
    free(r->res);
    free(r->dgamma);
    free(r->dbeta);
}

TEST(batch_norm_backward_equals_ref)
{
    for (int t = 0; t < cases(CASES); t++) {
        shape s = norm_shape(t);
        enum alias alias = (enum alias)between(0, ALIASES - 1);
        float *x = matrix(&s, 1), *y = matrix(&s, 0), *dy = matrix(&s, 0), *dx0 = matrix(&s, 0),
              *res0 = matrix(&s, 0), *gamma = floats(s.c), *mean = floats(s.c), *rstd = floats(s.c);
        hvt_bn_grad_args a = {.rows = s.rows,
                              .c = s.c,
                              .x = x,
                              .y = between(0, 1) ? y : NULL,
                              .gamma = gamma,
                              .mean = mean,
                              .rstd = rstd,
                              .add = between(0, 1),
                              .add_residual = between(0, 1)};
        bn_grad_result want, first = {0};

        for (int i = 0; i < s.c; i++) {
            mean[i] += 1;
            rstd[i] = 1.5f + rstd[i];
        }
        for (size_t i = 0; i < s.all; i++) /* what relu leaves: zeros */
            y[i] = y[i] < 0 ? 0 : y[i];
        want = run_bn_grad(ref, a, &s, alias, false, dy, dx0, res0);
        round_all(s.type, want.res, s.all); /* nothing but dy's elements, or one sum each */
        a.type = s.type;
        for (int dev = 0; dev < ndevs; dev++) {
            bn_grad_result got = run_bn_grad(devs[dev], a, &s, alias, t % 2, dy, dx0, res0);
            double bound = 1e-6 * (4 + sqrt((double)s.pixels * s.real));

            check_near("dgamma", dev, NULL, s.c, got.dgamma, want.dgamma, bound);
            check_near("dbeta", dev, NULL, s.c, got.dbeta, want.dbeta, bound);
            check_near("dx", dev, &s, s.all, got.dx, want.dx, 1e-5);
            check_same("dresidual", dev, &s, s.all, got.res, want.res);
            if (dev == one_thread(dev)) {
                free_bn_grad(&first);
                first = got;
                continue;
            }
            check_same("dgamma", dev, NULL, s.c, got.dgamma, first.dgamma);
            check_same("dbeta", dev, NULL, s.c, got.dbeta, first.dbeta);
            check_same("dx", dev, &s, s.all, got.dx, first.dx);
            free_bn_grad(&got);
        }
        free_bn_grad(&want);
        free_bn_grad(&first);
        free(x);
        free(y);
        free(dy);
        free(dx0);
        free(res0);
        free(gamma);
        free(mean);
        free(rstd);
    }
}

enum { SHARDS = 5 };

/* What ref leaves of each shard's rows, which follow each other in x and dy: moments, or sums by the mean and
 * deviation of all. What nobody may read is NaN. */
static float *parts_of(const hvt_bn_join_args *join, const int *images, const int *place, const float *x,
                       const float *dy, const bn_result *all)
{
    const size_t c = (size_t)join->c;
    float *parts = unwritten(HVT_F32, SHARDS * join->stride);

    for (int i = 0, row = 0, rows; i < SHARDS; row += rows, i++) {
        float *part = parts + (size_t)place[i] * join->stride;
        hvt_bn_args a = {.c = join->c, .x = x + (size_t)row * c, .moments = part};
        hvt_bn_grad_args g = {.c = join->c,
                              .x = a.x,
                              .dy = dy + (size_t)row * c,
                              .mean = all->mean,
                              .rstd = all->rstd,
                              .dgamma = part,
                              .dbeta = part + c};

        rows = images[i] * join->pixels;
        a.rows = g.rows = (hvt_rows){1, rows, rows};
        if (rows)
            CHECK_OK(all->mean ? ref->ops->matrix.bn_sums(ref, &g) : ref->ops->matrix.bn_moments(ref, &a));
    }
    return parts;
}

typedef struct joined {
    float *norm, *moments, *means; /* [2,c] each */
} joined;

static joined run_join(hvt_device *d, hvt_bn_join_args a, const float *moments, const float *sums)
{
    const size_t n = 2 * (size_t)a.c;
    const joined r = {unwritten(HVT_F32, n), unwritten(HVT_F32, n), unwritten(HVT_F32, n)};

    a.part = moments;
    a.joined = r.norm;
    a.moments = r.moments;
    CHECK_OK(d->ops->matrix.bn_join_moments(d, &a));
    a.part = sums;
    a.joined = r.means;
    a.moments = NULL;
    CHECK_OK(d->ops->matrix.bn_join_sums(d, &a));
    return r;
}

static void free_joined(joined *r)
{
    free(r->norm);
    free(r->moments);
    free(r->means);
}

/* Whatever the places of their parts. */
TEST(joined_shards_are_one_batch_and_have_ref_s_bits)
{
    for (int t = 0; t < cases(CASES); t++) {
        int images[SHARDS], place[SHARDS], rows = 0, turn = between(0, SHARDS - 1), c = random_shape().c;
        hvt_bn_shard *shard = room(SHARDS * sizeof *shard);
        hvt_bn_join_args a = {.c = c,
                              .pixels = between(2, 30),
                              .shard = shard,
                              .stride = 2 * (size_t)c + (size_t)between(0, 16),
                              .eps = 1e-5f};
        float *x, *dy, *gamma = floats(c), *beta = floats(c), *moments, *sums,
                       *means = room(2 * (size_t)c * 4);
        double few;
        bn_result whole;
        shape s;
        joined want;

        for (int i = 0; i < SHARDS; i++) {
            images[i] = i == turn ? 1 : between(0, 4);
            place[i] = (i * 2 + turn) % SHARDS;
            rows += images[i] * a.pixels;
            if (images[i])
                shard[a.shards++] = (hvt_bn_shard){place[i], images[i]};
        }
        s = make_shape(HVT_ORDER_NHW, 1, rows, rows, c);
        x = matrix(&s, 3);
        dy = matrix(&s, 0);
        whole = run_bn(
            ref,
            (hvt_bn_args){
                .rows = s.rows, .c = c, .eps = a.eps, .x = x, .gamma = gamma, .beta = beta, .weight = 1},
            &s, true, NULL);
        CHECK_OK(ref->ops->matrix.bn_sums(ref, &(hvt_bn_grad_args){.rows = s.rows,
                                                                   .c = c,
                                                                   .x = x,
                                                                   .dy = dy,
                                                                   .mean = whole.mean,
                                                                   .rstd = whole.rstd,
                                                                   .dbeta = means,
                                                                   .dgamma = means + c}));
        for (int i = 0; i < 2 * c; i++)
            means[i] /= (float)rows;
        moments = parts_of(&a, images, place, x, dy, &(bn_result){0});
        sums = parts_of(&a, images, place, x, dy, &whole);
        want = run_join(ref, a, moments, sums);
        few = rows < 8 ? 2e-3 : 2e-5; /* a deviation may be lost to its mean */
        check_near("joined mean", 0, NULL, c, want.norm, whole.mean, 1e-6);
        check_near("joined deviation", 0, NULL, c, want.norm + c, whole.rstd, few);
        check_near("joined moments", 0, NULL, 2 * c, want.moments, whole.moments, 2e-6);
        check_near("share and slope", 0, NULL, 2 * c, want.means, means, 1e-6);
        for (int dev = 1; dev < ndevs; dev++) {
            joined got = run_join(devs[dev], a, moments, sums);

            check_same("joined", dev, NULL, 2 * c, got.norm, want.norm);
            check_same("joined moments", dev, NULL, 2 * c, got.moments, want.moments);
            check_same("share and slope", dev, NULL, 2 * c, got.means, want.means);
            free_joined(&got);
        }
        free_joined(&want);
        free_bn(&whole);
        free(means);
        free(moments);
        free(sums);
        free(shard);
        free(gamma);
        free(beta);
        free(x);
        free(dy);
    }
}

/* Backward may take relu's mask from x again instead of from y: no bit changes, not even where y is so small
 * that f16 makes zero of it. */
TEST(relu_s_mask_is_the_same_from_x)
{
    for (int t = 0; t < cases(CASES); t++) {
        shape s = random_shape();
        float *x = matrix(&s, 1), *dy = matrix(&s, 0), *res = matrix(&s, 0), *gamma = floats(s.c),
              *beta = floats(s.c);
        hvt_bn_args f = {.rows = s.rows,
                         .c = s.c,
                         .type = s.type,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .relu = true,
                         .weight = 1};
        enum alias alias = (enum alias)between(0, ALIASES - 1);

        for (int i = 0; i < s.c && t % 2; i++) {
            gamma[i] *= 0x1p-24f;
            beta[i] *= 0x1p-24f;
        }
        for (int dev = 0; dev < ndevs; dev++) {
            bn_result r = run_bn(devs[dev], f, &s, true, NULL);
            hvt_bn_grad_args a = {.rows = s.rows,
                                  .c = s.c,
                                  .type = s.type,
                                  .x = x,
                                  .y = r.y,
                                  .gamma = gamma,
                                  .mean = r.mean,
                                  .rstd = r.rstd,
                                  .add = t % 2,
                                  .add_residual = t % 3 == 0};
            bn_grad_result from_y = run_bn_grad(devs[dev], a, &s, alias, t % 2, dy, x, res), from_x;

            a.beta = beta;
            from_x = run_bn_grad(devs[dev], a, &s, alias, t % 2, dy, x, res);
            check_same("dgamma", dev, NULL, s.c, from_x.dgamma, from_y.dgamma);
            check_same("dbeta", dev, NULL, s.c, from_x.dbeta, from_y.dbeta);
            check_same("dx", dev, &s, s.all, from_x.dx, from_y.dx);
            check_same("dresidual", dev, &s, s.all, from_x.res, from_y.res);
            free_bn(&r);
            free_bn_grad(&from_y);
            free_bn_grad(&from_x);
        }
        free(x);
        free(dy);
        free(res);
        free(gamma);
        free(beta);
    }
}

static float *through(hvt_device *d, const hvt_map *f, const shape *s, const float *x)
{
    void *in = packed(s->type, x, s->all), *y = unwritten(s->type, s->all);

    CHECK_OK(d->ops->general.map_forward(d, s->all, s->type, f, in, y));
    free(in);
    return unpacked(s->type, y, s->all);
}

static float *slope(hvt_device *d, const hvt_map *f, const shape *s, const float *saved, const float *dy)
{
    void *v = packed(s->type, saved, s->all), *g = packed(s->type, dy, s->all);

    CHECK_OK(d->ops->general.map_backward(d, s->all, s->type, f, v, g, g, false));
    free(v);
    return unpacked(s->type, g, s->all);
}

/* What a norm with a function computes is what a norm and then the function do. */
TEST(a_function_after_a_batch_norm_changes_no_bit)
{
    static const hvt_map args[] = {
        {HVT_HARDTANH, -0.5f, 0.75f}, {HVT_LEAKY_RELU, 0.125f, 0}, {HVT_ELU, 1, 0}, {HVT_SOFTPLUS, 2, 20},
        {HVT_AFFINE, 1.5f, -0.25f},   {HVT_CLAMP, -0.5f, 0.75f},   {HVT_POW, 3, 0}};

    for (int t = 0; t < cases(CASES); t++) {
        shape s = norm_shape(t);
        hvt_map f = {(hvt_function)(t % HVT_FUNCTIONS), 0, 0};
        float *x = matrix(&s, 1), *dy = matrix(&s, 0), *dx0 = matrix(&s, 0), *gamma = floats(s.c),
              *beta = floats(s.c);
        hvt_bn_args a = {.rows = s.rows,
                         .c = s.c,
                         .type = s.type,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .weight = 1};
        enum alias alias = between(0, 1) ? NO_RES : DX_IS_DY;

        for (size_t i = 0; i < HVT_LEN(args); i++)
            f = args[i].f == f.f ? args[i] : f;
        for (int dev = 0; dev < ndevs; dev++) {
            hvt_device *d = devs[dev];

            bn_result apart = run_bn(d, a, &s, true, NULL), one;
            bn_grad_result want, got;
            hvt_bn_grad_args g = {.rows = s.rows,
                                  .c = s.c,
                                  .type = s.type,
                                  .x = x,
                                  .gamma = gamma,
                                  .beta = beta,
                                  .mean = apart.mean,
                                  .rstd = apart.rstd,
                                  .add = t % 3 == 0};
            float *y = through(d, &f, &s, apart.y),
                  *dz = slope(d, &f, &s, hvt__slope_from_x(f.f) ? apart.y : y, dy);

            a.map = &f;
            one = run_bn(d, a, &s, true, NULL);
            check_same("train", dev, &s, s.all, one.y, y);
            a.map = NULL;
            want = run_bn_grad(d, g, &s, alias, t % 2, dz, dx0, dz);
            g.map = &f;
            got = run_bn_grad(d, g, &s, alias, t % 2, dy, dx0, dy);
            check_same("dgamma", dev, NULL, s.c, got.dgamma, want.dgamma);
            check_same("dbeta", dev, NULL, s.c, got.dbeta, want.dbeta);
            check_same("dx", dev, &s, s.all, got.dx, want.dx);
            free_bn(&apart);
            free_bn(&one);
            free_bn_grad(&want);
            free_bn_grad(&got);
            free(y);
            free(dz);
        }
        free(x);
        free(dy);
        free(dx0);
        free(gamma);
        free(beta);
    }
}

TEST(an_image_s_result_does_not_depend_on_its_place)
{
    enum { N = 40 };
    static const int channels[] = {1, 3, 16, 37, 64, 130};

    for (size_t i = 0; i < HVT_LEN(channels) * TYPES; i++) {
        int c = channels[i / TYPES];
        shape s = typed_shape((hvt_dtype)(i % TYPES), make_shape(HVT_ORDER_NHW, 1, N, N, c));
        float *x = matrix(&s, 0), *consts = floats(4 * (size_t)c);
        hvt_bn_args a = {.c = c, .type = s.type, .eps = 1e-5f, .x = x, .gamma = consts, .beta = consts + c};
        bn_result given = {.mean = consts + 2 * c, .rstd = consts + 3 * c};

        for (int k = 0; k < c; k++)
            given.rstd[k] = 1.5f + given.rstd[k];
        for (int dev = 0; dev < ndevs; dev++) {
            bn_result whole;

            a.x = x;
            a.rows = s.rows;
            whole = run_bn(devs[dev], a, &s, false, &given);
            for (int cut = 0; cut < 32; cut += heap_memcheck() ? 7 : 1) {
                shape rest = typed_shape(s.type, make_shape(HVT_ORDER_NHW, 1, N - cut, N - cut, c));
                bn_result part;

                a.x = x + (size_t)cut * c;
                a.rows = rest.rows;
                part = run_bn(devs[dev], a, &rest, false, &given);
                check_same("infer", dev, &rest, rest.all, part.y, whole.y + (size_t)cut * c);
                free_bn(&part);
            }
            free_bn(&whole);
        }
        free(x);
        free(consts);
    }
}

TEST(moving_statistics_move_as_in_pytorch)
{
    for (int dev = 0; dev < ndevs; dev++) {
        float moments[74], mean[37], var[37], want_mean[37], want_var[37];

        for (int i = 0; i < 37; i++) {
            moments[i] = value();
            moments[37 + i] = 2 + value();
            mean[i] = value();
            var[i] = 1 + value();
            want_mean[i] = 0.9f * mean[i] + 0.1f * (0.5f * moments[i]);
            want_var[i] = 0.9f * var[i] + 0.1f * (0.5f * moments[37 + i]);
        }
        for (int stop = 0; stop < 2; stop++) { /* after the step that ended the run they stay */
            hvt_step_state step = {.stop = stop};

            CHECK_OK(devs[dev]->ops->matrix.bn_update(
                devs[dev], &(hvt_bn_update_args){&step, 37, 0.1f, 0.5f, moments, mean, var}));
            check_near("mean", dev, NULL, 37, mean, want_mean, 1e-6);
            check_near("variance", dev, NULL, 37, var, want_var, 1e-6);
        }
    }
}

/* Infinities and NaNs go through as PyTorch lets them, and what a type cannot hold becomes infinite. */
TEST(norms_pass_on_what_is_not_finite)
{
    enum { N = 23, C = 5 };
    static const float special[] = {NAN, INFINITY, -INFINITY};

    for (int t = 0; t < TYPES * (int)HVT_LEN(special) * ndevs; t++) {
        const int dev = t / (TYPES * (int)HVT_LEN(special));
        const hvt_dtype type = (hvt_dtype)(t % TYPES);
        const float bad = special[t / TYPES % (int)HVT_LEN(special)];
        shape s = typed_shape(type, make_shape(HVT_ORDER_NHW, N, 1, 1, C));
        float *x = matrix(&s, 0), gamma[C], beta[C], big[C] = {3e38f, 3e38f, 3e38f, 3e38f, 3e38f};
        hvt_bn_args a = {
            .rows = s.rows, .c = C, .type = type, .eps = 1e-5f, .gamma = gamma, .beta = beta, .relu = true};
        bn_result bn, given = {.mean = beta, .rstd = gamma};

        for (int c = 0; c < C; c++) {
            gamma[c] = 1;
            beta[c] = 0;
        }
        x[7 * C + 2] = bad;

        /* a channel's moments take everything with them, moving ones only the element */
        a.x = x;
        bn = run_bn(devs[dev], a, &s, true, NULL);
        CHECK(isnan(bn.y[2]) && isnan(bn.moments[C + 2]), "batch norm with %g in %s gives %g", bad,
              hvt_dtype_name(type), bn.y[2]);
        CHECK(isfinite(bn.y[1]) && isfinite(bn.moments[1]), "a neighbouring channel gives %g", bn.y[1]);
        free_bn(&bn);
        bn = run_bn(devs[dev], a, &s, false, &given);
        CHECK(same_kind(bn.y[7 * C + 2], bad < 0 ? 0 : bad), "inference with %g in %s gives %g", bad,
              hvt_dtype_name(type), bn.y[7 * C + 2]);
        CHECK(isfinite(bn.y[8 * C + 2]), "an element beside it gives %g", bn.y[8 * C + 2]);
        free_bn(&bn);
        a.beta = big;
        bn = run_bn(devs[dev], a, &s, false, &given);
        CHECK(isinf(bn.y[0]) == (type == HVT_F16), "3e38 in %s is %g", hvt_dtype_name(type), bn.y[0]);
        free_bn(&bn);
        free(x);
    }
}

int main(void)
{
    open_devices();
    RUN(batch_norm_equals_ref);
    RUN(batch_statistics_of_many_rows_keep_their_digits);
    RUN(batch_norm_backward_equals_ref);
    RUN(joined_shards_are_one_batch_and_have_ref_s_bits);
    RUN(relu_s_mask_is_the_same_from_x);
    RUN(a_function_after_a_batch_norm_changes_no_bit);
    RUN(an_image_s_result_does_not_depend_on_its_place);
    RUN(moving_statistics_move_as_in_pytorch);
    RUN(norms_pass_on_what_is_not_finite);
    close_devices();
    return check_done();
}
