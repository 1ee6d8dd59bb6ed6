/*
 * Describes a planned model layer by layer, for people: names, kinds, shapes, parameters and multiply-adds. A
 * plan that only measures allocates no arena, so it shows the memory that a model needs even if there is
 * less.
 *
 * Multiply-adds are those of convolutions, linear layers and attention, as torchvision and fvcore count them.
 * Additions of biases, norms, functions and pooling are not counted.
 */
#include "base_impl.h"
#include "layers.h"

static void describe_kind(const hvt_layer *l, char *ret_text, size_t bytes)
{
    const hvt_conv2d_opts *c = &l->conv;
    size_t n = (size_t)snprintf(ret_text, bytes, "%s", l->ops->name);

    if (!l->ops->is_conv && l->ops != &hvt_layer_conv_transpose)
        return;
    n += (size_t)snprintf(ret_text + n, bytes - n, " %dx%d", c->kernel_h, c->kernel_w);
    if (c->stride_h == c->stride_w && c->stride_h > 1)
        n += (size_t)snprintf(ret_text + n, bytes - n, " /%d", c->stride_h);
    else if (c->stride_h != c->stride_w)
        n += (size_t)snprintf(ret_text + n, bytes - n, " /%dx%d", c->stride_h, c->stride_w);
    if (c->groups > 1)
        snprintf(ret_text + n, bytes - n, ", %d groups", c->groups);
}

static int64_t filters_of(const hvt_model *m, const hvt_layer *l)
{
    return hvt__filters_are_computed(l) ? m->layer[l->in[1]].y.dim[3]
                                        : (int64_t)m->param[l->param[0]].elements;
}

/* Returns the multiply-adds of layer l for one image. */
static int64_t multiply_adds(const hvt_model *m, const hvt_layer *l)
{
    const int64_t pixels = (int64_t)l->y.dim[1] * l->y.dim[2];

    if (l->ops == &hvt_layer_conv || l->ops == &hvt_layer_linear)
        return pixels * filters_of(m, l);
    if (l->ops == &hvt_layer_conv_transpose) /* each input pixel meets each weight */
        return hvt__pixels(&m->layer[l->in[0]]) * filters_of(m, l);
    if (l->ops == &hvt_layer_matmul)
        return pixels * l->y.dim[3] * l->is.matmul.k;
    if (l->ops == &hvt_layer_attention) { /* q k^T, and P v */
        const hvt_attention_args *a = &l->is.attention;

        return 2 * (int64_t)a->windows * a->heads * a->queries * a->keys * a->width;
    }
    return 0;
}

bool hvt__model_describe(const hvt_model *m, int i, hvt__layer_facts *ret)
{
    const hvt_layer *l = &m->layer[i];

    if (i < 0 || i >= m->nlayer - 1) /* the last one is the loss */
        return false;
    *ret = (hvt__layer_facts){.name = l->name,
                              .is_input = i == m->input,
                              .channels = l->y.dim[3],
                              .height = l->y.dim[1],
                              .width = l->y.dim[2],
                              .shares = l->shares >= 0 ? m->layer[l->shares].name : NULL,
                              .multiply_adds = l->folded ? 0 : multiply_adds(m, l)};
    describe_kind(l, ret->kind, sizeof ret->kind);
    for (int k = 0; k < HVT_LAYER_PARAMS && !l->folded && l->shares < 0; k++)
        if (l->param[k] >= 0 && !m->param[l->param[k]].constant)
            ret->parameters += m->param[l->param[k]].elements;
    return true;
}

hvt_status hvt__model_measure(hvt_model *m, int batch, hvt_value logits)
{
    hvt_status s;

    m->measures = true;
    s = hvt_model_plan(m, batch, logits);
    return s ? hvt__pass(s, __FILE__, __LINE__, "hvt_model_plan") : HVT_OK;
}
