/**
 * @file layers.h
 * The builders of layers, which append them to a model's tape.
 *
 * A builder needs no error check: given a bad value it returns a bad one, and hvt_model_plan() (hvt/model.h)
 * reports the first mistake.
 */
#ifndef HVT_LAYERS_H
#define HVT_LAYERS_H

#include "hvt/device.h"

HVT_C_BEGIN

typedef struct hvt_model hvt_model;
typedef int hvt_value; ///< index of a layer's output; < 0 after a mistake

/** Name the layer appended next. Its parameters are name.weight, name.bias, name.running_mean, ...; a name
 * that ends in "_" gets no dot (in_proj_weight of torch.nn.MultiheadAttention). Default: kind and position,
 * e.g. "conv2d3". */
HVT_API void hvt_name(hvt_model *m, const char *fmt, ...) HVT_PRINTF(2, 3);

/** The layer appended next shares the parameters of the layer that made v, which must have its kind and
 * parameter shapes. Their gradient is the sum over all layers that read them. Batch norms, whose running
 * statistics belong to one place, cannot share. */
HVT_API void hvt_share(hvt_model *m, hvt_value v);

/** The images, [N,h,w,c]. This must be the first layer, and the only input. */
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
    bool dirac; ///< two dimensions, not transposed: the first C/groups filters start as identity
                ///< (torch.nn.init.dirac_()), others U(+-1/sqrt(C/groups*R*S)), as airbench's
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
 * hvt_conv2d_with(), but bottom may be as low as 1 - stride_h and right as low as 1 - stride_w; `line` or
 * `dirac`; an output without pixels. */
HVT_API hvt_value hvt_conv_transpose2d(hvt_model *m, hvt_value x, const hvt_conv2d_opts *opts);
/** torch.nn.BatchNorm2d(eps 1e-5, momentum 0.1), for each channel:
 *
 *     y = gamma * (x - mean) / sqrt(variance + eps) + beta
 *
 * In training, mean and (biased) variance are those of the shard's images, or of all shards' with
 * hvt_distopt_opts.sync_batchnorm; in inference, the running statistics. */
HVT_API hvt_value hvt_batchnorm(hvt_model *m, hvt_value x);
/** hvt_batchnorm() with another eps, above 0 and at most 1, and another momentum, at most 1, of the running
 * statistics. */
HVT_API hvt_value hvt_batchnorm_with(hvt_model *m, hvt_value x, float eps, float momentum);
/** torch.nn.BatchNorm2d in eval() mode while the model trains: y = gamma * (x - running_mean) /
 * sqrt(running_var + eps) + beta. Running statistics stay as set or loaded; gamma and beta are trained
 * unless frozen. */
HVT_API hvt_value hvt_batchnorm_fixed(hvt_model *m, hvt_value x, float eps);
HVT_API hvt_value hvt_relu(hvt_model *m, hvt_value x);             ///< max(x, 0)
HVT_API hvt_value hvt_add(hvt_model *m, hvt_value a, hvt_value b); ///< a + b, of equal shape
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
/** hvt_linear() for each pixel of [N,H,W,C], as torch.nn.Linear on a tensor whose last dimension is C;
 * without bias if `bias` is false. */
HVT_API hvt_value hvt_linear_with(hvt_model *m, hvt_value x, int outputs, bool bias);

/*
 * Computed weights. Filters and biases may be computed from parameters and constants: standardised or
 * normalised filters, low-rank updates, tied and transposed weights, fixed filters. Such values are
 * *tensors*: f32 whatever the activations' type, of 0 to 4 dimensions, and the same for all images. These
 * builders, and hvt_apply() and hvt_combine() of tensors, make them; only they and the layers
 * hvt_conv2d_by(), hvt_conv_transpose2d_by() and hvt_linear_by() read them. For hvt_value_shape() a tensor is
 * 1x1xelements.
 *
 *     hvt_name(m, "conv1.weight");
 *     hvt_value w = hvt_weight_parameter(m, 4, (int[]){64, 3, 7, 7}, 0, 0.03f);
 *     w = hvt_weight_standardise(m, w, 1e-5f);
 *     x = hvt_conv2d_by(m, x, w, -1, &(hvt_conv2d_opts){.filters = 64, .kernel_h = 7, .stride_h = 2});
 *
 * Each forward pass computes tensors again, in time proportional to their elements, not to images. Their
 * gradients flow into the parameters, which are trained, frozen, saved and exchanged as all others are. Sums
 * run in f64, in the order of elements: the bits depend neither on threads nor on ranks. cuda does not
 * support them: hvt_model_plan() fails with E_UNSUPPORTED.
 */

/** A parameter dim[ndim], whose name in files is exactly the layer's. Initialised to `init` or, with a
 * deviation above 0, as normal with this deviation around 0. Several layers may read it. */
HVT_API hvt_value hvt_weight_parameter(hvt_model *m, int ndim, const int *dim, float init, float deviation);
/** The same for a constant: in files, but not trained, as in hvt_combine_constant(). */
HVT_API hvt_value hvt_weight_buffer(hvt_model *m, int ndim, const int *dim, float init);
/** A constant that is not in files. The values are copied. */
HVT_API hvt_value hvt_weight_numbers(hvt_model *m, int ndim, const int *dim, const float *values);
/** w's elements with other dimensions, as torch.as_strided:
 *
 *     y[i,j,..] = w[first + i*stride[0] + j*stride[1] + ..]     w's elements in their order
 *
 * stride NULL: contiguous elements, for a reshape; a stride of 0 repeats elements. Mistakes: negative
 * strides, elements outside of w, strides above 0 with which elements overlap. */
HVT_API hvt_value hvt_weight_view(hvt_model *m, hvt_value w, int first, int ndim, const int *dim,
                                  const int *stride);
/** The sum over each dimension i with over[i], which becomes 1. */
HVT_API hvt_value hvt_weight_sum(hvt_model *m, hvt_value w, const bool *over);
/** y[i,j] = sum over k of a[i,k] * b[k,j]. */
HVT_API hvt_value hvt_weight_matmul(hvt_model *m, hvt_value a, hvt_value b);
/** y[k,..] = (w[k,..] - mean) / sqrt(variance + eps) over the elements of each k (the biased variance), as
 * torch.nn.functional.batch_norm(w.reshape(1, K, -1), training=True) has it. eps above 0, at most 1. */
HVT_API hvt_value hvt_weight_standardise(hvt_model *m, hvt_value w, float eps);
/** torch.cat(in, along). */
HVT_API hvt_value hvt_weight_concat(hvt_model *m, const hvt_value *in, int count, int along);
/** hvt_conv2d_with() whose filters are a tensor [K,C/groups,R,S], with `line` [K,C/groups,S], and whose bias
 * is a tensor [K], or -1 for none. Mistakes: opts->bias, other dimensions. */
HVT_API hvt_value hvt_conv2d_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias,
                                const hvt_conv2d_opts *opts);
/** hvt_conv_transpose2d() with filters [C,K/groups,R,S] and a bias [K], or -1. */
HVT_API hvt_value hvt_conv_transpose2d_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias,
                                          const hvt_conv2d_opts *opts);
/** hvt_linear_with() with a weight [outputs,C] and a bias [outputs], or -1. */
HVT_API hvt_value hvt_linear_by(hvt_model *m, hvt_value x, hvt_value weight, hvt_value bias);

/*
 * More layers. If a device does not support one, hvt_model_plan() fails with E_UNSUPPORTED and names the
 * layer.
 */

/** y = f(x), element-wise, for images or a tensor of weights. a and b are f's parameters, if it has any:
 * torch.nn.ReLU6 is (HVT_HARDTANH, 0, 6), and x + 1 is (HVT_AFFINE, 1, 1). */
HVT_API hvt_value hvt_apply(hvt_model *m, hvt_value x, hvt_function f, float a, float b);
/** a op b. One operand has the shape of the result, [N,H,W,C]; the other the same, or [N,1,1,C] or [N,H,W,1],
 * which is broadcast. Two tensors of weights are broadcast as in PyTorch. */
HVT_API hvt_value hvt_combine(hvt_model *m, hvt_binary op, hvt_value a, hvt_value b);
/** x op p, where p is a parameter of C elements, one per channel, or of one element. In files p has the
 * layer's name and the shape dim[ndim], e.g. [C,1,1]; ndim 0 is a scalar. Initialised to `init`. */
HVT_API hvt_value hvt_combine_parameter(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim,
                                        float init);
/** The same with a constant p, like PyTorch's buffers: in files, but not a parameter, and never trained. */
HVT_API hvt_value hvt_combine_constant(hvt_model *m, hvt_binary op, hvt_value x, int ndim, const int *dim,
                                       float init);
/** x plus a parameter, whose rows are added to the pixels from `first` on, line by line, in every image:
 * position embeddings or, after hvt_pad(), learnt tokens. In files the parameter has the layer's name and the
 * shape dim[ndim], e.g. [1,T,C]: T rows of C elements. Initialised as normal with this deviation. */
HVT_API hvt_value hvt_add_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim,
                                    float deviation);
/** The same with a constant, as in hvt_combine_constant(); 0 until it is set or loaded. */
HVT_API hvt_value hvt_add_constant_embedding(hvt_model *m, hvt_value x, int first, int ndim, const int *dim);
/** torch.mean and torch.max over dim 1: [N,H,W,C] -> [N,H,W,1]. The first of equal maxima gets the gradient.
 */
HVT_API hvt_value hvt_mean_channels(hvt_model *m, hvt_value x);
HVT_API hvt_value hvt_max_channels(hvt_model *m, hvt_value x);
/** Maximum across groups of C/groups channels: y[.., j] = max over g of x[.., g * C/groups + j]. Mistakes:
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
/** torch.nn.functional.pad(mode="reflect", "replicate", "circular"): the added rows and columns repeat the
 * image's. Mistakes: negative numbers; more rows or columns than the image has (reflect: as many, too). */
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
    int height, width; ///< of the output; 0: the input's times the scale, rounded down
    /** Output pixels per input pixel, as scale_factor; 0: height / H, width / W. */
    double scale_h, scale_w;
    bool align_corners; ///< align the centres of corner pixels, else the image's edges; bilinear and bicubic
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
 * sets or types nor on an image's place in its batch; the mask of a whole batch is its first image's. A
 * loader's key depends on (seed, epoch). For batches without `key` or `ids` the mask is a function of (the
 * seed of hvt_model_init(), training steps that a distributed optimizer has ended since, the image's index
 * over all shards), so passes within one step drop the same elements. Mistakes: p below 0 or above 1.
 */
HVT_API hvt_value hvt_dropout(hvt_model *m, hvt_value x, double p);
HVT_API hvt_value hvt_dropout_channels(hvt_model *m, hvt_value x, double p);
HVT_API hvt_value hvt_drop_path(hvt_model *m, hvt_value x, double p, bool whole_batch);

/** [N,H,W,C] -> [N,1,1,H*W*C], for hvt_linear(). In files that layer's weight has its columns in the order
 * C,H,W, as after torch.flatten(1). Functions, hvt_add() and hvt_combine() of two such values may come in
 * between. */
HVT_API hvt_value hvt_flatten(hvt_model *m, hvt_value x);

/** [N,h,w,c] of zeros, for hvt_add_embedding() or hvt_combine_parameter(): their result is then the parameter
 * itself, for each image. x only determines the place on the tape. */
HVT_API hvt_value hvt_zeros(hvt_model *m, hvt_value x, int h, int w, int c);

/** values [h,w,c], the same for each image; not a parameter, and not in files. x only determines the place on
 * the tape. The model copies the values and uses HVT_ORDER_NHW. */
HVT_API hvt_value hvt_constant(hvt_model *m, hvt_value x, int h, int w, int c, const float *values);

/** Sums of pixels by number, line by line:
 *
 *     y[n,o,c] = sum over i < terms of x[n,index[o][i],c]        0 where an index is -1
 *
 * With one term it is torch.index_select over the pixels, torch.nn.Unfold and any repetition; with several
 * torch.nn.Fold. Indices [h*w][terms] are copied. Mistakes: an index below -1 or beyond the last pixel, more
 * than 2^20 of them. */
HVT_API hvt_value hvt_gather_pixels(hvt_model *m, hvt_value x, int h, int w, int terms, const int *index);

/** torch.matmul: H matrices of W rows and C columns.
 *
 *     y[n,h,i,j] = sum over k of a[n,h,i,k] * b[n,h,k,j]         b[n,h,j,k] with `transposed`
 *
 * The whole model then uses HVT_ORDER_NHW. Mistakes: different numbers of matrices, or inner lengths. */
HVT_API hvt_value hvt_matmul(hvt_model *m, hvt_value a, hvt_value b, bool transposed);

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

/** Height, width and channels of a value; zeros if v is not a value of m. A flattened value has one pixel. */
HVT_API void hvt_value_shape(const hvt_model *m, hvt_value v, int ret_hwc[3]);

HVT_C_END
#endif /* HVT_LAYERS_H */
