/*
 * pt2_impl.h - a PyTorch model in a .pt2 file, shared by the files that read it.
 *
 * Included by src/model/pt2. Nothing else.
 *
 * The file is a zip: a graph of operations in JSON, which is kept as jansson parsed it, and the values of the
 * parameters. Nothing in it is unpickled, and nothing is written to disk.
 */
#ifndef HVT_PT2_IMPL_H
#define HVT_PT2_IMPL_H

#include "base_impl.h"
#include "hvt/model.h"

#include <jansson.h>
#include <zip.h>

struct hvt_pt2 {
    char *path;
    zip_t *zip;
    uint64_t bytes;    /* of the file */
    char *top;         /* what the names of all entries begin with: "net/", or "" in files of PyTorch 2.6 */
    json_t *program;   /* the graph and what describes it */
    json_t *weights;   /* name in the state_dict -> where its values are; NULL: pickled, hence not read */
    json_t *fixed;     /* the same of buffers that are not persistent, and other constants; NULL: none */
    json_t *inputs;    /* name in the graph -> name in the state_dict, of parameters and buffers */
    json_t *constants; /* names in the graph of those inputs that are no parameters -> are they in the
                          state_dict? */
    const json_t *nodes, *tensors; /* of the graph, borrowed */
    const json_t **needed;         /* [nneeded] the nodes that lead to the logits, in order */
    json_t *used;                  /* names in the graph that lead to the logits */
    json_t *computed;              /* those of what depends on the images */
    json_t *second;                /* second name in the state_dict of a parameter -> its name */
    size_t nneeded, names;         /* names: at most so many has the graph */
    const json_t *head;            /* the last layer with weights: its outputs are the classes; or NULL */
    json_t *unknown_nodes;         /* names in the graph of what unknown operations make */
    char *unknown;                 /* these operations, for a message; NULL: there are none */
    bool decomposed;               /* by run_decompositions() */
    json_t *changed; /* names in the state_dict of buffers that the model changes, but does not depend on */
    json_t *heads;   /* names in the graph of what layers make that have the classes as outputs */
    json_t *resized; /* names in the state_dict of parameters and buffers with a dimension of the classes */
    char *head_name; /* without ".weight" */
    int unused;      /* parameters that do not lead to the logits */
    const char *first_unused;   /* name in the state_dict; borrowed */
    int norms, fixed_norms;     /* batch norms; those whose running statistics stay as they are */
    bool eval_mode;             /* all are in eval() mode, and nothing is in train() mode */
    const char *image, *logits; /* names in the graph of the input and the first output */
    int outputs;
    bool log_softmax;                   /* it makes the first output, and is left out */
    int batch, channels, height, width; /* of the example that it was exported with */
};

/* Types of torch/_export/serde/schema.py. */
enum {
    HVT__PT2_U8 = 1,
    HVT__PT2_I8,
    HVT__PT2_I16,
    HVT__PT2_I32,
    HVT__PT2_I64,
    HVT__PT2_F16,
    HVT__PT2_F32,
    HVT__PT2_F64,
    HVT__PT2_BOOL = 12,
    HVT__PT2_BF16
};

/* ---- archive.c ---- */

hvt_status hvt__pt2_archive_open(hvt_pt2 *p);
/* Parse an entry; *ret_json is NULL if there is none of this name below the top folder. */
hvt_status hvt__pt2_archive_json(const hvt_pt2 *p, const char *entry, json_t **ret_json);
/* Is there an entry of at least so many bytes? How many it has. */
hvt_status hvt__pt2_archive_has(const hvt_pt2 *p, const char *entry, size_t least, size_t *ret_bytes);
/* Read it, all its bytes. */
hvt_status hvt__pt2_archive_read(const hvt_pt2 *p, const char *entry, void *data, size_t bytes);

/* Does this tensor change its size with the number of classes? */
bool hvt__pt2_is_resized(const hvt_pt2 *p, const char *tensor);
/* Are the outputs of this layer the classes? */
bool hvt__pt2_makes_classes(const hvt_pt2 *p, const json_t *node);

/* ---- graph.c ---- */

/* Find inputs, outputs and nodes of p->program; check that each name is defined once and before its use; find
 * operations that are unknown. */
hvt_status hvt__pt2_graph(hvt_pt2 *p);
/* The value of a node's argument and its kind ("as_int"); NULL: it was left out, or is None. */
const json_t *hvt__pt2_arg(const json_t *node, const char *name, const char **ret_kind);
/* An argument's tensors: {"as_tensor": {"name": ...}}, or {"as_tensors": [{"name": ...}]}, of which some may
 * be left out in {"as_optional_tensors": ...}: their names are "". */
size_t hvt__pt2_tensors_in(const json_t *arg);
const char *hvt__pt2_tensor_in(const json_t *arg, size_t i);
json_t *hvt__pt2_tensor_object(const json_t *arg, size_t i); /* {"name": ...} */
/* Is one of the tensors that a node reads in a set of names? */
bool hvt__pt2_reads(const json_t *node, const json_t *set);
/* Add those that it makes to a set; not 0: there is no memory. */
int hvt__pt2_add_outputs(const json_t *node, json_t *set);
/* A tensor's type; 0: the file does not say. */
int hvt__pt2_type(const hvt_pt2 *p, const char *tensor);
/* Is a tensor of truth values? Of these, or of whole numbers? */
bool hvt__pt2_is_truth(const hvt_pt2 *p, const char *tensor);
bool hvt__pt2_is_whole(const hvt_pt2 *p, const char *tensor);
/* A batch norm in train() mode? */
bool hvt__pt2_norm_trains(const json_t *node);
/* The number of a tensor's dimensions, at most `most`, and its sizes in the example; -1: there are more, or
 * the file does not say. */
int hvt__pt2_sizes(const hvt_pt2 *p, const char *tensor, int most, int64_t *ret_size);
/* "aten.conv2d.default" */
const char *hvt__pt2_target(const json_t *node);
/* An operation whose name ends in _: it changes the tensor of this name. */
bool hvt__pt2_in_place(const json_t *node);
const char *hvt__pt2_changed(const json_t *node);
/* Where the user wrote it: "layer features.3, net.py line 71". */
void hvt__pt2_where(const json_t *node, char *text, size_t size);

/* Is this operation unknown? */
bool hvt__pt2_is_unknown(const hvt_pt2 *p, const json_t *node);
bool hvt__pt2_ends_in(const char *text, const char *end);
/* Is this a batch norm's num_batches_tracked? */
bool hvt__pt2_counts_batches(const char *state);

/* ---- heads.c ---- */

/* Find the last layer, others whose outputs meet its, and what is resized with them. After p->needed. */
hvt_status hvt__pt2_find_heads(hvt_pt2 *p);

/* ---- blocks.c ---- */

/* The nodes of blocks (torch.no_grad(), torch.autocast()) among those of the whole graph. After p->inputs. */
hvt_status hvt__pt2_unfold_blocks(hvt_pt2 *p, json_t *graph);

/* ---- axes.c: how the dimensions of a tensor in PyTorch lie in a value of the tape ---- */

enum { HVT__PT2_DIMS = 6, HVT__PT2_ATOMS = 8 };

/* `extent` steps of `stride` along one axis of the tape's [N,H,W,C]; one of extent 1 is left out, also the
 * batch of an example of one image. */
typedef struct hvt__pt2_atom {
    char axis;
    int64_t extent, stride;
} hvt__pt2_atom;

/* Dimension i consists of atoms end[i-1] to end[i]-1, the outermost first. [N,C,H,W] and its transpose, a
 * flattened [N,C*H*W] and a channel shuffle's [N,2,C/2,H,W] are all of this form. */
typedef struct hvt__pt2_axes {
    int ndim, end[HVT__PT2_DIMS];
    int roll[2]; /* of H and W: element i of what the atoms say is that at i + roll, around the axis */
    hvt__pt2_atom atom[HVT__PT2_ATOMS + HVT__PT2_DIMS]; /* views have HVT__PT2_ATOMS at most */
} hvt__pt2_axes;

/* Those of a value as the tape's builders return it: [N,C,H,W], or [N,C]. */
hvt__pt2_axes hvt__pt2_axes_of(int ndim, const int64_t *size);
/* The same elements in dimensions of other sizes; false: dimensions would mix axes. */
bool hvt__pt2_view(hvt__pt2_axes *x, int ndim, const int64_t *size);
/* Dimension i is dimension from[i] of before. */
void hvt__pt2_permute(hvt__pt2_axes *x, const int *from);
/* Dimension i, which holds all of H or W, is moved on by so many elements, around it; false: it does not. */
bool hvt__pt2_roll(hvt__pt2_axes *x, int i, int by);
/* Does dimension i hold all of one axis, in its order, or nothing, its size being 1? */
bool hvt__pt2_is(const hvt__pt2_axes *x, int i, char axis);
/* Is some of this axis in dimension i? */
bool hvt__pt2_has(const hvt__pt2_axes *x, int i, char axis);
/* Each dimension is one whole axis, or nothing. */
bool hvt__pt2_plain(const hvt__pt2_axes *x);
/* Dimension i is all of this axis, so long. */
void hvt__pt2_set(hvt__pt2_axes *x, int i, char axis, int64_t extent);
/* A new dimension i of this atom; false: there are too many. */
bool hvt__pt2_insert(hvt__pt2_axes *x, int i, hvt__pt2_atom a);
/* Does it hold all pixels, line by line? Or nothing, there being one. */
bool hvt__pt2_is_pixels(const hvt__pt2_axes *x, int i);
/* Are the elements of an image in the order H, W, C, the last dimension being the channels? */
bool hvt__pt2_in_order_of_tape(const hvt__pt2_axes *x);
/* Dimension i becomes 1 long. */
void hvt__pt2_reduce(hvt__pt2_axes *x, int i);
bool hvt__pt2_same(const hvt__pt2_axes *x, const hvt__pt2_axes *y);

/* ---- pt2.c ---- */

/* The `count` values of a buffer, by its name in the state_dict. */
hvt_status hvt__pt2_read_buffer(const hvt_pt2 *p, const char *state, int64_t count, double *ret_values);

/* ---- constants.c ---- */

/* Does it make a constant of whatever it reads, as zeros_like does? */
bool hvt__pt2_makes_constants(const char *target);

/* ---- ops.c ---- */

/* last: it makes the output of the model; computed: it reads what depends on the images. */
bool hvt__pt2_knows(const char *target, bool last, bool computed);
bool hvt__pt2_makes_view(const char *target);

#endif /* HVT_PT2_IMPL_H */
