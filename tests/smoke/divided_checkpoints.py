#!/usr/bin/env python3
"""Resumes training under other plans of axes and other numbers of processes. Standard library only.

    tests/smoke/divided_checkpoints.py --sftrun build/bin/sftrun

Small models train 4 steps in fp32 and save after 2. Each pair of plans below: the first one trains, its later checkpoint and its result are
removed, and the second one resumes. Losses, gradient norms and the final weights must be those of one process that was never stopped, up to
rounding. Checked besides:
- ranks of fsdp write their own files, of about 1 / N of all bytes each, and no whole tensors; ddp writes whole ones
- the weights move by more than a hundred times the limit
- 8-bit AdamW, whose blocks tensor parallelism would cut, is refused there before anything is read of the checkpoint
- `sftrun merge --checkpoint` makes of the last checkpoint, whole or divided, the run's result to the bit, for models whose files have other
  orders of values than memory too, and tells another base model
- a checkpoint that lacks a part, or whose part or list of parts was changed, is passed over for the one before; if it is the only one, the
  error names the file
With --quick fewer pairs and models, one damage less, and another base model told for one model only. Exit code 1: something else.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402
import strategy_parity  # noqa: E402

STEPS, SAVED = same_losses.STEPS, same_losses.STEPS // 2
LIMITS = strategy_parity.Limits(weights=2e-5)
EIGHT_BITS = strategy_parity.Limits(weights=1e-4)  # a moment between two codes is rounded to one or the other
ONE_HEAD = strategy_parity.Limits(weights=1e-4)  # Adam divides gradients near 0 by themselves; 2.9e-5 seen with AMX
# What is trained: the model, settings, and limits of the differences.
FULL = {"tuning": {"mode": "full"}}
LORA = {"tuning": {"mode": "lora", "lora": {"r": 4, "alpha": 8, "dropout": 0.1}}}
KINDS = {"full": ("wide", FULL, LIMITS), "full, tied": ("tied", FULL, LIMITS), "LoRA": ("wide", LORA, LIMITS), "LoRA, tied": ("tied", LORA, LIMITS),
         "full, one head of keys": ("one_head_of_keys", FULL, ONE_HEAD), "full, 8 bits": ("wide", {**FULL, "train": {"optimizer": "adamw_8bit"}}, EIGHT_BITS)}
# What is trained, the plan that begins and the one that resumes, as `strategy_parity.plan_of` has them, and whether `make test` runs it.
PAIRS = [
    ("full", "fsdp 4", "ddp 2", True),
    ("full", "fsdp 4", "fsdp 2", False),
    ("full", "fsdp 2", "fsdp 4", False),
    ("full", "fsdp 2", "pipeline 2", True),
    ("full", "zero1 2", "single", False),
    ("full", "hybrid", "zero2 2", True),
    ("full", "pipeline 2", "fsdp 2", False),
    ("full", "pipeline 2", "single", True),
    ("full", "pipeline 4", "single", False),
    ("full", "ddp 2", "fsdp 2", True),
    ("full", "ddp 2", "fsdp 4", False),
    ("full", "fsdp 2 x tensor 2", "pipeline 2 x fsdp 2", False),
    ("full", "pipeline 2 x fsdp 2", "fsdp 2 x tensor 2", True),
    ("full", "pipeline 2 x fsdp 2", "single", False),
    ("full", "zero1 2 x tensor 2", "pipeline 2 x zero1 2", False),
    ("full", "pipeline 2 x zero1 2", "fsdp 2 x ddp 2 x tensor 2", False),
    ("full", "fsdp 2 x ddp 2 x tensor 2", "pipeline 2 x tensor 2", False),
    ("full", "pipeline 2 x tensor 2", "hybrid", False),
    ("full", "pipeline 2 x fsdp 2 x tensor 2", "ddp 2", False),
    ("full", "single", "pipeline 2 x fsdp 2 x tensor 2", False),
    ("full", "tensor 2", "pipeline 2 x ddp 2 x tensor 2", False),
    ("full, tied", "pipeline 2 x fsdp 2", "zero1 2 x tensor 2", False),
    ("full, tied", "fsdp 2 x tensor 2", "pipeline 2 x zero1 2", True),
    ("full, tied", "pipeline 2 x zero1 2", "fsdp 4", False),
    ("full, tied", "pipeline 2 x tensor 2", "pipeline 2 x fsdp 2 x tensor 2", False),
    # Tensor-parallel ranks have copies of the head.
    ("full, one head of keys", "tensor 4", "single", True),
    ("full, one head of keys", "fsdp 2 x tensor 2", "tensor 4", False),
    ("full, one head of keys", "single", "pipeline 2 x tensor 2", False),
    ("LoRA", "fsdp 2 x tensor 2", "pipeline 2 x zero1 2", False),
    ("LoRA", "pipeline 2 x zero1 2", "fsdp 2 x ddp 2 x tensor 2", False),
    ("LoRA", "pipeline 2 x fsdp 2 x tensor 2", "zero2 2", False),
    ("LoRA, tied", "pipeline 2 x tensor 2", "fsdp 2 x tensor 2", True),
    ("LoRA, tied", "ddp 2", "pipeline 2 x fsdp 2", False),
    ("full, 8 bits", "pipeline 2 x fsdp 2", "zero1 2", False),
    ("full, 8 bits", "zero1 2", "pipeline 2 x zero1 2", False)]
MERGED = [("wide", "fsdp 4", True), ("wide", "ddp 2", False), ("gpt_oss", "fsdp 2", True), ("gpt_oss", "single", False),
          ("qwen3_5", "pipeline 2", True), ("gemma3", "zero2 2", False), ("wide", "pipeline 2 x fsdp 2", False)]


def train(program: Path, scratch: Path, folder: Path, plan: str, *options: str, kind: str = "full") -> subprocess.CompletedProcess:
    model, settings, _ = KINDS[kind]
    processes, of_plan = strategy_parity.plan_of(plan)
    config = scratch / "run.yaml"
    config.write_text(json.dumps({
        "model": {"name": str(scratch / "models" / model), "dtype": "fp32"}, **settings,
        "data": {"train": str(scratch / "texts.jsonl"), "packing": False},
        "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": "auto", "global_batch_size": 4, "save_steps": SAVED, "save_total_limit": None,
                  "learning_rate": 1e-3, "scheduler": "constant", **settings.get("train", {})},
        "output": {"dir": str(folder), "tensorboard": False}}))
    command = [program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", processes,
               *(f"{key}={value}" for key, value in of_plan.items()), *options]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120, env={**os.environ, "OMP_NUM_THREADS": "1"})


def must_train(*arguments, **kind) -> str:
    done = train(*arguments, **kind)
    if done.returncode != 0:
        raise SystemExit(f"{arguments[2:]}, {kind}: exit code {done.returncode}: {done.stderr[-2000:]}")
    return done.stderr


def begun(program: Path, scratch: Path, plan: str, kind: str = "full") -> Path:
    """The folder of a finished run, made at the first call; others copy it."""
    folder = scratch / f"begun, {kind}, {plan}"
    if not folder.exists():
        must_train(program, scratch, folder, plan, kind=kind)
    return folder


def tensors(path: Path) -> dict[str, bytes]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    return {name: data[8 + length + entry["data_offsets"][0]:8 + length + entry["data_offsets"][1]]
            for name, entry in header.items() if name != "__metadata__"}


def weights_moved(model: Path, result: Path) -> float:
    before, after = (same_losses.Outcome(results={model.name: path.read_bytes()}) for path in (model, result))
    return strategy_parity.difference_of(after, before).weights


def cut_back(folder: Path) -> Path:
    """Leaves of a finished run what it had after the first checkpoint.   @return that checkpoint"""
    shutil.rmtree(folder / f"checkpoints/step-{STEPS:06}")
    for result in ("model", "adapter"):
        shutil.rmtree(folder / result, ignore_errors=True)
    return folder / f"checkpoints/step-{SAVED:06}"


def check_files(checkpoint: Path, plan: str, kind: str) -> list[str]:
    parts = sorted(checkpoint.glob("*-rank-*.safetensors"))
    processes, settings = strategy_parity.plan_of(plan)
    words = plan.split()
    if kind.startswith("LoRA") or {"single", "ddp", "tensor"} & set(words):
        return [f"{plan}, {kind}, wrote {parts}"] if parts or (checkpoint / "parts.json").exists() else []
    wrong = []
    if (checkpoint / "trainable.safetensors").exists() or not (checkpoint / "parts.json").exists():
        wrong.append(f"{plan} wrote whole tensors")
    writers = 2 if plan == "hybrid" else processes  # of two groups with copies, one writes
    of_weights = [part.stat().st_size for part in parts if part.name.startswith("trainable-")]
    if len(of_weights) != writers:
        wrong.append(f"{plan}: {len(of_weights)} files of weights, expected {writers}")
    elif "pipeline" not in words and max(of_weights) > 1.1 * sum(of_weights) / writers:
        wrong.append(f"{plan}: files of {of_weights} bytes")
    return wrong


def check_carried(program: Path, scratch: Path, kind: str, begins: str, resumes: str) -> list[str]:
    folder, limits = scratch / f"{kind}, {begins}, {resumes}", KINDS[kind][2]
    shutil.copytree(begun(program, scratch, begins, kind), folder)
    wrong = check_files(cut_back(folder), begins, kind)
    done = train(program, scratch, folder, resumes, kind=kind)
    if done.returncode != 0:
        return [*wrong, f"{folder.name}: exit code {done.returncode}: {done.stderr[-1500:]}"]
    found = strategy_parity.difference_of(*(same_losses.read_outcome(run) for run in (folder, begun(program, scratch, "single", kind))))
    print(f"{kind}: {begins}, resumed by {resumes}: {found}", flush=True)
    if not found.is_within(limits) or "resuming from" not in done.stderr:
        wrong.append(f"{folder.name}: {found}, limits {limits}; the log: {done.stderr[-500:]}")
    shutil.rmtree(folder)
    return wrong


def check_refused(program: Path, scratch: Path) -> list[str]:
    """Tensor parallelism does not resume what 8-bit AdamW began."""
    kind, folder = "full, 8 bits", scratch / "refused"
    shutil.copytree(begun(program, scratch, "zero1 2", kind), folder)
    cut_back(folder)
    done = train(program, scratch, folder, "fsdp 2 x tensor 2", kind=kind)
    if done.returncode != 2 or "adamw_8bit" not in done.stderr or "tensor parallelism" not in done.stderr:
        return [f"adamw_8bit with tensor parallelism: exit code {done.returncode}: {done.stderr[-1500:]}"]
    return []


def check_damage(program: Path, scratch: Path, quick: bool) -> list[str]:
    def change(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[-3] ^= 1
        path.write_bytes(data)

    folder, wrong = scratch / "damaged", []
    shutil.copytree(begun(program, scratch, "fsdp 2"), folder)
    shutil.rmtree(folder / "model")
    damages = [("trainable-rank-00001.safetensors", change), ("parts.json", change)]
    if not quick:  # a part is missing of the only checkpoint, too
        damages += [("optimizer-rank-00000.safetensors", Path.unlink)]
    for name, damage in damages:
        newest = folder / f"checkpoints/step-{STEPS:06}"
        damage(newest / name)
        log = must_train(program, scratch, folder, "fsdp 2")
        if f"skipping {newest}" not in log or name not in log or f"resuming from {folder}/checkpoints/step-{SAVED:06}" not in log:
            wrong.append(f"{name} of the newest checkpoint is damaged, and the log says: {log[-1500:]}")
        shutil.rmtree(folder / "model")
    cut_back_to = folder / f"checkpoints/step-{SAVED:06}"
    shutil.rmtree(folder / f"checkpoints/step-{STEPS:06}")
    (cut_back_to / "trainable-rank-00000.safetensors").unlink()
    done = train(program, scratch, folder, "fsdp 2")
    if done.returncode == 0 or "trainable-rank-00000.safetensors is missing" not in done.stderr:
        wrong.append(f"the only checkpoint lacks a part: exit code {done.returncode}: {done.stderr[-1500:]}")
    return wrong


def check_merged(program: Path, scratch: Path, model: str, plan: str, quick: bool) -> list[str]:
    def merge(*arguments) -> subprocess.CompletedProcess:
        return subprocess.run([program, "merge", "--checkpoint", checkpoint, "--output", merged, *arguments], capture_output=True, text=True, timeout=60)

    folder, merged, wrong = scratch / f"merged-{model}-{plan}", scratch / f"{model}-of-{plan}", []
    if model == "wide":
        folder = begun(program, scratch, plan)
    else:
        must_train(program, scratch, folder, plan, f"model.name={scratch / 'models' / model}")
    checkpoint = folder / f"checkpoints/step-{STEPS:06}"
    if model == "wide" or not quick:
        other = merge("--model", scratch / "models" / ("wide" if model != "wide" else "llama"))
        if other.returncode != 3 or "began with another model" not in other.stderr:
            wrong.append(f"{model}: another base: {other.stderr}")
    done = merge()
    if done.returncode != 0:
        return [*wrong, f"{model}, {plan}: merge: {done.stderr[-1500:]}"]
    of_run, of_checkpoint = tensors(folder / "model/model.safetensors"), tensors(merged / "model.safetensors")
    if of_run != of_checkpoint:
        names = [name for name in of_run if of_run[name] != of_checkpoint.get(name)]
        wrong.append(f"{model}, {plan}: the merged checkpoint differs from the result in {names}, {of_checkpoint.keys() - of_run.keys()}")
    print(f"{model}, {plan}: {len(of_run)} tensors merged", flush=True)
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
        same_losses.write_wide_model(scratch / "models/one_head_of_keys", num_attention_heads=4, num_key_value_heads=1)
        (scratch / "models/tied").symlink_to(same_losses.DATA / "train/models/tied")
        moved = weights_moved(scratch / "models/wide/model.safetensors", begun(program, scratch, "single") / "model/model.safetensors")
        assert moved > 100 * LIMITS.weights, f"the weights move by {moved:.1e} only"
        for kind, begins, resumes, is_quick in PAIRS:
            if is_quick or not arguments.quick:
                wrong += check_carried(program, scratch, kind, begins, resumes)
        wrong += check_refused(program, scratch)
        wrong += check_damage(program, scratch, arguments.quick)
        for model, plan, is_quick in MERGED:
            if is_quick or not arguments.quick:
                wrong += check_merged(program, scratch, model, plan, arguments.quick)
    for line in wrong:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
