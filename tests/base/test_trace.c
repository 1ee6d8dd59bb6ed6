/* trace: phases nest, own times add up, any thread may query the phase of another. */
#include "base/thread.h"
#include "base/trace.h"
#include "check.h"

#include <stdatomic.h>

static hvt__where here(void)
{
    return hvt__trace_where(hvt__trace_lane());
}

static bool at(hvt__phase phase, int detail)
{
    return here().phase == phase && here().detail == detail;
}

static double total(const double seconds[HVT__PHASE_COUNT])
{
    double sum = 0;

    for (int i = 0; i < HVT__PHASE_COUNT; i++)
        sum += seconds[i];
    return sum;
}

static void pass(double seconds)
{
    for (double end = hvt__now() + seconds; hvt__now() < end;)
        ;
}

TEST(every_phase_has_a_name)
{
    for (int i = 0; i < HVT__PHASE_COUNT; i++)
        CHECK(strcmp(hvt__phase_name((hvt__phase)i), "?"), "phase %d", i);
    CHECK(!strcmp(hvt__phase_name(HVT__PHASE_COUNT), "?"), "'%s'", hvt__phase_name(HVT__PHASE_COUNT));
}

TEST(phases_nest)
{
    double since;

    CHECK(at(HVT__OTHER, -1), "in %s", hvt__phase_name(here().phase));
    hvt__trace_begin(HVT__BACKWARD, -1);
    since = here().since;
    hvt__trace_begin(HVT__LAUNCH, 7);
    CHECK(at(HVT__LAUNCH, 7), "in %s, %d", hvt__phase_name(here().phase), here().detail);
    hvt__trace_end();
    CHECK(at(HVT__BACKWARD, -1) && here().since == since, "in %s, %d", hvt__phase_name(here().phase),
          here().detail);
    hvt__trace_end();
    CHECK(at(HVT__OTHER, -1), "in %s", hvt__phase_name(here().phase));
    hvt__trace_end(); /* one too many */
    hvt__trace_begin(HVT__DATA, -1);
    CHECK(at(HVT__DATA, -1), "in %s", hvt__phase_name(here().phase));
    hvt__trace_end();
}

TEST(what_is_too_deep_belongs_to_the_last_that_fits)
{
    enum { DEEP = 100 };
    double before[HVT__PHASE_COUNT], after[HVT__PHASE_COUNT];
    int shown = 0;

    hvt__trace_seconds(before);
    for (int i = 0; i < DEEP; i++) {
        hvt__trace_begin(i % 2 ? HVT__EXCHANGE : HVT__UPDATE, i);
        shown += at(i % 2 ? HVT__EXCHANGE : HVT__UPDATE, i);
    }
    CHECK(shown >= 4 && shown < DEEP, "%d shown", shown);
    for (int i = 0; i < DEEP; i++) {
        CHECK(here().detail == (DEEP - i < shown ? DEEP - i : shown) - 1, "after %d ends at %d", i,
              here().detail);
        hvt__trace_end();
    }
    CHECK(at(HVT__OTHER, -1), "in %s", hvt__phase_name(here().phase));
    hvt__trace_seconds(after);
    CHECK(total(after) > total(before), "no time has passed");
}

TEST(own_times_add_up)
{
    double before[HVT__PHASE_COUNT], after[HVT__PHASE_COUNT], own[HVT__PHASE_COUNT], start = hvt__now(), all;

    hvt__trace_seconds(before);
    hvt__trace_begin(HVT__EXCHANGE, 0);
    pass(2e-3);
    hvt__trace_begin(HVT__UPDATE, 0);
    pass(4e-3);
    hvt__trace_end();
    pass(1e-3);
    hvt__trace_end();
    pass(1e-3);
    hvt__trace_seconds(after);
    all = hvt__now() - start;
    for (int i = 0; i < HVT__PHASE_COUNT; i++)
        own[i] = after[i] - before[i];
    CHECK(own[HVT__EXCHANGE] >= 3e-3 && own[HVT__UPDATE] >= 4e-3 && own[HVT__OTHER] >= 1e-3,
          "exchange %g s, update %g s, other %g s", own[HVT__EXCHANGE], own[HVT__UPDATE], own[HVT__OTHER]);
    CHECK(total(own) <= all && own[HVT__UPDATE] <= all - 4e-3, "%g of %g s, update %g", total(own), all,
          own[HVT__UPDATE]);
    CHECK(own[HVT__DATA] == 0, "%g s of data", own[HVT__DATA]);
}

TEST(a_step_closes_what_an_error_left_open)
{
    hvt__trace_step(41);
    hvt__trace_begin(HVT__BACKWARD, -1);
    hvt__trace_begin(HVT__LAUNCH, 1);
    hvt__trace_step(0); /* has begun */
    CHECK(here().step == 41 && at(HVT__LAUNCH, 1), "step %lld", (long long)here().step);
    hvt__trace_step_end();
    hvt__trace_step(0);
    CHECK(here().step == 42 && at(HVT__OTHER, -1), "step %lld in %s", (long long)here().step,
          hvt__phase_name(here().phase));
    hvt__trace_step_end();
}

/* ---- events ---- */

static int64_t left, lost;

static size_t take(hvt__event *e, size_t most)
{
    return hvt__trace_take(e, most, &left, &lost);
}

TEST(a_phase_that_ends_leaves_an_event_while_somebody_listens)
{
    hvt__event e[8];
    size_t n;

    CHECK_OK(hvt__trace_open(8));
    hvt__trace_begin(HVT__SAVE, -1);
    hvt__trace_end(); /* nobody listens yet */
    hvt__trace_enable(true);
    hvt__trace_step(7);
    hvt__trace_begin(HVT__EXCHANGE, 2);
    hvt__trace_bytes(64);
    hvt__trace_begin(HVT__WAIT, 5);
    CHECK(at(HVT__EXCHANGE, 2), "who asks is told of %s", hvt__phase_name(here().phase));
    hvt__trace_end();
    hvt__trace_end();
    hvt__trace_step_end();
    hvt__trace_enable(false);
    hvt__trace_begin(HVT__DATA, -1);
    hvt__trace_end();
    n = take(e, 0);
    CHECK(n == 0 && left == 3, "%zu events and %lld", n, (long long)left);
    n = take(e, 8);
    CHECK(n == 3 && left == 0, "%zu events and %lld", n, (long long)left);
    CHECK(e[0].phase == HVT__WAIT && e[0].detail == 5 && e[1].phase == HVT__EXCHANGE && e[1].detail == 2 &&
              e[1].bytes == 64 && e[2].phase == HVT__STEP && e[2].detail == -1,
          "%d %d, %d %d, %d", e[0].phase, e[0].detail, e[1].phase, e[1].detail, e[2].phase);
    for (size_t i = 0; i < n; i++)
        CHECK(e[i].step == 7 && e[i].thread == HVT__TRAINING && e[i].began >= e[2].began &&
                  e[i].began + e[i].seconds <= e[2].began + e[2].seconds,
              "event %zu", i);
    hvt__trace_close();
}

TEST(what_has_no_room_is_counted)
{
    hvt__event e[3];

    CHECK_OK(hvt__trace_open(3));
    hvt__trace_enable(true);
    for (int i = 0; i < 10; i++) {
        hvt__trace_begin(HVT__UPDATE, i);
        hvt__trace_end();
        if (i < 4) /* the ring goes round */
            CHECK(take(e, 1) == 1 && e[0].detail == i, "event %d", i);
    }
    CHECK(take(e, 0) == 0 && lost == 3 && left == 3, "%lld lost", (long long)lost);
    CHECK(take(e, 3) == 3 && e[0].detail == 4 && e[2].detail == 6, "%d to %d", e[0].detail, e[2].detail);
    hvt__trace_close();
}

static void *exchange(void *count)
{
    hvt__trace_thread(HVT__EXCHANGING);
    for (int i = 0; i < *(int *)count; i++) {
        hvt__trace_begin(HVT__EXCHANGE, i);
        hvt__trace_end();
    }
    return NULL;
}

TEST(threads_leave_events_side_by_side)
{
    enum { EACH = 1000 };
    static hvt__event e[2 * EACH];
    int count = EACH, next[HVT__THREAD_COUNT] = {0}, wrong = 0;
    pthread_t other;

    CHECK_OK(hvt__trace_open(2 * EACH));
    hvt__trace_enable(true);
    if (hvt__thread_start(&other, exchange, &count)) {
        CHECK(false, "no thread");
        return;
    }
    for (int i = 0; i < EACH; i++) {
        hvt__trace_begin(HVT__BACKWARD, i);
        hvt__trace_end();
    }
    pthread_join(other, NULL);
    CHECK(take(e, 2 * EACH) == 2 * EACH, "events are missing");
    for (int i = 0; i < 2 * EACH; i++)
        wrong += e[i].phase != (e[i].thread == HVT__TRAINING ? HVT__BACKWARD : HVT__EXCHANGE) ||
                 e[i].detail != next[e[i].thread]++;
    CHECK(!wrong && next[HVT__TRAINING] == EACH, "%d events are wrong", wrong);
    hvt__trace_close();
}

/* ---- another thread looks on ---- */

static atomic_bool over;

static void *look(void *lane)
{
    static int wrong;
    int64_t last = 0;

    while (!atomic_load(&over)) {
        hvt__where w = hvt__trace_where(lane);
        wrong += w.step < last || w.phase >= HVT__PHASE_COUNT || w.detail < -1 || w.since > hvt__now();
        last = w.step;
    }
    return &wrong;
}

TEST(another_thread_may_look_on)
{
    pthread_t other;
    void *wrong;

    hvt__trace_step(1000);
    atomic_store(&over, false);
    if (pthread_create(&other, NULL, look, hvt__trace_lane())) {
        CHECK(false, "no thread");
        return;
    }
    for (int i = 0; i < 20000; i++) {
        hvt__trace_step(0);
        hvt__trace_begin(HVT__FORWARD, -1);
        hvt__trace_begin(HVT__WAIT, i);
        hvt__trace_end();
        hvt__trace_end();
        hvt__trace_step_end();
    }
    atomic_store(&over, true);
    pthread_join(other, &wrong);
    CHECK(*(int *)wrong == 0, "%d times nonsense", *(int *)wrong);
    CHECK(here().step == 20999, "step %lld", (long long)here().step);
}

static void *lane_of_its_own(void *ret)
{
    hvt__trace_begin(HVT__EXCHANGE, 3);
    *(bool *)ret = at(HVT__EXCHANGE, 3);
    return hvt__trace_lane();
}

TEST(threads_have_lanes_of_their_own)
{
    pthread_t other;
    void *lane;
    bool there = false;

    hvt__trace_begin(HVT__FORWARD, -1);
    if (pthread_create(&other, NULL, lane_of_its_own, &there)) {
        CHECK(false, "no thread");
        return;
    }
    pthread_join(other, &lane);
    CHECK(there && lane != hvt__trace_lane() && at(HVT__FORWARD, -1), "in %s", hvt__phase_name(here().phase));
    hvt__trace_end();
}

static void *be_followed(void *lane)
{
    hvt__trace_begin(HVT__DATA, 3);
    *(hvt__lane **)lane = hvt__trace_follow();
    return NULL;
}

/* Its lane is gone with it. */
TEST(a_followed_thread_that_ends_is_nowhere)
{
    char about[8];
    pthread_t thread;
    hvt__lane *lane = hvt__trace_follow();

    hvt__trace_begin(HVT__SAVE, -1);
    CHECK(hvt__trace_followed(lane, about, sizeof about).phase == HVT__SAVE, "not followed");
    CHECK(!pthread_create(&thread, NULL, be_followed, &lane), "no thread");
    pthread_join(thread, NULL);
    CHECK(hvt__trace_followed(lane, about, sizeof about).phase == HVT__OTHER && !*about, "'%s'", about);
    hvt__trace_end();
}

int main(void)
{
    RUN(a_followed_thread_that_ends_is_nowhere);
    RUN(every_phase_has_a_name);
    RUN(phases_nest);
    RUN(what_is_too_deep_belongs_to_the_last_that_fits);
    RUN(own_times_add_up);
    RUN(a_step_closes_what_an_error_left_open);
    RUN(a_phase_that_ends_leaves_an_event_while_somebody_listens);
    RUN(what_has_no_room_is_counted);
    RUN(threads_leave_events_side_by_side);
    RUN(another_thread_may_look_on);
    RUN(threads_have_lanes_of_their_own);
    return check_done();
}
