"""shown.py - is what a page shows of a program's output what the program prints? Numbers may differ.

As a program: shown.py PAGE HEADING <OUTPUT; the blocks without a language in the part of that heading, one after the other."""
import re
import sys


def mask(line):
    """Numbers, times, compilers, instruction sets and runs of blanks are equal to others, and so are files and classes in a line of predictions."""
    if re.match(r"\d+,new/", line):
        line = re.sub(r"\b[a-z]\w+\b", "CLASS", re.sub(r"new/[\w.-]+", "FILE", line))
    line = re.sub(r"cpu \(\w+\)", "cpu (ISA)", re.sub(r"\((gcc|clang) [\w.]+\)", "(CC)", line))
    line = re.sub(r"\b(\d+h)?(\d+m)?\d+(\.\d+)?s\b", "#s", line)
    line = re.sub(r"\bweights [0-9a-f]{16}\b", "weights #", line)
    return re.sub(r"\s+", " ", re.sub(r"\d+(,\d{3})*(\.\d+)?(e-\d+)?", "#", line)).strip()


def missing(shown, printed):
    """The first line shown that is not among those printed, in their order; "..." stands for any text. None: all are."""
    lines = [mask(l) for l in printed.splitlines()]
    at = 0
    for line in shown:
        if line in ("...", ""):
            continue
        pattern = ".*".join(re.escape(mask(part)) for part in line.split("..."))
        while at < len(lines) and not re.fullmatch(pattern, lines[at]):
            at += 1
        if at == len(lines):
            return line
        at += 1
    return None


if __name__ == "__main__":
    page, heading = open(sys.argv[1]).read(), sys.argv[2]
    part = re.search(rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.S | re.M)[1]
    blocks = re.findall(r"^```\n(.*?)^```", re.sub(r"^```\w+\n.*?^```\n", "", part, flags=re.S | re.M), re.S | re.M)
    lines = [l for block in blocks for l in block.splitlines() if not l.startswith("$ ")]
    line = missing(lines, sys.stdin.read())
    if line or not lines:
        sys.exit(f"{sys.argv[1]}, {heading}: not printed: {line}")
