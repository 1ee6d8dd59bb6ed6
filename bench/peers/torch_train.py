#!/usr/bin/env python3
"""PyTorch doing hvtrain's work: the same models, data, batch and update, eager, in one process or under
torchrun with DDP over gloo. Prints one JSON line on rank 0.

    torch_train.py speed    --model resnet50 --batch 256 --steps 8 --layout channels_last
    torch_train.py accuracy --model resnet50 --batch 256 --lr 0.001 --data-dir DIR
    torchrun --nproc-per-node 2 torch_train.py speed ...
    torch_train.py export   --model mobilenet_v2 --size 224 --file net.pt2

--model own is a small net that no list has, of layers that ResNets have not.

speed times whole training steps (forward, loss, backward, gradient exchange, SGD with momentum) on images
that already lie in memory as normalised floats: reading and augmenting cost PyTorch nothing here.
accuracy trains whole epochs of CIFAR-10 with random flips and evaluates on the test images. export writes the
model's graph for hvtrain, with random weights.
"""
import argparse
import json
import os
import statistics
import time
from pathlib import Path

LAUNCHED = time.time()

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    """He's CIFAR block with shortcut option A: every second pixel, channels padded with zeros."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(cout)
        self.stride, self.pad = stride, (cout - cin) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        if self.pad:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + x, inplace=True)


class CifarResNet(nn.Module):
    def __init__(self, depth, classes):
        super().__init__()
        n = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        stage = lambda cin, cout, stride: nn.Sequential(
            Block(cin, cout, stride), *(Block(cout, cout, 1) for _ in range(n - 1)))
        self.layers = nn.Sequential(stage(16, 16, 1), stage(16, 32, 2), stage(32, 64, 2))
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        x = self.layers(F.relu(self.bn1(self.conv1(x)), inplace=True))
        return self.fc(x.mean((2, 3)))


class Mixer(nn.Module):
    """Depthwise, then across channels, added to what came in: as in ConvNeXt, with a group norm and a gate."""

    def __init__(self, channels):
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 5, padding=2, groups=channels)
        self.norm = nn.GroupNorm(8, channels)
        self.widen, self.narrow = nn.Conv2d(channels, 2 * channels, 1), nn.Conv2d(2 * channels, channels, 1)
        self.gate = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        y = self.narrow(F.gelu(self.widen(self.norm(self.depthwise(x)))))
        return x + y * torch.sigmoid(self.gate(F.adaptive_avg_pool2d(y, 1)))


def own_net(classes):
    stage = lambda cin, cout: nn.Sequential(
        nn.Conv2d(cin, cout, 3, padding=1), nn.BatchNorm2d(cout), nn.SiLU(), Mixer(cout), nn.AvgPool2d(2))
    return nn.Sequential(stage(3, 32), stage(32, 64), stage(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Dropout(0.1), nn.Linear(128, classes))


def make_model(name, stem, classes):
    if name == "own":
        return own_net(classes)
    if name in ("resnet20", "resnet32", "resnet44", "resnet56", "resnet110"):
        return CifarResNet(int(name.removeprefix("resnet")), classes)
    import torchvision.models

    more = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    model = getattr(torchvision.models, name)(num_classes=classes, **more)
    if stem == "cifar" and name == "mobilenet_v2":  # whole resolution up to its third stage
        model.features[0][0].stride = model.features[2].conv[1][0].stride = (1, 1)
    elif stem == "cifar":
        model.conv1 = nn.Conv2d(3, 64, 3, 1, 1, bias=False)
        model.maxpool = nn.Identity()
    return model


def cifar10(folder, train):
    """Normalised images [N,3,32,32] (mean and deviation 0.5) and labels of the binary version."""
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    raw = np.concatenate([np.fromfile(Path(folder) / n, np.uint8).reshape(-1, 3073) for n in names])
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32)).float().div_(127.5).sub_(1)
    return images, torch.from_numpy(raw[:, 0].astype(np.int64))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["speed", "accuracy", "export"])
    p.add_argument("--model", default="resnet20")
    p.add_argument("--stem", choices=["imagenet", "cifar"], default="imagenet")
    p.add_argument("--batch", type=int, default=128, help="images per rank")
    p.add_argument("--steps", type=int, default=10, help="speed: timed steps")
    p.add_argument("--warmup", type=int, default=2, help="speed: steps before those")
    p.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--lr", type=float, default=0.1)
    p.add_argument("--momentum", type=float, default=0.9)
    p.add_argument("--epochs", type=int, default=1)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--classes", type=int, default=10)
    p.add_argument("--data-dir", help="folder of the CIFAR-10 binary version")
    p.add_argument("--limit", type=int, help="accuracy: only the first images of each split")
    p.add_argument("--size", type=int, default=32, help="speed, drawn images: their side")
    p.add_argument("--amp", choices=["f32", "bf16"], default="f32", help="bf16: forward and loss under autocast")
    p.add_argument("--compile", action="store_true", help="by torch.compile")
    p.add_argument("--file", help="export: what to write")
    p.add_argument("--horovod", action="store_true", help="exchange by Horovod, under mpirun, instead of DDP")
    a = p.parse_args()

    torch.set_num_threads(a.threads)
    ranks, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
    if a.horovod:
        import horovod.torch as hvd

        hvd.init()
        ranks, rank = hvd.size(), hvd.rank()
    elif ranks > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(a.seed)
    model = make_model(a.model, a.stem, a.classes)
    memory = torch.channels_last if a.layout == "channels_last" else torch.contiguous_format
    model = model.to(memory_format=memory).train()
    if a.mode == "export":
        torch.export.save(torch.export.export(model, (torch.randn(2, 3, a.size, a.size),)), a.file)
        return
    net = nn.parallel.DistributedDataParallel(model) if ranks > 1 and not a.horovod else model
    if a.compile:
        net = torch.compile(net)
    sgd = torch.optim.SGD(net.parameters(), lr=a.lr, momentum=a.momentum)
    if a.horovod:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        sgd = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())

    def step(x, t):
        sgd.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=a.amp == "bf16"):
            loss = F.cross_entropy(net(x), t)
        loss.backward()
        sgd.step()
        return loss

    result = {
        "torch": torch.__version__, "mode": a.mode, "model": a.model, "stem": a.stem, "batch": a.batch,
        "ranks": ranks, "threads": a.threads, "layout": a.layout, "amp": a.amp, "lr": a.lr, "momentum": a.momentum,
        "parameters": sum(q.numel() for q in model.parameters()),
    }
    if a.mode == "speed":
        if a.data_dir:
            images, labels = cifar10(a.data_dir, True)
            images, labels = images[rank * a.batch :][: a.batch], labels[rank * a.batch :][: a.batch]
        else:
            images, labels = torch.randn(a.batch, 3, a.size, a.size), torch.randint(0, 10, (a.batch,))
        images = images.to(memory_format=memory)
        seconds = []
        for i in range(a.warmup + a.steps):
            begin = time.perf_counter()
            loss = step(images, labels).item()
            if i == 0:
                result["first_update_at"] = time.time()
                result["first_update_after"] = time.time() - LAUNCHED
            if i >= a.warmup:
                seconds.append(time.perf_counter() - begin)
        result.update(img_s=ranks * a.batch / statistics.median(seconds),
                      img_s_best=ranks * a.batch / min(seconds), seconds=seconds, loss=loss)
    else:
        images, labels = (part[: a.limit] for part in cifar10(a.data_dir, True))
        begin = time.perf_counter()
        for epoch in range(a.epochs):
            sampler = torch.utils.data.DistributedSampler(
                images, num_replicas=ranks, rank=rank, shuffle=True, seed=a.seed)
            sampler.set_epoch(epoch)
            order = torch.tensor(list(sampler))
            for at in range(0, len(order), a.batch):
                index = order[at : at + a.batch]
                x = images[index]
                flip = torch.rand(len(index)) < 0.5
                x[flip] = x[flip].flip(3)
                step(x.to(memory_format=memory), labels[index])
        result["train_seconds"] = time.perf_counter() - begin
        model.eval()
        images, labels = (part[: a.limit] for part in cifar10(a.data_dir, False))
        hits, loss = 0, 0.0
        with torch.inference_mode():
            for at in range(rank * 100, len(images), 100 * ranks):
                logits = model(images[at : at + 100].to(memory_format=memory))
                hits += (logits.argmax(1) == labels[at : at + 100]).sum().item()
                loss += F.cross_entropy(logits, labels[at : at + 100], reduction="sum").item()
        sums = torch.tensor([hits, loss], dtype=torch.float64)
        if a.horovod:
            sums = hvd.allreduce(sums, op=hvd.Sum)
        elif ranks > 1:
            dist.all_reduce(sums)
        result.update(top1=100 * sums[0].item() / len(images), loss=sums[1].item() / len(images))
    if rank == 0:
        print(json.dumps(result), flush=True)
    if ranks > 1 and not a.horovod:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
