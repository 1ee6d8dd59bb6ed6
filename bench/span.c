/* Rehearsals (see span.h): their order, and the prediction from them. */
#include "span_impl.h"
#include "base_impl.h"
#include "schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

rehearsal span_reality, span_reh[SPAN_LIST + 2];
int span_rehearsals;

/* ---- what is predicted ---- */

/* The mean of the middle half of sorted times: it ignores a thread that is preempted now and then, but not a
 * job that alternates between two speeds. */
double span_typical(const span_opts *o, const double *sorted)
{
    const int first = o->steps / 4, end = o->steps - o->steps / 4;
    double sum = 0;

    if (o->least)
        return sorted[0];
    for (int s = first; s < end; s++)
        sum += sorted[s];
    return sum / (end - first);
}

static double *times; /* [2 * steps] */

/* An entry of the tape. */
static double entry(const span_opts *o, const rehearsal *r, long i)
{
    for (int s = 0; s < o->steps; s++)
        times[s] = (double)r->tapes[s].at[i];
    hvt__sort(times, (size_t)o->steps);
    return span_typical(o, times);
}

/* Schedules the run of each step separately: its end depends on the slowest thread and is later than with
 * jobs of mean length. */
static void predict_run(const span_opts *o, const rehearsal *r, const run *n, parts *p)
{
    double *sum = times, *end = times + o->steps, work;

    if (r->threads > 1 && n->jobs > 1)
        p->barrier += entry(o, r, n->first) > SPIN_SECONDS ? r->asleep : r->barrier;
    for (int s = 0; s < o->steps; s++) {
        const float *jobs = r->tapes[s].at + n->first + 1;

        sum[s] = 0;
        for (int i = 0; i < n->jobs; i++)
            sum[s] += (double)jobs[i];
        end[s] = n->jobs > 1 ? schedule_run(jobs, n->jobs, r->threads, NULL) : sum[s];
    }
    hvt__sort(sum, (size_t)o->steps);
    hvt__sort(end, (size_t)o->steps);
    work = span_typical(o, sum) / r->threads;
    p->work += work;
    p->imbalance += span_typical(o, end) - work;
}

/* The time without a limit on memory bandwidth. */
double span_free_time(const parts *p)
{
    return p->work + p->imbalance + p->barrier + p->serial;
}

double span_time_of(const parts *p)
{
    return span_free_time(p) + p->bandwidth;
}

/* The least time in which T threads move an op's bytes. */
static double moving(const span_opts *o, int threads, double bytes, double alone)
{
    double core = 1e9 * span_machine.copy, rate;

    core = bytes > core * alone ? bytes / alone : core;
    rate = threads * core;
    rate = o->socket > 0 && 1e9 * o->socket < rate ? 1e9 * o->socket : rate;
    return bytes / rate;
}

static void predict(const span_opts *o, rehearsal *r)
{
    hvt__sort(r->took, (size_t)o->steps);
    r->of_calls = span_grown(NULL, sizeof *r->of_calls * (size_t)r->call_count);
    for (int i = 0; i < r->call_count; i++)
        r->of_calls[i] = (parts){.serial = entry(o, r, r->calls[i].serial)};
    for (const run *n = r->runs; n < r->runs + r->run_count; n++)
        predict_run(o, r, n, &r->of_calls[n->call]);
    if (r->call_count != span_reh->call_count) {
        fprintf(stderr, "bench_step: a step has %d ops on %d threads and %d on one\n", r->call_count,
                r->threads, span_reh->call_count);
        exit(1);
    }
    for (int i = PSEUDO; r->threads > 1 && !r->pool && i < r->call_count; i++) {
        parts *p = &r->of_calls[i];
        const double least =
            moving(o, r->threads, r->calls[i].what.bytes, span_free_time(&span_reh->of_calls[i]));

        p->bandwidth = least > span_free_time(p) ? least - span_free_time(p) : 0;
    }
}

void span_add_parts(parts *sum, const parts *p)
{
    sum->work += p->work;
    sum->imbalance += p->imbalance;
    sum->barrier += p->barrier;
    sum->serial += p->serial;
    sum->bandwidth += p->bandwidth;
}

parts span_total_of(const rehearsal *r)
{
    parts sum = {0};

    for (int i = 0; i < r->call_count; i++)
        span_add_parts(&sum, &r->of_calls[i]);
    return sum;
}

/* ---- the command ---- */

int span_read(const char *list, int threads[SPAN_LIST])
{
    int count = 0;

    for (const char *at = list;; at++) {
        char *end;
        const long n = strtol(at, &end, 10);

        if (end == at || n < 1 || n > HVT_MAX_THREADS || count == SPAN_LIST ||
            (count && n <= threads[count - 1]) || (*end && *end != ','))
            return 0;
        threads[count++] = (int)n;
        if (!*end)
            return count;
        at = end;
    }
}

static void open_rehearsal(rehearsal *r, int threads, int steps)
{
    r->threads = threads;
    r->took = span_grown(NULL, sizeof *r->took * (size_t)steps);
    r->tapes = span_grown(NULL, sizeof *r->tapes * (size_t)steps);
    memset(r->tapes, 0, sizeof *r->tapes * (size_t)steps);
}

static void plan_rehearsals(const span_opts *o)
{
    const int always[] = {1, o->cores->threads};
    int n[SPAN_LIST + 2], count = o->count;

    memcpy(n, o->threads, sizeof *n * (size_t)count);
    for (int i = 0; i < 2; i++) {
        int at = 0;

        while (at < count && n[at] < always[i])
            at++;
        if (at < count && n[at] == always[i])
            continue;
        memmove(n + at + 1, n + at, sizeof *n * (size_t)(count - at));
        n[at] = always[i];
        count++;
    }
    span_rehearsals = count;
    for (int i = 0; i < count; i++)
        open_rehearsal(&span_reh[i], n[i], o->steps);
    open_rehearsal(&span_reality, o->cores->threads, o->steps);
    span_reality.pool = span_open_pool(o->cores, o->cores->threads);
}

static void close_rehearsal(rehearsal *r, int steps)
{
    for (int s = 0; s < steps; s++)
        free(r->tapes[s].at);
    free(r->tapes), free(r->took), free(r->calls), free(r->runs), free(r->of_calls);
    hvt__thread_pool_close(&r->pool);
}

enum { WARM = 2 }; /* the first step may do work that later ones do not */

void span_run(const span_opts *o)
{
    times = span_grown(NULL, 2 * sizeof *times * (size_t)o->steps);
    plan_rehearsals(o);
    span_measure(o);
    for (int i = 0; i < WARM; i++) {
        o->load();
        o->train();
    }
    for (int s = -1; s < o->steps; s++) {
        span_rehearse_step(o, &span_reality, s);
        o->company(true);
        for (rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++)
            span_rehearse_step(o, r, s);
        o->company(false);
    }
    hvt__thread_pool_rehearse(hvt__cpu(o->dev)->pool, 0, NULL, NULL);
    o->dev->threads = o->cores->threads;
    for (rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++)
        predict(o, r);
    predict(o, &span_reality);
    span_print(o);
    for (rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++)
        close_rehearsal(r, o->steps);
    close_rehearsal(&span_reality, o->steps);
    free(times);
}
