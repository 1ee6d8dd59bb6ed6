/* A solver of the heat equation trains a network on its own fields, distributed over the ranks: from a field
 * the network predicts the energy ten time steps later. docs/library.md contains this file. */
#include <hvt/hvt.h>
#include <mpi.h>
#include <stdio.h>
#include <string.h>

enum { FIELDS = 60, N = 8 };
static double u[FIELDS][N][N], before[FIELDS][N][N], energy[FIELDS];

static hvt_value surrogate(void *ctx, hvt_model *m, hvt_value field)
{
    hvt_value x = hvt_relu(m, hvt_conv2d(m, field, 8, 3, 1, 1));
    return hvt_linear(m, hvt_flatten(m, x), 1);
}

static void advance(double f[N][N])
{
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++)
            f[i][j] += 0.2 * (f[i + 1][j] + f[i - 1][j] + f[i][j + 1] + f[i][j - 1] - 4 * f[i][j]);
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    int rank, size;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int first = FIELDS * rank / size, mine = FIELDS * (rank + 1) / size - first;
    hvt_net_opts opts = {.height = N, .width = N, .channels = 1, .outputs = 1, .shard = 10};
    hvt_net_data data = {mine, before, HVT_F64, HVT_NHWC, energy, HVT_F64};
    hvt_net *net = NULL;
    hvt_loss loss;
    opts.loss.kind = HVT_LOSS_MSE, opts.lr = 0.005;
    opts.build = surrogate;
    hvt_status s = hvt_net_open(NULL, &opts, &comm, &net);
    for (int i = 0; i < mine * N * N; i++)
        ((double *)u)[i] = (first * N * N + i) * 7919 % 1000 / 1000.0;
    for (int t = 0; t <= 100 && s == HVT_OK; t++) {
        if (t % 10 == 0) {
            memset(energy, 0, sizeof energy);
            for (int i = 0; i < mine * N * N; i++)
                energy[i / N / N] += ((double *)u)[i] * ((double *)u)[i] / N / N;
            if (t > 0)
                s = hvt_net_train(net, &data, 10, &loss); /* ten updates with the fields of all ranks */
            memcpy(before, u, sizeof u);
        }
        for (int n = 0; n < mine; n++)
            advance(u[n]);
    }
    if (s == HVT_OK && (s = hvt_net_save(net, "surrogate")) == HVT_OK && rank == 0)
        printf("mean squared error %.9f\n", loss.sum / (double)loss.count);
    if (s != HVT_OK)
        fprintf(stderr, "rank %d: %s\n", rank, hvt_last_error());
    hvt_net_close(&net);
    MPI_Finalize();
    return s != HVT_OK;
}
