/*
 * op_times.h - the time of every device op, by kind, and of every convolution, by shape. For devices that
 * compute before they return.
 */
#ifndef HVT_OP_TIMES_H
#define HVT_OP_TIMES_H

#include "device_impl.h"

/* Times the device's ops from now on. Call before a model is planned on it. One device only. */
void op_times_watch(hvt_device *dev);
void op_times_reset(void);
void op_times_stop(int steps); /* the time since the last reset is that of `steps` steps */

/* Prints, per step, a table of kinds, one of convolutions, with shares of `peak` GFLOP/s, the sum of all ops,
 * and their bound with memory moved at `copy` GB/s (0: not printed). */
void op_times_print(double peak, double copy);

/* An op call. */
typedef struct op_call {
    const char *name;
    const hvt_conv_desc *conv; /* of a convolution, the same pointer for the same shape; otherwise NULL */
    double rows; /* otherwise: of its matrix, the larger one if it has two; elements of a span */
    int columns;
    double bytes; /* read and written, pass by pass, in memory or cache; of a convolution each array once */
} op_call;

/* Called for each op, before and after it. */
typedef struct op_listener {
    void (*begin)(const op_call *call);
    void (*end)(void);
} op_listener;
void op_times_listen(const op_listener *l); /* NULL: none */

#endif /* HVT_OP_TIMES_H */
