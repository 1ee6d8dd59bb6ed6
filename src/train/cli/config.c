/*
 * --config: options from a file, below the command line and above a checkpoint.
 *
 * The file is one JSON object; its key "note" is a comment. Rank 0 reads the file and broadcasts its text.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 1 << 20 };

static hvt_status read_file(const char *path, char **ret_text, size_t *ret_bytes)
{
    FILE *f = hvt__open_stream(path, false);
    struct stat info;
    char *text = NULL;
    size_t bytes;
    hvt_status s = HVT_OK;

    HVT_CHECK(f, E_IO, "--config %s: cannot read: %s", path, strerror(errno));
    HVT_CHECK_OR(done, fstat(fileno(f), &info) == 0 && !S_ISDIR(info.st_mode), E_IO,
                 "--config %s: expected a file, got a folder", path);
    text = malloc(MOST_BYTES + 1);
    HVT_CHECK_OR(done, text, E_MEM, "--config %s: no memory to read it", path);
    bytes = fread(text, 1, MOST_BYTES + 1, f);
    HVT_CHECK_OR(done, !ferror(f), E_IO, "--config %s: cannot read: %s", path, strerror(errno));
    HVT_CHECK_OR(done, bytes || !S_ISFIFO(info.st_mode), E_FORMAT,
                 "--config %s: an empty pipe: nobody writes to it", path);
    HVT_CHECK_OR(done, bytes <= MOST_BYTES, E_FORMAT, "--config %s: longer than %d bytes: no file of options",
                 path, MOST_BYTES);
    *ret_text = text;
    text[bytes] = 0;
    *ret_bytes = bytes;
    text = NULL;
done:
    free(text);
    fclose(f);
    return s;
}

hvt_status hvt_options_config(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    HVT_GIVEN(ret_memory, "a place for the memory");

    char *file = NULL, what[HVT_OPTION_VALUE];
    size_t bytes = 0;
    hvt_status s = HVT_OK;

    if (hvt_world_rank(world) == 0)
        s = read_file(opts->config, &file, &bytes);
    snprintf(what, sizeof what, "--config %.4000s", opts->config);
    HVT_TRY(hvt__share_text(world, s, what, &file, &bytes));
    s = strlen(file) == bytes
            ? hvt__options_fill(opts, HVT_FROM_CONFIG, file, ret_memory)
            : HVT_FAIL(E_FORMAT, "expected JSON, got a byte 0 after %zu others", strlen(file));
    if (s)
        s = hvt__fail(s == HVT_E_ARG ? HVT_E_FORMAT : s, __FILE__, __LINE__, "%s: %s", what,
                      hvt_last_error());
    free(file);
    return hvt_world_agree(world, s);
}
