"""The chat-data work of bench/run.py: what the conversations are, and `sftrun train` measured on them."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.02  # how late the first step may be seen


@dataclass(frozen=True)
class Conversations:
    """`lengths` are of those kept, in tokens; `num_left_out` were longer than the limit."""

    path: Path
    lengths: list[int]
    label_tokens: int
    num_left_out: int

    @property
    def tokens(self) -> int:
        return sum(self.lengths)

    def length_at(self, share: float) -> int:
        return sorted(self.lengths)[min(len(self.lengths) - 1, int(share * len(self.lengths)))]

    def filling(self, tokens: int) -> int:
        """How many conversations hold `tokens` on average."""
        return max(1, round(tokens / statistics.mean(self.lengths)))

    def require_same_as(self, peer: dict) -> None:
        ours = {"conversations": len(self.lengths), "tokens": self.tokens, "label_tokens": self.label_tokens}
        if ours != peer:
            sys.exit(f"the two sides do not train on the same tokens: sftrun {ours}, peer {peer}")


def read_conversations(path: Path, args) -> Conversations:
    with tempfile.TemporaryDirectory() as directory:
        output = Path(directory) / "tokenized.jsonl"
        command = [args.sftrun, "tokenize", "--model", args.model, "--chat"]
        subprocess.run([*command, "--input", str(path), "--output", str(output)], check=True)
        records = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    kept = [record for record in records if len(record["input_ids"]) <= args.seq_len]
    if not kept:
        sys.exit(f"{path} has no conversation of at most {args.seq_len} tokens")
    return Conversations(
        path=path,
        lengths=[len(record["input_ids"]) for record in kept],
        label_tokens=sum(sum(record["assistant_mask"]) for record in kept),
        num_left_out=len(records) - len(kept),
    )


LORA = {"r": 8, "alpha": 16, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]}


def train_settings(args) -> dict:
    """Of every run that is measured."""
    return {
        "max_steps": args.steps + 1,  # the first warms up
        "batch_size": args.batch_size,
        "grad_accum": 1,
        "learning_rate": 2e-4,
        "scheduler": "constant",
        "eval_strategy": "no",
        "save_every": "0",  # only after the last step
    }


def run_config(dtype: str, run: Path, args) -> dict:
    """Packing and labels on assistant tokens are defaults; they are written out because they are what is measured."""
    return {
        "model": {"name": str(Path(args.model).resolve()), "max_seq_len": args.seq_len, "dtype": dtype},
        "tuning": {
            "mode": "lora" if args.quant == "none" else "qlora",
            "quant": args.quant,
            "lora": LORA,
        },
        "data": {
            "train": str(Path(args.chat_data).resolve()),
            "format": "messages",
            "loss_on": "assistant",
            "packing": True,
            "too_long": "drop",
        },
        "train": train_settings(args),
        "output": {"dir": str(run), "tensorboard": False},
    }


def training_lines(metrics: Path) -> list[dict]:
    """Whole lines of metrics.jsonl; its last may be half written."""
    if not metrics.exists():
        return []
    return [json.loads(line) for line in metrics.read_text().splitlines(keepends=True) if line.endswith("\n")]


def peak_resident_bytes(pid: int) -> int:
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def processor_seconds_of(launcher: int) -> float:
    """Of the launcher's workers."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(fields[1]) == launcher:  # ppid of proc(5); then utime and stime
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_sftrun(dtype: str, processors: list[int], env: dict[str, str], args) -> dict:
    result = measure_training(lambda run: run_config(dtype, run, args), args.sftrun, args.steps, processors, env)
    return result | {"dtype": dtype, "filled": statistics.mean(result["step_tokens"]) / (args.batch_size * args.seq_len)}


def measure_training(config_of, sftrun: str, steps: int, processors: list[int], env: dict[str, str]) -> dict:
    """Runs `sftrun train`: a launcher and one worker. The first step is done when its line stands in metrics.jsonl; memory
    is the peak of the worker and that of the launcher.   @param config_of gives the configuration of a run in a folder, of steps + 1 steps"""
    with tempfile.TemporaryDirectory(prefix="sftrun-bench-") as directory:
        run, config, console = (Path(directory) / name for name in ("run", "run.yaml", "console"))
        config.write_text(json.dumps(config_of(run)))  # JSON is YAML
        command = [sftrun, "train", "--config", str(config), "--nproc-per-node", "1", "--device", "cpu"]
        first_step_seconds, launcher_bytes = None, 0
        used = []  # processor seconds of the worker when the line of a step was seen
        began = time.perf_counter()
        with console.open("w") as output:
            process = subprocess.Popen(
                command,
                env=env,
                preexec_fn=lambda: os.sched_setaffinity(0, processors),
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                while process.poll() is None:
                    time.sleep(POLL_SECONDS)
                    done = len(training_lines(run / "metrics.jsonl"))
                    if done > len(used):
                        used += [processor_seconds_of(process.pid)] * (done - len(used))
                    if done and first_step_seconds is None:
                        first_step_seconds = time.perf_counter() - began
                        launcher_bytes = peak_resident_bytes(process.pid)
                returncode = process.wait()
            except BaseException:
                process.terminate()  # it ends its worker
                process.wait()
                raise
        lines = training_lines(run / "metrics.jsonl")
        if returncode != 0 or first_step_seconds is None or len(lines) != steps + 1:
            told = console.read_text()[-4000:]
            sys.exit(f"sftrun ended with {returncode} after {len(lines)} steps:\n{told}")
    timed = lines[1:]
    speeds = [line["tokens_per_second"] for line in timed]
    return {
        "tokens_per_second": statistics.median(speeds),
        "tokens_per_second_best": max(speeds),
        "step_seconds": [line["step_seconds"] for line in timed],
        "step_tokens": [line["tokens"] for line in timed],
        "processor_seconds": [after - before for before, after in zip(used, used[1:]) if after > before],
        "first_step_seconds": first_step_seconds,
        "peak_memory_bytes": max(lines[-1]["peak_memory_bytes"]) + launcher_bytes,
        "launcher_bytes": launcher_bytes,
        "world_size": 1,
        "loss": lines[-1]["loss"],
        "losses": [line["loss"] for line in lines],
    }
