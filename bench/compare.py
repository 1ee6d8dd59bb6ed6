#!/usr/bin/env python3
"""hvtrain beside PyTorch and Horovod, on the same machine in the same minutes: throughput, time to the first update and
peak memory of each case, runs interleaved A B C A B C, median of the rounds and their spread.

    bench/compare.py --build build --python venv/bin/python            every case, 3 rounds
    bench/compare.py --only resnet50-256 --ranks 1 --rounds 5

img_s         training images per second over all ranks: median of the timed steps (PyTorch) or of the step
              records (hvtrain), warm-up left out; then the median over rounds
first update  seconds from the launcher's start to the end of the first update, image drawing included
peak          resident memory of the largest process
ratio         img_s over that of the fastest PyTorch layout

hvtrain reads and normalises its images in every step; PyTorch's lie ready in memory. Several ranks of PyTorch are
DDP over gloo, and Horovod where --python has it, as installed and with an MPI that yields. Each rank has --threads
threads. The table goes to the terminal, everything measured to bench/results/DATE-compare.json.
"""
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

import common
from common import mpirun

CASES = {  # name: model, stem (None: its own), batch per rank, timed steps of one run, side of an image
    "resnet50-256": ("resnet50", "imagenet", 256, 4, 32),
    "resnet50-64": ("resnet50", "imagenet", 64, 8, 32),
    "resnet18-64": ("resnet18", "cifar", 64, 6, 32),
    "resnet18-128": ("resnet18", "cifar", 128, 4, 32),
    "resnet20-128": ("resnet20", None, 128, 16, 32),
    "resnet56-128": ("resnet56", None, 128, 8, 32),
    "resnet110-128": ("resnet110", None, 128, 4, 32),
    "resnet34-64": ("resnet34", "imagenet", 64, 8, 32),
    "resnet101-64": ("resnet101", "imagenet", 64, 4, 32),
    "resnet50-224": ("resnet50", "imagenet", 32, 3, 224),
}
# torchvision's, which hvtrain reads from the files that torch.export writes of them
FAMILIES = ["mobilenet_v2", "mobilenet_v3_large", "mnasnet1_0", "efficientnet_b0", "shufflenet_v2_x1_0", "regnet_y_400mf",
            "squeezenet1_1", "densenet121", "googlenet", "inception_v3", "vgg11", "convnext_tiny", "vit_b_16",
            "swin_t"]
CASES |= {name: (name, None, 4 if name == "vit_b_16" else 16, 3, 224) for name in FAMILIES}
WARMUP = 2  # steps


def run(command, log):
    """Run to the end: (output, start, seconds until `log` held a step record, peak bytes of one process)."""
    with tempfile.TemporaryFile("w+") as out:
        began, first = time.time(), None
        child = subprocess.Popen(common.words(command), stdout=out, stderr=subprocess.STDOUT,
                                 stdin=subprocess.DEVNULL, env=common.environment(args.threads))
        while True:
            # wait4's figures cover the processes that the launcher itself has waited for
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                break
            if first is None and log and log.exists() and '"step"' in log.read_text():
                first = time.time() - began
            time.sleep(0.002)
        out.seek(0)
        text = out.read()
    if status != 0:
        common.failed(command, status, text)
    return text, began, first, usage.ru_maxrss * 1024


def settings(case):
    model, stem, batch, steps, side = CASES[case]
    return model, stem, batch, args.steps or steps, side


def ours(case, ranks):
    model, stem, batch, steps, side = settings(case)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        if case in FAMILIES:
            model = Path(folder) / f"{case}.pt2"
            run([args.python, common.PEERS / "torch_train.py", "export", "--model", case, "--size", side, "--file", model],
                None)
        command = [args.build / "hvtrain", *common.model_options(model, stem), "--batch", batch,
                   "--threads", args.threads, "--steps", WARMUP + steps, "--lr", "0.001", "--print-freq", 1,
                   "--amp", args.amp, "--eval-freq", 0, "--log", log]
        images = ranks * batch * (WARMUP + steps)
        if args.data_dir and side == 32:
            command += ["--data", "cifar10", "--data-dir", args.data_dir, "--limit", images]
        else:
            command += ["--samples", images, "--size", side]
        if ranks > 1:
            command = [*mpirun(ranks), *command]
        _, _, first, peak = run(command, log)
        records = common.records(log)
    speeds = [r["img_s"] for r in records if r["record"] == "step"][WARMUP:]
    return {"img_s": statistics.median(speeds), "first": first, "peak": peak,
            "start": next(r for r in records if r["record"] == "start")}


def torchs(case, ranks, layout, horovod=None, more=()):
    """Horovod's `horovod` are mpirun's further arguments; `more` are torch_train.py's."""
    model, stem, batch, steps, side = settings(case)
    if horovod is not None:
        command = mpirun(ranks, *horovod, args.python)
    else:
        command = common.torchrun(args.python, ranks) if ranks > 1 else [args.python]
    command += [common.PEERS / "torch_train.py", "speed", *common.model_options(model, stem), "--batch", batch,
                "--threads", args.threads, "--warmup", WARMUP, "--steps", steps, "--lr", "0.001", "--layout", layout,
                "--amp", args.amp, "--size", side, *more]
    if args.data_dir and side == 32:
        command += ["--data-dir", args.data_dir]
    if horovod is not None:
        command.append("--horovod")
    text, began, _, peak = run(command, None)
    result = common.torch_result(text)
    return {"img_s": result["img_s"], "first": result["first_update_at"] - began, "peak": peak,
            "torch": result["torch"]}


def main():
    common.need(args.build, "hvtrain")
    common.need_modules(args.python, "torch, torchvision, numpy")
    contenders = {"hvtrain": ours,
                  "torch nchw": lambda c, r: torchs(c, r, "nchw"),
                  "torch channels_last": lambda c, r: torchs(c, r, "channels_last")}
    if args.compile:
        contenders |= {f"compiled {layout}": lambda c, r, layout=layout: torchs(c, r, layout, more=["--compile"])
                       for layout in ("nchw", "channels_last")}
    peers = dict(contenders)
    if common.has(args.python, "horovod.torch"):
        peers["Horovod"] = lambda c, r: torchs(c, r, "nchw", [])
        peers["Horovod, yielding MPI"] = lambda c, r: torchs(c, r, "nchw", ["--mca", "mpi_yield_when_idle", "1"])
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(),
               "threads_per_rank": args.threads, "amp": args.amp, "rounds": args.rounds, "cases": []}
    print(f"{results['machine']['cpu']}, {results['machine']['cores']} cores, commit {results['commit']}, "
          f"{args.amp}, {args.threads} thread(s) per rank, median of {args.rounds} rounds")
    print(f"{'case':14} {'ranks':>5}  {'':22} {'img_s':>8} {'spread':>13} {'first update':>13} {'peak':>9} {'ratio':>6}")
    for case in args.only or CASES:
        for ranks in args.ranks:
            field = peers if ranks > 1 else contenders
            rounds = {name: [] for name in field}
            for _ in range(args.rounds):
                for name, measure in field.items():
                    rounds[name].append(measure(case, ranks))
            median = lambda name, key: statistics.median(r[key] for r in rounds[name])
            peer = max(median(n, "img_s") for n in contenders if n != "hvtrain")
            for name, measured in rounds.items():
                speeds = [r["img_s"] for r in measured]
                print(f"{case:14} {ranks:5}  {name:22} {median(name, 'img_s'):8.1f} "
                      f"{min(speeds):6.1f}-{max(speeds):<6.1f} {median(name, 'first'):11.2f} s "
                      f"{median(name, 'peak') / 2**20:5.0f} MiB {median(name, 'img_s') / peer:6.2f}", flush=True)
            results["cases"].append({"case": case, "ranks": ranks, "rounds": rounds})
            common.save(results, args.out)
    print(f"written: {args.out}")


p = common.parser(__doc__, python="a Python that has torch and torchvision")
p.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated (default: all)")
p.add_argument("--ranks", type=common.several(int), default=[1, 2])
p.add_argument("--threads", type=int, default=1)
p.add_argument("--amp", choices=["f32", "bf16"], default="f32", help="PyTorch: autocast")
p.add_argument("--compile", action="store_true", help="PyTorch by torch.compile, too (a minute or more for each)")
p.add_argument("--rounds", type=int, default=3)
p.add_argument("--steps", type=int, help="that are timed, in place of the case's own")
p.add_argument("--data-dir", type=Path, help="CIFAR-10's binary version; without it drawn or random images")
p.add_argument("--out", type=Path, default=common.dated("compare.json"))
args = common.arguments(p)
if __name__ == "__main__":
    main()
