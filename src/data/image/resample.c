/*
 * Antialiased bilinear resampling, as torchvision's Resize and Pillow's BILINEAR define it: a triangle of
 * support max(1, scale) around each output's centre, weights that sum to 1, pixel centres at +0.5.
 *
 * Rows first, then columns, both in integers: weights have 14 fractional bits; the values between the two
 * passes have 16 bits, 7 of them fractional. So every instruction set gives the same bits, with one rounding
 * less than Pillow (which rounds to bytes in between) and within one of the exact result. Rows come from the
 * decoder in blocks and stay in the first-level cache until no output needs them: only a ring of the
 * picture's rows is in memory.
 */
#include "resample.h"

#include <math.h>

enum { ONE = 1 << 14, BLOCK = 16 /* rows */, ALIGN = 64 /* bytes */ };
/* Offset of rows in bytes: libjpeg-turbo writes aligned rows past the cache to memory, and reading them from
 * there would take longer than resampling them. */
enum { OFF = 8 };

/* ---- the plan of an axis ----------------------------------------------------------------------- */

static hvt_status grow(const char *path, void **memory, size_t *room, size_t bytes)
{
    HVT_CHECK(bytes <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: resampling takes %zu MiB, at most %zu are allowed", path, bytes >> 20,
              HVT__IMAGE_MEMORY_MAX >> 20);
    if (bytes <= *room)
        return HVT_OK;
    free(*memory);
    *room = 0;
    *memory = aligned_alloc(ALIGN, round_up(bytes, ALIGN));
    HVT_CHECK(*memory, E_MEM, "%s: no memory to resample it (%zu bytes)", path, bytes);
    memset(*memory, 0, round_up(bytes, ALIGN)); /* kernels may load bytes beyond a row */
    *room = bytes;
    return HVT_OK;
}

/* Weights of inputs first ... first + n - 1 for an output around `centre`. Prefix sums are rounded, not the
 * weights, so that the weights sum to exactly ONE. */
static void weigh(int16_t *weight, int taps, int first, int n, double centre, double support)
{
    double per = 1 / support, at = (first + .5 - centre) * per, all = 0, sum = 0, one;
    int before = 0;

    for (int k = 0; k < n; k++) {
        double w = 1 - fabs(at + k * per);

        all += w > 0 ? w : 0;
    }
    one = ONE / all;
    for (int k = 0; k < n; k++) {
        double w = 1 - fabs(at + k * per);
        int now;

        sum += w > 0 ? w : 0;
        now = (int)(sum * one + .5);
        weight[k] = (int16_t)(now - before);
        before = now;
    }
    for (int k = n; k < taps; k++)
        weight[k] = 0;
}

hvt_status hvt__axis_plan(const char *path, hvt__axis *a, double at, double size, int full, int from,
                          int count, int low, int high)
{
    double scale = size / full, support = scale > 1 ? scale : 1;
    int most = (int)ceil(2 * support), taps = most + most % 2;
    size_t firsts = (size_t)count * sizeof *a->first;

    HVT_TRY(
        grow(path, (void **)&a->first, &a->room, firsts + (size_t)count * (size_t)taps * sizeof *a->weight));
    a->weight = (int16_t *)((char *)a->first + firsts);
    a->count = count;
    a->taps = taps;
    for (int i = 0; i < count; i++) {
        double centre = at + (from + i + .5) * scale;
        int first = (int)(centre - support + .5), end = (int)(centre + support + .5);

        first = first < low ? low : first; /* also below 0, where (int) rounds up */
        end = end > high ? high : end > first + most ? first + most : end;
        weigh(a->weight + (size_t)i * (size_t)taps, taps, first, end - first, centre, support);
        a->first[i] = first;
        a->end = end;
    }
    a->begin = a->first[0];
    return HVT_OK;
}

/* ---- rows from the decoder --------------------------------------------------------------------- */

/* A ring of the decoder's rows. */
typedef struct ring {
    const hvt__decoder *d;
    void *ctx;
    uint8_t **row, *memory;
    size_t pitch;
    double decoding;            /* seconds */
    int rows, begin, have, end; /* rows [begin, have) were read; the last `rows` are held */
} ring;

/* The layout of the scratch memory, in this order. */
typedef struct layout {
    size_t row, list, between[PAIR], at, spread, line[PAIR], memory, bytes;
} layout;

static layout lay_out(const hvt__resampler *r, int rows, size_t pitch)
{
    size_t count = (size_t)r->across.count, taps = (size_t)r->across.taps, at = 0;
    size_t spread = (count + GROUP) * (taps / 2 + 1) * 8; /* prepare_avx512() takes less */
    layout l;

#define NEXT(part, size) (l.part = at, at += round_up(size, ALIGN))
    NEXT(row, (size_t)rows * sizeof(uint8_t *));
    NEXT(list, (size_t)r->down.taps * sizeof(uint8_t *));
    for (int i = 0; i < PAIR; i++) {
        NEXT(between[i], (pitch + taps * 3 + ALIGN) * sizeof(int16_t));
        NEXT(line[i], count * 3 + ALIGN);
    }
    NEXT(at, (count + GROUP) * sizeof(int32_t));
    NEXT(spread, spread * sizeof(int16_t));
    NEXT(memory, (size_t)rows * pitch + OFF);
#undef NEXT
    l.bytes = at;
    return l;
}

static hvt_status fetch(ring *g)
{
    int n = g->end - g->have < BLOCK ? g->end - g->have : BLOCK;
    int slot = (g->have - g->begin) % g->rows;
    double began;

    for (int i = slot; i < slot + n; i++)
        g->row[i] = g->memory + (size_t)i * g->pitch;
    began = hvt__now();
    HVT_TRY(g->d->rows(g->ctx, n, g->row + slot));
    g->decoding += hvt__now() - began;
    g->have += n;
    return HVT_OK;
}

/* Sets the row addresses of `taps` taps from input `first` on. */
static hvt_status gather(ring *g, int first, int taps, const uint8_t **ret_rows)
{
    while (g->have < first + taps && g->have < g->end)
        HVT_TRY(fetch(g));
    for (int k = 0; k < taps; k++) {
        int y = first + k < g->end ? first + k : g->end - 1; /* weights beyond the end are 0 */

        ret_rows[k] = g->row[(y - g->begin) % g->rows];
    }
    return HVT_OK;
}

/* Returns the number of taps up to the last pair with a weight other than 0. */
static int needed(const int16_t *weight, int taps)
{
    while (taps > 2 && !weight[taps - 1] && !weight[taps - 2])
        taps -= 2;
    return taps;
}

/* Lays out the scratch memory. */
static hvt_status place(const char *path, hvt__resampler *r, int x0, ring *g, hvt__resample_pass *p)
{
    const hvt__axis *a = &r->across;
    layout l;

    g->rows = (int)round_up((size_t)r->down.taps, BLOCK) + BLOCK;
    g->pitch = round_up(p->bytes, ALIGN) + HVT__ROW_SLACK;
    l = lay_out(r, g->rows, g->pitch);
    HVT_TRY(grow(path, (void **)&r->scratch, &r->room, l.bytes));
    g->row = (uint8_t **)(r->scratch + l.row);
    g->memory = r->scratch + l.memory + OFF;
    p->rows = (const uint8_t **)(r->scratch + l.list);
    for (int row = 0; row < PAIR; row++) {
        p->between[row] = (int16_t *)(r->scratch + l.between[row]);
        p->line[row] = r->scratch + l.line[row];
    }
    p->at = (int32_t *)(r->scratch + l.at);
    p->spread = (int16_t *)(r->scratch + l.spread);
    for (int j = 0; j < a->count + GROUP; j++)
        p->at[j] = (a->first[j < a->count ? j : a->count - 1] - x0) * 3;
    return HVT_OK;
}

/* Resamples row i of the outputs vertically. */
static hvt_status go_down(const hvt__resample_kernels *k, hvt__resample_pass *p, const hvt__axis *down, int i,
                          ring *g, int16_t *to)
{
    const int16_t *weight = down->weight + (size_t)i * (size_t)down->taps;
    int taps = needed(weight, down->taps);

    HVT_TRY(gather(g, down->first[i], taps, p->rows));
    p->to = to;
    k->down(p, weight, taps);
    return HVT_OK;
}

hvt_status hvt__resample(const char *path, hvt__resampler *r, const hvt__decoder *d, void *ctx, int x0,
                         int width, uint8_t *ret_pixels, size_t pitch)
{
    const hvt__resample_kernels *k = hvt__strongest_kernels();
    const hvt__axis *down = &r->down;
    ring g = {.d = d, .ctx = ctx, .begin = down->begin, .have = down->begin, .end = down->end};
    hvt__resample_pass p = {.bytes = (size_t)width * 3, .across = &r->across, .pairs = r->across.taps / 2};
    hvt__across_kernel *across;
    double began = hvt__now();

    HVT_TRY(place(path, r, x0, &g, &p));
    across = k->prepare(&p);
    for (int i = 0; i < down->count; i += PAIR) {
        int rows = down->count - i < PAIR ? 1 : PAIR;

        for (int row = 0; row < rows; row++)
            HVT_TRY(go_down(k, &p, down, i + row, &g, p.between[row]));
        across(&p);
        for (int row = 0; row < rows; row++)
            memcpy(ret_pixels + (size_t)(i + row) * pitch, p.line[row], (size_t)p.across->count * 3);
    }
    r->seconds += hvt__now() - began - g.decoding;
    return HVT_OK;
}

void hvt__resampler_free(hvt__resampler *r)
{
    free(r->down.first);
    free(r->across.first);
    free(r->scratch);
}
