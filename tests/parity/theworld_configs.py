"""configs/theworld/*.yaml as they stand: two steps each on a tiny Gemma 3 with images, as the guide starts them with Accelerate's files.

    python tests/parity/theworld_configs.py --sftrun build/bin/sftrun

Which tensors changed is what each file says, by names that transformers gives them; transformers loads what was written; and `sftrun eval` gives
the validation loss of training.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Measured  # noqa: I001  (sets sys.path)

import numpy as np
import torch
from safetensors.torch import load_file
from vision_models import MODELS, load, turn, write_folder, write_pictures

REPOSITORY = Path(__file__).resolve().parents[2]
ACCELERATE = "configs/accelerate/multi_gpu_{}.yaml"
# Of each file: the parts that it trains, and the file of Accelerate that the guide starts it with.
CASES = {
    "projection": ({"projector"}, ACCELERATE.format("ddp")),
    "vision": ({"projector", "vision"}, ACCELERATE.format("ddp")),
    "features": ({"projector", "features"}, ACCELERATE.format("ddp")),
    "full_fsdp": ({"projector", "vision", "language"}, ACCELERATE.format("fsdp")),
}
STEPS, RECORDS = 2, 24
LOSS = 1e-4  # ranks of fsdp add in another order


def write_records(folder: Path) -> Path:
    pictures = write_pictures(folder / "images", seed=1)
    record = lambda i: {"messages": [turn("user", f"images/{pictures[i % len(pictures)]}", f"Picture {i}?"),  # noqa: E731
                                     {"role": "assistant", "content": f"It is number {i}."}]}
    path = folder / "records.jsonl"
    path.write_text("".join(json.dumps(record(i)) + "\n" for i in range(RECORDS)))
    return path


def write_features(folder: Path, records: Path) -> Path:
    """The same records with features of 80 rows."""
    (folder / "world").mkdir()
    lines = []
    for number, line in enumerate(records.read_text().splitlines()):
        np.save(folder / f"world/{number}.npy", np.random.default_rng(number).standard_normal((80, 1024)).astype(np.float16))
        record = json.loads(line)
        record["messages"][0]["content"].insert(0, {"type": "features", "path": f"world/{number}.npy"})
        lines.append(json.dumps(record) + "\n")
    path = folder / "features.jsonl"
    path.write_text("".join(lines))
    return path


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= load_file(file)
    return found


def changed_parts(before: Path, after: Path) -> set[str]:
    was, now = weights_of(before), weights_of(after)
    new = now.keys() - was.keys()
    assert was.keys() <= now.keys() and all(name.startswith("projectors.world.") for name in new), was.keys() ^ now.keys()
    part_of = MODELS["gemma3"].part_of
    named = lambda name: name if name.startswith("model.") else f"model.{name}"  # noqa: E731
    changed = {part_of(named(name)) for name in was if not torch.equal(was[name].float(), now[name].float())}
    return changed | ({"features"} if new else set())


def check(name: str, sftrun: str, folder: Path, records: Path, verdicts: Measured) -> None:
    parts, accelerate = CASES[name]
    output = folder / name
    settings = [f"model.name={folder / 'base'}", "model.dtype=fp32", "train.bf16=false", "model.max_seq_len=512", f"data.train={records}",
                "data.val_split=4", f"output.dir={output}"]
    command = [sftrun, "train", "--config", f"configs/theworld/{name}.yaml", "--accelerate-config", accelerate, "--device", "cpu", *settings,
               "train.batch_size=2", "train.grad_accum=2", f"train.max_steps={STEPS}"]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    verdicts.expect(f"{name}: trains", run.returncode == 0, "" if run.returncode == 0 else run.stderr[-1500:])
    if run.returncode != 0:
        return
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    verdicts.expect(f"{name}: {STEPS} steps", [line["step"] for line in lines if "loss" in line] == [1, 2])
    changed = changed_parts(folder / "base", output / "model")
    verdicts.expect(f"{name}: what changed", changed == parts, ", ".join(sorted(changed)))
    load(output / "model")  # raises for tensors that do not fit
    check_eval(name, sftrun, output, settings, lines, verdicts)


def check_eval(name: str, sftrun: str, output: Path, settings: list[str], lines: list[dict], verdicts: Measured) -> None:
    """The same file and settings, for `sftrun eval`."""
    command = [sftrun, "eval", "--config", f"configs/theworld/{name}.yaml", "--device", "cpu", "--no-generate", "--json", *settings]
    run = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    verdicts.expect(f"{name}: eval", run.returncode == 0, "" if run.returncode == 0 else run.stderr[-1500:])
    if run.returncode == 0:
        trained = [line["eval_loss"] for line in lines if "eval_loss" in line][-1]
        verdicts.below(f"{name}: the validation loss of training", abs(json.loads(run.stdout)["model"]["loss"] - trained) / trained, LOSS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    options = parser.parse_args()
    sftrun, verdicts = str(Path(options.sftrun).resolve()), Measured()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_folder(MODELS["gemma3"], folder / "base", MODELS["gemma3"].kind.seed)
        records = write_records(folder)
        features = write_features(folder, records)
        for name in CASES:
            check(name, sftrun, folder, features if name == "features" else records, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
