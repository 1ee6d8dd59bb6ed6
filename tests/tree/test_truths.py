#!/usr/bin/env python3
"""truths.py itself: the exit code of a program whose truths hold, fail, are skipped, or check nothing."""
import os
import subprocess
import sys
import tempfile

SUPPORT = os.path.join(sys.path[0], "../support")
sys.path.append(SUPPORT)
from truths import check, run_all

PROGRAM = """
import sys, tempfile
from truths import Skip, check, run_all
def holds(): check(True)
def fails(): check(False, "on purpose")
def checks_nothing(): pass
def is_skipped(): raise Skip("on purpose")
run_all([globals()[name] for name in sys.argv[1:]], [], tempfile.mkdtemp())
"""


def exit_code(*names):
    return subprocess.run([sys.executable, "-c", PROGRAM, *names], stdout=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": SUPPORT}).returncode


def a_truth_that_checks_nothing_has_failed():
    check(exit_code("holds", "holds") == 0, "two that hold")
    check(exit_code("holds", "fails") == 1, "one that fails")
    check(exit_code("holds", "checks_nothing") == 1, "one that checks nothing, behind one that holds")
    check(exit_code("checks_nothing", "holds") == 1, "one that checks nothing, before one that holds")


def a_truth_that_is_skipped_has_neither_passed_nor_failed():
    check(exit_code("is_skipped", "is_skipped") == 77, "none has run")
    check(exit_code("is_skipped", "holds") == 0, "one has run")
    check(exit_code("is_skipped", "fails") == 1, "one has failed")


run_all([a_truth_that_checks_nothing_has_failed, a_truth_that_is_skipped_has_neither_passed_nor_failed], [],
        tempfile.mkdtemp())
