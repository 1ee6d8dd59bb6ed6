#!/usr/bin/env python3
"""test_lines.py ROOT [list]: checks the rules for every line that a run may print.

Collects the texts in src, include and cuda that are arguments of functions and macros that make messages; "list" prints
them for reading. Excludes the help of options and generated files.
"""
import pathlib
import re
import sys
import tempfile

sys.path.append(str(pathlib.Path(sys.argv[1]) / "tests/support"))
from truths import check, run_all  # noqa: E402

ROOT = pathlib.Path(sys.argv[1])
# Those of errors and of log lines; then those of parts of a line, which hold other texts, too.
WHOLE = {"HVT_FAIL", "HVT_CHECK", "HVT_CHECK_OR", "HVT_WARN", "HVT_INFO", "HVT_ERROR", "HVT_DEBUG", "hvt__fail",
         "hvt__report_print", "hvt__print_line", "say", "EXPECT", "NVCHECK"}
PARTS = {"snprintf", "HVT_GIVEN", "meant", "ask", "refuse", "misfit", "note"}
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|(?P<text>(?:L|u8)?"(?:[^"\\\n]|\\.)*")|\'(?:[^\'\\\n]|\\.)+\'|(?P<name>[A-Za-z_]\w*)|(?P<mark>\S)', re.S)
FORMAT = re.compile(r"PR[idux]\d+|PRI?\w+")
HELP = {"src/train/cli/help.c", "src/train/report/timeline.c"}  # --help, and JSON


def texts_of(source):
    """(line, the call that the text is an argument of or "", the text) of each literal, adjacent ones joined."""
    calls, name, parts, start = [], "", [], 0
    macro = re.sub(r"^[ \t]*#[ \t]*include.*$", "", source, flags=re.M)
    for m in TOKEN.finditer(macro):
        if m.group("text"):
            if not parts:
                start = macro.count("\n", 0, m.start()) + 1
            parts.append(m.group("text")[1:-1])
            continue
        if m.group("name"):
            name = m.group("name")
            if parts and FORMAT.fullmatch(name):
                parts.append("d")
                continue
        if not m.group("name") and not m.group("mark"):
            continue  # a comment
        if parts:
            yield start, next((c for c in reversed(calls) if c in WHOLE | PARTS), calls[-1] if calls else ""), "".join(parts)
            parts = []
        if m.group("mark") == "(":
            calls.append(name)
        elif m.group("mark") == ")" and calls:
            calls.pop()
        elif m.group("mark") == ";" or m.group("mark") == "{" and len(calls) > 20:
            calls = []
        if m.group("mark"):
            name = ""


def messages():
    for folder in "src", "include", "cuda":
        for path in sorted((ROOT / folder).rglob("*")):
            file = str(path.relative_to(ROOT))
            if path.suffix not in (".c", ".h", ".cu") or file in HELP:
                continue
            for line, call, text in texts_of(path.read_text()):
                if " " in text.strip() and re.search("[a-z]{2}", text) and call not in ("json_pack", "json_unpack", "sscanf", "G", "X"):
                    yield f"{file}:{line}", call, text.replace('\\"', '"').replace("\\n", "\n").strip("\n")


ALL = list(messages())
LINES = [(where, text) for where, call, text in ALL if call in WHOLE]
ANY = [(where, text) for where, call, text in ALL]


def no_line(pattern, lines, why, flags=0):
    found = [(where, text) for where, text in lines if re.search(pattern, text, flags)]
    check(not found, why + ":", *(f"\n      {where}: {text}" for where, text in found))


def lines_are_found():
    found = {call: sum(c == call for _, c, _ in ALL) for call in ("HVT_CHECK", "HVT_FAIL", "HVT_WARN", "HVT_INFO", "hvt__report_print")}
    check(all(n > 10 for n in found.values()) and len(ALL) > 1000, found, len(ALL))


def no_line_has_an_internal_name():
    no_line(r"hvt__|HVT__|_impl\b", ANY, "internal names")


def words_are_those_of_the_field():
    for words in (r"\bas ever\b", r"\bcomes? to\b", r"\bgo(?:es)? on with\b", r"\bis of\b", r"\ball of it but\b", r"\bthere is no (?:flag|option)\b",
                  r"(?:^|; )here: ", r"^(?:Of|What|Whose|In which)\b", r"\btold\b", r"\bwants?\b", r"\bnobody\b",
                  r"\bwhat is there is\b", r"\bof late\b", r"\bby itself\b"):
        no_line(words, ANY, words)


def did_you_mean_is_asked_in_one_place():
    found = [where for where, text in ANY if "did you mean" in text]
    check(len(found) == 1 and "hints.c" in found[0], found)


def lines_are_statements_without_a_full_stop():
    no_line(r"[a-z)]\.$|!$", LINES, "a full stop")
    no_line(r"\?$", [(w, t) for w, t in LINES if "did you mean" not in t and not w.startswith("cuda/")], "a question")
    no_line(r"(?<=\S)  (?=\S)", [(w, t) for w, t in LINES if not re.match(r"%s  |  |%-|sums|bucket|%s \(%s\)|next: | --val-split", t)], "two blanks")
    no_line(r"^\W*[A-Z][a-z]+ [a-z]", [(w, t) for w, t in LINES if not re.match(r"Pillow|Python|Ne", t)], "a capital at the start")


OTHERS = set("""--mpi --bind-to --map-by --host --hostfile --gpus-per-node --gpu-bind --allow-run-as-root --oversubscribe --ntasks
--cpus-per-task --signal --mca --exclusive --mem --cpu-bind --name --shm-size""".split())


def options_that_lines_name_exist():
    """Of hvtrain, mpirun or srun: an advice that is followed must be accepted."""
    table = (ROOT / "include/hvt/train.h").read_text()
    ours = {"--" + name.replace("_", "-") for name in re.findall(r"^    X\(\w+, (\w+),", table, re.M)} | {"--help", "--version"}
    for where, text in ANY:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*[a-z0-9]", text):
            known = flag in ours | OTHERS or flag.startswith("--no-") and "--" + flag[5:] in ours
            check(known, f"{where}: {flag} is no option: {text}")
    check(len(ours) > 60)


def numbers_have_their_words():
    no_line(r"%(?:d|u|zu|lld|ld) [a-z]+\(s\)", ANY, "(s) instead of a plural")


def lines_are_not_too_long():
    found = [(where, len(text.split())) for where, text in LINES if len(text.split()) > 48 and "python3 -c" not in text]
    check(not found, "more than 48 words:", found)


def only_whole_lines_are_written():
    """stdout and stderr get lines from hvt__print_line() and what is built on it; help alone is no line."""
    for path in sorted((ROOT / "src").rglob("*.c")) + sorted((ROOT / "cuda").rglob("*.c")):
        code = re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(), flags=re.S)
        for call in re.findall(r"\b(?:printf|puts|putchar|perror|vprintf)\(|\bf(?:printf|puts|putc)\([^;]*?\bstd(?:out|err)\b", code):
            check((path.name, call) == ("hvtrain.c", "fputs(text, stdout"), f"{path.relative_to(ROOT)}: {call}")
    check(True)


if "list" in sys.argv[2:]:
    for where, call, text in ALL:
        print(f"{where}: {call}: {text}")
    sys.exit()
run_all([lines_are_found, no_line_has_an_internal_name, words_are_those_of_the_field, did_you_mean_is_asked_in_one_place,
         lines_are_statements_without_a_full_stop, options_that_lines_name_exist, numbers_have_their_words, lines_are_not_too_long, only_whole_lines_are_written],
        sys.argv[2:], tempfile.mkdtemp())
