/*
 * The options, read together: what follows from several of them, and which do not fit together. Everything
 * here depends on the options and the number of ranks alone, so a mistake is one of the command line.
 */
#include "options.h"
#include "train/report/timeline.h"
#include "base_impl.h"

#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CROP_MAX = 127 }; /* what the loader can do, said here by the flag's name */

static bool was_given(const hvt_options *o, const char *flag)
{
    for (int i = 0; i < HVT_OPTION_COUNT; i++)
        if (!strcmp(hvt__option_flag(i), flag))
            return o->from[i] >= HVT_FROM_CONFIG;
    return false;
}

/* The next of the words of *list, which commas part; false after the last. */
static bool next_word(const char **list, char *ret_word, size_t bytes)
{
    size_t len = strcspn(*list, ",");

    if (!**list)
        return false;
    snprintf(ret_word, bytes, "%.*s", (int)len, *list);
    *list += len + ((*list)[len] == ',');
    return true;
}

static hvt_status settle_augment(const hvt_options *o, hvt_settled *t)
{
    const char *list = o->augment;
    char word[64];

    while (next_word(&list, word, sizeof word)) {
        char *end;
        long pixels;
        if (!strcmp(word, "none"))
            continue;
        if (!strcmp(word, "flip")) {
            t->flip = true;
            continue;
        }
        pixels = strncmp(word, "crop:", 5) ? 0 : strtol(word + 5, &end, 10);
        HVT_CHECK(pixels >= 1 && pixels <= CROP_MAX && !*end, E_ARG,
                  "--augment: expected none, flip, crop:PIXELS (1 to %d) or several with commas, got '%s'",
                  CROP_MAX, o->augment);
        t->crop = (int)pixels;
    }
    return HVT_OK;
}

static hvt_status settle_decay(const hvt_options *o, hvt_settled *t)
{
    const char *list = o->no_decay;
    char word[64];

    while (next_word(&list, word, sizeof word)) {
        bool norm = !strcmp(word, "norm"), bias = !strcmp(word, "bias");
        HVT_CHECK(norm || bias || !strcmp(word, "none"), E_ARG,
                  "--no-decay: expected none, norm, bias or norm,bias, got '%s'", o->no_decay);
        t->no_decay_norm |= norm;
        t->no_decay_bias |= bias;
    }
    return HVT_OK;
}

/* Apex's names: O1 and O2 differ in how a model is patched, not in what its layers compute here. */
static hvt_status settle_precision(const hvt_options *o, hvt_settled *t)
{
    enum { START = 65536, INTERVAL = 2000 }; /* torch.amp.GradScaler's */
    static const char *const flag[] = {"--loss-scale", "--loss-scale-min"};

    HVT_CHECK(
        strcmp(o->amp, "O3") != 0, E_ARG,
        "--amp O3: parameters in f16 lose every update below a thousandth of them; O2 keeps them in f32");
    t->amp = !strcmp(o->amp, "bf16")                         ? HVT_BF16
             : strcmp(o->amp, "f32") && strcmp(o->amp, "O0") ? HVT_F16
                                                             : HVT_F32;
    for (size_t i = 0; i < HVT_LEN(flag); i++)
        HVT_CHECK(t->amp == HVT_F16 || !was_given(o, flag[i]), E_ARG,
                  "%s is for --amp f16: gradients in %s need no loss scaling", flag[i],
                  hvt_dtype_name(t->amp));
    if (t->amp != HVT_F16)
        return HVT_OK;
    HVT_CHECK(!o->loss_scale || !was_given(o, "--loss-scale-min"), E_ARG,
              "--loss-scale-min %g is for --loss-scale dynamic; %d does not fall", o->loss_scale_min,
              o->loss_scale);
    HVT_CHECK(o->loss_scale || (o->loss_scale_min > 0 && o->loss_scale_min <= START), E_ARG,
              "--loss-scale-min: expected a number above 0 and at most %d, where the scale begins, got %g",
              START, o->loss_scale_min);
    t->scaling = (hvt_scaling){.scale = o->loss_scale ? o->loss_scale : START,
                               .interval = o->loss_scale ? 0 : INTERVAL,
                               .floor = o->loss_scale_min};
    return HVT_OK;
}

static hvt_status settle_shards(const hvt_options *o, int ranks, hvt_settled *t)
{
    /* evaluation has no shards: those of a checkpoint need not suit the ranks that evaluate it */
    t->shards = o->shards && (!o->evaluate || was_given(o, "--shards")) ? o->shards : ranks;
    HVT_CHECK(
        t->shards % ranks == 0 || !*o->resume || was_given(o, "--shards"), E_ARG,
        "%s was saved with --shards %d, which %d ranks do not divide evenly; expected a number of ranks "
        "that divides %d, or another --shards, with which the run is no longer the same to the bit",
        o->resume, t->shards, ranks, t->shards);
    HVT_CHECK(t->shards % ranks == 0, E_ARG,
              "--shards %d on %d ranks: each rank works through the same number of shards, so %d must be a "
              "multiple of %d",
              t->shards, ranks, t->shards, ranks);
    t->local_shards = t->shards / ranks;
    t->batch = o->batch;
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

/* He's ResNets for CIFAR have a stem of their own; torchvision's have shortcuts of their own. */
bool hvt__has_stem(const char *model)
{
    static const char *const he[] = {"resnet20", "resnet32", "resnet44", "resnet56", "resnet110"};

    for (size_t i = 0; i < HVT_LEN(he); i++)
        if (!strcmp(model, he[i]))
            return false;
    return true;
}

static hvt_status check_isa(const hvt_options *o)
{
    char known[200] = "auto", near[40];

    HVT_CHECK(!strcmp(o->device, "cpu") || !strcmp(o->isa, "auto"), E_ARG,
              "--isa %s is for --device cpu, not %s", o->isa, o->device);
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        size_t used = strlen(known);
        if (!strcmp(o->isa, hvt_cpu_isa_name(i)))
            return HVT_OK;
        snprintf(known + used, sizeof known - used, "|%s", hvt_cpu_isa_name(i));
    }
    if (!hvt__suggest(known, o->isa, near, sizeof near))
        *near = 0;
    for (char *p = known; *p; p++)
        *p = *p == '|' ? ' ' : *p;
    HVT_CHECK(!strcmp(o->isa, "auto"), E_ARG, "--isa: expected one of %s, got '%s'%s%s%s", known, o->isa,
              *near ? "; did you mean " : "", near, *near ? "?" : "");
    return HVT_OK;
}

/* 0: gradients travel as they are. */
static int rank_of_factors(const hvt_options *o)
{
    static const char name[] = "powersgd:";

    return strncmp(o->wire, name, sizeof name - 1) ? 0 : atoi(o->wire + sizeof name - 1);
}

static hvt_status check_words(const hvt_options *o)
{
    bool synth = !strcmp(o->data, "synth");
    bool he = !hvt__has_stem(o->model);
    int powersgd = rank_of_factors(o);

    HVT_CHECK(synth || *o->data_dir, E_ARG, "--data %s needs --data-dir, the folder with its files", o->data);
    HVT_CHECK(!synth || !was_given(o, "--data-dir"), E_ARG,
              "--data-dir %s is for --data cifar10; synth draws its images", o->data_dir);
    HVT_CHECK(synth || !was_given(o, "--image-size"), E_ARG,
              "--image-size %d is for --data synth; the images of %s have a size", o->image_size, o->data);
    HVT_CHECK(synth || !was_given(o, "--samples"), E_ARG,
              "--samples %d is for --data synth; --limit takes the first images of %s", o->samples, o->data);
    HVT_CHECK(!he || !was_given(o, "--stem"), E_ARG, "--stem %s: %s has a stem of its own", o->stem,
              o->model);
    HVT_CHECK(he || !was_given(o, "--shortcut"), E_ARG, "--shortcut %s: %s has torchvision's shortcuts",
              o->shortcut, o->model);
    HVT_CHECK(!(was_given(o, "--batch") && was_given(o, "--global-batch")), E_ARG,
              "--batch %d and --global-batch %d: one of them, not both", o->batch, o->global_batch);
    HVT_CHECK(!powersgd || strncmp(o->device, "cuda", 4), E_ARG,
              "--wire %s is for --device cpu or ref, not %s", o->wire, o->device);
    HVT_CHECK(!powersgd || strcmp(o->update, "sharded"), E_ARG,
              "--wire %s needs --update replicated: factors cannot be cut into slices of gradients", o->wire);
    HVT_CHECK(o->threads <= HVT_MAX_THREADS, E_ARG, "--threads: expected 1 to %d per rank, or auto, got %d",
              HVT_MAX_THREADS, o->threads);
    HVT_CHECK(!(o->stall_abort > 0) || o->stall_abort >= o->stall_warn, E_ARG,
              "--stall-abort %gs comes before --stall-warn %gs: expected it later, or 0", o->stall_abort,
              o->stall_warn);
    return check_isa(o);
}

static hvt_status check_files(const hvt_options *o)
{
    int64_t first, last;

    HVT_CHECK(strcmp(o->resume, "auto") || *o->save, E_ARG,
              "--resume auto needs --save DIR, the folder that it looks into");
    HVT_CHECK(strcmp(o->resume, "auto") || !o->overwrite, E_ARG,
              "--resume auto goes on with what --overwrite would replace: one of them, not both");
    HVT_CHECK(strcmp(o->resume, "auto") || o->evaluate, E_ARG,
              "--resume auto: hvt_options_resume() comes first, which looks into --save %s", o->save);
    HVT_CHECK(!o->overwrite || *o->save, E_ARG, "--overwrite needs --save DIR");
    HVT_CHECK(!(*o->init && *o->resume), E_ARG, "--init %s and --resume %s: one of them, not both", o->init,
              o->resume);
    HVT_CHECK(!o->init_skip_head || *o->init, E_ARG, "--init-skip-head needs --init FILE");
    HVT_CHECK(!o->evaluate || *o->init || *o->resume, E_ARG,
              "--evaluate needs weights: --init FILE or --resume DIR");
    HVT_CHECK(!o->evaluate || !*o->save, E_ARG, "--evaluate changes no weights, so --save %s has no use",
              o->save);
    HVT_CHECK(*o->timeline || !was_given(o, "--timeline-steps"), E_ARG,
              "--timeline-steps %s needs --timeline FILE", o->timeline_steps);
    return hvt__timeline_window(o, &first, &last);
}

static hvt_status check_training(const hvt_options *o, const hvt_settled *t)
{
    const struct {
        const char *flag;
        double value;
    } f32[] = {
        {"--momentum", o->momentum}, {"--dampening", o->dampening}, {"--weight-decay", o->weight_decay}};
    hvt_schedule *schedule = NULL;
    hvt_schedule_opts opts = {o->schedule, t->lr, o->epochs, o->warmup_epochs, o->warmup_from};
    hvt_status s;

    for (size_t i = 0; i < HVT_LEN(f32); i++)
        HVT_CHECK(f32[i].value <= FLT_MAX, E_ARG, "%s: expected a number from 0 to %g, got %g", f32[i].flag,
                  (double)FLT_MAX, f32[i].value);
    HVT_CHECK(o->warmup_from <= 1, E_ARG, "--warmup-from: expected a number from 0 to 1, got %g",
              o->warmup_from);
    HVT_CHECK(isfinite(t->lr), E_ARG, "--lr %g x %d shards (--lr-scale %s) is no number", o->lr, t->shards,
              o->lr_scale);
    HVT_CHECK(!o->nesterov || (o->momentum > 0 && o->dampening == 0), E_ARG,
              "--nesterov needs --momentum > 0 and --dampening 0, got %g and %g", o->momentum, o->dampening);
    s = hvt_schedule_create(&opts, &schedule);
    if (s == HVT_E_ARG) {
        if (o->warmup_epochs > o->epochs)
            return HVT_FAIL(E_ARG, "--schedule %s, --warmup-epochs %g, --epochs %d: %s", o->schedule,
                            o->warmup_epochs, o->epochs, hvt_last_error());
        return HVT_FAIL(E_ARG, "--schedule %s: %s", o->schedule, hvt_last_error());
    }
    hvt_schedule_free(&schedule);
    return s;
}

static hvt_status check_tuning(const hvt_options *o, int ranks)
{
    bool tune = o->ask == HVT_ASK_TUNE;

    if (hvt_comm_set_cutoffs(o->thresholds, true))
        return HVT_FAIL(E_ARG, "--thresholds %s: %s", o->thresholds, hvt_last_error());
    HVT_CHECK(tune || (!was_given(o, "--output") && !was_given(o, "--budget")), E_ARG,
              "--output and --budget are for hvtrain tune");
    HVT_CHECK(!tune || *o->output, E_ARG, "tune needs --output FILE, for what it finds");
    HVT_CHECK(!tune || ranks > 1, E_ARG,
              "tune measures the exchange between ranks: mpirun -np N hvtrain tune ...");
    HVT_CHECK(!tune || (!*o->save && !o->evaluate), E_ARG,
              "tune neither trains nor evaluates: --save and --evaluate have no use");
    return HVT_OK;
}

hvt_status hvt__settle(const hvt_options *o, int ranks, hvt_settled *ret_settled)
{
    hvt_settled t = {0};

    HVT_TRY(hvt__settle_device(o, ranks, &t));
    HVT_TRY(check_words(o));
    HVT_TRY(check_files(o));
    HVT_TRY(settle_augment(o, &t));
    HVT_TRY(settle_decay(o, &t));
    HVT_TRY(settle_precision(o, &t));
    HVT_TRY(settle_shards(o, ranks, &t));
    t.lr = o->lr * (strcmp(o->lr_scale, "linear") ? 1 : t.shards);
    t.tail = !strcmp(o->tail, "pad")    ? HVT_LAST_BATCH_PAD
             : !strcmp(o->tail, "drop") ? HVT_LAST_BATCH_DROP
                                        : HVT_LAST_BATCH_KEEP;
    t.wire = !strcmp(o->wire, "f16") ? HVT_F16 : !strcmp(o->wire, "bf16") ? HVT_BF16 : HVT_F32;
    t.by_steps = o->steps > 0;
    t.by_epochs =
        !t.by_steps || was_given(o, "--epochs"); /* those of a checkpoint were not given to this job */
    t.powersgd = rank_of_factors(o);
    t.update = !strcmp(o->update, "sharded")      ? HVT_UPDATE_SHARDED
               : !strcmp(o->update, "replicated") ? HVT_UPDATE_REPLICATED
                                                  : HVT_UPDATE_AUTO;
    /* the small first bucket serves fusion: with one per layer, or one for all, there is none */
    t.first_bucket =
        o->bucket == 0 || o->bucket == HVT_BUCKET_ALL || o->first_bucket > o->bucket ? 0 : o->first_bucket;
    HVT_TRY(check_training(o, &t));
    HVT_TRY(check_tuning(o, ranks));
    *ret_settled = t;
    return HVT_OK;
}

hvt_status hvt_options_check(const hvt_options *opts, int ranks)
{
    HVT_GIVEN(opts, "options");
    HVT_CHECK(ranks > 0, E_ARG, "options of %d ranks, expected 1 or more", ranks);

    hvt_settled ignored;

    return hvt__settle(opts, ranks, &ignored);
}
