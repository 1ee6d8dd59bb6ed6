/*
 * The metadata of our files: one JSON object, as text under the key "hvtrain" of safetensors' metadata. It
 * states that the file has a digest and a seal, so that damage to their names does not hide them.
 *
 * hvtrain 0.1.0 had a key for each value, and the options as lines "--flag=value" with the names of that
 * version. Such metadata is converted when it is read.
 */
#include "checkpoint_impl.h"
#include "base_impl.h"

#include <inttypes.h>

#define KEY "hvtrain" /* in old files its value is the version */

/* Options whose names or values have changed. value NULL: unchanged; name NULL: the option was removed, and
 * this value is the one that now always applies. */
static const struct {
    const char *old_name, *old_value, *name, *value;
} renamed[] = {
    {"tail", "exact", "last-batch", "keep"},
    {"tail", NULL, "last-batch", NULL},
    {"wire", NULL, "compression", NULL},
    {"image-size", NULL, "size", NULL},
    {"bucket", "auto", "bucket", "25MiB"},
    {"first-bucket", NULL, NULL, NULL}, /* it never changed results */
    {"winograd", "on", NULL, NULL},
    {"dampening", "0", NULL, NULL},
    {"loss-scale-min", "1", NULL, NULL},
    {"error-feedback", "off", NULL, NULL},
};

static void add_option(json_t *options, const char *name, const char *value)
{
    for (size_t i = 0; i < HVT_LEN(renamed); i++)
        if (!strcmp(name, renamed[i].old_name) &&
            (!renamed[i].old_value || !strcmp(value, renamed[i].old_value))) {
            if (renamed[i].name)
                json_object_set_new(options, renamed[i].name,
                                    json_string(renamed[i].value ? renamed[i].value : value));
            return;
        }
    json_object_set_new(options, name, json_string(value));
}

static json_t *read_option_lines(const char *lines)
{
    json_t *options = json_object();
    char *text = strdup(lines), *rest = NULL;

    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        char *value = strchr(line, '=');
        if (!value || strncmp(line, "--", 2))
            continue;
        *value++ = 0;
        add_option(options, line + 2, value);
    }
    free(text);
    return options;
}

/* The old keys that are present. */
static json_t *gather_keys(const hvt_st *st)
{
    static const char *const numbers[] = {"epoch", "step", "steps", "top1", "ranks", "unit"};
    static const char *const texts[] = {"build", "device", "isa", "run", "weights", "momentum", "powersgd"};
    const char *options = hvt__st_meta(st, "options"), *scaler = hvt__st_meta(st, "scaler"), *value;
    json_t *meta = json_object();
    double scale;
    int good, skips;

    for (size_t i = 0; i < HVT_LEN(texts); i++)
        if ((value = hvt__st_meta(st, texts[i])))
            json_object_set_new(meta, texts[i], json_string(value));
    for (size_t i = 0; i < HVT_LEN(numbers); i++)
        if ((value = hvt__st_meta(st, numbers[i])))
            json_object_set_new(meta, numbers[i], json_loads(value, JSON_DECODE_ANY, NULL));
    if (scaler && sscanf(scaler, "%lf %d %d", &scale, &good, &skips) == 3)
        json_object_set_new(meta, "scaler", json_pack("[f, i, i]", scale, good, skips));
    if (options)
        json_object_set_new(meta, "options", read_option_lines(options));
    return meta;
}

bool hvt__metadata_is_ours(const hvt_st *st)
{
    return hvt__st_meta(st, KEY);
}

hvt_status hvt__metadata_read(const hvt_st *st, json_t **ret_meta)
{
    const char *text = hvt__st_meta(st, KEY);
    json_t *meta;

    HVT_CHECK(text, E_FORMAT,
              "%s: not a checkpoint of hvtrain: its metadata lacks '" KEY "' (--init loads weights only)",
              st->path);
    meta = *text == '{' ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : gather_keys(st);
    HVT_CHECK(meta, E_FORMAT, "%s: its metadata '" KEY "' is not a JSON object", st->path);
    if (json_object_get(meta, HVT_SEALED) &&
        !(hvt__st_meta(st, HVT_ST_SEAL) && hvt__st_meta(st, HVT_ST_DIGEST))) {
        json_decref(meta);
        return HVT_FAIL(E_FORMAT, "%s: damaged: its header lacks one of its hashes", st->path);
    }
    *ret_meta = meta;
    return HVT_OK;
}

hvt_status hvt__metadata_number(const hvt_st *st, const json_t *meta, const char *key, double most,
                                double *ret)
{
    const json_t *value = json_object_get(meta, key);
    char *text;

    HVT_CHECK(value, E_FORMAT,
              "%s: not a checkpoint of hvtrain: its metadata lacks '%s' (--init loads weights only)",
              st->path, key);
    *ret = json_number_value(value);
    if (json_is_number(value) && *ret <= most)
        return HVT_OK;
    text = json_dumps(value, JSON_COMPACT | JSON_ENCODE_ANY);
    hvt__fail(HVT_E_FORMAT, __FILE__, __LINE__, "%s: metadata %s is %.40s, expected a number up to %g",
              st->path, key, text ? text : "?", most);
    free(text);
    return HVT_E_FORMAT;
}

hvt_status hvt__metadata_class_names(const hvt_st *st, const json_t *meta, json_t **ret_names)
{
    json_t *names = json_object_get(meta, "class_names"), *name;
    size_t i;

    HVT_CHECK(!names || json_is_array(names), E_FORMAT, "%s: metadata class_names: expected a list",
              st->path);
    json_array_foreach(names, i, name) HVT_CHECK(
        json_is_string(name), E_FORMAT, "%s: metadata class_names: element %zu is not text", st->path, i);
    *ret_names = names;
    return HVT_OK;
}

const char *hvt__metadata_text(const json_t *meta, const char *key)
{
    const char *text = json_string_value(json_object_get(meta, key));

    return text ? text : "";
}
