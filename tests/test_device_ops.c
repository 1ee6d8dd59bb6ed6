/*
 * device_ops: batch norm, bias, loss, pooling, subsampling and images of every device equal ref's, over
 * random shapes, both row orders and short batches whose padding holds NaN.
 */
#include "devices.h"

enum { CASES = 60 };

static shape random_shape(void)
{
    static const int channels[] = {1, 3, 7, 16, 37, 64, 100, 130, 300, 2048};
    int c = channels[between(0, HVT_LEN(channels) - 1)], n = between(1, 21);
    int pixels = between(1, c > 500 ? 4 : 40), real = between(0, 2) ? n : between(0, n);

    if (!between(0, 9)) { /* enough rows for several parts */
        n = 64;
        real = between(0, 1) ? 64 : between(1, 63);
        pixels = 64;
        c = channels[between(0, 7)];
    }
    return make_shape(between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW, pixels, n, real, c);
}

/* ---- batch norm ---- */

typedef struct bn_result {
    float *y, *mean, *rstd, *moments;
} bn_result;

static bn_result run_bn(hvt_device *d, hvt_bn_args a, const shape *s, bool train, const bn_result *given)
{
    bn_result r = {room(s->all * 4), room(s->c * 4), room(s->c * 4), room(s->c * 8)};

    memset(r.y, 0, s->all * 4);
    memset(r.mean, 0xff, s->c * 4);
    memset(r.rstd, 0xff, s->c * 4);
    memset(r.moments, 0xff, s->c * 8);
    a.y = r.y;
    a.mean = r.mean;
    a.rstd = r.rstd;
    a.moments = r.moments;
    if (!train) {
        memcpy(r.mean, given->mean, s->c * 4);
        memcpy(r.rstd, given->rstd, s->c * 4);
    }
    CHECK_OK(train ? d->ops->bn_train(d, &a) : d->ops->bn_infer(d, &a));
    return r;
}

static void free_bn(bn_result *r)
{
    free(r->y);
    free(r->mean);
    free(r->rstd);
    free(r->moments);
}

TEST(batch_norm_equals_ref)
{
    for (int t = 0; t < CASES; t++) {
        shape s = random_shape();
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
        for (int dev = 1; dev < ndevs; dev++) {
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
    } cases[] = {
        {256 * 16 * 16, 16, 0}, {256 * 16 * 16, 16, 100}, {50001, 3, -30}, {4099, 37, 7}, {997, 260, 50}};

    for (size_t t = 0; t < HVT_LEN(cases); t++) {
        shape s = make_shape(HVT_ORDER_HWN, 1, cases[t].rows, cases[t].rows, cases[t].c);
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

static bn_grad_result run_bn_grad(hvt_device *d, hvt_bn_grad_args a, const shape *s, enum alias alias,
                                  const float *dy, const float *dx0, const float *res0)
{
    bn_grad_result r = {copied(dx0, s->all), copied(res0, s->all), room(s->c * 4), room(s->c * 4)};

    a.dy = dy;
    a.dx = r.dx;
    a.dresidual = alias == NO_RES ? NULL : r.res;
    a.dgamma = r.dgamma;
    a.dbeta = r.dbeta;
    if (alias == DX_IS_DY) {
        memcpy(r.dx, dy, s->all * 4);
        a.dy = r.dx;
        a.add = false;
    } else if (alias == RES_IS_DY) {
        memcpy(r.res, dy, s->all * 4);
        a.dy = r.res;
        a.add_residual = false;
    }
    CHECK_OK(d->ops->bn_backward(d, &a));
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
    for (int t = 0; t < CASES; t++) {
        shape s = random_shape();
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
        want = run_bn_grad(ref, a, &s, alias, dy, dx0, res0);
        for (int dev = 1; dev < ndevs; dev++) {
            bn_grad_result got = run_bn_grad(devs[dev], a, &s, alias, dy, dx0, res0);
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

/* Backward may take relu's mask from x again instead of from y: no bit changes. */
TEST(relu_s_mask_is_the_same_from_x)
{
    for (int t = 0; t < CASES; t++) {
        shape s = random_shape();
        float *x = matrix(&s, 1), *dy = matrix(&s, 0), *res = matrix(&s, 0), *gamma = floats(s.c),
              *beta = floats(s.c);
        hvt_bn_args f = {.rows = s.rows,
                         .c = s.c,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = gamma,
                         .beta = beta,
                         .relu = true,
                         .weight = 1};
        enum alias alias = (enum alias)between(0, ALIASES - 1);

        for (int dev = 0; dev < ndevs; dev++) {
            bn_result r = run_bn(devs[dev], f, &s, true, NULL);
            hvt_bn_grad_args a = {.rows = s.rows,
                                  .c = s.c,
                                  .x = x,
                                  .y = r.y,
                                  .gamma = gamma,
                                  .mean = r.mean,
                                  .rstd = r.rstd,
                                  .add = t % 2,
                                  .add_residual = t % 3 == 0};
            bn_grad_result from_y = run_bn_grad(devs[dev], a, &s, alias, dy, x, res), from_x;

            a.beta = beta;
            from_x = run_bn_grad(devs[dev], a, &s, alias, dy, x, res);
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

TEST(an_image_s_result_does_not_depend_on_its_place)
{
    enum { N = 40 };
    static const int channels[] = {1, 3, 16, 37, 64, 130};

    for (size_t t = 0; t < HVT_LEN(channels); t++) {
        int c = channels[t];
        shape s = make_shape(HVT_ORDER_NHW, 1, N, N, c);
        float *x = matrix(&s, 0), *consts = floats(4 * (size_t)c), *whole = room(s.all * 4),
              *part = room(s.all * 4);
        hvt_bn_args a = {.rows = s.rows,
                         .c = c,
                         .eps = 1e-5f,
                         .x = x,
                         .gamma = consts,
                         .beta = consts + c,
                         .mean = consts + 2 * c,
                         .rstd = consts + 3 * c,
                         .y = whole};

        for (int i = 0; i < c; i++)
            a.rstd[i] = 1.5f + a.rstd[i];
        for (int dev = 0; dev < ndevs; dev++) {
            a.x = x;
            a.y = whole;
            a.rows.block = a.rows.real = N;
            CHECK_OK(devs[dev]->ops->bn_infer(devs[dev], &a));
            for (int cut = 0; cut < 32; cut++) {
                a.x = x + (size_t)cut * c;
                a.y = part + (size_t)cut * c;
                a.rows.block = a.rows.real = N - cut;
                CHECK_OK(devs[dev]->ops->bn_infer(devs[dev], &a));
                check_same("infer", dev, NULL, s.all - (size_t)cut * c, part + (size_t)cut * c,
                           whole + (size_t)cut * c);
            }
        }
        free(x);
        free(consts);
        free(whole);
        free(part);
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
        CHECK_OK(devs[dev]->ops->bn_update(devs[dev], 37, 0.1f, 0.5f, moments, mean, var));
        check_near("mean", dev, NULL, 37, mean, want_mean, 1e-6);
        check_near("variance", dev, NULL, 37, var, want_var, 1e-6);
    }
}

/* ---- bias ---- */

TEST(bias_equals_ref)
{
    for (int t = 0; t < CASES; t++) {
        shape s = random_shape();
        float *y0 = matrix(&s, 0), *b = floats(s.c), *want = copied(y0, s.all), *db = room(s.c * 4),
              *first = room(s.c * 4), *got_db = room(s.c * 4);

        CHECK_OK(ref->ops->bias_forward(ref, s.rows, s.c, HVT_F32, b, want));
        CHECK_OK(ref->ops->bias_backward(ref, s.rows, s.c, HVT_F32, y0, db));
        for (int dev = 1; dev < ndevs; dev++) {
            float *got = copied(y0, s.all);

            CHECK_OK(devs[dev]->ops->bias_forward(devs[dev], s.rows, s.c, HVT_F32, b, got));
            CHECK_OK(devs[dev]->ops->bias_backward(devs[dev], s.rows, s.c, HVT_F32, y0, got_db));
            check_same("bias", dev, &s, s.all, got, want);
            check_near("db", dev, NULL, s.c, got_db, db, 1e-6 * (4 + sqrt((double)s.pixels * s.real)));
            if (dev == one_thread(dev))
                memcpy(first, got_db, s.c * 4);
            check_same("db", dev, NULL, s.c, got_db, first);
            free(got);
        }
        free(y0);
        free(b);
        free(want);
        free(db);
        free(first);
        free(got_db);
    }
}

/* ---- loss ---- */

typedef struct xent_result {
    float *dx, *loss, sums[3];
    int32_t *place;
} xent_result;

static xent_result run_xent(hvt_device *d, int n, int real, int classes, const float *x,
                            const int32_t *labels, bool grad)
{
    xent_result r = {room((size_t)n * classes * 4), room(n * 4), {NAN, NAN, NAN}, room(n * 4)};
    hvt_xent_args a = {.rows = {1, n, real},
                       .classes = classes,
                       .logits = x,
                       .labels = labels,
                       .dlogits = grad ? r.dx : NULL,
                       .loss = r.loss,
                       .place = r.place,
                       .sums = r.sums};

    memset(r.dx, 0xff, (size_t)n * classes * 4);
    CHECK_OK(d->ops->xent(d, &a));
    memcpy(r.sums, a.sums, sizeof r.sums);
    return r;
}

static void free_xent(xent_result *r)
{
    free(r->dx);
    free(r->loss);
    free(r->place);
}

TEST(the_loss_equals_ref)
{
    static const int classes[] = {1, 2, 3, 10, 16, 17, 100, 1000};

    for (int t = 0; t < CASES; t++) {
        int k = classes[between(0, HVT_LEN(classes) - 1)], n = between(1, 70), real = between(0, n);
        shape s = make_shape(HVT_ORDER_NHW, 1, n, real, k);
        float *x = matrix(&s, 0), wide = (float)between(1, 60);
        int32_t *labels = room(n * 4);
        xent_result want, first = {0};

        for (size_t i = 0; i < s.all; i++)
            x[i] *= wide;
        for (int i = 0; i < n; i++)
            labels[i] = i < real ? between(0, k - 1) : -7;
        want = run_xent(ref, n, real, k, x, labels, true);
        for (int dev = 1; dev < ndevs; dev++) {
            xent_result got = run_xent(devs[dev], n, real, k, x, labels, true),
                        plain = run_xent(devs[dev], n, real, k, x, labels, false);

            check_near("loss", dev, NULL, real, got.loss, want.loss, 1e-6);
            check_near("dlogits", dev, NULL, s.all, got.dx, want.dx, 1e-6); /* padding: zero */
            check_near("sums", dev, NULL, 3, got.sums, want.sums, 1e-6);
            CHECK(!memcmp(got.place, want.place, real * 4), "places differ on %s", hvt_device_isa(devs[dev]));
            check_same("loss alone", dev, NULL, real, plain.loss, got.loss);
            for (int i = 0; i < real; i++) {
                xent_result row = run_xent(devs[dev], 1, 1, k, x + (size_t)i * k, labels + i, true);

                CHECK(got.loss[i] >= 0, "loss %g", got.loss[i]);
                check_same("row by itself", dev, NULL, 1, row.loss, got.loss + i);
                check_same("row by itself", dev, NULL, k, row.dx, got.dx + (size_t)i * k);
                free_xent(&row);
                i += i > 3 ? 17 : 0;
            }
            free_xent(&plain);
            if (dev == one_thread(dev)) {
                free_xent(&first);
                first = got;
                continue;
            }
            check_same("sums", dev, NULL, 3, got.sums, first.sums);
            check_same("dlogits", dev, NULL, s.all, got.dx, first.dx);
            free_xent(&got);
        }
        free_xent(&want);
        free_xent(&first);
        free(x);
        free(labels);
    }
}

TEST(the_loss_is_pytorch_s)
{
    static const float x[] = {2, 1, .1f, 1000, 0, -1000, -3e4f, 3e4f, 2e4f};
    static const int32_t labels[] = {0, 0, 0};

    for (int dev = 0; dev < ndevs; dev++) {
        xent_result r = run_xent(devs[dev], 3, 3, 3, x, labels, true);
        float softmax[] = {.65900114f - 1, .24243297f, .09856589f};

        CHECK(fabs(r.loss[0] - .41703002) < 5e-8, "%.9g", r.loss[0]);
        CHECK(r.loss[1] == 0, "%.9g", r.loss[1]);
        CHECK(r.loss[2] == 6e4f, "%.9g", r.loss[2]);
        check_near("softmax", dev, NULL, 3, r.dx, softmax, 1e-7);
        CHECK(r.sums[1] == 2 && r.sums[2] == 3, "%g hits, %g among five", r.sums[1], r.sums[2]);
        free_xent(&r);
    }
}

TEST(a_logit_that_is_not_finite_shows_in_the_loss)
{
    for (int dev = 0; dev < ndevs; dev++)
        for (int classes = 2; classes < 40; classes += 9)
            for (int at = 0; at < classes; at++)
                for (int label = 0; label < classes; label += 5)
                    for (int kind = 0; kind < 3; kind++) {
                        float x[40];
                        int32_t l = label;
                        xent_result r;

                        for (int i = 0; i < classes; i++)
                            x[i] = value();
                        x[at] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
                        r = run_xent(devs[dev], 1, 1, classes, x, &l, true);
                        CHECK(!isfinite(r.loss[0]) && !isfinite(r.sums[0]), "%g at %d of %d: loss %g, sum %g",
                              x[at], at, classes, r.loss[0], r.sums[0]);
                        CHECK(kind || at != label || r.place[0] == classes - 1, "NaN has place %d",
                              r.place[0]);
                        free_xent(&r);
                    }
}

TEST(equal_logits_take_places_in_order)
{
    static const float x[6] = {1, 3, 2, 3, 2, 2};
    static const int want[6] = {5, 0, 2, 1, 3, 4};

    for (int dev = 0; dev < ndevs; dev++)
        for (int32_t label = 0; label < 6; label++) {
            xent_result r = run_xent(devs[dev], 1, 1, 6, x, &label, false);

            CHECK(r.place[0] == want[label], "label %d has place %d, not %d", label, r.place[0], want[label]);
            CHECK(r.sums[1] == (want[label] < 1) && r.sums[2] == (want[label] < 5), "%g, %g", r.sums[1],
                  r.sums[2]);
            free_xent(&r);
        }
}

/* ---- pooling ---- */

TEST(pooling_equals_ref)
{
    for (int t = 0; t < 3 * CASES; t++) {
        hvt_pool_desc p = random_pool();
        int oh = p.mean ? 1 : hvt__conv_out(p.h, p.size, p.stride, p.pad),
            ow = p.mean ? 1 : hvt__conv_out(p.w, p.size, p.stride, p.pad), real = between(0, p.n);
        shape in = make_shape(p.order, p.h * p.w, p.n, real, p.c),
              out = make_shape(p.order, oh * ow, p.n, real, p.c);
        float *x = matrix(&in, 0), *dy = matrix(&out, 0), *dx0 = matrix(&in, 0), *want_y = NULL,
              *want_dx = NULL;
        uint8_t *want_saved = NULL;
        bool add = between(0, 1);

        for (size_t i = 0; i < in.all; i++) /* many ties; no maximum may come from the padding */
            x[i] = roundf(x[i] * 3) - 4;
        for (int dev = 0; dev < ndevs; dev++) {
            hvt_device *d = devs[dev];
            float *y = copied(dy, out.all), *dx = copied(dx0, in.all);
            size_t bytes = 0, bad = 0;
            uint8_t *saved;
            hvt_op *op = NULL;

            CHECK_OK(d->ops->pool_plan(d, &p, &op, &bytes));
            CHECK(bytes == (p.mean ? 0 : out.all), "%zu bytes are kept", bytes);
            saved = room(bytes);
            CHECK_OK(d->ops->pool_forward(op, real, x, y, saved));
            CHECK_OK(d->ops->pool_backward(op, real, saved, dy, dx, add));
            hvt__op_free(op);
            if (dev == 0) {
                want_y = y;
                want_dx = dx;
                want_saved = saved;
                continue;
            }
            if (p.mean)
                check_near("mean", dev, &out, out.all, y, want_y, 1e-6);
            else
                check_same("maximum", dev, &out, out.all, y, want_y);
            for (size_t i = 0; i < bytes; i++)
                bad += is_real(&out, i) && saved[i] != want_saved[i];
            CHECK(!bad, "%zu places differ on %s", bad, hvt_device_isa(d));
            check_same("dx", dev, &in, in.all, dx, want_dx);
            free(y);
            free(dx);
            free(saved);
        }
        free(x);
        free(dy);
        free(dx0);
        free(want_y);
        free(want_dx);
        free(want_saved);
    }
}

TEST(a_window_that_cannot_be_is_refused)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_pool_desc p = {.n = 1, .h = 20, .w = 20, .c = 4, .size = 16, .stride = 2};
        hvt_op *op = NULL;
        size_t bytes;

        CHECK_FAILS(devs[dev]->ops->pool_plan(devs[dev], &p, &op, &bytes), E_SHAPE, "16");
        p.size = 3;
        p.pad = 2;
        CHECK_FAILS(devs[dev]->ops->pool_plan(devs[dev], &p, &op, &bytes), E_SHAPE, "padding 2");
        p.pad = 0;
        p.h = 2;
        CHECK_FAILS(devs[dev]->ops->pool_plan(devs[dev], &p, &op, &bytes), E_SHAPE, "1x2x20x4");
        p.h = 3;
        p.type = HVT_BF16;
        CHECK_FAILS(devs[dev]->ops->pool_plan(devs[dev], &p, &op, &bytes), E_UNSUPPORTED, "bf16");
        CHECK(!op, "a plan was made");
    }
}

/* ---- subsampling and images ---- */

TEST(subsampling_equals_ref)
{
    for (int t = 0; t < CASES; t++) {
        hvt_order o = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW;
        int n = between(1, 9), h = between(1, 12), w = between(1, 12), c = between(1, 40),
            stride = between(1, 3), channels = c + between(0, 40), p = (h + stride - 1) / stride,
            q = (w + stride - 1) / stride;
        size_t in = (size_t)n * h * w * c, out = (size_t)n * p * q * channels;
        float *x = floats(in), *dy = floats(out), *want = NULL, *want_dx = NULL;
        bool add = between(0, 1);

        for (int dev = 0; dev < ndevs; dev++) {
            float *y = copied(dy, out), *dx = copied(x, in);

            CHECK_OK(
                devs[dev]->ops->subsample_forward(devs[dev], o, HVT_F32, n, h, w, c, stride, channels, x, y));
            CHECK_OK(devs[dev]->ops->subsample_backward(devs[dev], o, HVT_F32, n, h, w, c, stride, channels,
                                                        dy, dx, add));
            if (dev == 0) {
                want = y;
                want_dx = dx;
                continue;
            }
            check_same("subsample", dev, NULL, out, y, want);
            check_same("subsample dx", dev, NULL, in, dx, want_dx);
            free(y);
            free(dx);
        }
        free(x);
        free(dy);
        free(want);
        free(want_dx);
    }
}

TEST(images_equal_ref)
{
    for (int t = 0; t < CASES; t++) {
        int n = between(1, 40), real = between(0, n), h = between(1, 20),
            w = between(0, 3) ? between(1, 40) : 150, c = between(1, 4), pad = between(0, 4);
        size_t count = (size_t)n * h * w * c;
        uint8_t *bytes = room((size_t)real * h * w * c);
        int8_t *drawn = room((size_t)real * 3);
        shape s = make_shape(between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW, h * w, n, real, c);
        hvt_augment_args a = {.order = s.order,
                              .n = n,
                              .real = real,
                              .h = h,
                              .w = w,
                              .c = c,
                              .src = bytes,
                              .draws = between(0, 2) ? drawn : NULL};
        float *want = NULL;

        for (size_t i = 0; i < (size_t)real * h * w * c; i++)
            bytes[i] = (uint8_t)draw();
        for (int i = 0; i < real * 3; i++)
            drawn[i] = (int8_t)(i % 3 == 2 ? between(0, 1) : between(-pad, pad));
        for (int i = 0; i < c; i++) {
            a.scale[i] = value();
            a.shift[i] = value();
        }
        for (int dev = 0; dev < ndevs; dev++) {
            float *got = room(count * 4);

            memset(got, 0, count * 4);
            a.dst = got;
            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            if (dev == 0) {
                want = got;
                continue;
            }
            if (has_fma(dev))
                check_same("image", dev, &s, count, got, want);
            else
                check_near("image", dev, &s, count, got, want, 1e-5);
            free(got);
        }
        free(bytes);
        free(drawn);
        free(want);
    }
}

/* A 2x2 image of one channel: crop by one, then mirror. */
TEST(an_image_is_cropped_then_mirrored)
{
    static const uint8_t src[4] = {1, 2, 3, 4};
    static const struct {
        int8_t draw[3];
        float want[4];
    } cases[] = {{{0, 0, 0}, {1, 2, 3, 4}}, {{0, 0, 1}, {2, 1, 4, 3}},  {{0, 1, 0}, {2, 0, 4, 0}},
                 {{0, 1, 1}, {0, 2, 0, 4}}, {{-1, 0, 0}, {0, 0, 1, 2}}, {{1, -1, 1}, {3, 0, 0, 0}}};

    for (int dev = 0; dev < ndevs; dev++)
        for (size_t i = 0; i < HVT_LEN(cases); i++) {
            float got[4];
            hvt_augment_args a = {.n = 1,
                                  .real = 1,
                                  .h = 2,
                                  .w = 2,
                                  .c = 1,
                                  .src = src,
                                  .draws = cases[i].draw,
                                  .scale = {1},
                                  .shift = {0},
                                  .dst = got};

            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            check_same("image", dev, NULL, 4, got, cases[i].want);
        }
}

int main(void)
{
    open_devices();
    RUN(batch_norm_equals_ref);
    RUN(batch_statistics_of_many_rows_keep_their_digits);
    RUN(batch_norm_backward_equals_ref);
    RUN(relu_s_mask_is_the_same_from_x);
    RUN(an_image_s_result_does_not_depend_on_its_place);
    RUN(moving_statistics_move_as_in_pytorch);
    RUN(bias_equals_ref);
    RUN(the_loss_equals_ref);
    RUN(the_loss_is_pytorch_s);
    RUN(a_logit_that_is_not_finite_shows_in_the_loss);
    RUN(equal_logits_take_places_in_order);
    RUN(pooling_equals_ref);
    RUN(a_window_that_cannot_be_is_refused);
    RUN(subsampling_equals_ref);
    RUN(images_equal_ref);
    RUN(an_image_is_cropped_then_mirrored);
    close_devices();
    return check_done();
}
