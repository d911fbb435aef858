#!/usr/bin/env python3
"""`sftrun eval` beside transformers, PEFT and rouge-score, on a tiny model.

    .venv-ref/bin/python tests/parity/eval_parity.py --sftrun build/bin/sftrun

loss        sum over the labels of all examples divided by their number, and the share of labels that are the most likely token; of the
            base and of an adapter, over all data and of each validation set; the same with any batch size and number of processes
answers     greedy answers, their ROUGE to the last bit and exact matches
val_split   the loss of the records that training holds out, as training reports it
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts  # noqa: I001

import torch
from peft import PeftModel
from rouge_score.rouge_scorer import RougeScorer
from transformers import AutoModelForCausalLM, AutoTokenizer

MODEL = REPOSITORY / "tests/data/models/tied-gqa"
LOSS = 1e-5  # relative, in fp32
NEW_TOKENS = 16
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
ROUGE = {"rouge1": "rouge1", "rouge2": "rouge2", "rougeL": "rouge_l"}
RUN = """\
model: {{ name: {model}, max_seq_len: 256, dtype: fp32 }}
tuning: {{ mode: lora, lora: {{ r: 16 }} }}
data: {{ train: all.jsonl, val: [first.jsonl, second.jsonl] }}
train: {{ max_steps: 80, learning_rate: 1e-2, batch_size: 2, grad_accum: 1, save_every: "0" }}  # until answers are partly right
output: {{ dir: run }}
"""


def conversations(count: int) -> list[dict]:
    """Some have an earlier answer, which has labels, too."""
    found = []
    for n in range(count):
        turns = [("user", f"{n} and {n + 1} and"), ("assistant", f"{n + 2} and {n + 3}")]
        if n % 3 == 0:
            turns = [("user", "hello"), ("assistant", "hello there"), *turns]
        found.append({"messages": [{"role": role, "content": text} for role, text in turns]})
    return found


class Reference:
    def __init__(self, adapter: Path | None = None) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()
        if adapter:
            self.model = PeftModel.from_pretrained(self.model, adapter).eval()

    @torch.no_grad()
    def sums(self, sequences: list[dict]) -> tuple[float, int, int]:
        """Loss, labels that are the most likely token, labels."""
        loss, correct, count = 0.0, 0, 0
        for sequence in sequences:
            logits = self.model(torch.tensor([sequence["input_ids"]])).logits[0, :-1]
            labels = torch.tensor(sequence["labels"])[1:]
            loss += torch.nn.functional.cross_entropy(logits, labels, reduction="sum").double().item()
            correct += int(((logits.argmax(-1) == labels) & (labels != -100)).sum())
            count += int((labels != -100).sum())
        return loss, correct, count

    @torch.no_grad()
    def answer(self, prompt: list[int]) -> str:
        ids = torch.tensor([prompt])
        out = self.model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS,
                                  pad_token_id=self.tokenizer.eos_token_id)
        return self.tokenizer.decode(out[0, len(prompt):], skip_special_tokens=True)


def question(sequence: dict) -> tuple[list[int], list[int]]:
    """Tokens before the last run of labels, and that run."""
    ids, labels = sequence["input_ids"], sequence["labels"]
    end = max(i for i, label in enumerate(labels) if label != -100) + 1
    begin = max((i for i in range(end) if labels[i] == -100), default=-1) + 1
    return ids[:begin], ids[begin:end]


class Case:
    def __init__(self, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
        self.sftrun, self.folder, self.verdicts = sftrun, folder, verdicts
        self.config = folder / "run.yaml"
        records = conversations(14)
        for name, part in (("first", records[:5]), ("second", records[5:]), ("all", records)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in part))
        self.config.write_text(RUN.format(model=MODEL))
        [shown] = json.loads(sftrun.run("preview", "--config", str(self.config), "--json", "-n", "100"))["data_sets"]
        self.sequences = shown["sequences"]
        self.overrides = [f"output.dir={folder / 'run'}"]

    def evaluate(self, *flags: str) -> dict:
        answers = [] if "--no-generate" in flags else ["--max-new-tokens", str(NEW_TOKENS)]
        return json.loads(self.sftrun.run("eval", "--config", str(self.config), *self.overrides, *ON_CPU, "--json", *answers, *flags))

    def near(self, what: str, ours: float, theirs: float) -> None:
        self.verdicts.below(what, abs(ours / theirs - 1), LOSS)


def check_loss(case: Case, name: str, measured: dict, reference: Reference) -> None:
    parts = {"": case.sequences, "first.jsonl": case.sequences[:5], "second.jsonl": case.sequences[5:]}
    by_name = {"": measured} | {Path(one["name"]).name: one for one in measured["sets"]}
    for part, sequences in parts.items():
        loss, correct, count = reference.sums(sequences)
        what = f"loss: {name}{' of ' + part if part else ''}"
        case.near(what, by_name[part]["loss"], loss / count)
        same = (by_name[part]["label_tokens"], by_name[part]["token_accuracy"]) == (count, correct / count)
        case.verdicts.expect(f"{what}: labels and accuracy", same, f"{correct} of {count}")


def check_answers(case: Case, name: str, measured: dict, reference: Reference, predictions: list[dict]) -> None:
    scorer, sums, matches = RougeScorer(list(ROUGE)), dict.fromkeys(ROUGE, 0.0), 0
    for sequence, prediction in zip(case.sequences, predictions, strict=True):
        prompt, expected = question(sequence)
        text = reference.tokenizer.decode(expected, skip_special_tokens=True)
        answer = reference.answer(prompt)
        case.verdicts.expect(f"answers: {name}: {sequence['place']}", (prediction["reference"], prediction[name]["generated"]) == (text, answer),
                             f"{prediction[name]['generated']!r}, reference {answer!r}")
        for key, score in scorer.score(text, answer).items():
            sums[key] += score.fmeasure
        matches += text.strip() == answer.strip()
    for theirs, ours in ROUGE.items():
        case.verdicts.expect(f"answers: {name}: {ours}", measured[ours] == sums[theirs] / len(predictions), f"{measured[ours]}")
    case.verdicts.expect(f"answers: {name}: exact match", measured["exact_match"] == matches / len(predictions), f"{measured['exact_match']}")


def check_models(case: Case) -> None:
    case.sftrun.run("train", "--config", str(case.config), *case.overrides, "--device", "cpu", "--nproc-per-node", "1")
    file = case.folder / "predictions.jsonl"
    both = case.evaluate("--base", "--predictions", str(file))
    predictions = [json.loads(line) for line in file.read_text().splitlines()]
    for name, adapter in (("base", None), ("adapter", case.folder / "run/adapter")):
        reference = Reference(adapter)
        check_loss(case, name, both[name], reference)
        check_answers(case, name, both[name], reference, predictions)
    case.verdicts.expect("answers: the adapter changes the loss", both["adapter"]["loss"] < 0.95 * both["base"]["loss"])
    partly = all(0.1 < both["adapter"][key] < 0.9 for key in ROUGE.values())
    case.verdicts.expect("answers: some of the adapter's are right in part", partly, f"{both['adapter']}")
    [*_, line] = [json.loads(line) for line in (case.folder / "run/metrics.jsonl").read_text().splitlines() if "eval_loss" in line]
    case.near("loss: as training reported it", both["adapter"]["loss"], line["eval_loss"])
    for flags in (["--batch-size", "1"], ["--nproc-per-node", "2", "--batch-size", "3"], ["--nproc-per-node", "3"]):
        again = case.evaluate("--adapter", str(case.folder / "run/adapter"), *flags)["adapter"]
        case.near(f"loss: {' '.join(flags)}", again["loss"], both["adapter"]["loss"])
        same = all(again[key] == both["adapter"][key] for key in [*ROUGE.values(), "exact_match", "label_tokens", "token_accuracy"])
        case.verdicts.expect(f"answers: {' '.join(flags)}", same)


def check_val_split(case: Case) -> None:
    case.overrides = [f"output.dir={case.folder / 'split'}", "data.val=[]", "data.val_split=4"]
    case.sftrun.run("train", "--config", str(case.config), *case.overrides, "--device", "cpu", "--nproc-per-node", "1")
    [*_, line] = [json.loads(line) for line in (case.folder / "split/metrics.jsonl").read_text().splitlines() if "eval_loss" in line]
    found = case.evaluate("--no-generate")
    case.near("val_split: loss", found["adapter"]["loss"], line["eval_loss"])
    case.verdicts.expect("val_split: four examples, no answers", found["examples"] == 4 and "rouge_l" not in found["adapter"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    arguments = parser.parse_args()
    verdicts = Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        case = Case(Sftrun(str(Path(arguments.sftrun).resolve())), Path(folder), verdicts)
        check_models(case)
        check_val_split(case)
    return verdicts.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
