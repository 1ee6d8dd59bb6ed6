#!/usr/bin/env python3
"""What hvtrain's logs say, as one JSON object for each log: summary.py LOG... > FILE

img_s       training images per second: median of the step records, the first third left out
epoch_s     seconds of each epoch
losses      training loss of each step record
top1        of each evaluation, percent
device_peak bytes of GPU memory at most, as the program counted them
weights     hash of the weights at the end: equal for equal bits
An unfinished log (no end record) gives "ended": false and no figures.
"""
import json
import statistics
import sys


def summary(path):
    records = [json.loads(line) for line in open(path)]
    of = lambda kind: [r for r in records if r["record"] == kind]
    start, end, steps = of("start"), of("end"), of("step")
    s = {"log": path, "ended": bool(end)}
    if not start or not end:
        return s
    start, end = start[0], end[0]
    late = [r["img_s"] for r in steps[len(steps) // 3:] if r["img_s"]]
    s |= {k: start.get(k) for k in ("model", "device", "ranks", "comm", "global_batch", "amp", "wire", "options")}
    s |= {
        "gpus": start.get("gpus"),
        "img_s": statistics.median(late) if late else None,
        "epoch_s": [r["seconds"] for r in of("epoch")],
        "losses": [r["loss"] for r in steps],
        "top1": [r["top1"] for r in of("eval")],
        "device_peak": end.get("device_peak_bytes"),
        "weights": end["weights"],
        "skipped": end["skipped"],
        "seconds": end["seconds"],
    }
    return s


if __name__ == "__main__":
    print(json.dumps([summary(p) for p in sys.argv[1:]], indent=1))
