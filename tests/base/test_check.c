/* check.h itself: the exit code of a test program whose tests hold, fail, are skipped, or check nothing. */
#include "check.h"

#include <sys/wait.h>
#include <unistd.h>

static void holds(void)
{
    CHECK(true, "never said");
}

static void fails(void)
{
    CHECK(false, "on purpose");
}

static void checks_nothing(void)
{
}

static void is_skipped(void)
{
    SKIP("on purpose");
}

static void fails_and_is_skipped(void)
{
    fails();
    SKIP("on purpose");
}

/* The exit code of a program of these two tests. */
static int program(void (*first)(void), void (*second)(void))
{
    int status = -1;
    pid_t child = fork();

    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(99);
        check_failed = check_ran = check_skipped = 0;
        check_run("first", first);
        check_run("second", second);
        _exit(check_done());
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "no child");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_test_that_checks_nothing_has_failed)
{
    CHECK(program(holds, holds) == 0, "two that hold");
    CHECK(program(holds, fails) == 1, "one that fails");
    CHECK(program(holds, checks_nothing) == 1, "one that checks nothing, behind one that holds");
    CHECK(program(checks_nothing, holds) == 1, "one that checks nothing, before one that holds");
    CHECK(program(is_skipped, checks_nothing) == 1, "one that checks nothing, behind one that is skipped");
}

TEST(a_test_that_is_skipped_has_neither_passed_nor_failed)
{
    CHECK(program(is_skipped, is_skipped) == 77, "none has run");
    CHECK(program(is_skipped, holds) == 0, "one has run");
    CHECK(program(fails, is_skipped) == 1, "one has run and failed");
    CHECK(program(holds, fails_and_is_skipped) == 1, "a skip does not hide a failure before it");
}

int main(void)
{
    fflush(stdout); /* children have none of it */
    RUN(a_test_that_checks_nothing_has_failed);
    RUN(a_test_that_is_skipped_has_neither_passed_nor_failed);
    return check_done();
}
