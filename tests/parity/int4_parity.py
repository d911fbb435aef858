"""LoRA over models in 4 bits as AWQ, GPTQ and compressed-tensors have them, beside transformers + PEFT over their values, on a CPU in fp32.

    python tests/parity/int4_parity.py --sftrun build/bin/sftrun

Random models (Llama, Qwen2 with biases, Qwen3, mixtures of experts) whose rows are no whole number of groups in some forms: groups of 32 and 64 columns and whole
rows, symmetric and not, GPTQ in both versions and with columns in the order of a g_idx. Runs in one process, in two (ddp, fsdp, pipeline), and divided by tensor
parallelism, whose parts begin and end within groups. What is compared is in kept_bases.py; bytes are those of codes, fp32 scales and one byte for each zero point.

transformers itself reads the directories of compressed-tensors here. Those of AWQ and GPTQ it reads with gptqmodel, on GPUs; their words are made by the
definitions (scripts/fixtures/make_int4.py) and equal what AutoAWQ 0.2.9 and AutoGPTQ 0.7.1 unpack.

--quick: 3 steps, of a form of GPTQ and one of experts, and few of the divided runs. (AWQ trains in tests/model/quantised_base_test.cpp, too.)
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import Sftrun, Verdicts, relative_to_largest  # noqa: I001  (sets sys.path)

import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from kept_bases import COMMON, DATA, DENSE, EXPERTS, ONE, PLANS, QUICK_STEPS, STEPS, Case, check_adapter, check_training, load
from make_int4 import Form, config_of, is_quantised, store
from reference_training import logits_of
from safetensors.torch import load_file, save_file

LLAMA = dict(model_type="llama", hidden_size=160, head_dim=48, intermediate_size=320, **COMMON)
QWEN2 = dict(model_type="qwen2", hidden_size=160, intermediate_size=320, **COMMON)
LOADED = 1e-6


@dataclass(frozen=True)
class Kind:
    name: str
    config: dict
    form: Form
    quick_plans: tuple = ()  # of --quick; none: the kind is left out


KINDS = [
    Kind("AWQ", LLAMA, Form("awq", 32, dense=("lm_head", "layers.0.mlp.up_proj"))),
    Kind("AWQ, a group of all columns", DENSE, Form("awq", -1)),
    Kind("GPTQ, columns in another order", QWEN2, Form("gptq", 64, desc_act=True), (ONE, "tensor")),
    Kind("GPTQ, symmetric", LLAMA, Form("gptq", 32, is_symmetric=True)),
    Kind("GPTQ, version 2, a group of all columns", QWEN2, Form("gptq_v2", -1)),
    Kind("GPTQ, experts", EXPERTS, Form("gptq", 64)),
    Kind("compressed-tensors", DENSE, Form("compressed-tensors", 32, scale_dtype=torch.bfloat16)),
    Kind("compressed-tensors, symmetric, in rows", LLAMA, Form("compressed-tensors", -1, is_symmetric=True)),
    Kind("compressed-tensors, columns in another order", LLAMA, Form("compressed-tensors", 32, is_symmetric=True, desc_act=True)),
    Kind("compressed-tensors, experts", EXPERTS, Form("compressed-tensors", 32, is_symmetric=True, scale_dtype=torch.bfloat16), (ONE, "fsdp")),
]


def make_case(kind: Kind, directory: Path) -> Case:
    case = Case(kind.name, kind.config, directory, form="INT4_GROUPS")
    case.values = store(case.kept, case.save(), kind.form)
    save_file(case.values, case.dense / "model.safetensors", metadata={"format": "pt"})
    case.bytes_needed = sum(bytes_of(name, value, kind.form) for name, value in case.values.items())
    return case


def bytes_of(name: str, value: torch.Tensor, form: Form) -> int:
    if not is_quantised(name, value, form):
        return 4 * value.numel()
    rows, columns = value.shape
    groups = 1 if form.group_size < 0 else -(-columns // form.group_size)
    return rows * (columns // 2 + 5 * groups) + (4 * columns if form.desc_act else 0)


def check_loading(scratch: Path, verdicts: Verdicts) -> None:
    """That the directories made here are what transformers and compressed-tensors read. (transformers 5.23 does not load packed zero points.)"""
    case = make_case(Kind("loaded", LLAMA, Form("compressed-tensors", 32, is_symmetric=True, scale_dtype=torch.float32)), scratch / "loaded")
    probe = case.documents()[0].tokens
    verdicts.below("transformers over compressed-tensors", relative_to_largest(logits_of(load(case.kept), probe), logits_of(load(case.dense), probe)), LOADED)
    for group_size in (32, -1):
        form = Form("compressed-tensors", group_size, scale_dtype=torch.bfloat16)
        case = make_case(Kind("unpacked", DENSE, form), scratch / f"unpacked{group_size}")
        stored = load_file(case.kept / "model.safetensors")
        scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**config_of(form)["config_groups"]["group_0"]["weights"]))
        unpacked = []
        for name in sorted(name for name in case.values if name.removesuffix("weight") + "weight_packed" in stored):
            module = name.removesuffix("weight")
            parts = {key.removeprefix(module): tensor for key, tensor in stored.items() if key.startswith(module)}
            values = PackedQuantizationCompressor.decompress(parts, scheme)["weight"]
            unpacked.append(torch.equal(values, case.values[name].bfloat16()))  # it computes in the dtype of the scales
        verdicts.expect(f"compressed-tensors unpacks the same values, groups of {group_size}", len(unpacked) == 14 and all(unpacked), f"{sum(unpacked)} of {len(unpacked)}")


def check_refusal(sftrun: Sftrun, scratch: Path, verdicts: Verdicts) -> None:
    """Experts whose columns are in orders of their own cannot be put below one another."""
    case = make_case(Kind("refused", EXPERTS, Form("gptq", 64, desc_act=True)), scratch)
    told = subprocess.run([sftrun.path, "score", "--model", str(case.kept), "--input", str(DATA), "--output", str(scratch / "scores"), "--device", "cpu"],
                          capture_output=True, text=True)
    refusal = "is in INT4_GROUPS with columns in the order of a g_idx (desc_act), which is not supported for the tensors of single experts"
    verdicts.expect("experts with a g_idx are refused", told.returncode != 0 and refusal in told.stderr, told.stderr[-300:])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", help="a kind")
    arguments = parser.parse_args()
    sftrun, verdicts = Sftrun(arguments.sftrun), Verdicts()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        check_loading(Path(scratch), verdicts)
        check_refusal(sftrun, Path(scratch) / "refused", verdicts)
        for number, kind in enumerate(KINDS):
            if (arguments.quick and not kind.quick_plans) or arguments.only not in (None, kind.name):
                continue
            case = make_case(kind, Path(scratch) / str(number))
            model = check_training(sftrun, case, list(kind.quick_plans) if arguments.quick else list(PLANS), QUICK_STEPS if arguments.quick else STEPS, verdicts)
            check_adapter(sftrun, case, model, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
