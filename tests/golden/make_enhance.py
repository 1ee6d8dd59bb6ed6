#!/usr/bin/env python3
"""torchvision's operations on Pillow images, for tests/data/test_enhance.c: a line "OP VALUE H W C HASH" each. OP is a number
of hvt__op, HASH the FNV-1a hash of the bytes. Byte i of an image is (i * i * 7 + (i >> 3) * 13 + i % C * 40) % 256.

    python3 tests/golden/make_enhance.py > tests/golden/enhance.txt
"""
import numpy as np
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode
from torchvision.transforms import autoaugment as A

OPS = ("Identity ShearX ShearY TranslateX TranslateY Rotate Brightness Color Contrast Sharpness Posterize Solarize "
       "AutoContrast Equalize Invert Hue").split()
VALUES = {"ShearX": (0.33, -0.99), "ShearY": (0.5, -0.066), "TranslateX": (5, -13), "TranslateY": (3, -31),
          "Rotate": (4.5, 90, -135, 180), "Brightness": (0.25, 1.5), "Color": (0.125, 1.75), "Contrast": (0.5, 1.96875),
          "Sharpness": (0.0625, 1.9375), "Posterize": (2, 5), "Solarize": (0, 127.5), "Hue": (0.25, -0.375)}


def fnv(data):
    h = 0xcbf29ce484222325
    for b in data:
        h = (h ^ b) * 0x100000001b3 % 2**64
    return h


for op in OPS:
    for value in VALUES.get(op, (0,)):
        for h, w, c in ((16, 16, 3), (9, 37, 3), (30, 7, 1), (2, 5, 3)):
            i = np.arange(h * w * c)
            a = ((i * i * 7 + (i >> 3) * 13 + i % c * 40) % 256).astype(np.uint8).reshape(h, w, c)
            image = Image.fromarray(a if c == 3 else a[..., 0])
            magnitude = value - 1 if op in ("Brightness", "Color", "Contrast", "Sharpness") else value
            out = F.adjust_hue(image, value) if op == "Hue" else A._apply_op(image, op, magnitude, InterpolationMode.NEAREST, None)
            print(OPS.index(op), float(value), h, w, c, f"{fnv(np.asarray(out).tobytes()):016x}")
