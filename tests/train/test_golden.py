#!/usr/bin/env python3
"""test_golden.py HVTRAIN MPIRUN: a whole run of hvtrain has the losses that PyTorch has.

golden/make_run.py is the run by PyTorch and says what of it is PyTorch's own, golden/run.txt holds what it printed.
Where PyTorch is installed, the run is made again.
"""
import json
import os
import subprocess
import sys
import tempfile

HVTRAIN = os.path.abspath(sys.argv[1])
MPIRUN = None if sys.argv[2] == "none" else sys.argv[2]
HERE = tempfile.mkdtemp(prefix="hvt-golden-")
GOLDEN = os.path.abspath(os.path.join(sys.path[0], "../golden"))
sys.dont_write_bytecode = True
sys.path += [GOLDEN, os.path.join(sys.path[0], "../support")]

import make_run
from truths import Skip, check, run_all

CLOSE = 1e-4


def read_golden(text):
    """Losses of updates, and the evaluation: loss, top-1 and top-5 hits, images."""
    losses, test = ([float(x) for x in line.split()] for line in text.splitlines() if not line.startswith("#"))
    return losses, test


with open(os.path.join(GOLDEN, "run.txt")) as f:
    LOSSES, TEST = read_golden(f.read())


def is_close(a, b):
    return abs(a - b) <= CLOSE * abs(b)


def has_golden_losses(more, ranks=0):
    log = os.path.join(HERE, "log")
    command = [HVTRAIN] + make_run.ARGS + ["--data-dir", HERE, "--log", log, "--threads", "1", "--quiet"] + more
    if ranks:
        if not MPIRUN:
            raise Skip("no mpirun")
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        command = ([MPIRUN] + root + "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1".split() +
                   "--mca btl self,vader -np".split() + [str(ranks)] + command)
    env = {k: v for k, v in os.environ.items() if not k.startswith("HVT_")}
    if ranks:  # Open MPI does not free all it has
        env["ASAN_OPTIONS"] = "detect_leaks=0:" + env.get("ASAN_OPTIONS", "")
    p = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300, env=env)
    check(p.returncode == 0, "exit", p.returncode, p.stderr[-500:])
    with open(log) as f:
        records = [json.loads(line) for line in f]
    steps = [r for r in records if r["record"] == "step"]
    check([r["step"] for r in steps] == list(range(1, len(LOSSES) + 1)), "updates", [r["step"] for r in steps])
    for r, want in zip(steps, LOSSES):
        check(is_close(r["loss"], want), f"update {r['step']}: loss {r['loss']}, PyTorch's is {want}")
    tests = [r for r in records if r["record"] == "eval"]
    check(len(tests) == 1, len(tests), "evaluations")
    loss, top1, top5, count = TEST
    for r in tests:
        check(is_close(r["loss"], loss), f"evaluation: loss {r['loss']}, PyTorch's is {loss}")
        for name, hits in ("top1", top1), ("top5", top5):
            check(abs(r[name] - 100 * hits / count) < 1e-6, name, r[name], f"expected {hits:.0f} of {count:.0f}")
        check(r["count"] == count, r["count"], "images, expected", count)


def a_process_with_two_shards_has_pytorchs_losses():
    has_golden_losses([])


def two_ranks_have_pytorchs_losses():
    has_golden_losses([], 2)


def other_convolutions_and_the_replicated_update_have_pytorchs_losses():
    has_golden_losses(["--winograd", "off", "--update", "replicated"])
    has_golden_losses(["--isa", "portable", "--update", "replicated"], 2)


def pytorch_prints_the_golden_losses_here_too():
    build = os.path.dirname(HVTRAIN)
    for python in [os.path.join(build, "venv/bin/python"), os.path.join(build, "../build/venv/bin/python"), "python3"]:
        try:
            if subprocess.run([python, "-c", "import torch, torchvision"], stderr=subprocess.DEVNULL).returncode == 0:
                break
        except OSError:
            pass
    else:
        raise Skip("no torch and torchvision")
    p = subprocess.run([python, os.path.join(GOLDEN, "make_run.py"), "f64"], capture_output=True, text=True, timeout=600)
    check(p.returncode == 0, "exit", p.returncode, p.stderr[-500:])
    losses, test = read_golden(p.stdout)
    check(len(losses) == len(LOSSES), len(losses), "losses")
    for got, want in zip(losses + test, LOSSES + TEST):
        check(abs(got - want) < 1e-6, "PyTorch says", got, "here, expected", want)


TESTS = [a_process_with_two_shards_has_pytorchs_losses, two_ranks_have_pytorchs_losses,
         other_convolutions_and_the_replicated_update_have_pytorchs_losses, pytorch_prints_the_golden_losses_here_too]

make_run.write_files(HERE)
run_all(TESTS, sys.argv[3:], HERE)
