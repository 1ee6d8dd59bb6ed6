/* The initial weights of a run, and the progress of an earlier job. */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <inttypes.h>
#include <math.h>

static json_t *effective_options(const run *t)
{
    hvt_options o = *t->opts;
    json_t *all;

    o.shards = t->set.shards / (o.evaluate ? 1 : o.accumulate);
    o.batch = t->set.batch;
    o.global_batch = 0;
    if (!t->set.optim.eps) /* the optimizer has none */
        o.eps = t->given->eps;
    memcpy(o.mean.v, t->loading.train.mean, sizeof o.mean.v); /* floats have their own defaults */
    memcpy(o.std.v, t->loading.train.std, sizeof o.std.v);
    all = hvt__options_json(&o, HVT_SCOPE_RUN);
    json_object_set_new(all, "device", json_string(hvt_device_name(t->dev)));
    json_object_set_new(all, "isa", json_string(hvt_device_isa(t->dev)));
    json_object_set_new(all, "images", hvt__describe_images(t));
    return all;
}

char *hvt__effective_options(const run *t)
{
    json_t *all = effective_options(t);
    char *text = json_dumps(all, JSON_COMPACT);

    json_decref(all);
    return text;
}

static void warn_of_change(const run *t, const char *flag, const char *was, const char *now)
{
    bool shards = !strcmp(flag, "shards");
    char more[60] = "";

    if (hvt__is_word_of("epochs|data-dir|eval-freq|skip-damaged", flag) ||      /* harmless */
        (t->opts->evaluate && hvt__is_word_of("shards|val-split|limit", flag))) /* other images */
        return;
    if (shards)
        snprintf(more, sizeof more, "; an update has %" PRId64 " images",
                 (int64_t)t->set.batch * t->set.shards);
    if (now)
        HVT_WARN("--%s was %s in %s and is %s now%s", flag, was, t->opts->resume, now, more);
    else
        HVT_WARN("%s was saved with --%s %s, an option that this version lacks", t->opts->resume, flag, was);
}

/* Warns of each saved option that has another value now, or no longer exists. */
static hvt_status warn_of_changes(const run *t, const char *saved)
{
    json_t *was = json_loads(saved, 0, NULL), *now = effective_options(t), *value;
    const char *flag;

    json_object_foreach(was, flag, value)
    {
        const char *is = json_string_value(json_object_get(now, flag));
        if (json_is_string(value) && (!is || strcmp(is, json_string_value(value))))
            warn_of_change(t, flag, json_string_value(value), is);
    }
    hvt_status s = was && now ? HVT_OK : HVT_FAIL(E_MEM, "no memory to compare options");

    json_decref(was);
    json_decref(now);
    return s;
}

/* Warns if more epochs raise the rate again, which happens if the schedule covers all epochs. */
static void warn_of_rise(const run *t, const hvt_progress *p)
{
    json_t *was = json_loads(p->options, 0, NULL);
    const char *epochs = json_string_value(json_object_get(was, "epochs"));
    const char *name = json_string_value(json_object_get(was, "schedule"));
    bool same = epochs && name && !strcmp(name, t->opts->schedule) && hvt__schedule_ends(t);
    uint32_t n = t->steps_per_epoch;
    hvt_schedule *before = NULL;

    if (same && t->train_set && p->steps && hvt__open_schedule(t, atoi(epochs), &before) == HVT_OK) {
        double last = p->step ? hvt_schedule_lr(before, p->epoch, p->step - 1, n)
                              : hvt_schedule_lr(before, p->epoch - 1, n - 1, n);
        double next = hvt_schedule_lr(t->schedule, p->epoch, p->step, n);

        if (atoi(epochs) < t->opts->epochs && next > last)
            HVT_WARN("--schedule %s covered %s epochs in %s and covers %d now, so the rate rises from %g to "
                     "%g; to keep it low, start a new run with --init %s",
                     name, epochs, t->opts->resume, t->opts->epochs, last, next, t->opts->resume);
    }
    hvt_schedule_free(&before);
    json_decref(was);
}

/* The identifier of a new run. It depends only on the command, so that equal runs write equal files. */
static hvt_status name_run(run *t)
{
    char *options = hvt__effective_options(t);

    HVT_CHECK(options, E_MEM, "no memory to name the run");
    t->save.run = hvt__hash_text(hvt__hash_text(HVT_HASH_INIT, options), t->opts->init);
    if (t->train_set)
        t->save.run ^= hvt__mix(hvt_dataset_describe(t->train_set)->fingerprint);
    t->save.run += t->save.run == 0; /* 0: not known */
    free(options);
    return HVT_OK;
}

/* If weights do not fit the model, adds the options with which they were saved, if these differ. */
static hvt_status explain_shapes(const run *t, const char *path, hvt_status s)
{
    static const char *const flags[] = {"model", "stem", "shortcut", "classes"};
    char saved[300] = "", here[300] = "";
    hvt_progress p = {0};
    hvt__error why;

    if (s != HVT_E_SHAPE)
        return s;
    hvt__error_take(&why);
    if (hvt_checkpoint_load(path, NULL, NULL, &p) == HVT_OK && p.options) {
        json_t *was = json_loads(p.options, 0, NULL), *now = effective_options(t);
        for (size_t i = 0; i < HVT_LEN(flags); i++) {
            const char *a = json_string_value(json_object_get(was, flags[i]));
            const char *b = json_string_value(json_object_get(now, flags[i]));
            size_t na = strlen(saved), nb = strlen(here);
            if (!a || !b || !strcmp(a, b))
                continue;
            snprintf(saved + na, sizeof saved - na, " --%s %s", flags[i], a);
            snprintf(here + nb, sizeof here - nb, " --%s %s", flags[i], b);
        }
        json_decref(was);
        json_decref(now);
    }
    hvt__progress_free(&p);
    hvt__error_put(&why);
    const char *misfit = " does not fit the model: ", *from = strstr(why.text, misfit);

    if (*saved && from)
        return hvt__fail(s, __FILE__, __LINE__, "%.*s was saved with%s, but this run has%s: %s",
                         (int)(from - why.text), why.text, saved, here, from + strlen(misfit));
    if (from && !strcmp(t->given->model, "auto") && !strstr(from, "--reset-head"))
        return hvt__fail(s, __FILE__, __LINE__, "%s; without --model this run has %s: give the file's",
                         why.text, t->opts->model);
    return s;
}

/* The finished images of a checkpoint's epoch. Older checkpoints count updates; their options give the images
 * of an update. */
static uint32_t images_behind(const run *t, const hvt_progress *p)
{
    json_t *was = p->options ? json_loads(p->options, 0, NULL) : NULL;
    const char *batch = json_string_value(json_object_get(was, "batch"));
    const char *shards = json_string_value(json_object_get(was, "shards"));
    int64_t images = (int64_t)(batch ? atoi(batch) : t->set.batch) * (shards ? atoi(shards) : t->set.shards);

    json_decref(was);
    images *= p->step;
    return p->sample || !p->step ? p->sample : images < UINT32_MAX ? (uint32_t)images : UINT32_MAX;
}

/* Finds the step from which the epoch's remaining images are its last updates. Collective. */
static hvt_status find_step(run *t)
{
    uint32_t left;

    t->at.step = 0;
    if (!t->at.sample || !t->train_data)
        return HVT_OK;
    HVT_TRY(hvt_world_agree(t->world, hvt_loader_seek(t->train_data, t->at.epoch, t->at.sample)));
    left = hvt_loader_left(t->train_data);
    t->at.step = t->steps_per_epoch - left;
    if (!left) { /* all that remain are dropped (--last-batch drop) */
        t->at.epoch++;
        t->at.step = t->at.sample = 0;
    }
    return HVT_OK;
}

static hvt_status begin_weights(run *t)
{
    const hvt_options *o = t->opts;
    const bool stored = t->file && hvt_pt2_describe(t->file).weights;
    /* heads keep their random values if they are reset, or if the .pt2 has another number of classes */
    const bool all = *o->init ? !o->reset_head : stored && !o->classes;
    json_t *now;

    HVT_TRY((all ? hvt_model_restart : hvt_model_init)(t->model, (uint64_t)o->seed));
    if (o->whiten && t->train_set)
        return hvt__whiten(t);
    if (*o->init) {
        HVT_TRY(
            hvt__name_option("--init", o->init,
                             explain_shapes(t, o->init, hvt_weights_load(o->init, t->model, o->reset_head))));
        now = effective_options(t);
        hvt__warn_of_images(t, now);
        json_decref(now);
        return HVT_OK;
    }
    if (stored)
        return hvt_pt2_load(t->file, t->model);
    if (t->file)
        HVT_WARN(
            "%s has no weights that can be read without Python's pickle, so they are initialised at random; "
            "safetensors.torch.save_file(model.state_dict(), \"net.safetensors\") writes them for --init",
            o->model);
    return HVT_OK;
}

/* A checkpoint's losses. With targets, older checkpoints lack the error: it becomes NaN, not 0.
 */
static hvt_loss earlier_loss(const run *t, hvt_loss saved)
{
    if (hvt_loss_has_targets(t->set.loss.kind) && saved.sum > 0 && saved.error == 0)
        saved.error = NAN;
    return saved;
}

/* True if a checkpoint was saved with the options of this run. */
static bool are_options(const run *t, const char *saved)
{
    json_t *was = json_loads(saved, 0, NULL), *now = effective_options(t);
    bool same = json_equal(was, now);

    json_decref(was);
    json_decref(now);
    return same;
}

hvt_status hvt__first_weights(run *t)
{
    const hvt_options *o = t->opts;
    const bool raw = !t->set.averages;
    hvt_progress p = {0};
    char file[PATH_MAX];
    hvt_status s = HVT_OK;

    HVT_TRY(hvt__find_data(t));
    if (!*o->resume) {
        HVT_TRY(name_run(t));
        return begin_weights(t);
    }
    HVT_TRY(explain_shapes(t, o->resume,
                           hvt__resume(o->resume, t->model, o->evaluate ? NULL : t->optim, raw, &p, file)));
    t->averages = raw ? 0 : p.averages;
    hvt__folder_resumed(&t->save.folder, file, &p);
    t->save.run = p.run;
    t->at.sample = images_behind(t, &p);
    t->at.steps = p.steps;
    if (p.options) {
        s = warn_of_changes(t, p.options);
        warn_of_rise(t, &p);
        if (p.untested && !o->evaluate && are_options(t, p.options))
            hvt__begun_read(t, p.begun);
    }
    hvt__progress_free(&p);
    HVT_TRY(s);
    t->at.epoch = p.epoch;
    t->epoch_sum.steps = p.epoch_steps;
    t->test.due = p.untested;
    t->patience = p.patience;
    t->epoch_sum.loss = earlier_loss(t, p.epoch_loss);
    HVT_TRY(hvt__compare_data(t, &p));
    HVT_CHECK(!t->train_set || t->at.sample < hvt_dataset_describe(t->train_set)->count, E_ARG,
              "%s was left after %u images of its epoch, but an epoch has %u images now", o->resume,
              t->at.sample, hvt_dataset_describe(t->train_set)->count);
    t->recent.loss = earlier_loss(t, p.recent);
    bool by_steps = t->set.by_steps && p.steps >= o->steps;
    if (!o->evaluate && (by_steps || (t->set.by_epochs && p.epoch >= o->epochs)))
        HVT_INFO("note: %s has finished %d epochs and %" PRId64 " updates, so nothing is left to train; %s",
                 o->resume, p.epoch, p.steps,
                 by_steps                ? "--steps N sets another end"
                 : hvt__schedule_ends(t) ? "more --epochs would raise its rate again, but --init "
                                           "starts a new run with its weights"
                                         : "--epochs N sets another end");
    return HVT_OK;
}

hvt_status hvt__share_progress(run *t)
{
    /* by_epochs, too: ranks do not compare which flags were given */
    int64_t end, now[] = {t->at.epoch, t->at.sample, t->at.steps, t->set.by_epochs, t->save.folder.is_saved,
                          t->test.due};

    t->save.best = t->save.folder.best;
    HVT_TRY(hvt_world_broadcast(t->world, now, sizeof now, 0));
    HVT_TRY(hvt_world_broadcast(t->world, &t->test.begun, sizeof t->test.begun, 0));
    HVT_TRY(hvt_world_broadcast(t->world, &t->save.best, sizeof t->save.best, 0));
    HVT_TRY(hvt_world_broadcast(t->world, &t->patience, sizeof t->patience, 0));
    t->at.epoch = (int)now[0];
    t->at.sample = (uint32_t)now[1];
    t->at.steps = now[2];
    t->save.steps = now[4] ? t->at.steps : -1;
    t->test.due = t->save.untested = now[5];
    HVT_TRY(find_step(t));
    t->began = t->at;
    if (t->rep)
        hvt__log_at(t->rep->lines_of, t->at.steps);
    /* by --epochs: the updates so far, and those of the remaining epochs */
    end = t->at.steps - t->at.step + ((int64_t)t->opts->epochs - t->at.epoch) * t->steps_per_epoch;
    t->end = t->set.by_steps ? t->opts->steps : end;
    if (now[3] && end < t->end)
        t->end = end;
    return HVT_OK;
}

hvt_status hvt__check_room(const run *t)
{
    const hvt__every *e = &t->set.save_every;
    int64_t updates = t->end - t->at.steps, saves;

    if (!*t->opts->save || !t->train_set || updates <= 0 || t->opts->ask != HVT_ASK_TRAIN)
        return HVT_OK;
    saves = (t->at.step + updates + t->steps_per_epoch - 1) / t->steps_per_epoch;
    saves = e->seconds > 0 ? updates : e->steps ? saves + updates / e->steps : saves;
    return hvt__checkpoint_room(t->opts, t->model, t->optim, t->size, t->save.folder.nown, saves);
}
