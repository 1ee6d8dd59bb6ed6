/*
 * A training loop on libhvt: a model built layer by layer, a wrapped optimizer, gradients summed over the
 * ranks. It runs alone and under mpirun. docs/library.md contains this file.
 */
#include <hvt/hvt.h>

#include <stdio.h>

#define TRY(call)                                                                                            \
    if ((s = (call)) != HVT_OK)                                                                              \
    goto end

static hvt_value small_net(hvt_model *m)
{
    hvt_value x = hvt_input(m, 32, 32, 3);

    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 16, 3, 1, 1)));
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 32, 3, 2, 1)));
    x = hvt_relu(m, hvt_batchnorm(m, hvt_conv2d(m, x, 64, 3, 2, 1)));
    return hvt_linear(m, hvt_avgpool(m, x), 10);
}

int main(void)
{
    hvt_world *world = NULL;
    hvt_device *dev = NULL;
    hvt_comm *comm = NULL;
    hvt_dataset *set = NULL;
    hvt_loader *loader = NULL;
    hvt_model *model = NULL;
    hvt_optim *sgd = NULL;
    hvt_distopt *dist = NULL;
    hvt_status s;

    /* rank and size, the cores of this rank, the device, the gradient exchange */
    TRY(hvt_world_open(NULL, &world));
    hvt_cores cores;
    TRY(hvt_world_cores(world, 0, &cores));
    hvt_device_opts place = {
        .threads = cores.threads, .cpus = cores.cpus, .ncpus = cores.ncpus, .yield = cores.crowded};
    TRY(hvt_device_open("cpu", &place, &dev));
    TRY(hvt_comm_open("auto", world, dev, &comm));

    /* the model; hvt_model_plan() reports mistakes of the calls that built it */
    TRY(hvt_model_create(dev, &model));
    TRY(hvt_model_plan(model, 64, small_net(model)));
    TRY(hvt_model_init(model, 0));

    /* wrap the optimizer, and start from rank 0's weights on all ranks */
    hvt_optim_opts momentum = {.momentum = 0.9f};
    TRY(hvt_optim_create(model, &momentum, &sgd));
    hvt_distopt_opts exchange = {.bucket_bytes = HVT_BUCKET_DEFAULT, .wire = HVT_F32, .local_shards = 1};
    TRY(hvt_distopt_create(sgd, comm, &exchange, NULL, 0, &dist));
    TRY(hvt_distopt_broadcast(dist, 0));

    /* each rank loads its shard of every batch */
    hvt_dataset_opts drawn = {.train = true, .samples = 2000};
    TRY(hvt_dataset_open("synth", &drawn, &set));
    hvt_loader_opts reading = {.batch = 64,
                               .shards = hvt_world_size(world),
                               .first_shard = hvt_world_rank(world),
                               .shard_count = 1,
                               .shuffle = true,
                               .mean = {0.5f, 0.5f, 0.5f},
                               .std = {0.5f, 0.5f, 0.5f},
                               .order = hvt_model_order(model)};
    TRY(hvt_loader_open(set, dev, &reading, &loader));

    for (int epoch = 0; epoch < 3; epoch++) {
        hvt_batch batch;
        hvt_loss loss;
        bool last = false;

        TRY(hvt_loader_rewind(loader, epoch, 0));
        for (;;) {
            TRY(hvt_loader_next(loader, &batch, &last));
            if (last)
                break;
            TRY(hvt_distopt_begin(dist, batch.shard_counts, batch.shards, 0.05));
            TRY(hvt_model_forward(model, &batch, true));
            TRY(hvt_model_backward(model, hvt_distopt_on_grad, dist));
            TRY(hvt_distopt_step(dist));
        }
        TRY(hvt_model_take_loss(model, &loss)); /* already summed over all ranks */
        if (hvt_world_rank(world) == 0)
            printf("epoch %d: loss %.4f, top-1 %.1f %%\n", epoch + 1, loss.sum / (double)loss.count,
                   100.0 * (double)loss.top1 / (double)loss.count);
    }

end:
    if (s != HVT_OK) {
        bool agreed = hvt_last_error_is_agreed(); /* all ranks have this error, so one prints it */
        if (!agreed || hvt_world_rank(world) == 0)
            fprintf(stderr, "example: %s\n", hvt_last_error());
        if (!agreed && world)
            hvt_world_abort(world, 1); /* other ranks may be waiting for this one */
    }
    hvt_loader_close(&loader);
    hvt_dataset_close(&set);
    hvt_distopt_free(&dist);
    hvt_optim_free(&sgd);
    hvt_model_free(&model);
    hvt_comm_close(&comm);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return s == HVT_OK ? 0 : 1;
}
