#!/usr/bin/env python3
"""How many files under src and include an addition touches: applies a patch with a toy of each kind to a copy of the tree, and counts.

    tests/additions/count.py                    # the table; fails where a patch does not apply, or touches more files than its goal
    tests/additions/count.py --build build      # also compiles the tree with all patches, with the settings of that build, and runs the toys

A patch that does not apply any more is made again: apply it with `git apply --reject`, repair it, and write `git diff` over it.
Needs git and Python's standard library.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATCHES = pathlib.Path(__file__).resolve().parent
COPIED = ("CMakeLists.txt", "bench", "cmake", "configs", "include", "scripts", "src", "tests")
# Kind of addition: goal in files, and the tests of its toy as {target: filter}. Of the program: command lines with what they print.
KINDS = {
    "strategy": (1, {"config_tests": "HybridToy*", "plan_tests": "HybridToy*", "program": {
        "train --config {tree}/tests/config/hybrid_toy.yaml --device cpu --nproc-per-node 4 output.dir={scratch}/run": "5.0732 at step 2"}}),
    "optimizer": (3, {"config_tests": "SgdToy*", "engine_tests": "SgdToy*:*OptimizerRows*sgd_toy"}),
    "objective": (4, {"config_tests": "HingeToy*", "engine_tests": "HingeToy*:Objective.EntriesDoWhatTheirRowsSay"}),
    "mixer": (5, {"engine_tests": "MeanToy*"}),
    "quant_format": (5, {"config_tests": "Int4Toy*", "engine_tests": "Int4Toy*:Quant.*"}),
    "record_format": (3, {"config_tests": "QuestionToy*", "data_tests": "QuestionToy*"}),
    "reward": (3, {"reward_tests": "VowelsToy*"}),
    "cuda_operation": (4, {"engine_tests": "SquareToy*", "cuda_kernel_tests": "*CudaSquareToy*"}),
    "command": (4, {"app_tests": "Requests.*", "program": {
        "count-toy --model tests/data/models/tied-gqa --device cpu --dtype fp32 --json": '"dtype":"fp32"',
        "count-toy --model tests/data/models/tied-gqa --device cpu --as-stored": "--as-stored has no effect in `sftrun count-toy`",
        "tally": "did you mean `sftrun count-toy`?"}}),
}


def git_apply(folder, patch, *options):
    """In a folder that belongs to no repository: otherwise git leaves out the paths outside of it."""
    return subprocess.run(["git", "apply", *options, patch], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.parent)})


def touched(patch):
    """(lines added, path) of each file."""
    lines = subprocess.run(["git", "apply", "--numstat", patch], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    return [(int(added), path) for added, _, path in (line.split("\t") for line in lines)]


def problem_of(patch, files):
    """Applies it to a copy of the files that it touches."""
    with tempfile.TemporaryDirectory() as folder:
        for _, path in files:
            if (ROOT / path).exists():
                (pathlib.Path(folder) / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / path, pathlib.Path(folder) / path)
        return git_apply(pathlib.Path(folder), patch).stderr


def counted(kind):
    """Prints the row of a kind.   -> whether it is as it should be"""
    goal, _ = KINDS[kind]
    patch = PATCHES / f"{kind}.patch"
    files = touched(patch)
    counts = [(added, path) for added, path in files if path.split("/")[0] in ("src", "include")]
    print(f"{kind:16} {len(counts):5} {goal:5} {sum(added for added, _ in counts):6}   {', '.join(path for _, path in counts)}")
    problem = problem_of(patch, files)
    if problem:
        print(f"error: {patch.relative_to(ROOT)} does not apply:\n{problem}")
    if len(counts) > goal:
        print(f"error: an addition of the kind {kind} touches {len(counts)} files, and the goal is {goal}")
    return not problem and len(counts) <= goal


def settings_of(build):
    """The variables of a configured build that decide what is compiled and how."""
    for line in (build / "CMakeCache.txt").read_text().splitlines():
        name = line.partition(":")[0]
        if name in ("CMAKE_BUILD_TYPE", "CMAKE_CXX_COMPILER", "CMAKE_CXX_COMPILER_LAUNCHER") or name.startswith("SFTRUN_"):
            yield "-D" + line
    yield "-DSFTRUN_BUILD_CUDA=OFF"


def run_toys(build):
    """Compiles a copy of the tree with all patches, and runs the tests of their toys."""
    tree, out = build / "additions" / "tree", build / "additions" / "build"
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in COPIED:  # with their times: the next build compiles what has changed
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, tree / name)
    for kind in KINDS:
        problem = git_apply(tree, PATCHES / f"{kind}.patch").stderr
        if problem:
            raise SystemExit(f"error: {kind}.patch does not apply beside the others:\n{problem}")
    targets = sorted({target for _, tests in KINDS.values() for target in tests})
    subprocess.run(["cmake", "-S", tree, "-B", out, "-G", "Ninja", *settings_of(build)], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", out, "--target", *targets], check=True)
    for kind, (_, tests) in KINDS.items():
        for target, names in tests.items():
            if target == "program":
                run_program(out / "bin" / "sftrun", names, tree)
                continue
            print(f"{kind}: {target} {names}", flush=True)
            ran = subprocess.run([out / "bin" / target, f"--gtest_filter={names}"], capture_output=True, text=True)
            if ran.returncode or "[  PASSED  ] 0 tests" in ran.stdout:
                raise SystemExit(ran.stdout + ran.stderr + f"error: the toy of {kind} does not work")


def run_program(sftrun, lines, tree):
    """@param lines {command line: part of what it must print}; {tree} is the folder with the patches, {scratch} an empty one"""
    for line, expected in lines.items():
        print(f"sftrun {line}", flush=True)
        with tempfile.TemporaryDirectory() as scratch:
            ran = subprocess.run([sftrun, *line.format(tree=tree, scratch=scratch).split()], cwd=ROOT, capture_output=True, text=True)
        if expected not in ran.stdout + ran.stderr:
            raise SystemExit(ran.stdout + ran.stderr + f"error: `sftrun {line}` does not print {expected}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, help="a configured build, whose settings are used")
    options = parser.parse_args()
    patches = {path.stem for path in PATCHES.glob("*.patch")}
    if patches != set(KINDS):
        raise SystemExit(f"error: patches and kinds differ: {', '.join(sorted(patches ^ set(KINDS)))}")
    print(f"{'addition':16} {'files':>5} {'goal':>5} {'lines':>6}")
    results = [counted(kind) for kind in KINDS]
    if not all(results):
        return 1
    if options.build:
        run_toys(options.build.resolve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
