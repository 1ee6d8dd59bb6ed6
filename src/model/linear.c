/* The fully connected layer, y = x weight^T + bias, as a 1x1 convolution. */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

hvt_value hvt_linear(hvt_model *m, hvt_value x, int outputs)
{
    const int *d = m && x >= 0 && x < m->nlayer ? m->layer[x].y.dim : NULL;

    if (d && m->mistake == HVT_OK && (d[1] != 1 || d[2] != 1)) {
        hvt_layer *l = hvt__layer_begin(m, &hvt_layer_linear, x);

        HVT_EXPECT(m, l, !l, "input is %dx%dx%d; it must be 1x1xC, as average pooling makes it", d[1], d[2],
                   d[3]);
        return -1;
    }
    return hvt_linear_with(m, x, outputs, true);
}

/* l->y is still the input's. */
static hvt_value linear(hvt_model *m, hvt_layer *l, int outputs, bool bias)
{
    const int *d = l->y.dim;

    HVT_EXPECT(m, l, outputs > 0 && outputs <= HVT_MOST && outputs <= INT_MAX / d[3],
               "%d outputs of %d inputs; outputs must be 1 to %d, with at most %d weights", outputs, d[3],
               HVT_MOST, INT_MAX);
    l->flat = 1;
    l->has_parameter = true;
    l->conv = (hvt_conv2d_opts){.filters = outputs,
                                .kernel_h = 1,
                                .kernel_w = 1,
                                .stride_h = 1,
                                .stride_w = 1,
                                .dilation_h = 1,
                                .dilation_w = 1,
                                .groups = 1,
                                .bias = bias};
    if (hvt__filters_are_computed(l) && hvt__filters_check(m, l, 2, (int[]){outputs, d[3], 0, 0}) < 0)
        return -1;
    return hvt__layer_end(m, l, d[1], d[2], outputs);
}

hvt_value hvt_linear_with(hvt_model *m, hvt_value x, int outputs, bool bias)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_linear, x);

    return l ? linear(m, l, outputs, bias) : -1;
}

hvt_value hvt_linear_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias)
{
    hvt_layer *l;

    if (hvt__filters_begin(m, &hvt_layer_linear, x, weight, bias, &l) < 0)
        return -1;
    return linear(m, l, m->layer[weight].dim[0], false);
}

/* torch.nn.Linear: weight and bias uniform within +-1/sqrt(inputs) */
static hvt_status linear_plan(hvt_model *m, hvt_layer *l)
{
    int c = hvt__in(m, l, 0)->y.dim[3], k = l->y.dim[3];
    hvt_param p = {.ndim = 2,
                   .dim = {k, c},
                   .flat = hvt__in(m, l, 0)->flat,
                   .init = HVT_INIT_UNIFORM,
                   .init_arg = (float)(1 / sqrt(c))};

    return hvt__conv_plan(m, l, p, p);
}

const hvt_layer_ops hvt_layer_linear = {"linear",
                                        linear_plan,
                                        hvt__conv_forward,
                                        hvt__conv_backward,
                                        true,
                                        .hash = hvt__conv_hash,
                                        .takes = HVT_TAKES_FILTERS};
