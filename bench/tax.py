#!/usr/bin/env python3
"""The distribution tax: what N ranks lose against N processes that know nothing of each other.

    bench/tax.py --build build                        every case, 2 ranks, 5 pairs
    bench/tax.py --build build --only resnet20 resnet50 --pairs 7 --json FILE

A pair is one run of N ranks and one of N single processes at the same time, each process on a core of its own, in
turns first and second. Every run is bench_step, with the same images per process.

tax           1 - images per second of the ranks / (N x those of the slowest single process); median of the pairs
least, most   of the pairs
exposed_comm  share of the time in which the rank that has most of it waits for sums, or adds; median
ms            of a phase in the middle half of the steps, mean over ranks or processes; median of the runs
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import common

CASES = {  # model, stem, batch, steps that count
    "resnet20": ("resnet20", "imagenet", 128, 20),
    "resnet56": ("resnet56", "imagenet", 128, 8),
    "resnet18": ("resnet18", "imagenet", 64, 40),
    "resnet18-cifar": ("resnet18", "cifar", 32, 6),
    "resnet50": ("resnet50", "imagenet", 64, 16),
}


def step_command(case, report):
    model, stem, batch, steps = CASES[case]
    return [args.build / "bench" / "bench_step", *common.model_options(model, stem), "--batch", batch,
            "--steps", args.steps or steps, "--json", report]


def finish(children):
    for child in children:
        if child.wait():
            common.failed(child.args, child.returncode, child.stdout.read())


def start(command):
    return subprocess.Popen(common.words(command), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            stdin=subprocess.DEVNULL, text=True)


def run_ranks(case, folder):
    report = f"{folder}/ranks.json"
    finish([start(common.mpirun(args.ranks, *step_command(case, report), place=("--bind-to", "core")))])
    return [json.loads(Path(report).read_text())]


def run_alone(case, folder):
    reports = [f"{folder}/alone{i}.json" for i in range(args.ranks)]
    cores = sorted(os.sched_getaffinity(0))
    finish([start(["taskset", "-c", cores[i], *step_command(case, report)]) for i, report in enumerate(reports)])
    return [json.loads(Path(report).read_text()) for report in reports]


def measure(case):
    """Runs of ranks, and of single processes, pair by pair."""
    ranks, alone = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i in range(args.pairs):
            for what in ("ranks", "alone") if i % 2 == 0 else ("alone", "ranks"):
                if what == "ranks":
                    ranks.append(run_ranks(case, folder))
                else:
                    alone.append(run_alone(case, folder))
    return ranks, alone


def phase(runs, name):
    return statistics.median(statistics.mean(r["phases"][name]["mean_ms"] for r in run) for run in runs)


def report(case, ranks, alone):
    taxes = [1 - r[0]["img_s"] / (args.ranks * min(a["img_s"] for a in single)) for r, single in zip(ranks, alone)]
    exposed = [r[0]["exposed_comm"] for r in ranks]
    batch = CASES[case][2]
    print(f"\n{case}, batch {batch}, {args.ranks} ranks, comm {ranks[0][0]['comm']}, {args.pairs} pairs of "
          f"{ranks[0][0]['steps']} steps")
    print(f"  tax {statistics.median(taxes):.2%}, least {min(taxes):.2%}, most {max(taxes):.2%}; "
          f"exposed_comm {statistics.median(exposed):.2%}")
    print("  img/s of the ranks: " + " ".join(f"{r[0]['img_s']:.1f}" for r in ranks))
    print(f"  {args.ranks} x slowest alone: " +
          " ".join(f"{args.ranks * min(a['img_s'] for a in single):.1f}" for single in alone))
    print(f"  {'phase':10} {'ranks ms':>10} {'alone ms':>10} {'more':>9}   of a step")
    step = phase(alone, "step")
    for name in ranks[0][0]["phases"]:
        a, b = phase(ranks, name), phase(alone, name)
        if a or b:
            print(f"  {name:10} {a:10.3f} {b:10.3f} {a - b:+9.3f}   {(a - b) / step:+.2%}")
    sys.stdout.flush()
    return {"case": case, "batch": batch, "tax": statistics.median(taxes), "taxes": taxes,
            "exposed_comm": statistics.median(exposed), "ranks": ranks, "alone": alone}


parser = common.parser(__doc__)
parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
parser.add_argument("--ranks", type=int, default=2)
parser.add_argument("--pairs", type=int, default=5)
parser.add_argument("--steps", type=int, help="that count, in place of the case's own")
parser.add_argument("--json", type=Path)
args = common.arguments(parser)
if len(os.sched_getaffinity(0)) < args.ranks:
    sys.exit(f"{args.ranks} processes on {len(os.sched_getaffinity(0))} cores: each needs one of its own")
common.need(args.build, "bench/bench_step")
results = [report(case, *measure(case)) for case in args.only]
if args.json:
    common.save(results, args.json)
