"""What hvtrain's logs say: records of one run as a few figures."""
import json
import statistics


def summary(path):
    """Figures of one log; {} without an end of the run.

    img_s   training images per second: median of the step records, the first third left out
    losses  training loss of each step record
    top1    of each evaluation, percent
    peak    bytes of GPU memory at most, as the program counted them
    weights hash of the weights at the end: equal for equal bits
    """
    try:
        with open(path) as file:
            records = [json.loads(line) for line in file]
    except (OSError, ValueError):
        return {}
    start = [r for r in records if r["record"] == "start"]
    end = [r for r in records if r["record"] == "end" and r["status"] == "done"]
    if not start or not end:
        return {}
    steps = [r for r in records if r["record"] == "step"]
    late = [r["img_s"] for r in steps[len(steps) // 3:] if r["img_s"]]
    return {"start": start[0], "end": end[-1], "img_s": statistics.median(late) if late else None,
            "losses": [r["loss"] for r in steps], "top1": [r["top1"] for r in records if r["record"] == "eval"],
            "peak": end[-1].get("device_peak_bytes") or 0, "weights": end[-1]["weights"]}


def table(head, rows):
    """Columns of text; numbers to the right."""
    cells = [[str(c) for c in row] for row in [head, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    return "".join("  ".join(c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))).rstrip()
                   + "\n" for row in cells)


def number(value, form=",.0f"):
    return "-" if value is None else format(value, form)
