/**
 * @file model.h
 * A model is a tape: layers in execution order. Forward runs it from first to last, backward
 * from last to first. Building appends; planning freezes.
 *
 *     hvt_value x = hvt_input(m, 32, 32, 3);
 *     hvt_name(m, "conv1"); x = hvt_conv2d(m, x, 16, 3, 1, 1);
 *     hvt_name(m, "bn1");   x = hvt_relu(m, hvt_batchnorm(m, x));
 *     hvt_name(m, "fc");    x = hvt_linear(m, hvt_avgpool(m, x), 10);
 *     HVT_TRY(hvt_model_plan(m, 128, x));
 *
 * A builder given a bad value returns a bad one; hvt_model_plan() reports the first mistake, so building code
 * needs no checks.
 */
#ifndef HVT_MODEL_H
#define HVT_MODEL_H

#include "hvt/device.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct hvt_model hvt_model;
typedef int hvt_value; ///< index of a layer's output; < 0 after a mistake

/** Sums over valid images since the last hvt_model_take_loss(); over all ranks with a distributed
 * optimizer. */
typedef struct hvt_loss {
    double sum;    ///< cross-entropy in nats
    int64_t top1;  ///< rows whose largest logit is the label
    int64_t top5;  ///< rows whose label is among the five largest logits
    int64_t count; ///< images
} hvt_loss;

/** Gradients [first, end) of the gradient arena are final for this backward pass. */
typedef hvt_status hvt_grad_fn(void *ctx, size_t first, size_t end);

/** dev is borrowed. Errors: E_ARG no device, E_MEM. */
HVT_API hvt_status hvt_model_create(hvt_device *dev, hvt_model **ret_model);
/** Call it after its optimizers are closed, else it stays open and that is logged: see hvt_device_close(). */
HVT_API void hvt_model_free(hvt_model **model);

/** Name the layer appended next; its parameters are name.weight, name.bias, name.running_mean, ...
 * Without it a layer is called by kind and position, e.g. "conv2d3". */
HVT_API void hvt_name(hvt_model *m, const char *fmt, ...) HVT_PRINTF(2, 3);

/** The images, [N,h,w,c]: the first layer, and the only one of its kind. */
HVT_API hvt_value hvt_input(hvt_model *m, int h, int w, int c);
/** y[n,p,q,k] = sum over r,s,c of x[n, p*stride-pad+r, q*stride-pad+s, c] * weight[k,c,r,s]. No bias. */
HVT_API hvt_value hvt_conv2d(hvt_model *m, hvt_value x, int filters, int size, int stride, int pad);
/** torch.nn.BatchNorm2d(eps 1e-5, momentum 0.1), statistics per shard. */
HVT_API hvt_value hvt_batchnorm(hvt_model *m, hvt_value x);
HVT_API hvt_value hvt_relu(hvt_model *m, hvt_value x);             ///< max(x, 0)
HVT_API hvt_value hvt_add(hvt_model *m, hvt_value a, hvt_value b); ///< a + b, of one shape
/** Maximum of each window of size x size (1 to 15) at the given stride; the padding around the image, at most
 * half a window, never is the maximum. */
HVT_API hvt_value hvt_maxpool(hvt_model *m, hvt_value x, int size, int stride, int pad);
HVT_API hvt_value hvt_avgpool(hvt_model *m, hvt_value x); ///< global: [N,H,W,C] -> [N,1,1,C]
/** Option A shortcut of He et al.: every stride-th pixel, channels zero-padded evenly on both sides to
 * `channels`. */
HVT_API hvt_value hvt_subsample(hvt_model *m, hvt_value x, int stride, int channels);
HVT_API hvt_value hvt_linear(hvt_model *m, hvt_value x,
                             int outputs); ///< y = x weight^T + bias; x is [N,1,1,C]

typedef struct hvt_zoo_opts {
    bool imagenet_stem; ///< resnet18..152: 7x7 stride 2 and max-pool, else 3x3 stride 1 (CIFAR)
    bool projection;    ///< resnet20..110: shortcut option B (1x1 convolution), else A
} hvt_zoo_opts;

/** A model by name, from input to logits. Names: hvt_zoo_name(0 ..) until NULL. opts NULL: all false. */
HVT_API hvt_value hvt_zoo(hvt_model *m, const char *name, hvt_value images, int classes,
                          const hvt_zoo_opts *opts);
HVT_API const char *hvt_zoo_name(int i);

/** Store activations and their gradients in t: HVT_F32 (the default), HVT_F16 or HVT_BF16. Parameters, their
 * gradients, running statistics and the loss remain f32; convolutions and linear layers read a copy of their
 * weights in t. Sums are f32 everywhere. To be called before hvt_model_plan(). Errors: E_ARG. */
HVT_API hvt_status hvt_model_set_type(hvt_model *m, hvt_dtype t);

/** Fix shapes, algorithms and memory for `batch` images per shard. The loss is softmax cross-entropy of
 * `logits`. Errors: E_SHAPE names the first mistaken layer and its shapes (also for logits of one class),
 * E_MEM, E_ARG (no batch, planned already), E_UNSUPPORTED (the device does not compute in this type). After
 * E_MEM a smaller batch may be tried. */
HVT_API hvt_status hvt_model_plan(hvt_model *m, int batch, hvt_value logits);
HVT_API hvt_order hvt_model_order(const hvt_model *m);      ///< the row order that the input must have
HVT_API hvt_dtype hvt_model_input_type(const hvt_model *m); ///< the type that the input must have
/** Channels with which a pixel of the input must be stored, zeros after its own: more than it has only if
 * that is faster on the device. */
HVT_API int hvt_model_input_channels(const hvt_model *m);
HVT_API size_t hvt_model_parameters(const hvt_model *m); ///< trainable scalars, as papers count them
HVT_API size_t hvt_model_bytes(const hvt_model *m);      ///< all arenas and workspaces together
/** Their breakdown, in bytes. */
typedef struct hvt_memory {
    size_t parameters;  ///< running statistics and 16-bit copies included
    size_t gradients;   ///< of parameters
    size_t activations; ///< and their gradients, which reuse memory that backward has freed
    size_t workspace;
} hvt_memory;
HVT_API hvt_memory hvt_model_memory(const hvt_model *m);
HVT_API int hvt_model_classes(const hvt_model *m);

/** torchvision's initialisation (kaiming normal, fan out; linear U(+-1/sqrt(fan in))), keyed by (seed,
 * parameter name, element): the same on every device. Starts a new run: running statistics, momentum, the
 * loss scale and the state of gradient compression are reset, a step that ended the run (E_DIVERGED) is
 * cleared, and the model's distributed optimizer may be used again. Counters of steps and of skipped updates
 * continue. To be called between steps; on all ranks, if there are several. */
HVT_API hvt_status hvt_model_init(hvt_model *m, uint64_t seed);

/** train: batch statistics, activations are kept for backward. Else: running statistics, no gradients.
 * Backward reads the batch again, so it must stay valid until then. Errors: E_SHAPE (not as planned), E_ARG
 * (not planned; shard or count do not agree with its shard_counts; a label out of range: names it, the image
 * and the shard. On devices whose memory the host cannot read the loss of such an image is NaN). */
HVT_API hvt_status hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train);
/** Gradients of the loss SUM over the batch's valid images (not the mean). on_grad (may be NULL) is called
 * after both backward passes of a layer, with contiguous spans from 0 to the arena's end; first the step
 * statistics, then layer by layer, also for a batch of 0 images (all zeros). Once per training forward pass,
 * else E_ARG. */
HVT_API hvt_status hvt_model_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);
/** Training loss since the last call; waits for all steps before. Counted when the step ends
 * (hvt_distopt_step). Errors: E_ARG (not planned). */
HVT_API hvt_status hvt_model_take_loss(hvt_model *m, hvt_loss *ret_loss);
/** Per valid image of the last forward: loss in nats, and the label's rank among the logits (0 = largest;
 * number of strictly larger logits, ties broken in favour of the lower index). Arrays of the planned batch
 * size. */
HVT_API hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank);

/** 64-bit hash over names and canonical f32 bytes of all parameters and running statistics. */
HVT_API hvt_status hvt_model_hash(hvt_model *m, uint64_t *ret_hash);

#ifdef __cplusplus
}
#endif
#endif /* HVT_MODEL_H */
