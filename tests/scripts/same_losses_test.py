#!/usr/bin/env python3
"""scripts/same_losses.py finds what differs between two builds, and nothing between a build and itself.

    tests/scripts/same_losses_test.py --build build
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CASE = "^LoRA, tied$"


def compare(before, after, only=CASE):
    """@return exit code and output"""
    result = subprocess.run([ROOT / "scripts/same_losses.py", "--before", before, "--after", after, "--only", only],
                            capture_output=True, text=True, timeout=300)
    return result.returncode, result.stdout + result.stderr


def altered(build, folder, script):
    """A build whose program is a shell script that calls that of `build` as `$program`. @return its directory"""
    program = folder / "bin" / "sftrun"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprogram='{build}/bin/sftrun'\n{script}\n")
    program.chmod(0o755)
    return folder


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    build = parser.parse_args().build.resolve()
    failures = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        rate = altered(build, folder / "rate", 'exec "$program" "$@" train.learning_rate=0.0051')
        longer = altered(build, folder / "longer", 'exec "$program" "$@" train.max_steps=5')
        broken = altered(build, folder / "broken", "echo 'error: it does not start'; exit 3")
        # One byte of the adapter; the losses are equal.
        bytes_differ = altered(build, folder / "bytes", """\
"$program" "$@" || exit
for argument; do case "$argument" in output.dir=*) printf x >>"${argument#output.dir=}/adapter/adapter_model.safetensors";; esac; done""")
        for name, after, code, words in (("itself", build, 0, "1 of 1 cases are equal"), ("another learning rate", rate, 1, "learning_rate"),
                                         ("more steps", longer, 1, "has the steps"), ("a program that fails", broken, 1, "after: exit code 3: error: it does not start"),
                                         ("another adapter", bytes_differ, 1, "bytes of adapter/adapter_model.safetensors")):
            got, output = compare(build, after)
            if got != code or words not in output:
                failures.append(f"{name}: exit code {got}, expected {code} and `{words}`:\n{output}")
    code, output = compare(build, build, only="no such case")
    if code != 2:
        failures.append(f"no case: exit code {code}, expected 2:\n{output}")
    print("\n".join(failures) or "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
