#!/usr/bin/env python3
"""Gives the program what users get wrong, and compares its answers, word by word, with those that docs/errors.md shows.

    tests/smoke/bad_input.py --sftrun build/bin/sftrun            # a test
    tests/smoke/bad_input.py --sftrun build/bin/sftrun --write    # writes the answers into docs/errors.md

Standard library only. Each case runs in a folder of its own that holds a good run.yaml, good data and a tiny good model,
of which the case spoils one thing. Every answer must name its exit code and come without a stack trace.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
DOCUMENT = ROOT / "docs/errors.md"
BEGIN, END = "<!-- answers: written by tests/smoke/bad_input.py --write -->\n", "<!-- end of answers -->\n"

GOOD_YAML = """\
model: { name: model, max_seq_len: 128 }
tuning: { mode: lora, lora: { r: 4 } }
data: { train: train.jsonl }
train: { max_steps: 1 }
output: { dir: run }
"""
GOOD_RECORD = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello there"}]}
TRAIN = ["train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1"]
CHECK = ["config", "check", "--config", "run.yaml"]

USAGE, DATA = 2, 3


def edit(name, old, new):
    def spoil(folder):
        text = (folder / name).read_text()
        assert old in text, f"{old!r} is not in {name}"
        (folder / name).write_text(text.replace(old, new))
    return spoil


def write(name, text):
    return lambda folder: (folder / name).write_text(text)


def truncate(name, keep_bytes):
    return lambda folder: os.truncate(folder / name, keep_bytes)


def remove(name):
    return lambda folder: (folder / name).unlink()


def gguf_cut_short(folder):
    shutil.copyfile(MODELS / "llama3-gguf/model-Q8_0.gguf", folder / "model.gguf")
    os.truncate(folder / "model.gguf", 30000)


def lines(*records):
    return "".join((r if isinstance(r, str) else json.dumps(r)) + "\n" for r in records)


# title, exit code, what is spoilt, command
CASES = [
    ("The command line", None, None, None),
    ("An unknown command", USAGE, None, ["trian"]),
    ("An unknown flag", USAGE, None, ["train", "--config", "run.yaml", "--nproc-per-nod", "2"]),
    ("No configuration file there", None, remove("run.yaml"), TRAIN),
    ("The configuration", None, None, None),
    ("A misspelt key", USAGE, edit("run.yaml", "max_steps: 1", "warmup_step: 10"), CHECK),
    ("Not YAML", USAGE, edit("run.yaml", "lora: { r: 4 } }", "lora: { r: 4 }"), CHECK),
    ("Several problems at once", USAGE,
     edit("run.yaml", "train: { max_steps: 1 }", "train: { epochs: three, learning_rate: -1, scheduler: cosin }"), CHECK),
    ("A value on the command line", USAGE, None, [*CHECK, "train.batch_size=0"]),
    ("Batch sizes that do not divide", USAGE, edit("run.yaml", "max_steps: 1", "batch_size: 4, global_batch_size: 30"),
     [*TRAIN[:-1], "2"]),
    ("A module that the model does not have", USAGE, edit("run.yaml", "r: 4", "r: 4, target_modules: [q_prj]"), TRAIN),
    ("The data", None, None, None),
    ("No data file there", None, remove("train.jsonl"), TRAIN),
    ("An empty data file", DATA, write("train.jsonl", ""), TRAIN),
    ("A line that is not JSON", DATA, write("train.jsonl", lines(GOOD_RECORD, '{"messages": [', GOOD_RECORD)), TRAIN),
    ("A record of no known form", DATA, write("train.jsonl", lines(GOOD_RECORD, {"question": "hello"})), TRAIN),
    ("Nothing to learn from", DATA, write("train.jsonl", lines({"messages": GOOD_RECORD["messages"][:1]})), TRAIN),
    ("The model", None, None, None),
    ("No model there", DATA, edit("run.yaml", "name: model", "name: modle"), TRAIN),
    ("A model directory without weights", DATA, remove("model/model.safetensors"), TRAIN),
    ("A model file cut short (safetensors)", DATA, truncate("model/model.safetensors", 20000), TRAIN),
    ("A model file cut short (GGUF)", DATA, gguf_cut_short,
     ["generate", "--model", "model.gguf", "--prompt", "hello", "--device", "cpu"]),
    ("An architecture that is not supported", DATA, edit("model/config.json", '"model_type": "llama"', '"model_type": "mamba"'),
     TRAIN),
    ("A directory that is no adapter", DATA, None, ["generate", "--model", "model", "--adapter", "model", "--prompt", "hello",
                                                    "--device", "cpu"]),
]


def good_folder(folder):
    shutil.copytree(MODELS / "tied-gqa", folder / "model", ignore=shutil.ignore_patterns("reference.*"))
    (folder / "run.yaml").write_text(GOOD_YAML)
    (folder / "train.jsonl").write_text(lines(*[GOOD_RECORD] * 4))


def answer(sftrun, folder, command):
    """The error as printed, without the log lines before it, and the exit code."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SFTRUN_")} | {"XDG_CONFIG_HOME": str(folder)}
    done = subprocess.run([str(sftrun), *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    text = done.stderr.replace(str(folder) + "/", "")
    kept = []
    for line in text.splitlines():
        if line.startswith("error:") or kept and not re.match(r"\[(rank \d+|\d\d:)", line):  # not the log's lines
            kept.append(line.rstrip())
    return "\n".join(kept) or "(no error printed)\n" + text, done.returncode


def run_case(sftrun, title, wanted, spoil, command):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        good_folder(folder)
        if spoil:
            spoil(folder)
        text, code = answer(sftrun, folder, command)
    problems = []
    if wanted is not None and code != wanted or wanted is None and code not in (USAGE, DATA):
        problems.append(f"{title}: exit code {code}, expected {wanted or 'that of a user error'}")
    if not text.startswith("error:"):
        problems.append(f"{title}: no error printed\n{text}")
    if re.search(r"terminate called|Aborted|core dumped|#\d+ 0x", text):
        problems.append(f"{title}: a stack trace\n{text}")
    shown = " ".join(a if re.fullmatch(r"[-\w./=]+", a) else f'"{a}"' for a in command)
    return f"**{title}** (exit {code})\n```\n$ sftrun {shown}\n{text}\n```\n", problems


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()

    sections, problems = [], []
    for title, wanted, spoil, command in CASES:
        if command is None:
            sections.append(f"### {title}\n")
            continue
        section, found = run_case(arguments.sftrun.resolve(), title, wanted, spoil, command)
        sections.append(section)
        problems += found
    before, _, rest = DOCUMENT.read_text().partition(BEGIN)
    shown, _, after = rest.partition(END)
    written = "\n" + "\n".join(sections) + "\n"
    if arguments.write:
        DOCUMENT.write_text(before + BEGIN + written + END + after)
    elif shown != written:
        problems += [f"not in docs/errors.md:\n{s}" for s in sections if s not in shown]
        problems.append("docs/errors.md shows other answers; look at the difference, then run this script with --write")
    for problem in problems:
        print("FAIL", problem)
    print(f"{sum(c[3] is not None for c in CASES)} cases, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
