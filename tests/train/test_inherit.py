#!/usr/bin/env python3
"""test_inherit.py HVTRAIN MPIRUN [NAME ...]: whatever a parent process hands down (descriptors, limits, signals, an
environment, a folder), a run gives the same bits, or one line that says what is missing; and its files are whole.
"""
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, command, environment, metadata, path, read_safetensors, records
from truths import Skip, check, run_all

ARGS = "--size 12 --samples 90 --batch 4 --shards 4 --threads 1 --lr 0.05 --print-freq 1 --epochs 2 --eval-freq 1".split()
MIB = 1 << 20


def fresh():
    for name in ["saved", "log", "there"]:
        if os.path.isdir(path(name)):
            shutil.rmtree(path(name))
        elif os.path.exists(path(name)):
            os.unlink(path(name))


def train(inherit=None, ranks=0, cwd=HERE, folder="", fds=(), **env):
    """Exit code and our lines of stderr."""
    env = {k: v for k, v in dict(environment(1), **env).items() if v is not None}
    where = folder + "/" if folder else ""
    p = subprocess.run(command(ARGS + ["--save", where + "saved", "--log", where + "log"], ranks), cwd=cwd,
                       stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120,
                       preexec_fn=inherit, close_fds=True, pass_fds=fds, env=env, errors="replace")
    return p.returncode, [line for line in p.stderr.splitlines() if line.startswith("hvtrain: ")]


def whole():
    """The weights of a run whose log and folder are whole."""
    log = records("log")
    check([r["record"] for r in log].count("step") == 12 and log[-1]["status"] == "done", log[-1])
    names = os.listdir(path("saved"))
    check("last.safetensors" in names and not [n for n in names if n.endswith(".tmp")], names)
    check(metadata(read_safetensors("saved/last.safetensors")[0])["steps"] == 12, "another last checkpoint")
    return log[-1]["weights"]


WANT = {}


def undisturbed():
    if not WANT:
        fresh()
        rc, ours = train()
        check(rc == 0, "exit", rc, ours)
        WANT[0] = whole()
    return WANT[0]


def check_same(what, *args, **more):
    want = undisturbed()
    fresh()
    rc, ours = train(*args, **more)
    check(rc == 0, what, "exit", rc, ours[-3:])
    if rc == 0:
        check(whole() == want, what, "other weights")


def check_refused(what, part, *args, **more):
    fresh()
    rc, ours = train(*args, **more)
    errors = [line for line in ours if "warning:" not in line and "note:" not in line]
    check(rc in (1, 2) and len(errors) == 1 and part in errors[0], what, rc, errors)


def limit(what, soft, hard=None):
    return lambda: resource.setrlimit(what, (soft, hard or soft))


def closed(*fds):
    def close():
        for fd in fds:
            os.close(fd)
    return close


def closed_descriptors_cost_nothing():
    for ranks in [0, 2] if MPIRUN else [0]:
        for fds in [[0], [1], [0, 1], [0, 1, 2]]:
            if ranks and 2 in fds:
                continue  # mpirun itself
            check_same(f"without {fds} on {ranks}", closed(*fds), ranks)
            with open(path("log"), "rb") as f:
                check(f.read(1) == b"{", "a message in the log")


def open_descriptors_cost_nothing():
    mine = [os.open("/dev/null", os.O_RDONLY) for _ in range(100)]
    check_same("100 descriptors", fds=mine)
    for fd in mine:
        os.close(fd)


def small_limits_are_enough_or_named():
    check_same("32 files", limit(resource.RLIMIT_NOFILE, 32))
    check_same("4 files at first", limit(resource.RLIMIT_NOFILE, 4, 1024))
    check_same("no core", limit(resource.RLIMIT_CORE, 0))
    check_same("a small stack at first", limit(resource.RLIMIT_STACK, 64 * 1024, 8 * MIB))
    check_refused("a small stack", "ulimit -s", limit(resource.RLIMIT_STACK, 128 * 1024))
    check_same("no more priority", lambda: os.nice(19))
    check_refused("10 files", "ulimit -n", limit(resource.RLIMIT_NOFILE, 10))
    for mib in [20, 30, 40, 50, 60, 70]:
        fresh()
        rc, ours = train(limit(resource.RLIMIT_AS, mib * MIB))
        check(rc in (0, 127) or rc == 1 and re.search("memory|ulimit -v", ours[-1]), mib, "MiB: exit", rc, ours[-2:])
    fresh()
    rc, ours = train(limit(resource.RLIMIT_FSIZE, 64 * 1024))
    check(rc == 1 and "saved" in ours[-1] and "ulimit -f" in ours[-1], rc, ours[-2:])
    check(not os.path.exists(path("saved")) or not [n for n in os.listdir(path("saved")) if n.endswith(".tmp")], "left over")


def a_mask_of_modes_is_the_users():
    """But the owner may use what the run writes."""
    for mask in [0, 0o077, 0o777]:
        check_same(f"umask {mask:o}", lambda mask=mask: os.umask(mask) and None)
        mode = os.stat(path("log")).st_mode & 0o777
        check(mode == 0o666 & ~(mask & 0o077), f"umask {mask:o}: mode {mode:o}")


def signals_that_are_blocked_or_ignored_cost_nothing():
    def inherit():
        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
        for sig in [signal.SIGCHLD, signal.SIGPIPE, signal.SIGHUP, signal.SIGINT, signal.SIGALRM]:
            signal.signal(sig, signal.SIG_IGN)

    for ranks in [0, 2] if MPIRUN else [0]:
        check_same(f"on {ranks}", inherit, ranks)


def an_odd_environment_costs_nothing():
    for what, env in {
            "HOME unset": {"HOME": None, "XDG_CACHE_HOME": None}, "HOME missing": {"HOME": "/nowhere/at/all"},
            "TMPDIR missing": {"TMPDIR": "/nowhere"}, "PATH unset": {"PATH": None},
            "OMP_NUM_THREADS": {"OMP_NUM_THREADS": "many", "OMP_PROC_BIND": "x", "OMP_SCHEDULE": "-1"},
            "locale": {"LC_ALL": "de_DE.UTF-8", "LANG": "tr_TR"}, "no such locale": {"LC_ALL": "xx_YY"},
            "TERM": {"TERM": "\x1b[31m"}, "huge": {f"HUGE_{i}": "x" * 100000 for i in range(15)},
            "time zone": {"TZ": "nowhere/else"}, "malloc": {"MALLOC_PERTURB_": "165"}}.items():
        check_same(what, **env)


def one_core_is_enough():
    check_same("one core", lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]))


def a_folder_that_was_removed_is_named():
    """Relative paths lead nowhere; absolute ones do."""
    def leave():
        os.mkdir("there")
        os.chdir("there")
        os.rmdir("../there")

    check_refused("a removed folder", "No such file or directory", leave)
    check_same("absolute paths", leave, folder=HERE)


def checkpoints_that_are_removed_are_not_said_to_be_there():
    for left in [False, True]:
        fresh()
        p = subprocess.Popen([HVTRAIN] + ARGS[:-4] + "--quiet --epochs 100000 --eval-freq 0 --save saved --save-every 5steps".split(),
                             cwd=HERE, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment(0))
        kept = path("saved/gen-000001.safetensors")
        end = time.time() + 60
        while not os.path.exists(kept) and time.time() < end:
            time.sleep(0.01)
        if left:  # all but the first, and no room for another
            resource.prlimit(p.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        else:
            os.rename(path("saved"), path("there"))
        _, err = p.communicate(timeout=60)
        lines = [line for line in err.splitlines() if line.startswith("hvtrain: ") and "warning:" not in line]
        check(p.returncode == 1 and len(lines) == 1, p.returncode, lines)
        found = re.search(r"; (saved/gen-\d+\.safetensors) .*is complete$", lines[-1])
        check(bool(found) == left and (left or "were removed: there is none to continue from" in lines[-1]), left, lines)
        check(not found or os.path.exists(path(found.group(1))), "is gone:", lines)


def a_second_program_of_a_launchers_rank_is_refused():
    if not MPIRUN:
        raise Skip("no mpirun")
    fresh()
    both = f'{HVTRAIN} {" ".join(ARGS)} --quiet --log log; {HVTRAIN} {" ".join(ARGS)} --quiet --log there'
    args = command([], 2)
    args[args.index(HVTRAIN):] = ["sh", "-c", both]
    p = subprocess.run(args, cwd=HERE, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, env=environment(2))
    lines = [line for line in p.stderr.splitlines() if line.startswith("hvtrain: a second MPI program started as the launcher's rank ")]
    check(p.returncode == 1 and lines and "MPI_INIT" not in p.stderr, p.returncode, p.stderr[-1500:])
    check(records("log")[-1]["status"] == "done" and not os.path.exists(path("there")), records("log")[-1])


TESTS = [
    checkpoints_that_are_removed_are_not_said_to_be_there,
    a_second_program_of_a_launchers_rank_is_refused,
    closed_descriptors_cost_nothing,
    open_descriptors_cost_nothing,
    small_limits_are_enough_or_named,
    a_mask_of_modes_is_the_users,
    signals_that_are_blocked_or_ignored_cost_nothing,
    an_odd_environment_costs_nothing,
    one_core_is_enough,
    a_folder_that_was_removed_is_named,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
