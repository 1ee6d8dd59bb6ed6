/*
 * The tape: builders and their mistakes, folding, arenas, both walks, statistics, names, hashes. Gradients
 * are held against differences of the loss on ref; cpu, on every instruction set here, against ref.
 */
#include "base_impl.h"
#include "check.h"
#include "model_impl.h"

#include <math.h>

enum { SEED = 77, MOST_SPANS = 512 };

/* ---- a model with a batch of its own ---------------------------------------------------------------- */

typedef hvt_value build_fn(hvt_model *m, hvt_value x);

typedef struct net {
    hvt_device *dev;
    hvt_model *m;
    hvt_batch batch;
    int h, w, c, classes;
} net;

typedef struct shape {
    int batch, h, w, c;
} shape;

static void close_net(net *n)
{
    if (n->m) {
        n->dev->ops->release(n->dev, n->batch.images.data);
        n->dev->ops->release(n->dev, n->batch.labels.data);
    }
    hvt_model_free(&n->m);
    hvt_device_close(&n->dev);
}

/* Pixel values, the same whatever the order of rows: a function of image, pixel and channel. */
static float pixel(int image, int element)
{
    return 2 * hvt__unit(hvt__draw(SEED, 1, (uint64_t)image, (uint64_t)element)) - 1;
}

/* Images first .. first+count-1 of an endless set; what lies behind them in the batch is poison. */
static void feed(net *n, int first, int count)
{
    int rows = n->h * n->w, room = n->m->batch;
    size_t elements = (size_t)room * rows * n->c;
    float *x = malloc(elements * sizeof *x);
    int32_t *labels = malloc((size_t)room * sizeof *labels);

    for (int i = 0; i < room; i++) {
        labels[i] = (int32_t)hvt__below(hvt__draw(SEED, 2, (uint64_t)(first + i), 0), (uint32_t)n->classes);
        for (int p = 0; p < rows; p++) {
            size_t row = n->m->order == HVT_ORDER_HWN ? (size_t)p * room + i : (size_t)i * rows + p;

            for (int c = 0; c < n->c; c++)
                x[row * n->c + c] = i < count ? pixel(first + i, p * n->c + c) : 1e30f;
        }
    }
    CHECK_OK(hvt_device_upload(n->dev, n->batch.images.data, x, elements * sizeof *x));
    CHECK_OK(hvt_device_upload(n->dev, n->batch.labels.data, labels, (size_t)room * sizeof *labels));
    n->batch.count = count;
    free(x);
    free(labels);
}

/* Build, plan, initialise. `unfused`: nothing is folded. False: it did not work, and was said. */
static bool open_net(net *n, const char *device, const char *isa, build_fn *build, shape s, bool unfused)
{
    hvt_device_opts opts = {.threads = 1, .isa = isa};
    int rows[4] = {s.batch, s.h, s.w, s.c};
    hvt_value x;

    *n = (net){.h = s.h, .w = s.w, .c = s.c};
    CHECK_OK(hvt_device_open(device, &opts, &n->dev));
    CHECK_OK(hvt_model_create(n->dev, &n->m));
    n->m->unfused = unfused;
    x = build(n->m, hvt_input(n->m, s.h, s.w, s.c));
    CHECK_OK(hvt_model_plan(n->m, s.batch, x));
    if (!n->m->batch)
        return false;
    CHECK_OK(hvt_model_init(n->m, SEED));
    n->classes = hvt_model_classes(n->m);
    if (n->m->order == HVT_ORDER_HWN)
        memcpy(rows, (int[]){s.h, s.w, s.batch, s.c}, sizeof rows);
    n->batch.images = (hvt_tensor){.dtype = HVT_F32, .ndim = 4, .dim = {rows[0], rows[1], rows[2], rows[3]}};
    n->batch.labels = (hvt_tensor){.dtype = HVT_I32, .ndim = 1, .dim = {s.batch, 1, 1, 1}};
    n->batch.shards = 1;
    CHECK_OK(n->dev->ops->alloc(n->dev, hvt_tensor_count(&n->batch.images) * sizeof(float),
                                &n->batch.images.data));
    CHECK_OK(n->dev->ops->alloc(n->dev, (size_t)s.batch * sizeof(int32_t), &n->batch.labels.data));
    feed(n, 0, s.batch);
    return true;
}

/* Sum over the rows of the last forward, in double. */
static double loss_of(net *n)
{
    float *loss = calloc((size_t)n->m->batch, sizeof *loss);
    int32_t *place = calloc((size_t)n->m->batch, sizeof *place);
    double sum = 0;

    CHECK_OK(hvt_model_rows(n->m, loss, place));
    for (int i = 0; i < n->batch.count; i++)
        sum += loss[i];
    free(loss);
    free(place);
    return sum;
}

static double train_loss(net *n)
{
    CHECK_OK(hvt_model_forward(n->m, &n->batch, true));
    return loss_of(n);
}

/* Canonical copy of parameter i of an arena; free() it. */
static float *canonical(net *n, int i, const float *arena)
{
    float *x = malloc(n->m->param[i].elements * sizeof *x);

    CHECK_OK(hvt__model_export(n->m, &n->m->param[i], arena, x));
    return x;
}

/* ---- small networks --------------------------------------------------------------------------------- */

/* Every kind of layer: conv, batch norm alone, with relu, with add and relu (identity, option A, option B),
 * max-pool, mean-pool, linear. */
static hvt_value small_net(hvt_model *m, hvt_value x)
{
    hvt_value y, skip;

    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 6, 3, 1, 1)));
    x = hvt_maxpool(m, x, 3, 2, 1);
    y = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 5, 1, 1, 0)));
    y = hvt_batchnorm(m, hvt_conv2d(m, y, 6, 3, 1, 1));
    x = hvt_relu(m, hvt_add(m, y, x)); /* identity */
    skip = hvt_subsample(m, x, 2, 10);
    y = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 10, 3, 2, 1)));
    y = hvt_batchnorm(m, hvt_conv2d(m, y, 10, 3, 1, 1));
    x = hvt_relu(m, hvt_add(m, y, skip));
    y = hvt_batchnorm(m, hvt_conv2d(m, x, 7, 3, 2, 1));
    x = hvt_relu(m, hvt_add(m, y, hvt_batchnorm(m, hvt_conv2d(m, x, 7, 1, 2, 0))));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* What does not fold: add of things that are no batch norm, relu after conv, values read twice, x + x. */
static hvt_value odd_net(hvt_model *m, hvt_value x)
{
    hvt_value a, b, n;

    a = hvt_relu(m, hvt_conv2d(m, x, 4, 3, 1, 1));
    b = hvt_relu(m, hvt_conv2d(m, x, 4, 5, 1, 2));
    x = hvt_add(m, a, hvt_add(m, b, b));
    n = hvt_batchnorm(m, x); /* read twice */
    x = hvt_add(m, hvt_relu(m, n), n);
    x = hvt_add(m, hvt_batchnorm(m, x), x);                            /* its residual is its own x */
    x = hvt_add(m, hvt_batchnorm(m, hvt_conv2d(m, x, 4, 3, 1, 1)), a); /* folds, without relu */
    return hvt_linear(m, hvt_avgpool(m, hvt_subsample(m, x, 3, 8)), 3);
}

/* No batch norm: rows do not know of each other. */
static hvt_value plain_net(hvt_model *m, hvt_value x)
{
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 1, 1));
    x = hvt_maxpool(m, x, 2, 2, 0);
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 2, 1));
    return hvt_linear(m, hvt_avgpool(m, x), 5);
}

/* ---- gradients -------------------------------------------------------------------------------------- */

static void check_gradients(build_fn *build, shape s, bool unfused)
{
    const double step = 1.0 / 1024;
    net n;

    if (open_net(&n, "ref", NULL, build, s, unfused)) {
        CHECK_OK(hvt_model_forward(n.m, &n.batch, true));
        CHECK_OK(hvt_model_backward(n.m, NULL, NULL));
        for (int i = 0; i < n.m->nparam_tensors; i++) {
            const hvt_param *p = &n.m->param[i];
            float *w = canonical(&n, i, n.m->params), *g = canonical(&n, i, n.m->grads);

            for (int k = 0; k < 4; k++) {
                size_t e = hvt__below(hvt__draw(SEED, 3, (uint64_t)i, (uint64_t)k), (uint32_t)p->elements);
                float was = w[e];
                double slope[2];

                for (int j = 0; j < 2; j++) { /* steps h and h/2; Richardson takes the h^2 term out */
                    double h = step / (1 + j), up, down;

                    w[e] = (float)(was + h);
                    CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                    up = train_loss(&n);
                    w[e] = (float)(was - h);
                    CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                    down = train_loss(&n);
                    slope[j] = (up - down) / ((double)(float)(was + h) - (double)(float)(was - h));
                }
                w[e] = was;
                CHECK_OK(hvt__model_import(n.m, p, n.m->params, w));
                slope[0] = (4 * slope[1] - slope[0]) / 3;
                CHECK(fabs(slope[0] - g[e]) < 2e-3 * (fabs(slope[0]) + 1), "%s[%zu]: %.6g, expected %.6g",
                      p->name, e, (double)g[e], slope[0]);
            }
            free(w);
            free(g);
        }
    }
    close_net(&n);
}

TEST(gradients_equal_differences_of_the_loss)
{
    check_gradients(small_net, (shape){5, 9, 11, 3}, false);
    check_gradients(small_net, (shape){5, 9, 11, 3}, true);
    check_gradients(odd_net, (shape){3, 5, 7, 2}, false);
    check_gradients(odd_net, (shape){3, 5, 7, 2}, true);
    check_gradients(plain_net, (shape){3, 9, 7, 3}, false);
}

/* ---- the zoo ---------------------------------------------------------------------------------------- */

/* Source: torchvision's published counts; for the CIFAR ResNets and other heads, torch's numel(). */
TEST(zoo_models_have_the_published_numbers_of_parameters)
{
    static const struct {
        const char *name;
        int classes;
        hvt_zoo_opts opts;
        size_t parameters;
        int tensors;
    } want[] = {
        {"resnet18", 1000, {.imagenet_stem = true}, 11689512, 62},
        {"resnet34", 1000, {.imagenet_stem = true}, 21797672, 110},
        {"resnet50", 1000, {.imagenet_stem = true}, 25557032, 161},
        {"resnet101", 1000, {.imagenet_stem = true}, 44549160, 314},
        {"resnet152", 1000, {.imagenet_stem = true}, 60192808, 467},
        {"resnet50", 10, {.imagenet_stem = true}, 23528522, 161},
        {"resnet18", 10, {0}, 11173962, 62},
        {"resnet50", 10, {0}, 23520842, 161},
        {"resnet20", 10, {0}, 269722, 59},
        {"resnet32", 10, {0}, 464154, 95},
        {"resnet44", 10, {0}, 658586, 131},
        {"resnet56", 10, {0}, 853018, 167},
        {"resnet110", 10, {0}, 1727962, 329},
        {"resnet20", 10, {.projection = true}, 272474, 65},
        {"resnet56", 10, {.projection = true}, 855770, 173},
    };

    for (size_t i = 0; i < HVT_LEN(want); i++) {
        hvt_device *dev = NULL;
        hvt_model *m = NULL;

        CHECK_OK(hvt_device_open("ref", NULL, &dev));
        CHECK_OK(hvt_model_create(dev, &m));
        CHECK_OK(hvt_model_plan(
            m, 1, hvt_zoo(m, want[i].name, hvt_input(m, 32, 32, 3), want[i].classes, &want[i].opts)));
        CHECK(hvt_model_parameters(m) == want[i].parameters, "%s: %zu parameters, expected %zu", want[i].name,
              hvt_model_parameters(m), want[i].parameters);
        CHECK(m->nparam_tensors == want[i].tensors, "%s: %d tensors, expected %d", want[i].name,
              m->nparam_tensors, want[i].tensors);
        CHECK(hvt_model_classes(m) == want[i].classes, "%s: %d classes", want[i].name, hvt_model_classes(m));
        hvt_model_free(&m);
        hvt_device_close(&dev);
    }
}

int main(void)
{
    RUN(zoo_models_have_the_published_numbers_of_parameters);
    RUN(gradients_equal_differences_of_the_loss);
    return check_done();
}
