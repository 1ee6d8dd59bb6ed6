/*
 * "synth": images generated on demand, so that a first run needs no download.
 *
 * An image shows one object on a shaded background, with smaller distractors and noise. Its class determines
 * the object's shape and texture (with more than 256 classes also the background's pattern). Position, size,
 * tilt, handedness, colours and whether the texture's first colour is the dark one are drawn per image and
 * carry no information, so that no linear function of pixels can separate the classes. A few layers of small
 * filters can. Mirroring an image keeps its class.
 *
 * Invariant: an image is a pure function of (split, index, size, classes), the same bytes on every machine:
 * only integers are used, and every draw is keyed by the image. Changing a pixel breaks the golden hashes of
 * tests/data/test_dataset.c and invalidates every recorded accuracy.
 *
 * Terms. Object units: 1024 is the object's half width, u points right, v down. Distances are in object units
 * too, positive inside, exact enough near the edge to shade it. Q8, Q12, Q20: fixed point with that many
 * fractional bits.
 */
#include "data/data_impl.h"

#include <endian.h>

enum {
    SIDE_MIN = 8,
    SIDE_MAX = 4096,
    CLASSES_MAX = 1000,
    SHAPES = 16,
    TEXTURES = 16,
    GROUNDS = 4,
    UNIT = 1024,
    SHARP_MAX = 1 << 16, /* pixels in Q8 beyond which edges and stripes get no sharper */
    EDITION = 1          /* part of every key and of the fingerprint: incremented when the pictures change */
};

typedef struct synth {
    int size, classes;
    int shapes, textures; /* label = shape + shapes * (texture + textures * ground) */
    bool train;
} synth;

typedef struct dice {
    uint64_t key, n;
} dice;

static uint64_t roll(dice *d)
{
    return hvt__mix(d->key ^ hvt__mix(d->n++));
}

/* uniform in low .. high */
static int between(dice *d, int low, int high)
{
    return low + (int)hvt__below(roll(d), (uint32_t)(high - low) + 1);
}

/* Labels repeat in blocks of `classes` images, each block in its own order a*i + b. */
static int label_of(const synth *s, uint32_t index)
{
    uint32_t n = (uint32_t)s->classes, a, b, r, t;
    dice d = {hvt__draw(EDITION, 2u + s->train, index / n, n), 0}; /* 0 and 1 key the pictures */

    do { /* until a and n are coprime */
        a = 1 + hvt__below(roll(&d), n);
        for (t = a, b = n; b; r = t % b, t = b, b = r)
            ;
    } while (t != 1);
    return (int)(((uint64_t)a * (index % n) + hvt__below(roll(&d), n)) % n);
}

static inline int least(int a, int b)
{
    return a < b ? a : b;
}

static inline int most(int a, int b)
{
    return a > b ? a : b;
}

static inline int round_in(int u, int v, int r)
{
    return (r * r - u * u - v * v) / (2 * r); /* first-order approximation of r - sqrt(u*u + v*v) */
}

static inline int box_in(int u, int v, int w, int h)
{
    return least(w - abs(u), h - abs(v));
}

static inline int triangle_in(int u, int v) /* apex up; its sides fall 2 in 1 */
{
    return least(900 - v, (v + 1000 - 2 * abs(u)) * 458 >> 10);
}

/* The distance inside a shape, in object units. */
static inline int inside(int shape, int u, int v)
{
    switch (shape) {
    case 0: /* disc */
        return round_in(u, v, 960);
    case 1: /* plus */
        return most(box_in(u, v, 1024, 350), box_in(u, v, 350, 1024));
    case 2: /* triangle */
        return triangle_in(u, v);
    case 3: /* frame */
        return least(box_in(u, v, 900, 900), -box_in(u, v, 460, 460));
    case 4: /* square */
        return box_in(u, v, 850, 850);
    case 5: /* ring */
        return least(round_in(u, v, 1024), -round_in(u, v, 560));
    case 6: /* diamond */
        return (1150 - abs(u) - abs(v)) * 724 >> 10;
    case 7: /* crescent */
        return least(round_in(u, v, 1024), -round_in(u - 480, v, 760));
    case 8: /* triangle, apex down */
        return triangle_in(u, -v);
    case 9: /* X */
        return (most(box_in(u + v, u - v, 1400, 420), box_in(u + v, u - v, 420, 1400)) * 724) >> 10;
    case 10: /* lying bar */
        return box_in(u, v, 1024, 460);
    case 11: /* standing ellipse, as a disc seen from the side */
        return round_in(u * 2, v, 1024) * 3 >> 2;
    case 12: /* T */
        return most(box_in(u, v + 640, 960, 320), box_in(u, v - 160, 320, 860));
    case 13: /* half disc */
        return least(round_in(u, v + 420, 1100), v + 420);
    case 14: /* four-pointed star */
        return least(1100 - abs(u) - abs(v), (110 - ((abs(u) * abs(v)) >> 10)) * 2);
    default: /* two discs */
        return most(round_in(u + 540, v, 500), round_in(u - 540, v, 500));
    }
}

typedef struct weave {
    int kind;
    int per_unit; /* Q16 periods per object unit, below 2^16 */
    int phase[2]; /* Q16 periods */
    int sharp;    /* pixels per period, Q8 */
    uint32_t salt;
} weave;

static inline int wave(int x, const weave *t, int phase) /* a triangle of period one, -16384 .. 16384 */
{
    return abs((int)(int16_t)(uint16_t)(x * t->per_unit + phase)) - 16384;
}

static inline int flip_if(int x, bool flip)
{
    return flip ? -x : x;
}

/* The mix of colour one (-16384) and colour two (16384). */
static inline int weaving(const weave *t, int u, int v)
{
    int a, b;

    switch (t->kind) {
    case 0: /* upright stripes */
        return wave(u, t, t->phase[0]);
    case 1: /* lying stripes */
        return wave(v, t, t->phase[1]);
    case 2: /* chequers */
        a = wave(u, t, t->phase[0]), b = wave(v, t, t->phase[1]);
        return flip_if(least(abs(a), abs(b)), (a < 0) != (b < 0));
    case 3: /* plain */
        return -16384;
    case 4: /* slanting stripes */
        return wave((u + v) * 724 >> 10, t, t->phase[0]);
    case 5: /* rings, of equal area */
        return wave((u * u + v * v) >> 10, t, t->phase[0]);
    case 6: /* dots */
        return wave(u, t, t->phase[0]) + wave(v, t, t->phase[1]) + 9000;
    case 7: /* upper and lower half */
        return most(-16384, least(16384, v * 32));
    case 8: /* a net of thin lines */
        return least(wave(u, t, t->phase[0]), wave(v, t, t->phase[1])) + 9000;
    case 9: /* zigzag */
        return wave(v + abs((int)(int16_t)(uint16_t)(u * t->per_unit + t->phase[0])) / 100, t, t->phase[1]);
    case 10: /* core and rim */
        return most(-16384, least(16384, round_in(u, v, 560) * 32));
    case 11: /* eight sectors */
        return flip_if(most(-16384, least(16384, 32 * least(least(abs(u), abs(v)), abs(abs(u) - abs(v))))),
                       ((u < 0) != (v < 0)) != (abs(u) < abs(v)));
    case 12: /* lattice of slanting lines */
        return least(wave((u + v) * 724 >> 10, t, t->phase[0]), wave((u - v) * 724 >> 10, t, t->phase[1])) +
               9000;
    case 13: /* left and right half */
        return most(-16384, least(16384, u * 32));
    case 14: /* diamonds in each other */
        return wave((abs(u) + abs(v)) * 724 >> 10, t, t->phase[0]);
    default: /* patchwork */
        a = (u * t->per_unit + t->phase[0]) >> 15, b = (v * t->per_unit + t->phase[1]) >> 15;
        return hvt__draw(t->salt, (uint32_t)a, (uint32_t)b, 0) & 1 ? 16384 : -16384;
    }
}

typedef struct colour {
    int rgb[3];
} colour;

/* A colour of brightness `level`, at most `spread` away from grey. */
static colour paint(dice *d, int level, int spread)
{
    colour c;

    for (int i = 0; i < 3; i++)
        c.rgb[i] = most(0, least(255, level + between(d, -spread, spread)));
    return c;
}

typedef struct thing {
    int x, y, half; /* centre and half width in pixels, Q8 */
    int cos, sin;   /* of its tilt, Q12 */
    bool mirrored;
    int shape;
    weave texture;
    colour one, two;
} thing;

static void draw_thing(uint8_t *pixels, int size, const thing *t)
{
    int reach = (t->half * 3) >> 1; /* tilted corners included */
    int left = most(0, (t->x - reach) >> 8), right = least(size - 1, (t->x + reach) >> 8);
    int top = most(0, (t->y - reach) >> 8), bottom = least(size - 1, (t->y + reach) >> 8);
    int edge = least(t->half, SHARP_MAX), stripe = least(t->texture.sharp, SHARP_MAX);
    /* increments of u and v per pixel to the right: 256 * cos / half units, in Q20 of half widths */
    int du = (int)((int64_t)t->cos * 65536 / t->half), dv = (int)((int64_t)t->sin * 65536 / t->half);

    for (int y = top; y <= bottom; y++) {
        int64_t px = (left << 8) + 128 - t->x, py = (y << 8) + 128 - t->y;
        int u = (int)((px * du - py * dv) >> 8), v = (int)((px * dv + py * du) >> 8);
        uint8_t *to = pixels + ((size_t)y * (size_t)size + (size_t)left) * 3;

        for (int x = left; x <= right; x++, to += 3, u += du, v += dv) {
            int a = (t->mirrored ? -u : u) >> 10, b = v >> 10;
            int cover = 128 + (int)(((int64_t)inside(t->shape, a, b) * edge) >> 10);
            int mix;

            if (cover <= 0)
                continue;
            cover = least(cover, 256);
            mix = 128 + (int)(((int64_t)weaving(&t->texture, a, b) * stripe) >> 16);
            mix = most(0, least(256, mix));
            for (int c = 0; c < 3; c++) {
                int ink = (t->one.rgb[c] * (256 - mix) + t->two.rgb[c] * mix) >> 8;

                to[c] = (uint8_t)((to[c] * (256 - cover) + ink * cover) >> 8);
            }
        }
    }
}

/* The background: a gradient between two colours with a faint pattern of bands. Stays within 0 .. 255. */
static void draw_ground(uint8_t *pixels, int size, dice *d, int kind)
{
    colour middle = paint(d, between(d, 96, 160), 32), step = paint(d, 48, 48);
    int along = between(d, -64, 64), down = between(d, -64, 64);
    int contrast = between(d, 20, 30), wide = most(2, size / between(d, 4, 6)); /* wide: of a band */
    int at_y = between(d, 0, 2 * wide - 1), first_x = between(d, 0, 2 * wide - 1);

    for (int y = 0; y < size; y++, at_y = (at_y + 1) % (2 * wide))
        for (int x = 0, at_x = first_x; x < size; x++, pixels += 3) {
            bool odd_x = at_x >= wide, odd_y = at_y >= wide;
            bool lit = kind == 1 ? odd_x : kind == 2 ? odd_y : kind == 3 && odd_x != odd_y;
            /* -128 .. 128 */
            int slope = (along * (2 * x - size) + down * (2 * y - size)) * (65536 / size) >> 16;
            int band = lit ? contrast / 2 : -contrast / 2;

            for (int c = 0; c < 3; c++)
                pixels[c] = (uint8_t)(middle.rgb[c] + ((step.rgb[c] - 48) * slope >> 7) + band);
            at_x = at_x + 1 == 2 * wide ? 0 : at_x + 1;
        }
}

/* Adds -amount .. amount to every byte. */
static void add_noise(uint8_t *pixels, size_t bytes, dice *d, int amount)
{
    uint8_t random[512];

    for (size_t i = 0; i < bytes; i += sizeof random) {
        size_t n = bytes - i < sizeof random ? bytes - i : sizeof random;

        for (size_t j = 0; j < n; j += 8) {
            uint64_t eight = htole64(roll(d));

            memcpy(random + j, &eight, 8);
        }
        for (size_t j = 0; j < n; j++) {
            int value = pixels[i + j] + (random[j] * (2 * amount + 1) >> 8) - amount;

            pixels[i + j] = (uint8_t)most(0, least(255, value));
        }
    }
}

/* Places a thing of this shape and texture inside the image, except for tilted corners; its width is `low` to
 * `high` percent of the image. One draw per statement, because C does not define the order within an
 * initialiser list. */
static thing place(dice *d, int size, int low, int high, int shape, int texture)
{
    thing t = {.shape = shape};
    int full = size << 8, quarters = between(d, 6, 8); /* quarter periods per half width */
    int sin = between(d, -1000, 1000);                 /* up to 14 degrees */
    bool dark_first = roll(d) & 1;
    int dark = between(d, 10, 60), bright = between(d, 195, 245);

    t.half = (int)((int64_t)full * between(d, low, high) / 200);
    t.x = between(d, t.half, full - t.half);
    t.y = between(d, t.half, full - t.half);
    t.sin = sin;
    t.cos = 4096 - sin * sin / 8192;
    t.mirrored = roll(d) & 1;
    t.one = paint(d, dark_first ? dark : bright, 40);
    t.two = paint(d, dark_first ? bright : dark, 40);
    t.texture.kind = texture;
    t.texture.per_unit = quarters * 65536 / (4 * UNIT);
    t.texture.sharp = t.half * 4 / quarters;
    t.texture.phase[0] = between(d, 0, 65535);
    t.texture.phase[1] = between(d, 0, 65535);
    t.texture.salt = (uint32_t)roll(d);
    return t;
}

static hvt_status get_synth(void *ctx, uint32_t index, uint8_t *ret_pixels, int *ret_label)
{
    const synth *s = ctx;
    int label = label_of(s, index);
    int shape = label % s->shapes, texture = label / s->shapes % s->textures;
    int ground = label / s->shapes / s->textures;
    dice d = {hvt__draw(EDITION, s->train, index, (uint64_t)s->classes), 0};
    thing t;

    if (s->classes <= SHAPES * TEXTURES)
        ground = between(&d, 0, GROUNDS - 1);
    draw_ground(ret_pixels, s->size, &d, ground);
    for (int i = between(&d, 1, 3); i > 0; i--) {
        t = place(&d, s->size, 16, 26, between(&d, 0, SHAPES - 1), 3);
        draw_thing(ret_pixels, s->size, &t);
    }
    t = place(&d, s->size, 50, 80, shape, texture);
    draw_thing(ret_pixels, s->size, &t);
    add_noise(ret_pixels, (size_t)s->size * (size_t)s->size * 3, &d, between(&d, 8, 24));
    *ret_label = label;
    return HVT_OK;
}

static int label_synth(void *ctx, uint32_t index)
{
    return label_of(ctx, index);
}

static hvt_status open_synth(const hvt_dataset_opts *opts, hvt_source *ret_source)
{
    int size = opts->image_size ? opts->image_size : 32, classes = opts->classes ? opts->classes : 10;
    uint32_t samples = opts->samples ? opts->samples : 10000;
    uint64_t key;
    synth *s;

    HVT_CHECK(size >= SIDE_MIN && size <= SIDE_MAX, E_ARG, "synth: image size is %d, expected %d to %d", size,
              SIDE_MIN, SIDE_MAX);
    HVT_CHECK(classes >= 2 && classes <= CLASSES_MAX, E_ARG, "synth: classes is %d, expected 2 to %d",
              classes, CLASSES_MAX);
    if (!opts->train)
        samples = samples < 5 ? 1 : samples / 5;

    s = malloc(sizeof *s);
    HVT_CHECK(s, E_MEM, "no memory for data set 'synth' (%zu bytes)", sizeof *s);
    *s = (synth){.size = size, .classes = classes, .train = opts->train};
    for (s->shapes = 1; s->shapes < SHAPES && s->shapes * s->shapes < classes;)
        s->shapes++; /* as square a table of shapes and textures as holds all classes */
    s->textures = least(TEXTURES, (classes + s->shapes - 1) / s->shapes);
    key = hvt__draw(EDITION, opts->train, (uint64_t)size, (uint64_t)classes);
    *ret_source = (hvt_source){.info = {"synth", samples, classes, size, size, 3, key, .type = HVT_U8},
                               .get = get_synth,
                               .label = label_synth,
                               .close = free,
                               .ctx = s};
    return HVT_OK;
}

const hvt_format hvt_format_synth = {"synth", open_synth};
