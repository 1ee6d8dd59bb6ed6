/*
 * Between the command line and the run: reads options from files, and checks that all options are equal on
 * all ranks and fit together.
 */
#include "checkpoint/checkpoint_impl.h"
#include "cli/cli_impl.h"
#include "base_impl.h"

#include <ctype.h>

/* Reads --config. The file is a part of the command line, so its errors are E_ARG. */
static hvt_status read_config(hvt_options *opts, hvt_world *world)
{
    void *texts = NULL; /* not in opts while its options are replaced as a whole */
    hvt_status s = *opts->config ? hvt__options_config(opts, world, &texts) : HVT_OK;
    const bool agreed = hvt_last_error_is_agreed();

    opts->from_files[0] = texts;
    if (s == HVT_OK || s == HVT_E_MEM || s == HVT_E_COMM)
        return s;
    s = HVT_FAIL(E_ARG, "%s", hvt_last_error());
    hvt__error_agreed(agreed);
    return s;
}

static hvt_status read_recipe(hvt_options *opts, hvt_world *world)
{
    char what[HVT_OPTION_VALUE + 16], *text = NULL;
    void *texts = NULL;
    hvt_status s;

    if (!*opts->recipe)
        return HVT_OK;
    s = hvt__recipe_options(opts->recipe, &text);
    snprintf(what, sizeof what, "--recipe %s", opts->recipe);
    s = hvt__options_share(opts, HVT_FROM_RECIPE, world, s, text, what, &texts);
    opts->from_files[2] = texts;
    return s;
}

/* Adds to an error which of the options that it names are the recipe's. */
static hvt_status name_recipe(const hvt_options *opts, hvt_status s)
{
    char flags[200] = "", error[1500];
    size_t used = 0;
    int n = 0;

    if (s == HVT_OK || !*opts->recipe)
        return s;
    snprintf(error, sizeof error, "%s", hvt_last_error());
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        const char *flag = hvt__flag_of(&hvt__option_table[i]).text, *at = strstr(error, flag);

        if (opts->from[i] != HVT_FROM_RECIPE || !at || isalpha((unsigned char)at[strlen(flag)]) ||
            at[strlen(flag)] == '-' || used + strlen(flag) + 3 > sizeof flags)
            continue;
        used += (size_t)snprintf(flags + used, sizeof flags - used, "%s%s", n++ ? ", " : "", flag);
    }
    return n ? hvt__fail(s, __FILE__, __LINE__, "%s (%s: from --recipe %s)", error, flags, opts->recipe) : s;
}

hvt_status hvt_options_prepare(hvt_options *opts, hvt_world *world)
{
    void *texts = NULL;
    hvt_status s;

    HVT_TRY(hvt__options_given(opts, __func__));
    HVT_GIVEN(world, "a world");
    HVT_CHECK(!opts->from_files[0] && !opts->from_files[1] && !opts->from_files[2], E_ARG,
              "these options were prepared before; hvt_options_release() comes first");

    HVT_TRY(hvt__options_agree(opts, world));
    HVT_TRY(read_config(opts, world));
    HVT_TRY(read_recipe(opts, world));
    s = hvt__options_resume(opts, world, &texts);
    opts->from_files[1] = texts;
    HVT_TRY(s);
    return hvt_world_agree(world, name_recipe(opts, hvt__options_check(opts, hvt_world_size(world))));
}

void hvt_options_release(hvt_options *opts)
{
    if (!opts)
        return;
    for (size_t i = 0; i < HVT_LEN(opts->from_files); i++)
        free(opts->from_files[i]);
    hvt_options_default(opts);
}

hvt_status hvt_train_args(int argc, char **argv, const hvt_dataset *train_set, const hvt_dataset *test_set,
                          hvt_world *world, hvt_report *ret_report)
{
    hvt_options opts;
    hvt_status s;

    hvt_options_default(&opts);
    HVT_TRY_OR(done, hvt_options_parse(argc, argv, &opts));
    opts.train_set = train_set;
    opts.test_set = test_set;
    HVT_CHECK_OR(done, opts.ask == HVT_ASK_TRAIN, E_ARG, "'%s' does not train; expected options only",
                 argv[1]);
    HVT_TRY_OR(done, hvt_options_prepare(&opts, world));
    HVT_TRY_OR(done, hvt_train(&opts, world, ret_report));
done:
    hvt_options_release(&opts);
    return s;
}
