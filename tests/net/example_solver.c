/* A solver of the heat equation trains a U-Net on its own fields, distributed over the ranks: from a field
 * the network predicts the field ten time steps later. Arguments: the step at which an earlier run was saved,
 * and the last step. unet.py makes the network. docs/library.md contains both files. */
#include <hvt/hvt.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 30, N = 32 };
static double u[FIELDS][N][N], before[FIELDS][N][N];

static void advance(double f[N][N])
{
    double old[N][N];
    memcpy(old, f, sizeof old);
    for (int i = 1; i < N - 1; i++)
        for (int j = 1; j < N - 1; j++)
            f[i][j] += 0.2 * (old[i + 1][j] + old[i - 1][j] + old[i][j + 1] + old[i][j - 1] - 4 * old[i][j]);
}

int main(int argc, char **argv)
{
    MPI_Comm comm = MPI_COMM_WORLD;
    int rank, size, begin = argc > 1 ? atoi(argv[1]) : 0, end = argc > 2 ? atoi(argv[2]) : 100;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    int first = FIELDS * rank / size, mine = FIELDS * (rank + 1) / size - first;
    hvt_net_opts opts = {.optim = {HVT_ADAM_DEFAULTS, .kind = HVT_OPTIM_ADAM}, .lr = 0.001, .shard = 6};
    hvt_net_data data = {mine, before, HVT_F64, HVT_NHWC, u, HVT_F64};
    hvt_net *net = NULL;
    hvt_loss loss = {0};
    opts.loss.kind = HVT_LOSS_MSE;
    hvt_status s = hvt_net_open("unet.pt2", &opts, &comm, &net);
    if (s == HVT_OK && begin > 0)
        s = hvt_net_load(net, "surrogate");
    for (int i = 0; i < mine * N * N; i++)
        ((double *)u)[i] = (first * N * N + i) * 7919 % 1000 / 1000.0;
    for (int t = 0; t <= end && s == HVT_OK; t++) {
        if (t % 10 == 0) {
            if (t > begin)
                s = hvt_net_train(net, &data, 1, &loss); /* an update with the fields of all ranks */
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
