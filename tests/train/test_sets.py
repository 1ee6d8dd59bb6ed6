"""Usage: test_sets.py HVTRAIN MPIRUN [TRUTH ...]. Data sets as a user has them in files: the same images give the same
weights whichever format holds them, on one rank and on two."""
import hashlib
import io
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, MPIRUN, change_metadata, metadata, path, read_safetensors, records, run, write_safetensors  # noqa: E402
from truths import Skip, check, run_all  # noqa: E402

RUN = "--batch 8 --shards 2 --epochs 1 --threads 1 --quiet --lr 0.05 --augment crop:4,flip --log log".split()
FILES = [f"data_batch_{k}.bin" for k in range(1, 6)] + ["test_batch.bin"]
PLANE = 1024


def images(count, seed):
    """(label, red, green, blue) of images that are told apart by more than their noise."""
    state = seed
    for i in range(count):
        label, planes = i * 7 % 10, []
        for channel in range(3):
            plane = bytearray()
            for pixel in range(PLANE):
                state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
                plane.append(((label * 20 + channel * 30 + pixel // 32) + (state >> 60)) % 256)
            planes.append(bytes(plane))
        yield label, *planes


TRAIN, TEST = list(images(80, 1)), list(images(20, 2))


def write_file(name, data):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as f:
        f.write(data)


def write_cifar(folder):
    for i, file in enumerate(FILES):
        part = TRAIN[16 * i:16 * i + 16] if i < 5 else TEST
        write_file(f"{folder}/{file}", b"".join(bytes([label]) + r + g + b for label, r, g, b in part))


def npy(descr, shape, data):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + data


def interleaved(r, g, b):
    return bytes(v for pixel in zip(r, g, b) for v in pixel)


def write_arrays(folder, planes, floats=False):
    for split, part in [("train", TRAIN), ("test", TEST)]:
        data = b"".join(r + g + b if planes else interleaved(r, g, b) for _, r, g, b in part)
        if floats:
            data = struct.pack(f"<{len(data)}f", *(v / 255 for v in data))
        shape = (len(part), 3, 32, 32) if planes else (len(part), 32, 32, 3)
        write_file(f"{folder}/{split}_images.npy", npy("<f4" if floats else "|u1", shape, data))
        write_file(f"{folder}/{split}_labels.npy",
                   npy("<i8", (len(part),), struct.pack(f"<{len(part)}q", *(label for label, *_ in part))))


def png(r, g, b):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = interleaved(r, g, b)
    rows = b"".join(b"\0" + rows[y * 96:y * 96 + 96] for y in range(32))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 32, 32, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def ppm(r, g, b):
    return b"P6\n32 32\n255\n" + interleaved(r, g, b)


def raw(r, g, b):
    return npy("|u1", (32, 32, 3), interleaved(r, g, b))


def write_tars(folder, kind, image, shard=30, form=tarfile.PAX_FORMAT, names="{:06}", labels_first=False):
    """Shards as another program writes them."""
    os.makedirs(path(folder), exist_ok=True)
    for split, part in [("train", TRAIN), ("val", TEST)]:
        for first in range(0, len(part), shard):
            with tarfile.open(path(f"{folder}/{split}-{first:06}.tar"), "w", format=form) as t:
                for i, (label, r, g, b) in enumerate(part[first:first + shard]):
                    members = [(kind, image(r, g, b)), ("cls", str(label).encode()), ("json", b"{}")]
                    for ending, data in reversed(members) if labels_first else members:
                        info = tarfile.TarInfo(names.format(first + i) + "." + ending)
                        info.size = len(data)
                        t.addfile(info, io.BytesIO(data))


def train(args, ranks=0):
    """Weights and top-1 of a run that must succeed, and its start record."""
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", " ".join(args), "on", ranks, "ranks:", err[-3:])
    if rc:
        return None, None, {}
    all_ = records("log")
    return all_[-1]["weights"], [r["top1"] for r in all_ if r["record"] == "eval"], all_[0]


RANKS = [0, 2] if MPIRUN else [0]


def binary_files_and_arrays_of_the_same_images_give_the_same_weights():
    write_cifar("binary")
    write_arrays("last", planes=False)
    write_arrays("first", planes=True)
    want = train("--data cifar10 --data-dir binary".split())
    check(want[0] and want[2]["train_images"] == 80 and want[2]["test_images"] == 20, want)
    for data, folder in [("cifar10", "binary"), ("npy", "last"), ("npy", "first")]:
        for ranks in RANKS:
            got = train(["--data", data, "--data-dir", folder], ranks)
            check(got[:2] == want[:2], data, folder, ranks, "ranks:", got[:2], "not", want[:2])


def a_part_held_out_is_the_same_on_every_rank_and_in_every_run():
    write_cifar("split")
    for name in ["test_batch.bin"]:
        os.unlink(path(f"split/{name}"))
    found = [train("--data cifar10 --data-dir split --val-split 0.2".split() + more, ranks)
             for ranks in RANKS for more in [[], ["--save", "held", "--overwrite"]]]
    for weights, top1, start in found:
        check(weights == found[0][0] and top1 == found[0][1], found)
        check(start["train_images"] == 64 and start["test_images"] == 16, start)
    # the seed chooses other weights, and no other part: the checkpoint's result is that of its run
    rc, out, err = run("--resume held --evaluate --seed 5 --quiet".split())
    check(rc == 0 and f"top-1 {found[0][1][-1]:.2f} %" in out, rc, out, err[-3:], found[0][1])
    rc, _, err = run(RUN + "--data cifar10 --data-dir split --val-split 0.001".split())
    check(rc == 1 and "holds out 0 of the 80" in err[-1], rc, err)
    rc, _, err = run(RUN + "--data cifar10 --data-dir split --val-split 1".split())
    check(rc == 2 and "--val-split" in err[-1], rc, err)


def labels_of(folder, args, ranks=0):
    """The labels of the images that an evaluation predicts."""
    rc, _, err = run(f"--quiet --threads 1 --evaluate --data-dir {folder} --predict labels.csv".split() + args, ranks)
    check(rc == 0, err)
    with open(path("labels.csv")) as f:
        return [int(line.split(",")[2]) for line in f.read().splitlines()[1:]]


def a_limit_and_a_part_held_out_have_every_class_in_every_format():
    """The first images of a sorted set have one class."""
    global TRAIN, TEST
    kept = TRAIN, TEST
    try:
        TRAIN, TEST = sorted(TRAIN, key=lambda x: x[0]), sorted(TEST, key=lambda x: x[0])
        write_cifar("sorted-binary")
        write_arrays("sorted-arrays", planes=False)
        write_tars("sorted-tar", "npy", raw)
        for split, part in [("train", TRAIN), ("val", TEST)]:
            for i, (label, r, g, b) in enumerate(part):
                write_file(f"sorted-folder/{split}/c{label}/{i:02}.ppm", ppm(r, g, b))
    finally:
        TRAIN, TEST = kept
    found = []
    for data, folder in [("cifar10", "binary"), ("npy", "arrays"), ("tar", "tar"), ("folder", "folder")]:
        for ranks in RANKS:
            args = f"--data {data} --data-dir sorted-{folder} --mean 0.5 --std 0.5 --size 32 --eval-size 0 --save few --overwrite".split()
            found.append(train(args + "--limit 40".split(), ranks)[:2])
            check(sorted(labels_of(f"sorted-{folder}", "--resume few --limit 10".split(), ranks)) == list(range(10)), data)
            held = train(args + "--val-split 0.2".split(), ranks)
            check(held[2]["test_images"] == 16, held[2])
            got = labels_of(f"sorted-{folder}", ["--resume", "few"], ranks)
            check(len(got) == 16 and set(got) == set(range(10)) and got == sorted(got), data, got)
    check(len(set(map(str, found))) == 1, found)
    samples = [train(f"--data cifar10 --data-dir sorted-binary --limit 40 --seed {seed}".split())[0] for seed in (0, 1, 1)]
    check(samples[0] == found[0][0] != samples[1] == samples[2], samples)


def floats_are_taken_as_they_are_unless_a_mean_is_given():
    write_arrays("floats", planes=True, floats=True)
    data = "--data npy --data-dir floats --save floated --overwrite".split()
    plain = [train(data, ranks) for ranks in RANKS]
    check(plain[0][:2] == plain[-1][:2], plain)
    given = [train(data + more.split())[0] for more in ["--mean 0 --std 1", "--mean 0", "--mean 0.5 --std 0.5", "--mean 0.25"]]
    check(given[0] == given[1] == plain[0][0] and len({plain[0][0], *given}) == 3, plain, given)
    # a run that goes on takes them as its first half did
    train(data + ["--epochs", "1"])
    straight = train(data + ["--epochs", "2"])
    train(data + ["--epochs", "1"])
    halves = train("--resume floated --epochs 2".split())
    check(straight[0] and straight[0] == halves[0], "straight", straight[0], "in two halves", halves[0])


def floats_are_doubted_by_their_range():
    """--mean 127.5 of floats in 0..255 is right, 0.5 is not."""
    for folder, most in [("to-1", 1.0), ("to-255", 255.0)]:
        for split, part in [("train", TRAIN[:32]), ("test", TEST)]:
            values = [v / 255 * most for _, r, g, b in part for v in interleaved(r, g, b)]
            write_file(f"{folder}/{split}_images.npy", npy("<f4", (len(part), 32, 32, 3), struct.pack(f"<{len(values)}f", *values)))
            write_file(f"{folder}/{split}_labels.npy",
                       npy("<i8", (len(part),), struct.pack(f"<{len(part)}q", *(label for label, *_ in part))))
    for folder, args, said in [("to-255", "--mean 127.5 --std 127.5", None), ("to-1", "--mean 0.5 --std 0.5", None), ("to-1", "", None),
                               ("to-255", "--mean 0.5 --std 0.5", "as with --mean 127.5 --std 127.5"),
                               ("to-255", "", "as with --mean 127.5 --std 127.5"), ("to-255", "--mean 100 --std 60", None),
                               ("to-1", "--mean 127.5 --std 127.5", "as with --mean 0.5 --std 0.5")]:
        rc, _, err = run(RUN + f"--data npy --data-dir {folder} --model mlp --lr 0 --steps 1 {args}".split())
        lines = [line for line in err if "--mean" in line]
        check(rc == 0 and len(lines) == bool(said) and (not said or said in lines[0]), folder, args, rc, err)


def pictures_of_the_same_names_need_not_be_the_same():
    for i, (label, r, g, b) in enumerate(TRAIN):
        write_file(f"alike/train/c{label % 3}/{i:02}.ppm", ppm(r, g, b))
        write_file(f"alike/val/c{label % 3}/{i:02}.ppm", ppm(g, b, r))
    shutil.copytree(path("alike/train"), path("equal/train"))
    shutil.copytree(path("alike/train"), path("equal/val"))
    write_file("alike/train/notes.txt", b"")
    for ranks in RANKS:
        for folder, said in ("alike", 0), ("equal", 1):
            rc, _, err = run(RUN + f"--data folder --data-dir {folder} --size 32 --eval-size 0".split(), ranks)
            check(rc == 0 and sum("the test images are those of training" in line for line in err) == said, folder, ranks, err)
        loud = [a for a in RUN if a != "--quiet"] + "--data folder --data-dir alike --size 32 --val-split 0.2".split()
        rc, _, err = run(loud, ranks)
        for part in "notes.txt", "not used: val/":
            check(rc == 0 and sum(part in line for line in err) == 1, part, "is not said once:", err)
    rc, _, err = run(RUN + "--data folder --data-dir alike --classes 2".split())
    check(rc == 1 and "the folder has 3 classes; --classes 2 is too few" in err[-1], rc, err)


def test_pictures_without_labels_need_a_part_of_the_others():
    """Competitions have train/CLASS/... and test/..."""
    for i, (label, r, g, b) in enumerate(TRAIN):
        write_file(f"contest/train/c{label % 3}/{i:02}.ppm", ppm(r, g, b))
    for i, (_, r, g, b) in enumerate(TEST):
        write_file(f"contest/test/{i:02}.ppm", ppm(r, g, b))
    args = "--data folder --data-dir contest --size 32 --eval-size 0 --save contest-run --overwrite".split()
    rc, _, err = run(RUN + args)
    check(rc == 1 and "have no labels to evaluate with: --val-split 0.1" in err[-1], rc, err)
    check(train(args + "--val-split 0.2".split())[2]["test_images"] == 16, "another part")
    rc, _, err = run("--quiet --threads 1 --evaluate --resume contest-run --data-dir contest/test --predict contest.csv".split())
    with open(path("contest.csv")) as f:
        check(rc == 0 and len(f.read().splitlines()) == 21, err)


def the_test_arrays_alone_are_evaluated():
    write_arrays("both", planes=False)
    _, top1, _ = train("--data npy --data-dir both --save arrays --overwrite".split())
    train("--data npy --data-dir both --val-split 0.2 --save split-arrays".split())
    os.makedirs(path("alone"), exist_ok=True)
    for name in ["test_images.npy", "test_labels.npy"]:
        os.rename(path(f"both/{name}"), path(f"alone/{name}"))
    rc, out, err = run("--resume arrays --data-dir alone --evaluate --quiet".split())
    check(rc == 0 and f"top-1 {top1[-1]:.2f} %" in out, rc, out, err[-3:], top1)
    rc, _, err = run("--resume split-arrays --evaluate --quiet --val-split 0.2".split())
    check(rc == 0, rc, err)
    os.rename(path("both/train_images.npy"), path("alone/away.npy"))
    rc, _, err = run("--resume split-arrays --evaluate --quiet".split())
    check(rc == 1 and len(err) == 1 and "--val-split is 0.2 in split-arrays" in err[0] and "--val-split 0 uses" in err[0], rc, err)
    for more in [], ["--val-split", "0"]:
        rc, _, err = run("--resume split-arrays --data-dir alone --evaluate --quiet".split() + more)
        check(rc == 0, rc, err)


def a_split_and_a_limit_belong_to_the_set_they_were_made_of():
    """A checkpoint's --val-split left 3 of 15 other pictures, and said nothing; --limit likewise."""
    for i, (label, r, g, b) in enumerate(TRAIN):
        write_file(f"pets/c{label % 3}/{i:02}.ppm", ppm(r, g, b))
    for i, (label, r, g, b) in enumerate(TEST[:15]):
        write_file(f"new/{i:02}.ppm", ppm(r, g, b))
        write_file(f"again/c{i % 3}/{i:02}.ppm", ppm(r, g, b))
    base = "--data folder --data-dir pets --size 32 --eval-size 0 --save tried --overwrite".split()
    ask = "--threads 1 --evaluate --predict pets.csv --resume tried".split()

    def predicted(args, ranks=0):
        rc, _, err = run(ask + args, ranks)
        check(rc == 0, args, err)
        with open(path("pets.csv")) as f:
            return len(f.read().splitlines()) - 1, [line for line in err if "choose" in line]
    for option, of_own in [("--val-split 0.2", 16), ("--limit 16", 16)]:
        rc, _, err = run(RUN + base + option.split())
        check(rc == 0, err)
        for ranks in RANKS:
            for folder in "new", "again":
                n, lines = predicted(["--data-dir", folder], ranks)
                check(n == 15 and len(lines) == 1 and f"note: {option} in tried belongs to pets, so all images of {folder} are used" in lines[0],
                      option, folder, n, lines)
            check(predicted([], ranks) == (of_own, []), option, "of its own set")
            check(predicted(["--data-dir", path("pets")], ranks) == (of_own, []), option, "of its own set by another name")
        n, lines = predicted("--data-dir again --limit 15".split() + option.replace("16", "6").split())
        check(n == (3 if "split" in option else 6) and not lines, option, n, lines)


def a_changed_set_holds_out_other_pictures_and_says_so():
    """An evaluation by a checkpoint's --val-split took pictures that it was trained on, and said nothing."""
    for i, (label, r, g, b) in enumerate(TRAIN):
        write_file(f"grows/c{label % 3}/{i:02}.ppm", ppm(r, g, b))
    rc, _, err = run(RUN + "--data folder --data-dir grows --size 32 --eval-size 0 --save grown --val-split 0.2".split())
    check(rc == 0, err)
    for more, warned in ([], False), (["--val-split", "0.3"], True), (["--data-dir", "pets", "--val-split", "0.3"], False):
        rc, _, err = run("--threads 1 --evaluate --resume grown".split() + more)
        check(rc == 0 and any("trained on some of the images" in line for line in err) == warned, more, err)
    label, r, g, b = TRAIN[0]
    write_file("grows/c0/00-new.ppm", ppm(b, r, g))
    for ranks in RANKS:
        rc, _, err = run("--threads 1 --evaluate --resume grown".split(), ranks)
        lines = [line for line in err if "trained on some of the images that --val-split 0.2 holds out" in line]
        check(rc == 0 and len(lines) == 1, ranks, rc, err)


def shards_of_the_same_images_give_the_same_weights():
    write_cifar("binary")
    want = train("--data cifar10 --data-dir binary --mean imagenet --std imagenet".split())  # as pictures have them
    long = "a-folder/" * 14 + "{:06}"
    write_tars("raw-tar", "npy", raw)
    write_tars("png-tar", "png", png, shard=7, form=tarfile.GNU_FORMAT, names=long, labels_first=True)
    write_tars("ppm-tar", "PPM", ppm, form=tarfile.PAX_FORMAT, names=long + "-\N{LATIN SMALL LETTER E WITH ACUTE}")
    write_tars("old-tar", "png", png, form=tarfile.USTAR_FORMAT, names=long)
    for folder in ["raw-tar", "png-tar", "ppm-tar", "old-tar"]:
        for ranks, workers in [(0, 0), (0, 3), (2, 1)] if MPIRUN else [(0, 0), (0, 3)]:
            got = train(["--data", "tar", "--data-dir", folder, "--size", "32", "--eval-size", "0", "--workers", str(workers)],
                        ranks)
            check(got[:2] == want[:2], folder, ranks, "ranks", workers, "workers:", got[:2], "not", want[:2])


BLOCK = 4096  # of most file systems: holes are as large


def write_holes(name, data):
    """A file of which every other block of zeros is a hole."""
    with open(path(name), "wb") as f:
        for at in range(0, len(data), BLOCK):
            part = data[at:at + BLOCK]
            if part.strip(b"\0"):
                f.seek(at)
                f.write(part)
        f.truncate(len(data))


def sparse_members_are_read_and_stepped_over():
    """Members of seven parts, where a header holds four: as images, and as files beside them."""
    tar = shutil.which("tar")
    if not tar or "GNU" not in subprocess.run([tar, "--version"], capture_output=True, text=True).stdout:
        raise Skip("no GNU tar")
    os.makedirs(path("holes"), exist_ok=True)
    names = {"train": [], "val": []}
    for i in range(20):
        split = "train" if i < 16 else "val"
        pixels = bytearray(128 * 128 * 3)
        for k in range(0, len(pixels), 2 * BLOCK):
            pixels[k:k + BLOCK] = bytes((k // BLOCK * 7 + i * 31 + j * (i % 4 + 1)) % 251 + 1 for j in range(min(BLOCK, len(pixels) - k)))
        write_holes(f"holes/{i:02}.npy", npy("|u1", (128, 128, 3), bytes(pixels)))
        write_holes(f"holes/{i:02}.bin", bytes(pixels))
        write_file(f"holes/{i:02}.cls", str(i % 4).encode())
        names[split] += [f"{i:02}.{kind}" for kind in ("npy", "bin", "cls")]
    args = "--size 32 --eval-size 32 --batch 4".split()
    found = {}
    for kind, options in [("plain", "--format=pax"), ("old", "-S --format=gnu"), ("0.0", "-S --format=pax --sparse-version=0.0"),
                          ("0.1", "-S --format=pax --sparse-version=0.1"), ("1.0", "-S --format=pax --sparse-version=1.0")]:
        folder = f"sparse-{kind}"
        os.makedirs(path(folder), exist_ok=True)
        for split in names:
            subprocess.run([tar, *options.split(), "-C", path("holes"), "-cf", path(f"{folder}/{split}-0.tar"), *names[split]], check=True)
        if kind != "plain" and os.path.getsize(path(f"{folder}/train-0.tar")) >= os.path.getsize(path("sparse-plain/train-0.tar")):
            raise Skip("no holes here")
        for ranks in RANKS:
            found[kind, ranks] = train(["--data", "tar", "--data-dir", folder, *args], ranks)[:2]
    check(len(set(map(str, found.values()))) == 1, found)


def large_headers_and_padded_labels_are_read():
    write_cifar("binary")
    want = train("--data cifar10 --data-dir binary --mean imagenet --std imagenet".split())  # as pictures have them
    pads = ["{}", " {} ", "{}\n", "\n\n{}\r\n", "{}\0", "{}" + " " * 500, "\ufeff{}\n", "\t{}\0\0\0" + " " * 20, "\f{}\v"]
    os.makedirs(path("padded"), exist_ok=True)
    for split, part in [("train", TRAIN), ("val", TEST)]:
        with tarfile.open(path(f"padded/{split}-0.tar"), "w", format=tarfile.PAX_FORMAT) as t:
            for i, (label, r, g, b) in enumerate(part):
                for ending, data in ("npy", raw(r, g, b)), ("cls", pads[i % len(pads)].format(label).encode()):
                    info = tarfile.TarInfo(f"{i:06}.{ending}")
                    info.size = len(data)
                    if i % 5 == 0:
                        info.pax_headers = {"comment": "x" * 200000, "SCHILY.xattr.user.json": "{}"}
                    t.addfile(info, io.BytesIO(data))
    got = train("--data tar --data-dir padded --size 32 --eval-size 0".split())
    check(got[:2] == want[:2], got[:2], "not", want[:2])


def shards_without_a_test_split_have_an_advice():
    write_tars("lonely", "npy", raw)
    os.unlink(path("lonely/val-000000.tar"))
    args = "--data tar --data-dir lonely --size 32 --eval-size 0".split()
    rc, _, err = run(RUN + args)
    check(rc == 1 and "no shards val-*.tar" in err[-1] and "--val-split 0.1" in err[-1], rc, err)
    check(train(args + "--val-split 0.2".split())[2]["test_images"] == 16, "another part")


def labels_are_seen_where_times_and_sizes_are_fixed():
    """A shard with corrected labels has the bytes and, made reproducibly, the time of the one before."""
    args = "--data tar --data-dir corrected --size 32 --eval-size 0".split()
    found = []
    for turn in 0, 0, 1:
        global TRAIN
        kept = TRAIN
        if turn:
            TRAIN = [((label + 1) % 10, *planes) for label, *planes in TRAIN]
        if turn or not found:
            write_tars("corrected", "npy", raw, shard=100)
        TRAIN = kept
        for split in "train", "val":
            os.utime(path(f"corrected/{split}-000000.tar"), (10**9, 10**9))
        found.append(train(args)[0])
    check(found[0] == found[1] != found[2], found)


def pack(args, ranks=0, want=0):
    rc, _, err = run(["pack"] + args, ranks)
    check(rc == want, "exit", rc, "of pack", " ".join(args), "on", ranks, "ranks:", err[-3:])
    return "\n".join(err)


def fingerprint(folder):
    """Of the shards in a folder: names and bytes."""
    h = hashlib.sha256()
    for name in sorted(n for n in os.listdir(path(folder)) if n.endswith(".tar")):
        with open(path(f"{folder}/{name}"), "rb") as f:
            h.update(name.encode() + f.read())
    return h.hexdigest()


def packed_shards_have_the_same_bytes_on_any_ranks():
    write_cifar("binary")
    write_tars("source", "png", png)
    kinds = {"copied": ["source", "--data", "tar"], "smaller": ["source", "--data", "tar", "--resize", "24"],
             "pixels": ["binary", "--data", "cifar10", "--raw"]}
    for kind, args in kinds.items():
        found = []
        for ranks in [0, 2, 3] if MPIRUN else [0]:
            folder = f"{kind}-{ranks}"
            os.makedirs(path(folder))
            for split in ["train", "val"]:
                out = pack(args + ["--output", f"{folder}/{split}-%03d.tar", "--shard-images", "30"], ranks)
                check(f"packed {80 if split == 'train' else 20} images into {3 if split == 'train' else 1} shard" in out, out)
            check(sorted(os.listdir(path(folder))) ==
                  sorted(n + e for n in ["train-000.tar", "train-001.tar", "train-002.tar", "val-000.tar"]
                         for e in ["", ".hvtindex"]), os.listdir(path(folder)))
            found.append(fingerprint(folder))
        check(len(set(found)) == 1, kind, found)


def what_is_packed_trains_as_what_it_was_packed_from():
    write_cifar("binary")
    write_tars("source", "png", png)
    want = train("--data cifar10 --data-dir binary --mean imagenet --std imagenet".split())  # as pictures have them
    for folder, args in [("from-png", "source --data tar"), ("from-png-raw", "source --data tar --raw"),
                         ("from-binary", "binary --data cifar10 --raw")]:
        for split in ["train", "val"]:  # the first one makes the folder
            pack(args.split() + ["--output", f"{folder}/{split}-%06d.tar", "--shard-images", "33"])
        got = train(["--data", "tar", "--data-dir", folder, "--size", "32", "--eval-size", "0"])
        check(got[:2] == want[:2], folder, got[:2], "not", want[:2])
    with tarfile.open(path("from-png/train-000001.tar")) as t:
        members = t.getmembers()
        check(len(members) == 66 and members[0].name == "000000033_000033.png" and members[1].name == "000000033_000033.cls",
              [m.name for m in members[:4]])
        check(all(m.mtime == 0 and m.uid == 0 and m.gid == 0 and not m.uname for m in members), "headers tell who and when")
        check(t.extractfile(members[0]).read() == png(*TRAIN[33][1:]), "another picture")
        check(t.extractfile(members[1]).read() == str(TRAIN[33][0]).encode(), "another label")
    with tarfile.open(path("from-binary/val-000000.tar")) as t:
        check(t.extractfile("000000007.npy").read()[-3072:] == interleaved(*TEST[7][1:]), "other pixels")


def pictures_made_smaller_are_the_same_on_any_ranks_and_workers():
    write_tars("source", "png", png)
    os.makedirs(path("jpeg"))
    for split in ["train", "val"]:
        pack(["source", "--data", "tar", "--resize", "24", "--output", f"jpeg/{split}-%06d.tar"])
    with tarfile.open(path("jpeg/train-000000.tar")) as t:
        check(t.getnames()[0] == "000000000_000000.jpg", t.getnames()[:2])
        check(t.extractfile(t.getnames()[0]).read(2) == b"\xff\xd8", "no JPEG")
    found = set()
    for ranks in [0, 2, 4] if MPIRUN else [0]:
        for workers in [0, 1, 3]:
            args = "--data tar --data-dir jpeg --size 16 --augment rrc,flip --shards 4 --batch 4 --workers".split()
            got = train(args + [str(workers)], ranks)
            found.add((got[0], str(got[1])))
    check(len(found) == 1 and None not in list(found)[0], found)


def damaged_pictures_are_left_out_the_same_on_any_ranks():
    for i, (label, r, g, b) in enumerate(TRAIN):
        data = png(r, g, b)
        write_file(f"damage/train/c{label}/{i:02}.png", data[:len(data) // 2] if i in (3, 40, 41) else data)
    for kind, more in [("copied", ""), ("raw", "--raw"), ("smaller", "--resize 24")]:
        found = []
        for ranks in [0, 2, 3] if MPIRUN else [0]:
            folder = f"left-{kind}-{ranks}"
            os.makedirs(path(folder))
            args = f"damage --output {folder}/train-%03d.tar --shard-images 9 {more}".split()
            out = pack(args + "--skip-damaged 3".split(), ranks)
            lines = [line for line in out.splitlines() if "left out" in line]
            check(len(lines) == 3 and all(any(f"{n}.png" in line for line in lines) for n in ("03", "40", "41")), lines)
            check("packed 77 images (without 3 damaged ones) into 9 shards" in out, out)
            found.append(fingerprint(folder))
            os.makedirs(path("few-" + folder))
            out = pack(f"damage --output few-{folder}/train-%03d.tar --shard-images 9 --skip-damaged 2 {more}".split(), ranks, 1)
            check(any("damaged" in line and "before" in line and "warning" not in line for line in out.splitlines()), out)
        check(len(set(found)) == 1, kind, found)


def what_packing_advises_is_a_command_line_that_works():
    write_cifar("binary")
    for splits, part in (["train"], "--val-split 0.1"), (["train", "val"], "--data-dir"), (["val"], None):
        folder = "advised-" + "-".join(splits)
        os.makedirs(path(folder))
        for split in splits:
            out = pack(f"binary --data cifar10 --raw --output {folder}/{split}-%03d.tar".split())
        line, = [line for line in out.splitlines() if line.startswith("next: ")]
        if not part:
            check(line == f"next: pack the training images with --output {folder}/train-%06d.tar", line)
            continue
        hint = line[6:].partition("  #")[0] + " --size 16 --batch 8 --steps 1 --threads 1 --quiet"
        p = subprocess.run(hint, shell=True, cwd=HERE, capture_output=True, text=True, timeout=60)
        check(p.returncode == 0 and part in hint, hint, p.stderr[-500:])


def packing_refuses_what_it_cannot_do():
    write_cifar("binary")
    write_arrays("floats", planes=False, floats=True)
    os.makedirs(path("to"))
    for args, want, parts in [
            ([], 2, ["pack needs a folder"]),
            (["binary"], 2, ["pack needs --output"]),
            (["binary", "--output", "to/x-%06d.tar"], 2, ["expected DIR/train-%06d.tar", "to/x-%06d.tar"]),
            (["binary", "--data", "cifar10", "--output", "to/train-%d.tar", "--raw"], 1, ["expected DIR/train-%06d.tar"]),
            (["binary", "--data", "cifar10", "--output", "to/train-%s.tar", "--raw"], 1, ["expected DIR/train-%06d.tar"]),
            (["binary", "--data", "cifar10", "--output", "to/train-%06d.tar"], 1, ["image 0 is raw pixels", "--raw"]),
            (["binary", "--data", "cifar10", "--output", "no/way/train-%06d.tar", "--raw"], 1, ["no/way: No such file"]),
            (["binary", "--data", "cifar10", "--output", "to/train-%01d.tar", "--raw", "--shard-images", "7"], 1,
             ["1 digits are too few for 12 shards"]),
            (["floats", "--data", "npy", "--output", "to/train-%06d.tar", "--raw"], 1, ["3 channels in f32, expected 3 in u8"]),
            (["no", "--output", "to/train-%06d.tar"], 1, ["no"])]:
        for ranks in RANKS if want == 1 and "--shard-images" not in args else [0]:
            out = pack(args, ranks, want)
            check(all(p in out for p in parts) and out.count("hvtrain: ") == 1, args, ranks, out)
        check(not os.listdir(path("to")), args, os.listdir(path("to")))
    pack("binary --data cifar10 --raw --output to/train-%06d.tar".split())
    out = pack("binary --data cifar10 --raw --output to/train-%03d.tar".split(), 0, 1)
    check("to/train-000000.tar exists already" in out, out)
    rc, _, err = run("--raw".split())
    check(rc == 2 and "--raw is for hvtrain pack" in err[-1], rc, err)


def targets(label):
    return [(label * (k + 1) % 5) / 4 - 0.3 for k in range(3)]


def write_targets(folder):
    write_arrays(folder, planes=False)
    for split, part in [("train", TRAIN), ("test", TEST)]:
        values = [t for label, *_ in part for t in targets(label)]
        write_file(f"{folder}/{split}_labels.npy", npy("<f4", (len(part), 3), struct.pack(f"<{len(values)}f", *values)))


def floats_of(name):
    with open(path(name), "rb") as f:
        data = f.read()
    begin = 10 + struct.unpack_from("<H", data, 8)[0]
    return struct.unpack(f"<{(len(data) - begin) // 4}f", data[begin:])


def errors_of(saved, images):
    """Mean squared and mean absolute error of what a checkpoint's outputs are for the images of its test set."""
    rc, _, err = run(f"--quiet --threads 1 --evaluate --resume {saved} --predict-logits outputs.npy --log log".split())
    check(rc == 0, err)
    want = [t for label, *_ in images for t in targets(label)]
    off = [y - struct.unpack("<f", struct.pack("<f", t))[0] for y, t in zip(floats_of("outputs.npy"), want)]
    check(len(off) == 3 * len(images), len(off))
    return sum(x * x for x in off) / len(off), sum(map(abs, off)) / len(off)


def maes_of(args, ranks=0):
    """The mean absolute errors that a run logs."""
    rc, _, err = run(args, ranks)
    check(rc == 0, err)
    return {kind: [r["mae"] for r in records("log") if r["record"] == kind] for kind in ("step", "epoch", "eval")}


def labels_of_floats_are_targets_of_the_mean_squared_error():
    write_targets("targets")
    args = RUN + "--data npy --data-dir targets --loss mse --model mlp --epochs 3 --lr 0.02 --save fit --overwrite".split()
    weights, evals = [], []
    for ranks in [0, 2] if MPIRUN else [0]:
        rc, _, err = run(args, ranks)
        check(rc == 0, err)
        log = records("log")
        weights.append([r["weights"] for r in log if r["record"] == "end"])
        evals.append([(r["loss"], r["mae"]) for r in log if r["record"] == "eval"])
        check(all(r["top1"] is None for r in log if r["record"] in ("step", "epoch", "eval")), "top-1 of targets")
        check(log[0]["classes"] == 3, log[0]["classes"])
    check(all(w == weights[0] for w in weights) and all(e == evals[0] for e in evals), "ranks differ", weights, evals)
    losses = [loss for loss, _ in evals[0]]
    check(len(losses) == 3 and losses[-1] < losses[0], losses)
    check(losses == sorted(losses, reverse=True), losses)
    check(os.readlink(path("fit/best.safetensors")) == os.readlink(path("fit/last.safetensors")), "the best is not the last")
    loss, mae = errors_of("fit", TEST)
    last = [r for r in records("log") if r["record"] == "eval"][-1]
    check(abs(last["loss"] - loss) < 1e-6 and abs(last["mae"] - mae) < 1e-6, last, loss, mae)


def training_shows_the_mean_absolute_error_in_the_place_of_hits():
    """At a rate of 0 the images of an epoch have the errors of the same images in an evaluation: here the test set is
    the training set. The updates have 28, 28 and 24 images, the last one's shards not all the same number."""
    write_targets("same")
    for kind in "images", "labels":
        shutil.copy(path(f"same/train_{kind}.npy"), path(f"same/test_{kind}.npy"))
    args = ("--data npy --data-dir same --loss mse --model mlp --batch 7 --shards 4 --epochs 1 --threads 1 --lr 0 "
            "--print-freq 1 --save kept --overwrite --log log").split()
    seen = [maes_of(args, ranks) for ranks in RANKS]
    steps, [epoch], [test] = seen[0].values()
    _, want = errors_of("kept", TRAIN)
    check(all(s == seen[0] for s in seen), "ranks differ", seen)
    check(len(steps) == 3 and abs(sum(n * m for n, m in zip((28, 28, 24), steps)) / 80 - want) < 1e-6, steps, want)
    check(abs(epoch - want) < 1e-6 and abs(test - want) < 1e-6, epoch, test, want)
    text = "\n".join(run(args)[2])
    check(f"  mae {steps[0]:.4f}  lr 0 " in text and f", mae {epoch:.4f};" in text and "top-" not in text, text)


def errors_are_counted_on_where_a_run_goes_on():
    """Cut after update 3: between two records, and within an epoch of 5 updates."""
    write_targets("targets")
    args = RUN + "--data npy --data-dir targets --loss mse --model mlp --epochs 2 --lr 0.02 --print-freq 2".split()
    want = maes_of(args)
    check(len(want["step"]) == 5 and len(want["epoch"]) == 2, want)
    maes_of(args + "--steps 3 --save cut".split())
    shutil.copytree(path("cut"), path("older"), symlinks=True)
    header, data = read_safetensors("older/last.safetensors")
    position = metadata(header)["position"]
    check(len(position["loss"]) == 5 and len(position["recent"]) == 5, position)
    change_metadata(header, position={**position, "loss": position["loss"][:4], "recent": position["recent"][:4]})
    write_safetensors("older/last.safetensors", header, data)
    for file, step, epoch in ("cut", want["step"][1], want["epoch"][0]), ("older/last.safetensors", None, None):
        os.remove(path("log"))  # a run that goes on appends to it
        got = maes_of("--threads 1 --quiet --steps 10 --print-freq 2 --log log --resume".split() + [file])
        check(got["step"] == [step, *want["step"][2:]] and got["epoch"] == [epoch, want["epoch"][1]], file, got, want)


def a_rate_that_is_too_high_for_targets_is_one_warning():
    """Loss has no scale of its own: errors below 1, and a first update of few images, are never too large."""
    write_targets("targets")
    base = "--data npy --data-dir targets --loss mse --model mlp --threads 1 --quiet --print-freq 1 --momentum 0".split()
    for args, warned in [("--batch 16 --lr 3 --steps 3", True), ("--batch 16 --lr 0.02 --epochs 3", False), ("--batch 4 --lr 3 --steps 3", False)]:
        rc, _, err = run(base + args.split())
        said = [line for line in err if "too high; try --lr 0.1" in line]
        check(rc == 0 and len(said) == warned, args, rc, err)


def losses_and_labels_that_do_not_fit_are_refused():
    write_targets("targets")
    write_arrays("classes", planes=False)
    for args, parts in [("--data npy --data-dir targets", ["float labels", "--loss mse"]),
                        ("--data npy --data-dir classes --loss mse", ["no targets", "float labels"]),
                        ("--loss mse", ["--loss mse needs float targets", "not synth; for an autoencoder --target image"]),
                        ("--data npy --data-dir targets --loss mse --classes 4", ["--classes 4", "3 targets"]),
                        ("--data npy --data-dir targets --loss mse --label-smoothing 0.1", ["--label-smoothing 0.1"]),
                        ("--label-smoothing 1.5", ["from 0 to 1"]),
                        ("pack targets --data npy --raw --quiet --output shards/train-%06d.tar", ["has targets"])]:
        rc, _, err = run(args.split() if args.startswith("pack") else RUN + args.split())
        check(rc in (1, 2) and len(err) == 1 and all(p in err[0] for p in parts), args, rc, err)


def smoothed_labels_raise_the_training_loss_alone():
    write_arrays("classes", planes=False)
    seen = {}
    for smoothing in "0", "0.2":
        args = RUN + f"--data npy --data-dir classes --model mlp --lr 0 --label-smoothing {smoothing}".split()
        rc, _, err = run(args)
        check(rc == 0, err)
        log = records("log")
        seen[smoothing] = [[r["train_loss"] for r in log if r["record"] == "epoch"],
                           [r["loss"] for r in log if r["record"] == "eval"]]
        check(all("mae" not in r for r in log), "a cross-entropy has a mean absolute error")
    check(seen["0"][1] == seen["0.2"][1] and seen["0"][0] != seen["0.2"][0], seen)


TESTS = [
    labels_of_floats_are_targets_of_the_mean_squared_error,
    training_shows_the_mean_absolute_error_in_the_place_of_hits,
    errors_are_counted_on_where_a_run_goes_on,
    a_rate_that_is_too_high_for_targets_is_one_warning,
    losses_and_labels_that_do_not_fit_are_refused,
    smoothed_labels_raise_the_training_loss_alone,
    binary_files_and_arrays_of_the_same_images_give_the_same_weights,
    a_part_held_out_is_the_same_on_every_rank_and_in_every_run,
    a_limit_and_a_part_held_out_have_every_class_in_every_format,
    floats_are_taken_as_they_are_unless_a_mean_is_given,
    floats_are_doubted_by_their_range,
    pictures_of_the_same_names_need_not_be_the_same,
    test_pictures_without_labels_need_a_part_of_the_others,
    the_test_arrays_alone_are_evaluated,
    a_split_and_a_limit_belong_to_the_set_they_were_made_of,
    a_changed_set_holds_out_other_pictures_and_says_so,
    shards_of_the_same_images_give_the_same_weights,
    sparse_members_are_read_and_stepped_over,
    large_headers_and_padded_labels_are_read,
    shards_without_a_test_split_have_an_advice,
    labels_are_seen_where_times_and_sizes_are_fixed,
    packed_shards_have_the_same_bytes_on_any_ranks,
    what_is_packed_trains_as_what_it_was_packed_from,
    pictures_made_smaller_are_the_same_on_any_ranks_and_workers,
    damaged_pictures_are_left_out_the_same_on_any_ranks,
    what_packing_advises_is_a_command_line_that_works, packing_refuses_what_it_cannot_do,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
