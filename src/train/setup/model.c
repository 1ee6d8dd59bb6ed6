/* The model of a run: of the zoo, or of a .pt2. */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <math.h>

/* Trained weights learn at a tenth of the usual rate, as with --init. */
static void lower_rate(run *t)
{
    if (!isnan(t->given->lr) || *t->opts->init)
        return;
    t->settled.lr /= 10;
    t->set.lr /= 10;
}

hvt_status hvt__open_model_file(run *t)
{
    const hvt_options *o = t->opts;
    hvt_pt2_info net;
    hvt_status s;

    if (!hvt__is_model_file(o->model))
        return HVT_OK;
    s = hvt_pt2_open(o->model, &t->file);
    HVT_CHECK(s != HVT_E_IO || o->from[HVT__AT_model] != HVT_FROM_CHECKPOINT || *o->model == '/', E_IO,
              "%s (%s names it relative to the folder where the run started; give its place by --model PATH)",
              hvt_last_error(), o->resume);
    HVT_TRY(hvt__name_option("--model", o->model, s));
    net = hvt_pt2_describe(t->file);
    if (net.trained)
        lower_rate(t);
    if (net.outputs > 1 && t->rank == 0)
        HVT_WARN(
            "%s has %d outputs: hvtrain trains the first%s%s, and omits layers that only the others need, "
            "such as auxiliary classifiers",
            o->model, net.outputs, net.output ? ", " : "", net.output ? net.output : "");
    if (net.unused && t->rank == 0)
        HVT_WARN("%s: %d parameter%s not lead to its output (%s%s): neither trained nor saved; "
                 "load_state_dict(..., strict=False) reads the others",
                 o->model, net.unused, net.unused > 1 ? "s do" : " does", net.first_unused,
                 net.unused > 1 ? ", ..." : "");
    if (net.changed && t->rank == 0 && !o->evaluate)
        HVT_WARN("%s: the model changes %d buffer%s that its output does not depend on (%s%s), such as a "
                 "call counter; %s saved as in the file",
                 o->model, net.changed, net.changed > 1 ? "s" : "", net.first_changed,
                 net.changed > 1 ? ", ..." : "", net.changed > 1 ? "they are" : "it is");
    if (net.fixed_norms && t->rank == 0)
        HVT_INFO("%s: %d of %d batch norms are in eval() mode and keep their running statistics", o->model,
                 net.fixed_norms, net.norms);
    if (net.eval_mode && t->rank == 0 && !o->evaluate && !o->fix_norms)
        HVT_INFO(
            "%s was exported in eval() mode: its batch norms are trained as in train() mode; --fix-norms "
            "on keeps their running statistics",
            o->model);
    if (net.log_softmax && t->rank == 0)
        HVT_WARN("%s ends in log_softmax, which hvtrain omits because its cross-entropy includes it: "
                 "--predict-logits writes the input of log_softmax",
                 o->model);
    HVT_CHECK(net.weights || !o->evaluate || *o->init || *o->resume, E_ARG,
              "--evaluate: %s has no weights that can be read without Python's pickle; give them by --init "
              "or --resume",
              o->model);
    return HVT_OK;
}

/* Applies --freeze, and plans the model. An evaluation freezes nothing; auto leaves it to a .pt2. */
static hvt_status plan_frozen(run *t, hvt_value logits)
{
    const char *freeze = t->opts->freeze;
    bool none = t->opts->evaluate || !strcmp(freeze, "none"), by_file = !none && !strcmp(freeze, "auto");
    hvt_status s = by_file ? HVT_OK : hvt_model_freeze(t->model, none ? "" : freeze);

    if (s == HVT_OK && t->opts->evaluate)
        s = hvt_model_set_inference(t->model);
    if (s == HVT_OK)
        s = hvt_model_plan(t->model, t->set.batch, logits);
    if (s == HVT_E_ARG && t->set.stages && !strncmp(hvt_last_error(), "cut ", 4))
        return HVT_FAIL(E_ARG, "--split %s --split-at %s: %s", t->opts->split, t->opts->split_at,
                        hvt_last_error());
    if (s == HVT_E_ARG && by_file && t->file)
        return HVT_FAIL(E_ARG,
                        "--model %s: %s (its parameters have requires_grad=False; --freeze none trains them)",
                        t->opts->model, hvt_last_error());
    if (s == HVT_E_ARG && !none && !by_file)
        return HVT_FAIL(E_ARG, "--freeze %s: %s", freeze, hvt_last_error());
    return s && t->file ? hvt__fail(s, __FILE__, __LINE__, "--model %s: %s", t->opts->model, hvt_last_error())
                        : s;
}

/* Applies --fix-norms, but not to random weights, whose statistics are unsuitable. */
static hvt_status fix_norms(const run *t)
{
    const hvt_options *o = t->opts;

    HVT_CHECK(o->evaluate || *o->init || *o->resume || (t->file && hvt_pt2_describe(t->file).weights), E_ARG,
              "--fix-norms keeps the running statistics of batch norms: expected --init FILE with them");
    if (hvt_model_fix_norms(t->model))
        return HVT_FAIL(E_ARG, "--fix-norms: %s", hvt_last_error());
    return HVT_OK;
}

static hvt_status split_model(run *t)
{
    const hvt_options *o = t->opts;
    hvt_split_opts split = {.devices = t->set.stages ? t->stage : &t->dev,
                            .count = t->set.stages ? t->set.stages : 1,
                            .at = strcmp(o->split_at, "auto") ? o->split_at : NULL,
                            .pipeline = strcmp(o->pipeline, "gpipe") ? HVT_PIPELINE_1F1B : HVT_PIPELINE_GPIPE,
                            .micro_batches = o->evaluate ? 1 : (t->set.shards + t->size - 1) / t->size,
                            .memory_limit = o->memory_limit};

    if (split.micro_batches < t->set.stages && !o->evaluate && t->rank == 0)
        HVT_WARN("--split %s: %d micro-batch%s on %d devices leave%s most of them idle; with more --shards, "
                 "of fewer "
                 "images each, they work at the same time",
                 o->split, split.micro_batches, split.micro_batches > 1 ? "es" : "", t->set.stages,
                 split.micro_batches > 1 ? "" : "s");
    return split.count > 1 || split.memory_limit ? hvt_model_split(t->model, &split) : HVT_OK;
}

static hvt_status plan_model(run *t)
{
    const hvt_options *o = t->opts;
    const hvt_dataset_info *data = hvt_dataset_describe(t->test_set);
    hvt_zoo_opts zoo = {.imagenet_stem = !strcmp(o->stem, "imagenet"),
                        .projection = !strcmp(o->shortcut, "B")};
    hvt_value images, logits;

    HVT_TRY(hvt_model_create(t->dev, &t->model));
    HVT_TRY(hvt_model_set_type(t->model, t->set.amp));
    HVT_TRY(hvt_model_set_loss(t->model, &t->set.loss));
    HVT_TRY(hvt_model_set_class_weights(t->model, t->class_weights, t->classes));
    HVT_TRY(split_model(t));
    images = hvt_input(t->model, t->loading.test.height, t->loading.test.width,
                       hvt_loader_channels(data, &t->loading.test));
    if (t->file)
        HVT_TRY(hvt_pt2_build(t->file, t->model, images, t->classes, &logits));
    else
        logits = hvt_zoo(t->model, o->model, images, t->classes, &zoo);
    if (o->fix_norms)
        HVT_TRY(fix_norms(t));
    return plan_frozen(t, logits);
}

/* plan_model(), with advice if its activations are too large. */
hvt_status hvt__plan_model(run *t)
{
    const hvt_status s = plan_model(t);

    if (s != HVT_E_MEM && !(s && strstr(hvt_last_error(), "] has more than ")))
        return s;
    return hvt__fail(
        s, __FILE__, __LINE__, "%s: %d images of %dx%d are too large for model %s; lower --batch or --size%s",
        hvt_last_error(), t->set.batch, t->loading.test.height, t->loading.test.width, t->opts->model,
        t->opts->memory_limit && !t->set.stages ? ", or use several devices (--split)" : "");
}
