#!/usr/bin/env python3
"""test_preempt.py HVTRAIN MPIRUN STUCK [NAME ...]: runs that save at any update, are asked to end, and are continued.

A run that is divided into jobs gives the weights and the numbers in the log of an undisturbed run. STUCK is hvtrain
with a place to get stuck (stuck.c): an update takes as long there as a truth needs.
"""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, command, environment, finish, kill, metadata, path, rank_of, read_safetensors, records
from truths import check, run_all

RANKS = [0, 2] if MPIRUN else [0]
STUCK = os.path.abspath(sys.argv[3])
# Four shards, six updates in an epoch, the last of them short.
RUN = "--size 12 --samples 90 --batch 4 --shards 4 --threads 1 --quiet --lr 0.05 --momentum 0.9 --augment crop:2,flip " \
      "--schedule cosine --warmup-epochs 0.7 --print-freq 4 --epochs 4".split()
FOREVER = RUN[:-2] + "--epochs 1000000 --eval-freq 0 --print-freq 1".split()


def fresh(*names):
    for name in names:
        shutil.rmtree(path(name), ignore_errors=True)
        if os.path.exists(path(name)):
            os.unlink(path(name))


def start(args, ranks=0, program=HVTRAIN, **env):
    words = [program if word == HVTRAIN else word for word in command(args, ranks)]
    return subprocess.Popen(words, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, env=dict(environment(1), **env))


def go(args, ranks=0, rc=0, **env):
    code, ours = finish(start(args, ranks, **env))
    check(code == rc if not ranks else (code == 0) == (rc == 0), "exit", code, "of", " ".join(args), ranks, ours)
    return ours


def until(truth, p, what, seconds=60):
    end, alive = time.time() + seconds, True
    while time.time() < end and alive:
        alive = p.poll() is None  # what came just before its end came, too
        try:
            if truth():
                return
        except (OSError, ValueError, IndexError):
            pass
        time.sleep(0.01)
    check(False, "never came:", what, p.poll())


def steps_in(log):
    return sum(r["record"] == "step" for r in records(log))


def starts_in(log):
    return sum(r["record"] == "start" for r in records(log))


def meta(name):
    return metadata(read_safetensors(name + "/last.safetensors")[0])


def best(name):
    return metadata(read_safetensors(name + "/best.safetensors")[0])


def numbers(log):
    """What a log says of a run, whatever jobs it was cut into and how long they took."""
    kept = {"step": "step epoch loss top1 lr loss_scale", "epoch": "epoch steps train_loss top1 top5",
            "eval": "epoch at_step loss top1 top5 count class_images class_hits"}
    return [(r["record"], [r[k] for k in kept[r["record"]].split()]) for r in records(log) if r["record"] in kept]


def undisturbed(args, ranks=0):
    fresh("straight", "straight-log")
    go(args + "--save straight --log straight-log".split(), ranks)
    return numbers("straight-log"), records("straight-log")[-1]["weights"], best("straight")["top1"], best("straight")["steps"]


def check_same(want, name, log, what):
    got = numbers(log)
    check(records(log)[-1]["weights"] == want[1], what, "other weights:", records(log)[-1]["weights"], want[1])
    check(got == want[0], what, "another log:", [x for x in zip(got, want[0]) if x[0] != x[1]][:2], len(got), len(want[0]))
    check((best(name)["top1"], best(name)["steps"]) == want[2:], what, "another best", best(name)["steps"], want[3])


# ---- saving ----

def a_run_saves_as_often_as_it_is_told():
    for every, right in [("5steps", lambda m: m["steps"] % 5 == 0), ("1step", lambda m: True),
                         ("2epochs", lambda m: m["step"] == 0 and m["epoch"] % 2 == 0)]:
        for ranks in RANKS:
            fresh("often")
            p = start(FOREVER + "--save often --save-every".split() + [every], ranks)
            seen = set()
            try:
                def look():
                    m = meta("often")
                    check(right(m), every, m["steps"], m["step"])
                    seen.add(m["steps"])
                    return len(seen) >= 4

                until(look, p, f"four saves every {every}")
            finally:
                kill(p)


def a_time_between_saves_is_kept_on_all_ranks():
    for ranks in RANKS:
        fresh("timed", "log")
        p = start(FOREVER + "--save timed --save-every 500ms --log log".split(), ranks)
        saves, seen = [], set()
        try:
            def look():
                steps = meta("timed")["steps"]
                if steps not in seen:
                    saves.append(time.time())
                    seen.add(steps)
                return len(saves) >= 4

            until(look, p, "four saves")
        finally:
            kill(p)
        # when a file is seen says nothing of a single gap: it may have been written late
        check(len(saves) == 4 and saves[-1] - saves[0] > 3 * 0.3, ranks, "saves at", saves)


def what_is_saved_within_an_epoch_goes_on_to_the_bit():
    for more in ["", "--amp f16 --loss-scale 1024", "--optimizer-state replicated --compression bf16",
                 "--compression powersgd:2", "--last-batch pad", "--last-batch drop --eval-freq 3"]:
        ranks = 2 if MPIRUN and ("bf16" in more or "powersgd" in more) else 0
        want = undisturbed(RUN + more.split(), ranks)
        fresh("cut", "cut-log")
        line = RUN + more.split() + "--save cut --resume auto --log cut-log".split()
        cuts = [1, 6, 9, 16] if not more else [5, 14]
        for job, cut in enumerate(cuts):  # each goes on from where the one before was cut
            p = start(line + "--save-every 1step --max-time none".split(), ranks)
            until(lambda: starts_in("cut-log") > job and meta("cut")["steps"] >= cut, p, f"update {cut}")
            p.send_signal(signal.SIGUSR1)
            finish(p)
        go(line, ranks)
        check(starts_in("cut-log") == len(cuts) + 1, more, "was not cut as often:", starts_in("cut-log"))
        check(records("cut-log")[-1]["weights"] == want[1], more, "other weights")
        check(best("cut")["top1"] == want[2], more, "another best")


def jobs_that_are_told_to_end_write_together_what_one_writes():
    """Each job is asked at once, so that it makes one update or a few; the log has each record once."""
    for more, all_ranks in [("", [0, 1, 2, 4]), ("--eval-freq 2 --save-every 2epochs", [0, 2]),
                            ("--amp f16 --loss-scale 1024 --optimizer-state sharded", [2, 4]), ("--steps 15", [0, 2])]:
        if not MPIRUN:
            all_ranks = [0]
        want = undisturbed(RUN + more.split())
        fresh("many", "many-log")
        line = RUN + more.split() + "--save many --resume auto --log many-log".split()
        for job in range(100):
            ranks = all_ranks[job % len(all_ranks)]
            p = start(line, ranks)
            until(lambda: starts_in("many-log") > job, p, "the start")
            time.sleep(0.003 * (job % 7))
            if p.poll() is None:
                # mpirun kills ranks soon after a SIGTERM of its own, on a busy machine before they have ended
                p.send_signal([signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1 if ranks else signal.SIGTERM][job % 3])
            rc, ours = finish(p)
            end = records("many-log")[-1]
            if end["status"] == "done":
                break
            check(rc != 0 and (ranks or rc == 143), "exit", rc, ours)
            check(end["status"] in ("preempted", "interrupted"), end)
            check(len(ours) == 1, ours)
        else:
            check(False, more, "does not come to its end")
        check(job > 1, more, "was not cut")
        check_same(want, "many", "many-log", more)


# ---- signals ----

def to_launcher(p):
    return p.pid


def a_signal_saves_and_ends_the_run():
    for ranks, to in [(0, to_launcher)] + ([(2, to_launcher), (2, lambda p: rank_of(p, 0)), (2, lambda p: rank_of(p, 1))]
                                           if MPIRUN else []):
        fresh("told", "log")
        before = 0
        for job, sig in enumerate([signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]):  # each goes on after the one before
            p = start(FOREVER + "--save told --resume auto --log log --preempt-exit 75".split(), ranks)
            until(lambda: starts_in("log") > job and records("log")[-1].get("step", 0) >= before + 8, p, "steps")
            resumed = [r for r in records("log") if r["record"] == "start"][-1]["resumed_steps"]
            check(resumed == before, "goes on after", resumed, "and not", before)
            os.kill(to(p), sig)
            began = time.time()
            rc, ours = finish(p, 60)
            last = records("log")[-1]
            check(rc == 75 if not ranks or sig != signal.SIGTERM or to != to_launcher else rc != 0, ranks, sig, rc)
            check(time.time() - began < 20, "took", time.time() - began)
            check(len(ours) == 1 and f"preempted ({sig.name}) after update {last['steps']} " in ours[0] and
                  "--resume told" in ours[0], ours)
            check(last["status"] == "preempted" and last["signal"] == sig.name and last["error"] is None, last)
            check(meta("told")["steps"] == last["steps"] and meta("told")["weights"] == last["weights"], last, meta("told"))
            check(not [n for n in os.listdir(path("told")) if n.endswith(".tmp")], os.listdir(path("told")))
            before = last["steps"]
        go(["--resume", "told", "--threads", "1", "--quiet", "--epochs", "100000", "--steps", str(before + 2)], ranks)


def without_a_folder_a_signal_ends_the_run_at_once():
    for ranks in RANKS:
        for sig in [signal.SIGUSR1, signal.SIGTERM]:
            fresh("log")
            p = start(FOREVER + "--log log".split(), ranks)
            until(lambda: steps_in("log") >= 3, p, "steps")
            p.send_signal(sig)
            rc, ours = finish(p, 60)
            last = records("log")[-1]
            check(rc == 143 if not ranks else rc != 0, ranks, sig, rc)
            check(len(ours) == 1 and "interrupted" in ours[0], ours)
            check(last["status"] == "interrupted" and last["signal"] == sig.name, last)


def start_stuck(name, ranks, *more):
    """A run that has saved after its last update, and whose next one does not come to its end until somebody opens
    the FIFO to write."""
    fifo = path("fifo")
    for old in [fifo, fifo + ".in"]:
        if os.path.exists(old):
            os.unlink(old)

    def kinds(kind):
        return [r for r in records("log") if r["record"] == kind] if os.path.exists(path("log")) else []

    had = len(kinds("start"))
    p = start(FOREVER + ["--save", name, "--log", "log", "--save-every", "1step", *more], ranks, STUCK,
              HVT_TEST_STUCK=f"data:0:{fifo}")
    until(lambda: len(kinds("start")) > had and kinds("step")[-1]["step"] > kinds("start")[-1]["resumed_steps"], p, "an update")
    os.mkfifo(fifo)
    until(lambda: os.path.exists(fifo + ".in") and meta(name)["steps"] == kinds("step")[-1]["step"], p, "to be stuck")
    return p, fifo


def a_second_signal_ends_the_run_at_once():
    fresh("twice", "log")
    p, _ = start_stuck("twice", 0)
    before = meta("twice")["steps"]
    p.send_signal(signal.SIGTERM)
    time.sleep(0.3)
    p.send_signal(signal.SIGTERM)  # within a second it is the same request
    time.sleep(1.2)
    check(p.poll() is None, "ended with", p.poll())
    p.send_signal(signal.SIGTERM)
    began = time.time()
    rc, ours = finish(p, 60)
    check(rc == 143 and time.time() - began < 3, rc, time.time() - began)
    check(len(ours) == 1 and "second signal" in ours[0], ours)
    check(records("log")[-1]["status"] == "interrupted", records("log")[-1])
    check(meta("twice")["steps"] == before, "another checkpoint")


def a_launcher_that_kills_soon_leaves_the_checkpoint_and_a_whole_log():
    """mpirun waits for a second after SIGTERM, which is too short for such an update."""
    if not MPIRUN:
        return check(True)
    fresh("soon", "log")
    p, _ = start_stuck("soon", 2)
    before = meta("soon")["steps"]
    p.send_signal(signal.SIGTERM)
    rc, ours = finish(p, 60)
    check(rc != 0 and len(ours) == 1 and "the launcher kills" in ours[0], rc, ours)
    check(records("log")[-1]["status"] == "interrupted", records("log")[-1])
    check(meta("soon")["steps"] == before, "another checkpoint")
    check(not [n for n in os.listdir(path("soon")) if n.endswith(".tmp")], os.listdir(path("soon")))
    # after SIGUSR1, which it passes on, it does not kill
    p, fifo = start_stuck("soon", 2, "--resume", "auto")
    before = meta("soon")["steps"]
    p.send_signal(signal.SIGUSR1)
    time.sleep(1.5)
    check(p.poll() is None, "ended with", p.poll())
    with open(fifo, "w"):
        pass
    rc, ours = finish(p)
    check(rc == 143 and len(ours) == 1 and "preempted (SIGUSR1)" in ours[0], rc, ours)
    check(before < meta("soon")["steps"] == records("log")[-1]["steps"], meta("soon")["steps"], before)


def write_cifar(folder, train, test):
    os.makedirs(path(folder), exist_ok=True)
    for name, n in [(f"data_batch_{i}.bin", train) for i in range(1, 6)] + [("test_batch.bin", test)]:
        with open(path(f"{folder}/{name}"), "wb") as f:
            for r in range(n):
                f.write(bytes([r % 10]) + bytes((r * 7 + i * (r % 3)) % 256 for i in range(3072)))


def a_signal_in_an_evaluation_ends_it_and_the_next_job_makes_it():
    write_cifar("uneven", 8, 900)
    args = "--data cifar10 --data-dir uneven --batch 5 --shards 2 --threads 1 --quiet --print-freq 1 --lr 0.02 --epochs 2".split()
    want = undisturbed(args)
    for ranks in RANKS:
        fresh("tested", "tested-log")
        line = args + "--save tested --resume auto --log tested-log".split()
        for epoch in [1, 2]:
            p = start(line, ranks)
            until(lambda: records("tested-log")[-1]["record"] == "epoch", p, "the end of an epoch")
            p.send_signal(signal.SIGUSR1)
            began = time.time()
            rc, ours = finish(p)
            check(rc == 143 if not ranks else rc != 0, ranks, rc, ours)
            check(time.time() - began < 10 and len(ours) == 1 and "preempted" in ours[0], time.time() - began, ours)
            check(meta("tested")["epoch"] == epoch and meta("tested")["top1"] < 0, meta("tested"))
        go(line, ranks)
        check_same(want, "tested", "tested-log", f"{ranks} ranks")


def a_rank_that_dies_meanwhile_is_no_reason_to_wait_or_to_save():
    if not MPIRUN:
        return check(True)
    for wait in [None, "3"]:  # what the launcher allows until SIGTERM, and again until SIGKILL
        fresh("dies", "log")
        env = {"OMPI_MCA_odls_base_sigkill_timeout": wait} if wait else {}
        p = start(FOREVER + "--save dies --log log --save-every 1000000steps".split(), 2, **env)
        until(lambda: steps_in("log") >= 5, p, "steps")
        victim, other = rank_of(p, 1), rank_of(p, 0)
        os.kill(victim, signal.SIGKILL)
        began = time.time()
        while os.path.exists(f"/proc/{other}") and time.time() < began + 15:
            time.sleep(0.02)
        check(time.time() - began < 12, wait, "rank 0 stayed for", time.time() - began)
        rc, ours = finish(p, 60)
        check(rc not in (0, 143), rc, ours)
        check(records("log")[-1]["status"] in ("failed", "interrupted"), records("log")[-1])
        check(not os.path.exists(path("dies/last.safetensors")), "something was saved")


# ---- time ----

def a_run_ends_before_its_time_is_up():
    for ranks in RANKS:
        for more, env in [("--max-time 9s", {}), ("--max-time 0.15m --save-every 2steps", {}),
                          ("", {"SLURM_JOB_END_TIME": "+9"}), ("--max-time auto", {"SLURM_JOB_END_TIME": "+9"})]:
            fresh("late", "log")
            began = time.time()
            env = {k: str(int(began) + int(v)) for k, v in env.items()}
            p = start(FOREVER + "--save late --log log".split() + more.split(), ranks, **env)
            rc, ours = finish(p, 60)
            took, last = time.time() - began, records("log")[-1]
            check(rc == 143 if not ranks else rc != 0, ranks, more, rc)
            check(took < 9, ranks, more, "took", took)
            check(len(ours) == 1 and "preempted (time is up)" in ours[0], ours)
            check(last["status"] == "preempted" and last["signal"] is None and meta("late")["steps"] == last["steps"], last)


def position(name):
    """How far a run is: updates, and images of an evaluation that is due."""
    if not os.path.exists(path(name + "/last.safetensors")):
        return 0, 0
    at = meta(name)["position"]
    return meta(name)["steps"], at.get("begun", {}).get("images", 0) if at["untested"] else 1000


def jobs_whose_time_is_always_up_come_to_the_end():
    """Each makes one update, or goes on with an evaluation that is longer than its time: never less."""
    write_cifar("slots", 8, 33)
    args = "--data cifar10 --data-dir slots --batch 5 --shards 2 --threads 1 --quiet --print-freq 1 --lr 0.02 --epochs 2".split()
    for more in [[], ["--ema", "0.9"], ["--steps", "6"], ["--lr", "0", "--epochs", "3"]]:  # the last: an evaluation without a new best
        want = undisturbed(args + more)
        for all_ranks in [[0], [2, 1, 0]] if MPIRUN and not more else [[0]]:
            fresh("slots-run", "slots-log")
            before, parts = (0, 0), 0
            for job in range(60):
                rc, ours = finish(start(args + more + "--save slots-run --resume auto --log slots-log --max-time 1ms".split(),
                                        all_ranks[job % len(all_ranks)]))
                if rc == 0:
                    break
                now = position("slots-run")
                check(records("slots-log")[-1]["status"] == "preempted" and now > before, more, job, rc, before, now, ours)
                if 0 < now[1] < 1000:
                    parts += 1
                    check(len(ours) == 1 and f"goes on from there, with image {now[1] + 1} of the evaluation" in ours[0], ours)
                before = now
            else:
                check(False, more, all_ranks, "never comes to its end")
            check(parts >= 6, more, all_ranks, "evaluations were interrupted", parts, "times")
            check_same(want, "slots-run", "slots-log", f"{all_ranks} {more}")


def an_evaluation_alone_or_of_other_images_or_options_starts_anew():
    write_cifar("slots", 8, 33)
    write_cifar("others", 8, 34)
    args = "--data cifar10 --batch 5 --shards 2 --threads 1 --quiet --print-freq 1 --lr 0.02 --epochs 1 --seed 3".split()
    for first, then in [("--data-dir slots", "--data-dir others"),
                        ("--data-dir slots --weight-decay 0", "--data-dir slots --weight-decay 0.1")]:
        fresh("changed", "changed-log")
        for _ in range(6):
            go(args + first.split() + "--save changed --resume auto --log changed-log --max-time 1ms".split(), rc=143)
        check(0 < position("changed")[1] < 33, "the evaluation was not interrupted:", position("changed"))
        go("--evaluate --resume changed --threads 1 --log alone-log".split())
        check([r["count"] for r in records("alone-log") if r["record"] == "eval"] == [33], records("alone-log"))
        fresh("alone-log")
        go(args + then.split() + "--save changed --resume auto --log changed-log".split())
        count = [r["count"] for r in records("changed-log") if r["record"] == "eval"]
        check(count == [34 if "others" in then else 33], first, then, count)


def a_job_with_a_limit_saves_its_first_update_at_once():
    """If saving takes longer than anybody thought it is late for the last moment, and so it would be in each job."""
    for ranks in RANKS:
        fresh("early")
        p = start(FOREVER + "--save early --save-every 1000000steps --max-time 1h".split(), ranks)
        try:
            until(lambda: meta("early")["steps"] >= 1, p, "a checkpoint")
            check(p.poll() is None, "ended")
        finally:
            kill(p)


def no_limit_is_no_limit():
    go(RUN + "--save unlimited --max-time none".split(), SLURM_JOB_END_TIME=str(int(time.time()) + 1))
    go(RUN, SLURM_JOB_END_TIME=str(int(time.time()) + 1))  # nothing to save: it goes on as long as it may
    go(RUN, SLURM_JOB_END_TIME="soon")


# ---- other shards ----

def with_other_shards_the_epoch_goes_on_where_it_was_left():
    for shards, batch, steps in [(2, 4, 8), (8, 4, 2), (1, 10, 7), (4, 8, 3), (4, 4, 4)]:
        fresh("reshard", "log")
        # two updates of 16 of 90 images, then 58 are left
        go(RUN + "--save reshard --steps 2".split())
        go(f"--resume reshard --threads 1 --quiet --epochs 1 --shards {shards} --batch {batch} --print-freq 1 --log log".split(),
           max(r for r in RANKS if r <= shards))
        log = records("log")
        want = -(-58 // (shards * batch))
        check(sum(r["record"] == "step" for r in log) == want, shards, batch, "updates:", [r for r in log if r["record"] == "step"])
        check(log[-1]["steps"] == 2 + want, log[-1])
        check([r["epoch"] for r in log if r["record"] == "epoch"] == [1], "epochs")


def what_is_wrong_is_refused():
    for args, part in [("--save x --save-every 10", "1epoch, 500steps, 10m"), ("--save x --save-every 0epochs", "--save-every"),
                       ("--save x --save-every 3weeks", "--save-every"), ("--save-every 10m", "needs --save DIR"),
                       ("--max-time 90", "--max-time"), ("--max-time 10m1h", "--max-time"), ("--preempt-exit 256", "0 to 255")]:
        rc, ours = finish(start(RUN + args.split()))
        check(rc == 2 and len(ours) == 1 and part in ours[0], args, rc, ours)


TESTS = [
    a_run_saves_as_often_as_it_is_told,
    a_time_between_saves_is_kept_on_all_ranks,
    what_is_saved_within_an_epoch_goes_on_to_the_bit,
    jobs_that_are_told_to_end_write_together_what_one_writes,
    a_signal_saves_and_ends_the_run,
    without_a_folder_a_signal_ends_the_run_at_once,
    a_second_signal_ends_the_run_at_once,
    a_launcher_that_kills_soon_leaves_the_checkpoint_and_a_whole_log,
    a_signal_in_an_evaluation_ends_it_and_the_next_job_makes_it,
    a_rank_that_dies_meanwhile_is_no_reason_to_wait_or_to_save,
    a_run_ends_before_its_time_is_up,
    jobs_whose_time_is_always_up_come_to_the_end,
    an_evaluation_alone_or_of_other_images_or_options_starts_anew,
    a_job_with_a_limit_saves_its_first_update_at_once,
    no_limit_is_no_limit,
    with_other_shards_the_epoch_goes_on_where_it_was_left,
    what_is_wrong_is_refused,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[4:], HERE)
