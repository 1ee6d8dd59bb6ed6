#!/usr/bin/env python3
"""What a recorded training step would take on up to 16,384 ranks: a replay on a model of the network.

    hvtrain --model resnet50 --batch 64 --steps 12 --timeline step.json      # on one rank: compute alone
    bench/scale.py replay step.json --network 25GbE --json out.json --plot out.svg
    bench/on_hosts.sh 4 1gbit 100us build/bench/bench_allreduce --json 4.json  # and on 2, 8 emulated hosts
    bench/scale.py check 2.json 4.json 8.json                                # model against what they measure
    bench/scale.py published                                                 # model against Horovod's numbers

The recording. hvtrain's timeline (rank 0's lane) gives for every update: when forward and backward began and
ended, when each bucket's gradients were final and how many bytes it has, and what the update took. The first two
updates are left out (memory is touched for the first time).

The network. A message of n bytes takes alpha + beta n; adding n bytes takes gamma n. With L = ceil(log2 N), a sum
of S bytes over N ranks takes

    tree       L (alpha + beta S + gamma S)                                    S <= 8 KiB: whole vectors travel
               2 L alpha + 2 (N-1)/N beta S + (N-1)/N gamma S                  else, by halving and doubling
    ring       2 (N-1) alpha + 2 (N-1)/N beta S + (N-1)/N gamma S              what NCCL and Horovod did in 2018
    hier       inside a node of k ranks, then `tree` over N/k nodes: every byte of the sum passes the node's
               link once each way: (k-1)/k S (beta_in + gamma) down and (k-1)/k S beta_in up beside it

`tree` is hvtrain's comm mpi, `hier` its comm hier.

The step. The exchange handles one bucket after the other: bucket b starts when its gradients are final and the
one before has ended, and overlaps with backward from then on (factor --overlap: 1 is a free core or network
hardware, 0 is no overlap at all: everything starts when backward has ended). So

    end_b  = max(ready_b, end_(b-1)) + T(bytes_b, N)
    step_N = max(backward's end, end_last) + update + extra per bucket (a peer's cycle; 0 for hvtrain)

Ranks do not take equally long for the same work. Their compute times are drawn from the m recorded updates, and a
step waits for the slowest: E max of N draws = sum over sorted x_i of x_i ((i/m)^N - ((i-1)/m)^N). Far past m ranks
that stays at the slowest update that was ever recorded: it knows no rarer event. --cv gives a coefficient of
variation instead, of a normal distribution: mean * (1 + cv * Phi^-1((N - 3/8) / (N + 1/4))), Blom's approximation.

    efficiency(N) = step_1 / step_N        the batch of a rank stays what it is (weak scaling)

Not in the model: contention in the switches (the network is full bisection), input, evaluation, failures.
"""
import argparse
import json
import math
import statistics
import sys
from pathlib import Path

import chart
import common

SHORT = 8192  # bytes: hvtrain's mpi_short

# alpha in s, beta in s per byte of one direction of a host's link, beta_in of the memory or bus inside a host
NETWORKS = {
    "1GbE": {"alpha": 40e-6, "beta": 8 / 0.94e9, "gamma": 0.10e-9, "beta_in": 0.15e-9},
    "10GbE": {"alpha": 20e-6, "beta": 8 / 9.4e9, "gamma": 0.10e-9, "beta_in": 0.15e-9},
    "25GbE": {"alpha": 10e-6, "beta": 8 / 23.5e9, "gamma": 0.10e-9, "beta_in": 0.15e-9},
    "100Gb": {"alpha": 3e-6, "beta": 8 / 94e9, "gamma": 0.05e-9, "beta_in": 0.10e-9},
}


def sum_seconds(net, way, ranks, size, per_node=1):
    """Of one sum of `size` bytes."""
    if ranks == 1 or size == 0:
        return 0.0
    a, b, g = net["alpha"], net["beta"], net["gamma"]
    if way == "hier" and per_node > 1:
        k = min(per_node, ranks)
        inside = (k - 1) / k * size * (2 * net["beta_in"] + g)
        return inside + sum_seconds(net, "tree", math.ceil(ranks / k), size)
    levels = math.ceil(math.log2(ranks))
    if way != "ring" and size <= SHORT:
        return levels * (a + (b + g) * size)
    hops = 2 * (ranks - 1) if way == "ring" else 2 * levels
    return hops * a + (ranks - 1) / ranks * size * (2 * b + g)


def step_seconds(step, net, way, ranks, per_node=1, overlap=1.0, each=0.0, slower=1.0):
    """Of an update whose compute takes `slower` times what was recorded."""
    begin, end = step["forward"] * slower, (step["forward"] + step["backward"]) * slower
    done = begin
    for ready, size in step["buckets"]:
        ready = begin + ready * slower
        ready = end + (ready - end) * overlap
        done = max(ready, done) + sum_seconds(net, way, ranks, size, per_node) + (each if ranks > 1 else 0)
    return max(end, done) + step["update"]


def slowest(times, ranks, cv=None):
    """Expected slowest of `ranks` draws, as a multiple of the mean."""
    if cv is not None:
        return 1 + cv * statistics.NormalDist().inv_cdf((ranks - .375) / (ranks + .25))
    m = len(times)
    return sum(x * (((i + 1) / m)**ranks - (i / m)**ranks) for i, x in enumerate(sorted(times))) / statistics.mean(times)


def read_timeline(file):
    """The updates of rank 0 in a timeline: seconds of forward (with data and loss), backward, update; buckets."""
    text = file.read_text().rstrip()
    if not text.endswith("]"):  # of a run that was killed, perhaps within an event
        text = text[:text.rfind(",\n{")] + "]"
    events = json.loads(text)
    steps = {}
    for e in events:
        if e.get("ph") == "X" and e["pid"] == 0 and e["args"].get("step", 0) > 0:
            steps.setdefault(e["args"]["step"], []).append(e)
    found = []
    for number in sorted(steps)[2:]:
        of = lambda name: [e for e in steps[number] if e["name"] == name]
        if not (of("step") and of("backward") and of("launch")):
            continue
        start, back = of("step")[0]["ts"], of("backward")[0]
        launches = sorted(of("launch"), key=lambda e: e["ts"])
        found.append({
            "forward": 1e-6 * (back["ts"] - start), "backward": 1e-6 * back["dur"],
            "buckets": [(1e-6 * (e["ts"] - back["ts"]), e["args"]["bytes"]) for e in launches],
            "update": 1e-6 * sum(e["dur"] for e in of("update"))})
    if not found:
        sys.exit(f"{file}: no whole update after the second; record with hvtrain --timeline FILE --steps 12")
    return found


def median_step(steps):
    mid = lambda values: statistics.median(values)
    return {"forward": mid(s["forward"] for s in steps), "backward": mid(s["backward"] for s in steps),
            "update": mid(s["update"] for s in steps),
            "buckets": [(mid(s["buckets"][b][0] for s in steps), steps[0]["buckets"][b][1])
                        for b in range(len(steps[0]["buckets"]))]}


# ---- replay ---------------------------------------------------------------------------------------------------

def replay():
    file = args.file[0]
    steps = read_timeline(file)
    step = median_step(steps)
    times = [s["forward"] + s["backward"] for s in steps]
    net = dict(NETWORKS[args.network], **{k: v for k, v in (("alpha", args.alpha), ("beta", args.beta)) if v})
    alone = step_seconds(step, net, args.way, 1)
    rows = []
    for ranks in [2**i for i in range(15)]:
        late = slowest(times, ranks, args.cv)
        even = step_seconds(step, net, args.way, ranks, args.per_node, args.overlap)
        whole = step_seconds(step, net, args.way, ranks, args.per_node, args.overlap, slower=late)
        rows.append({"ranks": ranks, "step_ms": 1e3 * whole, "exposed_ms": 1e3 * (even - alone),
                     "skew_ms": 1e3 * (whole - even), "efficiency": alone / whole})
    total = sum(size for _, size in step["buckets"])
    print(f"{file}: {len(steps)} updates of {1e3 * alone:.1f} ms, "
          f"spread {statistics.pstdev(times) / statistics.mean(times):.1%}, {len(step['buckets'])} buckets, "
          f"{total / 1e6:.1f} MB")
    print(f"network {args.network} (alpha {1e6 * net['alpha']:g} us, {8e-9 / net['beta']:.3g} Gbit/s), {args.way}, "
          f"{args.per_node} ranks a node, overlap {args.overlap:g}")
    print("  step ms     of an update\n  exposed ms  of it, exchange that nothing hides\n"
          "  skew ms     of it, waiting for the slowest of the ranks\n  efficiency  step alone / step")
    print(f"{'ranks':>7}{'step ms':>10}{'exposed ms':>12}{'skew ms':>9}{'efficiency':>12}")
    for r in rows:
        print(f"{r['ranks']:7}{r['step_ms']:10.2f}{r['exposed_ms']:12.3f}{r['skew_ms']:9.2f}{r['efficiency']:12.3f}")
    return {"file": file.name, "network": args.network, "way": args.way, "per_node": args.per_node,
            "overlap": args.overlap, "cv": args.cv, "step": step, "rows": rows}


# ---- check: sums on hosts that can be had here ----------------------------------------------------------------

def check():
    """Files of bench_allreduce, of one network at several numbers of ranks: alpha and beta are fitted to the smallest
    number, and the others are foretold."""
    runs = sorted((json.loads(f.read_text()) for f in args.file), key=lambda r: r["ranks"])
    points = {r["ranks"]: {w["bytes"]: 1e-6 * w["median_us"] for w in r["rows"]
                           if w["way"] == args.comm and "median_us" in w} for r in runs}
    if any(len(at) < 2 for at in points.values()):
        sys.exit(f"check needs at least two sizes of comm {args.comm} in each file of bench_allreduce")
    first = min(points)
    levels = math.ceil(math.log2(first))
    # Least squares of relative errors: seconds = messages * alpha + bytes * beta; gamma is in beta's second half.
    a = [((levels if n <= SHORT else 2 * levels) / t,
          (levels * n if n <= SHORT else 2 * (first - 1) / first * n) / t) for n, t in points[first].items()]
    pp, pq, qq = sum(p * p for p, _ in a), sum(p * q for p, q in a), sum(q * q for _, q in a)
    sp, sq = sum(p for p, _ in a), sum(q for _, q in a)
    alpha, beta = ((sp * qq - sq * pq) / (pp * qq - pq * pq), (sq * pp - sp * pq) / (pp * qq - pq * pq))
    if alpha < 0:  # noise of small sums: neither may be below 0
        alpha, beta = 0.0, sq / qq
    elif beta <= 0:
        alpha, beta = sp / pp, sys.float_info.epsilon
    net = {"alpha": alpha, "beta": beta, "gamma": 0.0}
    print(f"fitted to {first} ranks: alpha {1e6 * alpha:.1f} us, beta {8e-9 / beta:.3g} Gbit/s")
    print(f"{'ranks':>6}{'bytes':>11}{'measured us':>13}{'model us':>11}{'model/measured':>16}")
    rows = []
    for ranks, at in points.items():
        for size, seconds in at.items():
            model = sum_seconds(net, "tree", ranks, size)
            rows.append({"ranks": ranks, "bytes": size, "measured_us": 1e6 * seconds, "model_us": 1e6 * model})
            print(f"{ranks:6}{size:11}{1e6 * seconds:13.1f}{1e6 * model:11.1f}{model / seconds:16.2f}")
    for ranks in points:
        off = [r["model_us"] / r["measured_us"] for r in rows if r["ranks"] == ranks]
        print(f"{ranks} ranks: model / measured {statistics.geometric_mean(off):.2f} (geometric mean), "
              f"{min(off):.2f} to {max(off):.2f}")
    return {"fit": net, "rows": rows}


# ---- published: Horovod's own points --------------------------------------------------------------------------

# One Pascal GPU at batch 64, images/s in issue 44 and in issue 19, and gradients in MB in the order in which they are
# ready: (part of backward that is done, MB). VGG-16's linear layers, nine tenths of it, are ready when backward has
# hardly begun.
MODELS = {
    "Inception V3": {"img_s": (134.4, 148.8),
                     "buckets": [(0.02, 8.2)] + [(0.02 + 0.098 * i, 8.7) for i in range(1, 11)]},
    "ResNet-101": {"img_s": (119.4, 136.0),
                   "buckets": [(0.01, 8.2)] + [(0.01 + 0.099 * i, 17.0) for i in range(1, 11)]},
    "VGG-16": {"img_s": (130.9, 149.6),
               "buckets": [(0.01, 16.4), (0.02, 67.1), (0.03, 411.1)]
               + [(0.1 + 0.09 * i, 5.9) for i in range(1, 11)]},
}
# GPUs, model, published efficiency. 16: TCP and RDMA over 25 GbE, Horovod's issue 44; 64: TCP, issue 19;
# 512: its documentation, 128 servers of 4 GPUs, RoCE over 25 GbE.
POINTS = [(16, "Inception V3", .938, "RDMA"), (16, "ResNet-101", .913, "RDMA"), (16, "VGG-16", .856, "RDMA"),
          (16, "Inception V3", .924, "TCP"), (16, "ResNet-101", .881, "TCP"), (16, "VGG-16", .625, "TCP"),
          (64, "Inception V3", .833, "TCP"), (64, "ResNet-101", .889, "TCP"), (64, "VGG-16", .636, "TCP"),
          (512, "Inception V3", .90, "RDMA"), (512, "ResNet-101", .90, "RDMA"), (512, "VGG-16", .68, "RDMA")]


def published_step(model, gpus):
    seconds = 64 / MODELS[model]["img_s"][gpus == 64]
    back = seconds * 2 / 3  # a backward pass does twice the work of a forward pass
    return {"forward": seconds - back, "backward": back, "update": 0.0,
            "buckets": [(part * back, 1e6 * mb) for part, mb in MODELS[model]["buckets"]]}


def published():
    """Two numbers are not published and are fitted, to the points of 16 GPUs alone: the part of the link that was
    used, for either transport, and the spread of compute times. All other points are foretold."""
    def foretell(gpus, model, use, cv):
        step = published_step(model, gpus)
        net = {"alpha": 5e-6, "beta": 8 / (25e9 * use), "gamma": 0.0}
        # Horovod's cycle: a fused sum waits for the tick, 5 ms apart then, half of it on average.
        whole = step_seconds(step, net, "ring", gpus, each=2.5e-3, slower=slowest([1], gpus, cv))
        return step_seconds(step, net, "ring", 1) / whole

    def error(fit):
        cv = fit["cv"]
        return sum(math.log(foretell(n, m, fit[how], cv) / e)**2 for n, m, e, how in POINTS if n == 16)

    grid = [{"cv": .004 * cv, "RDMA": .01 * r, "TCP": .01 * t} for cv in range(16)
            for r in range(30, 102, 2) for t in range(20, 102, 2)]
    fit = min(grid, key=error)
    print(f"fitted to 16 GPUs: {fit['RDMA']:.0%} of the link by RDMA, {fit['TCP']:.0%} by TCP, "
          f"compute spread {fit['cv']:.1%}")
    print(f"{'GPUs':>5}  {'model':14}{'by':6}{'published':>10}{'model':>8}{'off':>8}")
    rows = []
    for n, m, e, how in POINTS:
        got = foretell(n, m, fit[how], fit["cv"])
        rows.append({"gpus": n, "model": m, "by": how, "published": e, "foretold": got})
        print(f"{n:5}  {m:14}{how:6}{e:10.3f}{got:8.3f}{got / e - 1:+8.1%}" + ("" if n > 16 else "   fitted"))
    # Of the run with 27,600 GPUs (Summit, Romero et al., NSDI '22) neither model nor step is in our sources, but that
    # its exchange was hidden: what is left is the wait for the slowest.
    late = 1 / slowest([1], 27600, fit["cv"])
    rows.append({"gpus": 27600, "model": "waiting alone", "by": "-", "published": .93, "foretold": late})
    print(f"{27600:5}  {'waiting alone':14}{'-':6}{.93:10.3f}{late:8.3f}{late / .93 - 1:+8.1%}")
    return {"fit": fit, "rows": rows}


def plot(result, file):
    rows = result["rows"]
    series = {result["way"]: [(i, r["efficiency"], r["efficiency"], r["efficiency"]) for i, r in enumerate(rows)]}
    chart.write(file, [chart.panel(f"{result['file']}, {result['network']}", "efficiency", "ranks",
                                   [f"{r['ranks']:,}" for r in rows], series, low=0)])


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("what", choices=["replay", "check", "published"])
p.add_argument("file", nargs="*", type=Path, help="replay: a timeline; check: sums of bench_allreduce")
p.add_argument("--network", choices=NETWORKS, default="25GbE")
p.add_argument("--alpha", type=float, help="s, instead of the network's")
p.add_argument("--beta", type=float, help="s per byte, instead of the network's")
p.add_argument("--way", choices=["tree", "ring", "hier"], default="tree")
p.add_argument("--per-node", type=int, default=1, help="hier: ranks of a host")
p.add_argument("--overlap", type=float, default=1.0, help="0: the exchange begins when backward has ended")
p.add_argument("--cv", type=float, help="spread of compute times, instead of the recorded one")
p.add_argument("--comm", default="mpi", help="check: the row of bench_allreduce")
p.add_argument("--json", type=Path)
p.add_argument("--plot", type=Path, help="replay: an SVG to write")
args = p.parse_args()
if __name__ == "__main__":
    if args.what != "published" and not args.file:
        p.error(f"{args.what} needs a file")
    answer = {"replay": replay, "check": check, "published": published}[args.what]()
    if args.json:
        common.save(answer, args.json)
    if args.plot and args.what == "replay":
        plot(answer, args.plot)
