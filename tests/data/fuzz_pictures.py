#!/usr/bin/env python3
"""fuzz_pictures.py VIEW_PICTURE [N] [SEED]: N mutated pictures (300) against Pillow: JPEG in every sampling, PNG of
every kind, WebP, BMP, PBM, PGM and PPM, with bytes flipped, cut, swapped with another file's, and markers or chunks inserted.
Both read or both refuse a file, with the same pixels, or a rule below explains the difference; a difference without
a rule is kept and fails. The verdict must not depend on the view. VIEW_PICTURE may be a command of several words,
such as "valgrind -q --error-exitcode=9 build/tests/data/view_picture". The last line has a hash of all verdicts and
pixels: the same arguments give the same hash. Skips where Pillow is missing."""
import collections
import hashlib
import io
import os
import random
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tempfile
import warnings
import zlib

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from truths import again_with  # noqa: E402

PROGRAM = shlex.split(sys.argv[1])
again_with("PIL", os.path.join(os.path.dirname(os.path.abspath(PROGRAM[-1])), "../.."), "fuzz_pictures", "Pillow")

from PIL import Image, JpegImagePlugin, PngImagePlugin, UnidentifiedImageError, features  # noqa: E402

N = int(sys.argv[2]) if len(sys.argv) > 2 else 300
SEED = int(sys.argv[3]) if len(sys.argv) > 3 else 1
HERE = tempfile.mkdtemp(prefix="hvt-test-")
PATH = os.path.join(HERE, "picture")
warnings.simplefilter("ignore")
rng = random.Random(SEED)
program = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)


def ask(*words):
    """The numbers of the answer, or its message."""
    program.stdin.write((" ".join(map(str, words)) + "\n").encode())
    program.stdin.flush()
    answer = program.stdout.readline().decode("utf-8", "replace").strip()
    if not answer:
        sys.exit(f"view_picture died; its last file is {PATH}")
    kind, _, rest = answer.partition(" ")
    return [int(n) for n in rest.split()] if kind == "ok" else rest.replace(HERE, "")


def ours(view=None):
    """(height, width, pixels) as hvtrain reads the file, or its message."""
    size = ask("view", int(view is None), *(view or [0] * 10), PATH)
    if isinstance(size, str):
        return size
    return (*size, program.stdout.read(size[0] * size[1] * 3))


def a_part(whole):
    """A box, made smaller, so that JPEGs are decoded in part and at a smaller scale."""
    if isinstance(whole, str):
        return [0, 0, 1, 1, 1, 1, 0, 0, 1, 1]
    h, w, _ = whole
    y, x = rng.randrange(h), rng.randrange(w)
    high, wide = rng.randint(1, h - y), rng.randint(1, w - x)
    out = [max(1, high // rng.randint(1, 5)), max(1, wide // rng.randint(1, 5))]
    return [x, y, wide, high, *out, 0, 0, *out]


def theirs():
    """(height, width, pixels, format) as Pillow reads the file, or why it does not."""
    try:
        with Image.open(PATH) as image:
            kind = image.format
            rgb = image.convert("RGB")
        return rgb.height, rgb.width, rgb.tobytes(), kind
    except UnidentifiedImageError as why:
        return said_by_plugin() or str(why).replace(HERE, "")
    except Exception as why:  # whatever it is, the file is refused
        return f"{type(why).__name__}: {why}".replace(HERE, "")


def said_by_plugin():
    """Why Pillow cannot identify the file."""
    with open(PATH, "rb") as f:
        plugin = {b"\x89P": PngImagePlugin.PngImageFile, b"\xff\xd8": JpegImagePlugin.JpegImageFile}.get(f.read(2))
    try:
        plugin and plugin(PATH)
    except Exception as why:
        return f"{type(why).__name__}: {why}"


# ---- pictures ----------------------------------------------------------------------------------------------------


def make_jpeg():
    channels = rng.choice([1, 3, 3, 3, 3, 4, 5])
    factors = rng.choice([[1, 2], [1, 2], [1, 2, 4], [1, 3], [1, 2, 4]])
    common = rng.random() < .3
    sampling = [rng.choice([11, 21, 22]) if common and i == 0 else 11 if common
                else 10 * rng.choice(factors) + rng.choice(factors) for i in range(4)]
    progressive, arithmetic = rng.random() < .35, rng.random() < .15
    ask("jpeg", rng.randint(1, 70), rng.randint(1, 70), channels, *sampling, int(progressive), int(arithmetic),
        int(rng.random() < .15), rng.randint(0, 1), rng.choice([0, 0, 1, 2]), rng.randint(10, 98), rng.randint(0, 99), PATH)
    with open(PATH, "rb") as f:
        data = f.read()
    extra = rng.random()
    if extra < .1:
        data = data[:2] + segment(0xfe, rng.randbytes(rng.randint(0, 40))) + data[2:]
    elif extra < .2:
        data = data[:2] + segment(0xe1, b"Exif\0\0" + rng.choice([b"MM\0*\0\0\0\x08\0\0", rng.randbytes(9)])) + data[2:]
    elif extra < .25:
        data = data[:2] + segment(0xe2, b"MPF\0" + rng.randbytes(30)) + data[2:]
    elif extra < .3:
        data = data[:2] + segment(0xe2, b"ICC_PROFILE\0\1\1" + rng.randbytes(30)) + data[2:]
    return data


CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of a PNG's pixels


def segment(marker, data):
    return struct.pack(">BBH", 0xff, marker, len(data) + 2) + data


def chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def chunks_of(data):
    """[name, data] of a PNG; what cannot be told apart comes last, by no name."""
    at, found = 8, []
    while at + 8 <= len(data):
        size, = struct.unpack(">I", data[at:at + 4])
        if at + 12 + size > len(data):
            break
        found.append([data[at + 4:at + 8], data[at + 8:at + 8 + size]])
        at += 12 + size
    return found + [[b"", data[at:]]]


def of_chunks(chunks):
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(n, d) if n else d for n, d in chunks)


def compressed(data):
    how = zlib.compressobj(rng.randint(0, 9), zlib.DEFLATED, rng.randint(9, 15), 8, rng.randint(0, 4))
    out = how.compress(data) + how.flush()
    return out


def ancillary(mode):
    text = bytes(rng.choice(b"abc d\0\xe9") for _ in range(rng.randint(0, 30)))
    return rng.choice([
        lambda: (b"gAMA", struct.pack(">I", 45455)), lambda: (b"cHRM", rng.randbytes(32)), lambda: (b"sRGB", b"\0"),
        lambda: (b"iCCP", b"name\0\0" + compressed(rng.randbytes(50))), lambda: (b"iCCP", b"n\0\0" + rng.randbytes(9)),
        lambda: (b"tRNS", rng.randbytes({0: 2, 2: 6, 3: rng.randint(1, 4)}.get(mode, 2))),
        lambda: (b"bKGD", rng.randbytes({0: 2, 2: 6, 3: 1, 4: 2, 6: 6}[mode])), lambda: (b"sBIT", rng.randbytes(3)),
        lambda: (b"pHYs", rng.randbytes(9)), lambda: (b"tIME", rng.randbytes(7)), lambda: (b"tEXt", b"Key\0" + text),
        lambda: (b"zTXt", b"Key\0\0" + compressed(text)), lambda: (b"iTXt", b"Key\0\0\0en\0k\0" + text),
        lambda: (b"eXIf", b"MM\0*" + text), lambda: (b"hIST", rng.randbytes(8)), lambda: (b"prVt", text),
        lambda: (b"CrIT", text), lambda: (b"acTL", struct.pack(">II", 1, 0))])()


def rows_of(w, h, depth, laced):
    """The bytes of each row of a PNG's pixels, without that of its filter."""
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    for x, y, across, down in passes if laced else [(0, 0, 1, 1)]:
        width = len(range(x, w, across))
        yield from [(width * depth + 7) // 8] * len(range(y, h, down)) if width else []


def make_png():
    mode, bits = rng.choice([(0, 1), (0, 2), (0, 4), (0, 8), (0, 16), (2, 8), (2, 16), (3, 1), (3, 2), (3, 4), (3, 8),
                             (4, 8), (4, 16), (6, 8), (6, 16)])
    w, h, laced = rng.randint(1, 50), rng.randint(1, 50), rng.random() < .3
    depth = bits * CHANNELS[mode]
    rows = b""
    for size in rows_of(w, h, depth, laced):
        rows += bytes([rng.randint(0, 4)]) + bytes(rng.choice([0, 1, 3, 255, rng.randint(0, 255)]) for _ in range(size))
    data, pieces = compressed(rows), []
    while data:
        size = rng.choice([len(data), rng.randint(0, len(data))])
        pieces.append((b"IDAT", data[:size]))
        data = data[size:]
    head = [(b"IHDR", struct.pack(">IIBBBBB", w, h, bits, mode, 0, 0, laced))]
    before = [ancillary(mode) for _ in range(rng.randint(0, 2))]
    if mode == 3 or rng.random() < .05:
        before.insert(rng.randint(0, len(before)), (b"PLTE", rng.randbytes(3 * rng.choice([1, 3, 1 << min(bits, 8), 1 << min(bits, 8)]))))
    after = [ancillary(mode) for _ in range(rng.choice([0, 0, 0, 1]))] + [(b"IEND", b"")] * (rng.random() < .95)
    return of_chunks(head + before + pieces + after) + rng.choice([b"", b"", b"", rng.randbytes(9)])


def make_pnm():
    kind, w, h = rng.randint(1, 6), rng.randint(1, 30), rng.randint(1, 30)
    most = rng.choice([1, 15, 100, 255, 255, 256, 999, 4095, 65535])
    blank = lambda: rng.choice([" ", "\n", "\t", "  ", "\r\n", "\n# a comment\n"]).encode()
    numbers = [w, h] + [most] * (kind not in (1, 4))
    head = b"P%d" % kind + b"".join(blank() + b"%d" % n for n in numbers) + rng.choice([b"\n", b" "])
    n = w * h * (3 if kind in (3, 6) else 1)
    if kind == 1:
        return head + b"".join(rng.choice([b"0", b"1", b"1 ", b"0\n"]) for _ in range(n)) + b"\n"
    if kind == 4:
        return head + rng.randbytes((w + 7) // 8 * h)
    samples = [rng.randint(0, most) for _ in range(n)]
    if kind < 4:
        return head + b"".join(b"%d" % s + blank() for s in samples)
    return head + b"".join(struct.pack(">H" if most > 255 else "B", s) for s in samples)


def photograph(mode):
    w, h = rng.randint(1, 40), rng.randint(1, 40)
    small = Image.frombytes("RGB", (3, 3), rng.randbytes(27)).resize((w, h), Image.Resampling.BILINEAR)
    if mode == "RGBA":
        small.putalpha(Image.frombytes("L", (w, h), rng.randbytes(w * h)))
    return small.quantize(rng.randint(2, 200)) if mode == "P" else small.convert(mode)


def stored(image, **how):
    data = io.BytesIO()
    image.save(data, **how)
    return data.getvalue()


def make_bmp():
    return stored(photograph(rng.choice(["1", "L", "P", "RGB", "RGBA"])), format="BMP")


def make_webp():
    return stored(photograph(rng.choice(["RGB", "RGB", "RGBA", "L"])), format="WEBP", quality=rng.randint(1, 100),
                  lossless=rng.random() < .4, exact=rng.random() < .3,
                  **rng.choice([{}, {}, {"exif": b"Exif\0\0" + rng.randbytes(9)}, {"icc_profile": rng.randbytes(31)}]))


# ---- mutations ---------------------------------------------------------------------------------------------------


def place(data):
    """Headers are as likely as all the rest."""
    return rng.randrange(min(len(data), rng.choice([40, 700, len(data)])))


def flip(data, other):
    at = place(data)
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1:]


def poke(data, other):
    at = place(data)
    return data[:at] + bytes([rng.choice([0, 1, 0x7f, 0x80, 0xff, 0xd9, rng.randrange(256)])]) + data[at + 1:]


def cut(data, other):
    return data[:rng.choice([rng.randrange(len(data)), max(1, len(data) - rng.randint(1, 24))])]


def cut_and_close(data, other):
    end = b"\xff\xd9" if data[:2] == b"\xff\xd8" else chunk(b"IEND", b"")
    return cut(data, other) + end


def leave_out(data, other):
    at = place(data)
    return data[:at] + data[at + rng.randint(1, 40):]


def swap(data, other):
    at, size = place(data), rng.randint(1, 200)
    there = rng.choice([at, place(other)])
    return data[:at] + other[there:there + size] + data[at + size:]


def insert(data, other):
    at = place(data)
    return data[:at] + rng.choice([rng.randbytes(rng.randint(1, 9)), b"\0" * rng.randint(1, 30)]) + data[at:]


def append(data, other):
    return data + rng.choice([b"\0" * 50, rng.randbytes(20), other, b"\xff\xd8\xff", b"\xff\xc0\0\x0b"])


def insert_marker(data, other):
    """Where a marker of a JPEG is, or anywhere."""
    there = [i for i in range(2, len(data) - 1) if data[i] == 0xff and data[i + 1] not in (0, 0xff)]
    at = rng.choice(there) if there and rng.random() < .7 else place(data)
    marker = rng.choice([0xd0, 0xd3, 0xd8, 0xd9, 0xda, 0xc0, 0xc2, 0xc4, 0xdb, 0xdd, 0xe0, 0xee, 0xfe, 0xcc, 1, 0xf0, rng.randrange(256)])
    body = rng.choice([b"", b"\0\2", b"\0\4\0\7", struct.pack(">H", rng.randint(0, 30)) + rng.randbytes(rng.randint(0, 30))])
    return data[:at] + bytes([0xff, marker]) + body + data[at:]


def change_sampling(data, other):
    for i in range(len(data) - 20):
        if data[i] == 0xff and data[i + 1] in (0xc0, 0xc1, 0xc2, 0xc9, 0xca):
            at = i + 11 + 3 * rng.randrange(3)
            return data[:at] + bytes([rng.choice([0x11, 0x12, 0x21, 0x22, 0x41, 0x14, 0x24, 0x42, 0x31, 0x13, 0x44])]) + data[at + 1:]
    return flip(data, other)


def change_chunk(data, other):
    """A chunk's bytes, order or number, with sound checksums."""
    chunks = chunks_of(data)
    i = rng.randrange(len(chunks))
    name, body = chunks[i]
    how = rng.randrange(7)
    if how == 0 and body:
        chunks[i] = [name, flip(body, b"")]
    elif how == 1:
        chunks[i] = [name, body[:rng.randint(0, len(body))]]
    elif how == 2:
        del chunks[i]
    elif how == 3:
        chunks.insert(rng.randrange(len(chunks)), chunks[i])
    elif how == 4:
        chunks.insert(i, list(ancillary(rng.choice([0, 2, 3, 4, 6]))))
    elif how == 5 and name:
        chunks[i] = [flip(name, b""), body]
    else:
        j = rng.randrange(len(chunks))
        chunks[i], chunks[j] = chunks[j], chunks[i]
    return of_chunks(chunks)


def break_checksum(data, other):
    chunks = chunks_of(data)
    at = 8
    i = rng.randrange(len(chunks))
    for name, body in chunks[:i + 1]:
        at += 12 + len(body)
    return data[:at - 4] + rng.randbytes(4) + data[at:]


COMMON = [flip, flip, poke, cut, cut_and_close, leave_out, swap, insert, append]
ALSO = {make_jpeg: [insert_marker, insert_marker, insert_marker, change_sampling],
        make_png: [change_chunk] * 5 + [break_checksum] * 2, make_pnm: [], make_bmp: [], make_webp: []}
MAKERS = [make_jpeg, make_jpeg, make_png, make_png, make_pnm, make_bmp]


def mutated():
    make = rng.choice(MAKERS)
    data, other, names = make(), rng.choice([make_jpeg, make_png, make])(), [make.__name__[5:]]
    for _ in range(rng.choice([0, 1, 1, 1, 1, 2, 2, 3])):
        mutation = rng.choice(COMMON + ALSO[make])
        data = mutation(data, other) or b"\0"
        names.append(mutation.__name__)
    return data, names


# ---- differences that are meant ----------------------------------------------------------------------------------

LOST = ["premature end of data segment", "bad Huffman code", "bad arithmetic code", "instead of RST", "nconsistent progression"]


def pixels_of(data):
    """Of a PNG: whether a checksum proves its pixels right, and whether all of them are there."""
    at, stream, right, head, begun = 8, b"", True, None, False
    while at + 8 <= len(data):
        size, = struct.unpack(">I", data[at:at + 4])
        name, body = data[at + 4:at + 8], data[at + 8:at + 8 + size]
        if begun and name != b"IDAT":
            break
        if name == b"IDAT" and head:
            begun = True
            stream += body
            right &= at + 12 + size > len(data) or \
                data[at + 8 + size:at + 12 + size] == struct.pack(">I", zlib.crc32(name + body))
        elif name == b"IHDR":
            head = struct.unpack(">IIBBBBB", body[:13])
        at += 12 + size
    how, raw = zlib.decompressobj(), b""
    try:
        for i in range(len(stream)):
            raw += how.decompress(stream[i:i + 1])
    except zlib.error:
        return False, False
    w, h, bits, mode, _, _, laced = head
    return right or how.eof, len(raw) >= sum(1 + size for size in rows_of(w, h, bits * CHANNELS[mode], laced))


def lacks_scans(data):
    """Of a progressive JPEG: whether some bit of a coefficient comes in none of its scans."""
    left, at, channels = None, 2, []
    while at + 4 <= len(data) and data[at:at + 2] != b"\xff\xd9":
        marker = data[at + 1] if data[at] == 0xff else 0
        if marker in (0, 0xff) or 0xd0 <= marker < 0xd8:
            at += 1
            continue
        body = data[at + 4:at + 2 + int.from_bytes(data[at + 2:at + 4], "big")]
        if marker in (0xc2, 0xca) and left is None and len(body) > 5:
            channels = list(body[6::3])
            left = {(c, k): 1 for c in channels for k in range(64)}
        if marker == 0xda and left and len(body) > 3:
            for c in body[1:-3:2]:
                left.update({(c, k): body[-1] & 15 for k in range(body[-3], min(body[-2], 63) + 1)})
        at += 2 + len(body) if marker != 0xda else 2
    return bool(left) and any(left.values())


def explained(data, our, their):
    """The rule that explains why one refuses what the other reads, or why pixels differ. None: there is none."""
    if isinstance(our, str) and not isinstance(their, str):
        if their[3] not in ("JPEG", "PNG", "PPM", "MPO", "BMP", "WEBP") or "; supported are" in our:
            return "hvtrain does not read the format"
        if any(w in our for w in LOST):
            return "the JPEG library says that data are lost"
        if "WebP cannot be decoded: broken data" in our:
            return "versions of libwebp differ on damaged pixels"
        if "expected sides of 1 to 65500" in our:
            return "a side has more than 65,500 pixels"
        if "palette has 0 colours" in our:
            return "a PNG without its palette is black to Pillow"
        if their[3] == "PNG":
            right, whole = pixels_of(data)
            if not right:
                return "a PNG's checksums prove that its pixels are damaged"
            if not whole:
                return "a PNG's data end before its last row, and the rest is black to Pillow"
        if their[3] == "PNG" and data[28] and "truncated" in our:
            return "an interlaced PNG is cut behind its last pixel"
    elif isinstance(their, str):
        if data[12:16] == b"VP8X" and ("next frame" in their or "decoder object" in their):
            return "a WebP is damaged in its flags or its alpha, not in its pixels"
        if data[:2] in (b"P2", b"P3") and "Token too long" in their:
            return "Pillow looks at what follows the last sample of P2 and P3"
        if re.search(r"runcated (tRNS|gAMA|cHRM|sRGB|pHYs|acTL|fcTL)|compression method \d+ in [iz]|MAX_TEXT", their):
            return "a chunk that no pixel needs is odd, and its checksum is right"
        if data[:2] == b"\x89P" and "Truncated File Read" in their and pixels_of(data) == (True, True):
            return "a PNG is cut in data behind its last pixel"
        if "broken data" in their and re.search(rb"\xff[\xc0-\xc3\xc5-\xc7\xc9-\xcb\xcd-\xcf].{0,8}$", data, re.S):
            return "the end of a JPEG cuts a second header, which a newer library sees"
    elif data[:2] == b"BM" and data[28] in (4, 8) and data[46:50] == b"\2\0\0\0":
        return "Pillow reads a BMP of two greys as bits"
    elif max(abs(a - b) for a, b in zip(our[2], their[2])) <= 64 and lacks_scans(data):
        return "a progressive JPEG lacks scans, and versions of the library smooth it differently"
    return None


def reads_webp():
    with open(PATH, "wb") as f:
        f.write(make_webp())
    return features.check("webp") and not isinstance(ours(), str)


def main():
    if reads_webp():
        MAKERS.append(make_webp)
    counts, rules, total = collections.Counter(), collections.Counter(), hashlib.sha256()
    unexplained = views = 0
    for n in range(N):
        data, names = mutated()
        with open(PATH, "wb") as f:
            f.write(data)
        our, their = ours(), theirs()
        part = ours(a_part(our))
        same = isinstance(our, str) and isinstance(their, str) or our[:3] == their[:3]
        total.update(repr((our, their, part)).encode())
        rule = None if same else explained(data, our, their)
        if isinstance(part, str) != isinstance(our, str):
            same, rule, views = False, None, views + 1
        counts["both refuse" if isinstance(our, str) and isinstance(their, str) else "both read" if same else "differ"] += 1
        rules[rule] += not same and rule is not None
        if not same and not rule:
            unexplained += 1
            kept = os.path.join(tempfile.gettempdir(), f"fuzz-{SEED}-{n}")
            shutil.copy(PATH, kept)
            say = [x if isinstance(x, str) else f"{x[0]} x {x[1]} pixels {hashlib.md5(x[2]).hexdigest()[:6]}" for x in (our, their, part)]
            print(f"FAIL {n} {names} {kept}\n     hvtrain: {say[0]}\n     Pillow:  {say[1]}\n     a part:  {say[2]}", flush=True)
    print(f"     Pillow {Image.__version__}, libjpeg-turbo {features.version('libjpeg_turbo')}")
    for name, count in sorted(counts.items()):
        print(f"{count:8} {name}")
    for rule, count in sorted((r, c) for r, c in rules.items() if r):
        print(f"{count:8} differ, since {rule}")
    print(f"{N} pictures from seed {SEED}, {unexplained} unexplained, SHA-256 {total.hexdigest()[:16]}")
    return unexplained


try:
    code = main() > 0
    program.stdin.close()
    code |= program.wait() != 0
finally:
    program.kill()
    shutil.rmtree(HERE)
sys.exit(code)
