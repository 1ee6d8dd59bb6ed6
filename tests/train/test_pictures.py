"""Usage: test_pictures.py HVTRAIN MPIRUN [TRUTH ...]. Folders of pictures as a user has them: the same weights for any
ranks and workers, and those of the same images in other files; what is refused, damaged or without labels."""
import os
import shutil
import struct
import sys
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, MPIRUN, path, records, run  # noqa: E402
from truths import check, run_all  # noqa: E402

RUN = "--batch 8 --shards 4 --epochs 1 --threads 1 --lr 0.05 --mean 0.5 --std 0.5 --log log".split()
RANKS = [0, 2, 4] if MPIRUN else [0]
CLASSES, EACH, SIDE = 10, 9, 32


def pixel(label, i, c, y, x):
    return (label * 20 + c * 30 + (x * (label + 1) + y * (i + 3)) * 37 % 64 + i * 5) % 256


def images(split):
    """(label, number, three planes), in the order of a folder."""
    for label in range(CLASSES):
        for i in range(EACH if split == "train" else 2):
            n = i + (0 if split == "train" else 50)
            yield label, n, [bytes(pixel(label, n, c, y, x) for y in range(SIDE) for x in range(SIDE))
                             for c in range(3)]


IMAGES = {split: list(images(split)) for split in ("train", "val")}


def write(name, data):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as f:
        f.write(data)


def write_cifar(folder):
    part = -(-len(IMAGES["train"]) // 5)
    for k in range(6):
        some = IMAGES["train"][part * k:part * (k + 1)] if k < 5 else IMAGES["val"]
        name = f"data_batch_{k + 1}.bin" if k < 5 else "test_batch.bin"
        write(f"{folder}/{name}", b"".join(bytes([label]) + b"".join(planes) for label, _, planes in some))


def write_folder(folder, grey=False):
    shutil.rmtree(path(folder), ignore_errors=True)
    for split, some in IMAGES.items():
        for label, n, planes in some:
            data = bytes((19595 * r + 38470 * g + 7471 * b + 32768) >> 16 for r, g, b in zip(*planes)) if grey else \
                bytes(v for rgb in zip(*planes) for v in rgb)
            write(f"{folder}/{split}/c{label}/{n:03}.PPM", b"P5\n32 32\n255\n" + data if grey else b"P6\n32 32\n255\n" + data)


def png(planes, orientation):
    """A PNG that shows the planes when it is turned by its EXIF orientation."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows = b""
    for y in range(SIDE):
        rows += b"\0"
        for x in range(SIDE):
            row, column = SIDE - 1 - y if orientation in (3, 4, 6, 7) else y, SIDE - 1 - x if orientation in (2, 3, 7, 8) else x
            at = column * SIDE + row if orientation > 4 else row * SIDE + column
            rows += bytes(plane[at] for plane in planes)
    tag = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x112, 3, 1, orientation, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)) + \
        chunk(b"eXIf", tag) + chunk(b"IDAT", zlib.compress(rows, 1)) + chunk(b"IEND", b"")


def errors(err):
    """Our lines that are no warnings."""
    return [line for line in err if line.startswith("hvtrain: ") and not line.startswith("hvtrain: warning: ")]


def train(args, ranks=0):
    """Weights and evaluations of a run that must succeed, and what it says."""
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", " ".join(args), "on", ranks, "ranks:", err[-3:])
    if rc:
        return None, None, err
    all_ = records("log")
    return all_[-1]["weights"], [(r["top1"], r["loss"]) for r in all_ if r["record"] == "eval"], err


def neither_ranks_nor_workers_nor_files_change_the_weights():
    write_cifar("binary")
    write_folder("folder")
    crops = "--augment crop:4,flip --quiet".split()
    want = train(crops + "--data cifar10 --data-dir binary".split())
    for ranks in RANKS:
        for workers in "013":
            got = train(crops + "--data folder --data-dir folder --size 32 --eval-size 0 --workers".split()
                        + [workers], ranks)
            check(got[:2] == want[:2], ranks, "ranks,", workers, "workers:", got[:2], "not", want[:2])
    got = train(crops + "--data cifar10 --data-dir binary --workers 2".split(), RANKS[-1])
    check(got[:2] == want[:2], "binary files and workers:", got[:2], "not", want[:2])


def random_boxes_are_the_same_for_any_ranks_and_workers():
    write_folder("folder")
    boxes = "--data folder --data-dir folder --size 24 --augment rrc:0.25-1,flip --mean imagenet --std imagenet".split()
    want = train(boxes + ["--workers", "0"])
    for ranks in RANKS:
        for workers in ("1", "3", "auto"):
            got = train(boxes + ["--workers", workers], ranks)
            check(got[:2] == want[:2], ranks, "ranks,", workers, "workers:", got[:2], "not", want[:2])
    said = "\n".join(train(boxes + ["--workers", "3", "--verbose"])[2])
    check("workers    3 fetch images ahead" in said and "eval-size 27" in said and "100.0" not in said, said)
    other = train("--data folder --data-dir folder --size 24 --augment rrc,flip".split())
    check(other[0] != want[0], "the part of the area changes nothing")


def exif_orientation_turns_pictures_and_travels_with_the_weights():
    write_folder("folder")
    for split, some in IMAGES.items():
        for label, n, planes in some:
            write(f"turned/{split}/c{label}/{n:03}.png", png(planes, n % 8 + 1))
    base = "--size 32 --eval-size 0 --data folder --data-dir".split()
    want, got = train(base + ["folder"]), train(base + "turned --exif on --workers 2 --save turned-run --overwrite".split())
    check(want[:2] == got[:2], want[:2], got[:2])
    left = train(base + ["turned"])
    check(left[0] != want[0] and any("--exif on" in line for line in left[2]), left)
    check(not any("--exif" in line for line in got[2] if "warning" in line), got[2])
    rc, out, _ = run(["inspect", "turned-run/last.safetensors"])
    check(rc == 0 and "--std 0.5 --exif on" in out, rc, out)
    evaluate = "--data folder --data-dir turned --evaluate --threads 1 --init turned-run/last.safetensors".split()
    (rc, taken, err), (_, _, warned) = run(evaluate), run(evaluate + ["--exif", "off"])
    check(rc == 0 and f"loss {want[1][-1][1]:.4f}" in taken and not any("warning" in line for line in err), rc, taken, err, want)
    check(any("--exif on, but this run has --exif off" in line for line in warned), warned)
    rc, _, err = run("pack turned --output upright/train-%06d.tar --raw --exif on".split())
    rc, _, err = run("pack turned --output upright/val-%06d.tar --raw --exif on".split())
    packed = train("--size 32 --eval-size 0 --data tar --data-dir upright".split())
    check(packed[0] == want[0], packed[0], want[0])


def pictures_may_be_made_grey():
    write_cifar("binary")
    write_folder("folder")
    write_folder("luminance", grey=True)
    args = "--augment crop:4,flip --quiet --grey --data".split()
    first = train(args + "cifar10 --data-dir binary".split())[:2]
    for ranks in RANKS:
        for folder in "folder", "luminance":
            for more in ["--workers 0", "--workers 2"]:
                got = train(args + f"folder --data-dir {folder} --size 32 --eval-size 0".split() + more.split(), ranks)
                check(got[:2] == first, ranks, folder, more, got[:2], first)


def a_folder_that_was_moved_is_told_of():
    write_folder("folder")
    go = "--resume moved --evaluate --quiet --threads 1".split()
    rc, _, err = run(RUN + "--data folder --data-dir folder --size 32 --grey --save moved --steps 1 --quiet".split())
    check(rc == 0 and not errors(err), rc, err)
    shutil.rmtree(path("elsewhere"), ignore_errors=True)
    os.rename(path("folder"), path("elsewhere"))
    for ranks in RANKS[:2]:
        rc, _, err = run(go, ranks)
        check(rc == 1 and len(errors(err)) == 1 and "--data-dir DIR" in errors(err)[0] and "moved" in errors(err)[0], rc, err)
    rc, out, err = run(go + "--data-dir elsewhere".split())
    check(rc == 0 and out.count("\n") == 1 and not errors(err), rc, out, err)


def all_images_are_both_splits_where_there_is_one_folder():
    write_folder("folder")
    shutil.rmtree(path("folder/val"))
    _, _, err = train("--data folder --data-dir folder --size 32 --eval-size 0".split())
    check(any("the test images are those of training; --val-split 0.1" in line for line in err), err)
    held = train("--data folder --data-dir folder --size 32 --eval-size 0 --val-split 0.1".split())
    check(not any("those of training" in line for line in held[2]), held[2])
    for ranks in RANKS[1:]:
        got = train("--data folder --data-dir folder --size 32 --eval-size 0 --val-split 0.1 --workers 2".split(), ranks)
        check(got[:2] == held[:2], ranks, "ranks:", got[:2], held[:2])


def pictures_without_labels_are_refused():
    write_folder("folder")
    train("--data folder --data-dir folder --size 32 --eval-size 0 --save saved --overwrite".split())
    for n in range(3):
        shutil.copy(path("folder/val/c1/050.PPM"), path("folder") + f"/plain{n}.ppm")
    os.makedirs(path("plain"), exist_ok=True)
    for n in range(3):
        os.rename(path(f"folder/plain{n}.ppm"), path(f"plain/{n}.ppm"))
    for ranks in RANKS[:2]:
        rc, _, err = run(RUN + "--data folder --data-dir plain --size 32".split(), ranks)
        ours = errors(err)
        check(rc == 1 and len(ours) == 1 and "use --evaluate --predict for unlabelled pictures" in ours[0], rc, err)
        rc, _, err = run("--resume saved --evaluate --data-dir plain --quiet --threads 1".split(), ranks)
        ours = errors(err)
        check(rc == 1 and len(ours) == 1 and "has no labels, so there is no loss to evaluate" in ours[0], rc, err)


def damaged_pictures_are_named_and_may_be_skipped():
    write_folder("folder")
    for name in ["train/c3/004.PPM", "val/c1/050.PPM"]:
        with open(path("folder/" + name), "r+b") as f:
            f.truncate(1000)
    base = "--data folder --data-dir folder --size 32 --eval-size 0 --quiet".split()
    for ranks in RANKS:
        rc, _, err = run(RUN + base, ranks)
        ours = errors(err)
        check(rc == 1 and len(ours) == 1 and "folder/train/c3/004.PPM" in ours[0] and "--skip-damaged N" in ours[0], ranks, "ranks:",
              rc, err)
        check(ranks == 0 or "rank " in ours[0], err)
    want = None
    for ranks in RANKS:
        for workers in "03":
            got = train(base + ["--skip-damaged", "1", "--workers", workers], ranks)
            want = want or got
            check(got[:2] == want[:2], ranks, "ranks,", workers, "workers:", got[:2], "not", want[:2])
            check(sum("004.PPM" in line and "the next one takes its place" in line for line in got[2]) == 1, got[2])
            check(sum("050.PPM" in line and "it counts as a black image" in line for line in got[2]) == 1, got[2])
    for ranks in RANKS:  # the ranks of a host name an image once, in however many epochs they meet it
        rc, _, err = run(RUN + base + "--skip-damaged 1 --epochs 4".split(), ranks)
        named = [line for line in err if "004.PPM" in line]
        check(rc == 0 and len(named) == 1 and ("(1 of at most 1 damaged images of a rank)" in named[0]) == (ranks > 1), ranks, rc, named)
    train(base + "--skip-damaged 1 --save skipped".split())
    rc, _, err = run("--resume skipped --epochs 2 --threads 1 --quiet".split())
    check(rc == 0 and any("004.PPM" in line and "the next one takes its place" in line for line in err), rc, err)


def options_that_do_not_fit_the_set_are_refused():
    write_folder("folder")
    base = "--data folder --data-dir folder --quiet".split()
    for more, part in [("--size 64 --eval-size 32", "--eval-size 32"), ("--eval-size 223", "--eval-size 223"),
                       ("--augment rrc,crop:4", "expected one"), ("--workers 9999", "workers")]:
        rc, _, err = run(RUN + base + more.split())
        check(rc in (1, 2) and part in err[-1], more, rc, err)
    for more, part in [("--grey --mean imagenet", "one number"), ("--grey --std 0.2,0.3,0.2", "one number")]:
        rc, _, err = run(RUN + base + more.split())
        check(rc == 2 and part in err[-1], more, rc, err)
    shutil.rmtree(path("folder/train/c4"))
    rc, _, err = run(RUN + base)
    check(rc == 1 and "classes that" in err[-1] and "c4" in err[-1], rc, err)


TESTS = [
    neither_ranks_nor_workers_nor_files_change_the_weights,
    random_boxes_are_the_same_for_any_ranks_and_workers,
    pictures_may_be_made_grey,
    exif_orientation_turns_pictures_and_travels_with_the_weights,
    a_folder_that_was_moved_is_told_of,
    all_images_are_both_splits_where_there_is_one_folder,
    pictures_without_labels_are_refused,
    damaged_pictures_are_named_and_may_be_skipped,
    options_that_do_not_fit_the_set_are_refused,
]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
