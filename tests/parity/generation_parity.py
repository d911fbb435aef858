#!/usr/bin/env python3
"""`sftrun generate` with a repetition penalty and with stop texts, beside transformers' `generate` of the same tiny model.

    .venv-ref/bin/python tests/parity/generation_parity.py --sftrun build/bin/sftrun

penalty   greedy answers with repetition_penalty, tokens of the prompt included
stop      stop_strings: transformers keeps the stop text, and the rest of the token that ends it; we end before it
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    arguments = parser.parse_args()
    reference, sftrun, verdicts = Reference(), Sftrun(arguments.sftrun), Verdicts()
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_penalty, check_stop, check_min_p):
            check(reference, sftrun, Path(folder), verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    raise SystemExit(main())
