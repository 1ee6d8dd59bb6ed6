/*
 * Puts the elements of a tensor into the order of its dimensions, whatever views and permutations it has
 * been through: the first dimensions become H, the next ones W, the others C. Operations use it where no
 * layer can walk the tensor as it lies.
 */
#include "layout.h"

/* A part of a dimension: how many steps, and their stride among the elements of an image. */
typedef struct step {
    int64_t extent, stride; /* stride 0: a repetition */
} step;

typedef struct steps {
    int n;
    step at[PT2_ATOMS + 2 * PT2_DIMS];
} steps;

static int64_t stride_of(const pt2_value *v, const pt2_atom *a)
{
    return a->stride * (a->axis == 'C' ? 1 : v->size[2]) * (a->axis == 'H' ? v->size[1] : 1);
}

static int64_t product(const step *s, int n)
{
    int64_t all = 1;

    for (int i = 0; i < n; i++)
        all *= s[i].extent;
    return all;
}

/* Appends the steps of dimension i, without the batch, and one that repeats it to `size`. */
static void take(pt2_layout *l, const pt2_place *p, int i, int64_t size, steps *to)
{
    int64_t own = 1, images = 1;

    for (int a = hvt__axes_begin(&p->axes, i); a < p->axes.end[i]; a++) {
        *(p->axes.atom[a].axis == 'N' ? &images : &own) *= p->axes.atom[a].extent;
        if (p->axes.atom[a].axis != 'N' && p->axes.atom[a].extent > 1)
            to->at[to->n++] = (step){p->axes.atom[a].extent, stride_of(p->v, &p->axes.atom[a])};
    }
    if (size < 1 || (own * images != size && (own != 1 || size % images)))
        REFUSE(l, "dimension %d has %lld elements, not %lld", i, (long long)(own * images), (long long)size);
    if (own * images != size)
        to->at[to->n++] = (step){size / images, 0};
}

/* Transposes v until its elements are in the order of the steps; repetitions are skipped. */
static pt2_value *permuted(pt2_layout *l, pt2_value *v, const steps *s, int64_t h, int64_t w)
{
    step now[PT2_ATOMS + 2 * PT2_DIMS] = {0}, want[PT2_ATOMS + 2 * PT2_DIMS] = {0};
    int n = 0;

    for (int i = 0; i < s->n; i++)
        if (s->at[i].stride)
            now[n] = want[n] = s->at[i], n++;
    for (int i = 1; i < n; i++) /* by stride */
        for (int k = i; k > 0 && now[k].stride > now[k - 1].stride; k--) {
            const step t = now[k];

            now[k] = now[k - 1], now[k - 1] = t;
        }
    if (product(now, n) != v->size[0] * v->size[1] * v->size[2])
        REFUSE(l, "its dimensions are not all elements of a tensor");
    for (int i = 0; i < n; i++) {
        int from = i, to;

        while (now[from].stride != want[i].stride)
            from++;
        if (from == i)
            continue;
        for (to = from; to < n && to - from + i < n && now[to].stride == want[to - from + i].stride;)
            to++; /* move adjacent steps that stay adjacent together */
        v = hvt__emit_transpose(l, v, (int)product(now + i, from - i), (int)product(now + from, to - from),
                                (int)product(now + to, n - to), h, w);
        memmove(now + i + to - from, now + i, (size_t)(from - i) * sizeof *now);
        memcpy(now + i, want + i, (size_t)(to - from) * sizeof *now);
    }
    return v;
}

pt2_value *hvt__lay_reshape(pt2_layout *l, pt2_value *v, int64_t h, int64_t w)
{
    const int64_t all = v->size[0] * v->size[1] * v->size[2];

    if (v->size[0] == h && v->size[1] == w)
        return v;
    return v->size[0] * v->size[1] == h * w ? hvt__emit_pixels(l, v, h, w)
                                            : hvt__emit_transpose(l, v, 1, 1, (int)all, h, w);
}

/* Repeats the elements of v, which are in the order of the steps. */
static pt2_value *repeated(pt2_layout *l, pt2_value *v, const steps *s)
{
    const int64_t elements = v->size[0] * v->size[1] * v->size[2];
    int inner = s->n, count = 1, *index;
    int64_t block = 1, all, rows;

    while (inner > 0 && !s->at[inner - 1].stride)
        block *= s->at[--inner].extent;
    if (block > 1) /* broadcasts one channel to `block` channels */
        v = hvt__emit_binary(l, HVT_ADD, hvt__emit_zeros(l, 1, elements, block),
                             hvt__lay_reshape(l, v, 1, elements));
    while (inner > 0 && s->at[inner - 1].stride)
        block *= s->at[--inner].extent;
    if (!inner)
        return v;
    all = product(s->at, inner), rows = v->size[0] * v->size[1] * v->size[2] / block;
    if (all > PT2_REPEATS)
        REFUSE(l, "it is repeated %lld times; expected at most %d", (long long)all, PT2_REPEATS);
    index = hvt__pt2_make(l->g, (size_t)all * sizeof *index);
    for (int i = 0; i < inner; i++) { /* index[count] is the place of each combination of the steps so far */
        const int extent = (int)s->at[i].extent;

        for (int k = count - 1; k >= 0; k--)
            for (int e = extent - 1; e >= 0; e--)
                index[k * extent + e] = s->at[i].stride ? index[k] * extent + e : index[k];
        count *= extent;
    }
    v = hvt__lay_reshape(l, v, 1, rows);
    return hvt__emit_gather(l, v, index, 1, 1, all);
}

/* The axis that dimension i becomes. */
static char axis_of(int i, int w, int c)
{
    return i < w ? 'H' : i < c ? 'W' : 'C';
}

pt2_place hvt__lay_in_order(pt2_layout *l, const pt2_place *from, const int64_t *size, int w, int c)
{
    pt2_place p = *from, y = {.axes = {.ndim = from->axes.ndim}};
    int64_t left[3] = {1, 1, 1};
    steps s = {0};
    bool repeats = false;
    int to = 0;

    hvt__lay_unroll(l, &p);
    for (int i = 0; i < p.axes.ndim; i++) {
        const int first = s.n;
        int64_t own = 1;

        if (i >= c && hvt__axes_has(&p.axes, i, 'N'))
            REFUSE(l, "dimension %d has the batch; expected a dimension of images", i);
        for (int a = hvt__axes_begin(&p.axes, i); a < p.axes.end[i]; a++)
            own *= p.axes.atom[a].extent;
        take(l, &p, i, size ? size[i] : own, &s);
        left[strchr("HWC", axis_of(i, w, c)) - "HWC"] *= product(s.at + first, s.n - first);
    }
    for (int i = 0; i < s.n; i++)
        repeats = repeats || !s.at[i].stride;
    p.v = permuted(l, p.v, &s, repeats ? p.v->size[0] : left[0], repeats ? p.v->size[1] : left[1]);
    y.v = hvt__lay_reshape(l, repeats ? repeated(l, p.v, &s) : p.v, left[0], left[1]);
    for (int i = 0; i < p.axes.ndim; i++) { /* joins adjacent atoms */
        const char axis = axis_of(i, w, c);
        int64_t *rest = &left[strchr("HWC", axis) - "HWC"];
        const int begin = to;
        int64_t own = 1;

        for (int a = hvt__axes_begin(&p.axes, i); a <= p.axes.end[i]; a++) {
            const bool more = a < p.axes.end[i];
            pt2_atom atom = more ? p.axes.atom[a] : (pt2_atom){axis, size ? size[i] / own : 1, 1};

            own *= atom.extent;
            if (atom.extent == 1)
                continue;
            if (atom.axis != 'N') {
                *rest /= atom.extent;
                atom.axis = axis, atom.stride = *rest;
            }
            if (to > begin && y.axes.atom[to - 1].axis == axis && atom.axis == axis) {
                y.axes.atom[to - 1].extent *= atom.extent;
                y.axes.atom[to - 1].stride = atom.stride;
            } else if (to < PT2_ATOMS) {
                y.axes.atom[to++] = atom;
            } else {
                REFUSE(l, "its dimensions consist of too many parts");
            }
        }
        y.axes.end[i] = to;
    }
    return y;
}

/* ---- one dimension ---- */

static void move_last(pt2_axes *x, int dim, bool back)
{
    int from[PT2_DIMS];

    for (int i = 0; i < x->ndim; i++)
        from[i] = back ? (i < dim ? i : i == dim ? x->ndim - 1 : i - 1) : i < dim ? i : i + 1;
    if (!back)
        from[x->ndim - 1] = dim;
    hvt__axes_permute(x, from);
}

pt2_place hvt__lay_as_channels(pt2_layout *l, const pt2_place *p, const int64_t *size, int dim)
{
    pt2_place x = *p;
    int64_t moved[PT2_DIMS];

    if (hvt__axes_is(&x.axes, dim, 'C') && hvt__axes_has(&x.axes, dim, 'C'))
        return x;
    for (int i = 0; size && i < x.axes.ndim; i++)
        moved[i < dim ? i : i == dim ? x.axes.ndim - 1 : i - 1] = size[i];
    move_last(&x.axes, dim, false);
    x = hvt__lay_in_order(l, &x, size ? moved : NULL, 0, x.axes.ndim - 1);
    move_last(&x.axes, dim, true);
    return x;
}

pt2_along hvt__lay_along(pt2_layout *l, const pt2_place *p, const int64_t *size, int dim)
{
    pt2_along x = {.place = *p, .dim = dim};
    int64_t moved[PT2_DIMS];

    if (hvt__axes_has(&p->axes, dim, 'N'))
        REFUSE(l, "dimension %d has the batch; expected a dimension of images", dim);
    for (int i = dim; i < p->axes.ndim; i++)
        x.moved = x.moved || hvt__axes_has(&p->axes, i, 'N');
    if (x.moved) {
        for (int i = 0; i < p->axes.ndim; i++)
            moved[i < dim ? i : i == dim ? p->axes.ndim - 1 : i - 1] = size[i];
        move_last(&x.place.axes, dim, false);
        size = moved;
        x.dim = p->axes.ndim - 1;
    }
    x.place = hvt__lay_in_order(l, &x.place, size, x.dim, x.dim + 1);
    return x;
}

pt2_place hvt__lay_resized(const pt2_along *x, pt2_value *v, int dim)
{
    pt2_place y = {.v = v, .axes = x->place.axes};

    hvt__axes_set(&y.axes, x->dim, 'W', v->size[1]);
    if (x->moved)
        move_last(&y.axes, dim, true);
    return y;
}

/* ---- two tensors ---- */

/* The order N, H, W, C of the dimensions if each is one axis or none; else their own order. */
static void order_of(const pt2_axes *x, int *from, int *ret_w, int *ret_c)
{
    int to = 0;

    *ret_w = 0, *ret_c = x->ndim - 1;
    for (int i = 0; i < x->ndim; i++)
        from[i] = i;
    if (!hvt__axes_plain(x))
        return;
    for (const char *axis = "NHWC"; *axis; axis++) {
        if (*axis == 'W')
            *ret_w = to;
        if (*axis == 'C')
            *ret_c = to;
        for (int i = 0; i < x->ndim; i++)
            if (*axis == 'N' ? hvt__axes_begin(x, i) == x->end[i] || hvt__axes_has(x, i, 'N')
                             : hvt__axes_has(x, i, *axis))
                from[to++] = i;
    }
}

/* Adds dimensions of size 1 in front, up to n dimensions. */
pt2_axes hvt__axes_led(const pt2_axes *x, int n)
{
    pt2_axes y = *x;

    for (; y.ndim && y.ndim < n; y.ndim++) {
        memmove(y.end + 1, y.end, (size_t)y.ndim * sizeof *y.end);
        y.end[0] = 0;
    }
    return y;
}

/* Repeats x along each dimension, and along new ones in front. */
pt2_place hvt__lay_repeated(pt2_layout *l, const pt2_place *x, const pt2_value *from, const pt2_value *to)
{
    pt2_place y = *x;
    int64_t size[PT2_DIMS];
    const int led = to->ndim - from->ndim;

    y.axes = hvt__axes_led(&y.axes, to->ndim);
    for (int i = 0; i < to->ndim; i++)
        size[i] = i < led ? 1 : from->size[i - led];
    for (int i = 0; i < to->ndim; i++) {
        int64_t divided[PT2_DIMS], all[PT2_DIMS];
        int n = 0;

        if (size[i] == to->size[i])
            continue;
        if (led < 0 || to->ndim == PT2_DIMS || size[i] < 1 || to->size[i] % size[i])
            REFUSE(l, "its output does not repeat its input");
        for (int k = 0; k < to->ndim; k++) {
            if (k == i)
                divided[n] = 1, all[n++] = to->size[i] / size[i];
            divided[n] = size[k], all[n++] = size[k];
        }
        if (i == 0 && size[0] == 1 && to->size[0] == l->g->batch) { /* the same for all images */
            hvt__axes_set(&y.axes, 0, 'N', to->size[0]);
        } else {
            if (!hvt__axes_view(&y.axes, n, divided))
                REFUSE(l, "its output does not repeat its input");
            y = hvt__lay_in_order(l, &y, all, 0, n - 1);
        }
        size[i] = to->size[i];
        if (!hvt__axes_view(&y.axes, to->ndim, size))
            REFUSE(l, "its output does not repeat its input");
    }
    return y;
}

static bool is_whole(const pt2_axes *x, const int64_t *size)
{
    bool whole = true;

    for (int i = 0; i < x->ndim; i++) {
        int64_t own = 1;

        for (int a = hvt__axes_begin(x, i); a < x->end[i]; a++)
            own *= x->atom[a].extent;
        whole = whole && own == size[i];
    }
    return whole;
}

/* If one tensor has the batch in a dimension in which the other has nothing, the other is the same for all
 * images. */
static void share_batch(pt2_layout *l, pt2_axes *a, pt2_axes *b, int ndim)
{
    for (int i = 0; i < ndim; i++)
        for (int k = 0; k < 2; k++) {
            pt2_axes *x = k ? b : a, *other = k ? a : b;

            if (hvt__axes_begin(x, i) == x->end[i] && !hvt__axes_has_any(x, 'N') &&
                hvt__axes_has(other, i, 'N'))
                hvt__axes_set(x, i, 'N', l->g->batch);
        }
}

void hvt__lay_alike(pt2_layout *l, pt2_place *a, pt2_place *b, int ndim, const int64_t *size)
{
    pt2_place *const both[2] = {a, b};
    int from[PT2_DIMS], back[PT2_DIMS], w, c;
    int64_t moved[PT2_DIMS];

    for (int i = 0; i < 2; i++) {
        both[i]->axes = hvt__axes_led(&both[i]->axes, ndim);
        if (both[i]->axes.ndim != ndim) { /* a number */
            both[i]->axes.ndim = ndim;
            memset(both[i]->axes.end, 0, sizeof both[i]->axes.end);
        }
    }
    share_batch(l, &a->axes, &b->axes, ndim);
    order_of(is_whole(&b->axes, size) && !is_whole(&a->axes, size) ? &b->axes : &a->axes, from, &w, &c);
    for (int i = 0; i < ndim; i++)
        moved[i] = size[from[i]], back[from[i]] = i;
    for (int i = 0; i < 2; i++) {
        hvt__axes_permute(&both[i]->axes, from);
        *both[i] = hvt__lay_in_order(l, both[i], moved, w, c);
        hvt__axes_permute(&both[i]->axes, back);
    }
    if (!hvt__axes_same(&a->axes, &b->axes))
        REFUSE(l, "its arguments have the batch in different dimensions");
}

/* ---- products of matrices ---- */

/* Views x, [.., rows, columns], as [matrices, rows, columns]; turned: x is [.., columns, rows]. */
static pt2_place matrices(pt2_layout *l, const pt2_place *x, const int64_t *size, bool turned)
{
    const int n = x->axes.ndim;
    pt2_place y = *x;
    int64_t moved[PT2_DIMS];
    int from[PT2_DIMS];

    memcpy(moved, size, sizeof moved);
    for (int i = 0; i < n; i++)
        from[i] = i;
    if (turned) {
        from[n - 2] = n - 1, from[n - 1] = n - 2;
        hvt__axes_permute(&y.axes, from);
        moved[n - 2] = size[n - 1], moved[n - 1] = size[n - 2];
    }
    if (hvt__axes_has(&y.axes, n - 2, 'N'))
        REFUSE(l, "it multiplies along the batch; expected dimensions of images");
    y = hvt__lay_in_order(l, &y, moved, n - 2, n - 1);
    if (turned)
        hvt__axes_permute(&y.axes, from);
    return y;
}

/* True if x has its rows where a matrix has columns. */
static bool lies_turned(const pt2_axes *x)
{
    bool turned = false;

    for (int a = hvt__axes_begin(x, x->ndim - 2); a < x->end[x->ndim - 2]; a++)
        turned = turned || (x->atom[a].axis == 'C' && x->atom[a].stride == 1);
    return turned;
}

pt2_place hvt__lay_matmul(pt2_layout *l, const pt2_place *first, const pt2_place *second, int ndim,
                          const int64_t *size, int64_t inner)
{
    pt2_place a = *first, b = *second, y = {.axes = {.ndim = ndim}};
    int64_t of_a[PT2_DIMS], of_b[PT2_DIMS];
    pt2_value *in[2];
    bool turned;
    int last;

    a.axes = hvt__axes_led(&a.axes, ndim), b.axes = hvt__axes_led(&b.axes, ndim);
    if (ndim < 2 || a.axes.ndim != ndim || b.axes.ndim != ndim)
        REFUSE(l, "its arguments are not matrices");
    memcpy(of_a, size, sizeof of_a), memcpy(of_b, size, sizeof of_b);
    of_a[ndim - 1] = of_b[ndim - 2] = inner;
    share_batch(l, &a.axes, &b.axes, ndim - 2);
    turned = lies_turned(&b.axes);
    a = matrices(l, &a, of_a, false), b = matrices(l, &b, of_b, turned);
    last = ndim > 2 ? a.axes.end[ndim - 3] : 0;
    if (last != (ndim > 2 ? b.axes.end[ndim - 3] : 0) ||
        memcmp(a.axes.atom, b.axes.atom, (size_t)last * sizeof *a.axes.atom) != 0)
        REFUSE(l, "its arguments have the batch in different dimensions");
    in[0] = a.v, in[1] = b.v;
    y.v = hvt__emit(l, PT2_MATMUL, &(pt2_attributes){.transposed = turned}, 2, in, a.v->size[0], a.v->size[1],
                    b.v->size[turned ? 1 : 2]);
    y.axes = a.axes;
    hvt__axes_set(&y.axes, ndim - 2, 'W', y.v->size[1]);
    hvt__axes_set(&y.axes, ndim - 1, 'C', y.v->size[2]);
    return y;
}
