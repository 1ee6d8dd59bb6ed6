/*
 * The watchdog: a thread of every rank that never calls MPI, so that it can report while the others hang. A
 * process has several if its threads are ranks, or train at once.
 *
 * The ranks of a node share a *page* (node.h) with one post per rank. A waiting thread writes its wait there;
 * at every *tick* the watchdog adds the training thread's position. So a tick costs the training thread
 * nothing, and a stopped rank is recognised by its unchanged post. Without shared memory the page is the
 * rank's own, which then knows only whom it waits for.
 *
 * An age is how long this watchdog has seen the same state, on its own clock, which advances by at most two
 * ticks between two looks. So clocks of different ranks are never compared, and a job that was stopped as a
 * whole (Ctrl-Z, a suspended allocation) does not count as stuck when it continues.
 *
 * Shared values are written and read relaxed: a value that is a tick old does no harm.
 */
#define _GNU_SOURCE
#include "watch.h"
#include "base/thread.h"
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

enum { WAITS = 4 }; /* concurrent waits of a rank */

static const double least_tick = 0.02, most_tick = 1; /* s */

typedef struct position {
    _Atomic int64_t step;
    _Atomic int phase, detail;
    _Atomic double since;
} position;

typedef struct wait {
    _Atomic uint64_t id; /* number of the wait in its process; 0: none */
    position position;
    _Atomic char what[HVT__WAIT_TEXT], tensor[HVT__TENSOR_TEXT];
    _Atomic int waiting_on[HVT__WAITING_ON];
} wait;

typedef struct post {
    _Alignas(128) _Atomic uint64_t beat; /* ticks */
    _Atomic uint64_t progress;
    _Atomic bool left;
    _Atomic int pid;
    position position;
    _Atomic char about[HVT__ABOUT_TEXT];
    wait wait[WAITS];
} post;

typedef struct page {
    _Atomic int said;        /* lines about the current stall */
    _Atomic bool hopeless;   /* a rank has reported the end of the job */
    _Atomic uint64_t others; /* reports of progress from other hosts */
    post post[];             /* [ranks of the node] */
} page;

/* A watchdog's last view of a post. */
typedef struct memory {
    uint64_t beat, progress, id[WAITS];
    double heard, moved, progressed, waited[WAITS]; /* times of the last changes, on its clock */
} memory;

typedef struct watch {
    struct watch *next; /* the next watch of this process */
    const hvt_world *world;
    int kin;    /* trace of its rank's threads (base/thread.h) */
    int number; /* counts the watches of this process, to recognise waits of earlier ones */
    hvt_stall stall;
    const hvt__lane *lane; /* of the training thread, while it exists */
    atomic_bool ended;     /* this rank has given up */

    hvt__hosts *hosts;
    uint64_t changes, others; /* changes of positions, waits and counters in the page; the page's `others` */
    double others_moved;      /* time of the last change of others, on its clock */

    hvt__node node;
    page *page;
    post *mine;
    int n, me; /* ranks in the page, and this one's index */
    memory *past;
    hvt__seen *seen; /* [n] state at the last look */
    bool *named;     /* [size of the world] */

    double clock, looked; /* the watchdog's clock; hvt__now() of the last look */
    hvt__ticker ticker;
} watch;

_Thread_local const atomic_bool *hvt__awaited;
_Thread_local hvt_stall hvt__stall = {.warn = 30, .abort = 300};
hvt_stall hvt__watch_default = {.warn = 30};
_Thread_local int64_t hvt__wait_behind;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards `watches` and this process's waits */
static watch *watches;                                   /* a watch for each rank of this process */
static hvt_stalled_fn *_Atomic on_stall;
static void *on_stall_ctx;

#define GET(v)    atomic_load_explicit(&(v), memory_order_relaxed)
#define PUT(v, x) atomic_store_explicit(&(v), (x), memory_order_relaxed)

static void put_position(position *p, hvt__where where)
{
    PUT(p->step, where.step);
    PUT(p->phase, (int)where.phase);
    PUT(p->detail, where.detail);
    PUT(p->since, where.since);
}

static hvt__where get_position(const position *p)
{
    return (hvt__where){GET(p->step), (hvt__phase)GET(p->phase), GET(p->detail), GET(p->since)};
}

static void put_text(_Atomic char *at, size_t room, const char *text)
{
    for (; --room && *text; at++, text++)
        PUT(*at, *text);
    PUT(*at, 0);
}

static void get_text(const _Atomic char *at, size_t room, char *text)
{
    for (; --room; at++, text++)
        *text = GET(*at);
    *text = 0;
}

/* The number of w's rank in the watched job. */
static int in_job(const watch *on, const hvt_world *w, int rank)
{
    return w == on->world || w->job == on->world ? hvt__job_rank(w, rank) : HVT__ANYONE;
}

/* Returns the watch over a world or over its job, else the watch of the calling thread's rank. Call with the
 * lock held. */
static watch *watch_of(const hvt_world *w)
{
    watch *found = NULL;

    for (watch *on = watches; on; on = on->next) {
        if (w && on->world == w)
            return on;
        if (w && w->job == on->world)
            found = on;
        else if (!found && hvt__kin.trace && on->kin == hvt__kin.trace)
            found = on;
    }
    return found;
}

/* The watch of a wait's handle, which encodes its index in the page and the watch's number; NULL: that watch
 * has ended. Call it with the lock. */
static const watch *watch_with(int handle)
{
    const watch *on = handle < 0 ? NULL : watches;

    while (on && on->number != handle / WAITS)
        on = on->next;
    return on;
}

static int begin(const watch *on, const hvt_world *w, int peer, const char *what)
{
    static uint64_t last_id;
    hvt__where where = hvt__trace_where(hvt__trace_lane());
    wait *mine = on->mine->wait;
    int i = 0;

    while (i < WAITS && GET(mine[i].id))
        i++;
    if (i == WAITS)
        return -1;
    mine += i;
    if (where.phase == HVT__EXCHANGE)
        where.detail -= (int)hvt__wait_behind;
    put_text(mine->what, sizeof mine->what, what);
    put_text(mine->tensor, sizeof mine->tensor,
             where.phase == HVT__EXCHANGE ? hvt__trace_name(where.detail) : "");
    put_position(&mine->position, where);
    for (int k = 0; k < HVT__WAITING_ON; k++)
        PUT(mine->waiting_on[k], HVT__NOBODY);
    PUT(mine->waiting_on[0], peer < 0 || peer == w->rank ? HVT__ANYONE : in_job(on, w, peer));
    PUT(mine->id, ++last_id);
    return on->number * WAITS + i;
}

int hvt__wait_begin(const hvt_world *w, int peer, const char *what)
{
    pthread_mutex_lock(&lock);
    const watch *on = watch_of(w);
    int handle = on ? begin(on, w, peer, what) : -1;
    pthread_mutex_unlock(&lock);
    return handle;
}

void hvt__wait_on(int handle, const hvt_world *w, const int *peer, int n)
{
    pthread_mutex_lock(&lock);
    const watch *on = watch_with(handle);

    for (int k = 0; on && k < HVT__WAITING_ON; k++)
        PUT(on->mine->wait[handle % WAITS].waiting_on[k], k < n ? in_job(on, w, peer[k]) : HVT__NOBODY);
    pthread_mutex_unlock(&lock);
}

void hvt__wait_end(int handle)
{
    pthread_mutex_lock(&lock);
    const watch *on = watch_with(handle);

    if (on)
        PUT(on->mine->wait[handle % WAITS].id, 0);
    pthread_mutex_unlock(&lock);
}

/* The letter of a process's state; 0: unknown. */
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
    name = strrchr(text, ')'); /* a program's name may contain anything */
    return name && name[1] ? name[2] : 0;
}

/* True if a wait began or ended. */
static bool see_waits(const watch *w, const post *p, memory *m, hvt__seen *s)
{
    bool moved = false;

    s->wait_age = -1;
    for (int k = 0; k < WAITS; k++) {
        const wait *on = &p->wait[k];
        uint64_t id = GET(on->id);

        if (id != m->id[k])
            m->waited[k] = w->clock;
        moved = moved || id != m->id[k];
        m->id[k] = id;
        if (!id || w->clock - m->waited[k] < s->wait_age)
            continue;
        s->wait_age = w->clock - m->waited[k];
        s->wait_position = get_position(&on->position);
        if (!s->wait_position.step) /* a helper thread */
            s->wait_position.step = s->position.step;
        get_text(on->what, sizeof on->what, s->what);
        get_text(on->tensor, sizeof on->tensor, s->tensor);
        for (int i = 0; i < HVT__WAITING_ON; i++)
            s->waiting_on[i] = GET(on->waiting_on[i]);
    }
    return moved;
}

static void see(watch *w, int i)
{
    const post *p = &w->page->post[i];
    memory *m = &w->past[i];
    hvt__seen *s = &w->seen[i];
    uint64_t beat = GET(p->beat), progress = GET(p->progress);
    hvt__where where = get_position(&p->position);
    bool moved;

    if (beat != m->beat)
        m->heard = w->clock;
    moved = memcmp(&where, &s->position, sizeof where);
    if (moved)
        m->moved = w->clock;
    moved = moved || progress != m->progress;
    m->beat = beat;
    m->progress = progress;
    s->position = where;
    s->position_age = w->clock - m->moved;
    s->silent = w->clock - m->heard;
    s->left = GET(p->left);
    get_text(p->about, sizeof p->about, s->about);
    s->here = s->silent <= 1 + 4 * w->ticker.seconds;
    s->life = 0;
    if (see_waits(w, p, m, s) || moved) {
        m->progressed = w->clock;
        w->changes++;
    }
    s->idle = w->clock - m->progressed;
}

static void see_lives(watch *w)
{
    for (int i = 0; i < w->n; i++) {
        char life = i == w->me ? 'R' : life_of(GET(w->page->post[i].pid));

        w->seen[i].life = life;
        if (life && strchr("TtZX", life))
            w->seen[i].here = false;
    }
}

bool hvt__watch_gave_up(const hvt_world *w)
{
    pthread_mutex_lock(&lock);
    const watch *on = watch_of(w);
    bool ended = on && GET(on->ended);
    pthread_mutex_unlock(&lock);
    return ended;
}

void hvt_world_on_stall(hvt_stalled_fn *fn, void *ctx)
{
    on_stall_ctx = ctx;
    atomic_store(&on_stall, fn);
}

void hvt__watch_give_up(const char *line)
{
    hvt_stalled_fn *fn = atomic_load(&on_stall);

    if (fn)
        fn(on_stall_ctx, line);
}

static atomic_bool muted;

void hvt__watch_mute(void)
{
    atomic_store(&muted, true);
}

static void act(watch *w, const hvt__verdict *v, int said)
{
    bool hopeless = v->finding == HVT__HOPELESS;
    char line[1600];

    if (atomic_load(&muted))
        return;
    /* if another rank reports it, this one does not */
    if (hopeless ? atomic_exchange(&w->page->hopeless, true)
                 : !atomic_compare_exchange_strong(&w->page->said, &said,
                                                   v->finding == HVT__STALLED ? said + 1 : 0))
        return;
    hvt__watch_line(w->world, w->seen, w->n, v, w->named, line, sizeof line);
    if (hopeless && !hvt__may_report(line))
        return;
    hvt__log_always(hopeless ? HVT_LOG_ERROR : HVT_LOG_WARN, line);
    if (hopeless) {
        PUT(w->ended, true);
        hvt__watch_give_up(line);
    }
}

/* Writes the training thread's position and, if the position lasts, its subject. */
static void put_own(watch *w)
{
    char text[HVT__ABOUT_TEXT];

    put_position(&w->mine->position, hvt__trace_followed(w->lane, text, sizeof text));
    put_text(w->mine->about, sizeof w->mine->about,
             w->seen[w->me].position_age >= w->ticker.seconds ? text : "");
}

/* Seconds since the last known progress on another host. A rank asks once it has waited for a quarter of the
 * limit. */
static double others_idle(watch *w)
{
    uint64_t others;

    if (!w->hosts)
        return INFINITY;
    if (hvt__hosts_listen(w->hosts, w->changes))
        atomic_fetch_add(&w->page->others, 1);
    others = GET(w->page->others);
    if (others != w->others)
        w->others_moved = w->clock;
    w->others = others;
    if (w->stall.abort > 0 && w->seen[w->me].wait_age >= w->stall.abort / 4)
        hvt__hosts_ask(w->hosts);
    return w->clock - w->others_moved;
}

/* Gives up after the rank that reported. A rank whose output is its own, which no launcher collects, says so.
 */
static void follow(watch *w)
{
    const hvt_world *world = w->world;
    char line[200];

    PUT(w->ended, true);
    snprintf(line, sizeof line,
             "rank %d (%s) gives up, as another rank of this host has: its output says why", world->rank,
             world->host[world->rank]);
    if (!strcmp(hvt_world_name(world), "tcp") && !atomic_load(&muted) && hvt__may_report(line))
        hvt__log_always(HVT_LOG_ERROR, line);
    hvt__watch_give_up(line);
}

static void look(void *arg)
{
    watch *w = arg;
    int said = GET(w->page->said);
    double now = hvt__now(), passed = now - w->looked, others;
    hvt__verdict v;

    put_own(w);
    PUT(w->mine->progress, hvt__trace_progress());
    PUT(w->mine->beat, GET(w->mine->beat) + 1);
    w->looked = now; /* the clock stands still while the watchdog does not run */
    w->clock += fmin(passed, 2 * w->ticker.seconds);
    for (int i = 0; i < w->n; i++)
        see(w, i);
    others = others_idle(w);
    v = hvt__watch_judge(w->seen, w->n, others, &w->stall, said);
    if (v.finding == HVT__FINE)
        return;
    see_lives(w);
    v = hvt__watch_judge(w->seen, w->n, others, &w->stall, said);
    if (v.finding != HVT__FINE && v.speaker == w->me && !GET(w->page->hopeless))
        act(w, &v, said);
    /* the reporting rank has ended by now; if no launcher ends the others, they end themselves */
    if (!GET(w->ended) && w->stall.abort > 0 &&
        fmin(w->seen[w->me].wait_age, v.idle) >= w->stall.abort + 2 * HVT__WATCH_GRACE)
        follow(w);
}

static void free_watch(watch *w)
{
    hvt__ticker_close(&w->ticker);
    hvt__node_close(&w->node);
    hvt__hosts_close(&w->hosts);
    free(w->past);
    free(w->seen);
    free(w->named);
    free(w);
}

/* Ends the watch over this world or of this training thread; false if there is none. */
static bool end_watch(const hvt_world *world, const hvt__lane *lane)
{
    pthread_mutex_lock(&lock);
    watch **at = &watches, *w;

    while (*at && (*at)->world != world && (*at)->lane != lane)
        at = &(*at)->next;
    w = *at;
    if (w)
        *at = w->next;
    pthread_mutex_unlock(&lock);
    if (!w)
        return false;
    PUT(w->mine->left, true);
    free_watch(w);
    return true;
}

void hvt__watch_close(const hvt_world *world)
{
    end_watch(world, NULL);
}

/* The steps that may fail on one rank only. */
static hvt_status prepare(hvt_world *world, const hvt_stall *stall, watch **ret_watch)
{
    watch *w = calloc(1, sizeof *w);
    static atomic_int numbers;
    size_t n = (size_t)world->local_size;
    double shortest =
        stall->warn > 0 && (stall->warn < stall->abort || !(stall->abort > 0)) ? stall->warn : stall->abort;

    HVT_CHECK(w, E_MEM, "no memory for a watchdog");
    *ret_watch = w;
    w->number = atomic_fetch_add(&numbers, 1) % (INT_MAX / WAITS);
    w->world = world;
    w->stall = *stall;
    w->ticker = (hvt__ticker){"a watchdog", fmin(fmax(shortest / 8, least_tick), most_tick), look, w};
    w->lane = hvt__trace_follow();
    w->kin = hvt__kin.trace;
    w->past = calloc(n, sizeof *w->past);
    w->seen = calloc(n, sizeof *w->seen);
    w->named = calloc((size_t)world->size, sizeof *w->named);
    HVT_CHECK(w->past && w->seen && w->named, E_MEM, "no memory to watch %zu ranks", n);
    return HVT_OK;
}

/* A page for the node's ranks, or for this one if they cannot share memory. */
static hvt_status open_page(watch *w, hvt_world *world)
{
    HVT_TRY(hvt__node_open(world, sizeof(page) + (size_t)world->local_size * sizeof(post), &w->node));
    w->page = w->node.block;
    w->me = w->node.shared ? world->local_rank : 0;
    w->mine = &w->page->post[w->me];
    PUT(w->mine->pid, gettid()); /* the process's number, unless a thread is the rank */
    for (int r = 0; r < world->size; r++)
        if (w->node.shared ? world->node_of[r] == world->node_of[world->rank] : r == world->rank)
            w->seen[w->n++].rank = r;
    return hvt__hosts_open(world, &w->hosts);
}

static void end_watches(const hvt_world *world)
{
    while (end_watch(world, hvt__trace_lane()))
        ;
}

/* Until the new watch is complete, the previous one, if any, watches the collectives in here. */
static hvt_status open_watch(hvt_world *world, const hvt_stall *stall)
{
    const bool on = stall->warn > 0 || stall->abort > 0;
    watch *w = NULL;
    hvt_status s = HVT_OK;

    if (on) {
        HVT_TRY_OR(fail, hvt_world_agree(world, prepare(world, stall, &w)));
        HVT_TRY_OR(fail, open_page(w, world));
        w->looked = hvt__now();
        HVT_TRY_OR(fail, hvt_world_agree(world, hvt__ticker_open(&w->ticker)));
    }
    end_watches(world);
    if (on) {
        pthread_mutex_lock(&lock);
        w->next = watches;
        watches = w;
        pthread_mutex_unlock(&lock);
    }
    return HVT_OK;
fail:
    if (w)
        free_watch(w);
    return s;
}

static hvt_status check(const hvt_stall *stall)
{
    HVT_CHECK(stall, E_ARG, "a watchdog needs times to wait");
    HVT_CHECK(stall->warn >= 0 && stall->abort >= 0, E_ARG,
              "a watchdog that warns after %g s and gives up after %g s: expected 0 or more", stall->warn,
              stall->abort);
    HVT_CHECK(!(stall->warn > 0 && stall->abort > 0 && stall->abort < stall->warn), E_ARG,
              "a watchdog that warns after %g s cannot give up after %g s", stall->warn, stall->abort);
    return HVT_OK;
}

hvt_status hvt_world_watch(hvt_world *world, const hvt_stall *stall)
{
    const double never = 1e9; /* s */

    if (!world) {
        HVT_TRY(check(stall));
        hvt__watch_default = *stall;
        return HVT_OK;
    }
    if (hvt__watch_gave_up(world))
        end_watches(world);
    HVT_TRY(hvt_world_agree(world, check(stall)));
    hvt__stall = (hvt_stall){stall->warn > 0 ? stall->warn : never, stall->abort > 0 ? stall->abort : never};
    return open_watch(world, stall);
}

/* Ranks agree on whether one of them already watches a world. */
void hvt__watch_by_default(hvt_world *world)
{
    double is_free = 1;

    if (world->size == 1 || !(hvt__watch_default.warn > 0 || hvt__watch_default.abort > 0))
        return;
    pthread_mutex_lock(&lock);
    for (const watch *on = watches; on; on = on->next)
        is_free = on->lane == hvt__trace_lane() ? 0 : is_free;
    pthread_mutex_unlock(&lock);
    if (hvt_world_allreduce(world, HVT_MIN, &is_free, 1) || is_free < 1)
        return;
    if (open_watch(world, &hvt__watch_default))
        HVT_DEBUG("no watchdog: %s", hvt_last_error());
}
