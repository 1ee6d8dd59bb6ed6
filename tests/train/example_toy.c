/*
 * PyTorch's tutorial of DistributedDataParallel: the ToyModel, 10-10-ReLU-5, is trained on random numbers
 * with the mean squared error, on as many ranks as mpirun starts. docs/library.md contains this file.
 */
#include <hvt/hvt.h>

#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 20, INPUTS = 10, OUTPUTS = 5, STEPS = 40 };
static float x[BATCH * INPUTS], y[BATCH * OUTPUTS];

static hvt_value toy(hvt_model *m)
{
    hvt_value hidden = hvt_relu(m, hvt_linear(m, hvt_input(m, 1, 1, INPUTS), 10));
    return hvt_linear(m, hidden, OUTPUTS);
}

static hvt_status train(hvt_model *m, hvt_distopt *ddp, const int *counts, int ranks)
{
    const hvt_arrays data = {.count = BATCH, .images = x, .type = HVT_F32, .targets = y};
    hvt_batch batch;
    hvt_status s = hvt_batch_set(m, &data, &batch);

    for (int step = 0; s == HVT_OK && step < STEPS; step++)
        if (!(s = hvt_distopt_begin(ddp, counts, ranks, 0.1)) && !(s = hvt_model_forward(m, &batch, true)) &&
            !(s = hvt_model_backward(m, hvt_distopt_on_grad, ddp)))
            s = hvt_distopt_step(ddp);
    return s;
}

int main(void)
{
    hvt_world *world = NULL;
    hvt_device *dev = NULL;
    hvt_comm *comm = NULL;
    hvt_model *m = NULL;
    hvt_optim *sgd = NULL;
    hvt_distopt *ddp = NULL;
    hvt_loss loss;
    int counts[64];

    for (int i = 0; i < 64; i++)
        counts[i] = BATCH; /* images of each rank */
    if (hvt_world_open(NULL, &world) || hvt_device_open("cpu", NULL, &dev) ||
        hvt_comm_open("auto", world, dev, &comm) || hvt_model_create(dev, &m) ||
        hvt_model_set_loss(m, &(hvt_loss_opts){.kind = HVT_LOSS_MSE}) || hvt_model_plan(m, BATCH, toy(m)) ||
        hvt_model_init(m, 0) || hvt_optim_create(m, &(hvt_optim_opts){0}, &sgd) ||
        hvt_distopt_create(sgd, comm, &(hvt_distopt_opts){.local_shards = 1}, NULL, 0, &ddp))
        goto failed;
    srand((unsigned)hvt_world_rank(world) + 1);
    for (int i = 0; i < BATCH * INPUTS; i++)
        x[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    for (int i = 0; i < BATCH * OUTPUTS; i++)
        y[i] = (float)rand() / (float)RAND_MAX - 0.5f;
    if (train(m, ddp, counts, hvt_world_size(world)) || hvt_model_take_loss(m, &loss))
        goto failed;
    if (hvt_world_rank(world) == 0)
        printf("mean squared error over %d steps: %.4f\n", STEPS, loss.sum / (double)loss.count);
    hvt_distopt_free(&ddp);
    hvt_optim_free(&sgd);
    hvt_model_free(&m);
    hvt_comm_close(&comm);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return 0;
failed:
    fprintf(stderr, "%s\n", hvt_last_error());
    if (world && !hvt_last_error_is_agreed())
        hvt_world_abort(world, 1);
    return 1;
}
