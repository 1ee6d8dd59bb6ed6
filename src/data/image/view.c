/*
 * Views: RandomResizedCrop, RandomErasing, and Resize with CenterCrop, as torchvision 0.29 defines them
 * (transforms/transforms.py, transforms/functional.py).
 *
 * All values are rounded as in torchvision: int() truncates, round() rounds to even. Its random numbers come
 * from a generator's state; ours are keyed by seed, epoch, sample and number of the draw, so that a box
 * depends neither on other images nor on the thread that decodes them.
 */
#include "image_impl.h"

#include <math.h>

/* Try t uses the four operations from DRAW_BOX + 4t on: area, log ratio, row and column. The loader's
 * operations begin at 0x0d00. */
enum {
    DRAW_BOX = 0x0e00,
    DRAW_ERASE = 0x0e80,
    DRAW_RATIO = 1,
    DRAW_Y = 2,
    DRAW_X = 3,
    DRAWS = 4,
    TRIES = 10
};

hvt__view hvt__view_whole(int h, int w)
{
    return (hvt__view){.w = w, .h = h, .full_h = h, .full_w = w, .out_h = h, .out_w = w};
}

/* uniform in [least, most), 53 bits */
static double uniform(uint64_t draw, double least, double most)
{
    return least + (most - least) * (double)(draw >> 11) * 0x1p-53;
}

/* Sets the largest centred box whose aspect ratio is within the bounds. */
static void centred(int h, int w, const hvt_rrc *o, hvt__view *v)
{
    double ratio = (double)w / h;

    v->w = ratio > (double)o->wide ? (int)lrint(h * (double)o->wide) : w;
    v->h = ratio < (double)o->narrow ? (int)lrint(w / (double)o->narrow) : h;
    v->w = v->w < 1 ? 1 : v->w > w ? w : v->w;
    v->h = v->h < 1 ? 1 : v->h > h ? h : v->h;
    v->x = (w - v->w) / 2;
    v->y = (h - v->h) / 2;
}

hvt__view hvt__view_rrc(int h, int w, const hvt_rrc *o, uint64_t seed, int epoch, uint32_t sample, int out_h,
                        int out_w)
{
    hvt__view v = {.full_h = out_h, .full_w = out_w, .out_h = out_h, .out_w = out_w};
    double low = log((double)o->narrow), high = log((double)o->wide);

    for (uint64_t op = DRAW_BOX; op < DRAW_BOX + TRIES * DRAWS; op += DRAWS) {
        double part =
            uniform(hvt__draw(seed, (uint64_t)epoch, sample, op), (double)o->least, (double)o->most);
        double ratio = exp(uniform(hvt__draw(seed, (uint64_t)epoch, sample, op + DRAW_RATIO), low, high));
        double area = (double)h * w * part;

        v.w = (int)lrint(sqrt(area * ratio));
        v.h = (int)lrint(sqrt(area / ratio));
        if (v.w < 1 || v.w > w || v.h < 1 || v.h > h)
            continue;
        v.y = (int)hvt__below(hvt__draw(seed, (uint64_t)epoch, sample, op + DRAW_Y), (uint32_t)(h - v.h + 1));
        v.x = (int)hvt__below(hvt__draw(seed, (uint64_t)epoch, sample, op + DRAW_X), (uint32_t)(w - v.w + 1));
        return v;
    }
    centred(h, w, o, &v);
    return v;
}

bool hvt__erase_box(int h, int w, float chance, uint64_t seed, int epoch, uint32_t sample, int16_t ret_box[4])
{
    const uint64_t e = (uint64_t)epoch;
    const double low = log(.3), high = log(3.3), area = (double)h * w;

    memset(ret_box, 0, 4 * sizeof *ret_box);
    if (uniform(hvt__draw(seed, e, sample, DRAW_ERASE), 0, 1) >= (double)chance)
        return false;
    for (uint64_t op = DRAW_ERASE + 1; op <= DRAW_ERASE + TRIES * DRAWS; op += DRAWS) {
        double part = area * uniform(hvt__draw(seed, e, sample, op), .02, .33);
        double ratio = exp(uniform(hvt__draw(seed, e, sample, op + DRAW_RATIO), low, high));
        int tall = (int)lrint(sqrt(part * ratio)), wide = (int)lrint(sqrt(part / ratio));

        if (tall >= h || wide >= w)
            continue;
        ret_box[0] = (int16_t)hvt__below(hvt__draw(seed, e, sample, op + DRAW_Y), (uint32_t)(h - tall + 1));
        ret_box[1] = (int16_t)hvt__below(hvt__draw(seed, e, sample, op + DRAW_X), (uint32_t)(w - wide + 1));
        ret_box[2] = (int16_t)tall;
        ret_box[3] = (int16_t)wide;
        return true;
    }
    return false;
}

/* Returns the offset of a centred window of `out` in `full` pixels; negative: half of the padding. */
static int centre(int full, int out)
{
    return out > full ? -((out - full) / 2) : (int)lrint((full - out) / 2.0);
}

hvt__view hvt__view_centre(int h, int w, int resize, int out_h, int out_w)
{
    hvt__view v = hvt__view_whole(h, w);

    if (resize > 0) {
        int longer = (int)((double)resize * (h > w ? h : w) / (h > w ? w : h));

        v.full_h = h > w ? longer : resize;
        v.full_w = h > w ? resize : longer;
    }
    v.top = centre(v.full_h, out_h);
    v.left = centre(v.full_w, out_w);
    v.out_h = out_h;
    v.out_w = out_w;
    return v;
}
