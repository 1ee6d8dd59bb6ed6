/*
 * The folder of --save: which job may write to it, and which of its files belong to this run.
 *
 * A job holds a lock on DIR/.hvtrain.lock while it runs. The file contains who holds the lock, and is not
 * removed.
 *
 * Only a run that resumes the checkpoint in a folder, or one with --overwrite, may write to that folder.
 * Files of another run are *foreign*. Metadata contains an identifier of the run, so that a `best` of another
 * run beside a new `last` is recognised.
 *
 * `best` is written before `last`. After a kill between the two the folder has the new `best` and the old
 * `last`, and a run resumed from these arrives at the same best. Over foreign files `last` is written first,
 * so that the folder belongs to the new run as soon as it has one complete file; then the foreign `best` is
 * replaced or removed. Files of the old run stay until the new run saves for the first time.
 */
#include "checkpoint_impl.h"
#include "train/cli/cli_impl.h"
#include "train/process/process_impl.h"
#include "base_impl.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LOCK_FILE "/.hvtrain.lock"

struct hvt__folder {
    const char *dir; /* borrowed */
    int lock;
    bool foreign;  /* the folder has files of another run, and this run has not saved yet */
    bool is_saved; /* `last` is what the run resumes */
    int epoch;     /* of `last`, if it is this run's; -1: it is not */
    double best;   /* top-1 in percent of this run's `best`; -1: none */
};

/* ---- the lock ---- */

static void read_holder(int fd, char *ret_text, size_t bytes)
{
    ssize_t n = pread(fd, ret_text, bytes - 1, 0);

    ret_text[n > 0 ? n : 0] = 0;
    ret_text[strcspn(ret_text, "\n")] = 0;
}

static hvt_status lock(hvt__folder *f, const char *flag)
{
    char path[PATH_MAX], holder[400];
    ssize_t ignored;

    HVT_CHECK((size_t)snprintf(path, sizeof path, "%s" LOCK_FILE, f->dir) < sizeof path, E_IO,
              "%s %s: the name is too long", flag, f->dir);
    f->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
    if (f->lock < 0 && errno == EACCES) /* it belongs to another user */
        f->lock = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    HVT_CHECK(f->lock >= 0, E_IO, "%s %s: cannot open %s: %s", flag, f->dir, path, strerror(errno));
    if (!hvt__file_lock(f->lock, flag, f->dir)) {
        read_holder(f->lock, holder, sizeof holder);
        return HVT_FAIL(E_IO, "%s %s: another job saves there: %s; expected a folder for each job", flag,
                        f->dir, *holder ? holder : "unknown");
    }
    hvt__process_name(holder, sizeof holder);
    ignored = ftruncate(f->lock, 0);
    ignored = pwrite(f->lock, holder, strlen(holder), 0); /* the lock works without its text */
    (void)ignored;
    return HVT_OK;
}

/* ---- what is there ---- */

typedef struct found {
    char path[PATH_MAX];
    bool is_there, is_readable;
    hvt_progress p;
    char why[600]; /* why it cannot be read */
} found;

static hvt_status look(const char *path, found *ret_found)
{
    hvt_status s;

    *ret_found = (found){.p.top1 = -1};
    HVT_CHECK((size_t)snprintf(ret_found->path, sizeof ret_found->path, "%s", path) < sizeof ret_found->path,
              E_IO, "%s: the name is too long", path);
    ret_found->is_there = access(path, F_OK) == 0;
    if (!ret_found->is_there)
        return HVT_OK;
    s = hvt_checkpoint_load(path, NULL, NULL, &ret_found->p);
    if (s == HVT_E_MEM)
        return hvt__pass(s, __FILE__, __LINE__, "hvt_checkpoint_load");
    ret_found->is_readable = s == HVT_OK;
    if (s)
        snprintf(ret_found->why, sizeof ret_found->why, "%s", hvt_last_error());
    return HVT_OK;
}

static hvt_status look_at(const char *dir, const char *name, found *ret_found)
{
    char path[PATH_MAX];

    HVT_CHECK((size_t)snprintf(path, sizeof path, "%s/%s.safetensors", dir, name) < sizeof path, E_IO,
              "%s: the name is too long", dir);
    return look(path, ret_found);
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

static bool is_same_file(const char *one, const char *other)
{
    struct stat a, b;

    return stat(one, &a) == 0 && stat(other, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

static bool is_in_folder(const char *file, const char *dir)
{
    char folder[PATH_MAX];
    char *slash;

    snprintf(folder, sizeof folder, "%s", file);
    slash = strrchr(folder, '/');
    if (slash)
        slash[slash == folder] = 0;
    return is_same_file(slash ? folder : ".", dir);
}

/* ---- may this run write there? ---- */

static hvt_status refuse(const hvt_options *o, const found *there, const found *from, bool same_run)
{
    char what[200], word[HVT_SHELL_WORD];
    const char *dir = hvt__shell_word(o->save, word);

    describe(&there->p, what, sizeof what);
    if (!there->is_readable)
        return HVT_FAIL(E_ARG,
                        "--save %s: what is there is no checkpoint that can be read (%s); another folder "
                        "leaves it alone, --overwrite replaces it",
                        o->save, there->why);
    if (same_run)
        return HVT_FAIL(
            E_ARG,
            "--save %s: %s is further (%s) than %s, which this run continues; --resume %s continues "
            "from there, another folder leaves it alone, --overwrite replaces it",
            o->save, there->path, what, from->path, dir);
    return HVT_FAIL(E_ARG,
                    "--save %s: %s is there, of another run (%s); --resume %s continues it, another folder "
                    "leaves it alone, --overwrite replaces it",
                    o->save, there->path, what, dir);
}

/* Which files belong to this run, and may it replace the others? */
static hvt_status judge(hvt__folder *f, const hvt_options *o, const found *last, const found *best,
                        const found *from)
{
    const found *there = last->is_there ? last : best;
    bool in_place = from->is_readable && is_in_folder(from->path, o->save);
    bool last_is_ours = in_place && last->is_readable && last->p.run == from->p.run;
    bool best_is_ours = in_place && best->is_readable && best->p.run == from->p.run;
    bool goes_on = last->is_there ? last_is_ours && last->p.steps <= from->p.steps : best_is_ours;

    f->best = best_is_ours ? best->p.top1 : -1;
    f->is_saved = in_place && is_same_file(from->path, last->path);
    f->epoch = last_is_ours ? last->p.epoch : -1;
    if (!there->is_there)
        return HVT_OK;
    if (!goes_on && !o->overwrite)
        return refuse(o, there, from, last_is_ours);
    f->foreign = !goes_on || (best->is_there && !best_is_ours);
    return HVT_OK;
}

static hvt_status survey(hvt__folder *f, const hvt_options *o)
{
    found *files = calloc(3, sizeof *files), *last = files, *best = files + 1, *from = files + 2;
    char path[PATH_MAX];
    hvt_status s;

    HVT_CHECK(files, E_MEM, "no memory to look at --save %s", o->save);
    HVT_TRY_OR(done, look_at(o->save, "last", last));
    HVT_TRY_OR(done, look_at(o->save, "best", best));
    if (*o->resume) {
        HVT_TRY_OR(done, hvt__weights_file(o->resume, path, sizeof path));
        HVT_TRY_OR(done, look(path, from));
    }
    HVT_TRY_OR(done, judge(f, o, last, best, from));
done:
    for (int i = 0; i < 3; i++)
        free(files[i].p.options);
    free(files);
    return s;
}

hvt_status hvt__folder_open(const hvt_options *o, hvt__folder **ret_folder)
{
    bool chosen = *o->save && o->from[HVT__AT_save] == HVT_FROM_DEFAULT; /* --resume chose it */
    hvt__folder *f;
    hvt_status s;

    if (!*o->save)
        return HVT_OK;
    f = calloc(1, sizeof *f);
    HVT_CHECK(f, E_MEM, "no memory for --save %s", o->save);
    f->dir = o->save;
    f->lock = -1;
    f->best = -1;
    f->epoch = -1;
    s = hvt__checkpoint_folder(o->save);
    if (s && chosen)
        s = hvt__fail(
            s, __FILE__, __LINE__,
            "%s (--resume saves to the folder that it continues; --save names another folder, or none)",
            hvt_last_error());
    HVT_TRY_OR(fail, s);
    HVT_TRY_OR(fail, lock(f, chosen ? "--resume" : "--save"));
    HVT_TRY_OR(fail, survey(f, o));
    *ret_folder = f;
    return HVT_OK;
fail:
    hvt__folder_close(&f);
    return s;
}

void hvt__folder_close(hvt__folder **folder)
{
    if (!*folder)
        return;
    if ((*folder)->lock >= 0)
        close((*folder)->lock);
    free(*folder);
    *folder = NULL;
}

double hvt__folder_best(const hvt__folder *f)
{
    return f ? f->best : -1;
}

bool hvt__folder_is_saved(const hvt__folder *f)
{
    return f && f->is_saved;
}

/* ---- saving ---- */

static hvt_status save(hvt__folder *f, hvt_model *m, hvt_optim *o, const hvt_progress *p)
{
    bool better = p->top1 > f->best;

    if (better && !f->foreign)
        HVT_TRY(hvt_checkpoint_save(f->dir, "best", m, o, p));
    HVT_TRY(hvt_checkpoint_save(f->dir, "last", m, o, p));
    if (better && f->foreign)
        HVT_TRY(hvt_checkpoint_save(f->dir, "best", m, o, p));
    else if (f->foreign && f->best < 0)
        hvt__checkpoint_remove(f->dir, "best");
    f->foreign = false;
    f->best = better ? p->top1 : f->best;
    return HVT_OK;
}

/* What fails says what there is to continue from. */
hvt_status hvt__folder_save(hvt__folder *f, hvt_model *m, hvt_optim *o, const hvt_progress *p)
{
    char path[PATH_MAX];
    hvt_status s = save(f, m, o, p);

    if (s == HVT_OK)
        f->epoch = p->epoch;
    if (s != HVT_E_IO)
        return s;
    snprintf(path, sizeof path, "%s/last.safetensors", f->dir);
    if (f->epoch >= 0 && access(path, F_OK) == 0)
        return HVT_FAIL(E_IO, "%s; %s of epoch %d is complete", hvt_last_error(), path, f->epoch);
    return HVT_FAIL(E_IO, "%s; there is no checkpoint of this run to continue from", hvt_last_error());
}
