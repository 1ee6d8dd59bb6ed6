#!/usr/bin/env python3
"""pt2_random.py HVTRAIN [FIRST COUNT]: nets of random layers in .pt2 files, their logits and gradients compared with PyTorch.

The number determines the net. Functions are smooth, since one sum that rounds to the other side of a kink changes a
gradient. Prints a line for each net that is off or refused, with its layers, and a summary. Without numbers: 12 nets.
test_random_nets compares many more with the reference device, without PyTorch.
"""
import copy
import os
import random
import sys
import tempfile

import torch
import torch.nn as nn
import torch.nn.functional as F

import pt2_families as families

SIDE = 6


class Layer(nn.Module):
    """A function of some modules and parameters."""

    def __init__(self, name, of, **parts):
        super().__init__()
        self.name, self.of = name, of
        for key, part in parts.items():
            setattr(self, key, part)

    def forward(self, x):
        return self.of(self, x)


class Branches(nn.Module):
    def __init__(self, one, other, combine):
        super().__init__()
        self.one, self.other, self.combine, self.name = one, other, combine, "branches"

    def forward(self, x):
        return self.combine(self.one(x), self.other(x))


def divisors(n):
    return [d for d in range(1, n + 1) if n % d == 0]


def random_layer(r, c, h, w, depth):
    """A layer for [N,c,h,w], and the channels that it makes."""
    groups = r.choice([1, c, r.choice(divisors(c))])
    filters = groups * r.choice([1, 1, 2, 3]) if groups > 1 else r.choice([2, 3, 4, 6, 8, 12])
    kind = r.choice(["point", "point", "conv", "conv", "dilated", "norm", "norm", "act", "image", "channel", "tokens", "mixer",
                     "attention", "excite", "constant", "shuffle", "pool", "pixel", "cut"] + ["branches"] * (depth < 2))
    layer = lambda of, k=c, **parts: (Layer(kind, of, **parts), k)
    if filters > 24:
        filters = groups
    if kind == "point":
        return layer(lambda s, x: s.conv(x), filters, conv=nn.Conv2d(c, filters, 1, groups=groups, bias=r.random() < 0.5))
    if kind in ("conv", "dilated"):
        size = (r.choice([1, 3, 5]), r.choice([1, 3]))
        d = 2 if kind == "dilated" else 1
        pad = tuple(d * (k // 2) for k in size)
        return layer(lambda s, x: s.conv(x), filters, conv=nn.Conv2d(c, filters, size, padding=pad, dilation=d, groups=groups))
    if kind == "norm":
        norm = r.choice([lambda: nn.BatchNorm2d(c), lambda: nn.GroupNorm(r.choice(divisors(c)), c), lambda: nn.LayerNorm([c, h, w])])()
        return layer(lambda s, x: s.norm(x), norm=norm)
    if kind == "act":
        f = r.choice([torch.tanh, torch.sigmoid, F.silu, F.gelu, F.softplus])
        return layer(lambda s, x: f(x))
    if kind == "image":
        return layer(lambda s, x: x + s.p, p=nn.Parameter(torch.randn(1, c, h, w)))
    if kind == "channel":
        return layer(lambda s, x: x * s.a + s.b, a=nn.Parameter(torch.rand(c, 1, 1) + 0.5), b=nn.Parameter(torch.randn(1, c, 1, 1)))
    if kind == "tokens":
        return layer(lambda s, x: s.fc(s.norm(x.flatten(2).transpose(1, 2))).transpose(1, 2).reshape(x.shape),
                     norm=nn.LayerNorm(c), fc=nn.Linear(c, c))
    if kind == "mixer":
        return layer(lambda s, x: x + torch.tanh(s.fc(x.flatten(2))).reshape(x.shape), fc=nn.Linear(h * w, h * w))
    if kind == "attention":
        heads = r.choice(divisors(c))

        def attend(s, x):
            n = x.shape[0]
            q, k, v = s.qkv(x.flatten(2).transpose(1, 2)).reshape(n, h * w, 3, heads, c // heads).permute(2, 0, 3, 1, 4).unbind(0)
            y = F.scaled_dot_product_attention(q, k, v)
            return x + s.out(y.transpose(1, 2).reshape(n, h * w, c)).transpose(1, 2).reshape(x.shape)
        return layer(attend, qkv=nn.Linear(c, 3 * c), out=nn.Linear(c, c))
    if kind == "excite":
        return layer(lambda s, x: x * torch.sigmoid(s.fc(x.mean((2, 3))))[:, :, None, None], fc=nn.Linear(c, c))
    if kind == "constant":
        def numbered(s, x):
            numbers = torch.arange(h * w * c, dtype=torch.float32).reshape(1, h * w, c) / (h * w * c)
            return torch.tanh(x.flatten(2).transpose(1, 2) + numbers).transpose(1, 2).reshape(x.shape)
        return layer(numbered)
    if kind == "shuffle" and len(divisors(c)) > 2:
        g = divisors(c)[1]
        return layer(lambda s, x: s.conv(x.view(-1, g, c // g, h, w).transpose(1, 2).reshape(x.shape)), conv=nn.Conv2d(c, c, 1, groups=g))
    if kind == "pool":
        counted = r.random() < 0.5
        return layer(lambda s, x: F.avg_pool2d(x, 3, 1, 1, count_include_pad=counted))
    if kind == "pixel":
        return layer(lambda s, x: x * torch.sigmoid(s.conv(x)), conv=nn.Conv2d(c, 1, 3, padding=1))
    if kind == "cut" and c > 2:
        return layer(lambda s, x: torch.cat([x[:, 1:], x[:, :2] * 0.5], 1), c + 1)
    if kind == "branches":
        one, k = random_layers(r, c, h, w, 1, depth + 1)
        other, m = random_layers(r, c, h, w, 2, depth + 1)
        fit = nn.Sequential(other, nn.Conv2d(m, k, 1))
        return Branches(one, fit, r.choice([torch.add, torch.sub, lambda a, b: a * torch.sigmoid(b)])), k
    return layer(lambda s, x: torch.tanh(x) * 2)


def random_layers(r, c, h, w, count, depth=0):
    layers = []
    for _ in range(count):
        layer, c = random_layer(r, c, h, w, depth)
        layers.append(layer)
    return nn.Sequential(*layers), c


class Net(nn.Module):
    def __init__(self, number):
        super().__init__()
        r = random.Random(number)
        torch.manual_seed(number)
        self.body, c = random_layers(r, 3, SIDE, SIDE, r.randint(2, 6))
        self.flat = r.random() < 0.3
        self.head = nn.Linear(c * SIDE * SIDE if self.flat else c, families.CLASSES)

    def forward(self, x):
        x = self.body(x)
        return self.head(x.flatten(1) if self.flat else x.mean((2, 3)))


def compare(program, number):
    with tempfile.TemporaryDirectory() as folder:
        model = Net(number)
        x, y = families.write_data(folder, SIDE)
        state = copy.deepcopy(model.state_dict())
        families.export(model.train(), x, folder)
        logits = families.logits_apart(program, folder, model, x)
        gradients, where, gradients32 = families.gradients_apart(program, folder, model.float(), state, x, y)
    fine = logits <= families.BOUNDS["logits"] and gradients <= max(families.BOUNDS["gradients"], 8 * gradients32)
    return fine, f"logits {logits:.1e} gradients {gradients:.1e} (f32 {gradients32:.1e}) {where}", model


def main(program, first=0, count=12):
    torch.set_num_threads(1)
    wrong, refused = 0, 0
    for number in range(int(first), int(first) + int(count)):
        try:
            fine, text, model = compare(os.path.abspath(program), number)
        except RuntimeError as e:
            fine, text, model = False, str(e), Net(number)
            refused += "(layer" in text or "pt2_random.py line" in text
        if not fine:
            wrong += 1
            print(f"net {number}: {text}\n    " + ", ".join(m.name for m in model.body.modules() if hasattr(m, "name")), flush=True)
    print(f"{count} nets: {wrong} wrong or refused, of these {refused} refused", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
