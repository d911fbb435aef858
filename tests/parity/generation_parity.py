#!/usr/bin/env python3
"""`sftrun generate` with a repetition penalty and with stop texts, beside transformers' `generate` of the same tiny model.

    .venv-ref/bin/python tests/parity/generation_parity.py --sftrun build/bin/sftrun

penalty   greedy answers with repetition_penalty, tokens of the prompt included
stop      stop_strings: transformers keeps the stop text, and the rest of the token that ends it; we end before it
logprobs  --logprobs: `logprobs` are those of the model, `sampling_logprobs` those after transformers' own warpers
min_p     a sampled answer with min_p 1 is the greedy one
What the filters of sampling leave of each token's probability is compared in tests/model/sampling_test.cpp.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch
from harness import REPOSITORY, Sftrun, Verdicts
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

MODEL = REPOSITORY / "tests/data/models/tied-gqa"
PROMPTS = ["1 and 2 and 3 and", "hello there, hello", "the cat and the"]
PENALTIES = [0.7, 1.1, 1.5, 3.0]
NEW_TOKENS = 24
ON_CPU = ["--device", "cpu", "--dtype", "fp32", "--no-chat", "--max-new-tokens", str(NEW_TOKENS)]


class Reference:
    def __init__(self) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(MODEL)
        self.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32).eval()

    def answer(self, prompt: str, **settings) -> str:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        with torch.no_grad():
            tokens = self.model.generate(**inputs, do_sample=False, max_new_tokens=NEW_TOKENS, **settings)
        return self.tokenizer.decode(tokens[0, inputs["input_ids"].shape[1]:], skip_special_tokens=True)


def answers(sftrun: Sftrun, folder: Path, *settings: str) -> list[dict]:
    records = [{"prompt": prompt} for prompt in PROMPTS]
    return sftrun.jsonl("generate", records, folder, "--model", str(MODEL), *ON_CPU, *settings)


def check_penalty(reference: Reference, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
    plain = [reference.answer(prompt) for prompt in PROMPTS]
    for penalty in PENALTIES:
        ours = [line["generated"] for line in answers(sftrun, folder, "--repetition-penalty", str(penalty))]
        theirs = [reference.answer(prompt, repetition_penalty=penalty) for prompt in PROMPTS]
        verdicts.expect(f"penalty {penalty}: equal", ours == theirs, f"{ours} {theirs}")
        verdicts.expect(f"penalty {penalty}: does something", theirs != plain)


def check_stop(reference: Reference, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
    whole = reference.answer(PROMPTS[0])
    for begin in range(1, len(whole) - 4, 3):
        stop = whole[begin:begin + 4]
        theirs = [reference.answer(prompt, stop_strings=[stop], tokenizer=reference.tokenizer) for prompt in PROMPTS]
        expected = [(text[:text.find(stop)], "stop") if stop in text else (text, "length") for text in theirs]
        ours = [(line["generated"], line["finish_reason"]) for line in answers(sftrun, folder, f"--stop={stop}")]
        verdicts.expect(f"stop at {stop!r}: equal", ours == expected, f"{ours} {expected}")
        verdicts.expect(f"stop at {stop!r}: stops", any(reason == "stop" for _, reason in expected))


def check_min_p(reference: Reference, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
    sampled = answers(sftrun, folder, "--temperature", "1.5", "--min-p", "1", "--seed", "3")
    verdicts.expect("min_p 1: the greedy answer", [line["generated"] for line in sampled] == [reference.answer(prompt) for prompt in PROMPTS])


SAMPLINGS = [{}, {"temperature": 0.7}, {"temperature": 1.3, "top_p": 0.8}, {"temperature": 0.9, "top_k": 5, "min_p": 0.1}, {"repetition_penalty": 1.4}]


def check_logprobs(reference: Reference, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
    """The distribution of each token, by one pass of transformers over the prompt and the answer."""
    for settings in SAMPLINGS:
        words = [word for key, value in ({"temperature": 1} | settings).items() for word in (f"--{key.replace('_', '-')}", str(value))]
        lines = answers(sftrun, folder, *words, "-n", "4", "--seed", "9", "--logprobs")
        verdicts.expect(f"logprobs {settings}: answers", len(lines) == 4 * len(PROMPTS))
        apart, apart_drawn, count = 0.0, 0.0, 0
        for line in lines:
            prompt, answer = line["prompt_ids"], line["completion_ids"]
            assert prompt == reference.tokenizer(line["prompt"])["input_ids"]
            ids = torch.tensor([prompt + answer])
            with torch.no_grad():
                logits = reference.model(ids).logits[0, len(prompt) - 1:-1]
            chosen = torch.tensor(answer)[:, None]
            plain = torch.log_softmax(logits, -1).gather(-1, chosen)[:, 0]
            apart = max(apart, (plain - torch.tensor(line["logprobs"])).abs().max().item())
            count += len(answer)
            if not settings:
                continue
            warpers = LogitsProcessorList()
            if "repetition_penalty" in settings:
                warpers.append(RepetitionPenaltyLogitsProcessor(settings["repetition_penalty"]))
            warpers.append(TemperatureLogitsWarper(float(settings.get("temperature", 1))))
            if "top_k" in settings:
                warpers.append(TopKLogitsWarper(settings["top_k"]))
            if "top_p" in settings:
                warpers.append(TopPLogitsWarper(settings["top_p"]))
            if "min_p" in settings:
                warpers.append(MinPLogitsWarper(settings["min_p"]))
            for at, (token, drawn) in enumerate(zip(answer, line["sampling_logprobs"])):
                warped = torch.log_softmax(warpers(ids[:, :len(prompt) + at], logits[at:at + 1].clone()), -1)
                apart_drawn = max(apart_drawn, abs(warped[0, token].item() - drawn))
        verdicts.below(f"logprobs {settings}: the model's, of {count} tokens", apart, 1e-4)
        has_both = ["sampling_logprobs" in line for line in lines]
        verdicts.expect(f"logprobs {settings}: lists", has_both == [bool(settings)] * len(lines))
        if settings:
            verdicts.below(f"logprobs {settings}: those that were drawn from", apart_drawn, 1e-4)


def check_as_scored(reference: Reference, sftrun: Sftrun, folder: Path, verdicts: Verdicts) -> None:
    """`sftrun score` of the same tokens, where the text of the answer is read as the tokens that were generated."""
    records = [{"prompt": prompt} for prompt in PROMPTS]  # long answers of random weights are no UTF-8
    lines = sftrun.jsonl("generate", records, folder, "--model", str(MODEL), *ON_CPU[:5], "--max-new-tokens", "3", "--temperature", "0.8", "--seed", "4",
                         "-n", "60", "--logprobs")
    kept = []
    for line in lines:
        ids = line["completion_ids"][:line["generated_tokens"]]
        text = reference.tokenizer.decode(ids)
        if ids and reference.tokenizer(line["prompt"] + text)["input_ids"] == line["prompt_ids"] + ids:
            kept.append({"prompt": line["prompt"], "completion": text, "expected": sum(line["logprobs"][:len(ids)]), "count": len(ids)})
    scored = sftrun.jsonl("score", kept, folder, "--model", str(MODEL), "--device", "cpu", "--dtype", "fp32")
    same = [line for line in scored if line["tokens"] == line["count"]]
    verdicts.expect("score: answers that read as they were generated", len(same) > 0, f"{len(same)} of {len(lines)}")
    verdicts.below("score: the sum of logprobs", max((abs(line["logprob"] - line["expected"]) for line in same), default=1), 3e-4)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    arguments = parser.parse_args()
    reference, sftrun, verdicts = Reference(), Sftrun(arguments.sftrun), Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_penalty, check_stop, check_min_p, check_logprobs, check_as_scored):
            check(reference, sftrun, Path(folder), verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
