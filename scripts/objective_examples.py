#!/usr/bin/env python3
"""Runs the examples of docs/objectives.md, and prints what comes out.

    .venv-ref/bin/python scripts/objective_examples.py --sftrun build/bin/sftrun [--only sft dpo …] [--folder DIR]

Makes tiny models with random weights and data about odd and even numbers in DIR (a temporary folder), writes the configurations of the page, and runs its commands
there. An example that reads another one's result (grpo and distill that of sft) needs it in the same folder.
"""

import argparse
import json
import os
import pathlib
import random
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/objectives.md"
NUMBERS, HELD_OUT = range(100, 1000), 100
COLUMNS = {  # of the table of an example: keys of metrics.jsonl at evaluations
    "sft": ["eval_loss", "eval_token_accuracy"], "dpo": ["eval_loss", "eval_rewards/accuracies", "eval_rewards/margins"],
    "kto": ["eval_loss", "eval_rewards/chosen", "eval_rewards/rejected"], "reward": ["eval_loss", "eval_accuracy", "eval_margin"],
    "classify": ["eval_loss", "eval_accuracy", "eval_f1_macro"], "grpo": [], "distill": ["eval_loss", "eval_kd_loss", "eval_ce_loss"],
}


def write_models(folder):
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.append(str(ROOT / "tests/smoke"))
    import torch
    from preferences_learnt import TOKENS, write_model
    from transformers import LlamaConfig, LlamaForCausalLM

    for name in ("tiny", "small"):
        write_model(folder / "models" / name)
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=len(TOKENS), hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
                                 max_position_embeddings=64, bos_token_id=1, eos_token_id=2, tie_word_embeddings=False)).save_pretrained(folder / "models/small")


def write_data(folder):
    def write(name, records):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))

    numbers = list(NUMBERS)
    random.Random(1).shuffle(numbers)
    words = ["even", "odd"]
    for end, part in (("", numbers[HELD_OUT:]), ("-val", numbers[:HELD_OUT])):
        write(f"sft{end}", [{"prompt": str(n), "completion": f"{n % 10} {words[n % 2]}"} for n in part])
        write(f"pairs{end}", [{"prompt": str(n), "chosen": words[n % 2], "rejected": words[1 - n % 2]} for n in part])
        chance = random.Random(2)
        said = [(n, chance.choice(words)) for n in part]
        write(f"judged{end}", [{"prompt": str(n), "completion": word, "label": word == words[n % 2]} for n, word in said])
        write(f"classes{end}", [{"text": str(n), "label": words[n % 2]} for n in part])
    write("questions", [{"prompt": str(n), "answer": words[n % 2]} for n in numbers[HELD_OUT:HELD_OUT + 200]])
    write("answers-to-judge", [{"prompt": str(n), "completion": word} for n in numbers[:3] for word in words])


def examples():
    """(objective, its configurations by file, its commands) in the order of the page."""
    for section in PAGE.read_text().split("\n### ")[1:]:
        objective = section.splitlines()[0].split(": ")[1]
        files = {text.splitlines()[0][2:]: text for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)}
        commands = [line for block in re.findall(r"```bash\n(.*?)```", section, re.DOTALL) for line in block.splitlines()]
        yield objective, files, commands


def run(program, folder, command):
    print(f"$ {command}", flush=True)
    done = subprocess.run([program, *shlex.split(command)[1:]], cwd=folder, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    if done.returncode != 0:
        sys.exit(f"failed with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    if done.stdout and " train " not in command:
        print(done.stdout.rstrip()[:1500])


def remove_results(folder, command):
    """What an earlier run of this script has written."""
    for name in re.findall(r"(?:--output |output\.dir=)(\S+)", command) + re.findall(r"--config (\S+)\.yaml$", command) * command.startswith("sftrun train"):
        for path in (folder / name, folder / "runs" / name):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def print_curve(folder, objective):
    columns = COLUMNS[objective]
    lines = [json.loads(line) for line in (folder / f"runs/{objective}/metrics.jsonl").read_text().splitlines()]
    print("| step | " + " | ".join(f"`{column}`" for column in columns) + " |\n|---|" + "---|" * len(columns))
    for line in lines:
        if line.get(columns[0]) is not None:
            print(f"| {line['step']} | " + " | ".join(f"{line[column]:.3f}" for column in columns) + " |")


def print_rewards(folder):
    for name, when in (("rewarded", "before"), ("again-rewarded", "after")):
        rewards = [json.loads(line)["reward"] for line in (folder / f"{name}.jsonl").read_text().splitlines()]
        print(f"mean reward {when}: {sum(rewards) / len(rewards):.3f} of {len(rewards)} answers")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=COLUMNS, default=list(COLUMNS))
    parser.add_argument("--folder", type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.folder or pathlib.Path(scratch)
        if not (folder / "models").exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_models(folder)
            write_data(folder)
        for objective, files, commands in examples():
            if objective not in options.only:
                continue
            print(f"\n== {objective}")
            for name, text in files.items():
                (folder / name).write_text(text)
            for command in commands:
                remove_results(folder, command)
                run(options.sftrun.resolve(), folder, command)
            print_curve(folder, objective) if COLUMNS[objective] else print_rewards(folder)
            if objective == "reward":
                print((folder / "judged-by-model.jsonl").read_text())


if __name__ == "__main__":
    main()
