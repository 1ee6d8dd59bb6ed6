/*
 * device_ops: bias, loss, pooling, subsampling and images of every device equal ref's, over random shapes,
 * both row orders and short batches whose padding holds NaN.
 */
#include "devices.h"

enum { CASES = 60 };

/* ---- bias ---- */

TEST(bias_equals_ref)
{
    for (int t = 0; t < cases(CASES); t++) {
        shape s = random_shape();
        float *y0 = matrix(&s, 0), *b = floats(s.c), *want = copied(y0, s.all), *db = room(s.c * 4),
              *first = room(s.c * 4), *got_db = room(s.c * 4);
        void *dy = packed(s.type, y0, s.all);

        CHECK_OK(ref->ops->matrix.bias_forward(ref, s.rows, s.c, HVT_F32, b, want));
        CHECK_OK(ref->ops->matrix.bias_backward(ref, s.rows, s.c, HVT_F32, y0, db));
        round_all(s.type, want, s.all);
        for (int dev = 0; dev < ndevs; dev++) {
            void *y = packed(s.type, y0, s.all);
            float *got;

            CHECK_OK(devs[dev]->ops->matrix.bias_forward(devs[dev], s.rows, s.c, s.type, b, y));
            CHECK_OK(devs[dev]->ops->matrix.bias_backward(devs[dev], s.rows, s.c, s.type, dy, got_db));
            got = unpacked(s.type, y, s.all);
            check_same("bias", dev, &s, s.all, got, want);
            check_near("db", dev, NULL, s.c, got_db, db, 1e-6 * (4 + sqrt((double)s.pixels * s.real)));
            if (dev == one_thread(dev))
                memcpy(first, got_db, s.c * 4);
            check_same("db", dev, NULL, s.c, got_db, first);
            free(got);
        }
        free(y0);
        free(dy);
        free(b);
        free(want);
        free(db);
        free(first);
        free(got_db);
    }
}

/* ---- loss ---- */

typedef struct xent_result {
    float *dx, *loss, sums[HVT__SUMS];
    int32_t *label_rank;
} xent_result;

/* The gradient's scale, if any, is a power of two, and taken off again. */
static xent_result run_xent(hvt_device *d, hvt_dtype t, int n, int real, int classes, const float *x,
                            const int32_t *labels, bool grad, const float *scale)
{
    size_t all = (size_t)n * classes;
    xent_result r = {NULL, room(n * 4), {NAN, NAN, NAN}, room(n * 4)};
    void *logits = packed(t, x, all), *dx = unwritten(t, all);
    hvt_xent_args a = {.rows = {1, n, real},
                       .classes = classes,
                       .type = t,
                       .logits = logits,
                       .labels = labels,
                       .dlogits = grad ? dx : NULL,
                       .loss = r.loss,
                       .label_rank = r.label_rank,
                       .sums = r.sums,
                       .scale = scale};

    CHECK_OK(d->ops->matrix.xent(d, &a));
    memcpy(r.sums, a.sums, sizeof r.sums);
    r.dx = unpacked(t, dx, all);
    for (size_t i = 0; scale && i < all; i++)
        r.dx[i] /= *scale;
    free(logits);
    return r;
}

static void free_xent(xent_result *r)
{
    free(r->dx);
    free(r->loss);
    free(r->label_rank);
}

TEST(the_loss_equals_ref)
{
    static const int classes[] = {1, 2, 3, 10, 16, 17, 100, 1000};

    for (int t = 0; t < cases(CASES); t++) {
        int k = classes[between(0, HVT_LEN(classes) - 1)], n = between(1, 70), real = between(0, n);
        shape s = typed_shape((hvt_dtype)(t % TYPES), make_shape(HVT_ORDER_NHW, 1, n, real, k)),
              padded = typed_shape(s.type, make_shape(HVT_ORDER_NHW, 1, n, n, k));
        float *x = matrix(&s, 0), wide = (float)between(1, 60), factor = 0x1p10f,
              *scale = between(0, 1) ? &factor : NULL;
        int32_t *labels = room(n * 4);
        xent_result want, first = {0};

        for (size_t i = 0; i < s.all; i++)
            x[i] *= wide;
        round_all(s.type, x, s.all);
        for (int i = 0; i < n; i++)
            labels[i] = i < real ? between(0, k - 1) : -7;
        want = run_xent(ref, HVT_F32, n, real, k, x, labels, true, scale);
        for (int dev = 0; dev < ndevs; dev++) {
            xent_result got = run_xent(devs[dev], s.type, n, real, k, x, labels, true, scale),
                        plain = run_xent(devs[dev], s.type, n, real, k, x, labels, false, scale);

            check_near("loss", dev, NULL, real, got.loss, want.loss, 1e-6);
            check_near("dlogits", dev, &padded, s.all, got.dx, want.dx, 1e-6); /* padding: zero */
            check_near("sums", dev, NULL, 3, got.sums, want.sums, 1e-6);
            CHECK(!memcmp(got.label_rank, want.label_rank, real * 4), "ranks differ on %s",
                  hvt_device_isa(devs[dev]));
            check_same("loss alone", dev, NULL, real, plain.loss, got.loss);
            for (int i = 0; i < real; i++) {
                xent_result row =
                    run_xent(devs[dev], s.type, 1, 1, k, x + (size_t)i * k, labels + i, true, scale);

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
        xent_result r = run_xent(devs[dev], HVT_F32, 3, 3, 3, x, labels, true, NULL);
        float softmax[] = {.65900114f - 1, .24243297f, .09856589f};

        CHECK(fabs(r.loss[0] - .41703002) < 1e-7, "%.9g", r.loss[0]);
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
                        r = run_xent(devs[dev], (hvt_dtype)(at % TYPES), 1, 1, classes, x, &l, true, NULL);
                        CHECK(!isfinite(r.loss[0]) && !isfinite(r.sums[0]), "%g at %d of %d: loss %g, sum %g",
                              x[at], at, classes, r.loss[0], r.sums[0]);
                        CHECK(kind || at != label || r.label_rank[0] == classes - 1, "NaN has rank %d",
                              r.label_rank[0]);
                        free_xent(&r);
                    }
}

TEST(equal_logits_take_places_in_order)
{
    static const float x[6] = {1, 3, 2, 3, 2, 2};
    static const int want[6] = {5, 0, 2, 1, 3, 4};

    for (int dev = 0; dev < ndevs; dev++)
        for (int32_t label = 0; label < 6; label++) {
            xent_result r = run_xent(devs[dev], (hvt_dtype)(label % TYPES), 1, 1, 6, x, &label, false, NULL);

            CHECK(r.label_rank[0] == want[label], "label %d has rank %d, not %d", label, r.label_rank[0],
                  want[label]);
            CHECK(r.sums[1] == (want[label] < 1) && r.sums[2] == (want[label] < 5), "%g, %g", r.sums[1],
                  r.sums[2]);
            free_xent(&r);
        }
}

/* ---- pooling ---- */

typedef struct pool_result {
    float *y, *dx;
    uint8_t *saved;
} pool_result;

/* In p.type. */
static pool_result run_pool(hvt_device *d, hvt_pooling_desc p, const shape *in, const shape *out,
                            const float *x0, const float *dy0, const float *dx0, bool add)
{
    void *x = packed(p.type, x0, in->all), *y = unwritten(p.type, out->all),
         *dy = packed(p.type, dy0, out->all), *dx = packed(p.type, dx0, in->all);
    pool_result r;
    size_t bytes = 0;
    hvt_op *op = NULL;

    CHECK_OK(d->ops->pooling.plan(d, &p, &op, &bytes));
    CHECK(bytes == (p.mean ? 0 : out->all), "%zu bytes are kept", bytes);
    r.saved = room(bytes);
    CHECK_OK(d->ops->pooling.forward(op, in->real, x, y, r.saved));
    CHECK_OK(d->ops->pooling.backward(op, in->real, r.saved, dy, dx, add));
    hvt__op_free(op);
    r.y = unpacked(p.type, y, out->all);
    r.dx = unpacked(p.type, dx, in->all);
    free(x);
    free(dy);
    return r;
}

static void free_pool(pool_result *r)
{
    free(r->y);
    free(r->dx);
    free(r->saved);
}

TEST(pooling_equals_ref)
{
    for (int t = 0; t < cases(3 * CASES); t++) {
        hvt_pooling_desc p = random_pool(), plain = p;
        int oh = p.mean ? 1 : hvt__conv_out(p.h, p.size, p.stride, p.pad),
            ow = p.mean ? 1 : hvt__conv_out(p.w, p.size, p.stride, p.pad), real = between(0, p.n);
        shape in = typed_shape(p.type, make_shape(p.order, p.h * p.w, p.n, real, p.c)),
              out = typed_shape(p.type, make_shape(p.order, oh * ow, p.n, real, p.c));
        float *x = matrix(&in, 0), *dy = matrix(&out, 0), *dx0 = matrix(&in, 0);
        bool add = between(0, 1);
        pool_result want;

        for (size_t i = 0; i < in.all; i++) /* many ties; no maximum may come from the padding */
            x[i] = roundf(x[i] * 3) - 4;
        plain.type = HVT_F32;
        want = run_pool(ref, plain, &in, &out, x, dy, dx0, add);
        round_all(p.type, want.dx, in.all);
        for (int dev = 0; dev < ndevs; dev++) {
            pool_result got = run_pool(devs[dev], p, &in, &out, x, dy, dx0, add);

            if (p.mean)
                check_near("mean", dev, &out, out.all, got.y, want.y, 1e-6);
            else
                check_same("maximum", dev, &out, out.all, got.y, want.y);
            /* how a device notes the places of maxima is its own affair; dx shows where they were */
            check_same("dx", dev, &in, in.all, got.dx, want.dx);
            free_pool(&got);
        }
        free_pool(&want);
        free(x);
        free(dy);
        free(dx0);
    }
}

/* ---- what is not finite ---- */

/* Infinities and NaNs go through relu and pooling as PyTorch lets them. */
TEST(what_is_not_finite_goes_on)
{
    enum { N = 23, C = 5 };
    static const float special[] = {NAN, INFINITY, -INFINITY};

    for (int t = 0; t < TYPES * (int)HVT_LEN(special) * ndevs; t++) {
        const int dev = t / (TYPES * (int)HVT_LEN(special));
        const hvt_dtype type = (hvt_dtype)(t % TYPES);
        const float bad = special[t / TYPES % (int)HVT_LEN(special)];
        const hvt_device_ops *ops = devs[dev]->ops;
        shape s = typed_shape(type, make_shape(HVT_ORDER_NHW, N, 1, 1, C));
        hvt_pooling_desc p = {.order = HVT_ORDER_NHW,
                              .type = type,
                              .n = 1,
                              .h = N,
                              .w = 1,
                              .c = C,
                              .size = 3,
                              .stride = 1,
                              .pad = 1};
        float *x = matrix(&s, 0), *y;
        void *px, *py = unwritten(type, s.all);
        pool_result pooled;

        x[7 * C + 2] = bad;
        px = packed(type, x, s.all);
        CHECK_OK(ops->vector.relu_forward(devs[dev], s.all, type, px, py));
        y = unpacked(type, py, s.all);
        CHECK(same_kind(y[7 * C + 2], bad < 0 ? 0 : bad), "relu of %g in %s on %s is %g", bad,
              hvt_dtype_name(type), hvt_device_isa(devs[dev]), y[7 * C + 2]);

        /* in the windows of rows 6 to 8 a NaN and infinity win, minus infinity loses */
        pooled = run_pool(devs[dev], p, &s, &s, x, x, x, false);
        for (int row = 0; row < N; row++) {
            float got = pooled.y[row * C + 2];

            CHECK(row >= 6 && row <= 8 && !(bad < 0) ? same_kind(got, bad) : isfinite(got),
                  "maximum beside %g in %s, row %d: %g", bad, hvt_dtype_name(type), row, got);
        }
        free_pool(&pooled);
        free(px);
        free(y);
        free(x);
    }
}

TEST(a_window_that_cannot_be_is_refused)
{
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_pooling_desc p = {.n = 1, .h = 20, .w = 20, .c = 4, .size = 16, .stride = 2};
        hvt_op *op = NULL;
        size_t bytes;

        CHECK_FAILS(devs[dev]->ops->pooling.plan(devs[dev], &p, &op, &bytes), E_SHAPE, "16");
        p.size = 3;
        p.pad = 2;
        CHECK_FAILS(devs[dev]->ops->pooling.plan(devs[dev], &p, &op, &bytes), E_SHAPE, "padding 2");
        p.pad = 0;
        p.h = 2;
        CHECK_FAILS(devs[dev]->ops->pooling.plan(devs[dev], &p, &op, &bytes), E_SHAPE, "1x2x20x4");
        p.h = 3;
        p.type = HVT_I32;
        CHECK_FAILS(devs[dev]->ops->pooling.plan(devs[dev], &p, &op, &bytes), E_UNSUPPORTED, "i32");
        CHECK(!op, "a plan was made");
    }
}

/* ---- subsampling and images ---- */

TEST(subsampling_equals_ref)
{
    for (int i = 0; i < cases(CASES); i++) {
        hvt_order o = between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW;
        hvt_dtype t = (hvt_dtype)(i % TYPES);
        int n = between(1, 9), h = between(1, 12), w = between(1, 12), c = between(1, 40),
            stride = between(1, 3), channels = c + between(0, 40), p = (h + stride - 1) / stride,
            q = (w + stride - 1) / stride;
        shape in = typed_shape(t, make_shape(o, h * w, n, n, c)),
              out = typed_shape(t, make_shape(o, p * q, n, n, channels));
        float *x = matrix(&in, 0), *dy = matrix(&out, 0), *want = copied(dy, out.all),
              *want_dx = copied(x, in.all);
        bool add = between(0, 1);
        hvt_subsample_desc d = {o, t, n, h, w, c, stride, channels}, plain = d;

        plain.type = HVT_F32;
        CHECK_OK(ref->ops->matrix.subsample_forward(ref, &plain, x, want));
        CHECK_OK(ref->ops->matrix.subsample_backward(ref, &plain, dy, want_dx, add));
        round_all(t, want_dx, in.all);
        for (int dev = 0; dev < ndevs; dev++) {
            const hvt_device_ops *ops = devs[dev]->ops;
            void *px = packed(t, x, in.all), *pdy = packed(t, dy, out.all), *py = unwritten(t, out.all),
                 *pdx = packed(t, x, in.all);
            float *y, *dx;

            CHECK_OK(ops->matrix.subsample_forward(devs[dev], &d, px, py));
            CHECK_OK(ops->matrix.subsample_backward(devs[dev], &d, pdy, pdx, add));
            y = unpacked(t, py, out.all);
            dx = unpacked(t, pdx, in.all);
            check_same("subsample", dev, &out, out.all, y, want);
            check_same("subsample dx", dev, &in, in.all, dx, want_dx);
            free(px);
            free(pdy);
            free(y);
            free(dx);
        }
        free(x);
        free(dy);
        free(want);
        free(want_dx);
    }
}

/* The same image in every type, and with more channels than it has, is the one in a->dst. */
static void check_stored(int dev, hvt_augment_args a, size_t count)
{
    const float *f32 = a.dst;

    for (hvt_dtype type = HVT_F32; type <= HVT_BF16; type++)
        for (int more = 0; more <= 2; more++) {
            size_t all = count / a.c * (a.c + more), size = hvt_dtype_size(type), bad = 0;
            char *got = room(all * size);
            float *read = room(all * 4), *want = room((count + 1) * 4);
            uint16_t *rounded = room((count + 1) * 2);

            memset(got, 0, all * size);
            a.type = type;
            a.cx = a.c + more;
            a.dst = got;
            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            CHECK_OK(ref->ops->vector.cast(ref, all, 1, got, type, read, HVT_F32));
            CHECK_OK(ref->ops->vector.cast(ref, count, 1, f32, HVT_F32,
                                           type == HVT_F32 ? (void *)want : rounded, type));
            if (type != HVT_F32)
                CHECK_OK(ref->ops->vector.cast(ref, count, 1, rounded, type, want, HVT_F32));
            for (size_t i = 0; i < all; i++) {
                size_t pixel = i / a.cx, c = i % a.cx;

                bad += read[i] != (c < (size_t)a.c ? want[pixel * a.c + c] : 0);
            }
            CHECK(!bad, "device %d: %zu of %zu elements differ in %s with %d channels", dev, bad, all,
                  hvt_dtype_name(type), a.cx);
            free(got);
            free(read);
            free(want);
            free(rounded);
        }
}

/* A cross-entropy is linear in its target. */
TEST(soft_targets_are_mixtures_of_labels)
{
    enum { ROWS = 6, CLASSES = 9, ALL = ROWS * CLASSES };
    float x[ALL], soft[ALL] = {0}, loss[3][ROWS], dx[3][ALL], sums[HVT__SUMS];
    int32_t labels[3][ROWS], rank[ROWS];

    for (int i = 0; i < ALL; i++)
        x[i] = value();
    for (int i = 0; i < ROWS; i++) {
        labels[0][i] = labels[2][i] = between(0, CLASSES - 1);
        labels[1][i] = between(0, CLASSES - 1);
        soft[i * CLASSES + labels[0][i]] += .75f;
        soft[i * CLASSES + labels[1][i]] += .25f;
    }
    for (int dev = 0; dev < ndevs; dev++)
        for (int smooth = 0; smooth < 2; smooth++) {
            for (int k = 0; k < 3; k++) {
                hvt_xent_args a = {.rows = {1, ROWS, ROWS}, .classes = CLASSES, .type = HVT_F32, .logits = x};

                a.labels = labels[k], a.soft = k == 2 ? soft : NULL, a.smoothing = smooth ? .1f : 0;
                a.dlogits = dx[k], a.loss = loss[k], a.label_rank = rank, a.sums = sums;
                CHECK_OK(devs[dev]->ops->matrix.xent(devs[dev], &a));
            }
            for (int i = 0; i < ROWS; i++)
                CHECK(fabsf(loss[2][i] - (.75f * loss[0][i] + .25f * loss[1][i])) < 1e-5f,
                      "device %d: loss %g of %g and %g", dev, (double)loss[2][i], (double)loss[0][i],
                      (double)loss[1][i]);
            for (int i = 0; i < ALL; i++)
                CHECK(fabsf(dx[2][i] - (.75f * dx[0][i] + .25f * dx[1][i])) < 1e-6f,
                      "device %d: gradient %g of %g and %g", dev, (double)dx[2][i], (double)dx[0][i],
                      (double)dx[1][i]);
        }
}

TEST(images_equal_ref)
{
    for (int t = 0; t < cases(CASES); t++) {
        int n = between(1, 40), real = between(0, n), h = between(1, 20),
            w = between(0, 3) ? between(1, 40) : 150, c = between(1, 4), pad = between(0, 4);
        size_t count = (size_t)n * h * w * c;
        bool floats = between(0, 1);
        uint8_t *bytes = room((size_t)real * h * w * c * (floats ? sizeof(float) : 1));
        int8_t *drawn = room((size_t)real * 3);
        int16_t *erased = room((size_t)real * 4 * sizeof *erased);
        shape s = make_shape(between(0, 1) ? HVT_ORDER_HWN : HVT_ORDER_NHW, h * w, n, real, c);
        int32_t *labels = room((size_t)real * sizeof *labels), *got_labels = room((size_t)n * sizeof *labels);
        hvt_augment_args a = {.order = s.order,
                              .n = n,
                              .real = real,
                              .h = h,
                              .w = w,
                              .c = c,
                              .floats = floats,
                              .src = bytes,
                              .draws = between(0, 2) ? drawn : NULL,
                              .erased = between(0, 1) ? erased : NULL,
                              .labels = labels,
                              .cx = c,
                              .dst_labels = got_labels};
        float *want = NULL;

        for (size_t i = 0; i < (size_t)real * h * w * c; i++)
            if (floats)
                ((float *)bytes)[i] = value();
            else
                bytes[i] = (uint8_t)draw();
        for (int i = 0; i < real * 3; i++)
            drawn[i] = (int8_t)(i % 3 == 2 ? between(0, 1) : between(-pad, pad));
        for (int i = 0; i < real; i++) {
            int16_t *box = erased + 4 * i; /* none, some, or all of the image */

            box[2] = (int16_t)between(0, h), box[3] = (int16_t)between(0, w);
            box[0] = (int16_t)between(0, h - box[2]), box[1] = (int16_t)between(0, w - box[3]);
        }
        if (between(0, 2)) {
            hvt_mixing *m = &a.mixing;

            m->share = between(0, 2) ? (float)between(0, 1000) / 1000 : 0;
            m->top = between(0, h - 1), m->bottom = between(m->top, h);
            m->left = between(0, w - 1), m->right = between(m->left, w);
            if (between(0, 1))
                *m = (hvt_mixing){m->share, .bottom = h, .right = w};
        }
        for (int i = 0; i < c; i++) {
            a.scale[i] = value();
            a.shift[i] = value();
        }
        for (int i = 0; i < real; i++)
            labels[i] = between(0, 999);
        for (int dev = 0; dev < ndevs; dev++) {
            float *got = room(count * 4);

            memset(got, 0, count * 4);
            memset(got_labels, 0xff, (size_t)n * sizeof *got_labels);
            a.dst = got;
            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            CHECK(!memcmp(got_labels, labels, (size_t)real * sizeof *labels), "device %d: other labels", dev);
            check_stored(dev, a, count);
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
        free(erased);
        free(labels);
        free(got_labels);
        free(want);
    }
}

/* A pixel by hand: image 1 is cropped, mirrored and erased, then mixed with image 0. */
TEST(images_are_mixed_with_the_one_before)
{
    uint8_t bytes[2 * 2 * 3] = {10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120}; /* two of 2 x 3, grey */
    int8_t drawn[6] = {0, 0, 0, 1, 0, 1};                                           /* up by 1; mirrored */
    int16_t erased[8] = {0, 0, 0, 0, 0, 1, 1, 1};
    int32_t labels[2] = {3, 4}, got_labels[2];
    const float plain[2][6] = {{11, 21, 31, 41, 51, 61}, {121, 0, 101, 1, 1, 1}};
    float got[12];

    for (int dev = 0; dev < ndevs; dev++)
        for (int cut = 0; cut < 2; cut++) {
            hvt_augment_args a = {.n = 2, .real = 2, .h = 2, .w = 3, .c = 1, .cx = 1, .src = bytes};

            a.draws = drawn, a.erased = erased, a.labels = labels, a.dst = got, a.dst_labels = got_labels;
            a.scale[0] = a.shift[0] = 1;
            a.mixing = cut ? (hvt_mixing){0, 0, 1, 2, 2} : (hvt_mixing){.75f, 0, 0, 2, 3};
            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            for (int n = 0; n < 2; n++)
                for (int i = 0; i < 6; i++) {
                    float other = plain[1 - n][i], x = plain[n][i];
                    float want = !cut ? .75f * x + .25f * other : i % 3 == 1 ? other : x;

                    CHECK(got[n * 6 + i] == want, "device %d, cut %d, image %d: pixel %d is %g, not %g", dev,
                          cut, n, i, (double)got[n * 6 + i], (double)want);
                }
        }
}

/* Devices may write such a batch past the caches. */
TEST(a_batch_larger_than_caches_equals_ref)
{
    enum { N = 28, SIDE = 224, COUNT = N * SIDE * SIDE * 3 };
    uint8_t *bytes = room(COUNT);
    int8_t drawn[N * 3];
    int32_t labels[N] = {0}, got_labels[N];
    shape s = make_shape(HVT_ORDER_NHW, SIDE * SIDE, N, N, 3);
    float *want = room((size_t)COUNT * 4), *got = room((size_t)COUNT * 4);

    for (int i = 0; i < COUNT; i++)
        bytes[i] = (uint8_t)(i * 7 + i / 672);
    for (int i = 0; i < N * 3; i++)
        drawn[i] = (int8_t)(i % 3 == 2 ? i & 1 : between(-3, 3));
    for (int dev = 0; dev < ndevs; dev++) {
        hvt_augment_args a = {.order = s.order,
                              .n = N,
                              .real = N,
                              .h = SIDE,
                              .w = SIDE,
                              .c = 3,
                              .cx = 3,
                              .src = bytes,
                              .draws = drawn,
                              .labels = labels,
                              .scale = {.017f, .0175f, .0174f},
                              .shift = {-2.1f, -2.03f, -1.8f},
                              .dst = dev ? got : want,
                              .dst_labels = got_labels};

        CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
        if (dev && has_fma(dev))
            check_same("large batch", dev, &s, COUNT, got, want);
        else if (dev)
            check_near("large batch", dev, &s, COUNT, got, want, 1e-5);
    }
    free(bytes);
    free(want);
    free(got);
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
            int32_t label = 7, got_label = 0;
            hvt_augment_args a = {.n = 1,
                                  .real = 1,
                                  .h = 2,
                                  .w = 2,
                                  .c = 1,
                                  .cx = 1,
                                  .src = src,
                                  .draws = cases[i].draw,
                                  .labels = &label,
                                  .scale = {1},
                                  .shift = {0},
                                  .dst = got,
                                  .dst_labels = &got_label};

            CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
            check_same("image", dev, NULL, 4, got, cases[i].want);
        }
}

/* They are copied, in the order of everything else. */
TEST(targets_come_with_their_images)
{
    static const uint8_t src[3] = {1, 2, 3};
    static const float targets[6] = {-1, .5f, 3, 4e9f, 0, -0.f};
    static const int32_t labels[3] = {0};

    for (int dev = 0; dev < ndevs; dev++) {
        float got[4], moved[8] = {[6] = 7, [7] = 8}, want[8] = {-1, .5f, 3, 4e9f, 0, -0.f, 7, 8};
        int32_t got_labels[4];
        hvt_augment_args a = {.n = 4,
                              .real = 3,
                              .h = 1,
                              .w = 1,
                              .c = 1,
                              .cx = 1,
                              .src = src,
                              .labels = labels,
                              .targets = targets,
                              .outputs = 2,
                              .scale = {1},
                              .dst = got,
                              .dst_labels = got_labels,
                              .dst_targets = moved};

        CHECK_OK(devs[dev]->ops->augment(devs[dev], &a));
        check_same("targets", dev, NULL, 8, moved, want);
    }
}

int main(void)
{
    open_devices();
    RUN(bias_equals_ref);
    RUN(the_loss_equals_ref);
    RUN(the_loss_is_pytorch_s);
    RUN(a_logit_that_is_not_finite_shows_in_the_loss);
    RUN(equal_logits_take_places_in_order);
    RUN(pooling_equals_ref);
    RUN(what_is_not_finite_goes_on);
    RUN(a_window_that_cannot_be_is_refused);
    RUN(subsampling_equals_ref);
    RUN(soft_targets_are_mixtures_of_labels);
    RUN(images_equal_ref);
    RUN(images_are_mixed_with_the_one_before);
    RUN(a_batch_larger_than_caches_equals_ref);
    RUN(an_image_is_cropped_then_mirrored);
    RUN(targets_come_with_their_images);
    close_devices();
    return check_done();
}
