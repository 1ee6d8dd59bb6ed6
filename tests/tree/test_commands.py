#!/usr/bin/env python3
"""test_commands.py HVTRAIN MPIRUN ROOT [NAME ...]: the commands in README.md and docs/ work as they are written there.

Every line of a ```sh block that runs hvtrain is run, one page after the other in a folder of its own, with options
appended that make it short: few images, one update, the smallest model. A line whose comment begins with a word of CANNOT_RUN is not run: its options are only
parsed. So are those of lines that name CIFAR-10 if HVT_TEST_CIFAR10 does not say where it is, and of all lines if
MPIRUN is "none", since lines use the files of those before.
"""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

sys.path.append(os.path.join(sys.path[0], "../support"))
from hvtrain import HERE, HVTRAIN, MPIRUN, environment, records
from truths import Skip, check, run_all

ROOT = Path(sys.argv[3]).resolve()
CIFAR10 = os.environ.get("HVT_TEST_CIFAR10", "")
CANNOT_RUN = ("two hosts", "GPU", "SLURM", "pretrained weights")
OF_OTHERS = {"--allow-run-as-root", "--bind-to", "--libdir", "--gpu-bind", "--kill-on-bad-exit", "--map-by", "--mca", "--mpi",
             "--oversubscribe", "--host", "--hostfile", "--signal", "--suite",
             "--prefix", "--shm-size", "--static", "--libs", "--variable"}
PAGES = {p.relative_to(ROOT).as_posix(): p.read_text() for p in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]}


def folder_of(page):
    """Where its commands run: a build folder, as far as they can tell."""
    folder = Path(HERE) / page.replace("/", "-")
    if not folder.exists():
        folder.mkdir()
        (folder / "hvtrain").symlink_to(HVTRAIN)
    return folder


def launched(words):
    """With what this machine's mpirun needs besides."""
    root = ["--allow-run-as-root"] if os.getuid() == 0 else []
    bind = [] if "--bind-to" in words else ["--bind-to", "none"]
    return [MPIRUN, *root, "--oversubscribe", *bind, "--mca", "mpi_yield_when_idle", "1", *words[1:]]


def run(words, folder):
    """Exit code, stdout and stderr of a command."""
    words = launched(words) if words[0] == "mpirun" else words
    try:
        done = subprocess.run(words, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              env=environment(1), timeout=60)
    except subprocess.TimeoutExpired:
        return None, "", "it takes more than 60 s"
    return done.returncode, done.stdout, done.stderr


def options_of(words):
    """What hvtrain is given by this command line; None: it does not run hvtrain."""
    for i, word in enumerate(words if words[:1] != ["spack"] else []):
        if word in ("./hvtrain", "hvtrain") or word.endswith(".sbatch"):
            return words[i + 1:]
    return None


def check_options(words):
    rc, out, err = run([HVTRAIN, *options_of(words), "--version"], HERE)
    check(rc == 0 and out.startswith("hvtrain "), " ".join(words), err)


def shortened(words):
    """The same command on a few images; None: its data are not here."""
    if "tune" in words and "lr" not in words:
        seconds = words.index("tune") + 2
        words = words[:seconds] + ["1"] + words[seconds:]
        more = ["--samples", "64"]
    elif "check" in words:  # on a machine that may starve a rank
        more = ["--stall-abort", "100s"]
    elif "--target" in words:  # a network that no page makes
        return None
    elif "cifar10" in words:
        if not CIFAR10:
            return None
        words = [CIFAR10 if before == "--data-dir" else word for before, word in zip([""] + words, words)]
        more = ["--limit", "64", "--steps", "1"]
    elif {"pack", "folder", "tar", "npy", "resnet18.safetensors"} & set(words):
        return None
    else:
        more = ["--samples", "64", "--steps", "1"] + ["--size", "8"] * ("lr" in words)  # its steps are a hundred
    if "--model" in words:
        more += ["--model", "resnet20"]
    return words + more + ["--batch", "8", "--threads", "2" if "--split" in words else "1"]


def lines_of(text):
    """(words, comment) of each command of the page's sh blocks that runs hvtrain."""
    for block in re.findall(r"^```sh\n(.*?)^```", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, comment = line.partition(" #")
            words = shlex.split(command)
            if options_of(words) is not None:
                yield words, comment.strip()


def the_commands_of(page):
    def truth():
        folder = folder_of(page)
        for words, comment in lines_of(PAGES[page]):
            short = shortened(words)
            if comment.startswith(CANNOT_RUN) or short is None or not MPIRUN:
                check_options(words)
                continue
            check(words[0] in ("mpirun", "./hvtrain"), "how is this to be run?", " ".join(words))
            rc, _, err = run(short, folder)
            check(rc == 0, f"exit {rc} of", " ".join(words), err[-500:])
    truth.__name__ = "the_commands_work_of_" + page
    return truth


def options_in_running_text_are_known():
    known = set(re.findall(r"--[a-z][a-z0-9-]*", run([HVTRAIN, "--help", "all"], HERE)[1])) | OF_OTHERS | {"--write"}
    spans = [(page, span) for page, text in PAGES.items() if page != "docs/coming-from.md"
             for span in re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))]
    for page, span in spans:
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", span):
            check(flag in known or flag.replace("--no-", "--") in known, f"{page}: `{span}`: {flag} is no option")
    commands = [(page, span) for page, span in spans if re.search(r"(^| )(\./)?hvtrain .*--", span)]
    for row in re.findall(r"^\|.*\|(.*)\|$", PAGES["docs/coming-from.md"].partition("## Not here")[0], re.M):
        commands += [("docs/coming-from.md", span) for span in re.findall(r"`(.*?)`", row)
                     if span.startswith("--") or "hvtrain" in span]
    check(len(commands) > 20, "only", commands)
    for page, span in commands:
        words = shlex.split(span)
        check_options(["hvtrain", *words] if words[0].startswith("--") else words)


def the_log_has_the_fields_that_docs_name():
    if not MPIRUN:
        raise Skip("no mpirun")
    rc, _, err = run("mpirun -np 2 ./hvtrain --comm mpi --batch 2 --samples 200 --epochs 1 --print-freq 1 --threads 1"
                     " --log log".split(), folder_of("docs/log-format.md"))
    check(rc == 0, err[-500:])
    text = PAGES["docs/log-format.md"]
    rows = {cells[0].strip(" `"): cells[-1] for cells in (line.strip("| ").split(" | ") for line in text.splitlines()
                                                           if line.startswith("| "))}
    of_start = re.search(r"^Fields of `start`:\n(.*?)^[A-Z]", text, re.S | re.M).group(1)
    of_time = re.search(r"^## Where the time goes\n(.*)", text, re.S | re.M).group(1)
    named = lambda part: set(re.findall(r"\w+", " ".join(re.findall(r"`(.*?)`", part))))
    kinds = {}
    of_all = re.search(r"^Every record has (.*?)^$", text, re.S | re.M).group(1)
    check({"record", "time"} <= named(of_all), named(of_all))
    for record in records(folder_of("docs/log-format.md") / "log"):
        check(record.pop("time") > 0, record)
        kinds.setdefault(record.pop("record"), set()).update(record)
    check(set(kinds) == {"start", "step", "epoch", "eval", "end"}, sorted(kinds))
    for kind, fields in kinds.items():
        where = {"start": of_start, "epoch": rows["epoch"] + of_time}.get(kind, rows[kind])
        check(fields <= named(where), f"{kind}: docs do not name", sorted(fields - named(where)))
    firsts = named(" ".join(re.findall(r"^\| (`.*?`) \|", of_start, re.M)))
    for kind, wanted in [("start", firsts), *((k, named(rows[k])) for k in kinds if k != "start")]:
        check(wanted <= kinds[kind], f"{kind}: the log does not have", sorted(wanted - kinds[kind]))


run_all([the_commands_of(page) for page in PAGES if any(lines_of(PAGES[page]))] +
        [options_in_running_text_are_known, the_log_has_the_fields_that_docs_name], sys.argv[4:], HERE)
