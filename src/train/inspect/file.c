/*
 * Prints the contents of safetensors files and folders of checkpoints. Only headers are read; the data of a
 * single file are verified, too, if it has a hash of them.
 */
#include "inspect_impl.h"
#include "base_impl.h"

#include <inttypes.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_MOST = 200, VALUE_MOST = 300 };

/* ---- what hvtrain says of its own files ---- */

/* True if the value is not the option's default. Options of other versions have none. */
static bool is_chosen(const char *flag, const char *value)
{
    const hvt__option *o = hvt__option_named(flag, strlen(flag));

    if (hvt__is_word_of("device|isa", flag)) /* the hardware of that run */
        return false;
    if (hvt__is_word_of("model|mean|std", flag)) /* other lines show them */
        return false;
    return !o || !hvt__option_is_default(o, value);
}

/* Prints the options that differ from their defaults, as typed, wrapped. */
static void print_options(const char *json, FILE *f)
{
    enum { AT = 12, MOST = 100 };
    json_t *all = json ? json_loads(json, 0, NULL) : NULL, *value;
    char word[HVT_SHELL_WORD], text[HVT_SHELL_WORD + 80];
    const char *flag;
    int col = 0, n = 0;

    fprintf(f, "options     ");
    json_object_foreach(all, flag, value)
    {
        if (!json_is_string(value) || !is_chosen(flag, json_string_value(value)))
            continue;
        int len =
            snprintf(text, sizeof text, "--%s %s", flag, hvt__shell_word(json_string_value(value), word));
        if (n++ && AT + col + len > MOST) {
            fprintf(f, "\n%*s", AT, "");
            col = 0;
        }
        col += len + 1;
        if (col > len + 1)
            fputc(' ', f);
        hvt__print_text(f, text, VALUE_MOST);
    }
    fputs(n ? "\n            (all others have their defaults)\n" : all ? "the defaults\n" : "unknown\n", f);
    json_decref(all);
}

static void print_class_names(const char *json, FILE *f)
{
    enum { SHOWN = 20 };
    json_t *names = json ? json_loads(json, 0, NULL) : NULL, *name;
    size_t i, n = json_array_size(names);

    if (n)
        fprintf(f, "classes     %zu: ", n);
    json_array_foreach(names, i, name)
    {
        if (i == SHOWN) {
            fputs(", ...", f);
            break;
        }
        fputs(i ? ", " : "", f);
        hvt__print_text(f, json_is_string(name) ? json_string_value(name) : "?", NAME_MOST);
    }
    if (n)
        fputc('\n', f);
    json_decref(names);
}

/* Prints the preparation of images, from the options. */
static void print_images(const char *json, FILE *f)
{
    json_t *all = json ? json_loads(json, 0, NULL) : NULL, *images = json_object_get(all, "images");
    const char *mean = json_string_value(json_object_get(all, "mean"));
    const char *std = json_string_value(json_object_get(all, "std"));
    const char *grey = json_string_value(json_object_get(all, "grey"));
    const char *exif = json_string_value(json_object_get(all, "exif"));

    if (images)
        fprintf(f, "images      %dx%d%s, --mean %.60s --std %.60s%s\n",
                (int)json_integer_value(json_object_get(images, "height")),
                (int)json_integer_value(json_object_get(images, "width")),
                grey && !strcmp(grey, "on") ? ", one channel" : "", mean ? mean : "?", std ? std : "?",
                exif && !strcmp(exif, "on") ? " --exif on" : "");
    json_decref(all);
}

static void top1_text(double top1, char *ret_text, size_t bytes)
{
    snprintf(ret_text, bytes, top1 >= 0 ? "%.2f %%" : "-", top1);
}

/* Prints model, progress, options, classes and images of a checkpoint. */
static void print_progress(const hvt_progress *p, FILE *f)
{
    json_t *options = p->options ? json_loads(p->options, 0, NULL) : NULL;
    const char *model = json_string_value(json_object_get(options, "model"));
    char top1[40];

    top1_text(p->top1, top1, sizeof top1);
    fprintf(f, "model       ");
    hvt__print_text(f, model ? model : "unknown", NAME_MOST);
    fprintf(f, "\nprogress    epoch %d", p->epoch);
    if (p->step)
        fprintf(f, " and %u updates of the next", p->step);
    fprintf(f, ", %" PRId64 " updates in all; top-1 %s\n", p->steps, p->top1 >= 0 ? top1 : "not evaluated");
    if (options)
        fprintf(f, "device      %.40s (%.40s)\n", hvt__metadata_text(options, "device"),
                hvt__metadata_text(options, "isa"));
    print_options(p->options, f);
    print_class_names(p->class_names, f);
    print_images(p->options, f);
    json_decref(options);
}

/* Prints the hash of the weights, as a run does at its end. */
static void print_weights(const hvt_st *st, FILE *f)
{
    json_t *meta = NULL;

    if (hvt__metadata_read(st, &meta) == HVT_OK && *hvt__metadata_text(meta, "weights"))
        fprintf(f, "weights     %.16s\n", hvt__metadata_text(meta, "weights"));
    json_decref(meta);
}

/* ---- a file ---- */

static void dims_text(const hvt_st_tensor *t, char *ret_text, size_t bytes)
{
    size_t n = (size_t)snprintf(ret_text, bytes, "[");

    for (int i = 0; i < t->ndim && n < bytes; i++)
        n += (size_t)snprintf(ret_text + n, bytes - n, i ? ", %" PRId64 : "%" PRId64, t->dim[i]);
    if (n < bytes)
        snprintf(ret_text + n, bytes - n, "]");
}

static hvt_status print_tensors(const hvt_st *st, FILE *f)
{
    hvt__grid table = {.form = "llrrr"};
    char dims[8 * 24], count[HVT__DIGITS], bytes[HVT__DIGITS], size[HVT__SIZE_TEXT];
    uint64_t elements = 0;
    hvt_status s;

    hvt__grid_row(&table, "tensor", "type", "shape", "elements", "bytes");
    hvt__grid_rule(&table);
    for (const hvt_st_tensor *t = st->tensor; t < st->tensor + st->n; t++) {
        char *name = NULL;
        size_t len;
        FILE *clean = open_memstream(&name, &len); /* a name may contain anything */

        if (clean) {
            hvt__print_text(clean, t->name, NAME_MOST);
            fclose(clean);
        }
        dims_text(t, dims, sizeof dims);
        hvt__grid_row(&table, name ? name : "?", t->type_name, dims,
                      hvt__digits((int64_t)t->count, false, count),
                      hvt__digits((int64_t)(t->end - t->first), false, bytes));
        free(name);
        elements += t->count;
    }
    s = hvt__grid_print(&table, f);
    hvt__size_text(st->data + st->bytes, size);
    fprintf(f, "\ntensors     %d, %s elements; the file has %s\n", st->n,
            hvt__digits((int64_t)elements, false, count), size);
    return s;
}

static void print_metadata(const hvt_st *st, FILE *f)
{
    const char *key;
    json_t *value;

    json_object_foreach(st->meta, key, value)
    {
        if (!strcmp(key, "hvtrain") || !strcmp(key, HVT_ST_DIGEST) || !strcmp(key, HVT_ST_SEAL))
            continue;
        fprintf(f, "metadata    ");
        hvt__print_text(f, key, NAME_MOST);
        fputs(": ", f);
        hvt__print_text(f, json_string_value(value), VALUE_MOST);
        fputc('\n', f);
    }
}

static hvt_status print_file(hvt_st *st, FILE *f)
{
    const bool hashed = hvt__st_meta(st, HVT_ST_DIGEST);
    hvt_progress p = {0};

    HVT_TRY(hvt__st_verify(st));
    HVT_TRY(print_tensors(st, f));
    print_metadata(st, f);
    fprintf(f, hashed ? "data        as written: their hash fits\n"
                      : "data        without a hash to compare with\n");
    /* a sidecar file has no progress */
    if (hvt__metadata_is_ours(st) && hvt__checkpoint_read(st->path, NULL, NULL, false, &p) == HVT_OK) {
        print_progress(&p, f);
        print_weights(st, f);
        hvt__progress_free(&p);
    }
    return HVT_OK;
}

hvt_status hvt__inspect_file(const char *path, FILE *f)
{
    hvt_st *st = NULL;
    hvt_status s;

    HVT_TRY(hvt__st_open(path, &st));
    s = print_file(st, f);
    hvt__st_close(&st);
    return s;
}

/* ---- a folder ---- */

/* The bytes of a checkpoint's files. */
static uint64_t bytes_of(const char *dir, const char *file)
{
    char sidecar[HVT__SIDECARS][128], path[PATH_MAX];
    struct stat info;
    uint64_t bytes = stat(file, &info) == 0 ? (uint64_t)info.st_size : 0;

    if (hvt__checkpoint_sidecars(file, sidecar))
        return bytes;
    for (int i = 0; i < HVT__SIDECARS; i++)
        if (*sidecar[i] && hvt__path(path, "%s/%s", dir, sidecar[i]) == HVT_OK && stat(path, &info) == 0)
            bytes += (uint64_t)info.st_size;
    return bytes;
}

/* "last, best" */
static void names_of(const char *dir, const char *file, char ret_text[16])
{
    static const char *const names[] = {"last", "best"};
    char path[PATH_MAX];

    *ret_text = 0;
    for (size_t i = 0; i < HVT_LEN(names); i++)
        if (hvt__path(path, "%s/%s" HVT_CHECKPOINT_END, dir, names[i]) == HVT_OK &&
            hvt__is_same_file(path, file))
            snprintf(ret_text + strlen(ret_text), 16 - strlen(ret_text), "%s%s", *ret_text ? ", " : "",
                     names[i]);
}

static hvt_status print_generations(const char *dir, const hvt__generations *g, FILE *f)
{
    hvt__grid table = {.form = "lrrrrl"};
    char epoch[24], updates[HVT__DIGITS], top1[40], size[HVT__SIZE_TEXT], names[16];

    hvt__grid_row(&table, "checkpoint", "epoch", "updates", "top-1", "size", "name");
    hvt__grid_rule(&table);
    for (int i = 0; i < g->n; i++) {
        const hvt__generation *at = &g->at[i];
        const char *slash = strrchr(at->path, '/');

        hvt__size_text(bytes_of(dir, at->path), size);
        names_of(dir, at->path, names);
        snprintf(epoch, sizeof epoch, "%d", at->p.epoch);
        top1_text(at->p.top1, top1, sizeof top1);
        if (at->is_readable)
            hvt__grid_row(&table, slash + 1, epoch, hvt__digits(at->p.steps, false, updates), top1, size,
                          names);
        else
            hvt__grid_row(&table, slash + 1, "-", "-", "-", size, at->why);
    }
    return hvt__grid_print(&table, f);
}

hvt_status hvt__inspect_folder(const char *dir, FILE *f)
{
    const hvt__generation *first;
    hvt__generations g = {0};
    hvt_progress p = {0};
    hvt_st *st = NULL;
    double best = -1;
    hvt_status s = HVT_OK;

    HVT_TRY(hvt__generations_open(dir, &g));
    first = hvt__generations_first(&g);
    if (!g.n) { /* checkpoints of hvt_checkpoint_save() */
        HVT_TRY(hvt_checkpoint_load(dir, NULL, NULL, &p));
        print_progress(&p, f);
        hvt__progress_free(&p);
        return HVT_OK;
    }
    HVT_CHECK_OR(done, first, E_FORMAT, "%s", g.at[0].why);
    HVT_TRY_OR(done, hvt__st_open(first->path, &st));
    print_progress(&first->p, f);
    print_weights(st, f);
    for (int i = 0; i < g.n; i++)
        best = g.at[i].is_readable && g.at[i].p.top1 > best ? g.at[i].p.top1 : best;
    if (best >= 0)
        fprintf(f, "best        top-1 %.2f %%\n", best);
    fputc('\n', f);
    s = print_generations(dir, &g, f);
done:
    hvt__st_close(&st);
    hvt__generations_close(&g);
    return s;
}
