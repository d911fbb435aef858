#!/usr/bin/env python3
"""Resumes full training from divided checkpoints under other strategies and other numbers of processes. Standard library only.

    tests/smoke/divided_checkpoints.py --sftrun build/bin/sftrun

A small model trains 4 steps in fp32 and saves after 2. Each pair of strategies below: the first one trains, its later checkpoint and its result
are removed, and the second one resumes. The final weights must be those of one process that was never stopped, up to rounding. Checked besides:
- ranks of fsdp write their own files, of about 1 / N of all bytes each, and no whole tensors; ddp writes whole ones
- the weights move by more than a hundred times the limit
- `sftrun merge --checkpoint` makes of the last checkpoint, whole or divided, the run's result to the bit, for models whose files have other
  orders of values than memory too, and tells another base model
- a checkpoint that lacks a part, or whose part or list of parts was changed, is passed over for the one before; if it is the only one, the
  error names the file
With --quick fewer pairs and models, one damage less, and another base model told for one model only. Exit code 1: something else.
"""

import argparse
import array
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

STEPS, SAVED = 4, 2
LIMIT = 2e-5  # norm of the difference / norm, of all weights
PAIRS = [  # (strategy, processes) that begins, and that resumes
    (("fsdp", 4), ("ddp", 2)), (("fsdp", 4), ("fsdp", 2)), (("fsdp", 2), ("fsdp", 4)), (("fsdp", 2), ("pipeline", 2)), (("zero1", 2), ("single", 1)),
    (("hybrid", 4), ("zero2", 2)), (("pipeline", 2), ("fsdp", 2)), (("pipeline", 4), ("single", 1)), (("ddp", 2), ("fsdp", 4))]
QUICK_PAIRS = [(("fsdp", 4), ("ddp", 2)), (("fsdp", 2), ("pipeline", 2)), (("hybrid", 4), ("zero2", 2)), (("pipeline", 2), ("single", 1)),
               (("ddp", 2), ("fsdp", 2))]
MERGED = [("wide", "fsdp", 4), ("wide", "ddp", 2), ("gpt_oss", "fsdp", 2), ("gpt_oss", "single", 1), ("qwen3_5", "pipeline", 2), ("gemma3", "zero2", 2)]
QUICK_MERGED = [("wide", "fsdp", 4), ("gpt_oss", "fsdp", 2), ("qwen3_5", "pipeline", 2)]


def train(program: Path, scratch: Path, folder: Path, strategy: str, processes: int, *options: str) -> subprocess.CompletedProcess:
    config = scratch / "run.yaml"
    config.write_text(json.dumps({
        "model": {"name": str(scratch / "models/wide"), "dtype": "fp32"}, "tuning": {"mode": "full"},
        "data": {"train": str(scratch / "texts.jsonl"), "packing": False},
        "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": "auto", "global_batch_size": 4, "save_steps": SAVED, "save_total_limit": None,
                  "learning_rate": 1e-3, "scheduler": "constant"},
        "output": {"dir": str(folder), "tensorboard": False}}))
    command = [program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", processes, f"parallel.strategy={strategy}", *options]
    command += ["parallel.dp_shard=2"] if strategy == "hybrid" else []
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})


def must_train(*arguments) -> str:
    done = train(*arguments)
    if done.returncode != 0:
        raise SystemExit(f"{arguments[2:]}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stderr


def begun(program: Path, scratch: Path, strategy: str, processes: int) -> Path:
    """The folder of a finished run, made at the first call; others copy it."""
    folder = scratch / f"begun-{strategy}-{processes}"
    if not folder.exists():
        must_train(program, scratch, folder, strategy, processes)
    return folder


def tensors(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return {name: data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


def difference(a: Path, b: Path) -> float:
    """Norm of the difference of two models / norm of the first."""
    distance = norm = 0.0
    of_a, of_b = tensors(a), tensors(b)
    assert of_a.keys() == of_b.keys() and of_a
    for name in of_a:
        for x, y in zip(array.array("f", of_a[name]), array.array("f", of_b[name]), strict=True):
            distance += (x - y) ** 2
            norm += x * x
    return (distance / norm) ** 0.5


def cut_back(folder: Path) -> Path:
    """Leaves of a finished run what it had after the first checkpoint.   @return that checkpoint"""
    shutil.rmtree(folder / f"checkpoints/step-{STEPS:06}")
    shutil.rmtree(folder / "model")
    return folder / f"checkpoints/step-{SAVED:06}"


def check_files(checkpoint: Path, strategy: str, processes: int) -> list[str]:
    parts = sorted(checkpoint.glob("*-rank-*.safetensors"))
    if strategy == "ddp":
        return [] if not parts and (checkpoint / "trainable.safetensors").exists() else [f"ddp wrote {parts}"]
    wrong = []
    if (checkpoint / "trainable.safetensors").exists() or not (checkpoint / "parts.json").exists():
        wrong.append(f"{strategy} on {processes} wrote whole tensors")
    writers = 2 if strategy == "hybrid" else processes  # of two groups with copies, one writes
    of_weights = [part.stat().st_size for part in parts if part.name.startswith("trainable-")]
    if len(of_weights) != writers:
        wrong.append(f"{strategy} on {processes}: {len(of_weights)} files of weights, expected {writers}")
    elif strategy != "pipeline" and max(of_weights) > 1.1 * sum(of_weights) / writers:
        wrong.append(f"{strategy} on {processes}: files of {of_weights} bytes")
    return wrong


def check_damage(program: Path, scratch: Path, quick: bool) -> list[str]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    folder, wrong = scratch / "damaged", []
    shutil.copytree(begun(program, scratch, "fsdp", 2), folder)
    shutil.rmtree(folder / "model")
    damages = [("trainable-rank-00001.safetensors", change), ("parts.json", change)]
    if not quick:  # a part is missing of the only checkpoint, too
        damages += [("optimizer-rank-00000.safetensors", Path.unlink)]
    for name, damage in damages:
        newest = folder / f"checkpoints/step-{STEPS:06}"
        damage(newest / name)
        log = must_train(program, scratch, folder, "fsdp", 2)
        if f"skipping {newest}" not in log or name not in log or f"resuming from {folder}/checkpoints/step-{SAVED:06}" not in log:
            wrong.append(f"{name} of the newest checkpoint is damaged, and the log says: {log[-1500:]}")
        shutil.rmtree(folder / "model")
    cut_back_to = folder / f"checkpoints/step-{SAVED:06}"
    shutil.rmtree(folder / f"checkpoints/step-{STEPS:06}")
    (cut_back_to / "trainable-rank-00000.safetensors").unlink()
    done = train(program, scratch, folder, "fsdp", 2)
    if done.returncode == 0 or "trainable-rank-00000.safetensors is missing" not in done.stderr:
        wrong.append(f"the only checkpoint lacks a part: exit code {done.returncode}: {done.stderr[-1500:]}")
    return wrong


def check_merged(program: Path, scratch: Path, model: str, strategy: str, processes: int, quick: bool) -> list[str]:
    def merge(*arguments) -> subprocess.CompletedProcess:
        return subprocess.run([program, "merge", "--checkpoint", checkpoint, "--output", merged, *arguments], capture_output=True, text=True, timeout=60)

    folder, merged, wrong = scratch / f"merged-{model}-{strategy}", scratch / f"{model}-of-{strategy}", []
    if model == "wide":
        folder = begun(program, scratch, strategy, processes)
    else:
        must_train(program, scratch, folder, strategy, processes, f"model.name={scratch / 'models' / model}")
    checkpoint = folder / f"checkpoints/step-{STEPS:06}"
    if model == "wide" or not quick:
        other = merge("--model", scratch / "models" / ("wide" if model != "wide" else "llama"))
        if other.returncode != 3 or "began with another model" not in other.stderr:
            wrong.append(f"{model}: another base: {other.stderr}")
    done = merge()
    if done.returncode != 0:
        return [*wrong, f"{model}, {strategy}: merge: {done.stderr[-1500:]}"]
    of_run, of_checkpoint = tensors(folder / "model/model.safetensors"), tensors(merged / "model.safetensors")
    if of_run != of_checkpoint:
        names = [name for name in of_run if of_run[name] != of_checkpoint.get(name)]
        wrong.append(f"{model}, {strategy}: the merged checkpoint differs from the result in {names}, {of_checkpoint.keys() - of_run.keys()}")
    print(f"{model}, {strategy} on {processes}: {len(of_run)} tensors merged", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a part of the pairs, models and damages, as in `make test`")
    arguments = parser.parse_args()
    program, wrong = arguments.sftrun.resolve(), []
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        same_losses.write_inputs(scratch)
        expected = scratch / "whole"
        must_train(program, scratch, expected, "single", 1)
        result = "model/model.safetensors"
        moved = difference(expected / result, scratch / "models/wide/model.safetensors")
        assert moved > 100 * LIMIT, f"the weights move by {moved:.1e} only"
        for begins, resumes in QUICK_PAIRS if arguments.quick else PAIRS:
            folder = scratch / f"{begins[0]}-{begins[1]}-{resumes[0]}-{resumes[1]}"
            shutil.copytree(begun(program, scratch, *begins), folder)
            wrong += check_files(cut_back(folder), *begins)
            log = must_train(program, scratch, folder, *resumes)
            distance = difference(expected / result, folder / result)
            print(f"{begins[0]} on {begins[1]}, resumed by {resumes[0]} on {resumes[1]}: {distance:.1e}", flush=True)
            if distance > LIMIT or "resuming from" not in log:
                wrong.append(f"{folder.name}: weights differ by {distance:.1e}, limit {LIMIT:.0e}")
        wrong += check_damage(program, scratch, arguments.quick)
        for case in QUICK_MERGED if arguments.quick else MERGED:
            wrong += check_merged(program, scratch, *case, arguments.quick)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
