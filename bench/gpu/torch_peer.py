#!/usr/bin/env python3
"""PyTorch's side of the step "torch" of run.py. ResNet-50 by torchvision, SGD with momentum 0.9.

speed    images per second of whole training steps on a batch that lies ready on the GPU, eager or compiled
weights  an initial state as safetensors, for both sides to start from
curve    losses of each step over dump_synth's images in their order, each epoch alike
"""
import argparse
import json
import statistics
import sys
import time

WARMUP = 20


def make(args):
    import torch
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50(num_classes=1000)
    if getattr(args, "init", None):
        from safetensors.torch import load_file

        model.load_state_dict(load_file(args.init), strict=False)
    return model.to(args.device, memory_format=torch.channels_last)


def trainer(model, amp, lr, device):
    """One training step as a function of images and labels; gives the loss, still on the GPU."""
    import torch
    import torch.nn.functional as F

    dtype = {"f32": None, "bf16": torch.bfloat16, "f16": torch.float16}[amp]
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=amp == "f16")

    def step(x, y):
        with torch.autocast(device, dtype=dtype or torch.bfloat16, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def speed(args):
    import torch

    wait = torch.cuda.synchronize if args.device == "cuda" else lambda: None
    model = make(args).train()
    if args.kind == "compile":
        model = torch.compile(model, mode="max-autotune-no-cudagraphs")
    step = trainer(model, "bf16", args.lr, args.device)
    x = torch.randn(args.batch, 3, args.size, args.size, device=args.device).to(memory_format=torch.channels_last)
    y = torch.randint(1000, (args.batch,), device=args.device)
    for _ in range(WARMUP):
        loss = step(x, y)
    wait()
    times = []
    for _ in range(max(1, args.steps // 10)):
        began = time.perf_counter()
        for _ in range(10):
            loss = step(x, y)
        wait()
        times.append((time.perf_counter() - began) / 10)
    if not torch.isfinite(loss):
        sys.exit(f"the loss is {loss.item()}: no speed")
    result = {"kind": args.kind, "batch": args.batch, "torch": torch.__version__,
              "img_s": args.batch / statistics.median(times), "step_ms": [1e3 * t for t in times],
              "device_peak": torch.cuda.max_memory_allocated() if args.device == "cuda" else None}
    json.dump(result, open(args.json, "w"))
    print(json.dumps(result))


def weights(args):
    import torch
    import torchvision
    from safetensors.torch import save_file

    torch.manual_seed(1)
    state = torchvision.models.resnet50(num_classes=1000).state_dict()
    save_file({k: v for k, v in state.items() if not k.endswith("num_batches_tracked")}, args.file)


def curve(args):
    import numpy as np
    import torch

    with open(args.data, "rb") as f:
        n, size, _ = np.fromfile(f, np.int32, 3)
        labels = np.fromfile(f, np.int32, n)
        images = np.fromfile(f, np.uint8).reshape(n, size, size, 3)
    model = make(args).train()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    step = trainer(model, args.amp, args.lr, args.device)
    losses, batches = [], n // args.batch
    for i in range(args.steps):
        at = i % batches * args.batch
        x = torch.from_numpy(images[at:at + args.batch]).to(args.device).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
        y = torch.from_numpy(labels[at:at + args.batch]).long().to(args.device)
        losses.append(step(x, y))
    json.dump({"amp": args.amp, "losses": [v.item() for v in losses]}, open(args.json, "w"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "weights", "curve"])
    parser.add_argument("--kind", choices=["eager", "compile"], default="eager")
    parser.add_argument("--amp", choices=["f32", "bf16", "f16"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.05)
    for name in ("--json", "--init", "--data", "--file"):
        parser.add_argument(name)
    a = parser.parse_args()
    {"speed": speed, "weights": weights, "curve": curve}[a.what](a)
