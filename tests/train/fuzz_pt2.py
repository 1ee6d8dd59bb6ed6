#!/usr/bin/env python3
"""fuzz_pt2.py HVTRAIN SECONDS [SEED [FILE.pt2 ...]]: damaged .pt2 files, opened and trained for one step.
fuzz_pt2.py PRINT_TAPE SECONDS [SEED [FILE.pt2 ...]]: the same with the graphs of test_corpus.py, too, which are only
built.

Damage affects the zip (truncation, changed bytes, names, wrong sizes and CRCs, bombs, duplicate entries), the program
(other types, numbers and names, exchanged operations, cycles, depth) and the weights (sizes, strides, types, values).
hvtrain must end with 0, or with 1 and one line that names the file; within a time, and within an amount of memory
that a small file may take. Otherwise the file is kept. Best with a program built with -Db_sanitize=address,undefined.
Not a test by itself, since it runs for a given time. To repeat a case, give its printed seed and 0 seconds. Without
files, nets of pt2_nets.py are taken, for which PyTorch must be there, as PyTorch writes them and in the layouts of
2.6 and 2.8. print_tape builds several files in turn, so it is faster and reaches the passes with more operations.
"""
import copy
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
import zlib

MOST_SECONDS, MOST_MIB = 60, 2048  # of a run; memory under sanitizers
HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "../tree"))
import operations  # noqa: E402
import test_corpus  # noqa: E402


# ---- zip files as one likes them ----

class Entry:
    """What an entry is, and what its headers say."""

    def __init__(self, name, data, deflate=False):
        self.name, self.data = name, data
        self.stored = zlib.compressobj(9, zlib.DEFLATED, -15) if deflate else data
        if deflate:
            self.stored = self.stored.compress(data) + self.stored.flush()
        self.method, self.flags, self.extra = 8 * deflate, 0x800, b""
        self.crc, self.size, self.packed, self.at = zlib.crc32(data), len(data), len(self.stored), None


def written(entries, count=None, size=None, comment=b""):
    out, directory = bytearray(), bytearray()
    for e in entries:
        name = e.name if isinstance(e.name, bytes) else e.name.encode()
        fields = (e.flags, e.method, 0, 0, e.crc & 0xffffffff, e.packed & 0xffffffff, e.size & 0xffffffff, len(name) & 0xffff,
                  len(e.extra))
        at = len(out) if e.at is None else e.at
        out += struct.pack("<IHHHHHIIIHH", 0x04034b50, 20, *fields) + name + e.extra + e.stored
        directory += struct.pack("<IHHHHHHIIIHHHHHII", 0x02014b50, 20, 20, *fields, 0, 0, 0, 0, at & 0xffffffff)
        directory += name + e.extra
    n = len(entries) if count is None else count
    return bytes(out + directory + struct.pack("<IHHHHIIH", 0x06054b50, 0, 0, n & 0xffff, n & 0xffff,
                                               len(directory) if size is None else size, len(out), len(comment)) + comment)


def entries_of(path):
    with zipfile.ZipFile(path) as z:
        return [Entry(i.filename, z.read(i)) for i in z.infolist() if "sample_inputs" not in i.filename]


def find(entries, end):
    return next((e for e in entries if e.name.endswith(end)), None)


def program_of(entries):
    return find(entries, "models/model.json") or find(entries, "serialized_exported_program.json")


def older(entries, flat):
    """As PyTorch 2.6 (flat) or 2.8 writes it: weights are pickled."""
    top = program_of(entries).name.split("/")[0]
    kept = [Entry("serialized_exported_program.json" if flat else e.name, e.data) for e in entries
            if e.name.endswith("models/model.json")]
    return kept + ([Entry("serialized_state_dict.pt", b"PK\3\4"), Entry("version", b"8.2")] if flat else
                   [Entry(f"{top}/data/weights/model.pt", b"PK\3\4")])


# ---- damage ----

NUMBERS = [0, 1, -1, 2, 3, 7, 64, -2, 255, 65536, 1 << 20, (1 << 20) + 1, (1 << 30) + 1, (1 << 31) - 1, 1 << 31, -(1 << 31),
           (1 << 32) + 1, (1 << 62) + 3, (1 << 63) - 1, -(1 << 63)]
OTHERS = [None, True, False, "", "x", "Infinity", "-Infinity", "NaN", "\n\x1b[31m", "\x00", "%s%n", "a" * 5000, "../../x", [],
          {}, [[]], 0.5, -1.5, 1e308, 5e-324, {"as_int": -1}, {"as_none": True}, [1, 2, 3], {"as_tensor": {"name": "x"}}]
RAW = ["NaN", "Infinity", "-Infinity", "1e999", "1e-999", "9" * 400, "-0", "00", "{", "]", '"\\ud800"', '"\\u0000"', "\\",
       '"' + "é" * 9 + '"']


def places(json_value, found=None):
    """Every container with each of its keys."""
    found, todo = [], [json_value]
    while todo:
        v = todo.pop()
        keys = list(v) if isinstance(v, dict) else range(len(v)) if isinstance(v, list) else ()
        for k in keys:
            found.append((v, k))
            todo.append(v[k])
    return found


def named(tree, key):
    return [(c, k) for c, k in places(tree) if k == key and isinstance(c, dict)]


def change_value(r, program):
    c, k = r.choice(places(program))
    what = r.randrange(5)
    if what == 0 and isinstance(c, dict):
        del c[k]
    elif what == 1:
        c[k] = copy.deepcopy(r.choice(OTHERS))
    elif what == 2 or isinstance(c[k], (int, float)):
        c[k] = r.choice(NUMBERS)
    elif what == 3:
        other, at = r.choice(places(program))
        c[k] = copy.deepcopy(other[at])
    elif isinstance(c, dict):
        c[str(k) + "x"] = c.pop(k)
    else:
        c[k:k + 1] = []


def change_number(r, program):
    """Of a node or a size."""
    c, k = r.choice(named(program, "as_int") or places(program))
    c[k] = r.choice(NUMBERS)


def change_ints(r, program):
    c, k = r.choice(named(program, "as_ints") or places(program))
    c[k] = [r.choice(NUMBERS) for _ in range(r.choice([0, 1, 2, 3, 4, 6, 9, 1000]))]


def change_sizes(r, program):
    c, k = r.choice(named(program, "sizes") or places(program))
    what = r.randrange(3)
    if what == 0:
        c[k] = [{"as_int": r.choice(NUMBERS)} for _ in range(r.randrange(9))]
    elif what == 1 and c[k]:
        c[k][r.randrange(len(c[k]))] = {"as_expr": {"expr_str": "s0", "hint": r.choice([None, {"as_int": r.choice(NUMBERS)}])}}
    elif isinstance(c[k], list):
        r.shuffle(c[k])


def nodes(program):
    return program["graph_module"]["graph"]["nodes"]


TARGETS = """conv2d.default conv2d.padding linear.default batch_norm.default layer_norm.default group_norm.default
instance_norm.default relu.default relu_.default hardtanh.default elu.default softplus.default add.Tensor sub.Tensor mul.Tensor
div.Tensor div_.Tensor empty.memory_format new_empty.default bernoulli_.float max_pool2d.default avg_pool2d.default
adaptive_avg_pool2d.default adaptive_max_pool2d.default mean.dim view.default flatten.using_ints unflatten.int squeeze.dim
unsqueeze.default dropout.default dropout_.default feature_dropout.default contiguous.default alias.default permute.default
transpose.int cat.default chunk.default split.Tensor split_with_sizes.default cumsum.default slice.Tensor narrow.default
select.int pad.default constant_pad_nd.default prelu.default clamp.default pow.Tensor_Scalar exp.default log.default abs.default
celu.default mish.default maximum.default rsub.Scalar softmax.int log_softmax.int
upsample_nearest2d.vec _upsample_nearest_exact2d.vec upsample_bilinear2d.vec _upsample_bicubic2d_aa.vec
conv_transpose2d.input pixel_shuffle.default pixel_unshuffle.default channel_shuffle.default amax.default max.dim linalg_vector_norm.default addcmul.default sum.dim_IntList""".split()


TARGETS += [name if "." in name else name + ".default" for _, rows in operations.ROWS for names, _ in rows for name in names.split()]


def change_target(r, program):
    r.choice(nodes(program))["target"] = "torch.ops.aten." + r.choice(TARGETS)


def change_nodes(r, program):
    n = nodes(program)
    i, k = r.randrange(len(n)), r.randrange(len(n))
    what = r.randrange(8)
    if what == 0:
        n[i], n[k] = n[k], n[i]
    elif what == 1:
        n[i]["inputs"] = copy.deepcopy(n[k]["inputs"])
    elif what == 2:
        n[i]["outputs"] = copy.deepcopy(n[k]["outputs"])
    elif what == 3:
        del n[i]
    elif what == 4:
        n[i]["outputs"] = r.choice([[], [{"as_tensors": []}], [{"as_none": True}], n[i]["outputs"] * 2])
    elif what == 5:
        r.shuffle(n[i]["inputs"])
    elif what == 6:
        n.insert(k, copy.deepcopy(n[i]))
    else:
        repeat_node(r, n, i, r.choice([20, 300, 3000]))


def repeat_node(r, n, i, times):
    """So many operations in place of one, each after the other, or each with a target of its own."""
    first = n[i]
    out = first["outputs"][0].get("as_tensor")
    if not out or not first["inputs"]:
        return
    last, own = out["name"], r.random() < 0.3
    for t in range(times):
        new = copy.deepcopy(first)
        if t:
            new["inputs"][0]["arg"] = {"as_tensor": {"name": f"{last}_{t}"}}
        new["outputs"] = [{"as_tensor": {"name": last if t == times - 1 else f"{last}_{t + 1}"}}]
        if own:
            new["target"] += str(t)
        n.insert(i + t, new)
    del n[i + times]


def change_names(r, program):
    """A tensor in place of another."""
    all_names = named(program["graph_module"]["graph"], "name")
    c, k = r.choice(all_names)
    other, at = r.choice(all_names)
    if isinstance(c[k], str) and isinstance(other[at], str):
        c[k] = other[at]


def rename_all(r, program):
    """Every place of a name in a row has another one, long or odd."""
    text = json.dumps(program)
    names = sorted({c[k] for c, k in named(program, "name") if isinstance(c[k], str) and len(c[k]) > 3})
    new = r.choice(["a" * 300, "weight", ".weight", "x.weight", "\\n", "é", "..", "p" * 127 + ".weight"])
    program.clear()
    program.update(json.loads(text.replace('"' + r.choice(names) + '"', '"' + new + '"')))


def change_version(r, program):
    program["schema_version"] = r.choice([None, {}, {"major": 9}, {"major": 7, "minor": 1}, {"major": "8"}, {"major": 8.0}, 8,
                                          {"major": 1 << 40}, {"major": 8, "minor": 999}])


def as_text(r, data):
    """The text of the program, not its values."""
    at, what = r.randrange(len(data)), r.randrange(8)
    if what == 0:
        return data[:at]
    if what == 1:
        return data[:at] + bytes([r.randrange(256)]) + data[at + 1:]
    if what == 2:
        return data[:at] + data[r.randrange(len(data)):][:r.randrange(400)] + data[at:]
    if what == 3:
        n = r.choice([100, 2047, 2049, 100000])
        return r.choice([b"[" * n + b"]" * n, b'{"a":' * n + b"0" + b"}" * n, b"[" * n])
    if what == 4:
        text = data.decode()
        value = [i for i in range(len(text) - 1) if text[i] == ":" or text[i:i + 2] == ", "]
        i = r.choice(value) + 1
        return (text[:i] + r.choice(RAW) + text[i + r.randrange(9):]).encode()
    if what == 5:  # a key twice
        return data.replace(b'"nodes":', b'"nodes": [], "nodes":', 1)
    if what == 6:
        return data[:at] + r.choice([b"\0", b"\xff\xfe", b"\xc3", b"\xef\xbb\xbf"]) + data[at:]
    return r.choice([b"", b"null", b"[]", b"{}", b'""', b"\0" * 100, data * 2])


def bomb(r):
    """JSON that packs well."""
    n = r.choice([1 << 20, 5 << 20, 21 << 20, 70 << 20])
    unit = r.choice([b"[],", b"{},", b"0,", b'"",', b'{"a":1},', b" ", b"\0"])
    return b'{"graph_module":[' + unit * (n // len(unit)) + b'0]}'


PROGRAM = [change_value] * 6 + [change_number] * 3 + [change_ints, change_sizes, change_sizes, change_target, change_target,
                                                     change_nodes, change_nodes, change_names, change_names, rename_all,
                                                     change_version]


def damage_program(r, entries):
    e = program_of(entries)
    if r.random() < 0.1:
        data = as_text(r, e.data)
    else:
        program = json.loads(e.data)
        for _ in range(r.choice([1, 1, 1, 2, 4])):
            try:
                r.choice(PROGRAM)(r, program)
            except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError):
                pass  # damaged already
        data = json.dumps(program).encode()
    entries[entries.index(e)] = Entry(e.name, data, r.random() < 0.2)


def damage_config(r, entries):
    e = find(entries, "model_weights_config.json")
    if not e:
        return damage_program(r, entries)
    config = json.loads(e.data)
    all_weights = list(config["config"].values())
    w = r.choice(all_weights)
    meta = w["tensor_meta"]
    what = r.randrange(9)
    if what == 0:
        meta["sizes"] = [{"as_int": r.choice(NUMBERS)} for _ in range(r.randrange(7))]
        meta["strides"] = [{"as_int": r.choice(NUMBERS)} for _ in meta["sizes"]]
    elif what == 1:
        meta["strides"] = [{"as_int": r.choice(NUMBERS)} for _ in meta["sizes"]]
    elif what == 2:
        meta["dtype"] = r.choice([0, 1, 5, 6, 8, 13, -7, 1 << 40, "7", None])
    elif what == 3:
        meta["storage_offset"] = {"as_int": r.choice(NUMBERS)}
    elif what == 4:
        w["path_name"] = r.choice(["../../models/model.json", "/etc/passwd", "", "x" * 1000, "weight_999", 3,
                                   r.choice(all_weights)["path_name"]])
    elif what == 5:
        w["use_pickle"] = r.choice([True, None, 1])
    elif what == 6:
        config = r.choice([{}, {"config": []}, {"config": 1}, [], {"config": {}}, {"config": {"x": 1}}])
    else:
        change_value(r, config)
    data = json.dumps(config).encode()
    entries[entries.index(e)] = Entry(e.name, data if what < 8 else as_text(r, data))


def damage_values(r, entries):
    weights = [e for e in entries if "/weight_" in e.name]
    if not weights:
        return damage_program(r, entries)
    e = r.choice(weights)
    data = r.choice([e.data[:-4], e.data[:-1], e.data + b"\0" * 4, b"", e.data * 2, b"\xff" * len(e.data),
                     b"\0\0\x80\x7f" * (len(e.data) // 4), b"\0" * (1 << 24)])
    entries[entries.index(e)] = Entry(e.name, data, r.random() < 0.5)


def damage_entry(r, entries):
    """What an entry's headers say."""
    e = r.choice([program_of(entries), find(entries, "config.json") or entries[-1], r.choice(entries)])
    lie = r.choice([0, 1, e.size - 1, e.size + 1, 2 * e.size, 0xffffffff, 0x7fffffff, 0xfffffffe])
    what = r.randrange(12)
    if what == 0:
        e.crc ^= 1 << r.randrange(32)
    elif what == 1:
        e.size = lie
    elif what == 2:
        e.packed = lie
    elif what == 3:
        e.size = e.packed = lie
    elif what == 4:
        e.method = r.choice([8, 1, 9, 12, 14, 93, 99, 65535])
    elif what == 5:
        e.flags = r.choice([1, 8, 0x41, 0x2000, 0, 0xffff])
    elif what == 6:
        e.at = r.choice([0, 1, 0xffffffff, 0x7fffffff, 4000])
    elif what == 7:
        e.name = r.choice(["../" + e.name, "/" + e.name, "", "a/" + e.name, e.name + "/", e.name.upper(),
                           b"\xff" + e.name.encode(), e.name.split("/")[0] + "/../" + e.name, "x" * 60000,
                           e.name.replace("/", "\\"), e.name + "\0x"])
    elif what == 8:
        e.extra = struct.pack("<HHQQ", 1, 16, r.choice([1 << 63, 1 << 40, 5]), r.choice([1 << 63, 1 << 40, 5]))
        e.size = e.packed = 0xffffffff
    elif what == 9:
        twin = Entry(e.name, e.data[:len(e.data) // 2] if r.random() < 0.5 else e.data)
        entries.insert(r.randrange(len(entries) + 1), twin)
    elif what == 10:
        entries.remove(e)
    else:
        entries.extend(Entry(f"{i}/models/model.json", b"{}") for i in range(r.choice([1, 500, 5000])))


def damage_bytes(r, data):
    data = bytearray(data)
    for _ in range(r.choice([1, 1, 2, 8, 50])):
        at = len(data) - 1 - min(int(r.expovariate(1 / 400)), len(data) - 1) if r.random() < 0.6 else r.randrange(len(data))
        data[at] = r.choice([0, 1, 0x7f, 0x80, 0xff, data[at] ^ (1 << r.randrange(8)), r.randrange(256)])
    return bytes(data)


def damaged(r, entries):
    entries = copy.deepcopy(entries)
    what = r.random()
    if what < 0.02:
        e = r.choice([program_of(entries), find(entries, "config.json") or program_of(entries)])
        entries[entries.index(e)] = Entry(e.name, bomb(r), True)
    elif what < 0.6:
        damage_program(r, entries)
    elif what < 0.7:
        damage_config(r, entries)
    elif what < 0.75:
        damage_values(r, entries)
    elif what < 0.88:
        damage_entry(r, entries)
    if 0.88 <= what < 0.9:
        return written(entries, r.choice([0, 1, len(entries) + 1, 65535]), r.choice([None, 0, 0xffffffff]),
                       r.choice([b"", b"PK\5\6" * 20]))
    data = written(entries)
    if what >= 0.95:
        return data[:r.randrange(len(data))] if r.random() < 0.7 else data + data[:r.randrange(len(data))]
    return damage_bytes(r, data) if what >= 0.9 else data


# ---- runs ----

def run(command, folder, most):
    """Exit code (negative: the signal), stderr, MiB, seconds."""
    began = time.time()
    env = {k: v for k, v in os.environ.items() if not k.startswith("HVT_")}
    env["ASAN_OPTIONS"] = f"hard_rss_limit_mb={2 * MOST_MIB}:allocator_may_return_null=1:exitcode=99"
    env["UBSAN_OPTIONS"] = "halt_on_error=1:print_stacktrace=1"
    with tempfile.TemporaryFile() as err:
        p = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err, env=env)
        stop = threading.Timer(most, p.kill)
        stop.start()
        _, status, used = os.wait4(p.pid, 0)
        stop.cancel()
        p.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return p.returncode, err.read(), used.ru_maxrss // 1024, time.time() - began


def complaint(rc, err, mib, seconds, most, builds):
    """What was wrong with a run; None: nothing. builds: it is print_tape, which says on stdout what is refused."""
    lines = [line for line in err.decode(errors="replace").split("\n")[:-1] if not line.startswith("hvtrain: warning: ")]
    if rc not in (0, 1 - builds):
        return f"exit {rc}"
    names = len(lines) == 1 and ("case.pt2" in lines[0] or ": the loss is " in lines[0])
    if rc and not (names and lines[0].startswith("hvtrain: ") and all(c >= " " and c != "\x7f" for c in lines[0])):
        return "not one line that names the file"
    if not rc and lines:
        return "lines after success"
    return f"{mib} MiB" if mib > MOST_MIB else f"{seconds:.0f} s" if seconds > most / 2 else None


def make_files(folder):
    pythons = [os.path.join(os.path.dirname(os.path.abspath(sys.argv[1])), "venv/bin/python"), sys.executable]
    python = next(p for p in pythons if os.path.exists(p))
    subprocess.run([python, os.path.join(HERE, "pt2_nets.py"), "export", folder], check=True, stderr=subprocess.DEVNULL)
    return [f"{folder}/{name}.pt2" for name in ("branches", "dropped", "kept", "inplace")]


def corpus():
    return [[Entry("net/" + name, data) for name, data in files.items() if name != "tape.txt"]
            for _, files in sorted(test_corpus.read().items())]


def main(program, seconds, seed=None, *files):
    folder = tempfile.mkdtemp(prefix="hvt-fuzz-")
    kept, builds = os.path.abspath("fuzz-pt2"), os.path.basename(program) == "print_tape"
    good = [entries_of(f) for f in files or (() if builds else make_files(folder))] + (corpus() if builds else [])
    good += [older(e, flat) for e in good[:1] for flat in (False, True) if find(e, "model_weights_config.json")]
    command = [os.path.abspath(program), "--model", "case.pt2",
               *"--data npy --data-dir . --limit 4 --batch 2 --steps 1 --threads 1 --quiet --eval-freq 0".split()]
    began, first, at_once = time.time(), int(seed or time.time_ns() % 10 ** 9), 32 if builds and float(seconds) else 1
    count, failed, worst, codes = 0, 0, [0, 0], {}
    while count == 0 or time.time() - began < float(seconds):
        for i in range(count, count + at_once):
            r = random.Random(first + i)
            with open(f"{folder}/case{i - count if builds else ''}.pt2", "wb") as f:
                f.write(damaged(r, r.choice(good)))
        most = MOST_SECONDS * at_once
        rc, err, mib, took = run([command[0], *(f"case{i}.pt2" for i in range(at_once))] if builds else command, folder, most)
        why = complaint(rc, err, mib, took, most, builds)
        worst = [max(worst[0], mib), max(worst[1], took)]
        codes[rc] = codes.get(rc, 0) + 1
        if why or not float(seconds):
            print(f"seed {first + count}{f' to {first + count + at_once - 1}' if at_once > 1 else ''}: {why or 'fine'}: exit {rc}, "
                  f"{mib} MiB, {took:.1f} s")
            print(err.decode(errors="replace")[:3000], flush=True)
        if why:
            failed += 1
            os.makedirs(kept, exist_ok=True)
            for i in range(at_once):
                shutil.copy(f"{folder}/case{i if builds else ''}.pt2", f"{kept}/{first + count + i}.pt2")
        count += at_once
    print(f"{count} files in {time.time() - began:.0f} s from seed {first}: {failed} failed; exit codes {codes}; "
          f"at most {worst[0]} MiB, {worst[1]:.1f} s")
    shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
