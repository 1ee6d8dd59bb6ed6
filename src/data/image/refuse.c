/*
 * Refuses files that are not pictures of a supported format: the message says what they are and what to do.
 *
 * Failed downloads leave few kinds of files: a pointer instead of the file, a server's page or error, a file
 * that was never filled. Their first bytes identify these files, and other picture formats.
 */
#define _GNU_SOURCE
#include "image_impl.h"

#include <ctype.h>
#include <strings.h>

enum { QUOTED = 80 };

static const char readable[] = "supported are JPEG, PNG, PNM (.pbm, .pgm, .ppm), BMP, WebP and TIFF";

typedef struct kind {
    const char *name, *magic;
    size_t at, bytes;
    const char *library; /* library that this build lacks; NULL: there is no decoder at all */
} kind;

static bool matches(const hvt_record *r, const kind *k)
{
    return r->bytes >= k->at + k->bytes && !memcmp(r->data + k->at, k->magic, k->bytes);
}

static const kind *find(const hvt_record *r, const kind *kinds, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (matches(r, &kinds[i]))
            return &kinds[i];
    return NULL;
}

static const kind *other_format(const hvt_record *r)
{
    static const kind kinds[] = {{"a GIF image", "GIF8", 0, 4},
                                 {"a WebP image", "WEBP", 8, 4, "libwebp"},
                                 {"a BMP image", "BM", 0, 2},
                                 {"a TIFF image", "II*\0", 0, 4, "libtiff"},
                                 {"a TIFF image", "MM\0*", 0, 4, "libtiff"},
                                 {"a BigTIFF image", "II+\0", 0, 4},
                                 {"a BigTIFF image", "MM\0+", 0, 4},
                                 {"an AVIF image", "ftypavi", 4, 7},
                                 {"a HEIC image", "ftyphei", 4, 7},
                                 {"a HEIC image", "ftyphev", 4, 7},
                                 {"a HEIF image", "ftypmif1", 4, 8},
                                 {"a HEIF image", "ftypmsf1", 4, 8},
                                 {"a video", "ftyp", 4, 4},
                                 {"a JPEG XL image", "\xff\x0a", 0, 2},
                                 {"a JPEG XL image", "\0\0\0\fJXL ", 0, 8},
                                 {"a JPEG 2000 image", "\0\0\0\fjP", 0, 6},
                                 {"a JPEG 2000 image", "\xff\x4f\xff\x51", 0, 4},
                                 {"a Photoshop image", "8BPS", 0, 4},
                                 {"an icon", "\0\0\1\0", 0, 4},
                                 {"a float image (PFM)", "PF", 0, 2},
                                 {"a float image (PFM)", "Pf", 0, 2},
                                 {"a PDF document", "%PDF", 0, 4}};

    return find(r, kinds, HVT_LEN(kinds));
}

static const kind *archive(const hvt_record *r)
{
    static const kind kinds[] = {{"a zip archive", "PK\3\4", 0, 4},
                                 {"a gzip file", "\x1f\x8b", 0, 2},
                                 {"a bzip2 file", "BZh", 0, 3},
                                 {"an xz file",
                                  "\xfd"
                                  "7zXZ",
                                  0, 5},
                                 {"a zstd file", "\x28\xb5\x2f\xfd", 0, 4},
                                 {"a 7z archive", "7z\xbc\xaf", 0, 4},
                                 {"a tar archive", "ustar", 257, 5}};

    return find(r, kinds, HVT_LEN(kinds));
}

/* ---- text -------------------------------------------------------------------------------------- */

/* Returns the offset of the text after a byte-order mark and blanks; r->bytes if the file is not text. */
static size_t text_begin(const hvt_record *r)
{
    size_t at = r->bytes >= 3 && !memcmp(r->data, "\xef\xbb\xbf", 3) ? 3 : 0, end;

    while (at < r->bytes && isspace(r->data[at]))
        at++;
    end = r->bytes < at + QUOTED ? r->bytes : at + QUOTED;
    for (size_t i = at; i < end; i++)
        if (!isprint(r->data[i]) && !isspace(r->data[i]) && r->data[i] < 0x80)
            return r->bytes;
    return at < r->bytes && isprint(r->data[at]) ? at : r->bytes;
}

/* Copies up to QUOTED bytes of [at, end) as one line. */
static const char *quote(const hvt_record *r, size_t at, size_t end, char ret_text[QUOTED + 1])
{
    size_t n = 0;

    for (; at < end && n < QUOTED; at++)
        if (n > 0 || !isspace(r->data[at]))
            ret_text[n++] = isprint(r->data[at]) ? (char)r->data[at] : ' ';
    while (n > 0 && ret_text[n - 1] == ' ')
        n--;
    ret_text[n] = 0;
    return ret_text;
}

/* Copies the text between two words; "" if they are missing. */
static const char *between(const hvt_record *r, const char *from, const char *to, char ret_text[QUOTED + 1])
{
    const uint8_t *a = memmem(r->data, r->bytes, from, strlen(from)), *b = NULL;

    if (a) {
        a += strlen(from);
        b = memmem(a, r->bytes - (size_t)(a - r->data), to, strlen(to));
    }
    ret_text[0] = 0;
    return b ? quote(r, (size_t)(a - r->data), (size_t)(b - r->data), ret_text) : ret_text;
}

static bool begins(const hvt_record *r, size_t at, const char *word)
{
    size_t n = strlen(word);

    return r->bytes - at >= n && !strncasecmp((const char *)r->data + at, word, n);
}

static hvt_status refuse_xml(const hvt_record *r, const char *path)
{
    char code[QUOTED + 1], message[QUOTED + 1];

    if (memmem(r->data, r->bytes < 1000 ? r->bytes : 1000, "<svg", 4))
        return HVT_FAIL(E_FORMAT, "%s is an SVG drawing; %s", path, readable);
    between(r, "<Code>", "</Code>", code);
    between(r, "<Message>", "</Message>", message);
    if (code[0])
        return HVT_FAIL(E_FORMAT,
                        "%s is an error message of an object store, not a picture: %s: %s; download it again",
                        path, code, message);
    return HVT_FAIL(E_FORMAT, "%s is an XML document, not a picture; download it again", path);
}

static hvt_status refuse_text(const hvt_record *r, const char *path, size_t at)
{
    static const char *const html[] = {"<!doctype html", "<html", "<head", "<body", "<script", "<title"};
    char text[QUOTED + 1];

    if (begins(r, at, "version https://git-lfs.github.com/"))
        return HVT_FAIL(E_FORMAT,
                        "%s is a Git LFS pointer, not the picture; run 'git lfs pull' in its folder", path);
    if (begins(r, at, "/annex/objects/") || begins(r, at, "../.git/annex/"))
        return HVT_FAIL(
            E_FORMAT, "%s is a git-annex pointer, not the picture; run 'git annex get' in its folder", path);
    for (size_t i = 0; i < HVT_LEN(html); i++)
        if (begins(r, at, html[i])) {
            between(r, "<title>", "</title>", text);
            return HVT_FAIL(E_FORMAT, "%s is an HTML page%s%s, not a picture; download it again", path,
                            text[0] ? ": " : "", text);
        }
    if (begins(r, at, "<?xml") || begins(r, at, "<error") || begins(r, at, "<svg"))
        return refuse_xml(r, path);
    quote(r, at, r->bytes, text);
    if (r->data[at] == '{' || r->data[at] == '[')
        return HVT_FAIL(E_FORMAT, "%s is a JSON document, not a picture: %s", path, text);
    return HVT_FAIL(E_FORMAT, "%s is text, not a picture: \"%s\"", path, text);
}

hvt_status hvt__picture_refuse(const hvt_record *r, const char *path)
{
    const kind *k;
    char first[64] = "";
    size_t at = 0;

    HVT_CHECK(r->encoding == HVT_IMAGE_FILE, E_UNSUPPORTED,
              "%s: images of floats are neither decoded nor resampled", path);
    HVT_CHECK(r->bytes, E_FORMAT, "%s is empty", path);
    while (at < r->bytes && !r->data[at])
        at++;
    HVT_CHECK(at < r->bytes, E_FORMAT,
              "%s is %zu bytes, all of them zero: it was never written; copy it again", path, r->bytes);
    k = other_format(r);
    HVT_CHECK(
        !k || !k->library, E_UNSUPPORTED,
        "%s is %s; this hvtrain was built without %s (Debian: %s-dev): build it again with the library, or "
        "convert the file to PNG",
        path, k->name, k->library, k->library);
    HVT_CHECK(!k, E_FORMAT, "%s is %s; convert it to JPEG or PNG", path, k->name);
    k = archive(r);
    HVT_CHECK(!k, E_FORMAT, "%s is %s, not a picture; unpack it", path, k->name);
    at = text_begin(r);
    if (at < r->bytes)
        return refuse_text(r, path, at);
    for (size_t i = 0; i < r->bytes && i < 8; i++)
        snprintf(first + strlen(first), sizeof first - strlen(first), " %02x", r->data[i]);
    return HVT_FAIL(E_FORMAT, "%s is not a picture: it begins with%s; %s", path, first, readable);
}
