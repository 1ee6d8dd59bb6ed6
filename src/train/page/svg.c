/*
 * Line charts as SVG, readable on light and on dark pages.
 *
 * Coordinates are pixels of a chart with its origin in the upper left corner. Colours are classes of a style
 * sheet, which the document has once (hvt__svg_style()).
 */
#include "page_impl.h"
#include "base_impl.h"

#include <math.h>

/* ---- text ---- */

/* The length in bytes of the UTF-8 letter at text; 0 if it is invalid, or not allowed in XML. */
static int letter(const unsigned char *text)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    int n = *text < 0x80 ? 1 : *text >= 0xc2 && *text < 0xe0 ? 2 : *text >= 0xe0 && *text < 0xf0 ? 3 : 4;
    uint32_t v = n == 1 ? *text : *text & (0x7fu >> n);

    if (*text >= 0x80 && (*text < 0xc2 || *text > 0xf4))
        return 0;
    for (int i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80)
            return 0;
        v = v << 6 | (text[i] & 0x3fu);
    }
    if (v < least[n] || v > 0x10ffff || (v >= 0xd800 && v < 0xe000) || v == 0xfffe || v == 0xffff)
        return 0;
    return v >= 0x20 || v == '\t' || v == '\n' ? n : 0;
}

void hvt__xml_cut(FILE *f, const char *text, int letters)
{
    for (int n; *text; text += n ? n : 1) {
        if (letters-- == 0) {
            fputs("\xe2\x80\xa6", f);
            return;
        }
        n = letter((const unsigned char *)text);
        if (!n)
            fputs("\xef\xbf\xbd", f);
        else if (strchr("&<>\"'", *text))
            fprintf(f, "&#%d;", *text);
        else
            fwrite(text, 1, (size_t)n, f);
    }
}

void hvt__xml(FILE *f, const char *text)
{
    hvt__xml_cut(f, text, INT_MAX);
}

/* ---- style ---- */

static void colours(FILE *f, const char *const colour[HVT__COLOURS])
{
    for (int i = 0; i < HVT__COLOURS; i++)
        fprintf(f, ".s%d{stroke:%s;fill:%s}", i, colour[i], colour[i]);
}

static void parts(FILE *f, const char *const colour[HVT__PARTS])
{
    for (int i = 0; i < HVT__PARTS; i++)
        fprintf(f, ".p%d{fill:%s}", i, colour[i]);
}

/* Colours that people with red-green colour blindness can tell apart (Okabe and Ito's, and others). */
void hvt__svg_style(FILE *f)
{
    static const char *const light[HVT__COLOURS] = {"#0072b2", "#c24e00", "#00785a", "#a3478b", "#7a6200",
                                                    "#1a1a1a", "#4b5bd4", "#8a4b08", "#b0003a", "#4f6d7a"};
    static const char *const dark[HVT__COLOURS] = {"#56b4e9", "#ff9f5a", "#3fd0a4", "#e29ad0", "#e8d44d",
                                                   "#f0f0f0", "#9aa5ff", "#d9a066", "#ff7a9c", "#a9c4d1"};

    static const char *const part_light[HVT__PARTS] = {"#3b7ea1", "#d1495b", "#e3a030", "#6f9a74",
                                                       "#8d6a9f", "#9aa0a6", "#d5d8db"};
    static const char *const part_dark[HVT__PARTS] = {"#4a90b8", "#e06473", "#e0aa4e", "#7fae85",
                                                      "#a384b5", "#767d85", "#3a4149"};

    fputs("svg text{font:12px system-ui,sans-serif;fill:#333}svg .title{font-weight:600;font-size:13px}"
          "svg .dim{fill:#666}svg .end{text-anchor:end}svg .mid{text-anchor:middle}.back{fill:#fff}"
          ".grid{stroke:#e4e4e4}.axis{stroke:#999}polyline{fill:none!important;stroke-width:2;"
          "stroke-linejoin:round}polyline.thin{stroke-width:1.2;stroke-opacity:.45}"
          ".dash{stroke-dasharray:7 4}.bar{stroke:none}.in0,.in1,.in4{fill:#fff}",
          f);
    colours(f, light);
    parts(f, part_light);
    fputs("@media(prefers-color-scheme:dark){svg text{fill:#ddd}svg .dim{fill:#999}.back{fill:#0d1117}"
          ".grid{stroke:#272d36}.axis{stroke:#6a737d}.in2,.in3,.in5{fill:#222}",
          f);
    colours(f, dark);
    parts(f, part_dark);
    fputs("}", f);
}

void hvt__svg_begin(FILE *f, double width, double height)
{
    fprintf(f,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\" width=\"%.0f\" "
            "height=\"%.0f\">\n<style>",
            width, height, width, height);
    hvt__svg_style(f);
    fprintf(f, "</style>\n<rect class=\"back\" width=\"%.0f\" height=\"%.0f\"/>\n", width, height);
}

/* ---- axes ---- */

void hvt__tick_text(double v, char ret_text[32])
{
    double size = fabs(v);

    if (size >= 1e9 || (size > 0 && size < 1e-4))
        snprintf(ret_text, 32, "%.3g", v);
    else if (size >= 1e6)
        snprintf(ret_text, 32, "%.4gM", v / 1e6);
    else if (size >= 1e4)
        snprintf(ret_text, 32, "%.4gk", v / 1e3);
    else
        snprintf(ret_text, 32, "%.4g", v);
}

static int ticks_log(double low, double high, double ret_at[HVT__TICKS])
{
    static const int parts[] = {1, 2, 5};
    int from = (int)floor(log10(low)), to = (int)ceil(log10(high)), n = 0;
    int every = (to - from) / 6 + 1, of = to - from > 3 ? 1 : 3;

    for (int e = from; e <= to; e += every)
        for (int i = 0; i < of && n < HVT__TICKS; i++) {
            double v = pow(10, e) * parts[i];

            if (v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9))
                ret_at[n++] = v;
        }
    return n;
}

int hvt__ticks(double low, double high, bool log, int about, double ret_at[HVT__TICKS])
{
    static const int parts[] = {1, 2, 5, 10};
    double ten = pow(10, floor(log10((high - low) / about))), step = ten;
    int n = 0;

    if (log)
        return ticks_log(low, high, ret_at);
    for (size_t i = 0; i < HVT_LEN(parts) && (high - low) / step > about * 1.3; i++)
        step = ten * parts[i];
    for (double k = ceil(low / step - 1e-9); k * step <= high + 1e-9 * step && n < HVT__TICKS; k++)
        ret_at[n++] = k * step + 0.0; /* no -0 */
    return n;
}

/* ---- charts ---- */

enum { LEFT = 52, RIGHT = 14, TOP = 34, BOTTOM = 44 };

typedef struct plot {
    FILE *f;
    double width, height;
    double x0, x1, y0, y1; /* the values at the edges */
    double x_unit;
    bool log;
} plot;

static double across(const plot *p, double x)
{
    return LEFT + (x / p->x_unit - p->x0) / (p->x1 - p->x0) * (p->width - LEFT - RIGHT);
}

static double down(const plot *p, double y)
{
    double part = p->log ? (log(y) - log(p->y0)) / (log(p->y1) - log(p->y0)) : (y - p->y0) / (p->y1 - p->y0);

    return p->height - BOTTOM - part * (p->height - TOP - BOTTOM);
}

static bool is_there(const hvt__line *l, size_t i)
{
    const double MOST = 1e100; /* differences of such values are finite */

    return fabs(l->x[i * l->stride]) < MOST && fabs(l->y[i * l->stride]) < MOST;
}

/* The range of both axes; false if there is nothing to show. */
static bool find_range(plot *p, const hvt__chart *c)
{
    double positive = INFINITY;

    p->x0 = p->y0 = INFINITY;
    p->x1 = p->y1 = -INFINITY;
    for (int k = 0; k < c->lines; k++)
        for (size_t i = 0; i < c->line[k].n; i++) {
            double x = c->line[k].x[i * c->line[k].stride] / p->x_unit,
                   y = c->line[k].y[i * c->line[k].stride];

            if (!is_there(&c->line[k], i))
                continue;
            p->x0 = fmin(p->x0, x);
            p->x1 = fmax(p->x1, x);
            p->y0 = fmin(p->y0, c->line[k].low ? c->line[k].low[i] : y);
            p->y1 = fmax(p->y1, c->line[k].high ? c->line[k].high[i] : y);
            positive = y > 0 ? fmin(positive, y) : positive;
        }
    if (!(p->x0 <= p->x1))
        return false;
    p->x0 = c->x_label ? -0.5 : fmin(p->x0, c->x_least);
    p->x1 = c->x_label ? c->x_labels - 0.5 : p->x1;
    p->log = c->may_log && p->y0 > 0 && p->y1 > 30 * positive;
    return true;
}

static void widen(plot *p, const hvt__chart *c)
{
    double margin = (p->y1 - p->y0) / 20;

    if (p->log) {
        p->y0 /= 1.15;
        p->y1 *= 1.15;
        return;
    }
    if (!(margin > 1e-12 * fabs(p->y1)))
        margin = p->y1 != 0 ? fabs(p->y1) / 10 : 1;
    p->y0 = c->from_zero ? fmin(p->y0, 0) : p->y0 - margin;
    p->y1 += margin;
    if (c->ends_at_100)
        p->y1 = fmin(p->y1, fmax(100, p->y1 - margin));
    if (c->ends_at_100)
        p->y0 = fmax(p->y0, 0);
    if (!(p->x1 > p->x0)) {
        p->x0 -= p->x0 ? fabs(p->x0) / 2 : 1;
        p->x1 += p->x1 ? fabs(p->x1) / 2 : 1;
    }
}

static void draw_axes(const plot *p, const hvt__chart *c)
{
    double at[HVT__TICKS], right = p->width - RIGHT, floor = p->height - BOTTOM;
    char text[32];
    int n = hvt__ticks(p->y0, p->y1, p->log, 5, at);

    fprintf(p->f, "<text class=\"title\" x=\"8\" y=\"18\">");
    hvt__xml(p->f, c->title);
    fprintf(p->f, "%s</text>\n", p->log ? " (log scale)" : "");
    for (int i = 0; i < n; i++) {
        double y = down(p, at[i]);

        hvt__tick_text(at[i], text);
        fprintf(p->f,
                "<line class=\"grid\" x1=\"%d\" x2=\"%.1f\" y1=\"%.2f\" y2=\"%.2f\"/>"
                "<text class=\"dim end ytick\" x=\"%d\" y=\"%.2f\">%s</text>\n",
                LEFT, right, y, y, LEFT - 8, y + 4, text);
    }
    n = c->x_label ? c->x_labels : hvt__ticks(p->x0, p->x1, false, 6, at);
    for (int i = 0; i < n; i++) {
        if (!c->x_label)
            hvt__tick_text(at[i], text);
        fprintf(p->f, "<text class=\"dim mid xtick\" x=\"%.2f\" y=\"%.1f\">",
                across(p, c->x_label ? i : at[i] * p->x_unit), floor + 18);
        hvt__xml(p->f, c->x_label ? c->x_label[i] : text);
        fputs("</text>\n", p->f);
    }
    fprintf(p->f,
            "<line class=\"axis\" x1=\"%d\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\"/>"
            "<text class=\"dim mid\" x=\"%.1f\" y=\"%.1f\">",
            LEFT, right, floor, floor, (LEFT + right) / 2, floor + 36);
    hvt__xml(p->f, c->x_name);
    fputs("</text>\n", p->f);
}

static void draw_line(const plot *p, const hvt__line *l)
{
    const char *dash = l->colour >= HVT__COLOURS ? " dash" : "", *thin = l->thin ? " thin" : "";
    const int s = l->colour % HVT__COLOURS;
    size_t end;

    for (size_t i = 0; i < l->n; i = end) {
        for (end = i; end < l->n && is_there(l, end); end++)
            ;
        if (end > i + 1) {
            fprintf(p->f, "<polyline class=\"s%d%s%s\" points=\"", s, thin, dash);
            for (size_t k = i; k < end; k++)
                fprintf(p->f, "%s%.2f,%.2f", k > i ? " " : "", across(p, l->x[k * l->stride]),
                        down(p, l->y[k * l->stride]));
            fputs("\"/>\n", p->f);
        }
        for (size_t k = i; k < end && (l->dots || end == i + 1); k++)
            fprintf(p->f, "<circle class=\"s%d%s\" cx=\"%.2f\" cy=\"%.2f\" r=\"%s\"/>\n", s, thin,
                    across(p, l->x[k * l->stride]), down(p, l->y[k * l->stride]), l->thin ? "1.6" : "2.4");
        end += end == i || end < l->n;
    }
}

static void draw_bars(const plot *p, const hvt__line *l)
{
    for (size_t i = 0; l->low && i < l->n; i++)
        if (is_there(l, i))
            fprintf(p->f, "<line class=\"s%d\" x1=\"%.2f\" x2=\"%.2f\" y1=\"%.2f\" y2=\"%.2f\"/>\n",
                    l->colour % HVT__COLOURS, across(p, l->x[i * l->stride]), across(p, l->x[i * l->stride]),
                    down(p, l->low[i]), down(p, l->high[i]));
}

void hvt__svg_chart(FILE *f, const hvt__chart *c, double width, double height)
{
    plot p = {.f = f, .width = width, .height = height, .x_unit = c->x_unit > 0 ? c->x_unit : 1};

    if (!find_range(&p, c)) {
        fputs("<text class=\"title\" x=\"8\" y=\"18\">", f);
        hvt__xml(f, c->title);
        fprintf(f, "</text>\n<text class=\"dim mid\" x=\"%.0f\" y=\"%.0f\">no values</text>\n", width / 2,
                height / 2);
        return;
    }
    widen(&p, c);
    draw_axes(&p, c);
    for (int thin = 1; thin >= 0; thin--)
        for (int i = 0; i < c->lines; i++)
            if (c->line[i].thin == thin)
                draw_line(&p, &c->line[i]);
    for (int i = 0; i < c->lines; i++)
        draw_bars(&p, &c->line[i]);
    for (int i = 0; i < c->marks; i++) {
        fprintf(f, "<text class=\"mid mark\" x=\"%.1f\" y=\"%.1f\">", across(&p, c->mark[i].x),
                down(&p, c->mark[i].y) - 8);
        hvt__xml(f, c->mark[i].text);
        fputs("</text>\n", f);
    }
}

void hvt__page_chip(FILE *f, int run)
{
    fprintf(f,
            "<svg class=\"chip\" viewBox=\"0 0 22 8\"><line class=\"s%d%s\" x2=\"22\" y1=\"4\" y2=\"4\" "
            "stroke-width=\"4\"/></svg>",
            run % HVT__COLOURS, run >= HVT__COLOURS ? " dash" : "");
}
