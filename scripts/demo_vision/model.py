#!/usr/bin/env python3
"""Writes the model of `make demo-vision`: Qwen2.5-VL's layout, small, with random weights. Standard library only.

A vision tower on patches of 8 x 8 pixels, a projector that merges none of them, and a text model: 16 tokens an image. The tokenizer is a
byte-level BPE one, trained here on the questions, so that each of their words is a token.
"""

import argparse
import json
import math
import pathlib
import sys

from pictures import COLOURS, PLURALS, QUESTIONS, ROOT, SHAPES, SIZE

sys.path.append(str(ROOT / "scripts"))
from made_models import byte_level_bpe, write_weights

TOKENS = ("<|end|>", "<|user|>", "<|assistant|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
TEMPLATE = """{%- for message in messages -%}
{%- if message.role == 'user' -%}<|user|>
{%- if message.content is string -%}{{ message.content }}
{%- else -%}
{%- for part in message.content -%}
{%- if part.type == 'image' -%}<|vision_start|><|image_pad|><|vision_end|>{%- else -%}{{ part.text }}{%- endif -%}
{%- endfor -%}
{%- endif -%}
{%- else -%}<|assistant|>{{ message.content }}<|end|>
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""

HIDDEN, LAYERS, HEADS, MLP = 128, 4, 4, 384
TOWER_HIDDEN, TOWER_LAYERS, TOWER_HEADS, TOWER_MLP = 128, 4, 4, 384
HEAD = HIDDEN // HEADS
PATCH, MERGE = 8, 1


# ---- Tokenizer


def texts():
    for wordings in QUESTIONS.values():
        for wording in wordings:
            for shape, colour in zip(SHAPES * len(COLOURS), list(COLOURS) * len(SHAPES)):
                yield wording.format(shape=shape, shapes=PLURALS[shape], colour=colour)
    yield from (*SHAPES, *COLOURS, *(f"{colour} {shape}, " for colour in COLOURS for shape in SHAPES))


def tokenizer():
    """@return tokenizer.json, ids of TOKENS"""
    return byte_level_bpe(texts(), TOKENS)


# ---- Configuration


def configuration(ids):
    text = {"model_type": "qwen2_5_vl_text", "vocab_size": vocab_size(ids), "hidden_size": HIDDEN, "intermediate_size": MLP,
            "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": HEAD, "hidden_act": "silu",
            "max_position_embeddings": 1024, "rms_norm_eps": 1e-6, "use_sliding_window": False, "sliding_window": None,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [HEAD // 4, HEAD // 8, HEAD // 8]},
            "bos_token_id": ids["<|end|>"], "eos_token_id": ids["<|end|>"], "tie_word_embeddings": True}
    vision = {"model_type": "qwen2_5_vl_vision", "depth": TOWER_LAYERS, "hidden_size": TOWER_HIDDEN, "num_heads": TOWER_HEADS,
              "intermediate_size": TOWER_MLP, "hidden_act": "silu", "in_channels": 3, "patch_size": PATCH, "temporal_patch_size": 2,
              "spatial_merge_size": MERGE, "out_hidden_size": HIDDEN, "window_size": SIZE, "fullatt_block_indexes": list(range(TOWER_LAYERS)),
              "tokens_per_second": 4}
    return {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl", "dtype": "float32", "text_config": text,
            "vision_config": vision, "tie_word_embeddings": True, "image_token_id": ids["<|image_pad|>"],
            "video_token_id": ids["<|video_pad|>"], "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"]}


def vocab_size(ids):
    return max(ids.values()) + 1


def processor():
    return {"image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor", "patch_size": PATCH, "temporal_patch_size": 2,
            "merge_size": MERGE, "size": {"shortest_edge": SIZE * SIZE, "longest_edge": SIZE * SIZE}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}


# ---- Weights


def shapes(ids):
    """Name, shape and standard deviation of each tensor; None for norms, which start at 1."""
    def linear(name, rows, columns, has_bias, factor=1.0):
        yield f"{name}.weight", (rows, columns), factor / math.sqrt(columns)
        if has_bias:
            yield f"{name}.bias", (rows,), 0.0

    def gated(name, hidden, inner, has_bias, factor):
        yield from linear(f"{name}.gate_proj", inner, hidden, has_bias)
        yield from linear(f"{name}.up_proj", inner, hidden, has_bias)
        yield from linear(f"{name}.down_proj", hidden, inner, has_bias, factor)

    last = 1 / math.sqrt(2 * TOWER_LAYERS)  # so that the sum over all blocks has the size of its summands
    yield "visual.patch_embed.proj.weight", (TOWER_HIDDEN, 3, 2, PATCH, PATCH), 1 / math.sqrt(3 * 2 * PATCH * PATCH)
    for i in range(TOWER_LAYERS):
        block = f"visual.blocks.{i}"
        yield from ((f"{block}.norm{n}.weight", (TOWER_HIDDEN,), None) for n in (1, 2))
        yield from linear(f"{block}.attn.qkv", 3 * TOWER_HIDDEN, TOWER_HIDDEN, True)
        yield from linear(f"{block}.attn.proj", TOWER_HIDDEN, TOWER_HIDDEN, True, last)
        yield from gated(f"{block}.mlp", TOWER_HIDDEN, TOWER_MLP, True, last)
    merged_size = TOWER_HIDDEN * MERGE * MERGE
    yield "visual.merger.ln_q.weight", (TOWER_HIDDEN,), None
    yield from linear("visual.merger.mlp.0", merged_size, merged_size, True)
    yield from linear("visual.merger.mlp.2", HIDDEN, merged_size, True)

    last = 1 / math.sqrt(2 * LAYERS)
    yield "model.embed_tokens.weight", (vocab_size(ids), HIDDEN), 1 / math.sqrt(HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        yield from ((f"{layer}.{norm}_layernorm.weight", (HIDDEN,), None) for norm in ("input", "post_attention"))
        for name in "qkv":
            yield from linear(f"{layer}.self_attn.{name}_proj", HIDDEN, HIDDEN, True)
        yield from linear(f"{layer}.self_attn.o_proj", HIDDEN, HIDDEN, False, last)
        yield from gated(f"{layer}.mlp", HIDDEN, MLP, False, last)
    yield "model.norm.weight", (HIDDEN,), None


def write(folder, seed):
    folder.mkdir(parents=True, exist_ok=True)
    description, ids = tokenizer()
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|end|>", "chat_template": TEMPLATE}
    files = {"config.json": configuration(ids), "preprocessor_config.json": processor(), "tokenizer.json": description,
             "tokenizer_config.json": special, "generation_config.json": {"eos_token_id": ids["<|end|>"], "pad_token_id": ids["<|end|>"]}}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    values = write_weights(folder / "model.safetensors", shapes(ids), seed)
    print(f"demo: model written: {folder}: {values / 1e6:.1f}M parameters with random values, {vocab_size(ids)} tokens")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, default=ROOT / ".cache/demo-vision/model")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    write(arguments.output, arguments.seed)


if __name__ == "__main__":
    main()
