/*
 * The fully connected layer, y = x weight^T + bias: a convolution of 1x1 images and a bias.
 */
#include "base_impl.h"
#include "layers.h"

#include <limits.h>
#include <math.h>

enum { OUTPUTS };

hvt_value hvt_linear(hvt_model *m, hvt_value x, int outputs)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_linear, x, -1);
    const int *d;

    if (!l)
        return -1;
    d = m->layer[x].y.dim;
    HVT_EXPECT(m, l, d[1] == 1 && d[2] == 1, "input is %dx%dx%d; it must be 1x1xC, as hvt_avgpool() makes it",
               d[1], d[2], d[3]);
    HVT_EXPECT(m, l, outputs > 0 && outputs <= HVT_MOST && outputs <= INT_MAX / d[3],
               "%d outputs of %d inputs; outputs must be 1 to %d, with at most %d weights", outputs, d[3],
               HVT_MOST, INT_MAX);
    l->arg[OUTPUTS] = outputs;
    return hvt__layer_end(m, l, 1, 1, outputs);
}

/* torch.nn.Linear: weight and bias uniform within +-1/sqrt(inputs) */
static hvt_status linear_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    int c = in->y.dim[3], k = l->arg[OUTPUTS];
    float bound = (float)(1 / sqrt(c));
    hvt_param bias = {.ndim = 1,
                      .dim = {k},
                      .count = (size_t)k,
                      .role = HVT_ROLE_BIAS,
                      .init = HVT_INIT_UNIFORM,
                      .init_arg = bound};

    HVT_TRY(hvt__conv_plan(
        m, l,
        &(hvt_conv_desc){.order = m->order,
                         .type = l->y.dtype,
                         .n = m->batch,
                         .h = 1,
                         .w = 1,
                         .c = c,
                         .cx = c,
                         .k = k,
                         .r = 1,
                         .s = 1,
                         .stride = 1,
                         .no_dx = !in->requires_grad},
        (hvt_param){
            .ndim = 2, .dim = {k, c}, .role = HVT_ROLE_WEIGHT, .init = HVT_INIT_UNIFORM, .init_arg = bound}));
    HVT_TRY(hvt__param_add(m, l, 1, &bias, "bias"));
    return HVT_OK;
}

static hvt_status linear_forward(hvt_model *m, hvt_layer *l, bool train)
{
    (void)train;
    HVT_TRY(hvt__conv_forward(m, l));
    return m->dev->ops->bias_forward(m->dev, hvt__real_rows(m, l), l->arg[OUTPUTS], l->y.dtype,
                                     hvt__weight(m, l, 1), l->y.data);
}

static hvt_status linear_backward(hvt_model *m, hvt_layer *l)
{
    HVT_TRY(m->dev->ops->bias_backward(m->dev, hvt__real_rows(m, l), l->arg[OUTPUTS], l->y.dtype, l->dy.data,
                                       hvt__grad(m, l, 1)));
    return hvt__conv_backward(m, l);
}

const hvt_layer_ops hvt_layer_linear = {"linear", linear_plan, linear_forward, linear_backward};
