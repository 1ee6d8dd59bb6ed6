#!/usr/bin/env python3
"""The whole program on device cuda, against itself on device ref: test_gpu.py HVTRAIN MPIRUN|none [CLASS...].

Classes of tests: Gpu; SeveralGpus, with a rank on each, skipped if there is only one; SharedGpu, where NCCL's
ranks have one GPU, which NCCL does not support; and Faulty, on doubles alone. Default: all.

Runs on a GPU, and on doubles of NVIDIA's libraries (hvtrain-double), where every stream runs as late as it
may, engines of cuDNN need what they promise, and sums are taken in double before they are rounded. So bounds
here are wide enough for a GPU, whose sums are f32. Skips with 77 where the program finds no GPU.

Doubles cannot show speed, or the effect of other ranks' kernels that run at the same time. Most tests disable
choices by timing by --deterministic, so that bits can be compared; some keep them.
"""
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HVTRAIN, MPIRUN, CLASSES = sys.argv[1], sys.argv[2], sys.argv[3:]
DOUBLE = Path(HVTRAIN).name == "hvtrain-double"
PT2_NETS = Path(__file__).resolve().parents[2] / "train/pt2_nets.py"
NET = ["--model", "resnet20", "--data", "synth", "--samples", "24", "--steps", "3", "--print-freq", "1",
       "--eval-freq", "0", "--lr", "0.02", "--quiet", "on"]
NET += ["--size", "16"] if DOUBLE else []  # every thread there is a fiber
TIMED = ["--device", "cuda"]
CUDA = TIMED + ["--deterministic", "on"]
ONE_GPU = ["--device", "cuda:0"]  # of all ranks
CLIP = ["--clip-grad-norm", "0.5"]  # of several


def gpus():
    if DOUBLE:
        return 4
    done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True) if shutil.which("nvidia-smi") else None
    return len(done.stdout.splitlines()) if done and not done.returncode else 0


def run(args, ranks=0, **env):
    """The records of a run that must succeed, in an environment with these variables."""
    return run_and_log(args, ranks, **env)[0]


def run_and_log(args, ranks=0, **env):
    """Also what it wrote to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        command = [HVTRAIN, *args, "--log", str(log)]
        if ranks:
            command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", str(ranks), *command]
        env = {**os.environ, "XDG_CACHE_HOME": folder, **env}  # algorithms are chosen anew
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}\nended with {done.returncode}:\n{done.stderr[-2000:]}")
        return [json.loads(line) for line in log.read_text().splitlines()], done.stderr


def without(args, *options):
    """The arguments but these options and their values."""
    at = [i for i, a in enumerate(args) if a in options]
    return [a for i, a in enumerate(args) if i not in at and i - 1 not in at]


def losses(records):
    return [r["loss"] for r in records if r["record"] == "step"]


def weights(records):
    return records[-1]["weights"]


def has(flag):
    return flag in subprocess.run([HVTRAIN, "--help", "all"], capture_output=True, text=True).stdout


def on_a_terminal(args):
    """What a run that must succeed writes to a terminal."""
    screen, stderr = pty.openpty()
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "XDG_CACHE_HOME": folder}
        program = subprocess.Popen([HVTRAIN, *args], stdout=subprocess.DEVNULL, stderr=stderr, env=env)
        os.close(stderr)
        text = b""
        try:
            while more := os.read(screen, 4096):
                text += more
        except OSError:  # the other end is closed
            pass
        if program.wait(timeout=300):
            raise AssertionError(text.decode(errors="replace")[-2000:])
    os.close(screen)
    return text.decode(errors="replace")


class Case(unittest.TestCase):
    def near(self, got, want, bound):
        self.assertEqual(len(got), len(want))
        for a, b in zip(got, want):
            self.assertLess(abs(a - b), bound, f"{got} against {want}")

    def graph_equals_eager(self, ranks, more, samples=24, steps=5):
        """From the fourth update on."""
        net = without(NET, "--samples", "--steps") + ["--samples", str(samples), "--steps", str(steps), "--batch", "4"]
        a, b = (run(net + CUDA + more + ["--graph", on], ranks) for on in ("on", "off"))
        self.assertEqual(len(losses(a)), steps)
        self.assertEqual(losses(a), losses(b))
        self.assertEqual(weights(a), weights(b))

    def ranks_equal_one_rank(self, comm, along_the_tree):
        """Who adds along the shards' tree, as one rank does, has its weights."""
        for more, counts in ([], (2, 4)), (["--sync-bn"], (2,)), (CLIP, (2,)):
            net = NET + ["--shards", "4", "--batch", "2"] + more + CUDA
            one = run(net)
            for ranks in counts:
                with self.subTest(more=more, ranks=ranks):
                    many = run(net + ["--comm", comm] + ONE_GPU, ranks)
                    self.near(losses(many), losses(one), 1e-3)
                    if along_the_tree:
                        self.assertEqual(weights(many), weights(one))


class Gpu(Case):
    def test_losses_equal_ref_s(self):
        batch = ["--batch", "8"]
        ref, got = run(NET + batch + ["--device", "ref"]), run(NET + batch + CUDA)
        self.near(losses(got)[:1], losses(ref)[:1], 1e-5)
        self.near(losses(got), losses(ref), 1e-3)

    def test_clipped_losses_equal_ref_s(self):
        for more in [], ["--optimizer", "adamw", "--eps", "0.1"]:  # with Adam's own eps, factors hardly count
            with self.subTest(more=more):
                net = NET + ["--batch", "8"] + more
                free, ref, got = (run(net + on) for on in (CUDA, CLIP + ["--device", "ref"], CLIP + CUDA))
                self.near(losses(got)[:1], losses(ref)[:1], 1e-5)
                self.near(losses(got), losses(ref), 1e-3)
                self.assertGreater(abs(losses(got)[-1] - losses(free)[-1]), 1e-2)

    def test_layers_of_ones_own_equal_ref_s(self):
        """relu6, dropout and depthwise convolutions; and, of a file, layer and group norm and many more."""
        # of few images in many norms: roundings grow from step to step, between ref and cpu, too
        nets = [(["--model", "mobilenet_v2", "--size", "32", "--batch", "8", "--steps", "2", "--lr", "1e-4"], 1e-4, 1e-2)]
        python = None
        if PT2_NETS.exists():  # a bundle has no such file
            sys.path.append(str(PT2_NETS.parents[1] / "support"))
            from truths import python_with
            python = python_with("torch, safetensors, numpy", ".")
        with tempfile.TemporaryDirectory() as folder:
            if python:
                subprocess.run([python, PT2_NETS, "export", folder], check=True, capture_output=True, timeout=300)
                nets.append((["--model", f"{folder}/branches.pt2", "--data", "npy", "--data-dir", folder, "--batch", "4"],
                             1e-5, 1e-3))
            for net, first, all_of_them in nets:
                with self.subTest(net[1]):
                    args = without(NET, "--size", "--samples" if "npy" in net else "") + net
                    ref, got = run(args + ["--device", "ref"]), run(args + CUDA)
                    self.near(losses(got)[:1], losses(ref)[:1], first)
                    self.near(losses(got), losses(ref), all_of_them)

    def test_dropout_is_not_captured(self):
        done = subprocess.run([HVTRAIN, *NET, "--batch", "8", "--model", "mobilenet_v2", *CUDA, "--graph", "on"], capture_output=True,
                              text=True)
        self.assertIn("--graph on: dropout takes its random numbers from the host", done.stderr)

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
        for more in ([], ["--amp", "f16"], CLIP, CLIP + ["--amp", "f16"]):
            with self.subTest(more=more):
                self.graph_equals_eager(0, more)

    def test_shards_of_synchronized_batch_norms_are_one_batch(self):
        """In the third update they have one image or none."""
        net, shards = without(NET, "--samples") + ["--samples", "18"], ["--shards", "4", "--batch", "2"]
        one, ref, got, apart = (run(net + args) for args in (
            ["--batch", "8"] + CUDA, shards + ["--sync-bn", "--device", "ref"], shards + ["--sync-bn"] + CUDA, shards + CUDA))
        for want in (ref, one):
            self.near(losses(got)[:1], losses(want)[:1], 1e-5)
            self.near(losses(got), losses(want), 1e-3)
        self.assertGreater(abs(losses(apart)[0] - losses(one)[0]), 1e-3)

    @unittest.skipIf(MPIRUN == "none", "no mpirun")
    def test_ranks_equal_one_rank(self):
        self.ranks_equal_one_rank("mpi", along_the_tree=True)

    def test_the_bar_does_not_wait_for_the_gpu(self):
        """It shows the losses of records. Without any it has that of the first update alone, which every run waits for."""
        net = without([a for a in NET if a not in ("--quiet", "on", "--print-freq", "1")], "--samples", "--steps")
        for freq, most in ("1", 12), ("100", 1):
            with self.subTest(freq=freq):
                text = on_a_terminal(net + ["--samples", "96", "--steps", "12", "--batch", "8", "--print-freq", freq] + CUDA)
                bars = re.findall(r"step \[[=> ]*\] [^\r\n]*", text)
                shown = {loss for bar in bars for loss in re.findall(r"loss (\S+)", bar)}
                self.assertTrue(bars, text)
                self.assertTrue(1 <= len(shown) <= most, bars)

    def test_checkpoints_change_devices(self):
        for first, then in ((CUDA, ["--device", "cpu"]), (["--device", "cpu"], CUDA)):
            with self.subTest(then[1]), tempfile.TemporaryDirectory() as folder:
                args = [a if a != "3" else "6" for a in NET] + ["--batch", "8"]
                straight = run(args + then)
                run(NET + ["--batch", "8", "--save", folder] + first)
                on = run(args + ["--resume", folder] + then)
                self.near(losses(on), losses(straight)[3:], 2e-2)


@unittest.skipIf(MPIRUN == "none", "no mpirun")
class SharedGpu(Case):
    @unittest.skipUnless(has("--graph"), "no --graph in this build")
    def test_a_graph_gives_the_eager_bits(self):
        for more in [], CLIP:
            with self.subTest(more=more):
                self.graph_equals_eager(2, ONE_GPU + ["--comm", "nccl"] + more)

    @unittest.skipUnless(has("--graph"), "no --graph in this build")
    def test_a_graph_gives_the_eager_bits_with_synchronized_batch_norms(self):
        """The sixth update has shards of other sizes, between two that are launched as the graph."""
        self.graph_equals_eager(2, ONE_GPU + ["--comm", "nccl", "--sync-bn"], samples=21, steps=7)

    def test_ranks_equal_one_rank(self):
        self.ranks_equal_one_rank("nccl", along_the_tree=False)


@unittest.skipIf(MPIRUN == "none" or gpus() < 2, "no mpirun, or fewer than two GPUs")
class SeveralGpus(Case):
    """A rank on each of two or four GPUs: NVLink, or PCIe, where SharedGpu has sockets."""

    def several(self, args, ranks):
        return run(args + ["--comm", "nccl"], ranks, **({"HVT_TEST_GPUS": "4"} if DOUBLE else {}))

    def test_ranks_have_the_losses_of_one_rank(self):
        for more, devices in ([], TIMED), (["--sync-bn"], CUDA):
            with self.subTest(more=more, devices=devices):
                net = NET + ["--shards", "4", "--batch", "2"] + more
                one = run(net + CUDA)
                for ranks in [2] + [4] * (gpus() >= 4):
                    self.near(losses(self.several(net + devices, ranks)), losses(one), 1e-3)

    @unittest.skipUnless(has("--graph"), "no --graph in this build")
    def test_a_graph_gives_the_eager_bits(self):
        for more in ["--sync-bn"], CLIP:
            with self.subTest(more=more):
                net = without(NET, "--steps") + ["--steps", "5", "--batch", "2"] + more + CUDA
                a, b = (self.several(net + ["--graph", on], 2) for on in ("on", "off"))
                self.assertEqual(losses(a), losses(b))
                self.assertEqual(weights(a), weights(b))

    @unittest.skipUnless(has("--graph"), "no --graph in this build")
    def test_a_graph_of_timed_plans_has_the_eager_losses(self):
        net = without(NET, "--steps") + ["--steps", "5", "--batch", "2"] + TIMED
        a, b = (self.several(net + ["--graph", on], 2) for on in ("on", "off"))
        self.near(losses(a), losses(b), 1e-3)


@unittest.skipUnless(DOUBLE, "faults are made by the doubles")
class Faulty(Case):
    NET = without(NET, "--steps") + ["--steps", "5", "--batch", "2"]
    EXECUTIONS = 3 * 21 - 1  # of an update: three passes of ResNet-20's 21 convolutions, but no gradient of the images

    def test_a_capture_that_fails_is_made_up_for(self):
        """On one rank alone, in the middle of the step or at its end: the update counts once, on all ranks."""
        in_the_fourth_update = f"cudnnBackendExecute:{3 * self.EXECUTIONS + 20}:3000"
        for more, calls in ([], ["cudaGraphInstantiate:1:2", "cudaStreamBeginCapture:1:801", in_the_fourth_update]), \
                (["--sync-bn"], [in_the_fourth_update]):
            net = self.NET + ["--comm", "nccl"] + more + CUDA
            want = run(net + ["--graph", "off"], 2, HVT_TEST_GPUS="2")
            for call in calls:
                with self.subTest(more=more, call=call):
                    got, said = run_and_log(net, 2, HVT_TEST_GPUS="2", HVT_TEST_FAIL=f"1:{call}")
                    self.assertEqual(said.count("steps run without a CUDA graph"), 1, said)
                    self.assertEqual(losses(got), losses(want))
                    self.assertEqual(weights(got), weights(want))

    def test_with_graph_on_it_is_an_error(self):
        done = subprocess.run([HVTRAIN, *self.NET, *CUDA, "--graph", "on"], capture_output=True, text=True,
                              env={**os.environ, "HVT_TEST_FAIL": "0:cudaGraphInstantiate:1:2"})
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("cudaGraphInstantiate", done.stderr)

    def test_a_wrong_engine_is_not_chosen(self):
        """However fast it is."""
        net = NET + ["--batch", "2"]
        ref = run(net + ["--device", "ref"])
        got, said = run_and_log(net + TIMED + ["--tf32", "on"], HVT_TEST_WRONG_ENGINE="4")
        self.assertIn("cuDNN's configuration 4 is wrong by 1e+02 %", said)
        self.near(losses(got), losses(ref), 3e-2)


def gpu_is_there():
    done = subprocess.run([HVTRAIN, *NET, "--batch", "8", "--steps", "1", *CUDA], capture_output=True, text=True)
    if done.returncode and ("no GPU" in done.stderr or "no device cuda" in done.stderr):
        print(done.stderr, file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    if not gpu_is_there():
        sys.exit(77)
    unittest.main(argv=sys.argv[:1] + CLASSES, verbosity=2)
