#!/usr/bin/env python3
"""Checks the run of `make smoke`: two processes, a loss that fell, a model that gives the answers it was taught. Standard library only.

    scripts/smoke/check.py --sftrun build/bin/sftrun --run runs/smoke
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASKED = 8  # questions of the training part
KNOWN = 6  # of them the model must answer as taught
FALL = 0.1  # the last loss, as a share of the first


def answers(program, run, records):
    with tempfile.TemporaryDirectory() as folder:
        questions, written = pathlib.Path(folder) / "questions.jsonl", pathlib.Path(folder) / "answers.jsonl"
        questions.write_text("".join(json.dumps({"messages": record["messages"][:1]}) + "\n" for record in records))
        done = subprocess.run([program, "generate", "--model", run, "--input", questions, "--output", written, "--max-new-tokens", "32", "--device", "cpu",
                               "--quiet"], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"smoke: generate failed\n{done.stderr}")
        return [json.loads(line)["generated"] for line in written.read_text().splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--run", required=True, type=pathlib.Path)
    options = parser.parse_args()
    losses = [line["loss"] for line in map(json.loads, (options.run / "metrics.jsonl").read_text().splitlines()) if "loss" in line]
    processes = json.loads((options.run / "run.json").read_text())["world_size"]
    records = [json.loads(line) for line in (ROOT / "data/toy/train.jsonl").read_text().splitlines()[:ASKED]]
    known = 0
    print("\nsmoke: questions of the toy set, answered by the model that has just been trained")
    for record, answer in zip(records, answers(options.sftrun, options.run, records), strict=True):
        question, wanted = (message["content"] for message in record["messages"])
        known += answer.strip() == wanted
        print(f"  {question}\n    {answer.strip()}{'' if answer.strip() == wanted else f'   (taught: {wanted})'}")
    problems = []
    if processes != 2:
        problems.append(f"{processes} processes trained, not 2")
    if not losses[-1] < FALL * losses[0]:
        problems.append(f"the loss fell from {losses[0]:.4f} to {losses[-1]:.4f} only")
    if known < KNOWN:
        problems.append(f"only {known} of {ASKED} answers are those it was taught")
    print("\n".join(f"smoke: FAILED: {problem}" for problem in problems) if problems else
          f"smoke: passed: {processes} processes, loss {losses[0]:.2f} -> {losses[-1]:.4f} in {len(losses)} steps, {known} of {ASKED} answers as taught")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
