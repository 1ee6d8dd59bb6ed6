/* tune_plot.h - a picture of what hvtrain tune measured. */
#ifndef HVT_TRAIN_TUNE_PLOT_H
#define HVT_TRAIN_TUNE_PLOT_H

#include "base_impl.h"

/* Seconds of a step with buckets of this size: median and quartiles. */
typedef struct hvt__tuned {
    size_t bytes; /* 0: one bucket for each layer; SIZE_MAX: one for all */
    double low, median, high;
    bool in_use, chosen;
} hvt__tuned;

/* An SVG of t[n], which are sorted by size, in milliseconds. Errors: E_IO naming path, E_MEM. */
hvt_status hvt__tune_plot(const char *path, const char *title, hvt__tuned *t, int n);

#endif /* HVT_TRAIN_TUNE_PLOT_H */
