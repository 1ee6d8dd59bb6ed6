/*
 * Lanes: what each thread is doing, and its time in each phase. Only a lane's own thread writes it. Other
 * threads read three words of it, stored relaxed: update, position (phase and detail), start time. They may
 * also query the lane's subject, under a lock that is taken once per batch.
 *
 * Invariant: all time from the lane's first event to `mark`, less pauses, is attributed to exactly one phase.
 * Phases nested deeper than the stack count as the innermost one that fits.
 *
 * The threads of a rank are kin (thread.h): they count progress together, and their events go into one ring
 * buffer under a lock, which is taken only while recording is enabled.
 */
#include "base/thread.h"
#include "base/trace.h"

#include <stdatomic.h>

enum { DEPTH = 8 };

typedef struct frame {
    hvt__phase phase;
    int detail;
    double began;
    size_t bytes;
} frame;

struct hvt__lane {
    _Atomic int64_t step;
    _Atomic uint64_t position; /* phase in the upper half, detail + 1 in the lower */
    _Atomic double since;

    hvt__about_fn *about; /* guarded by about_lock, like its ctx */
    void *about_ctx;

    hvt__thread thread;
    bool in_step;
    double step_began;
    int depth;          /* nesting depth; phases beyond DEPTH are not on the stack */
    frame stack[DEPTH]; /* OTHER is below the bottom */
    double mark;        /* time is attributed up to here; 0: no event yet */
    double seconds[HVT__PHASE_COUNT];

    hvt__lane *next;     /* the next followed lane; guarded by about_lock, like: */
    bool followed;       /* guarded by about_lock */
    struct group *owned; /* the group that it founded, until it ends; NULL: it is in its creator's */
};

static _Thread_local hvt__lane lane;
static pthread_mutex_t about_lock = PTHREAD_MUTEX_INITIALIZER;
static hvt__lane *followed;   /* guarded by about_lock; of threads that have not ended */
static pthread_key_t at_exit; /* unfollows a thread that ends */
static bool can_follow;
static _Thread_local struct {
    hvt__name_fn *of;
    const void *ctx;
} namer;

/* The groups of kin. The first group holds the threads of ranks that are not followed; its progress counts
 * for all groups. */
enum { GROUPS = 64 };
static struct group {
    _Alignas(128) _Atomic uint64_t progress;
    atomic_bool taken, enabled;
    pthread_mutex_t lock;
    hvt__event *event; /* [capacity] the oldest at removed % capacity */
    size_t capacity, removed, kept;
    int64_t lost;
} groups[GROUPS] = {[0 ... GROUPS - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};

static struct group *mine(void)
{
    return &groups[hvt__kin.trace];
}

const char *hvt__phase_name(hvt__phase phase)
{
#define NAME(name, text) [HVT__##name] = text,
    static const char *const names[] = {HVT__PHASES(NAME)};
#undef NAME

    return phase >= 0 && phase < HVT__PHASE_COUNT ? names[phase] : "?";
}

void hvt__trace_names(hvt__name_fn *of, const void *ctx)
{
    namer.of = of;
    namer.ctx = ctx;
}

const char *hvt__trace_name(int detail)
{
    return namer.of ? namer.of(namer.ctx, detail) : "";
}

static void show(hvt__phase phase, int detail, double since)
{
    atomic_store_explicit(&lane.position, (uint64_t)phase << 32 | ((uint32_t)detail + 1),
                          memory_order_relaxed);
    atomic_store_explicit(&lane.since, since, memory_order_relaxed);
}

/* The innermost phase on the stack; NULL: none. */
static const frame *innermost(void)
{
    return lane.depth ? &lane.stack[(lane.depth < DEPTH ? lane.depth : DEPTH) - 1] : NULL;
}

/* Attribute the time since `mark`, less pauses, to the innermost phase. */
static void count_up_to(double now)
{
    const frame *f = innermost();

    now -= hvt__paused(now);
    if (lane.mark > 0)
        lane.seconds[f ? f->phase : HVT__OTHER] += now - lane.mark;
    lane.mark = now;
}

static void push(const frame *f, double now)
{
    const hvt__event e = {.began = f->began,
                          .seconds = now - f->began,
                          .step = atomic_load_explicit(&lane.step, memory_order_relaxed),
                          .bytes = (int64_t)f->bytes,
                          .detail = f->detail,
                          .phase = (int16_t)f->phase,
                          .thread = (int16_t)lane.thread};
    struct group *g = mine();

    pthread_mutex_lock(&g->lock);
    if (g->kept - g->removed < g->capacity)
        g->event[g->kept++ % g->capacity] = e;
    else
        g->lost++;
    pthread_mutex_unlock(&g->lock);
}

void hvt__trace_begin(hvt__phase phase, int detail)
{
    double now = hvt__now();

    count_up_to(now);
    if (lane.depth < DEPTH) {
        lane.stack[lane.depth] = (frame){.phase = phase, .detail = detail, .began = now};
        if (phase != HVT__WAIT)
            show(phase, detail, now);
    }
    lane.depth++;
}

void hvt__trace_bytes(size_t bytes)
{
    if (lane.depth && lane.depth <= DEPTH)
        lane.stack[lane.depth - 1].bytes = bytes;
}

void hvt__trace_end(void)
{
    double now = hvt__now();
    const frame *f;

    count_up_to(now);
    if (!lane.depth || lane.depth-- > DEPTH)
        return;
    if (atomic_load_explicit(&mine()->enabled, memory_order_relaxed))
        push(&lane.stack[lane.depth], now);
    f = innermost();
    show(f ? f->phase : HVT__OTHER, f ? f->detail : -1, f ? f->began : now);
}

void hvt__trace_step(int64_t step)
{
    int64_t last = atomic_load_explicit(&lane.step, memory_order_relaxed);

    if (!step && lane.in_step)
        return;
    while (lane.depth)
        hvt__trace_end();
    atomic_store_explicit(&lane.step, step ? step : last + 1, memory_order_relaxed);
    lane.in_step = true;
    lane.step_began = hvt__now();
}

void hvt__trace_step_end(void)
{
    if (lane.in_step && atomic_load_explicit(&mine()->enabled, memory_order_relaxed))
        push(&(frame){.phase = HVT__STEP, .detail = -1, .began = lane.step_began}, hvt__now());
    lane.in_step = false;
}

void hvt__trace_seconds(double ret_seconds[HVT__PHASE_COUNT])
{
    count_up_to(hvt__now());
    memcpy(ret_seconds, lane.seconds, sizeof lane.seconds);
}

hvt__lane *hvt__trace_lane(void)
{
    return &lane;
}

hvt__where hvt__trace_where(const hvt__lane *l)
{
    hvt__where w;
    uint64_t position, again = atomic_load_explicit(&l->position, memory_order_relaxed);

    do { /* the first read is consistent for a stuck thread, the case that matters */
        position = again;
        w.step = atomic_load_explicit(&l->step, memory_order_relaxed);
        w.since = atomic_load_explicit(&l->since, memory_order_relaxed);
        again = atomic_load_explicit(&l->position, memory_order_relaxed);
    } while (position != again);
    w.phase = (hvt__phase)(position >> 32);
    w.detail = (int32_t)((uint32_t)position - 1);
    return w;
}

void hvt__progressed(void)
{
    atomic_fetch_add_explicit(&mine()->progress, 1, memory_order_relaxed);
}

uint64_t hvt__trace_progress(void)
{
    uint64_t own = atomic_load_explicit(&mine()->progress, memory_order_relaxed);

    return hvt__kin.trace ? own + atomic_load_explicit(&groups[0].progress, memory_order_relaxed) : own;
}

void hvt__trace_about(hvt__about_fn *of, void *ctx)
{
    pthread_mutex_lock(&about_lock);
    lane.about = of;
    lane.about_ctx = ctx;
    pthread_mutex_unlock(&about_lock);
}

static void unfollow(void *ended)
{
    hvt__lane *l = ended, **at = &followed;

    pthread_mutex_lock(&about_lock);
    while (*at && *at != l)
        at = &(*at)->next;
    if (*at)
        *at = l->next;
    pthread_mutex_unlock(&about_lock);
    if (l->owned)
        atomic_store(&l->owned->taken, false);
}

static void make_key(void)
{
    can_follow = !pthread_key_create(&at_exit, unfollow);
}

/* Puts the calling thread, and the threads that it starts from now on, into a group of their own, unless it
 * is already in one. */
static void found_group(void)
{
    for (int i = 1; i < GROUPS && !hvt__kin.trace; i++)
        if (!atomic_exchange(&groups[i].taken, true)) {
            hvt__kin.trace = i;
            lane.owned = &groups[i];
        }
}

hvt__lane *hvt__trace_follow(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_key);
    if (lane.followed || !can_follow || pthread_setspecific(at_exit, &lane))
        return &lane;
    lane.followed = true;
    found_group();
    pthread_mutex_lock(&about_lock);
    lane.next = followed;
    followed = &lane;
    pthread_mutex_unlock(&about_lock);
    return &lane;
}

hvt__where hvt__trace_followed(const hvt__lane *l, char *ret_about, size_t room)
{
    hvt__where where = {.detail = -1};
    const hvt__lane *at;

    *ret_about = 0;
    pthread_mutex_lock(&about_lock);
    for (at = followed; at && at != l;)
        at = at->next;
    if (at) {
        where = hvt__trace_where(l);
        if (l->about)
            l->about(l->about_ctx, ret_about, room);
    }
    pthread_mutex_unlock(&about_lock);
    return where;
}

void hvt__trace_thread(hvt__thread thread)
{
    lane.thread = thread;
}

void hvt__trace_enable(bool on)
{
    atomic_store(&mine()->enabled, on);
}

static void replace_ring(hvt__event *event, size_t capacity)
{
    struct group *g = mine();

    hvt__trace_enable(false);
    pthread_mutex_lock(&g->lock);
    free(g->event);
    g->event = event;
    g->capacity = capacity;
    g->removed = g->kept = 0;
    g->lost = 0;
    pthread_mutex_unlock(&g->lock);
}

hvt_status hvt__trace_open(size_t capacity)
{
    hvt__event *event = malloc(capacity * sizeof *event);

    HVT_CHECK(event, E_MEM, "no memory for %zu events of a timeline", capacity);
    replace_ring(event, capacity);
    return HVT_OK;
}

void hvt__trace_close(void)
{
    replace_ring(NULL, 0);
}

size_t hvt__trace_take(hvt__event *ret_event, size_t most, int64_t *ret_left, int64_t *ret_lost)
{
    struct group *g = mine();
    size_t n = 0;

    pthread_mutex_lock(&g->lock);
    while (n < most && g->removed < g->kept)
        ret_event[n++] = g->event[g->removed++ % g->capacity];
    *ret_left = (int64_t)(g->kept - g->removed);
    *ret_lost = g->lost;
    pthread_mutex_unlock(&g->lock);
    return n;
}
