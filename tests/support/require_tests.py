#!/usr/bin/env python3
"""Fails if a test that CI requires was skipped or is not there. `make test` runs it after ctest.

    ctest --test-dir build --output-junit tests.xml; tests/support/require_tests.py build/tests.xml

Tests may be skipped where something is not installed (the reference environment, mpirun, Go). On a machine that
`scripts/bootstrap.sh --reference` has set up, everything that these tests need is there.
"""

import argparse
import os
import platform
import pathlib
import sys
import xml.etree.ElementTree

PARITY = ["added_tokens", "adamw_8bit", "converted", "demo_model", "demo_vision", "eval", "families", "features", "generation", "gguf_export", "huggingface_hub", "images",
          "lora_variants", "mmproj", "null_content", "ollama", "optimizers", "qlora", "random_chats", "records", "released_shapes", "templates",
          "tensorboard", "theworld", "tokenizers", "trackers", "training", "vision"]
SMOKE = ["bad_input", "broken_runs", "configs", "damaged_files", "data_sets", "examples", "generation", "hostile_input", "hub_models", "inference", "merging",
         "random_kills", "terminal_view", "torchrun", "toy", "two_processes"]
AS_ROOT = ["smoke.mpirun", "smoke.slurm"]  # only root can install and start them
if platform.freedesktop_os_release()["ID"] == "debian":
    AS_ROOT.append("smoke.report_page")  # elsewhere bootstrap.sh installs no browser
REQUIRED = [*(f"parity.{name}" for name in PARITY), *(f"smoke.{name}" for name in SMOKE), "app.command_line", "hub.downloads", "python.examples", "python.runs",
            "scripts.same_losses", *(AS_ROOT if os.geteuid() == 0 else [])]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path, help="the file that `ctest --output-junit` wrote")
    cases = {case.get("name"): case for case in xml.etree.ElementTree.parse(parser.parse_args().report).iter("testcase")}
    problems = []
    for name in REQUIRED:
        if name not in cases:
            problems.append(f"{name}: there is no such test in this build")
        elif cases[name].get("status") not in ("run", "fail"):  # ctest has reported those that failed
            output = (cases[name].findtext("system-out") or "").strip().splitlines()
            problems.append(f"{name}: {output[-1] if output else cases[name].get('status')}")
    for problem in problems:
        print(f"required test did not run: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
