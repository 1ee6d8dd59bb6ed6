#!/usr/bin/env python3
"""torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(DECAY) and use_buffers=True, beside SGD, for
tests/optim/test_ema.c.

A block begins with "ema DECAY EVERY LR STEPS TRACKED" and a line of weights; TRACKED is num_batches_tracked before
the first step. Then four lines a step: gradients; weights after it; running statistics, drawn at random, and
num_batches_tracked; the averages of these, in the same order. Update 4 comes after a batch whose update is skipped.
An average is taken after updates 1, 1 + EVERY, ..., as torchvision's reference training does. DECAY 0 is the equal
average, AveragedModel's default.

    python3 tests/golden/make_ema.py > tests/golden/ema.txt
"""
import sys

import torch
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

N, STEPS, LR = 5, 10, 0.1


class Net(torch.nn.Module):
    def __init__(self, tracked):
        super().__init__()
        self.w = torch.nn.Parameter(torch.tensor([1.0, -0.5, 0.25, 3.0, 0.0]))
        self.register_buffer("running", torch.ones(N))
        self.register_buffer("num_batches_tracked", torch.tensor(tracked))


def line(*tensors):
    return [x.hex() if isinstance(x, float) else x for t in tensors for x in t.reshape(-1).tolist()]


def block(decay, every, tracked):
    net = Net(tracked)
    mean = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(decay) if decay else None, use_buffers=True)
    opt = torch.optim.SGD(net.parameters(), lr=LR)
    print("ema", decay, every, LR, STEPS, tracked)
    print(*line(net.w))
    for t in range(STEPS):
        net.w.grad = torch.randn(N) * torch.tensor([1.0, 1e-3, 1e-6, 30.0, 0.1])
        print(*line(net.w.grad))
        opt.step()
        net.running.copy_(torch.rand(N) * 10 - 2)
        net.num_batches_tracked += 1 + (t == 3)
        if t % every == 0:
            mean.update_parameters(net)
        print(*line(net.w))
        print(*line(net.running, net.num_batches_tracked))
        print(*line(mean.module.w, mean.module.running, mean.module.num_batches_tracked))


torch.manual_seed(11)
print("torch", torch.__version__, file=sys.stderr)
block(0.9, 1, 0)
block(0.9999, 1, 1000)
block(0.3, 1, 7)
block(0.5, 3, 123456)
block(0, 3, 7)
