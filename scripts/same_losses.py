#!/usr/bin/env python3
"""Compares the training of two builds, bit for bit. Standard library only; about a minute on two cores.

    scripts/same_losses.py --before BUILD_DIR --after BUILD_DIR [--only REGEX] [--list] [--keep DIR]

A change that should not alter numbers must pass it. Both programs (BUILD_DIR/bin/sftrun) train the tiny models of tests/data on the
CPU: every family, the ways to tune and to store the base, both backends, packing, gradient checkpointing, optimizers, two ranks and
resumed runs. Compared are

metrics   loss, gradient norm, learning rate, load-balancing loss, evaluation loss and token counts of every step in metrics.jsonl
results   the bytes of every safetensors file in adapter/ and model/, and of adapter_config.json

The bits depend on the processor and on the number of threads, so both programs run here, with the same number of threads.
A case is `new` if only the build before refuses its settings (exit code 2). It is not compared.
Exit code 1: a difference, or a run that failed.
"""

from __future__ import annotations

import argparse
import array
import concurrent.futures
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = REPOSITORY / "tests" / "data"
TIMEOUT_SECONDS = 100
STEPS = 4
COMPARED_METRICS = ["step", "epoch", "loss", "loss_per_rank", "grad_norm", "learning_rate", "aux_loss", "eval_loss", "label_tokens", "tokens"]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz.,012345678"  # with the space and two special tokens: the 40 tokens of tests/data/families
# A model whose matrices are large enough for tiles, 8-bit moments and blocks of 64, with odd widths among them.
WIDE = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 98, "hidden_size": 192, "intermediate_size": 328,
        "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 32, "hidden_act": "silu",
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": False, "eos_token_id": 1,
        "bos_token_id": 0, "torch_dtype": "float32"}


@dataclass(frozen=True)
class Case:
    """One training run. `settings` are dotted keys of the configuration."""

    name: str
    settings: dict
    processes: int = 1
    # Train to the end, remove the last checkpoint and the result, and rerun the command, so that it resumes at half of the steps.
    # "own": each build resumes its own run; "other": both builds resume the run of the build before.
    resume: str = ""
    device: str = "cpu"


@dataclass
class Outcome:
    """What a run wrote."""

    metrics: list[dict] = field(default_factory=list)
    results: dict[str, bytes] = field(default_factory=dict)
    error: str = ""


# ---- Models and data


def write_tokenizer(directory: Path) -> None:
    """One token for each byte of CHARACTERS, as the models of tests/data/families have 40 tokens and no tokenizer."""
    tokenizer = json.loads((DATA / "train/models/tied/tokenizer.json").read_text())
    tokens = [*tokenizer["model"]["vocab"]][:2] + list(CHARACTERS) + ["Ġ"]
    tokenizer["model"]["vocab"] = {token: index for index, token in enumerate(tokens)}
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    shutil.copy(DATA / "train/models/tied/tokenizer_config.json", directory)


def write_wide_model(directory: Path, **other_sizes) -> None:
    """WIDE, or a model with other sizes."""
    config = {**WIDE, **other_sizes}
    write_random_model(directory, config, wide_shapes(config))


def wide_shapes(config: dict) -> dict[str, list[int]]:
    """Of the tensors of a Llama model."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    layer = {"self_attn.q_proj": [queries, hidden], "self_attn.k_proj": [keys, hidden], "self_attn.v_proj": [keys, hidden],
             "self_attn.o_proj": [hidden, queries], "mlp.gate_proj": [inner, hidden], "mlp.up_proj": [inner, hidden],
             "mlp.down_proj": [hidden, inner], "input_layernorm": [hidden], "post_attention_layernorm": [hidden]}
    shapes = {"model.embed_tokens": [config["vocab_size"], hidden], "model.norm": [hidden], "lm_head": [config["vocab_size"], hidden]}
    if config["tie_word_embeddings"]:
        del shapes["lm_head"]
    shapes |= {f"model.layers.{i}.{name}": shape for i in range(config["num_hidden_layers"]) for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def write_random_model(directory: Path, config: dict, shapes: dict[str, list[int]]) -> None:
    rng, header, values = random.Random(5), {}, array.array("f")
    for name, shape in shapes.items():
        middle, spread = (1.0, 0.2) if len(shape) == 1 else (0.0, 0.12)
        begin = values.itemsize * len(values)
        values.extend(middle + spread * (rng.random() + rng.random() - 1) for _ in range(math.prod(shape)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, values.itemsize * len(values)]}
    write_model_files(directory, config, header, [values.tobytes()])


def write_large_model(directory: Path, config: dict, shapes: dict[str, list[int]], dtype: str = "BF16") -> None:
    """In BF16 or F32, in a moment: the same 65,536 random values again and again, which is enough to measure memory and time."""
    rng, header, end, size = random.Random(5), {}, 0, 2 if dtype == "BF16" else 4
    for name, shape in shapes.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size * math.prod(shape)]}
        end = header[name]["data_offsets"][1]
    values = array.array("f", (0.12 * (rng.random() + rng.random() - 1) for _ in range(65536))).tobytes()
    block = array.array("H", values)[1::2].tobytes() if dtype == "BF16" else values  # the upper half of an fp32 is its bf16
    write_model_files(directory, config, header, (block[:end - begin] for begin in range(0, end, len(block))))


def write_model_files(directory: Path, config: dict, header: dict, values: Iterable[bytes]) -> None:
    text = json.dumps(header).encode()
    directory.mkdir(parents=True)
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(values)
    (directory / "config.json").write_text(json.dumps(config))
    copy_tokenizer(directory)


def copy_tokenizer(directory: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DATA / "train/models/tied" / name, directory)


def family_names() -> list[str]:
    names = sorted(path.parent.name for path in (DATA / "families").glob("*/config.json"))
    return [name for name in names if text_config(name)["vocab_size"] == 40 and not name.endswith("_released")]


def text_config(family: str) -> dict:
    config = json.loads((DATA / "families" / family / "config.json").read_text())
    return config.get("text_config", config)


def expert_parameters(config: dict) -> list[str]:
    """The experts' matrices that get LoRA, and the router where it is a parameter."""
    if not (config.get("num_experts") or config.get("num_local_experts")):
        return []
    if config["model_type"].startswith("gemma4"):
        return ["experts.gate_up_proj", "experts.down_proj"]
    router = "mlp.router.weight" if config["model_type"] == "gpt_oss" else "mlp.gate.weight"
    return ["mlp.experts.gate_up_proj", "mlp.experts.down_proj", router]


def texts(count: int, longest: int, seed: int) -> list[dict]:
    rng = random.Random(seed)
    return [{"text": "".join(rng.choices(CHARACTERS + "   ", k=rng.randrange(2, longest)))} for _ in range(count)]


def chats(count: int) -> list[dict]:
    return [{"messages": [{"role": "user", "content": f"What comes after {n}?"},
                          {"role": "assistant", "content": "It is " + ", ".join(str(n + i) for i in range(1, 2 + n % 7)) + "."}]}
            for n in range(count)]


def pairs(count: int, seed: int) -> list[dict]:
    """A prompt with a preferred and another answer, of different lengths."""
    rng = random.Random(seed)
    return [{key: "".join(rng.choices(CHARACTERS + "   ", k=rng.randrange(3, 24))) for key in ("prompt", "chosen", "rejected")} for _ in range(count)]


def preference(scratch: Path, name: str = "pairs") -> dict:
    return {"train.objective": "dpo", "data.train": str(scratch / f"{name}.jsonl"), "data.format": "auto"}


def classified(scratch: Path) -> dict:
    return {"train.objective": "classify", "data.train": str(scratch / "classes.jsonl"), "data.format": "auto"}


def write_inputs(scratch: Path) -> None:
    for name, records in {"texts": texts(40, 60, 1), "long-texts": texts(40, 400, 3), "held-out": texts(7, 60, 2), "chats": chats(24),
                          "pairs": pairs(24, 4), "held-out-pairs": pairs(5, 5),
                          "classes": [{**record, "label": len(record["text"]) % 3} for record in texts(40, 60, 6)]}.items():
        (scratch / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    write_wide_model(scratch / "models/wide")
    for family in [*family_names(), "gpt_oss_mxfp4"]:
        directory = scratch / "models" / family
        directory.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (directory / name).symlink_to(DATA / "families" / family / name)
        write_tokenizer(directory) if text_config(family)["vocab_size"] == 40 else copy_tokenizer(directory)


# ---- Cases


def lora(**settings) -> dict:
    return {"tuning.mode": "lora", **{f"tuning.lora.{key}": value for key, value in settings.items()}}


def cases(scratch: Path) -> list[Case]:
    tied, untied = DATA / "train/models/tied", DATA / "train/models/untied"
    all_cases = []

    def add(name: str, settings: dict, model: Path = untied, **options) -> None:
        all_cases.append(Case(name, {"model.name": str(model), **settings}, **options))

    checkpointing, dropout, bnb = {"train.gradient_checkpointing": True}, lora(dropout=0.1), {"tuning.backend": "bnb"}
    unpacked = {"data.packing": False}
    for family in family_names():
        model = scratch / "models" / family
        experts = lora(target_parameters=expert_parameters(text_config(family)))
        add(f"family {family}, LoRA", experts, model)
        add(f"family {family}, full, recomputed", {"tuning.mode": "full", **checkpointing}, model)
        # Dropout of experts' matrices is refused, as in PEFT.
        add(f"family {family}, LoRA, bnb", {**(lora() if expert_parameters(text_config(family)) else dropout), **bnb}, model)
    for name, settings in {"": {}, ", bnb": bnb}.items():
        add(f"family gpt_oss, mxfp4{name}", {"tuning.mode": "qlora", **settings}, scratch / "models/gpt_oss_mxfp4")

    for name, settings in {"": {}, ", bnb": bnb}.items():
        add(f"LoRA, tied{name}", {**lora(), **settings}, tied)
        add(f"LoRA, unpacked, dropout{name}", {**dropout, **unpacked, **settings})
        add(f"LoRA, bf16{name}", {**lora(), "model.dtype": "bf16", **settings})
        for quant in ("nf4", "fp4"):
            add(f"QLoRA {quant}{name}", {"tuning.mode": "qlora", "tuning.quant": quant, **settings})
        for quant in ("int8", "fp8"):
            add(f"LoRA over {quant}{name}", {**lora(), "tuning.quant": quant, **settings})
        add(f"DoRA{name}", {**lora(dora=True), **settings})
        add(f"partial{name}", {"tuning.mode": "partial", "tuning.trainable": ["norm", r"layers\.1\..*down_proj"], **settings})
        add(f"chat{name}", {**lora(), "data.train": str(scratch / "chats.jsonl"), "data.format": "auto", **settings}, DATA / "models/tied-gqa")
    wide, long_texts = scratch / "models/wide", {"data.train": str(scratch / "long-texts.jsonl"), "model.max_seq_len": 512}
    for name, settings in {"LoRA": lora(), "LoRA, bf16": {**lora(), "model.dtype": "bf16"}, "LoRA, bnb": {**lora(), **bnb},
                           "LoRA, unpacked, dropout": {**dropout, **unpacked}, "QLoRA nf4": {"tuning.mode": "qlora"},
                           "QLoRA nf4, bf16": {"tuning.mode": "qlora", "model.dtype": "bf16", **checkpointing},
                           "LoRA over int8": {**lora(), "tuning.quant": "int8"}, "LoRA over fp8": {**lora(), "tuning.quant": "fp8"},
                           "LoRA over fp8, bf16": {**lora(), "tuning.quant": "fp8", "model.dtype": "bf16"}, "DoRA": lora(dora=True),
                           "full, bf16": {"tuning.mode": "full", "model.dtype": "bf16"}}.items():
        add(f"wide, {name}", {**long_texts, **settings}, wide)
    add("wide, two ranks, QLoRA nf4", {**long_texts, "tuning.mode": "qlora"}, wide, processes=2)
    add("QLoRA nf4, one scale per block, recomputed, bf16",
        {"tuning.mode": "qlora", "tuning.double_quant": False, "tuning.quant_block_size": 128, "model.dtype": "bf16", **checkpointing})
    for stored in ("bnb-nf4", "bnb-fp4", "bnb-int8", "fp8-dynamic", "fp8-blocks", "int4-awq", "int4-gptq", "int4-compressed"):
        add(f"stored {stored}", lora(), DATA / "models" / stored)
    for file in ("F16", "Q8_0"):
        add(f"GGUF {file}", lora(), DATA / f"models/llama3-gguf/model-{file}.gguf")
    add("LoRA, recomputed, dropout", {**dropout, **checkpointing})
    add("LoRA, rsLoRA, patterns", lora(rslora=True, rank_pattern={"o_proj": 2}, alpha_pattern={"v_proj": 16}))
    add("LoRA, modules_to_save", lora(modules_to_save=["lm_head", "embed_tokens"]))
    add("LoRA, embedding and head", lora(target_modules=["embed_tokens", "lm_head", "q_proj"]))
    add("LoRA, PiSSA", lora(init="pissa"))
    add("LoRA, started from an adapter", {**lora(init_from=str(DATA / "train/lora_all_linear/init_adapter")), "tuning.lora.r": 4}, tied)
    add("LoRA+, NEFTune", {**lora(), "train.loraplus_lr_ratio": 16, "train.neftune_noise_alpha": 5})
    for name, settings in {"": lora(), ", dropout, recomputed": {**dropout, **checkpointing}, ", unpacked, bnb": {**lora(), **unpacked, **bnb}}.items():
        add(f"DPO{name}", {**preference(scratch), **settings})
    add("reward", {**preference(scratch), "train.objective": "reward", **lora()})
    add("classify, full, recomputed", {**classified(scratch), "tuning.mode": "full", **checkpointing})
    add("LoRA, grouped by length", {**lora(), **unpacked, "data.group_by_length": True})
    add("LoRA, streamed", {**lora(), "data.streaming": True, "data.shuffle_buffer": 16})
    add("LoRA, accumulated, evaluated",
        {**lora(), "train.batch_size": 1, "train.grad_accum": 2, "train.global_batch_size": "auto", "data.val": str(scratch / "held-out.jsonl"),
         "train.eval_strategy": "steps", "train.eval_steps": 2, "train.eval_on_start": True})
    for optimizer in ("adamw", "adamw_8bit", "paged_adamw", "paged_adamw_8bit", "sgd", "lion", "adafactor", "muon"):
        settings = {"train.momentum": 0.9} if optimizer == "sgd" else {}
        add(f"wide, full, {optimizer}", {"tuning.mode": "full", "train.optimizer": optimizer, "train.weight_decay": 0.01, **settings}, wide)
    for scheduler in ("constant", "cosine_with_restarts", "polynomial", "inverse_sqrt"):
        add(f"LoRA, {scheduler}", {**lora(), "train.scheduler": scheduler, "train.warmup_steps": 1})

    for name, settings in {"LoRA, dropout": dropout, "LoRA, unpacked": {**lora(), **unpacked}, "full": {"tuning.mode": "full"},
                           "full, muon": {"tuning.mode": "full", "train.optimizer": "muon"}}.items():
        add(f"two ranks, {name}", settings, processes=2)
    experts = expert_parameters(text_config("qwen3_moe"))
    add("two ranks, DPO", {**preference(scratch), **dropout}, processes=2)
    add("two ranks, classify", {**classified(scratch), **dropout}, processes=2)
    add("two ranks, experts", {**lora(target_parameters=experts), **unpacked}, scratch / "models/qwen3_moe", processes=2)

    for name, settings in {"LoRA, dropout": dropout, "full, adafactor": {"tuning.mode": "full", "train.optimizer": "adafactor"},
                           "PiSSA": lora(init="pissa"), "streamed": {**lora(), "data.streaming": True, "data.shuffle_buffer": 16}}.items():
        add(f"resumed, {name}", settings, resume="own")
    add("resumed, wide, full, adamw_8bit", {"tuning.mode": "full", "train.optimizer": "adamw_8bit"}, wide, resume="own")
    add("resumed, two ranks", dropout, processes=2, resume="own")
    add("resumed from the build before, LoRA", dropout, resume="other")
    add("resumed from the build before, full", {"tuning.mode": "full"}, resume="other")
    return all_cases


# ---- Runs


def configuration(case: Case, scratch: Path) -> dict:
    settings = {
        "model.max_seq_len": 64,
        "model.dtype": "fp32",
        "data.train": str(scratch / "texts.jsonl"),
        "data.format": "text",
        "data.cache_dir": "none",
        "train.max_steps": STEPS,
        "train.global_batch_size": 4,
        "train.learning_rate": 5e-3,
        "train.warmup_steps": 0,
        "train.save_every": "0",
        "output.tensorboard": False,
        **case.settings,
    }
    if settings["tuning.mode"] in ("lora", "qlora"):
        settings = {"tuning.lora.r": 4, "tuning.lora.alpha": 8, **settings}
    if case.resume:
        settings["train.save_steps"] = STEPS // 2
    nested: dict = {}
    for key, value in settings.items():
        *sections, name = key.split(".")
        section = nested
        for part in sections:
            section = section.setdefault(part, {})
        section[name] = value
    return nested


def train(sftrun: Path, case: Case, config: Path, output: Path, threads: int) -> str:
    """@return the error, or an empty text"""
    command = [str(sftrun), "train", "--config", str(config), "--device", case.device, "--nproc-per-node", str(case.processes), f"output.dir={output}"]
    # Waiting threads do not spin, because several runs share the processor. There is no machine file in the run's folder.
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", "XDG_CONFIG_HOME": str(output.parent)}
    try:
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIMEOUT_SECONDS, env=environment)
    except (subprocess.TimeoutExpired, OSError) as error:
        return str(error)
    if result.returncode == 0:
        return ""
    lines = (result.stdout + result.stderr).splitlines()
    errors = [line for line in lines if "error" in line] or lines[-1:]
    return f"exit code {result.returncode}: {errors[0].strip() if errors else ''}"


def remove_end(run: Path) -> None:
    """Leaves the run as if it had been stopped after the first half of its steps."""
    shutil.rmtree(run / "checkpoints" / f"step-{STEPS:06}")
    for result in ("adapter", "model"):
        shutil.rmtree(run / result, ignore_errors=True)
    if not (run / "checkpoints" / f"step-{STEPS // 2:06}").is_dir():
        raise RuntimeError(f"{run} has no checkpoint of step {STEPS // 2}")


def read_outcome(run: Path) -> Outcome:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    metrics = [{key: line[key] for key in COMPARED_METRICS if key in line} for line in lines]
    files = [path for folder in ("adapter", "model") for path in sorted((run / folder).glob("*"))]
    results = {str(path.relative_to(run)): path.read_bytes() for path in files
               if path.suffix == ".safetensors" or path.name == "adapter_config.json"}
    return Outcome(metrics, results)


def run_case(sftrun: Path, first_half: Path, case: Case, config: Path, output: Path, threads: int) -> Outcome:
    """@param first_half  the program that trains until the checkpoint, of a case that resumes"""
    error = train(first_half if case.resume == "other" else sftrun, case, config, output, threads)
    try:
        if case.resume and not error:
            remove_end(output)
            error = train(sftrun, case, config, output, threads)
        if error:
            return Outcome(error=error)
        outcome = read_outcome(output)
    except (OSError, ValueError, RuntimeError) as problem:
        return Outcome(error=str(problem))
    steps = [line["step"] for line in outcome.metrics if "loss" in line]
    if steps != list(range(1, STEPS + 1)):
        outcome.error = f"metrics.jsonl has the steps {steps}"
    elif not all(math.isfinite(line["loss"]) and line["grad_norm"] > 0 for line in outcome.metrics if "loss" in line):
        outcome.error = "a loss is not finite or a gradient norm is 0"
    elif not any(name.endswith(".safetensors") for name in outcome.results):
        outcome.error = "no adapter and no model were written"
    return outcome


NEW = "new"


def first_difference(before: Outcome, after: Outcome) -> str:
    """@return an empty text if everything is equal; NEW if only the build after knows the settings (exit code 2: bad configuration)"""
    if before.error.startswith("exit code 2:") and not after.error:
        return NEW
    for name, outcome in (("before", before), ("after", after)):
        if outcome.error:
            return f"{name}: {outcome.error}"
    for ours, theirs in zip(after.metrics, before.metrics):
        for key in COMPARED_METRICS:
            if ours.get(key) != theirs.get(key):
                return f"step {theirs['step']}: {key} {theirs.get(key)} before, {ours.get(key)} after"
    if len(after.metrics) != len(before.metrics):
        return f"metrics.jsonl has {len(before.metrics)} lines before, {len(after.metrics)} after"
    if after.results.keys() != before.results.keys():
        return f"files before: {', '.join(before.results)}; after: {', '.join(after.results)}"
    different = [name for name, content in before.results.items() if after.results[name] != content]
    return f"bytes of {', '.join(different)}" if different else ""


def compare(case: Case, programs: dict[str, Path], scratch: Path, threads: int) -> tuple[Outcome, str]:
    folder = scratch / "runs" / re.sub(r"\W+", "-", case.name)
    folder.mkdir(parents=True)
    config = folder / "run.yaml"
    config.write_text(json.dumps(configuration(case, scratch), indent=2))  # JSON is YAML
    outcomes = [run_case(programs[build], programs["before"], case, config, folder / build, threads) for build in ("before", "after")]
    difference = first_difference(*outcomes)
    return outcomes[difference == NEW], difference


def program_of(build: Path, parser: argparse.ArgumentParser) -> Path:
    program = build.resolve() / "bin" / "sftrun"
    if not program.is_file():
        parser.error(f"{program} does not exist: build it first, or pass the directory that holds bin/ and lib/")
    return program


def compare_all(chosen: list[Case], programs: dict[str, Path], scratch: Path, threads: int, jobs: int) -> tuple[int, int]:
    """Prints a row for each case. @return how many differ, and how many are new"""
    differing = new = 0
    print(f"{'case':<49} {'first loss':>11} {'last loss':>11}  compared", flush=True)
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for case, (outcome, difference) in zip(chosen, pool.map(lambda case: compare(case, programs, scratch, threads), chosen)):
            losses = [line["loss"] for line in outcome.metrics if "loss" in line] or [math.nan]
            new += difference == NEW
            differing += difference not in ("", NEW)
            verdict = difference or "equal" if difference in ("", NEW) else "DIFFERENT: " + difference
            print(f"{case.name:<49} {losses[0]:>11.6f} {losses[-1]:>11.6f}  {verdict}", flush=True)
    return differing, new


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="build directory of the commit to compare with")
    parser.add_argument("--after", type=Path, required=True, help="build directory of the change")
    parser.add_argument("--only", default="", metavar="REGEX", help="run only the cases whose name matches")
    parser.add_argument("--list", action="store_true", help="print the names of the cases and stop")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="a new directory for the runs, which are kept")
    parser.add_argument("--threads", type=int, default=2, help="threads of each process (default 2)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="cases at the same time (default: the number of processors)")
    args = parser.parse_args()
    if args.keep and args.keep.exists():
        parser.error(f"--keep {args.keep}: exists already; name a new directory")
    with tempfile.TemporaryDirectory() as temporary:
        scratch = args.keep.resolve() if args.keep else Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        chosen = [case for case in cases(scratch) if re.search(args.only, case.name)]
        if args.list:
            print("\n".join(case.name for case in chosen))
            return 0
        if not chosen:
            parser.error(f"--only {args.only}: no case has such a name (see --list)")
        programs = {"before": program_of(args.before, parser), "after": program_of(args.after, parser)}
        write_inputs(scratch)
        start = time.monotonic()
        differing, new = compare_all(chosen, programs, scratch, args.threads, args.jobs)
    compared = len(chosen) - new
    print(f"\n{compared - differing} of {compared} cases are equal to the bit, {new} are new ({time.monotonic() - start:.0f} s)")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
