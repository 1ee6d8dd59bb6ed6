/*
 * axes.h - how the dimensions of a tensor in PyTorch lie in a value of the tape, and what views change in
 * that.
 */
#ifndef HVT_PT2_AXES_H
#define HVT_PT2_AXES_H

#include "graph.h"

enum { PT2_ATOMS = 8 };

/* `extent` steps of `stride` along one axis of the tape's [N,H,W,C]. Atoms of extent 1 are omitted, even the
 * batch of a single image. */
typedef struct pt2_atom {
    char axis;
    int64_t extent, stride;
} pt2_atom;

/* Dimension i consists of atoms end[i-1] to end[i]-1, the outermost first. [N,C,H,W] and its transpose, a
 * flattened [N,C*H*W] and a channel shuffle's [N,2,C/2,H,W] are all of this form. */
typedef struct pt2_axes {
    int ndim, end[PT2_DIMS];
    int roll[2]; /* of H and W: element i of what the atoms say is that at i + roll, around the axis */
    pt2_atom atom[PT2_ATOMS + PT2_DIMS]; /* views have PT2_ATOMS at most */
} pt2_axes;

/* Those of a value as the tape's builders return it: [N,C,H,W], or [N,C]. */
pt2_axes hvt__axes_of(int ndim, const int64_t *size);
/* The same elements in dimensions of other sizes; false: dimensions would mix axes. */
bool hvt__axes_view(pt2_axes *x, int ndim, const int64_t *size);
/* Dimension i is dimension from[i] of before. */
void hvt__axes_permute(pt2_axes *x, const int *from);
/* Dimension i, which holds all of H or W, is moved on by so many elements, around it; false: it does not. */
bool hvt__axes_roll(pt2_axes *x, int i, int by);
/* True if dimension i holds all of one axis, in its order, or nothing, its size being 1. */
bool hvt__axes_is(const pt2_axes *x, int i, char axis);
/* True if some of this axis is in dimension i. */
bool hvt__axes_has(const pt2_axes *x, int i, char axis);
bool hvt__axes_has_any(const pt2_axes *x, char axis);
/* True if each dimension is one whole axis, or nothing. */
bool hvt__axes_plain(const pt2_axes *x);
/* True for [N,C,H,W]. */
bool hvt__axes_image(const pt2_axes *x);
/* Dimension i is all of this axis, so long. */
void hvt__axes_set(pt2_axes *x, int i, char axis, int64_t extent);
/* A new dimension i of this atom; false: there are too many. */
bool hvt__axes_insert(pt2_axes *x, int i, pt2_atom a);
/* True if dimension i holds all pixels, line by line, or nothing, there being one. */
bool hvt__axes_pixels(const pt2_axes *x, int i);
/* True if the elements of an image are in the order H, W, C, the last dimension being the channels. */
bool hvt__axes_in_order(const pt2_axes *x);
/* Dimension i becomes 1 long. */
void hvt__axes_reduce(pt2_axes *x, int i);
bool hvt__axes_same(const pt2_axes *x, const pt2_axes *y);

static inline int hvt__axes_begin(const pt2_axes *x, int i)
{
    return i ? x->end[i - 1] : 0;
}

#endif /* HVT_PT2_AXES_H */
