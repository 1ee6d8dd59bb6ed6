/*
 * Compares what must be the same on all ranks before the first step.
 *
 * Ranks report the first difference in the list, so causes come before their consequences: build and device,
 * the caller's items, our options, tensors, and buckets last.
 */
#include "dist.h"
#include "base_impl.h"
#include "world/items.h"
#include "config.h"

static void add_options(hvt__items *l, const hvt_distopt *d)
{
    const hvt_distopt_opts *opts = &d->opts;
    const hvt_optim_opts *o = &d->optim->opts;

    hvt__items_add(l, "optimizer\t%s", d->optim->rule->name);
    hvt__items_add(l, "momentum\t%.9g", (double)o->momentum);
    hvt__items_add(l, "dampening\t%.9g", (double)o->dampening);
    hvt__items_add(l, "weight decay\t%.9g", (double)o->weight_decay);
    hvt__items_add(l, "nesterov\t%s", o->nesterov ? "on" : "off");
    hvt__items_add(l, "betas\t%.17g, %.17g", o->betas[0], o->betas[1]);
    hvt__items_add(l, "eps\t%.17g", o->eps);
    hvt__items_add(l, "no decay\tnorm %s, bias %s", o->no_decay_norm ? "yes" : "no",
                   o->no_decay_bias ? "yes" : "no");
    hvt__items_add(l, "average of the weights\t%.17g, every %d updates%s", o->ema.decay, o->ema.every,
                   o->ema.equal ? ", equal" : "");
    hvt__items_add(l, "frozen\t%s", d->optim->m->freeze ? d->optim->m->freeze : "none");
    hvt__items_add(l, "batch norm over\t%s", opts->sync_batchnorm ? "all shards" : "one shard");
    if (opts->powersgd) {
        hvt__items_add(l, "wire\tpowersgd:%d", opts->powersgd);
        hvt__items_add(l, "PowerSGD's seed\t%llu", (unsigned long long)opts->seed);
    } else {
        hvt__items_add(l, "wire\t%s", hvt_dtype_name(opts->wire));
    }
    if (opts->adasum)
        hvt__items_add(l, "reduction\tadasum");
    hvt__items_add(l, "update\t%s", opts->update == HVT_UPDATE_SHARDED ? "sharded" : "replicated");
    hvt__items_add(l, "activations\t%s", hvt_dtype_name(d->optim->m->type));
    hvt__items_add(l, "loss scale\t%.17g, at least %.17g, doubled after %d", opts->scaling.scale,
                   opts->scaling.floor, opts->scaling.interval);
    hvt__items_add(l, "clipped to a norm of\t%.17g", opts->clip_norm);
    hvt__items_add(l, "bucket bytes\t%zu", opts->bucket_bytes);
    hvt__items_add(l, "first bucket's bytes\t%zu", opts->first_bytes);
    hvt__items_add(l, "updates between replica checks\t%d", opts->check_replicas);
}

static void add_groups(hvt__items *l, const hvt_optim *o)
{
    for (int i = 0; o->group && i < o->m->nparam_tensors; i++)
        hvt__items_add(l, "group of %s\t%.9g times the rate, weight decay %.9g", o->m->param[i].name,
                       (double)(o->group[i].own ? o->group[i].lr_scale : 1),
                       (double)(o->group[i].own ? o->group[i].weight_decay : o->opts.weight_decay));
}

/* Adds arguments of layers and of the loss that do not show in the tensors. */
static void add_model(hvt__items *l, const hvt_model *m)
{
    static const char *const losses[] = {"cross-entropy", "mean squared error", "binary cross-entropy"};
    const size_t weights = m->class_weights ? (size_t)m->weighted_classes * sizeof *m->class_weights : 0;

    hvt__items_add(l, "loss\t%s, label smoothing %.9g, class weights %016llx", losses[m->loss.kind],
                   (double)m->loss.label_smoothing,
                   (unsigned long long)hvt__hash(HVT_HASH_INIT, m->class_weights, weights));
    hvt__items_add(l, "layers of the model\t%016llx", (unsigned long long)m->tape);
    for (const hvt_layer *a = m->layer; a < m->layer + m->nlayer; a++)
        if (a->ops->training_only)
            hvt__items_add(l, "layer %s\tkeeps its input times %.9g", a->name,
                           (double)a->is.dropout.args.scale);
}

static void add_tensors(hvt__items *l, const hvt_model *m)
{
    for (const hvt_param *p = m->param; p < m->param + m->nparam_tensors; p++) {
        char dims[64] = "";
        int used = 0;

        for (int i = 0; i < p->ndim; i++)
            used += snprintf(dims + used, sizeof dims - (size_t)used, "%s%d", i ? "," : "", p->dim[i]);
        hvt__items_add(l, "tensor %s\t[%s] f32, %zu floats at %zu", p->name, dims, p->count, p->offset);
    }
    for (int i = 0; i < m->nstat; i++)
        hvt__items_add(l, "tensor %s\t[%zu] f32 at %zu", m->stat[i].name, m->stat[i].count,
                       m->stat[i].offset);
}

hvt_status hvt__distopt_agree(const hvt_distopt *d, const hvt_item *items, int n)
{
    const hvt_model *m = d->optim->m;
    uint64_t plan = HVT_HASH_INIT;
    hvt__items all = {0};

    hvt__items_add(&all, "build\thvt %s, %s", hvt_version(), HVT_COMPILER);
    hvt__items_add(&all, "device\t%s, %s", hvt_device_name(m->dev), hvt_device_isa(m->dev));
    for (int i = 0; i < n; i++)
        hvt__items_add(&all, "%s\t%s", items[i].name, items[i].value);
    add_options(&all, d);
    add_groups(&all, d->optim);
    add_model(&all, m);
    add_tensors(&all, m);
    for (int i = 0; i < d->nbucket; i++)
        plan = hvt__hash(plan, &d->bucket[i].end, sizeof d->bucket[i].end);
    hvt__items_add(&all, "buckets\t%d over %zu floats, step statistics %zu, ends' hash %016llx", d->nbucket,
                   m->grad_count, m->step_stats_count, (unsigned long long)plan);
    return hvt__items_compare(&all, d->world);
}
