/*
 * --config: options from a file, below the command line and above a checkpoint.
 *
 * The file is one JSON object; what it says under "note" is for people. Rank 0 reads it, and its text
 * travels.
 */
#include "train_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_BYTES = 1 << 20 };

/* ---- the file ---- */

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

/* ---- what it says ---- */

static const char *kind_of(const json_t *value)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "text",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};

    return name[json_typeof(value)];
}

/* The value as a flag would take it; it fits into ret_text, or is cut off and will not be understood. */
static hvt_status as_text(const char *path, const char *key, int option, const json_t *value,
                          char ret_text[HVT_OPTION_VALUE])
{
    bool fits = json_is_string(value) ||
                (json_is_number(value) && !hvt__option_is_text(option) && !hvt__option_is_switch(option)) ||
                (json_is_boolean(value) && hvt__option_is_switch(option));

    HVT_CHECK(fits, E_FORMAT, "--config %s: %s: expected %s, got %s", path, key,
              hvt__option_is_text(option)     ? "text"
              : hvt__option_is_switch(option) ? "true or false"
                                              : "a number or text",
              kind_of(value));
    if (json_is_string(value)) {
        HVT_CHECK(json_string_length(value) < HVT_OPTION_VALUE &&
                      strlen(json_string_value(value)) == json_string_length(value),
                  E_FORMAT, "--config %s: %s: expected at most %d bytes of text, none of them 0", path, key,
                  HVT_OPTION_VALUE - 1);
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_string_value(value));
    } else if (json_is_integer(value)) {
        snprintf(ret_text, HVT_OPTION_VALUE, "%lld", (long long)json_integer_value(value));
    } else if (json_is_real(value)) {
        snprintf(ret_text, HVT_OPTION_VALUE, "%.17g", json_real_value(value));
    } else {
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_is_true(value) ? "on" : "off");
    }
    return HVT_OK;
}

static hvt_status find_option(const char *path, const char *key, int *ret_option)
{
    char near[HVT_OPTION_FLAG], here[200];

    *ret_option = hvt__option_find(key);
    HVT_CHECK(*ret_option != hvt__option_find("config"), E_FORMAT,
              "--config %s: %s: one file of options cannot name another", path, key);
    if (*ret_option >= 0)
        return HVT_OK;
    if (hvt__option_gone(key, here, sizeof here))
        return HVT_FAIL(E_FORMAT, "--config %s: there is no option '%s'; here: %s", path, key, here);
    if (hvt__option_nearest(key, near))
        return HVT_FAIL(E_FORMAT, "--config %s: there is no option '%s'; the nearest is '%s'", path, key,
                        near + strspn(near, "-"));
    return HVT_FAIL(E_FORMAT, "--config %s: there is no option '%s' (hvtrain --help lists them)", path, key);
}

/* --batch and --global-batch are two ways to say one thing: a flag for one is a flag for both. */
static bool flag_says(const hvt_options *opts, int option)
{
    int batch = hvt__option_find("batch"), global = hvt__option_find("global-batch");
    bool either = option == batch || option == global;

    return opts->from[option] == HVT_FROM_FLAG ||
           (either && (opts->from[batch] == HVT_FROM_FLAG || opts->from[global] == HVT_FROM_FLAG));
}

/* texts: room for the values, one behind the other; *used moves on. */
static hvt_status apply(hvt_options *opts, const hvt_options *flags, const char *key, const json_t *value,
                        char *texts, size_t *used)
{
    static char text[HVT_OPTION_VALUE];
    const char *path = flags->config;
    int option;

    HVT_TRY(find_option(path, key, &option));
    HVT_TRY(as_text(path, key, option, value, text));
    memcpy(texts + *used, text, strlen(text) + 1);
    if (flag_says(flags, option)) /* it loses, but has to be understood */
        option = -1;
    hvt_options tried = *opts;
    if (hvt_options_set(&tried, key, texts + *used))
        return HVT_FAIL(E_FORMAT, "--config %s: %s", path, hvt_last_error());
    if (option >= 0) {
        *used += strlen(text) + 1;
        *opts = tried;
        opts->from[option] = HVT_FROM_CONFIG;
    }
    return HVT_OK;
}

/* Bytes that the values need as texts, ends included; a number needs less than 40. */
static size_t room_for(json_t *all)
{
    size_t bytes = 0;

    for (void *i = json_object_iter(all); i; i = json_object_iter_next(all, i)) {
        const json_t *value = json_object_iter_value(i);

        bytes += (json_is_string(value) ? json_string_length(value) : 40) + 1;
    }
    return bytes + 1;
}

static hvt_status read_options(hvt_options *opts, const char *file, size_t bytes, void **ret_memory)
{
    json_error_t where;
    json_t *all = json_loadb(file, bytes, JSON_REJECT_DUPLICATES, &where);
    hvt_options filled = *opts;
    char *texts = NULL;
    size_t used = 0;
    hvt_status s = HVT_OK;

    HVT_CHECK(all, E_FORMAT, "--config %s: line %d: %s (expected JSON: {\"batch\": 64, ...})", opts->config,
              where.line, where.text);
    HVT_CHECK_OR(done, json_is_object(all), E_FORMAT,
                 "--config %s: expected an object of options ({\"batch\": 64}), got %s", opts->config,
                 kind_of(all));
    texts = malloc(room_for(all));
    HVT_CHECK_OR(done, texts, E_MEM, "--config %s: no memory for its values", opts->config);
    for (void *i = json_object_iter(all); i; i = json_object_iter_next(all, i)) {
        const char *key = json_object_iter_key(i);

        if (strcmp(key, "note"))
            HVT_TRY_OR(done, apply(&filled, opts, key, json_object_iter_value(i), texts, &used));
    }
    *opts = filled;
    *ret_memory = texts;
    texts = NULL;
done:
    free(texts);
    json_decref(all);
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
    s = hvt_world_agree(world, read_options(opts, file, bytes, ret_memory));
    free(file);
    return s;
}
