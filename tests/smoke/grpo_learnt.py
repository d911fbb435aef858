"""What learning from sampled answers learns: a tiny model with random weights is to say whether a number is odd or even, from rewards alone.

    python tests/smoke/grpo_learnt.py --sftrun build/bin/sftrun [--loss dapo grpo cispo] [--quick]

Rounds of `sftrun generate -n 8 --logprobs`, `sftrun reward` (a program in Python, one in the shell) and `sftrun train` with `objective: grpo`, as docs/grpo.md has them. No record says
what a right answer looks like. Held-out numbers are answered greedily before and after.

--quick: the loss dapo alone, on two processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
os.environ["HF_HUB_OFFLINE"] = "1"

from preferences_learnt import HELD_OUT, NUMBERS, write_model

ROUNDS, PROMPTS, ANSWERS, LEAST = 12, 160, 8, 0.9
# Records of a step, and rounds. CISPO does not bound how far the steps of a round may move the model from the one that wrote the answers. With hundreds of
# steps a round, rewards fall again; with larger steps it needs more rounds.
BATCHES, ROUNDS_OF = {"cispo": 64}, {"cispo": 24}
# Whole points for the right word alone, half a point for beginning with it, a little for a word at all.
JUDGE = """
import json, sys
for line in sys.stdin:
    record = json.loads(line)
    words = record["completion"].split()
    first = words[0] if words else ""
    print(1.0 if words == [record["answer"]] else 0.5 if first == record["answer"] else 0.1 if first in ("odd", "even") else 0.0)
"""
# A point off for 40 characters more than the answer needs, in the shell.
SHORT = "while IFS= read -r line; do echo \"-$((${#line} / 40))\"; done"


def sftrun(program: Path, *arguments) -> str:
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"sftrun {' '.join(map(str, arguments))}\nfailed with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def read_jsonl(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def question(number: int) -> dict:
    return {"prompt": str(number), "answer": ["even", "odd"][number % 2]}


def held_out_share(program: Path, folder: Path, model: Path, questions: Path) -> float:
    answers = folder / "held-out-answers.jsonl"
    answers.unlink(missing_ok=True)
    sftrun(program, "generate", "--model", model, "--input", questions, "--output", answers, "--max-new-tokens", 3, "--device", "cpu")
    return sum(record["generated"].strip() == record["answer"] for record in read_jsonl(answers)) / HELD_OUT


def one_round(program: Path, folder: Path, model: Path, numbers: list[int], loss: str, processes: int) -> tuple[Path, float]:
    """@return the model that it trained, and the mean reward of the answers before"""
    folder.mkdir()
    questions = write_jsonl(folder / "questions.jsonl", [question(number) for number in numbers])
    sftrun(program, "generate", "--model", model, "--input", questions, "--output", folder / "answers.jsonl", "-n", ANSWERS, "--logprobs", "--temperature", 1,
           "--max-new-tokens", 3, "--seed", numbers[0], "--device", "cpu", "--nproc-per-node", processes)
    (folder / "judge.py").write_text(JUDGE)
    rewards = [{"name": "program", "label": "judge", "command": f"{sys.executable} {folder / 'judge.py'}"}, {"name": "program", "label": "short", "command": SHORT, "weight": 0.01}]
    config = folder / "rewards.yaml"
    config.write_text(json.dumps(rewards))
    sftrun(program, "reward", "--input", folder / "answers.jsonl", "--output", folder / "rewarded.jsonl", "--reward-config", config)
    rewarded = read_jsonl(folder / "rewarded.jsonl")
    mean = sum(record["reward"] for record in rewarded) / len(rewarded)
    if all(len({record["reward"] for record in rewarded[first : first + ANSWERS]}) == 1 for first in range(0, len(rewarded), ANSWERS)):
        return model, mean  # nothing is left to learn: a run would say so and stop
    run = {
        "model": {"name": str(model), "max_seq_len": 64, "dtype": "fp32"},
        "tuning": {"mode": "full"},
        "data": {"train": str(folder / "rewarded.jsonl"), "cache_dir": "none", "seed": numbers[0]},
        "train": {"objective": "grpo", "loss_type": loss, "epochs": 1, "global_batch_size": BATCHES.get(loss, 4), "learning_rate": 3e-3, "scheduler": "constant", "warmup_steps": 0, "save_every": "0"},
        "output": {"dir": str(folder / "run"), "tensorboard": False},
    }
    (folder / "run.yaml").write_text(json.dumps(run))
    sftrun(program, "train", "--config", folder / "run.yaml", "--device", "cpu", "--nproc-per-node", processes)
    return folder / "run" / "model", mean


def learns(program: Path, folder: Path, loss: str, processes: int) -> bool:
    folder.mkdir()
    write_model(folder / "model")
    numbers = list(NUMBERS)
    random.Random(1).shuffle(numbers)
    questions = write_jsonl(folder / "held-out.jsonl", [question(number) for number in numbers[:HELD_OUT]])
    before = held_out_share(program, folder, folder / "model", questions)
    model, rewards = folder / "model", []
    for number in range(ROUNDS_OF.get(loss, ROUNDS)):
        chosen = random.Random(number).sample(numbers[HELD_OUT:], PROMPTS)
        model, reward = one_round(program, folder / f"round-{number}", model, chosen, loss, processes)
        rewards.append(reward)
    after = held_out_share(program, folder, model, questions)
    print(f"{loss:6} on {processes}: mean reward by round {', '.join(f'{reward:.2f}' for reward in rewards)}; held-out numbers answered right: {after:.0%}, before {before:.0%}")
    return after > LEAST > 0.6 > before and rewards[-1] > rewards[0] + 0.3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--loss", nargs="+", default=["dapo", "grpo", "dr_grpo", "cispo"])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    losses = ["dapo"] if args.quick else args.loss
    with tempfile.TemporaryDirectory() as directory:
        failed = [loss for number, loss in enumerate(losses) if not learns(args.sftrun.resolve(), Path(directory) / loss, loss, processes=2 - number % 2)]
    print(f"{len(losses) - len(failed)} of {len(losses)} losses learn")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
