/* base: errors keep their first line and their trace, draws are uniform, hashes see every byte, pauses
 * are no work. */
#include "base_impl.h"
#include "check.h"

#include <math.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static hvt_status inner(void)
{
    return HVT_FAIL(E_ARG, "batch is %d", -3);
}

static hvt_status outer(void)
{
    HVT_TRY(inner());
    return HVT_OK;
}

TEST(an_error_names_its_cause_and_its_callers)
{
    CHECK(outer() == HVT_E_ARG, "wrong status");
    CHECK(!strcmp(hvt_last_error(), "batch is -3"), "'%s'", hvt_last_error());
    CHECK(strstr(hvt_last_trace(), "inner()") && strstr(hvt_last_trace(), "E_ARG"), "'%s'", hvt_last_trace());
}

TEST(an_error_may_quote_the_one_before)
{
    (void)HVT_FAIL(E_IO, "first");
    (void)HVT_FAIL(E_COMM, "rank 2: %s", hvt_last_error());
    CHECK(!strcmp(hvt_last_error(), "rank 2: first"), "'%s'", hvt_last_error());
}

TEST(a_long_error_is_cut_not_overrun)
{
    char big[5000];

    memset(big, 'x', sizeof big - 1);
    big[sizeof big - 1] = 0;
    (void)HVT_FAIL(E_IO, "%s", big);
    CHECK(strlen(hvt_last_error()) == 2047, "%zu", strlen(hvt_last_error()));
    for (int i = 0; i < 200; i++)
        hvt__pass(HVT_E_IO, __FILE__, __LINE__, "a call with quite a long name");
    CHECK(strlen(hvt_last_trace()) < 4096, "%zu", strlen(hvt_last_trace()));
}

TEST(a_hash_sees_every_byte_and_its_place)
{
    unsigned char data[67] = {0};
    uint64_t base = hvt__hash(HVT_HASH_INIT, data, sizeof data);

    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = 1;
        CHECK(hvt__hash(HVT_HASH_INIT, data, sizeof data) != base, "byte %zu", i);
        data[i] = 0;
        CHECK(hvt__hash(HVT_HASH_INIT, data, i) != base, "length %zu", i);
    }
}

TEST(draws_are_uniform)
{
    int bins[10] = {0};

    for (uint64_t i = 0; i < 100000; i++)
        bins[hvt__below(hvt__draw(1, 2, 3, i), 10)]++;
    for (int i = 0; i < 10; i++)
        CHECK(bins[i] > 9600 && bins[i] < 10400, "bin %d has %d of 100000", i, bins[i]);
    for (uint64_t i = 0; i < 1000; i++) {
        float u = hvt__unit(hvt__mix(i));
        CHECK(u >= 0 && u < 1, "%g", (double)u);
    }
}

/* Stopped for so many seconds, by a child that wakes us. */
static void stop_for(double seconds)
{
    pid_t child = fork();

    CHECK(child >= 0, "no child");
    if (child == 0) {
        struct timespec t = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (time_t)seconds))};
        nanosleep(&t, NULL);
        kill(getppid(), SIGCONT);
        _exit(0);
    }
    raise(SIGSTOP);
    waitpid(child, NULL, 0);
}

static void pass(double seconds)
{
    for (double end = hvt__now() + seconds; hvt__now() < end;)
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

TEST(time_in_which_the_process_was_stopped_is_not_running_time)
{
    double now = hvt__now(), began;

    CHECK(hvt__paused(now) == 0 && hvt__running() >= now, "a pause that was none");
    CHECK(hvt__pause_open() && hvt__pause_open(), "no thread");
    hvt__pause_close(); /* another one still watches */
    began = hvt__running();
    pass(0.6);
    CHECK(hvt__paused(hvt__now()) == 0, "work counts as a pause of %g s", hvt__paused(hvt__now()));
    now = hvt__now();
    stop_for(2.5);
    CHECK(hvt__now() - now > 2.4, "was not stopped");
    CHECK(hvt__running() - began < 1.2, "ran for %g s, with the pause", hvt__running() - began);
    pass(0.6);
    CHECK(fabs(hvt__running() - began - 1.2) < 0.5, "ran for %g s", hvt__running() - began);
    CHECK(fabs(hvt__paused(hvt__now()) - 2.5) < 0.4, "a pause of %g s", hvt__paused(hvt__now()));
    hvt__pause_close();
    now = hvt__paused(hvt__now());
    stop_for(1.5);
    CHECK(hvt__paused(hvt__now()) == now, "nobody watches, and yet");
}

int main(void)
{
    RUN(an_error_names_its_cause_and_its_callers);
    RUN(an_error_may_quote_the_one_before);
    RUN(a_long_error_is_cut_not_overrun);
    RUN(a_hash_sees_every_byte_and_its_place);
    RUN(draws_are_uniform);
    RUN(time_in_which_the_process_was_stopped_is_not_running_time);
    return check_done();
}
