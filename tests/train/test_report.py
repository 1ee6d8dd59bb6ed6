#!/usr/bin/env python3
"""test_report.py HVTRAIN MPIRUN [NAME ...]: pages and pictures of runs, accuracy per class, and TensorBoard's event files.

The page is opened in Chromium, and event files by TensorBoard's own reader, where these are installed.
"""
import collections
import csv
import glob
import html.parser
import json
import math
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import (HERE, HVTRAIN, MPIRUN, TINY, command, environment, finish, path, python_with, records, run, train)
from truths import Skip, check, run_all

RANKS = [0, 1, 2, 4] if MPIRUN else [0]
COLOURS = [(0, 114, 178), (194, 78, 0), (0, 120, 90)]       # of the first three runs, on a light page
DARK = [(86, 180, 233), (255, 159, 90), (63, 208, 164)]


def write(name, text):
    with open(path(name), "wb" if isinstance(text, bytes) else "w") as f:
        f.write(text)


def lines(*all_records):
    return "".join(json.dumps(r) + "\n" for r in all_records)


def report(args):
    rc, out, err = run(["report"] + args)
    check(rc == 0, "report", args, "exits with", rc, err)
    return err


def content(name):
    with open(path(name), encoding="utf-8") as f:
        return f.read()


# ---- reading a page ----

class Reader(html.parser.HTMLParser):
    """Every element is closed, and nothing comes from elsewhere."""
    VOID = {"meta", "link", "img", "br"}

    def __init__(self):
        super().__init__()
        self.open, self.text, self.tags = [], [], collections.Counter()

    def handle_starttag(self, tag, attributes):
        self.tags[tag] += 1
        for key, value in attributes:
            check(key not in ("src", "href") or value.startswith("data:"), "comes from elsewhere:", tag, value[:80])
            check(not key.startswith("on"), "a script:", key)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        check(self.open and self.open[-1] == tag, "closes", tag, "within", self.open)
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data):
        self.text.append(data)


def read_page(name):
    page, reader = content(name), Reader()
    reader.feed(page)
    reader.close()
    check(not reader.open and "script" not in reader.tags, "open:", reader.open, reader.tags)
    check("http" not in page.replace("http://www.w3.org/2000/svg", ""), "an address in", name)
    svgs = [ET.fromstring(s) for s in re.findall(r"<svg.*?</svg>", page, re.S)]
    return page, " ".join(reader.text), svgs


def number(text):
    return float(text.rstrip("kM")) * {"k": 1e3, "M": 1e6}.get(text[-1], 1)


def local(element):
    return element.tag.rpartition("}")[2]


class Chart:
    """What a chart shows: {class of a line: [(x, y), ...]}."""

    def __init__(self, svg):
        texts = [e for e in svg.iter() if local(e) == "text"]
        self.title = next("".join(e.itertext()) for e in texts if "title" in e.get("class", ""))
        ticks = lambda kind, at, off: [(float(e.get(at)) - off, number(e.text)) for e in texts if kind in e.get("class", "")]
        self.log = "(log scale)" in self.title
        self.to_x, self.to_y = self.line(ticks("xtick", "x", 0), False), self.line(ticks("ytick", "y", 4), self.log)
        self.lines, self.dots = {}, {}
        for e in svg.iter():
            if local(e) == "polyline":
                points = [tuple(map(float, p.split(","))) for p in e.get("points").split()]
                self.lines.setdefault(e.get("class"), []).extend((self.to_x(x), self.to_y(y)) for x, y in points)
            elif local(e) == "circle" and e.get("cx"):
                self.dots.setdefault(e.get("class"), []).append((self.to_x(float(e.get("cx"))), self.to_y(float(e.get("cy")))))

    @staticmethod
    def line(ticks, log):
        if len(ticks) < 2:
            return lambda at: math.nan
        (a, va), (b, vb) = ticks[0], ticks[-1]
        if log:
            va, vb = math.log(va), math.log(vb)
        value = lambda at: va + (at - a) / (b - a) * (vb - va)
        return (lambda at: math.exp(value(at))) if log else value


def charts(svgs):
    return {c.title.partition(",")[0].replace(" (log scale)", ""): c
            for c in (Chart(s) for s in svgs if any("title" == e.get("class") for e in s.iter()) and s.get("class") is None)}


def near(chart, got, want):
    """Points of a chart, to a twentieth of a pixel."""
    step = [0.05 * abs(to(101) - to(100)) for to in (chart.to_x, chart.to_y)]
    return len(got) == len(want) and all(abs(g[k] - w[k]) <= step[k] + 1e-9 for g, w in zip(got, want) for k in range(2))


# ---- logs that no run has written ----

def start(**more):
    return {"record": "start", "resumed_steps": 0, "ranks": 1, "nodes": 1, "model": "resnet20", "data": "synth", "steps_per_epoch": 10,
            "options": {"lr": "0.1", "loss": "ce"}, "time": 100.0, **more}


def step(at, loss, **more):
    return {"record": "step", "epoch": (at + 9) // 10, "step": at, "loss": loss, "top1": 10.0, "lr": 0.1, "img_s": 100.0,
            "time": 100.0 + at, **more}


# ---- pages ----

def three_runs():
    if os.path.exists(path("three-2.jsonl")):
        return
    for i, lr in enumerate(["0.1", "0.03", "0.01"]):
        train(f"--epochs 3 --print-freq 1 --lr {lr}".split(), log=f"three-{i}.jsonl")


def a_report_has_the_numbers_of_its_runs():
    three_runs()
    report("three-0.jsonl three-1.jsonl three-2.jsonl --output three.html".split())
    page, text, svgs = read_page("three.html")
    all_charts = charts(svgs)
    check({"Loss", "Accuracy", "Throughput", "Learning rate"} <= set(all_charts), list(all_charts))
    for i in range(3):
        log = records(f"three-{i}.jsonl")
        of = lambda kind: [r for r in log if r["record"] == kind]
        for title, field in [("Loss", "loss"), ("Accuracy", "top1")]:
            c = all_charts[title]
            want = [(r["at_step"] / 4, r[field]) for r in of("eval")]
            check(near(c, c.lines.get(f"s{i}", []), want), title, "test", i, c.lines.get(f"s{i}"), want)
            check(near(c, c.dots.get(f"s{i}", []), want), title, "dots", i, c.dots.get(f"s{i}"), want)
            want = [(r["step"] / 4, r[field]) for r in of("step")]
            check(near(c, c.lines.get(f"s{i} thin", []), want), title, "train", i, c.lines.get(f"s{i} thin"), want)
        c = all_charts["Learning rate"].lines[f"s{i}"]
        check(all(abs(y - of("step")[0]["lr"]) < 1e-3 for _, y in c), c)
        last = of("eval")[-1]
        check(f"{last['loss']:.4f}" in text and f"{last['top1']:.2f} %" in text, "the table lacks", last["loss"], last["top1"])
    table = re.search(r"Options that differ.*?</table>", page, re.S).group(0)
    check(re.findall(r"<th>([^<]+)</th>", table) == ["--lr"], table)
    check(re.findall(r"<td>([\d.]+)</td>", table) == ["0.1", "0.03", "0.01"], table)
    check(all(f">{i}<" in page.replace("</svg>", ">") for i in range(3)), "names without what they share")
    report("three-0.jsonl --output one.html".split())
    page, text, _ = read_page("one.html")
    given = dict(re.findall(r"<tr><th>--([^<]+)</th><td>([^<]*)</td>", page))
    check(given.get("lr") == "0.1" and given.get("print-freq") == "1" and "momentum" not in given, given)


def names_are_what_tells_runs_apart():
    for names, want in [(["n/a/log.jsonl", "n/b/log.jsonl"], ["a", "b"]), (["n/lr-0.1.jsonl", "n/lr-0.01.jsonl"], ["lr-0.1", "lr-0.01"]),
                        (["n/same.jsonl", "n/same.jsonl"], ["same", "same"]), (["n/a.x", "n/b.y"], ["a.x", "b.y"]),
                        ([f"n/{'long-' * 12}{i}.x" for i in "12"], ["\u20261", "\u20262"]), (["n/one.jsonl"], ["n/one.jsonl"])]:
        for name in names:
            os.makedirs(os.path.dirname(path(name)), exist_ok=True)
            write(name, lines(start(), step(1, 1.0)))
        report(names + ["--output", "names.html"])
        got = re.findall(r"</svg>([^<]+)</td><td>resnet20", content("names.html"))
        check(got == want, got, want)


def a_picture_has_the_same_curves():
    three_runs()
    report("three-0.jsonl three-1.jsonl three-2.jsonl --output three.svg".split())
    root = ET.parse(path("three.svg")).getroot()
    groups = [g for g in root if local(g) == "g"]
    check(len(groups) == 5, len(groups), "groups: four charts and the times")
    c = Chart(groups[0])
    want = [(r["at_step"] / 4, r["loss"]) for r in records("three-1.jsonl") if r["record"] == "eval"]
    check(near(c, c.lines["s1"], want), c.lines["s1"], want)
    rc, out, err = run("report three-0.jsonl --output -".split())
    check(rc == 0 and out.startswith("<!doctype html>") and out.endswith("</html>\n") and not err, rc, out[:80], err)


def times_are_those_of_every_rank():
    if not MPIRUN:
        raise Skip("no mpirun")
    train("--epochs 2 --shards 2".split(), 2, log="ranks.jsonl")
    report("ranks.jsonl --output ranks.html".split())
    end = [r for r in records("ranks.jsonl") if r["record"] == "end"][-1]
    epochs = [r for r in records("ranks.jsonl") if r["record"] == "epoch"]
    for field in ["compute", "exposed_comm", "data_wait"]:
        for r in range(2):
            whole = sum(e["by_rank"][field][r] for e in epochs)
            check(abs(end["by_rank"][field][r] - whole) < 1e-3, field, r, end["by_rank"][field][r], whole)
        check(abs(end["by_rank"][field][0] / end["seconds"] - end[field]) < 1e-3, field, end[field])
    svg = next(s for s in read_page("ranks.html")[2] if s.get("class") == "time")
    shown = [("".join(e.itertext())) for e in svg.iter() if local(e) == "title"]
    check(sum(s.startswith("computing") for s in shown) == 2, shown)
    for r in range(2):
        want = end["by_rank"]["compute"][r]
        check(any(s.startswith("computing") and abs(float(s.split()[-2]) - want) <= 1e-3 * want for s in shown), want, shown)
    start_record = next(r for r in records("ranks.jsonl") if r["record"] == "start")
    check(len(start_record["hosts"]) == 2 and all(start_record["hosts"]), start_record["hosts"])


def a_run_that_went_on_counts_each_update_once():
    """The first job came to update 30 and was killed; the second went on from 20."""
    write("jobs.jsonl", lines(start(), *[step(i, 2.0, time=100.0 + i) for i in range(1, 31)],
                              {"record": "eval", "epoch": 3, "at_step": 30, "loss": 9.0, "top1": 1.0, "count": 5, "time": 131.0},
                              start(resumed_steps=20, time=1000.0), *[step(i, 1.0, time=1000.0 + i) for i in range(21, 41)],
                              {"record": "eval", "epoch": 4, "at_step": 40, "loss": 0.5, "top1": 77.0, "count": 5, "time": 1041.0}))
    report("jobs.jsonl --output jobs.html".split())
    page, text, svgs = read_page("jobs.html")
    c = charts(svgs)["Loss"]
    want = [(i / 10, 2.0 if i <= 20 else 1.0) for i in range(1, 41)]
    check(near(c, c.lines["s0 thin"], want), c.lines["s0 thin"])
    check("77.00 %" in text and "9.0000" not in text and "no end yet" in text, text[:600])
    write("again.jsonl", lines(start(), step(10, 5.0), start(time=500.0), step(10, 3.0, time=501.0), step(20, 2.0, time=502.0)))
    report("again.jsonl --output again.html".split())
    check("the file holds 2 runs, and this is the last" in content("again.html"), "two runs in a file")
    c = charts(read_page("again.html")[2])["Loss"]
    check(near(c, c.lines["s0 thin"], [(1, 3.0), (2, 2.0)]), "the first run is shown")


def odd_logs_give_a_page_or_one_clear_line():
    whole = lines(start(), step(1, 2.0), step(2, 1.5))
    good = {"one record": lines(step(3, 1.0)), "only a start": lines(start()), "cut off": whole + '{"record":"step","epo',
            "nulls": lines(start(), step(1, None), step(2, 1.0), step(3, None, top1=None, lr=None, img_s=None, time=None)),
            "text": "of a user\n\n" + whole + "{} \n[1]\n7\n", "wrong types": lines(start(ranks="x", options=[1], time="t"), step(1, "x")),
            "huge numbers": lines(start(), step(1, 1e308), step(2, -1e308), step(3, 1e-300)), "tiny numbers": lines(start(), step(1, 1e-320), step(2, 3.0)), "same loss": lines(start(), step(1, 1.0), step(2, 1.0)),
            "strange": lines({"record": 7}, {"record": "else"}, start(ranks=-3, steps_per_epoch=0), step(1, 1.0)),
            "deep": lines(start(), {"record": "eval", "class_images": [[1]], "class_hits": {}}) + "[" * 3000 + "\n"}
    for what, text in good.items():
        write("odd.jsonl", text)
        report("odd.jsonl --output odd.html".split())
        page, _, _ = read_page("odd.html")
        check("nan" not in page.replace("nance", "") and "inf" not in page.replace("info", ""), what)
        report("odd.jsonl --output odd.svg".split())
        ET.parse(path("odd.svg"))
    check("1 line is no record" in content("odd.html"), "a line that is no record is counted")
    os.makedirs(path("folder/two"), exist_ok=True)
    write("folder/two/a", whole)
    write("folder/two/b", whole)
    bad = {"": "expected a log of --log, with a JSON record in each line; it is empty",
           "Epoch 1: loss 2\n": "its first line is 'Epoch 1: loss 2'", "\0\1\2": "it is not text", '{"loss": 3}\n': "expected a log of --log"}
    for text, part in bad.items():
        write("odd.jsonl", text)
        rc, _, err = run("report odd.jsonl --output bad.html".split())
        check(rc == 1 and len(err) == 1 and "odd.jsonl: " in err[0] and part in err[0], repr(text), rc, err)
    for args, code, part in [([], 2, "report needs the logs of runs"), (["nowhere"], 1, "nowhere: cannot read: No such file"),
                             (["folder"], 1, "folder: has no log; expected the file of --log"),
                             (["folder/two"], 1, "has 2 logs, expected one; name those to be shown: "),
                             (["folder/two/a", "--lr", "1"], 2, "takes no other option than --output FILE, got --lr"),
                             (["folder/two/a", "--output", "nowhere/a.html"], 1, "--output nowhere/a.html: cannot write"),
                             (["folder/two/a", "--output", "folder/two/a"], 2, "is one of the files to be shown"),
                             (["folder/two/a", "--output", "x.html", "folder/two/b"], 2, "name all runs before the options"),
                             (["folder/two/a", "--output", "x.png"], 2, "--output x.png: expected a name that ends in .html"),
                             (["folder/two/a", "--output"], 2, "--output: expected FILE.html or FILE.svg, got the end of"),
                             (["folder/two/a", "-o", "x.html"], 2, "unknown option -o; use --output FILE.html")]:
        rc, _, err = run(["report"] + args)
        check(rc == code and len(err) == 1 and part in err[0], args, rc, err)
    check(not os.path.exists(path("bad.html")) and not glob.glob(path("*.tmp")), "files are left")
    os.remove(path("folder/two/b"))
    report("folder/two --output two.html".split())
    check("1.5" in " ".join(map(str, charts(read_page("two.html")[2])["Loss"].lines["s0 thin"])), "the log of a folder")


def text_from_files_is_escaped():
    evil = "<script>alert('x')</script>&\"'"
    write("evil.jsonl", lines(start(model=evil, class_names=[evil, "b"], options={"lr": evil, "model": evil, evil: evil},
                                    options_from={"lr": "flag", evil: "flag"}), step(1, 2.0),
                              {"record": "eval", "epoch": 1, "at_step": 1, "loss": 1.0, "top1": 50.0, "count": 4, "class_images": [2, 2],
                               "class_hits": [1, 1]}, {"record": "end", "status": "failed", "error": evil}))
    write("evil.csv", b'index,file,label,label_name,class1,name1,probability1\n0,"a,""<script>\xff\x01.jpg",0,<script>,1,"<b>\n",0.9\n')
    shutil.copy(path("evil.jsonl"), path("<b>&.jsonl"))
    report(["<b>&.jsonl", "evil.csv", "--output", "evil.html"])
    page, text, _ = read_page("evil.html")
    check("<script" not in page and "<b>&." not in page and "alert('x')" in text and "<b>&" in text, "not escaped")
    check("\ufffd" in page and "\x01" not in page, "bytes that are not UTF-8")


def a_hundred_thousand_records_are_thinned():
    write("long.jsonl", lines(start()))
    with open(path("long.jsonl"), "a") as f:
        for i in range(1, 100001):
            f.write('{"record":"step","epoch":%d,"step":%d,"loss":%r,"top1":1.0,"lr":0.1,"img_s":1.0,"time":%d}\n' %
                    ((i + 9) // 10, i, 1 + i % 2 + i / 100000, 100 + i))
    report("long.jsonl --output long.html".split())
    points = charts(read_page("long.html")[2])["Loss"].lines["s0 thin"]
    check(1000 <= len(points) <= 2000 and os.path.getsize(path("long.html")) < 300000, len(points))
    check(all(abs(y - (1.5 + x / 10000)) < 0.02 for x, y in points), "means of neighbours", points[:3], points[-3:])
    check(abs(points[-1][0] - 10000) < 20 and points[0][0] < 20, points[0], points[-1])


# ---- classes and predictions ----

def npy(descr, shape, data):
    head = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    head += " " * (-(len(head) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\0" + len(head).to_bytes(2, "little") + head.encode() + data


def colour(i):
    return (i * 37 % 256, i * 91 % 256, i * 13 % 256)


def write_set(count=40, classes=5):
    """Images of one colour each, by which a thumbnail is known."""
    os.makedirs(path("plain"), exist_ok=True)
    for split in ["train", "test"]:
        write(f"plain/{split}_images.npy", npy("|u1", (count, 16, 16, 3), b"".join(bytes(colour(i)) * 256 for i in range(count))))
        write(f"plain/{split}_labels.npy", npy("|u1", (count,), bytes(i * 7 % classes for i in range(count))))


PLAIN = "--data npy --data-dir plain --batch 8 --threads 1 --quiet --lr 0.01 --augment none".split()


def predictions():
    if not os.path.exists(path("plain.csv")):
        write_set()
        for args in ["--epochs 1 --save plain-run --log plain.jsonl", "--evaluate --resume plain-run --predict plain.csv --log plain.jsonl"]:
            rc, _, err = run(PLAIN + args.split() if "--save" in args else args.split() + ["--threads", "1", "--quiet"])
            check(rc == 0, args, rc, err)
    with open(path("plain.csv"), newline="") as f:
        return list(csv.DictReader(f))


def a_page_has_what_was_predicted():
    rows = predictions()
    pairs = collections.Counter((int(r["label"]), int(r["class1"])) for r in rows)
    wrong = sorted((r for r in rows if r["label"] != r["class1"]), key=lambda r: -float(r["probability1"]))
    check(10 < len(wrong), "too few mistakes to show:", len(wrong))
    for args in [["plain.jsonl"], ["plain.jsonl", "plain.csv"]]:  # the log names its table, or the user does
        report(args + ["--output", "plain.html"])
        page, text, svgs = read_page("plain.html")
        matrix = next(s for s in svgs if s.get("class") == "confusion")
        cells = {}
        for e in matrix.iter():
            if local(e) == "title":
                m = re.fullmatch(r"class (\d+)(?:, as it is|, taken for class (\d+)): (\d+) of (\d+)", e.text or "".join(e.itertext()))
                cells[int(m[1]), int(m[2] or m[1])] = int(m[3])
                check(int(m[4]) == 8, m[0])
        check(cells == dict(pairs), cells, pairs)
        right = sum(n for (a, b), n in pairs.items() if a == b)
        check(f"{right} of 40 images are right" in text, right)
        figures = re.findall(r"<figure>(.*?)</figure>", page, re.S)
        check(len(figures) == min(24, len(wrong)), len(figures), len(wrong))
        said = [re.search(r"<b>class (\d+)</b> ([\d.]+) %<br>is <b>class (\d+)", f).groups() for f in figures]
        want = [(r["class1"], f"{100 * float(r['probability1']):.1f}", r["label"]) for r in wrong[:24]]
        check(said == want, said, want)
    return figures, wrong


def thumbnails_are_the_images():
    python = python_with("PIL")
    figures, wrong = a_page_has_what_was_predicted()
    code = ("import sys, io, base64, PIL.Image as I\n"
            "for line in sys.stdin:\n a = I.open(io.BytesIO(base64.b64decode(line))); print(*a.size, *a.convert('RGB').getpixel((8, 8)))")
    pictures = [re.search(r"data:image/jpeg;base64,([^\"]+)", f)[1] for f in figures]
    out = subprocess.run([python, "-c", code], input="\n".join(pictures), capture_output=True, text=True, timeout=60).stdout.splitlines()
    check(len(out) == len(figures), out)
    for line, row in zip(out, wrong):
        w, h, *rgb = map(int, line.split())
        check((w, h) == (16, 16) and all(abs(a - b) < 12 for a, b in zip(rgb, colour(int(row["index"])))), line, colour(int(row["index"])))
    shutil.move(path("plain"), path("moved"))
    try:
        report("plain.jsonl --output moved.html".split())
        check("Images are missing: " in content("moved.html") and "<img" not in content("moved.html"), "images that are not there")
    finally:
        shutil.move(path("moved"), path("plain"))


def tables_that_are_damaged_are_named_with_their_line():
    predictions()
    text = content("plain.csv").splitlines(keepends=True)
    for cut, part in [(text[:5] + [text[5][:4]], "line 6: expected more than 4 fields" if False else "the table is cut off"),
                      (text[:2] + ["x" + text[2]] + text[3:], "expected numbers of an image, its label and a class"),
                      (["index,file,label\n"], "expected a table of --predict, whose first line is")]:
        write("cut.csv", "".join(cut))
        rc, _, err = run("report plain.jsonl cut.csv --output cut.html".split())
        check(rc == 1 and len(err) == 1 and "cut.csv" in err[0] and part in err[0], rc, err, part)
    write("none.csv", text[0] + "0,a,,0,0.5,1,0.2,2,0.1,3,0.1,4,0.1\n")
    report("plain.jsonl none.csv --output none.html".split())
    check("have no labels, so nothing can be compared" in content("none.html"), "without labels")
    report("plain.csv --output table.html".split())
    page, text, _ = read_page("table.html")
    check("images are right" in text and "Loss" not in text and "no log says which images these are" in text, text)
    row = re.search(r"<tr><td><svg.*?</tr>", page, re.S)[0]
    check(re.findall(r"<td>([^<]*)</td>", row) == ["-"] * 11, "a table without a log has no numbers of a run", row)


def many_classes_are_the_worst_ones():
    n = 1000
    hits = [i * 7 % 101 for i in range(n)]
    write("many.jsonl", lines(start(class_names=[f"name {i} of a long class, and more of it" for i in range(n)]), step(1, 2.0),
                              {"record": "eval", "epoch": 1, "at_step": 1, "loss": 1.0, "top1": 50.0, "count": 100 * n,
                               "class_images": [100] * n, "class_hits": hits}))
    write("many.csv", "index,file,label,label_name,class1,name1,probability1\n" +
          "".join(f"{i},f{i},{i % n},n{i % n},{(i + (i % 10 == 0)) % n},n{(i + (i % 10 == 0)) % n},0.5\n" for i in range(20000)))
    report("many.jsonl many.csv --output many.html".split())
    page, text, svgs = read_page("many.html")
    bars = next(s for s in svgs if s.get("class") == "classes")
    shown = ["".join(e.itertext()) for e in bars.iter() if local(e) == "text" and e.get("class") == "dim"]
    check(shown == [f"{h:.1f} %" for h in sorted(hits)[:30]], shown)
    check(len(re.findall(r"<tr><th>name \d+", page)) == n, "the table of all classes")
    check("the 30 classes in the most frequent mistakes, of 1000" in text, "the matrix of many classes")


def masks_are_judged_by_their_mean_iou():
    """Also after a resumption without an evaluation; the training's pixel accuracy is on no chart."""
    evals = [{"record": "eval", "epoch": i + 1, "at_step": 10 * i + 10, "loss": 1.0, "top1": 90.0, "miou": miou, "count": 60,
              "class_images": [40, 20, 0], "class_hits": [30, 5, 0], "class_predicted": [45, 15, 0], "time": 110.0 + 10 * i}
             for i, miou in enumerate([40.25, 55.5, 50.0])]
    write("masks.jsonl", lines(start(), step(1, 2.0, top1=80.0), step(10, 1.5, top1=80.0), *evals, start(resumed_steps=30)))
    report("masks.jsonl --output masks.html".split())
    page, text, svgs = read_page("masks.html")
    all_charts = charts(svgs)
    check("Accuracy" not in all_charts and "Accuracy" not in text and "IoU per class" in text, list(all_charts), text)
    c = all_charts["Mean IoU"]
    check("s0 thin" not in c.lines and near(c, c.lines["s0"], [(1, 40.25), (2, 55.5), (3, 50.0)]), c.lines)
    check("IoU 50.00 %" in text and "IoU 55.50 %" in text, text)
    table = page[page.index("all 2 classes"):]
    check(re.findall(r"<td>([\d.]+) %</td>", table) == [f"{100 * 5 / 30:.2f}", f"{100 * 30 / 55:.2f}"], table[:500])


def classes_are_counted_alike_on_any_number_of_ranks():
    predictions()
    seen = {}
    for ranks in RANKS:
        name = f"per-{ranks}.jsonl"
        rc, out, err = run("--evaluate --resume plain-run --threads 1 --quiet --per-class --batch 3 --shards 4 --log".split() + [name], ranks)
        check(rc == 0, rc, err)
        e = next(r for r in records(name) if r["record"] == "eval")
        seen[ranks] = e["class_images"], e["class_hits"], e["loss"]
        check(sum(e["class_hits"]) == round(e["top1"] * e["count"] / 100) and sum(e["class_images"]) == e["count"] == 40, e)
        table = out.splitlines()
        check(table[0].startswith("test after") and table[1].split() == ["top-1", "%", "images", "class"] and len(table) == 7, table)
        rows = [line.split() for line in table[2:]]
        check(sorted(int(r[2]) for r in rows) == list(range(5)), rows)
        for r in rows:
            check(float(r[0]) == round(100 * e["class_hits"][int(r[2])] / 8, 2) and r[1] == "8", r, e["class_hits"])
        check([float(r[0]) for r in rows] == sorted(float(r[0]) for r in rows), "the least accurate class is first", rows)
    check(len({str(v) for v in seen.values()}) == 1, seen)
    hits = collections.Counter(int(r["label"]) for r in predictions() if r["label"] == r["class1"])
    check(seen[0][1] == [hits[c] for c in range(5)], seen[0][1], hits)
    wide = "--data npy --data-dir plain --augment none --limit 40 --epochs 1 --classes 1001".split()
    kinds = train(wide, log="wide.jsonl")
    check("class_hits" not in kinds["eval"][0] and kinds["start"][0]["class_names"] is None, "more than 1,000 classes")
    kinds = train(wide + ["--per-class"], log="wide.jsonl")
    check(len(kinds["eval"][0]["class_hits"]) == 1001, "--per-class counts any number of classes")
    seen = {}
    for ranks in RANKS[::3]:  # so many that four ranks send them in two parts
        e = train("--model mlp --data npy --data-dir plain --augment none --limit 40 --batch 10 --shards 4 --epochs 1 --classes 9000 "
                  "--per-class".split(), ranks, log="wide.jsonl")["eval"][0]
        seen[ranks] = e["class_images"], e["class_hits"]
        check(sum(e["class_images"]) == 40 and len(e["class_hits"]) == 9000, ranks, sum(e["class_images"]))
    check(len({str(v) for v in seen.values()}) == 1, "other counts of 9000 classes")
    rc, _, err = run("--loss mse --per-class --data npy --data-dir plain".split())
    check(rc == 2 and len(err) == 1 and "--per-class: --loss mse has no classes" in err[0], rc, err)


# ---- at the end of a run ----

def a_run_writes_its_page():
    for ranks in RANKS[:3]:
        train("--epochs 2 --report end.html --print-freq 1".split(), ranks, log="end.jsonl")
        report("end.jsonl --output after.html".split())
        check(content("end.html").replace("after", "end") == content("after.html").replace("after", "end"), ranks, "another page than of the log")
    rc, _, err = run(TINY + "--epochs 2 --report alone.svg".split())
    check(rc == 0 and ET.parse(path("alone.svg")), rc, err)
    train("--epochs 1 --save goes-on".split(), log="goes-on.jsonl")
    train("--epochs 3 --resume goes-on --report goes-on.html".split(), log="goes-on.jsonl")
    check(len(charts(read_page("goes-on.html")[2])["Loss"].dots["s0"]) == 3, "epochs of the job before")
    for args, part in [("--report nowhere/a.html", "--report nowhere/a.html: cannot write"), ("--report -", "--report -: expected a file"),
                       ("--report same.html --log same.html", "--report same.html: is the same file as same.html"),
                       ("--report page.pdf", "--report page.pdf: expected a name that ends in .html (a page) or .svg (a picture)")]:
        write("same.html", "")
        rc, _, err = run(TINY + ["--epochs", "1"] + args.split())
        check(rc == 1 and len(err) == 1 and part in err[0], args, rc, err)
    check(not glob.glob(path("*.tmp")), glob.glob(path("*.tmp")))


def options_of_a_checkpoint_are_shown_where_they_are_no_defaults():
    train("--epochs 1 --lr 0.02 --save carried".split())
    for args in ["--evaluate --resume carried --momentum 0.9 --report carried.html", "--resume carried --epochs 2 --momentum 0.9 --report carried.html"]:
        rc, _, err = run(args.split() + ["--threads", "1", "--quiet"])
        check(rc == 0, args, rc, err)
        given = dict(re.findall(r"<tr><th>--([^<]*)</th><td>([^<]*)</td>", content("carried.html")))
        check(given["lr"] == "0.02" and given["momentum"] == "0.9" and given["resume"] == "carried", given)
        check(not {"weight-decay", "schedule", "optimizer", "amp", "eps"} & set(given), "options that nobody gave", given)


def a_run_that_is_told_to_end_writes_it_too():
    rc, ours = finish(subprocess.Popen(command(TINY + "--epochs 1000000 --save told --max-time 1ms --report told.html".split(), 0), cwd=HERE,
                                       stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
                                       env=environment(0)))
    check(rc == 143 and "preempted" in read_page("told.html")[1], rc, ours)


def predictions_of_a_run_are_in_its_page():
    predictions()
    rc, _, err = run("--evaluate --resume plain-run --threads 1 --quiet --predict now.csv --report now.html".split())
    check(rc == 0, rc, err)
    page, text, svgs = read_page("now.html")
    check("Predictions: now.csv" in text and page.count("<img") > 10 and any(s.get("class") == "confusion" for s in svgs), text[-400:])


# ---- TensorBoard ----

READ = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
a = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0})
a.Reload()
print(json.dumps({tag: [(e.wall_time, e.step, e.value) for e in a.Scalars(tag)] for tag in a.Tags()["scalars"]}))
"""


def scalars(folder):
    python = python_with("tensorboard")
    p = subprocess.run([python, "-c", READ, path(folder)], capture_output=True, text=True, timeout=120)
    check(p.returncode == 0, p.stderr[-500:])
    return json.loads(p.stdout)


def tensorboard_reads_what_the_log_says():
    python_with("tensorboard")
    train("--epochs 2 --print-freq 1 --tensorboard tb --save tb-run".split(), log="tb.jsonl")
    train("--epochs 3 --print-freq 1 --tensorboard tb --resume tb-run".split(), log="tb.jsonl")  # another file in the folder
    got, log = scalars("tb"), records("tb.jsonl")
    check(len(os.listdir(path("tb"))) == 2, os.listdir(path("tb")))
    for tag, kind, field in [("loss/train", "step", "loss"), ("accuracy/train", "step", "top1"), ("lr", "step", "lr"), ("img_s", "step", "img_s"),
                             ("loss/test", "eval", "loss"), ("accuracy/test", "eval", "top1"), ("epoch_loss/train", "epoch", "train_loss")]:
        want = [(r["time"], r["step" if kind == "step" else "at_step"], r[field]) for r in log if r["record"] == kind]
        same = len(got.get(tag, [])) == len(want) and all(
            s == t and abs(a - b) <= 1e-6 * abs(b) and abs(w - v) < 0.01 for (w, s, a), (v, t, b) in zip(got[tag], want))
        check(same, tag, got.get(tag), want)


def steps_that_a_kill_undid_are_not_shown_twice():
    python_with("tensorboard")
    train("--steps 4 --print-freq 1 --tensorboard undone --save undone-run".split(), log="undone.jsonl")
    train("--steps 8 --print-freq 1 --tensorboard undone --init undone-run".split(), log="undone-2.jsonl")  # a new run: only it is shown
    check([s for _, s, _ in scalars("undone")["loss/train"]] == list(range(1, 9)), scalars("undone")["loss/train"])
    rc, _, err = run("--evaluate --resume undone-run --tensorboard undone --threads 1 --quiet".split())
    check(rc == 0 and [s for _, s, _ in scalars("undone")["loss/train"]] == list(range(1, 9)), "an evaluation hides steps", err)


def event_files_are_sealed_and_errors_are_clear():
    """Without TensorBoard: lengths and checksums of its format."""
    table = []
    for i in range(256):
        for _ in range(8):
            i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
        table.append(i)

    def masked(data):
        crc = 0xFFFFFFFF
        for b in data:
            crc = crc >> 8 ^ table[(crc ^ b) & 255]
        crc ^= 0xFFFFFFFF
        return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF

    check(masked(b"123456789") == (((0xE3069283 >> 15 | 0xE3069283 << 17) + 0xA282EAD8) & 0xFFFFFFFF), "the check value of CRC-32C")
    train("--epochs 1 --print-freq 1 --tensorboard sealed".split())
    name, = os.listdir(path("sealed"))
    check(name.startswith("events.out.tfevents."), name)
    with open(path("sealed/" + name), "rb") as f:
        data, at, events = f.read(), 0, []
    while at < len(data):
        n = int.from_bytes(data[at:at + 8], "little")
        body = data[at + 12:at + 12 + n]
        check(int.from_bytes(data[at + 8:at + 12], "little") == masked(data[at:at + 8]), "the length's checksum", at)
        check(int.from_bytes(data[at + 12 + n:at + 16 + n], "little") == masked(body), "the checksum", at)
        events.append(body)
        at += n + 16
    check(at == len(data) and b"brain.Event:2" in events[0] and len(events) == 2 + 4 + 1 + 1, len(events))
    write("file", "")
    for args, part in [("--tensorboard file", "--tensorboard file: is not a folder"), ("--tensorboard no/where", "--tensorboard no/where: cannot make it")]:
        rc, _, err = run(TINY + ["--epochs", "1"] + args.split())
        check(rc == 1 and len(err) == 1 and part in err[0], args, rc, err)


# ---- as people see it ----

def the_picture_in_the_docs_is_what_its_command_makes():
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    with open(os.path.join(root, "docs/reports.md")) as f:
        words = re.search(r"^hvtrain (report docs/runs/.*) --output (docs/report.svg)$", f.read(), re.M)
    out = subprocess.run([HVTRAIN, *words[1].split(), "--output", path("made.svg")], cwd=root, capture_output=True, text=True)
    check(out.returncode == 0, out.stderr)
    with open(os.path.join(root, words[2])) as f, open(path("made.svg")) as g:
        ours, made = (re.split(r"(-?\d+\.\d+)", file.read()) for file in (f, g))
    check(ours[::2] == made[::2], "docs/report.svg is another picture; make it again by:", words[0])
    off = max(abs(float(a) - float(b)) for a, b in zip(ours[1::2], made[1::2]))
    check(off < 0.02, "numbers of docs/report.svg differ by", off)
    check(len(ET.fromstring("".join(ours)).findall(".//{*}polyline")) >= 9, "curves of three runs")


def chromium():
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise Skip("no Chromium")
    return found


COUNT = """
import json, sys, PIL.Image as I
a = I.open(sys.argv[1]).convert("RGB")
print(json.dumps([a.size, [[n, c] for n, c in a.getcolors(1 << 24) if n >= 5]]))
"""


def look(page, dark=False, height=2400):
    """{colour: pixels} of a page in Chromium, and what it has to complain of."""
    shot = path("shot.png")
    if os.path.exists(shot):
        os.remove(shot)
    args = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", "--no-first-run",
            "--disable-background-networking", "--force-color-profile=srgb", f"--user-data-dir={path('browser')}",
            f"--window-size=1000,{height}", f"--screenshot={shot}"]
    args += ["--blink-settings=preferredColorScheme=0"] if dark else []
    p = subprocess.run(args + ["file://" + path(page)], capture_output=True, text=True, timeout=240, cwd=HERE)
    if not os.path.exists(shot):
        raise Skip("Chromium takes no picture here: " + p.stderr[-200:])
    said = [line for line in p.stderr.splitlines() if "CONSOLE" in line]
    out = subprocess.run([python_with("PIL"), "-c", COUNT, shot], capture_output=True, text=True, timeout=120).stdout
    size, counts = json.loads(out)
    return size, {tuple(c): n for n, c in counts}, said


def chromium_shows_every_curve():
    chromium()
    three_runs()
    predictions()
    report("three-0.jsonl three-1.jsonl three-2.jsonl plain.csv --output look.html".split())
    for dark, colours in [(False, COLOURS), (True, DARK)]:
        size, seen, said = look("look.html", dark)
        check(not said, "the console says", said)
        back = (13, 17, 23) if dark else (255, 255, 255)
        check(seen.get(back, 0) > size[0] * size[1] / 2, "the page has another background", dark, sorted(seen, key=seen.get)[-3:])
        for i, c in enumerate(colours):
            check(seen.get(c, 0) > 400, "the curves of run", i, "are not to be seen: pixels of", c, seen.get(c, 0), "dark" if dark else "light")
        check(len(seen) > 200, "colours:", len(seen))
    write("blank.html", "<!doctype html><title>x</title><script>console.error('hidden')</script>")
    _, seen, said = look("blank.html", height=400)
    check(len(said) == 1 and len(seen) == 1, "an empty page with an error would not be noticed:", len(seen), said)


def tune_draws_its_buckets():
    if not MPIRUN:
        raise Skip("no mpirun")
    for _ in range(2):  # the second replaces both files of the first
        rc, out, err = run("tune fast.json 1 --model mlp --samples 64 --batch 4 --threads 1".split(), 2)
        check(rc == 0 and "written: fast.json.svg" in out, rc, out[-300:], err[-3:])
    root = ET.parse(path("fast.json.svg")).getroot()
    names = ["".join(e.itertext()) for e in root.iter() if "xtick" in e.get("class", "")]
    sizes = [0 if n == "one per layer" else math.inf if n == "all in one" else float(n) for n in names]
    check(sizes == sorted(sizes) and 25.0 in sizes and len(sizes) >= 2, names)
    times = {m[1]: float(m[2]) for m in re.finditer(r"^  (\S+) +([\d.]+) +[\d.]+-[\d.]+ +[\d.]+", out.partition("bucket:")[2], re.M)}
    points = [float(e.get("cy")) for e in root.iter() if local(e) == "circle"]
    ticks = [(float(e.get("y")) - 4, number("".join(e.itertext()))) for e in root.iter() if "ytick" in e.get("class", "")]
    to_y = Chart.line(ticks, False)
    want = [times[{0: "0", math.inf: "all"}.get(s, f"{s:g}MiB")] for s in sizes]
    check(len(points) == len(want) and all(abs(to_y(p) - w) < 0.02 * (max(want) + 0.01) for p, w in zip(points, want)), points, want)
    check([t for e in root.iter() if "mark" in e.get("class", "") for t in e.itertext()][0].startswith("default")
          or "chosen" in content("fast.json.svg"), "no mark")
    check("mlp, 2 x 4 images, 2 ranks" in content("fast.json.svg") and "MiB" in content("fast.json.svg"), "the title")


TESTS = [
    a_report_has_the_numbers_of_its_runs,
    names_are_what_tells_runs_apart,
    a_picture_has_the_same_curves,
    times_are_those_of_every_rank,
    a_run_that_went_on_counts_each_update_once,
    odd_logs_give_a_page_or_one_clear_line,
    text_from_files_is_escaped,
    a_hundred_thousand_records_are_thinned,
    a_page_has_what_was_predicted,
    thumbnails_are_the_images,
    tables_that_are_damaged_are_named_with_their_line,
    many_classes_are_the_worst_ones,
    masks_are_judged_by_their_mean_iou,
    classes_are_counted_alike_on_any_number_of_ranks,
    a_run_writes_its_page,
    options_of_a_checkpoint_are_shown_where_they_are_no_defaults,
    a_run_that_is_told_to_end_writes_it_too,
    predictions_of_a_run_are_in_its_page,
    tensorboard_reads_what_the_log_says,
    steps_that_a_kill_undid_are_not_shown_twice,
    event_files_are_sealed_and_errors_are_clear,
    the_picture_in_the_docs_is_what_its_command_makes,
    chromium_shows_every_curve,
    tune_draws_its_buckets,
]


if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
