"""Training throughput, memory and time to the first step: `sftrun bench` against transformers + peft, interleaved.

    python bench/run.py --sftrun build/bin/sftrun                 # appends a dated section to bench/RESULTS.md
    python bench/run.py --sftrun build/bin/sftrun --no-record     # prints the table only

Each measurement is a process of its own; the two sides take turns (A B A B …), so that a slow minute of the machine hits
both. Both get the same processors. Figures are medians over rounds; a ratio above 1 is in sftrun's favour.
"""

import argparse
import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
INTERESTING_FLAGS = ["avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"]
SIDES = ["sftrun", "peer"]
# name, key of the JSON, how to print, whether larger is better
FIGURES = [
    ("tokens/s, median step", "tokens_per_second", lambda v: f"{v:.1f}", True),
    ("tokens/s, best step", "tokens_per_second_best", lambda v: f"{v:.1f}", True),
    ("first step done, s from process start", "first_step_seconds", lambda v: f"{v:.2f}", False),
    ("peak memory, MiB", "peak_memory_mib", lambda v: f"{v:.0f}", False),
]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True, help="the program to measure")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch, transformers, peft")
    parser.add_argument("--arch", default=str(HERE / "arch" / "llama-135m.json"))
    parser.add_argument("--model", help="directory in Hugging Face layout, instead of --arch")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--seq-len", type=int, default=512)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--output", default=str(HERE / "RESULTS.md"))
    parser.add_argument("--no-record", action="store_true", help="do not write --output")
    args = parser.parse_args()
    if args.rounds < 3 and not args.no_record:
        parser.error("fewer than 3 rounds are not worth recording: give --rounds 3 or --no-record")
    return args


def command_of(side: str, dtype: str, args) -> list[str]:
    work = ["--model", args.model] if args.model else ["--arch", args.arch]
    work += ["--seq-len", str(args.seq_len), "--batch-size", str(args.batch_size)]
    work += ["--steps", str(args.steps), "--dtype", dtype, "--device", args.device]
    if side == "sftrun":
        return [args.sftrun, "bench", *work, "--threads", str(args.threads), "--json"]
    peer = [args.peer_python, "-W", "ignore", str(HERE / "peer_train.py")]
    return [*peer, *work, "--threads", str(args.threads)]


def measure(side: str, dtype: str, args) -> dict:
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    threads = str(len(processors))
    process = subprocess.run(
        command_of(side, dtype, args),
        env={**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode != 0:
        sys.exit(f"{side} {dtype} failed with {process.returncode}:\n{process.stderr[-4000:]}")
    result = json.loads(process.stdout.strip().splitlines()[-1] if side == "peer" else process.stdout)
    peak = result["peak_memory_bytes"]
    result["peak_memory_mib"] = (max(peak) if isinstance(peak, list) else peak) / 2**20
    return result


def run_rounds(dtype: str, args) -> dict[str, list[dict]]:
    results: dict[str, list[dict]] = {side: [] for side in SIDES}
    for round_index in range(args.rounds):
        for side in SIDES:
            result = measure(side, dtype, args)
            results[side].append(result)
            speed = f"{result['tokens_per_second']:.1f} tokens/s"
            print(f"  {dtype} round {round_index + 1}/{args.rounds} {side}: {speed}", flush=True)
    return results


def table(results: dict[str, list[dict]]) -> list[str]:
    lines = ["| | sftrun | transformers + peft | ratio |", "|---|---|---|---|"]
    for name, key, show, larger_is_better in FIGURES:
        ours, theirs = (statistics.median(r[key] for r in results[side]) for side in SIDES)
        ratio = ours / theirs if larger_is_better else theirs / ours
        lines.append(f"| {name} | {show(ours)} | {show(theirs)} | {ratio:.2f} |")
    per_round = {side: ", ".join(f"{r['tokens_per_second']:.0f}" for r in results[side]) for side in SIDES}
    lines += ["", f"Tokens/s by round: sftrun {per_round['sftrun']}; peer {per_round['peer']}."]
    return lines


def processor() -> str:
    info = Path("/proc/cpuinfo").read_text()
    fields = dict(
        (part.strip() for part in line.split(":", 1)) for line in info.splitlines() if ":" in line
    )
    flags = [flag for flag in INTERESTING_FLAGS if flag in fields.get("flags", "").split()]
    return f"{fields.get('model name', platform.machine())} ({' '.join(flags) or 'no vector flags'})"


def accelerator() -> str:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def section(by_dtype: dict[str, dict[str, list[dict]]], args) -> str:
    peer_versions = next(iter(by_dtype.values()))["peer"][0]["versions"]
    version = subprocess.run([args.sftrun, "--version"], capture_output=True, text=True).stdout
    machine = f"{processor()}, {args.threads} threads"
    if args.device == "cuda":
        machine += f"; {accelerator()}"
    load = os.getloadavg()[0]
    work = f"LoRA r 8 on q, k, v, o; {args.batch_size} x {args.seq_len} tokens a step, all labelled"
    lines = [
        f"## {datetime.date.today().isoformat()}: {Path(args.model or args.arch).stem}, {args.device}",
        "",
        f"- Machine: {machine}; load average at the end {load:.1f}",
        f"- Work: {work}; {args.steps} timed steps, {args.rounds} interleaved rounds",
        f"- Program: {' '.join(version.splitlines()[0].split()) if version else 'version unknown'}",
        f"- Peer: {', '.join(f'{name} {number}' for name, number in peer_versions.items())}",
    ]
    for dtype, results in by_dtype.items():
        lines += ["", f"### {dtype}", "", *table(results)]
    return "\n".join(lines) + "\n"


def record(text: str, path: Path) -> None:
    header = "# Benchmark results\n\nWritten by bench/run.py, newest last. A ratio above 1 is in sftrun's favour.\n"
    existing = path.read_text() if path.exists() else header
    path.write_text(existing.rstrip("\n") + "\n\n" + text)


def main() -> None:
    args = parse_arguments()
    by_dtype = {dtype: run_rounds(dtype, args) for dtype in args.dtypes}
    text = section(by_dtype, args)
    print("\n" + text)
    if not args.no_record:
        record(text, Path(args.output))


if __name__ == "__main__":
    main()
