#!/usr/bin/env python3
"""Two recipes for CIFAR-10 in PyTorch, in one process, f32, eager. Prints one JSON line.

    torch_recipes.py augmented  --data-dir DIR    ResNet-20 with TrivialAugment, erasing, mixup and label smoothing
    torch_recipes.py airbench94 --data-dir DIR    Keller Jordan's airbench94

augmented uses torchvision's transforms v2 on Pillow images. airbench94 was written from the paper (arXiv
2404.00498) and from memory of github.com/KellerJordan/cifar10-airbench; it is not that file. It has everything but the early
end of the whitening bias's training.
"""
import argparse
import json
import math
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from torch_train import CifarResNet, cifar10

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def read(train):
    images, labels = cifar10(args.data_dir, train)
    return images.add_(1).mul_(127.5).round_().to(torch.uint8)[: args.limit], labels[: args.limit]


def normal(images):
    mean, std = (torch.tensor(x).view(1, 3, 1, 1) for x in (MEAN, STD))
    return (images.float() / 255 - mean) / std


def top1(infer):
    images, labels = read(False)
    with torch.inference_mode():
        logits = torch.cat([infer(x) for x in normal(images).split(500)])
    return 100 * (logits.argmax(1) == labels).float().mean().item()


# ---- ResNet-20 -------------------------------------------------------------------------------------------------

def augmented():
    from PIL import Image
    from torchvision.transforms import v2

    change = v2.Compose([v2.RandomCrop(32, 4), v2.RandomHorizontalFlip(), v2.TrivialAugmentWide(), v2.ToImage(),
                         v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.RandomErasing(0.1)])
    mix = v2.MixUp(alpha=0.2, num_classes=10)
    images, labels = read(True)
    pictures = [Image.fromarray(np.ascontiguousarray(x)) for x in images.permute(0, 2, 3, 1).numpy()]
    net = CifarResNet(20, 10).train()
    for part in net.modules():
        if isinstance(part, nn.Conv2d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
    sgd = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    updates = int(args.epochs) * math.ceil(len(labels) / 128)
    rate = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, updates)
    for _ in range(int(args.epochs)):
        for index in torch.randperm(len(labels)).split(128):
            x, t = mix(torch.stack([change(pictures[i]) for i in index]), labels[index])
            sgd.zero_grad()
            F.cross_entropy(net(x), t, label_smoothing=0.1).backward()
            sgd.step()
            rate.step()
    return net.eval()


# ---- airbench94 ------------------------------------------------------------------------------------------------

class Conv(nn.Conv2d):
    def reset_parameters(self):
        super().reset_parameters()
        if self.bias is not None:
            self.bias.data.zero_()
        nn.init.dirac_(self.weight.data[: self.weight.size(1)])


class Norm(nn.BatchNorm2d):
    def __init__(self, channels):
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Group(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv1, self.norm1 = Conv(channels, filters, 3, padding="same", bias=False), Norm(filters)
        self.conv2, self.norm2 = Conv(filters, filters, 3, padding="same", bias=False), Norm(filters)

    def forward(self, x):
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class Mul(nn.Module):
    def forward(self, x):
        return x / 9


def whiten(layer, images):
    patches = images.unfold(2, 2, 1).unfold(3, 2, 1).transpose(1, 3).reshape(-1, 12)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches), UPLO="U")
    scaled = vectors.T.reshape(12, 3, 2, 2).flip(0) / torch.sqrt(values.flip(0).view(-1, 1, 1, 1) + 5e-4)
    layer.weight.data[:] = torch.cat((scaled, -scaled))
    layer.weight.requires_grad = False


def infer_mirror(net, x):
    return (net(x) + net(x.flip(3))) / 2


def infer_all(net, x):
    """tta_level 2: also shifted by a pixel up-left and down-right."""
    padded = F.pad(x, (1,) * 4, "reflect")
    shifted = (infer_mirror(net, padded[:, :, :32, :32]) + infer_mirror(net, padded[:, :, 2:34, 2:34])) / 2
    return (infer_mirror(net, x) + shifted) / 2


def airbench94():
    momentum = 0.85
    lr, decay = 11.5 / (1 + 1 / (1 - momentum)), 0.0153 / 11.5
    net = nn.Sequential(Conv(3, 24, 2, bias=True), nn.GELU(), Group(24, 64), Group(64, 256), Group(256, 256),
                        nn.MaxPool2d(3), nn.Flatten(), nn.Linear(256, 10, bias=False), Mul())
    net = net.to(memory_format=torch.channels_last).train()
    images, labels = read(True)
    batch, images = min(1024, len(labels)), normal(images)
    whiten(net[0], images[:5000])
    named = [(name, p) for name, p in net.named_parameters() if p.requires_grad]
    sgd = torch.optim.SGD([{"params": [p for n, p in named if "norm" in n], "lr": 64 * lr, "weight_decay": decay / 64},
                           {"params": [p for n, p in named if "norm" not in n]}],
                          lr=lr, momentum=momentum, nesterov=True, weight_decay=decay)
    updates = math.ceil(args.epochs * (len(labels) // batch))
    warm = int(updates * 0.23)
    rate = torch.optim.lr_scheduler.LambdaLR(
        sgd, lambda i: 0.2 + 0.8 * i / warm if i < warm else 1 - 0.93 * (i - warm) / (updates - warm))
    slow = {k: v.clone() for k, v in net.state_dict().items()}

    def look_ahead(decay):
        for key, now in net.state_dict().items():
            if now.is_floating_point():
                slow[key].lerp_(now, 1 - decay)
                now.copy_(slow[key])

    mirrored = torch.rand(len(labels)) < 0.5
    images[mirrored] = images[mirrored].flip(3)
    padded, done = F.pad(images, (2,) * 4, "reflect"), 0
    for epoch in range(math.ceil(args.epochs)):
        y, x = torch.randint(0, 5, (2, len(labels), 1))
        rows, columns = (torch.arange(32) + at for at in (y, x))
        for index in torch.randperm(len(labels)).split(batch)[: len(labels) // batch]:
            x = padded[index.view(-1, 1, 1, 1), torch.arange(3).view(1, 3, 1, 1), rows[index].view(-1, 1, 32, 1),
                       columns[index].view(-1, 1, 1, 32)]
            x = (x.flip(3) if epoch % 2 else x).contiguous(memory_format=torch.channels_last)
            sgd.zero_grad()
            F.cross_entropy(net(x), labels[index], label_smoothing=0.2).backward()
            sgd.step()
            rate.step()
            done += 1
            if done % 5 == 0:
                look_ahead(0.95**5 * (done / updates) ** 3)
            if done >= updates:
                look_ahead(1)
                break
    return net.eval()


def main():
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    began, used = time.perf_counter(), time.process_time()
    net = augmented() if args.recipe == "augmented" else airbench94()
    infer = net if args.recipe == "augmented" else lambda x: infer_all(net, x)
    result = {"torch": torch.__version__, "recipe": args.recipe, "seed": args.seed, "limit": args.limit,
              "train_seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - used,
              "top1": top1(infer)}
    print(json.dumps(result), flush=True)


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("recipe", choices=["augmented", "airbench94"])
p.add_argument("--data-dir", required=True, help="CIFAR-10's binary version")
p.add_argument("--limit", type=int, default=50000, help="only the first images of each split")
p.add_argument("--epochs", type=float, default=9.9)
p.add_argument("--threads", type=int, default=1)
p.add_argument("--seed", type=int, default=0)
args = p.parse_args()
if __name__ == "__main__":
    main()
