/* struct_layout.c: the sizes of structs, and where their members lie, for the Python package's copies of them. */
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
    SIZE(hvt_net_parts) AT(hvt_net_parts, model) AT(hvt_net_parts, dist);
    SIZE(hvt_named) AT(hvt_named, ndim) AT(hvt_named, dim) AT(hvt_named, count);
    return 0;
}
