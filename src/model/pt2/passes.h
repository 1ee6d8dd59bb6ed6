/* passes.h - how a .pt2 file becomes a tape, for those who read it. */
#ifndef HVT_PT2_PASSES_H
#define HVT_PT2_PASSES_H

#include "base_impl.h"

#include <stdio.h>

/* Prints the graph of a .pt2 file after each pass that makes a tape of it. Errors: those of hvt_pt2_open();
 * what the passes before have made has been printed then. */
hvt_status hvt__pt2_print_passes(const char *path, FILE *f);

#endif /* HVT_PT2_PASSES_H */
