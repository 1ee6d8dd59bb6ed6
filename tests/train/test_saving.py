#!/usr/bin/env python3
"""test_saving.py HVTRAIN MPIRUN [NAME ...]: saved work is never lost, whatever the next command line is.

The folder of --save, its lock, --resume in all its forms, and the log of a continued run.
"""
import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import (HERE, HVTRAIN, MPIRUN, TINY, change_metadata, children, command, environment, generations, kill, make_old,
                     metadata, path, python_with, read_safetensors, records, run, train, weights, write_safetensors)
from truths import check, run_all

BOTH = [0, 2] if MPIRUN else [0]
LIMIT = 1085000  # bytes of a file: room for the tensors, which are looked at when a run starts, and not for the header
BASE = TINY + "--shards 2 --batch 8".split()


def fresh(*names):
    for name in names:
        shutil.rmtree(path(name), ignore_errors=True)
        if os.path.exists(path(name)):
            os.unlink(path(name))


def files(folder):
    """What a folder holds, but for the lock."""
    return {os.path.basename(n): open(n, "rb").read() for n in glob.glob(path(folder + "/*"))}


def meta(name):
    return metadata(read_safetensors(name)[0])


def one_line(args, ranks=0, rc=1):
    """The one line of a command that is refused."""
    got, _, err = run(args, ranks, timeout=60)
    ours = [line for line in err if line.startswith("hvtrain") and "warning:" not in line]
    check(got == rc and len(ours) == 1, args, ranks, "ranks: exit", got, err[-5:])
    return ours[0] if ours else ""


def saved(folder, *more):
    """A run of three epochs that was saved there."""
    fresh(folder)
    train("--shards 2 --batch 8 --epochs 3 --save".split() + [folder, *more])


# ---- whose folder it is ----

def the_same_command_again_replaces_nothing():
    saved("again")
    before = files("again")
    for ranks in BOTH:
        fresh("again-log")
        # before anything is computed: the data are not even looked for
        for more in [[], "--data cifar10 --data-dir none".split()]:
            args = (BASE[2:] if more else BASE) + more  # without --size
            line = one_line(args + "--epochs 3 --save again --log again-log".split(), ranks)
            for part in ["--save again", "resnet20, 3 epochs, 12 updates", "--resume again", "--overwrite", "another folder"]:
                check(part in line, part, "is not in", line)
        check(files("again") == before, ranks, "ranks: files were changed")
        check(not os.path.exists(path("again-log")), "a log was begun")
    make_old("again")
    check("again/last.safetensors" in one_line(BASE + "--save again".split()), "of an earlier release")
    os.unlink(path("again/last.safetensors"))
    check("again/best.safetensors" in one_line(BASE + "--save again".split()), "only a best is there")
    os.rename(path("again/best.safetensors"), path("again/last.safetensors"))
    with open(path("again/last.safetensors"), "r+b") as f:
        f.write(b"not ours")
    line = one_line(BASE + "--save again".split())
    check("the checkpoint there cannot be read (again/last.safetensors" in line and "--overwrite" in line, line)


def leftovers_of_a_kill_do_not_keep_a_run_out():
    fresh("leftovers")
    os.mkdir(path("leftovers"))
    left = ["last.safetensors.tmp", "last-0123456789abcdef.momentum.safetensors", "best-0123456789abcdef.momentum.safetensors.tmp",
            "gen-000001.momentum.safetensors", "gen-000002.safetensors.tmp", "gen-000002.powersgd.safetensors.tmp"]
    users = ["notes.tmp", "my.safetensors.tmp", "gen-7.safetensors", "gen-000007.txt", "gen-000007.safetensors.bak", "last-1.safetensors",
             "last-0123456789abcdef.other.safetensors", "best-0123456789ABCDEF.momentum.safetensors"]
    for name in left + users:
        with open(path("leftovers/" + name), "w") as f:
            f.write("half")
    run(TINY + "--lr 1e30 --save leftovers --epochs 1".split())  # it saves nothing
    check(not set(left) & set(files("leftovers")), "at the start:", sorted(files("leftovers")))
    train("--epochs 1 --save leftovers".split())
    check(set(users) < set(files("leftovers")), "what is not ours:", sorted(files("leftovers")))


def overwriting_replaces_last_and_best_once_there_is_something_to_save():
    for ranks in BOTH:
        saved("over")
        header, data = read_safetensors("over/best.safetensors")
        change_metadata(header, top1=100)
        write_safetensors("over/best.safetensors", header, data)
        before = files("over")
        for bad in ["--lr 1e30", "--init none.safetensors"]:
            rc, _, err = run(BASE + "--seed 1 --save over --overwrite --epochs 1".split() + bad.split(), ranks)
            check(rc == 1 and files("over") == before, bad, rc, err, "and old files went")
        kinds = train("--shards 2 --batch 8 --seed 1 --save over --overwrite --epochs 1".split(), ranks)
        check(meta("over/last.safetensors")["weights"] == weights(kinds), "last is not the new run's")
        check(meta("over/best.safetensors")["weights"] == weights(kinds), "best is not the new run's")
        check(len(files("over")) == 4, sorted(files("over")))


def a_best_of_another_run_does_not_count():
    """As a kill leaves it that comes while another run is overwritten."""
    saved("mixed")
    fresh("other")
    train("--shards 2 --batch 8 --epochs 1 --seed 1 --save other".split())
    header, data = read_safetensors("mixed/best.safetensors")
    change_metadata(header, top1=100)
    write_safetensors("other/best.safetensors", header, data)
    kinds = train("--resume other --epochs 2".split())
    check(meta("other/best.safetensors")["top1"] == kinds["eval"][-1]["top1"], meta("other/best.safetensors"))


def going_back_in_a_run_needs_overwrite():
    saved("back")
    before = files("back")
    first = generations("back")[0]
    line = one_line(BASE + f"--resume {first} --save back --epochs 2".split())
    check(f"ahead (resnet20, 3 epochs, 12 updates) of {first}" in line, line)
    check(files("back") == before, "files were changed")
    train(f"--resume {first} --save back --epochs 2 --overwrite".split())
    check([meta(g)["epoch"] for g in generations("back")] == [1, 2] and meta("back/last.safetensors")["epoch"] == 2,
          [meta(g) for g in generations("back")])


# ---- --resume auto ----

def resume_auto_begins_or_goes_on():
    straight = weights(train("--shards 2 --batch 8 --epochs 3".split()))
    for ranks in BOTH:
        fresh("auto", "auto-init")
        line = "--shards 2 --batch 8 --epochs 3 --save auto --resume auto".split()
        check("start" in train(line + "--steps 4".split(), ranks), "does not begin")
        kinds = train(line, ranks)
        check(weights(kinds) == straight and kinds["epoch"][0]["epoch"] == 2, ranks, weights(kinds), straight)
        check(kinds["start"][0]["options"]["resume"] == "./auto", "the folder it goes on with is named")
        again = train(line, ranks)
        check(weights(again) == straight and "epoch" not in again, "a run that is at its end is at its end")
        with_init = "--shards 2 --batch 8 --save auto-init --resume auto --init auto".split()
        train(with_init + "--epochs 1".split(), ranks)
        check(weights(train(with_init + "--epochs 2".split(), ranks)), "--init has no meaning when it goes on")
        best = int(meta("auto/best.safetensors")["steps"])
        for name in glob.glob(path("auto/gen-*")):
            if not os.path.basename(name).startswith(os.readlink(path("auto/best.safetensors"))[:10]):
                os.unlink(name)
        kinds = train(line[:4] + "--epochs 5 --save auto --resume auto".split(), ranks)
        check(kinds["end"][0]["steps"] == 20 and len(kinds["epoch"]) == 5 - best // 4, "with best alone", kinds["epoch"])
    check("--save DIR" in one_line(BASE + "--resume auto".split(), rc=2), "--save is not named")


def start(args, ranks=0, **env):
    """In the background, until it has saved something new."""
    folder = path(args[args.index("--save") + 1] if "--save" in args else args[args.index("--resume") + 1])
    last = os.path.join(folder, "last.safetensors")
    written = lambda: os.stat(last).st_mtime_ns if os.path.exists(last) else 0
    before = written()
    p = subprocess.Popen(command(args, ranks), cwd=HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                         stderr=subprocess.DEVNULL, env=dict(environment(ranks), **env), start_new_session=True)
    end = time.time() + 60
    while written() == before and p.poll() is None and time.time() < end:
        time.sleep(0.01)
    check(p.poll() is None, "ended by itself with", p.returncode, args)
    return p


def a_requeued_command_line_goes_on():
    straight = weights(train("--shards 2 --batch 8 --epochs 12".split()))
    for ranks in BOTH:
        fresh("requeued", "requeued-log")
        line = BASE + "--epochs 12 --print-freq 1 --save requeued --resume auto --log requeued-log".split()
        kill(start(line, ranks))
        steps = int(meta(generations("requeued")[-1])["steps"])
        rc, _, err = run(line, ranks)
        log = records("requeued-log")  # each line is JSON
        starts = [i for i, r in enumerate(log) if r["record"] == "start"]
        check(rc == 0 and log[-1]["weights"] == straight, ranks, "ranks:", rc, err, log[-1])
        check(len(starts) == 2 and starts[0] == 0, "the history is gone:", starts)
        check(log[starts[1]]["resumed_steps"] == steps and log[0]["resumed_steps"] == 0, log[starts[1]])
        check([r["step"] for r in log[starts[1]:] if r["record"] == "step"] == list(range(steps + 1, 49)), "other steps")


# ---- where a run that goes on is saved ----

def resume_saves_where_it_goes_on_unless_told_otherwise():
    saved("origin")
    before = files("origin")
    for ranks in BOTH:
        for name in ["places", "elsewhere"]:
            fresh(name)
        shutil.copytree(path("origin"), path("places"))
        again = lambda *more: train(["--resume", "places", "--epochs", "4", *more], ranks)
        file = train("--resume places/last.safetensors --epochs 4".split(), ranks)
        check(files("places") == before, "a file that is resumed was saved over")
        none = again("--save", "none")
        other = again("--save", "elsewhere")
        check(files("places") == before, "--save none, or of another folder, changed this one")
        check(meta("elsewhere/last.safetensors")["weights"] == weights(other), "not saved elsewhere")
        here = again()
        check(meta("places/last.safetensors")["weights"] == weights(here), "what was trained is thrown away")
        check(len({weights(file), weights(none), weights(other), weights(here)}) == 1, "other weights")
        check(not os.path.exists(path("none")), "a folder called none")


def damage(name, at, cut=False):
    with open(path(name), "r+b") as f:
        size = f.seek(0, 2)
        if cut:
            f.truncate(at % size)
            return
        f.seek(at % size)
        byte = f.read(1)[0]
        f.seek(at % size)
        f.write(bytes([byte ^ 1 << at % 7]))


def warnings_of(args, ranks=0):
    rc, _, err = run(args, ranks)
    return rc, [line for line in err if line.startswith("hvtrain: ")]


def what_is_damaged_is_named_and_the_one_before_taken():
    """A cut and a flip in every file of the newest generation, in header and data."""
    saved("whole", "--compression", "powersgd:2")
    straight = weights(train("--shards 2 --batch 8 --epochs 4 --compression powersgd:2".split()))
    newest = sorted(n for n in os.listdir(path("whole")) if n.startswith("gen-000003."))
    check(len(newest) == 3, newest)
    for i, name in enumerate(n for n in newest for _ in range(4)):
        fresh("hurt")
        shutil.copytree(path("whole"), path("hurt"), symlinks=True)
        damage("hurt/" + name, [2, -5, 300, 5000][i % 4], cut=i % 4 in (1, 2))
        rc, said = warnings_of(BASE + "--resume hurt --epochs 4 --log log".split(), BOTH[i % len(BOTH)])
        check(rc == 0 and len(said) == 1 and "warning:" in said[0], rc, said)
        check(said and "hurt/" + name in said[0] and "continuing from hurt/gen-000002.safetensors (epoch 2, update 8)" in said[0], said)
        if not BOTH[i % len(BOTH)]:  # what factors leave depends on the ranks
            check(records("log")[-1]["weights"] == straight, "other weights than without damage")
        kept = sorted({2, 3, 4, meta("hurt/best.safetensors")["epoch"]})
        check([meta(g)["epoch"] for g in generations("hurt")] == kept and not os.path.exists(path("hurt/" + name)), "the damaged one stays", os.listdir(path("hurt")))
        check(meta("hurt/last.safetensors")["epoch"] == 4, "last")
    fresh("hurt")
    shutil.copytree(path("whole"), path("hurt"), symlinks=True)
    for name in generations("hurt"):
        damage(name, -9)
    for ranks in BOTH:
        line = one_line(BASE + "--resume hurt --epochs 4".split(), ranks)
        check(all(f"hurt/gen-00000{i}.safetensors: damaged" in line for i in (1, 2, 3)), line)


def folders_of_earlier_releases_go_on():
    straight = weights(train("--shards 2 --batch 8 --epochs 4".split()))
    for hurt in [None, b"\xff" * 8, b"damaged!"]:  # a header that is no header; data that are not those of the hash
        saved("older")
        make_old("older")
        best = meta("older/best.safetensors")["epoch"]
        if hurt:
            with open(path("older/last.safetensors"), "r+b") as f:
                f.seek(0 if hurt[0] == 255 else -8, 0 if hurt[0] == 255 else 2)
                f.write(hurt)
        rc, said = warnings_of(BASE + "--resume older --epochs 4 --log log".split())
        check(rc == 0 and len(said) == bool(hurt), rc, said)
        check(not hurt or f"continuing from older/best.safetensors (epoch {best}," in said[0], said)
        check(records("log")[-1]["weights"] == straight, "other weights")
        check(meta("older/last.safetensors")["weights"] == straight and generations("older"), "not saved")
        left = [n for n in os.listdir(path("older")) if n.startswith("last-") or (n.startswith("best-") and best == 4)]
        check(not left and not os.path.exists(path("older/last.safetensors.tmp")), "left over:", os.listdir(path("older")))


def so_many_are_kept_and_the_best():
    for keep in [1, 2, 3]:
        fresh("kept")
        kinds = train(f"--shards 2 --batch 8 --epochs 6 --save kept --keep {keep} --lr 0.3".split())
        top1 = [r["top1"] for r in kinds["eval"]]
        best = 1 + max(range(6), key=lambda i: (top1[i], -kinds["eval"][i]["loss"]))
        want = sorted({best} | set(range(7 - keep, 7)))
        check([meta(g)["epoch"] for g in generations("kept")] == want, keep, top1, os.listdir(path("kept")))
        check(meta("kept/best.safetensors")["epoch"] == best and meta("kept/last.safetensors")["epoch"] == 6, "links")
        check(len(files("kept")) == 2 * len(want) + 2, sorted(files("kept")))
        check(os.path.islink(path("kept/last.safetensors")) and not os.path.isabs(os.readlink(path("kept/last.safetensors"))), "a link")
        os.rename(path("kept"), path("kept-moved"))
        check("end" in train("--resume kept-moved --epochs 7".split()), "a folder that was moved")
        fresh("kept-moved")
    check("--keep" in one_line(TINY + "--keep 0".split(), rc=2), "keeps nothing")


def a_save_that_fails_names_what_is_complete():
    for ranks in BOTH:
        fresh("small")
        args = "--save small --epochs 4".split()
        rc, _, err = run(BASE + args, ranks, file_limit=LIMIT)
        ours = [line for line in err if line.startswith("hvtrain") and "warning:" not in line]
        check(rc == 1 and len(ours) == 1 and "there is no checkpoint of this run" in ours[0], rc, err[-3:])
        saved("small")
        before = meta("small/last.safetensors")["weights"]
        rc, _, err = run(BASE + "--resume small --epochs 4".split(), ranks, file_limit=LIMIT)
        ours = [line for line in err if line.startswith("hvtrain") and "warning:" not in line]
        check(rc == 1 and len(ours) == 1 and "small/gen-000003.safetensors of epoch 3 (update 12) is complete" in ours[0], rc, err[-3:])
        check(meta("small/last.safetensors")["weights"] == before, "it is not what it was")


def evaluation_never_saves():
    saved("seen")
    os.unlink(path("seen/.hvtrain.lock"))
    stat = lambda: {n: os.stat(path("seen/" + n)).st_mtime_ns for n in os.listdir(path("seen"))}
    before = stat()
    for ranks in BOTH:
        for more in ["--resume seen", "--resume seen/best.safetensors", "--init seen"]:
            kinds = train(["--evaluate", *more.split()], ranks)
            check("eval" in kinds and stat() == before, more, sorted(stat()), sorted(before))
    check("--save b" in one_line(TINY + "--evaluate --resume seen --save b".split(), rc=2), "not refused")
    os.chmod(path("seen"), 0o555)  # it needs to write nothing there
    kinds = train("--evaluate --resume seen".split())
    os.chmod(path("seen"), 0o755)
    check("eval" in kinds, "a folder that only can be read")


def a_run_that_keeps_nothing_says_so_at_its_start():
    loud = [a for a in BASE if a != "--quiet"] + ["--steps", "1"]
    saved("told")
    for more, part in [("", "nothing"), ("--save told-new", "told-new"), ("--resume told/last.safetensors --steps 13", "nothing"),
                       ("--resume told --save none --steps 13", "nothing"), ("--resume told --steps 13", "told, which the run continues")]:
        fresh("told-new")
        rc, _, err = run(loud + more.split())
        lines = [line for line in err if line.startswith("  save ")]
        check(rc == 0 and len(lines) == 1 and lines[0].split(None, 1)[1].startswith(part), more, rc, lines)


def hints_are_command_lines_that_work():
    folder = "a folder's name"
    loud = [a for a in BASE if a != "--quiet"]
    for more, epochs in [("--epochs 1", 2), ("--epochs 3 --steps 5", 3)]:  # twice, or the rest
        fresh(folder)
        rc, _, err = run(loud + more.split() + ["--save", folder])
        hints = [line[6:] for line in err if re.match(r"(next: |      )\S*hvtrain ", line)]
        check(rc == 0 and len(hints) == 2, rc, err[-3:])
        for hint in hints:
            p = subprocess.run(hint, shell=True, cwd=HERE, capture_output=True, text=True, timeout=60)
            check(p.returncode == 0, hint, p.stderr[-500:])
        check(meta(folder + "/last.safetensors")["epoch"] == epochs, hints, "went on, and kept something else")


def hints_start_the_same_ranks():
    loud = [a for a in BASE if a != "--quiet"] + ["--steps", "2", "--batch", "8"]
    for args, ranks, part in [("--spawn 2", 0, "hvtrain --spawn 2 --threads 1 --resume ranks"), ("--split cpu:0,cpu:1 --threads 2", 0, " --split cpu:0,cpu:1 --threads 2 --resume"),
                              ("--quiet off", 2, "mpirun ")]:
        if ranks and not MPIRUN:
            continue
        fresh("ranks")
        rc, _, err = run(loud + args.split() + ["--save", "ranks"], ranks)
        hint, = [line[6:] for line in err if line.startswith("next: ")]
        check(rc == 0 and part in hint and ("-np 2" in hint) == (ranks == 2), hint, err[-3:])
        if not ranks:
            p = subprocess.run(hint, shell=True, cwd=HERE, capture_output=True, text=True, timeout=60)
            check(p.returncode == 0, hint, p.stderr[-500:])


def hints_about_a_cosine_do_not_raise_its_rate():
    """What is printed at the end, followed to the letter, never makes the rate rise."""
    loud = [a for a in BASE if a != "--quiet"] + "--schedule cosine --save cosine".split()
    for more, goes_on in [("--epochs 3", False), ("--epochs 3 --steps 5", True), ("--steps 4", True), ("--steps 1000000 --epochs 2", False)]:
        fresh("cosine", "log")
        rc, _, err = run(loud + more.split())
        hints = [line[6:] for line in err if re.match(r"(next: |      )\S*hvtrain ", line)]
        ended = [line for line in err if line.startswith("next: --schedule cosine has ended")]
        check(rc == 0 and len(hints) == 1 + goes_on and len(ended) == (not goes_on), more, rc, err[-3:])
        check(goes_on or "--init cosine starts a new run" in ended[0], ended)
        for hint in hints:
            p = subprocess.run(hint.replace("  #", " --log log --print-freq 1  #"), shell=True, cwd=HERE, capture_output=True, text=True, timeout=60)
            check(p.returncode == 0 and "rate rises" not in p.stderr, hint, p.stderr[-500:])
        rates = [r["lr"] for r in records("log") if r["record"] == "step"] if os.path.exists(path("log")) else []
        check(rates == sorted(rates, reverse=True) and bool(rates) == goes_on, more, rates)
    fresh("cosine")
    rc, _, err = run(loud + ["--epochs", "2"])
    p = subprocess.run(["sh", "-c", '"$0" --resume cosine --threads 1', HVTRAIN], cwd=HERE, capture_output=True, text=True, timeout=60)
    check(p.returncode == 0 and "more --epochs would raise its rate again" in p.stderr, p.stderr)


def the_weights_of_a_hint_are_there():
    """Without a best checkpoint, the last one is named."""
    fresh("never")
    rc, _, err = run([a for a in BASE if a != "--quiet"] + "--save never --lr 1e8 --steps 1 --size 16".split())
    hint, = [line[6:] for line in err if "  # tests the" in line]
    kept = [name for name in ("best", "last") if os.path.exists(path(f"never/{name}.safetensors"))]
    check(rc == 0 and f"# tests the {kept[0]} weights" in hint, hint, kept, err)
    p = subprocess.run(hint, shell=True, cwd=HERE, capture_output=True, text=True, timeout=60)
    check(p.returncode == 0, hint, p.stderr[-500:])


# ---- two jobs ----

def two_jobs_do_not_save_in_one_folder():
    forever = BASE + "--epochs 1000000 --save shared".split()
    for ranks in BOTH:
        fresh("shared")
        first = start(forever, ranks, SLURM_JOB_ID="17")
        try:
            for more in ["--save shared", "--save shared --overwrite", "--resume shared", "--save shared --resume auto"]:
                line = one_line(BASE + more.split(), ranks)
                check(re.search(r"shared: another job saves there: process \d+ on \S+ \(SLURM job 17\)", line), more, line)
                check(int((re.findall(r"process (\d+)", line) + [0])[0]) in [first.pid] + children(first.pid), "another process is named")
            rc, _, err = run("--evaluate --resume shared --quiet --threads 1".split(), ranks)
            check(rc == 0, "what is saved there is not evaluated meanwhile:", err)
            check(first.poll() is None, "the first job ended with", first.returncode)
        finally:
            kill(first)
        steps = int(meta("shared/last.safetensors")["steps"])
        kinds = train(["--resume", "shared", "--steps", str(steps + 4)], ranks)
        check(kinds and kinds["end"][0]["steps"] == steps + 4, "a lock outlives who held it")


def two_jobs_do_not_write_one_log():
    forever = BASE + "--epochs 1000000 --save logged --log both-log".split()
    for ranks in BOTH:
        fresh("logged", "both-log")
        first = start(forever, ranks)
        try:
            for more in [[], ["--resume", "logged", "--evaluate"]]:
                line = one_line(BASE + more + "--epochs 1 --log both-log".split(), ranks)
                check("--log both-log: another job writes this log" in line, line)
            size = os.path.getsize(path("both-log"))
            check(size > 0 and records("both-log")[0]["record"] == "start", "it was emptied")
        finally:
            kill(first)
    p = subprocess.run([HVTRAIN] + BASE + "--steps 1 --log /dev/stdout".split(), cwd=HERE, capture_output=True, text=True)
    check(p.returncode == 0 and [json.loads(line)["record"] for line in p.stdout.splitlines()][-1] == "end", p.stderr)
    with open(path("out"), "w") as f:  # a file that a shell leads stdout to may be two programs'
        one = subprocess.Popen([HVTRAIN] + BASE + "--epochs 1000000 --log /dev/stdout".split(), cwd=HERE, stdout=f,
                               stderr=subprocess.DEVNULL)
        end = time.time() + 60
        while os.path.getsize(path("out")) == 0 and time.time() < end:
            time.sleep(0.01)
        other = subprocess.run([HVTRAIN] + BASE + "--steps 1 --log /dev/stdout".split(), cwd=HERE, stdout=f,
                               stderr=subprocess.PIPE, text=True)
        one.kill()
        one.wait()
    check(other.returncode == 0, other.stderr)


# ---- the log of a run that goes on ----

def the_log_of_a_run_that_goes_on_keeps_its_history():
    for ranks in BOTH:
        fresh("goes-on", "history")
        train("--shards 2 --batch 8 --epochs 1 --save goes-on".split(), ranks, log="history")
        first = open(path("history")).read()
        for tail, kept in [("", ""), ('{"record":"step","epo', ""), ('{"record":"note"}', '{"record":"note"}\n')]:
            with open(path("history"), "w") as f:  # what a kill in the middle of a line leaves
                f.write(first + tail)
            train("--resume goes-on --save none --epochs 2".split(), ranks, log="history")
            text = open(path("history")).read()
            check(text.startswith(first + kept + '{"record":"start"'), repr(tail), text[len(first):len(first) + 60])
            kinds = [r["record"] for r in records("history") if r["record"] != "note"]
            check(kinds.count("start") == 2 and kinds.count("end") == 2 and kinds[-1] == "end", kinds)
        with open(path("history"), "w") as f:
            f.write('{"record":"note"}\na line of the user')
        run(TINY + "--resume goes-on --save none --epochs 2 --log history".split(), ranks)
        lines = open(path("history")).read().splitlines()
        check(lines[1] == "a line of the user" and json.loads(lines[2])["record"] == "start", lines[:3])
        train("--shards 2 --batch 8 --epochs 1".split(), ranks, log="history")
        check([r["record"] for r in records("history")].count("start") == 1, "a new run did not replace it")


# ---- options of the run that goes on ----

def the_frequency_of_evaluations_is_carried():
    fresh("rarely")
    train("--shards 2 --batch 8 --epochs 1 --eval-freq 0 --save rarely".split())
    kinds = train("--resume rarely --epochs 4".split())
    check(len(kinds["epoch"]) == 3 and len(kinds["eval"]) == 1, kinds["epoch"], kinds["eval"])
    rc, _, err = run(TINY + "--resume rarely --epochs 5 --eval-freq 1".split())
    check(rc == 0 and not [line for line in err if "eval-freq" in line], "it changes no weights:", err)


def what_a_file_holds_is_said_where_it_does_not_fit():
    fresh("small", "large")
    train("--shards 4 --batch 4 --epochs 1 --save small".split())
    train("--model resnet18 --stem cifar --limit 16 --epochs 1 --save large".split())
    for more, parts in [("--evaluate --init large", ["large/gen-000001.safetensors", "saved with --model resnet18 --stem cifar", "has --model resnet20"]),
                        ("--resume small --model resnet32", ["small/gen-000001.safetensors", "saved with --model resnet20", "has --model resnet32"]),
                        ("--resume small --shortcut B --model resnet56", ["--model resnet20 --shortcut A", "--model resnet56 --shortcut B"])]:
        line = one_line(TINY + more.split())
        check(all(p in line for p in parts) and (line.index("saved with") < line.index("differ") if "differ" in line else True), more, line)
    if MPIRUN:
        line = one_line("--resume small --threads 1 --quiet --epochs 2".split(), 5, rc=2)
        check("small was saved with --shards 4, too few for 5 ranks" in line, line)
    rc, _, err = run("--resume small --threads 1 --quiet --epochs 2 --shards 2".split())
    check(rc == 0 and any("--shards was 4 in small and is 2 now" in line and "8 images" in line for line in err), rc, err)


def init_of_a_folder_takes_its_last():
    saved("whole")
    want = weights(train("--evaluate --init whole/last.safetensors".split()))
    check(want and weights(train("--evaluate --init whole".split())) == want, "not its last")
    with open(path("whole/last.safetensors"), "rb") as f:
        before = f.read()
    os.link(path("whole/last.safetensors"), path("whole/linked"))
    check("same file" in one_line(TINY + "--evaluate --init whole --log whole/linked".split()), "a log over the weights")
    check(open(path("whole/last.safetensors"), "rb").read() == before, "the weights are a log now")


def files_of_torch_save_are_told_how_to_become_safetensors():
    for name, begins in [("zip.pth", b"PK\3\4\0\0\x08\x08" + bytes(100)), ("old.pth", b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.")]:
        with open(path(name), "wb") as f:
            f.write(begins)
        line = one_line(TINY + ["--init", name])
        check(name in line and "torch.save" in line and "save_file" in line, line)
    os.rename(path("zip.pth"), path("zip.pt2"))
    check("--model zip.pt2 without --init" in one_line(TINY + ["--init", "zip.pt2"]), "a model given as weights")
    python = python_with("torch, safetensors.torch")
    fresh("torch-of")
    want = weights(train("--epochs 1 --save torch-of".split()))
    make = ("import torch, sys; from safetensors.torch import load_file; s = load_file('torch-of/last.safetensors'); "
            "torch.save(s, 'a file.pth'); torch.save({'state_dict': s, 'epoch': 3}, 'whole.pth'); "
            "torch.save({'model_state_dict': s, 'optimizer': {}}, 'theirs.pth'); s['tied'] = None; torch.save({'model': s}, 'model.pth'); "
            "del s['tied']; "
            "torch.save(s, 'older.pth', _use_new_zipfile_serialization=False)")
    p = subprocess.run([python, "-c", make], cwd=HERE, capture_output=True, text=True)
    check(p.returncode == 0, p.stderr[-500:])
    os.makedirs(path("bin"), exist_ok=True)
    if not os.path.exists(path("bin/python3")):
        with open(path("bin/python3"), "w") as f:
            f.write(f'#!/bin/sh\nexec "{python}" "$@"\n')
        os.chmod(path("bin/python3"), 0o755)
    for name in ["a file", "whole", "theirs", "model", "older"]:
        line = one_line(TINY + ["--init", name + ".pth"])
        convert = line[line.index("python3 -c"):]
        p = subprocess.run(convert, shell=True, cwd=HERE, capture_output=True, text=True,
                           env=dict(os.environ, PATH=path("bin") + ":" + os.environ["PATH"]))
        check(p.returncode == 0, convert, p.stderr[-500:])
        check(weights(train(["--evaluate", "--init", name + ".safetensors"])) == want, name, "gives other weights")


def an_evaluation_adds_to_a_log():
    run(TINY + "--epochs 1 --save seen --overwrite --log seen/log".split())  # the folder is made first
    before = open(path("seen/log")).read()
    run("--resume seen --evaluate --quiet --threads 1 --log seen/log".split())
    after = open(path("seen/log")).read()
    check(after.startswith(before) and len(after) > len(before), "the log of training is gone")
    os.makedirs(path("hollow"), exist_ok=True)
    check("--save hollow --resume auto" in one_line(TINY + "--resume hollow".split()), "no hint")


TESTS = [
    an_evaluation_adds_to_a_log,
    the_same_command_again_replaces_nothing,
    leftovers_of_a_kill_do_not_keep_a_run_out,
    overwriting_replaces_last_and_best_once_there_is_something_to_save,
    a_best_of_another_run_does_not_count,
    going_back_in_a_run_needs_overwrite,
    resume_auto_begins_or_goes_on,
    a_requeued_command_line_goes_on,
    resume_saves_where_it_goes_on_unless_told_otherwise,
    what_is_damaged_is_named_and_the_one_before_taken,
    folders_of_earlier_releases_go_on,
    so_many_are_kept_and_the_best,
    a_save_that_fails_names_what_is_complete,
    evaluation_never_saves,
    a_run_that_keeps_nothing_says_so_at_its_start,
    hints_are_command_lines_that_work, hints_start_the_same_ranks, hints_about_a_cosine_do_not_raise_its_rate, the_weights_of_a_hint_are_there,
    two_jobs_do_not_save_in_one_folder,
    two_jobs_do_not_write_one_log,
    the_log_of_a_run_that_goes_on_keeps_its_history,
    the_frequency_of_evaluations_is_carried,
    what_a_file_holds_is_said_where_it_does_not_fit,
    init_of_a_folder_takes_its_last,
    files_of_torch_save_are_told_how_to_become_safetensors,
]


if __name__ == "__main__":
    run_all(TESTS, sys.argv[3:], HERE)
