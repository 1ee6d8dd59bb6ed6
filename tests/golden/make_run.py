#!/usr/bin/env python3
"""A whole run of hvtrain, by PyTorch: ten updates of a ResNet-20 on two shards, and an evaluation.

The effects of hvtrain's command line are computed by PyTorch's own functions where they exist: the order of the
images (torch.randperm), the learning rate (CosineAnnealingLR), the update (SGD with momentum and weight decay), batch
norm in each shard, and its moving statistics, which are PyTorch's of each shard, averaged with the shards' numbers of
images as weights. What only hvtrain has is reimplemented from its description: initial weights and the draws of crop
and flip (hvt__draw and hvt__hash in src/base, src/model/init.c, src/data/loader.c). The images are files in
CIFAR-10's format that write_files() makes up; it needs nothing but Python, so that tests/train/test_golden.py can
write them where PyTorch is not installed. 41 images on two shards are 21 and 20, in batches of 8: the last update of
an epoch has 5 and 4.

The run is made in f32 and in f64, which must agree to 1e-5; the numbers of f64 are the golden ones. With "f64" it is
made in f64 alone, in half the time; with "frozen" some parameters are frozen by requires_grad_(False); with "sync"
batch norm is over the images of both shards at once, as torch.nn.SyncBatchNorm's is (which runs on GPUs only, so here
it is BatchNorm2d on both shards' images in one batch).

    python3 tests/golden/make_run.py > tests/golden/run.txt
    python3 tests/golden/make_run.py frozen > tests/golden/frozen.txt
    python3 tests/golden/make_run.py sync > tests/golden/sync.txt
"""
import math
import os
import struct
import sys

SEED = 1
EPOCHS, STEPS, BATCH, SHARDS = 4, 10, 8, 2
LR, MOMENTUM, DECAY, CROP = 0.001, 0.9, 1.0, 4  # at larger rates the losses depend on rounding too much
FREEZE = ("conv1", "bn1", "layer1", "layer2.1.conv1", "layer3.2.bn2.weight", "fc.bias")
TRAIN, TEST, SIDE, CLASSES = (9, 8, 8, 8, 8), 37, 32, 10  # images of each file
ARGS = (f"--model resnet20 --data cifar10 --epochs {EPOCHS} --steps {STEPS} --shards {SHARDS} --batch {BATCH} "
        f"--lr {LR} --schedule cosine --schedule-by epoch --momentum {MOMENTUM} --weight-decay {DECAY} --augment crop:{CROP},flip "
        f"--seed {SEED} --eval-freq 0 --print-freq 1").split()

# ---- draws, as src/base_impl.h and src/base/hash.c have them -------------------------------------------------

MASK = (1 << 64) - 1


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draw(a, b, c, d):
    return mix(d ^ mix(c ^ mix(b ^ mix(a))))


def below(word, n):
    return ((word >> 32) * n) >> 32


def hash_text(text):
    data = text.encode()
    turn = lambda h, v: (lambda m: m ^ (m >> 32))(((h ^ v) * 0x9FB21C651E98DF25) & MASK)
    word = lambda at, n: int.from_bytes(data[at:at + n], "little")
    a = mix(0x243F6A8885A308D3)
    b, i = ~a & MASK, 0
    while i + 16 <= len(data):
        a, b, i = turn(a, word(i, 8)), turn(b, word(i + 8, 8)), i + 16
    if i + 8 <= len(data):
        a, i = turn(a, word(i, 8)), i + 8
    return mix(a ^ mix(turn(b, word(i, len(data) - i)) ^ len(data)))


# ---- images --------------------------------------------------------------------------------------------------

def picture(split, number):
    """Label and bytes [3,32,32]: blocks of 4 x 4 pixels that the label decides, under noise."""
    label = below(draw(77, split, number, 0), CLASSES)
    noise = b"".join(struct.pack("<Q", draw(78, split, number, i)) for i in range(3 * SIDE * SIDE // 8))
    block = [below(draw(79, label, i, 0), 128) for i in range(3 * 64)]
    return label, bytes((n >> 1) + block[(i >> 10) * 64 + ((i >> 7 & 7) * 8 + (i >> 2 & 7))]
                        for i, n in enumerate(noise))


def pictures():
    """The training images and the test images."""
    return [picture(0, i) for i in range(sum(TRAIN))], [picture(1, i) for i in range(TEST)]


def write_files(folder):
    train, test = pictures()
    names = [f"data_batch_{i + 1}.bin" for i in range(len(TRAIN))] + ["test_batch.bin"]
    for name, count in zip(names, TRAIN + (TEST,)):
        part, train = (train[:count], train[count:]) if train else (test, train)
        with open(os.path.join(folder, name), "wb") as f:
            for label, pixels in part:
                f.write(bytes([label]) + pixels)


# ---- the run -------------------------------------------------------------------------------------------------

def normal(name, count, deviation):
    """Box and Muller: one draw gives the pair of elements 2i and 2i+1."""
    x = []
    for i in range(0, count, 2):
        u = ((draw(SEED, name, i, 0) >> 11) + 1) * 2.0**-53
        v = (draw(SEED, name, i, 1) >> 11) * 2.0**-53
        radius = deviation * math.sqrt(-2 * math.log(u))
        x += [radius * math.cos(2 * math.pi * v), radius * math.sin(2 * math.pi * v)]
    return x[:count]


def uniform(name, count, bound):
    return [bound * (2 * (draw(SEED, name, i, 0) >> 40) * 2.0**-24 - 1) for i in range(count)]


def fill(model):
    """Convolutions normal with deviation sqrt(2 / fan out), the head uniform up to 1 / sqrt(fan in)."""
    import numpy as np
    import torch
    single = lambda x: float(np.float32(x))
    for name, p in model.named_parameters():
        if p.dim() == 4:
            x = normal(hash_text(name), p.numel(), single(math.sqrt(2 / (p.shape[0] * p.shape[2] * p.shape[3]))))
        elif name.startswith("fc."):
            x = uniform(hash_text(name), p.numel(), single(1 / math.sqrt(model.fc.in_features)))
        else:
            continue
        p.data.copy_(torch.tensor(x, dtype=torch.float32).reshape(p.shape))


def augmented(images, order, epoch):
    """[3,32,32] each, in [-1, 1]: cropped out of a black margin, then mirrored."""
    import torch
    out = []
    for i in order:
        y, x = (below(draw(SEED, epoch, i, 0xD00 + k), 2 * CROP + 1) for k in range(2))
        image = torch.nn.functional.pad(images[i], [CROP] * 4)[:, y:y + SIDE, x:x + SIDE]
        out.append(image.flip(2) if below(draw(SEED, epoch, i, 0xD02), 2) else image)
    return normalised(torch.stack(out))


def normalised(images):
    return (images / 255 - 0.5) / 0.5


def statistics(model):
    return [b for name, b in model.named_buffers() if "running" in name]


def update(model, optimizer, shards):
    """One step; `shards` are images and labels. Returns the mean loss over all images."""
    import torch
    count = sum(len(y) for _, y in shards)
    before = [b.clone() for b in statistics(model)]
    after = [torch.zeros_like(b) for b in before]
    loss = 0
    optimizer.zero_grad()
    for x, y in shards:
        for b, was in zip(statistics(model), before):
            b.copy_(was)
        part = torch.nn.functional.cross_entropy(model(x), y, reduction="sum") / count
        part.backward()  # adds to what the shards before gave
        loss += part.item()
        for a, b in zip(after, statistics(model)):
            a += b * (len(y) / count)
    for b, mean in zip(statistics(model), after):
        b.copy_(mean)
    optimizer.step()
    return loss


def in_one_batch(shards):
    import torch
    return [tuple(torch.cat(x) for x in zip(*shards))]


def train(dtype, freeze, sync):
    """The training losses; and of the test images loss, top-1 and top-5 hits. freeze: prefixes of parameters; sync: the
    shards are one batch."""
    import torch
    from make_losses import ResNet20
    data = [(torch.stack([torch.frombuffer(bytearray(pixels), dtype=torch.uint8).reshape(3, SIDE, SIDE).to(dtype)
                          for _, pixels in part]), torch.tensor([label for label, _ in part])) for part in pictures()]
    (images, labels), (test_images, test_labels) = data
    model = ResNet20()
    fill(model)
    for name, p in model.named_parameters():
        p.requires_grad_(not name.startswith(freeze))
    model.to(dtype).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=MOMENTUM, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)
    losses = []
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(SEED + epoch)).tolist()
        for first in range(0, -(-len(images) // SHARDS), BATCH):
            parts = [order[shard::SHARDS][first:first + BATCH] for shard in range(SHARDS)]
            if len(losses) < STEPS:
                shards = [(augmented(images, p, epoch), labels[p]) for p in parts]
                losses.append(update(model, optimizer, in_one_batch(shards) if sync else shards))
        schedule.step()
    model.eval()
    with torch.no_grad():
        logits = model(normalised(test_images))
    ranks = (logits > logits.gather(1, test_labels[:, None])).sum(1)
    return losses, torch.nn.functional.cross_entropy(logits, test_labels).item(), \
        int((ranks < 1).sum()), int((ranks < 5).sum())


def main():
    import platform

    import torch
    torch.set_num_threads(1)
    freeze = FREEZE if "frozen" in sys.argv else ()
    sync = "sync" in sys.argv
    double = train(torch.float64, freeze, sync)
    if "f64" not in sys.argv:
        single = train(torch.float32, freeze, sync)
        apart = max(abs(s - d) / d for s, d in zip(single[0] + [single[1]], double[0] + [double[1]]))
        print(f"f32 and f64 are at most {apart:.1e} apart", file=sys.stderr)
        if apart > 1e-5 or single[2:] != double[2:]:
            sys.exit("f32 and f64 must agree to 1e-5 and in all hits; choose another learning rate or seed")
    print(f"# By make_run.py: Python {platform.python_version()}, torch {torch.__version__}")
    print("# losses of the updates; then loss, top-1 hits, top-5 hits and number of the test images")
    print(*(f"{x:.9f}" for x in double[0]))
    print(f"{double[1]:.9f} {double[2]} {double[3]} {TEST}")


if __name__ == "__main__":
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    main()
