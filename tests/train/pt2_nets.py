"""pt2_nets.py export FOLDER, pt2_nets.py logits NAME FOLDER: PyTorch's part of test_pt2.py.

export writes FOLDER/NAME.pt2 of every net, FOLDER/NAME.npy, its logits of the test images, branches.safetensors, and data
for --data npy; logits reads FOLDER/run/last.safetensors into the net and writes FOLDER/trained.npy.
"""
import os
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from pt2_weights import weights

SIZE, CLASSES, COUNT = 12, 5, 10


class Branches(nn.Module):
    """Rectangles, groups, dilation, two branches, a channel shuffle, squeeze and excitation, three norms."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, (3, 5), stride=(1, 2), padding=(1, 2))
        self.left = nn.Sequential(nn.Conv2d(16, 8, 3, padding="same", dilation=2, bias=False),
                                  nn.BatchNorm2d(8, eps=1e-3, momentum=0.2), nn.Hardswish())
        self.right = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GroupNorm(4, 16), nn.GELU(),
                                   nn.Conv2d(16, 8, 1))
        self.squeeze = nn.Conv2d(16, 4, 1)
        self.excite = nn.Conv2d(4, 16, 1)
        self.norm = nn.LayerNorm(16)
        self.scale = nn.Parameter(torch.full((16, 1, 1), 0.5))
        self.pool = nn.AvgPool2d(3, 2, 1, ceil_mode=True, count_include_pad=False)
        self.drop = nn.Dropout(0.0)
        self.hidden = nn.Linear(16 * 6 * 4, 20)
        self.twice = nn.Linear(20, 20, bias=False)
        self.last = nn.Linear(20, CLASSES)

    def forward(self, x):
        x = F.relu(self.stem(x), inplace=True)
        x = torch.cat([self.left(x), self.right(x)], 1)
        n, c, h, w = x.shape
        x = x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        a, b = x.chunk(2, dim=1)
        x = torch.cat([b * 2 + 1, F.leaky_relu(a, 0.1)], 1)
        s = torch.sigmoid(self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = x + x * s
        y = self.norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.pool(F.max_pool2d(x, (2, 1), 1) * 0.5 + y.mean((2, 3), keepdim=True) * self.scale)
        x = self.drop(torch.flatten(x, 1))
        x = F.elu(self.hidden(x))
        return self.last(torch.tanh(self.twice(self.twice(x))))


class Unknown(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, CLASSES, 1)

    def forward(self, x):
        x = torch.cumsum(torch.fft.fft2(self.conv(x)).abs(), 2)
        return x.mean((2, 3))


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, CLASSES, 1)

    def forward(self, x):
        x = self.conv(x)
        y = x.transpose(2, 3)
        F.relu(x, inplace=True)
        return (x + y.transpose(2, 3)).mean((2, 3))


class Constant(InPlace):
    """A buffer that is no batch norm's."""

    def __init__(self, persistent=True):
        super().__init__()
        self.register_buffer("middle", torch.full((3, 1, 1), 0.5), persistent)

    def forward(self, x):
        return self.conv(x - self.middle).mean((2, 3))


class Averaging(Constant):
    """A buffer that the images change, after it was read."""

    def forward(self, x):
        y = self.conv(x - self.middle.clone()).mean((2, 3))
        self.middle.mul_(0.9).add_(0.1 * x.detach().mean())
        return y


class Reflected(InPlace):
    def forward(self, x):
        return F.pad(self.conv(x), (1, -1, 2, 0), mode="reflect").mean((2, 3))


class Lopsided(InPlace):
    """More channels behind than in front."""

    def forward(self, x):
        return self.conv(F.pad(x, (0, 0, 0, 0, 1, 2))[:, 1:4]).mean((2, 3))


class Halved(InPlace):
    def forward(self, x):
        return self.conv(x)[1:].mean((2, 3))


class Skipped(InPlace):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 2 * CLASSES, 1)

    def forward(self, x):
        return self.conv(x)[:, ::2].mean((2, 3))


class Dilated(InPlace):
    def forward(self, x):
        return F.max_pool2d(self.conv(x), 2, dilation=(2, 1)).mean((2, 3))


class Written(InPlace):
    """A part is changed in place, and the whole is read."""

    def forward(self, x):
        x = self.conv(x)
        F.relu(x[:, 1:3], inplace=True)
        return x.mean((2, 3))


class Tokens(nn.Module):
    """A vision transformer's parts: a token of its own, positions, torch.nn.MultiheadAttention."""

    def __init__(self):
        super().__init__()
        self.patch, self.norm = nn.Conv2d(3, 16, 3, 3), nn.LayerNorm(16)
        self.token, self.positions = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 17, 16))
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.last = nn.Linear(16, CLASSES)

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return self.last(x[:, 0])


class Attended(InPlace):
    """Attention as `how` has it, of tokens that are pixels."""
    how = {}

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x, **self.how).mean(1)


class Choosy(Attended):
    """A mask that depends on the images."""

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=x[:, :, 0][:, None]).mean(1)


class Biased(Attended):
    """What is added to attention's scores is elements of parameters: of two of them."""

    def __init__(self):
        super().__init__()
        self.index = torch.arange(100).view(10, 10) % 7
        self.one, self.other = nn.Parameter(torch.randn(7)), nn.Parameter(torch.randn(7))

    def forward(self, x):
        x = self.conv(x)[:, :, :2, :5].flatten(2).transpose(1, 2)
        scores = x @ x.mT + self.one[self.index]
        return ((scores + self.other[self.index]).softmax(-1) @ x).mean(1)


class Rolled(InPlace):
    """Nothing undoes it before a convolution reads it, nor before it is added to the same rolled by another number."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(CLASSES * 4 * 4, CLASSES)

    def forward(self, x):
        x = torch.roll(self.conv(torch.roll(x, (1, 2), (2, 3))), 1, 3) * 2 + x.mean(1, keepdim=True)
        return self.last(F.max_pool2d(torch.roll(x, -3, 2) + x, 3, 2)[:, :, :4, :4].flatten(1))


class Folded(Attended):
    """Numbers that the graph makes of constants: views that are changed in place, types that round and wrap, comparisons;
    a buffer that nothing reads; and -inf around images."""

    def __init__(self):
        super().__init__()
        self.register_buffer("unused", torch.arange(3))

    def functions(self):
        """16x16 of all that has no argument but numbers."""
        a, b = torch.arange(-6, 10), torch.arange(1.0, 17)
        x, y = torch.meshgrid(a.float(), b[:4], indexing="xy")
        whole = a // 3 + a.div(4, rounding_mode="trunc") + (a % 5) * 2
        parts = torch.cat([torch.stack(x.chunk(2, 1), 1).flatten(1), y.tile(1, 2)[:, :16]])
        sums = b.cumsum(0).sqrt() + torch.rsqrt(b) + 10000 ** (b / 16) * 1e-4 + b.log() - (-b).exp() + (b / 3).floor() + b ** 1.5 / 9
        return (whole[:, None] + parts.repeat_interleave(2, 0) * parts.repeat(2, 1).cos() + torch.div(b, 3, rounding_mode="floor")
                + sums.sin() + sum(parts.split([3, 5])[1].unbind(0)))

    def forward(self, x):
        x = self.conv(x)[:, :, :4, :4]
        y = F.max_pool2d(F.pad(x - 5, (0, 1, 0, 1), value=-torch.inf), 3, 2) + F.max_pool2d(F.pad(x, [1] * 4, value=-torch.inf), 3, 2)
        x = (x + F.interpolate(y, scale_factor=2)).flatten(2).transpose(1, 2)
        ar = torch.arange
        m = torch.zeros(16, 16)
        m[0:8].add_(ar(16.))
        m[2, 3].sub_(2.0)
        v = m[:, 2:6]
        v *= 0.5
        v += ar(4.)
        w = v[:, 1:]
        w[3:] = 3
        m[:, 5:7].masked_fill_(ar(16)[:, None] > 9, -1.5)
        k = m.transpose(0, 1).contiguous()
        k[3:] = -2
        whole = torch.zeros(16, 16, dtype=torch.int64)
        whole[:, 3:] = -1.9
        truth = torch.zeros(16, 16, dtype=torch.bool)
        truth[:, 2:5] = 7
        rounded = (ar(16.) * 0.1 == 0.3).float() * 3 + (ar(16) * 0.1 + 0.2 <= 0.3) + ((ar(16.) * 0.7) / 0.1).long()
        wrapped = (ar(16).to(torch.uint8) * 200).float() * 0.01
        lower = torch.triu(torch.full((16, 16), -1e9), 1)
        m = m * 0.2 + k * 0.1 + whole + truth * 2 + rounded * 0.02 + wrapped + lower + self.functions() * 0.1
        return ((x @ x.mT + m).softmax(-1) @ x).mean(1)


class Picked(InPlace):
    """Rows of an image by their numbers."""

    def forward(self, x):
        return self.conv(x[:, :, torch.tensor([3, 1, 2])]).mean((2, 3))


class Sifted(Biased):
    """Elements where a mask is true."""

    def forward(self, x):
        x = self.conv(x)[:, :, :2, :2].flatten(2).transpose(1, 2)
        sifted = self.one[torch.tensor([True, False, True, True, False, True, False])]
        return ((x @ x.mT + sifted + self.other[:1]).softmax(-1) @ x).mean(1)


class Windowed(nn.Module):
    """Swin's: windows, every other one rolled, a mask that the graph makes, an index in the state_dict."""

    def __init__(self):
        super().__init__()
        from torchvision.models import SwinTransformer
        self.net = SwinTransformer([2, 2], 12, [2], [2], [3, 3], stochastic_depth_prob=0.0, num_classes=CLASSES)

    def forward(self, x):
        return self.net(x)


class Turned(nn.Module):
    """Pixels that become channels, and channels pixels: layers over tokens, attention between channels; channels of each head
    that are packed together; tokens that become an image again, positions of images. And a bias of parameters and zeros, a type
    that is the same, convolutions along lines, the product of what has no pixels and what has one channel."""

    def __init__(self, classes=CLASSES):
        super().__init__()
        self.stem, self.place = nn.Conv2d(3, 12, 2, 2), nn.Parameter(torch.randn(1, 12, 6, 6))
        self.qkv, self.norm = nn.Linear(12, 36), nn.LayerNorm(12)
        self.mix = nn.Sequential(nn.Linear(36, 10), nn.GELU(), nn.Linear(10, 36))
        self.over, self.gate = nn.LayerNorm(36), nn.Linear(36, 36)
        self.packed, self.split, self.apart = nn.Conv2d(12, 36, 1), nn.Linear(12, 36), nn.Linear(12, 36)
        self.token, self.back = nn.Parameter(torch.randn(1, 1, 12)), nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.scale, self.lift = nn.Parameter(1 + 0.1 * torch.randn(12)), nn.Parameter(torch.randn(12))
        self.joined = nn.Linear(12, 12, bias=False)
        self.near = nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.along = nn.Conv1d(12, 12, 3, padding="same", dilation=2, groups=3)
        self.first, self.third = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(5))
        self.register_buffer("zeros", torch.zeros(3), persistent=False)
        self.last = nn.Linear(12, classes)

    def forward(self, x):
        x = self.stem(x) + self.place
        n, c, h, w = x.shape
        x = x * torch.sigmoid(self.near(x.mean((2, 3)).view(n, 1, -1))).view(n, -1, 1, 1).expand_as(x)
        x = (self.along(x.flatten(2)) + x.flatten(2)).transpose(1, 2)
        q, k, v = self.qkv(x).reshape(n, h * w, 3, 3, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = (q * 0.3).transpose(-1, -2) @ k
        y = (y.softmax(-1) @ v.transpose(-1, -2)).transpose(-1, -2)
        x = x + y.transpose(1, 2).reshape(n, h * w, c)
        x = x + self.scale * self.mix(self.norm(x).transpose(1, 2)).transpose(1, 2)
        x = x * self.gate(self.over(x.transpose(1, 2))).transpose(1, 2)
        q, k, v = self.split(x).view(n, h * w, 3, 12).split([4, 4, 4], dim=3)
        q, k, v = (z.permute(0, 2, 1, 3) for z in (q, k, v))
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape_as(x)
        q, k, v = self.apart(x).view(n, h * w, 2, 3, 6).transpose(1, 2).unbind(3)
        x = x + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = F.linear(F.rms_norm(x, (c,), self.scale, 1e-6), self.joined.weight, torch.cat([self.first, self.zeros, self.third]))
        x = torch.cat([self.token.expand(n, -1, -1), x.to(self.scale.dtype)], 1)
        x = x + F.scaled_dot_product_attention(x, x, x)
        x = self.back(x[:, 1:].transpose(1, 2).reshape(n, c, h, w))
        q, k, v = self.packed(x).view(n, 3, 12, h * w).chunk(3, dim=2)
        y = F.scaled_dot_product_attention(*(z.transpose(-1, -2) for z in (q, k, v)))
        x = x + x.mean((2, 3), keepdim=True) * x.amax(1, keepdim=True).type_as(x)
        x = F.group_norm(x + y.transpose(-1, -2).reshape(n, c, h, w), 3, self.scale)
        x = F.layer_norm(x.permute(0, 2, 3, 1), (c,), None, self.lift)
        return self.last(x.mean((1, 2)))


class Square(nn.Module):
    """As many tokens as channels: which of them are queries, keys and values shows only where they come from."""

    def __init__(self):
        super().__init__()
        self.conv, self.one, self.two = nn.Conv2d(3, 6, (6, 4), (6, 4)), nn.Linear(6, 6), nn.Linear(6, 6)
        self.last = nn.Linear(36, CLASSES)

    def forward(self, x):
        x = self.conv(x).flatten(2)
        a, b = self.one(x.mT), self.two(x.mT)
        y = (x @ x).softmax(-1) @ x + (x.mT @ x).softmax(-1) @ x - (x @ x.mT).softmax(-1) @ x
        y = y + (a @ b).softmax(-1) @ b + (a.mT @ b).softmax(-1) @ b + (a.mT @ b).softmax(-1) @ b.mT
        return self.last((y + torch.bmm(torch.bmm(x, a).softmax(-1), x.mT)).flatten(1))


class Computed(Attended):
    """A norm's weight is one that PyTorch computes."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x):
        return F.layer_norm(self.conv(x).mean((2, 3)), (CLASSES,), 1 + self.weight)


class Leaking(Attended):
    how = {"dropout_p": 0.1}


class Repeated(Attended):
    """One row for all tokens: as many of the model's own as it has patches."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.ones(1, 1, CLASSES))

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return torch.cat([self.token.expand(x.shape[0], 2, -1), x], 1).mean(1)


class Forgetful(Attended):
    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        return (F.dropout((x @ x.mT).softmax(-1), 0.2, self.training) @ x).mean(1)


class Tied(InPlace):
    """The weight of a layer, also added as numbers."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(CLASSES, CLASSES)

    def forward(self, x):
        return self.last(self.conv(x).mean((2, 3))) + self.last.weight.mean(0)


class Products(Attended):
    def forward(self, x):
        x = self.conv(x).flatten(2)
        return (x.transpose(1, 2) @ x).mean(1)[:, :CLASSES]


class Bare(nn.Module):
    def __init__(self, **how):
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(3, **how), nn.Conv2d(3, CLASSES, 1)

    def forward(self, x):
        return self.conv(self.norm(x)).mean((2, 3))


class Untracked(Bare):
    def __init__(self):
        super().__init__(track_running_stats=False)


class Unscaling(Bare):
    def __init__(self):
        super().__init__(affine=False)


class Columns(InPlace):
    """A parameter of as many numbers as there are channels, and columns: PyTorch's meets columns."""

    def __init__(self):
        super().__init__()
        self.conv, self.scale = nn.Conv2d(3, SIZE, 1), nn.Parameter(torch.ones(SIZE))

    def forward(self, x):
        return (self.conv(x) * self.scale).mean((2, 3))[:, :CLASSES]


class Logarithms(InPlace):
    def forward(self, x):
        return F.log_softmax(self.conv(x).mean((2, 3)), 1)


class Moved(InPlace):
    """One of two images is turned."""

    def forward(self, x):
        x = torch.cat([x, x.transpose(2, 3)], 1)
        return self.conv(x.chunk(2, 1)[1]).mean((2, 3))


class Unbounded(InPlace):
    """A bound that JSON has no number for."""

    def forward(self, x):
        return F.hardtanh(self.conv(x), 0.0, float("inf")).mean((2, 3))


class DropPath(nn.Module):
    """torchvision.ops.StochasticDepth's operations in mode "row", timm's, and those of older code in mode "floor"; one for all in
    mode "batch"."""

    def __init__(self, p, mode):
        super().__init__()
        self.keep, self.mode = 1 - p, mode

    def forward(self, x):
        if not self.training:
            return x
        size = [1 if self.mode == "batch" else x.shape[0]] + [1] * (x.ndim - 1)
        if self.mode == "floor":
            return x.div(self.keep) * (self.keep + torch.rand(size, dtype=x.dtype, device=x.device)).floor_()
        noise = x.new_empty(size) if self.mode == "timm" else torch.empty(size, dtype=x.dtype, device=x.device)
        noise = noise.bernoulli_(self.keep)
        noise.div_(self.keep)
        return x * noise


class Dropped(nn.Module):
    """Every kind of dropout, in place and not."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.deep = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1) for _ in range(4))
        self.paths = nn.ModuleList(DropPath(0.2, mode) for mode in ("row", "timm", "floor", "batch"))
        self.pixels, self.planes = nn.Dropout(0.1), nn.Dropout2d(0.2, inplace=True)
        self.hidden = nn.Linear(8 * 6 * 6, 20)
        self.drop = nn.Dropout(0.5, inplace=True)
        self.last = nn.Linear(20, CLASSES)

    def forward(self, x):
        x = self.planes(self.pixels(F.relu(self.norm(self.conv(x)))))
        for conv, path in zip(self.deep, self.paths):
            x = x + path(F.relu(conv(x)))
        x = F.dropout(torch.flatten(F.max_pool2d(x, 2), 1), 0.3, self.training)
        return self.last(self.drop(F.silu(self.hidden(x))))


class Ones(nn.Module):
    """No parameter but the last layer's, and all is dropped: with p = 1 its weights stay as they are."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(1.0)
        self.last = nn.Linear(3, CLASSES)

    def forward(self, x):
        return self.last(self.drop(x.mean((2, 3))))


class Ending(InPlace):
    """A gradient that ends in the middle."""

    def forward(self, x):
        x = self.conv(x)
        with torch.no_grad():
            y = torch.exp(x)
        return (x + y).mean((2, 3))


class Unscaled(InPlace):
    def forward(self, x):
        x = self.conv(x)
        return (x * x.new_empty((x.shape[0], 1, 1, 1)).bernoulli_(0.8)).mean((2, 3))


class Noisy(InPlace):
    """Random numbers that are not stochastic depth."""

    def forward(self, x):
        return (self.conv(x) + torch.rand((x.shape[0], 1, 1, 1))).mean((2, 3))


class Pooled(nn.Module):
    """A batch norm over one pixel, and a parameter that nothing reads."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3)
        self.norm = nn.BatchNorm2d(8)
        self.unread = nn.Conv2d(3, 8, 3)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(torch.flatten(self.norm(self.conv(x).mean((2, 3), keepdim=True)), 1))


class Doubled(nn.Module):
    """A block that stands in a list twice: its parameters have two names each."""

    def __init__(self):
        super().__init__()
        block = nn.Conv2d(3, 3, 3, padding=1)
        self.blocks = nn.ModuleList([block, block])
        self.last = nn.Linear(3, CLASSES)

    def forward(self, x):
        for block in self.blocks:
            x = torch.relu(block(x))
        return self.last(x.mean((2, 3)))


class Mixed(nn.Module):
    """One batch norm of two stays in eval() mode, and would else have one value of an image."""

    def __init__(self):
        super().__init__()
        self.conv, self.trained, self.fixed = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.BatchNorm2d(8)
        self.fixed.running_mean.uniform_(-1, 1)
        self.fixed.running_var.uniform_(0.5, 2)
        self.last = nn.Linear(8, CLASSES)

    def train(self, mode=True):
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x):
        x = torch.relu(self.trained(self.conv(x))).mean((2, 3), keepdim=True)
        return self.last(torch.flatten(torch.relu(self.fixed(x)), 1))


NETS = {"branches": Branches, "counting": lambda: Counting(), "overlapping": lambda: Overlapping(), "standardising": lambda: Standardising(), "dynamic": lambda: Dynamic(), "cubes": lambda: Cubes(), "sorted": lambda: Sorted(), "spectral": lambda: Spectral(), "weight_products": lambda: weights["weight_products"][0](), "several": lambda: Several(), "unknown": Unknown, "noisy": lambda: Noisy(), "inplace": InPlace, "dropped": Dropped, "ones": Ones,
        "unscaled": Unscaled, "constant": Constant, "fleeting": lambda: Constant(False), "ending": Ending, "averaging": Averaging,
        "moved": Moved, "pooled": Pooled, "unbounded": Unbounded, "reflected": Reflected,
        "lopsided": Lopsided, "halved": Halved, "skipped": Skipped, "dilated": Dilated, "written": Written,
        "untracked": Untracked, "unscaling": Unscaling, "columns": Columns, "mixed": Mixed, "doubled": Doubled, "logarithms": Logarithms,
        "tokens": Tokens, "choosy": Choosy, "biased": Biased, "rolled": Rolled, "folded": Folded, "picked": Picked, "sifted": Sifted, "windowed": Windowed, "turned": Turned, "square": Square, "computed": Computed, "leaking": Leaking, "products": Products, "repeated": Repeated, "forgetful": Forgetful, "tied": Tied}


def net(name):
    torch.manual_seed(3)
    return NETS[name]()


def images(count, seed):
    return torch.randn(count, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def save_logits(model, path):
    with torch.no_grad():
        np.save(path, model.eval()(images(COUNT, 1)).numpy())


def save(model, path):
    torch.export.save(torch.export.export(model, (images(2, 0),)), path)


def export(folder):
    from safetensors.torch import save_file
    for name in NETS:
        save(net(name).train(), f"{folder}/{name}.pt2")
        save_logits(net(name), f"{folder}/{name}.npy")
    save(net("dropped").eval(), f"{folder}/kept.pt2")
    trained = net("dropped")
    trained.norm.weight.data[5] = 0.75
    save(trained, f"{folder}/trained.pt2")
    torch.export.save(torch.export.export(net("pooled").train(), (images(2, 0),)).run_decompositions(), f"{folder}/decomposed.pt2")
    save_file(net("branches").state_dict(), f"{folder}/branches.safetensors")
    for part, seed, count in ("test", 1, COUNT), ("train", 2, 32):
        np.save(f"{folder}/{part}_images.npy", images(count, seed).permute(0, 2, 3, 1).contiguous().numpy())
        np.save(f"{folder}/{part}_labels.npy", np.arange(count) % CLASSES)


def logits(name, folder):
    from safetensors.torch import load_file
    model = net(name)
    print(model.load_state_dict(load_file(f"{folder}/run/last.safetensors")))
    save_logits(model, f"{folder}/trained.npy")


class Counting(nn.Module):
    """A buffer that counts calls, and a batch norm that has seen some."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, CLASSES)
        self.norm.num_batches_tracked.fill_(9)
        self.register_buffer("calls", torch.tensor(7))

    def forward(self, x):
        self.calls += 1
        return self.last(self.norm(self.conv(x)).mean((2, 3)))


class Overlapping(nn.Module):
    """Two parameters that share rows."""

    def __init__(self):
        super().__init__()
        rows = torch.randn(12, 8)
        self.conv, self.one, self.other = nn.Conv2d(3, 8, 3), nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
        self.one.weight, self.other.weight = nn.Parameter(rows[:8]), nn.Parameter(rows[4:])
        self.last = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.last(self.other(torch.relu(self.one(self.conv(x).mean((2, 3))))))


class Standardised(nn.Conv2d):
    def forward(self, x):
        weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True, momentum=0.0)
        return F.conv2d(x, weight.reshape_as(self.weight), self.bias)


class Standardising(InPlace):
    def __init__(self):
        super().__init__()
        self.conv = Standardised(3, CLASSES, 3)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


class Dynamic(InPlace):
    """Filters of the images' own."""

    def forward(self, x):
        return F.conv2d(self.conv(x), self.conv(x)[:, :, :1, :1]).mean((2, 3))


class Cubes(InPlace):
    def forward(self, x):
        w = self.conv.weight.view(CLASSES, 1, 3, 1, 1).permute(0, 1, 2, 4, 3) * 2
        return F.conv2d(x, w.reshape(CLASSES, 3, 1, 1)).mean((2, 3))


class Sorted(InPlace):
    def forward(self, x):
        return F.conv2d(x, self.conv.weight / self.conv.weight.amax((1, 2, 3), keepdim=True)).mean((2, 3))


class Spectral(InPlace):
    """spectral_norm in train() mode: each step changes its vectors."""

    def __init__(self):
        super().__init__()
        torch.nn.utils.parametrizations.spectral_norm(self.conv)

    def forward(self, x):
        return self.conv(x).mean((2, 3))


class Several(nn.Module):
    """Several uses that are not imported, some of them twice, and an operation that is unknown."""

    def __init__(self):
        super().__init__()
        self.conv, self.last, self.norm = nn.Conv2d(3, 8, 3), nn.Linear(8, CLASSES), nn.BatchNorm2d(8, affine=False)

    def forward(self, x):
        x = self.conv(x)
        for _ in range(2):
            x = F.pad(x, (1, 1, 1, 1), value=float("inf"))
        x = self.norm(torch.cummax(x, 2)[0])
        x = F.max_pool2d(x, 2, dilation=2)
        x = torch.cat([x[1:], x[:1]])
        return self.last(x.mean((2, 3)))


class Headed(nn.Module):
    """What may stand behind or beside the last layer: all of it changes with the number of classes."""

    def __init__(self, end):
        super().__init__()
        self.conv, self.last, self.other, self.gate = nn.Conv2d(3, 6, 3), nn.Linear(6, CLASSES), nn.Linear(6, CLASSES), nn.Linear(6, 1)
        self.rows, self.layer, self.prelu = nn.BatchNorm1d(CLASSES), nn.LayerNorm(CLASSES), nn.PReLU(CLASSES)
        self.scale, self.number = nn.Parameter(torch.ones(CLASSES)), nn.Parameter(torch.tensor(2.0))
        self.point, self.plane = nn.Conv2d(6, CLASSES, 1), nn.BatchNorm2d(CLASSES)
        self.end = end

    def forward(self, x):
        x = torch.relu(self.conv(x))
        return self.end(self, x, x.mean((2, 3)))


HEADS = {"rows": lambda m, x, y: m.rows(m.last(y)), "layer": lambda m, x, y: m.layer(m.last(y)), "prelu": lambda m, x, y: m.prelu(m.last(y)),
         "other": lambda m, x, y: (m.last(y) + m.other(y * y)) / 2, "scale": lambda m, x, y: m.last(y) * m.scale * m.number,
         "gate": lambda m, x, y: m.last(y) * torch.sigmoid(m.gate(y)), "plane": lambda m, x, y: m.plane(m.point(x)).mean((2, 3)),
         "point": lambda m, x, y: m.last(y) + m.point(x).amax((2, 3))}


def heads(folder):
    os.makedirs(folder, exist_ok=True)
    for name, end in HEADS.items():
        torch.manual_seed(3)
        save(Headed(end).train(), f"{folder}/{name}.pt2")


class Regression(nn.Module):
    """One number of each image, [N] or [N, 1]."""

    def __init__(self, end, outputs=1):
        super().__init__()
        self.conv, self.last, self.end = nn.Conv2d(3, 4, 3), nn.Linear(4, outputs), end

    def forward(self, x):
        return self.end(self.last(torch.relu(self.conv(x)).mean((2, 3))))


class Averaged(Regression):
    def forward(self, x):
        return torch.relu(self.conv(x)).mean((1, 2, 3))


def targets(folder):
    os.makedirs(folder, exist_ok=True)
    ends = {"squeezed": lambda x: x.squeeze(1), "viewed": lambda x: x.view(-1), "chosen": lambda x: x[:, 0], "column": lambda x: x}
    x = images(12, 4)
    for name, make in {**{name: lambda end=end: Regression(end) for name, end in ends.items()},
                       "averaged": lambda: Averaged(None), "three": lambda: Regression(ends["column"], 3)}.items():
        torch.manual_seed(3)
        model = make()
        save(model.train(), f"{folder}/{name}.pt2")
        with torch.no_grad():
            np.save(f"{folder}/{name}.npy", model(x).numpy())
    for part in "train", "test":
        np.save(f"{folder}/{part}_images.npy", x.permute(0, 2, 3, 1).contiguous().numpy())
        np.save(f"{folder}/{part}_labels.npy", x.mean((1, 2, 3)).numpy()[:, None])


if __name__ == "__main__":
    {"export": export, "logits": logits, "targets": targets, "heads": heads}[sys.argv[1]](*sys.argv[2:])
