#!/usr/bin/env python3
"""Write powersgd.txt: what PyTorch's powerSGD_hook makes of known gradients on 2 ranks.

A weight [ROWS, COLUMNS] gets the gradient of gradient() below, an exact f32, on each rank and step; the first
steps are plain sums, which the hook requires, and leave no residual. Then: the Q that it draws, and the mean
gradient that it hands to the optimizer.
"""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as psgd

ROWS, COLUMNS, RANK, PLAIN, STEPS = 12, 10, 2, 2, 4


def gradient(step, rank):
    at = torch.arange(ROWS * COLUMNS, dtype=torch.int64)
    return (((at * 7919 + at * at * 31 + step * 10477 + rank * 3571) % 1009 - 504).float() / 256).reshape(ROWS, COLUMNS)


class Linear(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, COLUMNS))

    def forward(self, g):
        return (self.weight * g).sum()


def work(rank, out):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611", GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(Linear())
    state = psgd.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=PLAIN, min_compression_rate=1)
    model.register_comm_hook(state, psgd.powerSGD_hook)
    drawn, randn = [], torch.randn
    torch.randn = lambda *a, **k: drawn.append(randn(*a, **k)) or drawn[-1]
    found = []
    for step in range(-PLAIN, STEPS):
        model.zero_grad()
        model(gradient(max(step, 0), rank)).backward()
        found.append(model.module.weight.grad.clone())
    assert len(drawn) == 1 and drawn[0].numel() == COLUMNS * RANK, drawn
    if rank == 0:
        q = drawn[0].reshape(COLUMNS, RANK)
        with open(out, "w") as f:
            f.write(f"# By make_powersgd.py: torch {torch.__version__}\n")
            f.write(f"{ROWS} {COLUMNS} {RANK} {STEPS}\n")
            f.write(" ".join(f"{x:.9g}" for x in q.t().flatten().tolist()) + "\n")
            for g in found[PLAIN:]:
                f.write(" ".join(f"{x:.9g}" for x in g.flatten().tolist()) + "\n")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "powersgd.txt")
    mp.spawn(work, (out,), 2)
    sys.stdout.write(open(out).readline())
