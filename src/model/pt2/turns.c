/*
 * A computed tensor in another place on the tape: where its dimensions only say that rows and columns were
 * moved, that pixels are lines of an image, or that channels and pixels changed places, the tape's value is
 * made so.
 */
#include "import.h"

enum { PATCH = 1024 }; /* pixels that become channels of one */

/* x without its first `by` rows or columns, which stand behind the others. */
static hvt_value turned_by(importer *p, hvt_value x, bool columns, int size, int by)
{
    const int rest = size - by;

    return columns ? hvt_add(p->m, hvt_pad(p->m, x, 0, 0, -by, by), hvt_pad(p->m, x, 0, 0, rest, -rest))
                   : hvt_add(p->m, hvt_pad(p->m, x, -by, by, 0, 0), hvt_pad(p->m, x, rest, -rest, 0, 0));
}

void hvt__pt2_unroll(importer *p, tensor *x)
{
    int shape[3];

    if (x->v < 0 || (!x->axes.roll[0] && !x->axes.roll[1]))
        return;
    hvt_value_shape(p->m, x->v, shape);
    for (int k = 0; k < 2; k++)
        if (x->axes.roll[k] > 0 && x->axes.roll[k] < shape[k]) {
            x->v = turned_by(p, x->v, k == 1, shape[k], x->axes.roll[k]);
            x->axes.roll[k] = 0;
        }
}

/* Tokens in one line, of which views make rows and columns, get these on the tape. */
static void in_view_of_lines(importer *p, tensor *x)
{
    const hvt__pt2_axes *a = &x->axes;

    for (int i = 1; i < 3 && a->ndim == 4; i++) {
        const hvt__pt2_atom *h = &a->atom[a->end[i - 1]], *w = &a->atom[a->end[i]];

        if (a->end[i] == a->end[i - 1] + 1 && a->end[i + 1] == a->end[i] + 1 && h->axis == 'W' &&
            w->axis == 'W' && w->stride == 1 && h->stride == w->extent) {
            hvt__pt2_in_lines(p, x, (int)h->extent, (int)w->extent);
            return;
        }
    }
}

tensor hvt__pt2_with_lines(importer *p, const tensor *t)
{
    tensor x = *t;

    hvt__pt2_unroll(p, &x);
    in_view_of_lines(p, &x);
    return x;
}

tensor hvt__pt2_in_order(importer *p, const tensor *t)
{
    tensor x = {.v = -1}, unrolled;

    if (!hvt__pt2_is_computed(p, t))
        return x;
    unrolled = hvt__pt2_with_lines(p, t);
    x = unrolled;
    t = &unrolled;
    x.v = hvt__pt2_ordered(p, t);
    if (x.v != t->v) { /* as it should be now */
        const hvt__pt2_axes *y = &t->axes;
        const hvt__pt2_atom *of = y->atom + y->end[0];
        int64_t size[4] = {p->file->batch, of[0].extent * of[1].extent, 1, 1};

        for (int a = y->end[1]; a < y->end[3]; a++)
            size[y->atom[a].axis == 'H' ? 2 : 3] = y->atom[a].extent;
        x.axes = hvt__pt2_axes_of(4, size);
    }
    return x;
}

/* ---- transposes on the tape ---- */

/* Elements `stride` apart of a line of h x w, as parts of H and W: how many, 0: they are none. */
static int parts_of_pixels(int64_t extent, int64_t stride, int w, hvt__pt2_atom *ret)
{
    const int64_t end = extent * stride;

    if (w % end == 0) {
        ret[0] = (hvt__pt2_atom){'W', extent, stride};
        return 1;
    }
    if (stride % w == 0) {
        ret[0] = (hvt__pt2_atom){'H', extent, stride / w};
        return 1;
    }
    ret[0] = (hvt__pt2_atom){'H', end / w, 1};
    ret[1] = (hvt__pt2_atom){'W', w / stride, stride};
    return w % stride == 0 && end % w == 0 ? 2 : 0;
}

/* Each part of an axis becomes others: of `from` to those of h x w pixels, and, turned, of pixels, in lines
 * of old_w, to channels. False: it is as before. */
static bool change_parts(hvt__pt2_axes *x, char from, int w, bool turned, int old_w)
{
    hvt__pt2_axes y = {.ndim = x->ndim};
    int64_t size[HVT__PT2_DIMS];
    int to = 0;

    for (int i = 0, a = 0; i < x->ndim; i++) {
        size[i] = 1;
        for (; a < x->end[i]; a++) {
            hvt__pt2_atom of = x->atom[a], part[2] = {of};
            int parts = 1;

            size[i] *= of.extent;
            if (of.axis == from)
                parts = parts_of_pixels(of.extent, of.stride, w, part);
            else if (turned && of.axis != 'N')
                part[0] = (hvt__pt2_atom){'C', of.extent, of.stride * (of.axis == 'H' ? old_w : 1)};
            if (!parts || to + parts > HVT__PT2_ATOMS)
                return false;
            memcpy(y.atom + to, part, (size_t)parts * sizeof *part);
            to += parts;
        }
        y.end[i] = to;
    }
    if (!hvt__pt2_view(&y, x->ndim, size)) /* which joins neighbours */
        return false;
    *x = y;
    return true;
}

bool hvt__pt2_turned_axes(const importer *p, const tensor *x, int h, int w, hvt__pt2_axes *ret)
{
    int shape[3], channels;

    hvt_value_shape(p->m, x->v, shape);
    channels = x->count ? x->count : shape[2];
    h = h ? h : 1, w = w ? w : channels;
    *ret = x->axes;
    return (int64_t)h * w == channels && change_parts(ret, 'C', w, true, shape[1]);
}

bool hvt__pt2_turn(importer *p, tensor *x, int h, int w)
{
    int shape[3];

    hvt__pt2_unroll(p, x);
    hvt_value_shape(p->m, x->v, shape);
    if (p->failed || x->v < 0 || !hvt__pt2_turned_axes(p, x, h, w, &x->axes))
        return false;
    x->v = hvt_transpose(p->m, x->v, shape[0] * shape[1], shape[2], 1, h ? h : 1, w ? w : shape[2]);
    p->mistaken = p->mistaken || x->v < 0;
    return x->v >= 0;
}

bool hvt__pt2_in_lines(importer *p, tensor *x, int h, int w)
{
    int shape[3];

    hvt_value_shape(p->m, x->v, shape);
    if (p->failed || x->v < 0 || shape[0] != 1 || h == 1 || (int64_t)h * w != shape[1] || x->axes.roll[1] ||
        !change_parts(&x->axes, 'W', w, false, 0))
        return false;
    x->v = hvt_reshape(p->m, x->v, h, w);
    p->mistaken = p->mistaken || x->v < 0;
    return x->v >= 0;
}

/* ---- channels of several pixels, and heads ---- */

/* An axis has atom a, its innermost part, in the last dimension: how many elements that is; 0: it is none. */
static int innermost(const hvt__pt2_axes *x, const hvt__pt2_atom *a)
{
    bool whole = true;

    for (int i = 0; i < x->end[x->ndim - 1]; i++) {
        const hvt__pt2_atom *other = &x->atom[i];

        whole = whole && (other == a || other->axis != a->axis || other->stride % a->extent == 0);
    }
    return whole && a->stride == 1 && (a->axis == 'H' || a->axis == 'W') ? (int)a->extent : 0;
}

tensor hvt__pt2_channels_last(importer *p, const tensor *t)
{
    tensor x = *t;
    hvt__pt2_axes *axes = &x.axes;
    const int last = axes->ndim - 1, begin = last > 0 ? axes->end[last - 1] : 0,
              n = last > 0 ? axes->end[last] - begin - 1 : 0;
    const hvt__pt2_atom *a = &axes->atom[begin];
    int step[2] = {1, 1}, parts = 1, shape[3];
    bool fits = n > 0 && n <= 2 && a[n].axis == 'C' && a[n].stride == 1 && !axes->roll[0] && !axes->roll[1];
    hvt_value part[PATCH];

    if (last > 1 && hvt__pt2_has(axes, last, 'W') && hvt__pt2_is_pixels(axes, last)) {
        hvt__pt2_turn(p, &x, 0, 0);
        return x;
    }
    hvt_value_shape(p->m, t->v, shape);
    fits = fits && a[n].extent == shape[2];
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
        part[i] = at[0] || at[1] ? hvt_pad(p->m, t->v, -at[0], 0, -at[1], 0) : t->v;
        part[i] = hvt_pool_with(p->m, part[i], HVT_POOL_MEAN,
                                &(hvt_pool_opts){.size = {1, 1}, .stride = {step[0], step[1]}});
    }
    x.v = hvt_concat(p->m, part, parts);
    hvt__pt2_set(axes, last, 'C', (int64_t)parts * shape[2]);
    for (int i = 0; i < begin; i++)
        if (axes->atom[i].axis == 'H' || axes->atom[i].axis == 'W')
            axes->atom[i].stride /= step[axes->atom[i].axis == 'W'];
    return x;
}

hvt_value hvt__pt2_vectors(importer *p, const tensor *x, int *ret_heads)
{
    int shape[3], width = 0;

    for (int i = 0; i < x->axes.end[x->axes.ndim - 1]; i++)
        if (x->axes.atom[i].axis == 'C' && x->axes.atom[i].stride == 1)
            width = (int)x->axes.atom[i].extent;
    hvt_value_shape(p->m, x->v, shape);
    *ret_heads = width && shape[2] > width && shape[2] % width == 0 ? shape[2] / width : 1;
    return *ret_heads == 1 ? x->v : hvt_transpose(p->m, x->v, 1, 1, width, shape[0], shape[1] * *ret_heads);
}

hvt_value hvt__pt2_of_heads(importer *p, hvt_value v, int heads)
{
    int shape[3];

    if (heads == 1)
        return v;
    hvt_value_shape(p->m, v, shape);
    return hvt_transpose(p->m, v, 1, 1, shape[2], shape[0], shape[1] / heads);
}
