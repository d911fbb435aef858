"""Direct preference optimization beside TRL's DPOTrainer, on a CPU in fp32.

    python tests/parity/dpo_parity.py --sftrun build/bin/sftrun [--only tokens training processes reference]

tokens     tokens and labels of preference records: texts, conversations under every chat template of TRL, prompts that are implicit, tools
training   5 steps of LoRA on a tiny Llama, with texts and with conversations: loss, gradient norm, rewards, log-probabilities; the reference
           model is the base model with the adapter switched off; the first loss is ln 2
processes  1 and 2 processes x accumulation 1 and 2, with and without packing: the same losses
reference  what `train.reference` compares with, beside TRL: an adapter that is trained on (TRL copies it under the name "ref") and its base, a
           trained head beside LoRA, full training; then by every strategy of 2 processes, in parts of which some are tied, and resumed after 2 steps;
           computed before the first step, of another model by its path, and read from the cache

--quick leaves out TRL's templates for training, trains over texts with one backend and over conversations with the other, and divides a batch in
one way with and in one way without packing.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import random
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import Sftrun, Verdicts, training_metrics  # noqa: I001  (sets sys.path)

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import torch
import yaml
from chat_templates import of_trl
from peft import LoraConfig, PeftModel
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

STEPS, BATCH, ACCUMULATION, BETA, LEARNING_RATE = 5, 2, 2, 0.3, 0.02
LOSS, GRAD_NORM, REWARD = 1e-5, 1e-4, 1e-4
QUICK_BACKENDS = {"texts": "fused", "conversations": "bnb"}
QUICK_SHARES = {False: (2, 2), True: (2, 1)}  # by packing: processes and accumulation
LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
METRICS = ["rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins", "logps/chosen", "logps/rejected"]
WORDS = "amber birch cobalt delta ember fjord glade heron inlet jetty knoll larch because, therefore: the sum is not what it was".split()
MIN_RENDERED = 0.8  # of the records under every template
CHATML = (
    "{%- for m in messages -%}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}"
)


# ---- A model, and records


def words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def make_tokenizer(adds_bos: bool, splits_words: bool = False) -> PreTrainedTokenizerFast:
    """Byte-level BPE with merges, so that tokens may span prompt and answer.   @param splits_words as GPT-2, which GGUF files have a name for"""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=splits_words)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    rng = random.Random(1)
    texts = [words(rng, 12) for _ in range(200)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=360, special_tokens=special, initial_alphabet=alphabet))
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", chat_template=CHATML, clean_up_tokenization_spaces=False
    )


def make_model(directory: Path, adds_bos: bool, is_tied: bool = False, splits_words: bool = False) -> Path:
    torch.manual_seed(7)
    tokenizer = make_tokenizer(adds_bos, splits_words)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, initializer_range=0.15, bos_token_id=0, eos_token_id=1, tie_word_embeddings=is_tied,
    )
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def text_records(rng: random.Random, count: int) -> list[dict]:
    return [{"prompt": words(rng, 8) + rng.choice(["", " ", ": "]), "chosen": words(rng, 8), "rejected": words(rng, 8)} for _ in range(count)]


def chat_records(rng: random.Random, count: int) -> list[dict]:
    records = []
    for _ in range(count):
        prompt = [{"role": "user", "content": words(rng, 8)}]
        if rng.random() < 0.4:
            prompt += [{"role": "assistant", "content": words(rng, 5)}, {"role": "user", "content": words(rng, 5)}]
        answers = [[{"role": "assistant", "content": words(rng, 8)}] for _ in range(2)]
        records.append({"prompt": prompt, "chosen": answers[0], "rejected": answers[1]})
    return records


def implicit(record: dict) -> dict:
    return {key: record["prompt"] + record[key] for key in ("chosen", "rejected")}


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_run(path: Path, model: Path, data: Path, settings: dict | None = None) -> Path:
    run = {
        "model": {"name": str(model), "max_seq_len": 4096, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": LORA},
        "data": {"train": str(data), "shuffle": False, "packing": False, "cache_dir": "none"},
        "train": {
            "objective": "dpo", "beta": BETA, "max_steps": STEPS, "batch_size": BATCH, "grad_accum": ACCUMULATION,
            "learning_rate": LEARNING_RATE, "scheduler": "linear", "warmup_steps": 0, "max_grad_norm": 0.5, "save_every": "0",
        },
        "output": {"tensorboard": False},
    }
    for key, value in (settings or {}).items():
        section, name = key.split("__")
        run[section][name] = value
    path.write_text(yaml.safe_dump(run))
    return path


# ---- Tokens and labels


def tokens_of_trl(records: list[dict], tokenizer) -> list[list[tuple]]:
    """[(input_ids, labels) of chosen and of rejected] as DPOTrainer prepares them."""
    trainer = types.SimpleNamespace(_tokenizer=tokenizer)
    arguments = types.SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    prepared = DPOTrainer._prepare_dataset(trainer, datasets.Dataset.from_list(records), tokenizer, arguments, "train")
    pairs = []
    for row in prepared:
        prompt = row["prompt_ids"]
        for key in ("chosen_ids", "rejected_ids"):
            labels = [-100] * len(prompt) + row[key]
            pairs.append((prompt + row[key], [-100] + labels[1:]))  # nothing predicts the first token
    return pairs


def as_the_template_reads_them(records: list[dict], tokenizer) -> list[dict]:
    """Templates of models that see drop a text without a word unless it is a part. sftrun gives it to them as one; for TRL it is done here."""
    probe = "a question"
    if probe in tokenizer.apply_chat_template([{"role": "user", "content": probe}], tokenize=False):
        return records
    part = lambda turn: {**turn, "content": [{"type": "text", "text": turn["content"]}]}  # noqa: E731
    return [{key: [part(turn) for turn in value] if key != "tools" else value for key, value in record.items()} for record in records]


def rendered_by_trl(records: list[dict], tokenizer) -> list[tuple]:
    """Empty if the tokenizer's template refuses them: templates for images, for other roles, …"""
    try:
        return tokens_of_trl(as_the_template_reads_them(records, tokenizer), tokenizer)
    except Exception:  # noqa: BLE001
        return []


def tokens_of_sftrun(sftrun: Sftrun, config: Path, count: int, **overrides) -> list[tuple]:
    settings = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
    command = [sftrun.path, "preview", "--config", str(config), "-n", str(count), "--json", *settings]
    # It shows the sequences, and then refuses templates whose end-of-turn tokens the tokenizer does not have.
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if not done.stdout.startswith("{"):
        raise RuntimeError(f"{' '.join(command)}\nexited with {done.returncode}:\n{done.stderr[-3000:]}")
    (data_set,) = json.loads(done.stdout)["data_sets"]
    return [(sequence["input_ids"], sequence["labels"]) for sequence in data_set["sequences"]]


def check_tokens(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    rng = random.Random(11)
    texts, chats = text_records(rng, 40), chat_records(rng, 6)
    tools = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}}]
    with_tools = [{**record, "tools": json.dumps(tools)} for record in chats[:2]]
    # X_training is X with marks around answers and few other changes; random_chats_parity.py renders them, too.
    templates = {"chatml": CHATML, **{name: text for name, text in of_trl().items() if not (quick and name.endswith("_training"))}}
    for adds_bos in (False, True):
        model = make_model(scratch / f"tokens-{adds_bos}", adds_bos)
        tokenizer = AutoTokenizer.from_pretrained(model)
        sets = {"texts": texts, "implicit texts": [implicit(record) for record in texts], "conversations": chats}
        sets["implicit conversations"] = [implicit(record) for record in chats]
        for name, records in sets.items():
            data = write_jsonl(scratch / "tokens.jsonl", records)
            ours = tokens_of_sftrun(sftrun, write_run(scratch / "tokens.yaml", model, data), len(records))
            verdicts.expect(f"{name}{', BOS' if adds_bos else ''}", ours == tokens_of_trl(records, tokenizer), f"{len(ours)} sequences")
    compared = 0
    for name, template in templates.items():
        (scratch / "template.jinja").write_text(template)
        tokenizer.chat_template = template
        # Together, because most of the time is the program's start (tools first: from_list takes the keys of the first record); each alone if
        # TRL does not render the tools or the records without.
        for sets in ([with_tools + chats], [with_tools, chats]):
            rendered = [(records, theirs) for records in sets if (theirs := rendered_by_trl(records, tokenizer))]
            if rendered:
                break
        for records, theirs in rendered:
            data = write_jsonl(scratch / "tokens.jsonl", records)
            config = write_run(scratch / "tokens.yaml", model, data)
            ours = tokens_of_sftrun(sftrun, config, len(records), model__chat_template=scratch / "template.jinja")
            compared += len(records)
            if ours != theirs:
                verdicts.expect(f"template {name}", False)
    verdicts.expect("every template of TRL that renders the records", compared >= MIN_RENDERED * len(templates) * len(chats + with_tools),
                    f"{compared} records compared")


# ---- Training


def trl_settings(scratch: Path) -> DPOConfig:
    return DPOConfig(
        output_dir=str(scratch / "trl"), per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATION, max_steps=STEPS,
        learning_rate=LEARNING_RATE, lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=0.5, weight_decay=0.0, optim="adamw_torch",
        beta=BETA, loss_type=["sigmoid"], max_length=None, bf16=False, gradient_checkpointing=False, train_sampling_strategy="sequential",
        logging_steps=1, save_strategy="no", report_to="none", use_cpu=True, seed=1, disable_tqdm=True,
    )


def logged_by_trl(trainer: DPOTrainer) -> list[dict]:
    """@return what it logs of each step"""
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def fp32_model(directory: Path) -> LlamaForCausalLM:
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def train_with_trl(model: Path, adapter: Path, records: list[dict], scratch: Path) -> list[dict]:
    """@return what it logs of each step"""
    lora = LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=LORA["target_modules"], task_type="CAUSAL_LM")
    tokenizer = AutoTokenizer.from_pretrained(model)
    trainer = DPOTrainer(
        model=fp32_model(model), args=trl_settings(scratch), train_dataset=datasets.Dataset.from_list(records), processing_class=tokenizer,
        peft_config=lora,
    )
    initial = load_file(adapter / "adapter_model.safetensors")
    loaded = 0
    with torch.no_grad():
        for name, parameter in trainer.model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(initial[name.replace(".default.", ".")])
                loaded += 1
    assert loaded == len(initial), f"{loaded} of {len(initial)} tensors"
    return logged_by_trl(trainer)


def compare_with_trl(verdicts: Verdicts, name: str, ours: list[dict], theirs: list[dict], starts_there: bool = True) -> None:
    """@param starts_there the reference is the model as it starts"""
    verdicts.expect(f"{name}: steps", len(ours) == len(theirs) == STEPS, f"{len(ours)}, {len(theirs)}")
    if starts_there:
        verdicts.below(f"{name}: first loss is ln 2", max(abs(run[0]["loss"] - math.log(2)) for run in (ours, theirs)), 1e-6)
    else:
        verdicts.expect(f"{name}: first loss is not ln 2", abs(ours[0]["loss"] - math.log(2)) > 1000 * LOSS, f"{ours[0]['loss']:.4f}")
    losses = [line["loss"] for line in theirs]
    moved = max(losses) - min(losses)
    verdicts.expect(f"{name}: training moves the loss", moved > 1000 * LOSS, f"{moved:.1e}")
    for key, limit in {"loss": LOSS, "grad_norm": GRAD_NORM, **dict.fromkeys(METRICS, REWARD)}.items():
        worst = max(abs(a[key] - b[key]) / max(1, abs(b[key])) for a, b in zip(ours, theirs))
        verdicts.below(f"{name}: {key}", worst, limit)


def check_training(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    model = make_model(scratch / "model", adds_bos=False)
    rng = random.Random(5)
    count = STEPS * BATCH * ACCUMULATION
    initial = None
    for name, records in {"texts": text_records(rng, count), "conversations": chat_records(rng, count)}.items():
        data = write_jsonl(scratch / f"{name}.jsonl", records)
        config = write_run(scratch / f"{name}.yaml", model, data)
        if not initial:  # the adapter, for TRL: a step without a learning rate changes nothing
            initial = scratch / "initial"
            sftrun.train(config, initial, train__max_steps=1, train__learning_rate=0)
        theirs = train_with_trl(model, initial / "adapter", records, scratch)
        for backend in (QUICK_BACKENDS[name],) if quick else ("fused", "bnb"):
            output = scratch / f"{name}-{backend}"
            compare_with_trl(verdicts, f"{name}, {backend}", sftrun.train(config, output, tuning__backend=backend), theirs)


def check_processes(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    model = make_model(scratch / "processes-model", adds_bos=True)
    data = write_jsonl(scratch / "processes.jsonl", chat_records(random.Random(6), 30))
    config = write_run(scratch / "processes.yaml", model, data, {"model__max_seq_len": 256})
    for packing in (False, True):
        first = None
        for processes, accumulation in ((1, 1), QUICK_SHARES[packing]) if quick else ((1, 1), (1, 2), (2, 1), (2, 2)):
            name = f"packing {'on' if packing else 'off'}, {processes} x {accumulation}"
            output = scratch / name.replace(" ", "-")
            share = {"train__batch_size": 4 // (processes * accumulation), "train__grad_accum": accumulation}
            sftrun.train(config, output, processes, data__packing=packing, train__gradient_checkpointing=accumulation == 2, **share)
            ours = training_metrics(output)
            first = first or ours
            for key, limit in {"loss": LOSS, "grad_norm": GRAD_NORM, **dict.fromkeys(METRICS, REWARD)}.items():
                worst = max(abs(a[key] - b[key]) / max(1, abs(b[key])) for a, b in zip(ours, first))
                verdicts.below(f"{name}: {key}", worst, limit)


# ---- The reference model


@dataclass(frozen=True)
class ReferenceCase:
    """A way to train whose reference model is not the base with a new adapter switched off."""

    name: str
    settings: dict  # of the run's YAML
    is_start: bool = True  # its reference model is the model as it starts


def reference_cases(adapter: Path) -> list[ReferenceCase]:
    started = {"tuning__lora": {**LORA, "init_from": str(adapter)}}
    slow = {"train__learning_rate": LEARNING_RATE / 10}
    return [
        ReferenceCase("trained adapter", started),
        ReferenceCase("trained adapter, base", {**started, "train__reference": "base"}, is_start=False),
        ReferenceCase("trained head", {"tuning__lora": {**LORA, "modules_to_save": ["lm_head"]}, **slow}),
        ReferenceCase("full", {"tuning__mode": "full", **slow}),
    ]


def trl_of_case(case: ReferenceCase, model: Path, adapter: Path, initial: Path) -> tuple:
    """@return TRL's model and reference model; None: what it makes of the model"""
    base = fp32_model(model)
    if case.settings.get("tuning__mode") == "full":
        return base, fp32_model(model)
    if "init_from" in case.settings["tuning__lora"]:
        trained = PeftModel.from_pretrained(base, adapter, is_trainable=True)
        return trained, None if case.is_start else fp32_model(model)
    # A of the new adapter as sftrun draws it. The head begins as the base's: the base is the reference model.
    return PeftModel.from_pretrained(base, initial, is_trainable=True), fp32_model(model)


def compare_runs(verdicts: Verdicts, name: str, ours: list[dict], others: list[dict], rounds_start: bool = False) -> None:
    """@param rounds_start reference values are rounded in another way, so that the margins of the first step are not 0, but of either sign"""
    verdicts.expect(f"{name}: steps", len(ours) == len(others) == STEPS, f"{len(ours)}, {len(others)}")
    for key, limit in {"loss": LOSS, "grad_norm": GRAD_NORM, **dict.fromkeys(METRICS, REWARD)}.items():
        first = 1 if rounds_start and key == "rewards/accuracies" else 0
        worst = max(abs(a[key] - b[key]) / max(1, abs(b[key])) for a, b in list(zip(ours, others))[first:])
        verdicts.below(f"{name}: {key}", worst, limit)


def check_beside_trl(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool, model: Path, adapter: Path) -> None:
    records = chat_records(random.Random(5), STEPS * BATCH * ACCUMULATION)
    data = write_jsonl(scratch / "reference.jsonl", records)
    for case in reference_cases(adapter):
        place = case.name.replace(", ", "-").replace(" ", "-")
        config = write_run(scratch / f"{place}.yaml", model, data, case.settings)
        initial = scratch / f"{place}-initial"
        if "modules_to_save" in case.settings.get("tuning__lora", {}):
            sftrun.train(config, initial, train__max_steps=1, train__learning_rate=0)
        policy, reference = trl_of_case(case, model, adapter, initial / "adapter")
        settings = trl_settings(scratch)
        settings.learning_rate = case.settings.get("train__learning_rate", LEARNING_RATE)
        theirs = logged_by_trl(DPOTrainer(
            model=policy, ref_model=reference, args=settings, train_dataset=datasets.Dataset.from_list(records),
            processing_class=AutoTokenizer.from_pretrained(model),
        ))
        for backend in ("fused",) if quick else ("fused", "bnb"):
            ours = sftrun.train(config, scratch / f"{place}-{backend}", tuning__backend=backend)
            compare_with_trl(verdicts, f"{case.name}, {backend}", ours, theirs, case.is_start)
        # One pair a process is one of TRL's micro-batches of two.
        for strategy in ("fsdp",) if quick else ("ddp", "fsdp"):
            ours = sftrun.train(config, scratch / f"{place}-{strategy}", 2, train__batch_size=1, parallel__strategy=strategy)
            compare_with_trl(verdicts, f"{case.name}, {strategy} of 2", ours, theirs, case.is_start)


def check_strategies(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool, adapter_of: Callable[[Path], Path]) -> None:
    """Every strategy, as one process. A tied embedding is read by two stages of a pipeline; PiSSA's start is not in any file."""
    tied = make_model(scratch / "tied-model", adds_bos=True, is_tied=True)
    data = write_jsonl(scratch / "strategies.jsonl", chat_records(random.Random(6), 30))
    slow = {"train__learning_rate": LEARNING_RATE / 10}
    cases = {
        "tied, full": {"tuning__mode": "full", **slow},
        "tied, adapter": {"tuning__lora": {**LORA, "init_from": str(adapter_of(tied))}},
        "tied, trained embedding": {"tuning__lora": {**LORA, "modules_to_save": ["embed_tokens"]}, **slow},
        "tied, DoRA": {"tuning__lora": {**LORA, "dora": True, "init_from": str(adapter_of(tied, dora=True))}},
        "tied, PiSSA": {"tuning__lora": {**LORA, "init": "pissa"}, **slow},
    }
    share = {"train__batch_size": 4, "train__grad_accum": 2}
    for name, settings in cases.items():
        place = name.replace(", ", "-").replace(" ", "-")
        config = write_run(scratch / f"{place}.yaml", tied, data, {"model__max_seq_len": 256, **settings})
        one = sftrun.train(config, scratch / f"{place}-one", **share)
        verdicts.below(f"{name}: first loss is ln 2", abs(one[0]["loss"] - math.log(2)), 1e-6)
        moved = max(abs(line["loss"] - math.log(2)) for line in one)
        verdicts.expect(f"{name}: training moves the loss", moved > 1000 * LOSS, f"{moved:.1e}")
        trains_base = settings.get("tuning__mode") == "full"
        tensor = () if "PiSSA" in name else ("tensor",)  # it needs whole matrices
        for strategy in ("pipeline",) if quick else ("ddp", *(("zero1", "zero2") if trains_base else ()), "fsdp", "pipeline", *tensor):
            accumulation = 2 if strategy in ("pipeline", "tensor") else 1
            divided = {"train__batch_size": 4, "train__grad_accum": accumulation, "parallel__strategy": strategy}
            compare_runs(verdicts, f"{name}, {strategy} of 2", sftrun.train(config, scratch / f"{place}-{strategy}", 2, **divided), one)
        constant = {"train__scheduler": "constant", **share}
        whole = sftrun.train(config, scratch / f"{place}-whole", **constant)
        for processes in (1,) if quick else (1, 2):
            output, divided = scratch / f"{place}-resumed-{processes}", {**constant, "train__grad_accum": 2 // processes}
            sftrun.train(config, output, processes, train__max_steps=2, **divided)
            command = sftrun.train_command(config, output, processes, {key.replace("__", "."): value for key, value in divided.items()})
            sftrun.run(*command[1:], "--allow-changed-length")
            ours = training_metrics(output)
            compare_runs(verdicts, f"{name}, resumed, {processes} processes", ours, whole)
            if processes == 1:
                same = all(a["loss"] == b["loss"] for a, b in zip(ours, whole))
                verdicts.expect(f"{name}: resumed = uninterrupted, to the bit", same)


def check_precomputed(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool, adapter_of: Callable[[Path], Path]) -> None:
    """Log-probabilities that are computed before the first step give the losses of those of each step: of the start and of the base, and by
    path of the adapter, its run, the base and a GGUF file of it. A second run reads them from the cache."""
    model = make_model(scratch / "precomputed-model", adds_bos=False, splits_words=True)
    adapter = adapter_of(model)
    data = write_jsonl(scratch / "precomputed.jsonl", chat_records(random.Random(9), 30))
    held_out = write_jsonl(scratch / "held-out.jsonl", chat_records(random.Random(10), 7))
    gguf = scratch / "base.gguf"
    sftrun.run("merge", "--model", str(model), "--output", str(gguf), "--dtype", "f32")
    evaluated = {"data__val": str(held_out), "train__eval_strategy": "steps", "train__eval_steps": 2}
    lora = {"tuning__lora": {**LORA, "init_from": str(adapter)}}
    full = {"tuning__mode": "full", "train__learning_rate": LEARNING_RATE / 10}
    cases = {
        "start": (lora, "start", ["start", str(adapter), str(adapter.parent)]),
        "base": (lora, "base", ["base", str(model), str(gguf)]),
        "full": (full, "start", ["start", str(model)]),
    }
    for name, (settings, online, references) in cases.items():
        config = write_run(scratch / f"precomputed-{name}.yaml", model, data, {"model__max_seq_len": 256, **evaluated, **settings})
        share = {"train__batch_size": 4, "train__grad_accum": 2}
        expected = sftrun.train(config, scratch / f"online-{name}", train__reference=online, **share)
        for number, reference in enumerate(references[:2] if quick else references):
            output = scratch / f"precomputed-{name}-{number}"
            cache = scratch / f"cache-{name}-{number}"
            asked = {"train__reference": reference, "train__reference_logps": "precomputed", "data__cache_dir": cache, **share}
            compare_runs(verdicts, f"precomputed {name}, {Path(reference).name}", sftrun.train(config, output, **asked), expected, rounds_start=True)
            same = all(abs(a["eval_loss"] - b["eval_loss"]) < LOSS for a, b in zip(evaluations(output), evaluations(scratch / f"online-{name}")))
            verdicts.expect(f"precomputed {name}, {Path(reference).name}: evaluations", same and len(evaluations(output)) > 0)
            verdicts.expect(f"precomputed {name}, {Path(reference).name}: not cached", "are cached" not in log_of(output))
            again = scratch / f"cached-{name}-{number}"
            compare_runs(verdicts, f"cached {name}, {Path(reference).name}", sftrun.train(config, again, **asked), expected, rounds_start=True)
            verdicts.expect(f"cached {name}, {Path(reference).name}: from the cache", "are cached" in log_of(again))
        resumed = scratch / f"precomputed-{name}-resumed"
        constant = {"train__reference": references[1], "train__scheduler": "constant", "train__reference_logps": "precomputed", **share}
        whole = sftrun.train(config, scratch / f"precomputed-{name}-whole", **constant)
        sftrun.train(config, resumed, **constant, train__max_steps=2)
        command = sftrun.train_command(config, resumed, 1, {key.replace("__", "."): value for key, value in constant.items()})
        sftrun.run(*command[1:], "--allow-changed-length")
        same = [line["loss"] for line in training_metrics(resumed)] == [line["loss"] for line in whole]
        verdicts.expect(f"precomputed {name}: resumed = uninterrupted, to the bit", same)
        for strategy in ("pipeline",) if quick else ("ddp", "zero2", "fsdp", "pipeline", "tensor"):
            if strategy == "zero2" and "tuning__mode" not in settings:
                continue
            for reference in references[:2]:
                divided = {"train__batch_size": 4, "train__grad_accum": 2 if strategy in ("pipeline", "tensor") else 1, "parallel__strategy": strategy}
                output = scratch / f"precomputed-{name}-{strategy}-{Path(reference).name}"
                ours = sftrun.train(config, output, 2, train__reference=reference, train__reference_logps="precomputed", **divided)
                compare_runs(verdicts, f"precomputed {name}, {Path(reference).name}, {strategy} of 2", ours, expected, rounds_start=True)


def check_evaluated(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    """`sftrun eval` of a run on pairs gives what its last evaluation gave."""
    model = make_model(scratch / "evaluated-model", adds_bos=False, splits_words=True)
    data = write_jsonl(scratch / "evaluated.jsonl", chat_records(random.Random(9), 16))
    held_out = write_jsonl(scratch / "evaluated-val.jsonl", chat_records(random.Random(10), 7))
    evaluated = {"data__val": str(held_out), "train__eval_strategy": "steps", "train__eval_steps": 2, "train__max_steps": 2}
    for name, settings in {"dpo": {}, "mixture": {"train__loss_type": {"sigmoid": 0.8, "sft": 1.0}}, "simpo": {"train__objective": "simpo"},
                           "orpo": {"train__objective": "orpo"}, "full": {"tuning__mode": "full", "train__learning_rate": LEARNING_RATE / 10},
                           "start": {}}.items():
        start = {"tuning.lora.init_from": scratch / "evaluated-dpo/adapter"} if name == "start" else {}
        if quick and name in ("simpo", "orpo"):
            continue
        config = write_run(scratch / f"evaluated-{name}.yaml", model, data, {"model__max_seq_len": 256, **evaluated, **settings})
        output = scratch / f"evaluated-{name}"
        sftrun.train(config, output, train__batch_size=4, train__grad_accum=1, **start)
        last = evaluations(output)[-1]
        for flags in ([],) if quick else ([], ["--pp", "2", "--nproc-per-node", "2"], ["--nproc-per-node", "2"]):
            ours = json.loads(sftrun.run("eval", "--config", str(config), "--device", "cpu", "--json", *flags, f"output.dir={output}",
                                        *(f"{key}={value}" for key, value in start.items())))["model" if name == "full" else "adapter"]
            worst = max(abs(value - last[f"eval_{key}"]) for key, value in ours.items() if key != "sets")
            verdicts.below(f"eval of {name} {' '.join(flags)}: {len(ours)} values of the last evaluation", worst, LOSS)
            verdicts.expect(f"eval of {name}: accuracy", "rewards/accuracies" in ours, str(ours))
    refused = subprocess.run([sftrun.path, "eval", "--config", str(config), "--device", "cpu", "train.ld_alpha=0.5", f"tuning.lora.init_from={output}/adapter", f"output.dir={output}"], capture_output=True, text=True)
    verdicts.expect("eval with ld_alpha and another reference than the base is refused", refused.returncode == 2 and "train.ld_alpha=1" in refused.stderr, refused.stderr[-500:])


def evaluations(run_directory: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval_loss" in line]


def log_of(run_directory: Path) -> str:
    return "".join(path.read_text() for path in sorted((run_directory / "logs").glob("*")) if path.is_file())


def check_reference(sftrun: Sftrun, scratch: Path, verdicts: Verdicts, quick: bool) -> None:
    records = text_records(random.Random(8), STEPS * BATCH * ACCUMULATION)
    data = write_jsonl(scratch / "first.jsonl", records)

    def adapter_of(model: Path, dora: bool = False) -> Path:
        """An adapter with B other than zero."""
        output = scratch / f"{model.name}-first{'-dora' if dora else ''}"
        config = write_run(output.with_suffix(".yaml"), model, data, {"tuning__lora": {**LORA, "dora": dora}, "train__seed": 3})
        sftrun.train(config, output)
        return output / "adapter"

    model = make_model(scratch / "reference-model", adds_bos=False)
    check_beside_trl(sftrun, scratch, verdicts, quick, model, adapter_of(model))
    check_precomputed(sftrun, scratch, verdicts, quick, adapter_of)
    check_evaluated(sftrun, scratch, verdicts, quick)
    check_strategies(sftrun, scratch, verdicts, quick, adapter_of)


PARTS = {"tokens": check_tokens, "training": check_training, "processes": check_processes, "reference": check_reference}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--quick", action="store_true", help="a part of each, as in `make test`: see above")
    args = parser.parse_args()
    datasets.disable_progress_bars()
    datasets.disable_caching()
    logging.getLogger("trl").setLevel(logging.ERROR)
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as temporary:
        for part in args.only:
            try:
                PARTS[part](Sftrun(args.sftrun), Path(temporary), verdicts, args.quick)
            except RuntimeError as error:
                verdicts.expect(part, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
