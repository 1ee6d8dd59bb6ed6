/* ops/step.h - arguments of losses and optimizers, and the state of a step. */
#ifndef HVT_DEVICE_OPS_STEP_H
#define HVT_DEVICE_OPS_STEP_H

#include "device/ops/op.h"

/* Sums of a loss over its rows, in this order. Both kinds of loss use the same indices, so that code that
 * sums over shards, ranks and steps need not know the kind. */
enum {
    HVT__SUM_LOSS,
    HVT__SUM_TOP1,                   /* cross-entropy: rows whose label is ranked first */
    HVT__SUM_ERROR = HVT__SUM_TOP1,  /* mean squared error: the rows' mean absolute errors */
    HVT__SUM_TOP5,                   /* cross-entropy: rows whose label is among the first five; else 0 */
    HVT__SUM_PIXELS = HVT__SUM_TOP5, /* cross-entropy of pixels: those that are not ignored */
    HVT__SUM_WEIGHT, /* of the rows, which weighted losses and those of pixels are divided by; else 0 */
    HVT__SUMS
};

typedef struct hvt_xent_args {
    hvt_rows rows; /* rows.real rows are valid */
    int classes;
    hvt_dtype type;
    const void *logits;    /* [rows,classes] */
    const int32_t *labels; /* [rows] */
    const float *soft;     /* [rows,classes] targets instead of onehot, which sum to 1; NULL: onehot */
    float smoothing;       /* s: the target is (1 - s) * onehot + s / classes; 0: onehot */
    bool binary; /* a sigmoid and a binary cross-entropy of each class, whose mean is the loss, instead
                    of softmax; only host devices */
    const float *weights; /* [classes] factor of each class's term of the loss; NULL: 1; only host devices */
    void *dlogits;        /* [rows,classes] softmax - target, or the gradient of the variants above; zero in
                             rows past real; NULL: not needed */
    float *loss;          /* [rows] nats */
    int32_t *label_rank;  /* [rows] number of logits that are larger than the label's, or equal with a lower
                             index */
    float *sums;          /* [HVT__SUMS] */
    const float *scale;   /* device memory: factor of dlogits, not of loss and sums; NULL: 1 */
    /* 0: a row is an image. Else rows are pixels, so many of an image, and dlogits is divided by this number.
     * A label below 0 is ignored: its row has loss 0, gradient 0 and rank -1. Host devices only */
    int pixels;
} hvt_xent_args;

/* Mean squared or absolute error of each row, over its outputs. */
typedef struct hvt_mse_args {
    hvt_rows rows; /* rows.real rows are valid */
    int outputs;
    hvt_dtype type;
    const void *y;        /* [rows,outputs] */
    const float *targets; /* [rows,outputs] */
    void *dy; /* [rows,outputs] 2 * (y - target) / outputs, absolute: the sign of y - target / outputs; zero
               * in rows past real; NULL: not needed */
    bool absolute;
    float *loss;        /* [rows] mean of (y - target)^2, or of |y - target| */
    float *error;       /* [rows] mean of |y - target| */
    float *sums;        /* [HVT__SUMS] */
    const float *scale; /* as in hvt_xent_args */
    int pixels; /* 0: a row is an image. Else rows are pixels, so many of an image; dy and sums are divided by
                   this number. Host devices only */
} hvt_mse_args;

/*
 * A model's step state: inputs, decisions and counts, in device memory. Queued ops read it when they run, so
 * the host need not wait for the values, and a captured graph can be launched again with new ones.
 * hvt__step_decide() of device/step.h has the rules for all devices.
 */
enum {
    HVT__STEP_WORDS = 4,
    HVT__STEP_AGREEMENT = 1 + 2 * HVT__STEP_WORDS,
    HVT__STEP_VOTES = 2,
    HVT__STEP_INPUTS = HVT__STEP_AGREEMENT + HVT__STEP_VOTES,
    HVT__STEP_SUMS = HVT__SUMS + HVT__STEP_INPUTS /* 16: 64 bytes */
};
enum { HVT__SQUARES_BLOCK = 16, HVT__SQUARES_BINS = 24 }; /* see device/squares.h */

typedef struct hvt_step_state {
    /* written before each step, by one put of HVT__STEP_PUT bytes */
    double images;   /* in the global batch */
    int64_t tracked; /* batches seen by batch norms before this step: num_batches_tracked */
    float lr;
    int32_t average; /* with an equal average of the weights: 1 if they count after this update */
    float inputs[HVT__STEP_INPUTS]; /* agreement check and votes, summed over ranks; see device/step.h */
    int32_t skips_in_row;           /* not part of the put: consecutive skipped steps, updated by decide */
    /* loss scaling, torch.amp.GradScaler's; written at the start of a run */
    float loss_scale;             /* xent multiplies dlogits by it; 1: none */
    float growth, backoff, floor; /* 2, 0.5, and the least scale */
    int32_t interval;             /* good steps before it grows; 0: loss_scale is fixed */
    int32_t good;                 /* steps since it last changed */
    /* 0: the loss is the mean over images. Else it is the mean over labelled pixels, and a gradient is the
     * sum of those of the pixels, divided by this number, the pixels of an image. Written once */
    float pixels;
    /* written by decide */
    float grad_scale; /* gradients are read as grad_scale * g: 1 / (images * loss_scale), where images of
                         pixels count by their share of labelled ones */
    int32_t apply;    /* this step updates */
    int32_t fresh;    /* no update so far: momentum is uninitialised */
    int32_t stop;     /* hvt_stop; once set, no more updates are applied */
    int32_t weighted; /* written once: the loss is divided by its rows' weights, not by images */
    uint64_t bad;     /* lowest arena index of a non-finite gradient; UINT64_MAX: none. Lowered by check */
    /* clipping: clip_norm is written once; decide subtracts what squares has added */
    double
        clip_norm; /* maximum norm of grad_scale * g, enforced by decide through grad_scale; 0: no clipping */
    int64_t squares[HVT__SQUARES_BINS];
    /* Adam's averages: beta is written once, the others by decide */
    double beta[2];  /* of each average; 0: none */
    int64_t updates; /* t: updates so far, without skipped ones */
    float bias[2];   /* 1 / (1 - beta[0]^t) and 1 / sqrt(1 - beta[1]^t) */
    /* average of the weights: decay and every are written once, the others by decide */
    double ema_decay;
    int64_t ema_every;   /* updated after updates 1, 1 + every, ...; 0: after those with `average`, equally */
    int64_t ema_count;   /* number of updates of the average */
    int64_t ema_tracked; /* num_batches_tracked, averaged */
    float ema_share; /* share of the weights after this update; 0: no update of the average; 1: copy them */
    /* counted by decide, never reset */
    int64_t steps, skipped, count;  /* count: of images, or of labelled pixels */
    int64_t votes[HVT__STEP_VOTES]; /* votes, summed over ranks and steps */
    double sums[HVT__SUMS];         /* of counted images; hits are exact up to 2^53 */
    /* about the step that set `stop` */
    int64_t stop_step;
    double stop_loss;
    uint64_t stop_bad;
} hvt_step_state;

enum { HVT__STEP_PUT = sizeof(double) + sizeof(int64_t) + (2 + HVT__STEP_INPUTS) * sizeof(float) };

typedef enum hvt_stop {
    HVT_STOP_NOT,
    HVT_STOP_LOSS,    /* the loss is not finite */
    HVT_STOP_SCALE,   /* gradients are not finite at the least loss scale, or with a fixed one */
    HVT_STOP_DISAGREE /* ranks have different inputs for this step */
} hvt_stop;

typedef struct hvt_sgd_args {
    float momentum, dampening, weight_decay;
    bool nesterov;
    const hvt_step_state *step; /* device memory: lr, grad_scale, apply (0: touch nothing), fresh (v = g) */
    void *copy;                 /* 16-bit copy of the new w in copy_type, at the same offsets; NULL: none */
    hvt_dtype copy_type;
} hvt_sgd_args;

typedef struct hvt_adam_args {
    double beta[2];
    float eps, weight_decay;
    bool decoupled;             /* AdamW: decays the weight directly, not through the gradient */
    const hvt_step_state *step; /* device memory: lr, grad_scale, apply, fresh (m and v are 0), bias */
    void *copy;                 /* as above */
    hvt_dtype copy_type;
} hvt_adam_args;

/* PowerSGD's factors of a convolution's gradient G, seen as a matrix [k, m]: P [k, r] and Q [m, r], stored by
 * columns. G and the residual E have the device's layout of k filters; j < m enumerates taps, and channels
 * within a tap. */
typedef struct hvt_factor_args {
    int k, m, r;
    float *g, *e; /* [k,m] */
    float *p;     /* [r][k] */
    float *q;     /* [r][m] */
    float share;
} hvt_factor_args;

#endif /* HVT_DEVICE_OPS_STEP_H */
