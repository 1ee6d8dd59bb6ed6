/*
 * The table of options, made from HVT_OPTIONS, and their values: reading them from text, writing them, and
 * describing valid ones. A written value reads back as the same value; checkpoints rely on this. A flag is an
 * option's field with '-' for '_'.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <float.h>
#include <math.h>
#include <strings.h>

const hvt__option hvt__option_table[HVT_OPTION_COUNT] = {HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION)};

const hvt__option *hvt__option_named(const char *name, size_t len)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const char *field = hvt__option_table[i].field;
        size_t k = 0;
        while (k < len && field[k] && field[k] == (name[k] == '-' ? '_' : name[k]))
            k++;
        if (k == len && !field[k])
            return &hvt__option_table[i];
    }
    return NULL;
}

void hvt__replace(char *text, char from, char to)
{
    for (; *text; text++)
        if (*text == from)
            *text = to;
}

hvt__flag hvt__flag_of(const hvt__option *o)
{
    hvt__flag flag;

    snprintf(flag.text, sizeof flag.text, "--%s", o->field);
    hvt__replace(flag.text, '_', '-');
    return flag;
}

/* True if value is this word. A final ":R" of the word stands for a number from 1 to 9999, ":N" for one from
 * 0 to 1023; "FILE.pt2" for any path with this suffix. */
static bool is_word(const char *word, size_t len, const char *value)
{
    static const char file[] = "FILE.";
    bool rank = len > 2 && !strncmp(word + len - 2, ":R", 2);
    int64_t n;

    if (!strncmp(word, file, sizeof file - 1)) {
        const char *dot = strrchr(value, '.');

        word += sizeof file - 2;
        return dot && dot > value && strlen(dot) == len - (sizeof file - 2) &&
               !strncmp(word, dot, strlen(dot));
    }
    if (!rank && (len < 2 || strncmp(word + len - 2, ":N", 2)))
        return strlen(value) == len && !strncmp(word, value, len);
    if (strncmp(word, value, len - 1) || (rank && value[len - 1] == '0'))
        return false;
    value += len - 1;
    return hvt__scan_whole(&value, rank ? 9999 : 1023, &n) && !*value;
}

bool hvt__is_model_file(const char *model)
{
    return strchr(model, '.') != NULL;
}

bool hvt__is_word_of(const char *form, const char *value)
{
    for (const char *p = form; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (is_word(p, strcspn(p, "|"), value))
            return true;
    return false;
}

/* The number that stands for an option's word; the option does not accept it as a number. */
static int value_of_word(const hvt__option *o)
{
    return o->low > 0 ? 0 : -1;
}

/* Reads a whole number; for an option of kind word also its preset. */
static bool read_int(const hvt__option *o, const char *value, int *ret)
{
    bool word = o->kind == OPT_word && !strcasecmp(value, o->preset);
    int64_t v = value_of_word(o);

    if (!word && (!hvt__scan_whole(&value, INT_MAX, &v) || *value || (double)v < o->low))
        return false;
    *ret = (int)v;
    return true;
}

static bool read_bool(const char *value, bool *ret)
{
    static const char *const words[] = {"off", "on", "no", "yes", "false", "true", "0", "1"};

    for (size_t i = 0; i < HVT_LEN(words); i++)
        if (!strcasecmp(value, words[i])) {
            *ret = i % 2;
            return true;
        }
    return false;
}

typedef struct unit {
    const char *name;
    double value;
} unit;

/* Binary sizes come first: size_text() uses the first one that divides a size. */
static const unit sizes[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}, {"GB", 1e9},
                             {"MB", 1e6},      {"KB", 1e3},      {"kB", 1e3},      {0}};
static const unit none[] = {{"", 1}, {0}};
static const unit times[] = {{"d", 86400}, {"h", 3600}, {"m", 60}, {"s", 1}, {"ms", 1e-3}};

/* Reads a number with a unit, from `least` to `most` in the smallest unit, or 0. */
static bool read_amount(const char *value, const unit *units, double least, double most, double *ret)
{
    double v;

    if (!hvt__scan_number(&value, &v))
        return false;
    while (units->name && strcmp(value, units->name))
        units++;
    if (!units->name && (*value || v != 0))
        return false;
    v *= units->value;
    if (v != 0 && (v < least || v > most))
        return false;
    *ret = v;
    return true;
}

/* Reads numbers with units, larger ones first, from a millisecond to 1e9 s; or 0. */
bool hvt__time_read(const char *value, double *ret_seconds)
{
    size_t at = 0, len = 0;
    double v, sum = 0;

    do {
        if (!hvt__scan_number(&value, &v) || v < 0)
            return false;
        len = strspn(value, "dhms");
        while (at < HVT_LEN(times) && (strlen(times[at].name) != len || strncmp(times[at].name, value, len)))
            at++;
        if (at == HVT_LEN(times) && (*value || v != 0))
            return false;
        if (at < HVT_LEN(times))
            sum += v * times[at++].value;
        value += len;
    } while (*value);
    if (sum != 0 && (sum < 1e-3 || sum > 1e9))
        return false;
    *ret_seconds = sum;
    return true;
}

static bool read_size(const char *value, size_t *ret)
{
    double bytes = 0;
    bool all = !strcmp(value, "all");

    if (!all && !read_amount(value, sizes, 1, 0x1p52, &bytes))
        return false; /* a fraction of a byte must not become 0, which has its own meaning */
    *ret = all ? HVT_BUCKET_ALL : (size_t)bytes;
    return true;
}

static bool read_rgb(const hvt__option *o, const char *value, hvt_rgb *ret)
{
    static const hvt_rgb imagenet[2] = {{{0.485f, 0.456f, 0.406f}}, {{0.229f, 0.224f, 0.225f}}};
    bool deviation = o->offset == offsetof(hvt_options, std);
    hvt_rgb rgb;
    int n = 0;

    if (!strcasecmp(value, "imagenet")) { /* torchvision's numbers */
        *ret = imagenet[deviation];
        return true;
    }
    if (!strcasecmp(value, "auto")) {
        *ret = (hvt_rgb){{NAN, NAN, NAN}};
        return true;
    }
    do {
        double v;
        if (n == 3 || !hvt__scan_number(&value, &v) || v < o->low || fabs(v) > 1e30)
            return false;
        rgb.v[n++] = (float)v;
    } while (hvt__scan_text(&value, ","));
    if (*value || n == 2)
        return false;
    if (n == 1)
        rgb.v[1] = rgb.v[2] = rgb.v[0];
    *ret = rgb;
    return true;
}

bool hvt__value_read(hvt_options *opts, const hvt__option *o, const char *value)
{
    void *at = (char *)opts + o->offset;

    switch (o->kind) {
    case OPT_str:
    case OPT_pick:
        if (o->kind == OPT_pick && !hvt__is_word_of(o->form, value))
            return false;
        *(hvt_opt_str *)at = value;
        return true;
    case OPT_int:
    case OPT_word:
        return read_int(o, value, at);
    case OPT_num:
        if (strcasecmp(value, "auto") || strcmp(o->preset, "auto"))
            return read_amount(value, none, o->low, DBL_MAX, at);
        *(double *)at = NAN;
        return true;
    case OPT_bool:
        return read_bool(value, at);
    case OPT_size:
        return read_size(value, at);
    case OPT_time:
        return hvt__time_read(value, at);
    case OPT_rgb:
        return read_rgb(o, value, at);
    }
    return false;
}

int hvt__value_expected(const hvt__option *o, char *ret_text, size_t bytes)
{
    char words[HVT_HINT];

    switch (o->kind) {
    case OPT_str:
        return snprintf(ret_text, bytes, "%s", o->form);
    case OPT_pick:
        snprintf(words, sizeof words, "%s", o->form);
        hvt__replace(words, '|', ' ');
        return snprintf(ret_text, bytes, "one of %s", words);
    case OPT_int:
        return snprintf(ret_text, bytes, "a whole number from %.0f to %d", o->low, INT_MAX);
    case OPT_word:
        return snprintf(ret_text, bytes, "a whole number from %.0f to %d, or '%s'", o->low, INT_MAX,
                        o->preset);
    case OPT_num:
        return snprintf(ret_text, bytes, "a number >= %g%s", o->low,
                        strcmp(o->preset, "auto") ? "" : ", or auto");
    case OPT_bool:
        return snprintf(ret_text, bytes, "on or off");
    case OPT_size:
        return snprintf(ret_text, bytes, "a size with its unit (25MiB, 64KiB, 1MB), 0 or all");
    case OPT_time:
        return snprintf(ret_text, bytes, "a time with its unit (500ms, 30s, 5m, 1h30m) or 0");
    case OPT_rgb:
        return snprintf(ret_text, bytes, "one number or three with commas%s, imagenet or auto",
                        o->low > 0 ? ", each > 0" : "");
    }
    return 0;
}

/* The shortest text that reads back as the same float or double. */
static int shortest(double v, bool single, char *ret_text, size_t room)
{
    int n = 0;

    for (int digits = 6;
         digits <= 17 && (!n || (single ? (double)strtof(ret_text, NULL) : strtod(ret_text, NULL)) != v);
         digits++)
        n = snprintf(ret_text, room, "%.*g", digits, v);
    return n;
}

int hvt__num_text(double v, char ret_text[HVT_OPTION_VALUE])
{
    return shortest(v, false, ret_text, HVT_OPTION_VALUE);
}

static int size_text(size_t v, char ret_text[HVT_OPTION_VALUE])
{
    const unit *u = sizes;

    if (v == 0 || v == HVT_BUCKET_ALL)
        return snprintf(ret_text, HVT_OPTION_VALUE, "%s", v == 0 ? "0" : "all");
    while (v % (size_t)u->value)
        u++;
    return snprintf(ret_text, HVT_OPTION_VALUE, "%zu%s", v / (size_t)u->value, u->name);
}

/* One number if all are equal. */
static int rgb_text(const float v[3], char ret_text[HVT_OPTION_VALUE])
{
    if (isnan(v[0]))
        return snprintf(ret_text, HVT_OPTION_VALUE, "auto");

    const int count = v[0] == v[1] && v[0] == v[2] ? 1 : 3;
    int used = 0;

    for (int c = 0; c < count; c++) {
        if (c)
            ret_text[used++] = ',';
        used += shortest((double)v[c], true, ret_text + used, HVT_OPTION_VALUE - (size_t)used);
    }
    return used;
}

int hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE])
{
    const hvt__option *o = &hvt__option_table[i];
    const void *at = (const char *)opts + o->offset;
    int n;

    switch (o->kind) {
    case OPT_str:
    case OPT_pick:
        return snprintf(ret_text, HVT_OPTION_VALUE, "%s", *(const hvt_opt_str *)at);
    case OPT_int:
    case OPT_word:
        n = *(const int *)at;
        return o->kind == OPT_int || n != value_of_word(o)
                   ? snprintf(ret_text, HVT_OPTION_VALUE, "%d", n)
                   : snprintf(ret_text, HVT_OPTION_VALUE, "%s", o->preset);
    case OPT_num:
        return isnan(*(const double *)at) ? snprintf(ret_text, HVT_OPTION_VALUE, "auto")
                                          : hvt__num_text(*(const double *)at, ret_text);
    case OPT_bool:
        return snprintf(ret_text, HVT_OPTION_VALUE, "%s", *(const bool *)at ? "on" : "off");
    case OPT_size:
        return size_text(*(const size_t *)at, ret_text);
    case OPT_time:
        n = hvt__num_text(*(const double *)at, ret_text);
        return n + snprintf(ret_text + n, HVT_OPTION_VALUE - (size_t)n, "s");
    case OPT_rgb:
        return rgb_text(at, ret_text);
    }
    return 0;
}

bool hvt__option_given(const hvt_options *o, int i)
{
    return o->from[i] >= HVT_FROM_CONFIG;
}
