#!/usr/bin/env python3
"""Draws the pictures of docs/ from the figures in bench/results.

    bench/draw.py                                  docs/speed.svg, sweep.svg, sweep-hosts.svg, timeline.svg
    bench/draw.py --to FOLDER                      the same, somewhere else
    bench/draw.py --sweep FILE.json OUT.svg        what bench/sweep --json measured
    bench/draw.py --timeline FILE.json OUT.svg     one update of what hvtrain --timeline recorded: the last whole one

speed.svg shows the first table of bench/results/README.md; the other pictures show the records beside it.
"""
import argparse
import json
import math
import re
import sys
from pathlib import Path

import chart

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


# ---- speed, from the table of bench/results/README.md ---------------------------------------------------------

def section(text, heading):
    return re.search(rf"^## {re.escape(heading)}\n(.*?)^## ", text, re.S | re.M)[1]


def rows(markdown):
    """{first cell: the other cells} of the first table, its head being that of an empty name."""
    table = re.search(r"(?:^\|.*\n)+", markdown, re.M)[0].splitlines()
    cells = [[c.strip() for c in line.strip("|").split("|")] for line in table]
    return {first: rest for first, *rest in cells if not first.startswith("---")}


def speed(path):
    text = (RESULTS / "README.md").read_text()
    part = section(text, "Training, images/s")
    machine, commit = re.match(r"\s*(\w+), commit (\w+)", part).groups()
    day = re.search(r"\((\d{4}-\d\d-\d\d)-", part)[1]
    host = re.sub(r"\s+", " ", re.search(rf"^- \*\*{machine}\*\*: (.*?)(?=^- |^$)", text, re.S | re.M)[1])
    cpu = re.search(r"two cores of an? ([^(]*\([^:]*)", host)[1] + ")"
    torch, horovod = re.search(r"PyTorch ([\d.]+), Horovod ([\d.]+)", host).groups()
    table = rows(part)
    head = [{"PyTorch": "DDP", "hvtrain f32": "hvtrain", "hvtrain bf16": "hvtrain"}.get(c, c) for c in table[""]]
    columns = []
    for name in ("ResNet-50, 32×32, batch 64, 2 ranks", "ResNet-20, 32×32, batch 128, 2 ranks"):
        values = [float(v.replace(",", "")) for v in table[name]]
        half = len(values) // 2
        columns.append((name, [(kind, list(zip(head[i:i + half], values[i:i + half])))
                               for kind, i in (("f32", 0), ("bf16", half))]))
    chart.write(path, [chart.bars("Training on CPUs: images per second, more is better", columns)],
                [f"Two ranks with one thread each on two cores of an {cpu}, {day}, commit {commit}: bench/compare.py.",
                 f"DDP: PyTorch {torch} over gloo, the faster of two memory layouts. Horovod {horovod} over MPI."])


# ---- bench/sweep ----------------------------------------------------------------------------------------------

def mib(size):
    """1 of "1MiB"; 0.5 of "512KiB"; infinity of "all". """
    amount, unit = re.fullmatch(r"([\d.]*)([A-Za-z]*)", size).groups()
    scale = {"": 2**-20, "B": 2**-20, "KiB": 2**-10, "MiB": 1, "GiB": 2**10, "kB": 1e3 / 2**20, "MB": 1e6 / 2**20,
             "GB": 1e9 / 2**20}
    return float(amount) * scale[unit] if amount else math.inf


def sweep_title(case):
    link = f" on {case['nodes']} hosts, {case['rate']}, {case['delay']}" if case["rate"] else ""
    return f"{case['shapes']}, {case['bytes'] / 2**20:.1f} MiB, {case['ranks']} ranks{link}"


def sweep(cases, path):
    """A panel for each network and number of ranks, a line for each comm and compression."""
    comms = {c["asked"] for c in cases}
    panels = {}
    for c in cases:
        label = c["compression"] if len(comms) == 1 else f"{c['asked']} {c['compression']}"
        panels.setdefault(sweep_title(c), {})[label] = sorted(c["rows"], key=lambda r: mib(r["size"])), c["backward_ms"]
    drawn = []
    for name, lines in panels.items():
        first, backward = next(iter(lines.values()))
        series = {label: [(i, r["median_ms"], *r["quartiles_ms"]) for i, r in enumerate(rows)]
                  for label, (rows, _) in lines.items()}
        usual = next(((i, "default") for i, r in enumerate(first) if r["default"]), None)
        places = [r["size"] if math.isinf(mib(r["size"])) else f"{mib(r['size']):.4g}" for r in first]
        drawn.append(chart.panel(name, "ms", "fusion buffer, MiB (0: one message per layer; all: one message)", places, series,
                                 floor=(backward, "backward pass") if backward else None, marked=usual))
    chart.write(path, drawn, ["Medians; a bar reaches from the lower to the upper quartile.", cases[0]["run"]],
                title="Time of a training step by the size of the fusion buffer")


# ---- hvtrain --timeline ---------------------------------------------------------------------------------------

KINDS = ["forward", "backward", "exchange", "wait", "update", "data", "launch"]


def events_of(file):
    """The events of a Chrome trace, whose end may be missing."""
    text = Path(file).read_text()
    try:
        return json.loads(text)
    except ValueError:
        return json.loads(text[:max(text.rfind(",\n{"), 1)] + "]")


def lane(events, begin, end, buckets, waits):
    """Bars of one thread from `begin` to `end`, inner ones in front of outer ones. buckets: by their bytes. waits: another
    thread exchanges, and this one waits for it."""
    bars = []
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        first, last = (max(e["ts"], begin) - begin) / 1000, (min(e["ts"] + e["dur"], end) - begin) / 1000
        bucket = str(e["args"].get("bucket", buckets.get(e["args"].get("bytes"), "")))
        if e["name"] == "launch":
            bars.append((first, first, "launch", bucket))
        elif e["name"] == "exchange":
            bars.append((first, last, "wait" if waits else "exchange", bucket))
        elif e["name"] in KINDS and last > first:
            bars.append((first, last, e["name"], ""))
    return bars


def timeline(file, path, note=""):
    events = events_of(file)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    spans = [e for e in events if e["ph"] == "X"]
    ranks = {}
    for e in spans:
        if e["name"] == "step":
            ranks.setdefault(e["args"]["step"], []).append(e)
    whole = [n for n, of in ranks.items() if len(of) == len(names)]
    if not whole:
        sys.exit(f"draw.py: {file} holds no update of all {len(names)} ranks; expected what hvtrain --timeline writes")
    step = max(whole)
    begin = min(e["ts"] for e in ranks[step])
    end = max(e["ts"] + e["dur"] for e in ranks[step])
    buckets = {e["args"]["bytes"]: e["args"]["bucket"] for e in spans if e["name"] == "launch"}
    exchanging = {(e["pid"], e["tid"]) for e in spans if e["name"] == "exchange"}
    lanes = []
    for pid, tid in sorted(threads):
        found = [e for e in spans if (e["pid"], e["tid"]) == (pid, tid) and e["ts"] < end and e["ts"] + e["dur"] > begin]
        if bars := lane(found, begin, end, buckets, waits=tid == 0 and (pid, 1) in exchanging):
            lanes.append((f"{names[pid]}, {threads[pid, tid]}", bars))
    used = [kind for kind in KINDS if any(kind == b[2] for _, bars in lanes for b in bars)]
    chart.write(path, [chart.lanes(f"Update {step} of a run, rank by rank", "ms", (end - begin) / 1000, lanes, used)],
                [*filter(None, [note]), "launch: a bucket of gradients is complete, and its exchange begins. Numbers are those of buckets."])


# ---- all ------------------------------------------------------------------------------------------------------

def all_pictures(folder):
    speed(folder / "speed.svg")
    for name in ("sweep", "sweep-hosts"):
        sweep(json.loads((RESULTS / f"{name}.json").read_text()), folder / f"{name}.svg")
    said = re.search(r"^`timeline.json`: (.*?);", (RESULTS / "README.md").read_text(), re.S | re.M)[1]
    timeline(RESULTS / "timeline.json", folder / "timeline.svg", " ".join(said.split()) + ".")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--to", type=Path, default=HERE.parent / "docs", metavar="FOLDER")
    p.add_argument("--sweep", nargs=2, metavar=("FILE.json", "OUT.svg"))
    p.add_argument("--timeline", nargs=2, metavar=("FILE.json", "OUT.svg"))
    args = p.parse_args()
    if args.sweep:
        sweep(json.loads(Path(args.sweep[0]).read_text()), args.sweep[1])
    if args.timeline:
        timeline(*args.timeline)
    if not args.sweep and not args.timeline:
        args.to.mkdir(parents=True, exist_ok=True)
        all_pictures(args.to)


if __name__ == "__main__":
    main()
