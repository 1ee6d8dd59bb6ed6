#!/usr/bin/env python3
"""test_golden.py HVTRAIN MPIRUN: a whole run of hvtrain has the losses that PyTorch has.

golden/make_run.py is the run by PyTorch and explains which parts are PyTorch's own. golden/run.txt is its output,
golden/frozen.txt that of a run with frozen parameters, golden/sync.txt that of one with synchronized batch norm.
If PyTorch is installed, the run is repeated.
"""
import os
import subprocess
import sys

GOLDEN = os.path.abspath(os.path.join(sys.path[0], "../golden"))
sys.dont_write_bytecode = True
sys.path += [GOLDEN, os.path.join(sys.path[0], "../support")]

import make_run
from hvtrain import HERE, command, environment, python_with, records
from truths import check, run_all

CLOSE = 1e-4


def read_golden(text):
    """Losses of updates, and the evaluation: loss, top-1 and top-5 hits, images."""
    losses, test = ([float(x) for x in line.split()] for line in text.splitlines() if not line.startswith("#"))
    return losses, test


def golden(name):
    with open(os.path.join(GOLDEN, name)) as f:
        return read_golden(f.read())


LOSSES, TEST = golden("run.txt")
FREEZE = ["--freeze", ",".join(make_run.FREEZE)]


def is_close(a, b):
    return abs(a - b) <= CLOSE * abs(b)


def has_golden_losses(more, ranks=0, losses=LOSSES, test=TEST):
    args = make_run.ARGS + ["--data-dir", HERE, "--log", "log", "--threads", "1", "--quiet"] + more
    p = subprocess.run(command(args, ranks), cwd=HERE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300,
                       env=environment(ranks))
    check(p.returncode == 0, "exit", p.returncode, p.stderr[-500:])
    log = records("log")
    steps = [r for r in log if r["record"] == "step"]
    check([r["step"] for r in steps] == list(range(1, len(losses) + 1)), "updates", [r["step"] for r in steps])
    for r, want in zip(steps, losses):
        check(is_close(r["loss"], want), f"update {r['step']}: loss {r['loss']}, PyTorch's is {want}")
    tests = [r for r in log if r["record"] == "eval"]
    check(len(tests) == 1, len(tests), "evaluations")
    loss, top1, top5, count = test
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
    has_golden_losses(["--isa", "portable", "--optimizer-state", "replicated"], 2)


def frozen_parameters_have_pytorchs_losses():
    losses, test = golden("frozen.txt")
    check(losses[0] == LOSSES[0] and losses[1] != LOSSES[1], "nothing is frozen in frozen.txt")
    for more, ranks in [([], 0), ([], 2), (["--optimizer-state", "replicated"], 2)]:
        has_golden_losses(FREEZE + more, ranks, losses, test)


def synchronized_batch_norm_has_pytorchs_losses():
    losses, test = golden("sync.txt")
    check(not is_close(losses[1], LOSSES[1]), "nothing is synchronized in sync.txt")
    for more, ranks in [([], 0), ([], 2), (["--optimizer-state", "replicated", "--comm", "mpi"], 2)]:
        has_golden_losses(["--sync-bn"] + more, ranks, losses, test)


def pytorch_prints_the_golden_losses_here_too():
    python = python_with("torch, torchvision")
    for name, more in ("run.txt", []), ("frozen.txt", ["frozen"]), ("sync.txt", ["sync"]):
        p = subprocess.run([python, os.path.join(GOLDEN, "make_run.py"), "f64"] + more, capture_output=True, text=True,
                           timeout=600)
        check(p.returncode == 0, "exit", p.returncode, p.stderr[-500:])
        (losses, test), (golden_losses, golden_test) = read_golden(p.stdout), golden(name)
        check(len(losses) == len(golden_losses), len(losses), "losses")
        for got, want in zip(losses + test, golden_losses + golden_test):
            check(abs(got - want) < 1e-6, "PyTorch says", got, "here, expected", want)


TESTS = [a_process_with_two_shards_has_pytorchs_losses, two_ranks_have_pytorchs_losses,
         other_convolutions_and_the_replicated_update_have_pytorchs_losses, frozen_parameters_have_pytorchs_losses,
         synchronized_batch_norm_has_pytorchs_losses, pytorch_prints_the_golden_losses_here_too]

make_run.write_files(HERE)
run_all(TESTS, sys.argv[3:], HERE)
