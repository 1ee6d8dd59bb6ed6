#!/usr/bin/env python3
"""Losses and gradients of small nets of every layer by PyTorch, in f64, for tests/model/test_own.c, which builds
the same nets under the same names.

    python3 tests/golden/make_layers.py > tests/golden/layers.txt
"""
import platform

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from make_losses import MOMENTUM, SEED, draw, signed_unit

STEPS, BATCH, RATE = 10, 5, 0.02
HEIGHT, WIDTH, CLASSES = 9, 11, 4


def key(name):
    return sum((i + 1) * byte for i, byte in enumerate(name.encode()))


def image(number):
    return signed_unit(SEED, 1, number, HEIGHT * WIDTH * 3).reshape(HEIGHT, WIDTH, 3).transpose(2, 0, 1)


def label(number):
    return int(((int(draw(SEED, 2, number, 0)) >> 32) * CLASSES) >> 32)


def fill(net):
    """Weights of convolutions and linear layers +-1/sqrt(fan in), biases +-0.3, what scales 1 +- 0.3."""
    for name, p in net.named_parameters():
        u = signed_unit(SEED, 3, key(name), p.numel())
        if p.dim() in (2, 4):
            u = u * np.float32(1 / np.sqrt(p.numel() // p.shape[0]))
        else:
            u = np.float32(0.3) * u + np.float32(not name.endswith("bias"))
        p.data.copy_(torch.from_numpy(u.reshape(tuple(p.shape))))


def conv(inputs, filters, size, stride=1, pad=None):
    return nn.Conv2d(inputs, filters, size, stride, size // 2 if pad is None else pad, bias=False)


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 8, 3)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        x = 4 * self.conv(x) + 0.1
        y = F.relu(x) + F.hardtanh(x, -1.5, 2) + F.leaky_relu(x, 0.2) + F.elu(x, 0.7) + torch.sigmoid(x)
        y = y + F.hardsigmoid(x) + F.hardswish(x) + F.silu(x) + F.gelu(x) + F.gelu(x, approximate="tanh")
        y = y + torch.tanh(x) + F.softplus(x, 1.5, 4)
        return self.fc(y.mean((2, 3)))


class Binary(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 8, 3)
        self.se = nn.Linear(8, 8)
        self.gate = conv(8, 1, 3)
        self.scale = nn.Parameter(torch.empty(8, 1, 1))
        self.shift = nn.Parameter(torch.empty(1))
        self.inverse = nn.Parameter(torch.empty(8, 1, 1))
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        first = self.conv(x)
        s = torch.sigmoid(self.se(first.mean((2, 3))))[:, :, None, None]
        x = s * first
        g = torch.sigmoid(self.gate(x))
        x = (x - g) / (s + 1.5)
        x = (g + 2) / (x * x + 1)
        x = x + first - torch.tanh(first)
        x = (x * self.scale + self.shift) / self.inverse
        return self.fc(x.mean((2, 3)))


class Moves(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3)
        self.conv2 = conv(22, 6, 3, 2)
        self.fc1 = nn.Linear(144, 7)
        self.fc = nn.Linear(7, CLASSES)

    def forward(self, x):
        x = self.conv(x)
        a, b = x[:, :5], x[:, 5:]
        x = F.pad(torch.cat([b, a, F.relu(a), a], 1), (-1, 2, 1, -2))
        x = self.conv2(F.channel_shuffle(x, 2))
        return self.fc(F.relu(self.fc1(F.silu(torch.flatten(x, 1)))))


class Norms(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3)
        self.ln1 = nn.LayerNorm(12, 1e-6)
        self.ln2 = nn.LayerNorm([12, HEIGHT, WIDTH])
        self.gn = nn.GroupNorm(3, 12)
        self.bn = nn.BatchNorm2d(12, 1e-3, 0.01)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.ln1(self.conv(x).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.gn(self.ln2(F.relu(x)))
        x = x + 0.5
        x = self.bn(F.instance_norm(x * x))
        return self.fc(F.hardswish(x).mean((2, 3)))


class Pools(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = conv(3, 7, 3)
        self.fc = nn.Linear(10 * 7, CLASSES)

    def forward(self, x):
        x = self.conv(x)
        x = F.max_pool2d(x, (3, 2), (2, 1), (1, 0), ceil_mode=True) + F.avg_pool2d(x, (1, 2), (2, 1))
        x = F.avg_pool2d(x, (3, 2), (1, 2), (1, 1), ceil_mode=True) + F.avg_pool2d(
            x, (3, 2), (1, 2), (1, 1), ceil_mode=True, count_include_pad=False)
        x = F.adaptive_avg_pool2d(x, (3, 7)) + F.adaptive_max_pool2d(x, (3, 7))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(x, (5, 2)), 1))


class Channels(nn.Module):
    """Means and maxima over channels, of an odd number and of one."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 15, 3)
        self.gate = conv(2, 1, 3)
        self.fc = nn.Linear(15, CLASSES)

    def forward(self, x):
        x = self.conv(x)
        gate = torch.sigmoid(self.gate(torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)))
        x = x * (gate.mean(1, keepdim=True) + gate.amax(1, keepdim=True))
        x = x - x.mean(1, keepdim=True)
        return self.fc((x * x).mean((2, 3)))


class Mixed(nn.Module):
    """Two branches, concatenation, shuffle, squeeze and excitation, layer norm."""

    def __init__(self):
        super().__init__()
        self.stem = conv(3, 8, 3)
        self.bn1 = nn.BatchNorm2d(8)
        self.right = conv(4, 8, 1)
        self.bn2 = nn.BatchNorm2d(8)
        self.squeeze = nn.Linear(12, 4)
        self.excite = nn.Linear(4, 12)
        self.ln = nn.LayerNorm(12, 1e-6)
        self.mix = conv(12, 12, 1)
        self.layer_scale = nn.Parameter(torch.empty(12, 1, 1))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = F.relu6(self.bn1(self.stem(x)))
        left, right = x.chunk(2, 1)
        x = F.channel_shuffle(torch.cat([left, F.silu(self.bn2(self.right(right)))], 1), 2)
        s = F.hardsigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3))))))
        x = x * s[:, :, None, None]
        y = self.ln(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = x + F.gelu(self.mix(y)) * self.layer_scale
        return self.fc(x.mean((2, 3)))


class Tokens(nn.Module):
    """Self-attention as vision transformers have it, with tokens of the net's own, which then read the others."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3, 2)
        self.tokens = nn.Parameter(torch.empty(1, 2, 12))
        self.positions = nn.Parameter(torch.empty(1, 32, 12))
        self.ln = nn.LayerNorm(12, 1e-6)
        self.attention = nn.MultiheadAttention(12, 3, batch_first=True)
        self.query = nn.Linear(12, 12)
        self.key = nn.Linear(12, 12, bias=False)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.tokens.expand(x.shape[0], -1, -1), x], 1) + self.positions
        y = self.ln(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        q, k, v = (z.unflatten(2, (2, 6)).transpose(1, 2) for z in (self.query(x[:, :2]), self.key(x), x))
        y = F.scaled_dot_product_attention(q, k, v, scale=0.75).transpose(1, 2).flatten(2)
        y = y + F.scaled_dot_product_attention(y, y, y)
        return self.fc(F.layer_norm(y, (12,)).mean(1))


class Windows(nn.Module):
    """Self-attention within shifted windows, with biases of relative positions and a mask, as Swin has it; then of few
    queries to all keys, with a table of each head."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3, 2)
        self.table = nn.Parameter(torch.empty(9 * 5, 3))
        self.qkv = nn.Linear(12, 36)
        self.proj = nn.Linear(12, 12)
        self.biases = nn.Parameter(torch.empty(2, 7))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.conv(x).permute(0, 2, 3, 1)
        n, h, w, c = x.shape
        row, column = torch.arange(15) // 3, torch.arange(15) % 3
        index = (row[:, None] - row + 4) * 5 + column[:, None] - column + 2
        y = torch.roll(x, (-2, -1), (1, 2)).view(n, 1, 5, 2, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(2 * n, 15, c)
        q, k, v = self.qkv(y).reshape(2 * n, 15, 3, 3, 4).permute(2, 0, 3, 1, 4)
        part = ((torch.arange(5) >= 3).long()[:, None] * 2 + (torch.arange(6) >= 5)).view(1, 5, 2, 3)
        part = part.permute(0, 2, 1, 3).reshape(2, 15)
        mask = -100.0 * (part[:, :, None] != part[:, None]).to(x.dtype)
        scores = q * 0.5 @ k.transpose(-2, -1) + self.table[index.view(-1)].view(15, 15, 3).permute(2, 0, 1)
        y = ((scores.view(n, 2, 3, 15, 15) + mask[:, None]).view(2 * n, 3, 15, 15).softmax(-1) @ v).transpose(1, 2)
        y = self.proj(y.reshape(2 * n, 15, c)).view(n, 1, 2, 5, 3, c).permute(0, 1, 3, 2, 4, 5).reshape(n, h, w, c)
        x = (x + torch.roll(y, (2, 1), (1, 2))).flatten(1, 2)
        index = (torch.arange(2)[:, None] * 3 + torch.arange(30)) % 7
        q, k = (z.unflatten(2, (2, 6)).transpose(1, 2) for z in (x[:, :2], x))
        x = F.scaled_dot_product_attention(q, k, k, attn_mask=self.biases[:, index])
        return self.fc(x.transpose(1, 2).flatten(2).mean(1))


class Turns(nn.Module):
    """Layers over tokens, as MLP-Mixer has them; a convolution along them; channels that are packed head by head; biases of
    scores that are computed."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3, 2)
        self.mix1, self.mix2 = nn.Linear(30, 8), nn.Linear(8, 30)
        self.line = nn.Conv1d(12, 12, 3, padding=1, groups=3)
        self.qkv = nn.Linear(12, 36)
        self.table = nn.Parameter(torch.empty(59, 3))
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.conv(x).flatten(2)
        x = x + self.mix2(F.gelu(self.mix1(x)))
        x = (x + self.line(x)).transpose(1, 2)
        q, k, v = self.qkv(x).unflatten(2, (3, 3, 4)).transpose(1, 2).unbind(3)
        place = torch.arange(30)
        table = self.table + (torch.arange(177) / 100).view(59, 3)
        biases = 16 * torch.sigmoid(table)[place[:, None] - place + 29].permute(2, 0, 1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=biases[None])
        return self.fc((x + y.transpose(1, 2).flatten(2)).mean(1))


class Rotary(nn.Module):
    """Self-attention whose queries and keys are turned by halves; then two vectors within the channels, by neighbours."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3, 2)
        self.qkv = nn.Linear(12, 36)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = self.conv(x).flatten(2).transpose(1, 2)
        angle = torch.arange(30.0, dtype=x.dtype)[:, None] * torch.tensor([0.25, 0.125], dtype=x.dtype)
        q, k, v = self.qkv(x).unflatten(2, (3, 3, 4)).permute(2, 0, 3, 1, 4)

        def halves(z):
            a, b = z.chunk(2, -1)
            return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

        x = x + F.scaled_dot_product_attention(halves(q), halves(k), v).transpose(1, 2).flatten(2)
        a, b = x[:, :, 2:10].unflatten(2, (2, 2, 2)).unbind(4)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        turned = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(2)
        x = torch.cat([x[:, :, :2], turned, x[:, :, 10:]], 2) * x
        return self.fc(x.mean(1))


class Pixels(nn.Module):
    """Pixel shuffles, and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 12, 3, pad=0)
        self.mix = nn.ConvTranspose2d(12, 8, 3, 1, 1)
        self.fc = nn.Linear(18, CLASSES)

    def forward(self, x):
        x = F.pixel_shuffle(self.conv(x), 2)
        x = self.mix(F.pixel_unshuffle(x[:, :, 2:], 2))
        return self.fc(F.pixel_unshuffle(F.pixel_shuffle(x * x, 2), 3).mean((2, 3)))


class Upward(nn.Module):
    """Transposed convolutions, interpolation, padding by the image's own pixels."""

    def __init__(self):
        super().__init__()
        self.conv = conv(3, 8, 3, 2)
        self.twice = nn.ConvTranspose2d(8, 8, 3, 2, 1, (1, 0))
        self.grouped = nn.ConvTranspose2d(8, 12, (2, 3), (1, 2), (0, 2), (0, 0), 4, False, (2, 1))
        self.depthwise = nn.ConvTranspose2d(8, 8, 4, 3, 0, 1, 8, False)
        self.fc = nn.Linear(28, CLASSES)

    def forward(self, x):
        x = F.relu(self.conv(x))
        y = self.twice(x)
        z = F.pad(self.grouped(y), (0, 0, 0, -1))
        y = F.interpolate(self.depthwise(y), (13, 7), mode="bilinear", antialias=True)
        z = F.interpolate(z, (13, 7), mode="bicubic")
        x = torch.cat([F.interpolate(x, scale_factor=(2.6, 1.3), mode="bilinear"), y, z], 1)
        y = F.interpolate(x, (8, 12), mode="bilinear", align_corners=True)
        y = torch.tanh(y + F.interpolate(x, scale_factor=(0.7, 1.8))[:, :, 1:])
        y = F.pad(F.pad(y, (0, 2, 3, 1), mode="reflect"), (3, 1, 0, 2), mode="replicate")
        y = F.interpolate(F.pad(y, (1, 5, 2, 4), mode="circular"), (6, 10), mode="nearest-exact")
        return self.fc((y * y).mean((2, 3)))


def run(make):
    net = make()
    fill(net)
    net.double()
    sgd = torch.optim.SGD(net.parameters(), RATE, momentum=MOMENTUM)
    losses, grads = [], []
    for step in range(STEPS):
        numbers = range(step * BATCH, (step + 1) * BATCH)
        x = torch.from_numpy(np.stack([image(n) for n in numbers])).double()
        loss = F.cross_entropy(net(x), torch.tensor([label(n) for n in numbers]))
        sgd.zero_grad()
        loss.backward()
        losses.append(loss.item())
        if step == 0:
            for name, p in net.named_parameters():
                g = p.grad.numpy().reshape(-1) * BATCH
                along = signed_unit(SEED, 4, key(name), g.size).astype(np.float64)
                grads.append((name, float(g @ along), float(np.linalg.norm(g))))
        sgd.step()
    return losses, grads


def main():
    np.seterr(over="ignore")
    print(f"# By make_layers.py: Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}")
    print(f"# net, losses of {STEPS} steps; parameter, its first gradient (of the sum over the batch) along a vector of "
          "numbers in [-1, 1), its length")
    for make in (Functions, Binary, Moves, Norms, Pools, Channels, Mixed, Tokens, Windows, Turns, Rotary, Pixels, Upward):
        losses, grads = run(make)
        print("net", make.__name__, *(f"{x:.8f}" for x in losses))
        for name, dot, length in grads:
            print("grad", name, f"{dot:.8g}", f"{length:.8g}")


if __name__ == "__main__":
    main()
