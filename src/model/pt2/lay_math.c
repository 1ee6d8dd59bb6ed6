/*
 * Element-wise operations on one or two tensors, which may be broadcast, and reductions.
 */
#include "layout.h"

#include <math.h>

enum { PARTS = 16 }; /* limit for slices of the channels that are added or compared */

void hvt__lay_as_is(pt2_layout *l)
{
    const pt2_place *p = hvt__place(l, l->n->in[0]);

    hvt__lay_out(l, hvt__emit_like(l, l->n->op, &l->n->is, p->v), &p->axes);
}

/* relu(x) + weight * min(x, 0); the slope at 0 is the weight, as in PyTorch */
static void prelu(pt2_layout *l)
{
    const pt2_place *p = hvt__place(l, l->n->in[0]);
    const pt2_value *w = l->n->in[1];
    pt2_value *v;

    if (!w || !hvt__pt2_state_of(w) || w->ndim != 1)
        REFUSE(l, "its weight is %s; expected a parameter of one dimension",
               w && hvt__pt2_state_of(w) ? hvt__pt2_state_of(w)->state : "computed");
    hvt__lay_check_trained(l, "weight", w);
    if (w->size[0] != 1 && !hvt__axes_is(&p->axes, 1, 'C'))
        REFUSE(l, "dimension 1 is not the channels");
    v = hvt__lay_by_parameter(l, HVT_MUL, hvt__emit_map(l, p->v, HVT_CLAMP, -INFINITY, 0), w, 0.25f);
    hvt__lay_out(l, hvt__emit_binary(l, HVT_ADD, hvt__emit_map(l, p->v, HVT_RELU, 0, 0), v), &p->axes);
}

/* ---- a tensor and a parameter ---- */

/* True if a parameter with x's sizes except the batch lies as x does on the tape. *ret_rows: how many pixels
 * it has. */
static bool is_embedding(const pt2_axes *x, const pt2_value *v, int64_t *ret_rows)
{
    bool fits = v->ndim <= x->ndim && hvt__axes_in_order(x);

    *ret_rows = 1;
    for (int i = 0; i < x->ndim && fits; i++) {
        const int at = i - (x->ndim - v->ndim);
        int64_t own = 1;

        for (int a = hvt__axes_begin(x, i); a < x->end[i]; a++)
            own *= x->atom[a].axis == 'N' ? 1 : x->atom[a].extent;
        fits = at < 0 ? own == 1 : v->size[at] == own;
        *ret_rows *= i < x->ndim - 1 ? own : 1;
    }
    return fits;
}

/* True for one number, or for [C,1,1] if x is [N,C,H,W]. */
static bool is_of_channels(const pt2_axes *x, const pt2_value *v)
{
    bool fits = v->ndim >= 0 && v->ndim <= x->ndim;

    for (int i = 0; i < v->ndim && fits; i++)
        fits = v->size[i] == 1 || hvt__axes_is(x, x->ndim - v->ndim + i, 'C');
    return fits;
}

/* True for [C,H,W] if x is [N,C,H,W]. */
static bool is_image(const pt2_place *x, const pt2_value *v)
{
    const int64_t *d = x->v->size;
    const int n = v->ndim;

    return n >= 3 && n <= 4 && x->axes.ndim == 4 && hvt__axes_is(&x->axes, 1, 'C') &&
           hvt__axes_is(&x->axes, 2, 'H') && !x->axes.roll[0] && !x->axes.roll[1] &&
           (n == 3 || v->size[0] == 1) && v->size[n - 3] == d[2] && v->size[n - 2] == d[0] &&
           v->size[n - 1] == d[1];
}

static pt2_place with_place(pt2_layout *l, hvt_binary op, pt2_place a, pt2_place b, double factor);

/* True if v is a view of all elements of a parameter or buffer. */
static bool is_single(const pt2_value *v)
{
    const pt2_value *of = hvt__pt2_state_of(v);

    return hvt__pt2_count(v->ndim, v->size) == hvt__pt2_count(of->ndim, of->size);
}

/* x op v, where v is a parameter or buffer of the state_dict. */
static pt2_place with_parameter(pt2_layout *l, hvt_binary op, pt2_place x, const pt2_value *v)
{
    const int last = x.axes.ndim - 1;
    int64_t rows;

    if (v->ndim > 0 && last > 0 && v->size[v->ndim - 1] > 1 && hvt__axes_has(&x.axes, last, 'W') &&
        hvt__axes_pixels(&x.axes, last))
        hvt__lay_turn(l, &x, 0, 0); /* the channels are on the pixels */
    if (is_of_channels(&x.axes, v)) {
        x.v = hvt__lay_by_parameter(l, op, x.v, v, 1);
    } else if (op == HVT_ADD && is_single(v) && is_embedding(&x.axes, v, &rows)) {
        x.v = hvt__lay_embedding(l, x.v, 0, rows, v);
    } else if (op == HVT_ADD && is_single(v) &&
               is_image(&x, v)) { /* transpose it from the parameter's order to the tape's */
        const int64_t *d = x.v->size;
        pt2_value *y = hvt__lay_embedding(l, hvt__emit_zeros(l, 1, d[2] * d[0], d[1]), 0, d[2] * d[0], v);

        y = hvt__emit_transpose(l, y, (int)d[2], (int)(d[0] * d[1]), 1, d[0], d[1]);
        x.v = hvt__emit_binary(l, HVT_ADD, x.v, y);
    } else {
        x = with_place(l, op, x, *hvt__place(l, (pt2_value *)v), 1);
    }
    return x;
}

/* ---- two tensors ---- */

/* True if each axis lies in `some` exactly as in `all`, or is missing there. */
static bool has_whole_axes(const pt2_axes *all, const pt2_axes *some)
{
    pt2_axes y = *all;

    for (int i = 0; i < all->ndim; i++) {
        bool gone = false, kept = false;

        for (const char *axis = "NCHW"; *axis; axis++) {
            gone = gone || (hvt__axes_has(all, i, *axis) && !hvt__axes_has_any(some, *axis));
            kept = kept || (hvt__axes_has(all, i, *axis) && hvt__axes_has_any(some, *axis));
        }
        if (gone && kept)
            return false;
        if (gone)
            hvt__axes_reduce(&y, i);
    }
    return hvt__axes_same(&y, some);
}

/* True if each dimension has the same axes in both, or none in one of them. ret_all: the axes of the result.
 */
static bool broadcasts(const pt2_axes *first, const pt2_axes *second, pt2_axes *ret_all)
{
    const int n = first->ndim > second->ndim ? first->ndim : second->ndim;
    const pt2_axes led_a = hvt__axes_led(first, n), led_b = hvt__axes_led(second, n), *a = &led_a,
                   *b = &led_b;
    bool a_is_all = true, b_is_all = true;

    for (int i = 0; i < n && a->ndim == b->ndim; i++)
        for (int k = 0; k < 4; k++) {
            const bool in_a = hvt__axes_has(a, i, "NCHW"[k]), in_b = hvt__axes_has(b, i, "NCHW"[k]);

            a_is_all = a_is_all && (in_a || !in_b);
            b_is_all = b_is_all && (in_b || !in_a);
        }
    *ret_all = a_is_all ? *a : *b;
    return a->ndim == b->ndim &&
           (hvt__axes_same(a, b) || ((a_is_all || b_is_all) && hvt__axes_plain(a) && hvt__axes_plain(b)) ||
            (a_is_all && has_whole_axes(a, b)) || (b_is_all && has_whole_axes(b, a)));
}

/* True if the channels are where layers leave them: in the last dimension, or in that of an image. */
static bool has_usual_channels(const pt2_axes *x)
{
    const int last = x->ndim - 1;

    return last > 0 && ((hvt__axes_has(x, last, 'C') && hvt__axes_is(x, last, 'C')) ||
                        (hvt__axes_has(x, 1, 'C') && hvt__axes_is(x, 1, 'C')));
}

/* Makes a and b lie alike: arranges a line of tokens in the other's lines, or transposes the one whose
 * channels are not where layers leave them. */
static bool turn_to(pt2_layout *l, pt2_place *a, pt2_place *b)
{
    const bool a_fits = has_usual_channels(&a->axes), b_fits = has_usual_channels(&b->axes),
               a_turns = b_fits && !a_fits;
    pt2_place *x = a_turns ? a : b;
    const int64_t *of_a = a->v->size, *of_b = b->v->size, *like = a_turns ? of_b : of_a;

    if (a_fits && b_fits &&
        (of_a[0] == 1 ? hvt__lay_in_lines(l, a, (int)of_b[0], (int)of_b[1])
                      : hvt__lay_in_lines(l, b, (int)of_a[0], (int)of_a[1])))
        return true;
    return hvt__lay_turn(l, x, (int)like[0], (int)like[1]) || hvt__lay_turn(l, x, 0, 0);
}

/* True if hvt_combine() can broadcast values of these sizes. */
static bool combine(const int64_t *a, const int64_t *b)
{
    bool fits = !memcmp(a, b, 3 * sizeof *a);

    for (int i = 0; i < 2; i++) {
        const int64_t *all = i ? b : a, *some = i ? a : b;

        fits = fits || (some[0] == 1 && some[1] == 1 && some[2] == all[2]) ||
               (some[0] == all[0] && some[1] == all[1] && some[2] == 1);
    }
    return fits;
}

/* Broadcasts a to the sizes of both, if a has no pixels and b no channels, or the reverse. */
static bool spread(pt2_layout *l, pt2_place *a, const pt2_place *b)
{
    const int n = a->axes.ndim;
    pt2_axes all = a->axes;
    int64_t size[3];

    if (b->axes.ndim != n || !hvt__axes_plain(&a->axes) || !hvt__axes_plain(&b->axes))
        return false;
    for (int k = 0; k < 3; k++) {
        size[k] = a->v->size[k] > b->v->size[k] ? a->v->size[k] : b->v->size[k];
        for (int i = 0; i < n; i++)
            if (hvt__axes_has(&b->axes, i, "HWC"[k]) && !hvt__axes_has(&a->axes, i, "HWC"[k])) {
                if (all.end[i] > hvt__axes_begin(&all, i))
                    return false;
                hvt__axes_set(&all, i, "HWC"[k], size[k]);
            }
    }
    if (!combine(size, a->v->size))
        return false;
    a->v = hvt__emit_binary(l, HVT_ADD, hvt__emit_zeros(l, size[0], size[1], size[2]), a->v);
    a->axes = all;
    return true;
}

/* a op factor * b */
static pt2_place with_place(pt2_layout *l, hvt_binary op, pt2_place a, pt2_place b, double factor)
{
    pt2_axes all;

    if (memcmp(a.axes.roll, b.axes.roll, sizeof a.axes.roll) != 0) {
        hvt__lay_unroll(l, &a);
        hvt__lay_unroll(l, &b);
    }
    if ((broadcasts(&a.axes, &b.axes, &all) ||
         ((spread(l, &a, &b) || turn_to(l, &a, &b)) && broadcasts(&a.axes, &b.axes, &all))) &&
        combine(a.v->size, b.v->size))
        return (pt2_place){.v = hvt__emit_binary(l, op, a.v, hvt__emit_affine(l, b.v, factor, 0)),
                           .axes = all};
    hvt__lay_alike(l, &a, &b, l->n->out[0]->ndim, l->n->out[0]->size);
    a.v = hvt__emit_binary(l, op, a.v, hvt__emit_affine(l, b.v, factor, 0));
    return a;
}

/* a op b; either may be a parameter. */
static pt2_place of_two(pt2_layout *l, hvt_binary op, pt2_value *a, pt2_value *b, double alpha)
{
    const bool a_is_state = !a->place && hvt__lay_is_state(a), b_is_state = !b->place && hvt__lay_is_state(b);
    pt2_place x = *hvt__place(l, a_is_state ? b : a);

    if (b_is_state && !a_is_state) {
        if (alpha != 1)
            REFUSE(l, "its alpha is %g, before %s; expected 1", alpha, hvt__pt2_state_of(b)->state);
        return with_parameter(l, op, x, b);
    }
    if (!a_is_state)
        return with_place(l, op, x, *hvt__place(l, b), alpha);
    x.v = hvt__emit_affine(l, x.v, alpha, 0);
    if (op == HVT_SUB) /* the parameter + -x */
        x.v = hvt__emit_affine(l, x.v, -1, 0), op = HVT_ADD;
    else if (op == HVT_DIV) /* the parameter * 1/x */
        x.v = hvt__emit_map(l, x.v, HVT_POW, -1, 0), op = HVT_MUL;
    return a->place ? with_place(l, op, x, *a->place, 1) /* a value of the tape by now */
                    : with_parameter(l, op, x, a);
}

/* x op number, or number - x */
static void with_number(pt2_layout *l, int op, bool reversed, double x, double alpha)
{
    pt2_place y = *hvt__place(l, l->n->in[0]);

    y.v = reversed        ? hvt__emit_affine(l, y.v, -alpha, x)
          : op == HVT_ADD ? hvt__emit_affine(l, y.v, 1, alpha * x)
          : op == HVT_SUB ? hvt__emit_affine(l, y.v, 1, -alpha * x)
          : op == HVT_MUL ? hvt__emit_affine(l, y.v, x, 0)
                          : hvt__emit_affine(l, y.v, 1 / x, 0);
    hvt__lay_out(l, y.v, &y.axes);
}

static void binary(pt2_layout *l)
{
    pt2_node *n = l->n;
    const int op = n->is.binary.op;

    if (n->is.binary.has_number) {
        with_number(l, op, n->is.binary.reversed, n->is.binary.number, n->is.binary.alpha);
    } else {
        const pt2_place p = of_two(l, (hvt_binary)op, n->in[0], n->in[1], n->is.binary.alpha);

        hvt__lay_out(l, p.v, &p.axes);
    }
}

/* where(mask, a, b) with a constant mask. */
static void choose(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const double number = n->is.fill.start;
    const pt2_place mask = *hvt__place(l, n->in[0]);
    pt2_place yes = mask, no = mask;

    no.v = hvt__emit_affine(l, mask.v, -1, 1);
    no = with_place(l, HVT_MUL, *hvt__place(l, n->in[2]), no, 1);
    if (n->in[1])
        yes = with_place(l, HVT_MUL, *hvt__place(l, n->in[1]), mask, 1);
    else
        yes.v = hvt__emit_affine(l, mask.v, fmin(fmax(number, -1e30), 1e30), 0);
    no = with_place(l, HVT_ADD, no, yes, 1);
    hvt__lay_out(l, no.v, &no.axes);
}

/* ---- reductions ---- */

static pt2_value *joined(pt2_layout *l, hvt_binary op, pt2_value *const *v, int n)
{
    pt2_value *all = v[0];

    for (int i = 1; i < n; i++)
        all = hvt__emit_binary(l, op, all, v[i]);
    return all;
}

static pt2_value *over_channels(pt2_layout *l, pt2_op op, pt2_value *x)
{
    return hvt__emit(l, op, NULL, 1, &x, x->size[0], x->size[1], 1);
}

/* The maximum over groups of channels, which are compared with each other. */
static pt2_value *over_groups(pt2_layout *l, bool shares, pt2_value *x, int groups)
{
    return hvt__emit(l, shares ? PT2_MAXIMA : PT2_MAX_GROUPS,
                     shares ? &(pt2_attributes){.amax = {false, false, groups}}
                            : &(pt2_attributes){.groups = groups},
                     1, &x, x->size[0], x->size[1], x->size[2] / groups);
}

/* Lays out a reduced value without the dimensions that were reduced. */
static void out_reduced(pt2_layout *l, pt2_value *v, pt2_axes *axes)
{
    const pt2_value *y = l->n->out[0];

    if (!hvt__axes_view(axes, y->ndim ? y->ndim : 1, y->ndim ? y->size : (const int64_t[]){1}))
        REFUSE(l, "its output has other dimensions than its input");
    hvt__lay_out(l, v, axes);
}

/* Reduces over a slice of the channels. False if the dimension is something else. */
static bool reduce_part(pt2_layout *l, pt2_reduction how, int dim)
{
    pt2_place *p = hvt__place(l, l->n->in[0]);
    pt2_value *part[PARTS], *v;
    pt2_axes axes;
    int n;

    dim += dim < 0 ? p->axes.ndim : 0;
    n = how == PT2_NORM ? 0 : hvt__lay_parts(l, p, dim, PARTS, part);
    if (!n)
        return false;
    axes = p->axes;
    if (how == PT2_MAX || how == PT2_AMAX)
        v = over_groups(l, how == PT2_AMAX, hvt__emit_concat(l, n, part), n);
    else
        v = joined(l, HVT_ADD, part, n);
    if (how == PT2_MEAN)
        v = hvt__emit_map(l, v, HVT_AFFINE, 1 / (float)n, 0);
    hvt__axes_reduce(&axes, dim);
    out_reduced(l, v, &axes);
    return true;
}

/* Finds the axes that dimensions dim[n] consist of, and removes them from `axes`. False unless they are
 * whole. */
static bool find_axes(pt2_axes *axes, int n, const int *dim, bool over[3])
{
    bool fits = n > 0;

    for (int i = 0; i < n && fits; i++) {
        const int d = dim[i] + (dim[i] < 0 ? axes->ndim : 0);

        if (d <= 0 || d >= axes->ndim)
            return false;
        for (int k = 0; k < 3; k++)
            over[k] = over[k] || hvt__axes_has(axes, d, "HWC"[k]);
        hvt__axes_reduce(axes, d);
    }
    for (int k = 0; k < 3; k++)
        fits = fits && !(over[k] && hvt__axes_has_any(axes, "HWC"[k]));
    return fits;
}

/* The number of elements that one output is made of in the file; the tape may store fewer, broadcast ones. */
static double elements(const pt2_value *x, int n, const int *dim)
{
    double all = 1;

    for (int i = 0; i < n; i++)
        all *= (double)x->size[dim[i] + (dim[i] < 0 ? x->ndim : 0)];
    return all;
}

static pt2_value *over_pixels(pt2_layout *l, bool maximum, pt2_value *v, bool rows, bool columns)
{
    const int64_t h = rows ? 1 : v->size[0], w = columns ? 1 : v->size[1];
    const pt2_attributes is = {.pool = {maximum ? HVT_POOL_MAX : HVT_POOL_MEAN, {.size = {(int)h, (int)w}}}};

    return hvt__emit(l, PT2_ADAPTIVE_POOL, &is, 1, &v, h, w, v->size[2]);
}

/* Reduces v. all: how many elements become one. */
static pt2_value *reduced(pt2_layout *l, pt2_reduction how, pt2_value *v, const bool over[3], double all)
{
    const bool maximum = how == PT2_MAX;

    if (how == PT2_NORM)
        v = hvt__emit_binary(l, HVT_MUL, v, v);
    if (how == PT2_AMAX) {
        const int groups = over[2] ? (int)v->size[2] : 1;

        return hvt__emit(l, PT2_MAXIMA, &(pt2_attributes){.amax = {over[0], over[1], groups}}, 1, &v,
                         over[0] ? 1 : v->size[0], over[1] ? 1 : v->size[1], v->size[2] / groups);
    }
    if (over[0] || over[1])
        v = over_pixels(l, maximum, v, over[0], over[1]);
    if (over[2])
        v = over_channels(l, maximum ? PT2_MAX_CHANNELS : PT2_MEAN_CHANNELS, v);
    if (how == PT2_SUM)
        v = hvt__emit_map(l, v, HVT_AFFINE, (float)all, 0);
    if (how == PT2_NORM) { /* so the gradient at 0 is 0 */
        v = hvt__emit_map(l, hvt__emit_map(l, v, HVT_CLAMP, 1e-30f, INFINITY), HVT_POW, 0.5, 0);
        v = hvt__emit_map(l, v, HVT_AFFINE, (float)sqrt(all), 0);
    }
    return v;
}

/* Makes these dimensions of x, and no others, its channels. The axes of the result lack them. */
static pt2_place reduced_last(pt2_layout *l, const pt2_place *x, const pt2_value *v, int n, const int *dim)
{
    pt2_place y = *x;
    int from[PT2_DIMS], back[PT2_DIMS], to = 0;
    int64_t moved[PT2_DIMS];
    unsigned gone = 0;

    if (y.axes.ndim != v->ndim)
        REFUSE(l, "its input has other dimensions than in the file");
    for (int i = 0; i < n; i++)
        gone |= 1u << (dim[i] + (dim[i] < 0 ? v->ndim : 0));
    for (int last = 0; last < 2; last++)
        for (int i = 0; i < v->ndim; i++)
            if ((gone >> i & 1) == (unsigned)last) {
                moved[to] = v->size[i];
                back[i] = to;
                from[to++] = i;
            }
    hvt__axes_permute(&y.axes, from);
    y = hvt__lay_in_order(l, &y, moved, 0, v->ndim - __builtin_popcount(gone));
    hvt__axes_permute(&y.axes, back);
    for (int i = 0; i < v->ndim; i++)
        if (gone >> i & 1)
            hvt__axes_reduce(&y.axes, i);
    return y;
}

/* A reduction over any dimensions but the batch. */
static void reduce(pt2_layout *l)
{
    pt2_node *n = l->n;
    const pt2_reduction how = n->is.reduce.how;
    bool over[3] = {0};
    pt2_place x, whole;
    double all;

    if (how == PT2_MAX && n->nout > 1 && n->out[1]->nuses)
        REFUSE(l, "its indices are read; expected its values alone");
    if (n->is.reduce.n == 1 && reduce_part(l, how, n->is.reduce.dim[0]))
        return;
    x = hvt__lay_ordered(l, hvt__place(l, n->in[0]));
    all = elements(n->in[0], n->is.reduce.n, n->is.reduce.dim);
    whole = x;
    if (!find_axes(&x.axes, n->is.reduce.n, n->is.reduce.dim, over)) {
        x = reduced_last(l, &whole, n->in[0], n->is.reduce.n, n->is.reduce.dim);
        over[0] = over[1] = false, over[2] = true;
    }
    out_reduced(l, reduced(l, how, x.v, over, all), &x.axes);
}

/* A softmax over a slice of the channels. False if the dimension is something else. */
static bool softmax_parts(pt2_layout *l, pt2_place *p, int dim)
{
    pt2_value *part[PARTS], *most, *sum;
    const int n = hvt__lay_parts(l, p, dim, PARTS, part);

    if (!n)
        return false;
    most = joined(l, HVT_MAXIMUM, part, n);
    for (int i = 0; i < n; i++)
        part[i] = hvt__emit_map(l, hvt__emit_binary(l, HVT_SUB, part[i], most), HVT_EXP, 0, 0);
    sum = joined(l, HVT_ADD, part, n);
    for (int i = 0; i < n; i++)
        part[i] = hvt__emit_binary(l, HVT_DIV, part[i], sum);
    hvt__lay_out(l, hvt__emit_concat(l, n, part), &p->axes);
    return true;
}

static bool follows_the_head(const pt2_graph *g, const pt2_node *n)
{
    while (n && n != g->head)
        n = n->before;
    return n && g->head;
}

/* e^(x - max) / sum over all channels. */
pt2_value *hvt__lay_softmax(pt2_layout *l, pt2_value *x)
{
    pt2_value *v = hvt__emit_binary(l, HVT_SUB, x, over_channels(l, PT2_MAX_CHANNELS, x));

    v = hvt__emit_map(l, v, HVT_EXP, 0, 0);
    return hvt__emit_binary(
        l, HVT_DIV, v,
        hvt__emit_map(l, over_channels(l, PT2_MEAN_CHANNELS, v), HVT_AFFINE, (float)x->size[2], 0));
}

static void softmax(pt2_layout *l)
{
    const int dim = l->n->is.along.dim;
    pt2_place *p, x;

    if (follows_the_head(l->g, l->n))
        REFUSE(
            l,
            "the loss computes the softmax of the model's output itself; export the model without this one");
    p = hvt__place(l, l->n->in[0]);
    if (softmax_parts(l, p, dim))
        return;
    x = hvt__lay_ordered(l, p);
    x = hvt__lay_as_channels(l, &x, l->n->in[0]->size, dim);
    hvt__lay_out(l, hvt__lay_softmax(l, x.v), &x.axes);
}

/* ---- products of matrices ---- */

/* The second factor is the same for all rows of the first, whatever dimensions the rows are. */
static pt2_place by_one_matrix(pt2_layout *l, const pt2_place *a, const pt2_place *b)
{
    const pt2_node *n = l->n;
    pt2_place x = hvt__lay_as_channels(l, a, n->in[0]->size, n->in[0]->ndim - 1),
              y = hvt__lay_in_order(l, b, n->in[1]->size, 0, 1);
    const int64_t h = x.v->size[0], w = x.v->size[1];
    pt2_value *in[2] = {hvt__lay_reshape(l, x.v, 1, h * w), y.v};

    x.v = hvt__emit(l, PT2_MATMUL, NULL, 2, in, 1, h * w, y.v->size[2]);
    x.v = hvt__lay_reshape(l, x.v, h, w);
    hvt__axes_set(&x.axes, x.axes.ndim - 1, 'C', x.v->size[2]);
    return x;
}

static void matmul(pt2_layout *l)
{
    const pt2_node *n = l->n;
    const pt2_place *a = hvt__place(l, n->in[0]), *b = hvt__place(l, n->in[1]);
    const pt2_place y =
        n->in[1]->ndim == 2 && n->in[0]->ndim > 1 && b->axes.ndim == 2
            ? by_one_matrix(l, a, b)
            : hvt__lay_matmul(l, a, b, n->out[0]->ndim, n->out[0]->size, n->in[0]->size[n->in[0]->ndim - 1]);

    hvt__lay_out(l, y.v, &y.axes);
}

/* ---- vectors of length 1 ---- */

/* True if the dimension is adjacent channels of one of several heads. */
static bool is_within_heads(const pt2_axes *a, int dim)
{
    const int begin = hvt__axes_begin(a, dim);

    return a->end[dim] == begin + 1 && a->atom[begin].axis == 'C' && a->atom[begin].stride == 1 &&
           !hvt__axes_is(a, dim, 'C');
}

/* x / max(length, least) */
static void normalise(pt2_layout *l)
{
    const pt2_attributes *is = &l->n->is;
    const double least = is->normalise.least;
    pt2_place *p = hvt__place(l, l->n->in[0]), x = *p;
    pt2_value *v, *squares;
    bool over[3] = {0};
    int heads;

    if (is_within_heads(&x.axes, is->normalise.dim)) {
        v = hvt__lay_vectors(l, &x, &heads);
        squares = hvt__emit_map(l, over_channels(l, PT2_MEAN_CHANNELS, hvt__emit_binary(l, HVT_MUL, v, v)),
                                HVT_AFFINE, (float)v->size[2], 0);
        squares = hvt__emit_map(l, squares, HVT_CLAMP, fmaxf((float)(least * least), 1e-30f), INFINITY);
        v = hvt__emit_binary(l, HVT_MUL, v, hvt__emit_map(l, squares, HVT_POW, -0.5, 0));
        hvt__lay_out(l, hvt__lay_of_heads(l, v, heads), &x.axes);
        return;
    }
    x = hvt__lay_ordered(l, p);
    v = x.v;
    if (!find_axes(&x.axes, 1, &is->normalise.dim, over)) {
        *p = hvt__lay_as_channels(l, p, l->n->in[0]->size, is->normalise.dim);
        x = *p;
        v = x.v;
        hvt__axes_reduce(&x.axes, is->normalise.dim);
        over[0] = over[1] = false, over[2] = true;
    }
    x.v = reduced(l, PT2_NORM, v, over, elements(l->n->in[0], 1, &is->normalise.dim));
    if (is->normalise.clamped)
        x.v = hvt__emit_map(l, x.v, HVT_HARDTANH, least, INFINITY);
    x = with_place(l, HVT_DIV, *p, x, 1);
    hvt__lay_out(l, x.v, &x.axes);
}

/* ---- the table ---- */

static const pt2_lay_row table[] = {
    {PT2_DROPOUT, hvt__lay_as_is}, {PT2_MAP, hvt__lay_as_is}, {PT2_PRELU, prelu},
    {PT2_BINARY, binary},          {PT2_REDUCE, reduce},      {PT2_SOFTMAX, softmax},
    {PT2_NORMALISE, normalise},    {PT2_MATMUL, matmul},      {PT2_WHERE, choose},
};

const pt2_lay_rows hvt__lay_math_rows = {table, HVT_LEN(table)};
