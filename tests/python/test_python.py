#!/usr/bin/env python3
"""test_python.py HVTRAIN MPIRUN PACKAGE LAYOUT: the Python package, with the real PyTorch, alone and on several ranks.
PACKAGE: the folder that holds it; LAYOUT: the program struct_layout. Skipped without PyTorch, NumPy and pytest."""
import ctypes
import os
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, MPIRUN, path, python_with
from truths import Skip, check, on_ranks, run_all

PACKAGE, LAYOUT = (os.path.abspath(x) for x in sys.argv[3:5])
FOLDER = os.path.dirname(os.path.abspath(__file__))
ENV = {**os.environ, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def ranks(n, *words, seconds=400):
    """What a Python program prints on n ranks: (exit code, stdout and stderr)."""
    program = [python_with("torch, numpy, pytest"), *words]
    if n > 1 and not MPIRUN:
        raise Skip("no mpirun")
    done = subprocess.run(program if n == 1 else on_ranks(MPIRUN, n, program), env=ENV, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=seconds, cwd=path(""))
    return done.returncode, done.stdout


def cases(n, file):
    code, out = ranks(n, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", os.path.join(FOLDER, file))
    check(code == 0, out[-3000:])


def one_rank_has_pytorchs_losses():
    cases(1, "ranks_cases.py")


def two_ranks_have_ddps_losses():
    cases(2, "ranks_cases.py")


def mistakes_are_told_in_python():
    cases(1, "misuse_cases.py")


def mistakes_on_two_ranks_are_told_in_python():
    cases(2, "misuse_cases.py")


def horovods_script_runs_after_its_import_is_changed():
    with open(os.path.join(FOLDER, "horovod_script.py")) as f:
        text = f.read()
    script = path("script.py")
    printed = []
    for n, replaced in (1, "import hvtrain as hvd"), (2, "import hvtrain.torch as hvd"):
        with open(script, "w") as f:
            f.write(text.replace("import horovod.torch as hvd", replaced))
        code, out = ranks(n, script)
        lines = [line for line in out.splitlines() if line.startswith("epoch")]
        check(code == 0 and len(lines) == 3, out[-2000:])
        loss = [float(line.split()[-1]) for line in lines]
        check(loss[2] < loss[0], f"{n} ranks: {loss}")
        printed.append(loss)
    check(all(abs(a - b) < 2e-5 for a, b in zip(*printed)), f"{printed}")


def losses_of(out):
    return [float(line.split()[-1]) for line in out.splitlines() if " loss: " in line]


def torchvisions_script_trains_as_ddp():
    """references/classification/train.py with two changed lines and an import, beside the unchanged one on gloo."""
    with open(os.path.join(FOLDER, "reference_script.py")) as f:
        text = f.read()
    changed = text.replace("\nimport torchvision\n", "\nimport torchvision\nimport hvtrain\n")
    changed = changed.replace("    init_distributed_mode(args)\n", "    hvtrain.init_distributed_mode(args)\n")
    changed = changed.replace("torch.nn.parallel.DistributedDataParallel", "hvtrain.DistributedDataParallel")
    lines = [b for a, b in zip(text.replace("\nimport torchvision\n", "\nimport torchvision\n\n").splitlines(),
                               changed.splitlines()) if a != b]
    check(len(lines) == 3, lines)
    for name, program in ("ddp.py", text.replace("device_ids=[args.gpu]", "device_ids=None")), ("ours.py", changed):
        with open(path(name), "w") as f:
            f.write(program)
    options = "--device cpu --epochs 2 --batch-size 8 --lr 0.01 --print-freq 1".split()
    code, out = ranks(2, path("ours.py"), *options)
    ours = losses_of(out)
    check(code == 0 and len(ours) == 8 and out.count("Test: Acc@1") == 2 and " of 64\n" in out, out[-2000:])
    store = path("store")
    ddp = [subprocess.Popen([python_with("torch, torchvision"), path("ddp.py"), *options, "--dist-url", f"file://{store}"], stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True, cwd=path(""), env={**ENV, "RANK": r, "LOCAL_RANK": r, "WORLD_SIZE": "2"})
           for r in "01"]
    out = [p.communicate(timeout=400)[0] for p in ddp][0]
    theirs = losses_of(out)
    check(len(theirs) == 8 and all(abs(a - b) < 1e-6 for a, b in zip(ours, theirs)), ours, theirs, out[-2000:])


def a_rank_that_fails_ends_the_job():
    script = path("fails.py")
    with open(script, "w") as f:
        f.write("import hvtrain as hvt, numpy\nhvt.init()\nif hvt.rank() == 1:\n    raise ValueError('found nothing')\n"
                "hvt.allreduce(numpy.ones(3))\n")
    begun = time.time()
    code, out = ranks(2, script, seconds=120)
    check(code != 0 and "ValueError: found nothing" in out, out[-2000:])


def step_and_a_collective_do_not_wait_for_each_other():
    script = path("apart.py")
    with open(script, "w") as f:
        f.write("import hvtrain as hvt, torch\nhvt.init()\nmodel = torch.nn.Linear(2, 1)\n"
                "optimizer = hvt.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())\n"
                "for _ in range(3 + hvt.rank()):\n"
                "    model(torch.ones(1, 2)).sum().backward()\n    optimizer.step()\n    optimizer.zero_grad()\n"
                "hvt.allreduce(torch.ones(1))\n")
    begun = time.time()
    code, out = ranks(2, script, seconds=120)
    said = [line for line in out.splitlines() if line.startswith("hvtrain._library.HvtError: rank 0 (")]
    check(code != 0 and len(said) == 2 and said[0] == said[1] and "calls allreduce, but rank 1 (" in said[0] and
          ") exchanges gradients; all ranks must make the same calls in the same order (E_MISMATCH)" in said[0], out[-3000:])
    check(time.time() - begun < 25, "a long wait", out[-2000:])


def what_is_used_before_init_says_so():
    code, out = ranks(1, "-c", "import hvtrain as hvt; hvt.rank()")
    check(code == 1 and "hvtrain has not been initialized; use hvt.init()" in out, out[-2000:])


def structs_are_those_of_the_headers():
    sys.path.insert(0, PACKAGE)
    import importlib.util
    spec = importlib.util.spec_from_file_location("hvtrain_library", os.path.join(PACKAGE, "hvtrain/_library.py"))
    library = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(library)
    for line in subprocess.run([LAYOUT], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines():
        name, number = line.split()
        struct, _, member = name.partition(".")
        kind = library.STRUCTS[struct]
        mine = getattr(kind, member).offset if member else ctypes.sizeof(kind)
        check(mine == int(number), f"{name} is {mine}, in C {number}")


TESTS = [one_rank_has_pytorchs_losses, two_ranks_have_ddps_losses, mistakes_are_told_in_python,
         mistakes_on_two_ranks_are_told_in_python, horovods_script_runs_after_its_import_is_changed,
         torchvisions_script_trains_as_ddp, a_rank_that_fails_ends_the_job, step_and_a_collective_do_not_wait_for_each_other,
         what_is_used_before_init_says_so, structs_are_those_of_the_headers]
run_all(TESTS, sys.argv[5:], HERE)
