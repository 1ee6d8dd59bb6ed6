"""operations.py - the operations of PyTorch that .pt2 files may have, as the tables of docs/pytorch-models.md. Their names are
read from src/model/pt2; what is said of each stands here, and an operation that has no row is an error."""
import re

# (names, what is said of them): a name stands for all its overloads, "max.dim" for one.
ROWS = [
    ("Layers", [
        ("conv2d conv1d", "any kernel, stride, padding, dilation and groups; `conv1d` along the tokens of [N, C, T] or along the "
                          "channels of [N, 1, C]"),
        ("conv_transpose2d", "any kernel, stride, padding, dilation and groups; `output_padding` below the stride"),
        ("linear", "over the last dimension, or over a flattened image"),
        ("batch_norm", "with weight, bias and running statistics; called once"),
        ("layer_norm", "over the last dimension, or over a whole image [C, H, W]"),
        ("rms_norm", "over the last dimension"),
        ("group_norm instance_norm", "`instance_norm` without running statistics"),
        ("scaled_dot_product_attention", "see [attention](#attention)"),
        ("matmul bmm mm einsum", "of two tensors of two dimensions or more, along any dimensions of images; `einsum` of two "
                                 "tensors without sums over a letter of one alone; outside of attention not on GPUs"),
        ("_weight_norm _weight_norm_interface mv dot vdot", "only in [computed weights](#computed-weights)"),
        ("dropout feature_dropout bernoulli empty new_empty rand", "see [dropout](#dropout); the last four only in stochastic depth"),
    ]),
    ("Pooling and reductions", [
        ("max_pool2d avg_pool2d max_pool1d avg_pool1d", "without dilation and `divisor_override`"),
        ("adaptive_avg_pool2d adaptive_max_pool2d adaptive_avg_pool1d", "`adaptive_avg_pool1d` to one value"),
        ("upsample_nearest2d _upsample_nearest_exact2d upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa "
         "_upsample_bicubic2d_aa", "`interpolate` of images by size or scale; not on GPUs, where `nearest` by whole factors works"),
        ("mean sum amax max.dim var std var_mean std_mean", "over any dimensions but the batch; of `max` the values"),
        ("linalg_vector_norm", "order 2, over one dimension or all rows and columns"),
        ("softmax", "over any dimension but the batch; not as the model's last operation, because the loss computes it"),
        ("log_softmax", "only as the last operation, where it is left out: the loss and the predictions are the same, and "
                        "`--predict-logits` writes its input"),
    ]),
    ("Functions", [
        ("relu relu6 hardtanh clamp clamp_min clamp_max leaky_relu prelu elu selu celu gelu silu mish sigmoid log_sigmoid tanh "
         "softplus hardsigmoid hardswish hardshrink", ""),
        ("abs neg exp log sqrt rsqrt reciprocal square pow", "`pow` with a number as exponent"),
    ]),
    ("Arithmetic", [
        ("add sub rsub mul div maximum minimum max.other min.other addcmul",
         "of two tensors with broadcasting, of a tensor and a number, or of a tensor and a "
         "[parameter](#parameters-in-arithmetic)"),
    ]),
    ("Shapes and slices", [
        ("view _unsafe_view reshape flatten unflatten reshape_as view_as squeeze unsqueeze permute transpose swapaxes mT t",
         "also channel shuffles, windows and grids of an image, and patches"),
        ("expand expand_as broadcast_to repeat", ""),
        ("cat stack", "along any dimension but the batch"),
        ("chunk split split_with_sizes slice narrow select unbind", "of any dimension but the batch: `x[:, 4:, ::2, 1:-1]`"),
        ("roll unfold", "any dimension but the batch"),
        ("index", "by constants, of any dimension but the batch, or of neighbouring ones; not on GPUs"),
        ("im2col col2im", "`unfold` and `fold` of images; not on GPUs"),
        ("where masked_fill", "with a constant mask"),
        ("pixel_shuffle pixel_unshuffle channel_shuffle", ""),
        ("pad constant_pad_nd", "any dimension but the batch; with a number; with -inf before `max_pool2d`; negative ones crop; "
                                "with `reflect`, `replicate` and `circular`, not on GPUs"),
        ("contiguous clone alias to type_as zero", "without a change of type"),
    ]),
]
# Those that are supported only for constants; the others that evaluate.c computes are above.
CONSTANTS = """arange bitwise_not copy cos cumsum detach div.Scalar_mode div.Tensor_mode eq fill floor floor_divide full full_like
ge gt le lift_fresh_copy logical_not lt meshgrid ne new_full new_ones new_zeros ones ones_like pow.Scalar
remainder repeat_interleave sin tile tril triu zeros zeros_like""".split()
FILES = ("canon_layers.c", "canon_math.c", "canon_shapes.c")


def targets(root, file):
    """The names in a file's table: NAME or NAME.OVERLOAD."""
    rows = re.findall(r'^    \{"([\w. ]+)", ', (root / "src/model/pt2" / file).read_text(), re.M)
    return [name for names in rows for name in names.split()]


def matches(name, target):
    return target == name or target.partition(".")[0] == name


def tables(root):
    """Markdown; an error where the rows and the source differ."""
    there = [t for f in FILES for t in targets(root, f)]
    said = [n for _, rows in ROWS for names, _ in rows for n in names.split()] + CONSTANTS
    if missing := [t for t in there if not any(matches(n, t) for n in said)]:
        raise SystemExit(f"operations.py has no row for {', '.join(missing)}, which src/model/pt2 imports")
    if gone := [n for n in said if not any(matches(n, t) for t in there)]:
        raise SystemExit(f"src/model/pt2 does not import {', '.join(gone)}, which operations.py has rows for")
    out = ["| | operations | limits |", "|---|---|---|"]
    for group, rows in ROWS:
        for i, (names, limits) in enumerate(rows):
            shown = list(dict.fromkeys(n.partition(".")[0] for n in names.split()))
            out.append(f"| {'' if i else group} | {' '.join(f'`{n}`' for n in shown)} | {limits} |")
    return "\n".join(out) + "\n"


def constants(root):
    """The operations that are supported only for constants."""
    return " ".join(f"`{n}`" for n in dict.fromkeys(n.partition(".")[0] for n in CONSTANTS)) + "\n"
