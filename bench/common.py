"""common.py - what the scripts of bench/ share: how programs are launched, what is installed, what a result is of."""
import argparse
import datetime
import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / "peers"
PLACE = ("--oversubscribe", "--bind-to", "none")


# ---- to launch ------------------------------------------------------------------------------------------------

def need(build, *programs):
    """Exits unless the build folder has these programs, with the command that builds them."""
    if missing := [p for p in programs if not os.access(build / p, os.X_OK)]:
        setup = "" if (build / "build.ninja").exists() else f"meson setup {build} && "
        sys.exit(f"{', '.join(str(build / p) for p in missing)} not built; to build: {setup}ninja -C {build} "
                 + " ".join(missing))


def need_modules(python, modules):
    if not has(python, modules):
        sys.exit(f"{python} has no {modules}; --python names a Python that has")


def mpirun(ranks, *options, place=PLACE):
    """How a command of so many ranks begins; as root, Open MPI wants to be told that it may."""
    if not shutil.which("mpirun"):
        sys.exit("there is no mpirun here; ./quickstart deps installs Open MPI")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, *place, "-np", ranks, *options]


def torchrun(python, ranks):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return [python, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", free.getsockname()[1]]


def first_core():
    """Of those that this process may use."""
    return min(os.sched_getaffinity(0))


def model_options(model, stem):
    """`stem` is None where a model has one of its own."""
    return ["--model", model, *(["--stem", stem] if stem else [])]


def words(command):
    return [str(c) for c in command]


def environment(threads, more=None):
    return dict(os.environ, OMP_NUM_THREADS=str(threads), **(more or {}))


def failed(command, status, output):
    sys.exit(f"{' '.join(words(command))}\nended with status {status}:\n{output}")


def reason(text):
    """The line of a failed command's output that says why it failed: our programs' own, else a Python error, else the
    first one that is not a line of mpirun's frame."""
    lines = [line.strip() for line in text.splitlines() if line.strip(" -=")]
    own = [line for line in lines if re.match(r"(bench_\w+|hvtrain|on_hosts\.sh|unshare): (?!warning: )", line)]
    errors = [line for line in lines if re.match(r"\w*(Error|Exception)\b", line)]
    return (own[:1] or errors[-1:] or lines[:1] or ["it printed nothing"])[0]


def output_of(command, more=None):
    """What it prints, with one thread a process and `more` in its environment; if it fails, so do we."""
    done = subprocess.run(words(command), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=environment(1, more))
    if done.returncode:
        failed(command, done.returncode, done.stdout + done.stderr)
    return done.stdout


# ---- to read --------------------------------------------------------------------------------------------------

def records(log):
    """Of hvtrain's --log."""
    return [json.loads(line) for line in log.read_text().splitlines()]


def torch_result(text):
    """The line that peers/torch_train.py prints, between what launchers say."""
    return json.loads(text[text.index('{"torch"'):].splitlines()[0])


def json_lines(text):
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


# ---- to say where and when ------------------------------------------------------------------------------------

def has(python, modules):
    """Does this Python find them? They are not imported, which takes seconds."""
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    return subprocess.run([python, "-c", look, *modules.split(", ")], capture_output=True).returncode == 0


def machine():
    text = Path("/proc/cpuinfo").read_text()
    name = next((l.split(":")[1].strip() for l in text.splitlines() if l.startswith("model name")), "?")
    flags = next((l for l in text.splitlines() if l.startswith("flags")), "").split()
    mpi = []
    if shutil.which("mpirun"):
        mpi = subprocess.run(["mpirun", "--version"], capture_output=True, text=True).stdout.splitlines()
    return {"cpu": name, "cores": os.cpu_count(),
            "isa": [f for f in ("avx2", "avx512f", "avx512_bf16", "amx_tile") if f in flags],
            "kernel": platform.release(), "mpi": mpi[0] if mpi else "?", "load": os.getloadavg()[0]}


def commit():
    done = subprocess.run(["git", "-C", HERE, "describe", "--always", "--dirty"], capture_output=True, text=True)
    return done.stdout.strip() or "unknown"


def now():
    return datetime.datetime.now().isoformat(timespec="seconds")


def dated(name):
    return HERE / "results" / f"{datetime.date.today()}-{name}"


def save(result, file):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=1) + "\n")


# ---- options --------------------------------------------------------------------------------------------------

def parser(text, python=None):
    """With --build and, where `python` says what it is good for, --python."""
    p = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=lambda text: Path(text).resolve(), default=HERE.parent / "build",
                   help="Meson's build folder")
    if python:
        p.add_argument("--python", type=program, help=f"{python} (default: the build folder's venv, else the one that runs "
                       "this)")
    return p


def program(text):
    if path := shutil.which(text):
        return path
    raise argparse.ArgumentTypeError(f"there is no program {text}")


def arguments(p):
    """The command line, with --python's default."""
    args = p.parse_args()
    if getattr(args, "python", "") is None:
        args.python = shutil.which(args.build / "venv/bin/python") or sys.executable
    return args


def several(kind=str):
    """An option's values, with commas between them."""
    return lambda text: [kind(part) for part in text.split(",")]
