/*
 * cuda-races: the thread sanitizer finds an injected race in a kernel, of three kinds, and none without one.
 * cuda-kernels-*-tsan show that cuda/'s kernels have none.
 *
 * The program runs itself with the number of a race; the sanitizer ends it with its own exit code.
 */
#include "check.h"
#include "emu/emu.h"
#include "emu/faults.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CLEAN = 0, RACE = 66 };

static const char *program;

static int race(emu_race which)
{
    unsigned word[RACE_WORDS] = {0};

    hvt_emu_order(1);
    return hvt_emu_race(which, word) == cudaSuccess ? CLEAN : 1;
}

static int ends_with(emu_race which)
{
    char number[2] = {(char)('0' + which), 0};
    pid_t child = fork();
    int status = 0;

    if (child == 0) {
        setenv("TSAN_OPTIONS", "exitcode=66:halt_on_error=1", 1);
        if (freopen("/dev/null", "w", stderr))
            execl(program, program, number, (char *)NULL);
        _exit(2);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(a_race_of_each_kind_is_found)
{
    static const char *const kind[RACES] = {"none", "a barrier is missing", "blocks write one word",
                                            "a fence is missing"};

    for (emu_race r = RACE_NONE; r < RACES; r++) {
        int got = ends_with(r), want = r == RACE_NONE ? CLEAN : RACE;

        CHECK(got == want, "%s: ended with %d, not %d", kind[r], got, want);
    }
}

int main(int argc, char **argv)
{
    program = argv[0];
    if (argc > 1)
        return race((emu_race)(argv[1][0] - '0'));
    RUN(a_race_of_each_kind_is_found);
    return check_done();
}
