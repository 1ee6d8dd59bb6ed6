#!/usr/bin/env python3
"""test_pillow.py VIEW_PICTURE [FOLDER]: compares pixels and boxes of pictures with Pillow and torchvision. (Damaged
pictures: fuzz_pictures.py.) Skips without the two. FOLDER: further JPEG files to compare; the numbers of the last
check are then theirs."""
import glob
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from truths import again_with  # noqa: E402

PROGRAM = os.path.abspath(sys.argv[1])
again_with("torch, torchvision, PIL, numpy", os.path.join(os.path.dirname(PROGRAM), "../.."), "pillow", "torchvision with Pillow")

import numpy as np  # noqa: E402
import torch  # noqa: E402
import torchvision  # noqa: E402
import torchvision.transforms.functional as F  # noqa: E402
from PIL import Image, ImageDraw, ImageOps  # noqa: E402
from torchvision.transforms import transforms as T  # noqa: E402

torch.set_num_threads(1)
warnings.simplefilter("ignore")  # of Pillow, about damaged files
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
HERE = tempfile.mkdtemp(prefix="hvt-test-")
program = subprocess.Popen([PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
failed = 0


def truth(name, holds, why=""):
    global failed
    print(f"{'ok  ' if holds else 'FAIL'} {name}{'' if holds else ': ' + str(why)}", flush=True)
    failed += not holds


def ask(*words):
    """Numbers of the answer, or its message."""
    program.stdin.write((" ".join(map(str, words)) + "\n").encode())
    program.stdin.flush()
    answer = program.stdout.readline().decode().strip()
    kind, _, rest = answer.partition(" ")
    return [int(n) for n in rest.split()] if kind == "ok" else rest


def pixels(path, view=None, unscaled=False, turned=False):
    """Of a view (box x, y, w, h; full size; window top, left, h, w), or of the whole picture; a text: why not."""
    size = ask("view", unscaled + 2 * turned, *(view or [0] * 10), path)
    if isinstance(size, str):
        return size
    count = size[0] * size[1] * 3
    return np.frombuffer(program.stdout.read(count), np.uint8).reshape(size[0], size[1], 3)


def by_pillow(path):
    with Image.open(path) as f:
        return f.convert("RGB")


def photograph(w, h, seed=0, colours=3):
    """Gradients, edges, text and a little noise, as photographs have them."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:h, 0:w] / max(w, h)
    a = np.stack([128 + 100 * np.sin(6 * x + c + 3 * y * (seed % 5 + 1)) * np.cos(4 * y - c) for c in range(colours)], -1)
    a = np.clip(a + rng.normal(0, 4, a.shape), 0, 255).astype(np.uint8)
    image = Image.fromarray(a if colours > 1 else a[..., 0])
    draw = ImageDraw.Draw(image)
    for i in range(12):
        at = [int(v) for v in (rng.random(2) * [w, h])]
        size = int(rng.random() * w / 4) + 3
        ink = tuple(int(v) for v in rng.integers(0, 256, colours)) if colours > 1 else int(rng.integers(0, 256))
        draw.ellipse([at[0], at[1], at[0] + size, at[1] + size // 2 + 1], fill=ink)
        draw.text(at, "The quick brown fox", fill=ink)
    return image


def saved(name, image, **how):
    path = os.path.join(HERE, name)
    image.save(path, **how)
    return path


def all_kinds():
    """Files of every kind that is read."""
    rgb, grey = photograph(93, 75), photograph(93, 75, colours=1)
    for q, sub in [(95, 0), (75, 1), (85, 2), (30, 2)]:
        yield saved(f"q{q}-{sub}.jpg", rgb, quality=q, subsampling=sub)
    yield saved("progressive.jpg", rgb, quality=80, progressive=True)
    yield saved("grey.jpeg", grey, quality=80)
    yield saved("grey-progressive.jpeg", grey, quality=80, progressive=True)
    yield saved("cmyk.jpg", rgb.convert("CMYK"), quality=90)
    yield saved("rgb.jpg", rgb, quality=90, keep_rgb=True)
    yield saved("restart.jpg", rgb, quality=90, restart_marker_rows=1)
    exif = Image.Exif()
    exif[0x112] = 6
    yield saved("turned.jpg", rgb, quality=90, exif=exif)
    yield saved("wrong-suffix.png", rgb, format="JPEG")
    yield saved("one.jpg", photograph(1, 1))
    yield saved("wide.jpg", photograph(5000, 3))
    for mode in ["1", "L", "LA", "RGB", "RGBA"]:
        yield saved(f"{mode}.png", photograph(93, 75).convert(mode))
    for colours in [2, 4, 16, 256]:
        yield saved(f"P{colours}.png", rgb.quantize(colours))
    yield saved("P-transparent.png", rgb.quantize(16), transparency=3)
    yield saved("RGB-transparent.png", rgb, transparency=(1, 2, 3))
    yield saved("L-transparent.png", grey, transparency=7)
    values = (np.arange(93 * 75).reshape(75, 93) * 9 % 65536).astype(np.uint16)
    yield saved("I16.png", Image.fromarray(values))
    yield saved("I16.ppm", Image.fromarray(values))
    yield saved("RGB.ppm", rgb)
    yield saved("L.pgm", grey)
    for name, header, samples in [("P6-100", b"P6 31 20 100\n", 1860), ("P6-999", b"P6\n#c\n31 20\n999\n", 3720),
                                  ("P5-15", b"P5 31 20 15\n", 620), ("P5-4095", b"P5 31 20 4095\n", 1240)]:
        path = os.path.join(HERE, name + ".ppm")
        wide = samples // 620 % 2 == 0
        most = int(header.split()[-1])
        data = np.arange(samples // (1 + wide)) * 37 % (most + 1)
        with open(path, "wb") as f:
            f.write(header + data.astype(">u2" if wide else np.uint8).tobytes())
        yield path


def bmp(w, h, bits, seed, core=False, down=False, colours=None, masks=False, forgets=False):
    """Random pixels of a kind that Pillow does not write."""
    rng = np.random.default_rng(seed)
    colours = (colours or 1 << bits) if bits <= 8 else 0
    palette = rng.integers(0, 256, colours * (3 if core else 4), np.uint8).tobytes()
    size = struct.pack("<HHHH", w, h, 1, bits) if core else \
        struct.pack("<iiHHIIiiII", w, -h if down else h, 1, bits, 3 if masks else 0, 0, 0, 0, colours if colours != 1 << bits else 0, 0)
    head = struct.pack("<I", len(size) + 4) + size + (struct.pack("<III", 0xff0000, 0xff00, 0xff) if masks else b"")
    at = 14 + len(head) + (0 if forgets else len(palette))
    return b"BM" + struct.pack("<IHHI", 0, 0, 0, at) + head + palette + rng.integers(0, 256, (w * bits + 31) // 32 * 4 * h, np.uint8).tobytes()


def newer_kinds():
    """BMP, and what optional libraries read: (library, file)."""
    rgb, grey = photograph(93, 75, 3), photograph(93, 75, 3, colours=1)
    alpha = rgb.convert("RGBA")
    alpha.putalpha(photograph(93, 75, 9, colours=1))
    for mode in "1", "L", "P", "RGB", "RGBA":
        yield None, saved(f"{mode}.bmp", (rgb if mode != "RGBA" else alpha).convert(mode))
    for n, kind in enumerate([{"bits": 1}, {"bits": 4}, {"bits": 8}, {"bits": 24}, {"bits": 32}, {"bits": 8, "core": True},
                              {"bits": 24, "core": True}, {"bits": 4, "down": True}, {"bits": 24, "down": True}, {"bits": 8, "colours": 100},
                              {"bits": 32, "masks": True}, {"bits": 8, "forgets": True}]):
        path = os.path.join(HERE, f"made{n}.bmp")
        with open(path, "wb") as f:
            f.write(bmp(37 + n, 11, seed=n, **kind))
        yield None, path
    for name, image, how in [("lossy", rgb, {"quality": 80}), ("lossless", rgb, {"lossless": True}), ("grey", grey, {"quality": 50}),
                             ("alpha", alpha, {"quality": 80}), ("alpha-lossless", alpha, {"lossless": True, "exact": True})]:
        yield "libwebp", saved(f"{name}.webp", image, **how)
    for mode in "1", "L", "LA", "P", "RGB", "RGBA":
        image = alpha.convert(mode) if mode != "P" else rgb.quantize(200)
        for how in None, "tiff_lzw", "tiff_adobe_deflate", "packbits":
            yield "libtiff", saved(f"{mode}-{how}.tif", image, compression=how)
    yield "libtiff", saved("fax.tif", rgb.convert("1"), compression="group4")
    yield "libtiff", saved("jpeg.tif", rgb, compression="jpeg", quality=90)
    yield "libtiff", saved("tiles.tif", rgb, compression="tiff_lzw", tiffinfo={317: 2, 278: 7})
    for o in range(2, 9):
        yield "libtiff", saved(f"turn{o}.tif", rgb, tiffinfo={274: o})
    yield "libtiff", saved("I16.tif", Image.fromarray((np.arange(93 * 75).reshape(75, 93) * 9 % 65536).astype(np.uint16)))


def all_that_was_built():
    """The files that this build reads; each library that it lacks is named once."""
    lacks = set()
    for library, path in newer_kinds():
        said = pixels(path)
        if library and isinstance(said, str) and f"built without {library}" in said:
            lacks.add(library)
        elif library not in lacks:
            yield path
    for library in lacks:
        print(f"skip this build lacks {library}")


def truncations_of_newer_kinds_are_errors():
    """A cut file is refused wherever Pillow refuses it, and has Pillow's pixels wherever both read it."""
    wrong, cuts = [], 0
    rng = np.random.default_rng(8)
    for path in all_that_was_built():
        with open(path, "rb") as f:
            data = f.read()
        for at in [len(data) - 1, *(int(v) for v in rng.integers(2, len(data), 12)), *(int(v) for v in rng.integers(2, 80, 4))]:
            cut = os.path.join(HERE, "cut")
            with open(cut, "wb") as f:
                f.write(data[:at])
            try:
                theirs = np.asarray(by_pillow(cut))
            except Exception:
                theirs = None
            ours, cuts = pixels(cut, unscaled=True), cuts + 1
            if theirs is None and not isinstance(ours, str) or not isinstance(ours, str) and not np.array_equal(ours, theirs):
                wrong.append((os.path.basename(path), at, len(data)))
    truth("truncations_of_newer_kinds_are_errors", not wrong and cuts > 200, (wrong[:5], len(wrong), cuts))


def unscaled_pixels_are_pillows():
    for path in [*all_kinds(), *all_that_was_built()]:
        ours, theirs = pixels(path, unscaled=True), np.asarray(by_pillow(path))
        same = not isinstance(ours, str) and ours.shape == theirs.shape and np.array_equal(ours, theirs)
        why = ours if isinstance(ours, str) else f"{ours.shape} {theirs.shape}" if ours.shape != theirs.shape else \
            f"{(ours != theirs).sum()} values differ, by {np.abs(ours.astype(int) - theirs).max()}"
        truth(f"pixels_of_{os.path.basename(path)}", same, why)


def truncated_files_are_errors_where_they_are_to_pillow():
    wrong = []
    for name in ["q85-2.jpg", "progressive.jpg", "RGB.png", "P16.png", "RGB.ppm"]:
        with open(os.path.join(HERE, name), "rb") as f:
            data = f.read()
        for part in [0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99]:
            path = os.path.join(HERE, "cut")
            with open(path, "wb") as f:
                f.write(data[:int(len(data) * part)])
            try:
                by_pillow(path)
                pillow = True
            except (OSError, SyntaxError, ValueError):
                pillow = False
            if not pillow and not isinstance(pixels(path), str):
                wrong.append((name, part))
    truth("truncated_files_are_errors_where_they_are_to_pillow", not wrong, wrong)


def mix(x):
    x = (x + 0x9e3779b97f4a7c15) % 2 ** 64
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9 % 2 ** 64
    x = (x ^ x >> 27) * 0x94d049bb133111eb % 2 ** 64
    return x ^ x >> 31


def draw(a, b, c, d):
    return mix(d ^ mix(c ^ mix(b ^ mix(a))))


class Draws:
    """torch as RandomResizedCrop.get_params() uses it, with libhvt's numbers: per try area, ratio, row, column."""

    def __init__(self, seed, epoch, sample):
        self.key, self.op = (seed, epoch, sample), 0x0e00
        self.tensor = lambda x: torch.tensor(x, dtype=torch.float64)
        self.log, self.exp = torch.log, lambda x: torch.exp(torch.as_tensor(x))

    def next(self):
        self.op += 1
        return draw(*self.key, self.op - 1)

    def empty(self, n):
        return self

    def uniform_(self, low, high):
        if (self.op - 0x0e00) % 4 == 2:  # the try before was too large, and drew no place
            self.op += 2
        low, high = float(low), float(high)
        return torch.tensor(low + (high - low) * (self.next() >> 11) * 2.0 ** -53, dtype=torch.float64)

    def randint(self, low, high, size):
        return torch.tensor((self.next() >> 32) * high >> 32)


def boxes_are_torchvisions():
    sizes = [(375, 500), (500, 375), (32, 32), (17, 400), (400, 17), (1, 1), (3000, 4000), (65500, 65500)]
    wrong = []
    try:
        for h, w in sizes:
            for scale in [(.08, 1), (.25, 1), (.9, 1)]:
                bounds = [float(np.float32(x)) for x in (*scale, 3 / 4, 4 / 3)]
                for sample in range(60):
                    T.torch = Draws(7, 3, sample)
                    T.F = type("", (), {"get_dimensions": staticmethod(lambda size: (3, *size))})
                    i, j, ch, cw = T.RandomResizedCrop.get_params((h, w), bounds[:2], bounds[2:])
                    ours = ask("rrc", h, w, 7, 3, sample, *bounds)
                    if ours[:4] != [j, i, cw, ch]:
                        wrong.append((h, w, scale, sample, ours[:4], [j, i, cw, ch]))
    finally:
        T.torch, T.F = torch, F
    truth("boxes_are_torchvisions", not wrong, wrong[:3])


def centre_crops_are_torchvisions():
    wrong = []
    for k, (h, w, resize, out) in enumerate([(75, 93, 64, 56), (93, 75, 64, 56), (75, 93, 0, 56), (40, 93, 0, 64),
                                             (33, 34, 0, 40), (31, 93, 50, 120), (301, 457, 256, 224)]):
        path = saved(f"centre{k}.png", photograph(w, h, k))
        theirs = by_pillow(path)
        if resize:
            theirs = F.resize(theirs, resize)
        theirs = np.asarray(F.center_crop(theirs, [out, out])).astype(int)
        ours = pixels(path, ask("centre", h, w, resize, out, out))
        off = np.abs(ours - theirs)
        if off.max() > 1:
            wrong.append((h, w, resize, out, off.max(), (off > 1).mean()))
    truth("centre_crops_are_torchvisions", not wrong, wrong)


def jpegs():
    if FOLDER:
        yield from sorted(glob.glob(os.path.join(FOLDER, "**", "*.[jJ]*"), recursive=True))
        return
    for k in range(24):
        w, h = [(500, 375), (375, 500), (1200, 900), (640, 480), (333, 500), (2000, 1500)][k % 6]
        yield saved(f"photo{k}.jpg", photograph(w, h, k), quality=[75, 90, 95][k % 3], subsampling=[2, 2, 1, 0][k % 4])


def boxes_have_torchvisions_pixels():
    off, values, worst, boxes, psnr = 0, 0, 0, 0, []
    for n, path in enumerate(jpegs()):
        image = by_pillow(path)
        w, h = image.size
        tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
        for sample in range(4 if not FOLDER else 1):
            view = ask("rrc", h, w, 5, n, sample, .08, 1, .75, 4 / 3)
            x, y, cw, ch = view[:4]
            theirs = F.resized_crop(tensor.float(), y, x, ch, cw, [224, 224], antialias=True).permute(1, 2, 0).numpy()
            ours = pixels(path, view, unscaled=True)
            d = np.abs(ours - theirs)
            off += (d > 1).sum()
            values += d.size
            worst = max(worst, d.max())
            scaled = pixels(path, view)
            mse = np.mean((scaled.astype(float) - ours) ** 2)
            if mse:  # the others were decoded at full size
                psnr.append((10 * math.log10(255 ** 2 / mse), path, view[:4]))
            boxes += 1
    psnr.sort()
    median = psnr[len(psnr) // 2][0]
    print(f"     {boxes} boxes: unscaled at most {worst:.3f} of 255 off, {off / values:.2%} by more than 1; {len(psnr)} "
          f"scaled: median {median:.1f} dB, worst {psnr[0][0]:.1f} dB ({os.path.basename(psnr[0][1])} {psnr[0][2]})")
    truth("boxes_have_torchvisions_pixels", off <= values // 1000, f"{off} of {values} values off by more than 1")
    truth("scaled_decoding_has_a_median_of_38_dB", median >= 38, psnr[:3])


def exif_of(orientation):
    exif = Image.Exif()
    exif[0x10e], exif[0x112], exif[0x11a] = "a description", orientation, 72.0
    return exif


def turned_pictures_are_transposed():
    """All orientations: whole pictures, boxes, padding, and boxes that are decoded at a smaller scale."""
    wrong, off, values, worst = [], 0, 0, 99.
    image = photograph(331, 220, 4)
    for kind in "jpg", "png", "xmp", "webp":
        for o in range(1, 9):
            how = {"xmp": f'<x tiff:Orientation="{o}"/>'.encode()} if kind == "xmp" else {"exif": exif_of(o)}
            path = saved(f"turn-{kind}{o}.{kind.replace('xmp', 'jpg')}", image, **how)
            if "built without" in str(pixels(path)):
                continue
            with Image.open(path) as f:
                theirs = ImageOps.exif_transpose(f.convert("RGB"))
            if not np.array_equal(pixels(path, unscaled=True, turned=True), np.asarray(theirs)):
                wrong.append((kind, o))
            w, h = theirs.size
            for view in ask("rrc", h, w, 5, o, 1, .2, 1, .75, 4 / 3), [10, 20, 200, 190, 30, 31, 0, 0, 30, 31]:
                x, y, cw, ch, *size = view[:6]
                tensor = torch.from_numpy(np.asarray(theirs).copy()).permute(2, 0, 1).float()
                want = F.resized_crop(tensor, y, x, ch, cw, size, antialias=True).permute(1, 2, 0).numpy()
                ours = pixels(path, view, unscaled=True, turned=True)
                off += (np.abs(ours - want) > 1).sum()
                values += want.size
                mse = np.mean((pixels(path, view, turned=True).astype(float) - ours) ** 2)
                worst = min(worst, 10 * math.log10(255 ** 2 / mse) if mse else 99)
            padded = np.zeros((h + 30, w + 21, 3), np.uint8)
            padded[11:11 + h, 7:7 + w] = np.asarray(theirs)
            if not np.array_equal(pixels(path, [0, 0, w, h, h, w, -11, -7, h + 30, w + 21], unscaled=True, turned=True), padded):
                wrong.append((kind, o, "padded"))
    print(f"     turned boxes: {off} of {values} values off by more than 1; at a smaller scale at least {worst:.1f} dB")
    truth("turned_pictures_are_transposed", not wrong and off <= values // 1000 and 30 < worst < 99, (wrong, off, worst))


def damaged_exif_turns_what_pillow_turns():
    """Mutations of the orientation's small TIFF file, in JPEG (where Pillow ignores what it cannot read)."""
    rng, wrong, turned = np.random.default_rng(3), [], 0
    image = photograph(9, 5, 2)
    for n in range(400):
        data = bytearray(exif_of(int(rng.integers(1, 9))).tobytes())
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(0, min(len(data), 60)))] = int(rng.choice([0, 1, 2, 3, 6, 8, 0x12, 73, 255]))
        path = saved("damaged.jpg", image, exif=bytes(data[:int(rng.choice([len(data), len(data), rng.integers(1, len(data))]))]))
        with Image.open(path) as f:
            plain = np.asarray(f.convert("RGB"))
            try:
                theirs = np.asarray(ImageOps.exif_transpose(f).convert("RGB"))
            except Exception:  # Pillow fails while it writes EXIF data
                continue
        turned += plain.shape != theirs.shape
        ours = pixels(path, unscaled=True, turned=True)
        if isinstance(ours, str) or not np.array_equal(ours, theirs):
            wrong.append((n, bytes(data)))
    truth("damaged_exif_turns_what_pillow_turns", not wrong and turned > 20, (wrong[:2], len(wrong), turned))


print(f"     Pillow {Image.__version__}, torchvision {torchvision.__version__}")
try:
    if not FOLDER:
        unscaled_pixels_are_pillows()
        truncated_files_are_errors_where_they_are_to_pillow()
        truncations_of_newer_kinds_are_errors()
        turned_pictures_are_transposed()
        damaged_exif_turns_what_pillow_turns()
        boxes_are_torchvisions()
        centre_crops_are_torchvisions()
    boxes_have_torchvisions_pixels()
finally:
    program.stdin.close()
    program.wait()
    shutil.rmtree(HERE)
sys.exit(failed > 0)
