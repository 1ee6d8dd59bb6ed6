/*
 * --resume, --init and --save before the run: the folder that each of them means, and the checkpoint's
 * options, which apply if neither the command line nor --config sets them. From --init only those that
 * determine the reading of images are used. Rank 0 reads the files. Also what else a run reads from such a
 * file besides tensors.
 */
#include "checkpoint_impl.h"
#include "train/cli/cli_impl.h"
#include "base_impl.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

hvt_status hvt__weights_classes(const char *path, int *ret_classes)
{
    char file[PATH_MAX];
    hvt_st *st = NULL;
    const hvt_st_tensor *t;
    hvt_status s;

    HVT_TRY(hvt__weights_file(path, file));
    HVT_TRY(hvt__st_open(file, &st));
    t = hvt__weights_tensor(st, "fc.bias");
    HVT_CHECK_OR(done, t && t->ndim == 1 && t->dim[0] > 0 && t->dim[0] <= INT_MAX, E_FORMAT,
                 "%s has no fc.bias to tell the number of classes: give --classes N", file);
    *ret_classes = (int)t->dim[0];
    s = HVT_OK;
done:
    hvt__st_close(&st);
    return s;
}

/* Reads class names and options from a file's metadata; either pointer may be NULL. */
static hvt_status read_metadata(const char *path, json_t **ret_names, json_t **ret_options)
{
    char file[PATH_MAX];
    hvt_st *st = NULL;
    json_t *meta = NULL, *names = NULL, *options;
    hvt_status s;

    HVT_TRY(hvt__weights_file(path, file));
    HVT_TRY(hvt__st_open(file, &st));
    s = hvt__metadata_is_ours(st) ? hvt__metadata_read(st, &meta) : HVT_OK;
    if (s == HVT_OK)
        s = hvt__metadata_class_names(st, meta, &names);
    options = json_object_get(meta, "options");
    *ret_names = json_incref(names);
    *ret_options = json_incref(json_is_object(options) ? options : NULL);
    json_decref(meta);
    hvt__st_close(&st);
    return s;
}

hvt_status hvt__weights_class_names(const char *path, json_t **ret_names)
{
    json_t *options = NULL;
    hvt_status s = read_metadata(path, ret_names, &options);

    json_decref(options);
    return s;
}

hvt_status hvt__weights_options(const char *path, json_t **ret_options)
{
    json_t *names = NULL;
    hvt_status s = read_metadata(path, &names, ret_options);

    json_decref(names);
    return s;
}

/* True if both paths name one folder. */
static bool same_folder(const char *a, const char *b)
{
    char path[2][PATH_MAX];

    return !strcmp(a, b) || (realpath(a, path[0]) && realpath(b, path[1]) && !strcmp(path[0], path[1]));
}

/* Drops --val-split and --limit, which choose among the images of one set, if another set is evaluated. */
static void leave_choices(const hvt_options *o, json_t *saved)
{
    static const char *const flags[] = {"val-split", "limit"};
    const char *dir = json_string_value(json_object_get(saved, "data-dir"));
    const char *data = json_string_value(json_object_get(saved, "data"));
    bool other = (o->from[HVT__AT_data_dir] > HVT_FROM_CHECKPOINT && dir && !same_folder(dir, o->data_dir)) ||
                 (o->from[HVT__AT_data] > HVT_FROM_CHECKPOINT && data && strcmp(data, o->data));

    for (size_t i = 0; other && i < HVT_LEN(flags); i++) {
        const int at = i ? HVT__AT_limit : HVT__AT_val_split;
        const char *was = json_string_value(json_object_get(saved, flags[i]));

        if (was && strcmp(was, hvt__option_table[at].preset) && o->from[at] <= HVT_FROM_CHECKPOINT)
            HVT_INFO(
                "note: --%s %s in %s belongs to %s, so all images of %s are used; --%s %s would choose among "
                "these, too",
                flags[i], was, o->resume, dir && *dir ? dir : data, *o->data_dir ? o->data_dir : o->data,
                flags[i], was);
        json_object_del(saved, flags[i]);
    }
}

/* Reduces a checkpoint's options to those for an evaluation; *text is replaced. */
static hvt_status take_for_evaluation(const hvt_options *o, char **text)
{
    json_t *saved = json_loads(*text, 0, NULL);
    char *left;

    if (!json_is_object(saved)) { /* its reader reports the error */
        json_decref(saved);
        return HVT_OK;
    }
    leave_choices(o, saved);
    left = json_dumps(saved, JSON_COMPACT);
    json_decref(saved);
    HVT_CHECK(left, E_MEM, "no memory for the options of %s", o->resume);
    free(*text);
    *text = left;
    return HVT_OK;
}

/* Adds --schedule-by epoch to the options of older files, whose rates changed once an epoch. *text is
 * replaced. */
static hvt_status add_older_defaults(char **text)
{
    json_t *saved = json_loads(*text, 0, NULL);
    char *more = NULL;
    hvt_status s = HVT_OK;

    if (json_is_object(saved) && !json_object_get(saved, "schedule-by")) {
        json_object_set_new(saved, "schedule-by", json_string("epoch"));
        more = json_dumps(saved, JSON_COMPACT);
        HVT_CHECK_OR(done, more, E_MEM, "no memory for options");
        free(*text);
        *text = more;
    }
done:
    json_decref(saved);
    return s;
}

/* On rank 0: reads a checkpoint's options, a JSON object, malloc'ed. */
static hvt_status read_options(const char *path, char **ret_text)
{
    hvt_progress p = {0};
    hvt_status s;

    if (hvt_checkpoint_load(path, NULL, NULL, &p))
        return HVT_FAIL(E_IO, "--resume: %s", hvt_last_error());
    if (!p.options)
        p.options = strdup("{}");
    HVT_CHECK(p.options, E_MEM, "no memory for the options of %s", path);
    s = add_older_defaults(&p.options);
    if (s == HVT_OK) {
        *ret_text = p.options;
        p.options = NULL;
    }
    hvt__progress_free(&p);
    return s;
}

/* On rank 0: reads the options that describe the images of --init's weights, as a JSON object, malloc'ed. A
 * .pt2 file has its own image size. Errors of the file are reported when it is loaded. */
static hvt_status read_preprocessing(const hvt_options *o, char **ret_text)
{
    static const char *const taken[] = {"mean", "std", "grey", "exif"};
    json_t *saved = NULL, *mine = json_object(), *images;
    int side;

    if (hvt__weights_options(o->init, &saved))
        saved = NULL;
    for (size_t i = 0; i < HVT_LEN(taken); i++)
        json_object_set(mine, taken[i], json_object_get(saved, taken[i]));
    images = json_object_get(saved, "images");
    side = (int)json_integer_value(json_object_get(images, "height"));
    if (o->from[HVT__AT_size] < HVT_FROM_CONFIG && !hvt__is_model_file(o->model)) {
        if (side && side == json_integer_value(json_object_get(images, "width")))
            json_object_set_new(mine, "size", json_sprintf("%d", side));
        else if (!images)
            json_object_set(mine, "size", json_object_get(saved, "size"));
        json_object_set(mine, "eval-size", json_object_get(saved, "eval-size"));
    }
    *ret_text = mine ? json_dumps(mine, JSON_COMPACT) : NULL;
    json_decref(saved);
    json_decref(mine);
    HVT_CHECK(*ret_text, E_MEM, "no memory for the options of %s", o->init);
    return HVT_OK;
}

/* What is at the path of --resume, on rank 0. */
enum { FOUND = 1, IS_FOLDER = 2 };

static int64_t look(const char *path)
{
    char file[PATH_MAX];
    struct stat info;
    int64_t found = 0;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        found |= IS_FOLDER;
    if (hvt__weights_file(path, file) == HVT_OK && access(file, F_OK) == 0)
        found |= FOUND;
    return found;
}

/* --resume auto becomes a folder or nothing; --resume DIR also sets --save DIR. */
static hvt_status resolve_folders(hvt_options *o, hvt_world *world, bool saves)
{
    bool automatic = !strcmp(o->resume, "auto");
    const char *path = automatic ? o->save : o->resume;
    int64_t found = hvt_world_rank(world) == 0 ? look(path) : 0;

    HVT_TRY(hvt_world_broadcast(world, &found, sizeof found, 0));
    if (automatic && !(found & FOUND)) {
        o->resume = "";
        if (!o->quiet)
            HVT_INFO("note: --resume auto: %s holds no checkpoint, so a new run starts", o->save);
    } else if (automatic) {
        o->resume = strcmp(o->save, "auto") ? o->save : "./auto"; /* "auto" itself has a meaning */
        o->init = "";                                             /* used only for new runs */
        o->reset_head = false;
        if (!o->quiet)
            HVT_INFO("note: --resume auto: the run continues with %s", o->save);
    } else if (found == IS_FOLDER) {
        return HVT_FAIL(E_IO, "--resume %s: holds no checkpoint; --save %s --resume auto starts a run there",
                        path, path);
    } else if ((found & IS_FOLDER) && saves) {
        o->save = o->resume;
    }
    return HVT_OK;
}

hvt_status hvt__options_resume(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    bool none = !strcmp(opts->save, "none"), automatic = !strcmp(opts->resume, "auto"), init;
    hvt_options filled = *opts;
    char what[HVT_OPTION_VALUE + 60], *text = NULL;
    bool root = hvt_world_rank(world) == 0;
    hvt_status s = HVT_OK;

    if (none)
        filled.save = "";
    if (*filled.resume && !(automatic && (!*filled.save || filled.overwrite || filled.evaluate)))
        HVT_TRY(resolve_folders(&filled, world,
                                !none && !*filled.save && !filled.evaluate &&
                                    (filled.ask == HVT_ASK_TRAIN || filled.ask == HVT_ASK_CHECK)));
    init = *filled.init && !*filled.resume && filled.ask != HVT_ASK_PACK;
    if (!init && (!*filled.resume || !strcmp(filled.resume, "auto"))) { /* refused later */
        *opts = filled;
        *ret_memory = NULL;
        return HVT_OK;
    }
    if (root)
        s = init ? read_preprocessing(&filled, &text) : read_options(filled.resume, &text);
    if (text && s == HVT_OK && filled.evaluate && !init)
        s = take_for_evaluation(&filled, &text);
    snprintf(what, sizeof what, "%s was saved with an invalid option", init ? filled.init : filled.resume);
    HVT_TRY(hvt__options_share(&filled, HVT_FROM_CHECKPOINT, world, s, text, what, ret_memory));
    *opts = filled;
    return HVT_OK;
}
