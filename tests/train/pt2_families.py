#!/usr/bin/env python3
"""pt2_families.py HVTRAIN [--round-trip] [NAME ...]: torchvision's families, and nets of our own, compared with PyTorch.

Each is exported with random weights, and with dropout and stochastic depth at 0, and compared in train mode with PyTorch in
f64: the logits of an evaluation, the gradient of each parameter (one update of SGD at a large rate), and the losses of ten
updates on one batch, of SGD with momentum and of AdamW with clipping. For gradients and losses functions with a kink are
replaced by smooth ones: with a relu, one sum that rounds to the other side of 0 puts a gradient off by a percent or ten, in
PyTorch too. Prints a line for each:
the largest differences and, "(f32)", those of PyTorch in f32, of which ours may be four times where they exceed the bounds;
"FAILS" where a difference is larger. The nets of `refused` must be refused in one message that names all operations that
are not known. Without names all are run, which takes some minutes; test_pt2.py runs some.

--round-trip: exported, trained by three updates with all dropout, and loaded into a new model by load_state_dict(), a net
must have the logits in PyTorch that hvtrain says it has.
"""
import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from math import inf

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from pt2_nets import Turned
from pt2_weights import weights

warnings.filterwarnings("ignore")
BATCH, CLASSES, STEPS, MOMENTUM, CLIP, DECAY = 6, 7, 10, 0.9, 1.0, 0.01
THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
RATES = {"sgd": 0.0005, "adamw": 0.00001}  # AdamW moves each weight of a large net by as much
# rates of nets that would hardly move
LARGER = {"weight_norms": 100, "weight_products": 30, "weight_filters": 100, "u_net": 300, "divided": 100, "deeplab": 100, "rotaries": 50, "selective": 100, "blocks": 100, "two_branches": 100, "gated": 100, "arithmetic": 100, "cropped": 100, "functions": 10, "shared": 300, "ties": 100, "scaled": 100, "pyramid": 100, "attentive": 300, "masked": 30, "turned": 30, "small_swin": 30, "small_swin_v2": 30, "small_maxvit": 30,
          "logarithms": 300, "tokens": 30, "queries": 30, "squeezenet1_0": 300, "squeezenet1_1": 300, "alexnet": 60,
          "vgg11": 100}
BOUNDS = {"logits": 1e-4, "gradients": 1e-3, "losses": 1e-3}

# name in torchvision.models: side of the images, arguments
families = {
    "resnet18": (64, {}), "resnet50": (64, {}), "resnext50_32x4d": (64, {}), "wide_resnet50_2": (64, {}),
    "alexnet": (64, {}), "vgg11": (32, {}), "vgg11_bn": (32, {}), "squeezenet1_0": (64, {}), "squeezenet1_1": (64, {}),
    "densenet121": (64, {}), "mobilenet_v2": (64, {}), "mobilenet_v3_small": (64, {}), "mobilenet_v3_large": (64, {}),
    "mnasnet0_5": (64, {}), "mnasnet1_0": (64, {}), "shufflenet_v2_x0_5": (64, {}), "shufflenet_v2_x1_0": (64, {}),
    "regnet_y_400mf": (64, {}), "regnet_x_400mf": (64, {}), "efficientnet_b0": (64, {}), "efficientnet_v2_s": (64, {}),
    "convnext_tiny": (64, {}), "googlenet": (64, {"aux_logits": False, "init_weights": False}),
    "vit_b_16": (64, {"image_size": 64}), "swin_t": (64, {}), "swin_v2_t": (64, {}), "maxvit_t": (224, {}),
    "inception_v3": (96, {"aux_logits": False, "init_weights": False}),
}
# side of the images, operations that the message must name
refused = {
    "unusual": (12, ["grid_sampler", "cummax"]),
    "softmax": (12, ["softmax.int"]), "squeezed": (12, ["softmax.int"]),
}
round_trips = ["gated", "scaled", "masked", "turned", "small_swin", "small_swin_v2", "small_maxvit", "resnet18", "mobilenet_v2", "efficientnet_b0"]


@contextlib.contextmanager
def smooth():
    """In place of functions with a kink, modules' too."""
    def mean(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, False)

    def silu(x, *_, **__):
        return F.silu(x)

    instead = {"relu": silu, "relu6": silu, "hardtanh": silu, "hardswish": silu,
               "hardsigmoid": lambda x, *_: torch.sigmoid(x), "leaky_relu": lambda x, *_: F.softplus(x), "max_pool2d": mean}
    before = {name: getattr(F, name) for name in instead}
    for name, f in instead.items():
        setattr(F, name, f)
    try:
        yield
    finally:
        for name, f in before.items():
            setattr(F, name, f)


class Cell(nn.Sequential):
    """Odd filters, a group norm."""

    def __init__(self, c, k):
        super().__init__(nn.Conv2d(c, k, (3, 5), padding=(1, 2)), nn.GroupNorm(1, k), nn.GELU(),
                         nn.Conv2d(k, k, (5, 1), padding=(2, 0), bias=False), nn.BatchNorm2d(k), nn.SiLU())


class TwoBranches(nn.Module):
    """The way down of a U-net, whose levels meet again at the size of the deepest, and a second branch of rectangles."""

    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList([Cell(3, 8), Cell(8, 12), Cell(12, 16)])
        self.branch = nn.Sequential(nn.Conv2d(3, 6, 7, stride=4, padding=3), nn.InstanceNorm2d(6), nn.LeakyReLU(0.1),
                                    nn.Conv2d(6, 10, (1, 7), padding=(0, 3), groups=2), nn.Softplus())
        self.merge = nn.Conv2d(8 + 12 + 16 + 10, 20, 1)
        self.gate = nn.Linear(20, 20)
        self.head = nn.Linear(20 * 4, CLASSES)

    def forward(self, x):
        y, kept = x, []
        for i, level in enumerate(self.levels):
            y = level(y if i == 0 else F.max_pool2d(y, 2))
            kept.append(y)
        z = self.branch(x)
        size = kept[-1].shape[2:]
        z = torch.cat([F.adaptive_avg_pool2d(t, size) for t in kept] + [F.adaptive_max_pool2d(z, size)], 1)
        z = self.merge(z)
        z = z * torch.sigmoid(self.gate(z.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)
        return self.head(F.adaptive_avg_pool2d(z, 2).flatten(1))


class Gated(nn.Module):
    """What timm's nets are made of: a patch stem, layer norm over channels, depthwise 7x7, squeeze and excitation, a layer
    scale, a last convolution as head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, 4)
        self.norm = nn.LayerNorm(24, eps=1e-6)
        self.deep = nn.Conv2d(24, 24, 7, padding=3, groups=24)
        self.wide, self.narrow = nn.Linear(24, 96), nn.Linear(96, 24)
        self.scale = nn.Parameter(torch.full((24, 1, 1), 0.3))
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.down = nn.Conv2d(24, 32, 3, stride=(2, 1), padding=1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.head = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y), approximate="tanh")).permute(0, 3, 1, 2)
        x = x + self.scale * y
        x = x * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return torch.flatten(F.adaptive_avg_pool2d(self.head(F.hardswish(self.bn(self.down(x)))), 1), 1)


class Arithmetic(nn.Module):
    """Numbers, sums, differences, products and quotients, norms of rows, one channel alone, a layer that is used twice."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 9, 3, padding=1, bias=False)
        self.one = nn.Conv2d(9, 1, 1)
        self.norm = nn.InstanceNorm2d(9, affine=True)
        self.shift = nn.Parameter(torch.full((1, 10, 1, 1), 0.1))
        self.hidden, self.rows, self.twice = nn.Linear(40, 12, bias=False), nn.BatchNorm1d(12), nn.Linear(12, 12)
        self.groups = nn.GroupNorm(3, 12)
        self.last = nn.Linear(12, CLASSES, bias=False)

    def forward(self, x):
        x = self.norm(self.conv((x - 0.5) * 2 / 3 + 0.25))
        a = torch.sigmoid(self.one(x))
        x = torch.cat([a, x * a - x / (a + 1)], 1) - self.shift
        x = F.adaptive_avg_pool2d(F.elu(x), 2).view(x.shape[0], -1)
        x = F.silu(self.rows(self.hidden(x)))
        return self.last(self.groups(self.twice(F.softplus(self.twice(x)))))


class Cropped(nn.Module):
    """Pads and crops of rows, columns and channels, also of turned images; parts that nobody reads; a copy that is
    changed in place."""

    def __init__(self):
        super().__init__()
        self.conv, self.zeros = nn.Conv2d(3, 12, 3), nn.ZeroPad2d((1, 2, 0, 3))
        self.deep, self.turned = nn.Conv2d(12, 16, 3), nn.Linear(16, 5)
        self.last = nn.Linear(39, CLASSES)

    def forward(self, x):
        x = F.softplus(self.zeros(self.conv(F.pad(x, (1, 0, -1, 2)))))
        shortcut = F.pad(x[:, :, ::2, 1::3], (0, 0, 0, 0, 2, 2))
        deep = self.deep(torch.constant_pad_nd(x, [-2, 1, 0, 1]))[:]
        a, _, b = deep.split([4, 8, 4], 1)
        copy = x[:, 2:8].clone()
        copy.mul_(2)
        _, c = x[:, 0:12].chunk(2, 1)
        turned = self.turned(F.pad(deep.permute(0, 2, 3, 1)[:, 1:-2, -6:, :], (0, 0, 1, 0)))
        row = x.narrow(2, -3, 2).narrow(1, 2, 5).select(2, 0)[:, :, None, 3:7].mean((2, 3))[:, 1:]
        one = (x[:, 3] * x[:, -1]).unsqueeze(1)
        a = a * one[:, :, -21:, :19]
        corner = b[:, :, 0, 0] + b[..., -1, 2]
        return self.last(torch.cat([shortcut.mean((2, 3)), a.mean((2, 3)), corner, (c + copy).mean((2, 3)),
                                    turned.mean((1, 2)), row], 1))


class Scaled(nn.Module):
    """Images that the model normalises itself by buffers, squeeze and excitation by expand_as, sums over an image, a layer
    scale that is a view of a parameter, a layer norm without a bias, a parameter and a buffer of no dimension."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.tensor(0.1))
        self.register_buffer("middle", torch.tensor([0.1, -0.2, 0.3]).view(1, 3, 1, 1))
        self.register_buffer("spread", torch.tensor([0.5, 0.8, 1.1]))
        self.conv, self.deep = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.norm = nn.LayerNorm(8, bias=False)
        self.squeeze, self.excite = nn.Linear(8, 4), nn.Linear(4, 8)
        self.gamma = nn.Parameter(torch.linspace(-0.5, 1, 8))
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.gain * self.conv((x - self.middle) / self.spread.view(-1, 1, 1)) + self.offset
        s = torch.sigmoid(self.excite(F.silu(self.squeeze(x.sum((2, 3)) / 50))))
        x = x * s.view(s.shape[0], 8, 1, 1).expand_as(x)
        x = x + self.gamma.reshape(1, -1, 1, 1) * self.deep(x)
        x = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self.head((x * x.mean((2, 3), keepdim=True).expand(-1, -1, x.shape[2], x.shape[3])).mean((2, 3)))


class FixedNorms(nn.Module):
    """Batch norms that stay in eval() mode while others train: before a 1x1 convolution, a ReLU6, a sum, and behind a
    pooling, where a batch would have one value per image."""

    def __init__(self):
        super().__init__()
        self.conv, self.point = nn.Conv2d(3, 24, 3, padding=1, bias=False), nn.Conv2d(24, 16, 1, bias=False)
        self.deep = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.fixed = nn.ModuleList([nn.BatchNorm2d(24), nn.BatchNorm2d(16, eps=1e-3), nn.BatchNorm2d(16), nn.BatchNorm2d(16)])
        self.trained = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, CLASSES)
        for norm in self.fixed:
            norm.running_mean.uniform_(-0.3, 0.3)
            norm.running_var.uniform_(0.02, 0.2)
        self.fixed[3].running_var.mul_(0.05)

    def train(self, mode=True):
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x):
        x = self.point(F.relu(self.fixed[0](self.conv(x))))
        y = self.deep(F.relu6(self.fixed[1](x)))
        x = F.relu(self.fixed[2](self.trained(y)) + x)
        return self.head(self.fixed[3](F.adaptive_avg_pool2d(x, 1)).flatten(1))


class FrozenNorms(FixedNorms):
    """All batch norms in eval() mode. Dropout, which is not, says that the model was exported for training."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.0)

    def train(self, mode=True):
        super().train(mode)
        self.trained.eval()
        return self

    def forward(self, x):
        return super().forward(self.drop(x))


class Pyramid(nn.Module):
    """HRNet's exchange: levels meet again at the size of the largest, and of the smallest."""

    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList([Cell(3, 8), Cell(8, 8), Cell(8, 8)])
        self.mix = nn.ModuleList([nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8)) for _ in range(3)])
        self.head = nn.Linear(16, CLASSES)

    def forward(self, x):
        a = self.levels[0](x)
        b = self.levels[1](F.avg_pool2d(a, 2))
        c = self.levels[2](F.avg_pool2d(b, (2, 4)))
        c = self.mix[2](c)
        y = F.silu(a + F.interpolate(self.mix[0](b), scale_factor=2) + F.interpolate(c, a.shape[2:], mode="nearest-exact"))
        z = F.silu(F.interpolate(self.mix[1](b), size=b.shape[2:]) + F.interpolate(c, scale_factor=(2, 4), mode="nearest"))
        return self.head(torch.cat([y.mean((2, 3)), z.mean((2, 3))], 1))


class Attentive(nn.Module):
    """CBAM: channels by means and maxima of an image, pixels by those of its channels; 15 of them, an odd number. Then
    ConvNeXt V2's response normalisation, one channel of which is 0."""

    def __init__(self):
        super().__init__()
        self.conv, self.next, self.head = Cell(3, 15), nn.Conv2d(15, 8, 3, padding=1), nn.Linear(8, CLASSES)
        self.squeeze, self.excite = nn.Linear(15, 5), nn.Linear(5, 15)
        self.gate = nn.Conv2d(2, 1, 5, padding=2)
        self.weight, self.bias = nn.Parameter(torch.linspace(-0.5, 1, 8)), nn.Parameter(torch.linspace(0.3, -0.2, 8))

    def forward(self, x):
        x = self.conv(x)
        by_channel = [self.excite(F.silu(self.squeeze(t))) for t in (x.mean((2, 3)), torch.amax(x, (2, 3)))]
        x = x * torch.sigmoid(sum(by_channel))[:, :, None, None]
        x = x * torch.sigmoid(self.gate(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)))
        x = x * F.softmax(3 * x, 1) + x.permute(0, 2, 3, 1).softmax(-1).permute(0, 3, 1, 2)
        x = self.next(x).permute(0, 2, 3, 1)
        x = torch.cat([x[..., :7], 0 * x[..., 7:]], 3)
        norm = torch.linalg.vector_norm(x, dim=(1, 2), keepdim=True)
        norm = norm / (norm.mean(-1, keepdim=True) + 1e-6)
        x = x + torch.addcmul(self.bias.view(1, 1, 1, -1), self.weight.view(1, 1, 1, -1), x * norm)
        x = x - x.mean(-1, keepdim=True) + 0.3 * (x.mean(1, keepdim=True).mean(2, keepdim=True) + x.amax(2).amax(1)[:, None, None])
        x = (x + 0.1 * x.sum(3).unsqueeze(3) + 0.1 * torch.amax(x, 3, keepdim=True)).permute(0, 3, 1, 2)
        return self.head(x.square().mean((2, 3))) + x.mean((1, 2, 3)).unsqueeze(1)


class Functions(nn.Module):
    """Functions of one number, and maxima of two."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 6, 3, padding=1), nn.Linear(7 * 6, CLASSES)

    def forward(self, x):
        x = 2 * self.conv(x)
        up, size = torch.exp(0.5 * x), x.abs() + 0.25
        bounded = [x.clamp(-0.5, 1), x.clamp(min=0.1), torch.clamp_max(x, 0.7), torch.clamp_min(x, -0.2), -x.abs()]
        powers = [x.square(), x ** 2, x ** 3, size ** 0.5, size ** (1 / 3), size ** -1.5, size.pow(1), x.exp(), size.log()]
        roots = [size.sqrt(), size.rsqrt(), 0.25 / size, torch.reciprocal(up + 1)]
        smooth = [F.mish(x), F.logsigmoid(x), F.selu(x), F.celu(x, 0.7), F.elu(x, 0.8), F.silu(-x)]
        pairs = [torch.maximum(x, 1 - x), torch.minimum(x, up), torch.max(x * 0.5, -x), torch.min(x, size)]
        others = [1 - x, torch.rsub(x, up, alpha=2), torch.add(x, up, alpha=-0.5), torch.sub(x, 2, alpha=3), x / 3, 2 - up]
        groups = bounded, powers, roots, smooth, pairs, others, [up]
        return self.last(torch.cat([sum(v.mean((2, 3)) for v in g) for g in groups], 1))


class Shared(nn.Module):
    """One PReLU in two places and one of each channel; layers that have one weight, and biases of their own."""

    def __init__(self):
        super().__init__()
        self.conv, self.act, self.each = nn.Conv2d(3, 8, 3, padding=1), nn.PReLU(), nn.PReLU(8, init=0.1)
        self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.c, self.d, self.e = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8, bias=False)
        self.b.weight = self.a.weight
        self.c.weight = self.d.weight = self.e.weight
        self.shift, self.scale = nn.Parameter(torch.full((8, 1, 1), 0.2)), nn.Parameter(torch.full((1,), 1.5))
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = self.each(self.conv(x))
        x = self.shift - self.act(self.b(self.act(self.a(x))))
        x = self.scale / (x * x + self.shift + 1) + torch.maximum(x * self.scale, self.shift)
        x = self.act(x.mean((2, 3)))
        return self.last(self.e(F.silu(self.d(F.silu(self.c(x))))))


class Ties(nn.Module):
    """Maxima of a whole image, in which many pixels are the largest one: the first has the gradient."""

    def __init__(self):
        super().__init__()
        self.pick, self.last = nn.Conv2d(2, 8, 1, bias=False), nn.Linear(16, CLASSES)
        nn.init.ones_(self.pick.weight)

    def forward(self, x):
        bit = (x * 1e8).clamp(0, 1)
        x = self.pick(torch.cat([bit[:, :1], 1 - bit[:, :1]], 1)) * bit[:, 1:2] * bit[:, 2:]
        return self.last(torch.cat([F.adaptive_max_pool2d(x, 1), F.adaptive_max_pool2d(x[:, :, 3:, :39], 1)], 1).flatten(1))


class Resampled(nn.Module):
    """Interpolation to the same size, as of the positions of timm's ViTs with dynamic_img_size; each mode copies."""

    def __init__(self):
        super().__init__()
        self.patch, self.token = nn.Conv2d(3, 12, 4, 4), nn.Parameter(torch.randn(1, 1, 12))
        self.positions, self.mix, self.head = nn.Parameter(torch.randn(1, 1 + 9, 12)), nn.Linear(12, 12), nn.Linear(12, CLASSES)

    def forward(self, x):
        for mode in "nearest", "nearest-exact", "area":
            x = F.interpolate(x, (12, 12), mode=mode)
        for mode, more in ("bilinear", {}), ("bilinear", {"antialias": True}), ("bilinear", {"align_corners": True}), ("bicubic", {}):
            x = F.interpolate(x, (12, 12), mode=mode, **more)
        x = F.interpolate(x, scale_factor=1.0, mode="bilinear")
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        first, others = self.positions[:, :1], self.positions[:, 1:]
        others = F.interpolate(others.reshape(1, 3, 3, -1).permute(0, 3, 1, 2), (3, 3), mode="bicubic", antialias=True)
        x = x + torch.cat([first, others.permute(0, 2, 3, 1).reshape(1, -1, 12)], 1)
        return self.head((x + torch.tanh(self.mix(x))).mean(1))


class OneStorage(nn.Module):
    """Parameters and buffers that are views of others: rows, columns, a transpose."""

    def __init__(self):
        super().__init__()
        rows, columns, buffers = torch.randn(3, 8, 8), torch.randn(8, 16), torch.rand(3, 8)
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)
        self.mixes = nn.ModuleList(nn.Linear(8, 8, bias=False) for _ in range(5))
        for mix, view in zip(self.mixes, (rows[0], rows[1], rows[2].t(), columns[:, :8], columns[:, 8:].t())):
            mix.weight = nn.Parameter(view / 3)
        self.register_buffer("scale", buffers[1])
        self.register_buffer("shift", buffers[:, 3:4].expand(3, 8)[2])

    def forward(self, x):
        x = torch.tanh(self.conv(x)).mean((2, 3))
        for mix in self.mixes:
            x = x + torch.tanh(mix(x))
        return self.last(x * self.scale + self.shift)


class Kinks(nn.Module):
    """Functions of values that are exactly at their bounds or kinks, and the larger of two that are equal."""
    values = [-4, -3, -1, -0.5, 0, 0.5, 1, 3, 6, 7]
    functions = [torch.relu, torch.abs, torch._C._nn.hardswish, torch._C._nn.hardsigmoid, torch._C._nn.relu6,
                 lambda x: x.clamp(-1, 1), lambda x: x.clamp(min=-1), lambda x: x.clamp(max=1), lambda x: x.clamp(0.5, 0.5),
                 lambda x: torch.clamp_min(x, 0), lambda x: torch.clamp_max(x, 6), lambda x: torch._C._nn.hardtanh(x, -1, 1),
                 lambda x: torch._C._nn.leaky_relu(x, 0.1), lambda x: torch._C._nn.elu(x, 0.7), torch.selu, torch.celu,
                 torch.hardshrink, lambda x: F.hardshrink(x, 3),
                 lambda x: torch.maximum(x, x.clamp(-1, 3)), lambda x: torch.minimum(x.clamp(-1, 3), x),
                 lambda x: torch.maximum(x, torch.relu(x))]

    def __init__(self):
        super().__init__()
        self.pick = nn.ModuleList([nn.Conv2d(3, len(self.values), 1) for _ in range(len(self.functions) + 1)])
        for pick in self.pick:
            nn.init.zeros_(pick.weight)
            pick.bias.data = torch.tensor(self.values)
        self.prelu, self.last = nn.PReLU(), nn.Linear(len(self.values) * len(self.pick), CLASSES)

    def forward(self, x):
        y = [f(pick(x)) for f, pick in zip([*self.functions, self.prelu], self.pick)]
        return self.last(torch.cat(y, 1).mean((2, 3)))


class EqualOnes(nn.Module):
    """Maxima of values many of which are equal, over channels, pixels and parts of channels."""
    reductions = [lambda x: x.amax(1, True), lambda x: x.max(1, True)[0], lambda x: x.amax((2, 3)), lambda x: x.amax(2, True),
                  lambda x: x.amax(3, True), lambda x: x.max(2, True)[0], lambda x: x.max(3, True)[0],
                  lambda x: x.amax((1, 2, 3), True), lambda x: x.amax((1, 3), True), lambda x: F.max_pool2d(x, 2),
                  lambda x: F.max_pool2d(x, 3, 2, 1), lambda x: F.adaptive_max_pool2d(x, 2),
                  lambda x: x.unflatten(1, (3, 2)).amax(1), lambda x: x.unflatten(1, (3, 2)).max(1)[0],
                  lambda x: x.unflatten(1, (2, 3)).amax(2), lambda x: x.flatten(2).transpose(1, 2).amax(1),
                  lambda x: x.flatten(2).transpose(1, 2).max(1)[0], lambda x: x.flatten(2).amax(2),
                  lambda x: x.permute(0, 2, 3, 1).amax(3, True).permute(0, 3, 1, 2)]

    def __init__(self, which):
        super().__init__()
        self.reduce = self.reductions[which]
        self.pick, self.shift = nn.Conv2d(3, 6, 1, bias=False), nn.Parameter(torch.zeros(1, 6, 4, 4))
        nn.init.zeros_(self.pick.weight)
        self.shift.data = torch.tensor([0., 0, 1, 1, 0, 1, 1, 1]).repeat(12).reshape(1, 6, 4, 4)
        outputs = self.reduce(torch.zeros(2, 6, 4, 4))[0].numel()
        self.mix, self.last = nn.Linear(outputs, CLASSES), nn.Conv2d(3, CLASSES, 4)

    def forward(self, x):
        y = self.reduce(self.pick(x) + self.shift)
        return self.mix(y.flatten(1)) + self.last(x).flatten(1)


class Heads(nn.Module):
    """Self-attention as timm writes it."""

    def __init__(self, c, heads):
        super().__init__()
        self.heads, self.qkv, self.proj, self.drop = heads, nn.Linear(c, 3 * c, bias=False), nn.Linear(c, c), nn.Dropout(0)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=0.0)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        return self.proj(self.attend(q, k, v).transpose(1, 2).reshape(n, t, c))


class HeadsInParts(Heads):
    """The same without the operation."""

    def attend(self, q, k, v):
        return self.drop((q * 0.3 @ k.transpose(-2, -1)).softmax(-1)) @ v


class HeadsOfBatch(Heads):
    def attend(self, q, k, v):
        n, heads, t, c = q.shape
        q, k, v = (x.reshape(n * heads, t, c) for x in (q, k, v))
        return torch.bmm(torch.softmax(torch.bmm(q, k.mT) / 2.5, 2), v).view(n, heads, t, c)


class Tokens(nn.Module):
    """A vision transformer: tokens in front and behind, positions, attention in all its forms, and one of a token that
    reads the others."""

    def __init__(self):
        super().__init__()
        self.patch, self.deep = nn.Conv2d(3, 24, 4, 4), nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.first, self.behind = nn.Parameter(torch.randn(1, 1, 24)), nn.Parameter(torch.randn(2, 24) / 2)
        self.positions = nn.Parameter(0.5 * torch.randn(1, 19, 24))
        self.torchs = nn.MultiheadAttention(24, 3, batch_first=True)
        self.blocks = nn.ModuleList([Heads(24, 4), HeadsInParts(24, 2), HeadsOfBatch(24, 3)])
        self.norms = nn.ModuleList([nn.LayerNorm(24, eps=1e-6) for _ in range(6)])
        self.gamma = nn.Parameter(torch.linspace(0.2, 1, 24))
        self.wide, self.narrow = nn.Linear(24, 48), nn.Linear(48, 24)
        self.query, self.both = nn.Linear(24, 24), nn.Linear(24, 48)
        self.gates, self.gated = nn.Linear(24, 32), nn.Linear(16, 24)
        self.head = nn.Linear(24, CLASSES)
        self.register_buffer("table", torch.randn(1, 16, 24))

    def forward(self, x):
        n = x.shape[0]
        x = self.patch(x)
        x = (x + self.deep(x)).flatten(2).transpose(1, 2)
        gate, value = self.gates(x + self.table).chunk(2, dim=-1)
        x = x + self.gated(F.silu(gate) * value)
        x = torch.cat((self.first.expand(n, -1, -1), x, self.behind.unsqueeze(0).repeat(n, 1, 1)), dim=1)
        x = F.dropout(x + self.positions, 0.0, self.training)
        y = self.norms[0](x)
        x = x + self.torchs(y, y, y, need_weights=False)[0]
        for norm, block in zip(self.norms[1:], self.blocks):
            x = x + self.gamma * block(norm(x))
        x = x + self.narrow(F.gelu(self.wide(self.norms[4](x))))
        k, v = self.both(x[:, 1:]).chunk(2, -1)
        q = self.query(x[:, :1])
        q, k, v = (t.view(n, -1, 2, 12).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, scale=0.5).transpose(1, 2).flatten(2)
        x = self.norms[5](torch.cat([x[:, :1] + y, x[:, 1:]], 1))
        return self.head(x[:, 0] + x[:, 1:-2].mean(1)) * 0.7


class Blocks(nn.Module):
    """Graphs within the graph: autocast() and no_grad(), one in the other, with several outputs of which two are
    one tensor and one is an input."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.last = nn.Linear(8, CLASSES)
        self.register_buffer("angle", torch.arange(8.))

    def forward(self, x):
        with torch.no_grad():
            scale = torch.cos(self.angle) * 2
            mean = x.mean((2, 3), keepdim=True)
        y = self.norm(self.conv(x - mean))
        with torch.autocast("cpu", enabled=False):
            with torch.no_grad():
                shift = torch.sin(self.angle.float()) + scale
            z = torch.relu(y * scale.view(1, 8, 1, 1))
            kept, again = y, z
            z = z + shift.view(1, 8, 1, 1)
        with torch.enable_grad():
            z = torch.relu(z + kept) + again
        return self.last(z.mean((2, 3)))


class Selective(nn.Module):
    """Parts of the channels that are added, averaged, compared and weighed against each other, as in SKNet and ResNeSt."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(3, 12, 3, padding=2, dilation=2)
        self.reduce, self.select = nn.Conv2d(12, 8, 1), nn.Conv2d(8, 24, 1)
        self.radix, self.weigh = nn.Conv2d(12, 36, 3, groups=3), nn.Linear(12, 36)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        x = torch.stack([F.gelu(self.one(x)), torch.tanh(self.other(x))], 1)
        s = self.select(F.gelu(self.reduce(x.sum(1).mean((2, 3), keepdim=True))))
        x = (x * s.view(n, 2, 12, 1, 1).softmax(1)).sum(1)
        y = self.radix(x)
        y = y.view(n, 3, 12, *y.shape[2:])
        s = self.weigh(y.mean(1).mean((2, 3))).view(n, 2, 3, 6).softmax(dim=2).transpose(1, 2).reshape(n, 3, 12, 1, 1)
        y = (y * s).sum(1, keepdim=True).squeeze(1)
        z = y.view(n, 4, 3, *y.shape[2:])
        return self.last(torch.cat([y, z.amax(2)], 1).mean((2, 3)))


def halves(x, sin, cos):
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat([-b, a], -1) * sin


def neighbours(x, sin, cos):
    return torch.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape) * sin + cos * x


def pairs(x, sin, cos):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos[..., ::2] - b * sin[..., ::2], b * cos[..., 1::2] + a * sin[..., 1::2]], -1).flatten(-2)


class Rotary(Heads):
    """Queries and keys that are turned as EVA, DINOv3 and Llama write it; the first tokens may be left out, and the queries
    scaled or not turned at all, or both be normalised before."""

    def __init__(self, how, prefix=0, alike=True, apart=False, norm=None):
        super().__init__(24, 3)
        self.how, self.prefix, self.alike, self.apart = how, prefix, alike, apart
        self.q_norm, self.k_norm = (norm(8), norm(8)) if norm else (nn.Identity(), nn.Identity())
        if apart:
            del self.qkv
            self.q, self.kv = nn.Linear(24, 24), nn.Linear(24, 48)

    def turn(self, x, of):
        sin, cos = of[:, :8], of[:, 8:]
        if self.how == pairs:  # before heads and tokens change places
            return self.how(x.transpose(1, 2), sin[:, None], cos[:, None]).transpose(1, 2)
        if not self.prefix:
            return self.how(x, sin, cos)
        first, rest = x[:, :, :self.prefix], x[:, :, self.prefix:]
        return torch.cat([first, self.how(rest, sin[self.prefix:], cos[self.prefix:])], 2).type_as(x)

    def forward(self, x, of):
        n, t, c = x.shape
        if self.apart:
            q = self.q(x).view(n, t, 3, 8).transpose(1, 2)
            k, v = self.kv(x).view(n, t, 2, 3, 8).permute(2, 0, 3, 1, 4)
        else:
            q, k, v = self.qkv(x).reshape(n, t, 3, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        q = self.turn(q, of) if self.alike else q * 0.7
        return self.proj(self.attend(q, self.turn(k, of), v).transpose(1, 2).reshape(n, t, c))


class Tempered(Heads):
    """A temperature of each head."""

    def __init__(self, c, heads):
        super().__init__(c, heads)
        self.temperature = nn.Parameter(torch.linspace(0.2, 0.6, heads)[:, None, None])

    def attend(self, q, k, v):
        return (q @ k.mT * self.temperature).softmax(-1) @ v


class Rotaries(nn.Module):
    """Rotary embeddings of positions that the graph makes; what looks like them at first; a gate of all tokens."""

    def __init__(self):
        super().__init__()
        self.patch = nn.Conv2d(3, 24, 4, 4)
        self.register_buffer("bands", 0.3 ** torch.arange(2.0), persistent=False)
        self.token = nn.Parameter(torch.randn(1, 1, 24))
        self.blocks = nn.ModuleList([Rotary(halves), Rotary(halves, prefix=1), Rotary(neighbours), Rotary(neighbours, alike=False),
                                     Rotary(pairs, apart=True, norm=nn.LayerNorm),
                                     Rotary(halves, apart=True, prefix=1), Rotary(halves, prefix=1, norm=nn.RMSNorm)])
        self.norms = nn.ModuleList([nn.LayerNorm(24) for _ in self.blocks])
        self.one, self.other, self.gate, self.tempered = nn.Linear(12, 24), nn.Linear(12, 24), nn.Linear(24, 24), Tempered(24, 3)
        self.register_buffer("kept", torch.linspace(0, 1, 24))
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = self.tempered(x * torch.sigmoid(self.gate(x.mean(1, keepdim=True)))) + self.kept.cos()
        at = torch.stack(torch.meshgrid(torch.arange(0.5, 4), torch.arange(4.0), indexing="ij"), -1)
        angle = (at[..., None] * self.bands).flatten(0, 1).flatten(1)
        angle = torch.cat([torch.zeros(1, 4), angle])
        x = torch.cat([self.token.expand(n, -1, -1), x], 1)
        for i, (norm, block) in enumerate(zip(self.norms, self.blocks)):
            own = angle.tile(2) if block.how == halves else angle.repeat_interleave(2, -1)
            x = x + block(norm(x), torch.cat([own.sin(), own.cos()], -1))
        a, b = x.chunk(2, -1)
        table = angle.cos().repeat(1, 3)
        x = x + self.one(-a) + self.other(torch.relu(b)) + torch.cat([F.gelu(a * table), torch.tanh(a * (table + 1))], -1)
        return self.head(x.mean(1))


class Queries(nn.Module):
    """Parameters where others have what is computed: a query that reads all tokens, positions that are cut and scaled,
    a scale around 1, tokens that are projected before they are joined."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 24, 4, 4), nn.LayerNorm(24)
        self.positions = nn.Parameter(torch.randn(1, 20, 24))
        self.token, self.query = nn.Parameter(torch.randn(24)), nn.Parameter(torch.randn(1, 2, 24))
        self.gain, self.shift = nn.Parameter(torch.randn(24, 1, 1) / 4), nn.Parameter(torch.randn(24) / 2)
        self.own, self.q, self.kv = nn.Linear(24, 24), nn.Linear(24, 24), nn.Linear(24, 48)
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x):
        n = x.shape[0]
        x = (self.patch(x) * (1 + self.gain)).flatten(2).transpose(1, 2)
        x = torch.cat([self.own(self.token)[None, None].expand(n, 1, -1), x], 1)
        x = self.norm(x - 0.5 * self.positions[:, 2:19] + self.shift.exp())
        q = self.q(self.query).expand(n, 2, 24).view(n, 2, 3, 8).transpose(1, 2)
        k, v = self.kv(x).view(n, -1, 2, 3, 8).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2) * self.query
        return self.head(y.mean(1) + y[:, 0])


class Masked(nn.Module):
    """Attention with masks: causal, of a buffer's truth values, of numbers that the graph makes; and with elements of a
    parameter, of each head, of one number for a distance, with numbers added."""

    def __init__(self):
        super().__init__()
        self.patch, self.qkv, self.head = nn.Conv2d(3, 16, 4, 4), nn.Linear(16, 48), nn.Linear(16, CLASSES)
        place = torch.arange(16)
        apart = (place[:, None] - place).abs()
        self.register_buffer("near", apart < 6)
        self.register_buffer("lower", torch.triu(torch.full((16, 16), -inf), 1))
        self.register_buffer("apart", apart, persistent=False)
        self.register_buffer("place", place.view(-1) // 4)
        self.biases, self.table = nn.Parameter(torch.randn(2, 16)), nn.Parameter(torch.randn(31, 4))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + F.scaled_dot_product_attention(x, x, x, is_causal=True)
        x = x + F.scaled_dot_product_attention(x, x, x, attn_mask=self.near)
        q, k, v = self.qkv(x).unflatten(2, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        rows = (self.place[:, None] - self.place[None]).float()
        index = torch.arange(16)[:, None] - torch.arange(16) + 15
        bias = self.table[index].permute(2, 0, 1) + torch.where(rows > 1, torch.full((), -2.0), -0.5 * rows)
        x = x + F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
        q = q * 0.6
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.lower) + (q @ v.mT + self.lower).softmax(-1) @ q
        x = x + y.transpose(1, 2).flatten(2)
        q, k = (z.unflatten(2, (2, 8)).transpose(1, 2) for z in (x[:, :3], x))
        x = F.scaled_dot_product_attention(q, k, k, attn_mask=self.biases[:, self.apart[:3]])
        return self.head(x.transpose(1, 2).flatten(2).mean(1))


def small_swin():
    """Windows that the image is padded to, every other one rolled, with masks that the graph makes."""
    from torchvision.models import SwinTransformer
    return SwinTransformer([2, 2], 12, [2, 2], [2, 3], [3, 3], stochastic_depth_prob=0.0, num_classes=CLASSES)


def small_swin_v2():
    """Scores of vectors of length 1 and a factor of each head, biases that a net computes of the pixels' places, a bias some of
    which is set to 0."""
    from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformer, SwinTransformerBlockV2
    return SwinTransformer([2, 2], 12, [2, 2], [2, 3], [3, 3], stochastic_depth_prob=0.0, num_classes=CLASSES,
                           block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2)


def small_maxvit():
    """Windows, and grids of pixels that are far apart, by einsum."""
    from torchvision.models import MaxVit
    return MaxVit((32, 32), 8, 2, [8, 16], [1, 1], 4, 0.0, num_classes=CLASSES)


class Logarithms(nn.Module):
    """Ends in log_softmax, which is left out."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)

    def forward(self, x):
        return F.log_softmax(self.last(F.silu(self.conv(x)).mean((2, 3))), dim=-1)


class Softmax(Logarithms):
    def forward(self, x):
        return F.softmax(self.last(self.conv(x).mean((2, 3))), 1)


class Squeezed(Softmax):
    """As at the end, though a view comes behind it."""

    def forward(self, x):
        return super().forward(x)[:, :, None].flatten(1)


class UNet(nn.Module):
    """Down by strides and up by transposed convolutions, of which one has an output padding and one is depthwise; skip
    connections of odd sizes, one cropped and one padded; a reflected border, a pixel shuffle and its inverse."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = Cell(3, 8), nn.Conv2d(8, 12, 3, 2, 1)
        self.deep, self.act = Cell(12, 16), nn.PReLU()
        self.up = nn.ConvTranspose2d(16, 12, 3, 2, 1, (1, 0))
        self.wide = nn.ConvTranspose2d(24, 24, 4, 2, 1, groups=24, bias=False)
        self.back = nn.ConvTranspose2d(24, 8, 2, 1, dilation=2, groups=4, bias=False)
        self.norm, self.mix, self.last = nn.InstanceNorm2d(8), nn.Conv2d(16, 12, 3), nn.Conv2d(12, CLASSES, 1)

    def forward(self, x):
        a = self.stem(x)
        b = self.act(self.down(a[:, :, :-3]))
        c = self.up(self.deep(F.max_pool2d(b, 2)))
        c = self.wide(torch.cat([b, F.pad(c, (1, 0, 1, 0), mode="replicate")], 1))
        c = F.silu(self.norm(self.back(c)))
        c = torch.cat([a, F.interpolate(c, a.shape[2:], mode="nearest")], 1)
        c = F.pixel_shuffle(F.silu(self.mix(F.pad(c, (1, 1, 1, 1), mode="reflect"))), 2)
        return self.last(F.pixel_unshuffle(c, 2)).mean((2, 3))


class DeepLab(nn.Module):
    """Atrous convolutions beside a pooled branch, joined at the size of the input by bilinear interpolation."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.SiLU(),
                                  nn.Conv2d(12, 16, 3, 2, 1, padding_mode="circular"), nn.SiLU())
        self.rates = nn.ModuleList([nn.Conv2d(16, 8, 1)] + [nn.Conv2d(16, 8, 3, padding=d, dilation=d) for d in (2, 3, 5)])
        self.pooled, self.join = nn.Conv2d(16, 8, 1), nn.Conv2d(40, 16, 1)
        self.low, self.last = nn.Conv2d(12, 6, 1), nn.Conv2d(22, CLASSES, 3, padding=1)

    def forward(self, x):
        low = self.stem[:3](x)
        y = self.stem[3:](low)
        z = F.interpolate(self.pooled(y.mean((2, 3), keepdim=True)), y.shape[2:], mode="bilinear")
        y = F.silu(self.join(torch.cat([F.silu(rate(y)) for rate in self.rates] + [z], 1)))
        y = F.interpolate(y, low.shape[2:], mode="bilinear", align_corners=True)
        y = self.last(torch.cat([y, self.low(low)], 1))
        y = F.interpolate(y, scale_factor=(1.7, 2.3), mode="bilinear")
        y = F.interpolate(y, (9, 13), mode="bicubic", antialias=True) + F.interpolate(y, (9, 13), mode="nearest-exact")
        return torch.tanh(F.channel_shuffle(y, CLASSES)).mean((2, 3))


class Orders(nn.Module):
    """Products of matrices, softmax, reductions, joins, slices, pads and products along any dimension; gates and parameters
    that meet any of them; elements by number."""

    def __init__(self):
        super().__init__()
        self.stem, self.patch = nn.Conv2d(3, 12, 3, padding=1), nn.Conv2d(12, 16, 2, 2)
        self.gate, self.fuse = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor([0.9, 1.2, 0.4]))
        self.columns, self.rows = nn.Parameter(torch.rand(12) + 0.5), nn.Parameter(torch.rand(12, 1, 12) + 0.5)
        self.mix = nn.Parameter(torch.randn(4, 4))
        self.table, self.pairs = nn.Parameter(torch.randn(7, 5)), nn.Parameter(torch.randn(3, 4, 6))
        self.qkv, self.own, self.wide = nn.Linear(16, 40), nn.Linear(16, 16), nn.Linear(24, 16)
        self.bn, self.norm = nn.BatchNorm1d(16), nn.LayerNorm(6)
        self.last = nn.Linear(16, CLASSES)
        self.register_buffer("index", torch.tensor([[5, 0, 3], [2, 2, 6]]), persistent=False)
        self.register_buffer("mask", torch.rand(36, 36) > 0.3, persistent=False)

    def gates(self, x):
        a, weights = torch.sigmoid(self.gate), F.relu(self.fuse) + 0.1
        weights = weights / (weights.sum() + 1e-4)
        x = a * x + (1 - a) * x * self.columns
        x = x * self.rows + x.mean(2, keepdim=True) * x.mean(3, keepdim=True)
        return weights[0] * x + weights[2] * torch.roll(x, 1, 1)

    def attends(self, t):
        """Narrow queries and keys, scores that are mixed over heads, masked and dropped from."""
        q, k, v = self.qkv(t).unflatten(2, (4, 10)).permute(0, 2, 1, 3).split([3, 3, 4], 3)
        s = (q @ k.transpose(-2, -1)) * 0.5
        s = torch.einsum("bhij,hg->bgij", s, self.mix)
        s = s.masked_fill(~self.mask, float("-inf")).softmax(-1)
        return (s @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = self.gates(F.silu(self.stem(x)))
        t = self.patch(x).flatten(2).transpose(1, 2)
        t = t + self.bn(self.attends(t).flatten(0, 1)).unflatten(0, (t.shape[0], -1))
        s = self.own(t).softmax(1)
        t = t + torch.bmm(s, torch.bmm(s.mT, t)) + torch.einsum("btc,bsc->bts", t, t[:, :5]) @ t[:, 2:7] * 0.1
        u = F.unfold(t.mT.unflatten(2, (6, 6)), 3, padding=1, stride=2)
        t = t + F.fold(u, (6, 6), 3, padding=1, stride=2).flatten(2).mT * 0.1
        u = torch.cat([t[:, ::3], t[:, 1:4]], 1)[:, [3, 0, 2]].unfold(2, 6, 5)
        u = self.norm(u).sum(3).mean(2, keepdim=True) + t.var((1, 2), keepdim=True) + t.std(1).amax(1)[:, None, None]
        t = t * torch.where(self.mask[:, :16], 1 + t, t * 0.5) + F.pad(u, (0, 0, 3, 30), value=0.5)
        w = self.table[self.index].softmax(2).square()  # [2,3,5]
        t = torch.cat([t.unflatten(2, (2, 8)), self.pairs[torch.tensor([2, 0])[:, None], torch.tensor([1, 3])].mean(0)[None, None, :, :4]
                       .expand(t.shape[0], 36, 2, 4)], 3).flatten(2)
        return self.last(self.wide(t).mean(1)) + w.sum((0, 1, 2))


class Divided(nn.Module):
    """Windows as images of a larger batch, convolved and pooled; a part of a tensor that is changed in place; positions that
    are repeated or interpolated."""

    def __init__(self):
        super().__init__()
        self.stem, self.conv = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, 2, padding=(1, 2), dilation=(1, 2))
        self.deep, self.point, self.last = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.Conv2d(8, 12, 1), nn.Linear(12, CLASSES)
        self.norm = nn.BatchNorm2d(8)
        self.tile, self.positions = nn.Parameter(torch.randn(1, 3, 3, 8)), nn.Parameter(torch.randn(1, 8, 5, 5))

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        x = x + F.interpolate(self.positions, (h, w), mode="bicubic") + self.tile.tile(1, 4, 4, 1).permute(0, 3, 1, 2)
        y = x.view(n, c, 2, h // 2, 3, w // 3).permute(0, 2, 4, 1, 3, 5).reshape(-1, c, h // 2, w // 3)
        z = self.norm(F.silu(self.conv(y))) + F.avg_pool2d(self.deep(y), 2)
        z = F.max_pool2d(self.point(z), (1, 2))
        z = z.view(n, 2, 3, 12, 3, 1).permute(0, 3, 1, 4, 2, 5).reshape(n, 12, 6, 3)
        u = F.avg_pool1d(z.flatten(2), 3) + F.avg_pool1d(torch.cat([z, z], 3).flatten(2), 18)[:, :, :1]
        z = z * 1.0
        z[:, 1:9:2, 2:] += u[:, :4, :3].unsqueeze(2)
        z[:, 0] *= 0.5
        return self.last(z.mean((2, 3)) + u.mean(2))


class Unusual(nn.Module):
    """What is not known: sampling at any place, and a maximum so far."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES)

    def forward(self, x):
        grid = torch.linspace(-1, 1, 32).view(1, 4, 4, 2).expand(x.shape[0], -1, -1, -1)
        return self.last(torch.cummax(F.grid_sample(self.conv(x), grid), 2).values.mean((2, 3)))


equal_ones = {f"equal_ones_{i}": (lambda i=i: EqualOnes(i), 4) for i in range(len(EqualOnes.reductions))}
exact = {"kinks": (Kinks, 4), "resampled": (Resampled, 12), "one_storage": (OneStorage, 12), **equal_ones}
own = {**exact, **weights, "two_branches": (TwoBranches, 32), "gated": (Gated, 32), "arithmetic": (Arithmetic, 16), "cropped": (Cropped, 20),
       "scaled": (Scaled, 16), "fixed_norms": (FixedNorms, 16), "frozen_norms": (FrozenNorms, 16), "pyramid": (Pyramid, 16), "attentive": (Attentive, 10),
       "functions": (Functions, 12), "shared": (Shared, 12), "ties": (Ties, 40), "logarithms": (Logarithms, 12),
       "tokens": (Tokens, 16), "queries": (Queries, 16), "rotaries": (Rotaries, 16), "selective": (Selective, 12), "blocks": (Blocks, 12), "masked": (Masked, 16), "turned": (lambda: Turned(CLASSES), 12), "small_swin": (small_swin, 20),
       "small_swin_v2": (small_swin_v2, 20), "small_maxvit": (small_maxvit, 32), "u_net": (UNet, 36), "deeplab": (DeepLab, 34), "orders": (Orders, 12), "divided": (Divided, 12), "unusual": (Unusual, 12), "softmax": (Softmax, 12), "squeezed": (Squeezed, 12)}


def build(name, drops=False):
    torch.manual_seed(5)
    if name in own:
        return own[name][0](), own[name][1]
    import torchvision
    side, more = families[name] if name in families else (refused[name][0], {})
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **more)
    for m in model.modules():
        if not drops and isinstance(m, (nn.Dropout, torchvision.ops.StochasticDepth)):
            m.p = 0.0
        if isinstance(m, nn.Linear) and not m.weight.any():  # a head that begins as 0 has no logits to compare
            nn.init.normal_(m.weight, std=0.1)
    return model, side


def write_data(folder, side):
    g = torch.Generator().manual_seed(11)
    x, y = torch.randn(BATCH, 3, side, side, generator=g), torch.arange(BATCH) % CLASSES
    for part in "train", "test":
        np.save(f"{folder}/{part}_images.npy", x.permute(0, 2, 3, 1).contiguous().numpy())
        np.save(f"{folder}/{part}_labels.npy", y.numpy())
    return x, y


def hvtrain(program, folder, *more):
    args = f"--model net.pt2 --data npy --data-dir . --batch {BATCH} --threads {THREADS} --quiet --mean 0 --std 1".split()
    p = subprocess.run([program, *args, *more], cwd=folder, capture_output=True, text=True,
                       env={k: v for k, v in os.environ.items() if not k.startswith("HVT_")})
    return p.returncode, p.stderr.strip()


def must(done):
    if done[0]:
        raise RuntimeError(done[1].splitlines()[-1] if done[1] else f"exit {done[0]}")


def tensors(folder):
    from safetensors.torch import load_file
    return load_file(f"{folder}/last.safetensors")


def export(model, x, folder):
    torch.export.save(torch.export.export(model, (x[:2],)), f"{folder}/net.pt2")


def logits_apart(program, folder, model, x, *more):
    must(hvtrain(program, folder, "--evaluate", "--predict-logits", "got.npy", *more))
    got = torch.from_numpy(np.load(f"{folder}/got.npy"))
    with torch.no_grad():
        want = model.double().eval()(x.double())
    got = F.log_softmax(got.double(), 1) if isinstance(model, Logarithms) else got
    return ((got - want).abs().max() / want.abs().max()).item()


def torch_gradients(model, state, x, y):
    model.load_state_dict(state)
    model.train().zero_grad()
    F.cross_entropy(model(x), y).backward()
    return {name: torch.zeros_like(p, dtype=torch.float64) if p.grad is None else p.grad.double().clone() for name, p in model.named_parameters()}


def worst_of(got, want):
    """The parameter that is furthest off, as a part of its largest gradient, but not of less than a ten-thousandth of the
    largest of all: a bias before a batch norm has a gradient of rounding errors alone."""
    least = 1e-4 * max(g.abs().max() for g in want.values())
    off = {name: ((got[name] - g).abs().max() / max(g.abs().max(), least)).item() for name, g in want.items()}
    return max((inf if v != v else v, name) for name, v in off.items())


def gradients_apart(program, folder, model, state, x, y):
    """Ours and those of PyTorch in f32, from those of PyTorch in f64."""
    rate = 64.0
    must(hvtrain(program, folder, "--steps", "1", "--lr", str(rate), "--momentum", "0", "--save", "one", "--eval-freq", "0"))
    after = tensors(f"{folder}/one")
    want = torch_gradients(model.double(), state, x.double(), y)
    at = {t.data_ptr(): name for name, t in model.state_dict().items() if name in after}  # of several names the file has one
    ours = {name: (state[name].double() - after[at[p.data_ptr()]].double()) / rate for name, p in model.named_parameters()}
    return *worst_of(ours, want), worst_of(torch_gradients(model.float(), state, x, y), want)[0]


def torch_losses(optimizer, rate, model, state, x, y):
    model.load_state_dict(state)
    params, losses, adamw = list(model.train().parameters()), [], optimizer == "adamw"
    optimizer = (torch.optim.AdamW(params, rate, weight_decay=DECAY) if adamw else
                 torch.optim.SGD(params, rate, MOMENTUM))
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if adamw:
            nn.utils.clip_grad_norm_(params, CLIP)
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(got, want):
    """As a part of the loss, but not of less than a hundredth of the first: some nets learn the batch by heart."""
    return max(abs(a - b) / max(abs(b), want[0] / 100) for a, b in zip(got, want))


def losses_apart(optimizer, rate, program, folder, model, state, x, y):
    """Ours and those of PyTorch in f32 from those of PyTorch in f64: errors of rounding grow from step to step."""
    more = (["--weight-decay", str(DECAY), "--clip-grad-norm", str(CLIP)] if optimizer == "adamw" else
            ["--momentum", str(MOMENTUM)])
    log = optimizer + ".jsonl"
    must(hvtrain(program, folder, "--optimizer", optimizer, *more, "--epochs", str(STEPS), "--lr", str(rate),
                 "--shuffle", "off", "--print-freq", "1", "--log", log, "--eval-freq", "0"))
    with open(f"{folder}/{log}") as f:
        got = [r["loss"] for r in map(json.loads, f) if r["record"] == "step"]
    if len(got) != STEPS:
        raise RuntimeError(f"{len(got)} losses")
    want = torch_losses(optimizer, rate, model.double(), state, x.double(), y)
    if abs(want[-1] / want[0] - 1) < 10 * BOUNDS["losses"]:
        raise RuntimeError(f"{optimizer} moves the loss from {want[0]} to {want[-1]} only, which proves nothing")
    return apart(got, want), apart(torch_losses(optimizer, rate, model.float(), state, x, y), want)


def compare(program, name):
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        model, side = build(name)
        x, y = write_data(folder, side)
        state = copy.deepcopy(model.state_dict())  # with its metadata, which mnasnet reads
        export(model.train(), x, folder)
        logits = logits_apart(program, folder, model, x)
        if name in exact:
            gradients, where, _ = gradients_apart(program, folder, model.float(), state, x, y)
            fine = logits <= BOUNDS["logits"] and gradients <= BOUNDS["gradients"]
            print(f"{name:20} {logits:8.1e} {gradients:9.1e}  {where}{'' if fine else '  FAILS'}", flush=True)
            return fine
    with tempfile.TemporaryDirectory() as folder, smooth():
        model.load_state_dict(state)
        write_data(folder, side)
        export(model.float().train(), x, folder)
        more = LARGER.get(name, 1)
        gradients, where, gradients32 = gradients_apart(program, folder, model, state, x, y)
        sgd, sgd32 = losses_apart("sgd", RATES["sgd"] * more, program, folder, model, state, x, y)
        adamw, adamw32 = losses_apart("adamw", RATES["adamw"] * more, program, folder, model, state, x, y)
    fine = (logits <= BOUNDS["logits"] and gradients <= max(BOUNDS["gradients"], 4 * gradients32) and
            sgd <= max(BOUNDS["losses"], 4 * sgd32) and adamw <= max(BOUNDS["losses"], 4 * adamw32))
    print(f"{name:20} {logits:8.1e} {gradients:9.1e} {gradients32:7.1e} {sgd:8.1e} {sgd32:7.1e} {adamw:8.1e} {adamw32:7.1e} "
          f"{time.time() - began:4.0f} s  {where}{'' if fine else '  FAILS'}", flush=True)
    return fine


def goes_back(program, name):
    with tempfile.TemporaryDirectory() as folder:
        model, side = build(name, drops=True)
        x, _ = write_data(folder, side)
        export(model.train(), x, folder)
        must(hvtrain(program, folder, "--epochs", "3", "--lr", "0.01", "--momentum", str(MOMENTUM), "--save", "run",
                     "--eval-freq", "0"))
        trained, old = tensors(f"{folder}/run"), model.state_dict()
        same = [name for name, p in model.named_parameters() if torch.equal(trained[name], old[name])]
        model = build(name)[0]
        model.load_state_dict(trained)
        logits = logits_apart(program, folder, model, x, "--resume", "run")
    fine = logits <= BOUNDS["logits"] and not same
    same = "  not trained: " + ", ".join(same) if same else ""
    print(f"{name:20} {logits:8.1e}{same}{'' if fine else '  FAILS'}", flush=True)
    return fine


def is_refused(program, name):
    with tempfile.TemporaryDirectory() as folder:
        model, side = build(name)
        x, _ = write_data(folder, side)
        export(model.train(), x, folder)
        rc, err = hvtrain(program, folder, "--steps", "1")
    lines = [line for line in err.splitlines() if "warning" not in line]
    fine = (rc == 1 and len(lines) == 1 and
            all(re.search(rf"aten\.{re.escape(op)}\S* \(.*line \d+", err) for op in refused[name][1]))
    print(f"{name:20} {'refused: ' if fine else 'FAILS: '}{' / '.join(lines)}", flush=True)
    return bool(fine)


def main(program, names):
    torch.set_num_threads(THREADS)
    failed = 0
    back = names[:1] == ["--round-trip"]
    names = names[back:] or (round_trips if back else list(dict.fromkeys([*own, *families, *refused])))
    print(f"{'':20} {'logits':>8}" + ("" if back else " gradients   (f32)      SGD   (f32)    AdamW   (f32)"), flush=True)
    for name in names:
        check = goes_back if back else is_refused if name in refused else compare
        try:
            failed += not check(os.path.abspath(program), name)
        except RuntimeError as e:
            print(f"{name:20} FAILS: {e}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
