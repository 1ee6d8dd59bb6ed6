"""Common code of test programs in Python: a truth is a function whose name states it."""
import os
import shutil
import subprocess
import sys
import time

failures = []
checks = 0  # that the running truth has made


class Skip(Exception):
    """What a truth needs cannot be had here."""


def check(truth, *what):
    global checks
    checks += 1
    if not truth:
        failures.append(" ".join(str(w) for w in what))
        print("    " + failures[-1])


def on_ranks(mpirun, ranks, program, network="self,vader"):
    """The command that runs a program on so many ranks of this host, whatever its number of cores."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return [mpirun, *root, *"--oversubscribe --bind-to none --mca mpi_yield_when_idle 1 --mca btl".split(), network, "-np",
            str(ranks), *program]


def python_with(modules, build):
    """An interpreter that finds these modules: of the build folder's venv, or the one on the path; None: there is none."""
    look = "import importlib.util as u, sys; sys.exit(not all(map(u.find_spec, sys.argv[1:])))"
    for python in [os.path.join(build, "venv/bin/python"), os.path.join(build, "../build/venv/bin/python"),
                   shutil.which("python3"), sys.executable]:
        if python and os.path.exists(python) and subprocess.run(
                [python, "-c", look, *modules.split(", ")], stderr=subprocess.DEVNULL).returncode == 0:
            return python
    return None


def again_with(modules, build, name, lack):
    """Starts this script again by an interpreter that has the modules; without one the test is skipped."""
    key = "HVT_TEST_" + name.upper()
    if os.environ.get(key) == "1":
        return
    found = python_with(modules, build)
    if not found:
        print(f"skip {name}: no {lack}")
        sys.exit(77)
    os.execve(found, [found] + sys.argv, {**os.environ, key: "1"})


def run_all(tests, names, folder):
    """Run those of the tests that are named, or all; remove the folder; exit with 0, 1, or 77: all skipped. A test
    that has checked nothing has failed."""
    global checks
    chosen = [t for t in tests if not names or t.__name__ in names]
    passed = skipped = 0
    for test in chosen:
        del failures[:]
        checks = 0
        began = time.time()
        try:
            test()
            check(checks, test.__name__, "has checked nothing")
        except Skip as why:
            print(f"skip {test.__name__}: {why}", flush=True)
            skipped += 1
            continue
        except Exception as e:  # a missing record, file or field
            check(False, type(e).__name__, e)
        passed += not failures
        print(f"{'FAIL' if failures else 'ok  '} {test.__name__} ({time.time() - began:.1f} s)", flush=True)
    failed = len(chosen) - passed - skipped
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit(1 if failed else 0 if passed else 77)
