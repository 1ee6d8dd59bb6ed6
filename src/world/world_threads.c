/*
 * The world whose ranks are threads of this process, and of others if it was opened over a world of
 * processes.
 *
 * A collective within the process is a *round*: every rank puts its data in its place and enters the round by
 * incrementing a counter that only it writes. Short data are copied into the place, alternately into two
 * slots: before a rank writes a slot again, it has seen all others enter the next round, so they have read
 * the slot. For long data the place holds the address, and a second round marks the end of its use.
 *
 * If some ranks are in other processes, rank 0 collects and distributes the data by messages (letters.c). No
 * thread then waits inside MPI, so several worlds of a process may have collectives at once.
 *
 * No rank waits for a thread that has ended: the others get E_COMM.
 */
#define _GNU_SOURCE
#include "base_impl.h"
#include "threads.h"
#include "watch.h"
#include "world_internal.h"

#include <unistd.h>

/* ---- within the process --------------------------------------------------------------------------- */

static bool is_there(const hvt__member *m, int rank, uint64_t round)
{
    return atomic_load_explicit(&m->team->place[rank].round, memory_order_acquire) >= round;
}

static hvt_status gone(const hvt_world *w, int rank, const char *what)
{
    if (hvt__thread_ended(w, rank))
        return HVT_FAIL(E_COMM, "rank %d (%s) has ended; rank %d was waiting for it to %s",
                        hvt__job_rank(w, rank), w->host[rank], hvt__job_rank(w, w->rank), what);
    return HVT_FAIL(E_COMM, "rank %d has waited too long for rank %d (%s) to %s, and gives up",
                    hvt__job_rank(w, w->rank), hvt__job_rank(w, rank), w->host[rank], what);
}

/* Tells the watchdog which ranks have not entered the round. E_COMM if one of them never will. */
static hvt_status look_around(const hvt_world *w, int *wait, uint64_t round, const char *what)
{
    int missing[HVT__WAITING_ON], n = 0;

    for (int r = 0; r < w->size; r++) {
        bool lost = hvt__thread_ended(w, r) || hvt__watch_gave_up(w);

        if (is_there(hvt__member_of(w), r, round))
            continue;
        if (lost)
            return gone(w, r, what);
        if (n < HVT__WAITING_ON)
            missing[n++] = r;
    }
    if (n && *wait < 0)
        *wait = hvt__wait_begin(w, missing[0], what);
    hvt__wait_on(*wait, w, missing, n);
    return HVT_OK;
}

/* Enters the next round and waits for the others. readers: the others may still read this rank's data; a
 * thread that has ended does not, so it is not an error. */
static hvt_status meet(const hvt_world *w, bool readers, const char *what)
{
    hvt__member *m = hvt__member_of(w);
    hvt__hall *h = m->team->hall;
    const uint64_t round = atomic_load_explicit(&m->mine->round, memory_order_relaxed) + 1;
    hvt__idling idling = {0};
    int wait = -1;
    hvt_status s = HVT_OK;

    atomic_store_explicit(&m->mine->round, round, memory_order_release);
    hvt__ring(h);
    for (int r = 0; r < w->size && s == HVT_OK; r++)
        while (s == HVT_OK) {
            uint64_t seen = atomic_load(&h->events);

            if (is_there(m, r, round) || (readers && hvt__thread_ended(w, r)))
                break;
            if (hvt__idle(h, &idling, seen, false) && !readers)
                s = look_around(w, &wait, round, what);
        }
    hvt__wait_end(wait);
    return s;
}

/* A round in which every rank, or only the root, offers data (NULL: none). Long data must stay valid until
 * release(). */
static hvt_status give(const hvt_world *w, const void *mine, size_t bytes, const char *what)
{
    hvt__place *at = hvt__member_of(w)->mine;
    const int slot = (atomic_load_explicit(&at->round, memory_order_relaxed) + 1) & 1;

    at->given[slot].bytes = bytes;
    at->given[slot].at = mine;
    if (mine && bytes && bytes <= HVT__SCRATCH)
        at->given[slot].at = memcpy(at->given[slot].copy, mine, bytes);
    return meet(w, false, what);
}

/* After give(): checks that all ranks have given the same number of bytes. */
static hvt_status compare(const hvt_world *w, const char *what)
{
    const hvt__member *m = hvt__member_of(w);
    const int slot = atomic_load_explicit(&m->mine->round, memory_order_relaxed) & 1;

    for (int r = 1; r < w->size; r++) {
        size_t first = m->team->place[0].given[slot].bytes, its = m->team->place[r].given[slot].bytes;

        if (its == first)
            continue;
        HVT_FAIL(E_MISMATCH, "%s: rank %d has %zu bytes, rank %d %zu", what, hvt__job_rank(w, 0), first,
                 hvt__job_rank(w, r), its);
        hvt__error_agreed(true);
        return HVT_E_MISMATCH;
    }
    return HVT_OK;
}

/* After give(): copy rank r's data. */
static void take(const hvt_world *w, int r, size_t bytes, void *to)
{
    const hvt__member *m = hvt__member_of(w);
    const int slot = atomic_load_explicit(&m->mine->round, memory_order_relaxed) & 1;
    const void *from = m->team->place[r].given[slot].at;

    if (bytes && from != to)
        memmove(to, from, bytes);
}

/* Long data are read in place, so another round waits for their readers. */
static hvt_status release(const hvt_world *w, size_t bytes)
{
    return bytes <= HVT__SCRATCH ? HVT_OK : meet(w, true, "read the data");
}

/* ---- with other processes ------------------------------------------------------------------------- */

/* The ranks of a collective over messages. */
typedef struct group {
    hvt__rank_group group;
    const hvt_world *w;
} group;

static hvt__departure has_left(const hvt__rank_group *of, int rank)
{
    return hvt__thread_ended(((const group *)(const void *)of)->w, rank) ? HVT__ENDED : HVT__HERE;
}

static hvt_status lost(const hvt__rank_group *of, int rank, const char *what)
{
    return gone(((const group *)(const void *)of)->w, rank, what);
}

/* The root exchanges a message with every other rank r, at all + r * stride. out: from the root. */
static hvt_status spread(hvt_world *w, void *all, size_t stride, size_t bytes, int root, bool out)
{
    const group g = {{.has_left = has_left, .lost = lost}, w};
    hvt__flight *f = &w->flight;
    hvt_status s;

    f->tag = HVT__COLLECTIVE;
    for (int r = 0; r < w->size; r++)
        if (r != w->rank && (r == root || w->rank == root))
            HVT_TRY_OR(fail,
                       hvt__flight_post(f, (w->rank == root) == out,
                                        (char *)all + (w->rank == root ? stride * (size_t)r : 0), bytes, r));
    HVT_TRY_OR(fail, hvt__flight_await(f, &g.group));
    return HVT_OK;
fail:
    hvt__flight_drop(f);
    return s;
}

static hvt_status gather(hvt_world *w, const void *mine, size_t bytes, void *all, int root)
{
    if (w->rank == root && bytes)
        memmove((char *)all + bytes * (size_t)root, mine, bytes);
    return spread(w, w->rank == root ? all : (void *)(uintptr_t)mine, bytes, bytes, root, false);
}

/* ---- the table ------------------------------------------------------------------------------------ */

static bool is_remote(const hvt_world *w)
{
    return hvt__member_of(w)->team->remote;
}

static hvt_status gather_inside(hvt_world *w, const void *mine, size_t bytes, void *all, bool takes)
{
    HVT_TRY(give(w, mine, bytes, "take part in a gather"));
    HVT_TRY(compare(w, "a gather"));
    for (int r = 0; r < w->size && takes; r++)
        take(w, r, bytes, (char *)all + bytes * (size_t)r);
    return release(w, bytes);
}

static hvt_status world_gather_threads(hvt_world *w, const void *mine, size_t bytes, void *all, int root)
{
    return is_remote(w) ? gather(w, mine, bytes, all, root)
                        : gather_inside(w, mine, bytes, all, w->rank == root);
}

static hvt_status world_allgather_threads(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    const size_t whole = bytes * (size_t)w->size;

    if (!is_remote(w))
        return gather_inside(w, mine, bytes, all, true);
    HVT_TRY(gather(w, mine, bytes, all, 0));
    return spread(w, all, 0, whole, 0, true);
}

static hvt_status world_broadcast_threads(hvt_world *w, void *channel, void *data, size_t bytes, int root)
{
    if (is_remote(w))
        return spread(w, data, 0, bytes, root, true);
    HVT_TRY(give(w, w->rank == root ? data : NULL, bytes, "broadcast"));
    HVT_TRY(compare(w, "a broadcast"));
    if (w->rank != root)
        take(w, root, bytes, data);
    return release(w, bytes);
}

static hvt_status world_barrier_threads(hvt_world *w)
{
    return is_remote(w) ? world_allgather_threads(w, &(char){0}, 1, w->scratch)
                        : give(w, NULL, 0, "take part in a barrier");
}

static void world_abort_threads(hvt_world *w, int exit_code)
{
    hvt_world *process = hvt__member_of(w)->team->hall->process;

    if (process && process->ops->abort)
        process->ops->abort(process, exit_code);
}

/* ---- teams ---------------------------------------------------------------------------------------- */

hvt__team *hvt__team_new(hvt__hall *h, int size)
{
    const size_t line = _Alignof(hvt__team), bytes = sizeof(hvt__team) + (size_t)size * sizeof(hvt__place);
    hvt__team *t = aligned_alloc(line, (bytes + line - 1) / line * line);

    if (!t)
        return NULL;
    memset(t, 0, bytes);
    t->hall = h;
    return t;
}

hvt_status hvt__member_open(hvt_world *w, hvt__team *t, int rank, int size)
{
    hvt__member *m = calloc(1, sizeof *m);

    w->ops = &hvt_world_threads;
    w->state = m;
    w->rank = rank;
    w->size = size;
    w->flight = (hvt__flight){.world = w, .element = 1};
    w->node_of = calloc((size_t)size, sizeof *w->node_of);
    w->host = calloc((size_t)size, sizeof *w->host);
    w->scratch = malloc((size_t)size * HVT__SCRATCH);
    HVT_CHECK(m && w->node_of && w->host && w->scratch, E_MEM, "no memory for a world of %d ranks", size);
    if (t)
        *m = (hvt__member){t, &t->place[rank]};
    return hvt__flight_reserve(&w->flight, 2 * size);
}

void hvt__member_nodes(hvt_world *w)
{
    int node = 0;

    w->local_rank = w->local_size = 0;
    for (int r = 0; r < w->size; r++) {
        const bool same = w->node_of[r] == w->node_of[w->rank];

        w->local_rank += same && r < w->rank;
        w->local_size += same;
    }
    for (int r = 0; r < w->size; r++) {
        const int was = w->node_of[r];

        if (was < 0)
            continue;
        for (int q = r; q < w->size; q++)
            if (w->node_of[q] == was)
                w->node_of[q] = -1 - node;
        node++;
    }
    for (int r = 0; r < w->size; r++)
        w->node_of[r] = -1 - w->node_of[r];
    w->nodes = node;
}

static void world_close_threads(hvt_world *w)
{
    hvt__member *m = w->state;

    if (m && m->team && atomic_fetch_sub(&m->team->users, 1) == 1)
        free(m->team);
    free(m);
}

typedef struct claim {
    int color, key, rank; /* rank: in the world that is split */
    int number;
    hvt__team *team; /* made by the first rank of a color on each process */
} claim;

static int in_order(const void *a, const void *b)
{
    const claim *x = a, *y = b;
    const int by_color = (x->color > y->color) - (x->color < y->color),
              by_key = (x->key > y->key) - (x->key < y->key);

    return by_color ? by_color : by_key ? by_key : x->rank - y->rank;
}

/* This rank's color among the claims, which are in order; returns the number of its ranks. */
static int find_members(const claim *all, int n, int rank, int *ret_first, int *ret_me)
{
    int first = 0, end, me = 0;

    while (all[me].rank != rank)
        me++;
    while (all[first].color != all[me].color)
        first++;
    for (end = me; end < n && all[end].color == all[me].color;)
        end++;
    *ret_first = first;
    *ret_me = me - first;
    return end - first;
}

/* Makes a team of the members, at the same threads and processes as in w. */
static hvt__team *found_team(const hvt_world *w, const claim *member, int n)
{
    const hvt__team *of = hvt__member_of(w)->team;
    hvt__team *t = hvt__team_new(of->hall, n);
    int here = 0;

    for (int i = 0; i < n && t; i++) {
        t->place[i].thread = of->place[member[i].rank].thread;
        t->place[i].process = of->place[member[i].rank].process;
        t->remote = t->remote || t->place[i].process != HVT__OWN;
        here += t->place[i].process == HVT__OWN;
    }
    if (t)
        atomic_init(&t->users, here);
    return t;
}

static hvt_status prepare_split(const hvt_world *w, const claim *member, int n, int me, hvt_world *fresh)
{
    fresh->job_rank = calloc((size_t)n, sizeof *fresh->job_rank);
    HVT_CHECK(fresh->job_rank, E_MEM, "no memory for a world of %d ranks", n);
    HVT_TRY(hvt__member_open(fresh, NULL, me, n));
    for (int i = 0; i < n; i++) {
        fresh->job_rank[i] = hvt__job_rank(w, member[i].rank);
        fresh->node_of[i] = w->node_of[member[i].rank];
        memcpy(fresh->host[i], w->host[member[i].rank], sizeof *fresh->host);
    }
    hvt__member_nodes(fresh);
    return HVT_OK;
}

static hvt_status world_split_threads(hvt_world *w, int color, int key, hvt_world *fresh)
{
    const hvt__team *of = hvt__member_of(w)->team;
    claim mine = {color < 0 ? -1 : color, key, w->rank, 0, NULL}, *all = w->scratch;
    int first, me, n, maker, number = 0;
    hvt_status s;

    if (of->remote)
        HVT_TRY(hvt__letters_number(w, &number));
    HVT_TRY(world_allgather_threads(w, &mine, sizeof mine, all));
    qsort(all, (size_t)w->size, sizeof *all, in_order);
    n = find_members(all, w->size, w->rank, &first, &me);
    for (maker = first; of->place[all[maker].rank].process != HVT__OWN;)
        maker++;
    maker = all[maker].rank;
    s = prepare_split(w, &all[first], n, me, fresh);
    if (s == HVT_OK && maker == w->rank && color >= 0) {
        mine.team = found_team(w, &all[first], n);
        if (mine.team)
            mine.team->number = number;
        else
            s = HVT_FAIL(E_MEM, "no memory for a world of %d ranks", n);
    }
    s = hvt_world_agree(w, s);
    if (s != HVT_OK) {
        free(mine.team);
        return s;
    }
    HVT_TRY(world_allgather_threads(w, &mine, sizeof mine, all));
    if (color >= 0)
        *hvt__member_of(fresh) = (hvt__member){all[maker].team, &all[maker].team->place[me]};
    return HVT_OK;
}

static hvt_status world_another_thread_threads(hvt_world *w, bool comes)
{
    hvt_world *of = hvt__member_of(w)->team->hall->of;

    return of && of->ops->another_thread ? of->ops->another_thread(of, comes) : HVT_OK;
}

static int world_life_threads(const hvt_world *w, int rank)
{
    const hvt__team *t = hvt__member_of(w)->team;

    return t->place[rank].process == HVT__OWN ? t->hall->life[t->place[rank].thread].fd : -1;
}

const hvt_world_ops hvt_world_threads = {
    .name = "threads",
    .close = world_close_threads,
    .allgather = world_allgather_threads,
    .broadcast = world_broadcast_threads,
    .gather = world_gather_threads,
    .barrier = world_barrier_threads,
    .abort = world_abort_threads,
    .split = world_split_threads,
    .comm = "mpi",
    .request = sizeof(hvt__letter),
    .open_channel = hvt__letters_open_channel,
    .close_channel = hvt__letters_close_channel,
    .tell = hvt__letters_tell,
    .hear = hvt__letters_hear,
    .post = hvt__letters_post,
    .test = hvt__letters_test,
    .test_one = hvt__letters_test_one,
    .drop = hvt__letters_drop,
    .another_thread = world_another_thread_threads,
    .life = world_life_threads,
};
