#!/usr/bin/env python3
"""Writes the table of docs/quantised-bases.md: what the frozen base of released models takes in each form.

    scripts/base_memory.py --sftrun build/bin/sftrun [--write]

Computed by `sftrun train --dry-run` from the models' shapes and types (tests/smoke/released_models.py); weights are holes in a file. Standard library only.
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/smoke"))
from released_models import RELEASED, write_model  # noqa: E402

DOCUMENT = ROOT / "docs/quantised-bases.md"
BEGIN, END = "<!-- base_memory.py -->\n", "<!-- end -->\n"
FORMS = {
    "`quant: none`": ["tuning.quant=none"],
    "stored format unchanged": [],
    "fp8, int8": ["tuning.quant=fp8"],
    "nf4": ["tuning.quant=nf4"],
    "nf4, `double_quant: false`": ["tuning.quant=nf4", "tuning.double_quant=false"],
    "nf4, `quant_embeddings: true`": ["tuning.quant=nf4", "tuning.quant_embeddings=true"],
}


def base_of(sftrun, folder, settings):
    arguments = ["train", "--dry-run", "--device", "cpu", "--config", "run.yaml", *settings]
    done = subprocess.run([sftrun, *arguments], cwd=folder, capture_output=True, text=True, check=True)
    return re.search(r"base: ([\d.]+ \w+) in memory", done.stdout + done.stderr).group(1)


def row_of(sftrun, name, config):
    with tempfile.TemporaryDirectory() as scratch:
        folder = pathlib.Path(scratch)
        write_model(folder / "model", config)
        (folder / "train.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b"}) + "\n")
        (folder / "run.yaml").write_text("model: { name: model, dtype: bf16 }\ndata: { train: train.jsonl }\ntrain: { batch_size: 1, grad_accum: 1 }\n")
        return [name.split("/")[-1], *(base_of(sftrun, folder, settings) for settings in FORMS.values())]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=lambda path: str(pathlib.Path(path).resolve()))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    rows = [["model", *FORMS], ["---"] * (len(FORMS) + 1)]
    rows += [row_of(arguments.sftrun, name, config) for name, config in RELEASED.items()]
    table = "".join("| " + " | ".join(row) + " |\n" for row in rows)
    print(table)
    if arguments.write:
        text = DOCUMENT.read_text()
        before, rest = text.split(BEGIN)
        DOCUMENT.write_text(before + BEGIN + table + END + rest.split(END)[1])


if __name__ == "__main__":
    main()
