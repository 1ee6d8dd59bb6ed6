/* check.h - the command `hvtrain check`. */
#ifndef HVT_TRAIN_CHECK_H
#define HVT_TRAIN_CHECK_H

#include "hvt/train.h"

/* How long the ranks of a check wait for one another and, with `starts`, for MPI to start: a few seconds, or
 * --stall-abort if that is given. */
hvt_stall hvt__check_patience(const hvt_options *opts, bool starts);

/*
 * Checks whether this job is ready for a run with these options. Rank 0 prints on stdout a line for each of:
 * MPI, launcher, processors, network, clocks, memory, limits, options, data, GPUs, build, model, the folder
 * of --save, and a small and a large sum over the comm of the run. A line is "ok", "warn" (a run would work)
 * or "FAIL", with what to do. Nothing is trained, and nothing stays but the stored list of a large
 * --data-dir. If the options are invalid, there is no line for the model, and lines for data and --save
 * only if their paths are given.
 *
 * world NULL: hvt_world_open() has failed, and hvt_last_error() says why; the line of the launcher shows it.
 * *ret_faults: lines with FAIL, the same on every rank. A rank that does not answer within 5 s, or
 * --stall-abort if that is given, is named, and the process ends with HVT_EXIT_STALLED. Collective. Errors:
 * E_MEM, E_COMM; E_ARG (more --threads than a device can have).
 */
hvt_status hvt__check(const hvt_options *opts, hvt_world *world, int *ret_faults);

#endif /* HVT_TRAIN_CHECK_H */
