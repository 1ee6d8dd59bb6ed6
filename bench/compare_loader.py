#!/usr/bin/env python3
"""From JPEG files to batches of 224 x 224 floats on one core: hvtrain's loader beside those of torchvision and DALI,
beside libjpeg-turbo alone, and from shards of pixels. Rounds are interleaved A B C A B C.

    bench/compare_loader.py --build build --python venv/bin/python --tar imagenet-sample.tar
    bench/compare_loader.py ... --dali dali-venv/bin/python      where DALI has a Python of its own
    bench/compare_loader.py ... --costs                          hvtrain alone: what each augmentation costs
    bench/compare_loader.py ... --augment trivial --erase 0.1 --mixup 0.2      beside torchvision with the same

hvtrain        bench_loader: read, decode, random box, flip, normalise
raw shards     the same from what `hvtrain pack --raw --resize 256` makes of the files
jpeg bound     bench_jpeg_bound: the decoding of the same boxes, scaled and cropped, from memory
Pillow         torchvision's ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize
decode_jpeg    torchvision.io's decoder with transforms v2
timm           create_transform() and Mixup
DALI           on the CPU: file reader, image_random_crop, resize, crop_mirror_normalize

img_s     images per second: median of the rounds, the least and the most
cpu_us    processor time of an image in microseconds, median; other programs on the machine change it less
ratio     hvtrain's img_s over this one's: median of the rounds' ratios; with --costs that of no augmentation
cpu       the same ratio of processor times, this one's over hvtrain's

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
COSTS = {"trivial": "trivial", "rand": "rand:2,9", "auto": "auto", "color": "color:0.4,0.4,0.4,0.1"}


def limit():
    return ["--max-time", f"{args.seconds:g}s"]


def more():
    """Of hvtrain and of torch_loader.py alike."""
    return ["--erase", args.erase, "--mixup", args.mixup]


def ours(*data, augment=None, more=()):
    words = ",".join(["rrc,flip", *([augment] if augment else [])])
    return [args.build / "bench" / "bench_loader", *data, *more, "--size", 224, "--augment", words, "--mean", "imagenet",
            "--std", "imagenet", "--batch", args.batch, "--threads", 1, "--workers", 0, *limit()]


def peer(python, way, folder):
    return [python, common.PEERS / "torch_loader.py", way, folder / "train", "--batch", args.batch, "--seconds",
            args.seconds, *(["--augment", args.augment, *more()] if way != "dali" else [])]


def contenders(folder):
    files, shards = ("--data", "folder", "--data-dir", folder), ("--data", "tar", "--data-dir", folder / "raw")
    changed = args.augment != "none" or args.erase or args.mixup
    if args.costs:
        erase, mixup = ["--erase", 0.1], ["--mixup", 0.2]
        return {"hvtrain": ours(*files), **{name: ours(*files, augment=words) for name, words in COSTS.items()},
                "erase": ours(*files, more=erase), "mixup": ours(*files, more=mixup),
                "cutmix": ours(*files, more=["--cutmix", 1]),
                "trivial+erase+mixup": ours(*files, augment="trivial", more=erase + mixup)}
    found = {"hvtrain": ours(*files, augment=COSTS.get(args.augment), more=more())}
    if not changed:
        found["raw shards"] = ours(*shards)
        found["jpeg bound"] = [args.build / "bench" / "bench_jpeg_bound", *files, *limit()]
    if common.has(args.python, "torchvision"):
        found["Pillow"] = peer(args.python, "pillow", folder)
        found["decode_jpeg"] = peer(args.python, "decode_jpeg", folder)
    if changed and args.augment != "trivial" and common.has(args.python, "timm"):
        found["timm"] = peer(args.python, "timm", folder)
    if not changed and common.has(args.dali or args.python, "nvidia.dali"):
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
    cpu = re.search(r"^cpu ([\d.]+) us of an image$", text, re.M)
    return {"img_s": float(re.search(r"^total ([\d.]+) img/s$", text, re.M)[1]), "cpu": float(cpu[1]) if cpu else None,
            "text": text}


def show(rounds):
    speed = {name: [r["img_s"] for r in runs] for name, runs in rounds.items()}
    ratio = {name: statistics.median(a / b for a, b in zip(speed["hvtrain"], rates)) for name, rates in speed.items()}
    best = min((n for n in BEST if n in speed), key=ratio.get, default=None)
    asked = {name: f"{least} times" for name, least in [*ASKED.items(), (best, BEST_RATIO)]}
    asked["raw shards"] = f"{RAW} img/s"
    cpu = {name: [r["cpu"] for r in runs] for name, runs in rounds.items() if all(r["cpu"] for r in runs)}
    changed = args.augment != "none" or args.erase or args.mixup
    print(f"{'':20}{'img_s':>8} {'spread':>15} {'ratio':>7} {'cpu_us':>8} {'cpu':>6}   {'' if changed else 'asked'}")
    for name, rates in speed.items():
        times = f"{'':8} {'':6}" if name not in cpu else f"{statistics.median(cpu[name]):8.1f} " \
            f"{statistics.median(b / a for a, b in zip(cpu['hvtrain'], cpu[name])):6.3f}"
        print(f"{name:20}{statistics.median(rates):8.0f} {min(rates):7.0f}-{max(rates):<7.0f} "
              f"{ratio[name]:7.3f} {times}   {'' if changed else asked.get(name, '')}")
    for name in rounds:
        middle = sorted(rounds[name], key=lambda r: r["img_s"])[len(rounds[name]) // 2]
        for line in middle["text"].splitlines():
            if line.startswith("read "):
                print(f"{name}: {line}")


def main():
    common.need(args.build, "hvtrain", "bench/bench_loader", "bench/bench_jpeg_bound")
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "rounds": args.rounds,
               "batch": args.batch}
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.work or Path(temporary)
        results["files"] = pictures.tree(args.tar, folder, args.files)
        if not args.costs:
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
p.add_argument("--costs", action="store_true", help="measure each augmentation of hvtrain beside none")
p.add_argument("--augment", choices=["none", "trivial", "rand"], default="none", help="operations of all contenders")
p.add_argument("--erase", type=float, default=0, help="probability of RandomErasing")
p.add_argument("--mixup", type=float, default=0, help="alpha of MixUp")
p.add_argument("--core", type=int, default=common.first_core())
p.add_argument("--batch", type=int, default=32)
p.add_argument("--seconds", type=float, default=10, help="of each run")
p.add_argument("--rounds", type=int, default=5)
p.add_argument("--out", type=Path, default=common.dated("loader.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
