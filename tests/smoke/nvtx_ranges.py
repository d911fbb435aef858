#!/usr/bin/env python3
"""A tool that listens to NVTX (tests/kernels/nvtx_listener.cpp, loaded as Nsight Systems is) gets the ranges of a run. Standard library only.

    tests/smoke/nvtx_ranges.py --sftrun build/bin/sftrun --listener build/…/libnvtx_listener.so

Two ranks train 3 steps, without --profile. Checked, for each rank: every range ends, in the reverse order of the begins of its thread; each
step has its parts, layers and operations inside it, and the waits for the other rank. The losses are those of a run without a tool, to the
bit. Exit code 1: something else.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

STEPS = 3
IN_EVERY_STEP = {"data loader", "forward", "backward", "optimizer", "embedding", "layer 0", "layer 1", "head", "attention_forward",
                 "attention_backward", "adamw", "metrics", "wait: all_reduce"}


def train(program: Path, scratch: Path, name: str, environment: dict[str, str]) -> list[float]:
    config = scratch / f"{name}.yaml"
    config.write_text(json.dumps({
        "model": {"name": str(scratch / "models/wide"), "dtype": "fp32"}, "tuning": {"mode": "lora"},
        "data": {"train": str(scratch / "texts.jsonl"), "packing": False},
        "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": 2}, "output": {"dir": str(scratch / name)}}))
    done = subprocess.run([str(program), "train", "--config", str(config), "--device", "cpu", "--nproc-per-node", "2"],
                          env=os.environ | environment, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr)
    return [json.loads(line)["loss"] for line in (scratch / name / "metrics.jsonl").read_text().splitlines()]


def check_calls(path: Path) -> list[str]:
    """What a process has told the tool."""
    lines = path.read_text().splitlines()
    if lines.count("domain sftrun") != 1:
        return [f"{path.name}: domains {[line for line in lines if line.startswith('domain')]}"]
    open_ranges, inside = collections.defaultdict(list), {}
    for line in lines:
        call, _, rest = line.partition(" ")
        thread, _, name = rest.partition(" ")
        ranges = open_ranges[thread]
        if call == "push":
            ranges.append(name)
            if name.startswith("step "):
                inside[name] = set()
            elif ranges[0].startswith("step "):
                inside[ranges[0]].add(name)
        elif call == "pop":
            if not ranges:
                return [f"{path.name}: a range ends that has not begun"]
            ranges.pop()
    wrong = [f"{path.name}: never ended: {ranges}" for ranges in open_ranges.values() if ranges]
    if list(inside) != [f"step {n}" for n in range(1, STEPS + 1)]:
        wrong.append(f"{path.name}: steps {list(inside)}")
    return wrong + [f"{path.name}: {step} lacks {IN_EVERY_STEP - names}" for step, names in inside.items() if not IN_EVERY_STEP <= names]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--listener", type=Path, required=True)
    options = parser.parse_args()
    program = options.sftrun.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        same_losses.write_inputs(scratch)
        without = train(program, scratch, "without", {})
        heard = train(program, scratch, "heard", {"NVTX_INJECTION64_PATH": str(options.listener.resolve()),
                                                  "NVTX_LISTENER_OUTPUT": str(scratch / "calls")})
        wrong = [] if heard == without else [f"losses {heard} with a tool, {without} without"]
        calls = sorted(scratch.glob("calls.*"))
        if len(calls) != 2:  # the ranks; the launcher has no ranges
            wrong.append(f"{len(calls)} processes have told the tool of ranges")
        for path in calls:
            wrong += check_calls(path)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
