/*
 * The folder of --save: which job may write to it, which of its files belong to this run, and saving.
 *
 * A job holds a lock on DIR/.hvtrain.lock while it runs. The file names the holder, and is not removed.
 *
 * Only a run that resumes the checkpoint in a folder, or one with --overwrite, may write to that folder.
 * Metadata contains an identifier of the run. It tells the run's *own* generations from those of another run,
 * and from those that are newer than the resumed one. These stay until the run's first save: the new
 * generation has the highest number, so the one rename that makes it visible makes the folder this run's.
 * Then `best` is pointed to it if it is the best, then `last`, and then whatever is not to be kept is
 * removed. After a kill between these steps, a resumed run finds the generations by number, and corrects both
 * names.
 *
 * A thread writes; the folder belongs to it from hvt__folder_save() to hvt__folder_wait().
 */
#include "checkpoint_impl.h"
#include "train/cli/cli_impl.h"
#include "train/process/process_impl.h"
#include "base_impl.h"

#include <math.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <sys/stat.h>
#include <unistd.h>

static hvt_status lock(hvt__folder *f, const char *flag)
{
    char path[PATH_MAX], holder[400] = "";
    ssize_t ignored;

    HVT_TRY(hvt__path(path, "%s/.hvtrain.lock", f->dir));
    f->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->lock < 0 && errno == EACCES) /* another user's */
        f->lock = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    HVT_CHECK(f->lock >= 0, E_IO, "%s %s: cannot open %s: %s", flag, f->dir, path, strerror(errno));
    if (!hvt__file_lock(f->lock, flag, f->dir)) {
        ignored = pread(f->lock, holder, sizeof holder - 1, 0);
        holder[strcspn(holder, "\n")] = 0;
        return HVT_FAIL(E_IO, "%s %s: another job saves there: %s; expected a folder for each job", flag,
                        f->dir, *holder ? holder : "unknown");
    }
    hvt__process_name(holder, sizeof holder);
    ignored = ftruncate(f->lock, 0);
    ignored = pwrite(f->lock, holder, strlen(holder), 0); /* the lock works without its text */
    (void)ignored;
    return HVT_OK;
}

/* "resnet20, 3 epochs, 12 updates" */
static void describe(const hvt_progress *p, char *ret_text, size_t bytes)
{
    json_t *options = p->options ? json_loads(p->options, 0, NULL) : NULL;
    const char *model = hvt__metadata_text(options, "model");

    snprintf(ret_text, bytes, "%.40s%s%d epoch%s, %" PRId64 " update%s", model, *model ? ", " : "", p->epoch,
             p->epoch == 1 ? "" : "s", p->steps, p->steps == 1 ? "" : "s");
    json_decref(options);
}

bool hvt__is_same_file(const char *one, const char *other)
{
    struct stat a, b;

    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_in_folder(const char *file, const char *dir)
{
    char copy[PATH_MAX];

    snprintf(copy, sizeof copy, "%s", file);
    return hvt__is_same_file(dirname(copy), dir);
}

static hvt_status refuse(const hvt_options *o, const hvt__generation *there, const char *from, bool same_run)
{
    char what[200], word[HVT_SHELL_WORD];
    const char *dir = hvt__shell_word(o->save, word);

    describe(&there->p, what, sizeof what);
    if (!there->is_readable)
        return HVT_FAIL(E_ARG,
                        "--save %s: the checkpoint there cannot be read (%s); save to another folder, or use "
                        "--overwrite to replace it",
                        o->save, there->why);
    if (same_run)
        return HVT_FAIL(E_ARG,
                        "--save %s: %s is ahead (%s) of %s, which this run continues; --resume %s continues "
                        "from there; save to another folder, or use --overwrite to replace it",
                        o->save, there->path, what, from, dir);
    return HVT_FAIL(E_ARG,
                    "--save %s: %s belongs to another run (%s); --resume %s continues that run; save to "
                    "another folder, or use --overwrite to replace it",
                    o->save, there->path, what, dir);
}

/* ---- the run's own generations ---- */

hvt__score hvt__score_of(const hvt_progress *p)
{
    return (hvt__score){p->top1, p->loss > 0 ? p->loss : NAN};
}

static hvt_status add_own(hvt__folder *f, hvt__own own)
{
    hvt__own *at = realloc(f->own, (size_t)(f->nown + 1) * sizeof *at);

    HVT_CHECK(at, E_MEM, "no memory to list the checkpoints in %s", f->dir);
    f->own = at;
    at[f->nown++] = own;
    return HVT_OK;
}

/* Finds the best of the remaining generations; of equals the first. */
static void find_best(hvt__folder *f)
{
    f->best = f->best_file;
    f->best_number = -1;
    for (const hvt__own *g = f->own; g < f->own + f->nown; g++)
        if (hvt__is_better(g->score, f->best) ||
            (g->score.top1 == f->best.top1 && g->score.top1 >= 0 && f->best_number < 0)) {
            f->best = g->score;
            f->best_number = g->number;
        }
}

/* True if a run that continues from `from` keeps this generation as its own. */
static bool is_own(const hvt__generation *g, const hvt_progress *from)
{
    return g->is_readable && g->p.run == from->run && g->p.steps <= from->steps;
}

static hvt_status find_own(hvt__folder *f, const hvt__generations *all, const hvt_progress *from)
{
    for (int i = all->n - 1; i >= 0; i--) {
        const hvt__generation *g = &all->at[i];
        if (!is_own(g, from))
            continue;
        if (g->is_best)
            f->best_file = hvt__score_of(&g->p);
        if (g->number >= 0)
            HVT_TRY(add_own(f, (hvt__own){g->number, g->p.steps, hvt__score_of(&g->p)}));
        f->epoch = g->p.epoch;
        f->steps = g->p.steps;
    }
    find_best(f);
    return HVT_OK;
}

/* Checks that this run may replace the folder's contents. from: the file that it resumes; "": none. */
static hvt_status judge(hvt__folder *f, const hvt_options *o, const hvt__generations *all, const char *from)
{
    const hvt__generation *there = hvt__generations_first(all);
    hvt_progress p = {0};
    hvt_status s =
        is_in_folder(from, o->save) ? hvt__checkpoint_read(from, NULL, NULL, false, &p) : HVT_E_ARG;
    bool in_place = s == HVT_OK, same_run = in_place && there && there->p.run == p.run;

    if (s == HVT_E_MEM)
        return hvt__pass(s, __FILE__, __LINE__, "hvt__checkpoint_read");
    hvt__progress_free(&p);
    if (all->n && !(same_run && there->p.steps <= p.steps) && !o->overwrite)
        return refuse(o, there ? there : all->at, from, same_run);
    f->is_saved = in_place && there && hvt__is_same_file(from, there->path);
    return in_place ? find_own(f, all, &p) : HVT_OK;
}

static hvt_status survey(hvt__folder *f, const hvt_options *o)
{
    hvt__generations all;
    char from[PATH_MAX];
    hvt_status s;

    HVT_TRY(hvt__generations_open(o->save, &all));
    HVT_TRY_OR(done, hvt__weights_file(o->resume, from));
    HVT_TRY_OR(done, judge(f, o, &all, from));
    f->newest = hvt__newest_number(o->save);
    hvt__sweep_folder(o->save);
done:
    hvt__generations_close(&all);
    return s;
}

hvt_status hvt__folder_open(const hvt_options *o, hvt__folder *f)
{
    bool chosen = o->from[HVT__AT_save] == HVT_FROM_DEFAULT; /* --resume chose it */
    hvt_status s;

    *f = (hvt__folder){.dir = o->save,
                       .lock = -1,
                       .keep = o->keep,
                       .epoch = -1,
                       .best = {-1, NAN},
                       .best_file = {-1, NAN},
                       .best_number = -1};
    if (!*o->save)
        return HVT_OK;
    s = hvt__make_folder("--save ", o->save);
    HVT_CHECK_OR(fail, !s || !chosen, E_IO,
                 "%s (--resume saves to the folder that it continues; --save names another folder, or none)",
                 hvt_last_error());
    HVT_TRY_OR(fail, s);
    HVT_TRY_OR(fail, lock(f, chosen ? "--resume" : "--save"));
    HVT_TRY_OR(fail, survey(f, o));
    return HVT_OK;
fail:
    hvt__folder_close(f);
    return s;
}

void hvt__folder_close(hvt__folder *f)
{
    hvt__error why;

    if (!f->dir)
        return;
    hvt__error_take(&why);
    if (hvt__folder_wait(f))
        HVT_WARN("%s", hvt_last_error());
    hvt__error_put(&why);
    if (f->lock >= 0)
        close(f->lock);
    hvt__snapshot_free(&f->snapshot);
    free(f->own);
    *f = (hvt__folder){0};
}

/* Points `best` and `last` to their generations. */
static hvt_status link_names(hvt__folder *f)
{
    char path[PATH_MAX];

    if (f->best_number >= 0)
        HVT_TRY(hvt__link_generation(f->dir, "best", f->best_number));
    else if (f->best.top1 < 0 && hvt__path(path, "%s/best" HVT_CHECKPOINT_END, f->dir) == HVT_OK)
        unlink(path); /* another run's */
    return hvt__link_generation(f->dir, "last", f->own[f->nown - 1].number);
}

void hvt__folder_resumed(hvt__folder *f, const char *file, const hvt_progress *p)
{
    const char *slash = strrchr(file, '/'), *end;
    int64_t number = hvt__generation_number(slash ? slash + 1 : file, &end);
    int before = f->nown;

    if (!f->dir || !*f->dir || !is_in_folder(file, f->dir))
        return;
    while (f->nown &&
           (f->own[f->nown - 1].steps > p->steps || (number >= 0 && f->own[f->nown - 1].number > number)))
        f->nown--;
    if (f->nown < before) {
        f->is_saved = false;
        f->epoch = p->epoch;
        f->steps = p->steps;
        find_best(f);
    } else if (number >= 0 && f->is_saved && link_names(f)) {
        HVT_WARN("%s", hvt_last_error());
    }
}

/* ---- saving ---- */

static bool keeps(void *ctx, int64_t number)
{
    const hvt__folder *f = ctx;

    for (int i = 0; i < f->nown; i++)
        if (f->own[i].number == number)
            return true;
    return number == f->best_number;
}

/* Drops old generations from the list, and one with the same weights as the newest. */
static void drop_old(hvt__folder *f)
{
    hvt__own *newest = &f->own[f->nown - 1];

    if (f->nown > 1 && newest[-1].steps == newest->steps) {
        newest[-1] = *newest;
        f->nown--;
    }
    if (f->nown > f->keep) {
        memmove(f->own, f->own + f->nown - f->keep, (size_t)f->keep * sizeof *f->own);
        f->nown = f->keep;
    }
}

static hvt_status write_generation(hvt__folder *f)
{
    const hvt_progress *p = hvt__snapshot_progress(f->snapshot);
    int64_t number = f->newest + 1;
    char stem[32];

    HVT_CHECK(number < HVT__GENERATIONS_MOST, E_IO,
              "%s: a file name has the largest number, %" PRId64
              ", and there is none after it; rename that file",
              f->dir, f->newest);
    hvt__generation_name(number, stem);
    HVT_TRY(hvt__checkpoint_write(f->dir, stem, stem, f->snapshot));
    f->newest = number;
    f->epoch = p->epoch;
    f->steps = p->steps;
    HVT_TRY(add_own(f, (hvt__own){number, p->steps, hvt__score_of(p)}));
    if (hvt__is_better(hvt__score_of(p), f->best)) {
        f->best = hvt__score_of(p);
        f->best_number = number;
    }
    drop_old(f);
    HVT_TRY(link_names(f));
    hvt__prune_generations(f->dir, keeps, f);
    hvt__sweep_folder(f->dir);
    return HVT_OK;
}

/* The newest existing checkpoint of this run. Returns its updates; -1 if there is none. */
static int64_t find_newest(const hvt__folder *f, char ret_path[PATH_MAX])
{
    char name[32] = "last"; /* of an earlier release */
    int i = f->nown;

    do {
        if (i)
            hvt__generation_name(f->own[i - 1].number, name);
        if (snprintf(ret_path, PATH_MAX, "%s/%s" HVT_CHECKPOINT_END, f->dir, name) < PATH_MAX &&
            access(ret_path, R_OK) == 0)
            return i ? f->own[i - 1].steps : f->steps;
    } while (--i > 0);
    return -1;
}

/* Writes a generation; an error names the checkpoint to continue from. */
static hvt_status write_and_explain(void *ctx)
{
    hvt__folder *f = ctx;
    hvt_status s = write_generation(f);
    char path[PATH_MAX];
    int64_t steps;

    if (s != HVT_E_IO)
        return s;
    if (f->epoch < 0)
        return HVT_FAIL(E_IO, "%s; there is no checkpoint of this run to continue from", hvt_last_error());
    steps = find_newest(f, path);
    if (steps < 0)
        return HVT_FAIL(E_IO, "%s; the checkpoints of this run were removed: there is none to continue from",
                        hvt_last_error());
    if (steps != f->steps)
        return HVT_FAIL(E_IO, "%s; %s (update %" PRId64 ") is complete", hvt_last_error(), path, steps);
    return HVT_FAIL(E_IO, "%s; %s of epoch %d (update %" PRId64 ") is complete", hvt_last_error(), path,
                    f->epoch, steps);
}

hvt_status hvt__folder_save(hvt__folder *f, hvt_model *m, hvt_optim *o, const hvt_progress *p)
{
    HVT_TRY(hvt__snapshot_take(&f->snapshot, m, o, p));
    hvt__writer_start(&f->writer, write_and_explain, f);
    return HVT_OK;
}

hvt_status hvt__folder_wait(hvt__folder *f)
{
    return hvt__writer_wait(&f->writer);
}
