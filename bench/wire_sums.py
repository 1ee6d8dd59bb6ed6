#!/usr/bin/env python3
"""What is lost where gradients are summed in 16 bits, as NCCL does it: wire_sums.py [ELEMENTS]. Needs NumPy.

Every rank's gradient is rounded to the wire's type, and each addition rounds again: ring, one rank after the other, as
NCCL's rings and a chain of hosts do; tree, pairs of pairs, as its trees do between hosts; f32, added in f32 along
the tree and rounded once, as hvtrain's own comms do. Column noise: standard deviation between ranks over the mean
that they have in common: 0, all ranks agree; 10, single gradients are mostly noise.

error: of the sum, root mean square, as a fraction of the exact sum's. kept: the part of the sum that lies in its
direction (exact . sum / exact . exact): below 1 the update is too short, however small its noise.
"""
import argparse
import sys

try:
    import numpy as np
except ImportError:
    sys.exit(f"{sys.executable} has no numpy; run this by a Python that has")

RANKS = [8, 64, 512, 4096]
NOISE = [0.1, 1, 10]


def bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)).view(np.float32)


def f16(x):
    return x.astype(np.float16).astype(np.float32)


def ring(grads, rounded):
    total = grads[0]
    for g in grads[1:]:
        total = rounded(total + g)
    return total


def tree(grads, rounded):
    while len(grads) > 1:
        grads = rounded(grads[0::2] + grads[1::2])
    return grads[0]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("elements", nargs="?", type=int, default=4000, help="of a gradient (4000)")
    elements = p.parse_args().elements
    draws = np.random.default_rng(1)

    print(f"{'wire':5}{'noise':>6}{'ranks':>6}   " + "".join(f"{w:>9} error {'kept':>6}" for w in ("ring", "tree", "f32")))
    for name, rounded in ("bf16", bf16), ("f16", f16):
        for noise in NOISE:
            for ranks in RANKS:
                mean = draws.standard_normal(elements, np.float32)
                grads = rounded(mean + np.float32(noise) * draws.standard_normal((ranks, elements), np.float32))
                exact = grads.astype(np.float64).sum(0)
                sums = ring(grads, rounded), tree(grads, rounded), rounded(tree(grads, lambda x: x))
                print(f"{name:5}{noise:6g}{ranks:6}   " + "".join(
                    f"{100 * np.linalg.norm(s - exact) / np.linalg.norm(exact):13.2f} % {s @ exact / (exact @ exact):6.3f}"
                    for s in sums))


if __name__ == "__main__":
    main()
