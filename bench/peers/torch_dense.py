#!/usr/bin/env python3
"""Nets whose outputs are images, for compare_dense.py: their data, the .pt2 that hvtrain reads, and PyTorch's training.

    torch_dense.py make  --net unet --folder DIR --seed 1          net.pt2, and the images and targets as arrays
    torch_dense.py train --net unet --folder DIR --seed 1 --layout channels_last

make draws shapes on noise, with the class of each pixel and some pixels of none; an autoencoder's images are CIFAR-10's
from --data-dir, or noise. train begins with the weights of net.pt2, takes the images in the order of
DistributedSampler(seed), and prints a JSON line: loss and seconds of each update, and mean IoU or squared error of the
test images. The images lie in memory as normalised floats.
"""
import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

CLASSES = 4  # of the drawn shapes


def twice(cin, cout):
    layers = []
    for c in cin, cout:
        layers += [nn.Conv2d(c, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Ronneberger's, with padding and batch norm; decoders begin with a transposed convolution, or an interpolation."""

    def __init__(self, width, bilinear):
        super().__init__()
        widths = [width, 2 * width, 4 * width]
        self.down = nn.ModuleList(twice(a, b) for a, b in zip([3] + widths, widths))
        self.bottom = twice(4 * width, 8 * width)
        up = lambda c: nn.Conv2d(2 * c, c, 1) if bilinear else nn.ConvTranspose2d(2 * c, c, 2, 2)
        self.up = nn.ModuleList(up(c) for c in reversed(widths))
        self.merge = nn.ModuleList(twice(2 * c, c) for c in reversed(widths))
        self.head = nn.Conv2d(width, CLASSES, 1)
        self.bilinear = bilinear

    def forward(self, x):
        kept = []
        for down in self.down:
            kept.append(down(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.bottom(x)
        for up, merge in zip(self.up, self.merge):
            if self.bilinear:
                x = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
            x = merge(torch.cat([kept.pop(), up(x)], 1))
        return self.head(x)


def autoencoder():
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 16, 3, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(16, 64, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.ReLU(),
        nn.ConvTranspose2d(32, 3, 4, 2, 1))


NETS = {"unet": lambda a: UNet(a.width, False), "unet-bilinear": lambda a: UNet(a.width, True),
        "autoencoder": lambda a: autoencoder()}


def make_net(a):
    torch.manual_seed(a.seed)
    return NETS[a.net](a)


def shapes(count, side, rng):
    """Discs, squares and triangles of any colour, classes 1 to 3, on noise; the pixels of the edges have no class."""
    y, x = np.mgrid[:side, :side]
    images, masks = np.empty((count, side, side, 3), np.uint8), np.zeros((count, side, side), np.uint8)
    for image, mask in zip(images, masks):
        image[:] = rng.integers(0, 160, image.shape)
        for kind in rng.permutation(3)[:rng.integers(1, 4)]:
            r = rng.integers(side // 10, side // 4)
            v, h = y - rng.integers(r, side - r), x - rng.integers(r, side - r)
            far = [np.hypot(v, h), np.maximum(abs(v), abs(h)), np.maximum(abs(h) * 2 + v, -v)][kind] - r
            image[far <= 0] = rng.integers(60, 256, 3) * 0.7 + image[far <= 0] * 0.3
            mask[abs(far) < 1], mask[far <= -1] = 255, kind + 1
    return images, masks


def cifar10(folder, train, count):
    names = [f"data_batch_{i}.bin" for i in range(1, 6)] if train else ["test_batch.bin"]
    raw = np.concatenate([np.fromfile(Path(folder) / n, np.uint8).reshape(-1, 3073) for n in names])
    return raw[:count, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def make(a):
    rng = np.random.default_rng(a.seed)
    net, side = make_net(a), a.side if "unet" in a.net else 32
    torch.export.save(torch.export.export(net, (torch.zeros(2, 3, side, side),)), f"{a.folder}/net.pt2")
    for split, count in ("train", a.images), ("test", max(a.images // 5, 1)):
        if "unet" in a.net:
            images, targets = shapes(count, side, rng)
        else:
            images = cifar10(a.data_dir, split == "train", count) if a.data_dir else \
                rng.integers(0, 256, (count, 32, 32, 3)).astype(np.uint8)
            targets = np.ascontiguousarray(images.transpose(0, 3, 1, 2)).astype(np.float32) / 255
        np.save(f"{a.folder}/{split}_images.npy", images)
        np.save(f"{a.folder}/{split}_labels.npy", targets)


def load(a, split, memory):
    images, targets = (torch.from_numpy(np.load(f"{a.folder}/{split}_{what}.npy")) for what in ("images", "labels"))
    images = images.permute(0, 3, 1, 2).float().div_(255).to(memory_format=memory)
    return images, targets.long() if targets.dtype == torch.uint8 else targets.to(memory_format=memory)


def evaluate(net, images, targets, batch):
    """Mean IoU of the classes that occur, or the squared error."""
    net.eval()
    with torch.inference_mode():
        out = torch.cat([net(x) for x in images.split(batch)])
    if targets.is_floating_point():
        return F.mse_loss(out, targets).item()
    p, seen = out.argmax(1), targets != 255
    counts = [(((p == k) & (targets == k)).sum().item(), (((p == k) | (targets == k)) & seen).sum().item())
              for k in range(CLASSES)]
    return float(np.mean([both / either for both, either in counts if either]))


def train(a):
    memory = torch.channels_last if a.layout == "channels_last" else torch.contiguous_format
    net = make_net(a).to(memory_format=memory).train()
    images, targets = load(a, "train", memory)
    sgd = torch.optim.SGD(net.parameters(), lr=a.lr, momentum=0.9)
    losses, seconds = [], []
    for epoch in range(a.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(a.seed + epoch))
        for at in order.split(a.batch):
            x, t = images[at].contiguous(memory_format=memory), targets[at]
            begin = time.perf_counter()
            sgd.zero_grad()
            out = net(x)
            loss = F.mse_loss(out, t) if t.is_floating_point() else F.cross_entropy(out, t, ignore_index=255)
            loss.backward()
            sgd.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - begin)
    print(json.dumps({"torch": torch.__version__, "losses": losses, "seconds": seconds,
                      "score": evaluate(net, *load(a, "test", memory), a.batch)}))


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("mode", choices=["make", "train"])
    p.add_argument("--net", choices=NETS, required=True)
    p.add_argument("--folder", required=True)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--side", type=int, default=64, help="of the U-Net's images")
    p.add_argument("--width", type=int, default=16, help="channels of the U-Net's first block")
    p.add_argument("--images", type=int, default=1000, help="make: for training; a fifth of that for the test")
    p.add_argument("--data-dir", help="make: folder of the CIFAR-10 binary version")
    p.add_argument("--batch", type=int, default=16)
    p.add_argument("--epochs", type=int, default=3)
    p.add_argument("--lr", type=float, default=0.05)
    p.add_argument("--layout", choices=["nchw", "channels_last"], default="nchw")
    p.add_argument("--threads", type=int, default=2)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    make(a) if a.mode == "make" else train(a)


if __name__ == "__main__":
    main()
