#!/usr/bin/env python3
"""JPEG files in folders of classes to batches of normalised floats: RandomResizedCrop(224) and a flip, by
torchvision or DALI, in one process with one thread. What bench_loader does for hvtrain.

    torch_loader.py pillow      DIR    torchvision's ImageFolder with Pillow, and the first transforms
    torch_loader.py decode_jpeg DIR    torchvision.io's decoder, libjpeg-turbo too, and transforms v2
    torch_loader.py dali        DIR    NVIDIA's DALI on the CPU, which decodes the box alone

After two batches to warm up it works for --seconds. Last line: total N img/s.
"""
import argparse
import time

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def batches_of(folder):
    import torch

    torch.set_num_threads(1)
    while True:
        yield from (images for images, _ in torch.utils.data.DataLoader(folder, args.batch, shuffle=True))


def pillow():
    from torchvision import datasets, transforms as t

    return batches_of(datasets.ImageFolder(args.dir, t.Compose(
        [t.RandomResizedCrop(args.size), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)])))


def decode_jpeg():
    import torch
    from torchvision import datasets, io
    from torchvision.transforms import v2 as t

    return batches_of(datasets.ImageFolder(
        args.dir, loader=lambda path: io.decode_jpeg(io.read_file(path), mode=io.ImageReadMode.RGB),
        transform=t.Compose([t.RandomResizedCrop(args.size, antialias=True), t.RandomHorizontalFlip(),
                             t.ToDtype(torch.float32, scale=True), t.Normalize(MEAN, STD)])))


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
    batches = {"pillow": pillow, "decode_jpeg": decode_jpeg, "dali": dali}[args.way]()
    for _ in range(2):
        shape = next(batches).shape
    shape = shape() if callable(shape) else list(shape)
    assert sorted(shape) == sorted([args.batch, args.size, args.size, 3]), shape
    images, began = 0, time.perf_counter()
    while (seconds := time.perf_counter() - began) < args.seconds:
        next(batches)
        images += args.batch
    print(f"total {images / seconds:.0f} img/s")


p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
p.add_argument("way", choices=["pillow", "decode_jpeg", "dali"])
p.add_argument("dir")
p.add_argument("--batch", type=int, default=32)
p.add_argument("--size", type=int, default=224)
p.add_argument("--seconds", type=float, default=10)
args = p.parse_args()
if __name__ == "__main__":
    main()
