#!/usr/bin/env python3
"""Writes the model of `make smoke`: Llama's layout, tiny, with random weights, in a moment and without a download. Standard library only.

    scripts/smoke/model.py --output FOLDER [--seed 1] [--texts FILE.jsonl …]

Its tokenizer is a byte-level BPE one, trained here on the toy set and the files of --texts, so it can write any text. Its chat template is ChatML with
tools and reasoning in the form of Qwen's models, so that data for such models can be tried on it.
"""

import argparse
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))
from made_models import byte_level_bpe, write_weights  # noqa: E402

TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
PAD, _, END = TOKENS
TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n' }}
{%- if messages[0].role == 'system' %}{{ messages[0].content + '\\n\\n' }}{%- endif %}
{{- 'Tools, one in a line:' }}{%- for tool in tools %}{{ '\\n' + tool | tojson }}{%- endfor %}
{{- '\\nCall one with <tool_call>{"name": …, "arguments": …}</tool_call>.<|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}{{ '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- for message in messages %}
{%- if message.role == 'user' %}{{ '<|im_start|>user\\n' + message.content + '<|im_end|>\\n' }}
{%- elif message.role == 'tool' %}{{ '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
{%- elif message.role == 'assistant' %}{{ '<|im_start|>assistant\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{%- if message.content %}{{ message.content }}{%- endif %}
{%- for call in message.tool_calls or [] %}{{ '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}{%- endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{%- endif %}"""

HIDDEN, LAYERS, HEADS, KV_HEADS, MLP = 128, 2, 4, 2, 384
HEAD = HIDDEN // HEADS
CONTEXT = 4096
MAX_MERGES = 600


def strings(value):
    """All texts in a record."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from strings(part)


def texts(files):
    for file in files:
        for line in file.read_text().splitlines():
            yield from strings(json.loads(line))
    yield from ("system\n", "user\n", "assistant\n")


def configuration(ids):
    return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "dtype": "float32", "vocab_size": vocab_size(ids), "hidden_size": HIDDEN,
            "intermediate_size": MLP, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
            "hidden_act": "silu", "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "attention_bias": False,
            "mlp_bias": False, "bos_token_id": None, "eos_token_id": ids[END], "pad_token_id": ids[PAD], "tie_word_embeddings": True}


def vocab_size(ids):
    return max(ids.values()) + 1


def shapes(ids):
    """Name, shape and standard deviation of each tensor; None for norms, which are 1."""
    last = 1 / math.sqrt(2 * LAYERS)  # so that the sum over all blocks has the size of its summands
    yield "model.embed_tokens.weight", (vocab_size(ids), HIDDEN), 1 / math.sqrt(HIDDEN)
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        yield from ((f"{layer}.{norm}_layernorm.weight", (HIDDEN,), None) for norm in ("input", "post_attention"))
        for name, rows, columns, factor in (("self_attn.q_proj", HIDDEN, HIDDEN, 1), ("self_attn.k_proj", KV_HEADS * HEAD, HIDDEN, 1),
                                            ("self_attn.v_proj", KV_HEADS * HEAD, HIDDEN, 1), ("self_attn.o_proj", HIDDEN, HIDDEN, last),
                                            ("mlp.gate_proj", MLP, HIDDEN, 1), ("mlp.up_proj", MLP, HIDDEN, 1), ("mlp.down_proj", HIDDEN, MLP, last)):
            yield f"{layer}.{name}.weight", (rows, columns), factor / math.sqrt(columns)
    yield "model.norm.weight", (HIDDEN,), None


def write(folder, seed, files):
    """@return number of values"""
    folder.mkdir(parents=True, exist_ok=True)
    description, ids = byte_level_bpe(texts(files), TOKENS, MAX_MERGES)
    special = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": PAD, "model_max_length": CONTEXT}
    generation = {"eos_token_id": ids[END], "pad_token_id": ids[PAD]}
    for name, content in (("config.json", configuration(ids)), ("tokenizer.json", description), ("tokenizer_config.json", special),
                          ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return write_weights(folder / "model.safetensors", shapes(ids), seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", nargs="*", type=pathlib.Path, default=[], help="JSON lines; the tokenizer learns their words, too")
    options = parser.parse_args()
    values = write(options.output, options.seed, [ROOT / "data/toy/train.jsonl", *options.texts])
    print(f"smoke: model written: {options.output}: {values / 1e6:.1f}M parameters with random values")


if __name__ == "__main__":
    main()
