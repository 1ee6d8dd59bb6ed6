/*
 * Pictures: chooses the decoder for a record, the scale, and the rows and columns that a view needs.
 *
 * A file's first bytes decide its format; suffixes are often wrong. A view becomes a plan for each axis at
 * the decoder's scale, the plans give the region to decode, and the resampler reads its rows from the
 * decoder. Invariant: pixels are a pure function of the record and the view; neither scratch memory nor
 * tables carry over from one picture to the next.
 */
#include "image_impl.h"
#include "config.h"

#include <math.h>
#include <stdatomic.h>

static const hvt__decoder *const decoders[] = {
    &hvt__decoder_jpeg, &hvt__decoder_png, &hvt__decoder_ppm, &hvt__decoder_bmp, &hvt__decoder_pixels,
#if HVT_HAVE_WEBP
    &hvt__decoder_webp,
#endif
#if HVT_HAVE_TIFF
    &hvt__decoder_tiff,
#endif
};

struct hvt__picture {
    void *ctx[HVT_LEN(decoders)];
    const hvt__decoder *d; /* decoder of the current picture; NULL: none */
    void *now;             /* its context */
    int height, width;
    bool unscaled, trusted;  /* trusted: the current picture was read to its end before */
    bool turns;              /* apply EXIF orientation; to the current picture: */
    bool swap, across, down; /* swaps rows and columns, after mirroring left-right or top-bottom */
    uint8_t *window;         /* pixels before they are turned */
    size_t window_room;
    hvt__resampler resampler;
    char path[PATH_MAX];
};

hvt_status hvt__picture_open(hvt__picture **ret_picture)
{
    hvt__picture *p = calloc(1, sizeof *p);
    hvt_status s = HVT_OK;

    HVT_CHECK(p, E_MEM, "no memory for a decoder of pictures (%zu bytes)", sizeof *p);
    for (size_t i = 0; i < HVT_LEN(decoders); i++)
        HVT_TRY_OR(fail, decoders[i]->open(&p->ctx[i]));
    *ret_picture = p;
    return HVT_OK;
fail:
    hvt__picture_close(&p);
    return s;
}

void hvt__picture_close(hvt__picture **picture)
{
    hvt__picture *p = picture ? *picture : NULL;

    if (!p)
        return;
    for (size_t i = 0; i < HVT_LEN(decoders); i++)
        decoders[i]->close(p->ctx[i]);
    hvt__resampler_free(&p->resampler);
    free(p->window);
    free(p);
    *picture = NULL;
}

void hvt__picture_unscaled(hvt__picture *p)
{
    p->unscaled = true;
}

void hvt__picture_trust(hvt__picture *p)
{
    p->trusted = true;
}

void hvt__picture_turn(hvt__picture *p)
{
    p->turns = true;
}

double hvt__picture_resampling(const hvt__picture *p)
{
    return p->resampler.seconds;
}

/* ---- the format of a record -------------------------------------------------------------------- */

/* Releases the last picture if it was not finished. */
static void give_up(hvt__picture *p)
{
    if (p->d)
        p->d->end(p->now, false);
    p->d = NULL;
}

/* Says once that a picture has an orientation which is not applied. */
static void note_orientation(const char *path, int o)
{
    static atomic_bool said;

    if (o != 1 && !atomic_exchange(&said, true))
        HVT_WARN(
            "%s has EXIF orientation %d, which is ignored, as in torchvision; --exif on turns such pictures "
            "upright. This is said only once",
            path, o);
}

static void find_turn(hvt__picture *p, const hvt_record *r)
{
    int o = hvt__orientation(r);

    if (!p->turns && !p->d->turned) {
        note_orientation(p->path, o);
        o = 1;
    }
    p->swap = o >= 5;
    p->across = o == 2 || o == 3 || o == 7 || o == 8;
    p->down = o == 3 || o == 4 || o == 6 || o == 7;
}

hvt_status hvt__picture_begin(hvt__picture *p, const hvt_record *r, const char *path, int *ret_h, int *ret_w)
{
    size_t i = 0;
    hvt_status s;

    give_up(p);
    p->trusted = false;
    snprintf(p->path, sizeof p->path, "%s", path);
    while (i < HVT_LEN(decoders) && !decoders[i]->recognise(r))
        i++;
    if (i == HVT_LEN(decoders))
        return hvt__picture_refuse(r, p->path);
    p->d = decoders[i];
    p->now = p->ctx[i];
    HVT_TRY_OR(fail, p->d->begin(p->now, r, p->path, &p->height, &p->width));
    HVT_CHECK_OR(fail,
                 p->height >= 1 && p->width >= 1 && p->height <= HVT__IMAGE_SIDE_MAX &&
                     p->width <= HVT__IMAGE_SIDE_MAX,
                 E_FORMAT, "%s has %d x %d pixels, expected sides of 1 to %d", p->path, p->height, p->width,
                 HVT__IMAGE_SIDE_MAX);
    find_turn(p, r);
    *ret_h = p->swap ? p->width : p->height;
    *ret_w = p->swap ? p->height : p->width;
    return HVT_OK;
fail:
    give_up(p);
    return s;
}

/* ---- pixels ------------------------------------------------------------------------------------ */

/* Returns the scale in eighths: the smallest that gives at least as many pixels as the view needs. Powers of
 * two only: libjpeg-turbo has no vector code for the others, and 5/8 to 7/8 take longer than 8/8. */
static int choose_scale(const hvt__picture *p, const hvt__view *v)
{
    int eighths = 1;

    if (!p->d->scales || p->unscaled)
        return 8;
    while (eighths < 8 && ((int64_t)v->w * eighths < (int64_t)v->full_w * 8 ||
                           (int64_t)v->h * eighths < (int64_t)v->full_h * 8))
        eighths *= 2;
    return eighths;
}

/* Returns the view with the part of its window that is inside the resampled box. */
static hvt__view clip(const hvt__view *v)
{
    hvt__view c = *v;
    int64_t bottom = (int64_t)v->top + v->out_h, right = (int64_t)v->left + v->out_w;

    c.top = v->top < 0 ? 0 : v->top;
    c.left = v->left < 0 ? 0 : v->left;
    c.out_h = (int)(bottom < v->full_h ? bottom : v->full_h) - c.top;
    c.out_w = (int)(right < v->full_w ? right : v->full_w) - c.left;
    return c;
}

/* Plans the resampling of one axis of the box at this scale, in a picture of `side` pixels. */
static hvt_status plan(const hvt__picture *p, hvt__axis *a, int eighths, int at, int size, int side, int full,
                       int from, int count)
{
    int low = (int)((int64_t)at * eighths / 8), high = (int)(((int64_t)(at + size) * eighths + 7) / 8);
    int most = (int)(((int64_t)side * eighths + 7) / 8);

    return hvt__axis_plan(p->path, a, at * eighths / 8.0, size * eighths / 8.0, full, from, count, low,
                          high < most ? high : most);
}

static hvt_status decode(hvt__picture *p, const hvt__view *c, uint8_t *to, size_t pitch)
{
    hvt__resampler *r = &p->resampler;
    hvt__region g = {.eighths = choose_scale(p, c)};

    HVT_TRY(plan(p, &r->down, g.eighths, c->y, c->h, p->height, c->full_h, c->top, c->out_h));
    HVT_TRY(plan(p, &r->across, g.eighths, c->x, c->w, p->width, c->full_w, c->left, c->out_w));
    g.x0 = r->across.begin;
    g.x1 = r->across.end;
    g.y0 = r->down.begin;
    g.y1 = r->down.end;
    HVT_TRY(p->d->start(p->now, &g));
    return hvt__resample(p->path, r, p->d, p->now, g.x0, g.x1 - g.x0, to, pitch);
}

/* Returns the view of the stored picture that becomes this view when it is turned. */
static hvt__view stored(const hvt__picture *p, const hvt__view *v)
{
    hvt__view s = *v;

    if (p->swap)
        s = (hvt__view){v->y, v->x, v->h, v->w, v->full_w, v->full_h, v->left, v->top, v->out_w, v->out_h};
    if (p->across) {
        s.x = p->width - s.x - s.w;
        s.left = s.full_w - s.left - s.out_w;
    }
    if (p->down) {
        s.y = p->height - s.y - s.h;
        s.top = s.full_h - s.top - s.out_h;
    }
    return s;
}

/* Turns pixels [h,w,3] of the stored picture; the result is [w,h,3] if rows and columns are swapped. */
static void turn(const hvt__picture *p, int h, int w, const uint8_t *from, uint8_t *to)
{
    const size_t down = 3 * (size_t)(p->swap ? 1 : w), right = 3 * (size_t)(p->swap ? h : 1);

    for (int y = 0; y < h; y++) {
        uint8_t *row = to + (size_t)(p->down ? h - 1 - y : y) * down;

        for (int x = 0; x < w; x++, from += 3)
            memcpy(row + (size_t)(p->across ? w - 1 - x : x) * right, from, 3);
    }
}

/* Decodes a view of the stored picture; zeros outside it. */
static hvt_status decode_padded(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels)
{
    size_t pitch = (size_t)v->out_w * 3;
    hvt__view c = clip(v);

    if (c.out_h < v->out_h || c.out_w < v->out_w)
        memset(ret_pixels, 0, (size_t)v->out_h * pitch);
    if (c.out_h < 1 || c.out_w < 1)
        return HVT_OK;
    return decode(p, &c, ret_pixels + (size_t)(c.top - v->top) * pitch + (size_t)(c.left - v->left) * 3,
                  pitch);
}

static hvt_status decode_turned(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels)
{
    const hvt__view s = stored(p, v);
    const size_t bytes = (size_t)s.out_h * (size_t)s.out_w * 3;

    if (bytes > p->window_room) {
        free(p->window);
        p->window_room = 0;
        p->window = malloc(bytes);
        HVT_CHECK(p->window, E_MEM, "%s: no memory to turn it (%zu bytes)", p->path, bytes);
        p->window_room = bytes;
    }
    HVT_TRY(decode_padded(p, &s, p->window));
    turn(p, s.out_h, s.out_w, p->window, ret_pixels);
    return HVT_OK;
}

hvt_status hvt__picture_finish(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels)
{
    const int height = p->swap ? p->width : p->height, width = p->swap ? p->height : p->width;
    hvt_status s, end;

    HVT_CHECK(p->d, E_ARG, "no picture was begun");
    HVT_CHECK(v->x >= 0 && v->y >= 0 && v->w >= 1 && v->h >= 1 && v->w <= width - v->x &&
                  v->h <= height - v->y && v->full_h >= 1 && v->full_w >= 1 && v->out_h >= 1 && v->out_w >= 1,
              E_ARG, "%s: cannot take %d x %d pixels from row %d and column %d of %d x %d, as %d x %d",
              p->path, v->h, v->w, v->y, v->x, height, width, v->full_h, v->full_w);
    s = p->swap || p->across || p->down ? decode_turned(p, v, ret_pixels) : decode_padded(p, v, ret_pixels);
    end = p->d->end(p->now, s == HVT_OK && !p->trusted);
    p->d = NULL;
    return s != HVT_OK ? s : end;
}

hvt_status hvt__image_reserve(const char *path, const char *kind, int h, int w, uint8_t **memory,
                              size_t *room, size_t bytes)
{
    HVT_CHECK(bytes <= HVT__IMAGE_MEMORY_MAX, E_UNSUPPORTED,
              "%s: %s of %d x %d pixels takes %zu MiB to decode, at most %zu are allowed", path, kind, h, w,
              bytes >> 20, HVT__IMAGE_MEMORY_MAX >> 20);
    if (bytes <= *room)
        return HVT_OK;
    free(*memory);
    *room = 0;
    *memory = calloc(1, bytes); /* kernels may load bytes beyond a row */
    HVT_CHECK(*memory, E_MEM, "%s: no memory to decode it (%zu bytes)", path, bytes);
    *room = bytes;
    return HVT_OK;
}
