/*
 * Resolves the options: values that depend on several of them, and refused combinations. The result depends
 * only on the options and the number of ranks, so every error is one of the command line.
 */
#include "cli_impl.h"
#include "base_impl.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>

bool hvt__reads_pictures(const hvt_options *o)
{
    return !o->train_set && !o->test_set && hvt__is_word_of("folder|tar", o->data);
}

hvt_options hvt__options_settled(const hvt_options *o)
{
    enum { LEAST = 64 /* pixels that torchvision's ResNets shrink to 2 */ };
    hvt_options all = *o;

    if (!strcmp(o->model, "auto"))
        all.model = hvt__reads_pictures(o) && (!o->size || o->size >= LEAST) ? "resnet18" : "resnet20";
    if (isnan(o->lr))
        all.lr = (!strcmp(o->optimizer, "lars")      ? 1
                  : !strcmp(o->optimizer, "sgd")     ? 0.1
                  : !strcmp(o->optimizer, "rmsprop") ? 0.01
                                                     : 1e-3) /
                 (*o->init ? 10 : 1);
    if (isnan(o->eps))
        all.eps = strcmp(o->optimizer, "lamb") ? 1e-8 : 1e-6;
    return all;
}

bool hvt__option_is_default(const hvt__option *o, const char *value)
{
    char text[HVT_OPTION_VALUE];
    hvt_options defaults;

    if (!strcmp(value, o->preset))
        return true;
    hvt_options_default(&defaults);
    defaults = hvt__options_settled(&defaults);
    hvt__option_text(&defaults, (int)(o - hvt__option_table), text);
    return !strcmp(value, text);
}

static hvt_status check_word(const char *flag, const char *form, const char *value)
{
    char words[200], meant[HVT_HINT];

    if (hvt__is_word_of(form, value))
        return HVT_OK;
    hvt__hint_word(form, value, meant);
    snprintf(words, sizeof words, "%s", form);
    hvt__replace(words, '|', ' ');
    return HVT_FAIL(E_ARG, "%s: expected one of %s, got '%s'%s", flag, words, value, meant);
}

static hvt_status resolve_device(const hvt_options *o, hvt_resolved *t)
{
    const char *number = strchr(o->device, ':');
    hvt__devices all;

    if (*o->devices) {
        HVT_CHECK(!hvt__option_given(o, HVT__AT_device), E_ARG,
                  "--devices %s and --device %s both name devices: omit one of them", o->devices, o->device);
        HVT_TRY(hvt__devices_parse(o->devices, &all));
        t->on_gpu = all.on_gpu;
        t->device = t->on_gpu ? "cuda" : "cpu";
        t->gpu = -1;
        HVT_CHECK(t->on_gpu || !o->tf32, E_ARG, "--tf32 is for cuda, not --devices %s", o->devices);
        return HVT_OK;
    }
    HVT_CHECK(!strchr(o->device, ','), E_ARG, "--device %s: several devices of one process are --devices %s",
              o->device, o->device);
    HVT_TRY(check_word("--device", "ref|cpu|cuda|cuda:N", o->device));
    t->on_gpu = !strncmp(o->device, "cuda", 4);
    t->device = t->on_gpu ? "cuda" : o->device;
    t->gpu = number ? atoi(number + 1) : -1;
    HVT_CHECK(t->on_gpu || !o->tf32, E_ARG, "--tf32 is for --device cuda, not %s", t->device);
    return HVT_OK;
}

/* Reads --timeline-steps: FIRST-LAST (updates of the whole run), or all. */
static hvt_status resolve_timeline(const hvt_options *o, hvt_resolved *t)
{
    const char *at = o->timeline_steps;

    t->first_shown = 1;
    t->last_shown = INT64_MAX;
    HVT_CHECK(!strcmp(at, "all") ||
                  (hvt__scan_whole(&at, INT64_MAX - 1, &t->first_shown) && hvt__scan_text(&at, "-") &&
                   hvt__scan_whole(&at, INT64_MAX - 1, &t->last_shown) && !*at && t->first_shown >= 1 &&
                   t->last_shown >= t->first_shown),
              E_ARG,
              "--timeline-steps: expected FIRST-LAST, two numbers of updates, 1 or more, or all, got '%s'",
              o->timeline_steps);
    return HVT_OK;
}

/* Suggests units for a number without one; "" if something else is wrong. */
static void hint_units(const char *value, const char *unit, const char *other, char ret_text[HVT_HINT])
{
    *ret_text = 0;
    if (*value > '0' && !value[strspn(value, "0123456789")])
        snprintf(ret_text, HVT_HINT, "; write its unit, %.40s%s or %.40s%s", value, unit, value, other);
}

/* Reads --save-every: 1epoch, 500steps or 10m are epochs, updates or a time between saves. */
static hvt_status resolve_saving(const hvt_options *o, hvt_resolved *t)
{
    const char *at = o->save_every;
    char units[HVT_HINT];
    int64_t n = 0;

    hint_units(at, "epochs", "steps", units);
    if (hvt__scan_whole(&at, INT_MAX, &n) && n > 0 && hvt__is_word_of("epoch|epochs", at))
        t->save_every.epochs = n;
    else if (n > 0 && hvt__is_word_of("step|steps", at))
        t->save_every.steps = n;
    else
        HVT_CHECK(hvt__time_read(o->save_every, &t->save_every.seconds) && t->save_every.seconds > 0, E_ARG,
                  "--save-every: expected a number of epochs or updates, or a time (1epoch, 500steps, 10m), "
                  "got '%s'%s",
                  o->save_every, units);
    t->slurms_limit = !strcmp(o->max_time, "auto");
    hint_units(o->max_time, "m", "s", units);
    HVT_CHECK(t->slurms_limit || !strcmp(o->max_time, "none") || hvt__time_read(o->max_time, &t->max_seconds),
              E_ARG, "--max-time: expected a time with its units (23h50m), auto or none, got '%s'%s",
              o->max_time, units);
    HVT_CHECK(o->preempt_exit <= 255, E_ARG, "--preempt-exit: expected an exit code from 0 to 255, got %d",
              o->preempt_exit);
    return HVT_OK;
}

/* Resolves --amp. O0 to O3 are Apex's levels. O1 and O2 differ in how Apex patches a model; here they are
 * equal. */
static hvt_status resolve_precision(const hvt_options *o, hvt_resolved *t)
{
    enum { START = 65536, INTERVAL = 2000 }; /* torch.amp.GradScaler's */
    HVT_CHECK(strcmp(o->amp, "O3") != 0, E_ARG,
              "--amp O3 keeps parameters in f16, which loses updates below a thousandth of them; use O2, "
              "which keeps them in f32");
    t->amp = !strcmp(o->amp, "bf16")                         ? HVT_BF16
             : strcmp(o->amp, "f32") && strcmp(o->amp, "O0") ? HVT_F16
                                                             : HVT_F32;
    HVT_CHECK(t->amp == HVT_F16 || !hvt__option_given(o, HVT__AT_loss_scale), E_ARG,
              "--loss-scale is for --amp f16: gradients in %s need no loss scaling", hvt_dtype_name(t->amp));
    if (t->amp != HVT_F16)
        return HVT_OK;
    t->scaling = (hvt_scaling){
        .scale = o->loss_scale ? o->loss_scale : START, .interval = o->loss_scale ? 0 : INTERVAL, .floor = 1};
    return HVT_OK;
}

static hvt_status check_balance(const hvt_options *o, int ranks, int shards)
{
    int *first = calloc((size_t)ranks + 1, sizeof *first);
    hvt_status s;

    HVT_CHECK(first, E_MEM, "no memory for the shards of %d ranks", ranks);
    s = o->evaluate ? HVT_OK : hvt__divide_shards(o->balance, shards, ranks, first);
    free(first);
    return s;
}

static hvt_status resolve_shards(const hvt_options *o, int ranks, hvt_resolved *t)
{
    /* evaluation has no shards, so a checkpoint's need not suit the number of ranks */
    t->shards = o->shards && (!o->evaluate || hvt__option_given(o, HVT__AT_shards)) ? o->shards : ranks;
    HVT_CHECK(o->accumulate <= INT_MAX / t->shards, E_ARG, "--accumulate %d x %d shards are too many",
              o->accumulate, t->shards);
    t->shards *= o->evaluate ? 1 : o->accumulate;
    HVT_CHECK(t->shards >= ranks || !*o->resume || hvt__option_given(o, HVT__AT_shards), E_ARG,
              "%s was saved with --shards %d, too few for %d ranks; use at most %d rank%s, or another "
              "--shards, which changes the results",
              o->resume, t->shards, ranks, t->shards, t->shards > 1 ? "s" : "");
    t->batch = o->batch ? o->batch : 128; /* setup/data.c reduces it for a small set */
    if (t->stages && !o->evaluate)
        HVT_TRY(hvt__split_batch(o, ranks, t));
    HVT_CHECK(ranks > 1 || !strchr(o->balance, ','), E_ARG,
              "--balance %s divides shards among ranks, and there is one rank%s", o->balance,
              *o->split ? "; --split-at NAME,... says with which layer each further device begins" : "");
    HVT_TRY(check_balance(o, ranks, t->shards));
    if (o->global_batch) {
        HVT_CHECK(o->global_batch % t->shards == 0, E_ARG,
                  "--global-batch %d on %d shards: %d must be a multiple of %d", o->global_batch, t->shards,
                  o->global_batch, t->shards);
        t->batch = o->global_batch / t->shards;
    }
    HVT_CHECK((int64_t)t->batch * t->shards <= INT_MAX, E_ARG,
              "--batch %d x %d shards = %" PRId64 " images per update, expected at most %d", t->batch,
              t->shards, (int64_t)t->batch * t->shards, INT_MAX);
    return HVT_OK;
}

static hvt_status check_isa(const hvt_options *o)
{
    char known[200] = "auto";

    HVT_CHECK(!strcmp(o->isa, "auto") || (!strcmp(o->device, "cpu") && strncmp(o->devices, "cuda", 4)), E_ARG,
              "--isa %s is for --device cpu, not %s", o->isa, *o->devices ? o->devices : o->device);
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "|%s", hvt_cpu_isa_name(i));
    }
    return check_word("--isa", known, o->isa);
}

/* Checks the data sets of a program that calls the library. */
static hvt_status check_own_sets(const hvt_options *o)
{
    HVT_CHECK(o->test_set, E_ARG, "train_set is given without test_set, expected both");
    HVT_CHECK(o->train_set || o->evaluate, E_ARG,
              "test_set is given without train_set, expected both, or --evaluate");
    HVT_CHECK(!o->limit && !(o->val_split > 0), E_ARG,
              "--limit and --val-split do not apply to data sets of the program's own");
    return HVT_OK;
}

static hvt_status check_model_and_data(const hvt_options *o)
{
    bool own = o->train_set || o->test_set;
    bool synth = own || !strcmp(o->data, "synth"), stem = hvt_zoo_takes(o->model).imagenet_stem;
    char fraction[HVT_HINT];

    if (own)
        HVT_TRY(check_own_sets(o));
    HVT_CHECK(!o->evaluate || *o->init || *o->resume || hvt__is_model_file(o->model), E_ARG,
              "--evaluate needs weights: --init FILE or --resume DIR");
    HVT_CHECK(!o->whiten || o->evaluate || !(*o->init || hvt__is_model_file(o->model)), E_ARG,
              "--whiten sets new weights, but %s has weights: omit one of them",
              *o->init ? o->init : o->model);
    HVT_CHECK(!synth || !hvt__option_given(o, HVT__AT_data_dir) || o->from[HVT__AT_data] != HVT_FROM_DEFAULT,
              E_ARG, "--data-dir %s needs --data, the kind of its files, such as --data %s", o->data_dir,
              hvt__hint_data(o->data_dir));
    HVT_CHECK(synth || *o->data_dir, E_ARG, "--data %s needs --data-dir, the folder with its files", o->data);
    HVT_CHECK(
        !synth || !hvt__option_given(o, HVT__AT_data_dir), E_ARG,
        "--data-dir %s: --data synth generates images and takes no folder; for pictures use --data folder",
        o->data_dir);
    HVT_CHECK(o->eval_size <= 0 || o->eval_size >= o->size, E_ARG,
              "--eval-size %d is too small to crop --size %d from its centre: expected %d or more, or 0",
              o->eval_size, o->size, o->size);
    HVT_CHECK(synth || !hvt__option_given(o, HVT__AT_samples), E_ARG,
              "--samples %d is for --data synth; for %s use --limit", o->samples, o->data);
    for (int c = 1; c < 3; c++)
        HVT_CHECK(!o->grey ||
                      !(islessgreater(o->mean.v[c], o->mean.v[0]) || islessgreater(o->std.v[c], o->std.v[0])),
                  E_ARG, "--grey makes images of one channel: give --mean and --std one number each");
    HVT_CHECK(o->val_split < 1, E_ARG, "--val-split: expected a fraction from 0 to below 1, got %g%s",
              o->val_split, hvt__hint_fraction(o->val_split, fraction));
    HVT_CHECK(stem || !hvt__option_given(o, HVT__AT_stem), E_ARG, "--stem %s: %s has its own stem", o->stem,
              o->model);
    HVT_CHECK(hvt_zoo_takes(o->model).projection || !hvt__option_given(o, HVT__AT_shortcut), E_ARG,
              "--shortcut %s: %s has its own shortcuts, or none", o->shortcut, o->model);
    HVT_CHECK(!(hvt__option_given(o, HVT__AT_batch) && hvt__option_given(o, HVT__AT_global_batch)), E_ARG,
              "--batch %d and --global-batch %d exclude each other: use one of them", o->batch,
              o->global_batch);
    return HVT_OK;
}

static hvt_status resolve_exchange(const hvt_options *o, int ranks, hvt_resolved *t)
{
    enum { FIRST_BUCKET = 1 << 20 }; /* small, so that the exchange starts early */
    const char *at = o->compression;
    int64_t r = 0;

    if (hvt__scan_text(&at, "powersgd:"))
        hvt__scan_whole(&at, INT_MAX, &r);
    t->powersgd = (int)r;
    t->wire = !strcmp(o->compression, "f16") ? HVT_F16 : !strcmp(o->compression, "bf16") ? HVT_BF16 : HVT_F32;
    t->update = !strcmp(o->optimizer_state, "sharded")      ? HVT_UPDATE_SHARDED
                : !strcmp(o->optimizer_state, "replicated") ? HVT_UPDATE_REPLICATED
                                                            : HVT_UPDATE_AUTO;
    t->first_bucket = o->bucket < FIRST_BUCKET || o->bucket == HVT_BUCKET_ALL ? 0 : FIRST_BUCKET;
    HVT_CHECK(!t->powersgd || !t->on_gpu, E_ARG, "--compression %s is for --device cpu or ref, not %s",
              o->compression, o->device);
    HVT_CHECK(!t->powersgd || t->update != HVT_UPDATE_SHARDED, E_ARG,
              "--compression %s needs --optimizer-state replicated: factors cannot be cut into slices of "
              "gradients",
              o->compression);
    t->adasum = !strcmp(o->reduction, "adasum");
    HVT_CHECK(!t->adasum || !t->on_gpu, E_ARG, "--reduction adasum is for --device cpu or ref, not %s",
              o->device);
    HVT_CHECK(!t->adasum || (t->wire == HVT_F32 && !t->powersgd), E_ARG,
              "--reduction adasum exchanges gradients as f32: expected --compression f32, got %s",
              o->compression);
    HVT_CHECK(!t->adasum || t->update != HVT_UPDATE_SHARDED, E_ARG,
              "--reduction adasum needs --optimizer-state replicated: its products are over whole tensors");
    if (hvt_comm_set_cutoffs(o->comm_cutoffs, true))
        return HVT_FAIL(E_ARG, "--comm-cutoffs %s: %s", o->comm_cutoffs, hvt_last_error());
    HVT_CHECK(o->threads <= HVT_MAX_THREADS, E_ARG, "--threads: expected 1 to %d%s, or auto, got %d",
              HVT_MAX_THREADS, ranks > 1 ? " for each rank" : "", o->threads);
    HVT_CHECK(!(o->stall_abort > 0) || o->stall_abort >= o->stall_warn, E_ARG,
              "--stall-abort %gs is earlier than --stall-warn %gs: expected a later time, or 0",
              o->stall_abort, o->stall_warn);
    return check_isa(o);
}

static hvt_status check_files(const hvt_options *o)
{
    bool automatic = !strcmp(o->resume, "auto");

    HVT_CHECK(!automatic || *o->save, E_ARG,
              "--resume auto needs --save DIR, the folder with the checkpoints");
    HVT_CHECK(!automatic || !o->overwrite, E_ARG,
              "--resume auto continues the run that --overwrite would replace: use one of them");
    HVT_CHECK(!automatic || o->evaluate, E_ARG,
              "--resume auto: call hvt_options_prepare() first, which searches --save %s", o->save);
    HVT_CHECK(!o->overwrite || *o->save, E_ARG, "--overwrite needs --save DIR");
    HVT_CHECK(*o->save || !hvt__option_given(o, HVT__AT_save_every), E_ARG,
              "--save-every %s needs --save DIR", o->save_every);
    HVT_CHECK(!(*o->init && *o->resume), E_ARG,
              "--init %s and --resume %s exclude each other: use one of them", o->init, o->resume);
    HVT_CHECK(!o->reset_head || *o->init, E_ARG, "--reset-head needs --init FILE%s",
              hvt__is_model_file(o->model) ? "; --classes N gives a .pt2 file a new last layer" : "");
    HVT_CHECK(!o->evaluate || !*o->save, E_ARG, "--evaluate changes no weights: omit --save %s", o->save);
    HVT_CHECK(o->evaluate || !*o->predict, E_ARG,
              "--predict %s needs --evaluate, and --init FILE or --resume DIR", o->predict);
    HVT_CHECK(o->evaluate || !*o->predict_logits, E_ARG,
              "--predict-logits %s needs --evaluate, and --init FILE or --resume DIR", o->predict_logits);
    HVT_CHECK(!*o->predict || strcmp(o->predict, o->predict_logits) != 0, E_ARG,
              "--predict and --predict-logits: both are %s, expected two files", o->predict);
    HVT_CHECK(*o->timeline || !hvt__option_given(o, HVT__AT_timeline_steps), E_ARG,
              "--timeline-steps %s needs --timeline FILE", o->timeline_steps);
    HVT_CHECK(!o->quiet || !o->verbose, E_ARG, "--quiet and --verbose exclude each other: use one of them");
    return HVT_OK;
}

const char *hvt__schedule_by_time(const hvt_options *o)
{
    return strncmp(o->schedule, "plateau", 7) ? o->schedule : "constant";
}

/* Reads plateau[:PATIENCE[,FACTOR]]. */
static hvt_status resolve_plateau(const hvt_options *o, hvt_resolved *t)
{
    const char *at = o->schedule;
    int64_t patience = 10;

    t->plateau = (hvt__plateau){-1, 1};
    if (hvt__schedule_by_time(o) == o->schedule)
        return HVT_OK;
    t->plateau.factor = 0.1;
    hvt__scan_text(&at, "plateau");
    HVT_CHECK(
        !*at || (hvt__scan_text(&at, ":") && hvt__scan_whole(&at, INT_MAX, &patience) &&
                 (!hvt__scan_text(&at, ",") || (hvt__scan_number(&at, &t->plateau.factor) &&
                                                t->plateau.factor > 0 && t->plateau.factor < 1)) &&
                 !*at),
        E_ARG,
        "--schedule: expected plateau:PATIENCE,FACTOR with a number of evaluations and a factor between 0 "
        "and 1 (plateau:10,0.1), got '%s'",
        o->schedule);
    HVT_CHECK(o->eval_freq, E_ARG, "--schedule %s needs evaluations: expected --eval-freq 1 or more",
              o->schedule);
    t->plateau.patience = (int)patience;
    return HVT_OK;
}

static hvt_status check_training(const hvt_options *o, const hvt_resolved *t)
{
    const struct {
        const char *flag;
        double value, most;
    } all[] = {{"--momentum", o->momentum, FLT_MAX},
               {"--weight-decay", o->weight_decay, FLT_MAX},
               {"--eps", o->eps, FLT_MAX},
               {"--warmup-from", o->warmup_from, 1}};
    hvt_schedule *schedule = NULL;
    char fraction[HVT_HINT], meant[HVT_HINT];
    hvt_schedule_opts opts = {hvt__schedule_by_time(o), t->lr,          o->epochs,
                              o->warmup_epochs,         o->warmup_from, !strcmp(o->schedule_by, "epoch")};
    hvt_status s;

    for (size_t i = 0; i < HVT_LEN(all); i++)
        HVT_CHECK(all[i].value <= all[i].most, E_ARG, "%s: expected a number from 0 to %g, got %g%s",
                  all[i].flag, all[i].most, all[i].value, hvt__hint_fraction(all[i].value, fraction));
    HVT_CHECK(isfinite(t->lr), E_ARG, "--lr %g x %d shards (--lr-scale %s) is not a finite number", o->lr,
              t->shards, o->lr_scale);
    HVT_CHECK(!t->optim.nesterov || o->momentum > 0, E_ARG, "--nesterov needs --momentum > 0, got %g",
              o->momentum);
    s = hvt_schedule_create(&opts, &schedule);
    hvt_schedule_free(&schedule);
    if (s == HVT_E_ARG && o->warmup_epochs > o->epochs)
        return HVT_FAIL(E_ARG, "--schedule %s, --warmup-epochs %g, --epochs %d: %s", o->schedule,
                        o->warmup_epochs, o->epochs, hvt_last_error());
    hvt__hint_schedule(o->schedule, meant);
    if (s == HVT_E_ARG && !strncmp(hvt_last_error(), "schedule '", 10)) /* the error names the value */
        return HVT_FAIL(
            E_ARG, "--%s%s%s", hvt_last_error(),
            strstr(hvt_last_error(), "expected constant") ? ", or plateau[:PATIENCE[,FACTOR]]" : "", meant);
    if (s == HVT_E_ARG)
        return HVT_FAIL(E_ARG, "--schedule %s: %s", o->schedule, hvt_last_error());
    return s;
}

static hvt_status resolve_loss(const hvt_options *o, hvt_resolved *t)
{
    const hvt_loss_kind kind = !strcmp(o->loss, "mse")   ? HVT_LOSS_MSE
                               : !strcmp(o->loss, "mae") ? HVT_LOSS_MAE
                               : !strcmp(o->loss, "bce") ? HVT_LOSS_BCE
                                                         : HVT_LOSS_CE;
    bool targets = hvt_loss_has_targets(kind), bce = kind == HVT_LOSS_BCE,
         image = !strcmp(o->target, "image");
    bool weighted = strcmp(o->class_weights, "none") != 0, balanced = !strcmp(o->sample, "balanced");
    char fraction[HVT_HINT];

    HVT_CHECK(o->label_smoothing <= 1, E_ARG, "--label-smoothing: expected a number from 0 to 1, got %g%s",
              o->label_smoothing, hvt__hint_fraction(o->label_smoothing, fraction));
    HVT_CHECK(!targets || (o->mixup == 0 && o->cutmix == 0), E_ARG,
              "--mixup and --cutmix mix the labels of --loss ce or bce; --loss %s has none", o->loss);
    HVT_CHECK(!targets || o->label_smoothing == 0, E_ARG,
              "--label-smoothing %g is for --loss ce or bce, not %s", o->label_smoothing, o->loss);
    HVT_CHECK(targets || o->classes != 1, E_ARG,
              "--classes 1: --loss %s compares classes, at least 2; --loss mse takes 1 output", o->loss);
    HVT_CHECK(!targets || !*o->predict, E_ARG,
              "--predict %s: --loss %s has no classes; --predict-logits FILE.npy has the outputs", o->predict,
              o->loss);
    HVT_CHECK(!image || targets, E_ARG, "--target image is for --loss mse or mae, not %s", o->loss);
    HVT_CHECK(!image || !t->on_gpu, E_ARG, "--target image is for --device cpu or ref, not %s", t->device);
    HVT_CHECK(!targets || !o->per_class, E_ARG, "--per-class: --loss %s has no classes", o->loss);
    HVT_CHECK(!bce || !t->on_gpu, E_ARG, "--loss bce is for --device cpu or ref, not %s", t->device);
    HVT_CHECK(!weighted || !t->on_gpu, E_ARG, "--class-weights %s is for --device cpu or ref, not %s",
              o->class_weights, t->device);
    HVT_CHECK(!weighted || kind == HVT_LOSS_CE, E_ARG, "--class-weights %s is for --loss ce, not %s",
              o->class_weights, o->loss);
    HVT_CHECK(!balanced || !targets, E_ARG, "--sample balanced: --loss %s has no classes", o->loss);
    HVT_CHECK(!balanced || (o->shuffle && o->repeat_augment == 1), E_ARG,
              "--sample balanced draws images at random: omit %s",
              o->shuffle ? "--repeat-augment" : "--shuffle off");
    t->loss = (hvt_loss_opts){kind, (float)o->label_smoothing};
    return HVT_OK;
}

/* --tta mirrors images in host memory. */
static hvt_status check_flip(const hvt_options *o, const hvt_resolved *t)
{
    const bool none = !strcmp(o->tta, "none");

    HVT_CHECK(none || !t->on_gpu, E_ARG, "--tta %s is for --device cpu or ref, not %s", o->tta, t->device);
    HVT_CHECK(none || !*o->split, E_ARG,
              "--tta %s does not apply to a model that --split %s divides: omit it", o->tta, o->split);
    return HVT_OK;
}

static hvt_status check_tuning(const hvt_options *o, int ranks)
{
    bool tune = o->ask == HVT_ASK_TUNE;

    HVT_CHECK(!tune || *o->tune_file, E_ARG,
              "tune needs a FILE to write its results to: hvtrain tune %sFILE ...", o->tune_lr ? "lr " : "");
    HVT_CHECK(!tune || !o->tune_lr ||
                  !(hvt__option_given(o, HVT__AT_lr) || hvt__option_given(o, HVT__AT_schedule)),
              E_ARG, "tune lr tries rates from 1e-6 to 10: omit --lr and --schedule");
    HVT_CHECK(!tune || o->tune_lr || ranks > 1, E_ARG,
              "tune measures the exchange between ranks: mpirun -np N hvtrain tune FILE ...");
    HVT_CHECK(!tune || (!*o->save && !o->evaluate), E_ARG,
              "tune neither trains nor evaluates: omit --save and --evaluate");
    HVT_CHECK(!tune || (!*o->report && !*o->tensorboard), E_ARG,
              "tune has no curves: leave out --report and --tensorboard");
    return HVT_OK;
}

static hvt_status check_packing(const hvt_options *o)
{
    static const enum hvt__option_at own[] = {HVT__AT_output, HVT__AT_resize, HVT__AT_raw,
                                              HVT__AT_shard_images};
    bool pack = o->ask == HVT_ASK_PACK;
    const char *slash = strrchr(o->output, '/'), *base = slash ? slash + 1 : o->output;

    HVT_CHECK(!pack || *o->data_dir || !strcmp(o->data, "synth"), E_ARG,
              "pack needs a folder of pictures: hvtrain pack DIR --output TO/train-%%06d.tar");
    HVT_CHECK(!pack || *o->output, E_ARG,
              "pack needs --output TO/train-%%06d.tar (or val-%%06d.tar), the names of its shards");
    HVT_CHECK(!pack || !strncmp(base, "train-", 6) || !strncmp(base, "val-", 4), E_ARG,
              "--output: expected DIR/train-%%06d.tar or DIR/val-%%06d.tar, got '%s'", o->output);
    HVT_CHECK(!pack || (!*o->save && !o->evaluate), E_ARG,
              "pack neither trains nor evaluates: omit --save and --evaluate");
    HVT_CHECK(!pack || !o->grey, E_ARG,
              "pack keeps the colours of images: omit --grey here, and give it in training");
    for (size_t i = 0; i < HVT_LEN(own) && !pack; i++)
        HVT_CHECK(!hvt__option_given(o, own[i]) || (o->ask == HVT_ASK_INSPECT && own[i] == HVT__AT_output),
                  E_ARG, "%s is for hvtrain pack DIR", hvt__flag_of(&hvt__option_table[own[i]]).text);
    return HVT_OK;
}

hvt_status hvt__resolve(const hvt_options *opts, int ranks, hvt_resolved *ret_resolved)
{
    const hvt_options settled = hvt__options_settled(opts), *o = &settled;
    hvt_resolved t = {0};

    HVT_TRY(resolve_device(o, &t));
    HVT_TRY(check_packing(o));
    HVT_TRY(check_model_and_data(o));
    HVT_TRY(check_files(o));
    HVT_TRY(hvt__recipe_check(o));
    HVT_TRY(resolve_timeline(o, &t));
    HVT_TRY(resolve_saving(o, &t));
    HVT_TRY(hvt__resolve_augment(o, &t));
    HVT_TRY(resolve_loss(o, &t));
    HVT_TRY(check_flip(o, &t));
    HVT_TRY(hvt__resolve_optimizer(o, &t));
    HVT_TRY(resolve_precision(o, &t));
    HVT_TRY(hvt__resolve_split(o, &t));
    HVT_TRY(resolve_shards(o, ranks, &t));
    HVT_TRY(resolve_exchange(o, ranks, &t));
    HVT_CHECK(strcmp(o->balance, "auto") || (t.wire == HVT_F32 && !t.powersgd && !t.on_gpu), E_ARG,
              "--balance auto with %s %s: sums would depend on which rank was faster; expected f32 sums on a "
              "CPU, or a "
              "fixed division (--balance N,N,...)",
              t.on_gpu ? "--device" : "--compression", t.on_gpu ? o->device : o->compression);
    t.lr = o->lr * (strcmp(o->lr_scale, "linear") ? 1 : t.shards);
    t.last_batch = !strcmp(o->last_batch, "pad")    ? HVT_LAST_BATCH_PAD
                   : !strcmp(o->last_batch, "drop") ? HVT_LAST_BATCH_DROP
                                                    : HVT_LAST_BATCH_KEEP;
    t.by_steps = o->steps > 0;
    t.by_epochs = !t.by_steps || hvt__option_given(o, HVT__AT_epochs);
    HVT_TRY(resolve_plateau(o, &t));
    HVT_CHECK(!o->early_stop || o->eval_freq || o->evaluate, E_ARG,
              "--early-stop %d needs evaluations: expected --eval-freq 1 or more", o->early_stop);
    HVT_TRY(check_training(o, &t));
    HVT_TRY(check_tuning(o, ranks));
    *ret_resolved = t;
    return HVT_OK;
}

hvt_status hvt__options_check(const hvt_options *opts, int ranks)
{
    hvt_resolved ignored;

    return hvt__resolve(opts, ranks, &ignored);
}
