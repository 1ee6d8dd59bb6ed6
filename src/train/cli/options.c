/*
 * Loops over the table of options: defaults, the command line, the comparison between ranks. Each value's
 * source is stored with it, because a file must not override a flag.
 */
#include "cli_impl.h"
#include "base_impl.h"
#include "world/items.h"

#include "config.h"

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
    char more[HVT_HINT];

    if (!o) {
        hvt__hint_name(name, value, more);
        return HVT_FAIL(E_ARG, "unknown option %s; %s", name, more);
    }
    return set(opts, o, value);
}

hvt_status hvt__options_given(const hvt_options *opts, const char *function)
{
    HVT_CHECK(opts, E_ARG, "%s() needs options, but got NULL", function);
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const hvt__option *o = &hvt__option_table[i];
        const char *text;

        if (o->kind != OPT_str && o->kind != OPT_pick)
            continue;
        memcpy(&text, (const char *)opts + o->offset, sizeof text);
        HVT_CHECK(text, E_ARG, "%s(): option %s is NULL: call hvt_options_default() before you set options",
                  function, o->field);
    }
    HVT_CHECK(opts->tune_file, E_ARG, "%s(): tune_file is NULL: call hvt_options_default() first", function);
    return HVT_OK;
}

void hvt_options_default(hvt_options *ret_opts)
{
    if (!ret_opts)
        return;
    *ret_opts = (hvt_options){.help_topic = "", .tune_file = "", .tune_seconds = 60};
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!hvt__value_read(ret_opts, &hvt__option_table[i], hvt__option_table[i].preset))
            abort(); /* the table is inconsistent */
}

/* The option of --NAME or --no-NAME; NULL if there is none. */
static const hvt__option *find_option(const char *arg, size_t len, bool *ret_off)
{
    bool no = !strncmp(arg, "--no-", 5) || !strncmp(arg, "--no_", 5);
    const hvt__option *o = strncmp(arg, "--", 2) ? NULL : hvt__option_named(arg + 2, len - 2);

    *ret_off = no && !o;
    if (*ret_off)
        o = hvt__option_named(arg + 5, len - 5);
    return *ret_off && o && o->kind != OPT_bool ? NULL : o;
}

static const char *after(int argc, char **argv, int at)
{
    return at + 1 < argc ? argv[at + 1] : NULL;
}

/* The value given to an unknown flag. */
static const char *value_at(int argc, char **argv, int at, size_t len)
{
    const char *next = after(argc, argv, at);

    return argv[at][len] ? argv[at] + len + 1 : next && *next != '-' ? next : NULL;
}

/* Refuses unknown flags from argv[at] on; no value begins with two dashes. */
static hvt_status refuse_unknown_flags(int argc, char **argv, int at)
{
    char all[1800] = "unknown option ", more[HVT_HINT];
    bool off, first = true;

    for (; at < argc; at++) {
        size_t len = strcspn(argv[at], "="), used = strlen(all);

        if (strncmp(argv[at], "--", 2) || find_option(argv[at], len, &off) ||
            hvt__is_word_of("--|--help|--version", argv[at]))
            continue;
        hvt__hint_flag(argv[at], len, value_at(argc, argv, at, len), more);
        snprintf(all + used, sizeof all - used, "%s%.*s%s%s", first ? "" : "; unknown option ", (int)len,
                 argv[at], *more ? "; " : " (see --help)", more);
        first = false;
    }
    return HVT_FAIL(E_ARG, "%s", all);
}

/* Refuses argv[at], which is not a known flag. */
static hvt_status refuse(int argc, char **argv, int at, size_t len)
{
    char more[HVT_HINT];

    if (!strncmp(argv[at], "--", 2) && argv[at][2])
        return refuse_unknown_flags(argc, argv, at);
    hvt__hint_stray(argv, at, value_at(argc, argv, at, len), more);
    return HVT_FAIL(E_ARG, "'%s' is not an option: %s", argv[at], more);
}

/* The value of the flag argv[*i], which may be `next`. */
static hvt_status find_value(const hvt__option *o, hvt_ask ask, char **argv, int *i, const char *next,
                             const char **value)
{
    hvt__flag flag = hvt__flag_of(o);
    hvt_options ignored;
    char what[256];

    if (ask == HVT_ASK_REPORT && o == &hvt__option_table[HVT__AT_output])
        snprintf(what, sizeof what, "FILE.html or FILE.svg");
    else
        hvt__value_expected(o, what, sizeof what);
    if (*value) {
        HVT_CHECK(o->kind != OPT_str || strncmp(*value, "~/", 2), E_ARG,
                  "%s: the shell does not expand '~' after '='; write %s %s", argv[*i], flag.text, *value);
    } else if (o->kind == OPT_bool && (!next || !hvt__value_read(&ignored, o, next))) {
        *value = "on";
    } else {
        HVT_CHECK(next, E_ARG, "%s: expected %s, got the end of the command line", flag.text, what);
        HVT_CHECK(strncmp(next, "--", 2), E_ARG, "%s: expected %s, got the option %s", flag.text, what, next);
        *value = argv[++*i];
    }
    /* '' is usually an unset variable: --save "$DIR" */
    HVT_CHECK(o->kind != OPT_str || **value, E_ARG, "%s: expected %s, got ''", flag.text, what);
    return HVT_OK;
}

/* True for the usual flags of a program's output file. */
static bool names_output(const char *arg, size_t len)
{
    char flag[24];

    snprintf(flag, sizeof flag, "%.*s", (int)len, arg);
    return hvt__is_word_of("-o|--out|--out-file|--outfile|--output-file|--out-dir|--outdir|--output-dir",
                           flag);
}

static hvt_status parse_one(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    size_t len = strcspn(arg, "=");
    const char *value = arg[len] ? arg + len + 1 : NULL;
    bool off;
    const hvt__option *o = find_option(arg, len, &off);

    HVT_CHECK(o || (opts->ask != HVT_ASK_REPORT && opts->ask != HVT_ASK_PACK) || !names_output(arg, len),
              E_ARG, "unknown option %.*s; use --output %s", (int)len, arg,
              opts->ask == HVT_ASK_PACK ? "DIR/train-%06d.tar" : "FILE.html");
    if (!o)
        return refuse(argc, argv, *i, len);
    if (off) {
        HVT_CHECK(!value, E_ARG, "%.*s takes no value, got '%s'", (int)len, arg, value);
        return set(opts, o, "off");
    }
    HVT_TRY(find_value(o, opts->ask, argv, i, after(argc, argv, *i), &value));
    if (o == &hvt__option_table[HVT__AT_recipe] && !strcmp(value, "list")) {
        opts->ask = HVT_ASK_HELP;
        opts->help_topic = "recipes";
    }
    return set(opts, o, value);
}

/* Parses "tune FILE [SECONDS]" or "tune lr FILE" at the start. */
static hvt_status parse_tune(hvt_options *opts, int argc, char **argv, int *i)
{
    opts->ask = HVT_ASK_TUNE;
    opts->tune_lr = *i + 1 < argc && !strcmp(argv[*i + 1], "lr");
    *i += opts->tune_lr;
    if (*i + 1 < argc && *argv[*i + 1] != '-')
        opts->tune_file = argv[++*i];
    if (!opts->tune_lr && *i + 1 < argc && *opts->tune_file && *argv[*i + 1] != '-') {
        const char *seconds = argv[++*i];
        HVT_CHECK(hvt__scan_number(&seconds, &opts->tune_seconds) && !*seconds && opts->tune_seconds >= 1,
                  E_ARG, "tune %s: expected a number of seconds >= 1 or an option, got '%s'", opts->tune_file,
                  argv[*i]);
    }
    return HVT_OK;
}

/* Parses "pack DIR" at the start; DIR is a folder of pictures unless --data says otherwise. */
static hvt_status parse_pack(hvt_options *opts, int argc, char **argv, int *i)
{
    opts->ask = HVT_ASK_PACK;
    opts->data = "folder";
    if (*i + 1 < argc && *argv[*i + 1] != '-')
        return hvt_options_set(opts, "data-dir", argv[++*i]);
    return HVT_OK;
}

/* Parses "inspect FILE ..." or "report RUN ..." at the start. */
static hvt_status parse_files(hvt_options *opts, hvt_ask ask, int argc, char **argv, int *i)
{
    opts->ask = ask;
    opts->files = (const char *const *)argv + *i + 1;
    for (; *i + 1 < argc && *argv[*i + 1] != '-'; ++*i)
        opts->nfiles++;
    return HVT_OK;
}

/* Parses argv[*i]; the first word may be a command. */
static hvt_status parse_word(hvt_options *opts, int argc, char **argv, int *i)
{
    if (*i == 1 && !strcmp(argv[*i], "tune"))
        return parse_tune(opts, argc, argv, i);
    if (*i == 1 && !strcmp(argv[*i], "pack"))
        return parse_pack(opts, argc, argv, i);
    if (*i == 1 && !strcmp(argv[*i], "inspect"))
        return parse_files(opts, HVT_ASK_INSPECT, argc, argv, i);
    if (*i == 1 && !strcmp(argv[*i], "report"))
        return parse_files(opts, HVT_ASK_REPORT, argc, argv, i);
    HVT_CHECK(opts->ask != HVT_ASK_REPORT || *argv[*i] == '-', E_ARG,
              "report: name all runs before the options; '%s' comes after one", argv[*i]);
    if (*i == 1 && !strcmp(argv[*i], "check")) {
        opts->ask = HVT_ASK_CHECK;
        return HVT_OK;
    }
    return parse_one(opts, argc, argv, i);
}

/* Parses "--help", "--help TOPIC" or "--help=TOPIC". */
static hvt_status parse_help(hvt_options *opts, int argc, char **argv, int *i)
{
    const char *equals = strchr(argv[*i], '='), *next = after(argc, argv, *i);

    if (equals)
        opts->help_topic = equals + 1;
    else if (next && *next != '-')
        opts->help_topic = argv[++*i];
    else if (opts->ask == HVT_ASK_PACK)
        opts->help_topic = "packing";
    opts->ask = HVT_ASK_HELP;
    return hvt__help_check(opts->help_topic);
}

hvt_status hvt_options_parse(int argc, char **argv, hvt_options *ret_opts)
{
    HVT_CHECK(ret_opts && argc >= 0 && (argv || argc < 2), E_ARG,
              "%s() needs arguments (%d given) and an output pointer for the options", __func__, argc);

    hvt_options opts;

    hvt_options_default(&opts);
    for (int i = 1; i < argc; i++)
        HVT_CHECK(argv[i], E_ARG, "argument %d of %d is NULL", i, argc - 1);
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        HVT_CHECK(strncmp(arg, "--version=", 10), E_ARG, "--version takes no value, got '%s'", arg + 10);
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h") || !strncmp(arg, "--help=", 7)) {
            HVT_TRY(parse_help(&opts, argc, argv, &i));
        } else if (!strcmp(arg, "--version")) {
            opts.ask = HVT_ASK_HELP;
            opts.help_topic = "version";
        } else {
            HVT_TRY(parse_word(&opts, argc, argv, &i));
        }
    }
    *ret_opts = opts;
    return HVT_OK;
}

hvt_status hvt__options_agree(const hvt_options *opts, hvt_world *world)
{
    char text[HVT_OPTION_VALUE];
    hvt__items items = {0};

    hvt__items_add(&items, "build\t%s by %s", hvt_version(), HVT_COMPILER);
    hvt__items_add(&items, "data sets\t%s", opts->test_set ? "the caller's" : "of --data");
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (hvt__option_table[i].scope != HVT_SCOPE_RANK) {
            hvt__option_text(opts, i, text);
            hvt__items_add(&items, "%s\t%s", hvt__flag_of(&hvt__option_table[i]).text, text);
        }
    return hvt__items_compare(&items, world);
}
