#!/usr/bin/env python3
"""test_stall.py MPIRUN TEST_WATCH STUCK [NAME ...]: jobs with a rank that is killed, stopped or stuck.

TEST_WATCH is the program of test_watch.c, whose rank 1 disappears in the middle of a sum; STUCK is hvtrain with a place
to get stuck in (stuck.c), or "none". A job must end by itself, say why, and leave no process and no file behind.
"""
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid

sys.path.append(os.path.join(sys.path[0], "../support"))
from truths import Skip, check, on_ranks, run_all

MPIRUN = sys.argv[1]
WATCH, STUCK = (os.path.abspath(program) if program != "none" else "none" for program in sys.argv[2:4])
HERE = tempfile.mkdtemp(prefix="hvt-stall-")
LIMIT = 90  # seconds that a job may take to end, on the slowest machine
TRAIN = "--size 16 --limit 32 --batch 8 --shards 2 --threads 1 --quiet --lr 0.05 --epochs 2 --log log".split()


class Job:
    """Ranks under mpirun; their processes are known by a mark in their environment."""

    def __init__(self, ranks, program, **env):
        self.mark = uuid.uuid4().hex
        self.files = set(os.listdir("/dev/shm"))
        env = dict(os.environ, HVT_TEST_JOB=self.mark, **env)
        env["ASAN_OPTIONS"] = "detect_leaks=0:" + env.get("ASAN_OPTIONS", "")
        self.err = open(os.path.join(HERE, "err"), "w+")
        self.process = subprocess.Popen(
            on_ranks(MPIRUN, ranks, program), cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.err,
            env=env)

    def text(self):
        with open(os.path.join(HERE, "err")) as f:
            return f.read()

    def until(self, pattern):
        """The first line on stderr with this in it."""
        end = time.time() + LIMIT
        while time.time() < end and self.process.poll() is None:
            found = re.search(f".*{pattern}.*", self.text())
            if found:
                return found.group()
            time.sleep(0.02)
        check(False, "never said:", pattern, self.text()[-1500:])
        return ""

    def processes(self):
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    if self.mark.encode() in f.read():
                        found.append(pid)
            except OSError:
                pass
        return found

    def end(self):
        """Exit code and our lines; nothing of the job may be left."""
        try:
            code = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            check(False, "does not end:", self.text()[-1500:])
            self.process.terminate()
            return None, []
        end = time.time() + LIMIT
        while self.processes() and time.time() < end:  # what mpirun has killed the kernel still takes down
            time.sleep(0.02)
        check(not self.processes(), "processes are left:", self.processes())
        left = {f for f in os.listdir("/dev/shm") if "hvt" in f} - self.files
        check(not left, "files are left:", left)
        return code, [line for line in self.text().splitlines() if re.match("(hvt|hvtrain|rank [0-9]+): ", line)]


# ---- in the middle of a sum ----

def a_stopped_rank_is_named_and_ends_the_job():
    for comm, *worker in [["shm"], ["mpi"], ["hier"], ["mpi", "worker"]]:
        code, lines = Job(4, [WATCH, "stop", comm] + worker).end()
        check(code == 3, comm, "exit", code, lines)
        told = r"warning: .*ha(s|ve) waited .* for rank 1 \(\w[^ ]*\) to .* of update 3; rank 1 \(.*\) is stopped \(SIGSTOP\)"
        check(any(re.search(told, line) for line in lines), comm, lines)
        if comm == "hier":  # the other host knows at least whose message it lacks
            south = [line for line in lines if re.search(r"\(south\) ha(s|ve) waited .* for ranks? [01].* \(north\) to ", line)]
            check(south, comm, lines)
        gave_up = [line for line in lines if line.endswith(": giving up")]
        check(gave_up and "rank 1 (" in gave_up[0] and "SIGSTOP" in gave_up[0], comm, lines)
        check(comm == "hier" or len(gave_up) == 1, comm, gave_up)


def a_killed_rank_ends_the_job():
    for comm, *worker in [["shm"], ["mpi"], ["hier"], ["shm", "worker"], ["mpi", "worker"]]:
        job = Job(4, [WATCH, "kill", comm] + worker)
        code, _ = job.end()
        told = re.search("rank 1 .*has ended|process rank 1 .* exited on signal 9", job.text())
        check(code not in (0, 3, None) and told, comm, worker, "exit", code, job.text()[-1500:])


# ---- the program, stuck ----

def program():
    if STUCK == "none":
        raise Skip("nothing can get stuck in a shared library")
    return [STUCK] + TRAIN


def stuck_in(phase, ranks, rank, *more):
    """The FIFO that lets it go on when it is opened to write, and the job."""
    fifo = os.path.join(HERE, phase)
    if not os.path.exists(fifo):
        os.mkfifo(fifo)
    return fifo, Job(ranks, program() + list(more), HVT_TEST_STUCK=f"{phase}:{rank}:{fifo}")


def weights():
    with open(os.path.join(HERE, "log")) as f:
        found = re.search(r'"weights": *"([0-9a-f]{16})"', f.read())
    return found and found.group(1)


def a_stuck_rank_that_goes_on_costs_a_warning_and_no_bit():
    code, _ = Job(2, program()).end()
    plain = weights()
    check(code == 0 and plain, "exit", code)
    for comm in ["shm", "mpi"]:
        fifo, job = stuck_in("data", 2, 1, "--comm", comm, "--stall-warn", "300ms", "--stall-abort", "0")
        # a slow rank may first be told of for a pass that takes as long
        job.until(r"hvtrain: warning: rank 0 \(.* for rank 1 \(.*bucket 0 \(\w.* \.\.\.\) of update 1; rank 1 \(.*has been in phase data of update 1 \(reading image \d+\)")
        with open(fifo, "w"):
            pass
        code, lines = job.end()
        check(code == 0 and weights() == plain, comm, "exit", code, weights(), "not", plain, lines)
        check(any("have recovered" in line for line in lines), comm, lines)


def of_rank(processes, rank):
    for pid in processes:
        with open(f"/proc/{pid}/environ", "rb") as f:
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in f.read().split(b"\0"):
                return int(pid)
    return None


def a_rank_that_does_not_come_to_a_batch_norm_is_named_and_its_end_ends_the_job():
    for comm in ["shm", "mpi"]:
        fifo, job = stuck_in("data", 2, 1, "--sync-bn", "--comm", comm, "--stall-warn", "300ms", "--stall-abort", "0")
        job.until(r"hvtrain: warning: rank 0 \(.* for rank 1 \(.* in bn1 of update 1; rank 1 \(.*has been in phase data of update 1")
        os.kill(of_rank(job.processes(), 1), signal.SIGKILL)
        code, lines = job.end()
        told = re.search("rank 1 .*has ended|process rank 1 .* exited on signal 9", job.text())
        check(code not in (0, 3, None) and told, comm, "exit", code, job.text()[-1500:])
        errors = [line for line in lines if "warning:" not in line]
        check(len(errors) <= 1, comm, errors)


def a_stuck_save_is_given_up_in_the_end():
    _, job = stuck_in("save", 2, 0, "--save", "saved", "--stall-warn", "300ms", "--stall-abort", "5s")
    code, lines = job.end()
    check(code == 3, "exit", code, lines)
    check(lines and "giving up" in lines[-1] and "for rank 0 (" in lines[-1] and "has been in phase save" in lines[-1], lines)


def a_slow_rank_that_gets_on_is_waited_for():
    """Each image takes a third of the time after which the job would end, and a batch eight thirds."""
    for comm in ["shm", "mpi"]:
        job = Job(2, program() + ["--comm", comm, "--stall-warn", "1s", "--stall-abort", "1200ms", "--steps", "1"],
                  HVT_TEST_SLOW="1:400")
        code, lines = job.end()
        check(code == 0, comm, "exit", code, lines)
        check(any(re.search("warning: rank 0 .* for rank 1 ", line) for line in lines), comm, lines)


def a_process_alone_says_where_it_is_stuck():
    fifo, job = stuck_in("data", 1, 0, "--stall-warn", "300ms", "--stall-abort", "300ms")
    job.until(r"update 1 has been running for \S+ s \(reading image \d+\)")
    with open(fifo, "w"):
        pass
    code, lines = job.end()
    check(code == 0, "exit", code, lines)


TESTS = [
    a_stopped_rank_is_named_and_ends_the_job,
    a_killed_rank_ends_the_job,
    a_stuck_rank_that_goes_on_costs_a_warning_and_no_bit,
    a_rank_that_does_not_come_to_a_batch_norm_is_named_and_its_end_ends_the_job,
    a_stuck_save_is_given_up_in_the_end,
    a_slow_rank_that_gets_on_is_waited_for,
    a_process_alone_says_where_it_is_stuck,
]


if __name__ == "__main__":
    run_all(TESTS, sys.argv[4:], HERE)
