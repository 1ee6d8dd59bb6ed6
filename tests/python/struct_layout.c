/* struct_layout.c: the sizes of structs, and where their members lie, for the Python package's copies of
 * them. */
#include "hvt/hvt.h"

#include <stdio.h>

#define SIZE(type)       printf(#type " %zu\n", sizeof(type));
#define AT(type, member) printf(#type "." #member " %zu\n", offsetof(type, member));

int main(void)
{
    SIZE(hvt_scale) AT(hvt_scale, post);
    SIZE(hvt_piece) AT(hvt_piece, data) AT(hvt_piece, count) AT(hvt_piece, dtype) AT(hvt_piece, wire);
    SIZE(hvt_device_opts) AT(hvt_device_opts, plan_cache) AT(hvt_device_opts, threads);
    AT(hvt_device_opts, ncpus) AT(hvt_device_opts, pin_caller) AT(hvt_device_opts, isa);
    SIZE(hvt_zoo_opts) AT(hvt_zoo_opts, projection) AT(hvt_zoo_opts, no_dropout);
    SIZE(hvt_loss_opts) AT(hvt_loss_opts, label_smoothing);
    SIZE(hvt_loss) AT(hvt_loss, top1) AT(hvt_loss, count) AT(hvt_loss, error);
    SIZE(hvt_net_data) AT(hvt_net_data, images) AT(hvt_net_data, type) AT(hvt_net_data, layout);
    AT(hvt_net_data, targets) AT(hvt_net_data, target_type);
    SIZE(hvt_net_parts) AT(hvt_net_parts, model) AT(hvt_net_parts, dist) AT(hvt_net_parts, outputs);
    SIZE(hvt_report) AT(hvt_report, steps) AT(hvt_report, test) AT(hvt_report, weights);
    SIZE(hvt_record) AT(hvt_record, encoding) AT(hvt_record, height) AT(hvt_record, label);
    SIZE(hvt_dataset_info) AT(hvt_dataset_info, count) AT(hvt_dataset_info, fingerprint);
    AT(hvt_dataset_info, type) AT(hvt_dataset_info, unlabelled) AT(hvt_dataset_info, targets);
    AT(hvt_dataset_info, masks);
    SIZE(hvt_source) AT(hvt_source, read) AT(hvt_source, label) AT(hvt_source, target) AT(hvt_source, ctx);
    SIZE(hvt_optim_opts) AT(hvt_optim_opts, nesterov) AT(hvt_optim_opts, kind) AT(hvt_optim_opts, betas);
    AT(hvt_optim_opts, eps) AT(hvt_optim_opts, ema);
    SIZE(hvt_net_opts) AT(hvt_net_opts, zoo) AT(hvt_net_opts, build) AT(hvt_net_opts, loss);
    AT(hvt_net_opts, optim) AT(hvt_net_opts, lr) AT(hvt_net_opts, batch) AT(hvt_net_opts, shard);
    AT(hvt_net_opts, seed) AT(hvt_net_opts, compute) AT(hvt_net_opts, device) AT(hvt_net_opts, threads);
    AT(hvt_net_opts, progress) AT(hvt_net_opts, ctx) AT(hvt_net_opts, split_at);
    SIZE(hvt_net_progress) AT(hvt_net_progress, loss) AT(hvt_net_progress, images);
    SIZE(hvt_conv2d_opts)
    AT(hvt_conv2d_opts, groups)
    AT(hvt_conv2d_opts, bias) AT(hvt_conv2d_opts, line) AT(hvt_conv2d_opts, dirac);
    SIZE(hvt_interpolate_opts) AT(hvt_interpolate_opts, scale_w) AT(hvt_interpolate_opts, antialias);
    SIZE(hvt_named) AT(hvt_named, ndim) AT(hvt_named, dim) AT(hvt_named, count);
    return 0;
}
