/* The optimizer of a run, its schedule, and the distributed optimizer. */
#include "train/setup/setup.h"
#include "base_impl.h"

#include <inttypes.h>

hvt_status hvt__open_schedule(const run *t, int epochs, hvt_schedule **ret_schedule)
{
    const hvt_options *o = t->opts;
    hvt_schedule_opts rate = {hvt__schedule_by_time(o), t->set.lr,      epochs,
                              o->warmup_epochs,         o->warmup_from, !strcmp(o->schedule_by, "epoch")};

    return hvt_schedule_create(&rate, ret_schedule);
}

static hvt_status open_groups(const run *t)
{
    const char *at = t->opts->group_lr;
    char prefix[HVT_GROUP_PREFIX];
    double x;

    while (hvt__next_group_lr(&at, prefix, &x)) {
        hvt_status s = hvt_optim_group(t->optim, prefix, x, t->opts->weight_decay);

        if (s)
            return hvt__fail(s, __FILE__, __LINE__, "--group-lr %s: %s", t->opts->group_lr, hvt_last_error());
    }
    return HVT_OK;
}

/* Opens the optimizer and the schedule. An evaluation's optimizer has nothing to update, and no state. */
hvt_status hvt__open_optim(run *t)
{
    const hvt_optim_opts none = {.kind = HVT_OPTIM_SGD};

    HVT_TRY(hvt_optim_create(t->model, t->opts->evaluate ? &none : &t->set.optim, &t->optim));
    if (!t->opts->evaluate)
        HVT_TRY(open_groups(t));
    return hvt__open_schedule(t, t->opts->epochs, &t->schedule);
}

/* Opens the distributed optimizer. Ranks compare the items, besides options, tensors and buckets. */
hvt_status hvt__open_distopt(run *t)
{
    hvt_distopt_opts opts = {.bucket_bytes = t->opts->bucket,
                             .first_bytes = t->set.first_bucket,
                             .wire = t->set.wire,
                             .powersgd = t->set.powersgd,
                             .adasum = t->set.adasum,
                             .seed = (uint64_t)t->opts->seed,
                             .check_replicas = t->opts->check_replicas,
                             .update = t->set.update,
                             .local_shards = t->first_of[t->rank + 1] - t->first_of[t->rank],
                             .clip_norm = t->opts->clip_grad_norm,
                             .sync_batchnorm = t->opts->sync_bn && !t->opts->evaluate,
                             .scaling = t->set.scaling};
    const hvt_dataset_info *train = t->train_set ? hvt_dataset_describe(t->train_set) : NULL;
    const hvt_dataset_info *test = hvt_dataset_describe(t->test_set);
    char train_text[64] = "none", test_text[64];
    const char *why;
    const hvt_item items[] = {{"device", hvt_device_name(t->dev)},
                              {"instruction set", hvt_device_isa(t->dev)},
                              {"training images and their labels", train_text},
                              {"test images and their labels", test_text}};

    if (train)
        snprintf(train_text, sizeof train_text, "%u, %016" PRIx64, train->count, train->fingerprint);
    snprintf(test_text, sizeof test_text, "%u, %016" PRIx64, test->count, test->fingerprint);
    HVT_TRY(hvt_distopt_create(t->optim, t->comm, &opts, items, HVT_LEN(items), &t->dist));
    why = hvt_distopt_uncapturable(t->dist);
    HVT_CHECK(!why || strcmp(t->opts->graph, "on"), E_UNSUPPORTED, "--graph on: %s", why);
    t->record = !why && strcmp(t->opts->graph, "off");
    return HVT_OK;
}
