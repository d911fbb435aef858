"""Bases in 4 bits as transformers + bitsandbytes make them on a CPU."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as functional
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig


@dataclass(frozen=True)
class Storage:
    quant: str
    double: bool
    block_size: int

    @property
    def name(self) -> str:
        return f"{self.quant}, blocks of {self.block_size}{', factors quantised' if self.double else ''}"

    @property
    def settings(self) -> dict:
        return {"tuning__mode": "qlora", "tuning__quant": self.quant, "tuning__double_quant": self.double,
                "tuning__quant_block_size": self.block_size}


@contextmanager
def blocks_of(size: int):
    """transformers' configuration does not name the size of blocks."""
    original = functional.quantize_4bit

    def quantize(weight, *args, **kwargs):
        return original(weight, *args, **{**kwargs, "blocksize": size})

    functional.quantize_4bit = quantize
    try:
        yield
    finally:
        functional.quantize_4bit = original


def dequantize(packed, absmax, block_size, quant_type, shape, dtype):
    return _dequantize_4bit_compute(packed.reshape(-1), absmax, functional.get_4bit_type(quant_type, device="cpu"), block_size, shape, dtype)


# What bitsandbytes computes without its library for CPUs, which takes other blocks' factors where rows are a multiple of 16 wide and
# not of a block (0.50.2; its code for CUDA does not).
LIBRARY = torch.library.Library("bitsandbytes", "IMPL")
LIBRARY.impl("dequantize_4bit", dequantize, "CPU", allow_override=True)


def quantised_base(directory: Path, storage: Storage):
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=storage.quant,
        bnb_4bit_use_double_quant=storage.double,
        bnb_4bit_compute_dtype=torch.float32,
    )
    with blocks_of(storage.block_size):
        model = AutoModelForCausalLM.from_pretrained(directory, quantization_config=config, dtype=torch.float32, device_map="cpu")
    return exact_products(model)


def exact_products(model):
    """bitsandbytes' products for inference on a CPU are in bf16, and of whole blocks only: not these."""
    for module in model.modules():
        if isinstance(module, bitsandbytes.nn.Linear4bit):
            module.support_avx512bf16_for_cpu = False
            module.compute_dtype, module.compute_type_is_set = torch.float32, True
    return model


@torch.no_grad()
def quantise_ends(model, storage: Storage) -> None:
    """Embedding and head as their 4 bits stand for them: bitsandbytes' own layers for them take no LoRA."""
    for weight in {id(m.weight): m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings())}.values():
        packed, state = functional.quantize_4bit(
            weight.data, blocksize=storage.block_size, compress_statistics=storage.double, quant_type=storage.quant)
        weight.copy_(functional.dequantize_4bit(packed, state))
