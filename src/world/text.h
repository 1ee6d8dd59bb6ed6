/* text.h - a line about ranks, built in parts and truncated to its buffer. */
#ifndef HVT_WORLD_TEXT_H
#define HVT_WORLD_TEXT_H

#include "world_impl.h"

typedef struct hvt__text {
    char at[1600];
    size_t used;
} hvt__text;

void hvt__text_add(hvt__text *b, const char *fmt, ...) HVT_PRINTF(2, 3);
/* The ranks with in[r]: "rank 0 (hosta)", "ranks 1-3, 6 (hostb, hostc)". */
void hvt__text_add_ranks(hvt__text *b, const hvt_world *w, const bool *in);

#endif /* HVT_WORLD_TEXT_H */
