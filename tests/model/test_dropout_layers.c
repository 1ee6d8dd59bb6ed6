/*
 * Dropout, channel dropout and stochastic depth: the keys of their draws, their gradients, and inference,
 * which they do not change.
 */
#include "nets.h"

enum { BATCH = 6, SIDE = 5, C = 7, CLASSES = 4 };

typedef hvt_value kind_fn(hvt_model *m, hvt_value x, double p);

static hvt_value path(hvt_model *m, hvt_value x, double p)
{
    return hvt_drop_path(m, x, p, false);
}

static hvt_value batch_path(hvt_model *m, hvt_value x, double p)
{
    return hvt_drop_path(m, x, p, true);
}

static kind_fn *const kinds[] = {hvt_dropout, hvt_dropout_channels, path, batch_path};
static const char *const names[] = {"dropout", "channel dropout", "stochastic depth", "that of a batch"};

/* ---- a net that has all of them ---- */

static double rate = 0.4;
static bool smooth; /* no relu, for differences */

static hvt_value bent(hvt_model *m, hvt_value x)
{
    return smooth ? hvt_apply(m, x, HVT_SILU, 0, 0) : hvt_relu(m, x);
}

static hvt_value block(hvt_model *m, hvt_value x, kind_fn *kind)
{
    hvt_value y = bent(m, hvt_batchnorm(m, hvt_conv2d(m, x, 8, 3, 1, 1)));

    return hvt_add(m, x, kind(m, y, rate));
}

static hvt_value dropped_net(hvt_model *m, hvt_value x)
{
    x = bent(m, hvt_conv2d(m, hvt_dropout(m, x, rate / 4), 8, 3, 1, 1));
    for (size_t k = 0; k < HVT_LEN(kinds); k++)
        x = block(m, x, kinds[k]);
    x = hvt_dropout(m, hvt_flatten(m, x), rate);
    return hvt_linear(m, hvt_dropout(m, hvt_apply(m, hvt_linear(m, x, 9), HVT_SILU, 0, 0), rate), CLASSES);
}

TEST(every_way_gives_the_same_gradients)
{
    how by;

    for (int batch = 1; batch < 20; batch += 9)
        for (int w = 0; way(w, &by); w++)
            check_same(dropped_net, (shape){batch, SIDE, 6, 3}, (batch + 1) / 2, ref, by, 2e-3);
}

TEST(nothing_is_read_after_its_lifetime_and_fusion_changes_no_draw)
{
    how by;

    for (int w = 0; way(w, &by); w++) {
        how poisoned = by, unfused = by;

        poisoned.poisons = true;
        check_same(dropped_net, (shape){BATCH, SIDE, 6, 3}, BATCH - 1, by, poisoned, 0);
        unfused.unfused = unfused.keeps = true;
        check_same(dropped_net, (shape){BATCH, SIDE, 6, 3}, BATCH - 1, by, unfused, 2e-3);
    }
}

/* Passes within a step drop the same, so the loss is a function of the parameters. */
TEST(gradients_equal_differences_of_the_loss)
{
    net n;
    size_t count, at = 0;
    int compared = 0;

    smooth = true;
    if (!open_net(&n, ref, dropped_net, (shape){BATCH, SIDE, 6, 3}))
        return;
    float *g = pass(&n, &count);

    for (int i = 0; i < n.m->ntrained; at += n.m->param[i++].elements) {
        hvt_param *p = &n.m->param[i];
        float *w = canonical(&n, i, n.m->params), most = 0;
        const float step = 0x1p-9f;

        for (size_t k = 0; k < p->elements; k++)
            most = fmaxf(most, fabsf(g[at + k]));
        for (size_t k = 0; k < p->elements; k += 1 + p->elements / 5) {
            const float was = w[k];
            double loss[2];

            for (int side = 0; side < 2; side++) {
                w[k] = side ? was + step : was - step;
                CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                hvt__model_changed(n.m);
                loss[side] = train_loss(&n);
            }
            w[k] = was;
            CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
            hvt__model_changed(n.m);
            CHECK(fabs((loss[1] - loss[0]) / (2 * step) - g[at + k]) <= 2e-2 * most + 2e-3,
                  "%s[%zu]: gradient %g, differences %g", p->name, k, (double)g[at + k],
                  (loss[1] - loss[0]) / (2 * step));
            compared++;
        }
        free(w);
    }
    CHECK(compared > 50, "%d gradients", compared);
    smooth = false;
    free(g);
    close_net(&n);
}

/* ---- one layer of one kind, over the images ---- */

static kind_fn *of_kind;

/* The convolution keeps what it reads. */
static hvt_value bare_net(hvt_model *m, hvt_value x)
{
    return hvt_avgpool(m, hvt_conv2d(m, of_kind(m, x, rate), CLASSES, 1, 1, 0));
}

static const shape images = {BATCH, SIDE, SIDE, C};

/* What the layer made of pixel (p, c) of an image in the last pass. */
static float out(const net *n, int image, int p, int c)
{
    size_t row =
        n->m->order == HVT_ORDER_HWN ? (size_t)p * n->m->batch + image : (size_t)image * SIDE * SIDE + p;

    return ((const float *)n->m->layer[1].y.data)[row * C + c];
}

/* As bits, a hash of all of the image's. */
static uint64_t dropped(const net *n, int image)
{
    uint64_t h = HVT_HASH_INIT;

    for (int p = 0; p < SIDE * SIDE; p++)
        for (int c = 0; c < C; c++) {
            uint8_t zero = out(n, image, p, c) == 0;

            h = hvt__hash(h, &zero, 1);
        }
    return h;
}

static uint64_t whole_pass(net *n, int image)
{
    CHECK_OK(hvt_model_forward(n->m, &n->batch, true));
    return dropped(n, image);
}

TEST(a_draw_is_keyed_by_epoch_and_sample)
{
    uint32_t ids[BATCH] = {7, 1, 30, 4, 9, 2}, turned[BATCH] = {30, 2, 7, 9, 4, 1};
    how by;

    for (size_t k = 0; k < 3; k++)
        for (int w = -1; w < 0 || way(w, &by); w++) {
            uint64_t first[BATCH], changed = 0, last = 0, epochs = 0;
            net n;

            of_kind = kinds[k];
            if (!open_net(&n, w < 0 ? ref : by, bare_net, images))
                continue;
            n.batch.key = 77;
            n.batch.ids = ids;
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            for (int i = 0; i < BATCH; i++)
                first[i] = dropped(&n, i);
            n.m->tracked = 3; /* keyed batches do not look at it, nor at shards */
            n.batch.ids = turned;
            n.batch.count = BATCH - 1;
            n.batch.shard = 1, n.batch.shards = 3;
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            for (int i = 0; i < BATCH - 1; i++)
                for (int j = 0; j < BATCH; j++)
                    CHECK(turned[i] != ids[j] || dropped(&n, i) == first[j], "%s: sample %u differs",
                          names[k], ids[j]);
            for (uint64_t key = 78; key < 110; key++) {
                n.batch.key = key;
                last = epochs;
                epochs = whole_pass(&n, 0);
                changed += epochs != last;
            }
            CHECK(changed > 10, "%s: %llu of 32 epochs differ from the one before", names[k],
                  (unsigned long long)changed);
            close_net(&n);
        }
}

TEST(without_a_key_a_draw_is_keyed_by_the_step_and_the_index_over_all_shards)
{
    net n;
    uint64_t all[BATCH], other;

    of_kind = hvt_dropout;
    if (!open_net(&n, ref, bare_net, images))
        return;
    CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
    for (int i = 0; i < BATCH; i++)
        all[i] = dropped(&n, i);
    CHECK(all[0] != all[1], "images 0 and 1 are alike");
    n.batch.shards = 2;
    n.batch.shard = 1;
    n.batch.shard_counts = (int[]){4, 2};
    n.batch.count = 2;
    CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
    CHECK(dropped(&n, 0) == all[4] && dropped(&n, 1) == all[5], "image 0 of shard 1 is not image 4 of all");
    n.m->tracked++;
    CHECK(whole_pass(&n, 0) != all[4], "the next step drops the same");
    n.m->tracked--;
    CHECK(whole_pass(&n, 0) == all[4], "a step does not drop the same again");
    CHECK_OK(hvt_model_init(n.m, SEED + 1));
    other = whole_pass(&n, 0);
    CHECK(other != all[4], "another seed drops the same");
    close_net(&n);
}

TEST(a_kind_drops_what_its_name_says)
{
    for (size_t k = 0; k < HVT_LEN(kinds); k++) {
        int zeros = 0, partial = 0, unlike = 0;
        net n;

        of_kind = kinds[k];
        if (!open_net(&n, ref, bare_net, images))
            continue;
        for (n.batch.key = 1; n.batch.key < 40; n.batch.key++) {
            uint32_t ids[BATCH] = {0, 1, 2, 3, 4, 5};

            n.batch.ids = ids;
            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            for (int i = 0; i < BATCH; i++)
                for (int c = 0; c < C; c++)
                    for (int p = 0; p < SIDE * SIDE; p++) {
                        bool zero = out(&n, i, p, c) == 0;
                        float want = pixel(i, p * C + c) * (float)(1 / (1 - rate));

                        zeros += zero;
                        CHECK(zero || out(&n, i, p, c) == want, "%s: %g, not %g", names[k],
                              (double)out(&n, i, p, c), (double)want);
                        partial += zero != (out(&n, i, 0, k == 1 ? c : 0) == 0);
                        unlike += zero != (out(&n, 0, p, c) == 0);
                    }
        }
        double part = (double)zeros / (39.0 * BATCH * SIDE * SIDE * C);

        CHECK(fabs(part - rate) < (k == 0   ? 0.01
                                   : k == 1 ? 0.05
                                   : k == 2 ? 0.15
                                            : 0.3),
              "%s: %g of %g are 0", names[k], part, rate);
        CHECK(!partial == (k > 0), "%s: %d of a group differ from its first", names[k], partial);
        CHECK(!unlike == (k == 3), "%s: %d of images differ from the first", names[k], unlike);
        close_net(&n);
    }
}

/* ---- types, extremes, inference ---- */

TEST(sixteen_bits_drop_the_same)
{
    static uint64_t want[BATCH];

    of_kind = hvt_dropout;
    for (int t = 0; t < 3; t++) {
        hvt_device *dev = NULL;
        hvt_model *m = NULL;
        uint16_t x[BATCH * SIDE * SIDE * C];
        float wide[BATCH * SIDE * SIDE * C];
        int32_t labels[BATCH] = {0};

        CHECK_OK(hvt_device_open("ref", NULL, &dev));
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_OK(hvt_model_set_type(m, (hvt_dtype)t));
        CHECK_OK(hvt_model_plan(m, BATCH, bare_net(m, hvt_input(m, SIDE, SIDE, C))));
        CHECK_OK(hvt_model_init(m, SEED));
        for (int i = 0; i < BATCH * SIDE * SIDE * C; i++)
            wide[i] = 1;
        CHECK_OK(
            dev->ops->vector.cast(dev, HVT_LEN(x), 1, wide, HVT_F32, t ? (void *)x : wide, (hvt_dtype)t));
        hvt_batch b = {.images = {t ? (void *)x : wide, (hvt_dtype)t, 4, {BATCH, SIDE, SIDE, C}},
                       .labels = {labels, HVT_I32, 1, {BATCH, 1, 1, 1}},
                       .count = BATCH};

        if (m->order == HVT_ORDER_HWN)
            memcpy(b.images.dim, (int[]){SIDE, SIDE, BATCH, C}, sizeof b.images.dim);
        CHECK_OK(hvt_model_forward(m, &b, true));
        CHECK_OK(dev->ops->vector.cast(dev, HVT_LEN(x), 1, m->layer[1].y.data, (hvt_dtype)t, wide, HVT_F32));
        m->layer[1].y.data = wide;
        for (int i = 0; i < BATCH; i++) {
            uint64_t h = dropped(&(net){.m = m}, i);

            CHECK(!t || h == want[i], "%s: image %d is not as in f32", hvt_dtype_name((hvt_dtype)t), i);
            want[i] = h;
        }
        hvt_model_free(&m);
        hvt_device_close(&dev);
    }
}

TEST(one_drops_all_and_zero_appends_nothing)
{
    for (size_t k = 0; k < HVT_LEN(kinds); k++) {
        net n;

        of_kind = kinds[k];
        rate = 1;
        if (open_net(&n, ref, bare_net, images)) {
            float *g;
            size_t count;

            CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
            for (int i = 0; i < BATCH * SIDE * SIDE * C; i++)
                CHECK(((float *)n.m->layer[1].y.data)[i] == 0, "%s: [%d] is not 0", names[k], i);
            g = pass(&n, &count);
            free(g);
        }
        close_net(&n);
        rate = 0;
        if (open_net(&n, ref, bare_net, images))
            CHECK(n.m->nlayer == 4 && !n.m->keys, "%s: %d layers with p 0", names[k], n.m->nlayer);
        close_net(&n);
        rate = 0.4;
    }
}

TEST(inference_is_the_same_net_without)
{
    how by;

    for (int w = 0; way(w, &by); w++) {
        float with[BATCH * CLASSES], without[BATCH * CLASSES];

        for (int drops = 0; drops < 2; drops++) {
            net n;

            rate = drops ? 0.4 : 0;
            if (open_net(&n, by, dropped_net, (shape){BATCH, SIDE, 6, 3})) {
                /* names of layers are numbers of the tape: the same values by place */
                for (int i = 0; i < n.m->nparam_tensors; i++) {
                    hvt_param *p = &n.m->param[i];
                    float *v = malloc(p->elements * sizeof *v);

                    for (size_t k = 0; k < p->elements; k++)
                        v[k] = hvt__unit(hvt__draw(4, (uint64_t)i, k, 0)) - .4f;
                    CHECK_OK(hvt__model_import(n.m, p, n.m->params, v));
                    free(v);
                }
                hvt__model_changed(n.m);
                CHECK_OK(hvt_model_forward(n.m, &n.batch, false));
                CHECK_OK(hvt_model_logits(n.m, drops ? with : without));
            }
            close_net(&n);
        }
        rate = 0.4;
        CHECK(!memcmp(with, without, sizeof with), "%s: logits differ", way_name(by));
    }
}

TEST(a_bad_probability_is_refused)
{
    static const double bad[] = {-0.1, 1.5, NAN};
    hvt_device *dev = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    for (size_t i = 0; i < HVT_LEN(bad); i++) {
        hvt_model *m = NULL;

        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_FAILS(hvt_model_plan(m, 2, hvt_dropout(m, hvt_input(m, 1, 1, 3), bad[i])), E_SHAPE,
                    "layer dropout1 (dropout): p is");
        hvt_model_free(&m);
    }
    hvt_device_close(&dev);
}

TEST(a_device_that_does_not_compute_it_says_so)
{
    hvt_device *dev = NULL;
    hvt_device_ops poor;
    const hvt_device_ops *own;
    hvt_model *m = NULL;

    CHECK_OK(hvt_device_open("ref", NULL, &dev));
    own = dev->ops;
    poor = *own;
    poor.general.dropout = NULL;
    dev->ops = &poor;
    CHECK_OK(hvt_model_create(dev, &m));
    CHECK_FAILS(hvt_model_plan(m, 2, hvt_dropout(m, hvt_input(m, 1, 1, 3), 0.5)), E_UNSUPPORTED,
                "layer dropout1 (dropout): device ref does not compute it");
    hvt_model_free(&m);
    dev->ops = own;
    hvt_device_close(&dev);
}

int main(void)
{
    RUN(every_way_gives_the_same_gradients);
    RUN(nothing_is_read_after_its_lifetime_and_fusion_changes_no_draw);
    RUN(gradients_equal_differences_of_the_loss);
    RUN(a_draw_is_keyed_by_epoch_and_sample);
    RUN(without_a_key_a_draw_is_keyed_by_the_step_and_the_index_over_all_shards);
    RUN(a_kind_drops_what_its_name_says);
    RUN(sixteen_bits_drop_the_same);
    RUN(one_drops_all_and_zero_appends_nothing);
    RUN(inference_is_the_same_net_without);
    RUN(a_bad_probability_is_refused);
    RUN(a_device_that_does_not_compute_it_says_so);
    return check_done();
}
