#!/usr/bin/env python3
"""test_split.py HVTRAIN MPIRUN [NAME ...]: a model over several devices (--split) trains to the bits of one device, with the
micro-batches as shards."""
import json
import os
import subprocess
import sys

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, MPIRUN, python_with, records, run
from truths import check, run_all

# Three updates of 16 images, the last one of 12.
RUN = "--size 16 --samples 44 --global-batch 16 --epochs 1 --threads 2 --quiet --augment crop:2,flip --log log".split()
SPLIT = "--split cpu:0,cpu:1 --micro-batches 4".split()
VIT = """import sys, torch, torchvision
torch.manual_seed(0)
net = torchvision.models.VisionTransformer(16, 4, 4, 2, 32, 64, num_classes=10).train()
torch.export.save(torch.export.export(net, (torch.randn(2, 3, 16, 16),), strict=True), sys.argv[1])"""


def train(args, ranks=0):
    rc, out, err = run(RUN + args, ranks)
    check(rc == 0, "exit", rc, "of", *args, "on", ranks, "ranks:", err[-3:])
    return records("log")[-1].get("weights")


def micro_batches_have_the_bits_of_shards():
    for model in "resnet20", "resnet18 --stem cifar", "mobilenet_v2 --stem cifar", "mlp":
        for amp in "f32", "bf16":
            args = ["--model", *model.split(), "--amp", amp]
            check(train(args + SPLIT) == train(args + ["--shards", "4"]), model, amp, "differs")


def a_vision_transformer_too():
    p = subprocess.run([python_with("torch, torchvision"), "-c", VIT, "vit.pt2"], cwd=HERE, capture_output=True, text=True)
    check(p.returncode == 0, p.stderr[-500:])
    for amp in "f32", "bf16":
        args = ["--model", "vit.pt2", "--amp", amp]
        want = train(args + ["--shards", "4"])
        check(train(args + SPLIT) == want, amp, "differs")
        named = ["--split-at", "encoder.layers.encoder_layer_1"]
        check(train(args + SPLIT + named) == want, amp, "differs with a named cut")


def any_way_of_training_goes_with_it():
    for args in ("--sync-bn", "--clip-grad-norm 0.5", "--optimizer adamw --lr 0.001 --ema 0.9", "--amp f16",
                 "--last-batch drop", "--freeze conv1,bn1,layer1", "--compression bf16"):
        want = train(args.split() + ["--shards", "4"])
        for more in "", "--pipeline gpipe", "--split-at layer3":
            check(train(args.split() + SPLIT + more.split()) == want, args, more, "differs")


def ranks_and_more_devices_go_with_it():
    want = train(["--shards", "8"])
    three = "--split cpu:1,cpu:2,cpu:0 --threads 3 --micro-batches 8".split()
    check(train(three) == want, "three devices differ")
    check(train(SPLIT + ["--micro-batches", "8", "--device", "cpu", "--overlap", "worker"]) == want, "a worker differs")
    check(train(SPLIT + ["--spawn", "2"]) == want, "two ranks with two devices each, without MPI, differ")
    if MPIRUN:
        for more in "", "--comm mpi", "--sync-bn", "--optimizer-state replicated":
            alone = train(["--shards", "8", *(["--sync-bn"] if more == "--sync-bn" else [])])
            check(train(SPLIT + more.split(), 2) == alone, "two ranks with two devices each differ", more)
        check(train(SPLIT + ["--shards", "8", "--micro-batches", "auto", "--balance", "5,3"], 2) == want, "uneven ranks differ")


def checkpoints_are_those_of_one_device():
    want = train(["--shards", "4", "--epochs", "3", "--save", "whole"])
    train(SPLIT + ["--save", "part"])
    train(["--epochs", "2", "--resume", "part", "--save", "part"])
    rc, _, err = run(RUN + "--shards 1 --split cpu:0,cpu:1".split())
    check(rc == 0 and any("1 micro-batch on 2 devices leaves most of them idle" in line for line in err), rc, err)
    again = "--split cpu:1,cpu:0 --split-at layer3 --pipeline gpipe --epochs 3 --resume part --save part".split()
    check(train(again) == want, "a run that goes on with other cuts differs")
    results = []
    for args in [], ["--split", "cpu:0,cpu:1"]:
        words = "--evaluate --resume whole --threads 2 --samples 44 --predict p.csv --predict-logits p.npy".split()
        rc, out, err = run(words + args)
        check(rc == 0, err[-3:])
        results.append([out] + [open(os.path.join(HERE, name), "rb").read() for name in ("p.csv", "p.npy")])
    check(results[0] == results[1], "predictions differ")


def micro_batches_default_to_twice_the_devices():
    args = "--size 16 --samples 44 --batch 16 --epochs 1 --threads 2 --quiet --log log --split cpu:0,cpu:1".split()
    rc, _, err = run(args)
    check(rc == 0, err)
    start = records("log")[0]
    check(start["shards"] == 4 and start["batch"] == 4 and start["global_batch"] == 16, start)
    rc, _, err = run(args + ["--accumulate", "2"])
    start = records("log")[0]
    check(rc == 0 and start["shards"] == 8 and start["batch"] == 4, rc, err, start)


def the_timeline_shows_each_device():
    train(SPLIT + ["--timeline", "t.json", "--overlap", "off"])
    with open(os.path.join(HERE, "t.json")) as f:
        events = json.load(f)
    passes = {(e["tid"], e["name"], e["args"]["micro_batch"], e["args"]["step"]) for e in events if "micro_batch" in e.get("args", {})}
    check(passes == {(tid, name, p, step) for tid in (0, 2) for name in ("forward", "backward") for p in range(4)
                     for step in (1, 2, 3)}, sorted(passes))
    check(any(e["name"] == "thread_name" and e["tid"] == 2 and e["args"]["name"] == "device 1" for e in events))


def a_model_too_large_for_one_device_trains_on_two():
    words = "--size 16 --samples 64 --batch 64 --epochs 1 --threads 2 --quiet --memory-limit 20MiB".split()
    rc, _, err = run(words)
    check(rc == 1 and any("device cpu:0 needs " in line and "but its limit is 20.0 MiB" in line and "--split" in line for line in err), rc, err)
    rc, _, err = run(words + ["--split", "cpu:0,cpu:1"])
    check(rc == 0, err)
    rc, _, err = run(words + ["--split", "cpu:0,cpu:1", "--memory-limit", "2MiB"])
    check(rc and any(" needs " in line and "but its limit is 2.0 MiB" in line for line in err), err)


def what_cannot_be_is_one_line():
    two = "--split cpu:0,cpu:1 "
    for args, part in (
            ("--split cpu:0", "--split cpu:0 is one device: expected two or more, such as cpu:0,cpu:1"),
            ("--split cpu:0,cpu:0", "--split cpu:0,cpu:0 names cpu:0 twice"),
            ("--split cpu:0,cpu:2", "cpu:2 of 2 devices; they are numbered from cpu:0 to cpu:1"),
            ("--split cpu:0,ref:1", "expected devices of one kind with their numbers"),
            ("--split cpu", "expected devices of one kind with their numbers, such as cpu:0,cpu:1, got 'cpu'"),
            ("--split cpu:0,cpu:1,", "expected devices of one kind with their numbers"),
            ("--split cuda:0,cuda:1", "--split cuda:0,cuda:1: a model is split over sets of cores"),
            ("--split ref:0,ref:1", "expected devices such as cpu:0,cpu:1, as --device is cpu"),
            ("--split cpu:0,cpu:1,cpu:2 --batch 6", "has 3 devices, but rank 0 has 2 cores: expected at most as many"),
            ("--split-at layer2", "--split-at is for --split"), ("--pipeline gpipe", "--pipeline is for --split"),
            ("--micro-batches 4", "--micro-batches is for --split"),
            (two + "--batch 6 --micro-batches 4", "--batch 6 in 4 micro-batches: expected a multiple of 4"),
            (two + "--threads 1", "has 2 devices, but rank 0 has 1 core: expected at most as many devices, or --threads 2"),
            (two + "--shards 6 --micro-batches 4", "--micro-batches 4 on 1 rank are 4 shards, but --shards has 6"),
            (two + "--split-at layer9", "cut before 'layer9': the model has no layer or module of this name"),
            (two + "--split-at layer2,layer3", "cut before layer2,layer3: 2 places for 2 devices, expected 1"),
            (two + "--split-at conv1", "cut before conv1: no layer is left for device 0 of 2"),
            (two + "--split-at layer2.0.conv2", "cut before layer2.0.conv2: 2 values cross it, such as "),
            ("--chunks 4", "use --micro-batches"), ("--pipeline-parallel-size 2", "use --split cpu:0,cpu:1")):
        rc, out, err = run("--size 16 --samples 16 --batch 8 --threads 2 --quiet".split() + args.split())
        ours = [line for line in err if line.startswith("hvtrain:") and "warning" not in line]
        check(rc in (1, 2) and len(ours) == 1 and part in ours[0], args, rc, err)


if __name__ == "__main__":
    run_all([micro_batches_have_the_bits_of_shards, a_vision_transformer_too, any_way_of_training_goes_with_it, ranks_and_more_devices_go_with_it, checkpoints_are_those_of_one_device, micro_batches_default_to_twice_the_devices, the_timeline_shows_each_device, a_model_too_large_for_one_device_trains_on_two, what_cannot_be_is_one_line],
            sys.argv[3:], HERE)
