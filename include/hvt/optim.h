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
 * lr*g. Source: torch/optim/sgd.py; goldens in tests/optim/test_optim.c.
 */
typedef struct hvt_optim_opts {
    float momentum, dampening, weight_decay;
    bool nesterov;      ///< needs momentum > 0 and dampening 0, as in PyTorch
    bool no_decay_norm; ///< batch-norm scale and shift are not decayed
    bool no_decay_bias; ///< biases of linear layers are not decayed
} hvt_optim_opts;

/** m is borrowed and must be planned. Errors: E_ARG (a value out of its range, m not planned), E_MEM. */
HVT_API hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim);
/** After its distributed optimizers, else it stays and that is logged: see hvt_device_close(). */
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
 * (rounded) update k takes lr * (F + (1 - F) * (k + 1) / K) instead, F the part of the peak that the warm-up
 * rises from; F = 1/ranks is the warm-up of Horovod's Keras callback. Epochs always count from the run's
 * start, warm-up included; cosine begins where the warm-up ends. Source: torch/optim/lr_scheduler.py; goldens
 * in tests/optim/test_optim.c.
 *
 * name is "constant", "step:SIZE[,GAMMA]", "multistep:E1,E2,...[@GAMMA]" or "cosine[:MIN]". SIZE and E_i are
 * whole epochs above 0, E_i ascend; GAMMA is above 0 (default 0.1); MIN is between 0 and lr (default 0).
 */
typedef struct hvt_schedule_opts {
    const char *name;
    double lr;          ///< peak
    double epochs;      ///< T; read by cosine only
    double warmup;      ///< W, may be a fraction
    double warmup_from; ///< F, 0 to 1
} hvt_schedule_opts;

typedef struct hvt_schedule hvt_schedule;
/** Errors: E_ARG with the text, the place in it and what was expected there. */
HVT_API hvt_status hvt_schedule_create(const hvt_schedule_opts *opts, hvt_schedule **ret_schedule);
HVT_API void hvt_schedule_free(hvt_schedule **schedule);
/** The rate for update `step` (0-based) of epoch `epoch` (0-based) with `steps` updates per epoch. */
HVT_API double hvt_schedule_lr(const hvt_schedule *schedule, int epoch, uint32_t step, uint32_t steps);

/*
 * Where a bucket ends is a layer's end, so it may exceed its limit; what would exceed it twice is cut into
 * pieces (of 1 MiB at least). first_bytes is read only where bucket_bytes is a limit.
 */
#define HVT_BUCKET_DEFAULT ((size_t)25 << 20)
#define HVT_BUCKET_ALL     SIZE_MAX

/** Who updates which parameters. The bits are the same. */
typedef enum hvt_update {
    HVT_UPDATE_AUTO,       ///< sharded on devices of the host, but replicated for one rank and, across
                           ///< nodes, with 16-bit wires
    HVT_UPDATE_REPLICATED, ///< every rank has parameters and optimizer state of its own, and updates all of
                           ///< them
    HVT_UPDATE_SHARDED     ///< each rank updates its slice for all. Parameters are one copy for the ranks of
                           ///< a node (comm mpi: one for each rank). Optimizer state is one copy for all
                           ///< ranks: a node's in memory that they share, several nodes' in slices on the
                           ///< ranks. Devices of the host only
} hvt_update;

/**
 * Loss scaling, which keeps small gradients representable in f16: the gradient of the loss is multiplied by
 * the scale where backward begins, and divided by it where parameters are updated. A scale is one of the mean
 * loss of a full shard, as in PyTorch. A step whose gradients are not finite updates nothing. Then a dynamic
 * scale is halved, and after `interval` updates in a row doubled. Source: torch/amp/grad_scaler.py; a table
 * in tests/golden/scaler.txt.
 */
typedef struct hvt_scaling {
    double scale; ///< to begin with; 0: none
    int interval; ///< 0: the scale stays; torch.amp.GradScaler has 2000
    double floor; ///< it does not fall below; gradients that are not finite even there end the run
} hvt_scaling;

typedef struct hvt_distopt_opts {
    size_t bucket_bytes; ///< close a bucket at this many f32 bytes; 0 = one per layer; HVT_BUCKET_ALL = one
    size_t first_bytes;  ///< the same for the first one, so that the exchange starts early; 0 = bucket_bytes
    hvt_dtype wire;      ///< HVT_F32 | HVT_F16 | HVT_BF16 on the way; sums are in f32
    int local_shards;    ///< shards that this rank works through per step
    hvt_update update;   ///< who updates what
    hvt_scaling scaling; ///< needed with activations in f16
    int replica_check;   ///< compare what several ranks have copies of every so many updates; 0: never
    int powersgd;        ///< rank of the factors that gradients travel as; 0: they travel as they are
    uint64_t seed;       ///< of what the first factors are drawn from
} hvt_distopt_opts;

/**
 * Wrap an optimizer: gradients are exchanged in buckets (spans of the gradient arena, in the order backward
 * finishes them) and then applied. A step is
 *
 *     HVT_TRY(hvt_distopt_begin(dist, batch.shard_counts, batch.shards, lr));
 *     for every local shard:
 *         HVT_TRY(hvt_model_forward(m, &batch, true));
 *         HVT_TRY(hvt_model_backward(m, hvt_distopt_on_grad, dist));
 *     HVT_TRY(hvt_distopt_step(dist));
 *
 * Rank r works through shards r*local_shards ... in order. Gradients are added along one binary tree over all
 * shards (on each level 2i and 2i+1 are added, an odd last one moves up), so with f32 wires the bits of the
 * result depend neither on buckets nor on the comm, nor on the number of ranks while local_shards is a power
 * of two. With 16-bit wires they depend on the number of ranks, but are equal on all of them.
 *
 * PowerSGD: the gradient of a convolution or linear layer, G [k filters, m] with its channels and taps,
 * travels as factors P [k,r] and Q [m,r], r being opts.powersgd, if (k + m) r < k m; all others as they are.
 * A rank keeps what factors cannot carry, E:
 *
 *     E += G
 *     P = sum over ranks of E Q, its columns made orthonormal
 *     Q = sum over ranks of E^T P
 *     G = P Q^T
 *     E -= G / ranks
 *
 * and each step begins with the Q of the one before; the first one's is drawn, from seed, tensor's name and
 * place. So a step sends two rounds of sums, a message each of a bucket and round, and the sum of all E and
 * all that was applied is the sum of all gradients, but for rounding; in units of the mean gradient, however
 * many images a step has and however the loss is scaled. All ranks hold the same bits, which depend on the
 * number of ranks, and neither on buckets nor on the comm. An update that is skipped takes its gradients and
 * E along, and leaves Q. hvt_distopt_gather() brings all ranks' E and Q to root, where a checkpoint takes
 * them along, and hvt_distopt_broadcast() brings what root has loaded back; to another number of ranks the
 * sum of all E, to the root. Costs an f32 arena on each rank, and on root, until the next step, one for every
 * rank. f32 wires, replicated updates (E_ARG) and devices of the host (E_UNSUPPORTED) only. Source: Vogels et
 * al. 2019, arXiv 1905.13727.
 *
 * Moves the model's gradient arena into comm's memory; with a sharded update parameters and optimizer state,
 * too, into memory that a node's ranks write, where they can share any: then its first rank's values become
 * the node's, and from then on whoever sets parameters (initialises, loads) sets them for the node. Agrees
 * over all ranks on build, device, `items` (n of them: whatever else must be the same), options, tensors and
 * buckets, in this order; E_MISMATCH names the first difference. After that a step sends no message but the
 * gradients themselves. optim and comm are borrowed. Collective. Errors: E_ARG, E_MEM, E_MISMATCH, on all
 * ranks alike.
 */
HVT_API hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                                      const hvt_item *items, int n, hvt_distopt **ret_dist);
/** Collective: gives the arenas back. Optimizer state that lay in slices on the ranks is then whole where
 * hvt_distopt_gather() has just brought it, and elsewhere as new. */
HVT_API void hvt_distopt_free(hvt_distopt **dist);
/** The same, but nothing is given back: the model and the optimizer are good for nothing but to be freed.
 * Saves the time and the memory of copies that nobody would use. Collective. */
HVT_API void hvt_distopt_discard(hvt_distopt **dist);
/** Bytes of optimizer state that this rank keeps; a block that ranks of a node share counts in equal parts.
 */
HVT_API size_t hvt_distopt_state_bytes(const hvt_distopt *dist);
/** Plan the buckets anew, between steps, as if created with these sizes; what was captured before must have
 * been freed. The bits do not change. Collective. Errors, on every rank alike, and then the old plan stays:
 * E_ARG (in the middle of a step), E_MEM, E_MISMATCH (the ranks ask for different buckets). */
HVT_API hvt_status hvt_distopt_replan(hvt_distopt *dist, size_t bucket_bytes, size_t first_bytes);
/** Parameters, moving statistics and optimizer state from root to all; state that lies in slices on the ranks
 * is left as it is unless it was loaded on root. Collective, between steps. */
HVT_API hvt_status hvt_distopt_broadcast(hvt_distopt *dist, int root);
/** Bring the optimizer's state, as far as it lies in slices on the ranks, to root (-1: to every rank) until
 * the next step, so that hvt_checkpoint_save() can write it there. Collective, between steps. Errors: E_ARG,
 * E_MEM, E_COMM. */
HVT_API hvt_status hvt_distopt_gather(hvt_distopt *dist, int root);

/** Start a step. shard_counts[shards]: images per shard of this step, on all ranks the same (hvt_batch has
 * them); lr: the rate of this update, too. Sends nothing: words made of both travel with the sums of losses,
 * and ranks that were given different ones learn of it in this very step, see hvt_distopt_step(). Errors:
 * E_ARG (not local_shards * ranks shards, a negative count, no image at all, a rate that is no number). */
HVT_API hvt_status hvt_distopt_begin(hvt_distopt *dist, const int *shard_counts, int shards, double lr);
/** The hvt_grad_fn to give hvt_model_backward(), once per local shard and step, empty shards too. Launches a
 * bucket as soon as the last shard's backward has passed its end. Errors: E_ARG, also where the batch of that
 * forward pass is not the shard whose turn it is, or not of the size that begin was told; E_COMM. */
HVT_API hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end);
/**
 * End the step: wait for the sums, divide by the global number of images, update parameters and moving
 * statistics, count the loss.
 *
 * With a 16-bit wire or loss scaling a sum may not be finite; then no parameter is updated, on all ranks
 * alike, and the skip is counted. Moving statistics and the loss travel as f32 and are kept. A run ends at
 * the first such step at the least loss scale; where no scale can fall, at the hundredth in a row: nothing
 * else would end it.
 *
 * Collective. Async: on a device that queues the host waits for nothing here, and hvt_distopt_check() tells.
 * Replica check: after an update whose number is a multiple of replica_check, ranks compare hashes of what
 * more than one of them has a copy of: parameters, but not a page with itself; momentum, where it is not in
 * slices; 16-bit copies of parameters, where the update writes all of them. E_MISMATCH if they differ, naming
 * the first tensor and the ranks, on all ranks alike, before the next update. Costs one pass over these and a
 * message.
 * Learning rate or shard counts that differ between ranks: E_MISMATCH, naming the first that does, its values
 * and ranks, on all ranks alike, in the same step and before any update; the next step may be begun. Where
 * devices queue, hvt_distopt_check() tells, and no step after that one has updated anything.
 * Errors, where it does not queue: E_DIVERGED if the summed loss is not finite or gradients end the run
 * (naming the first such parameter), on all ranks alike, before any update.
 */
HVT_API hvt_status hvt_distopt_step(hvt_distopt *dist);
/**
 * Give up the step that was begun, wherever each rank has come to in it, before it calls hvt_distopt_step():
 * what is under way is completed and let go, no parameter, moving statistic or count has changed, and the
 * next step may be begun. What factors kept of earlier gradients goes with it, as by a skipped update. A rank
 * that has begun none takes part, too. Collective: agree first that a rank cannot go on (hvt_world_agree()).
 * Errors: E_COMM.
 */
HVT_API hvt_status hvt_distopt_abandon(hvt_distopt *dist);
/**
 * A step that is queued once and run many times, where the device can (a CUDA graph): host time per step is
 * then that of one call, whatever the number of layers. After some steps of the usual kind
 *
 *     HVT_TRY(hvt_distopt_begin(dist, ...));
 *     HVT_TRY(hvt_distopt_capture(dist));
 *     forward, backward, hvt_distopt_step() as ever: noted, not run
 *     HVT_TRY(hvt_distopt_capture_end(dist, &graph));  // now it has run
 *
 * and from then on, for every step whose batch lies at the same address and has the same shard counts,
 *
 *     HVT_TRY(hvt_distopt_begin(dist, ...));
 *     HVT_TRY(hvt_distopt_replay(dist, graph));
 *
 * which does all that those lines do, to the same bits. Other steps in between are free to be of the usual
 * kind. Free a graph before its distributed optimizer. Collective, like the step.
 */
typedef struct hvt_graph hvt_graph;
/** Why steps cannot be captured here, as a phrase; NULL: they can. */
HVT_API const char *hvt_distopt_uncapturable(const hvt_distopt *dist);
HVT_API hvt_status hvt_distopt_capture(hvt_distopt *dist);
/** Also to be called, with ret_graph NULL, when something failed since hvt_distopt_capture(): then the step
 * is given up. */
HVT_API hvt_status hvt_distopt_capture_end(hvt_distopt *dist, hvt_graph **ret_graph);
/** Errors: E_ARG other shard counts than captured, or in the middle of a step. */
HVT_API hvt_status hvt_distopt_replay(hvt_distopt *dist, hvt_graph *graph);
HVT_API void hvt_graph_free(hvt_graph **graph); ///< NULL is fine

/** Wait for all steps, warn of skipped updates, and tell whether one of them ended the run; after that one
 * nothing was changed. Ask after the same step on all ranks. Errors: E_DIVERGED and E_MISMATCH (see
 * hvt_distopt_step()), on all ranks alike. After E_DIVERGED hvt_model_init() begins anew. */
HVT_API hvt_status hvt_distopt_check(hvt_distopt *dist);
/** The step that ended the run, counted from 1 since the model was planned, as of the last check; 0: none. */
HVT_API int64_t hvt_distopt_stopped(const hvt_distopt *dist);
/** Seconds spent waiting for sums in step() since last taken. */
HVT_API double hvt_distopt_take_exposed(hvt_distopt *dist);
/** Updates skipped because gradients were not finite, since the model was planned, as of the last check. */
HVT_API int64_t hvt_distopt_skipped(const hvt_distopt *dist);
/** Bytes that a rank gives to the sums of a step. */
HVT_API size_t hvt_distopt_bytes(const hvt_distopt *dist);
/** HVT_UPDATE_REPLICATED or HVT_UPDATE_SHARDED: what came of the option. */
HVT_API hvt_update hvt_distopt_update(const hvt_distopt *dist);
/** The loss scale as of the last check; 1 without loss scaling. */
HVT_API double hvt_distopt_loss_scale(const hvt_distopt *dist);
/** Number of buckets; f32 bytes of each, in launch order. Valid until they are planned anew. */
HVT_API int hvt_distopt_buckets(const hvt_distopt *dist, const size_t **ret_bytes);

#ifdef __cplusplus
}
#endif
#endif /* HVT_OPTIM_H */
