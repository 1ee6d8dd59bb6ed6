#!/usr/bin/env python3
"""What a run has measured is compared with what was predicted for the same convolution.

    test_predict.py PREDICT LAUNCHES GPU.json
"""
import re
import subprocess
import sys
import tempfile
import unittest

COMMAND = sys.argv[1:]
SHAPE = "n256 h56 w56 c64 k64 r3 s3 stride1 pad1"  # as conv_cudnn.c's key_of()
OTHERS = ["NVIDIA H200, cuDNN 91900, forward f16 to f16 " + SHAPE, "NVIDIA H200, cuDNN 91900, forward bf16 to bf16 n1"]


def run(*lines):
    with tempfile.NamedTemporaryFile("w") as plans:
        plans.write("\n".join(["hvt plans 3", *lines, ""]))
        plans.flush()
        return subprocess.run([sys.executable, *COMMAND, "--plans", plans.name], capture_output=True, text=True)


class Plans(unittest.TestCase):
    def test_a_measured_time_stands_beside_the_predicted_one(self):
        done = run(f"15:2=6 50.5 NVIDIA H200, cuDNN 91900, forward bf16 to bf16 {SHAPE}",
                   f"3 80.25 NVIDIA H200, cuDNN 91900, backward_x bf16 to bf16 {SHAPE} add")
        self.assertEqual(done.returncode, 0, done.stderr)
        row = re.search(r"^256,56,56,64,64,3,3,1,1 +forward .* ([0-9.]+) +FLOP +50.5 +([0-9.]+)$", done.stdout, re.M)
        self.assertTrue(row, done.stdout)
        self.assertAlmostEqual(50.5 / float(row[1]), float(row[2]), delta=0.006)
        self.assertNotIn("80.2", done.stdout)  # a gradient that is added is no other one's time
        self.assertRegex(done.stdout, r"of those measured: .* 0.15 ms measured")  # it runs three times

    def test_other_shapes_and_types_are_none_of_it(self):
        done = run(*(f"1 9.0 {key}" for key in OTHERS))
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("none of these convolutions", done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
