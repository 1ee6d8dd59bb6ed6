/*
 * Lanes. Only its thread writes a lane. Other threads read three words of it, stored relaxed: update,
 * position (phase and detail), start time. They may also query its subject, under a lock that is taken once
 * per batch.
 *
 * Invariant: all time from the lane's first event to `mark`, less pauses, is attributed to exactly one phase.
 * Phases nested deeper than the stack count as the innermost one that fits.
 *
 * Events of all threads go into one ring buffer under a lock, which is taken only while recording is enabled.
 */
#include "base/trace.h"

#include <pthread.h>
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
};

static _Thread_local hvt__lane lane;
static pthread_mutex_t about_lock = PTHREAD_MUTEX_INITIALIZER;
static const hvt__lane *followed; /* guarded by about_lock; NULL: no thread, or it has ended */
static pthread_key_t at_exit;     /* unfollows a thread that ends */
static bool can_follow;
static _Thread_local struct {
    hvt__name_fn *of;
    const void *ctx;
} namer;

static _Atomic uint64_t progress;
static atomic_bool enabled;
static struct {
    pthread_mutex_t lock;
    hvt__event *event; /* [capacity] the oldest at taken % capacity */
    size_t capacity, taken, kept;
    int64_t lost;
} ring = {.lock = PTHREAD_MUTEX_INITIALIZER};

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

    pthread_mutex_lock(&ring.lock);
    if (ring.kept - ring.taken < ring.capacity)
        ring.event[ring.kept++ % ring.capacity] = e;
    else
        ring.lost++;
    pthread_mutex_unlock(&ring.lock);
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
    if (enabled)
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
    if (lane.in_step && enabled)
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
    atomic_fetch_add_explicit(&progress, 1, memory_order_relaxed);
}

uint64_t hvt__trace_progress(void)
{
    return atomic_load_explicit(&progress, memory_order_relaxed);
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
    pthread_mutex_lock(&about_lock);
    if (followed == ended)
        followed = NULL;
    pthread_mutex_unlock(&about_lock);
}

static void make_key(void)
{
    can_follow = !pthread_key_create(&at_exit, unfollow);
}

hvt__lane *hvt__trace_follow(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, make_key);
    if (can_follow && !pthread_setspecific(at_exit, &lane)) {
        pthread_mutex_lock(&about_lock);
        followed = &lane;
        pthread_mutex_unlock(&about_lock);
    }
    return &lane;
}

hvt__where hvt__trace_followed(const hvt__lane *l, char *ret_about, size_t room)
{
    hvt__where where = {.detail = -1};

    *ret_about = 0;
    pthread_mutex_lock(&about_lock);
    if (l == followed) {
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
    enabled = on;
}

static void replace_ring(hvt__event *event, size_t capacity)
{
    hvt__trace_enable(false);
    pthread_mutex_lock(&ring.lock);
    free(ring.event);
    ring.event = event;
    ring.capacity = capacity;
    ring.taken = ring.kept = 0;
    ring.lost = 0;
    pthread_mutex_unlock(&ring.lock);
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
    size_t n = 0;

    pthread_mutex_lock(&ring.lock);
    while (n < most && ring.taken < ring.kept)
        ret_event[n++] = ring.event[ring.taken++ % ring.capacity];
    *ret_left = (int64_t)(ring.kept - ring.taken);
    *ret_lost = ring.lost;
    pthread_mutex_unlock(&ring.lock);
    return n;
}
