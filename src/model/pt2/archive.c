/*
 * The entries of a .pt2 file. Sizes that the zip directory claims are checked against the size of the
 * file and against what a program or tensor needs, and an entry that unpacks to more than it claims is an
 * error. So a small file cannot cause a large allocation.
 */
#include "pt2_impl.h"

#include <errno.h>
#include <sys/stat.h>

enum {
    PROGRAM_MOST = 64 << 20, /* limit for the JSON in bytes; ResNet-18 has 0.2 MB, ResNet-152 1.3 MB */
    VALUES_MOST = 4 << 20,   /* limit for its values, of up to 160 bytes each; ResNet-18 has 10,000 */
    DEFLATE_MOST = 1032,     /* the highest compression ratio of deflate */
    NAME_MOST = 512
};

/* PyTorch 2.6 writes its entries without a folder; 2.8 and later below one, named as the file was. */
static hvt_status find_top(hvt_pt2 *p)
{
    static const char flat[] = "serialized_exported_program.json", program[] = "models/model.json";
    zip_int64_t n = zip_get_num_entries(p->zip, 0);

    for (zip_int64_t i = 0; i < n; i++) {
        const char *name = zip_get_name(p->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name ? strchr(name, '/') : NULL;

        if (name && (!strcmp(name, flat) || (slash && !strcmp(slash + 1, program)))) {
            p->top = strndup(name, slash ? (size_t)(slash + 1 - name) : 0);
            HVT_CHECK(p->top, E_MEM, "%s: no memory", p->path);
            return HVT_OK;
        }
    }
    return HVT_FAIL(E_FORMAT,
                    "%s: a zip, but no program of torch.export.save(): it has neither TOP/%s nor %s "
                    "(torch.save() and torch.jit.save() write other files)",
                    p->path, program, flat);
}

/* Tells a truncated copy from a file of another kind: it starts with a zip entry but has no directory at its
 * end. */
static hvt_status check_whole(const hvt_pt2 *p)
{
    static const char entry[4] = "PK\3\4";
    char first[HVT__HEAD] = "";
    const char *what;
    FILE *f = fopen(p->path, "rb");
    size_t n;

    HVT_CHECK(f, E_IO, "%s: %s", p->path, strerror(errno));
    errno = 0;
    n = fread(first, 1, sizeof first, f);
    fclose(f);
    HVT_CHECK(n || !errno, E_IO, "%s: %s", p->path, strerror(errno));
    HVT_CHECK(n, E_FORMAT, "%s: it is empty", p->path);
    HVT_CHECK(memcmp(first, entry, sizeof entry) != 0, E_FORMAT,
              "%s: its end is missing: a zip whose directory, which is last, is not there", p->path);
    what = hvt__stand_in(first, n);
    HVT_CHECK(!what, E_FORMAT, "%s is %s", p->path, what);
    return HVT_OK;
}

hvt_status hvt__pt2_archive_open(hvt_pt2 *p)
{
    struct stat st;
    int code = 0;

    p->zip = zip_open(p->path, ZIP_RDONLY, &code);
    if (!p->zip) {
        zip_error_t e;
        hvt_status s;

        HVT_CHECK(code != ZIP_ER_NOENT && code != ZIP_ER_OPEN && code != ZIP_ER_READ, E_IO, "%s: %s", p->path,
                  strerror(errno));
        HVT_TRY(check_whole(p));
        zip_error_init_with_code(&e, code);
        s = HVT_FAIL(E_FORMAT, "%s: no zip file, so no model of torch.export.save(): %s", p->path,
                     zip_error_strerror(&e));
        zip_error_fini(&e);
        return s;
    }
    HVT_CHECK(stat(p->path, &st) == 0, E_IO, "%s: %s", p->path, strerror(errno));
    p->bytes = (uint64_t)st.st_size;
    return find_top(p);
}

/* Finds an entry. *ret_bytes is its size, or < 0 if there is no such entry. */
static hvt_status entry_size(const hvt_pt2 *p, const char *name, int64_t *ret_bytes)
{
    zip_stat_t st;

    *ret_bytes = -1;
    if (zip_stat(p->zip, name, 0, &st) != 0)
        return HVT_OK;
    HVT_CHECK(st.valid & ZIP_STAT_SIZE && st.valid & ZIP_STAT_COMP_SIZE, E_FORMAT, "%s: %s has no size",
              p->path, name);
    HVT_CHECK(st.comp_size <= p->bytes && st.size / DEFLATE_MOST <= st.comp_size, E_FORMAT,
              "%s: %s claims %llu bytes in %llu of a file of %llu", p->path, name,
              (unsigned long long)st.size, (unsigned long long)st.comp_size, (unsigned long long)p->bytes);
    *ret_bytes = (int64_t)st.size;
    return HVT_OK;
}

static hvt_status read_entry(const hvt_pt2 *p, const char *name, char *data, size_t bytes)
{
    zip_file_t *f = zip_fopen(p->zip, name, 0);
    zip_int64_t got = 0;
    hvt_status s = HVT_OK;
    size_t at = 0;
    char more;

    HVT_CHECK(f, E_FORMAT, "%s: %s cannot be read: %s", p->path, name, zip_strerror(p->zip));
    while (at < bytes && (got = zip_fread(f, data + at, bytes - at)) > 0)
        at += (size_t)got;
    if (got >= 0 && at == bytes)
        got = zip_fread(f, &more, 1); /* compares the CRC at the end as well */
    if (got < 0)
        s = HVT_FAIL(E_FORMAT, "%s: %s is damaged: %s", p->path, name, zip_file_strerror(f));
    else if (at < bytes || got > 0)
        s = HVT_FAIL(E_FORMAT, "%s: %s has %s than the %zu bytes that the zip's directory promises", p->path,
                     name, got > 0 ? "more" : "less", bytes);
    zip_fclose(f);
    return s;
}

hvt_status hvt__pt2_archive_has(const hvt_pt2 *p, const char *entry, size_t least, size_t *ret_bytes)
{
    char name[NAME_MOST];
    int64_t is;

    snprintf(name, sizeof name, "%s%s", p->top, entry);
    HVT_TRY(entry_size(p, name, &is));
    HVT_CHECK(is >= (int64_t)least, E_FORMAT,
              is < 0 ? "%s: %s is missing" : "%s: %s has %lld bytes, expected %zu", p->path, name,
              (long long)is, least);
    *ret_bytes = (size_t)is;
    return HVT_OK;
}

hvt_status hvt__pt2_archive_read(const hvt_pt2 *p, const char *entry, void *data, size_t bytes)
{
    char name[NAME_MOST];

    snprintf(name, sizeof name, "%s%s", p->top, entry);
    return read_entry(p, name, data, bytes);
}

/* An upper bound of the number of values in a JSON text: each follows one of these characters, or is the
 * first. */
static size_t count_values(const char *text, size_t bytes)
{
    size_t n = 1;

    for (size_t i = 0; i < bytes; i++)
        n += text[i] == ',' || text[i] == '[' || text[i] == '{';
    return n;
}

static hvt_status parse(const hvt_pt2 *p, const char *name, const char *text, size_t bytes, json_t **ret_json)
{
    json_error_t e;
    json_t *json;

    HVT_CHECK(count_values(text, bytes) <= VALUES_MOST, E_FORMAT,
              "%s: %s has %zu values in %zu bytes; at most %d are read", p->path, name,
              count_values(text, bytes), bytes, VALUES_MOST);
    json = json_loadb(text, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    HVT_CHECK(json, E_FORMAT, "%s: %s, line %d: %s", p->path, name, e.line, e.text);
    if (!json_is_object(json)) {
        json_decref(json);
        return HVT_FAIL(E_FORMAT, "%s: %s is no JSON object", p->path, name);
    }
    *ret_json = json;
    return HVT_OK;
}

hvt_status hvt__pt2_archive_json(const hvt_pt2 *p, const char *entry, json_t **ret_json)
{
    char name[NAME_MOST], *text;
    int64_t bytes;
    hvt_status s;

    *ret_json = NULL;
    snprintf(name, sizeof name, "%s%s", p->top, entry);
    HVT_TRY(entry_size(p, name, &bytes));
    if (bytes < 0)
        return HVT_OK;
    HVT_CHECK(bytes <= PROGRAM_MOST, E_FORMAT, "%s: %s claims %lld bytes; at most %d are read", p->path, name,
              (long long)bytes, PROGRAM_MOST);
    text = malloc((size_t)bytes + 1);
    HVT_CHECK(text, E_MEM, "%s: no memory for %lld bytes of %s", p->path, (long long)bytes, name);
    s = read_entry(p, name, text, (size_t)bytes);
    if (s == HVT_OK)
        s = parse(p, name, text, (size_t)bytes, ret_json);
    free(text);
    return s;
}
