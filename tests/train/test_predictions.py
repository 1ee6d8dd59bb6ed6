#!/usr/bin/env python3
"""test_predictions.py HVTRAIN MPIRUN [NAME ...]: --predict, --predict-logits, and training with --freeze.

Needs only Python; truths that need NumPy or torchvision are skipped without them.
"""
import csv
import io
import json
import math
import os
import random
import struct
import subprocess
import sys

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import (HERE, MPIRUN, TINY, change_metadata, command, metadata, path, python_with, read_safetensors, run, train, weights,
                     write_safetensors)
from truths import check, run_all

COUNT, CLASSES = 61, 10
EVALUATE = TINY + f"--evaluate --init run/last.safetensors --limit {COUNT}".split()


def weights_to_predict_with():
    if not os.path.exists(path("run")):
        train("--epochs 1 --save run".split())


def content(name):
    with open(path(name), "rb") as f:
        return f.read()


def rows(name):
    with open(path(name), newline="") as f:
        return list(csv.DictReader(f))


def logits(name):
    """The array of a .npy file, row by row."""
    data = content(name)
    check(data[:8] == b"\x93NUMPY\x01\x00", data[:8])
    size, = struct.unpack_from("<H", data, 8)
    header = eval(data[10:10 + size])
    check(header["descr"] == "<f4" and not header["fortran_order"] and (10 + size) % 64 == 0, header)
    count, classes = header["shape"]
    check(len(data) == 10 + size + 4 * count * classes, len(data), header)
    return [struct.unpack_from(f"<{classes}f", data, 10 + size + 4 * classes * i) for i in range(count)]


def predictions_agree_with_logits_and_with_the_evaluation():
    weights_to_predict_with()
    rc, out, err = run(EVALUATE + "--predict p.csv --predict-logits p.npy".split())
    check(rc == 0 and not err and out.count("\n") == 1, rc, out, err)
    table, array = rows("p.csv"), logits("p.npy")
    check(len(table) == len(array) == COUNT, len(table), len(array))
    hits = 0
    for i, (row, x) in enumerate(zip(table, array)):
        check(row["index"] == str(i) and row["file"].startswith("image ") and len(row) == 13, row)
        best = sorted(range(CLASSES), key=lambda c: (-x[c], c))[:5]
        check([int(row[f"class{k}"]) for k in range(1, 6)] == best, row, x)
        total = sum(math.exp(v - max(x)) for v in x)
        for k, c in enumerate(best, 1):
            part = math.exp(x[c] - max(x)) / total
            check(abs(float(row[f"probability{k}"]) - part) < 1e-8 * part, row, part)
        hits += row["label"] == row["class1"]
    check(f"top-1 {100 * hits / COUNT:.2f} %" in out, hits, out)


def ranks_and_batches_change_no_byte():
    weights_to_predict_with()
    first = None
    for ranks, batch in [(0, 16), (0, 7), (0, 1)] + ([(2, 16), (3, 5), (4, 64), (4, 1)] if MPIRUN else []):
        rc, out, err = run(EVALUATE + f"--batch {batch} --predict r.csv --predict-logits r.npy".split(), ranks)
        check(rc == 0, rc, err)
        got = content("r.csv"), content("r.npy"), out
        first = first or got
        check(got == first, ranks, "ranks, batch", batch)
        os.remove(path("r.csv"))
        os.remove(path("r.npy"))


def each_file_comes_alone_too():
    weights_to_predict_with()
    run(EVALUATE + "--predict both.csv --predict-logits both.npy".split())
    check(run(EVALUATE + "--predict one.csv".split())[0] == 0 and content("one.csv") == content("both.csv"), "CSV")
    check(run(EVALUATE + "--predict-logits one.npy".split())[0] == 0 and content("one.npy") == content("both.npy"),
          "logits")


def predictions_on_stdout_leave_the_result_to_stderr():
    weights_to_predict_with()
    run(EVALUATE + "--predict file.csv".split())
    args = [a for a in EVALUATE if a != "--quiet"] + "--predict -".split()
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, out, err = run(args, ranks)
        check(rc == 0 and out.encode() == content("file.csv"), rc, out[:200])
        check(sum(line.startswith("test of run/last.safetensors: loss") for line in err) == 1, err[-3:])


def few_classes_make_few_columns():
    train("--classes 3 --epochs 1 --save three".split())
    rc, _, err = run("--quiet --threads 1 --evaluate --resume three --limit 9 --predict t.csv".split())
    check(rc == 0, err)
    table = rows("t.csv")
    check(list(table[0]) == ["index", "file", "label"] + [f"{w}{k}" for k in (1, 2, 3) for w in ("class", "probability")],
          list(table[0]))
    check(all(abs(sum(float(r[f"probability{k}"]) for k in (1, 2, 3)) - 1) < 1e-8 for r in table), "sums")


def what_cannot_be_written_is_one_line_and_keeps_the_old_file():
    weights_to_predict_with()
    with open(path("old.csv"), "w") as f:
        f.write("index,file,label,old\n")
    os.makedirs(path("a-folder"), exist_ok=True)
    for args, words in [
            ("--predict none/p.csv", ["--predict none/p.csv", "No such file"]),
            ("--predict-logits none/p.npy", ["--predict-logits none/p.npy", "No such file"]),
            ("--predict a-folder", ["--predict a-folder", "Is a directory"]),
            ("--predict /dev/full", ["--predict /dev/full", "No space left"]),
            ("--predict old.csv --predict-logits /dev/full", ["--predict-logits /dev/full", "No space left"]),
            ("--predict run/last.safetensors", ["--predict run/last.safetensors", "same file"]),
            ("--predict x.npy --predict-logits x.npy", ["--predict", "--predict-logits", "x.npy", "two files"])]:
        for ranks in [0, 2] if MPIRUN else [0]:
            rc, out, err = run(EVALUATE + args.split(), ranks)
            ours = [line for line in err if line.startswith("hvtrain:")]
            check(rc in (1, 2) and len(ours) == 1 and all(w in ours[0] for w in words), args, rc, out, ours, err[-3:])
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(EVALUATE + "--predict old.csv".split(), ranks, file_limit=1024)
        ours = [line for line in err if line.startswith("hvtrain:") and "warning" not in line]
        check(rc == 1 and len(ours) == 1 and "--predict old.csv" in ours[0], ranks, rc, err[-3:])
    check(content("old.csv") == b"index,file,label,old\n", "the old file is gone")
    left = [f for f in os.listdir(HERE) if f.endswith(".tmp")]
    check(not left, left)


def a_file_of_another_kind_is_refused_and_kept():
    weights_to_predict_with()
    train("--steps 1 --timeline kinds.json --report kinds.html".split(), log="kinds.jsonl")
    run(EVALUATE + "--predict kinds.csv --predict-logits kinds.npy --report kinds.svg".split())
    for name, data in [("photo.jpg", b"\xff\xd8\xff\xe0 a photo"), ("notes.html", b"<!doctype html>\nnotes"), ("logo.svg", b"<svg xmlns='x'/>"),
                       ("options.json", b'{"lr": 1}'), ("data.npy", b"\x93NUMPY\1\0\x76\0{'descr': '|u1', 'fortran_order': False")]:
        with open(path(name), "wb") as f:
            f.write(data)
    train_one = TINY + ["--steps", "1"]
    for args, name, kind in [(EVALUATE + ["--predict"], "kinds.jsonl", "a table of predictions"), (EVALUATE + ["--predict"], "photo.jpg", "a table"),
                             (EVALUATE + ["--predict-logits"], "kinds.csv", "an array of logits"),
                             (EVALUATE + ["--predict-logits"], "data.npy", "an array of logits"),
                             (train_one + ["--log"], "kinds.csv", "a log"), (EVALUATE + ["--log"], "kinds.csv", "a log"),
                             (train_one + ["--timeline"], "kinds.jsonl", "a timeline"),
                             (train_one + ["--report"], "notes.html", "a report"), (train_one + ["--report"], "logo.svg", "a picture of curves"),
                             ("report kinds.jsonl --output".split(), "notes.html", "a report"),
                             ("report kinds.jsonl --output".split(), "logo.svg", "a picture of curves"),
                             *[(["tune"], "options.json", "a result of tune")] * bool(MPIRUN)]:
        before = content(name)
        rc, _, err = run(args + [name], 2 if args == ["tune"] else 0)
        ours = [line for line in err if line.startswith("hvtrain:") and "warning" not in line]
        check(rc == 1 and len(ours) == 1 and f"{name}: this file exists, but hvtrain did not write it as {kind}" in ours[0], args, name, rc, err)
        check(content(name) == before, args, name, "was changed")
    with open(path("picture.json.svg"), "w") as f:
        f.write("<svg/>")
    rc, _, err = run("tune picture.json".split(), 2) if MPIRUN else (1, "", ["tune picture.json.svg: this file exists"])
    check(rc == 1 and any("tune picture.json.svg: this file exists" in line for line in err), "tune would draw over a picture", rc, err)
    check(not [f for f in os.listdir(HERE) if f.endswith(".tmp")], "temporary files are left")


def a_file_of_its_kind_is_replaced():
    weights_to_predict_with()
    for name in ["empty.csv", "cut.csv", "again.npy", "again.html", "again.svg"]:
        with open(path(name), "w") as f:
            f.write("index,fi" * (name == "cut.csv"))  # what a kill leaves of the head
    for _ in range(2):
        for args in ["--predict empty.csv", "--predict cut.csv", "--predict-logits again.npy", "--report again.html", "--report again.svg",
                     "--predict /dev/null"]:
            rc, _, err = run(EVALUATE + args.split())
            check(rc == 0, args, rc, err)
        train("--steps 1 --timeline again.json".split(), log="again.jsonl")
    check(content("empty.csv").startswith(b"index,file,label,") and content("cut.csv") == content("empty.csv"), "not replaced")
    with open(path("direct.csv"), "w") as out:  # the shell's file: nothing is renamed over /dev/stdout
        p = subprocess.run(command(EVALUATE + ["--predict", "/dev/stdout"], 0), cwd=HERE, stdout=out, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 0 and content("direct.csv").startswith(content("empty.csv")) and os.path.islink("/dev/stdout"), p.stderr)


def options_that_do_not_fit_are_refused():
    weights_to_predict_with()
    for args, words in [("--predict p.csv", ["--predict p.csv", "--evaluate"]),
                        ("--predict-logits p.npy", ["--predict-logits p.npy", "--evaluate"]),
                        ("--freeze layer9", ["--freeze layer9", "conv1, bn1, layer1, layer2, layer3, fc"]),
                        ("--freeze conv1,,fc", ["--freeze conv1,,fc", "comma"]),
                        ("--freeze conv,bn,layer,fc", ["--freeze conv,bn,layer,fc", "nothing is left to train"])]:
        rc, _, err = run(TINY + ["--steps", "1"] + args.split())
        check(rc in (1, 2) and len(err) == 1 and all(w in err[0] for w in words), args, rc, err)


def numpy_loads_the_logits():
    weights_to_predict_with()
    python = python_with("numpy")
    run(EVALUATE + "--predict-logits n.npy".split())
    p = subprocess.run([python, "-c", "import numpy, sys; x = numpy.load(sys.argv[1]); "
                        "print(x.dtype, x.shape, x.flags.c_contiguous, x[-1].tolist())", path("n.npy")],
                       capture_output=True, text=True)
    want = ["float32", f"({COUNT}, {CLASSES})", "True", repr([v for v in logits("n.npy")[-1]])]
    check(p.stdout.strip() == " ".join(want), p.stdout, p.stderr[-300:])


# ---- pictures ----

def picture(name, seed, cut=None):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    pixels = random.Random(seed).randbytes(3 * 20 * 17)
    with open(path(name), "wb") as f:
        f.write((b"P6 20 17 255\n" + pixels)[:cut])


CLASS_NAMES = ["cat", "dog, small", "eel"]
PLAIN = sorted(f"p{i}" + ("" if i % 3 else ', "it"') + ".ppm" for i in range(13))


def weights_of_pictures():
    if os.path.exists(path("trained")):
        return
    for i in range(24):
        for split in "train", "val":
            picture(f"set/{split}/{CLASS_NAMES[i % 3]}/{split}{i}.ppm", i)
    for i, name in enumerate(PLAIN):
        picture("plain/" + name, i)
    rc, _, err = run("--data folder --data-dir set --size 16 --batch 8 --threads 1 --epochs 1 --quiet --save trained".split())
    check(rc == 0, err)


PLAINLY = "--evaluate --resume trained --quiet --threads 1 --data-dir plain --predict u.csv --predict-logits u.npy".split()


def pictures_without_labels_have_predictions():
    """The classes' names are those that the weights were trained with."""
    weights_of_pictures()
    first = None
    for ranks in [0, 2, 3] if MPIRUN else [0]:
        rc, out, err = run(PLAINLY, ranks)
        check(rc == 0 and "13 images without labels" in out and "loss" in out and "nan" not in out, rc, out, err[-3:])
        got = content("u.csv"), content("u.npy")
        first = first or got
        check(got == first, ranks, "ranks")
    table = rows("u.csv")
    check([r["file"] for r in table] == ["plain/" + name for name in PLAIN], [r["file"] for r in table])
    check(all(r["label"] == r["label_name"] == "" and len(r) == 13 for r in table), table[0])
    check(all(r[f"name{k}"] == CLASS_NAMES[int(r[f"class{k}"])] for r in table for k in (1, 2, 3)), table[0])
    check(len(logits("u.npy")[0]) == 3, "classes other than the weights'")
    for args, words in [("--evaluate --resume trained --data-dir plain", ["no labels", "--predict FILE"]),
                        ("--resume trained --data-dir plain --epochs 2 --save none", ["to train on"])]:
        rc, _, err = run("--quiet --threads 1".split() + args.split())
        check(rc == 1 and len([e for e in err if "warning" not in e]) == 1 and all(w in err[-1] for w in words), rc, err)


def classes_have_names():
    weights_of_pictures()
    rc, out, err = run("--evaluate --resume trained --quiet --threads 1 --predict v.csv".split())
    check(rc == 0, err)
    for r in rows("v.csv"):
        check(r["label_name"] == CLASS_NAMES[int(r["label"])] and r["name2"] == CLASS_NAMES[int(r["class2"])] and
              f"/{r['label_name']}/" in r["file"], r)


def weights_without_names_predict_numbers():
    """Those of earlier releases, and of PyTorch."""
    weights_of_pictures()
    header, data = read_safetensors("trained/last.safetensors")
    check(metadata(header)["class_names"] == CLASS_NAMES, metadata(header).get("class_names"))
    change_metadata(header)
    about = metadata(header)
    del about["class_names"]
    header["__metadata__"]["hvtrain"] = json.dumps(about)
    write_safetensors("trained/nameless.safetensors", header, data)
    rc, _, err = run("--evaluate --resume trained/nameless.safetensors --quiet --threads 1 --data-dir plain --predict o.csv".split())
    check(rc == 0 and not err and len(rows("o.csv")[0]) == 9, rc, err)
    change_metadata(header, class_names=["cat", 7])
    write_safetensors("trained/odd.safetensors", header, data)
    rc, _, err = run("--evaluate --resume trained/odd.safetensors --quiet --threads 1".split())
    check(rc == 1 and len(err) == 1 and "odd.safetensors: metadata class_names: element 1 is not text" in err[0], rc, err)


def data_that_name_classes_otherwise_are_one_line():
    weights_of_pictures()
    others = ["bat", "cat", "dog, small"]  # one more in front, and the last is gone
    for i in range(6):
        for split in "train", "val":
            picture(f"others/{split}/{others[i % 3]}/{i}.ppm", i)
    named = "does not have these classes of the data: bat"
    for ranks in [0, 2] if MPIRUN else [0]:
        for args, want, words in [
                ("--evaluate --resume trained --data-dir others --predict w.csv", 0, [named, "bat; their pictures are predicted"]),
                ("--evaluate --resume trained --data-dir others --predict n.csv --classes 3", 0, None),
                ("--evaluate --init trained --data folder --size 16 --data-dir others", 1,
                 [named, "(3 classes) does not have these classes of the data: bat;", "--classes 3"]),
                ("--resume trained --data-dir others --epochs 2 --save none", 1,
                 [named, "(3 classes) does not have these classes of the data: bat;", "--init FILE --reset-head"]),
                ("--init trained --reset-head --data folder --size 16 --batch 2 --epochs 1 --data-dir others", 0, None),
                ("--resume trained --epochs 2 --save none", 0, None),
                ("--evaluate --resume trained", 0, None)]:
            rc, _, err = run("--quiet --threads 1 --batch 2 --shards 2".split() + args.split(), ranks)
            lines = [line for line in err if "other names" in line or "does not have" in line]
            check(rc == want and len(lines) == bool(words) and all(w in lines[0].replace("trained/last.safetensors", "trained")
                                                                   for w in words or []), ranks, args, rc, err)
        for r in rows("w.csv"):
            check(r["label"] == r["label_name"] == "" and r["name1"] == CLASS_NAMES[int(r["class1"])], r)
        for r in rows("n.csv"):
            check(r["label_name"] == others[int(r["label"])] and r["name1"] == CLASS_NAMES[int(r["class1"])], r)


def labels_are_matched_by_name():
    """A test set without one of the classes, or with one alone, was compared by number."""
    weights_of_pictures()
    some = {"two": ["cat", "eel"], "one": ["eel"], "last": ["dog, small", "eel"], "training": ["dog, small", "eel"]}
    for folder, names in some.items():
        for i in range(8):
            for split in ["train/", "val/"] if folder == "training" else [""]:
                picture(f"{folder}/{split}{names[i % len(names)]}/{split[:1]}{i}.ppm", i)
    for folder, names in some.items():
        if folder == "training":
            continue
        for ranks in [0, 2] if MPIRUN else [0]:
            rc, out, err = run(f"--evaluate --resume trained --threads 1 --data-dir {folder} --predict x.csv".split(), ranks)
            check(rc == 0, err)
            table = rows("x.csv")
            check(len(table) == 8 and all(CLASS_NAMES[int(r["label"])] == r["label_name"] and f"/{r['label_name']}/" in r["file"]
                                          for r in table), table)
            hits = sum(r["label"] == r["class1"] for r in table)
            check(f"top-1 {100 * hits / 8:.2f} %" in out, hits, out)
            check(any(f"{len(names)} of the 3 classes of trained; labels are matched by name" in line for line in err), err)
            check(any(line.endswith(f"3 classes: {', '.join(CLASS_NAMES)}") for line in err), err)
    rc, _, err = run("--resume trained --data-dir training --epochs 2 --save matched --quiet --threads 1 --batch 4".split())
    check(rc == 0 and not any("other names" in line for line in err), err)
    check(metadata(read_safetensors("matched/last.safetensors")[0])["class_names"] == CLASS_NAMES, "other names")


def outputs_without_names_are_not_compared_with_fewer_classes():
    """1000 outputs on 4 classes were top-1 0.00 %."""
    weights_of_pictures()
    header, data = read_safetensors("trained/last.safetensors")
    change_metadata(header)
    about = metadata(header)
    del about["class_names"]
    header["__metadata__"]["hvtrain"] = json.dumps(about)
    write_safetensors("nameless.safetensors", header, data)
    for i in range(8):
        picture(f"fewer/{['cat', 'eel'][i % 2]}/{i}.ppm", i)
    ask = "--evaluate --init nameless.safetensors --size 16 --quiet --threads 1".split()
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(ask + "--data folder --data-dir fewer".split(), ranks)
        check(rc == 1 and "the model has 3 outputs, the data have 2 classes (cat, ...)" in err[0] and "--classes 3" in err[0], rc, err)
        rc, _, err = run(ask + "--data folder --data-dir fewer --classes 3".split(), ranks)
        check(rc == 0, err)
    for array, values in ("images", bytes(range(192)) * 4), ("labels", struct.pack("<4q", 0, 1, 1, 0)):
        shape, kind = ("(4, 8, 8, 3)", "|u1") if array == "images" else ("(4,)", "<i8")
        text = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
        os.makedirs(path("arrays"), exist_ok=True)
        with open(path(f"arrays/test_{array}.npy"), "wb") as f:
            f.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + values)
    rc, _, err = run(ask + "--data npy --data-dir arrays".split())
    check(rc == 0 and len(err) == 1 and "the model has 3 outputs, and the labels of data set 'npy' go up to 1" in err[0], rc, err)


def names_go_with_the_weights():
    """From run to run, also where the data have none, and from pictures into shards."""
    weights_of_pictures()
    os.makedirs(path("shards"))
    for split in "train", "val":
        rc, _, err = run(f"pack set --output shards/{split}-%03d.tar".split())
        check(rc == 0, err)
    with open(path("shards/classes.txt")) as f:
        check(f.read().splitlines() == CLASS_NAMES, "other names")
    for args in ["--resume trained --data tar --data-dir shards --epochs 2 --save next", "--resume next --epochs 3"]:
        rc, _, err = run("--quiet --threads 1".split() + args.split())
        check(rc == 0 and not any("other names" in line for line in err), rc, err)
        check(metadata(read_safetensors("next/last.safetensors")[0])["class_names"] == CLASS_NAMES, "lost")
        os.path.exists(path("shards/classes.txt")) and os.unlink(path("shards/classes.txt"))


def weights_bring_their_preprocessing():
    """The same picture has the same classes by --resume and by --init; what differs by a flag is one warning."""
    weights_of_pictures()
    made = "--size 16 --eval-size 18 --mean 0.485,0.456,0.406 --std 0.25 --ema 0.5 --epochs 2 --save prepared"
    rc, _, err = run("--data folder --data-dir set --batch 8 --threads 1 --quiet".split() + made.split())
    check(rc == 0, err)
    raw, = [name for name in os.listdir(path("prepared")) if name.endswith(".raw.safetensors") and "2" in name]
    predict = "--evaluate --data folder --data-dir plain --threads 1 --quiet --predict".split()
    rc, _, err = run(predict + "a.csv --resume prepared/best.safetensors".split())
    check(rc == 0 and not err, rc, err)
    for ranks in [0, 2] if MPIRUN else [0]:
        for name in "best", "last":
            rc, _, err = run(predict + f"{name}.csv --init prepared/{name}.safetensors".split(), ranks)
            check(rc == 0 and not err, ranks, "ranks", name, rc, err)
    same = os.path.realpath(path("prepared/best.safetensors")) == os.path.realpath(path("prepared/last.safetensors"))
    check(content("best.csv") == content("a.csv") and (content("last.csv") == content("a.csv")) >= same, "other predictions")
    with open(path("options.json"), "w") as f:
        json.dump({"std": 0.5}, f)
    for more, was, now in [("", "", ""), ("--mean 0.5", "--mean 0.485,0.456,0.406", "--mean 0.5"),
                           ("--size 24", "16x16", "24x24"), ("--config options.json", "--std 0.25", "--std 0.5"),
                           ("--eval-size 0", "--eval-size 18", "--eval-size 0")]:
        for file in "prepared", "prepared/" + raw:
            rc, _, err = run(predict + f"b.csv --init {file}".split() + more.split())
            check(rc == 0 and len(err) == bool(more), file, more, rc, err)
            had, has = err[0].split(", but this run has") if more else ("", "")
            check(was in had and now in has and (not more or file in had), file, more, err)
    rc, _, err = run("--data folder --data-dir set --batch 8 --threads 1 --quiet --epochs 1 --save bettered --reset-head --init prepared".split())
    about = metadata(read_safetensors("bettered/last.safetensors")[0])["options"]
    check(rc == 0 and "updates in all" in err[-1] and len(err) == 1 and (about["size"], about["eval-size"], about["mean"], about["std"]) ==
          ("16", "18", "0.485,0.456,0.406", "0.25"), rc, err, about)


def preprocessing_that_the_data_do_not_allow_is_left_out():
    """Arrays of floats and of one channel keep their size; weights of other programs and of no size say nothing."""
    weights_of_pictures()
    header, data = read_safetensors("trained/last.safetensors")
    change_metadata(header)
    about = metadata(header)
    del about["options"]["images"]
    about["options"].update(size="data", mean="0.25")
    header["__metadata__"]["hvtrain"] = json.dumps(about)
    write_safetensors("trained/older.safetensors", header, data)
    rc, _, err = run("--evaluate --data folder --data-dir set --quiet --threads 1 --size 16 --init trained/older.safetensors".split())
    check(rc == 0 and not err, rc, err)
    rc, _, err = run("--evaluate --data folder --data-dir set --quiet --threads 1 --size 16 --mean 0.5 --init trained/older.safetensors".split())
    check(rc == 0 and len(err) == 1 and "--mean 0.25, but this run has --mean 0.5" in err[0], rc, err)
    del header["__metadata__"]["hvtrain"]
    header["__metadata__"] = {"format": "pt"}
    write_safetensors("trained/foreign.safetensors", header, data)
    rc, _, err = run("--evaluate --data folder --data-dir set --quiet --threads 1 --size 24 --init trained/foreign.safetensors".split())
    check(rc == 0 and not err, rc, err)
    os.makedirs(path("floats"), exist_ok=True)
    for split in "train", "test":
        for kind, shape, type_, size in ("images", (6, 12, 12, 3), "<f4", 4), ("labels", (6,), "<i8", 8):
            text = repr({"descr": type_, "fortran_order": False, "shape": shape})
            text += " " * (-(len(text) + 11) % 64) + "\n"
            with open(path(f"floats/{split}_{kind}.npy"), "wb") as f:
                f.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + (struct.pack("<6q", *[0, 1, 2] * 2) if kind == "labels" else bytes(size * math.prod(shape))))
    rc, _, err = run("--evaluate --data npy --data-dir floats --quiet --threads 1 --batch 3 --init trained".split())
    check(rc == 0 and len(err) == 1 and "images of 16x16 bytes" in err[0] and "images of 12x12 floats" in err[0], rc, err)


def a_damaged_picture_has_a_line_without_prediction():
    weights_of_pictures()
    rc, _, err = run(PLAINLY)
    whole, good = rows("u.csv"), logits("u.npy")
    picture("plain/" + PLAIN[3], 3, cut=40)
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(PLAINLY, ranks)
        ours = [line for line in err if line.startswith("hvtrain:")]
        check(rc == 1 and len(ours) == 1 and PLAIN[3] in ours[0] and rows("u.csv") == whole, rc, err)
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(PLAINLY + "--skip-damaged 1 --predict d.csv --predict-logits d.npy".split(), ranks)
        check(rc == 0 and PLAIN[3] in err[0], rc, err)
        table, array = rows("d.csv"), logits("d.npy")
        check([r for i, r in enumerate(table) if i != 3] == [r for i, r in enumerate(whole) if i != 3], "other lines differ")
        check(table[3]["file"] == "plain/" + PLAIN[3] and not any(v for k, v in table[3].items() if k not in ("index", "file")),
              table[3])
        check(all(math.isnan(x) for x in array[3]) and array[2] == good[2] and array[4] == good[4], array[3])
    picture("plain/" + PLAIN[3], 3)


# ---- fine-tuning ----

FROZEN = "--freeze conv1,bn1,layer1,layer2.0 --print-freq 1 --epochs 2 --batch 8 --shards 4 --momentum 0.9 --weight-decay 0.1".split()


def frozen_parameters_stay_in_every_way_of_an_update():
    first = None
    for ranks, more in [(0, ""), (1, ""), (2, "--optimizer-state replicated"), (2, "--optimizer-state sharded"),
                        (2, "--comm mpi"), (4, "--check-replicas 1"), (4, "--overlap worker")] if MPIRUN else [(0, "")]:
        kinds = train(FROZEN + more.split(), ranks)
        first = first or kinds
        check(weights(kinds) == weights(first), ranks, more)
        check([r["loss"] for r in kinds["step"]] == [r["loss"] for r in first["step"]], "other losses")
    train(FROZEN + "--steps 1 --save f1".split())
    train(FROZEN + "--save f2".split())
    (header, one), (other, two) = read_safetensors("f1/last.safetensors"), read_safetensors("f2/last.safetensors")
    for name in header:
        if name == "__metadata__":
            continue
        a, b = (d[slice(*h[name]["data_offsets"])] for h, d in ((header, one), (other, two)))
        frozen = name.startswith(("conv1", "bn1", "layer1", "layer2.0"))
        check((a == b) == (frozen and "running" not in name and "tracked" not in name), name)


def a_run_with_frozen_parameters_goes_on_as_it_was():
    straight = weights(train(FROZEN))
    train(FROZEN + "--steps 2 --save part".split())
    momentum = [f for f in os.listdir(path("part")) if "momentum" in f]
    names = read_safetensors("part/" + momentum[0])[0]
    check("optim.momentum_buffer.fc.weight" in names and "optim.momentum_buffer.conv1.weight" not in names, names)
    rc, _, err = run("--resume part --save none --epochs 2 --quiet --threads 1 --log log".split())
    check(rc == 0 and not err, rc, err)
    check(weights(train(FROZEN + "--resume part".split())) == straight, "not as a straight run")
    train(FROZEN + "--steps 2 --save part --overwrite".split())
    kinds = train(FROZEN[2:] + "--resume part --freeze none --save none".split())
    check("end" in kinds and weights(kinds) != straight, "thawed")


def parts(name, *prefixes):
    """Names of tensors that begin so, and their bytes."""
    header, data = read_safetensors(name)
    return {k: data[slice(*v["data_offsets"])] for k, v in header.items() if k.startswith(prefixes) and k != "__metadata__"}


def groups_have_rates_of_their_own_and_norms_may_be_fixed():
    """One update of plain SGD moves a parameter in proportion to its rate."""
    train("--epochs 1 --save before".split())
    args = "--init before/last.safetensors --steps 1 --epochs 1 --batch 16 --momentum 0 --fix-norms".split()
    before = "before/last.safetensors"
    train(args + "--save plain".split())
    first = None
    for ranks in (0, 1, 2) if MPIRUN else (0,):
        kinds = train(args + "--group-lr fc=0,layer1.0.conv1=4,bn1=0.5 --shards 2 --batch 8 --save grouped --overwrite".split(), ranks)
        first = first or weights(kinds)
        check(weights(kinds) == first, ranks, "ranks")
    for name in "plain", "grouped":
        kept = [p for p in parts(before, "") if "running" in p]
        check(len(kept) > 4 and parts(before, *kept) == parts(name + "/last.safetensors", *kept), name, "statistics moved")
    check(parts(before, "fc.") == parts("grouped/last.safetensors", "fc."), "fc moved")
    check(parts(before, "fc.") != parts("plain/last.safetensors", "fc."), "fc did not move")
    for prefix, rate in [("layer1.0.conv1.", 4), ("bn1.weight", 0.5), ("layer2.0.conv1.", 1)]:
        was, plain, grouped = ([x for b in parts(n, prefix).values() for x, in struct.iter_unpack("<f", b)]
                               for n in (before, "plain/last.safetensors", "grouped/last.safetensors"))
        moved = sum((b - a) * (c - a) for a, b, c in zip(was, plain, grouped)) / sum((b - a) ** 2 for a, b in zip(was, plain))
        check(abs(moved / rate - 1) < 1e-3, prefix, moved)
    go = "--resume grouped --save more --steps 2 --epochs 1 --quiet --threads 1".split()
    rc, _, err = run(go)
    check(rc == 0 and not err and parts(before, "fc.") == parts("more/last.safetensors", "fc."), rc, err)
    for more, words in [("--group-lr fc", ["--group-lr", "fc=10"]), ("--group-lr fc=1,head=2", ["'head'", "layer3, fc"]),
                        ("--group-lr fc=1,fc.weight=2", ["fc.weight", "two parameter groups"]),
                        ("--group-lr fc=-1", ["0 or more"]), ("--fix-norms", ["--init"]),
                        ("--fix-norms --sync-bn", ["--sync-bn"]), ("--model mlp --fix-norms --init x", ["no batch norm"])]:
        rc, _, err = run(TINY + more.split())
        check(rc in (1, 2) and len(err) == 1 and all(w in err[0] for w in words), more, rc, err)


def pretrained_weights_of_torchvision_take_a_new_head():
    python = python_with("torchvision, safetensors.torch")
    script = """
import sys, torch, torchvision
from safetensors.torch import save_file
torch.manual_seed(1)
model = torchvision.models.resnet18()
save_file(model.state_dict(), sys.argv[1])
"""
    p = subprocess.run([python, "-c", script, path("resnet18.safetensors")], capture_output=True, text=True)
    check(p.returncode == 0, p.stderr[-1000:])
    args = "--model resnet18 --init resnet18.safetensors --size 32 --limit 32 --batch 16 --steps 2 --epochs 1 --print-freq 1".split()
    rc, _, err = run(args + ["--quiet", "--threads", "1", "--classes", "4"])
    check(rc == 1 and len(err) == 1 and "--reset-head" in err[0], rc, err)
    kinds = train(args + "--classes 4 --reset-head --freeze conv1,bn1,layer --save tuned".split())
    check(kinds["start"][0]["classes"] == 4 and len(kinds["step"]) == 2, kinds["start"])
    header, data = read_safetensors("tuned/last.safetensors")
    whole, before = read_safetensors("resnet18.safetensors")
    check(header["fc.weight"]["shape"] == [4, 512] and whole["fc.weight"]["shape"] == [1000, 512], "no new head")
    for name in whole:
        if name.startswith("layer") and "running" not in name and "tracked" not in name:
            check(data[slice(*header[name]["data_offsets"])] == before[slice(*whole[name]["data_offsets"])], name)
    rc, out, err = run("--quiet --threads 1 --resume tuned --evaluate --limit 5 --predict tuned.csv".split())
    check(rc == 0 and len(rows("tuned.csv")) == 5 and "class4" in rows("tuned.csv")[0], rc, err)


def torchvisions_mobilenet_and_a_sequential_have_the_same_logits():
    python = python_with("torchvision, safetensors.torch, numpy")
    script = """
import sys, numpy, torch, torchvision
from torch import nn
from safetensors.torch import save_file
torch.manual_seed(3)
torch.set_num_threads(1)
folder = sys.argv[1]
x = numpy.random.default_rng(1).normal(size=(6, 32, 32, 3)).astype(numpy.float32)
numpy.save(folder + "/test_images.npy", x)
images = torch.from_numpy(x).permute(0, 3, 1, 2)

def mobilenet(stem):
    model = torchvision.models.mobilenet_v2(num_classes=12)
    if stem == "cifar":
        model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
    return model

mlp = nn.Sequential(nn.Flatten(), nn.Linear(32 * 32 * 3, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                    nn.Linear(512, 12))
for name, model in ("imagenet", mobilenet("imagenet")), ("cifar", mobilenet("cifar")), ("mlp", mlp):
    model.train()
    with torch.no_grad():
        model(images + 0.1)  # running statistics
    model.eval()
    save_file(model.state_dict(), f"{folder}/{name}.safetensors")
    numpy.save(f"{folder}/{name}.npy", model(images).detach().numpy())
"""
    os.makedirs(path("net"), exist_ok=True)
    p = subprocess.run([python, "-c", script, path("net")], capture_output=True, text=True)
    check(p.returncode == 0, p.stderr[-1000:])
    for name, model in ("imagenet", "mobilenet_v2 --stem imagenet"), ("cifar", "mobilenet_v2 --stem cifar"), ("mlp", "mlp"):
        args = f"--evaluate --data npy --data-dir net --mean 0 --std 1 --init net/{name}.safetensors --classes 12 --batch 4 --model {model}"
        rc, _, err = run(args.split() + ["--threads", "1", "--quiet", "--predict-logits", f"net/{name}.ours.npy"])
        check(rc == 0, err)
        script = """
import sys, numpy
ours, theirs = (numpy.load(f) for f in sys.argv[1:])
assert ours.shape == theirs.shape == (6, 12), (ours.shape, theirs.shape)
apart = abs(ours - theirs).max() / abs(theirs).max()
assert apart < 1e-5, apart
"""
        p = subprocess.run([python, "-c", script, path(f"net/{name}.ours.npy"), path(f"net/{name}.npy")],
                           capture_output=True, text=True)
        check(p.returncode == 0, name, p.stderr[-1000:])


TESTS = [predictions_agree_with_logits_and_with_the_evaluation, ranks_and_batches_change_no_byte,
         each_file_comes_alone_too, predictions_on_stdout_leave_the_result_to_stderr, few_classes_make_few_columns,
         what_cannot_be_written_is_one_line_and_keeps_the_old_file,
         a_file_of_another_kind_is_refused_and_kept, a_file_of_its_kind_is_replaced, options_that_do_not_fit_are_refused,
         numpy_loads_the_logits, pictures_without_labels_have_predictions, classes_have_names,
         weights_without_names_predict_numbers, data_that_name_classes_otherwise_are_one_line, names_go_with_the_weights,
         weights_bring_their_preprocessing, preprocessing_that_the_data_do_not_allow_is_left_out,
         labels_are_matched_by_name, outputs_without_names_are_not_compared_with_fewer_classes,
         a_damaged_picture_has_a_line_without_prediction, frozen_parameters_stay_in_every_way_of_an_update,
         a_run_with_frozen_parameters_goes_on_as_it_was, groups_have_rates_of_their_own_and_norms_may_be_fixed,
         pretrained_weights_of_torchvision_take_a_new_head,
         torchvisions_mobilenet_and_a_sequential_have_the_same_logits]
run_all(TESTS, sys.argv[3:], HERE)
