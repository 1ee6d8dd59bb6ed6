#!/usr/bin/env python3
"""A solver that trains a U-Net on its own fields every ten steps (tests/net/example_solver.py), with hvtrain's package
beside PyTorch's DDP over gloo, in turns, on the same fields.

    bench/compare_solver.py --build build --python venv/bin/python --ranks 2

A round runs each way once, in processes of its own with a thread per rank. Seconds are those of the loop on the
slowest rank, solver steps and updates, without imports and the export of the network. The last losses must agree.
"""
import json
import os
import statistics
import sys
import tempfile
import time

import common
from common import mpirun, output_of

WAYS = ["hvtrain", "DDP over gloo"]


def hvtrain_step(width, side, shard):
    import hvtrain as hvt
    from unet import UNet

    net = hvt.Net(UNet(width), (1, side, side), loss="mse", optimizer="adam", lr=0.001, shard=shard)
    return net.fit_step


def ddp_step(width, rank, size):
    import torch
    from unet import UNet

    folder = os.environ["HVT_BENCH_FOLDER"]
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=size)
    net = torch.nn.parallel.DistributedDataParallel(UNet(width).train())
    adam = torch.optim.Adam(net.parameters(), lr=0.001)

    def step(images, targets):
        adam.zero_grad()
        x, y = (torch.from_numpy(a).float() for a in (images, targets))
        loss = torch.nn.functional.mse_loss(net(x), y)
        loss.backward()
        adam.step()
        return loss.item()

    return step


def loop(way, width, side, fields, updates):
    """A rank's seconds and its last loss."""
    import numpy as np
    import torch

    import hvtrain as hvt

    torch.manual_seed(0)
    torch.set_num_threads(1)
    hvt.init()
    rank, size = hvt.rank(), hvt.size()
    step = hvtrain_step(width, side, -(-fields // size)) if way == WAYS[0] else ddp_step(width, rank, size)
    first, last = fields * rank // size, fields * (rank + 1) // size
    u = (np.arange(first * side * side, last * side * side) * 7919 % 1000 / 1000).reshape(-1, 1, side, side)
    for t in range(-20, 10 * updates + 1):  # two updates to warm up
        if t == 0:
            hvt.barrier()
            began = time.perf_counter()
        if t % 10 == 0:
            if t > -20:
                loss = step(before, u)
            before = u.copy()
        u[:, 0, 1:-1, 1:-1] += 0.2 * (u[:, 0, 2:, 1:-1] + u[:, 0, :-2, 1:-1] + u[:, 0, 1:-1, 2:] + u[:, 0, 1:-1, :-2]
                                      - 4 * u[:, 0, 1:-1, 1:-1])
    seconds = float(hvt.allreduce(np.array([time.perf_counter() - began]), op=hvt.Max)[0])
    loss = float(hvt.allreduce(np.array([loss]))[0])  # fields are divided equally
    if rank == 0:
        print(json.dumps({"seconds": seconds, "loss": loss}), flush=True)


def run(way, case):
    with tempfile.TemporaryDirectory() as folder:
        paths = [args.build / "src/bindings/python", common.HERE.parent / "tests/net"]
        more = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "HVT_BENCH_FOLDER": folder}
        return common.json_lines(output_of([*mpirun(args.ranks, args.python), __file__, "--loop", way, *case], more))[-1]


if sys.argv[1:2] == ["--loop"]:
    loop(sys.argv[2], *map(int, sys.argv[3:]))
    sys.exit()
p = common.parser(__doc__, python="a Python that has torch and numpy")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--width", type=int, default=8, help="channels of the U-Net's first level")
p.add_argument("--side", type=int, default=32, help="pixels of a field's side")
p.add_argument("--fields", type=int, default=32, help="of all ranks")
p.add_argument("--updates", type=int, default=10)
args = common.arguments(p)
common.need(args.build, "src/bindings/python/hvtrain/libhvt.so")
common.need_modules(args.python, "torch, numpy")
case = [args.width, args.side, args.fields, args.updates]
found = {way: [] for way in WAYS}
for _ in range(args.rounds):
    for way in WAYS:
        found[way].append(run(way, case))
print(f"U-Net of {args.width} channels on {args.fields} fields of {args.side} x {args.side}, {args.updates} updates, "
      f"{args.ranks} ranks, {args.rounds} rounds")
median = {way: statistics.median(r["seconds"] for r in rows) for way, rows in found.items()}
for way, rows in found.items():
    least = min(r["seconds"] for r in rows)
    print(f"{way:14} median {median[way]:.3f} s, least {least:.3f} s, last loss {rows[0]['loss']:.7f}")
print(f"hvtrain / DDP: {median[WAYS[0]] / median[WAYS[1]]:.2f}")
losses = [rows[0]["loss"] for rows in found.values()]
if abs(losses[0] - losses[1]) > 1e-3 * losses[1]:
    sys.exit(f"the losses differ: {losses}")
