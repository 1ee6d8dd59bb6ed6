/*
 * graph.h - a model's graph between the passes that make a tape of a .pt2 file:
 *
 *     decode -> canonicalise -> fold -> match -> lay out -> lower
 *
 * decode.c makes values and nodes of the file's JSON. Every other pass reads a graph and leaves a graph.
 * Until the layout values are PyTorch's tensors; afterwards they are values of the tape, of height, width and
 * channels.
 *
 * All memory belongs to the graph. If there is none, hvt__pt2_make() leaves the pass by a jump to
 * pt2.c, so no other function checks for it.
 *
 * Included by src/model/pt2. Nothing else.
 */
#ifndef HVT_PT2_GRAPH_H
#define HVT_PT2_GRAPH_H

#include "base_impl.h"
#include "hvt/model.h"

#include <setjmp.h>

enum { PT2_DIMS = 6 };

/*
 * Operations: constant, name. PyTorch's operations become those of the first group, named after PyTorch's
 * Core ATen list where that has them; patterns make those of the second. The layout keeps some of them as
 * layers of the tape, and adds the third group.
 */
/* clang-format off */
#define PT2_OPS(X)                                                                                          \
    X(UNKNOWN, unknown) X(REFUSED, refused) X(CONV, convolution) X(LINEAR, linear)                          \
    X(CONV_TRANSPOSE, conv_transpose) X(INTERPOLATE, interpolate) X(PIXEL_SHUFFLE, pixel_shuffle)           \
    X(PIXEL_UNSHUFFLE, pixel_unshuffle) X(BORDER, border)                                                   \
    X(BATCH_NORM, batch_norm) X(LAYER_NORM, layer_norm) X(RMS_NORM, rms_norm) X(GROUP_NORM, group_norm)     \
    X(SDPA, scaled_dot_product_attention) X(MATMUL, bmm) X(SOFTMAX, softmax) X(POOL, pool)                  \
    X(ADAPTIVE_POOL, adaptive_pool) X(REDUCE, reduce) X(DROPOUT, dropout)                                   \
    X(DROPOUT_CHANNELS, feature_dropout) X(EMPTY, empty) X(BERNOULLI, bernoulli) X(MAP, map)                \
    X(PRELU, prelu) X(BINARY, binary) X(VIEW, view) X(EXPAND, expand) X(REPEAT, repeat)                     \
    X(PERMUTE, permute) X(SLICE, slice) X(CAT, cat) X(PAD, pad) X(ROLL, roll) X(CLONE, clone)               \
    X(CAST, cast) X(FULL, full) X(ARANGE, arange) X(INDEX, index) X(WHERE, where) X(NOT, logical_not)       \
    X(TRIANGLE, triangle) X(CUMSUM, cumsum) X(PUT, put) X(ATTENTION, attention) X(NORMALISE, normalise)     \
    X(ROTARY, rotary) X(BIAS, joined_bias) X(DROP_PATH, drop_path) X(ZEROS, zeros) X(CONSTANT, constant)    \
    X(EMBEDDING, embedding) X(PARAMETER, by_parameter) X(CONCAT, concat) X(CHANNELS, channels)              \
    X(SHUFFLE, shuffle) X(TRANSPOSE, transpose) X(PIXELS, pixels) X(FLATTEN, flatten)                       \
    X(SUBSAMPLE, subsample) X(MEAN_CHANNELS, mean_channels) X(MAX_CHANNELS, max_channels)                   \
    X(MAX_GROUPS, max_groups) X(MAXIMA, maxima)
/* clang-format on */

typedef enum pt2_op {
#define PT2_OP(constant, name) PT2_##constant,
    PT2_OPS(PT2_OP)
#undef PT2_OP
        PT2_OP_COUNT
} pt2_op;

/* Functions of one number besides hvt_function, operations on two besides hvt_binary: for constants only. */
enum { PT2_SIN = HVT_FUNCTIONS, PT2_COS, PT2_FLOOR };
enum {
    PT2_FLOOR_DIV = HVT_BINARIES,
    PT2_TRUNC_DIV,
    PT2_REMAINDER,
    PT2_POWER,
    PT2_EQ,
    PT2_NE,
    PT2_GE,
    PT2_GT,
    PT2_LE,
    PT2_LT
};

typedef enum pt2_reduction { PT2_MEAN, PT2_SUM, PT2_NORM, PT2_MAX, PT2_AMAX } pt2_reduction;

/* How random numbers are shared: by all images, by the elements of an image, of a channel, or not. */
typedef enum pt2_share { PT2_PER_BATCH, PT2_PER_IMAGE, PT2_PER_CHANNEL, PT2_PER_ELEMENT } pt2_share;

/* Types of torch/_export/serde/schema.py. */
enum { PT2_U8 = 1, PT2_I8, PT2_I16, PT2_I32, PT2_I64, PT2_F16, PT2_F32, PT2_F64, PT2_BOOL = 12, PT2_BF16 };

typedef struct pt2_node pt2_node;
typedef struct pt2_value pt2_value;
typedef struct pt2_array pt2_array;

typedef enum pt2_source { PT2_COMPUTED, PT2_IMAGES, PT2_TRAINED, PT2_BUFFER } pt2_source;

struct pt2_value {
    const char *name;
    int type; /* 0: the file does not say */
    int ndim; /* -1: the file does not say, or more than PT2_DIMS */
    int64_t size[PT2_DIMS];
    bool dense; /* its elements are neighbours in memory, in order */
    pt2_source source;
    const char *state;          /* of parameters and buffers: the name in the state_dict */
    bool persistent;            /* a buffer of the state_dict */
    bool no_gradient;           /* a parameter with requires_grad=False */
    bool used;                  /* the logits depend on it */
    bool computed;              /* it depends on the images, or is random */
    bool resized;               /* a parameter or buffer with a dimension of the classes */
    bool refused;               /* nothing can be said of what reads it */
    bool read;                  /* a buffer whose numbers were read */
    const pt2_value *second_of; /* a parameter under a second name: the one; NULL: it is none */
    pt2_node *producer;         /* NULL: an input of the graph */
    pt2_node **use;             /* [nuses] nodes that read it, once for each time */
    int nuses, room;
    struct pt2_memory_of *alias; /* canon.c: whose memory it is a part of */
    pt2_array *array;            /* fold.c: its numbers; NULL: not known, or not needed */
    pt2_array *trace;            /* fold.c: its elements, while they are followed */
    int constant;                /* fold.c: see pt2_constness */
    struct pt2_place *place;     /* layout.c: where it is on the tape */
    int number;                  /* lower.c: its value on the tape */
};

/* Whether a value is computed of constants alone. Numbers of FOLDED are known; those of SOFT, which a layer
 * may read as a buffer of the state_dict, are computed where something needs them. */
typedef enum pt2_constness { PT2_NO_CONSTANT, PT2_SOFT, PT2_FOLDED } pt2_constness;

/* An argument as the file has it. */
typedef struct pt2_number {
    enum { PT2_NO_NUMBER, PT2_WHOLE, PT2_REAL } kind;
    int64_t whole;
    double real; /* of both kinds */
} pt2_number;

typedef struct pt2_arg {
    const char *name, *kind; /* "as_int" */
    int n;                   /* of a list */
    const pt2_number *number;
    pt2_value **value;
    const char *text;
    bool truth;
} pt2_arg;

/* What is added to attention's scores, which have these sizes. */
typedef struct pt2_addition {
    pt2_value *value;
    int ndim;
    int64_t size[PT2_DIMS];
} pt2_addition;

enum { PT2_ADDITIONS = 4 };

/* Rows and columns of the image's own around it: above, below, left, right. */
typedef struct pt2_border {
    hvt_padding how;
    int by[4];
} pt2_border;

typedef struct pt2_attributes {
    union {
        hvt_conv2d_opts convolution; /* of linear: its filters and bias */
        struct {
            double eps, momentum;
            int groups, dims;
            bool trains, affine;
        } norm;
        struct {
            hvt_pooling_kind kind;
            hvt_pool_opts opts;
        } pool;
        struct {
            int f;
            double a, b;
        } map;
        struct {
            int op;
            bool has_number, reversed; /* the second operand is `number`; number op x */
            bool real;                 /* the number is a float */
            double number, alpha;      /* alpha times the second operand */
        } binary;
        struct {
            int n, dim[PT2_DIMS], shift[PT2_DIMS];
        } dims; /* of permute, roll */
        struct {
            pt2_reduction how;
            int n, dim[PT2_DIMS];
        } reduce;
        struct {
            int dim;
            int64_t first, end, step, block; /* a whole number of blocks is cut off */
        } slice;
        struct {
            int dim; /* of cat, softmax, index, cumsum */
        } along;
        struct {
            double p;
            bool trains;
            pt2_share share;
        } dropout;
        struct {
            int n, by[2 * PT2_DIMS];
            double value;
            const char *mode;
        } pad;
        struct {
            double start, step;
        } fill;
        struct {
            int side; /* 1: upper, -1: lower */
            int64_t diagonal;
        } triangle;
        struct {
            double scale; /* 0: 1 / sqrt(width) */
            bool turned, causal;
            int nadded;
            pt2_addition added[PT2_ADDITIONS];
        } attention;
        struct {
            double least;
            int dim;
            bool clamped;
        } normalise;
        struct {
            int width, apart, tokens, rows; /* tokens: a dimension, of so many rows */
            const float *own, *other;       /* [rows][width] */
        } rotary;
        const char *text; /* of einsum */
        /* of the tape */
        const float *values;
        struct {
            hvt_binary op;
            pt2_value *of;
            int first, ndim, dim[4];
            float init;
        } parameter;
        struct {
            int first, count;
        } channels;
        struct {
            int rows, columns, block;
        } transpose;
        int by[4], groups;
        struct {
            bool h, w;
            int groups;
        } amax;
        hvt_interpolate_opts interpolate;
        pt2_border border;
        hvt_attention_opts attend;
        struct {
            hvt_rotary_opts opts;
        } rotate;
    };
    const char *layer; /* of the tape: its parameters' name; NULL: none */
} pt2_attributes;

struct pt2_node {
    pt2_op op;
    pt2_attributes is;
    pt2_value **in, **out; /* an input that is left out is NULL */
    int nin, nout;
    const char *target; /* "aten.conv2d.default" */
    const char *where;  /* "layer features.3, net.py line 71"; "" */
    const pt2_arg *arg; /* [nargs] for canon.c */
    int nargs;
    const char *why; /* why it was refused, until that is reported; else NULL */
    int order;       /* its place in the list, while patterns are matched */
    bool head;       /* a layer whose outputs are the classes */
    pt2_node *before, *after;
};

typedef struct pt2_refusals {
    int kinds;
    const char **reported; /* [kinds] */
    int room;
    char text[3000];
} pt2_refusals;

typedef struct pt2_graph {
    const char *path; /* of the file, for messages */
    pt2_node *first, *last;
    pt2_value **input; /* [ninputs] parameters and buffers, in the order of the file */
    int ninputs;
    pt2_value *images, *logits;
    int outputs;
    const char *output_name;            /* the key of the first output in a dict; NULL: it has none */
    int batch, channels, height, width; /* of the example */
    int classes;
    bool log_softmax, decomposed;
    int norms, fixed_norms;
    bool eval_mode;
    const pt2_node *head;  /* the last layer with weights: its outputs are the classes; NULL: none */
    const char *head_name; /* without ".weight" */
    bool rows;             /* the output is [N, classes] or [N, classes, H, W], not [N] */
    pt2_value **changed;   /* [nchanged] buffers that the model changes and does not depend on */
    int nchanged;
    int names;                  /* values so far */
    jmp_buf *refusal;           /* where hvt__pt2_refuse() goes: hvt__pt2_try() */
    bool traces;                /* elements are followed, and refusals are not reported */
    bool defers;                /* refusals are reported later, if the logits depend on them */
    int64_t elements;           /* of arrays */
    const struct hvt_pt2 *file; /* whose buffers fold.c reads */
    pt2_refusals refusals;
    char *unknown; /* for a message: operations that are unknown; NULL: none */
    struct pt2_block *memory, *scratch;
    bool scratches; /* hvt__pt2_make() gives memory that hvt__pt2_scratch() frees */
    jmp_buf no_memory;
} pt2_graph;

/* ---- graph.c ---- */

void *hvt__pt2_make(pt2_graph *g, size_t bytes); /* zeros; does not return if there is no memory */
/* The array, with room for one element more than `count`. */
void *hvt__pt2_grown(pt2_graph *g, void *array, int count, int *room, size_t size);
const char *hvt__pt2_text(pt2_graph *g, const char *text);
const char *hvt__pt2_format(pt2_graph *g, const char *fmt, ...) HVT_PRINTF(2, 3);
/* From now on memory is for a short time; false: no more, and what was given for one is freed. */
void hvt__pt2_scratch(pt2_graph *g, bool begins);
void hvt__pt2_graph_free(pt2_graph **graph);

/* A value without a producer. like: it has its type and sizes; NULL: none. */
pt2_value *hvt__pt2_value(pt2_graph *g, const pt2_value *like);
/* A node before `at` (NULL: the last one), which was written where `of` was (NULL: nowhere). */
pt2_node *hvt__pt2_node(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op);
void hvt__pt2_inputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *in);
void hvt__pt2_set_input(pt2_graph *g, pt2_node *n, int i, pt2_value *v);
void hvt__pt2_outputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *out);
/* A node of one new output, which is returned. */
pt2_value *hvt__pt2_compute(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op,
                            const pt2_attributes *is, int count, pt2_value *const *in, const pt2_value *like);
/* n becomes another operation, which makes its outputs. */
void hvt__pt2_become(pt2_graph *g, pt2_node *n, pt2_op op, const pt2_attributes *is, int count,
                     pt2_value *const *in);
/* All that reads `old` reads `new`. */
void hvt__pt2_replace(pt2_graph *g, pt2_value *old, pt2_value *new);
void hvt__pt2_erase(pt2_graph *g, pt2_node *n);
/* Erases nodes that the logits do not depend on. */
void hvt__pt2_sweep(pt2_graph *g);
void hvt__pt2_print(const pt2_graph *g, FILE *f);

/* Number of elements; INT64_MAX: more. */
int64_t hvt__pt2_count(int ndim, const int64_t *size);
bool hvt__pt2_same_sizes(const pt2_value *a, const pt2_value *b);
bool hvt__pt2_is_float(int type);
bool hvt__pt2_is_whole(int type); /* whole numbers or truth values */
bool hvt__pt2_ends_in(const char *text, const char *end);
/* True for num_batches_tracked of a batch norm. */
bool hvt__pt2_counts_batches(const char *state);
/* The parameter or buffer of which v is a view or a repetition, or v itself; NULL: it is computed. */
const pt2_value *hvt__pt2_state_of(const pt2_value *v);

static inline pt2_value *hvt__pt2_input(const pt2_node *n, int i)
{
    return i < n->nin ? n->in[i] : NULL;
}

/* The node that made v, if it is this operation; else NULL. */
static inline pt2_node *hvt__pt2_maker(const pt2_value *v, pt2_op op)
{
    return v && v->producer && v->producer->op == op ? v->producer : NULL;
}

/* ---- refuse.c ---- */

/*
 * Node n cannot be imported: leaves the pass by a jump to hvt__pt2_try(), so that no other function checks
 * for it. Of messages of one kind only the first is reported.
 */
_Noreturn void hvt__pt2_refuse(pt2_graph *g, pt2_node *n, const char *fmt, ...) HVT_PRINTF(3, 4);
/* The same without a message: something before n was refused. */
_Noreturn void hvt__pt2_give_up(pt2_graph *g);
/* What a pass does with a node. */
typedef void pt2_job(pt2_graph *g, pt2_node *n, void *data);
/* Does it. False: a node was refused. */
bool hvt__pt2_try(pt2_graph *g, pt2_job *job, pt2_node *n, void *data);
/* Tells what was deferred. */
void hvt__pt2_report(pt2_graph *g);
/* Refuses all unknown operations that the logits depend on. */
void hvt__pt2_find_unknown(pt2_graph *g);
/* HVT_OK if nothing was refused; else the error that tells all of it. */
hvt_status hvt__pt2_reported(const pt2_graph *g);
/* The text of an error about node n. */
hvt_status hvt__pt2_fail_at(const pt2_graph *g, const pt2_node *n, const char *why);

/* ---- the passes ---- */

struct json_t;
hvt_status hvt__pt2_decode(pt2_graph *g, const struct json_t *program);
hvt_status hvt__pt2_canonicalise(pt2_graph *g);
void hvt__pt2_find_heads(pt2_graph *g);
void hvt__pt2_fold(pt2_graph *g);
void hvt__pt2_match(pt2_graph *g);
void hvt__pt2_lay_out(pt2_graph *g);
hvt_status hvt__pt2_lower(const pt2_graph *g, hvt_model *m, hvt_value images, int classes,
                          hvt_value *ret_logits);

#endif /* HVT_PT2_GRAPH_H */
