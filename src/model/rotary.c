/* Rotary embeddings. Nothing is saved: backward rotates the gradients back. */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

hvt_value hvt_rotary(hvt_model *m, hvt_value x, const hvt_rotary_opts *o)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_rotary, x);
    hvt_rotary_args *a;
    hvt__constants *kept;
    float *own, *other, *back;
    size_t n;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, o && o->own && o->other, "the factors are NULL");
    HVT_EXPECT(m, l,
               o->first >= 0 && o->vectors > 0 && o->width > 0 && o->first <= l->y.dim[3] &&
                   o->vectors <= (l->y.dim[3] - o->first) / o->width,
               "cannot take %d vectors of %d channels from channel %d of %d", o->vectors, o->width, o->first,
               l->y.dim[3]);
    HVT_EXPECT(m, l, o->apart > 0 && o->apart <= o->width / 2 && o->width % (2 * o->apart) == 0,
               "pairs of channels %d apart in vectors of %d; twice the distance must divide the vector",
               o->apart, o->width);
    n = (size_t)hvt__pixels(l) * (size_t)o->width;
    HVT_EXPECT(m, l, n <= HVT_MOST, "factors of %d pixels and %d channels; expected at most %d",
               hvt__pixels(l), o->width, HVT_MOST);
    for (size_t i = 0; i < n; i++)
        HVT_EXPECT(m, l, isfinite(o->own[i]) && isfinite(o->other[i]),
                   "factors %zu are %g and %g; expected finite numbers", i, (double)o->own[i],
                   (double)o->other[i]);
    a = &l->is.rotary;
    *a = (hvt_rotary_args){.first = o->first, .vectors = o->vectors, .width = o->width, .apart = o->apart};
    kept = hvt__constants_begin(m, l, &(hvt__constants){.all = 3 * n});
    if (!kept)
        return -1;
    own = (float *)(void *)kept->data, other = own + n, back = other + n;
    memcpy(own, o->own, n * sizeof *own);
    memcpy(other, o->other, n * sizeof *other);
    for (size_t i = 0; i < n; i++) {
        const size_t c = i % (size_t)o->width;

        back[i] = other[i - c + (size_t)hvt__rotary_partner(a, (int)c)];
    }
    l->in_place[0] = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

static hvt_status rotary_plan(hvt_model *m, hvt_layer *l)
{
    hvt_rotary_args *a = &l->is.rotary;

    HVT__COMPUTES(m, l, general.rotary);
    a->order = m->order;
    a->type = l->y.dtype;
    a->n = m->batch;
    a->pixels = hvt__pixels(l);
    a->c = l->y.dim[3];
    return hvt__constants_put(m, l);
}

static hvt_status run(hvt_model *m, const hvt_layer *l, int other, const void *x, void *y, bool add)
{
    const float *numbers = l->constants_there;
    hvt_rotary_args a = l->is.rotary;

    a.real = m->real;
    a.own = numbers;
    a.other = numbers + (size_t)other * (size_t)a.pixels * (size_t)a.width;
    a.x = x;
    a.y = y;
    a.add = add;
    return m->dev->ops->general.rotary(m->dev, &a);
}

static hvt_status rotary_forward(hvt_model *m, hvt_layer *l)
{
    return run(m, l, 1, hvt__in(m, l, 0)->y.data, l->y.data, false);
}

static hvt_status rotary_backward(hvt_model *m, hvt_layer *l)
{
    return run(m, l, 2, l->dy.data, hvt__in(m, l, 0)->dy.data, l->add[0]);
}

static uint64_t rotary_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const hvt_rotary_args *a = &l->is.rotary;

    return HVT__HASH(h, a->first, a->vectors, a->width, a->apart);
}

const hvt_layer_ops hvt_layer_rotary = {"rotary", rotary_plan, rotary_forward, rotary_backward,
                                        .hash = rotary_hash};
