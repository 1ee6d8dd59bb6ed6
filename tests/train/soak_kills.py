#!/usr/bin/env python3
"""soak_kills.py HVTRAIN MPIRUN [KILLS [SEED]]: one run after another is killed again and again, and each must end as if
undisturbed.

A run of a few hundred updates saves every few updates or every second. Its jobs are started by one command line
(--save DIR --resume auto) on 1, 2 or 4 ranks, and meet, drawn at random: kill -9 of a rank, of all, or of the
launcher, at a random moment or while a checkpoint is being written; now and then a signal that asks the run to end,
sent to a rank, to all of them, or to the launcher. When a job reaches the end of the run:

- its weights are those of a run that was not disturbed;
- the best top-1 of the folder is that run's, too;
- the epochs' records that the log has agree with those of that run;
- nothing is left in the folder that does not belong there.

After every job no process of it runs, and nothing is left in /dev/shm but for Open MPI's own files, which outlive a
launcher that is killed.

CI runs a few kills; run some thousand by hand. Its last line sums up; the exit code is 1 if anything was broken.

mpirun of Open MPI 4.1 sometimes hangs when its ranks were killed (docs/clusters.md). If no rank is left it is killed
and counted, which breaks nothing.
"""
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid

HVTRAIN, MPIRUN = os.path.abspath(sys.argv[1]), sys.argv[2]
KILLS = int(sys.argv[3]) if len(sys.argv) > 3 else 200
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
HERE = tempfile.mkdtemp(prefix="hvt-kills-")
FOLDER, LOG = os.path.join(HERE, "run"), os.path.join(HERE, "log.jsonl")
# 40 updates in an epoch, the last of them short
TRAIN = "--size 16 --samples 630 --batch 4 --shards 4 --threads 1 --lr 0.03 --quiet --augment crop:2,flip --schedule " \
        "cosine --epochs 5".split()
KINDS = [[], ["--amp", "f16"], ["--optimizer-state", "replicated"], ["--comm", "mpi"], ["--last-batch", "pad"]]
MARK = uuid.uuid4().hex  # in the environment of all our processes
draw = random.Random(SEED)
broken = []


def complain(*what):
    broken.append(" ".join(str(w) for w in what))
    print("BROKEN " + broken[-1], flush=True)


def start(args, ranks, log):
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    launch = [] if not ranks else [MPIRUN, *root, *("--oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl "
                                                    f"self,vader -np {ranks}").split()]
    return subprocess.Popen(launch + [HVTRAIN] + args + ["--log", log], cwd=HERE, stdin=subprocess.DEVNULL,
                            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                            env=dict(os.environ, HVT_SOAK=MARK))


def records(log):
    found = []
    if os.path.exists(log):
        with open(log, "rb") as f:
            for line in f.read().split(b"\n"):
                try:
                    found.append(json.loads(line))
                except ValueError:
                    pass  # a last line may have been cut by a kill
    return found


def epochs(log):
    """By epoch, the last record of each: what the sums of a whole epoch are."""
    return {r["epoch"]: [r[k] for k in ("steps", "train_loss", "top1", "top5")] for r in records(log) if r["record"] == "epoch"}


def metadata(name):
    with open(os.path.join(FOLDER, name + ".safetensors"), "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        return json.loads(json.loads(f.read(n))["__metadata__"]["hvtrain"])


def ranks_of(p, launched):
    if not launched:
        return [p.pid]
    try:
        with open(f"/proc/{p.pid}/task/{p.pid}/children") as f:
            return [int(c) for c in f.read().split()]
    except OSError:
        return []


def send(pids, sig):
    sent = 0
    for pid in pids:
        try:
            os.kill(pid, sig)
            sent += 1
        except OSError:
            pass
    return sent


def processes():
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/environ", "rb") as f:
                if MARK.encode() in f.read():
                    found.append(int(pid))
        except OSError:
            pass
    return found


def shared_memory():
    return {name for name in os.listdir("/dev/shm") if not name.startswith(("vader_segment", "sm_segment", "ompi"))}


def nothing_runs(before):
    end = time.time() + 30
    while (left := processes()) and time.time() < end:
        time.sleep(0.02)
    if left:
        complain("processes are left:", left)
        send(left, signal.SIGKILL)
    if shared_memory() - before:
        complain("left in /dev/shm:", shared_memory() - before)


def nothing_is_left():
    """In the folder of a run that is at its end: generations with their sidecar files, two names, and the lock."""
    names = set(os.listdir(FOLDER))
    whole = {n for n in names if re.fullmatch(r"gen-\d{6}\.safetensors", n)}
    known = whole | {n.replace(".safetensors", ".momentum.safetensors") for n in whole}
    known |= {"last.safetensors", "best.safetensors", ".hvtrain.lock"}
    if names != known or len(whole) > 4:
        complain("the folder is not what it should be:", sorted(names ^ known), len(whole), "generations")


def writing():
    try:
        return any(n.endswith(".tmp") for n in os.listdir(FOLDER))
    except OSError:
        return False


def moment(p, while_writing):
    """A random one, or within a save."""
    time.sleep(draw.uniform(0.2, 2.5))
    end = time.time() + 3
    while while_writing and p.poll() is None and time.time() < end and not writing():
        time.sleep(0.0005)
    return while_writing and writing()


def disturb(p, ranks, count):
    what = draw.choice(["rank", "rank", "all", "launcher", "ask"])
    within = moment(p, draw.random() < 0.5)
    if p.poll() is not None:
        return
    pids = ranks_of(p, ranks > 0)
    if what == "ask":
        whom = draw.choice([[p.pid], pids, draw.sample(pids, 1) if pids else []])
        send(whom, draw.choice([signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2]))
        count["asked"] += 1
        return
    victims = [p.pid] if what == "launcher" else pids + [p.pid] if what == "all" else draw.sample(pids, 1) if pids else []
    if send(victims, signal.SIGKILL):
        count["kills"] += 1
        count["within a save"] += within
    if what == "launcher":  # its ranks notice by themselves, or do not
        time.sleep(0.1)
        send(pids, signal.SIGKILL)


def progress():
    return [os.path.getsize(LOG) if os.path.exists(LOG) else 0] + (sorted(os.listdir(FOLDER)) if os.path.exists(FOLDER) else [])


def wait(p, ranks, count):
    """What it says on stderr; None: for two minutes nothing was logged or saved. A machine may be busy with others."""
    before, since, alone = progress(), time.time(), None
    while time.time() < since + 120:
        try:
            return p.communicate(timeout=1)[1]
        except subprocess.TimeoutExpired:
            pass
        if progress() != before:
            before, since = progress(), time.time()
        alone = None if not ranks or ranks_of(p, True) else alone or time.time()
        if alone and time.time() > alone + 20:
            count["launchers hung"] += 1
            p.kill()
            return p.communicate()[1]
    return None


def job(args, ranks, count):
    """True: it came to the end of the run."""
    before = shared_memory()
    p = start(args, ranks, LOG)
    disturb(p, ranks, count)
    err = wait(p, ranks, count)
    if err is None:
        complain("stands still:", " ".join(args))
        send(processes(), signal.SIGKILL)
        return False
    nothing_runs(before)
    if p.returncode and "another job saves there" in err:
        time.sleep(1)
    elif p.returncode and "checkpoint" in err and "damaged" in err:
        complain(err[-400:])
    return p.returncode == 0


def one_run(count):
    kind = draw.choice(KINDS)
    straight = os.path.join(HERE, "straight.jsonl")
    for name in [FOLDER, LOG, straight]:
        if os.path.isdir(name):
            shutil.rmtree(name)
        elif os.path.exists(name):
            os.unlink(name)
    p = start(TRAIN + kind, 0 if "mpi" not in kind else 1, straight)
    _, err = p.communicate()
    if p.returncode:
        sys.exit("the undisturbed run failed: " + err[-800:])
    want = records(straight)[-1]["weights"]
    top1 = max(r["top1"] for r in records(straight) if r["record"] == "eval")
    before = count["kills"]
    every = draw.choice(["1step", "3steps", "7steps", "200ms", "1s", "1epoch"])
    args = TRAIN + kind + ["--save", FOLDER, "--resume", "auto", "--save-every", every]
    for _ in range(200):
        ranks = draw.choice([1, 2, 4] if "mpi" in kind else [0, 1, 2, 4])
        if job(args, ranks, count):
            break
    else:
        return complain("never comes to its end:", " ".join(args))
    end = records(LOG)[-1]
    if end.get("weights") != want:
        complain("other weights:", end.get("weights"), "expected", want, kind, every)
    if abs(metadata("best")["top1"] - top1) > 1e-9:
        complain("best is", metadata("best")["top1"], "expected", top1)
    got, whole = epochs(LOG), epochs(straight)
    if any(got[e] != whole[e] for e in got):
        complain("other epochs:", [(got[e], whole[e]) for e in got if got[e] != whole[e]])
    nothing_is_left()
    print(f"a run that saves every {every} {' '.join(kind)}: {count['kills'] - before} kills, weights {end.get('weights')}", flush=True)


def main():
    began = time.time()
    count = {"kills": 0, "within a save": 0, "asked": 0, "launchers hung": 0}
    runs = 0
    print(f"seed {SEED}", flush=True)
    try:
        while count["kills"] < KILLS:
            one_run(count)
            runs += 1
    finally:
        shutil.rmtree(HERE, ignore_errors=True)
    print(f"{runs} runs, {count['kills']} kills ({count['within a save']} within a save), {count['asked']} asked to end, "
          f"{count['launchers hung']} launchers hung without ranks, {time.time() - began:.0f} s, {len(broken)} broken")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
