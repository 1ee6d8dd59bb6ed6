/*
 * The shm comm's counters, by which ranks wait for one another.
 *
 * A waiting rank spins, then yields, then sleeps; ten times a second it asks the kernel whether its peers are
 * alive. A sleeping rank reacts late, and its core may have slowed down or, in a virtual machine, been given
 * away meanwhile. So it sleeps early only if other threads need the core.
 */
#define _GNU_SOURCE
#include "base/trace.h"
#include "shm.h"
#include "world/watch.h"

#include <poll.h>
#include <sched.h>
#include <time.h>

enum {
    SPINS = 2000,            /* reads of a counter before yielding */
    YIELD_US = 1000 * 1000,  /* time of yielding before sleeping: longer than waits within a step */
    YIELD_CROWDED_US = 1000, /* the same with more threads than cores */
    SLEEP_US = 50,           /* per sleep */
    LIFE_CHECK_MS = 100,     /* between checks of the peers' processes */
};

static bool reached(const _Atomic uint64_t *theirs, uint64_t value)
{
    return atomic_load_explicit(theirs, memory_order_acquire) >= value;
}

static int word_of(const comm_shm *st, int rank)
{
    return (int)(int64_t)atomic_load_explicit(&hvt__shm_box(st, rank)->word.v, memory_order_acquire);
}

void hvt__shm_tell(hvt_comm *c, int word)
{
    comm_shm *st = c->state;

    if (!hvt__is_gone(word_of(st, c->world->rank)))
        hvt__store_release(&hvt__shm_box(st, c->world->rank)->word.v, (uint64_t)(int64_t)word);
}

int hvt__shm_word(hvt_comm *c, int rank)
{
    const comm_shm *st = c->state;
    struct pollfd life = {st->peer[rank].life, POLLIN, 0};
    int word = word_of(st, rank);

    if (!hvt__is_gone(word) &&
        poll(&life, 1, 0) > 0) /* poll() ignores -1; an interrupted call is repeated by the next check */
        return HVT__ENDED;
    return word;
}

/* E_COMM if one of the others will not reach `value`. */
static hvt_status find_lost(hvt_comm *c, const _Atomic uint64_t *theirs, int peer, uint64_t value,
                            const char *what)
{
    bool lost = hvt__watch_gave_up(c->world);

    for (int r = 0; r < c->world->size; r++)
        lost = lost || (r != c->world->rank && c->group.has_left(&c->group, r) != HVT__HERE);
    if (!lost || reached(theirs, value)) /* it reached the value before it left */
        return HVT_OK;
    return c->group.lost(&c->group, peer, what);
}

/* The slow path of a wait: yield, sleep, check the peers. */
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
