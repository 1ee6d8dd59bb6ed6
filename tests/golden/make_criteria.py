#!/usr/bin/env python3
"""Losses and gradients of a small net under several criteria by PyTorch and timm, in f64, for tests/model/test_loss.c, which
has the same net, images, labels and targets.

    python3 tests/golden/make_criteria.py > tests/golden/criteria.txt
"""
import platform

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from timm.loss import BinaryCrossEntropy

from make_layers import BATCH, CLASSES, HEIGHT, RATE, STEPS, WIDTH, fill, image, key, label
from make_losses import MOMENTUM, SEED, draw, signed_unit


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)).mean((2, 3)))


class Pixels(nn.Module):
    """Logits of every pixel."""
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.fc = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        return self.fc(torch.tanh(self.conv(x)))


IGNORED = 255
AREA = HEIGHT * WIDTH


def mask(number):
    u = (draw(SEED, 6, number, np.arange(AREA, dtype=np.uint64)) >> np.uint64(32)) * np.uint64(CLASSES + 1)
    m = (u >> np.uint64(32)).astype(np.int64).reshape(HEIGHT, WIDTH)
    m[:, : number % BATCH] = CLASSES  # images with fewer and fewer labels
    m[m == CLASSES] = IGNORED
    return m


def picture(number):
    return 2 * signed_unit(SEED, 7, number, CLASSES * AREA).reshape(CLASSES, HEIGHT, WIDTH)


def target(number):
    return 2 * signed_unit(SEED, 5, number, CLASSES)


def soft(y):
    """Of each label three quarters, of the class after it one."""
    return 0.75 * F.one_hot(y, CLASSES).double() + 0.25 * F.one_hot((y + 1) % CLASSES, CLASSES).double()


WEIGHTS = torch.tensor([0.5, 2.0, 1.0, 3.25], dtype=torch.float64)  # of the four classes, exact in f32

CRITERIA = [  # name, loss of logits, labels and targets
    ("plain", lambda z, y, t: F.cross_entropy(z, y)),
    ("smooth0.1", lambda z, y, t: F.cross_entropy(z, y, label_smoothing=0.1)),
    ("smooth1", lambda z, y, t: F.cross_entropy(z, y, label_smoothing=1.0)),
    ("mse", lambda z, y, t: F.mse_loss(z, t)),
    ("bce", lambda z, y, t: F.binary_cross_entropy_with_logits(z, F.one_hot(y, CLASSES).double())),
    ("bce0.1", lambda z, y, t: BinaryCrossEntropy(smoothing=0.1)(z, y)),
    ("bcesoft", lambda z, y, t: BinaryCrossEntropy(smoothing=0)(z, soft(y))),
    ("weighted", lambda z, y, t: F.cross_entropy(z, y, weight=WEIGHTS)),
    ("weighted0.1", lambda z, y, t: F.cross_entropy(z, y, weight=WEIGHTS, label_smoothing=0.1)),
    ("weightedsoft", lambda z, y, t: F.cross_entropy(z, soft(y), weight=WEIGHTS)),
    ("own", lambda z, y, t: F.smooth_l1_loss(z, t, beta=0.5)),
    ("mae", lambda z, y, t: F.l1_loss(z, t)),
]


PIXELS = [  # loss of logits, masks and pictures
    ("ignore0", lambda z, y, t: F.cross_entropy(z, y, ignore_index=IGNORED)),
    ("ignore0.2", lambda z, y, t: F.cross_entropy(z, y, ignore_index=IGNORED, label_smoothing=0.2)),
    ("iw0.1", lambda z, y, t: F.cross_entropy(z, y, weight=WEIGHTS, ignore_index=IGNORED, label_smoothing=0.1)),
    ("autoencoder", lambda z, y, t: F.mse_loss(z, t)),
    ("absolute", lambda z, y, t: F.l1_loss(z, t)),
]


def main():
    np.seterr(over="ignore")
    print(f"# By make_criteria.py: Python {platform.python_version()}, torch {torch.__version__}, numpy {np.__version__}")
    print("# criterion, losses of 10 steps; parameter, its first gradient (of the sum over the batch) "
          "along a vector of "
          "numbers in [-1, 1), its length")
    for name, criterion in CRITERIA + PIXELS:
        pixels = (name, criterion) in PIXELS
        net = Pixels().double() if pixels else Net().double()
        fill(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
        losses, grads = [], []
        for step in range(STEPS):
            numbers = range(step * BATCH, (step + 1) * BATCH)
            x = torch.from_numpy(np.stack([image(n) for n in numbers])).double()
            y = torch.from_numpy(np.stack([mask(n) if pixels else label(n) for n in numbers]))
            t = torch.from_numpy(np.stack([picture(n) if pixels else target(n) for n in numbers])).double()
            images = (WEIGHTS[y[y != IGNORED]].sum().item() / AREA if name == "iw0.1" else
                      (y != IGNORED).sum().item() / AREA if name.startswith("ignore") else BATCH)
            loss = criterion(net(x), y, t)
            optimizer.zero_grad()
            loss.backward()
            if not step:
                for parameter, p in net.named_parameters():
                    g = p.grad * (WEIGHTS[y].sum() if name in ("weighted", "weighted0.1") else images)
                    u = torch.from_numpy(signed_unit(SEED, 4, key(parameter), p.numel())).double()
                    grads.append((parameter, (g.flatten() @ u).item(), g.norm().item()))
            optimizer.step()
            losses.append(loss.item())
        print("criterion", name, *(f"{x:.8f}" for x in losses))
        for parameter, dot, length in grads:
            print("grad", parameter, f"{dot:.8g}", f"{length:.8g}")


if __name__ == "__main__":
    main()
