#!/usr/bin/env python3
"""test_charts.py ROOT: the pictures of docs/ are what bench/draw.py makes of the figures in bench/results."""
import json
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(sys.argv[1]).resolve()
sys.path.append(str(ROOT / "tests/support"))
from truths import check, run_all  # noqa: E402

HERE = Path(tempfile.mkdtemp(prefix="hvt-pictures-"))
NAMES = ("speed", "sweep", "sweep-hosts", "timeline")


def draw(*args):
    """The exit code and stderr."""
    done = subprocess.run([sys.executable, "-B", str(ROOT / "bench" / "draw.py"), *map(str, args)], capture_output=True, text=True)
    return done.returncode, done.stderr


def elements(file, kind):
    return xml.parse(file).getroot().iter("{http://www.w3.org/2000/svg}" + kind)


def texts(file):
    return [e.text for e in elements(file, "text")]


def numbers(words):
    return [w for w in words if re.fullmatch(r"[\d,.]+", w)]


def they_are_what_the_script_draws():
    code, err = draw("--to", HERE / "docs")
    check(code == 0, err)
    for name in NAMES:
        check((HERE / "docs" / f"{name}.svg").read_bytes() == (ROOT / "docs" / f"{name}.svg").read_bytes(),
              f"docs/{name}.svg is not what bench/draw.py draws; run it")
        check("prefers-color-scheme:dark" in (ROOT / "docs" / f"{name}.svg").read_text(), name)


def every_one_is_shown_with_the_command_that_draws_it():
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    for name in NAMES:
        shown = [p for p in pages if re.search(rf"\]\((docs/)?{name}\.svg\)", p.read_text())]
        check(shown and all("bench/draw.py" in p.read_text() for p in shown), name, shown)


def speed_has_the_figures_of_the_table():
    table = (ROOT / "bench/results/README.md").read_text()
    drawn = numbers(texts(ROOT / "docs/speed.svg"))
    want = [cell.strip() for name in ("ResNet-50, 32×32, batch 64, 2 ranks", "ResNet-20, 32×32, batch 128, 2 ranks")
            for cell in re.search(rf"^\| {name} \|(.*)\|$", table, re.M)[1].split("|")]
    check(drawn == want and len(want) == 12, drawn, want)
    said = re.search(r"!\[(.*?)\]\(docs/speed\.svg\)", (ROOT / "README.md").read_text())[1]
    check(re.findall(r"\b\d{3}\b|\d,\d{3}", said) == want, "README says", said)
    part = re.search(r"^## Training, images/s\n+(\w+), commit (\w+).*?\((\d{4}-\d\d-\d\d)", table, re.S | re.M)
    caption = texts(ROOT / "docs/speed.svg")[-2]
    check(part[2] in caption and part[3] in caption and "AMD EPYC (Zen 5)" in caption and part[1] == "Z5", caption)
    widths = [float(e.get("width")) for e in elements(ROOT / "docs/speed.svg", "rect")][1:]
    for half in 0, 6:  # a scale for each network
        values = [float(v.replace(",", "")) for v in want[half:half + 6]]
        check(all(abs(w / widths[half + 3] - v / values[3]) < 0.01 for w, v in zip(widths[half:half + 6], values)), widths)


def a_sweep_ascends_in_mib_and_marks_the_default():
    cases = json.loads((ROOT / "bench/results/sweep.json").read_text())
    for c in cases:
        c["rows"].reverse()
    (HERE / "sweep.json").write_text(json.dumps(cases))
    code, err = draw("--sweep", HERE / "sweep.json", HERE / "sweep.svg")
    check(code == 0, err)
    check((HERE / "sweep.svg").read_bytes() == (ROOT / "docs/sweep.svg").read_bytes(), "the order of the record matters")
    words = texts(ROOT / "docs/sweep.svg")
    check(words[0] == "Time of a training step by the size of the fusion buffer", words[0])
    check("0 1 2 4 8 16 25 32 64 128 all" in " ".join(words) and any("MiB (0: one message per layer" in w for w in words), words)
    for group in xml.parse(ROOT / "docs/sweep.svg").getroot().iter("{http://www.w3.org/2000/svg}g"):
        places = {e.text: e.get("x") for e in group.iter("{http://www.w3.org/2000/svg}text") if e.get("text-anchor") == "middle"}
        check(places["default"] == places["25"], places)


def tables_and_pages_have_the_figures_of_the_records():
    names = {"ResNet-50": "resnet50", "VGG-16": "vgg16", "Inception v3": "inception_v3"}
    sizes = ("0", "1MiB", "4MiB", "25MiB", "64MiB", "all")
    medians = {}
    for hosts, file in ("one host", "sweep"), ("two hosts", "sweep-hosts"):
        for case in json.loads((ROOT / f"bench/results/{file}.json").read_text()):
            for row in case["rows"]:
                medians[hosts, case["shapes"], case["compression"], row["size"]] = row["median_ms"]
    rows = re.findall(r"^\| fusion buffer, (.*?), (.*?), (\w+) \|(.*)\|$", (ROOT / "bench/results/README.md").read_text(), re.M)
    check(len(rows) == 12, rows)
    for hosts, name, kind, cells in rows:
        want = [f"{medians[hosts, names[name], kind, size]:.1f}" for size in sizes]
        check([c.strip() for c in cells.split("|")] == want, hosts, name, kind, cells, want)
    page = re.search(r"buckets of 1 MiB wins: (\d+) ms for ResNet-50, where the\ndefault takes (\d+) ms, and (\d+) ms instead of (\d+)",
                     (ROOT / "docs/benchmarks.md").read_text()).groups()
    want = [medians["two hosts", m, *s] for m in ("resnet50", "vgg16") for s in (("bf16", "1MiB"), ("f32", "25MiB"))]
    check([int(p) for p in page] == [round(w) for w in want], page, want)


def a_timeline_is_one_update_of_all_ranks():
    record = ROOT / "bench/results/timeline.json"
    events = json.loads(record.read_text())
    last = max(e["args"]["step"] for e in events if e["name"] == "step")
    words = texts(ROOT / "docs/timeline.svg")
    check(words[0] == f"Update {last} of a run, rank by rank", words[0])
    lanes = [w for w in words if re.match(r"rank \d", w)]
    check(lanes == [f"rank {r} (host{r + 1}), {t}" for r in (0, 1) for t in ("training", "exchange")], lanes)
    (HERE / "cut.json").write_text(record.read_text()[:-40])  # as a job that was killed leaves it
    code, err = draw("--timeline", HERE / "cut.json", HERE / "cut.svg")
    check(code == 0 and "rank 1 (host2), training" in texts(HERE / "cut.svg"), err)
    (HERE / "other.json").write_text("[]")
    code, err = draw("--timeline", HERE / "other.json", HERE / "other.svg")
    check(code == 1 and "other.json holds no update" in err and "Traceback" not in err, err)


run_all([they_are_what_the_script_draws, every_one_is_shown_with_the_command_that_draws_it, speed_has_the_figures_of_the_table,
         a_sweep_ascends_in_mib_and_marks_the_default,
         tables_and_pages_have_the_figures_of_the_records, a_timeline_is_one_update_of_all_ranks], sys.argv[2:], HERE)
