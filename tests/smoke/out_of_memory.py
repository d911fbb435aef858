#!/usr/bin/env python3
"""A run that gets no memory ends with exit code 4 and names the cheapest change that fits. Standard library only.

    tests/smoke/out_of_memory.py --sftrun build/bin/sftrun

The address space of the run is limited, so that the first layers of a large micro-batch get no memory. The change that the error names must be
overrides that `sftrun memory-check` accepts, and with which it plans less memory.

With automatic sizes the run starts once more with half the micro-batch, before its first step. With sizes of the user it ends there.
"""

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import memory_plan  # noqa: E402

ADDRESS_SPACE = 2_400_000_000  # of a process; the micro-batch would take sixteen times as much
OUT_OF_MEMORY = 4
# Of the second model micro-batches of 3 take 1.2 GB, those of 1 a third of it: they fit into 1.9 GB and into less than 1 GB.
WIDE = {"hidden_size": 32, "intermediate_size": 8192, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
SPACE_FOR_ONE = 1_450_000_000


class Runs:
    """Runs of a model in a folder, with one thread."""

    def __init__(self, program: Path, folder: Path, sizes: dict, train: dict):
        self.program, self.folder = program, folder
        memory_plan.write_model(folder / "model", sizes)
        (folder / "texts.jsonl").write_text((json.dumps({"text": "1" * 3000}) + "\n") * 192)
        (folder / "run.yaml").write_text(json.dumps({
            "model": {"name": "model", "dtype": "fp32", "max_seq_len": 2048}, "data": {"train": "texts.jsonl", "format": "text", "cache_dir": "none"},
            "train": {"max_steps": 1, "save_every": "0", **train}, "output": {"tensorboard": False}}))

    def sftrun(self, *words, space=None):
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (space, space))) if space else None
        return subprocess.run([self.program, *words], cwd=self.folder, capture_output=True, text=True, timeout=200, preexec_fn=limit,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})

    def train(self, space, *overrides):
        return self.sftrun("train", "--config", "run.yaml", "--device", "cpu", *overrides, space=space)

    def planned(self, *overrides):
        return json.loads(self.sftrun("memory-check", "--config", "run.yaml", "--device", "cpu", "--json", *overrides).stdout)["peak_bytes"]


def names_a_change_that_helps(program: Path, folder: Path) -> bool:
    runs = Runs(program, folder, {}, {"batch_size": 256, "grad_accum": 1})
    ended = runs.train(ADDRESS_SPACE)
    named = re.search(r"error: out of memory.*\n(?:.*\n)*?.*fix: the cheapest change that fits by the plan: ([^(]+) \(", ended.stderr)
    if ended.returncode != OUT_OF_MEMORY or not named:
        print(f"exit code {ended.returncode}, not {OUT_OF_MEMORY} with a change that fits:\n{ended.stderr[-3000:]}")
        return False
    before, after = runs.planned(), runs.planned(*named[1].split())
    print(f"out of memory: `{named[1]}` plans {after / before:.2f} of {before / 1e9:.1f} GB")
    return after <= 0.9 * before


def starts_smaller(program: Path, folder: Path) -> bool:
    runs = Runs(program, folder, WIDE, {"longest_batch_first": "on", "global_batch_size": 3})
    notice = "starts again with train.batch_size 1 and train.grad_accum 3 (before 3 and 1), the same 3 per step"
    ended = runs.train(SPACE_FOR_ONE)
    report = folder / "runs/run/run.json"
    if ended.returncode != 0 or notice not in ended.stderr or json.loads(report.read_text())["status"] != "done":
        print(f"exit code {ended.returncode}, not a run that starts again and ends:\n{ended.stderr[-3000:]}")
        return False
    given = runs.train(SPACE_FOR_ONE, "train.batch_size=3", "output.dir=given")
    is_refused = given.returncode == OUT_OF_MEMORY and "at   the longest micro-batch, before the first step" in given.stderr
    if not is_refused or (folder / "given/metrics.jsonl").stat().st_size > 0:
        print(f"exit code {given.returncode}, not {OUT_OF_MEMORY} before the first step:\n{given.stderr[-3000:]}")
        return False
    print("the longest micro-batch did not fit: automatic sizes were halved, those of the user kept")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    program = parser.parse_args().sftrun.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        checks = [check(program, Path(temporary) / check.__name__) for check in (names_a_change_that_helps, starts_smaller)]
    return 0 if all(checks) else 1


if __name__ == "__main__":
    sys.exit(main())
