"""sgd, lion, adafactor and muon beside their reference implementations, on a CPU in fp32: 12 steps of a small model, all weights or an adapter.

    python tests/parity/optimizers_parity.py --sftrun build/bin/sftrun [--only NAME] [--quick]

References: torch.optim.SGD, bitsandbytes.optim.Lion (32-bit state), transformers' Adafactor, torch.optim.Muon with torch.optim.AdamW. Losses and
gradient norms of every step, logits afterwards, the bytes in run.json, and a run that is stopped and resumed. Lion takes signs and Muon rounds to
bf16, so that the last bits of gradients matter: the limits are a multiple of how far the reference is from itself when it pads its batches.

--quick trains all weights or an adapter with each optimizer, with Muon both; tests/train/optimizers_test.cpp compares weights and states of all.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

from harness import Sftrun, Verdicts, compare_metrics, relative_to_largest  # noqa: I001  (sets sys.path)

import bitsandbytes
import torch
import yaml
from adamw_8bit_parity import PROBE, STEPS, adapt, make_model, recipe_of, run_file
from differences import largest_relative_difference
from peft import PeftModel
from reference_training import decay_groups, encode_record, logits_of, read_jsonl, train
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
from transformers.optimization import Adafactor

LOSS, GRAD_NORM, LOGITS = 2e-6, 2e-5, 2e-4  # where the last bits do not matter
NOISE = 5  # times the reference's own difference
CASES = {
    "sgd": {"learning_rate": 0.05, "momentum": 0.9, "nesterov": True},
    "lion": {"learning_rate": 3e-4},
    "adafactor": {"learning_rate": 3e-3},
    "muon": {"learning_rate": 2e-3},
}
QUICK_MODES = {"sgd": ["lora"], "lion": ["full"], "adafactor": ["lora"], "muon": ["full", "lora"]}


class MuonAndAdamW(torch.optim.Optimizer):
    """torch.optim.Muon of the matrices, but for embedding and head; torch.optim.AdamW of the rest."""

    def __init__(self, model, weight_decay: float, lr: float):
        ends = {id(m.weight) for m in (model.get_input_embeddings(), model.get_output_embeddings())}
        groups = decay_groups(model, weight_decay)
        super().__init__([p for group in groups for p in group["params"]], {})
        matrices = [p for p in groups[0]["params"] if p.ndim == 2 and id(p) not in ends]
        taken = {id(p) for p in matrices}
        rest = [{**group, "params": [p for p in group["params"] if id(p) not in taken]} for group in groups]
        self.each = [torch.optim.Muon(matrices, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")]
        if rest := [group for group in rest if group["params"]]:
            self.each.append(torch.optim.AdamW(rest, lr=lr))
        self.param_groups = [group for optimizer in self.each for group in optimizer.param_groups]

    def step(self, closure=None):
        for optimizer in self.each:
            optimizer.step()


def reference_optimizer(name: str, model, case: dict, weight_decay: float) -> torch.optim.Optimizer:
    rate, groups = case["learning_rate"], decay_groups(model, weight_decay)
    if name == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=case["momentum"], nesterov=case["nesterov"])
    if name == "lion":
        return bitsandbytes.optim.Lion(groups, lr=rate, betas=(0.9, 0.999), optim_bits=32)
    if name == "adafactor":
        return Adafactor(groups, lr=rate, scale_parameter=False, relative_step=False)
    if name == "muon":
        return MuonAndAdamW(model, weight_decay, rate)
    raise ValueError(f"no reference optimizer {name}")


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    each = getattr(optimizer, "each", [optimizer])
    values = [value for one in each for state in one.state.values() for value in state.values()]
    return sum(value.nbytes for value in values if torch.is_tensor(value) and value.numel() > 1)


def check(sftrun: Sftrun, name: str, mode: str, base: Path, scratch: Path, verdicts: Verdicts) -> None:
    scratch.mkdir(parents=True)
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapter = None
    if mode == "lora":
        model = adapt(model)
        model.save_pretrained(adapter := scratch / "init_adapter")
    config = run_file(scratch, base, adapter)
    run = yaml.safe_load(config.read_text())
    run["train"] |= {"optimizer": name, **CASES[name]}
    config.write_text(yaml.safe_dump(run))
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    documents = [encode_record(r, tokenizer, tokenizer.token_to_id("<|eos|>")) for r in read_jsonl(Path(run["data"]["train"]))]
    recipe = recipe_of(run)
    padded = copy.deepcopy(model)
    of_padded = train(padded, documents, recipe, forward="padded", optimizer=reference_optimizer(name, padded, CASES[name], recipe.weight_decay))
    optimizer = reference_optimizer(name, model, CASES[name], recipe.weight_decay)
    expected = train(model, documents, recipe, optimizer=optimizer)
    probe = tokenizer.encode(PROBE).ids

    def limit(least: float, own: float) -> float:
        return max(least, NOISE * own)

    what = f"{name}, {mode}"
    output = scratch / "run"
    metrics = sftrun.train(config, output, train__save_steps=5)
    compare_metrics(verdicts, what, metrics, expected, limit(LOSS, largest_relative_difference(of_padded, expected, "loss")),
                    limit(GRAD_NORM, largest_relative_difference(of_padded, expected, "grad_norm")))
    falls = expected[-1]["loss"] < expected[0]["loss"]
    verdicts.expect(f"{what}: the loss falls", falls, f"{expected[0]['loss']:.4f} to {expected[-1]['loss']:.4f}")
    fresh = AutoModelForCausalLM.from_pretrained(base if adapter else output / "model", dtype=torch.float32)
    loaded = PeftModel.from_pretrained(fresh, output / "adapter") if adapter else fresh
    own = relative_to_largest(logits_of(padded, probe), logits_of(model, probe))
    verdicts.below(f"{what}: logits", relative_to_largest(logits_of(loaded, probe), logits_of(model, probe)), limit(LOGITS, own))
    report = json.loads((output / "run.json").read_text())
    held, needed = report["ranks"][0]["bytes"]["optimizer"], state_bytes(optimizer)
    verdicts.expect(f"{what}: the optimizer's bytes in run.json", needed <= held <= 1.06 * needed, f"{held}, the reference's {needed}")
    check_resume(sftrun, what, config, scratch, verdicts, "adapter" if adapter else "model")


def check_resume(sftrun: Sftrun, what: str, config: Path, scratch: Path, verdicts: Verdicts, result: str) -> None:
    resumed = scratch / "resumed"
    shutil.copytree(scratch / "run", resumed)
    for left in (f"checkpoints/step-{STEPS:06}", "checkpoints/step-000010", result):
        shutil.rmtree(resumed / left)
    sftrun.train(config, resumed, train__save_steps=5)
    file = "adapter_model.safetensors" if result == "adapter" else "model.safetensors"
    for path in (f"checkpoints/step-{STEPS:06}/optimizer.safetensors", f"{result}/{file}"):
        same = (resumed / path).read_bytes() == (scratch / "run" / path).read_bytes()
        verdicts.expect(f"{what}: resumed after step 5, {Path(path).name} is the same", same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", choices=CASES, metavar="NAME", help="one optimizer: " + ", ".join(CASES))
    parser.add_argument("--quick", action="store_true", help="one mode of most optimizers, as in `make test`: see above")
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        make_model(base)
        for name in [arguments.only] if arguments.only else CASES:
            for mode in QUICK_MODES[name] if arguments.quick else ("full", "lora"):
                check(Sftrun(arguments.sftrun), name, mode, base, Path(scratch) / name / mode, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
