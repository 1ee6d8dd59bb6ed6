/*
 * The options of a run that --resume goes on with: a checkpoint holds those that it was made with, rank 0
 * reads them, and they fill in what neither the command line nor --config gives. Before that, what --resume
 * and
 * --save mean together.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Rank 0's alone: "--flag=value" a line, malloc'ed. */
static hvt_status read_options(const char *path, char **ret_text, size_t *ret_bytes)
{
    hvt_progress p = {0};

    if (hvt_checkpoint_load(path, NULL, NULL, &p))
        return HVT_FAIL(E_IO, "--resume: %s", hvt_last_error());
    if (!p.options)
        p.options = calloc(1, 1);
    HVT_CHECK(p.options, E_MEM, "no memory for the options of %s", path);
    *ret_text = p.options;
    *ret_bytes = strlen(p.options);
    return HVT_OK;
}

/* What rank 0 finds where --resume points. */
enum { FOUND = 1, IS_FOLDER = 2 };

static int64_t look(const char *path)
{
    char file[HVT_OPTION_VALUE];
    struct stat info;
    int64_t found = 0;

    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode))
        found |= IS_FOLDER;
    if (hvt__checkpoint_file(path, file, sizeof file) == HVT_OK && access(file, F_OK) == 0)
        found |= FOUND;
    return found;
}

/* --resume auto becomes a folder or nothing; --resume DIR becomes --save DIR, too. */
static hvt_status settle_places(hvt_options *o, hvt_world *world, bool saves)
{
    bool automatic = !strcmp(o->resume, "auto");
    const char *place = automatic ? o->save : o->resume;
    int64_t found = hvt_world_rank(world) == 0 ? look(place) : 0;

    HVT_TRY(hvt_world_broadcast(world, &found, sizeof found, 0));
    if (automatic && !(found & FOUND)) {
        o->resume = "";
        HVT_INFO("note: --resume auto: %s holds no checkpoint, so the run begins", o->save);
    } else if (automatic) {
        o->resume = strcmp(o->save, "auto") ? o->save : "./auto"; /* the word is taken */
        o->init = "";                                             /* what the run began with */
        o->init_skip_head = false;
        HVT_INFO("note: --resume auto: the run goes on with %s", o->save);
    } else if ((found & IS_FOLDER) && saves) {
        o->save = o->resume;
    }
    return HVT_OK;
}

/* An option that a checkpoint of an earlier version may hold, and that means nothing any more. */
static bool is_gone(const char *flag, const char *value)
{
    if (!strcmp(flag, "--error-feedback") && !strcmp(value, "on"))
        HVT_INFO("note: the run had --error-feedback on, which is no more: it goes on without");
    return !strcmp(flag, "--error-feedback") || (!strcmp(flag, "--bucket") && !strcmp(value, "auto"));
}

hvt_status hvt_options_resume(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_memory, "a place for the memory");

    bool none = !strcmp(opts->save, "none"), automatic = !strcmp(opts->resume, "auto");
    hvt_options filled = *opts;
    char *text = NULL, *rest = NULL, what[HVT_OPTION_VALUE];
    size_t bytes = 0;
    bool batch = false;
    hvt_status s = HVT_OK;

    if (none)
        filled.save = "";
    if (*filled.resume && !(automatic && (!*filled.save || filled.overwrite || filled.evaluate)))
        HVT_TRY(settle_places(&filled, world,
                              !none && !*filled.save && !filled.evaluate && filled.ask == HVT_ASK_TRAIN));
    if (!*filled.resume || !strcmp(filled.resume, "auto")) { /* the latter hvt_options_check() refuses */
        *opts = filled;
        *ret_memory = NULL;
        return HVT_OK;
    }
    if (hvt_world_rank(world) == 0)
        s = read_options(filled.resume, &text, &bytes);
    snprintf(what, sizeof what, "the options of %.4000s", filled.resume);
    HVT_TRY(hvt__share_text(world, s, what, &text, &bytes));
    for (int i = 0; i < HVT_OPTION_COUNT; i++) /* they are two ways to say one thing */
        batch |= opts->from[i] >= HVT_FROM_CONFIG &&
                 (!strcmp(hvt__option_flag(i), "--batch") || !strcmp(hvt__option_flag(i), "--global-batch"));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        int i = 0;
        if (!value)
            continue;
        *value++ = 0;
        if (is_gone(line, value))
            continue;
        while (i < HVT_OPTION_COUNT && strcmp(hvt__option_flag(i), line))
            i++;
        if (i == HVT_OPTION_COUNT || opts->from[i] >= HVT_FROM_CONFIG ||
            hvt__option_scope(i) != HVT_SCOPE_RUN)
            continue; /* written by another version: what is not known here has its default */
        if (batch && (!strcmp(line, "--batch") || !strcmp(line, "--global-batch")))
            continue;
        s = hvt_options_set(&filled, line + 2, value);
        if (s) {
            s = HVT_FAIL(E_FORMAT, "%s was saved with an option that is not understood here: %s",
                         filled.resume, hvt_last_error());
            hvt__error_agreed(true); /* every rank read the same text */
            free(text);
            return s;
        }
        filled.from[i] = HVT_FROM_CHECKPOINT;
    }
    *opts = filled;
    *ret_memory = text;
    return HVT_OK;
}
