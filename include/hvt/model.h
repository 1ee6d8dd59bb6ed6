/**
 * @file model.h
 * A model is a tape: layers in execution order. Forward runs them from first to last, backward from last to
 * first. Builders append layers; planning fixes them.
 *
 *     hvt_value x = hvt_input(m, 32, 32, 3);
 *     hvt_name(m, "conv1"); x = hvt_conv2d(m, x, 16, 3, 1, 1);
 *     hvt_name(m, "bn1");   x = hvt_relu(m, hvt_batchnorm(m, x));
 *                           x = hvt_avgpool(m, x);
 *     hvt_name(m, "fc");    x = hvt_linear(m, x, 10);
 *     HVT_TRY(hvt_model_plan(m, 128, x));
 *
 * Builders need no error checks: a builder given a bad value returns a bad one, and hvt_model_plan() reports
 * the first mistake.
 */
#ifndef HVT_MODEL_H
#define HVT_MODEL_H

#include "hvt/device.h"

HVT_C_BEGIN

typedef struct hvt_model hvt_model;
typedef int hvt_value; ///< index of a layer's output; < 0 after a mistake

/**
 * The loss. Logits are [N,K], or, for images as outputs (segmentation, autoencoders), [N,K,H,W]. Then a label
 * is that of a pixel, and one below 0 is ignored. The cross-entropy of pixels over a global batch is
 *
 *     loss = sum of -log softmax(logits[n,:,h,w])[label[n,h,w]] over labelled pixels / their number
 *
 * as of torch.nn.functional.cross_entropy(logits, labels, ignore_index=...) of the whole batch. The division
 * is by the number of all shards together, so that neither shards nor ranks change the loss (the mean of
 * means that DistributedDataParallel computes weighs pixels of sparsely labelled shards more). A step without
 * a labelled pixel has loss and gradients 0.
 */
typedef enum hvt_loss_kind {
    HVT_LOSS_CE,  ///< softmax cross-entropy of the logits and a label, in nats
    HVT_LOSS_MSE, ///< mean over an image's outputs of (output - target)^2: torch.nn.MSELoss
    HVT_LOSS_BCE  ///< mean over the classes of the binary cross-entropy of sigmoid(logit) and the label's
                  ///< one-hot row, or a soft target: torch.nn.BCEWithLogitsLoss, timm's BinaryCrossEntropy;
                  ///< host devices
} hvt_loss_kind;

/** Sums over valid images since the last hvt_model_take_loss(); over all ranks with a distributed
 * optimizer. With labels of pixels, sums over labelled pixels. */
typedef struct hvt_loss {
    double sum;    ///< sum of the losses of images or pixels
    int64_t top1;  ///< images or pixels whose largest logit is the label; 0 with HVT_LOSS_MSE
    int64_t top5;  ///< images whose label is among the five largest logits; 0 for pixels and HVT_LOSS_MSE
    int64_t count; ///< images or labelled pixels
    double error; ///< HVT_LOSS_MSE: sum over images of the mean of |output - target| over the outputs; else 0
    double iou;   ///< evaluation with labels of pixels: mean IoU, see hvt_evaluate(); else 0
} hvt_loss;

/** Gradients [first, end) of the gradient arena are final for this backward pass. */
typedef hvt_status hvt_grad_fn(void *ctx, size_t first, size_t end);

/** dev is borrowed. Errors: E_ARG no device, E_MEM. */
HVT_API hvt_status hvt_model_create(hvt_device *dev, hvt_model **ret_model);
/** Close it after its optimizers, else it stays open and a line is logged: see hvt_device_close(). */
HVT_API void hvt_model_free(hvt_model **model);

/** Name the layer appended next. Its parameters are name.weight, name.bias, name.running_mean, ...; a name
 * that ends in "_" gets no dot (in_proj_weight of torch.nn.MultiheadAttention). Default: kind and position,
 * e.g. "conv2d3". */
HVT_API void hvt_name(hvt_model *m, const char *fmt, ...) HVT_PRINTF(2, 3);

/** The layer appended next shares the parameters of the layer that made v, which must have its kind and
 * parameter shapes. Their gradient is the sum over all layers that read them. Batch norms, whose running
 * statistics belong to one place, cannot share. */
HVT_API void hvt_share(hvt_model *m, hvt_value v);

/** The images, [N,h,w,c]. Must be the first layer, and the only input. */
HVT_API hvt_value hvt_input(hvt_model *m, int h, int w, int c);
/** y[n,p,q,k] = sum over r,s,c of x[n, p*stride-pad+r, q*stride-pad+s, c] * weight[k,c,r,s]. No bias. The
 * short form of hvt_conv2d_with(). */
HVT_API hvt_value hvt_conv2d(hvt_model *m, hvt_value x, int filters, int size, int stride, int pad);

/** Only filters and kernel_h are required; the others may be 0. */
typedef struct hvt_conv2d_opts {
    int filters;                  ///< K
    int kernel_h, kernel_w;       ///< R x S taps; kernel_w 0: kernel_h
    int stride_h, stride_w;       ///< stride_h 0: 1; stride_w 0: stride_h
    int top, left, bottom, right; ///< rows and columns of zeros around each image
    int dilation_h, dilation_w;   ///< pixels from tap to tap; dilation_h 0: 1, dilation_w 0: dilation_h
    int groups;                   ///< 0: 1
    bool bias;                    ///< add bias[k]
    bool line;                    ///< torch.nn.Conv1d, along W: kernel_h is 1, and weight [K,C/groups,S]
} hvt_conv2d_opts;

/** torch.nn.Conv2d:
 *
 *     y[n,p,q,k] = bias[k] + sum over r,s and c < C/groups of
 *                  x[n, p*stride_h - top + r*dilation_h, q*stride_w - left + s*dilation_w, g*C/groups + c] *
 *                  weight[k,c,r,s]          where g = k / (K/groups), and x is 0 outside the image
 *
 *     x [N,H,W,C]    P = (H + top + bottom - dilation_h*(R-1) - 1) / stride_h + 1
 *     y [N,P,Q,K]    Q = (W + left + right - dilation_w*(S-1) - 1) / stride_w + 1        (rounded down)
 *
 * groups = C is a depthwise convolution. padding=(a, b) of PyTorch is top = bottom = a, left = right = b;
 * padding="same" is top = d/2 and bottom = d - d/2 with d = dilation_h*(R-1), and likewise in width.
 * Parameters: weight [K,C/groups,R,S] and, with opts->bias, bias [K]. Initialised as in torchvision's
 * models: weight kaiming normal, fan out (deviation sqrt(2/(K*R*S))), bias 0. Mistakes: a size, stride,
 * dilation or number of groups below 1, a padding below 0, C or K that is no multiple of groups, a window
 * larger than the padded image. */
HVT_API hvt_value hvt_conv2d_with(hvt_model *m, hvt_value x, const hvt_conv2d_opts *opts);
/** torch.nn.ConvTranspose2d: the gradient of a convolution with these options with respect to its input.
 *
 *     y[n, i*stride_h - top + r*dilation_h, j*stride_w - left + s*dilation_w, k] +=
 *         x[n,i,j,c] * weight[c,k',r,s]     k = g * K/groups + k', of c's group g;  then y += bias[k]
 *
 *     x [N,H,W,C]    P = (H - 1)*stride_h - top - bottom + dilation_h*(R - 1) + 1
 *     y [N,P,Q,K]    Q = (W - 1)*stride_w - left - right + dilation_w*(S - 1) + 1
 *
 * padding=(a, b) and output_padding=(e, f) of PyTorch are top = a, bottom = a - e, left = b, right = b - f.
 * Parameters: weight [C,K/groups,R,S] and, with opts->bias, bias [K]. Initialised as in torchvision's models:
 * weight kaiming normal, fan out as PyTorch counts it (deviation sqrt(2/(C*R*S))), bias 0. Mistakes: as of
 * hvt_conv2d_with(), but bottom may be as low as 1 - stride_h and right as low as 1 - stride_w; `line`; an
 * output without pixels. */
HVT_API hvt_value hvt_conv_transpose2d(hvt_model *m, hvt_value x, const hvt_conv2d_opts *opts);
/** torch.nn.BatchNorm2d(eps 1e-5, momentum 0.1). Statistics are per shard; with
 * hvt_distopt_opts.sync_batchnorm over all shards. */
HVT_API hvt_value hvt_batchnorm(hvt_model *m, hvt_value x);
/** The same with another eps, above 0 and at most 1, and another momentum of the running statistics, at most
 * 1. */
HVT_API hvt_value hvt_batchnorm_with(hvt_model *m, hvt_value x, float eps, float momentum);
/** torch.nn.BatchNorm2d in eval() mode while the model trains: y = gamma * (x - running_mean) /
 * sqrt(running_var + eps) + beta. Running statistics stay as set or loaded; gamma and beta are trained
 * unless frozen. */
HVT_API hvt_value hvt_batchnorm_fixed(hvt_model *m, hvt_value x, float eps);
/** Turn all batch norms of m so far into hvt_batchnorm_fixed(). Call it before hvt_model_plan(). Errors:
 * E_ARG (planned already, no batch norm). */
HVT_API hvt_status hvt_model_fix_norms(hvt_model *m);
HVT_API hvt_value hvt_relu(hvt_model *m, hvt_value x);             ///< max(x, 0)
HVT_API hvt_value hvt_add(hvt_model *m, hvt_value a, hvt_value b); ///< a + b, of one shape
/** Maximum of each size x size window (1 to 15) at the given stride. Padding is at most half a window and
 * never the maximum. */
HVT_API hvt_value hvt_maxpool(hvt_model *m, hvt_value x, int size, int stride, int pad);
HVT_API hvt_value hvt_avgpool(hvt_model *m, hvt_value x); ///< global: [N,H,W,C] -> [N,1,1,C]
/** Pooling by rectangular windows. Arrays are (height, width); padding is at most half of the window. */
typedef enum hvt_pooling_kind { HVT_POOL_MAX, HVT_POOL_MEAN } hvt_pooling_kind;
typedef struct hvt_pool_opts {
    int size[2], stride[2], pad[2];
    bool ceil_mode;   ///< also use windows that end past the padding, as torch.nn.MaxPool2d(ceil_mode=True)
    bool exclude_pad; ///< a mean does not count padding: count_include_pad=False
} hvt_pool_opts;
/** torch.nn.MaxPool2d, AvgPool2d; windows of at most 15x15. */
HVT_API hvt_value hvt_pool_with(hvt_model *m, hvt_value x, hvt_pooling_kind kind, const hvt_pool_opts *opts);
/** torch.nn.AdaptiveAvgPool2d((h, w)), AdaptiveMaxPool2d: window o of `out` over `in` pixels is
 * [floor(o*in/out), ceil((o+1)*in/out)). Maxima of more than 225 pixels become several layers, first
 * columns, then rows; windows longer than 225 must all have one size. */
HVT_API hvt_value hvt_adaptive_pool(hvt_model *m, hvt_value x, hvt_pooling_kind kind, int h, int w);
/** Shortcut option A of He et al.: every stride-th pixel; channels are zero-padded evenly on both sides to
 * `channels`. */
HVT_API hvt_value hvt_subsample(hvt_model *m, hvt_value x, int stride, int channels);
HVT_API hvt_value hvt_linear(hvt_model *m, hvt_value x,
                             int outputs); ///< y = x weight^T + bias; x is [N,1,1,C]
/** The same for each pixel of [N,H,W,C], as torch.nn.Linear on a tensor whose last dimension is C. bias is
 * optional. */
HVT_API hvt_value hvt_linear_with(hvt_model *m, hvt_value x, int outputs, bool bias);

/*
 * More layers. If a device does not support one, hvt_model_plan() fails with E_UNSUPPORTED and names the
 * layer.
 */

/** y = f(x), element-wise, with f's parameters a and b, if any. torch.nn.ReLU6 is (HVT_HARDTANH, 0, 6), x + 1
 * is (HVT_AFFINE, 1, 1). */
HVT_API hvt_value hvt_apply(hvt_model *m, hvt_value x, hvt_function f, float a, float b);
/** a op b. One operand has the shape of the result, [N,H,W,C]; the other the same, or [N,1,1,C] or [N,H,W,1],
 * which is broadcast. */
HVT_API hvt_value hvt_combine(hvt_model *m, hvt_binary op, hvt_value a, hvt_value b);
/** x op a parameter of C elements, one per channel, or of one element. In files it has the layer's name and
 * the shape dim[ndim], e.g. [C,1,1]; ndim 0 is a scalar. Initialised to `init`. */
HVT_API hvt_value hvt_combine_parameter(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim,
                                        float init);
/** The same with a constant, like PyTorch's buffers: it is in files, but not a parameter and never trained.
 */
HVT_API hvt_value hvt_combine_constant(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim,
                                       float init);
/** x + a parameter whose rows are added to pixels `first` on, line by line, in all images: a position
 * embedding, or, after hvt_pad(), learnt tokens. In files it has the layer's name and the shape dim[ndim],
 * e.g. [1,T,C]: T rows of C elements. Initialised as normal with this deviation. */
HVT_API hvt_value hvt_add_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim,
                                    float deviation);
/** The same with a constant, as in hvt_combine_constant(); 0 until it is set or loaded. */
HVT_API hvt_value hvt_add_constant_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim);
/** torch.mean and torch.max over dim 1: [N,H,W,C] -> [N,H,W,1]. The first of equal maxima gets the gradient.
 */
HVT_API hvt_value hvt_mean_channels(hvt_model *m, hvt_value x);
HVT_API hvt_value hvt_max_channels(hvt_model *m, hvt_value x);
/** The same over groups of C/groups channels: y[.., j] = max over g of x[.., g * C/groups + j]. A mistake:
 * groups that do not divide C. */
HVT_API hvt_value hvt_max_groups(hvt_model *m, hvt_value x, int groups);
/** torch.amax over H, over W and over groups of channels (C: over all, 1: over none); reduced dimensions
 * become 1. Each of n equal maxima gets 1/n of the gradient. */
HVT_API hvt_value hvt_amax(hvt_model *m, hvt_value x, bool over_h, bool over_w, int groups);
/** torch.cat(dim=1): the channels of in[0], then those of in[1] ... Heights and widths must be equal. */
HVT_API hvt_value hvt_concat(hvt_model *m, const hvt_value *in, int count);
/** Channels first .. first+count-1; torch.chunk() is several of these. */
HVT_API hvt_value hvt_slice(hvt_model *m, hvt_value x, int first, int count);
/** torch.nn.ChannelShuffle: y[.., j] = x[.., j % groups * (C/groups) + j / groups]. */
HVT_API hvt_value hvt_shuffle(hvt_model *m, hvt_value x, int groups);
/** torch.nn.PixelShuffle(f), from [N,H,W,C] to [N,H*f,W*f,C/f^2], and torch.nn.PixelUnshuffle(f), its
 * inverse:
 *
 *     y[n, h*f + i, w*f + j, c] = x[n, h, w, c*f*f + i*f + j]
 *
 * The whole model then uses HVT_ORDER_NHW. Mistakes: an f that does not divide, f below 1 or above 1024. */
HVT_API hvt_value hvt_pixel_shuffle(hvt_model *m, hvt_value x, int f);
HVT_API hvt_value hvt_pixel_unshuffle(hvt_model *m, hvt_value x, int f);
/** View each image's elements, in the order H, W, C, as [-1, rows, columns, block], swap rows and columns,
 * and view the result as h x w pixels:
 *
 *     x.reshape(N, -1, rows, columns, block).transpose(2, 3).reshape(N, h, w, -1)
 *
 * rows = H*W, columns = C, block = 1, h = 1, w = C: channels become pixels, and pixels channels. If only
 * channels are permuted, h and w are those of x; else the whole model uses HVT_ORDER_NHW, whatever the
 * device prefers. Mistakes: sizes that do not divide those of x. */
HVT_API hvt_value hvt_transpose(hvt_model *m, hvt_value x, int rows, int columns, int block, int h, int w);
/** torch.nn.functional.pad: rows and columns of zeros around each image; negative numbers crop. */
HVT_API hvt_value hvt_pad(hvt_model *m, hvt_value x, int top, int bottom, int left, int right);
/** torch.nn.functional.pad(mode="reflect", "replicate", "circular"): rows and columns around the image are
 * its own. Mistakes: negative numbers; more than the image has, for "reflect" as many as it has. */
typedef enum hvt_padding { HVT_PAD_REFLECT, HVT_PAD_REPLICATE, HVT_PAD_CIRCULAR } hvt_padding;
HVT_API hvt_value hvt_pad_with(hvt_model *m, hvt_value x, hvt_padding how, int top, int bottom, int left,
                               int right);
/** The modes of torch.nn.functional.interpolate: nearest, nearest-exact, bilinear, bicubic. */
typedef enum hvt_interpolation {
    HVT_NEAREST,
    HVT_NEAREST_EXACT,
    HVT_BILINEAR,
    HVT_BICUBIC
} hvt_interpolation;
typedef struct hvt_interpolate_opts {
    hvt_interpolation kind;
    int height, width; ///< of the output; 0: that of the input times the scale, rounded down
    /** Output pixels per input pixel, as scale_factor; 0: height / H, width / W. */
    double scale_h, scale_w;
    bool align_corners; ///< the centres of corner pixels meet, else their corners; bilinear and bicubic
    bool antialias;     ///< shrinking averages over all pixels, as Pillow does; bilinear and bicubic
} hvt_interpolate_opts;
/** torch.nn.functional.interpolate (and torch.nn.Upsample) with recompute_scale_factor=False: [N,H,W,C] ->
 * [N,height,width,C]. Weights are computed in f32, as PyTorch's. Mistakes: an output without pixels, a scale
 * below 0, align_corners with another kind or with antialias. */
HVT_API hvt_value hvt_interpolate(hvt_model *m, hvt_value x, const hvt_interpolate_opts *opts);
/**
 * torch.nn.Dropout(p), Dropout2d(p), torchvision.ops.StochasticDepth(p, "row" or "batch"): in training each
 * element, channel of an image, image, or batch of a shard is multiplied by 0 with probability p, else by 1 /
 * (1 - p). In inference y = x. p = 0 appends no layer and returns x; p = 1 gives zeros.
 *
 * The mask is a pure function of (the batch's key, the sample's number, the layer's index among the model's
 * layers of this kind, the element's index in [C,H,W]). It depends neither on ranks, threads, instruction
 * sets or types nor on an image's place in its batch; a whole batch's depends on its first image. A loader's
 * key depends on (seed, epoch). For batches without `key` or `ids` the mask is a function of (the seed of
 * hvt_model_init(), training steps that a distributed optimizer has ended since, the image's index over all
 * shards), so passes within one step drop the same elements. Mistakes: p below 0 or above 1.
 */
HVT_API hvt_value hvt_dropout(hvt_model *m, hvt_value x, double p);
HVT_API hvt_value hvt_dropout_channels(hvt_model *m, hvt_value x, double p);
HVT_API hvt_value hvt_drop_path(hvt_model *m, hvt_value x, double p, bool whole_batch);

/** [N,H,W,C] -> [N,1,1,H*W*C], for hvt_linear(). In files that layer's weight has its columns in the order
 * C,H,W, as after torch.flatten(1). Functions, hvt_add() and hvt_combine() of two such values may come in
 * between. */
HVT_API hvt_value hvt_flatten(hvt_model *m, hvt_value x);

/** [N,h,w,c] of zeros, for hvt_add_embedding() or hvt_combine_parameter(): their result is the parameter
 * itself, for each image. x only gives the place on the tape. */
HVT_API hvt_value hvt_zeros(hvt_model *m, hvt_value x, int h, int w, int c);

/** values [h,w,c], the same for each image; no parameter, and not in files. x only gives the place on the
 * tape. The model copies the values and uses HVT_ORDER_NHW. */
HVT_API hvt_value hvt_constant(hvt_model *m, hvt_value x, int h, int w, int c, const float *values);

/** View the pixels, line by line, as h x w; [N,H,W,C] -> [N,1,H*W,C] turns an image into tokens. */
HVT_API hvt_value hvt_reshape(hvt_model *m, hvt_value x, int h, int w);

/** torch.nn.functional.scaled_dot_product_attention. Pixels are tokens. For each image and each head of
 * C/heads channels, head 0 first:
 *
 *     y[i] = sum over j of P[i,j] v[j]      P[i,.] = softmax over j of scale * q[i] . k[j]
 *
 *     q [N,H,W,C]     k, v [N,H',W',C]     y [N,H,W,C]
 *
 * scale 0: 1 / sqrt(C/heads). No dropout. P is computed for a few queries at a time and is not kept for
 * backward. The short form's input is [N,H,W,3*C]: the channels of q, then k's, then v's, as
 * torch.nn.MultiheadAttention projects them. Mistakes: shapes other than these, C not a multiple of heads, a
 * scale below 0. */
HVT_API hvt_value hvt_attention(hvt_model *m, hvt_value q, hvt_value k, hvt_value v, int heads, float scale);
HVT_API hvt_value hvt_self_attention(hvt_model *m, hvt_value qkv, int heads, float scale);

/** Attention within windows of an image and with a bias on the scores, as in torchvision's swin_t and
 * maxvit_t:
 *
 *     P[i,.] = softmax over j of scale * q[i] . k[j] + table[bias[h][i][j]] + mask[w][i][j]
 *
 * for head h and window w. The table is a parameter, the relative position bias; in files it has the layer's
 * name and the shape dim[ndim]. Initialised as normal with deviation 0.02. The arrays are copied. */
typedef struct hvt_attention_opts {
    int heads;
    float scale;            ///< 0: 1 / sqrt(C/heads)
    int windows;            ///< windows of T = H*W/windows tokens each; 0 or 1: the whole image
    const int *pixel;       ///< [windows][T]: each token's pixel, line by line; NULL: 0 to H*W-1
    int ndim, dim[4];       ///< the table's shape; ndim 0: none, or computed
    const hvt_value *table; ///< computed table, the same for each image; elements in the order H, W, C
    const int *bias;        ///< [heads][T][T']: index into the table
    const float *mask;      ///< [windows][T][T'], finite; NULL: none
} hvt_attention_opts;
/** Mistakes, besides those of hvt_attention(): several windows with different numbers of keys and queries;
 * pixels that windows do not divide; pixels that are not each named once; an index outside of the table; a
 * mask that is not finite; both a parameter and a computed table, or a computed table in the short form.
 * With a computed table the whole model uses HVT_ORDER_NHW. */
HVT_API hvt_value hvt_attention_with(hvt_model *m, hvt_value q, hvt_value k, hvt_value v,
                                     const hvt_attention_opts *opts);
HVT_API hvt_value hvt_self_attention_with(hvt_model *m, hvt_value qkv, const hvt_attention_opts *opts);

/** Rotary position embeddings (Su et al. 2021). Some channels form vectors, such as the heads of queries and
 * keys. Each pair of channels c and c' is rotated, by the same angles in every vector:
 *
 *     y[p,c] = own[p][c] * x[p,c] + other[p][c] * x[p,c']      of pixel p
 *
 *     own = cos of the pair's angle; other = -sin of it where c < c', else sin
 *
 * c' is `apart` from c, within blocks of 2*apart channels: 1 for neighbours, width/2 for the halves of a
 * vector. Other channels pass through. The arrays are copied. Mistakes: vectors outside of x's channels; a
 * width that is not a multiple of 2*apart; factors that are not finite. */
typedef struct hvt_rotary_opts {
    int first, vectors, width; ///< `vectors` vectors of `width` channels, from channel `first` on
    int apart;
    const float *own, *other; ///< [H*W][width]
} hvt_rotary_opts;
HVT_API hvt_value hvt_rotary(hvt_model *m, hvt_value x, const hvt_rotary_opts *opts);

/** Elements that hvt_layernorm() normalises over. */
typedef enum hvt_over {
    HVT_OVER_CHANNELS, ///< channels of each pixel: weight and bias are [C]
    HVT_OVER_IMAGE     ///< all elements of an image: weight and bias are [C,H,W]
} hvt_over;
/** torch.nn.LayerNorm: y = (x - mean) / sqrt(variance + eps) * weight + bias; `affine` false: no weight and
 * bias. */
HVT_API hvt_value hvt_layernorm(hvt_model *m, hvt_value x, hvt_over over, float eps, bool affine);
/** torch.nn.GroupNorm; with C groups torch.nn.InstanceNorm2d. */
HVT_API hvt_value hvt_groupnorm(hvt_model *m, hvt_value x, int groups, float eps, bool affine);

/**
 * The zoo's models: X(name, whether imagenet_stem changes it, whether projection does). --model takes these
 * names. Parameters have the names of the state_dict:
 *
 *  - resnet18 to resnet152, resnext50_32x4d, wide_resnet50_2: torchvision's.
 *  - resnet20 to resnet110: those of He et al. 2015 for CIFAR.
 *  - mobilenet_v2: torchvision's, but its classifier is initialised as torch.nn.Linear, U(+-1/sqrt(1280)),
 *    not N(0, 0.01).
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
    X(mlp, 0, 0)

typedef struct hvt_zoo_opts {
    bool imagenet_stem; ///< torchvision's stem: ResNets 7x7 stride 2 and max-pool, else 3x3 stride 1 (CIFAR);
                        ///< mobilenet_v2 3x3 stride 2, else stride 1, also in the stage of 24 filters
    bool projection;    ///< resnet20..110: shortcut option B (1x1 convolution), else A
    bool no_dropout;    ///< mobilenet_v2: omit the dropout (p = 0.2) before its last layer
} hvt_zoo_opts;

/** A model by name, from input to logits. Names: hvt_zoo_name(0 ..) until NULL. opts NULL: all false. */
HVT_API hvt_value hvt_zoo(hvt_model *m, const char *name, hvt_value images, int classes,
                          const hvt_zoo_opts *opts);
HVT_API const char *hvt_zoo_name(int i);
/** The members of hvt_zoo_opts that change this model; none for an unknown name. */
HVT_API hvt_zoo_opts hvt_zoo_takes(const char *name);

/** Height, width and channels of a value; zeros if v is not a value of m. A flattened value has one pixel. */
HVT_API void hvt_value_shape(const hvt_model *m, hvt_value v, int ret_hwc[3]);

typedef struct hvt_pt2 hvt_pt2;
/** Description of a .pt2 file. */
typedef struct hvt_pt2_info {
    int height, width, channels; ///< of its example images
    int classes;                 ///< outputs of its last layer
    int outputs;                 ///< outputs of the model; only the first is built
    const char *output;          ///< its key, if the model returns a dict; else NULL
    int unused; ///< parameters that do not contribute to it and are not built, as those of auxiliary
                ///< classifiers
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
    const char *head; ///< name of the last layer
} hvt_pt2_info;

/**
 * A PyTorch model written by `torch.export.save(torch.export.export(model, (images,)), "net.pt2")`. Nothing
 * in it is unpickled or executed. Files exported in train and in eval mode both train with batch statistics
 * and evaluate with running statistics. Exception: batch norms in eval mode keep their running statistics if
 * other norms, dropout or stochastic depth are in train mode. Only a file exported in train mode contains
 * dropout and stochastic depth. Source: torch/_export/serde/schema.py, major version 8 (PyTorch 2.6 and
 * later).
 *
 * Errors: E_IO, E_FORMAT (damaged, or no such file), E_UNSUPPORTED (more than one input; an unsupported
 * operation or use of one: names them all, with layer and source line), E_MEM, E_DEVICE. hvt_pt2_build()
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
 * 1, or with HVT_LOSS_MSE), E_UNSUPPORTED (HVT_LOSS_BCE on a device that is not the host). */
HVT_API hvt_status hvt_model_set_loss(hvt_model *m, const hvt_loss_opts *opts);

/**
 * Weights of the classes in the cross-entropy of training: torch.nn.CrossEntropyLoss(weight=w). An image of
 * class y counts w[y] times, and the update's gradient is that of the weighted mean over all its images,
 *
 *     sum of w[y] * loss / sum of w[y],
 *
 * where both sums are over all shards, and not the mean of each shard's mean. The divisor is added along the
 * tree of the gradients, so no bit depends on ranks. With soft targets t the loss is sum_k w[k] * t[k] * -log
 * p[k], and the divisor the number of images, as PyTorch's. Reported losses of training are these means;
 * evaluation is not weighted. weights: [classes], copied; NULL: none. Must be equal on all ranks. Call it
 * before hvt_model_plan(), which fails with E_SHAPE for another number of classes. Errors: E_ARG (planned
 * already, a weight that is not a finite number above 0), E_MEM, E_UNSUPPORTED (a device that is not the
 * host).
 */
HVT_API hvt_status hvt_model_set_class_weights(hvt_model *m, const float *weights, int classes);

/** The order of a split model's passes, with the same result: all forward passes, then all backward passes,
 * or a backward pass after each forward pass as soon as there is one. */
typedef enum hvt_pipeline {
    HVT_PIPELINE_GPIPE, ///< each device keeps the activations of all shards of a step
    HVT_PIPELINE_1F1B   ///< of K devices, device k keeps those of K - k shards
} hvt_pipeline;

typedef struct hvt_split_opts {
    /** [count], borrowed until the model is freed. The model's own device, which may be the first of them or
     * have the cores of all, updates the parameters. */
    hvt_device *const *devices;
    int count; ///< 1: not split; memory_limit still applies
    /** A cut before each of these layers or modules, by name and in the model's order, with commas:
     * "layer2,layer4". NULL: cuts that balance the devices' estimated times within memory_limit. */
    const char *at;
    hvt_pipeline pipeline;
    int micro_batches;   ///< local shards of a step, to plan memory for; 0: 1
    size_t memory_limit; ///< of each device, in bytes: parameters and gradients of its layers, activations
                         ///< and workspace, without optimizer state. 0: none
} hvt_split_opts;

/**
 * Put consecutive layers on each of several devices (model parallelism). The local shards of a step are its
 * micro-batches: they run through the devices as a pipeline, with a thread for each device but the first,
 * which is the caller's. The bits are those of as many local shards on one device. Each device needs cores of
 * its own (hvt_device_opts.cpus). Devices must compute in the host's memory and be of one kind and
 * instruction set. Exactly one value may cross a cut, and layers on both sides may not share parameters.
 *
 * Training passes belong to steps of a distributed optimizer, as with synchronized batch norm: each pass but
 * the last only stores its batch, and the last hvt_model_backward() runs all. Batch norms that are
 * synchronized let the devices take turns. Other passes run on the caller's thread, device after device.
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
/** Channels that an input pixel must be stored with: its own, then zeros, if more are faster on the device.
 */
HVT_API int hvt_model_input_channels(const hvt_model *m);
/** Least images of a training batch: 2 with a batch norm over one pixel, as after global pooling, else 1. A
 * single value equals its mean, so the norm would return only the bias. PyTorch refuses that ("Expected more
 * than 1 value per channel when training"), and so does hvtrain. */
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

/** Run the layers. train: use batch statistics and keep activations for backward; else use running
 * statistics. Backward reads the batch again, so it must stay valid until then. Errors: E_SHAPE (not as
 * planned), E_ARG (not planned; shard or count do not agree with its shard_counts; a label out of range:
 * names it, the image and the shard. On devices whose memory the host cannot read, the loss of such an image
 * is NaN instead).
 *
 * The loss uses the batch's labels, with HVT_LOSS_MSE its targets. Without them (data NULL) there is no
 * loss, hvt_model_rows() fails, and a training pass continues with hvt_model_backward_from(). */
HVT_API hvt_status hvt_model_forward(hvt_model *m, const hvt_batch *batch, bool train);
/** A forward pass of inference over the batch and over its mirror images (left-right): the logits become the
 * mean of both, and the loss is that of these logits, for hvt_model_logits() and hvt_model_rows() (test-time
 * augmentation). The images' memory is written meanwhile, and has the same values afterwards. Errors: those
 * of hvt_model_forward(), E_UNSUPPORTED (a device that is not the host, a split model), E_MEM. */
HVT_API hvt_status hvt_model_forward_flipped(hvt_model *m, const hvt_batch *batch);
/** Gradients of the loss SUM over the batch's valid images (not the mean). on_grad (may be NULL) is called
 * after both backward passes of a layer, with contiguous spans from 0 to the arena's end: first the step
 * statistics, then layer by layer, also for a batch of 0 images (all zeros). Call it once per training
 * forward pass with labels or targets, else E_ARG. */
HVT_API hvt_status hvt_model_backward(hvt_model *m, hvt_grad_fn *on_grad, void *ctx);
/**
 * The same for the caller's own loss, after a training forward pass without labels or targets:
 *
 *     HVT_TRY(hvt_model_forward(m, &batch, true));   // batch.labels.data and batch.targets.data are NULL
 *     HVT_TRY(hvt_model_logits(m, logits));
 *     ...                                            // logits -> loss, dlogits
 *     HVT_TRY(hvt_model_backward_from(m, dlogits, loss, hvt_distopt_on_grad, dist));
 *
 *     dlogits   f32 [count,K] or [count,K,H,W] in host memory, in the order of hvt_model_logits(): the
 * gradient of the loss SUM over the valid images. The optimizer divides by the images of the global batch, so
 *               for a mean it is that of each image's own loss. Loss scaling (f16) is applied here.
 *               May be NULL for a batch of 0 images.
 *     loss      the loss SUM over the valid images, for hvt_model_take_loss(), without top1, top5 and error;
 * 0 if it is not needed. A non-finite one ends the run as usual.
 *
 * Waits for the device. Not allowed while a step is captured (hvt_distopt_capture()): a replay would repeat
 * these gradients. Errors: E_ARG (no such pass, no gradient), E_MEM, E_DEVICE, E_UNSUPPORTED (with
 * hvt_distopt_opts.sync_batchnorm, which may defer forward passes to the rank's last shard).
 */
HVT_API hvt_status hvt_model_backward_from(hvt_model *m, const float *dlogits, double loss,
                                           hvt_grad_fn *on_grad, void *ctx);
/** Training loss since the last call. Waits for all steps so far. A step's loss is added when it ends
 * (hvt_distopt_step()). Errors: E_ARG (not planned). */
HVT_API hvt_status hvt_model_take_loss(hvt_model *m, hvt_loss *ret_loss);
/** For each valid image of the last forward: loss in nats, and the label's rank among the logits (0 =
 * largest; of equal logits the lower index ranks first). Arrays of the planned batch size; with logits of
 * pixels [batch,H,W], and an ignored pixel has loss 0 and rank -1. Errors: E_ARG (no
 * forward pass, no labels, HVT_LOSS_MSE). */
HVT_API hvt_status hvt_model_rows(hvt_model *m, float *ret_loss, int32_t *ret_label_rank);
/** The same with HVT_LOSS_MSE: loss, and mean over the outputs of |output - target|. */
HVT_API hvt_status hvt_model_errors(hvt_model *m, float *ret_loss, float *ret_error);

/** The class of the largest logit of each image or pixel of the last forward: [images] or [images,H,W]; of
 * equal logits the lower class, and NaN before all numbers, as torch.argmax(). Errors: E_ARG (no forward
 * pass), E_UNSUPPORTED (a GPU). */
HVT_API hvt_status hvt_model_predicted(hvt_model *m, int32_t *ret_classes);

/** Logits of the valid images of the last forward: f32 [images,K] or [images,K,H,W] in host memory, one image
 * after the other. The pass must be inference, or training without labels and targets whose backward has not
 * run. 16-bit activations are widened. Waits for the device. Errors: E_ARG (no such pass), E_MEM. */
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
    const float *mean;     ///< [c] x = (value - mean) / std, where bytes are value/255; NULL: 0 and 1
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

/** A parameter or running statistics, as in files and PyTorch's state_dict. */
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

/** 64-bit hash of names and canonical f32 bytes of all parameters and running statistics. */
HVT_API hvt_status hvt_model_hash(hvt_model *m, uint64_t *ret_hash);

HVT_C_END
#endif /* HVT_MODEL_H */
