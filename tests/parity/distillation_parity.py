"""Distillation beside plain torch, on a CPU in fp32.

    python tests/parity/distillation_parity.py --sftrun build/bin/sftrun [--only training processes nearer scores beside own eval]

training   5 steps of full training of a tiny Llama whose teacher is another one: loss, divergence, cross-entropy and gradient norm are those of
           the formulas over k + 1 classes (k tokens and the rest) of the teacher's logits by transformers; with k = vocabulary of the whole
           distributions, by TRL's GKDTrainer.generalized_jsd_loss. The scores are in a folder, or the teacher is beside the student
processes  1 and 2 processes x accumulation 1 and 2, packed or not, by every strategy of 2 processes: the same losses
nearer     a student that learns from its teacher is nearer to it on other texts (KL divergence) than one that learns from the texts alone
scores     2 processes score as one; other records and other orders; an interrupted, extended or damaged folder, with files of others; what is refused
beside     a teacher beside the student gives the losses of its scores: 1 and 2 processes x accumulation, packed, by every strategy of 2 processes;
           with evaluations, streamed data, a QLoRA student, a GGUF file, an adapter, a quantised teacher; interrupted and resumed; what is refused
own        answers that the student writes while it trains: their log-probabilities are those of the student at each step, and losses are those of
           TRL's GKDTrainer.generalized_jsd_loss on them; 2 processes, streamed data, sharded weights: the same; interrupted and resumed; what is refused
eval       `sftrun eval` gives the divergence from the teacher that plain torch does, by a model and by scores; of unscored data the cross-entropy alone

--quick leaves out some settings and strategies.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from harness import Sftrun, Verdicts, training_metrics  # noqa: I001  (sets sys.path)

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch
import yaml
from dpo_parity import make_tokenizer, words, write_jsonl
from reference_training import Document, encode_record
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, LlamaForSequenceClassification
from trl.experimental.gkd import GKDTrainer

STEPS, BATCH, LEARNING_RATE, MAX_GRAD_NORM = 5, 4, 1e-3, 0.5
LOSS, GRAD_NORM, SAME = 1e-5, 1e-4, 1e-6
DRAWN = 1e-3  # of unlikely tokens, after steps of Adam; a step of the student changes them by 1e-2
RECORDS, EOS_ID = 24, 1
NEARER_STEPS, NEARER_RECORDS = 120, 160


@dataclass(frozen=True)
class Case:
    alpha: float
    beta: float
    temperature: float
    k: int  # 0: the vocabulary

    @property
    def name(self) -> str:
        return f"alpha {self.alpha}, beta {self.beta}, temperature {self.temperature}, k {self.k or 'vocabulary'}"

    @property
    def settings(self) -> dict:
        return {"kd_alpha": self.alpha, "kd_beta": self.beta, "kd_temperature": self.temperature}


CASES = [
    Case(0.5, 0, 1, 8), Case(0.7, 0.5, 2, 8), Case(1, 1, 1, 0),
    Case(1, 0, 1, 1), Case(0.9, 1, 1, 8), Case(0.9, 0.1, 1, 8), Case(0.9, 0.9, 2.5, 0), Case(0.6, 0, 2, 0), Case(0, 0, 1, 8),
]  # fmt: skip
QUICK = 3


# ---- Models, records, runs


def make_llama(directory: Path, seed: int, hidden: int) -> Path:
    torch.manual_seed(seed)
    tokenizer = make_tokenizer(adds_bos=True, splits_words=True)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, initializer_range=0.15, bos_token_id=0, eos_token_id=EOS_ID,
        tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def text_records(seed: int, count: int) -> list[dict]:
    rng = random.Random(seed)
    return [{"prompt": words(rng, 6), "completion": " " + words(rng, 8)} for _ in range(count)]


class Place:
    """A folder with a teacher, a student and their records."""

    def __init__(self, folder: Path, sftrun: Sftrun):
        self.folder, self.sftrun = folder, sftrun
        self.teacher = make_llama(folder / "teacher-model", seed=3, hidden=48)
        self.student = make_llama(folder / "student", seed=5, hidden=32)
        self.vocabulary = LlamaConfig.from_pretrained(self.student).vocab_size
        self.records = text_records(1, RECORDS)
        self.data = write_jsonl(folder / "train.jsonl", self.records)

    def run(self, name: str, scores: Path, settings: dict, data: dict | None = None) -> Path:
        path = self.folder / f"{name}.yaml"
        train = {
            "objective": "distill", "teacher": str(scores), "max_steps": STEPS, "batch_size": BATCH, "grad_accum": 1,
            "learning_rate": LEARNING_RATE, "scheduler": "constant", "warmup_steps": 0, "max_grad_norm": MAX_GRAD_NORM, "save_every": "0",
        }  # fmt: skip
        run = {
            "model": {"name": str(self.student), "max_seq_len": 256, "dtype": "fp32"},
            "tuning": {"mode": "full"},
            "data": {"train": str(self.data), "shuffle": False, "packing": False, "cache_dir": "none", **(data or {})},
            "train": {**train, **settings},
            "output": {"tensorboard": False},
        }
        path.write_text(yaml.safe_dump(run))
        return path

    def score(self, run: Path, scores: Path, k: int, *more: str, processes: int = 1) -> str:
        launch = ["--device", "cpu", "--nproc-per-node", str(processes), "--dtype", "fp32"]
        model = [] if "--model" in more else ["--model", str(self.teacher)]
        where = ["--config", str(run), *model, "--topk", str(k), "--output", str(scores)]
        return self.sftrun.run("score", *where, *launch, *more)


# ---- The reference


def kl(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Sum over classes of a (log a - log b); of a class without probability 0."""
    return torch.where(a > 0, a * (a.clamp_min(1e-300).log() - b.clamp_min(1e-300).log()), 0).sum()


def divergence(teacher: torch.Tensor, student: torch.Tensor, case: Case) -> torch.Tensor:
    """@param teacher, student: logits [rows, vocabulary]"""
    if case.k == 0:
        return GKDTrainer.generalized_jsd_loss(
            student, teacher, beta=case.beta, temperature=case.temperature, reduction="sum"
        )
    p, q = (torch.softmax(logits.double() / case.temperature, 1) for logits in (student, teacher))
    top = q.topk(case.k, 1).indices
    is_top = torch.zeros_like(q, dtype=torch.bool).scatter(1, top, True)
    p, q = (torch.cat([x.gather(1, top), torch.where(is_top, 0, x).sum(1, keepdim=True)], 1) for x in (p, q))
    if case.beta == 0:
        return kl(q, p)
    if case.beta == 1:
        return kl(p, q)
    mixture = case.beta * q + (1 - case.beta) * p
    return case.beta * kl(q, mixture) + (1 - case.beta) * kl(p, mixture)


def documents_of(records: list[dict]) -> list:
    tokenizer = make_tokenizer(adds_bos=True, splits_words=True).backend_tokenizer
    return [encode_record(record, tokenizer, EOS_ID) for record in records]


def labelled_logits(model, document) -> tuple[torch.Tensor, torch.Tensor]:
    """@return logits [rows, vocabulary] and labels [rows]"""
    labels = torch.tensor(document.labels[1:])
    rows = labels != -100
    return model(input_ids=torch.tensor([document.tokens])).logits[0, :-1][rows], labels[rows]


def train_reference(place: Place, case: Case, batch_of=None) -> list[dict]:
    """@param batch_of documents of a step, by the step and the student before it; None: those of the records"""
    teacher = AutoModelForCausalLM.from_pretrained(place.teacher, dtype=torch.float32)
    student = AutoModelForCausalLM.from_pretrained(place.student, dtype=torch.float32)
    optimizer = torch.optim.AdamW(student.parameters(), lr=LEARNING_RATE, weight_decay=0)
    documents = documents_of(place.records)
    metrics = []
    for step in range(STEPS):
        batch = batch_of(step, student) if batch_of else [documents[(step * BATCH + i) % len(documents)] for i in range(BATCH)]
        divergences, cross_entropies, count = 0.0, 0.0, 0
        for document in batch:
            logits, labels = labelled_logits(student, document)
            with torch.no_grad():
                target, _ = labelled_logits(teacher, document)
            divergences = divergences + divergence(target, logits, case)
            cross_entropies = cross_entropies + torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
            count += len(labels)
        loss = (case.alpha * divergences + (1 - case.alpha) * cross_entropies) / count
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(student.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        metrics.append({
            "loss": loss.item(), "kd_loss": divergences.item() / count, "ce_loss": cross_entropies.item() / count, "grad_norm": norm.item(),
        })  # fmt: skip
    return metrics


def largest_difference(ours: list[dict], reference: list[dict], key: str) -> float:
    assert len(ours) == len(reference), (len(ours), len(reference))
    return max(abs(a[key] - b[key]) / (1e-2 + abs(b[key])) for a, b in zip(ours, reference))


# ---- Checks


def check_training(place: Place, verdicts: Verdicts, quick: bool) -> None:
    for number, case in enumerate(CASES[:QUICK] if quick else CASES):
        scores = place.folder / f"scores-{case.k}-{case.temperature}"
        run = place.run(f"training-{number}", scores, case.settings)
        if not scores.exists():
            place.score(run, scores, case.k or place.vocabulary)
        reference = train_reference(place, case)
        for backend in ["fused"] if quick and number else ["fused", "bnb"]:
            ours = place.sftrun.train(run, place.folder / f"training-{number}-{backend}", tuning__backend=backend)
            for key in ("loss", "kd_loss", "ce_loss"):
                verdicts.below(f"{case.name}, {backend}: {key}", largest_difference(ours, reference, key), LOSS)
            verdicts.below(f"{case.name}, {backend}: grad_norm", largest_difference(ours, reference, "grad_norm"), GRAD_NORM)
        k = case.k or place.vocabulary
        ours = place.sftrun.train(run, place.folder / f"training-{number}-beside", train__teacher=place.teacher, train__teacher_topk=k)
        for key in ("loss", "kd_loss", "ce_loss"):
            verdicts.below(f"{case.name}, teacher beside: {key}", largest_difference(ours, reference, key), LOSS)
        verdicts.below(f"{case.name}, teacher beside: grad_norm", largest_difference(ours, reference, "grad_norm"), GRAD_NORM)


def check_processes(place: Place, verdicts: Verdicts, quick: bool) -> None:
    case = Case(0.6, 0.3, 1.5, 8)
    scores = place.folder / "scores-of-processes"
    run = place.run("processes", scores, case.settings)
    place.score(run, scores, case.k, processes=2)
    shares = [(1, 2), (2, 1), (2, 2)]
    strategies = ["fsdp", "pipeline", "tensor"] if quick else ["fsdp", "zero1", "zero2", "zero3", "pipeline", "tensor"]
    for packing in (False, True):
        def train(name: str, processes: int, accumulation: int, parts: int, packing: bool = packing, **more) -> list[dict]:
            sizes = {"train__batch_size": BATCH // (parts * accumulation), "train__grad_accum": accumulation}
            bins = {"data__bin_tokens": 96} if packing else {}
            output = place.folder / f"processes-{packing}-{name}"
            return place.sftrun.train(run, output, processes, data__packing=packing, **sizes, **bins, **more)

        one = train("1-1", 1, 1, 1)
        for processes, accumulation in shares[2:] if quick else shares:
            other = train(f"{processes}-{accumulation}", processes, accumulation, processes)
            for key in ("loss", "kd_loss", "ce_loss"):
                what = f"{processes} processes, accumulation {accumulation}{', packed' if packing else ''}: {key}"
                verdicts.below(what, largest_difference(other, one, key), SAME)
        for strategy in strategies if packing else strategies[:0 if quick else None]:
            parts = 1 if strategy in ("pipeline", "tensor") else 2
            other = train(strategy, 2, 2, parts, parallel__strategy=strategy)
            for key in ("loss", "kd_loss", "ce_loss"):
                verdicts.below(f"{strategy}{', packed' if packing else ''}: {key}", largest_difference(other, one, key), SAME)


def held_out_divergence(place: Place, model: Path, documents: list) -> float:
    """Mean KL(teacher || model) of the label tokens."""
    teacher = AutoModelForCausalLM.from_pretrained(place.teacher, dtype=torch.float32)
    student = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    total, count = 0.0, 0
    with torch.no_grad():
        for document in documents:
            target, labels = labelled_logits(teacher, document)
            logits, _ = labelled_logits(student, document)
            total += GKDTrainer.generalized_jsd_loss(logits, target, beta=0, reduction="sum").item()
            count += len(labels)
    return total / count


def check_nearer(place: Place, verdicts: Verdicts, quick: bool) -> None:
    data = write_jsonl(place.folder / "nearer.jsonl", text_records(7, NEARER_RECORDS))
    held_out = documents_of(text_records(8, 30))
    scores = place.folder / "scores-nearer"
    settings = {"kd_alpha": 1.0, "max_steps": NEARER_STEPS, "batch_size": 16, "learning_rate": 5e-3}
    of_data = {"train": str(data), "val_split": 0.1}
    run = place.run("nearer", scores, settings, of_data)
    place.score(run, scores, 32)
    ours = place.sftrun.train(run, place.folder / "nearer")
    place.sftrun.train(run, place.folder / "alone", train__objective="sft")
    start, distilled, alone = (
        held_out_divergence(place, model, held_out)
        for model in (place.student, place.folder / "nearer" / "model", place.folder / "alone" / "model")
    )
    detail = f"at first {start:.3f}, distilled {distilled:.3f}, cross-entropy alone {alone:.3f}"
    verdicts.expect("the divergence on other texts is at most half of that without a teacher", distilled < 0.5 * alone, detail)
    verdicts.expect("the divergence falls", ours[-1]["kd_loss"] < 0.5 * ours[0]["kd_loss"], f"{ours[0]['kd_loss']:.3f}, {ours[-1]['kd_loss']:.3f}")
    lines = [json.loads(line) for line in (place.folder / "nearer" / "metrics.jsonl").read_text().splitlines()]
    evaluation = [line for line in lines if "eval_loss" in line][-1]
    verdicts.below("eval_loss is eval_kd_loss with kd_alpha 1", abs(evaluation["eval_loss"] - evaluation["eval_kd_loss"]), 1e-6)
    perplexity = torch.tensor(evaluation["eval_ce_loss"], dtype=torch.float64).exp().item()
    verdicts.below("eval_perplexity is of eval_ce_loss", abs(evaluation["eval_perplexity"] / perplexity - 1), 1e-6)


def refused(place: Place, command: list[str], *texts: str) -> str:
    """@return "" if the command fails with all texts in its message, else what it said"""
    result = subprocess.run([place.sftrun.path, *command], capture_output=True, text=True)
    said = result.stdout + result.stderr
    return "" if result.returncode != 0 and all(text in said for text in texts) else f"exit {result.returncode}: {said[-800:]}"


def check_scores(place: Place, verdicts: Verdicts, quick: bool) -> None:
    case = Case(0.6, 0, 1, 8)
    one, two = place.folder / "scores-by-one", place.folder / "scores-by-two"
    run = place.run("scores", one, case.settings)
    place.score(run, one, case.k)
    place.score(run, two, case.k, processes=2)
    expected = place.sftrun.train(run, place.folder / "by-one")
    same = place.sftrun.train(run, place.folder / "by-two", train__teacher=two)
    verdicts.below("scores of two processes", largest_difference(same, expected, "loss"), SAME)

    def files(folder: Path) -> dict:
        return {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}

    before = files(one)
    said = place.score(run, one, case.k, "--json")
    verdicts.expect("what was scored is not scored again", files(one) == before and json.loads(said)["examples"] == 0, said[-200:])

    some = place.folder / "scores-of-some"
    fewer = write_jsonl(place.folder / "fewer.jsonl", place.records[5:15])
    place.score(run, some, case.k, f"data.train={fewer}")
    train = ["train", "--config", str(run), "--device", "cpu", f"train.teacher={some}", f"output.dir={place.folder / 'missing'}"]
    why = refused(place, train, f"the teacher has not scored {RECORDS - 10} of {RECORDS} examples of data.train", "train.jsonl:1", "--topk 8")
    verdicts.expect("examples that are not scored are refused", not why, why)
    place.score(run, some, case.k)
    extended = place.sftrun.train(run, place.folder / "extended", train__teacher=some)
    verdicts.below("scores in several files", largest_difference(extended, expected, "loss"), SAME)

    gguf = place.folder / "teacher.gguf"
    place.sftrun.run("merge", "--model", str(place.teacher), "--output", str(gguf), "--dtype", "f32")
    divided = [[name, "--strategy", name] for name in ("tensor", "pipeline", "fsdp")]
    for name, *more in [["GGUF", "--model", str(gguf)], *(divided[:1] if quick else divided)]:
        other = place.folder / f"scores-by-{name}"
        processes = 1 if name == "GGUF" else 2
        place.score(run, other, case.k, *more, processes=processes)
        metrics = place.sftrun.train(run, place.folder / f"by-{name}", train__teacher=other)
        verdicts.below(f"scores of {name}", largest_difference(metrics, expected, "loss"), LOSS)

    resumed = place.folder / "resumed"
    place.sftrun.train(run, resumed, train__max_steps=3)
    four = place.folder / "scores-of-four"
    place.score(run, four, 4)
    train_on = ["train", "--config", str(run), "--device", "cpu", f"output.dir={resumed}", f"train.teacher={four}"]
    why = refused(place, train_on, "train.teacher names another teacher")
    verdicts.expect("a resumed run with other scores is refused", not why, why)
    continued = place.sftrun.train(run, resumed)
    verdicts.expect("a resumed run has the same losses", [x["loss"] for x in continued] == [x["loss"] for x in expected])

    order = write_jsonl(place.folder / "order.jsonl", place.records[::-1])
    place.sftrun.train(run, place.folder / "order", data__train=order, data__shuffle=True, data__val_split=0.2)
    verdicts.expect("another order and a validation split", True)

    why = refused(place, [*train, "train.kd_temperature=2"], "`train.kd_temperature` is 2", "were written with 1")
    verdicts.expect("another temperature is refused", not why, why)
    why = refused(place, [*train, "train.kd_temperature=2", "--dry-run"], "`train.kd_temperature` is 2", "were written with 1")
    verdicts.expect("another temperature is refused by a dry run", not why, why)
    why = refused(place, [*train, "train.teacher=nowhere"], "neither a model nor a teacher's scores are there", "sftrun score --config")
    verdicts.expect("a folder without scores is refused", not why, why)
    score = ["score", "--config", str(run), "--topk", "4", "--output", str(one), "--device", "cpu", "--dtype", "fp32"]
    why = refused(place, [*score, "--model", str(place.teacher)], "has scores by", "k 8", "k 4", "--overwrite")
    verdicts.expect("another k into the same folder is refused", not why, why)
    other = place.folder / "other-tokens"
    shutil.copytree(place.teacher, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(token for token, number in vocabulary.items() if number == wanted) for wanted in (10, 11))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    why = refused(place, [*score[:-4], "--overwrite", "--device", "cpu", "--model", str(other)], "other tokens than the model: number 10")
    verdicts.expect("a teacher with other tokens is refused", not why, why)
    check_folder(place, verdicts, run, case)


def check_folder(place: Place, verdicts: Verdicts, run: Path, case: Case) -> None:
    """Files beside the parts, a second command, damage, and teachers that are none."""
    folder = place.folder / "scores-in-company"
    place.score(run, folder, case.k)
    expected = place.sftrun.train(run, place.folder / "in-company-alone", train__teacher=folder)
    left, foreign = folder / ".tmp-1-0-00001-000.scores", folder / "film.scores"
    for file in (left, foreign):
        file.write_bytes(b"sftrunK1 and no more")
    metrics = place.sftrun.train(run, place.folder / "in-company", train__teacher=folder)
    verdicts.expect("training reads complete parts alone", [x["loss"] for x in metrics] == [x["loss"] for x in expected])
    examples = json.loads(place.score(run, folder, case.k, "--json"))["examples"]
    verdicts.expect("a command after a killed one removes its temporary", examples == 0 and not left.exists() and foreign.exists())

    [part] = [path for path in folder.glob("*.scores") if path != foreign]
    whole = part.read_bytes()
    part.write_bytes(whole[:8] + bytes([whole[8] ^ 1]) + whole[9:])
    score = ["score", "--config", str(run), "--topk", str(case.k), "--device", "cpu", "--dtype", "fp32"]
    again = [*score, "--output", str(folder), "--model", str(place.teacher)]
    why = refused(place, again, "damaged", part.name, "remove it and rerun")
    verdicts.expect("a damaged part is named", not why, why)
    part.unlink()
    examples = json.loads(place.score(run, folder, case.k, "--json"))["examples"]
    verdicts.expect("its examples are scored again", examples == RECORDS and part.read_bytes() == whole, str(examples))

    with open(folder.parent / f"{folder.name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        why = refused(place, again, "another command is writing the teacher's scores now")
    verdicts.expect("a second command is refused", not why, why)
    place.score(run, folder, case.k, "--overwrite")
    verdicts.expect("--overwrite leaves files with other names", foreign.exists() and part.read_bytes() == whole)

    torch.manual_seed(9)
    judge = place.folder / "judge"
    shutil.copytree(place.teacher, judge)
    (judge / "model.safetensors").unlink()
    LlamaForSequenceClassification(LlamaConfig.from_pretrained(place.teacher, num_labels=3, pad_token_id=EOS_ID)).save_pretrained(judge)
    why = refused(place, [*score, "--output", str(place.folder / "of-judge"), "--model", str(judge)], "has a head of scores, and gives no tokens")
    verdicts.expect("a classifier is no teacher", not why, why)


def evaluations(run: Path) -> list[dict]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if "eval_loss" in line]


class Beside:
    """Runs whose teacher is beside the student, compared with runs that read its scores."""

    CASE = Case(0.6, 0.3, 1.5, 8)

    def __init__(self, place: Place, verdicts: Verdicts):
        self.place, self.verdicts = place, verdicts
        self.scores = place.folder / "scores-for-beside"
        self.run = place.run("beside", self.scores, self.CASE.settings)
        place.score(self.run, self.scores, self.CASE.k)
        self.model = {"train__teacher": place.teacher, "train__teacher_topk": self.CASE.k}

    def train(self, name: str, processes: int = 1, **settings) -> list[dict]:
        return self.place.sftrun.train(self.run, self.place.folder / f"beside-{name}", processes, **{**self.model, **settings})

    def off_line(self, name: str, processes: int = 1, **settings) -> list[dict]:
        return self.place.sftrun.train(self.run, self.place.folder / f"off-line-{name}", processes, **settings)

    def same(self, what: str, ours: list[dict], expected: list[dict], limit: float = SAME) -> None:
        for key in ("loss", "kd_loss", "ce_loss", "grad_norm"):
            self.verdicts.below(f"beside, {what}: {key}", largest_difference(ours, expected, key), limit)


def check_beside(place: Place, verdicts: Verdicts, quick: bool) -> None:
    beside = Beside(place, verdicts)
    expected = beside.off_line("one")
    one = beside.train("one")
    beside.same("one process", one, expected)
    beside_strategies(beside, quick)
    beside_evaluations(beside)
    beside_models(beside, expected, quick)
    beside_resumed(beside, one)
    beside_refused(beside)


def beside_strategies(beside: Beside, quick: bool) -> None:
    strategies = ["fsdp", "pipeline", "tensor"] if quick else ["ddp", "fsdp", "zero1", "zero2", "zero3", "pipeline", "tensor"]
    for packing in [True] if quick else [False, True]:
        data = {"data__packing": packing, **({"data__bin_tokens": 96} if packing else {})}
        def sizes(parts: int, accumulation: int, data: dict = data) -> dict:
            return {"train__batch_size": BATCH // (parts * accumulation), "train__grad_accum": accumulation, **data}

        what = "packed, " if packing else ""
        expected = beside.off_line(f"parts-{packing}", **sizes(1, 1))
        for processes, accumulation in [(2, 2)] if quick else [(1, 2), (2, 1), (2, 2)]:
            ours = beside.train(f"{packing}-{processes}-{accumulation}", processes, **sizes(processes, accumulation))
            beside.same(f"{what}{processes} processes, accumulation {accumulation}", ours, expected)
        for strategy in strategies:
            parts = 1 if strategy in ("pipeline", "tensor") else 2
            ours = beside.train(f"{packing}-{strategy}", 2, parallel__strategy=strategy, **sizes(parts, 2))
            beside.same(f"{what}{strategy}", ours, expected)
        if not quick:
            ours = beside.train(f"{packing}-per-step", 2, parallel__strategy="fsdp", parallel__fetch="per_step", **sizes(2, 2))
            beside.same(f"{what}fsdp per step", ours, expected)


def beside_evaluations(beside: Beside) -> None:
    settings = {"data__val_split": 0.25, "train__eval_steps": 2, "train__eval_token_accuracy": True}
    beside.same("with evaluations", beside.train("evaluated", 2, **settings, train__batch_size=2), beside.off_line("evaluated", **settings))
    ours, theirs = (evaluations(beside.place.folder / name) for name in ("beside-evaluated", "off-line-evaluated"))
    beside.verdicts.expect("beside: as many evaluations", len(ours) == len(theirs) > 1, f"{len(ours)}, {len(theirs)}")
    for key in ("eval_loss", "eval_kd_loss", "eval_ce_loss", "eval_token_accuracy"):
        beside.verdicts.below(f"beside: {key}", max(abs(a[key] / b[key] - 1) for a, b in zip(ours, theirs)), SAME)


def beside_models(beside: Beside, expected: list[dict], quick: bool) -> None:
    place = beside.place
    streamed = {"data__streaming": True, "data__packing": False}
    beside.same("streamed data", beside.train("streamed", **streamed), expected)
    qlora = {"tuning__mode": "qlora", "tuning__quant": "nf4"}
    beside.same("QLoRA student", beside.train("qlora", **qlora), beside.off_line("qlora", **qlora))
    if quick:
        return
    recomputed = {"train__gradient_checkpointing": True, "tuning__backend": "bnb"}
    beside.same("recomputed layers, plain backend", beside.train("plain", **recomputed), expected, LOSS)
    gguf = place.folder / "beside.gguf"
    place.sftrun.run("merge", "--model", str(place.teacher), "--output", str(gguf), "--dtype", "f32")
    beside.same("GGUF", beside.train("gguf", train__teacher=gguf), expected, LOSS)
    # An adapter of the teacher, by its run, and the model that it makes.
    tuned = place.run("tuned", beside.scores, {"objective": "sft"})
    place.sftrun.train(tuned, place.folder / "tuned", model__name=place.teacher, tuning__mode="lora", train__learning_rate=1e-2, train__teacher="")
    merged = place.folder / "tuned-merged"
    place.sftrun.run("merge", "--adapter", str(place.folder / "tuned" / "adapter"), "--output", str(merged), "--dtype", "f32")
    of_adapter = beside.train("adapter", train__teacher=place.folder / "tuned")
    beside.same("adapter", of_adapter, beside.train("merged", train__teacher=merged), LOSS)
    beside.verdicts.expect("beside: the adapter is another teacher", largest_difference(of_adapter, expected, "kd_loss") > 1e-3)
    sharded = {"parallel__strategy": "fsdp", "train__batch_size": BATCH // 2}
    beside.same("adapter, fsdp", beside.train("adapter-fsdp", 2, train__teacher=place.folder / "tuned", **sharded), of_adapter, LOSS)
    quantised = beside.train("int8", train__teacher_quant="int8")
    difference = largest_difference(quantised, expected, "kd_loss")
    beside.verdicts.expect("beside: a teacher in int8 says nearly the same", 0 < difference < 0.05, f"{difference:.2e}")


def beside_resumed(beside: Beside, whole: list[dict]) -> None:
    place, resumed = beside.place, beside.place.folder / "beside-resumed"
    beside.train("resumed", train__max_steps=3)
    other = make_llama(place.folder / "other-teacher", seed=4, hidden=48)
    train_on = ["train", "--config", str(beside.run), "--device", "cpu", f"output.dir={resumed}"]
    why = refused(place, [*train_on, f"train.teacher={other}", "train.teacher_topk=8"], "train.teacher names another teacher")
    beside.verdicts.expect("beside: a resumed run with another teacher is refused", not why, why)
    why = refused(place, [*train_on, f"train.teacher={place.teacher}", "train.teacher_topk=4"], "train.teacher_topk was 8, is now 4")
    beside.verdicts.expect("beside: a resumed run with another k is refused", not why, why)
    moved = place.folder / "moved-teacher"
    shutil.copytree(place.teacher, moved)
    continued = beside.train("resumed", train__teacher=moved)
    beside.verdicts.expect("beside: a resumed run has the same losses", [x["loss"] for x in continued] == [x["loss"] for x in whole])


def beside_refused(beside: Beside) -> None:
    place = beside.place
    train = ["train", "--config", str(beside.run), "--device", "cpu", f"output.dir={place.folder / 'beside-refused'}"]
    def refuses(what: str, settings: list[str], *texts: str) -> None:
        why = refused(place, [*train, *settings], *texts)
        beside.verdicts.expect(f"beside: {what} is refused", not why, why)

    refuses("teacher_topk beside scores", [f"train.teacher={beside.scores}", "train.teacher_topk=4"], "`train.teacher_topk` is 4", "--topk 8")
    empty = place.folder / "empty"
    empty.mkdir()
    refuses("a folder without a model", [f"train.teacher={empty}"], "neither a model nor a teacher's scores")
    refuses("a device map", [f"train.teacher={place.teacher}", "parallel.strategy=device_map"], "parallel.device_map")
    refuses("streaming of scored data", [f"train.teacher={beside.scores}", "data.streaming=true", "train.max_steps=2"], "`data.streaming`")
    other = place.folder / "beside-other-tokens"
    shutil.copytree(place.teacher, other)
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    first, second = (next(token for token, number in vocabulary.items() if number == wanted) for wanted in (10, 11))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    refuses("a teacher with other tokens", [f"train.teacher={other}"], "other tokens than the model: number 10")
    judge = place.folder / "beside-judge"
    shutil.copytree(place.teacher, judge)
    (judge / "model.safetensors").unlink()
    LlamaForSequenceClassification(LlamaConfig.from_pretrained(place.teacher, num_labels=3, pad_token_id=EOS_ID)).save_pretrained(judge)
    refuses("a classifier", [f"train.teacher={judge}"], "has a head of scores, and gives no tokens")


# ---- Answers of the student


class Own:
    """Runs whose student answers a share of the examples itself."""

    CASE = Case(1, 0.5, 1, 0)

    def __init__(self, place: Place, verdicts: Verdicts, share: float):
        self.place, self.verdicts, self.share = place, verdicts, share
        self.rollouts = {"share": share, "max_new_tokens": 12, "batch_size": 3, "num_samples": 64}
        settings = {**self.CASE.settings, "teacher_topk": place.vocabulary, "rollouts": self.rollouts}
        self.run = place.run(f"own-{share}", place.teacher, settings)
        self.documents = documents_of(place.records)
        self.logprobs = 0.0  # largest difference
        self.num_answered = 0

    def folder(self, name: str) -> Path:
        return self.place.folder / f"own-{self.share}-{name}"

    def train(self, name: str, processes: int = 1, **settings) -> list[dict]:
        return self.place.sftrun.train(self.run, self.folder(name), processes, **settings)

    def batch_of(self, step: int, student) -> list:
        """The documents of a step of the run `one`."""
        batch = {(step * BATCH + i) % RECORDS: self.documents[(step * BATCH + i) % RECORDS] for i in range(BATCH)}
        file = self.folder("one") / "rollouts" / f"step-{step + 1:06}.jsonl"
        for line in file.read_text().splitlines() if file.exists() else []:
            kept = json.loads(line)
            index = int(kept["place"].rsplit(":", 1)[1]) - 1
            of_data, prompt, answer = batch[index], kept["prompt_ids"], kept["completion_ids"]
            begin = next(i for i, label in enumerate(of_data.labels) if label != -100)
            self.verdicts.expect(f"step {step + 1}, record {index + 1}: the prompt", prompt == list(of_data.tokens[:begin]))
            batch[index] = Document(prompt + answer, [-100] * len(prompt) + answer)
            with torch.no_grad():
                logits, labels = labelled_logits(student, batch[index])
            drawn = torch.log_softmax(logits, 1).gather(1, labels[:, None])[:, 0]
            self.logprobs = max(self.logprobs, (drawn - torch.tensor(kept["logprobs"])).abs().max().item())
            self.num_answered += 1
        return list(batch.values())


def check_own(place: Place, verdicts: Verdicts, quick: bool) -> None:
    for share in [0.5] if quick else [0.5, 1]:
        own = Own(place, verdicts, share)
        one = own.train("one")
        expected = train_reference(place, own.CASE, own.batch_of)
        verdicts.below(f"share {share}: log-probabilities of what was drawn", own.logprobs, DRAWN)
        for key, limit in (("loss", LOSS), ("kd_loss", LOSS), ("ce_loss", LOSS), ("grad_norm", GRAD_NORM)):
            verdicts.below(f"share {share}: {key}", largest_difference(one, expected, key), limit)
        number = own.num_answered
        verdicts.expect(f"share {share}: answers", number == STEPS * BATCH if share == 1 else 4 < number < 16, str(number))
        own_divisions(own, one, quick)
        if share == 0.5:
            own_resumed(own, one)
            own_refused(own)


def own_divisions(own: Own, one: list[dict], quick: bool) -> None:
    half = {"train__batch_size": BATCH // 2}
    divisions = {"2 processes": (2, half)}
    if not quick:
        divisions |= {
            "streamed data": (1, {"data__streaming": True}), "accumulation": (1, {"train__batch_size": 1, "train__grad_accum": BATCH}),
            "fsdp": (2, {**half, "parallel__strategy": "fsdp"}), "tensor": (2, {"parallel__strategy": "tensor"}),
            "pipeline": (2, {"parallel__strategy": "pipeline", **half, "train__grad_accum": 2}),
            "with answers of evaluations": (1, {
                "data__val": str(own.place.data), "train__eval_strategy": "steps", "train__eval_steps": 1, "train__predict_with_generate": True,
                "train__generation_max_new_tokens": 4, "train__generation_time_budget": 100,
            }),
        }  # fmt: skip
    for name, (processes, settings) in divisions.items():
        ours = own.train(name.replace(" ", "-"), processes, **settings)
        for key in ("loss", "kd_loss", "grad_norm", "completions/mean_length", "entropy"):
            of_answers = [[line for line in run if key in line] for run in (ours, one)]
            own.verdicts.below(f"share {own.share}, {name}: {key}", largest_difference(*of_answers, key), LOSS)
        if "train__eval_steps" in settings:
            lines = evaluations(own.folder(name.replace(" ", "-")))
            own.verdicts.expect(f"share {own.share}: evaluations answer", len(lines) >= STEPS and all("eval_rouge_l" in line for line in lines))


def check_eval(place: Place, verdicts: Verdicts, quick: bool) -> None:
    case = Case(0.5, 0.5, 2, 8)
    teacher, student = (AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32) for path in (place.teacher, place.student))
    total, count = 0.0, 0
    with torch.no_grad():
        for document in documents_of(place.records):
            (logits, labels), (target, _) = labelled_logits(student, document), labelled_logits(teacher, document)
            total, count = total + divergence(target, logits, case).item(), count + len(labels)
    settings, data, scores = case.settings | {"teacher_topk": case.k}, {"val": str(place.data)}, place.folder / "scores-of-val"
    beside, scored = place.run("eval-beside", place.teacher, settings, data), place.run("eval-scored", scores, settings, data)
    place.score(scored, scores, case.k, "--temperature", str(case.temperature))

    def evaluate(run: Path, *more: str) -> dict:
        words = ["eval", "--config", str(run), "--adapter", "none", "--no-generate", "--json", "--device", "cpu"]
        return json.loads(place.sftrun.run(*words, *more))["base"]

    for name, run, more in [("a model", beside, []), ("scores", scored, []), ("a model, 2 processes", beside, ["--nproc-per-node", "2"])]:
        ours = evaluate(run, *more)
        verdicts.below(f"eval with {name}: kd_loss", abs(ours["kd_loss"] / (total / count) - 1), LOSS)
        verdicts.expect(f"eval with {name}: label tokens", ours["label_tokens"] == count, str(ours))
    other = write_jsonl(place.folder / "unscored.jsonl", text_records(2, 3))
    verdicts.expect("eval without scores: the cross-entropy alone", "kd_loss" not in evaluate(scored, f"data.val={other}"))


def own_resumed(own: Own, one: list[dict]) -> None:
    steps = 30
    whole = own.train("whole", train__max_steps=steps)
    own.verdicts.expect("own: a longer run begins with the same losses", [x["loss"] for x in whole[:STEPS]] == [x["loss"] for x in one])
    folder = own.folder("interrupted")
    command = own.place.sftrun.train_command(own.run, folder, 1, {"train.max_steps": steps})
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        lines = folder / "metrics.jsonl"
        while process.poll() is None and not (lines.exists() and len(lines.read_text().splitlines()) > 3):
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        code = process.wait()
    done = len(training_metrics(folder))
    continued = own.train("interrupted", train__max_steps=steps)
    own.verdicts.expect("own: a stopped run says so", code == 75 and done < steps, f"{code} after step {done}")
    names = ("loss", "kd_loss", "ce_loss", "grad_norm", "completions/mean_length", "entropy")
    own.verdicts.expect("own: a resumed run has the same lines", [[x.get(n) for n in names] for x in continued] == [[x.get(n) for n in names] for x in whole])


def own_refused(own: Own) -> None:
    scores = own.place.folder / "scores-for-own"
    own.place.score(own.place.run("scored", scores, {}), scores, 4)
    train = ["train", "--config", str(own.run), "--device", "cpu", f"output.dir={own.folder('refused')}"]
    why = refused(own.place, [*train, f"train.teacher={scores}"], "the student writes others while it trains", "name the teacher's model")
    own.verdicts.expect("own: a folder of scores is refused", not why, why)
    text = own.place.sftrun.run(*train, "--dry-run")
    own.verdicts.expect("own: a dry run says the share", "the student writes those of 50% of the examples" in text)


CHECKS = {
    "training": check_training, "processes": check_processes, "nearer": check_nearer, "scores": check_scores, "beside": check_beside, "own": check_own,
    "eval": check_eval,
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder), Sftrun(str(Path(arguments.sftrun).resolve())))
        for name in arguments.only:
            CHECKS[name](place, verdicts, arguments.quick)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
