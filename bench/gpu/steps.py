"""What a bundle runs on a host, in order. A step is a function of the session (run.py), which keeps the time and the
list of what ran; STEPS has for each its seconds at most, and what the host must have."""
import json
import os
import re

from machine import ROOT, said
from summary import number, summary, table

PEER = ROOT / "bench/gpu/torch_peer.py"
IMAGENET = ["--device", "cuda", "--model", "resnet50", "--classes", 1000, "--data", "synth", "--size", 224,
            "--eval-freq", 0, "--last-batch", "drop", "--print-freq", 10, "--epochs", 1000]
CIFAR = ["--device", "cuda", "--data", "synth", "--eval-freq", 0, "--last-batch", "drop", "--print-freq", 10,
         "--epochs", 1000]
# NCCL refuses a second rank with the same GPU on one host, so each rank looks like a host of its own; lo connects them.
SHARED = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}


def facts(s):
    m = s.machine
    s.note("bundle", json.dumps({k: v for k, v in m.build.items() if k != "kernels"}, indent=1))
    s.note("CUDA", json.dumps(m.facts, indent=1))
    s.note("python3", f"{m.python}: {json.dumps(m.torch)}")
    s.note("LD_LIBRARY_PATH", m.env["LD_LIBRARY_PATH"])
    for command in (["uname", "-a"], ["cat", "/etc/os-release"], ["cat", "/proc/driver/nvidia/version"], ["lscpu"],
                    ["free", "-m"], ["df", "-h", "/dev/shm", "."], ["sh", "-c", "ls -l /dev/nvidia*; ulimit -a"],
                    ["nvidia-smi"], ["nvidia-smi", "topo", "-m"], ["nvidia-smi", "nvlink", "-s"],
                    ["nvidia-smi", "-q", "-d", "CLOCK,POWER,ECC,PERFORMANCE,TEMPERATURE"]):
        s.note(" ".join(command), said(command))
    if m.sanitizer:
        s.note("compute-sanitizer", said([str(m.sanitizer), "--version"]))


def tests_of(*suites):
    def step(s):
        s.tests([t for t in s.machine.tests if t["suite"] in suites])
    return step


def speed(s):
    """Training steps on images that the program draws, one GPU."""
    rows = []
    runs = [(IMAGENET, "resnet50 at 224", amp, batch, extra)
            for amp, batch, extra in [*(("bf16", b, []) for b in (32, 64, 128, 256, 512)), ("f16", 256, []),
                                      ("f32", 128, []), ("f32", 128, ["--tf32", "on"]),
                                      ("bf16", 256, ["--graph", "off"])]]
    for model, stem in (("resnet20", []), ("resnet110", []), ("resnet18", ["--stem", "cifar"])):
        for amp, batch in (("bf16", 128), ("bf16", 1024), ("f16", 1024), ("f32", 1024)):
            runs.append((CIFAR + ["--model", model, *stem], f"{model} at 32", amp, batch, []))
    runs.append((CIFAR + ["--model", "resnet20"], "resnet20 at 32", "bf16", 128, ["--graph", "off"]))
    for base, name, amp, batch, extra in runs:
        label = f"{name.replace(' at ', '-')}-{amp}-{batch}{''.join(extra[:1])}"
        got = s.train(label, [*base, "--amp", amp, "--batch", batch, "--samples", max(2048, 4 * batch), "--steps", 80,
                              *extra], 300)
        rows.append([name, amp, batch, " ".join(extra) or "-", number(got.get("img_s")),
                     number(got["peak"] / 2**20 if got else None)])
    s.table("speed, images per second of one GPU", ["model", "amp", "batch", "", "img/s", "peak MiB"], rows)


def torch(s):
    """The same beside PyTorch, in turns, and both losses from the same weights over the same images."""
    rows, out = [], s.machine.results / "torch"
    out.mkdir(exist_ok=True)
    for batch in (32, 128, 256, 512):
        speeds = {"ours": [], "eager": [], "compile": []}
        for turn in (1, 2):
            got = s.train(f"ours-{batch}-{turn}", [*IMAGENET, "--amp", "bf16", "--batch", batch, "--samples", 4096,
                                                   "--steps", 80], 300)
            speeds["ours"].append(got.get("img_s"))
            for kind in ("eager", "compile"):
                file = out / f"{kind}-{batch}-{turn}.json"
                peer = [PEER, "speed", "--kind", kind, "--batch", batch, "--json", file]
                if s.host(f"{kind}-{batch}-{turn}", peer, 400):
                    speeds[kind].append(json.loads(file.read_text())["img_s"])
        best = {k: max((v for v in values if v), default=None) for k, values in speeds.items()}
        over = lambda kind: best["ours"] / best[kind] if best["ours"] and best[kind] else None
        rows.append([batch, *(number(best[k]) for k in ("ours", "eager", "compile")), number(over("eager"), ".2f"),
                     number(over("compile"), ".2f")])
    s.table("ResNet-50 at 224, bf16, images per second, best of two turns",
            ["batch", "hvtrain", "PyTorch", "compiled", "over PyTorch", "over compiled"], rows)
    curves(s, out)


def curves(s, out, steps=300, batch=64, images=6400):
    start, pixels, rows = out / "start.safetensors", out / "synth.bin", []
    if not (s.host("weights", [PEER, "weights", "--file", start], 120) and
            s.program("draw", [ROOT / "build/bench/dump_synth", images, 224, 1000, pixels], 300)):
        return
    for amp in ("f32", "bf16", "f16"):
        same = ["--amp", amp, "--batch", batch, "--steps", steps, "--lr", 0.05, "--init", start]
        ours = s.train(f"curve-{amp}", [*IMAGENET, *same, "--samples", images, "--shuffle", "off", "--print-freq", 1], 400)
        file = out / f"curve-{amp}.json"
        if not s.host(f"curve-torch-{amp}", [PEER, "curve", *same, "--data", pixels, "--json", file], 400) or not ours:
            continue
        a, b = ours["losses"], json.loads(file.read_text())["losses"]
        if len(a) != len(b):
            s.fail(f"curve-{amp}", f"{len(a)} losses of ours, {len(b)} of PyTorch")
            continue
        worst = max(abs(sum(a[i:i + 50]) / sum(b[i:i + 50]) - 1) for i in range(0, steps, 50))
        rows.append([amp, f"{a[0]:.5f}", f"{b[0]:.5f}", f"{a[-1]:.4f}", f"{b[-1]:.4f}", f"{100 * worst:.2f} %"])
        if not worst < 0.05:
            s.fail(f"curve-{amp}", f"means of 50 losses differ by {100 * worst:.1f} % from PyTorch's, expected 5 %")
    for file in start, pixels:
        file.unlink(missing_ok=True)
    s.table("losses of ResNet-50 at 224 from the same weights",
            ["amp", "first", "PyTorch", "last", "PyTorch", "means of 50 differ"], rows)


def sweep(s):
    """Bucket sizes and wires. Every f32 run of a comm must end with the bits of its first one."""
    gpus, rows = s.machine.gpus, []
    ranks = 1 << (min(gpus, 8).bit_length() - 1) if gpus > 1 else 2
    device, env = ("cuda", {}) if gpus > 1 else ("cuda:0", SHARED)
    for comm in ("nccl", "mpi"):
        bits = None
        for wire in ("f32", "bf16"):
            for bucket in ("0", "1MiB", "4MiB", "16MiB", "25MiB", "64MiB", "all"):
                name = f"{comm}-{wire}-{bucket}"
                got = s.train(name, [*CIFAR, "--device", device, "--deterministic", "on", "--model", "resnet50", "--stem",
                                     "cifar", "--samples", 512 * ranks, "--batch", 64, "--steps", 60, "--comm", comm,
                                     "--compression", wire, "--bucket", bucket], 120, ranks, env)
                rows.append([comm, wire, bucket, number(got.get("img_s"))])
                if got and wire == "f32":
                    bits = bits or got["weights"]
                    if got["weights"] != bits:
                        s.fail(name, f"ends with weights {got['weights']}, expected {bits} as with other buckets")
    s.table(f"{ranks} ranks on {min(gpus, ranks)} GPU, ResNet-50 with CIFAR's stem, batch 64",
            ["comm", "wire", "bucket", "img/s"], rows)


def scale(s):
    """One to all GPUs over NCCL."""
    if s.machine.gpus < 2:
        return s.skip("scale", "one GPU only")
    rows, one = [], {}
    counts = [n for n in (1, 2, 4, 8) if n <= s.machine.gpus]
    for amp, wire, batch in (("bf16", "f32", 256), ("bf16", "bf16", 256), ("bf16", "bf16", 64)):
        for ranks in counts:
            got = s.train(f"{ranks}-{wire}-{batch}",
                          [*IMAGENET, "--amp", amp, "--batch", batch, "--samples", 4 * batch * ranks, "--steps", 80,
                           "--comm", "nccl" if ranks > 1 else "auto", "--compression", wire], 300, ranks)
            speed = got.get("img_s")
            one.setdefault((wire, batch), speed)
            first = one[wire, batch]
            share = 100 * speed / first / ranks if speed and first else None
            rows.append([ranks, wire, batch, number(speed), number(share, ".1f")])
    s.table("ResNet-50 at 224 over NCCL, bf16", ["GPUs", "wire", "batch", "img/s", "% of linear"], rows)


def accuracy(s):
    """CIFAR-10, or drawn images, in three types, and the largest batch that fits."""
    data = ["--data", "cifar10", "--data-dir", s.cifar10] if s.cifar10 else ["--data", "synth", "--samples", 10000]
    top, rows = {}, []
    for amp in ("f32", "bf16", "f16"):
        got = s.train(f"train-{amp}", ["--device", "cuda", "--model", "resnet20", *data, "--batch", 128, "--augment",
                                       "crop:4,flip", "--epochs", 30 if s.cifar10 else 5, "--lr", 0.1, "--schedule",
                                       "cosine", "--weight-decay", "1e-4", "--print-freq", 100, "--amp", amp], 900)
        if got:
            top[amp] = got["top1"][-1]
        rows.append([amp, number(top.get(amp), ".2f"), number(got.get("img_s")), largest(s, amp)])
    s.table(f"ResNet-20 on {'CIFAR-10' if s.cifar10 else 'drawn images'}",
            ["amp", "top-1 %", "img/s", "largest batch"], rows)
    for amp in ("bf16", "f16"):
        if {amp, "f32"} <= top.keys() and top[amp] < top["f32"] - 1.5:
            s.fail(f"train-{amp}", f"{top[amp]:.2f} %, more than 1.5 points below f32's {top['f32']:.2f} %")


def largest(s, amp):
    batch = 256
    while batch <= 262144:
        log = s.machine.results / "output" / f"accuracy-largest-{amp}-{batch}.txt"
        args = ["--device", "cuda", "--model", "resnet20", "--data", "synth", "--samples", batch, "--batch", batch,
                "--steps", 1, "--eval-freq", 0, "--amp", amp, "--quiet", "on"]
        if not s.program(f"largest-{amp}-{batch}", [s.machine.hvtrain, *args], 120, expected="no memory"):
            break
        if "no memory" in log.read_text(errors="replace"):
            break
        batch *= 2
    return batch // 2 if batch > 256 else "-"


def sanitizer(s):
    """Two updates of a small net under each tool, which looks at our kernels and at no others."""
    only = [f"--kernel-name=kns={len(name)}{name}" for name in s.machine.build["kernels"]]  # as mangled names have them
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        for amp in ("f32", "f16"):
            s.program(f"{tool}-{amp}",
                      [s.machine.sanitizer, "--tool", tool, "--error-exitcode", 9, *only, s.machine.hvtrain, "--device", "cuda",
                       "--model", "resnet20", "--data", "synth", "--samples", 16, "--batch", 8, "--steps", 2, "--augment",
                       "crop:4,flip", "--amp", amp, "--graph", "off"], 300)


# name: what it is, seconds at most, why it cannot run
STEPS = {
    "facts": (facts, "the machine, its driver and its libraries", 300, []),
    "libraries": (tests_of("cuda"), "convolution plans by the cuDNN found here; needs no GPU", 900, ["no_libraries"]),
    "gpu": (tests_of("gpu"), "every operation, model and run against ref and cpu", 1800, ["no_gpu"]),
    "speed": (speed, "ResNet-50 at 224 with batches of 32 to 512, small nets", 1800, ["no_gpu"]),
    "torch": (torch, "the same beside PyTorch, speed and losses", 3600, ["no_gpu", "no_torch"]),
    "scale": (scale, "one to eight GPUs", 1800, ["no_gpu", "no_mpi"]),
    "sweep": (sweep, "buckets and wires", 1500, ["no_gpu", "no_mpi"]),
    "accuracy": (accuracy, "a run to its end in f32, bf16 and f16; the largest batch", 3000, ["no_gpu"]),
    "gpu-shared": (tests_of("gpu-shared"), "ranks that share a GPU by NCCL, which NCCL does not support", 900,
                   ["no_gpu", "no_mpi"]),
    "sanitizer": (sanitizer, "our kernels under compute-sanitizer", 2400, ["no_gpu", "no_sanitizer"]),
    "cpu": (tests_of("base", "device", "world", "comm", "coll", "data", "model", "optim", "train"),
            "tests that need no GPU", 1800, []),
}
