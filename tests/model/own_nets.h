/*
 * own_nets.h - the nets of golden/make_layers.py, which has the same layers under the same names in PyTorch.
 */
#ifndef HVT_OWN_NETS_H
#define HVT_OWN_NETS_H

#include "nets.h"

enum { BATCH = 5, HEIGHT = 9, WIDTH = 11, CLASSES = 4 };

static hvt_value conv(hvt_model *m, const char *name, hvt_value x, int filters, int size, int stride)
{
    hvt_name(m, "%s", name);
    return hvt_conv2d(m, x, filters, size, stride, size / 2);
}

static hvt_value linear(hvt_model *m, const char *name, hvt_value x, int outputs)
{
    hvt_name(m, "%s", name);
    return hvt_linear(m, x, outputs);
}

static hvt_value head(hvt_model *m, hvt_value x)
{
    return linear(m, "fc", hvt_avgpool(m, x), CLASSES);
}

static hvt_value functions(hvt_model *m, hvt_value x)
{
    static const hvt_map all[] = {{HVT_RELU, 0, 0},      {HVT_HARDTANH, -1.5f, 2}, {HVT_LEAKY_RELU, 0.2f, 0},
                                  {HVT_ELU, 0.7f, 0},    {HVT_SIGMOID, 0, 0},      {HVT_HARDSIGMOID, 0, 0},
                                  {HVT_HARDSWISH, 0, 0}, {HVT_SILU, 0, 0},         {HVT_GELU, 0, 0},
                                  {HVT_GELU_TANH, 0, 0}, {HVT_TANH, 0, 0},         {HVT_SOFTPLUS, 1.5f, 4}};
    hvt_value y;

    x = hvt_apply(m, conv(m, "conv", x, 8, 3, 1), HVT_AFFINE, 4, 0.1f);
    y = hvt_apply(m, x, all[0].f, 0, 0);
    for (size_t i = 1; i < HVT_LEN(all); i++)
        y = hvt_add(m, y, hvt_apply(m, x, all[i].f, all[i].a, all[i].b));
    return head(m, y);
}

static hvt_value parameter(hvt_model *m, const char *name, hvt_binary op, hvt_value x, int c)
{
    hvt_name(m, "%s", name);
    return hvt_combine_parameter(m, op, x, c > 1 ? 3 : 1, (int[]){c, 1, 1}, 1);
}

static hvt_value binary(hvt_model *m, hvt_value x)
{
    hvt_value first = conv(m, "conv", x, 8, 3, 1), s, g;

    s = hvt_apply(m, linear(m, "se", hvt_avgpool(m, first), 8), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, s, first);
    g = hvt_apply(m, conv(m, "gate", x, 1, 3, 1), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_DIV, hvt_combine(m, HVT_SUB, x, g), hvt_apply(m, s, HVT_AFFINE, 1, 1.5f));
    x = hvt_apply(m, hvt_combine(m, HVT_MUL, x, x), HVT_AFFINE, 1, 1);
    x = hvt_combine(m, HVT_DIV, hvt_apply(m, g, HVT_AFFINE, 1, 2), x);
    x = hvt_combine(m, HVT_ADD, x, first);
    x = hvt_combine(m, HVT_SUB, x, hvt_apply(m, first, HVT_TANH, 0, 0));
    x = parameter(m, "shift", HVT_ADD, parameter(m, "scale", HVT_MUL, x, 8), 1);
    return head(m, parameter(m, "inverse", HVT_DIV, x, 8));
}

static hvt_value moves(hvt_model *m, hvt_value x)
{
    hvt_value a, b;

    x = conv(m, "conv", x, 12, 3, 1);
    a = hvt_slice(m, x, 0, 5);
    b = hvt_slice(m, x, 5, 7);
    x = hvt_pad(m, hvt_concat(m, (hvt_value[]){b, a, hvt_relu(m, a), a}, 4), 1, -2, -1, 2);
    x = conv(m, "conv2", hvt_shuffle(m, x, 2), 6, 3, 2);
    x = linear(m, "fc1", hvt_apply(m, hvt_flatten(m, x), HVT_SILU, 0, 0), 7);
    return linear(m, "fc", hvt_relu(m, x), CLASSES);
}

static hvt_value norms(hvt_model *m, hvt_value x)
{
    x = conv(m, "conv", x, 12, 3, 1);
    hvt_name(m, "ln1");
    x = hvt_relu(m, hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true));
    hvt_name(m, "ln2");
    x = hvt_layernorm(m, x, HVT_OVER_IMAGE, 1e-5f, true);
    hvt_name(m, "gn");
    x = hvt_apply(m, hvt_groupnorm(m, x, 3, 1e-5f, true), HVT_AFFINE, 1, 0.5f);
    x = hvt_groupnorm(m, hvt_combine(m, HVT_MUL, x, x), 12, 1e-5f, false);
    hvt_name(m, "bn");
    return head(m, hvt_apply(m, hvt_batchnorm_with(m, x, 1e-3f, 0.01f), HVT_HARDSWISH, 0, 0));
}

static hvt_value pools(hvt_model *m, hvt_value x)
{
    const hvt_pool_opts max = {{3, 2}, {2, 1}, {1, 0}, .ceil_mode = true}, narrow = {{1, 2}, {2, 1}};
    hvt_pool_opts all = {{3, 2}, {1, 2}, {1, 1}, .ceil_mode = true}, real = all;

    real.exclude_pad = true;
    x = conv(m, "conv", x, 7, 3, 1);
    x = hvt_add(m, hvt_pool_with(m, x, HVT_POOL_MAX, &max), hvt_pool_with(m, x, HVT_POOL_MEAN, &narrow));
    x = hvt_add(m, hvt_pool_with(m, x, HVT_POOL_MEAN, &all), hvt_pool_with(m, x, HVT_POOL_MEAN, &real));
    x = hvt_add(m, hvt_adaptive_pool(m, x, HVT_POOL_MEAN, 3, 7), hvt_adaptive_pool(m, x, HVT_POOL_MAX, 3, 7));
    return linear(m, "fc", hvt_flatten(m, hvt_adaptive_pool(m, x, HVT_POOL_MEAN, 5, 2)), CLASSES);
}

static hvt_value channels(hvt_model *m, hvt_value x)
{
    hvt_value gate;

    x = conv(m, "conv", x, 15, 3, 1);
    gate = hvt_concat(m, (hvt_value[]){hvt_mean_channels(m, x), hvt_max_channels(m, x)}, 2);
    gate = hvt_apply(m, conv(m, "gate", gate, 1, 3, 1), HVT_SIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, x, hvt_add(m, hvt_mean_channels(m, gate), hvt_max_channels(m, gate)));
    x = hvt_combine(m, HVT_SUB, x, hvt_mean_channels(m, x));
    return head(m, hvt_combine(m, HVT_MUL, x, x));
}

static hvt_value mixed(hvt_model *m, hvt_value x)
{
    hvt_value left, right, s, y;

    x = conv(m, "stem", x, 8, 3, 1);
    hvt_name(m, "bn1");
    x = hvt_apply(m, hvt_batchnorm(m, x), HVT_HARDTANH, 0, 6);
    left = hvt_slice(m, x, 0, 4);
    right = conv(m, "right", hvt_slice(m, x, 4, 4), 8, 1, 1);
    hvt_name(m, "bn2");
    right = hvt_apply(m, hvt_batchnorm(m, right), HVT_SILU, 0, 0);
    x = hvt_shuffle(m, hvt_concat(m, (hvt_value[]){left, right}, 2), 2);
    s = hvt_relu(m, linear(m, "squeeze", hvt_avgpool(m, x), 4));
    s = hvt_apply(m, linear(m, "excite", s, 12), HVT_HARDSIGMOID, 0, 0);
    x = hvt_combine(m, HVT_MUL, x, s);
    hvt_name(m, "ln");
    y = hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true);
    y = hvt_apply(m, conv(m, "mix", y, 12, 1, 1), HVT_GELU, 0, 0);
    return head(m, hvt_add(m, x, parameter(m, "layer_scale", HVT_MUL, y, 12)));
}

static hvt_value tokens(hvt_model *m, hvt_value x)
{
    hvt_value y, q, k;

    q = hvt_zeros(m, x, 1, 2, 12);
    x = hvt_pad(m, hvt_reshape(m, conv(m, "conv", x, 12, 3, 2), 1, 30), 0, 0, 2, 0);
    hvt_name(m, "tokens");
    q = hvt_add_embedding(m, q, 0, 3, (int[]){1, 2, 12}, 0.02f);
    x = hvt_add(m, x, hvt_pad(m, q, 0, 0, 0, 30));
    hvt_name(m, "positions");
    x = hvt_add_embedding(m, x, 0, 3, (int[]){1, 32, 12}, 0.02f);
    hvt_name(m, "ln");
    y = hvt_layernorm(m, x, HVT_OVER_CHANNELS, 1e-6f, true);
    hvt_name(m, "attention.in_proj_");
    y = hvt_self_attention(m, hvt_linear_with(m, y, 36, true), 3, 0);
    hvt_name(m, "attention.out_proj");
    x = hvt_add(m, x, hvt_linear_with(m, y, 12, true));
    q = hvt_pad(m, x, 0, 0, 0, -30);
    hvt_name(m, "query");
    q = hvt_linear_with(m, q, 12, true);
    hvt_name(m, "key");
    k = hvt_linear_with(m, x, 12, false);
    y = hvt_attention(m, q, k, x, 2, 0.75f);
    y = hvt_add(m, y, hvt_attention(m, y, y, y, 1, 0));
    return head(m, hvt_layernorm(m, y, HVT_OVER_CHANNELS, 1e-5f, false));
}

/* 5x6 pixels in two windows of 5x3, which were rolled by 2 rows and 1 column. */
static hvt_value windows(hvt_model *m, hvt_value x)
{
    enum { H = 5, W = 6, WIDE = 3, WINDOWS = W / WIDE, T = H * WIDE, HEADS = 3, QUERIES = 2 };
    static int pixel[WINDOWS * T], bias[HEADS * T * T], table[2 * QUERIES * H * W];
    static float mask[WINDOWS * T * T];
    hvt_value y;

    for (int i = 0; i < WINDOWS * T; i++)
        pixel[i] = (i % T / WIDE + 2) % H * W + (i / T * WIDE + i % WIDE + 1) % W;
    for (int i = 0; i < T * T; i++) {
        const int a = i / T, b = i % T;

        for (int h = 0; h < HEADS; h++)
            bias[h * T * T + i] = ((a / WIDE - b / WIDE + 4) * 5 + a % WIDE - b % WIDE + 2) * HEADS + h;
        for (int w = 0; w < WINDOWS; w++) {
            const bool same = (a / WIDE >= 3) == (b / WIDE >= 3) &&
                              (w * WIDE + a % WIDE >= 5) == (w * WIDE + b % WIDE >= 5);

            mask[w * T * T + i] = same ? 0 : -100;
        }
    }
    for (int i = 0; i < 2 * QUERIES * H * W; i++)
        table[i] = i / (QUERIES * H * W) * 7 + (i / (H * W) % QUERIES * 3 + i % (H * W)) % 7;
    x = conv(m, "conv", x, 12, 3, 2);
    hvt_name(m, "qkv");
    y = hvt_linear_with(m, x, 36, true);
    hvt_name(m, "table");
    y = hvt_self_attention_with(m, y,
                                &(hvt_attention_opts){.heads = HEADS,
                                                      .windows = WINDOWS,
                                                      .pixel = pixel,
                                                      .ndim = 2,
                                                      .dim = {45, HEADS},
                                                      .bias = bias,
                                                      .mask = mask});
    hvt_name(m, "proj");
    x = hvt_reshape(m, hvt_add(m, x, hvt_linear_with(m, y, 12, true)), 1, H * W);
    y = hvt_pad(m, x, 0, 0, 0, QUERIES - H * W);
    hvt_name(m, "biases");
    y = hvt_attention_with(m, y, x, x,
                           &(hvt_attention_opts){.heads = 2, .ndim = 2, .dim = {2, 7}, .bias = table});
    return head(m, y);
}

static hvt_value turns(hvt_model *m, hvt_value x)
{
    const hvt_conv2d_opts line = {.filters = 12,
                                  .kernel_h = 1,
                                  .kernel_w = 3,
                                  .left = 1,
                                  .right = 1,
                                  .groups = 3,
                                  .bias = true,
                                  .line = true};
    static int bias[3 * 30 * 30];
    float more[59 * 3];
    hvt_value y, table;

    for (int i = 0; i < 3 * 30 * 30; i++)
        bias[i] = (i / 30 % 30 - i % 30 + 29) * 3 + i / 900;
    for (int i = 0; i < 59 * 3; i++)
        more[i] = (float)i / 100;

    x = conv(m, "conv", x, 12, 3, 2);
    y = hvt_transpose(m, x, 30, 12, 1, 1, 12);
    hvt_name(m, "mix1");
    y = hvt_apply(m, hvt_linear_with(m, y, 8, true), HVT_GELU, 0, 0);
    hvt_name(m, "mix2");
    y = hvt_linear_with(m, y, 30, true);
    x = hvt_reshape(m, hvt_add(m, x, hvt_transpose(m, y, 12, 30, 1, 5, 6)), 1, 30);
    hvt_name(m, "line");
    x = hvt_add(m, x, hvt_conv2d_with(m, x, &line));
    hvt_name(m, "qkv");
    y = hvt_transpose(m, hvt_linear_with(m, x, 36, true), 3, 3, 4, 1, 30);
    table = hvt_zeros(m, x, 1, 59, 3);
    hvt_name(m, "table");
    table = hvt_add_embedding(m, table, 0, 2, (int[]){59, 3}, 0.02f);
    table = hvt_combine(m, HVT_ADD, table, hvt_constant(m, x, 1, 59, 3, more));
    table = hvt_apply(m, hvt_apply(m, table, HVT_SIGMOID, 0, 0), HVT_AFFINE, 16, 0);
    y = hvt_attention_with(m, hvt_slice(m, y, 0, 12), hvt_slice(m, y, 12, 12), hvt_slice(m, y, 24, 12),
                           &(hvt_attention_opts){.heads = 3, .table = &table, .bias = bias});
    return head(m, hvt_add(m, x, y));
}

static hvt_value rotary(hvt_model *m, hvt_value x)
{
    enum { TOKENS = 30, WIDE = 4 };
    float own[2][TOKENS * WIDE], other[2][TOKENS * WIDE];
    hvt_value y;

    for (int i = 0; i < TOKENS * WIDE; i++)
        for (int near = 0; near < 2; near++) {
            const int c = i % WIDE, pair = near ? c / 2 : c % 2;
            const bool second = near ? c % 2 : c / 2;
            const double angle = i / WIDE * (pair ? 0.125 : 0.25);

            own[near][i] = (float)cos(angle);
            other[near][i] = (float)(second ? sin(angle) : -sin(angle));
        }
    x = conv(m, "conv", x, 12, 3, 2);
    hvt_name(m, "qkv");
    y = hvt_linear_with(m, x, 36, true);
    y = hvt_rotary(m, y, &(hvt_rotary_opts){0, 6, WIDE, 2, own[0], other[0]});
    x = hvt_add(m, x, hvt_self_attention(m, y, 3, 0));
    y = hvt_rotary(m, x, &(hvt_rotary_opts){2, 2, WIDE, 1, own[1], other[1]});
    return head(m, hvt_combine(m, HVT_MUL, y, x));
}

static hvt_value upward(hvt_model *m, hvt_value x)
{
    const hvt_conv2d_opts
        twice = {.filters = 8, .kernel_h = 3, .stride_h = 2, .top = 1, .left = 1, .right = 1, .bias = true},
        grouped = {.filters = 12,
                   .kernel_h = 2,
                   .kernel_w = 3,
                   .stride_h = 1,
                   .stride_w = 2,
                   .bottom = 1,
                   .right = 2,
                   .left = 2,
                   .dilation_h = 2,
                   .dilation_w = 1,
                   .groups = 4},
        depthwise = {.filters = 8, .kernel_h = 4, .stride_h = 3, .bottom = -1, .right = -1, .groups = 8};
    hvt_value y, z;

    x = hvt_relu(m, conv(m, "conv", x, 8, 3, 2));
    hvt_name(m, "twice");
    y = hvt_conv_transpose2d(m, x, &twice);
    hvt_name(m, "grouped");
    z = hvt_conv_transpose2d(m, y, &grouped);
    hvt_name(m, "depthwise");
    y = hvt_conv_transpose2d(m, y, &depthwise);
    y = hvt_interpolate(m, y,
                        &(hvt_interpolate_opts){HVT_BILINEAR, .height = 13, .width = 7, .antialias = true});
    z = hvt_interpolate(m, z, &(hvt_interpolate_opts){HVT_BICUBIC, .height = 13, .width = 7});
    x = hvt_interpolate(m, x, &(hvt_interpolate_opts){HVT_BILINEAR, .scale_h = 2.6, .scale_w = 1.3});
    x = hvt_concat(m, (hvt_value[]){x, y, z}, 3);
    y = hvt_interpolate(
        m, x, &(hvt_interpolate_opts){HVT_BILINEAR, .height = 8, .width = 12, .align_corners = true});
    z = hvt_interpolate(m, x, &(hvt_interpolate_opts){HVT_NEAREST, .scale_h = 0.7, .scale_w = 1.8});
    z = hvt_pad(m, z, -1, 0, 0, 0);
    y = hvt_apply(m, hvt_add(m, y, z), HVT_TANH, 0, 0);
    y = hvt_pad_with(m, y, HVT_PAD_REFLECT, 3, 1, 0, 2);
    y = hvt_pad_with(m, y, HVT_PAD_REPLICATE, 0, 2, 3, 1);
    y = hvt_pad_with(m, y, HVT_PAD_CIRCULAR, 2, 4, 1, 5);
    y = hvt_interpolate(m, y, &(hvt_interpolate_opts){HVT_NEAREST_EXACT, .height = 6, .width = 10});
    return head(m, hvt_combine(m, HVT_MUL, y, y));
}

static hvt_value pixels(hvt_model *m, hvt_value x)
{
    const hvt_conv2d_opts mix = {
        .filters = 8, .kernel_h = 3, .top = 1, .bottom = 1, .left = 1, .right = 1, .bias = true};

    hvt_name(m, "conv");
    x = hvt_pixel_shuffle(m, hvt_conv2d(m, x, 12, 3, 1, 0), 2);
    x = hvt_pixel_unshuffle(m, hvt_pad(m, x, -2, 0, 0, 0), 2);
    hvt_name(m, "mix");
    x = hvt_conv_transpose2d(m, x, &mix);
    x = hvt_pixel_shuffle(m, hvt_combine(m, HVT_MUL, x, x), 2);
    return head(m, hvt_pixel_unshuffle(m, x, 3));
}

static const struct {
    const char *name;
    build_fn *build;
} nets[] = {{"Functions", functions}, {"Binary", binary},     {"Moves", moves},   {"Norms", norms},
            {"Pools", pools},         {"Channels", channels}, {"Mixed", mixed},   {"Tokens", tokens},
            {"Windows", windows},     {"Turns", turns},       {"Rotary", rotary}, {"Pixels", pixels},
            {"Upward", upward}};
#ifdef HVT_HOSTED
enum { NETS = HVT_LEN(nets) - 1 }; /* cuda does not compute the last one */
#else
enum { NETS = HVT_LEN(nets) };
#endif

#endif /* HVT_OWN_NETS_H */
