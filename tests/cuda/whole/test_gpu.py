#!/usr/bin/env python3
"""The whole program on device cuda, against itself on device ref: test_gpu.py HVTRAIN MPIRUN|none.

Runs on a GPU, and on doubles of NVIDIA's libraries (hvtrain-double), where every stream runs as late as it
may, engines of cuDNN need what they promise, and sums are taken in double before they are rounded. So bounds
here are wide enough for a GPU, whose sums are f32. Skips with 77 where the program finds no GPU.

What doubles cannot show: speed, what other ranks' kernels do to ours at the same time, and engines that are
wrong. Choices by timing are switched off by --deterministic, so that bits can be compared.
"""
import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HVTRAIN, MPIRUN = sys.argv[1], sys.argv[2]
NET = ["--model", "resnet20", "--data", "synth", "--samples", "24", "--steps", "3", "--print-freq", "1",
       "--eval-freq", "0", "--lr", "0.02", "--quiet", "on"]
CUDA = ["--device", "cuda", "--deterministic", "on"]
ONE_GPU = ["--device", "cuda:0"]  # of all ranks


def run(args, ranks=0):
    """The records of a run that must succeed."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [HVTRAIN, *args, "--log", str(log)]
        if ranks:
            command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), *command]
        env = {**os.environ, "XDG_CACHE_HOME": folder}  # algorithms are chosen anew
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return [json.loads(line) for line in log.read_text().splitlines()]


def losses(records):
    return [r["loss"] for r in records if r["record"] == "step"]


def weights(records):
    return records[-1]["weights"]


def has(flag):
    return flag in subprocess.run([HVTRAIN, "--help"], capture_output=True, text=True).stdout


class Gpu(unittest.TestCase):
    def near(self, got, want, bound):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertLess(abs(a - b), bound, f"{got} against {want}")

    def test_losses_equal_ref_s(self):
        batch = ["--batch", "8"]
        ref, got = run(NET + batch + ["--device", "ref"]), run(NET + batch + CUDA)
        self.near(losses(got)[:1], losses(ref)[:1], 1e-5)
        self.near(losses(got), losses(ref), 1e-3)

    def test_a_run_is_repeated_bit_for_bit(self):
        first, again = (run(NET + ["--batch", "8"] + CUDA) for _ in range(2))
        self.assertEqual(weights(first), weights(again))

    @unittest.skipUnless(has("--amp"), "no --amp in this build")
    def test_16_bits_follow_ref_in_16_bits(self):
        for amp in ("f16", "bf16"):
            with self.subTest(amp):
                args = NET + ["--batch", "8", "--amp", amp]
                # an element of the network may round to its other neighbour, and three steps enlarge that
                self.near(losses(run(args + CUDA)), losses(run(args + ["--device", "cpu"])), 5e-2)

    @unittest.skipUnless(has("--graph"), "no --graph in this build")
    def test_a_graph_gives_the_eager_bits(self):
        shared = ONE_GPU + ["--comm", "nccl"]
        for ranks, more in ((0, []), (0, ["--amp", "f16"]), (2, shared)):
            if ranks and MPIRUN == "none":
                continue
            with self.subTest(ranks=ranks, more=more):
                a, b = (run(NET + ["--batch", "4"] + CUDA + more + ["--graph", on], ranks) for on in ("on", "off"))
                self.assertEqual(losses(a), losses(b))
                self.assertEqual(weights(a), weights(b))

    @unittest.skipIf(MPIRUN == "none", "no mpirun")
    def test_ranks_equal_one_rank(self):
        one = run(NET + ["--shards", "4", "--batch", "2"] + CUDA)
        for ranks in (2, 4):
            for comm in ("nccl", "mpi"):
                with self.subTest(ranks=ranks, comm=comm):
                    many = run(NET + ["--shards", "4", "--batch", "2", "--comm", comm] + CUDA + ONE_GPU, ranks)
                    self.near(losses(many), losses(one), 1e-3)
                    if comm == "mpi":  # adds along the shards' tree, as one rank does
                        self.assertEqual(weights(many), weights(one))

    def test_checkpoints_change_devices(self):
        for first, then in ((CUDA, ["--device", "cpu"]), (["--device", "cpu"], CUDA)):
            with self.subTest(then[1]), tempfile.TemporaryDirectory() as folder:
                args = [a if a != "3" else "6" for a in NET] + ["--batch", "8"]
                straight = run(args + then)
                run(NET + ["--batch", "8", "--save", folder] + first)
                on = run(args + ["--resume", folder] + then)
                self.near(losses(on), losses(straight)[3:], 2e-2)


def gpu_is_there():
    done = subprocess.run([HVTRAIN, *NET, "--batch", "8", "--steps", "1", *CUDA], capture_output=True, text=True)
    if done.returncode and ("no GPU" in done.stderr or "no device cuda" in done.stderr):
        print(done.stderr, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    if not gpu_is_there():
        sys.exit(77)
    unittest.main(argv=sys.argv[:1], verbosity=2)
