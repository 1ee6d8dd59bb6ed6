#!/usr/bin/env python3
"""test_readme.py ROOT [HVTRAIN] [--write]: README.md and docs/ against the tree. The options table is what
`hvtrain --help=markdown` prints, the examples are those of tests/, links and their anchors exist, the map names
exactly the existing folders, figures are those of bench/results/README.md. --write updates the generated
parts instead. test_commands.py tests the commands in them."""
import os
import re
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
import operations

write = "--write" in sys.argv
root, *program = [Path(a).resolve() for a in sys.argv[1:] if a != "--write"]
texts = {p.relative_to(root).as_posix(): p.read_text() for p in [root / "README.md", *sorted((root / "docs").glob("*.md"))]}
text = "\n".join(texts.values())
failed = False


def truth(name, holds, why=""):
    global failed
    print(f"ok   {name}" if holds else f"FAIL {name}: {why}")
    failed |= not holds


def generated(page, name, wanted):
    """The text between <!-- name: ... --> and <!-- end of name -->."""
    begin = re.search(rf"<!-- {name}: .* -->\n", texts[page]).end()
    end = re.search(rf"<!-- end of {name} -->", texts[page]).start()
    if write:
        texts[page] = texts[page][:begin] + wanted + texts[page][end:]
        (root / page).write_text(texts[page])
    else:
        truth(f"the_{name.replace(' ', '_')}_part_is_up_to_date", texts[page][begin:end] == wanted,
              f"{page} differs; {Path(__file__).name} ROOT HVTRAIN --write brings it up to date")


def source(path, language="c"):
    return f"```{language}\n" + (root / path).read_text() + "```\n"


generated("docs/library.md", "example", source("tests/tree/example.c"))
generated("docs/library.md", "toy example", source("tests/train/example_toy.c"))
generated("docs/library.md", "solver example", source("tests/net/example_solver.c"))
generated("docs/library.md", "unet example", source("tests/net/unet.py", "python"))
generated("docs/fortran.md", "fortran example", source("tests/net/example_solver.f90", "fortran"))
generated("docs/python.md", "python example", source("tests/net/example_solver.py", "python"))
generated("docs/library.md", "split example", source("tests/train/example_split.c"))
generated("README.md", "train example", source("tests/train/example_train.c"))
generated("docs/pytorch-models.md", "operations", operations.tables(root))
generated("docs/pytorch-models.md", "constants", operations.constants(root))
if program:
    table = subprocess.run([program[0], "--help=markdown"], capture_output=True, text=True, check=True).stdout
    generated("docs/options.md", "options", table.strip("\n") + "\n")
if write:
    sys.exit()


def anchors(page):
    """What GitHub makes of headings."""
    code = re.sub(r"```.*?```", "", texts[page], flags=re.S)
    return {re.sub(r"[^\w -]", "", h.lower()).replace(" ", "-") for h in re.findall(r"^#+ (.*)$", code, re.M)}


# How pages are written: no sentence begins with a relative clause, and no phrase stands for a plainer one.
PHRASES = (r"(?:^|[.:] )(?:Of|What|Whose|In which) ", r"\bas ever\b", r"\bgo(?:es)? on with\b", r"\b(?:is|are) of (?:these|this)\b",
           r"\ball of it but\b", r"\bnobody\b", r"\bwants? to be\b", r"\banew\b", r"\bin the place of\b", r"\bbesides\b")
for page in texts:
    prose = re.sub(r"```.*?```|<!--.*?-->|`[^`\n]*`", "", texts[page], flags=re.S)
    if page == "docs/options.md":
        prose = prose.partition("|---|")[0]  # the table is the program's
    for phrase in PHRASES:
        found = re.findall(rf".*{phrase}.*", prose, re.M)
        truth(f"{page}_does_not_say_{phrase}", not found, found)

truth("the_readme_is_short", texts["README.md"].count("\n") <= 180, "more than 180 lines")
for page in texts:
    for link in re.findall(r"\]\(([^)\s]+)\)", texts[page]):
        if link.startswith("http"):
            continue
        file, _, anchor = link.partition("#")
        there = os.path.normpath(Path(page).parent / file) if file else page
        truth(f"{page}'s_link_to_{link}_leads_somewhere",
              there in texts and (not anchor or anchor in anchors(there)) or not anchor and (root / there).exists())
for page in texts:
    if page != "README.md":
        truth(f"the_readme_leads_to_{page}", f"]({page})" in texts["README.md"], "no link")

# Figures: a row of a table has the numbers that the row of the same name has in bench/results/README.md.
def figures(markdown, tables):
    rows = {}
    for table in re.findall(r"(?:^\|.*\n)+", markdown, re.M):
        if tables in table.splitlines()[0]:
            for line in table.splitlines()[2:]:
                name, *cells = [cell.strip(" *") for cell in line.strip("|\n").split("|")]
                rows[name] = [cell for cell in cells if cell]
    return rows


results = figures((root / "bench/results/README.md").read_text(), "")
quoted = [*figures(texts["docs/benchmarks.md"], "").items()]  # those of README's picture: test_charts.py
truth("figures_are_quoted", len(quoted) > 15, f"only {quoted}")
for name, cells in quoted:
    known = results.get(name, [])
    truth(f"figures_of_{name}_are_the_newest", cells and cells == known[:len(cells)], f"{cells}, and {known} in bench/results")

chart = re.search(r"## The map\n\n```\n(.*?)```", text, re.S).group(1)
named = [line.split()[0] for line in chart.splitlines()]
for path in named:
    truth(f"the_map's_{path}_exists", (root / path).exists(), "no such file")
folders = sorted({f"{p.parent.relative_to(root)}/" for p in (root / "src").rglob("*.c") if p.parent != root / "src"})
for folder in folders:
    truth(f"{folder}_is_on_the_map", folder in named, "not named")
for line in re.search(r"## The step\n.*?```\n(.*?)```", text, re.S).group(1).splitlines():
    path = line.split()[-1]
    if path.startswith("src/"):
        truth(f"the_step's_{path}_exists", (root / path).exists(), "no such file")
for path in set(re.findall(r"(?:hostfiles|tests|bench|include|src)/[\w./-]*\w", text)):
    truth(f"{path}_exists", (root / path).exists(), "README.md or docs/ name it")

# What tests/conformance.md says is tested there.
for row in re.findall(r"^\| C?\d* \|.*$|^\| \|.*$", (root / "tests/conformance.md").read_text(), re.M):
    for file, names in re.findall(r"(test_\w+): ([^;|]+)", row):
        tested = "".join(p.read_text() for p in (root / "tests").glob(f"*/{file}.*"))
        truth(f"{file}_exists", tested, "conformance.md names it")
        for name in re.findall(r"\b[a-z0-9]+(?:_[a-z0-9]+){2,}\b", names):
            truth(f"{name}_is_tested", name in tested, f"not in {file}")

# What stands in the step's listing is done in the file that it names.
for name, function in [("on_grad", "hvt_distopt_on_grad"), ("step", "hvt_distopt_step"), ("forward", "hvt_model_forward")]:
    named = re.search(rf"^ \d +{name} .*?(src/[\w/]+\.c)", text, re.M).group(1)
    truth(f"{name}_is_in_{named}", re.search(rf"^hvt_status {function}\(", (root / named).read_text(), re.M),
          f"{function}() is not defined there")

if program:
    there = texts["docs/coming-from.md"].partition("## Not here")[0]
    # What the table of other trainers says of a flag, the program says of it, too.
    both = 0
    for left, right in re.findall(r"^\| (.*?) \| (.*) \|$", there, re.M):
        for flag in re.findall(r"`(--[a-z][\w-]*)", left):
            p = subprocess.run([program[0], flag, "3", "--batch", "0"], capture_output=True, text=True) # trains in no case
            here = re.match(r"hvtrain: unknown option \S+; (?!the nearest)(.*)", p.stderr)
            here = here and here.group(1).partition("; unknown")[0]
            if not here:
                continue
            both += 1
            flags = set(re.findall(r"--[a-z][a-z-]*", here)) or {"nothing"}
            truth(f"{flag}_means_the_same_in_both", any(f in right for f in flags), f"'{here}' and '{right}'")
    truth("flags_of_others_were_found", both >= 5, f"only {both}")
sys.exit(failed)
