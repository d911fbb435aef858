#!/usr/bin/env python3
"""What run.json says of each strategy: bytes that a rank keeps, and calls and bytes of its collectives. Standard library only.

    tests/smoke/strategy_bytes.py --sftrun build/bin/sftrun

A small untied model trains by LoRA on a CPU, with 1, 2 and 4 processes. Checked are
- what is divided over N ranks is 1 / N on each (to 10%: padding of small units; the sum to 5%), and the rest is whole
- what is summed are the trained values and nothing else: 4 bytes each, once per step (ddp, zero1) or micro-batch (zero2, fsdp)
- fsdp gathers the base's bytes at most twice in a micro-batch, and at least once; with parallel.fetch per_step the same in a step
- tensor parallelism divides all matrices, and sums the hidden states of each token over the ranks: for each layer twice forward and
  twice back, once after the embedding, once before the head; and gradients of the factors that every rank has, once per step
- a pipeline's stages have the base between them, and send the hidden states of each token forward and their gradients back, once
Exit code 1: something else.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import same_losses  # noqa: E402

STEPS, GLOBAL_BATCH, FP32 = 3, 4, 4
SMALL = 1 << 13  # bytes of the collectives that tell losses and memory


class Run:
    """The ranks of run.json, and the tokens that were trained on."""

    def __init__(self, program: Path, scratch: Path, processes: int, strategy: str, *settings: str):
        self.name, self.processes = f"{strategy} on {processes}", processes
        folder = scratch / f"{strategy}-{processes}-{len(settings)}"
        config = scratch / "bytes.yaml"
        config.write_text(json.dumps({
            "model": {"name": str(scratch / "models/wide"), "dtype": "fp32"}, "tuning": {"lora": {"r": 8}},
            "data": {"train": str(same_losses.DATA / "train/data/text.jsonl"), "packing": False},
            "train": {"max_steps": STEPS, "batch_size": 1, "grad_accum": "auto", "global_batch_size": GLOBAL_BATCH, "save_every": "0"},
            "output": {"tensorboard": False}}))
        command = [program, "train", "--config", config, "--device", "cpu", "--nproc-per-node", processes, f"parallel.strategy={strategy}",
                   f"output.dir={folder}", *settings]
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    args = parser.parse_args()
    checks = Checks()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        same_losses.write_inputs(scratch)
        model = json.loads((scratch / "models/wide/config.json").read_text())
        assert not model.get("tie_word_embeddings"), "a tied embedding is on two stages"
        program = args.sftrun.resolve()
        whole = Run(program, scratch, 1, "single")
        for n in (2, 4):
            ddp = Run(program, scratch, n, "ddp")
            gradients = whole.bytes_of("gradients")[0]
            for part in ("base", "gradients", "optimizer"):
                checks.each(ddp, part, ddp.bytes_of(part), whole.bytes_of(part)[0])
            checks.each(ddp, "bytes of all-reduce", ddp.sent("all_reduce"), STEPS * gradients)
            half = Run(program, scratch, n, "ddp", "train.ddp_comm_hook=bf16")
            checks.each(half, "bytes of all-reduce in bf16", half.sent("all_reduce"), STEPS * gradients / 2)
            accum = GLOBAL_BATCH // n
            check_sharded(checks, whole, Run(program, scratch, n, "zero1"), ("optimizer",), 1)
            check_sharded(checks, whole, Run(program, scratch, n, "zero2"), ("optimizer", "gradients"), accum)
            fsdp = Run(program, scratch, n, "fsdp")
            check_sharded(checks, whole, fsdp, ("base", "optimizer", "gradients"), accum)
            part = fsdp.bytes_of("base")[0] + fsdp.bytes_of("trainable")[0]
            checks.within(fsdp, "bytes of all-gather", fsdp.sent("all_gather"), STEPS * accum * fsdp.bytes_of("base")[0],
                          2 * STEPS * accum * part + SMALL)
            once = Run(program, scratch, n, "fsdp", "parallel.fetch=per_step")
            check_sharded(checks, whole, once, ("base", "optimizer", "gradients"), 1)
            checks.within(once, "bytes of all-gather per step", once.sent("all_gather"), STEPS * part * 0.9, 2 * STEPS * part + SMALL)
            check_pipeline(checks, whole, Run(program, scratch, n, "pipeline"), model["hidden_size"])
        check_tensor(checks, whole, Run(program, scratch, 2, "tensor"), model)
    print("what ranks keep and send is what the strategies imply" if checks.failures == 0 else f"{checks.failures} checks failed")
    return 1 if checks.failures else 0


if __name__ == "__main__":
    sys.exit(main())
