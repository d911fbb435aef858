"""QLoRA beside peft + bitsandbytes, on a CPU in fp32: tiny models with odd widths, from the same initial adapter.

    python tests/parity/qlora_parity.py --sftrun build/bin/sftrun

For each kind of storage (nf4 and fp4, with factors quantised and not, blocks of several sizes) and each backend the losses and
gradient norms of every step, and the logits of the adapter over bitsandbytes' base. And models that are in 4 bits on disk: `sftrun
quantize` writes the tensors that transformers + bitsandbytes save, transformers loads what it wrote as the same model, and runs over
either directory are bitsandbytes' own. Likewise in 8 bits: int8 by the values that bitsandbytes makes, and FP8 with activations and
gradients rounded as transformers rounds activations; transformers + compressed-tensors computes the same over what `quantize` wrote.
And what `sftrun merge` reports of an adapter trained in four bits: losses and KL divergence are those of peft over bitsandbytes' base
and of the merged model in transformers, which is the trained model itself where merging is into the dequantised values (the default).

--quick leaves out three kinds of storage, whose block sizes and plain factors the models on disk have, and trains 6 steps instead of 12. Only one
of the directories that transformers saved is trained over.
"""

from __future__ import annotations

import argparse
import functools
import json
import shutil
import sys
import tempfile
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics, relative_to_largest  # noqa: I001  (sets sys.path)

import torch
import yaml
from peft import PeftModel
from quantised import Storage, exact_products, linear_names, quantised_base
from reference_training import IGNORE_INDEX, Recipe, encode_record, logits_of, read_jsonl, train
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.compressed_tensors import quantize_fp8_per_row

DATA = REPOSITORY / "tests/data/train"
LOSS, GRAD_NORM, LOGITS = 1e-5, 1e-4, 1e-4
# Where a value lies between two codes of e4m3 a last bit decides which, and they are a sixteenth apart: a gradient shows it at once, on one processor
# and not on another, the loss after a few updates, when runs part.
FP8_STEPS, FP8_FIRST_GRAD_NORM, FP8_LOSS, FP8_GRAD_NORM = 2, 2e-3, 2e-2, 1e-1
DIVERGENCE = 1e-3  # relative
SAME = 1e-8  # KL divergence of models that differ in roundings of fp32 alone
STEPS, QUICK_STEPS = 12, 6

QUICK_RUNS = [
    ("lora_all_linear", Storage("nf4", True, 64)),
    ("lora_all_linear", Storage("fp4", True, 32)),
    ("lora_all_linear", Storage("int8")),
    ("lora_all_linear", Storage("fp8")),
]
RUNS = [
    *QUICK_RUNS,
    ("lora_all_linear", Storage("nf4", False, 64)),
    ("lora_all_linear", Storage("nf4", True, 256)),
    ("lora_qv", Storage("nf4", True, 64)),
]
MERGED = [("lora_all_linear", Storage("nf4", True, 64)), ("lora_qv", Storage("fp4", False, 128))]
ON_DISK = [Storage("nf4", True, 64), Storage("fp4", False, 128), Storage("fp4", True, 64)]
IN_EIGHT_BITS = [Storage("int8"), Storage("fp8")]


def compare_runs(verdicts: Verdicts, name: str, storage: Storage, metrics: list[dict], expected: list[dict]) -> None:
    if storage.quant != "fp8":
        return compare_metrics(verdicts, name, metrics, expected, LOSS, GRAD_NORM)
    compare_metrics(verdicts, f"{name}, first steps", metrics[:FP8_STEPS], expected[:FP8_STEPS], LOSS, FP8_FIRST_GRAD_NORM)
    compare_metrics(verdicts, name, metrics, expected, FP8_LOSS, FP8_GRAD_NORM)


def base_of(variant: Path) -> Path:
    config = json.loads((variant / "init_adapter/adapter_config.json").read_text())
    return (variant / "init_adapter" / config["base_model_name_or_path"]).resolve()


def recipe_of(run: dict, steps: int) -> Recipe:
    train_settings = run["train"]
    return Recipe(
        max_steps=steps,
        global_batch_size=4,
        learning_rate=train_settings["learning_rate"],
        scheduler=train_settings["scheduler"],
        warmup_steps=train_settings.get("warmup_steps", 3),
        weight_decay=train_settings["weight_decay"],
        max_grad_norm=train_settings["max_grad_norm"],
    )


def documents_of(variant: Path, run: dict, base: Path) -> list:
    tokenizer = Tokenizer.from_file(str(base / "tokenizer.json"))
    eos = tokenizer.token_to_id("<|eos|>")
    return [encode_record(record, tokenizer, eos) for record in read_jsonl(variant / run["data"]["train"])]


@functools.cache
def trained_reference(variant: Path, storage: Storage, steps: int) -> tuple[list[dict], PeftModel]:
    """@return metrics, and the trained model"""
    run = yaml.safe_load((variant / "run.yaml").read_text())
    base = base_of(variant)
    model = PeftModel.from_pretrained(quantised_base(base, storage), variant / "init_adapter", is_trainable=True)
    return train(model, documents_of(variant, run, base), recipe_of(run, steps)), model


STATE = ".quant_state.bitsandbytes__"


def same_tensors(ours: Path, theirs: Path) -> str:
    """The first that differs; states as the JSON that they are."""
    a, b = load_file(ours / "model.safetensors"), load_file(theirs / "model.safetensors")
    if a.keys() != b.keys():
        return f"names {sorted(a.keys() ^ b.keys())[:4]}"
    for name in a:
        if STATE in name:
            same = json.loads(bytes(a[name].tolist())) == json.loads(bytes(b[name].tolist()))
        else:
            same = a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and torch.equal(a[name], b[name])
        if not same:
            return name
    return ""


def check_directories(sftrun: Sftrun, variant: Path, storage: Storage, scratch: Path, verdicts: Verdicts, steps: int, over_both: bool) -> None:
    """A model in 4 bits on disk, written by either side and loaded by either; over_both: both are trained over."""
    dense = json.loads((variant / "expected.json").read_text())
    base, probe = base_of(variant), dense["probe"]["input_ids"]
    ours, theirs = scratch / "ours", scratch / "theirs"
    factors = [] if storage.double else ["--no-double-quant"]
    sftrun.run("quantize", "--model", str(base), "--output", str(ours), "--method", storage.quant, "--block-size", str(storage.block_size), *factors)
    model = quantised_base(base, storage)
    model.save_pretrained(theirs)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(base / name, theirs / name)
    name = f"{variant.name} on disk, {storage.name}"
    differs = same_tensors(ours, theirs)
    verdicts.expect(f"{name}: the same tensors", not differs, differs)
    loaded = exact_products(AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32, device_map="cpu"))
    verdicts.expect(f"{name}: transformers' logits of ours", torch.equal(logits_of(loaded, probe), logits_of(model, probe)))
    expected, _ = trained_reference(variant, storage, steps)
    for which in (ours, theirs) if over_both else (ours,):
        metrics = sftrun.train(variant / "run.yaml", scratch / f"run-{which.name}", model__name=which, train__max_steps=steps)
        compare_metrics(verdicts, f"{name}, trained over {which.name}", metrics, expected, LOSS, GRAD_NORM)
    shutil.rmtree(scratch)
    scratch.mkdir()


def reference_tensors(base: Path, storage: Storage, scratch: Path) -> dict:
    """As transformers + bitsandbytes save a model in int8, or with the codes and factors of transformers' FP8."""
    if storage.quant == "int8":
        config = BitsAndBytesConfig(load_in_8bit=True)
        AutoModelForCausalLM.from_pretrained(base, quantization_config=config, device_map="cpu").save_pretrained(scratch)
        return load_file(scratch / "model.safetensors")
    tensors = load_file(base / "model.safetensors")
    for name in linear_names(AutoModelForCausalLM.from_pretrained(base)):
        codes, factors = quantize_fp8_per_row(tensors[f"{name}.weight"])
        tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"] = codes, factors[:, None]
    return tensors


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.reshape(-1).view(torch.uint8), b.reshape(-1).view(torch.uint8))


def check_eight_bits_on_disk(sftrun: Sftrun, variant: Path, storage: Storage, scratch: Path, verdicts: Verdicts, steps: int) -> None:
    dense = json.loads((variant / "expected.json").read_text())
    base, probe, ours = base_of(variant), dense["probe"]["input_ids"], scratch / "ours"
    name = f"{variant.name} on disk, {storage.name}"
    sftrun.run("quantize", "--model", str(base), "--output", str(ours), "--method", storage.quant)
    a, b = load_file(ours / "model.safetensors"), reference_tensors(base, storage, scratch / "theirs")
    differ = sorted(a.keys() ^ b.keys()) or [key for key in a if not same_bytes(a[key], b[key])]
    verdicts.expect(f"{name}: the same tensors", not differ, str(differ[:3]))
    loaded = AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32, device_map="cpu").eval()
    expected = logits_of(quantised_base(base, storage), probe)
    # bitsandbytes' own product rounds activations to eight bits too, which training over them does not.
    limit = 5e-2 if storage.quant == "int8" else 1e-5
    verdicts.below(f"{name}: transformers' logits of ours", relative_to_largest(logits_of(loaded, probe), expected), limit)
    metrics = sftrun.train(variant / "run.yaml", scratch / "run", model__name=ours, train__max_steps=steps)
    compare_runs(verdicts, f"{name}, trained over it", storage, metrics, trained_reference(variant, storage, steps)[0])
    shutil.rmtree(scratch)
    scratch.mkdir()


def bytes_needed(base: Path, storage: Storage) -> int:
    """Of the base in memory: linear layers as `storage` has them, the rest in fp32."""
    total, linear = 0, {f"{name}.weight" for name in linear_names(AutoModelForCausalLM.from_pretrained(base))}
    for name, tensor in load_file(base / "model.safetensors").items():
        values = tensor.numel()
        blocks = -(-values // storage.block_size)
        if name not in linear:
            total += 4 * values
        elif storage.in_eight_bits:
            total += values + 4 * tensor.shape[0]
        else:
            total += (values + 1) // 2 + (blocks + 4 * -(-blocks // 256) if storage.double else 4 * blocks)
    return total


def check_run(sftrun: Sftrun, variant: Path, storage: Storage, scratch: Path, verdicts: Verdicts, steps: int) -> None:
    dense = json.loads((variant / "expected.json").read_text())
    base = base_of(variant)
    expected, model = trained_reference(variant, storage, steps)
    probe, needed = dense["probe"]["input_ids"], bytes_needed(base, storage)
    for backend in ("fused", "bnb"):
        name = f"{variant.name}, {storage.name}, {backend}"
        output = scratch / name.replace(" ", "-").replace(",", "")
        metrics = sftrun.train(variant / "run.yaml", output, **storage.settings, tuning__backend=backend, train__max_steps=steps)
        compare_runs(verdicts, name, storage, metrics, expected)
        told = json.loads((output / "run.json").read_text())
        held = told["ranks"][0]["bytes"]["base"]
        verdicts.below(f"{name}: bytes of the base, {held} of {needed}", abs(held / needed - 1), 0.02)
        verdicts.expect(f"{name}: how run.json says it is held", told["base"]["form"] == storage.quant, told["base"]["form"])
        comparable = dense["metrics"] if steps == len(dense["metrics"]) else dense["metrics"][:3]  # of later steps a shorter run has other learning rates
        differs = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(metrics, comparable))
        verdicts.expect(f"{name}: fewer bits are seen in the losses", differs > 20 * LOSS, f"{differs:.1e}")
        if storage.quant == "fp8":
            continue  # the adapters are another by now
        loaded = PeftModel.from_pretrained(quantised_base(base, storage), output / "adapter")
        verdicts.below(f"{name}: logits of the adapter over the same base", relative_to_largest(logits_of(loaded, probe), logits_of(model, probe)), LOGITS)
    shutil.rmtree(scratch)
    scratch.mkdir()


def labelled_log_probabilities(model, documents: list) -> tuple[torch.Tensor, float]:
    """Of the whole vocabulary at each labelled token [tokens, vocabulary], and the tokens' mean loss."""
    rows, losses = [], []
    with torch.no_grad():
        for document in documents:
            labels = torch.tensor(document.labels[1:])
            at = labels != IGNORE_INDEX
            log = torch.log_softmax(model(input_ids=torch.tensor([document.tokens])).logits[0, :-1][at].double(), -1)
            rows.append(log)
            losses.append(-log.gather(1, labels[at][:, None])[:, 0])
    return torch.cat(rows), torch.cat(losses).mean().item()


def check_merged(sftrun: Sftrun, variant: Path, storage: Storage, scratch: Path, verdicts: Verdicts, steps: int) -> None:
    run = yaml.safe_load((variant / "run.yaml").read_text())
    base, adapter = base_of(variant), scratch / "run" / "adapter"
    sftrun.train(variant / "run.yaml", scratch / "run", **storage.settings, train__max_steps=steps)
    adapted = PeftModel.from_pretrained(quantised_base(base, storage), adapter)
    for dtype, *flags in (("f32",), ("f32", "--as-stored"), (storage.quant,)):
        name, output = f"{variant.name}, {storage.name}, merged as {' '.join((dtype, *flags))}", scratch / "-".join((dtype, *flags))
        sftrun.run("merge", "--adapter", str(adapter), "--output", str(output), "--dtype", dtype, *flags, "--sample", "20", "--device", "cpu")
        report = json.loads((output / "merge_report.json").read_text())
        documents = documents_of(variant, run, base)[: report["sequences"]]
        p, loss_adapter = labelled_log_probabilities(adapted, documents)
        merged = exact_products(AutoModelForCausalLM.from_pretrained(output, dtype=torch.float32, device_map="cpu"))
        q, loss_merged = labelled_log_probabilities(merged, documents)
        divergence = (p.exp() * (p - q)).sum(-1).mean().item()
        counted = (report["sequences"], report["label_tokens"], report["trained_on"]["quant"])
        verdicts.expect(f"{name}: sample", counted == (min(20, len(documents)), len(p), storage.quant), str(counted))
        verdicts.below(f"{name}: loss of the adapter", abs(report["loss_adapter"] / loss_adapter - 1), LOSS)
        verdicts.below(f"{name}: loss merged", abs(report["loss_merged"] / loss_merged - 1), LOSS)
        if dtype == "f32" and not flags:  # into the values that bitsandbytes' base stands for
            verdicts.below(f"{name}: KL divergence", divergence, SAME)
            verdicts.below(f"{name}: KL divergence reported", report["kl_divergence"], SAME)
            continue
        verdicts.below(f"{name}: KL divergence {divergence:.2e}", abs(report["kl_divergence"] / divergence - 1), DIVERGENCE)
        verdicts.expect(f"{name}: they differ", divergence > 1e-5, f"{divergence:.2e}")
    shutil.rmtree(scratch)
    scratch.mkdir()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true", help="fewer kinds of storage and steps, as in `make test`: see above")
    arguments = parser.parse_args()
    verdicts, sftrun, steps = Verdicts(), Sftrun(arguments.sftrun), QUICK_STEPS if arguments.quick else STEPS
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        for variant, storage in QUICK_RUNS if arguments.quick else RUNS:
            check_run(sftrun, DATA / variant, storage, scratch, verdicts, steps)
        for variant, storage in MERGED:
            check_merged(sftrun, DATA / variant, storage, scratch, verdicts, steps)
        for storage in ON_DISK:
            over_both = storage == ON_DISK[0] or not arguments.quick
            check_directories(sftrun, DATA / "lora_all_linear", storage, scratch, verdicts, steps, over_both)
        for storage in IN_EIGHT_BITS:
            check_eight_bits_on_disk(sftrun, DATA / "lora_all_linear", storage, scratch, verdicts, steps)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
