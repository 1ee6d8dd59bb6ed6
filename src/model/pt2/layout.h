/*
 * layout.h - the pass that decides which dimension of a tensor is N, H, W or C on the tape. Its files: axes.c
 * (how dimensions map to axes), place.c (where a tensor is, and moving it), arrange.c (moving it into any
 * order), parameters.c (parameters and constants as values), lay_layers.c, lay_moves.c, lay_windows.c,
 * lay_math.c and lay_attention.c (the operations) and layout.c (the pass).
 *
 * A view moves no element: it changes the axes of a place. An operation that needs its input in another order
 * first appends nodes that move it.
 */
#ifndef HVT_PT2_LAYOUT_H
#define HVT_PT2_LAYOUT_H

#include "fold.h"

/* ---- axes.c: maps the dimensions of a tensor to the axes of a value of the tape ---- */

enum { PT2_ATOMS = 8 };

/* Part of a dimension: `extent` steps of `stride` along one axis of the tape's [N,H,W,C]. Atoms of extent 1
 * are omitted, even the batch of a single image. */
typedef struct pt2_atom {
    char axis;
    int64_t extent, stride;
} pt2_atom;

/* Dimension i consists of atoms end[i-1] to end[i]-1, the outermost first. This form covers [N,C,H,W] and its
 * transposes, a flattened [N,C*H*W] and a channel shuffle's [N,2,C/2,H,W]. */
typedef struct pt2_axes {
    int ndim, end[PT2_DIMS];
    int roll[2]; /* of H and W: index i on the axis means index i + roll, modulo its size */
    pt2_atom atom[PT2_ATOMS + PT2_DIMS]; /* a view uses PT2_ATOMS at most */
} pt2_axes;

/* The axes of a value that a builder returned: [N,C,H,W], or [N,C]. */
pt2_axes hvt__axes_of(int ndim, const int64_t *size);
/* Reshapes x. False if a dimension would mix axes. */
bool hvt__axes_view(pt2_axes *x, int ndim, const int64_t *size);
/* Dimension i becomes what dimension from[i] was. */
void hvt__axes_permute(pt2_axes *x, const int *from);
/* Rolls dimension i by so many elements. False unless it holds all of H or W. */
bool hvt__axes_roll(pt2_axes *x, int i, int by);
/* True if dimension i is exactly one axis in its order, or has size 1 and no axis. */
bool hvt__axes_is(const pt2_axes *x, int i, char axis);
/* True if dimension i holds a part of this axis. */
bool hvt__axes_has(const pt2_axes *x, int i, char axis);
bool hvt__axes_has_any(const pt2_axes *x, char axis);
/* True if each dimension is one whole axis, or none. */
bool hvt__axes_plain(const pt2_axes *x);
/* True for [N,C,H,W]. */
bool hvt__axes_image(const pt2_axes *x);
/* Makes dimension i all of this axis, of size `extent`. */
void hvt__axes_set(pt2_axes *x, int i, char axis, int64_t extent);
/* Inserts dimension i, which consists of this atom. False if there are too many dimensions. */
bool hvt__axes_insert(pt2_axes *x, int i, pt2_atom a);
/* True if dimension i holds all pixels in row-major order, or has size 1 because there is one pixel. */
bool hvt__axes_pixels(const pt2_axes *x, int i);
/* True if the elements of an image are in the order H, W, C, and the last dimension is the channels. */
bool hvt__axes_in_order(const pt2_axes *x);
/* Reduces dimension i to size 1. */
void hvt__axes_reduce(pt2_axes *x, int i);
bool hvt__axes_same(const pt2_axes *x, const pt2_axes *y);
/* Adds dimensions of size 1 in front, up to n dimensions. */
pt2_axes hvt__axes_led(const pt2_axes *x, int n);

static inline int hvt__axes_begin(const pt2_axes *x, int i)
{
    return i ? x->end[i - 1] : 0;
}

/* ---- the pass ---- */

/* A tensor on the tape. */
typedef struct pt2_place {
    pt2_value *v; /* sizes: height, width, channels */
    pt2_axes axes;
} pt2_place;

typedef struct pt2_layout {
    pt2_graph *g;
    pt2_node *n;        /* the node being laid out */
    const char **layer; /* [nlayers] names of layers and parameters so far */
    int nlayers, room;
    int depth; /* lay_weights.c: depth of the operation of a weight at hand */
} pt2_layout;

#define REFUSE(l, ...) hvt__pt2_refuse((l)->g, (l)->n, __VA_ARGS__)

/* ---- place.c ---- */

/* Appends a node of the tape whose output is h x w x c. */
pt2_value *hvt__emit(pt2_layout *l, pt2_op op, const pt2_attributes *is, int nin, pt2_value *const *in,
                     int64_t h, int64_t w, int64_t c);
/* The same for an operation that reads x and returns its sizes. */
pt2_value *hvt__emit_like(pt2_layout *l, pt2_op op, const pt2_attributes *is, pt2_value *x);
pt2_value *hvt__emit_map(pt2_layout *l, pt2_value *x, int f, double a, double b);
pt2_value *hvt__emit_affine(pt2_layout *l, pt2_value *x, double factor,
                            double term); /* x * factor + term; x itself for 1 and 0 */
pt2_value *hvt__emit_binary(pt2_layout *l, hvt_binary op, pt2_value *a, pt2_value *b);
pt2_value *hvt__emit_channels(pt2_layout *l, pt2_value *x, int first, int count);
pt2_value *hvt__emit_concat(pt2_layout *l, int count, pt2_value *const *in);
pt2_value *hvt__emit_zeros(pt2_layout *l, int64_t h, int64_t w, int64_t c);
pt2_value *hvt__emit_pad(pt2_layout *l, pt2_value *x, int top, int bottom, int left, int right);
pt2_value *hvt__emit_every(pt2_layout *l, pt2_value *x, int rows, int columns); /* strides of rows, columns */
pt2_value *hvt__emit_pixels(pt2_layout *l, pt2_value *x, int64_t h, int64_t w);
/* h x w pixels, each the sum of `terms` pixels of x. index [h*w][terms] is borrowed. */
pt2_value *hvt__emit_gather(pt2_layout *l, pt2_value *x, const int *index, int terms, int64_t h, int64_t w);
pt2_value *hvt__emit_transpose(pt2_layout *l, pt2_value *x, int rows, int columns, int block, int64_t h,
                               int64_t w);

/* Makes v output 0 of the current node. */
void hvt__lay_out(pt2_layout *l, pt2_value *v, const pt2_axes *axes);
/* The same for v of [N,C,H,W] or [N,C]. */
void hvt__lay_out_image(pt2_layout *l, pt2_value *v);

/* Moves the rows and columns of a rolled place. */
void hvt__lay_unroll(pt2_layout *l, pt2_place *p);
/* The same, and moves pixels and channels into the order that views and transposes gave them (lines of
 * tokens, a channel shuffle). */
pt2_place hvt__lay_ordered(pt2_layout *l, pt2_place *p);
/* Swaps pixels and channels; the new pixels are h x w (h = 0: one line). False leaves p as it was. */
bool hvt__lay_turn(pt2_layout *l, pt2_place *p, int h, int w);
/* Arranges a single line of pixels as h lines of w. False leaves p as it was. */
bool hvt__lay_in_lines(pt2_layout *l, pt2_place *p, int h, int w);
/* Makes the last dimension the channels. Neighbouring pixels before the channels, as in patch merging, become
 * channels as well; a last dimension of all pixels is transposed. Otherwise returns p as it is. */
pt2_place hvt__lay_channels_last(pt2_layout *l, const pt2_place *p);
/* Makes each head a pixel of its own, if p has a dimension of the channels of one head; else *ret_heads is 1.
 * hvt__lay_of_heads() undoes it. */
pt2_value *hvt__lay_vectors(pt2_layout *l, const pt2_place *p, int *ret_heads);
pt2_value *hvt__lay_of_heads(pt2_layout *l, pt2_value *v, int heads);

/* ---- arrange.c ---- */

enum { PT2_REPEATS = 1 << 20 }; /* limit for gathered pixels */

/* Puts the elements of p into the order of its dimensions: dimensions before w become H, those before c W,
 * the others C. size: sizes to which broadcast dimensions are repeated; NULL: none is. Refuses the node
 * if a dimension from c on has a part of the batch. */
pt2_place hvt__lay_in_order(pt2_layout *l, const pt2_place *p, const int64_t *size, int w, int c);
/* Views the elements of an image, in their order, as h x w pixels. */
pt2_value *hvt__lay_reshape(pt2_layout *l, pt2_value *v, int64_t h, int64_t w);
/* Makes dimension `dim` the channels. */
pt2_place hvt__lay_as_channels(pt2_layout *l, const pt2_place *p, const int64_t *size, int dim);
/* A place whose one dimension is W, with those before it in H and those after it in C. moved: the dimension
 * became the last one, since the batch came after it. */
typedef struct pt2_along {
    pt2_place place;
    int dim;
    bool moved;
} pt2_along;
pt2_along hvt__lay_along(pt2_layout *l, const pt2_place *p, const int64_t *size, int dim);
/* Undoes hvt__lay_along() for v, whose W may have another size. */
pt2_place hvt__lay_resized(const pt2_along *x, pt2_value *v, int dim);
/* Broadcasts both to these sizes, with their elements in the same order. */
void hvt__lay_alike(pt2_layout *l, pt2_place *a, pt2_place *b, int ndim, const int64_t *size);
/* torch.matmul of tensors of two or more dimensions. size: the result's; inner: columns of the first. */
pt2_place hvt__lay_matmul(pt2_layout *l, const pt2_place *first, const pt2_place *second, int ndim,
                          const int64_t *size, int64_t inner);

/* ---- parameters.c ---- */

/* The place of v. Puts a parameter or constant on the tape, or refuses the node if that is impossible. */
pt2_place *hvt__place(pt2_layout *l, pt2_value *v);
/* v as [N,C,H,W]. */
pt2_value *hvt__lay_image(pt2_layout *l, const char *name, pt2_value *v);
/* True for a parameter, a buffer of the state_dict, or a view of either. */
bool hvt__lay_is_state(const pt2_value *v);
/* Refuses the node unless v is a parameter itself (no view, nothing computed). */
void hvt__lay_check_trained(pt2_layout *l, const char *argument, const pt2_value *v);
/* x op a parameter, which starts at `init`. A second use shares the parameter. */
pt2_value *hvt__lay_by_parameter(pt2_layout *l, hvt_binary op, pt2_value *x, const pt2_value *parameter,
                                 float init);
/* x + a parameter of so many rows. Row 0 is added to pixel `first`. */
pt2_value *hvt__lay_embedding(pt2_layout *l, pt2_value *x, int first, int64_t rows,
                              const pt2_value *parameter);
/* The names of layers and parameters on the tape. */
bool hvt__lay_has_layer(const pt2_layout *l, const char *name);
void hvt__lay_keep_layer(pt2_layout *l, const char *name);

/* ---- lay_weights.c ---- */

/* Finds the operations and parameters that only weights and biases of layers depend on. */
void hvt__lay_find_weights(pt2_graph *g);
/* True if this layer reads its weight and bias as tensors of the tape, not as its own parameters. */
bool hvt__lay_reads_tensors(const pt2_node *n);
/* v as a tensor of weights, for the node at hand. */
pt2_value *hvt__lay_tensor(pt2_layout *l, pt2_value *v);

/* ---- the operations: a table at the end of each lay_*.c ---- */

typedef struct pt2_lay_row {
    pt2_op op;
    void (*lay)(pt2_layout *l); /* places the outputs of the current node */
} pt2_lay_row;

typedef struct pt2_lay_rows {
    const pt2_lay_row *row;
    size_t count;
} pt2_lay_rows;
extern const pt2_lay_rows hvt__lay_layer_rows, hvt__lay_math_rows, hvt__lay_move_rows, hvt__lay_window_rows,
    hvt__lay_attention_rows;

/* Lays out a map or dropout, which treats elements alike wherever they lie. */
void hvt__lay_as_is(pt2_layout *l);
/* True if images may be windows of the batch's images, [N * windows,C,H,W]. */
bool hvt__lay_has_windows(pt2_layout *l, const pt2_value *v);
/* The windows of each image side by side as channels, or below each other as lines. */
pt2_value *hvt__lay_windows(pt2_layout *l, pt2_value *v, bool channels);
/* Lays out output 0, whose windows are in v in the same way. */
void hvt__lay_out_windows(pt2_layout *l, pt2_value *v, bool channels);
/* Crops or zero-pads each window of x: its lines [first, first + to) of `from`, and its columns from `left`
 * on, `wide` of them. */
pt2_value *hvt__lay_lines(pt2_layout *l, pt2_value *x, int64_t windows, int64_t from, int64_t to,
                          int64_t first, int64_t wide, int64_t left);
/* torch.Tensor.repeat: repeats x, of from's sizes, to to's sizes. */
pt2_place hvt__lay_repeated(pt2_layout *l, const pt2_place *x, const pt2_value *from, const pt2_value *to);
/* Softmax over all channels. */
pt2_value *hvt__lay_softmax(pt2_layout *l, pt2_value *x);
/* Splits p along dimension `dim`, which must be a part of the channels, into one value per index. Returns how
 * many, at most `most`; 0 if `dim` is something else. */
int hvt__lay_parts(pt2_layout *l, pt2_place *p, int dim, int most, pt2_value **ret);

#endif /* HVT_PT2_LAYOUT_H */
