/*
 * Layer, group and instance norm: torch.nn.LayerNorm, GroupNorm, InstanceNorm2d. Every image has its own
 * statistics, so there are no running ones.
 */
#include "base_impl.h"
#include "layers.h"

static hvt_value end(hvt_model *m, hvt_layer *l, hvt_norm_args norm, bool affine)
{
    HVT_EXPECT(m, l, norm.eps > 0 && norm.eps <= 1, "eps is %g; expected more than 0, at most 1",
               (double)norm.eps);
    l->is.norm = norm;
    l->has_parameter = affine;
    l->saves_input = true;
    l->in_place[0] = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

hvt_value hvt_layernorm(hvt_model *m, hvt_value x, hvt_over over, float eps, bool affine)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_layernorm, x);
    bool image = over == HVT_OVER_IMAGE;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, image || over == HVT_OVER_CHANNELS,
               "a norm over %d; expected HVT_OVER_CHANNELS or HVT_OVER_IMAGE", (int)over);
    return end(m, l, (hvt_norm_args){.groups = 1, .per_pixel = !image, .per_element = image, .eps = eps},
               affine);
}

hvt_value hvt_groupnorm(hvt_model *m, hvt_value x, int groups, float eps, bool affine)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_groupnorm, x);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, groups > 0 && l->y.dim[3] % groups == 0, "%d channels cannot be divided into %d groups",
               l->y.dim[3], groups);
    return end(m, l, (hvt_norm_args){.groups = groups, .eps = eps}, affine);
}

static size_t statistics(const hvt_layer *l)
{
    return (size_t)l->is.norm.n * (size_t)(l->is.norm.per_pixel ? l->is.norm.pixels : 1) *
           (size_t)l->is.norm.groups;
}

static hvt_status shape_norm_plan(hvt_model *m, hvt_layer *l)
{
    const int *d = l->y.dim;
    hvt_norm_args *k = &l->is.norm;
    hvt_param p = {
        .ndim = 1, .dim = {d[3]}, .count = (size_t)d[3], .role = HVT_ROLE_NORM, .init = HVT_INIT_FILL};

    HVT__COMPUTES(m, l, general.norm_forward);
    k->order = m->order;
    k->type = l->y.dtype;
    k->n = m->batch;
    k->pixels = hvt__pixels(l);
    k->c = d[3];
    l->saved_bytes = 2 * statistics(l) * sizeof(float);
    if (!l->has_parameter)
        return HVT_OK;
    if (k->per_element) {
        p.ndim = 3;
        p.dim[1] = d[1];
        p.dim[2] = d[2];
        p.count *= (size_t)k->pixels;
        p.flat = k->pixels;
        HVT_CHECK(p.count <= HVT_MOST, E_SHAPE, "layer %s (%s): %dx%dx%d are more than %d weights", l->name,
                  l->ops->name, d[1], d[2], d[3], HVT_MOST);
    }
    p.init_arg = 1;
    HVT_TRY(hvt__param_add(m, l, 0, &p, "weight"));
    p.init_arg = 0;
    return hvt__param_add(m, l, 1, &p, "bias");
}

static hvt_norm_args arguments(hvt_model *m, const hvt_layer *l)
{
    hvt_norm_args a = l->is.norm;

    a.real = m->real;
    a.x = hvt__in(m, l, 0)->y.data;
    a.gamma = l->has_parameter ? hvt__weight(m, l, 0) : NULL;
    a.beta = l->has_parameter ? hvt__weight(m, l, 1) : NULL;
    a.mean = l->saved;
    a.rstd = a.mean + statistics(l);
    return a;
}

static hvt_status shape_norm_forward(hvt_model *m, hvt_layer *l)
{
    hvt_norm_args a = arguments(m, l);

    a.y = l->y.data;
    return m->dev->ops->general.norm_forward(m->dev, &a);
}

static hvt_status shape_norm_backward(hvt_model *m, hvt_layer *l)
{
    hvt_norm_args a = arguments(m, l);

    a.dy = l->dy.data;
    a.dx = hvt__in(m, l, 0)->dy.data;
    a.add = l->add[0];
    a.dgamma = l->has_parameter && !hvt__is_frozen(m, l, 0) ? hvt__grad(m, l, 0) : NULL;
    a.dbeta = l->has_parameter && !hvt__is_frozen(m, l, 1) ? hvt__grad(m, l, 1) : NULL;
    return m->dev->ops->general.norm_backward(m->dev, &a);
}

static uint64_t shape_norm_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt_norm_args *n = &l->is.norm;

    return HVT__HASH(h, n->eps, n->groups, n->per_pixel, n->per_element);
}

const hvt_layer_ops hvt_layer_layernorm = {.name = "layernorm",
                                           .plan = shape_norm_plan,
                                           .forward = shape_norm_forward,
                                           .backward = shape_norm_backward,
                                           .recompute = shape_norm_forward,
                                           .hash = shape_norm_hash};
const hvt_layer_ops hvt_layer_groupnorm = {.name = "groupnorm",
                                           .plan = shape_norm_plan,
                                           .forward = shape_norm_forward,
                                           .backward = shape_norm_backward,
                                           .recompute = shape_norm_forward,
                                           .hash = shape_norm_hash};
