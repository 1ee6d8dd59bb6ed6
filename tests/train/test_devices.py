#!/usr/bin/env python3
"""test_devices.py HVTRAIN MPIRUN STUCK [NAME ...]: --devices, where ranks are threads. A run has the bits that it has on as
many processes, and ends as a job of processes does. STUCK is hvtrain with a place to get stuck or to fail in (stuck.c)."""
import json
import os
import re
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, command, environment, finish, fresh, path, records, run, until, until_steps
from truths import Skip, check, run_all

STUCK = os.path.abspath(sys.argv[3])
RUN = "--size 12 --samples 90 --batch 2 --shards 4 --epochs 1 --threads 1 --quiet --augment crop:2,flip --log log".split()
FOREVER = ("--size 12 --samples 90 --batch 4 --threads 1 --lr 0.05 --print-freq 1 --quiet --epochs 1000000 --eval-freq 0 "
           "--log log --workers 0").split()
TWO = ["--devices", "cpu:0,cpu:1"]
CORES = len(os.sched_getaffinity(0))


def needs_two_cores():
    if CORES < 2:
        raise Skip("one core cannot be divided")


def weights(args, ranks=0):
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", *args, "on", ranks, "ranks:", err[-3:])
    return records("log")[-1].get("weights")


def start(args, program=HVTRAIN, **env):
    def inherit():
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):  # the test itself may run under nohup
            signal.signal(sig, signal.SIG_DFL)

    return subprocess.Popen([program] + args, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, preexec_fn=inherit, env=dict(environment(0), **env))


# ---- bits ----

def two_devices_have_the_bits_of_one_and_of_two_processes():
    needs_two_cores()
    for args in ("", "--sync-bn", "--comm mpi", "--overlap worker --bucket 64KiB", "--clip-grad-norm 0.5", "--amp bf16",
                 "--optimizer adamw --lr 0.001 --ema 0.9", "--optimizer-state replicated", "--compression f16"):
        want = weights(args.split(), 2) if MPIRUN and args in ("", "--comm mpi", "--compression f16") else None
        alone = None if "compression" in args else weights([a for a in args.split() if a not in ("--comm", "mpi")])
        got = weights(args.split() + TWO)
        check(want in (None, got) and alone in (None, got), args, "gives", got, "two processes", want, "one", alone)


def two_processes_of_two_devices_have_the_bits_of_four_ranks():
    needs_two_cores()
    if not MPIRUN:
        raise Skip("no mpirun")
    want = weights([])
    for args in "", "--comm mpi", "--sync-bn":
        one = weights(args.split()) if args == "--sync-bn" else want
        check(weights(args.split() + TWO, 2) == one, args, "differs")
    start_of = next(r for r in records("log") if r["record"] == "start")
    check(start_of.get("ranks") == 4, start_of.get("ranks"), "ranks")


def a_job_goes_on_with_processes_and_with_devices():
    needs_two_cores()
    fresh("a", "b")
    want = weights(["--steps", "8", "--save", "a"])
    weights(["--steps", "3", "--save", "b"] + TWO)
    check(weights(["--steps", "8", "--save", "b", "--resume", "b"] + (TWO if not MPIRUN else []), 2 if MPIRUN else 0) == want,
          "differs")


def predictions_and_timelines_are_those_of_all_ranks():
    needs_two_cores()
    fresh("a.csv", "b.csv", "t.json", "a")
    weights(["--save", "a", "--timeline", "t.json"] + TWO)
    weights("--evaluate --resume a --predict a.csv".split())
    weights("--evaluate --resume a --predict b.csv".split() + TWO)
    with open(path("a.csv")) as a, open(path("b.csv")) as b:
        check(a.read() == b.read(), "other predictions")
    with open(path("t.json")) as f:
        events = json.load(f)
    steps = {r: sum(e.get("pid") == r and e["name"] == "step" for e in events if e["ph"] == "X") for r in (0, 1)}
    check(steps[0] == steps[1] > 0, "updates in the timeline:", steps)


# ---- bad input ----

def what_is_no_list_of_devices_is_refused_in_one_line():
    all_cores = "cpu:0-" + str(CORES)
    for args, part in ((["cpu:0,cpu:0"], "cpu:0 is named twice"), (["cpu:0,cuda:1"], "both cpu and cuda"),
                       (["tpu:0"], "got 'tpu:0'"), (["cpu"], "got 'cpu'"), (["cpu:1,cpu:2"], "expected cpu:0 to cpu:1"),
                       ([all_cores], f"{CORES + 1} parts of the cores, but this process may use"),
                       (["cpu:0", "--device", "ref"], "--device ref both name devices"),
                       (["cpu:0", "--threads", str(CORES + 1)], "--threads"), (["cpu:0", "--tf32"], "--tf32"),
                       (["cuda", "--isa", "portable"], "--isa portable is for --device cpu, not cuda")):
        rc, _, err = run("--data synth --samples 64 --steps 1 --quiet --devices".split() + args)
        check(rc in (1, 2) and len(err) == 1 and (part in err[0] or "no GPU is visible" in err[0]), args, rc, err)
    rc, _, err = run(["--devices", "cuda:77", "--quiet"])
    check(rc in (1, 2) and len(err) == 1 and ("cuda:77" in err[0]), rc, err)


def check_and_tune_run_on_devices():
    needs_two_cores()
    rc, out, err = run(["check", "--model", "resnet20", "--batch", "2"] + TWO)
    check(rc == 0 and "2 ranks on 1 host" in out and out.splitlines()[-1].startswith("ready"), rc, out, err)
    rc, out, err = run("tune tuned.json --size 12 --samples 90 --batch 2".split() + TWO)
    check(rc == 0 and os.path.exists(path("tuned.json")), rc, err)


# ---- faults ----

def a_rank_that_fails_ends_the_job_with_its_line():
    needs_two_cores()
    for rank in 0, 1:
        fresh("log")
        p = start(FOREVER + TWO, STUCK, HVT_TEST_FAIL=str(rank))
        rc, ours = finish(p)
        check(rc == 1 and len(ours) == 1 and re.match(rf"hvtrain: rank {rank} on \S+: image \d+: the disk does not answer", ours[0]),
              rc, ours)
        end = records("log")[-1]
        check(end["record"] == "end" and end["status"] == "failed" and "the disk does not answer" in end["error"], end)


def a_request_ends_all_ranks_and_saves_once():
    needs_two_cores()
    fresh("a", "whole")
    for sig, code in (signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143):
        fresh("log")
        p = start(FOREVER + TWO + ["--save", "a", "--resume", "auto"])
        until_steps(p)
        p.send_signal(sig)
        rc, ours = finish(p)
        end = records("log")[-1]
        check(rc == code and len(ours) == 1 and f"preempted ({sig.name}) after update {end['steps']} " in ours[0], rc, ours)
        check(end["status"] == "preempted", end)


def without_save_a_request_ends_at_once():
    needs_two_cores()
    for sig, code in (signal.SIGINT, 130), (signal.SIGTERM, 143):
        fresh("log")
        p = start(FOREVER + TWO)
        until_steps(p)
        p.send_signal(sig)
        rc, ours = finish(p)
        check(rc == code and len(ours) == 1 and f"interrupted ({sig.name})" in ours[0], rc, ours)
        check(records("log")[-1]["status"] == "interrupted", records("log")[-1])


def a_rank_that_is_stuck_is_named_and_ends_the_job():
    needs_two_cores()
    fifo = path("fifo")
    if not os.path.exists(fifo):
        os.mkfifo(fifo)
    fresh("log", "fifo.in")
    p = start(FOREVER + TWO + ["--stall-warn", "0.3s", "--stall-abort", "1s"], STUCK, HVT_TEST_STUCK=f"data:1:{fifo}")
    _, err = p.communicate(timeout=60)
    os.unlink(fifo)
    last = err.splitlines()[-1]
    check(p.returncode == 3 and "rank 0 (" in last and "rank 1 (" in last and "in phase data" in last and
          last.endswith(": giving up"), p.returncode, err[-800:])
    check(records("log")[-1]["status"] == "failed", records("log")[-1])


def a_stopped_process_goes_on():
    needs_two_cores()
    fresh("log")
    p = start(FOREVER + TWO + ["--stall-warn", "0.3s", "--stall-abort", "1s"])
    until_steps(p)
    p.send_signal(signal.SIGSTOP)
    time.sleep(1.5)
    p.send_signal(signal.SIGCONT)
    n = sum(r["record"] == "step" for r in records("log"))
    until_steps(p, n + 3)
    p.send_signal(signal.SIGINT)
    rc, ours = finish(p)
    check(rc == 130 and len(ours) == 1, rc, ours)


if __name__ == "__main__":
    run_all([two_devices_have_the_bits_of_one_and_of_two_processes,
             two_processes_of_two_devices_have_the_bits_of_four_ranks,
             a_job_goes_on_with_processes_and_with_devices,
             predictions_and_timelines_are_those_of_all_ranks,
             what_is_no_list_of_devices_is_refused_in_one_line,
             check_and_tune_run_on_devices,
             a_rank_that_fails_ends_the_job_with_its_line,
             a_request_ends_all_ranks_and_saves_once,
             without_save_a_request_ends_at_once,
             a_rank_that_is_stuck_is_named_and_ends_the_job,
             a_stopped_process_goes_on], sys.argv[4:], HERE)
