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
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics, load_adapter, relative_to_largest, train_section  # noqa: I001  (sets sys.path)

import torch
import yaml
from adapters import fill_b
from families import VOCAB, save_with_tokenizer, shake
from make_fp8_blocks import BLOCK, is_quantised, store
from peft import LoraConfig, PeftModel, get_peft_model
from reference_training import Recipe, encode_record, log_probability_of_labels, logits_of, read_jsonl, train
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

DATA = REPOSITORY / "tests/data/train/data/text.jsonl"
LOSS, GRAD_NORM, LOGITS, MERGED, SCORE = 1e-5, 1e-4, 1e-3, 1e-6, 3e-4
RANK, STEPS, QUICK_STEPS = 4, 6, 3
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

COMMON = dict(
    vocab_size=VOCAB, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    initializer_range=0.05, bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=False)
# Halves of 192 queries, of 320 inner channels and of 160 channels of an expert lie within blocks.
DENSE = dict(model_type="qwen3", hidden_size=160, head_dim=48, intermediate_size=320, **COMMON)
EXPERTS = dict(model_type="qwen3_moe", hidden_size=160, head_dim=48, intermediate_size=320, moe_intermediate_size=160, num_experts=4,
               num_experts_per_tok=2, decoder_sparse_step=1, norm_topk_prob=True, **COMMON)
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
ONE = "one process"
PLANS = {
    ONE: (1, {}),
    "ddp": (2, {"train__grad_accum": 1}),
    "fsdp": (2, {"train__grad_accum": 1, "parallel__strategy": "fsdp"}),
    "tensor": (2, {"parallel__strategy": "tensor"}),
    "pipeline": (2, {"parallel__strategy": "pipeline"}),
}
QUICK_PLANS = {"dense": [ONE, "fsdp", "tensor"], "dense, compressed-tensors": [ONE], "experts": [ONE, "tensor"]}


def build(config: dict, seed: int):
    torch.manual_seed(seed)
    options = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **options), attn_implementation="eager", dtype=torch.float32)
    shake(model)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    return model.eval()


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


def load(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", device_map="cpu").eval()


@dataclass
class Case:
    form: Form
    directory: Path
    values: dict  # of all tensors, in fp32, under the names of the FP8 directory

    @property
    def fp8(self) -> Path:
        return self.directory / "fp8"

    @property
    def dense(self) -> Path:
        return self.directory / "dense"


def make_case(form: Form, directory: Path) -> Case:
    case = Case(form, directory, {})
    model = build(form.config, seed=5)
    for folder in (case.fp8, case.dense):
        save_with_tokenizer(model, folder)
    tensors = load_file(case.fp8 / "model.safetensors")
    case.values = store(case.fp8, fused(tensors) if form.is_fused else tensors, form.method, form.scale_dtype)
    save_file(apart(case.values), case.dense / "model.safetensors", metadata={"format": "pt"})
    adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=targets_of(form), task_type="CAUSAL_LM"))
    fill_b(adapted)
    adapted.save_pretrained(directory / "init")
    return case


def targets_of(form: Form) -> list[str]:
    return ATTENTION if "num_experts" in form.config else [*ATTENTION, "gate_proj", "up_proj", "down_proj"]


def recipe(steps: int) -> Recipe:
    return Recipe(max_steps=steps, global_batch_size=4, learning_rate=1e-2, scheduler="linear", warmup_steps=1, weight_decay=0.01, max_grad_norm=1.0)


def write_run(case: Case, steps: int) -> Path:
    run = {
        "model": {"name": str(case.fp8), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": {"r": RANK, "alpha": 2 * RANK, "target_modules": targets_of(case.form), "init_from": str(case.directory / "init")}},
        "data": {"train": str(DATA), "format": "text", "shuffle": False, "packing": False},
        "train": {**train_section(recipe(steps)), "batch_size": 2, "grad_accum": 2},
        "output": {"tensorboard": False},
    }
    path = case.directory / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def documents_of(case: Case) -> list:
    tokenizer = Tokenizer.from_file(str(case.fp8 / "tokenizer.json"))
    return [encode_record(record, tokenizer, tokenizer.token_to_id("<|eos|>")) for record in read_jsonl(DATA)]


def bytes_needed(case: Case) -> int:
    """Codes, scales in fp32 and 4 bytes a row; the rest in fp32."""
    total = 0
    for name, value in case.values.items():
        rows, columns = value.shape[-2:] if value.ndim > 1 else (1, len(value))
        matrices = value.numel() // (rows * columns)
        if is_quantised(name, value) or value.ndim == 3:
            total += value.numel() + matrices * 4 * (rows + -(-rows // BLOCK) * -(-columns // BLOCK))
        else:
            total += 4 * value.numel()
    return total


def check_training(sftrun: Sftrun, case: Case, plans: list[str], steps: int, verdicts: Verdicts):
    """@return the model that the reference trained"""
    model = load_adapter(load(case.dense), case.directory / "init")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    expected, run = train(model, documents_of(case), recipe(steps)), write_run(case, steps)
    for plan in plans:
        processes, settings = PLANS[plan]
        metrics = sftrun.train(run, case.directory / plan, processes, **settings)
        compare_metrics(verdicts, f"{case.form.name}, {plan}", metrics, expected, LOSS, GRAD_NORM)
    told = json.loads((case.directory / ONE / "run.json").read_text())
    held, needed = told["ranks"][0]["bytes"]["base"], bytes_needed(case)
    verdicts.expect(f"{case.form.name}: bytes of the base", held == needed, f"{held} of {needed}")
    verdicts.expect(f"{case.form.name}: how run.json says it is held", told["base"]["form"] == "FP8_BLOCKS", told["base"]["form"])
    report = json.loads(sftrun.run("memory-check", "--config", str(run), "--json", "--device", "cpu", f"output.dir={case.directory / 'other'}"))
    planned = [value for value in values_named("base", report) if isinstance(value, int)]
    verdicts.expect(f"{case.form.name}: memory-check's bytes of the base", needed in planned, f"{planned} of {needed}")
    return model


def values_named(key: str, tree) -> list:
    if isinstance(tree, list):
        return [found for value in tree for found in values_named(key, value)]
    if not isinstance(tree, dict):
        return []
    return [value for name, value in tree.items() if name == key] + [found for value in tree.values() for found in values_named(key, value)]


def check_adapter(sftrun: Sftrun, case: Case, model, verdicts: Verdicts) -> None:
    name, adapter, merged = case.form.name, case.directory / ONE / "adapter", case.directory / "merged"
    probe, documents = documents_of(case)[0].tokens, documents_of(case)[:3]
    expected = logits_of(model, probe)
    ours = PeftModel.from_pretrained(load(case.dense), adapter).eval()
    verdicts.below(f"{name}: logits of the adapter over the values", relative_to_largest(logits_of(ours, probe), expected), LOGITS)
    adapted = logits_of(ours, probe)
    sftrun.run("merge", "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32", "--sample", "4", "--device", "cpu")
    verdicts.below(f"{name}: logits merged", relative_to_largest(logits_of(load(merged), probe), adapted), MERGED * 10)
    updated = ours.merge_and_unload().state_dict()
    written = load_file(merged / "model.safetensors")
    verdicts.expect(f"{name}: merged tensors have the names of the directory", written.keys() == case.values.keys(), str(sorted(written.keys() ^ case.values.keys())[:3]))
    largest = max(relative_to_largest(tensor, updated[key]) for key, tensor in written.items() if key in updated)
    verdicts.below(f"{name}: merged tensors", largest, MERGED)
    untouched = [key for key in written if ".experts." in key]
    verdicts.expect(f"{name}: experts merged are the values", all(torch.equal(written[key], case.values[key]) for key in untouched), f"{len(untouched)} tensors")
    flags = ["--model", str(case.fp8), "--adapter", str(adapter), "--device", "cpu", "--dtype", "fp32"]
    records = [{"text": record["text"]} for record in read_jsonl(DATA)[:3]]
    scored = sftrun.jsonl("score", records, case.directory, *flags)
    merged_model = load(merged)
    # `score` has the tokens of the text; training adds one that ends it.
    differences = [abs(line["logprob"] - float(log_probability_of_labels(logits_of(merged_model, d.tokens[:-1]), d.labels[:-1]))) for line, d in zip(scored, documents)]
    verdicts.below(f"{name}: score", max(differences), SCORE)
    tokenizer = Tokenizer.from_file(str(case.fp8 / "tokenizer.json"))
    prompt = records[0]["text"][:12]
    ids = tokenizer.encode(prompt).ids
    answer = merged_model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0][len(ids):].tolist()
    made = sftrun.jsonl("generate", [{"prompt": prompt}], case.directory, *flags, "--max-new-tokens", "12", "--temperature", "0")
    text = tokenizer.decode([token for token in answer if token != 1])
    verdicts.expect(f"{name}: generate", text in json.dumps(made[0], ensure_ascii=False) or text in str(made[0]), f"{text!r}, {made[0]}")


def check_loading(scratch: Path, verdicts: Verdicts) -> None:
    """That the directories made here are what transformers reads."""
    case = make_case(Form("whole", WHOLE), scratch)
    probe = documents_of(case)[0].tokens
    verdicts.below("transformers over the FP8 directory", relative_to_largest(logits_of(load(case.fp8), probe), logits_of(load(case.dense), probe)), 1e-6)


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
