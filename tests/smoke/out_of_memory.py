#!/usr/bin/env python3
"""A run that gets no memory ends with exit code 4 and names the cheapest change that fits. Standard library only.

    tests/smoke/out_of_memory.py --sftrun build/bin/sftrun

The address space of the run is limited, so that the first layers of a large micro-batch get no memory. The change that the error names must be
overrides that `sftrun memory-check` accepts, and with which it plans less memory.
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

ADDRESS_SPACE = 2_400_000_000  # of a process; LibTorch takes more than half of it, the micro-batch would take ten times as much
OUT_OF_MEMORY = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    program = parser.parse_args().sftrun.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        memory_plan.write_model(folder / "model", {})
        (folder / "texts.jsonl").write_text((json.dumps({"text": "1" * 3000}) + "\n") * 64)
        (folder / "run.yaml").write_text(json.dumps({
            "model": {"name": "model", "dtype": "fp32", "max_seq_len": 2048}, "data": {"train": "texts.jsonl", "format": "text", "cache_dir": "none"},
            "train": {"max_steps": 1, "batch_size": 64, "grad_accum": 1, "save_every": "0"}, "output": {"tensorboard": False}}))

        def sftrun(*words, limited=False):
            limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))) if limited else None
            return subprocess.run([program, *words], cwd=folder, capture_output=True, text=True, timeout=200, preexec_fn=limit,
                                  env={**os.environ, "OMP_NUM_THREADS": "1"})

        def planned(*overrides):
            return json.loads(sftrun("memory-check", "--config", "run.yaml", "--device", "cpu", "--json", *overrides).stdout)["peak_bytes"]

        ended = sftrun("train", "--config", "run.yaml", "--device", "cpu", limited=True)
        named = re.search(r"error: out of memory.*\n(?:.*\n)*?.*fix: the cheapest change that fits by the plan: ([^(]+) \(", ended.stderr)
        if ended.returncode != OUT_OF_MEMORY or not named:
            print(f"exit code {ended.returncode}, not {OUT_OF_MEMORY} with a change that fits:\n{ended.stderr[-3000:]}")
            return 1
        before, after = planned(), planned(*named[1].split())
        print(f"out of memory: `{named[1]}` plans {after / before:.2f} of {before / 1e9:.1f} GB")
        return 0 if after <= 0.9 * before else 1


if __name__ == "__main__":
    sys.exit(main())
