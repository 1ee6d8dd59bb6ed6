"""test_tcp.py HVTRAIN MPIRUN BUILD: starts without MPI. Every way to start ends with the weights of one process; every
wrong start ends soon on all sides, with a line that says what is wrong; a rank that is killed or stopped ends the job
and leaves nothing behind."""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import hvtrain
import truths
from truths import Skip, check

BUILD = os.path.abspath(sys.argv[3])
TRAIN = ("--model resnet20 --data synth --samples 150 --batch 8 --shards 4 --epochs 2 --threads 1 --print-freq 1 "
         "--quiet").split()
LONG = TRAIN + ["--epochs", "10000"]
SOON = ["--stall-warn", "1s", "--stall-abort", "3s"]
number = 0


def environment(more=()):
    env = hvtrain.environment(0)
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]:
        env.pop(name, None)
    env.update(more)
    return env


def start(args, env=()):
    return subprocess.Popen(args, cwd=hvtrain.HERE, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                            stderr=subprocess.PIPE, text=True, env=environment(env))


def rank_of(rank, size, where, more=(), env=(), train=TRAIN):
    return start([hvtrain.HVTRAIN, *train, "--init-method", where, "--rank", str(rank), "--world-size", str(size), *more],
                 env)


def free_port(host="127.0.0.1", family=socket.AF_INET):
    with socket.socket(family) as s:
        s.bind((host, 0))
        return s.getsockname()[1]


def lines(p, timeout=60):
    """Exit code, and what a process said, without warnings about this small run."""
    try:
        _, err = p.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        p.kill()
        _, err = p.communicate()
        check(False, "hangs:", err[-800:])
    kept = [line for line in err.splitlines() if line.startswith("hvtrain: ") and "would be faster" not in line
            and "only 1" not in line]
    return p.returncode, kept


def new_log():
    global number
    number += 1
    return os.path.join(hvtrain.HERE, f"{number}.log")


def weights(log):
    with open(log) as f:
        ends = [r for r in map(json.loads, f) if r["record"] == "end"]
    return ends[0]["weights"] if len(ends) == 1 and ends[0]["status"] == "done" else None


def trains(*commands, env=({},)):
    """The weights after these commands, the ranks of one job, have trained."""
    log = new_log()
    ranks = [start([*c, "--log", log], env[i % len(env)]) for i, c in enumerate(commands)]
    for p in ranks:
        code, said = lines(p)
        check(code == 0 and not said, "exit", code, said)
    return weights(log)


def all_ranks(n, where, *more):
    return [[hvtrain.HVTRAIN, *TRAIN, "--init-method", where, "--rank", str(r), "--world-size", str(n), *more]
            for r in range(n)]


alone = None


def one_process():
    global alone
    alone = alone or trains([hvtrain.HVTRAIN, *TRAIN])
    return alone


def spawned_ranks_end_with_the_weights_of_one_process():
    for more in [["--spawn", "2"], ["--spawn", "3"], ["--spawn", "2", "--comm", "tcp"], ["--spawn", "1"]]:
        got = trains([hvtrain.HVTRAIN, *TRAIN, *more])
        check(got == one_process(), more, got)


def ranks_that_meet_at_an_address_or_by_a_file_do_too():
    for where in ["tcp://127.0.0.1:%d" % free_port(), "tcp://localhost:%d" % free_port(), "file://%s/meet" % hvtrain.HERE]:
        got = trains(*all_ranks(2, where))
        check(got == one_process(), where, got)
    check(not [f for f in os.listdir(hvtrain.HERE) if "meet" in f], "the file is still there")


def they_meet_by_ipv6():
    try:
        port = free_port("::1", socket.AF_INET6)
    except OSError as e:
        raise Skip(e)
    check(trains(*all_ranks(2, f"tcp://[::1]:{port}")) == one_process())


def variables_as_in_a_pytorchjob_suffice():
    env = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port())}
    got = trains([hvtrain.HVTRAIN, *TRAIN], [hvtrain.HVTRAIN, *TRAIN], env=[{**env, "RANK": "0"}, {**env, "RANK": "1"}])
    check(got == one_process(), got)


def torchrun_starts_ranks():
    python = truths.python_with("torch", BUILD)
    if not python:
        raise Skip("no PyTorch")
    log = new_log()
    p = start([python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", "2", "--master-port",
               str(free_port()), "--", hvtrain.HVTRAIN, *TRAIN, "--log", log])
    code, said = lines(p, 120)
    check(code == 0 and weights(log) == one_process(), "exit", code, said)


def mpirun_has_the_same_weights_and_wins_over_variables():
    if not hvtrain.MPIRUN:
        raise Skip("no mpirun")
    log = new_log()
    command = truths.on_ranks(hvtrain.MPIRUN, 2, [hvtrain.HVTRAIN, *[a for a in TRAIN if a != "--quiet"], "--log", log])
    p = start(command, {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"})
    code, said = lines(p)
    check(code == 0 and weights(log) == one_process(), "exit", code, said)
    check(sum("so MPI connects them, not MASTER_ADDR, RANK and WORLD_SIZE" in line for line in said) == 1, said)


def what_is_missing_is_named():
    for args, env, part in [
            ([], {"RANK": "0", "WORLD_SIZE": "2"}, "env:// needs MASTER_ADDR, the host of rank 0, and MASTER_PORT, the port"),
            (["--init-method", "tcp://a:1?rank=0&world_size=2"], {}, "use --rank N --world-size N"),
            (["--init-method", "env://?rank=0"], {"RANK": "0", "WORLD_SIZE": "2"}, "use --rank N --world-size N"),
            ([], {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "env:// needs MASTER_PORT"),
            (["--init-method", "tcp://a:1"], {}, "needs --rank N, or the variable RANK"),
            (["--init-method", "tcp://a:1", "--rank", "0"], {}, "needs --world-size N, or the variable WORLD_SIZE"),
            (["--init-method", "tcp://a:1", "--rank", "2", "--world-size", "2"], {}, "rank 2 of 2 ranks: expected 0 to 1"),
            (["--init-method", "udp://a:1", "--rank", "0", "--world-size", "2"], {}, "expected env://, tcp://HOST:PORT or "),
            (["--init-method", "tcp://a", "--rank", "0", "--world-size", "2"], {}, "expected tcp://HOST:PORT"),
            (["--init-method", "tcp://fd00::1:99", "--rank", "0", "--world-size", "2"], {}, "expected tcp://HOST:PORT"),
            (["--init-method", f"file://{hvtrain.HERE}/f", "--rank", "0", "--world-size", "2", "--interface", "none7"], {},
             "no network interface 'none7'"),
            (["--init-method", "tcp://127.0.0.1:1", "--rank", "0", "--world-size", "2", "--interface", "none7"], {},
             "no network interface 'none7'"),
            (["--spawn", "2", "--interface", "lo"], {}, "leave out --interface"),
            (["-bk", "gloo"], {}, "leave it out: hvtrain chooses"), (["-im", "tcp://a:1"], {}, "use --init-method"),
            (["-rn", "0"], {}, "use --rank"), (["-ws", "2"], {}, "use --world-size"),
            (["--dist_url", "tcp://a:1"], {}, "use --init-method"), (["--dist-backend", "nccl"], {}, "leave it out: hvtrain chooses"),
            (["--gpu", "0"], {}, "use --device cuda:0")]:
        code, said = lines(start([hvtrain.HVTRAIN, *TRAIN, *args], env))
        check(code in (1, 2) and len(said) == 1 and part in said[0], args, env, code, said)


def missing_ranks_are_named_until_stall_abort():
    where = "tcp://127.0.0.1:%d" % free_port()
    first, second = rank_of(0, 4, where, SOON), rank_of(2, 4, where, SOON)
    code, said = lines(first)
    check(code == 1 and "waiting for ranks 1 and 3 of 4 for 1 s" in said[0], said)
    check("ranks 1 and 3 of 4 did not join" in said[-1] and "within 3 s" in said[-1], said)
    code, said = lines(second)
    check(code == 1 and "ranks 1 and 3 of 4 did not join" in said[-1], "nobody shows this rank rank 0's line", code, said)
    job = start([hvtrain.HVTRAIN, *TRAIN, "--spawn", "3", "--stall-abort", "2s"])
    ranks = []
    while len(ranks) < 3:
        ranks = sorted(processes_of(job.pid))
    os.kill(ranks[2], signal.SIGSTOP)
    code, said = lines(job)
    check(code in (1, 3) and sum("did not join" in line or "giving up" in line for line in said) == 1,
          "--stall-abort before --stall-warn, one line for all", code, said)
    nothing_is_left(ranks)
    code, said = lines(rank_of(1, 2, where, SOON))
    check(code == 1 and "did not reach rank 0" in said[-1] and "refused" in said[-1], code, said)


def a_rank_that_comes_twice_or_counts_otherwise_ends_the_start():
    for second, size, part in [(1, 3, "two processes were started as rank 1"), (0, 3, "two processes were started as rank 0"),
                               (2, 2, None), (1, 4, "rank 1 (HOST) was started with world size 4, and rank 0 (HOST) with 3")]:
        where = "tcp://127.0.0.1:%d" % free_port()
        ranks = [rank_of(0, 3, where, SOON)]
        if second == 1 and size == 3:
            ranks.append(rank_of(1, 3, where, SOON))
            time.sleep(0.3)
        if second == 0:  # finds the port taken
            time.sleep(0.3)
            part = f"as process {ranks[0].pid} on HOST does: two processes were started as rank 0"
        ranks.append(rank_of(second, size, where, SOON))
        part = part or "rank 2 of 2 ranks"
        said = [lines(p) for p in ranks]
        last = said[-1][1]
        wanted = part.replace("HOST", socket.gethostname())
        check(said[-1][0] != 0 and last and wanted in last[-1], second, size, said)
        if second and "started" in part:
            check(all(code == 1 for code, _ in said) and wanted in said[0][1][-1], said)


def an_address_of_another_host_is_named():
    cases = [("192.0.2.1", "whose address 192.0.2.1 is not"), ("no.such.host.invalid", "cannot look up")]
    ranks = [rank_of(0, 2, f"tcp://{host}:{free_port()}", ["--stall-abort", "1s"]) for host, _ in cases]
    for p, (_, part) in zip(ranks, cases):
        code, said = lines(p)
        check(code == 1 and part in said[0] and "rank 1 of 2 did not join" in said[-1], code, said)


def an_error_of_all_ranks_is_printed_by_each_that_no_launcher_started():
    for launched, lines_of_second in [({}, 1), ({"LOCAL_RANK": "1"}, 0)]:
        where = "tcp://127.0.0.1:%d" % free_port()
        ranks = [rank_of(0, 2, where, SOON), rank_of(1, 2, where, SOON + ["--lr", "0.7"], launched)]
        said = [lines(p) for p in ranks]
        check(said[0][0] == 1 and said[1][0] == 1 and "--lr differs" in said[0][1][-1], said)
        check(said[1][1] == said[0][1][:lines_of_second], launched, said)


def strangers_are_refused_and_the_job_goes_on():
    port = free_port()
    first = rank_of(0, 2, f"tcp://127.0.0.1:{port}", env={"HVT_JOB_SECRET": "right"})
    while True:
        try:
            stranger = socket.create_connection(("127.0.0.1", port))
            break
        except OSError:
            time.sleep(0.05)
    stranger.sendall(b"GET / HTTP/1.0\r\n\r\n" * 20)
    silent = socket.create_connection(("127.0.0.1", port))
    wrong = rank_of(1, 2, f"tcp://127.0.0.1:{port}", env={"HVT_JOB_SECRET": "wrong"})
    code, said = lines(wrong)
    check(code == 1 and "refuses rank 1: it belongs to another job: HVT_JOB_SECRET differs" in said[-1], said)
    second = rank_of(1, 2, f"tcp://127.0.0.1:{port}", env={"HVT_JOB_SECRET": "right"})
    code, said = lines(first)
    check(code == 0 and sum("is refused: it does not know this job's secret" in line for line in said) == 1, code, said)
    check(lines(second)[0] == 0)
    stranger.close()
    silent.close()


def a_stale_file_is_replaced_and_that_of_another_job_or_program_is_not():
    path = os.path.join(hvtrain.HERE, "stale")
    dead = rank_of(0, 2, "file://" + path)
    while not os.path.exists(path):
        time.sleep(0.02)
    check(os.stat(path).st_mode & 0o777 == 0o600)
    code, said = lines(rank_of(0, 2, "file://" + path))
    check(code == 1 and "is the file of another job, whose rank 0 runs as process %d" % dead.pid in said[-1], said)
    dead.kill()
    dead.communicate()
    ended = rank_of(0, 2, "file://" + path + "-ended")
    while not os.path.exists(path + "-ended"):
        time.sleep(0.02)
    ended.terminate()
    code, said = lines(ended)
    check(code == 1 and "interrupted (SIGTERM)" in said[-1], code, said)
    check(sorted(f for f in os.listdir(hvtrain.HERE) if f.startswith("stale")) == ["stale"], "a file is left")
    ranks = [rank_of(r, 2, "file://" + path) for r in (1, 0)]
    said = [lines(p) for p in ranks]
    check([code for code, _ in said] == [0, 0] and "was left by a job that has ended" in said[1][1][0], said)
    check(not os.path.exists(path))
    with open(path, "w") as f:
        f.write("my notes\n")
    code, said = lines(rank_of(0, 2, "file://" + path))
    check(code == 1 and "is not a file by which ranks of hvtrain meet" in said[-1], said)
    check(open(path).read() == "my notes\n")


def the_port_of_another_program_is_named():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        code, said = lines(rank_of(0, 2, "tcp://127.0.0.1:%d" % s.getsockname()[1]))
    check(code == 1 and "the port is in use" in said[-1], said)


def processes_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(child) for child in f.read().split()]


def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True


def spawn_and_train(*more):
    """A job of three ranks that has trained: its process and its ranks, in order."""
    log = new_log()
    job = start([hvtrain.HVTRAIN, *LONG, "--spawn", "3", "--log", log, *SOON, *more])
    until = time.time() + 60
    while time.time() < until and not (os.path.exists(log) and '"step"' in open(log).read()):
        time.sleep(0.02)
    return job, sorted(processes_of(job.pid))


def catches(pid, sig):
    with open(f"/proc/{pid}/status") as f:
        return int(re.search(r"SigCgt:\s*(\w+)", f.read()).group(1), 16) >> sig - 1 & 1


def nothing_is_left(ranks):
    until = time.time() + 10
    while time.time() < until and not all(map(is_gone, ranks)):
        time.sleep(0.02)
    check(all(map(is_gone, ranks)), "processes are left")


def a_killed_rank_is_named_and_ends_the_job():
    for comm in ["shm", "tcp"]:
        for victim in range(3):
            job, ranks = spawn_and_train("--comm", comm)
            os.kill(ranks[victim], signal.SIGKILL)
            code, said = lines(job)
            said = [line for line in said if f"rank {victim} ({socket.gethostname()}) has ended" not in line]
            check(code == 137 and len(said) == 1 and f"rank {victim} was killed by SIGKILL (" in said[0], code, said)
            nothing_is_left(ranks)


def a_stopped_rank_is_named_and_ends_the_job():
    job, ranks = spawn_and_train("--comm", "tcp")
    os.kill(ranks[1], signal.SIGSTOP)
    code, said = lines(job)
    check(code == 3 and "for rank 1 (" in said[-1] and "is stopped (SIGSTOP)" in said[-1] and "giving up" in said[-1], said)
    nothing_is_left(ranks)


def a_killed_parent_takes_its_ranks_along_and_passes_on_signals():
    job, ranks = spawn_and_train()
    job.kill()
    job.communicate()
    nothing_is_left(ranks)
    job, ranks = spawn_and_train("--save", new_log() + ".save")
    job.send_signal(signal.SIGTERM)
    code, said = lines(job)
    check(code == 143, "exit", code, said)
    nothing_is_left(ranks)


def a_rank_killed_before_the_job_starts_ends_it():
    where = "tcp://127.0.0.1:%d" % free_port()
    first, second = rank_of(1, 3, where, SOON), rank_of(0, 3, where, SOON)
    time.sleep(0.5)
    second.kill()
    second.communicate()
    code, said = lines(first)
    check(code == 1 and "rank 0" in said[-1], code, said)
    alone = rank_of(1, 2, where)
    until = time.time() + 30
    while time.time() < until and not catches(alone.pid, signal.SIGTERM):
        time.sleep(0.02)
    alone.terminate()
    code, said = lines(alone)
    check(code == 1 and "hvtrain: rank 1: interrupted (SIGTERM)" in said[-1], code, said)


if __name__ == "__main__":
    truths.run_all([spawned_ranks_end_with_the_weights_of_one_process, ranks_that_meet_at_an_address_or_by_a_file_do_too,
                    they_meet_by_ipv6, variables_as_in_a_pytorchjob_suffice, torchrun_starts_ranks,
                    mpirun_has_the_same_weights_and_wins_over_variables, what_is_missing_is_named, an_address_of_another_host_is_named,
                    missing_ranks_are_named_until_stall_abort, a_rank_that_comes_twice_or_counts_otherwise_ends_the_start,
                    an_error_of_all_ranks_is_printed_by_each_that_no_launcher_started,
                    strangers_are_refused_and_the_job_goes_on,
                    a_stale_file_is_replaced_and_that_of_another_job_or_program_is_not, the_port_of_another_program_is_named,
                    a_killed_rank_is_named_and_ends_the_job, a_stopped_rank_is_named_and_ends_the_job,
                    a_killed_parent_takes_its_ranks_along_and_passes_on_signals,
                    a_rank_killed_before_the_job_starts_ends_it], sys.argv[4:], hvtrain.HERE)
