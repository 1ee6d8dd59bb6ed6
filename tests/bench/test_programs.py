"""Usage: test_programs.py ROOT BUILD [TRUTH ...]. The programs of bench/: a short run of each prints what its first lines
promise, and a wrong command line is one line."""
import json
import re
import struct
import sys

from scripts import BENCH, BUILD, HERE, ROOT, check, on_ranks, output, pictures, read, run, run_all

PROGRAM = BUILD / "bench"
SHAPES = ["--shapes", BENCH / "shapes/resnet20.txt", "--backward", 1, "--seconds", 0.01]

WRONG = [  # a command, and what its line says
    ("bench_ops --batch 0", "--batch takes a whole number, at least 1, got '0'"),
    ("bench_ops --batch 2x", "--batch takes a whole number, at least 1, got '2x'"),
    ("bench_ops --batch 1.5", "got '1.5'"),
    ("bench_ops --batch 99999999999", "got '99999999999'"),
    ("bench_ops --threads", "--threads takes a whole number from 1 to .*, got nothing"),
    ("bench_ops --pass side", "--pass takes one of all.forward.data.weights, got 'side'"),
    ("bench_ops --pass all|forward", "got 'all.forward'"),
    ("bench_ops --tile 3", "--tile takes one of 4.2.1, got '3'"),
    ("bench_ops --seconds nan", "--seconds takes a number, at least 0, got 'nan'"),
    ("bench_ops --seconds -1", "got '-1'"),
    ("bench_ops --model resnet", "--model takes one of resnet50.*, got 'resnet'"),
    ("bench_ops --model=", "--model takes one of .*, got ''"),
    ("bench_ops --layer 99", "--layer is 99, and resnet50 has 24 layers"),
    ("bench_ops --isa z80", "no --isa z80"),
    ("bench_ops --least=1", "unknown option --least=1"),
    ("bench_ops resnet50", "unknown option resnet50; --help lists all options"),
    ("bench_wires --isa z80", "'z80'"),
    ("bench_wires -s", "unknown option -s"),
    ("bench_step --compression powersgd:0", "--compression takes f32, f16, bf16 or powersgd:R, got 'powersgd:0'"),
    ("bench_step --compression powersgd:2x", "got 'powersgd:2x'"),
    ("bench_step --compression f64", "got 'f64'"),
    ("bench_step --steps 0", "--steps takes a whole number from 1 to 10000, got '0'"),
    ("bench_step --stem none", "--stem takes one of imagenet.cifar, got 'none'"),
    ("bench_step --model nonet", "'nonet'"),
    ("bench_save", "expected a folder"),
    ("bench_save /nowhere --rounds 101", "--rounds takes a whole number from 1 to 100, got '101'"),
    ("bench_exchange --rounds 0", "--rounds takes a whole number from 1 to 1000, got '0'"),
    ("bench_exchange --bucket 25MiB", "--bucket takes a number, at least 0, got '25MiB'"),
    ("bench_exchange --json /nowhere/x --model resnet20", "/nowhere/x cannot be written"),
    ("bench_allreduce --min 100 --max 50", "no vector has from --min 100 to --max 50 bytes"),
    ("bench_allreduce --device abacus", "'abacus'"),
    ("bench_control --steps many", "--steps takes a whole number, at least 1, got 'many'"),
    ("bench_sweep", "expected --shapes FILE"),
    ("bench_sweep --shapes /nowhere", "/nowhere cannot be read"),
    ("bench_sweep --shapes /etc/passwd", "expected at most 1000 lines of name, elements and share, got 'root"),
    ("bench_sweep --shapes bare.txt", "bare.txt has no line '# backward MS', and --backward is not given"),
    ("bench_sweep --shapes bare.txt --backward 1 --sizes 1MiB,,2MiB", "--sizes"),
    ("bench_sweep --shapes bare.txt --backward 1 --sizes 12345678901234567", "12345678901234567 is no size"),
    ("bench_loader --nonsense", "--nonsense"),
    ("bench_loader --data folder", "--data-dir"),
    ("bench_jpeg_bound --data folder --data-dir /nowhere", "/nowhere: No such file"),
    ("dump_synth 1 2", "usage: dump_synth COUNT SIZE CLASSES FILE"),
    ("dump_synth 4 8 x /nowhere/x", "whole numbers from 1, got 'x'"),
    ("dump_synth 4 8 10 /nowhere/x", "/nowhere/x cannot be written"),
]


def a_wrong_command_line_is_one_line():
    (HERE / "bare.txt").write_text("conv1 100 50\nfc 10 50\n")
    for line, words in WRONG:
        program, *args = line.split()
        code, out, err = run(PROGRAM / program, *args)
        check(code in (1, 2) and len(err.splitlines()) == 1 and re.search(words, err), line, ": exit", code, err)


def two_ranks_say_it_once():
    code, out, err = run(*on_ranks(2, PROGRAM / "bench_exchange", "--rounds", 0))
    check(code == 2 and err.count("bench_exchange: ") == 1, code, err)


def help_lists_every_option():
    for name in "ops wires step save exchange allreduce control sweep".split():
        text = output(PROGRAM / f"bench_{name}", "--help")
        source = (BENCH / f"bench_{name}.c").read_text()
        options = re.findall(r'^ +(?:const bench_row options\[\] = \{)?\{"(--[\w-]+)",', source, re.M)
        check(len(options) >= 2 and all(f"  {o} " in text for o in options), name, options, text)


def every_program_is_tried_here():
    here = open(__file__).read()
    built = {p.name for p in PROGRAM.iterdir() if p.is_file() and p.stat().st_mode & 0o100}
    check(len(built) >= 11 and all(f'"{name}' in here for name in built), sorted(built))


def numbers(text, pattern, least):
    rows = [[float(n) for n in m.groups()] for m in re.finditer(pattern, text, re.M)]
    check(len(rows) >= least and all(n > 0 for row in rows for n in row), "expected", least, "rows of positive numbers:",
          rows, text[-1500:])
    return rows


def convolutions_are_timed():
    text = output(PROGRAM / "bench_ops", "--model", "resnet20", "--batch", 4, "--seconds", 0.001, "--layer", 2)
    check(re.search(r"^peak [\d.]+ GF/s", text, re.M), text)
    found = numbers(text, r"^resnet20 batch 4 hwn f32: ([\d.]+) ms \(forward ([\d.]+), data ([\d.]+), weights ([\d.]+)\)", 1)
    check(abs(found[0][0] - sum(found[0][1:])) < 0.3, found)


def wires_are_timed():
    rows = numbers(output(PROGRAM / "bench_wires", "--seconds", 0.01), r"^ +\d+ KiB  .{18} +([\d.]+) +([\d.]+)%$", 15)
    check(any(share == 100 for _, share in rows), "no memcpy of 100 %:", rows)


def a_step_is_taken_apart():
    output(PROGRAM / "bench_step", "--batch", 2, "--steps", 2, "--threads", 1, "--json", "step.json")
    found = read("step.json")
    check(found["img_s"] > 0 and found["steps"] == 2 and found["phases"]["backward"]["mean_ms"] > 0, found)


def a_save_is_timed():
    text = output(PROGRAM / "bench_save", HERE / "saved", "--model", "resnet20", "--batch", 2, "--rounds", 1, "--beside", 2)
    check(re.search(r"^by its parts [\d.]+ %", text, re.M) and any((HERE / "saved").iterdir()), text)


def control_is_counted():
    output(PROGRAM / "bench_control", "--steps", 1, "--json", "control1.json")
    output(*on_ranks(2, PROGRAM / "bench_control", "--steps", 1, "--json", "control2.json"))
    alone, two = read("control1.json")["rows"], read("control2.json")["rows"]
    check({r["layers"] for r in alone} == {41, 107} and {r["comm"] for r in alone} == {"self"}, alone)
    check(all(r["messages"] == 0 for r in alone) and all(r["median_us"] > 0 for r in alone + two), alone, two)
    check(any(r["messages"] > 0 for r in two if r["comm"].startswith("mpi")), two)


def exchanges_end_with_the_same_weights():
    output(*on_ranks(2, PROGRAM / "bench_exchange", "--model", "resnet20", "--rounds", 2, "--json", "exchange.json"))
    ways = {r["way"]: r["median_ms"] for r in read("exchange.json")["rows"]}
    for way in "bound", "shm, sharded", "shm, replicated", "mpi, replicated", "MPI_Allreduce, all", "MPI_Allreduce, tensors":
        check(ways.get(way, 0) > 0, way, ways)


def the_fusion_buffer_is_swept_on_one_rank():
    text = output(PROGRAM / "bench_sweep", *SHAPES, "--sizes", "all,0", "--json", "sweep.json")
    found = read("sweep.json")
    check([r["size"] for r in found["rows"]] == ["0", "all"] and found["ranks"] == 1, found)
    check(found["rows"][0]["buckets"] > found["rows"][1]["buckets"], found)
    check(re.search(r"^size .*exposed ms$", text, re.M), text)


def drawn_images_are_dumped():
    output(PROGRAM / "dump_synth", 6, 8, 10, "synth.bin")
    data = (HERE / "synth.bin").read_bytes()
    check(struct.unpack("3i", data[:12]) == (6, 8, 10) and len(data) == 12 + 6 * 4 + 6 * 8 * 8 * 3, len(data))
    check(all(0 <= n < 10 for n in struct.unpack("6i", data[12:36])))


def loaders_are_timed_on_pictures():
    sys.path.insert(0, str(BENCH))
    from pictures import tree
    check(tree(pictures(), HERE / "tree", 20) == 32, "files of the tree")
    data = ["--data", "folder", "--data-dir", HERE / "tree", "--size", 64, "--max-time", "0.1s"]
    text = output(PROGRAM / "bench_loader", *data, "--augment", "rrc", "--batch", 8, "--threads", 1, "--workers", 0)
    check(numbers(text, r"^total ([\d.]+) img/s$", 1) and numbers(text, r"^read ([\d.]+), decode ([\d.]+)", 1))
    text = output(PROGRAM / "bench_jpeg_bound", *data)
    check(re.search(r"^32 of 32 pictures, boxes to 64 x 64", text, re.M) and numbers(text, r" ([\d.]+) img/s$", 6), text)


def gpus_are_described():
    if not (PROGRAM / "gpu_facts").exists():
        return check(True)
    code, out, err = run(PROGRAM / "gpu_facts")
    found = json.loads(out)
    check(code == (0 if found["gpus"] else 77) and {"driver", "runtime", "libraries"} <= set(found), code, out, err)


run_all([a_wrong_command_line_is_one_line, two_ranks_say_it_once, help_lists_every_option, every_program_is_tried_here,
         convolutions_are_timed, wires_are_timed, a_step_is_taken_apart, a_save_is_timed, control_is_counted,
         exchanges_end_with_the_same_weights, the_fusion_buffer_is_swept_on_one_rank, drawn_images_are_dumped,
         loaders_are_timed_on_pictures, gpus_are_described], sys.argv[3:], HERE)
