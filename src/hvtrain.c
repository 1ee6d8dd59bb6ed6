/*
 * hvtrain: options, world, run, exit code: 0 done, 1 failed, 2 bad command line, 3 a rank did not come, 130
 * interrupted.
 *
 * An error is one line on stderr, printed once: by rank 0 if all ranks hold it, else by the rank that it
 * happened to, which then ends the job. Nothing of ours follows it.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, BAD_COMMAND_LINE = 2 };

/* Our rank as the launcher says, before (or without) MPI; 0 if there is none. */
static int launched_rank(void)
{
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"};

    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (getenv(names[i]))
            return atoi(getenv(names[i]));
    return 0;
}

static void print_line(void *ctx, hvt_log_level level, const char *line)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};

    (void)ctx;
    fprintf(stderr, "%shvtrain: %s%s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", prefix[level], line);
}

static int answer(hvt_ask ask)
{
    char *help;

    if (launched_rank() > 0)
        return DONE;
    if (ask == HVT_ASK_VERSION)
        return printf("hvtrain %s\n", hvt_version()) > 0 && fflush(stdout) == 0 ? DONE : FAILED;
    help = hvt_options_help(ask);
    if (!help || fputs(help, stdout) < 0 || fflush(stdout)) {
        free(help);
        return FAILED;
    }
    free(help);
    return DONE;
}

/* Print the last error as one of all ranks, or end the job with it. Returns the exit code. */
static int fail(hvt_world *world, int code)
{
    const char *clear = isatty(STDERR_FILENO) ? "\r\033[K" : "";
    char why[2400];

    HVT_DEBUG("trace:\n%s", hvt_last_trace());
    if (!world) { /* what happened to one rank alone nobody else can say */
        if (launched_rank() == 0 || !hvt_last_error_is_agreed())
            fprintf(stderr, "hvtrain: %s\n", hvt_last_error());
        return code;
    }
    if (hvt_last_error_is_agreed() || hvt_world_size(world) == 1) {
        if (hvt_world_rank(world) == 0)
            fprintf(stderr, "%shvtrain: %s\n", clear, hvt_last_error());
        return code;
    }
    snprintf(why, sizeof why, "rank %d on %s: %s", hvt_world_rank(world),
             hvt_world_host(world, hvt_world_rank(world)), hvt_last_error());
    if (hvt__interrupt_last_word(why))
        fprintf(stderr, "%shvtrain: %s\n", clear, why);
    hvt_world_abort(world, code);
}

/* Rank 0 speaks for all. */
static void listen(const hvt_world *world, const hvt_options *opts)
{
    hvt_log_level level = opts->verbose ? HVT_LOG_DEBUG : opts->quiet ? HVT_LOG_WARN : HVT_LOG_INFO;

    hvt_log_to(print_line, NULL, hvt_world_rank(world) > 0 ? HVT_LOG_ERROR : level);
}

/* Options from files, the one that wins first: it may name the other. Then all of them together. */
static int fill_in(hvt_options *opts, hvt_world *world, void *memory[2])
{
    if (hvt_options_agree(opts, world) || hvt__interrupt_open(world))
        return fail(world, FAILED);
    if (*opts->config && hvt_options_config(opts, world, &memory[0]))
        return fail(world, BAD_COMMAND_LINE);
    listen(world, opts);
    if (hvt_options_resume(opts, world, &memory[1]))
        return fail(world, FAILED);
    if (hvt_world_agree(world, hvt_options_check(opts, hvt_world_size(world))))
        return fail(world, BAD_COMMAND_LINE);
    return DONE;
}

static int run(hvt_options *opts, hvt_status parsed, hvt_world *world)
{
    void *memory[2] = {NULL, NULL}; /* of options that come from files */
    hvt_report report;
    int code;

    if (hvt_world_agree(world, parsed))
        return fail(world, BAD_COMMAND_LINE);
    code = fill_in(opts, world, memory);
    if (code == DONE && (opts->ask == HVT_ASK_TUNE ? hvt_tune(opts, world) : hvt_train(opts, world, &report)))
        code = fail(world, FAILED);
    free(memory[0]);
    free(memory[1]);
    hvt__interrupt_close();
    return code;
}

int main(int argc, char **argv)
{
    hvt_options opts;
    hvt_world *world = NULL;
    hvt_status parsed;
    char why[2048];
    int code;

    hvt_options_default(&opts);
    parsed = hvt_options_parse(argc, argv, &opts);
    if (parsed == HVT_OK && opts.ask != HVT_ASK_TRAIN && opts.ask != HVT_ASK_TUNE)
        return answer(opts.ask);
    snprintf(why, sizeof why, "%s", hvt_last_error());
    if (hvt_world_open(NULL, &world))
        return fail(NULL, FAILED);
    listen(world, &opts);
    if (parsed) /* raised again: opening the world may have used the error's place */
        parsed = HVT_FAIL(E_ARG, "%s", why);
    code = run(&opts, parsed, world);
    hvt_world_close(&world);
    return code;
}
