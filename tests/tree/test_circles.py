"""test_circles.py ROOT LIBHVT CC: the circles of calls between files of src are those that circles.txt allows. Skipped
without nm."""
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from fnmatch import fnmatchcase
from pathlib import Path

ROOT, LIBRARY, CC = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
TABLE = "tests/tree/circles.txt"


def calls(objects, source_of):
    """{file: the files whose functions it uses}; objects: an archive."""
    text = subprocess.run(["nm", "-A", "-g", "--defined-only", objects], capture_output=True, text=True, check=True).stdout
    text += subprocess.run(["nm", "-A", "-g", "-u", objects], capture_output=True, text=True, check=True).stdout
    defined, used = {}, defaultdict(set)
    for line in text.splitlines():
        place, kind, name = line.rsplit(None, 2)
        file = source_of.get(place.split(":")[-2])
        if file and kind == "U":
            used[file].add(name)
        elif file and kind in "TW":
            defined[name] = file
    return {file: {defined[name] for name in names if name in defined} - {file} for file, names in used.items()}


def circles(graph):
    """The strongly connected components of several files."""
    reach = {}
    for start in graph:
        seen, todo = set(), [start]
        while todo:
            for file in graph.get(todo.pop(), ()):
                if file not in seen:
                    seen.add(file)
                    todo.append(file)
        reach[start] = seen
    return sorted({tuple(sorted(other for other in reach[file] if file in reach.get(other, ())))
                   for file in graph if file in reach[file]})


def fits_one(file, patterns):
    return any(fnmatchcase(file, pattern) and file.count("/") == pattern.count("/") for pattern in patterns.split())


def check(graph, table):
    """The breaches. table: its text."""
    lines = [line.split(" : ", 1) for line in table.splitlines() if line.strip() and not line.startswith("#")]
    found, used = circles(graph), set()
    for circle in found:
        fits = [i for i, line in enumerate(lines) if all(fits_one(file, line[0]) for file in circle)]
        used.update(fits)
        if not fits:
            edges = [f"{file} calls {other}" for file in circle for other in sorted(graph[file]) if other in circle]
            yield f"a circle of calls that {TABLE} does not allow: {'; '.join(edges)}"
    for i, line in enumerate(lines):
        if len(line) != 2 or not line[1].strip():
            yield f"{TABLE}: no reason for {line[0]}"
        elif i not in used:
            yield f"{TABLE}: no such circle is left: {line[0]}"


def made(folder):
    """An archive in which a.c and b.c call each other, and c.c calls a.c."""
    bodies = {"a": "void b(void); void a(void) { b(); }", "b": "void a(void); void b(void) { a(); }",
              "c": "void a(void); void c(void) { a(); }"}
    for name, body in bodies.items():
        Path(folder, name + ".c").write_text(body)
        subprocess.run([*CC, "-c", name + ".c", "-o", name + ".o"], cwd=folder, check=True)
    subprocess.run(["ar", "rc", "made.a", *(name + ".o" for name in bodies)], cwd=folder, check=True)
    return calls(Path(folder, "made.a"), {name + ".o": name + ".c" for name in bodies})


def main():
    if not shutil.which("nm"):
        print("skip there is no nm")
        sys.exit(77)
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        graph = made(folder)
        for name, table, want in (("an_unknown_circle_is_found", "", "does not allow: a.c calls b.c; b.c calls a.c"),
                                  ("a_known_circle_is_allowed", "a.c b.c : because", ""),
                                  ("a_circle_needs_a_reason", "a.c b.c : ", "no reason for a.c b.c"),
                                  ("a_circle_that_is_gone_is_found", "a.c b.c : because\nc.c d.c : because", "is left: c.c d.c")):
            got = "\n".join(check(graph, table))
            good = want in got if want else not got
            failed += not good
            print("ok  " if good else "FAIL", name, "" if good else got)
    sources = {str(path.relative_to(ROOT)).replace("/", "_") + ".o": str(path.relative_to(ROOT))
               for path in (ROOT / "src").rglob("*.c")}
    graph = calls(LIBRARY, sources)
    breaches = list(check(graph, (ROOT / TABLE).read_text())) if len(graph) > 100 else ["the library's objects have other names"]
    print("FAIL" if breaches else "ok  ", "the_tree_has_only_known_circles", *breaches, sep="\n" if breaches else " ")
    sys.exit(1 if failed or breaches else 0)


main()
