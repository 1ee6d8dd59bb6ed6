/*
 * Element-wise functions; after a batch norm they are usually fused into it (fold.c). relu has its own layer
 * (pointwise.c).
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

hvt_value hvt_apply(hvt_model *m, hvt_value x, hvt_function f, float a, float b)
{
    hvt_layer *l;

    if (!m)
        return -1;
    if ((unsigned)f >= HVT_FUNCTIONS)
        return hvt__mistake(m, NULL, HVT_E_SHAPE, "function %d is unknown; there are 0 to %d", (int)f,
                            HVT_FUNCTIONS - 1);
    if (f == HVT_RELU)
        return hvt_relu(m, x);
    l = hvt__layer_begin(m, &hvt_layer_map[f], x);
    if (!l)
        return -1;
    HVT_EXPECT(m, l, (f != HVT_LEAKY_RELU && f != HVT_ELU) || (a >= 0 && isfinite(a)),
               "a is %g; expected 0 or more", (double)a);
    HVT_EXPECT(m, l, f != HVT_SOFTPLUS || (a > 0 && isfinite(a) && !isnan(b)),
               "a is %g, b is %g; expected a finite a above 0, and a number", (double)a, (double)b);
    HVT_EXPECT(m, l, (f != HVT_CLAMP && f != HVT_HARDTANH) || a <= b,
               "bounds %g and %g; expected the lower one first", (double)a, (double)b);
    HVT_EXPECT(m, l, f != HVT_POW || (fabsf(a) <= HVT_MOST && a != 0),
               "the exponent is %g; expected a magnitude above 0, at most %d", (double)a, HVT_MOST);
    HVT_EXPECT(m, l, f != HVT_HARDSHRINK || a >= 0, "a is %g; expected 0 or more", (double)a);
    HVT_EXPECT(m, l, f != HVT_AFFINE || (isfinite(a) && isfinite(b)), "%g*x + %g; expected finite numbers",
               (double)a, (double)b);
    l->is.map = (hvt_map){f, a, b};
    l->saves_input = hvt__slope_from_x(f);
    l->saves_output = !l->saves_input && f != HVT_AFFINE;
    l->in_place[0] = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

static hvt_status map_plan(hvt_model *m, hvt_layer *l)
{
    HVT__COMPUTES(m, l, general.map_forward);
    return HVT_OK;
}

static hvt_status map_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->general.map_forward(m->dev, hvt__elements(l), l->y.dtype, &l->is.map,
                                            hvt__in(m, l, 0)->y.data, l->y.data);
}

static hvt_status map_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);

    if (l->is.map.f == HVT_AFFINE && !l->add[0]) /* reads neither x nor y */
        return m->dev->ops->general.map_forward(m->dev, hvt__elements(l), l->y.dtype,
                                                &(hvt_map){HVT_AFFINE, l->is.map.a, 0}, l->dy.data,
                                                in->dy.data);
    return m->dev->ops->general.map_backward(m->dev, hvt__elements(l), l->y.dtype, &l->is.map,
                                             l->is.map.f == HVT_AFFINE ? l->dy.data
                                             : l->saves_input          ? in->y.data
                                                                       : l->y.data,
                                             l->dy.data, in->dy.data, l->add[0]);
}

static uint64_t map_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.map.a, l->is.map.b);
}

#define LAYER(constant, name, from_x)                                                                        \
    [HVT_##constant] = {#name,                                                                               \
                        map_plan,                                                                            \
                        map_forward,                                                                         \
                        map_backward,                                                                        \
                        true,                                                                                \
                        map_forward,                                                                         \
                        map_hash,                                                                            \
                        .may_fuse = HVT_FUSE_MAP,                                                            \
                        .takes = HVT_TAKES_EITHER},
const hvt_layer_ops hvt_layer_map[] = {HVT__MAPS(LAYER)};
