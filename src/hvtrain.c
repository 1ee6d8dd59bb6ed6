/*
 * hvtrain: options, world, run, exit code (0 done, 1 failed, 2 bad command line, 3 a rank was unresponsive,
 * 130 interrupted).
 *
 * An error is one line on stderr, printed once: by rank 0 if all ranks have it, else by the rank where it
 * happened, which then ends the job. It is our last line.
 */
#include "train/run.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, BAD_COMMAND_LINE = 2 };

static void print_line(void *ctx, hvt_log_level level, const char *line)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};

    (void)ctx;
    fprintf(stderr, "%shvtrain: %s%s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", prefix[level], line);
}

static int answer(hvt_ask ask)
{
    char *help;

    if (hvt__process_launched_rank() > 0)
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

/* Print the last error if all ranks have it, else end the job with it. Returns the exit code. */
static int fail(hvt_world *world, int code)
{
    const char *clear = isatty(STDERR_FILENO) ? "\r\033[K" : "";
    char why[2400];

    HVT_DEBUG("trace:\n%s", hvt_last_trace());
    if (!world) { /* only this rank can print an error of its own */
        if (hvt__process_launched_rank() <= 0 || !hvt_last_error_is_agreed())
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
    if (hvt__signals_claim_report(why))
        fprintf(stderr, "%shvtrain: %s\n", clear, why);
    hvt_world_abort(world, code);
}

/* Only rank 0 prints warnings and notes. */
static void set_log_level(const hvt_world *world, const hvt_options *opts)
{
    hvt_log_level level = opts->quiet ? HVT_LOG_WARN : HVT_LOG_INFO;

    hvt_log_to(print_line, NULL, hvt_world_rank(world) > 0 ? HVT_LOG_ERROR : level);
}

/* Options from files: --config first, since it overrides a checkpoint and may name one. Then resolve them. */
static int resolve(hvt_options *opts, hvt_world *world, void *memory[2], hvt_resolved *ret_resolved)
{
    if (hvt_options_agree(opts, world) || hvt__signals_open(world))
        return fail(world, FAILED);
    if (*opts->config && hvt_options_config(opts, world, &memory[0]))
        return fail(world, BAD_COMMAND_LINE);
    set_log_level(world, opts);
    if (hvt_options_resume(opts, world, &memory[1]))
        return fail(world, FAILED);
    if (hvt_world_agree(world, hvt__resolve(opts, hvt_world_size(world), ret_resolved)))
        return fail(world, BAD_COMMAND_LINE);
    return DONE;
}

static int start(hvt_options *opts, hvt_status parsed, hvt_world *world)
{
    void *memory[2] = {NULL, NULL}; /* of options from files */
    hvt_resolved resolved;
    hvt_report report;
    hvt_status s;
    int code;

    if (hvt_world_agree(world, parsed))
        return fail(world, BAD_COMMAND_LINE);
    code = resolve(opts, world, memory, &resolved);
    if (code == DONE) {
        s = opts->ask == HVT_ASK_TUNE ? hvt__tune(opts, &resolved, world)
                                      : hvt__train(opts, &resolved, world, &report);
        code = s ? fail(world, FAILED) : DONE;
    }
    free(memory[0]);
    free(memory[1]);
    hvt__signals_close();
    return code;
}

int main(int argc, char **argv)
{
    hvt_options opts;
    hvt_world *world = NULL;
    hvt_status parsed;
    hvt__error why;
    int code;

    hvt_options_default(&opts);
    parsed = hvt_options_parse(argc, argv, &opts);
    if (parsed == HVT_OK && opts.ask != HVT_ASK_TRAIN && opts.ask != HVT_ASK_TUNE)
        return answer(opts.ask);
    hvt__error_take(&why);
    if (hvt_world_open(NULL, &world))
        return fail(NULL, FAILED);
    set_log_level(world, &opts);
    hvt__error_put(&why); /* the error of the command line, which opening the world may have overwritten */
    code = start(&opts, parsed, world);
    hvt_world_close(&world);
    return code;
}
