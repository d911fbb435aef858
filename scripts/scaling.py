#!/usr/bin/env python3
"""Writes the tables of docs/scaling.md: memory and speed of several GPUs, computed, beside the numbers that guides claim.

    scripts/scaling.py --sftrun build/bin/sftrun            # prints them
    scripts/scaling.py --sftrun build/bin/sftrun --write    # puts them into the document

No number of a GPU here is measured. Memory is what `sftrun memory-check` plans (scripts/planned_memory.py). The time of one card is that of
scripts/gpu/model.py. Between cards a collective takes
latency x hops + bytes / bandwidth, with the bytes of the table in docs/parallelism.md. bench/collectives.json has times of Gloo on a CPU, which
test the form of that model. Standard library only.
"""

import argparse
import dataclasses
import importlib.util
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/scaling.md"
MEASURED = ROOT / "bench/collectives.json"
BEGIN, END = "<!-- scaling.py: begin -->\n", "<!-- scaling.py: end -->\n"



def _module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


gpu = _module("gpu_model", ROOT / "scripts/gpu/model.py")
planned = _module("planned_memory", ROOT / "scripts/planned_memory.py")

GIB, GB = 2**30, 1e9
BF16, FP32 = 2, 4
TRAINED_BYTES = FP32 + BF16 + FP32 + 2 * FP32  # of a trained value: master, copy to compute with, gradient, AdamW's two moments
SEQUENCE = gpu.SEQUENCE
CARDS_OF_MACHINE = 8

LLAMA_70B = gpu.Model("Llama-3.1-70B", 8192, 28672, 80, 64, 8, 128, 128256, False)
LLAMA_1B = gpu.Model("Llama-3.2-1B", 2048, 8192, 16, 32, 8, 64, 128256, True)
QWEN_7B = gpu.Model("Qwen2.5-7B", 3584, 18944, 28, 28, 4, 128, 152064, False)
QWEN_14B = gpu.Model("Qwen2.5-14B", 5120, 13824, 48, 40, 8, 128, 152064, False)
GEMMA_27B = gpu.MODELS["gemma-3-27b"]


# ---- Links ---------------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Link:
    name: str
    bandwidth: float  # bytes/s of a card, one direction, attainable
    latency: float  # seconds of a hop
    reason: str


PCIE4 = Link("PCIe 4.0 x16 through the host", 10 * GB, 20e-6, "32 GB/s by the standard; GeForce has no direct copies, so each byte crosses the host: an assumption")
NVLINK4 = Link("NVLink 4", 340 * GB, 10e-6, "450 GB/s in each direction, at 75%: an assumption")
INFINIBAND = Link("InfiniBand NDR, a port for each card", 42 * GB, 15e-6, "50 GB/s, at 85%: an assumption")


def all_reduce_seconds(size, cards, link):
    """A ring: each card sends 2 (n - 1) / n of the bytes, in 2 (n - 1) hops."""
    return 2 * (cards - 1) * link.latency + 2 * (cards - 1) / cards * size / link.bandwidth


def gather_seconds(size, cards, link):
    """An all-gather, or a reduce-scatter, of `size` bytes altogether: half of an all-reduce."""
    return all_reduce_seconds(size, cards, link) / 2


# ---- One card, and several -----------------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Work:
    model: object
    base: str
    card: str
    tokens: int  # of a micro-batch
    grad_accum: int
    checkpointing: bool = True

    def micro_batch_seconds(self):
        card = gpu.CARDS[self.card]
        return sum(taken for _, _, taken in gpu.passed(self.model, self.base, "today", self.tokens, self.checkpointing, gpu.Settings(), card, card.shares))

    def exchange(self, strategy, cards, link):
        """Seconds of communication: in a micro-batch, and in a step."""
        trained, units = self.model.adapter_values(), self.model.layers + 2
        if strategy == "ddp":
            return 0.0, all_reduce_seconds(FP32 * trained, cards, link)
        if strategy == "fsdp":
            gathered = gpu.base_bytes(self.model, self.base) + FP32 * trained
            latency = (3 * units - 1) * (cards - 1) * link.latency  # each unit has collectives of its own; one is counted below
            return latency + 2 * gather_seconds(gathered, cards, link) + gather_seconds(FP32 * trained, cards, link) - 2 * (cards - 1) * link.latency, 0.0
        if strategy == "hybrid":  # a machine of 8 cards with NVLink divides the model; machines exchange what a card owns
            each, _ = self.exchange("fsdp", CARDS_OF_MACHINE, NVLINK4)
            return each, all_reduce_seconds(FP32 * trained / CARDS_OF_MACHINE, cards // CARDS_OF_MACHINE, link)
        raise ValueError(strategy)

    def step_seconds(self, strategy, cards, link):
        """@return the shortest, with all communication beside the computation, and the longest, with none"""
        compute = self.micro_batch_seconds()
        each, once = self.exchange(strategy, cards, link) if cards > 1 else (0.0, 0.0)
        return max(self.grad_accum * max(compute, each), once), self.grad_accum * (compute + each) + once

    def tokens_per_second(self, strategy, cards, link):
        """@return (lowest, highest)"""
        shortest, longest = self.step_seconds(strategy, cards, link)
        count = cards * self.grad_accum * self.tokens
        return count / longest, count / shortest

    def speedup(self, strategy, cards, link):
        one = self.tokens_per_second("ddp", 1, link)[0]
        return tuple(rate / one for rate in self.tokens_per_second(strategy, cards, link))


# ---- Memory --------------------------------------------------------------------------------------------------------------------
COLUMNS = ("base", "adapter and its state", "gathered", "activations", "layer or head", "unpacked", "NCCL and CUDA", "margin")


def purposes(plan):
    """Bytes of a plan of `sftrun memory-check`, in the order of COLUMNS; their sum is what a card should have."""
    parts = plan["parts"]
    return (parts["base"], parts["trainable"] + parts["gradients"] + parts["optimizer"], parts["gathered"], parts["activations"],
            max(parts["layer_backward"], parts["head"]), parts["workspace"], parts["communication"] + parts["context"], parts["margin"])


def gib(size):
    return f"{size / GIB:.1f}"


# ---- Tables --------------------------------------------------------------------------------------------------------------------
def table(header, rows):
    return "".join("| " + " | ".join(map(str, row)) + " |\n" for row in [header, ["---"] * len(header), *rows])


def headline_table(planner):
    rows = []
    on_host, small_ends = "parallel.offload.activations=cpu", "tuning.quant_embeddings=true"
    ways = {"fsdp": ("fsdp",), "fsdp, inputs on the host": ("fsdp", on_host), "fsdp, inputs on the host, ends in NF4": ("fsdp", on_host, small_ends),
            "tp 2": ("tensor",), "tp 2, inputs on the host": ("tensor", on_host), "tp 2, inputs on the host, ends in NF4": ("tensor", on_host, small_ends)}
    for name, (strategy, *settings) in ways.items():
        for tokens in (512, 1024, 2048, 4096):
            plan = planner.plan(LLAMA_70B.name, "2x RTX4090", tokens, f"parallel.strategy={strategy}", planned.CHECKPOINTED, *settings)
            missing = plan["needed_bytes"] - plan["device"]["memory_bytes"]
            rows.append([name, tokens, *map(gib, purposes(plan)), gib(plan["needed_bytes"]), "yes" if plan["fits"] else f"no, by {gib(missing)}"])
    return table(["way", "tokens", *COLUMNS, "together", "fits 23.5 GiB"], rows)


def headline_speed_table():
    rows = []
    for tokens in (512, 1024, 2048, 4096):
        work = Work(LLAMA_70B, "nf4", "rtx4090", tokens, 1)
        compute = work.micro_batch_seconds()
        each, _ = work.exchange("fsdp", 2, PCIE4)
        # Two all-reduces for each layer and direction; recomputation repeats those of the forward pass.
        summed = 6 * LLAMA_70B.layers * all_reduce_seconds(BF16 * tokens * LLAMA_70B.hidden, 2, PCIE4)
        fsdp = sorted((2 * tokens / (compute + each), 2 * tokens / max(compute, each)))
        rows.append([tokens, f"{compute:.1f}", f"{each:.1f}", f"{fsdp[0]:.0f} to {fsdp[1]:.0f}", f"{compute / 2:.1f}", f"{summed:.1f}", f"{tokens / (compute / 2 + summed):.0f}"])
    return table(["tokens of a micro-batch", "fsdp: compute, s", "exchange, s", "tokens/s, both cards", "tp 2: compute, s", "exchange, s", "tokens/s, both cards"], rows)


def fit(points):
    """Least squares of relative errors. @return latency, bytes/s"""
    w = [(1 / seconds, size / seconds) for size, seconds in points]
    aa, ab, bb = (sum(x * y for x, y in pairs) for pairs in ([(a, a) for a, _ in w], w, [(b, b) for _, b in w]))
    ya, yb = sum(a for a, _ in w), sum(b for _, b in w)
    determinant = aa * bb - ab * ab
    return (ya * bb - yb * ab) / determinant, determinant / (yb * aa - ya * ab)


def measured_table():
    data = json.loads(MEASURED.read_text())
    rows = []
    for collective in ("all-reduce", "all-gather"):
        for processes in (2, 4):
            hops, share = ((2, 2) if collective == "all-reduce" else (1, 1))
            hops, share = hops * (processes - 1), share * (processes - 1) / processes
            points = [(share * row["bytes"], row["seconds"]) for row in data["rows"] if row["collective"] == collective and row["processes"] == processes]
            latency, bandwidth = fit(points[::2])
            errors = [(latency + size / bandwidth) / seconds - 1 for size, seconds in points[1::2]]
            rows.append([collective, processes, f"{latency / hops * 1e6:.0f}", f"{bandwidth / GB:.1f}", f"{min(errors):+.0%} to {max(errors):+.0%}"])
    machine = data["machine"]
    note = f"\nMachine: {machine['cores']} cores, torch {machine['torch']}, load average {machine['load']} from other work, {machine['date']}.\n"
    return table(["collective", "processes", "µs of a hop", "GB/s sent by a process", "error of the sizes that were not fitted"], rows) + note


def links_table():
    return table(["link", "GB/s", "µs of a hop", "why"], [[link.name, f"{link.bandwidth / GB:.0f}", f"{link.latency * 1e6:.0f}", link.reason] for link in (PCIE4, NVLINK4, INFINIBAND)])


def between(pair, digits=1):
    low, high = (f"{value:.{digits}f}" for value in pair)
    return low if low == high else f"{low} to {high}"


def speed_table():
    cases = [(Work(LLAMA_1B, "nf4", "rtx4090", 2 * SEQUENCE, 4), PCIE4), (Work(QWEN_7B, "nf4", "rtx4090", 2 * SEQUENCE, 4), PCIE4), (Work(GEMMA_27B, "nf4", "h100", 2 * SEQUENCE, 4), NVLINK4),
             (Work(LLAMA_70B, "nf4", "h200", 2 * SEQUENCE, 4), NVLINK4), (Work(LLAMA_70B, "nf4", "h100", 2 * SEQUENCE, 4), INFINIBAND)]
    rows = []
    for work, link in cases:
        for cards in (2, 4, 8, 512):
            if cards == 512 and link is not INFINIBAND:
                continue
            strategies = ("ddp", "fsdp", "hybrid") if cards > CARDS_OF_MACHINE else ("ddp", "fsdp")
            figures = [between(work.speedup(strategy, cards, link), 2 if cards < 100 else 0) for strategy in strategies]
            rows.append([work.model.name, gpu.CARDS[work.card].name, link.name, cards, *figures, *[""] * (3 - len(figures))])
    return table(["QLoRA of", "card", "link", "cards", "ddp: times one card", "fsdp", "hybrid, 8 cards with NVLink a machine"], rows)


# ---- The guides' numbers -------------------------------------------------------------------------------------------------------
def rates(work, cards, link, strategy="ddp"):
    low, high = work.tokens_per_second(strategy, cards, link)
    return f"{between((low / 1000, high / 1000))}k tokens/s"


def times(work, strategy, link, *cards):
    return ", ".join(f"{count}: {between(work.speedup(strategy, count, link), 2)}" for count in cards)


def claims(planner):
    """Guide, what it says, our figure, and what to make of the difference."""
    world_state = 4.4e9 * TRAINED_BYTES / GB
    small = Work(LLAMA_1B, "nf4", "rtx4090", 2 * SEQUENCE, 4)
    oss_bytes = 20.9e9
    sft = [(QWEN_7B, "rtx4090", 2, PCIE4, 6, 1536, "~18 GB, 1200 tokens/s"), (GEMMA_27B, "h100", 2, NVLINK4, 8, SEQUENCE, "~65 GB, 800 tokens/s"),
           (LLAMA_70B, "h200", 4, NVLINK4, 16, 4096, "~120 GB, 600 tokens/s")]
    yield "TheWorld", "full, 4.4B: 60 to 65 GB", f"{world_state:.1f} GB + activations", "their sum is right, for weights and gradients in bf16 alone. Ours keeps fp32 masters and gradients"
    yield "TheWorld", "projection, 82M: 17 to 21 GB", f"{8.8 + .082 * TRAINED_BYTES:.1f} GB + activations", "theirs: 8.8 + 0.16 + 0.64 + 8 to 12 = 17.6 to 21.6. The same sum"
    yield "TheWorld", "ddp: 17 to 65 GB a card", f"{8.8 + .082 * TRAINED_BYTES:.1f} to {world_state:.1f} GB + activations", "as one card: correct for ddp"
    yield "TheWorld", "30% trained: 35 to 40 GB", f"{8.8 * .7 + 1.3 * TRAINED_BYTES:.1f} GB + activations", "by their own terms 8.8 + 2.6 + 10.4 + 8 to 12 = 29.8 to 33.8: 5 GB too much"
    yield "TheWorld", "fsdp of 2, full: 34 to 38 GB", f"{world_state / 2:.1f} GB + two units + activations", "52.8 / 2 + 8 to 12 = 34.4 to 38.4: right, without the gathered units"
    yield "TheWorld", "fsdp of 4, full: 20 to 24 GB", f"{world_state / 4:.1f} GB + two units + activations", "52.8 / 4 + 8 to 12 = 21.2 to 25.2: 1 GB too little"
    yield "TheWorld", "fsdp of 2, projection: 15 to 18 GB", f"{(8.8 + .082 * TRAINED_BYTES) / 2:.1f} GB + two units + activations", "9.6 / 2 + 8 to 12 = 12.8 to 16.8: 1 to 2 GB for gathered units"
    yield "TheWorld", "checkpointing: full 42 to 47 GB instead of 60 to 65; fsdp 26 to 30", "cannot be checked here", "saves 18 GB of activations that are 8 to 12: impossible. The fsdp line saves 8, which is possible"
    yield "TheWorld", "checkpointing: 30 to 40% of activations less", "most of them: one layer and every layer's input remain", "too little for what it does; and it does not agree with the line above"
    yield "TheWorld", "checkpointing: 20 to 40% slower", "full 33% more products (8 instead of 6 per value); LoRA 50% (6 instead of 4)", "plausible"
    yield "TheWorld", "ddp: 1.9 on 2, 3.7 on 4 (95%)", "all but 1: 0.33 GB in a step", "at 36 s a sample (next line) communication cannot cost 5%: 0.33 GB over NVLink take 1 ms"
    yield "TheWorld", "100 samples an hour on an H100", "cannot be checked here", f"36 s a sample. 4096 tokens through 4.4B values take {4 * 4.4e9 * 4096 / (989e12 * .75):.2f} s: something else limits that run"
    yield "TheWorld", "4 cards 1.85 times better", "", "370 / 190 is 1.95 and 370 / 100 is 3.7: neither is 1.85"
    yield "TheWorld", "fsdp, full: 1.7 on 2, 3.2 on 4; 85 samples an hour (0.85)", "cannot be checked here", "the two lines have different baselines: one card full, one card projection"
    yield "TheWorld", "30%: checkpointing 0.7; ddp of 2 with it 1.3. Full: 0.6; fsdp of 2 with it 1.2", "1 / 1.33 = 0.75; twice that is 1.5", "0.7 x 1.9 = 1.33 and 0.6 x 1.7 = 1.0, not 1.2"
    yield "torchrun", "1 card: 1.5 steps/s, 6 to 7 s a step", "", "1.5 steps/s are 0.67 s a step. One of the two is wrong by ten"
    yield "torchrun", "8 H100: 10 to 12 steps/s, 6 to 7 times", "cannot be checked here: no model is named", "10 / 1.5 to 12 / 1.5 is 6.7 to 8"
    yield "Unsloth", "1.8 on 2, 3.4 on 4, 6.4 on 8 cards", "RTX 4090, PCIe: " + times(small, "ddp", PCIE4, 2, 4, 8), "Llama-3.2-1B, r 16: low for LoRA, whose gradients are small"
    yield "Fine-tuning guide", "2 cards: 42 s instead of 84 (inference)", "2", "no communication: right"
    yield "Fine-tuning guide", "ddp: 3 to 3.5 on 4; 8 h become 2.5 (3.2)", "cannot be checked here: no sequence length", "8 / 2.5 = 3.2: right"
    yield "Fine-tuning guide", "20B model: 42 GB, fits an A100 for ddp", f"{oss_bytes * BF16 / GB:.0f} GB in bf16; full training {oss_bytes * TRAINED_BYTES / GB:.0f} GB", "right for frozen weights. Training all of them needs nine times that: ddp cannot"
    yield "Fine-tuning guide", "LoRA: 43 GB", f"{oss_bytes * BF16 / GB + .02 * TRAINED_BYTES:.1f} GB + activations in bf16; files in MXFP4 stay so, 13.8 GB", "right, without activations"
    yield "Fine-tuning guide", "LoRA: 2 h on 1, 35 min on 4 (3.4)", "cannot be checked here: no sequence length", "120 / 35 = 3.4: right"
    yield "Fine-tuning guide", "LoRA: 10 to 100 times less memory for gradients", f"{oss_bytes / 20e6:.0f} times (20.9B to 20M values)", "too little"
    yield "Fine-tuning guide", "LoRA: 2 to 3 times faster; elsewhere 10 to 100", "1.5: 4 products per value and token instead of 6", "10 to 100 is wrong. More than 1.5 only where the optimizer or the network limits"
    yield "Fine-tuning guide", "fsdp: about 3 on 4 cards, models 4 times larger", "weights and state / 4; two units and activations are not divided", "plausible"
    yield "Fine-tuning guide", "pipeline: 1.2 to 1.5 on 4", f"{4 * 16 / 19:.1f} with 16 micro-batches: 4 x m / (m + 3)", "theirs is without micro-batches, which is 1 at best"
    for model, card, cards, link, sequences, tokens, claim in sft:
        work = Work(model, "nf4", card, sequences * tokens, 4)
        held = planner.plan(model.name, f"{cards}x {card}", tokens, "parallel.strategy=ddp", planned.CHECKPOINTED, batch_size=sequences)["peak_bytes"]
        share = 6 * model.active_values() * float(claim.split(", ")[1].split()[0]) / cards / gpu.CARDS[card].peaks["bf16"]
        yield "SFT-Play", f"{model.name}, {cards} x {gpu.CARDS[card].name}: {claim}", f"{held / GB:.0f} GB with checkpointing, {rates(work, cards, link)}", f"their speed is {share:.1%} of the cards' bf16 peak, recomputation included: low"
    yield "SFT-Play", "Gemma 27B: 13.5 GB a card (QLoRA)", f"{gpu.base_bytes(GEMMA_27B, 'nf4') / GB:.1f} GB", "27B x 0.5: without the factors of blocks, and the embedding (1.4B) is in bf16"
    held = planner.plan(QWEN_14B.name, "2x rtx4090", 1536, "parallel.strategy=ddp", planned.CHECKPOINTED, batch_size=6)
    yield "SFT-Play", "Qwen2.5-14B on 2 x RTX 4090, 6 sequences of 1536", f"{held['peak_bytes'] / GB:.0f} GB with checkpointing", "fits" if held["fits"] else "does not fit"
    yield "SFT-Play", "at least 2 cards of 16 GB; 2 x H100 or H200 for 27B", "depends on model and strategy: the tables above", "27B in NF4 fits one H100; two are for speed"


def render(planner):
    parts = [("Llama-3.1-70B, QLoRA r 16 on all linear layers, two RTX 4090: GiB of a card", headline_table(planner)), ("The same: seconds and tokens/s over PCIe, one sequence a micro-batch", headline_speed_table()),
             ("Speed of several cards", speed_table()), ("Assumed links", links_table()), ("Measured: Gloo on a CPU", measured_table()),
             ("What the guides claim", table(["guide", "claim", "ours, computed", "remark"], claims(planner)))]
    return "\n".join(f"### {title}\n{text}" for title, text in parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, default=ROOT / "build/bin/sftrun")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/scaling.md")
    arguments = parser.parse_args()
    tables = render(planned.Planner(arguments.sftrun))
    if not arguments.write:
        print(tables)
        return
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(text.partition(BEGIN)[0] + BEGIN + tables + END + text.partition(END)[2])


if __name__ == "__main__":
    main()
