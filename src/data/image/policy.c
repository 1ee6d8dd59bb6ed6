/*
 * Draws which operations change an image, and by how much: torchvision's ColorJitter, TrivialAugmentWide,
 * RandAugment and AutoAugment (ImageNet's policy).
 *
 * The distributions are torchvision 0.29's (transforms.py, autoaugment.py), with its tables of magnitudes to
 * the bit. The draws are keyed by seed, epoch, sample and number of the draw, so that they depend neither on
 * other images nor on the thread.
 */
#include "image_impl.h"

#include <math.h>

/* Keys of draws. An edit of a policy uses four keys, from DRAW_EDIT + 4 * its number on. The keys of
 * loader.c, fetch.c and hvt__view_rrc() are smaller. */
enum { DRAW_JITTER = 0x0f00, DRAW_ORDER = 0x0f04, DRAW_POLICY = 0x0f08, DRAW_EDIT = 0x0f10 };
enum { WHICH, BIN, SIGN, CHANCE, DRAWS };
enum { BINS = 31, AUTO_BINS = 10, WIDE_OPS = 14 /* without INVERT, as in RandAugment */ };

typedef struct draws {
    uint64_t seed, epoch, sample;
} draws;

static uint64_t draw(const draws *d, int key)
{
    return hvt__draw(d->seed, d->epoch, d->sample, (uint64_t)key);
}

static double uniform(uint64_t bits, double least, double most)
{
    return least + (most - least) * (double)(bits >> 11) * 0x1p-53;
}

/* ---- magnitudes -------------------------------------------------------------------------------- */

typedef struct space {
    int bins;
    bool wide; /* TrivialAugmentWide's ranges; else those of AutoAugment and RandAugment */
    int h, w;
} space;

/* torch.linspace(from, to, bins)[i], which multiplies and adds with one rounding. */
static float linspace(double from, double to, int bins, int i)
{
    float low = (float)from, high = (float)to, step = (high - low) / (float)(bins - 1);

    return i < bins / 2 ? fmaf(step, (float)i, low) : fmaf(-step, (float)(bins - 1 - i), high);
}

/* True for operations that are negated half of the time. */
static bool is_signed(hvt__op op)
{
    return op >= HVT__SHEAR_X && op <= HVT__SHARPNESS;
}

static bool has_magnitude(hvt__op op)
{
    return is_signed(op) || op == HVT__POSTERIZE || op == HVT__SOLARIZE;
}

/* Returns entry `bin` of the operation's magnitudes. */
static double magnitude(const space *s, hvt__op op, int bin)
{
    const double part = 150.0 / 331.0;

    switch (op) {
    case HVT__SHEAR_X:
    case HVT__SHEAR_Y:
        return (double)linspace(0, s->wide ? .99 : .3, s->bins, bin);
    case HVT__TRANSLATE_X:
        return (double)linspace(0, s->wide ? 32 : part * s->w, s->bins, bin);
    case HVT__TRANSLATE_Y:
        return (double)linspace(0, s->wide ? 32 : part * s->h, s->bins, bin);
    case HVT__ROTATE:
        return (double)linspace(0, s->wide ? 135 : 30, s->bins, bin);
    case HVT__POSTERIZE:
        return 8 - (double)rintf((float)bin / ((float)(s->bins - 1) / (s->wide ? 6 : 4)));
    case HVT__SOLARIZE:
        return (double)linspace(255, 0, s->bins, bin);
    default:
        return (double)linspace(0, s->wide ? .99 : .9, s->bins, bin);
    }
}

static hvt__edit edit_of(const space *s, hvt__op op, int bin, bool negative)
{
    double x = has_magnitude(op) ? magnitude(s, op, bin) : 0;

    x = is_signed(op) && negative ? -x : x;
    if (op >= HVT__BRIGHTNESS && op <= HVT__SHARPNESS)
        x = 1 + x;
    if (op == HVT__TRANSLATE_X || op == HVT__TRANSLATE_Y)
        x = trunc(x);
    return (hvt__edit){op, x};
}

/* ---- policies ---------------------------------------------------------------------------------- */

/* Draws one of all operations. bin: index of its magnitude; negative: drawn, too. */
static hvt__edit draw_edit(const space *s, const draws *d, int nth, int bin)
{
    const int key = DRAW_EDIT + nth * DRAWS;
    hvt__op op = (hvt__op)hvt__below(draw(d, key + WHICH), WIDE_OPS);

    bin = bin < 0 ? (int)hvt__below(draw(d, key + BIN), (uint32_t)s->bins) : bin;
    return edit_of(s, op, bin, hvt__below(draw(d, key + SIGN), 2));
}

/* AutoAugment's policy for ImageNet: two operations, their probabilities in tenths and their magnitudes. */
static const struct {
    uint8_t op, chance, bin;
} imagenet[][2] = {
    {{HVT__POSTERIZE, 4, 8}, {HVT__ROTATE, 6, 9}},  {{HVT__SOLARIZE, 6, 5}, {HVT__AUTOCONTRAST, 6, 0}},
    {{HVT__EQUALIZE, 8, 0}, {HVT__EQUALIZE, 6, 0}}, {{HVT__POSTERIZE, 6, 7}, {HVT__POSTERIZE, 6, 6}},
    {{HVT__EQUALIZE, 4, 0}, {HVT__SOLARIZE, 2, 4}}, {{HVT__EQUALIZE, 4, 0}, {HVT__ROTATE, 8, 8}},
    {{HVT__SOLARIZE, 6, 3}, {HVT__EQUALIZE, 6, 0}}, {{HVT__POSTERIZE, 8, 5}, {HVT__EQUALIZE, 10, 0}},
    {{HVT__ROTATE, 2, 3}, {HVT__SOLARIZE, 6, 8}},   {{HVT__EQUALIZE, 6, 0}, {HVT__POSTERIZE, 4, 6}},
    {{HVT__ROTATE, 8, 8}, {HVT__COLOR, 4, 0}},      {{HVT__ROTATE, 4, 9}, {HVT__EQUALIZE, 6, 0}},
    {{HVT__EQUALIZE, 0, 0}, {HVT__EQUALIZE, 8, 0}}, {{HVT__INVERT, 6, 0}, {HVT__EQUALIZE, 10, 0}},
    {{HVT__COLOR, 6, 4}, {HVT__CONTRAST, 10, 8}},   {{HVT__ROTATE, 8, 8}, {HVT__COLOR, 10, 2}},
    {{HVT__COLOR, 8, 8}, {HVT__SOLARIZE, 8, 7}},    {{HVT__SHARPNESS, 4, 7}, {HVT__INVERT, 6, 0}},
    {{HVT__SHEAR_X, 6, 5}, {HVT__EQUALIZE, 10, 0}}, {{HVT__COLOR, 4, 0}, {HVT__EQUALIZE, 6, 0}},
    {{HVT__EQUALIZE, 4, 0}, {HVT__SOLARIZE, 2, 4}}, {{HVT__SOLARIZE, 6, 5}, {HVT__AUTOCONTRAST, 6, 0}},
    {{HVT__INVERT, 6, 0}, {HVT__EQUALIZE, 10, 0}},  {{HVT__COLOR, 6, 4}, {HVT__CONTRAST, 10, 8}},
    {{HVT__EQUALIZE, 8, 0}, {HVT__EQUALIZE, 6, 0}}};

static int draw_auto(const space *s, const draws *d, hvt__edit *ret_edit)
{
    const int row = (int)hvt__below(draw(d, DRAW_POLICY), HVT_LEN(imagenet));
    int n = 0;

    for (int i = 0; i < 2; i++) {
        const int key = DRAW_EDIT + i * DRAWS;

        if (hvt__below(draw(d, key + CHANCE), 10) < imagenet[row][i].chance)
            ret_edit[n++] = edit_of(s, (hvt__op)imagenet[row][i].op, imagenet[row][i].bin,
                                    hvt__below(draw(d, key + SIGN), 2));
    }
    return n;
}

/* Draws ColorJitter's operations that are on, in random order. */
static int draw_jitter(const float jitter[4], const draws *d, hvt__edit *ret_edit)
{
    static const hvt__op ops[] = {HVT__BRIGHTNESS, HVT__CONTRAST, HVT__COLOR, HVT__HUE};
    int order[] = {0, 1, 2, 3}, n = 0;

    for (int i = 0; i < 4; i++) {
        int other = i + (int)hvt__below(draw(d, DRAW_ORDER + i), (uint32_t)(4 - i)), k = order[other];
        double middle = ops[k] == HVT__HUE ? 0 : 1, by = (double)jitter[k], least = middle - by;

        order[other] = order[i];
        if (by > 0)
            ret_edit[n++] = (hvt__edit){
                ops[k], uniform(draw(d, DRAW_JITTER + k), middle && least < 0 ? 0 : least, middle + by)};
    }
    return n;
}

bool hvt__edits_any(const hvt_edits *o)
{
    return o->policy != HVT_POLICY_NONE || o->jitter[0] > 0 || o->jitter[1] > 0 || o->jitter[2] > 0 ||
           o->jitter[3] > 0;
}

hvt_status hvt__edits_check(const hvt_edits *o)
{
    static const char *const names[] = {"brightness", "contrast", "saturation", "hue"};

    for (int k = 0; k < 4; k++)
        HVT_CHECK(o->jitter[k] >= 0 && isfinite(o->jitter[k]) && (k < 3 || o->jitter[k] <= .5f), E_ARG,
                  "changes of %s by up to %g, expected 0 or more%s", names[k], (double)o->jitter[k],
                  k == 3 ? ", at most 0.5" : "");
    HVT_CHECK(o->policy >= HVT_POLICY_NONE && o->policy <= HVT_POLICY_AUTO, E_ARG,
              "policy %d of augmentation, expected one of hvt_policy", (int)o->policy);
    HVT_CHECK(o->policy != HVT_POLICY_RAND || (o->ops >= 1 && o->ops <= HVT_EDITS_MAX), E_ARG,
              "RandAugment of %d operations, expected 1 to %d", o->ops, HVT_EDITS_MAX);
    HVT_CHECK(o->policy != HVT_POLICY_RAND || (o->magnitude >= 0 && o->magnitude < BINS), E_ARG,
              "RandAugment of magnitude %d, expected 0 to %d", o->magnitude, BINS - 1);
    return HVT_OK;
}

int hvt__edits_draw(const hvt_edits *o, int h, int w, uint64_t seed, int epoch, uint32_t sample,
                    hvt__edit ret_edit[HVT__EDITS])
{
    const draws d = {seed, (uint64_t)epoch, sample};
    const space s = {o->policy == HVT_POLICY_AUTO ? AUTO_BINS : BINS, o->policy == HVT_POLICY_TRIVIAL, h, w};
    int n = draw_jitter(o->jitter, &d, ret_edit);

    if (o->policy == HVT_POLICY_AUTO)
        return n + draw_auto(&s, &d, ret_edit + n);
    if (o->policy == HVT_POLICY_TRIVIAL)
        ret_edit[n++] = draw_edit(&s, &d, 0, -1);
    for (int i = 0; o->policy == HVT_POLICY_RAND && i < o->ops; i++)
        ret_edit[n++] = draw_edit(&s, &d, i, o->magnitude);
    return n;
}
