"""soak_tcp.py HVTRAIN COUNT [SEED]: so many random kills and stops of jobs that were started without MPI: by --spawn, at
an address or by a file; before, while and after the ranks meet. Every job must end soon, name the cause unless the whole
job was ended, and leave no process and no file."""
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

HVTRAIN, COUNT = os.path.abspath(sys.argv[1]), int(sys.argv[2])
draw = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
TRAIN = ("--model resnet20 --data synth --samples 64 --size 16 --batch 8 --epochs 100000 --threads 1 --quiet "
         "--stall-warn 1s --stall-abort 2s").split()
LIMIT = 30  # s
faults = 0


def start(args, folder):
    return subprocess.Popen([HVTRAIN, *TRAIN, *args], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=open(os.path.join(folder, "err"), "ab"))


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(p) for p in f.read().split()]
    except OSError:
        return []


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def one(folder):
    n, how = draw.randint(2, 4), draw.choice(["spawn", "spawn", "tcp", "file"])
    comm = draw.choice(["auto", "tcp"])
    if how == "spawn":
        jobs = [start(["--spawn", str(n), "--comm", comm], folder)]
    else:
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            where = "tcp://127.0.0.1:%d" % s.getsockname()[1]
        where = where if how == "tcp" else f"file://{folder}/meet"
        jobs = [start(["--init-method", where, "--rank", str(r), "--world-size", str(n), "--comm", comm], folder)
                for r in range(n)]
    time.sleep(draw.choice([0.02, 0.1, 0.3, 1, 2]) * draw.random())
    ranks = children(jobs[0].pid) if how == "spawn" else [j.pid for j in jobs]
    parent = how == "spawn" and (draw.random() < 0.2 or not ranks)
    victim = jobs[0].pid if parent else draw.choice(ranks)
    sig = signal.SIGKILL if parent else draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
    os.kill(victim, sig)
    what = f"{how} of {n}, comm {comm}, {signal.Signals(sig).name} to {'the parent' if parent else 'rank %d' % ranks.index(victim)}"
    wrong = []
    until = time.time() + LIMIT
    stopped = victim if sig == signal.SIGSTOP else None
    for j in jobs:
        if j.pid == stopped:
            continue
        try:
            code = j.wait(max(0.1, until - time.time()))
            if code == 0:
                wrong.append("exit 0")
        except subprocess.TimeoutExpired:
            wrong.append("hangs")
    if stopped and how != "spawn":  # whoever stopped it may kill it
        os.kill(stopped, signal.SIGKILL)
    for j in jobs:
        if wrong:
            j.kill()
        j.wait()
    until = time.time() + 3
    while any(map(alive, ranks)) and time.time() < until:
        time.sleep(0.02)
    if any(map(alive, ranks)):
        wrong.append("processes are left")
        for pid in filter(alive, ranks):
            os.kill(pid, signal.SIGKILL)
    said = open(os.path.join(folder, "err")).read()
    left = [f for f in os.listdir(folder) if f != "err" and not (f == "meet" and sig != signal.SIGTERM)]
    if left:
        wrong.append(f"files are left: {left}")
    if not parent and not any(word in said for word in ["has ended", "was killed", "giving up", "gives up", "did not join",
                                                        "did not reach", "interrupted", "refuses", "before the job started"]):
        wrong.append("no line names the cause")
    return what, wrong, said


for i in range(COUNT):
    with tempfile.TemporaryDirectory(prefix="hvt-soak-") as scratch:
        what, wrong, said = one(scratch)
        if wrong:
            faults += 1
            print(f"{i + 1}: {what}: {', '.join(wrong)}\n{said[-1500:]}", flush=True)
print(f"{COUNT} events, {faults} faults")
sys.exit(faults != 0)
