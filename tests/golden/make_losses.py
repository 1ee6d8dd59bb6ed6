#!/usr/bin/env python3
"""Ten training losses by PyTorch, for tests/model/test_zoo.c.

Weights, images and labels are functions of a counter (splitmix64, as hvt__draw in src/base_impl.h), so the C
test repeats them to the bit without a file of weights. Every model is trained in f32 and in f64; the learning
rate and the batch are such that the two agree to 1e-4 at the tenth step, which is checked here. The losses of
f64 are the golden ones.

    python3 tests/golden/make_losses.py > tests/golden/losses.txt
"""
import platform
import sys

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
import torchvision

SEED = 1007
STEPS = 10
MOMENTUM = 0.9
SIZE, CLASSES = 32, 10
MASK = (1 << 64) - 1


def mix(x):  # x: uint64, a number or an array
    x = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def draw(a, b, c, d):
    u = np.uint64
    return mix(np.asarray(d, dtype=u) ^ mix(u(c) ^ mix(u(b) ^ mix(u(a)))))


def signed_unit(a, b, c, count):  # in [-1, 1), exact in f32
    d = draw(a, b, c, np.arange(count, dtype=np.uint64))
    return (d >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)


def image(number):  # [C,H,W]; element e is (h*W + w)*C + c
    x = signed_unit(SEED, 1, number, SIZE * SIZE * 3)
    return x.reshape(SIZE, SIZE, 3).transpose(2, 0, 1)


def label(number):
    return int(((int(draw(SEED, 2, number, 0)) >> 32) * CLASSES) >> 32)


def fill(model):
    """Parameter i in state_dict order: convolutions +-sqrt(6/fan out), linear layers +-sqrt(1/fan in), batch
    norms as they are (1 and 0), but 1/8 for the last of a bottleneck's: with 1 the loss of a ResNet-50 on so small
    images is so sensitive that f32 and f64 part at the second step."""
    fan_in = 1
    linear = {f"{name}.bias" for name, layer in model.named_modules() if isinstance(layer, nn.Linear)}
    for i, (name, p) in enumerate(model.named_parameters()):
        if p.dim() == 4:
            bound = np.float32(np.sqrt(6.0 / (p.shape[0] * p.shape[2] * p.shape[3])))
        elif p.dim() == 2 or name in linear:
            fan_in = p.shape[1] if p.dim() == 2 else fan_in
            bound = np.float32(1 / np.sqrt(float(fan_in)))
        else:
            if name.endswith("bn3.weight"):
                p.data.fill_(0.125)
            continue
        w = bound * signed_unit(SEED, 3, i, p.numel())
        p.data.copy_(torch.from_numpy(w.reshape(tuple(p.shape))))


class Block(nn.Module):
    """Option A's shortcut: every other pixel, zero channels on both sides."""

    def __init__(self, channels, filters, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, filters, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(filters)
        self.conv2 = nn.Conv2d(filters, filters, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(filters)
        self.stride, self.pad = stride, (filters - channels) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        skip = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + skip)


class ResNet20(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        channels = 16
        for stage in range(3):
            filters = 16 << stage
            blocks = []
            for i in range(3):
                blocks.append(Block(channels, filters, 2 if stage and not i else 1))
                channels = filters
            setattr(self, f"layer{stage + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(64, CLASSES)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(x.mean((2, 3)))


def mlp():
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * SIZE * SIZE, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, CLASSES))


def mobilenet_v2():
    """torchvision's, with CIFAR's stem and without dropout."""
    model = torchvision.models.mobilenet_v2(num_classes=CLASSES, dropout=0)
    model.features[0][0].stride = (1, 1)
    model.features[2].conv[1][0].stride = (1, 1)
    return model


MODELS = [  # name, batch, learning rate, model
    ("resnet20", 8, 0.002, ResNet20),
    ("resnet50", 16, 0.0002, lambda: torchvision.models.resnet50(num_classes=CLASSES)),
    ("mobilenet_v2", 8, 0.000001, mobilenet_v2),
    ("mlp", 16, 0.01, mlp),
]


def losses(make, batch, lr, dtype):
    model = make().to(dtype)
    fill(model)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=MOMENTUM)
    result = []
    for step in range(STEPS):
        numbers = range(step * batch, (step + 1) * batch)
        x = torch.from_numpy(np.stack([image(n) for n in numbers])).to(dtype)
        y = torch.tensor([label(n) for n in numbers])
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        result.append(loss.item())
    return result


def main():
    np.seterr(over="ignore")
    torch.manual_seed(0)
    print(f"# By make_losses.py: Python {platform.python_version()}, torch {torch.__version__}, "
          f"torchvision {torchvision.__version__}, numpy {np.__version__}")
    print(f"# seed {SEED}, {STEPS} steps of SGD, momentum {MOMENTUM}; per model: name, batch, learning rate, losses")
    for name, batch, lr, make in MODELS:
        single, double = (losses(make, batch, lr, t) for t in (torch.float32, torch.float64))
        apart = [abs(s - d) / d for s, d in zip(single, double)]
        print(f"{name}: f32 and f64 are {apart[0]:.1e} apart at the first, {apart[-1]:.1e} at the tenth step "
              f"({max(apart):.1e} at most)", file=sys.stderr)
        if max(apart) > 1e-4:
            sys.exit(f"{name}: f32 and f64 must agree to 1e-4; choose another batch or learning rate")
        print(name, batch, lr, *(f"{x:.9f}" for x in double))


if __name__ == "__main__":
    main()
