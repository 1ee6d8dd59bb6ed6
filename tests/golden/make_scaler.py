#!/usr/bin/env python3
"""How torch.amp.GradScaler moves its scale, for tests/device/test_step.c.

A block begins with "scaler SCALE INTERVAL STEPS" (growth 2, backoff 0.5); a line each step: were gradients
finite, the scale after it, and the updates since it moved.

    python3 tests/golden/make_scaler.py > tests/golden/scaler.txt
"""
import sys

import torch


def block(scale, interval, found):
    p = torch.nn.Parameter(torch.ones(1))
    opt = torch.optim.SGD([p], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=interval)
    scaler.scale(torch.ones(1))  # makes its tensors
    print("scaler", scale.hex(), interval, len(found))
    for inf in found:
        p.grad = torch.full((1,), float("inf") if inf else scaler.get_scale())
        before = p.item()
        scaler.step(opt)
        assert (p.item() == before) == inf
        scaler.update()
        print(int(not inf), float(scaler.get_scale()).hex(), scaler._get_growth_tracker())


print("torch", torch.__version__, file=sys.stderr)
draws = [(i * 2654435761 >> 7) % 5 == 0 for i in range(60)]
block(65536.0, 2000, [True, True, False, True, False])
block(65536.0, 3, draws)
block(655.36, 2, draws)
block(2.0**126, 1, [False, False, False, False, True, False])  # beyond f32 it does not grow
block(1.0, 4, [True] * 20 + [False] * 9)
