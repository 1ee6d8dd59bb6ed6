#!/usr/bin/env python3
"""PyTorch's side of imagenet.sh, and the comparison. ResNet-50 by torchvision, SGD with momentum 0.9.

speed    images per second of whole training steps on a batch that lies ready on the GPU, eager or compiled
weights  an initial state as safetensors, for both sides to start from
curve    losses of each step over dump_synth's images in their order, each epoch alike
compare  reads what imagenet.sh left in --out, writes imagenet.json and losses.json, prints a table
"""
import argparse
import json
import os
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
    step = trainer(model, "bf16", 0.1, args.device)
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


def compare(args):
    from summary import summary

    def median(values):
        values = [v for v in values if v]
        return statistics.median(values) if values else None

    table, bad = [], []
    for batch in args.batches.split():
        at = lambda kind, r, ext: os.path.join(args.out, f"{kind}-{batch}-{r}.{ext}")
        rounds = range(1, args.rounds + 1)
        row = {"batch": int(batch), "ours": median(
            summary(at("ours", r, "jsonl")).get("img_s") for r in rounds if os.path.exists(at("ours", r, "jsonl")))}
        for kind in ("eager", "compile"):
            row[kind] = median(json.load(open(at(kind, r, "json")))["img_s"]
                               for r in rounds if os.path.exists(at(kind, r, "json")))
        for kind in ("eager", "compile"):
            row[f"over_{kind}"] = row["ours"] / row[kind] if row["ours"] and row[kind] else None
        table.append(row)
        show = lambda v, f: format(v, f) if v else "-"
        print(f"batch {batch:>4}: ours {show(row['ours'], '7.0f')} img/s, eager {show(row['eager'], '7.0f')} "
              f"({show(row['over_eager'], '.2f')} x), compiled {show(row['compile'], '7.0f')} "
              f"({show(row['over_compile'], '.2f')} x)")
    curves = {}
    for amp in ("f32", "bf16", "f16"):
        ours, theirs = (os.path.join(args.out, n) for n in (f"curve-ours-{amp}.jsonl", f"curve-torch-{amp}.json"))
        if not (os.path.exists(ours) and os.path.exists(theirs)):
            continue
        a, b = summary(ours).get("losses") or [], json.load(open(theirs))["losses"]
        if len(a) != len(b):
            bad.append(f"{amp}: {len(a)} losses of ours, {len(b)} of PyTorch")
            continue
        worst = max(abs(sum(a[i:i + 50]) / sum(b[i:i + 50]) - 1) for i in range(0, len(a), 50))
        curves[amp] = {"ours": a, "torch": b, "worst_of_50": worst, "first": abs(a[0] - b[0])}
        print(f"{amp}: first losses {a[0]:.5f} and {b[0]:.5f}, last {a[-1]:.4f} and {b[-1]:.4f}; "
              f"means of 50 steps differ by {100 * worst:.2f} % at most")
        if not worst < 0.05:
            bad.append(f"{amp}: loss curves differ by {100 * worst:.1f} %")
    json.dump(table, open(os.path.join(args.out, "imagenet.json"), "w"), indent=1)
    json.dump(curves, open(os.path.join(args.out, "losses.json"), "w"))
    if bad:
        sys.exit("; ".join(bad))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["speed", "weights", "curve", "compare"])
    parser.add_argument("--kind", choices=["eager", "compile"], default="eager")
    parser.add_argument("--amp", choices=["f32", "bf16", "f16"], default="bf16")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--rounds", type=int, default=2)
    for name in ("--json", "--init", "--data", "--file", "--out", "--batches"):
        parser.add_argument(name)
    a = parser.parse_args()
    {"speed": speed, "weights": weights, "curve": curve, "compare": compare}[a.what](a)
