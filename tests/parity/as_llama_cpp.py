"""A model of transformers over a GGUF file's weights that rounds what llama.cpp's CPU backend rounds (0.3.36 of llama-cpp-python;
ggml/src/ggml-cpu/ggml-cpu.c: `vec_dot_type`). Weights are the file's values, unpacked by gguf-py; sums are in fp32, in another order.

Q4_0, Q5_0, Q8_0     inputs in blocks of 32: codes round(127 x / max |x|), factor max |x| / 127 in fp16 (quantize_row_q8_0)
Q4_1, Q5_1           likewise; the blocks' minima multiply the sum of the codes times the factor, in fp16 (quantize_row_q8_1)
K blocks             inputs in blocks of 256: codes round(-127 x / m) of the largest m with its sign, factor in fp32 (quantize_row_q8_K)
F16, BF16, F32       inputs in that type
attention            q, k, v and probabilities in fp16 (the KV cache's type), or in fp32
GELU                 of the input in fp16, in fp16 (ggml_table_gelu_f16)
adapters             A and B in fp32, their inputs as they are

Rounding is a step function: a last bit of difference, as another order of sums makes, turns a code into the next, and what is computed of
that differs by a 250th of a block's largest value. After some layers two such computations are as far from each other as either is from
what fp32 gives. So layers can begin with what llama.cpp's own had before them: then only the layer itself can differ.
"""

from __future__ import annotations

from pathlib import Path

import family_gguf
import gguf
import numpy as np
import torch
from torch import nn

BLOCK, K_BLOCK = 32, 256
WITH_MINIMA = {"Q4_1": 2, "Q5_1": 2}  # bytes before a block's minimum
GELU_LIMIT = 10.0  # beyond it there is no table


def as_f16(x: torch.Tensor) -> torch.Tensor:
    return x.half().float()


def as_q8_0(x: torch.Tensor) -> torch.Tensor:
    return q8_1(x)[0]


def q8_1(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """@return what the codes stand for [rows, columns], and the blocks' sums [rows, columns / 32]"""
    blocks = x.reshape(-1, x.shape[-1] // BLOCK, BLOCK)
    largest = blocks.abs().amax(-1, keepdim=True)
    codes = torch.where(largest > 0, torch.round(blocks * (127.0 / largest)), 0.0)  # half to even, as x86's instruction
    factor = largest / 127.0
    return (codes * as_f16(factor)).reshape(x.shape), as_f16(codes.sum(-1, keepdim=True) * factor).reshape(*x.shape[:-1], -1)


def as_q8_k(x: torch.Tensor) -> torch.Tensor:
    blocks = x.reshape(-1, x.shape[-1] // K_BLOCK, K_BLOCK)
    largest = blocks.gather(-1, blocks.abs().argmax(-1, keepdim=True))
    scale = -127.0 / largest
    return torch.where(largest != 0, torch.round(blocks * scale).clamp(max=127) * (1.0 / scale), 0.0).reshape(x.shape)


def as_it_is(x: torch.Tensor) -> torch.Tensor:
    return x


def rounding_for(kind: str):
    """Of what a matrix of GGUF's type `kind` multiplies."""
    if kind.endswith("_K"):
        return as_q8_k
    return {"F32": as_it_is, "F16": as_f16, "BF16": lambda x: x.bfloat16().float()}.get(kind, as_q8_0)


def minima(tensor: gguf.ReaderTensor, rows: int) -> torch.Tensor | None:
    """[rows, blocks] of Q4_1 and Q5_1"""
    kind = tensor.tensor_type
    if kind.name not in WITH_MINIMA:
        return None
    _, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    at = WITH_MINIMA[kind.name]
    stored = np.ascontiguousarray(tensor.data.reshape(rows, -1, block_bytes)[:, :, at : at + 2])
    return torch.from_numpy(stored.view(np.float16)[:, :, 0].astype(np.float32))


class Matrix(nn.Module):
    """A linear layer of the file, its rows in transformers' order, with the adapter's update where it has one."""

    def __init__(self, tensor: gguf.ReaderTensor, order: np.ndarray, bias: torch.Tensor | None, update: tuple | None):
        super().__init__()
        values = torch.from_numpy(gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32))
        back = torch.from_numpy(np.argsort(order))
        self.kind, self.weight, self.bias = tensor.tensor_type.name, values[back], bias
        self.minima = minima(tensor, values.shape[0])
        if self.minima is not None:
            self.minima = self.minima[back]
            self.weight = self.weight - self.minima.repeat_interleave(BLOCK, dim=1)
        self.update = update and (update[0], update[1][back])
        self.rounds = True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values = rounding_for(self.kind)(x) if self.rounds else x
        result = values @ self.weight.T
        if self.minima is not None:
            sums = q8_1(x)[1] if self.rounds else x.reshape(*x.shape[:-1], -1, BLOCK).sum(-1)
            result = result + sums @ self.minima.T
        if self.update:
            result = result + x @ self.update[0].T @ self.update[1].T
        return result if self.bias is None else result + self.bias


def attention_in(rounded):
    def attention(module, query, key, value, mask, scaling, **_):
        """Causal, without window: prompts are short."""
        groups = query.shape[1] // key.shape[1]
        keys, values = (rounded(part).repeat_interleave(groups, dim=1) for part in (key, value))
        scores = rounded(query) @ keys.transpose(-1, -2) * scaling
        length = query.shape[2]
        scores = scores + torch.full((length, length), -torch.inf).triu(1)
        return (rounded(torch.softmax(scores, dim=-1)) @ values).transpose(1, 2), None

    return attention


def gelu_of_table(x: torch.Tensor) -> torch.Tensor:
    table = as_f16(nn.functional.gelu(as_f16(x), approximate="tanh"))
    return torch.where(x <= -GELU_LIMIT, 0.0, torch.where(x >= GELU_LIMIT, x, table))


def updates_of(adapter: Path | None) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """A and alpha / r * B by the tensor's name."""
    if adapter is None:
        return {}
    reader = gguf.GGUFReader(adapter)
    alpha = reader.fields["adapter.lora.alpha"].contents()
    tensors = {tensor.name: torch.from_numpy(np.array(tensor.data, dtype=np.float32)) for tensor in reader.tensors}
    found = {}
    for name, a in tensors.items():
        if name.endswith(".lora_a"):
            found[name.removesuffix(".lora_a")] = (a, alpha / a.shape[0] * tensors[name.removesuffix("_a") + "_b"])
    return found


def model_of_file(directory: Path, file: Path, adapter: Path | None = None, rounds: bool = True) -> nn.Module:
    """@param directory of the same model, for its configuration, norms and biases;  rounds: as llama.cpp does, or nothing at all"""
    from transformers import AttentionInterface, AutoModelForCausalLM

    attention = "rounded" if rounds else "as_it_is"
    AttentionInterface.register(attention, attention_in(as_f16 if rounds else as_it_is))
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation=attention).eval()
    config = model.config
    names = family_gguf.tensor_names(config)
    tensors, updates = {tensor.name: tensor for tensor in gguf.GGUFReader(file).tensors}, updates_of(adapter)
    embedding = tensors["token_embd.weight"]
    model.get_input_embeddings().weight = nn.Parameter(
        torch.from_numpy(gguf.quants.dequantize(embedding.data, embedding.tensor_type).astype(np.float32)))
    for name, module in list(model.named_modules()):
        if rounds and hasattr(module, "act_fn") and config.model_type.startswith("gemma"):
            module.act_fn = gelu_of_table
        if not isinstance(module, nn.Linear):
            continue
        rows = np.arange(module.out_features)[:, None]
        [(part, order)] = family_gguf.in_gguf(config, f"{name}.weight", rows).items()
        stored = family_gguf.stored_name(names, part)
        matrix = Matrix(tensors.get(stored, embedding), order[:, 0], module.bias, updates.get(stored))
        matrix.rounds = rounds
        model.set_submodule(name, matrix)
    return model


@torch.no_grad()
def layer_by_layer(model: nn.Module, ids: list[int], results: list[np.ndarray]) -> tuple[np.ndarray, list[float]]:
    """Every layer computes on what `results`, llama.cpp's, has of the layer before.
    @param results of each layer [tokens, hidden]; of the last one that of the last token alone
    @return logits of the last token, which only the last layer and the head have computed here; of each layer how far what it adds is from
            what it adds there, over the size of that"""
    results = [torch.from_numpy(result) for result in results]
    apart, hooks = [], []

    def compare(i):
        def hook(layer, inputs, output):
            ours, theirs = (output[0] if isinstance(output, tuple) else output)[0][-len(results[i]):], results[i]
            added = theirs - inputs[0][0][-len(theirs):]
            apart.append(((ours - theirs).norm() / added.norm()).item())
        return hook

    for i, layer in enumerate(model.model.layers):
        if i > 0:
            hooks.append(layer.register_forward_pre_hook(lambda _, inputs, i=i: (results[i - 1][None], *inputs[1:])))
        hooks.append(layer.register_forward_hook(compare(i)))
    logits = model(torch.tensor([ids])).logits[0, -1].numpy()
    for hook in hooks:
        hook.remove()
    return logits, apart
