#!/usr/bin/env python3
"""Accelerate reads the shipped files, and `sftrun config import` knows every key of Accelerate's files.

usage: accelerate_configs.py SFTRUN
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import yaml
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import launch_command_parser

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = sorted((ROOT / "configs/accelerate").glob("*.yaml"))
# accelerate.commands.launch: the sections of a file whose keys are flags of `accelerate launch`.
SECTIONS = {"fsdp_config": ("fsdp_",), "deepspeed_config": ("deepspeed_", "zero", "offload_", "gradient_accumulation", "gradient_clipping")}
TYPES = {"fsdp_config": "FSDP", "deepspeed_config": "DEEPSPEED"}


def imported(sftrun, text):
    """Exit code, and the problems or notes."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(text)
        file.flush()
        done = subprocess.run([sftrun, "config", "import", file.name, "--from", "accelerate"], capture_output=True, text=True, timeout=60)
    return done.returncode, done.stderr


def flags():
    return [action.dest for action in launch_command_parser()._actions]


def check_shipped(sftrun):
    assert len(FILES) == 7, FILES
    for path in FILES:
        theirs = load_config_from_file(str(path))
        kind = str(getattr(theirs.distributed_type, "value", theirs.distributed_type))
        assert kind == yaml.safe_load(path.read_text())["distributed_type"], path
        done = subprocess.run([sftrun, "config", "import", path, "--json"], capture_output=True, text=True, timeout=60, check=True)
        ours = json.loads(done.stdout)
        processes = int(ours["launch"].split("--nproc-per-node ")[1].split()[0])
        assert processes * theirs.num_machines == theirs.num_processes, (path, ours["launch"])
        print(f"ok   {path.name}: {theirs.num_processes} processes, {kind}")


def check_keys(sftrun):
    unknown = []
    top = [field.name for field in dataclasses.fields(ClusterConfig)]
    assert len(top) > 25, top
    for key in top:
        if key == "distributed_type":
            continue
        _, text = imported(sftrun, f"distributed_type: 'NO'\n{key}: null\n")
        if "unknown key" in text:
            unknown.append(key)
    count = len(top)
    for section, prefixes in SECTIONS.items():
        for flag in flags():
            if not flag.startswith(prefixes):
                continue
            count += 1
            _, text = imported(sftrun, f"distributed_type: {TYPES[section]}\n{section}: {{ {flag}: null }}\n")
            if "unknown key" in text:
                unknown.append(f"{section}.{flag}")
    assert count > 50, count
    assert not unknown, f"keys of Accelerate without a rule: {unknown}"
    print(f"ok   {count} keys of Accelerate are known")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sftrun", type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    check_shipped(sftrun)
    check_keys(sftrun)
    return 0


if __name__ == "__main__":
    sys.exit(main())
