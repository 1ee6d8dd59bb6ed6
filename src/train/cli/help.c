/*
 * --help: the table of options in plain text, in Markdown for docs/options.md, and as a manual page.
 */
#include "cli_impl.h"
#include "base_impl.h"

#define GROUP(title) {.group = title},
static const hvt__option grouped[] = {HVT_OPTIONS(GROUP, HVT__OPTION)};
#undef GROUP

static const char *const examples[] = {
    "hvtrain --model resnet20 --data synth --epochs 2",
    "mpirun -np 4 hvtrain --data cifar10 --data-dir DIR --save out",
    "hvtrain --resume out --evaluate",
    "mpirun -np 4 hvtrain tune fast.json --model resnet50",
    "mpirun -np 4 hvtrain --config fast.json --model resnet50",
    "mpirun -np 4 hvtrain pack DIR --output TO/train-%06d.tar --resize 256",
};

/* Print `text`, wrapped between the columns `at` and `width`. The cursor is at column `at`. */
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

static void help_plain(FILE *f)
{
    fprintf(f, "hvtrain %s: trains image classifiers, on one process or on many under mpirun or srun.\n\n",
            hvt_version());
    for (size_t i = 0; i < HVT_LEN(examples); i++)
        fprintf(f, "    %s\n", examples[i]);
    fputs("\ntune FILE [SECONDS] measures which bucket sizes and message cutoffs are fastest, for about 60\n"
          "seconds or as many as given, and writes them to FILE for --config.\n\n"
          "pack DIR writes the pictures of a folder, or the data set of --data, as tar shards for --data "
          "tar.\n\n"
          "Options are --name value or --name=value; a repeated one: the last wins. Defaults stand in "
          "brackets.\n",
          f);
    for (const hvt__option *o = grouped; o < grouped + HVT_LEN(grouped); o++) {
        char left[256], right[512], form[256];

        if (o->group) {
            fprintf(f, "\n%s\n", o->group);
            continue;
        }
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
    fputs("\n  --help, --help=markdown, --help=man, --version\n\n"
          "Exit: 0 done, 1 failed, 2 bad command line or --config, 3 a rank was unresponsive, "
          "130 interrupted,\n      --preempt-exit saved and ended early.\n",
          f);
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

/* Text for troff, with its special characters escaped; a line may also break after '|'. */
static void troff(FILE *f, const char *text)
{
    static const char special[] = "\\-~^|";
    static const char *const escaped[] = {"\\e", "\\-", "\\(ti", "\\(ha", "|\\:"};

    fputs("\\&", f); /* a '.' or an apostrophe that begins a line would be a request */
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
        "\\fBmpirun \\-np\\fR \\fIN\\fR \\fBhvtrain pack\\fR \\fIfolder\\fR \\fB\\-\\-output\\fR "
        "\\fIshards\\fR "
        "[\\fIoption\\fR ...]\n"
        ".SH DESCRIPTION\n"
        "\\fBhvtrain\\fR trains a network on one process, or on \\fIN\\fR processes (ranks) that "
        "\\fBmpirun\\fR or \\fBsrun\\fR starts. Each rank works through its part of every batch; the "
        "gradients are summed over the ranks, and all ranks make the same update.\n"
        ".P\n"
        "\\fBhvtrain tune\\fR measures bucket sizes and message-size cutoffs of the gradient exchange for a "
        "model on this machine, for 60 or \\fIseconds\\fR seconds, and writes the faster ones, or else the "
        "defaults, to \\fIfile\\fR for \\fB\\-\\-config\\fR.\n"
        ".P\n"
        "\\fBhvtrain pack\\fR writes the pictures of a folder, or the data set of \\fB\\-\\-data\\fR, as tar "
        "shards for "
        "\\fB\\-\\-data tar\\fR.\n"
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
          ".TP\n\\fB\\-\\-help\\fR, \\fB\\-\\-help=markdown\\fR, \\fB\\-\\-help=man\\fR\n"
          "Print this list as text, as a Markdown table, or as this page.\n"
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

char *hvt_options_help(hvt_ask form)
{
    char *text = NULL;
    size_t bytes;
    FILE *f = open_memstream(&text, &bytes);

    if (!f)
        return NULL;
    if (form == HVT_ASK_MARKDOWN)
        help_markdown(f);
    else if (form == HVT_ASK_MAN)
        help_man(f);
    else if (form == HVT_ASK_VERSION)
        fprintf(f, "hvtrain %s\n", hvt_version());
    else
        help_plain(f);
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}
