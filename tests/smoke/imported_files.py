#!/usr/bin/env python3
"""Files of Axolotl, LLaMA-Factory, TRL, torchtune, Accelerate and DeepSpeed: each is imported, planned (--dry-run) and previewed with a tiny model.

    tests/smoke/imported_files.py --sftrun build/bin/sftrun [--write]

The files are in tests/data/imports, with small data sets. expected.json there says for each file what its import gives (tests/config checks the
same), and what the run that it becomes trains on: the text of the tokens of the first record that carry a label, or the error. --write writes it anew.
Standard library only.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES, MODEL = ROOT / "tests/data/imports", ROOT / "tests/data/models/tied-gqa"
TIMEOUT = 120  # s, of one command
PROCESSES = 2
# The tiny model's tokenizer has none of the control tokens of the built-in templates.
OVERRIDES = ["--device", "cpu", "output.dir=planned"]
BUILT_IN = ("chatml", "llama3")
RUN = """\
model: { name: models/tiny, max_seq_len: 256 }
tuning: { mode: lora }
data: { train: data/chat.jsonl }
train: { max_steps: 2 }
"""
FLAGS = {"accelerate": ["--accelerate-config"], "deepspeed": ["--nproc-per-node", "2", "--deepspeed"]}


class Program:
    def __init__(self, path, folder):
        self.path, self.folder = path, folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SFTRUN_")}
        self.environment = kept | {"XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}

    def run(self, *words):
        return subprocess.run([self.path, *map(str, words)], cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)


def first_error(done):
    """The first line of the error, without its place."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    return lines[0].removeprefix("error: ") if lines else done.stderr


def trained_text(program, words):
    done = program.run("preview", *words, "--json", "-n", "1")
    if done.returncode:
        return {"error": first_error(done)}
    texts = []
    for sequence in json.loads(done.stdout)["data_sets"][0]["sequences"]:
        whole = sequence["trained_of_text"] is not None  # a head reads all of it
        texts.append("".join(token for token, label in zip(sequence["tokens"], sequence["labels"]) if whole or label != -100))
    return {"trained": texts}


def planned(program, config, words):
    done = program.run("train", "--config", config, *words, *OVERRIDES, "--dry-run")
    if done.returncode:
        return {"error": first_error(done)}
    template = [word for word in OVERRIDES + words if word.startswith("model.chat_template")]
    return trained_text(program, ["--config", config, *template])


def outcome(program, name):
    """What becomes of one file."""
    done = program.run("config", "import", name, "--json")
    if done.returncode:
        return {"refused": first_error(done)}
    imported = json.loads(done.stdout)
    settings = {one["key"]: one["value"] for one in imported["settings"]}
    result = {"tool": imported["tool"], "settings": settings, "lost": sorted(one["key"] for one in imported["not_carried"])}
    if imported["tool"] in FLAGS:
        return result | planned(program, "run.yaml", [*FLAGS[imported["tool"]], name])
    config = f"{name}.imported.yaml"
    (program.folder / config).write_text(imported["yaml"])
    words = ["model.chat_template="] if settings.get("model.chat_template") in BUILT_IN else []
    return result | planned(program, config, words)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--write", action="store_true", help="write expected.json instead of comparing with it")
    arguments = parser.parse_args()
    names = sorted(path.name for path in FILES.iterdir() if path.is_file() and path.name != "expected.json")
    with tempfile.TemporaryDirectory() as root:
        folder = pathlib.Path(root) / "imports"
        shutil.copytree(FILES, folder)
        (folder / "models").mkdir()
        (folder / "models/tiny").symlink_to(MODEL)
        (folder / "run.yaml").write_text(RUN)
        program = Program(arguments.sftrun.resolve(), folder)
        with concurrent.futures.ThreadPoolExecutor(PROCESSES) as pool:
            outcomes = dict(zip(names, pool.map(lambda name: outcome(program, name), names)))
    if arguments.write:
        (FILES / "expected.json").write_text(json.dumps(outcomes, indent=1) + "\n")
        return 0
    expected = json.loads((FILES / "expected.json").read_text())
    wrong = [name for name in sorted(outcomes.keys() | expected.keys()) if outcomes.get(name) != expected.get(name)]
    for name in wrong:
        print(f"FAIL {name}:\n  {outcomes.get(name)}\ninstead of\n  {expected.get(name)}")
    print(f"{len(names) - len(wrong)} of {len(names)} files become what is expected")
    return 1 if wrong or len(names) < 40 else 0


if __name__ == "__main__":
    sys.exit(main())
