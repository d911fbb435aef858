"""LoRA over models in FP8 with a scale per block of 128 rows and columns, beside transformers + PEFT over their values, on a CPU in fp32.

    python tests/parity/fp8_blocks_parity.py --sftrun build/bin/sftrun

Random models with sizes that are no multiples of 128, dense and with experts: as Qwen's and DeepSeek's directories have them (scales in fp32, and in
bf16), as compressed-tensors has them ("block"), and with all experts of a layer in one tensor. Runs in one process, in two (ddp, fsdp, pipeline), and
divided by tensor parallelism, whose parts begin and end within blocks. Compared are

loss, grad_norm   of every step, from the same adapter
logits            of the adapter that was written, by PEFT over the values; of `sftrun merge`, loaded by transformers
merged            the tensors: dequantised matrix plus update
score, generate   over the directory, with the adapter
bytes             run.json's and memory-check's: codes, fp32 scales and 4 bytes a row

transformers itself reads such a directory, too, where sizes are multiples of 128.

--quick: 3 steps, of models with experts one form, and of the divided runs two.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import Sftrun, Verdicts, relative_to_largest  # noqa: I001  (sets sys.path)

import torch
from kept_bases import COMMON, DENSE, EXPERTS, ONE, PLANS, QUICK_STEPS, STEPS, Case, check_adapter, check_training, load
from make_fp8_blocks import BLOCK, is_quantised, store
from reference_training import logits_of
from safetensors.torch import save_file

WHOLE = dict(model_type="qwen3", hidden_size=128, head_dim=64, intermediate_size=256, **COMMON)  # multiples of 128


@dataclass(frozen=True)
class Form:
    name: str
    config: dict
    method: str = "fp8"
    scale_dtype: torch.dtype = torch.float32
    is_fused: bool = False  # all experts of a layer in one tensor
    quick: bool = True


FORMS = [
    Form("dense", DENSE),
    Form("dense, bf16 scales", DENSE, scale_dtype=torch.bfloat16, quick=False),
    Form("dense, compressed-tensors", DENSE, method="compressed-tensors"),
    Form("experts", EXPERTS),
    Form("experts, bf16 scales in one tensor", EXPERTS, scale_dtype=torch.bfloat16, is_fused=True, quick=False),
]
QUICK_PLANS = {"dense": [ONE, "fsdp", "tensor"], "dense, compressed-tensors": [ONE], "experts": [ONE, "tensor"]}


def fused(tensors: dict) -> dict:
    """All experts of a layer in one tensor, as transformers 5 has them in memory: gate over up."""
    kept = {name: tensor for name, tensor in tensors.items() if ".mlp.experts." not in name}
    for layer in range(COMMON["num_hidden_layers"]):
        prefix = f"model.layers.{layer}.mlp.experts."
        of = lambda expert, matrix: tensors[f"{prefix}{expert}.{matrix}.weight"]  # noqa: E731
        experts = range(EXPERTS["num_experts"])
        kept[prefix + "gate_up_proj"] = torch.stack([torch.cat([of(i, "gate_proj"), of(i, "up_proj")]) for i in experts])
        kept[prefix + "down_proj"] = torch.stack([of(i, "down_proj") for i in experts])
    return kept


def apart(values: dict) -> dict:
    """The names of `save_pretrained`."""
    tensors = {}
    for name, value in values.items():
        if not name.endswith((".experts.gate_up_proj", ".experts.down_proj")):
            tensors[name] = value
            continue
        prefix = name.rsplit(".", 1)[0]
        for i, expert in enumerate(value):
            if name.endswith("down_proj"):
                tensors[f"{prefix}.{i}.down_proj.weight"] = expert.contiguous()
            else:
                gate, up = expert.chunk(2)
                tensors[f"{prefix}.{i}.gate_proj.weight"], tensors[f"{prefix}.{i}.up_proj.weight"] = gate.contiguous(), up.contiguous()
    return tensors


def make_case(form: Form, directory: Path) -> Case:
    case = Case(form.name, form.config, directory, form="FP8_BLOCKS")
    tensors = case.save()
    case.values = store(case.kept, fused(tensors) if form.is_fused else tensors, form.method, form.scale_dtype)
    save_file(apart(case.values), case.dense / "model.safetensors", metadata={"format": "pt"})
    case.bytes_needed = bytes_needed(case.values)
    return case


def bytes_needed(values: dict) -> int:
    """Codes, scales in fp32 and 4 bytes a row; the rest in fp32."""
    total = 0
    for name, value in values.items():
        rows, columns = value.shape[-2:] if value.ndim > 1 else (1, len(value))
        matrices = value.numel() // (rows * columns)
        if is_quantised(name, value) or value.ndim == 3:
            total += value.numel() + matrices * 4 * (rows + -(-rows // BLOCK) * -(-columns // BLOCK))
        else:
            total += 4 * value.numel()
    return total


def check_loading(scratch: Path, verdicts: Verdicts) -> None:
    """That the directories made here are what transformers reads."""
    case = make_case(Form("whole", WHOLE), scratch)
    probe = case.documents()[0].tokens
    verdicts.below("transformers over the FP8 directory", relative_to_largest(logits_of(load(case.kept), probe), logits_of(load(case.dense), probe)), 1e-6)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    sftrun, verdicts = Sftrun(arguments.sftrun), Verdicts()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        check_loading(Path(scratch) / "whole", verdicts)
        for number, form in enumerate(FORMS):
            if arguments.quick and not form.quick:
                continue
            case = make_case(form, Path(scratch) / str(number))
            plans = QUICK_PLANS[form.name] if arguments.quick else list(PLANS)
            model = check_training(sftrun, case, plans, QUICK_STEPS if arguments.quick else STEPS, verdicts)
            check_adapter(sftrun, case, model, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
