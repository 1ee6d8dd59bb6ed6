/*
 * graph.h - the graph that the passes of the .pt2 importer work on:
 *
 *     decode -> canonicalise -> fold -> match -> lay out -> lower
 *
 * decode.c builds it from the file's JSON; every later pass rewrites it. Before the layout pass a value is a
 * PyTorch tensor; after it, a value of the tape (height, width, channels).
 *
 * The graph owns all memory. When memory runs out, hvt__pt2_make() jumps back to pt2.c, so its callers need
 * not check.
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
 * The operations: constant, name. canon.c maps ATen to the first group (up to PUT), named as in PyTorch's
 * Core ATen list where it has the operation. Patterns produce the second group (up to DROP_PATH). The layout
 * keeps some of both as layers of the tape and adds the rest.
 */
/* clang-format off */
#define PT2_OPS(X)                                                                                          \
    X(UNKNOWN, unknown) X(REFUSED, refused) X(CONV, convolution) X(LINEAR, linear)                          \
    X(CONV_TRANSPOSE, conv_transpose) X(INTERPOLATE, interpolate) X(PIXEL_SHUFFLE, pixel_shuffle)           \
    X(PIXEL_UNSHUFFLE, pixel_unshuffle) X(BORDER, border)                                                   \
    X(BATCH_NORM, batch_norm) X(LAYER_NORM, layer_norm) X(RMS_NORM, rms_norm) X(GROUP_NORM, group_norm)     \
    X(SDPA, scaled_dot_product_attention) X(MATMUL, bmm) X(SOFTMAX, softmax) X(POOL, pool)                  \
    X(ADAPTIVE_POOL, adaptive_pool) X(REDUCE, reduce) X(DROPOUT, dropout)                                   \
    X(DROPOUT_CHANNELS, feature_dropout) X(EMPTY, empty) X(RAND, rand) X(BERNOULLI, bernoulli) X(MAP, map)  \
    X(PRELU, prelu) X(BINARY, binary) X(VIEW, view) X(EXPAND, expand) X(REPEAT, repeat)                     \
    X(PERMUTE, permute) X(SLICE, slice) X(CAT, cat) X(PAD, pad) X(ROLL, roll) X(CLONE, clone)               \
    X(CAST, cast) X(FULL, full) X(ARANGE, arange) X(INDEX, index) X(WHERE, where) X(NOT, logical_not)       \
    X(TRIANGLE, triangle) X(CUMSUM, cumsum) X(PUT, put) X(ATTENTION, attention) X(NORMALISE, normalise)     \
    X(ROTARY, rotary) X(BIAS, joined_bias) X(DROP_PATH, drop_path) X(ZEROS, zeros) X(CONSTANT, constant)    \
    X(EMBEDDING, embedding) X(PARAMETER, by_parameter) X(CONCAT, concat) X(CHANNELS, channels)              \
    X(SHUFFLE, shuffle) X(TRANSPOSE, transpose) X(PIXELS, pixels) X(FLATTEN, flatten)                       \
    X(SUBSAMPLE, subsample) X(MEAN_CHANNELS, mean_channels) X(MAX_CHANNELS, max_channels)                   \
    X(MAX_GROUPS, max_groups) X(MAXIMA, maxima) X(GATHER, gather)                      \
    X(UNFOLD, unfold) X(IM2COL, im2col) X(COL2IM, col2im)                                                    \
    X(WEIGHT, weight) X(WEIGHT_NUMBERS, weight_numbers) X(WEIGHT_VIEW, weight_view)                         \
    X(WEIGHT_SUM, weight_sum) X(WEIGHT_MATMUL, weight_matmul) X(WEIGHT_CONCAT, weight_concat)               \
    X(WEIGHT_STANDARDISE, weight_standardise)
/* clang-format on */

typedef enum pt2_op {
#define PT2_OP(constant, name) PT2_##constant,
    PT2_OPS(PT2_OP)
#undef PT2_OP
        PT2_OP_COUNT
} pt2_op;

/* Functions and binary operations that only constants support, beside hvt_function and hvt_binary. */
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

/* What shares one random number: the whole batch, an image, a channel of an image, or nothing. */
typedef enum pt2_share { PT2_PER_BATCH, PT2_PER_IMAGE, PT2_PER_CHANNEL, PT2_PER_ELEMENT } pt2_share;

/* Element types, numbered as in torch/_export/serde/schema.py. */
enum { PT2_U8 = 1, PT2_I8, PT2_I16, PT2_I32, PT2_I64, PT2_F16, PT2_F32, PT2_F64, PT2_BOOL = 12, PT2_BF16 };

typedef struct pt2_node pt2_node;
typedef struct pt2_value pt2_value;
typedef struct pt2_array pt2_array;

typedef enum pt2_source { PT2_COMPUTED, PT2_IMAGES, PT2_TRAINED, PT2_BUFFER } pt2_source;

struct pt2_value {
    const char *name;
    int type; /* 0: unknown */
    int ndim; /* -1: unknown, or more than PT2_DIMS */
    int64_t size[PT2_DIMS];
    bool dense; /* contiguous in memory */
    pt2_source source;
    const char *state;          /* name in the state_dict (parameters and buffers) */
    bool persistent;            /* a buffer that is in the state_dict */
    bool no_gradient;           /* a parameter with requires_grad=False */
    bool used;                  /* the logits depend on it */
    bool computed;              /* depends on the images, or is random */
    bool resized;               /* a parameter or buffer with a dimension of size `classes` */
    bool refused;               /* its producer was refused, so its readers are skipped */
    bool read;                  /* a buffer whose numbers were read */
    const pt2_value *second_of; /* a parameter with two names: the first one; else NULL */
    pt2_node *producer;         /* NULL: an input of the graph */
    pt2_node **use;             /* [nuses] readers; a node that reads it twice appears twice */
    int nuses, room;
    struct pt2_memory_of *alias; /* canon.c: the memory that it shares */
    pt2_array *array;            /* fold.c: its numbers; NULL: not constant, or not needed */
    pt2_array *trace;            /* fold.c: where its elements come from, while a pattern traces them */
    int constant;                /* fold.c: a pt2_constness */
    struct pt2_place *place;     /* layout.c: where it is on the tape */
    pt2_value *tensor;           /* lay_weights.c: its tensor of weights on the tape; NULL: none yet */
    bool is_tensor;              /* lay_weights.c: a parameter or buffer that weights are computed from */
    int number;                  /* lower.c: its value on the tape */
};

/* Whether a value depends on constants alone. The numbers of a FOLDED value are computed. Those of a SOFT
 * value are computed only if something needs them, since a layer may read it as a buffer of the state_dict.
 */
typedef enum pt2_constness { PT2_NO_CONSTANT, PT2_SOFT, PT2_FOLDED } pt2_constness;

/* An argument of a node, as written in the file. */
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

/* A term added to the scores of attention, and the sizes of these scores. */
typedef struct pt2_addition {
    pt2_value *value;
    int ndim;
    int64_t size[PT2_DIMS];
} pt2_addition;

enum { PT2_ADDITIONS = 4 };

/* Padding of an image with its own rows and columns: above, below, left, right. */
typedef struct pt2_border {
    hvt_padding how;
    int by[4];
} pt2_border;

/* A tensor of weights on the tape, and what it is computed with. */
typedef struct pt2_tensor {
    int ndim, dim[4], stride[4], first, along;
    bool over[4], dense, is_buffer;
    double eps, init, deviation;
    const float *values;
} pt2_tensor;

typedef struct pt2_attributes {
    union {
        hvt_conv2d_opts convolution; /* linear uses filters and bias */
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
            bool has_number, reversed; /* x op number; reversed: number op x */
            bool real;                 /* number is a float */
            double number, alpha;      /* x op alpha * y */
        } binary;
        struct {
            int n, dim[PT2_DIMS], shift[PT2_DIMS];
        } dims; /* permute, roll */
        struct {
            pt2_reduction how;
            int n, dim[PT2_DIMS];
        } reduce;
        struct {
            int dim;
            int64_t first, end, step, block; /* the slice consists of whole blocks */
        } slice;
        struct {
            int dim; /* cat, softmax, index, cumsum */
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
            int width, apart, tokens, rows; /* tokens: the dimension of size `rows` */
            const float *own, *other;       /* [rows][width] factors of an element and of its partner */
        } rotary;
        const char *text; /* einsum's equation */
        /* layers of the tape */
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
        bool transposed; /* the second matrix */
        struct {
            const int *index; /* [pixels][terms] */
            int terms;
        } gather;
        hvt_interpolate_opts interpolate;
        pt2_border border;
        hvt_attention_opts attend;
        struct {
            hvt_rotary_opts opts;
        } rotate;
        pt2_tensor tensor;
    };
    const char *layer; /* on the tape: the name of its parameters; NULL: none */
} pt2_attributes;

struct pt2_node {
    pt2_op op;
    pt2_attributes is;
    pt2_value **in, **out; /* an omitted input is NULL */
    int nin, nout;
    const char *target; /* "aten.conv2d.default" */
    const char *where;  /* "layer features.3, net.py line 71"; "" */
    const pt2_arg *arg; /* [nargs], read by canon.c */
    int nargs;
    const char *why;       /* a deferred refusal; else NULL */
    int order;             /* position in the list, while patterns are matched */
    bool head;             /* the layer whose outputs are the classes */
    bool computes_weights; /* lay_weights.c: only weights of layers depend on it */
    pt2_node *before, *after;
};

typedef struct pt2_refusals {
    int kinds;
    const char **reported; /* [kinds] */
    int room;
    char text[3000];
} pt2_refusals;

typedef struct pt2_graph {
    const char *path; /* the file, for messages */
    pt2_node *first, *last;
    pt2_value **input; /* [ninputs] parameters and buffers, in file order */
    int ninputs;
    pt2_value *images, *logits;
    int outputs;
    const char *output_name;            /* the first output's key, if the model returns a dict; else NULL */
    int batch, channels, height, width; /* of the example input */
    int classes;
    bool log_softmax, decomposed;
    int norms, fixed_norms;
    bool eval_mode;
    const pt2_node *head;  /* the last layer with weights, whose outputs are the classes; NULL: none */
    const char *head_name; /* its parameters' name without ".weight" */
    bool rows;             /* the output is [N, classes] or [N, classes, H, W], not [N] */
    pt2_value **changed;   /* [nchanged] buffers that the model writes but never reads */
    int nchanged;
    int names;                  /* number of values so far */
    jmp_buf *refusal;           /* where hvt__pt2_refuse() jumps, set by hvt__pt2_try() */
    bool traces;                /* a pattern traces elements: refusals are not reported */
    bool defers;                /* refusals are reported later, if the logits depend on them */
    int64_t elements;           /* number of elements of all arrays */
    const struct hvt_pt2 *file; /* where fold.c reads buffers */
    pt2_refusals refusals;
    char *unknown; /* the unknown operations, for a message; NULL: none */
    struct pt2_block *memory, *scratch;
    bool scratches; /* hvt__pt2_make() allocates scratch memory */
    jmp_buf no_memory;
} pt2_graph;

/* ---- graph.c ---- */

void *hvt__pt2_make(pt2_graph *g, size_t bytes); /* zeroed; jumps out of the pass if memory runs out */
/* Makes room in array[count] for one more element, and returns the array. */
void *hvt__pt2_grown(pt2_graph *g, void *array, int count, int *room, size_t size);
const char *hvt__pt2_text(pt2_graph *g, const char *text);
const char *hvt__pt2_format(pt2_graph *g, const char *fmt, ...) HVT_PRINTF(2, 3);
/* Begins or ends scratch allocation. Its end frees all memory allocated since its beginning. */
void hvt__pt2_scratch(pt2_graph *g, bool begins);
void hvt__pt2_graph_free(pt2_graph **graph);

/* A new value without a producer, with the type and sizes of `like` (NULL: unknown). */
pt2_value *hvt__pt2_value(pt2_graph *g, const pt2_value *like);
/* Inserts a node before `at` (NULL: at the end). It takes `of`'s source line (NULL: none). */
pt2_node *hvt__pt2_node(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op);
void hvt__pt2_inputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *in);
void hvt__pt2_set_input(pt2_graph *g, pt2_node *n, int i, pt2_value *v);
void hvt__pt2_outputs(pt2_graph *g, pt2_node *n, int count, pt2_value *const *out);
/* Inserts a node with one output, and returns that. */
pt2_value *hvt__pt2_compute(pt2_graph *g, pt2_node *at, const pt2_node *of, pt2_op op,
                            const pt2_attributes *is, int count, pt2_value *const *in, const pt2_value *like);
/* Turns n into another operation with the same outputs. */
void hvt__pt2_become(pt2_graph *g, pt2_node *n, pt2_op op, const pt2_attributes *is, int count,
                     pt2_value *const *in);
/* Makes every reader of `old` read `new`. */
void hvt__pt2_replace(pt2_graph *g, pt2_value *old, pt2_value *new);
void hvt__pt2_erase(pt2_graph *g, pt2_node *n);
/* Erases the nodes that the logits do not depend on. */
void hvt__pt2_sweep(pt2_graph *g);
void hvt__pt2_print(const pt2_graph *g, FILE *f);

/* Number of elements, INT64_MAX at most. */
int64_t hvt__pt2_count(int ndim, const int64_t *size);
bool hvt__pt2_same_sizes(const pt2_value *a, const pt2_value *b);
bool hvt__pt2_is_float(int type);
bool hvt__pt2_is_whole(int type); /* integers or bool */
bool hvt__pt2_ends_in(const char *text, const char *end);
/* True for a batch norm's num_batches_tracked. */
bool hvt__pt2_counts_batches(const char *state);
/* The parameter or buffer that v is, views or repeats; NULL if v is computed. */
const pt2_value *hvt__pt2_state_of(const pt2_value *v);

static inline pt2_value *hvt__pt2_input(const pt2_node *n, int i)
{
    return i < n->nin ? n->in[i] : NULL;
}

/* The producer of v if it has this operation; else NULL. */
static inline pt2_node *hvt__pt2_maker(const pt2_value *v, pt2_op op)
{
    return v && v->producer && v->producer->op == op ? v->producer : NULL;
}

/* ---- refuse.c ---- */

/*
 * Refuses node n and jumps to hvt__pt2_try(), so callers need not check. Only the first message of a kind is
 * reported.
 */
_Noreturn void hvt__pt2_refuse(pt2_graph *g, pt2_node *n, const char *fmt, ...) HVT_PRINTF(3, 4);
/* The same without a message, for a node whose input was refused. */
_Noreturn void hvt__pt2_give_up(pt2_graph *g);
/* A pass's work on one node. */
typedef void pt2_job(pt2_graph *g, pt2_node *n, void *data);
/* Runs the job. False if it refused a node. */
bool hvt__pt2_try(pt2_graph *g, pt2_job *job, pt2_node *n, void *data);
/* Reports the deferred refusals. */
void hvt__pt2_report(pt2_graph *g);
/* Refuses all unknown operations that the logits depend on. */
void hvt__pt2_find_unknown(pt2_graph *g);
/* HVT_OK if nothing was refused; else one error with all refusals. */
hvt_status hvt__pt2_reported(const pt2_graph *g);
/* Sets an error that names node n and its source line. */
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
