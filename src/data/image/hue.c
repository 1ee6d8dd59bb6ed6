/*
 * Rotation of the hue of RGB pixels, with the bytes of Pillow's conversions to HSV and back (Convert.c).
 *
 * The arithmetic is Pillow's, to the type, in loops over blocks of pixels which compilers turn into vector
 * code; one copy is compiled for AVX2. Two formulas are written otherwise with the same result, without
 * comparing floats, which gcc does not vectorise: fmod(x, 1) for x from 0 to 2, and round() of a positive
 * number.
 */
#include "image_impl.h"

enum { BLOCK = 128 }; /* pixels */

/* A block of pixels as numbers. */
typedef struct block {
    int32_t red[BLOCK], green[BLOCK], blue[BLOCK];
    int32_t most[BLOCK]; /* the largest channel */
    int32_t low[BLOCK], falling[BLOCK], rising[BLOCK];
    int32_t hue[BLOCK], saturation[BLOCK], sector[BLOCK];
} block;

/* round(x) for x from 0 to 255. */
static inline __attribute__((always_inline)) int32_t rounded(double x)
{
    int32_t whole = (int32_t)x;

    return whole + (int32_t)((x - whole) * 2);
}

/* Converts to HSV and adds `by` to the hue. Masks choose the formula of the largest channel. */
static inline __attribute__((always_inline)) void to_hsv(block *b, int by)
{
    for (int i = 0; i < BLOCK; i++) {
        const int r = b->red[i], g = b->green[i], u = b->blue[i];
        int most = r > g ? r : g, least = r < g ? r : g, is_red, is_green, is_blue, plus, minus, range;
        double h;

        most = u > most ? u : most;
        least = u < least ? u : least;
        is_red = -(r == most);
        is_green = -(g == most) & ~is_red;
        is_blue = ~(is_red | is_green);
        plus = most - ((u & is_red) | (r & is_green) | (g & is_blue));
        minus = most - ((g & is_red) | (u & is_green) | (r & is_blue));
        range = most - least + (most == least);
        h = (float)(((2 & is_green) | (4 & is_blue)) + (double)((float)plus / (float)range) -
                    (double)((float)minus / (float)range));
        h = h / 6.0 + 1.0;
        h = (float)(h - (int32_t)h);
        b->most[i] = most;
        b->hue[i] = ((int32_t)(h * 255.0) + by) & 255;
        b->saturation[i] = (int32_t)((double)((float)(most - least) / (float)(most + !most)) * 255.0);
    }
}

/* The three values besides `most` that a channel may have. */
static inline __attribute__((always_inline)) void from_hsv(block *b)
{
    for (int i = 0; i < BLOCK; i++) {
        const double turn = (double)b->hue[i] * 6.0 / 255.0, v = b->most[i];
        const float s = (float)((double)b->saturation[i] / 255.0);
        const float rest = (float)(turn - (double)(int32_t)turn);

        b->sector[i] = (int32_t)turn;
        b->low[i] = rounded(v * (1.0 - (double)s));
        b->falling[i] = rounded(v * (1.0 - (double)(s * rest)));
        b->rising[i] = rounded(v * (1.0 - (double)s * (1.0 - (double)rest)));
    }
}

static inline __attribute__((always_inline)) void rotate(size_t pixels, uint8_t by, const uint8_t *from,
                                                         uint8_t *to)
{
    static const uint8_t order[7][3] = {{0, 3, 1}, {2, 0, 1}, {1, 0, 3}, {1, 2, 0},
                                        {3, 1, 0}, {0, 1, 2}, {0, 3, 1}};
    block b = {.red = {0}};

    for (size_t at = 0; at < pixels; at += BLOCK) {
        const int n = pixels - at < BLOCK ? (int)(pixels - at) : BLOCK;

        for (int i = 0; i < n; i++, from += 3) {
            b.red[i] = from[0];
            b.green[i] = from[1];
            b.blue[i] = from[2];
        }
        to_hsv(&b, by);
        from_hsv(&b);
        for (int i = 0; i < n; i++, to += 3) {
            const int32_t value[4] = {b.most[i], b.low[i], b.falling[i], b.rising[i]};

            for (int c = 0; c < 3; c++)
                to[c] = (uint8_t)value[order[b.sector[i]][c]];
        }
    }
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static void rotate_avx2(size_t pixels, uint8_t by, const uint8_t *from,
                                                        uint8_t *to)
{
    rotate(pixels, by, from, to);
}
#endif

void hvt__rotate_hue(size_t pixels, uint8_t by, const uint8_t *from, uint8_t *to)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx2")) {
        rotate_avx2(pixels, by, from, to);
        return;
    }
#endif
    rotate(pixels, by, from, to);
}
