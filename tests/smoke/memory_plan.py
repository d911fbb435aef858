#!/usr/bin/env python3
"""The memory that run.json plans, beside the memory that ranks used. Standard library only.

    tests/smoke/memory_plan.py --sftrun build/bin/sftrun [--all]

Without --all a few cases run that differ in what they hold, with half the tokens; tensor parallelism is not among them: cuda.memory_plan has it, where there is a CUDA compiler.
Random Llama models train on a CPU in one bin of --tokens tokens per micro-batch, under several strategies and settings. For the rank that needs
most, frozen weights, trained weights, gradients and optimizer state are to be within 1% of the plan (3% where a part of a matrix shares its
scales among fewer blocks), and what a step needs beside them within 5% and 2 MB: threads have working memory that does not depend on the model. The peak,
which is the sum of them, is to be within 5%.
`sftrun memory-check` must say the same of the run before it starts. On a CPU its peak is to be within 5% of the resident memory of the fullest process.
Exit code 1: a term is further off.
"""

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda"))
import same_losses  # noqa: E402
import vision_folders  # noqa: E402

SIZES = {"hidden_size": 384, "intermediate_size": 1024, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "num_hidden_layers": 4,
         "vocab_size": 128, "max_position_embeddings": 32768}
GPU_SIZES = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_key_value_heads": 4}
RECOMPUTED = ["train.gradient_checkpointing=true"]
TEACHER = ["train.objective=distill", "train.teacher={folder}/teacher"]
# 64 answers at a time, whose caches are what such a run needs most memory for.
# The head is large, so that hardly any of them stops before its last token: the plan is of that.
STOPLESS = {"vocab_size": 16384}
ROLLOUTS = ["train.objective=grpo", "train.global_batch_size=64", "train.rollouts.n=4", "train.rollouts.max_new_tokens=224",
            "train.rollouts.reward=[{name: length, target: 100}]", "model.max_seq_len=256"]
GRPO = ["train.objective=grpo", "train.beta=0.1"]
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

# Models with images: the sizes of the text model are SIZES, the tokenizer's and the processor's those of vision_folders.
TOWER = {"hidden_size": 256, "intermediate_size": 704, "num_heads": 4, "num_attention_heads": 4, "num_channels": 3}
QWEN2_5_VL = {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "image_token_id": 40, "video_token_id": 43,
              "vision_start_token_id": 41, "vision_end_token_id": 42, "tie_word_embeddings": False, "bos_token_id": 0, "eos_token_id": 1, "vocab_size": 48,
              "rope_parameters": {"mrope_section": [16, 8, 8], "rope_theta": 10000.0, "rope_type": "default"},
              "vision_config": {**TOWER, "model_type": "qwen2_5_vl_vision", "depth": 4, "fullatt_block_indexes": [1, 3], "hidden_act": "silu", "in_channels": 3,
                                "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112}}
GEMMA3 = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "image_token_index": 40, "boi_token_index": 41, "eoi_token_index": 42,
          "mm_tokens_per_image": 64, "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 1, "vocab_size": 48, "hidden_act": "gelu_pytorch_tanh",
          "rms_norm_eps": 1e-6, "query_pre_attn_scalar": 64, "sliding_window": 512, "sliding_window_pattern": 2, "rope_theta": 1000000.0,
          "rope_local_base_freq": 10000.0,
          "vision_config": {**TOWER, "model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh", "image_size": 224, "layer_norm_eps": 1e-6,
                            "num_hidden_layers": 4, "patch_size": 14, "vision_use_head": False}}
# 256 patches and 64 tokens each, whichever family it is.
PICTURE = (224, 224)


@dataclass(frozen=True)
class Case:
    name: str
    processes: int
    settings: list[str]
    sizes: dict = field(default_factory=dict)  # other than SIZES
    quick: bool = False  # of `make test`
    on_gpu: bool = False  # of `make gpu-check`
    teacher: dict = field(default_factory=dict)  # its sizes that differ from the student's


CASES = [
    Case("LoRA", 1, [], quick=True, on_gpu=True),
    Case("LoRA, recomputed", 1, RECOMPUTED, on_gpu=True),
    Case("QLoRA, recomputed", 1, [*RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4"], on_gpu=True),
    Case("DoRA", 1, [*RECOMPUTED, "tuning.lora.dora=true"], on_gpu=True),
    Case("DoRA, kept", 1, ["tuning.lora.dora=true"]),
    Case("LoRA, dropout", 1, [*RECOMPUTED, "tuning.lora.dropout=0.1"]),
    Case("LoRA, many heads", 1, RECOMPUTED, {"num_attention_heads": 16, "num_key_value_heads": 8}),
    Case("LoRA, wide MLP", 1, RECOMPUTED, {"intermediate_size": 2816}),
    Case("LoRA, two bins", 1, [*RECOMPUTED, "train.batch_size=2"]),
    Case("LoRA, large vocabulary", 1, RECOMPUTED, {"vocab_size": 16384, "num_hidden_layers": 2}, on_gpu=True),
    Case("fsdp", 2, [*RECOMPUTED, "parallel.strategy=fsdp"]),
    Case("fsdp, QLoRA, large vocabulary", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "tuning.mode=qlora", "tuning.quant=nf4"], {"vocab_size": 32768}, quick=True),
    Case("fsdp, tied head", 2, [*RECOMPUTED, "parallel.strategy=fsdp"], {"vocab_size": 16384, "tie_word_embeddings": True}),
    Case("fsdp per step", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "parallel.fetch=per_step", "train.grad_accum=3"]),
    Case("tensor", 2, [*RECOMPUTED, "parallel.strategy=tensor"], {"num_attention_heads": 8}),
    # The case of a 70B model on two small cards: NF4, parts of each matrix and of the vocabulary. `make test` has it in cuda.memory_plan.
    Case("tensor, QLoRA", 2, [*RECOMPUTED, "parallel.strategy=tensor", "tuning.mode=qlora", "tuning.quant=nf4"],
         {"hidden_size": 1024, "intermediate_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 128, "num_hidden_layers": 2}),
    Case("context", 2, [*RECOMPUTED, "parallel.cp=2"]),
    Case("context, kept", 2, ["parallel.cp=2"]),
    Case("context, copies of keys", 4, [*RECOMPUTED, "parallel.cp=4"], {"num_attention_heads": 8, "num_key_value_heads": 1}),
    Case("context, fsdp, QLoRA", 2, [*RECOMPUTED, "parallel.strategy=fsdp", "parallel.cp=2", "tuning.mode=qlora", "tuning.quant=nf4"]),
    Case("context, full, delta nets", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.cp=2"], QWEN3_5),
    Case("pipeline", 2, ["parallel.strategy=pipeline", "train.grad_accum=2"]),
    Case("full", 1, [*RECOMPUTED, "tuning.mode=full"]),
    Case("full, kept", 1, ["tuning.mode=full"]),
    Case("full, wide MLP", 1, [*RECOMPUTED, "tuning.mode=full"], {"intermediate_size": 2816}),
    Case("full, tied head", 1, [*RECOMPUTED, "tuning.mode=full"], {"tie_word_embeddings": True, "vocab_size": 4096}, on_gpu=True),
    Case("full, large vocabulary", 1, [*RECOMPUTED, "tuning.mode=full"], {"vocab_size": 16384, "num_hidden_layers": 2}),
    Case("full, SGD", 1, [*RECOMPUTED, "tuning.mode=full", "train.optimizer=sgd"]),
    Case("full, bf16", 1, [*RECOMPUTED, "tuning.mode=full", "model.dtype=bf16"]),
    Case("full, bf16, tied head", 1, [*RECOMPUTED, "tuning.mode=full", "model.dtype=bf16"], {"tie_word_embeddings": True, "vocab_size": 4096}),
    Case("full, experts", 1, [*RECOMPUTED, "tuning.mode=full"], QWEN3_MOE),
    Case("full, delta nets", 1, [*RECOMPUTED, "tuning.mode=full"], QWEN3_5),
    Case("full, ddp", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=ddp"]),
    Case("full, zero1", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero1", "train.grad_accum=3"]),
    Case("full, zero2", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2"], quick=True),
    Case("full, zero2, bf16", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2", "model.dtype=bf16"]),
    Case("full, fsdp", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=fsdp"]),
    Case("full, tensor", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=tensor"], {"num_attention_heads": 8}),
    Case("full, tensor, one head of keys", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=tensor"],
         {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 128}),
    Case("full, pipeline", 2, ["tuning.mode=full", "parallel.strategy=pipeline", "train.grad_accum=2"]),
    Case("LoRA, recomputed MLP", 1, ["train.gradient_checkpointing=mlp"], on_gpu=True),
    Case("LoRA, recomputed attention", 1, ["train.gradient_checkpointing=attention"]),
    Case("LoRA, bf16", 1, [*RECOMPUTED, "model.dtype=bf16"]),
    Case("int8", 1, [*RECOMPUTED, "tuning.quant=int8"], on_gpu=True),
    Case("without packing", 1, [*RECOMPUTED, "data.packing=false"]),
    Case("tied head", 1, RECOMPUTED, {"tie_word_embeddings": True, "vocab_size": 4096}),
    Case("partial", 1, [*RECOMPUTED, "tuning.mode=partial", "tuning.trainable=[layers.2, layers.3]"]),
    Case("experts", 1, RECOMPUTED, QWEN3_MOE, quick=True, on_gpu=True),
    Case("experts, kept", 1, [], QWEN3_MOE),
    Case("experts, wide", 1, RECOMPUTED, {**QWEN3_MOE, "moe_intermediate_size": 1024, "num_experts_per_tok": 2}),
    Case("delta nets", 1, RECOMPUTED, QWEN3_5, quick=True, on_gpu=True),
    Case("delta nets, kept", 1, [], QWEN3_5),
    Case("delta nets, long heads", 1, RECOMPUTED, {**QWEN3_5, "linear_key_head_dim": 128, "linear_value_head_dim": 128}),
    Case("delta nets, experts", 1, RECOMPUTED, QWEN3_5_MOE),
    Case("QLoRA", 1, ["tuning.mode=qlora", "tuning.quant=nf4"]),
    Case("QLoRA, ddp", 2, ["tuning.mode=qlora", "tuning.quant=nf4", "parallel.strategy=ddp"], quick=True),
    Case("QLoRA, ddp, recomputed", 2, [*RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4", "parallel.strategy=ddp"]),
    Case("LoRA, ddp", 2, ["parallel.strategy=ddp"]),
    Case("DPO", 1, ["train.objective=dpo"], quick=True),
    Case("DPO, recomputed", 1, ["train.objective=dpo", *RECOMPUTED]),
    Case("DPO, long pairs", 1, ["train.objective=dpo", "data.packing=false"]),
    Case("DPO, ddp", 2, ["train.objective=dpo", "parallel.strategy=ddp"]),
    Case("DPO, fsdp", 2, ["train.objective=dpo", "parallel.strategy=fsdp"]),
    Case("DPO, full", 1, ["train.objective=dpo", "tuning.mode=full"], quick=True),
    Case("DPO, full, bf16", 1, ["train.objective=dpo", "tuning.mode=full", "model.dtype=bf16"]),
    Case("DPO, full, fsdp, bf16", 2, ["train.objective=dpo", *RECOMPUTED, "tuning.mode=full", "parallel.strategy=fsdp", "model.dtype=bf16"]),
    Case("DPO, full, ddp", 2, ["train.objective=dpo", *RECOMPUTED, "tuning.mode=full", "parallel.strategy=ddp"]),
    Case("DPO, full, zero2", 2, ["train.objective=dpo", *RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2"]),
    Case("DPO, saved head, bf16", 1, ["train.objective=dpo", "tuning.lora.modules_to_save=[lm_head]", "model.dtype=bf16"], {"vocab_size": 8192}),
    Case("DPO, QLoRA, bf16", 1, ["train.objective=dpo", "tuning.mode=qlora", "tuning.quant=nf4", "model.dtype=bf16"]),
    Case("ORPO", 1, ["train.objective=orpo"]),
    Case("SimPO, ddp", 2, ["train.objective=simpo", "parallel.strategy=ddp"]),
    Case("KTO", 1, ["train.objective=kto"]),
    Case("KTO, recomputed, full", 1, ["train.objective=kto", *RECOMPUTED, "tuning.mode=full"]),
    Case("teacher beside", 1, TEACHER, quick=True),
    Case("teacher beside, large", 1, [*TEACHER, *RECOMPUTED], teacher={"num_hidden_layers": 12, "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12}),
    Case("teacher beside, large vocabulary", 1, TEACHER, {"vocab_size": 16384, "num_hidden_layers": 2}),
    Case("teacher beside, bf16", 1, [*TEACHER, *RECOMPUTED, "model.dtype=bf16", "train.kd_temperature=2"], {"vocab_size": 4096}),
    Case("teacher beside, full, ddp", 2, [*TEACHER, "tuning.mode=full", "parallel.strategy=ddp"]),
    Case("teacher beside, fsdp", 2, [*TEACHER, *RECOMPUTED, "parallel.strategy=fsdp"]),
    Case("teacher beside, zero2", 2, [*TEACHER, *RECOMPUTED, "tuning.mode=full", "parallel.strategy=zero2"]),
    Case("teacher beside, pipeline", 2, [*TEACHER, "parallel.strategy=pipeline", "train.grad_accum=2"]),
    Case("teacher beside, tensor", 2, [*TEACHER, *RECOMPUTED, "parallel.strategy=tensor"], {"num_attention_heads": 8, "vocab_size": 4096}),
    Case("teacher beside, nf4, QLoRA", 1, [*TEACHER, *RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4", "train.teacher_quant=nf4"]),
    Case("rollouts", 1, [*ROLLOUTS, "train.grad_accum=64"], STOPLESS, quick=True),
    Case("rollouts, bf16", 1, [*ROLLOUTS, "train.grad_accum=64", "model.dtype=bf16"], STOPLESS),
    Case("rollouts, fsdp", 2, [*ROLLOUTS, "train.grad_accum=32", "parallel.strategy=fsdp"], STOPLESS),
    Case("rollouts, ddp, delta nets", 2, [*ROLLOUTS, "train.grad_accum=32", "parallel.strategy=ddp"], {**QWEN3_5, **STOPLESS}),
    Case("GRPO", 1, GRPO),
    Case("GRPO, full, ddp", 2, [*GRPO, "tuning.mode=full", "parallel.strategy=ddp"]),
    Case("reward model", 1, ["train.objective=reward"]),
    Case("embeddings", 1, ["train.objective=embed"]),
    Case("DPO, large vocabulary", 1, ["train.objective=dpo"], {"vocab_size": 16384, "num_hidden_layers": 2}),
    Case("saved head", 1, [*RECOMPUTED, "tuning.lora.modules_to_save=[lm_head]"], {"vocab_size": 8192}, quick=True),
    Case("saved head, bf16", 1, [*RECOMPUTED, "tuning.lora.modules_to_save=[lm_head]", "model.dtype=bf16"], {"vocab_size": 8192}),
    Case("saved embedding", 1, [*RECOMPUTED, "tuning.lora.modules_to_save=[embed_tokens]"], {"vocab_size": 8192}),
    Case("saved embedding, tied head", 1, [*RECOMPUTED, "tuning.lora.modules_to_save=[embed_tokens]"], {"vocab_size": 8192, "tie_word_embeddings": True}),
    Case("saved head, tied", 1, [*RECOMPUTED, "tuning.lora.modules_to_save=[lm_head]"], {"vocab_size": 8192, "tie_word_embeddings": True}),
    Case("partial, head", 1, [*RECOMPUTED, "tuning.mode=partial", "tuning.trainable=[lm_head, layers.3]"], {"vocab_size": 8192}),
    Case("images", 1, [], QWEN2_5_VL, quick=True, on_gpu=True),
    Case("images, projector", 1, ["tuning.train_parts=[projector]"], QWEN2_5_VL),
    Case("images, tower", 1, ["tuning.train_parts=[projector, vision]"], QWEN2_5_VL, on_gpu=True),
    Case("images, recomputed", 1, [*RECOMPUTED, "tuning.train_parts=[projector, vision, language]"], QWEN2_5_VL),
    Case("images, full", 1, [*RECOMPUTED, "tuning.mode=full"], QWEN2_5_VL),
    Case("images, QLoRA", 1, [*RECOMPUTED, "tuning.mode=qlora", "tuning.quant=nf4"], QWEN2_5_VL),
    Case("images, full, fsdp", 2, [*RECOMPUTED, "tuning.mode=full", "parallel.strategy=fsdp"], QWEN2_5_VL),
    Case("images, tensor", 2, [*RECOMPUTED, "parallel.strategy=tensor"], {**QWEN2_5_VL, "num_attention_heads": 8}),
    Case("images seen both ways", 1, RECOMPUTED, GEMMA3, quick=True, on_gpu=True),
    Case("images seen both ways, full", 1, [*RECOMPUTED, "tuning.mode=full"], GEMMA3),
    Case("images seen both ways, bf16", 1, [*RECOMPUTED, "model.dtype=bf16", "tuning.train_parts={projector: full, language: lora}"], GEMMA3),
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


def qwen2_5_vl_shapes(config: dict) -> dict[str, list[int]]:
    """As transformers' files have them."""
    tower, hidden = config["vision_config"], config["hidden_size"]
    width, inner, merged = tower["hidden_size"], tower["intermediate_size"], tower["hidden_size"] * tower["spatial_merge_size"]**2
    text = same_losses.wide_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        attention = f"model.layers.{layer}.self_attn"
        text |= {f"{attention}.{name}.bias": text[f"{attention}.{name}.weight"][:1] for name in ("q_proj", "k_proj", "v_proj")}
    block = {"attn.qkv.weight": [3 * width, width], "attn.qkv.bias": [3 * width], "attn.proj.weight": [width, width], "attn.proj.bias": [width],
             "norm1.weight": [width], "norm2.weight": [width]}
    for name, shape in (("gate_proj", [inner, width]), ("up_proj", [inner, width]), ("down_proj", [width, inner])):
        block |= {f"mlp.{name}.weight": shape, f"mlp.{name}.bias": shape[:1]}
    return text | {f"visual.blocks.{number}.{name}": shape for number in range(tower["depth"]) for name, shape in block.items()} | {
        "visual.merger.ln_q.weight": [width], "visual.merger.mlp.0.weight": [merged, merged], "visual.merger.mlp.0.bias": [merged],
        "visual.merger.mlp.2.weight": [hidden, merged], "visual.merger.mlp.2.bias": [hidden],
        "visual.patch_embed.proj.weight": [width, 3, tower["temporal_patch_size"], tower["patch_size"], tower["patch_size"]]}


def gemma3_shapes(config: dict) -> dict[str, list[int]]:
    """As transformers' files have them."""
    tower, hidden = config["vision_config"], config["hidden_size"]
    width, inner, patches = tower["hidden_size"], tower["intermediate_size"], (tower["image_size"] // tower["patch_size"])**2
    text = same_losses.wide_shapes(config)
    for layer in range(config["num_hidden_layers"]):
        text |= {f"model.layers.{layer}.{name}_feedforward_layernorm.weight": [hidden] for name in ("pre", "post")}
        text |= {f"model.layers.{layer}.self_attn.{name}_norm.weight": [config["head_dim"]] for name in ("q", "k")}
    layers = {f"self_attn.{name}_proj": [width, width] for name in ("q", "k", "v", "out")} | {"mlp.fc1": [inner, width], "mlp.fc2": [width, inner]} | {
        "layer_norm1": [width], "layer_norm2": [width]}
    units = {f"encoder.layers.{number}.{name}": shape for number in range(tower["num_hidden_layers"]) for name, shape in layers.items()}
    units |= {"post_layernorm": [width], "embeddings.patch_embedding": [width, 3, tower["patch_size"], tower["patch_size"]]}
    vision = {f"{name}.weight": shape for name, shape in units.items()} | {f"{name}.bias": shape[:1] for name, shape in units.items()}
    vision["embeddings.position_embedding.weight"] = [patches, width]
    return {f"language_model.{name}": shape for name, shape in text.items()} | {f"vision_tower.{name}": shape for name, shape in vision.items()} | {
        "multi_modal_projector.mm_input_projection_weight": [width, hidden], "multi_modal_projector.mm_soft_emb_norm.weight": [width]}


VISION_SHAPES = {"qwen2_5_vl": qwen2_5_vl_shapes, "gemma3": gemma3_shapes}


def with_text_config(config: dict) -> dict:
    """As files of models with images have it: what is of the text model in a member of its own."""
    of_all = {"architectures", "model_type", "image_token_id", "image_token_index", "video_token_id", "vision_start_token_id", "vision_end_token_id", "boi_token_index",
              "eoi_token_index", "mm_tokens_per_image", "tie_word_embeddings", "vision_config", "torch_dtype"}
    text = {key: value for key, value in config.items() if key not in of_all} | {"model_type": f"{config['model_type']}_text"}
    tower = {**config["vision_config"], **({"out_hidden_size": config["hidden_size"]} if config["model_type"] == "qwen2_5_vl" else {})}
    return {**{key: value for key, value in config.items() if key in of_all}, "text_config": text, "vision_config": tower}


def shapes_of(config: dict) -> dict[str, list[int]]:
    if "vision_config" in config:
        return VISION_SHAPES[config["model_type"]](config)
    if "model_type" not in config or config["model_type"] == "llama":
        return same_losses.wide_shapes(config)
    ends = ["model.embed_tokens.weight"] + ["lm_head.weight"] * (not config["tie_word_embeddings"])
    shapes = {name: [config["vocab_size"], config["hidden_size"]] for name in ends} | {"model.norm.weight": [config["hidden_size"]]}
    for layer in range(config["num_hidden_layers"]):
        shapes |= layer_shapes(config, layer)
    return shapes


def write_model(folder: Path, sizes: dict, on_gpu: bool = False) -> None:
    config = {**same_losses.WIDE, **SIZES, **(GPU_SIZES if on_gpu else {}), **sizes}
    has_images = "vision_config" in config
    same_losses.write_large_model(folder, with_text_config(config) if has_images else config, shapes_of(config), "BF16" if on_gpu else "F32")
    if has_images:
        kind = vision_folders.KINDS[config["model_type"]]
        members = {"image_seq_length": config["mm_tokens_per_image"]} if "mm_tokens_per_image" in config else {}
        settings = {"size": dict(zip(("width", "height"), PICTURE))} if members else kind.released[0]
        vision_folders.write_processor(folder, kind, settings, members)


KEPT = ("base", "trainable", "gradients", "optimizer")


# The kinds of records, and data.format of each.
FORMATS = {"text": "text", "pairs": "preference", "images": "messages", "prompts": "auto", "answers": "auto", "texts": "auto"}
RECORDS = {"prompts": 64}  # of a kind, other than 12


def kind_of_data(case: Case) -> str:
    if "vision_config" in case.sizes:
        return "images"
    objective = next((setting.split("=")[1] for setting in case.settings if setting.startswith("train.objective=")), "sft")
    if objective == "grpo":
        return "prompts" if any(setting.startswith("train.rollouts.") for setting in case.settings) else "answers"
    return {"sft": "text", "distill": "text", "embed": "texts"}.get(objective, "pairs")


def record_of(kind: str, case: Case, tokens: int, digits: random.Random) -> dict:
    def text(count):
        return "".join(digits.choices("0123456789", k=count))
    # Two answers to a short prompt fill a packed sequence.
    half = tokens // 2 - 2 if "data.packing=false" not in case.settings else tokens - 2
    if kind == "pairs":
        return {"prompt": "1", "chosen": text(half - 1), "rejected": text(half - 1)}
    if kind == "answers":
        return {"prompt": "123", "completion": text(half - 4), "reward": digits.random()}
    if kind == "prompts":
        return {"prompt": text(31)}
    if kind == "texts":
        return {"anchor": text(half // 2), "positive": text(half - half // 2)}
    if kind == "images":  # four pictures with 64 tokens each, what is around them, and an answer that nearly fills a packed sequence
        content = [{"type": "image", "path": "picture.png"}] * 4 + [{"type": "text", "text": "1"}]
        return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": text(tokens - 280)}]}
    return {"text": text(2 * tokens)}


class Machine:
    """Runs cases on a device: on a GPU with larger models, as what cuBLAS takes there does not depend on them."""

    def __init__(self, arguments, scratch: Path):
        self.program, self.device, self.tokens, self.scratch = arguments.sftrun.resolve(), arguments.device, arguments.tokens, scratch
        self.on_gpu = arguments.device == "cuda"

    def run(self, number: int, case: Case) -> dict:
        """run.json, with what memory-check said before the run."""
        folder = self.scratch / str(number)
        write_model(folder / "model", case.sizes, self.on_gpu)
        digits = random.Random(number)
        if TEACHER[0] in case.settings:
            write_model(folder / "teacher", {**case.sizes, **case.teacher}, self.on_gpu)
        kind = kind_of_data(case)
        if kind == "images":
            vision_folders.write_picture(folder / "picture.png", *PICTURE, digits)
        records = [record_of(kind, case, self.tokens, digits) for _ in range(RECORDS.get(kind, 12))]
        (folder / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "run.yaml").write_text(json.dumps({
            "model": {"name": str(folder / "model"), "dtype": "bf16" if self.on_gpu else "fp32", "max_seq_len": self.tokens},
            "tuning": {"mode": "lora", "lora": {"r": 8}}, "data": {"train": str(folder / "texts.jsonl"), "format": FORMATS[kind], "cache_dir": "none"},
            "train": {"max_steps": 2, "batch_size": 1, "grad_accum": 1, "save_every": "0"}, "output": {"tensorboard": False}}))
        run = ["--config", folder / "run.yaml", "--device", self.device, "--nproc-per-node", case.processes, f"output.dir={folder}/run",
               *(setting.replace("{folder}", str(folder)) for setting in case.settings)]
        plan = self.call("memory-check", "--json", *run)
        self.call("train", *run)
        report = json.loads((folder / "run/run.json").read_text())
        report["memory-check"] = json.loads(plan)
        report["peak_resident"] = max(max(json.loads(line)["peak_memory_bytes"]) for line in (folder / "run/metrics.jsonl").read_text().splitlines())
        shutil.rmtree(folder)
        return report

    def call(self, *arguments) -> str:
        command = [str(part) for part in (self.program, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise SystemExit(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout


def compare(case: Case, report: dict) -> dict:
    """How far each term and the peak were from the plan (`planned / used`), and what is wrong."""
    planned, ranks = report["planned_bytes"], [rank["bytes"] for rank in report["ranks"]]
    parts_in_blocks = "parallel.strategy=tensor" in case.settings and "tuning.quant=nf4" in case.settings
    parts, ratios, wrong = report["memory-check"]["parts"], {}, []
    front = {term: parts[term] for term in KEPT}
    front["trainable"] += parts.get("reference", 0)
    front["base"] += parts.get("teacher", 0)
    own = sum(parts.get(term, 0) for term in ("activations", "tower_activations", "images")) + max(parts["layer_backward"], parts["head"], parts.get("tower", 0))
    front["activations_peak"] = parts["gathered"] + parts["workspace"] + max(own, parts.get("teacher_pass", 0))
    answers = report["memory-check"]["answers"] or {"bytes": 0, "peak_bytes": 0}  # between steps, beside what is kept
    front["activations_peak"] = max(front["activations_peak"], answers["bytes"])
    if front != planned:
        wrong.append(f"memory-check says {front}, run.json {planned}")
    for term in (*KEPT, "activations_peak"):
        used = max(rank[term] for rank in ranks)
        allowed = (0.05 * used + 2e6) if term == "activations_peak" else (0.03 if parts_in_blocks else 0.01) * used
        ratios[term] = planned[term] / used if used else 1.0
        if abs(planned[term] - used) > allowed:
            wrong.append(term)
    peak = max(sum(rank.values()) for rank in ranks)
    ratios["peak"] = sum(planned.values()) / peak
    if abs(ratios["peak"] - 1) > 0.05:
        wrong.append("peak")
    resident, front_peak = report["peak_resident"], max(report["memory-check"]["peak_bytes"], answers["peak_bytes"])
    if report["memory-check"]["device"]["kind"] == "cpu":
        ratios["process"] = front_peak / resident
        if abs(ratios["process"] - 1) > 0.05:
            wrong.append("process")
    return {"ok": not wrong, "case": case.name, "planned_by_used": ratios, "peak_bytes": peak, "resident_bytes": resident,
            "memory_check_bytes": front_peak, **({"wrong": wrong} if wrong else {})}


def shown(result: dict) -> str:
    ratios = ", ".join(f"{term} {ratio:.3f}" for term, ratio in result["planned_by_used"].items())
    wrong = f" WRONG: {'; '.join(result['wrong'])}" if "wrong" in result else ""
    return (f"{result['case']:<24} planned / used: {ratios}; of {result['peak_bytes'] / 1e6:.0f} MB; resident {result['resident_bytes'] / 1e6:.0f} MB, "
            f"memory-check {result['memory_check_bytes'] / 1e6:.0f} MB{wrong}")


def chosen_cases(arguments) -> list[Case]:
    names = arguments.case or [case.name for case in CASES]
    if unknown := set(names) - {case.name for case in CASES}:
        raise SystemExit(f"error: no such case: {', '.join(sorted(unknown))}")
    everything = arguments.all or arguments.only or arguments.case
    preferred = (lambda case: case.on_gpu) if arguments.device == "cuda" else (lambda case: case.quick)
    return [case for case in CASES if case.name in names and arguments.only in case.name and (everything or preferred(case))]


def summarize(results: list[dict]) -> None:
    for term, what in (("peak", "the peak"), ("process", "the memory of the fullest process"), ("activations_peak", "what a step needs beside weights, gradients and optimizer state")):
        errors = [(abs(result["planned_by_used"][term] - 1), result["case"]) for result in results if term in result["planned_by_used"]]
        if not errors:
            continue
        worst, middle = max(errors), statistics.median(error for error, _ in errors)
        print(f"{len(errors)} cases: {what} is planned within {worst[0]:.1%} ({worst[1]}), the median is {middle:.1%}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", default="", help="cases whose names contain this")
    parser.add_argument("--case", nargs="+", metavar="NAME", help="these cases")
    parser.add_argument("--all", action="store_true", help="every case, and not only those of `make test` or, on a GPU, of `make gpu-check`")
    parser.add_argument("--tokens", type=int, help="of a micro-batch (default 2048, for `make test` 1024, on a GPU 16384)")
    parser.add_argument("--json", action="store_true", help="one line of JSON for each case")
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    arguments = parser.parse_args()
    is_quick = not (arguments.all or arguments.only or arguments.case)
    arguments.tokens = arguments.tokens or (16384 if arguments.device == "cuda" else 1024 if is_quick else 2048)
    cases, results = chosen_cases(arguments), []
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        machine = Machine(arguments, Path(temporary))
        for number, case in enumerate(cases):
            results.append(compare(case, machine.run(number, case)))
            print(json.dumps(results[-1]) if arguments.json else shown(results[-1]), flush=True)
    if results and not arguments.json:
        summarize(results)
    return 0 if results and all(result["ok"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
