#!/usr/bin/env python3
"""What run.json says of each strategy: bytes that a rank keeps, and calls and bytes of its collectives. Standard library only.

    tests/smoke/strategy_bytes.py --sftrun build/bin/sftrun [--quick]

A small untied model trains by LoRA on a CPU, with 1, 2 and 4 processes. Checked are
- what is divided over N ranks is 1 / N on each (to 10%: padding of small units; the sum to 5%), and the rest is whole
- what is summed are the trained values and nothing else: 4 bytes each, once per step (ddp, zero1) or micro-batch (zero2, fsdp)
- fsdp gathers the base's bytes at most twice in a micro-batch, and at least once; with parallel.fetch per_step the same in a step
- tensor parallelism divides all matrices, and sums the hidden states of each token over the ranks: for each layer twice forward and
  twice back, once after the embedding, once before the head; and gradients of the factors that every rank has, once per step
- a rank of fsdp reads 1 / N of the model's file (to 5%), of bf16 kept and of bf16 converted to fp32; one of ddp reads all of it
- loading with fsdp, a rank's anonymous memory grows by 1 / N of the base (to 5% of the base) at its peak, so it never has the base.
  Measured from outside: a model of 340 MB, less the same with one layer. Linux
- plans of several axes, of a model of 42 MB in fp32, full and LoRA (--quick: LoRA, and three of the plans): what a rank keeps is what the axes
  divide (to 5%), and so is what it sends in two further steps: gradients are summed over dp_shard (to 5%) and dp_replicate, weights gathered
  over dp_shard, hidden states summed over tp and sent over pp
- a pipeline's stages have the base between them, and send the hidden states of each token forward and their gradients back, once
Exit code 1: something else.
"""

import argparse
import json
import math
import os
import random
import struct
import subprocess
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402
import strategy_parity  # noqa: E402

STEPS, FURTHER_STEPS, GLOBAL_BATCH, FP32 = 3, 2, 4, 4
LORA = {"mode": "lora", "lora": {"r": 8}}
SMALL = 1 << 13  # bytes of the collectives that tell losses and memory


class Run:
    """The ranks of run.json, and the tokens that were trained on."""

    def __init__(self, program: Path, scratch: Path, plan: str, *settings: str, model: str = "wide", tuning: dict = LORA):
        self.name = f"{plan}, {tuning['mode']}"
        self.processes, of_plan = strategy_parity.plan_of(plan)
        folder = scratch / f"{model}, {self.name}, {len(settings)}"
        config = scratch / "bytes.yaml"
        config.write_text(json.dumps({
            "model": {"name": str(scratch / "models" / model), "dtype": "fp32"}, "tuning": tuning,
            "data": {"train": str(same_losses.DATA / "train/data/text.jsonl"), "packing": False},
            "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": "auto", "global_batch_size": GLOBAL_BATCH, "save_every": "0"},
            "output": {"tensorboard": False}}))
        command = [program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", self.processes,
                   *(f"{key}={value}" for key, value in of_plan.items()), f"output.dir={folder}", *settings]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=120,
                              env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode != 0:
            raise SystemExit(f"{self.name}: exit code {done.returncode}: {done.stderr[-2000:]}")
        self.ranks = json.loads((folder / "run.json").read_text())["ranks"]
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.tokens = sum(line["tokens"] for line in lines)

    def bytes_of(self, part: str) -> list[int]:
        return [rank["bytes"][part] for rank in self.ranks]

    def calls(self, collective: str) -> list[int]:
        return [rank["collectives"][collective] for rank in self.ranks]

    def sent(self, collective: str) -> list[int]:
        return [rank["collective_bytes"][collective] for rank in self.ranks]


def write_deep_model(directory: Path, layers: int, wide: Path, hidden: int = 1024) -> int:
    """A model in bf16 whose layers have 19 MB each, or less where it is less wide.   @return bytes of its tensors"""
    inner, heads = 2 * hidden, 8
    config = json.loads((wide / "config.json").read_text()) | {
        "hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": heads,
        "head_dim": hidden // heads, "torch_dtype": "bfloat16"}
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,), "lm_head.weight": (config["vocab_size"], hidden)}
    for layer in range(layers):
        of = f"model.layers.{layer}."
        shapes |= {of + f"self_attn.{name}_proj.weight": (hidden, hidden) for name in "qkvo"}
        shapes |= {of + f"mlp.{name}_proj.weight": (inner, hidden) for name in ("gate", "up")}
        shapes |= {of + "mlp.down_proj.weight": (hidden, inner)}
        shapes |= {of + f"{name}_layernorm.weight": (hidden,) for name in ("input", "post_attention")}
    header, end = {}, 0
    for name, shape in shapes.items():
        begin, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    # Small values: sign and fraction at random, exponents of about 2^-6.
    source = random.Random(layers)
    piece = b"".join(struct.pack("<H", source.getrandbits(1) << 15 | 121 << 7 | source.getrandbits(7)) for _ in range(1 << 16))
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (directory / name).write_bytes((wide / name).read_bytes())
    with open(directory / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for left in range(end, 0, -len(piece)):
            file.write(piece[:left])
    return end


def anonymous_bytes(process: int) -> int:
    """Memory that is not of files; 0: the process has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))


def children_of(process: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]
    except OSError:
        return []


def peaks_of_loading(program: Path, scratch: Path, model: Path, processes: int, dtype: str) -> tuple[list[int], list[int]]:
    """Starts a run of fsdp and stops it when the model is loaded and run.json says so.   @return of each rank: the largest anonymous memory until
    then, and bytes that it read"""
    folder = scratch / f"loading-{model.name}-{processes}-{dtype}"
    config = scratch / "loading.yaml"
    config.write_text(json.dumps({
        "model": {"name": str(model), "dtype": dtype}, "tuning": {"lora": {"r": 1, "target_modules": ["q_proj"]}},
        "data": {"train": str(same_losses.DATA / "train/data/text.jsonl"), "packing": False}, "parallel": {"strategy": "fsdp"},
        "train": {"max_steps": 1, "batch_size": 1, "grad_accum": 1, "save_every": "0"}, "output": {"dir": str(folder), "tensorboard": False}}))
    with open(scratch / "loading.log", "w+") as log:
        run = subprocess.Popen([str(program), "train", "--config", str(config), "--device", "cpu", "--nproc-per-node", str(processes)],
                               stdout=log, stderr=log, env={**os.environ, "OMP_NUM_THREADS": "1"})
        peaks, report = {}, folder / "run.json"
        while not report.exists() and run.poll() is None:
            for rank in children_of(run.pid):
                peaks[rank] = max(peaks.get(rank, 0), anonymous_bytes(rank))
            time.sleep(0.002)
        if not report.exists():
            log.seek(0)
            raise SystemExit(f"{folder.name} ended before its model was loaded: {log.read()[-2000:]}")
        ranks = json.loads(report.read_text())["ranks"]
        for process in [run.pid, *children_of(run.pid)]:
            os.kill(process, signal.SIGKILL)
        run.wait()
    largest = sorted(peaks.values(), reverse=True)[:processes]
    assert len(largest) == processes, f"{folder.name}: {len(peaks)} processes seen"
    return largest, [rank["model_file_bytes"] for rank in ranks]


class Checks:
    def __init__(self):
        self.failures = 0

    def expect(self, holds: bool, what: str) -> None:
        self.failures += not holds
        if not holds:
            print(f"WRONG: {what}")

    def each(self, run: Run, what: str, values: list[int], expected: float, tolerance: float = 0) -> None:
        self.expect(all(abs(value - expected) <= tolerance * expected for value in values), f"{run.name}: {what} {values}, expected {expected:.0f}")

    def within(self, run: Run, what: str, values: list[int], least: float, most: float) -> None:
        self.expect(all(least <= value <= most for value in values), f"{run.name}: {what} {values}, expected {least:.0f} to {most:.0f}")


def check_sharded(checks: Checks, whole: Run, run: Run, divided: tuple[str, ...], sums_per_step: int) -> None:
    n = run.processes
    for part in ("base", "gradients", "optimizer"):
        of_all, on_ranks = whole.bytes_of(part)[0], run.bytes_of(part)
        if part in divided:
            # The unit of the smallest parts is 256 values, of units that have some thousands here.
            checks.within(run, f"{part} of all ranks", [sum(on_ranks)], 0.95 * of_all, 1.05 * of_all)
            checks.within(run, part, on_ranks, 0.9 * of_all / n, 1.1 * of_all / n)
        else:  # zero1 has whole gradients beside the part that it updates
            checks.each(run, part, on_ranks, of_all * (1 + 1 / n if part == "gradients" else 1), 0.05)
    gradients = whole.bytes_of("gradients")[0]
    checks.each(run, "bytes of reduce-scatter", run.sent("reduce_scatter"), STEPS * sums_per_step * gradients, 0.05)
    # Norms, and whole tensors where files are written: the adapter twice, two moments once.
    checks.within(run, "bytes of all-reduce", run.sent("all_reduce"), 0, 4 * gradients + SMALL)


def check_loading(checks: Checks, program: Path, scratch: Path) -> None:
    wide = scratch / "models/wide"
    sizes = {layers: write_deep_model(scratch / f"models/deep-{layers}", layers, wide) for layers in (1, 17)}
    for processes, dtype in ((2, "bf16"), (4, "bf16"), (2, "fp32")):
        (low, _), (high, read) = (peaks_of_loading(program, scratch, scratch / f"models/deep-{layers}", processes, dtype) for layers in sizes)
        name, file_bytes = f"fsdp on {processes}, {dtype}, loading", sizes[17]
        checks.expect(all(abs(of_rank / file_bytes - 1 / processes) < 0.05 / processes for of_rank in read),
                      f"{name}: {read} bytes read of {file_bytes}")
        base = (sizes[17] - sizes[1]) * (2 if dtype == "fp32" else 1)
        shares = [(of_deep - of_shallow) / base for of_deep, of_shallow in zip(high, low)]
        print(f"{name}: of a base of {base >> 20} MiB, memory of each rank grows by {', '.join(f'{share:.1%}' for share in shares)} at its peak")
        checks.expect(all(abs(share - 1 / processes) < 0.05 for share in shares), f"{name}: memory grows by {shares} of the base")


def check_pipeline(checks: Checks, whole: Run, run: Run, hidden: int) -> None:
    base, stages = run.bytes_of("base"), run.processes
    checks.expect(sum(base) == whole.bytes_of("base")[0], f"{run.name}: stages have {base} bytes of {whole.bytes_of('base')[0]}")
    checks.expect(max(base) < sum(base), f"{run.name}: a stage has the whole base")
    # Between parameters of the store lies padding.
    checks.within(run, "trained bytes of all stages", [sum(run.bytes_of("gradients"))], 0.95 * whole.bytes_of("gradients")[0],
                  1.05 * whole.bytes_of("gradients")[0])
    micro_batches, passed = STEPS * GLOBAL_BATCH, run.tokens * hidden * FP32
    # Hidden states go forward over each border; gradients come back where a stage before trains.
    borders = [min(stage, 1) + (stage < stages - 1) for stage in range(stages)]
    sends = [calls for calls in run.calls("send")]
    checks.expect(sends[0] == micro_batches and sends[-1] <= micro_batches, f"{run.name}: {sends} sends in {micro_batches} micro-batches")
    checks.expect(all(calls <= micro_batches * most for calls, most in zip(sends, borders)), f"{run.name}: {sends} sends")
    checks.expect(run.sent("send")[0] == passed, f"{run.name}: the first stage sent {run.sent('send')[0]} bytes, expected {passed}")
    checks.expect(sum(run.sent("send")) == sum(run.sent("recv")), f"{run.name}: {run.sent('send')} sent, {run.sent('recv')} received")
    checks.each(run, "bytes of reduce-scatter", run.sent("reduce_scatter"), 0)


def check_tensor(checks: Checks, whole: Run, run: Run, model: dict) -> None:
    n, layers, hidden = run.processes, model["num_hidden_layers"], model["hidden_size"]
    # Norms are whole on every rank, and of LoRA's two factors one.
    norms = (2 * layers + 1) * hidden * FP32
    checks.each(run, "base", run.bytes_of("base"), (whole.bytes_of("base")[0] - norms) / n + norms, 0.01)
    gradients = whole.bytes_of("gradients")[0]
    for part in ("gradients", "optimizer"):
        checks.within(run, part, run.bytes_of(part), whole.bytes_of(part)[0] / n, 0.8 * whole.bytes_of(part)[0])
    # The first layer's gradient goes no further. Not every token has a label.
    passed, sums = run.tokens * hidden * FP32, 2 * layers + (2 * layers - 1) + 1
    files = 4 * gradients  # whole tensors where files are written: the adapter twice, two moments once
    checks.within(run, "bytes of all-reduce", run.sent("all_reduce"), sums * passed, (sums + 1) * passed + STEPS * gradients + files + SMALL)
    calls = STEPS * (GLOBAL_BATCH * (sums + 1) + 2)  # and the partial gradients and the norm of each step
    checks.within(run, "calls of all-reduce", run.calls("all_reduce"), calls, calls + 8 * 50)
    checks.each(run, "bytes of reduce-scatter", run.sent("reduce_scatter"), 0)


class CombinedPlan:
    """What the axes of a plan leave of a whole, on each rank."""

    def __init__(self, plan: str, whole: Run, tuning: dict):
        self.whole, self.is_full = whole, tuning["mode"] == "full"
        self.sizes, self.gathers = strategy_parity.sizes_of(plan), "fsdp" in plan.split()
        self.pp, copies, shards, self.cp, self.tp = self.sizes.values()
        # Ranks that share sequences own the same values: a strategy that shards divides over them, too.
        is_sharded = {"fsdp", "zero1"} & set(plan.split())
        self.shards, self.copies = (shards * self.cp, copies) if is_sharded else (shards, copies * self.cp)
        # Of LoRA's two factors of a matrix one is divided: with an MLP twice as wide as the hidden states that is 10 of 17 parts.
        self.tensor_part = 1 / self.tp if self.is_full else (7 + 10 / self.tp) / 17
        self.micro_batches = GLOBAL_BATCH // (copies * shards)  # of a rank, in a step

    def base(self) -> float:
        return self.whole.bytes_of("base")[0] / (self.pp * self.tp * (self.shards if self.gathers else 1))

    def trained(self, part: str) -> float:
        """Before `dp_shard` divides it."""
        return self.whole.bytes_of(part)[0] * self.tensor_part / self.pp

    def kept(self, part: str) -> float:
        if part == "optimizer" or self.gathers or self.shards == 1:
            return self.trained(part) / self.shards
        return self.trained(part) * (1 + 1 / self.shards)  # zero1 has the whole beside its part


def check_combined(checks: Checks, program: Path, scratch: Path, plan: str, whole: Run, tuning: dict, model: dict) -> None:
    expected = CombinedPlan(plan, whole, tuning)
    run = Run(program, scratch, plan, model="deep", tuning=tuning)
    checks.each(run, "base", run.bytes_of("base"), expected.base(), 0.05)
    for part in ("trainable", "gradients", "optimizer"):
        checks.each(run, part, run.bytes_of(part), expected.kept(part), 0.05)
    # A longer run, less this one: without what loading and files need.
    longer = Run(program, scratch, plan, f"train.max_steps={STEPS + FURTHER_STEPS}", model="deep", tuning=tuning)

    def sent(collective: str) -> list[int]:
        return [more - less for more, less in zip(longer.sent(collective), run.sent(collective))]

    micro_batches, gradients = FURTHER_STEPS * expected.micro_batches, expected.trained("gradients")
    sums = micro_batches if expected.gathers else FURTHER_STEPS
    checks.each(run, "bytes of reduce-scatter", sent("reduce_scatter"), sums * gradients if expected.shards > 1 else 0, 0.05)
    part, layer = expected.base() + expected.kept("trainable"), (expected.base() + expected.kept("trainable")) * expected.pp / model["layers"]
    if expected.gathers:  # where micro-batches alternate, a layer may be gathered ahead in vain
        checks.within(run, "bytes of all-gather", sent("all_gather"), 0.95 * micro_batches * part,
                      2 * 1.05 * micro_batches * part + FURTHER_STEPS * layer * (expected.pp > 1) + SMALL)
    elif expected.shards > 1:  # the trained weights, once per step
        checks.within(run, "bytes of all-gather", sent("all_gather"), 0, 1.05 * FURTHER_STEPS * expected.trained("trainable") / expected.shards + SMALL)
    else:
        checks.within(run, "bytes of all-gather", sent("all_gather"), 0, SMALL)
    exchanges = sum(sent("all_to_all"))
    checks.expect((exchanges > 0) == (expected.cp > 1), f"{run.name}: {exchanges} bytes change places between ranks that share sequences")
    passed = (longer.tokens - run.tokens) * model["hidden"] * FP32 * expected.tp  # by all ranks with these tokens
    checks.expect(sum(sent("send")) == 2 * (expected.pp - 1) * passed == sum(sent("recv")), f"{run.name}: {sent('send')} sent, {passed} passed")
    # Hidden states: of each layer twice forward and twice back, after the embedding and before the head; the first layer's gradient, too, in
    # full training, and the losses. Gradients: over copies once per step; what each rank of tp has a summand of, whenever gradients are summed.
    hidden = (4 * model["layers"] * passed if expected.tp > 1 else 0) / run.processes
    replicas = FURTHER_STEPS * gradients / expected.shards if expected.copies > 1 else 0
    summands = (sums * gradients if expected.tp > 1 and not expected.is_full else 0)
    average = sum(sent("all_reduce")) / run.processes
    checks.within(run, "bytes of all-reduce", [average], hidden + replicas, 1.05 * (hidden * (1 + 3 / (4 * model["layers"])) + replicas) + summands + 4 * SMALL)
    print(f"{run.name}: of {whole.bytes_of('base')[0]} + {whole.bytes_of('trainable')[0]} bytes a rank has {max(run.bytes_of('base'))} + "
          f"{max(run.bytes_of('trainable'))}", flush=True)


def check_all_combined(checks: Checks, program: Path, scratch: Path, quick: bool) -> None:
    model = {"layers": 4, "hidden": 512}
    write_deep_model(scratch / "models/deep", model["layers"], scratch / "models/wide", model["hidden"])
    for tuning in (LORA,) if quick else (LORA, {"mode": "full"}):
        whole = Run(program, scratch, "single", model="deep", tuning=tuning)
        for plan in ("fsdp 2 x tensor 2", "pipeline 2 x fsdp 2", "zero1 2 x tensor 2") if quick else strategy_parity.COMBINED_PLANS:
            check_combined(checks, program, scratch, plan, whole, tuning, model)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--quick", action="store_true", help="some plans of several axes, with LoRA")
    args = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        same_losses.write_inputs(scratch)
        model = json.loads((scratch / "models/wide/config.json").read_text())
        assert not model.get("tie_word_embeddings"), "a tied embedding is on two stages"
        program = args.sftrun.resolve()
        whole = Run(program, scratch, "single")
        for n in (2, 4):
            ddp = Run(program, scratch, f"ddp {n}")
            gradients = whole.bytes_of("gradients")[0]
            for part in ("base", "gradients", "optimizer"):
                checks.each(ddp, part, ddp.bytes_of(part), whole.bytes_of(part)[0])
            checks.each(ddp, "bytes of all-reduce", ddp.sent("all_reduce"), STEPS * gradients)
            half = Run(program, scratch, f"ddp {n}", "train.ddp_comm_hook=bf16")
            checks.each(half, "bytes of all-reduce in bf16", half.sent("all_reduce"), STEPS * gradients / 2)
            accum = GLOBAL_BATCH // n
            check_sharded(checks, whole, Run(program, scratch, f"zero1 {n}"), ("optimizer",), 1)
            check_sharded(checks, whole, Run(program, scratch, f"zero2 {n}"), ("optimizer", "gradients"), accum)
            fsdp = Run(program, scratch, f"fsdp {n}")
            check_sharded(checks, whole, fsdp, ("base", "optimizer", "gradients"), accum)
            part = fsdp.bytes_of("base")[0] + fsdp.bytes_of("trainable")[0]
            checks.within(fsdp, "bytes of all-gather", fsdp.sent("all_gather"), STEPS * accum * fsdp.bytes_of("base")[0],
                          2 * STEPS * accum * part + SMALL)
            once = Run(program, scratch, f"fsdp {n}", "parallel.fetch=per_step")
            check_sharded(checks, whole, once, ("base", "optimizer", "gradients"), 1)
            checks.within(once, "bytes of all-gather per step", once.sent("all_gather"), STEPS * part * 0.9, 2 * STEPS * part + SMALL)
            file_bytes = whole.ranks[0]["model_file_bytes"]
            checks.each(fsdp, "bytes read", [rank["model_file_bytes"] for rank in fsdp.ranks], file_bytes / n, 0.1)
            checks.each(ddp, "bytes read", [rank["model_file_bytes"] for rank in ddp.ranks], file_bytes)
            check_pipeline(checks, whole, Run(program, scratch, f"pipeline {n}"), model["hidden_size"])
        check_tensor(checks, whole, Run(program, scratch, "tensor 2"), model)
        check_all_combined(checks, program, scratch, args.quick)
        check_loading(checks, program, scratch)
    print("what ranks keep and send is what the strategies imply" if checks.failures == 0 else f"{checks.failures} checks failed")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
