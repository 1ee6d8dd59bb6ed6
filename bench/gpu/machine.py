"""The host of a bundle: what it has, the environment of what runs here, and running it with a time limit."""
import glob
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]  # of what was unpacked
DRIVERS = {12: 525, 13: 580}  # CUDA: oldest driver
GRACE = 10  # seconds from SIGTERM to SIGKILL
PROBE = """import json, sys
found = {"python": sys.version.split()[0]}
try:
    import nvidia
    found["wheels"] = list(nvidia.__path__)
except ImportError:
    pass
try:
    import torch
    found.update(torch=torch.__version__, cuda=torch.version.cuda, gpu=torch.cuda.is_available(),
                 cudnn=torch.backends.cudnn.version())
    import torchvision, safetensors, numpy
except Exception as e:
    found["error"] = f"{type(e).__name__}: {e}"
print(json.dumps(found))"""


def host_environment():
    """The caller's, without what the bundle's Python needs for itself."""
    return {k: v for k, v in os.environ.items() if k not in
            ("PYTHONHOME", "PYTHONUTF8", "PYTHONDONTWRITEBYTECODE", "PYTHONNOUSERSITE")}


def run(command, seconds, env, output, cwd=None):
    """The exit code, or "time" after so many seconds, or the error of starting it. Output goes to the file."""
    with open(output, "ab") as out:
        try:
            process = subprocess.Popen([str(c) for c in command], stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=subprocess.STDOUT, env=env, cwd=cwd, start_new_session=True)
        except OSError as e:
            return str(e)
        try:
            return process.wait(max(1, seconds))
        except subprocess.TimeoutExpired:
            for sign in signal.SIGTERM, signal.SIGKILL:  # mpirun ends its ranks at the first
                try:
                    os.killpg(process.pid, sign)
                    process.wait(GRACE)
                except (ProcessLookupError, subprocess.TimeoutExpired):
                    pass
            return "time"
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)  # what it left behind
            except ProcessLookupError:
                pass


def said(command, seconds=60):
    """What a program of this host prints, or why it does not."""
    try:
        done = subprocess.run(command, env=host_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors="replace", timeout=seconds)
        return done.stdout + done.stderr
    except (OSError, subprocess.TimeoutExpired) as e:
        return f"{command[0]}: {e}\n"


class Machine:
    def __init__(self, results):
        self.build = json.loads((ROOT / "build.json").read_text())
        self.tests = json.loads((ROOT / "tests.json").read_text())
        self.results = results
        self.hvtrain = ROOT / "build/hvtrain"
        self.mpirun = ROOT / "mpi/bin/mpirun"
        self.python = shutil.which("python3", path=host_environment().get("PATH"))
        self.torch = {}
        if self.python:
            text = said([self.python, "-c", PROBE], 180)
            try:
                self.torch = json.loads(text.splitlines()[-1])
            except (ValueError, IndexError):
                self.torch = {"error": text.strip()[-300:]}
        self.host = host_environment()
        self.env = self.environment()
        text = subprocess.run([ROOT / "build/bench/gpu_facts"], env=self.env, capture_output=True, text=True)
        self.facts = {"error": text.stderr.strip(), "gpus": [], "libraries": []}
        if text.stdout:
            self.facts = json.loads(text.stdout)
        self.gpus = len(self.facts["gpus"])
        self.sanitizer = next((p for p in [ROOT / "sanitizer/compute-sanitizer", shutil.which("compute-sanitizer"),
                                           *sorted(glob.glob("/usr/local/cuda*/bin/compute-sanitizer"))]
                               if p and Path(p).is_file()), None)

    def library_folders(self):
        """Where this host has NVIDIA's libraries; what LD_LIBRARY_PATH and the system name is found without."""
        wanted = self.build["libraries"]
        places = sorted(glob.glob("/usr/local/cuda*/lib64")) + sorted(glob.glob("/usr/lib/*-linux-gnu/nvidia"))
        wheels = [lib for path in self.torch.get("wheels", []) for lib in sorted(glob.glob(f"{path}/*/lib"))]
        blas = next(name for name in wanted if "cublasLt" in name)
        if any(Path(lib, blas).exists() for lib in wheels):  # else they are for another CUDA
            places += wheels
        return [p for p in places if glob.glob(f"{p}/libnvrtc.so*") or any(Path(p, name).exists() for name in wanted)]

    def environment(self):
        env = host_environment()
        path = [str(ROOT / "lib"), str(ROOT / "vendor"), *env.get("LD_LIBRARY_PATH", "").split(":"),
                *self.library_folders()]
        temporary = self.results / "tmp"
        temporary.mkdir(exist_ok=True)
        env.update(LD_LIBRARY_PATH=":".join(p for p in path if p), PATH=f"{ROOT}/mpi/bin:{env.get('PATH', '')}",
                   HVT_TESTS=str(ROOT / "tests"), XDG_CACHE_HOME=str(self.results / "cache"), TMPDIR=str(temporary),
                   OPAL_PREFIX=str(ROOT / "mpi"), OPAL_PKGLIBDIR=str(ROOT / "mpi/plugins"),
                   OPAL_PKGDATADIR=str(ROOT / "mpi/share"), OPAL_SYSCONFDIR=str(ROOT / "mpi/etc"),
                   PMIX_PREFIX=str(ROOT / "mpi"), PMIX_PKGLIBDIR=str(ROOT / "mpi/pmix"),
                   OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_mpi_yield_when_idle="1")
        return env

    # Why something cannot run here, or None

    def no_driver(self):
        if self.gpus:
            return None
        driver, runtime = (self.facts.get(k, 0) for k in ("driver", "runtime"))
        needs = f"CUDA {runtime // 1000} needs driver {DRIVERS.get(runtime // 1000, 'of its own age')} or newer"
        if not driver:
            return f"no NVIDIA driver here (libcuda.so.1 was not found); {needs}"
        if driver // 1000 < runtime // 1000:
            return f"this host's NVIDIA driver is for CUDA {driver // 1000}.{driver % 1000 // 10}; {needs}"
        return f"an NVIDIA driver is here, but no GPU: {self.facts['error']}"

    def no_libraries(self):
        missing = [lib["name"] for lib in self.facts["libraries"] if "error" in lib]
        if not missing:
            return None
        return (f"{', '.join(missing)} not found; expected {', '.join(self.build['libraries'])} by LD_LIBRARY_PATH, "
                "the system or Python's wheels (nvidia-cublas, nvidia-cudnn-cu13, nvidia-nccl-cu13), or a bundle that was "
                "packed --with-libraries")

    def no_gpu(self):
        return self.no_driver() or self.no_libraries()

    def no_mpi(self):
        return None if self.mpirun.exists() else f"no MPI in this bundle: {self.build['mpi']}"

    def no_torch(self):
        if not self.python:
            return "no python3 here"
        if "error" in self.torch:
            return f"{self.python}: {self.torch['error']}"
        return None if self.torch["gpu"] else f"PyTorch {self.torch['torch']} here sees no GPU"

    def no_sanitizer(self):
        return None if self.sanitizer else "no compute-sanitizer here; pack --with-sanitizer takes one along"
