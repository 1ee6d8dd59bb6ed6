/* ops/norm.h - arguments of batch, layer, group and instance norms. */
#ifndef HVT_DEVICE_OPS_NORM_H
#define HVT_DEVICE_OPS_NORM_H

#include "device/ops/elementwise.h"
#include "device/ops/step.h"

typedef struct hvt_bn_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    float eps;
    const void *x;             /* [rows,c] */
    const float *gamma, *beta; /* [c] */
    float *mean, *rstd;        /* [c] train: written, read by backward. infer: read */
    const void *residual;      /* [rows,c] added before relu, or NULL */
    bool relu;
    const hvt_map *map; /* function after it, if there is no residual and no relu; NULL: none */
    void *y; /* [rows,c] = relu?(gamma*(x-mean)*rstd + beta + residual). NULL, on devices with conv.set_norm:
                bn_train computes only the statistics */
    float *moments; /* [2,c] train: weight*mean, weight*unbiased variance; zeros if < 2 values per channel */
    float weight;
    bool is_variance; /* infer: rstd and mean hold the moving variance and mean; else bn_train wrote them, and
                         y is recomputed bit for bit. moments and weight are unused */
} hvt_bn_args;

typedef struct hvt_bn_grad_args {
    hvt_rows rows;
    int c;
    hvt_dtype type;
    const void *x, *y, *dy; /* y: forward's output, for relu's mask; NULL without relu */
    const float *gamma, *mean, *rstd;
    const float *beta;  /* forward's, if it added no residual: relu's mask may be recomputed from x, which is
                           cheaper than reading y; else NULL */
    const hvt_map *map; /* forward's; it requires dz */
    void *dz; /* [rows,c] for dy times the slope of map; may be dy. bn_backward and bn_sums may write it,
                 bn_dx reads it */
    void *dx; /* [rows,c]; may be dy */
    bool add;
    void *dresidual; /* [rows,c] masked dy, or NULL; may be dy, not dx */
    bool add_residual;
    float *dgamma, *dbeta;      /* [c] */
    const float *share, *slope; /* [c] bn_dx: means over all rows of all shards of dz (the masked dy) and of
                                   dz*(x-mean)*rstd */
} hvt_bn_grad_args;

/* A non-empty shard whose statistics are joined. */
typedef struct hvt_bn_shard {
    int32_t place; /* index of its part */
    int32_t images;
} hvt_bn_shard;

/* Join the results of bn_moments or bn_sums over shards, in f64 and in the order of shards: see
 * device/join.h. */
typedef struct hvt_bn_join_args {
    int c, pixels, shards;
    const hvt_bn_shard *shard; /* [shards] device memory */
    const float *part;         /* [2,c] per shard */
    size_t stride;             /* floats between parts */
    float eps;                 /* for moments */
    float *joined;             /* [2,c] for moments mean and rstd, for sums share and slope */
    float *moments;            /* [2,c] for moments: mean and unbiased variance */
} hvt_bn_join_args;

/*
 * Layer, group and instance norm. Channels form `groups` of equal length. Mean and variance are taken over a
 * group in an image or, with per_pixel, over a group in a pixel.
 *
 *     y = (x - mean) / sqrt(variance + eps) * gamma + beta
 */
typedef struct hvt_norm_args {
    hvt_order order;
    hvt_dtype type;
    int n, real, pixels, c, groups;
    bool per_pixel;
    bool per_element; /* gamma and beta are [pixels,c], else [c] */
    float eps;
    const void *x;
    const float *gamma, *beta; /* NULL: 1 and 0 */
    float *mean, *rstd;        /* [n,groups], per_pixel [rows,groups]: written by forward, read by backward */
    void *y;
    /* backward */
    const void *dy;
    void *dx; /* NULL: not needed; may be dy */
    bool add;
    float *dgamma, *dbeta; /* NULL: not needed */
} hvt_norm_args;

typedef struct hvt_bn_update_args {
    const hvt_step_state *step; /* device memory; does nothing if step->stop */
    int c;
    float rate, scale;
    const float *moments; /* [2,c] */
    float *mean, *var;    /* [c] running statistics: (1-rate)*old + rate*(scale*moments) */
} hvt_bn_update_args;

#endif /* HVT_DEVICE_OPS_NORM_H */
