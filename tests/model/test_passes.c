/*
 * passes: the memory traffic of a training step, with and without fusion: blocks of common families of
 * networks, 8 images of 16x16 pixels, f32. The figures are bench_step's, which counts an array each time that
 * an op reads or writes it. A change that increases one is a loss of speed.
 */
#include "../../bench/op_times.h"
#include "nets.h"

enum { IMAGES = 8, SIDE = 16 };

static hvt_value vgg(hvt_model *m, hvt_value x)
{
    for (int i = 0; i < 2; i++)
        x = hvt_relu(m, hvt_conv2d_with(m, x,
                                        &(hvt_conv2d_opts){.filters = 16,
                                                           .kernel_h = 3,
                                                           .top = 1,
                                                           .left = 1,
                                                           .bottom = 1,
                                                           .right = 1,
                                                           .bias = true}));
    return hvt_maxpool(m, x, 2, 2, 0);
}

static hvt_value normed(hvt_model *m, hvt_value x, int filters, int size)
{
    return hvt_batchnorm(m, hvt_conv2d(m, x, filters, size, 1, size / 2));
}

static hvt_value resnet(hvt_model *m, hvt_value x)
{
    hvt_value y;

    x = hvt_relu(m, normed(m, x, 16, 3));
    y = hvt_relu(m, normed(m, x, 16, 3));
    return hvt_relu(m, hvt_add(m, normed(m, y, 16, 3), x));
}

static hvt_value bottleneck(hvt_model *m, hvt_value x)
{
    hvt_value y;

    x = hvt_relu(m, normed(m, x, 64, 1));
    y = hvt_relu(m, normed(m, x, 16, 1));
    y = hvt_relu(m, normed(m, y, 16, 3));
    return hvt_relu(m, hvt_add(m, normed(m, y, 64, 1), x));
}

static hvt_value densenet(hvt_model *m, hvt_value x)
{
    x = hvt_conv2d(m, x, 16, 3, 1, 1);
    for (int i = 0; i < 2; i++) {
        hvt_value y = hvt_conv2d(m, hvt_relu(m, hvt_batchnorm(m, x)), 32, 1, 1, 0);

        y = hvt_conv2d(m, hvt_relu(m, hvt_batchnorm(m, y)), 8, 3, 1, 1);
        x = hvt_concat(m, (hvt_value[]){x, y}, 2);
    }
    return x;
}

static hvt_value relu6(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_HARDTANH, 0, 6);
}

static hvt_value mobilenet(hvt_model *m, hvt_value x)
{
    hvt_value y;

    x = normed(m, x, 16, 1);
    y = relu6(m, normed(m, x, 64, 1));
    y = relu6(m, hvt_batchnorm(m, depthwise_layer(m, y, 64, 3, 1)));
    return hvt_add(m, normed(m, y, 16, 1), x);
}

static hvt_value silu(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_SILU, 0, 0);
}

static hvt_value efficientnet(hvt_model *m, hvt_value x)
{
    hvt_value y, gate;

    x = normed(m, x, 16, 1);
    y = silu(m, normed(m, x, 64, 1));
    y = silu(m, hvt_batchnorm(m, depthwise_layer(m, y, 64, 3, 1)));
    gate = silu(m, hvt_conv2d(m, hvt_avgpool(m, y), 4, 1, 1, 0));
    gate = hvt_apply(m, hvt_conv2d(m, gate, 64, 1, 1, 0), HVT_SIGMOID, 0, 0);
    y = hvt_combine(m, HVT_MUL, y, gate);
    return hvt_add(m, normed(m, y, 16, 1), x);
}

static hvt_value shufflenet(hvt_model *m, hvt_value x)
{
    hvt_value left, right;

    x = hvt_relu(m, normed(m, x, 32, 1));
    left = hvt_slice(m, x, 0, 16);
    right = hvt_relu(m, normed(m, hvt_slice(m, x, 16, 16), 16, 1));
    right = hvt_batchnorm(m, depthwise_layer(m, right, 16, 3, 1));
    right = hvt_relu(m, normed(m, right, 16, 1));
    return hvt_shuffle(m, hvt_concat(m, (hvt_value[]){left, right}, 2), 2);
}

static hvt_value convnext(hvt_model *m, hvt_value x)
{
    const int scale[] = {16};
    hvt_value y;

    x = hvt_conv2d(m, x, 16, 1, 1, 0);
    y = hvt_layernorm(m, depthwise_layer(m, x, 16, 7, 1), HVT_OVER_CHANNELS, 1e-6f, true);
    y = hvt_apply(m, hvt_conv2d(m, y, 64, 1, 1, 0), HVT_GELU, 0, 0);
    y = hvt_combine_parameter(m, HVT_MUL, hvt_conv2d(m, y, 16, 1, 1, 0), 1, scale, 1e-6f);
    return hvt_add(m, y, x);
}

static double moved;

static void begin(const op_call *call)
{
    moved += call->bytes;
}

static void end(void)
{
}

/* KiB of a step. */
static int measure(build_fn *build, bool fused)
{
    const op_listener count = {begin, end};
    hvt_device_opts one = {.threads = 1};
    hvt_device_ops ops;
    hvt_device *dev;
    hvt_model *m;
    hvt_batch batch;
    float *images = calloc((size_t)IMAGES * SIDE * SIDE * 3, sizeof *images);
    const int32_t labels[IMAGES] = {0};

    CHECK_OK(hvt_device_open("cpu", &one, &dev));
    ops = *dev->ops;
    ops.recomputes = fused;
    dev->ops = &ops;
    op_times_watch(dev);
    CHECK_OK(hvt_model_create(dev, &m));
    m->unfused = !fused;
    CHECK_OK(
        hvt_model_plan(m, IMAGES, hvt_linear(m, hvt_avgpool(m, build(m, hvt_input(m, SIDE, SIDE, 3))), 4)));
    CHECK_OK(hvt_model_init(m, SEED));
    CHECK_OK(hvt_batch_set(
        m, &(hvt_arrays){.images = images, .type = HVT_F32, .labels = labels, .count = IMAGES}, &batch));
    moved = 0;
    op_times_listen(&count);
    CHECK_OK(hvt_model_forward(m, &batch, true));
    CHECK_OK(hvt_model_backward(m, NULL, NULL));
    op_times_listen(NULL);
    hvt_model_free(&m);
    hvt_device_close(&dev);
    free(images);
    return (int)(moved / 1024);
}

TEST(a_step_moves_so_many_bytes)
{
    static const struct {
        const char *name;
        build_fn *build;
        int unfused, fused;
    } families[] = {{"vgg", vgg, 3554, 3554},
                    {"resnet", resnet, 7789, 6125},
                    {"resnet, bottlenecks", bottleneck, 25970, 19570},
                    {"densenet", densenet, 18239, 14463},
                    {"mobilenet_v2", mobilenet, 23507, 17235},
                    {"efficientnet", efficientnet, 28660, 24437},
                    {"shufflenet_v2", shufflenet, 14527, 11455},
                    {"convnext", convnext, 9941, 11221}};

    for (size_t i = 0; i < HVT_LEN(families); i++) {
        const int unfused = measure(families[i].build, false), fused = measure(families[i].build, true);

        CHECK(unfused == families[i].unfused && fused == families[i].fused,
              "%s: %d KiB, fused %d; expected %d and %d", families[i].name, unfused, fused,
              families[i].unfused, families[i].fused);
    }
}

int main(void)
{
    RUN(a_step_moves_so_many_bytes);
    return check_done();
}
