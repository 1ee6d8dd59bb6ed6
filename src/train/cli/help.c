/*
 * --help: the most used options on one screen; the table of options in plain text, whole or in part, in
 * Markdown for docs/options.md, and as a manual page.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <ctype.h>

#define GROUP(title) {.group = title},
static const hvt__option grouped[] = {HVT_OPTIONS(GROUP, HVT__OPTION)};
#undef GROUP

/* Examples: those of the first screen, then more. */
enum { FIRST_EXAMPLES = 4 };
static const char *const examples[] = {
    "hvtrain --data folder --data-dir photos --val-split 0.2 --save out",
    "mpirun -np 4 hvtrain --data cifar10 --data-dir DIR --save out",
    "hvtrain --resume out --epochs 20",
    "hvtrain --resume out --evaluate --data-dir new --predict classes.csv",
    "hvtrain report run.jsonl --output run.html",
    "mpirun -np 4 hvtrain tune fast.json --model resnet50",
    "mpirun -np 4 hvtrain --config fast.json --model resnet50",
    "mpirun -np 4 hvtrain pack DIR --output TO/train-%06d.tar --resize 256",
    "mpirun -np 4 hvtrain check --data folder --data-dir DIR --save out",
    "hvtrain inspect resnet50 --batch 32",
};

static const struct {
    const char *form, *help;
} commands[] = {
    {"tune [lr] FILE", "find the fastest exchange; lr: a learning rate"},
    {"pack DIR", "write a folder of pictures as tar shards"},
    {"check", "say whether a run with these options would work here"},
    {"inspect WHAT ...", "print a model, a file of weights, or a folder of --save"},
    {"report RUN...", "make a page of logs: curves, times, classes, mistakes"},
};

/* The options that most people need, in fewer words than in the table. */
static const struct {
    enum hvt__option_at at;
    const char *form, *help;
} first_screen[] = {
    {HVT__AT_model, "NAME", "resnet18, resnet50, ... or PyTorch's FILE.pt2"},
    {HVT__AT_data, "KIND", "folder tar cifar10 cifar100 stl10 npy synth"},
    {HVT__AT_data_dir, "DIR", "the data; pictures: DIR/train/CLASS/... or DIR/CLASS/..."},
    {HVT__AT_val_split, "X", "test on this part of the training images, as 0.2"},
    {HVT__AT_size, "PIXELS", "height and width of the model's images"},
    {HVT__AT_augment, "LIST", "rrc (random boxes), crop:PIXELS, flip, trivial, as rrc,flip"},
    {HVT__AT_epochs, "N", "passes over the training images"},
    {HVT__AT_batch, "N", "images of a rank in an update"},
    {HVT__AT_lr, "X", "learning rate"},
    {HVT__AT_schedule, "NAME", "cosine, poly, onecycle, step:SIZE, ..."},
    {HVT__AT_warmup_epochs, "X", "the rate rises over the first X epochs"},
    {HVT__AT_optimizer, "NAME", "sgd, adam, adamw, rmsprop, lars or lamb"},
    {HVT__AT_weight_decay, "X", "L2 penalty; adamw: decoupled"},
    {HVT__AT_amp, "TYPE", "type of activations: f32, bf16 or f16"},
    {HVT__AT_device, "NAME", "cpu or cuda"},
    {HVT__AT_threads, "N", "of a rank"},
    {HVT__AT_init, "FILE", "start with these weights (safetensors)"},
    {HVT__AT_reset_head, "", "--init: draw the last layer anew, for other classes"},
    {HVT__AT_save, "DIR", "write checkpoints here"},
    {HVT__AT_resume, "DIR", "continue from the checkpoint in DIR"},
    {HVT__AT_evaluate, "", "--init or --resume: only test, and print the result"},
    {HVT__AT_predict, "FILE", "--evaluate: write the classes of all images as CSV"},
    {HVT__AT_log, "FILE", "write records as JSON lines"},
    {HVT__AT_verbose, "", "print all options at the start; --quiet: only warnings"},
};

/* Prints `text`, wrapped between the columns `at` and `width`. The cursor is at column `at`. */
static void wrap(FILE *f, const char *text, int at, int width)
{
    for (int col = at; *text; text += *text == ' ') {
        int len = (int)strcspn(text, " ");
        bool breaks = col > at && col + 1 + len > width;

        if (breaks)
            fprintf(f, "\n%*s", at, "");
        else if (col > at)
            fputc(' ', f);
        fprintf(f, "%.*s", len, text);
        col = (breaks ? at : col > at ? col + 1 : at) + len;
        text += len;
    }
    fputc('\n', f);
}

static void help_option(FILE *f, const hvt__option *o)
{
    char left[256], right[512], form[256];

    snprintf(form, sizeof form, "%s", o->form);
    *right = 0;
    if (snprintf(left, sizeof left, "  %s %s", hvt__flag_of(o).text, form) > 30) { /* too long */
        snprintf(left, sizeof left, "  %s", hvt__flag_of(o).text);
        if (o->kind == OPT_pick)
            hvt__replace(form, '|', ' ');
        snprintf(right, sizeof right, "%s%s", form, *o->help ? ": " : " ");
    }
    size_t n = strlen(right);
    snprintf(right + n, sizeof right - n, *o->preset ? "%s%s[%s]" : "%s", o->help, *o->help ? " " : "",
             o->preset);
    fprintf(f, "%-32s", left);
    wrap(f, right, 32, 100);
}

/* A group's word: the first one of its title, in lower case. */
static void group_word(const hvt__option *o, char ret_word[32])
{
    int len = (int)strcspn(o->group, " ");

    snprintf(ret_word, 32, "%.*s", len, o->group);
    for (char *p = ret_word; *p; p++)
        *p = (char)tolower((unsigned char)*p);
}

/* The words of all groups, separated by `between`. */
static void group_words(const char *between, char *ret_text, size_t room)
{
    size_t used = 0;
    char word[32];

    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++) {
        if (!o->group || used >= room)
            continue;
        group_word(o, word);
        used += (size_t)snprintf(ret_text + used, room - used, "%s%s", used ? between : "", word);
    }
}

static void help_first(FILE *f)
{
    enum { AT = 23, WIDTH = 80 };
    char left[64], right[200], words[200];

    fprintf(f, "hvtrain %s trains image classifiers, alone or under mpirun or srun.\n\n", hvt_version());
    for (int i = 0; i < FIRST_EXAMPLES; i++)
        fprintf(f, "  %s\n", examples[i]);
    fputs("\nThe most used options, with their defaults in brackets:\n", f);
    for (size_t i = 0; i < HVT_LEN(first_screen); i++) {
        const hvt__option *o = &hvt__option_table[first_screen[i].at];
        bool preset = *o->preset && o->kind != OPT_bool;

        snprintf(left, sizeof left, "  %s %s", hvt__flag_of(o).text, first_screen[i].form);
        snprintf(right, sizeof right, preset ? "%s [%s]" : "%s", first_screen[i].help, o->preset);
        fprintf(f, "%-*s", AT, left);
        wrap(f, right, AT, WIDTH);
    }
    fputs("\nCommands:\n", f);
    for (size_t i = 0; i < HVT_LEN(commands); i++)
        fprintf(f, "  %-*s%s\n", AT - 2, commands[i].form, commands[i].help);
    group_words(" ", words, sizeof words);
    fprintf(f,
            "\nMore: --help all (all options), or --help GROUP, one of\n"
            "  %s\n"
            "Exit: 0 done, 1 failed, 2 bad command line, 3 a rank hung, 130 interrupted,\n"
            "  143 (or --preempt-exit) saved and ended early.\n",
            words);
}

static void help_all(FILE *f)
{
    fprintf(f, "hvtrain %s: trains image classifiers, on one process or on many under mpirun or srun.\n\n",
            hvt_version());
    for (size_t i = 0; i < HVT_LEN(examples); i++)
        fprintf(f, "    %s\n", examples[i]);
    fputs(
        "\ntune FILE [SECONDS] measures which bucket sizes and message cutoffs are fastest, for about 60\n"
        "seconds or as many as given, and writes them to FILE for --config.\n\n"
        "tune lr FILE trains for up to 100 updates with a growing learning rate, prints the losses, and\n"
        "writes the rate at which the loss falls fastest to FILE for --config, and a plot to FILE.svg.\n\n"
        "pack DIR writes the pictures of a folder, or the data set of --data, as tar shards for --data "
        "tar.\n\n"
        "check says in some seconds whether a run with the same options and launcher would work, or what\n"
        "to mend.\n\n"
        "inspect prints what MODEL, FILE.pt2, FILE.safetensors or a folder of --save consists of: layers,\n"
        "parameters, multiply-adds, memory; tensors; options and progress of a checkpoint. With --data and\n"
        "--output DIR it writes training images, changed as by --augment, as PNG files.\n\n"
        "report RUN... makes one HTML page of runs: files of --log, or folders that hold one.\n\n"
        "Options are --name value or --name=value; a repeated one: the last wins. Defaults stand in "
        "brackets.\n",
        f);
    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++)
        if (o->group)
            fprintf(f, "\n%s\n", o->group);
        else
            help_option(f, o);
    fputs("\n  --help, --help all, --help GROUP, --help OPTION, --help=markdown, --help=man, --version\n\n"
          "Exit: 0 done, 1 failed, 2 bad command line or --config, 3 a rank was unresponsive, "
          "130 interrupted,\n      --preempt-exit saved and ended early.\n",
          f);
}

/* Prints the options of a group, or one option. False if topic is neither. */
static bool help_part(FILE *f, const char *topic)
{
    const hvt__option *option;
    bool within = false, found = false;
    char word[32];

    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++) {
        if (!o->group && within)
            help_option(f, o);
        if (!o->group)
            continue;
        group_word(o, word);
        within = !strcmp(topic, word);
        found = found || within;
        if (within)
            fprintf(f, "%s\n", o->group);
    }
    option = found ? NULL : hvt__option_named(topic, strlen(topic));
    if (option)
        help_option(f, option);
    return found || option;
}

static void help_markdown(FILE *f)
{
    fputs("| flag | default | meaning |\n|---|---|---|\n", f);
    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++) {
        if (o->group) {
            fprintf(f, "| **%s** | | |\n", o->group);
            continue;
        }
        fprintf(f, "| `%s ", hvt__flag_of(o).text);
        for (const char *p = o->form; *p; p++)
            fprintf(f, *p == '|' ? "\\|" : "%c", *p);
        fprintf(f, *o->preset ? "` | `%s` | %s |\n" : "` | %s | %s |\n", o->preset, o->help);
    }
}

/* Prints text for troff, with its special characters escaped; a line may also break after '|'. */
static void troff(FILE *f, const char *text)
{
    static const char special[] = "\\-~^|";
    static const char *const escaped[] = {"\\e", "\\-", "\\(ti", "\\(ha", "|\\:"};

    fputs("\\&", f); /* at the start of a line '.' and ' begin a request */
    for (; *text; text++) {
        const char *found = strchr(special, *text);
        if (found)
            fputs(escaped[found - special], f);
        else
            fputc(*text, f);
    }
}

static void man_option(FILE *f, const hvt__option *o)
{
    fputs(".TP\n\\fB", f);
    troff(f, hvt__flag_of(o).text);
    fputs("\\fR \\fI", f);
    troff(f, o->form);
    fputs("\\fR\n", f);
    troff(f, o->help);
    if (*o->preset) {
        fputs(*o->help ? "\n.br\nDefault: \\fB" : "Default: \\fB", f);
        troff(f, o->preset);
        fputs("\\fR", f);
    }
    fputc('\n', f);
}

static void help_man(FILE *f)
{
    fprintf(
        f,
        ".TH HVTRAIN 1 \"\" \"hvtrain %s\" \"User Commands\"\n"
        ".ad l\n"
        ".SH NAME\n"
        "hvtrain \\- train image classifiers by synchronous data parallelism\n"
        ".SH SYNOPSIS\n"
        "\\fBhvtrain\\fR [\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBmpirun \\-np\\fR \\fIN\\fR \\fBhvtrain\\fR [\\fBtune\\fR \\fIfile\\fR [\\fIseconds\\fR]] "
        "[\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBhvtrain tune lr\\fR \\fIfile\\fR [\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBmpirun \\-np\\fR \\fIN\\fR \\fBhvtrain pack\\fR \\fIfolder\\fR \\fB\\-\\-output\\fR "
        "\\fIshards\\fR "
        "[\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBmpirun \\-np\\fR \\fIN\\fR \\fBhvtrain check\\fR [\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBhvtrain inspect\\fR \\fImodel\\fR|\\fIfile\\fR|\\fIfolder\\fR ... [\\fIoption\\fR ...]\n"
        ".br\n"
        "\\fBhvtrain report\\fR \\fIrun\\fR ... [\\fB\\-\\-output\\fR \\fIpage\\fR]\n"
        ".SH DESCRIPTION\n"
        "\\fBhvtrain\\fR trains a network on one process, or on \\fIN\\fR processes (ranks) that "
        "\\fBmpirun\\fR or \\fBsrun\\fR starts. Each rank works through its part of every batch; the "
        "gradients are summed over the ranks, and all ranks make the same update.\n"
        ".P\n"
        "\\fBhvtrain tune\\fR measures bucket sizes and message-size cutoffs of the gradient exchange for a "
        "model on this machine, for 60 or \\fIseconds\\fR seconds, and writes the faster ones, or else the "
        "defaults, to \\fIfile\\fR for \\fB\\-\\-config\\fR.\n"
        ".P\n"
        "\\fBhvtrain tune lr\\fR trains for up to 100 updates with a growing learning rate, and writes the "
        "rate at "
        "which the loss falls fastest to \\fIfile\\fR for \\fB\\-\\-config\\fR.\n"
        ".P\n"
        "\\fBhvtrain pack\\fR writes the pictures of a folder, or the data set of \\fB\\-\\-data\\fR, as tar "
        "shards for "
        "\\fB\\-\\-data tar\\fR.\n"
        ".P\n"
        "\\fBhvtrain check\\fR looks, in some seconds, whether a run with the same options and launcher "
        "would work: at "
        "MPI, processors, GPUs, network, clocks, memory, limits, files, and the exchange. Each line of its "
        "output is ok, "
        "warn or FAIL, with what to do; with a line that says FAIL the exit status is 1.\n"
        ".P\n"
        "\\fBhvtrain inspect\\fR prints the layers, parameters and multiply-adds of a model of "
        "\\fB\\-\\-model\\fR or a "
        ".pt2 file and the memory of its run, the tensors of a .safetensors file, or the options, progress "
        "and classes "
        "of a folder of checkpoints.\n"
        ".P\n"
        "\\fBhvtrain report\\fR makes one HTML page of runs: their curves, the options that differ, where "
        "the "
        "time went, and what \\fB\\-\\-predict\\fR found. A \\fIrun\\fR is a file of \\fB\\-\\-log\\fR or a "
        "folder "
        "that holds one.\n"
        ".SH OPTIONS\n"
        "An option is \\fB\\-\\-name\\fR \\fIvalue\\fR or \\fB\\-\\-name=\\fIvalue\\fR; of a repeated "
        "option the last one counts. An option that is on or off may also be given alone (on) or as "
        "\\fB\\-\\-no\\-name\\fR (off).\n",
        hvt_version());
    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++)
        if (o->group)
            fprintf(f, ".SS %s\n", o->group);
        else
            man_option(f, o);
    fputs(".SS Other\n"
          ".TP\n\\fB\\-\\-help\\fR [\\fBall\\fR | \\fIgroup\\fR | \\fIoption\\fR | \\fBmarkdown\\fR | "
          "\\fBman\\fR]\n"
          "Print the most used options; all options; those of a group, as \\fBdata\\fR; one option; all as "
          "a Markdown table; this page.\n"
          ".TP\n\\fB\\-\\-version\\fR\nPrint the version.\n"
          ".SH EXIT STATUS\n"
          ".TP\n0\nThe run is done.\n"
          ".TP\n1\nThe run failed; the message is on standard error.\n"
          ".TP\n2\nThe command line or the file of \\fB\\-\\-config\\fR is wrong.\n"
          ".TP\n3\nA rank was unresponsive for the time of \\fB\\-\\-stall\\-abort\\fR.\n"
          ".TP\n130\nThe run was told to end by SIGINT. With \\fB\\-\\-save\\fR it has saved.\n"
          ".TP\n143, or that of \\fB\\-\\-preempt\\-exit\\fR\nThe run was told to end early: by SIGTERM, "
          "SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU or \\fB\\-\\-max\\-time\\fR. With \\fB\\-\\-save\\fR it has "
          "saved.\n"
          ".P\nUnder \\fBmpirun\\fR and \\fBsrun\\fR the launcher has an exit status of its own.\n"
          ".SH EXAMPLES\n.nf\n",
          f);
    for (size_t i = 0; i < HVT_LEN(examples); i++) {
        troff(f, examples[i]);
        fputc('\n', f);
    }
    fputs(".fi\n.SH SEE ALSO\n\\fBmpirun\\fR(1), \\fBsrun\\fR(1)\n", f);
}

static void help_version(FILE *f)
{
    fprintf(f, "hvtrain %s\n", hvt_version());
}

static const struct {
    const char *word;
    void (*print)(FILE *f);
} topics[] = {
    {"", help_first},  {"all", help_all},        {"recipes", hvt__list_recipes}, {"markdown", help_markdown},
    {"man", help_man}, {"version", help_version}};

/* False if there is no such topic. */
static bool help(FILE *f, const char *topic)
{
    for (size_t i = 0; i < HVT_LEN(topics); i++)
        if (!strcmp(topic, topics[i].word)) {
            topics[i].print(f);
            return true;
        }
    return help_part(f, topic);
}

char *hvt_options_help(const char *topic)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = topic ? open_memstream(&text, &bytes) : NULL;
    bool known = f && help(f, topic);

    if (f && fclose(f) == 0 && known)
        return text;
    free(text);
    return NULL;
}

hvt_status hvt__help_check(const char *topic)
{
    char *text = hvt_options_help(topic), words[200];

    free(text);
    if (text)
        return HVT_OK;
    group_words(", ", words, sizeof words);
    return HVT_FAIL(E_ARG, "--help: expected a group (all, %s) or an option, got '%s'", words, topic);
}
