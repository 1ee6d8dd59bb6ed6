/*
 * Values of options: reading them from text, writing them, and describing what is accepted. A value that was
 * written reads back as the same value; checkpoints rely on this.
 */
#include "options.h"
#include "base_impl.h"

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define FIELD(opts, o, type)       ((type *)(void *)((char *)(opts) + (o)->offset))
#define CONST_FIELD(opts, o, type) ((const type *)(const void *)((const char *)(opts) + (o)->offset))

/* ---- reading ---- */

/* Is value this word? A final ":R" of the word stands for a number from 1 to 9999. */
static bool is_word(const char *word, size_t len, const char *value)
{
    int64_t r;

    if (len < 2 || strncmp(word + len - 2, ":R", 2) != 0)
        return strlen(value) == len && !strncmp(word, value, len);
    if (strncmp(word, value, len - 1) != 0 || value[len - 1] == '0')
        return false;
    value += len - 1;
    return hvt__scan_whole(&value, 9999, &r) && !*value;
}

bool hvt__is_word_of(const char *form, const char *value)
{
    for (const char *p = form; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (is_word(p, strcspn(p, "|"), value))
            return true;
    return false;
}

static bool read_int(const char *value, int *ret)
{
    int64_t v;

    if (!hvt__scan_whole(&value, INT_MAX, &v) || *value)
        return false;
    *ret = (int)v;
    return true;
}

static bool read_bool(const char *value, bool *ret)
{
    static const char *const on[] = {"on", "yes", "true", "1"}, *const off[] = {"off", "no", "false", "0"};

    for (size_t i = 0; i < HVT_LEN(on); i++)
        if (!strcasecmp(value, on[i]) || !strcasecmp(value, off[i])) {
            *ret = !strcasecmp(value, on[i]);
            return true;
        }
    return false;
}

typedef struct unit {
    const char *name;
    double value;
} unit;

static const unit sizes[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9}, {"MB", 1e6},
                             {"KB", 1e3},      {"kB", 1e3},      {"B", 1},         {0}};
static const unit times[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}, {0}};

/* A number >= 0 with a unit, in the smallest one. */
static bool read_amount(const char *value, const unit *units, double *ret)
{
    if (!hvt__scan_number(&value, ret) || *ret < 0)
        return false;
    for (; units->name; units++)
        if (!strcmp(value, units->name)) {
            *ret *= units->value;
            return true;
        }
    return !*value && *ret == 0;
}

static bool read_size(const char *value, size_t *ret)
{
    double bytes;

    if (!strcmp(value, "all")) {
        *ret = HVT_BUCKET_ALL;
        return true;
    }
    if (!read_amount(value, sizes, &bytes) || bytes >= 0x1p52 || (bytes > 0 && bytes < 1))
        return false; /* a fraction of a byte must not become 0, which has a meaning of its own */
    *ret = (size_t)bytes;
    return true;
}

static bool read_time(const char *value, double *ret)
{
    double seconds;

    if (!read_amount(value, times, &seconds) || (seconds != 0 && (seconds < 1e-3 || seconds > 1e9)))
        return false;
    *ret = seconds;
    return true;
}

static bool read_rgb(const char *value, double low, hvt_rgb *ret)
{
    hvt_rgb rgb;
    int n = 0;

    do {
        double v;
        if (n == 3 || !hvt__scan_number(&value, &v) || v < low || fabs(v) > 1e30)
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

void hvt__value_expected(const hvt__option *o, char *ret_text, size_t bytes)
{
    switch (o->kind) {
    case KIND_str:
        snprintf(ret_text, bytes, "text (%s)", o->form);
        break;
    case KIND_pick: {
        size_t n = 0;
        snprintf(ret_text, bytes, "one of %s", o->form);
        for (; ret_text[n]; n++)
            if (ret_text[n] == '|')
                ret_text[n] = ' ';
        break;
    }
    case KIND_int:
        snprintf(ret_text, bytes, "a whole number from %.0f to %d", o->low, INT_MAX);
        break;
    case KIND_word:
        snprintf(ret_text, bytes, "a whole number from %.0f to %d, or '%s'", o->low, INT_MAX, o->preset);
        break;
    case KIND_num:
        snprintf(ret_text, bytes, "a number >= %g", o->low);
        break;
    case KIND_bool:
        snprintf(ret_text, bytes, "on or off");
        break;
    case KIND_size:
        snprintf(ret_text, bytes, "a size with its unit (25MiB, 64KiB, 1MB)%s",
                 strstr(o->form, "all") ? ", 0 or all" : " or 0");
        break;
    case KIND_time:
        snprintf(ret_text, bytes, "a time with its unit (500ms, 30s, 5m, 1h) or 0");
        break;
    case KIND_rgb:
        snprintf(ret_text, bytes, "one number or three with commas%s", o->low > 0 ? ", each > 0" : "");
        break;
    }
}

bool hvt__value_read(hvt_options *opts, const hvt__option *o, const char *value)
{
    int i;
    double d;
    size_t bytes;

    switch (o->kind) {
    case KIND_pick:
        if (!hvt__is_word_of(o->form, value))
            return false;
        /* fall through */
    case KIND_str:
        *FIELD(opts, o, hvt_opt_str) = value;
        return true;
    case KIND_word:
        if (!strcasecmp(value, o->preset)) {
            *FIELD(opts, o, hvt_opt_word) = 0;
            return true;
        }
        /* fall through */
    case KIND_int:
        if (!read_int(value, &i) || i < o->low)
            return false;
        *FIELD(opts, o, hvt_opt_int) = i;
        return true;
    case KIND_num:
        if (!hvt__scan_number(&value, &d) || *value || d < o->low)
            return false;
        *FIELD(opts, o, hvt_opt_num) = d;
        return true;
    case KIND_bool:
        return read_bool(value, FIELD(opts, o, hvt_opt_bool));
    case KIND_size:
        if (!read_size(value, &bytes) || (bytes == HVT_BUCKET_ALL && !strstr(o->form, "all")))
            return false;
        *FIELD(opts, o, hvt_opt_size) = bytes;
        return true;
    case KIND_time:
        return read_time(value, FIELD(opts, o, hvt_opt_time));
    case KIND_rgb:
        return read_rgb(value, o->low, FIELD(opts, o, hvt_opt_rgb));
    }
    return false;
}

/* ---- writing ---- */

static void num_text(double v, char *ret_text, size_t bytes)
{
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(ret_text, bytes, "%.*g", digits, v);
        if (strtod(ret_text, NULL) == v)
            return;
    }
}

static void size_text(size_t v, char *ret_text, size_t bytes)
{
    static const struct {
        const char *name;
        size_t bytes;
    } exact[] = {{"GiB", 1u << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}};

    if (v == 0 || v == HVT_BUCKET_ALL) {
        snprintf(ret_text, bytes, "%s", v == 0 ? "0" : "all");
        return;
    }
    for (size_t i = 0; i < HVT_LEN(exact); i++)
        if (v % exact[i].bytes == 0) {
            snprintf(ret_text, bytes, "%zu%s", v / exact[i].bytes, exact[i].name);
            return;
        }
}

void hvt__value_write(const hvt_options *opts, const hvt__option *o, char *ret_text, size_t bytes)
{
    switch (o->kind) {
    case KIND_str:
    case KIND_pick:
        snprintf(ret_text, bytes, "%s", *CONST_FIELD(opts, o, hvt_opt_str));
        break;
    case KIND_word:
        if (*CONST_FIELD(opts, o, hvt_opt_word) == 0) {
            snprintf(ret_text, bytes, "%s", o->preset);
            break;
        }
        /* fall through */
    case KIND_int:
        snprintf(ret_text, bytes, "%d", *CONST_FIELD(opts, o, hvt_opt_int));
        break;
    case KIND_num:
        num_text(*CONST_FIELD(opts, o, hvt_opt_num), ret_text, bytes);
        break;
    case KIND_bool:
        snprintf(ret_text, bytes, "%s", *CONST_FIELD(opts, o, hvt_opt_bool) ? "on" : "off");
        break;
    case KIND_size:
        size_text(*CONST_FIELD(opts, o, hvt_opt_size), ret_text, bytes);
        break;
    case KIND_time:
        num_text(*CONST_FIELD(opts, o, hvt_opt_time), ret_text, bytes - 1);
        strcat(ret_text, "s");
        break;
    case KIND_rgb: {
        const float *v = CONST_FIELD(opts, o, hvt_opt_rgb)->v;
        if (v[0] == v[1] && v[0] == v[2])
            snprintf(ret_text, bytes, "%.9g", (double)v[0]);
        else
            snprintf(ret_text, bytes, "%.9g,%.9g,%.9g", (double)v[0], (double)v[1], (double)v[2]);
        break;
    }
    }
}
