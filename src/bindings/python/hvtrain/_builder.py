"""Models built layer by layer: hvt/layers.h."""
from __future__ import annotations

from ctypes import byref, c_bool, c_char_p, c_double, c_float, c_int, c_void_p

from ._library import Conv2dOpts, HvtError, InterpolateOpts, lib

_WORDS = {  # arguments that are names
    "apply": ("relu", "hardtanh", "leaky_relu", "elu", "sigmoid", "hardsigmoid", "hardswish", "silu", "gelu", "gelu_tanh",
              "tanh", "softplus", "affine", "clamp", "exp", "log", "pow"),
    "combine": ("add", "sub", "mul", "div", "maximum", "minimum"),
    "layernorm": ("channels", "image"),
    "interpolate": ("nearest", "nearest-exact", "bilinear", "bicubic"),
}
_V, _I, _F, _D, _B, _W = c_int, c_int, c_float, c_double, c_bool, "word"
_LAYERS = {  # arguments after the model, in C's order
    "conv2d": (_V, _I, _I, _I, _I), "batchnorm": (_V,), "batchnorm_with": (_V, _F, _F), "batchnorm_fixed": (_V, _F),
    "relu": (_V,), "add": (_V, _V), "maxpool": (_V, _I, _I, _I), "avgpool": (_V,), "subsample": (_V, _I, _I),
    "linear": (_V, _I), "linear_with": (_V, _I, _B), "apply": (_V, _W, _F, _F), "combine": (_W, _V, _V),
    "mean_channels": (_V,), "max_channels": (_V,), "slice": (_V, _I, _I), "shuffle": (_V, _I), "pixel_shuffle": (_V, _I),
    "pixel_unshuffle": (_V, _I), "pad": (_V, _I, _I, _I, _I), "dropout": (_V, _D), "dropout_channels": (_V, _D),
    "drop_path": (_V, _D, _B), "flatten": (_V,), "reshape": (_V, _I, _I), "attention": (_V, _V, _V, _I, _F),
    "self_attention": (_V, _I, _F), "layernorm": (_V, _W, _F, _B), "groupnorm": (_V, _I, _F, _B),
}


def _word(layer: str, word: str) -> int:
    if word not in _WORDS[layer]:
        raise HvtError("E_ARG", f"{layer}: {word!r} is not one of {', '.join(_WORDS[layer])}", False)
    return _WORDS[layer].index(word)


class Builder:
    """A model under construction. A method appends a layer and returns its output. The methods are the functions of
    hvt/layers.h, with the same arguments: hvt_conv2d(m, x, 16, 3, 1, 1) is m.conv2d(x, 16, 3, 1, 1). Functions, binary
    operators and the like are names: m.apply(x, "gelu", 0, 0). Options are keywords: m.conv2d_with(x, filters=16,
    kernel_h=3, bias=True)."""

    def __init__(self, model: c_void_p):
        self._model = model

    def name(self, name: str) -> None:
        """Name the layer that is appended next."""
        lib.hvt_name(self._model, b"%s", name.encode())

    def concat(self, values) -> int:
        """Concatenate the channels of values."""
        return lib.hvt_concat(self._model, (c_int * len(values))(*values), len(values))

    def conv2d_with(self, x: int, **options) -> int:
        """options: filters and kernel_h, and further members of hvt_conv2d_opts."""
        return lib.hvt_conv2d_with(self._model, x, byref(Conv2dOpts(**options)))

    def conv_transpose2d(self, x: int, **options) -> int:
        """options: as for conv2d_with()."""
        return lib.hvt_conv_transpose2d(self._model, x, byref(Conv2dOpts(**options)))

    def interpolate(self, x: int, kind: str, **options) -> int:
        """options: height and width, or scale_h and scale_w, and further members of hvt_interpolate_opts."""
        opts = InterpolateOpts(kind=_word("interpolate", kind), **options)
        return lib.hvt_interpolate(self._model, x, byref(opts))


def _method(layer: str, kinds: tuple):
    function = getattr(lib, "hvt_" + layer)
    function.argtypes, function.restype = [c_void_p, *(c_int if k == _W else k for k in kinds)], c_int

    def append(self, *arguments) -> int:
        if len(arguments) != len(kinds):
            raise TypeError(f"{layer}() takes {len(kinds)} arguments, got {len(arguments)}")
        return function(self._model, *(_word(layer, a) if k == _W else a for k, a in zip(kinds, arguments)))

    append.__name__, append.__doc__ = layer, f"hvt_{layer}() of hvt/layers.h."
    return append


for _layer, _kinds in _LAYERS.items():
    setattr(Builder, _layer, _method(_layer, _kinds))
lib.hvt_name.argtypes, lib.hvt_name.restype = [c_void_p, c_char_p, c_char_p], None
