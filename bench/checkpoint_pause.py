#!/usr/bin/env python3
"""How long a step waits for a checkpoint: written while training goes on, and while it waits. Standard library only.

    bench/checkpoint_pause.py --sftrun build/bin/sftrun [--rounds 3]

Full training in fp32 of a Llama of 12 layers and hidden size 768 on a CPU, one process, a checkpoint every 4 steps; the two settings of
`train.save_in_background` in turn. Prints the times between the log lines of steps, with a checkpoint between them and without.
"""

import argparse
import array
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import same_losses  # noqa: E402

STEPS, EVERY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 13, 4, 768, 2048, 12, 12, 4, 64


def shapes(vocab_size: int) -> dict[str, list[int]]:
    of_layer = {"self_attn.q_proj": [HEADS * HEAD_DIM, HIDDEN], "self_attn.k_proj": [KV_HEADS * HEAD_DIM, HIDDEN],
                "self_attn.v_proj": [KV_HEADS * HEAD_DIM, HIDDEN], "self_attn.o_proj": [HIDDEN, HEADS * HEAD_DIM], "mlp.gate_proj": [INNER, HIDDEN],
                "mlp.up_proj": [INNER, HIDDEN], "mlp.down_proj": [HIDDEN, INNER], "input_layernorm": [HIDDEN], "post_attention_layernorm": [HIDDEN]}
    return {"model.embed_tokens.weight": [vocab_size, HIDDEN], "model.norm.weight": [HIDDEN], "lm_head.weight": [vocab_size, HIDDEN],
            **{f"model.layers.{layer}.{name}.weight": shape for layer in range(LAYERS) for name, shape in of_layer.items()}}


def write_model(directory: Path) -> None:
    same_losses.write_wide_model(directory)  # with tokenizer and config.json
    config = json.loads((directory / "config.json").read_text())
    config |= {"hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
               "num_key_value_heads": KV_HEADS, "head_dim": HEAD_DIM}
    (directory / "config.json").write_text(json.dumps(config))
    rng = random.Random(1)
    block = array.array("f", (rng.gauss(0, 0.02) for _ in range(1 << 20)))
    header, end, of_model = {}, 0, shapes(config["vocab_size"])
    for name, shape in of_model.items():
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + 4 * math.prod(shape)]}
        end += 4 * math.prod(shape)
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in of_model.values():
            values = array.array("f", [1.0]) * shape[0] if len(shape) == 1 else (block * (math.prod(shape) // len(block) + 1))[:math.prod(shape)]
            file.write(values.tobytes())


def seconds_between_steps(program: Path, scratch: Path, mode: str) -> list[float]:
    command = [program, "train", "--config", scratch / "run.yaml", "--device", "cpu", "--overwrite", f"train.save_in_background={mode}"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    lines = re.findall(rf"\[(\d+):(\d+):([\d.]+)\] \[info\] step \d+/{STEPS} loss", done.stderr)
    times = [3600 * int(hour) + 60 * int(minute) + float(second) for hour, minute, second in lines]
    return [after - before for before, after in zip(times, times[1:])]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        write_model(scratch / "model")
        (scratch / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in same_losses.texts(40, 60, 1)))
        (scratch / "run.yaml").write_text(json.dumps({
            "model": {"name": str(scratch / "model"), "dtype": "fp32"}, "tuning": {"mode": "full"},
            "data": {"train": str(scratch / "texts.jsonl"), "packing": False},
            "train": {"max_steps": STEPS, "batch_size": 4, "grad_accum": 4, "save_steps": EVERY, "save_total_limit": 1, "save_every": "0",
                      "learning_rate": 1e-5},
            "output": {"dir": str(scratch / "run"), "tensorboard": False}}))
        for number in range(arguments.rounds):
            for mode in ("off", "on"):
                gaps = seconds_between_steps(arguments.sftrun.resolve(), scratch, mode)
                saving = gaps[EVERY - 1::EVERY]
                usual = statistics.median(gap for at, gap in enumerate(gaps, 1) if at % EVERY not in (0, 1))
                print(f"round {number + 1}, save_in_background {mode:3}: usual step {usual:.2f} s, with a checkpoint before it "
                      f"{', '.join(f'{gap:.2f}' for gap in saving)} s, all {sum(gaps):.2f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
