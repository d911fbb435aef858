#!/usr/bin/env python3
"""The memory that run.json plans, beside the memory that ranks used. Standard library only.

    tests/smoke/memory_plan.py --sftrun build/bin/sftrun [--all]

Random Llama models train on a CPU in one bin of --tokens tokens per micro-batch, under several strategies and settings. For the rank that needs
most, frozen weights, trained weights, gradients and optimizer state are to be within 1% of the plan (3% where a part of a matrix shares its
scales among fewer blocks), and what a step needs beside them within 5% and 2 MB: threads have working memory that does not depend on the model.
Exit code 1: a term is further off.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
         "vocab_size": 128, "max_position_embeddings": 8192}
RECOMPUTED = ["train.gradient_checkpointing=true"]
# (name, processes, settings, other sizes, whether it is quick)
CASES = [
    ("LoRA", 1, [], {}, True),
    ("LoRA, recomputed", 1, RECOMPUTED, {}, False),
    ("QLoRA, recomputed", 1, [*RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4"], {}, True),
    ("LoRA, many heads", 1, RECOMPUTED, {"num_attention_heads": 16, "num_key_value_heads": 8}, False),
    ("LoRA, wide MLP", 1, RECOMPUTED, {"intermediate_size": 2816}, False),
    ("LoRA, two bins", 1, [*RECOMPUTED, "train.batch_size=2"], {}, False),
    ("LoRA, large vocabulary", 1, RECOMPUTED, {"vocab_size": 16384, "num_hidden_layers": 2}, False),
    ("fsdp", 2, [*RECOMPUTED, "parallel.strategy=fsdp"], {}, True),
    ("fsdp per step", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "parallel.fetch=per_step", "train.grad_accum=3"], {}, False),
    ("tensor", 2, [*RECOMPUTED, "parallel.strategy=tensor"], {"num_attention_heads": 8}, False),
    # The case of a 70B model on two small cards: NF4, parts of each matrix and of the vocabulary.
    ("tensor, QLoRA", 2, [*RECOMPUTED, "parallel.strategy=tensor", "tuning.mode=qlora", "tuning.quant=nf4"],
     {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2}, True),
    ("pipeline", 2, ["parallel.strategy=pipeline", "train.grad_accum=2"], {}, False),
]
KEPT = ("base", "trainable", "gradients", "optimizer")


def run(program: Path, scratch: Path, number: int, processes: int, settings: list[str], sizes: dict, tokens: int) -> dict:
    folder = scratch / str(number)
    same_losses.write_wide_model(folder / "model", **{**SIZES, **sizes})
    digits = random.Random(number)
    texts = ("".join(digits.choices("0123456789", k=2 * tokens)) for _ in range(12))
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "run.yaml").write_text(json.dumps({
        "model": {"name": str(folder / "model"), "dtype": "fp32", "max_seq_len": tokens}, "tuning": {"mode": "lora", "lora": {"r": 8}},
        "data": {"train": str(folder / "texts.jsonl"), "format": "text", "cache_dir": "none"},
        "train": {"max_steps": 2, "batch_size": 1, "grad_accum": 1, "save_every": "0"}, "output": {"tensorboard": False}}))
    command = [program, "train", "--config", folder / "run.yaml", "--device", "cpu", "--nproc-per-node", processes, f"output.dir={folder}/run", *settings]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode != 0:
        raise SystemExit(f"exit code {done.returncode}: {done.stderr[-2000:]}")
    return json.loads((folder / "run/run.json").read_text())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--all", action="store_true", help="every case, and not only those of `make test`")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch (default 2048)")
    args = parser.parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, processes, settings, sizes, is_quick) in enumerate(CASES):
            if not (args.all or is_quick):
                continue
            report = run(args.sftrun.resolve(), Path(temporary), number, processes, settings, sizes, args.tokens)
            planned, ranks = report["planned_bytes"], [rank["bytes"] for rank in report["ranks"]]
            parts_in_blocks = "parallel.strategy=tensor" in settings and "tuning.quant=nf4" in settings
            said = []
            for term in (*KEPT, "activations_peak"):
                used = max(rank[term] for rank in ranks)
                allowed = (0.05 * used + 2e6) if term == "activations_peak" else (0.03 if parts_in_blocks else 0.01) * used
                holds = abs(planned[term] - used) <= allowed
                failures += not holds
                said.append(f"{term} {planned[term] / used:.3f}{'' if holds else ' WRONG'}")
            print(f"{name:<24} planned / used: {', '.join(said)}; of {sum(ranks[0].values()) / 1e6:.0f} MB", flush=True)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
