"""Usage: test_same_data.py HVTRAIN MPIRUN [TRUTH ...]. A run that is resumed with another training set: refused inside
an epoch, warned about between two, continued by --data-changed ok; and copies that count as the same set, whatever
their place and form."""
import io
import json
import os
import random
import shutil
import struct
import sys
import tarfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import (HERE, MPIRUN, change_metadata, generations, metadata, path, read_safetensors, run,  # noqa: E402
                     write_safetensors)
from truths import check, run_all  # noqa: E402

RUN = "--model resnet20 --size 16 --batch 8 --shards 2 --threads 1 --quiet --lr 0.01 --classes 2".split()
COUNT = 40  # training images: 3 updates an epoch


def picture(seed, side=16, plain=False):
    pixels = random.Random(seed).randbytes(3 * side * side)
    return pixels if plain else b"P6\n%d %d\n255\n" % (side, side) + pixels


def write(name, data):
    os.makedirs(os.path.dirname(path(name)), exist_ok=True)
    with open(path(name), "wb") as f:
        f.write(data)


def names(folder, split="train"):
    return [f"{folder}/{split}/{'ab'[i % 2]}/{i:03}.ppm" for i in range(COUNT if split == "train" else 8)]


def write_folder(folder, backwards=False):
    for split in ["train", "val"]:
        files = list(enumerate(names(folder, split)))
        for i, name in reversed(files) if backwards else files:
            write(name, picture(f"{split}{i}"))


def npy(descr, shape, data):
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + data


def write_arrays(folder, count=COUNT, label=lambda i: i % 2, seed=""):
    for split, n in [("train", count), ("test", 8)]:
        write(f"{folder}/{split}_images.npy",
              npy("|u1", (n, 16, 16, 3), b"".join(picture(f"{split}{i}{seed}", plain=True) for i in range(n))))
        write(f"{folder}/{split}_labels.npy", npy("<i8", (n,), struct.pack(f"<{n}q", *map(label, range(n)))))


def write_shards(folder, count=COUNT, label=lambda i: i % 2, seed=""):
    os.makedirs(path(folder), exist_ok=True)
    for split, n in [("train", count), ("val", 8)]:
        with tarfile.open(path(f"{folder}/{split}-000000.tar"), "w") as tar:
            for i in range(n):
                for end, data in [("ppm", picture(f"{split}{i}{seed}")), ("cls", str(label(i)).encode())]:
                    member = tarfile.TarInfo(f"{i:05}.{end}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def write_records(folder, per_file=8, label=lambda i: i % 2):
    for k in range(6):
        name = f"data_batch_{k + 1}.bin" if k < 5 else "test_batch.bin"
        write(f"{folder}/{name}", b"".join(bytes([label(i)]) + picture(f"{k} {i}", 32, True) for i in range(per_file)))


def begin(name, data, kind="folder", steps=2):
    """A checkpoint after so many updates: 2 is inside the first epoch, 3 at its end."""
    shutil.rmtree(path(name), ignore_errors=True)
    more = ["--size", "32", "--classes", "10"] if kind == "cifar10" else []
    rc, _, err = run(RUN + more + ["--data", kind, "--data-dir", data, "--save", name, "--steps", str(steps)])
    check(rc == 0, "the first part:", err[-3:])


def resume(name, *args, ranks=0, epochs=2):
    """Exit code, and what was said of the training set."""
    rc, _, err = run(["--resume", name, "--epochs", str(epochs), "--threads", "1", "--save", "none"] + list(args), ranks)
    return rc, [line for line in err if "training set has changed" in line], err


def goes_on(what, *args, ranks=0):
    rc, said, err = resume("inside", *args, ranks=ranks)
    check(rc == 0 and not said, what, "is taken for another set:", err[-3:])


def a_set_that_is_the_same_goes_on_in_silence():
    write_folder("same")
    begin("inside", "same")
    goes_on("what was not touched")
    goes_on("a set with other workers", "--workers", "3")
    write_folder("same-elsewhere", backwards=True)
    goes_on("a set that has moved, listed in another order", "--data-dir", "same-elsewhere")
    write("same/val/a/more.ppm", picture("more"))
    goes_on("a set with one more validation image")
    os.rename(path("same/val/a/000.ppm"), path("same/val/b/moved.ppm"))
    goes_on("a set with other validation labels")
    write("same/train/a/notes.txt", b"no picture")
    goes_on("a set with a file that is no picture")
    if MPIRUN:
        goes_on("a set on two ranks", ranks=2)


def each_change_of_a_folder_is_seen():
    def more(folder):
        write(f"{folder}/train/a/new.ppm", picture("new"))

    def fewer(folder):
        os.unlink(path(names(folder)[7]))

    def renamed(folder):
        os.rename(path(names(folder)[7]), path(f"{folder}/train/b/zzz.ppm"))

    def relabelled(folder):
        os.rename(path(names(folder)[7]), path(names(folder)[7].replace("/b/", "/a/")))

    def replaced(folder):
        write(names(folder)[7], picture("another"))

    def resized(folder):
        write(names(folder)[7], picture("another", 20))

    write_folder("whole")
    begin("inside", "whole")
    begin("edge", "whole", steps=3)
    for change, what in [(more, "had 40 images, now it has 41"), (fewer, "had 40 images, now it has 39"),
                         (renamed, "40 images as before, but other"), (relabelled, "40 images as before, but other"),
                         (replaced, "40 images as before, but other"), (resized, "40 images as before, but other")]:
        folder = "changed-" + change.__name__
        shutil.copytree(path("whole"), path(folder))
        change(folder)
        rc, said, err = resume("inside", "--data-dir", folder)
        check(rc == 1 and len(said) == 1 and what in said[0], change.__name__, "inside an epoch: exit", rc, err[-3:])
        check(said and "inside epoch 1, after 32 images" in said[0] and "--data-changed ok" in said[0], said)
        rc, said, err = resume("edge", "--data-dir", folder)
        check(rc == 0 and len(said) == 1 and what in said[0] and "warning: " in said[0], change.__name__,
              "between epochs: exit", rc, err[-3:])
        rc, said, err = resume("inside", "--data-dir", folder, "--data-changed", "ok")
        check(rc == 0 and len(said) == 1 and "epoch 1 continues with image 33 of the new order" in said[0] and
              "warning" not in said[0], change.__name__, "confirmed: exit", rc, err[-3:])


def a_set_that_shrank_below_the_position_ends_the_epoch():
    write_folder("large")
    begin("inside", "large")
    for name in names("large")[20:]:
        os.unlink(path(name))
    rc, said, err = resume("inside", "--data-changed", "ok", "--log", "shrunk.log", epochs=2)
    check(rc == 0 and said and "epoch 1 had done 32 images and ends here" in said[0], rc, err[-3:])
    rc, said, err = resume("inside")
    check(rc == 1 and said, "without leave:", rc, err[-3:])
    if MPIRUN:
        rc, said, err = resume("inside", "--data-changed", "ok", ranks=2)
        check(rc == 0 and len(said) == 1, "on two ranks:", rc, err[-3:])
        rc, said, err = resume("inside", ranks=2)
        check(rc == 1 and len(said) == 1, "refused on two ranks:", rc, err[-3:])


def arrays_shards_and_records_are_compared_too():
    def flipped(i):
        return (i + (i == 5)) % 2
    changes = {
        "npy": (write_arrays, [{"count": COUNT + 1}, {"label": flipped}, {"seed": "other"}]),
        "tar": (write_shards, [{"count": COUNT + 1}, {"label": flipped}, {"seed": "other"}]),
        "cifar10": (write_records, [{"per_file": 9}, {"label": flipped}]),
    }
    for kind, (make, others) in changes.items():
        make(f"{kind}-same")
        begin("inside", f"{kind}-same", kind)
        os.rename(path(f"{kind}-same"), path(f"{kind}-moved"))
        goes_on(kind + " elsewhere", "--data-dir", f"{kind}-moved")
        for i, other in enumerate(others):
            make(f"{kind}-{i}", **other)
            rc, said, err = resume("inside", "--data-dir", f"{kind}-{i}")
            check(rc == 1 and len(said) == 1, kind, other, "is not seen: exit", rc, err[-3:])


def an_option_that_takes_other_images_is_a_change():
    write_folder("options")
    begin("inside", "options")
    for args in [["--limit", "24"], ["--val-split", "0.25"]]:
        rc, said, err = resume("inside", *args)
        check(rc == 1 and said, *args, "is not seen: exit", rc, err[-3:])
    rc, _, err = run(RUN + ["--save", "drawn", "--samples", "40", "--steps", "2"])
    check(rc == 0, err)
    rc, said, err = resume("drawn", "--samples", "41")
    check(rc == 1 and said, "--samples 41 is not seen: exit", rc, err[-3:])
    rc, said, err = resume("drawn", "--samples", "41", "--evaluate")
    check(rc == 0 and not said, "an evaluation has no training set:", rc, err[-3:])


def a_checkpoint_without_a_digest_says_nothing():
    write_folder("old")
    begin("inside", "old", steps=2)
    for file in generations("inside"):
        header, data = read_safetensors(file)
        about = metadata(header)
        check(about["data"]["images"] == COUNT and len(about["data"]["digest"]) == 16, about.get("data"))
        change_metadata(header)
        del about["data"], about["sealed"]
        header["__metadata__"]["hvtrain"] = json.dumps(about)
        write_safetensors(file, header, data)
    write("old/train/a/new.ppm", picture("new"))
    rc, said, err = resume("inside")
    check(rc == 0 and not said, rc, err[-3:])


if __name__ == "__main__":
    run_all([a_set_that_is_the_same_goes_on_in_silence, each_change_of_a_folder_is_seen,
             a_set_that_shrank_below_the_position_ends_the_epoch, arrays_shards_and_records_are_compared_too,
             an_option_that_takes_other_images_is_a_change, a_checkpoint_without_a_digest_says_nothing],
            sys.argv[3:], HERE)
