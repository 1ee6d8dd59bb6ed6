/**
 * @file model.h
 * A model is a tape: layers in execution order. Forward runs them from first to last, backward from last to
 * first. Builders append layers (hvt/layers.h); planning fixes them.
 *
 *     hvt_value x = hvt_input(m, 32, 32, 3);
 *     hvt_name(m, "conv1"); x = hvt_conv2d(m, x, 16, 3, 1, 1);
 *     hvt_name(m, "bn1");   x = hvt_relu(m, hvt_batchnorm(m, x));
 *                           x = hvt_avgpool(m, x);
 *     hvt_name(m, "fc");    x = hvt_linear(m, x, 10);
 *     HVT_TRY(hvt_model_plan(m, 128, x));
 */
#ifndef HVT_MODEL_H
#define HVT_MODEL_H

#include "hvt/layers.h"

HVT_C_BEGIN

/**
 * The kind of loss. Logits are [N,K] or, if outputs are images (segmentation, autoencoders), [N,K,H,W]. In
 * that case each pixel has a label, and labels below 0 are ignored. The cross-entropy over a global batch is
 *
 *     loss = sum of -log softmax(logits[n,:,h,w])[label[n,h,w]] over labelled pixels / their number
 *
 * which is torch.nn.functional.cross_entropy(logits, labels, ignore_index=...) of the whole batch. The
 * divisor counts the labelled pixels of all shards, so neither shards nor ranks change the loss.
 * (DistributedDataParallel computes a mean of means, which gives pixels of sparsely labelled shards more
 * weight.) A step without a labelled pixel has loss and gradients 0.
 */
typedef enum hvt_loss_kind {
    HVT_LOSS_CE,  ///< softmax cross-entropy of the logits and a label, in nats
    HVT_LOSS_MSE, ///< mean over an image's outputs of (output - target)^2: torch.nn.MSELoss
    HVT_LOSS_BCE, ///< mean over the classes of the binary cross-entropy of sigmoid(logit) and the label's
                  ///< one-hot row, or a soft target: torch.nn.BCEWithLogitsLoss, timm's BinaryCrossEntropy;
                  ///< host devices
    HVT_LOSS_MAE  ///< mean over an image's outputs of |output - target|, with slope 0 at 0: torch.nn.L1Loss
} hvt_loss_kind;

/** True for the losses of targets, HVT_LOSS_MSE and HVT_LOSS_MAE. The others compare labels. */
static inline bool hvt_loss_has_targets(hvt_loss_kind kind)
{
    return kind == HVT_LOSS_MSE || kind == HVT_LOSS_MAE;
}

/** Sums over valid images since the last hvt_model_take_loss(); over all ranks with a distributed
 * optimizer. With labels of pixels, sums over labelled pixels. */
typedef struct hvt_loss {
    double sum;    ///< sum of the losses of images or pixels
    int64_t top1;  ///< images or pixels whose largest logit is the label; 0 with targets
    int64_t top5;  ///< images whose label is among the five largest logits; 0 for pixels and targets
    int64_t count; ///< images or labelled pixels
    double error; ///< with targets: sum over images of the mean of |output - target| over the outputs; else 0
    double iou;   ///< evaluation with labels of pixels: mean IoU, see hvt_evaluate(); else 0
} hvt_loss;

/** hvt_model_backward() calls it when gradients [first, end) of the gradient arena are final for the pass. */
typedef hvt_status hvt_grad_fn(void *ctx, size_t first, size_t end);

/** Create a model without layers, to run on dev, which is borrowed. Errors: E_ARG no device, E_MEM. */
HVT_API hvt_status hvt_model_create(hvt_device *dev, hvt_model **ret_model);
/** Free a model, after its optimizers; else it stays and a line is logged: see hvt_device_close(). */
HVT_API void hvt_model_free(hvt_model **model);

/**
 * The zoo's models: X(name, whether imagenet_stem changes it, whether projection does). --model takes these
 * names. Parameters have the names of the state_dict:
 *
 *  - resnet18 to resnet152, resnext50_32x4d, wide_resnet50_2: torchvision's.
 *  - resnet20 to resnet110: those of He et al. 2015 for CIFAR.
 *  - mobilenet_v2: torchvision's, but its classifier is initialised as torch.nn.Linear, U(+-1/sqrt(1280)),
 *    not N(0, 0.01).
 *  - airbench94: the network of Jordan 2024, arXiv 2404.00498, for images of 32x32: 2x2 filters, for
 *    hvtrain's --whiten, then three groups of two 3x3 convolutions; logits are multiplied by 1/9. Layers have
 *    the names of its torch.nn.Sequential.
 *  - mlp: torch.nn.Sequential(Flatten(), Linear(C*H*W, 512), ReLU(), Linear(512, 512), ReLU(), Linear(512,
 *    classes)); layers are named "1", "3" and "5".
 */
#define HVT_ZOO(X)                                                                                           \
    X(resnet18, 1, 0)                                                                                        \
    X(resnet34, 1, 0)                                                                                        \
    X(resnet50, 1, 0)                                                                                        \
    X(resnet101, 1, 0)                                                                                       \
    X(resnet152, 1, 0)                                                                                       \
    X(resnet20, 0, 1)                                                                                        \
    X(resnet32, 0, 1)                                                                                        \
    X(resnet44, 0, 1)                                                                                        \
    X(resnet56, 0, 1)                                                                                        \
    X(resnet110, 0, 1)                                                                                       \
    X(resnext50_32x4d, 1, 0)                                                                                 \
    X(wide_resnet50_2, 1, 0)                                                                                 \
    X(mobilenet_v2, 1, 0)                                                                                    \
    X(airbench94, 0, 0)                                                                                      \
    X(mlp, 0, 0)

typedef struct hvt_zoo_opts {
    bool imagenet_stem; ///< torchvision's stem: ResNets 7x7 stride 2 and max-pool, else 3x3 stride 1 (CIFAR);
                        ///< mobilenet_v2 3x3 stride 2, else stride 1, also in the stage of 24 filters
    bool projection;    ///< resnet20..110: shortcut option B (1x1 convolution), else A
    bool no_dropout;    ///< mobilenet_v2: omit the dropout (p = 0.2) before its last layer
} hvt_zoo_opts;

/** Append a model of the zoo, from images to logits. Names: hvt_zoo_name(0 ..) until NULL. opts NULL: all
 * false. Mistakes: an unknown name. */
HVT_API hvt_value hvt_zoo(hvt_model *m, const char *name, hvt_value images, int classes,
                          const hvt_zoo_opts *opts);
HVT_API const char *hvt_zoo_name(int i);
/** The members of hvt_zoo_opts that change this model; none for an unknown name. */
HVT_API hvt_zoo_opts hvt_zoo_takes(const char *name);

typedef struct hvt_pt2 hvt_pt2;
/** Description of a .pt2 file. */
typedef struct hvt_pt2_info {
    int height, width, channels; ///< of its example images
    int classes;                 ///< outputs of its last layer
    int outputs;                 ///< outputs of the model; only the first is built
    const char *output;          ///< key of the first one, if the model returns a dict; else NULL
    int unused; ///< parameters that the output does not depend on and that are not built, such as those of
                ///< auxiliary classifiers
    const char *first_unused; ///< name of one of them; NULL: none
    int norms, fixed_norms;   ///< batch norms, and those built by hvt_batchnorm_fixed(): in eval() mode, in a
                              ///< file with other norms, dropout or stochastic depth in train() mode
    /** The whole model was in eval() mode. Its batch norms are built by hvt_batchnorm_with(). */
    bool eval_mode;
    /** Buffers of the state_dict that the model updates but its output does not depend on, such as a counter
     * of calls. They keep the file's values. first_changed: one of them; NULL: none. */
    int changed;
    const char *first_changed;
    /** The model ends in log_softmax, which is omitted: it changes neither cross-entropy nor predictions.
     * Losses other than HVT_LOSS_CE would differ from the model's. */
    bool log_softmax;
    bool weights;     ///< hvt_pt2_load() can read them; false if they are pickled, as up to PyTorch 2.8
    bool trained;     ///< the weights of a norm differ from 0 and 1, so somebody has trained them
    const char *head; ///< name of the last layer
} hvt_pt2_info;

/**
 * Open a PyTorch model written by `torch.export.save(torch.export.export(model, (images,)), "net.pt2")`.
 * Nothing in it is unpickled or executed. Files exported in train and in eval mode both train with batch
 * statistics and evaluate with running statistics. Exception: batch norms in eval mode keep their running
 * statistics if other norms, dropout or stochastic depth are in train mode. Only a file exported in train
 * mode contains dropout and stochastic depth. Source: torch/_export/serde/schema.py, major version 8
 * (PyTorch 2.6 and later).
 *
 * Errors: E_IO, E_FORMAT (damaged, or no such file), E_UNSUPPORTED (more than one input; unsupported
 * operations or uses of them: names them all, with layer and source line), E_MEM, E_DEVICE. hvt_pt2_build()
 * succeeds for every file that opens, with the file's number of classes.
 */
HVT_API hvt_status hvt_pt2_open(const char *path, hvt_pt2 **ret_file);
HVT_API void hvt_pt2_close(hvt_pt2 **file);
HVT_API hvt_pt2_info hvt_pt2_describe(const hvt_pt2 *file); ///< NULL: zeros
/** Append the model to m, from `images`, an hvt_input() of its size, to the logits. classes: outputs of its
 * last layer; 0: as in the file. Layers have the names of the state_dict, so hvtrain's checkpoints load by
 * load_state_dict(). Parameters with requires_grad=False in the file are frozen as by hvt_model_freeze(),
 * whose next call replaces that. A last layer with another number of classes is not frozen. Errors:
 * E_UNSUPPORTED (an operation that cannot have another number of classes: names it, layer and line), E_MEM.
 */
HVT_API hvt_status hvt_pt2_build(const hvt_pt2 *file, hvt_model *m, hvt_value images, int classes,
                                 hvt_value *ret_logits);
/** Set the parameters, running statistics and num_batches_tracked of m, which was built from this file and
 * planned, to the file's. Tensors whose shape depends on a changed number of classes keep their values.
 * Errors: E_UNSUPPORTED (!weights), E_FORMAT, E_IO, E_MEM, E_DEVICE. */
HVT_API hvt_status hvt_pt2_load(const hvt_pt2 *file, hvt_model *m);

/** Store activations and their gradients in t: HVT_F32 (the default), HVT_F16 or HVT_BF16. Parameters, their
 * gradients, running statistics and the loss remain f32; convolutions and linear layers read a copy of their
 * weights in t. All sums are f32. Call it before hvt_model_plan(). Errors: E_ARG. */
HVT_API hvt_status hvt_model_set_type(hvt_model *m, hvt_dtype t);

/**
 * Freeze parameters, as requires_grad_(False) does in PyTorch: those whose names begin with one of the
 * comma-separated `prefixes` ("conv1,bn1,layer1."). A prefix that ends in $ is a whole name ("fc.bias$").
 * NULL or "": none. A later call replaces an earlier one. Frozen parameters have no gradient, momentum or
 * weight decay, and are not exchanged. Backward stops at the first layer with a trained parameter and keeps
 * no activations before it. A frozen batch norm still normalises with the batch's statistics and updates its
 * running statistics, as in PyTorch's train mode.
 *
 * Call it before hvt_model_plan(), which fails with E_ARG if a prefix matches no parameter (and lists the
 * names) or if all parameters are frozen. Must be equal on all ranks: hvt_distopt_create() compares. Errors:
 * E_ARG (planned already, or an empty prefix), E_MEM.
 */
HVT_API hvt_status hvt_model_freeze(hvt_model *m, const char *prefixes);
/** Turn all batch norms of m so far into hvt_batchnorm_fixed(). Call it before hvt_model_plan(). Errors:
 * E_ARG (planned already, no batch norm). */
HVT_API hvt_status hvt_model_fix_norms(hvt_model *m);

/**
 * Give parameter `of` a second name, as in PyTorch's state_dict() of a model that uses a layer twice.
 * hvt_model_get() and hvt_model_set() take either name. Checkpoints hold the values under both, as
 * load_state_dict() requires; files with only one of them can be read. hvt_model_named() counts the parameter
 * once. Call it before hvt_model_plan(), which fails with E_ARG if no parameter is named `of` or another
 * tensor has the second name. Errors: E_ARG (planned already, or a name that is empty or has more than 95
 * bytes), E_MEM.
 */
HVT_API hvt_status hvt_model_alias(hvt_model *m, const char *name, const char *of);

/** Restrict the model to inference: all parameters are frozen, there are no gradients, and an activation's
 * memory is reused after its last reader in forward. Call it before hvt_model_plan(). hvt_model_forward()
 * with `train` fails with E_ARG; an optimizer has nothing to update and no state. Must be equal on all
 * ranks: hvt_distopt_create() compares. Errors: E_ARG (planned already). */
HVT_API hvt_status hvt_model_set_inference(hvt_model *m);

typedef struct hvt_loss_opts {
    hvt_loss_kind kind;
    /** s of torch.nn.CrossEntropyLoss(label_smoothing=s), 0 to 1: in training the target is (1 - s) * onehot
     * + s / classes; a batch's targets, if it has any, replace onehot. Evaluation uses the loss of onehot,
     * so that runs with different s can be compared. */
    float label_smoothing;
} hvt_loss_opts;

/** Set the loss of training and evaluation; the default is cross-entropy. Must be equal on all ranks. Call it
 * before hvt_model_plan(). Errors: E_ARG (planned already, an unknown kind, a label_smoothing below 0, above
 * 1, or with targets), E_UNSUPPORTED (HVT_LOSS_BCE on a device that is not the host). */
HVT_API hvt_status hvt_model_set_loss(hvt_model *m, const hvt_loss_opts *opts);

/**
 * Set class weights for the cross-entropy of training: torch.nn.CrossEntropyLoss(weight=w). An image of
 * class y counts w[y] times, and the update's gradient is that of the weighted mean over all its images,
 *
 *     sum of w[y] * loss / sum of w[y],
 *
 * where both sums are over all shards, not the mean of the shards' means. The divisor is added along the tree
 * of the gradients, so no bit depends on ranks. With soft targets t the loss is sum_k w[k] * t[k] * -log
 * p[k], and the divisor is the number of images, as in PyTorch. Reported losses of training are these means;
 * evaluation is not weighted. weights: [classes], copied; NULL: none. Must be equal on all ranks. Call it
 * before hvt_model_plan(), which fails with E_SHAPE for another number of classes. Errors: E_ARG (planned
 * already, a weight that is not a finite number above 0), E_MEM, E_UNSUPPORTED (a device that is not the
 * host).
 */
HVT_API hvt_status hvt_model_set_class_weights(hvt_model *m, const float *weights, int classes);

/** The order of a split model's passes, which does not change results: all forward passes, then all backward
 * passes; or backward passes as early as possible, alternating with forward passes. */
typedef enum hvt_pipeline {
    HVT_PIPELINE_GPIPE, ///< each device keeps the activations of all shards of a step
    HVT_PIPELINE_1F1B   ///< of K devices, device k (from 0) keeps the activations of K - k shards
} hvt_pipeline;

typedef struct hvt_split_opts {
    /** [count], borrowed until the model is freed. The model's own device, which may be the first of them or
     * have the cores of all, updates the parameters. */
    hvt_device *const *devices;
    int count; ///< 1: not split; memory_limit still applies
    /** Cut before each of these layers or modules, named in the model's order, with commas: "layer2,layer4".
     * NULL: cuts that balance the devices' estimated times within memory_limit. */
    const char *at;
    hvt_pipeline pipeline;
    int micro_batches;   ///< local shards of a step, to plan memory for; 0: 1
    size_t memory_limit; ///< of each device, in bytes: parameters and gradients of its layers, activations
                         ///< and workspace, without optimizer state. 0: none
} hvt_split_opts;

/**
 * Put consecutive layers on each of several devices (model parallelism). The local shards of a step are its
 * micro-batches: they run through the devices as a pipeline, with a thread for each device; the first device
 * uses the caller's. The bits are those of as many local shards on one device. Each device needs cores of its
 * own (hvt_device_opts.cpus). Devices must compute in the host's memory and be of one kind and
 * instruction set. Exactly one value may cross a cut, and layers on both sides may not share parameters.
 *
 * Training passes belong to steps of a distributed optimizer, as with synchronized batch norm: each pass but
 * the last only stores its batch, and the last hvt_model_backward() runs all. With
 * synchronized batch norm the devices take turns. Other passes run on the caller's thread, device after
 * device.
 *
 * Call it before hvt_model_plan(), which fails with E_ARG for an unknown name, a cut that several values or
 * shared parameters cross, a device without layers, or a wrong number of names; with E_MEM, naming the device
 * and both numbers, if a device needs more than memory_limit. Errors: E_ARG (planned already, a device twice
 * or of another kind), E_UNSUPPORTED (a GPU), E_MEM.
 */
HVT_API hvt_status hvt_model_split(hvt_model *m, const hvt_split_opts *opts);
/** The name of the first layer on device i of a planned split model, and the bytes of its activations. NULL:
 * the model is not split, or has no such device. */
HVT_API const char *hvt_model_stage(const hvt_model *m, int i, size_t *ret_bytes);

/** Fix shapes, algorithms and memory for `batch` images per shard; `logits` are the outputs that the loss is
 * computed from: K for each image, or K for each of H x W pixels. Errors: E_SHAPE names the first mistaken
 * layer and its shapes (with cross-entropy also for logits of one class), E_MEM, E_ARG (no batch, planned
 * already), E_UNSUPPORTED (the device does not compute in this type; outputs of pixels on a GPU). After E_MEM
 * a smaller batch may be tried. */
HVT_API hvt_status hvt_model_plan(hvt_model *m, int batch, hvt_value logits);
HVT_API hvt_order hvt_model_order(const hvt_model *m);      ///< the row order that the input must have
HVT_API hvt_dtype hvt_model_input_type(const hvt_model *m); ///< the type that the input must have
/** Channels with which an input pixel must be stored: its own, then zeros if more are faster on the device.
 */
HVT_API int hvt_model_input_channels(const hvt_model *m);
/** The minimum number of images in a training batch: 2 with a batch norm over one pixel, as after global
 * pooling, else 1. A single value equals its mean, so the norm would return only the bias. PyTorch refuses
 * that ("Expected more than 1 value per channel when training"), and so does hvtrain. */
HVT_API int hvt_model_least(const hvt_model *m);
HVT_API size_t hvt_model_parameters(const hvt_model *m); ///< scalars, as papers count them
HVT_API size_t hvt_model_frozen(const hvt_model *m);     ///< frozen scalars
HVT_API size_t hvt_model_bytes(const hvt_model *m);      ///< all arenas and workspaces together
/** Breakdown of hvt_model_bytes(). */
typedef struct hvt_memory {
    size_t parameters;  ///< running statistics and 16-bit copies included
    size_t gradients;   ///< of parameters
    size_t activations; ///< and their gradients, which reuse memory freed by backward
    size_t workspace;
} hvt_memory;
HVT_API hvt_memory hvt_model_memory(const hvt_model *m);
HVT_API int hvt_model_classes(const hvt_model *m); ///< outputs of the last layer; 0: not planned
/** Height, width and K of an image's logits [K,H,W]; 1, 1, K of a classifier; 0: not planned. */
HVT_API void hvt_model_output(const hvt_model *m, int ret_hwc[3]);

/** torchvision's initialisation (kaiming normal, fan out; linear U(+-1/sqrt(fan in))), keyed by (seed,
 * parameter name, element): the same on every device. Starts a new run: resets running statistics, momentum,
 * the loss scale and the state of gradient compression, and clears E_DIVERGED, so that the model's
 * distributed optimizer may be used again. Counters of steps and of skipped updates continue. Call it
 * between steps, on all ranks. */
HVT_API hvt_status hvt_model_init(hvt_model *m, uint64_t seed);

/** hvt_model_init() without drawing weights: parameters and running statistics stay as they are. For models
 * whose weights are then all set by hvt_weights_load(), hvt_pt2_load() or hvt_model_set(); until then a new
 * model's are undefined. (Drawing ResNet-50's takes 0.6 s on one core of Zen 3.) */
HVT_API hvt_status hvt_model_restart(hvt_model *m, uint64_t seed);

/** Run the layers from images to logits and loss. train: use batch statistics and keep activations for
 * backward; else use running statistics. Backward reads the batch again, so it must stay valid until then.
 * Errors: E_SHAPE (not as planned), E_ARG (not planned; shard or count do not agree with its shard_counts; a
 * label out of range: names it, the image and the shard. On devices whose memory the host cannot read, the
 * loss of such an image is NaN instead).
 *
 * The loss uses the batch's labels or, with HVT_LOSS_MSE and HVT_LOSS_MAE, its targets. Without them (data
 * NULL) there is no loss, hvt_model_rows() fails, and a training pass continues with
 * hvt_model_backward_from(). */
HVT_API hvt_status hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train);
/** A forward pass of inference over the batch and over its mirror images (left-right): the logits become the
 * mean of both, and the loss is that of these logits, for hvt_model_logits() and hvt_model_rows() (test-time
 * augmentation). With `shifted`, this mean counts half, and the means of the images shifted by a pixel
 * up-left and down-right, continued by reflection, a quarter each (airbench's tta_level 2). The pass
 * overwrites the images and restores them, unless it fails. Errors: those of hvt_model_forward(),
 * E_UNSUPPORTED (a device that is not the host, a split model), E_MEM. */
HVT_API hvt_status hvt_model_forward_flipped(hvt_model *m, const hvt_batch *batch, bool shifted);
/** Compute gradients of the loss SUM over the batch's valid images (not the mean). on_grad (may be NULL) is
 * called after a layer's backward passes, with contiguous spans from 0 to the arena's end: first the step
 * statistics, then layer by layer, also for a batch of 0 images (all zeros). Call it once per training
 * forward pass with labels or targets. Errors: E_ARG (no such pass), E_DEVICE, E_COMM (synchronized batch
 * norm), those of on_grad. */
HVT_API hvt_status hvt_model_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);
/**
 * hvt_model_backward() for the caller's own loss, after a training forward pass without labels or targets:
 *
 *     HVT_TRY(hvt_model_forward(m, &batch, true));   // batch.labels.data and batch.targets.data are NULL
 *     HVT_TRY(hvt_model_logits(m, logits));
 *     ...                                            // logits -> loss, dlogits
 *     HVT_TRY(hvt_model_backward_from(m, dlogits, loss, hvt_distopt_on_grad, dist));
 *
 *     dlogits   f32 [count,K] or [count,K,H,W] in host memory, in the order of hvt_model_logits(): the
 *               gradient of the loss SUM over the valid images. The optimizer divides by the images of the
 *               global batch; so for a mean loss, pass the gradient of each image's own loss. Loss scaling
 *               (f16) is applied here. May be NULL for a batch of 0 images.
 *     loss      the loss SUM over the valid images, for hvt_model_take_loss(), without top1, top5 and error;
 *               0 if it is not needed. A non-finite loss ends the run as usual.
 *
 * Waits for the device. Not allowed while a step is captured (hvt_distopt_capture()): a replay would repeat
 * these gradients. Errors: E_ARG (no such pass, no gradient), E_MEM, E_DEVICE, E_UNSUPPORTED (a
 * split model or hvt_distopt_opts.sync_batchnorm, which may defer forward passes to the rank's last shard).
 */
HVT_API hvt_status hvt_model_backward_from(hvt_model *m, const float *dlogits, double loss,
                                           hvt_grad_fn *on_grad, void *ctx);
/** Training loss since the last call. Waits for all steps so far. A step's loss is added when it ends
 * (hvt_distopt_step()). Errors: E_ARG (not planned). */
HVT_API hvt_status hvt_model_take_loss(hvt_model *m, hvt_loss *ret_loss);
/** For each valid image of the last forward pass: loss in nats, and the label's rank among the logits (0 =
 * largest; of equal logits the lower index ranks first). Arrays have the planned batch size; with logits of
 * pixels they are [batch,H,W], and an ignored pixel has loss 0 and rank -1. Errors: E_ARG (no forward pass,
 * no labels, a loss of targets). */
HVT_API hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank);
/** The same with a loss of targets: for each image its loss, and the mean over its outputs of |output -
 * target|. Errors: E_ARG. */
HVT_API hvt_status hvt_model_errors(hvt_model *m, float *ret_loss, float *ret_error);

/** The class of the largest logit of each image or pixel of the last forward pass: [images] or [images,H,W].
 * As in torch.argmax(), the lower of equal logits wins, and NaN wins over all numbers. Errors: E_ARG (no
 * forward pass), E_UNSUPPORTED (a GPU). */
HVT_API hvt_status hvt_model_predicted(hvt_model *m, int32_t *ret_classes);

/** Logits of the valid images of the last forward pass: f32 [images,K] or [images,K,H,W] in host memory, one
 * image after the other. The pass must be inference, or training without labels and targets whose backward
 * has not run. 16-bit activations are widened. Waits for the device. Errors: E_ARG (no such pass), E_MEM. */
HVT_API hvt_status hvt_model_logits(hvt_model *m, float *ret_logits);
/**
 * Logits of n images in inference mode, with the running statistics of the last step; no labels needed:
 *
 *     images      f32 [n,h,w,c] in host memory, N,H,W,C, normalised as those that the model was trained on:
 *                 x = (byte/255 - mean) / std, with the sizes given to hvt_input()
 *     ret_logits  f32 [n,K] or [n,K,H,W] in host memory; softmax over K makes probabilities
 *
 * n may be any number >= 0: images run in batches of the planned size. An image's logits depend neither on n
 * nor on its place, and equal those of hvt_model_forward() on a loader's batch, to the bit. The first call
 * allocates room for one batch, which the model keeps. A training pass whose backward has not run is dropped.
 * Not collective: a rank may predict on its own, between its steps. Errors: E_ARG (not planned, NULL, n below
 * 0), E_MEM, E_DEVICE; ret_logits is undefined then.
 */
HVT_API hvt_status hvt_model_predict(hvt_model *m, const float *images, int64_t n, float *ret_logits);

/** Images in host memory, with labels or targets. */
typedef struct hvt_arrays {
    int count;             ///< images, at most the planned batch
    const void *images;    ///< [count,h,w,c] of hvt_input()
    hvt_dtype type;        ///< type of images: HVT_U8, HVT_F16, HVT_BF16, HVT_F32, HVT_F64
    bool nchw;             ///< images are [count,c,h,w]
    const float *mean;     ///< [c] x = (value - mean) / std, where a byte's value is byte/255; NULL: 0 and 1
    const float *std;      ///< [c]
    const int32_t *labels; ///< [count] 0..classes-1; of pixels [count,H,W], below 0 ignored; NULL: none
    const float *targets;  ///< [count,K] or [count,K,H,W]; NULL: none
} hvt_arrays;
/**
 * Make a batch from arrays, in this model's row order, type and stored channels, in device memory, computed
 * as a loader does. For programs that have images in memory, such as simulations:
 *
 *     HVT_TRY(hvt_batch_set(m, &(hvt_arrays){.count = n, .images = x, .labels = y}, &batch));
 *     HVT_TRY(hvt_model_forward(m, &batch, true));
 *
 * The batch is not part of a step (its `shards` is 0); the caller may set shard, shards and shard_counts. The
 * model owns its memory, which is valid until the next call of this function or of hvt_model_predict(). Waits
 * for the device. Errors: E_ARG (not planned, NULL, an invalid type, mean or std), E_SHAPE (more images than
 * planned), E_MEM, E_DEVICE.
 */
HVT_API hvt_status hvt_batch_set(hvt_model *m, const hvt_arrays *arrays, hvt_batch *ret_batch);

/** A parameter or running statistic, as in files and PyTorch's state_dict. */
typedef struct hvt_named {
    const char *name; ///< "layer1.0.conv1.weight"; valid as long as the model
    int ndim, dim[4]; ///< convolutions [K,C/groups,R,S], linear layers [outputs,inputs], most others [C]
    size_t count;     ///< product of dim
} hvt_named;
/** Get the i-th tensor (from 0) of a planned model; false after the last. The order is the same in every
 * plan. */
HVT_API bool hvt_model_named(const hvt_model *m, int i, hvt_named *ret_tensor);
/** Copy a tensor to or from `count` floats of host memory, in canonical order. Waits for all queued work.
 * Call them between steps. Set the same values on all ranks; ranks of a node share parameters in a sharded
 * update, so use a barrier first if another rank may still read them. Errors: E_ARG (not planned, no tensor
 * of this name), E_SHAPE (another count), E_MEM, E_DEVICE. */
HVT_API hvt_status hvt_model_get(hvt_model *m, const char *name, float *ret_values, size_t count);
HVT_API hvt_status hvt_model_set(hvt_model *m, const char *name, const float *values, size_t count);

/** Set num_batches_tracked, the number of batches that the running statistics have seen, one number for all
 * batch norms. Training counts on from it; hvt_model_restart() and hvt_model_init() reset it. Errors: E_ARG
 * (not planned, below 0). */
HVT_API hvt_status hvt_model_set_tracked(hvt_model *m, int64_t batches);

/** Add to weight files a tensor that the model does not compute with, such as Swin's buffer
 * relative_position_index, because PyTorch's strict load_state_dict() requires it. `whole`: written as
 * int64, else as f32. When a file is read, the tensor is optional and ignored. The values are copied.
 * Errors: E_ARG (planned already, a name that is too long or attached already, more than 4 dimensions),
 * E_MEM. */
HVT_API hvt_status hvt_model_attach(hvt_model *m, const char *name, int ndim, const int *dim, bool whole,
                                    const double *values);

/** A 64-bit hash of the names and canonical f32 bytes of all parameters and running statistics. Errors: E_ARG
 * (not planned), E_MEM, E_DEVICE. */
HVT_API hvt_status hvt_model_hash(hvt_model *m, uint64_t *ret_hash);

HVT_C_END
#endif /* HVT_MODEL_H */
