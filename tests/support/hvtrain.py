"""hvtrain as scripts run it, alone and on several ranks. Programs with this begin with HVTRAIN MPIRUN, MPIRUN being a
path, or "none"."""
import json
import os
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

import truths
from truths import Skip, check, on_ranks

HVTRAIN = os.path.abspath(sys.argv[1])
MPIRUN = None if sys.argv[2] == "none" else sys.argv[2]
HERE = tempfile.mkdtemp(prefix="hvt-test-")
TINY = "--size 16 --limit 64 --batch 16 --threads 1 --quiet --lr 0.05 --augment crop:2,flip".split()


def command(args, ranks, file_limit=None, ignore=None):
    program = [HVTRAIN] + args
    network = "self,vader"
    if file_limit:  # blocks of 512 bytes; without files that Open MPI would share memory by
        program = ["sh", "-c", f'ulimit -f {file_limit // 512}; exec "$0" "$@"'] + program
        network = "self,tcp"
    if ignore:
        program = ["sh", "-c", f'trap "" {ignore}; exec "$0" "$@"'] + program
    if not ranks:
        return program
    if not MPIRUN:
        raise Skip("no mpirun")
    return on_ranks(MPIRUN, ranks, program, network)


def environment(ranks):
    env = {k: v for k, v in os.environ.items() if not k.startswith("HVT_")}
    if ranks:  # Open MPI does not free all it has
        env["ASAN_OPTIONS"] = "detect_leaks=0:" + env.get("ASAN_OPTIONS", "")
    return env


def run(args, ranks=0, timeout=120, file_limit=None):
    """Exit code and lines of stderr (ours: those that begin with "hvtrain:")."""
    p = subprocess.Popen(command(args, ranks, file_limit), cwd=HERE, stdin=subprocess.DEVNULL,
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(ranks))
    try:
        out, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.terminate()  # mpirun takes its ranks along
        out, err = p.communicate(timeout=30)
        check(False, "hangs:", " ".join(args), err[-500:])
        return None, out, []
    return p.returncode, out, err.splitlines()


def finish(p, timeout=120):
    """Exit code, and our lines without warnings."""
    try:
        _, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        _, err = p.communicate(timeout=30)
        check(False, "hangs:", err[-800:])
    return p.returncode, [line for line in err.splitlines() if line.startswith("hvtrain") and "warning:" not in line]


def read_terminal(fd, pid, look=lambda text: None):
    """What a program prints on a pseudo-terminal to its end, and its exit code. look is called with the text so far."""
    text = b""
    while True:
        look(text.decode(errors="replace"))
        if not select.select([fd], [], [], 0.05)[0]:
            continue
        try:
            more = os.read(fd, 65536)
        except OSError:
            break
        if not more:
            break
        text += more
    return text.decode(errors="replace"), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def path(name):
    return os.path.join(HERE, name)


def no_json(text):
    raise ValueError(text + " is no JSON")


def records(name):
    with open(path(name)) as f:
        return [json.loads(line, parse_constant=no_json) for line in f]


def fresh(*names):
    """Removes these files and folders."""
    for name in names:
        if os.path.isdir(path(name)):
            shutil.rmtree(path(name))
        elif os.path.exists(path(name)):
            os.unlink(path(name))


def until(truth, p, what):
    """Waits, as long as the process lives, for what is true soon."""
    end = time.time() + 60
    while time.time() < end and p.poll() is None:
        try:
            if truth():
                return
        except (OSError, ValueError, KeyError, IndexError):
            pass
        time.sleep(0.002)
    check(False, "never came to", what, "exit", p.poll())


def until_steps(p, n=3):
    until(lambda: sum(r["record"] == "step" for r in records("log")) >= n, p, "steps")


def train(args, ranks=0, log="log", timeout=120):
    """A run that must succeed; its records by kind, without the time of day, in which all runs differ."""
    rc, _, err = run(TINY + ["--log", log] + args, ranks, timeout)
    check(rc == 0, "exit", rc, "of", " ".join(args), "on", ranks, "ranks:", err[-3:])
    kinds = {}
    for r in records(log) if rc == 0 else []:
        if r["record"] == "start":  # those before are of the run that this one goes on with
            kinds = {}
        r.pop("time", None)  # a line of the user's has none
        kinds.setdefault(r["record"], []).append(r)
    return kinds


def weights(kinds):
    return kinds["end"][0]["weights"] if "end" in kinds else None


def read_safetensors(name):
    with open(path(name), "rb") as f:
        data = f.read()
    n, = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + n]), data[8 + n:]


def metadata(header):
    """What hvtrain says of a file in its header."""
    return json.loads(header["__metadata__"]["hvtrain"])


def change_metadata(header, **values):
    """What a file says of itself, without the hashes that would show the change."""
    about = {**metadata(header), **values}
    about.pop("sealed", None)
    header["__metadata__"].pop("seal", None)
    header["__metadata__"]["hvtrain"] = json.dumps(about)


def write_safetensors(name, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    if os.path.islink(path(name)):  # and not what it leads to
        os.unlink(path(name))
    with open(path(name), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def generations(folder):
    """The files with the weights, oldest first."""
    return sorted(os.path.join(folder, name) for name in os.listdir(path(folder))
                  if name.startswith("gen-") and name.endswith(".safetensors") and name.count(".") == 1)


def make_old(folder):
    """The folder as earlier releases wrote it: last and best are files, with sidecar files of their own."""
    for name in ["last", "best"]:
        weights = f"{folder}/{name}.safetensors"
        header, data = read_safetensors(weights)
        momentum = f"{name}-0123456789abcdef.momentum.safetensors"
        shutil.copy(path(f"{folder}/{metadata(header)['momentum']}"), path(f"{folder}/{momentum}"))
        change_metadata(header, momentum=momentum)
        write_safetensors(weights, header, data)
    for name in os.listdir(path(folder)):
        if name.startswith("gen-"):
            os.unlink(path(f"{folder}/{name}"))


def python_with(modules):
    if python := truths.python_with(modules, os.path.dirname(HVTRAIN)):
        return python
    raise Skip(f"no {modules}")


def children(pid):
    """mpirun's are its ranks."""
    found = []
    for child in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{child}/stat") as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(child))
        except (OSError, ValueError):
            pass
    return found


def rank_of(p, rank):
    """The process of a rank below mpirun."""
    end = time.time() + 120
    while time.time() < end:
        for child in children(p.pid):
            try:
                with open(f"/proc/{child}/environ", "rb") as f:
                    if f"OMPI_COMM_WORLD_RANK={rank}".encode() in f.read().split(b"\0"):
                        return child
            except OSError:
                pass
        time.sleep(0.01)
    raise AssertionError(f"rank {rank} does not come")


def kill(p):
    """All of a job at once, as a node that fails does; until nothing of it runs."""
    pids = [p.pid] + children(p.pid)
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    p.communicate()
    end = time.time() + 30
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.time() < end:
        time.sleep(0.01)
