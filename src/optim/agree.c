/*
 * What every rank must have alike before the first step, as a list of items for hvt_world_compare().
 *
 * Order matters, for the first difference is the one that is named: causes come before what follows from them
 * (build and device, the caller's options, ours, then tensors and buckets).
 */
#include "optim_impl.h"
#include "base_impl.h"
#include "config.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct list {
    hvt_item *item;                     /* NULL: only counted */
    char (*text)[2][HVT_NAME_MAX + 64]; /* name and value of the items that are made here */
    int n, texts;
} list;

static void put(list *l, const char *name, const char *fmt, ...) HVT_PRINTF(3, 4);

static void put(list *l, const char *name, const char *fmt, ...)
{
    char(*t)[HVT_NAME_MAX + 64];
    va_list ap;

    l->n++;
    l->texts++;
    if (!l->item)
        return;
    t = l->text[l->texts - 1];
    va_start(ap, fmt);
    snprintf(t[0], sizeof t[0], "%s", name);
    vsnprintf(t[1], sizeof t[1], fmt, ap);
    va_end(ap);
    l->item[l->n - 1] = (hvt_item){t[0], t[1]};
}

static void put_param(list *l, const hvt_param *p)
{
    char name[HVT_NAME_MAX + 8], dims[64] = "";
    int used = 0;

    snprintf(name, sizeof name, "tensor %s", p->name);
    for (int i = 0; i < p->ndim; i++)
        used += snprintf(dims + used, sizeof dims - (size_t)used, "%s%d", i ? "," : "", p->dim[i]);
    put(l, name, "[%s] f32, %zu floats at %zu", dims, p->count, p->offset);
}

static void put_all(list *l, const hvt_optim *o, const hvt_distopt_opts *opts, const hvt_bucket *bucket,
                    int nbucket, const hvt_item *items, int n)
{
    const hvt_model *m = o->m;
    uint64_t plan = HVT_HASH_INIT;

    put(l, "build", "hvt %s, %s", hvt_version(), HVT_COMPILER);
    put(l, "device", "%s, %s", hvt_device_name(m->dev), hvt_device_isa(m->dev));
    for (int i = 0; i < n; i++, l->n++)
        if (l->item)
            l->item[l->n] = items[i];
    put(l, "optimizer", "%s", o->ops->name);
    put(l, "momentum", "%.9g", (double)o->opts.momentum);
    put(l, "dampening", "%.9g", (double)o->opts.dampening);
    put(l, "weight decay", "%.9g", (double)o->opts.weight_decay);
    put(l, "nesterov", "%s", o->opts.nesterov ? "on" : "off");
    put(l, "no decay", "norm %s, bias %s", o->opts.no_decay_norm ? "yes" : "no",
        o->opts.no_decay_bias ? "yes" : "no");
    put(l, "shards per rank", "%d", opts->local_shards);
    if (opts->powersgd) {
        put(l, "wire", "powersgd:%d", opts->powersgd);
        put(l, "PowerSGD's seed", "%llu", (unsigned long long)opts->seed);
    } else {
        put(l, "wire", "%s", hvt_dtype_name(opts->wire));
    }
    put(l, "update", "%s", opts->update == HVT_UPDATE_SHARDED ? "sharded" : "replicated");
    put(l, "activations", "%s", hvt_dtype_name(m->type));
    put(l, "loss scale", "%.17g, at least %.17g, doubled after %d", opts->scaling.scale, opts->scaling.floor,
        opts->scaling.interval);
    put(l, "bucket bytes", "%zu", opts->bucket_bytes);
    put(l, "first bucket's bytes", "%zu", opts->first_bytes);
    put(l, "updates between replica checks", "%d", opts->replica_check);
    for (int i = 0; i < m->nparam_tensors; i++)
        put_param(l, &m->param[i]);
    for (int i = 0; i < m->nstat; i++) {
        char name[HVT_NAME_MAX + 8];

        snprintf(name, sizeof name, "tensor %s", m->stat[i].name);
        put(l, name, "[%zu] f32 at %zu", m->stat[i].count, m->stat[i].offset);
    }
    for (int i = 0; i < nbucket; i++)
        plan = hvt__hash(plan, &bucket[i].end, sizeof bucket[i].end);
    put(l, "buckets", "%d over %zu floats, rider %zu, ends' hash %016llx", nbucket, m->arena_count,
        m->step_stats_count, (unsigned long long)plan);
}

hvt_status hvt__distopt_agree(const hvt_optim *o, hvt_world *world, const hvt_distopt_opts *opts,
                              const hvt_bucket *bucket, int nbucket, const hvt_item *items, int n)
{
    list all = {.item = NULL}, l = all;
    hvt_status s = HVT_OK;

    put_all(&all, o, opts, bucket, nbucket, items, n);
    l.item = malloc((size_t)all.n * sizeof *l.item);
    l.text = malloc((size_t)all.texts * sizeof *l.text);
    if (!l.item || !l.text)
        s = HVT_FAIL(E_MEM, "no memory to compare %d items with the other ranks", all.n);
    HVT_TRY_OR(done, hvt_world_agree(world, s));
    put_all(&l, o, opts, bucket, nbucket, items, n);
    HVT_TRY_OR(done, hvt_world_compare(world, l.item, l.n));
done:
    free(l.item);
    free(l.text);
    return s;
}
