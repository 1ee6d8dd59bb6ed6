#!/usr/bin/env python3
"""Does cuda/ fit the oldest and the newest of NVIDIA's libraries that docs/gpu.md names? From PyPI's wheels, no GPU.

    wheels.py FOLDER [BUILD]

Downloads them to FOLDER (10 GB, once), and for each set of wheels that belong together

    symbols   every function that load.c asks for is in its library
    headers   every C file of cuda/ compiles against its headers without a warning
    plans     with BUILD, of Meson: its test of plans, with this cuDNN in place of the one that it was built with
"""
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SETS = {
    "oldest, CUDA 12": {"nvidia-cuda-runtime-cu12": "12.8.90", "nvidia-cuda-nvcc-cu12": "12.8.93",
                        "nvidia-cublas-cu12": "12.8.4.1", "nvidia-cudnn-cu12": "9.12.0.46",
                        "nvidia-nccl-cu12": "2.28.3"},
    "oldest, CUDA 13": {"nvidia-cuda-runtime": "13.0.96", "nvidia-cuda-crt": "13.0.88", "nvidia-cublas": "13.0.2.14",
                        "nvidia-cudnn-cu13": "9.12.0.46", "nvidia-nccl-cu13": "2.28.3"},
    "newest, CUDA 12": {"nvidia-cuda-runtime-cu12": "12.9.79", "nvidia-cuda-nvcc-cu12": "12.9.86",
                        "nvidia-cublas-cu12": "12.9.3.13", "nvidia-cudnn-cu12": "9.28.0.42",
                        "nvidia-nccl-cu12": "2.32.3"},
    "newest, CUDA 13": {"nvidia-cuda-runtime": "13.5.37", "nvidia-cuda-crt": "13.5.37", "nvidia-cublas": "13.10.0.20",
                        "nvidia-cudnn-cu13": "9.28.1.4", "nvidia-nccl-cu13": "2.32.3"},
}
LIBRARIES = {"CUBLASLT_CALLS": "libcublasLt.so.*", "CUDNN_CALLS": "libcudnn.so.*", "NCCL_CALLS": "libnccl.so.*"}


def fetch(folder, name, version):
    """Where the wheel is unpacked."""
    place = folder / f"{name}-{version}"
    if not place.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder / "wheels"),
                        f"{name}=={version}"], check=True)
        wheel, = (folder / "wheels").glob(f"{name.replace('-', '_')}-{version}-*.whl")
        part = place.with_name(place.name + ".part")
        zipfile.ZipFile(wheel).extractall(part)
        part.rename(place)
        wheel.unlink()
    return place


def symbols(places):
    text = (ROOT / "cuda/cuda_impl.h").read_text()
    missing, seen = [], 0
    for macro, pattern in LIBRARIES.items():
        wanted = re.findall(r"\bX\((\w+)\)", re.search(rf"#define {macro}\(X\)(.*?[^\\])\n", text, re.S)[1])
        library, = (file for place in places for file in place.rglob(pattern))
        table = subprocess.run(["nm", "-D", "--defined-only", str(library)], capture_output=True, text=True, check=True)
        has = {line.split()[-1].split("@")[0] for line in table.stdout.splitlines()}
        missing += [f"{library.name} has no {name}" for name in wanted if name not in has]
        seen += len(wanted)
    return f"{seen} of them", missing


def headers(places, folder):
    config = folder / "config.h"
    config.write_text("".join(f'#define HVT_LIB{name} "/{name}"\n' for name in ("CUBLASLT", "CUDNN", "NCCL")))
    include = [word for place in places for path in place.glob("nvidia/*/include") for word in ("-isystem", str(path))]
    files = sorted((ROOT / "cuda").glob("*.c"))
    wrong = []
    for file in files:
        done = subprocess.run(["cc", "-std=c17", "-D_POSIX_C_SOURCE=200809L", "-Wall", "-Wextra",
                               "-Wno-unused-parameter", "-Wno-missing-field-initializers", "-Werror", "-fsyntax-only", "-I", str(folder), "-I", str(ROOT / "include"), "-I", str(ROOT / "src"),
                               *include, str(file)], capture_output=True, text=True)
        wrong += done.stderr.splitlines()[:5] if done.returncode else []
    return f"{len(files)} files", wrong


def plans(places, build):
    library, = (file for place in places for file in place.rglob("libcudnn.so.*"))
    version = re.search(r"cudnn-cu\d+-(\d+)\.(\d+)\.(\d+)", str(library))
    number = str(int(version[1]) * 10000 + int(version[2]) * 100 + int(version[3]))
    folders = [build / "tests/cuda", *(path for place in places for path in place.glob("nvidia/*/lib"))]
    env = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}  # the first has the stub of libcuda
    loaded = subprocess.run([build / "bench/gpu/launches", "bf16", "8", ROOT / "tests/cuda/sm_90.json"], env=env,
                            capture_output=True, text=True)
    if not loaded.stdout.startswith(f"cudnn\t{number}\t"):
        return "", [f"cuDNN {number} was not loaded: {(loaded.stdout + loaded.stderr).splitlines()[:1]}"]
    done = subprocess.run([build / "tests/cuda/test_cuda_plans"], env=env, capture_output=True, text=True)
    said = (done.stdout + done.stderr).splitlines()
    return done.stdout.splitlines()[-1] if done.stdout else "", said[-10:] if done.returncode else []


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    folder, failed = Path(sys.argv[1]).resolve(), False
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    for title, wheels in SETS.items():
        print(f"{title}: {', '.join(f'{name} {version}' for name, version in wheels.items())}", flush=True)
        places = [fetch(folder, *wheel) for wheel in wheels.items()]
        checks = {"symbols": lambda: symbols(places), "headers": lambda: headers(places, folder)}
        if len(sys.argv) == 3:
            checks["plans"] = lambda: plans(places, Path(sys.argv[2]).resolve())
        for name, check in checks.items():
            what, wrong = check()
            failed = failed or bool(wrong)
            print(f"    {name}: {'FAILED' if wrong else 'ok, ' + what}", *wrong, sep="\n        ", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
