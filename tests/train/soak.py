#!/usr/bin/env python3
"""soak.py HVTRAIN MPIRUN [SECONDS|Nevents [SEED]]: for an hour, jobs on one folder of checkpoints meet what clusters do
to them.

A job is started by the command that a SLURM requeue repeats (--save DIR --resume auto), on 1, 2 or 4 ranks. While it
runs, one of these happens at random: ranks or the launcher are killed, stopped or interrupted, the disk of the
checkpoints or of the log is full, the data are truncated or deleted, a second job is started on the same folder.
Afterwards this must hold:

- a job ends within LIMIT seconds, and one that fails says why in a line of its own;
- `last` is not older than it was, and after a whole epoch its weights are those of an undisturbed run, to the bit;
- `best` is the best of all epochs up to `last`;
- the log is whole lines of JSON;
- no process of the job and no file in /dev/shm is left.

CI runs a few events; run it for hours by hand. Its last line sums up; the exit code is 1 if anything was broken. As
root it mounts two small file systems in order to fill them; otherwise those events are left out.

mpirun of Open MPI 4.1 sometimes hangs when its ranks were killed (docs/clusters.md). If no rank is left it is killed
and counted, which breaks nothing.
"""
import collections
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
LENGTH = sys.argv[3] if len(sys.argv) > 3 else "3600"
EVENTS_MOST = int(LENGTH[:-6]) if LENGTH.endswith("events") else float("inf")
SECONDS = float("inf") if LENGTH.endswith("events") else float(LENGTH)
SEED = int(sys.argv[4]) if len(sys.argv) > 4 else int(time.time())
LIMIT = 900  # seconds that a job may take on a busy machine
EPOCHS = 6
HERE = tempfile.mkdtemp(prefix="hvt-soak-")
DATA, DISK, SMALL = (os.path.join(HERE, name) for name in ("data", "disk", "small"))
RUN, LOG = os.path.join(DISK, "run"), os.path.join(HERE, "log.jsonl")
TRAIN = f"--data cifar10 --data-dir {DATA} --augment crop:4,flip --batch 8 --shards 4 --threads 1 --lr 0.02 --quiet".split()
HANGS = 20  # seconds after which an mpirun without ranks hangs
draw = random.Random(SEED)
broken = []
hung = []  # launchers
shm_before = set(os.listdir("/dev/shm"))


def complain(*what):
    broken.append(" ".join(str(w) for w in what))
    print("BROKEN " + broken[-1], flush=True)


# ---- data ----

def make_data():
    shutil.rmtree(DATA, ignore_errors=True)
    os.mkdir(DATA)
    pixels = random.Random(1)
    for name, images in [(f"data_batch_{i}.bin", 128) for i in range(1, 6)] + [("test_batch.bin", 100)]:
        with open(os.path.join(DATA, name), "wb") as f:
            for _ in range(images):
                label = pixels.randrange(10)
                f.write(bytes([label]) + bytes((label * 20 + pixels.randrange(60)) % 256 for _ in range(3072)))


# ---- checkpoints and logs, read from outside ----

def metadata(name):
    """What a checkpoint says of itself; None: there is none."""
    path = os.path.join(RUN, name + ".safetensors")
    if not os.path.exists(path):
        return None
    with open(path, "rb") as f:
        n, = struct.unpack("<Q", f.read(8))
        meta = json.loads(json.loads(f.read(n))["__metadata__"]["hvtrain"])
    for key in "momentum", "adam", "powersgd", "raw":
        if meta.get(key) and not os.path.exists(os.path.join(RUN, meta[key])):
            complain(name, "names", meta[key], "which is not there")
    return meta


def epoch_of(meta):
    """Epochs that are complete. A job that was asked to end may have saved within the next one."""
    return meta["epoch"] if meta else 0


def files():
    """Every file of the folder with its bytes, but for the lock's."""
    found = {}
    for name in os.listdir(RUN) if os.path.isdir(RUN) else []:
        if not name.startswith(".") and "lock" not in name:
            with open(os.path.join(RUN, name), "rb") as f:
                found[name] = hash(f.read())
    return found


def check_log(path):
    if not os.path.exists(path):
        return
    with open(path, "rb") as f:
        text = f.read()
    lines = text.split(b"\n")
    for i, line in enumerate(lines):
        if not line:
            continue
        try:
            json.loads(line, parse_constant=lambda c: complain("log:", c, "is no JSON"))
        except ValueError:
            if i < len(lines) - 1:  # the last one may have been killed while it was written
                complain(f"log: line {i + 1} of {len(lines)} is no JSON: {line[:100]!r}")


# ---- jobs ----

class Job:
    def __init__(self, ranks, args, log=LOG):
        self.mark = uuid.uuid4().hex
        root = ["--allow-run-as-root"] if os.getuid() == 0 else []
        launch = ([] if ranks == 0 else [MPIRUN] + root + "--oversubscribe --bind-to none --mca mpi_yield_when_idle 1"
                  f" --mca btl self,vader -np {ranks}".split())
        self.command = " ".join(args)
        self.err = tempfile.TemporaryFile("w+")
        env = dict(os.environ, HVT_SOAK_JOB=self.mark)
        self.process = subprocess.Popen(launch + [HVTRAIN] + args + (["--log", log] if log else []), cwd=HERE, env=env,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.err)
        self.launched = ranks > 0

    def ranks(self):
        """Process numbers of hvtrain itself."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    mine = self.mark.encode() in f.read()
                with open(f"/proc/{pid}/comm") as f:
                    if mine and f.read().startswith("hvtrain"):
                        found.append(int(pid))
            except OSError:
                pass
        return found

    def signal_rank(self, sig):
        for pid in draw.sample(ranks, 1) if (ranks := self.ranks()) else []:
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass

    def signal_launcher(self, sig):
        self.process.send_signal(sig)

    def end(self, must=None, may_be_silent=False):
        """Wait for its end. `must`: the codes that it may have."""
        alone = None  # since when it has no ranks
        end = time.time() + LIMIT
        while (code := self.process.poll()) is None and time.time() < end:
            time.sleep(0.02)
            alone = None if not self.launched or self.ranks() else alone or time.time()
            if alone and time.time() > alone + HANGS:
                hung.append(self.command)
                may_be_silent = True
                break
        if code is None:
            if not alone:
                complain("does not end:", self.command, self.text()[-600:])
            self.process.kill()
            self.process.wait()
        end = time.time() + 30
        while self.ranks() and time.time() < end:
            time.sleep(0.05)
        if self.ranks():
            complain("processes are left of", self.command, self.text()[-600:])
            for pid in self.ranks():
                os.kill(pid, signal.SIGKILL)
        left = {f for f in os.listdir("/dev/shm") if "hvt" in f} - shm_before
        if left:
            complain("files are left in /dev/shm:", left)
        lines = [line for line in self.text().splitlines() if "hvtrain:" in line]
        if must is not None and code not in must:
            complain("exit", code, "expected", must, self.command, self.text()[-600:])
        if code not in (0, None) and not lines and not may_be_silent:
            complain("exit", code, "without a word:", self.command, self.text()[-600:])
        return code, lines

    def text(self):
        self.err.seek(0)
        return self.err.read()


def go_on(epochs=None, log=LOG, ranks=None):
    """The command of a requeued job; alone, or on so many ranks."""
    ranks = draw.choice([0, 1, 2, 4]) if ranks is None else ranks
    target = epochs or min(EPOCHS, epoch_of(metadata("last")) + draw.randint(1, 3))
    return Job(ranks, TRAIN + f"--save {RUN} --resume auto --epochs {target}".split(), log)


def a_moment():
    time.sleep(draw.uniform(0, 4))


# ---- what happens ----

def nothing():
    go_on().end(must=[0])


def a_rank_is_killed():
    job = go_on()
    a_moment()
    job.signal_rank(signal.SIGKILL)
    job.end(may_be_silent=True)


def the_launcher_is_killed():
    job = go_on(ranks=draw.choice([1, 2, 4]))
    a_moment()
    job.signal_launcher(signal.SIGKILL)
    job.end(may_be_silent=True)


def the_launcher_is_interrupted():
    job = go_on()
    a_moment()
    job.signal_launcher(draw.choice([signal.SIGTERM, signal.SIGINT]))
    job.end(may_be_silent=True)  # a job that is still starting says nothing


def a_rank_is_interrupted():
    job = go_on()
    a_moment()
    job.signal_rank(draw.choice([signal.SIGTERM, signal.SIGINT]))
    job.end(may_be_silent=True)


def a_rank_is_stopped_for_a_moment():
    job = go_on()
    for _ in range(draw.randint(1, 3)):
        a_moment()
        stopped = draw.sample(ranks, 1) if (ranks := job.ranks()) else []
        for sig in signal.SIGSTOP, signal.SIGCONT:
            for pid in stopped:
                try:
                    os.kill(pid, sig)
                except ProcessLookupError:
                    pass
            time.sleep(draw.uniform(0, 1))
    job.end(must=[0])


def a_second_job_starts():
    first = go_on(epochs=EPOCHS)
    if draw.random() < 0.5:
        a_moment()
    second = go_on(epochs=EPOCHS, log=None)
    codes = []
    for job in first, second:
        code, lines = job.end()
        codes.append(code)
        if code and not any(RUN in line for line in lines):
            complain("a second job is refused without the folder's name:", lines)
    if 0 not in codes:  # one after the other, both may succeed
        complain("of two jobs at once none went on:", codes)


def the_same_command_comes_again():
    before = files()
    code, lines = Job(draw.choice([0, 2]), TRAIN + f"--save {RUN} --epochs 1".split(), None).end()
    if before and metadata("last"):
        if code == 0 or not any("--resume" in line for line in lines):
            complain("a run that would overwrite another's checkpoint is not refused:", code, lines)
        if files() != before:
            complain("a refused run changed the folder")


def the_disk_is_full():
    ballast = os.path.join(DISK, "ballast")
    os.makedirs(RUN, exist_ok=True)
    if draw.random() < 0.5:
        job, late = go_on(), True
        a_moment()
    else:
        late = False
    left = draw.choice([0, 4096, 500_000, 1_500_000, 3_000_000])
    space = os.statvfs(DISK).f_bavail * os.statvfs(DISK).f_frsize
    with open(ballast, "wb") as f:
        try:
            f.write(bytes(max(0, space - left)))
        except OSError:
            pass
    if not late:
        job = go_on()
    job.end()
    os.unlink(ballast)


def the_disk_of_the_log_is_full():
    log = os.path.join(SMALL, "log.jsonl")
    ballast = os.path.join(SMALL, "ballast")
    if os.path.exists(log):
        os.unlink(log)
    job = go_on(log=log)
    a_moment()
    with open(ballast, "wb") as f:
        try:
            f.write(bytes(1 << 20))
        except OSError:
            pass
    code, lines = job.end()
    if code and not any("log" in line for line in lines):
        complain("a full disk under the log:", code, lines)
    check_log(log)
    os.unlink(ballast)


def the_data_are_truncated():
    job = go_on()
    a_moment()
    name = os.path.join(DATA, draw.choice(os.listdir(DATA)))
    os.truncate(name, draw.randrange(os.path.getsize(name)))
    code, lines = job.end()
    if code and not any(DATA in line for line in lines):
        complain("truncated data are not named:", code, lines)
    make_data()


def the_data_are_deleted():
    job = go_on()
    a_moment()
    shutil.rmtree(DATA)
    code, lines = job.end()
    if code and not any(DATA in line for line in lines):
        complain("deleted data are not named:", code, lines)
    make_data()


def it_is_evaluated():
    before = files()
    if metadata("last"):
        Job(draw.choice([0, 2]), TRAIN + f"--evaluate --resume {RUN}".split(), None).end(must=[0])
        if files() != before:
            complain("an evaluation changed the folder")


EVENTS = [nothing, a_rank_is_killed, a_rank_is_killed, a_rank_is_killed, the_launcher_is_killed, the_launcher_is_interrupted,
          a_rank_is_interrupted, a_rank_is_stopped_for_a_moment, a_second_job_starts, the_same_command_comes_again,
          the_data_are_truncated, the_data_are_deleted, it_is_evaluated]


def undisturbed():
    """Weights and top-1 after each epoch of a run that nobody disturbs."""
    reference = {}
    log = os.path.join(HERE, "reference.jsonl")
    Job(0, TRAIN + f"--epochs {EPOCHS} --save {RUN} --save-every 1epoch --keep {EPOCHS}".split(), log).end(must=[0])
    with open(log) as f:
        top1 = {r["epoch"]: r["top1"] for r in map(json.loads, f) if r["record"] == "eval"}
    for name in os.listdir(RUN):
        if re.fullmatch(r"gen-\d{6}\.safetensors", name):
            meta = metadata(name.removesuffix(".safetensors"))
            reference[meta["epoch"]] = meta["weights"], top1[meta["epoch"]]
    shutil.rmtree(RUN)
    if set(reference) != set(range(1, EPOCHS + 1)):
        sys.exit(f"the undisturbed run has saved {sorted(reference)} of {EPOCHS} epochs")
    return reference


def check_folder(reference, before):
    last, best = metadata("last"), metadata("best")
    epoch = epoch_of(last)
    if epoch < before:
        complain(f"epoch {before} was saved, epoch {epoch} is there")
    for meta in filter(None, (last, best)):
        if not meta["step"] and meta["weights"] != reference[epoch_of(meta)][0]:
            complain("epoch", meta["epoch"], "has other weights than without disturbance:", meta["weights"])
    tested = epoch - (last["position"]["untested"] and not last["step"]) if last else 0
    if tested:
        most = max(reference[e][1] for e in range(1, tested + 1))
        if not best or float(best["top1"]) < most - 1e-6 * most:
            complain("best has", best and best["top1"], "but epochs 1 to", tested, "reached", most)
    check_log(LOG)


def mount(folder, size):
    os.mkdir(folder)
    return os.getuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", folder]).returncode == 0


def main():
    began = time.time()
    count = collections.Counter()
    finished = 0
    mounted = [folder for folder, size in ((DISK, "24m"), (SMALL, "64k")) if mount(folder, size)]
    events = EVENTS + ([the_disk_is_full, the_disk_is_full, the_disk_of_the_log_is_full] if len(mounted) == 2 else [])
    try:
        make_data()
        reference = undisturbed()
        print(f"seed {SEED}; {len(reference)} epochs in {time.time() - began:.0f} s", flush=True)
        while time.time() - began < SECONDS and sum(count.values()) < EVENTS_MOST:
            before = epoch_of(metadata("last"))
            if before == EPOCHS:  # all done: from the beginning
                finished += 1
                shutil.rmtree(RUN)
                before = 0
            event = draw.choice(events)
            count[event.__name__] += 1
            started, so_far = time.time(), len(broken)
            event()
            check_folder(reference, before)
            print(f"{'ok    ' if len(broken) == so_far else 'BROKEN'} {event.__name__}: epoch {before} -> "
                  f"{epoch_of(metadata('last'))} ({time.time() - started:.1f} s)", flush=True)
    finally:
        for folder in mounted:
            subprocess.run(["umount", "-l", folder])
        shutil.rmtree(HERE, ignore_errors=True)
    print(", ".join(f"{name} {n}" for name, n in sorted(count.items())))
    print(f"{sum(count.values())} events in {time.time() - began:.0f} s, {finished} runs finished, {len(hung)} launchers hung "
          f"without ranks, {len(broken)} broken")
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()
