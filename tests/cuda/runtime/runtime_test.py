#!/usr/bin/env python3
"""The unmodified program over libraries that stand in for CUDA's: what it asks of its devices, without one. Standard library only.

    tests/cuda/runtime/runtime_test.py --sftrun build/bin/sftrun --stand-in build/stand-in-runtime --torch-lib …/torch/lib
        [--all] [--only REGEX …] [--counts FILE] [--jobs N]

cases   train (with evaluation, checkpoints and a resumed run), score and generate: exit code 0; no line of the stand-in's own; all that
        rank r does is done on device r; at the end no registered host memory and no NCCL communicator is open
small   a device that is too small ends the run with an error that says so, and what helps
device_map  one process with the layers on two devices
fallback  without our CUDA library --device auto computes on the CPU
graphs  micro-batches of one shape are captured once and then launched as one; where they cannot be, the log says why
counts  by differences between runs: launches of a layer, forward and backward; copies, waits and allocations of a micro-batch and of a step

Kernels do not run, and device memory reads as zero: no number that the program prints means anything. --all runs every family with every
mode. Without it every sixth family is met, and every mode once but for four optimizers of LoRA; few runs are resumed, one is scored, graphs
are of the families that have code of their own, and counts leave out what has no limit. What is open in LD_PRELOAD stays, behind the stand-in.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path[:0] = [str(folder) for folder in pathlib.Path(__file__).resolve().parents[:2]]
import counting  # noqa: E402
import graphs  # noqa: E402
import stand_in  # noqa: E402
from cases import DENSE, Case, all_cases, chosen_cases  # noqa: E402
from tiny_models import dense_model, family_model, write_texts  # noqa: E402

TRAINED, KEPT = 4, 2  # steps of a run, and the step of the checkpoint that it resumes from
TEXTS = 24
TOO_SMALL_MIB = 40
# Every tensor is an allocation of its own: what is beyond it is found out, and as no kernel writes results, they read as zero and not as what
# lay there before. The counts are with LibTorch's caching.
UNCACHED = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
UNCLEAN = "destroy_process_group() was not called"


class Failures:
    """What does not hold, each with the case it was seen in."""

    def __init__(self):
        self.lines = []

    def expect(self, case, what, holds):
        if not holds:
            self.lines.append(f"{case}: {what}")
        return holds


def last_lines(text, count=4):
    return " | ".join(line for line in text.strip().splitlines()[-count:])


def foreign(events, rank):
    """Kinds of what was done on another device than the rank's own, and how often."""
    found = {}
    for event in events:
        devices = {event.get(key, rank) for key in ("device", "stream_device", "buffer_device")}
        if event["event"] in stand_in.ON_A_DEVICE and devices != {rank}:
            found[event["event"]] = found.get(event["event"], 0) + 1
    return found


def late_pairs(events):
    """How many communicators of messages between two ranks were made after the first matrix product."""
    found, computes, is_late = 0, False, False
    for event in events:
        if event["event"] == "product":
            computes = True
        elif event["event"] == "nccl_init":
            is_late = computes
        elif event["event"] == "nccl":
            found += is_late and event["kind"] in ("send", "receive")
            is_late = False
    return found


def check_rank(failures, name, rank, events):
    elsewhere = foreign(events, rank)
    failures.expect(name, f"rank {rank} uses another device than {rank}: {elsewhere}", not elsewhere)
    for process in stand_in.processes(events):
        # An all-to-all is a group of such messages, too, and the group of its ranks connects when it is first used.
        pairs = 0 if "context" in name else late_pairs(process)
        failures.expect(name, f"rank {rank} connects to {pairs} stages in its first passes", pairs == 0)
        registered, communicators = stand_in.left_open(process)
        failures.expect(name, f"rank {rank} leaves {registered} registered ranges of host memory", registered == 0)
        failures.expect(name, f"rank {rank} leaves {communicators} NCCL communicators", communicators == 0)


def check_run(failures, name, run, devices):
    """True if what was run can be read on."""
    text = run.output
    own = [line for line in text.splitlines() if "stand-in:" in line]
    failures.expect(name, own[0].strip() if own else "", not own)
    failures.expect(name, f"LibTorch warns: {UNCLEAN}", UNCLEAN not in text)
    ended = failures.expect(name, f"exit code {run.code}: {last_lines(text)}", run.code == 0)
    for rank in range(devices):
        events = run.events(rank)
        if failures.expect(name, f"rank {rank} uses no device", bool(events)):
            check_rank(failures, name, rank, events)
    return ended


def check_metrics(failures, name, out, devices):
    busy = [line["gpu_utilization"] for line in stand_in.metrics(out) if "loss" in line]
    failures.expect(name, f"gpu_utilization {busy}", all(one == [40 + rank for rank in range(devices)] for one in busy))
    for line in (line for line in stand_in.metrics(out) if "loss" in line):
        # Any two events are a millisecond apart here, so the sum says nothing.
        parts = {part: line[f"{part}_seconds"] for part in ("data", "forward", "backward", "communication", "optimizer")}
        failures.expect(name, f"parts of step {line['step']}: {parts}",
                        all(seconds > 0 for part, seconds in parts.items() if part != "communication" or devices > 1))
    steps = [line["step"] for line in stand_in.metrics(out) if "loss" in line]
    evaluated = [line["step"] for line in stand_in.metrics(out) if "eval_loss" in line]
    failures.expect(name, f"steps {steps}, not 1 to {TRAINED}", steps == list(range(1, TRAINED + 1)))
    failures.expect(name, f"evaluated after {evaluated}", evaluated == [KEPT, TRAINED])


def train(session, failures, case, model, folder):
    """A whole run, and the same run from its first checkpoint on."""
    out = folder / "run"
    command = ["train", *case.arguments, f"model.name={model}", f"data.train={folder}/train.jsonl", f"data.val={folder}/val.jsonl",
               f"output.dir={out}", f"train.max_steps={TRAINED}", f"train.save_steps={KEPT}", f"train.eval_steps={KEPT}",
               "--nproc-per-node", str(case.devices)]
    run = session.run(f"{case.name}-train", command, case.devices, **UNCACHED)
    if not check_run(failures, f"{case.name}, train", run, case.devices):
        return None
    check_metrics(failures, f"{case.name}, train", out, case.devices)
    if case.resumes:
        command += ["--resume", out / f"checkpoints/step-{KEPT:06}"]
        again = session.run(f"{case.name}-resume", command, case.devices, **UNCACHED)
        if check_run(failures, f"{case.name}, resume", again, case.devices):
            check_metrics(failures, f"{case.name}, resume", out, case.devices)
    return out


def answer(session, failures, case, model, folder, out):
    """generate, and score where the case has it; of the adapter where there is one."""
    trained = out / "model" if (out / "model").exists() else model
    of = ["--adapter", out / "adapter"] if (out / "adapter").exists() else ["--model", trained]
    if case.scores:
        scored = session.run(f"{case.name}-score", ["score", *of, "--input", folder / "val.jsonl", "--output", folder / "scores.jsonl",
                                                    "--device", "cuda"], 1, **UNCACHED)
        if check_run(failures, f"{case.name}, score", scored, 1):
            lines = (folder / "scores.jsonl").read_text().splitlines()
            failures.expect(f"{case.name}, score", f"{len(lines)} records", len(lines) == len((folder / "val.jsonl").read_text().splitlines()))
    wrote = session.run(f"{case.name}-generate", ["generate", *of, "--prompt", "123", "--max-new-tokens", "3", "--device", "cuda"], 1,
                        **UNCACHED)
    check_run(failures, f"{case.name}, generate", wrote, 1)


def check_case(session, case):
    failures = Failures()
    folder = session.folder / re.sub(r"\W+", "-", case.name)
    model = dense_model(folder / "model", 2, counting.HIDDEN) if case.family == DENSE else family_model(folder / "model", case.family)
    write_texts(folder / "train.jsonl", TEXTS)
    write_texts(folder / "val.jsonl", 4)
    out = train(session, failures, case, model, folder)
    if out and case.answers:
        answer(session, failures, case, model, folder, out)
    print(f"{'FAIL' if failures.lines else 'ok  '} {case.name}", flush=True)
    return failures.lines


def check_small_device(session):
    """Beyond the device's memory the program says what is missing, and does not crash."""
    failures, folder = Failures(), session.folder / "small"
    model = dense_model(folder / "model", layers=2, hidden=1024)
    write_texts(folder / "train.jsonl", TEXTS)
    command = ["train", *Case("small", "llama", "full").arguments, f"model.name={model}", f"data.train={folder}/train.jsonl",
               f"output.dir={folder}/run", "train.max_steps=1", "train.eval_strategy=no"]
    run = session.run("small", command, 1, SFTRUN_STANDIN_MIB=str(TOO_SMALL_MIB))
    failures.expect("small device", f"ends with {run.code}: {last_lines(run.output)}", run.code in range(1, 128))
    failures.expect("small device", f"says what is missing: {last_lines(run.output)}", "memory" in run.output)
    failures.expect("small device", "an allocation failed", any(event.get("failed") for event in run.events(0)))
    failures.expect("small device", "no line of the stand-in", "stand-in:" not in run.output)
    advised = "does not fit" in run.output and "train.batch_size" not in run.output
    failures.expect("small device", f"advice is about the model: {last_lines(run.output)}", advised)
    command = ["generate", "--model", model, "--prompt", "123", "--max-new-tokens", "3", "--device", "cuda"]
    wrote = session.run("small generate", command, 1, SFTRUN_STANDIN_MIB=str(TOO_SMALL_MIB // 2))
    advised = wrote.code == 4 and "does not fit" in wrote.output and "train." not in wrote.output
    failures.expect("small device, generate", f"ends with {wrote.code}: {last_lines(wrote.output)}", advised)
    return failures.lines


def check_device_map(session):
    """One process drives two devices from two threads: both have work, the same messages pass on both, and nothing stays open."""
    failures, name = Failures(), "device_map"
    folder = session.folder / name
    folder.mkdir()
    write_texts(folder / "train.jsonl", TEXTS)
    (folder / "run.yaml").write_text("model: {max_seq_len: 64, dtype: bf16}\ndata: {cache_dir: none}\n"
                                     "train: {max_steps: 2, batch_size: 1, grad_accum: 4}\nparallel: {device_map: auto}\n")
    command = ["train", "--config", folder / "run.yaml", f"model.name={dense_model(folder / 'model', 4, 64)}",
               f"data.train={folder}/train.jsonl", f"output.dir={folder}/run"]
    run = session.run(name, command, 2, SFTRUN_STANDIN_THREADS="1")
    failures.expect(name, f"exit code {run.code}: {last_lines(run.output)}", run.code == 0)
    count = collections.Counter((event["event"], event.get("device")) for event in run.events(0))
    for event in ("launch", "product", "nccl"):
        failures.expect(name, f"{event}: {count[event, 0]} and {count[event, 1]}", count[event, 0] > 0 and count[event, 1] > 0)
    failures.expect(name, "as many messages on both", count["nccl", 0] == count["nccl", 1])
    failures.expect(name, "left open", stand_in.left_open(run.events(0)) == (0, 0))
    return failures.lines


def check_fallback(arguments, session):
    """Where our CUDA library does not load, --device auto computes on the CPU with a warning, and --device cuda ends the run."""
    failures, folder = Failures(), session.folder / "fallback"
    (folder / "bin").mkdir(parents=True)
    (folder / "lib").mkdir()
    shutil.copy2(arguments.sftrun, folder / "bin/sftrun")
    for library in (arguments.sftrun.parents[1] / "lib").glob("libsftrun_*.so"):
        (folder / "lib" / library.name).symlink_to(library)
    (folder / "lib/libsftrun_cuda.so").unlink()
    (folder / "lib/libsftrun_cuda.so").write_text("no library")
    broken = stand_in.Session(folder / "bin/sftrun", arguments.stand_in, folder)
    model = dense_model(folder / "model", layers=1, hidden=64)
    write_texts(folder / "train.jsonl", TEXTS)
    for device in ("auto", "cuda"):
        arguments_of = [device if word == "cuda" else word for word in Case("fallback", "llama", "LoRA fp32").arguments]
        command = ["train", *arguments_of, f"model.name={model}", f"data.train={folder}/train.jsonl", f"output.dir={folder}/run-{device}",
                   "train.max_steps=1", "train.eval_strategy=no"]
        run = broken.run(f"fallback {device}", command, 1)
        says = "computing on the CPU: the CUDA kernels" if device == "auto" else "CUDA was requested"
        good = (run.code == 0) == (device == "auto") and says in run.output
        failures.expect(f"fallback, --device {device}", f"ends with {run.code}: {last_lines(run.output)}", good)
    return failures.lines


def check_loading(arguments):
    """LibTorch's library finds every symbol it needs; a newer one may need more."""
    program = f"import ctypes; ctypes.CDLL({str(arguments.torch_lib / 'libtorch_cuda.so')!r})"
    done = subprocess.run([sys.executable, "-c", program], env=stand_in.environment(arguments.stand_in), capture_output=True, text=True)
    return [] if done.returncode == 0 else [f"libtorch_cuda.so does not load: {last_lines(done.stderr, 1)}"]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--stand-in", required=True, type=pathlib.Path, help="folder of the libraries")
    parser.add_argument("--torch-lib", required=True, type=pathlib.Path, help="LibTorch's folder of libraries")
    parser.add_argument("--all", action="store_true", help="every family with every mode, on one device and on two")
    parser.add_argument("--only", nargs="+", default=[], help="cases whose name one of these finds; small, device_map, fallback, graphs, counts and loading are names, too")
    parser.add_argument("--counts", type=pathlib.Path, help="where the table of counts goes, as JSON")
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for all runs and logs, which stays")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="runs at a time")
    arguments = parser.parse_args()
    arguments.sftrun, arguments.stand_in = arguments.sftrun.resolve(), arguments.stand_in.resolve()
    arguments.torch_lib = arguments.torch_lib.resolve()
    return arguments


def check(arguments, folder):
    session = stand_in.Session(arguments.sftrun, arguments.stand_in, folder)
    chosen = lambda name: not arguments.only or any(re.search(word, name) for word in arguments.only)  # noqa: E731
    failures = check_loading(arguments) if chosen("loading") else []
    cases = [case for case in (all_cases() if arguments.all else chosen_cases()) if chosen(case.name)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for lines in pool.map(lambda case: check_case(session, case), cases):
            failures += lines
        if chosen("small"):
            failures += check_small_device(session)
        if chosen("device_map"):
            failures += check_device_map(session)
        if chosen("fallback"):
            failures += check_fallback(arguments, session)
        if chosen("graphs"):
            failures += graphs.check(session, pool, arguments.all)
        if chosen("counts"):
            table, lines = counting.count(session, pool, arguments.all)
            failures += lines
            counting.show(table)
            if arguments.counts:
                counting.write(table, arguments.counts)
    return failures


def main():
    arguments = parse()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        failures = check(arguments, folder.resolve())
    for failure in failures:
        print(f"FAIL {failure}")
    print("runtime: failed" if failures else "runtime: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
