/*
 * The timeline: each rank keeps the phases that ended (base/trace.h), rank 0 asks for them where the ranks
 * meet anyway or every few updates, moves them to its own clock, and writes them as Chrome's trace events.
 *
 * A *window* is the updates to be seen; outside it nothing is kept and nothing is sent. Everything here is
 * collective and follows from options and counts that are equal on all ranks. Trouble with the file ends the
 * timeline, not the run.
 */
#include "timeline.h"
#include "base/trace.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROOM = 1 << 15,        /* events that a rank keeps */
    OFTEN = 10,            /* updates between two batches */
    BATCH_BYTES = 1 << 22, /* of all ranks' events that travel at once, if that is not too few of each */
    LEAST = 16,
    MOST = 4096,
    ROUNDS = 16 /* of comparing clocks */
};

/* What a rank gives at once. */
typedef struct batch {
    int64_t count, left, lost;
    hvt__event event[];
} batch;

struct hvt_timeline {
    hvt_world *world; /* borrowed */
    int64_t first, last;
    bool hearing;
    double zero;           /* rank 0's clock at the start */
    double *ahead;         /* [ranks] s */
    hvt__trace_file *file; /* rank 0; NULL: given up */
    size_t most;           /* events in a batch */
    batch *mine;
    char *all; /* [ranks] batches */
    int64_t lost;
};

static size_t batch_bytes(const hvt_timeline *t)
{
    return sizeof(batch) + t->most * sizeof(hvt__event);
}

/* ---- clocks ---- */

void hvt__clock_offset(const double *began, const double *ended, int rounds, int ranks, int r,
                       double *ret_ahead, double *ret_error)
{
    double low = -1e300, high = 1e300;

    for (int k = 0; k < rounds; k++) { /* nobody has what another one had not asked for yet */
        const double *a = began + (size_t)k * (size_t)ranks, *b = ended + (size_t)k * (size_t)ranks;

        low = a[r] - b[0] > low ? a[r] - b[0] : low;
        high = b[r] - a[0] < high ? b[r] - a[0] : high;
    }
    *ret_ahead = (low + high) / 2;
    *ret_error = (high - low) / 2;
}

/* Ranks of rank 0's host have its clock. */
static hvt_status compare_clocks(hvt_timeline *t, double *began, double *ended)
{
    hvt_world *w = t->world;
    int size = hvt_world_size(w);

    for (int k = 0; k < ROUNDS && hvt_world_nodes(w) > 1; k++) {
        double now = hvt__now();
        HVT_TRY(hvt_world_allgather(w, &now, sizeof now, began + (size_t)k * (size_t)size));
        now = hvt__now();
        HVT_TRY(hvt_world_allgather(w, &now, sizeof now, ended + (size_t)k * (size_t)size));
    }
    for (int r = 0; r < size; r++) {
        double error;
        if (!strcmp(hvt_world_host(w, r), hvt_world_host(w, 0)))
            continue;
        hvt__clock_offset(began, ended, ROUNDS, size, r, &t->ahead[r], &error);
        if (hvt_world_rank(w) == 0)
            HVT_DEBUG("timeline: the clock of rank %d (%s) is %.6f s ahead of rank 0's, give or take %.0f us",
                      r, hvt_world_host(w, r), t->ahead[r], 1e6 * error);
    }
    return HVT_OK;
}

static hvt_status set_clocks(hvt_timeline *t)
{
    size_t n = (size_t)ROUNDS * (size_t)hvt_world_size(t->world);
    double *began = malloc(n * sizeof *began), *ended = malloc(n * sizeof *ended);
    hvt_status s = began && ended ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare clocks");

    s = hvt_world_agree(t->world, s);
    if (s == HVT_OK)
        s = compare_clocks(t, began, ended);
    free(began);
    free(ended);
    return s;
}

/* ---- the file, on rank 0 ---- */

static hvt_status name_ranks(hvt_timeline *t)
{
    static const char *const thread[] = {[HVT__TRAINING] = "training", [HVT__EXCHANGING] = "exchange"};

    for (int r = 0; r < hvt_world_size(t->world); r++) {
        HVT_TRY(hvt__trace_file_add(
            t->file,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d (%s)\"}}", r, r,
            hvt_world_host(t->world, r)));
        HVT_TRY(hvt__trace_file_add(
            t->file, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
            r, r));
        for (int i = 0; i < HVT__THREAD_COUNT; i++)
            HVT_TRY(hvt__trace_file_add(
                t->file,
                "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", r,
                i, thread[i]));
    }
    return hvt__trace_file_flush(t->file);
}

/* Both ends are rounded to ns by themselves, so that what nests goes on nesting. Only the set-up began before
 * rank 0's process, if at all. */
static hvt_status write_event(hvt_timeline *t, int r, const hvt__event *e)
{
    double zero = t->zero + t->ahead[r];
    int64_t began = e->began > zero ? (int64_t)(1e9 * (e->began - zero)) : 0;
    int64_t took = (int64_t)(1e9 * (e->began + e->seconds - zero)) - began;
    char args[128];
    int n = snprintf(args, sizeof args, "\"step\":%" PRId64, e->step);

    if (e->detail >= 0)
        n += snprintf(args + n, sizeof args - (size_t)n, ",\"%s\":%" PRId32,
                      e->phase == HVT__WAIT ? "rank" : "bucket", e->detail);
    if (e->bytes)
        snprintf(args + n, sizeof args - (size_t)n, ",\"bytes\":%" PRId64, e->bytes);
    return hvt__trace_file_add(t->file,
                               "{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64
                               ".%03d,\"dur\":%" PRId64 ".%03d,\"args\":{%s}}",
                               hvt__phase_name((hvt__phase)e->phase), r, e->thread, began / 1000,
                               (int)(began % 1000), took / 1000, (int)(took % 1000), args);
}

static hvt_status write_batches(hvt_timeline *t)
{
    for (int r = 0; r < hvt_world_size(t->world); r++) {
        const batch *b = (const batch *)(const void *)(t->all + (size_t)r * batch_bytes(t));

        for (int64_t i = 0; i < b->count; i++)
            HVT_TRY(write_event(t, r, &b->event[i]));
    }
    return hvt__trace_file_flush(t->file);
}

/* A file that cannot be written is no reason to stop training. */
static void give_up(hvt_timeline *t, hvt_status s)
{
    if (s == HVT_OK)
        return;
    HVT_WARN("%s; the timeline ends here", hvt_last_error());
    if (t->file)
        hvt__trace_file_close(&t->file);
}

/* ---- life ---- */

/* FIRST-LAST, updates of the whole run, or all. */
hvt_status hvt__timeline_window(const hvt_options *o, int64_t *ret_first, int64_t *ret_last)
{
    const char *text = o->timeline_steps;
    char *end;
    long long first, last = 0;

    *ret_first = 1;
    *ret_last = INT64_MAX;
    if (!strcmp(text, "all"))
        return HVT_OK;
    first = strtoll(text, &end, 10);
    if (*end == '-')
        last = strtoll(end + 1, &end, 10);
    HVT_CHECK(!*end && first >= 1 && last >= first && last < LLONG_MAX, E_ARG,
              "--timeline-steps: expected FIRST-LAST, two numbers of updates from 1 on, or all, got '%s'",
              text);
    *ret_first = first;
    *ret_last = last;
    return HVT_OK;
}

/* All that a rank can fail at alone. */
static hvt_status prepare(hvt_timeline *t, const hvt_options *opts)
{
    size_t size = (size_t)hvt_world_size(t->world);

    HVT_TRY(hvt__timeline_window(opts, &t->first, &t->last));
    t->most = BATCH_BYTES / sizeof(hvt__event) / size;
    t->most = t->most < LEAST ? LEAST : t->most > MOST ? MOST : t->most;
    t->ahead = calloc(size, sizeof *t->ahead);
    t->mine = calloc(1, batch_bytes(t));
    t->all = malloc(size * batch_bytes(t));
    HVT_CHECK(t->ahead && t->mine && t->all, E_MEM, "no memory for a timeline of %zu ranks", size);
    HVT_TRY(hvt__trace_open(ROOM));
    if (hvt_world_rank(t->world))
        return HVT_OK;
    HVT_TRY(hvt__trace_file_open(opts, &t->file));
    return name_ranks(t);
}

static void drop(hvt_timeline *t)
{
    if (!t)
        return;
    hvt__trace_close();
    if (hvt__trace_file_close(&t->file) != HVT_OK)
        HVT_WARN("%s", hvt_last_error());
    free(t->ahead);
    free(t->mine);
    free(t->all);
    free(t);
}

hvt_status hvt__timeline_open(const hvt_options *opts, hvt_world *world, hvt_timeline **ret_timeline)
{
    hvt_timeline *t;
    hvt_status s;

    if (!*opts->timeline)
        return HVT_OK;
    t = calloc(1, sizeof *t);
    if (t) {
        t->world = world;
        s = prepare(t, opts);
    } else {
        s = HVT_FAIL(E_MEM, "no memory for a timeline");
    }
    s = hvt_world_agree(world, s);
    if (s == HVT_OK)
        s = set_clocks(t);
    if (s != HVT_OK) {
        drop(t);
        return s;
    }
    t->zero = hvt__now() - hvt__process_seconds();
    *ret_timeline = t;
    return HVT_OK;
}

void hvt__timeline_close(hvt_timeline **timeline)
{
    hvt_timeline *t = *timeline;

    if (t && hvt__timeline_flush(t) != HVT_OK)
        HVT_WARN("--timeline: the last events are missing: %s", hvt_last_error());
    if (t && t->lost)
        HVT_WARN("--timeline: %" PRId64 " events are missing, more than a rank keeps; fewer buckets or "
                 "--timeline-steps help",
                 t->lost);
    drop(t);
    *timeline = NULL;
}

/* ---- while it runs ---- */

/* The events so far, in as many batches as the rank with most needs. */
hvt_status hvt__timeline_flush(hvt_timeline *t)
{
    int64_t left, lost = 0;
    int size;

    if (!t)
        return HVT_OK;
    size = hvt_world_size(t->world);
    t->mine->left = (int64_t)hvt__trace_count(); /* sending leaves events, too: they wait */
    do {
        size_t most = t->mine->left < (int64_t)t->most ? (size_t)t->mine->left : t->most;
        t->mine->count = (int64_t)hvt__trace_take(t->mine->event, most);
        t->mine->left -= t->mine->count;
        t->mine->lost = hvt__trace_lost();
        HVT_TRY(hvt_world_allgather(t->world, t->mine, batch_bytes(t), t->all));
        left = lost = 0;
        for (int r = 0; r < size; r++) {
            const batch *b = (const batch *)(const void *)(t->all + (size_t)r * batch_bytes(t));
            left = b->left > left ? b->left : left;
            lost += b->lost;
        }
        if (t->file)
            give_up(t, write_batches(t));
    } while (left);
    t->lost = t->file ? lost : 0; /* rank 0 tells */
    return HVT_OK;
}

hvt_status hvt__timeline_at(hvt_timeline *t, int64_t steps)
{
    if (!t)
        return HVT_OK;
    if (t->hearing && (steps >= t->last || (steps - t->first + 1) % OFTEN == 0))
        HVT_TRY(hvt__timeline_flush(t));
    t->hearing = steps + 1 >= t->first && steps < t->last;
    hvt__trace_enable(t->hearing);
    return HVT_OK;
}
