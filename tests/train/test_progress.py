#!/usr/bin/env python3
"""test_progress.py HVTRAIN MPIRUN STUCK [NAME ...]: what a run reports about its progress, the time left, and where its
time went.

STUCK is hvtrain with a clock that can jump (stuck.c).
"""
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, TINY, command, environment, path, read_terminal, records, run, train
from truths import check, run_all

STUCK = os.path.abspath(sys.argv.pop(3))
NO_BATCH = TINY[:4] + TINY[6:]
LOUD = [a for a in TINY if a != "--quiet"]  # 64 images in batches of 16
PARTS = "compute exposed_comm data_wait evaluate save startup other".split()


# ---- how far it is ----

def progress_is_plain_lines_without_a_terminal():
    args = [a for a in TINY if a != "--quiet"] + "--epochs 1 --print-freq 2".split()
    rc, out, err = run(args)
    check(rc == 0 and not out, rc, out)
    steps = [line for line in err if re.match(r"epoch 1/1  step \d+/4  loss [\d.]+  top-1 [\d.]+ %", line)]
    check(len(steps) == 2, err)
    check(any(line.startswith("test after epoch 1: loss") for line in err), err)
    check(any(line.startswith("next:") for line in err), err)
    check(not any("\r" in line or "\033" in line for line in err), "control characters without a terminal")
    check(any(re.match("  flags .*limit 64,", line) for line in err), "the changed options do not stand apart", err)


def progress_is_a_bar_on_a_terminal():
    args = [a for a in TINY if a != "--quiet"] + "--epochs 2 --limit 256".split()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(HVTRAIN, [HVTRAIN] + args)
    text, status = read_terminal(fd, pid)
    check(status == 0, "status", status)
    check(re.search(r"\r\033\[Kepoch 1/2 \[=*>? *\] \d+/16  loss [\d.]+  top-1 [\d.]+ %  \d+ img/s  eta \d", text),
          repr(text[-600:]))
    check(text.endswith("\n"), repr(text[-100:]))
    last = text.rsplit("\r\033[K", 1)[1]
    check("\n" in last, "a bar is left on the screen")


def a_run_that_ends_by_steps_counts_steps():
    shutil.rmtree(path("counted"), ignore_errors=True)
    rc, _, err = run(LOUD + "--steps 6 --print-freq 3 --save counted".split())
    lines = [line for line in err if line.startswith(("step ", "epoch ", "test "))]
    heads = [re.split("[:]|  loss", line)[0] for line in lines]
    check(rc == 0 and heads == ["step 3/6  epoch 1", "epoch 1", "test after epoch 1", "step 6/6  epoch 2",
                                "epoch 2, 2 of 4 updates", "test after step 6"], rc, heads)
    check(any(re.match("next: .* --steps 12  # continues", line) for line in err), err[-3:])
    rc, out, err = run("--evaluate --resume counted --threads 1".split())
    check(rc == 0 and out.startswith("test after step 6: loss "), rc, out, err)
    rc, _, err = run(LOUD + "--steps 6 --epochs 1 --print-freq 2".split())  # epochs come first
    heads = [re.split("[:]|  loss", line)[0] for line in err if line.startswith(("step ", "epoch "))]
    check(rc == 0 and heads == ["epoch 1/1  step 2/4", "epoch 1/1  step 4/4", "epoch 1/1"], rc, heads)


def the_bar_of_a_run_that_ends_by_steps_is_that_of_steps():
    args = LOUD + "--steps 20 --limit 256".split()
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.execv(HVTRAIN, [HVTRAIN] + args)
    text, status = read_terminal(fd, pid)
    check(status == 0, "status", status)
    check(re.search(r"\r\033\[Kstep \[=*>? *\] \d+/20  loss [\d.]+ ", text), repr(text[-600:]))
    check("epoch 1/" not in text and "\033[Kepoch 1: loss" in text, repr(text[-600:]))


def the_bar_goes_on_during_evaluation():
    shutil.rmtree(path("judged"), ignore_errors=True)
    train("--epochs 1 --save judged".split())
    args = command("--evaluate --resume judged --limit 4096 --samples 20480 --batch 16 --threads 1".split(), 0)
    pid, fd = pty.fork()
    if pid == 0:
        os.environ["TERM"] = "xterm"
        os.chdir(HERE)
        os.execv(args[0], args)
    text, status = read_terminal(fd, pid)
    seen = [int(n) for n in re.findall(r"\r\033\[Ktest \[=*>? *\] (\d+)/4096 images", text)]
    check(status == 0 and len(seen) >= 3 and seen == sorted(set(seen)) and seen[-1] <= 4096, status, seen,
          repr(text[-600:]))
    check(re.search(r"\033\[Ktest after epoch 1: loss", text), repr(text[-300:]))


def a_line_comes_every_30_seconds_without_a_terminal():
    """In an epoch and in an evaluation; the clock jumps by 6 s with each of 4 images of a batch. Short runs have no more
    lines, and neither has a quiet run."""
    args = ("--size 16 --samples 200 --limit 64 --batch 4 --threads 1 --workers 0 --lr 0.05 --epochs 1 --print-freq 1000 "
            "--stall-warn 0 --stall-abort 0").split()
    for jump, more, least, most in ("6", [], 7, 9), ("0", [], 0, 0), ("6", ["--quiet"], 0, 0):
        p = subprocess.run([STUCK] + args + more, cwd=HERE, capture_output=True, text=True, env=dict(environment(0), HVT_TEST_JUMP=jump))
        steps = re.findall(r"^epoch 1/1  step (\d+)/16  loss [\d.]+  top-1 [\d.]+ %  lr 0.05  \d+ img/s  eta \w+$", p.stderr, re.M)
        tests = re.findall(r"^test: (\d+)/40 images$", p.stderr, re.M)
        check(p.returncode == 0 and least <= len(steps) <= most and least / 2 <= len(tests) + 1 <= max(most, 1), jump, more, steps, tests, p.stderr)
        check([int(n) for n in steps] == sorted({int(n) for n in steps}), steps)


def few_classes_have_no_top_5():
    """On the console; the log keeps it."""
    for classes, shown in ("5", False), ("6", True):
        kinds = train(["--classes", classes, "--epochs", "1"])
        rc, _, err = run(LOUD + ["--classes", classes, "--epochs", "1"])
        text = "\n".join(err)
        check(rc == 0 and ("top-5" in text) == shown and "top-1" in text, classes, err)
        check(kinds["eval"][0]["top5"] == 100 if not shown else kinds["eval"][0]["top5"] <= 100, kinds["eval"])


# ---- the time ----

def every_record_has_the_time_of_day():
    for ranks in [0, 2] if MPIRUN else [0]:
        began = time.time()
        train("--epochs 2 --print-freq 1".split(), ranks)
        times = [r["time"] for r in records("log")]
        check(len(times) >= 10 and times == sorted(times), times)
        check(began - 0.001 <= times[0] and times[-1] <= time.time(), began, times[0], times[-1], time.time())
        check(any(round(1000 * t) % 10 for t in times), "no milliseconds:", times)
        check(all(abs(1000 * t - round(1000 * t)) < 1e-3 for t in times), "more than milliseconds:", times)


def interrupt(args, log, number):
    """Send a signal to a run whose log has a few records, and wait for its end."""
    p = subprocess.Popen(command(args, 0), cwd=HERE, stderr=subprocess.DEVNULL, env=environment(0))
    try:
        end = time.time() + 60
        while not (os.path.exists(path(log)) and os.path.getsize(path(log)) > 5000) and time.time() < end:
            time.sleep(0.02)
        p.send_signal(number)
        p.wait(30)
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
    return p


def the_record_of_a_signal_has_it_too():
    if os.path.exists(path("stop")):
        os.unlink(path("stop"))
    interrupt(TINY + "--epochs 100000 --print-freq 1 --log stop".split(), "stop", signal.SIGINT)
    log = records("stop")
    check(log[-1]["status"] == "interrupted", log[-1])
    check(log[-2]["time"] <= log[-1]["time"] <= time.time(), log[-2:], time.time())


def check_parts(end):
    parts = [end[name] for name in PARTS]
    check(abs(sum(parts) - 1) < 1e-6 and min(parts) > -0.02, dict(zip(PARTS, parts)))


def the_end_says_where_the_time_went():
    for ranks in [0, 2] if MPIRUN else [0]:
        shutil.rmtree(path("kept"), ignore_errors=True)
        rc, _, err = run(LOUD + "--epochs 3 --limit 512 --save kept --log log".split(), ranks)
        end = records("log")[-1]
        check(rc == 0, ranks, rc, err[-3:])
        check_parts(end)
        check(min(end[name] for name in PARTS[2:6]) > 0 and (end["exposed_comm"] > 0 or not ranks), end)
        epochs = [r for r in records("log") if r["record"] == "epoch"]
        for name in ["compute", "exposed_comm", "data_wait"]:
            want = sum(e[name] * e["seconds"] for e in epochs)
            check(abs(end[name] * end["seconds"] - want) < 1e-3 + 1e-3 * want, name, end[name] * end["seconds"], want)
        line = [line for line in err if line.startswith("where the time")]
        check(len(line) == 1 and line[0].startswith("where the time of rank 0 went: " if ranks else "where the time went: "),
              line)
        said = {name: float(part) for part, name in re.findall(r"([\d.]+) % ([a-z ]+)", line[0])}
        check(abs(sum(said.values()) - 100) < 0.4 and abs(said["computing"] - 100 * end["compute"]) < 0.06, said, end)
    rc, _, err = run("--evaluate --resume kept --threads 1 --log log".split())
    end = records("log")[-1]
    check_parts(end)
    check(rc == 0 and end["evaluate"] > 0 == end["compute"] == end["data_wait"] == end["save"], end)
    check(any(line.startswith("where the time went: ") and "evaluating" in line and "computing" not in line for line in err),
          err)


def a_run_that_ends_early_says_where_the_time_went_too():
    """Within an epoch, of which there is no record."""
    shutil.rmtree(path("early"), ignore_errors=True)
    if os.path.exists(path("early-log")):
        os.unlink(path("early-log"))
    args = TINY + "--limit 4096 --batch 16 --epochs 1 --print-freq 1 --save early --log early-log".split()
    p = interrupt(args, "early-log", signal.SIGTERM)
    end = records("early-log")[-1]
    check(p.returncode == 143 and end["status"] == "preempted" and end["compute"] > 0 and end["save"] > 0, p.returncode, end)
    check_parts(end)


def a_stopped_process_does_not_compute():
    if os.path.exists(path("stop")):
        os.unlink(path("stop"))
    args = NO_BATCH + "--limit 4096 --batch 32 --epochs 1 --print-freq 1 --eval-freq 0 --log stop".split()
    p = subprocess.Popen(command(args, 0), cwd=HERE, stderr=subprocess.PIPE, text=True, env=environment(0))

    def steps():
        try:
            return sum(r["record"] == "step" for r in records("stop"))
        except (OSError, ValueError):
            return 0

    try:
        end = time.time() + 60
        while steps() < 5 and time.time() < end:
            time.sleep(0.02)
        stopped = 0
        for wait in [0.03, 0.11, 0.07]:  # within an update, and not always the same part of one
            time.sleep(wait)
            p.send_signal(signal.SIGSTOP)
            before = steps()
            began = time.time()
            time.sleep(2.5)
            stopped += time.time() - began
            p.send_signal(signal.SIGCONT)
        check(0 < before < 100, "stopped after", before, "updates")
        p.communicate(timeout=120)
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
    epoch = [r for r in records("stop") if r["record"] == "epoch"][0]
    end = [r for r in records("stop") if r["record"] == "end"][0]
    parts = epoch["compute"] + epoch["exposed_comm"] + epoch["data_wait"] + epoch["other"]
    check(end["seconds"] > stopped and epoch["seconds"] < end["seconds"] - stopped + 1, epoch, end)
    check(abs(parts - 1) < 1e-6 and epoch["compute"] > 0.9 and min(epoch["compute"], epoch["other"]) > -1e-6, epoch)
    check(abs(epoch["img_s"] * epoch["seconds"] - 4096) < 1, epoch)
    speed = sorted(r["img_s"] for r in records("stop") if r["record"] == "step")
    check(speed[0] > 0, "an update at", speed[0], "img/s")
    check(sum(32 / s for s in speed) < end["seconds"] - stopped + 1, "a pause is in the time of an update:", speed[:5], end)


def a_limit_says_what_it_reserves():
    """At the start, and when the run ends for it; a limit that is shorter is a warning."""
    for limit, short in ("17s", False), ("9s", True):
        rc, _, err = run(LOUD + f"--max-time {limit} --epochs 1000000 --eval-freq 0 --save limited --overwrite".split())
        start = [line for line in err if re.fullmatch(r"  limit      --max-time is in \d+s, less a reserve of \d+s to save and end "
                                                      r"\(twice a checkpoint, twice an update and 5s\)", line)]
        end = [line for line in err if re.match(r"--max-time is in \d+s: the run ends in time to save \(it reserves", line)]
        warned = [line for line in err if re.search(r"warning: --max-time is in \ds, but .* a reserve of \d+s: the run ends after one update", line)]
        check(rc == 143 and len(start) == 1 and len(end) == 1 and len(warned) >= short, limit, rc, start, end, warned, err[-3:])
        check("preempted (time is up)" in err[-1], err[-1])
    rc, _, err = run(LOUD + "--max-time 1h --epochs 1".split())
    check(rc == 0 and not any("--max-time is in" in line for line in err if not line.startswith("  limit ")), err)


run_all([progress_is_plain_lines_without_a_terminal,
         progress_is_a_bar_on_a_terminal,
         a_run_that_ends_by_steps_counts_steps,
         the_bar_of_a_run_that_ends_by_steps_is_that_of_steps,
         the_bar_goes_on_during_evaluation,
         a_line_comes_every_30_seconds_without_a_terminal,
         few_classes_have_no_top_5,
         every_record_has_the_time_of_day,
         the_record_of_a_signal_has_it_too,
         a_stopped_process_does_not_compute,
         the_end_says_where_the_time_went,
         a_run_that_ends_early_says_where_the_time_went_too,
         a_limit_says_what_it_reserves], sys.argv[3:], HERE)
