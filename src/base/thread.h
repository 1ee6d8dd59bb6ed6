/*
 * thread.h - the library's own threads. They take no signals, which are for the threads that were there
 * before.
 */
#ifndef HVT_BASE_THREAD_H
#define HVT_BASE_THREAD_H

#include "base_impl.h"

#include <pthread.h>

/* As pthread_create(). */
int hvt__thread_start(pthread_t *ret_thread, void *(*run)(void *arg), void *arg);

/* A thread that calls tick(arg) every so many seconds. Set the first four; it stays where it is. */
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
void hvt__ticker_close(hvt__ticker *t);      /* waits for the last tick; nothing to do if it was not opened */

#endif /* HVT_BASE_THREAD_H */
