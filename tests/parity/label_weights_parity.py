"""Weights of labels beside torch: `weight` of messages and `data.label_weights`.

    python tests/parity/label_weights_parity.py --sftrun build/bin/sftrun [--quick]

tokens    weights of every token of random chats and texts, from `sftrun preview`, beside those found by Python's re and the fast tokenizer's offsets
training  5 steps beside transformers + peft, whose loss is the sum of weight * cross-entropy over the sum of weights; LoRA, full training
          and with every position labelled; 1 and 2 processes x accumulation 1 and 2, packed or not: the same to 1e-6; fsdp and tensor
eval      the loss of `sftrun eval` and of evaluations in the run

--quick leaves out a model, full training and most divisions.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
from pathlib import Path

from harness import Sftrun, Verdicts, compare_metrics, difference  # noqa: I001  (sets sys.path)

import torch
from dpo_parity import CHATML, LORA, make_model, words, write_jsonl, write_run
from peft import LoraConfig, PeftModel, get_peft_model
from reference_training import IGNORE_INDEX, Document, Recipe, train
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, GLOBAL_BATCH = 5, 4
RULES = {"(?s)<think>.*?</think>": 0.25, r"\b[ab]\w*": 3.0, r"\bb\w*": 0.5, "never-there": 7, r"\bc\w*": 0}
LOSS, GRAD_NORM, DIVIDED = 1e-5, 1e-4, 1e-6
SETTINGS = {"train__objective": "sft", "train__max_steps": STEPS, "data__label_weights": RULES}


# ---- Records


def chat(rng: random.Random) -> dict:
    """Turns with weights, without, and with weight 0; answers with marks that the rules match."""
    messages = []
    for _ in range(rng.randrange(1, 4)):
        answer = words(rng, 6)
        if rng.random() < 0.4:
            answer = f"<think>{words(rng, 4)}\n{words(rng, 2)}</think>{answer}"
        turn = {"role": "assistant", "content": answer}
        weight = rng.choice([None, None, 0.5, 2, 0, 1, 0.125])
        messages += [{"role": "user", "content": words(rng, 5)}, turn | ({} if weight is None else {"weight": weight})]
    messages[-1]["weight"] = messages[-1].get("weight") or 1.5  # one turn has labels
    return {"messages": messages}


def text(rng: random.Random) -> dict:
    return {"prompt": words(rng, 4) + " ", "completion": "a" + words(rng, 8)}


# ---- The reference


def rule_weight(answer: str, begin: int, end: int) -> float:
    """Of the last rule, and its last match, that covers one of the characters [begin, end)."""
    weight = 1.0
    for pattern, of_rule in RULES.items():
        if any(match.start() < end and begin < match.end() for match in re.finditer(pattern, answer) if match.group()):
            weight = float(of_rule)
    return weight


def weigh(tokenizer, rendered: str, answers: list[tuple[int, int, float]], everything: bool) -> tuple[list[int], list[float]]:
    """@param answers (begin, end, weight) in characters of the text   @return token ids and the weight of each"""
    encoded = tokenizer(rendered, add_special_tokens=False, return_offsets_mapping=True)
    parts, at = [], 0
    for begin, end, weight in answers:
        if everything and at < begin:
            parts.append((at, begin, 1.0))
        parts.append((begin, end, weight))
        at = end
    if everything and at < len(rendered):
        parts.append((at, len(rendered), 1.0))
    weights = []
    for begin, end in encoded["offset_mapping"]:
        own = next(((b, e, w) for b, e, w in parts if b < end and begin < e), None)
        weights.append(0.0 if own is None else own[2] * rule_weight(rendered[own[0] : own[1]], begin - own[0], end - own[0]))
    return encoded["input_ids"], weights


def weighed_chat(tokenizer, record: dict, everything: bool) -> tuple[list[int], list[float]]:
    """ChatML: an answer is what follows the header of its turn, up to and with the end of turn."""
    rendered, answers = "", []
    for turn in record["messages"]:
        rendered += f"<|im_start|>{turn['role']}\n"
        begin = len(rendered)
        rendered += f"{turn['content']}<|im_end|>"
        weight = turn.get("weight", 1)
        if turn["role"] == "assistant" and (weight not in (0, 1) or not everything):
            answers.append((begin, len(rendered), float(weight)))
        elif turn["role"] == "assistant" and weight == 0:
            answers.append((begin, len(rendered), 0.0))
        rendered += "\n"
    assert rendered == tokenizer.apply_chat_template([{k: t[k] for k in ("role", "content")} for t in record["messages"]], tokenize=False)
    return weigh(tokenizer, rendered, answers, everything)


def weighed_text(tokenizer, record: dict) -> tuple[list[int], list[float]]:
    whole = record["prompt"] + record["completion"]
    ids, weights = weigh(tokenizer, whole, [(len(record["prompt"]), len(whole), 1.0)], everything=False)
    return ids + [tokenizer.eos_token_id], weights + [1.0]


def document_of(ids: list[int], weights: list[float]) -> Document:
    """`inputs["weights"]`: of each token."""
    labels = [token if weight > 0 else IGNORE_INDEX for token, weight in zip(ids, weights)]
    return Document(ids, labels, {"weights": weights})


def weighed_loss(model, batch: list[Document]) -> torch.Tensor:
    total, weight = 0, 0.0
    for document in batch:
        logits = model(input_ids=torch.tensor([document.tokens])).logits[0]
        losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(document.tokens[1:]), reduction="none")
        weights = torch.tensor(document.inputs["weights"][1:])
        total = total + (losses * weights).sum()
        weight += weights.double().sum().item()
    return total / weight


# ---- Checks


def preview(sftrun: Sftrun, config: Path, count: int, **settings) -> list[dict]:
    overrides = [f"{key.replace('__', '.')}={value}" for key, value in settings.items()]
    shown = json.loads(sftrun.run("preview", "--config", str(config), "-n", str(count), "--json", *overrides))
    return shown["data_sets"][0]["sequences"]


def check_tokens(sftrun: Sftrun, name: str, config: Path, documents: list[Document], verdicts: Verdicts, **settings) -> None:
    sequences = preview(sftrun, config, len(documents), **settings)
    same_tokens = [s["input_ids"] for s in sequences] == [d.tokens for d in documents]
    verdicts.expect(f"{name}: tokens", same_tokens, f"{len(sequences)} sequences")
    ours = [s["label_weights"] or [1.0 if label != IGNORE_INDEX else 0.0 for label in s["labels"]] for s in sequences]
    theirs = [d.inputs["weights"] for d in documents]
    wrong = sum(a != b for o, t in zip(ours, theirs) for a, b in zip(o, t))
    kinds = len({weight for weights in theirs for weight in weights})
    verdicts.expect(f"{name}: weights of tokens", same_tokens and wrong == 0 and kinds > 3, f"{wrong} differ, {kinds} kinds")


def reference(model: Path, adapter: Path | None, documents: list[Document]) -> list[dict]:
    trained = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    if adapter:
        trained = PeftModel.from_pretrained(trained, adapter, is_trainable=True)
    recipe = Recipe(STEPS, GLOBAL_BATCH, learning_rate=1e-3, scheduler="linear", warmup_steps=0, max_grad_norm=0.5)
    return train(trained, documents, recipe, loss_of=weighed_loss)


def new_adapter(model: Path, directory: Path) -> Path:
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapter = get_peft_model(base, LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=LORA["target_modules"], init_lora_weights=False))
    adapter.save_pretrained(directory)
    return directory


def check_training(sftrun: Sftrun, name: str, config: Path, documents: list[Document], model: Path, adapter: Path | None, scratch: Path,
                   quick: bool, verdicts: Verdicts, **settings) -> None:
    start = {"tuning__lora__init_from": adapter} if adapter else {"tuning__mode": "full"}
    common = {**settings, **start, "train__learning_rate": 1e-3}
    theirs = reference(model, adapter, documents)
    divisions = [(1, 1, False, {}), (1, 2, False, {}), (2, 1, False, {}), (2, 2, False, {}), (1, 4, True, {}), (2, 2, True, {}),
                 (2, 1, False, {"parallel__strategy": "fsdp"}), (2, 1, False, {"parallel__strategy": "tensor"}),
                 (2, 2, False, {"parallel__strategy": "pipeline"})]
    first = {}
    for processes, accumulation, packing, strategy in divisions[:2] + divisions[5:7] if quick else divisions:
        how = f"{name}, {processes} x {accumulation}{' packed' if packing else ''} {' '.join(strategy.values())}".rstrip()
        parts = processes if strategy.get("parallel__strategy") not in ("tensor", "pipeline") else 1
        share = {"train__batch_size": max(1, GLOBAL_BATCH // (parts * accumulation)), "train__grad_accum": accumulation, "data__packing": packing}
        ours = sftrun.train(config, scratch / how.replace(" ", "-"), processes, **common, **share, **strategy)
        if not packing and not first:
            compare_metrics(verdicts, how, ours, theirs, LOSS, GRAD_NORM)
        key = "packed" if packing else "alone"  # packed, a step has other documents
        if key in first:
            verdicts.below(f"{how}: loss as undivided", difference(ours, first[key], "loss"), DIVIDED)
            verdicts.below(f"{how}: gradient norm as undivided", difference(ours, first[key], "grad_norm"), 10 * DIVIDED)
        first.setdefault(key, ours)


def check_eval(sftrun: Sftrun, config: Path, documents: list[Document], model: Path, data: Path, scratch: Path, verdicts: Verdicts) -> None:
    with torch.no_grad():
        theirs = weighed_loss(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), documents).item()
    settings = [f"data.val={data}"]
    ours = json.loads(sftrun.run("eval", "--config", str(config), "--adapter", "none", "--no-generate", "--json", "--device", "cpu", *settings))["base"]
    verdicts.below("sftrun eval: loss", abs(ours["loss"] / theirs - 1), LOSS)
    output = scratch / "evaluated"
    sftrun.train(config, output, 2, data__val=data, train__max_steps=1, train__eval_on_start="true", train__eval_steps=1, train__eval_token_accuracy="true")
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    start = next(line for line in lines if "eval_loss" in line)
    verdicts.below("evaluation in a run: loss", abs(start["eval_loss"] / theirs - 1), LOSS)
    verdicts.below("evaluation in a run: accuracy", abs(start["eval_token_accuracy"] - ours["token_accuracy"]), 1e-9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sftrun, verdicts, rng = Sftrun(args.sftrun), Verdicts(), random.Random(5)
    with tempfile.TemporaryDirectory() as temporary:
        for splits_words in (True,) if args.quick else (True, False):
            scratch = Path(temporary) / str(splits_words)
            scratch.mkdir()
            model = make_model(scratch / "model", adds_bos=False, splits_words=splits_words)
            tokenizer = AutoTokenizer.from_pretrained(model)
            (scratch / "chatml.jinja").write_text(CHATML)
            tokenizer.chat_template = CHATML
            chats, texts = [chat(rng) for _ in range(24)], [text(rng) for _ in range(24)]
            configs = {}
            for kind, records in (("chats", chats), ("texts", texts)):
                data = write_jsonl(scratch / f"{kind}.jsonl", records)
                settings = {**SETTINGS, "model__chat_template": str(scratch / "chatml.jinja")}
                run = write_run(scratch / f"{kind}.yaml", model, data, settings)
                text_of_run = run.read_text().replace("  beta: 0.3\n", "")
                run.write_text(text_of_run)
                configs[kind] = run
            of_answers = [document_of(*weighed_chat(tokenizer, record, everything=False)) for record in chats]
            of_all = [document_of(*weighed_chat(tokenizer, record, everything=True)) for record in chats]
            of_texts = [document_of(*weighed_text(tokenizer, record)) for record in texts]
            name = "words" if splits_words else "pieces"
            check_tokens(sftrun, f"{name}, answers", configs["chats"], of_answers, verdicts)
            check_tokens(sftrun, f"{name}, everything", configs["chats"], of_all, verdicts, data__loss_on="all")
            check_tokens(sftrun, f"{name}, texts", configs["texts"], of_texts, verdicts)
            adapter = new_adapter(model, scratch / "adapter")
            common = (scratch, args.quick, verdicts)
            check_training(sftrun, f"{name}, LoRA", configs["chats"], of_answers, model, adapter, *common)
            check_training(sftrun, f"{name}, LoRA on texts", configs["texts"], of_texts, model, adapter, *common)
            if not args.quick:
                check_training(sftrun, f"{name}, full", configs["chats"], of_answers, model, None, *common)
                check_training(sftrun, f"{name}, everything", configs["chats"], of_all, model, adapter, *common, data__loss_on="all")
            if splits_words:
                check_eval(sftrun, configs["chats"], of_answers, model, scratch / "chats.jsonl", scratch, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
