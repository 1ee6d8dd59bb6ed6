#!/usr/bin/env python3
"""Steps of torch.optim's Adam, AdamW and RMSprop and of timm's LARS and LAMB, for tests/optim/test_optim.c.

A block begins with "NAME LR BETA1 BETA2 EPS MOMENTUM WEIGHT_DECAY ELEMENTS STEPS" and a line of weights; then two lines a
step: gradients, and the weights after it. BETA2 of RMSprop is its alpha.

    python3 tests/golden/make_optim.py > tests/golden/optim.txt
"""
import sys

import timm
import torch
from timm.optim.lamb import Lamb
from timm.optim.lars import Lars

N, STEPS = 5, 12


def block(name, lr, betas, eps, decay, momentum=0.0, steps=STEPS):
    w = torch.nn.Parameter(torch.tensor([1.0, -0.5, 0.25, 3.0, 0.0]))
    own = {"lr": lr, "weight_decay": decay, "foreach": False}
    opt = {"adam": lambda: torch.optim.Adam([w], betas=betas, eps=eps, **own),
           "adamw": lambda: torch.optim.AdamW([w], betas=betas, eps=eps, **own),
           "rmsprop": lambda: torch.optim.RMSprop([w], alpha=betas[1], eps=eps, momentum=momentum, **own),
           "lars": lambda: Lars([w], momentum=momentum, **own),
           "lamb": lambda: Lamb([w], betas=betas, eps=eps, max_grad_norm=None, **own)}[name]()
    print(name, lr, *betas, eps, momentum, decay, N, steps)
    print(*(x.hex() for x in w.tolist()))
    for t in range(steps):
        g = torch.randn(N) * torch.tensor([1.0, 1e-3, 1e-6, 30.0, 0.1])
        g[t % N] = 0
        w.grad = g
        opt.step()
        print(*(x.hex() for x in g.tolist()))
        print(*(x.hex() for x in w.tolist()))


torch.manual_seed(7)
print("torch", torch.__version__, "timm", timm.__version__, file=sys.stderr)
block("adam", 1e-3, (0.9, 0.999), 1e-8, 0.0)
block("adam", 0.05, (0.8, 0.95), 1e-3, 0.1)
block("adam", 0.01, (0.0, 0.9), 1e-8, 0.0)
block("adamw", 1e-3, (0.9, 0.999), 1e-8, 0.01)
block("adamw", 0.05, (0.5, 0.0), 1e-4, 0.5)
block("rmsprop", 0.01, (0.0, 0.99), 1e-8, 0.0, steps=20)
block("rmsprop", 0.02, (0.0, 0.9), 0.0316, 0.01, 0.9, steps=20)
block("lars", 1.0, (0.0, 0.0), 0.0, 0.01, 0.9, steps=20)
block("lars", 0.1, (0.0, 0.0), 0.0, 0.0, 0.9, steps=20)
block("lamb", 5e-3, (0.9, 0.999), 1e-6, 0.02, steps=20)
block("lamb", 1e-3, (0.9, 0.999), 1e-6, 0.0, steps=20)
