/* writer.h - work of a low-priority thread while training continues. */
#ifndef HVT_TRAIN_CHECKPOINT_WRITER_H
#define HVT_TRAIN_CHECKPOINT_WRITER_H

#include "base_impl.h"

#include <pthread.h>

typedef struct hvt__writer {
    hvt_status (*work)(void *arg);
    void *arg;
    pthread_t thread;
    double began;
    _Atomic double seconds; /* of the last work; < 0: in progress */
    bool runs;              /* started, and not waited for yet */
    hvt_status status;
    hvt__error error; /* its message, if it failed */
} hvt__writer;

/* Runs work(arg) in a thread or, if none can be created, directly. Call hvt__writer_wait() before the
 * next. */
void hvt__writer_start(hvt__writer *w, hvt_status (*work)(void *arg), void *arg);
/* The status of the work, with its message as this thread's last error; HVT_OK if nothing was started. */
hvt_status hvt__writer_wait(hvt__writer *w);
/* Seconds of the last work, or of the current one so far; 0 if there was none. */
double hvt__writer_seconds(const hvt__writer *w);

#endif /* HVT_TRAIN_CHECKPOINT_WRITER_H */
