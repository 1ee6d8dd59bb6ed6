/*
 * The history of a run from its log, in bounded memory: a series has at most ROWS rows, each the mean of as
 * many records as necessary.
 *
 * A file has the jobs of one run; each begins with a start record. If a job resumed, earlier records of
 * updates after its checkpoint are dropped, because the new ones replace them. A job that does not resume
 * begins another run, and everything before it is dropped.
 */
#include "page_impl.h"
#include "train/report/report_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <math.h>
#include <sys/stat.h>

enum { ROWS = 2000 };

static const char *const part_fields[HVT__PARTS - 1] = {"compute",  "exposed_comm", "data_wait",
                                                        "evaluate", "save",         "startup"};

double hvt__number_of(const json_t *record, const char *field)
{
    const json_t *v = json_object_get(record, field);

    return json_is_number(v) ? json_number_value(v) : (double)NAN;
}

/* ---- series ---- */

/* The mean of a, over na records, and b, over nb records. Values that are not finite do not count. */
static double mean_of(double a, size_t na, double b, size_t nb)
{
    if (!isfinite(a) || !isfinite(b))
        return isfinite(a) ? a : b;
    return (a * (double)na + b * (double)nb) / (double)(na + nb);
}

static void halve(hvt__series *s)
{
    for (size_t i = 0; i < s->n / 2; i++)
        for (int k = 0; k < HVT__COLUMNS; k++)
            s->row[i][k] = mean_of(s->row[2 * i][k], 1, s->row[2 * i + 1][k], 1);
    s->n /= 2;
    s->per *= 2;
}

static hvt_status append(hvt__series *s, const double row[HVT__COLUMNS])
{
    if (!s->row) {
        s->row = malloc(ROWS * sizeof *s->row);
        HVT_CHECK(s->row, E_MEM, "no memory for the history of a run");
        s->per = 1;
    }
    if (!s->n || s->in_last == s->per) {
        if (s->n == ROWS)
            halve(s);
        memcpy(s->row[s->n++], row, sizeof *s->row);
        s->in_last = 1;
        return HVT_OK;
    }
    for (int k = 0; k < HVT__COLUMNS; k++)
        s->row[s->n - 1][k] = mean_of(s->row[s->n - 1][k], s->in_last, row[k], 1);
    s->in_last++;
    return HVT_OK;
}

/* Drops the rows of updates after this one, which are no longer valid. */
static void drop_after(hvt__series *s, double step)
{
    size_t before = s->n;

    while (s->n && s->row[s->n - 1][HVT__COL_STEP] > step)
        s->n--;
    if (s->n < before)
        s->in_last = s->per;
}

/* ---- jobs ---- */

static void forget(hvt__history *h)
{
    json_decref(h->start);
    json_decref(h->end);
    json_decref(h->eval);
    json_decref(h->predicted);
    free(h->step.row);
    free(h->epoch.row);
    free(h->test.row);
    free(h->spent);
    free(h->job);
    h->start = h->end = h->eval = h->predicted = NULL;
    h->step = h->epoch = h->test = (hvt__series){0};
    h->spent = h->job = NULL;
    h->best = NAN;
    h->masks = false;
    h->seconds = h->steps = h->epochs = 0;
    h->ranks = h->jobs = 0;
}

void hvt__history_free(hvt__history *h)
{
    forget(h);
    free(h->name);
    *h = (hvt__history){0};
}

void hvt__history_close(hvt__history *h)
{
    for (int r = 0; r < h->ranks && h->job; r++)
        for (int k = 0; k < HVT__PARTS; k++) {
            h->spent[r][k] += h->job[r][k];
            h->job[r][k] = 0;
        }
    if (isfinite(h->last_time - h->first_time) && h->jobs)
        h->seconds += h->last_time - h->first_time;
    h->first_time = h->last_time = NAN;
}

static bool option_is(const json_t *start, const char *name, const char *value)
{
    return !strcmp(hvt__text_of(json_object_get(start, "options"), name), value);
}

/* Sets the number of ranks. If it changes, earlier times are dropped: new ones cannot be added to them. */
static hvt_status set_ranks(hvt__history *h, double ranks)
{
    enum { RANKS_MOST = 1 << 20 };
    int n = ranks >= 1 && ranks <= RANKS_MOST ? (int)ranks : 1;

    if (n == h->ranks)
        return HVT_OK;
    free(h->spent);
    free(h->job);
    h->spent = calloc((size_t)n, sizeof *h->spent);
    h->job = calloc((size_t)n, sizeof *h->job);
    h->ranks = h->spent && h->job ? n : 0;
    HVT_CHECK(h->ranks, E_MEM, "no memory for the times of %d ranks", n);
    return HVT_OK;
}

static hvt_status add_start(hvt__history *h, json_t *record)
{
    double resumed = hvt__number_of(record, "resumed_steps");
    bool evaluates = option_is(record, "evaluate", "on");

    hvt__history_close(h);
    if (*hvt__text_of(json_object_get(record, "options"), "predict")) {
        json_decref(h->predicted);
        h->predicted = json_incref(record);
    }
    h->evaluates = evaluates && h->start;
    if (h->evaluates) { /* it evaluates the weights of the run before it */
        h->jobs++;
        return HVT_OK;
    }
    if (h->start && !(resumed > 0) && h->steps > 0) {
        forget(h);
        h->runs++;
    }
    h->runs += !h->runs;
    json_decref(h->start);
    json_decref(h->end);
    h->start = json_incref(record);
    h->end = NULL;
    h->jobs++;
    h->targets = option_is(record, "loss", "mse") || option_is(record, "loss", "mae");

    if (resumed >= 0) {
        drop_after(&h->step, resumed);
        drop_after(&h->epoch, resumed);
        drop_after(&h->test, resumed);
        h->steps = fmin(h->steps, resumed);
    }
    return set_ranks(h, hvt__number_of(record, "ranks"));
}

/* The epochs so far at an update, with a fraction unless the size of an epoch has changed. */
static double epochs_at(const hvt__history *h, const json_t *record, double step)
{
    double epoch = hvt__number_of(record, "epoch"), size = hvt__number_of(h->start, "steps_per_epoch");
    double part = (step - (epoch - 1) * size) / size;

    return part > 0 && part <= 1 ? epoch - 1 + part : epoch;
}

/* The seconds of work until a record, without pauses between jobs. */
static double seconds_at(hvt__history *h, const json_t *record)
{
    double time = hvt__number_of(record, "time");

    if (!isfinite(h->first_time))
        h->first_time = time;
    h->last_time = time;
    return h->seconds + (time - h->first_time);
}

static void fill(hvt__history *h, const json_t *record, const char *loss, double row[HVT__COLUMNS])
{
    double step = hvt__number_of(record, json_object_get(record, "step") ? "step" : "at_step");
    const bool miou = json_object_get(record, "miou");

    step = isfinite(step) ? step : h->steps; /* older versions wrote no step after an epoch */
    h->masks = h->masks || miou;
    row[HVT__COL_STEP] = step;
    row[HVT__COL_EPOCH] = epochs_at(h, record, step);
    row[HVT__COL_SECONDS] = seconds_at(h, record);
    row[HVT__COL_LOSS] = hvt__number_of(record, loss);
    row[HVT__COL_SCORE] = hvt__number_of(record, h->targets ? "mae" : miou ? "miou" : "top1");
    row[HVT__COL_LR] = hvt__number_of(record, "lr");
    row[HVT__COL_SPEED] = hvt__number_of(record, "img_s");
    row[HVT__COL_EXPOSED] = 100 * hvt__number_of(record, "exposed_comm");
    h->steps = fmax(h->steps, step);
    if (isfinite(row[HVT__COL_EPOCH]))
        h->epochs = fmax(h->epochs, row[HVT__COL_EPOCH]);
}

/* Adds the seconds of each rank, or, without by_rank, those of rank 0 by its fractions of `seconds`. */
static void add_spent(hvt__history *h, const json_t *record, bool job)
{
    const json_t *by_rank = json_object_get(record, "by_rank");
    double seconds = hvt__number_of(record, "seconds");

    for (int r = 0; r < (by_rank ? h->ranks : 1) && isfinite(seconds); r++) {
        double rest = seconds;

        for (int k = 0; k < HVT__PARTS - 1; k++) {
            const json_t *v = json_array_get(json_object_get(by_rank, part_fields[k]), (size_t)r);
            double part = json_is_number(v) ? json_number_value(v)
                          : by_rank         ? (double)NAN
                                            : seconds * hvt__number_of(record, part_fields[k]);

            part = isfinite(part) && part > 0 ? part : 0;
            h->job[r][k] = job ? part : h->job[r][k] + part;
            rest -= part;
        }
        rest = fmax(rest, 0);
        h->job[r][HVT__PART_OTHER] = job ? rest : h->job[r][HVT__PART_OTHER] + rest;
    }
}

static hvt_status add_eval(hvt__history *h, json_t *record)
{
    double row[HVT__COLUMNS];

    if (json_object_get(record, "class_images") || !json_object_get(h->eval, "class_images")) {
        json_decref(h->eval);
        h->eval = json_incref(record);
    }
    fill(h, record, "loss", row);
    if (isfinite(row[HVT__COL_SCORE]) && (isnan(h->best) || (row[HVT__COL_SCORE] > h->best) != h->targets))
        h->best = row[HVT__COL_SCORE];
    if (row[HVT__COL_STEP] > 0 && h->test.n &&
        h->test.row[h->test.n - 1][HVT__COL_STEP] == row[HVT__COL_STEP])
        return HVT_OK; /* the same weights again */
    return append(&h->test, row);
}

static hvt_status add_end(hvt__history *h, json_t *record)
{
    bool whole = json_object_get(record, "compute");

    seconds_at(h, record);
    if (whole && hvt__number_of(record, "seconds") > 0)
        add_spent(h, record, true);
    if (h->evaluates)
        return HVT_OK;
    json_decref(h->end);
    h->end = json_incref(record);
    return HVT_OK;
}

hvt_status hvt__history_add(hvt__history *h, json_t *record)
{
    const char *kind = hvt__text_of(record, "record");
    double row[HVT__COLUMNS];

    if (!h->runs) {
        h->first_time = h->last_time = h->best = NAN;
        if (strcmp(kind, "start") && *kind && !h->ranks) /* the log's beginning is missing */
            HVT_TRY(set_ranks(h, 1));
    }
    h->records += *kind != 0;
    h->other += !*kind;
    if (!strcmp(kind, "start"))
        return add_start(h, record);
    if (!strcmp(kind, "eval"))
        return add_eval(h, record);
    if (!strcmp(kind, "end"))
        return add_end(h, record);
    if (!strcmp(kind, "step")) {
        fill(h, record, "loss", row);
        return append(&h->step, row);
    }
    if (strcmp(kind, "epoch") != 0)
        return HVT_OK;
    fill(h, record, "train_loss", row);
    add_spent(h, record, false);
    return append(&h->epoch, row);
}

/* ---- files ---- */

static hvt_status read_lines(hvt__history *h, FILE *f, const char *path)
{
    char *line = NULL, first[61] = "";
    size_t room = 0;
    ssize_t n;
    hvt_status s = HVT_OK;

    while (s == HVT_OK && (n = getline(&line, &room, f)) > 0) {
        json_t *record = *line == '{' ? json_loadb(line, (size_t)n, 0, NULL) : NULL;

        if (!*first)
            snprintf(first, sizeof first, "%.*s", (int)strcspn(line, "\r\n"), line);
        if (json_is_object(record))
            s = hvt__history_add(h, record);
        else
            h->other++;
        json_decref(record);
    }
    HVT_CHECK_OR(done, s || !ferror(f), E_IO, "%s: cannot read: %s", path, strerror(errno));
    for (char *p = first; *p; p++)
        *p = *p >= ' ' && *p < 127 ? *p : '?';
    HVT_CHECK_OR(done, s || h->records, E_FORMAT,
                 *first
                     ? "%s: expected a log of --log, with a JSON record in each line; its first line is '%s'"
                     : "%s: expected a log of --log, with a JSON record in each line; it is empty%s",
                 path, first);
done:
    free(line);
    return s;
}

/* True if the file looks like text. Others may have no lines, and would be read into memory as a whole. */
static bool is_text(FILE *f)
{
    char begin[4096];
    size_t n = fread(begin, 1, sizeof begin, f);

    rewind(f);
    return !memchr(begin, 0, n);
}

hvt_status hvt__history_read(hvt__history *h, const char *path)
{
    struct stat info;
    FILE *f = fopen(path, "re");
    hvt_status s;

    HVT_CHECK(f, E_IO, "%s: cannot read: %s", path, strerror(errno));
    HVT_CHECK_OR(done, fstat(fileno(f), &info) == 0 && !S_ISDIR(info.st_mode), E_IO,
                 "%s: is a folder, expected a log", path);
    HVT_CHECK_OR(done, !S_ISREG(info.st_mode) || is_text(f), E_FORMAT,
                 "%s: expected a log of --log, with a JSON record in each line; it is not text", path);
    snprintf(h->path, sizeof h->path, "%s", path);
    s = read_lines(h, f, path);
done:
    fclose(f);
    return s;
}
