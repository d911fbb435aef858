"""8-bit AdamW beside transformers + bitsandbytes, on a CPU in fp32: 12 steps of a small model, every weight or an adapter.

    python tests/parity/adamw_8bit_parity.py --sftrun build/bin/sftrun

With each backend the losses and gradient norms of every step and the logits afterwards; the moments in the checkpoint, codes and factors;
a run that is stopped and resumed; and that 32-bit AdamW would have been told from it.
"""

from __future__ import annotations

import argparse
import copy
import json
import shutil
import sys
import tempfile
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics, relative_to_largest  # noqa: I001  (sets sys.path)

import bitsandbytes
import torch
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from reference_training import Recipe, decay_groups, encode_record, logits_of, read_jsonl, train
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

DATA = REPOSITORY / "tests/data/train"
# Codes are rounded: where two gradients differ in their last place, a moment may get the next code, and the runs part. Noise of 2e-7 in its
# gradients sets the reference apart from itself by 1e-6, 1e-5, 3e-4 in moments and 0.1% of the codes; its padded batches set 0.3% and a
# factor by 2e-3 apart.
LOSS, GRAD_NORM, LOGITS, MOMENTS, OTHER_CODES, FACTORS = 5e-6, 5e-5, 5e-4, 2e-3, 0.01, 1e-2
STEPS, WIDTH = 12, 76
PROBE = "The quick brown fox, 42 times: jumps!"


def make_model(directory: Path) -> None:
    """Of matrices above and below 4096 values; the data's own tokenizer."""
    tokenizer = DATA / "models/untied"
    small = json.loads((tokenizer / "config.json").read_text())
    torch.manual_seed(5)
    config = LlamaConfig(vocab_size=small["vocab_size"], hidden_size=WIDTH, intermediate_size=2 * WIDTH + 5, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, head_dim=20, max_position_embeddings=128, initializer_range=0.1,
                         tie_word_embeddings=False, bos_token_id=0, eos_token_id=1)
    LlamaForCausalLM(config).save_pretrained(directory)
    for file in tokenizer.glob("tokenizer*"):
        shutil.copy(file, directory)


def adapt(model) -> PeftModel:
    torch.manual_seed(6)
    config = LoraConfig(r=32, lora_alpha=48, target_modules=["q_proj", "o_proj", "down_proj"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, config)
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data, std=0.02)
    return adapted


def run_file(directory: Path, model: Path, adapter: Path | None) -> Path:
    run = yaml.safe_load((DATA / "lora_qv/run.yaml").read_text())
    run["model"]["name"] = str(model)
    run["data"]["train"] = str(DATA / "data/prompt_completion.jsonl")
    run["tuning"] = {"mode": "full"}
    if adapter:
        run["tuning"] = {"mode": "lora", "lora": {"r": 32, "alpha": 48, "target_modules": ["q_proj", "o_proj", "down_proj"], "init_from": str(adapter)}}
    run["train"] |= {"optimizer": "adamw_bnb_8bit", "learning_rate": 1e-2 if adapter else 2e-3, "weight_decay": 0.02, "max_steps": STEPS}
    path = directory / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def recipe_of(run: dict) -> Recipe:
    settings = run["train"]
    return Recipe(max_steps=STEPS, global_batch_size=4, learning_rate=settings["learning_rate"], scheduler=settings["scheduler"], warmup_steps=3,
                  weight_decay=settings["weight_decay"], max_grad_norm=settings["max_grad_norm"])


def eight_bit(model, recipe: Recipe):
    """As transformers' Trainer sets it up (trainer.py, create_optimizer)."""
    optimizer = bitsandbytes.optim.AdamW(decay_groups(model, recipe.weight_decay), lr=recipe.learning_rate, betas=recipe.betas,
                                         eps=recipe.epsilon, optim_bits=8)
    manager = bitsandbytes.optim.GlobalOptimManager.get_instance()
    manager.initialize()
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding):
            manager.register_module_override(module, "weight", {"optim_bits": 32})
    return optimizer


def compare_moments(verdicts: Verdicts, name: str, checkpoint: Path, model, optimizer) -> None:
    ours = load_file(checkpoint / "optimizer.safetensors")
    expected = {}
    for parameter_name, parameter in model.named_parameters():
        state = optimizer.state.get(parameter)
        if state is None:
            continue
        # PEFT's files leave out the adapter's name.
        parameter_name = parameter_name.replace(".default.weight", ".weight")
        for key, what in {"state1": "exp_avg", "state2": "exp_avg_sq", "absmax1": "exp_avg_absmax", "absmax2": "exp_avg_sq_absmax"}.items():
            if key in state:
                expected[f"{what}.{parameter_name}"] = state[key]
    verdicts.expect(f"{name}: tensors of the optimizer's file", ours.keys() == expected.keys(), f"{len(ours)}")
    same = total = 0
    factors, fp32 = 0.0, 0.0
    for key, theirs in expected.items():
        mine = ours.get(key)
        if mine is None or mine.dtype != theirs.dtype or mine.shape != theirs.shape:
            verdicts.expect(f"{name}: {key}", False, "another type or shape")
        elif theirs.dtype == torch.uint8:
            same, total = same + (mine == theirs).sum().item(), total + theirs.numel()
        elif "absmax" in key:
            factors = max(factors, relative_to_largest(mine, theirs))
        else:
            fp32 = max(fp32, relative_to_largest(mine, theirs))
    verdicts.expect(f"{name}: codes that are equal", total > 0 and total - same <= OTHER_CODES * total, f"{same} of {total}")
    verdicts.below(f"{name}: factors", factors, FACTORS)
    verdicts.below(f"{name}: moments in fp32", fp32, MOMENTS)


def check(sftrun: Sftrun, mode: str, base: Path, scratch: Path, verdicts: Verdicts) -> None:
    scratch.mkdir()
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapter = None
    if mode == "lora":
        model = adapt(model)
        model.save_pretrained(adapter := scratch / "init_adapter")
    config = run_file(scratch, base, adapter)
    run = yaml.safe_load(config.read_text())
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    documents = [encode_record(r, tokenizer, tokenizer.token_to_id("<|eos|>")) for r in read_jsonl(Path(run["data"]["train"]))]
    recipe = recipe_of(run)
    in_32_bits = train(copy.deepcopy(model), documents, recipe)
    optimizer = eight_bit(model, recipe)
    expected = train(model, documents, recipe, optimizer=optimizer)
    probe = tokenizer.encode(PROBE).ids
    saving = {"train__save_steps": 5}
    for backend in ("fused", "bnb"):
        name = f"{mode}, {backend}"
        output = scratch / backend
        metrics = sftrun.train(config, output, tuning__backend=backend, **saving)
        compare_metrics(verdicts, name, metrics, expected, LOSS, GRAD_NORM)
        differs = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(metrics, in_32_bits))
        verdicts.expect(f"{name}: eight bits are seen in the losses", differs > 3 * LOSS, f"{differs:.1e}")
        compare_moments(verdicts, name, output / f"checkpoints/step-{STEPS:06}", model, optimizer)
        fresh = AutoModelForCausalLM.from_pretrained(base if adapter else output / "model", dtype=torch.float32)
        loaded = PeftModel.from_pretrained(fresh, output / "adapter") if adapter else fresh
        verdicts.below(f"{name}: logits", relative_to_largest(logits_of(loaded, probe), logits_of(model, probe)), LOGITS)
        report = json.loads((output / "run.json").read_text())
        held, needed = report["ranks"][0]["bytes"]["optimizer"], moment_bytes(optimizer)
        verdicts.expect(f"{name}: the optimizer's bytes in run.json", needed <= held <= 1.06 * needed, f"{held}, the reference's {needed}")
    resumed = scratch / "resumed"
    shutil.copytree(scratch / "fused", resumed)
    shutil.rmtree(resumed / f"checkpoints/step-{STEPS:06}")
    shutil.rmtree(resumed / "checkpoints/step-000010")
    shutil.rmtree(resumed / ("adapter" if adapter else "model"))
    sftrun.train(config, resumed, tuning__backend="fused", **saving)
    files = [f"checkpoints/step-{STEPS:06}/optimizer.safetensors", "adapter/adapter_model.safetensors" if adapter else "model/model.safetensors"]
    for file in files:
        same = (resumed / file).read_bytes() == (scratch / "fused" / file).read_bytes()
        verdicts.expect(f"{mode}: resumed after step 5, {Path(file).name} is the same", same)


def moment_bytes(optimizer) -> int:
    moments = ("state1", "state2", "absmax1", "absmax2")
    return sum(state[key].nbytes for state in optimizer.state.values() for key in moments if key in state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as scratch:
        base = Path(scratch) / "base"
        make_model(base)
        for mode in ("full", "lora"):
            check(Sftrun(arguments.sftrun), mode, base, Path(scratch) / mode, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
