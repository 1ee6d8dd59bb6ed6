/*
 * Views without copies. PyTorch's view, flatten, permute, transpose, squeeze and unsqueeze move no
 * element of a tape's value; they only change which of its axes each dimension walks along. So they cost
 * nothing. An operation that needs another order moves the elements itself.
 */
#include "layout.h"

pt2_axes hvt__axes_of(int ndim, const int64_t *size)
{
    pt2_axes x = {.ndim = ndim};
    int atoms = 0;

    for (int i = 0; i < ndim; i++) {
        if (size[i] != 1)
            x.atom[atoms++] = (pt2_atom){"NCHW"[i], size[i], 1};
        x.end[i] = atoms;
    }
    return x;
}

static bool continues(const pt2_atom *outer, const pt2_atom *inner)
{
    return outer->axis == inner->axis && outer->stride == inner->extent * inner->stride;
}

bool hvt__axes_view(pt2_axes *x, int ndim, const int64_t *size)
{
    pt2_axes y = {.ndim = ndim, .roll = {x->roll[0], x->roll[1]}};
    int from = 0, atoms = x->ndim ? x->end[x->ndim - 1] : 0, to = 0;
    pt2_atom rest = {0}; /* what a dimension left of its last atom */

    if (ndim > PT2_DIMS)
        return false;
    for (int i = 0; i < ndim; i++) {
        int64_t left = size[i];

        while (left > 1) {
            pt2_atom a = rest.extent ? rest : from < atoms ? x->atom[from++] : rest;

            rest.extent = 0;
            if (a.extent == 1)
                continue;
            if (!a.extent || to == PT2_ATOMS)
                return false;
            if (a.extent > left) {
                if (a.extent % left)
                    return false;
                rest = (pt2_atom){a.axis, a.extent / left, a.stride};
                a = (pt2_atom){a.axis, left, a.stride * rest.extent};
            } else if (left % a.extent) {
                return false;
            }
            left /= a.extent;
            if (to > hvt__axes_begin(&y, i) && continues(&y.atom[to - 1], &a)) {
                y.atom[to - 1].extent *= a.extent;
                y.atom[to - 1].stride = a.stride;
            } else {
                y.atom[to++] = a;
            }
        }
        y.end[i] = to;
    }
    while (from < atoms && x->atom[from].extent == 1)
        from++;
    if (from < atoms || rest.extent)
        return false;
    *x = y;
    return true;
}

void hvt__axes_permute(pt2_axes *x, const int *from)
{
    pt2_axes y = {.ndim = x->ndim, .roll = {x->roll[0], x->roll[1]}};
    int to = 0;

    for (int i = 0; i < x->ndim; i++) {
        for (int a = hvt__axes_begin(x, from[i]); a < x->end[from[i]]; a++)
            y.atom[to++] = x->atom[a];
        y.end[i] = to;
    }
    *x = y;
}

static bool is_rolled(const pt2_axes *x, char axis)
{
    return (axis == 'H' && x->roll[0]) || (axis == 'W' && x->roll[1]);
}

bool hvt__axes_is(const pt2_axes *x, int i, char axis)
{
    const pt2_atom *a = &x->atom[hvt__axes_begin(x, i)];
    int n = x->end[i] - hvt__axes_begin(x, i), parts = 0;

    for (int k = 0; k < x->end[x->ndim - 1]; k++)
        parts += x->atom[k].axis == axis;
    return n == parts && (n == 0 || (n == 1 && a->axis == axis && a->stride == 1)) && !is_rolled(x, axis);
}

bool hvt__axes_roll(pt2_axes *x, int i, int by)
{
    for (int k = 0; k < 2; k++) {
        const int roll = x->roll[k], n = x->end[i] - hvt__axes_begin(x, i);

        x->roll[k] = 0;
        if (n == 1 && hvt__axes_is(x, i, "HW"[k])) {
            const int64_t extent = x->atom[hvt__axes_begin(x, i)].extent;

            x->roll[k] = (int)(((roll - by) % extent + extent) % extent);
            return true;
        }
        x->roll[k] = roll;
    }
    return false;
}

bool hvt__axes_has(const pt2_axes *x, int i, char axis)
{
    for (int a = hvt__axes_begin(x, i); a < x->end[i]; a++)
        if (x->atom[a].axis == axis)
            return true;
    return false;
}

bool hvt__axes_has_any(const pt2_axes *x, char axis)
{
    bool any = false;

    for (int i = 0; i < x->ndim; i++)
        any = any || hvt__axes_has(x, i, axis);
    return any;
}

bool hvt__axes_image(const pt2_axes *x)
{
    return x->ndim == 4 && hvt__axes_is(x, 1, 'C') && hvt__axes_is(x, 2, 'H') && hvt__axes_is(x, 3, 'W');
}

bool hvt__axes_plain(const pt2_axes *x)
{
    for (int i = 0; i < x->ndim; i++)
        if (x->end[i] > hvt__axes_begin(x, i) && !hvt__axes_is(x, i, x->atom[hvt__axes_begin(x, i)].axis))
            return false;
    return true;
}

/* Gives dimension i, which has no atom, this one. */
static void insert(pt2_axes *x, int i, char axis)
{
    const int at = hvt__axes_begin(x, i), atoms = x->end[x->ndim - 1];

    memmove(x->atom + at + 1, x->atom + at, (size_t)(atoms - at) * sizeof *x->atom);
    x->atom[at] = (pt2_atom){axis, 1, 1};
    for (int k = i; k < x->ndim; k++)
        x->end[k]++;
}

bool hvt__axes_insert(pt2_axes *x, int i, pt2_atom a)
{
    if (x->ndim == PT2_DIMS || x->end[x->ndim - 1] == PT2_ATOMS)
        return false;
    memmove(x->end + i + 1, x->end + i, (size_t)(x->ndim - i) * sizeof *x->end);
    x->end[i] = hvt__axes_begin(x, i);
    x->ndim++;
    insert(x, i, a.axis);
    x->atom[hvt__axes_begin(x, i)] = a;
    return true;
}

void hvt__axes_set(pt2_axes *x, int i, char axis, int64_t extent)
{
    hvt__axes_reduce(x, i);
    insert(x, i, axis);
    x->atom[hvt__axes_begin(x, i)] = (pt2_atom){axis, extent, 1};
}

bool hvt__axes_pixels(const pt2_axes *x, int i)
{
    const pt2_atom *a = &x->atom[hvt__axes_begin(x, i)];
    const int n = x->end[i] - hvt__axes_begin(x, i);
    int parts = 0;

    for (int k = 0; k < x->end[x->ndim - 1]; k++)
        parts += x->atom[k].axis == 'H' || x->atom[k].axis == 'W';
    return n == parts && n <= 2 && !x->roll[0] && !x->roll[1] &&
           (n < 1 || (a[0].stride == 1 && (a[0].axis == 'H' || a[0].axis == 'W'))) &&
           (n < 2 || (a[0].axis == 'H' && a[1].axis == 'W' && a[1].stride == 1));
}

bool hvt__axes_in_order(const pt2_axes *x)
{
    const char *last = "HWC";
    bool fits = hvt__axes_is(x, x->ndim - 1, 'C') && !x->roll[0] && !x->roll[1];

    for (int k = 0; k < x->end[x->ndim - 1]; k++)
        if (x->atom[k].axis != 'N') {
            const char *at = strchr(last, x->atom[k].axis);

            fits = fits && at && x->atom[k].stride == 1;
            last = at ? at + 1 : "";
        }
    return fits;
}

void hvt__axes_reduce(pt2_axes *x, int i)
{
    const int at = hvt__axes_begin(x, i), gone = x->end[i] - at, atoms = x->end[x->ndim - 1];

    memmove(x->atom + at, x->atom + at + gone, (size_t)(atoms - at - gone) * sizeof *x->atom);
    for (int k = i; k < x->ndim; k++)
        x->end[k] -= gone;
}

bool hvt__axes_same(const pt2_axes *x, const pt2_axes *y)
{
    bool same = x->ndim == y->ndim && x->roll[0] == y->roll[0] && x->roll[1] == y->roll[1];

    for (int i = 0; same && i < x->ndim; i++) {
        same = x->end[i] == y->end[i];
        for (int a = hvt__axes_begin(x, i); same && a < x->end[i]; a++)
            same = x->atom[a].axis == y->atom[a].axis && x->atom[a].extent == y->atom[a].extent &&
                   x->atom[a].stride == y->atom[a].stride;
    }
    return same;
}
