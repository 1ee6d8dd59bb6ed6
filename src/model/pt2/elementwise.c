/*
 * Operations element by element: functions of one number, two tensors, a tensor and a number or a parameter.
 */
#include "import.h"

#include <math.h>

/* ---- functions of one number ---- */

static hvt_value apply(importer *p, hvt_value x, hvt_function f, double a, double b)
{
    return hvt_apply(p->m, x, f, (float)a, (float)b);
}

/* factor * x + term */
static hvt_value affine(importer *p, hvt_value x, double factor, double term)
{
    return factor == 1 && term == 0 ? x : apply(p, x, HVT_AFFINE, factor, term);
}

static double value_of(importer *p, const operand *x)
{
    return x->argument ? hvt__pt2_float(p, x->argument, x->otherwise) : x->otherwise;
}

/* The first argument through the function that the table names, or through the table's `value`. */
static void function(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    const operation *o = p->operation;
    hvt__pt2_axes axes;
    hvt_value v;

    if (o->of == HVT_SIGMOID && !o->value && hvt__pt2_squash_biases(p, true, 0))
        return;
    if (t && t->kind == HVT__PT2_LENGTHS && o->of == HVT_HARDTANH && value_of(p, &o->b) == INFINITY) {
        tensor y = *t;

        y.least = fmax(y.least, value_of(p, &o->a));
        hvt__pt2_out(p, 0, y, NULL);
        return;
    }
    if (!hvt__pt2_is_computed(p, t))
        return;
    axes = t->axes;
    v = o->value ? o->value(p, t->v)
                 : apply(p, t->v, (hvt_function)o->of, value_of(p, &o->a), value_of(p, &o->b));
    if (!p->failed)
        hvt__pt2_out_like(p, v, &axes);
}

static hvt_value gelu(importer *p, hvt_value x)
{
    const bool by_tanh = !strcmp(hvt__pt2_string(p, "approximate", "none"), "tanh");

    return apply(p, x, by_tanh ? HVT_GELU_TANH : HVT_GELU, 0, 0);
}

/* scale * (x > 0 ? x : alpha * (e^(inner*x) - 1)) */
static hvt_value elu_of(importer *p, hvt_value x, double alpha, double scale, double inner)
{
    if (inner <= 0)
        hvt__pt2_refuse(p, "its exponent is %g*x; expected a factor above 0", inner);
    if (p->failed)
        return -1;
    x = apply(p, affine(p, x, inner, 0), HVT_ELU, alpha * inner, 0);
    return affine(p, x, scale / inner, 0);
}

static hvt_value elu(importer *p, hvt_value x)
{
    return elu_of(p, x, hvt__pt2_float(p, "alpha", 1), hvt__pt2_float(p, "scale", 1),
                  hvt__pt2_float(p, "input_scale", 1));
}

static hvt_value selu(importer *p, hvt_value x)
{
    return elu_of(p, x, 1.6732632423543772, 1.0507009873554805, 1);
}

static hvt_value celu(importer *p, hvt_value x)
{
    const double alpha = hvt__pt2_float(p, "alpha", 1);

    return elu_of(p, x, alpha, 1, 1 / alpha);
}

static hvt_value mish(importer *p, hvt_value x)
{
    return hvt_combine(p->m, HVT_MUL, x, apply(p, apply(p, x, HVT_SOFTPLUS, 1, 20), HVT_TANH, 0, 0));
}

static hvt_value log_sigmoid(importer *p, hvt_value x)
{
    return affine(p, apply(p, affine(p, x, -1, 0), HVT_SOFTPLUS, 1, 20), -1, 0);
}

static hvt_value absolute(importer *p, hvt_value x)
{
    return hvt_add(p->m, hvt_relu(p->m, x), hvt_relu(p->m, affine(p, x, -1, 0)));
}

static hvt_value square(importer *p, hvt_value x)
{
    return hvt_combine(p->m, HVT_MUL, x, x);
}

static hvt_value power(importer *p, hvt_value x)
{
    const double exponent = hvt__pt2_float(p, "exponent", 1);

    return exponent == 1 ? x : exponent == 2 ? square(p, x) : apply(p, x, HVT_POW, exponent, 0);
}

/* ---- a parameter ---- */

hvt_value hvt__pt2_by_parameter(importer *p, hvt_binary op, hvt_value x, const tensor *parameter, int n,
                                const int64_t *size, float init)
{
    int64_t whole[4];
    int dim[4];
    hvt_value v;

    if (parameter->viewed) {
        n = hvt__pt2_sizes(p->file, parameter->viewed, 4, whole);
        size = whole;
    }
    for (int i = 0; i < n; i++)
        dim[i] = p->headed && hvt__pt2_is_resized(p->file, parameter->state) &&
                         size[i] == hvt_pt2_describe(p->file).classes
                     ? p->classes
                     : (int)size[i];
    hvt__pt2_begin_layer(p, parameter->state);
    v = parameter->constant ? hvt_combine_constant(p->m, op, x, n, dim, init)
                            : hvt_combine_parameter(p->m, op, x, n, dim, init);
    hvt__pt2_keep_layer(p, parameter->state, v);
    return v;
}

static bool all_zero(importer *p, const tensor *t)
{
    const known *k = hvt__pt2_known(p, t);
    bool zero = k && k->number.x && !k->element.x;

    for (int64_t i = 0; zero && i < k->size[0]; i++)
        zero = *hvt__pt2_element(&k->number, 1, &i) == 0;
    return zero;
}

/* n numbers of a parameter, in a row. */
static hvt_value row_of(importer *p, const tensor *t, int64_t n)
{
    return hvt__pt2_by_parameter(p, HVT_ADD, hvt_zeros(p->m, p->images, 1, 1, (int)n), t, 1, &n, 0);
}

/* Parameters and zeros side by side; into ret_part, how many. */
static int parts_of_joined(importer *p, const tensor *joined, int outputs, int most, hvt_value *ret_part)
{
    int64_t size[1] = {0};
    int first = 0;

    if (joined->njoined > most)
        hvt__pt2_refuse(p, "its bias is %d parameters; expected at most %d", joined->njoined, most);
    for (int i = 0; i < joined->njoined && !p->failed; i++, first += (int)size[0]) {
        const tensor *t = &p->tensor[joined->joined[i]];
        const bool trained = t->state && !t->constant;

        hvt__pt2_sizes(p->file, t->name, 1, size);
        if (size[0] < 1 || size[0] > outputs - first)
            hvt__pt2_refuse(p, "its bias has more than its %d outputs", outputs);
        else if (!trained && !all_zero(p, t))
            hvt__pt2_refuse(p, "a constant of its bias is not 0; expected zeros, or a parameter");
        else
            ret_part[i] = trained ? row_of(p, t, size[0]) : hvt_zeros(p->m, p->images, 1, 1, (int)size[0]);
    }
    if (!p->failed && first != outputs)
        hvt__pt2_refuse(p, "its bias has %d numbers for %d outputs", first, outputs);
    return joined->njoined;
}

/* A copy of a parameter, some of which is 0. */
static int parts_of_copy(importer *p, const tensor *copy, int outputs, hvt_value *ret_part)
{
    const hvt_value all = row_of(p, copy, outputs);
    int n = 0;

    if (copy->zeros > 0)
        ret_part[n++] = hvt_slice(p->m, all, 0, copy->zeros);
    ret_part[n++] = hvt_zeros(p->m, p->images, 1, 1, copy->zeros_end - copy->zeros);
    if (copy->zeros_end < outputs)
        ret_part[n++] = hvt_slice(p->m, all, copy->zeros_end, outputs - copy->zeros_end);
    return n;
}

hvt_value hvt__pt2_add_in_parts(importer *p, hvt_value x, const tensor *bias)
{
    hvt_value part[8];
    int shape[3], n;

    hvt_value_shape(p->m, x, shape);
    n = bias->kind == HVT__PT2_JOINED ? parts_of_joined(p, bias, shape[2], (int)HVT_LEN(part), part)
                                      : parts_of_copy(p, bias, shape[2], part);
    return p->failed ? -1 : hvt_combine(p->m, HVT_ADD, x, hvt_concat(p->m, part, n));
}

static void refuse_fleeting(importer *p, const tensor *buffer)
{
    hvt__pt2_refuse(p, "%s is a constant, or a buffer that is not persistent; expected one of the state_dict",
                    buffer->state);
}

hvt_value hvt__pt2_embedding(importer *p, hvt_value x, int first, int64_t rows, const tensor *parameter,
                             int n, const int64_t *size)
{
    int64_t whole[4], own = 1;
    int dim[4];
    hvt_value v;

    if (parameter->viewed) {
        n = hvt__pt2_sizes(p->file, parameter->viewed, 4, whole);
        size = whole;
    }
    if (parameter->constant && !parameter->persistent)
        refuse_fleeting(p, parameter);
    if (n < 1 || n > 4)
        hvt__pt2_refuse(p, "%s has not 1 to 4 dimensions", parameter->state);
    for (int i = 0; i < n && !p->failed; i++) {
        dim[i] = size[i] > INT_MAX ? INT_MAX : (int)size[i];
        own = i == n - 1 || own > rows ? own : own * dim[i];
    }
    if (own != rows)
        hvt__pt2_refuse(p, "%s is repeated, or its dimensions were joined; expected one row for each token",
                        parameter->state);
    if (p->failed)
        return -1;
    hvt__pt2_begin_layer(p, parameter->state);
    v = parameter->constant ? hvt_add_constant_embedding(p->m, x, first, n, dim)
                            : hvt_add_embedding(p->m, x, first, n, dim, 0.02f);
    hvt__pt2_keep_layer(p, parameter->state, v);
    return v;
}

/* Has a layer on the tape it for its weight or bias? */
static bool is_of_layer(const importer *p, const char *state)
{
    size_t n = strlen(state);
    char layer[256];

    while (n && state[n - 1] != '.' && state[n - 1] != '_')
        n--;
    snprintf(layer, sizeof layer, "%.*s", (int)(n && state[n - 1] == '.' ? n - 1 : n), state);
    return json_object_get(p->layers, layer) != NULL;
}

/* The numbers of t, of these sizes, for each image; -1: they are not known, or the node is refused. */
static hvt_value constant_value(importer *p, const tensor *t, int n, const int64_t *size, const int *d)
{
    const known *k = hvt__pt2_known(p, t);
    int64_t at[HVT__PT2_DIMS] = {0}, i = 0;
    float *x;

    if (!k || k->element.x || !k->number.x || k->ndim != n || memcmp(k->size, size, (size_t)n * sizeof *size))
        return -1;
    x = hvt__pt2_keep(p, (size_t)d[0] * (size_t)d[1] * (size_t)d[2] * sizeof *x);
    if (!x)
        return -1;
    do
        x[i++] = (float)*hvt__pt2_element(&k->number, n, at);
    while (hvt__pt2_next(n, size, at));
    return hvt_constant(p->m, p->images, d[0], d[1], d[2], x);
}

/* [C], [T,C] or [H,W,C], with dimensions of 1 between them, and maybe expanded to all images. */
bool hvt__pt2_as_value(importer *p, tensor *t)
{
    int64_t size[HVT__PT2_DIMS], whole[4];
    const int n = hvt__pt2_sizes(p->file, t->name, HVT__PT2_DIMS, size),
              of = hvt__pt2_sizes(p->file, t->viewed ? t->viewed : t->name, 4, whole);
    hvt__pt2_axes axes = {.ndim = n};
    int64_t elements = 1, own = 1;
    int dims[3] = {-1, -1, -1}, found = 0, d[3] = {1, 1, 1};
    hvt_value v;

    for (int i = 0; i < of; i++)
        own = own > INT_MAX ? own : own * whole[i];
    for (int i = 0; i < n; i++)
        elements = elements > INT_MAX ? elements : elements * size[i];
    const bool expanded = n > 1 && p->file->batch > 1 && size[0] == p->file->batch && elements != own;

    for (int i = expanded; i < n; i++)
        if (size[i] != 1 && found < 3)
            dims[found++] = i;
        else if (size[i] != 1)
            return false;
    if (t->state && t->viewed && of == 4 && hvt__pt2_ends_in(t->state, "weight")) /* a convolution's */
        return false;
    if (n < 1 || of < 1 || (t->state && is_of_layer(p, t->state)) || elements < 1 || elements > INT_MAX ||
        elements != own * (expanded ? p->file->batch : 1))
        return false;
    for (int k = 0; k < found; k++)
        d[3 - found + k] = (int)size[dims[k]];
    for (int i = 0, at = 0, nth = 0; i < n; i++) {
        if (i == 0 && expanded)
            axes.atom[at++] = (hvt__pt2_atom){'N', size[0], 1};
        else if (size[i] != 1)
            axes.atom[at++] = (hvt__pt2_atom){"HWC"[3 - found + nth++], size[i], 1};
        axes.end[i] = at;
    }
    if (!t->state || (t->constant && !t->persistent)) {
        v = constant_value(p, t, n, size, d);
        if (v < 0)
            return false;
        t->known = NULL;
    } else {
        v = hvt_zeros(p->m, p->images, d[0], d[1], d[2]);
        v = d[0] * d[1] > 1 ? hvt__pt2_embedding(p, v, 0, (int64_t)d[0] * d[1], t, n, size)
                            : hvt__pt2_by_parameter(p, HVT_ADD, v, t, of, whole, 0);
    }
    t->state = NULL;
    t->v = v;
    t->axes = axes;
    t->alike = true;
    p->mistaken = p->mistaken || (v < 0 && !p->failed);
    return !p->failed;
}

/* Is it of x's sizes but for the batch, whose elements lie as in the tape? How many rows it has then. */
static bool is_embedding(const hvt__pt2_axes *x, int n, const int64_t *size, int64_t *ret_rows)
{
    bool fits = n <= x->ndim && hvt__pt2_in_order_of_tape(x);

    *ret_rows = 1;
    for (int i = 0; i < x->ndim && fits; i++) {
        const int at = i - (x->ndim - n), begin = i ? x->end[i - 1] : 0;
        int64_t own = 1;

        for (int a = begin; a < x->end[i]; a++)
            own *= x->atom[a].axis == 'N' ? 1 : x->atom[a].extent;
        fits = at < 0 ? own == 1 : size[at] == own;
        *ret_rows *= i < x->ndim - 1 ? own : 1;
    }
    return fits;
}

/* Is it one number, or [C,1,1] where x is [N,C,H,W]? */
static bool is_of_channels(const hvt__pt2_axes *x, int n, const int64_t *size)
{
    bool fits = n <= x->ndim;

    for (int i = 0; i < n && fits; i++)
        fits = size[i] == 1 || hvt__pt2_is(x, x->ndim - n + i, 'C');
    return fits;
}

/* Has it the sizes [C,H,W] of x, which is [N,C,H,W]? */
static bool is_image(const hvt__pt2_axes *axes, hvt_value x, importer *p, int n, const int64_t *size)
{
    int d[3];

    hvt_value_shape(p->m, x, d);
    return axes->ndim == 4 && hvt__pt2_is(axes, 1, 'C') && hvt__pt2_is(axes, 2, 'H') && !axes->roll[0] &&
           !axes->roll[1] && (n == 3 || size[0] == 1) && size[n - 3] == d[2] && size[n - 2] == d[0] &&
           size[n - 1] == d[1];
}

/* The parameter as a value of each image, from the order of its elements into that of the tape. */
static hvt_value as_image(importer *p, hvt_value x, const tensor *parameter, int n, const int64_t *size)
{
    int d[3];
    hvt_value v;

    hvt_value_shape(p->m, x, d);
    v = hvt_zeros(p->m, x, 1, d[2] * d[0], d[1]);
    v = hvt__pt2_embedding(p, v, 0, (int64_t)d[2] * d[0], parameter, n, size);
    return p->failed ? -1 : hvt_transpose(p->m, v, d[2], d[0] * d[1], 1, d[0], d[1]);
}

/* x's axes, as is x, become those of the result. */
static hvt_value with_parameter(importer *p, hvt_binary op, hvt_value x, hvt__pt2_axes *axes,
                                const char *argument, const tensor *parameter)
{
    int64_t size[4], rows;
    int n = hvt__pt2_argument_sizes(p, argument, 4, size);
    const int last = axes->ndim - 1;

    if (n > 0 && last > 0 && size[n - 1] > 1 && hvt__pt2_has(axes, last, 'W') &&
        hvt__pt2_is_pixels(axes, last)) {
        tensor turned = {.v = x, .axes = *axes}; /* channels that are pixels */

        if (hvt__pt2_turn(p, &turned, 0, 0))
            x = turned.v, *axes = turned.axes;
    }
    if (parameter->constant && !parameter->persistent)
        refuse_fleeting(p, parameter);
    if (p->failed)
        return -1;
    if (n >= 0 && is_of_channels(axes, n, size))
        return hvt__pt2_by_parameter(p, op, x, parameter, n, size, 1);
    if (n >= 0 && op == HVT_ADD && is_embedding(axes, n, size, &rows))
        return hvt__pt2_embedding(p, x, 0, rows, parameter, n, size);
    if (n >= 3 && op == HVT_ADD && is_image(axes, x, p, n, size))
        return hvt_add(p->m, x, as_image(p, x, parameter, n, size));
    hvt__pt2_refuse(
        p,
        "%s meets another dimension than the channels; expected one number, [C,1,1], or, added to "
        "[N,T,C], [1,T,C], or, added to [N,C,H,W], [1,C,H,W]",
        parameter->state);
    return -1;
}

/* relu(x) + weight * min(x, 0); where x is 0 the slope is the weight */
static void prelu(importer *p)
{
    const tensor *t = hvt__pt2_tensor(p, "self"), *w = hvt__pt2_tensor(p, "weight");
    hvt__pt2_axes axes;
    int64_t size[4];
    int n = hvt__pt2_argument_sizes(p, "weight", 4, size);
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t) || !w)
        return;
    axes = t->axes;
    if (!w->state || n != 1)
        hvt__pt2_refuse(p, "its weight is %s; expected a parameter of one dimension",
                        w->state ? w->state : "computed");
    else if (hvt__pt2_is_trained(p, "weight", w) && size[0] != 1 && !hvt__pt2_is(&axes, 1, 'C'))
        hvt__pt2_refuse(p, "dimension 1 is not the channels");
    if (p->failed)
        return;
    v = hvt__pt2_by_parameter(p, HVT_MUL, apply(p, t->v, HVT_CLAMP, -INFINITY, 0), w, n, size, 0.25f);
    hvt__pt2_out_like(p, hvt_add(p->m, hvt_relu(p->m, t->v), v), &axes);
}

/* ---- two tensors, or a tensor and a number ---- */

bool hvt__pt2_number(importer *p, double *ret_x)
{
    const char *kind;
    const json_t *x = hvt__pt2_arg(p->node, "other", &kind);

    return hvt__pt2_real(x, ret_x);
}

/* With dimensions of 1 in front, so that there are n. */
static hvt__pt2_axes led(const hvt__pt2_axes *x, int n)
{
    hvt__pt2_axes y = *x;

    for (; y.ndim && y.ndim < n; y.ndim++) {
        memmove(y.end + 1, y.end, (size_t)y.ndim * sizeof *y.end);
        y.end[0] = 0;
    }
    return y;
}

static bool has_any(const hvt__pt2_axes *x, char axis)
{
    bool any = false;

    for (int i = 0; i < x->ndim; i++)
        any = any || hvt__pt2_has(x, i, axis);
    return any;
}

/* Has `some`, of as many dimensions, each axis as `all` has it, in the same parts, or not at all? */
static bool has_whole_axes(const hvt__pt2_axes *all, const hvt__pt2_axes *some)
{
    hvt__pt2_axes y = *all;

    for (int i = 0; i < all->ndim; i++) {
        bool gone = false, kept = false;

        for (const char *axis = "NCHW"; *axis; axis++) {
            gone = gone || (hvt__pt2_has(all, i, *axis) && !has_any(some, *axis));
            kept = kept || (hvt__pt2_has(all, i, *axis) && has_any(some, *axis));
        }
        if (gone && kept)
            return false;
        if (gone)
            hvt__pt2_reduce(&y, i);
    }
    return hvt__pt2_same(&y, some);
}

/* Each dimension has the same axes in both, or none in one of them. ret_all: those of the result. */
static bool broadcasts(const hvt__pt2_axes *first, const hvt__pt2_axes *second, hvt__pt2_axes *ret_all)
{
    const int n = first->ndim > second->ndim ? first->ndim : second->ndim;
    const hvt__pt2_axes led_a = led(first, n), led_b = led(second, n), *a = &led_a, *b = &led_b;
    bool a_is_all = true, b_is_all = true;

    for (int i = 0; i < n && a->ndim == b->ndim; i++)
        for (int k = 0; k < 4; k++) {
            bool in_a = hvt__pt2_has(a, i, "NCHW"[k]), in_b = hvt__pt2_has(b, i, "NCHW"[k]);

            a_is_all = a_is_all && (in_a || !in_b);
            b_is_all = b_is_all && (in_b || !in_a);
        }
    *ret_all = a_is_all ? *a : *b;
    return a->ndim == b->ndim &&
           (hvt__pt2_same(a, b) || ((a_is_all || b_is_all) && hvt__pt2_plain(a) && hvt__pt2_plain(b)) ||
            (a_is_all && has_whole_axes(a, b)) || (b_is_all && has_whole_axes(b, a)));
}

/* Are its channels where layers leave them, the last dimension or that of an image? */
static bool has_usual_channels(const hvt__pt2_axes *x)
{
    const int last = x->ndim - 1;

    return last > 0 && ((hvt__pt2_has(x, last, 'C') && hvt__pt2_is(x, last, 'C')) ||
                        (hvt__pt2_has(x, 1, 'C') && hvt__pt2_is(x, 1, 'C')));
}

/* Tokens of one line become those of as many lines as the other's; and where pixels of one are channels of
 * the other, that becomes like the one that has its channels where layers leave them. */
static bool turn_to(importer *p, tensor *a, tensor *b)
{
    const bool a_fits = has_usual_channels(&a->axes), b_fits = has_usual_channels(&b->axes),
               a_turns = b_fits && !a_fits;
    tensor *x = a_turns ? a : b;
    int of_a[3], of_b[3], *like = a_turns ? of_b : of_a;

    hvt_value_shape(p->m, a->v, of_a);
    hvt_value_shape(p->m, b->v, of_b);
    if (a_fits && b_fits &&
        (of_a[0] == 1 ? hvt__pt2_in_lines(p, a, of_b[0], of_b[1])
                      : hvt__pt2_in_lines(p, b, of_a[0], of_a[1])))
        return true;
    return hvt__pt2_turn(p, x, like[0], like[1]) || hvt__pt2_turn(p, x, 0, 0);
}

/* Where a has no pixels and b no channels, or the other way round: a is repeated to the sizes of both. */
static bool spread(importer *p, tensor *a, const tensor *b)
{
    const int n = a->axes.ndim;
    hvt__pt2_axes all = a->axes;
    int of_a[3], of_b[3], size[3];

    if (b->axes.ndim != n || !hvt__pt2_plain(&a->axes) || !hvt__pt2_plain(&b->axes))
        return false;
    hvt_value_shape(p->m, a->v, of_a);
    hvt_value_shape(p->m, b->v, of_b);
    for (int k = 0; k < 3; k++) {
        size[k] = of_a[k] > of_b[k] ? of_a[k] : of_b[k];
        for (int i = 0; i < n; i++)
            if (hvt__pt2_has(&b->axes, i, "HWC"[k]) && !hvt__pt2_has(&a->axes, i, "HWC"[k])) {
                if (all.end[i] > (i ? all.end[i - 1] : 0))
                    return false;
                hvt__pt2_set(&all, i, "HWC"[k], size[k]);
            }
    }
    a->v = hvt_combine(p->m, HVT_ADD, hvt_zeros(p->m, p->images, size[0], size[1], size[2]), a->v);
    a->axes = all;
    return a->v >= 0;
}

/* x op number, or number - x */
static void with_number(importer *p, hvt_binary op, bool reversed, double x)
{
    const tensor *t = hvt__pt2_tensor(p, "self");
    const double alpha = hvt__pt2_float(p, "alpha", 1);
    hvt__pt2_axes axes;
    hvt_value v;

    if (!hvt__pt2_is_computed(p, t) || p->failed)
        return;
    axes = t->axes;
    v = reversed        ? affine(p, t->v, -alpha, x)
        : op == HVT_ADD ? affine(p, t->v, 1, alpha * x)
        : op == HVT_SUB ? affine(p, t->v, 1, -alpha * x)
        : op == HVT_MUL ? affine(p, t->v, x, 0)
                        : affine(p, t->v, 1 / x, 0);
    hvt__pt2_out_like(p, v, &axes);
}

/* parameter op x, where they do not commute, is the parameter + -x, or the parameter * 1/x. */
static hvt_binary turned(importer *p, hvt_binary op, hvt_value *x)
{
    if (op == HVT_SUB)
        *x = affine(p, *x, -1, 0);
    if (op == HVT_DIV)
        *x = apply(p, *x, HVT_POW, -1, 0);
    return op == HVT_SUB ? HVT_ADD : op == HVT_DIV ? HVT_MUL : op;
}

/* x op an argument that is a parameter or a tensor; -1 after a refusal. axes: of x, then of the result. */
static hvt_value with_argument(importer *p, hvt_binary op, hvt_value x, hvt__pt2_axes *axes,
                               const char *argument, double factor)
{
    const tensor *b = hvt__pt2_tensor(p, argument);
    const hvt__pt2_axes of_x = *axes;
    tensor first, second;

    if (!b || p->failed)
        return -1;
    if (b->state && factor != 1)
        hvt__pt2_refuse(p, "its alpha is %g, before %s; expected 1", factor, b->state);
    else if (b->state)
        return with_parameter(p, op, x, axes, argument, b);
    if (p->failed || !hvt__pt2_is_computed(p, b))
        return -1;
    first = (tensor){.v = x, .axes = of_x};
    second = *b;
    if (memcmp(first.axes.roll, second.axes.roll, sizeof first.axes.roll)) {
        hvt__pt2_unroll(p, &first);
        hvt__pt2_unroll(p, &second);
    }
    if (broadcasts(&first.axes, &second.axes, axes) ||
        ((spread(p, &first, &second) || turn_to(p, &first, &second)) &&
         broadcasts(&first.axes, &second.axes, axes)))
        return hvt_combine(p->m, op, first.v, affine(p, second.v, factor, 0));
    hvt__pt2_refuse(p,
                    "its arguments are no images of one shape, one of them repeated over pixels or channels; "
                    "or they lie in different orders, as windows do that are not undone");
    return -1;
}

static hvt_value with_tensor(importer *p, hvt_binary op, const char *first, const char *second,
                             hvt__pt2_axes *ret_axes)
{
    const tensor *a = hvt__pt2_tensor(p, first), *b = hvt__pt2_tensor(p, second);
    const double alpha = hvt__pt2_float(p, "alpha", 1);
    hvt_value x;

    if (!a || !b)
        hvt__pt2_refuse(p, "it has no argument %s", a ? second : first);
    if (p->failed || !hvt__pt2_is_computed(p, a->state ? b : a))
        return -1;
    *ret_axes = a->state ? b->axes : a->axes;
    if (!a->state)
        return with_argument(p, op, a->v, ret_axes, second, alpha);
    x = affine(p, b->v, alpha, 0);
    op = turned(p, op, &x);
    return with_argument(p, op, x, ret_axes, first, 1);
}

/* of two tensors */
static void combined(importer *p, hvt_binary op, const char *first, const char *second)
{
    const tensor *a = hvt__pt2_tensor(p, first), *b = hvt__pt2_tensor(p, second);
    hvt__pt2_axes axes;
    hvt_value v;

    if (!a || !b || p->failed || (op == HVT_MUL && hvt__pt2_multiply_noise(p, a, b)))
        return;
    v = with_tensor(p, op, first, second, &axes);
    if (!p->failed)
        hvt__pt2_out_like(p, v, &axes);
}

/* self + value * tensor1 * tensor2 */
static void addcmul(importer *p)
{
    hvt__pt2_axes axes;
    hvt_value v = with_tensor(p, HVT_MUL, "tensor1", "tensor2", &axes);

    if (!p->failed)
        v = with_argument(p, HVT_ADD, affine(p, v, hvt__pt2_float(p, "value", 1), 0), &axes, "self", 1);
    if (!p->failed)
        hvt__pt2_out_like(p, v, &axes);
}

/* A factor of channels that are not cut out yet, as of the queries of attention, which takes it with the
 * product's own. */
static bool scale_part(importer *p, hvt_binary op, double x)
{
    const tensor *t = hvt__pt2_uncut(p, "self");
    tensor y;

    if (!t || !t->count || (op != HVT_MUL && op != HVT_DIV) || hvt__pt2_in_place(p->node))
        return false;
    y = *t;
    y.times = (y.times ? y.times : 1) * (op == HVT_MUL ? x : 1 / x);
    hvt__pt2_out(p, 0, y, NULL);
    return true;
}

static void binary(importer *p)
{
    const hvt_binary op = (hvt_binary)p->operation->of;
    double x;

    if ((op == HVT_DIV && (hvt__pt2_divide_noise(p) || hvt__pt2_normalise_heads(p))) ||
        (op == HVT_MUL && hvt__pt2_scale_heads(p)))
        return;
    if (!hvt__pt2_number(p, &x)) {
        if (op != HVT_ADD || !hvt__pt2_add_to_scores(p))
            combined(p, op, "self", "other");
    } else if (!hvt__pt2_scale_scores(p, op, x) && !scale_part(p, op, x))
        with_number(p, op, false, x);
}

/* other - self */
static void reversed(importer *p)
{
    double x;

    if (hvt__pt2_number(p, &x))
        with_number(p, HVT_SUB, true, x);
    else
        combined(p, HVT_SUB, "other", "self");
}

/* ---- the table ---- */

static const operation table[] = {
    {"aten.relu.default", function, HVT_RELU},
    {"aten.relu6.default", function, HVT_HARDTANH, {NULL, 0}, {NULL, 6}},
    {"aten.hardtanh.default", function, HVT_HARDTANH, {"min_val", -1}, {"max_val", 1}},
    {"aten.clamp.default", function, HVT_HARDTANH, {"min", -INFINITY}, {"max", INFINITY}},
    {"aten.clamp_min.default", function, HVT_HARDTANH, {"min", -INFINITY}, {NULL, INFINITY}},
    {"aten.clamp_max.default", function, HVT_HARDTANH, {NULL, -INFINITY}, {"max", INFINITY}},
    {"aten.leaky_relu.default", function, HVT_LEAKY_RELU, {"negative_slope", 0.01}},
    {"aten.elu.default", function, .value = elu},
    {"aten.selu.default", function, .value = selu},
    {"aten.celu.default", function, .value = celu},
    {"aten.sigmoid.default", function, HVT_SIGMOID},
    {"aten.log_sigmoid.default", function, .value = log_sigmoid},
    {"aten.hardsigmoid.default", function, HVT_HARDSIGMOID},
    {"aten.hardswish.default", function, HVT_HARDSWISH},
    {"aten.silu.default", function, HVT_SILU},
    {"aten.mish.default", function, .value = mish},
    {"aten.gelu.default", function, .value = gelu},
    {"aten.tanh.default", function, HVT_TANH},
    {"aten.softplus.default", function, HVT_SOFTPLUS, {"beta", 1}, {"threshold", 20}},
    {"aten.neg.default", function, HVT_AFFINE, {NULL, -1}},
    {"aten.abs.default", function, .value = absolute},
    {"aten.square.default", function, .value = square},
    {"aten.pow.Tensor_Scalar", function, .value = power},
    {"aten.sqrt.default", function, HVT_POW, {NULL, 0.5}},
    {"aten.rsqrt.default", function, HVT_POW, {NULL, -0.5}},
    {"aten.reciprocal.default", function, HVT_POW, {NULL, -1}},
    {"aten.exp.default", function, HVT_EXP},
    {"aten.log.default", function, HVT_LOG},
    {"aten.prelu.default", prelu},
    {"aten.add.Tensor", binary, HVT_ADD},
    {"aten.add.Scalar", binary, HVT_ADD},
    {"aten.sub.Tensor", binary, HVT_SUB},
    {"aten.sub.Scalar", binary, HVT_SUB},
    {"aten.rsub.Tensor", reversed},
    {"aten.rsub.Scalar", reversed},
    {"aten.mul.Tensor", binary, HVT_MUL},
    {"aten.mul.Scalar", binary, HVT_MUL},
    {"aten.div.Tensor", binary, HVT_DIV},
    {"aten.div.Scalar", binary, HVT_DIV},
    {"aten.addcmul.default", addcmul},
    {"aten.maximum.default", binary, HVT_MAXIMUM},
    {"aten.max.other", binary, HVT_MAXIMUM},
    {"aten.minimum.default", binary, HVT_MINIMUM},
    {"aten.min.other", binary, HVT_MINIMUM},
};

const operations hvt__pt2_elementwise = {table, HVT_LEN(table)};
