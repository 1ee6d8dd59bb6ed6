/*
 * The watchdog: a thread of every rank that is never inside MPI, so that it can speak when nothing else can.
 *
 * The ranks of a node have a *page* in common, with a post of each. Whoever waits writes its wait there; the
 * watchdog adds, at every *tick*, where the training thread is. So a tick costs the training thread nothing,
 * and a rank that is stopped is known by its post that no longer changes. Where memory cannot be shared the
 * page is the rank's own, and it knows no more than whom it waiting_on.
 *
 * An age is how long this watchdog has seen the same thing, on a clock of its own that moves by two ticks at
 * most between two looks. So no two ranks' clocks are compared, and a job that was stopped as a whole
 * (Ctrl-Z, a suspended allocation) is not stuck when it goes on.
 *
 * All that is shared is written and read relaxed: a value that is a tick old does no harm.
 */
#define _GNU_SOURCE
#include "watch.h"
#include "base_impl.h"
#include "world_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    WAITS = 4, /* of a process at a time */
    WORDS = HVT__WAIT_TEXT / 8,
    TENSOR_WORDS = HVT__TENSOR_TEXT / 8
};

static const double least_tick = 0.02, most_tick = 1; /* s */

/* ---- the page ------------------------------------------------------------------------------- */

typedef struct wait {
    _Atomic uint64_t turn; /* which wait of its process; 0: none */
    _Atomic int64_t step;
    _Atomic int phase, detail;
    _Atomic uint64_t what[WORDS], tensor[TENSOR_WORDS];
    _Atomic int waiting_on[HVT__WAITING_ON];
} wait;

typedef struct post {
    _Alignas(128) _Atomic uint64_t beat; /* ticks */
    _Atomic bool left;
    _Atomic int64_t step;
    _Atomic int phase, detail;
    _Atomic double since;
    wait wait[WAITS];
} post;

/* In the first rank's part, behind its post. */
typedef struct notes {
    _Atomic int said;      /* lines about the stall that lasts */
    _Atomic bool hopeless; /* the last word is said */
} notes;

typedef struct part {
    post post;
    notes notes;
} part;

/* What a watchdog remembers of a post. */
typedef struct memory {
    uint64_t beat, turn[WAITS];
    hvt__where place;
    double heard, placed, waited[WAITS]; /* when they became so, on its clock */
} memory;

typedef struct watch {
    const hvt_world *world;
    int number; /* of all watches of this process: a wait of an earlier one is none of this one's */
    hvt_stall stall;
    double tick;
    const hvt__lane *lane; /* of the thread that trains */

    hvt__segment segment;
    part *own; /* instead of a segment; NULL: shared */
    int n, me; /* ranks in the page, this one among them */
    int *rank; /* [n] numbers in the job */
    int *pid;  /* [n] */
    memory *past;
    hvt__seen *seen;
    bool *named; /* [size of the world] */

    double clock, looked; /* the watchdog's clock; hvt__now() of the last look */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t bell;
    bool closing, runs;
} watch;

_Thread_local const atomic_bool *hvt__awaited;
hvt_stall hvt__stall = {.warn = 30, .abort = 300};
_Thread_local int64_t hvt__wait_behind;
static _Atomic(watch *) watching;

static atomic_int using; /* threads that are between enter() and leave() */

/* Whoever finds it finds it whole, and it stays until leave(), which is called whether there is one or not.
 * In one order with close(): either that sees this thread, or this thread sees that there is no watch any
 * more. */
static watch *enter(void)
{
    atomic_fetch_add(&using, 1);
    return atomic_load(&watching);
}

static void leave(void)
{
    atomic_fetch_sub(&using, 1);
}

#define GET(v)    atomic_load_explicit(&(v), memory_order_relaxed)
#define PUT(v, x) atomic_store_explicit(&(v), (x), memory_order_relaxed)

static part *part_of(const watch *w, int i)
{
    return w->own ? w->own : (part *)(void *)(w->segment.base + (size_t)i * w->segment.stride);
}

/* ---- waits ---------------------------------------------------------------------------------- */

/* A rank of w by its number in the job that is watched. */
static int in_job(const watch *on, const hvt_world *w, int rank)
{
    return w == on->world || w->job == on->world ? hvt__job_rank(w, rank) : HVT__ANYONE;
}

static void put_text(_Atomic uint64_t *at, int words, const char *text)
{
    size_t rest = strnlen(text, 8 * (size_t)words - 1);

    for (int k = 0; k < words; k++) {
        size_t n = rest < 8 ? rest : 8;
        uint64_t word = 0;

        memcpy(&word, text, n);
        PUT(at[k], word);
        text += n;
        rest -= n;
    }
}

/* text[8 * words] */
static void get_text(const _Atomic uint64_t *at, int words, char *text)
{
    for (int k = 0; k < words; k++) {
        uint64_t word = GET(at[k]);

        memcpy(text + 8 * k, &word, 8);
    }
    text[8 * words - 1] = 0;
}

/* A wait's handle: its place in the page, and which watch that was. */
static int handle_of(const watch *on, int i)
{
    return on->number * WAITS + i;
}

/* NULL: nobody watches it any more. */
static wait *wait_of(const watch *on, int handle)
{
    if (!on || handle < 0 || handle / WAITS != on->number)
        return NULL;
    return &part_of(on, on->me)->post.wait[handle % WAITS];
}

static int begin(const watch *on, const hvt_world *w, int peer, const char *what)
{
    static _Atomic uint64_t turns;
    hvt__where place;
    uint64_t none = 0;
    wait *mine;
    int i = 0;

    mine = part_of(on, on->me)->post.wait;
    while (i < WAITS &&
           !atomic_compare_exchange_strong(&mine[i].turn, &none, atomic_fetch_add(&turns, 1) + 1)) {
        none = 0;
        i++;
    }
    if (i == WAITS)
        return -1;
    place = hvt__trace_where(hvt__trace_lane());
    if (place.phase == HVT__EXCHANGE)
        place.detail -= (int)hvt__wait_behind;
    put_text(mine[i].what, WORDS, what);
    put_text(mine[i].tensor, TENSOR_WORDS, place.phase == HVT__EXCHANGE ? hvt__trace_name(place.detail) : "");
    PUT(mine[i].step, place.step);
    PUT(mine[i].phase, (int)place.phase);
    PUT(mine[i].detail, place.detail);
    for (int k = 0; k < HVT__WAITING_ON; k++)
        PUT(mine[i].waiting_on[k], HVT__NOBODY);
    PUT(mine[i].waiting_on[0], peer < 0 || peer == w->rank ? HVT__ANYONE : in_job(on, w, peer));
    return handle_of(on, i);
}

int hvt__wait_begin(const hvt_world *w, int peer, const char *what)
{
    const watch *on = enter();
    int handle = on ? begin(on, w, peer, what) : -1;

    leave();
    return handle;
}

bool hvt__wait_asked(int handle, uint64_t *asked)
{
    const watch *on = enter();
    uint64_t now = wait_of(on, handle) ? GET(part_of(on, on->me)->post.beat) : *asked;
    bool again = now != *asked;

    leave();
    *asked = now;
    return again;
}

void hvt__wait_on(int handle, const hvt_world *w, const int *peer, int n)
{
    const watch *on = enter();
    wait *mine = wait_of(on, handle);

    for (int k = 0; mine && k < HVT__WAITING_ON; k++)
        PUT(mine->waiting_on[k], k < n ? in_job(on, w, peer[k]) : HVT__NOBODY);
    leave();
}

void hvt__wait_end(int handle)
{
    const watch *on = enter();
    wait *mine = wait_of(on, handle);

    if (mine)
        PUT(mine->turn, 0);
    leave();
}

/* ---- looking -------------------------------------------------------------------------------- */

static void show_place(const watch *w)
{
    post *p = &part_of(w, w->me)->post;
    hvt__where here = hvt__trace_where(w->lane);

    PUT(p->step, here.step);
    PUT(p->phase, (int)here.phase);
    PUT(p->detail, here.detail);
    PUT(p->since, here.since);
    PUT(p->beat, GET(p->beat) + 1);
}

/* The letter of a process's state, 0 if it cannot be told. */
static char life_of(int pid)
{
    char path[32], text[512], *name;
    int fd;
    ssize_t n;

    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT && kill(pid, 0) && errno == ESRCH ? 'X' : 0;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    name = strrchr(text, ')'); /* a program's name may hold anything */
    return name && name[1] ? name[2] : 0;
}

static bool same_place(const hvt__where *a, const hvt__where *b)
{
    return a->step == b->step && a->phase == b->phase && a->detail == b->detail && a->since == b->since;
}

static void see_waits(const watch *w, const post *p, memory *m, hvt__seen *s)
{
    s->wait_age = -1;
    for (int k = 0; k < WAITS; k++) {
        const wait *on = &p->wait[k];
        uint64_t turn = GET(on->turn);

        if (turn != m->turn[k])
            m->waited[k] = w->clock;
        m->turn[k] = turn;
        if (!turn || w->clock - m->waited[k] < s->wait_age)
            continue;
        s->wait_age = w->clock - m->waited[k];
        s->wait_place = (hvt__where){GET(on->step), (hvt__phase)GET(on->phase), GET(on->detail), 0};
        if (!s->wait_place.step) /* a thread that only helps */
            s->wait_place.step = s->place.step;
        get_text(on->what, WORDS, s->what);
        get_text(on->tensor, TENSOR_WORDS, s->tensor);
        for (int i = 0; i < HVT__WAITING_ON; i++)
            s->waiting_on[i] = GET(on->waiting_on[i]);
    }
}

static void see(watch *w, int i)
{
    const post *p = &part_of(w, i)->post;
    memory *m = &w->past[i];
    hvt__seen *s = &w->seen[i];
    uint64_t beat = GET(p->beat);
    hvt__where place = {GET(p->step), (hvt__phase)GET(p->phase), GET(p->detail), GET(p->since)};

    if (beat != m->beat)
        m->heard = w->clock;
    if (!same_place(&place, &m->place))
        m->placed = w->clock;
    m->beat = beat;
    m->place = place;
    s->rank = w->rank[i];
    s->place = place;
    s->place_age = w->clock - m->placed;
    s->silent = w->clock - m->heard;
    s->left = GET(p->left);
    s->here = s->silent <= 1 + 4 * w->tick;
    s->life = 0;
    see_waits(w, p, m, s);
}

static void see_lives(watch *w)
{
    for (int i = 0; i < w->n; i++) {
        char life = i == w->me ? 'R' : life_of(w->pid[i]);

        w->seen[i].life = life;
        if (life && strchr("TtZX", life))
            w->seen[i].here = false;
    }
}

/* The clock of a watchdog that was not let run stands still. */
static void move_clock(watch *w, double now)
{
    double passed = now - w->looked;

    w->looked = now;
    w->clock += passed < 2 * w->tick ? passed : 2 * w->tick;
}

/* ---- speaking ------------------------------------------------------------------------------- */

static void give_up(watch *w, const hvt__verdict *v)
{
    notes *page = &part_of(w, 0)->notes;
    char line[1600];

    if (atomic_exchange(&page->hopeless, true))
        return; /* another one says it; this rank follows */
    hvt__watch_line(w->world, w->seen, w->n, v, w->named, line, sizeof line);
    if (!hvt__may_report(line))
        return;
    hvt__log_always(HVT_LOG_ERROR, "%s", line);
    _exit(HVT_EXIT_STALLED);
}

static void act(watch *w, const hvt__verdict *v, int said)
{
    notes *page = &part_of(w, 0)->notes;
    char line[1600];

    if (v->finding == HVT__HOPELESS) {
        give_up(w, v);
        return;
    }
    if (!atomic_compare_exchange_strong(&page->said, &said, v->finding == HVT__STALLED ? said + 1 : 0))
        return;
    hvt__watch_line(w->world, w->seen, w->n, v, w->named, line, sizeof line);
    hvt__log_always(HVT_LOG_WARN, "%s", line);
}

static void look(watch *w)
{
    int said = GET(part_of(w, 0)->notes.said);
    const hvt__seen *mine = &w->seen[w->me];
    hvt__verdict v;

    show_place(w);
    move_clock(w, hvt__now());
    for (int i = 0; i < w->n; i++)
        see(w, i);
    v = hvt__watch_judge(w->seen, w->n, &w->stall, said);
    if (v.finding == HVT__FINE)
        return;
    see_lives(w);
    v = hvt__watch_judge(w->seen, w->n, &w->stall, said);
    if (v.finding != HVT__FINE && v.speaker == w->me && !GET(part_of(w, 0)->notes.hopeless))
        act(w, &v, said);
    /* whoever spoke is gone by now; and where the launcher does not end the others, they end themselves */
    if (w->stall.abort > 0 && mine->wait_age >= w->stall.abort + 2 * HVT__WATCH_GRACE)
        _exit(HVT_EXIT_STALLED);
}

static void *watchdog(void *arg)
{
    watch *w = arg;
    struct timespec next;

    w->looked = hvt__now();
    pthread_mutex_lock(&w->lock);
    while (!w->closing) {
        clock_gettime(CLOCK_MONOTONIC, &next);
        next.tv_nsec += (long)(w->tick * 1e9);
        next.tv_sec += next.tv_nsec / 1000000000;
        next.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&w->bell, &w->lock, &next);
        if (!w->closing)
            look(w);
    }
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* ---- life ----------------------------------------------------------------------------------- */

static void free_watch(watch *w)
{
    hvt__segment_close(&w->segment);
    free(w->own);
    free(w->rank);
    free(w->pid);
    free(w->past);
    free(w->seen);
    free(w->named);
    free(w);
}

void hvt__watch_close(const hvt_world *world)
{
    watch *w = atomic_load(&watching);

    if (!w || (world && w->world != world) || !atomic_compare_exchange_strong(&watching, &w, NULL))
        return;
    while (atomic_load(&using)) /* a thread may be noting its wait; that takes no time */
        sched_yield();
    PUT(part_of(w, w->me)->post.left, true);
    if (w->runs) {
        pthread_mutex_lock(&w->lock);
        w->closing = true;
        pthread_cond_signal(&w->bell);
        pthread_mutex_unlock(&w->lock);
        pthread_join(w->thread, NULL);
        pthread_cond_destroy(&w->bell);
        pthread_mutex_destroy(&w->lock);
    }
    free_watch(w);
}

/* What can fail on one rank alone. */
static hvt_status prepare(hvt_world *world, const hvt_stall *stall, watch **ret_watch)
{
    watch *w = calloc(1, sizeof *w);
    static atomic_int numbers;
    size_t n = 0;
    double shortest =
        stall->warn > 0 && (stall->warn < stall->abort || !(stall->abort > 0)) ? stall->warn : stall->abort;

    HVT_CHECK(w, E_MEM, "no memory for a watchdog");
    *ret_watch = w;
    w->number = atomic_fetch_add(&numbers, 1) % (INT_MAX / WAITS);
    for (int r = 0; r < world->size; r++)
        n += world->node_of[r] == world->node_of[world->rank];
    w->world = world;
    w->stall = *stall;
    w->tick = shortest / 8 < least_tick ? least_tick : shortest / 8 > most_tick ? most_tick : shortest / 8;
    w->lane = hvt__trace_lane();
    w->rank = calloc(n, sizeof *w->rank);
    w->pid = calloc(n, sizeof *w->pid);
    w->past = calloc(n, sizeof *w->past);
    w->seen = calloc(n, sizeof *w->seen);
    w->named = calloc((size_t)world->size, sizeof *w->named);
    w->own = aligned_alloc(_Alignof(part), sizeof *w->own);
    HVT_CHECK(w->rank && w->pid && w->past && w->seen && w->named && w->own, E_MEM,
              "no memory to watch %zu ranks", n);
    memset(w->own, 0, sizeof *w->own);
    w->n = 1;
    w->rank[0] = world->rank;
    w->pid[0] = getpid();
    return HVT_OK;
}

/* A page of the node's ranks in the place of one's own, where that can be had. */
static hvt_status share_page(watch *w, hvt_world *world)
{
    hvt_world *node = NULL;
    int32_t *pids = world->scratch;
    int n = 0, me = 0;
    hvt_status s;

    HVT_TRY(world->ops->allgather(world, &(int32_t){getpid()}, sizeof *pids, pids));
    for (int r = 0; r < world->size; r++)
        if (world->node_of[r] == world->node_of[world->rank]) {
            me = r == world->rank ? n : me;
            w->pid[n] = pids[r];
            w->rank[n++] = r;
        }
    if (world->nodes > 1)
        HVT_TRY(hvt_world_split(world, world->node_of[world->rank], world->rank, &node));
    s = hvt__segment_open(node ? node : world, sizeof(part), &w->segment);
    hvt_world_close(&node);
    if (s == HVT_OK) {
        free(w->own);
        w->own = NULL;
        w->n = n;
        w->me = me;
    } else {
        HVT_DEBUG("watchdog: each rank by itself: %s", hvt_last_error());
        w->pid[0] = getpid();
        w->rank[0] = world->rank;
    }
    return HVT_OK;
}

static hvt_status start(watch *w)
{
    pthread_condattr_t a;
    sigset_t all, before;
    int e = pthread_condattr_init(&a);

    HVT_CHECK(e == 0, E_MEM, "no condition variable: %s", strerror(e));
    pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
    e = pthread_cond_init(&w->bell, &a);
    pthread_condattr_destroy(&a);
    HVT_CHECK(e == 0, E_MEM, "no condition variable: %s", strerror(e));
    pthread_mutex_init(&w->lock, NULL);
    sigfillset(&all); /* signals are for the threads that were there before */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    e = pthread_create(&w->thread, NULL, watchdog, w);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    w->runs = e == 0;
    if (w->runs)
        return HVT_OK;
    pthread_cond_destroy(&w->bell);
    pthread_mutex_destroy(&w->lock);
    return HVT_FAIL(E_MEM, "no thread for a watchdog: %s", strerror(e));
}

hvt_status hvt_world_watch(hvt_world *world, const hvt_stall *stall)
{
    const double never = 1e9; /* s */
    watch *w = NULL;
    hvt_status s = HVT_OK;

    HVT_CHECK(world, E_ARG, "no world to watch");
    if (!stall)
        s = HVT_FAIL(E_ARG, "a watchdog without times to wait");
    else if (!(stall->warn >= 0 && stall->abort >= 0))
        s = HVT_FAIL(E_ARG, "a watchdog that warns after %g s and gives up after %g s: expected 0 or more",
                     stall->warn, stall->abort);
    else if (stall->warn > 0 && stall->abort > 0 && stall->abort < stall->warn)
        s = HVT_FAIL(E_ARG, "a watchdog that warns after %g s cannot give up after %g s", stall->warn,
                     stall->abort);
    HVT_TRY(hvt_world_agree(world, s));
    hvt__watch_close(NULL);
    hvt__stall = (hvt_stall){stall->warn > 0 ? stall->warn : never, stall->abort > 0 ? stall->abort : never};
    if (!(stall->warn > 0) && !(stall->abort > 0))
        return HVT_OK;
    HVT_TRY_OR(fail, hvt_world_agree(world, prepare(world, stall, &w)));
    if (world->size > 1)
        HVT_TRY_OR(fail, share_page(w, world));
    HVT_TRY_OR(fail, hvt_world_agree(world, start(w)));
    atomic_store(&watching, w);
    return HVT_OK;
fail:
    if (w && w->runs) { /* on another rank it does not */
        atomic_store(&watching, w);
        hvt__watch_close(world);
    } else if (w) {
        free_watch(w);
    }
    return s;
}
