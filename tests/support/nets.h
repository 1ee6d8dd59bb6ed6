/* nets.h - for the model's tests: small networks with every kind of layer, and the comparison of two runs. */
#ifndef HVT_NETS_H
#define HVT_NETS_H

#include "net.h"

/* ---- small networks --------------------------------------------------------------------------------- */

/* Every kind of layer: conv, batch norm alone, with relu, with add and relu (identity, option A, option B),
 * max-pool, mean-pool, linear. */
static inline hvt_value small_net(hvt_model *m, hvt_value x)
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

/* Layers that are not fused: add without a batch norm, relu after conv, values read twice, x + x. */
static inline hvt_value odd_net(hvt_model *m, hvt_value x)
{
    hvt_value a, b, n;

    a = hvt_relu(m, hvt_conv2d(m, x, 4, 3, 1, 1));
    b = hvt_relu(m, hvt_conv2d(m, x, 4, 5, 1, 2));
    x = hvt_add(m, a, hvt_add(m, b, b));
    n = hvt_batchnorm(m, x); /* read twice */
    x = hvt_add(m, hvt_relu(m, n), n);
    x = hvt_add(m, hvt_batchnorm(m, x), x);                            /* its residual is its own input */
    x = hvt_add(m, hvt_batchnorm(m, hvt_conv2d(m, x, 4, 3, 1, 1)), a); /* fused, without relu */
    n = hvt_batchnorm(m, hvt_conv2d(m, x, 4, 1, 1, 0));
    x = hvt_add(m, hvt_add(m, n, x), n); /* read twice, too */
    return hvt_linear(m, hvt_avgpool(m, hvt_subsample(m, x, 3, 8)), 3);
}

/* The images need no gradient; a batch norm reads them, and has a residual that needs one. */
static inline hvt_value early_norm_net(hvt_model *m, hvt_value x)
{
    hvt_value y = hvt_conv2d(m, x, 3, 3, 1, 1);

    x = hvt_relu(m, hvt_add(m, hvt_batchnorm(m, x), y));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* No batch norm: rows are independent. */
static inline hvt_value plain_net(hvt_model *m, hvt_value x)
{
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 1, 1));
    x = hvt_maxpool(m, x, 2, 2, 0);
    x = hvt_relu(m, hvt_conv2d(m, x, 8, 3, 2, 1));
    return hvt_linear(m, hvt_avgpool(m, x), 5);
}

/* Every kind of convolution: rectangles, uneven padding, dilation, groups, depthwise with one filter to a
 * channel and with two, bias. */
static inline hvt_value general_net(hvt_model *m, hvt_value x)
{
    const hvt_conv2d_opts rectangle = {.filters = 6,
                                       .kernel_h = 1,
                                       .kernel_w = 4,
                                       .left = 2,
                                       .right = 1,
                                       .bias = true},
                          grouped = {.filters = 9,
                                     .kernel_h = 3,
                                     .dilation_h = 2,
                                     .top = 2,
                                     .left = 2,
                                     .bottom = 2,
                                     .right = 2,
                                     .groups = 3},
                          depthwise = {.filters = 9,
                                       .kernel_h = 3,
                                       .stride_h = 1,
                                       .stride_w = 2,
                                       .top = 1,
                                       .left = 1,
                                       .bottom = 1,
                                       .right = 1,
                                       .groups = 9,
                                       .bias = true},
                          twice = {.filters = 18, .kernel_h = 2, .bottom = 1, .right = 1, .groups = 9};

    x = hvt_relu(m,
                 hvt_conv2d_with(m, x, &rectangle)); /* before a batch norm a bias would have no gradient */
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d_with(m, x, &grouped)));
    x = hvt_conv2d_with(m, hvt_conv2d_with(m, x, &depthwise), &twice);
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* Functions after batch norms. They are not fused if a norm has a residual, another function or another
 * reader. */
static inline hvt_value functions_net(hvt_model *m, hvt_value x)
{
    hvt_value y;

    x = hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, x, 8, 3, 1, 1)), HVT_HARDTANH, 0, 6);
    y = hvt_batchnorm(m, hvt_conv2d(m, x, 8, 3, 2, 1));
    x = hvt_add(m, hvt_apply(m, y, HVT_SIGMOID, 0, 0), y);
    y = hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, x, 6, 1, 1, 0)), HVT_SILU, 0, 0);
    y = hvt_batchnorm(m, hvt_conv2d(m, y, 8, 3, 1, 1));
    x = hvt_apply(m, hvt_add(m, y, x), HVT_HARDSWISH, 0, 0);
    y = hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, x, 5, 1, 1, 0)), HVT_ELU, 1, 0);
    y = hvt_apply(m, y, HVT_TANH, 0, 0);
    y = hvt_relu(m, hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, y, 7, 3, 1, 1)), HVT_AFFINE, 2, 0.5f));
    return hvt_linear(m, hvt_avgpool(m, y), 4);
}

/* A parameter of a tensor, normal. */
static inline hvt_value weight(hvt_model *m, int ndim, int a, int b, int c, int d)
{
    return hvt_weight_parameter(m, ndim, (int[]){a, b, c, d}, 0, 0.4f);
}

/* Computed weights: standardised with gains, of unit length, repeated numbers, permuted, of low rank, joined,
 * cut, read twice, transposed; of convolutions of every kind, and of an image that was flattened. */
static inline hvt_value weights_net(hvt_model *m, hvt_value x)
{
    static const float blur[] = {0.1f, 0.2f, 0.1f, 0.2f, 0.4f, 0.2f, 0.1f, 0.2f, 0.1f};
    const hvt_conv2d_opts same = {.filters = 6, .kernel_h = 3, .top = 1, .left = 1, .bottom = 1, .right = 1},
                          one = {.filters = 8, .kernel_h = 1},
                          depthwise = {.filters = 8, .kernel_h = 3, .top = 1, .left = 1, .groups = 8},
                          transposed = {.filters = 4, .kernel_h = 2, .stride_h = 2},
                          grouped = {.filters = 4, .kernel_h = 3, .stride_h = 2, .groups = 2};
    int s[3];
    hvt_value w, v, y;

    hvt_value_shape(m, x, s);
    w = hvt_weight_standardise(m, weight(m, 4, 6, s[2], 3, 3), 1e-4f);
    w = hvt_combine(m, HVT_MUL, w, weight(m, 4, 6, 1, 1, 1));
    x = hvt_apply(m, hvt_conv2d_by(m, x, w, weight(m, 1, 6, 0, 0, 0), &same), HVT_TANH, 0, 0);
    v = weight(m, 4, 8, 6, 1, 1);
    y = hvt_weight_sum(m, hvt_combine(m, HVT_MUL, v, v), (bool[]){false, true, true, true});
    w = hvt_combine(m, HVT_DIV, weight(m, 4, 8, 1, 1, 1), hvt_apply(m, y, HVT_POW, 0.5f, 0));
    x = hvt_conv2d_by(m, x, hvt_combine(m, HVT_MUL, v, w), -1, &one);
    w = hvt_weight_numbers(m, 2, (int[]){3, 3}, blur);
    w = hvt_weight_view(m, w, 0, 4, (int[]){8, 1, 3, 3}, (int[]){0, 9, 3, 1});
    x = hvt_conv2d_by(m, x, w, -1, &depthwise);
    w = hvt_weight_view(m, weight(m, 4, 4, 8, 2, 2), 0, 4, (int[]){8, 4, 2, 2}, (int[]){4, 32, 1, 2});
    x = hvt_conv_transpose2d_by(m, x, w, -1, &transposed);
    w = hvt_weight_matmul(m, weight(m, 2, 4, 3, 0, 0), weight(m, 2, 3, 18, 0, 0));
    w = hvt_combine(m, HVT_ADD, weight(m, 4, 4, 2, 3, 3),
                    hvt_weight_view(m, w, 0, 4, (int[]){4, 2, 3, 3}, NULL));
    y = hvt_conv2d_by(m, x, w, -1, &grouped);
    x = hvt_add(m, y, hvt_conv2d_by(m, x, w, -1, &grouped)); /* read twice */
    hvt_value_shape(m, x, s);
    w = weight(m, 2, 6, s[0] * s[1] * s[2], 0, 0);
    w = hvt_weight_view(m, w, 2, 2, (int[]){5, s[0] * s[1] * s[2]}, (int[]){s[0] * s[1] * s[2], 1});
    x = hvt_apply(m, hvt_linear_by(m, hvt_flatten(m, x), w, -1), HVT_TANH, 0, 0);
    w = hvt_weight_concat(m, (hvt_value[]){weight(m, 2, 3, 2, 0, 0), weight(m, 2, 3, 3, 0, 0)}, 2, 1);
    x = hvt_linear_by(m, x, w, weight(m, 1, 3, 0, 0, 0));
    v = hvt_linear_by(m, x, hvt_weight_view(m, w, 0, 2, (int[]){5, 3}, (int[]){1, 5}), -1); /* tied */
    return hvt_linear_by(m, v, hvt_combine(m, HVT_SUB, weight(m, 2, 4, 5, 0, 0), weight(m, 2, 4, 1, 0, 0)),
                         -1);
}

static inline hvt_value depthwise_layer(hvt_model *m, hvt_value x, int channels, int size, int stride)
{
    return hvt_conv2d_with(m, x,
                           &(hvt_conv2d_opts){.filters = channels,
                                              .kernel_h = size,
                                              .stride_h = stride,
                                              .top = size / 2,
                                              .left = size / 2,
                                              .bottom = size / 2,
                                              .right = size / 2,
                                              .groups = channels});
}

/* Norms read by a single depthwise or 1x1 convolution, which then computes them: narrow and wide ones, with
 * every kind of function. */
static inline hvt_value separable_net(hvt_model *m, hvt_value x)
{
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 20, 3, 1, 1)));
    x = hvt_apply(m, hvt_batchnorm(m, depthwise_layer(m, x, 20, 3, 1)), HVT_SILU, 0, 0);
    x = hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, x, 72, 1, 1, 0)), HVT_HARDTANH, 0, 6);
    x = hvt_batchnorm(m, depthwise_layer(m, x, 72, 5, 2));
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 136, 1, 1, 0)));
    x = hvt_apply(m, hvt_batchnorm(m, hvt_conv2d(m, x, 33, 1, 1, 0)), HVT_HARDSWISH, 0, 0);
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 8, 1, 1, 0)));
    return hvt_linear(m, hvt_avgpool(m, x), 4);
}

/* Outputs that can be recomputed: one from another, one for two readers, one that a residual keeps, and one
 * whose norm a convolution computes. */
static inline hvt_value recomputed_net(hvt_model *m, hvt_value x)
{
    hvt_value y;

    x = hvt_layernorm(m, hvt_conv2d(m, x, 12, 3, 1, 1), HVT_OVER_CHANNELS, 1e-6f, true);
    x = hvt_apply(m, x, HVT_GELU, 0, 0);
    y = hvt_apply(m, hvt_groupnorm(m, hvt_conv2d(m, x, 12, 1, 1, 0), 3, 1e-5f, true), HVT_SILU, 0, 0);
    y = hvt_apply(m, hvt_conv2d(m, y, 12, 1, 1, 0), HVT_GELU_TANH, 0, 0);
    x = hvt_add(m, hvt_conv2d(m, y, 12, 3, 1, 1), hvt_combine(m, HVT_MUL, hvt_conv2d(m, y, 12, 1, 1, 0), x));
    x = hvt_conv2d(m, hvt_batchnorm(m, hvt_apply(m, x, HVT_SILU, 0, 0)), 9, 1, 1, 0);
    return hvt_linear(m, hvt_avgpool(m, hvt_apply(m, hvt_batchnorm(m, x), HVT_GELU, 0, 0)), 4);
}

/* ---- one pass, and how two differ ------------------------------------------------------------------- */

/* A forward and a backward pass. Returns each parameter's gradient in canonical order, one after the other,
 * then the loss; frozen parameters have none. free() it. */
static inline float *pass(net *n, size_t *ret_count)
{
    size_t count = hvt_model_parameters(n->m) - hvt_model_frozen(n->m), at = 0;
    float *g = malloc((count + 1) * sizeof *g);

    CHECK_OK(hvt_model_forward(n->m, &n->batch, true));
    CHECK_OK(hvt_model_backward(n->m, NULL, NULL));
    for (int i = 0; i < n->m->ntrained; i++) {
        CHECK_OK(hvt__model_export(n->m, &n->m->param[i], n->m->grads, g + at));
        at += n->m->param[i].elements;
    }
    g[at] = (float)loss_of(n);
    *ret_count = count + 1;
    return g;
}

/* The largest difference between two results of pass(), relative to the tensor's largest value (the loss: to
 * itself). */
static inline double apart(const net *n, const float *a, const float *b)
{
    double worst = 0;

    for (int i = 0; i <= n->m->ntrained; i++) {
        size_t count = i < n->m->ntrained ? n->m->param[i].elements : 1;
        double most = 1e-6, off = 0;

        for (size_t k = 0; k < count; k++) {
            most = fmax(most, fabs((double)a[k]));
            off = fabs((double)a[k] - b[k]) >= off ? fabs((double)a[k] - b[k]) : off;
        }
        worst = off / most >= worst ? off / most : worst;
        a += count;
        b += count;
    }
    return worst;
}

/* Runs a net in two variants: gradients and loss must agree to `tolerance`; 0: to the bit. */
static inline void check_same(build_fn *build, shape s, int count, how one, how other, double tolerance)
{
    net a, b;
    bool a_runs = open_net(&a, one, build, s), b_runs = open_net(&b, other, build, s);

    if (a_runs && b_runs) {
        size_t n;
        float *x, *y;

        feed(&a, 0, count);
        feed(&b, 0, count);
        x = pass(&a, &n);
        y = pass(&b, &n);
        CHECK(isfinite(x[n - 1]) && x[n - 1] != 0, "loss %g", (double)x[n - 1]);
        CHECK(apart(&a, x, y) <= tolerance, "%s: %d of %d images %dx%dx%d: %.2g apart", way_name(other),
              count, s.batch, s.h, s.w, s.c, apart(&a, x, y));
        free(x);
        free(y);
    }
    close_net(&b); /* in reverse order: each restores its thread's mode for subnormals */
    close_net(&a);
}

#endif /* HVT_NETS_H */
