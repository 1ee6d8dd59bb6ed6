/*
 * example_linear.c - libhvt under a model of your own: a linear one, its gradients written by hand, added
 * over all ranks by one call per step. Works alone and under mpirun, and on 1, 2, 4, ... 64 ranks it prints
 * the same bits: a rank adds its samples' gradients along a binary tree, and the library continues that tree.
 */
#include <hvt/hvt.h>

#include <stdio.h>

#define TRY(call)                                                                                            \
    if ((s = (call)) != HVT_OK)                                                                              \
    goto end

enum { INPUTS = 6, OUTPUTS = 3, BATCH = 64, STEPS = 200 };

/* A model, or its gradients. */
typedef struct linear {
    float w[OUTPUTS][INPUTS], b[OUTPUTS];
    double loss;
} linear;

/* The truth to be learned: y = A x + b with A[o][i] = (o + 1) / (i + 1), b[o] = o - 1. */
static void sample(int number, float x[INPUTS], float y[OUTPUTS])
{
    for (int i = 0; i < INPUTS; i++)
        x[i] = (float)((number * (i + 3) * 37 + i * 11) % 61) / 30.0f - 1.0f;
    for (int o = 0; o < OUTPUTS; o++) {
        y[o] = (float)(o - 1);
        for (int i = 0; i < INPUTS; i++)
            y[o] += (float)(o + 1) / (float)(i + 1) * x[i];
    }
}

/* dm = loss and gradients of m, |W x + b - y|^2 / 2 / BATCH, added over `count` samples from `first` on. */
static void backward(const linear *m, int first, int count, linear *dm)
{
    float x[INPUTS], y[OUTPUTS];
    linear right;

    if (count > 1) {
        backward(m, first, count / 2, dm);
        backward(m, first + count / 2, count - count / 2, &right);
        for (int o = 0; o < OUTPUTS; o++) {
            for (int i = 0; i < INPUTS; i++)
                dm->w[o][i] += right.w[o][i];
            dm->b[o] += right.b[o];
        }
        dm->loss += right.loss;
        return;
    }
    *dm = (linear){.loss = 0};
    if (!count)
        return;
    sample(first, x, y);
    for (int o = 0; o < OUTPUTS; o++) {
        float error = m->b[o] - y[o];

        for (int i = 0; i < INPUTS; i++)
            error += m->w[o][i] * x[i];
        for (int i = 0; i < INPUTS; i++)
            dm->w[o][i] = error * x[i] / BATCH;
        dm->b[o] = error / BATCH;
        dm->loss += (double)error * (double)error / 2 / BATCH;
    }
}

int main(void)
{
    hvt_world *world = NULL;
    hvt_device *dev = NULL;
    hvt_comm *comm = NULL;
    hvt_fuse *gradients = NULL;
    hvt_status s;
    linear m = {.loss = 0}, dm;

    TRY(hvt_world_open(NULL, &world));
    TRY(hvt_device_open("cpu", NULL, &dev));
    TRY(hvt_comm_open("auto", world, dev, &comm));
    int rank = hvt_world_rank(world), size = hvt_world_size(world);

    /* all start from rank 0's weights */
    TRY(hvt_broadcast(comm, m.w, OUTPUTS * INPUTS, HVT_F32, 0, NULL));
    TRY(hvt_broadcast(comm, m.b, OUTPUTS, HVT_F32, 0, NULL));

    /* register the gradients once, in the order in which they are finished */
    hvt_piece pieces[] = {{.name = "weight", .data = dm.w, .count = OUTPUTS * INPUTS},
                          {.name = "bias", .data = dm.b, .count = OUTPUTS}};
    TRY(hvt_fuse_create(comm, pieces, 2, 1 << 20, HVT_SUM, &gradients));

    for (int step = 0; step < STEPS; step++) {
        int first = BATCH * rank / size,
            end = BATCH * (rank + 1) / size; /* this rank's samples of the step */

        backward(&m, step * BATCH + first, end - first, &dm);
        TRY(hvt_fuse_exchange(gradients)); /* dm.w and dm.b are now of all samples, on every rank */
        for (int o = 0; o < OUTPUTS; o++) {
            for (int i = 0; i < INPUTS; i++)
                m.w[o][i] -= 0.3f * dm.w[o][i];
            m.b[o] -= 0.3f * dm.b[o];
        }
    }
    TRY(hvt_allreduce(comm, NULL, &dm.loss, 1, HVT_F64, HVT_SUM, NULL, NULL));
    for (int o = 0; o < OUTPUTS && rank == 0; o++)
        printf("y%d = %.9g x0 + ... + %.9g x%d + %.9g, loss %.17g\n", o, (double)m.w[o][0],
               (double)m.w[o][INPUTS - 1], INPUTS - 1, (double)m.b[o], dm.loss);

end:
    if (s != HVT_OK) {
        bool agreed = hvt_last_error_is_agreed(); /* every rank has it: one prints */
        if (!agreed || hvt_world_rank(world) == 0)
            fprintf(stderr, "example_linear: %s\n", hvt_last_error());
        if (!agreed && world)
            hvt_world_abort(world, 1); /* the others may be waiting for us */
    }
    hvt_fuse_free(&gradients);
    hvt_comm_close(&comm);
    hvt_device_close(&dev);
    hvt_world_close(&world);
    return s == HVT_OK ? 0 : 1;
}
