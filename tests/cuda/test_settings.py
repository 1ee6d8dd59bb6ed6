#!/usr/bin/env python3
"""Every setting of NCCL that docs, job scripts, messages and code name: test_settings.py ROOT LIBNCCL|none.

A name must be a variable that the library reads: its text is in libnccl.so. NCCL_ALGO and NCCL_PROTO are parsed as NCCL 2.24
and newer do (src/graph/tuning.cc), and leave each function that hvtrain calls an algorithm and a protocol: NCCL
fails at the first call of a function that has none.
"""
import re
import sys
from pathlib import Path

ROOT, LIBRARY = Path(sys.argv[1]), sys.argv[2]

ALGORITHMS = ["Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"]
PROTOCOLS = ["LL", "LL128", "Simple"]
# What NCCL implements where neither switches nor multicast help.
HAS = {"Broadcast": {"Ring"}, "AllGather": {"Ring", "PAT"}, "ReduceScatter": {"Ring", "PAT"}, "AllReduce": {"Ring", "Tree"}}


def parse(text, names):
    """FUNCTION:LIST;FUNCTION:LIST, the first FUNCTION optional; ^ before a list inverts it. Function -> enabled names."""
    enabled = {function: set(names) for function in HAS}
    for i, part in enumerate(text.split(";")):
        function, colon, elements = part.rpartition(":")
        if not colon and i:
            raise ValueError(f"{part}: only the first list may lack a function")
        wanted = {name for name in names for e in elements.lstrip("^").split(",") if e.lower() == name.lower()}
        if len(wanted) != len(elements.lstrip("^").split(",")):
            raise ValueError(f"{elements}: expected of {names}")
        functions = [f for f in HAS if not colon or f.lower() == function.lower()]
        if not functions and function.lower() != "reduce":
            raise ValueError(f"{function}: no function of NCCL")
        for f in functions:
            enabled[f] = set(names) - wanted if elements.startswith("^") else wanted
    return enabled


def functions_without(name, value):
    enabled = parse(value, ALGORITHMS if name == "NCCL_ALGO" else PROTOCOLS)
    return [f for f in HAS if not (enabled[f] & (HAS[f] if name == "NCCL_ALGO" else set(PROTOCOLS)))]


def settings():
    """(file, variable, value or None) wherever one is named."""
    files = [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("hostfiles/*"), *ROOT.glob("src/**/*.[ch]"),
             *ROOT.glob("cuda/*"), *ROOT.glob("bench/gpu/*")]
    for path in files:
        text = path.read_text(errors="replace")
        for m in re.finditer(r"\b(NCCL_[A-Z0-9_]*[A-Z0-9])(?:=|\", \")([^\s`\"';)]+(?:;[^\s`\"')]+)*)", text):
            yield path.relative_to(ROOT), m[1], m[2]
        for m in re.finditer(r"(?:setenv\(\"|`|export )(NCCL_[A-Z0-9_]*[A-Z0-9])", text):
            yield path.relative_to(ROOT), m[1], None


def main():
    assert functions_without("NCCL_ALGO", "Tree") == ["Broadcast", "AllGather", "ReduceScatter"]
    assert functions_without("NCCL_ALGO", "^Ring;allreduce:tree") and not functions_without("NCCL_ALGO", "allreduce:tree")
    library = Path(LIBRARY).read_bytes() if Path(LIBRARY).is_file() else None
    bad, seen = [], set()
    for path, name, value in settings():
        if library and name.encode() not in library:
            bad.append(f"{path}: NCCL reads no variable {name}")
        if value and name in ("NCCL_ALGO", "NCCL_PROTO"):
            try:
                none = functions_without(name, value)
            except ValueError as e:
                none = [str(e)]
            # a page may show what goes wrong, in brackets
            if none and f"(`{name}={value}` alone" not in (ROOT / path).read_text():
                bad.append(f"{path}: {name}={value} leaves nothing for {', '.join(none)}")
        seen.add((name, value))
    print(f"{len(seen)} settings: " + ", ".join(sorted(n + (f"={v}" if v else "") for n, v in seen)))
    print(*bad, sep="\n")
    sys.exit(bool(bad) or len(seen) < 10)


if __name__ == "__main__":
    main()
