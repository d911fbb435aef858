#!/usr/bin/env python3
"""Says so if a run trains on the toy set; `make train-*` calls it with what `sftrun config show --json` prints. Standard library only."""

import json
import sys


def paths(data):
    """Of data.train: a path, or a list of paths and maps with one."""
    return [entry if isinstance(entry, str) else entry.get("path", "") for entry in (data if isinstance(data, list) else [data])]


def main():
    text = sys.stdin.read()
    if text and any("data/toy/" in path for path in paths(json.loads(text)["data"]["train"])):
        print(f"data: the toy set of this repository (data/toy: 180 short questions about chemical elements), to see that training works here.\n"
              f"  for your own data: data.train and data.val in {sys.argv[1]}, or SFTRUN_DATA__TRAIN=my.jsonl in the environment\n"
              f"  the model is downloaded from the hub if it is not in the cache; without a network: MODEL_NAME=a/local/folder, or `make smoke`", flush=True)


if __name__ == "__main__":
    main()
