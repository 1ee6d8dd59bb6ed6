/*
 * layout.h - the pass that says which dimension is N, H, W or C of the tape, shared by its files: place.c
 * (where a tensor is, and moving it), parameters.c (parameters and constants as values), lay_layers.c,
 * lay_moves.c, lay_math.c and lay_attention.c (the operations), layout.c (the table).
 *
 * Views move no element: they change the axes of a place. What reads a place looks whether it lies as it
 * needs it, and else appends nodes that move it.
 */
#ifndef HVT_PT2_LAYOUT_H
#define HVT_PT2_LAYOUT_H

#include "fold.h"

/* ---- axes.c: how the dimensions of a tensor lie in a value of the tape, and what views change in that ----
 */

enum { PT2_ATOMS = 8 };

/* Part of a dimension: `extent` steps of `stride` along one axis of the tape's [N,H,W,C]. Atoms of extent 1
 * are omitted, even the batch of a single image. */
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

/* ---- the pass ---- */

/* A tensor on the tape. */
typedef struct pt2_place {
    pt2_value *v; /* of height, width, channels */
    pt2_axes axes;
} pt2_place;

typedef struct pt2_layout {
    pt2_graph *g;
    pt2_node *n;        /* at hand */
    const char **layer; /* [nlayers] names of layers and parameters so far */
    int nlayers, room;
} pt2_layout;

#define REFUSE(l, ...) hvt__pt2_refuse((l)->g, (l)->n, __VA_ARGS__)

/* ---- place.c ---- */

/* Appends a node of the tape whose output is h x w x c. */
pt2_value *hvt__emit(pt2_layout *l, pt2_op op, const pt2_attributes *is, int nin, pt2_value *const *in,
                     int64_t h, int64_t w, int64_t c);
/* One of the sizes of x, which it reads. */
pt2_value *hvt__emit_like(pt2_layout *l, pt2_op op, const pt2_attributes *is, pt2_value *x);
pt2_value *hvt__emit_map(pt2_layout *l, pt2_value *x, int f, double a, double b);
pt2_value *hvt__emit_affine(pt2_layout *l, pt2_value *x, double factor,
                            double term); /* x if it is the same */
pt2_value *hvt__emit_binary(pt2_layout *l, hvt_binary op, pt2_value *a, pt2_value *b);
pt2_value *hvt__emit_channels(pt2_layout *l, pt2_value *x, int first, int count);
pt2_value *hvt__emit_concat(pt2_layout *l, int count, pt2_value *const *in);
pt2_value *hvt__emit_zeros(pt2_layout *l, int64_t h, int64_t w, int64_t c);
pt2_value *hvt__emit_pad(pt2_layout *l, pt2_value *x, int top, int bottom, int left, int right);
pt2_value *hvt__emit_every(pt2_layout *l, pt2_value *x, int rows, int columns); /* every so many-th pixel */
pt2_value *hvt__emit_pixels(pt2_layout *l, pt2_value *x, int64_t h, int64_t w);
pt2_value *hvt__emit_transpose(pt2_layout *l, pt2_value *x, int rows, int columns, int block, int64_t h,
                               int64_t w);

/* Output 0 of the node at hand is v. */
void hvt__lay_out(pt2_layout *l, pt2_value *v, const pt2_axes *axes);
/* Output 0 is v, [N,C,H,W] or [N,C]. */
void hvt__lay_out_image(pt2_layout *l, pt2_value *v);

/* Rows and columns are moved on the tape, where a roll has only said so. */
void hvt__lay_unroll(pt2_layout *l, pt2_place *p);
/* The same; and lines that a view has made of tokens, and channels that view and transpose have put in
 * another order, as a channel shuffle does. */
pt2_place hvt__lay_ordered(pt2_layout *l, pt2_place *p);
/* Pixels become channels, and channels the pixels, h x w of them (0: one line). False: it is as before. */
bool hvt__lay_turn(pt2_layout *l, pt2_place *p, int h, int w);
/* A place whose pixels are one line gets h lines of w. False: it is as before. */
bool hvt__lay_in_lines(pt2_layout *l, pt2_place *p, int h, int w);
/* One whose last dimension is pixels that are neighbours, and then the channels, as where patches are merged:
 * all of them become channels. One whose last dimension is all pixels is turned. Any other one is returned as
 * it is. */
pt2_place hvt__lay_channels_last(pt2_layout *l, const pt2_place *p);
/* Where p has a dimension of each head's channels: heads become pixels, each beside the others of its pixel;
 * else *ret_heads is 1. And such a value as it was. */
pt2_value *hvt__lay_vectors(pt2_layout *l, const pt2_place *p, int *ret_heads);
pt2_value *hvt__lay_of_heads(pt2_layout *l, pt2_value *v, int heads);

/* ---- parameters.c ---- */

/* The place of v; a parameter or constant becomes a value of the tape. The node is refused if it cannot. */
pt2_place *hvt__place(pt2_layout *l, pt2_value *v);
/* v as [N,C,H,W]. */
pt2_value *hvt__lay_image(pt2_layout *l, const char *name, pt2_value *v);
/* True for a parameter, or a buffer of the state_dict, or a view of one. */
bool hvt__lay_is_state(const pt2_value *v);
/* Refuses the node if v is no parameter as it is. */
void hvt__lay_check_trained(pt2_layout *l, const char *argument, const pt2_value *v);
/* x op a parameter, which begins at `init`; used again, it is shared. */
pt2_value *hvt__lay_by_parameter(pt2_layout *l, hvt_binary op, pt2_value *x, const pt2_value *parameter,
                                 float init);
/* x + a parameter of so many rows, which meet pixels `first` on. */
pt2_value *hvt__lay_embedding(pt2_layout *l, pt2_value *x, int first, int64_t rows,
                              const pt2_value *parameter);
/* Names of what is on the tape. */
bool hvt__lay_has_layer(const pt2_layout *l, const char *name);
void hvt__lay_keep_layer(pt2_layout *l, const char *name);

/* ---- the operations: a table at the end of each lay_*.c ---- */

typedef struct pt2_lay_row {
    pt2_op op;
    void (*lay)(pt2_layout *l); /* gives the outputs of the node at hand their places */
} pt2_lay_row;

typedef struct pt2_lay_rows {
    const pt2_lay_row *row;
    size_t count;
} pt2_lay_rows;
extern const pt2_lay_rows hvt__lay_layer_rows, hvt__lay_math_rows, hvt__lay_move_rows,
    hvt__lay_attention_rows;

/* A map or dropout: the same of each element, wherever it lies. */
void hvt__lay_as_is(pt2_layout *l);
/* Dimension `dim`, a part of the channels, as a value of each of its elements: how many, at most `most`; 0:
 * it is none. */
int hvt__lay_parts(pt2_layout *l, pt2_place *p, int dim, int most, pt2_value **ret);

#endif /* HVT_PT2_LAYOUT_H */
