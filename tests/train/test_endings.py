#!/usr/bin/env python3
"""test_endings.py HVTRAIN MPIRUN [NAME ...]: how a run ends, and what does not end it.

Losses that are not finite, data that go away, disks that fill, pipes whose reader leaves, signals: alone and on two
ranks. The log's last record tells each ending. MPIRUN is a path, or "none".
"""
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import (HERE, MPIRUN, children, command, environment, metadata, path, rank_of, read_safetensors, records,
                     until)
from truths import Skip, check, run_all

TINY = "--size 16 --limit 64 --batch 8 --shards 2 --threads 1 --quiet --lr 0.05".split()
# One update an epoch, and after the first the weights stay where a rate far too high has put them: batch norm keeps
# the loss of training finite, and until the moving statistics have followed, evaluation overflows.
FAR = "--size 16 --limit 16 --batch 8 --shards 2 --threads 1 --quiet --momentum 0 --schedule multistep:1@1e-30 " \
      "--epochs 3".split()
FOREVER = TINY + "--epochs 1000000 --eval-freq 0 --print-freq 1".split()
RANKS = [0, 2] if MPIRUN else [0]


def start(args, ranks, file_limit=None, ignore=None, **more):
    if "--log" in args and os.path.isfile(path(args[args.index("--log") + 1])):
        os.unlink(path(args[args.index("--log") + 1]))  # a record that is seen is this run's
    return subprocess.Popen(command(args, ranks, file_limit, ignore), cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, env=environment(1), **more)  # no look at leaks


def finish(p, timeout=120):
    """Exit code, and our lines without warnings, and the warnings."""
    try:
        _, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.terminate()
        _, err = p.communicate(timeout=30)
        check(False, "hangs:", err[-800:])
    ours = [line for line in err.splitlines() if line.startswith("hvtrain")]
    return p.returncode, [line for line in ours if "warning:" not in line], [line for line in ours if "warning:" in line]


def run(args, ranks=0, **more):
    return finish(start(args, ranks, **more))


def until_steps(log, p, n=1):
    until(lambda: sum(r["record"] == "step" for r in records(log)) >= n, p, f"{n} steps in {log}")


# ---- losses ----

def a_loss_in_evaluation_that_is_not_finite_ends_no_run():
    for ranks in RANKS:
        save = f"infinite-{ranks}"
        rc, ours, warnings = run(FAR + ["--lr", "1e8", "--save", save, "--log", "log"], ranks)
        evals = [r for r in records("log") if r["record"] == "eval"]
        check(rc == 0 and not ours, ranks, rc, ours)
        check([r["loss"] is None for r in evals] == [True, False, False], [r["loss"] for r in evals])
        check(evals[0]["nan"] + evals[0]["inf"] > 0 and evals[0]["top1"] == 0, evals[0])
        check(evals[1]["loss"] > 2.0**30 and evals[1]["nan"] == evals[1]["inf"] == 0, evals[1])
        said = [w for w in warnings if "evaluation" in w]
        check(len(said) == 2 and "update 1:" in said[0] and "NaN" in said[0] and "update 2:" in said[1], said)
        rc, ours, _ = run(["--resume", save, "--epochs", "4", "--quiet", "--threads", "1"], ranks)
        check(rc == 0, "what was saved cannot be used:", ours)


def weights_whose_loss_is_not_finite_are_kept_but_never_the_best():
    args = FAR + "--lr 1e8 --save kept".split()
    rc, ours, _ = run(args + ["--steps", "1"])
    check(rc == 0 and os.path.exists(path("kept/last.safetensors")), rc, ours)
    check(not os.path.exists(path("kept/best.safetensors")), "NaN is the best")
    rc, ours, _ = run(args + ["--resume", "kept"])
    check(rc == 0 and os.path.exists(path("kept/best.safetensors")), rc, ours)


def a_loss_in_training_that_is_not_finite_says_what_to_try_and_what_is_left():
    base = "--size 16 --limit 16 --batch 8 --shards 2 --threads 1 --quiet --momentum 0 --print-freq 1".split()
    for ranks in RANKS:
        def diverges(*args):
            rc, ours, _ = run(base + ["--log", "log"] + " ".join(args).split(), ranks)
            check(rc == 1 and len(ours) == 1, ranks, args, rc, ours)
            last = records("log")[-1]
            check(last["record"] == "end" and last["status"] == "failed" and ours and last["error"] in ours[0], last)
            check("a lower --lr" in ours[0] and "-nan" not in ours[0], ours)
            return ours[0]

        save = f"diverged-{ranks}"
        line = diverges("--epochs 5 --lr 1e30")
        check("update 2 (1 of epoch 2)" in line and "there is no checkpoint" in line and "--warmup-epochs" in line, line)
        line = diverges("--epochs 5 --lr 1e30 --warmup-epochs 0.5 --amp bf16 --save", save)
        check("saved no good checkpoint" in line and "--amp f32" in line and "--warmup-epochs" not in line, line)
        rc, ours, _ = run(base + ["--epochs", "2", "--lr", "0.01", "--save", save + "-good"], ranks)
        check(rc == 0, ours)
        line = diverges("--epochs 5 --lr 1e30 --resume", save + "-good", "--save", save + "-other --eval-freq 0")
        check(f"{save}-other/last.safetensors (epoch 3, update 3)" in line, line)
        line = diverges("--epochs 5 --mean 1e30 --resume", save + "-good")
        check(f"checkpoint is {save}-good (epoch 2, update 2)" in line, line)


def a_rate_that_is_too_high_is_one_warning_before_the_loss_is_infinite():
    base = "--size 16 --samples 480 --batch 16 --shards 2 --threads 1 --quiet --epochs 1 --steps 15".split()
    for ranks in RANKS:
        for more, smaller in [("--model mlp --size 32 --lr 1 --shards 1 --steps 30", "--lr 0.1, or --warmup-epochs"), ("--lr 10", "--lr 0.1"),
                              ("--optimizer adam --lr 10 --warmup-epochs 0.01", "--lr 0.001"), ("--lr 10 --print-freq 1", "--lr 0.1"),
                              ("--lr 100 --steps 6", "--lr 0.1")]:  # fewer than the default of --print-freq
            if ranks and "--shards" in more:
                continue
            rc, ours, warnings = run(base + more.split(), ranks)
            said = [w for w in warnings if "too high; try" in w]
            check(rc == 0 and len(said) == 1 and said[0].endswith("try " + smaller + ("" if "warm" in more or "," in smaller else ", or --warmup-epochs")),
                  ranks, more, rc, ours, warnings)
        for healthy in ["--lr 0.1", "--lr 1", "--model mlp --lr 0.1", "--lr 0.2 --amp f16", "--optimizer adam --lr 0.001",
                        "--classes 2 --lr 0.3", "--lr 0.1 --print-freq 1"][:1 if ranks else None]:
            rc, ours, warnings = run(base + healthy.split(), ranks)
            check(rc == 0 and not warnings, ranks, healthy, warnings)
        if ranks:  # a job that goes on compares with its own first update
            check(run(base + "--save grown".split())[0] == 0, "no checkpoint")
            rc, ours, warnings = run("--threads 1 --quiet --resume grown --save none --epochs 2 --lr 10".split(), ranks)
            check(rc == 0 and any("too high; try --lr 0.1" in w for w in warnings), ours, warnings)


def statistics_that_overflow_are_not_saved_and_end_only_the_last_save():
    rc, ours, warnings = run(FAR + "--lr 1e10 --save overflow --log log".split())
    check(rc == 1 and len(ours) == 1 and "not saved" in ours[0] and "inf" in ours[0], rc, ours)
    check([r["epoch"] for r in records("log") if r["record"] == "eval"] == [1, 2, 3], "did not go on")
    check(sum("not saved" in w and "training continues" in w for w in warnings) == 1, warnings)
    check(metadata(read_safetensors("overflow/last.safetensors")[0])["epoch"] == 1, "not that of epoch 1")


# ---- data ----

def write_cifar(folder, records_of_a_file=24):
    os.makedirs(path(folder), exist_ok=True)
    for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
        with open(path(f"{folder}/{name}"), "wb") as f:
            for r in range(records_of_a_file):
                f.write(bytes([r % 10]) + bytes((r * 7 + i) % 256 for i in range(3072)))


def a_data_file_that_is_cut_during_a_run_is_one_line_with_its_path():
    for ranks in RANKS:
        for cut in ["data_batch_3.bin", "test_batch.bin"]:
            write_cifar("cut")
            p = start(f"--data cifar10 --data-dir cut --batch 8 --shards 2 --threads 1 --quiet --print-freq 1 --log log "
                      f"--epochs 1000000".split(), ranks)
            until_steps("log", p)
            os.truncate(path(f"cut/{cut}"), 5000)
            rc, ours, _ = finish(p)
            check(rc == 1 and len(ours) == 1 and f"cut/{cut}: ends in record" in ours[0], ranks, cut, rc, ours)
            check(not ranks or re.search(r"rank \d|cut/test", ours[0]), "which rank?", ours)
            last = records("log")[-1]
            check(last["record"] == "end" and last["status"] == "failed" and f"cut/{cut}" in last["error"], ranks, last)


# ---- the log ----

def a_log_that_fills_up_is_warned_of_and_counted_and_training_goes_on():
    """A limit is what can be had anywhere; the next one uses a disk."""
    for ranks in RANKS:
        rc, ours, warnings = run(TINY + "--log full --print-freq 1 --epochs 20".split(), ranks, file_limit=16384)
        check(rc == 0 and not ours, ranks, rc, ours)
        written = records("full")  # every line is whole
        said = [w for w in warnings if "--log full" in w]
        check(len(said) == 2 and "cannot write" in said[0] and "training continues" in said[0], said)
        missing = re.search(r"(\d+) records are missing", said[1] if said[1:] else "")
        # 1 start, 1 end, for each of 20 epochs 4 steps, epoch and eval
        expect = 2 + 20 * 6
        check(missing and int(missing.group(1)) + len(written) == expect, said, len(written))


def tmpfs(size):
    folder = path("disk")
    os.makedirs(folder, exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder], stderr=subprocess.DEVNULL)
    if done.returncode:
        raise Skip("no tmpfs can be mounted")
    return folder


def a_log_goes_on_where_it_stopped_once_the_disk_has_room_again():
    for ranks in RANKS:
        disk = tmpfs("1m")  # room for the records of many seconds once the ballast is gone
        p = None
        try:
            p = start(FOREVER + ["--log", "disk/log"], ranks)
            until_steps("disk/log", p)
            with open(path("disk/ballast"), "wb", buffering=0) as f:
                try:
                    while True:
                        f.write(b"x" * 4096)
                except OSError:
                    pass
            until(lambda: os.statvfs(disk).f_bavail == 0, p, "a full disk")
            size = -1
            while p.poll() is None and os.path.getsize(path("disk/log")) != size:  # the last page fills
                size = os.path.getsize(path("disk/log"))
                time.sleep(0.5)
            check(all(records("disk/log")), "a line is not whole")
            os.unlink(path("disk/ballast"))
            before = len(records("disk/log"))
            until(lambda: len(records("disk/log")) > before + 3, p, "more records")
            p.send_signal(signal.SIGTERM)
            finish(p)
            steps = [r["step"] for r in records("disk/log") if r["record"] == "step"]
            check(steps[0] == 1 and steps == sorted(set(steps)) and steps[-1] > len(steps), "nothing is missing?")
            check(records("disk/log")[-1]["status"] == "interrupted", records("disk/log")[-1])
        finally:
            if p and p.poll() is None:
                p.terminate()
                p.communicate()
            subprocess.run(["umount", disk])


def a_log_whose_first_record_cannot_be_written_is_refused():
    for ranks in RANKS:
        rc, ours, _ = run(TINY + "--log /dev/full --epochs 1".split(), ranks)
        check(rc == 1 and len(ours) == 1 and "--log /dev/full: cannot write" in ours[0], ranks, rc, ours)


def a_log_whose_reader_leaves_is_warned_of_and_training_goes_on():
    for ranks in RANKS:
        if os.path.exists(path("pipe")):
            os.unlink(path("pipe"))
        os.mkfifo(path("pipe"))
        got = []

        def read():
            with open(path("pipe")) as f:
                got.append(f.readline())

        reader = os.open(path("pipe"), os.O_RDONLY | os.O_NONBLOCK)  # so that the log can be opened
        p = start(TINY + "--log pipe --print-freq 1 --epochs 10".split(), ranks)
        t = threading.Thread(target=read)
        t.start()
        t.join(60)
        os.close(reader)
        rc, ours, warnings = finish(p)
        said = [w for w in warnings if "--log pipe" in w]
        check(rc == 0 and not ours, ranks, rc, ours)
        check(json.loads(got[0])["record"] == "start", got)
        check(len(said) == 2 and "Broken pipe" in said[0] and "missing" in said[1], said)


def a_timeline_whose_disk_fills_up_does_not_end_the_run():
    for ranks in RANKS:
        disk = tmpfs("400k")
        try:
            rc, ours, warnings = run(TINY + "--timeline disk/trace --log log --epochs 8 --bucket 0".split(), ranks)
            check(rc == 0 and not ours, ranks, rc, ours)
            check(any("disk/trace" in w and "timeline ends here" in w for w in warnings), warnings)
            with open(path("disk/trace")) as f:
                check(f.read().count('"ph":"X"') > 100, "no events")
            check(records("log")[-1]["status"] == "done", records("log")[-1])
        finally:
            subprocess.run(["umount", disk])


# ---- signals ----

def interrupted(args, ranks, sig, to=lambda p: p.send_signal, **more):
    log = "log"
    p = start(args + ["--log", log], ranks, **more)
    until_steps(log, p)
    to(p)(sig)
    rc, ours, _ = finish(p, 30)
    return rc, ours, records(log)[-1]


def a_signal_ends_the_run_with_one_line_and_the_log_with_a_record():
    for ranks in RANKS:
        for sig in [signal.SIGINT, signal.SIGTERM]:
            rc, ours, last = interrupted(FOREVER, ranks, sig)
            check(rc == (130 if sig == signal.SIGINT else 143) if not ranks else rc not in (0, None), ranks, sig, rc)
            check(len(ours) == 1 and "interrupted" in ours[0], ranks, sig, ours)
            check(last["record"] == "end" and last["status"] == "interrupted" and last["steps"] >= 1 and
                  last["signal"] in (["SIGTERM", "SIGINT"] if ranks else [sig.name]), last)


def a_signal_to_one_rank_ends_all_with_one_line_and_a_record():
    """Rank 0 says that it was interrupted; of another one it says that it has ended, or that the launcher ended it."""
    for rank in [0, 1]:
        def one(p):
            pid = rank_of(p, rank)
            return lambda sig: os.kill(pid, sig)

        rc, ours, last = interrupted(FOREVER, 2, signal.SIGTERM, to=one)
        check(rc not in (0, None) and len(ours) == 1, rank, rc, ours)
        check(ours and ("interrupted" in ours[0] or rank and "rank 1 (" in ours[0]), rank, ours)
        check(last["record"] == "end" and last["status"] == ("interrupted" if "interrupted" in ours[0] else "failed"),
              rank, last)


def usr1_that_is_ignored_stays_ignored():
    """As a batch script may do; and it silences nothing."""
    for ranks in RANKS:
        def usr1_then(p):
            def send(sig):
                for pid in children(p.pid) if ranks else [p.pid]:
                    os.kill(pid, signal.SIGUSR1)
                time.sleep(0.2)
                p.send_signal(sig)
            return send

        rc, ours, last = interrupted(FOREVER, ranks, signal.SIGTERM, to=usr1_then, ignore="USR1")
        check(len(ours) == 1 and "interrupted" in ours[0] and last["status"] == "interrupted", ranks, rc, ours, last)


TESTS = [
    a_loss_in_evaluation_that_is_not_finite_ends_no_run,
    weights_whose_loss_is_not_finite_are_kept_but_never_the_best,
    a_loss_in_training_that_is_not_finite_says_what_to_try_and_what_is_left,
         a_rate_that_is_too_high_is_one_warning_before_the_loss_is_infinite,
    statistics_that_overflow_are_not_saved_and_end_only_the_last_save,
    a_data_file_that_is_cut_during_a_run_is_one_line_with_its_path,
    a_log_that_fills_up_is_warned_of_and_counted_and_training_goes_on,
    a_log_goes_on_where_it_stopped_once_the_disk_has_room_again,
    a_log_whose_first_record_cannot_be_written_is_refused,
    a_log_whose_reader_leaves_is_warned_of_and_training_goes_on,
    a_timeline_whose_disk_fills_up_does_not_end_the_run,
    a_signal_ends_the_run_with_one_line_and_the_log_with_a_record,
    a_signal_to_one_rank_ends_all_with_one_line_and_a_record,
    usr1_that_is_ignored_stays_ignored,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
