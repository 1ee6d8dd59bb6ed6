/*
 * Pictures: chooses the decoder for a record, the scale, and the rows and columns that a view needs.
 *
 * A file's first bytes decide its format; suffixes are often wrong. A view becomes a plan for each axis at
 * the decoder's scale, the plans give the region to decode, and the resampler reads its rows from the
 * decoder. Invariant: pixels are a pure function of the record and the view; neither scratch memory nor
 * tables carry over from one picture to the next.
 */
#include "image_impl.h"

#include <math.h>

static const hvt__decoder *const decoders[] = {&hvt__decoder_jpeg, &hvt__decoder_png, &hvt__decoder_ppm,
                                               &hvt__decoder_pixels};

struct hvt__picture {
    void *ctx[HVT_LEN(decoders)];
    const hvt__decoder *d; /* of the current picture; NULL: none */
    void *now;             /* its context */
    int height, width;
    bool unscaled, trusted; /* trusted: the current picture was read to its end before */
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

double hvt__picture_resampling(const hvt__picture *p)
{
    return p->resampler.seconds;
}

/* ---- what a record is -------------------------------------------------------------------------- */

/* Releases the last picture if it was not finished. */
static void give_up(hvt__picture *p)
{
    if (p->d)
        p->d->end(p->now, false);
    p->d = NULL;
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
    *ret_h = p->height;
    *ret_w = p->width;
    return HVT_OK;
fail:
    give_up(p);
    return s;
}

/* ---- pixels ------------------------------------------------------------------------------------ */

/* The scale in eighths: the smallest that gives at least as many pixels as the view needs. Powers of two
 * only: libjpeg-turbo has no vector code for the others, and 5/8 to 7/8 take longer than 8/8. */
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

/* The part of the window inside the picture. */
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

hvt_status hvt__picture_finish(hvt__picture *p, const hvt__view *v, uint8_t *ret_pixels)
{
    hvt__view c = clip(v);
    size_t pitch = (size_t)v->out_w * 3;
    hvt_status s, end;

    HVT_CHECK(p->d, E_ARG, "no picture was begun");
    HVT_CHECK(v->x >= 0 && v->y >= 0 && v->w >= 1 && v->h >= 1 && v->w <= p->width - v->x &&
                  v->h <= p->height - v->y && v->full_h >= 1 && v->full_w >= 1 && v->out_h >= 1 &&
                  v->out_w >= 1,
              E_ARG, "%s: cannot take %d x %d pixels from row %d and column %d of %d x %d, as %d x %d",
              p->path, v->h, v->w, v->y, v->x, p->height, p->width, v->full_h, v->full_w);
    if (c.out_h < v->out_h || c.out_w < v->out_w)
        memset(ret_pixels, 0, (size_t)v->out_h * pitch);
    s = c.out_h < 1 || c.out_w < 1
            ? HVT_OK
            : decode(p, &c, ret_pixels + (size_t)(c.top - v->top) * pitch + (size_t)(c.left - v->left) * 3,
                     pitch);
    end = p->d->end(p->now, s == HVT_OK && !p->trusted);
    p->d = NULL;
    return s != HVT_OK ? s : end;
}
