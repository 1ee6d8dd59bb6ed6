/*
 * Models by name: torchvision's ResNets (He et al. 2015, "v1.5": a bottleneck's stride is in its 3x3), its
 * ResNeXt (Xie et al. 2017) and Wide ResNet (Zagoruyko and Komodakis 2016), and the CIFAR ResNets of
 * section 4.2 of the same paper. Layers are named and ordered as in torchvision's state_dict: a block's own
 * layers, then its downsample. Option A's subsample has no parameters and is first in its block, so that the
 * add at the end of the block can be fused.
 */
#include "base_impl.h"
#include "layers.h"

enum { STAGES = 4 };

typedef struct resnet {
    const char *name;
    bool cifar;         /* 6n+2 layers: three stages from 16 filters, own stem */
    bool bottleneck;    /* 1x1, 3x3, 1x1 with four times the filters; else two 3x3 */
    int blocks[STAGES]; /* per stage */
    int groups, width;  /* of a bottleneck's 3x3 in the first stage: groups, and filters of one; 0: 1 of 64 */
} resnet;

static const resnet zoo[] = {
    {"resnet18", false, false, {2, 2, 2, 2}},
    {"resnet34", false, false, {3, 4, 6, 3}},
    {"resnet50", false, true, {3, 4, 6, 3}},
    {"resnet101", false, true, {3, 4, 23, 3}},
    {"resnet152", false, true, {3, 8, 36, 3}},
    {"resnet20", true, false, {3, 3, 3}},
    {"resnet32", true, false, {5, 5, 5}},
    {"resnet44", true, false, {7, 7, 7}},
    {"resnet56", true, false, {9, 9, 9}},
    {"resnet110", true, false, {18, 18, 18}},
    {"resnext50_32x4d", false, true, {3, 4, 6, 3}, 32, 4},
    {"wide_resnet50_2", false, true, {3, 4, 6, 3}, 1, 128},
};

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
    int inner = r->groups ? filters * r->width / 64 * groups : filters; /* of a bottleneck */
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

static hvt_value build(hvt_model *m, const resnet *r, hvt_value x, int classes, const hvt_zoo_opts *o)
{
    int filters = r->cifar ? 16 : 64, channels = filters;
    bool large = !r->cifar && o->imagenet_stem, projection = !r->cifar || o->projection;

    hvt_name(m, "conv1");
    x = hvt_conv2d(m, x, filters, large ? 7 : 3, large ? 2 : 1, large ? 3 : 1);
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
    return hvt_linear(m, x, classes);
}

hvt_value hvt_zoo(hvt_model *m, const char *name, hvt_value images, int classes, const hvt_zoo_opts *opts)
{
    static const hvt_zoo_opts defaults;
    char known[320] = "";

    if (!m)
        return -1;
    for (size_t i = 0; i < HVT_LEN(zoo); i++) {
        if (name && !strcmp(name, zoo[i].name))
            return build(m, &zoo[i], images, classes, opts ? opts : &defaults);
        snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", i ? ", " : "", zoo[i].name);
    }
    return hvt__mistake(m, NULL, HVT_E_SHAPE, "no model is called '%s'; known are: %s",
                        name ? name : "(none)", known);
}

const char *hvt_zoo_name(int i)
{
    return i >= 0 && i < (int)HVT_LEN(zoo) ? zoo[i].name : NULL;
}
