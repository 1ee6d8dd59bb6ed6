#!/usr/bin/env python3
"""pt2_families.py HVTRAIN [NAME ...]: torchvision's families, and nets of our own, compared with PyTorch.

Each is exported with random weights, and with dropout and stochastic depth at 0, and compared in train mode with PyTorch in
f64: the logits of an evaluation, the gradient of each parameter (one update of SGD at a large rate), and the losses of ten
updates with momentum on one batch. For gradients and losses functions with a kink are replaced by smooth ones: with a relu,
one sum that rounds to the other side of 0 puts a gradient off by a percent or ten, in PyTorch too. Prints a line for each:
the largest differences and, "(f32)", those of PyTorch in f32, of which ours may be four times where they exceed the bounds;
"FAILS" where a difference is larger. The nets of `refused` must be refused in one message. Without names all are run,
which takes some minutes; test_pt2.py runs some.
"""
import contextlib
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from math import inf

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
BATCH, CLASSES, STEPS, RATE, MOMENTUM = 6, 7, 10, 0.0005, 0.9
BOUNDS = {"logits": 1e-4, "gradients": 1e-3, "losses": 1e-3}

# name in torchvision.models: side of the images, arguments
families = {
    "resnet18": (64, {}), "resnet50": (64, {}), "resnext50_32x4d": (64, {}), "wide_resnet50_2": (64, {}),
    "alexnet": (64, {}), "vgg11": (32, {}), "vgg11_bn": (32, {}), "squeezenet1_0": (64, {}), "squeezenet1_1": (64, {}),
    "densenet121": (64, {}), "mobilenet_v2": (64, {}), "mobilenet_v3_small": (64, {}), "mobilenet_v3_large": (64, {}),
    "mnasnet0_5": (64, {}), "mnasnet1_0": (64, {}), "shufflenet_v2_x0_5": (64, {}), "shufflenet_v2_x1_0": (64, {}),
    "regnet_y_400mf": (64, {}), "regnet_x_400mf": (64, {}), "efficientnet_b0": (64, {}), "efficientnet_v2_s": (64, {}),
    "convnext_tiny": (64, {}), "googlenet": (64, {"aux_logits": False, "init_weights": False}),
    "inception_v3": (96, {"aux_logits": False, "init_weights": False}),
}
refused = {"vit_b_16": 224, "swin_t": 64, "maxvit_t": 224}



@contextlib.contextmanager
def smooth():
    """In place of functions with a kink, modules' too."""
    def mean(x, kernel_size, stride=None, padding=0, dilation=1, ceil_mode=False, return_indices=False):
        return F.avg_pool2d(x, kernel_size, stride, padding, ceil_mode, False)

    def silu(x, *_, **__):
        return F.silu(x)

    instead = {"relu": silu, "relu6": silu, "hardtanh": silu, "hardswish": silu,
               "hardsigmoid": lambda x, *_: torch.sigmoid(x), "leaky_relu": lambda x, *_: F.softplus(x), "max_pool2d": mean}
    before = {name: getattr(F, name) for name in instead}
    for name, f in instead.items():
        setattr(F, name, f)
    try:
        yield
    finally:
        for name, f in before.items():
            setattr(F, name, f)


class Cell(nn.Sequential):
    """Odd filters, a group norm."""

    def __init__(self, c, k):
        super().__init__(nn.Conv2d(c, k, (3, 5), padding=(1, 2)), nn.GroupNorm(1, k), nn.GELU(),
                         nn.Conv2d(k, k, (5, 1), padding=(2, 0), bias=False), nn.BatchNorm2d(k), nn.SiLU())


class TwoBranches(nn.Module):
    """The way down of a U-net, whose levels meet again at the size of the deepest, and a second branch of rectangles."""

    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList([Cell(3, 8), Cell(8, 12), Cell(12, 16)])
        self.branch = nn.Sequential(nn.Conv2d(3, 6, 7, stride=4, padding=3), nn.InstanceNorm2d(6), nn.LeakyReLU(0.1),
                                    nn.Conv2d(6, 10, (1, 7), padding=(0, 3), groups=2), nn.Softplus())
        self.merge = nn.Conv2d(8 + 12 + 16 + 10, 20, 1)
        self.gate = nn.Linear(20, 20)
        self.head = nn.Linear(20 * 4, CLASSES)

    def forward(self, x):
        y, kept = x, []
        for i, level in enumerate(self.levels):
            y = level(y if i == 0 else F.max_pool2d(y, 2))
            kept.append(y)
        z = self.branch(x)
        size = kept[-1].shape[2:]
        z = torch.cat([F.adaptive_avg_pool2d(t, size) for t in kept] + [F.adaptive_max_pool2d(z, size)], 1)
        z = self.merge(z)
        z = z * torch.sigmoid(self.gate(z.mean((2, 3)))).unsqueeze(-1).unsqueeze(-1)
        return self.head(F.adaptive_avg_pool2d(z, 2).flatten(1))


class Gated(nn.Module):
    """What timm's nets are made of: a patch stem, layer norm over channels, depthwise 7x7, squeeze and excitation, a layer
    scale, a last convolution as head."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 24, 4, 4)
        self.norm = nn.LayerNorm(24, eps=1e-6)
        self.deep = nn.Conv2d(24, 24, 7, padding=3, groups=24)
        self.wide, self.narrow = nn.Linear(24, 96), nn.Linear(96, 24)
        self.scale = nn.Parameter(torch.full((24, 1, 1), 0.3))
        self.squeeze, self.excite = nn.Conv2d(24, 6, 1), nn.Conv2d(6, 24, 1)
        self.down = nn.Conv2d(24, 32, 3, stride=(2, 1), padding=1, bias=False)
        self.bn = nn.BatchNorm2d(32)
        self.head = nn.Conv2d(32, CLASSES, 1)

    def forward(self, x):
        x = self.stem(x)
        y = self.norm(self.deep(x).permute(0, 2, 3, 1))
        y = self.narrow(F.gelu(self.wide(y), approximate="tanh")).permute(0, 3, 1, 2)
        x = x + self.scale * y
        x = x * F.hardsigmoid(self.excite(F.relu(self.squeeze(F.adaptive_avg_pool2d(x, 1)))))
        return torch.flatten(F.adaptive_avg_pool2d(self.head(F.hardswish(self.bn(self.down(x)))), 1), 1)


own = {"two_branches": (TwoBranches, 32), "gated": (Gated, 32)}


def build(name):
    torch.manual_seed(5)
    if name in own:
        return own[name][0](), own[name][1]
    import torchvision
    side, more = families[name] if name in families else (refused[name], {})
    if name in refused and name.startswith("maxvit"):
        return torchvision.models.get_model(name, weights=None, num_classes=CLASSES), side
    model = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **more)
    for m in model.modules():
        if isinstance(m, (nn.Dropout, torchvision.ops.StochasticDepth)):
            m.p = 0.0
    return model, side


def write_data(folder, side):
    g = torch.Generator().manual_seed(11)
    x, y = torch.randn(BATCH, 3, side, side, generator=g), torch.arange(BATCH) % CLASSES
    for part in "train", "test":
        np.save(f"{folder}/{part}_images.npy", x.permute(0, 2, 3, 1).contiguous().numpy())
        np.save(f"{folder}/{part}_labels.npy", y.numpy())
    return x, y


def hvtrain(program, folder, *more):
    args = f"--model net.pt2 --data npy --data-dir . --batch {BATCH} --quiet --mean 0 --std 1".split()
    p = subprocess.run([program, *args, *more], cwd=folder, capture_output=True, text=True,
                       env={k: v for k, v in os.environ.items() if not k.startswith("HVT_")})
    return p.returncode, p.stderr.strip()


def must(done):
    if done[0]:
        raise RuntimeError(done[1].splitlines()[-1] if done[1] else f"exit {done[0]}")


def tensors(folder):
    from safetensors.torch import load_file
    return load_file(f"{folder}/last.safetensors")


def logits_apart(program, folder, model, x):
    must(hvtrain(program, folder, "--evaluate", "--predict-logits", "got.npy"))
    with torch.no_grad():
        want = model.double().eval()(x.double()).numpy()
    return abs(np.load(f"{folder}/got.npy") - want).max() / abs(want).max()


def torch_gradients(model, state, x, y):
    model.load_state_dict(state)
    model.train().zero_grad()
    F.cross_entropy(model(x), y).backward()
    return {name: p.grad.double().clone() for name, p in model.named_parameters()}


def worst_of(got, want):
    """The parameter that is furthest off, as a part of its largest gradient, but not of less than a ten-thousandth of the
    largest of all: a bias before a batch norm has a gradient of rounding errors alone."""
    least = 1e-4 * max(g.abs().max() for g in want.values())
    off = {name: ((got[name] - g).abs().max() / max(g.abs().max(), least)).item() for name, g in want.items()}
    return max((inf if v != v else v, name) for name, v in off.items())


def gradients_apart(program, folder, model, state, x, y):
    """Ours and those of PyTorch in f32, from those of PyTorch in f64."""
    rate = 64.0
    must(hvtrain(program, folder, "--steps", "1", "--lr", str(rate), "--momentum", "0", "--save", "one", "--eval-freq", "0"))
    after = tensors(f"{folder}/one")
    want = torch_gradients(model.double(), state, x.double(), y)
    ours = {name: (state[name].double() - after[name].double()) / rate for name in want}
    return *worst_of(ours, want), worst_of(torch_gradients(model.float(), state, x, y), want)[0]


def torch_losses(model, state, x, y):
    model.load_state_dict(state)
    optimizer, losses = torch.optim.SGD(model.train().parameters(), RATE, MOMENTUM), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def apart(got, want):
    return max(abs(a - b) / abs(b) for a, b in zip(got, want))


def losses_apart(program, folder, model, state, x, y):
    """Ours and those of PyTorch in f32 from those of PyTorch in f64: errors of rounding grow from step to step."""
    must(hvtrain(program, folder, "--epochs", str(STEPS), "--lr", str(RATE), "--momentum", str(MOMENTUM),
                 "--shuffle", "off", "--print-freq", "1", "--log", "log", "--eval-freq", "0"))
    with open(f"{folder}/log") as f:
        got = [r["loss"] for r in map(json.loads, f) if r["record"] == "step"]
    if len(got) != STEPS:
        raise RuntimeError(f"{len(got)} losses")
    want = torch_losses(model.double(), state, x.double(), y)
    return apart(got, want), apart(torch_losses(model.float(), state, x, y), want)


def compare(program, name):
    began = time.time()
    with tempfile.TemporaryDirectory() as folder:
        model, side = build(name)
        x, y = write_data(folder, side)
        state = copy.deepcopy(model.state_dict())  # with its metadata, which mnasnet reads
        torch.export.save(torch.export.export(model.train(), (x[:2],)), f"{folder}/net.pt2")
        logits = logits_apart(program, folder, model, x)
    with tempfile.TemporaryDirectory() as folder, smooth():
        model.load_state_dict(state)
        write_data(folder, side)
        torch.export.save(torch.export.export(model.float().train(), (x[:2],)), f"{folder}/net.pt2")
        gradients, where, gradients32 = gradients_apart(program, folder, model, state, x, y)
        losses, losses32 = losses_apart(program, folder, model, state, x, y)
    fine = (logits <= BOUNDS["logits"] and gradients <= max(BOUNDS["gradients"], 4 * gradients32) and
            losses <= max(BOUNDS["losses"], 4 * losses32))
    print(f"{name:20} {logits:8.1e} {gradients:8.1e} {gradients32:8.1e} {losses:8.1e} {losses32:8.1e} "
          f"{time.time() - began:4.0f} s  {where}{'' if fine else '  FAILS'}", flush=True)
    return fine


def is_refused(program, name):
    with tempfile.TemporaryDirectory() as folder:
        model, side = build(name)
        x, _ = write_data(folder, side)
        torch.export.save(torch.export.export(model.train(), (x[:2],)), f"{folder}/net.pt2")
        rc, err = hvtrain(program, folder, "--steps", "1")
    lines = [line for line in err.splitlines() if "warning" not in line]
    fine = rc == 1 and len(lines) == 1 and re.search(r"aten\.\S+ \(.*line \d+", err)
    print(f"{name:20} {'refused: ' if fine else 'FAILS: '}{' / '.join(lines)}", flush=True)
    return bool(fine)


def main(program, names):
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
    failed = 0
    print(f"{'':20} {'logits':>8} {'gradients':>8} {'(f32)':>7} {'losses':>8} {'(f32)':>8}", flush=True)
    for name in names or [*own, *families, *refused]:
        try:
            failed += not (is_refused if name in refused else compare)(os.path.abspath(program), name)
        except RuntimeError as e:
            print(f"{name:20} FAILS: {e}", flush=True)
            failed += 1
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
