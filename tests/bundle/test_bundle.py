"""Usage: test_bundle.py ROOT BUILD [TRUTH ...]. bench/gpu/pack and what it packs: unpacked into a folder of its own and run
without a GPU, without this host's Python, MPI and libraries of NVIDIA's, and with the few commands that every host has."""
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests/support"))
from truths import check, run_all  # noqa: E402

HERE = Path(tempfile.mkdtemp(prefix="hvt-bundle-"))
BUNDLE, DIR = HERE / "bundle.run", HERE / "unpacked"
COMMANDS = "sh env tar gzip tail head mkdir rm dirname uname getconf sort printf cat id true sleep".split()
MPI = "HVT_HAVE_MPI 1" in (BUILD / "config.h").read_text()


def bare():
    """An environment with few commands, none of them Python, mpirun or nvidia-smi."""
    folder = HERE / "commands"
    if not folder.exists():
        folder.mkdir()
        for name in COMMANDS:
            if where := shutil.which(name):
                (folder / name).symlink_to(Path(where).resolve())
    return {"PATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}


def start(*args):
    return subprocess.run(["/bin/sh", BUNDLE, "--dir", DIR, *map(str, args)], cwd=HERE, env=bare(), text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)


def results(file):
    """report.txt and {item: (state, why)} of a result file."""
    with tarfile.open(file) as tar:
        read = lambda name: tar.extractfile(next(n for n in tar.getnames() if n.endswith(name))).read().decode()
        return read("/report.txt"), {i["item"]: (i["state"], i["why"]) for i in json.loads(read("/items.json"))}


def only(*names, more=()):
    """Make these the bundle's tests."""
    file = DIR / "tests.json"
    if not (DIR / "all.json").exists():
        shutil.copy(file, DIR / "all.json")
    tests = [t for t in json.loads((DIR / "all.json").read_text()) if t["name"] in names or t["suite"] == "gpu"]
    file.write_text(json.dumps(tests + list(more)))


def a_build_is_one_file_that_stops_at_the_missing_driver():
    packed = subprocess.run([ROOT / "bench/gpu/pack", "--no-rebuild", "--suites", "base,world,gpu", "-o", BUNDLE, BUILD],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check(packed.returncode == 0, packed.stdout)
    check(BUNDLE.stat().st_size < 64 << 20, BUNDLE.stat().st_size, "bytes, expected 64 MiB at most")
    done = start("--steps", "facts,gpu,speed", "--output", "first.tar.gz")
    check(done.returncode == 77, "exit", done.returncode, done.stdout)
    check("unpacking" in done.stdout, done.stdout)
    check(re.search(r"no NVIDIA driver here .*driver \d+ or newer|is here, but no GPU", done.stdout), done.stdout)
    text, items = results(HERE / "first.tar.gz")
    for step in "gpu", "speed":
        check(re.search(rf"^  {step}, all: .*GPU|^  {step}, all: no NVIDIA driver", text, re.M), text)
    check("Not asked for: libraries torch" in text, text)
    check(str(BUILD) not in (DIR / "tests.json").read_text(), "tests.json names the build")


def its_tests_pass_without_the_build_and_its_host():
    only("check", "trace", "world-np2")
    done = start("--steps", "cpu", "--output", "second.tar.gz")
    check("unpacking" not in done.stdout, "unpacked again")
    check(done.returncode == 77, "exit", done.returncode, done.stdout)
    _, items = results(HERE / "second.tar.gz")
    expected = {"check", "trace"} | ({"world-np2"} if MPI else set())
    check({n for n, (state, _) in items.items() if state == "ok"} == expected, items)
    loaded = subprocess.run([DIR / "build/hvtrain", "--version"], text=True, capture_output=True,
                            env={"LD_LIBRARY_PATH": str(DIR / "lib"), "LD_TRACE_LOADED_OBJECTS": "1"}).stdout
    outside = [line for line in loaded.splitlines() if " => " in line and str(DIR) not in line]
    check(all(re.search(r"lib(c|m|dl|rt|pthread|gcc_s|stdc\+\+)\.so", line) for line in outside), outside)  # the host has these


def what_fails_hangs_or_skips_is_counted_and_said():
    test = {"suite": "base", "env": {}, "parallel": True, "seconds": 30}
    only("trace", more=[{**test, "name": "fails", "command": ["/bin/sh", "-c", "echo as it must; exit 3"]},
                        {**test, "name": "hangs", "command": ["/bin/sh", "-c", "sleep 100"], "seconds": 1},
                        {**test, "name": "skips", "command": ["/bin/sh", "-c", "echo skip it: not here; exit 77"]}])
    done = start("--steps", "cpu", "--output", "third.tar.gz", "--jobs", 4)
    check(done.returncode == 1, "exit", done.returncode)
    text, items = results(HERE / "third.tar.gz")
    check(items["trace"][0] == "ok", items)
    check(items["fails"] == ("FAILED", "exit 3: as it must"), items)
    check(items["hangs"] == ("TIME OUT", "after 1 s"), items)
    check(items["skips"] == ("skipped", "skip it: not here"), items)
    check(re.search(r"^cpu +1 +1 +1 +1$", text, re.M), text)


PRETEND = """import sys
folder, gpus, sanitizer = sys.argv[1:4]
sys.path.insert(0, folder)
import machine, run
begin = machine.Machine.__init__
def pretend(self, results):
    begin(self, results)
    self.gpus, self.sanitizer = int(gpus), sanitizer
machine.Machine.__init__ = pretend
machine.Machine.no_gpu = lambda self: None
sys.argv = ["run.py", *sys.argv[4:]]
sys.exit(run.main())
"""


def every_run_gets_as_far_as_opening_the_gpu():
    script, sanitizer = HERE / "pretend.py", HERE / "sanitizer"
    script.write_text(PRETEND)
    sanitizer.write_text('#!/bin/sh\nwhile :; do case $1 in */hvtrain) exec "$@" ;; esac; shift; done\n')
    sanitizer.chmod(0o755)
    for gpus, steps in (1, "speed,accuracy,sanitizer"), (2, "scale,sweep"):
        done = subprocess.run([DIR / "python/bin/python3", script, DIR / "bench/gpu", str(gpus), sanitizer,
                               "--steps", steps, "--minutes", "0.2", "--output", HERE / f"pretend-{gpus}.tar.gz"], cwd=HERE, env=bare(), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        check(done.returncode == 1, "exit", done.returncode, done.stdout)
        _, items = results(HERE / f"pretend-{gpus}.tar.gz")
        reached = [item for item, (_, why) in items.items() if "no GPU is available to this process" in why]
        check(len(reached) > 4 or not MPI, reached, done.stdout)
        for item, (state, why) in items.items():
            check(item in reached or state != "FAILED", item, state, why)


def time_that_is_used_up_is_said():
    only("trace")
    done = start("--steps", "cpu", "--output", "fourth.tar.gz", "--minutes", 0)
    check(results(HERE / "fourth.tar.gz")[1] == {"all": ("skipped", "no time was left")}, done.stdout)


def mistakes_are_one_line():
    def line(done, words):
        last = done.stdout.strip().splitlines()[-1]
        check(done.returncode == 2 and words in last, done.returncode, last)

    line(start("--steps", "fact"), "no step fact; there are facts libraries gpu")
    line(start("--cifar10", HERE / "nothing"), "no such folder")
    other = HERE / "commands"
    line(subprocess.run(["/bin/sh", BUNDLE, "--dir", other], env=bare(), text=True, stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT), "is there already, of another bundle")
    line(subprocess.run([ROOT / "bench/gpu/pack", "--suites", "base,gpus", BUILD], text=True, stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT, cwd=HERE), "no suite gpus")


TESTS = [a_build_is_one_file_that_stops_at_the_missing_driver, its_tests_pass_without_the_build_and_its_host,
         what_fails_hangs_or_skips_is_counted_and_said, every_run_gets_as_far_as_opening_the_gpu,
         time_that_is_used_up_is_said, mistakes_are_one_line]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
