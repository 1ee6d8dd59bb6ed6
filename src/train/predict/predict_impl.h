/* predict_impl.h - the output of --evaluate for every image: predictions as CSV or masks, logits as a NumPy
 * array.
 */
#ifndef HVT_TRAIN_PREDICT_IMPL_H
#define HVT_TRAIN_PREDICT_IMPL_H

#include "hvt/train.h"
#include "train/process/process_impl.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>

/* ---- output.c: a file that replaces an earlier one when it is complete ---- */

typedef struct hvt__output {
    const char *flag, *path; /* borrowed */
    FILE *file;              /* NULL: closed */
    char temp[PATH_MAX]; /* path while writing; "": written directly, because the target is not a regular file
                          */
} hvt__output;

/* Opens an output. path "-": stdout. kind: that of an existing file. Errors, here and below: E_IO naming flag
 * and path. */
hvt_status hvt__output_open(hvt__output *o, hvt__own_file kind, const char *flag, const char *path);
hvt_status hvt__output_put(hvt__output *o, const void *data, size_t bytes);
hvt_status hvt__output_finish(hvt__output *o);  /* completes the file and syncs it to disk */
hvt_status hvt__output_replace(hvt__output *o); /* then: renames it to its path */
void hvt__output_drop(hvt__output *o);          /* discards the file, unless it was renamed */

/* ---- prediction.c: one image's ---- */

enum { HVT__BEST = 5 };

typedef struct hvt__prediction {
    uint32_t id;           /* number in the data set */
    int32_t label;         /* -1: none */
    int32_t of[HVT__BEST]; /* classes, the most probable first; -1 past the last class */
    bool there;            /* false: a damaged image, which was skipped */
    double part[HVT__BEST];
} hvt__prediction;

/* Finds the best of logits[classes]; of equal ones the lower class first, NaN before all numbers, as in
 * torch.topk. part: softmax in f64, NaN for all if a logit is NaN or +infinity. */
void hvt__predict(const float *logits, int classes, hvt__prediction *ret);

/* The names that a table uses. */
typedef struct hvt__table {
    const hvt_dataset *set;
    int classes;         /* the model's */
    const json_t *names; /* their names, an array of text; NULL: the set's names, if it has any */
} hvt__table;

/* CSV, quoted as in RFC 4180, lines end in a line feed. The columns: index, file, label, and class and
 * probability of each of the best; if classes have names, also label_name and each class's name. A label's
 * name is the set's, if it has one. */
hvt_status hvt__csv_begin(hvt__output *o, const hvt__table *t);
hvt_status hvt__csv_put(hvt__output *o, const hvt__table *t, const hvt__prediction *p);
/* The header of a .npy file, version 1.0: f32 [count,classes], or [count,classes,h,w] if there are several
 * pixels, in C order. */
hvt_status hvt__npy_begin(hvt__output *o, uint32_t count, int classes, int h, int w);

/* ---- predict.c: all of them ---- */

typedef struct hvt__predictions hvt__predictions;

typedef struct hvt__predictions_opts {
    const char *csv, *npy;  /* files, borrowed; "": none */
    const char *masks;      /* with outputs of pixels: a folder of PNGs instead of the CSV; "": none */
    const hvt_dataset *set; /* borrowed, like the rest */
    const json_t *names;    /* rank 0: see hvt__table */
    hvt_device *dev;        /* labels are read from it */
    hvt_world *world;
    int batch, classes, h, w; /* images of a rank's batch; logits of an image are [classes,h,w] */
} hvt__predictions_opts;

/* Collective, as all below but close; errors are agreed. */
hvt_status hvt__predictions_open(const hvt__predictions_opts *opts, hvt__predictions **ret);
/* Adds the next batch of an unshuffled loader with a shard for each rank, which may be empty; the model has
 * its logits, and the loader knows the damaged images. s: this rank's status so far; its error becomes that
 * of all. */
hvt_status hvt__predictions_add(hvt__predictions *p, hvt_model *m, hvt_loader *loader, const hvt_batch *b,
                                hvt_status s);
hvt_status hvt__predictions_end(hvt__predictions *p); /* complete files replace earlier ones */
void hvt__predictions_close(hvt__predictions **p);    /* NULL is fine */

#endif /* HVT_TRAIN_PREDICT_IMPL_H */
