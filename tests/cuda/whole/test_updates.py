#!/usr/bin/env python3
"""Ten updates of a ResNet-18 on device cuda, by its doubles, against ref: test_updates.py HVTRAIN-DOUBLE [SIZE BATCH].

The updates run in three orders of blocks and threads: forward, backward, and drawn from a seed. All three give the
same bits, losses and weights alike: the promise of a plan. Against ref sums are taken in another order, which ten
updates with momentum enlarge: a loss is within 1e-5, and each tensor's difference has at most a thousandth of its
norm. From the fourth update on the step is a captured graph. The average of the weights (--ema), taken after updates 1,
4, 7 and 10, is held against ref's like the weights. Gradients are clipped to a norm of 20; that of the first one is
beyond 32. SIZE and BATCH are the images' (default 16 and 4).
"""
import array
import json
import os
import struct
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

HVTRAIN = sys.argv[1]
SIZE, BATCH = sys.argv[2:4] or ("16", "4")
UPDATES = 10
ORDERS = {"forward": "0", "backward": "1", "drawn": "7"}
NET = ["--model", "resnet18", "--stem", "cifar", "--data", "synth", "--samples", str(UPDATES * int(BATCH)), "--size",
       SIZE, "--batch", BATCH, "--steps", str(UPDATES), "--print-freq", "1", "--eval-freq", "0", "--lr", "0.002",
       "--seed", "1", "--ema", "0.5:every=3", "--clip-grad-norm", "20", "--quiet", "on"]


def tensors(path):
    """Name -> values of the floats in a file of safetensors."""
    data = path.read_bytes()
    start = 8 + struct.unpack("<Q", data[:8])[0]
    found = {}
    for name, about in json.loads(data[8:start]).items():
        if name != "__metadata__" and about["dtype"] == "F32":
            first, end = about["data_offsets"]
            found[name] = array.array("f", data[start + first:start + end])
    return found


def run(where):
    """Losses, hash of the weights, and the weights of ten updates."""
    device = ["--device", "ref"] if where == "ref" else ["--device", "cuda", "--deterministic", "on"]
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        env = {**os.environ, "XDG_CACHE_HOME": folder, "HVT_TEST_ORDER": ORDERS.get(where, "0")}
        done = subprocess.run([HVTRAIN, *NET, *device, "--save", folder, "--log", str(log)], capture_output=True,
                              text=True, env=env)
        if done.returncode:
            sys.exit(f"{where}: ended with {done.returncode}:\n{done.stderr[-4000:]}")
        records = [json.loads(line) for line in log.read_text().splitlines()]
        if where != "ref" and records[0]["graph"] != "on":
            sys.exit(f"{where}: no step was captured")
        losses = [r["loss"] for r in records if r["record"] == "step"]
        average = tensors(Path(folder) / "last.safetensors")
        raw = tensors(Path(folder) / "gen-000001.raw.safetensors")
        if average.keys() != raw.keys() or average == raw:
            sys.exit(f"{where}: {len(average)} averages of {len(raw)} tensors, or nothing was averaged")
        return losses, records[-1]["weights"], {**raw, **{name + ", averaged": x for name, x in average.items()}}


def norm(values):
    return sum(x * x for x in values) ** 0.5


def main():
    with ThreadPoolExecutor(2) as pool:
        ref, *ordered = pool.map(run, ["ref", *ORDERS])
    bad = 0
    for name, got in zip(ORDERS, ordered):
        off = max(abs(a - b) for a, b in zip(got[0], ref[0]))
        print(f"{name}: weights {got[1]}, losses within {off:.1e} of ref's")
        if len(got[0]) != UPDATES or off > 1e-5:
            print(f"{got[0]} against {ref[0]}")
            bad += 1
        if got != ordered[0]:
            print(f"{name}: other bits than {next(iter(ORDERS))}: {got[:2]}, {ordered[0][:2]}")
            bad += 1
    worst = ("", 0.0)
    for name, want in ref[2].items():
        share = norm(a - b for a, b in zip(ordered[0][2][name], want)) / (norm(want) or 1)
        worst = max(worst, (name, share), key=lambda w: w[1])
    print(f"{len(ref[2])} tensors, the farthest from ref's by {worst[1]:.1e} of its norm: {worst[0]}")
    sys.exit(bool(bad or worst[1] > 1e-3))


if __name__ == "__main__":
    main()
