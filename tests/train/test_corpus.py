#!/usr/bin/env python3
"""test_corpus.py PRINT_TAPE [--update]: tapes of some hundred models of PyTorch, compared with those of the commit before.

tests/model/pt2/corpus.tar.xz has the graphs of torchvision's and timm's families and of nets of our own, without weights but
with the buffers that graphs make constants of, and the tape that hvtrain makes of each, as print_tape prints it. A tape that
differs is shown as a diff; if it is better, --update puts the new ones into the archive, and the commit says why. Of a
refusal only operations and their lines are compared: test_pt2.py has the words. Needs no PyTorch.
"""
import difflib
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ARCHIVE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../model/pt2/corpus.tar.xz")
SHOWN = 30  # lines of a diff


def read():
    """The files of each net."""
    nets = {}
    with tarfile.open(ARCHIVE, "r:xz") as t:
        for entry in t:
            name, _, file = entry.name.partition("/")
            nets.setdefault(name, {})[file] = t.extractfile(entry).read()
    return nets


def write(nets):
    # alike files stand beside each other, so that they pack well
    files = [(name, file, data) for name, files in nets.items() for file, data in files.items()]
    files.sort(key=lambda f: (f[1].rsplit(".", 1)[-1], f[0].startswith("timm"), f[0], f[1]))
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as t:
        for name, file, data in files:
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(data)
            t.addfile(entry, io.BytesIO(data))


def tape_of(program, folder, name, files):
    path = f"{folder}/{name}.pt2"
    with zipfile.ZipFile(path, "w") as z:
        for file, data in files.items():
            if file != "tape.txt":
                z.writestr("net/" + file, data)
    done = subprocess.run([program, path], capture_output=True, text=True)
    os.remove(path)
    text = done.stdout.partition("\n")[2] + (f"exit {done.returncode}\n{done.stderr}" if done.returncode else "")
    if "this build reads no .pt2" in text:
        print("a build without libzip")
        sys.exit(77)
    return text


def place(tape):
    """The operations of a refusal, with layer and line; a tape as it is."""
    return re.findall(r"(aten\.[\w.]+) \(([^);]*)", tape) if tape.startswith("refused: ") else tape


def main(program, update=False):
    nets, differ = read(), 0
    with tempfile.TemporaryDirectory() as folder:
        for name, files in sorted(nets.items()):
            old, new = files["tape.txt"].decode(), tape_of(program, folder, name, files)
            if place(old) == place(new):
                continue
            differ += 1
            lines = list(difflib.unified_diff(old.splitlines(), new.splitlines(), f"{name}, before", f"{name}, now", "", "", 1, ""))
            print("\n".join(lines[:SHOWN] + [f"... {len(lines) - SHOWN} lines more"] * (len(lines) > SHOWN)))
            files["tape.txt"] = new.encode()
    print(f"{len(nets)} nets, {differ} tapes differ")
    if differ and update:
        write(nets)
    return 1 if differ and not update else 0


if __name__ == "__main__":
    try:
        import lzma  # noqa: F401
    except ImportError:
        print("a Python without lzma")
        sys.exit(77)
    sys.exit(main(sys.argv[1], sys.argv[2:] == ["--update"]))
