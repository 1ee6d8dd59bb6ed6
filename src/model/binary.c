/*
 * Element-wise operations on two values, or on a value and a parameter; one operand may be broadcast. The sum
 * of two values of one shape is hvt_layer_add (pointwise.c), which norms fuse. Also reductions over channels:
 * a sum is the gradient of a value broadcast to all channels, and vice versa.
 */
#include "base_impl.h"
#include "layers.h"

#include <math.h>

static bool same_shape(const hvt_layer *a, const hvt_layer *b)
{
    return !memcmp(a->y.dim + 1, b->y.dim + 1, 3 * sizeof *a->y.dim);
}

/* Finds how b is broadcast to a's shape; false if it cannot be. */
static bool repeats(const hvt_layer *a, const hvt_layer *b, hvt_across *ret_across)
{
    const int *p = a->y.dim, *q = b->y.dim;

    *ret_across = same_shape(a, b) ? HVT_SAME : q[3] == p[3] ? HVT_PER_IMAGE : HVT_PER_PIXEL;
    return *ret_across == HVT_SAME        ? true
           : *ret_across == HVT_PER_IMAGE ? q[1] == 1 && q[2] == 1
                                          : q[1] == p[1] && q[2] == p[2] && q[3] == 1;
}

hvt_value hvt_combine(hvt_model *m, hvt_binary op, hvt_value a, hvt_value b)
{
    hvt_across across;
    hvt_layer *l;
    bool swapped;

    if (!m)
        return -1;
    if ((unsigned)op >= HVT_BINARIES)
        return hvt__mistake(m, NULL, HVT_E_SHAPE, "operation %d is unknown; there are 0 to %d", (int)op,
                            HVT_BINARIES - 1);
    if (a >= 0 && a < m->nlayer && m->layer[a].is_weight)
        return hvt__weight_combine(m, op, a, b);
    if (op == HVT_ADD && a >= 0 && b >= 0 && a < m->nlayer && b < m->nlayer &&
        same_shape(&m->layer[a], &m->layer[b]))
        return hvt_add(m, a, b);
    l = hvt__layer_begin_many(m, &hvt_layer_binary[op], (hvt_value[]){a, b}, 2);
    if (!l)
        return -1;
    swapped = !repeats(&m->layer[a], &m->layer[b], &across);

    const int *p = m->layer[a].y.dim, *q = m->layer[b].y.dim;

    HVT_EXPECT(m, l, !swapped || repeats(&m->layer[b], &m->layer[a], &across),
               "%s is %dx%dx%d, %s is %dx%dx%d: neither broadcasts to the other's shape", m->layer[a].name,
               p[1], p[2], p[3], m->layer[b].name, q[1], q[2], q[3]);
    l->in[0] = swapped ? b : a;
    l->in[1] = swapped ? a : b;
    l->is.binary = (hvt_binary_args){.op = op, .swapped = swapped, .across = across};
    l->in_place[0] = a != b;
    p = m->layer[l->in[0]].y.dim;
    return hvt__layer_end(m, l, p[1], p[2], p[3]);
}

static hvt_value combine(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim, float init,
                         bool constant)
{
    int64_t elements = 1;
    hvt_layer *l;

    if (!m)
        return -1;
    if ((unsigned)op >= HVT_BINARIES)
        return hvt__mistake(m, NULL, HVT_E_SHAPE, "operation %d is unknown; there are 0 to %d", (int)op,
                            HVT_BINARIES - 1);
    l = hvt__layer_begin(m, &hvt_layer_binary[op], x);
    if (!l)
        return -1;
    HVT_EXPECT(m, l, ndim >= 0 && ndim <= 4 && (dim || !ndim),
               "a parameter of %d dimensions, expected 0 to 4", ndim);
    for (int i = 0; i < ndim; i++) {
        HVT_EXPECT(m, l, dim[i] > 0 && dim[i] <= HVT_MOST, "a parameter's dimension %d is %d, not 1 to %d", i,
                   dim[i], HVT_MOST);
        elements = elements > HVT_MOST ? elements : elements * dim[i];
        l->dim[i] = dim[i];
    }
    HVT_EXPECT(m, l, (elements == 1 || elements == l->y.dim[3]) && l->flat == 1,
               "a parameter of %lld elements and an input of %dx%dx%d; expected 1 element, or %d",
               (long long)elements, l->y.dim[1], l->y.dim[2], l->y.dim[3], l->y.dim[3]);
    HVT_EXPECT(m, l, constant ? !isnan(init) : isfinite(init), "its initial value is %g; expected a number",
               (double)init);
    l->has_parameter = true;
    l->ndim = ndim;
    l->is.binary = (hvt_binary_args){.op = op, .across = elements == 1 ? HVT_ONE_NUMBER : HVT_PER_CHANNEL};
    l->init = init;
    l->constant = constant;
    l->in_place[0] = true;
    return hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], l->y.dim[3]);
}

hvt_value hvt_combine_parameter(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim,
                                float init)
{
    return combine(m, op, x, ndim, dim, init, false);
}

hvt_value hvt_combine_constant(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim, float init)
{
    return combine(m, op, x, ndim, dim, init, true);
}

static hvt_value add_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim,
                               float deviation, bool constant)
{
    hvt_layer *l = m ? hvt__layer_begin(m, &hvt_layer_binary[HVT_ADD], x) : NULL;
    int64_t rows = 1;

    if (!l)
        return -1;
    HVT_EXPECT(m, l, ndim >= 1 && ndim <= 4 && dim, "an embedding of %d dimensions, expected 1 to 4", ndim);
    for (int i = 0; i < ndim; i++) {
        HVT_EXPECT(m, l, dim[i] > 0 && dim[i] <= HVT_MOST, "an embedding's dimension %d is %d, not 1 to %d",
                   i, dim[i], HVT_MOST);
        rows = i == ndim - 1 || rows > HVT_MOST ? rows : rows * dim[i];
        l->dim[i] = dim[i];
    }
    const int *d = l->y.dim, pixels = hvt__pixels(l);

    HVT_EXPECT(
        m, l, dim[ndim - 1] == d[3] && first >= 0 && first < pixels && rows <= pixels - first && l->flat == 1,
        "an embedding of %lld rows of %d elements does not fit at pixel %d of %dx%dx%d", (long long)rows,
        dim[ndim - 1], first, d[1], d[2], d[3]);
    HVT_EXPECT(m, l, isfinite(deviation) && deviation >= 0, "a deviation of %g; expected 0 or more",
               (double)deviation);
    l->has_parameter = true;
    l->ndim = ndim;
    l->init = deviation;
    l->constant = constant;
    l->is.binary = (hvt_binary_args){.op = HVT_ADD, .across = HVT_PER_ELEMENT, .at = {first, (int)rows}};
    l->in_place[0] = true;
    return hvt__layer_end(m, l, d[1], d[2], d[3]);
}

hvt_value hvt_add_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim, float deviation)
{
    return add_embedding(m, x, first, ndim, dim, deviation, false);
}

hvt_value hvt_add_constant_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim)
{
    return add_embedding(m, x, first, ndim, dim, 0, true);
}

static hvt_status binary_plan(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *a = hvt__in(m, l, 0), *b = l->has_parameter ? NULL : hvt__in(m, l, 1);
    hvt_binary_args *k = &l->is.binary;
    bool wants_b = b && b->requires_grad;

    HVT__COMPUTES(m, l, general.binary_forward);
    k->order = m->order;
    k->type = l->y.dtype;
    k->n = m->batch;
    k->pixels = hvt__pixels(l);
    k->c = l->y.dim[3];
    if (!b) {
        hvt_param p = {.ndim = l->ndim,
                       .count = k->across == HVT_ONE_NUMBER    ? 1
                                : k->across == HVT_PER_ELEMENT ? (size_t)k->at.count * (size_t)k->c
                                                               : (size_t)k->c,
                       .role = HVT_ROLE_NORM,
                       .constant = l->constant,
                       .init = k->across == HVT_PER_ELEMENT ? HVT_INIT_NORMAL : HVT_INIT_FILL,
                       .init_arg = l->init};

        memcpy(p.dim, l->dim, sizeof p.dim);
        HVT_TRY(hvt__param_add(m, l, 0, &p, NULL));
        wants_b = !hvt__is_frozen(m, l, 0);
    }
    l->saves_input = k->op >= HVT_DIV || (k->op == HVT_MUL && wants_b);
    l->saves_others = b && (k->op >= HVT_DIV || (k->op == HVT_MUL && a->requires_grad));
    return HVT_OK;
}

static hvt_binary_args arguments(hvt_model *m, const hvt_layer *l)
{
    hvt_binary_args a = l->is.binary;

    a.real = m->real;
    a.a = hvt__in(m, l, 0)->y.data;
    a.b = l->has_parameter ? hvt__weight(m, l, 0) : hvt__in(m, l, 1)->y.data;
    return a;
}

static hvt_status binary_forward(hvt_model *m, hvt_layer *l)
{
    hvt_binary_args a = arguments(m, l);

    a.y = l->y.data;
    return m->dev->ops->general.binary_forward(m->dev, &a);
}

static hvt_status binary_backward(hvt_model *m, hvt_layer *l)
{
    hvt_binary_args a = arguments(m, l);

    a.dy = l->dy.data;
    a.da = hvt__in(m, l, 0)->dy.data;
    a.add_a = l->add[0];
    if (!l->has_parameter && l->in[0] == l->in[1]) { /* the second gradient adds to the first */
        HVT_TRY(m->dev->ops->general.binary_backward(m->dev, &a));
        a.da = NULL;
    }
    if (!l->has_parameter) {
        a.db = hvt__in(m, l, 1)->dy.data;
        a.add_b = l->add[1];
    } else if (!hvt__is_frozen(m, l, 0)) {
        a.db = hvt__grad(m, l, 0);
    }
    return m->dev->ops->general.binary_backward(m->dev, &a);
}

static uint64_t binary_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.binary.swapped, l->is.binary.across, l->is.binary.at.first);
}

const hvt_layer_ops hvt_layer_binary[] = {
    [HVT_ADD] = {"add", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
    [HVT_SUB] = {"sub", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
    [HVT_MUL] = {"mul", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
    [HVT_DIV] = {"div", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
    [HVT_MAXIMUM] = {"max", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
    [HVT_MINIMUM] = {"min", binary_plan, binary_forward, binary_backward, true, .hash = binary_hash},
};

/* ---- reductions over channels ---- */

hvt_value hvt_mean_channels(hvt_model *m, hvt_value x)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_sum, x);

    if (!l)
        return -1;

    const int channels = l->y.dim[3];

    l->is.binary = (hvt_binary_args){.op = HVT_ADD, .across = HVT_PER_PIXEL};
    x = hvt__layer_end(m, l, l->y.dim[1], l->y.dim[2], 1);
    return hvt_apply(m, x, HVT_AFFINE, 1 / (float)channels, 0);
}

static hvt_status sum_plan(hvt_model *m, hvt_layer *l)
{
    hvt_binary_args *k = &l->is.binary;

    HVT__COMPUTES(m, l, general.binary_backward);
    k->order = m->order;
    k->type = l->y.dtype;
    k->n = m->batch;
    k->pixels = hvt__pixels(l);
    k->c = hvt__in(m, l, 0)->y.dim[3];
    return HVT_OK;
}

/* Computed as the gradient of b in a + b, which reads neither a nor b. */
static hvt_status sum_forward(hvt_model *m, hvt_layer *l)
{
    hvt_binary_args k = l->is.binary;

    k.real = m->real;
    k.a = k.dy = hvt__in(m, l, 0)->y.data;
    k.b = k.db = l->y.data;
    return m->dev->ops->general.binary_backward(m->dev, &k);
}

static hvt_status sum_backward(hvt_model *m, hvt_layer *l)
{
    hvt_layer *x = hvt__in(m, l, 0);
    hvt_binary_args k = l->is.binary;

    k.real = m->real;
    k.a = k.y = x->dy.data;
    k.b = l->dy.data;
    if (!l->add[0])
        HVT_TRY(m->dev->ops->memory.zero(m->dev, x->dy.data, hvt__bytes(x)));
    return m->dev->ops->general.binary_forward(m->dev, &k);
}

const hvt_layer_ops hvt_layer_sum = {"sum", sum_plan, sum_forward, sum_backward,
                                     .hash = hvt__hash_no_arguments};
