#!/usr/bin/env python3
"""Every kernel of cuda/ as nvcc compiles it and as a step of ResNet-50 launches it: kernels.tsv beside this file. No
GPU is needed.

    kernels.py check NVCC ARCHS LAUNCHES -- FLAGS   no kernel spills, and the table is that of this source; compiles
                                                    only where source, nvcc or flags are not those of the table
    kernels.py write NVCC ARCHS LAUNCHES -- FLAGS   make the table anew; needs nvdisasm, see below

ARCHS are compute capabilities by commas (80,90,100), LAUNCHES the program of this folder, FLAGS those of
cuda/meson.build. Columns:

    registers               of a thread
    stack, spill_*          bytes of its stack, and of registers that are spilled to it and loaded again (ptxas)
    shared                  bytes of a block
    loads, stores           instructions that access global memory, by bytes of a thread: 9x16 4x2 (nvdisasm:
                            $NVDISASM, in PATH, or of pip's nvidia-cuda-nvdisasm)
    threads                 of a block, where the kernel moves most in a step; the most, where none launches it
    occupancy               warps that a multiprocessor holds, in % of its most, by NVIDIA's tables of limits
    launches, mb            of a step of ResNet-50, 224x224, batch 256, in the kernel's type; mb: millions of bytes of
                            the arrays that it reads and writes
    share                   of an H200's 4.8 TB/s, in %, that these launches are expected to reach together (sm_90):
                            each takes RAMP_US and its bytes at STREAM of 4.8 TB/s, or at less if the threads
                            that fit have too few loads in flight for memory's latency

A table that another nvcc made is not compared; nor, without nvdisasm, are loads, stores and share. Ends with 77 where
there is no nvcc.
"""
import collections
import concurrent.futures
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
TABLE = HERE / "kernels.tsv"
COMPILED = "arch file kernel registers stack spill_stores spill_loads shared".split()  # what ptxas says
DISASSEMBLED = ["loads", "stores", "share"]
FIELDS = COMPILED + "loads stores threads occupancy launches mb share".split()
FILES = "attention binary general image loss norm optim pointwise pooling shape_norm".split()
BATCH, TYPES = 256, ("f32", "f16", "bf16")

# A multiprocessor's threads, blocks and KiB of shared memory, and what of it each block costs beside its own:
# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
LIMITS = {"75": (1024, 16, 64, 0), "80": (2048, 32, 164, 1024), "86": (1536, 16, 100, 1024),
          "89": (1536, 24, 100, 1024), "90": (2048, 32, 228, 1024), "100": (2048, 32, 228, 1024),
          "120": (1536, 24, 100, 1024)}
SMALL = {"delay_kernel": 1, "join_moments_kernel": 32, "join_sums_kernel": 32, "squares_kernel<1>": 128,
         "squares_kernel<4>": 128, "attention": 128}  # threads of a block, of a kernel or all of a file; no step has them
REGISTERS = 65536  # of a multiprocessor, in units of 256 a warp, to warps in fours

H200_BYTES_S, H200_SMS = 4.8e12, 132  # NVIDIA H200's data sheet
STREAM = 0.80      # assumed: of that, a long kernel that only reads and writes
RAMP_US = 2.0      # assumed: from one kernel's last bytes to full speed in the next
LATENCY_S = 800e-9 # assumed: of loaded memory
AT_ONCE = 4        # loads that a thread has in flight, at most: rows at once (cuda/norm.cu)


def code_of(text):
    """The text without comments, and with one space for any white space."""
    return " ".join(re.sub(r"/\*.*?\*/|//[^\n]*", " ", text, flags=re.S).split())


def source_of(flags):
    """A hash of the code that kernels are made of, and of nvcc's flags but for its host compiler and GPUs."""
    files, found = [ROOT / "cuda" / (name + ".cu") for name in FILES], {}
    while files:
        path = files.pop()
        text = path.read_text()
        found[str(path.relative_to(ROOT))] = code_of(text)
        for name in re.findall(r'^#include ["<](.+)[">]', text, re.M):
            there = [d / name for d in (path.parent, ROOT / "src", ROOT / "include") if (d / name).exists()]
            files += [f for f in there[:1] if str(f.relative_to(ROOT)) not in found]
    said = [f for before, f in zip(["", *flags], flags)
            if before != "-ccbin" and not f.startswith(("-gencode", "-ccbin"))]
    return hashlib.sha256(repr((sorted(found.items()), said)).encode()).hexdigest()[:16]


def output(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def version(nvcc):
    return re.search(r"V([0-9.]+)", output([nvcc, "--version"])).group(1)


def plain(names):
    """Their C++ names, without arguments."""
    text = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = [re.sub(r"^void ", "", re.sub(r"\((?![a-z ]+\)\d).*", "", line)) for line in text.splitlines()]
    return dict(zip(names, short))


def resources(text):
    """What ptxas -v says of each kernel."""
    found = {}
    for part in re.split(r"Compiling entry function '", text)[1:]:
        numbers = {
            "registers": r"Used (\d+) registers",
            "stack": r"(\d+) bytes stack frame",
            "spill_stores": r"(\d+) bytes spill stores",
            "spill_loads": r"(\d+) bytes spill loads",
            "shared": r"(\d+) bytes smem",
        }
        row = {key: re.search(pattern, part) for key, pattern in numbers.items()}
        found[part.split("'")[0]] = {key: int(m.group(1)) if m else 0 for key, m in row.items()}
    return found


def accesses(nvdisasm, cubin):
    """How often each kernel's code reads and writes global memory, by bytes of a thread."""
    found, kernel = {}, None
    for line in output([nvdisasm, "-c", cubin]).splitlines():
        section = re.match(r"\s*\.section\s+\.text\.([^,\s]+)", line)
        if section:
            kernel = found.setdefault(section.group(1), {"LDG": collections.Counter(), "STG": collections.Counter()})
            continue
        access = re.search(r"\b(LDG|STG)((?:\.\w+)*)", line)
        if access and kernel is not None:
            bits = re.search(r"\.[US]?(8|16|64|128|256)\b", access.group(2))
            kernel[access.group(1)][int(bits.group(1)) // 8 if bits else 4] += 1
    return found


def widths(counts):
    return " ".join(f"{n}x{size}" for size, n in sorted(counts.items(), reverse=True)) or "-"


def compiled(nvcc, flags, arch, name, nvdisasm):
    with tempfile.TemporaryDirectory() as folder:
        cubin = os.path.join(folder, name + ".cubin")
        text = output([nvcc, *flags, "-cubin", f"-arch=sm_{arch}", "-Xptxas", "-v", "-I", str(ROOT / "include"), "-I",
                       str(ROOT / "src"), "-o", cubin, str(ROOT / "cuda" / (name + ".cu"))])
        rows, counts = resources(text), accesses(nvdisasm, cubin) if nvdisasm else {}
    names = plain(list(rows))
    return [{"arch": arch, "file": name, "kernel": names[k], **row, "counts": counts.get(k)}
            for k, row in rows.items()]


def compile_all(nvcc, archs, flags, nvdisasm=None):
    flags = [f for f in flags if not f.startswith("-gencode")]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        jobs = [pool.submit(compiled, nvcc, flags, arch, name, nvdisasm) for arch in archs for name in FILES]
        rows = [row for job in jobs for row in job.result()]
    return sorted(rows, key=lambda r: (int(r["arch"]), r["file"], r["kernel"]))


# ---- a step ----

def step_of(launches, kind):
    """(kernel, threads, bytes) of each launch of a step in this type."""
    lines = [line.split("\t") for line in output([launches, kind, str(BATCH)]).splitlines()]
    rows = [(name, int(threads), int(read) + int(written))
            for what, _, name, _, threads, read, written in lines if what == "kernel"]
    names = plain(sorted({name for name, _, _ in rows}))
    return [(names[name], threads, moved) for name, threads, moved in rows]


def steps(launches):
    """Of each kernel: threads where it moves most, bytes of each launch."""
    found = {}
    for kind in TYPES:
        of_kind = collections.defaultdict(list)
        for name, threads, moved in step_of(launches, kind):
            of_kind[name].append((moved, threads))
        found.update({name: (max(some)[1], [moved for moved, _ in some]) for name, some in of_kind.items()})
    return found


def occupancy(arch, registers, shared, threads):
    """Warps that a multiprocessor holds, and the most that any kernel can have there."""
    most_threads, most_blocks, kib, reserved = LIMITS[arch]
    warps = -(-threads // 32)
    of_warp = -(-registers * 32 // 256) * 256
    unit = 256 if arch == "75" else 128
    blocks = min(most_blocks, most_threads // 32 // warps, REGISTERS // of_warp // 4 * 4 // warps)
    if shared + reserved:
        blocks = min(blocks, kib * 1024 // (-(-(shared + reserved) // unit) * unit))
    return blocks * warps, most_threads // 32


def share(counts, threads_at_once, moved):
    size = max(counts["LDG"], default=0)
    speed = STREAM * H200_BYTES_S
    if size:
        in_flight = threads_at_once * size * min(AT_ONCE, counts["LDG"][size])
        speed = min(speed, in_flight * H200_SMS / LATENCY_S)
    return sum(moved) / sum(RAMP_US * 1e-6 + bytes_ / speed for bytes_ in moved) / H200_BYTES_S


def add_step(rows, launched):
    unknown = set(launched) - {r["kernel"] for r in rows}
    if unknown:
        sys.exit(f"kernels: a step launches what was not compiled: {', '.join(sorted(unknown))}")
    for r in rows:
        threads, moved = launched.get(r["kernel"], (SMALL.get(r["kernel"], SMALL.get(r["file"], 256)), []))
        warps, most = occupancy(r["arch"], r["registers"], r["shared"], threads)
        counts = r.pop("counts")
        r.update(threads=threads, occupancy=round(100 * warps / most), launches=len(moved) or "-",
                 mb=f"{sum(moved) / 1e6:.1f}" if moved else "-", share="-")
        if counts:
            r.update(loads=widths(counts["LDG"]), stores=widths(counts["STG"]))
            if r["arch"] == "90" and moved:
                r["share"] = f"{100 * share(counts, 32 * warps, moved):.0f}"
    return rows


def find_nvdisasm():
    """Or None."""
    wheels = [p for place in sys.path for p in glob.glob(os.path.join(place, "nvidia", "*", "bin", "nvdisasm"))]
    for path in [os.environ.get("NVDISASM"), shutil.which("nvdisasm"), *wheels]:
        if path and os.access(path, os.X_OK):
            return path
    return None


def write(nvcc, archs, launches, flags):
    nvdisasm = find_nvdisasm()
    if not nvdisasm:
        sys.exit("kernels: no nvdisasm; pip install nvidia-cuda-nvdisasm, or NVDISASM=FILE")
    rows = add_step(compile_all(nvcc, archs, flags, nvdisasm), steps(launches))
    with TABLE.open("w") as out:
        print(f"# nvcc {version(nvcc)}; source {source_of(flags)}; made by kernels.py write", file=out)
        for row in [dict(zip(FIELDS, FIELDS)), *rows]:
            print(*(row[f] for f in FIELDS), sep="\t", file=out)
    print(f"{len(rows)} kernels")


def read():
    first, _, *lines = TABLE.read_text().splitlines()
    made_by, source = re.match(r"# nvcc ([^;]+); source ([^;]+);", first).groups()
    return made_by, source, [dict(zip(FIELDS, line.split("\t"))) for line in lines]


def check(nvcc, archs, launches, flags):
    made_by, source, table = read()
    fields = [f for f in FIELDS if f not in DISASSEMBLED]
    if made_by == version(nvcc) and source == source_of(flags) and {r["arch"] for r in table} >= set(archs):
        rows = [{**r, "counts": None} for r in table]
        for r in rows:
            r.update({f: int(r[f]) for f in ("registers", "shared")})
    else:
        print("the table is of other source, flags or nvcc: compiling")
        nvdisasm = find_nvdisasm()
        fields = FIELDS if nvdisasm else fields
        rows = compile_all(nvcc, archs, flags, nvdisasm)
    rows = [r for r in add_step(rows, steps(launches)) if r["arch"] in archs]
    wrong = [f"{r['kernel']} spills {r['spill_stores']} bytes on sm_{r['arch']}" for r in rows
              if int(r["spill_stores"]) or int(r["spill_loads"])]
    if made_by == version(nvcc):
        new, old = ({tuple(str(r[f]) for f in fields) for r in some if r["arch"] in archs} for some in (rows, table))
        if {r["arch"] for r in table} >= set(archs):
            wrong += [f"the table has not: {' '.join(r)}" for r in sorted(new - old)]
            wrong += [f"the table still has: {' '.join(r)}" for r in sorted(old - new)]
    else:
        print(f"the table is nvcc {made_by}'s, this is {version(nvcc)}: not compared")
    print(f"{len(rows)} kernels, {len(wrong)} mistakes", *wrong[:20], sep="\n")
    if len(rows) < 50:
        sys.exit(f"only {len(rows)} kernels were found in what ptxas says")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    if len(sys.argv) < 6 or sys.argv[1] not in ("check", "write") or sys.argv[5] != "--":
        sys.exit(__doc__)
    if not shutil.which(sys.argv[2]):
        print(f"no {sys.argv[2]}")
        sys.exit(77)
    {"check": check, "write": write}[sys.argv[1]](sys.argv[2], sys.argv[3].split(","), sys.argv[4], sys.argv[6:])
