/* line.h - lines for the terminal, or for the program that takes all lines. */
#ifndef HVT_BASE_LINE_H
#define HVT_BASE_LINE_H

#include "base_impl.h"

/* hvt_log_to() of hvtrain itself: what is printed besides goes to the terminal all the same. */
void hvt__log_beside(hvt_log_fn *fn, void *ctx, hvt_log_level max_level);
/* True if hvt_log_to() has a function of another program, which gets what would be printed. */
bool hvt__log_is_taken(void);

#endif /* HVT_BASE_LINE_H */
