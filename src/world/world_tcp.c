/*
 * The world over TCP, without MPI. Collectives of small values are messages, by dissemination: log2(size)
 * rounds, in which a rank doubles what it has (Bruck et al. 1997).
 */
#include "base_impl.h"
#include "tcp.h"
#include "watch.h"
#include "world_internal.h"

#include <stddef.h>
#include <unistd.h>

typedef struct world_tcp {
    hvt__tcp *t;
    uint32_t channel;
    hvt__flight flight;    /* messages of the world's own collectives */
    hvt__rank_group group; /* all ranks of the world */
    const hvt_world *world;
} world_tcp;

typedef struct channel {
    uint32_t number;
    hvt__flight flight; /* messages of broadcasts */
} channel;

enum { OWN = 1 << 29, PIECE = 1 << 20 }; /* OWN: a channel that no comm gets; PIECE: bytes of a broadcast */

static hvt__tcp *tcp_of(const hvt_world *w)
{
    return ((world_tcp *)w->state)->t;
}

static const hvt_world *world_of(const hvt__rank_group *group)
{
    return ((const world_tcp *)((uintptr_t)group - offsetof(world_tcp, group)))->world;
}

/* A collective needs all ranks of the world, so it fails if any of them has ended. */
static hvt__departure has_left(const hvt__rank_group *group, int rank)
{
    const hvt_world *w = world_of(group);

    for (int r = 0; r < w->size; r++)
        if (atomic_load(&tcp_of(w)->gone[w->job_rank[r]]) == HVT__ENDED)
            return HVT__ENDED;
    return (hvt__departure)atomic_load(&tcp_of(w)->gone[w->job_rank[rank]]);
}

static hvt_status lost(const hvt__rank_group *group, int rank, const char *what)
{
    const hvt_world *w = world_of(group);
    int cause = rank;

    if (hvt__watch_gave_up(w))
        return HVT_FAIL(E_COMM, "rank %d has waited too long for rank %d (%s) to %s, and gives up",
                        w->job_rank[w->rank], w->job_rank[rank], w->host[rank], what);
    for (int r = w->size - 1; r >= 0; r--)
        if (atomic_load(&tcp_of(w)->gone[w->job_rank[r]]) == HVT__ENDED)
            cause = r;
    return HVT_FAIL(E_COMM, "rank %d (%s) has ended, or its network; rank %d was waiting for rank %d to %s",
                    w->job_rank[cause], w->host[cause], w->job_rank[w->rank], w->job_rank[rank], what);
}

/* ---- small values ---------------------------------------------------------------------------------------
 */

/* channel NULL: the world's own. */
static hvt_status exchange(hvt_world *w, channel *ch, const char *what, const hvt__message *messages,
                           int recvs, int sends)
{
    world_tcp *st = w->state;

    st->group.what = what;
    return hvt__exchange(ch ? &ch->flight : &st->flight, &st->group, messages, recvs, sends);
}

/* Lists the n blocks from `first` on, which may wrap around, as one or two messages. Returns their number. */
static int list_blocks(const hvt_world *w, char *all, size_t bytes, int first, int n, int rank,
                       hvt__message *list)
{
    int head = w->size - first < n ? w->size - first : n;

    list[0] = (hvt__message){all + (size_t)first * bytes, (size_t)head * bytes, rank, false};
    list[1] = (hvt__message){all, (size_t)(n - head) * bytes, rank, false};
    return head < n ? 2 : 1;
}

static hvt_status allgather(hvt_world *w, const char *what, const void *mine, size_t bytes, void *all)
{
    if (bytes) /* without bytes the buffers may be NULL */
        memmove((char *)all + (size_t)w->rank * bytes, mine, bytes);
    for (int have = 1, n; have < w->size; have += n) {
        int from = (w->rank + have) % w->size, to = (w->rank + w->size - have) % w->size, recvs, sends;
        hvt__message message[4];

        n = w->size - have < have ? w->size - have : have;
        recvs = list_blocks(w, all, bytes, from, n, from, message);
        sends = list_blocks(w, all, bytes, w->rank, n, to, message + recvs);
        HVT_TRY(exchange(w, NULL, what, message, recvs, sends));
    }
    return HVT_OK;
}

static hvt_status world_allgather_tcp(hvt_world *w, const void *mine, size_t bytes, void *all)
{
    return allgather(w, "take part in a gather", mine, bytes, all);
}

static hvt_status world_gather_tcp(hvt_world *w, const void *mine, size_t bytes, void *all, int root)
{
    if (w->rank != root)
        return exchange(w, NULL, "take part in a gather", &(hvt__message){mine, bytes, root, false}, 0, 1);
    if (bytes)
        memmove((char *)all + (size_t)root * bytes, mine, bytes);
    for (int r = 0; r < w->size; r++)
        if (r != root)
            HVT_TRY(exchange(w, NULL, "take part in a gather",
                             &(hvt__message){(char *)all + (size_t)r * bytes, bytes, r, false}, 1, 0));
    return HVT_OK;
}

/* Sends the data down a binomial tree, piece by piece. */
static hvt_status world_broadcast_tcp(hvt_world *w, void *state, void *data, size_t bytes, int root)
{
    const int me = (w->rank + w->size - root) % w->size; /* rank relative to the root */

    for (size_t at = 0, part; at < bytes; at += part) {
        int width = 1;
        hvt__message m = {.at = (char *)data + at};

        part = m.bytes = bytes - at < PIECE ? bytes - at : PIECE;
        while (width <= me)
            width *= 2;
        m.rank = (me - width / 2 + root) % w->size;
        if (me)
            HVT_TRY(exchange(w, state, "broadcast", &m, 1, 0));
        for (; me + width < w->size; width *= 2) {
            m.rank = (me + width + root) % w->size;
            HVT_TRY(exchange(w, state, "broadcast", &m, 0, 1));
        }
    }
    return HVT_OK;
}

static hvt_status world_barrier_tcp(hvt_world *w)
{
    char *all = w->scratch;
    const char mine = 1;

    return allgather(w, "take part in a barrier", &mine, 1, all);
}

/* ---- messages -------------------------------------------------------------------------------------------
 */

/* Agrees on a number that no channel of these ranks has had. */
static hvt_status next_number(hvt_world *w, uint32_t *ret)
{
    hvt__tcp *t = tcp_of(w);
    int64_t most;

    pthread_mutex_lock(&t->lock);
    most = t->channels;
    pthread_mutex_unlock(&t->lock);
    HVT_TRY(hvt_world_allreduce_i64(w, HVT_MAX, &most, 1));
    pthread_mutex_lock(&t->lock);
    *ret = (uint32_t)most + 1;
    t->channels = *ret > t->channels ? *ret : t->channels;
    pthread_mutex_unlock(&t->lock);
    return HVT_OK;
}

static hvt_status open_channel_tcp(hvt_world *w, void **ret_channel)
{
    channel *ch = calloc(1, sizeof *ch);
    hvt_status s;

    if (ch)
        ch->flight = (hvt__flight){.world = w, .channel = ch, .element = 1};
    HVT_TRY_OR(fail, hvt_world_agree(w, ch ? hvt__flight_reserve(&ch->flight, 2)
                                           : HVT_FAIL(E_MEM, "no memory for messages of %d ranks", w->size)));
    *ret_channel = ch;
    return next_number(w, &ch->number);
fail:
    if (ch)
        free(ch->flight.request);
    free(ch);
    return s;
}

static void close_channel_tcp(hvt_world *w, void *state, bool quiet)
{
    channel *ch = state;

    hvt__flight_drop(&ch->flight);
    if (quiet)
        hvt__tcp_forget(tcp_of(w), ch->number);
    free(ch->flight.request);
    free(ch);
}

static void tell_tcp(hvt_world *w, void *state, int word)
{
    channel *ch = state;
    const hvt__news news = {HVT__WORD, w->job_rank[w->rank], (int32_t)ch->number, (int32_t)word};

    hvt__tell(tcp_of(w), &news);
}

static hvt_status hear_tcp(hvt_world *w, void *state, int *word)
{
    channel *ch = state;
    hvt__tcp *t = tcp_of(w);

    pthread_mutex_lock(&t->lock);
    for (int r = 0; r < w->size; r++) {
        for (int i = 0; i < t->words; i++)
            if (t->word[i].channel == (int32_t)ch->number && t->word[i].rank == w->job_rank[r])
                word[r] = t->word[i].value;
        if (word[r] <= HVT__HERE && atomic_load(&t->gone[w->job_rank[r]]) != HVT__HERE)
            word[r] = atomic_load(&t->gone[w->job_rank[r]]);
    }
    pthread_mutex_unlock(&t->lock);
    return HVT_OK;
}

static hvt_status post_tcp(hvt__flight *f, bool send, void *at, size_t count, int peer)
{
    const world_tcp *st = f->world->state;
    const channel *ch = f->channel;

    return hvt__tcp_post(st->t, f, ch ? ch->number : st->channel, send, at, count * f->element,
                         f->world->job_rank[peer]);
}

static hvt_status test_tcp(hvt__flight *f, bool again, bool *ret_done)
{
    *ret_done = hvt__tcp_test(tcp_of(f->world), f, again);
    return HVT_OK;
}

static hvt_status test_one_tcp(hvt__flight *f, int i, bool *ret_done)
{
    *ret_done = hvt__tcp_test_one(tcp_of(f->world), f, i);
    return HVT_OK;
}

static void drop_tcp(hvt__flight *f)
{
    hvt__tcp_drop(tcp_of(f->world), f);
}

/* ---- worlds ---------------------------------------------------------------------------------------------
 */

/* Allocates a world's lists. */
static hvt_status prepare(hvt_world *w, hvt__tcp *t, int size)
{
    world_tcp *st = calloc(1, sizeof *st);

    w->state = st;
    w->size = size;
    w->node_of = calloc((size_t)size, sizeof *w->node_of);
    w->host = calloc((size_t)size, sizeof *w->host);
    w->job_rank = calloc((size_t)size, sizeof *w->job_rank);
    w->scratch = malloc((size_t)size * HVT__SCRATCH);
    HVT_CHECK(st && w->node_of && w->host && w->job_rank && w->scratch, E_MEM,
              "no memory for a world of %d ranks", size);
    *st = (world_tcp){.t = t,
                      .world = w,
                      .flight = {.world = w, .element = 1},
                      .group = {.channel = OWN, .has_left = has_left, .lost = lost}};
    t->users++;
    HVT_TRY(hvt__flight_reserve(&st->flight, 2 * size));
    return hvt__flight_reserve(&w->flight, 2 * size);
}

/* Sets hosts and nodes from job_rank. */
static void look_around(hvt_world *w)
{
    const hvt__tcp_place *place = tcp_of(w)->place;

    w->nodes = 0;
    for (int r = 0; r < w->size; r++) {
        int first = 0;

        while (place[w->job_rank[first]].host_id != place[w->job_rank[r]].host_id)
            first++;
        w->node_of[r] = first == r ? w->nodes++ : w->node_of[first];
        snprintf(w->host[r], sizeof w->host[r], "%s", place[w->job_rank[r]].host);
    }
    w->local_rank = w->local_size = 0;
    for (int r = 0; r < w->size; r++) {
        bool here = w->node_of[r] == w->node_of[w->rank];

        w->local_size += here;
        w->local_rank += here && r < w->rank;
    }
}

static void close_lines(hvt__tcp *t)
{
    const hvt__news bye = {.kind = HVT__CLOSES, .rank = t->rank};

    if (t->runs)
        hvt__tell(t, &bye);
    hvt__serve_close(t);
    for (int r = 0; t->line && r < (t->rank ? 1 : t->size); r++)
        if (t->line[r].fd >= 0)
            close(t->line[r].fd);
}

static void free_tcp(hvt__tcp *t)
{
    close_lines(t);
    hvt__door_close(&t->door);
    hvt__tcp_messages_close(t);
    pthread_mutex_destroy(&t->lock);
    pthread_mutex_destroy(&t->tell);
    free(t->place);
    free(t->line);
    free((void *)t->gone);
    free(t->word);
    free(t);
}

static hvt_status make_tcp(int size, hvt__tcp **ret_tcp)
{
    hvt__tcp *t = calloc(1, sizeof *t);

    HVT_CHECK(t, E_MEM, "no memory for a world of %d ranks", size);
    *ret_tcp = t;
    t->door.fd = t->stop = t->epoll = t->wake = -1;
    for (int i = 0; i < HVT__GUESTS; i++)
        t->door.guest[i].fd = -1;
    pthread_mutex_init(&t->lock, NULL);
    pthread_mutex_init(&t->tell, NULL);
    t->size = size;
    t->place = calloc((size_t)size, sizeof *t->place);
    t->line = calloc((size_t)size, sizeof *t->line);
    t->gone = calloc((size_t)size, sizeof *t->gone);
    HVT_CHECK(t->place && t->line && t->gone, E_MEM, "no memory for a world of %d ranks", size);
    for (int r = 0; r < size; r++)
        t->line[r].fd = -1;
    return HVT_OK;
}

static hvt_status world_open_tcp(hvt_world *w, const void *how)
{
    const hvt__meeting *m = how;
    hvt__tcp *t = NULL;
    hvt_status s;

    HVT_CHECK(w, E_MEM, "no memory for a world of %d ranks", m->size);
    HVT_TRY_OR(fail, make_tcp(m->size, &t));
    HVT_TRY_OR(fail, prepare(w, t, m->size));
    HVT_TRY_OR(fail, hvt__tcp_messages_open(t));
    w->rank = m->rank;
    HVT_TRY_OR(fail, hvt__meet(m, t));
    for (int r = 0; r < w->size; r++)
        w->job_rank[r] = r;
    look_around(w);
    HVT_TRY_OR(fail, hvt__serve_open(t));
    if (w->size > 1)
        hvt__startup_open(&(hvt_launch){.by = "tcp", .one_node = w->nodes == 1});
    hvt__startup_connected();
    return HVT_OK;
fail:
    if (t && !t->users)
        free_tcp(t);
    return s;
}

static hvt_status world_split_tcp(hvt_world *w, int color, int key, hvt_world *fresh)
{
    struct choice {
        int color, key;
    } mine = {color, key}, *all = w->scratch;
    uint32_t number = 0;
    hvt_status s;
    int n = 0;

    HVT_TRY(next_number(w, &number));
    HVT_TRY(world_allgather_tcp(w, &mine, sizeof mine, all));
    for (int r = 0; r < w->size; r++)
        n += color >= 0 && all[r].color == color;
    s = n ? prepare(fresh, tcp_of(w), n) : HVT_OK;
    if (!n || s)
        return s;
    ((world_tcp *)fresh->state)->channel = number;
    n = 0;
    for (int r = 0; r < w->size; r++) { /* insertion sort by key; ranks with equal keys keep their order */
        int at = n;

        if (all[r].color != color)
            continue;
        for (; at > 0 && all[fresh->node_of[at - 1]].key > all[r].key; at--)
            fresh->node_of[at] = fresh->node_of[at - 1];
        fresh->node_of[at] = r;
        n++;
    }
    for (int i = 0; i < n; i++) {
        fresh->rank = fresh->node_of[i] == w->rank ? i : fresh->rank;
        fresh->job_rank[i] = w->job_rank[fresh->node_of[i]];
    }
    look_around(fresh);
    return HVT_OK;
}

static void world_close_tcp(hvt_world *w)
{
    world_tcp *st = w->state;

    if (!st)
        return;
    if (st->t) {
        if (!w->parent && st->t->runs)
            world_barrier_tcp(w); /* its failure needs no report: the rank that failed has reported it */
        hvt__flight_drop(&st->flight);
        hvt__flight_drop(&w->flight);
        if (!--st->t->users)
            free_tcp(st->t);
    }
    free(st->flight.request);
    free(st);
}

static void world_abort_tcp(hvt_world *w, int exit_code)
{
    const hvt__news news = {HVT__ABORTS, w->job_rank[w->rank], 0, exit_code};

    hvt__tell(tcp_of(w), &news);
    _exit(exit_code);
}

const hvt_world_ops hvt_world_tcp = {
    .name = "tcp",
    .open = world_open_tcp,
    .close = world_close_tcp,
    .allgather = world_allgather_tcp,
    .broadcast = world_broadcast_tcp,
    .gather = world_gather_tcp,
    .barrier = world_barrier_tcp,
    .abort = world_abort_tcp,
    .split = world_split_tcp,
    .comm = "tcp",
    .request = sizeof(hvt__tcp_request),
    .open_channel = open_channel_tcp,
    .close_channel = close_channel_tcp,
    .tell = tell_tcp,
    .hear = hear_tcp,
    .post = post_tcp,
    .test = test_tcp,
    .test_one = test_one_tcp,
    .drop = drop_tcp,
};
