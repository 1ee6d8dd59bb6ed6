/*
 * Computed filters and biases: operations on parameters and constants become tensors of weights on the
 * tape (hvt_weight_parameter() and others). A pass before the layout finds these operations; each is laid
 * out when the first layer reads its result.
 *
 * On the tape the node of a tensor is 1 x 1 x elements; its dimensions are those of the graph's value.
 */
#include "layout.h"

#include <math.h>

enum { MOST_DIMS = 4, DEEP = 200 /* limit for operations that depend on one another */ };

/* ---- which operations compute weights ---- */

static bool is_layer(const pt2_node *n)
{
    return n->op == PT2_CONV || n->op == PT2_CONV_TRANSPOSE || n->op == PT2_LINEAR;
}

/* True if every reader of v uses it as a weight or bias. */
static bool leads_to_weights(const pt2_value *v)
{
    bool all = v->nuses > 0 && !v->computed;

    for (int i = 0; i < v->nuses && all; i++)
        all = v->use[i]->computes_weights || (is_layer(v->use[i]) && v->use[i]->in[0] != v);
    return all;
}

static bool is_parameter(const pt2_value *v)
{
    return v->source == PT2_TRAINED || (v->source == PT2_BUFFER && v->constant == PT2_SOFT);
}

/* True if weight v can be the layer's own parameter. */
static bool is_own(const pt2_value *v)
{
    return v->source == PT2_TRAINED && !v->is_tensor &&
           (hvt__pt2_ends_in(v->state, ".weight") || hvt__pt2_ends_in(v->state, "_weight"));
}

bool hvt__lay_reads_tensors(const pt2_node *n)
{
    const pt2_value *w = hvt__pt2_input(n, 1), *b = hvt__pt2_input(n, 2);

    return w && (!is_own(w) || (b && (b->source != PT2_TRAINED || b->is_tensor)));
}

void hvt__lay_find_weights(pt2_graph *g)
{
    for (pt2_node *n = g->last; n; n = n->before) {
        n->computes_weights = n->nout > 0;
        for (int i = 0; i < n->nout; i++)
            n->computes_weights = n->computes_weights && leads_to_weights(n->out[i]);
        for (int i = 0; i < n->nin && n->computes_weights; i++)
            if (n->in[i] && is_parameter(n->in[i]))
                n->in[i]->is_tensor = true;
    }
}

/* ---- nodes ---- */

/* A tensor and its dimensions, during the layout. */
typedef struct tensor {
    pt2_value *v;
    int ndim, dim[MOST_DIMS];
} tensor;

static int64_t elements(const tensor *t)
{
    int64_t n = 1;

    for (int i = 0; i < MOST_DIMS && i < t->ndim; i++)
        n *= t->dim[i];
    return n;
}

static tensor sized(pt2_layout *l, pt2_node *by, const pt2_value *v)
{
    tensor t = {.ndim = v->ndim};

    if (v->ndim < 0 || v->ndim > MOST_DIMS)
        hvt__pt2_refuse(l->g, by, "it makes a weight of more than %d dimensions", MOST_DIMS);
    for (int i = 0; i < v->ndim; i++) {
        if (v->size[i] < 1 || hvt__pt2_count(v->ndim, v->size) > INT_MAX)
            hvt__pt2_refuse(l->g, by, "it makes a weight of no element, or of more than %d", INT_MAX);
        t.dim[i] = (int)v->size[i];
    }
    return t;
}

/* Appends an operation that makes tensor t. */
static tensor emit(pt2_layout *l, pt2_op op, pt2_attributes is, int nin, const tensor *in, tensor t)
{
    pt2_value *v[2] = {in ? in[0].v : NULL, nin > 1 ? in[1].v : NULL};

    if (op != PT2_MAP && op != PT2_BINARY) {
        is.tensor.ndim = t.ndim;
        memcpy(is.tensor.dim, t.dim, sizeof t.dim);
    }
    t.v = hvt__emit(l, op, &is, nin, v, 1, 1, elements(&t));
    return t;
}

static tensor map(pt2_layout *l, tensor x, int f, double a, double b)
{
    x.v = f == HVT_AFFINE ? hvt__emit_affine(l, x.v, a, b) : hvt__emit_map(l, x.v, f, a, b);
    return x;
}

static tensor combine(pt2_layout *l, int op, tensor a, tensor b)
{
    tensor y = {.ndim = a.ndim > b.ndim ? a.ndim : b.ndim};

    for (int i = 1; i <= y.ndim; i++) {
        const int u = i > a.ndim ? 1 : a.dim[a.ndim - i], v = i > b.ndim ? 1 : b.dim[b.ndim - i];

        y.dim[y.ndim - i] = u == 1 ? v : u;
    }
    return emit(l, PT2_BINARY, (pt2_attributes){.binary = {.op = op}}, 2, (tensor[]){a, b}, y);
}

static bool has_dimensions(int ndim, const int *dim, const tensor *t)
{
    return ndim == t->ndim && !memcmp(dim, t->dim, (size_t)ndim * sizeof *dim);
}

/* Reshapes x. Of successive reshapes only the last one stays. */
static tensor reshaped(pt2_layout *l, tensor x, tensor as)
{
    pt2_attributes is = {.tensor = {.dense = true}};
    const pt2_node *n = hvt__pt2_maker(x.v, PT2_WEIGHT_VIEW);

    if (has_dimensions(x.ndim, x.dim, &as))
        return x;
    if (elements(&x) != elements(&as))
        REFUSE(l, "a view of its weight has another number of elements");
    for (; n && n->is.tensor.dense; n = hvt__pt2_maker(x.v, PT2_WEIGHT_VIEW))
        x.v = n->in[0];
    n = x.v->producer;
    as.v = x.v;
    if (n->op != PT2_MAP && n->op != PT2_BINARY && has_dimensions(n->is.tensor.ndim, n->is.tensor.dim, &as))
        return as;
    return emit(l, PT2_WEIGHT_VIEW, is, 1, &x, as);
}

static tensor matrix(pt2_layout *l, tensor x, int rows, int columns)
{
    return reshaped(l, x, (tensor){.ndim = 2, .dim = {rows, columns}});
}

/* Sums over these dimensions, which become 1. */
static tensor summed(pt2_layout *l, tensor x, const bool *over)
{
    pt2_attributes is = {0};
    tensor y = x;

    for (int i = 0; i < x.ndim; i++) {
        is.tensor.over[i] = over[i];
        y.dim[i] = over[i] ? 1 : x.dim[i];
    }
    return emit(l, PT2_WEIGHT_SUM, is, 1, &x, y);
}

/* ---- operations ---- */

static tensor tensor_of(pt2_layout *l, pt2_node *by, pt2_value *v);

static tensor input(pt2_layout *l, pt2_node *n, int i)
{
    if (i >= n->nin || !n->in[i])
        hvt__pt2_refuse(l->g, n, "one of its arguments is missing");
    return tensor_of(l, n, n->in[i]);
}

static tensor side_by_side(pt2_layout *l, int count, pt2_value *const *in, tensor y, int along)
{
    pt2_attributes is = {.tensor = {.ndim = y.ndim, .along = along}};

    memcpy(is.tensor.dim, y.dim, sizeof y.dim);
    y.v = hvt__emit(l, PT2_WEIGHT_CONCAT, &is, count, in, 1, 1, elements(&y));
    return y;
}

static void dense_strides(const tensor *x, int stride[MOST_DIMS])
{
    int step = 1;

    for (int i = x->ndim - 1; i >= 0; step *= x->dim[i--])
        stride[i] = step;
}

/* Repeats x to y's dimensions by concatenation; dimensions of 1 broadcast anyway. */
static tensor repeat(pt2_layout *l, pt2_node *n)
{
    tensor x = input(l, n, 0), y = sized(l, n, n->out[0]);
    const int front = y.ndim - x.ndim;
    pt2_attributes is = {0};
    int stride[MOST_DIMS] = {0};

    for (int i = 0; i < x.ndim; i++) {
        const int times = front < 0 ? 0 : y.dim[front + i] / x.dim[i];
        pt2_value **in;

        if (times < 1 || times * x.dim[i] != y.dim[front + i])
            hvt__pt2_refuse(l->g, n, "its output does not repeat its input");
        if (x.dim[i] == 1 || times == 1)
            continue;
        in = hvt__pt2_make(l->g, (size_t)times * sizeof(pt2_value *));
        for (int k = 0; k < times; k++)
            in[k] = x.v;
        x.dim[i] = y.dim[front + i];
        x = side_by_side(l, times, in, x, i);
    }
    dense_strides(&x, stride);
    for (int i = 0; i < x.ndim; i++)
        is.tensor.stride[front + i] = x.dim[i] == y.dim[front + i] ? stride[i] : 0;
    return emit(l, PT2_WEIGHT_VIEW, is, 1, &x, y);
}

/* permute and slice: strides over the elements of x */
static tensor view(pt2_layout *l, pt2_node *n)
{
    const tensor x = input(l, n, 0);
    tensor y = sized(l, n, n->out[0]);
    pt2_attributes is = {0};
    int stride[MOST_DIMS] = {0};

    dense_strides(&x, stride);
    if (n->op == PT2_PERMUTE) {
        for (int i = 0; i < y.ndim; i++)
            is.tensor.stride[i] = stride[n->is.dims.dim[i]];
    } else {
        memcpy(is.tensor.stride, stride, sizeof stride);
        is.tensor.first = (int)n->is.slice.first * stride[n->is.slice.dim];
        is.tensor.stride[n->is.slice.dim] *= (int)n->is.slice.step;
    }
    return emit(l, PT2_WEIGHT_VIEW, is, 1, &x, y);
}

/* A tensor op a number. */
static tensor with_number(pt2_layout *l, pt2_node *n, tensor x)
{
    const double alpha = n->is.binary.alpha, number = n->is.binary.number;
    const bool reversed = n->is.binary.reversed;

    switch (n->is.binary.op) {
    case HVT_ADD:
        return map(l, x, HVT_AFFINE, 1, alpha * number);
    case HVT_SUB:
        return reversed ? map(l, x, HVT_AFFINE, -alpha, number) : map(l, x, HVT_AFFINE, 1, -alpha * number);
    case HVT_MUL:
        return map(l, x, HVT_AFFINE, number, 0);
    case HVT_DIV:
        return reversed ? map(l, map(l, x, HVT_POW, -1, 0), HVT_AFFINE, number, 0)
                        : map(l, x, HVT_AFFINE, 1 / number, 0);
    case HVT_MAXIMUM:
        return map(l, x, HVT_HARDTANH, number, INFINITY);
    case HVT_MINIMUM:
        return map(l, x, HVT_HARDTANH, -INFINITY, number);
    default:
        hvt__pt2_refuse(l->g, n,
                        "it is supported only for constants; this weight is computed from parameters");
    }
}

static tensor binary(pt2_layout *l, pt2_node *n)
{
    tensor x = input(l, n, 0), y;

    if (n->is.binary.has_number)
        return with_number(l, n, x);
    if (n->is.binary.op >= HVT_BINARIES)
        hvt__pt2_refuse(l->g, n,
                        "it is supported only for constants; this weight is computed from parameters");
    y = input(l, n, 1);
    return combine(l, n->is.binary.op, x, map(l, y, HVT_AFFINE, n->is.binary.alpha, 0));
}

static tensor length(pt2_layout *l, tensor x, const bool *over)
{
    return map(l, summed(l, combine(l, HVT_MUL, x, x), over), HVT_POW, 0.5, 0);
}

static tensor reduce(pt2_layout *l, pt2_node *n)
{
    const tensor x = input(l, n, 0), y = sized(l, n, n->out[0]);
    bool over[MOST_DIMS] = {false};
    tensor sum;

    for (int i = 0; i < x.ndim; i++)
        over[i] = n->is.reduce.n == 0;
    for (int i = 0; i < n->is.reduce.n; i++) {
        const int dim = n->is.reduce.dim[i] + (n->is.reduce.dim[i] < 0 ? x.ndim : 0);

        if (dim < 0 || dim >= x.ndim)
            hvt__pt2_refuse(l->g, n, "it reduces dimension %d of %d", n->is.reduce.dim[i], x.ndim);
        over[dim] = true;
    }
    if (n->is.reduce.how == PT2_NORM)
        return reshaped(l, length(l, x, over), y);
    if (n->is.reduce.how != PT2_SUM && n->is.reduce.how != PT2_MEAN)
        hvt__pt2_refuse(l->g, n, "a weight is computed with it; expected a sum, a mean or a norm");
    sum = summed(l, x, over);
    if (n->is.reduce.how == PT2_MEAN)
        sum = map(l, sum, HVT_AFFINE, (double)elements(&sum) / (double)elements(&x), 0);
    return reshaped(l, sum, y);
}

/* x / clamp(length of x along a dimension, least) */
static tensor normalise(pt2_layout *l, pt2_node *n)
{
    const tensor x = input(l, n, 0);
    bool over[MOST_DIMS] = {false};
    tensor by;

    over[n->is.normalise.dim] = true;
    by = length(l, x, over);
    by = n->is.normalise.clamped ? map(l, by, HVT_HARDTANH, n->is.normalise.least, INFINITY) : by;
    return combine(l, HVT_DIV, x, by);
}

/* Products of vectors and matrices, as torch.matmul; only the first factor may have more dimensions. */
static tensor matmul(pt2_layout *l, pt2_node *n)
{
    const tensor a = input(l, n, 0), b = input(l, n, 1);
    const int depth = a.ndim ? a.dim[a.ndim - 1] : 0;
    tensor x[2];

    if (b.ndim > 2 || depth < 1 || b.ndim < 1)
        hvt__pt2_refuse(l->g, n, "a weight is computed with it; expected matrices or vectors");
    x[0] = matrix(l, a, (int)(elements(&a) / depth), depth);
    x[1] = matrix(l, b, depth, (int)(elements(&b) / depth));
    x[0] = emit(l, PT2_WEIGHT_MATMUL, (pt2_attributes){0}, 2, x,
                (tensor){.ndim = 2, .dim = {x[0].dim[0], x[1].dim[1]}});
    return reshaped(l, x[0], sized(l, n, n->out[0]));
}

/* F.batch_norm(w.reshape(1, K, -1), None, None, training=True): standardised filters. */
static tensor batch_norm(pt2_layout *l, pt2_node *n)
{
    const tensor x = input(l, n, 0);
    pt2_attributes is = {.tensor = {.eps = n->is.norm.eps}};
    tensor y;
    int k;

    if (x.ndim < 2 || x.dim[0] != 1 || !n->is.norm.trains || n->in[3] || n->in[4])
        hvt__pt2_refuse(l->g, n,
                        "a weight is computed with it; expected [1,K,..], training=True and no "
                        "running statistics");
    k = x.dim[1];
    y = matrix(l, x, k, (int)(elements(&x) / k));
    y = emit(l, PT2_WEIGHT_STANDARDISE, is, 1, &y, y);
    for (int i = 1; i <= 2; i++)
        if (n->in[i])
            y = combine(l, i == 1 ? HVT_MUL : HVT_ADD, y, matrix(l, input(l, n, i), k, 1));
    return reshaped(l, y, x);
}

static tensor concat(pt2_layout *l, pt2_node *n)
{
    pt2_value **in = hvt__pt2_make(l->g, (size_t)n->nin * sizeof *in);

    for (int i = 0; i < n->nin; i++)
        in[i] = input(l, n, i).v;
    return side_by_side(l, n->nin, in, sized(l, n, n->out[0]), n->is.along.dim);
}

static tensor computed(pt2_layout *l, pt2_node *n)
{
    switch (n->op) {
    case PT2_VIEW:
    case PT2_CAST:
        return reshaped(l, input(l, n, 0), sized(l, n, n->out[0]));
    case PT2_PERMUTE:
    case PT2_SLICE:
        return view(l, n);
    case PT2_EXPAND:
    case PT2_REPEAT:
        return repeat(l, n);
    case PT2_MAP:
        if (n->is.map.f < HVT_FUNCTIONS)
            return map(l, input(l, n, 0), n->is.map.f, n->is.map.a, n->is.map.b);
        break;
    case PT2_BINARY:
        return binary(l, n);
    case PT2_REDUCE:
        return reduce(l, n);
    case PT2_NORMALISE:
        return normalise(l, n);
    case PT2_MATMUL:
        return matmul(l, n);
    case PT2_BATCH_NORM:
        return batch_norm(l, n);
    case PT2_CAT:
        return concat(l, n);
    default:
        break;
    }
    hvt__pt2_refuse(l->g, n,
                    "a weight is computed with it, which is not supported; expected sums, products, "
                    "functions, views, batch_norm or weight_norm");
}

/* ---- leaves ---- */

/* A parameter, or a buffer of the state_dict, as a tensor. */
static tensor state(pt2_layout *l, pt2_node *by, const pt2_value *v)
{
    const tensor t = sized(l, by, v);
    const bool is_buffer = v->source == PT2_BUFFER;
    pt2_attributes is = {.tensor = {.is_buffer = is_buffer,
                                    .deviation = v->ndim > 1 && !is_buffer ? 0.02 : 0,
                                    .init = v->ndim > 1 || hvt__pt2_ends_in(v->state, "bias") ? 0 : 1},
                         .layer = v->state};

    hvt__lay_keep_layer(l, v->state);
    return emit(l, PT2_WEIGHT, is, 0, NULL, t);
}

/* A constant as a tensor. */
static tensor numbers(pt2_layout *l, pt2_node *by, pt2_value *v)
{
    const pt2_array *k = hvt__array_numbers_of(l->g, by, v);
    const tensor t = sized(l, by, v);
    pt2_attributes is = {0};
    int64_t i = 0;
    float *x;

    if (!k)
        hvt__pt2_refuse(l->g, by, "a weight is computed with it; expected parameters and constants");
    x = hvt__pt2_make(l->g, (size_t)(elements(&t) + 1) * sizeof *x);
    PT2_EACH(v->ndim, v->size, at)
    x[i++] = (float)k->number[hvt__array_element(k, v->ndim, at)];
    is.tensor.values = x;
    return emit(l, PT2_WEIGHT_NUMBERS, is, 0, NULL, t);
}

/* Lays out v, which node `by` reads, as a tensor. */
static tensor tensor_of(pt2_layout *l, pt2_node *by, pt2_value *v)
{
    tensor t = {0};

    if (v->refused)
        hvt__pt2_give_up(l->g);
    if (l->depth > DEEP)
        hvt__pt2_refuse(l->g, by, "its weight takes more than %d operations, each on the result of another",
                        DEEP);
    if (v->computed)
        hvt__pt2_refuse(l->g, by,
                        "its weight depends on the images; expected parameters and constants, or what "
                        "is computed from them");
    t = sized(l, by, v);
    l->depth++;
    if (!v->tensor) {
        if (is_parameter(v))
            v->tensor = state(l, by, v).v;
        else if (v->constant == PT2_FOLDED || !v->producer)
            v->tensor = numbers(l, by, v).v;
        else
            v->tensor = computed(l, v->producer).v;
    }
    l->depth--;
    t.v = v->tensor;
    return t;
}

pt2_value *hvt__lay_tensor(pt2_layout *l, pt2_value *v)
{
    l->depth = 0;
    return tensor_of(l, l->n, v).v;
}
