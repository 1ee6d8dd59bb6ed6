/*
 * The page: one self-contained HTML file with SVG and CSS in it, or its curves as one SVG file.
 */
#include "page_impl.h"
#include "train/report/report_impl.h"
#include "base_impl.h"

#include <math.h>
#include <strings.h>
#include <sys/stat.h>

enum { WIDTH = 430, HEIGHT = 270, WHOLE = 2 * WIDTH };

/* ---- names ---- */

/* The length of the beginning that all paths share, up to and including a slash. */
static size_t common_begin(const hvt__page_run *run, int runs)
{
    const char *first = run->history->path;
    size_t n = 0;

    for (size_t i = 0; first[i]; i++) {
        for (int k = 1; k < runs; k++)
            if (run[k].history->path[i] != first[i])
                return n;
        n = first[i] == '/' ? i + 1 : n;
    }
    return n;
}

/* The length of the end that all paths share after `begin`, from a slash or dot on. No name becomes empty. */
static size_t common_end(const hvt__page_run *run, int runs, size_t begin)
{
    const char *first = run->history->path;
    size_t length = strlen(first), n = 0;

    for (size_t i = 1; i + begin < length; i++) {
        char c = first[length - i];

        for (int k = 1; k < runs; k++) {
            size_t other = strlen(run[k].history->path);

            if (other <= i + begin || run[k].history->path[other - i] != c)
                return n;
        }
        n = c == '/' || c == '.' ? i : n;
    }
    return n;
}

/* The length of the beginning that all paths share after `begin`, up to a punctuation mark. */
static size_t common_words(const hvt__page_run *run, int runs, size_t begin)
{
    const char *first = run->history->path;
    size_t n = begin;

    for (size_t i = begin; first[i]; i++) {
        for (int k = 1; k < runs; k++)
            if (run[k].history->path[i] != first[i])
                return n;
        n = strchr("-_., =", first[i]) ? i + 1 : n;
    }
    return begin;
}

static bool is_long(const hvt__page_run *run, int runs, size_t without)
{
    enum { LONG = 36 };

    for (int i = 0; i < runs; i++)
        if (strlen(run[i].history->path) - without > LONG)
            return true;
    return false;
}

hvt_status hvt__name_runs(const hvt__page_run *run, int runs)
{
    size_t begin = runs > 1 ? common_begin(run, runs) : 0, end = runs > 1 ? common_end(run, runs, begin) : 0;
    size_t from = runs > 1 && is_long(run, runs, begin + end) ? common_words(run, runs, begin) : begin;

    for (int i = 0; i < runs; i++) {
        const char *path = run[i].history->path;
        char name[PATH_MAX + 4];

        snprintf(name, sizeof name, "%s%.*s", from > begin ? "\xe2\x80\xa6" : "",
                 (int)(strlen(path) - from - end), path + from);
        free(run[i].history->name);
        run[i].history->name = strdup(name);
        HVT_CHECK(run[i].history->name, E_MEM, "no memory for the name of a run");
    }
    return HVT_OK;
}

/* ---- charts ---- */

typedef struct lines {
    hvt__line *line; /* [2 * runs] */
    int n;
} lines;

static void add(lines *l, int run, const hvt__series *s, int x, int y, bool thin, bool dots)
{
    if (s->n)
        l->line[l->n++] =
            (hvt__line){&s->row[0][x], &s->row[0][y], s->n, HVT__COLUMNS, run, NULL, NULL, thin, dots};
}

/* The means of epochs if there are many, else the records of updates. */
static const hvt__series *training_of(const hvt__history *h)
{
    enum { MANY = 8 };

    return h->epoch.n >= MANY || !h->step.n ? &h->epoch : &h->step;
}

/* The x axis: epochs, or updates if no run is longer than an epoch. */
static int x_of(const hvt__page_run *run, int runs)
{
    double most = 0;

    for (int i = 0; i < runs; i++)
        most = fmax(most, run[i].history->epochs);
    return most > 1 ? HVT__COL_EPOCH : HVT__COL_STEP;
}

typedef enum chart { LOSS, ACCURACY, IOU, ERROR, SPEED, RATE, EXPOSED, CHARTS } chart;

static chart score_chart(const hvt__history *h)
{
    return h->targets ? ERROR : h->masks ? IOU : ACCURACY;
}

static void add_run(lines *l, const hvt__page_run *run, int runs, int i, chart which, int x)
{
    const hvt__history *h = run[i].history;
    const hvt__series *speed = runs > 1 || !h->step.n ? training_of(h) : &h->step;

    if (which == LOSS || which == score_chart(h)) {
        if (which != IOU) /* training has no IoU */
            add(l, i, training_of(h), x, which == LOSS ? HVT__COL_LOSS : HVT__COL_SCORE, true, false);
        add(l, i, &h->test, x, which == LOSS ? HVT__COL_LOSS : HVT__COL_SCORE, false,
            runs < 5 && h->test.n < 40);
    } else if (which == SPEED) {
        add(l, i, speed, HVT__COL_SECONDS, HVT__COL_SPEED, false, false);
    } else if (which == RATE) {
        add(l, i, &h->step, x, HVT__COL_LR, false, false);
    } else if (which == EXPOSED && h->ranks > 1) {
        add(l, i, &h->epoch, x, HVT__COL_EXPOSED, false, runs < 5 && h->epoch.n < 40);
    }
}

static bool has_values(const lines *l)
{
    for (int k = 0; k < l->n; k++)
        for (size_t i = 0; i < l->line[k].n; i++)
            if (isfinite(l->line[k].y[i * l->line[k].stride]))
                return true;
    return false;
}

static const char *time_unit(const hvt__page_run *run, int runs, double *ret_seconds)
{
    double most = 0;

    for (int i = 0; i < runs; i++)
        most = fmax(most, run[i].history->seconds);
    *ret_seconds = most < 180 ? 1 : most < 3 * 3600 ? 60 : 3600;
    return most < 180 ? "seconds" : most < 3 * 3600 ? "minutes" : "hours";
}

/* False if there are only tables of predictions. */
static bool has_records(const hvt__page_run *run, int runs)
{
    for (int i = 0; i < runs; i++)
        if (run[i].history->records)
            return true;
    return false;
}

/* Draws a chart. Returns false if there is nothing to show; of runs with records, an empty chart of losses
 * says so. */
static bool put_chart(FILE *f, const hvt__page_run *run, int runs, chart which, lines *l)
{
    static const char *const title[CHARTS] = {"Loss",
                                              "Accuracy, %",
                                              "Mean IoU, %",
                                              "Mean absolute error",
                                              "Throughput, images per second",
                                              "Learning rate",
                                              "Waiting for the exchange, % of an epoch"};
    int x = x_of(run, runs);
    hvt__chart c = {.title = title[which],
                    .x_name = x == HVT__COL_EPOCH ? "epochs" : "updates",
                    .from_zero = which == SPEED || which == RATE || which == EXPOSED,
                    .ends_at_100 = which == ACCURACY || which == IOU || which == EXPOSED,
                    .may_log = which == LOSS || which == ERROR,
                    .x_least = 0};

    if (which == SPEED)
        c.x_name = time_unit(run, runs, &c.x_unit);
    l->n = 0;
    for (int i = 0; i < runs; i++)
        add_run(l, run, runs, i, which, x);
    c.line = l->line;
    c.lines = l->n;
    if (!has_values(l) && (which != LOSS || !has_records(run, runs)))
        return false;
    hvt__svg_chart(f, &c, WIDTH, HEIGHT);
    return true;
}

/* ---- the page ---- */

static const char css[] =
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;margin:0;background:#fff;color:#222}"
    "main{max-width:900px;margin:0 auto;padding:24px 20px 60px}h1{font-size:22px;margin:0 0 4px}"
    "h2{font-size:17px;margin:36px 0 8px;overflow-wrap:anywhere}h3{font-size:14px;margin:20px 0 6px}"
    "table{border-collapse:collapse;font-size:13px}"
    "th,td{text-align:left;padding:4px 14px 4px 0;vertical-align:top;font-weight:400;border-bottom:1px solid "
    "#eee}td{font-variant-numeric:tabular-nums}.runs tr:first-child *,.pairs tr:first-child *{color:#666}"
    ".runs td:first-child,.options td{overflow-wrap:anywhere;min-width:120px;max-width:320px}"
    "td,th{white-space:nowrap}.runs td:first-child,.options td,.numbers th{white-space:normal}"
    ".runs td:first-child{min-width:200px}.numbers td{text-align:right}.wide{overflow-x:auto}"
    ".side{display:flex;flex-wrap:wrap;gap:24px;align-items:flex-start}"
    ".chip{display:inline-block;width:22px;height:8px;margin-right:8px;vertical-align:2px}"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:8px 0;margin-top:16px}"
    "svg{display:block;width:100%;height:auto}svg.confusion{width:auto;max-width:100%}svg .hit{fill:#2a78b0}"
    "svg .miss{fill:#c4462e}svg .paper{fill:#f4f5f6}svg .on{fill:#fff}.note,footer{color:#666;font-size:13px}"
    ".mistakes{display:grid;grid-template-columns:repeat(auto-fill,minmax(132px,1fr));gap:16px}"
    "figure{margin:0}figure img{height:96px;max-width:132px;object-fit:contain;image-rendering:auto}"
    "figcaption{font-size:12px;line-height:1.4;overflow-wrap:anywhere}figcaption span{color:#666}"
    "summary{cursor:pointer;font-size:13px;color:#666}footer{margin-top:48px}"
    "@media(prefers-color-scheme:dark){body{background:#0d1117;color:#ddd}th,td{border-color:#272d36}"
    ".note,footer,figcaption span,summary,.runs tr:first-child *,.options tr:first-child th,.pairs tr:first-c"
    "hild *{color:#999}svg .paper{fill:#161c24}svg .hit{fill:#4a9ad4}svg .miss{fill:#e0604a}}";

static void put_number(FILE *f, const char *form, double v)
{
    fputs("<td>", f);
    if (isfinite(v))
        fprintf(f, form, v);
    else
        fputs("-", f);
    fputs("</td>", f);
}

static double last_of(const hvt__series *s, int column)
{
    for (size_t i = s->n; i-- > 0;)
        if (isfinite(s->row[i][column]))
            return s->row[i][column];
    return NAN;
}

static double mean_of(const hvt__series *s, int column)
{
    double sum = 0;
    size_t n = 0;

    for (size_t i = 0; i < s->n; i++)
        if (isfinite(s->row[i][column])) {
            sum += s->row[i][column];
            n++;
        }
    return n ? sum / (double)n : (double)NAN;
}

static const char *ending_of(const hvt__history *h)
{
    const char *status = hvt__text_of(h->end, "status");

    return *status ? status : h->records ? "no end yet" : "-";
}

static void put_run(FILE *f, const hvt__history *h, int i)
{
    const hvt__series *speed = h->epoch.n ? &h->epoch : &h->step;
    const char *model = hvt__text_of(h->start, "model"), *data = hvt__text_of(h->start, "data");
    const char *score = h->targets ? "mae %.4g" : h->masks ? "IoU %.2f %%" : "%.2f %%";
    const double known = h->records ? 0 : (double)NAN; /* a table alone has no numbers of a run */
    char took[32] = "-";

    fputs("<tr><td>", f);
    hvt__page_chip(f, i);
    hvt__xml(f, h->name);
    fputs("</td><td>", f);
    hvt__xml(f, *model ? model : "-");
    fputs("</td><td>", f);
    hvt__xml(f, *data ? data : "-");
    fputs("</td>", f);
    put_number(f, "%.0f", hvt__number_of(h->start, "ranks"));
    put_number(f, "%.0f", h->steps + known);
    put_number(f, "%.4g", h->epochs + known);
    put_number(f, "%.4f", last_of(&h->test, HVT__COL_LOSS));
    put_number(f, score, last_of(&h->test, HVT__COL_SCORE));
    put_number(f, score, h->best + known);
    put_number(f, "%.0f", mean_of(speed, HVT__COL_SPEED));
    if (h->records)
        hvt__duration(h->seconds, took);
    fprintf(f, "<td>%s</td><td>", took);
    hvt__xml(f, ending_of(h));
    fputs("</td></tr>\n", f);
}

static void put_notes(FILE *f, const hvt__history *h)
{
    const char *error = hvt__text_of(h->end, "error");

    if (*error) {
        fputs("<p class=\"note\">", f);
        hvt__xml(f, h->name);
        fputs(" ended with: ", f);
        hvt__xml(f, error);
        fputs("</p>\n", f);
    }
    if (h->runs > 1 || h->other || (h->records && !h->start)) {
        fputs("<p class=\"note\">", f);
        hvt__xml(f, h->name);
        if (h->runs > 1)
            fprintf(f, ": the file holds %d runs, and this is the last.", h->runs);
        if (h->other)
            fprintf(f, ": %lld line%s no record.", (long long)h->other, h->other > 1 ? "s are" : " is");
        if (h->records && !h->start)
            fputs(": the record of the start is missing.", f);
        fputs("</p>\n", f);
    }
}

static void put_summary(FILE *f, const hvt__page_run *run, int runs)
{
    fprintf(f,
            "<h1>hvtrain report</h1>\n<div class=\"wide\"><table "
            "class=\"runs\">\n<tr><td>run%s</td><td>model</td>"
            "<td>data</td><td>ranks</td><td>updates</td><td>epochs</td><td>test "
            "loss</td><td>test</td><td>best</td>"
            "<td>img/s</td><td>time</td><td>ended</td></tr>\n",
            runs > 1 ? "s" : "");
    for (int i = 0; i < runs; i++)
        put_run(f, run[i].history, i);
    fputs("</table></div>\n", f);
    for (int i = 0; i < runs; i++)
        put_notes(f, run[i].history);
}

typedef struct drawings {
    char *text[CHARTS]; /* malloc'ed */
    int n;
} drawings;

static void free_drawings(drawings *d)
{
    for (int i = 0; i < d->n; i++)
        free(d->text[i]);
    d->n = 0;
}

/* Draws all charts that have something to show. */
static hvt_status draw_charts(const hvt__page_run *run, int runs, drawings *ret)
{
    lines l = {.line = calloc(2 * (size_t)runs, sizeof *l.line)};
    hvt_status s = HVT_OK;

    ret->n = 0;
    HVT_CHECK(l.line, E_MEM, "no memory for the curves of %d runs", runs);
    for (int k = 0; k < CHARTS && s == HVT_OK; k++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes);
        bool any = f && put_chart(f, run, runs, (chart)k, &l);

        if (!f || fclose(f))
            s = HVT_FAIL(E_MEM, "no memory for the curves of %d runs", runs);
        if (any && s == HVT_OK)
            ret->text[ret->n++] = text;
        else
            free(text);
    }
    free(l.line);
    if (s)
        free_drawings(ret);
    return s;
}

static hvt_status put_charts(FILE *f, const hvt__page_run *run, int runs)
{
    drawings d;

    HVT_TRY(draw_charts(run, runs, &d));
    if (!d.n)
        return HVT_OK;
    fputs("<section class=\"charts\">\n", f);
    for (int k = 0; k < d.n; k++)
        fprintf(f, "<svg viewBox=\"0 0 %d %d\" role=\"img\">\n%s</svg>\n", WIDTH, HEIGHT, d.text[k]);
    fputs("</section>\n<p class=\"note\">Thin lines: training. Thick lines: test images.</p>\n", f);
    free_drawings(&d);
    return HVT_OK;
}

static hvt_status put_page(FILE *f, const hvt__page_run *run, int runs)
{
    double time = hvt__svg_time_height(run, runs);

    fputs("<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>hvtrain report: ", f);
    hvt__xml_cut(f, run->history->name, 60);
    if (runs > 1)
        fprintf(f, " and %d more", runs - 1);
    fputs("</title><meta name=\"viewport\" content=\"width=device-width\"><link rel=\"icon\" "
          "href=\"data:,\">\n<style>",
          f);
    hvt__svg_style(f);
    fprintf(f, "%s</style></head>\n<body><main>\n", css);
    put_summary(f, run, runs);
    HVT_TRY(put_charts(f, run, runs));
    hvt__page_options(f, run, runs);
    if (time > 0) {
        fprintf(f,
                "<h2>Where the time went</h2>\n<svg viewBox=\"0 0 %d %.0f\" class=\"time\" role=\"img\">\n",
                WHOLE, time);
        HVT_TRY(hvt__svg_time(f, run, runs, WHOLE));
        fputs("</svg>\n", f);
    }
    HVT_TRY(hvt__page_classes(f, run, runs));
    for (int i = 0; i < runs; i++)
        HVT_TRY(hvt__page_predictions(f, run + i));
    fprintf(f, "<footer>hvtrain %s</footer>\n</main></body></html>\n", hvt_version());
    return HVT_OK;
}

/* ---- a picture ---- */

static void put_legend(FILE *f, const hvt__page_run *run, int runs)
{
    for (int i = 0; i < runs; i++) {
        int y = 18 + 18 * i;

        fprintf(
            f,
            "<line class=\"s%d%s\" x1=\"8\" x2=\"34\" y1=\"%d\" y2=\"%d\" stroke-width=\"4\"/><text x=\"42\" "
            "y=\"%d\">",
            i % HVT__COLOURS, i >= HVT__COLOURS ? " dash" : "", y, y, y + 4);
        hvt__xml_cut(f, run[i].history->name, 100);
        fputs("</text>\n", f);
    }
    fprintf(f, "<text class=\"dim end\" x=\"%d\" y=\"22\">thin: training; thick: test images</text>\n",
            WHOLE - 14);
}

static hvt_status put_picture(FILE *f, const hvt__page_run *run, int runs)
{
    const double time = hvt__svg_time_height(run, runs);
    const int top = 18 * runs + 16;
    drawings d;
    hvt_status s = HVT_OK;

    HVT_TRY(draw_charts(run, runs, &d));
    double below = top + HEIGHT * ((d.n + 1) / 2);

    hvt__svg_begin(f, WHOLE, below + (time > 0 ? time + 10 : 0));
    put_legend(f, run, runs);
    for (int k = 0; k < d.n; k++)
        fprintf(f, "<g transform=\"translate(%d,%d)\">\n%s</g>\n", WIDTH * (k % 2), top + HEIGHT * (k / 2),
                d.text[k]);
    free_drawings(&d);
    if (time > 0) {
        fprintf(f, "<g transform=\"translate(0,%.0f)\">\n", below + 6);
        s = hvt__svg_time(f, run, runs, WHOLE);
        fputs("</g>\n", f);
    }
    fputs("</svg>\n", f);
    return s;
}

/* True if path ends in `ending`, ignoring case. */
static bool ends_in(const char *path, const char *ending)
{
    const char *dot = strrchr(path, '.');

    return dot && !strcasecmp(dot, ending);
}

hvt__own_file hvt__page_kind(const char *path)
{
    return ends_in(path, ".svg") ? HVT__PICTURE : HVT__PAGE;
}

hvt_status hvt__page_check_name(const char *flag, const char *path)
{
    struct stat info;

    if (hvt__is_stream_path(path) || (stat(path, &info) == 0 && !S_ISREG(info.st_mode)))
        return HVT_OK;
    HVT_CHECK(ends_in(path, ".html") || ends_in(path, ".htm") || ends_in(path, ".svg"), E_ARG,
              "%s %s: expected a name that ends in .html (a page) or .svg (a picture)", flag, path);
    return HVT_OK;
}

hvt_status hvt__page_write(const char *flag, const char *path, const hvt__page_run *run, int runs)
{
    const hvt__own_file kind = hvt__page_kind(path);
    char *text = NULL;
    size_t bytes = 0;
    hvt__output out = {0};
    FILE *f = open_memstream(&text, &bytes);
    hvt_status s = HVT_OK;

    HVT_CHECK(f, E_MEM, "no memory for a report");
    HVT_TRY_OR(done, hvt__name_runs(run, runs));
    s = (kind == HVT__PICTURE ? put_picture : put_page)(f, run, runs);
    s = fclose(f) == 0 || s ? s : HVT_FAIL(E_MEM, "no memory for a report");
    f = NULL;
    HVT_TRY_OR(done, s);
    HVT_TRY_OR(done, hvt__output_open(&out, kind, flag, path));
    HVT_TRY_OR(done, hvt__output_put(&out, text, bytes));
    HVT_TRY_OR(done, hvt__output_finish(&out));
    HVT_TRY_OR(done, hvt__output_replace(&out));
done:
    if (f)
        fclose(f);
    if (s && out.flag)
        hvt__output_drop(&out);
    free(text);
    return s;
}
