/* devices.h - the ranks of a process: one, or one for each of --devices. */
#ifndef HVT_TRAIN_DEVICES_H
#define HVT_TRAIN_DEVICES_H

#include "hvt/train.h"

/* Run fn(world, ctx) on a thread for each of opts->devices, which must be given. processes: the world of all
 * processes. Collective. Errors: those of fn; E_ARG and E_UNSUPPORTED, agreed, for devices that this process
 * does not have. */
hvt_status hvt__devices_run(const hvt_options *opts, hvt_world *processes, hvt_rank_fn *fn, void *ctx);

#endif /* HVT_TRAIN_DEVICES_H */
