/*
 * Options to and from a JSON object, {"flag without dashes": "value"}: in logs, checkpoints and the file of
 * --config, which ranks below the command line and above a checkpoint. Its key "note" is a comment. Rank 0
 * reads files and broadcasts their text.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <sys/stat.h>

json_t *hvt__json_text(const char *text)
{
    json_t *value = json_string(text);
    char *ascii = value ? NULL : strdup(text);

    for (char *p = ascii; p && *p; p++)
        *p = *p & 0x80 ? '?' : *p;
    if (ascii)
        value = json_string(ascii);
    free(ascii);
    return value;
}

json_t *hvt__options_json(const hvt_options *opts, hvt_scope least)
{
    char text[HVT_OPTION_VALUE];
    json_t *all = json_object();

    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (hvt__option_table[i].scope >= least) {
            hvt__option_text(opts, i, text);
            json_object_set_new(all, hvt__flag_of(&hvt__option_table[i]).text + 2, hvt__json_text(text));
        }
    return all;
}

static const char *kind_of(const json_t *value)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "text",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};

    return name[json_typeof(value)];
}

/* The text of a JSON string or number. */
static hvt_status scalar_text(const char *option, const json_t *value, char ret_text[HVT_OPTION_VALUE])
{
    HVT_CHECK(json_string_length(value) < HVT_OPTION_VALUE, E_FORMAT, "%s: expected at most %d bytes of text",
              option, HVT_OPTION_VALUE - 1);
    if (json_is_string(value))
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(ret_text, HVT_OPTION_VALUE, "%lld", (long long)json_integer_value(value));
    else
        hvt__num_text(json_real_value(value), ret_text);
    return HVT_OK;
}

/* Adds NAME=ITEM, or the item if there is no name, to a list with commas. */
static hvt_status add_item(const char *option, const char *name, const json_t *item,
                           char text[HVT_OPTION_VALUE])
{
    const size_t used = strlen(text), left = HVT_OPTION_VALUE - used;
    char value[HVT_OPTION_VALUE];

    HVT_CHECK(json_is_string(item) || json_is_number(item), E_FORMAT,
              "%s: expected a list of text and numbers, got %s in it", option, kind_of(item));
    HVT_TRY(scalar_text(option, item, value));
    HVT_CHECK((size_t)snprintf(text + used, left, "%s%s%s%s", used ? "," : "", name, *name ? "=" : "",
                               value) < left,
              E_FORMAT, "%s: expected at most %d bytes of text", option, HVT_OPTION_VALUE - 1);
    return HVT_OK;
}

/* [0.8, 0.999] as "0.8,0.999", {"fc": 10} as "fc=10" */
static hvt_status list_text(const char *option, const json_t *value, char ret_text[HVT_OPTION_VALUE])
{
    const char *name;
    json_t *item;
    size_t i;

    *ret_text = 0;
    HVT_CHECK(json_array_size(value) || json_object_size(value), E_FORMAT,
              "%s: expected a list of text and numbers, got an empty one", option);
    json_array_foreach(value, i, item) HVT_TRY(add_item(option, "", item, ret_text));
    json_object_foreach((json_t *)value, name, item) HVT_TRY(add_item(option, name, item, ret_text));
    return HVT_OK;
}

/* True if the option's form is a list, of items or of NAME=ITEM. */
static bool is_list(const hvt__option *o, bool named)
{
    return (o->kind == OPT_rgb || (o->kind == OPT_str && strchr(o->form, ','))) &&
           (!named || strchr(o->form, '='));
}

/* The value as a flag's text. */
static hvt_status as_text(const char *key, const hvt__option *o, const json_t *value,
                          char ret_text[HVT_OPTION_VALUE])
{
    const bool word = o->kind == OPT_pick, on_off = o->kind == OPT_bool;

    if ((json_is_array(value) && is_list(o, false)) || (json_is_object(value) && is_list(o, true)))
        return list_text(key, value, ret_text);
    if (json_is_boolean(value) && on_off) {
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_is_true(value) ? "on" : "off");
        return HVT_OK;
    }
    HVT_CHECK(json_is_string(value) || (json_is_number(value) && !word && !on_off), E_FORMAT,
              "%s: expected %s, got %s", key,
              word     ? "text"
              : on_off ? "true or false"
                       : "a number or text",
              kind_of(value));
    return scalar_text(key, value, ret_text);
}

/* True if opts has a value from a stronger source. --batch and --global-batch set the same thing, so either
 * counts for both. */
static bool is_taken(const hvt_options *opts, int i, hvt_from from)
{
    if (i == HVT__AT_batch || i == HVT__AT_global_batch)
        return opts->from[HVT__AT_batch] > from || opts->from[HVT__AT_global_batch] > from;
    return opts->from[i] > from;
}

/* Sets one option from JSON. text: memory for the value, to which opts then refers. */
static hvt_status fill_one(hvt_options *opts, hvt_from from, const char *key, const json_t *value,
                           char text[HVT_OPTION_VALUE])
{
    const hvt__option *o = hvt__option_named(key, strlen(key));
    hvt_options tried = *opts;
    int i = o ? (int)(o - hvt__option_table) : -1;
    char more[HVT_HINT];

    if (from == HVT_FROM_CHECKPOINT && (!o || o->scope != HVT_SCOPE_RUN || is_taken(opts, i, from)))
        return HVT_OK; /* options of other versions are ignored */
    if (!o) {
        hvt__hint_name(key, NULL, more);
        return HVT_FAIL(E_FORMAT, "unknown option %s; %s", key, more);
    }
    HVT_CHECK(i != HVT__AT_config, E_FORMAT, "%s: one file of options cannot name another", key);
    HVT_TRY(as_text(key, o, value, text));
    HVT_TRY(hvt_options_set(&tried, key, text));
    tried.from[i] = from;
    if (!is_taken(opts, i, from)) /* an overridden value must be valid, too */
        *opts = tried;
    return HVT_OK;
}

static hvt_status fill(hvt_options *opts, hvt_from from, const char *text, void **ret_memory)
{
    json_error_t where;
    json_t *all = json_loads(text, JSON_REJECT_DUPLICATES, &where), *value;
    const char *key;
    hvt_options filled = *opts;
    char(*texts)[HVT_OPTION_VALUE] = NULL;
    int n = 0;
    hvt_status s = HVT_OK;

    HVT_CHECK(all, E_FORMAT, "line %d: %s (expected JSON: {\"batch\": 64, ...})", where.line, where.text);
    HVT_CHECK_OR(done, json_is_object(all), E_FORMAT,
                 "expected an object of options ({\"batch\": 64}), got %s", kind_of(all));
    texts = calloc(json_object_size(all) + 1, sizeof *texts);
    HVT_CHECK_OR(done, texts, E_MEM, "no memory for %zu options", json_object_size(all));
    json_object_foreach(all, key, value) if (strcmp(key, "note"))
        HVT_TRY_OR(done, fill_one(&filled, from, key, value, texts[n++]));
    *opts = filled;
    *ret_memory = texts;
    texts = NULL;
done:
    free(texts);
    json_decref(all);
    return s;
}

enum { MOST_BYTES = 1 << 20 };

static hvt_status read_file(const char *path, char **ret_text)
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
                 "--config %s: the pipe is empty and has no writer", path);
    HVT_CHECK_OR(done, bytes <= MOST_BYTES, E_FORMAT,
                 "--config %s: expected a file of options, got more than %d bytes", path, MOST_BYTES);
    text[bytes] = 0;
    HVT_CHECK_OR(done, strlen(text) == bytes, E_FORMAT,
                 "--config %s: expected JSON, got a byte 0 after %zu others", path, strlen(text));
    *ret_text = text;
    text = NULL;
done:
    free(text);
    fclose(f);
    return s;
}

hvt_status hvt__options_share(hvt_options *opts, hvt_from from, hvt_world *world, hvt_status read, char *text,
                              const char *what, void **ret_memory)
{
    int64_t bytes = text ? (int64_t)strlen(text) + 1 : 0;
    hvt_status s;

    HVT_TRY_OR(done, hvt_world_agree(world, read));
    HVT_TRY_OR(done, hvt_world_broadcast(world, &bytes, sizeof bytes, 0));
    if (!text)
        text = malloc((size_t)bytes);
    s = text ? HVT_OK : HVT_FAIL(E_MEM, "no memory for %d bytes of options", (int)bytes);
    HVT_TRY_OR(done, hvt_world_agree(world, s));
    HVT_TRY_OR(done, hvt_world_broadcast(world, text, (size_t)bytes, 0));
    s = fill(opts, from, text, ret_memory);
    if (s)
        s = hvt__fail(s == HVT_E_ARG ? HVT_E_FORMAT : s, __FILE__, __LINE__, "%s: %s", what,
                      hvt_last_error());
    s = hvt_world_agree(world, s);
done:
    free(text);
    return s;
}

hvt_status hvt__options_config(hvt_options *opts, hvt_world *world, void **ret_memory)
{
    char what[HVT_OPTION_VALUE + 16], *text = NULL;
    hvt_status s = hvt_world_rank(world) == 0 ? read_file(opts->config, &text) : HVT_OK;

    snprintf(what, sizeof what, "--config %s", opts->config);
    return hvt__options_share(opts, HVT_FROM_CONFIG, world, s, text, what, ret_memory);
}
