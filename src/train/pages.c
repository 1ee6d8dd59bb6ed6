/*
 * hvtrain report, and the page that a run writes when it ends: finds the files to show, and the data sets of
 * their predictions.
 */
#include "run.h"
#include "train/page/page_impl.h"
#include "base_impl.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

/* ---- hvtrain report ---- */

/* A run to show, and the set of its thumbnails. */
typedef struct shown {
    hvt__history history;
    char predictions[PATH_MAX], why[400];
    hvt_dataset *set;
    bool exif; /* its pictures are turned upright */
} shown;

/* Finds the log in a folder. */
static hvt_status find_log(const char *dir, char ret_path[PATH_MAX])
{
    DIR *d = opendir(dir);
    const struct dirent *e;
    char path[PATH_MAX], names[400] = "";
    int found = 0;

    HVT_CHECK(d, E_IO, "%s: cannot read: %s", dir, strerror(errno));
    while ((e = readdir(d))) {
        size_t used = strlen(names);

        if (hvt__path(path, "%s/%s", dir, e->d_name) || !hvt__is_own_file(HVT__LOG, path))
            continue;
        snprintf(names + used, sizeof names - used, "%s%.100s", found ? ", " : "", e->d_name);
        if (!found++)
            memcpy(ret_path, path, PATH_MAX);
    }
    closedir(d);
    HVT_CHECK(
        found, E_IO,
        "%s: has no log; expected the file of --log, or a folder that holds it (training with --save %s "
        "--log %s/log.jsonl puts it there)",
        dir, dir, dir);
    HVT_CHECK(found == 1, E_IO, "%s: has %d logs, expected one; name those to be shown: %s", dir, found,
              names);
    return HVT_OK;
}

/* Finds the table that the log names: at that path or, if the run was in another folder, beside the log. */
static hvt_status find_predictions(shown *s)
{
    const char *path = hvt__text_of(json_object_get(s->history.predicted, "options"), "predict");
    const char *slash = strrchr(s->history.path, '/'), *base = strrchr(path, '/');
    char beside[PATH_MAX];

    if (!*path || !strcmp(path, "-"))
        return HVT_OK;
    if (hvt__is_own_file(HVT__PREDICTIONS, path))
        return hvt__path(s->predictions, "%s", path);
    HVT_TRY(hvt__path(beside, "%.*s%s", slash ? (int)(slash - s->history.path) + 1 : 0, s->history.path,
                      base ? base + 1 : path));
    if (hvt__is_own_file(HVT__PREDICTIONS, beside))
        return hvt__path(s->predictions, "%s", beside);
    HVT_WARN("%s names predictions in %s, which is not there any more; the page is made without",
             s->history.path, path);
    return HVT_OK;
}

/* Opens the set whose images were predicted, by the options in the log. */
static hvt_status open_set(shown *s)
{
    json_t *start = s->history.predicted ? s->history.predicted : s->history.start, *value;
    json_t *all = json_object_get(start, "options");
    hvt_dataset_opts opts;
    hvt_options o;
    const char *name;

    snprintf(s->why, sizeof s->why, "no log says which images these are; name it before the table");
    if (!all)
        return HVT_OK;
    hvt_options_default(&o);
    json_object_foreach(all, name, value)
    {
        const hvt__option *option = hvt__option_named(name, strlen(name));

        if (option && *hvt__text_of(all, name))
            hvt__value_read(&o, option, json_string_value(value));
    }
    s->exif = o.exif;
    opts = hvt__set_opts(&o, false);
    opts.flat = *o.predict || *o.predict_logits;
    hvt_status opened = hvt_dataset_open(o.data, &opts, &s->set);

    if (opened == HVT_E_MEM)
        return opened;
    if (opened) {
        snprintf(s->why, sizeof s->why, "%.399s", hvt_last_error());
        return HVT_OK;
    }
    const hvt_dataset_info *info = hvt_dataset_describe(s->set);
    double images = hvt__number_of(start, "test_images");

    if (strcmp(info->name, hvt__text_of(start, "data")) || info->count != images) {
        snprintf(s->why, sizeof s->why,
                 "the data set has other images now: %u of %s, expected %.0f of %.100s", info->count,
                 info->name, images, hvt__text_of(start, "data"));
        hvt_dataset_close(&s->set);
    }
    return HVT_OK;
}

/* Adds the run or the table that a word of the command line names to the *n runs. */
static hvt_status add_word(shown *all, int *n, const char *word)
{
    char path[PATH_MAX];
    struct stat info;

    HVT_CHECK(stat(word, &info) == 0, E_IO, "%s: cannot read: %s", word, strerror(errno));
    HVT_TRY(S_ISDIR(info.st_mode) ? find_log(word, path) : hvt__path(path, "%s", word));
    if (hvt__is_own_file(HVT__PREDICTIONS, path)) {
        *n += !*n;
        if (!*all[*n - 1].history.path)
            snprintf(all[*n - 1].history.path, PATH_MAX, "%s", path);
        return hvt__path(all[*n - 1].predictions, "%s", path);
    }
    HVT_TRY(hvt__history_read(&all[(*n)++].history, path));
    hvt__history_close(&all[*n - 1].history);
    return find_predictions(&all[*n - 1]);
}

static hvt_status check_words(const hvt_options *o, const char *output)
{
    HVT_CHECK(
        o->nfiles > 0, E_ARG,
        "report needs the logs of runs, or folders that hold them: hvtrain report RUN... [--output FILE]");
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        HVT_CHECK(o->from[i] != HVT_FROM_FLAG || i == HVT__AT_output || i == HVT__AT_quiet, E_ARG,
                  "report takes no other option than --output FILE, got %s",
                  hvt__flag_of(&hvt__option_table[i]).text);
    for (int i = 0; i < o->nfiles; i++)
        HVT_CHECK(!hvt__is_same_file(output, o->files[i]), E_ARG,
                  "--output %s: is one of the files to be shown", output);
    HVT_TRY(hvt__page_check_name("--output", output));
    return hvt__own_file_check(hvt__page_kind(output), "--output", output);
}

static hvt_status write_page(shown *all, int n, const char *output)
{
    hvt__page_run *page = calloc((size_t)n, sizeof *page);
    hvt_status s = HVT_OK;

    HVT_CHECK(page, E_MEM, "no memory for %d runs", n);
    for (int i = 0; i < n; i++) {
        if (*all[i].predictions)
            HVT_TRY_OR(done, open_set(&all[i]));
        page[i] = (hvt__page_run){&all[i].history, all[i].predictions, all[i].set, all[i].why, all[i].exif};
    }
    s = hvt__page_write("--output", output, page, n);
done:
    free(page);
    return s;
}

hvt_status hvt_report_write(const hvt_options *opts)
{
    HVT_TRY(hvt__options_given(opts, __func__));

    const char *output = *opts->output ? opts->output : "report.html";
    shown *all;
    int n = 0;
    hvt_status s = HVT_OK;

    HVT_TRY(check_words(opts, output));
    all = calloc((size_t)opts->nfiles + 1, sizeof *all);
    HVT_CHECK(all, E_MEM, "no memory for %d runs", opts->nfiles);
    for (int i = 0; i < opts->nfiles; i++)
        HVT_TRY_OR(done, add_word(all, &n, opts->files[i]));
    HVT_TRY_OR(done, write_page(all, n, output));
    if (strcmp(output, "-") && !opts->quiet)
        HVT_INFO("written: %s", output);
done:
    for (int i = 0; i <= opts->nfiles; i++) {
        hvt__history_free(&all[i].history);
        hvt_dataset_close(&all[i].set);
    }
    free(all);
    return s;
}

/* ---- --report ---- */

/* Keeps a record with numbers rounded as in the log, so that the page equals that of the log. */
static void keep(void *ctx, json_t *record)
{
    char *text = hvt__record_text(record);
    json_t *read = text ? json_loads(text, 0, NULL) : NULL;

    if (!read || hvt__history_add(ctx, read))
        HVT_WARN("--report: %s", read ? hvt_last_error() : "no memory for a record");
    json_decref(read);
    free(text);
}

hvt_status hvt__pages_open(run *t)
{
    const hvt_options *o = t->opts;
    const char *name = *o->log ? o->log : *o->save ? o->save : o->model;
    hvt__output out;

    if (!*o->report || !t->rep)
        return HVT_OK;
    HVT_CHECK(strcmp(o->report, "-") != 0, E_ARG, "--report -: expected a file");
    HVT_TRY(hvt__report_check_path(o, "--report", o->report));
    HVT_TRY(hvt__page_check_name("--report", o->report));
    HVT_TRY(hvt__output_open(&out, hvt__page_kind(o->report), "--report",
                             o->report)); /* fails now, not after hours of training */
    hvt__output_drop(&out);
    t->history = calloc(1, sizeof *t->history);
    HVT_CHECK(t->history, E_MEM, "no memory for the history of a run");
    if (*o->log && (*o->resume || o->evaluate) && hvt__is_own_file(HVT__LOG, o->log))
        HVT_TRY(hvt__history_read(t->history, o->log));
    snprintf(t->history->path, sizeof t->history->path, "%.4000s", name);
    t->rep->also = keep;
    t->rep->also_ctx = t->history;
    return HVT_OK;
}

void hvt__pages_write(const run *t)
{
    const char *predict = t->opts->evaluate ? t->opts->predict : "";
    hvt__page_run page = {t->history, strcmp(predict, "-") ? predict : "", t->test_set, "", t->opts->exif};

    if (!t->history)
        return;
    hvt__history_close(t->history);
    if (hvt__page_write("--report", t->opts->report, &page, 1))
        HVT_WARN("%s", hvt_last_error());
    else
        hvt__report_print(t->rep, "report: %s", t->opts->report);
}

void hvt__pages_close(run *t)
{
    if (t->history)
        hvt__history_free(t->history);
    free(t->history);
    t->history = NULL;
}
