"""What preference training learns: a tiny model with random weights is to prefer the right one of two words for numbers that it never saw.

    python tests/smoke/preferences_learnt.py --sftrun build/bin/sftrun [--only dpo kto] [--quick]

The prompt is a number, the answers are "odd" and "even": the chosen one is right. Held-out numbers are in no record of training. Every objective on preferences must bring
the share of held-out pairs with the higher reward above 90% (KTO, whose records are single answers: the mean rewards apart), from about a half.
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

sys.path.append(str(Path(__file__).resolve().parents[1] / "parity"))
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOKENS = ["<unk>", "<s>", "</s>", *"0123456789", "odd", "even"]
NUMBERS, HELD_OUT, LEAST = range(100, 1000), 100, 0.9
SETTINGS = {
    "dpo": {"beta": 0.5},
    "ipo": {"beta": 0.2},
    "cpo": {"beta": 0.5},
    "simpo": {"beta": 2.0},
    "orpo": {"beta": 0.5},
    "kto": {"beta": 0.5},
}
QUICK = ["dpo", "kto"]


def write_model(folder: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({token: i for i, token in enumerate(TOKENS)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[0-9]|[a-z]+|</s>"), "removed", invert=True)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>").save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1,
        eos_token_id=2, tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def pair_of(number: int) -> dict:
    words = ["even", "odd"]
    return {"prompt": str(number), "chosen": words[number % 2], "rejected": words[1 - number % 2]}


def write_data(folder: Path) -> None:
    numbers = list(NUMBERS)
    random.Random(1).shuffle(numbers)
    for name, part in (("train", numbers[HELD_OUT:]), ("val", numbers[:HELD_OUT])):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(pair_of(number)) + "\n" for number in part))


def evaluations(sftrun: Path, folder: Path, objective: str) -> list[dict]:
    run = {
        "model": {"name": str(folder / "model"), "max_seq_len": 64, "dtype": "fp32"},
        "tuning": {"mode": "full"},
        "data": {"train": str(folder / "train.jsonl"), "val": str(folder / "val.jsonl"), "cache_dir": "none"},
        "train": {"objective": objective, "epochs": 6, "batch_size": 2, "grad_accum": 1, "learning_rate": 2e-3, "eval_strategy": "epoch", "eval_on_start": True,
                  "save_every": "0", **SETTINGS[objective]},
        "output": {"dir": str(folder / objective), "tensorboard": False},
    }
    config = folder / f"{objective}.yaml"
    config.write_text(json.dumps(run))  # JSON is YAML
    done = subprocess.run([sftrun, "train", "--config", config, "--device", "cpu", "--nproc-per-node", "1"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{objective}: the run failed with {done.returncode}:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    lines = [json.loads(line) for line in (folder / objective / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line.get("eval_loss") is not None]


def learns(objective: str, lines: list[dict]) -> bool:
    first, last = lines[0], lines[-1]
    if objective == "kto":
        print(f"{objective:6} held-out rewards of right and wrong answers: {last['eval_rewards/chosen']:.2f} and {last['eval_rewards/rejected']:.2f}, at the start "
              f"{first['eval_rewards/chosen']:.2f} and {first['eval_rewards/rejected']:.2f}")
        return last["eval_rewards/chosen"] > 0.5 > -0.5 > last["eval_rewards/rejected"]
    name = "eval_rewards/accuracies"
    print(f"{objective:6} held-out pairs with the higher reward: {last[name]:.0%}, at the start {first[name]:.0%}")
    return last[name] > LEAST


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(SETTINGS), default=[])
    parser.add_argument("--quick", action="store_true", help=f"only {' and '.join(QUICK)}")
    args = parser.parse_args()
    objectives = args.only or (QUICK if args.quick else list(SETTINGS))
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        write_model(folder / "model")
        write_data(folder)
        failed = [objective for objective in objectives if not learns(objective, evaluations(args.sftrun.resolve(), folder, objective))]
    print(f"{len(objectives) - len(failed)} of {len(objectives)} objectives learn")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
