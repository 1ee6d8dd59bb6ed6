/*
 * --help: the table of options in plain text, and in Markdown for docs/options.md.
 */
#include "options.h"
#include "base_impl.h"

#include <stdlib.h>
#include <string.h>

#define GROUP(title) {.group = title},
static const hvt__option grouped[] = {HVT_OPTIONS(GROUP, HVT__OPTION)};
#undef GROUP

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
        const hvt__option *o = &grouped[i];
        char left[256], right[512], flag[HVT_OPTION_FLAG], form[256];
        int n;

        if (o->group) {
            fprintf(f, "\n%s\n", o->group);
            continue;
        }
        snprintf(form, sizeof form, "%s", o->form);
        n = snprintf(left, sizeof left, "  %s %s", hvt__flag_of(o, flag), form);
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
               "Exit: 0 done, 1 failed, 2 bad command line or --config, 3 a rank did not come, "
               "130 interrupted.\n");
}

static void help_markdown(FILE *f)
{
    fprintf(f, "| flag | default | meaning |\n|---|---|---|\n");
    for (size_t i = 0; i < HVT_LEN(grouped); i++) {
        const hvt__option *o = &grouped[i];
        char flag[HVT_OPTION_FLAG];

        if (o->group) {
            fprintf(f, "| **%s** | | |\n", o->group);
            continue;
        }
        fprintf(f, "| `%s", hvt__flag_of(o, flag));
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
