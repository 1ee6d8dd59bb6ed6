/*
 * The options: one table made of HVT_OPTIONS, and loops over it that set defaults, parse the command line,
 * write values as text, and make --help.
 *
 * A value's text form reads back as the same value; checkpoints rely on that. A flag is an option's field
 * with '-' for '_'. Where a value came from is kept beside it: a file fills in only what no flag gives.
 */
#include "train_impl.h"
#include "base_impl.h"

#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

typedef enum kind {
    KIND_str,
    KIND_pick,
    KIND_int,
    KIND_word,
    KIND_num,
    KIND_bool,
    KIND_size,
    KIND_time,
    KIND_rgb
} kind;

typedef struct option {
    const char *group; /* title, where a group begins; then nothing else is set */
    kind kind;
    const char *field;
    size_t offset;
    const char *preset;
    double low;
    hvt_scope scope;
    const char *form, *help;
} option;

#define GROUP(title) {.group = title},
#define OPTION(k, f, preset_, low_, s, form_, help_)                                                         \
    {.kind = KIND_##k,                                                                                       \
     .field = #f,                                                                                            \
     .offset = offsetof(hvt_options, f),                                                                     \
     .preset = preset_,                                                                                      \
     .low = low_,                                                                                            \
     .scope = HVT_SCOPE_##s,                                                                                 \
     .form = form_,                                                                                          \
     .help = help_},
static const option grouped[] = {HVT_OPTIONS(GROUP, OPTION)};
static const option table[HVT_OPTION_COUNT] = {HVT_OPTIONS(HVT_OPT_NO_GROUP, OPTION)};
#undef GROUP
#undef OPTION

#define FIELD(opts, o, type)       ((type *)(void *)((char *)(opts) + (o)->offset))
#define CONST_FIELD(opts, o, type) ((const type *)(const void *)((const char *)(opts) + (o)->offset))

/* ---- names ---- */

/* Is text[0..len) the flag of this option? '_' and '-' are the same. */
static bool is_named(const option *o, const char *text, size_t len)
{
    if (strlen(o->field) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (o->field[i] != (text[i] == '-' ? '_' : text[i]))
            return false;
    return true;
}

static const option *find(const char *name, size_t len)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (is_named(&table[i], name, len))
            return &table[i];
    return NULL;
}

static const char *flag_of(const option *o, char ret_flag[40])
{
    size_t n = 2;

    memcpy(ret_flag, "--", 2);
    for (const char *p = o->field; *p && n < 39; p++)
        ret_flag[n++] = *p == '_' ? '-' : *p;
    ret_flag[n] = 0;
    return ret_flag;
}

const char *hvt__option_flag(int i)
{
    static char flags[HVT_OPTION_COUNT][40];

    return flag_of(&table[i], flags[i]);
}

int hvt__option_find(const char *name)
{
    const option *o = find(name, strlen(name));

    return o ? (int)(o - table) : -1;
}

bool hvt__option_is_text(int i)
{
    return table[i].kind == KIND_str || table[i].kind == KIND_pick;
}

bool hvt__option_is_switch(int i)
{
    return table[i].kind == KIND_bool;
}

hvt_scope hvt__option_scope(int i)
{
    return table[i].scope;
}

/* Changes (a letter more, less, other, or two swapped) that turn a into b. */
static int distance(const char *a, const char *b)
{
    enum { MOST = 40 };
    int d[MOST + 1][MOST + 1], la = (int)strnlen(a, MOST), lb = (int)strnlen(b, MOST);

    for (int i = 0; i <= la; i++)
        d[i][0] = i;
    for (int j = 0; j <= lb; j++)
        d[0][j] = j;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best)
                best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best)
                best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    return d[la][lb];
}

/* The i-th thing that may stand on a command line; NULL after the last. */
static const char *known_flag(int i, char ret_text[HVT_OPTION_FLAG])
{
    char flag[40];

    if (i < HVT_OPTION_COUNT)
        return flag_of(&table[i], ret_text);
    if (i < 2 * HVT_OPTION_COUNT) {
        const option *o = &table[i - HVT_OPTION_COUNT];
        snprintf(ret_text, HVT_OPTION_FLAG, o->kind == KIND_bool ? "--no-%s" : "%s", flag_of(o, flag) + 2);
        return ret_text;
    }
    i -= 2 * HVT_OPTION_COUNT;
    return i == 0 ? "--help" : i == 1 ? "--version" : NULL;
}

/* The known flag most like this one: fewest changes (not all of its letters); then one that begins as it does
 * (--batch-size). */
static bool nearest(const char *flag, char ret_flag[HVT_OPTION_FLAG])
{
    int best = INT_MAX;
    size_t len = strlen(flag);
    char text[HVT_OPTION_FLAG];
    const char *known;

    for (int i = 0; (known = known_flag(i, text)); i++) {
        size_t known_len = strlen(known);
        int score = distance(flag, known);
        bool begins = !strncmp(flag, known, len < known_len ? len : known_len) && len > 3;
        if (begins && score > 2)
            score = 2;
        if (score < best && score < (int)len - 2 && (score <= 2 || score <= (int)len / 3)) {
            best = score;
            snprintf(ret_flag, HVT_OPTION_FLAG, "%s", known);
        }
    }
    return best < INT_MAX;
}

/* ---- values ---- */

/* A word of the form, or one that ends in ":R" with a whole number from 1 to 9999 in R's place. */
static bool is_word(const char *word, size_t len, const char *value)
{
    size_t digits;

    if (len < 2 || strncmp(word + len - 2, ":R", 2) != 0)
        return strlen(value) == len && !strncmp(word, value, len);
    if (strncmp(word, value, len - 1) != 0 || value[len - 1] == '0')
        return false;
    digits = strspn(value + len - 1, "0123456789");
    return digits && digits <= 4 && !value[len - 1 + digits];
}

/* Is value one of the words of form, which '|' parts? */
static bool in_form(const char *form, const char *value)
{
    for (const char *p = form; p; p = strchr(p, '|'), p = p ? p + 1 : NULL)
        if (is_word(p, strcspn(p, "|"), value))
            return true;
    return false;
}

static bool read_int(const char *value, int *ret)
{
    char *end;
    long v;

    errno = 0;
    v = strtol(value, &end, 10);
    if (end == value || *end || isspace((unsigned char)*value) || errno || v > INT_MAX || v < INT_MIN)
        return false;
    *ret = (int)v;
    return true;
}

static bool read_num(const char *value, char **ret_end, double *ret)
{
    if (!isdigit((unsigned char)*value) && !strchr("+-.", *value))
        return false; /* no spaces, no nan, no inf */
    *ret = strtod(value, ret_end);
    return *ret_end != value && isfinite(*ret);
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

static const struct {
    const char *name;
    double bytes;
} units[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"GB", 1e9},
             {"MB", 1e6},      {"KB", 1e3},      {"kB", 1e3},      {"B", 1}};

static bool read_size(const char *value, size_t *ret)
{
    double n;
    char *end;

    if (!strcmp(value, "0") || !strcmp(value, "all") || !strcmp(value, "auto")) {
        *ret = *value == '0' ? 0 : !strcmp(value, "all") ? HVT_BUCKET_ALL : HVT_BUCKET_AUTO;
        return true;
    }
    if (!read_num(value, &end, &n) || n < 0)
        return false;
    for (size_t i = 0; i < HVT_LEN(units); i++)
        if (!strcmp(end, units[i].name) && n * units[i].bytes < 0x1p52) {
            if (n > 0 && n * units[i].bytes < 1)
                return false; /* not 0, which means something else */
            *ret = (size_t)(n * units[i].bytes);
            return true;
        }
    return false;
}

static bool read_time(const char *value, double *ret)
{
    static const struct {
        const char *name;
        double seconds;
    } unit[] = {{"ms", 1e-3}, {"s", 1}, {"m", 60}, {"h", 3600}};
    char *end;

    if (!read_num(value, &end, ret) || *ret < 0)
        return false;
    for (size_t i = 0; i < HVT_LEN(unit); i++)
        if (!strcmp(end, unit[i].name)) {
            *ret *= unit[i].seconds;
            return *ret == 0 || (*ret >= 1e-3 && *ret <= 1e9);
        }
    return !*end && *ret == 0;
}

static bool read_rgb(const char *value, double low, hvt_rgb *ret)
{
    hvt_rgb rgb;
    int n = 0;

    for (const char *p = value;; p++) {
        double v;
        char *end;
        if (n == 3 || !read_num(p, &end, &v) || v < low || fabs(v) > 1e30)
            return false;
        rgb.v[n++] = (float)v;
        if (!*end)
            break;
        if (*end != ',')
            return false;
        p = end;
    }
    if (n == 2)
        return false;
    if (n == 1)
        rgb.v[1] = rgb.v[2] = rgb.v[0];
    *ret = rgb;
    return true;
}

/* What a value must look like, for messages. */
static void expected(const option *o, char *ret_text, size_t bytes)
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
                 strstr(o->form, "all") ? ", 0, all or auto" : " or 0");
        break;
    case KIND_time:
        snprintf(ret_text, bytes, "a time with its unit (500ms, 30s, 5m, 1h) or 0");
        break;
    case KIND_rgb:
        snprintf(ret_text, bytes, "one number or three with commas%s", o->low > 0 ? ", each > 0" : "");
        break;
    }
}

static bool assign(hvt_options *opts, const option *o, const char *value)
{
    char *end;
    int i;
    double d;
    size_t bytes;

    switch (o->kind) {
    case KIND_str:
        *FIELD(opts, o, hvt_opt_str) = value;
        return true;
    case KIND_pick:
        if (!in_form(o->form, value))
            return false;
        *FIELD(opts, o, hvt_opt_pick) = value;
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
        if (!read_num(value, &end, &d) || *end || d < o->low)
            return false;
        *FIELD(opts, o, hvt_opt_num) = d;
        return true;
    case KIND_bool:
        return read_bool(value, FIELD(opts, o, hvt_opt_bool));
    case KIND_size:
        if (!read_size(value, &bytes) || (bytes >= HVT_BUCKET_AUTO && !strstr(o->form, "all")))
            return false;
        *FIELD(opts, o, hvt_opt_size) = bytes;
        return true;
    case KIND_time:
        if (!read_time(value, &d))
            return false;
        *FIELD(opts, o, hvt_opt_time) = d;
        return true;
    case KIND_rgb:
        return read_rgb(value, o->low, FIELD(opts, o, hvt_opt_rgb));
    }
    return false;
}

static hvt_status set(hvt_options *opts, const option *o, const char *value)
{
    char what[256], flag[40];

    if (assign(opts, o, value)) {
        opts->from[o - table] = HVT_FROM_FLAG;
        return HVT_OK;
    }
    expected(o, what, sizeof what);
    return HVT_FAIL(E_ARG, "%s: expected %s, got '%s'", flag_of(o, flag), what, value);
}

hvt_status hvt_options_set(hvt_options *opts, const char *name, const char *value)
{
    const option *o = find(name, strlen(name));

    HVT_CHECK(o, E_ARG, "there is no option --%s", name);
    return set(opts, o, value);
}

void hvt_options_default(hvt_options *ret_opts)
{
    memset(ret_opts, 0, sizeof *ret_opts);
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!assign(ret_opts, &table[i], table[i].preset))
            abort(); /* the table contradicts itself */
}

/* ---- the command line ---- */

/* As nearest(), of an argument's first len letters as they came: any dashes before, '_' for '-'. */
static bool nearest_to(const char *arg, size_t len, char ret_flag[HVT_OPTION_FLAG])
{
    size_t dashes = strspn(arg, "-");
    char name[41];

    if (dashes >= len)
        return false;
    snprintf(name, sizeof name, "--%.*s", (int)(len - dashes), arg + dashes);
    for (char *p = name + 2; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return nearest(name, ret_flag);
}

bool hvt__option_nearest(const char *name, char ret_flag[HVT_OPTION_FLAG])
{
    return nearest_to(name, strlen(name), ret_flag);
}

static hvt_status parse_one(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    const char *value = strchr(arg, '=');
    size_t len = value ? (size_t)(value - arg) : strlen(arg);
    const option *o;
    bool no = false;
    char what[256], flag[40], near[HVT_OPTION_FLAG];

    if (strncmp(arg, "--", 2) || !arg[2]) {
        if (*arg == '-' && nearest_to(arg, len, near))
            return HVT_FAIL(E_ARG, "'%s' is not a flag: options begin with two dashes; the nearest is %s",
                            arg, near);
        return HVT_FAIL(E_ARG, "'%s' is not a flag: options are --name value or --name=value (see --help)",
                        arg);
    }
    value = value ? value + 1 : NULL;
    o = find(arg + 2, len - 2);
    if (!o && len > 5 && (!strncmp(arg, "--no-", 5) || !strncmp(arg, "--no_", 5))) {
        o = find(arg + 5, len - 5);
        no = o && o->kind == KIND_bool;
        o = no ? o : NULL;
    }
    if (!o) {
        if (nearest_to(arg, len, near))
            return HVT_FAIL(E_ARG, "there is no flag %.*s; the nearest is %s", (int)len, arg, near);
        return HVT_FAIL(E_ARG, "there is no flag %.*s (see --help)", (int)len, arg);
    }
    if (no) {
        HVT_CHECK(!value, E_ARG, "%.*s takes no value, got '%s'", (int)len, arg, value);
        return set(opts, o, "off");
    }
    if (!value && o->kind == KIND_bool) {
        bool ignored;
        bool follows = *i + 1 < argc && read_bool(argv[*i + 1], &ignored);
        return set(opts, o, follows ? argv[++*i] : "on");
    }
    if (!value) {
        bool end = *i + 1 >= argc;
        expected(o, what, sizeof what);
        HVT_CHECK(!end, E_ARG, "%s: expected %s, got the end of the command line", flag_of(o, flag), what);
        HVT_CHECK(strncmp(argv[*i + 1], "--", 2), E_ARG, "%s: expected %s, got the flag %s", flag_of(o, flag),
                  what, argv[*i + 1]);
        value = argv[++*i];
    }
    return set(opts, o, value);
}

hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts)
{
    hvt_options opts;

    hvt_options_default(&opts);
    for (int i = 1; i < argc; i++) {
        if (i == 1 && !strcmp(argv[i], "tune"))
            opts.ask = HVT_ASK_TUNE;
        else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            opts.ask = HVT_ASK_HELP;
        else if (!strcmp(argv[i], "--help=markdown"))
            opts.ask = HVT_ASK_MARKDOWN;
        else if (!strcmp(argv[i], "--version"))
            opts.ask = HVT_ASK_VERSION;
        else if (!strncmp(argv[i], "--help=", 7))
            return HVT_FAIL(E_ARG, "--help: expected nothing or =markdown, got '%s'", argv[i] + 7);
        else if (!strncmp(argv[i], "--version=", 10))
            return HVT_FAIL(E_ARG, "--version takes no value, got '%s'", argv[i] + 10);
        else
            HVT_TRY(parse_one(&opts, argc, argv, &i));
    }
    *ret_opts = opts;
    return HVT_OK;
}

/* ---- values as text ---- */

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

    if (v == 0 || v >= HVT_BUCKET_AUTO) {
        snprintf(ret_text, bytes, "%s", v == 0 ? "0" : v == HVT_BUCKET_ALL ? "all" : "auto");
        return;
    }
    for (size_t i = 0; i < HVT_LEN(exact); i++)
        if (v % exact[i].bytes == 0) {
            snprintf(ret_text, bytes, "%zu%s", v / exact[i].bytes, exact[i].name);
            return;
        }
}

static void value_text(const hvt_options *opts, const option *o, char *ret_text, size_t bytes)
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

void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE])
{
    value_text(opts, &table[i], ret_text, HVT_OPTION_VALUE);
}

/* ---- all ranks ---- */

hvt_status hvt_options_agree(const hvt_options *opts, hvt_world *world)
{
    char(*text)[HVT_OPTION_VALUE] = calloc(HVT_OPTION_COUNT, sizeof *text);
    hvt_item items[HVT_OPTION_COUNT + 1] = {{"build", HVT_VERSION " by " HVT_COMPILER}};
    int n = 1;
    hvt_status s = text ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d options", HVT_OPTION_COUNT);

    HVT_TRY_OR(done, hvt_world_agree(world, s));
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (table[i].scope != HVT_SCOPE_RANK) {
            hvt__option_text(opts, i, text[i]);
            items[n++] = (hvt_item){hvt__option_flag(i), text[i]};
        }
    HVT_TRY_OR(done, hvt_world_compare(world, items, n));
done:
    free(text);
    return s;
}

/* ---- help ---- */

/* `text` from column `at` on, broken at spaces before column `width`; later lines begin at column `at`. */
static void wrap(FILE *f, const char *text, int at, int width)
{
    int col = at;

    while (*text) {
        int len = (int)strcspn(text, " ");
        if (col > at && col + 1 + len > width) {
            fprintf(f, "\n%*s", at, "");
            col = at;
        } else if (col > at) {
            fputc(' ', f);
            col++;
        }
        fprintf(f, "%.*s", len, text);
        col += len;
        text += len;
        text += *text == ' ';
    }
    fputc('\n', f);
}

static void help_plain(FILE *f)
{
    fprintf(f,
            "hvtrain %s: trains image classifiers, on one process or on many under mpirun or srun.\n\n"
            "    hvtrain --model resnet20 --data synth --epochs 2\n"
            "    mpirun -np 4 hvtrain --data cifar10 --data-dir DIR --save out\n"
            "    hvtrain --resume out --evaluate\n"
            "    mpirun -np 4 hvtrain tune --model resnet50 --output fast.json\n"
            "    mpirun -np 4 hvtrain --config fast.json --model resnet50\n\n"
            "Options are --name value or --name=value; a repeated one: the last wins. Defaults stand in "
            "brackets.\n",
            hvt_version());
    for (size_t i = 0; i < HVT_LEN(grouped); i++) {
        const option *o = &grouped[i];
        char left[256], right[512], flag[40], form[256];
        int n;

        if (o->group) {
            fprintf(f, "\n%s\n", o->group);
            continue;
        }
        snprintf(form, sizeof form, "%s", o->form);
        n = snprintf(left, sizeof left, "  %s %s", flag_of(o, flag), form);
        if (n > 30) { /* many words: below, not beside */
            snprintf(left, sizeof left, "  %s", flag);
            for (char *p = form; *p; p++)
                *p = *p == '|' && o->kind == KIND_pick ? ' ' : *p;
            snprintf(right, sizeof right, "%s%s%s%s[%s]", form, *o->help ? ": " : " ", o->help,
                     *o->help ? " " : "", o->preset);
        } else {
            snprintf(right, sizeof right, "%s%s%s%s%s", o->help, *o->help ? " " : "", *o->preset ? "[" : "",
                     o->preset, *o->preset ? "]" : "");
        }
        fprintf(f, "%-32s", left);
        wrap(f, right, 32, 100);
    }
    fprintf(f, "\n  --help, --help=markdown, --version\n\n"
               "Exit: 0 done, 1 failed, 2 bad command line, 3 a rank did not come, 130 interrupted.\n"
               "HVT_LOG=debug says more.\n");
}

static void help_markdown(FILE *f)
{
    fprintf(f, "| flag | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < HVT_LEN(grouped); i++) {
        const option *o = &grouped[i];
        char flag[40];

        if (o->group) {
            fprintf(f, "| **%s** | | |\n", o->group);
            continue;
        }
        fprintf(f, "| `%s", flag_of(o, flag));
        fputc(' ', f);
        for (const char *p = o->form; *p; p++)
            fprintf(f, *p == '|' ? "\\|" : "%c", *p);
        fprintf(f, "` | %s%s%s | %s |\n", *o->preset ? "`" : "", o->preset, *o->preset ? "`" : "", o->help);
    }
}

char *hvt_options_help(bool markdown)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    if (!f)
        return NULL;
    if (markdown)
        help_markdown(f);
    else
        help_plain(f);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}
