/*
 * safetensors: [u64 length][JSON header][data]. The reader checks the whole header before it uses any data,
 * as the reference implementation does (huggingface/safetensors, tensor.rs): the tensors, sorted by offset,
 * fill the data section without holes or overlaps, and the size of each matches its shape. Data is read, not
 * mapped: if the file shrinks meanwhile, that is an error and not a signal.
 *
 * The writer uses the reference writer's layout: types of wide alignment first, then by name; the header
 * padded with spaces to 8 bytes; "__metadata__" first. Our files also have a hash of the data section,
 * DIGEST, which loading verifies, and a hash of the header itself, SEAL, which opening verifies.
 */
#define _GNU_SOURCE /* memmem */

#include "checkpoint_impl.h"
#include "train/process/process_impl.h"
#include "device/half.h"
#include "base_impl.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <math.h>
#include <unistd.h>

enum { HEADER_MOST = 100000000 };

/* Types by name. The first are those of hvt_st_type, in its order; all others are HVT_ST_OTHER. */
static const struct {
    const char *name;
    int bits;
} types[] = {
    {"I64", 64},        {"F32", 32},    {"BF16", 16},   {"F16", 16},    {"F64", 64},    {"U64", 64},
    {"C64", 64},        {"I32", 32},    {"U32", 32},    {"I16", 16},    {"U16", 16},    {"I8", 8},
    {"U8", 8},          {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

/* ---- reading ---- */

static hvt_status read_at(hvt_st *st, void *buf, size_t bytes, uint64_t at)
{
    char *p = buf;

    while (bytes) {
        ssize_t got = pread(st->fd, p, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        HVT_CHECK(got >= 0, E_IO, "%s: %s", st->path, strerror(errno));
        HVT_CHECK(got > 0, E_FORMAT, "%s: ends at byte %" PRIu64 ", %zu bytes too early", st->path, at,
                  bytes);
        p += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
        hvt__progressed();
    }
    return HVT_OK;
}

/* One entry of the header: {"dtype": ..., "shape": [...], "data_offsets": [first, end]}. */
static hvt_status read_entry(const hvt_st *st, const char *name, json_t *entry, hvt_st_tensor *t)
{
    const char *dtype;
    json_t *shape;
    json_int_t first, end;
    uint64_t count = 1, bits;
    size_t k;

    HVT_CHECK(json_unpack(entry, "{s:s, s:o, s:[I, I!]}", "dtype", &dtype, "shape", &shape, "data_offsets",
                          &first, &end) == 0 &&
                  json_is_array(shape),
              E_FORMAT, "%s: tensor %s needs dtype, shape and two data_offsets", st->path, name);
    HVT_CHECK(json_array_size(shape) <= HVT_ST_DIMS, E_FORMAT,
              "%s: tensor %s has %zu dimensions, expected at most %d", st->path, name, json_array_size(shape),
              HVT_ST_DIMS);
    HVT_CHECK(0 <= first && first <= end && (uint64_t)end <= st->bytes, E_FORMAT,
              "%s: tensor %s has the bytes %lld to %lld of %" PRIu64, st->path, name, (long long)first,
              (long long)end, st->bytes);
    for (k = 0; k < HVT_LEN(types) && strcmp(types[k].name, dtype); k++)
        ;
    HVT_CHECK(k < HVT_LEN(types), E_FORMAT, "%s: tensor %s has the unknown dtype '%.20s'", st->path, name,
              dtype);
    *t = (hvt_st_tensor){.name = name,
                         .type = k < HVT_ST_OTHER ? (hvt_st_type)k : HVT_ST_OTHER,
                         .type_name = types[k].name,
                         .ndim = (int)json_array_size(shape),
                         .first = (uint64_t)first,
                         .end = (uint64_t)end};
    for (int i = 0; i < t->ndim; i++) {
        json_t *d = json_array_get(shape, (size_t)i);
        t->dim[i] = json_integer_value(d);
        HVT_CHECK(json_is_integer(d) && t->dim[i] >= 0, E_FORMAT,
                  "%s: tensor %s: dimension %d is not a whole number >= 0", st->path, name, i);
        HVT_CHECK(!__builtin_mul_overflow(count, (uint64_t)t->dim[i], &count), E_FORMAT,
                  "%s: tensor %s has more elements than fit in 64 bits", st->path, name);
    }
    HVT_CHECK(!__builtin_mul_overflow(count, (uint64_t)types[k].bits, &bits) && bits % 8 == 0 &&
                  bits / 8 == t->end - t->first,
              E_FORMAT, "%s: tensor %s has %" PRIu64 " elements of %s, but %" PRIu64 " bytes", st->path, name,
              count, dtype, t->end - t->first);
    t->count = (size_t)count;
    return HVT_OK;
}

static int by_offset(const void *a, const void *b)
{
    const hvt_st_tensor *x = a, *y = b;

    if (x->first != y->first)
        return x->first < y->first ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty ones first */
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const hvt_st_tensor *)a)->name, ((const hvt_st_tensor *)b)->name);
}

static hvt_status read_entries(hvt_st *st)
{
    const char *name;
    json_t *entry;
    uint64_t at = 0;

    st->tensor = calloc(json_object_size(st->header) + 1, sizeof *st->tensor);
    HVT_CHECK(st->tensor, E_MEM, "%s: no memory for %zu tensors", st->path, json_object_size(st->header));
    json_object_foreach(st->header, name, entry)
    {
        if (!strcmp(name, "__metadata__")) {
            const char *key;
            json_t *value;
            HVT_CHECK(json_is_object(entry), E_FORMAT, "%s: __metadata__ is not an object", st->path);
            json_object_foreach(entry, key, value)
                HVT_CHECK(json_is_string(value), E_FORMAT, "%s: metadata %s is not text", st->path, key);
            st->meta = entry;
            continue;
        }
        HVT_TRY(read_entry(st, name, entry, &st->tensor[st->n++]));
    }
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_offset);
    for (int i = 0; i < st->n; i++) {
        HVT_CHECK(st->tensor[i].first == at, E_FORMAT,
                  "%s: tensor %s begins at byte %" PRIu64 ", but the one before ends at %" PRIu64, st->path,
                  st->tensor[i].name, st->tensor[i].first, at);
        at = st->tensor[i].end;
    }
    HVT_CHECK(at == st->bytes, E_FORMAT, "%s: the tensors have %" PRIu64 " bytes, the file has %" PRIu64,
              st->path, at, st->bytes);
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
    return HVT_OK;
}

/* True for files of torch.save(): a zip archive, or before PyTorch 1.6 a pickle. */
static bool is_pickled(uint64_t head)
{
    uint8_t version = (uint8_t)(head >> 8);

    return (uint32_t)head == 0x04034b50 /* "PK\3\4" */ ||
           ((uint8_t)head == 0x80 && version >= 2 && version <= 5);
}

static hvt_status refuse_pickled(const hvt_st *st)
{
    char to[PATH_MAX], from_word[HVT_SHELL_WORD], to_word[HVT_SHELL_WORD];
    const char *slash = strrchr(st->path, '/'), *dot = strrchr(st->path, '.');
    size_t len = dot && dot > (slash ? slash + 1 : st->path) ? (size_t)(dot - st->path) : strlen(st->path);

    HVT_CHECK(
        !dot || strcmp(dot, ".pt2"), E_FORMAT,
        "%s is a model with its weights, expected weights in safetensors: --model %s without --init starts "
        "from them",
        st->path, st->path);
    snprintf(to, sizeof to, "%.*s.safetensors", (int)len, st->path);
    return HVT_FAIL(
        E_FORMAT,
        "%s is in the format of torch.save, expected safetensors; this converts it for --init: python3 -c "
        "\"import sys, torch; from safetensors.torch import save_file; x = torch.load(sys.argv[1], "
        "map_location='cpu', "
        "weights_only=True); x = next((x[k] for k in ('state_dict', 'model_state_dict', 'model') if k in x), "
        "x); save_file({k: v.contiguous().clone() for k, v in x.items() if torch.is_tensor(v)}, "
        "sys.argv[2])\" %s %s",
        st->path, hvt__shell_word(st->path, from_word), hvt__shell_word(to, to_word));
}

/* The kind of a file with these first bytes; NULL if unknown. */
static const char *guess(const uint8_t *head, size_t bytes)
{
    static const struct {
        const char *what, *magic;
        size_t bytes, at;
    } kinds[] = {{"a JPEG picture", "\xff\xd8\xff", 3},
                 {"a WebP picture", "WEBP", 4, 8},
                 {"a HEIC picture", "ftyphei", 7, 4},
                 {"a GIF picture", "GIF8", 4},
                 {"a PNG picture", "\x89PNG", 4},
                 {"a NumPy array", "\x93NUMPY", 6},
                 {"an HDF5 file, as Keras writes", "\x89HDF", 4},
                 {"a GGUF file", "GGUF", 4},
                 {"a gzip archive", "\x1f\x8b", 2},
                 {"JSON", "{", 1}};
    const char *stand_in = hvt__stand_in(head, bytes);

    if (stand_in)
        return stand_in;
    for (size_t i = 0; i < HVT_LEN(kinds); i++)
        if (bytes >= kinds[i].at + kinds[i].bytes &&
            !memcmp(head + kinds[i].at, kinds[i].magic, kinds[i].bytes))
            return kinds[i].what;
    return NULL;
}

/* Refuses a file whose first bytes are not the size of a header. */
static hvt_status refuse_foreign(hvt_st *st, uint64_t file)
{
    uint8_t head[HVT__HEAD] = {0};
    size_t n = file < sizeof head ? file : sizeof head;
    const char *what;
    char hex[40] = "";

    HVT_TRY(read_at(st, head, n, 0));
    what = guess(head, n);
    HVT_CHECK(!what, E_FORMAT, "%s is not a safetensors file: it seems to be %s", st->path, what);
    for (size_t i = 0; i < n && i < 8; i++)
        snprintf(hex + 3 * i, sizeof hex - 3 * i, " %02x", head[i]);
    return HVT_FAIL(E_FORMAT,
                    "%s is not a safetensors file: it begins with%s, which is not the size of a header",
                    st->path, hex);
}

/* The seal's 16 hex digits in the text of a header; NULL if there is none. */
static char *find_seal(char *text, size_t bytes)
{
    static const char key[] = "\"" HVT_ST_SEAL "\":\"";
    char *at = memmem(text, bytes, key, sizeof key - 1);
    size_t end = at ? (size_t)(at - text) + sizeof key - 1 : 0;

    return at && end + 16 <= bytes ? text + end : NULL;
}

/* The hash of a header without its seal; hex: the seal's place. */
static uint64_t seal_of(const char *text, size_t bytes, char *hex)
{
    memset(hex, '0', 16);
    return hvt__hash(HVT_HASH_INIT, text, bytes);
}

/* Checks the header against its seal. Headers of other programs, and of earlier releases, have none. */
static hvt_status check_seal(const hvt_st *st, char *text, size_t bytes)
{
    char *hex = find_seal(text, bytes), said[17] = "", now[17];

    if (!hex)
        return HVT_OK;
    memcpy(said, hex, 16);
    snprintf(now, sizeof now, "%016" PRIx64, seal_of(text, bytes, hex));
    HVT_CHECK(!strcmp(said, now), E_FORMAT, "%s: damaged: its header hashes to %s, its seal says %s",
              st->path, now, said);
    return HVT_OK;
}

static hvt_status read_header(hvt_st *st, uint64_t file)
{
    uint64_t bytes;
    char *text = NULL;
    json_error_t why;
    hvt_status s = HVT_OK;

    HVT_CHECK(file, E_FORMAT, "%s is empty, expected a safetensors file", st->path);
    HVT_CHECK(file >= 8, E_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file", st->path,
              file);
    HVT_TRY(read_at(st, &bytes, 8, 0));
    bytes = le64toh(bytes);
    if (bytes > file - 8 && is_pickled(bytes))
        return hvt__pass(refuse_pickled(st), __FILE__, __LINE__, "refuse_pickled");
    if (bytes > HEADER_MOST || bytes < 2)
        return hvt__pass(refuse_foreign(st, file), __FILE__, __LINE__, "refuse_foreign");
    HVT_CHECK(bytes <= file - 8, E_FORMAT,
              "%s: truncated: a header of %" PRIu64 " bytes in a file of %" PRIu64, st->path, bytes, file);
    text = malloc(bytes);
    HVT_CHECK(text, E_MEM, "%s: no memory for a header of %" PRIu64 " bytes", st->path, bytes);
    HVT_TRY_OR(done, read_at(st, text, bytes, 8));
    HVT_CHECK_OR(done, text[0] == '{', E_FORMAT,
                 "%s: not a safetensors file: the header does not begin with '{'", st->path);
    st->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    for (char *c = why.text; !st->header && *c; c++) /* quotes printable text only */
        *c = *c < ' ' || *c > '~' ? '?' : *c;
    HVT_CHECK_OR(done, st->header, E_FORMAT, "%s: header: %s at byte %d", st->path, why.text, why.position);
    HVT_TRY_OR(done, check_seal(st, text, bytes));
    st->data = 8 + bytes;
    st->bytes = file - st->data;
    HVT_TRY_OR(done, read_entries(st));
done:
    free(text);
    return s;
}

hvt_status hvt__st_open(const char *path, hvt_st **ret_st)
{
    hvt_st *st = calloc(1, sizeof *st);
    uint64_t bytes;
    hvt_status s;

    HVT_CHECK(st, E_MEM, "no memory to open %s", path);
    st->fd = -1;
    st->path = strdup(path);
    HVT_CHECK_OR(fail, st->path, E_MEM, "no memory to open %s", path);
    HVT_TRY_OR(fail, hvt__open_regular(path, &st->fd, &bytes));
    HVT_TRY_OR(fail, read_header(st, bytes));
    *ret_st = st;
    return HVT_OK;
fail:
    hvt__st_close(&st);
    return s;
}

void hvt__st_close(hvt_st **st)
{
    if (!*st)
        return;
    if ((*st)->fd >= 0)
        close((*st)->fd);
    json_decref((*st)->header);
    free((*st)->tensor);
    free((*st)->path);
    free(*st);
    *st = NULL;
}

const char *hvt__st_meta(const hvt_st *st, const char *key)
{
    return json_string_value(json_object_get(st->meta, key));
}

const hvt_st_tensor *hvt__st_find(const hvt_st *st, const char *name)
{
    hvt_st_tensor key = {.name = name};

    return bsearch(&key, st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
}

/* Reads bytes of the data section, from memory after hvt__st_read(). */
static hvt_status read_data(hvt_st *st, void *buf, size_t bytes, uint64_t at)
{
    if (!st->content)
        return read_at(st, buf, bytes, st->data + at);
    memcpy(buf, st->content + at, bytes);
    return HVT_OK;
}

hvt_status hvt__st_f32(hvt_st *st, const hvt_st_tensor *t, float *ret)
{
    uint16_t half[4096];

    if (t->type == HVT_ST_F32)
        return read_data(st, ret, t->count * 4, t->first);
    HVT_CHECK(t->type == HVT_ST_F16 || t->type == HVT_ST_BF16, E_FORMAT,
              "%s: tensor %s is %s, expected F32, F16 or BF16", st->path, t->name, t->type_name);
    for (size_t i = 0; i < t->count;) {
        size_t n = t->count - i < HVT_LEN(half) ? t->count - i : HVT_LEN(half);
        HVT_TRY(read_data(st, half, n * 2, t->first + i * 2));
        for (size_t k = 0; k < n; k++)
            ret[i + k] = t->type == HVT_ST_F16 ? hvt__from_f16(half[k]) : hvt__from_bf16(half[k]);
        i += n;
    }
    return HVT_OK;
}

hvt_status hvt__st_floats(hvt_st *st, const hvt_st_tensor *t, float *buf, const float **ret)
{
    const char *at = st->content ? st->content + t->first : NULL;

    if (at && t->type == HVT_ST_F32 && (uintptr_t)at % _Alignof(float) == 0) {
        *ret = (const void *)at;
        return HVT_OK;
    }
    *ret = buf;
    return hvt__st_f32(st, t, buf);
}

hvt_status hvt__st_i64(hvt_st *st, const hvt_st_tensor *t, int64_t *ret)
{
    HVT_CHECK(t->type == HVT_ST_I64, E_FORMAT, "%s: tensor %s is %s, expected I64", st->path, t->name,
              t->type_name);
    return read_data(st, ret, t->count * 8, t->first);
}

/* Reads and hashes the data section, block by block while it is in the caches: to data + at * step. */
static hvt_status read_and_check(hvt_st *st, char *data, uint64_t step)
{
    const char *said = hvt__st_meta(st, HVT_ST_DIGEST);
    uint64_t h = HVT_HASH_INIT;

    for (uint64_t at = 0; at < st->bytes; at += HVT_ST_BLOCK) {
        size_t n = st->bytes - at < HVT_ST_BLOCK ? (size_t)(st->bytes - at) : HVT_ST_BLOCK;
        HVT_TRY(read_at(st, data + at * step, n, st->data + at));
        if (said)
            h = hvt__hash(h, data + at * step, n);
    }
    HVT_CHECK(!said || strtoull(said, NULL, 16) == h, E_FORMAT,
              "%s: damaged: its data hashes to %016" PRIx64 ", its header says %.20s", st->path, h, said);
    return HVT_OK;
}

hvt_status hvt__st_verify(hvt_st *st)
{
    char *block;
    hvt_status s;

    if (!hvt__st_meta(st, HVT_ST_DIGEST))
        return HVT_OK;
    block = malloc(HVT_ST_BLOCK);
    HVT_CHECK(block, E_MEM, "%s: no memory to check it", st->path);
    s = read_and_check(st, block, 0);
    free(block);
    return s;
}

hvt_status hvt__st_read(hvt_st *st, void *data)
{
    HVT_TRY(read_and_check(st, data, 1));
    st->content = data;
    return HVT_OK;
}

/* ---- writing ---- */

static int as_laid_out(const void *a, const void *b)
{
    const hvt_st_item *x = a, *y = b;

    if (x->type != y->type)
        return x->type == HVT_ST_I64 ? -1 : 1;
    return strcmp(x->name, y->name);
}

static size_t item_bytes(const hvt_st_item *item)
{
    size_t bytes = item->type == HVT_ST_I64 ? 8 : 4;

    for (int i = 0; i < item->ndim; i++)
        bytes *= (size_t)item->dim[i];
    return bytes;
}

/* Makes the length and the header, padded so that data begins at a multiple of 8; malloc'ed. Digest and seal
 * are filled in later. */
static hvt_status make_header(const char *path, const hvt_st_item *items, int n, const char *meta,
                              char **ret_header, size_t *ret_bytes)
{
    char *text, *header;
    json_t *root;
    json_int_t at = 0;
    size_t bytes;
    int bad = 0;

    root = json_pack("{s:{s:s, s:s, s:s, s:s}}", "__metadata__", "format", "pt", HVT_ST_DIGEST,
                     "0123456789abcdef", HVT_ST_SEAL, "0123456789abcdef", "hvtrain", meta);
    for (int i = 0; i < n; i++) {
        json_t *shape = json_array();
        json_int_t end = at + (json_int_t)item_bytes(&items[i]);
        for (int d = 0; d < items[i].ndim; d++)
            bad |= json_array_append_new(shape, json_integer(items[i].dim[d]));
        bad |= json_object_set_new(root, items[i].name,
                                   json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                             items[i].type == HVT_ST_I64 ? "I64" : "F32", "shape", shape,
                                             "data_offsets", at, end));
        at = end;
    }
    text = bad ? NULL : json_dumps(root, JSON_COMPACT);
    json_decref(root);
    HVT_CHECK(text, E_FORMAT, "%s: no header can be made: no memory, or a text that is not UTF-8", path);
    bytes = (strlen(text) + 7) / 8 * 8;
    header = malloc(8 + bytes + 1);
    if (header)
        snprintf(header, 8 + bytes + 1, "%8s%-*s", "", (int)bytes, text);
    free(text);
    HVT_CHECK(header, E_MEM, "%s: no memory for its header", path);
    memcpy(header, &(uint64_t){htole64(bytes)}, 8);
    *ret_header = header;
    *ret_bytes = 8 + bytes;
    return HVT_OK;
}

static hvt_status write_all(int fd, const char *path, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t done = write(fd, data, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        HVT_CHECK(done >= 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
        data += done;
        bytes -= (size_t)done;
        hvt__progressed();
    }
    return HVT_OK;
}

/* Branch-free, so that the compiler vectorises it. */
static bool is_finite(const float *x, size_t n)
{
    uint32_t odd = 0, bits;

    for (size_t i = 0; i < n; i++) {
        memcpy(&bits, x + i, sizeof bits);
        odd |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return !odd;
}

static hvt_status check_finite(const hvt_st_item *item, const void *data, size_t bytes)
{
    const float *x = data;
    size_t n = item->type == HVT_ST_F32 && !item->fixed ? bytes / sizeof *x : 0;

    for (size_t i = is_finite(x, n) ? n : 0; i < n; i++)
        HVT_CHECK(isfinite(x[i]), E_DIVERGED, "not saved: %s holds %g, expected finite numbers", item->name,
                  isnan(x[i]) ? (double)NAN : (double)x[i]);
    return HVT_OK;
}

/* The data section on its way to the file, in the blocks that are hashed; tensors may end anywhere. */
typedef struct blocks {
    int fd;
    const char *path;
    char *block; /* [HVT_ST_BLOCK] */
    size_t used;
    uint64_t hash;
} blocks;

static hvt_status write_block(blocks *to)
{
    to->hash = hvt__hash(to->hash, to->block, to->used);
    HVT_TRY(write_all(to->fd, to->path, to->block, to->used));
    to->used = 0;
    return HVT_OK;
}

/* Adds a tensor in pieces: each is loaded from memory once, then checked and copied in the caches. */
static hvt_status add_tensor(blocks *to, const hvt_st_item *item, const char *data)
{
    enum { PIECE = 1 << 16 };

    for (size_t left = item_bytes(item), n; left; left -= n, data += n) {
        n = left < PIECE ? left : PIECE;
        n = n < HVT_ST_BLOCK - to->used ? n : HVT_ST_BLOCK - to->used;
        HVT_TRY(check_finite(item, data, n));
        memcpy(to->block + to->used, data, n);
        to->used += n;
        if (to->used == HVT_ST_BLOCK)
            HVT_TRY(write_block(to));
    }
    return HVT_OK;
}

static hvt_status write_data(int fd, const char *path, const hvt_st_item *items, int n, hvt_st_fetch *fetch,
                             void *ctx, uint64_t *ret_digest)
{
    blocks to = {fd, path, malloc(HVT_ST_BLOCK), 0, HVT_HASH_INIT};
    const void *data;
    hvt_status s = HVT_OK;

    HVT_CHECK(to.block, E_MEM, "%s: no memory to write it", path);
    for (int i = 0; i < n; i++) {
        HVT_TRY_OR(done, fetch(ctx, &items[i], &data));
        HVT_TRY_OR(done, add_tensor(&to, &items[i], data));
    }
    if (to.used)
        HVT_TRY_OR(done, write_block(&to));
    *ret_digest = to.hash;
done:
    free(to.block);
    return s;
}

static hvt_status write_file(const char *temp, const char *path, const hvt_st_item *items, int n,
                             const char *meta, hvt_st_fetch *fetch, void *ctx)
{
    int fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    char *header = NULL, *seal, hex[17];
    size_t bytes = 0;
    uint64_t digest = 0;
    hvt_status s;

    HVT_CHECK(fd >= 0, E_IO, "%s: cannot create: %s", temp, strerror(errno));
    HVT_TRY_OR(done, make_header(path, items, n, meta, &header, &bytes));
    HVT_TRY_OR(done, write_all(fd, path, header, bytes));
    HVT_TRY_OR(done, write_data(fd, path, items, n, fetch, ctx, &digest));
    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    memcpy(strstr(header + 8, "\"" HVT_ST_DIGEST "\":\"") + sizeof HVT_ST_DIGEST + 3, hex, 16);
    seal = find_seal(header + 8, bytes - 8);
    snprintf(hex, sizeof hex, "%016" PRIx64, seal_of(header + 8, bytes - 8, seal));
    memcpy(seal, hex, 16);
    HVT_CHECK_OR(done, lseek(fd, 0, SEEK_SET) == 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
    HVT_TRY_OR(done, write_all(fd, path, header, bytes));
    HVT_CHECK_OR(done, fsync(fd) == 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
done:
    free(header);
    if (close(fd) && s == HVT_OK)
        s = HVT_FAIL(E_IO, "%s: cannot write: %s", path, strerror(errno));
    return s;
}

/* Syncs the folder after a rename. The file is complete and in place, so an error here is only a warning.
 * Some file systems cannot sync a folder (EINVAL); the rename itself was atomic. */
static void sync_folder(const char *path)
{
    char copy[PATH_MAX];
    int fd;

    snprintf(copy, sizeof copy, "%s", path);
    fd = open(dirname(copy), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) && errno != EINVAL))
        HVT_WARN("%s: written, but its folder cannot be synced: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
}

hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const json_t *meta, hvt_st_fetch *fetch,
                         void *ctx)
{
    char temp[PATH_MAX], *text;
    hvt_status s;

    HVT_TRY(hvt__path(temp, "%s.tmp", path));
    text = json_dumps(meta, JSON_COMPACT);
    HVT_CHECK(text, E_MEM, "%s: no memory for its metadata", path);
    qsort(items, (size_t)n, sizeof *items, as_laid_out);
    hvt__signals_temp(temp, true);
    s = write_file(temp, path, items, n, text, fetch, ctx);
    free(text);
    if (s == HVT_OK && rename(temp, path))
        s = HVT_FAIL(E_IO, "%s: cannot rename %s to it: %s", path, temp, strerror(errno));
    if (s)
        unlink(temp);
    hvt__signals_temp(temp, false);
    if (s == HVT_OK)
        sync_folder(path);
    return s;
}
