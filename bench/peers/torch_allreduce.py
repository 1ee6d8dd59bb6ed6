#!/usr/bin/env python3
"""Sums of vectors by PyTorch over gloo or by Horovod, timed as bench_allreduce times: every rank writes its
buffer before each call, a round is the mean of its calls on the slowest rank, the sum is verified before and
after. Prints one JSON row a size on rank 0.

    torchrun --nproc-per-node 2 torch_allreduce.py gloo    --bytes 8,1024 --seconds 1
    mpirun -np 2 python         torch_allreduce.py horovod --bytes 8,1024 --seconds 1
"""
import argparse
import json
import time

import torch

import group

ROUNDS = 9


class Gloo(group.Gloo):
    def sum(self, buf):
        self.dist.all_reduce(buf)


class Horovod(group.Horovod):
    def sum(self, buf):
        self.hvd.allreduce_(buf, op=self.hvd.Sum, name="bench")


def measure(peer, size, seconds):
    buf = torch.zeros(size // 4)
    pattern = torch.arange(size // 4, dtype=torch.float32) % 1000

    def right():
        buf.copy_(pattern).mul_(peer.rank + 1)
        peer.sum(buf)
        return torch.equal(buf, pattern * (peer.size * (peer.size + 1) // 2))

    def call():
        buf.zero_()
        start = time.perf_counter()
        peer.sum(buf)
        return time.perf_counter() - start

    wrong = not right()
    calls = max(1, int(seconds / ROUNDS / (peer.most([call()])[0] + 1e-7)))
    rounds = []
    for _ in range(ROUNDS):
        peer.barrier()
        rounds.append(sum(call() for _ in range(calls)) / calls)
    wrong = wrong or not right()
    *rounds, wrong = peer.most([*rounds, float(wrong)])
    return None if wrong else sorted(rounds)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("peer", choices=["gloo", "horovod"])
    p.add_argument("--bytes", type=lambda t: [int(n) for n in t.split(",")], required=True)
    p.add_argument("--seconds", type=float, default=1)
    args = p.parse_args()
    torch.set_num_threads(1)
    peer = Gloo() if args.peer == "gloo" else Horovod()
    for size in args.bytes:
        rounds = measure(peer, size, args.seconds)
        if peer.rank:
            continue
        row = {"bytes": size, "way": args.peer}
        if rounds:
            median = rounds[ROUNDS // 2]
            row |= {"median_us": 1e6 * median, "least_us": 1e6 * rounds[0], "algbw": 1e-9 * size / median,
                    "busbw": 1e-9 * size / median * 2 * (peer.size - 1) / peer.size}
        else:
            row["wrong"] = True
        print(json.dumps(row), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
