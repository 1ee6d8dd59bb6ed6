/*
 * A hash of what a tape computes in inference. It tells apart models whose tensors have the same names and
 * shapes. A layer's hash covers its kind, its arguments, the names of its parameters and its inputs' hashes;
 * not the order of appending, the image size, dropout or fusion.
 */
#include "base_impl.h"
#include "layers.h"

enum { NUMBERS = 13 };

static bool has_parameters(const hvt_layer *l)
{
    return l->ops == &hvt_layer_conv || l->ops == &hvt_layer_linear || l->ops == &hvt_layer_norm ||
           ((l->ops == &hvt_layer_layernorm || l->ops == &hvt_layer_groupnorm) && l->affine) ||
           l->has_parameter;
}

/* The builder's arguments. */
static void arguments(const hvt_model *m, const hvt_layer *l, double x[NUMBERS])
{
    const int *in = l->in[0] >= 0 ? m->layer[l->in[0]].y.dim : l->y.dim, *out = l->y.dim;
    const hvt_conv2d_opts *c = &l->conv;
    const hvt_pooling_desc *p = &l->is.pooling;
    const hvt_window *r = &p->rows, *s = &p->columns;
    int n = 0;
#define PUT(...)                                                                                             \
    do {                                                                                                     \
        const double put[] = {__VA_ARGS__};                                                                  \
        for (size_t i = 0; i < HVT_LEN(put); i++)                                                            \
            x[n++] = put[i];                                                                                 \
    } while (0)

    if (l->ops == &hvt_layer_conv || l->ops == &hvt_layer_linear)
        PUT(c->kernel_h, c->kernel_w, c->stride_h, c->stride_w, c->top, c->left, c->bottom, c->right,
            c->dilation_h, c->dilation_w, c->groups, c->bias);
    else if (l->ops == &hvt_layer_maxpool || l->ops == &hvt_layer_avgpool)
        PUT(l->size, l->stride, l->pad, p->windows, p->count_pad, r->size, r->stride, r->pad,
            r->size ? 0 : r->out, s->size, s->stride, s->pad, s->size ? 0 : s->out);
    else if (l->ops == &hvt_layer_norm)
        PUT(l->is.batchnorm.eps);
    else if (l->ops == &hvt_layer_layernorm || l->ops == &hvt_layer_groupnorm)
        PUT(l->is.norm.eps, l->is.norm.groups, l->is.norm.per_pixel, l->is.norm.per_element);
    else if (l->ops == &hvt_layer_pad)
        PUT(l->is.box.y, l->is.box.x, out[1] - in[1], out[2] - in[2]);
    else if (l->ops == &hvt_layer_slice)
        PUT(l->is.box.first, out[3]);
    else if (l->ops == &hvt_layer_shuffle)
        PUT(l->is.transpose.rows);
    else if (l->ops == &hvt_layer_transpose)
        PUT(l->is.transpose.rows, l->is.transpose.cols, l->is.transpose.block);
    else if (l->ops == &hvt_layer_subsample)
        PUT(l->stride, out[3]);
    else if (l->ops >= hvt_layer_map && l->ops < hvt_layer_map + HVT_FUNCTIONS)
        PUT(l->is.map.a, l->is.map.b);
    else if (l->ops >= hvt_layer_binary && l->ops < hvt_layer_binary + HVT_BINARIES)
        PUT(l->is.binary.swapped, l->is.binary.across, l->is.binary.at.first);
    else if (l->ops == &hvt_layer_attention)
        PUT(l->is.attention.heads, l->is.attention.scale, l->is.attention.windows, l->is.attention.elements);
    else if (l->ops == &hvt_layer_maxima || l->ops == &hvt_layer_amax)
        PUT(l->is.maxima.groups, l->is.maxima.out);
    else if (l->ops == &hvt_layer_rotary)
        PUT(l->is.rotary.first, l->is.rotary.vectors, l->is.rotary.width, l->is.rotary.apart);
#undef PUT
}

uint64_t hvt__tape_hash(const hvt_model *m, hvt_value logits)
{
    uint64_t *of = malloc((size_t)m->nlayer * sizeof *of), result;

    for (int v = 0; v <= logits && of; v++) {
        const hvt_layer *l = &m->layer[v];
        double x[NUMBERS] = {0};

        if (l->ops == &hvt_layer_dropout) {
            of[v] = of[l->in[0]];
            continue;
        }
        arguments(m, l, x);
        of[v] = hvt__hash_text(HVT_HASH_INIT, l->ops->name);
        of[v] = hvt__hash(of[v], x, sizeof x);
        if (l->constants)
            of[v] = hvt__hash(of[v], l->constants->data, l->constants->all * sizeof *l->constants->data);
        if (has_parameters(l))
            of[v] = hvt__hash_text(of[v], m->layer[l->shares >= 0 ? l->shares : v].name);
        for (int i = 0; i < l->nin; i++)
            if (l->in[i] >= 0)
                of[v] = hvt__hash(of[v], &of[l->in[i]], sizeof of[v]);
    }
    result = of ? of[logits] : 0;
    free(of);
    return result;
}
