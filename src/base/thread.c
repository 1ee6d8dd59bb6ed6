/* Threads that block all signals, and tickers, which an event ends. */
#include "thread.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

_Thread_local hvt__kinship hvt__kin = {.most = HVT_LOG_DEBUG};

typedef struct task {
    void *(*run)(void *arg);
    void *arg;
    hvt__kinship kin;
} task;

static void *begin(void *arg)
{
    task t = *(task *)arg;

    free(arg);
    hvt__kin = t.kin;
    return t.run(t.arg);
}

int hvt__thread_start(pthread_t *ret_thread, void *(*run)(void *arg), void *arg)
{
    task *t = malloc(sizeof *t);
    sigset_t all, before;
    int error;

    if (!t)
        return ENOMEM;
    *t = (task){run, arg, hvt__kin};
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    error = pthread_create(ret_thread, NULL, begin, t);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        free(t);
    return error;
}

static void *tick(void *arg)
{
    const hvt__ticker *t = arg;
    struct pollfd stop = {.fd = t->stop, .events = POLLIN};

    while (poll(&stop, 1, (int)(1000 * t->seconds)) <= 0)
        t->tick(t->arg);
    return NULL;
}

hvt_status hvt__ticker_open(hvt__ticker *t)
{
    int error;

    t->stop = eventfd(0, EFD_CLOEXEC);
    error = t->stop < 0 ? errno : hvt__thread_start(&t->thread, tick, t);
    t->runs = !error;
    if (error && t->stop >= 0)
        close(t->stop);
    HVT_CHECK(!error, E_MEM, "no thread for %s: %s (ulimit -v and -u limit memory and processes)", t->what,
              strerror(error));
    return HVT_OK;
}

void hvt__ticker_close(hvt__ticker *t)
{
    if (!t->runs)
        return;
    eventfd_write(t->stop, 1);
    pthread_join(t->thread, NULL);
    close(t->stop);
    t->runs = false;
}
