/*
 * Where the time went: a bar for each rank of a run, or for some of many ranks.
 */
#include "page_impl.h"
#include "train/report/report_impl.h"
#include "base_impl.h"

#include <math.h>

enum { LABEL = 190, TOTAL = 64, BAR = 16, ROW = 21, HEAD = 24, LEGEND = 30, SHOWN = 16, SHOWN_OF_MANY = 4 };

static const char *const part_names[HVT__PARTS] = {
    "computing", "waiting for the exchange", "waiting for data", "evaluating", "saving", "starting up",
    "other"};

static double total_of(const double part[HVT__PARTS])
{
    double sum = 0;

    for (int k = 0; k < HVT__PARTS; k++)
        sum += part[k];
    return sum;
}

/* Slow ranks first: they wait least for the exchange. */
static int by_exposed(const void *a, const void *b)
{
    const double *const *x = a, *const *y = b;
    double d = (*x)[HVT__PART_EXPOSED_COMM] - (*y)[HVT__PART_EXPOSED_COMM];

    return d < 0 ? -1 : d > 0 ? 1 : *x < *y ? -1 : 1;
}

static void draw_bar(FILE *f, const double part[HVT__PARTS], double most, double width, double y)
{
    double x = LABEL, scale = (width - LABEL - TOTAL) / most;
    char text[32];

    for (int k = 0; k < HVT__PARTS; k++) {
        double w = part[k] * scale;

        if (w < 0.05)
            continue;
        fprintf(f,
                "<rect class=\"p%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%d\"><title>%s: %.1f %%, "
                "%.4g s</title></rect>\n",
                k, x, y, w, BAR, part_names[k], 100 * part[k] / total_of(part), part[k]);
        if (w > 44)
            fprintf(f, "<text class=\"mid in%d\" x=\"%.1f\" y=\"%.1f\">%.0f %%</text>\n", k, x + w / 2,
                    y + 12, 100 * part[k] / total_of(part));
        x += w;
    }
    hvt__duration(total_of(part), text);
    fprintf(f, "<text class=\"dim end\" x=\"%.1f\" y=\"%.1f\">%s</text>\n", width - 6, y + 12, text);
}

static void draw_rank(FILE *f, const hvt__history *h, int rank, double most, double width, double y)
{
    const json_t *hosts = json_object_get(h->start, "hosts");
    const char *host = json_string_value(json_array_get(hosts, (size_t)rank));

    fprintf(f, "<text class=\"end\" x=\"%d\" y=\"%.1f\">", LABEL - 8, y + 12);
    if (h->ranks == 1)
        hvt__xml_cut(f, h->name, 24);
    else
        fprintf(f, "rank %d", rank);
    if (h->ranks > 1 && host && hvt__number_of(h->start, "nodes") > 1) {
        fputs(" on ", f);
        hvt__xml_cut(f, host, 14);
    }
    fputs("</text>\n", f);
    draw_bar(f, h->spent[rank], most, width, y);
}

static bool has_times(const hvt__history *h)
{
    for (int r = 0; r < h->ranks; r++)
        if (total_of(h->spent[r]) > 0)
            return true;
    return false;
}

static int shown_of(const hvt__history *h, int runs)
{
    int most = runs > 4 ? SHOWN_OF_MANY : SHOWN, known = 0;

    for (int r = 0; r < h->ranks; r++) /* older logs have only rank 0's times */
        known += total_of(h->spent[r]) > 0;
    return known < most ? known : most;
}

/* The height of a run's name above its ranks; 0 for a single rank, whose name is beside its bar. */
static double head_of(const hvt__history *h)
{
    return h->ranks > 1 ? HEAD : 0;
}

static void draw_head(FILE *f, const hvt__history *h, int known, int shown, double y)
{
    if (h->ranks == 1)
        return;
    fprintf(f, "<text class=\"title\" x=\"8\" y=\"%.1f\">", y + 15);
    hvt__xml_cut(f, h->name, 80);
    if (known > shown)
        fprintf(f, ": of %d ranks the %d that wait least for the others and the %d that wait most", known,
                shown / 2, shown - shown / 2);
    fputs("</text>\n", f);
}

/* Draws the bars of a run, and moves *y below them. */
static hvt_status draw_run(FILE *f, const hvt__history *h, int runs, double width, double *y)
{
    const double **order = malloc((size_t)h->ranks * sizeof *order);
    int known = 0, shown = shown_of(h, runs);
    double most = 0;

    HVT_CHECK(order, E_MEM, "no memory for the times of %d ranks", h->ranks);
    for (int r = 0; r < h->ranks; r++) {
        if (total_of(h->spent[r]) > 0)
            order[known++] = h->spent[r];
        most = fmax(most, total_of(h->spent[r]));
    }
    if (known > shown)
        qsort(order, (size_t)known, sizeof *order, by_exposed);
    draw_head(f, h, known, shown, *y);
    *y += head_of(h);
    for (int i = 0; i < shown; i++, *y += ROW) {
        int at = known > shown && i >= shown / 2 ? known - shown + i : i;

        draw_rank(f, h, (int)((order[at] - h->spent[0]) / HVT__PARTS), most, width, *y);
    }
    free(order);
    return HVT_OK;
}

double hvt__svg_time_height(const hvt__page_run *run, int runs)
{
    double y = 0;

    for (int i = 0; i < runs; i++)
        if (has_times(run[i].history))
            y += head_of(run[i].history) + ROW * shown_of(run[i].history, runs);
    return y > 0 ? LEGEND + y + 6 : 0;
}

hvt_status hvt__svg_time(FILE *f, const hvt__page_run *run, int runs, double width)
{
    double y = LEGEND, x = 8;

    for (int k = 0; k < HVT__PARTS; k++) {
        fprintf(f,
                "<rect class=\"p%d\" x=\"%.0f\" y=\"4\" width=\"11\" height=\"11\"/><text x=\"%.0f\" "
                "y=\"14\">%s</text>\n",
                k, x, x + 16, part_names[k]);
        x += 34 + 6.3 * (double)strlen(part_names[k]);
    }
    for (int i = 0; i < runs; i++)
        if (has_times(run[i].history))
            HVT_TRY(draw_run(f, run[i].history, runs, width, &y));
    return HVT_OK;
}
