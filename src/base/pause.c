/*
 * Time in which this process was stopped (Ctrl-Z, `scontrol suspend`, a debugger, a suspended machine), so
 * that it is not counted as work.
 *
 * A process is not notified when it is stopped, and SIGCONT does not say since when. So a thread updates a
 * *heartbeat* every TICK. A heartbeat older than LATE shows that this thread did not run. The kernel counts
 * how long the thread waited for a CPU, which is load; the rest, less half a tick for the time before the
 * stop, was a pause. A caller that sees a late heartbeat waits a moment for the thread to report whether it
 * was load or a pause. Returned times never decrease: values before and after a pause differ by at least a
 * tenth of a tick.
 */
#include "thread.h"

#include <fcntl.h>
#include <math.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#define TICK 0.1 /* s */
#define LATE 1.0 /* s */
enum { MOMENT = 500 /* ms */ };

static struct {
    pthread_mutex_t lock;     /* held while a pause is noted, and by callers that a late heartbeat delayed */
    _Atomic double heartbeat; /* time of the last heartbeat; 0: no thread */
    _Atomic double paused;    /* s; written before the corresponding heartbeat */
    _Atomic double latest;    /* last value returned by hvt__now() less pauses */
    double load;              /* waited() of the thread at the last heartbeat */
} pauses = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Seconds that the calling thread has waited for a CPU since it started; 0 if the kernel does not report it.
 */
static double waited(void)
{
    char text[80];
    long long ran = 0, waits = 0;
    int fd = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    return sscanf(text, "%lld %lld", &ran, &waits) == 2 ? 1e-9 * (double)waits : 0;
}

static bool is_late(double now)
{
    double heartbeat = atomic_load(&pauses.heartbeat);

    return heartbeat > 0 && now - heartbeat > LATE;
}

double hvt__paused(double now)
{
    bool late = is_late(now);
    double paused;

    for (int ms = 0; ms < MOMENT && is_late(now); ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (late)
        pthread_mutex_lock(&pauses.lock);
    paused = atomic_load(&pauses.paused);
    if (now - paused > atomic_load_explicit(&pauses.latest, memory_order_relaxed))
        atomic_store_explicit(&pauses.latest, now - paused, memory_order_relaxed);
    if (late)
        pthread_mutex_unlock(&pauses.lock);
    return paused;
}

double hvt__running(void)
{
    double now = hvt__now();

    return now - hvt__paused(now);
}

static void beat(void *arg)
{
    double now, load, stopped, paused;

    do { /* read both at the same moment */
        load = waited();
        now = hvt__now();
    } while (waited() - load > TICK);
    stopped = now - atomic_load(&pauses.heartbeat) - fmax(load - pauses.load, 0);
    if (stopped > LATE) {
        pthread_mutex_lock(&pauses.lock);
        paused = atomic_load(&pauses.paused) + stopped - TICK / 2;
        atomic_store(&pauses.paused, fmin(paused, now - atomic_load(&pauses.latest) - TICK / 10));
        pthread_mutex_unlock(&pauses.lock);
    }
    pauses.load = load;
    atomic_store(&pauses.heartbeat, now);
}

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* held while the thread starts or stops */
static int users;
static hvt__ticker heart = {.what = "pauses", .seconds = TICK, .tick = beat};

bool hvt__pause_open(void)
{
    hvt_status s = HVT_OK;

    pthread_mutex_lock(&opening);
    if (!users) {
        pauses.load = 0;
        atomic_store(&pauses.heartbeat, hvt__now());
        s = hvt__ticker_open(&heart);
    }
    if (s == HVT_OK)
        users++;
    else
        atomic_store(&pauses.heartbeat, 0);
    pthread_mutex_unlock(&opening);
    return s == HVT_OK;
}

void hvt__pause_close(void)
{
    pthread_mutex_lock(&opening);
    if (--users == 0) {
        hvt__ticker_close(&heart);
        atomic_store(&pauses.heartbeat, 0);
    }
    pthread_mutex_unlock(&opening);
}
