#!/usr/bin/env python3
"""Steps of torch.optim.Adam and AdamW, for tests/optim/test_optim.c.

A block begins with "NAME LR BETA1 BETA2 EPS WEIGHT_DECAY ELEMENTS STEPS" and a line of weights; then two lines a step:
gradients, and the weights after it.

    python3 tests/golden/make_optim.py > tests/golden/optim.txt
"""
import sys

import torch

N, STEPS = 5, 12


def block(name, lr, betas, eps, decay):
    w = torch.nn.Parameter(torch.tensor([1.0, -0.5, 0.25, 3.0, 0.0]))
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    opt = make([w], lr=lr, betas=betas, eps=eps, weight_decay=decay, foreach=False)
    print(name, lr, *betas, eps, decay, N, STEPS)
    print(*(x.hex() for x in w.tolist()))
    for t in range(STEPS):
        g = torch.randn(N) * torch.tensor([1.0, 1e-3, 1e-6, 30.0, 0.1])
        g[t % N] = 0
        w.grad = g
        opt.step()
        print(*(x.hex() for x in g.tolist()))
        print(*(x.hex() for x in w.tolist()))


torch.manual_seed(7)
print("torch", torch.__version__, file=sys.stderr)
block("adam", 1e-3, (0.9, 0.999), 1e-8, 0.0)
block("adam", 0.05, (0.8, 0.95), 1e-3, 0.1)
block("adam", 0.01, (0.0, 0.9), 1e-8, 0.0)
block("adamw", 1e-3, (0.9, 0.999), 1e-8, 0.01)
block("adamw", 0.05, (0.5, 0.0), 1e-4, 0.5)
