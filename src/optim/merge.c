/*
 * HVT_BUCKET_AUTO: which gradients travel together, from what was measured.
 *
 * The problem is MG-WFBP's: a message of n floats takes alpha + beta * n; messages follow one another, and
 * each begins when the last of its gradients is final and the one before has ended; when the last one ends is
 * to be least. Source: Shi, Chu and Li, "MG-WFBP: Efficient Data Communication for Distributed Synchronous
 * SGD Algorithms", IEEE INFOCOM 2019. Their rule merges a layer into the next one if that one's gradient is
 * final less than alpha after the message could begin. It looks one layer ahead, so that in a row of layers
 * each of which is final a little later, the first ones wait for the last. For a few hundred layers the best
 * of all plans costs nothing either: the soonest end of the messages up to layer j is the least, over the
 * layer i before the last message, of what that message makes of the soonest end up to i. A test holds it
 * against every plan and against the rule.
 *
 * All that holds where sums begin before backward ends: with a worker, or a queue of their own. Elsewhere
 * they are made in hvt_distopt_step(), one after the other, and nothing is hidden by cutting: the plan is one
 * message, in pieces where it is long (hvt__bucket_lay()). What was measured is kept, so that a plan can be
 * made anew when a worker comes or goes.
 *
 * Rank 0's times count, and its plan is broadcast: clocks differ, buckets must not. The times are of backward
 * on this device, the least of two steps; alpha and beta are those of an allreduce, also where the update is
 * sharded, which costs about as much per byte.
 */
#include "dist.h"
#include "base_impl.h"

#include <float.h>
#include <stdlib.h>
#include <string.h>

enum { WARM_UP = 1, STEPS = 3 /* measured ones and warm-up */ };

int hvt__bucket_merge(size_t start, const size_t *end, const double *ready, int layers, double alpha,
                      double beta, hvt__merge *best, size_t *ret_end)
{
    int n = 0;

    for (int j = 0; j < layers; j++) {
        best[j] = (hvt__merge){.ends = DBL_MAX};
        for (int i = -1; i < j; i++) { /* the last message holds layers i + 1 ... j */
            double free_at = i < 0 ? 0 : best[i].ends, begins = ready[j] > free_at ? ready[j] : free_at;
            double ends = begins + alpha + beta * (double)(end[j] - (i < 0 ? start : end[i]));

            if (ends < best[j].ends) {
                best[j].ends = ends;
                best[j].before = i;
            }
        }
    }
    for (int j = layers - 1; j >= 0; j = best[j].before)
        best[j].closes = true;
    for (int j = 0; j < layers; j++)
        if (best[j].closes)
            ret_end[n++] = end[j];
    return n;
}

/* ---- messages ---- */

/* Median seconds of small and of large sums, in turns. */
static hvt_status time_messages(hvt_distopt *d, void *buf, const size_t count[2], double ret_seconds[2])
{
    enum { ROUNDS = 9 };
    double seconds[2][ROUNDS];
    hvt_ticket ticket;

    for (int r = -2; r < ROUNDS; r++) /* two to warm up */
        for (int i = 0; i < 2; i++) {
            double start;

            HVT_TRY(hvt_world_barrier(hvt_comm_world(d->comm)));
            start = hvt__now();
            HVT_TRY(hvt_comm_allreduce(d->comm, buf, count[i], d->opts.wire, &ticket));
            HVT_TRY(hvt_comm_wait(d->comm, ticket));
            HVT_TRY(hvt_device_sync(d->optim->m->dev));
            seconds[i][r < 0 ? 0 : r] = hvt__now() - start;
        }
    for (int i = 0; i < 2; i++) {
        hvt__sort(seconds[i], ROUNDS);
        ret_seconds[i] = seconds[i][ROUNDS / 2];
    }
    return HVT_OK;
}

/* The line through two sizes. */
static hvt_status measure_line(hvt_distopt *d, struct hvt__timing *t)
{
    const size_t count[2] = {1 << 12, 1 << 19};
    hvt_device *dev = d->optim->m->dev;
    double seconds[2] = {0, 0};
    void *buf;
    hvt_status s;

    HVT_TRY(hvt_comm_alloc(d->comm, count[1] * sizeof(float), &buf));
    s = hvt_world_agree(hvt_comm_world(d->comm), dev->ops->zero(dev, buf, count[1] * sizeof(float)));
    if (s == HVT_OK)
        s = time_messages(d, buf, count, seconds);
    hvt_comm_release(d->comm, buf);
    HVT_TRY(s);
    t->beta = (seconds[1] - seconds[0]) / (double)(count[1] - count[0]);
    t->beta = t->beta > 0 ? t->beta : 0;
    t->alpha = seconds[0] - t->beta * (double)count[0];
    t->alpha = t->alpha > 0 ? t->alpha : 0;
    if (d->powersgd) { /* twice as many messages, of so much less */
        t->alpha *= 2;
        t->beta *= (double)hvt__powersgd_bytes(d) / (double)(d->optim->m->arena_count * sizeof(float));
    }
    return HVT_OK;
}

/* ---- life ---- */

void hvt__timing_close(struct hvt__timing **timing)
{
    struct hvt__timing *t = *timing;

    *timing = NULL;
    if (!t)
        return;
    free(t->end);
    free(t->cut);
    free(t->ready);
    free(t->best);
    free(t);
}

static hvt_status open_local(const hvt_model *m, struct hvt__timing **ret_timing)
{
    size_t most = (size_t)m->nparam_tensors + 1;
    struct hvt__timing *t = calloc(1, sizeof *t);

    HVT_CHECK(t, E_MEM, "no memory to time %zu layers", most);
    *ret_timing = t;
    t->end = malloc(most * sizeof *t->end);
    t->cut = malloc(most * sizeof *t->cut);
    t->ready = malloc(most * sizeof *t->ready);
    t->best = malloc(most * sizeof *t->best);
    HVT_CHECK(t->end && t->cut && t->ready && t->best, E_MEM, "no memory to time %zu layers", most);
    t->layers = hvt__layer_ends(m, t->end);
    for (int i = 0; i < t->layers; i++)
        t->ready[i] = DBL_MAX;
    return HVT_OK;
}

hvt_status hvt__timing_open(hvt_distopt *d)
{
    hvt_world *world = hvt_comm_world(d->comm);
    struct hvt__timing *t = NULL;
    hvt_status s;

    if (hvt_world_size(world) == 1) /* nothing travels */
        return HVT_OK;
    s = hvt_world_agree(world, open_local(d->optim->m, &t));
    if (s == HVT_OK)
        s = measure_line(d, t);
    if (s != HVT_OK) {
        hvt__timing_close(&t);
        return s;
    }
    d->timing = t;
    return HVT_OK;
}

/* ---- steps ---- */

hvt_status hvt__timing_mark(hvt_distopt *d, size_t mark)
{
    struct hvt__timing *t = d->timing;
    double now;

    if (t->known)
        return HVT_OK;
    HVT_TRY(hvt_device_sync(d->optim->m->dev)); /* the queue has come this far: only in measured steps */
    now = hvt__now();
    if (t->at == 0)
        t->first = now;
    for (; t->at < t->layers && t->end[t->at] <= mark; t->at++)
        if (t->steps > WARM_UP && now - t->first < t->ready[t->at])
            t->ready[t->at] = now - t->first;
    return HVT_OK;
}

/* Do sums begin while backward goes on? Those that are the update, in the memory of a node, do not. */
static bool ahead(const hvt_distopt *d)
{
    return (d->between || hvt_comm_ahead(d->comm)) && !(d->sharded && hvt__sharded_fused(d->sharded));
}

/* Once: whoever plans again and again (tune) learns nothing from a second note. */
static void tell(hvt_distopt *d, hvt_log_level level)
{
    const struct hvt__timing *t = d->timing;
    size_t least = SIZE_MAX, most = 0;

    if (d->told_plan)
        level = HVT_LOG_DEBUG;
    d->told_plan = true;
    for (int b = 0; b < d->nbucket; b++) {
        least = d->bucket_bytes[b] < least ? d->bucket_bytes[b] : least;
        most = d->bucket_bytes[b] > most ? d->bucket_bytes[b] : most;
    }
    hvt__log(level,
             "note: bucket auto: %d of %.2f to %.2f MiB for gradients of %d layers over %.2f ms; a sum takes "
             "%.1f us and %.3f ms a MiB%s",
             d->nbucket, (double)least / (1 << 20), (double)most / (1 << 20), t->layers,
             1e3 * t->ready[t->layers - 1], 1e6 * t->alpha, 1e3 * t->beta * (1 << 20) / sizeof(float),
             ahead(d) ? "" : ", and begins after backward");
}

static hvt_status plan(hvt_distopt *d, hvt_log_level level)
{
    struct hvt__timing *t = d->timing;
    hvt_world *world = hvt_comm_world(d->comm);
    const hvt_model *m = d->optim->m;
    hvt_bucket *bucket = NULL;
    int64_t n;
    int count = 0;
    hvt_status s;

    t->cut[0] = t->end[t->layers - 1];
    n = 1;
    if (hvt_world_rank(world) == 0 && ahead(d))
        n = hvt__bucket_merge(hvt__bucket_start(m, hvt__rider_alone(d)), t->end, t->ready, t->layers,
                              t->alpha, t->beta, t->best, t->cut);
    HVT_TRY(hvt_world_broadcast(world, &n, sizeof n, 0));
    HVT_TRY(hvt_world_broadcast(world, t->cut, (size_t)n * sizeof *t->cut, 0));
    s = hvt__bucket_lay(m, t->cut, (int)n, d->powersgd ? HVT_BUCKET_ALL : HVT_BUCKET_DEFAULT, d->opts.wire,
                        hvt__rider_alone(d), &bucket, &count);
    HVT_TRY(hvt__distopt_take_plan(d, s, bucket, count));
    if (hvt_world_rank(world) == 0)
        tell(d, level);
    return HVT_OK;
}

hvt_status hvt__timing_begin(hvt_distopt *d)
{
    struct hvt__timing *t = d->timing;

    if (t->known)
        return HVT_OK;
    t->at = 0;
    if (t->steps++ < STEPS)
        return HVT_OK;
    t->known = true;
    return plan(d, HVT_LOG_INFO);
}

hvt_status hvt__timing_replan(hvt_distopt *d)
{
    return d->timing->known ? plan(d, HVT_LOG_DEBUG) : HVT_OK;
}
