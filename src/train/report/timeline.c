/*
 * The timeline. Each rank stores its finished phases (base/trace.h). Every few updates, and at the end of
 * each epoch, rank 0 gathers them, converts them to its own clock and writes them as Chrome trace events.
 *
 * The *window* is the range of updates to show; outside it nothing is stored and nothing is sent. Everything
 * here is collective, and depends on options and counts that are equal on all ranks. An error of the file
 * ends the timeline, not the run.
 *
 * The file is a JSON array of events. Readers of Chrome traces accept such an array without its end, so the
 * file of a killed run is readable up to the last flush.
 */
#include "report_impl.h"
#include "base/trace.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ROOM = 1 << 15, /* events that a rank stores */
    OFTEN = 10,     /* updates between two batches */
    MOST = 256,     /* events in a batch */
    ROUNDS = 16     /* of comparing clocks */
};

/* What a rank contributes to one gather. */
typedef struct batch {
    int64_t count, left, lost;
    hvt__event event[MOST];
} batch;

struct hvt_timeline {
    hvt_world *world; /* borrowed */
    int64_t first, last;
    int stages; /* devices of --split */
    bool recording;
    double zero;      /* rank 0's clock at the start */
    double *ahead;    /* [ranks] s */
    const char *path; /* borrowed */
    FILE *file;       /* rank 0; NULL: given up */
    batch mine, *all; /* [ranks] */
    int64_t lost;
};

void hvt__clock_offset(const double *began, const double *ended, int rounds, int ranks, int r,
                       double *ret_ahead, double *ret_error)
{
    double low = -1e300, high = 1e300;

    for (int k = 0; k < rounds; k++) { /* no gather ends before every rank has begun it */
        const double *a = began + (size_t)k * (size_t)ranks, *b = ended + (size_t)k * (size_t)ranks;

        low = a[r] - b[0] > low ? a[r] - b[0] : low;
        high = b[r] - a[0] < high ? b[r] - a[0] : high;
    }
    *ret_ahead = (low + high) / 2;
    *ret_error = (high - low) / 2;
}

/* Compares the ranks' clocks with rank 0's. Ranks on the host of rank 0 share its clock. */
static hvt_status compare_clocks(hvt_timeline *t)
{
    hvt_world *w = t->world;
    size_t size = (size_t)hvt_world_size(w);
    double *began, *ended, now, error;
    hvt_status s;

    if (hvt_world_nodes(w) == 1)
        return HVT_OK;
    began = calloc(2 * ROUNDS * size, sizeof *began);
    s = began ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare clocks");
    HVT_TRY_OR(done, hvt_world_agree(w, s));
    ended = began + ROUNDS * size;
    for (size_t k = 0; k < ROUNDS; k++) {
        now = hvt__now();
        HVT_TRY_OR(done, hvt_world_allgather(w, &now, sizeof now, began + k * size));
        now = hvt__now();
        HVT_TRY_OR(done, hvt_world_allgather(w, &now, sizeof now, ended + k * size));
    }
    for (int r = 0; r < (int)size; r++) {
        if (!strcmp(hvt_world_host(w, r), hvt_world_host(w, 0)))
            continue;
        hvt__clock_offset(began, ended, ROUNDS, (int)size, r, &t->ahead[r], &error);
        if (hvt_world_rank(w) == 0)
            HVT_DEBUG("timeline: the clock of rank %d (%s) is %.6f s ahead of rank 0's, give or take %.0f us",
                      r, hvt_world_host(w, r), t->ahead[r], 1e6 * error);
    }
done:
    free(began);
    return s;
}

/* Renames the trace that a resumed run would replace to PATH.1, or to the next free number. */
static hvt_status keep_earlier(const char *path)
{
    char kept[PATH_MAX];
    int n = 0;

    if (access(path, F_OK))
        return HVT_OK;
    do
        HVT_TRY(hvt__path(kept, "%s.%d", path, ++n));
    while (access(kept, F_OK) == 0);
    HVT_CHECK(rename(path, kept) == 0, E_IO, "--timeline %s: cannot rename the earlier one to %s: %s", path,
              kept, strerror(errno));
    HVT_INFO("note: --timeline %s: the earlier one is %s now", path, kept);
    return HVT_OK;
}

static hvt_status open_file(hvt_timeline *t, const hvt_options *opts)
{
    const char *path = opts->timeline;
    struct stat info;

    HVT_CHECK(stat(path, &info) || S_ISREG(info.st_mode), E_IO, "--timeline %s: is not a regular file", path);
    HVT_TRY(hvt__report_check_path(opts, "--timeline", path));
    HVT_TRY(hvt__own_file_check(HVT__TIMELINE, "--timeline", path));
    if (*opts->resume)
        HVT_TRY(keep_earlier(path));
    t->path = path;
    t->file = fopen(path, "we");
    HVT_CHECK(t->file, E_IO, "--timeline %s: cannot write: %s", path, strerror(errno));
    fputs("[\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":0,\"args\":{\"sort_index\":0}}", t->file);
    return HVT_OK;
}

static hvt_status flush_file(hvt_timeline *t)
{
    HVT_CHECK(fflush(t->file) == 0 && !ferror(t->file), E_IO, "--timeline %s: cannot write: %s", t->path,
              strerror(errno));
    return HVT_OK;
}

static void name_ranks(hvt_timeline *t)
{
    static const char *const thread[] = {[HVT__TRAINING] = "training", [HVT__EXCHANGING] = "exchange"};

    for (int r = 0; r < hvt_world_size(t->world); r++) {
        char who[24] = "hvtrain";

        if (hvt_world_size(t->world) > 1)
            snprintf(who, sizeof who, "rank %d", r);
        fprintf(t->file,
                ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"%s (%s)\"}}"
                ",\n{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}}",
                r, who, hvt_world_host(t->world, r), r, r);
        for (int i = 0; i < HVT__THREAD_COUNT; i++)
            fprintf(
                t->file,
                ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}",
                r, i, thread[i]);
        for (int k = 1; k < t->stages; k++)
            fprintf(t->file,
                    ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":"
                    "\"device %d\"}}",
                    r, HVT__EXCHANGING + k, k);
    }
}

/* Start and end are rounded to ns separately, so that nested events remain nested. Only the set-up can start
 * before rank 0's process did. */
static void write_event(hvt_timeline *t, int r, const hvt__event *e)
{
    double zero = t->zero + t->ahead[r];
    int64_t began = e->began > zero ? (int64_t)(1e9 * (e->began - zero)) : 0;
    int64_t took = (int64_t)(1e9 * (e->began + e->seconds - zero)) - began;
    char args[128];
    int n = snprintf(args, sizeof args, "\"step\":%" PRId64, e->step);

    if (e->detail >= 0)
        n += snprintf(args + n, sizeof args - (size_t)n, ",\"%s\":%" PRId32,
                      e->phase == HVT__WAIT                                   ? "rank"
                      : e->phase == HVT__FORWARD || e->phase == HVT__BACKWARD ? "micro_batch"
                                                                              : "bucket",
                      e->detail);
    if (e->bytes)
        snprintf(args + n, sizeof args - (size_t)n, ",\"bytes\":%" PRId64, e->bytes);
    fprintf(t->file,
            ",\n{\"name\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%" PRId64 ".%03d,\"dur\":%" PRId64
            ".%03d,\"args\":{%s}}",
            hvt__phase_name((hvt__phase)e->phase), r, e->thread, began / 1000, (int)(began % 1000),
            took / 1000, (int)(took % 1000), args);
}

static hvt_status write_batches(hvt_timeline *t)
{
    for (int r = 0; r < hvt_world_size(t->world); r++)
        for (int64_t i = 0; i < t->all[r].count; i++)
            write_event(t, r, &t->all[r].event[i]);
    return flush_file(t);
}

/* Ends the timeline if the file cannot be written. Training continues. */
static void give_up(hvt_timeline *t, hvt_status s)
{
    if (s == HVT_OK)
        return;
    HVT_WARN("%s; the timeline ends here", hvt_last_error());
    fclose(t->file);
    t->file = NULL;
}

/* The part of opening that can fail on a single rank. */
static hvt_status prepare(hvt_timeline *t, const hvt_options *opts, const hvt_resolved *set, hvt_world *world)
{
    size_t size = (size_t)hvt_world_size(world);

    t->world = world;
    t->stages = set->stages;
    t->first = set->first_shown;
    t->last = set->last_shown;
    t->ahead = calloc(size, sizeof *t->ahead);
    t->all = malloc(size * sizeof *t->all);
    HVT_CHECK(t->ahead && t->all, E_MEM, "no memory for a timeline of %zu ranks", size);
    HVT_TRY(hvt__trace_open(ROOM));
    if (hvt_world_rank(t->world))
        return HVT_OK;
    HVT_TRY(open_file(t, opts));
    name_ranks(t);
    return flush_file(t);
}

static void drop(hvt_timeline *t)
{
    if (!t)
        return;
    hvt__trace_close();
    if (t->file && (fputs("\n]\n", t->file) < 0 || fclose(t->file)))
        HVT_WARN("--timeline %s: cannot write its end: %s", t->path, strerror(errno));
    free(t->ahead);
    free(t->all);
    free(t);
}

hvt_status hvt__timeline_open(const hvt_options *opts, const hvt_resolved *set, hvt_world *world,
                              hvt_timeline **ret_timeline)
{
    hvt_timeline *t;
    hvt_status s;

    if (!*opts->timeline)
        return HVT_OK;
    t = calloc(1, sizeof *t);
    s = t ? prepare(t, opts, set, world) : HVT_FAIL(E_MEM, "no memory for a timeline");
    s = hvt_world_agree(world, s);
    if (s == HVT_OK)
        s = compare_clocks(t);
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

/* Repeats gathers until the rank with the most events has sent all of them. */
hvt_status hvt__timeline_flush(hvt_timeline *t)
{
    int64_t left, lost;

    if (!t)
        return HVT_OK;
    do { /* a gather adds an event, too, for the next gather or flush */
        t->mine.count = (int64_t)hvt__trace_take(t->mine.event, MOST, &t->mine.left, &t->mine.lost);
        HVT_TRY(hvt_world_allgather(t->world, &t->mine, sizeof t->mine, t->all));
        left = lost = 0;
        for (int r = 0; r < hvt_world_size(t->world); r++) {
            left = t->all[r].left > left ? t->all[r].left : left;
            lost += t->all[r].lost;
        }
        if (t->file)
            give_up(t, write_batches(t));
    } while (left);
    t->lost = t->file ? lost : 0; /* rank 0 warns */
    return HVT_OK;
}

hvt_status hvt__timeline_at(hvt_timeline *t, int64_t steps)
{
    if (!t)
        return HVT_OK;
    if (t->recording && (steps >= t->last || (steps - t->first + 1) % OFTEN == 0))
        HVT_TRY(hvt__timeline_flush(t));
    t->recording = steps + 1 >= t->first && steps < t->last;
    hvt__trace_enable(t->recording);
    return HVT_OK;
}
