/*
 * Loops over the table of options: defaults, the command line, the comparison between ranks. The source of
 * each value is kept beside it, because a file must not override a flag.
 */
#include "options.h"
#include "base_impl.h"

#include "config.h"

#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static hvt_status set(hvt_options *opts, const hvt__option *o, const char *value)
{
    char what[256], near[HVT_HINT];

    if (hvt__value_read(opts, o, value)) {
        opts->from[o - hvt__option_table] = HVT_FROM_FLAG;
        return HVT_OK;
    }
    hvt__value_expected(o, what, sizeof what);
    hvt__hint_value(o, value, near);
    return HVT_FAIL(E_ARG, "%s: expected %s, got '%s'%s", hvt__flag_of(o).text, what, value, near);
}

hvt_status hvt_options_set(hvt_options *opts, const char *name, const char *value)
{
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(name, "an option's name");
    HVT_GIVEN(value, "a value");

    const hvt__option *o = hvt__option_named(name, strlen(name));

    HVT_CHECK(o, E_ARG, "there is no option --%s", name);
    return set(opts, o, value);
}

void hvt_options_default(hvt_options *ret_opts)
{
    if (!ret_opts)
        return;
    memset(ret_opts, 0, sizeof *ret_opts);
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!hvt__value_read(ret_opts, &hvt__option_table[i], hvt__option_table[i].preset))
            abort(); /* the table contradicts itself */
    ret_opts->tune_file = "";
    ret_opts->tune_seconds = 60;
}

void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE])
{
    hvt__value_write(opts, &hvt__option_table[i], ret_text, HVT_OPTION_VALUE);
}

/* ---- the command line ---- */

/* argv[at] is not a flag of ours. */
static hvt_status refuse(char **argv, int at, size_t len, const char *value)
{
    const char *arg = argv[at];
    char more[HVT_HINT];

    if (strncmp(arg, "--", 2) || !arg[2]) {
        hvt__hint_stray(argv, at, value, more);
        return HVT_FAIL(E_ARG, "'%s' is not a flag: %s", arg, more);
    }
    hvt__hint_flag(arg, len, value, more);
    return HVT_FAIL(E_ARG, *more ? "there is no flag %.*s; %s" : "there is no flag %.*s (see --help)",
                    (int)len, arg, more);
}

/* The value of the flag at argv[*i], which may be the next argument. */
static hvt_status find_value(const hvt__option *o, int argc, char **argv, int *i, const char **value)
{
    const char *arg = argv[*i], *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    hvt_options ignored;
    char what[256];

    hvt__value_expected(o, what, sizeof what);
    if (!*value && o->kind == KIND_bool && (!next || !hvt__value_read(&ignored, o, next))) {
        *value = "on";
    } else if (!*value) {
        HVT_CHECK(next, E_ARG, "%s: expected %s, got the end of the command line", hvt__flag_of(o).text,
                  what);
        HVT_CHECK(strncmp(next, "--", 2), E_ARG, "%s: expected %s, got the flag %s", hvt__flag_of(o).text,
                  what, next);
        *value = argv[++*i];
    } else {
        HVT_CHECK(o->kind != KIND_str || strncmp(*value, "~/", 2), E_ARG,
                  "%s: the shell leaves '~' as it is behind '='; write %s %s", arg, hvt__flag_of(o).text,
                  *value);
    }
    /* --save "$DIR" of a variable that is not set */
    HVT_CHECK(o->kind != KIND_str || **value, E_ARG, "%s: expected %s, got ''", hvt__flag_of(o).text, what);
    return HVT_OK;
}

static hvt_status parse_one(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *arg = argv[*i], *equals = strchr(arg, '='), *value = equals ? equals + 1 : NULL;
    size_t len = equals ? (size_t)(equals - arg) : strlen(arg);
    bool dashed = len > 2 && !strncmp(arg, "--", 2);
    bool no = len > 5 && (!strncmp(arg, "--no-", 5) || !strncmp(arg, "--no_", 5));
    const hvt__option *o = dashed ? hvt__option_named(arg + 2, len - 2) : NULL;

    if (!o && no) {
        o = hvt__option_named(arg + 5, len - 5);
        if (o && o->kind == KIND_bool) {
            HVT_CHECK(!value, E_ARG, "%.*s takes no value, got '%s'", (int)len, arg, value);
            return set(opts, o, "off");
        }
        o = NULL;
    }
    if (!o)
        return refuse(argv, *i, len,
                      value                                   ? value
                      : *i + 1 < argc && *argv[*i + 1] != '-' ? argv[*i + 1]
                                                              : NULL);
    HVT_TRY(find_value(o, argc, argv, i, &value));
    return set(opts, o, value);
}

/* "tune FILE [SECONDS]" in front. */
static hvt_status parse_tune(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *seconds;

    opts->ask = HVT_ASK_TUNE;
    if (*i + 1 < argc && *argv[*i + 1] != '-')
        opts->tune_file = argv[++*i];
    if (*i + 1 < argc && *opts->tune_file && *argv[*i + 1] != '-') {
        seconds = argv[++*i];
        HVT_CHECK(hvt__scan_number(&seconds, &opts->tune_seconds) && !*seconds && opts->tune_seconds >= 1,
                  E_ARG, "tune %s: expected a number of seconds >= 1 or an option, got '%s'", opts->tune_file,
                  argv[*i]);
    }
    return HVT_OK;
}

hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts)
{
    HVT_CHECK(ret_opts && (argv || argc < 2), E_ARG, "%s() needs arguments and a place for options",
              __func__);

    hvt_options opts;

    hvt_options_default(&opts);
    for (int i = 1; i < argc; i++) {
        if (i == 1 && !strcmp(argv[i], "tune"))
            HVT_TRY(parse_tune(&opts, argc, argv, &i));
        else if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            opts.ask = HVT_ASK_HELP;
        else if (!strcmp(argv[i], "--help=markdown"))
            opts.ask = HVT_ASK_MARKDOWN;
        else if (!strcmp(argv[i], "--help=man"))
            opts.ask = HVT_ASK_MAN;
        else if (!strcmp(argv[i], "--version"))
            opts.ask = HVT_ASK_VERSION;
        else if (!strncmp(argv[i], "--help=", 7))
            return HVT_FAIL(E_ARG, "--help: expected nothing, =markdown or =man, got '%s'", argv[i] + 7);
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
    HVT_GIVEN(opts, "options");
    HVT_GIVEN(world, "a world");
    char(*text)[HVT_OPTION_VALUE] = calloc(HVT_OPTION_COUNT, sizeof *text);
    hvt__flag flag[HVT_OPTION_COUNT];
    hvt_item items[HVT_OPTION_COUNT + 1] = {{"build", HVT_VERSION " by " HVT_COMPILER}};
    int n = 1;
    hvt_status s = text ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d options", HVT_OPTION_COUNT);

    HVT_TRY_OR(done, hvt_world_agree(world, s));
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (hvt__option_table[i].scope != HVT_SCOPE_RANK) {
            hvt__option_text(opts, i, text[i]);
            flag[i] = hvt__option_flag(i);
            items[n++] = (hvt_item){flag[i].text, text[i]};
        }
    HVT_TRY_OR(done, hvt_world_compare(world, items, n));
done:
    free(text);
    return s;
}
