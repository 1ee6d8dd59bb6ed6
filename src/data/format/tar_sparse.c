/*
 * The maps of sparse members. Old GNU headers have numbers in fields, and blocks of more fields after them;
 * pax headers of formats 0.0 and 0.1 have them as text; format 1.0 has lines before the data. Source: GNU
 * tar's manual, "Storing Sparse Files".
 */
#include "tar_sparse.h"

#include <inttypes.h>

enum { FIELD = 12, IN_HEADER = 4, IN_BLOCK = 21, MAP_MOST = 64 << 20 };

hvt_status hvt__tar_map_add(hvt__tar_map *map, const char *number, size_t digits)
{
    size_t need = map->used + digits + 2;

    HVT_CHECK(need < MAP_MOST, E_FORMAT, "the map of a sparse file has more than %d bytes", MAP_MOST);
    if (need > map->room) {
        char *text = realloc(map->text, 2 * need);

        HVT_CHECK(text, E_MEM, "no memory for the map of a sparse file");
        map->text = text;
        map->room = 2 * need;
    }
    memcpy(map->text + map->used, number, digits);
    memcpy(map->text + map->used + digits, ",", 2);
    map->used += digits + 1;
    return HVT_OK;
}

void hvt__tar_map_clear(hvt__tar_map *map)
{
    free(map->text);
    *map = (hvt__tar_map){0};
}

bool hvt__tar_number(const uint8_t *field, size_t n, uint64_t *ret)
{
    uint64_t value = 0;
    size_t i = 0;

    if (field[0] & 0x80) {
        value = field[0] & 0x7f;
        for (i = 1; i < n; i++) {
            if (value >> 55)
                return false;
            value = value << 8 | field[i];
        }
        *ret = value;
        return true;
    }
    while (i < n && field[i] == ' ')
        i++;
    for (; i < n && field[i] >= '0' && field[i] <= '7'; i++)
        value = value << 3 | (uint64_t)(field[i] - '0');
    *ret = value;
    return i == n || field[i] == 0 || field[i] == ' ';
}

/* Adds pairs of fields up to an empty one. */
static hvt_status add_fields(const hvt__data_file *f, uint64_t at, const uint8_t *field, int pairs,
                             hvt__tar_map *map)
{
    for (int i = 0; i < 2 * pairs && (field[i / 2 * 2 * FIELD] || field[(i / 2 * 2 + 1) * FIELD]); i++) {
        uint64_t number;
        char text[24];

        HVT_CHECK(hvt__tar_number(field + i * FIELD, FIELD, &number), E_FORMAT,
                  "%s: the map of the sparse file at byte %" PRIu64 " is damaged", f->path, at);
        HVT_TRY(hvt__tar_map_add(map, text, (size_t)snprintf(text, sizeof text, "%" PRIu64, number)));
    }
    return HVT_OK;
}

hvt_status hvt__tar_map_old(const hvt__data_file *f, uint64_t at, const uint8_t *h, hvt__tar_map *map,
                            uint64_t *ret_next)
{
    enum { FIRST = 386, MORE = 482, MORE_IN_BLOCK = 504 };
    uint64_t next = at + HVT__TAR_BLOCK;
    uint8_t block[HVT__TAR_BLOCK];
    bool more = h[MORE];

    HVT_TRY(add_fields(f, at, h + FIRST, IN_HEADER, map));
    while (more) {
        HVT_CHECK(next + HVT__TAR_BLOCK <= f->bytes, E_FORMAT,
                  "%s: truncated in the map of the sparse file at byte %" PRIu64, f->path, at);
        HVT_TRY(hvt__data_read(f, next, sizeof block, block, (hvt__data_unit){"byte", next, f->bytes}));
        HVT_TRY(add_fields(f, at, block, IN_BLOCK, map));
        more = block[MORE_IN_BLOCK];
        next += HVT__TAR_BLOCK;
    }
    *ret_next = next;
    return HVT_OK;
}

/* Lines of digits: the number of pairs, then the pairs. */
typedef struct lines {
    uint64_t left, numbers; /* left: numbers still to come; UINT64_MAX: not known yet */
    char digit[24];
    size_t digits;
} lines;

static hvt_status take_digit(lines *l, char c, hvt__tar_map *map)
{
    const char *at = l->digit;
    int64_t pairs;

    if (c >= '0' && c <= '9' && l->digits + 1 < sizeof l->digit) {
        l->digit[l->digits++] = c;
        return HVT_OK;
    }
    l->digit[l->digits] = 0;
    HVT_CHECK(c == '\n' && l->digits, E_FORMAT, "no number");
    if (l->left == UINT64_MAX) {
        HVT_CHECK(hvt__scan_whole(&at, MAP_MOST, &pairs), E_FORMAT, "not a number of parts");
        l->left = 2 * (uint64_t)pairs;
    } else {
        HVT_TRY(hvt__tar_map_add(map, l->digit, l->digits));
        l->left--;
    }
    l->digits = 0;
    return HVT_OK;
}

hvt_status hvt__tar_map_lines(const hvt__data_file *f, uint64_t at, uint64_t bytes, hvt__tar_map *map,
                              uint64_t *ret_next)
{
    lines l = {.left = UINT64_MAX};
    uint8_t block[HVT__TAR_BLOCK];
    uint64_t next = at;

    while (l.left) {
        HVT_CHECK(next + sizeof block <= at + bytes, E_FORMAT,
                  "%s: the map of the sparse file at byte %" PRIu64 " is damaged", f->path, at);
        HVT_TRY(hvt__data_read(f, next, sizeof block, block, (hvt__data_unit){"byte", next, f->bytes}));
        for (size_t i = 0; i < sizeof block && l.left; i++)
            if (take_digit(&l, (char)block[i], map))
                return HVT_FAIL(E_FORMAT, "%s: the map of the sparse file at byte %" PRIu64 " is damaged: %s",
                                f->path, at, hvt_last_error());
        next += sizeof block;
    }
    *ret_next = next;
    return HVT_OK;
}

hvt_status hvt__tar_read_sparse(const hvt__data_file *f, const char *map, uint64_t at, size_t bytes,
                                uint8_t *ret_bytes)
{
    memset(ret_bytes, 0, bytes);
    while (*map) {
        int64_t from, n;
        bool good = hvt__scan_whole(&map, INT64_MAX, &from) && *map == ',';

        map += good;
        good = good && hvt__scan_whole(&map, INT64_MAX, &n) && (!*map || *map == ',');
        HVT_CHECK(good && (uint64_t)from <= bytes && (uint64_t)n <= bytes - (uint64_t)from &&
                      (uint64_t)n <= f->bytes - at,
                  E_FORMAT, "%s: the map of the sparse file at byte %" PRIu64 " does not fit its %zu bytes",
                  f->path, at, bytes);
        map += *map == ',';
        HVT_TRY(hvt__data_read(f, at, (size_t)n, ret_bytes + from, (hvt__data_unit){"byte", at, f->bytes}));
        at += (uint64_t)n;
    }
    return HVT_OK;
}
