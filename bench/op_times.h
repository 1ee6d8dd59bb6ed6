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

/* Of a step: a table of kinds, one of convolutions, whose shares are of `peak` GFLOP/s, the sum of all ops,
 * and their bound where memory is moved at `copy` GB/s (0: that is not printed). */
void op_times_print(double peak, double copy);

/* An op that begins. */
typedef struct op_call {
    const char *name;
    const hvt_conv_desc *conv; /* of a convolution, the same pointer for the same shape; else NULL */
    double rows;               /* else: of its matrix, the larger one if it has two; elements of a span */
    int columns;
    double bytes; /* read and written, pass by pass, wherever they lie; of a convolution each array once */
} op_call;

/* Who is told about each op, before it is called and when it has returned. */
typedef struct op_listener {
    void (*begin)(const op_call *call);
    void (*end)(void);
} op_listener;
void op_times_listen(const op_listener *l); /* NULL: nobody */

#endif /* HVT_OP_TIMES_H */
