"""Usage: test_masks.py HVTRAIN MPIRUN [TRUTH ...]. Segmentation: labels of pixels, in folders and arrays, against PyTorch
and NumPy, on one rank and on two; what is refused."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, MPIRUN, path, python_with, records, run  # noqa: E402
from truths import Skip, check, run_all  # noqa: E402

RUN = "--model net.pt2 --batch 6 --threads 1 --quiet --lr 0.1 --mean 0 --std 1 --log log".split()
FOLDER = "--data folder --data-dir set --size 24 --eval-size 0 --epochs 1".split()

# Pictures of 24 to 30 pixels with a red or a green square, whose classes are 1 and 2; more and more is ignored.
MAKE = """
import os, numpy as np, torch, torch.nn as nn
from PIL import Image
rng = np.random.default_rng(1)
def draw(h, w, ignored):
    mask, image = np.zeros((h, w), np.uint8), rng.integers(0, 80, (h, w, 3)).astype(np.uint8)
    for k in (1, 2):
        y, x = rng.integers(0, h - 8), rng.integers(0, w - 8)
        mask[y:y + 8, x:x + 8] = k
        image[y:y + 8, x:x + 8, k - 1] = 220
    mask[:ignored] = 255
    return image, mask
for split, count in (("train", 26), ("val", 7)):
    os.makedirs(f"set/{split}/images"), os.makedirs(f"set/{split}/masks")
    for i in range(count):
        image, mask = draw(*rng.integers(24, 31, 2), i % 16)
        mask = Image.fromarray(mask, "P" if i % 2 else "L")
        if i % 2:
            mask.putpalette(list(range(255, -1, -1)) * 3)
        mask.save(f"set/{split}/masks/{i:03}.png"), Image.fromarray(image).save(f"set/{split}/images/{i:03}.png")
os.makedirs("arrays")
for split, count in (("train", 60), ("test", 9)):
    pairs = [draw(24, 24, i % 20) for i in range(count)]
    np.save(f"arrays/{split}_images.npy", np.stack([a for a, _ in pairs]))
    np.save(f"arrays/{split}_labels.npy", np.stack([b for _, b in pairs]))
make = lambda: (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1), nn.Tanh(), nn.Conv2d(8, 3, 1))
torch.manual_seed(0)
net = nn.Sequential(*make())
torch.export.save(torch.export.export(net, (torch.zeros(2, 3, 24, 24),)), "net.pt2")
x = {s: torch.from_numpy(np.load(f"arrays/{s}_images.npy")).permute(0, 3, 1, 2).double() / 255 for s in ("train", "test")}
y = {s: torch.from_numpy(np.load(f"arrays/{s}_labels.npy")).long() for s in ("train", "test")}
net.double()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loss_of = nn.CrossEntropyLoss(ignore_index=255, label_smoothing=0.1)
order = torch.randperm(60, generator=torch.Generator().manual_seed(7))
for step in range(10):
    at = order[6 * step:6 * step + 6]
    loss = loss_of(net(x["train"][at]), y["train"][at])
    optimizer.zero_grad(), loss.backward(), optimizer.step()
    print(loss.item())
z, t = net(x["test"]), y["test"].numpy()
p, seen = z.argmax(1).numpy(), t != 255
iou = [((p == k) & (t == k)).sum() / (((p == k) | (t == k)) & seen).sum() for k in range(3)]
print(nn.functional.cross_entropy(z, y["test"], ignore_index=255).item(), (p == t).sum() / seen.sum(), np.mean(iou))
print(seen.sum(), *((seen & (t == k)).sum() for k in range(3)))
os.makedirs("pictures")
for split in ("train", "test"):
    a = np.load(f"arrays/{split}_images.npy")
    np.save(f"pictures/{split}_images.npy", a)
    np.save(f"pictures/{split}_labels.npy", (a.transpose(0, 3, 1, 2) / 255).astype(np.float32))
for loss_of, mean, std in (nn.functional.mse_loss, 0, 1), (nn.functional.l1_loss, 0, 1), (nn.functional.l1_loss, 0.4, 0.5):
    torch.manual_seed(0)
    net = nn.Sequential(*make()).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    y = {s: (x[s] - mean) / std for s in x}
    for step in range(10):
        at = order[6 * step:6 * step + 6]
        loss = loss_of(net(y["train"][at]), y["train"][at])
        optimizer.zero_grad(), loss.backward(), optimizer.step()
        print(loss.item())
    print(loss_of(net(y["test"]), y["test"]).item(), (net(y["test"]) - y["test"]).abs().mean().item())
np.save("outputs.npy", net(y["test"]).detach().numpy())
"""


# What the predicted masks say about the test images, against what the run counted.
COMPARE = """
import json, glob, numpy as np
from PIL import Image
t = np.load("arrays/test_labels.npy")
p = np.stack([np.array(Image.open(f)) for f in sorted(glob.glob("predicted/*.png"))])
z = np.load("logits.npy")
assert z.shape == (9, 3, 24, 24) and (z.argmax(1) == p).all()
seen = t != 255
r = [json.loads(line) for line in open("log")]
r = [x for x in r if x["record"] == "eval"][-1]
for k in range(3):
    counts = [(seen & (t == k)).sum(), (seen & (t == k) & (p == k)).sum(), (seen & (p == k)).sum()]
    assert counts == [r["class_" + c][k] for c in ("images", "hits", "predicted")], (k, counts, r)
print(sorted(glob.glob("predicted/*"))[1])
"""


def make_sets():
    python = python_with("torch, PIL, numpy")
    if not os.path.exists(path("printed")):
        p = subprocess.run([python, "-c", MAKE], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        check(p.returncode == 0, p.stderr[-500:])
        with open(path("printed"), "w") as f:
            f.write(p.stdout)
    with open(path("printed")) as f:
        return [[float(x) for x in line.split()] for line in f]


def train(args, ranks=0):
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", " ".join(args), "on", ranks, "ranks:", err[-3:])
    return records("log") if rc == 0 else []


def losses_and_counts_are_those_of_pytorch_and_numpy():
    printed = make_sets()
    all_ = train("--data npy --data-dir arrays --epochs 1 --seed 7 --print-freq 1 --label-smoothing 0.1 --per-class".split())
    got = [r["loss"] for r in all_ if r["record"] == "step"]
    check(len(got) == 10 and all(abs(g / w[0] - 1) < 2e-5 for g, w in zip(got, printed)), got, "not", printed[:10])
    last, (loss, accuracy, iou), counts = [r for r in all_ if r["record"] == "eval"][-1], printed[10], printed[11]
    check(abs(last["loss"] / loss - 1) < 1e-4 and abs(last["top1"] / 100 - accuracy) < 1e-3 and
          abs(last["miou"] / 100 - iou) < 1e-3, last, "not", loss, accuracy, iou)
    check([last["count"]] + last["class_images"] == counts, last, "not", counts)
    check(sum(last["class_predicted"]) == counts[0] and last["top5"] is None, last)
    unions = [a + b - c for a, b, c in zip(last["class_images"], last["class_predicted"], last["class_hits"])]
    check(abs(sum(h / u for h, u in zip(last["class_hits"], unions)) / 3 - last["miou"] / 100) < 1e-9, last)


IMAGES = "--epochs 1 --seed 7 --print-freq 1 --batch 3 --shards 2".split()


def losses_are(args, printed):
    """Of ten updates and an evaluation, on one rank and on two."""
    want = None
    for ranks in (0, 2)[:2 if MPIRUN else 1]:
        all_ = train(args, ranks)
        got = [r["loss"] for r in all_ if r["record"] == "step"]
        check(len(got) == 10 and all(abs(g / w[0] - 1) < 2e-5 for g, w in zip(got, printed)), got, "not", printed[:10])
        last = [r for r in all_ if r["record"] == "eval"][-1]
        check(abs(last["loss"] / printed[10][0] - 1) < 1e-4 and abs(last["mae"] / printed[10][1] - 1) < 1e-4, last, printed[10])
        want = want or all_[-1]["weights"]
        check(all_[-1]["weights"] == want, "two ranks:", all_[-1]["weights"], "not", want)


def images_are_targets_of_squared_and_absolute_errors():
    printed = make_sets()[12:]
    for loss, lines in ("mse", printed), ("mae", printed[11:]):
        losses_are(IMAGES + f"--data npy --data-dir pictures --loss {loss}".split(), lines)


def images_are_their_own_targets_as_the_model_gets_them():
    printed = make_sets()[34:]
    args = IMAGES + "--data npy --data-dir arrays --target image --loss mae --mean 0.4 --std 0.5 --save run --overwrite".split()
    losses_are(args, printed)
    rc, _, err = run("--resume run --evaluate --threads 1 --predict-logits logits.npy --log log --quiet".split())
    check(rc == 0, err)
    compare = "import numpy as np; a, b = np.load('logits.npy'), np.load('outputs.npy'); assert a.shape == b.shape; " \
        "print(abs(a - b).max())"
    p = subprocess.run([python_with("numpy"), "-c", compare], cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 0 and float(p.stdout) < 1e-3, p.stdout, p.stderr)
    sixteen = train(args + "--amp bf16".split())
    got = [r["loss"] for r in sixteen if r["record"] == "step"]
    check(len(got) == 10 and all(abs(g / w[0] - 1) < 0.03 for g, w in zip(got, printed)), got, "not", printed[:10])
    for more, parts in [("--loss ce", ["--target image", "--loss mse or mae", "ce"]), ("--mixup 0.2", ["--loss mae has none"]),
                        ("--model mlp --classes 3", ["3 x 1 x 1", "an image as target of 24 x 24"])]:
        rc, _, err = run(RUN + args + more.split())
        check(rc and len(err) == 1 and all(p in err[0] for p in parts), more, err)


def drawn_images_are_their_own_targets_on_any_ranks():
    """Cropped, mirrored and with boxes erased, by workers or without; and pictures without labels, a part of them held out."""
    make_sets()
    for data, augment in ("synth --samples 60 --size 24", "crop:4,flip"), \
            ("folder --data-dir set/train/images --size 24 --eval-size 0 --val-split 0.3", "rrc:0.3-1,flip"):
        weights = set()
        for workers, ranks in [(0, 0), (2, 2)][:2 if MPIRUN else 1]:
            all_ = train(f"--data {data} --target image --loss mse --augment {augment} --erase 0.5 --epochs 2 --shards 2 --batch 5 "
                         f"--workers {workers}".split(), ranks)
            weights.add(all_[-1]["weights"])
            check([r["count"] for r in all_ if r["record"] == "eval"][-1] == (8 if "folder" in data else 12), all_)
        check(len(weights) == 1, weights)


def predicted_masks_and_logits_are_what_was_counted():
    make_sets()
    save = "--data npy --data-dir arrays --epochs 3 --save run --overwrite".split()
    train(save)
    shutil.rmtree(path("predicted"), ignore_errors=True)
    rc, _, err = run("--resume run/last.safetensors --evaluate --data npy --data-dir arrays --batch 2 --threads 1 --log log "
                     "--predict predicted --predict-logits logits.npy --quiet".split(), 2 if MPIRUN else 0)
    check(rc == 0, err[-3:])
    p = subprocess.run([python_with("torch, PIL, numpy"), "-c", COMPARE], cwd=HERE, stdout=subprocess.PIPE,
                       stderr=subprocess.PIPE, text=True)
    check(p.returncode == 0 and p.stdout.startswith("predicted/000001_"), p.stdout, p.stderr[-700:])


def neither_ranks_nor_workers_change_weights_and_counts():
    make_sets()
    for augment in ("rrc:0.3-1,flip", "crop:3,flip,color:0.2,0.2,0.2,0", "crop:3:reflect,flip"):
        want = None
        for args, ranks in [(["--workers", "0"], 0), (["--workers", "2"], 2)][:2 if MPIRUN else 1]:
            all_ = train(FOLDER + ["--shards", "2", "--batch", "5", "--augment", augment] + args, ranks)
            got = all_[-1]["weights"], [{k: r[k] for k in ("loss", "miou", "class_hits", "class_predicted")}
                                        for r in all_ if r["record"] == "eval"]
            want = want or got
            check(got == want, augment, args, ranks, "ranks:", got, "not", want)


# set/SPLIT as tar shards of up to nine samples, pictures before or behind their masks; without: a mask is left out;
# labelled: and has a label.
PACK = """
import glob, io, os, sys, tarfile
out, without, labelled = sys.argv[1:4]
os.makedirs(out, exist_ok=True)
for split in ("train", "val"):
    for i, picture in enumerate(sorted(glob.glob(f"set/{split}/images/*"))):
        with tarfile.open(f"{out}/{split}-{i // 9:03}.tar", "a") as t:
            members = [(picture, ".png"), (picture.replace("images", "masks"), ".mask.png")]
            for file, suffix in members if i % 2 else reversed(members):
                if suffix == ".png" or without not in file:
                    t.add(file, f"set.1/{i:03}{suffix}")
            if labelled:
                text = tarfile.TarInfo(f"set.1/{i:03}.cls")
                text.size = 1
                t.addfile(text, io.BytesIO(b"01"[i % 2:]))
"""


def masks_in_shards_are_those_of_the_folder():
    make_sets()
    python, want = python_with("torch, PIL, numpy"), train(FOLDER + "--augment rrc:0.3-1,flip".split())
    for out, without, labelled in ("shards", "no such", ""), ("gap", "train/masks/012", ""), ("labelled", "train/masks/012", "1"):
        p = subprocess.run([python, "-c", PACK, out, without, labelled], cwd=HERE, stderr=subprocess.PIPE, text=True)
        check(p.returncode == 0, p.stderr[-500:])
    tar = [{"folder": "tar", "set": "shards"}.get(a, a) for a in FOLDER]
    for ranks in (0, 2)[:2 if MPIRUN else 1]:
        got = train(tar + "--augment rrc:0.3-1,flip --shards 1".split() if not ranks else tar + "--shards 2 --batch 3".split(), ranks)
        check(ranks or got[-1]["weights"] == want[-1]["weights"], got[-1], "not", want[-1])
        check([r for r in got if r["record"] == "eval"][-1]["miou"] > 0, got)
    rc, _, err = run(RUN + [a if a != "shards" else "gap" for a in tar])
    check(rc and len(err) == 1 and all(p in err[0] for p in ["gap/train-001.tar", "012.png", "set.1/012.mask.png"]), err)
    rc, _, err = run(["--model", "mlp", "--data", "tar", "--data-dir", "labelled", "--size", "24", "--epochs", "1", "--quiet"])
    check(rc == 0, err)


# The pictures of `set` as TIFF files that are stored upside down, beside the same masks.
TURN = """
import glob, os, shutil
from PIL import Image
for picture in glob.glob("set/*/images/*"):
    to = picture.replace("set/", "turned/").replace(".png", ".tif")
    os.makedirs(os.path.dirname(to), exist_ok=True)
    Image.open(picture).rotate(180).save(to, tiffinfo={274: 3})
for split in "train", "val":
    shutil.copytree(f"set/{split}/masks", f"turned/{split}/masks")
"""


def masks_belong_to_pictures_as_pillow_opens_them():
    make_sets()
    p = subprocess.run([python_with("torch, PIL, numpy"), "-c", TURN], cwd=HERE, stderr=subprocess.PIPE, text=True)
    check(p.returncode == 0, p.stderr[-500:])
    rc, _, err = run(RUN + [a if a != "set" else "turned" for a in FOLDER])
    if any("libtiff" in line for line in err):
        raise Skip("no libtiff")
    check(rc == 0, err)
    check(records("log")[-1]["weights"] == train(FOLDER)[-1]["weights"], "other weights")


def masks_that_do_not_fit_are_refused_by_name():
    make_sets()
    shutil.rmtree(path("bad"), ignore_errors=True)
    shutil.copytree(path("set"), path("bad"))
    bad = [a if a != "set" else "bad" for a in FOLDER]
    mask = "bad/train/masks/003.png"
    os.rename(path(mask), path("kept.png"))
    for name, parts in [(None, ["there is no mask for bad/train/images/003.png"]),
                        ("set/train/images/003.png", ["colours", "expected a mask"]),
                        ("set/train/masks/005.png", ["pixels", "but its picture has"])]:
        if name:
            shutil.copy(path(name), path(mask))
        rc, _, err = run(RUN + bad)
        lines = [line for line in err if line.startswith("hvtrain: ") and "warning" not in line]
        check(rc and len(lines) == 1 and mask in lines[0] and all(p in lines[0] for p in parts), err)
    shutil.copy(path("kept.png"), path(mask))
    for args, parts in [(["--classes", "2"], ["masks/", "class 2 at row", "expected 0 to 1, or 255"]),
                        (["--mixup", "0.2"], ["masks", "mixup"]), (["--augment", "trivial"], ["masks", "policy"]),
                        (["--model", "resnet20", "--classes", "3"], ["3 x 1 x 1", "a mask of 24 x 24"])]:
        rc, _, err = run(RUN + bad + args)
        lines = [line for line in err if line.startswith("hvtrain: ") and "warning" not in line]
        check(rc and len(lines) == 1 and all(p in lines[0] for p in parts), args, err)


TESTS = [losses_and_counts_are_those_of_pytorch_and_numpy, images_are_targets_of_squared_and_absolute_errors,
         images_are_their_own_targets_as_the_model_gets_them, drawn_images_are_their_own_targets_on_any_ranks,
         predicted_masks_and_logits_are_what_was_counted,
         neither_ranks_nor_workers_change_weights_and_counts, masks_in_shards_are_those_of_the_folder,
         masks_belong_to_pictures_as_pillow_opens_them, masks_that_do_not_fit_are_refused_by_name]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
