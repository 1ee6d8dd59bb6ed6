/*
 * hvtrain: options, world, run, exit code (0 done, 1 failed, 2 bad command line, 3 a rank was unresponsive,
 * 130 interrupted by SIGINT, --preempt-exit if the end was requested).
 *
 * An error is one line on stderr, printed once: by rank 0 if all ranks have it, otherwise by the rank where
 * it happened, which then ends the job. It is the last line.
 */
#include "hvt/train.h"
#include "train/check/check.h"
#include "train/devices.h"
#include "train/inspect/inspect.h"
#include "train/process/process_impl.h"
#include "base/line.h"
#include "base/thread.h"
#include "base_impl.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { DONE = 0, FAILED = 1, BAD_COMMAND_LINE = 2 };

static void print_line(void *ctx, hvt_log_level level, const char *line)
{
    static const char *const prefix[] = {"error: ", "warning: ", "", "debug: "};

    hvt__print_line(STDERR_FILENO, "%shvtrain: %s%s", isatty(STDERR_FILENO) ? "\r\033[K" : "", prefix[level],
                    line);
}

static int answer(const char *topic)
{
    bool another = hvt_world_launched_rank() > 0; /* rank prints it */
    char *text = another ? NULL : hvt_options_help(topic);
    bool done = another || (text && fputs(text, stdout) >= 0 && fflush(stdout) == 0);

    free(text);
    return done ? DONE : FAILED;
}

/* Without a world; of several processes the first writes. */
static int report(const hvt_options *opts)
{
    hvt_status s;

    hvt__log_beside(print_line, NULL, HVT_LOG_INFO);
    if (hvt_world_launched_rank() > 0)
        return DONE;
    s = hvt_report_write(opts);
    if (s)
        print_line(NULL, HVT_LOG_INFO, hvt_last_error());
    return s == HVT_E_ARG ? BAD_COMMAND_LINE : s ? FAILED : DONE;
}

/* Prints the last error if all ranks have it; otherwise ends the job with it. Returns the exit code. */
static int fail(hvt_world *world, int code)
{
    bool agreed = hvt_last_error_is_agreed();
    char why[2400];

    HVT_DEBUG("trace:\n%s", hvt_last_trace());
    if (!world || agreed || hvt_world_size(world) == 1) {
        /* without a world only this rank can print its own error */
        if (world ? hvt__signals_speaks(world) : hvt_world_launched_rank() <= 0 || !agreed)
            print_line(NULL, HVT_LOG_INFO, hvt_last_error());
        return code;
    }
    snprintf(why, sizeof why, "rank %d on %s: %s", hvt_world_rank(world),
             hvt_world_host(world, hvt_world_rank(world)), hvt_last_error());
    if (hvt__signals_claim_report(why))
        print_line(NULL, HVT_LOG_INFO, why);
    hvt_world_abort(world, code);
}

/* The line has been printed. */
static void end_stalled(void *ctx, const char *line)
{
    _exit(HVT_EXIT_STALLED);
}

/* Only rank 0 prints warnings and notes. */
static void set_log_level(const hvt_world *world, const hvt_options *opts)
{
    hvt_log_level level = opts->quiet ? HVT_LOG_WARN : HVT_LOG_INFO;

    hvt__log_beside(print_line, NULL, hvt_world_rank(world) > 0 ? HVT_LOG_ERROR : level);
}

/* Reads options from files, and checks that all fit together. */
static int prepare(hvt_options *opts, hvt_world *world)
{
    hvt_status s = hvt_options_prepare(opts, world);

    if (!strcmp(hvt_world_name(world), "threads"))
        hvt__kin.most = hvt_world_rank(world) == 0 && opts->quiet ? HVT_LOG_WARN : hvt__kin.most;
    else
        set_log_level(world, opts);
    return s == HVT_OK ? DONE : fail(world, s == HVT_E_ARG ? BAD_COMMAND_LINE : FAILED);
}

static hvt_status run(const hvt_options *opts, hvt_world *world, hvt_report *ret_report)
{
    return opts->ask == HVT_ASK_TUNE   ? hvt_tune(opts, world)
           : opts->ask == HVT_ASK_PACK ? hvt_pack(opts, world)
                                       : hvt_train(opts, world, ret_report);
}

/* Runs without MPI, and in a pipe whose reader may leave. */
static int inspect(hvt_options *opts)
{
    hvt_world *alone = NULL;
    int code = DONE;

    if (hvt_world_launched_rank() > 0) /* rank 0 prints it */
        return DONE;
    signal(SIGPIPE, SIG_DFL);
    if ((*opts->config || *opts->recipe) &&
        (hvt_world_open("singleton", &alone) || hvt_options_prepare(opts, alone)))
        code = fail(NULL, BAD_COMMAND_LINE);
    else if (hvt__inspect(opts))
        code = fail(NULL, FAILED);
    hvt_options_release(opts);
    hvt_world_close(&alone);
    return code;
}

/* The check explains a failed start. */
static int check(const hvt_options *opts, hvt_world *world)
{
    int faults = 0;

    if ((world || hvt_world_launched_rank() <= 0) && hvt__check(opts, world, &faults))
        return fail(world, FAILED);
    return faults || !world ? FAILED : DONE;
}

/* Signals are requests only to a run that can save. from_files: all options are known. */
static void set_ending(const hvt_options *opts, bool from_files)
{
    bool trains = opts->ask == HVT_ASK_TRAIN && !opts->evaluate;
    bool may_save = *opts->save || (!from_files && (*opts->config || *opts->resume));

    if (!trains || !may_save)
        hvt__signals_end_at_once(trains);
}

static int start(hvt_options *opts, hvt_status parsed, hvt_world *world)
{
    hvt_report report = {0};
    int code;

    if (hvt_world_agree(world, parsed))
        return fail(world, BAD_COMMAND_LINE);
    if (opts->ask == HVT_ASK_CHECK)
        return check(opts, world);
    code = prepare(opts, world);
    hvt__signals_exit_code(opts->preempt_exit);
    if (code == DONE)
        set_ending(opts, true);
    if (code == DONE && run(opts, world, &report))
        code = fail(world, FAILED);
    else if (code == DONE && report.preempted)
        code = hvt__signals_code();
    hvt_options_release(opts);
    return code;
}

typedef struct job {
    const hvt_options *opts;
    atomic_int code; /* of the first rank that did not succeed */
} job;

static hvt_status start_rank(hvt_world *world, void *ctx)
{
    job *j = ctx;
    hvt_options opts = *j->opts;
    int code = start(&opts, HVT_OK, world), none = DONE;

    if (code != DONE)
        atomic_compare_exchange_strong(&j->code, &none, code);
    return HVT_OK;
}

/* A rank for each of --devices, or this process as one. */
static int start_ranks(hvt_options *opts, hvt_status parsed, hvt_world *world)
{
    job j = {.opts = opts};
    hvt_status s;

    if (parsed != HVT_OK || !*opts->devices)
        return start(opts, parsed, world);
    s = hvt__devices_run(opts, world, start_rank, &j);
    if (s)
        return fail(world, s == HVT_E_ARG ? BAD_COMMAND_LINE : FAILED);
    return atomic_load(&j.code);
}

/* Becomes a rank of --spawn, or waits for all of them; ret_code: -1, or their exit code. */
static hvt_status spawn(const hvt_options *opts, int *ret_code)
{
    sigset_t all;

    *ret_code = -1;
    if (opts->spawn == 0)
        return HVT_OK;
    HVT_CHECK(!*opts->init_method && opts->rank < 0 && opts->world_size < 1 && !*opts->interface, E_ARG,
              "--spawn %d numbers and connects its ranks itself: leave out %s", opts->spawn,
              *opts->init_method     ? "--init-method"
              : opts->rank >= 0      ? "--rank"
              : opts->world_size > 0 ? "--world-size"
                                     : "--interface");
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL); /* signals wait until a rank knows its number */
    HVT_TRY(hvt_spawn(opts->spawn, ret_code));
    if (*ret_code < 0)
        hvt__signals_begin(); /* as a rank; unblocks them */
    return HVT_OK;
}

static hvt_status join(const hvt_options *opts, hvt_world **ret_world)
{
    const hvt_tcp_opts how = {opts->init_method, opts->rank, opts->world_size, opts->interface};
    char text[16];

    if (opts->rank >= 0 && opts->world_size > 0) { /* until there is a world, for messages of rank 0 only */
        snprintf(text, sizeof text, "%d", opts->rank);
        setenv("RANK", text, 1);
        snprintf(text, sizeof text, "%d", opts->world_size);
        setenv("WORLD_SIZE", text, 1);
        hvt__signals_begin();
    }
    return hvt_world_join(&how, ret_world);
}

/* A --stall-abort before --stall-warn holds while ranks meet, and is refused once they have met. */
static void watch(const hvt_options *opts)
{
    hvt_stall stall = {opts->stall_warn, opts->stall_abort};

    if (opts->ask == HVT_ASK_CHECK)
        stall = hvt__check_patience(opts, true);
    if (stall.abort > 0 && stall.warn > stall.abort)
        stall.warn = stall.abort;
    hvt_world_watch(NULL, &stall);
}

int main(int argc, char **argv)
{
    hvt_options opts;
    hvt_world *world = NULL;
    hvt_status parsed, s;
    hvt__error why;
    int code;

    hvt__signals_begin();
    if (hvt__process_open(hvt_world_launched_rank() >= 0))
        return fail(NULL, FAILED);
    hvt_options_default(&opts);
    parsed = hvt_options_parse(argc, argv, &opts);
    set_ending(&opts, false);
    if (parsed == HVT_OK && opts.ask == HVT_ASK_HELP)
        return answer(opts.help_topic);
    if (parsed == HVT_OK && opts.ask == HVT_ASK_INSPECT)
        return inspect(&opts);
    if (parsed == HVT_OK && opts.ask == HVT_ASK_REPORT)
        return report(&opts);
    hvt__error_take(&why);
    hvt__log_beside(print_line, NULL, HVT_LOG_INFO); /* opening the world may print a line on every host */
    hvt_world_on_stall(end_stalled, NULL);
    if (parsed == HVT_OK)
        watch(&opts);
    if (parsed == HVT_OK && (s = spawn(&opts, &code)))
        return fail(NULL, s == HVT_E_ARG ? BAD_COMMAND_LINE : FAILED);
    if (parsed == HVT_OK && code >= 0)
        return code;
    if (join(&opts, &world))
        return opts.ask == HVT_ASK_CHECK ? check(&opts, NULL) : fail(NULL, FAILED);
    set_log_level(world, &opts);
    hvt__error_put(&why); /* the command line's error, which opening the world may have overwritten */
    code = parsed == HVT_OK && opts.ask != HVT_ASK_CHECK && hvt__signals_open(world)
               ? fail(world, FAILED)
               : start_ranks(&opts, parsed, world);
    hvt__signals_close();
    hvt_world_close(&world);
    return code;
}
