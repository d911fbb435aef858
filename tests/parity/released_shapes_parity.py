"""Released models against transformers, without their weights: what config.json of each says of names and shapes.

    python tests/parity/released_shapes_parity.py --sftrun build/bin/sftrun [--only Llama-2-7b …]

transformers builds the model from the released config.json on the meta device; its tensors, under the names of files, are written as a
file of their sizes that takes no room. `sftrun train --dry-run` must find in it every tensor it expects, of its shape, and no other, and
count as many parameters, and as many values of LoRA on all linear layers. Without the last tensor it must refuse the file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts  # noqa: I001  (sets sys.path)

import torch
import transformers
from families import as_stored
from released_configs import CONFIGS
from transformers import AutoConfig, AutoModelForCausalLM

TOKENIZER = REPOSITORY / "tests" / "data" / "models" / "tied-gqa"
RANK = 16
BF16_BYTES = 2
# transformers 5 refuses its config.json, for `su` is the old name of a RoPE; shapes are those of its successor.
SHAPES_OF = {"Phi-3-mini-128k of 2024-04": "Phi-3.5-mini"}


@dataclass(frozen=True)
class Released:
    """What transformers makes of a config.json."""

    shapes: dict[str, list[int]]  # by the names of files
    num_parameters: int
    num_lora_values: int  # of rank RANK on all linear layers


def text_config(config: dict):
    """As transformers reads it. Of a model that sees images as well, its text part's."""
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(config))
        return AutoConfig.from_pretrained(directory).get_text_config()


def lora_values(model) -> int:
    """PEFT's all-linear takes what is a linear layer, but the head."""
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear)]
    return sum(RANK * (layer.in_features + layer.out_features) for layer in layers if layer is not model.get_output_embeddings())


def by_transformers(name: str) -> Released:
    config = CONFIGS[SHAPES_OF.get(name, name)]
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(text_config(config), dtype=torch.bfloat16)
    tensors = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        tensors.pop("lm_head.weight")
    tensors = as_stored(model, tensors)
    if "text_config" in config:
        tensors = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    shapes = {name: list(tensor.shape) for name, tensor in tensors.items()}
    return Released(shapes, sum(parameter.numel() for parameter in model.parameters()), lora_values(model))


def write_file_without_weights(path: Path, shapes: dict[str, list[int]]) -> None:
    """A hole of the size of the weights."""
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + BF16_BYTES * torch.Size(shape).numel()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def write_run(directory: Path, config: dict) -> Path:
    """@return its configuration"""
    model, run = directory / "model", directory / "run.yaml"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TOKENIZER / name, model)
    (directory / "train.jsonl").write_text('{"text": "hello"}\n' * 20)
    run.write_text(json.dumps({
        "model": {"name": str(model), "max_seq_len": 512},
        "tuning": {"mode": "lora", "lora": {"r": RANK}},
        "data": {"train": str(directory / "train.jsonl"), "format": "text"},
        "train": {"max_steps": 2},
    }))
    return run


def dry_run(sftrun: Sftrun, run: Path) -> subprocess.CompletedProcess:
    command = [sftrun.path, "train", "--config", str(run), "--dry-run", "--device", "cpu", "--nproc-per-node", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def counted(number: int) -> str:
    """As sftrun prints it: 70.55B, 13.6M."""
    return f"{number / 1e9:.2f}B" if number >= 1e9 else f"{number / 1e6:.1f}M"


def check(name: str, sftrun: Sftrun, verdicts: Verdicts, directory: Path) -> None:
    run = write_run(directory, CONFIGS[name])
    model, file = by_transformers(name), directory / "model" / "model.safetensors"
    write_file_without_weights(file, model.shapes)
    result = dry_run(sftrun, run)
    lines = [line for line in result.stdout.splitlines() if line.startswith("# model:")]
    expected = f"{counted(model.num_parameters)} parameters, {counted(model.num_lora_values)} of them trainable"
    detail = f"{expected}; {len(model.shapes)} tensors"
    holds = result.returncode == 0 and len(lines) == 1 and lines[0].endswith(f" {expected}")
    verdicts.expect(name, holds, detail if holds else f"{detail}; sftrun: {lines} {result.stderr[-500:]}")
    last = list(model.shapes)[-1]
    write_file_without_weights(file, {key: shape for key, shape in model.shapes.items() if key != last})
    result = dry_run(sftrun, run)
    verdicts.expect(f"{name} without {last}: refused", result.returncode == 3 and last in result.stderr, result.stderr[-300:])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=CONFIGS, default=list(CONFIGS), metavar="MODEL", help=", ".join(CONFIGS))
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    verdicts = Verdicts()
    for name in args.only:
        with tempfile.TemporaryDirectory() as directory:
            check(name, Sftrun(args.sftrun), verdicts, Path(directory))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
