#!/usr/bin/env python3
"""Recipes for CIFAR-10, by hvtrain and, where there is a peer, by PyTorch: accuracy, updates, time.

    bench/recipes.py --build build --python venv/bin/python --data-dir CIFAR
    bench/recipes.py ... --only augmented --seeds 1,2,3

quick      --recipe cifar10-quick; its peer is airbench94 in PyTorch (the first seed only)
augmented  ResNet-20 on 10,000 images for 30 epochs, with TrivialAugment, erasing, mixup and label smoothing; its peer is
           PyTorch with torchvision's transforms v2
lamb       --recipe large-batch-lamb beside SGD with 128 images an update, for as many epochs
he         --recipe cifar10-he

top-1 is that of the test images, in percent; seconds are those of training. Each run is added to --out, and a run that the
file has is not repeated, so that an interrupted table continues.
"""
import json
import statistics
import tempfile
from pathlib import Path

import common

UNITS = ["--mean", "0.4914,0.4822,0.4465", "--std", "0.247,0.2435,0.2616"]
CIFAR = ["--model", "resnet20", "--data", "cifar10", "--batch", 128, *UNITS]
AUGMENTED = [*CIFAR, "--augment", "crop:4,flip,trivial", "--erase", 0.1, "--mixup", 0.2, "--label-smoothing", 0.1, "--lr", 0.1,
             "--schedule", "cosine", "--weight-decay", 1e-4]
SGD = [*CIFAR, "--augment", "crop:4,flip", "--lr", 0.1, "--schedule", "cosine", "--weight-decay", 1e-4]
CASES = {"quick": {"hvtrain": ["--recipe", "cifar10-quick"], "PyTorch": "airbench94"},
         "augmented": {"hvtrain": [*AUGMENTED, "--limit", 10000, "--epochs", 30], "PyTorch": "augmented"},
         "lamb": {"LAMB, 4096": ["--recipe", "large-batch-lamb"], "SGD, 128": [*SGD, "--epochs", 10]},
         "he": {"hvtrain": ["--recipe", "cifar10-he"]}}
PEER_EPOCHS = {"airbench94": 9.9, "augmented": 30}


def less():
    """--epochs and --limit, where they are given."""
    return [x for name in ("epochs", "limit") if (value := getattr(args, name)) for x in ("--" + name, value)]


def ours(options, seed):
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        common.output_of([args.build / "hvtrain", *options, *less(), *args.more, "--data-dir", args.data_dir, "--threads",
                          args.threads, "--seed", seed, "--log", log, "--quiet"])
        records = common.records(log)
    epochs = [r for r in records if r["record"] == "epoch"]
    return {"top1": [r for r in records if r["record"] == "eval"][-1]["top1"], "updates": epochs[-1]["at_step"],
            "seconds": sum(r["seconds"] for r in epochs)}


def peers(recipe, seed):
    images = 10000 if recipe == "augmented" else 50000
    found = common.torch_result(common.output_of(
        [args.python, common.PEERS / "torch_recipes.py", recipe, "--data-dir", args.data_dir, "--threads", args.threads,
         "--seed", seed, "--limit", images, "--epochs", PEER_EPOCHS[recipe], *less()]))
    return {"top1": found["top1"], "seconds": found["train_seconds"]}


def show(case, program, runs):
    top1 = [r["top1"] for r in runs]
    spread = f"{statistics.stdev(top1):.2f}" if len(top1) > 1 else ""
    print(f"{case:10} {program:11} {' '.join(f'{t:.2f}' for t in top1):>24} {statistics.mean(top1):7.2f} {spread:>5} "
          f"{runs[0].get('updates', ''):>8} {statistics.mean(r['seconds'] for r in runs):8.1f}", flush=True)


def main():
    common.need(args.build, "hvtrain")
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "runs": {}}
    if args.out.exists():
        results["runs"] = json.loads(args.out.read_text())["runs"]
    print(f"{'':10} {'':11} {'top-1 % of each seed':>24} {'mean':>7} {'sd':>5} {'updates':>8} {'seconds':>8}")
    for case in args.only or CASES:
        for program, does in CASES[case].items():
            if isinstance(does, str) and not common.has(args.python, "torch, torchvision"):
                print(f"{case:10} {program:11} not installed")
                continue
            seeds = args.seeds[:1] if does == "airbench94" or case == "he" else args.seeds
            for seed in seeds:
                key = f"{case}, {program}, seed {seed}"
                if key not in results["runs"]:
                    results["runs"][key] = (peers if isinstance(does, str) else ours)(does, seed)
                    common.save(results, args.out)
            show(case, program, [results["runs"][f"{case}, {program}, seed {seed}"] for seed in seeds])
    print(f"written: {args.out}")


p = common.parser(__doc__, python="a Python that has torch and torchvision")
p.add_argument("--data-dir", type=Path, required=True, help="CIFAR-10's binary version")
p.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated (default: all)")
p.add_argument("--seeds", type=common.several(int), default=[1, 2, 3])
p.add_argument("--threads", type=int, default=2)
p.add_argument("--epochs", type=int, help="instead of the recipe's; warm-ups stay")
p.add_argument("--limit", type=int, help="only so many training and test images")
p.add_argument("--more", type=lambda text: text.split(), default=[], help="more options of hvtrain, in quotation marks")
p.add_argument("--out", type=Path, default=common.dated("recipes.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
