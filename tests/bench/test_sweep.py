"""Usage: test_sweep.py ROOT BUILD [TRUTH ...]. bench/sweep in its shortest form: table, plot, JSON, and a winner that
hvtrain takes by --config."""
import importlib.machinery
import importlib.util
import json
import re
import sys

from scripts import BENCH, BUILD, HERE, ROOT, Skip, check, lines_of, on_ranks, output, read, run, run_all, script, texts

SHORT = ["--build", BUILD, "--seconds", 0.05]


def sweep(*args):
    on_ranks(2)
    return run(sys.executable, BENCH / "sweep", *SHORT, *args)


def good(*args):
    code, out, err = sweep(*args)
    check(code == 0, "exit", code, ":", out[-800:], err[-800:])
    return out


def its_winner_is_what_hvtrain_takes():
    out = good("--shapes", "resnet20,resnet18c", "--backward", 2, "--sizes", "all,25MiB,0,1MiB", "--json", "cases.json",
               "--plot", "plot.svg", "--config", "winner.json")
    cases = read("cases.json")
    wires = ["f32", "f16", "bf16"]
    check([(c["shapes"], c["compression"]) for c in cases] == [(s, w) for s in ("resnet20", "resnet18c") for w in wires],
          cases)
    for c in cases:
        check([r["size"] for r in c["rows"]] == ["0", "1MiB", "25MiB", "all"], "sizes do not ascend:", c["rows"])
        check(c["ranks"] == 2 and c["wire"] == c["compression"], c)
        for row in c["rows"]:
            check(row["median_ms"] >= 2 and abs(row["exposed_ms"] - (row["median_ms"] - 2)) < 0.01, row)
            check(row["default"] == (row["size"] == "25MiB"), row)
    check(out.count("<- best") == 6, out)
    words = texts("plot.svg")
    check(sum("resnet20" in w or "resnet18c" in w for w in words) == 2, words)
    axis = texts("plot.svg", "middle")
    check(axis == ["0", "1", "25", "all", axis[4], "default"] * 2 and " MiB " in axis[4], "places along x:", axis)
    check(words.count("bf16") == 2 and lines_of("plot.svg", "polyline") == 6, words)
    check("prefers-color-scheme:dark" in (HERE / "plot.svg").read_text(), "no colours for dark pages")
    winner = read("winner.json")
    check(set(winner) == {"bucket", "compression"}, winner)
    output(*on_ranks(2, BUILD / "hvtrain", "--config", "winner.json", "--steps", 1, "--samples", 16, "--batch", 4, "--size",
                     8, "--threads", 1, "--quiet", "--log", "log"))
    options = json.loads((HERE / "log").read_text().splitlines()[0])["options"]
    check({k: options[k] for k in winner} == winner, "hvtrain took", options, "for", winner)


def a_comm_that_was_asked_for_is_part_of_it():
    good("--shapes", "resnet20", "--comm", "shm,mpi", "--compression", "f32", "--sizes", "0,all", "--config", "comm.json",
         "--plot", "comm.svg")
    winner = read("comm.json")
    check(winner["comm"] in ("shm", "mpi"), winner)
    check("shm f32" in texts("comm.svg") and "mpi f32" in texts("comm.svg"), texts("comm.svg"))
    output(*on_ranks(2, BUILD / "hvtrain", "--config", "comm.json", "--steps", 1, "--samples", 16, "--batch", 4, "--size", 8,
                     "--threads", 1, "--quiet"))


def quick_is_one_network_and_two_types():
    good("--quick", "--shapes", "resnet20,vgg16", "--seconds", 0.05, "--sizes", "0,25MiB", "--json", "quick.json")
    cases = read("quick.json")
    check([(c["shapes"], c["compression"]) for c in cases] == [("resnet20", "f32"), ("resnet20", "bf16")], cases)
    stated = float(re.search(r"^# backward ([\d.]+) ms", (BENCH / "shapes/resnet20.txt").read_text(), re.M)[1])
    check(all(c["backward_ms"] == stated for c in cases), "expected", stated, "ms of backward, got", cases)


def every_list_says_how_long_its_backward_pass_is():
    lists = sorted((BENCH / "shapes").glob("*.txt"))
    check(len(lists) >= 5, lists)
    for file in lists:
        check(re.search(r"^# backward [\d.]+ ms: ", file.read_text(), re.M), file)


def without_a_backward_pass_nothing_is_exposed():
    out = good("--shapes", "resnet20", "--backward", 0, "--compression", "f32", "--sizes", "0,all", "--json", "bare.json")
    check("exposed" not in out and "median" not in out, out)
    check(all("exposed_ms" not in row for c in read("bare.json") for row in c["rows"]), read("bare.json"))


def a_case_that_fails_is_named():
    code, out, err = sweep("--shapes", "resnet20", "--backward", 1, "--comm", "pigeons,shm", "--compression", "f32", "--sizes",
                           "0,all")
    check(code == 1, "exit", code)
    check(re.search(r"^failed: resnet20, 2 ranks, comm pigeons, f32: bench_sweep: .*'pigeons'", err, re.M),
          err)
    check("1 of 2 cases failed" in err and "comm shm" in out, out, err)


def a_program_that_is_not_built_is_named_with_the_command():
    code, out, err = run(sys.executable, BENCH / "sweep", "--build", HERE / "nothing")
    check(code == 1 and len(err.splitlines()) == 1, code, err)
    check(f"{HERE}/nothing/bench/bench_sweep not built" in err, err)
    check(f"meson setup {HERE}/nothing && ninja -C {HERE}/nothing bench/bench_sweep" in err, err)


def bad_words_are_refused():
    for args, words in [(["--shapes", "nonet"], "no nonet in bench/shapes"), (["--plot", "a.png"], "should end in .svg"),
                        (["--wire", "f32"], "unrecognized arguments: --wire")]:
        code, out, err = run(sys.executable, BENCH / "sweep", "--build", BUILD, *args)
        check(code == 2 and words in err, args, code, err)
    for args, words in [(["--sizes", "25Mb"], "did you mean 25MB"), (["--sizes", "1MiB,1024KiB"], "are the same size"),
                        (["--compression", "f64"], "--compression takes one of f32|f16|bf16, got 'f64'")]:
        code, out, err = sweep("--shapes", "resnet20", "--backward", 1, *args)
        check(code == 1 and words in err, args, code, err)


def case(shapes, medians, quartile=1.0, compression="f32", sizes=("0", "25MiB", "all")):
    rows = [{"size": s, "median_ms": m, "quartiles_ms": [m - quartile, m + quartile], "default": s == "25MiB"}
            for s, m in zip(sizes, medians)]
    return {"shapes": shapes, "asked": "auto", "compression": compression, "rows": rows}


def the_winner_is_the_fastest_over_all_networks():
    loader = importlib.machinery.SourceFileLoader("sweep", str(BENCH / "sweep"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("sweep", loader))
    argv, sys.argv = sys.argv, ["sweep"]
    sys.path.insert(0, str(BENCH))
    loader.exec_module(module)
    sys.argv = argv
    size = lambda cases: module.winner(cases)[2]["size"]
    check(size([case("a", [99.5, 100, 120])]) == "25MiB", "a difference within the spread takes the default's place")
    check(size([case("a", [90, 100, 120])]) == "0", "the fastest does not win")
    check(size([case("a", [90, 100, 120]), case("b", [2000, 1000, 900], 50)]) == "25MiB", "one network decides for another")
    check(size([case("a", [10, 100, 98]), case("b", [1010, 1000, 990])]) == "0", "ratios count, not milliseconds")
    check(module.winner([case("a", [90, 100, 120]), case("a", [80, 70, 95], compression="bf16")])[1] == "bf16")
    check(size([case("a", [90, 100, 120], sizes=("0", "1MiB", "all"))]) == "0", "without the default the fastest wins")
    lost = [case("a", [50, 60, 70]), case("b", [50, 60, 70]), case("a", [1, 2, 3], compression="bf16")]
    check(module.winner(lost)[1] == "f32", "a compression that failed for one network wins")


def emulated_hosts_are_swept():
    code, out, err = run(BENCH / "on_hosts.sh", 2, "10gbit", "0us", "hostname")
    if code:
        raise Skip(f"no emulated hosts: {err.strip().splitlines()[-1:]}")
    check(sorted(out.split()) == ["host1", "host2"], out)
    good("--hosts", 2, "--rate", "10gbit", "--shapes", "resnet20", "--backward", 1, "--compression", "f32,bf16", "--sizes",
         "0,25MiB", "--json", "hosts.json", "--plot", "hosts.svg", "--config", "hosts-winner.json")
    for c in read("hosts.json"):
        check(c["nodes"] == 2 and c["ranks"] == 2 and c["rate"] == "10gbit", c)
    check(any("on 2 hosts, 10gbit" in w for w in texts("hosts.svg")), texts("hosts.svg"))
    check("bucket" in read("hosts-winner.json"))


def on_hosts_refuses_bad_words():
    for args, words in [(["x", "1gbit", "0", "true"], "HOSTS is a whole number, got 'x'"),
                        ([2, "1.5gbit", "0", "true"], "RATE is a whole number of gbit, mbit or kbit, got '1.5gbit'"),
                        ([2, "1gbit", "1h", "true"], "DELAY is a whole number of us or ms, got '1h'"),
                        ([2, "1gbit"], "usage: on_hosts.sh HOSTS RATE DELAY COMMAND")]:
        code, out, err = run(BENCH / "on_hosts.sh", *args)
        check(code == 2 and words in err and len(err.splitlines()) == 1, args, code, err)


run_all([its_winner_is_what_hvtrain_takes, a_comm_that_was_asked_for_is_part_of_it, quick_is_one_network_and_two_types,
         every_list_says_how_long_its_backward_pass_is, without_a_backward_pass_nothing_is_exposed,
         a_case_that_fails_is_named, a_program_that_is_not_built_is_named_with_the_command, bad_words_are_refused,
         the_winner_is_the_fastest_over_all_networks, emulated_hosts_are_swept, on_hosts_refuses_bad_words],
        sys.argv[3:], HERE)
