"""Embedding models beside sentence-transformers, on a CPU in fp32.

    python tests/parity/embed_parity.py --sftrun build/bin/sftrun [--only training packed strategies equal use] [--families llama] [--quick]

training    5 steps of a tiny Llama, with its head tied and not, and Gemma 2 with hard negatives, prompts and texts that are cut, mean and last token, by LoRA and in full:
            loss and gradient norm beside a plain loop over MultipleNegativesRankingLoss and CachedMultipleNegativesRankingLoss of the whole batch.
            1, 2 and 4 processes x accumulation 1, 2 and 4: the same losses. What was saved, and merged, loads as SentenceTransformer and gives the
            loop's embeddings, as `sftrun score` does. Validation: loss, accuracy and mean reciprocal rank of its batches
packed      steps of one packed sequence: the losses of its examples one by one
strategies  fsdp, zero1, zero2, zero3, tensor, pipeline, QLoRA, checkpointing: the losses of one process
equal       equal texts are not told from each other: the loss of a batch that has a record twice
use         a run whose texts are all the same says so, and generate, chat and serve refuse its result

--quick takes one family, one mode of each case, and two ways to divide a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from harness import Sftrun, Verdicts  # noqa: I001  (sets sys.path)

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
import yaml
from dpo_parity import make_tokenizer, words, write_jsonl
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.losses import CachedMultipleNegativesRankingLoss, MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Transformer
from sentence_transformers.util import cos_sim, dot_score
from tokenizers import processors
from transformers import AutoModelForCausalLM, Gemma2Config, LlamaConfig

STEPS, BATCH, LEARNING_RATE, FULL_LEARNING_RATE, MAX_GRAD_NORM = 5, 4, 0.01, 1e-4, 0.5
LOSS, GRAD_NORM, METRIC, SAME, EMBEDDING = 1e-5, 1e-4, 1e-6, 1e-6, 1e-5
# AdamW's first steps divide gradients by their size, so that rounding of small ones shows in the steps behind (measured: up to 4e-6).
LATER = 1e-5
LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SHARES = [(1, 2), (1, 4), (2, 1), (2, 2), (4, 1)]  # processes and accumulation
SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "initializer_range": 0.15, "bos_token_id": 0, "eos_token_id": 1,
}
FAMILIES = {
    "llama": (LlamaConfig, {"tie_word_embeddings": False}),
    "llama, tied": (LlamaConfig, {"tie_word_embeddings": True}),  # of Qwen AutoTokenizer has a class with other tokens
    "gemma2": (Gemma2Config, {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 16}),
}


@dataclass(frozen=True)
class Case:
    name: str
    settings: dict  # of `train`
    negatives: int = 0
    prompts: tuple[str, str] = ("", "")
    ends: bool = False  # the tokenizer ends texts with a token
    data: dict = field(default_factory=dict)

    @property
    def pooling(self) -> str:
        return "mean" if self.settings.get("pooling") == "mean" else "lasttoken"

    @property
    def normalizes(self) -> bool:
        return self.settings.get("embed_normalize", True)


CASES = [
    Case("last", {}, ends=True),
    Case("last, negatives, prompts", {"pooling": "last", "embed_temperature": 0.1}, 2, ("query: ", "text: ")),
    Case("mean, negatives", {"pooling": "mean"}, 1, ends=True),
    Case("mean, dot, symmetric", {"pooling": "mean", "embed_normalize": False, "embed_temperature": 2.0, "embed_symmetric": True}),
]
MAX_SEQ_LEN = 24


def make_records(case: Case, count: int, seed: int = 3) -> list[dict]:
    rng = random.Random(seed)
    records = []
    for number in range(count):
        text = lambda: f"{number} " + words(rng, rng.choice([1, 4, 9]))  # noqa: E731, B023  (some are cut)
        record = {"query": text(), "pos": [text()]}
        if case.negatives:
            record["neg"] = [text() for _ in range(case.negatives)]
        records.append(record)
    return records


def make_model(directory: Path, family: str, case: Case) -> Path:
    torch.manual_seed(7)
    tokenizer = make_tokenizer(adds_bos=True)
    if case.ends:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
        )
    tokenizer.add_special_tokens({"pad_token": "<pad>"})
    kind, extra = FAMILIES[family]
    model = AutoModelForCausalLM.from_config(kind(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES, **extra))
    for name, parameter in model.named_parameters():
        if "norm" in name:  # not all the same
            parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


# ---- The reference


def load(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", model_kwargs={"dtype": torch.float32})


def reference_model(base: Path, case: Case, start: Path | None) -> SentenceTransformer:
    """In full, or from the adapter that sftrun drew."""
    if start is not None:
        model = load(start)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("lora_" in name)
        return model.train()
    # Texts as such, as folders without a modality_config are read. Without this version 6 would render a chat template.
    as_text = {"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}, "module_output_name": "token_embeddings"}
    transformer = Transformer(str(base), processor_kwargs={"model_max_length": MAX_SEQ_LEN}, model_kwargs={"dtype": torch.float32}, **as_text)
    modules = [transformer, Pooling(SIZES["hidden_size"], case.pooling), *([Normalize()] if case.normalizes else [])]
    return SentenceTransformer(modules=modules, device="cpu").train()


def texts_of(records: list[dict], case: Case) -> list[list[str]]:
    query, document = case.prompts
    columns = [[query + r["query"] for r in records], [document + r["pos"][0] for r in records]]
    return columns + [[document + r["neg"][i] for r in records] for i in range(case.negatives)]


def criterion_of(model: SentenceTransformer, case: Case, cached: bool):
    similarity = cos_sim if case.normalizes else dot_score
    both = {"directions": ("query_to_doc", "doc_to_query"), "partition_mode": "per_direction"} if case.settings.get("embed_symmetric") else {}
    scale = 1 / case.settings.get("embed_temperature", 0.05)
    if cached:
        return CachedMultipleNegativesRankingLoss(model, scale=scale, similarity_fct=similarity, mini_batch_size=2, **both)
    return MultipleNegativesRankingLoss(model, scale=scale, similarity_fct=similarity, **both)


def train_reference(model: SentenceTransformer, records: list[dict], case: Case, learning_rate: float, cached: bool) -> list[dict]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    criterion = criterion_of(model, case, cached)
    lines = []
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = learning_rate * (1 - step / STEPS)
        features = [model.preprocess(texts) for texts in texts_of(records[step * BATCH : (step + 1) * BATCH], case)]
        loss = criterion(features, torch.zeros(BATCH))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM).item()
        optimizer.step()
        optimizer.zero_grad()
        lines.append({"loss": loss.item(), "grad_norm": norm})
    return lines


def embeddings_of(model: SentenceTransformer, records: list[dict]) -> torch.Tensor:
    """Queries, then texts, by the prompts that were saved."""
    queries, texts = [r["query"] for r in records], [r["pos"][0] for r in records]
    return torch.cat([model.encode_query(queries, convert_to_tensor=True), model.encode_document(texts, convert_to_tensor=True)])


# ---- Runs


def write_run(path: Path, model: Path, data: Path, case: Case, mode: str, **sections) -> Path:
    run = {
        "model": {"name": str(model), "max_seq_len": MAX_SEQ_LEN, "dtype": "fp32"},
        "tuning": {"mode": mode, **({} if mode == "full" else {"lora": LORA})},
        "data": {
            "train": str(data), "shuffle": False, "packing": False, "cache_dir": "none",
            **({"query_prompt": case.prompts[0], "document_prompt": case.prompts[1]} if any(case.prompts) else {}),
        },
        "train": {
            "objective": "embed", "max_steps": STEPS, "batch_size": BATCH, "grad_accum": 1, "scheduler": "linear", "warmup_steps": 0,
            "max_grad_norm": MAX_GRAD_NORM, "learning_rate": FULL_LEARNING_RATE if mode == "full" else LEARNING_RATE, "save_every": "0", **case.settings,
        },
        "output": {"tensorboard": False},
    }
    for section, values in sections.items():
        run[section] = {**run.get(section, {}), **values}
    path.write_text(yaml.safe_dump(run))
    return path


def largest(ours: list[dict], reference: list[dict], key: str) -> float:
    return max(abs(a[key] - b[key]) / max(1.0, abs(b[key])) for a, b in zip(ours, reference, strict=True))


def same(verdicts: Verdicts, what: str, ours: list[dict], reference: list[dict]) -> None:
    """The same weights give the same loss and gradient; those of later steps follow."""
    verdicts.below(f"{what}: loss", largest(ours[:1], reference[:1], "loss"), SAME)
    verdicts.below(f"{what}: grad_norm", largest(ours[:1], reference[:1], "grad_norm"), SAME)
    verdicts.below(f"{what}: later losses", largest(ours, reference, "loss"), LATER)


def furthest(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return ((ours - theirs).abs().max() / theirs.abs().max()).item()


def check_training(sftrun: Sftrun, verdicts: Verdicts, root: Path, families: list[str], quick: bool) -> None:
    for family in families:
        for number, case in enumerate(CASES):
            directory = root / f"{family.replace(', ', '-')}-{number}"
            directory.mkdir()
            base = make_model(directory / "base", family, case)
            records = make_records(case, STEPS * BATCH)
            data = write_jsonl(directory / "train.jsonl", records)
            for mode in ("lora", "full") if not quick else ("full" if number % 2 else "lora",):
                name = f"{family}, {case.name}, {mode}"
                run = write_run(directory / f"{mode}.yaml", base, data, case, mode)
                start = None
                if mode == "lora":  # A and B as sftrun draws them
                    sftrun.train(run, directory / "start", train__max_steps=1, train__learning_rate=1e-30)
                    start = directory / "start" / "adapter"
                learning_rate = FULL_LEARNING_RATE if mode == "full" else LEARNING_RATE
                cached = train_reference(reference_model(base, case, start), records, case, learning_rate, cached=True)
                model = reference_model(base, case, start)
                reference = train_reference(model, records, case, learning_rate, cached=False)
                ours = sftrun.train(run, directory / mode)
                verdicts.below(f"{name}: loss", largest(ours, reference, "loss"), LOSS)
                verdicts.below(f"{name}: loss of GradCache", largest(ours, cached, "loss"), LOSS)
                verdicts.below(f"{name}: grad_norm", largest(ours, reference, "grad_norm"), GRAD_NORM)
                if not quick:
                    plain = sftrun.train(run, directory / f"{mode}-plain", tuning__backend="bnb")
                    verdicts.below(f"{name}, plain: loss", largest(plain, reference, "loss"), LOSS)
                model.eval()
                model.prompts = {"query": case.prompts[0], "document": case.prompts[1]}
                with torch.no_grad():
                    embeddings = embeddings_of(model, records)
                check_saved(sftrun, verdicts, name, directory, mode, records, embeddings)
                check_shares(sftrun, verdicts, name, run, directory / f"{mode}-shares", ours, quick)
                check_validation(sftrun, verdicts, name, run, directory, mode, case, data, embeddings)


def check_saved(sftrun: Sftrun, verdicts: Verdicts, name: str, directory: Path, mode: str, records: list[dict], embeddings: torch.Tensor) -> None:
    folder = directory / mode / ("model" if mode == "full" else "adapter")
    verdicts.below(f"{name}: embeddings of what was saved", furthest(embeddings_of(load(folder), records), embeddings), EMBEDDING)
    inputs = [{"query": r["query"]} for r in records] + [{"text": r["pos"][0]} for r in records]
    of = ["--model", str(folder)] if mode == "full" else ["--adapter", str(directory / mode)]
    lines = sftrun.jsonl("score", inputs, directory, *of, "--device", "cpu", "--dtype", "fp32")
    verdicts.below(f"{name}, sftrun score", furthest(torch.tensor([line["embedding"] for line in lines]), embeddings), EMBEDDING)
    if mode == "lora":
        merged = directory / "merged"
        sftrun.run("merge", "--adapter", str(folder), "--output", str(merged), "--dtype", "fp32")
        verdicts.below(f"{name}: embeddings of the merged model", furthest(embeddings_of(load(merged), records), embeddings), EMBEDDING)


def check_shares(sftrun: Sftrun, verdicts: Verdicts, name: str, run: Path, output: Path, first: list[dict], quick: bool) -> None:
    for processes, accumulation in [(1, 4), (2, 2)] if quick else SHARES:
        settings = {"train__batch_size": BATCH // processes // accumulation, "train__grad_accum": accumulation}
        ours = sftrun.train(run, Path(f"{output}-{processes}-{accumulation}"), processes, **settings)
        same(verdicts, f"{name}, {processes} x {accumulation}", ours, first)


def check_validation(sftrun: Sftrun, verdicts: Verdicts, name: str, run: Path, directory: Path, mode: str, case: Case, data: Path, embeddings) -> None:
    """The data of training, by the trained model, in batches of training. Negatives' embeddings are not at hand, so cases with them are left out."""
    if case.negatives:
        return
    model = directory / mode / "model"
    settings = {"model__name": model} if mode == "full" else {"tuning__lora__init_from": directory / mode / "adapter"}
    measured = []
    for processes in (1, 2):
        output = directory / f"{mode}-validation-{processes}"
        overrides = {"data__val": data, "train__max_steps": 1, "train__learning_rate": 1e-30, "train__eval_on_start": True, "train__batch_size": BATCH // processes,
                     "train__eval_batch_size": 1, **settings}
        sftrun.train(run, output, processes, **overrides)
        lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
        measured.append(next(line for line in lines if "eval_loss" in line))
    queries, texts = embeddings.view(2, STEPS, BATCH, -1)
    scores = queries @ texts.transpose(1, 2) / case.settings.get("embed_temperature", 0.05)
    labels = torch.arange(BATCH).repeat(STEPS)
    entropy = torch.nn.functional.cross_entropy
    loss = entropy(scores.flatten(0, 1), labels)
    if case.settings.get("embed_symmetric"):
        loss = (loss + entropy(scores.transpose(1, 2).flatten(0, 1), labels)) / 2
    ranks = (scores > scores.diagonal(dim1=1, dim2=2)[..., None]).sum(-1).double() + 1
    wanted = {"eval_loss": loss.item(), "eval_accuracy": (ranks == 1).double().mean().item(), "eval_mrr": (1 / ranks).mean().item()}
    for key, value in wanted.items():
        for line in measured:
            verdicts.below(f"{name}, validation: {key}", abs(line[key] - value), 5e-5 if key == "eval_loss" else METRIC)


# ---- Packed as unpacked: one packed sequence of all examples of a step


def check_packed(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    for number, case in enumerate(CASES[1:3]):
        directory = root / f"packed-{number}"
        directory.mkdir()
        base = make_model(directory / "base", "llama", case)
        data = write_jsonl(directory / "train.jsonl", make_records(case, BATCH))
        run = write_run(directory / "run.yaml", base, data, case, "lora")
        single = sftrun.train(run, directory / "single", train__max_steps=3, model__max_seq_len=1024)
        packed = sftrun.train(run, directory / "packed", data__packing=True, model__max_seq_len=1024, train__batch_size=1, train__max_steps=3)
        same(verdicts, f"{case.name}: packed as unpacked", packed, single)
        many = write_jsonl(directory / "many.jsonl", make_records(case, 6 * BATCH))
        one = sftrun.train(run, directory / "bins-1", data__train=many, data__packing=True, model__max_seq_len=80, train__max_steps=2, train__batch_size=4)
        for processes, accumulation in ((2, 1), (1, 4), (2, 2)):
            ours = sftrun.train(run, directory / f"bins-{processes}-{accumulation}", processes, data__train=many, data__packing=True, model__max_seq_len=80,
                                train__max_steps=2, train__batch_size=4 // processes // accumulation, train__grad_accum=accumulation)
            same(verdicts, f"{case.name}: packed, {processes} x {accumulation}", ours, one)


def check_strategies(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    for number, case in enumerate((CASES[1], CASES[2])):
        directory = root / f"strategies-{number}"
        directory.mkdir()
        base = make_model(directory / "base", "llama", case)
        data = write_jsonl(directory / "train.jsonl", make_records(case, STEPS * BATCH))
        for mode in ("lora", "full"):
            run = write_run(directory / f"{mode}.yaml", base, data, case, mode)
            one = sftrun.train(run, directory / f"{mode}-one")
            for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp", "tensor", "pipeline"):
                is_divided = strategy in ("tensor", "pipeline")
                settings = {"parallel__strategy": strategy, "train__batch_size": BATCH // 2, "train__grad_accum": 2 if is_divided else 1}
                ours = sftrun.train(run, directory / f"{mode}-{strategy}", 2, **settings)
                same(verdicts, f"{case.name}, {mode}, {strategy}", ours, one)
            checkpointed = sftrun.train(run, directory / f"{mode}-checkpointed", train__gradient_checkpointing=True)
            same(verdicts, f"{case.name}, {mode}, checkpointing", checkpointed, one)
        qlora = write_run(directory / "qlora.yaml", base, data, case, "qlora")
        one = sftrun.train(qlora, directory / "qlora-one")
        two = sftrun.train(qlora, directory / "qlora-two", 2, parallel__strategy="fsdp", train__batch_size=BATCH // 2)
        same(verdicts, f"{case.name}, qlora, fsdp", two, one)


def check_equal(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    """A record that a batch has twice: its query is not told from the copy's text."""
    case = CASES[0]
    directory = root / "equal"
    directory.mkdir()
    base = make_model(directory / "base", "llama", case)
    records = make_records(case, BATCH)
    run = write_run(directory / "run.yaml", base, write_jsonl(directory / "once.jsonl", records), case, "lora")
    once = sftrun.train(run, directory / "once", train__max_steps=1)
    twice = [records[0], *records]
    data = write_jsonl(directory / "twice.jsonl", twice)
    ours = sftrun.train(run, directory / "twice", data__train=data, train__max_steps=1, train__batch_size=BATCH + 1)
    model = reference_model(base, case, None).eval()
    with torch.no_grad():
        queries, texts = embeddings_of(model, twice).view(2, BATCH + 1, -1)
    scores = queries @ texts.T / 0.05
    scores[0, 1] = scores[1, 0] = -torch.inf
    wanted = torch.nn.functional.cross_entropy(scores, torch.arange(BATCH + 1)).item()
    verdicts.below("equal texts: loss", abs(ours[0]["loss"] - wanted), 5e-5)
    verdicts.expect("equal texts: the loss differs from that without the copy", abs(ours[0]["loss"] - once[0]["loss"]) > 1e-4)


def check_use(sftrun: Sftrun, verdicts: Verdicts, root: Path) -> None:
    """What a run says, and what refuses its result."""
    case = CASES[0]
    directory = root / "use"
    directory.mkdir()
    base = make_model(directory / "base", "llama", case)
    same = [record | {"pos": ["the same"]} for record in make_records(case, 6 * BATCH)]
    run = write_run(directory / "run.yaml", base, write_jsonl(directory / "same.jsonl", same), case, "lora")
    sftrun.train(run, directory / "same", train__max_steps=6)
    log = (directory / "same" / "logs" / "rank-0.log").read_text()
    for words in ("data: the texts that fit the queries are all the same", "step 5: for 5 steps the texts of a batch"):
        verdicts.expect(f"use: {words}", log.count(words) == 1)
    verdicts.expect("use: hints", "sentence-transformers: " in log and "vLLM" not in log and "llama.cpp" not in log)
    adapter = ["--adapter", str(directory / "same")]
    for command in (["generate", *adapter, "--prompt", "a"], ["chat", *adapter], ["serve", *adapter, "--port", "0"]):
        ended = subprocess.run([sftrun.path, *command, "--device", "cpu"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
        verdicts.expect(f"use: {command[0]} refuses", ended.returncode == 2 and "the model embeds texts" in ended.stderr and "sftrun score" in ended.stderr)
    merged, quantised = directory / "merged", directory / "quantised"
    sftrun.run("merge", *adapter, "--output", str(merged))
    texts = write_jsonl(directory / "sft.jsonl", [{"prompt": "a", "completion": " b"}])
    (directory / "sft.yaml").write_text(yaml.safe_dump({"model": {"name": str(merged)}, "data": {"train": str(texts)}, "output": {"dir": str(directory / "sft")}}))
    for name, words, command in (("merge --format gguf", "have no pooling", ["merge", *adapter, "--format", "gguf", "--output", directory / "merged.gguf"]),
                                 ("merge --format vllm", "vLLM reads no adapters of models that embed texts", ["merge", *adapter, "--format", "vllm", "--output", directory / "vllm"]),
                                 ("merge --format lora-gguf", "llama.cpp reads no adapters", ["merge", *adapter, "--format", "lora-gguf", "--output", directory / "lora"]),
                                 ("train of sft", "trains a model that writes them", ["train", "--config", directory / "sft.yaml", "--device", "cpu"])):
        ended = subprocess.run([sftrun.path, *command], capture_output=True, text=True, timeout=60)
        verdicts.expect(f"use: {name} refuses", ended.returncode == 2 and words in ended.stderr, ended.stderr)
    sftrun.run("quantize", "--model", str(merged), "--method", "int8", "--output", str(quantised))
    embeddings = [torch.tensor([line["embedding"] for line in sftrun.jsonl("score", [{"text": "one two"}, {"text": "three"}], directory, "--model", str(model), "--device", "cpu")])
                  for model in (merged, quantised)]
    likeness = torch.nn.functional.cosine_similarity(*embeddings)
    verdicts.expect("use: a quantised model embeds", bool((likeness > 0.99).all()) and not torch.equal(*embeddings), str(likeness))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", default=["training", "packed", "strategies", "equal", "use"])
    parser.add_argument("--families", nargs="+", choices=FAMILIES)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    families = arguments.families or (["llama"] if arguments.quick else list(FAMILIES))
    sftrun, verdicts = Sftrun(arguments.sftrun), Verdicts()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        if "training" in arguments.only:
            check_training(sftrun, verdicts, root, families, arguments.quick)
        if "packed" in arguments.only:
            check_packed(sftrun, verdicts, root)
        if "strategies" in arguments.only and not arguments.quick:
            check_strategies(sftrun, verdicts, root)
        if "equal" in arguments.only:
            check_equal(sftrun, verdicts, root)
        if "use" in arguments.only:
            check_use(sftrun, verdicts, root)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
