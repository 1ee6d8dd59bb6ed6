/*
 * Reads a table of --predict: how often each class was taken for each other, and the most confident mistakes.
 * The table is CSV (RFC 4180) and is read row by row. Images without labels do not count.
 */
#include "page_impl.h"
#include "base_impl.h"

#include <errno.h>

enum { FIELD = 512, FIELDS = 8, CLASSES_MOST = 1 << 20 };
enum { INDEX, THE_FILE, LABEL, LABEL_NAME, CLASS, CLASS_NAME, PART, WANTED };

typedef struct reader {
    FILE *f;
    const char *path;
    int64_t line;
    int column[WANTED]; /* of each field; -1: none */
    char field[WANTED][FIELD];
    uint64_t *key; /* [n] label << 32 | class of each image */
    size_t n, room;
} reader;

/* Reads one field, truncated to fit; false at the end of the file. *ret_last: the field ends its row. */
static bool read_field(reader *r, char *ret_text, bool *ret_last)
{
    bool quoted = false, any = false;
    size_t n = 0;

    for (int c;;) {
        c = getc_unlocked(r->f);
        if (c == EOF && !any)
            return false;
        any = true;
        r->line += c == '\n';
        if (c == '"') {
            int next = quoted ? getc_unlocked(r->f) : 0;

            if (next != '"') { /* else a quote within quotes */
                if (quoted && next != EOF)
                    ungetc(next, r->f);
                quoted = !quoted;
                continue;
            }
        } else if (c == EOF || (!quoted && (c == ',' || c == '\n'))) {
            ret_text[n] = 0;
            *ret_last = c != ',';
            return true;
        }
        if (n < FIELD - 1 && (c != '\r' || quoted))
            ret_text[n++] = (char)(c ? c : '?');
    }
}

/* Reads the wanted fields of a row; false at the end of the file. */
static bool read_row(reader *r, int *ret_fields)
{
    char text[FIELD];
    bool last = false;

    for (*ret_fields = 0; !last; ++*ret_fields) {
        if (!read_field(r, text, &last))
            return *ret_fields > 0;
        for (int k = 0; k < WANTED; k++)
            if (r->column[k] == *ret_fields)
                memcpy(r->field[k], text, FIELD);
    }
    return true;
}

static hvt_status read_head(reader *r)
{
    static const char *const name[WANTED] = {"index",  "file",  "label",       "label_name",
                                             "class1", "name1", "probability1"};
    char text[FIELD];
    bool last = false;

    for (int k = 0; k < WANTED; k++)
        r->column[k] = -1;
    for (int i = 0; !last && read_field(r, text, &last); i++)
        for (int k = 0; k < WANTED; k++)
            if (!strcmp(text, name[k]))
                r->column[k] = i;
    HVT_CHECK(r->column[INDEX] == 0 && r->column[LABEL] > 0 && r->column[CLASS] > 0 && r->column[PART] > 0,
              E_FORMAT, "%s: expected a table of --predict, whose first line is index,file,label,...",
              r->path);
    return HVT_OK;
}

static bool read_whole(const char *text, int64_t most, int64_t *ret)
{
    return hvt__scan_whole(&text, most, ret) && !*text;
}

static void add_mistake(hvt__confusion *c, const hvt__mistake *m)
{
    int at = c->mistakes;

    while (at > 0 && c->mistake[at - 1].part < m->part)
        at--;
    if (at == HVT__MISTAKES)
        return;
    c->mistakes += c->mistakes < HVT__MISTAKES;
    for (int i = c->mistakes - 1; i > at; i--)
        c->mistake[i] = c->mistake[i - 1];
    c->mistake[at] = *m;
}

/* Makes room for this class, and stores its name. */
static hvt_status name_class(hvt__confusion *c, int class, const char *name)
{
    if (class >= c->classes) {
        int n = class + 1 > 2 * c->classes ? class + 1 : 2 * c->classes;
        void *names = realloc(c->name, (size_t)n * sizeof *c->name);

        HVT_CHECK(names, E_MEM, "no memory for the names of %d classes", n);
        c->name = names;
        memset(c->name + c->classes, 0, (size_t)(n - c->classes) * sizeof *c->name);
        c->classes = n;
    }
    if (!*c->name[class])
        snprintf(c->name[class], sizeof *c->name, "%.63s", name);
    return HVT_OK;
}

static hvt_status add_row(reader *r, hvt__confusion *c)
{
    int64_t index, label, class;
    hvt__mistake m = {0};
    const char *part = r->field[PART];
    bool good = read_whole(r->field[INDEX], UINT32_MAX, &index) &&
                (!*r->field[LABEL] || read_whole(r->field[LABEL], CLASSES_MOST - 1, &label)) &&
                (!*r->field[CLASS] || read_whole(r->field[CLASS], CLASSES_MOST - 1, &class));

    HVT_CHECK(good, E_FORMAT, "%s, line %lld: expected numbers of an image, its label and a class", r->path,
              (long long)r->line);
    if (!*r->field[LABEL] || !*r->field[CLASS])
        return HVT_OK;
    if (r->n == r->room) {
        size_t room = 2 * r->room + 1024;
        void *keys = realloc(r->key, room * sizeof *r->key);

        HVT_CHECK(keys, E_MEM, "no memory for %zu predictions", room);
        r->key = keys;
        r->room = room;
    }
    r->key[r->n++] = (uint64_t)label << 32 | (uint64_t) class;
    HVT_TRY(name_class(c, (int)label, r->field[LABEL_NAME]));
    HVT_TRY(name_class(c, (int)class, r->field[CLASS_NAME]));
    c->hits += label == class;
    if (label == class)
        return HVT_OK;
    m = (hvt__mistake){.index = (uint32_t)index, .label = (int)label, .class = (int)class};
    if (!hvt__scan_number(&part, &m.part))
        m.part = 0;
    snprintf(m.file, sizeof m.file, "%.239s", r->field[THE_FILE]);
    add_mistake(c, &m);
    return HVT_OK;
}

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static hvt_status count_pairs(reader *r, hvt__confusion *c)
{
    int last = 0;

    if (r->n)
        qsort(r->key, r->n, sizeof *r->key, by_key);
    c->images = (int64_t)r->n;
    for (size_t i = 0; i < r->n; i++) {
        int a = (int)(r->key[i] >> 32), b = (int)(uint32_t)r->key[i];

        last = a > last ? a : last;
        last = b > last ? b : last;
    }
    c->classes = r->n ? last + 1 : 0;
    c->pair = malloc(r->n * sizeof *c->pair + 1);
    c->count = calloc(r->n + 1, sizeof *c->count);
    c->in_class = calloc((size_t)c->classes + 1, sizeof *c->in_class);
    HVT_CHECK(c->pair && c->count && c->in_class, E_MEM, "no memory to count %zu predictions", r->n);
    for (size_t i = 0; i < r->n; i++) {
        if (!i || r->key[i] != r->key[i - 1])
            c->pair[c->pairs++] = r->key[i];
        c->count[c->pairs - 1]++;
        c->in_class[r->key[i] >> 32]++;
    }
    return HVT_OK;
}

hvt_status hvt__confusion_read(const char *path, hvt__confusion *ret)
{
    hvt__confusion c = {0};
    reader *r = calloc(1, sizeof *r);
    hvt_status s = HVT_OK;
    int fields;

    HVT_CHECK(r, E_MEM, "no memory to read %s", path);
    r->path = path;
    r->line = 1;
    r->f = fopen(path, "re");
    HVT_CHECK_OR(done, r->f, E_IO, "%s: cannot read: %s", path, strerror(errno));
    HVT_TRY_OR(done, read_head(r));
    for (int head = 0; read_row(r, &fields);) {
        head = r->column[PART];
        HVT_CHECK_OR(done, fields > head, E_FORMAT,
                     "%s, line %lld: expected more than %d fields, got %d: the table is cut off", path,
                     (long long)r->line, head, fields);
        HVT_TRY_OR(done, add_row(r, &c));
    }
    HVT_CHECK_OR(done, !ferror(r->f), E_IO, "%s: cannot read: %s", path, strerror(errno));
    HVT_TRY_OR(done, count_pairs(r, &c));
done:
    if (r->f)
        fclose(r->f);
    free(r->key);
    free(r);
    if (s)
        hvt__confusion_free(&c);
    *ret = c;
    return s;
}

void hvt__confusion_free(hvt__confusion *c)
{
    free(c->pair);
    free(c->count);
    free(c->in_class);
    free(c->name);
    *c = (hvt__confusion){0};
}
