/*
 * The EXIF orientation of a picture file: how to turn and mirror its pixels, as a number from 1 to 8.
 *
 * Sources: Pillow 13's Image.getexif() and ImageFileDirectory_v2.load(); CIPA DC-008 (Exif 3.0), 4.6.5. The
 * tag is in a small TIFF file inside the picture; XMP text counts if that file has no such tag. Damaged EXIF
 * data are ignored from the same byte on as in Pillow.
 */
#define _GNU_SOURCE /* memmem() */
#include "image_impl.h"

typedef struct span {
    const uint8_t *data; /* NULL: none */
    size_t bytes;
} span;

/* A picture's metadata. */
typedef struct found {
    span exif, xmp;
} found;

static bool begins(span s, const char *text, size_t bytes)
{
    return s.bytes >= bytes && !memcmp(s.data, text, bytes);
}

static span after(span s, size_t bytes)
{
    return (span){s.data + bytes, s.bytes - bytes};
}

static uint64_t number(const uint8_t *p, int bytes, bool big)
{
    uint64_t v = 0;

    for (int i = 0; i < bytes; i++)
        v = v << 8 | p[big ? i : bytes - 1 - i];
    return v;
}

/* ---- where the metadata are -------------------------------------------------------------------- */

/* Searches the segments before the first scan. */
static void find_in_jpeg(span r, found *f)
{
    static const char exif[] = "Exif\0", xmp[] = "http://ns.adobe.com/xap/1.0/"; /* with their last 0 */
    size_t at = 2;

    for (;;) {
        size_t bytes;
        span s;

        while (at < r.bytes && r.data[at] != 0xff)
            at++;
        while (at < r.bytes && r.data[at] == 0xff)
            at++;
        if (r.bytes - at < 3 || r.data[at] == 0xda)
            return;
        if (r.data[at] < 0xc0 || (r.data[at] >= 0xd0 && r.data[at] <= 0xd9) || r.data[at] == 0xc8 ||
            (r.data[at] >= 0xf0 && r.data[at] < 0xfe)) {
            at++;
            continue;
        }
        bytes = number(r.data + at + 1, 2, true);
        if (bytes < 2 || bytes > r.bytes - at - 1)
            return;
        s = (span){r.data + at + 3, bytes - 2};
        if (r.data[at] == 0xe1 && begins(s, exif, sizeof exif) && !f->exif.data)
            f->exif = s;
        else if (r.data[at] == 0xe1 && begins(s, xmp, sizeof xmp))
            f->xmp = after(s, sizeof xmp);
        at += 1 + bytes;
    }
}

/* Searches all chunks, including those after the pixels. */
static void find_in_png(span r, found *f)
{
    static const char xmp[] = "XML:com.adobe.xmp\0"; /* uncompressed */

    for (size_t at = 8, bytes; at < r.bytes && r.bytes - at >= 12; at += 12 + bytes) {
        span s;

        bytes = number(r.data + at, 4, true);
        if (bytes > r.bytes - at - 12)
            return;
        s = (span){r.data + at + 8, bytes};
        if (!memcmp(r.data + at + 4, "eXIf", 4))
            f->exif = s;
        else if (!memcmp(r.data + at + 4, "iTXt", 4) && begins(s, xmp, sizeof xmp))
            f->xmp = s;
    }
}

/* Searches the chunks after the header of 12 bytes; their lengths are even. */
static void find_in_webp(span r, found *f)
{
    for (size_t at = 12, bytes; at < r.bytes && r.bytes - at >= 8; at += 8 + bytes + bytes % 2) {
        span s;

        bytes = number(r.data + at + 4, 4, false);
        if (bytes > r.bytes - at - 8)
            return;
        s = (span){r.data + at + 8, bytes};
        if (!memcmp(r.data + at, "EXIF", 4))
            f->exif = s;
        else if (!memcmp(r.data + at, "XMP ", 4))
            f->xmp = s;
    }
}

/* ---- the orientation --------------------------------------------------------------------------- */

enum { ORIENTATION = 0x112, ENTRY = 12, TYPES = 17 };

/* True if the value of a directory's entry exists: up to 4 bytes in the entry itself, more elsewhere.
 * ret_broken: Pillow reads no further entry. */
static bool read_value(span s, const uint8_t *entry, bool big, span *ret_value, bool *ret_broken)
{
    static const uint8_t unit[TYPES] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    const size_t type = number(entry + 2, 2, big), size = type < TYPES ? unit[type] : 0;
    const size_t bytes = size * number(entry + 4, 4, big), at = number(entry + 8, 4, big);

    *ret_value = (span){entry + 8, bytes};
    *ret_broken = false;
    if (!bytes || bytes > s.bytes)
        return false;
    if (bytes > 4) {
        *ret_broken = at > s.bytes || bytes > s.bytes - at;
        ret_value->data = s.data + (*ret_broken ? 0 : at);
    }
    return !*ret_broken;
}

/* The tag's value in the first directory of a TIFF file; -1: none. */
static int look_up(span s)
{
    static const char heads[4][5] = {"MM\0*", "II*\0", "MM*\0", "II\0*"};
    bool big = s.bytes && s.data[0] == 'M', known = false, broken = false;
    size_t at, count;

    for (size_t i = 0; i < HVT_LEN(heads); i++)
        known |= begins(s, heads[i], 4);
    if (!known || s.bytes < 8)
        return -1;
    at = number(s.data + 4, 4, big);
    if (at > s.bytes || s.bytes - at < 2)
        return -1;
    count = number(s.data + at, 2, big);
    at += 2;
    for (size_t i = 0; i < count && s.bytes - at >= ENTRY && !broken; i++, at += ENTRY) {
        const size_t type = number(s.data + at + 2, 2, big);
        span v;

        if (read_value(s, s.data + at, big, &v, &broken) && number(s.data + at, 2, big) == ORIENTATION) {
            const bool one = type == 6, two = type == 3 || type == 8,
                       four = type == 4 || type == 9 || type == 13;

            return one || two || four ? (int)number(v.data, one ? 1 : two ? 2 : 4, big) : 0;
        }
    }
    return -1;
}

/* tiff:Orientation="6" or <tiff:Orientation>6 */
static int look_up_in_xmp(span s)
{
    static const char name[] = "tiff:Orientation";
    const size_t bytes = sizeof name - 1;

    while (s.data) {
        const uint8_t *at = memmem(s.data, s.bytes, name, bytes);

        if (!at)
            break;
        s = after(s, (size_t)(at - s.data) + bytes);
        for (size_t skip = 1; skip < 3 && s.bytes > skip; skip++)
            if (begins(s, skip == 1 ? ">" : "=\"", skip) && s.data[skip] >= '0' && s.data[skip] <= '9')
                return s.data[skip] - '0';
    }
    return 1;
}

int hvt__orientation(const hvt_record *r)
{
    const span all = {r->data, r->bytes};
    found f = {.exif = {NULL}};
    int o;

    if (r->encoding != HVT_IMAGE_FILE)
        return 1;
    if (begins(all, "\xff\xd8\xff", 3))
        find_in_jpeg(all, &f);
    else if (begins(all, "\x89PNG", 4))
        find_in_png(all, &f);
    else if (begins(all, "RIFF", 4))
        find_in_webp(all, &f);
    else if (begins(all, "II*", 4) || begins(all, "MM\0*", 4))
        f.exif = all;
    for (int i = 0; i < 2; i++)
        if (f.exif.data && begins(f.exif, "Exif\0", 6))
            f.exif = after(f.exif, 6);
    o = f.exif.data ? look_up(f.exif) : -1;
    o = o < 0 ? look_up_in_xmp(f.xmp) : o;
    return o >= 1 && o <= 8 ? o : 1;
}
