/*
 * The table of options: those that differ between runs or, for one run, those that were given.
 */
#include "page_impl.h"
#include "train/cli/cli_impl.h"
#include "base_impl.h"

/* Options that name files, which every run writes somewhere else. */
static const char *const places[] = {"log",    "save",    "timeline",       "report", "tensorboard",
                                     "output", "predict", "predict-logits", "resume"};
/* Other facts in which runs may differ. */
static const char *const facts[] = {"version", "compiler", "device", "isa",
                                    "threads", "ranks",    "nodes",  "comm"};

static bool is_place(const char *name)
{
    for (size_t i = 0; i < HVT_LEN(places); i++)
        if (!strcmp(name, places[i]))
            return true;
    return false;
}

static const json_t *value_of(const hvt__page_run *run, const char *name, bool fact)
{
    const json_t *start = run->history->start;

    return json_object_get(fact ? start : json_object_get(start, "options"), name);
}

static bool differs(const hvt__page_run *run, int runs, const char *name, bool fact)
{
    for (int i = 1; i < runs; i++) {
        const json_t *a = value_of(run, name, fact), *b = value_of(run + i, name, fact);

        if (a != b && (!a || !b || !json_equal((json_t *)(uintptr_t)a, (json_t *)(uintptr_t)b)))
            return true;
    }
    return false;
}

static void put_value(FILE *f, const json_t *v)
{
    char number[40];

    if (json_is_integer(v))
        snprintf(number, sizeof number, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(number, sizeof number, "%g", json_real_value(v));
    else
        snprintf(number, sizeof number, "-");
    hvt__xml(f, json_is_string(v) && *json_string_value(v) ? json_string_value(v) : number);
}

typedef struct column {
    const char *name;
    bool fact;
} column;

/* Finds what differs, in all runs' names: the first run may be of a version that lacks an option. */
static int find_columns(const hvt__page_run *run, int runs, column *ret, int most)
{
    json_t *seen = json_object();
    int n = 0;

    for (int i = 0; i < runs; i++) {
        json_t *options = json_object_get(run[i].history->start, "options"), *value;
        const char *name;

        json_object_foreach(options, name, value)
        {
            if (n == most || json_object_get(seen, name) || is_place(name) ||
                !differs(run, runs, name, false))
                continue;
            json_object_set_new(seen, name, json_true());
            ret[n++] = (column){name, false};
        }
    }
    json_decref(seen);
    for (size_t i = 0; i < HVT_LEN(facts) && n < most; i++)
        if (differs(run, runs, facts[i], true))
            ret[n++] = (column){facts[i], true};
    return n;
}

/* Prints a row for each run, with what differs. */
static void put_differing(FILE *f, const hvt__page_run *run, int runs)
{
    enum { MOST = 200 };
    column at[MOST];
    int n = find_columns(run, runs, at, MOST);

    fputs("<h2>Options that differ</h2>\n", f);
    if (!n) {
        fputs("<p>none</p>\n", f);
        return;
    }
    fputs("<div class=\"wide\"><table class=\"options\">\n<tr><th></th>", f);
    for (int k = 0; k < n; k++) {
        fputs(at[k].fact ? "<th>" : "<th>--", f);
        hvt__xml(f, at[k].name);
        fputs("</th>", f);
    }
    for (int i = 0; i < runs; i++) {
        fputs("</tr>\n<tr><td>", f);
        hvt__page_chip(f, i);
        hvt__xml(f, run[i].history->name);
        fputs("</td>", f);
        for (int k = 0; k < n; k++) {
            fputs("<td>", f);
            put_value(f, value_of(run + i, at[k].name, at[k].fact));
            fputs("</td>", f);
        }
    }
    fputs("</tr>\n</table></div>\n", f);
}

/* True for a value that comes from a checkpoint and is the option's default. */
static bool is_carried_default(const hvt__page_run *run, const char *name, const char *from)
{
    const hvt__option *o = hvt__option_named(name, strlen(name));
    const json_t *value = value_of(run, name, false);

    return !strcmp(from, "checkpoint") && o && json_is_string(value) &&
           hvt__option_is_default(o, json_string_value(value));
}

/* Prints a row for each option of a single run. */
static void put_given(FILE *f, const hvt__page_run *run)
{
    json_t *from = json_object_get(run->history->start, "options_from"), *value;
    const char *name;

    if (!json_object_size(from))
        return;
    fputs("<h2>Options that were given</h2>\n<div class=\"wide\"><table class=\"options\">\n", f);
    json_object_foreach(from, name, value)
    {
        if (is_carried_default(run, name, json_is_string(value) ? json_string_value(value) : ""))
            continue;
        fputs("<tr><th>--", f);
        hvt__xml(f, name);
        fputs("</th><td>", f);
        put_value(f, value_of(run, name, false));
        fputs("</td></tr>\n", f);
    }
    fputs("</table></div>\n", f);
}

void hvt__page_options(FILE *f, const hvt__page_run *run, int runs)
{
    if (runs > 1)
        put_differing(f, run, runs);
    else
        put_given(f, run);
}
