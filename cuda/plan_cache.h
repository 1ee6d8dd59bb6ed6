/*
 * plan_cache.h - what was measured about algorithms, kept for the next convolution of the same shape and, in
 * a file, for the next run.
 *
 * Included by cuda/ and tests. Nothing else.
 */
#ifndef HVT_PLAN_CACHE_H
#define HVT_PLAN_CACHE_H

#include "base_impl.h"

enum { PLAN_KEY_MOST = 256 };

typedef struct plan_choice {
    int index;      /* in the list of candidates */
    int64_t engine; /* the number of the one there: if it differs, the list has changed */
    float us;       /* what it took, microseconds */
} plan_choice;

typedef struct plan_cache plan_cache;

/* path NULL: in memory only. A file that is not there, cannot be read or is damaged is an empty one; what of
 * it can be read is used. */
hvt_status hvt__plan_cache_open(const char *path, plan_cache **ret_cache);
void hvt__plan_cache_close(plan_cache **cache);
bool hvt__plan_cache_find(const plan_cache *c, const char *key, plan_choice *ret_choice);
/* Also writes the file, together with what others have written there meanwhile. A file that cannot be written
 * is warned of once and then left alone. key: printable, no line break. */
hvt_status hvt__plan_cache_put(plan_cache *c, const char *key, plan_choice choice);

#endif /* HVT_PLAN_CACHE_H */
