#!/usr/bin/env python3
"""Predicts tokens/s of a LoRA training step on GPUs from its operations: FLOPs, bytes and launches.
Results are predictions; most assumptions about Hopper were measured on an H100 (REASONS).

    scripts/gpu/model.py                                             # the tables of docs/gpu-performance.md
    scripts/gpu/model.py --write                                     # puts them into that document
    scripts/gpu/model.py --rows --card h100 --model qwen3-8b/fp8     # every operation, with its time and what bounds it
    scripts/gpu/model.py --counts FILE                               # compares launches per layer with counted ones; exit code 1 if they differ
    scripts/gpu/model.py --json --card rtx4090 --host-us 6 --graphs

FILE is what tests/cuda/runtime/runtime_test.py --only counts --counts FILE writes.
Time of an operation = max(FLOPs / (peak x share), bytes / (bandwidth x share)) + the start of its kernels. A micro-batch takes the
longer of that sum and launches x the host's time for one, for launches are asynchronous. Two steps are modelled. "today" is the
list of operations that the tests count: linears that read the same input are one product, of which the adapters' columns are part:
[x | low] [W | sB]^T, and in the backward pass [dy | d_low] [W ; A]; not in FP8, nor forward of o, whose input LibTorch's attention
writes. Quantised matrices are unpacked, and codes in FP8 turned, by a second stream beside the products before. "planned" is the
planned step: o's forward product as the others'; in FP8 norms and activations round what they write. Standard library only.
"""

import argparse
import collections
import dataclasses
import json
import math
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs/gpu-performance.md"
BEGIN, END = "<!-- predictions: begin -->", "<!-- predictions: end -->"
GIB, MS, US = 2**30, 1e-3, 1e-6

# The work: packed sequences, all positions labelled, each sequence one document (the most attention that a length can have).
SEQUENCE, MICRO_BATCH, ACCUM, RANK = 2048, 2, 4, 16
BF16, FP32, NF4, FP8 = 2, 4, 4.127 / 8, 1  # bytes of a value; NF4 with quantised factors

# ---- Assumptions: every number that no test of this project gives; of Hopper's most were measured on an H100 (2026-11-26), as REASONS say -------------------------------------------------------------
HOST_US = 14.0  # of the host for a launch through LibTorch's dispatcher: measured, 1221 launches in a step of 17.7 ms; 4 to 6 are usual elsewhere
KERNEL_START_US = 2.0  # between two dependent kernels on the device: gap, fill and drain
WAIT_US = 25.0  # from a wait's end until the device has work again
CONTEXT_GIB, FRAGMENTS = 1.0, 1.05  # CUDA's context and cuBLAS's workspace; what the allocator cannot use, as a factor
TILES = ((128, 256, 1.0), (128, 128, 0.92), (64, 128, 0.75), (64, 64, 0.55))  # of a product: rows, columns, rate beside the first
SHOWN = 0.30  # of the second stream's time: its blocks take multiprocessors from the products beside them; a guess
SPLIT_DEPTH, SPLIT_RATE, SPLITS = 4096, 0.95, (2, 4, 8)  # tiles that share a sum: the least depth of one, rate beside whole ones, how many


@dataclasses.dataclass(frozen=True)
class Card:
    name: str
    memory_gib: float  # what the driver offers
    bandwidth: float  # bytes/s
    sms: int
    peaks: dict  # FLOP/s by type, sums in fp32, no sparsity
    shares: dict  # attainable, by kind of operation


HOPPER = {"bf16": 0.75, "fp8 forward": 0.67, "fp8 backward": 0.75, "grouped": 0.50, "grouped codes": 0.40, "attention forward": 0.43, "attention backward": 0.38, "stream": 0.80,
          "unpack": 0.70, "thin": 0.55, "thin sum": 0.72, "adapter gradients": 0.60, "turn": 0.56}
ADA = {"bf16": 0.90, "fp8 forward": 0.70, "fp8 backward": 0.70, "grouped": 0.60, "grouped codes": 0.50, "attention forward": 0.65, "attention backward": 0.45}
COMMON = {"fp32": 0.60, "stream": 0.90, "unpack": 0.75, "thin": 0.50, "thin sum": 0.70, "adapter gradients": 0.50, "turn": 0.60}
CARDS = {
    "h100": Card("H100 SXM", 79.1, 3.35e12, 132, {"bf16": 989e12, "fp8": 1979e12, "fp32": 67e12}, COMMON | HOPPER),
    "h200": Card("H200", 139.0, 4.8e12, 132, {"bf16": 989e12, "fp8": 1979e12, "fp32": 67e12}, COMMON | HOPPER),
    "rtx4090": Card("RTX 4090", 23.5, 1.008e12, 128, {"bf16": 165e12, "fp8": 330e12, "fp32": 82.6e12}, COMMON | ADA),
    "rtx5090": Card("RTX 5090", 31.4, 1.792e12, 170, {"bf16": 210e12, "fp8": 419e12, "fp32": 105e12}, COMMON | ADA),
}
# Which peak a kind of operation is held to.
PEAK = {"fp8 forward": "fp8", "fp8 backward": "fp8", "fp32": "fp32"}

REASONS = {  # what stands in the document, in its order
    "bf16": "dense products in bf16: 71% measured over the layers of Qwen3-8B on an H100, whose clock falls at its power limit, tiles that do not fill it counted; a published run of `torch.matmul` on an RTX 5090 reached 224 TFLOP/s, above its rating",
    "fp8 forward": "row-wise scaled products, sums in lower precision; cuBLASLt's kernel: 1325 TFLOP/s measured on an H100; GeForce: a guess",
    "fp8 backward": "the same with exact sums (`use_fast_accum` off): 1496 TFLOP/s measured on an H100; GeForce's peak is that of fp32 sums already",
    "attention forward": "128 channels, causal, documents of 2048 tokens: cuDNN's kernel, 407 to 460 TFLOP/s measured on an H100; GeForce: FlashAttention 2, a guess",
    "attention backward": "the same, without the kernels around it: 374 to 394 TFLOP/s measured on an H100; GeForce: a guess",
    "grouped": "experts of 256 rows each: LibTorch's kernel on Hopper, ours on GeForce (mma.sync, tiles of 128 x 128, three stages): guesses",
    "grouped codes": "the same over 4-bit codes, which our kernel decodes: mma.sync reaches some 60% of Hopper's peak, all of GeForce's; decoding takes issue slots: guesses",
    "fp32": "the router's product, without TF32",
    "stream": "rows and elements, of bandwidth; 69 to 89% measured on an H100, whose copy reaches 79%; GeForce: an assumption",
    "unpack": "4-bit codes to bf16, of bandwidth, alone on the card: 68 to 72% measured on an H100; GeForce: a guess",
    "thin": "x A^T and dy B of 16 to 48 columns, of bandwidth: 35 to 73% measured on an H100 with the shapes of Qwen3-8B; GeForce: a guess",
    "thin sum": "y += low B^T, in FP8 with the base's product, and dx += d_low A; of bandwidth: 64 to 78% measured on an H100; GeForce: a guess",
    "adapter gradients": "reads each wide side once, of bandwidth: 49 to 69% measured on an H100 with the shapes of Qwen3-8B; GeForce: a guess",
    "turn": "FP8 codes transposed for a product of the backward pass, tiles in shared memory, of bandwidth: 56% measured on an H100, beside products; GeForce: a guess",
}

# ---- Published figures and goals, tokens/s -------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Published:
    """What others publish of one card, and say of the work."""

    who: str
    card: str
    case: str  # of MODELS and BASES
    recomputes: bool  # activations, in the backward pass
    tokens_per_s: dict  # by source, of SOURCES


SUROGATE_ALL = "2 x 2048 tokens, accumulation 4, packed; LoRA r 16 on q, k, v, o, gate, up, down"
SOURCES = {  # where it stands, the work, and how recomputation is known
    "S1": ("invergent-ai/surogate, [speed.md](https://github.com/invergent-ai/surogate/blob/93e810ca/benchmarks/speed.md) at 93e810ca (2026-01-08), tables \"H100 SXM\" and \"RTX 5090\" (CUDA 13.1)", SUROGATE_ALL,
           "the configurations do not set it, and the default recomputes blocks (`sft_config.py` at that commit); Unsloth's script leaves `use_gradient_checkpointing` at \"unsloth\""),
    "S2": ("invergent-ai/surogate, [benchmarks.md](https://github.com/invergent-ai/surogate/blob/524fb776/docs/reference/benchmarks.md) at 524fb776 (2026-08-03; H100's figures since ebfacade, 2026-02-17), tables \"H100 80GB HBM3\" and \"RTX 5090\" (CUDA 12.9)", SUROGATE_ALL,
           "as S1: `recompute: true` is the default ([config.md](https://github.com/invergent-ai/surogate/blob/524fb776/docs/reference/config.md)). Surogate's NF4 computes in FP8 (`recipe: fp8-hybrid` of `qwen3-lora-qbnb.yaml`)"),
    "N": ("NVIDIA-NeMo/Automodel, [performance-summary.mdx](https://github.com/NVIDIA-NeMo/Automodel/blob/36044ad3/docs/performance-summary.mdx) at 36044ad3 (2026-08-22; figures since 507bfb75, 2025-12-16), DGX-H100", "2 x 4096 tokens, accumulation 16, full sequences of made-up tokens; "
          "LoRA r 16 on all linear layers (`*_proj`)", "the recipes do not set it, and the default of `activation_checkpointing` is off; no clipping of gradients"),
}
PUBLISHED = (
    Published("Surogate", "h100", "qwen3-0.6b/bf16", True, {"S1": 62_000, "S2": 53_900}), Published("Unsloth", "h100", "qwen3-0.6b/bf16", True, {"S1": 24_500, "S2": 21_300}),
    Published("Surogate", "h100", "qwen3-8b/bf16", True, {"S1": 11_600, "S2": 10_200}), Published("Unsloth", "h100", "qwen3-8b/bf16", True, {"S1": 9_100, "S2": 8_900}),
    Published("Surogate", "h100", "qwen3-8b/fp8", True, {"S1": 12_900, "S2": 11_600}),
    Published("Surogate", "h100", "qwen3-8b/nf4", True, {"S2": 9_400}), Published("Unsloth", "h100", "qwen3-8b/nf4", True, {"S1": 8_600, "S2": 8_200}),
    Published("NeMo AutoModel", "h100", "llama-3-8b/bf16", False, {"N": 12_473}), Published("NeMo AutoModel", "h100", "qwen2.5-7b/bf16", False, {"N": 14_110}),
    Published("Surogate", "rtx5090", "qwen3-0.6b/bf16", True, {"S1": 32_500, "S2": 30_100}), Published("Unsloth", "rtx5090", "qwen3-0.6b/bf16", True, {"S1": 21_700, "S2": 22_100}),
    Published("Surogate", "rtx5090", "qwen3-8b/bf16", True, {"S1": 4_200, "S2": 3_800}), Published("Unsloth", "rtx5090", "qwen3-8b/bf16", True, {"S1": 3_500, "S2": 3_500}),
    Published("Surogate", "rtx5090", "qwen3-8b/fp8", True, {"S1": 6_400, "S2": 5_400}),
    Published("Surogate", "rtx5090", "qwen3-8b/nf4", True, {"S1": 4_000, "S2": 5_000}), Published("Unsloth", "rtx5090", "qwen3-8b/nf4", True, {"S1": 3_400, "S2": 3_400}),
)
NOT_COMPARED = (  # published, and of another work than any row here
    "Megatron-Bridge (NVIDIA-NeMo/Megatron-Bridge, [performance-summary-archive.md](https://github.com/NVIDIA-NeMo/Megatron-Bridge/blob/067f987d/docs/performance-summary-archive.md) at 067f987d, 2026-08-22): Llama-3-70B with LoRA in FP8 on 8 H100, tensor 2 x pipeline 4, micro-batches of "
    "1 x 4096, 32 sequences a step: 2643 tokens/s a card. Its recipe has adapters on q, k and v alone and recomputes nothing in FP8. It publishes nothing of one card, nor of bf16 with LoRA.",
    "NeMo AutoModel, as N: Llama-3-70B on 8 H100 1092 tokens/s a card, Qwen2.5-32B 2250.",
    "Surogate's 500 and Unsloth's 16 tokens/s for Qwen3-30B-A3B on an RTX 5090: with LoRA on the experts, whose weights the recipe keeps in host memory (`qwen3moe-lora-qbnb.yaml`, 1 x 512 tokens there; the page says "
    "2 x 2048). The prediction here is of adapters in attention alone and of experts on the card.",
)
GOALS = {"qwen3-0.6b/bf16": 110_000, "qwen3-8b/bf16": 15_000, "qwen3-8b/fp8": 20_000, "qwen3-8b/nf4": 14_000}  # on an H100
# On an H100 80GB HBM3, 2026-11-26, micro-batches of 2 x 2048 tokens: what was predicted before any run, the first run, and now (bench/RESULTS.md).
MEASURED = {"qwen3-0.6b/bf16": (94_200, 69_100, 104_300), "qwen3-8b/bf16": (15_700, 14_900, 16_200), "qwen3-8b/fp8": (16_100, 17_000, 20_100),
            "qwen3-8b/nf4": (15_400, 14_100, 15_500)}
CLOSE = 1.25  # a goal that is reached by less may as well be missed: the error of such predictions


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    hidden: int
    ffn: int  # of a dense layer, or of one expert
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool = False
    sandwich: bool = False  # a norm after attention and MLP, too
    window: int = 0  # of local layers
    local: float = 0.0  # their share
    experts: int = 0
    top_k: int = 0
    sequence: int = SEQUENCE  # tokens of a packed sequence, which is one document

    @property
    def q_size(self):
        return self.heads * self.head_dim

    @property
    def kv_size(self):
        return self.kv_heads * self.head_dim

    def groups(self):
        """Linears that read the same input: name, columns read, columns written by each."""
        result = [("qkv", self.hidden, (self.q_size, self.kv_size, self.kv_size)), ("o", self.q_size, (self.hidden,))]
        if not self.experts:
            result += [("gate_up", self.hidden, (self.ffn, self.ffn)), ("down", self.ffn, (self.hidden,))]
        return result

    def linear_values(self):
        """Of a layer's linears, experts left out."""
        return sum(k * sum(ns) for _, k, ns in self.groups())

    def expert_values(self):
        return self.experts * 3 * self.hidden * self.ffn

    def active_values(self):
        """That a token is multiplied by: layers and head."""
        return self.layers * (self.linear_values() + self.top_k * 3 * self.hidden * self.ffn + self.experts * self.hidden) + self.vocab * self.hidden

    def adapter_values(self, rank=RANK):
        return self.layers * sum(rank * (k + n) for _, k, ns in self.groups() for n in ns)

    def attention_pairs(self, length=None):
        """Queries times keys of one sequence, the mean of all layers."""
        length = length or self.sequence
        causal, w = length**2 / 2, min(self.window, length)
        return causal if not self.window else (1 - self.local) * causal + self.local * (length * w - w * w / 2)

    def pairs_of(self, tokens):
        """Of a micro-batch: whole sequences, or one shorter document."""
        length = min(tokens, self.sequence)
        return tokens / length * self.attention_pairs(length)


MODELS = {
    "qwen3-0.6b": Model("Qwen3-0.6B", 1024, 3072, 28, 16, 8, 128, 151936, True, qk_norm=True),
    "qwen3-8b": Model("Qwen3-8B", 4096, 12288, 36, 32, 8, 128, 151936, False, qk_norm=True),
    "qwen3-30b-a3b": Model("Qwen3-30B-A3B", 2048, 768, 48, 32, 4, 128, 151936, False, qk_norm=True, experts=128, top_k=8),
    "llama-3-8b": Model("Llama-3-8B", 4096, 14336, 32, 32, 8, 128, 128256, False, sequence=4096),
    "qwen2.5-7b": Model("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 128, 152064, False, sequence=4096),
    "gemma-3-27b": Model("Gemma-3-27B", 5376, 21504, 62, 32, 16, 128, 262208, True, qk_norm=True, sandwich=True, window=1024, local=52 / 62),
}
CASES = ("qwen3-0.6b/bf16", "qwen3-8b/bf16", "qwen3-8b/fp8", "qwen3-8b/nf4", "qwen3-30b-a3b/nf4", "gemma-3-27b/nf4")
BASES = ("bf16", "fp8", "nf4")
STEPS = ("today", "planned")


@dataclasses.dataclass(frozen=True)
class Op:
    """One operation, done `count` times in a layer (or micro-batch, or step); FLOPs and bytes are of one."""

    name: str
    part: str
    events: dict  # kernels by the names under which the tests count them
    flops: float = 0
    read: float = 0
    write: float = 0
    compute: str = "bf16"  # its shares' names
    memory: str = "stream"
    grid: tuple = ()  # rows and columns of a product's result, and how many values each sums
    count: int = 1
    for_input: bool = False  # left out in the first layer, whose input needs no gradient
    # On the second stream: "ahead" beside the products before; "first" of a pass, which nothing hides in its first layer (forward) or last
    # one (backward); "held": left out in the layer that was last in the forward pass, whose matrices are still there
    aside: str = ""

    @property
    def starts(self):
        """Of kernels and copies."""
        return self.count * sum(self.events.values())

    @property
    def launches(self):
        return self.starts - self.count * self.events.get(COPY, 0)

    @property
    def bytes(self):
        return self.read + self.write


def wave_share(grid, sms):
    """How much of the card a product's tiles fill, by the best tile."""
    m, n, depth = grid
    splits = [(1, 1.0)] + [(split, SPLIT_RATE) for split in SPLITS if depth >= split * SPLIT_DEPTH]

    def filled(tiles):
        return tiles / (math.ceil(tiles / sms) * sms)

    return max(rate * split_rate * filled(math.ceil(m / rows) * math.ceil(n / columns) * split) for rows, columns, rate in TILES for split, split_rate in splits)


def sides(op, card, shares):
    """Seconds for the FLOPs and for the bytes of one, alone on the card."""
    peak = card.peaks[PEAK.get(op.compute, "bf16")] * shares[op.compute]
    return op.flops / peak / (wave_share(op.grid, card.sms) if op.grid else 1), op.bytes / (card.bandwidth * shares[op.memory])


def seconds(op, card, shares):
    """Of all `count`, with the start of every kernel."""
    return op.count * max(sides(op, card, shares)) + op.starts * KERNEL_START_US * US


def shown(ops, card, shares, least=SHOWN):
    """How much of the second stream's time a pass of a layer is longer by: what its products leave of bandwidth is free, multiprocessors are not."""
    beside = sum(seconds(op, card, shares) for op in ops if op.aside)
    if not beside:
        return 0.0
    alone = [op for op in ops if not op.aside]
    free = sum(seconds(op, card, shares) for op in alone) - sum(op.count * op.bytes for op in alone) / (card.bandwidth * shares["stream"])
    return min(1.0, max(least, 1 - free / beside))


def bound(op, card, shares):
    compute, memory = sides(op, card, shares)
    return "start" if max(compute, memory) < KERNEL_START_US * US else "compute" if compute >= memory else "memory"


# ---- The operations of a layer -------------------------------------------------------------------------------------------------
OURS, ATEN, FLASH = "launch sftrun::kernels::cuda::", "launch at::native::", "launch pytorch_flash::"
NT, NT_SUM, NN = "product cublasGemmEx TN", "product cublasGemmEx TN +=", "product cublasGemmEx NN"
LOW_RANK_SUM = OURS + "low_rank_sum"
ADD = ATEN + "vectorized_elementwise_kernel [CUDAFunctor_add]"
REDUCE, FILL, SCALED = ATEN + "reduce_kernel [sum_functor]", ATEN + "vectorized_elementwise_kernel [FillFunctor]", "product cublasLtMatmul TN"
UNPACK, ROUND, TURN, COPY = OURS + "dequantize_4bit", OURS + "round_to_e4m3", OURS + "transpose_codes", "copy D2D none asynchronous"
PLACED = ATEN + "elementwise_kernel [direct_copy_kernel_cuda]"  # a copy of columns
COLUMNS = 16  # the adapters' columns of a joint product are so many, or a multiple


def product(name, part, m, k, n, event, sums=False, compute="bf16", memory="stream", size=BF16, **more):
    """[m, k] times [k, n]; `sums` adds to a result that is read; operands of `size` bytes."""
    grid = () if memory in ("thin", "thin sum") else (m, n, k)
    return Op(name, part, {event: 1}, 2 * m * k * n, size * (m * k + k * n) + (BF16 * m * n if sums else 0), BF16 * m * n, compute, memory, grid, **more)


def elements(name, part, event, values, read, write, **more):
    """`values` of which each is read and written in so many bytes."""
    return Op(name, part, {event: 1}, 0, values * read, values * write, **more)


def low_rank_sum(name, t, k, n, base_product=False, **more):
    """y += low F, and y += the product of the base weights if that is still to be added."""
    op = product(name, "adapters", t, k, n, LOW_RANK_SUM, sums=True, memory="thin sum", **more)
    return dataclasses.replace(op, read=op.read + (BF16 * t * n if base_product else 0))


def norm(name, t, width, backward=False, also=0, **more):
    """`also`: bytes of a value that it writes a second time."""
    kind, read = ("rms_norm_backward", 3 * BF16) if backward else ("rms_norm_forward", BF16)
    return elements(name, "norms and elements", OURS + kind, t * width, read, BF16 + also, **more)


def joint_columns(ns, rank):
    """Of the adapters of linears that are one product."""
    return math.ceil(rank * len(ns) / COLUMNS) * COLUMNS


def unpack(name, values, **more):
    return elements(name, "unpacking", UNPACK, values, NF4, BF16, memory="unpack", **more)


def appends(base, step, name):
    """Whether [x | low] [W | sB]^T of a group is one product."""
    return base != "fp8" and (name != "o" or step == "planned")


def unpack_group(name, k, ns, aside, again="", **more):
    """A quantised group for its product."""
    for i, n in enumerate(ns):
        which = f"{name}[{i}]" if len(ns) > 1 else name
        yield unpack(f"{which}: unpack W{again}", k * n, aside=aside, **more)


ROUNDING = {"norm", "gated", "norm backward", "gated backward"}  # planned; attention and the heads' backward leave it to a kernel


def codes_written(base, step, kernel):
    """Bytes of a value in FP8 that a kernel writes beside its own, where it rounds for the product after it."""
    return FP8 if base == "fp8" and step == "planned" and kernel in ROUNDING else 0


def rounding(name, before, base, step, values, **more):
    if base == "fp8" and not codes_written(base, step, before):
        yield elements(name, "rounding to FP8", ROUND, values, 2 * BF16, FP8, **more)


BEFORE = {"qkv": "norm", "o": "attention", "gate_up": "norm", "down": "gated"}  # what writes a group's input
AFTER = {"qkv": "heads backward", "o": "norm backward", "gate_up": "gated backward", "down": "norm backward"}  # what writes its result's gradient


def linears_forward(model, base, step, t, rank=RANK):
    for name, k, ns in model.groups():
        n, r = sum(ns), joint_columns(ns, rank)
        added = name in ("o", "down") and not model.sandwich  # to the copy of x that a norm has written
        yield from rounding(f"{name}: x to FP8", BEFORE[name], base, step, t * k)
        if base == "nf4":
            aside = "first" if name == "qkv" else "ahead"
            yield from unpack_group(name, k, ns, aside)
            if appends(base, step, name):
                yield elements(f"{name}: sB beside W", "unpacking", PLACED, r * n, BF16, BF16, aside=aside)
        yield product(f"{name}: low = x A^T", "adapters", t, k, r, NT, memory="thin")
        if appends(base, step, name):
            yield product(f"{name}: [x | low] [W | sB]^T", "linears", t, k + r, n, NT_SUM if added else NT, sums=added)
            continue
        if base == "fp8":
            yield product(f"{name}: x W^T", "linears", t, k, n, SCALED, compute="fp8 forward", size=FP8)
        else:
            yield product(f"{name}: x W^T", "linears", t, k, n, NT_SUM if added else NT, sums=added)
        yield low_rank_sum(f"{name}: += low (sB)^T", t, r, n, base_product=base == "fp8" and added)
    if model.sandwich:
        yield from (residual(name, t, n) for name, n in (("o", model.hidden), ("down", model.hidden)))


def residual(name, t, n):
    return elements(f"{name}: residual", "norms and elements", ADD, t * n, 2 * BF16, BF16)


def linears_backward(model, base, step, t, rank=RANK):
    groups = model.groups()
    held = [name for name, _, _ in groups[-2:]]  # the second stream has two buffers
    for name, k, ns in groups:
        n, r, first = sum(ns), joint_columns(ns, rank), name == "qkv"
        if appends(base, step, name) and name != "o":  # done forward, in training alone; o's input is kept, low with it
            yield elements(f"{name}: low kept", "adapters", PLACED, t * r, BF16, BF16)
        if base == "nf4":
            yield from unpack_group(name, k, ns, "held" if name in held else "ahead", " again", for_input=first)
            yield elements(f"{name}: A below W", "unpacking", COPY, r * k, BF16, BF16, aside="ahead", for_input=first)
        yield product(f"{name}: d_low = dy sB", "adapters", t, n, r, NN, memory="thin")
        if base == "fp8":
            yield from rounding(f"{name}: dy to FP8", AFTER[name], base, step, t * n, for_input=first)
            yield elements(f"{name}: turn the codes", "turning FP8 codes", TURN, k * n, FP8, FP8, memory="turn",
                           aside="first" if name == groups[-1][0] else "ahead", for_input=first)
            yield product(f"{name}: dx = dy W", "linears", t, n, k, SCALED, compute="fp8 backward", size=FP8, for_input=first)
            yield low_rank_sum(f"{name}: dx += d_low A", t, r, k, for_input=first)
        else:
            yield product(f"{name}: dx = [dy | d_low] [W ; A]", "linears", t, n + r, k, NN, for_input=first)
        # dy for B's gradients, and x once for those of all A.
        sums = rank * (n + len(ns) * k)
        yield Op(f"{name}: gradients of A and B", "adapters", {OURS + "adapter_grads": 1}, 2 * t * sums, BF16 * t * (n + k), FP32 * 2 * sums,
                 memory="adapter gradients")


def attention_forward(model, t):
    both = model.q_size + model.kv_size
    yield elements("norm and rotation of heads", "norms and elements", OURS + "heads_forward", t * both, BF16, BF16)
    yield Op("FlashAttention forward", "attention", {FLASH + "flash_fwd_kernel": 1}, 4 * model.pairs_of(t) * model.q_size,
             BF16 * t * (model.q_size + 2 * model.kv_size), BF16 * t * model.q_size, "attention forward")


def attention_backward(model, t):
    q, kv = model.q_size, model.kv_size
    if model.qk_norm:
        yield elements("norm and rotation again", "norms and elements", OURS + "heads_forward", t * (q + kv), BF16, BF16)
    yield elements("FlashAttention: dO times O", "attention", FLASH + "flash_bwd_dot_do_o_kernel", t * q, 2 * BF16, FP32)  # clears dQ's sums, too
    yield Op("FlashAttention backward", "attention", {FLASH + "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel": 1},
             10 * model.pairs_of(t) * q, t * (BF16 * (2 * q + 2 * kv) + FP32 * q), t * (FP32 * q + 2 * BF16 * q), "attention backward")
    yield elements("FlashAttention: dQ to bf16", "attention", FLASH + "flash_bwd_convert_dq_kernel", t * q, FP32, BF16)
    if q != kv:
        yield Op("sums of dK and dV over shared heads", "attention", {REDUCE: 1}, 0, BF16 * t * q, BF16 * t * kv, count=2)
    read = (q + kv) * (2 if model.qk_norm else 1) + kv  # dv is copied
    yield Op("heads backward", "norms and elements", {OURS + "heads_backward": 1}, 0, BF16 * t * read, BF16 * t * (q + 2 * kv))


def small(name, launches, values=0, size=FP32, **more):
    """Elementwise operators of LibTorch that no test counts one by one."""
    return Op(name, more.pop("part", "routing"), {"launches by the source": launches}, 0, values * size, values * size, **more)


def experts_forward(model, base, t):
    rows = t * model.top_k
    yield small("router: x to fp32", 1, t * model.hidden, 3)
    yield product("router", "routing", t, model.hidden, model.experts, NT, compute="fp32", size=FP32)
    yield Op("choice of experts", "routing", {OURS + "route_tokens": 1}, 0, FP32 * t * model.experts, 2 * FP32 * rows)
    yield elements("routes sorted by expert", "routing", OURS + "sort_routes", rows, FP32, 3 * FP32)
    yield spread_rows("rows of tokens", model, t)
    for name, k, n in (("gate_up", model.hidden, 2 * model.ffn), ("down", model.ffn, model.hidden)):
        yield grouped(f"experts' {name}", model, base, rows, k, n)
        if name == "gate_up":
            yield elements("gated activation", "experts' rows", OURS + "gated_forward", rows * model.ffn, 2 * BF16, BF16)
    yield sum_rows("sum over experts", model, t, model.top_k)
    yield elements("residual", "norms and elements", ADD, t * model.hidden, 2 * BF16, BF16)


def spread_rows(name, model, t):
    """Each token's row, in the rows of its experts."""
    return Op(name, "experts' rows", {OURS + "spread_rows": 1}, 0, BF16 * t * model.hidden, BF16 * t * model.top_k * model.hidden)


def sum_rows(name, model, t, read):
    """Of `read` rows for each token."""
    return Op(name, "experts' rows", {OURS + "sum_rows": 1}, 0, BF16 * t * read * model.hidden, BF16 * t * model.hidden)


def grouped(name, model, base, rows, k, n):
    """Reads every expert once: blocks of the same expert follow each other."""
    if base == "nf4":
        return Op(name, "experts", {OURS + "grouped_tiles_4bit": 1}, 2 * rows * k * n, BF16 * rows * k + NF4 * model.experts * k * n, BF16 * rows * n, "grouped codes")
    return Op(name, "experts", {"product grouped": 2}, 2 * rows * k * n, BF16 * (rows * k + model.experts * k * n), BF16 * rows * n, "grouped")


def experts_backward(model, base, t):
    rows = t * model.top_k
    yield spread_rows("rows of dy", model, t)
    for name, k, n in (("down", model.hidden, model.ffn), ("gate_up", 2 * model.ffn, model.hidden)):
        yield grouped(f"experts' {name}, dx", model, base, rows, k, n)
        if name == "down":
            yield elements("gated activation backward, gradient of weights", "experts' rows", OURS + "weighted_gated_backward", rows * model.ffn, 3 * BF16, 2 * BF16)
    yield elements("gradient of logits", "routing", OURS + "route_tokens_backward", t * model.experts, FP32, FP32)
    yield product("router, dx", "routing", t, model.experts, model.hidden, NN, compute="fp32", size=FP32)
    yield small("router's dx to bf16", 1, t * model.hidden, 3)
    yield sum_rows("sum over experts, dx", model, t, model.top_k + 1)


def layer(model, base, step, t, rank=RANK):
    """The operations of a layer: forward, backward."""
    h, values, dense = model.hidden, t * model.ffn, not model.experts
    copy = 0 if model.sandwich else BF16  # of x, to which a product is added

    def codes(kernel):
        return codes_written(base, step, kernel)

    forward = [norm("norm before attention", t, h, also=copy + codes("norm")), norm("norm before MLP", t, h, also=copy + codes("norm") if dense else 0),
               *attention_forward(model, t), *linears_forward(model, base, step, t, rank)]
    backward = [*attention_backward(model, t), *linears_backward(model, base, step, t, rank),
                norm("norm before MLP, backward", t, h, backward=True, also=codes("norm backward")),
                norm("norm before attention, backward", t, h, backward=True, also=codes("norm backward") if dense else 0, for_input=True)]
    if model.sandwich:
        forward += [norm("norms after attention and MLP", t, h, count=2)]
        backward += [norm("norms after, backward", t, h, backward=True, count=2)]
    if model.experts:  # dense linears need no normed input again: the kernel of gradients multiplies by the norm's factors
        return forward + [*experts_forward(model, base, t)], backward + [norm("norm before MLP, again", t, h), *experts_backward(model, base, t)]
    part = "norms and elements"
    forward += [elements("gated activation", part, OURS + "gated_forward", values, 2 * BF16, BF16 + codes("gated"))]
    return forward, backward + [elements("gated activation backward, and again", part, OURS + "gated_backward", values, 3 * BF16, 3 * BF16 + 2 * codes("gated backward"))]


def passes(forward, backward, layers, checkpointing):
    """Operations of a micro-batch's layers: how often each is done, and how often of that nothing hides it."""
    times = layers * (2 if checkpointing else 1)
    for op in forward:
        yield op, times, 1 if op.aside == "first" else 0
    for op in backward:
        held = (layers if checkpointing else 1) if op.aside == "held" else 0
        yield op, layers - (1 if op.for_input else 0) - held, 1 if op.aside == "first" else 0


def around(model, t):
    """Of a micro-batch, outside its layers: embedding, head, loss."""
    h, v = model.hidden, model.vocab
    chunk = max(1024, 2**28 // v)
    chunks, part, gather = math.ceil(t / chunk), "head and loss", ATEN + "vectorized_gather_kernel"
    rows = t / chunks
    return [elements("embedding", part, gather, t * h, BF16, BF16), elements("rows with labels", part, gather, t * h, BF16, BF16),
            elements("angles of rotation", part, gather, t * model.head_dim, BF16, BF16, count=2), norm("last norm", t, h),
            norm("last norm, backward", t, h, backward=True),
            product("head", part, rows, h, v, NT, count=chunks),
            elements("cross-entropy and its gradient", part, OURS + "cross_entropy", rows * v, 2 * BF16, BF16, count=chunks),
            product("head, dx", part, rows, v, h, NN, count=chunks),
            elements("sum of losses", part, REDUCE, rows, FP32, 0, count=chunks), elements("loss of the micro-batch", part, ADD, 1, 8, 8, count=chunks),
            elements("gradient to its rows", part, ATEN + "index_elementwise_kernel [index_copy_kernel_impl]", t * h, BF16, BF16),
            elements("zeros", part, FILL, t * h, 0, BF16, count=2),
            elements("cast of labels", part, ATEN + "unrolled_elementwise_kernel [direct_copy_kernel_cuda]", t, 8, 4)]


def placed_values(model, rank=RANK):
    """Of adapters' matrices, what a step holds a second time, where its products read them: how many, and how many of it are no zeros."""
    return (model.layers * sum(joint_columns(ns, rank) * (k + sum(ns)) for _, k, ns in model.groups()),
            model.layers * sum(rank * (len(ns) * k + sum(ns)) for _, k, ns in model.groups()))


def update(model):
    """Of a step: gradients' norm, AdamW, zeros, adapters' matrices to where joint products read them."""
    values, part, (_, placed) = model.adapter_values(), "optimizer", placed_values(model)
    return [Op("norm of gradients", part, {OURS + "sum_chunk": 1, OURS + "sum_partials": 1}, 0, FP32 * values),
            elements("AdamW", part, OURS + "adamw", values, 4 * FP32, 3 * FP32 + BF16), elements("zeros", part, FILL, values, 0, FP32),
            elements("A and sB to their places", part, OURS + "copy_matrices", placed, BF16, BF16),
            Op("scalars to the host, and the update's gate", part, {ATEN + "vectorized_elementwise_kernel [sqrt_kernel_cuda]": 1, ATEN + "CatArrayBatchedCopy_alignedK_contig": 1,
                                                                   OURS + "decide_update": 1})]


# ---- Memory --------------------------------------------------------------------------------------------------------------------
def base_bytes(model, base):
    size = {"bf16": BF16, "fp8": FP8, "nf4": NF4}[base]
    embeddings = model.vocab * model.hidden * BF16 * (1 if model.tied else 2)
    return model.layers * (size * (model.linear_values() + model.expert_values()) + BF16 * model.experts * model.hidden) + embeddings


def kept_bytes(model, t, rank=RANK):
    """What a layer leaves for its backward pass."""
    linears = sum(len(ns) for _, _, ns in model.groups())
    values = 2 * model.hidden + 2 * model.q_size + 2 * model.kv_size + rank * linears + (2 * model.hidden if model.sandwich else 0)
    values += 2 * model.ffn * (model.top_k or 1) + (0 if model.experts else joint_columns((1, 1), rank))  # gate and up with room for d_low
    return t * (BF16 * values + FP32 * (2 + model.heads * 2 + model.kv_heads + model.experts) + 24 * model.top_k)


def buffer_bytes(model, base, rank=RANK):
    """Of the second stream's two, each for the widest group."""
    if base == "bf16":
        return 0
    if base == "fp8":
        return 2 * FP8 * max(k * sum(ns) for _, k, ns in model.groups())
    return 2 * BF16 * max((sum(ns) + joint_columns(ns, rank)) * (k + joint_columns(ns, rank)) for _, k, ns in model.groups())


def passing_bytes(model, base, t):
    """The most that lives within one layer's passes, or in the head's."""
    rows = t * (model.top_k or 1)
    in_layer = BF16 * (4 * rows * model.ffn + 4 * t * model.hidden) + (rows * model.hidden * (BF16 + 2 * FP32) if model.experts else 0)
    head = BF16 * (min(t, max(1024, 2**28 // model.vocab)) * model.vocab + 3 * t * model.hidden)
    return max(in_layer, head)


def peak_gib(model, base, t, checkpointing):
    adapters = model.adapter_values() * (4 * FP32 + BF16)  # master, gradient, two moments, and bf16 to compute with
    inputs = BF16 * t * model.hidden * model.layers
    kept = inputs + kept_bytes(model, t) if checkpointing else model.layers * kept_bytes(model, t)
    placed = BF16 * placed_values(model)[0]
    return (base_bytes(model, base) + adapters + kept + passing_bytes(model, base, t) + buffer_bytes(model, base) + placed) * FRAGMENTS / GIB + CONTEXT_GIB


def fitting(model, base, card, recompute=None):
    """Sequences of the largest micro-batch that fits, and whether it has gradient checkpointing; none fits: None.   @param recompute None: where it is needed"""
    for micro_batch in (MICRO_BATCH, 1):
        for checkpointing in (False, True) if recompute is None else (recompute,):
            if peak_gib(model, base, micro_batch * model.sequence, checkpointing) <= card.memory_gib:
                return micro_batch, checkpointing
    return None


# ---- A step --------------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Settings:
    host_us: float = HOST_US
    graphs: bool = False  # CUDA graphs: no launch by the host
    tokens: int = 0  # of a micro-batch, in one document; 0: the sequences that fit
    shares: tuple = ()  # (kind, share) in place of the card's
    shown: float = SHOWN
    recompute: bool | None = None  # gradient checkpointing; None: where a micro-batch does not fit without
    without: tuple = ()  # parts, and kinds of access to memory, that are taken to cost nothing

    def counts(self, op):
        return op.part not in self.without and op.memory not in self.without


def passed(model, base, step, t, checkpointing, settings, card, shares):
    """Operations of a micro-batch: how often, and the seconds that it is longer by for them."""
    forward, backward = ([op for op in ops if settings.counts(op)] for ops in layer(model, base, step, t))
    of_aside = {op.name: shown(ops, card, shares, settings.shown) for ops in (forward, backward) for op in ops if op.aside}
    for op, times, in_full in passes(forward, backward, model.layers, checkpointing):
        weight = (times - in_full) * of_aside[op.name] + in_full if op.aside else times
        yield op, times, weight * seconds(op, card, shares)
    yield from ((op, 1, seconds(op, card, shares)) for op in around(model, t) if settings.counts(op))


def predict(card, case, step, settings=Settings()):
    """A prediction of tokens/s and of what it is made of; `fits` is False where no micro-batch does."""
    name, base = case.split("/")
    model = MODELS[name]
    plan = fitting(model, base, card, settings.recompute)
    result = {"prediction": True, "card": card.name, "model": model.name, "base": base, "step": step, "fits": plan is not None}
    if plan is None:
        return result | {"needs_gib": peak_gib(model, base, model.sequence, settings.recompute is not False)}
    micro_batch, checkpointing = plan
    t, accum = settings.tokens or micro_batch * model.sequence, ACCUM * MICRO_BATCH // micro_batch
    shares = card.shares | dict(settings.shares)
    rows = passed(model, base, step, t, checkpointing, settings, card, shares)  # operation, how often in a micro-batch, seconds
    rows = [(op, accum * times, accum * taken) for op, times, taken in rows]
    updates = [op for op in update(model) if settings.counts(op)]
    rows += [(op, 1, seconds(op, card, shares)) for op in updates]
    parts, by_bound = collections.Counter(), collections.Counter()
    for op, _, taken in rows:
        parts[op.part] += taken
        by_bound[bound(op, card, shares)] += taken
    device, launches = sum(parts.values()), sum(op.launches * times for op, times, _ in rows)
    host = sum(op.starts * times for op, times, _ in rows) * settings.host_us * US
    busy = device if settings.graphs else max(device, host)
    total = busy + WAIT_US * US  # one a step
    tokens = accum * t
    useful = tokens * 4 * model.active_values() + accum * model.layers * 14 * model.pairs_of(t) * model.q_size
    is_host = busy > device * 1.001
    return result | {
        "predicted_tokens_per_s": tokens / total, "predicted_step_s": total, "micro_batch": micro_batch, "grad_accum": accum, "checkpointing": checkpointing,
        "predicted_peak_gib": peak_gib(model, base, t, checkpointing), "launches_per_micro_batch": (launches - sum(op.launches for op in updates)) / accum,
        "predicted_device_s": device, "predicted_host_s": 0.0 if settings.graphs else host, "waits": 1, "bound_by": "host" if is_host else by_bound.most_common(1)[0][0],
        "bound_share": by_bound.most_common(1)[0][1] / device, "utilisation": useful / total / card.peaks["bf16"], "predicted_parts_s": dict(parts.most_common()),
        "rows": [{"name": op.name, "part": op.part, "times": op.count * times, "launches": op.launches * times, "flops": op.flops, "read": op.read, "write": op.write,
                  "predicted_s": taken, "bound": bound(op, card, shares)} for op, times, taken in rows]}


# ---- Comparison with counts ----------------------------------------------------------------------------------------------------
# The layer that the tests count: a Llama without norms of queries and keys, keys and values shared by two heads.
COUNTED = Model("counted", 256, 512, 2, 4, 2, 64, 98, False)
COUNTED_TOKENS = 512  # any number that is one chunk of logits


def launches_in(events):
    return {event: times for event, times in events.items() if event.startswith(("launch ", "product "))}


def events_of(ops):
    total = collections.Counter()
    for op in ops:
        for event, times in op.events.items():
            total[event] += times * op.count
    return dict(total)


COUNTED_CASES = {"LoRA, 1 device": ("bf16", False), "nf4, 1 device": ("nf4", False), "fp8, 1 device": ("fp8", False), "gradient checkpointing, 1 device": ("bf16", True)}
ALWAYS_COUNTED = ("LoRA, 1 device", "nf4, 1 device")  # the others by `--all`


def counted_parts(base, step, checkpointing):
    """Operations by the names of the tests' tables."""
    def times(op, number):
        return dataclasses.replace(op, count=op.count * number)

    forward, backward = layer(COUNTED, base, step, COUNTED_TOKENS)
    again = forward if checkpointing else []
    micro_batch = [times(op, number) for op, number, _ in passes(forward, backward, COUNTED.layers, checkpointing)]
    return {"layer, forward": forward, "layer, backward": again + backward, "layer, forward and backward": forward + again + backward,
            "micro-batch": micro_batch + around(COUNTED, COUNTED_TOKENS), "step without them": update(COUNTED)}


def count_failures(tables, step="today"):
    """What differs between the model's launches of a step and what the tests counted; kernel by kernel."""
    for title, (base, checkpointing) in COUNTED_CASES.items():
        if title not in tables:
            if title in ALWAYS_COUNTED:
                yield f"{title}: not in the counts"
            continue
        for part, ops in counted_parts(base, step, checkpointing).items():
            counted, modelled = launches_in(tables[title].get(part, {}).get("events", {})), launches_in(events_of(ops))
            for event in sorted({*counted, *modelled}):
                if counted.get(event, 0) != modelled.get(event, 0):
                    yield f"{title}, {part}: {counted.get(event, 0):g} counted, {modelled.get(event, 0)} modelled: {event}"


# ---- Text ----------------------------------------------------------------------------------------------------------------------
def thousands(value):
    return f"{value / 1000:.1f}k" if value >= 100 else f"{value:.0f}"


def table(head, rows):
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def label(case):
    name, base = case.split("/")
    return f"{MODELS[name].name}, {base.upper() if base != 'bf16' else base}"


def bound_text(result):
    if result["bound_by"] == "host":
        return f"host: {result['predicted_host_s'] * 1e3 / result['grad_accum']:.0f} ms of launches beside {result['predicted_device_s'] * 1e3 / result['grad_accum']:.0f}"
    return f"{result['bound_by']} {result['bound_share']:.0%}"


def memory_text(result, card):
    tight = ", tight" if result["predicted_peak_gib"] > 0.95 * card.memory_gib else ""
    return f"{result['predicted_peak_gib']:.1f} GiB{tight}; {result['micro_batch']}{', checkpointing' if result['checkpointing'] else ''}"


def prediction_rows(cards, cases, settings):
    for case in cases:
        for card in cards:
            today, planned = (predict(card, case, step, settings) for step in STEPS)
            if not planned["fits"]:
                yield [label(case), card.name, "does not fit", f"needs {planned['needs_gib']:.0f} GiB", "", "", ""]
                continue
            before = thousands(today["predicted_tokens_per_s"]) if today["fits"] else "does not fit"
            yield [label(case), card.name, before, thousands(planned["predicted_tokens_per_s"]), f"{planned['utilisation']:.0%}",
                   memory_text(planned, card), bound_text(planned)]


def part_rows(card, cases, settings):
    for case in cases:
        for step in STEPS:
            result = predict(card, case, step, settings)
            if result["fits"]:
                per = result["grad_accum"]
                parts = [f"{name} {s / per / MS:.1f}" for name, s in result["predicted_parts_s"].items() if s / result["predicted_device_s"] >= 0.02]
                yield [label(case), step, f"{result['launches_per_micro_batch']:.0f}", f"{result['predicted_host_s'] / per / MS:.1f}",
                       f"{result['predicted_device_s'] / per / MS:.1f}", ", ".join(parts)]


FLASH_3 = (("attention forward", 521 / 989), ("attention backward", 400 / 989))
BEST_PRODUCTS = ("bf16", 0.80)


def levers(case):
    """What could be done beyond the planned step, each on top of those before."""
    base = case.split("/")[1]
    yield "attention at FlashAttention 3's rate (521 TFLOP/s forward; 400 backward, assumed)", {"shares": FLASH_3}
    if base == "fp8":
        yield "no rounding by itself after attention and before q, k, v in the backward pass", {"without": ("rounding to FP8",)}
        yield "the adapter's part summed inside the product", {"without": ("thin sum",)}
    if base == "nf4":
        yield "unpacking inside the products", {"without": ("unpacking",)}
    yield "thin products and adapters' gradients at 90% of bandwidth", {"shares": (("thin", 0.90), ("adapter gradients", 0.90))}
    yield "dense products at 80% of peak", {"shares": (BEST_PRODUCTS,)}


def goal_text(case, goal, settings, today, planned):
    """Whether a goal is reached; if measurements do not say so, by the model."""
    if MEASURED[case][-1] >= goal:
        return "reached: measured"
    if planned >= goal:
        reached = "reached by today's step" if today >= goal else "reached by the planned step"
        return reached + (f", by less than the error of a prediction ({CLOSE - 1:.0%})" if planned < CLOSE * goal else "")
    best, shares, without, takes = planned, settings.shares, settings.without, []
    for text, change in levers(case):
        shares, without = shares + change.get("shares", ()), without + change.get("without", ())
        best = predict(CARDS["h100"], case, "planned", dataclasses.replace(settings, shares=shares, without=without))["predicted_tokens_per_s"]
        takes.append(f"{text}: {thousands(best)}")
        if best >= goal:
            break
    end = f"; **{best / goal:.0%} of the goal with all of it**" if best < goal else f" ({best / goal - 1:.1%} above the goal, less than the error of a prediction)"
    return f"**not reached with {MICRO_BATCH} x {SEQUENCE} tokens.** It takes " + "; then ".join(takes) + end


def goal_rows(settings):
    """On an H100."""
    for case, goal in GOALS.items():
        today, planned = (predict(CARDS["h100"], case, step, settings)["predicted_tokens_per_s"] for step in STEPS)
        yield [label(case), thousands(goal), thousands(MEASURED[case][-1]), thousands(today), thousands(planned), f"{today / goal:.0%}, {planned / goal:.0%}",
               goal_text(case, goal, settings, today, planned)]


def published_rows(settings):
    """Others' figures, and predictions of today's step for the same shape with and without recomputation; the ratio is to the one that recomputes as they do."""
    for row in PUBLISHED:
        at = {recompute: predict(CARDS[row.card], row.case, "today", dataclasses.replace(settings, recompute=recompute)) for recompute in (True, False)}
        measured = thousands(MEASURED[row.case][-1]) if row.card == "h100" and row.case in MEASURED else ""
        speeds = {recompute: of["predicted_tokens_per_s"] if of["fits"] and of["micro_batch"] == MICRO_BATCH else None for recompute, of in at.items()}
        texts = [thousands(speeds[recompute]) if speeds[recompute] else "does not fit" for recompute in (True, False)]
        like, best = speeds[row.recomputes], max(row.tokens_per_s.values())
        figures = ", ".join(f"{thousands(speed)} ({source})" for source, speed in row.tokens_per_s.items())
        yield [CARDS[row.card].name, label(row.case), row.who, figures, "yes" if row.recomputes else "no", *texts, f"{like / best:.2f}" if like else "", measured]


def published_text(settings):
    yield from ("", "### Published by others: one card, LoRA, tokens/s",
                "None of these was measured beside sftrun, on the same machine or with the same data. \"With\" and \"without\" are predictions of today's step at the published shape, with "
                "gradient checkpointing of every layer and without, for full sequences of one document each. The ratio compares the prediction that recomputes as the published figure does with the higher one "
                f"published; errors of a prediction are up to a quarter. Measured: without recomputation, {MICRO_BATCH} x {SEQUENCE} tokens.", "")
    yield from table(["card", "model and base", "who", "published", "recomputes", "with, predicted", "without, predicted", "predicted / published", "measured"], published_rows(settings))
    yield ""
    yield from (f"- {key}: {where}. {work[0].upper()}{work[1:]}. Recomputation: {known}." for key, (where, work, known) in SOURCES.items())
    yield "- S1 and S2 describe the same work at two dates. They differ by up to a quarter, and neither says why."
    yield from (f"- Not compared: {line}" for line in NOT_COMPARED)


def host_limit(card, cases, step):
    """The host's time for a launch above which it would bound the step, the least of all cases."""
    found = {case: predict(card, case, step) for case in cases}
    limits = {case: result["predicted_device_s"] / result["grad_accum"] / result["launches_per_micro_batch"] for case, result in found.items() if result["fits"]}
    case = min(limits, key=limits.get)
    return f"{limits[case] / US:.0f} µs ({label(case)}, {step})"


def sensitivity_rows(settings):
    """On an H100, planned step: one assumption changed, for the four cases with goals."""
    card = CARDS["h100"]
    changes = [("as assumed", {}), ("CUDA graphs", {"graphs": True}), ("attention at FlashAttention 3's rate", {"shares": FLASH_3}), ("the second stream hides nothing", {"shown": 1.0}),
               ("products in bf16 at 65%", {"shares": (("bf16", 0.65),)}), ("FP8 at 55% forward, 60% backward", {"shares": (("fp8 forward", 0.55), ("fp8 backward", 0.60))}),
               ("rows and elements at 70% of bandwidth", {"shares": (("stream", 0.70),)}),
               ("bandwidth of thin products, unpacking, turning and adapter gradients halved",
                {"shares": tuple((kind, card.shares[kind] / 2) for kind in ("thin", "thin sum", "unpack", "turn", "adapter gradients"))})]
    for text, change in changes:
        yield [text, *(thousands(predict(card, case, "planned", dataclasses.replace(settings, **change))["predicted_tokens_per_s"]) for case in GOALS)]


def assumption_rows():
    for kind, reason in REASONS.items():
        hopper, geforce = CARDS["h100"].shares[kind], CARDS["rtx4090"].shares[kind]
        yield [kind, f"{hopper:.0%}", f"{geforce:.0%}", reason]


def measured_rows(settings):
    for case, (before, first, now) in MEASURED.items():
        today = predict(CARDS["h100"], case, "today", settings)["predicted_tokens_per_s"]
        yield [label(case), thousands(before), thousands(first), f"{before / first:.2f}", thousands(now), thousands(today), f"{today / now:.2f}"]


SMALL, SMALL_CASES = (64, 128, 256, 512, 1024, 2048), ("qwen3-0.6b/bf16", "qwen3-8b/bf16", "qwen3-8b/nf4")


def small_rows(settings):
    for tokens in SMALL:
        row = [f"{tokens}"]
        for case in SMALL_CASES:
            of = [predict(CARDS["h100"], case, "today", dataclasses.replace(settings, tokens=tokens, graphs=graphs)) for graphs in (False, True)]
            row += [thousands(result["predicted_tokens_per_s"]) for result in of]
        yield row


def render(cards, cases, settings):
    head = ["model and base", "card", "today, predicted", "planned, predicted", "of bf16 peak", "peak memory; micro-batch", "bound by (share of the device's time)"]
    lines = ["**Every figure here that is not called measured is a prediction of scripts/gpu/model.py.** Most of its shares of Hopper's peaks were measured on one H100; the reasons below say which. Tokens/s of one card; the last three columns are of the planned step:", "",
             *table(head, prediction_rows(cards, cases, settings))]
    if CARDS["h100"] in cards:
        limits = " and ".join(host_limit(CARDS["h100"], cases, step) for step in STEPS)
        lines += ["", "### Measured on an H100, and how far predictions were, tokens/s",
                  *table(["model and base", "predicted before any run", "measured, first run", "prediction / first run", "measured now", "predicted now", "predicted / measured now"],
                         measured_rows(settings))]
        lines += ["", "### Predicted parts of a micro-batch on an H100, ms", f"Parts below 2% are left out. The host would bound a step above {limits} for a launch.", "",
                  *table(["model and base", "step", "launches", "host", "device", "of it"], part_rows(CARDS["h100"], cases, settings)),
                  "", "### Goals on an H100, tokens/s",
                  *table(["model and base", "goal", "measured", "today, predicted", "planned, predicted", "today, planned / goal", "whether it is reached"], goal_rows(settings)),
                  *published_text(settings),
                  "", "### What the predictions depend on: H100, planned, predicted tokens/s", *table(["changed", *map(label, GOALS)], sensitivity_rows(settings))]
        lines += ["", "### Small micro-batches on an H100: CUDA graphs, predicted tokens/s",
                  "Of one document each. [cuda-graphs.md](cuda-graphs.md) says which of them are captured.",
                  *table(["tokens", *[f"{label(case)}: {how}" for case in SMALL_CASES for how in ("queued", "graphs")]], small_rows(settings))]
    lines += ["", "### Assumed: attainable shares of peak or bandwidth", *table(["kind", "H100, H200", "RTX", "reason"], assumption_rows())]
    cards_text = "; ".join(
        f"{c.name} {c.peaks['bf16'] / 1e12:.0f} / {c.peaks['fp8'] / 1e12:.0f} / {c.peaks['fp32'] / 1e12:.0f}, {c.bandwidth / 1e12:.4g}, {c.memory_gib}, {c.sms}" for c in CARDS.values())
    lines += ["", "### Assumed: the rest",
              f"- Work: {MICRO_BATCH} packed sequences of {SEQUENCE} tokens a micro-batch, each one document, every position labelled; "
              f"{ACCUM} micro-batches a step; LoRA r {RANK} on all linear layers (of Qwen3-30B-A3B "
              "attention alone: `all-linear` is without experts), scale not 1, no dropout; embedding and head in bf16.",
              f"- Cards (TFLOP/s bf16 / FP8 / fp32, sums in fp32; TB/s; GiB; multiprocessors): {cards_text}.",
              f"- {HOST_US:g} µs of the host for a launch; {KERNEL_START_US:g} µs of the device for the start of a kernel; {WAIT_US:g} µs for a wait: "
              f"one a step. {SHOWN:.0%} of what the second stream does (unpacking, turning of codes) is taken to show, more where bandwidth is short, all of the first of a pass: a guess. "
              "A product's tiles (rows x columns: rate): " + ", ".join(f"{m} x {n}: {rate:.0%}" for m, n, rate in TILES) +
              f"; split in up to {SPLITS[-1]} of {SPLIT_DEPTH} values or more at {SPLIT_RATE:.0%}; what fills the multiprocessors best counts. "
              f"Memory: what is held and kept, times {FRAGMENTS}, and {CONTEXT_GIB:g} GiB of CUDA's own; NF4 {8 * NF4:.3f} bits a value."]
    return "\n".join(lines)


def rows_text(result):
    lines = [f"{result['card']}, {result['model']}, {result['base']}, {result['step']}: PREDICTION, of a step, not measured",
             f"{'ms':>9} {'launches':>8} {'GFLOP':>9} {'MB':>9} {'x':>5}  bound    operation (GFLOP and MB of one)"]
    for row in sorted(result["rows"], key=lambda row: -row["predicted_s"]):
        lines.append(f"{row['predicted_s'] / MS:9.2f} {row['launches']:8d} {row['flops'] / 1e9:9.2f} "
                     f"{(row['read'] + row['write']) / 1e6:9.2f} {row['times']:5d}  {row['bound']:8} {row['name']}")
    return "\n".join([*lines, f"predicted: {result['predicted_tokens_per_s']:.0f} tokens/s, bound by {bound_text(result)}"])


def chosen(names, known, what):
    for name in names:
        if name not in known:
            sys.exit(f"error: unknown {what} `{name}`\n  fix: choose of {', '.join(known)}")
    return list(names) or list(known)


def parse_arguments(argv):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--card", action="append", default=[], metavar="NAME", help=f"of {', '.join(CARDS)} [all]")
    parser.add_argument("--model", action="append", default=[], metavar="NAME/BASE", help=f"of {', '.join(CASES)} [all]")
    parser.add_argument("--host-us", type=float, default=HOST_US, help="host's time for a launch [%(default)s]")
    parser.add_argument("--graphs", action="store_true", help="as if CUDA graphs launched everything")
    parser.add_argument("--rows", action="store_true", help="every operation of both steps")
    parser.add_argument("--json", action="store_true", help="predictions with their operations as JSON")
    parser.add_argument("--counts", type=pathlib.Path, metavar="FILE", help="compare launches per layer with what the tests counted")
    parser.add_argument("--counted-step", choices=STEPS, default="today", help="which step --counts compares [%(default)s]")
    parser.add_argument("--write", action="store_true", help="put the tables into the document")
    parser.add_argument("--document", type=pathlib.Path, default=DOCUMENT)
    return parser.parse_args(argv)


def main(argv=None):
    arguments = parse_arguments(argv)
    cards = [CARDS[name] for name in chosen(arguments.card, CARDS, "card")]
    cases = chosen(arguments.model, CASES, "model")
    settings = Settings(arguments.host_us, arguments.graphs)
    if arguments.counts:
        try:
            tables = json.loads(arguments.counts.read_text())
        except (OSError, ValueError) as error:
            sys.exit(f"error: cannot read counts: {error}\n  fix: tests/cuda/runtime/runtime_test.py --only counts --counts FILE writes them")
        failures = list(count_failures(tables, arguments.counted_step))
        print("\n".join(f"FAILED: {line}" for line in failures) or "launches per layer: the model's are those counted")
        return 1 if failures else 0
    if arguments.write:
        if arguments.card or arguments.model or settings != Settings():
            sys.exit("error: --write writes the tables of all cards and models as assumed\n  fix: leave the other options out")
        before, begin, rest = arguments.document.read_text().partition(BEGIN)
        _, end, after = rest.partition(END)
        if not end:
            sys.exit(f"error: {arguments.document.name} has no `{BEGIN}` with `{END}` after it")
        part = arguments.document.with_suffix(".part")
        part.write_text(f"{before}{begin}\n{render(list(CARDS.values()), CASES, settings)}\n{end}{after}")
        part.replace(arguments.document)
        return 0
    if arguments.json or arguments.rows:
        results = [predict(card, case, step, settings) for case in cases for card in cards for step in STEPS]
        print(json.dumps(results, indent=1) if arguments.json else "\n\n".join(rows_text(r) for r in results if r["fits"]))
        return 0
    print(render(cards, cases, settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
