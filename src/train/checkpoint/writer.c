/*
 * A thread for one piece of work: it takes no signals, has low priority for cores and disk, and passes its
 * error to the waiting thread.
 *
 * Its nice value is higher by 10, not by the maximum, with which a thread gets a hundredth of a core that
 * ranks share: at the end of a run all ranks wait for it, and some may be spinning.
 */
#define _GNU_SOURCE /* SYS_gettid */

#include "writer.h"
#include "base/thread.h"

#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { NICE = 10, IOPRIO_WHO_PROCESS = 1, IOPRIO_BEST_EFFORT = 2 << 13, IOPRIO_LEAST = 7 };

/* Lowers the priority of this thread alone, as far as permitted. */
static void step_back(void)
{
    id_t thread = (id_t)syscall(SYS_gettid);

    (void)setpriority(PRIO_PROCESS, thread, getpriority(PRIO_PROCESS, thread) + NICE);
    (void)syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_BEST_EFFORT | IOPRIO_LEAST);
}

static void finish(hvt__writer *w)
{
    w->status = w->work(w->arg);
    if (w->status)
        hvt__error_take(&w->error);
    atomic_store(&w->seconds, hvt__now() - w->began);
}

static void *run(void *arg)
{
    step_back();
    finish(arg);
    return NULL;
}

void hvt__writer_start(hvt__writer *w, hvt_status (*work)(void *arg), void *arg)
{
    w->work = work;
    w->arg = arg;
    w->began = hvt__now();
    atomic_store(&w->seconds, -1);
    w->runs = hvt__thread_start(&w->thread, run, w) == 0;
    if (!w->runs)
        finish(w);
}

hvt_status hvt__writer_wait(hvt__writer *w)
{
    hvt_status s;

    if (w->runs)
        pthread_join(w->thread, NULL);
    w->runs = false;
    s = w->status;
    w->status = HVT_OK;
    if (s)
        hvt__error_put(&w->error);
    return s;
}

double hvt__writer_seconds(const hvt__writer *w)
{
    double took = atomic_load(&w->seconds);

    return took < 0 ? hvt__now() - w->began : took;
}
