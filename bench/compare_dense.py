#!/usr/bin/env python3
"""hvtrain beside PyTorch with outputs that are images: a U-Net on drawn shapes (cross-entropy of pixels) and an
autoencoder (mse), from the same first weights, on the same images in the same order.

    bench/compare_dense.py --build build --python venv/bin/python --data-dir CIFAR

Each seed is a round: hvtrain, then PyTorch in its layouts, all on the same --threads cores.

img_s      images per second: the median update of a run, then the median over the seeds
ratio      img_s over that of the faster PyTorch layout
losses     the largest relative difference of the first ten losses from PyTorch's in the first of --layouts, both in f32
score      mean IoU of the test images in percent, or their mean squared error, of each seed

hvtrain reads and normalises its images in every step; PyTorch's lie ready in memory. The table goes to the terminal,
everything measured to bench/results/DATE-dense.json.
"""
import statistics
import tempfile
from pathlib import Path

import common

CASES = {"unet": 0.05, "unet-bilinear": 0.05, "autoencoder": 0.5}  # and the learning rate
WARMUP = 2  # steps
LAYOUTS = ["nchw", "channels_last"]


def torchs(mode, net, folder, seed, *more):
    return common.output_of([args.python, common.PEERS / "torch_dense.py", mode, "--net", net, "--folder", folder, "--seed",
                             seed, "--side", args.side, "--width", args.width, "--threads", args.threads, *more])


def recipe(net):
    return ["--batch", args.batch, "--epochs", args.epochs, "--lr", CASES[net]]


def ours(net, folder, seed):
    log, loss = folder / "log", "mse" if net == "autoencoder" else "ce"
    common.output_of([args.build / "hvtrain", "--model", folder / "net.pt2", "--data", "npy", "--data-dir", folder, "--loss",
                      loss, *recipe(net), "--mean", 0, "--std", 1, "--threads", args.threads, "--seed", seed, "--print-freq", 1,
                      "--log", log, "--quiet"])
    records = common.records(log)
    steps = [r for r in records if r["record"] == "step"]
    last = [r for r in records if r["record"] == "eval"][-1]
    return {"losses": [r["loss"] for r in steps], "img_s": statistics.median(r["img_s"] for r in steps[WARMUP:]),
            "score": last["loss"] if loss == "mse" else last["miou"] / 100}


def peers(net, folder, seed, layout):
    result = common.torch_result(torchs("train", net, folder, seed, *recipe(net), "--layout", layout))
    return result | {"img_s": args.batch / statistics.median(result.pop("seconds")[WARMUP:])}


def measure(net):
    """Rounds of each program, one per seed."""
    rounds = {name: [] for name in ["hvtrain", *args.layouts]}
    for seed in args.seeds:
        with tempfile.TemporaryDirectory() as folder:
            folder = Path(folder)
            data = ["--data-dir", args.data_dir] if args.data_dir else []
            torchs("make", net, folder, seed, "--images", args.images, *data)
            rounds["hvtrain"].append(ours(net, folder, seed))
            for layout in args.layouts:
                rounds[layout].append(peers(net, folder, seed, layout))
    return rounds


def main():
    common.need(args.build, "hvtrain")
    common.need_modules(args.python, "torch, numpy")
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "threads": args.threads,
               "batch": args.batch, "side": args.side, "width": args.width, "images": args.images, "epochs": args.epochs, "cases": []}
    print(f"{args.epochs} epochs of {args.images} images, batch {args.batch}, {args.threads} thread(s), U-Net of {args.width} "
          f"channels at {args.side}x{args.side}, commit {results['commit']}")
    print(f"{'':14} {'':14} {'img_s':>7} {'spread':>13} {'ratio':>6} {'losses':>8}  score of each seed")
    for net in args.only or CASES:
        rounds = measure(net)
        speed = {name: statistics.median(r["img_s"] for r in all_) for name, all_ in rounds.items()}
        for name, all_ in rounds.items():
            apart = max(abs(a / b - 1) for one, other in zip(all_, rounds[args.layouts[0]])
                        for a, b in zip(one["losses"][:10], other["losses"][:10]))
            speeds = [r["img_s"] for r in all_]
            digits = ".6f" if net == "autoencoder" else ".2%"
            print(f"{net:14} {name:14} {speed[name]:7.1f} {min(speeds):6.1f}-{max(speeds):<6.1f} "
                  f"{speed[name] / max(speed[l] for l in args.layouts):6.2f} {apart:8.1e}  "
                  f"{' '.join(format(r['score'], digits) for r in all_)}", flush=True)
        results["cases"].append({"net": net, "rounds": rounds})
        common.save(results, args.out)
    print(f"written: {args.out}")


p = common.parser(__doc__, python="a Python that has torch")
p.add_argument("--data-dir", type=Path, help="CIFAR-10's binary version; without it noise")
p.add_argument("--only", action="append", choices=CASES, help="a net; may be repeated (default: all)")
p.add_argument("--layouts", type=common.several(), default=LAYOUTS, help="PyTorch's")
p.add_argument("--seeds", type=common.several(int), default=[1, 2, 3])
p.add_argument("--epochs", type=int, default=3)
p.add_argument("--images", type=int, default=1000, help="for training; a fifth of that for the test")
p.add_argument("--side", type=int, default=64, help="of the U-Net's images")
p.add_argument("--width", type=int, default=16, help="channels of the U-Net's first block")
p.add_argument("--batch", type=int, default=16)
p.add_argument("--threads", type=int, default=2)
p.add_argument("--out", type=Path, default=common.dated("dense.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
