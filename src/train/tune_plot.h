/* tune_plot.h - pictures of what hvtrain tune measured. */
#ifndef HVT_TRAIN_TUNE_PLOT_H
#define HVT_TRAIN_TUNE_PLOT_H

#include "train/page/page_impl.h"
#include "base_impl.h"

/* Seconds of a step with buckets of this size: median and quartiles. */
typedef struct hvt__tuned {
    size_t bytes; /* 0: one bucket for each layer; SIZE_MAX: one for all */
    double low, median, high;
    bool in_use, chosen;
} hvt__tuned;

/* Writes a chart as an SVG file, which replaces only such a picture. Errors: E_IO naming path, E_MEM. */
hvt_status hvt__tune_draw(const char *path, const hvt__chart *c);
/* tune_lr.c: hvt_tune() with opts->tune_lr. Collective. */
hvt_status hvt__tune_lr(const hvt_options *opts, hvt_world *world);
/* Writes an SVG of t[n] in milliseconds, after sorting t by size. Errors: E_IO naming path, E_MEM. */
hvt_status hvt__tune_plot(const char *path, const char *title, hvt__tuned *t, int n);

#endif /* HVT_TRAIN_TUNE_PLOT_H */
