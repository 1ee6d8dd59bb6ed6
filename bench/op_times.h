/*
 * op_times.h - the time of every op that a device is asked for, by kind, and of every convolution by its
 * shape. For devices that compute before they return.
 */
#ifndef HVT_OP_TIMES_H
#define HVT_OP_TIMES_H

#include "device_impl.h"

/* From now on the device's ops are timed: to be called before a model is planned on it. One device. */
void op_times_watch(hvt_device *dev);
void op_times_reset(void);
void op_times_stop(int steps); /* what was counted since the last reset is that of so many steps */

/* Of a step: a table of kinds and one of convolutions, whose shares are of `peak` GFLOP/s. Returns the sum
 * of all ops in milliseconds. */
double op_times_print(double peak);

#endif /* HVT_OP_TIMES_H */
