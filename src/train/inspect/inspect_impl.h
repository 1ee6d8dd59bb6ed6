/* inspect_impl.h - `hvtrain inspect`: models (model.c), checkpoints and files of tensors (file.c), as tables
 * whose columns align (table.c). */
#ifndef HVT_TRAIN_INSPECT_IMPL_H
#define HVT_TRAIN_INSPECT_IMPL_H

#include "train/run.h"

/* ---- table.c ---- */

/* A table of texts. Rows are printed together, because the longest text of a column sets its width. All zero
 * is an empty table. */
typedef struct hvt__grid {
    const char *form; /* a letter for each column: l flush left, r flush right */
    char **cell;      /* [rows * columns]; a row of NULLs is a rule */
    int rows, room;
    bool failed; /* no memory for a row, which hvt__grid_print() reports */
} hvt__grid;

/* Adds a row: a text for each column, which is copied. */
void hvt__grid_row(hvt__grid *t, ...);
void hvt__grid_rule(hvt__grid *t);
/* Prints the table and frees it. Errors: E_MEM. */
hvt_status hvt__grid_print(hvt__grid *t, FILE *f);

enum { HVT__DIGITS = 32 };
/* "25,557,032"; "-" for 0 if `dash`. */
const char *hvt__digits(int64_t n, bool dash, char ret_text[HVT__DIGITS]);
/* Prints a text with '?' for control characters, such as a terminal's. At most `most` letters, then "...". */
void hvt__print_text(FILE *f, const char *text, size_t most);

/* ---- model.c, file.c, images.c ---- */

/* Plans t->model, from t->opts, t->set and t->dev, for images of this height, width and channels, without
 * memory; 0: the sizes of the model's file, or of the data set for which it was made. Opens t->file, sets
 * t->classes. Errors: those of the model. */
hvt_status hvt__measure_model(run *t, int hwc[3]);

hvt_status hvt__inspect_model(const hvt_options *opts, FILE *f);
/* Writes training images to the folder opts->output: images.c. */
hvt_status hvt__inspect_images(const hvt_options *opts, FILE *f);
hvt_status hvt__inspect_file(const char *path, FILE *f);
hvt_status hvt__inspect_folder(const char *dir, FILE *f);

#endif /* HVT_TRAIN_INSPECT_IMPL_H */
