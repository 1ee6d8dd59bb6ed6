#!/usr/bin/env python3
"""Rounding errors of 3x3 convolutions in f32, ours beside PyTorch's, as a Markdown table.

    conv_error.py BENCH_OPS [MODEL ...]

Each figure is the root of the mean square of y, dx and dw's errors against f64, each as a part of the sum of its
absolute products, in units of 1e-8. Batches of 16, uniform in [-0.5, 0.5). Ours are bench_ops --errors with --tile 1, 2
and 4; TF32 is what rounding both factors to 11 bits costs, with exact sums.
"""

import argparse
import re
import shutil
import subprocess
import sys

try:
    import torch
except ImportError:
    sys.exit(f"{sys.executable} has no torch; run this by a Python that has")

BATCH = 16


def tf32(x):
    bits = x.view(torch.int32)
    return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)


def passes(x, w, dy):
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = torch.nn.functional.conv2d(x, w, padding=1)
    y.backward(dy)
    return y.detach(), x.grad, w.grad


def errors(got, exact, size):
    return [(((a.double() - b) / c) ** 2).mean().sqrt().item() for a, b, c in zip(got, exact, size)]


def peer(channels, filters, side):
    torch.manual_seed(1)
    x, w, dy = (torch.rand(*s) - 0.5 for s in ((BATCH, channels, side, side), (filters, channels, 3, 3),
                                               (BATCH, filters, side, side)))
    exact = passes(x.double(), w.double(), dy.double())
    size = passes(x.double().abs(), w.double().abs(), dy.double().abs())
    rounded = passes(tf32(x).double(), tf32(w).double(), tf32(dy).double())
    return errors(passes(x, w, dy), exact, size), errors(rounded, exact, size)


def ours(bench, model, tile):
    """{(c, k, side): errors} of the layers that a tile of more than 1 output may compute."""
    out = subprocess.run([bench, "--model", model, "--batch", str(BATCH), "--tile", tile, "--errors"],
                         check=True, text=True, stdout=subprocess.PIPE).stdout
    rows = re.findall(r"^ *(\d+) -> +(\d+), 3x3/1 at +(\d+) .* errors (\S+) (\S+) (\S+)$", out, re.M)
    return {tuple(map(int, r[:3])): list(map(float, r[3:])) for r in rows}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("bench_ops", help="the program (ninja -C BUILD bench/bench_ops)")
    p.add_argument("models", nargs="*", default=["resnet20", "resnet18"])
    args = p.parse_args()
    if not shutil.which(args.bench_ops):
        p.error(f"there is no program {args.bench_ops}; to build: ninja -C BUILD bench/bench_ops")
    torch.set_num_threads(1)
    text = lambda e: ", ".join(f"{1e8 * v:.2g}" for v in e)
    print(f"PyTorch {torch.__version__}\n")
    print("| y, dx, dw: 1e-8 | direct | F(2×2) | F(4×4) | PyTorch | TF32 |\n|---|---|---|---|---|---|")
    for model in args.models:
        found = [ours(args.bench_ops, model, t) for t in ("1", "2", "4")]
        for layer in found[0]:
            if layer[0] < 16:
                continue
            torch_error, tf32_error = peer(*layer)
            print(f"| {layer[0]} → {layer[1]} at {layer[2]}×{layer[2]} |",
                  " | ".join(text(f[layer]) for f in found), f"| {text(torch_error)} | {text(tf32_error)} |",
                  flush=True)


main()
