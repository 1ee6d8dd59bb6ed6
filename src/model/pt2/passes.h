/* passes.h - prints how a .pt2 file becomes a tape. */
#ifndef HVT_PT2_PASSES_H
#define HVT_PT2_PASSES_H

#include "base_impl.h"

#include <stdio.h>

/* Prints the graph of a .pt2 file after each pass. Errors: those of hvt_pt2_open(), after the graphs of the
 * passes that succeeded. */
hvt_status hvt__pt2_print_passes(const char *path, FILE *f);

#endif /* HVT_PT2_PASSES_H */
