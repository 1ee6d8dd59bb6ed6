/*
 * Attention: as one operation, or as a product of queries and keys, its softmax, and the product of that and
 * values, which is followed from the first to the last and is the same layer.
 */
#include "import.h"

/* What the dimensions of a tensor say: [N, heads, tokens, width], the first two maybe joined, or
 * [N, tokens, width]; turned: [.., width, tokens]. */
static bool divide(const hvt__pt2_axes *x, bool turned, int *ret_heads, int *ret_width)
{
    const int n = x->ndim, channels = turned ? n - 2 : n - 1, tokens = turned ? n - 1 : n - 2;
    int at = 0, end;
    int64_t width = 1, heads = 1;

    if (n < 3)
        return false;
    end = x->end[n - 3];
    if (at < end && x->atom[at].axis == 'N')
        at++;
    if (x->end[channels] > x->end[channels - 1]) {
        const hvt__pt2_atom *c = &x->atom[x->end[channels - 1]];

        if (x->end[channels] - x->end[channels - 1] > 1 || c->axis != 'C' || c->stride != 1)
            return false;
        width = c->extent;
    }
    if (at < end && x->atom[at].axis == 'C' && x->atom[at].stride == width)
        heads = x->atom[at++].extent;
    *ret_heads = (int)heads;
    *ret_width = (int)width;
    return at == end && hvt__pt2_is_pixels(x, tokens);
}

/* All of t's channels, or those that are to be cut out. */
static int channels_of(const importer *p, const tensor *t)
{
    int d[3];

    hvt_value_shape(p->m, t->v, d);
    return t->count ? t->count : d[2];
}

static void attend(importer *p, const tensor *q, const tensor *k, bool turned, const tensor *v, double scale)
{
    const hvt__pt2_axes axes = q->axes;
    int heads[3], width[3], all[3];
    hvt_value y;

    if (!divide(&q->axes, false, &heads[0], &width[0]) || !divide(&k->axes, turned, &heads[1], &width[1]) ||
        !divide(&v->axes, false, &heads[2], &width[2]) || heads[0] != heads[1] || heads[0] != heads[2] ||
        width[0] != width[1] || width[0] != width[2] || heads[0] * (int64_t)width[0] != channels_of(p, q) ||
        channels_of(p, q) != channels_of(p, k) || channels_of(p, q) != channels_of(p, v)) {
        hvt__pt2_refuse(p,
                        "its queries, keys and values are not [N, heads, tokens, width], each head so many "
                        "neighbouring channels");
        return;
    }
    hvt_value_shape(p->m, q->v, all);
    if (q->v == k->v && q->v == v->v && q->count && q->first == 0 && k->first == q->count &&
        v->first == 2 * q->count && all[2] == 3 * q->count)
        y = hvt_self_attention(p->m, q->v, heads[0], (float)scale);
    else {
        const hvt_value of_q = hvt__pt2_value(p, q), of_k = hvt__pt2_value(p, k);

        y = hvt_attention(p->m, of_q, of_k, hvt__pt2_value(p, v), heads[0], (float)scale);
    }
    hvt__pt2_out_like(p, y, &axes);
}

void hvt__pt2_attention(importer *p)
{
    const tensor *q = hvt__pt2_uncut(p, "query"), *k = hvt__pt2_uncut(p, "key"),
                 *v = hvt__pt2_uncut(p, "value");
    const double drop = hvt__pt2_float(p, "dropout_p", 0), scale = hvt__pt2_float(p, "scale", 0);

    if (hvt__pt2_given(p, "attn_mask") || hvt__pt2_bool(p, "is_causal", false))
        hvt__pt2_refuse(p, "it has a mask; expected attention to all tokens");
    if (drop != 0)
        hvt__pt2_refuse(p, "it drops out %g of its weights; expected 0, or an export in eval() mode", drop);
    if (scale < 0 || (hvt__pt2_given(p, "scale") && scale == 0))
        hvt__pt2_refuse(p, "its scale is %g; expected more than 0", scale);
    if (p->failed || !hvt__pt2_is_computed(p, q) || !hvt__pt2_is_computed(p, k) ||
        !hvt__pt2_is_computed(p, v))
        return;
    attend(p, q, k, false, v, scale);
}

/* ---- in parts ---- */

static int index_of(const importer *p, const tensor *t)
{
    return (int)(t - p->tensor);
}

void hvt__pt2_matmul(importer *p)
{
    const bool batched = hvt__pt2_given(p, "mat2");
    const tensor *a = hvt__pt2_uncut(p, "self"), *b = hvt__pt2_uncut(p, batched ? "mat2" : "other");
    int heads, width;

    if (!a || !b || p->failed)
        return;
    if (a->scores && a->softmax && hvt__pt2_is_computed(p, b)) {
        attend(p, &p->tensor[a->query], &p->tensor[a->key], true, b, a->factor);
        return;
    }
    if (a->scores || a->v < 0 || b->v < 0 || !divide(&a->axes, false, &heads, &width) ||
        !divide(&b->axes, true, &heads, &width))
        hvt__pt2_refuse(p, "it is known in attention only: softmax(queries @ keys') @ values");
    hvt__pt2_out(
        p, 0, (tensor){.v = -1, .scores = true, .factor = 1, .query = index_of(p, a), .key = index_of(p, b)},
        NULL);
}

bool hvt__pt2_scale_scores(importer *p, hvt_binary op, double x)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    tensor y;

    if (!t || !t->scores)
        return false;
    y = *t;
    y.factor = op == HVT_MUL ? y.factor * x : y.factor / x;
    if ((op != HVT_MUL && op != HVT_DIV) || y.softmax || !(y.factor > 0))
        hvt__pt2_refuse(p, "it is no factor above 0 of attention's scores, before their softmax");
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

bool hvt__pt2_softmax_scores(importer *p)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    const int dim = hvt__pt2_int(p, "dim", 0);
    tensor y;

    if (!t || !t->scores)
        return false;
    y = *t;
    if (y.softmax || (dim != -1 && dim != p->tensor[t->query].axes.ndim - 1))
        hvt__pt2_refuse(p, "it is over dimension %d of attention's scores; expected the last one, once", dim);
    y.softmax = true;
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}
