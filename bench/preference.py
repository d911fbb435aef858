"""Preference training: `sftrun train` with objective dpo against TRL's DPOTrainer on the same pairs, interleaved.

    python bench/preference.py --sftrun build/bin/sftrun                 # appends a dated section to bench/RESULTS.md
    python bench/preference.py --sftrun build/bin/sftrun --no-record     # prints the table only

The model has the size of SmolLM2-135M and random weights. A step is one pair of sequences of --seq-len tokens, so neither side pads. LoRA from one adapter, whose start is the
reference model; the losses of both sides must agree at every step, or the script stops.

Each measurement is a process of its own; the two sides take turns. Figures are medians over rounds; a ratio above 1 is in sftrun's favour. Memory is that of the process,
with its libraries and its weights; "beyond the libraries" is what is beyond the peak of a process that only loads them.
"""

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import chat
import run

HERE = Path(__file__).resolve().parent
# Of the losses of a step. The peer adds log-probabilities in the dtype of the logits: in fp32 a sum over 1536 tokens of random weights is near -17,000,
# where neighbouring numbers are 0.002 apart, and beta 0.1 of four such sums is in the loss.
AGREEMENT = {"fp32": 1e-3, "bf16": 6e-2}
MIB = 2**20
BETA = 0.1
FIGURES = [*run.FIGURES, ("peak memory beyond the libraries, MiB", "beyond_libraries_mib", lambda v: f"{v:.0f}", False)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True, help="the program to measure")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch, transformers, peft, trl")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a sequence; a pair has two")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of them that are the prompt")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--recompute", default="false", choices=["false", "attention", "mlp", "true"], help="train.gradient_checkpointing of sftrun")
    parser.add_argument("--peer-checkpointing", action="store_true", help="the peer with gradient checkpointing, TRL's default; sftrun without, as is its default")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", default=str(HERE / "RESULTS.md"))
    parser.add_argument("--no-record", action="store_true", help="do not write --output")
    args = parser.parse_args()
    if args.rounds < 3 and not args.no_record:
        parser.error("fewer than 3 rounds are not worth recording: give --rounds 3 or --no-record")
    args.sftrun, args.batch_size = str(Path(args.sftrun).resolve()), 1
    return args


def run_config(dtype: str, folder: Path, output: Path, args) -> dict:
    return {
        "model": {"name": str(folder / "base"), "max_seq_len": args.seq_len, "dtype": dtype},
        "tuning": {"mode": "lora", "lora": chat.LORA | {"init_from": str(folder / "adapter")}},
        "data": {"train": str(folder / "pairs.jsonl"), "packing": True, "shuffle": False, "cache_dir": "none"},
        "train": chat.train_settings(args)
        | {"objective": "dpo", "beta": BETA, "warmup_steps": 0, "weight_decay": 0.0, "max_grad_norm": 1.0, "longest_batch_first": "off", "gradient_checkpointing": args.recompute},
        "output": {"dir": str(output), "tensorboard": False},
    }


def run_peer(arguments: list[str], processors: list[int], env: dict[str, str], args) -> dict:
    command = [args.peer_python, "-W", "ignore", str(HERE / "peer_preference.py"), *arguments, "--threads", str(args.threads)]
    process = subprocess.run(
        command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, processors), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    if process.returncode != 0:
        sys.exit(f"the peer failed with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.strip().splitlines()[-1])


def libraries_of(side: str, folder: Path, processors: list[int], env: dict[str, str], args) -> int:
    """Peak bytes of a process that has loaded its libraries and no model to speak of."""
    if side == "peer":
        return run_peer(["--folder", str(folder), "--only-import"], processors, env, args)["peak_memory_bytes"]
    arch = folder / "tiny.json"
    tiny = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 64}
    arch.write_text(json.dumps(json.loads((HERE / "arch" / "llama-135m.json").read_text()) | tiny))
    command = [args.sftrun, "bench", "--arch", str(arch), "--seq-len", "8", "--batch-size", "1", "--steps", "1", "--device", "cpu", "--json"]
    done = subprocess.run(command, env=env, preexec_fn=lambda: os.sched_setaffinity(0, processors), stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout)["peak_memory_bytes"]


def measure(side: str, dtype: str, folder: Path, args) -> dict:
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    threads = str(len(processors))
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if side == "sftrun":
        result = chat.measure_training(lambda output: run_config(dtype, folder, output, args), args.sftrun, args.steps, processors, env)
    else:
        work = ["--folder", str(folder), "--steps", str(args.steps), "--dtype", dtype, "--beta", str(BETA), "--max-length", str(args.seq_len)]
        result = run_peer(work + (["--checkpointing"] if args.peer_checkpointing else []), processors, env, args)
    libraries = libraries_of(side, folder, processors, env, args) + result.get("launcher_bytes", 0)
    result["peak_memory_mib"] = result["peak_memory_bytes"] / MIB
    result["beyond_libraries_mib"] = (result["peak_memory_bytes"] - libraries) / MIB
    return result


def require_same_losses(dtype: str, ours: list[float], theirs: list[float]) -> float:
    """@return the largest relative difference"""
    differences = [abs(a - b) / abs(b) for a, b in zip(ours, theirs, strict=True)]
    if max(differences) > AGREEMENT[dtype]:
        sys.exit(f"the two sides do not train the same, {dtype}: losses of sftrun {ours}, of the peer {theirs}")
    return max(differences)


def run_rounds(dtype: str, folder: Path, args) -> dict[str, list[dict]]:
    results: dict[str, list[dict]] = {side: [] for side in run.SIDES}
    for round_index in range(args.rounds):
        for side in run.SIDES:
            results[side].append(measure(side, dtype, folder, args))
            speed = f"{results[side][-1]['tokens_per_second']:.1f} tokens/s, {results[side][-1]['peak_memory_mib']:.0f} MiB"
            print(f"  {dtype} round {round_index + 1}/{args.rounds} {side}: {speed}", flush=True)
        results["sftrun"][-1]["difference"] = require_same_losses(dtype, *(results[side][-1]["losses"] for side in run.SIDES))
    return results


def section(by_dtype: dict[str, dict[str, list[dict]]], args) -> str:
    peer = next(iter(by_dtype.values()))["peer"][0]
    version = subprocess.run([args.sftrun, "--version"], capture_output=True, text=True).stdout
    lines = [
        f"## {datetime.date.today().isoformat()}: preference training (dpo), llama-135m, cpu",
        "",
        f"- Machine: {run.processor()}, {args.threads} threads; load average at the end {os.getloadavg()[0]:.1f}",
        f"- Work: LoRA r 8 on q, k, v, o, random weights; a step: a pair of 2 x {args.seq_len} tokens, prompts of {args.prompt}; the reference model is the adapter's start, "
        f"scored in every step; {args.steps} timed steps, {args.rounds} interleaved rounds",
        f"- Program: {' '.join(version.splitlines()[0].split()) if version else 'version unknown'}: `sftrun train`, launcher's memory counted; train.gradient_checkpointing {args.recompute}",
        f"- Peer: {', '.join(f'{name} {number}' for name, number in peer['versions'].items())}; DPOTrainer; {'with' if args.peer_checkpointing else 'no'} gradient checkpointing",
    ]
    for dtype, results in by_dtype.items():
        lines += ["", f"### {dtype}", "", *run.table(results, FIGURES)]
        difference = max(result["difference"] for result in results["sftrun"])
        lines += [f"Losses of the {args.steps + 1} steps differ by at most {difference:.0e}."]
    return "\n".join(lines) + "\n"


def main() -> None:
    args = parse_arguments()
    with tempfile.TemporaryDirectory(prefix="sftrun-preference-") as directory:
        folder = Path(directory)
        # In a process of its own: it takes memory that a measured process would not get back.
        make = [args.peer_python, "-W", "ignore", str(HERE / "preference_data.py"), str(folder), str(args.seq_len), str(args.prompt), str(args.steps + 1)]
        subprocess.run(make, check=True, stderr=subprocess.DEVNULL)
        by_dtype = {dtype: run_rounds(dtype, folder, args) for dtype in args.dtypes}
    text = section(by_dtype, args)
    print("\n" + text)
    if not args.no_record:
        run.record(text, Path(args.output))


if __name__ == "__main__":
    main()
