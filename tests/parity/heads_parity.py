"""Reward models and classifiers beside transformers and PEFT, on a CPU in fp32.

    python tests/parity/heads_parity.py --sftrun build/bin/sftrun [--only training packed reward judge fresh strategies] [--families llama] [--quick]

training    5 steps of a tiny Llama, Qwen 2, Gemma 2 and Gemma 3 whose files are ...ForSequenceClassification: reward (with margins and centering),
            one label, several labels; LoRA and full, by both backends: loss, gradient norm and accuracy beside a plain loop over
            AutoModelForSequenceClassification (its own pooling, AdamW). 1 and 2 processes x accumulation 1 and 2, packed and not: the same losses.
            `sftrun score` and `eval` give the loop's scores, loss, accuracy and confusion. What was saved loads by AutoModelForSequenceClassification (full) and PEFT (LoRA) and gives the loop's scores
packed      three steps of one packed sequence: the losses of its examples one by one
reward      the same batches through TRL's RewardTrainer: loss, accuracy, margin and mean reward
judge       `sftrun serve` of a reward model as the reward `reward_model` of `sftrun reward` and of a GRPO run, of texts and chats: transformers' scores, in fp32 to 1e-5
fresh       a head that begins anew, on a causal model: values normal(0, initializer_range), the same on 1 and 2 processes; class names from the data;
            labels.json and config.json
strategies  fsdp, zero1, zero2, zero3, tensor, pipeline, QLoRA, checkpointing: the losses of one process

--quick takes two families, one backend, and two ways to divide a batch. Each family has each case with one of the modes, and each strategy has one mode of each case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import Served, Sftrun, Verdicts  # noqa: I001  (sets sys.path)

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import yaml
from dpo_parity import chat_records, make_tokenizer, words, write_jsonl
from peft import LoraConfig, PeftModel, TaskType, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, Gemma2Config, Gemma3TextConfig, LlamaConfig, PreTrainedTokenizerFast, Qwen2Config

STEPS, BATCH, LEARNING_RATE, FULL_LEARNING_RATE, MAX_GRAD_NORM = 5, 4, 0.01, 1e-4, 0.5
LOSS, GRAD_NORM, METRIC, SAME, SCORE, JUDGED = 1e-5, 1e-4, 1e-4, 1e-6, 2e-5, 1e-5
LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SHARES = [(1, 1), (1, 2), (2, 1), (2, 2)]  # processes and accumulation
CLASSES = ["anger", "joy", "surprise"]
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "initializer_range": 0.15, "bos_token_id": 0, "eos_token_id": 1,
}
FAMILIES = {
    "llama": (LlamaConfig, {}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "gemma2": (Gemma2Config, {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}),
    "gemma3_text": (Gemma3TextConfig, {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}),
}


# ---- Cases


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict  # of `train`
    num_labels: int
    problem_type: str | None = None
    chats: bool = False
    has_padding: bool = True

    @property
    def is_reward(self) -> bool:
        return self.settings["objective"] == "reward"


CASES = [
    Case("reward", {"objective": "reward"}, 1),
    Case("reward, chats, centered", {"objective": "reward", "center_rewards_coefficient": 0.05}, 1, chats=True, has_padding=False),
    Case("one label", {"objective": "classify"}, 3, "single_label_classification"),
    Case("several labels", {"objective": "classify"}, 3, "multi_label_classification", chats=True),
]


def make_records(case: Case, count: int) -> list[dict]:
    rng = random.Random(3)
    if case.is_reward:
        if case.chats:
            return chat_records(rng, count)
        texts = [{"prompt": words(rng, 8) + " =>", "chosen": " " + words(rng, 8), "rejected": " " + words(rng, 8)} for _ in range(count)]
        return [{**record, "margin": rng.choice([0, 0.5, 1.25])} for record in texts]
    records = []
    for i in range(count):
        text = [{"role": "user", "content": words(rng, 10)}] if case.chats else words(rng, 12)
        record = {"messages": text} if case.chats else {"text": text}
        if case.problem_type == "single_label_classification":
            record["label"] = CLASSES[i % 3] if i < 6 else rng.choice(CLASSES)
        else:
            record["labels"] = rng.sample(CLASSES, rng.randint(0, 3)) if i else CLASSES
        records.append(record)
    return records


def make_model(directory: Path, family: str, case: Case | None) -> Path:
    """With a head of scores of its own, or, without a case, a causal model."""
    torch.manual_seed(7)
    tokenizer = make_tokenizer(adds_bos=True)
    if case is None or case.has_padding:
        tokenizer.add_special_tokens({"pad_token": "<pad>"})
    kind, extra = FAMILIES[family]
    has_padding = tokenizer.pad_token_id is not None
    config = kind(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id if has_padding else None, **SIZES, **extra)
    if case is None:
        model = AutoModelForCausalLM.from_config(config)
    else:
        config.num_labels, config.problem_type = case.num_labels, case.problem_type
        if not case.is_reward:
            config.id2label, config.label2id = dict(enumerate(CLASSES)), {name: i for i, name in enumerate(CLASSES)}
        model = AutoModelForSequenceClassification.from_config(config)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # not all the same
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


# ---- The reference


def ids_of(record: dict, case: Case, tokenizer) -> list[list[int]]:
    """One sequence, or those of a pair."""
    if case.is_reward and case.chats:
        return [tokenizer.apply_chat_template(record["prompt"] + record[key], return_dict=False) for key in ("chosen", "rejected")]
    if case.is_reward:
        return [tokenizer(record["prompt"] + record[key] + tokenizer.eos_token)["input_ids"] for key in ("chosen", "rejected")]
    if case.chats:
        return [tokenizer.apply_chat_template(record["messages"], return_dict=False)]
    return [tokenizer(record["text"])["input_ids"]]


def target_of(record: dict, case: Case) -> torch.Tensor:
    if case.is_reward:
        return torch.tensor(float(record.get("margin", 0)))
    if case.problem_type == "single_label_classification":
        return torch.tensor(CLASSES.index(record["label"]))
    return torch.tensor([float(name in record["labels"]) for name in CLASSES])


def scores_of(model, sequences: list[list[int]]) -> torch.Tensor:
    return torch.cat([model(torch.tensor([ids])).logits for ids in sequences])


def loss_of(scores: torch.Tensor, target: torch.Tensor, case: Case) -> torch.Tensor:
    if case.is_reward:
        chosen, rejected = scores[:, 0]
        loss = -torch.nn.functional.logsigmoid(chosen - rejected - target)
        return loss + case.settings.get("center_rewards_coefficient", 0) * (chosen + rejected) ** 2
    if case.problem_type == "single_label_classification":
        return torch.nn.functional.cross_entropy(scores, target[None])
    return torch.nn.functional.binary_cross_entropy_with_logits(scores, target[None])


def is_right(scores: torch.Tensor, target: torch.Tensor, case: Case) -> bool:
    if case.is_reward:
        return bool(scores[0, 0] > scores[1, 0])
    if case.problem_type == "single_label_classification":
        return scores.argmax().item() == target.item()
    return bool(((scores[0] > 0) == (target > 0)).all())


def train_reference(model, records: list[dict], case: Case, tokenizer, learning_rate: float) -> list[dict]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    lines = []
    for step in range(STEPS):
        batch = records[step * BATCH : (step + 1) * BATCH]
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / STEPS)
        loss, right = 0.0, 0
        for record in batch:
            scores, target = scores_of(model, ids_of(record, case, tokenizer)), target_of(record, case)
            own = loss_of(scores, target, case) / len(batch)
            own.backward()
            loss, right = loss + own.item(), right + is_right(scores, target, case)
        norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM).item()
        optimizer.step()
        optimizer.zero_grad()
        lines.append({"loss": loss, "grad_norm": norm, "accuracy": right / len(batch)})
    return lines


def reference_model(base: Path, mode: str, zero_adapter: Path | None):
    model = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32)
    if mode == "full":
        return model.train()
    return PeftModel.from_pretrained(model, zero_adapter, is_trainable=True).train()


# ---- Runs


def write_run(path: Path, model: Path, data: Path, case: Case, mode: str, **sections) -> Path:
    run = {
        "model": {"name": str(model), "max_seq_len": 256, "dtype": "fp32"},
        "tuning": {"mode": mode, **({} if mode == "full" else {"lora": LORA})},
        "data": {"train": str(data), "shuffle": False, "packing": False, "cache_dir": "none"},
        "train": {
            "max_steps": STEPS, "batch_size": BATCH, "grad_accum": 1, "scheduler": "linear", "warmup_steps": 0, "max_grad_norm": MAX_GRAD_NORM,
            "learning_rate": FULL_LEARNING_RATE if mode == "full" else LEARNING_RATE, "save_every": "0", **case.settings,
        },
        "output": {"tensorboard": False},
    }
    for section, values in sections.items():
        run[section] = {**run.get(section, {}), **values}
    path.write_text(yaml.safe_dump(run))
    return path


def largest(ours: list[dict], reference: list[dict], key: str) -> float:
    return max(abs(a[key] - b[key]) / max(1.0, abs(b[key])) for a, b in zip(ours, reference, strict=True))


def check_training(sftrun: Sftrun, verdicts: Verdicts, root: Path, families: list[str], quick: bool) -> None:
    for family in families:
        for case in CASES:
            directory = root / f"{family}-{case.name.replace(', ', '-').replace(' ', '-')}"
            directory.mkdir()
            base = make_model(directory / "base", family, case)
            tokenizer = PreTrainedTokenizerFast.from_pretrained(base)  # of some families AutoTokenizer has a class with other tokens
            records = make_records(case, STEPS * BATCH)
            data = write_jsonl(directory / "train.jsonl", records)
            # With --quick each family has each case, and both have both modes.
            for mode in ("lora", "full") if not quick else (("lora", "full")[(families.index(family) + CASES.index(case)) % 2],):
                name = f"{family}, {case.name}, {mode}"
                run = write_run(directory / f"{mode}.yaml", base, data, case, mode)
                start = None
                if mode == "lora":  # A and B as sftrun draws them
                    sftrun.train(run, directory / "start", train__max_steps=1, train__learning_rate=1e-30)
                    start = directory / "start" / "adapter"
                model = reference_model(base, mode, start)
                learning_rate = FULL_LEARNING_RATE if mode == "full" else LEARNING_RATE
                reference = train_reference(model, records, case, tokenizer, learning_rate)
                model.eval()
                with torch.no_grad():
                    scores = torch.cat([scores_of(model, ids_of(record, case, tokenizer)) for record in records])
                first = None
                for backend in ["fused"] if quick else ["fused", "bnb"]:
                    output = directory / f"{mode}-{backend}"
                    ours = sftrun.train(run, output, tuning__backend=backend)
                    verdicts.below(f"{name}, {backend}: loss", largest(ours, reference, "loss"), LOSS)
                    verdicts.below(f"{name}, {backend}: grad_norm", largest(ours, reference, "grad_norm"), GRAD_NORM)
                    verdicts.below(f"{name}, {backend}: accuracy", largest(ours, reference, "accuracy"), METRIC)
                    first = first or ours
                check_saved(verdicts, name, base, directory / f"{mode}-fused", mode, case, tokenizer, records, scores)
                check_scores(sftrun, verdicts, name, directory, mode, case, records, scores)
                check_eval(sftrun, verdicts, name, run, directory / f"{mode}-fused", data, case, records, scores)
                check_shares(sftrun, verdicts, name, run, directory / f"{mode}-shares", first, quick, mode)


def check_saved(verdicts: Verdicts, name: str, base: Path, output: Path, mode: str, case: Case, tokenizer, records: list[dict], scores) -> None:
    if mode == "full":
        config = json.loads((output / "model" / "config.json").read_text())
        verdicts.expect(f"{name}: architectures", config["architectures"][0].endswith("ForSequenceClassification"), str(config["architectures"]))
        verdicts.expect(f"{name}: labels in config.json", config["num_labels"] == len(config["id2label"]) == case.num_labels)
        verdicts.expect(f"{name}: padding in config.json", isinstance(config["pad_token_id"], int), str(config["pad_token_id"]))
        model = AutoModelForSequenceClassification.from_pretrained(output / "model", dtype=torch.float32)
    else:
        config = json.loads((output / "adapter" / "adapter_config.json").read_text())
        verdicts.expect(f"{name}: task type", config["task_type"] == "SEQ_CLS" and config["modules_to_save"] == ["score"], str(config["modules_to_save"]))
        model = PeftModel.from_pretrained(AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32), output / "adapter")
    with torch.no_grad():
        loaded = torch.cat([scores_of(model.eval(), ids_of(record, case, tokenizer)) for record in records])
    verdicts.below(f"{name}: scores of what was saved", ((loaded - scores).abs().max() / scores.abs().max()).item(), SCORE)


def scored_records(record: dict, case: Case) -> list[dict]:
    """What `sftrun score` reads of a training record."""
    if case.is_reward and case.chats:
        return [{"messages": record["prompt"] + record[key]} for key in ("chosen", "rejected")]
    if case.is_reward:
        return [{"prompt": record["prompt"], "completion": record[key]} for key in ("chosen", "rejected")]
    return [{key: value for key, value in record.items() if key not in ("label", "labels")}]


def check_scores(sftrun: Sftrun, verdicts: Verdicts, name: str, directory: Path, mode: str, case: Case, records: list[dict], scores) -> None:
    inputs = [one for record in records for one in scored_records(record, case)]
    of = ["--model", str(directory / "full-fused" / "model")] if mode == "full" else ["--adapter", str(directory / "lora-fused")]
    lines = sftrun.jsonl("score", inputs, directory, *of, "--device", "cpu", "--dtype", "fp32")
    if mode == "lora":  # vLLM reads adapters of language models
        ended = subprocess.run([sftrun.path, "merge", "--format", "vllm", "--adapter", of[1] + "/adapter", "--output", directory / "vllm"], capture_output=True, text=True)
        told = "models that have a head of scores" in ended.stderr and "sftrun merge --adapter" in ended.stderr
        verdicts.expect(f"{name}, merge --format vllm refuses", ended.returncode == 2 and told, ended.stderr)
    if case.is_reward:
        ours, expected = torch.tensor([[line["score"]] for line in lines]), scores
    else:
        several = case.problem_type == "multi_label_classification"
        ours = torch.tensor([[line["probs"][label] for label in CLASSES] for line in lines])
        expected = scores.sigmoid() if several else scores.softmax(1)
        chosen = [line["labels"] if several else [line["label"]] for line in lines]
        wanted = [[c for c, s in zip(CLASSES, row) if s > 0] if several else [CLASSES[row.argmax()]] for row in scores]
        verdicts.expect(f"{name}, sftrun score: classes", chosen == wanted)
    verdicts.below(f"{name}, sftrun score", ((ours - expected).abs().max() / expected.abs().max()).item(), SCORE)


def check_eval(sftrun: Sftrun, verdicts: Verdicts, name: str, run: Path, output: Path, data: Path, case: Case, records: list[dict], scores) -> None:
    settings = [f"output.dir={output}", f"data.val={data}"]
    measured = json.loads(sftrun.run("eval", "--config", str(run), "--device", "cpu", "--json", *settings))
    ours = measured["model" if "model" in measured else "adapter"]
    of_record = scores.view(len(records), -1, scores.shape[1])
    losses = [loss_of(s, target_of(r, case), case).item() for s, r in zip(of_record, records)]
    verdicts.below(f"{name}, sftrun eval: loss", abs(ours["loss"] - sum(losses) / len(losses)), 5e-5)
    right = sum(is_right(s, target_of(r, case), case) for s, r in zip(of_record, records)) / len(records)
    verdicts.below(f"{name}, sftrun eval: accuracy", abs(ours["accuracy"] - right), 1e-9)
    if case.problem_type == "single_label_classification":
        confusion = torch.zeros(3, 3, dtype=torch.long)
        for s, r in zip(of_record, records):
            confusion[target_of(r, case), s[0].argmax()] += 1
        verdicts.expect(f"{name}, sftrun eval: confusion", ours["confusion"] == confusion.tolist(), str(ours["confusion"]))


def check_shares(sftrun: Sftrun, verdicts: Verdicts, name: str, run: Path, output: Path, first: list[dict], quick: bool, mode: str) -> None:
    """With --quick what is adapted is divided unpacked, and what is trained in full packed: each case has both."""
    for processes, accumulation in SHARES[1:] if not quick else [(2, 2)] if mode == "lora" else []:
        settings = {"train__batch_size": BATCH // processes // accumulation, "train__grad_accum": accumulation}
        ours = sftrun.train(run, Path(f"{output}-{processes}-{accumulation}"), processes, **settings)
        verdicts.below(f"{name}, {processes} x {accumulation}: loss", largest(ours, first, "loss"), SAME)
    packed: list[list[dict]] = []
    for processes, accumulation in SHARES if not quick else [(1, 1), (2, 2)] if mode == "full" else []:
        settings = {"train__batch_size": BATCH // processes // accumulation, "train__grad_accum": accumulation, "data__packing": True}
        packed.append(sftrun.train(run, Path(f"{output}-packed-{processes}-{accumulation}"), processes, train__max_steps=1, **settings))
    for ours in packed[1:]:
        verdicts.below(f"{name}, packed, divided: loss", largest(ours, packed[0], "loss"), SAME)


# ---- Packed as unpacked: one bin of all examples of a step


def check_packed(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    for case in CASES:
        directory = root / f"packed-{case.name.replace(', ', '-').replace(' ', '-')}"
        directory.mkdir()
        base = make_model(directory / "base", "llama", case)
        data = write_jsonl(directory / "train.jsonl", make_records(case, BATCH))
        run = write_run(directory / "run.yaml", base, data, case, "lora")
        single = sftrun.train(run, directory / "single", train__max_steps=3, train__epochs=3)
        packed = sftrun.train(run, directory / "packed", data__packing=True, train__batch_size=1, train__max_steps=3, model__max_seq_len=1024)
        verdicts.below(f"{case.name}: packed as unpacked, loss", largest(packed, single, "loss"), SAME)
        verdicts.below(f"{case.name}: packed as unpacked, grad_norm", largest(packed, single, "grad_norm"), 1e-5)


# ---- A head that begins anew


def check_fresh(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    directory = root / "fresh"
    directory.mkdir()
    base = make_model(directory / "base", "qwen2", None)
    case = CASES[2]
    data = write_jsonl(directory / "train.jsonl", make_records(case, STEPS * BATCH))
    run = write_run(directory / "run.yaml", base, data, case, "lora")
    one = sftrun.train(run, directory / "one")
    two = sftrun.train(run, directory / "two", 2, train__batch_size=BATCH // 2)
    verdicts.below("a new head: loss on two processes", largest(two, one, "loss"), SAME)
    sftrun.train(run, directory / "start", train__max_steps=1, train__learning_rate=1e-30)
    head = load_file(directory / "start" / "adapter" / "adapter_model.safetensors")["base_model.model.score.weight"]
    verdicts.expect("a new head: shape", list(head.shape) == [3, 32], str(list(head.shape)))
    verdicts.expect("a new head: standard deviation", 0.11 < head.std().item() < 0.19 and abs(head.mean().item()) < 0.05, f"{head.std().item():.3f}")
    labels = json.loads((directory / "one" / "adapter" / "labels.json").read_text())
    verdicts.expect("class names of the data", list(labels["id2label"].values()) == CLASSES, str(labels["id2label"]))
    kwargs = {key: value for key, value in labels.items() if value is not None}
    kwargs["id2label"] = {int(i): name for i, name in kwargs["id2label"].items()}
    model = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32, **kwargs)
    model = PeftModel.from_pretrained(model, directory / "one" / "adapter").eval()
    verdicts.expect("labels.json gives the base its labels", model.config.id2label == dict(enumerate(CLASSES)))
    full = write_run(directory / "full.yaml", base, data, case, "full")
    sftrun.train(full, directory / "full")
    loaded = AutoModelForSequenceClassification.from_pretrained(directory / "full" / "model", dtype=torch.float32)
    verdicts.expect("a new head of a full run", loaded.config.id2label == dict(enumerate(CLASSES)) and loaded.num_labels == 3)
    # The result is a base, too; with as many labels its head is kept.
    again = write_run(directory / "again.yaml", directory / "full" / "model", data, case, "lora")
    sftrun.train(again, directory / "again", train__max_steps=1, train__learning_rate=1e-30)
    kept = load_file(directory / "again" / "adapter" / "adapter_model.safetensors")["base_model.model.score.weight"]
    verdicts.below("a head is kept", (kept - loaded.score.weight).abs().max().item(), 1e-6)


STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "tensor", "pipeline")


def check_strategies(sftrun: Sftrun, verdicts: Verdicts, root: Path, quick: bool) -> None:
    for place, case in enumerate((CASES[0], CASES[3])):
        directory = root / f"strategies-{case.name.replace(' ', '-')}"
        directory.mkdir()
        base = make_model(directory / "base", "llama", case)
        data = write_jsonl(directory / "train.jsonl", make_records(case, STEPS * BATCH))
        for turn, mode in enumerate(("lora", "full"), place):
            run = write_run(directory / f"{mode}.yaml", base, data, case, mode)
            one = sftrun.train(run, directory / f"{mode}-one")
            # With --quick each strategy has both cases and both modes.
            for strategy in STRATEGIES if not quick else STRATEGIES[turn % 2 :: 2]:
                is_divided = strategy in ("tensor", "pipeline")
                output = directory / f"{mode}-{strategy}"
                ours = sftrun.train(run, output, 2, parallel__strategy=strategy, train__batch_size=BATCH if is_divided else BATCH // 2)
                verdicts.below(f"{case.name}, {mode}, {strategy}: loss", largest(ours, one, "loss"), 2e-6 if strategy == "tensor" else SAME)
                if strategy in ("fsdp", "pipeline", "tensor"):
                    file = Path("model/model.safetensors" if mode == "full" else "adapter/adapter_model.safetensors")
                    ours_, theirs = load_file(output / file), load_file(directory / f"{mode}-one" / file)
                    name = "score.weight" if mode == "full" else "base_model.model.score.weight"
                    verdicts.below(f"{case.name}, {mode}, {strategy}: score.weight", (ours_[name] - theirs[name]).abs().max().item(), 5e-5)
            if quick and turn % 2:
                continue
            checkpointed = sftrun.train(run, directory / f"{mode}-checkpointed", train__gradient_checkpointing=True)
            verdicts.below(f"{case.name}, {mode}, checkpointing: loss", largest(checkpointed, one, "loss"), SAME)
        if quick and place:
            continue
        qlora = write_run(directory / "qlora.yaml", base, data, case, "qlora")
        one = sftrun.train(qlora, directory / "qlora-one")
        two = sftrun.train(qlora, directory / "qlora-two", 2, parallel__strategy="fsdp", train__batch_size=BATCH // 2)
        verdicts.below(f"{case.name}, qlora, fsdp: loss", largest(two, one, "loss"), SAME)


# ---- TRL


def check_reward(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    import datasets
    from trl import RewardConfig, RewardTrainer

    for case in CASES[:2]:
        directory = root / f"trl-{'chats' if case.chats else 'texts'}"
        directory.mkdir()
        case = Case(case.name, case.settings, 1, chats=case.chats)
        base = make_model(directory / "base", "llama", case)
        records = make_records(case, STEPS * BATCH)
        data = write_jsonl(directory / "train.jsonl", records)
        run = write_run(directory / "run.yaml", base, data, case, "full")
        ours = sftrun.train(run, directory / "run")
        arguments = RewardConfig(
            output_dir=str(directory / "trl"), max_steps=STEPS, per_device_train_batch_size=BATCH, learning_rate=FULL_LEARNING_RATE,
            lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=MAX_GRAD_NORM, logging_steps=1, report_to="none", use_cpu=True, bf16=False,
            save_strategy="no", max_length=256, gradient_checkpointing=False, weight_decay=0.0,
            center_rewards_coefficient=case.settings.get("center_rewards_coefficient"), disable_tqdm=True,
            train_sampling_strategy="sequential",
        )
        trainer = RewardTrainer(
            model=AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32), args=arguments,
            train_dataset=datasets.Dataset.from_list(records), processing_class=AutoTokenizer.from_pretrained(base),
        )
        trainer.train()
        theirs = [line for line in trainer.state.log_history if "loss" in line]
        for key, limit in (("loss", LOSS), ("grad_norm", GRAD_NORM), ("accuracy", METRIC), ("margin", METRIC), ("mean_reward", METRIC)):
            verdicts.below(f"TRL, {case.name}: {key}", largest(ours, theirs, key), max(limit, 5e-5 if key == "loss" else 0))


# ---- A reward model as judge of sampled answers


def check_judge(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    for case in CASES[:2]:
        directory = root / f"judge-{'chats' if case.chats else 'texts'}"
        directory.mkdir()
        base, policy = make_model(directory / "base", "llama", case), make_model(directory / "policy", "llama", None)
        model, tokenizer = AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32), AutoTokenizer.from_pretrained(base)

        def score(record: dict) -> float:
            answer = record["generated"]
            pair = {"prompt": record["prompt"], "chosen": [{"role": "assistant", "content": answer}] if case.chats else answer}
            with torch.no_grad():
                return scores_of(model, ids_of({**pair, "rejected": pair["chosen"]}, case, tokenizer)[:1]).item()

        pairs = make_records(case, 12)
        answers = [{"prompt": pair["prompt"], "generated": pair["chosen"][0]["content"] if case.chats else pair["chosen"]} for pair in pairs]
        prompts = write_jsonl(directory / "prompts.jsonl", [{"prompt": pair["prompt"]} for pair in pairs])
        with Served(sftrun, base) as url:
            reward = {"name": "reward_model", "url": url, "batch_size": 3}
            rewarded = sftrun.jsonl("reward", answers, directory, f"--reward={json.dumps(reward)}")
            squashed = sftrun.jsonl("reward", answers[:2], directory, f"--reward={json.dumps(reward | {'activation': True})}")
            rollouts = {"n": 2, "max_new_tokens": 12, "num_samples": 100, "chat": case.chats, "reward": [reward, {"name": "length", "target": 9, "weight": 0.1}]}
            run = write_run(directory / "run.yaml", policy, prompts, case, "lora", train={"objective": "grpo", "max_steps": 2, "rollouts": rollouts})
            run.write_text(run.read_text().replace("  center_rewards_coefficient: 0.05\n", ""))
            lines = sftrun.train(run, directory / "run")
        name = f"judge, {'chats' if case.chats else 'texts'}"
        verdicts.below(f"{name}: sftrun reward", max(abs(line["reward"] - score(line)) for line in rewarded), JUDGED)
        verdicts.below(f"{name}: activation", max(abs(line["reward"] - torch.tensor(score(line)).double().sigmoid().item()) for line in squashed), JUDGED)
        for step, metrics in enumerate(lines):
            sampled = [json.loads(line) for line in (directory / "run" / "rollouts" / f"step-{step + 1:06}.jsonl").read_text().splitlines()]
            scores = [score(line) for line in sampled]
            verdicts.below(f"{name}: step {step + 1}", max(abs(line["rewards"]["reward_model"] - own) for line, own in zip(sampled, scores, strict=True)), JUDGED)
            verdicts.below(f"{name}: step {step + 1}, metrics", abs(metrics["rewards/reward_model/mean"] - sum(scores) / len(scores)), JUDGED)
        card = (directory / "run" / "adapter" / "README.md").read_text()
        verdicts.expect(f"{name}: the card shows the reward", f"| last reward (step 2) | {lines[-1]['reward']:.4f} |" in card)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", default=["training", "packed", "reward", "judge", "fresh", "strategies"])
    parser.add_argument("--families", nargs="+", choices=FAMILIES)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    families = arguments.families or (["llama", "gemma2"] if arguments.quick else list(FAMILIES))
    sftrun, verdicts = Sftrun(arguments.sftrun), Verdicts()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "training" in arguments.only:
            check_training(sftrun, verdicts, root, families, arguments.quick)
        if "packed" in arguments.only:
            check_packed(sftrun, verdicts, root)
        if "reward" in arguments.only:
            check_reward(sftrun, verdicts, root)
        if "judge" in arguments.only:
            check_judge(sftrun, verdicts, root)
        if "fresh" in arguments.only:
            check_fresh(sftrun, verdicts, root)
        if "strategies" in arguments.only:
            check_strategies(sftrun, verdicts, root, arguments.quick)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
