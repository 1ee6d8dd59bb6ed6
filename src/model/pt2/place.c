/*
 * Where tensors are on the tape, and moving them. Axes can say that rows and columns were rolled, that
 * pixels were arranged in lines, or that channels and pixels changed places; the functions here append
 * the nodes that move the elements.
 */
#include "layout.h"

#include <math.h>

enum { PATCH = 1024 }; /* limit for pixels that become channels of one */

/* ---- nodes of the tape ---- */

pt2_value *hvt__emit(pt2_layout *l, pt2_op op, const pt2_attributes *is, int nin, pt2_value *const *in,
                     int64_t h, int64_t w, int64_t c)
{
    const pt2_value like = {.ndim = 3, .size = {h, w, c}};

    return hvt__pt2_compute(l->g, NULL, l->n, op, is, nin, in, &like);
}

pt2_value *hvt__emit_like(pt2_layout *l, pt2_op op, const pt2_attributes *is, pt2_value *x)
{
    return hvt__emit(l, op, is, 1, &x, x->size[0], x->size[1], x->size[2]);
}

pt2_value *hvt__emit_map(pt2_layout *l, pt2_value *x, int f, double a, double b)
{
    return hvt__emit_like(l, PT2_MAP, &(pt2_attributes){.map = {f, a, b}}, x);
}

pt2_value *hvt__emit_affine(pt2_layout *l, pt2_value *x, double factor, double term)
{
    return factor == 1 && term == 0 ? x : hvt__emit_map(l, x, HVT_AFFINE, factor, term);
}

pt2_value *hvt__emit_binary(pt2_layout *l, hvt_binary op, pt2_value *a, pt2_value *b)
{
    pt2_value *const in[2] = {a, b};
    int64_t size[3];

    for (int i = 0; i < 3; i++)
        size[i] = a->size[i] > b->size[i] ? a->size[i] : b->size[i];
    return hvt__emit(l, PT2_BINARY, &(pt2_attributes){.binary = {.op = (int)op}}, 2, in, size[0], size[1],
                     size[2]);
}

pt2_value *hvt__emit_channels(pt2_layout *l, pt2_value *x, int first, int count)
{
    return hvt__emit(l, PT2_CHANNELS, &(pt2_attributes){.channels = {first, count}}, 1, &x, x->size[0],
                     x->size[1], count);
}

pt2_value *hvt__emit_concat(pt2_layout *l, int count, pt2_value *const *in)
{
    int64_t channels = 0;

    for (int i = 0; i < count; i++)
        channels += in[i]->size[2];
    return hvt__emit(l, PT2_CONCAT, NULL, count, in, in[0]->size[0], in[0]->size[1], channels);
}

pt2_value *hvt__emit_zeros(pt2_layout *l, int64_t h, int64_t w, int64_t c)
{
    return hvt__emit(l, PT2_ZEROS, NULL, 0, NULL, h, w, c);
}

pt2_value *hvt__emit_pad(pt2_layout *l, pt2_value *x, int top, int bottom, int left, int right)
{
    return hvt__emit(l, PT2_PAD, &(pt2_attributes){.by = {top, bottom, left, right}}, 1, &x,
                     x->size[0] + top + bottom, x->size[1] + left + right, x->size[2]);
}

pt2_value *hvt__emit_every(pt2_layout *l, pt2_value *x, int rows, int columns)
{
    return hvt__emit(l, PT2_POOL,
                     &(pt2_attributes){.pool = {HVT_POOL_MEAN, {.size = {1, 1}, .stride = {rows, columns}}}},
                     1, &x, (x->size[0] - 1) / rows + 1, (x->size[1] - 1) / columns + 1, x->size[2]);
}

pt2_value *hvt__emit_pixels(pt2_layout *l, pt2_value *x, int64_t h, int64_t w)
{
    return hvt__emit(l, PT2_PIXELS, NULL, 1, &x, h, w, x->size[2]);
}

pt2_value *hvt__emit_gather(pt2_layout *l, pt2_value *x, const int *index, int terms, int64_t h, int64_t w)
{
    return hvt__emit(l, PT2_GATHER, &(pt2_attributes){.gather = {index, terms}}, 1, &x, h, w, x->size[2]);
}

pt2_value *hvt__emit_transpose(pt2_layout *l, pt2_value *x, int rows, int columns, int block, int64_t h,
                               int64_t w)
{
    return hvt__emit(l, PT2_TRANSPOSE, &(pt2_attributes){.transpose = {rows, columns, block}}, 1, &x, h, w,
                     h > 0 && w > 0 ? x->size[0] * x->size[1] * x->size[2] / (h * w) : 0);
}

/* ---- outputs ---- */

/* Compares the sizes of a value of the tape with those in the file, which differ if the file is damaged. */
static void check_shape(pt2_layout *l, const pt2_place *p)
{
    const pt2_axes *x = &p->axes;
    const int64_t is[3] = {p->v->size[0], p->v->size[1], p->v->size[2]};
    int64_t want[3] = {1, 1, 1};

    for (int a = 0; a < (x->ndim ? x->end[x->ndim - 1] : 0); a++) {
        const char *at = strchr("HWC", x->atom[a].axis);

        if (at)
            want[at - "HWC"] *= x->atom[a].extent;
    }
    if (memcmp(is, want, sizeof is) != 0)
        REFUSE(l, "its output is %lldx%lldx%lld here, but %lldx%lldx%lld in the file", (long long)is[0],
               (long long)is[1], (long long)is[2], (long long)want[0], (long long)want[1],
               (long long)want[2]);
}

void hvt__lay_out(pt2_layout *l, pt2_value *v, const pt2_axes *axes)
{
    pt2_place *p = hvt__pt2_make(l->g, sizeof *p);

    *p = (pt2_place){.v = v, .axes = *axes};
    check_shape(l, p);
    l->n->out[0]->place = p;
}

void hvt__lay_out_image(pt2_layout *l, pt2_value *v)
{
    const pt2_value *y = l->n->out[0];
    pt2_axes axes;

    if (y->ndim < 0)
        REFUSE(l, "output 0 has no sizes, or more than %d dimensions", PT2_DIMS);
    if (y->ndim != 4 && y->ndim != 2)
        REFUSE(l, "its output has %d dimensions", y->ndim);
    if (y->size[0] != l->g->batch && (y->size[0] != 1 || l->n->in[0]->computed))
        REFUSE(l,
               "its output has %lld rows where the example has %d images: dimensions of the batch and of an "
               "image are mixed",
               (long long)y->size[0], l->g->batch);
    axes = hvt__axes_of(y->ndim, y->size);
    hvt__lay_out(l, v, &axes);
}

/* ---- lines and order ---- */

/* Rolls x by `by` rows or columns. */
static pt2_value *turned_by(pt2_layout *l, pt2_value *x, bool columns, int size, int by)
{
    const int rest = size - by;

    return columns ? hvt__emit_binary(l, HVT_ADD, hvt__emit_pad(l, x, 0, 0, -by, by),
                                      hvt__emit_pad(l, x, 0, 0, rest, -rest))
                   : hvt__emit_binary(l, HVT_ADD, hvt__emit_pad(l, x, -by, by, 0, 0),
                                      hvt__emit_pad(l, x, rest, -rest, 0, 0));
}

void hvt__lay_unroll(pt2_layout *l, pt2_place *p)
{
    for (int k = 0; k < 2; k++)
        if (p->axes.roll[k] > 0 && p->axes.roll[k] < p->v->size[k]) {
            p->v = turned_by(l, p->v, k == 1, (int)p->v->size[k], p->axes.roll[k]);
            p->axes.roll[k] = 0;
        }
}

/* Moves tokens into the lines in which a view arranged them. */
static pt2_place with_lines(pt2_layout *l, const pt2_place *p)
{
    pt2_place x = *p;
    const pt2_axes *a = &x.axes;

    hvt__lay_unroll(l, &x);
    for (int i = 1; i < 3 && a->ndim == 4; i++) {
        const pt2_atom *h = &a->atom[a->end[i - 1]], *w = &a->atom[a->end[i]];

        if (a->end[i] == a->end[i - 1] + 1 && a->end[i + 1] == a->end[i] + 1 && h->axis == 'W' &&
            w->axis == 'W' && w->stride == 1 && h->stride == w->extent) {
            hvt__lay_in_lines(l, &x, (int)h->extent, (int)w->extent);
            break;
        }
    }
    return x;
}

/* Channels in the order [C/g][g], where they were [g][C/g]. */
pt2_place hvt__lay_ordered(pt2_layout *l, pt2_place *p)
{
    pt2_place x = with_lines(l, p);
    const pt2_axes t = x.axes;
    const pt2_atom *a = t.atom + t.end[0];
    int64_t size[4] = {l->g->batch, 1, 1, 1};

    if (t.ndim != 4 || t.end[1] != t.end[0] + 2 || a[0].axis != 'C' || a[1].axis != 'C' || a[0].stride != 1 ||
        a[1].stride != a[0].extent || !hvt__axes_is(&t, 2, 'H') || !hvt__axes_is(&t, 3, 'W'))
        return x;
    x.v = hvt__emit_like(l, PT2_SHUFFLE, &(pt2_attributes){.groups = (int)a[1].extent}, x.v);
    size[1] = a[0].extent * a[1].extent;
    for (int k = t.end[1]; k < t.end[3]; k++)
        size[t.atom[k].axis == 'H' ? 2 : 3] = t.atom[k].extent;
    x.axes = hvt__axes_of(4, size);
    *p = x; /* later readers need not move it again */
    return x;
}

/* ---- transposes ---- */

/* `extent` steps of `stride` through pixels in lines of w, as atoms. Returns how many atoms; 0: impossible.
 */
static int parts_of_pixels(int64_t extent, int64_t stride, int64_t w, pt2_atom ret[2])
{
    const int64_t end = extent * stride;

    if (end <= w) {
        ret[0] = (pt2_atom){'W', extent, stride};
        return 1;
    }
    if (stride % w == 0) {
        ret[0] = (pt2_atom){'H', extent, stride / w};
        return 1;
    }
    ret[0] = (pt2_atom){'H', end / w, 1};
    ret[1] = (pt2_atom){'W', w / stride, stride};
    return w % stride == 0 && end % w == 0 ? 2 : 0;
}

/* Replaces atoms of axis `from` by pixels in lines of w and, if `turned`, pixels in lines of old_w by
 * channels. False leaves x as it was. */
static bool change_parts(pt2_axes *x, char from, int64_t w, bool turned, int64_t old_w)
{
    pt2_axes y = {.ndim = x->ndim};
    int64_t size[PT2_DIMS];
    int to = 0;

    for (int i = 0, a = 0; i < x->ndim; i++) {
        size[i] = 1;
        for (; a < x->end[i]; a++) {
            pt2_atom of = x->atom[a], part[2] = {of};
            int parts = 1;

            size[i] *= of.extent;
            if (of.axis == from)
                parts = parts_of_pixels(of.extent, of.stride, w, part);
            else if (turned && of.axis != 'N')
                part[0] = (pt2_atom){'C', of.extent, of.stride * (of.axis == 'H' ? old_w : 1)};
            if (!parts || to + parts > PT2_ATOMS)
                return false;
            memcpy(y.atom + to, part, (size_t)parts * sizeof *part);
            to += parts;
        }
        y.end[i] = to;
    }
    if (!hvt__axes_view(&y, x->ndim, size)) /* this also joins adjacent atoms */
        return false;
    *x = y;
    return true;
}

bool hvt__lay_turn(pt2_layout *l, pt2_place *p, int h, int w)
{
    const int64_t *size;

    hvt__lay_unroll(l, p);
    size = p->v->size;
    h = h ? h : 1, w = w ? w : (int)size[2];
    if ((int64_t)h * w != size[2] || !change_parts(&p->axes, 'C', w, true, size[1]))
        return false;
    p->v = hvt__emit_transpose(l, p->v, (int)(size[0] * size[1]), (int)size[2], 1, h, w);
    return true;
}

bool hvt__lay_in_lines(pt2_layout *l, pt2_place *p, int h, int w)
{
    if (p->v->size[0] != 1 || h == 1 || (int64_t)h * w != p->v->size[1] || p->axes.roll[1] ||
        !change_parts(&p->axes, 'W', w, false, 0))
        return false;
    p->v = hvt__emit_pixels(l, p->v, h, w);
    return true;
}

/* ---- channels of several pixels, and heads ---- */

/* The extent of atom a if it is the innermost part of its axis and in the last dimension; else 0. */
static int innermost(const pt2_axes *x, const pt2_atom *a)
{
    bool whole = true;

    for (int i = 0; i < x->end[x->ndim - 1]; i++) {
        const pt2_atom *other = &x->atom[i];

        whole = whole && (other == a || other->axis != a->axis || other->stride % a->extent == 0);
    }
    return whole && a->stride == 1 && (a->axis == 'H' || a->axis == 'W') ? (int)a->extent : 0;
}

pt2_place hvt__lay_channels_last(pt2_layout *l, const pt2_place *p)
{
    pt2_place x = *p;
    pt2_axes *axes = &x.axes;
    const int last = axes->ndim - 1, begin = last > 0 ? axes->end[last - 1] : 0,
              n = last > 0 ? axes->end[last] - begin - 1 : 0;
    const pt2_atom *a = &axes->atom[begin];
    int step[2] = {1, 1}, parts = 1;
    bool fits = n > 0 && n <= 2 && a[n].axis == 'C' && a[n].stride == 1 && !axes->roll[0] && !axes->roll[1];
    pt2_value *part[PATCH];

    if (last > 1 && hvt__axes_has(axes, last, 'W') && hvt__axes_pixels(axes, last)) {
        hvt__lay_turn(l, &x, 0, 0);
        return x;
    }
    fits = fits && a[n].extent == p->v->size[2];
    for (int i = 0; i < n && fits; i++) {
        int *of = &step[a[i].axis == 'W'];

        fits = innermost(axes, &a[i]) && *of == 1;
        *of = (int)a[i].extent;
        parts *= *of;
    }
    if (!fits || parts > PATCH)
        return x;
    for (int i = 0; i < parts; i++) {
        int at[2] = {0, 0}, rest = i;

        for (int k = n - 1; k >= 0; k--) {
            at[a[k].axis == 'W'] = rest % (int)a[k].extent;
            rest /= (int)a[k].extent;
        }
        part[i] = at[0] || at[1] ? hvt__emit_pad(l, p->v, -at[0], 0, -at[1], 0) : p->v;
        part[i] = hvt__emit_every(l, part[i], step[0], step[1]);
    }
    x.v = hvt__emit_concat(l, parts, part);
    hvt__axes_set(axes, last, 'C', parts * p->v->size[2]);
    for (int i = 0; i < begin; i++)
        if (axes->atom[i].axis == 'H' || axes->atom[i].axis == 'W')
            axes->atom[i].stride /= step[axes->atom[i].axis == 'W'];
    return x;
}

pt2_value *hvt__lay_vectors(pt2_layout *l, const pt2_place *p, int *ret_heads)
{
    const int64_t *size = p->v->size;
    int width = 0;

    for (int i = 0; i < p->axes.end[p->axes.ndim - 1]; i++)
        if (p->axes.atom[i].axis == 'C' && p->axes.atom[i].stride == 1)
            width = (int)p->axes.atom[i].extent;
    *ret_heads = width && size[2] > width && size[2] % width == 0 ? (int)(size[2] / width) : 1;
    return *ret_heads == 1 ? p->v : hvt__emit_transpose(l, p->v, 1, 1, width, size[0], size[1] * *ret_heads);
}

pt2_value *hvt__lay_of_heads(pt2_layout *l, pt2_value *v, int heads)
{
    return heads == 1 ? v : hvt__emit_transpose(l, v, 1, 1, (int)v->size[2], v->size[0], v->size[1] / heads);
}
