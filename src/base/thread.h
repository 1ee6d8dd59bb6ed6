/* thread.h - the library's own threads. They block all signals, so that the program's threads handle them. */
#ifndef HVT_BASE_THREAD_H
#define HVT_BASE_THREAD_H

#include "base_impl.h"

#include <pthread.h>

/* Settings that the threads of a rank share. A thread that the library starts inherits its creator's. */
typedef struct hvt__kinship {
    hvt_log_level most; /* log lines above this level are dropped, unless HVT_LOG allows them */
    int trace;          /* index of their progress and events (trace.c) */
} hvt__kinship;

extern _Thread_local hvt__kinship hvt__kin;

/* As pthread_create(). */
int hvt__thread_start(pthread_t *ret_thread, void *(*run)(void *arg), void *arg);

/* A thread that calls tick(arg) periodically. Set the first four members; do not move it while open. */
typedef struct hvt__ticker {
    const char *what; /* "a watchdog", for messages */
    double seconds;
    void (*tick)(void *arg);
    void *arg;
    pthread_t thread;
    int stop; /* an eventfd that ends it */
    bool runs;
} hvt__ticker;

hvt_status hvt__ticker_open(hvt__ticker *t); /* E_MEM */
void hvt__ticker_close(hvt__ticker *t);      /* waits for the last tick; a no-op if it was not opened */

#endif /* HVT_BASE_THREAD_H */
