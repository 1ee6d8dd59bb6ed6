/* Records what the ops and the pool's runs of a rehearsal's steps take, on its tape (see span_impl.h). */
#include "span_impl.h"
#include "base_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The step in progress. */
static struct {
    rehearsal *of; /* NULL: no recording */
    tape *to;
    bool learning;
    bool of_processor; /* times are those of the thread's processor clock */
    int call, outside; /* in progress; READING or BETWEEN when no op is */
    int next_call, next_run;
    double since, run_end;         /* the last event; the last run's end */
    double clock;                  /* see clock_cost() */
    double serial, pseudo[PSEUDO]; /* outside of runs so far: of the current op, of the others */
} rec;

static double of_processor(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double now(void)
{
    return rec.of_processor ? of_processor() : hvt__now();
}

/* The cost of timing for every job of rec and every gap between two events: reading the processor clock is a
 * system call. */
static double clock_cost(void)
{
    double least = 1;

    for (int i = 0; rec.of_processor && i < 1000; i++) {
        const double start = of_processor(), took = of_processor() - start;

        least = took < least ? took : least;
    }
    return rec.of_processor ? least : 0;
}

void *span_grown(void *p, size_t bytes)
{
    p = realloc(p, bytes);
    if (!p) {
        fprintf(stderr, "bench_step: no memory for %zu bytes of recorded times\n", bytes);
        exit(1);
    }
    return p;
}

static void reserve(tape *t, int more)
{
    if (t->count + more > t->room) {
        t->room = 2 * (t->count + more);
        t->at = span_grown(t->at, sizeof *t->at * (size_t)t->room);
    }
}

static void push(double seconds)
{
    rec.to->at[rec.to->count++] = (float)seconds;
}

static void not_repeated(const char *what)
{
    fprintf(stderr, "bench_step: a step on %d threads does not repeat the %s of the one before: %s\n",
            rec.of->threads, what,
            rec.call < rec.of->call_count ? rec.of->calls[rec.call].what.name : "more");
    exit(1);
}

static void spend(double now)
{
    const double took = now - rec.since > rec.clock ? now - rec.since - rec.clock : 0;

    *(rec.call < PSEUDO ? &rec.pseudo[rec.call] : &rec.serial) += took;
    rec.since = now;
}

static void add_call(const op_call *what)
{
    rehearsal *r = rec.of;

    if (r->call_count == r->call_room) {
        r->call_room = 2 * r->call_room + PSEUDO;
        r->calls = span_grown(r->calls, sizeof *r->calls * (size_t)r->call_room);
    }
    r->calls[r->call_count++] = (call){.what = *what};
}

static void begin_op(const op_call *what)
{
    if (!rec.of)
        return;
    spend(now());
    rec.serial = 0;
    rec.call = rec.next_call++;
    if (rec.learning)
        add_call(what);
    else if (rec.call >= rec.of->call_count || strcmp(rec.of->calls[rec.call].what.name, what->name) != 0)
        not_repeated("ops");
}

static void end_op(void)
{
    if (!rec.of)
        return;
    spend(now());
    reserve(rec.to, 1);
    rec.of->calls[rec.call].serial = rec.to->count;
    push(rec.serial);
    rec.call = rec.outside;
}

static void begin_run(int jobs)
{
    rehearsal *r = rec.of;
    const int n = rec.next_run++;

    reserve(rec.to, jobs + 1);
    if (rec.learning) {
        if (n == r->run_room) {
            r->run_room = 2 * n + 64;
            r->runs = span_grown(r->runs, sizeof *r->runs * (size_t)r->run_room);
        }
        r->runs[n] = (run){rec.call, jobs, rec.to->count};
        r->run_count = n + 1;
    } else if (n >= r->run_count || r->runs[n].jobs != jobs || r->runs[n].call != rec.call) {
        not_repeated("runs");
    }
}

/* Runs all jobs of a run, on this thread or by the real ones. */
static void rehearse(void *ctx, int jobs, hvt_job_fn *fn, void *fn_ctx)
{
    double last, end;

    if (!rec.of) {
        for (int i = 0; i < jobs; i++)
            fn(fn_ctx, i, 0);
        return;
    }
    last = now();
    spend(last);
    begin_run(rec.of->pool ? 1 : jobs);
    push(last - rec.run_end);
    last = now();
    if (rec.of->pool) {
        hvt__parallel_for(rec.of->pool, jobs, fn, fn_ctx);
        end = now();
        push(end - last);
        last = end;
    }
    for (int i = 0; i < jobs && !rec.of->pool; i++, last = end) {
        fn(fn_ctx, i, 0);
        end = now();
        push(end - last > rec.clock ? end - last - rec.clock : 0);
    }
    rec.since = rec.run_end = last;
}

void span_prepare(hvt_device *dev, int threads)
{
    hvt__thread_pool_rehearse(hvt__cpu(dev)->pool, threads, rehearse, NULL);
    dev->threads = threads;
}

void span_rehearse_step(const span_opts *o, rehearsal *r, int n)
{
    tape learned = {0};
    double start;

    span_prepare(o->dev, r->threads);
    rec.to = n < 0 ? &learned : &r->tapes[n];
    rec.learning = n < 0;
    rec.next_call = PSEUDO;
    rec.next_run = 0;
    rec.pseudo[READING] = rec.pseudo[BETWEEN] = 0;
    rec.call = rec.outside = READING;
    rec.of_processor = o->least && !r->pool;
    rec.clock = clock_cost();
    rec.of = r;
    if (rec.learning) {
        add_call(&(op_call){.name = "reading images"});
        add_call(&(op_call){.name = "between ops"});
    }
    rec.since = rec.run_end = start = now();
    o->load();
    spend(now());
    rec.call = rec.outside = BETWEEN;
    o->train();
    spend(now());
    reserve(rec.to, PSEUDO);
    for (int i = 0; i < PSEUDO; i++) {
        r->calls[i].serial = rec.to->count;
        push(rec.pseudo[i]);
    }
    rec.of = NULL;
    if (n < 0) {
        for (int s = 0; s < o->steps; s++)
            reserve(&r->tapes[s], (int)learned.count);
        free(learned.at);
    } else {
        r->took[n] = rec.since - start;
    }
}

void span_watch(hvt_device *dev)
{
    static const op_listener listener = {begin_op, end_op};

    op_times_watch(dev);
    op_times_listen(&listener);
}
