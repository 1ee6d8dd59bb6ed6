/* Products of matrices of two values. Backward reads both inputs. */
#include "base_impl.h"
#include "layers.h"

hvt_value hvt_matmul(hvt_model *m, hvt_value a, hvt_value b, bool transposed)
{
    hvt_layer *l = m ? hvt__layer_begin_many(m, &hvt_layer_matmul, (hvt_value[]){a, b}, 2) : NULL;

    if (!l)
        return -1;
    const int *p = m->layer[a].y.dim, *q = m->layer[b].y.dim;

    HVT_EXPECT(
        m, l, p[1] == q[1] && p[3] == q[transposed ? 3 : 2],
        "%s is %dx%dx%d, %s is %dx%dx%d%s: expected as many matrices, and rows of the first as long as "
        "columns of the second",
        m->layer[a].name, p[1], p[2], p[3], m->layer[b].name, q[1], q[2], q[3],
        transposed ? ", transposed" : "");
    l->is.matmul =
        (hvt_matmul_args){.m = p[2], .n = q[transposed ? 2 : 3], .k = p[3], .b_transposed = transposed};
    l->whole_image = true;
    l->saves_input = l->saves_others = true;
    return hvt__layer_end(m, l, p[1], p[2], l->is.matmul.n);
}

/* Describes the gradient of operand i, a product of the layer's dy and the other operand. */
static hvt_matmul_args gradient(const hvt_layer *l, int i)
{
    const hvt_matmul_args *y = &l->is.matmul;
    hvt_matmul_args g = *y;

    if (i == 0) { /* dY B' */
        g.n = y->k, g.k = y->n;
        g.b_transposed = !y->b_transposed;
    } else if (y->b_transposed) { /* dY' A */
        g.m = y->n, g.n = y->k, g.k = y->m;
        g.a_transposed = true, g.b_transposed = false;
    } else { /* A' dY */
        g.m = y->k, g.k = y->m;
        g.a_transposed = true;
    }
    return g;
}

static hvt_status matmul_plan(hvt_model *m, hvt_layer *l)
{
    HVT__COMPUTES(m, l, matmul.run);
    l->is.matmul.type = l->y.dtype;
    l->ws_bytes = m->dev->ops->matmul.room(m->dev, &l->is.matmul);
    for (int i = 0; i < 2; i++) {
        const hvt_matmul_args g = gradient(l, i);
        const size_t bytes = m->dev->ops->matmul.room(m->dev, &g);

        l->ws_bytes = bytes > l->ws_bytes ? bytes : l->ws_bytes;
    }
    return HVT_OK;
}

static hvt_status run(hvt_model *m, const hvt_layer *l, hvt_matmul_args a, const void *x, const void *y,
                      void *to, bool add)
{
    a.count = m->real * l->y.dim[1];
    a.a = x, a.b = y, a.y = to;
    a.add = add;
    a.ws = m->ws;
    return m->dev->ops->matmul.run(m->dev, &a);
}

static hvt_status matmul_forward(hvt_model *m, hvt_layer *l)
{
    return run(m, l, l->is.matmul, hvt__in(m, l, 0)->y.data, hvt__in(m, l, 1)->y.data, l->y.data, false);
}

static hvt_status matmul_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *a = hvt__in(m, l, 0), *b = hvt__in(m, l, 1);
    const void *dy = l->dy.data, *second = l->is.matmul.b_transposed ? a->y.data : dy;

    if (a->dy.data)
        HVT_TRY(run(m, l, gradient(l, 0), dy, b->y.data, a->dy.data, l->add[0]));
    if (b->dy.data)
        HVT_TRY(run(m, l, gradient(l, 1), l->is.matmul.b_transposed ? dy : a->y.data, second, b->dy.data,
                    l->add[1]));
    return HVT_OK;
}

static uint64_t matmul_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.matmul.b_transposed);
}

const hvt_layer_ops hvt_layer_matmul = {"matmul", matmul_plan, matmul_forward, matmul_backward,
                                        .hash = matmul_hash};
