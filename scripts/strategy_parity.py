#!/usr/bin/env python3
"""Compares every strategy (`parallel.strategy`) with one process. Standard library only.

    scripts/strategy_parity.py --build BUILD_DIR [--only REGEX] [--strategy NAME] [--device cuda] [--all] [--part N] [--list] [--write docs/parallelism.md]

Tiny models train on the CPU over Gloo, with 2 and 4 processes, and with one process for comparison. Micro-batches are the same in all
runs. With --device cuda they train on GPUs, and workloads with trained weights in the host's memory are added, which on a CPU change
nothing (ctest -R cuda.strategies runs these on devices of host memory). Compared are

loss     of every step, and the evaluation loss: relative difference
norm     gradient norm of every step: relative difference. That of the first step, before weights differ, has a limit of its own
weights  of the adapter or model at the end: norm of the difference of a tensor, relative to the tensor's norm

The largest of each must be below the limits of the case: LIMITS for fp32, and limits of their own for 16 bits and FP8, where the order of
sums decides how a value is rounded. Without --all a part of the cases runs under a third of the strategies each, for `make test`: none whose
model file is bitsandbytes' or GGUF, and with --device cuda two cases under one strategy each. --write puts a table into a document, below its
line `<!-- strategy_parity -->`.
Exit code 1: a difference above its limit, or a run that failed.
"""

from __future__ import annotations

import argparse
import array
import concurrent.futures
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import same_losses
from same_losses import Case, DATA, lora

STRATEGIES = ("ddp", "zero1", "zero2", "zero3", "fsdp", "pipeline")  # with 2 and with 4 processes
QUICK_STRATEGIES = [("zero2", 2), ("fsdp", 4), ("pipeline", 2)]
# Plans of several axes: processes and settings.
COMBINED_PLANS = {
    "fsdp 2 x tensor 2": (4, {"parallel.strategy": "fsdp", "parallel.tp": 2}),
    "zero1 2 x tensor 2": (4, {"parallel.strategy": "zero1", "parallel.tp": 2}),
    "pipeline 2 x fsdp 2": (4, {"parallel.pp": 2, "parallel.dp_shard": 2}),
    "pipeline 2 x zero1 2": (4, {"parallel.strategy": "zero1", "parallel.pp": 2}),
    "pipeline 2 x tensor 2": (4, {"parallel.pp": 2, "parallel.tp": 2}),
    "fsdp 2 x ddp 2 x tensor 2": (8, {"parallel.dp_replicate": 2, "parallel.dp_shard": 2, "parallel.tp": 2}),
    "pipeline 2 x ddp 2 x tensor 2": (8, {"parallel.pp": 2, "parallel.dp_replicate": 2, "parallel.tp": 2}),
    "pipeline 2 x fsdp 2 x tensor 2": (8, {"parallel.pp": 2, "parallel.dp_shard": 2, "parallel.tp": 2}),
    "fsdp 2 x context 2": (4, {"parallel.strategy": "fsdp", "parallel.cp": 2}),
    "pipeline 2 x context 2": (4, {"parallel.pp": 2, "parallel.cp": 2}),
    "context 2 x tensor 2": (4, {"parallel.cp": 2, "parallel.tp": 2}),
    "zero1 2 x context 2 x tensor 2": (8, {"parallel.strategy": "zero1", "parallel.cp": 2, "parallel.tp": 2}),
    "ddp 2 x context 4": (8, {"parallel.dp_replicate": 2, "parallel.cp": 4}),
}


HEADS = ("num_attention_heads", "linear_num_value_heads")
# Of which ranks may have copies.
HEADS_OF_KEYS = ("num_key_value_heads", "num_global_key_value_heads", "linear_num_key_heads")


@dataclass(frozen=True)
class Limits:
    loss: float = 1e-5
    norm: float = 5e-5
    weights: float = 1e-4
    first_norm: float = 2e-6


LIMITS = Limits()
HALF = Limits(2e-3, 2e-2, 2e-2, 2e-3)  # bf16: gradients are rounded to 8 bits
# Activations between two codes of e4m3 are rounded to one or the other.
FP8 = Limits(1e-3, 2e-2, 5e-2, 2e-2)
# Tensor parallelism adds the terms of a product in another order. Adam divides gradients by their size, also those that are zero but for
# rounding: with SGD the differences are those of the other strategies.
ADAM = Limits(norm=2e-3, weights=1e-3)
ADAM_HALF = Limits(2e-3, 2e-2, 2e-1, 2e-3)
ADAM_FP8 = Limits(5e-3, 2e-2, 5e-1, 2e-2)  # each rank rounds its part of a row by a scale of its own


@dataclass(frozen=True)
class Workload:
    """One training run, repeated under every strategy."""

    name: str
    settings: dict
    limits: Limits = LIMITS
    quick: bool = False  # part of `make test`
    refused_by: tuple[str, ...] = ()  # strategies
    reordered: Limits | None = None  # of runs that round in another order, if they are others
    only: str = ""  # a regular expression for the beginning of the strategies that the model is for; empty: all
    varied: dict = field(default_factory=dict)  # settings of the runs that are compared with the one of one process
    device: str = ""  # the only one on which its settings have an effect; empty: any
    in_4: bool = False  # 4 ranks can divide each matrix, too

    def limits_of(self, column: str) -> Limits:
        return self.reordered if self.reordered and re.search("tensor|context", column) else self.limits


def workloads(scratch: Path) -> list[Workload]:
    tied, untied, wide = DATA / "train/models/tied", DATA / "train/models/untied", scratch / "models/wide"
    full, recomputed = {"tuning.mode": "full"}, {"train.gradient_checkpointing": True}
    evaluated = {"data.val": str(scratch / "held-out.jsonl"), "train.eval_strategy": "steps", "train.eval_steps": 2}
    found: list[Workload] = []

    def add(name: str, settings: dict, model: Path = wide, **options) -> None:
        found.append(Workload(name, {"model.name": str(model), **settings}, **options))

    whole = {"refused_by": ("tensor",)}  # needs whole matrices
    of_bnb = {"refused_by": ("tensor", "context")}  # and whole sequences
    in_blocks = {"refused_by": ("tensor",)}  # a half of the heads is no whole number of the format's blocks

    add("LoRA, dropout 0.1", {**lora(dropout=0.1), **evaluated}, quick=True)
    add("LoRA, tied head", {**lora(), **recomputed}, tied)
    pairs = {**same_losses.preference(scratch), "data.val": str(scratch / "held-out-pairs.jsonl"), "train.eval_strategy": "steps", "train.eval_steps": 2}
    per_step = {"refused_by": ("step",)}  # documents of a pair weigh each other: their micro-batch passes all layers at once
    add("DPO, LoRA, dropout 0.1", {**pairs, **lora(dropout=0.1)}, quick=True, reordered=ADAM, **per_step)
    add("DPO, LoRA, tied head, recomputed", {**pairs, **lora(), **recomputed}, tied, **per_step)
    add("DPO, QLoRA, NF4, SGD", {**pairs, "tuning.mode": "qlora", "train.optimizer": "sgd", "train.learning_rate": 1.0}, scratch / "models/blocks", **per_step)
    add("DPO, full, tied head", {**pairs, **full, **recomputed}, tied, reordered=ADAM, **per_step)
    add("DPO, whole modules", {**pairs, **lora(modules_to_save=["lm_head", "embed_tokens"])}, tied, reordered=ADAM, **per_step)
    add("LoRA, embedding and head", lora(target_modules=["embed_tokens", "lm_head", "q_proj"]), untied)
    add("LoRA, whole modules", lora(modules_to_save=["lm_head", "embed_tokens"]), tied)
    add("DoRA", lora(dora=True), reordered=ADAM)
    add("DoRA of a tied head", lora(dora=True, target_modules=["lm_head", "q_proj"]), tied)
    add("PiSSA", lora(init="pissa"), **whole)
    add("LoRA, bnb backend", {**lora(dropout=0.1), "tuning.backend": "bnb"}, **of_bnb)
    add("LoRA, from an adapter", {**lora(init_from=str(DATA / "train/lora_all_linear/init_adapter")), "tuning.lora.r": 4}, tied)
    add("LoRA, bf16", {**lora(), "model.dtype": "bf16"}, limits=HALF, reordered=ADAM_HALF)
    add("QLoRA, NF4", {"tuning.mode": "qlora", **recomputed}, quick=True, **in_blocks)
    add("QLoRA, NF4 with its embedding", {"tuning.mode": "qlora", "tuning.quant_embeddings": True}, tied, **in_blocks)
    add("QLoRA, NF4, bf16", {"tuning.mode": "qlora", "model.dtype": "bf16"}, limits=HALF, reordered=ADAM_HALF, **in_blocks)
    add("LoRA over INT8", {**lora(), "tuning.quant": "int8"})
    add("LoRA over FP8", {**lora(), "tuning.quant": "fp8"}, limits=FP8, reordered=ADAM_FP8)
    add("LoRA over bitsandbytes' files", lora(), DATA / "models/bnb-nf4", **in_blocks)
    add("LoRA over a GGUF file, Q8_0", lora(), DATA / "models/llama3-gguf/model-Q8_0.gguf", **in_blocks)
    add("QLoRA, experts in MXFP4", {"tuning.mode": "qlora"}, scratch / "models/gpt_oss_mxfp4", refused_by=("tensor", "context"))
    add("LoRA, attention recomputed", {**lora(dropout=0.1), **evaluated}, varied={"train.gradient_checkpointing": "attention"}, quick=True)
    add("LoRA, MLP recomputed", lora(dropout=0.1), varied={"train.gradient_checkpointing": "mlp"})
    add("full, bnb backend, MLP recomputed", {**full, "tuning.backend": "bnb"}, varied={"train.gradient_checkpointing": "mlp"}, **of_bnb)
    add("full", {**full, **evaluated})
    add("full, tied head, recomputed", {**full, **recomputed}, tied, quick=True)
    add("full, bnb backend", {**full, "tuning.backend": "bnb"}, tied, **of_bnb)
    add("full, bf16", {**full, "model.dtype": "bf16"}, limits=HALF)
    add("full, 8-bit AdamW", {**full, "train.optimizer": "adamw_8bit"}, **whole)
    add("full, Lion", {**full, "train.optimizer": "lion", "train.learning_rate": 1e-4})
    add("partial", {"tuning.mode": "partial", "tuning.trainable": ["norm", r"layers\.1\..*down_proj"]})
    on_host = {"varied": {"parallel.offload.params": "cpu"}, "device": "cuda",
               "refused_by": ("zero1", "zero2", "pipeline", "tensor", "device_map")}
    add("full, weights on the host", {**full, **evaluated}, **on_host)
    add("full, tied head, recomputed, weights on the host", {**full, **recomputed, "parallel.offload.activations": "cpu"}, tied, quick=True, **on_host)
    add("full, bnb backend, weights on the host", {**full, "tuning.backend": "bnb"}, tied, **on_host)
    add("full, bf16, weights on the host", {**full, "model.dtype": "bf16"}, limits=HALF, **on_host)
    add("full, 8-bit AdamW, weights on the host", {**full, "train.optimizer": "adamw_8bit"}, **on_host)
    add("full, Lion, weights on the host", {**full, "train.optimizer": "lion", "train.learning_rate": 1e-4}, **on_host)
    partial = {"tuning.mode": "partial", "tuning.trainable": ["norm", r"layers\.1\..*down_proj"], "parallel.offload.base": "cpu"}
    add("partial, all weights on the host", partial, quick=True, **on_host)
    add("LoRA, adapter on the host", lora(dropout=0.1), **on_host)
    for family in same_losses.family_names():
        model, config = scratch / "models" / family, same_losses.text_config(family)
        # The load-balancing loss is of a micro-batch, which is the same in all runs.
        # Gemma's layers share keys; the load-balancing loss counts over all layers.
        divides = not (config.get("num_kv_shared_layers") or config.get("hidden_size_per_layer_input") or config.get("output_router_logits"))
        # OLMo norms all heads together, before ranks that share sequences have some of them.
        is_divisible, norms_all = can_divide_heads(config, 2), family.startswith("olmo")
        has_heads = is_divisible and not norms_all
        refused = (() if divides else ("pipeline", "device_map")) + (() if has_heads else ("tensor",)) + (() if is_divisible else ("context",))
        in_4 = has_heads and can_divide_heads(config, 4)
        add(f"{family}, LoRA", lora(target_parameters=same_losses.expert_parameters(config)), model, quick=family == "qwen3_moe",
            refused_by=refused, in_4=in_4)
        # The gradient of a key bias without RoPE is zero but for rounding, and Adam divides it by its size.
        add(f"{family}, full", full, model, quick=family == "qwen3_5", limits=Limits(weights=1e-2) if family == "smollm3" else LIMITS,
            reordered=ADAM if family == "gemma4" else None, refused_by=refused, in_4=in_4)
        if not has_heads and not norms_all:
            twice = {"model": scratch / "models" / f"{family}_twice", "only": ".*(tensor|context)", "refused_by": refused[:-2]}
            add(f"{family}, twice the heads, LoRA", lora(target_parameters=same_losses.expert_parameters(config)),
                quick=family in ("qwen3_5_moe", "gpt_oss"), **twice)
            add(f"{family}, twice the heads, full", full, **twice)
    blocks = {"model": scratch / "models/blocks", "only": ".*tensor"}
    # Every rank has a copy of the only head of keys, and copies of those of delta nets.
    one = {"model": scratch / "models/one_head_of_keys", "only": ".*(tensor|context)", "in_4": True}
    add("one head of keys, LoRA, SGD", {**lora(dropout=0.1), "train.optimizer": "sgd", "train.learning_rate": 1.0}, quick=True, **one)
    add("one head of keys, DoRA", lora(dora=True), reordered=ADAM, **one)
    add("one head of keys, full", {**full, **evaluated}, quick=True, **one)
    add("one head of keys, full, Lion", {**full, "train.optimizer": "lion", "train.learning_rate": 1e-4}, **one)
    add("one head of keys, QLoRA, NF4", {"tuning.mode": "qlora", **recomputed}, **one)
    few = {"model": scratch / "models/qwen3_5_few_heads", "only": ".*(tensor|context)", "in_4": True}
    add("qwen3_5, few heads of keys, LoRA", lora(), quick=True, **few)
    add("qwen3_5, few heads of keys, full", full, **few)
    add("QLoRA, NF4, blocks", {"tuning.mode": "qlora", **recomputed}, quick=True, **blocks)
    add("QLoRA, FP4, blocks", {"tuning.mode": "qlora", "tuning.quant": "fp4"}, **blocks)
    add("QLoRA, NF4 with its embedding, blocks", {"tuning.mode": "qlora", "tuning.quant_embeddings": True}, **blocks)
    add("LoRA over bitsandbytes' files, blocks", lora(), scratch / "models/wide-blocks-nf4", only=".*tensor", in_4=True)
    for name in ("q8_0", "q4_k_m"):
        add(f"LoRA over a GGUF file, {name.upper()}, blocks", lora(), scratch / f"models/wide-blocks-{name}.gguf", only=".*tensor",
            in_4=name == "q8_0")
    add("QLoRA, experts in MXFP4, twice the heads", {"tuning.mode": "qlora"}, scratch / "models/gpt_oss_mxfp4_twice", only=".*(tensor|context)")
    add("QLoRA, NF4, bf16, blocks", {"tuning.mode": "qlora", "model.dtype": "bf16"}, limits=ADAM_HALF, **blocks)
    return found


def can_divide_heads(config: dict, ranks: int) -> bool:
    def counts(keys: tuple[str, ...]) -> list[int]:
        layers = [config, *config.get("per_layer_config", {}).values()]
        return [of[key] for of in layers for key in keys if of.get(key)]

    return all(count % ranks == 0 for count in counts(HEADS)) and all(count % ranks == 0 or ranks % count == 0 for count in counts(HEADS_OF_KEYS))


def write_divisible_models(scratch: Path) -> None:
    """Models for tensor parallelism: families with twice the heads of the fixtures (one head of keys stays one), a model whose parts are
    blocks of 64 values, and two with fewer heads of keys than ranks."""
    blocks = {"hidden_size": 256, "intermediate_size": 576, "num_attention_heads": 8, "head_dim": 32}
    same_losses.write_wide_model(scratch / "models/blocks", **blocks, num_key_value_heads=4)
    same_losses.write_wide_model(scratch / "models/one_head_of_keys", **blocks, num_key_value_heads=1)
    write_few_heads(scratch / "models/qwen3_5", scratch / "models/qwen3_5_few_heads")
    for family in [*same_losses.family_names(), "gpt_oss_mxfp4"]:
        source, directory = scratch / "models" / family, scratch / "models" / f"{family}_twice"
        whole = json.loads((source / "config.json").read_text())
        config = whole.get("text_config", whole)
        if can_divide_heads(config, 2):
            continue
        directory.mkdir()
        config["head_dim"] = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        with_keys = config["num_key_value_heads"] > 1
        for of in [config, *config.get("per_layer_config", {}).values()]:
            of.update({key: 2 * of[key] for key in HEADS + HEADS_OF_KEYS * with_keys if of.get(key)})
        (directory / "config.json").write_text(json.dumps(whole))
        (directory / "model.safetensors").write_bytes(with_twice_the_heads((source / "model.safetensors").read_bytes(), with_keys))
        same_losses.write_tokenizer(directory) if config["vocab_size"] == 40 else same_losses.copy_tokenizer(directory)


def write_stored_models(scratch: Path, program: Path) -> None:
    """Quantised models for tensor parallelism: NF4, and GGUF files in Q8_0 and Q4_K_M."""
    wide_blocks = scratch / "models/wide-blocks"
    same_losses.write_wide_model(wide_blocks, hidden_size=256, intermediate_size=768, num_attention_heads=8, num_key_value_heads=2, head_dim=64)
    for name, *arguments in (("nf4", "quantize", "--method", "nf4"), ("q8_0.gguf", "merge", "--dtype", "q8_0"), ("q4_k_m.gguf", "merge", "--dtype", "q4_k_m")):
        command = [str(program), arguments[0], "--model", str(wide_blocks), "--output", str(scratch / f"models/wide-blocks-{name}"), *arguments[1:]]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def write_few_heads(source: Path, directory: Path) -> None:
    """qwen3_5 whose delta nets have 4 value heads and one key head: the first values of each tensor, in its new shape."""
    config = json.loads((source / "config.json").read_text())
    config.update(linear_num_key_heads=1, linear_num_value_heads=4)
    key, value = config["linear_key_head_dim"], 4 * config["linear_value_head_dim"]
    sizes = {"in_proj_qkv": 2 * key + value, "conv1d": 2 * key + value, "in_proj_z": value, "in_proj_b": 4, "in_proj_a": 4, "A_log": 4, "dt_bias": 4}

    def cut(name: str, values: bytes, shape: list[int]) -> bytes:
        size, part = len(values) // math.prod(shape), name.removesuffix(".weight").rsplit(".", 1)[-1]
        shape[0] = sizes.get(part, shape[0])
        if part == "out_proj":
            shape[1] = value
        return values[: size * math.prod(shape)]

    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes(with_changed_tensors((source / "model.safetensors").read_bytes(), cut))
    same_losses.write_tokenizer(directory)


def with_twice_the_heads(content: bytes, with_keys: bool) -> bytes:
    """Rows or columns of heads follow each other twice, which gives the heads of a group other queries."""
    rows = re.compile("(" + "k_proj|v_proj|" * with_keys + r"q_proj|sinks|A_log|dt_bias|in_proj_[zba]|qkv_proj|in_proj_qkv|conv1d)(\.weight|\.bias)?$")

    def double(name: str, values: bytes, shape: list[int]) -> bytes:
        if re.search(r"(o_proj|out_proj)\.weight$", name):
            row = len(values) // shape[0]
            shape[1] *= 2
            return b"".join(2 * values[i : i + row] for i in range(0, len(values), row))
        if rows.search(name):
            shape[0] *= 2
            return 2 * values
        return values

    return with_changed_tensors(content, double)


def with_changed_tensors(content: bytes, change: Callable[[str, bytes, list[int]], bytes]) -> bytes:
    """A safetensors file with other tensors.   @param change  (name, values, shape, which it changes) -> values"""
    length = int.from_bytes(content[:8], "little")
    header, data, new = json.loads(content[8 : 8 + length]), content[8 + length :], b""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        values = change(name, data[begin:end], entry["shape"])
        entry["data_offsets"] = [len(new), len(new) + len(values)]
        new += values
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + new


@dataclass
class Difference:
    loss: float = 0.0
    norm: float = 0.0
    weights: float = 0.0
    first_norm: float = 0.0
    error: str = ""

    def is_within(self, limits: Limits) -> bool:
        return (not self.error and self.loss <= limits.loss and self.norm <= limits.norm and self.weights <= limits.weights
                and self.first_norm <= limits.first_norm)

    def __str__(self) -> str:
        return self.error or f"loss {self.loss:.1e}, norm {self.norm:.1e} (first {self.first_norm:.1e}), weights {self.weights:.1e}"


def values_of(content: bytes) -> dict[str, list[float]]:
    """The tensors of a safetensors file in fp32 or bf16."""
    length = int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        data = content[begin:end]
        if entry["dtype"] == "BF16":
            data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
        elif entry["dtype"] != "F32":
            continue
        values = array.array("f")
        values.frombytes(data)
        tensors[name] = values
    return tensors


def relative(ours: float, theirs: float) -> float:
    return abs(ours - theirs) / max(abs(theirs), 1e-30)


def difference_of(ours: same_losses.Outcome, theirs: same_losses.Outcome) -> Difference:
    for outcome in (theirs, ours):
        if outcome.error:
            return Difference(error=outcome.error)
    found = Difference()
    if len(ours.metrics) != len(theirs.metrics) or ours.results.keys() != theirs.results.keys():
        return Difference(error="other lines of metrics or other files")
    for line, expected in zip(ours.metrics, theirs.metrics):
        for key in ("loss", "eval_loss", "aux_loss"):
            if key in expected:
                found.loss = max(found.loss, relative(line[key], expected[key]))
        if "grad_norm" in expected:
            norm = relative(line["grad_norm"], expected["grad_norm"])
            found.norm = max(found.norm, norm)
            if expected["step"] == 1:
                found.first_norm = norm
    for name, content in theirs.results.items():
        if not name.endswith(".safetensors"):
            continue
        actual = values_of(ours.results[name])
        for tensor, values in values_of(content).items():
            squares = math.fsum((a - b) ** 2 for a, b in zip(actual[tensor], values, strict=True))
            found.weights = max(found.weights, math.sqrt(squares / (math.fsum(b * b for b in values) or 1.0)))
    return found


def columns(is_whole: bool, workload: Workload, strategy: str, device: str) -> list[tuple[str, int, dict]]:
    """(name, processes, settings) of every run beside that of one process, on that kind of device."""
    varies_on_device = bool(workload.device)  # the other runs keep their weights elsewhere: one process is such a run, too
    quick = [] if varies_on_device else QUICK_STRATEGIES  # hybrid and fsdp per step are enough of those
    strategies = [(strategy, processes) for strategy in STRATEGIES for processes in (2, 4)] if is_whole else quick
    runs = [(f"{strategy} {processes}", processes, {"parallel.strategy": strategy}) for strategy, processes in strategies]
    runs += [("hybrid 2 x 2", 4, {"parallel.strategy": "hybrid", "parallel.dp_shard": 2}),
             ("pipeline 2 x 2", 4, {"parallel.strategy": "pipeline", "parallel.pp": 2}),
             ("fsdp 2 per step", 2, {"parallel.strategy": "fsdp", "parallel.fetch": "per_step"}),
             ("zero2 2 per step", 2, {"parallel.strategy": "zero2", "parallel.fetch": "per_step"}),
             ("tensor 2", 2, {"parallel.strategy": "tensor"}),
             ("tensor 2 x 2", 4, {"parallel.strategy": "tensor", "parallel.tp": 2}),
             ("context 2", 2, {"parallel.cp": 2}),
             ("context 2 fsdp", 2, {"parallel.strategy": "fsdp", "parallel.cp": 2, "parallel.dp_shard": 1}),
             *combined_columns(is_whole, workload.in_4),
             ("device_map 2", 1, {"parallel.device_map": {"embedding": f"{device}:0", "layers.0": f"{device}:0", "": f"{device}:1"}}),
             ("device_map 4", 1, {"parallel.device_map": "balanced", "parallel.pp": 4})]
    if workload.in_4:
        runs.append(("tensor 4", 4, {"parallel.strategy": "tensor"}))
        runs.append(("context 4", 4, {"parallel.cp": 4}))
    if workload.in_4 and is_whole:
        runs += [("fsdp 2 x tensor 4", 8, {"parallel.dp_shard": 2, "parallel.tp": 4}),
                 ("pipeline 2 x tensor 4", 8, {"parallel.pp": 2, "parallel.tp": 4})]
    if varies_on_device:
        runs.append(("ddp 1", 1, {}))
    return [run for run in runs if not set(run[0].split()) & set(workload.refused_by)
            and re.match(workload.only, name_of(run[0])) and name_of(run[0]).startswith(strategy)]


def combined_columns(is_whole: bool, in_4: bool) -> list[tuple[str, int, dict]]:
    """@param in_4 heads can be divided over 4 ranks, those of `cp` and `tp` together"""
    sharing = {name: math.prod(settings.get(f"parallel.{axis}", 1) for axis in ("cp", "tp")) for name, (_, settings) in COMBINED_PLANS.items()}
    return [(name, processes, settings) for name, (processes, settings) in COMBINED_PLANS.items()
            if (is_whole or processes <= 4) and (in_4 or sharing[name] <= 2)]


def plan_of(column: str) -> tuple[int, dict]:
    """Processes and settings of "single", "hybrid", "fsdp 4" or one of COMBINED_PLANS."""
    if column in COMBINED_PLANS:
        return COMBINED_PLANS[column]
    if column == "hybrid":
        return 4, {"parallel.strategy": "hybrid", "parallel.dp_shard": 2}
    strategy, _, processes = column.partition(" ")
    return int(processes or 1), {"parallel.strategy": strategy}


def sizes_of(column: str) -> dict[str, int]:
    """Processes along each axis of a plan that shards its data parallelism; ranks that differ in a later axis are closer."""
    processes, settings = plan_of(column)
    sizes = {axis: settings.get(f"parallel.{axis}", 1) for axis in ("pp", "dp_replicate", "dp_shard", "cp", "tp")}
    return sizes | {"dp_shard": processes // (sizes["pp"] * sizes["dp_replicate"] * sizes["cp"] * sizes["tp"])}


def name_of(column: str) -> str:
    """The strategy of a column without its sizes: "fsdp x tensor"."""
    return " x ".join(part.split()[0] for part in column.split(" x ") if not part[0].isdigit())


def part_of(runs: list, at: int, parts: int) -> list:
    """Of the runs of one workload one in `parts`, and of the next workloads the others."""
    return runs[at % parts :: parts] or runs[:1]


def compare(workload: Workload, at: int, program: Path, scratch: Path, args: argparse.Namespace, is_whole: bool) -> dict[str, Difference]:
    folder = scratch / "runs" / re.sub(r"\W+", "-", workload.name)
    # One bin in each micro-batch, whatever the number of processes.
    common = {"train.batch_size": 1, "train.grad_accum": "auto", "train.global_batch_size": 4, **workload.settings}

    def outcome(column: str, processes: int, settings: dict) -> same_losses.Outcome:
        output = folder / column.replace(" ", "-")
        output.mkdir(parents=True)
        case = Case(workload.name, {**common, **settings}, processes=processes, device=args.device)
        config = output / "run.yaml"
        config.write_text(json.dumps(same_losses.configuration(case, scratch), indent=2))
        return same_losses.run_case(program, program, case, config, output / "run", args.threads)

    alone = outcome("one process", 1, {})
    compared = columns(is_whole, workload, args.strategy, args.device)
    if not args.strategy:
        compared = part_of(compared, at, args.part or (1 if is_whole else 3))
    return {column: difference_of(outcome(column, processes, {**settings, **workload.varied}), alone) for column, processes, settings in compared}


def cells_of(results: dict[str, dict[str, Difference]]) -> dict[str, dict[str, str]]:
    """The largest relative differences of losses and of weights, by workload and strategy."""
    cells: dict[str, dict[str, str]] = {}
    for name, differences in results.items():
        for strategy in dict.fromkeys(name_of(column) for column in differences):
            found = [difference for column, difference in differences.items() if name_of(column) == strategy]
            cells.setdefault(name, {})[strategy] = f"{max(d.loss for d in found):.0e} / {max(d.weights for d in found):.0e}"
    return cells


def read_table(lines: list[str]) -> dict[str, dict[str, str]]:
    """The cells of a Markdown table, as of `cells_of`."""
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in lines if line.startswith("| ")]
    return {row[0]: dict(zip(rows[0][1:], row[1:])) for row in rows[1:]}


def write_table(document: Path, cells: dict[str, dict[str, str]]) -> None:
    """The table is the end of the document. What was not run keeps its cell; a workload that a strategy refuses has a dash."""
    before, mark, old = document.read_text().partition("<!-- strategy_parity -->\n")
    merged = read_table(old.splitlines())
    for name, row in cells.items():
        merged.setdefault(name, {}).update(row)
    strategies = [*STRATEGIES[:-1], "hybrid", STRATEGIES[-1], "tensor", "context", "device_map", *dict.fromkeys(map(name_of, COMBINED_PLANS))]
    strategies = [strategy for strategy in strategies if any(row.get(strategy, "-") != "-" for row in merged.values())]
    lines = ["| loss / weights | " + " | ".join(strategies) + " |", "|---" * (len(strategies) + 1) + "|"]
    lines += [f"| {name} | " + " | ".join(row.get(strategy, "-") for strategy in strategies) + " |" for name, row in merged.items()]
    document.write_text(f"{before}{mark}" + "\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, required=True, help="build directory")
    parser.add_argument("--only", default="", metavar="REGEX", help="run only the cases whose name matches")
    parser.add_argument("--strategy", default="", metavar="NAME", help="run only this strategy")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the runs train; cuda needs 4 GPUs (default cpu)")
    parser.add_argument("--all", action="store_true", help="every case")
    parser.add_argument("--part", type=int, metavar="N", help="of the strategies of a case run one in N, and in the next cases the others "
                        "(default: 1 with --all, --only and --write, else 3)")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the document that has the table (implies --all)")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process (default 1)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at the same time (default: the number of processors)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        is_whole = bool(args.all or args.write or args.only)
        chosen = [work for work in workloads(scratch) if re.search(args.only, work.name) and work.device in ("", args.device)
                  and (is_whole or work.quick and (work.device or "cpu") == args.device)]
        chosen = [work for work in chosen if columns(is_whole, work, args.strategy, args.device)]
        if args.list:
            print("\n".join(work.name for work in chosen))
            return 0
        program = same_losses.program_of(args.build, parser)
        same_losses.write_inputs(scratch)
        write_divisible_models(scratch)
        if is_whole:  # which has the workloads of these
            write_stored_models(scratch, program)
        start, results, failed = time.monotonic(), {}, 0
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            for work, found in zip(chosen, pool.map(lambda item: compare(item[1], item[0], program, scratch, args, is_whole), enumerate(chosen))):
                results[work.name] = found
                bad = {column: difference for column, difference in found.items() if not difference.is_within(work.limits_of(column))}
                failed += bool(bad)
                worst = max(found.values(), key=lambda d: (bool(d.error), d.loss if math.isfinite(d.loss) else math.inf, d.weights))
                print(f"{work.name:<34} {len(found) - len(bad)} of {len(found)} within limits; largest: {worst}", flush=True)
                for column, difference in bad.items():
                    print(f"  DIFFERENT: {column}: {difference}", flush=True)
        print(f"\n{len(chosen) - failed} of {len(chosen)} cases are equal under every strategy ({time.monotonic() - start:.0f} s)")
        if args.write:
            write_table(args.write, cells_of(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
