#!/usr/bin/env python3
"""From JPEG files to batches of 224 x 224 floats on one core: hvtrain's loader beside those of torchvision and DALI,
beside libjpeg-turbo alone, and from shards of pixels. Rounds are interleaved A B C A B C.

    bench/compare_loader.py --build build --python venv/bin/python --tar imagenet-sample.tar
    bench/compare_loader.py ... --dali dali-venv/bin/python      where DALI has a Python of its own

hvtrain        bench_loader: read, decode, random box, flip, normalise
raw shards     the same from what `hvtrain pack --raw --resize 256` makes of the files
jpeg bound     bench_jpeg_bound: the decoding of the same boxes, scaled and cropped, from memory
Pillow         torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize
decode_jpeg    torchvision.io's decoder with transforms v2
DALI           on the CPU: file reader, image_random_crop, resize, crop_mirror_normalize

img_s     images per second: median of the rounds, the least and the most
ratio     hvtrain's img_s over this one's: median of the rounds' ratios

Every program has one thread and one core (--core), and no workers. The files are links to those of the tar, as many as
--files asks for, so they come from the page cache. The table goes to the terminal, everything measured to
bench/results/DATE-loader.json.
"""
import re
import statistics
import tempfile
from pathlib import Path

import common
import pictures

ASKED = {"Pillow": 2.5, "jpeg bound": 0.93}  # hvtrain's least ratio to it
BEST, BEST_RATIO = ("decode_jpeg", "DALI"), 1.3
RAW = 3500  # img/s


def limit():
    return ["--max-time", f"{args.seconds:g}s"]


def ours(*data):
    return [args.build / "bench" / "bench_loader", *data, "--size", 224, "--augment", "rrc,flip", "--mean", "imagenet",
            "--std", "imagenet", "--batch", args.batch, "--threads", 1, "--workers", 0, *limit()]


def peer(python, way, folder):
    return [python, common.PEERS / "torch_loader.py", way, folder / "train", "--batch", args.batch, "--seconds",
            args.seconds]


def contenders(folder):
    files, shards = ("--data", "folder", "--data-dir", folder), ("--data", "tar", "--data-dir", folder / "raw")
    found = {"hvtrain": ours(*files), "raw shards": ours(*shards),
             "jpeg bound": [args.build / "bench" / "bench_jpeg_bound", *files, *limit()]}
    if common.has(args.python, "torchvision"):
        found["Pillow"] = peer(args.python, "pillow", folder)
        found["decode_jpeg"] = peer(args.python, "decode_jpeg", folder)
    if common.has(args.dali or args.python, "nvidia.dali"):
        found["DALI"] = peer(args.dali or args.python, "dali", folder)
    return found


def pack(folder):
    if (folder / "raw").exists():
        return
    (folder / "raw").mkdir()
    common.output_of([args.build / "hvtrain", "pack", folder, "--raw", "--resize", 256, "--output",
                      folder / "raw" / "train-%06d.tar"])


def run(command):
    text = common.output_of(["taskset", "-c", args.core, *command])
    return {"img_s": float(re.search(r"^total ([\d.]+) img/s$", text, re.M)[1]), "text": text}


def show(rounds):
    speed = {name: [r["img_s"] for r in runs] for name, runs in rounds.items()}
    ratio = {name: statistics.median(a / b for a, b in zip(speed["hvtrain"], all)) for name, all in speed.items()}
    best = min((n for n in BEST if n in speed), key=ratio.get, default=None)
    asked = {name: f"{least} times" for name, least in [*ASKED.items(), (best, BEST_RATIO)]}
    asked["raw shards"] = f"{RAW} img/s"
    print(f"{'':14}{'img_s':>8} {'spread':>15} {'ratio':>7}   asked")
    for name, all in speed.items():
        print(f"{name:14}{statistics.median(all):8.0f} {min(all):7.0f}-{max(all):<7.0f} "
              f"{ratio[name]:7.3f}   {asked.get(name, '')}")
    for name in ("hvtrain", "raw shards"):
        middle = sorted(rounds[name], key=lambda r: r["img_s"])[len(rounds[name]) // 2]
        print(f"{name}: {next(line for line in middle['text'].splitlines() if line.startswith('read '))}")


def main():
    common.need(args.build, "hvtrain", "bench/bench_loader", "bench/bench_jpeg_bound")
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "rounds": args.rounds,
               "batch": args.batch}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        results["files"] = pictures.tree(args.tar, folder, args.files)
        pack(folder)
        field = contenders(folder)
        rounds = results["runs"] = {name: [] for name in field}
        print(f"{results['machine']['cpu']}, core {args.core}, load {results['machine']['load']}, commit "
              f"{results['commit']}, {results['files']} files, batch {args.batch}, {args.rounds} rounds", flush=True)
        for n in range(args.rounds):
            for name, command in field.items():
                rounds[name].append(run(command))
            print(f"round {n + 1}: " + ", ".join(f"{name} {r[-1]['img_s']:.0f}" for name, r in rounds.items()), flush=True)
    show(rounds)
    common.save(results, args.out)
    print(f"written: {args.out}")


p = common.parser(__doc__, python="a Python that has torch and torchvision")
p.add_argument("--dali", type=common.program, help="a Python that has nvidia.dali (default: --python)")
p.add_argument("--tar", type=Path, required=True, help="of JPEG files")
p.add_argument("--files", type=int, default=5000, help="so many at least")
p.add_argument("--work", type=Path, help="a folder for files and shards, which stay there (default: one in /tmp)")
p.add_argument("--core", type=int, default=common.first_core())
p.add_argument("--batch", type=int, default=32)
p.add_argument("--seconds", type=float, default=10, help="of each run")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--out", type=Path, default=common.dated("loader.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
