"""scripts.py - common code of the tests of bench/. Programs with this begin with ROOT BUILD."""
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT, BUILD = Path(sys.argv[1]).resolve(), Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests/support"))
from truths import Skip, check, python_with, run_all  # noqa: E402, F401

BENCH = ROOT / "bench"
HERE = Path(tempfile.mkdtemp(prefix="hvt-bench-"))


def run(*command, timeout=600, cwd=HERE):
    """The exit code, stdout, stderr."""
    done = subprocess.run([str(c) for c in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd=cwd,
                          timeout=timeout, env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"})
    return done.returncode, done.stdout, done.stderr


def output(*command):
    """What a command prints that must succeed."""
    code, out, err = run(*command)
    check(code == 0, "exit", code, "of", *command, ":", out[-800:], err[-1500:])
    return out


def script(name, *args, python=sys.executable):
    return output(python, BENCH / name, *args)


def timed(name, *args):
    """A script that takes --build and whose other programs run by the Python that has PyTorch."""
    return script(name, "--build", BUILD, *args)


def torch():
    python = python_with("torch, torchvision, numpy, safetensors", str(BUILD))
    if not python:
        raise Skip("no PyTorch with torchvision")
    return python


def on_ranks(ranks, *command):
    if not shutil.which("mpirun") or "HVT_HAVE_MPI 1" not in (BUILD / "config.h").read_text():
        raise Skip("no MPI")
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    return ["mpirun", *root, *"--oversubscribe --bind-to none --mca mpi_yield_when_idle 1 -np".split(), ranks, *command]


def read(name):
    return json.loads((HERE / name).read_text())


def texts(name, anchor=None):
    """The words of an SVG file, in their order; anchor "middle": those below places along x."""
    return [e.text for e in xml.parse(HERE / name).getroot().iter("{http://www.w3.org/2000/svg}text")
            if anchor in (None, e.get("text-anchor"))]


def lines_of(name, kind):
    return len(list(xml.parse(HERE / name).getroot().iter("{http://www.w3.org/2000/svg}" + kind)))


def cifar():
    """A folder in CIFAR-10's binary format: 160 training images and 32 for tests."""
    folder = HERE / "cifar"
    if not folder.exists():
        folder.mkdir()
        draw = random.Random(1)
        for name in [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]:
            (folder / name).write_bytes(b"".join(bytes([i % 10]) + draw.randbytes(3072) for i in range(32)))
    return folder


MAKE_PICTURES = """import io, sys, tarfile
from PIL import Image
with tarfile.open(sys.argv[1], "w") as tar:
    for i in range(16):
        out = io.BytesIO()
        Image.linear_gradient("L").resize((240 + 8 * i, 256)).convert("RGB").save(out, "JPEG")
        info = tarfile.TarInfo(f"n{i // 2:02}_class/{i}.JPEG")
        info.size = out.tell()
        out.seek(0)
        tar.addfile(info, out)"""


def pictures():
    """A tar of 16 JPEG files of 8 classes."""
    file = HERE / "pictures.tar"
    if not file.exists():
        python = python_with("PIL", str(BUILD))
        if not python:
            raise Skip("no Pillow, which makes JPEG files")
        output(python, "-c", MAKE_PICTURES, file)
    return file
