/* PyTorch's tutorial of model parallelism: the ToyModel, 10-10-ReLU-5, a layer on each of two devices. */
#include <hvt/hvt.h>
#include <stdio.h>

static hvt_value toy(void *ctx, hvt_model *m, hvt_value x)
{
    x = hvt_relu(m, hvt_linear(m, x, 10)); /* net1 */
    hvt_name(m, "net2");
    return hvt_linear(m, x, 5);
}

int main(void)
{
    float x[20][10] = {{1, 2}, {3, 4}}, y[20][5] = {{1}, {2}}; /* 20 samples; the rest is 0 */
    hvt_net_opts opts = {.height = 1, .width = 1, .channels = 10, .outputs = 5, .build = toy, .lr = 0.001};
    hvt_net_data data = {.count = 20, .images = x, .type = HVT_F32, .targets = y, .target_type = HVT_F32};
    hvt_net *net = NULL;
    hvt_loss loss;

    opts.loss.kind = HVT_LOSS_MSE;
    opts.devices = 2, opts.split_at = "net2"; /* net2 begins the second one */
    if (hvt_net_open(NULL, &opts, NULL, &net) || hvt_net_train(net, &data, 40, &loss))
        return puts(hvt_last_error()), 1;
    printf("mean squared error after 40 steps: %.4f\n", loss.sum / (double)loss.count);
    hvt_net_close(&net);
}
