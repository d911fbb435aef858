#!/usr/bin/env python3
"""Profiles steps of small runs, and reads what `sftrun train --profile` writes. Standard library only.

    tests/smoke/profiled_steps.py --sftrun build/bin/sftrun

Runs with one process and with two train 5 steps and profile steps 2 to 4. Checked:
- losses and weights are those of the run without a profile, to the bit
- every rank's trace is JSON with the ranges of the three steps and of no other, in each of them the passes, layers, operations and, with two
  ranks, waits; ranges inside others end before them
- the page of each rank has the parts of a step; their times add up to the steps'
- a step that is not there is warned of; what is no range is one error
Exit code 1: something else.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

STEPS = 5


def train(program: Path, scratch: Path, name: str, processes: int, *flags: str) -> subprocess.CompletedProcess:
    config = scratch / f"{name}.yaml"
    config.write_text(json.dumps({
        "model": {"name": str(scratch / "models/wide"), "dtype": "fp32"}, "tuning": {"mode": "lora"},
        "data": {"train": str(scratch / "texts.jsonl"), "packing": False},
        "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": 2}, "output": {"dir": str(scratch / name)}}))
    return subprocess.run([str(part) for part in (program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", processes, *flags)],
                          capture_output=True, text=True, timeout=120)


def check_trace(path: Path, processes: int) -> list[str]:
    events = [event for event in json.loads(path.read_text())["traceEvents"] if event.get("ph") == "X"]
    steps = sorted((event for event in events if re.fullmatch(r"step \d+", event["name"])), key=lambda event: event["ts"])
    if [step["name"] for step in steps] != ["step 2", "step 3", "step 4"]:
        return [f"{path}: steps {[step['name'] for step in steps]}"]
    wrong = []
    for step in steps:
        names = [event["name"] for event in events
                 if step["ts"] <= event["ts"] and event["ts"] + event["dur"] <= step["ts"] + step["dur"]]
        expected = ["data loader", "forward", "backward", "optimizer", "embedding", "layer 0", "layer 1", "head", "attention_forward",
                    "attention_backward", "adamw", "metrics"]
        missing = [name for name in expected if name not in names]
        waits = [name for name in names if name.startswith("wait: ")]
        if missing or bool(waits) != (processes > 1) or names.count("forward") != 2:
            wrong.append(f"{path}, {step['name']}: lacks {missing}; waits {waits}; {names.count('forward')} forward passes")
    return wrong


def check_page(path: Path) -> list[str]:
    text = path.read_text()
    seconds = float(re.match(r"3 steps of rank \d, (\S+) seconds each\n", text)[1])
    parts = text.split("\npart of a step")[1].split("\n\n")[0].splitlines()[1:]
    total = sum(float(line.split()[-2]) for line in parts)
    names = " ".join(parts)
    complete = all(name in names for name in ("forward", "backward", "optimizer", "data loader"))
    return [] if complete and abs(total - 3 * seconds) < 0.01 * total + 0.001 else [f"{path}: the parts make {total} of 3 x {seconds} s:\n{text}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    program, wrong = parser.parse_args().sftrun.resolve(), []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        same_losses.write_inputs(scratch)
        for processes in (1, 2):
            without, profiled = f"plain-{processes}", f"profiled-{processes}"
            runs = [train(program, scratch, without, processes), train(program, scratch, profiled, processes, "--profile", "2-4")]
            if any(run.returncode != 0 for run in runs):
                raise SystemExit("\n".join(run.stderr for run in runs))
            weights = [(scratch / name / "adapter/adapter_model.safetensors").read_bytes() for name in (without, profiled)]
            if weights[0] != weights[1]:
                wrong.append(f"{processes} processes: the profiled run has other weights")
            folder = scratch / profiled / "profile"
            if "profile of steps 2 to 4" not in runs[1].stderr or len(list(folder.iterdir())) != 2 * processes:
                wrong.append(f"{processes} processes: {list(folder.iterdir())}: {runs[1].stderr}")
            for rank in range(processes):
                wrong += check_trace(folder / f"rank-{rank}.json", processes) + check_page(folder / f"rank-{rank}.txt")
        late = train(program, scratch, "late", 1, "--profile", "5-9")
        if late.returncode != 0 or "this start of the run has steps 1 to 5" not in late.stderr or "profile of step 5:" not in late.stderr:
            wrong.append(f"5-9: {late.stderr}")
        bad = train(program, scratch, "bad", 1, "--profile", "4-2")
        if bad.returncode != 2 or "`4-2` is neither a step nor a range of steps" not in bad.stderr:
            wrong.append(f"4-2: {bad.returncode}: {bad.stderr}")
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
