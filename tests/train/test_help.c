/*
 * help: --help is one screen; its topics and --help all name every option and fit a terminal.
 */
#include "parse_line.h"

/* The lines of a text, and the columns of its longest one. */
static size_t measure(const char *text, size_t *ret_widest)
{
    size_t lines = 0;

    *ret_widest = 0;
    for (; *text; text += strcspn(text, "\n") + 1, lines++)
        *ret_widest = strcspn(text, "\n") > *ret_widest ? strcspn(text, "\n") : *ret_widest;
    return lines;
}

static bool has_flag(const char *help, const char *flag)
{
    for (; (help = strstr(help, flag)); help++)
        if (strchr(" ,\n", help[strlen(flag)]))
            return true;
    return false;
}

TEST(help_is_one_screen_of_options_that_most_people_need)
{
    static const char *const must[] = {"--model",
                                       "--data",
                                       "--data-dir",
                                       "--epochs",
                                       "--batch",
                                       "--lr",
                                       "--save",
                                       "--resume",
                                       "--evaluate",
                                       "--predict",
                                       "mpirun -np 4 hvtrain",
                                       "all",
                                       "training",
                                       "packing",
                                       "Exit"};
    char *help = hvt_options_help("");
    size_t widest, lines = measure(help, &widest);
    int options = 0;

    CHECK(lines <= 45 && widest <= 80, "%zu lines of %zu columns", lines, widest);
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        options += has_flag(help, hvt__flag_of(&hvt__option_table[i]).text);
    CHECK(options >= 18 && options <= 26, "%d options", options);
    for (size_t i = 0; i < HVT_LEN(must); i++)
        CHECK(strstr(help, must[i]), "%s is missing: %s", must[i], help);
    CHECK(strstr(help, "learning rate [auto]"), "no default: %s", help);
    free(help);
}

TEST(help_of_a_topic)
{
    static const struct {
        const char *line, *has, *hasnt;
    } good[] = {{"--help", "mpirun", "--stall-warn"},
                {"-h", "mpirun", "--stall-warn"},
                {"--help all", "--stall-warn", NULL},
                {"--help=all", "--raw", NULL},
                {"--help data", "--augment", "--epochs N"},
                {"--help=training --lr 3", "--epochs", "--augment"},
                {"--help packing", "--raw", "--log "},
                {"pack --help", "--raw", "--log "},
                {"pack dir -h", "--raw", "--log "},
                {"--help lr", "  --lr X", "--lr-scale"},
                {"--help --lr 3", "mpirun", "--stall-warn"},
                {"--help man", ".TH", NULL},
                {"--help=markdown", "| flag |", NULL},
                {"--version", "hvtrain ", "mpirun"},
                {"--help weight_decay", "--weight-decay", "--momentum"}};
    hvt_options o;

    for (size_t i = 0; i < HVT_LEN(good); i++) {
        CHECK_OK(parse(&o, good[i].line));
        CHECK(o.ask == HVT_ASK_HELP, "%s", good[i].line);
        char *help = hvt_options_help(o.help_topic);
        CHECK(help && strstr(help, good[i].has) && !(good[i].hasnt && strstr(help, good[i].hasnt)), "%s: %s",
              good[i].line, help ? help : "no topic");
        free(help);
    }
    CHECK(!hvt_options_help("html") && !hvt_options_help(NULL), "a topic that is none");
}

TEST(help_names_every_flag_and_fits_a_terminal)
{
    for (int markdown = 0; markdown < 2; markdown++) {
        char *help = hvt_options_help(markdown ? "markdown" : "all");
        size_t widest;

        measure(help, &widest);
        for (int i = 0; i < HVT_OPTION_COUNT; i++)
            CHECK(strstr(help, hvt__flag_of(&hvt__option_table[i]).text), "%s is missing",
                  hvt__flag_of(&hvt__option_table[i]).text);
        CHECK(markdown || widest <= 100, "a line has %zu columns", widest);
        free(help);
    }
}

int main(void)
{
    RUN(help_is_one_screen_of_options_that_most_people_need);
    RUN(help_of_a_topic);
    RUN(help_names_every_flag_and_fits_a_terminal);
    return check_done();
}
