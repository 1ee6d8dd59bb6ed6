/*
 * Layers, dropout, pooling and reductions.
 */
#include "canon.h"

#include <float.h>

/* ---- layers ---- */

static void layer(pt2_graph *g, pt2_node *n, pt2_op op, int count, const char *const *names)
{
    pt2_value *in[5] = {hvt__canon_first(g, n)};

    for (int i = 1; i < count; i++)
        in[i] = hvt__canon_tensor(g, n, names[i]);
    hvt__canon_set(g, n, op, count, in);
}

static const char *const weight_and_bias[] = {"input", "weight", "bias", "running_mean", "running_var"};

static void same_padding(const pt2_attributes *is, const int *kernel, int *ret)
{
    for (int i = 0; i < 2; i++) {
        const int64_t all = is->conv.dilation[i] * (kernel[i] - (int64_t)1), most = INT_MAX;

        /* the convolution refuses what is too large */
        ret[i] = (int)(all / 2 > most ? most : all / 2);
        ret[i + 2] = (int)(all - all / 2 > most ? most : all - all / 2);
    }
}

static void convolution(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int dims = r->of;
    const bool line = dims == 1;
    pt2_attributes is = {.conv = {.stride = {1, 1}, .dilation = {1, 1}, .line = line}};
    pt2_value *w = hvt__canon_tensor(g, n, "weight");
    int kernel[2] = {1, 1};

    if (!w || w->ndim != 2 + dims) {
        hvt__pt2_refuse(g, n, "its weight has not %d dimensions", 2 + dims);
        return;
    }
    for (int i = 0; i < dims; i++)
        kernel[i + line] = (int)w->size[2 + i];
    hvt__arg_ints(g, n, "stride", dims, is.conv.stride + line);
    hvt__arg_ints(g, n, "dilation", dims, is.conv.dilation + line);
    is.conv.groups = hvt__arg_int(g, n, "groups", 1);
    if (strstr(n->target, ".padding")) {
        if (!strcmp(hvt__arg_string(g, n, "padding", "valid"), "same"))
            same_padding(&is, kernel, is.conv.pad);
    } else {
        hvt__arg_ints(g, n, "padding", dims, is.conv.pad + line);
        is.conv.pad[2] = is.conv.pad[0], is.conv.pad[3] = is.conv.pad[1];
    }
    layer(g, n, PT2_CONV, 3, weight_and_bias);
    n->is = is;
}

static void linear(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *w = hvt__canon_tensor(g, n, "weight");

    if (!w || w->ndim != 2)
        hvt__pt2_refuse(g, n, "its weight has not 2 dimensions");
    layer(g, n, PT2_LINEAR, 3, weight_and_bias);
}

static void batch_norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.norm = {.trains = hvt__arg_bool(g, n, "training", false)}};

    is.norm.eps = hvt__arg_float(g, n, "eps", 1e-5);
    is.norm.momentum = hvt__arg_float(g, n, "momentum", 0.1);
    layer(g, n, PT2_BATCH_NORM, 5, weight_and_bias);
    n->is = is;
}

/* layer_norm, rms_norm, group_norm, and instance_norm, a group norm of as many groups as channels */
static void norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_arg *shape = hvt__arg(n, "normalized_shape");
    const pt2_value *x = hvt__canon_first(g, n);
    pt2_attributes is = {
        .norm = {.eps = hvt__arg_float(g, n, "eps", r->a.otherwise), .dims = shape ? shape->n : 0}};

    if (!strncmp(n->target, "aten.instance", 13)) {
        is.norm.groups = x && x->ndim == 4 ? (int)x->size[1] : 0;
        if (hvt__arg(n, "running_mean"))
            hvt__pt2_refuse(g, n, "it has running statistics; expected track_running_stats=False");
        else if (!is.norm.groups)
            hvt__pt2_refuse(g, n, "its input is not [N,C,H,W]");
    } else {
        is.norm.groups = hvt__arg_int(g, n, "num_groups", 1);
    }
    layer(g, n, (pt2_op)r->of, 3, weight_and_bias);
    n->is = is;
}

static void attention(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[4] = {hvt__canon_tensor(g, n, "query"), hvt__canon_tensor(g, n, "key"),
                        hvt__canon_tensor(g, n, "value"), hvt__canon_tensor(g, n, "attn_mask")};
    const double drop = hvt__arg_float(g, n, "dropout_p", 0), scale = hvt__arg_float(g, n, "scale", 0);
    pt2_attributes is = {.attention = {.scale = scale, .causal = hvt__arg_bool(g, n, "is_causal", false)}};

    if (drop != 0)
        hvt__pt2_refuse(
            g, n,
            "it drops out %g of its weights; expected 0: give the layer dropout=0, also "
            "nn.TransformerEncoderLayer(dropout=0), whose other dropouts are then 0, too, or export "
            "in eval() mode",
            drop);
    if (scale < 0 || (hvt__arg(n, "scale") && scale == 0))
        hvt__pt2_refuse(g, n, "its scale is %g; expected more than 0", scale);
    if (!in[0] || !in[1] || !in[2] || in[0]->ndim < 2 || in[1]->ndim != in[0]->ndim)
        hvt__pt2_refuse(g, n, "its queries and keys have no sizes");
    hvt__canon_set(g, n, PT2_SDPA, 4, in);
    n->is = is;
}

/* matmul, bmm */
static void matmul(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[2] = {hvt__canon_first(g, n),
                        hvt__canon_tensor(g, n, hvt__arg(n, "mat2") ? "mat2" : "other")};

    if (!in[1])
        hvt__pt2_refuse(g, n, "it has one argument");
    hvt__canon_set(g, n, PT2_MATMUL, 2, in);
}

static pt2_value *swapped(pt2_graph *g, pt2_node *n, pt2_value *x)
{
    pt2_attributes is = {.dims = {.n = x->ndim}};
    pt2_value *y;

    for (int i = 0; i < x->ndim; i++)
        is.dims.dim[i] = i < x->ndim - 2 ? i : 2 * x->ndim - 3 - i;
    y = hvt__pt2_compute(g, n, n, PT2_PERMUTE, &is, 1, &x, x);
    y->size[x->ndim - 1] = x->size[x->ndim - 2];
    y->size[x->ndim - 2] = x->size[x->ndim - 1];
    return y;
}

/* Do the operands and the result have these dimensions, in the equation "P..ab,P..cd->P..ef"? */
static bool is_equation(const char *text, const char *a, const char *b, const char *c)
{
    const char *want[3] = {a, b, c};
    char part[3][PT2_DIMS + 1] = {""}, letter[4] = "";
    size_t n = 0, lead;
    int k = 0;

    for (; *text; text++) {
        if (*text == ' ' || *text == '>')
            continue;
        if (*text == ',' || *text == '-') {
            if (++k > 2)
                return false;
            n = 0;
            continue;
        }
        if (n >= PT2_DIMS)
            return false;
        part[k][n++] = *text;
        part[k][n] = 0;
    }
    lead = strlen(part[0]);
    if (k != 2 || lead < 2)
        return false;
    lead -= 2;
    for (k = 0; k < 3; k++) {
        if (strlen(part[k]) != lead + 2 || strncmp(part[k], part[0], lead) != 0)
            return false;
        for (int i = 0; i < 2; i++) { /* 'I', 'J', 'D' stand for any three letters */
            char *is = &letter[want[k][i] == 'I' ? 0 : want[k][i] == 'J' ? 1 : 2];
            const char at = part[k][lead + (size_t)i];

            if ((*is && *is != at) || memchr(part[0], at, lead))
                return false;
            *is = at;
        }
    }
    return letter[0] != letter[1] && letter[1] != letter[2] && letter[0] != letter[2];
}

static void einsum(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const char *equation = hvt__arg_string(g, n, "equation", "");
    pt2_value **in;
    const int count = hvt__canon_tensors(g, n, "tensors", &in);
    const bool transposes = is_equation(equation, "ID", "JD", "IJ"),
               fits = transposes || is_equation(equation, "IJ", "JD", "ID");

    if (count == 2 && fits && in[1]->ndim >= 2)
        hvt__canon_set(g, n, PT2_MATMUL, 2,
                       (pt2_value *[]){in[0], transposes ? swapped(g, n, in[1]) : in[1]});
    else
        hvt__pt2_refuse(
            g, n, "its equation is %.40s; it is known in attention only: softmax(queries @ keys') @ values",
            equation);
}

static void softmax(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int dim = x ? hvt__arg_dim(g, n, "dim", -1, x->ndim) : 0;

    hvt__canon_set(g, n, PT2_SOFTMAX, 1, &x);
    n->is = (pt2_attributes){.along = {dim}};
}

/* As the last operation the loss computes it itself, and of the same numbers it makes no others: see
 * hvt_pt2_info.log_softmax. */
static void log_softmax(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n);
    const int dim = hvt__arg_int(g, n, "dim", 1);

    if (!n->nout || n->out[0] != g->logits || !x)
        return; /* it stays unknown */
    if (x->ndim != 2 || (dim != 1 && dim != -1))
        hvt__pt2_refuse(g, n, "it is along dimension %d of %d; expected 1 of [N, classes]", dim, x->ndim);
    g->log_softmax = !g->failed;
    hvt__canon_set(g, n, PT2_CLONE, 1, &x);
}

/* ---- dropout ---- */

static void dropout(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.dropout = {.trains = hvt__arg_bool(g, n, "train", true)}};

    is.dropout.p = is.dropout.trains ? hvt__arg_float(g, n, "p", 0.5) : 0;
    hvt__canon_unary(g, n, (pt2_op)r->of);
    n->is = is;
}

static void empty(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_set(g, n, PT2_EMPTY, 0, NULL);
    if (n->nout)
        n->out[0]->computed = true;
}

static void bernoulli(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const double p = hvt__arg_float(g, n, "p", 0.5);

    hvt__canon_unary(g, n, PT2_BERNOULLI);
    n->is = (pt2_attributes){.dropout = {.p = p, .trains = true}};
}

/* ---- pooling and reductions ---- */

static void pool(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.pool = {.kind = (hvt_pooling_kind)r->of, .opts = {.size = {1, 1}}}};
    hvt_pool_opts *o = &is.pool.opts;
    int dilation[2] = {1, 1};

    hvt__arg_ints(g, n, "kernel_size", 2, o->size);
    o->stride[0] = o->size[0], o->stride[1] = o->size[1];
    hvt__arg_ints(g, n, "stride", 2, o->stride);
    hvt__arg_ints(g, n, "padding", 2, o->pad);
    hvt__arg_ints(g, n, "dilation", 2, dilation);
    o->ceil_mode = hvt__arg_bool(g, n, "ceil_mode", false);
    o->exclude_pad = !hvt__arg_bool(g, n, "count_include_pad", true);
    if (dilation[0] != 1 || dilation[1] != 1)
        hvt__pt2_refuse(g, n, "its dilation is %dx%d; expected 1x1", dilation[0], dilation[1]);
    if (hvt__arg(n, "divisor_override"))
        hvt__pt2_refuse(g, n, "it has a divisor_override; expected none");
    hvt__canon_unary(g, n, PT2_POOL);
    n->is = is;
}

static void adaptive_pool(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.pool = {.kind = (hvt_pooling_kind)r->of, .opts = {.size = {1, 1}}}};

    hvt__arg_ints(g, n, "output_size", 2, is.pool.opts.size);
    hvt__canon_unary(g, n, PT2_ADAPTIVE_POOL);
    n->is = is;
}

/* Of tokens, [N,C,T], to one: their mean. */
static void adaptive_pool_1d(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    int size = 1;

    hvt__arg_ints(g, n, "output_size", 1, &size);
    if (!x || x->ndim != 3 || size != 1)
        hvt__pt2_refuse(g, n, "it makes %d of the last dimension; expected 1 of the tokens of [N,C,T]", size);
    hvt__canon_unary(g, n, PT2_REDUCE);
    n->is = (pt2_attributes){.reduce = {.how = PT2_MEAN, .n = 1, .dim = {2}}};
}

static void reduce(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.reduce = {.how = (pt2_reduction)r->of}};
    const double order = r->of == PT2_NORM ? hvt__arg_float(g, n, "ord", 2) : 2;

    if (order != 2)
        hvt__pt2_refuse(g, n, "its order is %g; expected 2", order);
    if (r->of == PT2_MAX) /* max.dim */
        is.reduce.n = 1, is.reduce.dim[0] = hvt__arg_int(g, n, "dim", 0);
    else
        is.reduce.n = hvt__arg_list(g, n, "dim", PT2_DIMS, is.reduce.dim);
    hvt__canon_unary(g, n, PT2_REDUCE);
    n->is = is;
}

/* True if scale_factors, where they are given, make `to` of `from` pixels without rounding. */
static bool scales(const pt2_node *n, const int64_t *from, const int64_t *to, int dims)
{
    const pt2_arg *given = hvt__arg(n, "scale_factors");

    for (int i = 0; given && i < dims; i++)
        if (i >= given->n || !given->number || given->number[i].real * (double)from[i] != (double)to[i])
            return false;
    return true;
}

/* Interpolation to as many pixels as there are copies them in every mode. By whole factors the nearest pixel
 * is that of adaptive windows of one pixel each. */
void hvt__canon_upsample(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n), *y = n->nout ? n->out[0] : NULL;

    if (!x || !y || x->ndim < 3 || y->ndim != x->ndim) {
        hvt__pt2_refuse(g, n, "its output has other dimensions than its input");
        return;
    }
    if (hvt__pt2_same_sizes(x, y) && scales(n, x->size + 2, y->size + 2, x->ndim - 2)) {
        hvt__canon_set(g, n, PT2_CLONE, 1, &x);
        return;
    }
    if (!r)
        return; /* of another mode: it is unknown */
    if (x->ndim != 4 || !scales(n, x->size + 2, y->size + 2, 2))
        hvt__pt2_refuse(
            g, n, "its scale_factors are not those of %lldx%lld and %lldx%lld pixels, its input and output",
            (long long)x->size[2], (long long)x->size[3], (long long)y->size[2], (long long)y->size[3]);
    else if (!x->size[2] || !x->size[3] || y->size[2] % x->size[2] || y->size[3] % x->size[3])
        hvt__pt2_refuse(g, n, "it makes %lldx%lld pixels of %lldx%lld; expected whole multiples",
                        (long long)y->size[2], (long long)y->size[3], (long long)x->size[2],
                        (long long)x->size[3]);
    hvt__canon_set(g, n, PT2_ADAPTIVE_POOL, 1, &x);
    n->is = (pt2_attributes){
        .pool = {.kind = HVT_POOL_MEAN, .opts = {.size = {(int)y->size[2], (int)y->size[3]}}}};
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"aten.conv2d.default", convolution, 2},
    {"aten.conv2d.padding", convolution, 2},
    {"aten.conv1d.default", convolution, 1},
    {"aten.conv1d.padding", convolution, 1},
    {"aten.linear.default", linear},
    {"aten.batch_norm.default", batch_norm},
    {"aten.layer_norm.default", norm, PT2_LAYER_NORM, {NULL, 1e-5}},
    {"aten.rms_norm.default", norm, PT2_RMS_NORM, {NULL, FLT_EPSILON}},
    {"aten.group_norm.default", norm, PT2_GROUP_NORM, {NULL, 1e-5}},
    {"aten.instance_norm.default", norm, PT2_GROUP_NORM, {NULL, 1e-5}},
    {"aten.scaled_dot_product_attention.default", attention},
    {"aten.matmul.default", matmul},
    {"aten.bmm.default", matmul},
    {"aten.einsum.default", einsum},
    {"aten.softmax.int", softmax},
    {"aten.log_softmax.int", log_softmax},
    {"aten.dropout.default", dropout, PT2_DROPOUT},
    {"aten.feature_dropout.default", dropout, PT2_DROPOUT_CHANNELS},
    {"aten.empty.memory_format", empty},
    {"aten.new_empty.default", empty},
    {"aten.bernoulli.float", bernoulli},
    {"aten.max_pool2d.default", pool, HVT_POOL_MAX},
    {"aten.avg_pool2d.default", pool, HVT_POOL_MEAN},
    {"aten.adaptive_avg_pool2d.default", adaptive_pool, HVT_POOL_MEAN},
    {"aten.adaptive_max_pool2d.default", adaptive_pool, HVT_POOL_MAX},
    {"aten.adaptive_avg_pool1d.default", adaptive_pool_1d},
    {"aten.upsample_nearest2d.vec", hvt__canon_upsample},
    {"aten._upsample_nearest_exact2d.vec", hvt__canon_upsample},
    {"aten.mean.dim", reduce, PT2_MEAN},
    {"aten.sum.dim_IntList", reduce, PT2_SUM},
    {"aten.linalg_vector_norm.default", reduce, PT2_NORM},
    {"aten.amax.default", reduce, PT2_AMAX},
    {"aten.max.dim", reduce, PT2_MAX},
};

const pt2_rows hvt__pt2_layer_rows = {table, HVT_LEN(table)};
