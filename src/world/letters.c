/*
 * Messages between ranks that are threads.
 *
 * A message within the process is two *letters*, the sender's and the receiver's, which meet in the order of
 * posting: the first one waits in the receiver's place, and the thread that posts the second one copies. A
 * message to another process travels on one channel of the world of processes; its tag encodes the two
 * threads and their channel.
 */
#include "base_impl.h"
#include "threads.h"

#include <sched.h>

/* Shared by the ranks of a process. */
typedef struct channel {
    int number;
    atomic_int users;
    atomic_int word[]; /* [size] last words of this process's ranks */
} channel;

/* A rank's handle of a channel. */
typedef struct handle {
    channel *shared;
    int why;                   /* the word that this rank's farewells carry */
    hvt__letter *bye, *theirs; /* [size] farewells in flight to remote ranks, and expected from them */
    int heard[];               /* [size] words in the farewells received */
} handle;

enum { SUBS = 64, NUMBERS = 256, DATA = 0, FAREWELL, OWN }; /* parts of a tag */

static int tag_of(const hvt__hall *h, int number, int sub, int from, int to)
{
    return (((number % NUMBERS) * SUBS + sub) * h->most + from) * h->most + to;
}

/* Posts a message to another process on the world of processes. */
static hvt_status post_outside(const hvt_world *w, hvt__letter *l, size_t element, size_t count, int number,
                               int sub)
{
    const hvt__team *t = hvt__member_of(w)->team;
    hvt__hall *h = t->hall;
    const int there = l->send ? l->to : l->from;
    hvt_status s;

    l->remote = true;
    l->outside =
        (hvt__flight){.world = h->of,
                      .channel = h->outside,
                      .tag = tag_of(h, number, sub, t->place[l->from].thread, t->place[l->to].thread),
                      .element = element,
                      .room = 1,
                      .request = l->request,
                      .peer = &l->peer};
    pthread_mutex_lock(&h->of_lock);
    s = hvt__flight_post(&l->outside, l->send, l->at, count, t->place[there].process);
    pthread_mutex_unlock(&h->of_lock);
    return s;
}

static hvt_status test_letter(hvt__hall *h, hvt__letter *l, bool *ret_done)
{
    hvt_status s = HVT_OK;
    bool done = atomic_load_explicit(&l->done, memory_order_acquire);

    if (l->remote && !done) {
        pthread_mutex_lock(&h->of_lock);
        s = h->of->ops->test(&l->outside, false, &done);
        pthread_mutex_unlock(&h->of_lock);
        atomic_store(&l->done, done);
    }
    *ret_done = done;
    return s;
}

static bool meets(const hvt__letter *a, const hvt__letter *b)
{
    return a->from == b->from && a->channel == b->channel && a->tag == b->tag;
}

/* Call with the lock held. Removes and returns the oldest letter of `theirs` that matches l; without a match
 * appends l to `mine`. */
static hvt__letter *meet(hvt__letter **mine, hvt__letter **theirs, hvt__letter *l)
{
    for (hvt__letter **at = theirs; *at; at = &(*at)->next)
        if (meets(*at, l)) {
            hvt__letter *other = *at;

            *at = other->next;
            other->paired = true;
            return other;
        }
    while (*mine)
        mine = &(*mine)->next;
    *mine = l;
    return NULL;
}

static void post_inside(const hvt_world *w, hvt__letter *l)
{
    hvt__team *t = hvt__member_of(w)->team;
    hvt__place *at = &t->place[l->to];
    hvt__letter *other;

    pthread_mutex_lock(&t->hall->lock);
    other = l->send ? meet(&at->mail, &at->want, l) : meet(&at->want, &at->mail, l);
    pthread_mutex_unlock(&t->hall->lock);
    if (other) {
        hvt__letter *from = l->send ? l : other, *to = l->send ? other : l;

        if (from->bytes == to->bytes)
            memcpy(to->at, from->at, from->bytes);
        l->misfit = other->misfit = from->bytes != to->bytes;
        atomic_store(&l->done, true);
        atomic_store(&other->done, true);
    }
    hvt__ring(t->hall);
}

hvt_status hvt__letters_post(hvt__flight *f, bool send, void *at, size_t count, int peer)
{
    const hvt_world *w = f->world;
    const hvt__team *t = hvt__member_of(w)->team;
    const handle *ch = f->channel;
    hvt__letter *l = (hvt__letter *)f->request + f->n;

    *l = (hvt__letter){.at = at,
                       .bytes = count * (f->element ? f->element : 1),
                       .channel = ch ? ch->shared : NULL,
                       .tag = ch ? 0 : f->tag,
                       .from = send ? w->rank : peer,
                       .to = send ? peer : w->rank,
                       .send = send};
    if (t->place[peer].process != HVT__OWN)
        return post_outside(w, l, f->element, count, ch ? ch->shared->number : t->number,
                            ch                          ? DATA
                            : f->tag == HVT__COLLECTIVE ? SUBS - 1
                                                        : OWN + f->tag % (SUBS - OWN - 1));
    post_inside(w, l);
    return HVT_OK;
}

hvt_status hvt__letters_test_one(hvt__flight *f, int i, bool *ret_done)
{
    hvt__letter *l = (hvt__letter *)f->request + i;

    HVT_TRY(test_letter(hvt__member_of(f->world)->team->hall, l, ret_done));
    HVT_CHECK(!*ret_done || !l->misfit, E_MISMATCH, "rank %d and rank %d disagree on the size of a message",
              hvt__job_rank(f->world, l->from), hvt__job_rank(f->world, l->to));
    return HVT_OK;
}

hvt_status hvt__letters_test(hvt__flight *f, bool again, bool *ret_done)
{
    const hvt__team *t = hvt__member_of(f->world)->team;
    hvt__idling idling = {0};
    bool polls = false;

    for (;;) {
        uint64_t seen = atomic_load(&t->hall->events);

        *ret_done = true;
        for (int i = 0; i < f->n; i++) {
            bool done;

            HVT_TRY(hvt__letters_test_one(f, i, &done));
            polls = polls || (!done && ((hvt__letter *)f->request)[i].remote);
            *ret_done = *ret_done && done;
        }
        if (*ret_done || !again)
            return HVT_OK;
        if (hvt__idle(t->hall, &idling, seen, polls)) /* the caller looks at its peers */
            return HVT_OK;
    }
}

/* Takes an unmatched letter back; waits for one that another thread is copying. */
static void withdraw(const hvt_world *w, hvt__letter *l)
{
    hvt__team *t = hvt__member_of(w)->team;
    hvt__letter **at = l->send ? &t->place[l->to].mail : &t->place[l->to].want;
    bool paired;

    if (l->remote) {
        pthread_mutex_lock(&t->hall->of_lock);
        if (!atomic_load(&l->done))
            hvt__flight_drop(&l->outside);
        pthread_mutex_unlock(&t->hall->of_lock);
        return;
    }
    pthread_mutex_lock(&t->hall->lock);
    while (*at && *at != l)
        at = &(*at)->next;
    if (*at)
        *at = l->next;
    paired = l->paired;
    pthread_mutex_unlock(&t->hall->lock);
    while (paired && !atomic_load(&l->done))
        sched_yield();
}

void hvt__letters_drop(hvt__flight *f)
{
    for (int i = 0; i < f->n; i++)
        withdraw(f->world, (hvt__letter *)f->request + i);
}

/* ---- channels ------------------------------------------------------------------------------------- */

static int first_here(const hvt_world *w)
{
    int r = 0;

    while (hvt__member_of(w)->team->place[r].process != HVT__OWN)
        r++;
    return r;
}

hvt_status hvt__letters_number(hvt_world *w, int *ret_number)
{
    atomic_int *mine = &hvt__member_of(w)->team->hall->channels;
    int64_t number = w->rank == first_here(w) ? atomic_fetch_add(mine, 1) : 0;
    int now;

    HVT_TRY(hvt_world_allreduce_i64(w, HVT_MAX, &number, 1));
    for (now = atomic_load(mine); now <= number;)
        atomic_compare_exchange_strong(mine, &now, (int)number + 1);
    *ret_number = (int)number;
    return HVT_OK;
}

static bool is_remote(const hvt_world *w, int rank)
{
    return hvt__member_of(w)->team->place[rank].process != HVT__OWN;
}

static hvt_status await_farewells(hvt_world *w, handle *ch)
{
    for (int r = 0; r < w->size; r++)
        if (is_remote(w, r)) {
            ch->theirs[r] =
                (hvt__letter){.at = &ch->heard[r], .bytes = sizeof *ch->heard, .from = r, .to = w->rank};
            HVT_TRY(post_outside(w, &ch->theirs[r], 1, sizeof *ch->heard, ch->shared->number, FAREWELL));
        }
    return HVT_OK;
}

/* The lowest rank of each process allocates the shared part; the others get its address. */
hvt_status hvt__letters_open_channel(hvt_world *w, void **ret_channel)
{
    const hvt__team *t = hvt__member_of(w)->team;
    const size_t size = (size_t)w->size;
    int first = first_here(w), users = 0, number;
    handle *ch = calloc(1, sizeof *ch + size * sizeof *ch->heard);
    channel *fresh = NULL, **all = w->scratch;
    hvt_status s = HVT_OK;

    for (int r = 0; r < w->size; r++)
        users += !is_remote(w, r);
    if (ch && t->remote) {
        ch->bye = calloc(size, sizeof *ch->bye);
        ch->theirs = calloc(size, sizeof *ch->theirs);
    }
    if (w->rank == first)
        fresh = calloc(1, sizeof *fresh + size * sizeof *fresh->word);
    if (!ch || (t->remote && (!ch->bye || !ch->theirs)) || (w->rank == first && !fresh))
        s = HVT_FAIL(E_MEM, "no memory for messages of %d ranks", w->size);
    HVT_TRY_OR(fail, hvt_world_agree(w, s));
    if (fresh)
        atomic_init(&fresh->users, users);
    HVT_TRY_OR(fail, w->ops->allgather(w, &fresh, sizeof fresh, all));
    ch->shared = all[first];
    *ret_channel = ch;
    fresh = NULL;
    if (!t->remote)
        return HVT_OK;
    HVT_TRY(hvt__letters_number(w, &number));
    if (w->rank == first)
        ch->shared->number = number;
    HVT_TRY(hvt_world_barrier(w));
    return await_farewells(w, ch);
fail:
    if (ch)
        free(ch->bye), free(ch->theirs);
    free(ch);
    free(fresh);
    return s;
}

void hvt__letters_close_channel(hvt_world *w, void *state, bool quiet)
{
    handle *ch = state;

    if (!ch)
        return;
    for (int r = 0; r < w->size && ch->bye; r++) {
        if (ch->theirs[r].remote)
            withdraw(w, &ch->theirs[r]);
        if (ch->bye[r].remote)
            withdraw(w, &ch->bye[r]);
    }
    if (atomic_fetch_sub(&ch->shared->users, 1) == 1)
        free(ch->shared);
    free(ch->bye);
    free(ch->theirs);
    free(ch);
}

/* A word below 0 does not reach ranks of other processes. */
void hvt__letters_tell(hvt_world *w, void *state, int word)
{
    handle *ch = state;

    atomic_store(&ch->shared->word[w->rank], word);
    if (word < 0)
        return;
    ch->why = word;
    hvt__ring(hvt__member_of(w)->team->hall);
    for (int r = 0; r < w->size; r++)
        if (is_remote(w, r)) {
            ch->bye[r] = (hvt__letter){
                .at = &ch->why, .bytes = sizeof ch->why, .from = w->rank, .to = r, .send = true};
            post_outside(w, &ch->bye[r], 1, sizeof ch->why, ch->shared->number, FAREWELL);
        }
}

hvt_status hvt__letters_hear(hvt_world *w, void *state, int *word)
{
    handle *ch = state;
    bool done;

    for (int r = 0; r < w->size; r++) {
        int why = atomic_load(&ch->shared->word[r]);

        if (is_remote(w, r)) {
            HVT_TRY(test_letter(hvt__member_of(w)->team->hall, &ch->theirs[r], &done));
            why = done ? ch->heard[r] : 0;
        } else if (why <= 0 && hvt__thread_ended(w, r)) {
            why = HVT__ENDED;
        }
        if (why)
            word[r] = why;
    }
    return HVT_OK;
}
