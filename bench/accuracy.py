#!/usr/bin/env python3
"""hvtrain beside PyTorch in accuracy: nets that torch.export wrote, trained on CIFAR-10 from the same first weights by
the same recipe, over several seeds.

    bench/accuracy.py --build build --python venv/bin/python --data-dir CIFAR

Both draw the order of images and the flips by generators of their own. top-1 is that of the test images; sd, over the
seeds, says what a difference of two means is worth. The rows go to the terminal, everything to --out.
"""
import statistics
import tempfile
from pathlib import Path

import common

NETS = {"mobilenet_v2": "cifar", "own": None, "resnet20": None}  # and the stem


def torchs(mode, net, seed, *more):
    return common.output_of([args.python, common.PEERS / "torch_train.py", mode,
                             *common.model_options(net, NETS[net]), "--seed", seed, *more])


def recipe():
    return ["--batch", args.batch, "--lr", args.lr, "--momentum", 0.9, "--epochs", args.epochs, "--limit", args.limit,
            "--data-dir", args.data_dir, "--threads", args.threads]


def ours(net, seed):
    with tempfile.TemporaryDirectory() as folder:
        file, log = Path(folder) / "net.pt2", Path(folder) / "log"
        torchs("export", net, seed, "--file", file)
        common.output_of([args.build / "hvtrain", "--model", file, "--data", "cifar10", *recipe(), "--augment", "flip",
                          "--seed", seed, "--log", log, "--quiet"])
        records = common.records(log)
    return {"top1": [r for r in records if r["record"] == "eval"][-1]["top1"],
            "seconds": sum(r["seconds"] for r in records if r["record"] == "epoch")}


def peers(net, seed):
    result = common.torch_result(torchs("accuracy", net, seed, *recipe(), "--layout", "channels_last"))
    return {"top1": result["top1"], "seconds": result["train_seconds"]}


def main():
    common.need(args.build, "hvtrain")
    common.need_modules(args.python, "torch, torchvision, numpy")
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "rows": []}
    print(f"{args.epochs} epochs of {args.limit} images, batch {args.batch}, SGD, rate {args.lr}, momentum 0.9, flips")
    print(f"{'':14} {'':8} {'top-1 % of each seed':>30} {'mean':>7} {'sd':>5} {'s':>7}")
    for net in args.only or NETS:
        for name, measure in ("hvtrain", ours), ("PyTorch", peers):
            runs = [measure(net, seed) for seed in args.seeds]
            top1 = [r["top1"] for r in runs]
            deviation = statistics.stdev(top1) if len(top1) > 1 else 0
            print(f"{net:14} {name:8} {' '.join(f'{t:.2f}' for t in top1):>30} {statistics.mean(top1):7.2f} "
                  f"{deviation:5.2f} {statistics.mean(r['seconds'] for r in runs):7.1f}", flush=True)
            results["rows"].append({"net": net, "program": name, "runs": runs})
            common.save(results, args.out)
    print(f"written: {args.out}")


p = common.parser(__doc__, python="a Python that has torch and torchvision")
p.add_argument("--data-dir", type=Path, required=True, help="CIFAR-10's binary version")
p.add_argument("--only", action="append", choices=NETS, help="a net; may be repeated (default: all)")
p.add_argument("--seeds", type=common.several(int), default=[1, 2, 3])
p.add_argument("--epochs", type=int, default=3)
p.add_argument("--limit", type=int, default=10000, help="only so many training and test images")
p.add_argument("--batch", type=int, default=64)
p.add_argument("--lr", type=float, default=0.05)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--out", type=Path, default=common.dated("accuracy.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
