/*
 * Suggestions for a refused command line. The error says what was expected and what came; a hint says what to
 * write instead. A hint asks "did you mean" only for the same thing in another spelling: other case and
 * punctuation (ResNet-50), another program's name (fp16), a typing error (resnt20), or other units (10 %).
 * For names of other things (bce, resnext50, nadam) the error lists the valid words.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <ctype.h>
#include <dirent.h>
#include <math.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WORD = 40 };

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Edit distance: letters inserted, deleted, replaced, or two swapped. */
static int distance(const char *a, const char *b)
{
    int d[WORD + 1][WORD + 1], la = (int)strnlen(a, WORD), lb = (int)strnlen(b, WORD);

    for (int i = 0; i <= WORD; i++)
        d[i][0] = d[0][i] = i;
    for (int i = 1; i <= la; i++)
        for (int j = 1; j <= lb; j++) {
            d[i][j] = least(least(d[i - 1][j], d[i][j - 1]) + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                d[i][j] = least(d[i][j], d[i - 2][j - 2] + 1);
        }
    return d[la][lb];
}

/* Lower-case letters and digits only. */
static const char *plain(const char *text, size_t len, char ret[WORD + 1])
{
    size_t n = 0;

    for (size_t i = 0; i < len && text[i] && n < WORD; i++)
        if (isalnum((unsigned char)text[i]))
            ret[n++] = (char)tolower((unsigned char)text[i]);
    ret[n] = 0;
    return ret;
}

static bool same_digits(const char *a, const char *b)
{
    do {
        a += strcspn(a, "0123456789");
        b += strcspn(b, "0123456789");
        if (*a != *b)
            return false;
    } while (*a++ && *b++);
    return true;
}

/* True if value is the word with a letter omitted, doubled or replaced, two letters swapped, or an s added.
 * Other added letters make names of other things: resnext50, nadam, bce. */
static bool is_slip(const char *word, const char *value)
{
    size_t a = strlen(word), b = strlen(value), at = 0;

    if (b < 4 || distance(word, value) != 1)
        return false;
    while (word[at] && word[at] == value[at])
        at++;
    if (b > a)
        return (at && value[at] == value[at - 1]) || (at == a && value[at] == 's');
    return b < a || b > 5 || word[at + 1] == value[at];
}

/* 0: the same word; 1: a typing error; INT_MAX: another word. `parameter`: the word continues with a
 * number. */
static int unlike(const char *word, const char *value, bool parameter)
{
    char wanted[WORD + 1];
    size_t len = strlen(value);
    const char *ours;

    snprintf(wanted, sizeof wanted, "%s", value);
    while (parameter && len && isdigit((unsigned char)wanted[len - 1]))
        wanted[--len] = 0;
    ours = hvt__foreign(HVT__WORD, wanted);
    if (!strcmp(word, wanted) || (ours && !strcmp(word, ours)))
        return 0;
    if (!same_digits(word, wanted)) /* cifar100 is not a misspelled cifar10 */
        return INT_MAX;
    return is_slip(word, wanted) ? 1 : INT_MAX;
}

/* Finds the intended word of form; false, with an empty word, if none is the same. */
static bool suggest(const char *form, const char *value, char *ret_word, size_t bytes)
{
    char wanted[WORD + 1], word[WORD + 1];
    int best = INT_MAX;
    const char *digits = value + strlen(value);

    while (digits > value && isdigit((unsigned char)digits[-1]))
        digits--;
    *ret_word = 0;
    plain(value, strlen(value), wanted);
    for (const char *p = form; p; p = strchr(p, '|'), p = p ? p + 1 : NULL) {
        size_t len = strcspn(p, "|"), name = strcspn(p, "|:");

        plain(p, name, word);
        int d = unlike(word, wanted, name < len);
        bool numbered = name < len && *digits && strlen(digits) < 4;
        snprintf(word, sizeof word, "%.*s%s", (int)(numbered ? name + 1 : len), p, numbered ? digits : "");
        if (d < best && strcmp(word, value)) {
            best = d;
            snprintf(ret_word, bytes, "%s", word);
        }
    }
    return best < INT_MAX;
}

typedef struct nearest {
    hvt__flag flag, near; /* near: the nearest so far */
    int score;
} nearest;

/* A flag is near if at most a third of its letters differ, or if it has the same beginning (--batch-size). */
static void try_flag(nearest *n, const char *known)
{
    size_t len = strlen(n->flag.text), shorter = len < strlen(known) ? len : strlen(known);
    int score = distance(n->flag.text, known);

    if (len > 3 && !strncmp(n->flag.text, known, shorter))
        score = least(score, 1);
    if (score < n->score && score <= ((int)len - 2) / 3) {
        n->score = score;
        snprintf(n->near.text, sizeof n->near.text, "%s", known);
    }
}

/* The nearest known flag, ignoring case; "" if none is near. */
static hvt__flag nearest_flag(const hvt__flag *flag)
{
    nearest n = {.flag = *flag, .score = INT_MAX};

    for (char *p = n.flag.text; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    for (int i = 0; i < HVT_OPTION_COUNT; i++) {
        hvt__flag known = hvt__flag_of(&hvt__option_table[i]), no;
        try_flag(&n, known.text);
        snprintf(no.text, sizeof no.text, "--no-%.40s", known.text + 2);
        if (hvt__option_table[i].kind == OPT_bool)
            try_flag(&n, no.text);
    }
    try_flag(&n, "--help");
    try_flag(&n, "--version");
    return n.near;
}

/* A copy of `here` in which each #N is the number. */
static void put_number(const char *here, const char *number, char ret_text[HVT_HINT])
{
    size_t used = 0;

    for (const char *n; (n = strstr(here, "#N")) && used < HVT_HINT; here = n + 2)
        used += (size_t)snprintf(ret_text + used, HVT_HINT - used, "%.*s%s", (int)(n - here), here, number);
    if (used < HVT_HINT)
        snprintf(ret_text + used, HVT_HINT - used, "%s", here);
}

/* A value for #N: a number, or a list of GPUs 0,1 as "0,cuda:1"; "N" for other values. */
static void show_number(const char *value, bool is_list, char ret_text[WORD])
{
    enum { LETTERS = 12 };
    size_t n = 0;

    snprintf(ret_text, WORD, "N");
    if (!value || !isdigit((unsigned char)*value) || strlen(value) > LETTERS ||
        value[strspn(value, is_list ? "0123456789," : "0123456789.")])
        return;
    for (; *value && n < WORD; value++)
        n += (size_t)snprintf(ret_text + n, WORD - n, "%s", *value == ',' ? ",cuda:" : (char[]){*value, 0});
}

void hvt__hint_flag(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT])
{
    size_t dashes = strspn(arg, "-"), word = strcspn(arg, " \t");
    const bool is_list = value && strchr(value, ',');
    const char *here;
    char shown[WORD];
    hvt__flag flag, near;

    *ret_text = 0;
    if (dashes >= len)
        return;
    if (word > 2 && word < len && hvt__option_named(arg + 2, word - 2)) { /* "--lr 0.1" in one argument */
        snprintf(ret_text, HVT_HINT,
                 "%.*s and its value are two arguments: quote them separately, or write %.*s=...", (int)word,
                 arg, (int)word, arg);
        return;
    }
    snprintf(flag.text, sizeof flag.text, "--%.*s", (int)(len - dashes), arg + dashes);
    hvt__replace(flag.text, '_', '-');
    near = nearest_flag(&flag);
    here = is_list ? hvt__foreign(HVT__LIST, flag.text + 2) : NULL;
    show_number(value, here != NULL, shown);
    if (!here)
        here = hvt__foreign(HVT__FLAG, flag.text + 2);
    if (!here && !strncmp(flag.text, "--no-", 5))
        here = hvt__foreign(HVT__FLAG, flag.text + 5);
    if (here)
        put_number(here, shown, ret_text);
    else if (*near.text)
        snprintf(ret_text, HVT_HINT, "the nearest is %s", near.text);
}

void hvt__hint_name(const char *name, const char *value, char ret_text[HVT_HINT])
{
    const char *bare = name + strspn(name, "-");

    hvt__hint_flag(name, strlen(name), value, ret_text);
    if (bare > name && hvt__option_named(bare, strlen(bare)))
        snprintf(ret_text, HVT_HINT, "write the name without dashes: %.100s", bare);
    else if (!*ret_text)
        snprintf(ret_text, HVT_HINT, "hvtrain --help all lists all options");
}

/* A typographic dash, into which word processors turn two hyphens: U+2010 to U+2015, U+2212. */
static bool is_long_dash(const char *arg)
{
    const unsigned char *c = (const unsigned char *)arg;

    return c[0] == 0xe2 && ((c[1] == 0x80 && c[2] >= 0x90 && c[2] <= 0x95) || (c[1] == 0x88 && c[2] == 0x92));
}

/* The option whose value ends with argv[at - 1], if its value is a list with commas. */
static const hvt__option *takes_parts(char **argv, int at)
{
    const char *flag = argv[at >= 2 && strncmp(argv[at - 1], "--", 2) ? at - 2 : at - 1];
    const hvt__option *o =
        strncmp(flag, "--", 2) ? NULL : hvt__option_named(flag + 2, strcspn(flag, "=") - 2);

    return o && strchr(o->form, ',') ? o : NULL;
}

/* Asks "did you mean", for all hints. */
static void ask(const char *meant, char ret_text[HVT_HINT])
{
    snprintf(ret_text, HVT_HINT, "did you mean %.170s?", meant);
}

/* Finds the flag that takes arg, or a word like it, as a value: "--model resnet50". False if no flag does, or
 * several do (f32, auto). */
static bool lacks_flag(const char *arg, char ret_text[HVT_HINT])
{
    char word[WORD], meant[HVT_HINT];
    int flags = 0;

    for (const hvt__option *o = hvt__option_table; o < hvt__option_table + HVT_OPTION_COUNT; o++) {
        bool exact = o->kind == OPT_pick && hvt__is_word_of(o->form, arg);
        if (exact || (o->kind == OPT_pick && strlen(arg) >= 5 && suggest(o->form, arg, word, WORD))) {
            snprintf(meant, sizeof meant, "%s %.39s", hvt__flag_of(o).text, exact ? arg : word);
            flags++;
        }
    }
    if (flags == 1)
        ask(meant, ret_text);
    return flags == 1;
}

static bool is_folder(const char *path)
{
    struct stat info;

    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

const char *hvt__hint_data(const char *dir)
{
    static const struct {
        const char *file, *data;
    } known[] = {{"train_images.npy", "npy"},      {"test_images.npy", "npy"},
                 {"data_batch_1.bin", "cifar10"},  {"cifar-10-batches-bin", "cifar10"},
                 {"cifar-100-binary", "cifar100"}, {"train_X.bin", "stl10"},
                 {"stl10_binary", "stl10"}};
    char path[PATH_MAX];
    DIR *d = opendir(dir);
    struct dirent *e;
    bool shards = false;

    for (int i = 0; d && !shards && i < 1000 && (e = readdir(d)); i++) /* a folder may have a million files */
        shards = strlen(e->d_name) > 4 && !strcmp(e->d_name + strlen(e->d_name) - 4, ".tar");
    if (d)
        closedir(d);
    for (size_t i = 0; i < HVT_LEN(known); i++)
        if (snprintf(path, sizeof path, "%s/%s", dir, known[i].file) < PATH_MAX && access(path, F_OK) == 0)
            return known[i].data;
    return shards ? "tar" : "folder";
}

/* The hint for a folder where a flag is expected. */
static void hint_folder(const char *dir, char ret_text[HVT_HINT])
{
    enum { SHOWN = 120 };
    const char *shown = strlen(dir) <= SHOWN ? dir : "DIR";
    char path[PATH_MAX];

    if (snprintf(path, sizeof path, "%s/last.safetensors", dir) < PATH_MAX && access(path, F_OK) == 0)
        snprintf(ret_text, HVT_HINT, "to continue the run that was saved there, use --resume %s", shown);
    else
        snprintf(ret_text, HVT_HINT, "for the data in a folder, use --data %s --data-dir %s",
                 hvt__hint_data(dir), shown);
}

static void hint_dashed(const char *arg, size_t len, const char *value, char ret_text[HVT_HINT])
{
    char more[HVT_HINT];

    hvt__hint_flag(arg, len, value, more);
    if (!*more && isalpha((unsigned char)arg[1]) && isdigit((unsigned char)arg[2])) /* -j4 */
        hvt__hint_flag(arg, 2, arg + 2, more);
    if (*more)
        snprintf(ret_text, HVT_HINT, "options begin with two dashes; %.160s", more);
}

void hvt__hint_stray(char **argv, int at, const char *value, char ret_text[HVT_HINT])
{
    char small[WORD + 1], command[WORD];
    const char *arg = argv[at], *whole = hvt__foreign(HVT__COMMAND, plain(arg, strlen(arg), small));
    const hvt__option *list = takes_parts(argv, at);
    size_t len = strcspn(arg, "=");

    snprintf(ret_text, HVT_HINT, "options are --name value or --name=value (see --help)");
    if (*arg == '-')
        hint_dashed(arg, len, value, ret_text);
    else if (is_long_dash(arg))
        snprintf(ret_text, HVT_HINT,
                 "it begins with a long dash, as copied text may; type two short ones, --");
    else if (whole)
        snprintf(ret_text, HVT_HINT, "%s", whole);
    else if (at == 1 && *arg != '-' && suggest("tune|pack|check|inspect|report", arg, command, WORD))
        ask(command, ret_text);
    else if (list)
        snprintf(ret_text, HVT_HINT, "write a list with commas and without blanks: %s %s",
                 hvt__flag_of(list).text, list->form);
    else if (arg[len] && hvt__option_named(arg, len)) /* lr=0.1 */
        snprintf(ret_text, HVT_HINT, "options begin with two dashes: --%.100s", arg);
    else if (!lacks_flag(arg, ret_text) && is_folder(arg))
        hint_folder(arg, ret_text);
}

/* 1e4, 10_000 and 10,000 in digits; of a size in pixels also 224px and 224x224. */
static bool in_digits(const char *value, bool pixels, char ret_text[WORD])
{
    char plain_number[WORD + 1];
    const char *at = plain_number;
    size_t n = 0, side = strspn(value, "0123456789");
    double v;

    if (pixels && value[side] && strchr("x,", value[side]) && !strncmp(value, value + side + 1, side) &&
        !value[2 * side + 1])
        n = (size_t)snprintf(plain_number, sizeof plain_number, "%.*s", (int)side, value);
    for (const char *p = n ? "" : value; *p && n < WORD; p++)
        if (pixels || !strchr(",_'", *p) || strspn(p + 1, "0123456789") != 3)
            plain_number[n++] = *p;
    plain_number[n] = 0;
    if (!hvt__scan_number(&at, &v) || (*at && !(pixels && !strcasecmp(at, "px"))) || v != floor(v) ||
        fabs(v) > INT_MAX)
        return false;
    snprintf(ret_text, WORD, "%.0f", v);
    return true;
}

/* 10k, 64K, 1.5M: units of 1000 or 1024. False if it is not such a number, or too large. */
static bool hint_thousands(const hvt__option *o, const char *value, char ret_text[HVT_HINT])
{
    hvt_options ignored = {0};
    char word[WORD];
    double v, e;

    if ((o->kind != OPT_int && o->kind != OPT_word) || !hvt__scan_number(&value, &v))
        return false;
    e = !strcasecmp(value, "k") ? 1 : !strcasecmp(value, "m") ? 2 : 0;
    snprintf(word, sizeof word, "%.0f", v * pow(1000, e));
    if (!e || v * pow(1000, e) > INT_MAX || !hvt__value_read(&ignored, o, word))
        return false;
    snprintf(ret_text, HVT_HINT, "; write it in digits (%s, or %.0f)", word, v * pow(1024, e));
    return true;
}

/* Adds a unit to a number without one: bytes, MiB if it is small, or seconds. */
static void add_unit(const hvt__option *o, const char *value, char ret_text[WORD])
{
    const bool size = o->kind == OPT_size;
    size_t digits = strspn(value, "0123456789.");
    char small[WORD + 1];
    const char *unit = hvt__foreign(size ? HVT__SIZE : HVT__TIME, plain(value + digits, WORD, small));

    if (value[digits] && !isalpha((unsigned char)value[digits + strspn(value + digits, " ")])) /* 50% */
        unit = NULL;
    if (size && digits && !value[digits] && atof(value) > 4096)
        unit = "B";
    snprintf(ret_text, WORD, "%.*s%s", unit ? (int)digits : WORD, value, digits && unit ? unit : "");
}

/* The value in a valid form; false if there is none. */
static bool mended(const hvt__option *o, const char *value, char ret_text[WORD])
{
    hvt_options ignored = {0};
    const char *at = value;
    double v;

    if (strlen(value) > 30)
        return false;
    if (o->kind == OPT_pick)
        return suggest(o->form, value, ret_text, WORD);
    snprintf(ret_text, WORD, "%s", value);
    if ((o->kind == OPT_int || o->kind == OPT_word) && !in_digits(value, strstr(o->form, "PIXELS"), ret_text))
        return false;
    if (o->kind == OPT_size || o->kind == OPT_time)
        add_unit(o, value, ret_text);
    if (o->kind == OPT_num && strchr(value, ',') && strlen(strchr(value, ',')) != 4) /* 0,1 but not 1,000 */
        hvt__replace(ret_text, ',', '.');
    if (o->kind == OPT_num && hvt__scan_number(&at, &v) && *at == '%' && !at[1])
        snprintf(ret_text, WORD, "%.15g", v / 100);
    return strcmp(ret_text, value) != 0 && hvt__value_read(&ignored, o, ret_text);
}

static bool is_weights(const char *path)
{
    const char *end = strrchr(path, '.');

    return end && hvt__is_word_of(".pth|.pt|.safetensors|.bin|.ckpt", end);
}

void hvt__hint_value(const hvt__option *o, const char *value, char ret_text[HVT_HINT])
{
    static const struct {
        const char *field, *value, *hint;
    } known[] = {{"bucket", "auto", "hvtrain tune FILE finds the fastest size"},
                 {"comm", "gloo", "leave it out: --comm auto chooses"},
                 {"overlap", "layers", "use --overlap worker"},
                 {"amp", "tf32", "--tf32 is an option of its own, for --device cuda"}};
    bool data = !strcmp(o->field, "data");
    char word[WORD], more[HVT_HINT] = "";

    *ret_text = 0;
    if (!(data && strchr(value, '/')) && mended(o, value, word))
        ask(word, more);
    else if (data && (strchr(value, '/') || is_folder(value)))
        hint_folder(value, more);
    else if (hint_thousands(o, value, ret_text))
        return;
    else if (!strcmp(o->field, "model") && is_weights(value))
        snprintf(more, sizeof more, "the weights of a model by name are read with --init FILE");
    for (size_t i = 0; i < HVT_LEN(known); i++)
        if (!strcmp(o->field, known[i].field) && !strcasecmp(value, known[i].value))
            snprintf(more, sizeof more, "%s", known[i].hint);
    if (*more)
        snprintf(ret_text, HVT_HINT, "; %.190s", more);
}

void hvt__hint_word(const char *form, const char *value, char ret_text[HVT_HINT])
{
    char word[WORD], more[HVT_HINT];

    *ret_text = 0;
    if (!suggest(form, value, word, sizeof word))
        return;
    ask(word, more);
    snprintf(ret_text, HVT_HINT, "; %.190s", more);
}

void hvt__hint_schedule(const char *value, char ret_text[HVT_HINT])
{
    char small[WORD + 1];

    if (!strncmp(plain(value, strlen(value), small), "exponential", 11))
        snprintf(ret_text, HVT_HINT, "; step:1,GAMMA is PyTorch's ExponentialLR");
    else
        hvt__hint_word("constant|step:30,0.1|multistep:30,60|cosine|poly|onecycle|plateau", value, ret_text);
}

const char *hvt__hint_fraction(double v, char ret_text[HVT_HINT])
{
    *ret_text = 0;
    if (v > 1 && v <= 100)
        snprintf(ret_text, HVT_HINT, " (%g %% is %g)", v, v / 100);
    return ret_text;
}

hvt_status hvt__name_option(const char *flag, const char *path, hvt_status s)
{
    const size_t len = strlen(path);

    if (s != HVT_E_IO || strncmp(hvt_last_error(), path, len) || hvt_last_error()[len] != ':')
        return s;
    return HVT_FAIL(E_IO, "%s %s", flag, hvt_last_error());
}
