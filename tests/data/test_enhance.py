#!/usr/bin/env python3
"""test_enhance.py EDIT_PICTURE [CASES]: compares the operations on pixels with torchvision's on Pillow images, byte by byte,
in CASES drawn images and strengths each; and the drawn strengths with torchvision's tables. Skips without the two."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from truths import again_with  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
again_with("torch, torchvision, PIL, numpy", os.path.join(os.path.dirname(PROGRAM), "../.."), "enhance", "torchvision with Pillow")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchvision.transforms.functional as F  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms import autoaugment as A  # noqa: E402

torch.set_num_threads(1)
CASES = int(sys.argv[2]) if len(sys.argv) > 2 else 150
OPS = ("Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness Posterize Solarize "
       "AutoContrast Equalize Invert Hue").split()
BLENDS = ("Brightness", "Color", "Contrast", "Sharpness")
program = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
failed = 0


def truth(name, holds, why=""):
    global failed
    print(f"{'ok  ' if holds else 'FAIL'} {name}{'' if holds else ': ' + str(why)}", flush=True)
    failed += not holds


def ask(*words, more=b""):
    program.stdin.write((" ".join(map(str, words)) + "\n").encode() + more)
    program.stdin.flush()
    kind, *rest = program.stdout.readline().decode().split()
    assert kind == "ok"
    return rest


def ours(a, op, value):
    ask("edit", OPS.index(op), repr(float(value)), a.shape[0], a.shape[1], a.shape[2] if a.ndim == 3 else 1, more=a.tobytes())
    return np.frombuffer(program.stdout.read(a.size), np.uint8).reshape(a.shape)


def theirs(a, op, value):
    image = Image.fromarray(a)
    if op == "Hue":
        return np.asarray(F.adjust_hue(image, value))
    value = value - 1 if op in BLENDS else value
    return np.asarray(A._apply_op(image, op, value, InterpolationMode.NEAREST, None))


def picture(rng):
    """Small pictures of all kinds: noise, gradients, few values, one value, the narrowest."""
    h, w = (int(n) for n in rng.integers(1, 48, 2))
    if rng.random() < 0.3:
        w = h
    c = 3 if rng.random() < 0.75 else 1
    kind = rng.integers(5)
    if kind == 0:
        a = rng.integers(0, 256, (h, w, c))
    elif kind == 1:
        y, x = np.mgrid[0:h, 0:w]
        a = np.stack([(x * int(rng.integers(1, 9)) + y * int(rng.integers(1, 9)) + int(rng.integers(256))) % 256] * c, -1)
    elif kind == 2:
        a = rng.choice(rng.integers(0, 256, 3), (h, w, c))
    elif kind == 3:
        a = np.full((h, w, c), rng.integers(256))
    else:
        a = np.clip(rng.normal(rng.integers(256), rng.integers(1, 60), (h, w, c)), 0, 255)
    a = a.astype(np.uint8)
    return a if c == 3 else a[..., 0]


def strength(rng, op):
    """Torchvision's own half of the time, else any."""
    own = A.TrivialAugmentWide()._augmentation_space(31).get(op)
    if own and own[0].ndim and rng.random() < 0.5:
        value = float(own[0][rng.integers(31)]) * (rng.choice([-1.0, 1.0]) if own[1] else 1)
        return 1 + value if op in BLENDS else float(int(value)) if op in ("TranslateX", "TranslateY") else value
    return {"ShearX": lambda: rng.uniform(-1, 1), "ShearY": lambda: rng.uniform(-1, 1),
            "TranslateX": lambda: int(rng.integers(-60, 61)), "TranslateY": lambda: int(rng.integers(-60, 61)),
            "Rotate": lambda: rng.choice([rng.uniform(-360, 360), rng.integers(-8, 9) * 45]), "Posterize": lambda: int(rng.integers(1, 9)),
            "Solarize": lambda: rng.uniform(0, 256), "Hue": lambda: rng.choice([rng.uniform(-0.5, 0.5), -0.5, 0.5]),
            }.get(op, lambda: rng.uniform(0, 3) if op in BLENDS else 0)()


for op in OPS:
    rng = np.random.default_rng(OPS.index(op))
    wrong = None
    for case in range(CASES):
        a, value = picture(rng), float(strength(rng, op))
        # torchvision's functions take the magnitude; 1 + (value - 1) may differ from the value by a rounding
        value = 1 + (value - 1) if op in BLENDS else value
        mine, wanted = ours(a, op, value), theirs(a, op, value)
        if not np.array_equal(mine, wanted):
            wrong = f"case {case}, {a.shape}, value {value!r}: {(mine != wanted).sum()} of {a.size} bytes differ"
            break
    truth(f"{op.lower()}_has_torchvisions_bytes_in_{CASES}_cases", not wrong, wrong)

# every colour, by steps of 5 and at both ends
axis = np.array(sorted({*range(0, 256, 5), 1, 2, 127, 128, 253, 254}), np.uint8)
cube = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), -1).reshape(len(axis), -1, 3)
for op, values in (("Hue", (0.0, 0.1, -0.25, 0.5)), ("Color", (0.1, 0.9, 1.7)), ("Contrast", (0.3, 1.9))):
    wrong = [v for v in values if not np.array_equal(ours(cube, op, 1 + (v - 1) if op in BLENDS else v), theirs(cube, op, v))]
    truth(f"{op.lower()}_has_torchvisions_bytes_for_all_colours", not wrong, wrong)

rng = np.random.default_rng(99)
wrong = None
for op in OPS:  # a large image: coordinates, long rows
    a = rng.integers(0, 256, (331, 467, 3)).astype(np.uint8)
    value = 1 + (strength(rng, op) - 1) if op in BLENDS else float(strength(rng, op))
    if not np.array_equal(ours(a, op, value), theirs(a, op, value)):
        wrong = f"{op} {value}"
truth("large_images_have_torchvisions_bytes", not wrong, wrong)


def drawn(policy, sample, ops=2, magnitude=9, jitter=(0, 0, 0, 0), size=(224, 224), epoch=3):
    words = ask("draw", policy, ops, magnitude, *jitter, 7, epoch, sample, *size)
    return [(OPS[int(words[i])], float(words[i + 1])) for i in range(0, len(words), 2)]


def value_of(op, magnitude):
    return 1 + magnitude if op in BLENDS else float(int(magnitude)) if op.startswith("Translate") else magnitude


def values(space, bins=None):
    """All edits that torchvision may draw from one of its spaces."""
    every = set()
    for op, (magnitudes, signed) in space.items():
        chosen = [float(m) for m in magnitudes.reshape(-1)] if magnitudes.ndim else [0.0]
        for m in chosen if bins is None or not magnitudes.ndim else [chosen[b] for b in bins]:
            every |= {(op, value_of(op, m))} | ({(op, value_of(op, -m))} if signed else set())
    return every


many = max(CASES * 40, 6000)
seen = {}
for sample in range(many):
    (edit,) = drawn(1, sample)
    seen[edit] = seen.get(edit, 0) + 1
truth("trivial_draws_exactly_torchvisions_edits", set(seen) == values(A.TrivialAugmentWide()._augmentation_space(31)),
      sorted(set(seen) ^ values(A.TrivialAugmentWide()._augmentation_space(31)))[:5])
by_op = [sum(n for (op, _), n in seen.items() if op == name) for name in OPS[:14]]
spread = 5 * (many / 14 * 13 / 14) ** 0.5  # five standard deviations
truth("trivial_draws_all_operations_alike", all(abs(n - many / 14) < spread for n in by_op), by_op)
signs = sum(n for (op, v), n in seen.items() if op == "Rotate" and v > 0) / max(1, by_op[5])
truth("half_of_the_strengths_are_negative", abs(signs - 15 / 31) < 0.15, signs)

for size in ((224, 224), (331, 662), (32, 32)):
    space = A.RandAugment()._augmentation_space(31, size)
    seen = {e for sample in range(1500) for e in drawn(2, sample, 3, 13, size=size)}
    truth(f"rand_draws_exactly_torchvisions_edits_for_{size[0]}x{size[1]}", seen == values(space, [13]),
          sorted(seen ^ values(space, [13]))[:5])
truth("rand_draws_so_many_operations", all(len(drawn(2, s, n)) == n for s in range(50) for n in (1, 2, 5)))

policies = A.AutoAugment().policies
space = A.AutoAugment()._augmentation_space(10, (224, 224))


def chances():
    """The probability of each pair of operations, without their signs."""
    every = {}
    for policy in policies:
        for first in (True, False):
            for second in (True, False):
                p, edits = 1.0, ()
                for on, (op, chance, bin_) in ((first, policy[0]), (second, policy[1])):
                    p *= chance if on else 1 - chance
                    if on:
                        m = float(space[op][0][bin_]) if bin_ is not None else 0.0
                        edits += ((op, round(abs(m), 5)),)
                every[edits] = every.get(edits, 0) + p / len(policies)
    return {k: p for k, p in every.items() if p > 0}


def size_of(op, value):
    return (op, round(abs(value - 1) if op in BLENDS else abs(value), 5))


wanted, got = chances(), {}
for sample in range(many):
    key = tuple(size_of(*e) for e in drawn(3, sample))
    got[key] = got.get(key, 0) + 1
odd = [k for k in set(wanted) | set(got)
       if abs(got.get(k, 0) - many * wanted.get(k, 0)) > 5 * (many * wanted.get(k, 0)) ** 0.5 + (6 if k in wanted else 0)]
truth("auto_draws_torchvisions_pairs_as_often", not odd, [(k, got.get(k, 0), many * wanted.get(k, 0)) for k in odd[:3]])
signed = {e for s in range(many) for e in drawn(3, s)}
truth("auto_draws_torchvisions_strengths", signed <= values(space), sorted(signed - values(space))[:3])

jitter = [drawn(0, s, jitter=(0.4, 0.2, 1.5, 0.1)) for s in range(3000)]
ranges = {"Brightness": (0.6, 1.4), "Contrast": (0.8, 1.2), "Color": (0.0, 2.5), "Hue": (-0.1, 0.1)}
truth("jitter_draws_four_operations", all(sorted(op for op, _ in j) == sorted(ranges) for j in jitter))
for op, (low, high) in ranges.items():
    v = np.array([value for j in jitter for name, value in j if name == op])
    truth(f"jitter_of_{op.lower()}_is_uniform", low <= v.min() < low + 0.02 * (high - low) and high - 0.02 * (high - low) < v.max() <= high
          and abs(v.mean() - (low + high) / 2) < 0.03 * (high - low), (v.min(), v.mean(), v.max()))
orders = {}
for j in jitter:
    orders[tuple(op for op, _ in j)] = orders.get(tuple(op for op, _ in j), 0) + 1
truth("jitter_has_all_24_orders_alike", len(orders) == 24 and max(orders.values()) < 190 and min(orders.values()) > 70, orders)
truth("jitter_leaves_out_what_is_zero", [op for op, _ in drawn(0, 5, jitter=(0, 0.3, 0, 0))] == ["Contrast"])
truth("another_epoch_draws_anew", [drawn(1, s) for s in range(50)] != [drawn(1, s, epoch=4) for s in range(50)])

program.stdin.close()
program.wait()
sys.exit(failed > 0)
