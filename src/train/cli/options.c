/*
 * The options, by loops over their table: defaults, the command line, and the comparison of the ranks'
 * values.
 *
 * Where a value came from is kept beside it: a file fills in only what no flag gives.
 */
#include "options.h"
#include "base_impl.h"

#include "config.h"

#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

static hvt_status set(hvt_options *opts, const hvt__option *o, const char *value)
{
    char what[256], flag[HVT_OPTION_FLAG], near[HVT_HINT];

    if (hvt__value_read(opts, o, value)) {
        opts->from[o - hvt__option_table] = HVT_FROM_FLAG;
        return HVT_OK;
    }
    hvt__value_expected(o, what, sizeof what);
    hvt__hint_value(o, value, near);
    return HVT_FAIL(E_ARG, "%s: expected %s, got '%s'%s", hvt__flag_of(o, flag), what, value, near);
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
}

void hvt__option_text(const hvt_options *opts, int i, char ret_text[HVT_OPTION_VALUE])
{
    hvt__value_write(opts, &hvt__option_table[i], ret_text, HVT_OPTION_VALUE);
}

/* ---- the command line ---- */

static hvt_status parse_one(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    const char *value = strchr(arg, '=');
    size_t len = value ? (size_t)(value - arg) : strlen(arg);
    const hvt__option *o;
    bool no = false;
    char what[256], flag[HVT_OPTION_FLAG], more[HVT_HINT];

    const char *given = value ? value + 1 : *i + 1 < argc && *argv[*i + 1] != '-' ? argv[*i + 1] : NULL;

    if (strncmp(arg, "--", 2) || !arg[2]) {
        hvt__hint_stray(argc, argv, *i, given, more);
        return HVT_FAIL(E_ARG, "'%s' is not a flag: %s", arg, more);
    }
    value = value ? value + 1 : NULL;
    o = hvt__option_named(arg + 2, len - 2);
    if (!o && len > 5 && (!strncmp(arg, "--no-", 5) || !strncmp(arg, "--no_", 5))) {
        o = hvt__option_named(arg + 5, len - 5);
        no = o && o->kind == KIND_bool;
        o = no ? o : NULL;
    }
    if (!o) {
        hvt__hint_flag(arg, len, given, more);
        return HVT_FAIL(E_ARG, *more ? "there is no flag %.*s; %s" : "there is no flag %.*s (see --help)",
                        (int)len, arg, more);
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
    HVT_CHECK(o->kind != KIND_str || value != arg + len + 1 || strncmp(value, "~/", 2), E_ARG,
              "%s: the shell leaves '~' as it is behind '='; write %.*s %s", arg, (int)len, arg, value);
    return set(opts, o, value);
}

hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts)
{
    HVT_CHECK(ret_opts && (argv || argc < 2), E_ARG, "%s() needs arguments and a place for options",
              __func__);

    hvt_options opts;

    hvt_options_default(&opts);
    for (int i = 1; i < argc; i++) {
        if (i == 1 && !strcmp(argv[i], "tune"))
            opts.ask = HVT_ASK_TUNE;
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
    hvt_item items[HVT_OPTION_COUNT + 1] = {{"build", HVT_VERSION " by " HVT_COMPILER}};
    int n = 1;
    hvt_status s = text ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare %d options", HVT_OPTION_COUNT);

    HVT_TRY_OR(done, hvt_world_agree(world, s));
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (hvt__option_table[i].scope != HVT_SCOPE_RANK) {
            hvt__option_text(opts, i, text[i]);
            items[n++] = (hvt_item){hvt__option_flag(i), text[i]};
        }
    HVT_TRY_OR(done, hvt_world_compare(world, items, n));
done:
    free(text);
    return s;
}
