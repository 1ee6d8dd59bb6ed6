#!/usr/bin/env python3
"""JPEG files in folders of classes to batches of normalised floats: RandomResizedCrop(224), a flip and more, by
torchvision, timm or DALI, in one process with one thread. What bench_loader does for hvtrain.

    torch_loader.py pillow      DIR    torchvision's ImageFolder with Pillow, and the first transforms
    torch_loader.py decode_jpeg DIR    torchvision.io's decoder, libjpeg-turbo too, and transforms v2
    torch_loader.py timm        DIR    timm's create_transform() and Mixup, on Pillow images
    torch_loader.py dali        DIR    NVIDIA's DALI on the CPU, which decodes the box alone

--augment trivial or rand (two operations of magnitude 9), --erase P and --mixup ALPHA change images as hvtrain's
options of these names; timm has no trivial, DALI none of them. After two batches to warm up it works for --seconds. Last line: total N img/s.
"""
import argparse
import time

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def batches_of(folder, mix=None):
    import torch
    from torchvision.transforms import v2

    torch.set_num_threads(1)
    if args.mixup and not mix:
        mix = v2.MixUp(alpha=args.mixup, num_classes=len(folder.classes))
    while True:
        for batch in torch.utils.data.DataLoader(folder, args.batch, shuffle=True, drop_last=True):
            yield mix(*batch)[0] if mix else batch[0]


def operations(t):
    return {"none": [], "trivial": [t.TrivialAugmentWide()], "rand": [t.RandAugment(2, 9)]}[args.augment]


def erasing(t):
    return [t.RandomErasing(args.erase)] if args.erase else []


def pillow():
    from torchvision import datasets, transforms as t

    return batches_of(datasets.ImageFolder(args.dir, t.Compose(
        [t.RandomResizedCrop(args.size), t.RandomHorizontalFlip(), *operations(t), t.ToTensor(), t.Normalize(MEAN, STD),
         *erasing(t)])))


def decode_jpeg():
    import torch
    from torchvision import datasets, io
    from torchvision.transforms import v2 as t

    return batches_of(datasets.ImageFolder(
        args.dir, loader=lambda path: io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB),
        transform=t.Compose([t.RandomResizedCrop(args.size, antialias=True), t.RandomHorizontalFlip(), *operations(t),
                             t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD), *erasing(t)])))


def timm():
    from timm.data import Mixup, create_transform
    from torchvision import datasets

    folder = datasets.ImageFolder(args.dir, create_transform(
        args.size, is_training=True, color_jitter=None, interpolation="bilinear", mean=MEAN, std=STD,
        auto_augment="rand-m9-n2" if args.augment == "rand" else None, re_prob=args.erase))
    return batches_of(folder, args.mixup and Mixup(args.mixup, num_classes=len(folder.classes)))


def dali():
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=args.batch, num_threads=1, device_id=None)
    def pipeline():
        files, labels = fn.readers.file(file_root=args.dir, random_shuffle=True)
        images = fn.decoders.image_random_crop(files, random_area=[0.08, 1], random_aspect_ratio=[3 / 4, 4 / 3])
        images = fn.resize(images, size=[args.size, args.size], interp_type=types.INTERP_LINEAR, antialias=True)
        return fn.crop_mirror_normalize(images, dtype=types.FLOAT, output_layout="HWC",
                                        mean=[255 * x for x in MEAN], std=[255 * x for x in STD],
                                        mirror=fn.random.coin_flip()), labels

    p = pipeline()
    p.build()
    while True:
        yield p.run()[0].as_tensor()


def main():
    batches = {"pillow": pillow, "decode_jpeg": decode_jpeg, "timm": timm, "dali": dali}[args.way]()
    for _ in range(2):
        shape = next(batches).shape
    shape = shape() if callable(shape) else list(shape)
    assert sorted(shape) == sorted([args.batch, args.size, args.size, 3]), shape
    images, began, used = 0, time.perf_counter(), time.process_time()
    while (seconds := time.perf_counter() - began) < args.seconds:
        next(batches)
        images += args.batch
    print(f"cpu {(time.process_time() - used) / images * 1e6:.1f} us of an image")
    print(f"total {images / seconds:.0f} img/s")


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("way", choices=["pillow", "decode_jpeg", "timm", "dali"])
p.add_argument("dir")
p.add_argument("--batch", type=int, default=32)
p.add_argument("--size", type=int, default=224)
p.add_argument("--seconds", type=float, default=10)
p.add_argument("--augment", choices=["none", "trivial", "rand"], default="none")
p.add_argument("--erase", type=float, default=0)
p.add_argument("--mixup", type=float, default=0)
args = p.parse_args()
if __name__ == "__main__":
    main()
