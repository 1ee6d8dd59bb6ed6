/*
 * PyTorch's tutorial of model parallelism: the ToyModel, 10-10-ReLU-5, with one layer on each of two devices.
 * Each device has a thread. docs/library.md contains this file.
 */
#include <hvt/hvt.h>

#include <stdio.h>

enum { BATCH = 20, STEPS = 40 };

static hvt_status plan_on_two_devices(hvt_model *m, hvt_device *const dev[2])
{
    hvt_value x = hvt_input(m, 1, 1, 10);

    hvt_name(m, "net1");
    x = hvt_relu(m, hvt_linear(m, x, 10));
    hvt_name(m, "net2");
    x = hvt_linear(m, x, 5);
    hvt_status s = hvt_model_split(m, &(hvt_split_opts){.devices = dev, .count = 2, .at = "net2"});
    return s ? s : hvt_model_plan(m, BATCH, x);
}

int main(void)
{
    static float x[BATCH * 10], y[BATCH * 5];
    const hvt_arrays data = {.count = BATCH, .images = x, .type = HVT_F32, .targets = y};
    hvt_world *world = NULL;
    hvt_device *dev[2] = {NULL, NULL};
    hvt_comm *comm = NULL;
    hvt_model *m = NULL;
    hvt_optim *sgd = NULL;
    hvt_distopt *dist = NULL;
    hvt_batch batch;
    hvt_loss loss;

    for (int i = 0; i < BATCH * 10; i++)
        x[i] = (float)(i % 7) / 7 - 0.5f;
    for (int i = 0; i < BATCH * 5; i++)
        y[i] = (float)(i % 3) / 3 - 0.5f;
    if (hvt_world_open("singleton", &world) || hvt_device_open("cpu", NULL, &dev[0]) ||
        hvt_device_open("cpu", NULL, &dev[1]) || hvt_comm_open("auto", world, dev[0], &comm) ||
        hvt_model_create(dev[0], &m) || hvt_model_set_loss(m, &(hvt_loss_opts){.kind = HVT_LOSS_MSE}) ||
        plan_on_two_devices(m, dev) || hvt_model_init(m, 0) ||
        hvt_optim_create(m, &(hvt_optim_opts){0}, &sgd) ||
        hvt_distopt_create(sgd, comm, &(hvt_distopt_opts){.local_shards = 1}, NULL, 0, &dist) ||
        hvt_batch_set(m, &data, &batch))
        goto failed;
    for (int step = 0; step < STEPS; step++)
        if (hvt_distopt_begin(dist, (int[]){BATCH}, 1, 0.1) || hvt_model_forward(m, &batch, true) ||
            hvt_model_backward(m, hvt_distopt_on_grad, dist) || hvt_distopt_step(dist))
            goto failed;
    if (hvt_model_take_loss(m, &loss))
        goto failed;
    printf("mean squared error over %d steps: %.4f\n", STEPS, loss.sum / (double)loss.count);
    hvt_distopt_free(&dist);
    hvt_optim_free(&sgd);
    hvt_model_free(&m);
    hvt_comm_close(&comm);
    hvt_device_close(&dev[1]);
    hvt_device_close(&dev[0]);
    hvt_world_close(&world);
    return 0;
failed:
    fprintf(stderr, "%s\n", hvt_last_error());
    return 1;
}
