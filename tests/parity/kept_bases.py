"""Trains quantised models and compares with transformers + PEFT over their dequantised values, for fp8_blocks_parity.py and int4_parity.py."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts, compare_metrics, load_adapter, relative_to_largest, train_section  # noqa: I001  (sets sys.path)

import torch
import yaml
from adapters import fill_b
from families import VOCAB, save_with_tokenizer, shake
from peft import LoraConfig, PeftModel, get_peft_model
from reference_training import Recipe, encode_record, log_probability_of_labels, logits_of, read_jsonl, train
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

DATA = REPOSITORY / "tests/data/train/data/text.jsonl"
LOSS, GRAD_NORM, LOGITS, MERGED, SCORE = 1e-5, 1e-4, 1e-3, 1e-6, 3e-4
RANK, STEPS, QUICK_STEPS = 4, 6, 3
ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]

COMMON = dict(
    vocab_size=VOCAB, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
    initializer_range=0.05, bos_token_id=0, eos_token_id=1, pad_token_id=None, tie_word_embeddings=False)
# Halves of 192 queries, of 320 inner channels and of 160 channels of an expert lie within blocks of 128.
DENSE = dict(model_type="qwen3", hidden_size=160, head_dim=48, intermediate_size=320, **COMMON)
EXPERTS = dict(model_type="qwen3_moe", hidden_size=160, head_dim=48, intermediate_size=320, moe_intermediate_size=160, num_experts=4,
               num_experts_per_tok=2, decoder_sparse_step=1, norm_topk_prob=True, **COMMON)

ONE = "one process"
PLANS = {
    ONE: (1, {}),
    "ddp": (2, {"train__grad_accum": 1}),
    "fsdp": (2, {"train__grad_accum": 1, "parallel__strategy": "fsdp"}),
    "tensor": (2, {"parallel__strategy": "tensor"}),
    "pipeline": (2, {"parallel__strategy": "pipeline"}),
}


def build(config: dict, seed: int):
    torch.manual_seed(seed)
    options = {key: value for key, value in config.items() if key != "model_type"}
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(config["model_type"], **options), attn_implementation="eager", dtype=torch.float32)
    shake(model)
    model.generation_config = GenerationConfig(bos_token_id=0, eos_token_id=1)
    return model.eval()


def load(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager", device_map="cpu").eval()


@dataclass
class Case:
    """A model of `config` in `directory`: as files keep it in kept/, its values in dense/, and the adapter that runs start from in init/."""
    name: str
    config: dict
    directory: Path
    values: dict = field(default_factory=dict)  # of all tensors, in fp32, under the names of an unquantised directory with the same experts
    bytes_needed: int = 0  # of the base in memory
    form: str = ""  # run.json's word

    @property
    def kept(self) -> Path:
        return self.directory / "kept"

    @property
    def dense(self) -> Path:
        return self.directory / "dense"

    @property
    def targets(self) -> list[str]:
        return ATTENTION if "num_experts" in self.config else [*ATTENTION, "gate_proj", "up_proj", "down_proj"]

    def save(self) -> dict:
        """Saves the dense model in both folders, and the adapter.   @return its tensors"""
        model = build(self.config, seed=5)
        for folder in (self.kept, self.dense):
            save_with_tokenizer(model, folder)
        tensors = load_file(self.kept / "model.safetensors")
        adapted = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=self.targets, task_type="CAUSAL_LM"))
        fill_b(adapted)
        adapted.save_pretrained(self.directory / "init")
        return tensors

    def documents(self) -> list:
        tokenizer = Tokenizer.from_file(str(self.kept / "tokenizer.json"))
        return [encode_record(record, tokenizer, tokenizer.token_to_id("<|eos|>")) for record in read_jsonl(DATA)]


def recipe(steps: int) -> Recipe:
    return Recipe(max_steps=steps, global_batch_size=4, learning_rate=1e-2, scheduler="linear", warmup_steps=1, weight_decay=0.01, max_grad_norm=1.0)


def write_run(case: Case, steps: int) -> Path:
    run = {
        "model": {"name": str(case.kept), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": {"r": RANK, "alpha": 2 * RANK, "target_modules": case.targets, "init_from": str(case.directory / "init")}},
        "data": {"train": str(DATA), "format": "text", "shuffle": False, "packing": False},
        "train": {**train_section(recipe(steps)), "batch_size": 2, "grad_accum": 2},
        "output": {"tensorboard": False},
    }
    path = case.directory / "run.yaml"
    path.write_text(yaml.safe_dump(run))
    return path


def check_training(sftrun: Sftrun, case: Case, plans: list[str], steps: int, verdicts: Verdicts):
    """@return the model that the reference trained"""
    model = load_adapter(load(case.dense), case.directory / "init")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    expected, run = train(model, case.documents(), recipe(steps)), write_run(case, steps)
    for plan in plans:
        processes, settings = PLANS[plan]
        metrics = sftrun.train(run, case.directory / plan, processes, **settings)
        compare_metrics(verdicts, f"{case.name}, {plan}", metrics, expected, LOSS, GRAD_NORM)
    told = json.loads((case.directory / ONE / "run.json").read_text())
    held, needed = told["ranks"][0]["bytes"]["base"], case.bytes_needed
    verdicts.expect(f"{case.name}: bytes of the base", held == needed, f"{held} of {needed}")
    verdicts.expect(f"{case.name}: how run.json says it is held", told["base"]["form"] == case.form, told["base"]["form"])
    report = json.loads(sftrun.run("memory-check", "--config", str(run), "--json", "--device", "cpu", f"output.dir={case.directory / 'other'}"))
    planned = [value for value in values_named("base", report) if isinstance(value, int)]
    verdicts.expect(f"{case.name}: memory-check's bytes of the base", needed in planned, f"{planned} of {needed}")
    return model


def values_named(key: str, tree) -> list:
    if isinstance(tree, list):
        return [found for value in tree for found in values_named(key, value)]
    if not isinstance(tree, dict):
        return []
    return [value for name, value in tree.items() if name == key] + [found for value in tree.values() for found in values_named(key, value)]


def check_adapter(sftrun: Sftrun, case: Case, model, verdicts: Verdicts) -> None:
    name, adapter, merged = case.name, case.directory / ONE / "adapter", case.directory / "merged"
    probe, documents = case.documents()[0].tokens, case.documents()[:3]
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
    flags = ["--model", str(case.kept), "--adapter", str(adapter), "--device", "cpu", "--dtype", "fp32"]
    records = [{"text": record["text"]} for record in read_jsonl(DATA)[:3]]
    scored = sftrun.jsonl("score", records, case.directory, *flags)
    merged_model = load(merged)
    # `score` has the tokens of the text; training adds one that ends it.
    differences = [abs(line["logprob"] - float(log_probability_of_labels(logits_of(merged_model, d.tokens[:-1]), d.labels[:-1]))) for line, d in zip(scored, documents)]
    verdicts.below(f"{name}: score", max(differences), SCORE)
    tokenizer = Tokenizer.from_file(str(case.kept / "tokenizer.json"))
    prompt = records[0]["text"][:12]
    ids = tokenizer.encode(prompt).ids
    answer = merged_model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0][len(ids):].tolist()
    made = sftrun.jsonl("generate", [{"prompt": prompt}], case.directory, *flags, "--max-new-tokens", "12", "--temperature", "0")
    text = tokenizer.decode([token for token in answer if token != 1])
    verdicts.expect(f"{name}: generate", text in json.dumps(made[0], ensure_ascii=False) or text in str(made[0]), f"{text!r}, {made[0]}")
