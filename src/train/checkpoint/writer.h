/* writer.h - work that a thread of low priority does while training goes on. */
#ifndef HVT_TRAIN_CHECKPOINT_WRITER_H
#define HVT_TRAIN_CHECKPOINT_WRITER_H

#include "base_impl.h"

#include <pthread.h>

typedef struct hvt__writer {
    hvt_status (*work)(void *arg);
    void *arg;
    pthread_t thread;
    double began;
    _Atomic double seconds; /* that the last work took; < 0: it is under way */
    bool runs;              /* it was started, and nobody has waited for it yet */
    hvt_status status;
    hvt__error error; /* its message, unless it is HVT_OK */
} hvt__writer;

/* Do work(arg) in a thread; where none can be had, at once. hvt__writer_wait() comes before the next. */
void hvt__writer_start(hvt__writer *w, hvt_status (*work)(void *arg), void *arg);
/* What came of it, with its message as this thread's last error; HVT_OK where nothing was started. */
hvt_status hvt__writer_wait(hvt__writer *w);
/* What the last work took, or has taken so far; 0: there was none. */
double hvt__writer_seconds(const hvt__writer *w);

#endif /* HVT_TRAIN_CHECKPOINT_WRITER_H */
