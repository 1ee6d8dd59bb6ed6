#!/usr/bin/env python3
"""test_shards.py HVTRAIN MPIRUN STUCK [NAME ...]: the shards of an update, on any number of ranks and in any division,
train to the same bits. STUCK is hvtrain with a place to be slow in (stuck.c)."""
import os
import subprocess
import sys

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, command, environment, records, run
from truths import Skip, check, run_all

STUCK = os.path.abspath(sys.argv[3])
# Six updates, the last one short.
RUN = "--size 12 --samples 90 --batch 2 --shards 8 --epochs 1 --threads 1 --quiet --augment crop:2,flip --log log".split()


def weights(args, ranks=0):
    rc, _, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", *args, "on", ranks, "ranks:", err[-3:])
    return records("log")[-1].get("weights")


def several():
    if not MPIRUN:
        raise Skip("no mpirun")


def eight_shards_have_one_hash_on_any_number_of_ranks():
    several()
    want = weights([])
    for ranks in 1, 2, 3, 5, 6, 7, 8:
        check(weights([], ranks) == want, ranks, "ranks differ")


def every_way_of_adding_has_the_bits_of_one_rank():
    several()
    for alone, more in (("", "--comm mpi"), ("", "--optimizer-state replicated"), ("", "--comm mpi --optimizer-state sharded"),
                        ("", "--overlap worker --bucket 64KiB"), ("--sync-bn", "--comm mpi"), ("--sync-bn", ""),
                        ("--clip-grad-norm 0.5", ""), ("--clip-grad-norm 0.5", "--optimizer-state replicated"),
                        ("--reduction adasum", ""), ("--reduction adasum", "--comm mpi --bucket 0"),
                        ("--reduction adasum --sync-bn --optimizer lamb --lr 0.01", "--balance 5,2,1"),
                        ("--amp bf16", ""), ("--optimizer adamw --lr 0.001 --ema 0.9", ""), ("--amp f16", "")):
        want = weights(alone.split())
        check(weights((alone + " " + more).split(), 3) == want, alone, more, "differs")


def adasum_is_not_the_mean():
    mean, adasum = weights([]), weights(["--reduction", "adasum"])
    check(mean != adasum, "--reduction changes nothing")
    sent = [[r for r in (weights(["--reduction", how], 2), records("log"))[1] if r["record"] == "start"][0]["exchange_bytes"]
            for how in ("mean", "adasum")] if MPIRUN else [0, 0]
    check(0 <= sent[1] - sent[0] < 10000, "bytes of an exchange:", sent)
    one = [weights(["--shards", "1", "--reduction", how]) for how in ("mean", "adasum")]
    check(one[0] == one[1], "one shard has other bits:", one)


def a_division_by_hand_has_the_bits_of_one_rank():
    several()
    want = weights([])
    for ranks, balance in (2, "5,3"), (3, "1,6,1"), (3, "3,3,2 --comm mpi"):
        check(weights(["--balance", *balance.split()], ranks) == want, balance, "differs")


def any_number_of_shards_may_be_divided():
    several()
    for shards in "3", "6", "7", "11":
        want = weights(["--shards", shards])
        for ranks in 2, 3:
            check(weights(["--shards", shards], ranks) == want, shards, "shards on", ranks, "ranks differ")


def a_job_goes_on_with_fewer_ranks():
    several()
    want = weights(["--epochs", "2", "--save", "whole"], 4)
    weights(["--save", "part"], 4)
    check(weights(["--epochs", "2", "--resume", "part", "--save", "part"], 3) == want, "3 ranks go on with other bits")


def a_slower_rank_gets_fewer_shards():
    several()
    args = ["--samples", "400", "--print-freq", "5"]
    want = weights(args)
    words = [STUCK if word == HVTRAIN else word for word in command(RUN + args + ["--balance", "auto"], 2)]
    p = subprocess.run(words, cwd=HERE, capture_output=True, text=True, timeout=300,
                       env=dict(environment(2), HVT_TEST_SLOW_FORWARD="1:100"))
    check(p.returncode == 0, p.stderr[-800:])
    log = records("log")
    balance = [r for r in log if r["record"] == "balance"]
    check(balance and balance[0]["step"] == 9 and balance[0]["shards"][0] > balance[0]["shards"][1] and
          sum(balance[0]["shards"]) == 8, balance)
    check(balance[0]["seconds"][1] > 0.1 and balance[0]["seconds"][0] > 0, balance)
    check(log[-1]["weights"] == want, "another division has other bits")


def divisions_that_cannot_be_are_one_line():
    for ranks, args, rc, part in (
            (2, "--balance 5,4", 2, "--balance 5,4: expected a number of shards for each of 2 ranks, 8 in all"),
            (2, "--balance 5,2", 2, "--balance 5,2 has 7 shards on 2 ranks; expected 8 (--shards) on 2"),
            (2, "--balance 8", 2, "has 8 shards on 1 ranks"), (2, "--balance 3,3,2", 2, "has 6 shards on 2 or more ranks"),
            (2, "--balance 5,x", 2, "--balance 5,x: expected"), (2, "--balance 0,8", 2, "--balance 0,8: expected"),
            (2, "--balance 5,3,", 2, "--balance 5,3,: expected"), (2, "--balance even", 2, "--balance even: expected off, auto"),
            (3, "--shards 2", 2, "--shards 2 on 3 ranks: expected a shard for each rank; use at most 2 ranks"),
            (2, "--balance auto --compression bf16", 2, "--balance auto with --compression bf16")):
        if not MPIRUN:
            continue
        code, _, err = run(RUN + args.split(), ranks)
        said = [line for line in err if line.startswith("hvtrain:")]
        check(code == rc and len(said) == 1 and part in said[0], args, "exit", code, said)


if __name__ == "__main__":
    run_all([eight_shards_have_one_hash_on_any_number_of_ranks, every_way_of_adding_has_the_bits_of_one_rank,
             adasum_is_not_the_mean, a_division_by_hand_has_the_bits_of_one_rank, any_number_of_shards_may_be_divided, a_job_goes_on_with_fewer_ranks, a_slower_rank_gets_fewer_shards,
             divisions_that_cannot_be_are_one_line], sys.argv[4:], HERE)
