"""Usage: test_inspect.py HVTRAIN MPIRUN [TRUTH ...]. `hvtrain inspect`: numbers that are known, numbers that a run
prints, PyTorch's counts, and files that are damaged."""
import json
import os
import re
import subprocess
import sys
import zipfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, TINY, generations, path, python_with, read_safetensors, run, write_safetensors  # noqa: E402
from truths import Skip, check, run_all  # noqa: E402

# Parameters and multiply-adds of torchvision's models for 224 pixels and 1000 classes: num_params and _ops of
# their weights' metadata, the latter in 10^9.
KNOWN = {"resnet18": (11689512, 1.814), "resnet34": (21797672, 3.664), "resnet50": (25557032, 4.089),
         "resnet101": (44549160, 7.801), "resnet152": (60192808, 11.514), "resnext50_32x4d": (25028904, 4.230),
         "wide_resnet50_2": (68883240, 11.398), "mobilenet_v2": (3504872, 0.301)}
# He et al. 2015, table 6, in millions; shortcuts without parameters.
HE = {"resnet20": 0.27, "resnet32": 0.46, "resnet44": 0.66, "resnet56": 0.85, "resnet110": 1.7}


def inspect(*args, ranks=0):
    rc, out, err = run(["inspect", *args], ranks)
    check(rc == 0 and not err, "exit", rc, "of inspect", args, err[-3:])
    return out


def totals(out):
    parameters = re.search(r"^parameters +([0-9,]+)", out, re.M)
    products = re.search(r"^multiply-adds +([0-9,]+) for an image", out, re.M)
    return tuple(int(m[1].replace(",", "")) if m else None for m in (parameters, products))


def rows(out):
    """The cells of the first table by name."""
    lines = out.split("\n\n")[0].splitlines()
    check(set(lines[1]) == {"-"} and all(len(line) == len(lines[0]) for line in lines), "columns do not align")
    return {cells[0]: cells[1:] for cells in (re.split(r" {2,}", line) for line in lines[2:])}


def numbers_of_known_models_are_right():
    for model, (parameters, billions) in KNOWN.items():
        out = inspect(model)
        found = totals(out)
        check(found[0] == parameters and round(found[1] / 1e9, 3) == billions, model, found)
        layers = rows(out).values()
        check(sum(int(r[2].replace(",", "")) for r in layers if r[2] != "-") == parameters, model, "parameters of layers")
        check(sum(int(r[3].replace(",", "")) for r in layers if r[3] != "-") == found[1], model, "multiply-adds of layers")
    check(totals(inspect("resnet50"))[1] == 4089184256, "resnet50")
    for model, millions in HE.items():
        check(abs(totals(inspect(model))[0] / 1e6 - millions) < 0.05, model, totals(inspect(model)))
    table = rows(inspect("resnet50", "--batch", "2"))
    check(table["conv1"] == ["conv2d 7x7 /2", "[2, 64, 112, 112]", "9,408", "118,013,952"], table["conv1"])
    check(table["fc"] == ["linear", "[2, 1000]", "2,049,000", "2,048,000"], table["fc"])
    check(table["bn1"][2] == "128" and table["bn1"][3] == "-", table["bn1"])
    small = inspect("resnet18", "--size", "32", "--stem", "cifar", "--classes", "10", "--freeze", "conv1,bn1,layer1")
    check(totals(small)[0] == 11173962 and "of which 149,824 are frozen" in small, small[-700:])


def memory_is_that_of_a_run():
    for args in [["--batch", "8"], ["--batch", "4", "--amp", "bf16", "--optimizer", "adamw"],
                 ["--batch", "16", "--momentum", "0", "--ema", "0.9"],
                 ["--batch", "8", "--freeze", "conv1,bn1,layer1", "--size", "24"]]:
        common = [*args, "--threads", "1", "--classes", "10"]
        if "--size" not in args:
            common += ["--size", "32"]
        out = inspect("resnet20", *common)
        rc, _, err = run(["--model", "resnet20", "--samples", "64", "--steps", "1", "--verbose", *common])
        ran = re.search(r"^  memory .*MiB: (.*)$", "\n".join(err), re.M)
        shown = re.search(r"^memory .*MiB: (.*)$", out, re.M)
        check(rc == 0 and ran and shown and ran[1] == shown[1], args, "run:", ran and ran[1], "inspect:", shown and shown[1])


def a_model_that_does_not_fit_into_memory_is_measured():
    out = inspect("resnet152", "--batch", "512", "--threads", "1")
    check(float(re.search(r"([0-9.]+) MiB in all", out)[1]) > 60000, out[-400:])


def passes(name):
    """What `inspect --passes` says of a net of the corpus: the exit code, the graph after each pass, the error."""
    from test_corpus import read
    with zipfile.ZipFile(path(f"{name}.pt2"), "w") as z:
        for file, data in read()[name].items():
            z.writestr("net/" + file, data)
    rc, out, err = run(["inspect", path(f"{name}.pt2"), "--passes"])
    if any("reads no .pt2" in line for line in err):
        raise Skip("a build without libzip")
    parts = re.split(r"^after (.*):$", out, flags=re.M)
    return rc, dict(zip(parts[1::2], parts[2::2])), err


def passes_of_a_pt2_are_shown():
    rc, after, err = passes("net_tokens")
    check(rc == 0 and not err and list(after) == ["canonicalise", "fold", "match", "lay out"], rc, list(after), err)
    check("scaled_dot_product_attention(" in after["fold"] and " = attention(" not in after["fold"], after["fold"])
    check(" = attention(" in after["match"] and " = embedding(" in after["lay out"], after["match"], after["lay out"])
    rc, after, err = passes("net_several")
    check(rc == 1 and len(err) == 1 and list(after) == ["canonicalise", "fold", "match"], rc, list(after), err)
    check("unknown(" in after["match"] and "aten.cummax.default" in after["match"], after["match"])


NETS = """
import torch, sys
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a_rather_long_name_of_a_module_that_makes_the_column_wide = nn.Conv2d(3, 8, (3, 5), stride=(1, 2), padding=1)
        self.grouped = nn.Conv2d(8, 16, 3, groups=4, bias=False)
        self.norm = nn.BatchNorm2d(16)
        self.q, self.k, self.v = nn.Linear(16, 12), nn.Linear(16, 12), nn.Linear(16, 12)
        self.head = nn.Linear(12, 5)
    def forward(self, x):
        x = torch.relu(self.norm(self.grouped(self.a_rather_long_name_of_a_module_that_makes_the_column_wide(x))))
        x = x.flatten(2).transpose(1, 2)
        split = lambda t: t.unflatten(2, (3, 4)).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(split(self.q(x)), split(self.k(x)), split(self.v(x)))
        return self.head(y.transpose(1, 2).flatten(2).mean(1))
def save(name, net, size):
    net = net.eval()
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3, size, size),)), name)
    with FlopCounterMode(display=False) as count:
        net(torch.zeros(1, 3, size, size))
    print(name, sum(p.numel() for p in net.parameters()), count.get_total_flops() // 2)
torch.manual_seed(0)
save("own.pt2", Net(), 20)
try:
    import torchvision
except ImportError:
    sys.exit()
save("vit.pt2", torchvision.models.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=10), 32)
for name in %r:
    meta = torchvision.models.get_model_weights(name).IMAGENET1K_V1.value.meta
    print(name, meta["num_params"], meta["_ops"])
"""


def pytorch_counts_the_same():
    python = python_with("torch")
    p = subprocess.run([python, "-W", "ignore", "-c", NETS % list(KNOWN)], cwd=HERE, capture_output=True, text=True)
    check(p.returncode == 0 and p.stdout, p.stderr[-800:])
    for line in p.stdout.splitlines():
        name, parameters, products = line.split()
        if name in KNOWN:
            check(KNOWN[name] == (int(parameters), float(products)), line)
            continue
        out = inspect(name)
        check(totals(out) == (int(parameters), int(products)), line, totals(out))
        check("weights        in the file" in out or "pickle" in out, out[-600:])
        rows(out)
    out = inspect("own.pt2", "--batch", "3")
    table = rows(out)
    long_name = "a_rather_long_name_of_a_module_that_makes_the_column_wide"
    check(table[long_name][:2] == ["conv2d 3x5 /1x2", "[3, 8, 20, 9]"], table)
    check(table["grouped"][:2] == ["conv2d 3x3, 4 groups", "[3, 16, 18, 7]"], table["grouped"])
    rc, out, err = run(["inspect", "own.pt2", "--size", "30"])
    check(rc == 1 and len(err) == 1 and "own.pt2 was exported for images of 20 x 20" in err[0], rc, err)


def checkpoint():
    if not os.path.exists(path("kept")):
        rc, _, err = run(TINY + ["--epochs", "3", "--save", "kept", "--keep", "5", "--log", "kept.log", "--weight-decay", "0.001"])
        check(rc == 0, err)
    with open(path("kept.log")) as f:
        return [json.loads(line) for line in f]


def a_folder_says_what_its_run_was():
    log = checkpoint()
    out = inspect("kept")
    tests = [r for r in log if r["record"] == "eval"]
    end = [r for r in log if r["record"] == "end"][0]
    check(re.search(r"^model +resnet20$", out, re.M), out)
    check(re.search(rf"^progress +epoch 3, 12 updates in all; top-1 {tests[-1]['top1']:.2f} %$", out, re.M), out)
    check(re.search(rf"^best +top-1 {max(t['top1'] for t in tests):.2f} %$", out, re.M), out)
    check(re.search(rf"^weights +{end['weights']}$", out, re.M), out, end)
    options = re.search(r"^options +(.*?)\n +\(all others", out, re.M | re.S)[1]
    check(set(re.findall(r"(--[a-z-]+ \S+)", options)) == {
        "--size 16", "--limit 64", "--batch 16", "--lr 0.05", "--augment crop:2,flip", "--epochs 3", "--weight-decay 0.001",
        "--shards 1"}, options)
    check(re.search(r"^images +16x16, --mean 0.5 --std 0.5$", out, re.M), out)
    listed = re.findall(r"^(gen-\S+) +(\d+) +(\d+) +([0-9.]+) % +[0-9.]+ MiB *(.*)$", out, re.M)
    check([row[0] for row in listed] == [os.path.basename(g) for g in generations("kept")][::-1], listed)
    check([(int(r[1]), int(r[2])) for r in listed] == [(3, 12), (2, 8), (1, 4)] and "last" in listed[0][4], listed)
    best = os.path.basename(os.path.realpath(path("kept/best.safetensors")))
    check([r[0] for r in listed if "best" in r[4]] == [best], listed)
    check(not re.search(r" $", out, re.M), "blanks at the end of lines")
    one = inspect("kept/last.safetensors")
    header, _ = read_safetensors("kept/last.safetensors")
    table = rows(one)
    check(set(table) == set(header) - {"__metadata__"}, set(table) ^ set(header))
    check(table["conv1.weight"] == ["F32", "[16, 3, 3, 3]", "432", "1,728"], table["conv1.weight"])
    check("their hash fits" in one and re.search(rf"^weights +{end['weights']}$", one, re.M), one[-900:])


def names_of_classes_are_shown():
    for name in ["ant", "bee"]:
        os.makedirs(path(f"pictures/{name}"))
        for i in range(8):
            with open(path(f"pictures/{name}/{i}.ppm"), "wb") as f:
                f.write(b"P6 16 16 255\n" + bytes((i * 31 + k * (3 if name == "bee" else 7)) % 256 for k in range(768)))
    rc, _, err = run("--data folder --data-dir pictures --val-split 0.25 --size 16 --batch 4 --epochs 1 --threads 1 --workers 0 "
                     "--quiet --save named".split())
    check(rc == 0, err)
    out = inspect("named")
    check(re.search(r"^classes +2: ant, bee$", out, re.M) and "--data folder --data-dir pictures" in out, out)


def a_file_of_another_program_is_shown():
    header = {"__metadata__": {"format": "pt", "note": "a\x1b[31mred"}, "w\n": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]},
              "scalar": {"dtype": "I64", "shape": [], "data_offsets": [16, 24]},
              "x" * 90: {"dtype": "U8", "shape": [4], "data_offsets": [12, 16]}}
    write_safetensors("other.safetensors", header, bytes(24))
    out = inspect("other.safetensors")
    table = rows(out)
    check(table["w?"] == ["F16", "[2, 3]", "6", "12"] and table["scalar"] == ["I64", "[]", "1", "8"], table)
    check("metadata    note: a?[31mred" in out and "without a hash" in out and "\x1b" not in out, out)


def what_is_damaged_is_one_line():
    checkpoint()
    last = os.path.realpath(path("kept/last.safetensors"))
    with open(last, "rb") as f:
        whole = f.read()
    files = {"cut": whole[:len(whole) - 100], "head": whole[:50], "empty": b"", "flipped": whole[:-5] + b"\xff" + whole[-4:],
             "text": b"this is no file of tensors, but some text"}
    pictures = {"phone.webp": (b"RIFF\x34\0\0\0WEBPVP8 ", "a WebP picture"),
                "phone.heic": (b"\0\0\0\x18ftypheic\0\0\0\0", "a HEIC picture"), "a.gif": (b"GIF89a\1\0\1\0", "a GIF picture")}
    for name, (data, kind) in pictures.items():
        with open(path(name), "wb") as f:
            f.write(data)
    for name, data in files.items():
        with open(path(name + ".safetensors"), "wb") as f:
            f.write(data)
        rc, out, err = run(["inspect", name + ".safetensors"])
        check(rc == 1 and not out and len(err) == 1 and name + ".safetensors" in err[0], name, rc, out[:200], err)
    with open(path("broken.pt2"), "wb") as f:
        f.write(b"PK\x03\x04 and no more")
    os.makedirs(path("empty"))
    os.makedirs(path("unfinished"))
    with open(path("unfinished/gen-000001.momentum.safetensors"), "wb") as f:
        f.write(whole[:60])
    for what, said in [(name, f"{name} is not a safetensors file: it seems to be {kind}") for name, (_, kind) in pictures.items()] + [
                       ("nosuch", "hvtrain: nosuch: no such file, and no model of that name"),
                       ("run2.json", "hvtrain: run2.json: no such file, and no model of that name"),
                       ("unfinished", "hvtrain: unfinished holds no complete checkpoint"),
                       ("broken.pt2", "broken.pt2"), ("none.pt2", "none.pt2"), ("none.safetensors", "none.safetensors"),
                       ("empty", "empty: holds no checkpoint"), ("no/where", "no/where: No such file"),
                       ("resnt50", "no model of that name; did you mean resnet50?")]:
        rc, out, err = run(["inspect", what])
        check(rc == 1 and not out and len(err) == 1 and said in err[0], what, rc, out[:200], err)
    os.makedirs(path("half"))
    for name in ["gen-000001", "gen-000002"]:
        with open(path(f"half/{name}.safetensors"), "wb") as f:
            f.write(whole if name.endswith("1") else whole[:60])
    out = inspect("half")
    check(re.search(r"^gen-000002\S+ +- +- +- +.*truncated", out, re.M) and re.search(r"^gen-000001\S+ +3 +12 ", out, re.M), out)


def it_prints_once_into_any_pipe():
    out = inspect("resnet20", "resnet32", "--batch", "2")
    check(out.startswith("resnet20:\n") and "\n\nresnet32:\n" in out and "[2, 3, 32, 32]" in out, out[:200])
    check(inspect("--model", "resnet32") == inspect("resnet32"), "--model")
    p = subprocess.run(["sh", "-c", '"$0" inspect resnet152 resnet152 resnet152 resnet152 | head -n 2', HVTRAIN], cwd=HERE,
                       capture_output=True, text=True)
    check(p.returncode == 0 and p.stdout.startswith("resnet152:\nlayer") and not p.stderr, p.stdout, p.stderr)
    rc, out, err = run(["inspect", "resnet20", "--batch", "0"])
    check(rc == 2 and not out and len(err) == 1, rc, err)
    if os.path.exists("/dev/full"):
        with open("/dev/full", "w") as full:
            p = subprocess.run([HVTRAIN, "inspect", "resnet20"], stdout=full, stderr=subprocess.PIPE, text=True)
        check(p.returncode == 1 and "cannot write to stdout: No space" in p.stderr, p.returncode, p.stderr)
    if MPIRUN:
        once = inspect("resnet20", "--threads", "1")
        check(inspect("resnet20", "--threads", "1", ranks=2) == once, "two ranks print another text")


def a_folder_prints_what_the_guide_shows():
    """The page's other console blocks are those of test console."""
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../docs/guide.md")) as f:
        page = f.read()
    folder = re.search(r"^\$ \./hvtrain inspect run\n(.*?)^```", page, re.S | re.M)[1]
    checkpoint()
    words = [line.split()[0] for line in inspect("kept").splitlines() if line and not line.startswith((" ", "-"))]
    check([line.split()[0] for line in folder.splitlines() if line and not line.startswith((" ", "-"))] == words, words)


run_all([numbers_of_known_models_are_right, memory_is_that_of_a_run, a_model_that_does_not_fit_into_memory_is_measured,
         pytorch_counts_the_same, a_folder_says_what_its_run_was, names_of_classes_are_shown, a_file_of_another_program_is_shown,
         what_is_damaged_is_one_line, it_prints_once_into_any_pipe, passes_of_a_pt2_are_shown, a_folder_prints_what_the_guide_shows], sys.argv[3:], HERE)
