#!/usr/bin/env python3
"""Usage: test_recipes.py HVTRAIN MPIRUN [TRUTH ...]. What a run does without being told, and how it says so."""
import array
import json
import os
import re
import shutil
import subprocess
import sys

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, MPIRUN, change_metadata, generations, metadata, path, python_with, read_safetensors, records, run, train, weights, write_safetensors
from truths import check, run_all

SYNTH = "--samples 32 --size 16 --threads 1 --steps 1 --eval-freq 0 --log log".split()


def draw(folder, each):
    """Three classes of pictures of 64 x 64."""
    shutil.rmtree(path(folder), ignore_errors=True)
    for k, name in enumerate(("ant", "bee", "cow")):
        os.makedirs(path(f"{folder}/{name}"))
        for i in range(each):
            pixels = bytes((180 if c == k else 60) + (i * 7 + n * 13 + c) % 41 for n in range(64 * 64) for c in range(3))
            with open(path(f"{folder}/{name}/{i:03}.ppm"), "wb") as f:
                f.write(b"P6 64 64 255\n" + pixels)


def started(args, ranks=0):
    """The first record of a run that must succeed, and what it printed."""
    rc, _, err = run(args, ranks)
    check(rc == 0, args, rc, err[-3:])
    return records("log")[0], "\n".join(err)


def rates(name="log"):
    return [r["lr"] for r in records(name) if r["record"] == "step"]


def pictures_have_a_model_and_units_of_their_own():
    draw("photos", 8)
    base = "--data folder --data-dir photos --val-split 0.25 --size 64 --threads 1 --epochs 1 --log log".split()
    start, said = started(base)
    check(start["model"] == "resnet18" and start["batch"] == 5 and start["steps_per_epoch"] == 4 and start["train_images"] == 18, start)
    check(start["options"]["lr"] == "0.1" and "model" not in start["options_from"], start)
    check("note: --batch is 5, because 18 training images are fewer than the usual 128" in said, said)
    table = re.sub(r",\n +", ", ", said)
    for value in "model resnet18 (for pictures)", "mean 0.485,0.456,0.406 (ImageNet's)", "std 0.229,0.224,0.225 (ImageNet's)", "lr 0.1 (for sgd)":
        check(re.search(r"^  chosen     .*" + re.escape(value), table, re.M), value, said)
    chosen = records("log")[-1]["weights"]
    given = "--model resnet18 --mean imagenet --std 0.229,0.224,0.225 --batch 5 --lr 0.1".split()
    _, said = started(base + given)
    check(records("log")[-1]["weights"] == chosen and "note: --batch" not in said and "chosen     model" not in said, said)
    started(base + "--mean 0.5 --std 0.5".split())
    check(records("log")[-1]["weights"] != chosen, "--mean has no effect")
    start, _ = started([a if a != "64" else "32" for a in base] + ["--eval-size", "0", "--grey"])
    check(start["model"] == "resnet20", "torchvision's models are for larger pictures")


def the_batch_fits_the_set():
    for samples, shards, batch, updates in [(128, 1, 128, 1), (127, 1, 32, 4), (13, 1, 5, 3), (26, 2, 5, 3), (1, 1, 1, 1), (2, 1, 1, 2)]:
        args = f"--samples {samples} --size 8 --shards {shards} --threads 1 --epochs 1 --eval-freq 0 --log log".split()
        start, said = started(args + ["--model", "mlp"])
        check((start["batch"], start["steps_per_epoch"]) == (batch, updates), samples, shards, start["batch"], start["steps_per_epoch"])
        check(("note: --batch" in said) == (batch < 128) and ("a shard's 13" in said) == (shards == 2), said)
    rc, _, err = run("--samples 26 --size 8 --threads 1 --batch 27".split())
    check(rc == 1 and "26 training images: --batch 26 is the most" in err[-1], rc, err)


def first_mistakes_get_a_helpful_line():
    draw("mine", 4)
    draw("few", 4)
    for name in "bee", "cow":
        shutil.rmtree(path(f"few/{name}"))
    shutil.copytree(path("few/ant"), path("flat"), dirs_exist_ok=True)
    shutil.copytree(path("mine"), path("broken"), dirs_exist_ok=True)
    with open(path("broken/ant/000.jpg"), "wb") as f:
        f.write(b"\xff\xd8\xff\xe0")
    rc, _, err = run("--model resnet18 --size 64 --samples 8 --batch 4 --steps 1 --eval-freq 0 --threads 1 --save large --overwrite".split())
    check(rc == 0, err)
    header, data = read_safetensors("large/last.safetensors")
    del header["__metadata__"]
    write_safetensors("pytorchs.safetensors", header, data)
    here = "--data folder --data-dir mine --size 32 --eval-size 32 --threads 1 --steps 1 --eval-freq 0".split()
    for args, said in [("mine".split(), "use --data folder --data-dir mine"),
                       ("--data-dir mine".split(), "--data-dir mine needs --data, the kind of its files, such as --data folder"),
                       ("--data imagenet --data-dir mine".split(), "did you mean folder?"),
                       ("--data folder --data-dir few".split(), "few: 1 class (ant), at least 2 are needed"),
                       ("--data folder --data-dir few --val-split 0.5".split(), "few has images of one class; expected 2 or more, each in a folder"),
                       ("--data folder --data-dir flat".split(), "has pictures but no class folders"),
                       (here + ["--model", "ResNet50"], "did you mean resnet50?"),
                       (here + ["--model", "resnet18.pth"], "the weights of a model by name are read with --init FILE"),
                       (here + ["--learning-rate", "0.1"], "use --lr"),
                       (here + ["--val-split", "20"], "(20 % is 0.2)"),
                       (here + ["--batch", "64"], "--batch 12 is the most"),
                       (here + ["--init", "large"], "was saved with --model resnet18, but this run has --model resnet20"),
                       (here + ["--init", "pytorchs.safetensors"], "without --model this run has resnet20: give the file's"),
                       (here + ["--init", "large", "--model", "resnet18"], "--reset-head reinitialises the head"),
                       (here[:2] + ["--data-dir", "broken"] + here[4:] + ["--batch", "13"], "--skip-damaged N"),
                       (here + ["--evaluate"], "--evaluate needs weights"),
                       (here + ["--device", "gpu"], "did you mean cuda?")]:
        rc, _, err = run(args)
        check(rc in (1, 2) and said in err[-1], args, err)
    rc, _, err = run(here + "--model mlp --mean 123.7,116.3,103.5".split())
    check(rc == 0 and any("--mean 0.4851,0.4561,0.4059 is meant" in line for line in err), err)
    rc, _, err = run(here[:-4] + "--model mlp --batch 4 --epochs 4 --eval-freq 0 --lr 1000".split())
    check(any("--lr 1000 is too high; try --lr" in line or "try a lower --lr than 1000" in line for line in err), err)


def the_rate_fits_the_optimizer():
    rc, _, err = run(SYNTH + "--batch 16 --save weights --overwrite".split())
    check(rc == 0, err)
    for more, rate in [("", 0.1), ("--optimizer adam", 1e-3), ("--optimizer adamw", 1e-3), ("--init weights", 0.01),
                       ("--init weights --optimizer adamw", 1e-4), ("--init weights --lr 0.3", 0.3), ("--lr 0", 0)]:
        start, said = started(SYNTH + "--batch 16".split() + more.split())
        check(abs(start["lr"] - rate) <= 1e-15, more, start["lr"])
        check(f"lr {rate:g} (" in said if "--lr" not in more else "(for " not in said, more, said)
        check(("a tenth of" in said) == ("init" in more and "--lr" not in more), more, said)
    start, _ = started(SYNTH + "--batch 16 --lr-scale linear --shards 2".split())
    check(start["lr"] == 0.2, start["lr"])
    for text in "nan", "-1", "fast":
        rc, _, err = run(SYNTH + ["--lr", text])
        check(rc == 2 and len(err) == 1 and f"--lr: expected a number >= 0, or auto, got '{text}'" in err[0], err)


def optimizers_without_a_trust_ratio_say_so():
    for optimizer, is_now in ("lars", "sgd"), ("lamb", "adam"):
        args = ["--optimizer", optimizer, *FLAT]
        said = [line for line in run([*args, "--epochs", "1"])[2] if f"--optimizer {optimizer} without --weight-decay is {is_now}: " in line]
        check(len(said) == 1, said)
        check(not any("trust ratio" in line for line in run([*args, "--epochs", "1", "--weight-decay", "0.01"])[2]), optimizer)


def a_schedule_advances_with_updates_unless_told_otherwise():
    args = "--epochs 2 --schedule cosine --print-freq 1 --batch 16".split()
    train(args)
    by_update = rates()
    check(len(by_update) == 8 and all(a > b for a, b in zip(by_update, by_update[1:])) and by_update[0] == 0.05, by_update)
    want = weights(train(args + "--schedule-by epoch --save older --overwrite".split()))
    check(rates() == [0.05] * 4 + [0.025] * 4, rates())
    for name in generations("older"):  # as a release before --schedule-by wrote it
        header, data = read_safetensors(name)
        options = metadata(header)["options"]
        check(options.pop("schedule-by") == "epoch", options)
        change_metadata(header, options=options)
        write_safetensors(name, header, data)
    os.unlink(path(generations("older")[-1]))
    kinds = train("--resume older --save none --print-freq 1".split())
    check(rates()[8:] == [0.025] * 4 and weights(kinds) == want, "an old checkpoint goes on with other rates", rates())
    rc, _, err = run("--schedule cosine --schedule-by step".split())
    check(rc == 2 and "--schedule-by: expected one of update epoch, got 'step'" in err[-1], err)


def accumulated_batches_are_shards():
    """N batches of each rank are an update of N times as many shards, on any number of ranks, also resumed."""
    args = "--batch 4 --epochs 2 --momentum 0.9".split()
    want = weights(train(args + "--shards 4".split()))
    for ranks, accumulate in [(0, 4), (2, 2)] if MPIRUN else [(0, 4)]:
        kinds = train(args + ["--accumulate", str(accumulate)], ranks)
        check(kinds["start"][0]["shards"] == 4 and kinds["start"][0]["global_batch"] == 16, kinds["start"])
        check(weights(kinds) == want, ranks, "ranks:", weights(kinds), "not", want)
    rc, _, err = run("--size 16 --limit 64 --threads 1 --quiet --lr 0.05 --augment crop:2,flip --global-batch 16 --epochs 2 --accumulate 4 --log log".split())
    check(rc == 0 and records("log")[-1]["weights"] == want, "--global-batch is that of all shards", err)
    train("--batch 4 --accumulate 4 --epochs 1 --save piece --overwrite".split())
    for more in [], ["--accumulate", "4"]:
        kinds = train("--resume piece --save none --batch 4 --epochs 2".split() + more)
        check(weights(kinds) == want and kinds["start"][0]["shards"] == 4, more, weights(kinds), want)
    rc, _, err = run("--accumulate 0".split())
    check(rc == 2 and "--accumulate: expected a whole number from 1" in err[-1], err)
    rc, _, err = run("--samples 64 --size 8 --threads 1 --steps 9 --batch 4 --balance auto".split())
    check(rc == 0 and any("--balance auto has nothing to divide: there is 1 shard on 1 rank" in line for line in err), err)


def other_optimizers_have_the_same_bits_on_any_ranks():
    """With whole, sliced and shared updates, other buckets and comms, and from a checkpoint."""
    for name in "lars", "lamb", "rmsprop":
        args = f"--optimizer {name} --lr 0.01 --weight-decay 0.01 --no-decay bias --shards 6 --batch 4 --epochs 2 --eval-freq 0".split()
        want = weights(train(args + "--save apart --save-every 1epoch --overwrite".split()))
        kinds = [(2, []), (3, ["--bucket", "0"]), (2, "--optimizer-state replicated".split()), (3, "--comm mpi --save shared --overwrite".split())]
        for ranks, more in kinds if MPIRUN else []:
            got = train(args + more, ranks)
            check(weights(got) == want, name, ranks, "ranks", more, weights(got), "not", want)
            check(got["start"][0]["update"] == ("replicated" if "replicated" in more else "sharded"), got["start"])
        for folder, ranks in [("apart", 0), ("shared", 2)] if MPIRUN else [("apart", 0)]:
            for file in generations(folder)[1:]:
                os.unlink(path(file))
            got = train(f"--resume {folder} --save none --batch 4 --lr 0.01".split(), ranks)
            check(weights(got) == want and got["start"][0]["resumed_steps"] == 3, name, folder, weights(got), "not", want)
        start, said = started(SYNTH + ["--batch", "16", "--optimizer", name])
        rate = {"lars": "1", "lamb": "0.001", "rmsprop": "0.01"}[name]
        check(start["options"]["lr"] == rate and f"lr {rate} (for {name})" in said, said)
        check(start["options"]["eps"] == ("1e-06" if name == "lamb" else "1e-08"), start["options"]["eps"])
    rc, _, err = run("--resume apart --optimizer lars --save none --epochs 3 --threads 1".split())
    check(rc != 0 and any("lars" in line and "rmsprop" in line for line in err), rc, err)


def losses_samples_and_averages_have_the_same_bits_on_any_ranks():
    """Also resumed within the run, on another number of ranks; and each of them has an effect."""
    with open(path("three"), "w") as f:
        f.write("3\n" * 10)
    base = "--model mlp --shards 6 --batch 4 --epochs 3 --momentum 0.9".split()
    plain = train(base)
    seen = {weights(plain)}
    for more in ("--loss bce --label-smoothing 0.1 --mixup 0.2 --cutmix 1", "--class-weights balanced --label-smoothing 0.1 --sample balanced",
                 "--class-weights three --mixup 0.2", "--sample balanced --augment crop:2,flip", "--model resnet20 --swa 2 --tta flip",
                 "--model resnet20 --lookahead 2,0.8,2"):
        args = base + more.split()
        kinds = train(args + "--save apart --overwrite --keep 9".split())
        check(weights(kinds) not in seen, more, "has no effect")
        seen.add(weights(kinds))
        if MPIRUN:
            got = train(args, 3)
            check(weights(got) == weights(kinds) and got["eval"] == kinds["eval"], more, got["eval"][-1], "not", kinds["eval"][-1])
        os.unlink(path(generations("apart")[-1]))
        got = train("--resume apart --save none --batch 4".split(), 2 if MPIRUN else 0)
        check(weights(got) == weights(kinds) and got["start"][0]["resumed_steps"] > 0, more, weights(got), "not", weights(kinds))
        check([e["averages"] for e in kinds["eval"] if "averages" in e] == ([0, 1, 2] if "swa" in more else [2, 3, 5] if "look" in more else []), kinds["eval"])
    with open(path("uneven"), "w") as f:
        f.write(" ".join(str(1 + k * k) for k in range(10)))
    flat = "--model mlp --epochs 3 --augment none --eval-freq 0 --class-weights uneven".split()
    halves = [train(flat + more.split()) for more in ("--shards 6 --batch 4", "--shards 1 --batch 24")]
    for a, b in zip(*[kinds["epoch"] for kinds in halves]):  # the mean is that of all images, however they are divided
        check(abs(a["train_loss"] - b["train_loss"]) < 1e-5 * a["train_loss"], a["train_loss"], b["train_loss"])
    got = train(base + "--class-weights three".split())  # the mean over all shards has no factor
    for kind, key in ("epoch", "train_loss"), ("eval", "loss"):
        check(len(got[kind]) == 3, got[kind])
        for a, b in zip(plain[kind], got[kind]):
            check(abs(a[key] - b[key]) < 1e-4 * a[key], kind, a[key], b[key])


def weights_of_classes_are_read_and_refused_by_name():
    draw("rare", 4)
    base = "--data folder --data-dir rare --val-split 0.25 --size 16 --eval-size 16 --model mlp --threads 1 --epochs 1 --class-weights w".split()
    for text, said in [("1 2", "expected 3 numbers, one a class, or a JSON object by class name; got 2"), ("1 2 3 4", "got 4"),
                       ("1 x 3", "got 1 and then other text"), ("1 0 3", "the weight of class 1 is 0, expected a number above 0"),
                       ('{"ant": 1, "bee": 2}', "expected a number for class 2, 'cow'"), ('{"ant": 1', "line 1: "),
                       ('{"ant": 1, "bee": 2, "cow": 3, "dog": 4}', "expected the names of 3 classes, got 4"), (None, "No such file")]:
        if text:
            with open(path("w"), "w") as f:
                f.write(text)
        else:
            os.unlink(path("w"))
        rc, _, err = run(base)
        check(rc == 1 and len(err) >= 1 and "--class-weights w" in err[-1] and said in err[-1], text, rc, err)
    hashes = []
    for text in "1, 2.5 4", '{"bee": 2.5, "cow": 4, "ant": 1}':
        with open(path("w"), "w") as f:
            f.write(text)
        rc, _, err = run(base + "--log log".split())
        check(rc == 0, err)
        hashes.append(records("log")[-1]["weights"])
    check(hashes[0] == hashes[1], "by number and by name")
    for bad, said in [("--loss bce --class-weights balanced", "--class-weights balanced is for --loss ce, not bce"),
                      ("--loss bce --device cuda", "--loss bce is for --device cpu or ref"),
                      ("--class-weights balanced --device cuda", "--class-weights balanced is for --device cpu or ref"),
                      ("--sample balanced --shuffle off", "omit --shuffle off"), ("--sample balanced --repeat-augment 3", "omit --repeat-augment"),
                      ("--tta flip --device cuda", "--tta flip is for --device cpu or ref"), ("--tta flip --split cpu:0,cpu:1", "--tta flip does not"),
                      ("--swa 2 --ema 0.9", "both average"), ("--swa 11", "--swa 11: expected an epoch of this run, 1 to 10"), ("--swa 0", "--swa: expected")]:
        rc, _, err = run(bad.split())
        check(rc == 2 and said in err[-1], bad, rc, err)


def lookahead_continues_from_the_average():
    """With a decay of almost 1 the weights stay where they were after the first update; --ema only averages."""
    args = "--model mlp --batch 8 --epochs 2 --momentum 0 --save slow --overwrite".split()
    values = lambda: read_safetensors("slow/last.safetensors")[1]
    kept = {}
    for option in "ema 0.9999999:every=1", "lookahead 1,0.9999999", "lookahead 1,1e-9", "lookahead 2,1e-9,1", "seed 0":
        train(args + ["--" + option.split()[0], option.split()[1]])
        kept[option] = values()
    check(kept["lookahead 1,1e-9"] == kept["seed 0"] != kept["ema 0.9999999:every=1"], "a decay of 0 changes weights")
    for option, stays in ("ema 0.9999999:every=1", False), ("lookahead 1,0.9999999", True):
        losses = [r["train_loss"] for r in train(args + ["--augment", "none", "--epochs", "3", "--" + option.split()[0], option.split()[1]])["epoch"]]
        check((abs(losses[1] - losses[2]) < 1e-5) == stays, option, losses)
    for bad, said in [("0,0.5", "expected none or N,DECAY[,POWER]"), ("5,1", "expected none or N"), ("5,0.5,", "expected none or N"),
                      ("5,0.5 --ema 0.9", "--lookahead 5,0.5 and --ema both average"), ("5,0.5 --swa 2", "and --swa both"),
                      ("5,0.5 --device cuda", "is for --device cpu or ref")]:
        rc, _, err = run(["--lookahead", *bad.split()])
        check(rc == 2 and said in err[-1], bad, err)


def npy(name, kind, shape, values):
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    with open(path(name), "wb") as f:
        f.write(b"\x93NUMPY\1\0" + (len(head) + 1).to_bytes(2, "little") + head.encode() + b"\n" + bytes(values))


def the_first_filters_whiten_patches():
    """W M W^T is diagonal, of eigenvalue / (eigenvalue + 5e-4), where M is the mean of x x^T over all patches x."""
    n, side = 12, 32
    os.makedirs(path("dots"), exist_ok=True)
    images = [[(37 * i * i + 11 * y * (x + c) + 60 * c + x * x) % (40 + 4 * i) + 5 * y for y in range(side) for x in range(side) for c in range(3)]
              for i in range(n)]
    for split in "train", "test":
        npy(f"dots/{split}_images.npy", "u1", (n, side, side, 3), [v for image in images for v in image])
        npy(f"dots/{split}_labels.npy", "u1", (n,), [i % 2 for i in range(n)])
    base = "--data npy --data-dir dots --model airbench94 --batch 4 --threads 1 --steps 1 --lr 0 --mean 0.4,0.5,0.3 --std 0.2,0.25,0.3".split()
    rc, _, err = run(base + "--whiten --save white --overwrite".split())
    check(rc == 0, err)
    header, data = read_safetensors("white/last.safetensors")
    first, end = header["0.weight"]["data_offsets"]
    w = array.array("f", data[first:end])
    w = [w[12 * k:12 * k + 12] for k in range(24)]
    mean, std, moment, patches = (0.4, 0.5, 0.3), (0.2, 0.25, 0.3), [[0.0] * 12 for _ in range(12)], 0
    for image in images:
        for y in range(0, side - 1):
            for x in range(0, side - 1):
                p = [(image[((y + r) * side + x + s) * 3 + c] / 255 - mean[c]) / std[c] for c in range(3) for r in range(2) for s in range(2)]
                patches += 1
                for i, a in enumerate(p):
                    row = moment[i]
                    for j in range(12):
                        row[j] += a * p[j]
    last = float("inf")
    for i in range(12):
        mw = [sum(m * v for m, v in zip(row, w[i])) / patches for row in moment]
        value = 1 / sum(v * v for v in w[i]) - 5e-4
        check(value <= last * (1 + 1e-5) and [-v for v in w[i]] == list(w[12 + i]), i, value, last)
        last = value
        for j in range(12):
            got = sum(a * b for a, b in zip(w[j], mw))
            check(abs(got - (i == j) * value / (value + 5e-4)) < 1e-3, i, j, got)
    for bad, said in [("--whiten --model resnet20", "--whiten: --model resnet20 has no convolution"), ("--whiten --init white", "but white has weights"),
                      ("--whiten --grey --mean 0.5 --std 0.5", "--whiten is for images of bytes")]:
        rc, _, err = run(base + bad.split())
        check(rc != 0 and said in err[-1], bad, err)


def airbench94_trains_as_in_pytorch():
    """The network, its whitening, SGD in two groups and Lookahead beside bench/peers/torch_recipes.py and torch.optim."""
    python = python_with("torch, torchvision, safetensors.torch")
    the_first_filters_whiten_patches()
    base = "--recipe cifar10-quick --data npy --data-dir dots --batch 4 --shuffle off --augment none --threads 1 --eval-freq 0".split()
    base += "--mean 0.4,0.5,0.3 --std 0.2,0.25,0.3 --epochs 4 --warmup-epochs 1 --print-freq 1 --lookahead 2,0.7,1 --overwrite".split()
    for more in "--lr 0 --schedule constant --steps 1 --lookahead none --save begin", "--lr 0.01 --schedule poly:1,0.001 --save end --log log":
        rc, _, err = run(base + more.split())
        check(rc == 0, err)
    script = """
import json, sys
import numpy as np, torch
import torch.nn.functional as F
from safetensors.torch import load_file
begin, end, rates, peers = load_file(sys.argv[1]), load_file(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4]
sys.argv, sys.path = ["", "airbench94", "--data-dir", "."], [peers, *sys.path]
import torch_recipes as peer
net = torch.nn.Sequential(peer.Conv(3, 24, 2, bias=True), torch.nn.GELU(), peer.Group(24, 64), peer.Group(64, 256), peer.Group(256, 256),
                          torch.nn.MaxPool2d(3), torch.nn.Flatten(), torch.nn.Linear(256, 10, bias=False), peer.Mul())
mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in ((0.4, 0.5, 0.3), (0.2, 0.25, 0.3)))
images = (torch.from_numpy(np.load("dots/train_images.npy")).permute(0, 3, 1, 2).float() / 255 - mean) / std
labels = torch.from_numpy(np.load("dots/train_labels.npy").astype(np.int64))
peer.whiten(net[0], images)
assert torch.allclose(net[0].weight.abs(), begin["0.weight"].abs(), rtol=1e-2, atol=1e-2), "whitened otherwise"
for i in range(2, 5):
    for j, conv in enumerate((net[i].conv1, net[i].conv2)):
        ours = begin[f"{i}.conv{j + 1}.weight"]
        known = min(ours.shape[:2])
        assert torch.equal(conv.weight[:known], ours[:known]), "no identity"
net[7] = torch.nn.Linear(256, begin["7.weight"].shape[0], bias=False)
net.load_state_dict({k: v for k, v in begin.items()})
for part in net.modules():
    if isinstance(part, torch.nn.BatchNorm2d):
        part.reset_running_stats()
net.train()
named = [(n, p) for n, p in net.named_parameters() if p.requires_grad]
sgd = torch.optim.SGD([{"params": [p for n, p in named if "norm" in n], "weight_decay": 0}, {"params": [p for n, p in named if "norm" not in n]}],
                      lr=1, momentum=0.85, nesterov=True, weight_decay=0.00133)
slow = None
for step, rate in enumerate(rates):
    sgd.param_groups[0]["lr"], sgd.param_groups[1]["lr"] = 64 * rate, rate
    at = step % 3 * 4
    sgd.zero_grad()
    F.cross_entropy(net(images[at:at + 4]), labels[at:at + 4], label_smoothing=0.2).backward()
    sgd.step()
    state = {k: v for k, v in net.state_dict().items() if v.is_floating_point()}
    if step % 2 == 0:
        slow = slow or {k: v.clone() for k, v in state.items()}
        for k, v in state.items():
            slow[k].lerp_(v, 1 - 0.7 * (step + 1) / len(rates))
            v.copy_(slow[k])
for k, v in slow.items():
    moved, off = (v - begin[k]).norm(), (v - end[k]).norm()
    fixed = k == "0.weight" or "norm" in k and k.endswith("weight")
    assert (moved == off == 0) if fixed else (moved > 1e-3 and off < 5e-3 * moved), (k, moved, off)
"""
    p = subprocess.run([python, "-c", script, path("begin/last.safetensors"), path("end/last.safetensors"), json.dumps(rates()),
                        os.path.join(os.path.dirname(__file__), "../../bench/peers")], capture_output=True, text=True, cwd=HERE)
    check(p.returncode == 0 and len(rates()) == 12, rates(), p.stderr[-1000:])


def a_mirrored_evaluation_is_the_mean_of_two():
    """--predict-logits of --tta flip and shift, beside those of sets with all pictures mirrored and shifted."""
    for name, order, by in ("there", range(64), 0), ("mirrored", range(63, -1, -1), 0), ("left", range(64), 1), ("right", range(64), -1):
        move = lambda v: 63 - abs(63 - abs(v + by))
        shutil.rmtree(path(name), ignore_errors=True)
        for k in range(2):
            os.makedirs(path(f"{name}/{k}"))
            for i in range(3):
                with open(path(f"{name}/{k}/{i}.ppm"), "wb") as f:
                    f.write(b"P6 64 64 255\n" + bytes((x * x * (3 * k + i + 1) + 5 * y + 90 * c) % 256 for y in map(move, range(64)) for x in map(move, order) for c in range(3)))
    base = "--data folder --size 64 --eval-size 64 --model resnet20 --threads 1 --batch 2".split()
    rc, _, err = run(base + "--data-dir there --epochs 1 --save flips --overwrite --lr 0.01".split())
    check(rc == 0, err)
    logits = []
    flip, shift = ["--tta", "flip"], ["--tta", "shift"]
    for name, more in ("there", []), ("mirrored", []), ("there", flip), ("left", flip), ("right", flip), ("there", shift):
        rc, _, err = run("--evaluate --resume flips --threads 1 --predict-logits l.npy --data-dir".split() + [name] + more)
        check(rc == 0, err)
        with open(path("l.npy"), "rb") as f:
            logits.append(array.array("f", f.read()[-6 * 2 * 4:]))
    check(logits[0] != logits[1], "the pictures are symmetric")
    for a, b, mean, left, right, all_six in zip(*logits):
        check(abs((a + b) / 2 - mean) < 1e-5, a, b, mean)
        check(abs(mean / 2 + left / 4 + right / 4 - all_six) < 1e-5 and abs(mean - all_six) > 1e-4, mean, left, right, all_six)


def a_range_test_proposes_a_rate():
    draw("easy", 40)
    args = "--data folder --data-dir easy --val-split 0.25 --model mlp --size 8 --eval-size 8 --batch 8 --shards 2 --threads 1".split()
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, out, err = run("tune lr rate.json".split() + args, ranks)
        check(rc == 0 and "written: rate.json.svg" in out, rc, out, err)
        losses = [tuple(map(float, m)) for m in re.findall(r"^  (\d\S+) +([\d.]+) #+$", out, re.M)]
        with open(path("rate.json")) as f:
            found = json.load(f)
        check(set(found) == {"note", "lr"} and losses[0][0] == 1e-6 and 1e-5 < found["lr"] < losses[-1][0], found, losses)
        check(f"--lr {found['lr']:.2g} (proposed)" in out, out)
        check(found["lr"] < 10.1 * float(re.search(r"rate at the minimum: --lr (\S+)", out)[1]), "beyond the minimum", out)
        if ranks:
            check(out == alone, "other losses on two ranks")
        alone = out
    with open(path("rate.json.svg")) as f:
        check("smoothed loss by learning rate" in f.read(), "no title")
    best = []
    for more in "--config rate.json", "--lr 1e-6":
        rc, _, err = run(args + "--epochs 2 --log log".split() + more.split())
        check(rc == 0, err)
        best.append([r for r in records("log") if r["record"] == "epoch"][-1]["train_loss"])
    check(best[0] < best[1], best)
    with open(path("precious"), "w") as f:
        f.write("mine")
    for bad, code, said in [("tune lr", 2, "hvtrain tune lr FILE"), ("tune lr x --lr 1", 2, "omit --lr and --schedule"), ("tune lr precious", 1, "tune lr precious: ")]:
        rc, _, err = run(bad.split() + args)
        check(rc == code and said in err[-1], bad, rc, err)


FLAT = "--model mlp --samples 64 --size 8 --batch 16 --threads 1 --print-freq 1 --log log".split()


RECIPES = ["cifar10-he", "cifar10-quick", "finetune", "imagenet-resnet50-a1", "imagenet-resnet50-a3", "large-batch-lamb",
           "torchvision-v1", "torchvision-v2"]


def a_recipe_sets_what_nothing_else_does():
    rc, out, err = run("--recipe list".split())
    names = re.findall(r"^(\S+)$", out, re.M)
    check(rc == 0 and not err and names == RECIPES, rc, out, err)
    check(len(re.findall(r"^  source     \S", out, re.M)) == len(re.findall(r"^  here       \S", out, re.M)) == len(names), out)
    check("--schedule multistep:82,123" in out and "--mean 0.4914,0.4822,0.4465" in out, out)
    base = "--recipe cifar10-he --data synth --samples 64 --size 16 --batch 16 --threads 1 --steps 1 --log log --eval-freq 0".split()
    start, said = started(base + "--save made --overwrite".split())
    o, origin = start["options"], start["options_from"]
    check((o["weight-decay"], o["schedule"], o["batch"], o["data"]) == ("0.0001", "multistep:82,123", "16", "synth"), o)
    check((origin["weight-decay"], origin["batch"], origin["data"]) == ("recipe", "flag", "flag") and "  recipe     " in said, origin)
    for ranks in 1, 2:  # an update has the published number of images
        start, _ = started("--recipe cifar10-he --data synth --samples 256 --size 16 --threads 1 --steps 1 --eval-freq 0 --log log".split() +
                           ["--spawn", str(ranks)])
        check(start["batch"] * start["shards"] == 128, ranks, start["batch"], start["shards"])
    with open(path("over.json"), "w") as f:
        f.write('{"weight-decay": 0.5}')
    start, _ = started(base + "--config over.json --momentum 0.5".split())
    check((start["options"]["weight-decay"], start["options"]["momentum"]) == ("0.5", "0.5"), start["options"])
    check((start["options_from"]["weight-decay"], start["options_from"]["momentum"]) == ("config", "flag"), start["options_from"])
    started(base + "--optimizer adamw".split())  # the recipe's momentum is not asked for
    started("--resume made --save none --steps 2 --threads 1 --log log".split())
    check([r for r in records("log") if r["record"] == "start"][-1]["options"]["weight-decay"] == "0.0001", "the checkpoint forgot it")
    rc, _, err = run("--model resnet18 --size 32 --samples 8 --batch 4 --steps 1 --eval-freq 0 --threads 1 --save pretrained".split())
    check(rc == 0, err)
    for name in names:
        rc, _, err = run(["--recipe", name, "--evaluate", "--data-dir", "."])
        check(rc == 2 and "--evaluate needs weights" in err[-1], name, err)
        small = "--data synth --samples 300 --val-split 0.02 --threads 1 --steps 1 --eval-freq 0 --log log".split()
        more = ["--init", "pretrained"] if name == "finetune" else ["--shards", "2", "--batch", "2"]
        start, said = started(["--recipe", name, *small, *more])
        check(all(v != "synth" or k == "data" for k, v in start["options"].items()) and "  recipe     " in said, name, said)
    for args, part in [("finetune", "--init FILE"), ("torchvision-v1 --steps 1", "needs --data folder"), ("torchvision-v1 --quiet", "--data synth, for a trial")]:
        rc, _, err = run(["--recipe", *args.split()])
        check(rc == 2 and len(err) == 1 and part in err[0], args, err)
    rc, _, err = run("--recipe cifar10".split())
    check(rc == 2 and len(err) == 1 and f"expected one of list {' '.join(RECIPES)}, got 'cifar10'" in err[0], err)


def an_error_names_the_recipe_s_options():
    rc, _, err = run("--recipe cifar10-quick --data synth --epochs 2".split())
    check(rc == 2 and err[-1].endswith("(--schedule, --warmup-epochs: from --recipe cifar10-quick)"), rc, err)
    rc, _, err = run("--recipe cifar10-quick --data synth --momentum nan".split())
    check(rc == 2 and "recipe" not in err[-1], rc, err)


def of_equal_hits_the_lower_loss_is_best():
    equal = 0
    for lr in "1e-4", "1e-5":
        args = FLAT + "--epochs 4 --save best --overwrite --keep 9 --lr".split() + [lr]
        rc, _, err = run(args)
        tests = [r for r in records("log") if r["record"] == "eval"]
        want = max(range(4), key=lambda i: (tests[i]["top1"], -tests[i]["loss"]))
        about = metadata(read_safetensors("best/best.safetensors")[0])
        check(rc == 0 and about["epoch"] == want + 1, about["epoch"], "not", want + 1, [(t["top1"], t["loss"]) for t in tests])
        check(abs(about["loss"] - tests[want]["loss"]) < 1e-9, about["loss"], tests[want])
        equal += tests[[t["top1"] for t in tests].index(tests[want]["top1"])]["loss"] > tests[want]["loss"]
    check(equal, "no best one has an equal before it")


def a_run_ends_when_evaluations_get_no_better():
    args = FLAT + "--lr 0 --epochs 9 --early-stop 2 --save stale --overwrite".split()
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(args + ["--batch", "8", "--shards", "2"], ranks)
        tests = [r for r in records("log") if r["record"] == "eval"]
        check(rc == 0 and len(tests) == 3 and records("log")[-1]["status"] == "done", len(tests), err)
        check(any("early stop: the best test was 2 evaluations ago, with " in line for line in err), err)
    rc, _, err = run("--resume stale --save none --threads 1 --log more".split())
    check(rc == 0 and not [r for r in records("more") if r["record"] == "step"], "goes on", err)
    check(any("--early-stop 2 has ended this run: to continue, give a larger number, or none" in line for line in err), err)
    rc, _, err = run("--resume stale --save none --threads 1 --log more --early-stop 4".split())
    check(rc == 0 and len([r for r in records("more") if r["record"] == "epoch"]) == 2, err)
    for bad, said in [("--early-stop 0", "--early-stop: expected a whole number from 1"), ("--early-stop 3 --eval-freq 0", "needs evaluations")]:
        rc, _, err = run(bad.split())
        check(rc == 2 and said in err[-1], bad, err)


def a_plateau_lowers_the_rate():
    """As ReduceLROnPlateau(patience=1, factor=0.5) does where the loss stays: after the third and the fifth epoch."""
    args = FLAT + "--lr 1e-30 --schedule plateau:1,0.5".split()
    rc, _, err = run(args + "--epochs 6 --save flat --overwrite".split())
    want = [1e-30 * f for f in (1, 1, 1, .5, .5, .25) for _ in range(4)]
    check(rc == 0 and rates() == want, rates(), err)
    for name in generations("flat")[1:]:
        os.unlink(path(name))
    os.unlink(path("log"))
    rc, _, err = run(args + "--epochs 6 --resume flat --save none".split())
    check(rc == 0 and rates() == want[4 * (6 - len(rates()) // 4):] and len(rates()) >= 8, rates(), err)
    for bad, said in [("plateau:x", "expected plateau:PATIENCE,FACTOR"), ("plateau:3,1", "expected plateau:PATIENCE,FACTOR"),
                      ("plateau --eval-freq 0", "needs evaluations")]:
        rc, _, err = run(["--schedule", *bad.split()])
        check(rc == 2 and said in err[-1], bad, err)


TESTS = [pictures_have_a_model_and_units_of_their_own, the_batch_fits_the_set, first_mistakes_get_a_helpful_line, the_rate_fits_the_optimizer,
         a_schedule_advances_with_updates_unless_told_otherwise, accumulated_batches_are_shards,
         other_optimizers_have_the_same_bits_on_any_ranks, losses_samples_and_averages_have_the_same_bits_on_any_ranks,
         weights_of_classes_are_read_and_refused_by_name, a_range_test_proposes_a_rate, lookahead_continues_from_the_average, the_first_filters_whiten_patches, airbench94_trains_as_in_pytorch, a_mirrored_evaluation_is_the_mean_of_two, a_recipe_sets_what_nothing_else_does,
         optimizers_without_a_trust_ratio_say_so, an_error_names_the_recipe_s_options,
         of_equal_hits_the_lower_loss_is_best, a_run_ends_when_evaluations_get_no_better, a_plateau_lowers_the_rate]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
