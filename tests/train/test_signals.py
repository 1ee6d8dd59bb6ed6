#!/usr/bin/env python3
"""test_signals.py HVTRAIN MPIRUN STUCK [NAME ...]: the effect of each signal, at each moment of a run and with any inherited
signal settings. STUCK is hvtrain with a place to get stuck (stuck.c).
"""
import os
import pty
import re
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import (HERE, HVTRAIN, MPIRUN, command, environment, finish, fresh, metadata, path, rank_of,
                     read_safetensors, read_terminal, records, until, until_steps)
from truths import Skip, check, run_all

STUCK = os.path.abspath(sys.argv[3])
TINY = "--size 12 --samples 90 --batch 4 --shards 4 --threads 1 --lr 0.05 --print-freq 1".split()
FOREVER = TINY + "--quiet --epochs 1000000 --eval-freq 0 --log log".split()
ASKING = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU]


def start(args, ranks=0, program=HVTRAIN, blocked=(), ignored=(), **env):
    def inherit():
        signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
        for sig in ASKING:  # the test itself may run under nohup
            signal.signal(sig, signal.SIG_IGN if sig in ignored else signal.SIG_DFL)

    words = [program if word == HVTRAIN else word for word in command(args, ranks)]
    return subprocess.Popen(words, cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                            text=True, preexec_fn=inherit, env=dict(environment(1), **env))


def until_it_handles(sig, pid, p):
    """From main() on: the handlers are the first that it installs."""
    def handles():
        with open(f"/proc/{pid()}/status") as f:
            caught = next(line for line in f if line.startswith("SigCgt:"))
        return int(caught.split()[1], 16) >> (sig - 1) & 1

    until(handles, p, "its handlers")


def saved(folder):
    return metadata(read_safetensors(folder + "/last.safetensors")[0])


def check_preempted(folder, p, sig, least=1):
    rc, ours = finish(p)
    end = records("log")[-1]
    check(rc == (130 if sig == signal.SIGINT else 143), sig, "exit", rc, ours)
    check(len(ours) == 1 and f"preempted ({sig.name}) after update {end['steps']} " in ours[0] and
          f"--resume {folder} goes on from there" in ours[0], ours)
    check(end["status"] == "preempted" and end["signal"] == sig.name and end["steps"] >= least, end)
    check(saved(folder)["steps"] == end["steps"], saved(folder)["steps"], end)


def each_signal_saves_and_says_how_to_go_on():
    for sig in ASKING:
        fresh("told", "log")
        p = start(FOREVER + ["--save", "told"])
        until_steps(p)
        p.send_signal(sig)
        check_preempted("told", p, sig, 3)


def without_a_folder_each_ends_the_run_and_says_that_nothing_is_saved():
    for sig in ASKING:
        fresh("log")
        p = start(FOREVER)
        until_steps(p)
        p.send_signal(sig)
        rc, ours = finish(p)
        check(rc == (130 if sig == signal.SIGINT else 143), sig, "exit", rc)
        check(ours == [f"hvtrain: interrupted ({sig.name}): without --save DIR nothing is saved"], ours)
        check(records("log")[-1]["status"] == "interrupted" and records("log")[-1]["signal"] == sig.name, records("log")[-1])


def a_mask_of_the_parent_keeps_none_away():
    for sig in ASKING:
        fresh("told", "log")
        p = start(FOREVER + ["--save", "told"], blocked=ASKING)
        until_steps(p)
        p.send_signal(sig)
        check_preempted("told", p, sig)


def what_the_parent_ignores_stays_ignored():
    """nohup, and a job in the background of a script; of SIGTERM there is no such use."""
    fresh("told", "log")
    ignored = [signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2]
    p = start(FOREVER + ["--save", "told"], ignored=ignored + [signal.SIGTERM])
    until_steps(p)
    for sig in ignored:
        p.send_signal(sig)
    had = len(records("log"))
    until(lambda: len(records("log")) > had + 4, p, "more steps")
    p.send_signal(signal.SIGTERM)
    check_preempted("told", p, signal.SIGTERM)


def from_the_first_moment_on_a_signal_is_kept_until_it_can_save():
    for sig in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        for wait in [0, 0.01, 0.03]:
            fresh("soon", "log")
            p = start(FOREVER + ["--save", "soon"])
            until_it_handles(sig, lambda: p.pid, p)
            time.sleep(wait)
            p.send_signal(sig)
            check_preempted("soon", p, sig)


def a_run_that_cannot_save_ends_at_the_first_moment():
    p = start(FOREVER)
    until_it_handles(signal.SIGTERM, lambda: p.pid, p)
    p.send_signal(signal.SIGTERM)
    rc, ours = finish(p, 60)
    check(rc == 143 and ours == ["hvtrain: interrupted (SIGTERM): without --save DIR nothing is saved"], rc, ours)


def ranks_that_are_spawned_end_while_they_meet():
    for wait in [0, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05]:
        p = start(FOREVER + ["--spawn", "2"])
        until_it_handles(signal.SIGTERM, lambda: p.pid, p)
        time.sleep(wait)
        p.send_signal(signal.SIGTERM)
        rc, ours = finish(p, 60)
        check(rc == 143 and ours == ["hvtrain: interrupted (SIGTERM): without --save DIR nothing is saved"], wait, rc, ours)


def while_mpi_starts_a_signal_is_kept():
    if not MPIRUN:
        raise Skip("no mpirun")
    for to in ["mpirun", 0, 1]:
        fresh("soon", "log")
        p = start(FOREVER + ["--save", "soon"], 2)
        until_it_handles(signal.SIGUSR1, lambda: rank_of(p, to if to != "mpirun" else 0), p)
        until_it_handles(signal.SIGUSR1, lambda: rank_of(p, 1), p)
        os.kill(p.pid if to == "mpirun" else rank_of(p, to), signal.SIGUSR1)
        rc, ours = finish(p)
        end = records("log")[-1]
        check(rc != 0 and len(ours) == 1 and "preempted (SIGUSR1)" in ours[0], to, rc, ours)
        check(end["steps"] >= 1 and saved("soon")["steps"] == end["steps"], to, end)


def twice_ends_at_once():
    fifo = path("fifo")
    for sig, code in [(signal.SIGINT, 130), (signal.SIGHUP, 143)]:
        fresh("twice", "log", "fifo", "fifo.in")
        os.mkfifo(fifo)
        p = start(FOREVER + ["--save", "twice"], program=STUCK, HVT_TEST_STUCK=f"data:0:{fifo}")
        until(lambda: os.path.exists(fifo + ".in"), p, "to be stuck")
        p.send_signal(sig)
        time.sleep(0.5 if sig == signal.SIGINT else 1.3)
        check(p.poll() is None, sig, "ended with", p.poll())
        p.send_signal(sig)
        rc, ours = finish(p, 60)
        check(rc == code and len(ours) == 1 and "second signal" in ours[0], sig, rc, ours)
        check(records("log")[-1]["status"] == "interrupted", records("log")[-1])


def on_a_terminal(words, until_shown, ctrl_c, **env):
    """What a program prints on a terminal where Ctrl-C is typed `ctrl_c` times, once the text is there and a second later."""
    pid, fd = pty.fork()
    if pid == 0:
        os.environ.update(dict(environment(0), TERM="xterm", **env))
        os.chdir(HERE)
        for sig in ASKING:
            signal.signal(sig, signal.SIG_DFL)
        os.execvp(words[0], words)
    typed, at = 0, 0

    def look(text):
        nonlocal typed, at
        if typed < ctrl_c and until_shown(text) and time.time() > at + 0.7:
            os.write(fd, b"\x03")
            typed, at = typed + 1, time.time()

    return read_terminal(fd, pid, look)


LOUD = TINY + "--epochs 1000000 --eval-freq 0 --log log --save typed --overwrite".split()


def ctrl_c_saves_and_says_how_to_go_on():
    fresh("typed", "log")
    text, code = on_a_terminal([HVTRAIN] + LOUD, lambda text: "loss" in text, 1)
    check(code == 130 and "\r\033[Khvtrain: SIGINT: saving after this update; Ctrl-C once more ends at once\r\n" in text, code, text[-800:])
    last = text.rstrip().splitlines()[-1]
    steps = records("log")[-1]["steps"]
    check(f"hvtrain: preempted (SIGINT) after update {steps} " in last and last.endswith(": --resume typed goes on from there"), last)
    check(saved("typed")["steps"] == steps, saved("typed"), steps)


def ctrl_c_twice_ends_at_once():
    fifo = path("fifo")
    fresh("typed", "log", "fifo", "fifo.in")
    os.mkfifo(fifo)
    text, code = on_a_terminal([STUCK] + LOUD, lambda text: os.path.exists(fifo + ".in"), 2, HVT_TEST_STUCK=f"data:0:{fifo}")
    check(code == 130 and text.rstrip().endswith("hvtrain: interrupted (a second signal): the last checkpoint stays, if there is one"), code, text[-800:])


def ctrl_c_under_mpirun_saves_or_says_how():
    """It depends on the machine whether an update and a save fit into the second that mpirun leaves."""
    if not MPIRUN:
        raise Skip("no mpirun")
    fresh("typed", "log")
    text, code = on_a_terminal(command(LOUD, 2), lambda text: "loss" in text, 1)
    ours = [line for line in text.splitlines() if re.match("hvtrain: (preempted|interrupted)", line)]
    check(code and len(ours) == 1 and ("--resume typed goes on" in ours[0] or "odls_base_sigkill_timeout" in ours[0]), code, text[-800:])


def before_mpirun_ends_a_job_it_saves():
    """mpirun sends SIGCONT first. The run goes on; a SIGCONT of somebody else saves nothing."""
    if not MPIRUN:
        raise Skip("no mpirun")
    fresh("warned", "log")
    p = start(FOREVER + "--save warned --save-every 1000000steps".split(), 2)
    until_steps(p)
    os.kill(rank_of(p, 0), signal.SIGCONT)
    had = len(records("log"))
    until_steps(p, had + 4)
    check(not os.path.exists(path("warned/last.safetensors")), "saved for a SIGCONT of the test")
    p.send_signal(signal.SIGCONT)
    until(lambda: saved("warned")["steps"] > 0, p, "a checkpoint")
    had = len(records("log"))
    until_steps(p, had + 4)
    p.send_signal(signal.SIGUSR1)
    rc, ours = finish(p)
    check(rc == 143 and len([line for line in ours if "preempted" in line]) == 1, rc, ours)


def a_save_that_ctrl_c_has_no_time_for_is_noted():
    """Once, and not alone, where nobody kills; this one is stuck for longer than mpirun's two seconds."""
    fifo = path("fifo")
    for ranks in [0, 2] if MPIRUN else [0]:
        fresh("slow", "log", "fifo", "fifo.in")
        os.mkfifo(fifo)
        args = [a for a in FOREVER if a != "--quiet"] + "--save slow --save-every 2steps --stall-warn 0".split()
        p = start(args, ranks, program=STUCK, HVT_TEST_STUCK=f"save:0:{fifo}")
        until(lambda: os.path.exists(fifo + ".in"), p, "to be stuck")
        time.sleep(2.1)
        with open(fifo, "w"):
            pass
        had = len(records("log"))
        until_steps(p, had + 8)
        p.send_signal(signal.SIGUSR1)
        _, err = p.communicate(timeout=60)
        notes = [line for line in err.splitlines() if re.match(r"hvtrain: note: Ctrl-C does not save this run: an update and a save take [\d.]+ s, "
                                                                r"and mpirun kills after 2 s; SIGUSR1 to mpirun .* odls_base_sigkill_timeout \d+$", line)]
        check(len(notes) == (ranks > 0) and "preempted" in err, ranks, notes, err[-800:])


def an_alarm_of_the_parent_asks_too():
    """`perl -e 'alarm 1; exec ...'`: the timer survives exec."""
    fresh("alarm", "log")
    p = start(FOREVER + ["--save", "alarm"])
    until_steps(p)
    p.send_signal(signal.SIGALRM)
    rc, ours = finish(p)
    check(rc == 143 and len(ours) == 1 and "preempted (SIGALRM)" in ours[0], rc, ours)


def a_reader_that_leaves_ends_nothing():
    """hvtrain 2>&1 | head"""
    fresh("log")
    r, w = os.pipe()
    p = subprocess.Popen([HVTRAIN, *TINY, "--epochs", "2", "--log", "log"], cwd=HERE, stdin=subprocess.DEVNULL, stdout=w,
                         stderr=w, env=environment(0))
    os.close(w)
    os.read(r, 10)
    os.close(r)
    check(p.wait(60) == 0 and records("log")[-1]["status"] == "done", p.returncode, records("log")[-1])


def after_the_end_a_signal_changes_nothing():
    for ranks in [0, 2] if MPIRUN else [0]:
        for sig in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1]:
            fresh("log")
            p = start([*TINY, "--epochs", "1", "--log", "log"], ranks)
            pid = p.pid
            until(lambda: os.path.getsize(path("log")), p, "a log")
            if ranks:
                pid = rank_of(p, 0)
            for line in p.stderr:
                if "done: " in line:
                    break
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass
            rc, ours = finish(p)
            check(rc == 0 and not [line for line in ours if "interrupted" in line], ranks, sig, rc, ours)


TESTS = [
    each_signal_saves_and_says_how_to_go_on,
    without_a_folder_each_ends_the_run_and_says_that_nothing_is_saved,
    a_mask_of_the_parent_keeps_none_away,
    what_the_parent_ignores_stays_ignored,
    from_the_first_moment_on_a_signal_is_kept_until_it_can_save,
    a_run_that_cannot_save_ends_at_the_first_moment,
    ranks_that_are_spawned_end_while_they_meet,
    while_mpi_starts_a_signal_is_kept,
    twice_ends_at_once,
    ctrl_c_saves_and_says_how_to_go_on,
    ctrl_c_twice_ends_at_once,
    ctrl_c_under_mpirun_saves_or_says_how,
    before_mpirun_ends_a_job_it_saves,
    a_save_that_ctrl_c_has_no_time_for_is_noted,
    an_alarm_of_the_parent_asks_too,
    a_reader_that_leaves_ends_nothing,
    after_the_end_a_signal_changes_nothing,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[4:], HERE)
