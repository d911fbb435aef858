"""Bases in 4 bits as transformers + bitsandbytes make them on a CPU, and in 8 by the values that bitsandbytes and transformers make."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import bitsandbytes
import bitsandbytes.functional as functional
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from transformers.integrations.compressed_tensors import quantize_fp8_per_row


torch._dynamo.config.disable = True  # bitsandbytes would compile for many seconds what runs for a moment


@dataclass(frozen=True)
class Storage:
    quant: str
    double: bool = False
    block_size: int = 64

    @property
    def name(self) -> str:
        if self.in_eight_bits:
            return self.quant
        return f"{self.quant}, blocks of {self.block_size}{', scales quantised' if self.double else ''}"

    @property
    def in_eight_bits(self) -> bool:
        return self.quant in ("int8", "fp8")

    @property
    def settings(self) -> dict:
        if self.in_eight_bits:
            return {"tuning__mode": "lora", "tuning__quant": self.quant}
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


# What bitsandbytes computes without its library for CPUs, which takes other blocks' scales where rows are a multiple of 16 wide and
# not of a block (0.50.2; its code for CUDA does not).
LIBRARY = torch.library.Library("bitsandbytes", "IMPL")
LIBRARY.impl("dequantize_4bit", dequantize, "CPU", allow_override=True)


class RoundedProduct(torch.autograd.Function):
    """What cards do in FP8, in fp32: codes by codes, then both scales. In the backward pass the weight's scales multiply first."""

    @staticmethod
    def forward(context, x, codes, scales):
        context.save_for_backward(codes, scales)
        x_codes, x_factors = quantize_fp8_per_row(x)
        return x_codes.float() @ codes.float().t() * x_factors[:, None] * scales

    @staticmethod
    def backward(context, grad):
        codes, scales = context.saved_tensors
        grad_codes, grad_factors = quantize_fp8_per_row(grad * scales)
        return grad_codes.float() @ codes.float() * grad_factors[:, None], None, None


class RoundedLinear(torch.nn.Linear):
    """transformers' CompressedTensorsFP8Linear, with a backward pass and without its cards' product."""

    @classmethod
    def of(cls, linear: torch.nn.Linear):
        made = cls(linear.in_features, linear.out_features, bias=linear.bias is not None)
        made.codes, made.scales = quantize_fp8_per_row(linear.weight.data)
        made.weight.data, made.bias = made.codes.float() * made.scales[:, None], linear.bias
        return made

    def forward(self, x):
        y = RoundedProduct.apply(x.reshape(-1, x.shape[-1]), self.codes, self.scales).reshape(*x.shape[:-1], -1)
        return y if self.bias is None else y + self.bias


def linear_names(model):
    return [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and name != "lm_head"]


def base_in_eight_bits(directory: Path, quant: str):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, device_map="cpu")
    for name in linear_names(model):
        module = model.get_submodule(name)
        if quant == "fp8":
            model.set_submodule(name, RoundedLinear.of(module))
        else:
            codes, scales, _ = functional.int8_vectorwise_quant(module.weight.data.half())
            module.weight.data = functional.int8_vectorwise_dequant(codes, scales)
    return model


def quantised_base(directory: Path, storage: Storage):
    if storage.in_eight_bits:
        return base_in_eight_bits(directory, storage.quant)
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
def round_weight(weight: torch.Tensor, storage: Storage) -> None:
    """To what its 4 bits stand for."""
    packed, state = functional.quantize_4bit(
        weight.data, blocksize=storage.block_size, compress_statistics=storage.double, quant_type=storage.quant)
    weight.copy_(functional.dequantize_4bit(packed, state))


def quantise_embeddings(model, storage: Storage) -> None:
    """Embedding and head as their 4 bits stand for them: bitsandbytes' own layers for them take no LoRA."""
    for weight in {id(m.weight): m.weight for m in (model.get_input_embeddings(), model.get_output_embeddings())}.values():
        round_weight(weight, storage)
