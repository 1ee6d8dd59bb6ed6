/*
 * safetensors: [u64 length][JSON header][data]. The reader checks the whole header before it uses any data,
 * as the reference implementation does (huggingface/safetensors, tensor.rs): the tensors, sorted by offset,
 * fill the data section without holes or overlaps, and the size of each matches its shape. Data is read, not
 * mapped: if the file shrinks meanwhile, that is an error and not a signal.
 *
 * The writer uses the reference writer's layout: types of wide alignment first, then by name; the header
 * padded with spaces to 8 bytes; "__metadata__" first. In our files it contains a hash of the data section,
 * DIGEST, against which loading checks the data.
 */
#include "checkpoint_impl.h"
#include "train/process/process_impl.h"
#include "device/half.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEADER_MOST = 100000000 };

struct hvt_st {
    char *path;
    int fd;
    json_t *header; /* owns names and metadata */
    json_t *meta;   /* part of header, or NULL */
    hvt_st_tensor *tensor;
    int n;
    uint64_t data; /* offset of the data section */
};

static const struct {
    const char *name;
    hvt_st_type type;
    int bits;
} types[] = {
    {"F32", HVT_ST_F32, 32},          {"F16", HVT_ST_F16, 16},      {"BF16", HVT_ST_BF16, 16},
    {"I64", HVT_ST_I64, 64},          {"F64", HVT_ST_OTHER, 64},    {"U64", HVT_ST_OTHER, 64},
    {"C64", HVT_ST_OTHER, 64},        {"I32", HVT_ST_OTHER, 32},    {"U32", HVT_ST_OTHER, 32},
    {"I16", HVT_ST_OTHER, 16},        {"U16", HVT_ST_OTHER, 16},    {"I8", HVT_ST_OTHER, 8},
    {"U8", HVT_ST_OTHER, 8},          {"BOOL", HVT_ST_OTHER, 8},    {"F8_E4M3", HVT_ST_OTHER, 8},
    {"F8_E5M2", HVT_ST_OTHER, 8},     {"F8_E8M0", HVT_ST_OTHER, 8}, {"F8_E4M3FNUZ", HVT_ST_OTHER, 8},
    {"F8_E5M2FNUZ", HVT_ST_OTHER, 8}, {"F6_E2M3", HVT_ST_OTHER, 6}, {"F6_E3M2", HVT_ST_OTHER, 6},
    {"F4", HVT_ST_OTHER, 4},
};

void hvt__st_shape(const int64_t *dim, int ndim, char *ret_text, size_t bytes)
{
    size_t n = (size_t)snprintf(ret_text, bytes, "[");

    for (int i = 0; i < ndim && n < bytes; i++)
        n += (size_t)snprintf(ret_text + n, bytes - n, "%s%" PRId64, i ? ", " : "", dim[i]);
    if (n < bytes)
        snprintf(ret_text + n, bytes - n, "]");
}

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
    }
    return HVT_OK;
}

/* One entry of the header: {"dtype": ..., "shape": [...], "data_offsets": [first, end]}. */
static hvt_status read_entry(const hvt_st *st, const char *name, json_t *entry, uint64_t data_bytes,
                             hvt_st_tensor *t)
{
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    json_t *shape = json_object_get(entry, "shape"), *span = json_object_get(entry, "data_offsets");
    json_int_t first = json_integer_value(json_array_get(span, 0));
    json_int_t end = json_integer_value(json_array_get(span, 1));
    uint64_t count = 1, bits;
    size_t k = 0;

    HVT_CHECK(json_is_object(entry) && dtype && json_is_array(shape) && json_array_size(span) == 2 &&
                  json_is_integer(json_array_get(span, 0)) && json_is_integer(json_array_get(span, 1)),
              E_FORMAT, "%s: tensor %s needs dtype, shape and two data_offsets", st->path, name);
    HVT_CHECK(json_array_size(shape) <= HVT_ST_DIMS, E_FORMAT,
              "%s: tensor %s has %zu dimensions, at most %d are read", st->path, name, json_array_size(shape),
              HVT_ST_DIMS);
    HVT_CHECK(0 <= first && first <= end && (uint64_t)end <= data_bytes, E_FORMAT,
              "%s: tensor %s has the bytes %lld to %lld of %" PRIu64, st->path, name, (long long)first,
              (long long)end, data_bytes);
    for (k = 0; k < HVT_LEN(types) && strcmp(types[k].name, dtype); k++)
        ;
    HVT_CHECK(k < HVT_LEN(types), E_FORMAT, "%s: tensor %s has the unknown dtype '%.20s'", st->path, name,
              dtype);
    *t = (hvt_st_tensor){.name = name,
                         .type = types[k].type,
                         .ndim = (int)json_array_size(shape),
                         .first = (uint64_t)first,
                         .end = (uint64_t)end};
    snprintf(t->type_name, sizeof t->type_name, "%s", types[k].name);
    for (int i = 0; i < t->ndim; i++) {
        json_t *d = json_array_get(shape, (size_t)i);
        t->dim[i] = json_integer_value(d);
        HVT_CHECK(json_is_integer(d) && t->dim[i] >= 0, E_FORMAT,
                  "%s: tensor %s: dimension %d is no whole number >= 0", st->path, name, i);
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

static hvt_status read_entries(hvt_st *st, uint64_t data_bytes)
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
            HVT_CHECK(json_is_object(entry), E_FORMAT, "%s: __metadata__ is no object", st->path);
            json_object_foreach(entry, key, value)
                HVT_CHECK(json_is_string(value), E_FORMAT, "%s: metadata %s is no text", st->path, key);
            st->meta = entry;
            continue;
        }
        HVT_TRY(read_entry(st, name, entry, data_bytes, &st->tensor[st->n]));
        st->n++;
    }
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_offset);
    for (int i = 0; i < st->n; i++) {
        HVT_CHECK(st->tensor[i].first == at, E_FORMAT,
                  "%s: tensor %s begins at byte %" PRIu64 ", but the one before ends at %" PRIu64, st->path,
                  st->tensor[i].name, st->tensor[i].first, at);
        at = st->tensor[i].end;
    }
    HVT_CHECK(at == data_bytes, E_FORMAT, "%s: the tensors have %" PRIu64 " bytes, the file has %" PRIu64,
              st->path, at, data_bytes);
    qsort(st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
    return HVT_OK;
}

/* A file of torch.save() begins as a zip archive, or before PyTorch 1.6 as a pickle. */
static bool is_pickled(const unsigned char head[8])
{
    return !memcmp(head, "PK\3\4", 4) || (head[0] == 0x80 && head[1] >= 2 && head[1] <= 5);
}

static hvt_status refuse_pickled(const hvt_st *st)
{
    char to[PATH_MAX], from_word[HVT_SHELL_WORD], to_word[HVT_SHELL_WORD];
    const char *slash = strrchr(st->path, '/'), *dot = strrchr(st->path, '.');
    size_t len = dot && dot > (slash ? slash + 1 : st->path) ? (size_t)(dot - st->path) : strlen(st->path);

    snprintf(to, sizeof to, "%.*s.safetensors", (int)len, st->path);
    return HVT_FAIL(
        E_FORMAT,
        "%s is in the format of torch.save, expected safetensors; this converts it: python3 -c \"import sys, "
        "torch; from safetensors.torch import save_file; x = torch.load(sys.argv[1], map_location='cpu', "
        "weights_only=True); save_file({k: v.contiguous().clone() for k, v in x.get('state_dict', "
        "x).items()}, sys.argv[2])\" %s %s",
        st->path, hvt__shell_word(st->path, from_word), hvt__shell_word(to, to_word));
}

static hvt_status read_header(hvt_st *st, uint64_t file)
{
    unsigned char head[8];
    uint64_t bytes = 0;
    char *text = NULL;
    json_error_t why;
    hvt_status s = HVT_OK;

    HVT_CHECK(file >= 8, E_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file", st->path,
              file);
    HVT_TRY(read_at(st, head, 8, 0));
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | head[i];
    if (bytes > file - 8 && is_pickled(head))
        return hvt__pass(refuse_pickled(st), __FILE__, __LINE__, "refuse_pickled");
    HVT_CHECK(bytes <= HEADER_MOST && bytes <= file - 8 && bytes >= 2, E_FORMAT,
              "%s: no safetensors file, or truncated: a header of %" PRIu64 " bytes in a file of %" PRIu64,
              st->path, bytes, file);
    text = malloc(bytes);
    HVT_CHECK(text, E_MEM, "%s: no memory for a header of %" PRIu64 " bytes", st->path, bytes);
    HVT_TRY_OR(done, read_at(st, text, bytes, 8));
    HVT_CHECK_OR(done, text[0] == '{', E_FORMAT,
                 "%s: no safetensors file: the header does not begin with '{'", st->path);
    st->header = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &why);
    HVT_CHECK_OR(done, st->header, E_FORMAT, "%s: header: %s at byte %d", st->path, why.text, why.position);
    st->data = 8 + bytes;
    HVT_TRY_OR(done, read_entries(st, file - st->data));
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

const char *hvt__st_path(const hvt_st *st)
{
    return st->path;
}

const char *hvt__st_meta(const hvt_st *st, const char *key)
{
    return json_string_value(json_object_get(st->meta, key));
}

int hvt__st_count(const hvt_st *st)
{
    return st->n;
}

const hvt_st_tensor *hvt__st_at(const hvt_st *st, int i)
{
    return &st->tensor[i];
}

const hvt_st_tensor *hvt__st_find(const hvt_st *st, const char *name)
{
    hvt_st_tensor key = {.name = name};

    return bsearch(&key, st->tensor, (size_t)st->n, sizeof *st->tensor, by_name);
}

hvt_status hvt__st_f32(hvt_st *st, const hvt_st_tensor *t, float *ret)
{
    uint16_t half[4096];

    if (t->type == HVT_ST_F32)
        return read_at(st, ret, t->count * 4, st->data + t->first);
    HVT_CHECK(t->type == HVT_ST_F16 || t->type == HVT_ST_BF16, E_FORMAT,
              "%s: tensor %s is %s, expected F32, F16 or BF16", st->path, t->name, t->type_name);
    for (size_t i = 0; i < t->count;) {
        size_t n = t->count - i < HVT_LEN(half) ? t->count - i : HVT_LEN(half);
        HVT_TRY(read_at(st, half, n * 2, st->data + t->first + i * 2));
        for (size_t k = 0; k < n; k++)
            ret[i + k] = t->type == HVT_ST_F16 ? hvt__from_f16(half[k]) : hvt__from_bf16(half[k]);
        i += n;
    }
    return HVT_OK;
}

hvt_status hvt__st_i64(hvt_st *st, const hvt_st_tensor *t, int64_t *ret)
{
    HVT_CHECK(t->type == HVT_ST_I64, E_FORMAT, "%s: tensor %s is %s, expected I64", st->path, t->name,
              t->type_name);
    return read_at(st, ret, t->count * 8, st->data + t->first);
}

hvt_status hvt__st_verify(hvt_st *st)
{
    const char *said = hvt__st_meta(st, HVT_ST_DIGEST);
    uint64_t h = HVT_HASH_INIT, bytes = 0;
    char found[17];
    char *buf;
    hvt_status s = HVT_OK;

    if (!said)
        return HVT_OK;
    for (int i = 0; i < st->n; i++)
        bytes = st->tensor[i].end > bytes ? st->tensor[i].end : bytes;
    buf = malloc(HVT_ST_BLOCK);
    HVT_CHECK(buf, E_MEM, "%s: no memory to check it", st->path);
    for (uint64_t at = 0; at < bytes; at += HVT_ST_BLOCK) {
        size_t n = bytes - at < HVT_ST_BLOCK ? (size_t)(bytes - at) : HVT_ST_BLOCK;
        HVT_TRY_OR(done, read_at(st, buf, n, st->data + at));
        h = hvt__hash(h, buf, n);
    }
    snprintf(found, sizeof found, "%016" PRIx64, h);
    HVT_CHECK_OR(done, !strcmp(found, said), E_FORMAT,
                 "%s: damaged: its data hashes to %s, its header says %.20s", st->path, found, said);
done:
    free(buf);
    return s;
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

/* The header as text, padded so that data begins at a multiple of 8. */
static hvt_status make_header(const char *path, const hvt_st_item *items, int n, const char *meta,
                              uint64_t digest, char **ret_text, size_t *ret_bytes)
{
    json_t *root = json_object(), *m = json_object();
    char hex[17], *text, *padded;
    json_int_t at = 0;
    size_t bytes, full;
    int bad = 0;

    snprintf(hex, sizeof hex, "%016" PRIx64, digest);
    bad |= json_object_set_new(m, "format", json_string("pt"));
    bad |= json_object_set_new(m, "hvtrain", json_string(meta));
    bad |= json_object_set_new(m, HVT_ST_DIGEST, json_string(hex));
    bad |= json_object_set_new(root, "__metadata__", m);
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
    bytes = strlen(text);
    full = (bytes + 7) / 8 * 8;
    padded = realloc(text, full);
    if (!padded) {
        free(text);
        return HVT_FAIL(E_MEM, "%s: no memory for its header", path);
    }
    memset(padded + bytes, ' ', full - bytes);
    *ret_text = padded;
    *ret_bytes = full;
    return HVT_OK;
}

static hvt_status write_all(int fd, const char *path, const void *data, size_t bytes)
{
    const char *p = data;

    while (bytes) {
        ssize_t done = write(fd, p, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        HVT_CHECK(done >= 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
        p += done;
        bytes -= (size_t)done;
    }
    return HVT_OK;
}

/* The hash is over blocks of the data section, independent of the boundaries of tensors. */
typedef struct digest {
    uint64_t h;
    char *block;
    size_t used;
} digest;

static void digest_add(digest *d, const char *data, size_t bytes)
{
    while (bytes) {
        size_t n = HVT_ST_BLOCK - d->used < bytes ? HVT_ST_BLOCK - d->used : bytes;
        memcpy(d->block + d->used, data, n);
        d->used += n;
        data += n;
        bytes -= n;
        if (d->used == HVT_ST_BLOCK) {
            d->h = hvt__hash(d->h, d->block, d->used);
            d->used = 0;
        }
    }
}

static uint64_t digest_end(digest *d)
{
    if (d->used)
        d->h = hvt__hash(d->h, d->block, d->used);
    d->used = 0;
    return d->h;
}

static hvt_status check_finite(const hvt_st_item *item, const void *data)
{
    const float *x = data;

    for (size_t i = 0; item->type == HVT_ST_F32 && i < item_bytes(item) / sizeof *x; i++)
        HVT_CHECK(isfinite(x[i]), E_DIVERGED, "not saved: %s holds %g, expected finite numbers", item->name,
                  isnan(x[i]) ? (double)NAN : (double)x[i]);
    return HVT_OK;
}

static hvt_status write_file(int fd, const char *path, const hvt_st_item *items, int n, const char *meta,
                             hvt_st_fetch *fetch, void *ctx)
{
    char *header = NULL, *data = NULL;
    digest d = {.h = HVT_HASH_INIT};
    size_t bytes, most = 1;
    unsigned char head[8];
    hvt_status s;

    for (int i = 0; i < n; i++)
        most = item_bytes(&items[i]) > most ? item_bytes(&items[i]) : most;
    data = malloc(most);
    d.block = malloc(HVT_ST_BLOCK);
    HVT_CHECK_OR(done, data && d.block, E_MEM, "%s: no memory for a tensor of %zu bytes", path, most);
    HVT_TRY_OR(done, make_header(path, items, n, meta, 0, &header, &bytes));
    for (int i = 0; i < 8; i++)
        head[i] = (unsigned char)((uint64_t)bytes >> 8 * i);
    HVT_TRY_OR(done, write_all(fd, path, head, 8));
    HVT_TRY_OR(done, write_all(fd, path, header, bytes));
    for (int i = 0; i < n; i++) {
        HVT_TRY_OR(done, fetch(ctx, &items[i], data));
        HVT_TRY_OR(done, check_finite(&items[i], data));
        digest_add(&d, data, item_bytes(&items[i]));
        HVT_TRY_OR(done, write_all(fd, path, data, item_bytes(&items[i])));
    }
    free(header); /* write it again, with the digest; its length is the same */
    header = NULL;
    HVT_TRY_OR(done, make_header(path, items, n, meta, digest_end(&d), &header, &bytes));
    HVT_CHECK_OR(done, lseek(fd, 8, SEEK_SET) == 8, E_IO, "%s: cannot write: %s", path, strerror(errno));
    HVT_TRY_OR(done, write_all(fd, path, header, bytes));
    HVT_CHECK_OR(done, fsync(fd) == 0, E_IO, "%s: cannot write: %s", path, strerror(errno));
done:
    free(header);
    free(data);
    free(d.block);
    return s;
}

/* The file is complete and in place already, so an error here is only a warning. */
static void sync_folder(const char *path)
{
    char folder[PATH_MAX];
    char *slash;
    int fd;

    snprintf(folder, sizeof folder, "%s", path);
    slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    fd = open(slash ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        HVT_WARN("%s: written, but its folder cannot be opened to sync it: %s", path, strerror(errno));
        return;
    }
    (void)fsync(fd); /* some file systems cannot; the rename itself was atomic */
    close(fd);
}

hvt_status hvt__st_write(const char *path, hvt_st_item *items, int n, const json_t *meta, hvt_st_fetch *fetch,
                         void *ctx)
{
    char temp[PATH_MAX], *text = json_dumps(meta, JSON_COMPACT);
    int fd = -1;
    hvt_status s;

    HVT_CHECK(text, E_MEM, "%s: no memory for its metadata", path);
    HVT_CHECK_OR(done, (size_t)snprintf(temp, sizeof temp, "%s.tmp", path) < sizeof temp, E_IO,
                 "%s: the name is too long", path);
    qsort(items, (size_t)n, sizeof *items, as_laid_out);
    hvt__signals_tmp_path(temp);
    fd = open(temp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    HVT_CHECK_OR(fail, fd >= 0, E_IO, "%s: cannot create: %s", temp, strerror(errno));
    HVT_TRY_OR(fail, write_file(fd, path, items, n, text, fetch, ctx));
    s = close(fd) == 0 ? HVT_OK : HVT_FAIL(E_IO, "%s: cannot write: %s", path, strerror(errno));
    fd = -1;
    if (s)
        goto fail;
    HVT_CHECK_OR(fail, rename(temp, path) == 0, E_IO, "%s: cannot rename %s to it: %s", path, temp,
                 strerror(errno));
    hvt__signals_tmp_path(NULL);
    sync_folder(path);
    goto done;
fail:
    if (fd >= 0)
        close(fd);
    unlink(temp);
    hvt__signals_tmp_path(NULL);
done:
    free(text);
    return s;
}
