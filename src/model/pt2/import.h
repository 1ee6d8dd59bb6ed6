/*
 * import.h - a graph on its way onto a tape, shared by import.c, which walks it, ops.c, elementwise.c,
 * moves.c, turns.c, noise.c, attention.c, rotary.c and constants.c, which have a function for each operation,
 * and arrays.c, which has the arrays of constants. Nothing else includes it.
 */
#ifndef HVT_PT2_IMPORT_H
#define HVT_PT2_IMPORT_H

#include "pt2_impl.h"

typedef enum hvt__pt2_share {
    HVT__PT2_BATCH,    /* [1,1,1,1] */
    HVT__PT2_IMAGES,   /* [N,1,1,1] */
    HVT__PT2_CHANNELS, /* [N,C,1,1] */
    HVT__PT2_ELEMENTS  /* [N,C,H,W] */
} hvt__pt2_share;

typedef struct strided {
    double *x;   /* NULL: none */
    bool *fixed; /* of all views: it must not be changed any more */
    int64_t stride[HVT__PT2_DIMS];
} strided;

/* What elements are of: the tensor of this number, -1: none; then sigmoid of them; then times `gain`, 0: as
 * they are. */
typedef struct source {
    int table;
    bool squashed;
    double gain;
} source;

/* Numbers that are known when the file is read, elements of a parameter, or sums of both. */
typedef struct known {
    int ndim;
    int64_t size[HVT__PT2_DIMS];
    strided number, element;
    source from;
} known;

/* What is added to attention's scores, whose sizes are these. */
typedef struct addition {
    const struct addition *before; /* NULL: it is the first */
    const known *what;
    int ndim;
    int64_t size[HVT__PT2_DIMS];
} addition;

/* Memory that is freed when all is imported. */
typedef struct hvt__pt2_kept {
    struct hvt__pt2_kept *next;
    double data[];
} hvt__pt2_kept;

/* What a name of the graph may be. All but the first are on no tape, until an operation makes a layer of
 * them. */
typedef enum hvt__pt2_kind {
    HVT__PT2_VALUE,   /* it is on the tape, a parameter, a buffer or a constant */
    HVT__PT2_NOISE,   /* random numbers to multiply with, each `factor` with probability `keep`, else 0 */
    HVT__PT2_SCORES,  /* products of the queries `of` and the keys `key`, times factor */
    HVT__PT2_JOINED,  /* parameters and constants of one dimension, side by side */
    HVT__PT2_LENGTHS, /* of the vectors within heads of the tensor `of`, at least `least` */
    HVT__PT2_PART,    /* numbers first to first + count - 1 of `of`, a parameter's copy */
    HVT__PT2_PADDED,  /* the image `of`, with -inf around it, for a maximum of windows */
    HVT__PT2_ROTATED, /* elements of queries or keys, on their way to a rotary embedding */
    HVT__PT2_KINDS
} hvt__pt2_kind;

/* What a name of the graph stands for. */
typedef struct tensor {
    hvt__pt2_kind kind;
    int of;             /* HVT__PT2_SCORES, _LENGTHS, _PART, _PADDED: the number of a tensor */
    const char *state;  /* a parameter or buffer: its name in the state_dict; NULL: computed */
    bool constant;      /* a buffer, which is not trained */
    bool persistent;    /* it is in the state_dict */
    const char *name;   /* in the graph */
    const char *viewed; /* this is a view of what has this name in the graph; NULL: it is that itself */
    hvt_value v;        /* on the tape; -1: it is not there */
    int first, count;   /* it is so many channels of v, which are not cut out yet; count 0: all */
    const int *joined;  /* [njoined] HVT__PT2_JOINED: the numbers of these tensors */
    int njoined;
    double keep, factor;   /* HVT__PT2_NOISE; _SCORES has a factor, too */
    int key;               /* HVT__PT2_SCORES: the number of a tensor */
    bool turned;           /* its dimensions are [.., width, tokens] */
    int per_head;          /* a tensor that has a factor for each head, by its number + 1; 0: none */
    const addition *added; /* to the scores; NULL: nothing */
    bool softmax;          /* they are its result */
    double least;          /* HVT__PT2_LENGTHS */
    int front[2];          /* HVT__PT2_PADDED: rows above the image, columns on its left */
    bool more_behind;      /* and below, or on the right, one more */
    struct hvt__pt2_rotated *rotated; /* HVT__PT2_ROTATED; NULL: they are gone */
    const json_t *maker;              /* the operation that made it */
    int changes;                      /* how often constants had been changed in place then */
    bool alike;                       /* v is the same for all images: it is computed of parameters alone */
    bool copied; /* a copy of a parameter, of which numbers `zeros` to zeros_end - 1 are 0 then */
    int zeros, zeros_end;
    double times;        /* v is to be multiplied by it, which is not done yet; 0: by nothing */
    const known *known;  /* NULL: it is not known yet */
    hvt__pt2_share like; /* which elements have one in common */
    hvt__pt2_axes axes;  /* of v */
    int storage;         /* tensors that are views of each other have the same */
    int version;         /* of its storage when it was made: each operation in place makes a new one */
    int newest;          /* version, where the storage is its own */
} tensor;

typedef struct operation operation;

typedef struct importer {
    const hvt_pt2 *file;
    hvt_model *m;
    hvt_value images;
    json_t *index; /* name in the graph -> number in `tensor` */
    tensor *tensor;
    int ntensor;
    json_t *layers;             /* name of a layer -> its value on the tape */
    int classes;                /* that the file's heads shall have; 0: as they have */
    bool headed;                /* they are not those of the file, and the layer is on the tape */
    const json_t *node;         /* at hand */
    const operation *operation; /* its own */
    json_t *attached;           /* buffers that are in the state_dict and not on the tape */
    hvt__pt2_kept *kept;
    json_t *may_rotate; /* names of tensors of which all or some is negated or times constants */
    struct hvt__pt2_rotated *rotated; /* all */
    int changes;                      /* of constants, in place */
    bool rotating;                    /* they are looked for, and remain what they are */
    int64_t elements;                 /* made of constants */
    bool bias;   /* a layer's bias is looked for, which may be a copy of a parameter that was changed */
    bool failed; /* the node at hand was refused */
    json_t *refused, *refused_kinds; /* names of what refused nodes make; nodes and reasons that were told */
    int refusals;                    /* kinds */
    char refused_text[3000];         /* of some */
    bool mistaken;                   /* a builder has refused, as the model knows */
} importer;

/* The argument of this name, or `otherwise` where it is left out; no name: always that. */
typedef struct operand {
    const char *argument;
    double otherwise;
} operand;

struct operation {
    const char *target; /* without the trailing _ of in-place operations */
    void (*build)(importer *p);
    int of;                                     /* which hvt_function, hvt_binary or the like it is */
    operand a, b;                               /* of that function */
    hvt_value (*value)(importer *p, hvt_value); /* or several layers in its place; NULL: that one */
    bool last;                                  /* it is known as the model's last operation only */
    bool view;                                  /* its outputs may be parts of its first argument's memory */
};

typedef struct operations {
    const operation *of;
    size_t count;
} operations;
extern const operations hvt__pt2_elementwise, hvt__pt2_moves;

static inline int hvt__pt2_index(const importer *p, const tensor *t)
{
    return (int)(t - p->tensor);
}

/* A place, counted from the end if negative, and within 0 to size. */
static inline int64_t hvt__pt2_within(int64_t at, int64_t size)
{
    at += at < 0 ? size : 0;
    return at < 0 ? 0 : at > size ? size : at;
}

/* NULL: there is none */
const operation *hvt__pt2_operation(const char *target);
/* Is this its name, or that of its way in place? */
bool hvt__pt2_is_called(const operation *o, const char *target);

/* The node at hand cannot be imported. The message gets the file, the operation and where the user wrote it.
 */
void hvt__pt2_refuse(importer *p, const char *fmt, ...) HVT_PRINTF(2, 3);

/* ---- the arguments of the node at hand ---- */

bool hvt__pt2_given(const importer *p, const char *name);
int hvt__pt2_int(importer *p, const char *name, int otherwise);
double hvt__pt2_float(importer *p, const char *name, double otherwise); /* also of whole numbers */
/* Is x a number, or one of the infinities? */
bool hvt__pt2_real(const json_t *x, double *ret_x);
bool hvt__pt2_bool(importer *p, const char *name, bool otherwise);
const char *hvt__pt2_string(importer *p, const char *name, const char *otherwise);
/* n of them; one stands for all. Left out or empty: ret_x is not changed. */
void hvt__pt2_ints(importer *p, const char *name, int n, int *ret_x);
/* A list of at most `most` integers: how many. */
int hvt__pt2_list(importer *p, const char *name, int most, int *ret_x);
/* The sizes of a tensor in the example: how many, -1 if there are more than `most`. */
int hvt__pt2_argument_sizes(const importer *p, const char *name, int most, int64_t *ret_size);
/* A tensor; NULL: left out. A computed one must not have been changed in place since. */
const tensor *hvt__pt2_tensor(importer *p, const char *name);
/* The same, of which the channels need not be cut out, for who looks at `first`, `count` and `times`. */
const tensor *hvt__pt2_uncut(importer *p, const char *name);
/* A list of two tensors, channels not cut out; false: the node is refused. */
bool hvt__pt2_two_uncut(importer *p, const char *name, const tensor **ret_t);
/* By its name in the graph. */
const tensor *hvt__pt2_named(importer *p, const char *name);
/* An integer that may be as large as PyTorch writes "to the end". */
int64_t hvt__pt2_place(importer *p, const char *name, int64_t otherwise);
/* Are all its tensors constants, of which one at least cannot be a value of the tape? */
bool hvt__pt2_reads_constants(importer *p);
/* The number of a list of at most `most` tensors. */
int hvt__pt2_tensors(importer *p, const char *name, int most, const tensor **ret_t);

/* ---- its outputs ---- */

int hvt__pt2_outs(const importer *p);                          /* of a list: how many */
const char *hvt__pt2_out_name(const importer *p, int i);       /* in the graph */
int hvt__pt2_out_sizes(importer *p, int i, int64_t *ret_size); /* in the example: how many */
/* The same where the first one need not be the batch. */
int hvt__pt2_any_sizes(importer *p, int i, int64_t *ret_size);
bool hvt__pt2_is_read(const importer *p, int i); /* by an operation that leads to the logits */
/* Output i is t, a view of x; x NULL: it has storage of its own, unless the operation works in place. */
void hvt__pt2_out(importer *p, int i, tensor t, const tensor *x);
/* Output 0 is v, of [N,C,H,W] or [N,C] as the file says. */
void hvt__pt2_out_value(importer *p, hvt_value v);

/* ---- ops.c ---- */

/* Is it a value of the tape, or a parameter, which becomes one? If it is not, the node is refused. */
bool hvt__pt2_is_computed(importer *p, const tensor *t);
/* Its value, after channels that view and transpose have put in another order, as a channel shuffle does, are
 * moved so on the tape. */
hvt_value hvt__pt2_ordered(importer *p, const tensor *t);
/* Is it no buffer? If it is, the node is refused. */
bool hvt__pt2_is_trained(importer *p, const char *argument, const tensor *t);
/* The layer appended next has this name, or shares the parameters of the one that has it. */
void hvt__pt2_begin_layer(importer *p, const char *layer);
/* The value that made the parameters of this name, for those that share them; "": it has none. */
void hvt__pt2_keep_layer(importer *p, const char *layer, hvt_value v);
/* An argument as [N,C,H,W] of the tape; -1 after a refusal. */
hvt_value hvt__pt2_image(importer *p, const char *name);
/* The value of t, its channels cut out; and without the factor that it is to be multiplied by. */
hvt_value hvt__pt2_value(importer *p, const tensor *t);
hvt_value hvt__pt2_without_factor(importer *p, const tensor *t);
/* What the operation calls its first argument. */
const char *hvt__pt2_first_argument(const importer *p);
/* Output 0 is v, which lies as one of the arguments. */
void hvt__pt2_out_like(importer *p, hvt_value v, const hvt__pt2_axes *axes);

/* ---- elementwise.c ---- */

/* x + a parameter of so many rows, which meet pixels `first` on. */
hvt_value hvt__pt2_embedding(importer *p, hvt_value x, int first, int64_t rows, const tensor *parameter,
                             int n, const int64_t *size);
/* The parameter t as a value of each image; false: it cannot be one, or the node is refused. */
bool hvt__pt2_as_value(importer *p, tensor *t);
/* x op a parameter of these sizes, which begins at `init`; used again, it is shared. */
hvt_value hvt__pt2_by_parameter(importer *p, hvt_binary op, hvt_value x, const tensor *parameter, int n,
                                const int64_t *size, float init);
/* x + parameters that were joined, or a copy of one, some of which is 0. */
hvt_value hvt__pt2_add_in_parts(importer *p, hvt_value x, const tensor *bias);
/* Its argument `other`, if that is a number. */
bool hvt__pt2_number(importer *p, double *ret_x);

/* ---- moves.c ---- */

/* Dimension `dim`, a part of the channels, as a value of each of its elements: how many, at most `most`; 0:
 * it is none. */
int hvt__pt2_parts(importer *p, const tensor *t, int dim, int most, hvt_value *ret_v);

/* ---- turns.c ---- */

/* Its rows and columns are moved on the tape, where a roll has only said so. */
void hvt__pt2_unroll(importer *p, tensor *x);

/* A computed tensor whose rows and columns are on the tape, where a roll or a view has only said it. */
tensor hvt__pt2_with_lines(importer *p, const tensor *t);

/* A computed tensor, whose channels are in order: see hvt__pt2_ordered(). Its v is -1 after a refusal. */
tensor hvt__pt2_in_order(importer *p, const tensor *t);

/* Pixels become channels, and channels the pixels, h x w of them (0: one line): x, all of whose channels are
 * in its v, is another value of the same dimensions. False: it is as before. */
bool hvt__pt2_turn(importer *p, tensor *x, int h, int w);
/* The dimensions that it would have, without rolls. */
bool hvt__pt2_turned_axes(const importer *p, const tensor *x, int h, int w, hvt__pt2_axes *ret);
/* x, whose pixels are one line, gets h lines of w. False: it is as before. */
bool hvt__pt2_in_lines(importer *p, tensor *x, int h, int w);

/* A computed tensor whose last dimension is pixels that are neighbours, and then the channels, as where
 * patches are merged: all of them become channels. One whose last dimension is all pixels is turned. Any
 * other one is returned as it is. */
tensor hvt__pt2_channels_last(importer *p, const tensor *t);

/* Where x has a dimension of each head's channels: heads become pixels, each beside the others of its pixel;
 * else *ret_heads is 1. And such a value as it was. */
hvt_value hvt__pt2_vectors(importer *p, const tensor *x, int *ret_heads);
hvt_value hvt__pt2_of_heads(importer *p, hvt_value v, int heads);

/* ---- arrays.c ---- */

enum { HVT__PT2_ELEMENTS_MOST = 1 << 24 }; /* of all arrays of a file */

/* Of these sizes, all 0; NULL: the node is refused. */
known *hvt__pt2_numbers(importer *p, int ndim, const int64_t *size);
/* One part of k gets the strides of its sizes; and memory, false: the node is refused. */
void hvt__pt2_strides(const known *k, strided *ret);
bool hvt__pt2_room(importer *p, const known *k, strided *ret);
/* The numbers of t; NULL: it is computed, a parameter, or the node is refused. */
const known *hvt__pt2_known(importer *p, const tensor *t);
/* How many elements; HVT__PT2_ELEMENTS_MOST + 1: more than that. */
int64_t hvt__pt2_count(int ndim, const int64_t *size);
/* The next place in tensors of these sizes; false: there is none. */
bool hvt__pt2_next(int n, const int64_t *size, int64_t *at);
/* Can k be repeated to these sizes? One of its parts, so that n indices read it, and an element of that; and
 * the number there, 0 where there is only an element of a parameter. */
bool hvt__pt2_repeats(const known *k, int n, const int64_t *size);
strided hvt__pt2_repeated(const known *k, const strided *part, int n);
double *hvt__pt2_element(const strided *s, int n, const int64_t *at);
double hvt__pt2_number_at(const known *k, int n, const int64_t *at);
/* The sizes to which both are repeated; false: there are none. */
bool hvt__pt2_common(const known *a, const known *b, int64_t *ret_size);
bool hvt__pt2_is_float(int type);
/* x as a number of this type: rounded, or, of whole numbers, without what is behind the point, around the
 * type's range. */
double hvt__pt2_as_type(importer *p, int type, double x);
/* Buffers that are in the state_dict, and lead to nothing, are kept for files of weights. */
hvt_status hvt__pt2_attach_unused(importer *p);
void *hvt__pt2_keep(importer *p, size_t bytes); /* zeros; NULL: the node is refused */
void hvt__pt2_forget(importer *p);

/* ---- constants.c ---- */

/* Is the node at hand one of constants? Then it is computed, or refused. */
bool hvt__pt2_folds(importer *p);
/* Is the operation of this name known of constants? computed: it reads what depends on the images. */
bool hvt__pt2_computes_constants(const char *target, bool computed);

/* ---- attention.c ---- */

void hvt__pt2_attention(importer *p);
void hvt__pt2_matmul(importer *p);
void hvt__pt2_einsum(importer *p);
/* The node at hand, a sum, if one of its arguments is attention's scores; else false. */
bool hvt__pt2_add_to_scores(importer *p);
/* The node at hand, a product of scores and a factor of each head, or a sigmoid or a multiple of elements
 * that are added to them, if it is one; else false. */
bool hvt__pt2_scale_heads(importer *p);
bool hvt__pt2_squash_biases(importer *p, bool sigmoid, double gain);
/* The node at hand, a quotient of vectors and their lengths, within heads, if it is one; else false. */
bool hvt__pt2_normalise_heads(importer *p);
/* The node at hand, a view, if its first argument is attention's scores; else false. */
bool hvt__pt2_view_scores(importer *p);
/* The node at hand, the first argument op x, or its softmax, if that is attention's scores; else false. */
bool hvt__pt2_scale_scores(importer *p, hvt_binary op, double x);
bool hvt__pt2_softmax_scores(importer *p);

/* ---- rotary.c ---- */

/* Before the walk: which tensors may become a rotary embedding. */
hvt_status hvt__pt2_find_rotations(importer *p);
/* The node at hand, if it moves, multiplies or adds elements on their way to one; else false. */
bool hvt__pt2_rotates(importer *p);
/* t, whose kind is HVT__PT2_ROTATED, on the tape: as a rotary embedding, or as the operations say that made
 * it. NULL: the node is refused. */
tensor *hvt__pt2_as_rotary(importer *p, tensor *t);
/* Queries and keys of the node at hand, as one layer, if they are neighbours and turned alike. */
void hvt__pt2_rotate_together(importer *p);
void hvt__pt2_forget_rotated(importer *p);

/* ---- noise.c ---- */

void hvt__pt2_dropout(importer *p);
void hvt__pt2_feature_dropout(importer *p);
void hvt__pt2_noise(importer *p);
void hvt__pt2_bernoulli(importer *p);
/* The node at hand, a quotient or a product of a and b, if it is one of random numbers; else false. */
bool hvt__pt2_divide_noise(importer *p);
bool hvt__pt2_multiply_noise(importer *p, const tensor *a, const tensor *b);

#endif /* HVT_PT2_IMPORT_H */
