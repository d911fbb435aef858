#!/usr/bin/env python3
"""Writes docs/tutorial.md: the first hour with sftrun, each command run at a terminal, and what it printed.

    scripts/demo/prepare.py
    .venv-ref/bin/python scripts/record_tutorial.py --sftrun build/bin/sftrun

Model and data are the demo's. Needs pyte, which draws what a terminal shows. Takes a quarter of an hour on two cores.
"""

import argparse
import os
import pathlib
import pty
import re
import select
import shutil
import struct
import subprocess
import fcntl
import sys
import tempfile
import termios
import time

import pyte

ROOT = pathlib.Path(__file__).resolve().parents[1]
MODEL = ROOT / ".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"
DATA = ROOT / ".cache/demo"
COLUMNS, LINES = 400, 400  # no line is wrapped
TIMEOUT = 1800  # s, of one command

# Prose, and commands with what is typed while they run: (pattern that is shown, text).
STEPS = [
    """# The first hour

From a file of examples to a model that answers as they do. Everything below was typed at a terminal of a machine with two cores and no GPU, and is
what the programs printed ({date}, sftrun {version}; `scripts/record_tutorial.py` repeats it). The model is SmolLM2-135M-Instruct, the data are 1218 questions about
places with their records, as `make demo` makes them. On a GPU the commands are the same.

The file has one conversation per line:""",
    ("head -n 1 places.jsonl", []),
    """## A configuration

`sftrun config init` asks what a run needs. Enter takes the default in brackets.""",
    ("sftrun config init -o places.yaml", [(r"\(--model\)", "smollm2.gguf"), (r"\(--data\)", "places.jsonl"), (r"\(--val-split\)", ""),
                                          (r"\(--mode\)", "lora"), (r"\(--max-seq-len\)", "256"), (r"\(--epochs\)", "1")]),
    ("cat places.yaml", []),
    """[configuration.md](configuration.md) has every key. Any key can also be given on the command line, as three are below: 1218 short records are few, so steps are smaller and larger than usual (8 sequences instead of 32, a learning rate of 1e-3).

## What will fit

Before anything is loaded, `sftrun memory-check` computes what each process needs and what would fit. `--gpus "1x RTX4090"` asks about another machine.""",
    ("sftrun memory-check --config places.yaml --nproc-per-node 2", []),
    """[memory.md](memory.md) explains the terms, and how far off they may be.

## Training

Two processes, one for each core. Ctrl-C would stop with a checkpoint, and the same command would continue.""",
    ("sftrun train --config places.yaml --nproc-per-node 2 train.learning_rate=1e-3 train.global_batch_size=8 output.dir=runs/places", []),
    """## How good is it

`sftrun eval` measures the run on its validation examples: the loss, and generated answers against the right ones. `--base` measures the model without the adapter, too.""",
    ("sftrun eval --config runs/places/config.resolved.yaml --base --max-records 40 --nproc-per-node 2", []),
    """The page about the run, with its curves, findings and settings, was written at its end; `sftrun report` writes it again.""",
    ("sftrun report runs/places", []),
    """## Talking to it

`/adapter` switches between the adapter and the base model, so that both can be asked the same.""",
    ("sftrun chat --adapter runs/places --model smollm2.gguf --max-new-tokens 60 --system \"You keep a gazetteer. File the place as one record.\"",
     [(r"> $", "Where is Uppsala, Sweden?"), (r"\n> $", "/reset"), (r"\n> $", "/adapter smollm2.gguf"), (r"\n> $", "Where is Uppsala, Sweden?"), (r"\n> $", "/quit")]),
    """## And then

- [serving.md](serving.md): the same model behind OpenAI's API, also for lm-evaluation-harness.
- [export.md](export.md): `sftrun merge` writes one model of base and adapter, as safetensors or GGUF.
- [parallelism.md](parallelism.md): models that do not fit on one device.
- [troubleshooting.md](troubleshooting.md): errors and their remedies.""",
]


def shown_by(command, typed, folder, environment):
    """What a terminal shows when the command has ended."""
    screen = pyte.Screen(COLUMNS, LINES)
    stream = pyte.ByteStream(screen)
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.execvpe("bash", ["bash", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
    waiting, fresh, deadline = list(typed), "", time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.3)[0]:
            try:
                part = os.read(terminal, 65536)
            except OSError:
                break
            stream.feed(part)
            fresh += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", part.decode(errors="replace"))
        elif waiting and re.search(waiting[0][0], fresh.replace("\r", "")):
            os.write(terminal, waiting.pop(0)[1].encode() + b"\r")
            fresh = ""
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    lines = [line.rstrip() for line in screen.display]
    while lines and not lines[-1]:
        lines.pop()
    if status != 0 or waiting:
        sys.exit(f"error: {command}: exit code {status}, not typed: {waiting}\n" + "\n".join(lines))
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--steps", type=int, help="end the training after so many steps, to try this script out")
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / "docs/tutorial.md")
    options = parser.parse_args()
    version = subprocess.run([options.sftrun, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        shutil.copy(MODEL, folder / "smollm2.gguf")
        shutil.copy(DATA / "train.jsonl", folder / "places.jsonl")
        environment = {**os.environ, "PATH": f"{options.sftrun.resolve().parent}:{os.environ['PATH']}", "TERM": "xterm", "LANG": "C.UTF-8",
                       "XDG_CONFIG_HOME": str(folder / ".config"), "NO_COLOR": "1"}
        parts = []
        for step in STEPS:
            if isinstance(step, str):
                parts.append(step.format(date=time.strftime("%-d %B %Y"), version=version) if step.startswith("# ") else step)
                continue
            command, typed = step
            print(f"$ {command}", flush=True)
            if options.steps and command.startswith("sftrun train"):
                command += f" train.max_steps={options.steps}"
            text = shown_by(command, typed, folder, environment).replace(f"{folder}/", "").replace(str(folder), ".")
            parts.append(f"```\n$ {command}\n{text}\n```")
        options.output.write_text("\n\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
