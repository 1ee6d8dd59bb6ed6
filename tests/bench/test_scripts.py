"""Usage: test_scripts.py ROOT BUILD [TRUTH ...]. The scripts of bench/ that compare hvtrain with itself, in their shortest
form. test_peers.py has those that compare it with PyTorch."""
import re
import shutil
import sys

from scripts import (BENCH, BUILD, HERE, ROOT, check, cifar, lines_of, on_ranks, output, pictures, python_with, read, run,
                     run_all, script, texts, timed)
from truths import Skip

# Where each script that someone may start is run.
TESTED = {
    "tests/bench/test_sweep.py": ["sweep", "on_hosts.sh"],
    "tests/bench/test_scripts.py": ["data_tax.py", "scale.py", "startup.py", "tax.py", "wire_sums.py", "wheels.py"],
    "tests/bench/test_peers.py": ["accuracy.py", "compare.py", "compare_allreduce.py", "compare_dense.py",
                                  "compare_exchange.py", "compare_loader.py", "compare_solver.py", "conv_error.py", "recipes.py", "startup.py",
                                  "tutorials", "torch_peer.py"],
    "tests/tree/test_charts.py": ["draw.py"],
    "tests/bundle/test_bundle.py": ["pack", "run.py"],
    "bench/gpu/meson.build": ["kernels.py", "predict.py", "test_predict.py"],
}
# Scripts that these start.
STARTED = {"compare.py": ["torch_train.py"], "compare_allreduce.py": ["torch_allreduce.py"],
           "compare_dense.py": ["torch_dense.py"],
           "compare_exchange.py": ["torch_exchange.py"], "compare_loader.py": ["torch_loader.py"],
           "recipes.py": ["torch_recipes.py"]}


def every_script_is_run_by_a_test():
    scripts = {f.name for f in BENCH.rglob("*") if f.is_file() and f.open("rb").read(2) == b"#!"}
    tested = {name for names in TESTED.values() for name in names}
    started = {name for names in STARTED.values() for name in names}
    check(scripts == tested | started, "no test runs", sorted(scripts - tested - started), "; not there:",
          sorted((tested | started) - scripts))
    for file, names in TESTED.items():
        text = (ROOT / file).read_text().partition("\nSTARTED = ")  # behind this table
        check(all(f'{name}"' in (text[2] or text[0]) or f"'{name}'" in text[0] for name in names), file, "does not run all of",
              names)
    for file, names in STARTED.items():
        check(all(name in (BENCH / file).read_text() for name in names), file, "does not start", names)


def programs_that_are_not_built_are_named_with_the_command():
    needs = {"accuracy.py": "hvtrain", "compare.py": "hvtrain", "compare_allreduce.py": "bench/bench_allreduce",
             "compare_dense.py": "hvtrain",
             "compare_exchange.py": "bench/bench_exchange src/bindings/python/hvtrain/libhvt.so",
             "compare_loader.py": "hvtrain bench/bench_loader "
             "bench/bench_jpeg_bound", "compare_solver.py": "src/bindings/python/hvtrain/libhvt.so",
             "data_tax.py": "hvtrain bench/bench_loader", "recipes.py": "hvtrain", "startup.py": "hvtrain",
             "tax.py": "bench/bench_step", "tutorials": "hvtrain"}
    for name, programs in needs.items():
        more = ["--data-dir", HERE] if name in ("accuracy.py", "recipes.py", "tutorials") else []
        more += ["--tar", "none.tar"] if name in ("data_tax.py", "compare_loader.py") else []
        code, out, err = run(sys.executable, BENCH / name, "--build", HERE / "nothing", *more)
        check(code == 1 and err.endswith(f"ninja -C {HERE}/nothing {programs}\n") and len(err.splitlines()) == 1, name, err)
    code, out, err = run(sys.executable, BENCH / "compare.py", "--build", BUILD, "--python", "/nowhere/python")
    check(code == 2 and "there is no program /nowhere/python" in err, err)


def a_run_that_fails_is_named():
    code, out, err = run(sys.executable, BENCH / "tutorials", "--build", BUILD, "--python", "/bin/false", "--data-dir", cifar(),
                         "--limit", 8, "--batch", 16, "--ranks", 1)
    failed = re.search(r"^failed: .*/hvtrain .*: hvtrain: (.*)$", err, re.M)
    check(code == 1 and failed and "8" in failed[1] and "16" in failed[1], code, err)
    check("2 of 2 runs failed" in err and "not installed: PyTorch" in out, err, out)


def ranks_are_compared_with_single_processes():
    on_ranks(2)
    code, out, err = run(sys.executable, BENCH / "tax.py", "--build", BUILD, "--only", "resnet20", "--pairs", 1, "--steps", 1,
                         "--json", "tax.json")
    if "each needs one of its own" in err:
        raise Skip(err.strip())
    check(code == 0, code, out, err)
    found, = read("tax.json")
    ranks, alone = found["ranks"][0][0]["img_s"], min(a["img_s"] for a in found["alone"][0])
    check(abs(found["tax"] - (1 - ranks / (2 * alone))) < 1e-6 and len(found["alone"][0]) == 2, found)
    check(re.search(r"^resnet20, batch 128, 2 ranks, comm \w+, 1 pairs of 1 steps$", out, re.M), out)


def start_up_and_memory_are_measured():
    on_ranks(2)
    out = timed("startup.py", "--alone", "--resumed", "--only", "resnet20-32", "--rounds", 1, "--memory-rounds", 1, "--steps",
                1, "--json", "startup.json")
    case, = read("startup.json")["cases"]
    for name in "hvtrain", "hvtrain resumed":
        check(case["first"][name][0]["first"] > 0 and case["memory"][name][0]["sum"] > 1 << 20, case)
    check("resuming adds" in out, out)


def training_from_files_is_compared_with_drawn_images():
    timed("data_tax.py", "--tar", pictures(), "--files", 16, "--model", "mlp", "--batch", 2, "--steps", 1, "--rounds", 1,
          "--threads", 1, "--seconds", 0.1, "--out", "tax-data.json")
    found = read("tax-data.json")
    check(all(found["ms"][name][0] > 0 and found["one_core_ms"][name] > 0 for name in ("folder", "synth")), found)


def a_recorded_step_is_replayed_on_more_ranks():
    output(BUILD / "hvtrain", "--model", "resnet20", "--batch", 4, "--steps", 4, "--samples", 64, "--threads", 1, "--quiet",
           "--timeline", "step.json")
    out = script("scale.py", "replay", "step.json", "--cv", 0, "--json", "replay.json", "--plot", "replay.svg")
    rows = read("replay.json")["rows"]
    check([r["ranks"] for r in rows] == [2**i for i in range(15)], rows)
    check(rows[0]["efficiency"] == 1 and rows[-1]["efficiency"] <= rows[1]["efficiency"] <= 1, rows)
    check("16,384" in texts("replay.svg") and lines_of("replay.svg", "circle") == 16, texts("replay.svg"))
    check(re.search(r"^ +ranks +step ms +exposed ms +skew ms +efficiency$", out, re.M), out)


def sums_are_foretold_from_two_ranks():
    for ranks in 2, 4:
        output(*on_ranks(ranks, BUILD / "bench/bench_allreduce", "--max", 256, "--seconds", 0.005, "--json",
                         f"sums{ranks}.json"))
    script("scale.py", "check", "sums2.json", "sums4.json", "--json", "check.json")
    found = read("check.json")
    check({r["ranks"] for r in found["rows"]} == {2, 4} and len(found["rows"]) == 6, found)
    code, out, err = run(sys.executable, BENCH / "scale.py", "check", "sums2.json", "--comm", "nccl")
    check(code == 1 and "at least two sizes of comm nccl" in err, code, err)


def published_efficiencies_are_foretold():
    script("scale.py", "published", "--json", "published.json")
    rows = read("published.json")["rows"]
    check(len(rows) == 13 and all(abs(r["foretold"] / r["published"] - 1) < 0.17 for r in rows), rows)


def losses_of_16_bit_sums_are_computed():
    python = python_with("numpy", str(BUILD))
    if not python:
        raise Skip("no NumPy")
    out = output(python, BENCH / "wire_sums.py", 50)
    rows = re.findall(r"^(bf16|f16) +([\d.]+) +(\d+) +([\d.]+) % +([\d.]+) +([\d.]+) % +([\d.]+) +([\d.]+) % +([\d.]+)$", out,
                      re.M)
    check(len(rows) == 24, out)
    worst = next(r for r in rows if r[:3] == ("bf16", "0.1", "4096"))
    check(float(worst[3]) > 10 > 1 > float(worst[7]), "a ring of 4096 ranks loses less in bf16 than f32 does:", worst)


def wheels_are_looked_through_without_a_download():
    made = BUILD / "tests/bundle"  # libraries that have what load.c asks NCCL and cuDNN for, and one that has nothing
    if not any(f.is_file() for f in made.glob("libnccl.so.*")):
        raise Skip("the build has no device cuda")
    code, out, err = run(sys.executable, *(BENCH / "gpu" / name for name in ("wheels.py",)))
    check(code == 1 and "wheels.py FOLDER [BUILD]" in err, code, err)
    sys.path.insert(0, str(BENCH / "gpu"))
    import wheels
    for library in "libnccl", "libcudnn", "libcublasLt":
        file, = (f for f in made.glob(f"{library}.so.*") if f.is_file())
        place = HERE / "fetched" / f"{library}-1.0/lib"
        place.mkdir(parents=True)
        shutil.copy(file, place / file.name)
    places = [wheels.fetch(HERE / "fetched", library, "1.0") for library in ("libnccl", "libcudnn", "libcublasLt")]
    what, missing = wheels.symbols(places)
    check(missing and all("libcublasLt" in line and " has no cublasLt" in line for line in missing), what, missing)
    check(int(what.split()[0]) > len(missing) + 30, what)


run_all([every_script_is_run_by_a_test, programs_that_are_not_built_are_named_with_the_command, a_run_that_fails_is_named,
         ranks_are_compared_with_single_processes, start_up_and_memory_are_measured,
         training_from_files_is_compared_with_drawn_images, a_recorded_step_is_replayed_on_more_ranks,
         sums_are_foretold_from_two_ranks, published_efficiencies_are_foretold, losses_of_16_bit_sums_are_computed,
         wheels_are_looked_through_without_a_download],
        sys.argv[3:], HERE)
