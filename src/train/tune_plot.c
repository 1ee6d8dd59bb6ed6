/*
 * Pictures of what hvtrain tune measured: the time of a step by the size of the buckets.
 */
#include "tune_plot.h"
#include "base_impl.h"

#include <math.h>

/* Orders by size: 0 is the smallest, and "all" the largest. */
static int by_size(const void *a, const void *b)
{
    const hvt__tuned *x = a, *y = b;

    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static void name_size(const hvt__tuned *t, char ret_name[24])
{
    if (t->bytes == 0)
        snprintf(ret_name, 24, "one per layer");
    else if (t->bytes == SIZE_MAX)
        snprintf(ret_name, 24, "all in one");
    else
        snprintf(ret_name, 24, "%.4g", (double)t->bytes / (1 << 20));
}

/* Puts a word above the bars of the value in use and of the chosen one. */
static int mark_sizes(const hvt__tuned *t, int n, hvt__mark ret_mark[])
{
    int marks = 0;

    for (int i = 0; i < n; i++)
        if (t[i].in_use || t[i].chosen)
            ret_mark[marks++] = (hvt__mark){i, 1e3 * t[i].high,
                                            !t[i].chosen  ? "default"
                                            : t[i].in_use ? "default, kept"
                                                          : "chosen"};
    return marks;
}

hvt_status hvt__tune_draw(const char *path, const hvt__chart *c)
{
    enum { WIDTH = 860, HEIGHT = 320 };
    hvt__output out = {0};
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);
    hvt_status s = HVT_OK;

    HVT_CHECK(f, E_MEM, "no memory for a picture");
    hvt__svg_begin(f, WIDTH, HEIGHT);
    hvt__svg_chart(f, c, WIDTH, HEIGHT);
    fputs("</svg>\n", f);
    HVT_CHECK_OR(done, fclose(f) == 0, E_MEM, "no memory for a picture");
    HVT_TRY_OR(done, hvt__output_open(&out, HVT__PICTURE, "tune", path));
    HVT_TRY_OR(done, hvt__output_put(&out, text, bytes));
    HVT_TRY_OR(done, hvt__output_finish(&out));
    HVT_TRY_OR(done, hvt__output_replace(&out));
done:
    if (s && out.flag)
        hvt__output_drop(&out);
    free(text);
    return s;
}

hvt_status hvt__tune_plot(const char *path, const char *title, hvt__tuned *t, int n)
{
    enum { MOST = 32 };
    double x[MOST], y[MOST], low[MOST], high[MOST];
    char name[MOST][24];
    const char *label[MOST];
    hvt__mark mark[MOST];
    hvt__line line = {x, y, (size_t)n, 1, 0, low, high, .dots = true};
    hvt__chart c = {.title = title,
                    .x_name = "size of a bucket, MiB",
                    .line = &line,
                    .lines = 1,
                    .mark = mark,
                    .x_label = label,
                    .x_labels = n};

    HVT_CHECK(n <= MOST, E_MEM, "no memory for a picture of %d sizes", n);
    qsort(t, (size_t)n, sizeof *t, by_size);
    for (int i = 0; i < n; i++) {
        x[i] = i;
        y[i] = 1e3 * t[i].median;
        low[i] = 1e3 * t[i].low;
        high[i] = 1e3 * t[i].high;
        name_size(&t[i], name[i]);
        label[i] = name[i];
    }
    c.marks = mark_sizes(t, n, mark);
    return hvt__tune_draw(path, &c);
}
