"""Usage: test_augment.py HVTRAIN MPIRUN [TRUTH ...]. Random changes of training images as a user has them: the same weights for
any ranks and workers, none of them in the evaluation."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, MPIRUN, path, records, run  # noqa: E402
from truths import check, run_all  # noqa: E402

RUN = "--model mlp --size 16 --samples 120 --batch 5 --shards 6 --epochs 2 --threads 1 --lr 0.05 --quiet --log log".split()
RANKS = [0, 2, 3] if MPIRUN else [0]
MIXED = ["--mixup 0.4 --label-smoothing 0.1", "--cutmix 1 --erase 0.5 --augment trivial", "--mixup 0.2 --cutmix 1 --sync-bn --model resnet20 --epochs 1",
         "--erase 1"]
WAYS = ["--augment trivial", "--augment rand:2,9,flip", "--augment crop:2,flip,auto", "--augment color:0.4,0.4,0.4,0.1"]


def train(args, ranks=0):
    """Weights and evaluations of a run that must succeed."""
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", " ".join(args), "on", ranks, "ranks:", err[-3:])
    if rc:
        return None, None
    all_ = records("log")
    return all_[-1]["weights"], [(r["top1"], r["loss"]) for r in all_ if r["record"] == "eval"]


def neither_ranks_nor_workers_change_the_weights():
    plain = train([])
    check(plain[0], "no weights")
    for way in WAYS + MIXED:
        want = train(way.split())
        check(want[0] != plain[0], way, "changes nothing")
        for ranks in RANKS:
            got = train(way.split() + ["--workers", str(ranks)], ranks)
            check(got == want, way, ranks, "ranks:", got, "not", want)


def evaluation_sees_the_images_unchanged():
    want = train(["--lr", "0"])
    for way in WAYS + MIXED[:2]:
        check(train(way.split() + ["--lr", "0"]) == want, way, "changes the evaluation")


def a_run_that_continues_has_the_same_weights():
    way = "--mixup 0.4 --cutmix 1 --erase 0.5 --augment trivial,flip --save kept --overwrite".split()
    want = train(way)
    train(way + "--steps 3".split())
    got = train("--resume kept".split())
    check(got[0] == want[0], "continued after 3 updates:", got[0], "not", want[0])


def repeated_images_make_an_epoch_of_as_many():
    some = "--samples 600 --model mlp --repeat-augment 3 --augment flip,crop:2".split()
    want = train(some)
    steps = max(r["step"] for r in records("log") if r["record"] == "step")
    check(steps <= 2 * 18, steps)  # 512 images, 510 of them in 6 shards, 17 updates an epoch of 5 each
    for ranks in RANKS:
        check(train(some, ranks) == want, ranks, "ranks: other weights")
    rc, _, err = run(RUN + ["--repeat-augment", "2"])
    check(rc == 1 and any("a multiple of 256 images" in line and "120" in line for line in err), err)


def mixed_labels_are_refused_where_there_are_none():
    rc, _, err = run("--mixup 0.2 --loss mse --data npy --data-dir nowhere".split())
    check(rc and any("--loss ce" in line for line in err), rc, err)


def inspect_writes_images_to_look_at():
    args = "inspect --size 24 --samples 40 --batch 30 --augment trivial,flip --erase 1 --output".split()
    rc, out, err = run(args + [path("seen")])
    names = sorted(os.listdir(path("seen"))) if rc == 0 else []
    check(rc == 0 and len(names) == 30 and names[7].startswith("007-"), rc, out, err, names)
    data = open(path("seen") + "/" + names[0], "rb").read() if names else b""
    check(data[:8] == b"\x89PNG\r\n\x1a\n" and data[16:24] == bytes([0, 0, 0, 24] * 2), data[:30])
    rc, _, err = run(args + [path("seen")])
    check(rc == 1 and any("the folder has pictures, such as 0" in line for line in err) and sorted(os.listdir(path("seen"))) == names, err)
    rc, _, err = run(["inspect", "--recipe", "cifar10-he", "--data", "synth", "--samples", "8", "--output", path("by-recipe")])
    check(rc == 0 and len(os.listdir(path("by-recipe"))) == 8, err)
    rc, _, err = run(args + [path("missing/seen")])
    check(rc == 1 and any("missing/seen" in line for line in err), err)
    rc, _, err = run(["inspect", "resnet18", "--output", path("seen")])
    check(rc == 1 and any("--output is for the images of --data" in line for line in err), err)


TESTS = [inspect_writes_images_to_look_at, a_run_that_continues_has_the_same_weights, repeated_images_make_an_epoch_of_as_many,
         mixed_labels_are_refused_where_there_are_none, neither_ranks_nor_workers_change_the_weights, evaluation_sees_the_images_unchanged]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
