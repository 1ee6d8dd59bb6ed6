"""Usage: test_hvtrain_check.py HVTRAIN MPIRUN STUCK [TRUTH ...]. `hvtrain check` on jobs that are as they should be, and on
jobs with one fault each. STUCK is hvtrain with a place to get stuck in (stuck.c)."""
import os
import re
import shutil
import signal
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import hvtrain  # noqa: E402
from hvtrain import HERE, HVTRAIN, MPIRUN, command, environment, path, rank_of, run  # noqa: E402
from truths import Skip, check, on_ranks, run_all  # noqa: E402

STUCK = os.path.abspath(sys.argv[3])
NAMES = ["mpi", "launcher", "cores", "network", "clocks", "memory", "limits", "options", "data", "gpu", "build",
         "model", "save", "sums"]
# Other programs may starve a rank of a loaded machine.
PATIENT = ["--stall-abort", "100s", "--threads", "1"]


def lines(out):
    """Verdict and text by name, and the last line."""
    found = {}
    rest = out.splitlines()
    for line in rest[:-1]:
        m = re.fullmatch(r"(ok|warn|FAIL) {2,4}(\w+) +(.+)", line)
        check(m, "no line of a check:", line)
        if m:
            check(line.index(m[2]) == 6 and line.index(m[3], 6 + len(m[2])) == 16, "columns:", line)
            found[m[2]] = (m[1], m[3])
    return found, rest[-1] if rest else ""


def checked(args, ranks=0, env={}, program=None):
    """Exit code, lines by name, the last line, stderr."""
    p = subprocess.run(program or command(["check"] + PATIENT + args, ranks), cwd=HERE, stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, env={**environment(ranks), **env}, timeout=200)
    found, last = lines(p.stdout)
    return p.returncode, found, last, p.stderr


def faults(found):
    return {name: text for name, (verdict, text) in found.items() if verdict == "FAIL"}


def a_good_job_is_ready(ranks=[0, 2, 3]):
    for n in ranks if MPIRUN else [0]:
        code, found, last, err = checked(["--save", "new"], n)
        check(list(found) == NAMES, n, "lines:", list(found))
        check(code == 0 and not faults(found) and last.startswith("ready"), n, code, found, last, err)
        text = found["launcher"][1]
        check(text.startswith(f"{n} ranks on 1 host (" if n else "one process on "), n, text)
        check(re.search("comm shm: 64 bytes in [0-9.]+ us; 8 MiB in [0-9.]+ ms, [0-9.]+ GB/s" if n else "nothing to exchange",
                        found["sums"][1]), n, found["sums"])
        check(re.match("new: [0-9.]+ .iB free for checkpoints of 2.1 MiB", found["save"][1]) and not os.path.exists(path("new")), n, found["save"])
    code, found, last, err = checked(["--quiet"], ranks[0])
    check(code == 0 and not any(v == "ok" for v, _ in found.values()), "quiet:", found)


def what_the_docs_show_is_what_a_check_prints():
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/clusters.md")) as f:
        page = f.read()
    shown, last = lines(re.search(r"hvtrain check.*?```\n+```\n(.*?)^```", page, re.S | re.M).group(1))
    check(list(shown) == NAMES and last == "ready", "docs show", list(shown), last)
    table = re.findall(r"^\| `(\w+)` \|", page, re.M)
    check(table[:len(NAMES)] == NAMES, "the table has", table)
    code, found, last, err = checked(["--save", "run-of-docs"])
    same = ["limits", "options", "data", "save", "model"]
    plain = {name: re.sub("run-of-docs", "run", re.sub("[0-9.]+ [KMGT]iB", "N", text)) for name, (_, text) in found.items()}
    for name in same:
        check(re.sub("[0-9.]+ [KMGT]iB", "N", shown[name][1]) == plain[name], name, shown[name][1], plain[name])


def a_check_has_a_deadline():
    began = time.time()
    code = subprocess.run([HVTRAIN, "check", "--threads", "1"], cwd=HERE, stdout=subprocess.DEVNULL, timeout=200).returncode
    check(code == 0 and time.time() - began < 100, code, time.time() - began)


def a_launcher_of_another_mpi_is_named():
    for env, said in [({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "0"},
                       "the launcher started 4 processes (OMPI_COMM_WORLD_SIZE), but MPI sees 1: use the mpirun of the MPI"),
                      ({"PMI_SIZE": "3", "PMI_RANK": "0"}, "the launcher started 3 processes (PMI_SIZE), but MPI sees 1"),
                      ({"SLURM_STEP_NUM_TASKS": "4", "SLURM_PROCID": "0"}, "srun started 4 tasks"),
                      ({"RANK": "0", "WORLD_SIZE": "2"}, "env:// needs MASTER_ADDR")]:
        if not MPIRUN and "RANK" not in env:
            said = "a launcher started"
        code, found, last, err = checked([], env=env)
        check(code == 1 and list(faults(found)) == ["launcher"] and faults(found)["launcher"].startswith(said), env, found, err)
        check(last.startswith("not ready: 1 FAIL"), last)
        if env.get("PMI_RANK") or env.get("OMPI_COMM_WORLD_RANK"):  # one process says it for all
            other = {k: "1" if k.endswith("RANK") else v for k, v in env.items()}
            code, found, last, err = checked([], env=other)
            check(code == 1 and not found and not last, "another rank:", found, last)
    code, found, last, err = checked([], env={"SLURM_JOB_ID": "7", "SLURM_NTASKS": "8"})
    check(code == 0 and found["launcher"][0] == "warn" and "in a SLURM job of 8 tasks: srun" in found["launcher"][1], found)


def ranks_on_one_core_are_named():
    if not MPIRUN or len(os.sched_getaffinity(0)) < 2:
        raise Skip("no mpirun, or one processor")
    core = min(os.sched_getaffinity(0))
    program = ["sh", "-c", f'exec taskset -c {core} "$0" "$@"', HVTRAIN, "check"] + PATIENT
    if not shutil.which("taskset"):
        raise Skip("no taskset")
    code, found, last, err = checked([], 2, program=on_ranks(MPIRUN, 2, program))
    check(code != 0 and re.match("2 ranks on .* are bound to 1 processor of [0-9]+, and take turns: start them with mpirun "
                                 "--bind-to none", faults(found).get("cores", "")), code, found, err)


def faults_of_the_folder_of_save_are_named():
    os.mkdir(path("mine"), 0o700)
    open(path("mine/file"), "w").close()
    for save, said in [("mine/file", "mine/file: cannot create a file there: Not a directory"),
                       ("none/such/place", "none/such/place: the folder above it does not exist: mkdir -p none/such"),
                       ("/proc", "/proc: cannot create a file there: its file system takes no new files;"),
                       ("/proc/x", "/proc/x: cannot create a file in /proc: its file system takes no new files;")]:
        code, found, last, err = checked(["--save", save])
        check(code == 1 and list(faults(found)) == ["save"] and faults(found)["save"].startswith(said), save, found, err)
    code, found, last, err = checked(["--save", "mine"])
    check(code == 0 and re.match("mine: .* free for checkpoints of .*; sync, rename and locks work", found["save"][1]), found)
    check(os.listdir(path("mine")) == ["file"], "left behind:", os.listdir(path("mine")))

    code, _, err = run("--size 16 --samples 64 --batch 32 --threads 1 --steps 1 --quiet --save run".split())
    check(code == 0, err)
    code, found, last, err = checked(["--save", "run"])
    check("save" in faults(found) and "--resume auto continues it" in faults(found)["save"], found)
    for more in [["--resume", "auto"], ["--overwrite"]]:
        code, found, last, err = checked(["--save", "run"] + more)
        check(code == 0 and found["save"][0] == "ok", more, found, err)
    holder = subprocess.Popen([sys.executable, "-c", "import fcntl, sys; f = open(sys.argv[1]); fcntl.flock(f, fcntl.LOCK_EX); "
                               "print(1, flush=True); sys.stdin.read()", path("run/.hvtrain.lock")], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE)
    holder.stdout.readline()
    code, found, last, err = checked(["--resume", "run"])
    holder.communicate()
    check("another job saves there now" in faults(found).get("save", ""), found)


def mounted(script, ranks=2):
    """A check below other mounts; the shell script may use $0."""
    flags = ["--mount"] if os.getuid() == 0 else ["--user", "--map-root-user", "--mount"]
    if not MPIRUN or subprocess.run(["unshare", *flags, "true"], capture_output=True).returncode:
        raise Skip("no mpirun, or no mount namespace can be had")
    os.makedirs(path("mounted"), exist_ok=True)
    # in a user namespace this is root, too
    args = on_ranks(MPIRUN, ranks, [HVTRAIN, "check"] + PATIENT + ["--save", "mounted"])
    args[1:1] = ["--allow-run-as-root"] * (os.getuid() != 0)
    p = subprocess.run(["unshare", *flags, "sh", "-c", script + ' && exec "$@"', path("mounted"), *args], cwd=HERE,
                       stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(ranks), timeout=200)
    return p.returncode, p.stdout, p.stderr


def a_folder_that_is_read_only_is_named():
    code, out, err = mounted('mount -t tmpfs -o ro tmpfs "$0"')
    found, last = lines(out)
    check(code != 0 and faults(found) == {"save": "mounted: cannot create a file there: Read-only file system; give --save a "
                                          "folder that this user can write to"}, found, err)


def a_full_disk_is_named():
    code, out, err = mounted('mount -t tmpfs -o size=8k tmpfs "$0"')
    found, last = lines(out)
    check(code != 0 and faults(found).get("save", "").startswith("mounted: cannot write a file there: No space left"), found, err)


def a_small_shared_memory_is_named():
    code, out, err = mounted("mount -t tmpfs -o size=5m tmpfs /dev/shm")
    found, last = lines(out)
    check(code != 0 and re.match("/dev/shm of .* has [0-9.]+ MiB free, but MPI may still write [0-9.]+ MiB there",
                                 faults(found).get("memory", "")), found, err)
    code, out, err = mounted("mount -t tmpfs -o size=1m tmpfs /dev/shm")  # MPI_Init() ends these ranks
    check(code != 0 and re.search("hvtrain: warning: .*: /dev/shm has 1.0 MiB free, and Open MPI takes 4 MiB there for each "
                                  "rank", err), out, err)


def a_model_that_is_too_large_is_named():
    code, found, last, err = checked("--model resnet152 --data folder --data-dir . --batch 512".split())
    most = re.search("1 rank on .* takes ([0-9.]+) GiB, but only ([0-9.]+) GiB are there: a lower --batch",
                     faults(found).get("model", ""))
    if found["model"][0] == "ok":
        check(float(re.search("([0-9.]+) GiB for each rank", found["model"][1])[1]) > 60, found)
        raise Skip("this machine has memory for it")
    check(code == 1 and most and float(most[1]) > 60 and float(most[2]) < float(most[1]), found, err)
    out = subprocess.run([HVTRAIN, *"inspect resnet152 --batch 512 --threads 1".split()], capture_output=True, text=True).stdout
    check(abs(float(re.search("([0-9.]+) MiB in all", out)[1]) / 1024 - float(most[1])) < 0.1, out[-200:], most[1])


def options_and_data_that_do_not_fit_are_named():
    for args, name, said in [(["--data", "folder", "--data-dir", "none"], "data",
                              "--data-dir none: No such file or directory, on "),
                             (["--model", "none.pt2"], "data", "--model none.pt2: No such file or directory, on "),
                             (["--lr-scale", "linear", "--momentum", "0", "--nesterov"], "options", "--nesterov needs"),
                             (["--config", "none.json"], "options", "--config none.json"),
                             (["--resume", "none"], "options", "none"),
                             (["--device", "cuda"], "gpu", "")]:
        for ranks in [0, 2] if MPIRUN and "folder" in args else [0]:
            code, found, last, err = checked(args, ranks)
            check(code != 0 and name in faults(found) and said in faults(found)[name], args, ranks, found, err)
    with open(path("job.json"), "w") as f:
        f.write('{"data": "folder", "data-dir": "of-config", "threads": 1}')
    code, found, last, err = checked(["--config", "job.json"])
    check(list(faults(found)) == ["data"] and "--data-dir of-config: No such file" in found["data"][1], found, err)
    code, out, err = run(["check", "--batch", "x"])
    check(code == 2 and not out and len(err) == 1 and "--batch" in err[0], code, out, err)
    code, out, err = run(["--lr", "1", "check"])
    check(code == 2 and "check comes before all options" in err[0], code, err)


def pictures(folder, classes, each):
    for name in classes:
        os.makedirs(path(f"{folder}/{name}"))
        for i in range(each):
            with open(path(f"{folder}/{name}/{i}.ppm"), "wb") as f:
                f.write(b"P6 4 4 255\n" + bytes((48 * len(name) + 7 * i + k) % 256 for k in range(48)))


def data_are_opened_as_a_run_opens_them():
    os.mkdir(path("bare"))
    pictures("loose", ["."], 2)
    pictures("single", ["ant"], 8)
    pictures("pair", ["ant", "bee"], 10)
    pictures("others", ["cat", "dog", "eel"], 4)
    open(path("pair/bee/x.avif"), "w").close()
    common = "--threads 1 --size 16 --data folder --data-dir".split()
    held = ["--val-split", "0.2"]
    code, _, err = run([*common, "pair", *held, "--batch", "4", "--steps", "1", "--quiet", "--save", "pairs"])
    check(code == 0, err)
    for args, said in [([*common, "bare"], "bare: no class folders and no pictures"),
                       ([*common, "loose"], "loose: has pictures but no class folders to train on"),
                       ([*common, "single"], "single: 1 class (ant), at least 2 are needed"),
                       ([*common, "pair", *held, "--batch", "128"], "--batch 128: pair has only 16 training images: --batch 16 is the most"),
                       ([*common, "others", *held, "--batch", "4", "--classes", "2"], "the folder has 3 classes; --classes 2 is too few"),
                       (["--evaluate", "--resume", "pairs", "--data-dir", "others"],
                        "pairs (2 classes) does not have these classes of the data: cat, dog, eel"),
                       (["--samples", "64", "--batch", "128"], "--batch 128: synth has only 64 training images")]:
        code, found, last, err = checked(args)
        check(code == 1 and list(faults(found)) == ["data"] and faults(found)["data"].startswith(said), args, code, found, err)
        code, _, err = run(["--threads", "1", *args])
        check(code == 1 and err[-1] == "hvtrain: " + found["data"][1], "a run says", err, "a check", found["data"])
    both = "pair: 16 training and 4 test images, 2 classes: ant, bee"
    for args, said in [([*common, "pair", *held, "--batch", "4"], both), (["--resume", "pairs"], both),
                       (["--evaluate", "--resume", "pairs"], "pair: 4 test images, 2 classes: ant, bee")]:
        code, found, last, err = checked(args)
        check(code == 0 and found["data"] == ("ok", said) and "x.avif in bee" in err, args, code, found, err)
    if MPIRUN:
        code, found, last, err = checked([*common, "pair", *held, "--batch", "9"], 2)
        check(code != 0 and faults(found) == {"data": "--batch 9 x 2 shards = 18 images per update: pair has only 16 training "
                                              "images: --batch 8 is the most"}, code, found, err)


def data_that_take_long_to_list_do_not_stop_a_check():
    fifo = path("listing")
    os.mkfifo(fifo)
    code, found, last, err = checked([], env={"HVT_TEST_STUCK": f"open:0:{fifo}"},
                                     program=[STUCK, "check", "--threads", "1", "--stall-warn", "0", "--stall-abort", "1s"])
    check(os.path.exists(fifo + ".in"), "was not stuck")
    check(code == 0 and list(found) == NAMES and found["data"] == ("warn", "synth: still being listed after 0.6 s; --stall-abort "
                                                                   "10m waits longer for it"), code, found, err)


def a_run_of_unknown_options_is_not_described():
    for more, lacks in [([], {"data", "model", "save"}), (["--save", "there"], {"data", "model"}),
                        (["--save", "none/there"], {"data", "model"}), (["--data-dir", "nowhere"], {"model", "save"})]:
        code, found, last, err = checked(["--resume", "missing", *more])
        check(code == 1 and set(NAMES) - set(found) == lacks and "missing: No such file" in faults(found)["options"], more, found, err)
        check(("save" in faults(found)) == ("none/there" in more) and ("data" in faults(found)) == ("nowhere" in more), more, found)


def limits_are_named():
    code, found, last, err = checked([], program=["sh", "-c", 'ulimit -n 200; ulimit -v 40000000; exec "$0" "$@"', HVTRAIN, "check"]
                                     + PATIENT)
    check(code == 0 and found["limits"][0] == "warn" and "may open only 200 files: ulimit -n" in found["limits"][1]
          and "ulimit -v unlimited" in found["limits"][1], found, err)


def a_rank_that_stops_during_the_sum_is_named():
    if not MPIRUN:
        raise Skip("no mpirun")
    fifo = path("fifo")
    os.mkfifo(fifo)
    p = subprocess.Popen(on_ranks(MPIRUN, 2, [STUCK, "check", "--threads", "1", "--stall-warn", "2s", "--stall-abort", "4s"]), cwd=HERE,
                         stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         env={**environment(2), "HVT_TEST_STUCK": f"sums:1:{fifo}"})
    end = time.time() + 100
    while not os.path.exists(fifo + ".in") and p.poll() is None and time.time() < end:
        time.sleep(0.02)
    if p.poll() is None:
        os.kill(rank_of(p, 1), signal.SIGSTOP)
    try:
        out, err = p.communicate(timeout=100)
    except subprocess.TimeoutExpired:
        p.terminate()
        out, err = p.communicate(timeout=30)
        check(False, "hangs:", out, err)
    found, last = lines(out + "\n")
    check(p.returncode == 3, "exit", p.returncode)
    check(out.splitlines()[-1].startswith("FAIL  sums      a rank does not answer"), out)
    check(re.search(r"hvtrain: error: rank 0 .* has waited .* rank 1 .*stopped", err), err)


run_all([a_good_job_is_ready, what_the_docs_show_is_what_a_check_prints, a_check_has_a_deadline, a_launcher_of_another_mpi_is_named, ranks_on_one_core_are_named,
         faults_of_the_folder_of_save_are_named, a_folder_that_is_read_only_is_named, a_full_disk_is_named,
         a_small_shared_memory_is_named, a_model_that_is_too_large_is_named, options_and_data_that_do_not_fit_are_named,
         data_are_opened_as_a_run_opens_them, data_that_take_long_to_list_do_not_stop_a_check,
         a_run_of_unknown_options_is_not_described, limits_are_named,
         a_rank_that_stops_during_the_sum_is_named], sys.argv[4:], HERE)
