/**
 * @file optim.h
 * Optimizers, the learning-rate schedule, and the distributed optimizer.
 */
#ifndef HVT_OPTIM_H
#define HVT_OPTIM_H

#include "hvt/comm.h"
#include "hvt/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvt_optim hvt_optim;
typedef struct hvt_distopt hvt_distopt;

/**
 * SGD, torch.optim.SGD's update: g += weight_decay*w; v = g on the first step, else
 * v = momentum*v + (1-dampening)*g; g = nesterov ? g + momentum*v : v; w -= lr*g.
 */
typedef struct hvt_optim_opts {
    float momentum, dampening, weight_decay;
    bool nesterov;      ///< needs momentum > 0 and dampening 0, as in PyTorch
    bool no_decay_norm; ///< batch-norm scale and shift are not decayed
    bool no_decay_bias; ///< biases of linear layers are not decayed
} hvt_optim_opts;

/** m is borrowed and must be planned. */
HVT_API hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim);
HVT_API void hvt_optim_free(hvt_optim **optim);

/** Learning rate at a moment. Warm-up is linear from lr/steps-in-warm-up up, per update. */
typedef struct hvt_schedule_opts {
    const char *name; ///< "constant" | "step:SIZE[,GAMMA]" | "multistep:E1,E2,...[@GAMMA]" | "cosine[:MIN]"
    double lr;        ///< peak
    double epochs;    ///< whole run, for cosine
    double warmup;    ///< epochs
} hvt_schedule_opts;

typedef struct hvt_schedule hvt_schedule;
HVT_API hvt_status hvt_schedule_create(const hvt_schedule_opts *opts, hvt_schedule **ret_schedule);
HVT_API void hvt_schedule_free(hvt_schedule **schedule);
/** The rate for update `step` (0-based) of epoch `epoch` (0-based) with `steps` updates per epoch. */
HVT_API double hvt_schedule_lr(const hvt_schedule *schedule, int epoch, uint32_t step, uint32_t steps);

#define HVT_BUCKET_DEFAULT ((size_t)25 << 20)
#define HVT_BUCKET_ALL     SIZE_MAX

typedef struct hvt_distopt_opts {
    size_t bucket_bytes; ///< close a bucket at this many f32 bytes; 0 = one per layer; HVT_BUCKET_ALL = one
    size_t
        first_bytes; ///< the same for the first bucket, which lets the exchange start early; 0 = bucket_bytes
    hvt_dtype wire;  ///< HVT_F32 | HVT_F16 | HVT_BF16 on the way; sums are in f32
    int local_shards; ///< shards that this rank works through per step
} hvt_distopt_opts;

/**
 * Wrap an optimizer: gradients are exchanged in buckets (spans of the gradient arena, in the order backward
 * finishes them) and then applied.
 *
 * Moves the model's gradient arena into comm's memory. Agrees over all ranks on tensors, buckets and options,
 * and on `items` (n of them: whatever else must be the same); E_MISMATCH names the first difference.
 * optim and comm are borrowed. Collective.
 */
HVT_API hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                                      const hvt_item *items, int n, hvt_distopt **ret_dist);
HVT_API void hvt_distopt_free(hvt_distopt **dist); ///< Collective: gives the arena back.
/** Parameters, moving statistics and optimizer state from root to all. Collective. */
HVT_API hvt_status hvt_distopt_broadcast(hvt_distopt *dist, int root);
/** The hvt_grad_fn to give hvt_model_backward(), once per local shard and step. */
HVT_API hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end);
/**
 * End the step: wait for the sums, divide by the global number of images, update parameters and moving
 * statistics, count the loss. shard_counts[shards]: images per shard of this step (hvt_batch has them).
 * Collective. Errors: E_DIVERGED if the summed loss is not finite, on all ranks alike, before any update.
 */
HVT_API hvt_status hvt_distopt_step(hvt_distopt *dist, double lr, const int *shard_counts, int shards);
HVT_API double
hvt_distopt_take_exposed(hvt_distopt *dist); ///< seconds spent waiting in step() since last taken
HVT_API int hvt_distopt_buckets(const hvt_distopt *dist,
                                const size_t **ret_bytes); ///< number; f32 bytes of each

#ifdef __cplusplus
}
#endif
#endif /* HVT_OPTIM_H */
