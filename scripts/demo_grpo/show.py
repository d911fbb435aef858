#!/usr/bin/env python3
"""Shows what `make demo-grpo` learned: rewards on held-out sums before and after, and answers of the first and the last step. Standard library only.

Exits 1 if the held-out reward did not rise by at least half.
"""

import argparse
import json
import pathlib
import sys

LEAST_RISE = 1.5
SHOWN = 4


def one_line(text, width=60):
    text = " ".join(text.split())
    return text if len(text) <= width else text[: width - 1] + "…"


def answers_of(path):
    """One answer to each prompt of a step."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    first = {}
    for record in records:
        first.setdefault(record["prompt"], record)
    return list(first.values())[:SHOWN]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--run", type=pathlib.Path, required=True)
    parser.add_argument("--train-seconds", type=int, required=True)
    args = parser.parse_args()
    lines = [json.loads(line) for line in (args.run / "metrics.jsonl").read_text().splitlines()]
    evaluations = [line for line in lines if "eval_reward" in line]
    steps = sorted((args.run / "rollouts").glob("step-*.jsonl"))
    if len(evaluations) < 2 or len(steps) < 2:
        sys.exit(f"error: {args.run} has {len(evaluations)} evaluations and answers of {len(steps)} steps, expected two of each at least")
    for when, path in (("first", steps[0]), ("last", steps[-1])):
        print(f"\n  answers of the {when} step ({path.name})")
        for record in answers_of(path):
            print(f"    {record['prompt']:<14} {one_line(record['generated']):<62} reward {record['reward']:.2f}")
    before, after = evaluations[0], evaluations[-1]
    print(f"\n  {'held-out sums':<26} {'before':>8} {'after':>8}")
    for name, key in (("mean reward", "eval_reward"), ("right", "eval_rewards/number/mean"), ("nothing but a number", "eval_rewards/form/mean"),
                      ("tokens of an answer", "eval_completions/mean_length")):
        print(f"  {name:<26} {before[key]:>8.2f} {after[key]:>8.2f}")
    print(f"  training took {args.train_seconds} s")
    if after["eval_reward"] < LEAST_RISE * before["eval_reward"]:
        sys.exit(f"error: the held-out reward rose from {before['eval_reward']:.2f} to {after['eval_reward']:.2f} only")


if __name__ == "__main__":
    main()
