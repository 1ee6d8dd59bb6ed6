#!/usr/bin/env python3
"""ResNet-50's speed on an H200, foretold from the launches of a step: 224x224, bf16, one GPU.

    predict.py LAUNCHES GPU.json            the prediction; predicted.txt beside this file is what it prints
    predict.py LAUNCHES GPU.json --plans F  and each convolution's time against those that a run has measured:
                                            F is its plan cache (~/.cache/hvtrain/plans)
    predict.py LAUNCHES GPU.json --check F  F is what it prints, unless another cuDNN made it (77)

LAUNCHES is the program of this folder. A launch takes

    RAMP + max(FLOP / (TENSOR * 989 TFLOP/s), bytes / (STREAM * 4.8 TB/s)) [/ CONV for convolutions]

Bytes include an engine's workspace, written and read once; engines are those that cuDNN expects to be fastest. CONV,
what cuDNN reaches of that bound, is fitted: with the fusions of MLPerf's best program the same sum shall give what that
did on this GPU. The other constants are assumptions. A fusion takes launches away, and bytes that then need not be
moved; its convolutions reach as much of their bound as before.
"""
import argparse
import collections
import contextlib
import difflib
import io
import re
import subprocess
import sys
from pathlib import Path

PEAK_FLOPS, PEAK_BYTES = 989e12, 4.8e12  # NVIDIA H200's data sheet: bf16, dense; memory
TENSOR, STREAM, RAMP = 0.75, 0.80, 2e-6  # assumed, the last two as in kernels.py
SCENARIOS = {"low": (0.45, 0.60), "high": (0.75, 0.90)}  # CONV, STREAM
MLPERF = 7950  # img/s of a GPU: MLPerf Training v4.0, 8 H200, batch 400 each
BATCH = 256

Launch = collections.namedtuple("Launch", "what op name geometry engine ws moved read written flop")


def flop(what, op, geometry):
    if what == "gemm":
        n, c, k = geometry
        return 2 * n * c * k
    if what == "conv":
        n, h, w, c, k, r, s, stride, pad = geometry
        p, q = (h + 2 * pad - r) // stride + 1, (w + 2 * pad - s) // stride + 1
        return 2 * n * p * q * k * r * s * c
    return 0


def read_launches(program, gpu):
    done = subprocess.run([program, "bf16", str(BATCH), gpu], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{program} ended with {done.returncode}: {done.stderr.strip()}")
    cudnn, *lines = done.stdout.splitlines()
    steps = []
    for line in lines:
        what, op, name, engine, ws, read, written = line.split("\t")
        geometry = tuple(int(n) for n in name.split(",")) if what in ("conv", "gemm") else ()
        read, written, ws = int(read), int(written), int(ws) if geometry else 0
        steps.append(Launch(what, op, name, geometry, engine, ws, read + written + 2 * ws, read, written,
                            flop(what, op, geometry)))
    return cudnn.split("\t")[1], steps


def seconds(launch, conv, stream=STREAM):
    bound = max(launch.flop / (TENSOR * PEAK_FLOPS), launch.moved / ((STREAM if launch.flop else stream) * PEAK_BYTES))
    return RAMP + bound / (conv if launch.what == "conv" else 1)


# ---- fusions: which launches go, and which bytes others no longer move ----

def is_of(launch, op, part):
    return launch.what == "kernel" and launch.op.startswith(op) and part in launch.name


def between(steps):
    """Positions of those batch norms with relu that lie between two convolutions: all but the stem's, which the
    maximum follows."""
    return [i for i, l in enumerate(steps) if l.op == "bn_train relu" and "normalise" in l.name][1:]


def genstats(steps):
    """The sums of batch norm's forward, in the epilogue of the convolution before it; a launch finishes them."""
    return {i: l.moved for i, l in enumerate(steps) if is_of(l, "bn_train", "moments")}, set()


def prologue(steps):
    """Scale, bias and relu, in the prologue of the convolution behind it and of its gradient."""
    gone = set(between(steps))
    return {i: steps[i].moved for i in gone}, gone


def dbn_sums(steps):
    """The sums of batch norm's backward, in the epilogue of the convolution's gradient that makes dy: dy is not read
    once more, x is."""
    gone = [i for i, l in enumerate(steps) if l.op == "bn_backward relu" and "slopes" in l.name][:-1]
    return {i: steps[i].moved // 2 for i in gone}, set(gone)


def dbn_prologue(steps):
    """The gradient of batch norm's input, in the prologue of the two gradients of the convolution before it: it is
    not written, and x is read with dy instead of it alone; the stem has one gradient."""
    saved = {}
    for i, l in enumerate(steps):
        if is_of(l, "bn_backward", "dx_lane"):
            x = l.written if l.op != "bn_backward add relu" else l.moved // 3
            saved[i] = l.moved - 2 * x
    saved[max(saved)] += steps[max(saved)].written
    return saved, set(saved)


def relu_bits(steps):
    """Not a fusion: relu's mask of a block's last batch norm as a bit, where y is read for it."""
    gone = {i: l for i, l in enumerate(steps) if l.op == "bn_backward add relu" and "slopes" in l.name}
    return {i: l.written - l.written // 16 for i, l in gone.items()}, None


FUSIONS = {"genstats epilogue": genstats, "scale-bias-relu prologue": prologue,
           "dBN sums in the epilogue": dbn_sums, "dBN in the next prologue": dbn_prologue,
           "relu's mask as bits": relu_bits}
MLPERF_FUSIONS = (genstats, prologue, dbn_sums)


def total(steps, conv, fusions=(), stream=STREAM):
    """Seconds of a step. What a fused launch still moves is moved by the convolution, at the convolution's share."""
    changed = [fusion(steps) for fusion in fusions]
    time = sum(seconds(l, conv, stream) for l in steps)
    for saved, gone in changed:
        for i, less in saved.items():
            if gone is None:  # the launch stays and moves less
                time -= less / (STREAM * PEAK_BYTES)
                continue
            left = steps[i].moved - less
            time -= seconds(steps[i], conv) - left / (STREAM * PEAK_BYTES) / conv - (0 if i in gone else RAMP)
    return time


def fit(steps):
    low, high = 0.1, 1.5
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (low, middle) if total(steps, middle, MLPERF_FUSIONS) < BATCH / MLPERF else (middle, high)
    return low


# ---- what is printed ----

def kind_of(launch):
    if launch.what in ("conv", "gemm"):
        return f"{launch.what} {launch.op.replace('_add', '')}"
    for part, name in (("moments", "batch norm, sums"), ("normalise", "batch norm, apply"),
                       ("slopes", "batch norm backward, sums"), ("dx_lane", "batch norm backward, apply"),
                       ("_op", "update and casts"), ("window_", "pooling"), ("mean_", "pooling")):
        if part in launch.name:
            return name
    return "other"


def print_terms(steps, conv):
    rows = collections.defaultdict(lambda: [0, 0, 0, 0.0])
    for l in steps:
        row = rows[kind_of(l)]
        row[0] += 1
        row[1] += l.moved
        row[2] += l.flop
        row[3] += seconds(l, conv) - RAMP
    rows = sorted(rows.items(), key=lambda r: -r[1][3])
    print(f"{'term':28} {'launches':>8} {'GB':>7} {'GFLOP':>8} {'ms':>7}")
    for name, (count, moved, flops, time) in rows:
        print(f"{name:28} {count:8} {moved / 1e9:7.2f} {flops / 1e9:8.0f} {time * 1e3:7.2f}")
    print(f"{'between launches':28} {len(steps):8} {'':16} {RAMP * len(steps) * 1e3:7.2f}")
    all_ = total(steps, conv)
    print(f"{'step':28} {len(steps):8} {sum(l.moved for l in steps) / 1e9:7.2f} "
          f"{sum(l.flop for l in steps) / 1e9:8.0f} {all_ * 1e3:7.2f}  = {BATCH / all_:.0f} img/s")
    for name, (share, stream) in SCENARIOS.items():
        print(f"{name}: convolutions at {share:.2f} of their bound, the other kernels at {stream:.0%} of 4.8 TB/s: "
              f"{BATCH / total(steps, share, (), stream):.0f} img/s")


def print_fusions(steps, conv):
    base, done = total(steps, conv), []
    print(f"\n{'fusion':28} {'alone: ms less':>15} {'img/s':>6} {'with those above: img/s':>24}")
    for name, fusion in FUSIONS.items():
        done.append(fusion)
        alone, together = total(steps, conv, [fusion]), total(steps, conv, done)
        print(f"{name:28} {(base - alone) * 1e3:15.2f} {BATCH / alone:6.0f} {BATCH / together:24.0f}")


def print_convolutions(steps, conv, measured):
    shapes = collections.Counter((l.op, l.geometry) for l in steps if l.what == "conv")
    one = {(l.op, l.geometry): l for l in steps if l.what == "conv"}
    print("\nEach convolution; MiB: workspace of cuDNN's first choice")
    print(f"{'n,h,w,c,k,r,s,stride,pad':32} {'pass':14} {'times':>5} {'MiB':>5} {'us':>7} {'bound':>6}"
          + (f" {'measured':>8} {'ratio':>6}" if measured is not None else ""))
    sums = [0.0, 0.0]
    for (op, geometry), times in sorted(shapes.items(), key=lambda s: (s[0][1], s[0][0])):
        l = one[op, geometry]
        us = (seconds(l, conv) - RAMP) * 1e6
        bound = "FLOP" if l.flop / (TENSOR * PEAK_FLOPS) > l.moved / (STREAM * PEAK_BYTES) else "bytes"
        line = f"{l.name:32} {op:14} {times:5} {l.ws / 2**20:5.1f} {us:7.1f} {bound:>6}"
        if measured is not None:
            got = measured.get((op, geometry))
            line += f" {got:8.1f} {got / us:6.2f}" if got else f" {'-':>8} {'-':>6}"
            if got:
                sums = [sums[0] + times * us, sums[1] + times * got]
        print(line)
    if measured is not None:
        if not sums[0]:
            sys.exit("predict: the plan cache has none of these convolutions")
        print(f"of those measured: {sums[0] / 1e3:.2f} ms predicted, {sums[1] / 1e3:.2f} ms measured, "
              f"ratio {sums[1] / sums[0]:.2f}")


def read_plans(path):
    """us of each pass and geometry in bf16."""
    with open(path, errors="replace") as lines:
        pattern = (r"\S+ ([0-9.]+) .*, (forward|backward_x|backward_w) bf16 to bf16 n(\d+) h(\d+) w(\d+) c(\d+) k(\d+) "
                   r"r(\d+) s(\d+) stride(\d+) pad(\d+)( add)?$")
        found = [m for m in (re.match(pattern, line.rstrip("\n")) for line in lines) if m]
    return {(m[2] + "_add" * bool(m[12]), tuple(int(m[i]) for i in range(3, 12))): float(m[1]) for m in found}


def print_all(cudnn, steps, measured):
    conv = fit(steps)
    print(f"ResNet-50, 224x224, bf16, batch {BATCH}, one H200, plans of cuDNN {cudnn}. Assumed: {TENSOR:.0%} of 989 "
          f"TFLOP/s,\n{STREAM:.0%} of 4.8 TB/s, {RAMP * 1e6:g} us a launch. Fitted: convolutions at {conv:.2f} of that "
          f"bound, so that MLPerf's\nfusions give {MLPERF} img/s.\n")
    print_terms(steps, conv)
    print_fusions(steps, conv)
    print_convolutions(steps, conv, measured)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("launches")
    options.add_argument("gpu")
    options.add_argument("--plans")
    options.add_argument("--check")
    given = options.parse_args()
    cudnn, steps = read_launches(given.launches, given.gpu)
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        print_all(cudnn, steps, read_plans(given.plans) if given.plans else None)
    if not given.check:
        print(text.getvalue(), end="")
        return
    was = Path(given.check).read_text()
    if f"cuDNN {cudnn}" not in was.splitlines()[0]:
        print(f"{given.check} is of another cuDNN than {cudnn}: not compared")
        sys.exit(77)
    wrong = list(difflib.unified_diff(was.splitlines(), text.getvalue().splitlines(), "as committed", "as predicted",
                                      lineterm="", n=0))
    print(*wrong, sep="\n")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
