/*
 * What a run reports: JSON lines in the log; progress and results on stderr. summary.c reports its start.
 * Only rank 0 has a reporter; on the other ranks it is NULL, and every call does nothing.
 *
 * A *record* is one line of the log, written at once (log_file.c); numbers that are not finite become null.
 * The *bar* is a line that is redrawn where stderr is a terminal; it is cleared before anything else is
 * printed.
 */
#include "reporter.h"
#include "train/checkpoint/checkpoint_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the log ---- */

json_t *hvt__number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

static double percent(int64_t part, int64_t of)
{
    return of ? 100.0 * (double)part / (double)of : 0;
}

static double mean_loss(const hvt_loss *loss)
{
    return loss->count ? loss->sum / (double)loss->count : NAN;
}

/* line NULL: there was no memory for it. On an error nothing of the line is in the log. */
static hvt_status write_record(hvt_reporter *rep, char *line)
{
    size_t bytes = line ? strlen(line) + 1 : 0;
    bool wrote;

    HVT_CHECK(line, E_MEM, "--log %s: no memory for a record", rep->path);
    line[bytes - 1] = '\n'; /* instead of the 0 */
    wrote = hvt__log_line(fileno(rep->log), line, bytes);
    HVT_CHECK(wrote, E_IO, "--log %s: cannot write: %s", rep->path, strerror(errno));
    return HVT_OK;
}

hvt_status hvt__report_put(hvt_reporter *rep, json_t *record)
{
    char *line = record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(12)) : NULL;
    hvt_status s = HVT_OK;

    json_decref(record);
    s = write_record(rep, line);
    free(line);
    if (!rep->begun) {
        HVT_TRY(s);
        rep->begun = true;
        hvt__log_begun(fileno(rep->log));
    } else if (s && rep->missing++ == 0) {
        HVT_WARN("%s; training continues, and records are missing until it can be written again",
                 hvt_last_error());
    }
    return HVT_OK;
}

static void warn_missing(hvt_reporter *rep)
{
    if (rep->missing)
        HVT_WARN("--log %s: %lld record%s missing: it could not be written", rep->path,
                 (long long)rep->missing, rep->missing > 1 ? "s are" : " is");
    rep->missing = 0;
}

void hvt__report_failed(hvt_reporter *rep, int64_t steps)
{
    hvt__error why;

    if (!rep || !rep->begun)
        return;
    hvt__error_take(&why); /* main prints it afterwards */
    hvt__report_put(rep,
                    json_pack("{s:s, s:s, s:o, s:o, s:I, s:I}", "record", "end", "status", "failed", "error",
                              hvt__json_text(why.text), "seconds", hvt__number(hvt__process_seconds()),
                              "steps", (json_int_t)steps, "missing", (json_int_t)rep->missing));
    hvt__log_ended();
    warn_missing(rep);
    hvt__error_put(&why);
}

hvt_status hvt__report_check_path(const hvt_options *opts, const char *flag, const char *path,
                                  const struct stat *file)
{
    char init[HVT_OPTION_VALUE], resume[HVT_OPTION_VALUE];
    const char *const name[] = {init, resume, strcmp(flag, "--log") ? opts->log : ""};
    struct stat other;

    HVT_TRY(hvt__weights_file(opts->init, init, sizeof init));
    HVT_TRY(hvt__weights_file(opts->resume, resume, sizeof resume));
    for (size_t i = 0; i < HVT_LEN(name); i++)
        HVT_CHECK(!*name[i] || stat(name[i], &other) || file->st_dev != other.st_dev ||
                      file->st_ino != other.st_ino,
                  E_ARG, "%s %s: is the same file as %s, which this run %s", flag, path, name[i],
                  name[i] == opts->log ? "writes" : "reads");
    return HVT_OK;
}

/* Not emptied yet: the records of an earlier run stay until this one really begins. */
static hvt_status open_log(const hvt_options *opts, FILE **ret_log)
{
    FILE *f = hvt__open_stream(opts->log, true);
    struct stat info;
    hvt_status s;

    HVT_CHECK(f, E_IO, "--log %s: cannot write: %s", opts->log,
              errno == ENXIO ? "a pipe that nobody reads, or a socket" : strerror(errno));
    HVT_CHECK_OR(fail, fstat(fileno(f), &info) == 0, E_IO, "--log %s: %s", opts->log, strerror(errno));
    HVT_TRY_OR(fail, hvt__report_check_path(opts, "--log", opts->log, &info));
    HVT_TRY_OR(fail, hvt__log_lock(f, opts->log));
    *ret_log = f;
    return HVT_OK;
fail:
    fclose(f);
    return s;
}

hvt_status hvt__report_open(const hvt_options *opts, hvt_reporter **ret_rep)
{
    hvt_reporter *rep = calloc(1, sizeof *rep);
    const char *term = getenv("TERM");

    HVT_CHECK(rep, E_MEM, "no memory for reports");
    rep->quiet = opts->quiet;
    rep->evaluates = opts->evaluate;
    rep->bar = !opts->quiet && isatty(STDERR_FILENO) && term && strcmp(term, "dumb");
    rep->path = opts->log;
    if (*opts->log) {
        hvt_status s = open_log(opts, &rep->log);
        if (s) {
            free(rep);
            return s;
        }
    }
    *ret_rep = rep;
    return HVT_OK;
}

void hvt__report_close(hvt_reporter **rep)
{
    if (!*rep)
        return;
    hvt__signals_bar(false);
    hvt__log_ended();
    warn_missing(*rep);
    if ((*rep)->log && fclose((*rep)->log)) /* NFS and quotas report some errors only here */
        HVT_WARN("--log %s: the last records may be missing: %s", (*rep)->path, strerror(errno));
    free(*rep);
    *rep = NULL;
}

/* ---- stderr ---- */

static void clear_bar(hvt_reporter *rep)
{
    if (rep->bar && rep->bar_drawn != 0)
        fputs("\r\033[K", stderr);
    rep->bar_drawn = 0;
    hvt__signals_bar(false);
}

void hvt__report_print(hvt_reporter *rep, const char *fmt, ...)
{
    va_list ap;

    if (rep->quiet)
        return;
    clear_bar(rep);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static void duration(double seconds, char ret_text[32])
{
    long s = (long)(seconds + 0.5);

    if (!(seconds >= 0 && seconds < 1e8))
        snprintf(ret_text, 32, "?");
    else if (s < 60)
        snprintf(ret_text, 32, "%lds", s);
    else if (s < 3600)
        snprintf(ret_text, 32, "%ldm%02lds", s / 60, s % 60);
    else
        snprintf(ret_text, 32, "%ldh%02ldm", s / 3600, s / 60 % 60);
}

/* ---- progress ---- */

bool hvt__report_bar_due(const hvt_reporter *rep)
{
    return rep && rep->bar && hvt__now() - rep->bar_drawn >= 0.1;
}

static int terminal_width(void)
{
    struct winsize w;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20 ? w.ws_col : 80;
}

/* head [====>   ] rest */
static void draw_bar(hvt_reporter *rep, const char *head, double part, const char *rest)
{
    enum { MOST = 24, LEAST = 4 };
    char bar[MOST + 1];
    int room, full, columns = terminal_width() - 1;

    room = columns - (int)(strlen(head) + strlen(rest)) - 4; /* shorten the bar rather than the numbers */
    room = room > MOST ? MOST : room < LEAST ? LEAST : room;
    full = (int)(part * room + 1e-6);
    memset(bar, ' ', (size_t)room);
    memset(bar, '=', (size_t)full);
    if (full < room)
        bar[full] = '>';
    bar[room] = 0;
    hvt__signals_bar(true);
    fprintf(stderr, "\r\033[K%s [%s] %.*s", head, bar, columns - (int)strlen(head) - room - 4, rest);
    rep->bar_drawn = hvt__now();
}

void hvt__report_bar(hvt_reporter *rep, const hvt_step_report *r)
{
    char rest[200], head[40], left[32];

    duration(r->left, left);
    snprintf(head, sizeof head, "epoch %d/%d", r->epoch, r->epochs);
    snprintf(rest, sizeof rest, "%u/%u  loss %.4f  top-1 %.2f %%  %.0f img/s  eta %s", r->in_epoch, r->of,
             mean_loss(&r->loss), percent(r->loss.top1, r->loss.count), r->img_s, left);
    draw_bar(rep, head, r->of ? (double)r->in_epoch / r->of : 0, rest);
}

void hvt__report_eval_bar(hvt_reporter *rep, int64_t images, int64_t of)
{
    char rest[80];

    snprintf(rest, sizeof rest, "%" PRId64 "/%" PRId64 " images", images, of);
    draw_bar(rep, "test", of ? (double)images / (double)of : 0, rest);
}

hvt_status hvt__report_step(hvt_reporter *rep, const hvt_step_report *r)
{
    char left[32];

    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(hvt__report_put(
            rep, json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:I}", "record", "step", "epoch",
                           r->epoch, "step", (json_int_t)r->step, "loss", hvt__number(mean_loss(&r->loss)),
                           "top1", hvt__number(percent(r->loss.top1, r->loss.count)), "lr",
                           hvt__number(r->lr), "img_s", hvt__number(r->img_s), "loss_scale",
                           hvt__number(r->loss_scale), "skipped", (json_int_t)r->skipped)));
    duration(r->left, left);
    if (!rep->bar)
        hvt__report_print(rep, "epoch %d/%d  step %u/%u  loss %.4f  top-1 %.2f %%  lr %g  %.0f img/s  eta %s",
                          r->epoch, r->epochs, r->in_epoch, r->of, mean_loss(&r->loss),
                          percent(r->loss.top1, r->loss.count), r->lr, r->img_s, left);
    return HVT_OK;
}

#define WORTH_PRINTING 0.01 /* fraction of the epoch */

hvt_status hvt__report_epoch(hvt_reporter *rep, const hvt_epoch_report *r)
{
    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(hvt__report_put(
            rep,
            json_pack("{s:s, s:i, s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:I}",
                      "record", "epoch", "epoch", r->epoch, "steps", (json_int_t)r->steps, "train_loss",
                      hvt__number(mean_loss(&r->loss)), "top1",
                      hvt__number(percent(r->loss.top1, r->loss.count)), "top5",
                      hvt__number(percent(r->loss.top5, r->loss.count)), "img_s", hvt__number(r->img_s),
                      "seconds", hvt__number(r->seconds), "compute", hvt__number(r->compute), "exposed_comm",
                      hvt__number(r->exposed_comm), "data_wait", hvt__number(r->data_wait), "other",
                      hvt__number(r->other), "wait_skew", hvt__number(r->wait_skew), "waited_for",
                      r->waited_for < 0 ? json_null() : json_integer(r->waited_for), "loss_scale",
                      hvt__number(r->loss_scale), "skipped", (json_int_t)r->skipped)));
    hvt__report_print(
        rep,
        "epoch %d/%d: loss %.4f, top-1 %.2f %%, top-5 %.2f %%; %.0f img/s, %.1f s (%.1f %% computing, %.1f "
        "%% "
        "waiting for the exchange, %.1f %% for data)",
        r->epoch, r->epochs, mean_loss(&r->loss), percent(r->loss.top1, r->loss.count),
        percent(r->loss.top5, r->loss.count), r->img_s, r->seconds, 100 * r->compute, 100 * r->exposed_comm,
        100 * r->data_wait);
    if (r->waited_for >= 0 && r->wait_skew >= WORTH_PRINTING)
        hvt__report_print(
            rep, "  others waited for rank %d (%s): up to %.1f %% of the time more than it did itself",
            r->waited_for, r->waited_host, 100 * r->wait_skew);
    return HVT_OK;
}

hvt_status hvt__report_overlap(hvt_reporter *rep, const char *overlap, const double seconds[2])
{
    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(hvt__report_put(rep, json_pack("{s:s, s:s, s:o, s:o}", "record", "overlap", "overlap",
                                               overlap, "seconds_off", hvt__number(seconds[0]),
                                               "seconds_worker", hvt__number(seconds[1]))));
    hvt__report_print(rep,
                      "overlap %s: an update takes %.3g ms without, %.3g ms with a worker for the exchange",
                      overlap, 1e3 * seconds[0], 1e3 * seconds[1]);
    return HVT_OK;
}

hvt_status hvt__report_eval(hvt_reporter *rep, int epoch, const hvt_loss *loss, const hvt__odd_losses *odd)
{
    double top1 = percent(loss->top1, loss->count), top5 = percent(loss->top5, loss->count);
    char text[200], mean[32];

    snprintf(mean, sizeof mean, fabs(mean_loss(loss)) < 1e6 ? "%.4f" : "%g", mean_loss(loss));

    if (!rep)
        return HVT_OK;
    if (rep->log)
        HVT_TRY(hvt__report_put(rep, json_pack("{s:s, s:i, s:o, s:o, s:o, s:I, s:I, s:I}", "record", "eval",
                                               "epoch", epoch, "loss", hvt__number(mean_loss(loss)), "top1",
                                               hvt__number(top1), "top5", hvt__number(top5), "count",
                                               (json_int_t)loss->count, "nan", (json_int_t)odd->nan, "inf",
                                               (json_int_t)odd->inf)));
    snprintf(text, sizeof text, "test after epoch %d: loss %s, top-1 %.2f %%, top-5 %.2f %% of %lld images",
             epoch, mean, top1, top5, (long long)loss->count);
    if (!rep->evaluates) {
        hvt__report_print(rep, "%s", text);
        return HVT_OK;
    }
    clear_bar(rep);
    errno = 0;
    HVT_CHECK(printf("%s\n", text) > 0 && fflush(stdout) == 0, E_IO, "cannot write the result (%s): %s", text,
              strerror(errno));
    return HVT_OK;
}

/* Complete command lines that a user can copy. */
static void print_next(hvt_reporter *rep, const hvt_options *opts)
{
    const char *program = hvt__process_program(), *device = strcmp(opts->device, "cpu") ? opts->device : "";
    char best[HVT_OPTION_VALUE + 20], dir_word[HVT_SHELL_WORD], best_word[HVT_SHELL_WORD];

    if (!*opts->save) {
        hvt__report_print(rep, "next: nothing was saved; the same command with --save DIR keeps the weights");
        return;
    }
    snprintf(best, sizeof best, "%s/best.safetensors", opts->save);
    hvt__report_print(rep, "next: %s --resume %s --epochs %d%s%s  # continues", program,
                      hvt__shell_word(opts->save, dir_word),
                      opts->epochs > INT_MAX / 2 ? INT_MAX : 2 * opts->epochs, *device ? " --device " : "",
                      device);
    hvt__report_print(rep, "      %s --resume %s --evaluate%s%s  # tests the best weights", program,
                      hvt__shell_word(best, best_word), *device ? " --device " : "", device);
}

hvt_status hvt__report_end(hvt_reporter *rep, const hvt_options *opts, const hvt_end_report *r)
{
    char hex[17], took[32];

    if (!rep)
        return HVT_OK;
    snprintf(hex, sizeof hex, "%016" PRIx64, r->weights);
    if (rep->log)
        HVT_TRY(hvt__report_put(
            rep,
            json_pack("{s:s, s:s, s:o, s:I, s:I, s:o, s:s, s:o, s:I, s:I, s:I}", "record", "end", "status",
                      "done", "seconds", hvt__number(r->seconds), "steps", (json_int_t)r->steps, "skipped",
                      (json_int_t)r->skipped, "loss_scale", hvt__number(r->loss_scale), "weights", hex,
                      "first_update_s", r->first_update < 0 ? json_null() : hvt__number(r->first_update),
                      "peak_bytes", (json_int_t)r->peak_bytes, "device_peak_bytes",
                      (json_int_t)r->device_peak_bytes, "missing", (json_int_t)rep->missing)));
    hvt__log_ended();
    duration(r->seconds, took);
    if (r->device_peak_bytes)
        hvt__report_print(rep, "GPU memory: at most %.0f MiB on a rank",
                          hvt__mib((double)r->device_peak_bytes));
    if (r->first_update >= 0)
        hvt__report_print(
            rep, "done: %lld updates, %s, the first after %.2f s; at most %.0f MiB on a rank; weights %s",
            (long long)r->steps, took, r->first_update, hvt__mib((double)r->peak_bytes), hex);
    else
        hvt__report_print(rep, "done: %s; at most %.0f MiB on a rank; weights %s", took,
                          hvt__mib((double)r->peak_bytes), hex);
    if (r->first_update < 0)
        return HVT_OK; /* nothing was trained */
    print_next(rep, opts);
    return HVT_OK;
}
