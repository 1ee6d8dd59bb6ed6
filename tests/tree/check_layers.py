#!/usr/bin/env python3
"""check_layers.py [ROOT]: checks every #include of the tree under ROOT against tests/tree/layers.txt, finds files that include
each other in a cycle, and checks that HVT_HAVE_... is tested only in the three files that may. Prints
each breach; exit 1 if any.
"""
import graphlib
import os
import re
import sys
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
TABLE = "tests/tree/layers.txt"
INCLUDE = re.compile(r'\s*#\s*include\s*(?:"([^"]*)"|(<[^>]*>))')
MADE_BY_MESON = {"config.h": "config.h", "train/recipes.h": "train/recipes.h", "commit.h": "commit.h", "hvt/version.h": "include/hvt/version.h"}
MAY_ASK = {"src/device/device.c", "src/comm/comm.c", "src/world/world.c"}


def rules():
    """(number of the line, patterns of files, patterns of headers)"""
    for number, line in enumerate((ROOT / TABLE).read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            files, headers = line.split(":", 1)
            yield number, files.split(), headers.split()


def any_of(patterns, path):
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def resolve(file, header):
    """A path from the root, or None."""
    for folder in (os.path.dirname(file), "include", "src", "tests/support"):
        path = os.path.normpath(os.path.join(folder, header))
        if (ROOT / path).is_file():
            return path
    return MADE_BY_MESON.get(header)


def circles(graph):
    """Files -> those that they include; each circle loses an edge so that others are found."""
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
            return
        except graphlib.CycleError as error:
            files = error.args[1]
            yield "these include each other in a circle: " + " ".join(files)
            graph[files[1]].remove(files[0])


def check():
    table = list(rules())
    restricted = {header for _, _, headers in table for header in headers if header.startswith("<")}
    used, graph = set(), {}
    files = sorted(str(path.relative_to(ROOT)) for part in ("include", "src", "cuda", "tests", "bench")
                   for pattern in ("*.[ch]", "*.cu") for path in (ROOT / part).rglob(pattern))
    for file in files:
        rule = next((rule for rule in table if any_of(rule[1], file)), None)
        if rule:
            used.add(rule[0])
        else:
            yield f"{file}: no line of {TABLE} says what it may include"
        may = rule[2] if rule else ["*"]
        text = (ROOT / file).read_text()
        for number, line in enumerate(text.splitlines(), 1):
            found = INCLUDE.match(line)
            if not found or found[2] and found[2] not in restricted:
                continue
            header = found[2] or resolve(file, found[1])
            if not header:
                yield f'{file}:{number}: "{found[1]}" is found neither beside it nor in include/, src/ or tests/support/'
                continue
            if not any_of(may, header):
                yield f"{file}:{number}: may not include {header}; it may: {' '.join(may) or 'nothing'}"
            if "/" in header and file.startswith(("include/", "src/", "cuda/")):
                # a .c and the .h of its name are one
                one, other = os.path.splitext(file)[0], os.path.splitext(header)[0]
                if one != other:
                    graph.setdefault(one, set()).add(other)
        if file.startswith(("include/", "src/")) and file not in MAY_ASK and \
                re.search("HVT_HAVE_(MPI|CUDA)", text):
            yield f"{file}: tests HVT_HAVE_MPI or HVT_HAVE_CUDA; only device.c, comm.c and world.c may"
    yield from circles(graph)
    for number, patterns, _ in table:
        if number not in used:
            yield f"{TABLE}:{number}: matches no file: {' '.join(patterns)}"


breaches = sorted(check())
print(*breaches, sep="\n", end="\n" if breaches else "")
sys.exit(1 if breaches else 0)
