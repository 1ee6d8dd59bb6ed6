"""Usage: test_peers.py ROOT BUILD [TRUTH ...]. The scripts of bench/ that compare hvtrain with PyTorch, in their shortest
form. With Horovod if PyTorch's Python has it."""
import os
import re
import sys

from scripts import (BENCH, BUILD, HERE, check, cifar, lines_of, on_ranks, output, pictures, read, run_all, texts, timed, torch)


def peers(name, *args, ranks=2):
    if ranks > 1:
        on_ranks(ranks)
    return timed(name, "--python", torch(), *args)


def training_is_compared():
    out = peers("compare.py", "--only", "resnet20-128", "--ranks", 1, "--rounds", 1, "--steps", 1, "--out",
                "compare.json", ranks=1)
    case, = read("compare.json")["cases"]
    check({"hvtrain", "torch nchw", "torch channels_last"} <= set(case["rounds"]), case)
    for name, rounds in case["rounds"].items():
        check(rounds[0]["img_s"] > 0 and rounds[0]["first"] > 0 and rounds[0]["peak"] > 1 << 20, name, rounds)
    check(re.search(r"^resnet20-128 +1 +hvtrain +[\d.]+", out, re.M), out)


def sums_are_compared():
    peers("compare_allreduce.py", "--ranks", 2, "--seconds", 0.01, "--max", 256, "--out", "sums.json", "--plot", "sums.svg")
    rows = read("sums.json")["rows"]
    check({"shm", "mpi", "MPI_Allreduce", "gloo"} <= {r["way"] for r in rows}, rows)
    check(all(r["median_us"] > 0 for r in rows), "a wrong sum:", rows)
    check({"8 B", "64 B", "256 B"} <= set(texts("sums.svg")) and lines_of("sums.svg", "polyline") >= 7, texts("sums.svg"))
    again = timed("compare_allreduce.py", "--from", "sums.json")
    check(re.search(r"^ +256( +[\d.]+){7}", again, re.M), again)


def exchanges_are_compared():
    out = peers("compare_exchange.py", "--model", "resnet20", "--passes", 1, "--rounds", 1, "--json", "exchange.json")
    one, = read("exchange.json")["passes"]
    check({"shm, sharded", "MPI_Allreduce, all", "DDP over gloo", "hvtrain's Python package"} <= {r["way"] for r in one}, one)
    check("wrong weights" not in out and all(r["median_ms"] > 0 for r in one), out)


def loaders_are_compared():
    peers("compare_loader.py", "--tar", pictures(), "--files", 16, "--batch", 4, "--rounds", 1, "--seconds", 0.1, "--out",
          "loader.json", ranks=1)
    runs = read("loader.json")["runs"]
    check({"hvtrain", "raw shards", "jpeg bound", "Pillow", "decode_jpeg"} <= set(runs), runs)
    check(all(r[0]["img_s"] > 0 for r in runs.values()), runs)
    peers("compare_loader.py", "--costs", "--tar", pictures(), "--files", 16, "--batch", 4, "--rounds", 1, "--seconds", 0.1,
          "--out", "costs.json", ranks=1)
    runs = read("costs.json")["runs"]
    check({"hvtrain", "trivial", "rand", "auto", "color", "erase", "mixup", "cutmix", "trivial+erase+mixup"} == set(runs) and
          all(r[0]["cpu"] > 0 for r in runs.values()), runs)


def solvers_are_compared():
    out = peers("compare_solver.py", "--rounds", 1, "--updates", 1, "--fields", 4)
    check(re.search(r"^hvtrain / DDP: [\d.]+$", out, re.M), out)


def outputs_that_are_images_are_compared():
    peers("compare_dense.py", "--only", "unet-bilinear", "--only", "autoencoder", "--seeds", 1, "--epochs", 1, "--images", 44, "--batch", 4,
          "--side", 16, "--width", 4, "--threads", 1,
          "--layouts", "channels_last", "--out", "dense.json", ranks=1)
    cases = read("dense.json")["cases"]
    check([c["net"] for c in cases] == ["unet-bilinear", "autoencoder"], cases)
    for case in cases:
        ours, other = (case["rounds"][name][0] for name in ("hvtrain", "channels_last"))
        check(len(ours["losses"]) == 11 and all(abs(a / b - 1) < 1e-4 for a, b in zip(ours["losses"][:10], other["losses"])),
              case["net"], ours["losses"], "not", other["losses"])
        check(abs(ours["score"] - other["score"]) < 0.02 and other["img_s"] > 0 < ours["img_s"], case)


def accuracies_are_compared():
    peers("accuracy.py", "--data-dir", cifar(), "--only", "own", "--seeds", 1, "--epochs", 1, "--limit", 32, "--batch", 16,
          "--out", "accuracy.json", ranks=1)
    rows = {r["program"]: r["runs"][0] for r in read("accuracy.json")["rows"]}
    check(set(rows) == {"hvtrain", "PyTorch"} and all(0 <= r["top1"] <= 100 for r in rows.values()), rows)


def recipes_are_compared():
    for only, more in ("augmented", "--batch 16"), ("quick", "--batch 8 --warmup-epochs 0"), ("lamb", "--shards 2 --batch 8 --warmup-epochs 0"):
        out = peers("recipes.py", "--data-dir", cifar(), "--only", only, "--seeds", 1, "--epochs", 1, "--limit", 32, "--more",
                    more, "--out", "recipes.json", ranks=1)
    runs = read("recipes.json")["runs"]
    check(set(runs) == {f"{case}, seed 1" for case in ("augmented, hvtrain", "augmented, PyTorch", "quick, hvtrain",
                                                       "quick, PyTorch", "lamb, LAMB, 4096", "lamb, SGD, 128")}, runs)
    check(all(0 <= r["top1"] <= 100 and r["seconds"] > 0 for r in runs.values()), runs)
    again = peers("recipes.py", "--data-dir", cifar(), "--only", only, "--seeds", 1, "--out", "recipes.json", ranks=1)
    check(out.splitlines()[1:3] == again.splitlines()[1:3], "measured again", out, again)


def the_tutorial_is_run():
    out = peers("tutorials", "--data-dir", cifar(), "--limit", 16, "--batch", 4, "--ranks", "1,2", "--json", "tutorials.json",
                "--plot", "tutorials.svg")
    table = read("tutorials.json")
    rows = [(r["row"], r["program"], r["ranks"]) for r in table["rows"]]
    expected = [("one device", "hvtrain", 1), ("one device", "PyTorch", 1), ("DDP on 2 ranks", "hvtrain", 2),
                ("DDP on 2 ranks", "PyTorch", 2), ("DDP on 2 ranks, 16 bits", "hvtrain", 2),
                ("DDP on 2 ranks, 16 bits", "PyTorch", 2), ("DDP on 2 ranks, SyncBN", "hvtrain", 2)]
    if len(os.sched_getaffinity(0)) > 1:
        expected.append(("DataParallel on 2 devices", "hvtrain", 2))
    check({r for r in rows if r[1] != "Horovod"} == set(expected), rows)
    check(all(r["seconds"] > 0 and r["images"] == 16 and 0 <= r["top1"] <= 100 for r in table["rows"]), table)
    check("published, on GPUs:" in out, out)
    check({r[0] for r in rows} <= set(texts("tutorials.svg")) and lines_of("tutorials.svg", "rect") > len(rows),
          texts("tutorials.svg"))


def first_updates_are_compared():
    peers("startup.py", "--only", "resnet20-32", "--ranks", 1, "--rounds", 1, "--memory-rounds", 0, "--json", "startup.json")
    first = read("startup.json")["cases"][0]["first"]
    check({"hvtrain", "DDP nchw", "DDP channels_last"} <= set(first) and all(r[0]["first"] > 0 for r in first.values()), first)


def rounding_is_compared():
    out = output(torch(), BENCH / "conv_error.py", BUILD / "bench/bench_ops", "resnet20")
    rows = re.findall(r"^\| (\d+) → \d+ at \d+×\d+ \| ([\d.]+), .* \| ([\d.]+), .* \| ([\d.]+), .* \| ([\d.]+), .* \| (\S+), ",
                      out, re.M)
    check(len(rows) == 3, out)
    for channels, direct, two, four, torchs, tf32 in rows:
        check(all(0.1 < float(e) < 20 for e in (direct, two, four, torchs)) and float(tf32) > 500, channels, out)


def the_gpus_peer_runs_on_a_cpu():
    python, peer = torch(), BENCH / "gpu" / "torch_peer.py"
    output(python, peer, "weights", "--file", "weights.safetensors")
    output(BUILD / "bench/dump_synth", 4, 32, 10, "images.bin")
    output(python, peer, "curve", "--device", "cpu", "--amp", "f32", "--batch", 2, "--steps", 2, "--lr", 0.001, "--data",
           "images.bin", "--init", "weights.safetensors", "--json", "curve.json")
    losses = read("curve.json")["losses"]
    check(len(losses) == 2 and all(0 < loss < 30 for loss in losses), losses)
    output(python, peer, "speed", "--device", "cpu", "--batch", 2, "--size", 32, "--lr", 0, "--steps", 10, "--json",
           "speed.json")
    check(read("speed.json")["img_s"] > 0, read("speed.json"))


run_all([training_is_compared, sums_are_compared, exchanges_are_compared, loaders_are_compared, solvers_are_compared,
         outputs_that_are_images_are_compared, accuracies_are_compared, recipes_are_compared,
         the_tutorial_is_run, first_updates_are_compared, rounding_is_compared, the_gpus_peer_runs_on_a_cpu], sys.argv[3:], HERE)
