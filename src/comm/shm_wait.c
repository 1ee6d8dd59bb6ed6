/*
 * The shm comm's counters: by which ranks learn how far the others are, and wait for one another.
 *
 * A rank that waits spins, then yields, then sleeps; ten times a second it asks the kernel whether its peers
 * still live. Who sleeps sees the news late, and then comes back to a core that has slowed down or that the
 * host of a virtual machine has lent out; so it does that soon only where others want the core.
 */
#define _GNU_SOURCE
#include "base/trace.h"
#include "shm.h"
#include "world/watch.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

enum {
    SPINS = 2000,            /* looks at a counter before yielding */
    YIELD_US = 1000 * 1000,  /* of yielding before sleeping: no step waits for longer */
    YIELD_CROWDED_US = 1000, /* with more threads than cores */
    SLEEP_US = 50,           /* at a time */
    LIFE_CHECK_MS = 100,     /* between looks at the peers' processes */
};

static bool reached(const _Atomic uint64_t *theirs, uint64_t value)
{
    return atomic_load_explicit(theirs, memory_order_acquire) >= value;
}

void hvt__shm_leave(hvt_comm *c, hvt__leaving why)
{
    comm_shm *st = c->state;
    _Atomic uint64_t *left = &hvt__shm_box(st, c->world->rank)->left.v;

    if (!reached(left, 1))
        hvt__store_release(left, (uint64_t)why);
}

hvt__leaving hvt__shm_left(hvt_comm *c, int rank)
{
    const comm_shm *st = c->state;
    struct pollfd life = {st->peer[rank].life, POLLIN, 0};
    uint64_t left = atomic_load_explicit(&hvt__shm_box(st, rank)->left.v, memory_order_acquire);

    if (!left && poll(&life, 1, 0) > 0) /* it looks past -1, and comes again where it was interrupted */
        return HVT__ENDED;
    return (hvt__leaving)left;
}

/* Will the others still come? */
static hvt_status find_lost(hvt_comm *c, const _Atomic uint64_t *theirs, int peer, uint64_t value,
                            const char *what)
{
    bool lost = hvt__watch_gave_up();

    for (int r = 0; r < c->world->size; r++)
        lost = lost || (r != c->world->rank && hvt__shm_left(c, r) != HVT__HERE);
    if (!lost || reached(theirs, value)) /* it went, but not before it was done */
        return HVT_OK;
    return c->party.lost(&c->party, peer, what);
}

/* The long way, off the hot path: yield, sleep, look after the peers. */
static hvt_status await_long(hvt_comm *c, const _Atomic uint64_t *theirs, int peer, uint64_t value,
                             const char *what)
{
    const comm_shm *st = c->state;
    double start = hvt__now(), now = start, checked = start;
    double yields = (st->yield ? YIELD_CROWDED_US : YIELD_US) * 1e-6;
    hvt_status s = HVT_OK;
    int wait = -1;

    while (s == HVT_OK && !reached(theirs, value)) {
        if (now - start < yields)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, SLEEP_US * 1000}, NULL);
        now = hvt__now();
        if (now - checked >= LIFE_CHECK_MS * 1e-3) {
            s = find_lost(c, theirs, peer, value, what);
            checked = now;
            if (wait < 0)
                wait = hvt__wait_begin(c->world, peer, what);
        }
    }
    hvt__wait_end(wait);
    return s;
}

hvt_status hvt__shm_await(hvt_comm *c, size_t which, uint64_t value, const char *what)
{
    comm_shm *st = c->state;

    for (int i = 1; i < c->world->size; i++) {
        int peer = (c->world->rank + i) % c->world->size;
        const _Atomic uint64_t *theirs =
            (const _Atomic uint64_t *)(const void *)((const char *)hvt__shm_box(st, peer) + which);

        for (int n = st->yield ? 1 : SPINS; n && !reached(theirs, value); n--)
            hvt__relax();
        if (reached(theirs, value))
            continue;
        hvt__trace_begin(HVT__WAIT, hvt__job_rank(c->world, peer));
        HVT_TRY(hvt__traced(await_long(c, theirs, peer, value, what)));
    }
    return HVT_OK;
}
