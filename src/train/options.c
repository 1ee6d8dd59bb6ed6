/*
 * The options: one table made of HVT_OPTIONS, and loops over it that set defaults, parse the command line and
 * compare the ranks' values.
 *
 * A flag is an option's field with '-' for '_'. Where a value came from is kept beside it: a file fills in
 * only what no flag gives.
 */
#include "options.h"
#include "base_impl.h"

#include "config.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

static const hvt__option table[HVT_OPTION_COUNT] = {HVT_OPTIONS(HVT_OPT_NO_GROUP, HVT__OPTION)};

/* ---- names ---- */

/* Is text[0..len) the flag of this option? '_' and '-' are the same. */
static bool is_named(const hvt__option *o, const char *text, size_t len)
{
    if (strlen(o->field) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (o->field[i] != (text[i] == '-' ? '_' : text[i]))
            return false;
    return true;
}

static const hvt__option *find(const char *name, size_t len)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (is_named(&table[i], name, len))
            return &table[i];
    return NULL;
}

const char *hvt__flag_of(const hvt__option *o, char ret_flag[HVT_OPTION_FLAG])
{
    size_t n = 2;

    memcpy(ret_flag, "--", 2);
    for (const char *p = o->field; *p && n < HVT_OPTION_FLAG - 1; p++)
        ret_flag[n++] = *p == '_' ? '-' : *p;
    ret_flag[n] = 0;
    return ret_flag;
}

const char *hvt__option_flag(int i)
{
    static char flags[HVT_OPTION_COUNT][HVT_OPTION_FLAG];

    return hvt__flag_of(&table[i], flags[i]);
}

int hvt__option_find(const char *name)
{
    const hvt__option *o = find(name, strlen(name));

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

/* The i-th thing that may stand on a command line; NULL after the last. */
static const char *known_flag(int i, char ret_text[HVT_OPTION_FLAG])
{
    char flag[HVT_OPTION_FLAG];

    if (i < HVT_OPTION_COUNT)
        return hvt__flag_of(&table[i], ret_text);
    if (i < 2 * HVT_OPTION_COUNT) {
        const hvt__option *o = &table[i - HVT_OPTION_COUNT];
        snprintf(ret_text, HVT_OPTION_FLAG, o->kind == KIND_bool ? "--no-%s" : "%s",
                 hvt__flag_of(o, flag) + 2);
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
        int score = hvt__distance(flag, known);
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

/* "; did you mean ...?", or nothing. */
static void meant(const hvt__option *o, const char *value, char ret_text[80])
{
    static const char *const unit[] = {[KIND_size] = "MiB", [KIND_time] = "s"};
    hvt_options ignored;
    char word[40] = "", end;

    hvt_options_default(&ignored);
    if ((o->kind == KIND_size || o->kind == KIND_time) && strlen(value) < 20 &&
        sscanf(value, "%*f%c", &end) < 1) {
        snprintf(word, sizeof word, "%s%s", value, unit[o->kind]);
        if (!hvt__value_read(&ignored, o, word))
            *word = 0;
    } else if (o->kind == KIND_pick && !hvt__suggest(o->form, value, word, sizeof word)) {
        *word = 0;
    }
    snprintf(ret_text, 80, *word ? "; did you mean %s?" : "", word);
}

static hvt_status set(hvt_options *opts, const hvt__option *o, const char *value)
{
    char what[256], flag[HVT_OPTION_FLAG], near[80];

    if (hvt__value_read(opts, o, value)) {
        opts->from[o - table] = HVT_FROM_FLAG;
        return HVT_OK;
    }
    hvt__value_expected(o, what, sizeof what);
    meant(o, value, near);
    return HVT_FAIL(E_ARG, "%s: expected %s, got '%s'%s", hvt__flag_of(o, flag), what, value, near);
}

hvt_status hvt_options_set(hvt_options *opts, const char *name, const char *value)
{
    const hvt__option *o = find(name, strlen(name));

    HVT_CHECK(o, E_ARG, "there is no option --%s", name);
    return set(opts, o, value);
}

void hvt_options_default(hvt_options *ret_opts)
{
    memset(ret_opts, 0, sizeof *ret_opts);
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!hvt__value_read(ret_opts, &table[i], table[i].preset))
            abort(); /* the table contradicts itself */
}

void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE])
{
    hvt__value_write(opts, &table[i], ret_text, HVT_OPTION_VALUE);
}

/* ---- the command line ---- */

enum { HINT = 160 };

/* An argument's first len letters as a flag: two dashes before, '-' for '_'; false: there is nothing but
 * dashes. */
static bool as_flag(const char *arg, size_t len, char ret_flag[HVT_OPTION_FLAG])
{
    size_t dashes = strspn(arg, "-");

    if (dashes >= len)
        return false;
    snprintf(ret_flag, HVT_OPTION_FLAG, "--%.*s", (int)(len - dashes), arg + dashes);
    for (char *p = ret_flag + 2; *p; p++)
        *p = *p == '_' ? '-' : *p;
    return true;
}

/* What to say of a flag that is none; "": nothing. value: what was given to it; NULL: nothing. */
static const char *hint(const char *arg, size_t len, const char *value, char ret_text[HINT])
{
    char name[HVT_OPTION_FLAG], near[HVT_OPTION_FLAG];

    *ret_text = 0;
    if (!as_flag(arg, len, name))
        return ret_text;
    memcpy(ret_text, "here: ", 7);
    if (!hvt__option_elsewhere(name + 2, value, ret_text + 6, HINT - 6))
        *ret_text = 0;
    if (*ret_text)
        return ret_text;
    if (nearest(name, near))
        snprintf(ret_text, HINT, "the nearest is %s", near);
    return ret_text;
}

bool hvt__option_nearest(const char *name, char ret_flag[HVT_OPTION_FLAG])
{
    char flag[HVT_OPTION_FLAG];

    return as_flag(name, strlen(name), flag) && nearest(flag, ret_flag);
}

static hvt_status parse_one(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    const char *value = strchr(arg, '=');
    size_t len = value ? (size_t)(value - arg) : strlen(arg);
    const hvt__option *o;
    bool no = false;
    char what[256], flag[HVT_OPTION_FLAG], more[HINT];

    const char *given = value ? value + 1 : *i + 1 < argc && *argv[*i + 1] != '-' ? argv[*i + 1] : NULL;

    if (strncmp(arg, "--", 2) || !arg[2]) {
        if (*arg == '-' && *hint(arg, len, given, more))
            return HVT_FAIL(E_ARG, "'%s' is not a flag: options begin with two dashes; %s", arg, more);
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
        if (*hint(arg, len, given, more))
            return HVT_FAIL(E_ARG, "there is no flag %.*s; %s", (int)len, arg, more);
        return HVT_FAIL(E_ARG, "there is no flag %.*s (see --help)", (int)len, arg);
    }
    if (no) {
        HVT_CHECK(!value, E_ARG, "%.*s takes no value, got '%s'", (int)len, arg, value);
        return set(opts, o, "off");
    }
    if (!value && o->kind == KIND_bool) {
        hvt_options ignored = *opts;
        bool follows = *i + 1 < argc && hvt__value_read(&ignored, o, argv[*i + 1]);
        return set(opts, o, follows ? argv[++*i] : "on");
    }
    if (!value) {
        bool end = *i + 1 >= argc;
        hvt__value_expected(o, what, sizeof what);
        HVT_CHECK(!end, E_ARG, "%s: expected %s, got the end of the command line", hvt__flag_of(o, flag),
                  what);
        HVT_CHECK(strncmp(argv[*i + 1], "--", 2), E_ARG, "%s: expected %s, got the flag %s",
                  hvt__flag_of(o, flag), what, argv[*i + 1]);
        value = argv[++*i];
    }
    if (o->kind == KIND_str && !*value) { /* --save "$DIR" of a variable that is not set */
        hvt__value_expected(o, what, sizeof what);
        return HVT_FAIL(E_ARG, "%s: expected %s, got ''", hvt__flag_of(o, flag), what);
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
