/*
 * Where a job's time went, on this rank: the sums of its phases (base/trace.h) over its updates, and the time
 * of set-up, evaluations and saves. An epoch reads the sums when it begins and ends; nothing is measured
 * for this within an update.
 */
#include "run.h"
#include "base/trace.h"

#include <math.h>

void hvt__spent_begin(run *t)
{
    hvt_distopt_take_exposed(t->dist);
    hvt__trace_seconds(t->lap.phases);
}

hvt__spent hvt__spent_take(run *t)
{
    static const hvt__phase work[] = {HVT__FORWARD,  HVT__BACKWARD, HVT__DEVICE,
                                      HVT__COMPRESS, HVT__LAUNCH,   HVT__UPDATE};
    double now[HVT__PHASE_COUNT];
    hvt__spent s = {.exposed = hvt_distopt_take_exposed(t->dist)};

    hvt__trace_seconds(now);
    for (size_t i = 0; i < HVT_LEN(work); i++)
        s.compute += now[work[i]] - t->lap.phases[work[i]];
    s.data = now[HVT__DATA] - t->lap.phases[HVT__DATA];
    memcpy(t->lap.phases, now, sizeof t->lap.phases);
    t->job.spent.compute += s.compute;
    t->job.spent.exposed += s.exposed;
    t->job.spent.data += s.data;
    return s;
}

typedef struct part {
    const char *field, *name; /* in the log, on stderr */
    double fraction;
} part;

enum { PARTS = 7 };

/* The parts as fractions of `seconds`, which add up to 1. */
static void parts_of(const hvt__spent *s, double seconds, part ret_part[PARTS])
{
    const part known[PARTS - 1] = {{"compute", "computing", s->compute},
                                   {"exposed_comm", "waiting for the exchange", s->exposed},
                                   {"data_wait", "waiting for data", s->data},
                                   {"evaluate", "evaluating", s->evaluate},
                                   {"save", "saving", s->save},
                                   {"startup", "starting up", s->startup}};

    ret_part[PARTS - 1] = (part){"other", "other", 1};
    for (int i = 0; i < PARTS - 1; i++) {
        ret_part[i] = known[i];
        ret_part[i].fraction /= seconds;
        ret_part[PARTS - 1].fraction -= ret_part[i].fraction;
    }
}

void hvt__spent_record(const hvt__spent *s, double seconds, json_t *record)
{
    part p[PARTS];

    parts_of(s, seconds, p);
    for (int i = 0; i < PARTS; i++)
        json_object_set_new(record, p[i].field, hvt__number(p[i].fraction));
}

/* Rounded to a tenth of a millisecond, which keeps the records of many ranks short. */
static json_t *seconds_of(double seconds)
{
    return hvt__number(round(1e4 * seconds) / 1e4);
}

void hvt__spent_by_rank(const hvt__rank_spent *of, int ranks, bool job, json_t *record)
{
    json_t *all = json_object();
    part p[PARTS];
    int parts = job ? PARTS - 1 : 3; /* `other` is not known for each rank */

    for (int i = 0; i < parts; i++) {
        json_t *seconds = json_array();

        for (int r = 0; r < ranks; r++) {
            parts_of(&of[r].spent, 1, p);
            json_array_append_new(seconds, seconds_of(p[i].fraction));
        }
        json_object_set_new(all, p[i].field, seconds);
    }
    json_object_set_new(record, "by_rank", all);
}

void hvt__spent_text(const hvt__spent *s, double seconds, char ret_text[HVT__SPENT_TEXT])
{
    part p[PARTS];
    size_t n = 0;

    parts_of(s, seconds, p);
    *ret_text = 0;
    for (int i = 0; i < PARTS; i++)
        if (p[i].fraction >= 0.0005) /* rounds to more than 0.0 % */
            n += (size_t)snprintf(ret_text + n, HVT__SPENT_TEXT - n, "%s%.1f %% %s", n ? ", " : "",
                                  100 * p[i].fraction, p[i].name);
}
