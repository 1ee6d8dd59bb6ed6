/* hvtrain inspect: recognises the kind of each argument. */
#include "inspect.h"
#include "inspect_impl.h"
#include "base_impl.h"
#include "model/pt2/passes.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);

    return n > m && !strcmp(text + n - m, end);
}

/* True for a zip archive, which torch.export.save() writes. */
static bool is_zip(const char *path)
{
    FILE *f = fopen(path, "re");
    bool is = f && fgetc(f) == 'P' && fgetc(f) == 'K';

    if (f)
        fclose(f);
    return is;
}

static bool is_zoo_name(const char *word)
{
    for (int i = 0; hvt_zoo_name(i); i++)
        if (!strcmp(hvt_zoo_name(i), word))
            return true;
    return false;
}

static hvt_status inspect(const hvt_options *opts, const char *word, FILE *f)
{
    hvt_options o = *opts;
    struct stat info;
    char hint[HVT_HINT];
    const bool is_there = stat(word, &info) == 0;

    o.model = word;
    if (is_zoo_name(word))
        return hvt__inspect_model(&o, f);
    if (is_there && S_ISDIR(info.st_mode))
        return hvt__inspect_folder(word, f);
    if (ends_in(word, ".pt2") || (is_there && S_ISREG(info.st_mode) && is_zip(word)))
        return o.passes ? hvt__pt2_print_passes(word, f) : hvt__inspect_model(&o, f);
    if (is_there || ends_in(word, HVT_CHECKPOINT_END))
        return hvt__inspect_file(word, f);
    HVT_CHECK(!strchr(word, '/') && errno == ENOENT, E_IO, "%s: %s", word, strerror(errno));
    hvt__hint_value(hvt__option_named("model", strlen("model")), word, hint);
    return HVT_FAIL(E_IO, "%s: no such file, and no model of that name%s", word, hint);
}

hvt_status hvt__inspect(const hvt_options *given)
{
    const hvt_options settled = hvt__options_settled(given), *opts = &settled;
    const char *const model[] = {opts->model};
    const char *const *files = opts->nfiles ? opts->files : model;
    const bool images = *opts->output;
    const int n = opts->nfiles ? opts->nfiles : 1;
    hvt_status s = HVT_OK;

    HVT_CHECK(!images || !opts->nfiles, E_ARG,
              "inspect %s --output %s: --output is for the images of --data, without a model or file",
              files[0], opts->output);
    for (int i = 0; i < n && s == HVT_OK; i++) {
        char *text = NULL;
        size_t bytes;
        FILE *f = open_memstream(&text, &bytes); /* if a file fails, only the error is printed */

        HVT_CHECK(f, E_MEM, "no memory to inspect %s", files[i]);
        if (n > 1)
            fprintf(f, "%s%s:\n", i ? "\n" : "", files[i]);
        s = images ? hvt__inspect_images(opts, f) : inspect(opts, files[i], f);
        if (fclose(f) && s == HVT_OK)
            s = HVT_FAIL(E_MEM, "no memory to inspect %s", files[i]);
        if ((s == HVT_OK || opts->passes) && !hvt__write(STDOUT_FILENO, text, bytes))
            s = HVT_FAIL(E_IO, "inspect %s: cannot write to stdout: %s", files[i], strerror(errno));
        free(text);
    }
    return s;
}
