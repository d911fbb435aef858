#!/usr/bin/env python3
"""Shows what the demo run learned: held-out loss before and after, and answers of the base model and of the adapter to
questions about places that the training part does not hold. Standard library only.

Exits 1 if the held-out loss did not fall by at least 10%.
"""

import argparse
import json
import pathlib
import subprocess
import sys

from prepare import SYSTEM

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
MIN_DROP = 0.10


def heldout_losses(run):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    losses = [line["eval_loss"] for line in lines if "eval_loss" in line]
    if len(losses) < 2:
        sys.exit(f"error: {run}/metrics.jsonl has {len(losses)} evaluations, expected one before and one after training")
    return losses[0], losses[-1]


def answers(sftrun, questions, output, adapter=None):
    command = [sftrun, "generate", "--model", MODEL, "--input", str(questions), "--output", str(output),
               "--overwrite", "--max-new-tokens", "48",
               "--threads", "1"]  # a token at a time is too little work to share between threads
    subprocess.run(command + (["--adapter", str(adapter)] if adapter else []), check=True)
    return [json.loads(line)["generated"].strip() for line in output.read_text().splitlines()]


def one_line(text, width=76):
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", default="build/bin/sftrun")
    parser.add_argument("--run", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    parser.add_argument("--questions", type=int, default=24, help="held-out questions to ask")
    parser.add_argument("--show", type=int, default=6, help="how many of them to print")
    parser.add_argument("--train-seconds", type=int)
    arguments = parser.parse_args()

    records = [json.loads(line) for line in (ROOT / ".cache/demo/heldout.jsonl").read_text().splitlines()]
    records = records[: arguments.questions]
    folder = arguments.run / "answers"
    folder.mkdir(exist_ok=True)
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"messages": r["messages"][:-1]}, ensure_ascii=False) + "\n" for r in records))
    before = answers(arguments.sftrun, questions, folder / "before.jsonl")
    after = answers(arguments.sftrun, questions, folder / "after.jsonl", arguments.run / "adapter")

    print("\nPlaces the model was not trained on, before and after:")
    right = [0, 0]
    for record, base, tuned in zip(records, before, after):
        wanted = record["messages"][-1]["content"]
        right[0] += base == wanted
        right[1] += tuned == wanted
        if record in records[arguments.show:]:
            continue
        print(f"\n  question  {record['messages'][1]['content']}")
        print(f"  before    {one_line(base)}")
        print(f"  after     {one_line(tuned)}{'' if tuned == wanted else '     (wanted: ' + wanted + ')'}")
    first, last = heldout_losses(arguments.run)
    drop = 1 - last / first
    print(f"\n  right     {right[0]} of {len(records)} before, {right[1]} of {len(records)} after")
    print(f"  held-out loss  {first:.4f} -> {last:.4f}  ({drop:.0%} lower)")
    if arguments.train_seconds is not None:
        print(f"  training took  {arguments.train_seconds} s, start to end")
    print(f"""
The adapter is in {arguments.run}/adapter (PEFT layout). What to do next:
  {arguments.sftrun} generate --model {MODEL} --adapter {arguments.run}/adapter \
      --system "{SYSTEM}" --prompt "Kyoto, Japan"
  {arguments.sftrun} merge --model {MODEL} --adapter {arguments.run}/adapter --output models/demo
  {arguments.sftrun} preview --config configs/demo.yaml        # what the model saw, and which tokens carry a label
  edit configs/demo.yaml: model.name and data.train are all that your own run needs (README.md)""")
    if drop < MIN_DROP:
        print(f"error: the held-out loss fell by {drop:.1%}; at least {MIN_DROP:.0%} was expected", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
