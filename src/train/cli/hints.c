/*
 * Suggestions for a command line that is refused. The error says what was expected and what came; a hint says
 * what the user probably meant.
 */
#include "options.h"
#include "base_impl.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* ---- flags ---- */

/* The i-th known flag; false: there are no more. */
static bool known_flag(int i, hvt__flag *ret_flag)
{
    static const hvt__flag others[] = {{"--help"}, {"--version"}};
    const hvt__option *o;

    if (i >= 2 * HVT_OPTION_COUNT + (int)HVT_LEN(others))
        return false;
    if (i >= 2 * HVT_OPTION_COUNT) {
        *ret_flag = others[i - 2 * HVT_OPTION_COUNT];
        return true;
    }
    o = &hvt__option_table[i / 2];
    *ret_flag = hvt__flag_of(o);
    if (i % 2 && o->kind == KIND_bool) /* and its negation */
        snprintf(ret_flag->text, sizeof ret_flag->text, "--no-%.40s", hvt__flag_of(o).text + 2);
    return true;
}

/* The known flag at the smallest edit distance, or one with the same beginning (--batch-size); case is
 * ignored. A flag of which every letter would change is not near. */
static bool nearest(const hvt__flag *flag, hvt__flag *ret_flag)
{
    int best = INT_MAX;
    size_t len = strlen(flag->text);
    hvt__flag known, small = *flag;

    for (char *p = small.text; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    for (int i = 0; known_flag(i, &known); i++) {
        size_t known_len = strlen(known.text);
        int score = hvt__distance(small.text, known.text);
        bool begins = !strncmp(small.text, known.text, len < known_len ? len : known_len) && len > 3;
        if (begins && score > 2)
            score = 2;
        if (score < best && score < (int)len - 2 && (score <= 2 || score <= (int)len / 3)) {
            best = score;
            *ret_flag = known;
        }
    }
    return best < INT_MAX;
}

void hvt__hint_flag(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT])
{
    size_t dashes = strspn(arg, "-"), word = strcspn(arg, " \t");
    hvt__flag flag, near;

    *ret_text = 0;
    if (dashes >= len)
        return;
    if (word > 2 && word < len && hvt__option_named(arg + 2, word - 2)) { /* "--lr 0.1" between quotes */
        snprintf(ret_text, HVT_HINT,
                 "%.*s and its value are two words: without quotes around both, or %.*s=...", (int)word, arg,
                 (int)word, arg);
        return;
    }
    snprintf(flag.text, sizeof flag.text, "--%.*s", (int)(len - dashes), arg + dashes);
    for (char *p = flag.text; *p; p++)
        *p = *p == '_' ? '-' : *p;
    memcpy(ret_text, "here: ", 7);
    if (hvt__foreign_flag(flag.text + 2, value, ret_text + 6, HVT_HINT - 6) ||
        (!strncmp(flag.text, "--no-", 5) &&
         hvt__foreign_flag(flag.text + 5, value, ret_text + 6, HVT_HINT - 6)))
        return;
    *ret_text = 0;
    if (nearest(&flag, &near))
        snprintf(ret_text, HVT_HINT, "the nearest is %s", near.text);
}

/* ---- words that stand alone ---- */

/* A typographic dash, as word processors make it of two hyphens: U+2010 to U+2015, U+2212. */
static bool is_long_dash(const char *arg)
{
    const unsigned char *c = (const unsigned char *)arg;

    return c[0] == 0xe2 && ((c[1] == 0x80 && c[2] >= 0x90 && c[2] <= 0x95) || (c[1] == 0x88 && c[2] == 0x92));
}

/* Subcommands of similar programs. */
static const char *command(const char *word)
{
    static const char *const commands[][2] = {
        {"train", "hvtrain trains without being told: leave the word out"},
        {"fit", "hvtrain trains without being told: leave the word out"},
        {"run", "hvtrain trains without being told: leave the word out"},
        {"eval", "here: --evaluate --resume DIR"},
        {"evaluate", "here: --evaluate --resume DIR"},
        {"test", "here: --evaluate --resume DIR"},
        {"resume", "here: --resume DIR"},
        {"help", "here: --help"},
        {"version", "here: --version"},
        {"tune", "tune stands in front of all options"},
    };

    for (size_t i = 0; i < HVT_LEN(commands); i++)
        if (!strcasecmp(word, commands[i][0]))
            return commands[i][1];
    return NULL;
}

/* The option whose value is argv[at - 1], if its value is a list with commas. */
static const hvt__option *takes_parts(char **argv, int at)
{
    const char *flag = at >= 2 ? argv[at - 2] : "", *joined = at >= 1 ? strchr(argv[at - 1], '=') : NULL;
    const hvt__option *o = NULL;

    if (joined && !strncmp(argv[at - 1], "--", 2))
        o = hvt__option_named(argv[at - 1] + 2, (size_t)(joined - argv[at - 1] - 2));
    else if (!strncmp(flag, "--", 2))
        o = hvt__option_named(flag + 2, strlen(flag + 2));
    return o && strchr(o->form, ',') ? o : NULL;
}

void hvt__hint_stray(char **argv, int at, const char *value, char ret_text[HVT_HINT])
{
    const char *arg = argv[at], *equals = strchr(arg, '='), *whole = command(arg);
    char word[40], more[HVT_HINT] = "";
    const hvt__option *o = takes_parts(argv, at);
    size_t len = equals ? (size_t)(equals - arg) : strlen(arg);

    snprintf(ret_text, HVT_HINT, "options are --name value or --name=value (see --help)");
    if (*arg == '-') {
        hvt__hint_flag(arg, len, value, more);
        if (!*more && isalpha((unsigned char)arg[1]) && isdigit((unsigned char)arg[2])) /* -j4 */
            hvt__hint_flag(arg, 2, arg + 2, more);
        if (*more)
            snprintf(ret_text, HVT_HINT, "options begin with two dashes; %.160s", more);
        return;
    }
    if (is_long_dash(arg)) {
        snprintf(ret_text, HVT_HINT,
                 "it begins with a long dash, as text that was copied may; type two short "
                 "ones, --");
        return;
    }
    if (whole) {
        snprintf(ret_text, HVT_HINT, "%s", whole);
        return;
    }
    if (o) {
        snprintf(ret_text, HVT_HINT, "a list has commas and no blanks: %s %s", hvt__flag_of(o).text, o->form);
        return;
    }
    if (equals && hvt__option_named(arg, len)) { /* lr=0.1 */
        snprintf(ret_text, HVT_HINT, "options begin with two dashes; did you mean --%.100s?", arg);
        return;
    }
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        o = &hvt__option_table[i];
        if (o->kind != KIND_pick)
            continue;
        if (hvt__is_word_of(o->form, arg))
            snprintf(word, sizeof word, "%.39s", arg);
        else if (strlen(arg) < 5 || !hvt__suggest(o->form, arg, word, sizeof word))
            continue;
        snprintf(ret_text, HVT_HINT, "did you mean %s %s?", hvt__flag_of(o).text, word);
        return;
    }
}

/* ---- values ---- */

/* The unit for a missing or misspelled one; NULL: there is none. */
static const char *meant_unit(hvt__kind kind, const char *unit)
{
    static const struct {
        hvt__kind kind;
        const char *came, *meant;
    } all[] = {{KIND_size, "", "MiB"},    {KIND_size, "k", "KiB"},     {KIND_size, "m", "MiB"},
               {KIND_size, "g", "GiB"},   {KIND_size, "kb", "KB"},     {KIND_size, "mb", "MB"},
               {KIND_size, "gb", "GB"},   {KIND_size, "kib", "KiB"},   {KIND_size, "mib", "MiB"},
               {KIND_size, "gib", "GiB"}, {KIND_size, "b", "B"},       {KIND_size, "bytes", "B"},
               {KIND_time, "", "s"},      {KIND_time, "s", "s"},       {KIND_time, "sec", "s"},
               {KIND_time, "secs", "s"},  {KIND_time, "seconds", "s"}, {KIND_time, "min", "m"},
               {KIND_time, "mins", "m"},  {KIND_time, "minutes", "m"}, {KIND_time, "m", "m"},
               {KIND_time, "h", "h"},     {KIND_time, "hours", "h"},   {KIND_time, "hour", "h"},
               {KIND_time, "ms", "ms"},   {KIND_time, "msec", "ms"}};

    for (size_t i = 0; i < HVT_LEN(all); i++)
        if (all[i].kind == kind && !strcasecmp(unit, all[i].came))
            return all[i].meant;
    return NULL;
}

/* A correction of the value that would be accepted; false: none. */
static bool mended(const hvt__option *o, const char *value, char ret_text[40])
{
    hvt_options ignored = {0};
    size_t digits = strspn(value, "0123456789.");
    const char *unit = meant_unit(o->kind, value + digits + strspn(value + digits, " "));
    char *comma;

    if (strlen(value) > 30)
        return false;
    if (o->kind == KIND_pick)
        return hvt__suggest(o->form, value, ret_text, 40);
    snprintf(ret_text, 40, "%s", value);
    comma = strchr(ret_text, ',');
    if (o->kind == KIND_num && comma) /* 0,1 */
        *comma = '.';
    else if (unit && digits)
        snprintf(ret_text, 40, "%.*s%s", (int)digits, value, unit);
    return hvt__value_read(&ignored, o, ret_text);
}

void hvt__hint_value(const hvt__option *o, const char *value, char ret_text[HVT_HINT])
{
    char word[40];

    *ret_text = 0;
    if (!strcmp(o->field, "bucket") && !strcmp(value, "auto"))
        snprintf(ret_text, HVT_HINT, "; here: hvtrain tune FILE finds the fastest size");
    else if (!strcmp(o->field, "overlap") && !strcmp(value, "layers"))
        snprintf(ret_text, HVT_HINT, "; here: --overlap worker");
    else if (!strcmp(o->field, "amp") && !strcasecmp(value, "tf32"))
        snprintf(ret_text, HVT_HINT, "; --tf32 is a flag of its own, for --device cuda");
    else if (mended(o, value, word))
        snprintf(ret_text, HVT_HINT, "; did you mean %s?", word);
}
