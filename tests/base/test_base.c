/* base: errors keep their first line and their trace, draws are uniform, hashes depend on every byte, pauses
 * do not count as work. */
#define _GNU_SOURCE /* SCHED_IDLE */
#include "base_impl.h"
#include "check.h"

#include <math.h>
#include <sched.h>
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

TEST(an_error_is_one_line)
{
    (void)HVT_FAIL(E_FORMAT, "layer %s", "a\nb\r\x1b[2J\x7f\xc3\xa9");
    CHECK(!strcmp(hvt_last_error(), "layer a?b??[2J?\xc3\xa9"), "'%s'", hvt_last_error());
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

/* An emulator's threads wait for each other's translations, which looks like a stop where one of them does
 * not get a processor. */
static bool is_emulated(void)
{
    return CHECK_EMULATED || getenv("HVT_TEST_EMULATED");
}

TEST(time_in_which_the_process_was_stopped_is_not_running_time)
{
    double now = hvt__now(), began;

    if (is_emulated())
        SKIP("under an emulator");
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

static void spin_on(const cpu_set_t *cpu, pid_t parent)
{
    double end = hvt__now() + 4;

    sched_setaffinity(0, sizeof *cpu, cpu);
    while (hvt__now() < end && getppid() == parent)
        ;
    _exit(0);
}

/* A process that gets what two others leave of a processor. What counts as a pause is its exit code, in
 * tenths of a second. */
static int pause_under_load(void)
{
    const struct sched_param none = {0};
    pid_t me = getpid(), child[2];
    double before = hvt__paused(hvt__now());
    cpu_set_t cpu;
    int tenths;

    CPU_ZERO(&cpu);
    CPU_SET((size_t)sched_getcpu(), &cpu);
    for (int i = 0; i < 2; i++)
        if ((child[i] = fork()) == 0)
            spin_on(&cpu, me);
    sched_setaffinity(0, sizeof cpu, &cpu);
    sched_setscheduler(0, SCHED_IDLE, &none);
    hvt__pause_open();
    for (double end = hvt__now() + 4; hvt__now() < end;)
        hvt__running();
    tenths = (int)(10 * (hvt__paused(hvt__now()) - before));
    hvt__pause_close();
    for (int i = 0; i < 2; i++)
        waitpid(child[i], NULL, 0);
    return tenths;
}

TEST(load_is_not_taken_for_a_stop)
{
    pid_t child;
    int status = 0;

    if (is_emulated())
        SKIP("under an emulator");
    child = fork();
    if (child == 0)
        _exit(pause_under_load());
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) < 5, "a pause of %g s", WEXITSTATUS(status) / 10.0);
}

TEST(the_cache_folder_is_made_where_its_variables_say_and_is_none_without)
{
    char dir[] = "/tmp/hvt-test-XXXXXX", path[PATH_MAX], wanted[PATH_MAX], deep[PATH_MAX];

    CHECK(mkdtemp(dir), "no folder to test in");
    setenv("HOME", dir, 1);
    setenv("XDG_CACHE_HOME", "relative", 1); /* such a path is to be ignored */
    hvt__cache_path("plans", path);
    snprintf(wanted, sizeof wanted, "%s/.cache/hvtrain/plans", dir);
    CHECK(!strcmp(path, wanted), "%s", path);
    snprintf(wanted, sizeof wanted, "%s/other", dir);
    setenv("XDG_CACHE_HOME", wanted, 1);
    hvt__cache_path("plans", path);
    CHECK(!strncmp(path, wanted, strlen(wanted)) && !strcmp(path + strlen(wanted), "/hvtrain/plans"), "%s",
          path);
    *strrchr(path, '/') = 0;
    CHECK(rmdir(path) == 0 && rmdir(wanted) == 0, "%s was not made", path);
    memset(deep, 'd', sizeof deep);
    deep[0] = '/';
    deep[sizeof deep - 10] = 0;
    setenv("XDG_CACHE_HOME", deep, 1);
    hvt__cache_path("plans", path);
    CHECK(!*path, "a path of %zu bytes", strlen(path));
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    hvt__cache_path("plans", path);
    CHECK(!*path, "%s", path);
    snprintf(path, sizeof path, "%s/.cache/hvtrain", dir);
    CHECK(rmdir(path) == 0, "%s was not made", path);
    *strrchr(path, '/') = 0;
    rmdir(path);
    rmdir(dir);
}

int main(void)
{
    RUN(an_error_names_its_cause_and_its_callers);
    RUN(an_error_may_quote_the_one_before);
    RUN(an_error_is_one_line);
    RUN(a_long_error_is_cut_not_overrun);
    RUN(a_hash_sees_every_byte_and_its_place);
    RUN(draws_are_uniform);
    RUN(time_in_which_the_process_was_stopped_is_not_running_time);
    RUN(load_is_not_taken_for_a_stop);
    RUN(the_cache_folder_is_made_where_its_variables_say_and_is_none_without);
    return check_done();
}
