/*
 * Damaged files, and files that are not pictures: each is refused with a line that names it. (Against Pillow:
 * fuzz_pictures.py.)
 */
#include "pictures.h"
#include "config.h"
#include "heap.h"

#include <zlib.h>

static hvt__picture *picture;

/* ---- what is refused --------------------------------------------------------------------------- */

static void refused(const char *bytes, size_t n, hvt_status code, const char *why)
{
    hvt_record r = {.data = (uint8_t *)(uintptr_t)bytes, .bytes = n};
    int h, w;
    hvt_status s = hvt__picture_begin(picture, &r, "some/a.jpg", &h, &w);

    CHECK(s == code, "%s gives %s", why, hvt_status_name(s));
    CHECK(strstr(hvt_last_error(), why) && strstr(hvt_last_error(), "some/a.jpg"), "%s", hvt_last_error());
}

TEST(what_is_no_picture_is_named)
{
    refused("", 0, HVT_E_FORMAT, "is empty");
    refused("GIF89a\1\2", 8, HVT_E_FORMAT, "is a GIF image; convert it to JPEG or PNG");
    refused("RIFF\1\2\3\4WEBPVP8 ", 16, HVT_HAVE_WEBP ? HVT_E_FORMAT : HVT_E_UNSUPPORTED,
            HVT_HAVE_WEBP ? "truncated" : "was built without libwebp (Debian: libwebp-dev)");
    refused("II*\0\10\0\0\0", 8, HVT_HAVE_TIFF ? HVT_E_FORMAT : HVT_E_UNSUPPORTED,
            HVT_HAVE_TIFF ? "TIFF cannot be decoded" : "was built without libtiff (Debian: libtiff-dev)");
    refused("MM\0+\0\10\0\0", 8, HVT_E_FORMAT, "is a BigTIFF image; convert it");
    refused("\0\0\0\x20"
            "ftypavif",
            12, HVT_E_FORMAT, "an AVIF image");
    refused("\0\0\0\x20"
            "ftypheic",
            12, HVT_E_FORMAT, "a HEIC image");
    refused("PK\3\4\0\0", 6, HVT_E_FORMAT, "a zip archive, not a picture; unpack it");
    refused("\0\0\0\0\0", 5, HVT_E_FORMAT, "is 5 bytes, all of them zero");
    refused("\1\2\3\4\5", 5, HVT_E_FORMAT, "is not a picture: it begins with 01 02 03 04 05");
    refused("Not Found\n", 10, HVT_E_FORMAT, "is text, not a picture: \"Not Found\"");
    refused("version https://git-lfs.github.com/spec/v1\noid sha256:1", 55, HVT_E_FORMAT,
            "is a Git LFS pointer, not the picture; run 'git lfs pull'");
    refused("/annex/objects/SHA256E-s1", 25, HVT_E_FORMAT, "run 'git annex get'");
    refused("\xef\xbb\xbf\n<!DOCTYPE HTML>\n<title>Sign\n in</title>", 43, HVT_E_FORMAT,
            "is an HTML page: Sign  in, not a picture");
    refused("<?xml version='1.0'?><Error><Code>NoSuchKey</Code><Message>The key.</Message>", 77, HVT_E_FORMAT,
            "is an error message of an object store, not a picture: NoSuchKey: The key.; download");
    refused("<?xml version='1.0'?><a/>", 25, HVT_E_FORMAT, "an XML document");
    refused("<svg xmlns='http://www.w3.org/2000/svg'/>", 41, HVT_E_FORMAT, "an SVG drawing");
    refused("{\"error\": {\"code\": 404}}", 24, HVT_E_FORMAT, "a JSON document, not a picture: {\"error\"");
    refused("P7\nWIDTH 1\n", 11, HVT_E_UNSUPPORTED, "P1 to P6");
    refused("P3 1 1 255 1 2 256\n", 19, HVT_E_FORMAT, "256 at byte 15, expected 0 to 255");
    refused("P2 2 1 255 1\n", 13, HVT_E_FORMAT, "truncated");
    refused("P1 2 1 0 2\n", 11, HVT_E_FORMAT, "byte 9");
    refused("P4 9 1 \1", 8, HVT_E_FORMAT, "truncated");
    refused("P6 1 1 65536 123456", 19, HVT_E_FORMAT, "65536");
    refused("P6 -1 1 255 123456", 18, HVT_E_FORMAT, "header");
    refused("P6 2 1 255\n12345", 16, HVT_E_FORMAT, "truncated");
    refused("P6 0 1 255\n12345", 16, HVT_E_FORMAT, "expected sides of 1 to 65500");
    refused("P6 70000 0 255\n12345", 20, HVT_E_FORMAT, "expected sides of 1 to 65500");
    refused("\xff\xd8\xff\xd9", 4, HVT_E_FORMAT, "JPEG");
    refused("\x89PNG\r\n\x1a\n", 8, HVT_E_FORMAT, "truncated");
}

TEST(floats_are_no_picture)
{
    float x[3] = {0};
    hvt_record r = {
        .data = (uint8_t *)x, .bytes = sizeof x, .encoding = HVT_IMAGE_F32, .height = 1, .width = 1};
    int h, w;

    CHECK_FAILS(hvt__picture_begin(picture, &r, "a", &h, &w), E_UNSUPPORTED, "floats");
}

/* A header that promises 60,000 x 60,000 pixels costs neither the memory nor the time of them. */
TEST(huge_progressive_and_interlaced_files_are_refused)
{
    jpeg_kind k = {.h = 16, .w = 16, .channels = 3, .progressive = true};
    hvt_record r = make_jpeg(&k, 1);
    int h, w;

    for (size_t i = 0; i + 8 < r.bytes; i++)
        if (r.data[i] == 0xff && r.data[i + 1] == 0xc2)
            memcpy(r.data + i + 5, "\xea\x60\xea\x60", 4);
    CHECK_FAILS(hvt__picture_begin(picture, &r, "a.jpg", &h, &w), E_UNSUPPORTED,
                "a.jpg: a progressive JPEG of 60000");
    free(r.data);
}

TEST(a_box_outside_the_picture_is_refused)
{
    static const uint8_t pixels[3 * 4 * 3];
    hvt_record r = {.data = (uint8_t *)(uintptr_t)pixels,
                    .bytes = sizeof pixels,
                    .encoding = HVT_IMAGE_U8,
                    .height = 3,
                    .width = 4};
    hvt__view v = hvt__view_whole(3, 5);
    uint8_t out[64];
    int h, w;

    CHECK_OK(hvt__picture_begin(picture, &r, "a", &h, &w));
    CHECK_FAILS(hvt__picture_finish(picture, &v, out), E_ARG, "cannot take");
}

/* ---- damage ------------------------------------------------------------------------------------ */

/* The first rows of a picture, so that the end of the file need not be read for them. */
static hvt__view top_of(int h, int w)
{
    return (hvt__view){.w = w, .h = h / 8, .full_h = 5, .full_w = 5, .out_h = 5, .out_w = 5};
}

/* Look at `bytes` of r in memory that ends there: pixels, or a line that names the file. Returns whether it
 * was decoded. */
static bool survives(const hvt_record *r, size_t bytes, bool whole)
{
    hvt_record cut = *r;
    uint8_t out[5 * 5 * 3];
    hvt__view v;
    hvt_status s;
    int h, w;

    cut.data = heap_exactly(bytes ? bytes : 1);
    cut.bytes = bytes;
    memcpy(cut.data, r->data, bytes);
    s = hvt__picture_begin(picture, &cut, "some/a.jpg", &h, &w);
    if (s == HVT_OK) {
        v = whole ? (hvt__view){.w = w, .h = h, .full_h = 5, .full_w = 5, .out_h = 5, .out_w = 5}
                  : top_of(h < 8 ? 8 : h, w);
        s = h < v.h ? HVT_E_FORMAT : hvt__picture_finish(picture, &v, out);
    }
    CHECK(s == HVT_OK || strstr(hvt_last_error(), "some/a.jpg"), "%s", hvt_last_error());
    free(cut.data);
    return s == HVT_OK;
}

static hvt_record sample(int i)
{
    static const jpeg_kind jpeg[] = {
        {.h = 40, .w = 33, .channels = 3, .across = 2, .down = 2, .optimized = true},
        {.h = 40, .w = 33, .channels = 3, .across = 2, .down = 2, .progressive = true},
        {.h = 40, .w = 33, .channels = 5}};
    static const png_kind png[] = {{20, 15, PNG_COLOR_TYPE_RGB, 8, false},
                                   {20, 15, PNG_COLOR_TYPE_PALETTE, 4, false},
                                   {20, 15, PNG_COLOR_TYPE_GRAY_ALPHA, 16, true}};

    return i < 3   ? make_jpeg(&jpeg[i], 9)
           : i < 6 ? make_png(&png[i - 3], 9)
                   : make_ppm(i - 1, 20, 15, i == 6 ? 255 : 999, 9);
}

enum { SAMPLES = 8 };

TEST(a_truncated_file_is_an_error_whatever_the_view)
{
    for (int i = 0; i < SAMPLES; i++) {
        hvt_record r = sample(i);
        /* what follows the last pixel may be missing: an end marker; of a PNG also two checksums and the end
         * of the compressed data */
        size_t tail = i < 3 ? 2 : i < 6 ? 22 : 0, read = 0;

        for (size_t n = 0; n + tail < r.bytes; n += heap_memcheck() ? 97 : 1)
            for (int whole = 0; whole < 2; whole++)
                read = survives(&r, n, whole) ? n : read;
        CHECK(!read, "sample %d cut to %zu of %zu bytes is read", i, read, r.bytes);
        CHECK(survives(&r, r.bytes, true), "sample %d: %s", i, hvt_last_error());
        free(r.data);
    }
}

/* Damage below the view is found, unless the file was read to its end before. */
TEST(the_verdict_does_not_depend_on_the_view)
{
    for (int i = 0; i < 6; i++) {
        hvt_record r = sample(i);
        int h, w;
        hvt__view v;
        uint8_t out[5 * 5 * 3];

        r.bytes -= 40;
        CHECK(!survives(&r, r.bytes, false), "sample %d is read", i);
        if (i == 0 || i == 3) { /* others are decoded as a whole */
            CHECK_OK(hvt__picture_begin(picture, &r, "a.jpg", &h, &w));
            v = top_of(h, w);
            hvt__picture_trust(picture);
            CHECK_OK(hvt__picture_finish(picture, &v, out));
        }
        free(r.data);
    }
}

TEST(flipped_bits_give_pixels_or_a_line)
{
    for (int i = 0; i < SAMPLES; i++) {
        hvt_record r = sample(i);

        for (size_t bit = 0; bit < r.bytes * 8; bit += heap_memcheck() ? 997 : 5) {
            r.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
            survives(&r, r.bytes, bit % 2);
            r.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK(survives(&r, r.bytes, true), "sample %d: %s", i, hvt_last_error());
        free(r.data);
    }
}

/* Tables of the file before must not decode this one. */
TEST(a_jpeg_without_tables_is_not_decoded_by_those_before)
{
    jpeg_kind k = {.h = 16, .w = 16, .channels = 3};
    hvt_record r = make_jpeg(&k, 1), bare = make_jpeg(&k, 1);
    hvt__view v = hvt__view_whole(16, 16);
    uint8_t out[16 * 16 * 3];
    int h, w;

    for (size_t i = 2; i + 4 < bare.bytes && bare.data[i + 1] != 0xda;) {
        size_t bytes = 2 + ((size_t)bare.data[i + 2] << 8 | bare.data[i + 3]);

        if (bare.data[i + 1] == 0xdb) {
            memmove(bare.data + i, bare.data + i + bytes, bare.bytes - i - bytes);
            bare.bytes -= bytes;
        } else {
            i += bytes;
        }
    }
    CHECK_OK(hvt__picture_begin(picture, &r, "a.jpg", &h, &w));
    CHECK_OK(hvt__picture_finish(picture, &v, out));
    CHECK_OK(hvt__picture_begin(picture, &bare, "a.jpg", &h, &w));
    CHECK_FAILS(hvt__picture_finish(picture, &v, out), E_FORMAT, "uantization table");
    free(r.data);
    free(bare.data);
}

/* ---- what Pillow reads, or does not ------------------------------------------------------------- */

enum { SIDE = 32 };

/* The pixels of a picture of SIDE x SIDE. NULL: it is refused. */
static uint8_t *pixels_of(const hvt_record *r)
{
    static uint8_t out[SIDE * SIDE * 3];
    hvt__view v = hvt__view_whole(SIDE, SIDE);
    int h, w;

    if (hvt__picture_begin(picture, r, "a.jpg", &h, &w) != HVT_OK || h != SIDE || w != SIDE)
        return NULL;
    return hvt__picture_finish(picture, &v, out) == HVT_OK ? out : NULL;
}

/* r with `bytes` of `with` in the place of the `without` bytes at `at`. r is freed. */
static hvt_record replaced(hvt_record r, size_t at, size_t without, const void *with, size_t bytes)
{
    hvt_record n = {.label = -1};

    CHECK_OK(hvt_record_reserve(&n, r.bytes - without + bytes));
    memcpy(n.data, r.data, at);
    memcpy(n.data + at, with, bytes);
    memcpy(n.data + at + bytes, r.data + at + without, r.bytes - at - without);
    free(r.data);
    return n;
}

/* why "": it is read, with the pixels of `right`. r is freed. */
static void verdict(hvt_record r, const uint8_t *right, const char *why, const char *what)
{
    const uint8_t *p = pixels_of(&r);

    if (*why)
        CHECK(!p && strstr(hvt_last_error(), why), "%s: %s", what, p ? "it is read" : hvt_last_error());
    else
        CHECK(p && !memcmp(p, right, SIDE * SIDE * 3), "%s: %s", what, p ? "other pixels" : hvt_last_error());
    free(r.data);
}

TEST(a_jpeg_is_refused_where_data_are_lost)
{
    jpeg_kind k = {.h = SIDE, .w = SIDE, .channels = 3, .across = 2, .down = 2, .restart = 1};
    hvt_record r = make_jpeg(&k, 1);
    static const uint8_t end[] = {0xff, 0xd9}, junk[] = {1, 2, 3}, tem[] = {0xff, 1},
                         header[] = {0xff, 0xc0, 0, 11, 8, 0, 1, 0, 1, 1, 1, 0x11, 0};
    uint8_t right[SIDE * SIDE * 3];
    size_t n = r.bytes, restart = 0;

    memcpy(right, pixels_of(&r), sizeof right);
    for (size_t i = 0; i < n - 1; i++)
        if (r.data[i] == 0xff && r.data[i + 1] == 0xd0)
            restart = i;
    CHECK(restart, "no restart marker");
    free(r.data);
    verdict(make_jpeg(&k, 1), right, "", "as it is");
    verdict(replaced(make_jpeg(&k, 1), n - 2, 0, junk, 3), right, "", "bytes before the end marker");
    verdict(replaced(make_jpeg(&k, 1), n, 0, junk, 3), right, "", "bytes behind the end marker");
    verdict(replaced(make_jpeg(&k, 1), n - 60, 60, end, 2), right, "premature end of data segment",
            "an end marker in the last row");
    verdict(replaced(make_jpeg(&k, 1), n - 60, 60, end, 0), right, "truncated", "no last row");
    verdict(replaced(make_jpeg(&k, 1), restart, 2, "\xff\xd4", 2), right, "instead of RST0",
            "another restart");
    verdict(replaced(make_jpeg(&k, 1), 2, 0, tem, 2), right, "a marker before its pixels is broken", "TEM");
    verdict(replaced(make_jpeg(&k, 1), n - 2, 0, header, sizeof header), right, "two SOF markers",
            "another header at the end");
}

/* A chunk of up to 30 bytes with its checksum. */
static size_t make_chunk(uint8_t *to, const char *name, const void *data, uint8_t bytes)
{
    uLong crc;

    memcpy(to, (uint8_t[]){0, 0, 0, bytes}, 4);
    memcpy(to + 4, name, 4);
    memcpy(to + 8, data, bytes);
    crc = crc32(0, to + 4, bytes + 4u);
    for (int i = 0; i < 4; i++)
        to[8 + bytes + i] = (uint8_t)(crc >> (24 - 8 * i));
    return bytes + 12u;
}

static hvt_record with_chunk(const png_kind *k, const char *name, const void *data, uint8_t bytes)
{
    uint8_t chunk[64];
    size_t n = make_chunk(chunk, name, data, bytes);

    return replaced(make_png(k, 1), 33, 0, chunk, n); /* behind the header */
}

static size_t find(const hvt_record *r, const char *name)
{
    size_t at = 0;

    while (at + 4 <= r->bytes && memcmp(r->data + at, name, 4))
        at++;
    return at - 4;
}

TEST(a_png_is_read_where_pillow_reads_it)
{
    png_kind k = {SIDE, SIDE, PNG_COLOR_TYPE_RGB, 8, false},
             p = {SIDE, SIDE, PNG_COLOR_TYPE_PALETTE, 8, false};
    static const uint8_t frame[26] = {[7] = SIDE, [11] = SIDE}, part[26] = {[7] = SIDE, [11] = SIDE / 2};
    hvt_record r = make_png(&k, 1), wrong;
    uint8_t right[SIDE * SIDE * 3];
    size_t n = r.bytes, palette;

    memcpy(right, pixels_of(&r), sizeof right);
    free(r.data);
    verdict(replaced(make_png(&k, 1), n - 16, 4, "abcd", 4), right, "", "a wrong checksum of right pixels");
    verdict(replaced(make_png(&k, 1), n - 12, 12, "", 0), right, "", "no IEND");
    verdict(replaced(make_png(&k, 1), n - 20, 20, "", 0), right, "", "no checksum");
    verdict(replaced(make_png(&k, 1), n, 0, "abc", 3), right, "", "bytes behind the end");
    verdict(with_chunk(&k, "CrIt", "abc", 3), right, "", "an unknown critical chunk");
    verdict(with_chunk(&k, "iCCP", "n\0\0abc", 6), right, "", "a broken profile");
    verdict(with_chunk(&k, "gAMA", "\0\0\0\0", 4), right, "", "a gamma of 0");
    verdict(with_chunk(&k, "fcTL", frame, 26), right, "", "a whole frame");
    verdict(with_chunk(&k, "fcTL", part, 26), right, "the first frame of the animated PNG",
            "a part of a frame");
    wrong = with_chunk(&k, "tEXt", "a\0b", 3);
    wrong.data[33 + 9] ^= 1;
    verdict(wrong, right, "the checksum of tEXt at byte 33 is wrong", "a broken text");
    verdict(replaced(make_png(&k, 1), n / 2, 1, "a", 1), right, "the checksums of its pixels are wrong",
            "a broken pixel");
    verdict(replaced(make_png(&k, 1), n - 30, 30, "", 0), right, "truncated", "no last pixel");
    wrong = make_png(&p, 1);
    palette = find(&wrong, "PLTE");
    verdict(replaced(wrong, palette, 12 + 768, "", 0), right, "palette has 0 colours", "no palette");
}

int main(void)
{
    CHECK_OK(hvt__picture_open(&picture));
    RUN(what_is_no_picture_is_named);
    RUN(floats_are_no_picture);
    RUN(huge_progressive_and_interlaced_files_are_refused);
    RUN(a_box_outside_the_picture_is_refused);
    RUN(a_truncated_file_is_an_error_whatever_the_view);
    RUN(the_verdict_does_not_depend_on_the_view);
    RUN(flipped_bits_give_pixels_or_a_line);
    RUN(a_jpeg_without_tables_is_not_decoded_by_those_before);
    RUN(a_jpeg_is_refused_where_data_are_lost);
    RUN(a_png_is_read_where_pillow_reads_it);
    hvt__picture_close(&picture);
    return check_done();
}
