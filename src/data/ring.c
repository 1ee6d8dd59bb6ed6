/*
 * The ring of a loader: hands out items of work to threads, in order.
 *
 * One lock guards everything; it is taken twice per item, and an item takes a tenth of a millisecond or more.
 * Invariant: items are handed out in the order of the posts, and within a slot by number, so that the batch
 * that is needed next is finished first. `cursor` is the post whose items are handed out; it is at most
 * `posted`. A failed item does not stop the others of its slot: the reported error is that of the lowest
 * number, whichever failed first.
 *
 * Workers run ten nice levels below the other threads: they get little time while all processors compute, and
 * all of it while the training thread waits for them.
 */
#define _GNU_SOURCE
#include "ring.h"
#include "base/thread.h"

#include <errno.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

enum { NICER = 10, ANNOUNCED = 2 /* items announced per item done */ };

typedef struct slot {
    int items, begun, done, announced;
    int failed; /* lowest item that failed; -1: none */
    hvt_status status;
    hvt__error error;
} slot;

typedef struct worker {
    hvt__ring *ring;
    int number;
    pthread_t thread;
} worker;

struct hvt__ring {
    hvt__ring_opts opts;
    cpu_set_t cpus;

    pthread_mutex_t lock;
    pthread_cond_t work, done;
    uint64_t posted, cursor, horizon; /* horizon: the post whose items are announced */
    int busy;                         /* items in progress */
    bool stop;

    int started; /* workers that were started */
    worker *worker;
    slot slot[];
};

static slot *slot_at(hvt__ring *r, uint64_t post)
{
    return &r->slot[post % (uint64_t)r->opts.slots];
}

/* Returns the next item, of slot *ret_slot; -1 if there is none. Call with the lock held. */
static int next_item(hvt__ring *r, int *ret_slot)
{
    while (r->cursor < r->posted) {
        slot *s = slot_at(r, r->cursor);

        if (s->begun < s->items) {
            *ret_slot = (int)(s - r->slot);
            return s->begun++;
        }
        r->cursor++;
    }
    return -1;
}

/* Announces up to `most` items, further ahead with each call, until all posted items are announced. Call with
 * the lock held. */
static int announce(hvt__ring *r, int most, uint32_t ret_images[])
{
    int n = 0;

    if (r->horizon < r->cursor)
        r->horizon = r->cursor;
    while (r->opts.ahead && n < most && r->horizon < r->posted) {
        slot *s = slot_at(r, r->horizon);

        if (s->announced < s->begun)
            s->announced = s->begun;
        if (s->announced < s->items)
            ret_images[n++] = r->opts.image_of(r->opts.ctx, (int)(s - r->slot), s->announced++);
        else
            r->horizon++;
    }
    return n;
}

/* Call with the lock held. */
static void note_failure(slot *s, int item, hvt_status status)
{
    if (s->failed >= 0 && s->failed < item)
        return;
    s->failed = item;
    s->status = status;
    hvt__error_take(&s->error);
}

/* Call with the lock held. */
static void finish_item(slot *s, int item, hvt_status status)
{
    s->done++;
    if (status != HVT_OK)
        note_failure(s, item, status);
}

/* Call without the lock. */
static hvt_status do_item(const worker *w, int at, int item, const uint32_t images[], int n)
{
    const hvt__ring_opts *o = &w->ring->opts;

    for (int i = 0; i < n; i++)
        o->ahead(o->ctx, w->number, images[i]);
    return o->work(o->ctx, w->number, at, item);
}

static void *run(void *arg)
{
    const worker *w = arg;
    hvt__ring *r = w->ring;
    uint32_t images[ANNOUNCED];
    int at = 0, item, n;

    if (r->opts.ncpus)
        sched_setaffinity(0, sizeof r->cpus, &r->cpus); /* otherwise it inherits its creator's processors */
    setpriority(PRIO_PROCESS, (id_t)gettid(), getpriority(PRIO_PROCESS, (id_t)gettid()) + NICER);
    pthread_mutex_lock(&r->lock);
    while (!r->stop) {
        hvt_status status;

        item = next_item(r, &at);
        if (item < 0) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        n = announce(r, ANNOUNCED, images);
        r->busy++;
        pthread_mutex_unlock(&r->lock);
        status = do_item(w, at, item, images, n);
        pthread_mutex_lock(&r->lock);
        r->busy--;
        finish_item(&r->slot[at], item, status);
        if (r->slot[at].done == r->slot[at].items || r->busy == 0)
            pthread_cond_broadcast(&r->done);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

static hvt_status start(hvt__ring *r)
{
    CPU_ZERO(&r->cpus);
    for (int i = 0; i < r->opts.ncpus; i++)
        CPU_SET((size_t)r->opts.cpus[i], &r->cpus);
    for (int i = 0; i < r->opts.workers; i++) {
        int error;

        r->worker[i] = (worker){.ring = r, .number = i};
        error = hvt__thread_start(&r->worker[i].thread, run, &r->worker[i]);
        HVT_CHECK(!error, E_MEM, "cannot start thread %d of %d to fetch images: %s", i + 1, r->opts.workers,
                  strerror(error));
        r->started++;
    }
    return HVT_OK;
}

hvt_status hvt__ring_open(const hvt__ring_opts *opts, hvt__ring **ret_ring)
{
    hvt__ring *r = calloc(1, sizeof *r + (size_t)opts->slots * sizeof *r->slot);
    hvt_status s;

    HVT_CHECK(r, E_MEM, "no memory for a ring of %d batches", opts->slots);
    r->opts = *opts;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    r->worker = calloc((size_t)opts->workers + 1, sizeof *r->worker);
    HVT_CHECK_OR(fail, r->worker, E_MEM, "no memory for %d workers", opts->workers);
    HVT_TRY_OR(fail, start(r));
    *ret_ring = r;
    return HVT_OK;
fail:
    hvt__ring_close(&r);
    return s;
}

void hvt__ring_close(hvt__ring **ring)
{
    hvt__ring *r = *ring;

    if (!r)
        return;
    pthread_mutex_lock(&r->lock);
    r->stop = true;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->started; i++)
        pthread_join(r->worker[i].thread, NULL);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    free(r->worker);
    free(r);
    *ring = NULL;
}

void hvt__ring_post(hvt__ring *r, int at, int items)
{
    slot *s = &r->slot[at];

    pthread_mutex_lock(&r->lock);
    s->items = items;
    s->begun = s->done = s->announced = 0;
    s->failed = -1;
    s->status = HVT_OK;
    r->posted++;
    pthread_cond_broadcast(&r->work);
    pthread_mutex_unlock(&r->lock);
}

typedef struct of_slot {
    hvt__ring *ring;
    int at;
} of_slot;

static void do_one(void *ctx, int item, int thread)
{
    const of_slot *of = ctx;
    hvt__ring *r = of->ring;
    hvt_status status = r->opts.work(r->opts.ctx, thread, of->at, item);

    if (status == HVT_OK)
        return;
    pthread_mutex_lock(&r->lock);
    note_failure(&r->slot[of->at], item, status);
    pthread_mutex_unlock(&r->lock);
}

/* Does the items of a slot without workers. Taking a failed slot again does its items again. */
static void do_items(hvt__ring *r, int at)
{
    slot *s = &r->slot[at];
    of_slot of = {r, at};

    if (s->done == s->items)
        return;
    s->failed = -1;
    s->status = HVT_OK;
    if (r->opts.each)
        r->opts.each(r->opts.ctx, s->items, do_one, &of);
    for (int i = 0; !r->opts.each && i < s->items && s->failed < 0; i++)
        do_one(&of, i, 0);
    s->done = s->failed < 0 ? s->items : 0;
}

hvt_status hvt__ring_take(hvt__ring *r, int at)
{
    slot *s = &r->slot[at];

    if (!r->opts.workers)
        do_items(r, at);
    pthread_mutex_lock(&r->lock);
    while (r->opts.workers && s->done < s->items)
        pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
    if (s->status != HVT_OK)
        hvt__error_put(&s->error);
    return s->status;
}

void hvt__ring_drop(hvt__ring *r)
{
    pthread_mutex_lock(&r->lock);
    r->cursor = r->posted;
    while (r->busy)
        pthread_cond_wait(&r->done, &r->lock);
    r->posted = r->cursor = r->horizon = 0;
    pthread_mutex_unlock(&r->lock);
}
