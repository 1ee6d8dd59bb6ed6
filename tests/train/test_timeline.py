#!/usr/bin/env python3
"""test_timeline.py HVTRAIN MPIRUN [NAME ...]: where the time went: --timeline, and the records of epochs."""
import collections
import json
import os
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, TINY, command, environment, path, rank_of, records, run, train
from truths import check, run_all

LIMIT = 120  # s that anything may take


def read_timeline(name):
    """A JSON array, as a reader of Chrome's traces takes it: the end may be missing, or lie within an event."""
    with open(path(name)) as f:
        text = f.read()
    if not text.endswith("\n]\n"):
        text = text[:max(text.rfind(",\n{"), 1)] + "]"
    return json.loads(text)


def events(name):
    """Of each rank and thread, parents before what they hold."""
    lines = collections.defaultdict(list)
    for e in read_timeline(name):
        if e["ph"] == "X":
            lines[e["pid"], e["tid"]].append(e)
    for line in lines.values():
        line.sort(key=lambda e: (e["ts"], -e["dur"]))
    return lines


def end(e):
    return round(1000 * (e["ts"] + e["dur"]))


def check_nested(line):
    open_ = []
    for e in line:
        check(e["ts"] >= 0 and e["dur"] >= 0, e)
        while open_ and end(open_[-1]) <= round(1000 * e["ts"]):
            open_.pop()
        check(not open_ or end(e) <= end(open_[-1]), e, "does not end inside", open_[-1:])
        open_.append(e)


def steps_of(line, name):
    return [e["args"]["step"] for e in line if e["name"] == name]


# ---- the timeline ----

def every_rank_shows_all_its_phases_nested():
    for ranks in 0, 3:
        train("--epochs 2 --bucket 0 --timeline t.json".split(), ranks)
        lines = events("t.json")
        check(sorted(lines) == [(r, 0) for r in range(max(ranks, 1))], sorted(lines))
        for line in lines.values():
            check_nested(line)
            updates = 2 * (4 if not ranks else 2)
            for name in "step", "forward", "backward":
                in_step = [s for s in steps_of(line, name)]
                check(set(range(1, updates + 1)) <= set(in_step), ranks, name, in_step)
            check(steps_of(line, "step") == list(range(1, updates + 1)), steps_of(line, "step"))
            check(set("setup data launch exchange update evaluate agree".split()) <= {e["name"] for e in line},
                  {e["name"] for e in line})
            sent = [e["args"] for e in line if e["name"] == "launch" and e["args"]["step"] == 2]
            check([a["bucket"] for a in sent] == list(range(len(sent))) and len(sent) > 10, sent)
            check(all(a["bytes"] > 0 for a in sent), sent)
        spans = [min(e["ts"] for e in line if e["name"] == "step") for line in lines.values()]
        check(max(spans) - min(spans) < 30e6, "ranks of one host begin", spans)


def a_window_is_respected():
    train("--epochs 3 --batch 8 --timeline t.json --timeline-steps 5-7".split(), 2)
    lines = events("t.json")
    check(len(lines) == 2, sorted(lines))
    for line in lines.values():
        check(steps_of(line, "step") == [5, 6, 7], steps_of(line, "step"))
        check({e["args"]["step"] for e in line} <= {4, 5, 6, 7}, {e["args"]["step"] for e in line})
    train("--epochs 1 --timeline t.json --timeline-steps 100-200".split())
    check(not events("t.json"), "updates that never come are seen")


def start(args, ranks):
    return subprocess.Popen(command(TINY + args, ranks), cwd=HERE, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(ranks))


def a_killed_run_leaves_a_timeline_that_can_be_read():
    for ranks, wanted in (0, 40), (2, 300), (0, 1500):
        if os.path.exists(path("t.json")):
            os.unlink(path("t.json"))
        p = start("--epochs 1000 --batch 8 --bucket 0 --timeline t.json".split(), ranks)
        try:
            victim = rank_of(p, 0) if ranks else p.pid
            seen = 0
            deadline = time.time() + LIMIT
            while seen < wanted and time.time() < deadline and p.poll() is None:
                if os.path.exists(path("t.json")) and os.path.getsize(path("t.json")):
                    seen = len(read_timeline("t.json"))  # at every moment before, too
            os.kill(victim, signal.SIGKILL)
            p.wait(LIMIT)
        finally:
            if p.poll() is None:
                p.terminate()
                p.wait()
        check(seen >= wanted, ranks, "ranks:", seen, "events, expected", wanted)
        lines = events("t.json")
        check(sum(map(len, lines.values())) >= wanted - 20 and len(lines) == max(ranks, 1), sorted(lines))
        for line in lines.values():
            check_nested([e for e in line if e["name"] != "evaluate"])


def a_bad_timeline_is_one_line_before_training():
    os.makedirs(path("folder"), exist_ok=True)
    for name, part in ("none/t.json", "No such file"), ("folder", "not a regular file"), ("log", "is the same file"), \
            ("/dev/full", "not a regular file"):
        rc, _, err = run(TINY + ["--log", "log", "--timeline", name], 2 if name == "folder" else 0)
        ours = [line for line in err if line.startswith("hvtrain:")]
        check(rc != 0 and len(ours) == 1 and part in ours[0] and name in ours[0], rc, ours)
    for steps in "3", "3-2", "0-5", "x", "1-2-3", "1:2":
        rc, _, err = run(TINY + ["--timeline", "t.json", "--timeline-steps", steps])
        check(rc == 2 and len(err) == 1 and "--timeline-steps" in err[0] and steps in err[0], steps, rc, err)
    rc, _, err = run(TINY + ["--timeline-steps", "1-2"])
    check(rc == 2 and "needs --timeline" in err[0], rc, err)


def the_timeline_changes_no_bit():
    plain, seen = train(["--epochs", "1"]), train("--epochs 1 --timeline t.json".split())
    check(plain["end"][0]["weights"] == seen["end"][0]["weights"], "weights differ")


# ---- the epoch's record ----

def parts_of_the_time_add_up():
    for ranks in 0, 2:
        for e in train(["--epochs", "2"], ranks)["epoch"]:
            parts = [e[k] for k in ("compute", "exposed_comm", "data_wait", "other")]
            check(abs(sum(parts) - 1) < 1e-6 and all(-1e-3 < x <= 1 for x in parts), parts)
            check(parts[0] > 0 and parts[2] > 0, parts)
            check((e["waited_for"] is None) == (not ranks) and 0 <= e["wait_skew"] <= 1, e)


def a_slow_rank_is_named():
    p = start("--epochs 1 --limit 256 --log log".split(), 2)
    try:
        pid = rank_of(p, 1)
        while p.poll() is None:  # it gets a tenth of the time, less than on any busy machine
            try:
                os.kill(pid, signal.SIGSTOP)
                time.sleep(0.2)
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                break
            time.sleep(0.02)
        check(p.wait(LIMIT) == 0, "exit", p.returncode)
    finally:
        if p.poll() is None:
            p.terminate()
            p.wait()
    e = [r for r in records("log") if r["record"] == "epoch"][0]
    check(e["waited_for"] == 1 and e["wait_skew"] > 0.02, e)


def a_rank_that_was_stopped_is_waited_for():
    """Only a stop of all ranks is none of the time, whichever rank it is."""
    for rank in 0, 1:
        p = start("--epochs 1 --samples 1000 --limit 1000 --print-freq 1 --log log".split(), 2)
        try:
            pid = rank_of(p, rank)
            deadline = time.time() + LIMIT
            while time.time() < deadline and p.poll() is None and not (
                    os.path.exists(path("log")) and '"step"' in open(path("log")).read()):
                time.sleep(0.01)
            os.kill(pid, signal.SIGSTOP)
            time.sleep(2.5)
            os.kill(pid, signal.SIGCONT)
            check(p.wait(LIMIT) == 0, "exit", p.returncode)
        finally:
            if p.poll() is None:
                p.terminate()
                p.wait()
        e = [r for r in records("log") if r["record"] == "epoch"][0]
        check(e["seconds"] > 2 and e["wait_skew"] <= 1 and e["waited_for"] == rank, rank, e)
        os.unlink(path("log"))


def a_run_that_goes_on_keeps_the_earlier_timeline():
    run(TINY + "--epochs 1 --save kept --overwrite --timeline k.json".split())
    first = open(path("k.json")).read()
    for n in 1, 2:
        rc, _, err = run(TINY + f"--epochs {n + 1} --resume kept --timeline k.json".split())
        check(rc == 0 and os.path.exists(path(f"k.json.{n}")), rc, err)
    check(open(path("k.json.1")).read() == first and len(read_timeline("k.json.2")), "another file")


TESTS = [
    every_rank_shows_all_its_phases_nested,
    a_window_is_respected,
    a_killed_run_leaves_a_timeline_that_can_be_read,
    a_bad_timeline_is_one_line_before_training,
    the_timeline_changes_no_bit,
    parts_of_the_time_add_up,
    a_slow_rank_is_named,
    a_rank_that_was_stopped_is_waited_for,
    a_run_that_goes_on_keeps_the_earlier_timeline,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
