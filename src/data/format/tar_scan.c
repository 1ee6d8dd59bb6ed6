/*
 * Reads the members of a tar file and combines them into samples.
 *
 * Supported are ustar, GNU's long names, pax headers and sparse members; a damaged or truncated file, or a
 * link instead of an image, is an error that names the member. Members of other kinds (.json, .txt) are
 * skipped. Blocks of zeros may stand between members, as in files joined by cat, but must stand at the end,
 * so that a file that was truncated between two members is noticed. Sources: POSIX pax, "ustar Interchange
 * Format"; GNU tar, "Basic Tar Format"; webdataset/tariterators.py for how members make samples.
 */
#include "entries.h"
#include "tar_sparse.h"

#include <inttypes.h>
#include <strings.h>

enum { WINDOW = 8 * HVT__TAR_BLOCK, EXTENSION_MOST = 64 << 20, LABEL_MOST = WINDOW };

typedef enum kind { OTHER, PICTURE, PIXELS, LABEL, MASK, DOTTED_LABEL } kind;

/* The contents of a header. */
typedef struct member {
    char name[PATH_MAX];
    char type;
    bool sparse;
    uint64_t at, bytes; /* its contents */
    uint64_t size;      /* size of a sparse file, including holes */
    uint64_t next;      /* offset of the next header */
} member;

typedef struct sample {
    hvt__tar_sample s; /* .bytes is 0 until it has an image */
    uint32_t key_bytes;
} sample;

typedef struct scan {
    const hvt__data_file *file;
    uint64_t at; /* of the next header */
    uint8_t window[WINDOW];
    uint64_t window_at;
    size_t window_bytes;

    /* from headers about the member that follows them */
    char long_name[PATH_MAX];
    bool has_name, has_size, sparse, has_real_name, has_lines; /* lines: the map precedes the data */
    uint64_t size, real_size;
    hvt__tar_map map;

    sample *samples;
    uint32_t count, room;
    char *names;
    size_t name_bytes, name_room;
    uint32_t *table; /* [slots] hash table by key: number of a sample + 1; 0: free */
    uint32_t slots;
} scan;

/* ---- the file ---- */

/* Reads up to WINDOW bytes of the file, which must exist. */
static hvt_status look_at(scan *s, uint64_t at, size_t bytes, const uint8_t **ret_bytes)
{
    uint64_t left = s->file->bytes - at;

    if (at < s->window_at || at + bytes > s->window_at + s->window_bytes) {
        s->window_at = at;
        s->window_bytes = left < WINDOW ? (size_t)left : WINDOW;
        HVT_TRY(hvt__data_read(s->file, at, s->window_bytes, s->window,
                               (hvt__data_unit){"byte", at, s->file->bytes}));
    }
    *ret_bytes = s->window + (at - s->window_at);
    return HVT_OK;
}

/* True if the header's checksum is right: the sum of its bytes, with its own field as blanks. Old programs
 * took bytes as signed. */
static bool sum_is_right(const uint8_t *h)
{
    uint64_t want, sum = 0;
    int64_t sum_of_signed = 0;

    for (int i = 0; i < HVT__TAR_BLOCK; i++) {
        uint8_t byte = i >= 148 && i < 156 ? ' ' : h[i];
        sum += byte;
        sum_of_signed += (int8_t)byte;
    }
    return hvt__tar_number(h + 148, 8, &want) && (want == sum || (int64_t)want == sum_of_signed);
}

static bool is_zero(const uint8_t *block)
{
    return block[0] == 0 && !memcmp(block, block + 1, HVT__TAR_BLOCK - 1);
}

/* ---- headers ---- */

static hvt_status set_long_name(scan *s, const char *name, size_t bytes)
{
    bytes = strnlen(name, bytes);
    HVT_CHECK(bytes < sizeof s->long_name, E_FORMAT,
              "%s: a name of %zu bytes at byte %" PRIu64 " is too long", s->file->path, bytes, s->at);
    memcpy(s->long_name, name, bytes);
    s->long_name[bytes] = 0;
    s->has_name = true;
    return HVT_OK;
}

static hvt_status read_size(const scan *s, const char *value, size_t bytes, uint64_t *ret_size)
{
    const char *at = value;
    int64_t size;

    HVT_CHECK(hvt__scan_whole(&at, INT64_MAX, &size) && at == value + bytes, E_FORMAT,
              "%s: the pax header at byte %" PRIu64 " has the size '%.20s'", s->file->path, s->at, value);
    *ret_size = (uint64_t)size;
    return HVT_OK;
}

/* key: the part after "GNU.sparse." */
static hvt_status read_sparse_record(scan *s, const char *key, const char *value, size_t bytes)
{
    s->sparse = true;
    if (!strcmp(key, "name")) {
        s->has_real_name = true;
        return set_long_name(s, value, bytes);
    }
    if (!strcmp(key, "size") || !strcmp(key, "realsize"))
        return read_size(s, value, bytes, &s->real_size);
    if (!strcmp(key, "offset") || !strcmp(key, "numbytes"))
        return hvt__tar_map_add(&s->map, value, bytes);
    if (!strcmp(key, "map")) {
        hvt__tar_map_clear(&s->map);
        return hvt__tar_map_add(&s->map, value, bytes);
    }
    s->has_lines |= !strcmp(key, "major") && !strcmp(value, "1");
    return HVT_OK;
}

/* "27 path=some/long/name.jpg\n" */
static hvt_status read_pax_record(scan *s, const char *key, const char *value, size_t bytes)
{
    if (!strcmp(key, "path"))
        return s->has_real_name ? HVT_OK : set_long_name(s, value, bytes);
    if (!strncmp(key, "GNU.sparse.", 11))
        return read_sparse_record(s, key + 11, value, bytes);
    if (strcmp(key, "size"))
        return HVT_OK;
    s->has_size = true;
    return read_size(s, value, bytes, &s->size);
}

/* text[bytes] is followed by a zero. */
static hvt_status read_pax(scan *s, char *text, size_t bytes)
{
    char *end = text + bytes;

    while (text < end) {
        const char *at = text;
        int64_t length;
        bool good = hvt__scan_whole(&at, end - text, &length) && *at == ' ' && length > at - text;
        char *last = text + (good ? length : 1) - 1,
             *equals = good ? memchr(at, '=', (size_t)(last - at)) : NULL;

        HVT_CHECK(good && *last == '\n' && equals, E_FORMAT,
                  "%s: the pax header at byte %" PRIu64 " is damaged", s->file->path, s->at);
        *last = *equals = 0;
        HVT_TRY(read_pax_record(s, at + 1, equals + 1, (size_t)(last - equals) - 1));
        text = last + 1;
    }
    return HVT_OK;
}

/* Reads a header that describes the next member (a long name or pax records). */
static hvt_status read_extension(scan *s, const member *m)
{
    size_t bytes = (size_t)m->bytes;
    char *text;
    hvt_status st;

    HVT_CHECK(m->bytes <= EXTENSION_MOST, E_FORMAT,
              "%s: a header of %" PRIu64 " bytes at byte %" PRIu64 ", expected at most %d", s->file->path,
              m->bytes, s->at, EXTENSION_MOST);
    text = malloc(bytes + 1);
    HVT_CHECK(text, E_MEM, "no memory for a header of %zu bytes", bytes);
    st = hvt__data_read(s->file, m->at, bytes, text, (hvt__data_unit){"byte", m->at, s->file->bytes});
    text[bytes] = 0;
    if (st == HVT_OK)
        st = m->type == 'L' ? set_long_name(s, text, bytes) : read_pax(s, text, bytes);
    free(text);
    return st;
}

static void read_name(const scan *s, const uint8_t *h, char ret_name[PATH_MAX])
{
    const char *name = (const char *)h, *prefix = (const char *)h + 345;
    bool has_prefix = !memcmp(h + 257, "ustar", 6) && *prefix;

    if (s->has_name)
        snprintf(ret_name, PATH_MAX, "%s", s->long_name);
    else
        snprintf(ret_name, PATH_MAX, "%.*s%s%.100s", has_prefix ? 155 : 0, prefix, has_prefix ? "/" : "",
                 name);
}

/* Reads the header at s->at, and moves s->at to the next one. */
static hvt_status read_member(scan *s, const uint8_t *h, member *ret_member)
{
    bool has_contents = h[156] < '1' || h[156] > '6'; /* links, devices and folders have none */
    uint64_t left;

    HVT_CHECK(sum_is_right(h) && hvt__tar_number(h + 124, 12, &ret_member->bytes), E_FORMAT,
              "%s: no tar header at byte %" PRIu64 ": it is damaged, compressed or not a tar file",
              s->file->path, s->at);
    ret_member->type = (char)h[156];
    ret_member->sparse = s->sparse || h[156] == 'S';
    ret_member->at = s->at + HVT__TAR_BLOCK;
    ret_member->size = s->real_size;
    read_name(s, h, ret_member->name);
    if (h[156] == 'S') {
        HVT_CHECK(hvt__tar_number(h + 483, 12, &ret_member->size), E_FORMAT,
                  "%s: the size of '%s' is not a number", s->file->path, ret_member->name);
        hvt__tar_map_clear(&s->map);
        HVT_TRY(hvt__tar_map_old(s->file, s->at, h, &s->map, &ret_member->at));
    }
    if (s->has_size && !strchr("xgLK", h[156] ? h[156] : '0'))
        ret_member->bytes = s->size;
    if (!has_contents)
        ret_member->bytes = 0;
    left = s->file->bytes - ret_member->at;
    HVT_CHECK(ret_member->bytes <= left, E_FORMAT,
              "%s: truncated in '%s': it has %" PRIu64 " of its %" PRIu64 " bytes", s->file->path,
              ret_member->name, left, ret_member->bytes);
    ret_member->next =
        ret_member->at + (ret_member->bytes + HVT__TAR_BLOCK - 1) / HVT__TAR_BLOCK * HVT__TAR_BLOCK;
    return HVT_OK;
}

/* ---- samples ---- */

/* The kind of a member, and the length of the name that it shares with its sample's other members. */
static kind kind_of(const char *name, uint32_t *ret_key_bytes)
{
    const char *slash = strrchr(name, '/'), *base = slash ? slash + 1 : name, *dot = strchr(base, '.');
    const char *last = strrchr(base, '.');

    if (!dot || dot == base) /* no suffix; or a hidden file, as macOS adds */
        return OTHER;
    *ret_key_bytes = (uint32_t)(dot - name);
    if (!strcasecmp(dot, ".cls"))
        return LABEL;
    if (!strcasecmp(dot, ".mask.png"))
        return MASK;
    if (!strcasecmp(dot, ".npy"))
        return PIXELS;
    if (dot == last && hvt__is_picture_name(dot))
        return PICTURE;
    return strcasecmp(last, ".cls") ? OTHER : DOTTED_LABEL;
}

/* The slot of this key, or the free one for it. */
static uint32_t slot_of(const scan *s, const char *key, uint32_t bytes)
{
    uint32_t slot = (uint32_t)hvt__hash(HVT_HASH_INIT, key, bytes) & (s->slots - 1);

    for (;; slot = (slot + 1) & (s->slots - 1)) {
        const sample *have = s->table[slot] ? &s->samples[s->table[slot] - 1] : NULL;
        if (!have || (have->key_bytes == bytes && !memcmp(s->names + have->s.name, key, bytes)))
            return slot;
    }
}

static hvt_status grow(scan *s)
{
    uint32_t room = s->room ? 2 * s->room : 1024;
    sample *samples = realloc(s->samples, room * sizeof *samples);
    uint32_t *table = calloc(2 * (size_t)room, sizeof *table);

    s->samples = samples ? samples : s->samples;
    if (!samples || !table || room > UINT32_MAX / 4) {
        free(table);
        return HVT_FAIL(E_MEM, "no memory for an index of %u samples", room);
    }
    free(s->table);
    s->table = table;
    s->slots = 2 * room;
    s->room = room;
    for (uint32_t i = 0; i < s->count; i++)
        s->table[slot_of(s, s->names + s->samples[i].s.name, s->samples[i].key_bytes)] = i + 1;
    return HVT_OK;
}

static hvt_status keep_name(scan *s, const char *name, uint32_t *ret_at)
{
    size_t bytes = strlen(name) + 1, room = 2 * (s->name_bytes + bytes);

    if (s->name_bytes + bytes > s->name_room) {
        char *names = realloc(s->names, room);
        HVT_CHECK(names && room <= UINT32_MAX, E_MEM, "no memory for %zu bytes of names", room);
        s->names = names;
        s->name_room = room;
    }
    memcpy(s->names + s->name_bytes, name, bytes);
    *ret_at = (uint32_t)s->name_bytes;
    s->name_bytes += bytes;
    return HVT_OK;
}

/* The sample that a member belongs to. */
static hvt_status find_sample(scan *s, const member *m, uint32_t key_bytes, sample **ret_sample)
{
    uint32_t slot, name;

    if (s->count == s->room)
        HVT_TRY(grow(s));
    slot = slot_of(s, m->name, key_bytes);
    if (!s->table[slot]) {
        HVT_TRY(keep_name(s, m->name, &name));
        s->samples[s->count] = (sample){.s = {.label = -1, .name = name}, .key_bytes = key_bytes};
        s->table[slot] = ++s->count;
    }
    *ret_sample = &s->samples[s->table[slot] - 1];
    return HVT_OK;
}

/* Stores the map of a sparse image after its name. */
static hvt_status add_map(scan *s, const member *m, sample *to)
{
    if (s->has_lines) {
        hvt__tar_map_clear(&s->map);
        HVT_TRY(hvt__tar_map_lines(s->file, m->at, m->bytes, &s->map, &to->s.at));
    }
    return keep_name(s, s->map.text ? s->map.text : "", &to->s.map);
}

static hvt_status add_image(scan *s, const member *m, kind k, sample *to)
{
    uint64_t bytes = m->sparse ? m->size : m->bytes;

    HVT_CHECK(!to->s.bytes, E_FORMAT, "%s: sample '%.*s' has two images, one of them '%s'", s->file->path,
              (int)to->key_bytes, m->name, m->name);
    HVT_CHECK(bytes > 0 && bytes <= UINT32_MAX, E_FORMAT,
              "%s: image '%s' has %" PRIu64 " bytes, expected 1 to %u", s->file->path, m->name, bytes,
              UINT32_MAX);
    HVT_TRY(keep_name(s, m->name, &to->s.name)); /* this name begins with the same key */
    to->s.at = m->at;
    to->s.bytes = (uint32_t)bytes;
    to->s.pixels = k == PIXELS;
    return m->sparse ? add_map(s, m, to) : HVT_OK;
}

static hvt_status add_mask(const scan *s, const member *m, sample *to)
{
    HVT_CHECK(!to->s.mask_bytes, E_FORMAT, "%s: '%s' occurs twice", s->file->path, m->name);
    HVT_CHECK(m->bytes > 0 && m->bytes <= UINT32_MAX, E_FORMAT,
              "%s: mask '%s' has %" PRIu64 " bytes, expected 1 to %u", s->file->path, m->name, m->bytes,
              UINT32_MAX);
    to->s.mask_at = m->at;
    to->s.mask_bytes = (uint32_t)m->bytes;
    return HVT_OK;
}

/* Skips what programs pad with: blanks, zeros, and a byte order mark at the start. */
static const char *skip_padding(const char *at, const char *end)
{
    if (end - at >= 3 && !memcmp(at, "\xef\xbb\xbf", 3))
        at += 3;
    while (at < end && (!*at || strchr(" \t\r\n\v\f", *at)))
        at++;
    return at;
}

static hvt_status add_label(scan *s, const member *m, sample *to)
{
    char text[LABEL_MOST + 1] = "";
    const char *at = text, *end = text;
    const uint8_t *bytes = NULL;
    int64_t label;

    HVT_CHECK(to->s.label < 0, E_FORMAT, "%s: '%s' occurs twice", s->file->path, m->name);
    if (m->bytes <= LABEL_MOST) {
        HVT_TRY(look_at(s, m->at, (size_t)m->bytes, &bytes));
        memcpy(text, bytes, (size_t)m->bytes);
        end = text + m->bytes;
    }
    at = skip_padding(at, end);
    HVT_CHECK(hvt__scan_whole(&at, INT_MAX - 1, &label) && skip_padding(at, end) == end, E_FORMAT,
              "%s: '%s' holds '%.20s', expected a label, 0 or more", s->file->path, m->name, text);
    to->s.label = (int32_t)label;
    return HVT_OK;
}

static hvt_status add_member(scan *s, const member *m)
{
    uint32_t key_bytes = 0;
    kind k = kind_of(m->name, &key_bytes);
    sample *to = NULL;

    if (k == OTHER || m->type == '5' || m->name[strlen(m->name) - 1] == '/')
        return HVT_OK;
    HVT_CHECK(k != DOTTED_LABEL, E_FORMAT,
              "%s: '%s': a sample's name ends at the first dot of its file's name, expected no other",
              s->file->path, m->name);
    HVT_CHECK(m->type == '0' || m->type == '7' || m->type == 0 || m->type == 'S', E_FORMAT,
              "%s: '%s' is %s, expected a plain file", s->file->path, m->name,
              m->type == '1' || m->type == '2' ? "a link" : "not a file");
    HVT_CHECK(!m->sparse || (k != LABEL && k != MASK), E_FORMAT, "%s: '%s' is sparse, expected a plain file",
              s->file->path, m->name);
    HVT_TRY(find_sample(s, m, key_bytes, &to));
    return k == LABEL ? add_label(s, m, to) : k == MASK ? add_mask(s, m, to) : add_image(s, m, k, to);
}

static hvt_status read_members(scan *s)
{
    const uint64_t end = s->file->bytes;
    bool ended = false; /* by a block of zeros */

    while (s->at + HVT__TAR_BLOCK <= end) {
        const uint8_t *h = NULL;
        member m;

        HVT_TRY(look_at(s, s->at, HVT__TAR_BLOCK, &h));
        ended = is_zero(h);
        if (ended) {
            s->at += HVT__TAR_BLOCK;
            continue;
        }
        HVT_TRY(read_member(s, h, &m));
        if (m.type == 'x' || m.type == 'L') {
            HVT_TRY(read_extension(s, &m));
        } else if (m.type != 'g' && m.type != 'K') {
            HVT_TRY(add_member(s, &m));
            s->has_name = s->has_size = s->sparse = s->has_real_name = s->has_lines = false;
            hvt__tar_map_clear(&s->map);
        }
        s->at = m.next;
    }
    HVT_CHECK(ended && s->at == end, E_FORMAT,
              "%s: ends at byte %" PRIu64
              " without the blocks of zeros that end a tar file: it was truncated",
              s->file->path, end);
    return HVT_OK;
}

/* ---- the index ---- */

static int by_place(const void *a, const void *b)
{
    const sample *x = a, *y = b;

    return (x->s.at > y->s.at) - (x->s.at < y->s.at);
}

/* Sets the head's counts. Labels are preferred to masks. */
static hvt_status check_samples(scan *s, hvt__tar_index *head)
{
    uint32_t labelled = 0, masked = 0;
    const sample *odd = NULL, *bare = NULL;

    HVT_CHECK(s->count, E_FORMAT, "%s: holds no image: expected NAME.npy or a picture (" HVT__PICTURES ")",
              s->file->path);
    for (uint32_t i = 0; i < s->count; i++) {
        const sample *x = &s->samples[i];
        HVT_CHECK(x->s.bytes, E_FORMAT,
                  "%s: '%s' has no image beside it: .npy or a picture (" HVT__PICTURES ")", s->file->path,
                  s->names + x->s.name);
        labelled += x->s.label >= 0;
        masked += x->s.mask_bytes > 0;
        if (x->s.label < 0)
            odd = x;
        if (!x->s.mask_bytes)
            bare = x;
    }
    HVT_CHECK(!labelled || !odd, E_FORMAT, "%s: '%s' has no label beside it, '%.*s.cls'", s->file->path,
              s->names + odd->s.name, (int)odd->key_bytes, s->names + odd->s.name);
    HVT_CHECK(labelled || !masked || !bare, E_FORMAT, "%s: '%s' has no mask beside it, '%.*s.mask.png'",
              s->file->path, s->names + bare->s.name, (int)bare->key_bytes, s->names + bare->s.name);
    for (uint32_t i = 0; i < s->count && labelled; i++)
        s->samples[i].s.mask_at = s->samples[i].s.mask_bytes = 0;
    head->labelled = labelled;
    head->masked = labelled ? 0 : masked;
    return HVT_OK;
}

/* Moves a text to the end of the index's names; returns its offset. */
static uint32_t move_text(const scan *s, uint32_t from, char *names, uint32_t *used)
{
    const char *text = s->names + from;
    uint32_t at = *used;

    memcpy(names + at, text, strlen(text) + 1);
    *used += (uint32_t)strlen(text) + 1;
    return at;
}

/* Makes the final index: in order, and without the names of labels. */
static hvt_status make_index(scan *s, hvt__tar_index **ret_index)
{
    hvt__tar_index head = {.count = s->count}, *x;
    hvt__tar_sample *to;
    char *names;

    HVT_TRY(check_samples(s, &head));
    qsort(s->samples, s->count, sizeof *s->samples, by_place);
    for (uint32_t i = 0; i < s->count; i++) {
        const hvt__tar_sample *one = &s->samples[i].s;

        head.name_bytes += (uint32_t)strlen(s->names + one->name) + 1;
        head.name_bytes += one->map ? (uint32_t)strlen(s->names + one->map) + 1 : 0;
        if (s->samples[i].s.label >= (int32_t)head.classes)
            head.classes = (uint32_t)s->samples[i].s.label + 1;
    }
    x = malloc(hvt__tar_index_bytes(&head));
    HVT_CHECK(x, E_MEM, "no memory for an index of %u samples", s->count);
    *x = head;
    to = (hvt__tar_sample *)(x + 1);
    names = (char *)(to + x->count);
    head.name_bytes = 0;
    for (uint32_t i = 0; i < s->count; i++) {
        to[i] = s->samples[i].s;
        to[i].name = move_text(s, to[i].name, names, &head.name_bytes);
        if (to[i].map)
            to[i].map = move_text(s, to[i].map, names, &head.name_bytes);
    }
    *ret_index = x;
    return HVT_OK;
}

hvt_status hvt__tar_scan(const hvt__data_file *f, hvt__tar_index **ret_index)
{
    scan *s = calloc(1, sizeof *s);
    hvt_status st;

    HVT_CHECK(s, E_MEM, "no memory to read %s", f->path);
    s->file = f;
    st = read_members(s);
    if (st == HVT_OK)
        st = make_index(s, ret_index);
    free(s->samples);
    free(s->names);
    free(s->table);
    hvt__tar_map_clear(&s->map);
    free(s);
    return st;
}
