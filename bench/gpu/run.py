#!/usr/bin/env python3
"""Run what a bundle of hvtrain has for a host with NVIDIA GPUs, and put all that was found into one file.

Every step has a time limit, and a failure ends nothing else. The file (--output) is a tar archive: report.txt says
what ran, what failed and what was skipped and why, with the tables; beside it are the output of every command and
hvtrain's logs. Ends with 0, with 1 if something failed, with 77 if there is no GPU that could be used.
"""
import argparse
import concurrent.futures
import itertools
import json
import os
import platform
import re
import shutil
import sys
import tarfile
import threading
import time
from pathlib import Path

from machine import ROOT, Machine, run
from steps import STEPS
from summary import summary, table


class Session:
    def __init__(self, machine, cifar10, until, jobs):
        self.machine, self.cifar10, self.until, self.jobs = machine, cifar10, until, jobs
        self.items, self.notes, self.tables = [], [], []  # (step, item, state, seconds, why); (title, text)
        self.lock = threading.Lock()
        self.step, self.ends = None, None

    # what steps call

    def note(self, title, text):
        self.notes.append((title, text.rstrip()))

    def table(self, title, head, rows):
        text = table(head, rows)
        self.tables.append((title, text))
        print(f"{title}\n{text}", flush=True)

    def skip(self, item, why):
        self.record(item, "skipped", 0, why)

    def fail(self, item, why):
        self.record(item, "FAILED", 0, why)

    def program(self, item, command, seconds, env=None, cwd=None, expected=None, host=False):
        """Run a command of the bundle, or of this host: whether it succeeded, or failed with the expected words."""
        output = self.machine.results / "output" / f"{self.step}-{item}.txt"
        left = self.ends - time.monotonic()
        if left < 1:
            self.skip(item, "no time was left")
            return False
        base = self.machine.host if host else self.machine.env
        began = time.monotonic()
        output.unlink(missing_ok=True)
        code = run(command, min(seconds, left), {**base, **(env or {})}, output, cwd)
        lines = output.read_text(errors="replace").rstrip().splitlines()
        last = lines[-1][:200] if lines else ""
        if code == 0 or expected and code != "time" and any(expected in line for line in lines):
            state, why = "ok", ""
        elif code == 77:
            state, why = "skipped", next((line for line in reversed(lines) if "skip" in line), last)
        elif code == "time":
            state, why = "TIME OUT", f"after {min(seconds, left):.0f} s"
        else:
            said = next((line[:200] for line in reversed(lines) if re.search("FAIL|[Ee]rror|hvtrain: ", line)), last)
            state, why = "FAILED", f"exit {code}: {said}"
        self.record(item, state, time.monotonic() - began, why)
        return state == "ok"

    def host(self, item, arguments, seconds):
        """Run a script by this host's Python."""
        return self.program(item, [self.machine.python, *arguments], seconds, host=True)

    def train(self, item, options, seconds, ranks=1, env=None):
        """Run hvtrain: the figures of its log, or {}."""
        log = self.machine.results / "logs" / f"{self.step}-{item}.jsonl"
        log.unlink(missing_ok=True)
        command = [self.machine.hvtrain, *options, "--log", log]
        if ranks > 1:
            command = [self.machine.mpirun, "--bind-to", "none", "-np", ranks, *command]
        return summary(log) if self.program(item, command, seconds, env) else {}

    def tests(self, tests):
        """Meson's tests: several at once where they allow it."""
        late = []

        def one(test):
            if self.ends - time.monotonic() < 1:
                return late.append(test["name"])
            put = {"{python}": ROOT / "python/bin/python3", "{mpirun}": self.machine.mpirun}
            command = [str(put.get(arg, arg)).replace("{root}", str(ROOT)) for arg in test["command"]]
            if "run_ranks.sh" in command[0] and (why := self.machine.no_mpi()):
                return self.skip(test["name"], why)
            if not self.machine.mpirun.exists():
                command = [arg if arg != str(self.machine.mpirun) else "none" for arg in command]
            self.program(test["name"], command, test["seconds"], test["env"], ROOT / "build")

        with concurrent.futures.ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(one, (t for t in tests if t["parallel"] and not t["suite"].startswith("gpu"))))
        for test in tests:
            if not test["parallel"] or test["suite"].startswith("gpu"):
                one(test)
        if late:
            self.skip(f"{len(late)} tests", f"no time was left: {' '.join(late)}")

    # what main calls

    def record(self, item, state, seconds, why):
        with self.lock:
            self.items.append({"step": self.step, "item": item, "state": state, "seconds": round(seconds, 1),
                               "why": why})
            print(f"{self.step:10} {item:32} {state:8} {seconds:6.0f} s  {why}".rstrip(), flush=True)

    def begin(self, name):
        function, _, seconds, needs = STEPS[name]
        self.step, self.ends = name, min(self.until, time.monotonic() + seconds)
        for why in (getattr(self.machine, need)() for need in needs):
            if why:
                return self.skip("all", why)
        if self.ends - time.monotonic() < 1:
            return self.skip("all", "no time was left")
        try:
            function(self)
        except Exception as e:  # of the runner: the other steps still run
            self.fail("runner", f"{type(e).__name__}: {e}")
        if not any(i["step"] == name for i in self.items):
            self.record("all", "ok", 0, "")


def report(session, chosen):
    """The text of report.txt."""
    states = ("ok", "FAILED", "TIME OUT", "skipped")
    count = lambda name: [sum(i["step"] == name and i["state"] == s for i in session.items) for s in states]
    bad = [i for i in session.items if i["state"] in ("FAILED", "TIME OUT")]
    text = [f"hvtrain {session.machine.build['commit']} on {platform.node()}, {time.strftime('%Y-%m-%d %H:%M:%S %Z')}",
            "", table(["step", "passed", "failed", "timed out", "skipped"],
                      [[name, *count(name)] for name in chosen])]
    if why := session.machine.no_gpu():
        text.append(f"Nothing ran on a GPU: {why}\n")
    for title, items in (("Failed", bad), ("Skipped", [i for i in session.items if i["state"] == "skipped"])):
        if items:
            text.append(f"{title}:\n" + "".join(f"  {i['step']}, {i['item']}: {i['why']}\n" for i in items))
    left_out = [name for name in STEPS if name not in chosen]
    if left_out:
        text.append(f"Not asked for: {' '.join(left_out)}\n")
    text += [f"{title}\n{body}" for title, body in session.tables]
    for i in bad:
        output = session.machine.results / "output" / f"{i['step']}-{i['item']}.txt"
        if output.exists():
            last = "\n".join(output.read_text(errors="replace").splitlines()[-60:])
            text.append(f"---- the end of {output.name}\n{last}\n")
    text += [f"---- {title}\n{body}\n" for title, body in session.notes]
    return "\n".join(text)


def main():
    steps = "\n".join(f"  {name:11} {what}" for name, (_, what, _, _) in STEPS.items())
    parser = argparse.ArgumentParser(prog="hvtrain-gpu", description=f"{__doc__}\nsteps:\n{steps}",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", default=",".join(STEPS), metavar="LIST", help="only these, in this order")
    parser.add_argument("--minutes", type=float, default=300, metavar="N", help="for all of it [%(default)g]")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1) // 2), metavar="N",
                        help="tests without a GPU at once [%(default)s]")
    parser.add_argument("--cifar10", metavar="DIR", help="CIFAR-10's binary files, for step accuracy")
    parser.add_argument("--output", metavar="FILE", help="[hvtrain-gpu-HOST-TIME.tar.gz]")
    parser.add_argument("--dir", metavar="DIR", help="where the bundle is unpacked")
    args = parser.parse_args()
    chosen = args.steps.split(",")
    if unknown := [name for name in chosen if name not in STEPS]:
        parser.error(f"no step {' '.join(unknown)}; there are {' '.join(STEPS)}")
    if args.cifar10 and not os.path.isdir(args.cifar10):
        parser.error(f"--cifar10 {args.cifar10}: no such folder")
    stamp = time.strftime("%Y%m%d-%H%M%S")
    output = Path(args.output or f"hvtrain-gpu-{platform.node()}-{stamp}.tar.gz").absolute()
    results = next(r for n in itertools.count(1) if not (r := ROOT / f"results-{stamp}-{n}").exists())
    for folder in ("output", "logs"):
        (results / folder).mkdir(parents=True)

    session = Session(Machine(results), args.cifar10 and os.path.abspath(args.cifar10),
                      time.monotonic() + 60 * args.minutes, args.jobs)
    if why := session.machine.no_gpu():
        print(f"hvtrain-gpu: {why}\nhvtrain-gpu: steps that need a GPU are skipped", flush=True)
    try:
        for name in chosen:
            session.begin(name)
    except KeyboardInterrupt:
        session.fail("all", "interrupted")
    finally:
        text = report(session, chosen)
        (results / "report.txt").write_text(text)
        (results / "items.json").write_text(json.dumps(session.items, indent=1))
        shutil.rmtree(results / "tmp", ignore_errors=True)
        with tarfile.open(output, "w:gz") as tar:
            for name in ("report.txt", "items.json", "output", "logs"):
                tar.add(results / name, f"{results.name}/{name}")
    print("\n" + text[:text.find("\n---- ")] + f"\neverything is in {output}", flush=True)
    if any(i["state"] in ("FAILED", "TIME OUT") for i in session.items):
        return 1
    return 77 if session.machine.no_gpu() else 0


if __name__ == "__main__":
    sys.exit(main())
