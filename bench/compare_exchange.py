#!/usr/bin/env python3
"""From gradients to new weights: hvtrain and MPI_Allreduce (bench_exchange) beside hvtrain's Python package under
PyTorch's SGD, Horovod as installed, Horovod tuned by hand and PyTorch's DDP over gloo, in turns: one table, one file.

    bench/compare_exchange.py --build build --python venv/bin/python --model resnet50

A pass runs every way once, in a process of its own, with its rounds; several passes take turns, so that what else
the machine does falls on all alike. All ways verify their weights. A peer that is not installed in --python is
left out and named; then the MPI_Allreduce rows stand for what a program without a library would do.
"""
import json
import statistics
import sys
import tempfile
from pathlib import Path

import common
from common import mpirun, output_of

OURS = "shm, sharded"
LIBRARY = "src/bindings/python/hvtrain/libhvt.so"

# name, peer, further arguments, environment
PEERS = [
    ("hvtrain's Python package", "hvtrain", [], {}),
    ("Horovod as installed", "horovod", [], {}),
    ("Horovod, 8 MB buffer", "horovod", [], {"HOROVOD_FUSION_THRESHOLD": str(8 << 20)}),
    ("Horovod, 8 MB, yielding MPI, fused SGD", "horovod", ["--fused"],
     {"HOROVOD_FUSION_THRESHOLD": str(8 << 20), "OMPI_MCA_mpi_yield_when_idle": "1"}),
    ("DDP over gloo", "ddp", [], {}),
    ("DDP over gloo, fused SGD", "ddp", ["--fused"], {}),
]


def ours():
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.json"
        output_of(mpirun(args.ranks, args.build / "bench" / "bench_exchange", "--model", args.model,
                         "--rounds", args.rounds, "--json", file))
        return json.loads(file.read_text())


def peer(name, kind, more, environment):
    script = [common.PEERS / "torch_exchange.py", kind, "--model", args.model, "--rounds", args.rounds, *more]
    launch = common.torchrun(args.python, args.ranks) if kind == "ddp" else mpirun(args.ranks, args.python)
    if kind == "hvtrain":
        environment = {"PYTHONPATH": str(args.build / "src/bindings/python")}
    return dict(common.json_lines(output_of([*launch, *script], environment))[-1], way=name)


def measure(result):
    """Add passes to those that are there."""
    common.need(args.build, "bench/bench_exchange", LIBRARY)
    here = [p for p in PEERS if common.has(args.python, {"horovod": "horovod.torch"}.get(p[1], "torch.distributed"))]
    for p in PEERS:
        if p not in here:
            print(f"{p[0]}: not installed in {args.python}; left out")
    for _ in range(args.passes):
        about = ours()
        result["passes"].append(about["rows"] + [peer(*p) for p in here])
        result |= {"run": about["run"], "date": common.now()}


def show(result):
    rows = {}
    for row in sum(result["passes"], []):
        rows.setdefault(row["way"], []).append(row)
    median = {way: statistics.median(r.get("median_ms", float("nan")) for r in found) for way, found in rows.items()}
    print(result["run"])
    print(f"{result['model']}, {result['ranks']} ranks, {len(result['passes'])} passes of {result['rounds']} rounds")
    print("  way        who exchanges and who updates")
    print("  median ms  from all gradients to all new weights on the slowest rank; median of the passes' medians")
    print("  least ms   the same, least of all rounds")
    print(f"  x ours     median / median of {OURS}")
    print(f"{'way':40}{'median ms':>11}{'least ms':>10}{'x ours':>8}")
    for way, found in rows.items():
        if any("median_ms" not in r for r in found):
            print(f"{way:40}  wrong weights")
            continue
        times = f"{median[way] / median[OURS]:8.2f}" if OURS in median else f"{'-':>8}"
        print(f"{way:40}{median[way]:11.3f}{min(r['least_ms'] for r in found):10.3f}{times}")


p = common.parser(__doc__, python="a Python that has torch, and horovod if it is a peer")
p.add_argument("--model", default="resnet50")
p.add_argument("--ranks", type=int, default=2)
p.add_argument("--rounds", type=int, default=9, help="of every way in a pass")
p.add_argument("--passes", type=int, default=3)
p.add_argument("--json", type=Path, help="a file to write; passes that it holds already are kept and count")
args = common.arguments(p)
if __name__ == "__main__":
    measured = {"model": args.model, "ranks": args.ranks, "rounds": args.rounds, "passes": []}
    if args.json and args.json.exists():
        measured = json.loads(args.json.read_text())
        if [measured[k] for k in ("model", "ranks", "rounds")] != [args.model, args.ranks, args.rounds]:
            sys.exit(f"{args.json} holds another model, or other ranks or rounds")
    measure(measured)
    show(measured)
    if args.json:
        common.save(measured, args.json)
