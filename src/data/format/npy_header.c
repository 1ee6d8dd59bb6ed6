/*
 * The header of a .npy file.
 *
 * Six bytes of magic, the version, the length of what follows (two bytes in version 1, four in 2 and 3), then
 * a Python dict with the keys descr, fortran_order and shape in any order, padded by spaces. Version 3
 * differs from 2 in its encoding (UTF-8), which makes no difference for arrays of numbers. All values are
 * checked here, and fit their types. Source: numpy/lib/format.py.
 */
#include "npy.h"

#include <inttypes.h>

enum { TEXT_MAX = HVT__NPY_HEADER };

typedef struct parser {
    const char *at, *path;
    hvt__npy *npy;
    char order; /* byte order: '<', '>', '|', '=' */
    bool fortran, has_descr, has_order, has_shape;
} parser;

static void skip_space(parser *p)
{
    while (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')
        p->at++;
}

/* If `text` is next, moves behind it and the space around it. */
static bool next_is(parser *p, const char *text)
{
    skip_space(p);
    if (!hvt__scan_text(&p->at, text))
        return false;
    skip_space(p);
    return true;
}

static hvt_status bad_header(const parser *p, const char *expected)
{
    return HVT_FAIL(E_FORMAT, "%s: not a NumPy header: expected %s at '%.40s'", p->path, expected, p->at);
}

static hvt_status read_string(parser *p, char *ret_text, size_t room)
{
    char quote = *p->at;
    const char *end = quote == '\'' || quote == '"' ? strchr(p->at + 1, quote) : NULL;
    size_t n = end ? (size_t)(end - p->at) - 1 : 0;

    if (!end || n >= room)
        return bad_header(p, "a short string");
    memcpy(ret_text, p->at + 1, n);
    ret_text[n] = 0;
    p->at = end + 1;
    return HVT_OK;
}

/* "<f4", "|u1", "f8": byte order, kind, bytes. */
static hvt_status read_descr(parser *p)
{
    char text[sizeof p->npy->type];
    const char *at = text;
    int64_t size = 0;

    HVT_CHECK(*p->at != '[', E_FORMAT, "%s holds structured values, expected plain numbers", p->path);
    HVT_TRY(read_string(p, text, sizeof text));
    snprintf(p->npy->type, sizeof p->npy->type, "%s", text);
    p->order = '=';
    if (*at && strchr("<>|=", *at))
        p->order = *at++;
    p->npy->kind = *at ? *at++ : '?';
    HVT_CHECK(p->npy->kind != 'O', E_FORMAT,
              "%s holds Python objects, which np.array() makes of images that differ in shape; make them "
              "equal, then np.save(FILE, np.stack(LIST))",
              p->path);
    HVT_CHECK(strchr("buifc", p->npy->kind) && hvt__scan_whole(&at, 16, &size) && !*at && size > 0, E_FORMAT,
              "%s holds '%s', expected plain numbers", p->path, text);
    p->npy->size = (int)size;
    p->has_descr = true;
    return HVT_OK;
}

static hvt_status read_order(parser *p)
{
    p->fortran = next_is(p, "True");
    if (!p->fortran && !next_is(p, "False"))
        return bad_header(p, "True or False");
    p->has_order = true;
    return HVT_OK;
}

/* "(10, 3)", "(10,)", "()"; Python 2 appended an L to long numbers. */
static hvt_status read_shape(parser *p)
{
    hvt__npy *n = p->npy;

    if (!next_is(p, "("))
        return bad_header(p, "a tuple");
    for (n->dims = 0; !next_is(p, ")"); n->dims++) {
        int64_t side;

        HVT_CHECK(n->dims < HVT__NPY_DIMS, E_FORMAT, "%s has more than %d dimensions", p->path,
                  HVT__NPY_DIMS);
        if (!hvt__scan_whole(&p->at, INT64_MAX, &side))
            return bad_header(p, "a number");
        next_is(p, "L");
        n->shape[n->dims] = (uint64_t)side;
        if (!next_is(p, ",") && *p->at != ')')
            return bad_header(p, "',' or ')'");
    }
    p->has_shape = true;
    return HVT_OK;
}

static hvt_status read_item(parser *p)
{
    const char *start = p->at;
    char key[20];

    HVT_TRY(read_string(p, key, sizeof key));
    if (!next_is(p, ":"))
        return bad_header(p, "':'");
    if (!strcmp(key, "descr") && !p->has_descr)
        return read_descr(p);
    if (!strcmp(key, "fortran_order") && !p->has_order)
        return read_order(p);
    if (!strcmp(key, "shape") && !p->has_shape)
        return read_shape(p);
    p->at = start;
    return bad_header(p, "the keys descr, fortran_order and shape, each once");
}

static hvt_status read_dict(parser *p)
{
    if (!next_is(p, "{"))
        return bad_header(p, "a dict");
    while (!next_is(p, "}")) {
        HVT_TRY(read_item(p));
        if (!next_is(p, ",") && *p->at != '}')
            return bad_header(p, "',' or '}'");
    }
    if (!p->has_descr || !p->has_order || !p->has_shape)
        return bad_header(p, "descr, fortran_order and shape in front of it");
    return *p->at ? bad_header(p, "nothing more") : HVT_OK;
}

/* Counts the bytes of the data. */
static hvt_status count_bytes(parser *p)
{
    hvt__npy *n = p->npy;
    uint64_t bytes = (uint64_t)n->size;

    for (int i = 0; i < n->dims; i++)
        HVT_CHECK(!__builtin_mul_overflow(bytes, n->shape[i], &bytes) && bytes <= INT64_MAX / 2, E_FORMAT,
                  "%s: its shape exceeds the size of any file", p->path);
    n->bytes = bytes;
    return HVT_OK;
}

hvt_status hvt__npy_parse(const uint8_t *bytes, size_t have, const char *path, hvt__npy *ret_npy)
{
    static const char magic[] = "\x93NUMPY";
    char text[TEXT_MAX + 1];
    hvt__npy npy = {0};
    parser p = {.at = text, .path = path, .npy = &npy};
    size_t prefix, length;

    HVT_CHECK(have < 4 || memcmp(bytes, "PK\3\4", 4), E_FORMAT,
              "%s is an archive of np.savez(): expected one array, as np.save() writes it", path);
    HVT_CHECK(have >= 12 && !memcmp(bytes, magic, 6), E_FORMAT,
              "%s is not a NumPy file: expected it to begin with \\x93NUMPY", path);
    HVT_CHECK(bytes[6] >= 1 && bytes[6] <= 3, E_FORMAT,
              "%s is a NumPy file of version %d.%d, expected 1 to 3", path, bytes[6], bytes[7]);
    prefix = bytes[6] == 1 ? 10 : 12;
    length = bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1)
        length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    HVT_CHECK(length <= TEXT_MAX - prefix, E_FORMAT,
              "%s: its header takes %zu bytes, expected at most %zu: plain numbers need no more", path,
              length, TEXT_MAX - prefix);
    HVT_CHECK(prefix + length <= have, E_FORMAT, "%s ends in its header", path);
    memcpy(text, bytes + prefix, length);
    text[length] = 0;
    if (strlen(text) != length)
        return bad_header(&p, "text");
    npy.header = prefix + length;
    HVT_TRY(read_dict(&p));
    HVT_TRY(count_bytes(&p));
    npy.big = p.order == '>' || (p.order == '=' && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__);
    npy.fortran = p.fortran && npy.dims > 1;
    *ret_npy = npy;
    return HVT_OK;
}

hvt_status hvt__npy_open(const hvt__data_file *f, hvt__npy *ret_npy)
{
    uint8_t head[HVT__NPY_HEADER];
    size_t have = f->bytes < sizeof head ? (size_t)f->bytes : sizeof head;

    HVT_TRY(hvt__data_read(f, 0, have, head, (hvt__data_unit){"header", 0, 1}));
    return hvt__npy_parse(head, have, f->path, ret_npy);
}

hvt_status hvt__npy_check_size(const hvt__data_file *f, const hvt__npy *npy)
{
    HVT_CHECK(f->bytes - npy->header == npy->bytes, E_FORMAT,
              "%s holds %" PRIu64 " bytes behind its header, expected %" PRIu64 " for its shape", f->path,
              f->bytes - npy->header, npy->bytes);
    return HVT_OK;
}
