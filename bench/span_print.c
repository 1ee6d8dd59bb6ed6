/*
 * Prints a rehearsal: the machine, predicted beside measured times, the table of threads, the ops that lose
 * most.
 */
#include "span_impl.h"
#include "bench.h"
#include "base_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_machine(const span_opts *o)
{
    if (o->socket > 0)
        printf("one core copies %.1f GB/s; a socket is taken to move %.0f\n", span_machine.copy, o->socket);
    else
        printf("one core copies %.1f GB/s; a socket has no limit\n", span_machine.copy);
    for (const rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++)
        if (r->threads > 1 && r->threads <= o->cores->threads)
            printf("barrier of a run on %d threads: %.2f us, %.1f us if they sleep\n", r->threads,
                   1e6 * r->barrier, 1e6 * r->asleep);
    if (span_machine.line > 0)
        printf("each further thread: %.3f us, for the two lines that it moves\n", 1e6 * span_machine.line);
    else
        printf("barriers cannot be measured on one processor: they are taken to cost nothing\n");
}

typedef struct row {
    const op_call *what;
    int calls;
    parts one, many;
} row;

static bool same_op(const op_call *a, const op_call *b)
{
    return !strcmp(a->name, b->name) && a->conv == b->conv && a->rows == b->rows && a->columns == b->columns;
}

/* Collects the calls of a step by op and shape, in two rehearsals; returns their number. */
static int collect_rows(const rehearsal *one, const rehearsal *r, row *rows)
{
    int count = 0;

    for (int i = 0; i < r->call_count; i++) {
        const op_call *what = &r->calls[i].what;
        int at = 0;

        while (at < count && !same_op(rows[at].what, what))
            at++;
        if (at == count)
            rows[count++] = (row){.what = what};
        rows[at].calls++;
        span_add_parts(&rows[at].one, &one->of_calls[i]);
        span_add_parts(&rows[at].many, &r->of_calls[i]);
    }
    return count;
}

/* Seconds by which a predicted time (many) exceeds the real one (one). */
static double off(const row *r)
{
    return span_free_time(&r->many) - span_free_time(&r->one);
}

static void print_name(const row *r)
{
    const op_call *w = r->what;
    char shape[64] = "";

    if (w->conv)
        snprintf(shape, sizeof shape, "%d -> %d, %dx%d/%d at %dx%d", w->conv->c, w->conv->k, w->conv->r,
                 w->conv->s, w->conv->stride_h, w->conv->h, w->conv->w);
    else if (w->rows > 0)
        snprintf(shape, sizeof shape, "%.0f x %d", w->rows, w->columns);
    printf("  %-22s %-28s %5d", w->name, shape, r->calls);
}

/* Prints steps, and the sum of separately measured runs and the rest: on a shared machine a whole step is
 * never undisturbed, but some runs are. */
static void print_check(const span_opts *o, const char *what, double predicted, const double *took,
                        double sum)
{
    printf("%s: predicted %.3f ms, took %.3f run by run: %+.2f %%; steps took %.3f: %+.2f %% (median %.3f, "
           "least %.3f)\n",
           what, 1e3 * predicted, 1e3 * sum, 100 * (predicted / sum - 1), 1e3 * span_typical(o, took),
           100 * (predicted / span_typical(o, took) - 1), 1e3 * took[o->steps / 2], 1e3 * took[0]);
}

/* Prints where the predicted times are most wrong. */
static void print_wrong(const rehearsal *r, double step)
{
    enum { SHOWN = 4 };
    row *rows = span_grown(NULL, sizeof *rows * (size_t)r->call_count);
    int count = collect_rows(&span_reality, r, rows);

    for (int n = 0; n < SHOWN; n++) {
        int worst = 0;

        for (int i = 1; i < count; i++)
            if (fabs(off(&rows[i])) > fabs(off(&rows[worst])))
                worst = i;
        print_name(&rows[worst]);
        printf(" predicted %9.3f ms, took %9.3f: %+.2f %% of the step\n",
               1e3 * span_free_time(&rows[worst].many), 1e3 * span_free_time(&rows[worst].one),
               100 * off(&rows[worst]) / step);
        rows[worst] = rows[--count];
    }
    free(rows);
}

static void print_checks(const span_opts *o)
{
    parts sum = span_total_of(span_reh), real = span_total_of(&span_reality);
    char what[32];

    print_check(o, "1 thread", span_free_time(&sum), span_reh->took, span_free_time(&sum));
    for (const rehearsal *r = span_reh + 1; r < span_reh + span_rehearsals; r++)
        if (r->threads == span_reality.threads) {
            sum = span_total_of(r);
            snprintf(what, sizeof what, "%d threads", r->threads);
            print_check(o, what, span_free_time(&sum), span_reality.took, span_free_time(&real));
            print_wrong(r, span_free_time(&real));
        }
}

static const char *const part_name[] = {"more work", "imbalance", "barrier", "serial", "bandwidth"};
enum { PARTS = HVT_LEN(part_name) };

/* The loss of an op or a step on T threads against a T-th of its time on one (`one`), by cause. More work: of
 * the jobs, which are smaller and more. Serial: the rest, which is no shorter. */
static void split_loss(const parts *p, const parts *one, int threads, double ret_loss[PARTS])
{
    ret_loss[0] = p->work - one->work / threads;
    ret_loss[1] = p->imbalance;
    ret_loss[2] = p->barrier;
    ret_loss[3] = p->serial - one->serial / threads;
    ret_loss[4] = p->bandwidth;
}

static const struct {
    const char *name, *meaning;
} columns[] = {
    {"eff", "efficiency: the time on 1 thread / (threads x ms)"},
    {"limited", "by what a socket's memory moves"},
    {"lost", "share of the limited step that is longer than a part of the step on 1 thread; by cause:"},
    {"more work", "jobs that are smaller take longer in all"},
    {"imbalance", "threads that have nothing to do before a run ends"},
    {"barrier", "of the runs"},
    {"serial", "time outside of runs, which is no shorter than on 1 thread"},
    {"bandwidth", "waiting for memory"},
};

static void print_steps(const span_opts *o)
{
    const parts one = span_total_of(span_reh);
    const double alone = span_time_of(&one);

    for (size_t i = 0; i < HVT_LEN(columns); i++)
        printf("  %-9s  %s\n", columns[i].name, columns[i].meaning);
    printf("%7s %12s %6s %12s %6s %7s", "threads", "unlimited ms", "eff", "limited ms", "eff", "lost");
    for (int i = 0; i < PARTS; i++)
        printf(" %10s", part_name[i]);
    printf("\n");
    for (const rehearsal *r = span_reh; r < span_reh + span_rehearsals; r++) {
        const parts p = span_total_of(r);
        const double eff = alone / span_time_of(&p) / r->threads;
        double loss[PARTS];

        split_loss(&p, &one, r->threads, loss);
        printf("%7d %12.3f %6.3f %12.3f %6.3f %6.1f%%", r->threads, 1e3 * span_free_time(&p),
               alone / span_free_time(&p) / r->threads, 1e3 * span_time_of(&p), eff, 100 * (1 - eff));
        for (int i = 0; i < PARTS; i++)
            printf(" %9.1f%%", 100 * loss[i] / span_time_of(&p));
        printf("\n");
    }
}

/* ---- the ops that lose most ---- */

static double lost(const row *r, int threads)
{
    return span_time_of(&r->many) - span_time_of(&r->one) / threads;
}

static int sorted_for; /* threads */

static int by_loss(const void *a, const void *b)
{
    const double x = lost(a, sorted_for), y = lost(b, sorted_for);

    return (x < y) - (x > y);
}

static void print_row(const row *r, int threads, double step)
{
    double loss[PARTS];
    int worst = 0;

    split_loss(&r->many, &r->one, threads, loss);
    for (int i = 1; i < PARTS; i++)
        worst = loss[i] > loss[worst] ? i : worst;
    print_name(r);
    printf(" %10.3f %10.3f %6.3f %9.3f %7.2f%%  %s %.0f %%\n", 1e3 * span_time_of(&r->one),
           1e3 * span_time_of(&r->many), span_time_of(&r->one) / span_time_of(&r->many) / threads,
           1e3 * lost(r, threads), 100 * lost(r, threads) / step, part_name[worst],
           100 * loss[worst] / lost(r, threads));
}

static void print_worst(const rehearsal *r)
{
    enum { SHOWN = 16 };
    const parts sum = span_total_of(r);
    row *rows = span_grown(NULL, sizeof *rows * (size_t)r->call_count);
    const int count = collect_rows(span_reh, r, rows);

    sorted_for = r->threads;
    qsort(rows, (size_t)count, sizeof *rows, by_loss);
    printf("what loses most on %d threads, of %d ops:\n", r->threads, count);
    printf("  %-22s %-28s %5s %10s %10s %6s %9s %8s  %s\n", "op", "shape", "calls", "ms on 1", "ms", "eff",
           "lost ms", "of step", "mostly");
    for (int i = 0; i < count && i < SHOWN && lost(&rows[i], r->threads) > 0; i++)
        print_row(&rows[i], r->threads, span_time_of(&sum));
    free(rows);
}

void span_print(const span_opts *o)
{
    print_machine(o);
    print_checks(o);
    print_steps(o);
    print_worst(&span_reh[span_rehearsals - 1]);
}
