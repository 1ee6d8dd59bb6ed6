/*
 * The options of a run that --resume goes on with: a checkpoint holds those that it was made with, rank 0
 * reads them, and they fill in what neither the command line nor --config gives.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>

/* "--flag=value" a line, broadcast; *ret_text is malloc'ed on every rank. */
static hvt_status share_options(const char *path, hvt_world *world, char **ret_text)
{
    hvt_progress p = {0};
    hvt_status s = HVT_OK;
    int64_t bytes = 0;
    char *text;

    if (hvt_world_rank(world) == 0) {
        s = hvt_checkpoint_load(path, NULL, NULL, &p);
        if (s)
            s = HVT_FAIL(E_IO, "--resume: %s", hvt_last_error());
        bytes = p.options ? (int64_t)strlen(p.options) : 0;
    }
    s = hvt_world_agree(world, s);
    if (s == HVT_OK)
        s = hvt_world_broadcast(world, &bytes, sizeof bytes, 0);
    text = s == HVT_OK ? calloc((size_t)bytes + 1, 1) : NULL;
    if (s == HVT_OK)
        s = hvt_world_agree(world, text ? HVT_OK : HVT_FAIL(E_MEM, "no memory for the options of %s", path));
    if (s == HVT_OK && p.options)
        memcpy(text, p.options, (size_t)bytes);
    if (s == HVT_OK && bytes)
        s = hvt_world_broadcast(world, text, (size_t)bytes, 0);
    free(p.options);
    if (s) {
        free(text);
        return s;
    }
    *ret_text = text;
    return HVT_OK;
}

hvt_status hvt_options_resume(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    hvt_options filled = *opts;
    char *text = NULL, *rest = NULL;
    bool batch = false;
    hvt_status s;

    HVT_TRY(share_options(opts->resume, world, &text));
    for (int i = 0; i < HVT_OPTION_COUNT; i++) /* they are two ways to say one thing */
        batch |= opts->from[i] >= HVT_FROM_CONFIG &&
                 (!strcmp(hvt__option_flag(i), "--batch") || !strcmp(hvt__option_flag(i), "--global-batch"));
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        int i = 0;
        if (!value)
            continue;
        *value++ = 0;
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
                         opts->resume, hvt_last_error());
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
