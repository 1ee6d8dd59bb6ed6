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
 * v = momentum*v + (1-dampening)*g; g = nesterov ? g + momentum*v : v; w -= lr*g. Without momentum, w -=
 * lr*g. Source: torch/optim/sgd.py; goldens in tests/test_optim.c.
 */
typedef struct hvt_optim_opts {
    float momentum, dampening, weight_decay;
    bool nesterov;      ///< needs momentum > 0 and dampening 0, as in PyTorch
    bool no_decay_norm; ///< batch-norm scale and shift are not decayed
    bool no_decay_bias; ///< biases of linear layers are not decayed
} hvt_optim_opts;

/** m is borrowed and must be planned. Errors: E_ARG (a value out of its range, m not planned), E_MEM. */
HVT_API hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim);
HVT_API void hvt_optim_free(hvt_optim **optim);

/**
 * Learning rate at a moment. With e the epoch, T all epochs, W those of the warm-up:
 *
 *     constant     lr
 *     step         lr * GAMMA^floor(e / SIZE)
 *     multistep    lr * GAMMA^(number of E_i <= e)
 *     cosine       MIN + (lr - MIN) * (1 + cos(pi * (e - W) / (T - W))) / 2
 *
 * Like PyTorch's schedulers these move once per epoch. During the first K = W * updates-per-epoch updates
 * (rounded) update k takes lr * (k + 1) / K instead. Epochs always count from the run's start, warm-up
 * included; cosine begins where the warm-up ends. Source: torch/optim/lr_scheduler.py; goldens in
 * tests/test_optim.c.
 *
 * name is "constant", "step:SIZE[,GAMMA]", "multistep:E1,E2,...[@GAMMA]" or "cosine[:MIN]". SIZE and E_i are
 * whole epochs above 0, E_i ascend; GAMMA is above 0 (default 0.1); MIN is between 0 and lr (default 0).
 */
typedef struct hvt_schedule_opts {
    const char *name;
    double lr;     ///< peak
    double epochs; ///< T; read by cosine only
    double warmup; ///< W, may be a fraction
} hvt_schedule_opts;

typedef struct hvt_schedule hvt_schedule;
/** Errors: E_ARG with the text, the place in it and what was expected there. */
HVT_API hvt_status hvt_schedule_create(const hvt_schedule_opts *opts, hvt_schedule **ret_schedule);
HVT_API void hvt_schedule_free(hvt_schedule **schedule);
/** The rate for update `step` (0-based) of epoch `epoch` (0-based) with `steps` updates per epoch. */
HVT_API double hvt_schedule_lr(const hvt_schedule *schedule, int epoch, uint32_t step, uint32_t steps);

/* Where a bucket ends is a layer's end, so it may exceed its limit. first_bytes is read only where
 * bucket_bytes is a limit: not with 0, not with HVT_BUCKET_ALL. */
#define HVT_BUCKET_DEFAULT ((size_t)25 << 20)
#define HVT_BUCKET_ALL     SIZE_MAX

typedef struct hvt_distopt_opts {
    size_t bucket_bytes; ///< close a bucket at this many f32 bytes; 0 = one per layer; HVT_BUCKET_ALL = one
    size_t first_bytes;  ///< the same for the first one, so that the exchange starts early; 0 = bucket_bytes
    hvt_dtype wire;      ///< HVT_F32 | HVT_F16 | HVT_BF16 on the way; sums are in f32
    int local_shards;    ///< shards that this rank works through per step
} hvt_distopt_opts;

/**
 * Wrap an optimizer: gradients are exchanged in buckets (spans of the gradient arena, in the order backward
 * finishes them) and then applied. A step is
 *
 *     HVT_TRY(hvt_distopt_begin(dist, batch.shard_counts, batch.shards));
 *     for every local shard:
 *         HVT_TRY(hvt_model_forward(m, &batch, true));
 *         HVT_TRY(hvt_model_backward(m, hvt_distopt_on_grad, dist));
 *     HVT_TRY(hvt_distopt_step(dist, lr));
 *
 * Rank r works through shards r*local_shards ... in order. Gradients are added along one binary tree over all
 * shards (on each level 2i and 2i+1 are added, an odd last one moves up), so with f32 wires the bits of the
 * result depend neither on buckets nor on the comm, nor on the number of ranks while local_shards is a power
 * of two. With 16-bit wires they depend on the number of ranks, but are equal on all of them.
 *
 * Moves the model's gradient arena into comm's memory. Agrees over all ranks on build, device, `items` (n of
 * them: whatever else must be the same), options, tensors and buckets, in this order; E_MISMATCH names the
 * first difference. After that a step sends no message but the gradients themselves. optim and comm are
 * borrowed. Collective. Errors: E_ARG, E_MEM, E_MISMATCH, on all ranks alike.
 */
HVT_API hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                                      const hvt_item *items, int n, hvt_distopt **ret_dist);
HVT_API void hvt_distopt_free(hvt_distopt **dist); ///< Collective: gives the arena back.
/** Parameters, moving statistics and optimizer state from root to all. Collective. */
HVT_API hvt_status hvt_distopt_broadcast(hvt_distopt *dist, int root);

/** Start a step. shard_counts[shards]: images per shard of this step, on all ranks the same (hvt_batch has
 *  them). Sends nothing. Errors: E_ARG (not local_shards * ranks shards, a negative count, no image at all).
 */
HVT_API hvt_status hvt_distopt_begin(hvt_distopt *dist, const int *shard_counts, int shards);
/** The hvt_grad_fn to give hvt_model_backward(), once per local shard and step, empty shards too. Launches a
 *  bucket as soon as the last shard's backward has passed its end. */
HVT_API hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end);
/**
 * End the step: wait for the sums, divide by the global number of images, update parameters and moving
 * statistics, count the loss.
 *
 * With a 16-bit wire a sum may overflow; then no parameter is updated, on all ranks alike, and the skip is
 * counted. Moving statistics and the loss travel as f32 and are kept.
 * Collective. Errors: E_DIVERGED if the summed loss is not finite, on all ranks alike, before any update.
 */
HVT_API hvt_status hvt_distopt_step(hvt_distopt *dist, double lr);
/** Seconds spent waiting for sums in step() since last taken. */
HVT_API double hvt_distopt_take_exposed(hvt_distopt *dist);
/** Updates skipped because a 16-bit sum overflowed, since creation. */
HVT_API int64_t hvt_distopt_skipped(const hvt_distopt *dist);
/** Number of buckets; f32 bytes of each, in launch order. */
HVT_API int hvt_distopt_buckets(const hvt_distopt *dist, const size_t **ret_bytes);

#ifdef __cplusplus
}
#endif
#endif /* HVT_OPTIM_H */
