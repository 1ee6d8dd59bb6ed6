/*
 * A watchdog's conclusions: whether a rank is stuck, which rank reports it, and the text.
 *
 * If ranks wait, the ranks to blame are those that others wait for and that do not wait themselves: if 0
 * waits for 1, and 1 for 2, it is 2. If no rank waits, a position that has not changed for long is enough:
 * all ranks may hang on the same file system.
 *
 * A job is ended only if no running rank has made progress for the limit: a rank that reads, decodes or
 * writes is slow, not stuck, however long the others wait.
 *
 * If all ranks of a node wait, another node knows more and gets a moment to report before this one gives up.
 *
 * One rank reports for its node: the lowest waiting rank, else the lowest running one. All see the same page,
 * so they nearly always agree on the reporter; watch.c prevents two reports.
 *
 * These functions read no clock, process or shared memory.
 */
#include "watch.h"
#include "base_impl.h"
#include "text.h"

#include <math.h>

enum { DETAILED = 4 /* ranks whose position a line shows */ };

static bool waits(const hvt__seen *s)
{
    return s->here && !s->left && s->wait_age >= 0;
}

static bool busy(const hvt__seen *s)
{
    return s->here && !s->left && s->wait_age < 0 && s->position.phase != HVT__OTHER;
}

hvt__verdict hvt__watch_judge(const hvt__seen *all, int n, double others_idle, const hvt_stall *stall,
                              int said)
{
    hvt__verdict v = {HVT__FINE, -1, 0, others_idle};
    bool waited = false, known = false;
    double due = stall->warn;

    for (int i = 0; i < n; i++) {
        waited = waited || waits(&all[i]);
        known = known || !waits(&all[i]);
    }
    for (int i = 0; i < n; i++) {
        bool counts = waited ? waits(&all[i]) : busy(&all[i]);
        double age = waited ? all[i].wait_age : all[i].idle;

        if (counts && age > v.age)
            v.age = age;
        if (all[i].here && !all[i].left)
            v.idle = fmin(v.idle, all[i].idle);
        if (v.speaker < 0 && all[i].here && !all[i].left && (!waited || waits(&all[i])))
            v.speaker = i;
    }
    for (int i = 0; i < said; i++)
        due *= 2;
    if (waited && stall->abort > 0 && fmin(v.age, v.idle) >= stall->abort + (known ? 0 : HVT__WATCH_GRACE))
        v.finding = HVT__HOPELESS;
    else if (stall->warn > 0 && v.age >= due)
        v.finding = HVT__STALLED;
    else if (said && v.age < stall->warn / 2) /* ranks see ages that differ by a tick or two */
        v.finding = HVT__RECOVERED;
    return v;
}

static void format_seconds(hvt__text *b, double s)
{
    hvt__text_add(b, s < 10 ? "%.1f s" : "%.0f s", s);
}

static void format_position(hvt__text *b, const hvt__where *p)
{
    if (p->phase == HVT__OTHER)
        hvt__text_add(b, "in the program's own code");
    else
        hvt__text_add(b, "in phase %s", hvt__phase_name(p->phase));
    if (p->step > 0)
        hvt__text_add(b, " of update %lld", (long long)p->step);
    else if (p->phase != HVT__OTHER)
        hvt__text_add(b, " before the first update");
}

static void format_state(hvt__text *b, const hvt_world *w, const hvt__seen *s)
{
    bool gone = s->left || s->life == 'Z' || s->life == 'X';

    hvt__text_add(b, "rank %d (%s) %s", s->rank, w->host[s->rank],
                  s->left          ? "has left"
                  : gone           ? "has ended"
                  : s->here        ? "has been "
                  : s->life == 'T' ? "is stopped (SIGSTOP); "
                  : s->life == 't' ? "is stopped by a debugger; "
                                   : "is silent; ");
    if (gone)
        return;
    if (!s->here) {
        format_seconds(b, s->silent);
        hvt__text_add(b, " ago it was ");
    }
    format_position(b, &s->position);
    if (s->about[0])
        hvt__text_add(b, " (%s)", s->about);
    if (!s->here)
        return;
    hvt__text_add(b, " for ");
    format_seconds(b, s->position_age);
    if (s->life == 'D')
        hvt__text_add(b, ", where it waits for a disk or a network file system");
}

/* A single process: ranks are not named. */
static void format_alone(hvt__text *b, const hvt__seen *s, double age)
{
    static const char *const names[HVT__PHASE_COUNT] = {[HVT__DATA] = "next batch",
                                                        [HVT__FORWARD] = "forward pass",
                                                        [HVT__BACKWARD] = "backward pass",
                                                        [HVT__DEVICE] = "waiting for the GPU",
                                                        [HVT__UPDATE] = "parameter update",
                                                        [HVT__EVALUATE] = "evaluation",
                                                        [HVT__SAVE] = "saving",
                                                        [HVT__SETUP] = "setup"};
    const hvt__where *p = &s->position;
    const char *name = names[p->phase] ? names[p->phase] : hvt__phase_name(p->phase);
    bool in_update = p->step > 0 && p->phase != HVT__EVALUATE && p->phase != HVT__SAVE;

    if (waits(s)) { /* it waits for another thread of the process */
        if (p->step > 0)
            hvt__text_add(b, "update %lld has waited ", (long long)p->step);
        else
            hvt__text_add(b, "the run has waited ");
        format_seconds(b, age);
        hvt__text_add(b, " to %s", s->what);
        return;
    }
    if (in_update)
        hvt__text_add(b, "update %lld has been running for ", (long long)p->step);
    else
        hvt__text_add(b, "%s has been running for ", name);
    format_seconds(b, age);
    if (s->about[0])
        hvt__text_add(b, " (%s)", s->about);
    else if (in_update)
        hvt__text_add(b, " (%s)", name);
}

/* The states of ranks with named[rank], at most DETAILED of them. */
static void format_states(hvt__text *b, const hvt_world *w, const hvt__seen *all, int n, const bool *named,
                          const char *before)
{
    int shown = 0;

    for (int i = 0; i < n && shown <= DETAILED; i++) {
        if (!named[all[i].rank])
            continue;
        hvt__text_add(b, "%s", shown ? "; " : before);
        if (shown++ == DETAILED)
            hvt__text_add(b, "...");
        else
            format_state(b, w, &all[i]);
    }
}

/* Set named[] for ranks that others wait for and that do not wait themselves. True if some wait for ranks
 * they cannot name. */
static bool name_absent(const hvt_world *w, const hvt__seen *all, int n, bool *named)
{
    bool anyone = false;

    memset(named, 0, (size_t)w->size * sizeof *named);
    for (int i = 0; i < n; i++)
        for (int k = 0; waits(&all[i]) && k < HVT__WAITING_ON; k++) {
            anyone = anyone || all[i].waiting_on[k] == HVT__ANYONE;
            if (all[i].waiting_on[k] >= 0 && all[i].waiting_on[k] < w->size)
                named[all[i].waiting_on[k]] = true;
        }
    for (int i = 0; i < n; i++)
        named[all[i].rank] = (named[all[i].rank] || anyone) && !waits(&all[i]);
    return anyone;
}

static void format_waits(hvt__text *b, const hvt_world *w, const hvt__seen *all, int n, const hvt__verdict *v,
                         bool *named)
{
    const hvt__seen *me = &all[v->speaker];
    const hvt__where *p = &me->wait_position;
    bool anyone;
    int many = 0;

    memset(named, 0, (size_t)w->size * sizeof *named);
    for (int i = 0; i < n; i++)
        many += named[all[i].rank] = waits(&all[i]);
    hvt__text_add_ranks(b, w, named);
    hvt__text_add(b, many > 1 ? " have waited " : " has waited ");
    format_seconds(b, v->age);
    hvt__text_add(b, " for ");
    anyone = name_absent(w, all, n, named);
    if (memchr(named, true, (size_t)w->size))
        hvt__text_add_ranks(b, w, named);
    else
        hvt__text_add(b, anyone && n < w->size ? "a rank of another host" : "one another");
    hvt__text_add(b, " to %s", me->what);
    if (p->phase == HVT__EXCHANGE && p->detail >= 0) {
        hvt__text_add(b, ", in bucket %d", p->detail);
        if (me->tensor[0])
            hvt__text_add(b, " (%s ...)", me->tensor);
        hvt__text_add(b, " of update %lld", (long long)p->step);
    } else if (p->phase == HVT__EXCHANGE && me->tensor[0]) { /* an exchange other than gradients */
        hvt__text_add(b, ", in %s of update %lld", me->tensor, (long long)p->step);
    } else if (p->phase != HVT__OTHER || p->step > 0) {
        hvt__text_add(b, ", ");
        format_position(b, p);
    }
    format_states(b, w, all, n, named, "; ");
}

void hvt__watch_line(const hvt_world *w, const hvt__seen *all, int n, const hvt__verdict *v, bool *named,
                     char *text, size_t bytes)
{
    hvt__text b = {.used = 0};

    if (v->finding == HVT__RECOVERED) {
        if (w->size == 1)
            hvt__text_add(&b, "the run continues");
        else
            hvt__text_add(&b, "the ranks of %s have recovered", w->host[all[v->speaker].rank]);
    } else if (w->size == 1) {
        format_alone(&b, all, v->age);
    } else if (waits(&all[v->speaker])) {
        format_waits(&b, w, all, n, v, named);
    } else {
        for (int i = 0; i < n; i++)
            named[all[i].rank] = busy(&all[i]) && all[i].idle >= v->age / 2;
        format_states(&b, w, all, n, named, "");
    }
    if (v->finding == HVT__HOPELESS)
        hvt__text_add(&b, ": giving up");
    snprintf(text, bytes, "%s", b.at);
}
