/*
 * --resume and --save before the run: which folder each of them means, and the options of the checkpoint,
 * which apply where neither the command line nor --config sets them. Rank 0 reads the files.
 */
#include "checkpoint_impl.h"
#include "train/cli/cli_impl.h"
#include "base_impl.h"

#include <sys/stat.h>
#include <unistd.h>

/* On rank 0: a JSON object, malloc'ed. */
static hvt_status read_options(const char *path, char **ret_text)
{
    hvt_progress p = {0};

    if (hvt_checkpoint_load(path, NULL, NULL, &p))
        return HVT_FAIL(E_IO, "--resume: %s", hvt_last_error());
    if (!p.options)
        p.options = strdup("{}");
    HVT_CHECK(p.options, E_MEM, "no memory for the options of %s", path);
    *ret_text = p.options;
    p.options = NULL;
    hvt__progress_free(&p);
    return HVT_OK;
}

/* What rank 0 finds at the path of --resume. */
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

/* --resume auto becomes a folder or nothing; --resume DIR becomes --save DIR, too. */
static hvt_status resolve_folders(hvt_options *o, hvt_world *world, bool saves)
{
    bool automatic = !strcmp(o->resume, "auto");
    const char *path = automatic ? o->save : o->resume;
    int64_t found = hvt_world_rank(world) == 0 ? look(path) : 0;

    HVT_TRY(hvt_world_broadcast(world, &found, sizeof found, 0));
    if (automatic && !(found & FOUND)) {
        o->resume = "";
        HVT_INFO("note: --resume auto: %s holds no checkpoint, so the run starts", o->save);
    } else if (automatic) {
        o->resume = strcmp(o->save, "auto") ? o->save : "./auto"; /* the word itself has a meaning */
        o->init = "";                                             /* used at the beginning only */
        o->reset_head = false;
        HVT_INFO("note: --resume auto: the run continues with %s", o->save);
    } else if (found == IS_FOLDER) {
        return HVT_FAIL(E_IO, "--resume %s: holds no checkpoint; --save %s --resume auto starts a run there",
                        path, path);
    } else if ((found & IS_FOLDER) && saves) {
        o->save = o->resume;
    }
    return HVT_OK;
}

hvt_status hvt_options_resume(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_memory, "a place for the memory");

    bool none = !strcmp(opts->save, "none"), automatic = !strcmp(opts->resume, "auto");
    hvt_options filled = *opts;
    char what[HVT_OPTION_VALUE + 60], *text = NULL;
    hvt_status s = HVT_OK;

    if (none)
        filled.save = "";
    if (*filled.resume && !(automatic && (!*filled.save || filled.overwrite || filled.evaluate)))
        HVT_TRY(resolve_folders(&filled, world,
                                !none && !*filled.save && !filled.evaluate && filled.ask == HVT_ASK_TRAIN));
    if (!*filled.resume || !strcmp(filled.resume, "auto")) { /* hvt_options_check() refuses the latter */
        *opts = filled;
        *ret_memory = NULL;
        return HVT_OK;
    }
    if (hvt_world_rank(world) == 0)
        s = read_options(filled.resume, &text);
    snprintf(what, sizeof what, "%s was saved with an option that is not valid", filled.resume);
    HVT_TRY(hvt__options_share(&filled, HVT_FROM_CHECKPOINT, world, s, text, what, ret_memory));
    *opts = filled;
    return HVT_OK;
}
