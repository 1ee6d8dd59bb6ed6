#!/usr/bin/env python3
"""From "every rank has its gradients" to "every rank has the new weights" in PyTorch, with DDP over gloo, with
Horovod or with hvtrain's Python package: bench_exchange's question, its gradients and its update, for the same
model's tensors.

    torchrun --nproc-per-node 2 torch_exchange.py ddp     --model resnet50 --rounds 9
    mpirun -np 2 python         torch_exchange.py horovod --model resnet50 --rounds 9
    mpirun -np 2 python         torch_exchange.py hvtrain --model resnet50 --rounds 9

No forward or backward pass runs. Before each round every rank writes its gradients, untimed. Horovod and
hvtrain find them in place and their optimizers exchange and update; DDP's reducer is driven by autograd, so
it gets them from a function whose backward hands out what was written. A round is timed on the slowest rank.
Gradients are small multiples of a power of two, so that every order of adding gives the same sum; the weights
at the end must equal those of one process that was given the mean, to the bit where ranks are a power of two.
Prints one JSON row on rank 0.
"""
import argparse
import json
import statistics
import time

import torch

import group
from torch_train import make_model


class HandOut(torch.autograd.Function):
    """A scalar that depends on all parameters, and whose gradient in them is what `ready` holds. The list is
    emptied, so that autograd may take the tensors without a copy, as it takes those of a real backward pass."""

    @staticmethod
    def forward(ctx, ready, *params):
        ctx.ready = ready
        return torch.zeros(())

    @staticmethod
    def backward(ctx, _):
        grads = tuple(ctx.ready)
        ctx.ready.clear()
        return (None, *grads)


class Net(torch.nn.Module):
    def __init__(self, model, ready):
        super().__init__()
        self.model, self.ready = model, ready

    def forward(self):
        return HandOut.apply(self.ready, *self.model.parameters())


def gradients(params, pattern, step):
    """Element i of all, counted through, is (i + step) mod 97 * 2^-10; a view of the pattern."""
    at = step % 97
    for p in params:
        yield pattern[at : at + p.numel()].view_as(p)
        at += p.numel()


class Ddp(group.Gloo):
    def __init__(self, model, sgd):
        super().__init__()
        self.params, self.ready, self.sgd = list(model.parameters()), [], sgd
        self.net = torch.nn.parallel.DistributedDataParallel(Net(model, self.ready))

    def set(self, grads):
        self.sgd.zero_grad()
        self.ready.extend(grads)
        self.loss = self.net()

    def exchange(self):
        self.loss.backward()
        self.sgd.step()


class Horovod(group.Horovod):
    def __init__(self, model, sgd, hvd="horovod.torch"):
        super().__init__(hvd)
        self.hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        self.params = list(model.parameters())
        self.sgd = self.hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())

    def set(self, grads):
        for p, g in zip(self.params, grads):
            p.grad = g

    def exchange(self):
        self.sgd.step()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("peer", choices=["ddp", "horovod", "hvtrain"])
    p.add_argument("--model", default="resnet50")
    p.add_argument("--rounds", type=int, default=9)
    p.add_argument("--fused", action="store_true", help="PyTorch's fused SGD instead of its default one")
    args = p.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    update = {"lr": 0.125, "momentum": 0.5, **({"fused": True} if args.fused else {})}
    model = make_model(args.model, "imagenet", 1000)
    plain = [q.detach().clone().requires_grad_() for q in model.parameters()]
    alone = torch.optim.SGD(plain, **update)
    pattern = (torch.arange(sum(q.numel() for q in plain) + 97) % 97).float() * 2**-10
    sgd = torch.optim.SGD(model.parameters(), **update)
    package = "hvtrain" if args.peer == "hvtrain" else "horovod.torch"
    peer = Ddp(model, sgd) if args.peer == "ddp" else Horovod(model, sgd, package)
    seconds = []
    for r in range(-3, args.rounds):  # three to warm up: DDP lays its buckets anew after the first
        peer.set([g.clone() for g in gradients(peer.params, pattern, r + 3 + peer.rank)])
        peer.barrier()
        start = time.perf_counter()
        peer.exchange()
        if r >= 0:
            seconds.append(time.perf_counter() - start)
        everyone = zip(*(gradients(plain, pattern, r + 3 + k) for k in range(peer.size)))
        for q, grads in zip(plain, everyone):
            q.grad = sum(grads) / peer.size
        alone.step()
    even = peer.size & (peer.size - 1) == 0
    same = all(torch.equal(a, b) if even else torch.allclose(a, b) for a, b in zip(peer.params, plain))
    *seconds, wrong = peer.most([*seconds, float(not same)])
    if peer.rank == 0:
        row = {"way": args.peer, "tensors": len(plain), "elements": sum(q.numel() for q in plain)}
        row |= {"wrong": True} if wrong else {
            "median_ms": 1e3 * statistics.median(seconds), "least_ms": 1e3 * min(seconds)}
        print(json.dumps(row), flush=True)
    peer.close()


if __name__ == "__main__":
    main()
