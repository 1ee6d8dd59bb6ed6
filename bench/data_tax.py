#!/usr/bin/env python3
"""What training loses to its data: ResNet-18 at 224 x 224 from JPEG files on all cores, beside drawn images of the same
size (--data synth). Runs are interleaved.

    bench/data_tax.py --build build --tar imagenet-sample.tar

ms         of an image: the median of a run's updates, then of the rounds
decode     ms of one core for an image: what bench_loader takes from file to batch without its last part, which drawn
           images have too
allowed    the ms of drawn images, 1 % more, and decode / cores
drawing    the ms of one core that a drawn image takes: part of the comparison's other side

One process, --threads threads (default: the cores), workers as hvtrain chooses them.
"""
import os
import re
import statistics
import tempfile
from pathlib import Path

import common
import pictures

WARMUP = 2  # steps
AUGMENT = ("--augment", "rrc,flip", "--mean", "imagenet", "--std", "imagenet", "--size", 224)


def train(*data):
    """ms of an image."""
    with tempfile.TemporaryDirectory() as temporary:
        log = Path(temporary) / "log"
        common.output_of([args.build / "hvtrain", "--model", args.model, "--batch", args.batch, "--threads",
                          args.threads, "--steps", WARMUP + args.steps, "--amp", args.amp, "--lr", "0.001",
                          "--print-freq", 1, "--eval-freq", 0, "--log", log, *AUGMENT, *data])
        speeds = [r["img_s"] for r in common.records(log) if r["record"] == "step"][WARMUP:]
    return 1e3 / statistics.median(speeds)


def fetch(*data):
    """ms of one core for an image until the device takes it over."""
    text = common.output_of(["taskset", "-c", common.first_core(), args.build / "bench" / "bench_loader", "--batch", 32,
                             "--threads", 1, "--workers", 0, "--max-time", f"{args.seconds:g}s", *AUGMENT, *data])
    parts = re.search(r"^read ([\d.]+), decode ([\d.]+), resample ([\d.]+) us", text, re.M)
    return sum(map(float, parts.groups())) / 1e3


def main():
    common.need(args.build, "hvtrain", "bench/bench_loader")
    cores = len(os.sched_getaffinity(0))
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "cores": cores,
               "model": args.model, "batch": args.batch, "threads": args.threads, "amp": args.amp}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        pictures.tree(args.tar, folder, args.files)
        field = {"folder": ("--data", "folder", "--data-dir", folder),
                 "synth": ("--data", "synth", "--samples", args.batch * (WARMUP + args.steps))}
        ms = {name: [] for name in field}
        one_core = {name: fetch(*data) for name, data in field.items()}
        for n in range(args.rounds):
            for name, data in field.items():
                ms[name].append(train(*data))
            print(f"round {n + 1}: " + ", ".join(f"{name} {m[-1]:.2f} ms" for name, m in ms.items()), flush=True)
    results.update(ms=ms, one_core_ms=one_core)
    folder, synth = (statistics.median(ms[name]) for name in ("folder", "synth"))
    print(f"{args.model} at 224 x 224, batch {args.batch}, {args.amp}, {args.threads} threads on {cores} cores, commit "
          f"{results['commit']}: folder {folder:.2f} ms, synth {synth:.2f} ms, decode {one_core['folder']:.2f} ms, "
          f"drawing {one_core['synth']:.2f} ms\nslower by {folder - synth:.2f} ms, {100 * (folder / synth - 1):.1f} %; "
          f"allowed {1.01 * synth + one_core['folder'] / cores:.2f} ms, which is "
          f"{0.01 * synth + one_core['folder'] / cores:.2f} ms more")
    common.save(results, args.out)
    print(f"written: {args.out}")


p = common.parser(__doc__)
p.add_argument("--tar", type=Path, required=True, help="of JPEG files")
p.add_argument("--files", type=int, default=5000, help="so many at least")
p.add_argument("--work", type=Path, help="a folder for the files, which stay there (default: one in /tmp)")
p.add_argument("--model", default="resnet18")
p.add_argument("--batch", type=int, default=32)
p.add_argument("--steps", type=int, default=12, help="that are timed")
p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
p.add_argument("--amp", choices=["f32", "bf16"], default="f32")
p.add_argument("--seconds", type=float, default=10, help="of the runs without training")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--out", type=Path, default=common.dated("data-tax.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
