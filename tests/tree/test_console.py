#!/usr/bin/env python3
"""test_console.py HVTRAIN MPIRUN ROOT [NAME ...]: what README.md and docs/ show after a command is what the command prints.

The ```console blocks of a page are run from its beginning to its end in one folder, and the ```python blocks of those in
PRELUDE with them where there is PyTorch. Training is shortened, and photographs are drawn, so numbers differ; all else of a line must be
printed as it is shown, and lines in the order shown. "..." stands for any text. Commands that print only the hash of their
weights are not shortened: the hashes are equal, and on a processor with AVX-512 they are those shown. ./quickstart is not
run: its last command is.
"""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, environment, records
from shown import missing
from truths import Skip, check, python_with, run_all

ROOT = Path(sys.argv[3]).resolve()
PAGES = {p.relative_to(ROOT).as_posix(): p.read_text() for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}
SHORT = "--epochs 2 --threads 1 --size 32 --batch 8 --print-freq 1"
PRELUDE = {"README.md": """import torch, safetensors.torch
from torch import nn
model = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                      nn.Linear(8, 3))
""", "docs/pytorch-models.md": "", "docs/tutorial-photos.md": ""}
ONLY_WEIGHTS = "grep -o 'weights .*'"


def folder_of(page):
    """A build folder, as far as its commands can tell, with photographs."""
    folder = Path(HERE) / page.replace("/", "-")
    (folder / "bin").mkdir(parents=True)
    for name, command in ("hvtrain", f'exec "{HVTRAIN}" "$@" $HVT_MORE'), ("bin/mpirun", mpirun()):
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    for k, name in enumerate(("cat", "frog", "ship")):
        for i in range(16):
            picture(folder / "photos" / name / f"{i:04}.jpg", k, i)
        for i in range(3):
            picture(folder / "new" / f"{name}-{i:04}.jpg", k, 90 + i)
    return folder


def mpirun():
    root = "--allow-run-as-root " if os.getuid() == 0 else ""
    return f'exec "{MPIRUN}" {root}--oversubscribe --mca mpi_yield_when_idle 1 "$@"'


def picture(path, colour, i):
    """32x32 of one colour with some noise, as PNM: the bytes of a file say what it is, not its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = bytes((200 if c == colour else 60) + (i * 7 + n * 13 + c) % 31 for n in range(32 * 32) for c in range(3))
    path.write_bytes(b"P6 32 32 255\n" + pixels)


def blocks(page):
    """("console", [(command, lines shown), ...]) or ("python", text) of each block."""
    for kind, text in re.findall(r"^```(console|python)\n(.*?)^```", PAGES[page], re.S | re.M):
        if kind == "python":
            yield kind, text
            continue
        commands = []
        for line in text.splitlines():
            if line.startswith("$ "):
                commands.append((line[2:], []))
            else:
                commands[-1][1].append(line)
        yield kind, commands


def quickstart(shown):
    """Its last command, on fewer images: the lines from there on."""
    started = [l for l in shown if l.startswith("+ mpirun ")][0]
    options = re.search(r" build/hvtrain (.*)$", started)[1]
    check(f'train_args="{options}"' in (ROOT / "quickstart").read_text(), "quickstart does not run", options)
    for line in shown[:shown.index(started)]:
        check(all(w in (ROOT / "quickstart").read_text() for w in line.split()), "quickstart does not print", line)
    return f"mpirun -np 2 ./hvtrain {options}", shown[shown.index(started) + 1:]


def more_of(command):
    if ONLY_WEIGHTS in command or "inspect" in command or "--evaluate" in command or "--resume run" in command:
        return ""
    short = SHORT.replace("32", "64") if "--init" in command else SHORT  # below 64 pixels the model is another
    return "--samples 512 --epochs 2 --threads 1 --print-freq 1" if "--data synth" in command else short


def check_weights(command, shown, printed, folder):
    check(len(set(printed)) == 1 and len(printed) == len(shown) > 1 and len(set(shown)) == 1, command, printed, shown)
    subprocess.run([HVTRAIN, *"--samples 16 --batch 16 --steps 1 --eval-freq 0 --quiet --log isa".split()], cwd=folder,
                   env=environment(1), stderr=subprocess.DEVNULL, check=True)
    if records(folder / "isa")[0]["isa"].startswith(("avx512", "amx")):
        check(printed == shown, command, "prints", printed, "and not", shown)


def the_output_of(page):
    def truth():
        if not MPIRUN:
            raise Skip("no mpirun")
        folder = folder_of(page)
        python = python_with("torch, torchvision, safetensors", os.path.dirname(os.path.abspath(HVTRAIN)))
        program = PRELUDE.get(page)
        ran = 0
        for kind, block in blocks(page):
            if kind == "python":
                if program is None:
                    continue
                program += block.replace('weights="DEFAULT"', "weights=None")  # nothing is downloaded
                if python:
                    done = subprocess.run([python, "-c", program], cwd=folder, capture_output=True, text=True, timeout=240)
                    check(done.returncode == 0, f"Python: {block}: {done.stderr[-800:]}")
                continue
            for command, shown in block:
                if command == "cd build" or (re.search(r"\.pt2|resnet18\.safetensors", command) and not python):
                    continue
                ran += 1
                if command == "./quickstart":
                    command, shown = quickstart(shown)
                env = dict(environment(1), HVT_MORE=more_of(command), PATH=f"{folder}/bin:{os.environ['PATH']}")
                done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, timeout=240,
                                      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                if "this build reads no .pt2 files" in done.stdout:
                    python = None
                    continue
                check(done.returncode == 0, f"exit {done.returncode} of {command}: {done.stdout[-800:]}")
                if command.startswith("ls "):
                    check(" ".join(shown).split() == done.stdout.split(), command, "prints", done.stdout, "and not", shown)
                elif ONLY_WEIGHTS in command:
                    check_weights(command, shown, done.stdout.splitlines(), folder)
                else:
                    line = missing(shown, done.stdout)
                    check(line is None, command, "does not print\n     ", line, "\n      but", done.stdout[-2500:])
        if not ran and not python:
            raise Skip("every command needs PyTorch with torchvision and safetensors")
    truth.__name__ = "the_output_is_shown_as_it_is_in_" + page
    return truth


def a_line_that_is_not_printed_is_found():
    printed = "epoch 12/20: loss 1.25\nnothing\ndone: 5 updates, 3s; weights fedcba9876543210\n"
    check(missing(["epoch 1/8: loss 0.5", "...", "done: 320 updates, ...; weights 0123456789abcdef"], printed) is None)
    check(missing(["...", "epoch 1/8: loss ..."], printed) is None)
    for wrong in ["epoch 1/8: loss 0.5, top-1 3 %"], ["done: 5 updates, 3s; weights 1", "epoch 1/1: loss 2"], ["losses ..."]:
        check(missing(wrong, printed), "taken for printed:", wrong)


with_console = [page for page in PAGES if re.search(r"^```console$", PAGES[page], re.M)]
run_all([a_line_that_is_not_printed_is_found, *map(the_output_of, with_console)], sys.argv[4:], HERE)
