/*
 * emulator: the emulator itself.
 */
#include "emulated.h"

#include "emu/faults.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the emulator itself ---- */

/* Launches wait here while `later`; see double.h. */
static struct {
    void (*fn)(void *ctx), (*drop)(void *ctx);
    void *ctx;
} queued[4];
static int queue_length;
static bool later;

void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx));

void hvt_double_launch(void *stream, void (*fn)(void *ctx), void *ctx, void (*drop)(void *ctx))
{
    (void)stream;
    if (later) {
        queued[queue_length].fn = fn;
        queued[queue_length].ctx = ctx;
        queued[queue_length++].drop = drop;
        return;
    }
    fn(ctx);
    drop(ctx);
}

TEST(a_launch_takes_its_arguments_with_it_and_runs_again)
{
    float x[3] = {1, 2, 3}, y[3] = {10, 20, 30}, word = 7, put = 0;
    const void *in[] = {x, y};

    later = true;
    CHECK_OK(hvt__reduce_cuda(&emulated, 3, HVT_F32, in, 2, x));
    CHECK_OK(hvt__cuda_put(&emulated, &put, &word, sizeof word));
    later = false;
    in[0] = in[1] = NULL;
    word = 8;
    CHECK(x[0] == 1 && put == 0, "ran at once");
    for (int i = 0; i < 2; i++)
        for (int q = 0; q < queue_length; q++)
            queued[q].fn(queued[q].ctx);
    CHECK(x[0] == 21 && x[1] == 42 && x[2] == 63, "%g %g %g", x[0], x[1], x[2]);
    CHECK(put == 7, "%g", put);
    while (queue_length--)
        queued[queue_length].drop(queued[queue_length].ctx);
    queue_length = 0;
}

/* Does it end the process? */
static bool aborts(emu_fault which)
{
    pid_t child = fork();
    int status = 0;
    unsigned word;

    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || hvt_emu_faulty(which, &word) != cudaSuccess)
            _exit(2);
        _exit(0);
    }
    waitpid(child, &status, 0);
    return (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT) ||
           (WIFEXITED(status) && WEXITSTATUS(status) == 1);
}

TEST(the_emulator_tells_what_is_wrong)
{
    unsigned first = 0, last = 0;

    hvt_emu_order(0);
    CHECK_CUDA(hvt_emu_faulty(FAULT_RACE, &first));
    hvt_emu_order(1);
    CHECK_CUDA(hvt_emu_faulty(FAULT_RACE, &last));
    CHECK(first == 63 && last == 0, "a race shows nothing: %u and %u", first, last);
    CHECK_CUDA(hvt_emu_faulty(FAULT_UNWRITTEN, &first));
    CHECK(first == UINT32_MAX, "shared memory begins as %u", first);
    CHECK(aborts(FAULT_EARLY_END), "a thread that never comes to the barrier");
    CHECK(aborts(FAULT_OTHER_BARRIER), "threads at two barriers");
    CHECK(hvt_emu_faulty(FAULT_BIG_BLOCK, &first) == cudaErrorInvalidConfiguration, "1025 threads");
}

int main(void)
{
    open_emulated();
    RUN(a_launch_takes_its_arguments_with_it_and_runs_again);
    if (IS_TSAN)
        check_skip("the_emulator_tells_what_is_wrong", "one of the faults is a race");
    else
        RUN(the_emulator_tells_what_is_wrong);
    return close_emulated();
}
