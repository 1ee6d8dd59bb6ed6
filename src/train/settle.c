/*
 * The options, read together: what follows from several of them, and which do not fit together. Everything
 * here depends on the options and the number of ranks alone, so a mistake is one of the command line.
 */
#include "train_impl.h"
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
            return o->given[i];
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

static hvt_status settle_shards(const hvt_options *o, int ranks, hvt_settled *t)
{
    /* evaluation has no shards: those of a checkpoint need not suit the ranks that evaluate it */
    t->shards = o->shards && (!o->evaluate || was_given(o, "--shards")) ? o->shards : ranks;
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
    char known[200] = "auto";

    HVT_CHECK(!strcmp(o->device, "cpu") || !strcmp(o->isa, "auto"), E_ARG,
              "--isa %s is for --device cpu, not %s", o->isa, o->device);
    for (int i = 0; i < hvt_cpu_isa_count(); i++) {
        size_t used = strlen(known);
        if (!strcmp(o->isa, hvt_cpu_isa_name(i)))
            return HVT_OK;
        snprintf(known + used, sizeof known - used, " %s", hvt_cpu_isa_name(i));
    }
    HVT_CHECK(!strcmp(o->isa, "auto"), E_ARG, "--isa: expected one of %s, got '%s'", known, o->isa);
    return HVT_OK;
}

static hvt_status check_words(const hvt_options *o)
{
    bool synth = !strcmp(o->data, "synth");
    bool he = !hvt__has_stem(o->model);

    HVT_CHECK(synth || *o->data_dir, E_ARG, "--data %s needs --data-dir, the folder with its files", o->data);
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
    HVT_CHECK(o->threads <= HVT_MAX_THREADS, E_ARG, "--threads: expected 1 to %d per rank, or auto, got %d",
              HVT_MAX_THREADS, o->threads);
    return check_isa(o);
}

static hvt_status check_files(const hvt_options *o)
{
    HVT_CHECK(!(*o->init && *o->resume), E_ARG, "--init %s and --resume %s: one of them, not both", o->init,
              o->resume);
    HVT_CHECK(!o->init_skip_head || *o->init, E_ARG, "--init-skip-head needs --init FILE");
    HVT_CHECK(!o->evaluate || *o->init || *o->resume, E_ARG,
              "--evaluate needs weights: --init FILE or --resume DIR");
    HVT_CHECK(!o->evaluate || !*o->save, E_ARG, "--evaluate changes no weights, so --save %s has no use",
              o->save);
    return HVT_OK;
}

static hvt_status check_training(const hvt_options *o, const hvt_settled *t)
{
    const struct {
        const char *flag;
        double value;
    } f32[] = {
        {"--momentum", o->momentum}, {"--dampening", o->dampening}, {"--weight-decay", o->weight_decay}};
    hvt_schedule *schedule = NULL;
    hvt_schedule_opts opts = {o->schedule, t->lr, o->epochs, o->warmup_epochs};
    hvt_status s;

    for (size_t i = 0; i < HVT_LEN(f32); i++)
        HVT_CHECK(f32[i].value <= FLT_MAX, E_ARG, "%s: expected a number from 0 to %g, got %g", f32[i].flag,
                  (double)FLT_MAX, f32[i].value);
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

hvt_status hvt__settle(const hvt_options *o, int ranks, hvt_settled *ret_settled)
{
    hvt_settled t = {0};

    HVT_TRY(check_words(o));
    HVT_TRY(check_files(o));
    HVT_TRY(settle_augment(o, &t));
    HVT_TRY(settle_decay(o, &t));
    HVT_TRY(settle_shards(o, ranks, &t));
    t.lr = o->lr * (strcmp(o->lr_scale, "linear") ? 1 : t.shards);
    t.tail = !strcmp(o->tail, "pad")    ? HVT_TAIL_PAD
             : !strcmp(o->tail, "drop") ? HVT_TAIL_DROP
                                        : HVT_TAIL_EXACT;
    t.wire = !strcmp(o->wire, "f16") ? HVT_F16 : !strcmp(o->wire, "bf16") ? HVT_BF16 : HVT_F32;
    /* the small first bucket serves fusion: with one per layer, or one for all, there is none */
    t.first_bucket =
        o->bucket == 0 || o->bucket == HVT_BUCKET_ALL || o->first_bucket > o->bucket ? 0 : o->first_bucket;
    HVT_TRY(check_training(o, &t));
    *ret_settled = t;
    return HVT_OK;
}

hvt_status hvt_options_check(const hvt_options *opts, int ranks)
{
    hvt_settled ignored;

    return hvt__settle(opts, ranks, &ignored);
}
