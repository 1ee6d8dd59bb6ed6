/*
 * Models by name: torchvision's ResNets (He et al. 2015, "v1.5": a bottleneck's stride is in its 3x3), its
 * ResNeXt (Xie et al. 2017) and Wide ResNet (Zagoruyko and Komodakis 2016), the CIFAR ResNets of section 4.2
 * of the same paper, torchvision's MobileNetV2 (Sandler et al. 2018), airbench94 (Jordan 2024), and a
 * perceptron of two hidden layers.
 *
 * Layers are named and ordered as in torchvision's state_dict: a block's own layers, then its downsample. The
 * subsampling shortcut of option A has no parameters and comes first in its block, so that the add at the end
 * of the block can be fused.
 *
 * A new model needs one function here, and its name in HVT_ZOO (hvt/model.h).
 */
#include "base_impl.h"
#include "layers.h"

enum { STAGES = 4 };

/* The arguments of hvt_zoo(). */
typedef struct order {
    hvt_model *m;
    hvt_value images;
    int classes;
    hvt_zoo_opts opts;
} order;

/* ---- residual networks ---- */

typedef struct resnet {
    int blocks[STAGES]; /* per stage */
    bool cifar;         /* 6n+2 layers: three stages from 16 filters, own stem */
    bool bottleneck;    /* 1x1, 3x3, 1x1 with four times the filters; else two 3x3 */
    int groups,
        width; /* groups of a bottleneck's 3x3, and filters per group in the first stage; 0: 1 group of 64 */
} resnet;

/* A convolution and its batch norm in a block. */
static hvt_value conv_norm(hvt_model *m, hvt_value x, const char *block, const char *conv, const char *norm,
                           int filters, int size, int stride, int groups)
{
    const int pad = size / 2;

    hvt_name(m, "%s.%s", block, conv);
    x = hvt_conv2d_with(m, x,
                        &(hvt_conv2d_opts){.filters = filters,
                                           .kernel_h = size,
                                           .stride_h = stride,
                                           .top = pad,
                                           .left = pad,
                                           .bottom = pad,
                                           .right = pad,
                                           .groups = groups});
    hvt_name(m, "%s.%s", block, norm);
    return hvt_batchnorm(m, x);
}

static hvt_value add_block(hvt_model *m, hvt_value x, const char *block, const resnet *r, bool projection,
                           int channels, int filters, int stride)
{
    int outputs = r->bottleneck ? 4 * filters : filters, groups = r->groups ? r->groups : 1;
    int inner = r->groups ? filters * r->width / 64 * groups : filters; /* filters of a bottleneck's 3x3 */
    bool same = stride == 1 && channels == outputs;
    hvt_value skip = x, y = x;

    if (!same && !projection)
        skip = hvt_subsample(m, x, stride, outputs);
    if (r->bottleneck) {
        y = hvt_relu(m, conv_norm(m, y, block, "conv1", "bn1", inner, 1, 1, 1));
        y = hvt_relu(m, conv_norm(m, y, block, "conv2", "bn2", inner, 3, stride, groups));
        y = conv_norm(m, y, block, "conv3", "bn3", outputs, 1, 1, 1);
    } else {
        y = hvt_relu(m, conv_norm(m, y, block, "conv1", "bn1", filters, 3, stride, 1));
        y = conv_norm(m, y, block, "conv2", "bn2", filters, 3, 1, 1);
    }
    if (!same && projection)
        skip = conv_norm(m, x, block, "downsample.0", "downsample.1", outputs, 1, stride, 1);
    return hvt_relu(m, hvt_add(m, y, skip));
}

static hvt_value build_resnet(const order *z, const resnet *r)
{
    int filters = r->cifar ? 16 : 64, channels = filters;
    bool large = !r->cifar && z->opts.imagenet_stem, projection = !r->cifar || z->opts.projection;
    hvt_model *m = z->m;

    hvt_name(m, "conv1");
    hvt_value x = hvt_conv2d(m, z->images, filters, large ? 7 : 3, large ? 2 : 1, large ? 3 : 1);

    hvt_name(m, "bn1");
    x = hvt_relu(m, hvt_batchnorm(m, x));
    if (large)
        x = hvt_maxpool(m, x, 3, 2, 1);
    for (int stage = 0; stage < STAGES; stage++, filters *= 2)
        for (int i = 0; i < r->blocks[stage]; i++) {
            char block[32];

            snprintf(block, sizeof block, "layer%d.%d", stage + 1, i);
            x = add_block(m, x, block, r, projection, channels, filters, stage && !i ? 2 : 1);
            channels = r->bottleneck ? 4 * filters : filters;
        }
    x = hvt_avgpool(m, x);
    hvt_name(m, "fc");
    return hvt_linear(m, x, z->classes);
}

static hvt_value resnet18(const order *z)
{
    return build_resnet(z, &(resnet){{2, 2, 2, 2}});
}

static hvt_value resnet34(const order *z)
{
    return build_resnet(z, &(resnet){{3, 4, 6, 3}});
}

static hvt_value resnet50(const order *z)
{
    return build_resnet(z, &(resnet){{3, 4, 6, 3}, .bottleneck = true});
}

static hvt_value resnet101(const order *z)
{
    return build_resnet(z, &(resnet){{3, 4, 23, 3}, .bottleneck = true});
}

static hvt_value resnet152(const order *z)
{
    return build_resnet(z, &(resnet){{3, 8, 36, 3}, .bottleneck = true});
}

static hvt_value resnet20(const order *z)
{
    return build_resnet(z, &(resnet){{3, 3, 3}, .cifar = true});
}

static hvt_value resnet32(const order *z)
{
    return build_resnet(z, &(resnet){{5, 5, 5}, .cifar = true});
}

static hvt_value resnet44(const order *z)
{
    return build_resnet(z, &(resnet){{7, 7, 7}, .cifar = true});
}

static hvt_value resnet56(const order *z)
{
    return build_resnet(z, &(resnet){{9, 9, 9}, .cifar = true});
}

static hvt_value resnet110(const order *z)
{
    return build_resnet(z, &(resnet){{18, 18, 18}, .cifar = true});
}

static hvt_value resnext50_32x4d(const order *z)
{
    return build_resnet(z, &(resnet){{3, 4, 6, 3}, .bottleneck = true, .groups = 32, .width = 4});
}

static hvt_value wide_resnet50_2(const order *z)
{
    return build_resnet(z, &(resnet){{3, 4, 6, 3}, .bottleneck = true, .groups = 1, .width = 128});
}

/* ---- MobileNetV2 ---- */

static hvt_value relu6(hvt_model *m, hvt_value x)
{
    return hvt_apply(m, x, HVT_HARDTANH, 0, 6);
}

/* torchvision's InvertedResidual: expand by 1x1 (unless `expand` is 1), depthwise 3x3, project by 1x1 without
 * an activation. */
static hvt_value inverted_residual(hvt_model *m, hvt_value x, int nth, int channels, int expand, int filters,
                                   int stride)
{
    int at = 0, inner = channels * expand;
    char block[32], conv[16], norm[16];
    hvt_value y = x;

    snprintf(block, sizeof block, "features.%d", nth);
    if (expand != 1) {
        y = relu6(m, conv_norm(m, y, block, "conv.0.0", "conv.0.1", inner, 1, 1, 1));
        at++;
    }
    snprintf(conv, sizeof conv, "conv.%d.0", at);
    snprintf(norm, sizeof norm, "conv.%d.1", at++);
    y = relu6(m, conv_norm(m, y, block, conv, norm, inner, 3, stride, inner));
    snprintf(conv, sizeof conv, "conv.%d", at);
    snprintf(norm, sizeof norm, "conv.%d", at + 1);
    y = conv_norm(m, y, block, conv, norm, filters, 1, 1, 1);
    return stride == 1 && channels == filters ? hvt_add(m, x, y) : y;
}

/* Table 2 of the paper. With CIFAR's stem the first convolution and the second stage keep the image's size:
 * 32x32 pixels are reduced to 4x4, as 224x224 are to 7x7. */
static hvt_value mobilenet_v2(const order *z)
{
    static const struct {
        int expand, filters, blocks, stride;
    } stage[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                 {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
    enum { SECOND = 1 };
    bool large = z->opts.imagenet_stem;
    int channels = 32, nth = 1;
    hvt_model *m = z->m;
    hvt_value x = relu6(m, conv_norm(m, z->images, "features.0", "0", "1", channels, 3, large ? 2 : 1, 1));

    for (size_t s = 0; s < HVT_LEN(stage); s++)
        for (int i = 0; i < stage[s].blocks; i++) {
            int stride = i || (s == SECOND && !large) ? 1 : stage[s].stride;

            x = inverted_residual(m, x, nth++, channels, stage[s].expand, stage[s].filters, stride);
            channels = stage[s].filters;
        }
    x = relu6(m, conv_norm(m, x, "features.18", "0", "1", 1280, 1, 1, 1));
    x = hvt_dropout(m, hvt_avgpool(m, x), z->opts.no_dropout ? 0 : 0.2);
    hvt_name(m, "classifier.1");
    return hvt_linear(m, x, z->classes);
}

/* ---- airbench94 ---- */

/* airbench's BatchNorm, which trains only the bias (--freeze), and GELU. */
static hvt_value norm_gelu(hvt_model *m, hvt_value x, int group, int nth)
{
    hvt_name(m, "%d.norm%d", group, nth);
    return hvt_apply(m, hvt_batchnorm_with(m, x, 1e-12f, 0.4f), HVT_GELU, 0, 0);
}

static hvt_value airbench94(const order *z)
{
    static const int width[] = {64, 256, 256};
    hvt_conv2d_opts conv = {.kernel_h = 3, .top = 1, .left = 1, .bottom = 1, .right = 1, .dirac = true};
    hvt_model *m = z->m;
    int shape[3];

    hvt_value_shape(m, z->images, shape);
    hvt_name(m, "0");
    hvt_value x = hvt_conv2d_with(
        m, z->images,
        &(hvt_conv2d_opts){.filters = 8 * shape[2], .kernel_h = 2, .bias = true, .dirac = true});
    x = hvt_apply(m, x, HVT_GELU, 0, 0);
    for (int group = 2; group < 5; group++) {
        conv.filters = width[group - 2];
        hvt_name(m, "%d.conv1", group);
        x = hvt_maxpool(m, hvt_conv2d_with(m, x, &conv), 2, 2, 0);
        x = norm_gelu(m, x, group, 1);
        hvt_name(m, "%d.conv2", group);
        x = norm_gelu(m, hvt_conv2d_with(m, x, &conv), group, 2);
    }
    x = hvt_maxpool(m, x, 3, 3, 0);
    hvt_name(m, "7");
    return hvt_apply(m, hvt_linear_with(m, x, z->classes, false), HVT_AFFINE, 1.0f / 9, 0);
}

/* ---- the perceptron ---- */

/* torch.nn.Sequential(Flatten(), Linear(., 512), ReLU(), Linear(512, 512), ReLU(), Linear(512, classes)) */
static hvt_value mlp(const order *z)
{
    hvt_model *m = z->m;
    hvt_value x = hvt_flatten(m, z->images);

    hvt_name(m, "1");
    x = hvt_relu(m, hvt_linear(m, x, 512));
    hvt_name(m, "3");
    x = hvt_relu(m, hvt_linear(m, x, 512));
    hvt_name(m, "5");
    return hvt_linear(m, x, z->classes);
}

/* ---- by name ---- */

static const struct {
    const char *name;
    hvt_value (*build)(const order *z);
    hvt_zoo_opts takes;
} zoo[] = {
#define ENTRY(name, stem, shortcut) {#name, name, {stem, shortcut}},
    HVT_ZOO(ENTRY)
#undef ENTRY
};

/* Fails with a list of the known names. */
static hvt_value unknown(hvt_model *m, const char *name)
{
    char known[320] = "";

    for (size_t i = 0; i < HVT_LEN(zoo); i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", zoo[i].name);
    return hvt__mistake(m, NULL, HVT_E_SHAPE, "unknown model '%s'; the models are: %s",
                        name ? name : "(none)", known);
}

hvt_value hvt_zoo(hvt_model *m, const char *name, hvt_value images, int classes, const hvt_zoo_opts *opts)
{
    order z = {.m = m, .images = images, .classes = classes, .opts = opts ? *opts : (hvt_zoo_opts){0}};

    if (!m)
        return -1;
    for (size_t i = 0; i < HVT_LEN(zoo); i++)
        if (name && !strcmp(name, zoo[i].name))
            return zoo[i].build(&z);
    return unknown(m, name);
}

hvt_zoo_opts hvt_zoo_takes(const char *name)
{
    for (size_t i = 0; name && i < HVT_LEN(zoo); i++)
        if (!strcmp(name, zoo[i].name))
            return zoo[i].takes;
    return (hvt_zoo_opts){0};
}

const char *hvt_zoo_name(int i)
{
    return i >= 0 && i < (int)HVT_LEN(zoo) ? zoo[i].name : NULL;
}
