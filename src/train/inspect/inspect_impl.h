/* inspect_impl.h - `hvtrain inspect`: models (model.c), checkpoints and files of tensors (file.c), as tables
 * whose columns align (table.c). */
#ifndef HVT_TRAIN_INSPECT_IMPL_H
#define HVT_TRAIN_INSPECT_IMPL_H

#include "train/run.h"

/* ---- table.c ---- */

/* Rows of texts, which are printed when all are there, because the longest text of a column sets its width.
 * All zero: empty. */
typedef struct hvt__grid {
    const char *form; /* a letter for each column: l flush left, r flush right */
    char **cell;      /* [rows * columns]; a row of NULLs is a rule */
    int rows, room;
    bool failed; /* no memory for a row, which hvt__grid_print() reports */
} hvt__grid;

/* A row: a text for each column, malloc'ed copies of which are kept. */
void hvt__grid_row(hvt__grid *t, ...);
void hvt__grid_rule(hvt__grid *t);
/* Print the table and free it. Errors: E_MEM. */
hvt_status hvt__grid_print(hvt__grid *t, FILE *f);

enum { HVT__DIGITS = 32 };
/* "25,557,032"; "-" for 0 if `dash`. */
const char *hvt__digits(int64_t n, bool dash, char ret_text[HVT__DIGITS]);
/* A text in which control characters, as of a terminal, are '?'. At most `most` letters, then "...". */
void hvt__print_text(FILE *f, const char *text, size_t most);

/* ---- model.c, file.c ---- */

/* t->model, of t->opts, t->set and t->dev, planned for images of this height, width and channels without
 * memory; 0: those of the model's file, or of the data set that it was made for. Opens t->file, sets
 * t->classes. Errors: those of the model. */
hvt_status hvt__measure_model(run *t, int hwc[3]);

hvt_status hvt__inspect_model(const hvt_options *opts, FILE *f);
hvt_status hvt__inspect_file(const char *path, FILE *f);
hvt_status hvt__inspect_folder(const char *dir, FILE *f);

#endif /* HVT_TRAIN_INSPECT_IMPL_H */
