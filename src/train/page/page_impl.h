/* page_impl.h - pictures of runs: an SVG writer, the history of a run from its log, and the pages of both. */
#ifndef HVT_TRAIN_PAGE_IMPL_H
#define HVT_TRAIN_PAGE_IMPL_H

#include "train/predict/predict_impl.h"

/* ---- svg.c: text, axes and lines ---- */

/* Writes text for HTML and SVG, in an element or in quotes. Letters that are not UTF-8, or not allowed in
 * XML, become U+FFFD. */
void hvt__xml(FILE *f, const char *text);
/* Writes only the first `letters` letters, and an ellipsis if more follow. */
void hvt__xml_cut(FILE *f, const char *text, int letters);
/* Writes the rules of a style sheet: classes s0 to s9 are the colours of runs, p0 to p6 those of HVT__PARTS,
 * on light and on dark pages. */
enum { HVT__COLOURS = 10 };
void hvt__svg_style(FILE *f);
/* Begins an SVG document; end it with "</svg>\n". */
void hvt__svg_begin(FILE *f, double width, double height);

/* A value as axes show it: 0.25, 1500, 20k, 3M. */
void hvt__tick_text(double v, char ret_text[32]);
/* Finds about `about` round values from low to high, on a logarithmic scale powers of ten. Returns their
 * number. */
enum { HVT__TICKS = 24 };
int hvt__ticks(double low, double high, bool log, int about, double ret_at[HVT__TICKS]);

/* A line in one colour; a y that is not finite is a gap. In x and y, points are `stride` numbers apart. */
typedef struct hvt__line {
    const double *x, *y;
    size_t n, stride;
    int colour;               /* number of the run */
    const double *low, *high; /* ends of bars at the points; NULL: none */
    bool thin, dots;          /* thin: pale, behind the others */
} hvt__line;

/* A word above a point. */
typedef struct hvt__mark {
    double x, y;
    const char *text;
} hvt__mark;

typedef struct hvt__chart {
    const char *title, *x_name;
    const hvt__line *line;
    int lines;
    const hvt__mark *mark;
    int marks;
    const char *const *x_label; /* names of x = 0, 1, ...; NULL: x is a number */
    int x_labels;
    bool from_zero;   /* y begins at 0 */
    bool ends_at_100; /* y is a percentage */
    bool may_log;     /* a logarithmic scale where values differ more than 30-fold */
    double x_least;   /* x begins at this or below */
    double x_unit;    /* x is shown divided by this; 0: as it is */
} hvt__chart;

/* Draws a chart of this size with its upper left corner at the origin. */
void hvt__svg_chart(FILE *f, const hvt__chart *c, double width, double height);

/* Draws a short line in the colour of a run; the eleventh run has the first one's colour, dashed. */
void hvt__page_chip(FILE *f, int run);

/* ---- history.c: the history of a run, in bounded memory ---- */

/* The columns of a series. If there are many records, a row is a mean of several. */
enum {
    HVT__COL_STEP,
    HVT__COL_EPOCH,
    HVT__COL_SECONDS,
    HVT__COL_LOSS,
    HVT__COL_SCORE,
    HVT__COL_LR,
    HVT__COL_SPEED,
    HVT__COL_EXPOSED,
    HVT__COLUMNS
};
typedef struct hvt__series {
    double (*row)[HVT__COLUMNS]; /* NaN: not known */
    size_t n, per, in_last;      /* rows; records of a row, and of the last one so far */
} hvt__series;

/* Where a rank's time went, in seconds. */
enum {
    HVT__PART_COMPUTE,
    HVT__PART_EXPOSED_COMM,
    HVT__PART_DATA_WAIT,
    HVT__PART_EVALUATE,
    HVT__PART_SAVING,
    HVT__PART_STARTUP,
    HVT__PART_OTHER,
    HVT__PARTS
};

typedef struct hvt__history {
    char path[PATH_MAX], *name; /* name: distinguishes it from others */
    json_t *start, *end, *eval; /* the last ones; NULL: none. eval: with counts per class, if any has them */
    json_t *predicted;          /* the start record of the last job that wrote predictions; NULL: none */
    hvt__series step, epoch, test;
    double best, seconds, first_time, last_time, steps, epochs; /* best score; seconds of training jobs */
    /* The score is a mean absolute error (targets), a mean IoU in percent (masks), or top-1 in percent.
     * evaluates: the present job only evaluates */
    bool targets, masks, evaluates;
    int ranks, jobs,
        runs; /* ranks of the last training job; runs: those in this file, of which this is the last */
    double (*spent)[HVT__PARTS], (*job)[HVT__PARTS]; /* [ranks]; job: of the present one */
    int64_t records, other;                          /* lines that are records, and that are not */
} hvt__history;

/* Adds a record. Errors: E_MEM. */
hvt_status hvt__history_add(hvt__history *h, json_t *record);
/* Adds the records of a file. Errors: E_IO, E_FORMAT (no record). */
hvt_status hvt__history_read(hvt__history *h, const char *path);
void hvt__history_free(hvt__history *h);
/* Adds the present job's times to h->spent, once all records are there. */
void hvt__history_close(hvt__history *h);

static inline const char *hvt__text_of(const json_t *record, const char *field)
{
    const char *text = json_string_value(json_object_get(record, field));

    return text ? text : "";
}

/* A number of a record; NaN if it has none. */
double hvt__number_of(const json_t *record, const char *field);

/* ---- table.c: tables of --predict ---- */

enum { HVT__MISTAKES = 24 };
typedef struct hvt__mistake {
    uint32_t index;
    int label, class;
    double part;
    char file[240];
} hvt__mistake;

typedef struct hvt__confusion {
    int classes;
    int64_t images, hits; /* with labels */
    uint64_t *pair;       /* [pairs] label << 32 | class, ascending */
    int64_t *count;       /* [pairs] */
    size_t pairs;
    int64_t *in_class;                   /* [classes] images with this label */
    char (*name)[64];                    /* [classes] "": none */
    hvt__mistake mistake[HVT__MISTAKES]; /* the most confident first */
    int mistakes;
} hvt__confusion;

/* Reads a table. Errors: E_IO, E_FORMAT naming file and line, E_MEM. */
hvt_status hvt__confusion_read(const char *path, hvt__confusion *ret);
void hvt__confusion_free(hvt__confusion *c);

/* ---- the parts of a page ---- */

/* A run to show, with its predictions and their images. */
typedef struct hvt__page_run {
    hvt__history *history;
    const char *predictions; /* a table; "": none */
    const hvt_dataset *set;  /* its images, for thumbnails; NULL: none */
    const char *set_missing; /* why there is none */
    bool exif;               /* its pictures are turned by their EXIF orientation */
} hvt__page_run;

hvt_status hvt__page_classes(FILE *f, const hvt__page_run *run, int runs);
hvt_status hvt__page_predictions(FILE *f, const hvt__page_run *run);
/* Writes an image of the set as <img>, with `exif` turned as its EXIF says. Errors: those of reading it. */
hvt_status hvt__page_thumbnail(FILE *f, const hvt_dataset *set, uint32_t index, bool exif);
/* Draws bars of where each rank's time went. Their height is 0 if no times are known. */
double hvt__svg_time_height(const hvt__page_run *run, int runs);
hvt_status hvt__svg_time(FILE *f, const hvt__page_run *run, int runs, double width);
void hvt__page_options(FILE *f, const hvt__page_run *run, int runs);

/* Names the runs: by their paths without the beginning and the end that all share. */
hvt_status hvt__name_runs(const hvt__page_run *run, int runs);
/* The kind of file that a name asks for: HVT__PICTURE if it ends in .svg, else HVT__PAGE. */
hvt__own_file hvt__page_kind(const char *path);
/* Refuses names that end neither in .html nor in .svg, except those of pipes, devices and stdout. Errors:
 * E_ARG. */
hvt_status hvt__page_check_name(const char *flag, const char *path);
/* Writes the page to a file of this name, or to stdout (-). If the name ends in .svg, writes the curves as a
 * picture instead. flag: for messages. Errors: E_IO, E_MEM, E_FORMAT of predictions. */
hvt_status hvt__page_write(const char *flag, const char *path, const hvt__page_run *run, int runs);

#endif /* HVT_TRAIN_PAGE_IMPL_H */
