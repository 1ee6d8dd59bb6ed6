/*
 * plan_cache.h - measured algorithm choices, kept for the next convolution of the same shape and, in a file,
 * for the next run.
 *
 * Included by cuda/ and tests. Nothing else.
 */
#ifndef HVT_PLAN_CACHE_H
#define HVT_PLAN_CACHE_H

#include "base_impl.h"

enum { PLAN_KEY_MOST = 256 };

typedef struct plan_choice {
    int index;      /* in the list of candidates */
    int64_t engine; /* the engine's number there: if it differs, the list has changed */
    float us;       /* measured microseconds */
} plan_choice;

typedef struct plan_cache plan_cache;

/* path NULL: in memory only. A missing, unreadable or damaged file counts as empty; what can be read of it is
 * used. */
hvt_status hvt__plan_cache_open(const char *path, plan_cache **ret_cache);
void hvt__plan_cache_close(plan_cache **cache);
bool hvt__plan_cache_find(const plan_cache *c, const char *key, plan_choice *ret_choice);
/* Also writes the file, merged with what others have written meanwhile. If it cannot be written, that is
 * warned about once and not tried again. key: printable, no line break. */
hvt_status hvt__plan_cache_put(plan_cache *c, const char *key, plan_choice choice);

#endif /* HVT_PLAN_CACHE_H */
