#!/usr/bin/env python3
"""How soon the first update is made, and how much memory training takes: hvtrain beside PyTorch DDP and, where it
is installed, Horovod; on the same machine in the same minutes, runs interleaved A B C A B C, medians of the rounds.

    bench/startup.py --build build --python venv/bin/python --data-dir cifar-10-batches-bin
    bench/startup.py --only resnet20-32 --rounds 9                  one case
    bench/startup.py --alone --resumed --only resnet50-128          what --resume adds

first    seconds from the launcher's start (mpirun, torchrun) to the end of the first update, on rank 0
memory   of the rank that has most: its peak of anonymous pages and its share of pages shared between processes
         (smaps_rollup: Anonymous + Pss_Shmem), looked at every --every milliseconds while it makes --steps updates,
         in a run of its own. Files that are mapped (programs, libraries, images) are no part of it.
ratio    PyTorch's least median over hvtrain's

With --resumed a run that goes on from a checkpoint stands beside hvtrain's; a line below them says what resuming adds,
and how long after the launcher's start each was ready to train (the record `start` of its log).

hvtrain maps CIFAR-10's files, checks all their labels and compares them over the ranks, before the first update;
PyTorch and Horovod draw one batch of floats and use it in every step: reading images costs them nothing, neither
time nor memory. Each rank has one thread. The table goes to the terminal, what was measured to --json.
"""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import common

CASES = {  # name: model, stem (None: its own), batch per rank
    "resnet20-32": ("resnet20", None, 32),
    "resnet20-128": ("resnet20", None, 128),
    "resnet18-64": ("resnet18", "cifar", 64),
    "resnet18-128": ("resnet18", "cifar", 128),
    "resnet50-64": ("resnet50", "imagenet", 64),
    "resnet50-128": ("resnet50", "imagenet", 128),
    "resnet50-256": ("resnet50", "imagenet", 256),
}
children = []  # launchers
checkpoints = {}  # case: folder


def mpirun():
    return common.mpirun(args.ranks, place=("--bind-to", "none"))


def hvtrain(case, steps, fifo):
    model, stem, batch = CASES[case]
    data = ["--data", "cifar10", "--data-dir", args.data_dir] if args.data_dir else []
    return [*mpirun(), args.build / "hvtrain", *common.model_options(model, stem), *data, "--batch", batch,
            "--threads", 1, "--steps", steps, "--lr", "0.001", "--print-freq", 1, "--quiet",
            "--log", fifo, *(["--limit", args.ranks * batch * steps] if args.data_dir else
                             ["--samples", args.ranks * batch * steps])]


def saved(case):
    """A folder with a checkpoint, after one update."""
    if case not in checkpoints:
        folder = Path(tempfile.mkdtemp(prefix="hvt-startup-"))
        checkpoints[case] = folder / "run"
        common.output_of(hvtrain(case, 1, folder / "log") + ["--save", folder / "run"])
    return checkpoints[case]


def resumed(case, steps, fifo):
    return hvtrain(case, steps + 1, fifo) + ["--resume", saved(case), "--save", "none"]


def torch_train(case, steps, layout):
    model, stem, batch = CASES[case]
    return [common.PEERS / "torch_train.py", "speed", *common.model_options(model, stem), "--batch", batch,
            "--threads", 1, "--warmup", 0, "--steps", steps, "--lr", "0.001", "--layout", layout]


def ddp(layout):
    return lambda case, steps, fifo: [*common.torchrun(args.python, args.ranks), *torch_train(case, steps, layout)]


def horovod(case, steps, fifo):
    return [*mpirun(), args.python, *torch_train(case, steps, "nchw"), "--horovod"]


def ranks_below(pid):
    """The processes below the launcher that train: by their name."""
    below = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                parent = int(Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1])
                below.setdefault(parent, []).append(int(entry))
            except (OSError, IndexError):
                pass
    found, left = [], [pid]
    while left:
        one = left.pop()
        left += below.get(one, [])
        try:
            words = Path(f"/proc/{one}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        launcher = any(w.endswith((b"mpirun", b"torch.distributed.run")) for w in words[:3])
        if not launcher and any(w.endswith((b"/hvtrain", b"torch_train.py")) for w in words):
            found.append(one)
    return found


def memory_of(pid):
    """Bytes of anonymous memory, and this process's share of shared memory."""
    sums = {}
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
            name, value = line.split()[:2]
            sums[name] = int(value) * 1024
    except (OSError, ValueError):
        return 0, 0
    return sums.get("Anonymous:", 0), sums.get("Pss_Shmem:", 0)


class Sampler(threading.Thread):
    """Looks at the memory of the ranks below a launcher until `over` is set. `found` is set once it sees them all."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.over, self.found = pid, {}, False, threading.Event()

    def run(self):
        ranks = []
        while not self.over:
            if len(ranks) < args.ranks:
                ranks = ranks_below(self.pid)
            for rank in ranks:
                anonymous, shared = memory_of(rank)
                before = self.peak.get(rank, {"sum": -1})
                if anonymous + shared > before["sum"]:
                    self.peak[rank] = {"sum": anonymous + shared, "anonymous": anonymous, "shared": shared}
            if len(ranks) == args.ranks:
                self.found.set()
            time.sleep(args.every / 1000)


def read_log(fifo, times, after):
    """hvtrain's records as they come: when the first of each kind did. Its log is a pipe, which rank 0 cannot open before
    this does: with an event `after`, a run that is shorter than the sampler's first look waits for it."""
    if after:
        after.wait()
    with open(fifo) as log:
        for line in log:
            record = json.loads(line)
            times.setdefault(record["record"], (time.time(), record))


def run(command_of, case, steps, sample):
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as out:
        fifo, times = Path(folder) / "log", {}
        os.mkfifo(fifo)
        command = common.words(command_of(case, steps, fifo))
        began = time.time()
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                                 env=common.environment(1))
        children.append(child)
        sampler = Sampler(child.pid)
        if sample:
            sampler.start()
        reader = threading.Thread(target=read_log, args=(fifo, times, sampler.found if sample else None), daemon=True)
        if str(fifo) in command:
            reader.start()
            # its evaluation is not waited for, in a run that is only timed
            while child.poll() is None and not ("step" in times and not sample):
                time.sleep(0.005)
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
                child.wait()
            elif child.returncode:
                out.seek(0)
                common.failed(command, child.returncode, out.read())
            reader.join(5)
            first = times["step"][0] - began
            extra = {"start": times["start"][1], "ready": times["start"][0] - began}
        else:
            child.wait()
            out.seek(0)
            text = out.read()
            if '{"torch"' not in text:  # with it, what fails is the way out
                common.failed(command, child.returncode, text)
            result = common.torch_result(text)
            first, extra = result["first_update_at"] - began, {"torch": result["torch"]}
        sampler.over = True
        if sample:
            sampler.join()
    peak = max(sampler.peak.values(), key=lambda p: p["sum"], default=None)
    return {"first": first, "peak": peak, **extra}


def stop(number, frame):
    for child in children:
        if child.poll() is None:
            child.terminate()
            child.wait()
    sys.exit(128 + number)


def warm():
    """The images into the page cache."""
    for path in Path(args.data_dir).rglob("*.bin") if args.data_dir else []:
        path.read_bytes()


def main():
    common.need(args.build, "hvtrain")
    if not args.alone:
        common.need_modules(args.python, "torch, torchvision, numpy")
    contenders = {"hvtrain": hvtrain, "DDP nchw": ddp("nchw"), "DDP channels_last": ddp("channels_last")}
    if common.has(args.python, "horovod.torch"):
        contenders["Horovod"] = horovod
    if args.alone:
        contenders = {"hvtrain": hvtrain}
    if args.resumed:
        contenders["hvtrain resumed"] = resumed
    results = {"date": common.now(), "commit": common.commit(), "machine": common.machine(), "ranks": args.ranks,
               "rounds": args.rounds, "steps": args.steps, "cases": []}
    print(f"{results['machine']['cpu']}, {results['machine']['cores']} cores, {results['machine']['mpi']}, commit "
          f"{results['commit']}, {args.ranks} ranks, median of {args.rounds} rounds")
    print(f"{'case':13} {'':18} {'first':>8} {'spread':>12} {'ratio':>6} {'memory':>10} {'anonymous':>10} "
          f"{'shared':>8} {'ratio':>6}")
    for case in args.only or CASES:
        warm()
        rounds = {name: [] for name in contenders}
        for _ in range(args.rounds):
            for name, command in contenders.items():
                rounds[name].append(run(command, case, 1, False))
        peaks = {name: [] for name in contenders}
        for _ in range(args.memory_rounds):
            for name, command in contenders.items():
                peak = run(command, case, args.steps, True)["peak"]
                peaks[name] += [peak] if peak else []  # too short a run ends before it was looked at
        first = {name: statistics.median(r["first"] for r in rounds[name]) for name in contenders}
        most = {name: statistics.median(p["sum"] for p in peaks[name]) if peaks[name] else 0 for name in contenders}
        for name in contenders:
            seconds = [r["first"] for r in rounds[name]]
            peak = min(peaks[name], key=lambda p: abs(p["sum"] - most[name])) if peaks[name] else {}
            peers = [n for n in contenders if not n.startswith("hvtrain")]
            ratio = [min(of[n] for n in peers) / of["hvtrain"] if peers and name == "hvtrain" and of["hvtrain"] else 0
                     for of in (first, most)]
            print(f"{case:13} {name:18} {first[name]:6.3f} s {min(seconds):5.2f}-{max(seconds):<6.2f} "
                  f"{format(ratio[0], '6.2f') if ratio[0] else '':6} {most[name] / 2**20:6.0f} MiB "
                  f"{peak.get('anonymous', 0) / 2**20:6.0f} MiB {peak.get('shared', 0) / 2**20:4.0f} MiB "
                  f"{format(ratio[1], '6.2f') if ratio[1] else '':6}", flush=True)
        if args.resumed:
            ready = [statistics.median(r["ready"] for r in rounds[name]) for name in ("hvtrain", "hvtrain resumed")]
            print(f"{case:13} resuming adds {first['hvtrain resumed'] - first['hvtrain']:.3f} s to the first update; ready "
                  f"after {ready[1]:.3f} s, without after {ready[0]:.3f} s", flush=True)
        results["cases"].append({"case": case, "first": rounds, "memory": peaks})
        if args.json:
            common.save(results, args.json)


p = common.parser(__doc__, python="a Python that has torch and torchvision")
p.add_argument("--only", action="append", choices=CASES, help="a case; may be repeated (default: all)")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--rounds", type=int, default=5, help="runs that are timed")
p.add_argument("--memory-rounds", type=int, default=1, help="runs whose memory is looked at")
p.add_argument("--steps", type=int, default=4, help="updates of the latter")
p.add_argument("--every", type=float, default=10, help="milliseconds between looks at memory")
p.add_argument("--alone", action="store_true", help="hvtrain only")
p.add_argument("--resumed", action="store_true", help="hvtrain from a checkpoint, too")
p.add_argument("--data-dir", type=Path, help="CIFAR-10's binary version; without it hvtrain draws its images")
p.add_argument("--json", type=Path, help="where to write all that was measured")
args = common.arguments(p)
if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    try:
        main()
    finally:
        for checkpoint in checkpoints.values():
            shutil.rmtree(checkpoint.parent)
