/* line.h - where printed lines go: stdout and stderr, or the embedding program. */
#ifndef HVT_BASE_LINE_H
#define HVT_BASE_LINE_H

#include "base_impl.h"

/* As hvt_log_to(), but printed lines still go to stdout and stderr. For hvtrain. */
void hvt__log_beside(hvt_log_fn *fn, void *ctx, hvt_log_level max_level);
/* True if an embedding program has called hvt_log_to(), whose function gets printed lines, too. */
bool hvt__log_is_taken(void);

#endif /* HVT_BASE_LINE_H */
