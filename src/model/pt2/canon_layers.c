/*
 * Layers, dropout, pooling and reductions.
 */
#include "canon.h"

#include <ctype.h>
#include <float.h>

/* ---- layers ---- */

static const char *const weight_and_bias[] = {"input", "weight", "bias", "running_mean", "running_var"};

/* Turns n into an operation on its input and the first of these arguments. */
static void layer(pt2_graph *g, pt2_node *n, pt2_op op, const pt2_attributes *is, int count)
{
    pt2_value *in[HVT_LEN(weight_and_bias)] = {hvt__canon_first(g, n)};

    for (int i = 1; i < count; i++)
        in[i] = hvt__canon_tensor(g, n, weight_and_bias[i]);
    hvt__pt2_become(g, n, op, is, count, in);
}

/* A layer's weight, which must have this many dimensions. */
static const pt2_value *weight_of(pt2_graph *g, pt2_node *n, int dims)
{
    const pt2_value *w = hvt__canon_tensor(g, n, "weight");

    if (!w || w->ndim != dims)
        hvt__pt2_refuse(g, n, "its weight does not have %d dimensions", dims);
    return w;
}

/* The padding that padding="same" adds before and after n pixels. The convolution refuses a padding that is
 * too large. */
static void same_padding(int64_t kernel, int dilation, int *ret_before, int *ret_behind)
{
    const int64_t all = dilation * (kernel - 1), most = INT_MAX;

    *ret_before = (int)(all / 2 > most ? most : all / 2);
    *ret_behind = (int)(all - all / 2 > most ? most : all - all / 2);
}

static void convolution(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int dims = r->of, line = dims == 1;
    const pt2_value *w = weight_of(g, n, 2 + dims);
    int stride[2] = {1, 1}, pad[2] = {0}, dilation[2] = {1, 1};
    pt2_attributes is;
    hvt_conv2d_opts *o = &is.convolution;

    hvt__arg_ints(g, n, "stride", dims, stride + line);
    hvt__arg_ints(g, n, "dilation", dims, dilation + line);
    if (!strstr(n->target, ".padding"))
        hvt__arg_ints(g, n, "padding", dims, pad + line);
    is = (pt2_attributes){.convolution = {.filters = (int)w->size[0],
                                          .kernel_h = line ? 1 : (int)w->size[2],
                                          .kernel_w = (int)w->size[3 - line],
                                          .stride_h = stride[0],
                                          .stride_w = stride[1],
                                          .top = pad[0],
                                          .left = pad[1],
                                          .bottom = pad[0],
                                          .right = pad[1],
                                          .dilation_h = dilation[0],
                                          .dilation_w = dilation[1],
                                          .groups = hvt__arg_int(g, n, "groups", 1),
                                          .line = line}};
    if (strstr(n->target, ".padding") && !strcmp(hvt__arg_string(g, n, "padding", "valid"), "same")) {
        same_padding(o->kernel_h, o->dilation_h, &o->top, &o->bottom);
        same_padding(o->kernel_w, o->dilation_w, &o->left, &o->right);
    }
    layer(g, n, PT2_CONV, &is, 3);
}

static void transposed_convolution(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *w = weight_of(g, n, 4), *y = n->out[0];
    int stride[2] = {1, 1}, pad[2] = {0}, more[2] = {0}, dilation[2] = {1, 1};
    pt2_attributes is;

    hvt__arg_ints(g, n, "stride", 2, stride);
    hvt__arg_ints(g, n, "padding", 2, pad);
    hvt__arg_ints(g, n, "output_padding", 2, more);
    hvt__arg_ints(g, n, "dilation", 2, dilation);
    for (int i = 0; i < 2; i++)
        if (pad[i] < 0 || more[i] < 0 || more[i] >= stride[i])
            hvt__pt2_refuse(
                g, n,
                "its padding is %d, its output_padding %d, its stride %d; expected 0 or more, and "
                "an output_padding below the stride",
                pad[i], more[i], stride[i]);
    is = (pt2_attributes){.convolution = {.filters = y->ndim == 4 ? (int)y->size[1] : 0,
                                          .kernel_h = (int)w->size[2],
                                          .kernel_w = (int)w->size[3],
                                          .stride_h = stride[0],
                                          .stride_w = stride[1],
                                          .top = pad[0],
                                          .left = pad[1],
                                          .bottom = pad[0] - more[0],
                                          .right = pad[1] - more[1],
                                          .dilation_h = dilation[0],
                                          .dilation_w = dilation[1],
                                          .groups = hvt__arg_int(g, n, "groups", 1)}};
    layer(g, n, PT2_CONV_TRANSPOSE, &is, 3);
}

static void linear(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_attributes is = {.convolution = {.filters = (int)weight_of(g, n, 2)->size[0]}};

    layer(g, n, PT2_LINEAR, &is, 3);
}

static void batch_norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_attributes is = {.norm = {.trains = hvt__arg_bool(g, n, "training", false),
                                        .eps = hvt__arg_operand(g, n, &r->a),
                                        .momentum = hvt__arg_operand(g, n, &r->b)}};

    layer(g, n, PT2_BATCH_NORM, &is, 5);
}

/* layer_norm, rms_norm and group_norm */
static void norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_arg *shape = hvt__arg(n, "normalized_shape");
    const pt2_attributes is = {.norm = {.eps = hvt__arg_operand(g, n, &r->a),
                                        .dims = shape ? shape->n : 0,
                                        .groups = hvt__arg_int(g, n, "num_groups", 1)}};

    layer(g, n, (pt2_op)r->of, &is, 3);
}

/* An instance norm: a group norm with one channel a group. */
static void instance_norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n);
    const pt2_attributes is = {.norm = {.eps = hvt__arg_operand(g, n, &r->a), .groups = (int)x->size[1]}};

    if (hvt__arg(n, "running_mean"))
        hvt__pt2_refuse(g, n, "it has running statistics; expected track_running_stats=False");
    if (x->ndim != 4)
        hvt__pt2_refuse(g, n, "its input is not [N,C,H,W]");
    layer(g, n, PT2_GROUP_NORM, &is, 3);
}

static void attention(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[4] = {hvt__canon_given(g, n, "query"), hvt__canon_given(g, n, "key"),
                        hvt__canon_given(g, n, "value"), hvt__canon_tensor(g, n, "attn_mask")};
    const double drop = hvt__arg_float(g, n, "dropout_p", 0), scale = hvt__arg_float(g, n, "scale", 0);
    const pt2_attributes is = {
        .attention = {.scale = scale, .causal = hvt__arg_bool(g, n, "is_causal", false)}};

    if (drop != 0)
        hvt__pt2_refuse(g, n,
                        "it drops out %g of its weights; expected 0: give the layer dropout=0, also "
                        "nn.TransformerEncoderLayer(dropout=0), whose other dropouts are then 0, too, or "
                        "export in eval() mode",
                        drop);
    if (scale < 0 || (hvt__arg(n, "scale") && scale == 0))
        hvt__pt2_refuse(g, n, "its scale is %g; expected more than 0", scale);
    if (in[0]->ndim < 2 || in[1]->ndim != in[0]->ndim)
        hvt__pt2_refuse(g, n, "its queries and keys have no sizes");
    hvt__pt2_become(g, n, PT2_SDPA, &is, 4, in);
}

/* matmul, bmm, mm */
static void matmul(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[2] = {hvt__canon_first(g, n), hvt__canon_given(g, n, r->a.argument)};

    if (in[0]->ndim < 2 || in[1]->ndim < 2)
        hvt__pt2_refuse(g, n, "its arguments have %d and %d dimensions; expected 2 or more", in[0]->ndim,
                        in[1]->ndim);
    hvt__pt2_become(g, n, PT2_MATMUL, &(pt2_attributes){0}, 2, in);
}

/* The sizes of x, with 1 where `over` is true. */
static pt2_value reduced(const pt2_value *x, const bool *over)
{
    pt2_value like = *x;

    for (int i = 0; i < x->ndim; i++)
        like.size[i] = over[i] ? 1 : x->size[i];
    return like;
}

/* The sum or mean of x over these dimensions, which become 1. */
static pt2_value *reduced_by(pt2_graph *g, pt2_node *n, pt2_reduction how, pt2_value *x, const bool *over)
{
    const pt2_value like = reduced(x, over);
    pt2_attributes is = {.reduce = {.how = how}};

    for (int i = 0; i < x->ndim; i++)
        if (over[i])
            is.reduce.dim[is.reduce.n++] = i;
    return hvt__pt2_compute(g, n, n, PT2_REDUCE, &is, 1, &x, &like);
}

static pt2_value *combined(pt2_graph *g, pt2_node *n, hvt_binary op, pt2_value *a, pt2_value *b,
                           const pt2_value *like)
{
    const pt2_attributes is = {.binary = {.op = (int)op, .alpha = 1}};

    return hvt__pt2_compute(g, n, n, PT2_BINARY, &is, 2, (pt2_value *[]){a, b}, like);
}

/* weight_norm: v * (g / norm of v over all dimensions but one). */
static void weight_norm(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *v = hvt__canon_given(g, n, "v"), *gain = hvt__canon_given(g, n, "g"), *norm;
    const int dim = hvt__arg_int(g, n, "dim", 0);
    bool over[PT2_DIMS];

    for (int i = 0; i < v->ndim; i++)
        over[i] = dim == -1 || i != hvt__dim(g, n, dim, v->ndim);
    norm = reduced_by(g, n, PT2_SUM, combined(g, n, HVT_MUL, v, v, v), over);
    norm = hvt__pt2_compute(g, n, n, PT2_MAP, &(pt2_attributes){.map = {HVT_POW, 0.5, 0}}, 1, &norm, norm);
    norm = combined(g, n, HVT_DIV, gain, norm, norm);
    hvt__pt2_become(g, n, PT2_BINARY, &(pt2_attributes){.binary = {.op = HVT_MUL, .alpha = 1}}, 2,
                    (pt2_value *[]){v, norm});
}

/* mv, dot and vdot of weights. */
static void product_of_vectors(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *in[2] = {hvt__canon_first(g, n), hvt__canon_given(g, n, r->a.argument)};

    if (in[0]->computed || in[1]->computed)
        hvt__pt2_refuse(g, n, "its arguments depend on the images; expected parameters and constants");
    hvt__pt2_become(g, n, PT2_MATMUL, &(pt2_attributes){0}, 2, in);
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

/* True if the equation is `want` with other letters, maybe with batch dimensions in front of all operands. */
static bool is_equation(const char *text, const char *want)
{
    char is[64] = "", all[64] = "", letter[256] = {0}, next = 'a';
    size_t n = 0, lead;

    for (; *text && n + 1 < sizeof is; text++) {
        char *as = &letter[(unsigned char)*text];

        if (isalpha((unsigned char)*text) && !*as)
            *as = next++;
        if (*text != ' ')
            is[n++] = *as ? *as : *text;
    }
    lead = strcspn(is, ",") - 2;
    if (lead > PT2_DIMS)
        return false;
    n = 0;
    for (bool begins = true; *want; begins = !islower((unsigned char)*want++)) {
        if (begins && islower((unsigned char)*want))
            for (size_t i = 0; i < lead; i++)
                all[n++] = (char)('a' + i);
        all[n++] = (char)(*want + (islower((unsigned char)*want) ? lead : 0));
    }
    return !*text && !strcmp(is, all);
}

/* An operand of an equation: its letters, and where each group begins after the permutation. */
typedef struct term {
    char text[PT2_DIMS + 1];
    pt2_value *v;
} term;

/* Permutes x to this order of letters and views it in these sizes. */
static pt2_value *arranged(pt2_graph *g, pt2_node *n, const term *x, const char *order, int ndim,
                           const int64_t *size)
{
    pt2_attributes is = {.dims = {.n = x->v->ndim}};
    pt2_value like = *x->v, *y;

    for (int i = 0; i < x->v->ndim; i++) {
        is.dims.dim[i] = (int)(strchr(x->text, order[i]) - x->text);
        like.size[i] = x->v->size[is.dims.dim[i]];
    }
    y = hvt__pt2_compute(g, n, n, PT2_PERMUTE, &is, 1, &x->v, &like);
    like.ndim = ndim;
    memcpy(like.size, size, (size_t)ndim * sizeof *size);
    return hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &y, &like);
}

/* Splits "abc,bcd->ad" into the letters of both operands and of the result. False: another form. */
static bool parse(const char *text, term *x)
{
    int at = 0, k = 0;

    for (; *text; text++) {
        if (*text == ' ')
            continue;
        if (*text == ',' || (*text == '-' && text[1] == '>')) {
            text += *text == '-';
            at++, k = 0;
        } else if (!isalpha((unsigned char)*text) || at > 2 || k == PT2_DIMS || strchr(x[at].text, *text)) {
            return false;
        } else {
            x[at].text[k++] = *text;
        }
    }
    return at == 2;
}

/* Letters of both operands and the result are batch dimensions; letters of both operands alone are summed. */
static bool product_of(pt2_graph *g, pt2_node *n, term *x)
{
    char both[PT2_DIMS + 1] = "", inner[PT2_DIMS + 1] = "", own[2][PT2_DIMS + 1] = {"", ""}, order[2][32],
                         made[32];
    int64_t size[3][PT2_DIMS], of[256] = {0}, all[3] = {1, 1, 1}; /* rows, columns, summed */
    pt2_attributes is = {0};
    pt2_value *in[2], like = *n->out[0], *y;
    char alone = 0;
    int batch;

    if (*x[0].text == *x[2].text && !strchr(x[1].text, *x[0].text)) /* images */
        alone = *x[0].text;
    for (int i = 0; i < 2; i++)
        for (int k = 0; x[i].text[k]; k++) {
            const char c = x[i].text[k];
            const bool other = strchr(x[1 - i].text, c) || c == alone, out = strchr(x[2].text, c);
            char *to = other && out ? both : other ? inner : own[i];

            if ((!other && !out) || x[i].v->ndim != (int)strlen(x[i].text) ||
                (of[(int)c] && of[(int)c] != x[i].v->size[k]))
                return false;
            of[(int)c] = x[i].v->size[k];
            if (!strchr(to, c))
                to[strlen(to)] = c;
            if (to == own[i])
                all[i] *= of[(int)c];
            else if (to == inner && !i)
                all[2] *= of[(int)c];
        }
    batch = (int)strlen(both);
    if (batch + 2 > PT2_DIMS || (int)strlen(x[2].text) != like.ndim)
        return false;
    for (int i = 0; i < batch; i++) {
        size[0][i] = size[2][i] = of[(int)both[i]];
        size[1][i] = both[i] == alone ? 1 : of[(int)both[i]];
    }
    size[0][batch] = size[2][batch] = all[0], size[0][batch + 1] = size[1][batch] = all[2];
    size[1][batch + 1] = size[2][batch + 1] = all[1];
    snprintf(order[0], sizeof *order, "%s%s%s", both, own[0], inner);
    snprintf(order[1], sizeof *order, "%s%s%s", both + (alone != 0), inner, own[1]);
    snprintf(made, sizeof made, "%s%s%s", both, own[0], own[1]);
    for (int i = 0; i < 2; i++)
        in[i] = arranged(g, n, &x[i], order[i], batch + 2, size[i]);
    like.ndim = batch + 2;
    memcpy(like.size, size[2], sizeof *size);
    y = hvt__pt2_compute(g, n, n, PT2_MATMUL, NULL, 2, in, &like);
    like.ndim = is.dims.n = (int)strlen(made);
    for (int i = 0; i < like.ndim; i++) {
        like.size[i] = of[(int)made[i]];
        is.dims.dim[i] = (int)(strchr(made, x[2].text[i]) - made);
    }
    y = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &y, &like);
    hvt__pt2_become(g, n, PT2_PERMUTE, &is, 1, &y);
    return true;
}

static void einsum(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const char *equation = hvt__arg_string(g, n, "equation", "");
    pt2_value **in;
    const int count = hvt__canon_tensors(g, n, "tensors", &in);
    const bool transposes = is_equation(equation, "ab,cb->ac"),
               fits = transposes || is_equation(equation, "ab,bc->ac");

    term x[3] = {{""}, {""}, {""}};

    if (count != 2 || in[1]->ndim < 2 || (!fits && !parse(equation, x)))
        hvt__pt2_refuse(g, n, "its equation is %.40s; expected letters of two tensors", equation);
    if (!fits) {
        x[0].v = in[0], x[1].v = in[1];
        if (!product_of(g, n, x))
            hvt__pt2_refuse(g, n, "its equation is %.40s; expected a product of matrices", equation);
        return;
    }
    in[1] = transposes ? swapped(g, n, in[1]) : in[1];
    hvt__pt2_become(g, n, PT2_MATMUL, &(pt2_attributes){0}, 2, in);
}

static void softmax(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int dim = hvt__arg_dim(g, n, "dim", -1, hvt__canon_first(g, n)->ndim);

    hvt__canon_unary(g, n, PT2_SOFTMAX, (pt2_attributes){.along = {dim}});
}

/* A final log_softmax is dropped, since the loss computes it and it leaves its own input unchanged: see
 * hvt_pt2_info.log_softmax. */
static void log_softmax(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int ndim = hvt__canon_first(g, n)->ndim, dim = hvt__arg_int(g, n, "dim", 1);

    if (n->out[0] != g->logits)
        return; /* stays unknown */
    if (ndim != 2 || (dim != 1 && dim != -1))
        hvt__pt2_refuse(g, n, "it is along dimension %d of %d; expected 1 of [N, classes]", dim, ndim);
    g->log_softmax = true;
    hvt__canon_unary(g, n, PT2_CLONE, (pt2_attributes){0});
}

/* ---- dropout ---- */

static void dropout(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.dropout = {.trains = hvt__arg_bool(g, n, "train", true)}};

    is.dropout.p = is.dropout.trains ? hvt__arg_float(g, n, "p", 0.5) : 0;
    hvt__canon_unary(g, n, (pt2_op)r->of, is);
}

static void empty(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__pt2_become(g, n, (pt2_op)r->of, &(pt2_attributes){0}, 0, NULL);
    n->out[0]->computed = true;
}

static void bernoulli(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, PT2_BERNOULLI,
                     (pt2_attributes){.dropout = {.p = hvt__arg_float(g, n, "p", 0.5), .trains = true}});
}

/* ---- pooling and reductions ---- */

/* 1-D pooling of [N,C,T] is pooling of images with one line. */
static void pool_line(pt2_graph *g, pt2_node *n, pt2_attributes is)
{
    pt2_value *x = hvt__canon_first(g, n), like = *x, *y = n->out[0];

    if (x->ndim != 3 || y->ndim != 3)
        hvt__pt2_refuse(g, n, "its input has %d dimensions; expected [N,C,T]", x->ndim);
    like.ndim = 4, like.size[2] = 1, like.size[3] = x->size[2];
    x = hvt__pt2_compute(g, n, n, PT2_VIEW, NULL, 1, &x, &like);
    like.size[3] = y->size[2];
    x = hvt__pt2_compute(g, n, n, PT2_POOL, &is, 1, &x, &like);
    hvt__pt2_become(g, n, PT2_VIEW, &(pt2_attributes){0}, 1, &x);
}

static void pool(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const int line = strstr(n->target, "pool1d") != NULL, dims = 2 - line;
    pt2_attributes is = {.pool = {.kind = (hvt_pooling_kind)r->of, .opts = {.size = {1, 1}}}};
    hvt_pool_opts *o = &is.pool.opts;
    int dilation[2] = {1, 1};

    hvt__arg_ints(g, n, "kernel_size", dims, o->size + line);
    o->stride[0] = o->size[0], o->stride[1] = o->size[1];
    hvt__arg_ints(g, n, "stride", dims, o->stride + line);
    hvt__arg_ints(g, n, "padding", dims, o->pad + line);
    hvt__arg_ints(g, n, "dilation", dims, dilation + line);
    o->ceil_mode = hvt__arg_bool(g, n, "ceil_mode", false);
    o->exclude_pad = !hvt__arg_bool(g, n, "count_include_pad", true);
    if (dilation[0] != 1 || dilation[1] != 1)
        hvt__pt2_refuse(g, n, "its dilation is %dx%d; expected 1x1", dilation[0], dilation[1]);
    if (hvt__arg(n, "divisor_override"))
        hvt__pt2_refuse(g, n, "it has a divisor_override; expected none");
    if (line)
        pool_line(g, n, is);
    else
        hvt__canon_unary(g, n, PT2_POOL, is);
}

static void adaptive_pool(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.pool = {.kind = (hvt_pooling_kind)r->of, .opts = {.size = {1, 1}}}};

    hvt__arg_ints(g, n, "output_size", 2, is.pool.opts.size);
    hvt__canon_unary(g, n, PT2_ADAPTIVE_POOL, is);
}

/* Mean over the tokens of [N,C,T]. */
static void adaptive_pool_1d(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    int size = 1;

    hvt__arg_ints(g, n, "output_size", 1, &size);
    if (hvt__canon_first(g, n)->ndim != 3 || size != 1)
        hvt__pt2_refuse(g, n, "it makes %d of the last dimension; expected 1 of the tokens of [N,C,T]", size);
    hvt__canon_unary(g, n, PT2_REDUCE, (pt2_attributes){.reduce = {.how = PT2_MEAN, .n = 1, .dim = {2}}});
}

static void reduce(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_attributes is = {.reduce = {.how = (pt2_reduction)r->of, .n = 1}};
    const double order = r->of == PT2_NORM ? hvt__arg_float(g, n, "ord", 2) : 2;

    if (order != 2)
        hvt__pt2_refuse(g, n, "its order is %g; expected 2", order);
    if (r->of == PT2_MAX) /* max.dim */
        is.reduce.dim[0] = hvt__arg_int(g, n, "dim", 0);
    else
        is.reduce.n = hvt__arg_list(g, n, "dim", PT2_DIMS, is.reduce.dim);
    for (int i = 0; i < is.reduce.n; i++)
        is.reduce.dim[i] = hvt__dim(g, n, is.reduce.dim[i], hvt__canon_first(g, n)->ndim);
    if (!is.reduce.n) /* all of them */
        for (is.reduce.n = 0; is.reduce.n < hvt__canon_first(g, n)->ndim; is.reduce.n++)
            is.reduce.dim[is.reduce.n] = is.reduce.n;
    hvt__canon_unary(g, n, PT2_REDUCE, is);
}

/* var and std: (mean of (x - mean)^2) * n / (n - correction); std is its root. */
static void variance(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    pt2_value *x = hvt__canon_first(g, n), like = *x, *mean, *apart;
    pt2_attributes is = {.reduce = {.how = PT2_MEAN}};
    double all = 1, rest;

    is.reduce.n = hvt__arg_list(g, n, "dim", PT2_DIMS, is.reduce.dim);
    if (!is.reduce.n) /* all of them */
        for (; is.reduce.n < x->ndim; is.reduce.n++)
            is.reduce.dim[is.reduce.n] = is.reduce.n;
    for (int i = 0; i < is.reduce.n; i++) {
        const int dim = hvt__dim(g, n, is.reduce.dim[i], x->ndim);

        all *= (double)x->size[dim];
        like.size[dim] = 1;
    }
    rest = all - (hvt__arg(n, "correction") ? hvt__arg_float(g, n, "correction", 1)
                                            : hvt__arg_bool(g, n, "unbiased", true));
    if (!is.reduce.n || !(rest > 0))
        hvt__pt2_refuse(g, n, "its %d dimensions have %g elements; expected more", is.reduce.n, all);
    mean = hvt__pt2_compute(g, n, n, PT2_REDUCE, &is, 1, &x, &like);
    if (n->nout > 1) { /* var_mean */
        pt2_node *second = hvt__pt2_node(g, n, n, PT2_VIEW);

        hvt__pt2_inputs(g, second, 1, &mean);
        hvt__pt2_outputs(g, second, 1, &n->out[1]);
        n->nout = 1;
    }
    apart = hvt__pt2_compute(g, n, n, PT2_BINARY, &(pt2_attributes){.binary = {.op = HVT_SUB, .alpha = 1}}, 2,
                             (pt2_value *[]){x, mean}, x);
    apart = hvt__pt2_compute(g, n, n, PT2_BINARY, &(pt2_attributes){.binary = {.op = HVT_MUL, .alpha = 1}}, 2,
                             (pt2_value *[]){apart, apart}, x);
    mean = hvt__canon_before(g, n, PT2_REDUCE, is, 1, &apart);
    if (r->of)
        mean =
            hvt__canon_before(g, n, PT2_MAP, (pt2_attributes){.map = {HVT_AFFINE, all / rest, 0}}, 1, &mean);
    is = (pt2_attributes){.map = {r->of ? HVT_POW : HVT_AFFINE, r->of ? 0.5 : all / rest, 0}};
    hvt__pt2_become(g, n, PT2_MAP, &is, 1, &mean);
}

/* im2col and col2im: torch.nn.functional.unfold and fold */
static void windows(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    int kernel[2] = {1, 1}, dilation[2] = {1, 1}, pad[2] = {0}, stride[2] = {1, 1};

    hvt__arg_ints(g, n, "kernel_size", 2, kernel);
    hvt__arg_ints(g, n, "dilation", 2, dilation);
    hvt__arg_ints(g, n, "padding", 2, pad);
    hvt__arg_ints(g, n, "stride", 2, stride);
    for (int i = 0; i < 2; i++)
        if (kernel[i] < 1 || dilation[i] < 1 || stride[i] < 1 || pad[i] < 0)
            hvt__pt2_refuse(g, n,
                            "its windows have a size, dilation or stride below 1, or a padding below 0");
    hvt__canon_unary(g, n, (pt2_op)r->of,
                     (pt2_attributes){.convolution = {.kernel_h = kernel[0],
                                                      .kernel_w = kernel[1],
                                                      .stride_h = stride[0],
                                                      .stride_w = stride[1],
                                                      .top = pad[0],
                                                      .left = pad[1],
                                                      .dilation_h = dilation[0],
                                                      .dilation_w = dilation[1]}});
}

/* The scale factor of image dimension i; 0: not given. */
static double scale_of(const pt2_node *n, int i)
{
    const pt2_arg *given = hvt__arg(n, "scale_factors");

    return given && given->number && i < given->n ? given->number[i].real : 0;
}

/* True if the scale factors, where given, turn `from` pixels into exactly `to`. */
static bool scales(const pt2_node *n, const int64_t *from, const int64_t *to, int dims)
{
    for (int i = 0; i < dims; i++)
        if (scale_of(n, i) != 0 && scale_of(n, i) * (double)from[i] != (double)to[i])
            return false;
    return true;
}

static void interpolate(pt2_graph *g, pt2_node *n, hvt_interpolation kind, const int64_t *to)
{
    const pt2_attributes is = {.interpolate = {.kind = kind,
                                               .height = (int)to[0],
                                               .width = (int)to[1],
                                               .scale_h = scale_of(n, 0),
                                               .scale_w = scale_of(n, 1),
                                               .align_corners = hvt__arg_bool(g, n, "align_corners", false),
                                               .antialias = strstr(n->target, "_aa") != NULL}};

    hvt__canon_unary(g, n, PT2_INTERPOLATE, is);
}

/* Interpolation to the same size is a copy in every mode. Nearest interpolation by whole factors is adaptive
 * pooling with windows of one pixel. */
void hvt__canon_upsample(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    const pt2_value *x = hvt__canon_first(g, n), *y = n->out[0];
    const int64_t *from = x->size + 2, *to = y->size + 2;

    if (x->ndim < 3 || y->ndim != x->ndim)
        hvt__pt2_refuse(g, n, "its output has other dimensions than its input");
    if (hvt__pt2_same_sizes(x, y) && scales(n, from, to, x->ndim - 2)) {
        hvt__canon_unary(g, n, PT2_CLONE, (pt2_attributes){0});
        return;
    }
    if (!r)
        return; /* another mode stays unknown */
    if (x->ndim != 4)
        hvt__pt2_refuse(g, n, "its input has %d dimensions; expected [N,C,H,W]", x->ndim);
    if ((r->of == HVT_NEAREST || r->of == HVT_NEAREST_EXACT) && scales(n, from, to, 2) && from[0] &&
        from[1] && to[0] % from[0] == 0 && to[1] % from[1] == 0)
        hvt__canon_unary(
            g, n, PT2_ADAPTIVE_POOL,
            (pt2_attributes){.pool = {.kind = HVT_POOL_MEAN, .opts = {.size = {(int)to[0], (int)to[1]}}}});
    else
        interpolate(g, n, (hvt_interpolation)r->of, to);
}

/* pixel_shuffle, pixel_unshuffle and channel_shuffle */
static void shuffle(pt2_graph *g, pt2_node *n, const pt2_row *r)
{
    hvt__canon_unary(g, n, (pt2_op)r->of, (pt2_attributes){.groups = hvt__arg_int(g, n, r->a.argument, 1)});
}

/* ---- the table ---- */

static const pt2_row table[] = {
    {"conv2d conv2d.padding", convolution, 2},
    {"conv1d conv1d.padding", convolution, 1},
    {"conv_transpose2d.input", transposed_convolution},
    {"linear", linear},
    {"batch_norm", batch_norm, 0, {"eps", 1e-5}, {"momentum", 0.1}},
    {"layer_norm", norm, PT2_LAYER_NORM, {"eps", 1e-5}},
    {"rms_norm", norm, PT2_RMS_NORM, {"eps", FLT_EPSILON}},
    {"group_norm", norm, PT2_GROUP_NORM, {"eps", 1e-5}},
    {"instance_norm", instance_norm, 0, {"eps", 1e-5}},
    {"scaled_dot_product_attention", attention},
    {"matmul", matmul, 0, {"other", 0}},
    {"bmm mm", matmul, 0, {"mat2", 0}},
    {"mv", product_of_vectors, 0, {"vec", 0}},
    {"dot", product_of_vectors, 0, {"tensor", 0}},
    {"vdot", product_of_vectors, 0, {"other", 0}},
    {"_weight_norm _weight_norm_interface", weight_norm},
    {"einsum", einsum},
    {"softmax.int", softmax},
    {"log_softmax.int", log_softmax},
    {"dropout", dropout, PT2_DROPOUT},
    {"feature_dropout", dropout, PT2_DROPOUT_CHANNELS},
    {"empty.memory_format new_empty", empty, PT2_EMPTY},
    {"rand", empty, PT2_RAND},
    {"bernoulli.float", bernoulli},
    {"max_pool1d max_pool2d", pool, HVT_POOL_MAX},
    {"avg_pool1d avg_pool2d", pool, HVT_POOL_MEAN},
    {"adaptive_avg_pool2d", adaptive_pool, HVT_POOL_MEAN},
    {"adaptive_max_pool2d", adaptive_pool, HVT_POOL_MAX},
    {"adaptive_avg_pool1d", adaptive_pool_1d},
    {"upsample_nearest2d.vec", hvt__canon_upsample, HVT_NEAREST},
    {"_upsample_nearest_exact2d.vec", hvt__canon_upsample, HVT_NEAREST_EXACT},
    {"upsample_bilinear2d.vec _upsample_bilinear2d_aa.vec", hvt__canon_upsample, HVT_BILINEAR},
    {"upsample_bicubic2d.vec _upsample_bicubic2d_aa.vec", hvt__canon_upsample, HVT_BICUBIC},
    {"pixel_shuffle", shuffle, PT2_PIXEL_SHUFFLE, {"upscale_factor", 0}},
    {"pixel_unshuffle", shuffle, PT2_PIXEL_UNSHUFFLE, {"downscale_factor", 0}},
    {"channel_shuffle", shuffle, PT2_SHUFFLE, {"groups", 0}},
    {"mean mean.dim", reduce, PT2_MEAN},
    {"sum sum.dim_IntList", reduce, PT2_SUM},
    {"linalg_vector_norm", reduce, PT2_NORM},
    {"amax", reduce, PT2_AMAX},
    {"var var.dim var.correction var_mean var_mean.dim var_mean.correction", variance, 0},
    {"std std.dim std.correction std_mean std_mean.dim std_mean.correction", variance, 1},
    {"im2col", windows, PT2_IM2COL},
    {"col2im", windows, PT2_COL2IM},
    {"max.dim", reduce, PT2_MAX},
};

const pt2_rows hvt__pt2_layer_rows = {table, HVT_LEN(table)};
