/*
 * Computed weights: tensors that depend on parameters and constants alone, not on images. Convolutions and
 * linear layers read them as filters and biases (filters.c).
 *
 * A tensor is one f32 array for all images of a batch, in the order of its dimensions. On the tape its shape
 * is 1x1xelements; l->ndim and l->dim have its dimensions. Each forward pass computes it again, and backward
 * carries its gradient to the parameters. A parameter's gradient is final when the parameter's own layer is
 * done. One thread computes an element, and sums run in f64 and in the order of the elements: the bits do not
 * depend on threads.
 */
#include "base_impl.h"
#include "layers.h"
#include "loops.h"

#include <math.h>

/* ---- builders ---- */

/* Checks dimensions. Returns the number of elements, or -1 after a mistake. */
static int64_t elements_of(hvt_model *m, const hvt_layer *l, int ndim, const int *dim)
{
    int64_t n = 1;

    HVT_EXPECT(m, l, ndim >= 0 && ndim <= 4 && (dim || !ndim), "a tensor of %d dimensions; expected 0 to 4",
               ndim);
    for (int i = 0; i < ndim; i++) {
        HVT_EXPECT(m, l, dim[i] > 0 && dim[i] <= HVT_MOST, "dimension %d is %d; expected 1 to %d", i, dim[i],
                   HVT_MOST);
        n *= dim[i];
        HVT_EXPECT(m, l, n <= INT_MAX, "a tensor of more than %d elements", INT_MAX);
    }
    return n;
}

static hvt_value end(hvt_model *m, hvt_layer *l, int ndim, const int *dim)
{
    int is[4] = {0};
    const int64_t n = elements_of(m, l, ndim, dim);

    if (n < 0)
        return -1;
    for (int i = 0; i < ndim; i++)
        is[i] = dim[i];
    l->ndim = ndim;
    memcpy(l->dim, is, sizeof is);
    l->flat = 1;
    return hvt__layer_end(m, l, 1, 1, n);
}

static hvt_value leaf(hvt_model *m, int ndim, const int *dim, float init, float deviation, bool constant)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_weight, NULL, 0);

    if (!l)
        return -1;
    HVT_EXPECT(m, l, l->shares < 0, "it shares parameters; let both layers read the same weights");
    HVT_EXPECT(m, l, constant ? !isnan(init) : isfinite(init), "its initial value is %g; expected a number",
               (double)init);
    HVT_EXPECT(m, l, deviation >= 0 && isfinite(deviation) && (deviation == 0 || init == 0),
               "a deviation of %g around %g; expected 0 or more, around 0", (double)deviation, (double)init);
    l->has_parameter = true;
    l->init = deviation > 0 ? deviation : init;
    l->is.weight.draws = deviation > 0;
    l->constant = constant;
    return end(m, l, ndim, dim);
}

hvt_value hvt_weight_parameter(hvt_model *m, int ndim, const int *dim, float init, float deviation)
{
    return leaf(m, ndim, dim, init, deviation, false);
}

hvt_value hvt_weight_buffer(hvt_model *m, int ndim, const int *dim, float init)
{
    return leaf(m, ndim, dim, init, 0, true);
}

hvt_value hvt_weight_numbers(hvt_model *m, int ndim, const int *dim, const float *values)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_weight_numbers, NULL, 0);
    hvt__constants *kept;
    int64_t n;

    if (!l || (n = elements_of(m, l, ndim, dim)) < 0)
        return -1;
    HVT_EXPECT(m, l, values, "an array of values is missing");
    kept = hvt__constants_begin(m, l, &(hvt__constants){.all = (size_t)n});
    if (!kept)
        return -1;
    memcpy(kept->data, values, (size_t)n * sizeof *values);
    return end(m, l, ndim, dim);
}

/* True if different places are different elements, except along dimensions of stride 0. */
static bool is_injective(int ndim, const int *dim, const int *stride)
{
    int64_t reach = 0; /* reach of the dimensions with smaller strides */
    bool done[4] = {false};

    for (int k = 0; k < ndim; k++) {
        int least = -1;

        for (int i = 0; i < ndim; i++)
            if (!done[i] && (least < 0 || stride[i] < stride[least]))
                least = i;
        done[least] = true;
        if (stride[least] == 0 || dim[least] == 1)
            continue;
        if (stride[least] <= reach)
            return false;
        reach += (int64_t)(dim[least] - 1) * stride[least];
    }
    return true;
}

hvt_value hvt_weight_view(hvt_model *m, hvt_value w, int first, int ndim, const int *dim, const int *stride)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_weight_view, w);
    int dense[4] = {1, 1, 1, 1};
    int64_t n, last = first;

    if (!l || (n = elements_of(m, l, ndim, dim)) < 0)
        return -1;
    for (int i = ndim - 2; i >= 0; i--)
        dense[i] = dense[i + 1] * dim[i + 1];
    stride = stride ? stride : dense;
    for (int i = 0; i < ndim; i++) {
        HVT_EXPECT(m, l, stride[i] >= 0, "stride %d is %d; expected 0 or more", i, stride[i]);
        l->is.weight.stride[i] = stride[i];
        last += (int64_t)(dim[i] - 1) * stride[i];
    }
    HVT_EXPECT(m, l, first >= 0 && last < l->y.dim[3],
               "elements %d to %lld of a tensor of %d; expected 0 to %d", first, (long long)last, l->y.dim[3],
               l->y.dim[3] - 1);
    HVT_EXPECT(m, l, is_injective(ndim, dim, stride),
               "its strides let elements overlap; expected different "
               "elements, or strides of 0");
    l->is.weight.first = first;
    return end(m, l, ndim, dim);
}

/* Returns dimension i of l as if it had four, aligned at the last one as in broadcasting. */
static int size_of(const hvt_layer *l, int i)
{
    return i < 4 - l->ndim ? 1 : l->dim[i - 4 + l->ndim];
}

hvt_value hvt__weight_combine(hvt_model *m, hvt_binary op, hvt_value a, hvt_value b)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_weight_combine, (hvt_value[]){a, b}, 2);
    int dim[4], ndim;

    if (!l)
        return -1;
    const hvt_layer *p = &m->layer[a], *q = &m->layer[b];

    for (int i = 0; i < 4; i++) {
        const int u = size_of(p, i), v = size_of(q, i);

        HVT_EXPECT(m, l, u == v || u == 1 || v == 1,
                   "dimension %d from the end is %d of %s and %d of %s; expected one size, or 1", 4 - i, u,
                   p->name, v, q->name);
        dim[i] = u == 1 ? v : u;
    }
    l->is.weight.op = op;
    l->saves_input = l->saves_others = op >= HVT_MUL;
    ndim = p->ndim > q->ndim ? p->ndim : q->ndim;
    return end(m, l, ndim, dim + 4 - ndim);
}

hvt_value hvt_weight_sum(hvt_model *m, hvt_value w, const bool *over)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_weight_sum, w);
    int dim[4] = {0};

    if (!l)
        return -1;
    const hvt_layer *x = &m->layer[w];

    HVT_EXPECT(m, l, over || !x->ndim, "the dimensions to sum over are missing");
    for (int i = 0; i < x->ndim; i++)
        dim[i] = over[i] ? 1 : x->dim[i];
    return end(m, l, x->ndim, dim);
}

hvt_value hvt_weight_matmul(hvt_model *m, hvt_value a, hvt_value b)
{
    hvt_layer *l = hvt__layer_begin_many(m, &hvt_layer_weight_matmul, (hvt_value[]){a, b}, 2);

    if (!l)
        return -1;
    const hvt_layer *p = &m->layer[a], *q = &m->layer[b];

    HVT_EXPECT(m, l, p->ndim == 2 && q->ndim == 2 && p->dim[1] == q->dim[0],
               "%s has %d dimensions, %dx%d, and %s has %d, %dx%d; expected MxK and KxN", p->name, p->ndim,
               p->dim[0], p->dim[1], q->name, q->ndim, q->dim[0], q->dim[1]);
    l->saves_input = l->saves_others = true;
    return end(m, l, 2, (int[]){p->dim[0], q->dim[1]});
}

hvt_value hvt_weight_standardise(hvt_model *m, hvt_value w, float eps)
{
    hvt_layer *l = hvt__layer_begin(m, &hvt_layer_weight_standardise, w);

    if (!l)
        return -1;
    const hvt_layer *x = &m->layer[w];

    HVT_EXPECT(m, l, x->ndim > 0 && eps > 0 && eps <= 1,
               "%d dimensions and an eps of %g; expected 1 or more, and an eps above 0, at most 1", x->ndim,
               (double)eps);
    l->is.weight.eps = eps;
    l->saves_output = true;
    return end(m, l, x->ndim, x->dim);
}

hvt_value hvt_weight_concat(hvt_model *m, const hvt_value *in, int count, int along)
{
    hvt_layer *l = count > 0 && in ? hvt__layer_begin_many(m, &hvt_layer_weight_concat, in, count) : NULL;
    int dim[4];
    int64_t all = 0;

    if (!l)
        return m ? hvt__mistake(m, NULL, HVT_E_SHAPE, "a concatenation of %d tensors", count) : -1;
    const hvt_layer *first = &m->layer[in[0]];

    HVT_EXPECT(m, l, along >= 0 && along < first->ndim, "dimension %d of %d", along, first->ndim);
    for (int k = 0; k < count; k++) {
        const hvt_layer *x = &m->layer[in[k]];

        for (int i = 0; i < first->ndim; i++)
            HVT_EXPECT(m, l, x->ndim == first->ndim && (i == along || x->dim[i] == first->dim[i]),
                       "%s and %s differ in another dimension than %d", first->name, x->name, along);
        all += x->dim[along];
    }
    memcpy(dim, first->dim, sizeof dim);
    dim[along] = all > HVT_MOST ? 0 : (int)all;
    l->is.weight.along = along;
    return end(m, l, first->ndim, dim);
}

/* ---- leaves ---- */

static hvt_status check_host(hvt_model *m, hvt_layer *l)
{
    HVT_CHECK(m->dev->ops->host, E_UNSUPPORTED,
              "layer %s (%s): device %s does not compute weights from parameters; devices cpu and ref do",
              l->name, l->ops->name, m->dev->ops->name);
    return HVT_OK;
}

static hvt_status weight_plan(hvt_model *m, hvt_layer *l)
{
    const size_t length = strlen(l->name);
    const bool is_bias = length >= 4 && !strcmp(l->name + length - 4, "bias");
    hvt_param p = {.ndim = l->ndim,
                   .count = hvt__elements(l),
                   .role = l->ndim > 1 ? HVT_ROLE_WEIGHT
                           : is_bias   ? HVT_ROLE_BIAS
                                       : HVT_ROLE_NORM,
                   .constant = l->constant,
                   .init = l->is.weight.draws ? HVT_INIT_NORMAL : HVT_INIT_FILL,
                   .init_arg = l->init};

    HVT_TRY(check_host(m, l));
    memcpy(p.dim, l->dim, sizeof p.dim);
    return hvt__param_add(m, l, 0, &p, NULL);
}

static hvt_status weight_forward(hvt_model *m, hvt_layer *l)
{
    return m->dev->ops->memory.copy(m->dev, l->y.data, hvt__weight(m, l, 0), hvt__bytes(l));
}

static hvt_status weight_backward(hvt_model *m, hvt_layer *l)
{
    return hvt__is_frozen(m, l, 0)
               ? HVT_OK
               : m->dev->ops->memory.copy(m->dev, hvt__grad(m, l, 0), l->dy.data, hvt__bytes(l));
}

static hvt_status numbers_forward(hvt_model *m, hvt_layer *l)
{
    memcpy(l->y.data, l->constants->data, hvt__bytes(l));
    return HVT_OK;
}

/* ---- views, sums and operations on two tensors: all are loops over strided elements ---- */

/* Sets the strides of x for broadcasting: 0 along dimensions of size 1. */
static void broadcast(const hvt_layer *x, hvt__operand *ret)
{
    ptrdiff_t step = 1;

    for (int i = 3; i >= 0; i--) {
        ret->stride[i] = size_of(x, i) == 1 ? 0 : step;
        step *= size_of(x, i);
    }
}

static hvt__loops loops_over(const hvt_layer *l)
{
    hvt__loops k = {0};

    for (int i = 0; i < 4; i++)
        k.dim[i] = size_of(l, i);
    return k;
}

static hvt_status view_forward(hvt_model *m, hvt_layer *l)
{
    hvt__loops k = loops_over(l);

    broadcast(l, &k.of[HVT__RESULT]);
    k.of[HVT__RESULT].x = l->y.data;
    k.of[HVT__A].x = (float *)hvt__in(m, l, 0)->y.data + l->is.weight.first;
    for (int i = 0; i < l->ndim; i++)
        k.of[HVT__A].stride[4 - l->ndim + i] = l->is.weight.stride[i];
    hvt__loops_run(m->dev, k);
    return HVT_OK;
}

/* Adds the gradient of a view to its tensor: elements outside the view get 0, repeated ones the sum. */
static hvt_status view_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *in = hvt__in(m, l, 0);
    hvt__loops k = loops_over(l);

    if (!in->dy.data)
        return HVT_OK;
    if (!l->add[0])
        memset(in->dy.data, 0, hvt__bytes(in));
    k.add = true;
    broadcast(l, &k.of[HVT__A]);
    k.of[HVT__A].x = l->dy.data;
    k.of[HVT__RESULT].x = (float *)in->dy.data + l->is.weight.first;
    for (int i = 0; i < l->ndim; i++)
        k.of[HVT__RESULT].stride[4 - l->ndim + i] = l->is.weight.stride[i];
    hvt__loops_run(m->dev, k);
    return HVT_OK;
}

static uint64_t view_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    const int *s = l->is.weight.stride, *d = l->dim;

    return HVT__HASH(h, l->is.weight.first, l->ndim, d[0], d[1], d[2], d[3], s[0], s[1], s[2], s[3]);
}

/* Sums x over the dimensions along which l has size 1. */
static hvt_status sum_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *x = hvt__in(m, l, 0);
    hvt__loops k = loops_over(x);

    broadcast(l, &k.of[HVT__RESULT]);
    broadcast(x, &k.of[HVT__A]);
    k.of[HVT__RESULT].x = l->y.data;
    k.of[HVT__A].x = x->y.data;
    hvt__loops_run(m->dev, k);
    return HVT_OK;
}

static hvt_status sum_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *x = hvt__in(m, l, 0);
    hvt__loops k = loops_over(x);

    if (!x->dy.data)
        return HVT_OK;
    broadcast(x, &k.of[HVT__RESULT]);
    broadcast(l, &k.of[HVT__A]);
    k.of[HVT__RESULT].x = x->dy.data;
    k.of[HVT__A].x = l->dy.data;
    k.add = l->add[0];
    hvt__loops_run(m->dev, k);
    return HVT_OK;
}

static uint64_t sum_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->ndim, l->dim[0], l->dim[1], l->dim[2], l->dim[3]);
}

static hvt__loops operands(hvt_model *m, const hvt_layer *l)
{
    hvt__loops k = loops_over(l);

    k.op = l->is.weight.op;
    broadcast(hvt__in(m, l, 0), &k.of[HVT__A]);
    broadcast(hvt__in(m, l, 1), &k.of[HVT__B]);
    k.of[HVT__A].x = hvt__in(m, l, 0)->y.data;
    k.of[HVT__B].x = hvt__in(m, l, 1)->y.data;
    return k;
}

static hvt_status combine_forward(hvt_model *m, hvt_layer *l)
{
    hvt__loops k = operands(m, l);

    broadcast(l, &k.of[HVT__RESULT]);
    k.of[HVT__RESULT].x = l->y.data;
    k.formula = HVT__VALUE;
    hvt__loops_run(m->dev, k);
    return HVT_OK;
}

/* Along dimensions in which an operand was broadcast, its gradient is a sum. */
static hvt_status combine_backward(hvt_model *m, hvt_layer *l)
{
    for (int i = 0; i < 2; i++) {
        const hvt_layer *in = hvt__in(m, l, i);
        hvt__loops k = operands(m, l);

        if (!in->dy.data)
            continue;
        broadcast(l, &k.of[HVT__DY]);
        k.of[HVT__DY].x = l->dy.data;
        broadcast(in, &k.of[HVT__RESULT]);
        k.of[HVT__RESULT].x = in->dy.data;
        k.formula = i ? HVT__SLOPE_B : HVT__SLOPE_A;
        k.add = l->add[i];
        hvt__loops_run(m->dev, k);
    }
    return HVT_OK;
}

static uint64_t combine_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.weight.op);
}

/* ---- products of matrices ---- */

typedef struct matrix {
    float *x;
    ptrdiff_t row, column; /* strides */
} matrix;

typedef struct product {
    matrix a, b, y;
    int rows, columns, depth;
    bool add;
} product;

enum { COLUMNS = 64 };

/* job = a row, and a block of columns */
static void product_job(void *ctx, int job, int thread)
{
    const product *p = ctx;
    const int blocks = (p->columns + COLUMNS - 1) / COLUMNS, i = job / blocks, first = job % blocks * COLUMNS,
              n = p->columns - first < COLUMNS ? p->columns - first : COLUMNS;
    double sum[COLUMNS] = {0};

    for (int k = 0; k < p->depth; k++) {
        const double a = p->a.x[i * p->a.row + k * p->a.column];
        const float *b = p->b.x + k * p->b.row + first * p->b.column;

        for (int j = 0; j < n; j++)
            sum[j] += a * b[j * p->b.column];
    }
    for (int j = 0; j < n; j++) {
        float *y = p->y.x + i * p->y.row + (first + j) * p->y.column;

        *y = (float)(p->add ? *y + sum[j] : sum[j]);
    }
}

static void multiply(const hvt_model *m, product p)
{
    hvt__jobs(m->dev, p.rows * ((p.columns + COLUMNS - 1) / COLUMNS), product_job, &p);
}

static matrix matrix_of(const hvt_layer *l, void *x, bool transposed)
{
    return transposed ? (matrix){x, 1, l->dim[1]} : (matrix){x, l->dim[1], 1};
}

static hvt_status matmul_plan(hvt_model *m, hvt_layer *l)
{
    const int64_t jobs = (int64_t)l->dim[0] * ((l->dim[1] + COLUMNS - 1) / COLUMNS);

    HVT_CHECK(jobs <= INT_MAX, E_SHAPE, "layer %s (%s): a product of %dx%d is too large", l->name,
              l->ops->name, l->dim[0], l->dim[1]);
    return check_host(m, l);
}

static hvt_status matmul_forward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *a = hvt__in(m, l, 0), *b = hvt__in(m, l, 1);

    multiply(m, (product){matrix_of(a, a->y.data, false), matrix_of(b, b->y.data, false),
                          matrix_of(l, l->y.data, false), l->dim[0], l->dim[1], a->dim[1], false});
    return HVT_OK;
}

/* da = dy b', db = a' dy */
static hvt_status matmul_backward(hvt_model *m, hvt_layer *l)
{
    const hvt_layer *a = hvt__in(m, l, 0), *b = hvt__in(m, l, 1);
    const matrix dy = matrix_of(l, l->dy.data, false);

    if (a->dy.data)
        multiply(m, (product){dy, matrix_of(b, b->y.data, true), matrix_of(a, a->dy.data, false), a->dim[0],
                              a->dim[1], l->dim[1], l->add[0]});
    if (b->dy.data)
        multiply(m, (product){matrix_of(a, a->y.data, true), dy, matrix_of(b, b->dy.data, false), b->dim[0],
                              b->dim[1], l->dim[0], l->add[1]});
    return HVT_OK;
}

/* ---- standardised rows ---- */

typedef struct rows {
    const hvt_layer *l;
    const float *x, *dy;
    float *y, *rstd;
    size_t n; /* elements of a row */
    bool add;
} rows;

/* y = (x - mean) / sqrt(variance + eps); job = a row */
static void standardise_job(void *ctx, int job, int thread)
{
    const rows *r = ctx;
    const float *x = r->x + (size_t)job * r->n;
    float *y = r->y + (size_t)job * r->n;
    double mean = 0, variance = 0, rstd;

    for (size_t i = 0; i < r->n; i++)
        mean += x[i];
    mean /= (double)r->n;
    for (size_t i = 0; i < r->n; i++)
        variance += (x[i] - mean) * (x[i] - mean);
    rstd = 1 / sqrt(variance / (double)r->n + r->l->is.weight.eps);
    for (size_t i = 0; i < r->n; i++)
        y[i] = (float)((x[i] - mean) * rstd);
    r->rstd[job] = (float)rstd;
}

/* dx = (dy - mean of dy - y * mean of dy*y) * rstd */
static void unstandardise_job(void *ctx, int job, int thread)
{
    const rows *r = ctx;
    const float *dy = r->dy + (size_t)job * r->n, *y = r->x + (size_t)job * r->n;
    float *dx = r->y + (size_t)job * r->n;
    double mean = 0, slope = 0;

    for (size_t i = 0; i < r->n; i++)
        mean += dy[i], slope += (double)dy[i] * y[i];
    mean /= (double)r->n, slope /= (double)r->n;
    for (size_t i = 0; i < r->n; i++)
        dx[i] = (float)((dy[i] - mean - y[i] * slope) * r->rstd[job]) + (r->add ? dx[i] : 0);
}

static hvt_status standardise_plan(hvt_model *m, hvt_layer *l)
{
    l->saved_bytes = (size_t)l->dim[0] * sizeof(float);
    return check_host(m, l);
}

static hvt_status standardise_forward(hvt_model *m, hvt_layer *l)
{
    rows r = {.l = l,
              .x = hvt__in(m, l, 0)->y.data,
              .y = l->y.data,
              .rstd = l->saved,
              .n = hvt__elements(l) / (size_t)l->dim[0]};

    hvt__jobs(m->dev, l->dim[0], standardise_job, &r);
    return HVT_OK;
}

static hvt_status standardise_backward(hvt_model *m, hvt_layer *l)
{
    rows r = {.x = l->y.data,
              .dy = l->dy.data,
              .y = hvt__in(m, l, 0)->dy.data,
              .rstd = l->saved,
              .n = hvt__elements(l) / (size_t)l->dim[0],
              .add = l->add[0]};

    if (r.y)
        hvt__jobs(m->dev, l->dim[0], unstandardise_job, &r);
    return HVT_OK;
}

static uint64_t standardise_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.weight.eps);
}

/* ---- concatenation ---- */

/* Describes tensor k of a concatenation as a view of l's elements, `x`. */
static hvt__loops part_of(hvt_model *m, const hvt_layer *l, int k, void *x, hvt__operand *ret_part)
{
    const hvt_layer *in = hvt__in(m, l, k);
    const int at = 4 - l->ndim + l->is.weight.along;
    ptrdiff_t first = 0, step = 1;

    for (int i = 0; i < k; i++)
        first += hvt__in(m, l, i)->dim[l->is.weight.along];
    for (int i = 3; i >= 0; i--) {
        ret_part->stride[i] = size_of(in, i) == 1 ? 0 : step;
        first *= i == at ? step : 1;
        step *= size_of(l, i);
    }
    ret_part->x = (float *)x + first;
    return loops_over(in);
}

static hvt_status concat_forward(hvt_model *m, hvt_layer *l)
{
    for (int k = 0; k < l->nin && l->in[k] >= 0; k++) {
        hvt__operand part;
        hvt__loops loops = part_of(m, l, k, l->y.data, &part);

        broadcast(hvt__in(m, l, k), &loops.of[HVT__A]);
        loops.of[HVT__A].x = hvt__in(m, l, k)->y.data;
        loops.of[HVT__RESULT] = part;
        hvt__loops_run(m->dev, loops);
    }
    return HVT_OK;
}

static hvt_status concat_backward(hvt_model *m, hvt_layer *l)
{
    for (int k = 0; k < l->nin && l->in[k] >= 0; k++) {
        hvt__operand part;
        hvt__loops loops = part_of(m, l, k, l->dy.data, &part);

        if (!hvt__in(m, l, k)->dy.data)
            continue;
        loops.of[HVT__A] = part;
        broadcast(hvt__in(m, l, k), &loops.of[HVT__RESULT]);
        loops.of[HVT__RESULT].x = hvt__in(m, l, k)->dy.data;
        loops.add = l->add[k];
        for (int i = 0; i < k; i++)
            loops.add = loops.add || l->in[i] == l->in[k];
        hvt__loops_run(m->dev, loops);
    }
    return HVT_OK;
}

static uint64_t concat_hash(const hvt_model *m, const hvt_layer *l, uint64_t h)
{
    return HVT__HASH(h, l->is.weight.along);
}

/* ---- the tables ---- */

#define WEIGHTS .takes = HVT_TAKES_WEIGHTS
const hvt_layer_ops hvt_layer_weight = {
    "weight", weight_plan, weight_forward, weight_backward, .hash = hvt__hash_no_arguments, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_numbers = {
    "weight_numbers", check_host, numbers_forward, NULL, .hash = hvt__hash_no_arguments, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_view = {"weight_view", check_host,        view_forward,
                                             view_backward, .hash = view_hash, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_combine = {"weight_combine", check_host,           combine_forward,
                                                combine_backward, .hash = combine_hash, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_sum = {"weight_sum", check_host,       sum_forward,
                                            sum_backward, .hash = sum_hash, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_matmul = {
    "weight_matmul", matmul_plan, matmul_forward, matmul_backward, .hash = hvt__hash_no_arguments, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_standardise = {"weight_standardise",     standardise_plan,
                                                    standardise_forward,      standardise_backward,
                                                    .hash = standardise_hash, WEIGHTS};
const hvt_layer_ops hvt_layer_weight_concat = {"weight_concat", check_host,          concat_forward,
                                               concat_backward, .hash = concat_hash, WEIGHTS};
