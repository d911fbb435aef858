#!/usr/bin/env python3
"""Writes the prompts of `make demo-grpo`: sums of two numbers, with the result as `answer`. No record says how an answer should look.

    scripts/demo_grpo/prompts.py --output .cache/demo-grpo [--seed 1]

The sums of the held-out part are in no training record. Standard library only.
"""

import argparse
import json
import pathlib
import random

HELD_OUT, LARGEST = 48, 20


def record(first, second):
    return {"prompt": f"{first} + {second} = ?", "answer": first + second}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    pairs = [(first, second) for first in range(1, LARGEST + 1) for second in range(1, LARGEST + 1)]
    random.Random(args.seed).shuffle(pairs)
    args.output.mkdir(parents=True, exist_ok=True)
    for name, part in (("heldout", pairs[:HELD_OUT]), ("train", pairs[HELD_OUT:])):
        (args.output / f"{name}.jsonl").write_text("".join(json.dumps(record(*pair)) + "\n" for pair in part))


if __name__ == "__main__":
    main()
