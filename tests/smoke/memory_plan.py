#!/usr/bin/env python3
"""The memory that run.json plans, beside the memory that ranks used. Standard library only.

    tests/smoke/memory_plan.py --sftrun build/bin/sftrun [--all]

Random Llama models train on a CPU in one bin of --tokens tokens per micro-batch, under several strategies and settings. For the rank that needs
most, frozen weights, trained weights, gradients and optimizer state are to be within 1% of the plan (3% where a part of a matrix shares its
scales among fewer blocks), and what a step needs beside them within 5% and 2 MB: threads have working memory that does not depend on the model. The peak,
which is the sum of them, is to be within 5%.
`sftrun memory-check` must say the same of the run before it starts. Its peak is shown beside the resident memory of the fullest process.
Exit code 1: a term is further off.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
         "vocab_size": 128, "max_position_embeddings": 8192}
RECOMPUTED = ["train.gradient_checkpointing=true"]
QWEN3_MOE = {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_act": "silu", "num_experts": 16, "num_experts_per_tok": 4,
             "moe_intermediate_size": 256, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [], "rms_norm_eps": 1e-6,
             "tie_word_embeddings": False, "eos_token_id": 1, "bos_token_id": 0}
QWEN3_5 = {"architectures": ["Qwen3_5ForCausalLM"], "model_type": "qwen3_5_text", "hidden_act": "silu",
           "layer_types": ["linear_attention"] * 3 + ["full_attention"], "linear_conv_kernel_dim": 4, "linear_key_head_dim": 64,
           "linear_value_head_dim": 64, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "rms_norm_eps": 1e-6,
           "rope_parameters": {"mrope_interleaved": True, "mrope_section": [3, 3, 2], "partial_rotary_factor": 0.25, "rope_theta": 10000.0, "rope_type": "default"},
           "tie_word_embeddings": True, "eos_token_id": 1, "bos_token_id": 0}
QWEN3_5_MOE = {**QWEN3_5, "architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text", "num_experts": 16, "num_experts_per_tok": 4,
               "moe_intermediate_size": 256, "shared_expert_intermediate_size": 512, "tie_word_embeddings": False}
# (name, processes, settings, other sizes, whether it is quick)
CASES = [
    ("LoRA", 1, [], {}, True),
    ("LoRA, recomputed", 1, RECOMPUTED, {}, False),
    ("QLoRA, recomputed", 1, [*RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4"], {}, True),
    ("LoRA, many heads", 1, RECOMPUTED, {"num_attention_heads": 16, "num_key_value_heads": 8}, False),
    ("LoRA, wide MLP", 1, RECOMPUTED, {"intermediate_size": 2816}, False),
    ("LoRA, two bins", 1, [*RECOMPUTED, "train.batch_size=2"], {}, False),
    ("LoRA, large vocabulary", 1, RECOMPUTED, {"vocab_size": 16384, "num_hidden_layers": 2}, False),
    ("fsdp", 2, [*RECOMPUTED, "parallel.strategy=fsdp"], {}, False),
    ("fsdp, QLoRA, large vocabulary", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "tuning.mode=qlora", "tuning.quant=nf4"], {"vocab_size": 32768}, True),
    ("fsdp, tied head", 2, [*RECOMPUTED, "parallel.strategy=fsdp"], {"vocab_size": 16384, "tie_word_embeddings": True}, False),
    ("fsdp per step", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "parallel.fetch=per_step", "train.grad_accum=3"], {}, False),
    ("tensor", 2, [*RECOMPUTED, "parallel.strategy=tensor"], {"num_attention_heads": 8}, False),
    # The case of a 70B model on two small cards: NF4, parts of each matrix and of the vocabulary.
    ("tensor, QLoRA", 2, [*RECOMPUTED, "parallel.strategy=tensor", "tuning.mode=qlora", "tuning.quant=nf4"],
     {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2}, True),
    ("pipeline", 2, ["parallel.strategy=pipeline", "train.grad_accum=2"], {}, False),
    ("full", 1, [*RECOMPUTED, "tuning.mode=full"], {}, False),
    ("full, kept", 1, ["tuning.mode=full"], {}, False),
    ("full, wide MLP", 1, [*RECOMPUTED, "tuning.mode=full"], {"intermediate_size": 2816}, False),
    ("full, tied head", 1, [*RECOMPUTED, "tuning.mode=full"], {"tie_word_embeddings": True, "vocab_size": 4096}, True),
    ("full, large vocabulary", 1, [*RECOMPUTED, "tuning.mode=full"], {"vocab_size": 16384, "num_hidden_layers": 2}, False),
    ("full, SGD", 1, [*RECOMPUTED, "tuning.mode=full", "train.optimizer=sgd"], {}, False),
    ("full, bf16", 1, [*RECOMPUTED, "tuning.mode=full", "model.dtype=bf16"], {}, False),
    ("full, bf16, tied head", 1, [*RECOMPUTED, "tuning.mode=full", "model.dtype=bf16"], {"tie_word_embeddings": True, "vocab_size": 4096}, False),
    ("full, experts", 1, [*RECOMPUTED, "tuning.mode=full"], QWEN3_MOE, False),
    ("full, delta nets", 1, [*RECOMPUTED, "tuning.mode=full"], QWEN3_5, False),
    ("full, ddp", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=ddp"], {}, False),
    ("full, zero1", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero1", "train.grad_accum=3"], {}, False),
    ("full, zero2", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2"], {}, True),
    ("full, zero2, bf16", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2", "model.dtype=bf16"], {}, False),
    ("full, fsdp", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=fsdp"], {}, False),
    ("full, tensor", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=tensor"], {"num_attention_heads": 8}, False),
    ("full, pipeline", 2, ["tuning.mode=full", "parallel.strategy=pipeline", "train.grad_accum=2"], {}, False),
    ("LoRA, recomputed MLP", 1, ["train.gradient_checkpointing=mlp"], {}, False),
    ("LoRA, recomputed attention", 1, ["train.gradient_checkpointing=attention"], {}, False),
    ("LoRA, bf16", 1, [*RECOMPUTED, "model.dtype=bf16"], {}, False),
    ("int8", 1, [*RECOMPUTED, "tuning.quant=int8"], {}, False),
    ("without packing", 1, [*RECOMPUTED, "data.packing=false"], {}, False),
    ("tied head", 1, RECOMPUTED, {"tie_word_embeddings": True, "vocab_size": 4096}, False),
    ("partial", 1, [*RECOMPUTED, "tuning.mode=partial", "tuning.trainable=[layers.2, layers.3]"], {}, False),
    ("experts", 1, RECOMPUTED, QWEN3_MOE, True),
    ("experts, kept", 1, [], QWEN3_MOE, False),
    ("experts, wide", 1, RECOMPUTED, {**QWEN3_MOE, "moe_intermediate_size": 1024, "num_experts_per_tok": 2}, False),
    ("delta nets", 1, RECOMPUTED, QWEN3_5, True),
    ("delta nets, kept", 1, [], QWEN3_5, False),
    ("delta nets, long heads", 1, RECOMPUTED, {**QWEN3_5, "linear_key_head_dim": 128, "linear_value_head_dim": 128}, False),
    ("delta nets, experts", 1, RECOMPUTED, QWEN3_5_MOE, False),
]


def layer_shapes(config: dict, layer: int) -> dict[str, list[int]]:
    """Of the families above, as their files have them."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes = {"input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    gates_output = "qwen3_5" in config["model_type"]
    if config.get("layer_types", ["full_attention"] * 99)[layer] == "full_attention":
        shapes |= {"self_attn.q_proj": [(2 if gates_output else 1) * queries, hidden], "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden],
                   "self_attn.o_proj": [hidden, queries], "self_attn.q_norm": [head], "self_attn.k_norm": [head]}
    else:
        heads, key, value = config["linear_num_value_heads"], config["linear_key_head_dim"], config["linear_value_head_dim"]
        channels = 2 * config["linear_num_key_heads"] * key + heads * value
        shapes |= {"linear_attn.in_proj_qkv": [channels, hidden], "linear_attn.in_proj_z": [heads * value, hidden], "linear_attn.in_proj_a": [heads, hidden],
                   "linear_attn.in_proj_b": [heads, hidden], "linear_attn.conv1d": [channels, 1, config["linear_conv_kernel_dim"]],
                   "linear_attn.norm": [value], "linear_attn.out_proj": [hidden, heads * value]}
    mlps = {"mlp": inner}
    if "num_experts" in config:
        mlps = {f"mlp.experts.{i}": config["moe_intermediate_size"] for i in range(config["num_experts"])}
        shapes["mlp.gate"] = [config["num_experts"], hidden]
    if "shared_expert_intermediate_size" in config:
        mlps["mlp.shared_expert"] = config["shared_expert_intermediate_size"]
        shapes["mlp.shared_expert_gate"] = [1, hidden]
    for name, size in mlps.items():
        shapes |= {f"{name}.gate_proj": [size, hidden], f"{name}.up_proj": [size, hidden], f"{name}.down_proj": [hidden, size]}
    shapes = {f"{name}.weight": shape for name, shape in shapes.items()}
    if "linear_attn.norm.weight" in shapes:
        shapes |= {"linear_attn.A_log": [config["linear_num_value_heads"]], "linear_attn.dt_bias": [config["linear_num_value_heads"]]}
    return {f"model.layers.{layer}.{name}": shape for name, shape in shapes.items()}


def write_model(folder: Path, sizes: dict) -> None:
    config = {**SIZES, **sizes}
    if "model_type" not in config:
        return same_losses.write_wide_model(folder, **config)
    ends = ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not config["tie_word_embeddings"])
    shapes = {name: [config["vocab_size"], config["hidden_size"]] for name in ends} | {"model.norm.weight": [config["hidden_size"]]}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, layer)
    return same_losses.write_random_model(folder, config, shapes)


KEPT = ("base", "trainable", "gradients", "optimizer")


def run(program: Path, scratch: Path, number: int, processes: int, settings: list[str], sizes: dict, tokens: int) -> dict:
    folder = scratch / str(number)
    write_model(folder / "model", sizes)
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
    report = json.loads((folder / "run/run.json").read_text())
    command[1:2] = ["memory-check", "--json"]
    plan = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    report["memory-check"] = json.loads(plan.stdout)
    report["peak_resident"] = max(max(json.loads(line)["peak_memory_bytes"]) for line in (folder / "run/metrics.jsonl").read_text().splitlines())
    return report


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--all", action="store_true", help="every case, and not only those of `make test`")
    parser.add_argument("--tokens", type=int, default=2048, help="of a micro-batch (default 2048)")
    args = parser.parse_args()
    failures, of_step, of_peak = 0, [], []
    with tempfile.TemporaryDirectory() as temporary:
        for number, (name, processes, settings, sizes, is_quick) in enumerate(CASES):
            if not ((args.all or is_quick or args.only) and args.only in name):
                continue
            report = run(args.sftrun.resolve(), Path(temporary), number, processes, settings, sizes, args.tokens)
            planned, ranks = report["planned_bytes"], [rank["bytes"] for rank in report["ranks"]]
            parts_in_blocks = "parallel.strategy=tensor" in settings and "tuning.quant=nf4" in settings
            said, parts = [], report["memory-check"]["parts"]
            front = {term: parts[term] for term in KEPT}
            front["activations_peak"] = (parts["gathered"] + parts["activations"] + max(parts["layer_backward"], parts["head"]) + parts["workspace"])
            if front != planned:
                failures += 1
                said.append(f"memory-check says {front}, run.json {planned} WRONG")
            for term in (*KEPT, "activations_peak"):
                used = max(rank[term] for rank in ranks)
                allowed = (0.05 * used + 2e6) if term == "activations_peak" else (0.03 if parts_in_blocks else 0.01) * used
                holds = abs(planned[term] - used) <= allowed
                failures += not holds
                if term == "activations_peak":
                    of_step.append((abs(planned[term] / used - 1), name))
                said.append(f"{term} {planned[term] / used if used else 1:.3f}{'' if holds else ' WRONG'}")
            peak = max(sum(rank.values()) for rank in ranks)
            of_peak.append((abs(sum(planned.values()) / peak - 1), name))
            failures += of_peak[-1][0] > 0.05
            said.append(f"peak {sum(planned.values()) / peak:.3f}{' WRONG' if of_peak[-1][0] > 0.05 else ''}")
            print(f"{name:<24} planned / used: {', '.join(said)}; of {peak / 1e6:.0f} MB; "
                  f"resident {report['peak_resident'] / 1e6:.0f} MB, memory-check {report['memory-check']['peak_bytes'] / 1e6:.0f} MB", flush=True)
    for what, errors in (("the peak", of_peak), ("what a step needs beside weights, gradients and optimizer state", of_step)):
        worst, middle = max(errors), statistics.median(error for error, _ in errors)
        print(f"{len(errors)} cases: {what} is planned within {worst[0]:.1%} ({worst[1]}), the median is {middle:.1%}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
