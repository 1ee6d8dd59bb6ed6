"""Usage: test_augment.py HVTRAIN MPIRUN [TRUTH ...]. Random changes of training images as a user has them: the same weights for
any ranks and workers, none of them in the evaluation."""
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, MPIRUN, records, run  # noqa: E402
from truths import check, run_all  # noqa: E402

RUN = "--model mlp --size 16 --samples 120 --batch 5 --shards 6 --epochs 2 --threads 1 --lr 0.05 --quiet --log log".split()
RANKS = [0, 2, 3] if MPIRUN else [0]
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
    for way in WAYS:
        want = train(way.split())
        check(want[0] != plain[0], way, "changes nothing")
        for ranks in RANKS:
            got = train(way.split() + ["--workers", str(ranks)], ranks)
            check(got == want, way, ranks, "ranks:", got, "not", want)


def evaluation_sees_the_images_unchanged():
    want = train(["--lr", "0"])
    for way in WAYS:
        check(train(way.split() + ["--lr", "0"]) == want, way, "changes the evaluation")


TESTS = [neither_ranks_nor_workers_change_the_weights, evaluation_sees_the_images_unchanged]

if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
