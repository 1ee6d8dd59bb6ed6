/*
 * A run's output: records, which are JSON lines in the log, and on stderr lines and the *bar*, a line that is
 * redrawn if stderr is a terminal; it is cleared before anything else is printed. Only rank 0 has a reporter;
 * on the other ranks it is NULL. The run decides what is reported.
 *
 * One job at a time writes a log; a new run replaces it, a resumed run appends to it; every line remains a
 * complete JSON value, written at once (log_file.c). Numbers that are not finite become null.
 */
#include "report_impl.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "base/line.h"
#include "base_impl.h"

#include <errno.h>
#include <math.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

json_t *hvt__number(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

hvt__loss_text hvt__loss_shown(double loss)
{
    hvt__loss_text t;
    const double size = fabs(loss);

    snprintf(t.text, sizeof t.text, size > 0 && (size < 1e-3 || size >= 1e6) ? "%.4g" : "%.4f", loss);
    return t;
}

hvt__figures hvt__figures_of(const hvt_loss *l, hvt_loss_kind kind, int classes, bool masks)
{
    enum { HITS = 5 };

    double count = (double)l->count;
    hvt__figures x = {.loss = NAN, .error = NAN, .miou = NAN};

    if (l->count)
        x = (hvt__figures){.loss = l->sum / count,
                           .top1 = 100.0 * (double)l->top1 / count,
                           .top5 = 100.0 * (double)l->top5 / count,
                           .error = l->error / count,
                           .miou = 100.0 * l->iou};
    x.kind = kind;
    x.masks = masks;
    x.shown = hvt__loss_shown(x.loss);
    if (hvt_loss_has_targets(kind)) {
        x.top1 = x.top5 = NAN;
        snprintf(x.score, sizeof x.score, "mae %s", hvt__loss_shown(x.error).text);
    } else {
        snprintf(x.score, sizeof x.score, "%s %.2f %%", masks ? "pixel accuracy" : "top-1", x.top1);
    }
    if (masks)
        x.top5 = NAN;
    if (masks)
        snprintf(x.scores, sizeof x.scores, "%s, mean IoU %.2f %%", x.score, x.miou);
    else if (!hvt_loss_has_targets(kind) && classes > HITS)
        snprintf(x.scores, sizeof x.scores, "%s, top-5 %.2f %%", x.score, x.top5);
    else
        memcpy(x.scores, x.score, sizeof x.score);
    return x;
}

void hvt__figures_add(const hvt__figures *x, bool evaluation, json_t *record)
{
    if (x->masks && evaluation)
        json_object_set_new(record, "miou", hvt__number(x->miou));
    if (hvt_loss_has_targets(x->kind))
        json_object_set_new(record, "mae", hvt__number(x->error));
}

/* Makes the file end with a complete line. A record that was truncated when its writer was killed is removed;
 * other text becomes a line. */
static hvt_status go_to_end(hvt_reporter *rep, const char *path)
{
    enum { TAIL_MOST = 1 << 20 }; /* bytes of a last line; a record has some thousands */
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t room = 0, tail = 0; /* bytes after the last line feed */
    off_t size = 0;
    ssize_t n;
    hvt_status s = HVT_OK;

    HVT_CHECK(f, E_IO, "--log %s: cannot read what it holds, to append to it: %s", path, strerror(errno));
    if (fseeko(f, -TAIL_MOST, SEEK_END) == 0) /* else the log is shorter */
        size = ftello(f);
    while ((n = getline(&line, &room, f)) > 0) {
        size += n;
        tail = line[n - 1] == '\n' ? 0 : (size_t)n;
    }
    HVT_CHECK_OR(done, feof(f), E_IO, "--log %s: cannot read what it holds, to append to it: %s", path,
                 strerror(errno));
    json_t *record = tail ? json_loadb(line, tail, 0, NULL) : NULL;
    bool cut_off = tail && *line == '{' && !record;

    json_decref(record);
    if (cut_off) {
        HVT_CHECK_OR(done, ftruncate(fileno(rep->log), size - (off_t)tail) == 0, E_IO,
                     "--log %s: cannot truncate it: %s", path, strerror(errno));
        HVT_INFO("note: the last record in %s was incomplete and has been removed", path);
    } else {
        HVT_CHECK_OR(done, !tail || hvt__log_line(rep->lines_of, "\n", 1), E_IO, "--log %s: cannot write: %s",
                     path, strerror(errno));
    }
done:
    free(line);
    fclose(f);
    return s;
}

/* Notes the run whose records a new run replaces: "resnet20, begun 2026-11-28 23:14". */
static void note_replaced(const char *path)
{
    FILE *f = fopen(path, "re");
    json_t *record = f ? json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL) : NULL;
    const time_t begun = (time_t)json_number_value(json_object_get(record, "time"));
    const char *model = json_string_value(json_object_get(record, "model"));
    char date[32] = "";
    struct tm tm;

    if (begun > 0 && localtime_r(&begun, &tm))
        strftime(date, sizeof date, "%Y-%m-%d %H:%M", &tm);
    if (model && *date)
        HVT_INFO("note: --log %s replaces the log of another run (%s, begun %s)", path, model, date);
    json_decref(record);
    if (f)
        fclose(f);
}

/* Begins the log, before the first record: a new run replaces it; a resumed run or an evaluation appends to
 * it. */
static hvt_status begin_log(hvt_reporter *rep)
{
    const char *path = rep->opts->log;
    struct stat info;

    if (fstat(fileno(rep->log), &info) || !S_ISREG(info.st_mode))
        return HVT_OK;
    if (*rep->opts->resume || rep->opts->evaluate)
        return go_to_end(rep, path);
    note_replaced(path);
    HVT_CHECK(ftruncate(fileno(rep->log), 0) == 0, E_IO, "--log %s: cannot truncate it: %s", path,
              strerror(errno));
    return HVT_OK;
}

char *hvt__record_text(const json_t *record)
{
    enum { DIGITS = 13 }; /* the time to the millisecond */

    return record ? json_dumps(record, JSON_COMPACT | JSON_REAL_PRECISION(DIGITS)) : NULL;
}

static hvt_status write_record(hvt_reporter *rep, const json_t *record)
{
    char *line = hvt__record_text(record);
    size_t bytes = line ? strlen(line) + 1 : 0;
    hvt_status s = HVT_OK;

    HVT_CHECK(line, E_MEM, "--log %s: no memory for a record", rep->opts->log);
    if (!rep->begun)
        HVT_TRY_OR(done, begin_log(rep));
    line[bytes - 1] = '\n'; /* instead of the 0 */
    HVT_CHECK_OR(done, hvt__log_line(rep->lines_of, line, bytes), E_IO, "--log %s: cannot write: %s",
                 rep->opts->log, strerror(errno));
done:
    free(line);
    return s;
}

hvt_status hvt__report_put(hvt_reporter *rep, json_t *record)
{
    hvt_status s = HVT_OK;

    json_object_set_new(record, "time", json_real(1e-3 * (double)hvt__process_clock()));
    if (rep->also)
        rep->also(rep->also_ctx, record);
    if (rep->events)
        s = hvt__events_put(rep->events, record);
    if (rep->log && s == HVT_OK)
        s = write_record(rep, record);
    json_decref(record);
    if (!rep->log)
        return s;
    if (!rep->begun) {
        HVT_TRY(s);
        rep->begun = true;
        hvt__log_begun(rep->lines_of);
    } else if (s && rep->missing++ == 0) {
        HVT_WARN("%s; training continues, and records are missing until it can be written again",
                 hvt_last_error());
    }
    return HVT_OK;
}

static void warn_missing(hvt_reporter *rep)
{
    if (rep->missing)
        HVT_WARN("--log %s: %lld record%s missing: it could not be written", rep->opts->log,
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
    hvt__log_ended(rep->lines_of);
    warn_missing(rep);
    hvt__error_put(&why);
}

hvt_status hvt__report_check_path(const hvt_options *opts, const char *flag, const char *path)
{
    char init[PATH_MAX], resume[PATH_MAX];
    const char *const name[] = {init, resume, strcmp(flag, "--log") ? opts->log : ""};

    HVT_TRY(hvt__weights_file(opts->init, init));
    HVT_TRY(hvt__weights_file(opts->resume, resume));
    for (size_t i = 0; i < HVT_LEN(name); i++)
        HVT_CHECK(!hvt__is_same_file(path, name[i]), E_ARG,
                  "%s %s: is the same file as %s, which this run %s", flag, path, name[i],
                  name[i] == opts->log ? "writes" : "reads");
    return HVT_OK;
}

/* Opens the log without truncating it: an earlier run's records stay until this run really begins. */
static hvt_status open_log(const hvt_options *opts, FILE **ret_log)
{
    FILE *f;
    struct stat info;
    hvt_status s;

    HVT_TRY(hvt__report_check_path(opts, "--log", opts->log));
    HVT_TRY(hvt__own_file_check(HVT__LOG, "--log", opts->log));
    f = hvt__open_stream(opts->log, true);
    HVT_CHECK(f, E_IO, "--log %s: cannot write: %s", opts->log,
              errno == ENXIO ? "a pipe without a reader, or a socket" : strerror(errno));
    HVT_CHECK_OR(fail, fstat(fileno(f), &info) == 0, E_IO, "--log %s: %s", opts->log, strerror(errno));
    /* several programs may share the file that a shell redirected stdout to */
    HVT_CHECK_OR(fail,
                 !S_ISREG(info.st_mode) || hvt__is_stream_path(opts->log) ||
                     hvt__file_lock(fileno(f), "--log", opts->log),
                 E_IO, "--log %s: another job writes this log; expected a file for each job", opts->log);
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
    hvt_status s;

    HVT_CHECK(rep, E_MEM, "no memory for reports");
    rep->opts = opts;
    rep->printed = hvt__now();
    rep->bar = !opts->quiet && !hvt__log_is_taken() && isatty(STDERR_FILENO) && term && strcmp(term, "dumb");
    s = *opts->tensorboard ? hvt__events_open(opts->tensorboard, &rep->events) : HVT_OK;
    if (s == HVT_OK && *opts->log)
        s = open_log(opts, &rep->log);
    if (s == HVT_OK && rep->log && !(rep->lines_of = hvt__log_open(fileno(rep->log))))
        s = HVT_FAIL(E_MEM, "--log %s: too many runs of this process have a log", opts->log);
    if (s)
        hvt__report_close(&rep);
    else
        *ret_rep = rep;
    return s;
}

void hvt__report_close(hvt_reporter **rep)
{
    if (!*rep)
        return;
    hvt__signals_bar(false);
    hvt__log_close((*rep)->lines_of);
    warn_missing(*rep);
    if ((*rep)->log && fclose((*rep)->log)) /* NFS and quotas report some errors only on close */
        HVT_WARN("--log %s: the last records may be missing: %s", (*rep)->opts->log, strerror(errno));
    hvt__events_close(&(*rep)->events);
    free(*rep);
    *rep = NULL;
}

static void clear_bar(hvt_reporter *rep)
{
    if (rep->bar && rep->bar_drawn != 0)
        hvt__write(STDERR_FILENO, "\r\033[K", 4);
    rep->bar_drawn = 0;
    hvt__signals_bar(false);
}

void hvt__report_print(hvt_reporter *rep, const char *fmt, ...)
{
    va_list ap;

    if (rep->opts->quiet)
        return;
    clear_bar(rep);
    rep->lines++;
    rep->printed = hvt__now();
    va_start(ap, fmt);
    hvt__vprint_line(STDERR_FILENO, fmt, ap);
    va_end(ap);
}

void hvt__duration(double seconds, char ret_text[32])
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

bool hvt__report_bar_due(const hvt_reporter *rep)
{
    return rep && rep->bar && hvt__now() - rep->bar_drawn >= 0.1;
}

bool hvt__report_line_due(const hvt_reporter *rep)
{
    enum { SECONDS = 30 };

    return rep && !rep->bar && !rep->opts->quiet && hvt__now() - rep->printed >= SECONDS;
}

void hvt__report_bar(hvt_reporter *rep, const char *head, double part, const char *rest)
{
    enum { MOST = 24, LEAST = 4 };
    static const char full_bar[MOST + 1] = "========================";
    struct winsize w;
    bool known = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 20;
    int room, full, n, columns = (known ? w.ws_col : 80) - 1;
    char text[600];

    room = columns - (int)(strlen(head) + strlen(rest)) - 4; /* the bar is shortened, not the numbers */
    room = room > MOST ? MOST : room < LEAST ? LEAST : room;
    full = (int)(part * room + 1e-6);
    hvt__signals_bar(true);
    n = snprintf(text, sizeof text, "\r\033[K%s [%.*s%-*s] %.*s", head, full, full_bar, room - full,
                 full < room ? ">" : "", columns - (int)strlen(head) - room - 4, rest);
    hvt__write(STDERR_FILENO, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
    rep->bar_drawn = hvt__now();
}

hvt_status hvt__report_result(hvt_reporter *rep, const char *text)
{
    clear_bar(rep);
    errno = 0;
    HVT_CHECK(hvt__print_line(STDOUT_FILENO, "%s", text), E_IO, "cannot write the result (%s): %s", text,
              strerror(errno));
    return HVT_OK;
}
