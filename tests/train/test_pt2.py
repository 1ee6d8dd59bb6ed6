#!/usr/bin/env python3
"""test_pt2.py HVTRAIN MPIRUN [NAME ...]: models of PyTorch in .pt2 files. Skipped without PyTorch."""
import json
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from math import exp, log

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, path, python_with, records, run
from truths import Skip, check, run_all

NETS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "pt2_nets.py")
DATA = "--data npy --batch 5 --threads 1 --quiet".split()


def torch(*args):
    python = python_with("torch, torchvision, safetensors, numpy")
    done = subprocess.run([python, NETS, *args], capture_output=True, text=True,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})  # small nets
    check(done.returncode == 0, done.stderr[-2000:])


def exported(name):
    folder = path("")
    if not os.path.exists(f"{folder}/{name}.pt2"):
        torch("export", folder)
    if any("reads no .pt2" in line for line in run([f"--model={folder}/{name}.pt2", "--steps=1"])[2]):
        raise Skip("a build without libzip")
    return [f"--model={folder}/{name}.pt2", "--data-dir", folder]


def floats(name):
    """The numbers of a .npy file of f32."""
    import array
    with open(path(name), "rb") as f:
        data = f.read()
    x = array.array("f")
    x.frombytes(data[10 + int.from_bytes(data[8:10], "little"):])
    return x


def same_logits(of):
    got, want = floats("got.npy"), floats(of + ".npy")
    check(len(got) == len(want) == 50, len(got), len(want))
    largest = max(map(abs, want))
    worst = max(abs(a - b) for a, b in zip(got, want))
    check(worst <= 1e-4 * largest, worst, largest)


def a_net_of_ones_own_has_pytorchs_logits():
    rc, out, err = run(exported("branches") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("branches")


def any_order_of_elements_is_pytorchs():
    for name in "lopsided", "skipped", "columns", "picked", "products", "moved", "written":
        rc, out, err = run(exported(name) + DATA + "--evaluate --predict-logits got.npy".split())
        check(rc == 0 and not err, name, out, err)
        same_logits(name)


def constants_are_computed_as_in_pytorch():
    for name in "folded", "rolled", "windowed", "turned", "square":
        rc, out, err = run(exported(name) + DATA + "--evaluate --predict-logits got.npy".split())
        check(rc == 0 and not err, out, err)
        same_logits(name)
    rc, out, err = run(exported("folded") + DATA + "--steps 1 --save kept".split())
    check(rc == 0 and tensor("kept/last.safetensors", "unused") == struct.pack("<3q", 0, 1, 2), rc, out, err)


def what_was_trained_goes_back_by_name():
    for name in "branches", "tokens", "doubled":
        net = exported(name)
        train = net + DATA + "--lr 0.02 --shards 2 --steps 3".split()
        hashes = []
        for ranks, folder in (2, "two"), (1, "run"):
            rc, out, err = run(train + ["--save", folder, "--overwrite", "--log", folder + ".jsonl"], ranks)
            check(rc == 0, out, err)
            hashes += [r["weights"] for r in records(folder + ".jsonl") if r["record"] == "end"]
        check(len(hashes) == 2 and hashes[0] == hashes[1], hashes)
        torch("logits", name, path(""))
        rc, out, err = run(net + DATA + "--evaluate --resume run --predict-logits got.npy".split())
        check(rc == 0, out, err)
        same_logits("trained")


def a_relative_path_in_a_checkpoint_is_said_to_be_one():
    exported("branches")
    shutil.copy(path("branches.pt2"), path("here.pt2"))
    rc, out, err = run(DATA + ["--model=here.pt2", "--data-dir", path("")] + "--steps 1 --save moves".split())
    check(rc == 0, out, err)
    os.rename(path("here.pt2"), path("there.pt2"))
    for more, code, parts in [("", 1, ["here.pt2: No such file", "moves names it relative", "--model PATH"]),
                              ("--model there.pt2", 0, ["--model was here.pt2 in moves and is there.pt2 now"])]:
        rc, out, err = run("--resume moves --steps 2 --quiet --threads 1".split() + more.split())
        check(rc == code and len(err) == 1 and all(p in err[0] for p in parts), more, rc, err)


def classes_give_it_a_new_last_layer():
    net = exported("branches")
    rc, out, err = run(net + DATA + "--classes 7 --steps 1 --log seven.jsonl".split())
    check(rc == 0, out, err)
    rc, out, err = run(net + DATA + "--classes 4 --steps 1".split())
    check(rc == 1 and "--classes 4" in err[0], rc, err)


def classes_change_all_that_has_their_size():
    data = exported("branches")[1:] + DATA + "--batch 8 --steps 1 --lr 0".split()
    folder = path("heads")
    torch("heads", folder)
    for name, resized in {"rows": ["last.weight", "rows.running_var"], "layer": ["layer.bias"], "prelu": ["prelu.weight"],
                          "other": ["last.bias", "other.weight"], "scale": ["scale"], "gate": ["last.weight"],
                          "plane": ["point.weight", "plane.weight"], "point": ["last.weight", "point.weight"]}.items():
        net = [f"--model={folder}/{name}.pt2"] + data
        rc, out, err = run(net + ["--save", "five", "--overwrite"])
        check(rc == 0, name, out, err)
        rc, out, err = run(net + "--classes 7 --save seven --overwrite".split())
        check(rc == 0, name, out, err)
        for tensor_name in resized:
            a, b = (tensor(f"{run_of}/last.safetensors", tensor_name) for run_of in ("five", "seven"))
            check(7 * len(a) == 5 * len(b), name, tensor_name, len(a), len(b))
        for kept in ["conv.weight"] + ["gate.weight"] * (name == "gate") + ["number"] * (name == "scale"):
            check(tensor("five/last.safetensors", kept) == tensor("seven/last.safetensors", kept), name, kept)


def batches_are_counted_on_and_other_counters_are_told():
    rc, out, err = run(exported("counting") + DATA + "--steps 2 --save run --overwrite".split())
    check(rc == 0 and len(err) == 1 and "1 buffer that its output does not depend on (calls)" in err[0], rc, out, err)
    got = [struct.unpack("<q", tensor("run/last.safetensors", name)) for name in ("norm.num_batches_tracked", "calls")]
    check(got == [(9 + 2,), (7,)], got)


def one_line(net, *parts, evaluate=False):
    rc, out, err = run(net + DATA + (["--evaluate"] if evaluate else ["--steps", "1"]))
    check(rc == 1 and len(err) == 1 and all(p in err[0] for p in parts), rc, out, err)


def unknown_operations_are_named_at_once():
    one_line(exported("unknown"), "operations are unknown", "aten.fft_fft2.default", "aten.cumsum.default",
             "; supported only for constants)", "pt2_nets.py line")


def all_that_is_not_imported_is_named_at_once():
    rc, out, err = run(exported("several") + DATA + ["--steps", "1"])
    check(rc == 1 and len(err) == 1, rc, out, err)
    uses = ["aten.pad.default", "aten.batch_norm.default", "aten.max_pool2d.default", "aten.slice.Tensor"]
    check("1 operation is unknown: aten.cummax.default (pt2_nets.py line" in err[0] and "uses that are not imported: " in err[0], err)
    check(all(err[0].count(f"{use} (") == 1 for use in uses) and err[0].count("pt2_nets.py line") == 5, err)
    check("(layer norm, pt2_nets.py line" in err[0], err)
    exported("pooled")
    one_line([f"--model={path('decomposed.pt2')}", "--data-dir", path("")], "aten.convolution.default", "run_decompositions()",
             "export without it")
    one_line(exported("overlapping"), "one.weight and other.weight are views of the same numbers")


def what_is_refused_is_refused_when_the_file_is_opened():
    """A file that is open can be built: the wrong --size is found between the two."""
    for name in "unknown", "several", "reflected", "dilated", "averaging", "leaking", "repeated", "overlapping":
        exported(name)
        rc, out, err = run(["inspect", path(f"{name}.pt2"), "--size", "99"])
        check(rc == 1 and len(err) == 1 and "--size" not in err[0] and f"{name}.pt2: " in err[0], name, rc, out, err)
    rc, out, err = run(["inspect", path("branches.pt2"), "--size", "99"])
    check(rc == 1 and "--size 99" in err[0], rc, out, err)


def views_see_what_was_changed_in_place():
    rc, out, err = run(exported("inplace") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("inplace")


def weights(args, ranks, name):
    """What a run of so many ranks ended with."""
    rc, out, err = run(args + ["--log", name + ".jsonl"], ranks)
    check(rc == 0, out, err)
    return [r["weights"] for r in records(name + ".jsonl") if r["record"] == "end"][0]


def dropout_is_none_in_an_evaluation():
    rc, out, err = run(exported("dropped") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("dropped")


def same_bits_on_any_ranks_and_threads(name):
    """What a run needs for it to be compared with others, and with what it ends."""
    train = exported(name) + "--data npy --batch 3 --shards 4 --epochs 2 --quiet".split()
    want = weights(train + ["--threads", "1"], 1, "one")
    for threads, ranks in ("3", 1), ("1", 2), ("2", 4):
        got = weights(train + ["--threads", threads], ranks, "some")
        check(got == want, f"{ranks} ranks of {threads} threads", got, want)
    return train, want


def dropout_depends_neither_on_ranks_nor_threads():
    train, want = same_bits_on_any_ranks_and_threads("dropped")
    check(weights(train + "--threads 1 --seed 1".split(), 1, "seed") != want, "another seed")


def windows_depend_neither_on_ranks_nor_threads():
    same_bits_on_any_ranks_and_threads("windowed")
    same_bits_on_any_ranks_and_threads("turned")


def computed_weights_depend_neither_on_ranks_nor_threads():
    same_bits_on_any_ranks_and_threads("weight_products")
    train = exported("weight_products") + "--data npy --steps 6 --quiet".split()
    want = weights(train + "--batch 3 --shards 2 --threads 1".split(), 1, "one device")
    for more in "--batch 6 --split cpu:0,cpu:1 --micro-batches 2", "--batch 3 --devices cpu:0,cpu:1":
        got = weights(train + more.split(), 1, "two devices")
        check(got == want, more, got, want)
    check(weights(train + "--batch 3 --shards 2 --threads 1 --amp bf16".split(), 1, "half") != want, "half as many bits")


def dropout_goes_on_in_the_middle_of_an_epoch():
    train = exported("dropped") + "--data npy --batch 3 --shards 2 --threads 1 --quiet --schedule constant".split()
    want = weights(train + "--epochs 3".split(), 1, "through")
    weights(train + "--steps 9 --save half".split(), 1, "half")
    got = weights(train + "--epochs 3 --steps none --resume half".split(), 2, "resumed")
    check(got == want, got, want)


def trained_weights_learn_at_a_tenth_of_the_rate():
    new = exported("dropped") + "--data npy --steps 1".split()
    trained = [f"--model={path('trained.pt2')}"] + new[1:]
    for net, more, want in (new, "", 0.1), (trained, "", 0.01), (trained, "--lr 0.1", 0.1), (trained, "--optimizer adamw", 1e-4):
        rc, out, err = run(net + more.split() + "--log rate.jsonl".split())
        check(rc == 0, out, err)
        got = [r["lr"] for r in records("rate.jsonl") if "lr" in r]
        check(got and all(abs(x / want - 1) < 1e-6 for x in got), net, more, got, want)
        check(any("for trained weights" in line for line in err) == (want < 0.1), err)


def what_was_exported_in_eval_mode_has_no_dropout():
    exported("dropped")
    train = DATA + ["--data-dir", path(""), "--steps", "2"]
    kept = weights([f"--model={path('kept.pt2')}"] + train, 1, "kept")
    check(kept != weights([f"--model={path('dropped.pt2')}"] + train, 1, "dropped"), kept)


def with_p_of_1_nothing_is_learnt_but_the_bias():
    net = exported("ones")
    rc, out, err = run(net + DATA + "--steps 3 --weight-decay 0 --save ones".split())
    check(rc == 0, out, err)
    rc, out, err = run(net + DATA + "--evaluate --predict-logits got.npy --resume ones".split())
    check(rc == 0, out, err)
    got, want = floats("got.npy"), floats("ones.npy")
    apart = [a - b for a, b in zip(got, want)]
    check(max(abs(a - b) for a, b in zip(apart, apart[5:] + apart[:5])) < 1e-5, "logits moved by more than a constant")
    check(max(map(abs, apart)) > 1e-3, "the bias has not moved")


def other_random_numbers_are_refused():
    one_line(exported("unscaled"), "not 0 or 1 / probability", "pt2_nets.py line")
    one_line(exported("noisy"), "random numbers", "only in stochastic depth", "pt2_nets.py line")


def other_sizes_and_flags_are_one_line():
    net = exported("branches")
    one_line(net + ["--size", "16"], "--size 16", "12 x 12")
    rc, out, err = run(net + DATA + ["--stem", "cifar"])
    check(rc == 2 and "--stem" in err[0], rc, err)


def copy(name, change=None, text=None, values=None, of="branches.pt2"):
    """The net's file with its program changed, or the first bytes of a weight."""
    with zipfile.ZipFile(path(of)) as old, zipfile.ZipFile(path(name), "w", zipfile.ZIP_DEFLATED) as new:
        for entry in old.namelist():
            data = old.read(entry)
            if entry.endswith("models/model.json"):
                if text is not None:
                    data = text
                elif change:
                    program = json.loads(data)
                    change(program)
                    data = json.dumps(program).encode()
            elif values and entry.endswith("data/weights/weight_0"):
                data = values + data[len(values):]
            new.writestr(entry, data)
    return [f"--model={path(name)}", "--data-dir", path("")]


def another_function_behind_the_same_names_is_told():
    net = exported("branches")
    rc, out, err = run(net + DATA + "--steps 1 --save told".split())
    check(rc == 0, out, err)

    def silu(program):
        node(program, "relu_.default")["target"] = "torch.ops.aten.silu_.default"

    for other, told in (net, 0), (copy("silu.pt2", silu), 2):
        rc, out, err = run(other + DATA + "--evaluate --resume told".split())
        check(rc == 0 and len(err) == told and (not told or "computes something else" in err[0]), rc, out, err)


def without_gradient(*names):
    def change(program):
        for name, tensor in program["graph_module"]["graph"]["tensor_values"].items():
            if name.startswith("p_") and (not names or name in names):
                tensor["requires_grad"] = False
    return change


def what_requires_no_gradient_is_frozen():
    train = "--lr 0.1 --steps 2".split() + DATA
    net, some = exported("branches"), copy("some.pt2", without_gradient("p_stem_weight", "p_scale"))
    want = weights(net + train + ["--freeze", "scale$,stem.weight"], 1, "want")
    check(weights(some + train, 1, "some") == want, "not those")
    check(weights(some + train, 2, "ranks") == weights(net + train + ["--freeze", "scale,stem.weight"], 2, "two"), "two")
    check(weights(some + train + "--freeze none".split(), 1, "none") == weights(net + train, 1, "all"), "not all")
    every = copy("every.pt2", without_gradient())
    one_line(every, "every.pt2", "all parameters are frozen", "--freeze none")
    rc, out, err = run(every + train + "--classes 7".split())
    check(rc == 0, "a new last layer is trained", out, err)
    rc, out, err = run(every + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("branches")


def one_value_per_channel_is_refused():
    net = exported("pooled") + "--data npy --threads 1 --quiet --epochs 1".split()
    for batch, parts in ((1, ["larger --batch"]), (31, ["--last-batch drop"])):
        rc, out, err = run(net + ["--batch", str(batch)])
        check(rc == 1 and len(err) == 2 and all(p in err[1] for p in [f"--batch {batch} x", "1x1 pixels", *parts]), err)
    for flags, said, part in [("--batch 1", "a shard has", "a larger --batch"), ("--batch 1 --sync-bn", "an update has", "a larger --batch"),
                              ("--batch 1 --shards 2", "a shard has", "a larger --batch, or --sync-bn"),
                              ("--batch 1 --shards 2 --limit 31", "a shard has", "a larger --batch"),
                              ("--batch 1 --shards 2 --limit 31 --sync-bn", "the last update has", "--last-batch drop, or another --batch")]:
        rc, out, err = run(net + flags.split())
        check(rc == 1 and f"{said} 1 image" in err[-1] and err[-1].endswith("expected " + part), flags, err)
    for flags in "--batch 31 --last-batch drop", "--batch 30", "--batch 1 --shards 2 --sync-bn":
        rc, out, err = run(net + flags.split())
        check(rc == 0, flags, out, err)


def tensor(file, name):
    """The bytes of one tensor of a safetensors file."""
    with open(path(file), "rb") as f:
        data = f.read()
    size = int.from_bytes(data[:8], "little")
    first, end = json.loads(data[8:8 + size])[name]["data_offsets"]
    return data[8 + size + first:8 + size + end]


def without(file, name, to):
    """A safetensors file with one tensor less."""
    with open(path(file), "rb") as f:
        header = json.loads(f.read(int.from_bytes(f.read(8), "little")))
    header.pop("__metadata__", None)
    del header[name]
    data = b""
    for key, entry in header.items():
        entry["data_offsets"] = [len(data), len(data) + len(tensor(file, key))]
        data += tensor(file, key)
    text = json.dumps(header).encode()
    with open(path(to), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)


def a_parameter_of_two_names_is_saved_under_both_and_read_under_either():
    net = exported("doubled")
    train = net + DATA + "--lr 0.02 --epochs 1 --save run --overwrite".split()
    rc, out, err = run(train)
    check(rc == 0 and not any("load_state_dict" in line for line in err), rc, out, err)
    names = [f"blocks.{i}.weight" for i in range(2)]
    check(tensor("run/last.safetensors", names[0]) == tensor("run/last.safetensors", names[1]), "differ")
    torch("logits", "doubled", path(""))
    for name in names:
        without("run/last.safetensors", name, "less.safetensors")
        rc, out, err = run(net + DATA + "--evaluate --init less.safetensors --predict-logits got.npy".split())
        check(rc == 0, name, out, err)
        same_logits("trained")
    without("less.safetensors", names[0], "none.safetensors")
    rc, out, err = run(net + DATA + "--evaluate --init none.safetensors".split())
    check(rc == 1 and "1 tensors are missing (blocks.1.weight)" in err[0], rc, err)


def a_norm_in_eval_mode_keeps_its_statistics():
    net = exported("mixed")
    rc, out, err = run(net + "--data npy --steps 1 --batch 1 --save run --overwrite".split())
    check(rc == 0 and "1 of 2 batch norms" in f"{out} {err}", "one image", out, err)
    before = {name: tensor("run/last.safetensors", name) for name in
              ("fixed.running_mean", "fixed.running_var", "fixed.weight", "trained.running_mean")}
    train = net + "--data npy --batch 3 --shards 4 --epochs 2 --quiet".split()
    for flags in ["--amp", "bf16"], ["--sync-bn"], []:
        want = weights(train + flags + "--threads 1 --save run --overwrite".split(), 1, "one")
        moved = [name for name, was in before.items() if tensor("run/last.safetensors", name) != was]
        check(moved == ["fixed.weight", "trained.running_mean"], flags, moved)
        got = weights(train + flags + "--threads 2".split(), 2, "two")
        check(got == want, "two ranks", flags, got, want)
    torch("logits", "mixed", path(""))
    rc, out, err = run(net + DATA + "--evaluate --resume run --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("trained")


def a_file_in_eval_mode_says_that_its_norms_are_trained():
    exported("dropped")
    train = [f"--model={path('kept.pt2')}", "--data-dir", path("")] + "--data npy --batch 5 --steps 1 --threads 1".split()
    said = "exported in eval() mode"
    for more, says in ([], True), (["--fix-norms", "on"], False), (["--evaluate"], False):
        rc, out, err = run(train + more)
        check(rc == 0 and (said in f"{out} {err}") == says, more, out, err)


def one_output_of_an_image_is_trained_by_mse():
    folder = path("targets")
    exported("branches")
    torch("targets", folder)
    data = ["--data-dir", folder] + "--data npy --loss mse --batch 4 --threads 1 --quiet".split()
    for name in "squeezed", "viewed", "chosen", "averaged", "column":
        net = [f"--model={folder}/{name}.pt2"]
        rc, out, err = run(net + data + "--evaluate --predict-logits got.npy".split())
        check(rc == 0, name, out, err)
        got, want = floats("got.npy"), floats(f"{folder}/{name}.npy")
        check(len(got) == len(want) == 12 and all(abs(a - b) < 1e-5 for a, b in zip(got, want)), name, got, want)
        for more in [], ["--classes", "1"]:
            rc, out, err = run(net + data + ["--epochs", "1"] + more)
            check(rc == 0, name, more, out, err)
    three = [f"--model={folder}/three.pt2"]
    rc, out, err = run(three + data + ["--steps", "1"])
    check(rc == 1 and "--classes 1" in err[0], rc, err)
    rc, out, err = run(three + data + "--steps 1 --classes 1".split())
    check(rc == 0, out, err)
    rc, out, err = run(exported("branches") + DATA + "--classes 1 --steps 1".split())
    check(rc == 2 and "at least 2" in err[0], rc, err)
    for more in [], ["--loss", "mae"]:
        rc, out, err = run(["inspect", f"{folder}/squeezed.pt2"] + more)
        check(rc == 0 and not err and "1 output\n" in out, out, err)
    rc, out, err = run([f"--model={folder}/squeezed.pt2", "--data-dir", path("")] + DATA + "--classes 5 --steps 1".split())
    check(rc == 1 and "[N, classes]" in err[0], rc, err)


def of_several_outputs_the_first_is_named():
    def returns_a_dict(program):
        module = program["graph_module"]
        module["signature"]["output_specs"] *= 2
        module["module_call_graph"][0]["signature"]["out_spec"] = json.dumps(
            [1, {"type": "builtins.dict", "context": json.dumps(["features", "logits"]), "children_spec": []}])

    exported("branches")
    rc, out, err = run(copy("dict.pt2", returns_a_dict) + DATA + ["--steps", "1"])
    check(rc == 0 and len(err) == 1 and "has 2 outputs: hvtrain trains the first, features, and" in err[0], rc, out, err)


def parameters_that_nothing_reads_are_told():
    rc, out, err = run(exported("pooled") + DATA + "--steps 1".split())
    check(rc == 0 and len(err) == 1 and "2 parameters" in err[0] and "unread.weight" in err[0] and "strict" in err[0],
          rc, out, err)


def a_buffer_is_not_trained():
    net = exported("constant")
    rc, out, err = run(net + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("constant")
    rc, out, err = run(net + DATA + "--steps 3 --weight-decay 0.1 --save run --overwrite".split(), 2)
    check(rc == 0, out, err)
    torch("logits", "constant", path(""))
    rc, out, err = run(net + DATA + "--evaluate --resume run --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("trained")
    check(tensor("run/last.safetensors", "middle") == struct.pack("<3f", 0.5, 0.5, 0.5), "the buffer has changed")
    rc, out, err = run(exported("fleeting") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, "a buffer that is not persistent is a constant", out, err)
    same_logits("fleeting")


def what_cannot_be_imported_says_what_was_expected():
    for name, *parts in [("reflected", "aten.pad.default", "pads with reflect and crops"),
                         ("halved", "part of the batch"),
                         ("dilated", "dilation is 2x1; expected 1x1"),
                         ("untracked", "expected track_running_stats=True"), ("unscaling", "expected affine=True"),
                         ("ending", "aten.exp.default", "torch.no_grad()", "expected constants, or the images"),
                         ("averaging", "aten.add_.Tensor", "it changes the buffer middle"),
                         ("choosy", "its mask is computed"), ("biased", "two parameters are added to its scores"),
                         ("sifted", "is a mask; expected integers"), ("leaking", "it drops out 0.1 of its weights; expected 0"),
                         ("tied", "it computes with last.weight"), ("computed", "its weight is computed; expected a parameter"),
                         ("repeated", "token is repeated", "one row for each token")]:
        one_line(exported(name), *parts, "pt2_nets.py line")


def log_softmax_at_the_end_is_left_out():
    rc, out, err = run(exported("logarithms") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0 and len(err) == 1 and "ends in log_softmax" in err[0], rc, out, err)
    got, want = floats("got.npy"), floats("logarithms.npy")
    for row in range(10):
        norm = log(sum(map(exp, got[5 * row:5 * row + 5])))
        check(all(abs(got[i] - norm - want[i]) < 1e-4 for i in range(5 * row, 5 * row + 5)), row)


def infinity_is_a_number():
    rc, out, err = run(exported("unbounded") + DATA + "--evaluate --predict-logits got.npy".split())
    check(rc == 0, out, err)
    same_logits("unbounded")


def older(name, flat):
    """The net's file as PyTorch 2.6 (flat) or 2.8 writes it, with pickled weights."""
    with zipfile.ZipFile(path("branches.pt2")) as old, zipfile.ZipFile(path(name), "w") as new:
        program = [e for e in old.namelist() if e.endswith("models/model.json")][0]
        top = program[:-len("models/model.json")]
        new.writestr("serialized_exported_program.json" if flat else program, old.read(program))
        for entry in ("serialized_state_dict.pt", "serialized_constants.pt") if flat else (top + "data/weights/model.pt",):
            new.writestr(entry, b"PK\3\4 a pickle")
    return [f"--model={path(name)}", "--data-dir", path("")]


def pickled_weights_come_by_init_or_are_drawn_anew():
    exported("branches")
    hashes = []
    for flat in False, True:
        net = older(f"older{flat:d}.pt2", flat)
        rc, out, err = run(net + DATA + "--evaluate --init branches.safetensors --predict-logits got.npy".split())
        check(rc == 0, out, err)
        same_logits("branches")
        one_line(net, "pickle", "--init", evaluate=True)
        rc, out, err = run(net + DATA + "--steps 1 --seed 3 --log anew.jsonl".split())
        parts = "warning", "pickle", "initialised at random", "--init", "save_file"
        check(rc == 0 and len(err) == 1 and all(p in err[0] for p in parts), rc, out, err)
        hashes += [r["weights"] for r in records("anew.jsonl") if r["record"] == "end"]
    check(len(hashes) == 2 and hashes[0] == hashes[1], hashes)


def nodes_of(program):
    return program["graph_module"]["graph"]["nodes"]


def node(program, target):
    return [n for n in nodes_of(program) if n["target"] == f"torch.ops.aten.{target}"][0]


def argument(program, target, name):
    return [i["arg"] for i in node(program, target)["inputs"] if i["name"] == name][0]


def damaged_graphs_are_one_line():
    exported("branches")
    cases = []

    def case(*parts):
        def of(change):
            cases.append((change, parts))
        return of

    @case("aten.mean.dim", "its dimension is 2147483647 of 4")
    def dimensions_whose_sum_overflows(program):
        argument(program, "mean.dim", "dim")["as_ints"] = [2 ** 31 - 1, 2 ** 31 - 1]

    @case("aten.conv2d.padding", "not a list of 32-bit integers")
    def numbers_of_more_bits(program):
        argument(program, "conv2d.padding", "dilation")["as_ints"] = [2 ** 40, 2 ** 40]

    @case("dilation 2147483647")
    def padding_that_overflows(program):
        argument(program, "conv2d.padding", "dilation")["as_ints"] = [2 ** 31 - 1, 2 ** 31 - 1]

    @case("padding 1073741825")
    def a_pool_whose_padding_overflows(program):
        argument(program, "avg_pool2d.default", "padding")["as_ints"] = [2 ** 30 + 1, 2 ** 30 + 1]

    @case("its outputs have other dimensions than its input")
    def parts_whose_sum_overflows(program):
        for part in node(program, "chunk.default")["outputs"][0]["as_tensors"]:
            program["graph_module"]["graph"]["tensor_values"][part["name"]]["sizes"][1] = {"as_int": 2 ** 31 - 1}

    @case("has no sizes")
    def sizes_of_more_bits(program):
        out = node(program, "relu_.default")["outputs"][0]["as_tensor"]["name"]
        for name in out, node(program, "cat.default")["outputs"][0]["as_tensor"]["name"]:
            program["graph_module"]["graph"]["tensor_values"][name]["sizes"][1] = {"as_int": 2 ** 62}

    @case("here, but", "in the file")
    def other_sizes_than_it_computes(program):
        argument(program, "avg_pool2d.default", "stride")["as_ints"] = [1, 1]

    @case("other sizes in the weights than in the graph")
    def a_weight_is_larger_than_its_values(program):
        name = argument(program, "conv2d.default", "weight")["as_tensor"]["name"]
        program["graph_module"]["graph"]["tensor_values"][name]["sizes"][0] = {"as_int": 1 << 20}

    @case("is not a number")
    def a_slope_that_is_a_word(program):
        argument(program, "leaky_relu.default", "negative_slope")["as_float"] = "much"

    @case("300 operations are unknown", ", ...")
    def many_operations_are_unknown(program):
        first, out = node(program, "relu_.default"), node(program, "relu_.default")["outputs"][0]["as_tensor"]["name"]
        at = nodes_of(program).index(first)
        for i in range(300):
            nodes_of(program).insert(at + 1 + i, {
                "target": f"torch.ops.my.op{i}.default", "metadata": {}, "outputs": [{"as_tensor": {"name": f"t{i}"}}],
                "inputs": [{"name": "self", "kind": 1, "arg": {"as_tensor": {"name": f"t{i - 1}" if i else out}}}]})
        following = nodes_of(program)[at + 301]
        following["inputs"][0]["arg"] = {"as_tensor": {"name": "t299"}}

    @case("line?1", "operation is unknown")
    def names_with_line_ends(program):
        node(program, "relu_.default")["target"] = "line\n1"

    for change, parts in cases:
        one_line(copy(f"{change.__name__}.pt2", change), *parts)


def damaged_constants_are_one_line():
    exported("windowed")
    cases = []

    def case(*parts):
        return lambda change: cases.append((change, parts))

    @case("dimension 0 has the batch")
    def rolls_images(program):
        argument(program, "roll.default", "dims")["as_ints"][1] = 0

    @case("3 shifts for 2 dims")
    def rolls_once_more(program):
        argument(program, "roll.default", "shifts")["as_ints"].append(1)

    @case("its output has other dimensions than what it takes")
    def makes_many_zeros(program):
        sizes = program["graph_module"]["graph"]["tensor_values"]["new_zeros"]["sizes"]
        sizes[0] = sizes[1] = {"as_int": 1 << 20}

    @case("its output has other dimensions than what it takes")
    def makes_other_zeros(program):
        program["graph_module"]["graph"]["tensor_values"]["new_zeros"]["sizes"][0] = {"as_int": 7}

    @case("it has no index")
    def has_no_index(program):
        argument(program, "index.Tensor", "indices")["as_tensors"].clear()

    @case("it has more indices than dimensions")
    def has_three_indices(program):
        argument(program, "index.Tensor", "indices")["as_tensors"] *= 3

    @case("its argument value is not a number")
    def fills_with_a_word(program):
        argument(program, "fill_.Scalar", "value").update({"as_int": "much"})

    @case("is outside of 12 elements")
    def has_an_index_of_no_element(program):
        argument(program, "index.Tensor", "self")["as_tensor"]["name"] = "p_net_features_0_0_weight"

    @case("sizes of its arguments differ")
    def masks_another_size(program):
        argument(program, "masked_fill.Scalar", "mask")["as_tensor"]["name"] = "new_zeros"

    for change, parts in cases:
        rc, out, err = run(copy(f"{change.__name__}.pt2", change, of="windowed.pt2") + DATA + ["--steps", "1"])
        # a warning in front of it may say that a parameter does not lead to the output any more
        check(rc == 1 and all(part in err[-1] for part in parts), change.__name__, rc, out, err)


def a_program_is_no_bomb():
    exported("branches")
    one_line(copy("bomb.pt2", text=b'{"a": [' + b"{}," * (2 << 20) + b"0]}"), "values in")
    one_line(copy("large.pt2", text=b" " * (65 << 20)), "at most")


def damaged_files_are_one_line():
    exported("branches")
    with open(path("branches.pt2"), "rb") as f:
        whole = f.read()

    def written(name, data):
        with open(path(name), "wb") as f:
            f.write(data)
        return [f"--model={path(name)}", "--data-dir", path("")]

    one_line(written("cut.pt2", whole[:len(whole) // 2]), "cut.pt2", "its end is missing")
    one_line(written("empty.pt2", b""), "empty.pt2: it is empty")
    one_line(written("pointer.pt2", b"version https://git-lfs.github.com/spec/v1\n"), "pointer.pt2 is a Git LFS pointer; git lfs pull")
    one_line(written("text.pt2", b"no zip at all\n" * 100), "text.pt2", "zip")
    one_line(["--model", path("none.pt2"), "--data-dir", path("")], "none.pt2", "No such file")
    at = whole.rindex(b'"graph_module"')
    one_line(written("crc.pt2", whole[:at] + b"X" + whole[at + 1:]), "crc.pt2")
    one_line(copy("deep.pt2", text=b"[" * 100000 + b"]" * 100000), "deep.pt2")
    one_line(copy("list.pt2", text=b"[]"), "list.pt2", "object")

    def set_version(program):
        program["schema_version"]["major"] = 9

    def define_twice(program):
        nodes = program["graph_module"]["graph"]["nodes"]
        nodes[1]["outputs"] = nodes[0]["outputs"]

    def use_early(program):
        program["graph_module"]["graph"]["nodes"].reverse()

    one_line(copy("version.pt2", set_version), "version 9")
    one_line(copy("twice.pt2", define_twice), "defined twice")
    one_line(copy("early.pt2", use_early), "before it is defined")
    one_line(copy("nan.pt2", values=struct.pack("<f", float("nan"))), "not finite", "nan.pt2")
    # deflated, and otherwise as it was
    rc, out, err = run(copy("deflated.pt2", lambda program: None) + DATA + ["--evaluate"])
    check(rc == 0, out, err)


def families(*args):
    python = python_with("torch, torchvision, safetensors, numpy")
    done = subprocess.run([python, os.path.join(os.path.dirname(NETS), "pt2_families.py"), HVTRAIN, *args],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    check(done.returncode == 0, done.stdout, done.stderr[-2000:])


def families_train_as_in_pytorch():
    families("two_branches", "gated", "arithmetic", "squeezenet1_1", "u_net", "unusual")


def operations_compute_and_train_as_in_pytorch():
    families("cropped", "scaled", "fixed_norms", "frozen_norms", "pyramid", "resampled", "one_storage", "attentive", "functions", "shared", "tokens", "queries", "rotaries", "selective", "blocks", "masked", "turned", "small_swin", "small_swin_v2",
             "small_maxvit", "ties", "logarithms", "softmax", "squeezed")


def computed_weights_are_trained_as_in_pytorch():
    families("weight_norms", "weight_products", "weight_filters")


def weights_that_cannot_be_computed_are_refused():
    for name, *parts in [("dynamic", "aten.conv2d.default", "its weight depends on the images"),
                         ("cubes", "it makes a weight of more than 4 dimensions"),
                         ("sorted", "aten.amax.default", "a weight is computed with it; expected a sum, a mean or a norm"),
                         ("spectral", "layer conv.parametrizations.weight.0", "under torch.no_grad() with what is trained")]:
        one_line(exported(name), *parts, "pt2_nets.py line")
    one_line(exported("standardising") + ["--classes", "6"], "--classes cannot change it")


def ties_and_bounds_have_pytorchs_gradients():
    families("kinks", *[f"equal_ones_{i}" for i in range(19)])


def random_nets_compute_and_train_as_in_pytorch():
    python = python_with("torch, torchvision, safetensors, numpy")
    done = subprocess.run([python, os.path.join(os.path.dirname(NETS), "pt2_random.py"), HVTRAIN, "16", "12"],
                          capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    check(done.returncode == 0, done.stdout, done.stderr[-2000:])


def what_was_trained_goes_back_to_pytorch():
    families("--round-trip", "gated", "scaled", "masked", "turned", "small_swin", "small_swin_v2", "resnet18")


TESTS = [a_net_of_ones_own_has_pytorchs_logits, what_was_trained_goes_back_by_name, any_order_of_elements_is_pytorchs,
         constants_are_computed_as_in_pytorch,
         a_relative_path_in_a_checkpoint_is_said_to_be_one, classes_give_it_a_new_last_layer, classes_change_all_that_has_their_size,
         batches_are_counted_on_and_other_counters_are_told, unknown_operations_are_named_at_once, all_that_is_not_imported_is_named_at_once, what_is_refused_is_refused_when_the_file_is_opened, views_see_what_was_changed_in_place,
         dropout_is_none_in_an_evaluation, dropout_depends_neither_on_ranks_nor_threads,
         windows_depend_neither_on_ranks_nor_threads, computed_weights_depend_neither_on_ranks_nor_threads, dropout_goes_on_in_the_middle_of_an_epoch,
         trained_weights_learn_at_a_tenth_of_the_rate, what_was_exported_in_eval_mode_has_no_dropout,
         with_p_of_1_nothing_is_learnt_but_the_bias, other_random_numbers_are_refused,
         other_sizes_and_flags_are_one_line, another_function_behind_the_same_names_is_told,
         what_requires_no_gradient_is_frozen, one_value_per_channel_is_refused,
         a_norm_in_eval_mode_keeps_its_statistics, a_parameter_of_two_names_is_saved_under_both_and_read_under_either,
         a_file_in_eval_mode_says_that_its_norms_are_trained, one_output_of_an_image_is_trained_by_mse, of_several_outputs_the_first_is_named, parameters_that_nothing_reads_are_told, a_buffer_is_not_trained,
         what_cannot_be_imported_says_what_was_expected,
         log_softmax_at_the_end_is_left_out, infinity_is_a_number,
         pickled_weights_come_by_init_or_are_drawn_anew, damaged_graphs_are_one_line,
         damaged_constants_are_one_line, a_program_is_no_bomb, damaged_files_are_one_line, families_train_as_in_pytorch,
         operations_compute_and_train_as_in_pytorch, computed_weights_are_trained_as_in_pytorch, weights_that_cannot_be_computed_are_refused, ties_and_bounds_have_pytorchs_gradients, random_nets_compute_and_train_as_in_pytorch, what_was_trained_goes_back_to_pytorch]
run_all(TESTS, sys.argv[3:], HERE)
