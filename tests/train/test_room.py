"""Usage: test_room.py HVTRAIN MPIRUN SMALL_DISK [TRUTH ...]. A disk that is too small for one checkpoint, or for the
predictions, ends a run before its first update; one that is too small for all files to keep is warned about."""
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import hvtrain  # noqa: E402
from hvtrain import HERE, MPIRUN, path, run  # noqa: E402
from truths import Skip, check, run_all  # noqa: E402

SMALL = os.path.abspath(sys.argv[3])
RUN = "--model resnet20 --size 16 --samples 64 --batch 32 --threads 1 --quiet --log log --epochs 1".split()
UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def on_disk(free, args, ranks=0):
    """What a run says of the room on a disk with so many bytes."""
    whole, hvtrain.HVTRAIN = hvtrain.HVTRAIN, SMALL
    before = hvtrain.environment
    hvtrain.environment = lambda n: {**before(n), "HVT_TEST_FREE": str(free)}
    try:
        rc, out, err = run(RUN + args, ranks)
    finally:
        hvtrain.HVTRAIN, hvtrain.environment = whole, before
    return rc, [line for line in err if " free" in line], err


def numbers(line):
    return [float(n) * UNITS[unit] for n, unit in re.findall(r"([0-9.]+) ([KMG]iB)", line)]


def size_of(folder):
    """Bytes of the newest generation's files."""
    return sum(os.path.getsize(path(f"{folder}/{name}")) for name in os.listdir(path(folder)) if name.startswith("gen-000001."))


KINDS = [["--optimizer", "sgd", "--momentum", "0"], ["--optimizer", "sgd"], ["--optimizer", "adamw"],
         ["--optimizer", "adam", "--ema", "0.9"], ["--freeze", "conv1,bn1"]]


def a_disk_without_room_for_one_checkpoint_ends_the_run_at_its_start():
    for i, kind in enumerate(KINDS):
        rc, said, err = on_disk("none", kind + ["--save", f"whole{i}"])
        check(rc == 0 and not said, kind, "a disk that has no numbers:", rc, err[-3:])
        bytes = size_of(f"whole{i}")
        rc, said, err = on_disk(bytes * 9 // 10, kind + ["--save", f"none{i}"])
        check(rc == 1 and len(said) == 1 and said[0].startswith(f"hvtrain: --save none{i}: a checkpoint takes"), kind, rc, err)
        needed, free = numbers(said[0]) if said else (0, 0)
        check(0.93 * bytes < needed < 1.05 * bytes, kind, "takes", bytes, "said", needed)
        check(abs(free - bytes * 9 // 10) < 0.06 * bytes, kind, "free", bytes * 9 // 10, "said", free)
        check(not [name for name in os.listdir(path(f"none{i}")) if name.startswith("gen-")], "something was saved")
        rc, said, err = on_disk(bytes, kind + ["--save", f"one{i}"])
        check(rc == 0 and not said, kind, "one checkpoint and one save fit:", rc, err[-3:])
        rc, said, err = on_disk(bytes // 2, kind + ["--save", "none"])
        check(rc == 0 and not said, kind, "a run that does not save:", rc, err[-3:])


def a_disk_without_room_for_all_that_is_kept_is_warned_of():
    rc, _, err = on_disk("none", ["--save", "first"])
    bytes = size_of("first")
    for more, files in [(["--epochs", "9"], 5), (["--epochs", "9", "--keep", "1"], 3), (["--epochs", "2"], 2),
                        (["--save-every", "1steps"], 3), (["--save-every", "1h", "--steps", "2"], 2)]:
        rc, said, err = on_disk(bytes * files - bytes // 2, more + ["--save", "some", "--overwrite"])
        check(rc == 0 and len(said) == 1 and "warning" in said[0] and f"up to {files} more" in said[0], more, rc, err[-3:])
        rc, said, err = on_disk(bytes * files, more + ["--save", "all", "--overwrite"])
        check(rc == 0 and not said, more, "all of it fits:", rc, err[-3:])


def what_is_there_already_needs_no_room():
    rc, _, err = on_disk("none", ["--save", "begun", "--epochs", "3"])
    rc, said, err = on_disk(size_of("begun") * 2, ["--resume", "begun", "--epochs", "9"])
    check(rc == 0 and not said, "three generations lie there:", rc, err[-3:])
    rc, said, err = on_disk(1, ["--evaluate", "--resume", "begun"])
    check(rc == 0 and not said, "an evaluation saves nothing:", rc, err[-3:])


def one_rank_looks_and_all_end():
    if not MPIRUN:
        raise Skip("no mpirun")
    rc, said, err = on_disk(100000, ["--save", "ranks", "--batch", "16"], ranks=2)
    said = [line for line in said if "/dev/shm" not in line]  # which is as small
    check(rc == 1 and len(said) == 1 and "a checkpoint takes" in said[0], rc, err)


def predictions_must_fit_too():
    rc, _, err = on_disk("none", ["--save", "weights"])
    for flag in ["--predict", "--predict-logits"]:
        rc, said, err = on_disk(100, ["--evaluate", "--resume", "weights", flag, "out", "--samples", "500"])
        check(rc == 1 and len(said) == 1 and f"{flag} out: the " in said[0], flag, rc, err)
        check(not os.path.exists(path("out")) and not os.path.exists(path("out.tmp")), flag, "leaves a file")
        rc, said, err = on_disk(2**20, ["--evaluate", "--resume", "weights", flag, "out"])
        check(rc == 0 and not said and os.path.exists(path("out")), flag, "fits:", rc, err)
        os.unlink(path("out"))


def a_limit_of_file_sizes_is_seen():
    rc, _, err = run(RUN + ["--save", "limited"], file_limit=102400)
    check(rc == 1 and "this process may write files of 100.0 KiB at most" in err[-1] and "(ulimit -f)" in err[-1], rc, err)
    rc, _, err = run(RUN + ["--save", "unlimited"], file_limit=3 << 20)
    check(rc == 0, rc, err)


def a_real_disk_is_looked_at():
    os.makedirs(path("disk"))
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", path("disk")], stderr=subprocess.DEVNULL).returncode:
        raise Skip("no tmpfs can be mounted")
    try:
        rc, _, err = run(RUN + ["--save", "disk/run"])
        check(rc == 1 and "--save disk/run: a checkpoint takes 2.1 MiB, but the disk has only" in err[-1], rc, err)
        subprocess.run(["mount", "-o", "remount,ro", path("disk")], check=True)
        for args, what in [(["--save", "disk/other"], "--save disk/other: cannot make this folder: Read-only file system"),
                           (["--save", "disk/run"], "--save disk/run: cannot write there: Read-only file system"),
                           (["--log", "disk/log"], "--log disk/log: cannot write: Read-only file system")]:
            rc, _, err = run(RUN + args)
            check(rc == 1 and what in err[-1], args, rc, err)
    finally:
        subprocess.run(["umount", "-l", path("disk")])


def a_missing_folder_is_named():
    for flag in ["--save", "--log", "--timeline"]:
        rc, _, err = run(RUN + [flag, "nowhere/x"])
        check(rc == 1 and f"{flag} nowhere/x: cannot" in err[-1], flag, rc, err)
    rc, _, err = run(RUN + ["--save", "nowhere/x"])
    check("the folder above it does not exist" in err[-1], err)


if __name__ == "__main__":
    run_all([a_disk_without_room_for_one_checkpoint_ends_the_run_at_its_start,
             a_disk_without_room_for_all_that_is_kept_is_warned_of, what_is_there_already_needs_no_room,
             one_rank_looks_and_all_end, predictions_must_fit_too, a_limit_of_file_sizes_is_seen, a_real_disk_is_looked_at,
             a_missing_folder_is_named], sys.argv[4:], HERE)
