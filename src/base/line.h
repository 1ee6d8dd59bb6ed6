/* line.h - lines for stdout and stderr, or for the program that embeds the library. */
#ifndef HVT_BASE_LINE_H
#define HVT_BASE_LINE_H

#include "base_impl.h"

/* As hvt_log_to(), for hvtrain itself: printed lines still go to stdout and stderr. */
void hvt__log_beside(hvt_log_fn *fn, void *ctx, hvt_log_level max_level);
/* True if a program that embeds the library has called hvt_log_to(): its function gets printed lines, too. */
bool hvt__log_is_taken(void);

#endif /* HVT_BASE_LINE_H */
