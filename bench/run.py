"""Training throughput, memory and time to the first step: `sftrun bench` against transformers + peft, interleaved.

    python bench/run.py --sftrun build/bin/sftrun                 # appends a dated section to bench/RESULTS.md
    python bench/run.py --sftrun build/bin/sftrun --chat          # the same on conversations instead of synthetic tokens
    python bench/run.py --sftrun build/bin/sftrun --quant nf4     # QLoRA, the peer with bitsandbytes; with --chat, too
    python bench/run.py --sftrun build/bin/sftrun --no-record     # prints the table only

Both sides load the demo's model where scripts/demo/prepare.py has fetched it, else get random weights of --arch.

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

import chat

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / ".cache"  # what scripts/demo/prepare.py writes
DEMO_MODEL = CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_DATA = CACHE / "demo" / "train.jsonl"
DEFAULT_ARCH = HERE / "arch" / "llama-135m.json"
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
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--model", help="directory in Hugging Face layout [the demo's, if fetched]")
    source.add_argument("--arch", help="config.json: random weights [bench/arch/llama-135m.json, if no model]")
    parser.add_argument("--quant", choices=["none", "nf4"], default="none", help="nf4: QLoRA, the peer with bitsandbytes")
    parser.add_argument("--chat", action="store_true", help="train on conversations; only the assistant's tokens labelled")
    parser.add_argument("--chat-data", default=str(DEMO_DATA), help="JSON lines of messages [the demo's]")
    parser.add_argument(
        "--peer-loss",
        choices=["transformers", "trl"],
        default="transformers",
        help="the peer's loss: the model's own over all logits at once; or TRL's, whose tiles of 4096 tokens by 32768\n"
        "vocabulary entries take more memory than all logits at sizes such as the default ones on a CPU",
    )
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument(
        "--peer-checkpointing",
        action="store_true",
        help="the peer with gradient checkpointing, as TRL's SFTConfig and peft's prepare_model_for_kbit_training have it\n"
        "unless told otherwise; sftrun without, as is its default",
    )
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
    if args.quant != "none" and args.arch:
        parser.error("--quant goes with a model's weights")
    if args.chat and args.device != "cpu":
        parser.error("--chat measures on the CPU only: metrics.jsonl has the memory of the process, not of a GPU")
    if not args.model and not args.arch:
        args.model = demo_model(args)
        args.arch = None if args.model else str(DEFAULT_ARCH)
    if args.chat and not (args.model and Path(args.chat_data).exists()):
        parser.error("--chat needs a model and conversations: run scripts/demo/prepare.py, or give both")
    return args


def demo_model(args) -> str | None:
    """The demo's model in Hugging Face layout, which the peer reads as well; None if it was not fetched."""
    if not DEMO_MODEL.exists():
        return None
    command = [args.peer_python, "-W", "ignore", str(HERE / "demo_directory.py"), str(DEMO_MODEL)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.strip().splitlines()[-1]


def command_of(side: str, dtype: str, args) -> list[str]:
    """Of every side but `sftrun` with --chat, which bench/chat.py measures."""
    work = ["--model", args.model] if args.model else ["--arch", args.arch]
    batch_size = args.peer_batch_size if args.chat else args.batch_size
    work += ["--seq-len", str(args.seq_len), "--batch-size", str(batch_size)]
    work += ["--steps", str(args.steps), "--dtype", dtype, "--device", args.device]
    if side == "sftrun":
        return [args.sftrun, "bench", *work, "--threads", str(args.threads), "--json", f"tuning.quant={args.quant}"]
    work += ["--quant", args.quant]
    work += ["--loss", args.peer_loss] + (["--chat", args.chat_data] if args.chat else [])
    work += ["--checkpointing"] if args.peer_checkpointing else []
    peer = [args.peer_python, "-W", "ignore", str(HERE / "peer_train.py")]
    return [*peer, *work, "--threads", str(args.threads)]


def measure(side: str, dtype: str, args) -> dict:
    processors = sorted(os.sched_getaffinity(0))[: args.threads]
    threads = str(len(processors))
    env = {**os.environ, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    if args.chat and side == "sftrun":
        result = chat.measure_sftrun(dtype, processors, env, args)
    else:
        result = measure_command(side, dtype, processors, env, args)
    peak = result["peak_memory_bytes"]
    result["peak_memory_mib"] = (max(peak) if isinstance(peak, list) else peak) / 2**20
    return result


def measure_command(side: str, dtype: str, processors: list[int], env: dict[str, str], args) -> dict:
    process = subprocess.run(
        command_of(side, dtype, args),
        env=env,
        preexec_fn=lambda: os.sched_setaffinity(0, processors),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    if process.returncode != 0:
        sys.exit(f"{side} {dtype} failed with {process.returncode}:\n{process.stderr[-4000:]}")
    return json.loads(process.stdout.strip().splitlines()[-1] if side == "peer" else process.stdout)


def run_rounds(dtype: str, args) -> dict[str, list[dict]]:
    results: dict[str, list[dict]] = {side: [] for side in SIDES}
    for round_index in range(args.rounds):
        for side in SIDES:
            result = measure(side, dtype, args)
            if args.chat and side == "peer":
                args.conversations.require_same_as(result["data"])
            results[side].append(result)
            speed = f"{result['tokens_per_second']:.1f} tokens/s"
            print(f"  {dtype} round {round_index + 1}/{args.rounds} {side}: {speed}", flush=True)
    return results


def table(results: dict[str, list[dict]], figures=None) -> list[str]:
    """@param figures as FIGURES, which are the default"""
    lines = ["| | sftrun | transformers + peft | ratio |", "|---|---|---|---|"]
    for name, key, show, larger_is_better in figures or FIGURES:
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


def method_of(args) -> str:
    return "LoRA" if args.quant == "none" else "QLoRA (NF4, factors quantised; the peer with bitsandbytes)"


def checkpointing_of(args) -> str:
    return "with gradient checkpointing (TRL's default)" if args.peer_checkpointing else "no gradient checkpointing"


def synthetic_work(args) -> list[str]:
    work = f"{method_of(args)} r 8 on q, k, v, o; {args.batch_size} x {args.seq_len} tokens a step, all labelled"
    weights = "loaded by both" if args.model else "random"
    loss = "; peer with TRL's loss, in tiles" if args.peer_loss == "trl" else ""
    rounds = f"{args.steps} timed steps, {args.rounds} interleaved rounds"
    checkpointing = f"; peer {checkpointing_of(args)}, sftrun without" if args.peer_checkpointing else ""
    return [f"- Work: {work}; weights {weights}; {rounds}{loss}{checkpointing}"]


def chat_work(by_dtype: dict[str, dict[str, list[dict]]], args) -> list[str]:
    """What each side does in a step; the padding of both is measured."""
    data = args.conversations
    runs = {side: [r for results in by_dtype.values() for r in results[side]] for side in SIDES}
    filled = {side: f"{statistics.mean(r['filled'] for r in runs[side]):.0%}" for side in SIDES}
    tokens = {side: round(statistics.mean(t for r in runs[side] for t in r["step_tokens"])) for side in SIDES}
    loss = {"transformers": "transformers' loss, all logits at once", "trl": "TRL's loss, in tiles"}[args.peer_loss]
    source = "the demo's, made by scripts/demo/prepare.py" if data.path == DEMO_DATA else data.path.name
    left_out = f"; {data.num_left_out} longer ones left out" if data.num_left_out else ""
    return [
        f"- Work: {method_of(args)} r 8 on q, k, v, o; conversations, only the assistant's tokens labelled; tokens/s counts "
        f"every token but padding; {args.steps} timed steps, {args.rounds} interleaved rounds",
        f"- Data: {source}: {len(data.lengths)} conversations of at most {args.seq_len} tokens{left_out}; "
        f"{data.length_at(0.5)} tokens at the median, {data.length_at(0.95)} at 95%, {max(data.lengths)} the longest; "
        f"{data.label_tokens / data.tokens:.0%} of the tokens labelled",
        f"- sftrun's step: `train` with packing, one micro-batch of {args.batch_size} bins of {args.seq_len} tokens, "
        f"{filled['sftrun']} filled: {tokens['sftrun']} tokens; saves after the last step only",
        f"- Peer's step: {args.peer_batch_size} conversations, which hold {args.batch_size} x {args.seq_len} tokens on "
        f"average, padded to the longest of them, {filled['peer']} filled: {tokens['peer']} tokens; attention mask; {loss}; "
        f"{checkpointing_of(args)}",
    ]


def section(by_dtype: dict[str, dict[str, list[dict]]], args) -> str:
    peer_versions = next(iter(by_dtype.values()))["peer"][0]["versions"]
    version = subprocess.run([args.sftrun, "--version"], capture_output=True, text=True).stdout
    machine = f"{processor()}, {args.threads} threads"
    if args.device == "cuda":
        machine += f"; {accelerator()}"
    load = os.getloadavg()[0]
    name = Path(args.model).name if args.model else Path(args.arch).stem
    work = chat_work(by_dtype, args) if args.chat else synthetic_work(args)
    lines = [
        f"## {datetime.date.today().isoformat()}: {name}{', chat data' if args.chat else ''}, {args.device}",
        "",
        f"- Machine: {machine}; load average at the end {load:.1f}",
        *work,
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
    if args.chat:
        args.conversations = chat.read_conversations(Path(args.chat_data), args)
        args.peer_batch_size = args.conversations.filling(args.batch_size * args.seq_len)
    by_dtype = {dtype: run_rounds(dtype, args) for dtype in args.dtypes}
    text = section(by_dtype, args)
    print("\n" + text)
    if not args.no_record:
        record(text, Path(args.output))


if __name__ == "__main__":
    main()
