/**
 * @file optim.h
 * Optimizers, the learning-rate schedule, and the distributed optimizer.
 */
#ifndef HVT_OPTIM_H
#define HVT_OPTIM_H

#include "hvt/comm.h"
#include "hvt/model.h"

HVT_C_BEGIN

typedef struct hvt_optim hvt_optim;
typedef struct hvt_distopt hvt_distopt;

/** torch.optim's optimizers, and LARS and LAMB; goldens in tests/golden/optim.txt. */
typedef enum hvt_optim_kind {
    HVT_OPTIM_SGD,
    HVT_OPTIM_ADAM,
    HVT_OPTIM_ADAMW,
    HVT_OPTIM_RMSPROP,
    HVT_OPTIM_LARS,
    HVT_OPTIM_LAMB
} hvt_optim_kind;

/**
 * An average of the weights w, that is of parameters and running statistics. The exponential moving average
 * (EMA) is updated after updates 1, 1 + every, 1 + 2*every, ...:
 *
 *     ema = decay*ema + (1-decay)*w
 *
 * Stochastic weight averaging (SWA, `equal`) gives n weights the same share. The average is updated after the
 * updates that hvt_distopt_average() marks:
 *
 *     ema = ema + (w-ema)/n
 *
 * The first time ema = w. num_batches_tracked is averaged, too, in f32, and rounded down. Skipped updates do
 * not count. The average is f32, needs as much memory as the weights, and is part of the optimizer state:
 * with a sharded update each rank has its slices. Its bits do not depend on ranks, buckets or who updates
 * what. Training ignores it; hvt_distopt_use_average() swaps it into the model. Source:
 * torch/optim/swa_utils.py, AveragedModel with get_ema_multi_avg_fn(decay) or its default, both with
 * use_buffers=True; goldens in tests/golden/ema.txt.
 */
typedef struct hvt_ema {
    double decay; ///< above 0, below 1; 0: no average, or an equal one
    int every;    ///< updates from average to average; 0 is 1
    bool equal;   ///< SWA; decay and every must be 0
} hvt_ema;

/**
 * The options of an optimizer. w is a weight, g its gradient, lr the learning rate.
 *
 * SGD is torch.optim.SGD (torch/optim/sgd.py; goldens in tests/optim/test_optim.c):
 *
 *     g += weight_decay*w
 *     v = g on the first step and without momentum, else momentum*v + (1-dampening)*g
 *     w -= lr * (nesterov ? g + momentum*v : v)
 *
 * Adam and AdamW are torch.optim's (torch/optim/adam.py); m and v are 0 initially. All parameters share t,
 * the number of the update from 1 on, without skipped ones:
 *
 *     g += weight_decay*w          AdamW: w -= lr*weight_decay*w
 *     m += (1-betas[0])*(g - m)
 *     v = betas[1]*v + (1-betas[1])*g*g
 *     w -= lr * u                  u = m/(1-betas[0]^t) / (sqrt(v)/sqrt(1-betas[1]^t) + eps)
 *
 * RMSprop is torch.optim.RMSprop (torch/optim/rmsprop.py) with alpha = betas[1]; v and b are 0 initially:
 *
 *     g += weight_decay*w
 *     v = alpha*v + (1-alpha)*g*g
 *     b = momentum*b + g/(sqrt(v) + eps)
 *     w -= lr*b
 *
 * LARS is timm's (timm/optim/lars.py; You et al. 2017, arXiv 1708.03888): SGD without its first line and with
 * r*(g + weight_decay*w) for g, where r = 0.001*|w| / (|g| + weight_decay*|w| + 1e-8) over the whole tensor.
 *
 * LAMB is timm's (timm/optim/lamb.py; You et al. 2019, arXiv 1904.00962): with m, v and u as Adam's, but of g
 * without weight decay,
 *
 *     u += weight_decay*w
 *     w -= lr * |w|/|u| * u
 *
 * timm's global clipping is clip_norm = 1 of hvt_distopt_opts.
 *
 * The ratios of LARS and LAMB are 1 for tensors without weight decay, and where a norm is 0. The norms are
 * exact sums (beyond blocks of 16 elements), so they have the same bits on any number of ranks and with any
 * kind of update. LARS and LAMB need the sums of all gradients, as clipping does, and a host device. A step
 * with non-finite gradients is skipped, as with clipping.
 *
 * Members of other optimizers must be 0. {0} is SGD without momentum. {.kind = HVT_OPTIM_ADAM} alone is
 * refused, because betas and eps have no defaults: HVT_ADAM_DEFAULTS sets them.
 */
typedef struct hvt_optim_opts {
    float momentum, dampening, weight_decay;
    bool nesterov;      ///< needs momentum > 0 and dampening 0, as in PyTorch
    bool no_decay_norm; ///< batch-norm scale and shift are not decayed
    bool no_decay_bias; ///< biases of linear layers are not decayed
    hvt_optim_kind kind;
    double betas[2]; ///< Adam and LAMB: 0 or more, below 1, and not both 0; RMSprop: 0, and alpha
    double eps;      ///< Adam, LAMB and RMSprop: above 0, also when rounded to f32
    hvt_ema ema;     ///< the average of the weights
} hvt_optim_opts;

/** PyTorch's defaults, as in {HVT_ADAM_DEFAULTS, .kind = HVT_OPTIM_ADAMW, .weight_decay = 0.01f}. */
#define HVT_ADAM_DEFAULTS .betas = {0.9, 0.999}, .eps = 1e-8

/** Create an optimizer for a planned model, which is borrowed. Errors: E_ARG (a value out of its range or of
 * another optimizer, m not planned), E_UNSUPPORTED (RMSprop, LARS or LAMB on a GPU), E_MEM. */
HVT_API hvt_status hvt_optim_create(hvt_model *m, const hvt_optim_opts *opts, hvt_optim **ret_optim);
/**
 * Form a parameter group, as in torch.optim: parameters whose names begin with one of the comma-separated
 * prefixes (one that ends in $ is a whole name) use lr_scale times each update's learning rate, and this
 * weight decay instead of the options'. Norms and biases that the options exempt are not decayed here either.
 * The other parameters form one more group, with the options' values. Checkpoints do not hold groups: create
 * the same ones before resuming. Call it before hvt_distopt_create(), which compares groups over ranks.
 * Errors, which create no group: E_ARG (a value out of its range, a prefix that matches nothing, a parameter
 * in two groups), E_UNSUPPORTED (lr_scale other than 1 on a GPU), E_MEM.
 */
HVT_API hvt_status hvt_optim_group(hvt_optim *optim, const char *prefixes, double lr_scale,
                                   double weight_decay);
/** Free an optimizer, after its distributed ones; else it stays and a line is logged (hvt_device_close()). */
HVT_API void hvt_optim_free(hvt_optim **optim);

/**
 * A learning-rate schedule. e is the epoch, T the number of epochs, W that of warm-up epochs:
 *
 *     constant     lr
 *     step         lr * GAMMA^floor(e / SIZE)
 *     multistep    lr * GAMMA^(number of E_i <= e)
 *     cosine       MIN + (lr - MIN) * (1 + cos(pi * (e - W) / (T - W))) / 2
 *     poly         MIN + (lr - MIN) * (1 - (e - W) / (T - W))^POWER
 *     onecycle     from lr/25 to lr in the first PART of the run, then down to lr/250000, along cosines
 *
 * e is a fraction that grows with every update. With by_epoch it is a whole number, so that rates change once
 * per epoch, like those of PyTorch's schedulers. During the first K = W * updates-per-epoch updates (rounded)
 * update k takes lr * (F + (1 - F) * (k + 1) / K) instead. F is the fraction of the peak that the
 * warm-up starts from; F = 1/ranks is the warm-up of Horovod's Keras callback. Epochs count from the run's
 * start, warm-up included; cosine and poly begin where the warm-up ends, and onecycle has none. Source:
 * torch/optim/lr_scheduler.py; goldens in tests/optim/test_optim.c.
 *
 * name is "constant", "step:SIZE[,GAMMA]", "multistep:E1,E2,...[@GAMMA]", "cosine[:MIN]",
 * "poly[:POWER[,MIN]]" or "onecycle[:PART]". SIZE and E_i are whole epochs above 0, E_i ascend; GAMMA is
 * above 0 (default 0.1); MIN is between 0 and lr (default 0); POWER is above 0 (default 1); PART is between 0
 * and 1 (default 0.3).
 */
typedef struct hvt_schedule_opts {
    const char *name;
    double lr;          ///< peak
    double epochs;      ///< T; for cosine, poly and onecycle
    double warmup;      ///< W, may be a fraction
    double warmup_from; ///< F, 0 to 1
    bool by_epoch;      ///< rates change once per epoch
} hvt_schedule_opts;

typedef struct hvt_schedule hvt_schedule;
/** Parse and create a schedule. Errors: E_ARG with the text, the position and what was expected there, E_MEM.
 */
HVT_API hvt_status hvt_schedule_create(const hvt_schedule_opts *opts, hvt_schedule **ret_schedule);
HVT_API void hvt_schedule_free(hvt_schedule **schedule);
/** The rate for update `step` (0-based) of epoch `epoch` (0-based) with `steps` updates per epoch. */
HVT_API double hvt_schedule_lr(const hvt_schedule *schedule, int epoch, uint32_t step, uint32_t steps);

/*
 * A bucket ends at the end of a layer, so it may exceed its limit. A bucket more than twice as large as the
 * limit is split into pieces of at least 1 MiB. first_bytes is used only if bucket_bytes is a limit.
 */
#define HVT_BUCKET_DEFAULT ((size_t)25 << 20)
#define HVT_BUCKET_ALL     SIZE_MAX

/** How ranks share the work of an update. The results are bit-identical. */
typedef enum hvt_update {
    HVT_UPDATE_AUTO,       ///< sharded on host devices; replicated for one rank, for PowerSGD and, across
                           ///< nodes, for 16-bit wires
    HVT_UPDATE_REPLICATED, ///< every rank updates its own copy of all parameters and optimizer state
    HVT_UPDATE_SHARDED ///< each rank updates its slice for all ranks. The ranks of a node share one copy of
                       ///< the parameters (comm mpi: each rank has one). Optimizer state exists once: in
                       ///< shared memory on one node, in slices on the ranks of several. Host devices only
} hvt_update;

/**
 * Loss scaling keeps small gradients representable in f16: backward starts with the loss gradient times the
 * scale, and the update divides by it. The scale refers to the mean loss of a full shard, as in PyTorch. A
 * step with non-finite gradients updates nothing and halves a dynamic scale, which is doubled after
 * `interval` updates in a row. Source: torch/amp/grad_scaler.py; a table in tests/golden/scaler.txt.
 */
typedef struct hvt_scaling {
    double scale; ///< the initial value; 0: no scaling
    int interval; ///< 0: the scale is fixed; torch.amp.GradScaler has 2000
    double floor; ///< the least scale; gradients that are non-finite even with it end the run
} hvt_scaling;

typedef struct hvt_distopt_opts {
    size_t bucket_bytes; ///< close a bucket at this many f32 bytes; 0 = one per layer; HVT_BUCKET_ALL = one
    size_t
        first_bytes;   ///< the same for the first bucket, so that the exchange starts early; 0 = bucket_bytes
    hvt_dtype wire;    ///< type in which gradients are sent: HVT_F32, HVT_F16 or HVT_BF16; sums are in f32
    int local_shards;  ///< shards that this rank computes per step; ranks may have different numbers
    hvt_update update; ///< who updates what
    hvt_scaling scaling; ///< required with activations in f16
    int check_replicas;  ///< updates between comparisons of the ranks' copies (hvt_distopt_step()); 0: never
    int powersgd;        ///< rank of the low-rank factors of gradients; 0: off
    bool adasum;         ///< shards' gradients are not summed, but added by Adasum, see below
    uint64_t seed;       ///< seed of the first factors
    double clip_norm;    ///< maximum norm of the mean gradient of all parameters; 0: no clipping
    bool sync_batchnorm; ///< batch norms use the statistics of all images of the step, see below
} hvt_distopt_opts;

/**
 * Wrap an optimizer: sum gradients over the ranks in buckets (spans of the gradient arena, in the order in
 * which backward finishes them), then update. A step is
 *
 *     HVT_TRY(hvt_distopt_begin(dist, batch.shard_counts, batch.shards, lr));
 *     for every local shard:
 *         HVT_TRY(hvt_model_forward(m, &batch, true));
 *         HVT_TRY(hvt_model_backward(m, hvt_distopt_on_grad, dist));
 *     HVT_TRY(hvt_distopt_step(dist));
 *
 * Shards are numbered by rank: rank 0 computes the first local_shards, in order, rank 1 the next ones.
 * Gradients are added along one binary tree over all shards: on each level 2i and 2i+1 are added, and an odd
 * last one moves up. So with f32 wires on host devices the result is bit-identical for any buckets, any comm,
 * any number of ranks and any division of the shards among them. A rank whose shards are not one block of the
 * tree contributes several partial sums and needs memory for as many copies of the gradients (at most
 * 2 log2(shards)). With 16-bit wires the result depends on the division, but is equal on all ranks.
 *
 * Synchronized batch norm (torch.nn.SyncBatchNorm): each batch norm uses the mean and variance of all images
 * of the step, over all shards and ranks, in forward and backward. So a step computes what one rank would
 * with all images in one batch. Running statistics are updated with the moments of all images, once per step.
 * Callers still run one pass per shard: every pass but a rank's last only stores its batch, and the last one
 * runs all its shards. Forward and backward are then collective, and wait in each batch norm for all ranks.
 * If a rank may fail earlier, agree (hvt_world_agree()) before the last shard's pass, not after it.
 * Evaluation is unchanged. Bits do not depend on the number of ranks. Costs two small exchanges per batch
 * norm and step, and memory for the activations of all local shards at once. Errors of hvt_distopt_create():
 * E_UNSUPPORTED (layers that share parameters, with local_shards above 1), E_ARG (no batch norm in the
 * model). A training pass outside of a step is E_ARG. Source: torch/nn/modules/_functions.py.
 *
 * PowerSGD: the gradient of a convolution or linear layer, G [k,m] with k filters of m weights, is sent as
 * factors P [k,r] and Q [m,r], r = opts.powersgd, if they are smaller: (k + m) r < k m. Others are sent as
 * they are. A rank keeps the residual E, the part that the factors do not represent:
 *
 *     E += G
 *     P = sum over ranks of E Q, its columns made orthonormal
 *     Q = sum over ranks of E^T P
 *     G = P Q^T
 *     E -= G / ranks
 *
 * Each step starts with the Q of the previous step; the first Q is drawn from the seed, the tensor's name and
 * the element. A step has two rounds of sums with one message per bucket and round. The sum of all E and all
 * applied gradients equals the sum of all gradients up to rounding, in units of the mean gradient, whatever
 * the images of a step and the loss scale. All ranks hold the same bits, which depend on the number of ranks
 * but not on buckets or comm. A skipped update discards its gradients and E, and keeps Q.
 * hvt_distopt_gather() collects E and Q on root for its checkpoint; hvt_distopt_broadcast() returns loaded
 * ones to the ranks. With another number of ranks root gets the sum of all E. Costs an f32 arena on each rank
 * and, on root after a gather and until the next step, one for every rank. Needs f32 wires and a replicated
 * update (E_ARG) and a host device (E_UNSUPPORTED). Source: Vogels et al. 2019, arXiv 1905.13727.
 *
 * Adasum: instead of their mean, the update uses the Adasum of the shards' mean gradients, for each tensor
 * along the tree over shards; see HVT_ADASUM of hvt_allreduce(). Loss scaling, clipping and the optimizer
 * follow. The gradients of shards that point in the same direction are averaged, those of orthogonal ones
 * added. So a learning rate found for one shard needs no factor for many. A rank keeps the gradients of each
 * of its shards. The exchange does not overlap with backward. Bits depend on the number of shards, not on
 * ranks, buckets or comm. Needs f32 wires and a replicated update (E_ARG) and a host device (E_UNSUPPORTED).
 *
 * The model's gradient arena moves into memory of the comm. With a sharded update parameters and optimizer
 * state move, too, into memory that the ranks of a node share if possible. The node takes the values of its
 * first rank, and from then on a rank that initialises or loads parameters does so for the node. All ranks
 * compare build, device, `items` (n of the caller's own), options, tensors and buckets, in this order;
 * E_MISMATCH names the first difference. After that a step sends only gradients. optim and comm are borrowed.
 * Collective. Errors: E_ARG, E_MEM, E_MISMATCH, on all ranks alike.
 */
HVT_API hvt_status hvt_distopt_create(hvt_optim *optim, hvt_comm *comm, const hvt_distopt_opts *opts,
                                      const hvt_item *items, int n, hvt_distopt **ret_dist);
/** Free a distributed optimizer; the model and the optimizer get their own arenas back. Sliced optimizer
 * state is complete on ranks where hvt_distopt_gather() has just collected it, and reset on others.
 * Collective. */
HVT_API void hvt_distopt_free(hvt_distopt **dist);
/** Free it without copying the arenas back: afterwards the model and the optimizer can only be freed.
 * Collective. */
HVT_API void hvt_distopt_discard(hvt_distopt **dist);
/** Bytes of optimizer state on this rank, the average of the weights included; memory shared by the ranks of
 * a node is divided equally. */
HVT_API size_t hvt_distopt_state_bytes(const hvt_distopt *dist);
/** Plan new buckets between steps, as if it had been created with these sizes. Graphs must have been freed.
 * Does not change the result of training. Collective. Errors, on every rank alike, which keep the old plan:
 * E_ARG (in the middle of a step), E_MEM, E_MISMATCH (the ranks ask for different buckets). */
HVT_API hvt_status hvt_distopt_replan(hvt_distopt *dist, size_t bucket_bytes, size_t first_bytes);
/** Copy parameters, running statistics and optimizer state from root to all ranks. Sliced state stays as it
 * is unless root has loaded it. Collective, between steps. */
HVT_API hvt_status hvt_distopt_broadcast(hvt_distopt *dist, int root);
/** Collect sliced optimizer state on root (-1: on every rank) for hvt_checkpoint_save(); it stays there until
 * the next step. Collective, between steps. Errors: E_ARG, E_MEM, E_COMM. */
HVT_API hvt_status hvt_distopt_gather(hvt_distopt *dist, int root);
/**
 * Swap the average of weights and running statistics (see hvt_ema) into the model, to evaluate or export it,
 * or swap the model's own values back, to the bit. Nothing is allocated; with a sliced average it costs an
 * allgather of the parameters. Until the values are swapped back, do not call step, broadcast or anything
 * else that moves or saves optimizer state. Does nothing if there is no average yet or the model already has
 * the requested values. Collective, between steps. Errors: E_ARG, E_COMM.
 */
HVT_API hvt_status hvt_distopt_use_average(hvt_distopt *dist, bool average);
/**
 * Lookahead (Zhang et al. 2019, arXiv 1907.08610; airbench): if the last update updated the average of
 * hvt_ema, the model continues from the average's weights and running statistics. The optimizer's state
 * stays. `decay` replaces hvt_ema's from the next update on. Call it after every hvt_distopt_step(), and
 * before the first one. Collective, between steps. Errors: E_ARG (an optimizer without an average, a decay
 * that is not from 0 to below 1), E_UNSUPPORTED (a GPU), E_COMM.
 */
HVT_API hvt_status hvt_distopt_look_ahead(hvt_distopt *dist, double decay);
/** The weights after the next update count in the equal average (hvt_ema), unless that update is skipped.
 * Does nothing without such an average. Call it on all ranks, before hvt_distopt_begin(). */
HVT_API void hvt_distopt_average(hvt_distopt *dist);
/** Number of updates of the average so far; 0: no average, or on failure. Waits for the device. */
HVT_API int64_t hvt_distopt_averages(const hvt_distopt *dist);

/** Divide the shards among the ranks anew, between steps: from the next step on, this rank works through
 * local_shards shards. The total over all ranks must not change. Collective. Errors: E_ARG (less than 1,
 * another total, in the middle of a step; the old division holds), E_MEM (no step can follow). */
HVT_API hvt_status hvt_distopt_divide(hvt_distopt *dist, int local_shards);
/** Start a step. shard_counts[shards]: images per shard of this step (hvt_batch has them); lr: the learning
 * rate of this update. Both must be equal on all ranks. Sends nothing: hashes of both are summed with the
 * losses, and hvt_distopt_step() reports differences. Errors: E_ARG (not local_shards * ranks shards, a
 * negative count, no image at all, a rate below 0 or not finite). */
HVT_API hvt_status hvt_distopt_begin(hvt_distopt *dist, const int *shard_counts, int shards, double lr);
/** The hvt_grad_fn to pass to hvt_model_backward(), once per local shard and step, also for empty shards.
 * Sends a bucket as soon as the last shard's backward has passed its end. Errors: E_ARG, also if the batch
 * of the forward pass is not the expected shard or not of the size given to hvt_distopt_begin(); E_COMM. */
HVT_API hvt_status hvt_distopt_on_grad(void *dist, size_t first, size_t end);
/**
 * End the step: wait for the sums, divide by the global number of images, update parameters and running
 * statistics, count the loss.
 *
 * With a 16-bit wire or loss scaling a sum may be non-finite. Then no rank updates any parameter, and the
 * skip is counted; running statistics and the loss, which are sent as f32, are kept. A run ends at the first
 * such step at the least loss scale or, with a fixed scale, at the hundredth in a row.
 *
 * If ranks began the step with different learning rates or shard counts, all get E_MISMATCH naming the first
 * difference, its values and the ranks, in the same step and before any update. The next step may be begun.
 *
 * Clipping, as torch.nn.utils.clip_grad_norm_: gradients are multiplied by clip_norm / (norm + 1e-6) if that
 * is below 1. The norm is that of the mean gradient of all trained parameters, without the loss scale. With
 * clipping, a step with non-finite gradients is skipped, whatever the wire. Given the same sums, the norm's
 * bits do not depend on ranks, buckets or who updates what. Clipping costs a pass over the sums, and the
 * update starts only when all sums have arrived.
 *
 * Replica check: after every check_replicas-th update ranks compare hashes of their copies of parameters (not
 * of shared ones), of optimizer state that is not sliced, and of 16-bit copies of parameters that the update
 * wrote completely. If they differ, all ranks get E_MISMATCH naming the first tensor and the ranks, before
 * the next update. Costs one pass over these arenas and one small message.
 *
 * Collective. Async: on a device with a queue the host does not wait, and hvt_distopt_check() reports errors;
 * no step after the failed one updates anything. Errors on other devices: E_MISMATCH; E_DIVERGED if the
 * summed loss is non-finite or gradients end the run (naming the first such parameter), on all ranks alike,
 * before any update.
 */
HVT_API hvt_status hvt_distopt_step(hvt_distopt *dist);
/**
 * Abandon the current step, before hvt_distopt_step(), wherever each rank is in it. Exchanges in flight are
 * completed and discarded; no parameter, running statistic or count has changed, and the next step may be
 * begun. PowerSGD's residuals are discarded as by a skipped update. Ranks that have not begun the step call
 * it, too. Collective: agree first (hvt_world_agree()) that a rank cannot continue. Errors: E_COMM.
 */
HVT_API hvt_status hvt_distopt_abandon(hvt_distopt *dist);
/**
 * A captured step (a CUDA graph): recorded once and launched many times, on devices that support it. The host
 * then spends one call per step, whatever the number of layers. After some ordinary steps
 *
 *     HVT_TRY(hvt_distopt_begin(dist, ...));
 *     HVT_TRY(hvt_distopt_capture(dist));
 *     forward, backward, hvt_distopt_step() as usual: recorded, not run
 *     HVT_TRY(hvt_distopt_capture_end(dist, &graph));  // runs the step
 *
 * and then, for every step whose batch has the same address and shard counts,
 *
 *     HVT_TRY(hvt_distopt_begin(dist, ...));
 *     HVT_TRY(hvt_distopt_replay(dist, graph));
 *
 * which gives the same bits. Ordinary steps may come in between. Free a graph before its distributed
 * optimizer. Collective, like the step.
 */
typedef struct hvt_graph hvt_graph;
/** Reason why steps cannot be captured here, as a phrase; NULL if they can. */
HVT_API const char *hvt_distopt_uncapturable(const hvt_distopt *dist);
/** Start recording the step that hvt_distopt_begin() has begun. Errors: E_UNSUPPORTED, E_ARG, E_DEVICE. */
HVT_API hvt_status hvt_distopt_capture(hvt_distopt *dist);
/** End the capture and launch the step. If something failed since hvt_distopt_capture(), call it with
 * ret_graph NULL. If any rank failed, the step runs on none, all ranks get the first failure, and
 * hvt_distopt_begin() may begin the step again. Collective. Errors: E_DEVICE, E_MEM, E_ARG (before
 * hvt_distopt_step()), E_COMM. */
HVT_API hvt_status hvt_distopt_capture_end(hvt_distopt *dist, hvt_graph **ret_graph);
/** Launch a captured step. Errors: E_ARG (other shard counts than captured, in the middle of a step). */
HVT_API hvt_status hvt_distopt_replay(hvt_distopt *dist, hvt_graph *graph);
HVT_API void hvt_graph_free(hvt_graph **graph); ///< NULL is fine

/** Wait for all steps, warn of skipped updates, and report whether a step ended the run; later steps have
 * changed nothing. Call it after the same step on all ranks. Errors: E_DIVERGED and E_MISMATCH, see
 * hvt_distopt_step(), on all ranks alike. After E_DIVERGED hvt_model_init() starts a new run. */
HVT_API hvt_status hvt_distopt_check(hvt_distopt *dist);
/** As of the last check: the step that ended the run, counted from 1 since the model was planned; 0: none. */
HVT_API int64_t hvt_distopt_stopped(const hvt_distopt *dist);
/**
 * A rank's request to all ranks: to save, to stop. Votes are summed with the step statistics, so they cost no
 * message, and every rank sees the same number after the same step.
 *
 *     hvt_distopt_vote(dist, HVT_VOTE_STOP, a_signal_came);   // before hvt_distopt_begin()
 *     ... the step ...
 *     if (hvt_distopt_votes(dist, HVT_VOTE_STOP))             // on a device with a queue, after a check
 *         save and leave, as all other ranks do now
 */
typedef enum hvt_vote { HVT_VOTE_SAVE, HVT_VOTE_STOP, HVT_VOTES } hvt_vote;
/** Set this rank's vote for each step from the next one on. Not collective. */
HVT_API void hvt_distopt_vote(hvt_distopt *dist, hvt_vote vote, bool wants);
/** Number of such votes over all ranks and steps as of the last check (on a host device every step checks);
 * the same on all ranks. */
HVT_API int64_t hvt_distopt_votes(const hvt_distopt *dist, hvt_vote vote);
/** Seconds spent waiting for sums in hvt_distopt_step() since the last call. */
HVT_API double hvt_distopt_take_exposed(hvt_distopt *dist);
/** As of the last check: updates skipped since the model was planned, because gradients were not finite. */
HVT_API int64_t hvt_distopt_skipped(const hvt_distopt *dist);
/** Bytes that a rank contributes to the sums of a step. */
HVT_API size_t hvt_distopt_bytes(const hvt_distopt *dist);
/** The update in use: HVT_UPDATE_REPLICATED or HVT_UPDATE_SHARDED. */
HVT_API hvt_update hvt_distopt_update(const hvt_distopt *dist);
/** The loss scale as of the last check; 1 without loss scaling. */
HVT_API double hvt_distopt_loss_scale(const hvt_distopt *dist);
/** The number of buckets. ret_bytes: f32 bytes of each, in launch order, valid until the next plan. */
HVT_API int hvt_distopt_buckets(const hvt_distopt *dist, const size_t **ret_bytes);

HVT_C_END
#endif /* HVT_OPTIM_H */
