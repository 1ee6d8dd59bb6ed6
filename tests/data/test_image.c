/*
 * Pictures: decoders, views and the resampler against plain arithmetic. (Damaged files: test_damage.c.
 * Against Pillow and torchvision: test_pillow.py.)
 */
#include "pictures.h"
#include "heap.h"

#include <math.h>

static hvt__picture *picture;

static hvt_rrc usual(void)
{
    return (hvt_rrc){.on = true, .least = .08f, .most = 1, .narrow = 3.f / 4, .wide = 4.f / 3};
}

/* Pixels of a record as a view has them; NULL if that fails. */
static uint8_t *look(const hvt_record *r, const hvt__view *view)
{
    int h, w;
    hvt_status s = hvt__picture_begin(picture, r, "a.jpg", &h, &w);
    hvt__view v = s == HVT_OK && !view ? hvt__view_whole(h, w) : s == HVT_OK ? *view : (hvt__view){0};
    uint8_t *out = s == HVT_OK ? malloc((size_t)v.out_h * (size_t)v.out_w * 3) : NULL;

    if (s == HVT_OK)
        s = hvt__picture_finish(picture, &v, out);
    if (s == HVT_OK)
        return out;
    free(out);
    return NULL;
}

/* ---- decoders ---------------------------------------------------------------------------------- */

typedef struct part {
    hvt__region region;
    uint8_t *pixels; /* of the region as it was asked for */
} part;

/* A region by the decoder itself. */
static part region_of(const hvt__decoder *d, void *ctx, const hvt_record *r, hvt__region g)
{
    part p = {.region = g};
    hvt__region wide = g;
    size_t pitch, n = (size_t)(g.x1 - g.x0) * 3;
    uint8_t *row;
    int h, w;

    CHECK_OK(d->begin(ctx, r, "a.jpg", &h, &w));
    CHECK_OK(d->start(ctx, &wide));
    CHECK(wide.x0 <= g.x0 && wide.x1 >= g.x1, "columns %d to %d are not in %d to %d", g.x0, g.x1, wide.x0,
          wide.x1);
    pitch = (size_t)(wide.x1 - wide.x0) * 3;
    p.pixels = malloc(n * (size_t)(g.y1 - g.y0));
    row = malloc(pitch + HVT__ROW_SLACK);
    for (int y = g.y0; y < g.y1; y++) {
        uint8_t *at = row;

        CHECK_OK(d->rows(ctx, 1, &at));
        memcpy(p.pixels + (size_t)(y - g.y0) * n, at + (g.x0 - wide.x0) * 3, n);
    }
    CHECK_OK(d->end(ctx, true));
    free(row);
    return p;
}

static bool same_as_in(const part *small, const part *all)
{
    size_t n = (size_t)(small->region.x1 - small->region.x0) * 3, pitch = (size_t)all->region.x1 * 3;

    for (int y = small->region.y0; y < small->region.y1; y++)
        if (memcmp(small->pixels + (size_t)(y - small->region.y0) * n,
                   all->pixels + (size_t)y * pitch + (size_t)small->region.x0 * 3, n) != 0)
            return false;
    return true;
}

/* Draw a range of [0, n). */
static void range(uint64_t key, int n, int *ret_begin, int *ret_end)
{
    int a = (int)hvt__below(hvt__draw(key, 1, 0, 0), (uint32_t)n),
        b = (int)hvt__below(hvt__draw(key, 2, 0, 0), (uint32_t)n);

    *ret_begin = a < b ? a : b;
    *ret_end = (a < b ? b : a) + 1;
}

static void parts_of(const hvt_record *r, int h, int w, int eighths, int tries, const char *what)
{
    const hvt__decoder *d = &hvt__decoder_jpeg;
    hvt__region all = {eighths, 0, (w * eighths + 7) / 8, 0, (h * eighths + 7) / 8};
    void *ctx = NULL;
    part whole;

    CHECK_OK(d->open(&ctx));
    whole = region_of(d, ctx, r, all);
    for (int i = 0; i < tries; i++) {
        hvt__region g = {.eighths = eighths};
        part p;

        range(hvt__mix((uint64_t)(2 * i)), all.x1, &g.x0, &g.x1);
        range(hvt__mix((uint64_t)(2 * i + 1)), all.y1, &g.y0, &g.y1);
        p = region_of(d, ctx, r, g);
        CHECK(same_as_in(&p, &whole), "%s, %d/8: columns %d to %d of rows %d to %d differ", what, eighths,
              g.x0, g.x1, g.y0, g.y1);
        free(p.pixels);
    }
    free(whole.pixels);
    d->close(ctx);
}

static const jpeg_kind jpegs[] = {
    {.h = 75, .w = 93, .channels = 3, .across = 2, .down = 2},
    {.h = 75, .w = 93, .channels = 3, .across = 2, .down = 1},
    {.h = 75, .w = 93, .channels = 3, .across = 1, .down = 2},
    {.h = 75, .w = 93, .channels = 3},
    {.h = 75, .w = 93, .channels = 3, .across = 4, .down = 1},
    {.h = 75, .w = 93, .channels = 3, .across = 2, .down = 2, .progressive = true},
    {.h = 75, .w = 93, .channels = 3, .across = 2, .down = 2, .restart = 1},
    {.h = 75, .w = 93, .channels = 1},
    {.h = 75, .w = 93, .channels = 1, .progressive = true},
    {.h = 75, .w = 93, .channels = 4},
    {.h = 75, .w = 93, .channels = 5, .across = 2, .down = 2},
};

TEST(a_part_of_a_jpeg_has_the_pixels_of_the_whole)
{
    for (size_t k = 0; k < HVT_LEN(jpegs); k++) {
        hvt_record r = make_jpeg(&jpegs[k], k);
        char what[32];

        snprintf(what, sizeof what, "kind %zu", k);
        for (int eighths = 1; eighths <= 8; eighths++)
            parts_of(&r, jpegs[k].h, jpegs[k].w, eighths, heap_memcheck() ? 2 : 40, what);
        free(r.data);
    }
}

/* True if each channel's sampling divides the largest, which the library asks for. */
static bool divides(const jpeg_kind *k)
{
    int most[2] = {1, 1};

    for (int i = 0; i < k->channels; i++)
        for (int axis = 0; axis < 2; axis++)
            most[axis] = k->sampling[i][axis] > most[axis] ? k->sampling[i][axis] : most[axis];
    for (int i = 0; i < k->channels; i++)
        for (int axis = 0; axis < 2; axis++)
            if (most[axis] % k->sampling[i][axis])
                return false;
    return true;
}

/* Every fifth sampling of three channels, as baseline or progressive file, at every scale that views ask for.
 */
TEST(any_sampling_gives_a_part_the_pixels_of_the_whole)
{
    int count = 0;

    for (int s = 0; s < 1 << 12; s += heap_memcheck() ? 205 : 5) {
        jpeg_kind k = {.h = 47 + s % 9, .w = 61 - s % 8, .channels = 3, .progressive = s % 3 == 0};
        hvt_record r;
        char what[32];

        for (int i = 0; i < 6; i++)
            k.sampling[i / 2][i % 2] = (uint8_t)(1 + (s >> 2 * i & 3));
        if (!divides(&k))
            continue;
        r = make_jpeg(&k, 1);
        snprintf(what, sizeof what, "%dx%d,%dx%d,%dx%d", k.sampling[0][0], k.sampling[0][1], k.sampling[1][0],
                 k.sampling[1][1], k.sampling[2][0], k.sampling[2][1]);
        for (int eighths = 1; eighths <= 8; eighths *= 2)
            parts_of(&r, k.h, k.w, eighths, heap_memcheck() ? 1 : 3, what);
        free(r.data);
        count++;
    }
    CHECK(count > 5, "%d samplings", count);
}

/* What Pillow's convert("RGB") makes of a sample of 16 bits. */
TEST(png_of_any_kind_is_rgb)
{
    static const png_kind kinds[] = {
        {9, 13, PNG_COLOR_TYPE_GRAY, 1},       {9, 13, PNG_COLOR_TYPE_GRAY, 4},
        {9, 13, PNG_COLOR_TYPE_GRAY, 8},       {9, 13, PNG_COLOR_TYPE_GRAY, 16},
        {9, 13, PNG_COLOR_TYPE_RGB, 8},        {9, 13, PNG_COLOR_TYPE_RGB, 16},
        {9, 13, PNG_COLOR_TYPE_PALETTE, 2},    {9, 13, PNG_COLOR_TYPE_PALETTE, 8},
        {9, 13, PNG_COLOR_TYPE_GRAY_ALPHA, 8}, {9, 13, PNG_COLOR_TYPE_GRAY_ALPHA, 16},
        {9, 13, PNG_COLOR_TYPE_RGB_ALPHA, 8},  {9, 13, PNG_COLOR_TYPE_RGB_ALPHA, 16}};

    for (size_t k = 0; k < HVT_LEN(kinds); k++) {
        png_kind laced = kinds[k];
        hvt_record r = make_png(&kinds[k], 3), i;
        uint8_t *a = look(&r, NULL), *b;

        laced.interlaced = true;
        i = make_png(&laced, 3);
        b = look(&i, NULL);
        CHECK(a && b && !memcmp(a, b, 9 * 13 * 3), "kind %zu, plain and interlaced: %s", k, hvt_last_error());
        if (a && kinds[k].type == PNG_COLOR_TYPE_RGB && kinds[k].bits == 16) {
            uint8_t *p = picture_pixels(9, 13 * 6, 1, 3);

            CHECK(a[0] == p[0] && a[1] == p[2] && a[2] == p[4], "not the upper bytes");
            free(p);
        }
        free(a);
        free(b);
        free(r.data);
        free(i.data);
    }
}

TEST(ppm_scales_as_pillow_does)
{
    static const struct {
        const char *text;
        size_t bytes;
        uint8_t rgb[3];
    } files[] = {{"P6 1 1 255\n\x01\x80\xff", 14, {1, 128, 255}},
                 {"P6 1 1 100\n\x01\x32\x64", 14, {3, 128, 255}},       /* 2.55 and 127.5 */
                 {"P6\n#x\n1 1\n510\n\0\1\0\3\1\xfe", 20, {0, 2, 255}}, /* 0.5 and 1.5 */
                 {"P5 1 1 127\n\x40", 12, {129, 129, 129}},
                 {"P5 1 1 65535\n\0\x7f", 15, {127, 127, 127}},
                 {"P5 1 1 65535\n\1\0", 15, {255, 255, 255}},
                 {"P3 1 1 100 1 50 #c\n 100", 23, {3, 128, 255}},
                 {"P3 1 1 15 0 1 1#c\n5", 19, {0, 17, 255}}, /* a comment ends no number */
                 {"P2 1 1 510 3", 12, {255, 255, 255}},
                 {"P2 1 1 127\n64 more", 18, {129, 129, 129}},
                 {"P1 1 1 1", 8, {0, 0, 0}},
                 {"P1\n#c\n2 1 01", 12, {255, 255, 255}},
                 {"P4 1 1 \x7f", 8, {255, 255, 255}},
                 {"P4 1 1 \x80", 8, {0, 0, 0}}};

    for (size_t i = 0; i < HVT_LEN(files); i++) {
        hvt_record r = {.data = (uint8_t *)(uintptr_t)files[i].text, .bytes = files[i].bytes};
        uint8_t *p = look(&r, NULL);

        CHECK(p && !memcmp(p, files[i].rgb, 3), "file %zu: %d %d %d, %s", i, p ? p[0] : -1, p ? p[1] : -1,
              p ? p[2] : -1, p ? "" : hvt_last_error());
        free(p);
    }
}

TEST(pixels_need_no_file)
{
    for (int channels = 1; channels <= 3; channels += 2) {
        size_t bytes = (size_t)(31 * 17 * channels);
        uint8_t *p = picture_pixels(31, 17, channels, 1), *out;
        hvt_record r = {
            .data = heap_exactly(bytes), .bytes = bytes, .encoding = HVT_IMAGE_U8, .height = 31, .width = 17};
        bool same = true;

        memcpy(r.data, p, bytes);
        out = look(&r, NULL);
        for (int i = 0; out && i < 31 * 17 * 3; i++)
            same &= out[i] == p[channels == 3 ? i : i / 3];
        CHECK(out && same, "%d channels: %s", channels, hvt_last_error());
        free(out);
        free(p);
        free(r.data);
    }
}

/* ---- resampling -------------------------------------------------------------------------------- */

/* Output (i, j, c) of a view of pixels, in doubles. */
static double exact(const uint8_t *p, const hvt__view *v, int width, int i, int j, int c)
{
    double sy = (double)v->h / v->full_h, sx = (double)v->w / v->full_w, sum = 0, weights = 0;
    double cy = (i + v->top + .5) * sy, cx = (j + v->left + .5) * sx, fy = fmax(1, sy), fx = fmax(1, sx);

    for (int y = 0; y < v->h; y++)
        for (int x = 0; x < v->w; x++) {
            double w = fmax(0, 1 - fabs(y + .5 - cy) / fy) * fmax(0, 1 - fabs(x + .5 - cx) / fx);

            weights += w;
            sum += w * p[((size_t)(v->y + y) * (size_t)width + (size_t)(v->x + x)) * 3 + (size_t)c];
        }
    return sum / weights;
}

static const hvt__view views[] = {{0, 0, 40, 30, 30, 40, 0, 0, 30, 40},  {3, 5, 30, 20, 17, 9, 0, 0, 17, 9},
                                  {0, 0, 40, 30, 3, 2, 0, 0, 3, 2},      {7, 2, 5, 4, 23, 37, 0, 0, 23, 37},
                                  {0, 0, 40, 30, 24, 32, 4, 5, 16, 21},  {39, 29, 1, 1, 4, 5, 0, 0, 4, 5},
                                  {1, 1, 38, 28, 27, 36, 10, 3, 3, 30},  {0, 0, 40, 1, 1, 1, 0, 0, 1, 1},
                                  {0, 0, 1, 30, 50, 50, 25, 25, 25, 25}, {2, 3, 33, 27, 22, 41, 21, 40, 1, 1},
                                  {0, 0, 40, 30, 12, 16, 0, 0, 12, 16}};

/* Views of a small picture, and of a long one that many outputs are shrunk from. */
static hvt_record picture_of_views(size_t k)
{
    bool small = k < HVT_LEN(views);
    hvt_record r = {.encoding = HVT_IMAGE_U8, .height = small ? 30 : 20, .width = small ? 40 : 900};

    r.bytes = (size_t)r.height * (size_t)r.width * 3;
    r.data = picture_pixels(r.height, r.width, 3, 5);
    return r;
}

static hvt__view view_of(size_t k)
{
    static const hvt__view shrunk[] = {{0, 0, 900, 20, 5, 71, 0, 0, 5, 71},
                                       {3, 1, 481, 18, 9, 67, 2, 3, 5, 61}};

    return k < HVT_LEN(views) ? views[k] : shrunk[k - HVT_LEN(views)];
}

static size_t view_count(void)
{
    return HVT_LEN(views) + (heap_memcheck() ? 0 : 2);
}

TEST(resampling_is_the_triangle_filter)
{
    double worst = 0;

    for (size_t k = 0; k < view_count(); k++) {
        hvt_record r = picture_of_views(k);
        hvt__view v = view_of(k);
        uint8_t *out = look(&r, &v);

        CHECK(out, "view %zu: %s", k, hvt_last_error());
        for (int i = 0; out && i < v.out_h * v.out_w * 3; i++)
            worst = fmax(worst,
                         fabs(out[i] - exact(r.data, &v, r.width, i / 3 / v.out_w, i / 3 % v.out_w, i % 3)));
        free(out);
        free(r.data);
    }
    CHECK(worst < .52, "off by %g, where rounding is .5", worst);
}

TEST(every_instruction_set_gives_the_same_bits)
{
    uint8_t *of[8] = {NULL};

    for (size_t k = 0; k < view_count(); k++) {
        hvt_record r = picture_of_views(k);
        hvt__view v = view_of(k);

        for (int isa = 0; isa < 8 && hvt__resample_isa(isa); isa++) {
            hvt__resample_use(isa);
            of[isa] = look(&r, &v);
            CHECK(of[isa] && !memcmp(of[isa], of[0], (size_t)(v.out_h * v.out_w * 3)), "view %zu on %s", k,
                  hvt__resample_isa(isa));
        }
        for (int isa = 0; isa < 8; isa++) {
            free(of[isa]);
            of[isa] = NULL;
        }
        free(r.data);
    }
    hvt__resample_use(-1);
}

/* Sums are as large as they can be. */
TEST(black_and_white_pixels_overflow_nothing)
{
    hvt_record r = {.encoding = HVT_IMAGE_U8, .height = 70, .width = 90, .bytes = 70 * 90 * 3};
    int tries = heap_memcheck() ? 4 : 300;

    r.data = malloc(r.bytes);
    for (size_t i = 0; i < r.bytes; i++)
        r.data[i] = hvt__draw(9, i / 3, 0, 0) & 1 ? 255 : 0;
    for (int t = 0; t < tries; t++) {
        hvt__view v = {.out_h = 16, .out_w = 24};
        uint8_t *want, *got;

        range(hvt__mix((uint64_t)(2 * t)), r.height, &v.y, &v.h);
        range(hvt__mix((uint64_t)(2 * t + 1)), r.width, &v.x, &v.w);
        v.h -= v.y;
        v.w -= v.x;
        v.full_h = 16 + t % 30;
        v.full_w = 24 + t % 20;
        hvt__resample_use(0);
        want = look(&r, &v);
        CHECK(want, "try %d on %s: %s", t, hvt__resample_isa(0), hvt_last_error());
        for (int isa = 1; isa < 8 && hvt__resample_isa(isa); isa++) {
            hvt__resample_use(isa);
            got = look(&r, &v);
            CHECK(want && got && !memcmp(want, got, 16 * 24 * 3), "try %d on %s: %s", t,
                  hvt__resample_isa(isa), got ? "other pixels" : hvt_last_error());
            free(got);
        }
        free(want);
    }
    hvt__resample_use(-1);
    free(r.data);
}

TEST(a_long_row_shrinks_to_few_pixels)
{
    hvt_record r = {.encoding = HVT_IMAGE_U8, .height = 2, .width = HVT__IMAGE_SIDE_MAX};
    hvt__view v = {.w = HVT__IMAGE_SIDE_MAX, .h = 2, .full_h = 1, .full_w = 3, .out_h = 1, .out_w = 3};
    uint8_t *out;

    r.bytes = (size_t)r.width * 2 * 3;
    r.data = malloc(r.bytes);
    for (int i = 0; i < r.width * 2; i++)
        memset(r.data + 3 * i, i % r.width * 3 / r.width * 100, 3);
    out = look(&r, &v);
    CHECK(out && out[0] < 30 && abs(out[4] - 100) < 3 && out[8] > 170, "%s", hvt_last_error());
    free(out);
    free(r.data);
}

/* ---- views ------------------------------------------------------------------------------------- */

TEST(centre_crops_are_torchvisions)
{
    static const struct {
        int h, w, resize, out_h, out_w;
        hvt__view v;
    } cases[] = {/* Resize(256), CenterCrop(224) */
                 {375, 500, 256, 224, 224, {0, 0, 500, 375, 256, 341, 16, 58, 224, 224}},
                 {500, 333, 256, 224, 224, {0, 0, 333, 500, 384, 256, 80, 16, 224, 224}},
                 {257, 257, 0, 224, 224, {0, 0, 257, 257, 257, 257, 16, 16, 224, 224}}, /* 16.5 */
                 {259, 259, 0, 224, 224, {0, 0, 259, 259, 259, 259, 18, 18, 224, 224}}, /* 17.5 */
                 {100, 301, 0, 225, 224, {0, 0, 301, 100, 100, 301, -62, 38, 225, 224}}};

    for (size_t i = 0; i < HVT_LEN(cases); i++) {
        hvt__view v =
            hvt__view_centre(cases[i].h, cases[i].w, cases[i].resize, cases[i].out_h, cases[i].out_w);

        CHECK(!memcmp(&v, &cases[i].v, sizeof v), "case %zu: %d x %d, from row %d, column %d", i, v.full_h,
              v.full_w, v.top, v.left);
    }
}

TEST(small_pictures_are_padded_by_zeros)
{
    uint8_t *p = picture_pixels(5, 40, 3, 2), *out;
    hvt_record r = {.data = p, .bytes = 5 * 40 * 3, .encoding = HVT_IMAGE_U8, .height = 5, .width = 40};
    hvt__view v = hvt__view_centre(5, 40, 0, 12, 10);
    bool zero = true, same = true;

    out = look(&r, &v);
    for (int y = 0; out && y < 12; y++)
        for (int i = 0; i < 30; i++) {
            zero &= (y >= 3 && y < 8) || out[30 * y + i] == 0;
            same &= y < 3 || y >= 8 || out[30 * y + i] == p[120 * (y - 3) + 45 + i];
        }
    CHECK(out && zero && same, "padding %d, pixels %d: %s", zero, same, hvt_last_error());
    free(out);
    free(p);
}

TEST(random_boxes_lie_inside_and_hang_on_their_key_alone)
{
    hvt_rrc o = usual();
    double area = 0;
    int n = 2000, moved = 0;

    for (int i = 0; i < n; i++) {
        hvt__view v = hvt__view_rrc(300, 400, &o, 7, 1, (uint32_t)i, 224, 224);
        hvt__view again = hvt__view_rrc(300, 400, &o, 7, 1, (uint32_t)i, 224, 224);
        hvt__view next = hvt__view_rrc(300, 400, &o, 7, 2, (uint32_t)i, 224, 224);

        CHECK(v.x >= 0 && v.y >= 0 && v.w >= 1 && v.h >= 1 && v.x + v.w <= 400 && v.y + v.h <= 300,
              "%d x %d from %d, %d", v.h, v.w, v.y, v.x);
        CHECK(!memcmp(&v, &again, sizeof v), "another box the second time");
        moved += memcmp(&v, &next, sizeof v) != 0;
        area += (double)v.w * v.h / (300 * 400) / n;
    }
    CHECK(moved > n - 10, "%d of %d boxes change with the epoch", moved, n);
    CHECK(area > .4 && area < .56, "mean area %g of the picture's", area);
}

TEST(a_strip_has_the_largest_centred_box)
{
    hvt_rrc o = usual();
    hvt__view wide = hvt__view_rrc(10, 1000, &o, 1, 1, 1, 8, 8),
              tall = hvt__view_rrc(1000, 10, &o, 1, 1, 1, 8, 8);

    CHECK(wide.h == 10 && wide.w == 13 && wide.y == 0 && wide.x == 493, "%d x %d at %d", wide.h, wide.w,
          wide.x);
    CHECK(tall.w == 10 && tall.h == 13 && tall.x == 0 && tall.y == 493, "%d x %d at %d", tall.h, tall.w,
          tall.y);
}

TEST(the_digest_is_that_of_every_host)
{
    uint64_t digest = hvt__picture_digest();

    CHECK(digest == 0xf81176e42c058e27, "0x%016llx", (unsigned long long)digest);
    for (int isa = 0; hvt__resample_isa(isa); isa++) {
        hvt__resample_use(isa);
        CHECK(hvt__picture_digest() == digest, "differs on %s", hvt__resample_isa(isa));
    }
    hvt__resample_use(-1);
}

int main(void)
{
    CHECK_OK(hvt__picture_open(&picture));
    RUN(a_part_of_a_jpeg_has_the_pixels_of_the_whole);
    RUN(any_sampling_gives_a_part_the_pixels_of_the_whole);
    RUN(png_of_any_kind_is_rgb);
    RUN(ppm_scales_as_pillow_does);
    RUN(pixels_need_no_file);
    RUN(resampling_is_the_triangle_filter);
    RUN(every_instruction_set_gives_the_same_bits);
    RUN(black_and_white_pixels_overflow_nothing);
    RUN(a_long_row_shrinks_to_few_pixels);
    RUN(centre_crops_are_torchvisions);
    RUN(small_pictures_are_padded_by_zeros);
    RUN(random_boxes_lie_inside_and_hang_on_their_key_alone);
    RUN(a_strip_has_the_largest_centred_box);
    RUN(the_digest_is_that_of_every_host);
    hvt__picture_close(&picture);
    return check_done();
}
