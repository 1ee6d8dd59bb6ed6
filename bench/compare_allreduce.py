#!/usr/bin/env python3
"""The sum of a vector over the ranks by every comm and MPI_Allreduce (bench_allreduce), by PyTorch over gloo and
by Horovod where it is installed, one after the other in the same minutes: one table, one file, one plot.

    bench/compare_allreduce.py --build build --python venv/bin/python --ranks 2
    bench/compare_allreduce.py --from bench/results/DATE-allreduce.json --plot allreduce.svg

The columns are bench_allreduce's.
"""
import json
import tempfile
from pathlib import Path

import chart
import common
from common import mpirun, output_of


def ours():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        output_of(mpirun(args.ranks, args.build / "bench" / "bench_allreduce", "--seconds", args.seconds,
                         "--max", args.max, "--json", file))
        return json.loads(file.read_text())


def peer(name, sizes):
    script = [common.PEERS / "torch_allreduce.py", name, "--bytes", ",".join(map(str, sizes)),
              "--seconds", args.seconds]
    launch = mpirun(args.ranks, args.python) if name == "horovod" else common.torchrun(args.python, args.ranks)
    return common.json_lines(output_of([*launch, *script]))


def measure():
    common.need(args.build, "bench/bench_allreduce")
    results = ours()
    sizes = sorted({row["bytes"] for row in results["rows"]})
    for name, module in (("gloo", "torch.distributed"), ("horovod", "horovod.torch")):
        if common.has(args.python, module):
            results["rows"] += peer(name, sizes)
        else:
            print(f"{name}: not installed in {args.python}; left out")
    results["date"] = common.now()
    return results


def show(results):
    ways = list(dict.fromkeys(row["way"] for row in results["rows"]))
    median = {(row["bytes"], row["way"]): row.get("median_us") for row in results["rows"]}
    print(results["run"], f"{results['ranks']} ranks, median us of a call; - not run, ! wrong sum", sep="\n")
    print(f"{'bytes':>10}" + "".join(f"{way:>15}" for way in ways))
    for size in sorted({row["bytes"] for row in results["rows"]}):
        cells = ["-" if (size, w) not in median else "!" if median[size, w] is None else f"{median[size, w]:.2f}"
                 for w in ways]
        print(f"{size:10}" + "".join(f"{cell:>15}" for cell in cells))


def plot(results, file):
    sizes = sorted({row["bytes"] for row in results["rows"]})
    series = {}
    for r in results["rows"]:
        if "median_us" in r:
            series.setdefault(r["way"], []).append((sizes.index(r["bytes"]), r["median_us"], r["least_us"], r["median_us"]))
    binary = lambda n: f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1 << 10 else f"{n} B"
    chart.write(file, [chart.panel(f"Sum over {results['ranks']} ranks, median and least of 9 rounds", "us a call",
                                   "vector", list(map(binary, sizes)), series, log=True)], [results["run"]])


p = common.parser(__doc__, python="a Python that has torch, and horovod if it is a peer")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--seconds", type=float, default=1, help="for one way and size")
p.add_argument("--max", type=int, default=256 << 20, help="bytes of the longest vector")
p.add_argument("--from", dest="source", type=Path, help="show and plot what an earlier run wrote")
p.add_argument("--out", type=Path, default=common.dated("allreduce.json"))
p.add_argument("--plot", type=Path, help="an SVG to write")
args = common.arguments(p)
if __name__ == "__main__":
    if args.source:
        measured = json.loads(args.source.read_text())
    else:
        measured = measure()
        common.save(measured, args.out)
        print(f"written: {args.out}")
    show(measured)
    if args.plot:
        plot(measured, args.plot)
