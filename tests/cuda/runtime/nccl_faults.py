#!/usr/bin/env python3
"""Faults of NCCL, which the stand-in makes at a chosen call of one rank, and what the program says and does. Standard library only.

    tests/cuda/runtime/nccl_faults.py --sftrun build/bin/sftrun --stand-in build/stand-in-runtime [--all] [--only REGEX …] [--keep FOLDER]

error      NCCL has an asynchronous error on the rank: the others wait for their GPUs
stuck      the collective does not end on any rank's GPU
hang       the rank's host does not come out of the call
gpu_hang   a kernel after the call does not end, which no abort of NCCL changes
late       the rank comes to its next collective after a moment: nothing happens
too_late   the rank comes after `parallel.timeout`
lost       the rank is killed
stopped    the rank is stopped by a signal

In each case the run ends within 60 s with exit code 5 and an error that names the rank (of `stuck` all ranks) and the collective; LibTorch does
not end a process; every communicator is aborted. The same command then resumes from the last checkpoint, and its metrics are those of a run
that had no fault. Losses are 0 here: device/ has numbers (`cuda.parity`).

Without --all some faults of some strategies. With it every fault of every strategy, at two calls.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import sys
import tempfile
import time

sys.path[:0] = [str(folder) for folder in pathlib.Path(__file__).resolve().parents[:2]]
import counting  # noqa: E402
import stand_in  # noqa: E402
from cases import BASE  # noqa: E402
from tiny_models import dense_model, write_texts  # noqa: E402

STEPS = 6  # each is saved
# Every tensor is an allocation of its own: what no kernel writes reads as zero, and so do all numbers.
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
TIMEOUT_S = 20  # also of the rendezvous: on a busy machine four processes may need ten seconds
ENDS_WITHIN_S = 60
LATE_S = {"late": 1, "too_late": 40}
WORKER_FAILED = 5
STRATEGIES = {  # and processes
    "ddp": (2, ["parallel.strategy=ddp"]),
    "zero2": (2, ["parallel.strategy=zero2", "tuning.mode=full"]),
    "fsdp": (2, ["parallel.strategy=fsdp"]),
    "pipeline": (2, ["parallel.strategy=pipeline", "train.grad_accum=3"]),
    "tensor": (2, ["parallel.strategy=tensor"]),
    "pipeline 2 x tensor 2": (4, ["parallel.pp=2", "parallel.tp=2"]),
    "fsdp 2 x tensor 2": (4, ["parallel.dp_shard=2", "parallel.tp=2"]),
}
FAULTS = ["error", "stuck", "hang", "gpu_hang", "late", "too_late", "lost", "stopped"]
PLACES = [0.6, 0.8]  # of the rank's calls
QUICK = [("fsdp", "error"), ("pipeline 2 x tensor 2", "error"), ("pipeline", "too_late")]
ENDED_BY_LIBTORCH = "taking the entire process down"
IDLE_VARIABLES = {"NCCL_TIMEOUT": "60", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}  # are warned of
COLLECTIVES = "all_reduce|all_gather|reduce_scatter|broadcast|send|receive"


def expected(fault, rank):
    """What the error must have."""
    return {"error": f"({COLLECTIVES}) failed: NCCL failed on rank {rank}: ",
            # What is small is sent before it is received, so that the receiver may wait alone.
            "stuck": f"({COLLECTIVES}) failed: not done within {TIMEOUT_S} s: ranks .* have called it|"
                     f"receive failed: not done within {TIMEOUT_S} s: the GPU of rank .* hangs in it",
            "hang": f"({COLLECTIVES}) failed: not done within {TIMEOUT_S} s: rank {rank} has not",
            "gpu_hang": f"({COLLECTIVES}) failed: not done within {TIMEOUT_S} s: (the GPU of rank {rank} ha|rank {rank} has not called it: its GPU hangs)",
            # It may have called a receive ahead of time.
            "too_late": f"({COLLECTIVES}) failed: not done within {TIMEOUT_S} s: rank {rank} has (not called it|called it and does something else)",
            "lost": f"first failure on rank {rank} .*killed by SIGKILL",
            "stopped": f"rank {rank} gives no answer|rank {rank} is stopped by a signal"}[fault]


class Strategy:
    """A run without a fault, which the others are compared with."""

    def __init__(self, session, name):
        self.session, self.name = session, name
        self.devices, self.settings = STRATEGIES[name]
        self.folder = session.folder / re.sub(r"\W+", "-", name)
        self.model = dense_model(self.folder / "model", 2, counting.HIDDEN)
        write_texts(self.folder / "train.jsonl", 24)
        self.run = self.start("none", self.folder / "none", **IDLE_VARIABLES)
        if self.run.code != 0:
            raise SystemExit(f"{name}: without a fault: {self.run.output}")
        for variable in IDLE_VARIABLES:
            if f"{variable} has no effect" not in self.run.output:
                raise SystemExit(f"{name}: no warning of {variable}: {self.run.output}")
        self.metrics = losses(self.folder / "none")
        self.calls = [sum(event["event"] == "nccl" for event in self.run.events(rank)) for rank in range(self.devices)]

    def start(self, name, out, **environment):
        command = ["train", *BASE, "model.dtype=bf16", *self.settings, f"model.name={self.model}", f"data.train={self.folder}/train.jsonl",
                   f"output.dir={out}", f"train.max_steps={STEPS}", "train.save_steps=1", "train.eval_strategy=no",
                   *([f"parallel.timeout={TIMEOUT_S}s"] if "SFTRUN_STANDIN_NCCL_FAULT" in environment else []), "--nproc-per-node", str(self.devices)]
        return self.session.run(f"{self.name} {name}", command, self.devices, **UNCACHED, **environment)


def losses(out):
    return [{key: line[key] for key in ("step", "loss", "grad_norm", "learning_rate", "label_tokens") if key in line}
            for line in stand_in.metrics(out) if "loss" in line]


def check_ended(run, fault, rank, seconds):
    if run.code != WORKER_FAILED:
        yield f"exit code {run.code}"
    if seconds > ENDS_WITHIN_S:
        yield f"it ended {seconds:.0f} s after the fault"
    if not re.search(expected(fault, rank), run.output):
        yield f"it does not say: {expected(fault, rank)}"
    if ENDED_BY_LIBTORCH in run.output:
        yield "LibTorch has ended a process"


def check(strategy, fault, rank, call):
    """@return lines of what does not hold"""
    name = f"{fault}@{rank}:{call}"
    out, happened = strategy.folder / re.sub(r"\W+", "-", name), strategy.folder / f"happened {name}"
    run = strategy.start(name, out, SFTRUN_STANDIN_NCCL_FAULT=name, SFTRUN_STANDIN_NCCL_FAULT_FILE=str(happened),
                         SFTRUN_STANDIN_NCCL_FAULT_SECONDS=str(LATE_S.get(fault, 0)))
    ended, run.folder, wrong = time.time(), out, []
    if not any(event["event"] == "nccl_fault" for event in run.events(rank)):
        wrong.append("the fault did not happen")
    elif fault == "late":
        wrong += [f"exit code {run.code}"] if run.code else []
    else:
        wrong += check_ended(run, fault, rank, ended - happened.stat().st_mtime)
        kept = [path.name for path in (out / "checkpoints").glob("step-*")] if (out / "checkpoints").exists() else []
        again = strategy.start(f"{name} again", out)
        wrong += [f"it does not go on: {again.output[-2000:]}"] if again.code else []
        if kept and not any(f"resuming from {out}/checkpoints/{one}" in again.output for one in kept):
            wrong.append(f"none of {kept} was read: {again.output[-2000:]}")
    if not wrong and losses(out) != strategy.metrics:
        wrong.append(f"other metrics than without the fault: {json.dumps(losses(out))} and {json.dumps(strategy.metrics)}")
    wrong += [line for line in run.output.splitlines() if "stand-in:" in line]
    print(f"{'FAIL' if wrong else 'ok  '} {strategy.name}, {name}", flush=True)
    return [f"{strategy.name}, {name}: {line}" for line in wrong] + ([run.output[-6000:]] if wrong else [])


def cases(strategies, everything):
    for name, strategy in strategies.items():
        for at, fault in enumerate(FAULTS):
            if not everything and (name, fault) not in QUICK:
                continue
            for place in PLACES[:2 if everything else 1]:
                rank = (at + (place == PLACES[-1])) % strategy.devices
                yield strategy, fault, rank, int(place * strategy.calls[rank])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--stand-in", required=True, type=pathlib.Path)
    parser.add_argument("--all", action="store_true", help="every fault of every strategy, at two calls")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name (strategy, fault) one of these finds")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for all runs and logs, which stays")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_args()
    chosen = lambda name: not arguments.only or any(re.search(word, name) for word in arguments.only)  # noqa: E731
    failures, number = [], 0
    with tempfile.TemporaryDirectory() as temporary, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        folder = (arguments.keep or pathlib.Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        session = stand_in.Session(arguments.sftrun.resolve(), arguments.stand_in.resolve(), folder)
        wanted = {name for name in STRATEGIES for fault in FAULTS
                  if (arguments.all or (name, fault) in QUICK) and chosen(f"{name}, {fault}")}
        strategies = dict(zip(sorted(wanted), pool.map(lambda name: Strategy(session, name), sorted(wanted))))
        found = [case for case in cases(strategies, arguments.all) if chosen(f"{case[0].name}, {case[1]}")]
        for lines in pool.map(lambda case: check(*case), found):
            number += 1
            failures += lines
    for failure in failures:
        print(f"FAIL {failure}")
    print(f"nccl faults: {number} cases, {'failed' if failures else 'ok'}")
    return 1 if failures or number == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
