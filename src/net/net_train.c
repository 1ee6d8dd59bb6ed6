/* A net's updates and its inference. */
#include "net_impl.h"
#include "base_impl.h"

/* The arguments that ranks compare. */
typedef struct argument {
    int64_t count, type, layout, epochs;
} argument;

static hvt_status compare(hvt_world *w, const argument *all)
{
    static const char *const layouts[] = {[HVT_NHWC] = "NHWC", [HVT_NCHW] = "NCHW", [HVT_WHCN] = "WHCN"};

    for (int r = 1; r < hvt_world_size(w); r++) {
        HVT_CHECK(all[r].type == all[0].type, E_MISMATCH, "images are %s on rank 0 and %s on rank %d",
                  hvt_dtype_name((hvt_dtype)all[0].type), hvt_dtype_name((hvt_dtype)all[r].type), r);
        HVT_CHECK(all[r].layout == all[0].layout, E_MISMATCH, "the layout is %s on rank 0 and %s on rank %d",
                  layouts[all[0].layout], layouts[all[r].layout], r);
        HVT_CHECK(all[r].epochs == all[0].epochs, E_MISMATCH, "epochs are %d on rank 0 and %d on rank %d",
                  (int)all[0].epochs, (int)all[r].epochs, r);
    }
    return HVT_OK;
}

/* Shares the numbers of images, and refuses arguments that do not fit together. Collective. */
static hvt_status share(const hvt_net *net, const argument *mine, hvt__net_images *all)
{
    hvt_world *w = net->has.world;
    int size = hvt_world_size(w);
    argument *of = calloc((size_t)size, sizeof *of);
    hvt_status s;

    all->first = calloc((size_t)size + 1, sizeof *all->first);
    s = of && all->first ? HVT_OK : HVT_FAIL(E_MEM, "no memory for the arguments of %d ranks", size);
    HVT_TRY_OR(done, hvt_world_agree(w, s));
    HVT_TRY_OR(done, hvt_world_allgather(w, mine, sizeof *mine, of));
    HVT_TRY_OR(done, hvt_world_agree(w, compare(w, of)));
    for (int r = 0; r < size; r++)
        all->first[r + 1] = all->first[r] + of[r].count;
    s = all->first[size] > 0 && all->first[size] <= INT_MAX
            ? HVT_OK
            : HVT_FAIL(E_ARG, "%lld images on all ranks together, expected 1 to 2^31 - 1",
                       (long long)all->first[size]);
    HVT_TRY_OR(done, hvt_world_agree(w, s));
done:
    free(of);
    return s;
}

/* Runs forward and backward for this rank's shards, one after the other. */
static hvt_status passes(hvt_net *net, const hvt__net_images *all, const hvt__net_rows *rows)
{
    hvt_model *m = net->has.model;
    int me = hvt_world_rank(net->has.world);
    bool labels = !hvt_loss_has_targets(net->opts.loss.kind);
    size_t at = 0;

    for (int i = net->first_of[me]; i < net->first_of[me + 1]; i++) {
        const void *targets = rows->targets + at * all->goal;
        hvt_batch b;

        HVT_TRY(hvt_batch_set(m,
                              &(hvt_arrays){.count = net->counts[i],
                                            .images = rows->images + at * all->row,
                                            .type = all->data->type,
                                            .nchw = all->data->layout != HVT_NHWC,
                                            .labels = labels ? targets : NULL,
                                            .targets = labels ? NULL : targets},
                              &b));
        b.shard = i;
        b.shards = net->shards;
        b.shard_counts = net->counts;
        HVT_TRY(hvt_model_forward(m, &b, true));
        HVT_TRY(hvt_model_backward(m, hvt_distopt_on_grad, net->has.dist));
        at += (size_t)net->counts[i];
    }
    return HVT_OK;
}

static hvt_status check_shards(const hvt_net *net)
{
    int least = hvt_model_least(net->has.model);

    for (int i = 0; i < net->used; i++)
        HVT_CHECK(
            net->counts[i] >= least, E_ARG,
            "a shard of %d image%s, but this model's batch norm needs %d: give more images, or a larger "
            "shard",
            net->counts[i], net->counts[i] == 1 ? "" : "s", least);
    return HVT_OK;
}

/* Makes an update with positions [at, at + n) of the epoch. */
static hvt_status update(hvt_net *net, const hvt__net_images *all, int64_t at, int64_t n, hvt_loss *ret_loss)
{
    hvt__net_rows rows = {0};
    hvt_status s;

    HVT_TRY(hvt__net_divide(net, n));
    HVT_TRY(hvt_world_agree(net->has.world, check_shards(net)));
    HVT_TRY_OR(done, hvt__net_bring(net, all, at, n, &rows));
    HVT_TRY_OR(done, hvt_distopt_begin(net->has.dist, net->counts, net->shards, net->opts.lr));
    s = hvt_world_agree(net->has.world, passes(net, all, &rows));
    if (s) {
        hvt__error why;

        hvt__error_take(&why);
        hvt_distopt_abandon(net->has.dist);
        hvt__error_put(&why);
        goto done;
    }
    HVT_TRY_OR(done, hvt_distopt_step(net->has.dist));
    HVT_TRY_OR(done, hvt_distopt_check(net->has.dist));
    HVT_TRY_OR(done, hvt_model_take_loss(net->has.model, ret_loss));
    net->updates++;
done:
    free(rows.memory);
    return s;
}

static void add(hvt_loss *sum, const hvt_loss *l)
{
    sum->sum += l->sum;
    sum->top1 += l->top1;
    sum->top5 += l->top5;
    sum->count += l->count;
    sum->error += l->error;
}

static hvt_status train(hvt_net *net, hvt__net_images *all, int epochs, hvt_loss *ret_loss)
{
    int64_t count = all->first[hvt_world_size(net->has.world)];
    int64_t batch = net->opts.batch && net->opts.batch < count ? net->opts.batch : count;
    hvt_status s = HVT_OK;

    if (batch < count) {
        all->order = malloc((size_t)count * sizeof *all->order);
        s = all->order ? HVT_OK : HVT_FAIL(E_MEM, "no memory for the order of %lld images", (long long)count);
    }
    HVT_TRY(hvt_world_agree(net->has.world, s));
    for (int e = 0; e < epochs; e++) {
        *ret_loss = (hvt_loss){0};
        if (all->order)
            hvt_sampler_permutation(net->opts.seed, (int)net->epochs, (uint32_t)count, all->order);
        net->epochs++;
        for (int64_t at = 0; at < count; at += batch) {
            int64_t n = count - at < batch ? count - at : batch;
            hvt_loss l;

            HVT_TRY(update(net, all, at, n, &l));
            add(ret_loss, &l);
            if (net->opts.progress)
                net->opts.progress(net->opts.ctx, &(hvt_net_progress){net->updates, e + 1,
                                                                      l.sum / (double)l.count, l.count});
        }
    }
    return HVT_OK;
}

hvt_status hvt_net_train(hvt_net *net, const hvt_net_data *data, int epochs, hvt_loss *ret_loss)
{
    HVT_GIVEN(net, "a net");
    HVT_TRY(hvt__net_begin(net, HVT__NET_TRAIN));

    hvt__net_images all = {.data = data, .goal = sizeof(float)};
    hvt_loss loss;
    hvt_status s = hvt__net_convert(net, data, &all.targets);

    if (!s && epochs < 1)
        s = HVT_FAIL(E_ARG, "%d epochs, expected 1 or more", epochs);
    HVT_TRY_OR(done, hvt_world_agree(net->has.world, s));
    all.row = net->pixels * hvt_dtype_size(data->type);
    all.goal *=
        !hvt_loss_has_targets(net->opts.loss.kind) ? (size_t)net->has.labels : (size_t)net->has.outputs;
    HVT_TRY_OR(done, share(net, &(argument){data->count, data->type, data->layout, epochs}, &all));
    HVT_TRY_OR(done, train(net, &all, epochs, ret_loss ? ret_loss : &loss));
done:
    free(all.targets);
    free(all.first);
    free(all.order);
    return s;
}

/* Computes the logits of n images from `first` on, in ret. */
static hvt_status infer(hvt_net *net, const hvt_net_data *data, size_t first, int n, float *ret)
{
    size_t row = net->pixels * hvt_dtype_size(data->type);
    hvt_batch b;

    HVT_TRY(hvt_batch_set(net->has.model,
                          &(hvt_arrays){.count = n,
                                        .images = (const char *)data->images + first * row,
                                        .type = data->type,
                                        .nchw = data->layout != HVT_NHWC},
                          &b));
    HVT_TRY(hvt_model_forward(net->has.model, &b, false));
    return hvt_model_logits(net->has.model, ret);
}

hvt_status hvt_net_infer(hvt_net *net, const hvt_net_data *data, void *ret_outputs, hvt_dtype ret_type)
{
    HVT_GIVEN(net, "a net");
    HVT_TRY(hvt__net_check_images(net, data));
    HVT_CHECK(ret_outputs || !data->count, E_ARG, "hvt_net_infer() needs an output array, but got NULL");
    HVT_CHECK(ret_type == HVT_F32 || ret_type == HVT_F64 || ret_type == HVT_F16 || ret_type == HVT_BF16,
              E_ARG, "outputs are to be %s, expected f16, bf16, f32 or f64", hvt_dtype_name(ret_type));

    size_t most = (size_t)net->opts.shard * (size_t)net->has.outputs;
    float *room = ret_type == HVT_F32 ? NULL : malloc(most * sizeof *room);
    hvt_status s = HVT_OK;

    HVT_CHECK(room || ret_type == HVT_F32, E_MEM, "no memory for %zu outputs", most);
    for (int64_t at = 0; at < data->count; at += net->opts.shard) {
        int n = (int)(data->count - at < net->opts.shard ? data->count - at : net->opts.shard);
        size_t done = (size_t)at * (size_t)net->has.outputs;
        float *to = room ? room : (float *)ret_outputs + done;

        HVT_TRY_OR(end, infer(net, data, (size_t)at, n, to));
        if (room)
            hvt__net_store(room, (size_t)n * (size_t)net->has.outputs, ret_type,
                           (char *)ret_outputs + done * hvt_dtype_size(ret_type));
    }
end:
    free(room);
    return s;
}
