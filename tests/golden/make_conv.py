#!/usr/bin/env python3
"""torch.nn.functional.conv2d, forward and gradients in f64, for tests/device/test_pytorch.c.

Operands are functions of a counter (make_losses.py). For each result the file has its product with a random tensor,
to which every element contributes; for y this is the loss of the gradients. A line: n c h w, k r s, stride,
padding above, left, below and right, dilation, groups; then of y, dx, dw and the bias's gradient.

    python3 tests/golden/make_conv.py > tests/golden/conv.txt
"""
import platform

import numpy as np
import torch
import torch.nn.functional as F

from make_losses import SEED, signed_unit

SHAPES = [
    # n, c, h, w, k, r, s, (stride), (padding), (dilation), groups
    (2, 3, 9, 8, 5, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 1),
    (3, 3, 8, 11, 16, 1, 7, (1, 1), (0, 3, 0, 3), (1, 1), 1),
    (3, 16, 11, 7, 24, 7, 1, (1, 1), (3, 0, 3, 0), (1, 1), 1),
    (2, 16, 9, 9, 16, 4, 2, (2, 3), (1, 0, 2, 1), (1, 1), 1),
    (2, 6, 12, 11, 9, 3, 3, (1, 2), (2, 3, 1, 0), (2, 3), 3),
    (5, 24, 7, 7, 24, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 24),
    (4, 33, 8, 9, 33, 5, 5, (2, 2), (2, 2, 2, 2), (1, 1), 33),
    (1, 16, 10, 10, 16, 7, 7, (1, 1), (3, 3, 3, 3), (1, 1), 16),
    (2, 3, 9, 9, 12, 3, 3, (1, 1), (2, 2, 2, 2), (2, 2), 3),
    (2, 64, 6, 6, 64, 3, 3, (1, 1), (1, 1, 1, 1), (1, 1), 16),
    (2, 64, 7, 6, 32, 3, 3, (2, 2), (0, 1, 1, 0), (1, 1), 2),
    (3, 1, 7, 7, 4, 6, 5, (3, 3), (2, 2, 3, 3), (1, 1), 1),
    (2, 24, 5, 5, 33, 1, 1, (2, 2), (0, 0, 0, 0), (1, 1), 3),
]


def tensor(key, *shape, channels_last=False):
    x = signed_unit(SEED, 4, key, int(np.prod(shape))).astype(np.float64)
    if channels_last:  # element e is ((n*H + h)*W + w)*C + c
        n, c, h, w = shape
        x = x.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    return torch.from_numpy(np.ascontiguousarray(x.reshape(shape)))


print(f"# By make_conv.py: Python {platform.python_version()}, torch {torch.__version__}")
for n, c, h, w, k, r, s, stride, (top, left, bottom, right), dilation, groups in SHAPES:
    x = tensor(0, n, c, h, w, channels_last=True).requires_grad_()
    weight = tensor(1, k, c // groups, r, s).requires_grad_()
    bias = tensor(2, k).requires_grad_()
    y = F.conv2d(F.pad(x, (left, right, top, bottom)), weight, bias, stride, 0, dilation, groups)
    loss = (y * tensor(3, *y.shape, channels_last=True)).sum()
    loss.backward()
    got = [loss.item(), (x.grad * tensor(4, *x.shape, channels_last=True)).sum().item(),
           (weight.grad * tensor(5, *weight.shape)).sum().item(), (bias.grad * tensor(6, k)).sum().item()]
    print(n, c, h, w, k, r, s, *stride, top, left, bottom, right, *dilation, groups, *(f"{v:.9g}" for v in got))
