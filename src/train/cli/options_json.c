/*
 * Options to and from a JSON object, {"flag without dashes": "value"}: in logs, checkpoints and --config.
 */
#include "options.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>

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
            json_object_set_new(all, hvt__option_flag(i).text + 2, hvt__json_text(text));
        }
    return all;
}

/* ---- reading ---- */

static const char *kind_of(const json_t *value)
{
    static const char *const name[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "text",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};

    return name[json_typeof(value)];
}

/* The value in the form that a flag takes. */
static hvt_status as_text(const char *key, const hvt__option *o, const json_t *value,
                          char ret_text[HVT_OPTION_VALUE])
{
    bool text = o->kind == KIND_str || o->kind == KIND_pick, on_off = o->kind == KIND_bool;
    bool fits = json_is_string(value) || (json_is_number(value) && !text && !on_off) ||
                (json_is_boolean(value) && on_off);

    HVT_CHECK(fits, E_FORMAT, "%s: expected %s, got %s", key,
              text     ? "text"
              : on_off ? "true or false"
                       : "a number or text",
              kind_of(value));
    HVT_CHECK(!json_is_string(value) || (json_string_length(value) < HVT_OPTION_VALUE &&
                                         strlen(json_string_value(value)) == json_string_length(value)),
              E_FORMAT, "%s: expected at most %d bytes of text, none of them 0", key, HVT_OPTION_VALUE - 1);
    if (json_is_string(value))
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_string_value(value));
    else if (json_is_integer(value))
        snprintf(ret_text, HVT_OPTION_VALUE, "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(ret_text, HVT_OPTION_VALUE, "%.17g", json_real_value(value));
    else
        snprintf(ret_text, HVT_OPTION_VALUE, "%s", json_is_true(value) ? "on" : "off");
    return HVT_OK;
}

static hvt_status refuse(const char *key)
{
    char more[HVT_HINT];

    hvt__hint_flag(key, strlen(key), NULL, more);
    return HVT_FAIL(E_FORMAT, "there is no option '%s'; %s", key, *more ? more : "hvtrain --help lists them");
}

/* Does opts hold a value of a stronger source? --batch and --global-batch set the same thing, so either of
 * them counts for both. */
static bool is_taken(const hvt_options *opts, int i, hvt_from from)
{
    if (i == HVT__AT_batch || i == HVT__AT_global_batch)
        return opts->from[HVT__AT_batch] > from || opts->from[HVT__AT_global_batch] > from;
    return opts->from[i] > from;
}

/* text: memory for the value, which opts refers to afterwards. */
static hvt_status fill_one(hvt_options *opts, const hvt_options *before, hvt_from from, const char *key,
                           const json_t *value, char text[HVT_OPTION_VALUE])
{
    const hvt__option *o = hvt__option_named(key, strlen(key));
    hvt_options tried = *opts;
    int i = o ? (int)(o - hvt__option_table) : -1;

    if (from == HVT_FROM_CHECKPOINT && (!o || o->scope != HVT_SCOPE_RUN || is_taken(before, i, from)))
        return HVT_OK; /* options that only another version has are ignored */
    if (!o)
        return hvt__pass(refuse(key), __FILE__, __LINE__, "refuse");
    HVT_CHECK(i != HVT__AT_config, E_FORMAT, "%s: one file of options cannot name another", key);
    HVT_TRY(as_text(key, o, value, text));
    HVT_TRY(hvt_options_set(&tried, key, text));
    tried.from[i] = from;
    if (!is_taken(before, i, from)) /* a value that is overridden must be valid, too */
        *opts = tried;
    return HVT_OK;
}

hvt_status hvt__options_fill(hvt_options *opts, hvt_from from, const char *text, void **ret_memory)
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
        HVT_TRY_OR(done, fill_one(&filled, opts, from, key, value, texts[n++]));
    *opts = filled;
    *ret_memory = texts;
    texts = NULL;
done:
    free(texts);
    json_decref(all);
    return s;
}
