"""`sftrun train` and other trainers on the same work, in turn: tokens/s of a steady state, losses by step, clocks and power.

    python bench/compare.py --sftrun build/bin/sftrun --arch bench/arch/qwen3-8b.json --lengths azure-conversations --seq-len 2048     # on a GPU
    python bench/compare.py … --recompute --sides sftrun trl-liger --rounds 3 --json
    python bench/compare.py --one trl --work DIR …      # one run over a prepared folder; prints JSON

Lengths: a table of bench/lengths.json (real conversations, packed, answers labelled), or `uniform` (each packed sequence one document, every token labelled).
Every side loads the same model of random weights, made once. Sides take turns (A B A B). A side that is not installed, or that fails, is a result: its last words
are kept, and the others go on. Steps before the steady state do not count.

sftrun          the program's `train`, from its launcher to metrics.jsonl
trl, trl-liger  TRL's SFTTrainer, the latter with Liger's kernels; the same tokens in the same steps, from the same adapter: losses are compared
trl-flex        the latter with torch's flex_attention, which needs no further package for packed documents
unsloth         Unsloth over TRL; packs by itself, every token labelled
surogate        `surogate sft`; packs by itself, every token labelled
automodel       NeMo AutoModel's recipe of its published figures; `uniform` only, made-up tokens of its own

Standard library only; --peer-python has the packages of the Python sides. docs/gpu-check.md says how to read the result.
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import packed_work

HERE = pathlib.Path(__file__).resolve().parent
WARM_UP = 3  # steps before the steady state
LORA_R, LORA_ALPHA = 16, 32
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
SAME_STEPS = ("sftrun", "trl", "trl-liger", "trl-flex")  # the same tokens in the same steps
LOSS = {"bf16": 2e-2, "fp32": 2e-3}  # relative difference of a step's loss, of sides with the same steps; the steps' rounding adds up
TAIL = 1500  # characters of what a failed side printed


class Failed(Exception):
    """A side did not give a result; what it said."""


# ---- The card's state


class CardWatch:
    """Samples of the first card's clocks, power and memory while the body runs, by nvidia-smi; none where there is no such tool."""

    FIELDS = ("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu", "utilization.gpu", "memory.used")
    REASONS = "clocks_event_reasons.active"  # bits of nvml.h: 4 is the power cap, 0x20 and 0x40 are heat

    def __enter__(self):
        self.samples, self.process = [], None
        fields = [*self.FIELDS, self.REASONS]
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            if subprocess.run(self.command(fields), capture_output=True, timeout=30).returncode != 0:
                fields.pop()  # an older driver
            self.fields = fields
            self.process = subprocess.Popen([*self.command(fields), "-lms", "500"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            self.thread = threading.Thread(target=self.read, daemon=True)
            self.thread.start()
        return self

    @staticmethod
    def command(fields):
        return ["nvidia-smi", "-i", "0", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]

    def read(self):
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                values = [int(part, 16) if part.startswith("0x") else float(part) for part in map(str.strip, line.split(","))]
                self.samples.append((time.time(), dict(zip(self.fields, values, strict=True))))

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.thread.join(5)

    def summary(self, began, ended):
        """[least, median, most] of the seconds from `began` to `ended`; the most memory of all time, and the first."""
        inside = [sample for at, sample in self.samples if began <= at <= ended]
        if not inside:
            return {}

        def of(field):
            values = sorted(sample[field] for sample in inside)
            return [values[0], statistics.median(values), values[-1]]

        result = {"sm_mhz": of("clocks.sm"), "memory_mhz": of("clocks.mem"), "power_w": of("power.draw"), "temperature_c": of("temperature.gpu"), "utilization": of("utilization.gpu"),
                  "card_memory_mib": max(sample["memory.used"] for _, sample in self.samples), "card_memory_mib_before": self.samples[0][1]["memory.used"], "samples": len(inside)}
        if self.REASONS in self.fields:
            result["clock_reasons"] = sorted({hex(int(sample[self.REASONS])) for sample in inside})
        return result


# ---- One run of a side


def sftrun_settings(args, output):
    """JSON is YAML. One epoch, in the order of rows.jsonl."""
    steps = json.loads((args.work / "work.json").read_text())["sequences"] // (args.batch_size * args.accumulation)
    adapter = args.work / "adapter"
    lora = {"r": LORA_R, "alpha": LORA_ALPHA, "target_modules": ["all-linear"]}
    return {
        "model": {"name": str(args.work / "model"), "max_seq_len": args.seq_len, "dtype": args.dtype},
        "tuning": {"mode": "lora", "lora": {**lora, "init_from": str(adapter)} if adapter.exists() else lora},
        "data": {"train": str(args.work / "train.jsonl"), "format": "prompt_completion", "packing": True, "bin_tokens": args.seq_len, "cache_dir": "none", "seed": packed_work.SEED},
        "train": {"max_steps": max(1, steps), "batch_size": args.batch_size, "grad_accum": args.accumulation, "learning_rate": 2e-4, "scheduler": "constant", "weight_decay": 0,
                  "gradient_checkpointing": args.recompute, "eval_strategy": "no", "save_every": "0"},
        "output": {"dir": str(output), "tensorboard": False},
    }


def lines_of(path):
    """Whole lines; the last may be half written."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def until_steady(command, steps_of, args, env=None):
    """Runs a command and interrupts it once its steady state has lasted long enough.
    @param steps_of gives the steps that the command has reported so far    @return the steps, and the time of the steady state by the clock of the wall: what its user waits"""
    began = ended = None
    seen_at = []  # when each step was first reported
    with tempfile.TemporaryFile("w+") as console:
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, env=env)
        interrupted = False
        try:
            while process.poll() is None:
                time.sleep(0.02)
                now = time.time()
                seen_at += [now] * (len(steps_of()) - len(seen_at))
                if len(seen_at) >= WARM_UP and began is None:
                    began = now
                elif began is not None and not interrupted and now - began >= args.steady:
                    interrupted, ended = True, now
                    process.send_signal(signal.SIGINT)
                if ended is not None and now - ended > 60:
                    process.kill()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        console.seek(0)
        printed = console.read()
    steps = steps_of()
    seen_at += [time.time()] * (len(steps) - len(seen_at))
    if len(steps) <= WARM_UP or (process.returncode != 0 and not interrupted):
        raise Failed(f"exit code {process.returncode} after {len(steps)} steps: {printed[-TAIL:]}")
    # Steps that a side still ends after the signal may wait for a checkpoint.
    last = max([WARM_UP + 1, *(i + 1 for i, at in enumerate(seen_at) if ended is None or at <= ended)])
    return {"steps": steps[:last], "steady_began": seen_at[WARM_UP - 1], "steady_ended": seen_at[last - 1]}


def run_sftrun(args):
    with tempfile.TemporaryDirectory(prefix="sftrun-compare-") as folder:
        run, config = pathlib.Path(folder) / "run", pathlib.Path(folder) / "run.yaml"
        config.write_text(json.dumps(sftrun_settings(args, run)))
        command = [args.sftrun, "train", "--config", config, "--nproc-per-node", "1", "--device", args.device]
        result = until_steady(command, lambda: [line for line in lines_of(run / "metrics.jsonl") if "loss" in line], args)
    lines = result["steps"]
    steps = [{"tokens": line["tokens"], "label_tokens": line["label_tokens"], "loss": line["loss"], "seconds": line["step_seconds"]} for line in lines]
    version = subprocess.run([args.sftrun, "--version"], capture_output=True, text=True).stdout.splitlines()
    peak = max(line["peak_memory_bytes"][0] if isinstance(line["peak_memory_bytes"], list) else line["peak_memory_bytes"] for line in lines)
    return {**result, "steps": steps, "peak_memory_bytes": peak, "versions": {"sftrun": version[0].split()[-1] if version else "?"}}


def run_python(args, what, *more):
    """bench/peer_packed.py, which stops by itself."""
    command = [args.peer_python, "-W", "ignore", HERE / "peer_packed.py", what, "--work", args.work, "--batch-size", args.batch_size, "--accumulation", args.accumulation, "--steady", args.steady,
               "--device", args.device, "--dtype", args.dtype, *(["--recompute"] if args.recompute else []), *more]
    done = subprocess.run([str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    try:
        return json.loads(done.stdout.strip().splitlines()[-1])
    except (ValueError, IndexError):
        raise Failed(f"exit code {done.returncode}: {(done.stdout + done.stderr)[-TAIL:]}") from None


def run_surogate(args):
    """Its recipe for bf16; the log is an array of JSON that it may not have closed yet."""
    program = shutil.which("surogate", path=str(pathlib.Path(args.peer_python).parent) + os.pathsep + os.environ.get("PATH", ""))
    if not program:
        raise Failed("no program `surogate` beside --peer-python or in PATH")
    with tempfile.TemporaryDirectory(prefix="surogate-") as name:
        folder = pathlib.Path(name)
        records = [json.loads(line) for line in (args.work / "train.jsonl").read_text().splitlines()]
        (folder / "text.jsonl").write_text("".join(json.dumps({"text": record["prompt"] + record["completion"] + "<eos>"}) + "\n" for record in records))
        settings = {"model": str(args.work / "model"), "output_dir": str(folder / "out"), "per_device_train_batch_size": args.batch_size, "gradient_accumulation_steps": args.accumulation,
                    "sample_packing": True, "sequence_len": args.seq_len, "max_steps": 100_000, "eval_steps": 0, "save_steps": 1_000_000, "learning_rate": 2e-4, "warmup_steps": 0, "weight_decay": 0.0,
                    "recipe": "bf16", "recompute": args.recompute, "optimizer": "adamw", "lora": True, "lora_rank": LORA_R, "lora_alpha": LORA_ALPHA, "lora_dropout": 0, "lora_target_modules": LINEARS,
                    "gpus": 1, "validation_split_ratio": 0.0, "log_file": str(folder / "log.json"), "datasets": [{"path": str(folder / "text.jsonl"), "type": "text", "text_field": "text"}]}
        (folder / "sft.yaml").write_text(json.dumps(settings))

        def steps():
            text = (folder / "log.json").read_text(errors="replace") if (folder / "log.json").exists() else ""
            found = re.findall(r'\{[^{}]*"log"\s*:\s*"step"[^{}]*\}', text)
            return [{"tokens": line["step_tokens"], "seconds": line["duration_ms"] / 1000, "loss": line["loss"]} for line in map(json.loads, found)]

        return {**until_steady([program, "sft", folder / "sft.yaml"], steps, args), "labels": "every token", "order": "its own"}


def run_automodel(args):
    """The recipe of its published figures (examples/llm_benchmark), over made-up tokens of its own."""
    program = shutil.which("automodel", path=str(pathlib.Path(args.peer_python).parent) + os.pathsep + os.environ.get("PATH", ""))
    if args.lengths != packed_work.UNIFORM:
        raise Failed("its recipe has full sequences only")
    if not program:
        raise Failed("no program `automodel` beside --peer-python or in PATH")
    with tempfile.TemporaryDirectory(prefix="automodel-") as name:
        folder, package = pathlib.Path(name), "nemo_automodel"
        settings = {
            "recipe": "TrainFinetuneRecipeForNextTokenPrediction", "seed": 42,
            "step_scheduler": {"global_batch_size": args.batch_size * args.accumulation, "local_batch_size": args.batch_size, "ckpt_every_steps": 10**6, "val_every_steps": 10**6, "max_steps": 10**5},
            "dist_env": {"backend": "nccl", "timeout_minutes": 1}, "rng": {"_target_": f"{package}.components.training.rng.StatefulRNG", "seed": 42, "ranked": True},
            "model": {"_target_": f"{package}.NeMoAutoModelForCausalLM.from_pretrained", "pretrained_model_name_or_path": str(args.work / "model"), "torch_dtype": "bf16", "force_hf": True},
            "checkpoint": {"enabled": False, "checkpoint_dir": str(folder / "out")},
            "peft": {"_target_": f"{package}.components._peft.lora.PeftConfig", "target_modules": "*_proj", "dim": LORA_R, "alpha": LORA_ALPHA, "dropout": 0.0, "use_memory_efficient_lora": False, "use_triton": True},
            "distributed": {"strategy": "fsdp2", "dp_size": "none", "tp_size": 1, "cp_size": 1, "sequence_parallel": False, "activation_checkpointing": args.recompute},
            "loss_fn": {"_target_": f"{package}.components.loss.masked_ce.MaskedCrossEntropy"},
            "dataset": {"_target_": f"{package}.components.datasets.llm.mock_iterable_dataset.MockIterableDataset", "vocab_size": 100, "seq_len": args.seq_len, "num_samples": 10**6, "batch_size": args.batch_size},
            "dataloader": {"_target_": "torch.utils.data.DataLoader", "batch_size": None},
            "optimizer": {"_target_": "torch.optim.AdamW", "betas": [0.9, 0.999], "eps": 1e-8, "lr": 1e-5, "weight_decay": 0.01},
        }
        (folder / "recipe.yaml").write_text(json.dumps(settings))
        tokens = args.batch_size * args.accumulation * args.seq_len

        def steps():
            lines = lines_of(folder / "out/training.jsonl")
            return [{"tokens": tokens, "seconds": tokens / line["tps"], "loss": line["loss"]} for line in lines if line.get("tps") and "loss" in line]

        return {**until_steady([program, folder / "recipe.yaml", "--nproc-per-node", "1"], steps, args), "labels": "every token", "order": "its own"}


SIDES = {
    "sftrun": run_sftrun,
    "trl": lambda args: run_python(args, "trl"),
    "trl-liger": lambda args: run_python(args, "trl", "--kernels", "liger"),
    "trl-flex": lambda args: run_python(args, "trl", "--kernels", "liger", "--attention", "flex_attention"),
    "unsloth": lambda args: run_python(args, "unsloth"),
    "surogate": run_surogate,
    "automodel": run_automodel,
}
DEFAULT_SIDES = ("sftrun", "trl-liger", "unsloth", "surogate", "automodel")


def reason(run):
    """The last line of what a failed side said."""
    return run["failed"].strip().splitlines()[-1][:300]


def measure(args, side):
    """One run of a side.   @return the summary of its steps, or {"failed": why}"""
    try:
        with CardWatch() as watch:
            result = SIDES[side](args)
    except Failed as failed:
        return {"failed": str(failed)}
    return summary(result, watch)


def summary(result, watch=None):
    steps = result.pop("steps")
    steady = steps[WARM_UP:]
    if not steady:
        return {"failed": f"only {len(steps)} steps, of which {WARM_UP} warm up"}
    seconds = result["steady_ended"] - result["steady_began"]
    if seconds <= 0:  # steps so short that all were seen at once
        seconds = sum(step["seconds"] for step in steady)
    speeds = [step["tokens"] / step["seconds"] for step in steady]
    clocks = watch.summary(result["steady_began"], result["steady_ended"]) if watch else {}
    return {"tokens_per_second": sum(step["tokens"] for step in steady) / seconds, "tokens_per_second_median_step": statistics.median(speeds), "steady_steps": len(steady), "steady_seconds": seconds,
            "losses": [step.get("loss") for step in steps], "step_tokens": [step["tokens"] for step in steps], "step_labels": [step.get("label_tokens") for step in steps], **clocks,
            **{key: value for key, value in result.items() if key not in ("steady_began", "steady_ended") and value is not None}}


# ---- The comparison


def compared_losses(ours, other, dtype):
    """Losses of two sides with the same steps, as far as both go."""
    shared = min(len(ours["losses"]), len(other["losses"]))
    if ours["step_tokens"][:shared] != other["step_tokens"][:shared]:
        return {"ok": False, "error": f"other tokens in a step: {ours['step_tokens'][:3]} and {other['step_tokens'][:3]}"}
    pairs = [(a, b) for a, b in zip(ours["losses"], other["losses"]) if a is not None and b is not None]
    apart = max((abs(a / b - 1) for a, b in pairs), default=None)
    return {"ok": apart is not None and apart <= LOSS[dtype], "steps": len(pairs), "loss_relative": apart, "limit": LOSS[dtype]}


def conclusions(runs, dtype):
    """Of the rounds of all sides: median speeds, ratios to sftrun's, and losses by step.   @param runs side -> summaries"""
    good = {side: [run for run in of if "failed" not in run] for side, of in runs.items()}
    speeds = {side: statistics.median(run["tokens_per_second"] for run in of) for side, of in good.items() if of}
    result = {"tokens_per_second": speeds, "failed": {side: reason(of[-1]) for side, of in runs.items() if of and not good[side]}}
    if "sftrun" in speeds:
        result["above_1_is_in_favour_of_sftrun"] = {side: speeds["sftrun"] / speed for side, speed in speeds.items() if side != "sftrun"}
        result["losses"] = {side: compared_losses(good["sftrun"][0], good[side][0], dtype) for side in SAME_STEPS if side != "sftrun" and good.get(side)}
    return result


def prepare(args, run=subprocess.run):
    """Model, adapter and data of one comparison in args.work, as far as they are not there. The model stays for the next comparison of the same architecture."""
    args.work.mkdir(parents=True, exist_ok=True)
    config = json.loads(args.arch.read_text())
    if not (args.work / "model/config.json").exists():
        if args.small:
            packed_work.write_small_llama(args.work / "model", config)
        else:
            command = [args.peer_python, "-W", "ignore", HERE / "peer_packed.py", "model", "--arch", args.arch, "--work", args.work, "--device", args.device, "--dtype", args.dtype]
            run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL)
    return packed_work.write(args.work, config["vocab_size"], args.lengths, args.seq_len, args.sequences)


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", default=str(HERE.parent / "build/bin/sftrun"))
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch, transformers, peft, trl and what the sides need")
    parser.add_argument("--arch", type=pathlib.Path, default=HERE / "arch/qwen3-0.6b.json", help="config.json; the weights are random [%(default)s]")
    parser.add_argument("--lengths", default="azure-conversations", help=f"a table of bench/lengths.json, or {packed_work.UNIFORM} [%(default)s]")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a packed sequence [%(default)s]")
    parser.add_argument("--batch-size", type=int, default=2, help="packed sequences of a micro-batch [%(default)s]")
    parser.add_argument("--accumulation", type=int, default=4, help="micro-batches of a step [%(default)s]")
    parser.add_argument("--sequences", type=int, default=2048, help="packed sequences that are made; a run ends where they are used up [%(default)s]")
    parser.add_argument("--recompute", action="store_true", help="all sides with gradient checkpointing")
    parser.add_argument("--steady", type=float, default=60, metavar="SECONDS", help="of the steady state [%(default)s]")
    parser.add_argument("--rounds", type=int, default=2, help="A B A B: 2 [%(default)s]")
    parser.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(DEFAULT_SIDES))
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--small", action="store_true", help="write the model without torch: a small Llama, for rehearsals")
    parser.add_argument("--work", type=pathlib.Path, help="folder of model and data; kept [a temporary one]")
    parser.add_argument("--one", choices=list(SIDES), help="run this side over a prepared --work, and print its JSON")
    parser.add_argument("--prepare", action="store_true", help="prepare --work, and print work.json")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args(argv)
    if (args.one or args.prepare) and not args.work:
        parser.error("--one and --prepare need --work")
    return args


def compare(args, say=lambda line: print(line, file=sys.stderr, flush=True)):
    work = prepare(args)
    runs = {side: [] for side in args.sides}
    for number in range(args.rounds):
        for side in args.sides:
            if number and all("failed" in run for run in runs[side]):
                continue  # it will not do better
            runs[side].append(measure(args, side))
            last = runs[side][-1]
            say(f"  round {number + 1}/{args.rounds} {side}: " + (f"{last['tokens_per_second']:.0f} tokens/s" if "failed" not in last else f"failed: {reason(last)}"))
    return {"work": work, "runs": runs, **conclusions(runs, args.dtype)}


def text_of(result):
    work = result["work"]
    lines = [f"{work['lengths']}: {work['documents']} documents (median {work['median']}, longest {work['longest']} tokens) in {work['sequences']} sequences of {work['seq_len']}, {work['filled']:.0%} filled, "
             f"{work['labelled']:.0%} labelled", "", "| side | tokens/s | sftrun's by it | largest difference of a loss |", "|---|---|---|---|"]
    for side, speed in result["tokens_per_second"].items():
        ratio, losses = result.get("above_1_is_in_favour_of_sftrun", {}).get(side), result.get("losses", {}).get(side)
        apart = "" if not losses else losses.get("error") or f"{losses['loss_relative']:.1e} in {losses['steps']} steps"
        lines.append(f"| {side} | {speed:.0f} | {f'{ratio:.2f}' if ratio else ''} | {apart} |")
    return "\n".join([*lines, *(f"| {side} | failed | | |" for side in result["failed"])])


def main(argv=None):
    args = parse_arguments(argv)
    if args.prepare:
        print(json.dumps(prepare(args)))
        return 0
    if args.one:
        result = measure(args, args.one)
        print(json.dumps(result))
        return 1 if "failed" in result and args.one == "sftrun" else 0
    with tempfile.TemporaryDirectory(prefix="compare-") as folder:
        args.work = args.work or pathlib.Path(folder)
        result = compare(args)
    print(json.dumps(result) if args.json else text_of(result))
    return 0 if "sftrun" not in args.sides or "sftrun" in result["tokens_per_second"] else 1


if __name__ == "__main__":
    sys.exit(main())
