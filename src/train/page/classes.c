/*
 * Classes: the accuracy of each, the confusion matrix, and the most confident mistakes.
 */
#include "page_impl.h"
#include "base_impl.h"

#include <math.h>

enum { ROWS = 40, WORST = 30, CELLS = 40, CELLS_OF_MANY = 30, NAME = 22, NUMBERS = 15 };

/* ---- accuracy per class, or IoU of masks ---- */

typedef struct row {
    int class;
    double mean; /* percent, of all runs; NaN: no images */
} row;

/* A count of the evaluation for this class; NaN if unknown. */
static double count_in(const hvt__history *h, const char *field, int class)
{
    const json_t *v = json_array_get(json_object_get(h->eval, field), (size_t) class);

    return json_is_integer(v) ? (double)json_integer_value(v) : (double)NAN;
}

static double accuracy(const hvt__history *h, int class)
{
    const double hits = count_in(h, "class_hits", class);
    double all = count_in(h, "class_images", class);

    if (h->masks)
        all += count_in(h, "class_predicted", class) - hits;
    return all > 0 ? 100.0 * hits / all : (double)NAN;
}

static int worse(const void *a, const void *b)
{
    const row *x = a, *y = b;

    if (isnan(x->mean) || isnan(y->mean))
        return isnan(x->mean) - isnan(y->mean);
    return x->mean < y->mean ? -1 : x->mean > y->mean ? 1 : x->class - y->class;
}

static const char *name_of(const json_t *start, int class, char ret_number[16])
{
    const char *name =
        json_string_value(json_array_get(json_object_get(start, "class_names"), (size_t) class));

    snprintf(ret_number, 16, "class %d", class);
    return name && *name ? name : ret_number;
}

static const json_t *start_with_names(const hvt__page_run *run, int runs)
{
    for (int i = 0; i < runs; i++)
        if (json_array_size(json_object_get(run[i].history->start, "class_names")))
            return run[i].history->start;
    return run->history->start;
}

static void put_bars(FILE *f, const hvt__page_run *run, int runs, const row *rows, int n)
{
    enum { LEFT = 190, WIDTH = 860, HEIGHT = 20, RIGHT = 70 };
    const double scale = (WIDTH - LEFT - RIGHT) / 100.0;
    const json_t *start = start_with_names(run, runs);
    char number[16];

    fprintf(f, "<svg viewBox=\"0 0 %d %d\" class=\"classes\" role=\"img\">\n", WIDTH, n * HEIGHT + 8);
    for (int i = 0; i < n; i++) {
        double y = i * HEIGHT + 4;

        fprintf(f, "<text class=\"end\" x=\"%d\" y=\"%.0f\">", LEFT - 8, y + 13);
        hvt__xml_cut(f, name_of(start, rows[i].class, number), NAME);
        fprintf(f, "</text><line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>\n", LEFT,
                WIDTH - RIGHT, y + 8.5, y + 8.5);
        for (int k = 0; k < runs; k++) {
            double v = accuracy(run[k].history, rows[i].class);

            if (isnan(v))
                continue;
            if (runs == 1)
                fprintf(f, "<rect class=\"s0 bar\" x=\"%d\" y=\"%.1f\" width=\"%.1f\" height=\"11\"/>\n",
                        LEFT, y + 3, v * scale);
            else
                fprintf(f,
                        "<circle class=\"s%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"4\"><title>%.2f %%</title>"
                        "</circle>\n",
                        k % HVT__COLOURS, LEFT + v * scale, y + 8.5, v);
        }
        fprintf(f, "<text class=\"dim\" x=\"%d\" y=\"%.0f\">%.1f %%</text>\n", WIDTH - RIGHT + 10, y + 13,
                rows[i].mean);
    }
    fputs("</svg>\n", f);
}

static void put_table(FILE *f, const hvt__page_run *run, int runs, const row *rows, int n)
{
    const json_t *start = start_with_names(run, runs);
    char number[16];

    fprintf(f, "<details><summary>all %d classes</summary><table class=\"numbers\">\n", n);
    for (int i = 0; i < n; i++) {
        fputs("<tr><th>", f);
        hvt__xml(f, name_of(start, rows[i].class, number));
        fputs("</th>", f);
        for (int k = 0; k < runs; k++) {
            double v = accuracy(run[k].history, rows[i].class);

            fprintf(f, isnan(v) ? "<td>-</td>" : "<td>%.2f %%</td>", v);
        }
        fputs("</tr>\n", f);
    }
    fputs("</table></details>\n", f);
}

hvt_status hvt__page_classes(FILE *f, const hvt__page_run *run, int runs)
{
    int classes = 0, known = 0;
    row *rows;

    for (int i = 0; i < runs; i++) {
        int n = (int)json_array_size(json_object_get(run[i].history->eval, "class_images"));

        classes = n > classes ? n : classes;
    }
    rows = calloc((size_t)classes + 1, sizeof *rows);
    HVT_CHECK(rows, E_MEM, "no memory for a table of %d classes", classes);
    for (int c = 0; c < classes; c++) {
        int n = 0;

        rows[c].class = c;
        for (int i = 0; i < runs; i++) {
            double v = accuracy(run[i].history, c);

            n += !isnan(v);
            rows[c].mean += isnan(v) ? 0 : v;
        }
        rows[c].mean = n ? rows[c].mean / n : (double)NAN;
        known += n > 0;
    }
    if (!known) {
        free(rows);
        return HVT_OK;
    }
    qsort(rows, (size_t)classes, sizeof *rows, worse);
    fprintf(f, "<h2>%s per class</h2>\n<p class=\"note\">of the last evaluation, the worst class first",
            run->history->masks ? "IoU" : "Accuracy");
    if (known > ROWS)
        fprintf(f, ": %d of %d classes; the median class has %.1f %%", WORST, known, rows[known / 2].mean);
    fprintf(f, "%s</p>\n", runs > 1 ? "; a dot is a run, the number is the mean" : "");
    put_bars(f, run, runs, rows, known > ROWS ? WORST : known);
    put_table(f, run, runs, rows, known);
    free(rows);
    return HVT_OK;
}

/* ---- the confusion matrix ---- */

static const char *confused_name(const hvt__confusion *c, const json_t *start, int class, char ret_number[16])
{
    return *c->name[class] ? c->name[class] : name_of(start, class, ret_number);
}

static int64_t count_of(const hvt__confusion *c, int label, int class)
{
    uint64_t key = (uint64_t)label << 32 | (uint64_t) class;
    size_t low = 0, high = c->pairs;

    while (low < high) {
        size_t mid = (low + high) / 2;

        if (c->pair[mid] < key)
            low = mid + 1;
        else
            high = mid;
    }
    return low < c->pairs && c->pair[low] == key ? c->count[low] : 0;
}

typedef struct matrix {
    FILE *f;
    const hvt__confusion *c;
    const json_t *start;
    const int *class; /* [n] */
    int n;
    double left, top, cell;
} matrix;

static void put_cell(const matrix *m, int i, int k)
{
    int64_t count = count_of(m->c, m->class[i], m -> class[k]), all = m->c->in_class[m->class[i]];
    double part = all ? (double)count / (double)all : 0, x = m->left + k * m->cell, y = m->top + i * m->cell;
    char a[16], b[16];

    if (!count)
        return;
    fprintf(m->f,
            "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" "
            "fill-opacity=\"%.3f\"><title>",
            i == k ? "hit" : "miss", x, y, m->cell - 1, m->cell - 1, 0.08 + 0.92 * sqrt(part));
    hvt__xml(m->f, confused_name(m->c, m->start, m->class[i], a));
    fprintf(m->f, "%s", i == k ? ", as it is" : ", taken for ");
    if (i != k)
        hvt__xml(m->f, confused_name(m->c, m->start, m->class[k], b));
    fprintf(m->f, ": %lld of %lld</title></rect>\n", (long long)count, (long long)all);
    if (m->n <= NUMBERS)
        fprintf(m->f, "<text class=\"mid%s\" x=\"%.1f\" y=\"%.1f\">%lld</text>\n", part > 0.25 ? " on" : "",
                x + m->cell / 2 - 0.5, y + m->cell / 2 + 4, (long long)count);
}

static int letters_of(const char *name)
{
    int n = 0;

    for (; *name; name++)
        n += (*name & 0xc0) != 0x80;
    return n;
}

static void put_matrix(FILE *f, const hvt__confusion *c, const json_t *start, const int *class, int n)
{
    enum { SIDE_LETTERS = 18, TOP_LETTERS = 16, LETTER = 7 };
    matrix m = {f, c, start, class, n, 0, 0, n <= 4 ? 64 : n <= NUMBERS ? 34 : 17};
    char number[16];
    int most = 0;

    for (int i = 0; i < n; i++)
        most = (int)fmax(most, letters_of(confused_name(c, start, class[i], number)));
    m.left = 14 + LETTER * fmin(most + 1, SIDE_LETTERS + 1);
    m.top = 16 + 0.8 * LETTER * fmin(most + 1, TOP_LETTERS + 1); /* labels stand at 50 degrees */
    double width = m.left + n * m.cell + m.top, height = m.top + n * m.cell;

    fprintf(f, "<svg viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" class=\"confusion\" role=\"img\">\n", width,
            height, width);
    fprintf(f, "<rect class=\"paper\" x=\"%.0f\" y=\"%.0f\" width=\"%.1f\" height=\"%.1f\"/>\n", m.left,
            m.top, n * m.cell - 1, n * m.cell - 1);
    for (int i = 0; i < n; i++) {
        double at = (i + 0.5) * m.cell;

        fprintf(f, "<text class=\"end\" x=\"%.0f\" y=\"%.1f\">", m.left - 7, m.top + at + 4);
        hvt__xml_cut(f, confused_name(c, start, class[i], number), SIDE_LETTERS);
        fprintf(f, "</text><text transform=\"translate(%.1f,%.0f) rotate(-50)\">", m.left + at + 3,
                m.top - 7);
        hvt__xml_cut(f, confused_name(c, start, class[i], number), TOP_LETTERS);
        fputs("</text>\n", f);
        for (int k = 0; k < n; k++)
            put_cell(&m, i, k);
    }
    fputs("</svg>\n", f);
}

typedef struct confused {
    int64_t count;
    int class, as;
} confused;

static int more_often(const void *a, const void *b)
{
    const confused *x = a, *y = b;

    return x->count != y->count   ? (x->count < y->count ? 1 : -1)
           : x->class != y->class ? x->class - y->class
                                  : x->as - y->as;
}

static int by_number(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* Chooses the classes of a matrix: all, or those in the most frequent mistakes. Returns their number. */
static int choose_classes(const hvt__confusion *c, const confused *pair, size_t pairs, int ret[CELLS])
{
    int n = 0;

    for (int i = 0; c->classes <= CELLS && i < c->classes; i++)
        ret[n++] = i;
    for (size_t i = 0; c->classes > CELLS && i < pairs; i++)
        for (int k = 0; k < 2; k++) {
            int class = k ? pair[i].as : pair[i].class, at = 0;

            while (at < n && ret[at] != class)
                at++;
            if (at == n && n < CELLS_OF_MANY)
                ret[n++] = class;
        }
    qsort(ret, (size_t)n, sizeof *ret, by_number);
    return n;
}

static void put_pairs(FILE *f, const hvt__confusion *c, const json_t *start, const confused *pair,
                      size_t pairs)
{
    enum { SHOWN = 12 };
    char number[16];

    fputs("<table class=\"numbers pairs\"><tr><th>is</th><th>taken for</th><td>images</td><td>of its "
          "class</td></tr>\n",
          f);
    for (size_t i = 0; i < pairs && i < SHOWN; i++) {
        fputs("<tr><th>", f);
        hvt__xml(f, confused_name(c, start, pair[i].class, number));
        fputs("</th><th>", f);
        hvt__xml(f, confused_name(c, start, pair[i].as, number));
        fprintf(f, "</th><td>%lld</td><td>%.1f %%</td></tr>\n", (long long)pair[i].count,
                100.0 * (double)pair[i].count / (double)c->in_class[pair[i].class]);
    }
    fputs("</table>\n", f);
}

static hvt_status put_confusion(FILE *f, const hvt__confusion *c, const json_t *start)
{
    confused *pair = malloc(c->pairs * sizeof *pair + 1);
    size_t pairs = 0;
    int class[CELLS], n;

    HVT_CHECK(pair, E_MEM, "no memory for a confusion matrix");
    for (size_t i = 0; i < c->pairs; i++) {
        int label = (int)(c->pair[i] >> 32), as = (int)(uint32_t)c->pair[i];

        if (label != as)
            pair[pairs++] = (confused){c->count[i], label, as};
    }
    qsort(pair, pairs, sizeof *pair, more_often);
    n = choose_classes(c, pair, pairs, class);
    fprintf(f, "<h3>Confusion matrix</h3>\n<p class=\"note\">rows: what it is; columns: what the model says");
    if (c->classes > CELLS)
        fprintf(f, "; the %d classes in the most frequent mistakes, of %d", n, c->classes);
    fputs("</p>\n", f);
    fputs("<div class=\"wide side\">", f);
    put_matrix(f, c, start, class, n);
    if (pairs)
        put_pairs(f, c, start, pair, pairs);
    fputs("</div>\n", f);
    free(pair);
    return HVT_OK;
}

static hvt_status put_mistakes(FILE *f, const hvt__confusion *c, const hvt__page_run *run,
                               const json_t *start)
{
    char number[16];
    int missing = 0;
    hvt_status s;

    fputs("<h3>Most confident mistakes</h3>\n<div class=\"mistakes\">\n", f);
    for (int i = 0; i < c->mistakes; i++) {
        const hvt__mistake *m = &c->mistake[i];

        fputs("<figure>", f);
        s = run->set ? hvt__page_thumbnail(f, run->set, m->index, run->exif) : HVT_E_IO;
        if (s == HVT_E_MEM)
            return s;
        missing += s != HVT_OK;
        fputs("<figcaption><b>", f);
        hvt__xml_cut(f, confused_name(c, start, m->class, number), NAME);
        fprintf(f, "</b> %.1f %%<br>is <b>", 100 * m->part);
        hvt__xml_cut(f, confused_name(c, start, m->label, number), NAME);
        fputs("</b><br><span title=\"", f);
        hvt__xml(f, m->file);
        fputs("\">", f);
        hvt__xml_cut(f, strrchr(m->file, '/') ? strrchr(m->file, '/') + 1 : m->file, 22);
        fputs("</span></figcaption></figure>\n", f);
    }
    fputs("</div>\n", f);
    if (!missing)
        return HVT_OK;
    fputs("<p class=\"note\">Images are missing: ", f);
    hvt__xml(f, run->set ? "they cannot be read any more" : run->set_missing);
    fputs("</p>\n", f);
    return HVT_OK;
}

hvt_status hvt__page_predictions(FILE *f, const hvt__page_run *run)
{
    const json_t *start = run->history->predicted ? run->history->predicted : run->history->start;
    hvt__confusion c;
    hvt_status s = HVT_OK;

    if (!run->predictions || !*run->predictions)
        return HVT_OK;
    HVT_TRY(hvt__confusion_read(run->predictions, &c));
    fputs("<h2>Predictions: ", f);
    hvt__xml(f, run->predictions);
    fputs("</h2>\n", f);
    if (c.images) {
        fprintf(f, "<p>%lld of %lld images are right: <b>%.2f %%</b></p>\n", (long long)c.hits,
                (long long)c.images, 100.0 * (double)c.hits / (double)c.images);
        s = put_confusion(f, &c, start);
        if (s == HVT_OK && c.mistakes)
            s = put_mistakes(f, &c, run, start);
    } else {
        fputs("<p class=\"note\">The images have no labels, so nothing can be compared.</p>\n", f);
    }
    hvt__confusion_free(&c);
    return s;
}
