"""Nets for pt2_families.py whose filters and biases are computed from parameters and constants."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations

CLASSES = 7


class Standardised(nn.Conv2d):
    """timm's StdConv2d, and ScaledStdConv2d with `gain`."""

    def __init__(self, c, k, size, gain=None, **more):
        super().__init__(c, k, size, **more)
        self.gain = None if gain is None else nn.Parameter(torch.full((k, 1, 1, 1), gain))

    def forward(self, x):
        scale = None if self.gain is None else (self.gain * self.weight[0].numel() ** -0.5).view(-1)
        w = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, weight=scale, training=True, momentum=0.0,
                         eps=1e-6).reshape_as(self.weight)
        return F.conv2d(x, w, self.bias, self.stride, self.padding, self.dilation, self.groups)


class ByHand(nn.Conv2d):
    """Weight standardisation in the operations of its paper's code, and in those of its imitations."""

    def __init__(self, c, k, how):
        super().__init__(c, k, 3, padding=1)
        self.how = how

    def forward(self, x):
        w = self.weight
        if self.how == "paper":
            w = w - w.mean(dim=1, keepdim=True).mean(dim=2, keepdim=True).mean(dim=3, keepdim=True)
            std = w.view(w.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
            w = w / std.expand_as(w)
        elif self.how == "var_mean":
            var, mean = torch.var_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
            w = (w - mean) * torch.rsqrt(var + 1e-5)
        else:
            w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, w, self.bias, padding=1)


def evaluating(module):
    """The module as in eval() mode, whatever the net's is: spectral norms then leave their vectors alone."""
    module.eval()
    module.train = lambda mode=True: module
    return module


class Norms(nn.Module):
    """Standardised filters, weight_norm and spectral_norm in both of PyTorch's ways, of convolutions of every kind."""

    def __init__(self):
        super().__init__()
        old, new = nn.utils.weight_norm, parametrizations.weight_norm
        self.layers = nn.Sequential(
            Standardised(3, 8, 3, padding=1), nn.SiLU(), Standardised(8, 8, 3, gain=1.3, padding=1, groups=2, bias=False),
            ByHand(8, 8, "paper"), nn.SiLU(), ByHand(8, 8, "var_mean"), ByHand(8, 8, "var"), nn.BatchNorm2d(8), nn.SiLU(),
            old(nn.Conv2d(8, 12, 3, stride=2)), new(nn.Conv2d(12, 12, 3, groups=12, bias=False)), nn.SiLU(),
            new(nn.ConvTranspose2d(12, 8, 2, stride=2), dim=1), old(nn.Conv2d(8, 8, 1), dim=None),
            evaluating(parametrizations.spectral_norm(nn.Conv2d(8, 8, 3))), evaluating(nn.utils.spectral_norm(nn.Conv2d(8, 8, 1))))
        self.last = nn.Sequential(new(nn.Linear(8, 16)), nn.SiLU(), evaluating(parametrizations.spectral_norm(nn.Linear(16, CLASSES))))

    def forward(self, x):
        return self.last(self.layers(x).mean((2, 3)))


class LowRank(nn.Linear):
    """W + scale * B @ A, with W frozen."""

    def __init__(self, c, k, rank):
        super().__init__(c, k)
        self.weight.requires_grad = False
        self.down, self.up = nn.Parameter(torch.randn(rank, c) / 3), nn.Parameter(torch.randn(k, rank) / 3)

    def forward(self, x):
        return F.linear(x, self.weight + 0.5 * (self.up @ self.down), self.bias)



class Products(nn.Module):
    """Weights times constants and gains, of low rank, transposed, joined, cut, in pieces, of unit length; biases, too. A
    weight is read by two layers, by one as it is."""

    def __init__(self):
        super().__init__()
        self.rate = 0.3
        self.first, self.bias = nn.Parameter(torch.randn(8, 3, 3, 3)), nn.Parameter(torch.randn(8))
        self.a, self.b = nn.Parameter(torch.randn(8, 3) / 3), nn.Parameter(torch.randn(3, 72) / 3)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.masks = nn.Parameter(torch.randn(2, 8, 8) / 3)
        self.scale = nn.Parameter(torch.randn(1, 8, 1, 1))
        self.low = LowRank(8, 6, 2)
        self.tied = nn.Linear(6, 5)
        self.middle = nn.Parameter(torch.randn(6))
        self.fused = nn.Parameter(torch.randn(12, 6) / 2)
        self.flat = nn.Parameter(torch.randn(6, 8 * 16))
        self.proxies = nn.Parameter(torch.randn(CLASSES, 6))

    def forward(self, x):
        x = F.silu(F.conv2d(x, self.first * self.rate, self.bias * 0.1 + 0.01, padding=1))
        w = self.second.weight * torch.sigmoid(self.scale) + (self.a @ self.b).view(8, 8, 3, 3)
        x = F.silu(F.conv2d(x, w, self.second.bias, padding=1))
        x = F.conv2d(x, torch.stack([self.masks[0].t(), self.masks[1]], 2).view(8, 8, 2, 1))
        flat = F.linear(F.adaptive_avg_pool2d(x, 4).flatten(1), self.flat / 9)
        x = self.low(x.mean((2, 3))) + flat
        x = F.linear(torch.tanh(self.tied(x)), self.tied.weight.t(), self.middle)
        up, down = self.fused.chunk(2)
        x = x + F.linear(F.silu(F.linear(x, up)), torch.cat([down[:3], 2 - down[3:]]))
        return 4 * F.linear(F.normalize(x, dim=1), F.normalize(self.proxies, dim=1))


class Filters(nn.Module):
    """Constants as filters: of every channel, expanded, repeated, normalised in each pass, of one layer and of two."""

    def __init__(self):
        super().__init__()
        row = torch.tensor([1.0, 2.0, 1.0])
        blur = row[:, None] * row[None, :]
        self.conv, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(16, CLASSES)
        self.register_buffer("blur", (blur / blur.sum())[None, None].repeat(8, 1, 1, 1))
        self.register_buffer("one", blur[None, None], persistent=False)
        self.register_buffer("edge", torch.tensor([[1.0, 0, -1], [2, 0, -2], [1, 0, -1]])[None, None])
        self.register_buffer("mix", torch.randn(16, 8))

    def forward(self, x):
        x = F.silu(self.conv(x))
        x = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), self.blur, stride=2, groups=8)
        x = x + F.conv2d(x, self.one.expand(8, -1, -1, -1) / 20, padding=1, groups=8)
        x = x + F.conv2d(x, (self.edge / self.edge.abs().sum()).repeat(8, 1, 1, 1), padding=1, groups=8)
        x = x + F.conv2d(x, self.blur, padding=1, groups=8)
        return self.last(F.silu(F.linear(x.mean((2, 3)), self.mix)))


weights = {"weight_norms": (Norms, 16), "weight_products": (Products, 12), "weight_filters": (Filters, 12)}
