/*
 * The watchdog: its conclusions from given observations, on a clock that the test sets; and live, where ranks
 * wait for one that is late because it first waits for the line that names it.
 *
 * test_watch stop|kill COMM [worker]: started by test_stall.py; rank 1 disappears in the middle of a sum.
 */
#define _GNU_SOURCE
#include "config.h"
#define RANKS_ARE_PROCESSES
#include "ranks.h"
#include "hvt/collective.h"
#include "world/watch.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* ---- six ranks on two hosts, of which the first three are looked at ------------------------------- */

static char hosts[6][64] = {"a", "a", "a", "b", "b", "b"};
static int nodes[6] = {0, 0, 0, 1, 1, 1};
static hvt_world two = {.size = 6, .nodes = 2, .node_of = nodes, .host = hosts};

static hvt__seen at_work(int r, hvt__phase phase, double age)
{
    return (hvt__seen){.rank = r,
                       .here = true,
                       .position = {120, phase, -1, 0},
                       .position_age = age,
                       .idle = age,
                       .wait_age = -1};
}

static hvt__seen waiting(int r, double age, int waiting_on)
{
    hvt__seen s = at_work(r, HVT__EXCHANGE, age);

    s.position.detail = 7;
    s.wait_position = s.position;
    s.wait_age = age;
    snprintf(s.what, sizeof s.what, "issue the operation");
    for (int i = 0; i < HVT__WAITING_ON; i++)
        s.waiting_on[i] = HVT__NOBODY;
    s.waiting_on[0] = waiting_on;
    return s;
}

static hvt__seen with_tensor(hvt__seen s, const char *tensor)
{
    snprintf(s.tensor, sizeof s.tensor, "%s", tensor);
    return s;
}

static hvt__seen with_life(hvt__seen s, char life)
{
    s.life = life;
    s.here = s.here && !strchr("TtZX", life);
    s.silent = 4;
    return s;
}

static hvt__seen gets_on(hvt__seen s)
{
    s.idle = 1;
    return s;
}

TEST(a_stall_is_told_at_its_times_and_by_one_rank)
{
    const hvt_stall both = {30, 300}, no_end = {30, 0}, no_word = {0, 300};
    const struct {
        hvt_stall stall;
        hvt__seen all[3];
        int said;
        hvt__finding finding;
        int speaker;
    } cases[] = {
        {both, {waiting(0, 29, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 0, HVT__FINE, 0},
        {both, {waiting(0, 30, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 0, HVT__STALLED, 0},
        {both, {waiting(0, 31, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 1, HVT__FINE, 0},
        {both, {waiting(0, 59, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 1, HVT__FINE, 0},
        {both, {waiting(0, 60, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 1, HVT__STALLED, 0},
        {both, {waiting(0, 119, 1), at_work(1, HVT__DATA, 99), waiting(2, 20, 0)}, 2, HVT__FINE, 0},
        /* the node's oldest wait counts, its lowest rank that waits speaks */
        {both, {at_work(0, HVT__DATA, 99), waiting(1, 3, 0), waiting(2, 30, 0)}, 0, HVT__STALLED, 1},
        {both, {at_work(0, HVT__DATA, 99), at_work(1, HVT__DATA, 99), waiting(2, 3, 0)}, 0, HVT__FINE, 2},
        {both, {with_life(waiting(0, 40, 1), 'T'), waiting(1, 40, 2), waiting(2, 40, 0)}, 0, HVT__STALLED, 1},
        {both, {waiting(0, 300, 1), at_work(1, HVT__DATA, 300), waiting(2, 301, 0)}, 4, HVT__HOPELESS, 0},
        /* a rank that gets on, or has lately, is slow; one that is stopped is not */
        {both, {waiting(0, 300, 1), at_work(1, HVT__DATA, 99), waiting(2, 301, 0)}, 4, HVT__FINE, 0},
        {both,
         {waiting(0, 300, 1), gets_on(at_work(1, HVT__DATA, 999)), waiting(2, 301, 0)},
         4,
         HVT__FINE,
         0},
        {both,
         {waiting(0, 480, 1), gets_on(at_work(1, HVT__DATA, 999)), waiting(2, 301, 0)},
         4,
         HVT__STALLED,
         0},
        {both, {waiting(0, 300, 1), at_work(1, HVT__DATA, 999), waiting(2, 2, 0)}, 4, HVT__FINE, 0},
        {both,
         {waiting(0, 300, 1), with_life(at_work(1, HVT__DATA, 1), 'T'), waiting(2, 301, 0)},
         4,
         HVT__HOPELESS,
         0},
        {no_end, {waiting(0, 9e9, 1), at_work(1, HVT__DATA, 99), waiting(2, 2, 0)}, 30, HVT__FINE, 0},
        {no_word, {waiting(0, 299, 1), at_work(1, HVT__DATA, 99), waiting(2, 2, 0)}, 0, HVT__FINE, 0},
        {no_word, {waiting(0, 301, 1), at_work(1, HVT__DATA, 301), waiting(2, 302, 0)}, 0, HVT__HOPELESS, 0},
        /* where all wait, a node that knows more goes first */
        {both, {waiting(0, 300, 4), waiting(1, 300, 4), waiting(2, 300, 4)}, 4, HVT__FINE, 0},
        {both, {waiting(0, 301, 4), waiting(1, 301, 4), waiting(2, 301, 4)}, 4, HVT__HOPELESS, 0},
        /* nobody waits: a rank that does not move is told of, but ends nothing */
        {both,
         {at_work(0, HVT__DATA, 2), at_work(1, HVT__SAVE, 31), at_work(2, HVT__DATA, 2)},
         0,
         HVT__STALLED,
         0},
        {both,
         {at_work(0, HVT__DATA, 2), at_work(1, HVT__SAVE, 900), at_work(2, HVT__DATA, 2)},
         5,
         HVT__FINE,
         0},
        {both,
         {at_work(0, HVT__OTHER, 99), at_work(1, HVT__OTHER, 99), at_work(2, HVT__OTHER, 99)},
         0,
         HVT__FINE,
         0},
        /* it is over; ages that differ by a tick are not the end of it */
        {both, {waiting(0, 29, 1), at_work(1, HVT__DATA, 29), waiting(2, 20, 0)}, 1, HVT__FINE, 0},
        {both, {waiting(0, 1, 1), at_work(1, HVT__DATA, 1), waiting(2, 1, 0)}, 1, HVT__RECOVERED, 0},
    };

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        hvt__verdict v = hvt__watch_judge(cases[i].all, 3, INFINITY, &cases[i].stall, cases[i].said);

        CHECK(v.finding == cases[i].finding, "case %zu: %d, not %d", i, v.finding, cases[i].finding);
        CHECK(v.speaker == cases[i].speaker, "case %zu: rank %d speaks, not %d", i, v.speaker,
              cases[i].speaker);
        v = hvt__watch_judge(cases[i].all, 3, 299, &cases[i].stall, cases[i].said); /* another host got on */
        CHECK(v.finding != HVT__HOPELESS, "case %zu: gives up though another host gets on", i);
    }
}

TEST(the_line_names_those_who_are_lacked_and_do_not_wait)
{
    const hvt_stall stall = {30, 300};
    struct {
        hvt__seen all[3];
        const char *line;
    } cases[] = {
        {{waiting(0, 31, 1), waiting(1, 30, 2), at_work(2, HVT__DATA, 31)},
         "ranks 0-1 (a) have waited 31 s for rank 2 (a) to issue the operation, in bucket 7 of update 120; "
         "rank 2 "
         "(a) has been in phase data of update 120 for 31 s"},
        {{waiting(0, 31, 1), with_life(at_work(1, HVT__DATA, 40), 'D'), at_work(2, HVT__FORWARD, 0.5)},
         "rank 0 (a) has waited 31 s for rank 1 (a) to issue the operation, in bucket 7 of update 120; rank "
         "1 (a) "
         "has been in phase data of update 120 for 40 s, where it waits for a disk or a network file system"},
        {{waiting(0, 31, 1), with_life(waiting(1, 40, 2), 'T'), waiting(2, 31, 0)},
         "ranks 0, 2 (a) have waited 31 s for rank 1 (a) to issue the operation, in bucket 7 of update 120; "
         "rank 1 "
         "(a) is stopped (SIGSTOP); 4.0 s ago it was in phase exchange of update 120"},
        {{waiting(0, 31, 1), with_life(at_work(1, HVT__DATA, 40), 'Z'), waiting(2, 31, 0)},
         "ranks 0, 2 (a) have waited 31 s for rank 1 (a) to issue the operation, in bucket 7 of update 120; "
         "rank 1 "
         "(a) has ended"},
        {{waiting(0, 31, 4), at_work(1, HVT__DATA, 1), at_work(2, HVT__DATA, 1)},
         "rank 0 (a) has waited 31 s for rank 4 (b) to issue the operation, in bucket 7 of update 120"},
        {{waiting(0, 31, 4), waiting(1, 31, 5), waiting(2, 31, 1)},
         "ranks 0-2 (a) have waited 31 s for ranks 4-5 (b) to issue the operation, in bucket 7 of update "
         "120"},
        {{waiting(0, 31, HVT__ANYONE), waiting(1, 31, HVT__ANYONE), waiting(2, 31, HVT__ANYONE)},
         "ranks 0-2 (a) have waited 31 s for a rank of another host to issue the operation, in bucket 7 of "
         "update "
         "120"},
        {{waiting(0, 31, HVT__ANYONE), waiting(1, 31, HVT__ANYONE), at_work(2, HVT__SAVE, 9)},
         "ranks 0-1 (a) have waited 31 s for rank 2 (a) to issue the operation, in bucket 7 of update 120; "
         "rank 2 "
         "(a) has been in phase save of update 120 for 9.0 s"},
        {{waiting(0, 31, 1), waiting(1, 31, 2), waiting(2, 31, 0)},
         "ranks 0-2 (a) have waited 31 s for one another to issue the operation, in bucket 7 of update 120"},
        {{at_work(0, HVT__DATA, 31), at_work(1, HVT__DATA, 30), at_work(2, HVT__DATA, 1)},
         "rank 0 (a) has been in phase data of update 120 for 31 s; rank 1 (a) has been in phase data of "
         "update 120 "
         "for 30 "
         "s"},
        {{waiting(0, 333, 1), at_work(1, HVT__SETUP, 333), waiting(2, 331, 0)},
         "ranks 0, 2 (a) have waited 333 s for rank 1 (a) to issue the operation, in bucket 7 of update 120; "
         "rank 1 "
         "(a) has been in phase setup of update 120 for 333 s: giving up"},
        {{with_tensor(waiting(0, 31, 4), "layer3.0.conv2.weight"), at_work(1, HVT__DATA, 1),
          waiting(2, 1, 0)},
         "ranks 0, 2 (a) have waited 31 s for rank 4 (b) to issue the operation, in bucket 7 "
         "(layer3.0.conv2.weight ...) of update 120"},
    };
    bool named[6];
    char text[1600];

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        hvt__verdict v = hvt__watch_judge(cases[i].all, 3, INFINITY, &stall, 0);

        hvt__watch_line(&two, cases[i].all, 3, &v, named, text, sizeof text);
        CHECK(!strcmp(text, cases[i].line), "case %zu:\n  %s\nnot\n  %s", i, text, cases[i].line);
    }
    cases[0].all[0].waiting_on[0] = 2;
    cases[0].all[0].waiting_on[1] = 3; /* of two messages neither has come */
    hvt__verdict v = hvt__watch_judge(cases[0].all, 3, INFINITY, &stall, 0);
    hvt__watch_line(&two, cases[0].all, 3, &v, named, text, sizeof text);
    CHECK(strstr(text, "for ranks 2-3 (a, b) to issue"), "%s", text);
}

TEST(one_process_is_neither_a_rank_nor_in_a_phase)
{
    const hvt_world one = {.size = 1, .host = hosts};
    const hvt_stall stall = {30, 300};
    struct {
        hvt__seen seen;
        const char *line;
    } cases[] = {
        {at_work(0, HVT__FORWARD, 30), "update 120 has been running for 30 s (forward pass)"},
        {at_work(0, HVT__SAVE, 31), "saving has been running for 31 s"},
        {at_work(0, HVT__EVALUATE, 61), "evaluation has been running for 61 s"},
        {at_work(0, HVT__EXCHANGE, 31), "update 120 has been running for 31 s (exchange)"},
        {waiting(0, 31, HVT__ANYONE), "update 120 has waited 31 s to issue the operation"},
        {waiting(0, 400, HVT__ANYONE), "update 120 has waited 400 s to issue the operation: giving up"},
    };
    bool named[1];
    char text[1600];

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        hvt__verdict v = hvt__watch_judge(&cases[i].seen, 1, INFINITY, &stall, 0);

        hvt__watch_line(&one, &cases[i].seen, 1, &v, named, text, sizeof text);
        CHECK(!strcmp(text, cases[i].line), "case %zu:\n  %s\nnot\n  %s", i, text, cases[i].line);
    }
}

/* ---- live ----------------------------------------------------------------------------------------- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t bell;
    int lines;
    char last[1700], all[16][300];
} heard = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, "", {""}};
static _Atomic int *board; /* all ranks': lines about waits that any of them has heard */

static void hear(void *ctx, hvt_log_level level, const char *line)
{
    (void)ctx, (void)level;
    pthread_mutex_lock(&heard.lock);
    snprintf(heard.last, sizeof heard.last, "%s", line);
    snprintf(heard.all[heard.lines % 16], sizeof heard.all[0], "%s", line);
    heard.lines++;
    pthread_cond_broadcast(&heard.bell);
    pthread_mutex_unlock(&heard.lock);
    if (board && strstr(line, " waited "))
        atomic_fetch_add(board, 1);
}

static bool was_heard(const char *part)
{
    bool found = false;

    pthread_mutex_lock(&heard.lock);
    for (int i = 0; i < heard.lines && i < 16; i++)
        found = found || strstr(heard.all[i], part);
    pthread_mutex_unlock(&heard.lock);
    return found;
}

/* Until a line with this in it is heard, however many came before on a slow machine. */
static void until_heard(const char *part)
{
    pthread_mutex_lock(&heard.lock);
    while (!strstr(heard.last, part))
        pthread_cond_wait(&heard.bell, &heard.lock);
    pthread_mutex_unlock(&heard.lock);
}

TEST(a_position_that_does_not_change_is_reported_and_so_is_a_wait_of_another_thread)
{
    const hvt_stall quick = {0.1, 0};
    int wait;

    heard.last[0] = 0;
    CHECK(hvt__wait_begin(world, HVT__ANYONE, "be watched") < 0, "a wait is noted though nobody watches");
    CHECK_OK(hvt_world_watch(world, &quick));
    hvt__trace_step(5);
    hvt__trace_begin(HVT__DATA, -1);
    until_heard("update 5 has been running for ");
    until_heard(" s (next batch)");
    hvt__trace_end();
    until_heard("the run continues");
    wait = hvt__wait_begin(world, HVT__ANYONE, "be watched");
    CHECK(wait >= 0, "a wait is not noted");
    until_heard("update 5 has waited 0.");
    until_heard(" s to be watched");
    hvt__wait_end(wait);
    until_heard("the run continues");
    for (int i = 0; i < 3; i++) { /* and it can be had again */
        CHECK_OK(hvt_world_watch(world, &quick));
        CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
    }
    hvt__trace_step_end();
}

static void *wait_often(void *arg)
{
    for (int i = 0; i < 20000; i++) {
        int wait = hvt__wait_begin(world, HVT__ANYONE, arg);

        hvt__trace_begin(HVT__EXCHANGE, i);
        hvt__wait_on(wait, world, (int[]){0}, 1);
        hvt__trace_end();
        hvt__wait_end(wait);
    }
    return NULL;
}

/* For ThreadSanitizer: many that wait, one that looks. */
TEST(threads_wait_and_move_while_the_watchdog_looks)
{
    pthread_t thread[6]; /* more than there is room for */

    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0.05, 0}));
    for (int i = 0; i < 6; i++)
        CHECK(!pthread_create(&thread[i], NULL, wait_often, "come and go"), "no thread");
    wait_often("come and go");
    for (int i = 0; i < 6; i++)
        pthread_join(thread[i], NULL);
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
}

static atomic_bool enough;

static void *wait_until_enough(void *arg)
{
    while (!atomic_load(&enough)) {
        for (int i = 0; i < 1000; i++)
            hvt__wait_end(hvt__wait_begin(world, HVT__ANYONE, arg));
        usleep(100);
    }
    return NULL;
}

/* Its page is gone then, which those that wait write to. */
TEST(a_watch_is_closed_while_threads_wait)
{
    pthread_t thread[2];

    atomic_store(&enough, false);
    for (int i = 0; i < 2; i++)
        CHECK(!pthread_create(&thread[i], NULL, wait_until_enough, "come and go"), "no thread");
    for (int i = 0; i < 40; i++) {
        CHECK_OK(hvt_world_watch(world, &(hvt_stall){5, 0}));
        usleep(1000);
        CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
    }
    atomic_store(&enough, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
}

TEST(a_wait_that_began_under_one_watch_ends_none_of_the_next)
{
    int old, fresh;

    heard.last[0] = 0;
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0.1, 0}));
    old = hvt__wait_begin(world, HVT__ANYONE, "be forgotten");
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0.1, 0}));
    fresh = hvt__wait_begin(world, HVT__ANYONE, "be remembered");
    CHECK(old >= 0 && fresh >= 0, "a wait is not noted");
    hvt__wait_end(old);
    until_heard(" s to be remembered");
    hvt__wait_end(fresh);
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
}

TEST(times_that_make_no_sense_are_refused_by_all)
{
    CHECK_FAILS(hvt_world_watch(world, &(hvt_stall){-1, 0}), E_ARG, "expected 0 or more");
    CHECK_FAILS(hvt_world_watch(world, &(hvt_stall){5, 4}), E_ARG,
                "warns after 5 s cannot give up after 4 s");
    CHECK_FAILS(hvt_world_watch(world, &(hvt_stall){rank ? 5 : 0. / 0., 4}), E_ARG, "after");
    CHECK(hvt_last_error_is_agreed(), "not agreed");
}

/* Rank 1 comes to `meet` when a line about it was heard; then all go on as if nothing had been. */
static void one_comes_late(const char *name, void (*meet)(hvt_comm *c), hvt_comm *c, const char *what)
{
    char part[200];
    double heard_here;

    heard.lines = 0;
    CHECK_OK(hvt_world_barrier(world));
    if (rank == 0)
        atomic_store(board, 0);
    CHECK_OK(hvt_world_barrier(world));
    if (rank == 1) {
        hvt__trace_step(9);
        hvt__trace_begin(HVT__DATA, -1);
        while (!atomic_load(board))
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        hvt__trace_end();
        hvt__trace_step_end();
    }
    meet(c);
    snprintf(part, sizeof part, "for rank 1 (%s) to %s", hvt_world_host(world, 1), what);
    heard_here = was_heard(part) && was_heard("has been in phase data of update 9 for ");
    CHECK_OK(hvt_world_allreduce(world, HVT_SUM, &heard_here, 1));
    CHECK(heard_here == 1, "%s: %g ranks said '%s'; last line here: %s", name, heard_here, part, heard.last);
}

/* As long as can be told, and longer. */
static const char *call_it(const void *ctx, int detail)
{
    (void)ctx;
    return detail == 4 ? "features.denseblock4.denselayer16.conv2.weight.and.some.more.letters" : "no";
}

static void barrier(hvt_comm *c)
{
    (void)c;
    CHECK_OK(hvt_world_barrier(world));
}

static void sum(hvt_comm *c)
{
    static float x[1000];
    hvt_ticket t;

    for (int i = 0; i < 1000; i++)
        x[i] = (float)(rank + i);
    CHECK_OK(hvt_comm_allreduce(c, x, 1000, HVT_F32, &t));
    CHECK_OK(hvt_comm_wait(c, t));
    CHECK(x[3] == (float)(size * (size - 1) / 2 + 3 * size), "%g", (double)x[3]);
}

/* Ranks 0 and 1 in reverse order; no comm: a rank that has nothing to do with it. */
static void sum_of_two(hvt_comm *c)
{
    float x = (float)rank;
    hvt_ticket t;

    while (!c && !atomic_load(board))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    if (!c)
        return;
    hvt__trace_names(call_it, NULL);
    CHECK_OK(hvt_comm_allreduce(c, &x, 1, HVT_F32, &t));
    hvt__trace_begin(HVT__EXCHANGE, 4);
    CHECK_OK(hvt__traced(hvt_comm_wait(c, t)));
    hvt__trace_names(NULL, NULL);
    CHECK(x == 1, "%g", (double)x);
}

static void pass_on(hvt_comm *c)
{
    float in[4] = {1, 2, 3, 4}, out[4] = {0};

    if (rank == 1)
        CHECK_OK(hvt_send(c, in, 4, HVT_F32, 0, NULL));
    if (rank == 0)
        CHECK_OK(hvt_recv(c, out, 4, HVT_F32, 1, NULL));
}

/* It was opened with the times that main() set. */
TEST(a_world_of_several_ranks_is_watched_by_itself)
{
    hvt__segment shared = {0};

    CHECK_OK(hvt__segment_open(world, sizeof *board, &shared));
    board = (_Atomic int *)(void *)shared.base;
    one_comes_late("default", barrier, NULL, "take part in a barrier");
    board = NULL;
    hvt__segment_close(&shared);
}

static void note_stall(void *ctx, const char *line)
{
    atomic_fetch_add((atomic_int *)ctx, 1 + !strstr(line, "giving up"));
}

/* Rank 1 does not come, and the program ends nobody. */
TEST(a_wait_that_is_given_up_is_an_error_and_the_process_goes_on)
{
    const char *const comms[] = {"shm", over_messages()};
    hvt__segment shared = {0};

    CHECK_OK(hvt__segment_open(world, sizeof(atomic_int), &shared));
    for (size_t k = 0; k < HVT_LEN(comms); k++) {
        atomic_int calls = 0, *given_up = (atomic_int *)(void *)shared.base;
        hvt_comm *c = NULL;
        hvt_ticket t;
        float x[1000] = {0};
        double called;

        if (rank == 0)
            atomic_store(given_up, 0);
        hvt_world_on_stall(note_stall, &calls);
        CHECK_OK(hvt_world_watch(world, &(hvt_stall){0.2, 0.5}));
        CHECK_OK(hvt_comm_open(comms[k], world, dev, &c));
        CHECK_OK(hvt_world_barrier(world));
        if (rank != 1) {
            CHECK_OK(hvt_comm_allreduce(c, x, 1000, HVT_F32, &t));
            CHECK_FAILS(hvt_comm_wait(c, t), E_COMM, "for rank"); /* too long, or while another one gave up */
            atomic_fetch_add(given_up, 1);
        }
        while (atomic_load(given_up) < size - 1)
            usleep(1000);
        CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
        hvt_comm_close(&c);
        called = calls;
        CHECK_OK(hvt_world_allreduce(world, HVT_SUM, &called, 1));
        CHECK(called >= 1, "no function was called");
        hvt_world_on_stall(NULL, NULL);
    }
    hvt__segment_close(&shared);
}

TEST(a_rank_that_comes_late_is_named_by_one_rank_and_the_others_go_on)
{
    hvt__segment shared = {0};
    hvt_world *pair = NULL;
    hvt_comm *c = NULL;

    CHECK_OK(hvt__segment_open(world, sizeof *board, &shared));
    board = (_Atomic int *)(void *)shared.base;
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0.3, 0}));
    one_comes_late("barrier", barrier, NULL, "take part in a barrier");
    CHECK_OK(hvt_comm_open("shm", world, dev, &c));
    one_comes_late("shm", sum, c, "issue the operation");
    hvt_comm_close(&c);
    CHECK_OK(hvt_comm_open(over_messages(), world, dev, &c));
    one_comes_late(over_messages(), sum, c, "send and take its part");
    if (size == 2)
        one_comes_late("receive", pass_on, c, "send and take its part");
    hvt_comm_close(&c);
    CHECK_OK(hvt_world_split(world, rank < 2 ? 0 : -1, -rank, &pair));
    if (pair)
        CHECK_OK(hvt_comm_open(over_messages(), pair, dev, &c));
    one_comes_late("group", sum_of_two, c,
                   "send and take its part, in bucket 4 (features.denseblock4.denselayer16.conv2.weight.and."
                   "some.more.le ...) of update ");
    hvt_comm_close(&c);
    hvt_world_close(&pair);
    CHECK_OK(hvt_world_watch(world, &(hvt_stall){0, 0}));
    board = NULL;
    hvt__segment_close(&shared);
}

/* ---- for test_stall.py ------------------------------------------------------------------------------ */

/* Four ranks on two hosts, as far as hier knows. */
static hvt_world on_two_hosts(void)
{
    static char name[4][64] = {"north", "north", "south", "south"};
    static int node[4] = {0, 0, 1, 1};
    hvt_world w = *world;

    w.nodes = w.local_size = 2;
    w.local_rank = w.rank % 2;
    w.node_of = node;
    w.host = name;
    return w;
}

static void end_stalled(void *ctx, const char *line)
{
    (void)ctx, (void)line;
    _exit(HVT_EXIT_STALLED);
}

static hvt_status go_in_the_middle(const char *how, const char *name, bool worker)
{
    enum { COUNT = 1 << 20 };
    hvt_world w = strcmp(name, "hier") ? *world : on_two_hosts();
    hvt_comm *c = NULL;
    hvt_ticket t;
    void *buf;

    hvt_world_on_stall(end_stalled, NULL);
    HVT_TRY(hvt_world_watch(&w, &(hvt_stall){0.3, 3}));
    HVT_TRY(hvt_comm_open(name, &w, dev, &c));
    HVT_TRY(hvt_comm_alloc(c, COUNT * sizeof(float), &buf));
    if (worker)
        HVT_TRY(hvt_comm_overlap(c, &(hvt_overlap){.yield = true}));
    for (int i = 1;; i++) {
        hvt__trace_step(i);
        HVT_TRY(hvt_comm_allreduce(c, buf, COUNT, HVT_F32, &t));
        if (rank == 1 && i == 3)
            raise(!strcmp(how, "stop") ? SIGSTOP : SIGKILL);
        hvt__trace_begin(HVT__EXCHANGE, 0);
        HVT_TRY(hvt__traced(hvt_comm_wait(c, t)));
        hvt__trace_step_end();
    }
}

int main(int argc, char **argv)
{
    hvt_world_watch(NULL, &(hvt_stall){0.3, 0});
    if (!ranks_open())
        return 1;
    if (argc >= 3) {
        go_in_the_middle(argv[1], argv[2], argc == 4 && !strcmp(argv[3], "worker"));
        fprintf(stderr, "rank %d: %s\n", rank, hvt_last_error());
        hvt_world_abort(world, 1);
    }
    hvt_log_to(hear, NULL, HVT_LOG_ERROR);
    if (rank == 0) {
        RUN(a_stall_is_told_at_its_times_and_by_one_rank);
        RUN(the_line_names_those_who_are_lacked_and_do_not_wait);
        RUN(one_process_is_neither_a_rank_nor_in_a_phase);
    }
    if (size > 1)
        RUN(a_world_of_several_ranks_is_watched_by_itself);
    RUN(times_that_make_no_sense_are_refused_by_all);
    RUN(a_watch_is_closed_while_threads_wait);
    if (size == 1) {
        RUN(a_position_that_does_not_change_is_reported_and_so_is_a_wait_of_another_thread);
        RUN(threads_wait_and_move_while_the_watchdog_looks);
        RUN(a_wait_that_began_under_one_watch_ends_none_of_the_next);
    } else {
        RUN(a_rank_that_comes_late_is_named_by_one_rank_and_the_others_go_on);
        RUN(a_wait_that_is_given_up_is_an_error_and_the_process_goes_on);
    }
    return ranks_done();
}
