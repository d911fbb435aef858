#!/usr/bin/env python3
"""Every file of configs/ as it stands: judged, dry-run on its model's real shape, and a few steps on a tiny model of that kind.

    tests/smoke/configs.py --sftrun build/bin/sftrun [--only a100_pair …]

Each runs in a folder where `data/` and its model's name lie as directories, for a path wins over a name on the hub. Nothing is
downloaded. A new file in configs/ needs a line in CASES and one in configs/README.md. Standard library only.
With --quick mostly one step instead of two, on one process, and none for a file whose like is there.
"""

import argparse
import json
import math
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass

from released_models import RELEASED, ROOT, tiny, write_model

CONFIGS = ROOT / "configs"
GGUF = ROOT / "tests/data/models/llama3-gguf/model-Q8_0.gguf"
STEPS, SEQUENCE, RECORDS = 2, 96, 200  # two steps of 64 bins, with one record in each, take most of them
IN_IMAGE_PART = "model.vision_tower.encoder.layers.0.self_attn.q_proj"
ALL_LINEAR = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]
MAX_PROCESSES = 2  # that train; more than the machine has processors would only take longer
QUICK_ON_TWO = ("demo", "h200_quad", "gpt-oss-20b", "multi_gpu_fsdp")  # the others on one process, with --quick
QUICK_WITHOUT_STEPS = ("multi_gpu_config",)  # a100_pair is like it
QUICK_IN_TWO_STEPS = ("run_lora",)  # the first one's learning rate is 0; the others in one step, with --quick
TIMEOUT = 240  # s, of one command


@dataclass(frozen=True)
class Case:
    model: str       # whose shape it is made for
    devices: int     # as its first lines or its name say
    bins: int        # a step, on that many
    gguf: str = ""   # where the file expects a GGUF file
    by_data: bool = False  # auto takes fewer bins for the few records here: one per device


SMOL = "HuggingFaceTB/SmolLM2-135M-Instruct"
CASES = {
    "demo": Case(SMOL, devices=2, bins=8, gguf=".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf"),
    "run_lora": Case(SMOL, devices=1, bins=32, by_data=True),
    "run_full": Case(SMOL, devices=1, bins=32),
    "run_bnb": Case(SMOL, devices=1, bins=32, by_data=True),
    "run_unsloth": Case("unsloth/Llama-3.2-1B-Instruct", devices=2, bins=16),
    "multi_gpu_config": Case("google/gemma-3-27b-it", devices=2, bins=32, by_data=True),
    "rtx4090_sli": Case("Qwen/Qwen2.5-14B-Instruct", devices=2, bins=48),
    "a100_pair": Case("google/gemma-3-27b-it", devices=2, bins=64),
    "h200_quad": Case("meta-llama/Llama-3.1-70B-Instruct", devices=4, bins=128),
    "gpt-oss-20b": Case("openai/gpt-oss-20b", devices=4, bins=16),
    "single_gpu": Case("google/gemma-3-4b-it", devices=1, bins=32),
    "multi_gpu_ddp": Case("google/gemma-3-4b-it", devices=2, bins=32),
    "multi_gpu_fsdp": Case("google/gemma-3-27b-it", devices=2, bins=32),
}

failures = []


def expect(holds, what, otherwise=""):
    if not holds:
        what += f": {otherwise}" if otherwise else ""
        failures.append(what)
    print(f"{'ok  ' if holds else 'FAIL'} {what}", flush=True)
    return holds


class Folder:
    """A working directory with data, models by their names on the hub, and the runs."""

    def __init__(self, sftrun, path):
        self.sftrun, self.path = sftrun, path
        kept = {k: v for k, v in os.environ.items() if not k.startswith("SFTRUN_")}
        self.environment = kept | {"XDG_CONFIG_HOME": str(path), "XDG_CACHE_HOME": str(path / "cache"), "HF_HUB_OFFLINE": "1",
                                   "OMP_NUM_THREADS": "1"}
        for name, count in (("data/train", RECORDS), ("data/val", 8), ("data/toy/train", RECORDS), ("data/toy/val", 8), (".cache/demo/train", RECORDS), (".cache/demo/heldout", 8)):
            file = path / f"{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(record(i)) + "\n" for i in range(count)))

    def run(self, *words):
        command = [str(self.sftrun), *map(str, words)]
        print("$", *command, flush=True)
        return subprocess.run(command, cwd=self.path, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)


def record(number):
    """So long that a bin holds one of them."""
    return {"messages": [{"role": "user", "content": f"Count to {number}."},
                         {"role": "assistant", "content": " ".join(str(number + i) for i in range(10 + number % 5))}]}


def on_cpu(devices):
    return "--device", "cpu", "--nproc-per-node", devices


def quiet_success(done, what):
    # The records here are few.
    of_few = "the batch is larger than an epoch", "optimizer steps: the model will learn little", "optimizer step: the model will learn little"
    said = "".join(line for line in done.stderr.splitlines() if not any(words in line for words in of_few))
    return expect(done.returncode == 0 and "warn" not in said, what, f"exit code {done.returncode}\n{done.stderr}")


def batch_sizes(resolved_yaml):
    return [int(re.search(rf"^  {key}: (\d+)$", resolved_yaml, re.MULTILINE).group(1))
            for key in ("batch_size", "grad_accum", "global_batch_size")]


def check_shape(name, case, folder):
    """On the model's real shape, on as many devices as the file is for."""
    config = CONFIGS / f"{name}.yaml"
    overrides = [f"model.name={case.model}"] if case.gguf else []
    quiet_success(folder.run("config", "check", "--config", config), f"{name}: config check")
    done = folder.run("train", "--config", config, "--dry-run", *on_cpu(case.devices), *overrides)
    if not quiet_success(done, f"{name}: a dry run for {case.devices} device{'s'[:case.devices - 1]}"):
        return
    batch, accum, bins = batch_sizes(done.stdout)
    wanted = case.devices if case.by_data else case.bins
    expect(bins == batch * accum * case.devices == wanted, f"{name}: {wanted} bins a step", f"{batch} x {accum}: {bins}")
    # Sizes that are to be found make it read the model.
    done = folder.run("train", "--config", config, "--dry-run", *on_cpu(case.devices), *overrides, "train.batch_size=auto",
                      "train.grad_accum=auto", f"train.global_batch_size={case.bins}")
    if quiet_success(done, f"{name}: a dry run that reads the model"):
        batch, accum, bins = batch_sizes(done.stdout)
        expect(bins == batch * accum * case.devices == case.bins, f"{name}: as many bins then", f"{batch} x {accum}: {bins}")


def read_safetensors(path):
    content = path.read_bytes()
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8:8 + length])
    header.pop("__metadata__", None)
    return {name: content[8 + length + begin:8 + length + end]
            for name, (begin, end) in ((name, tensor["data_offsets"]) for name, tensor in header.items())}


def modules_of(tensors):
    """Those with an update, by the names that they have in transformers' model."""
    prefix, suffix = "base_model.model.", ".lora_B.weight"
    return {name[len(prefix):-len(suffix)] for name in tensors if name.endswith(suffix)}


def check_adapter(name, adapter, wanted):
    """What PEFT will read, against the file's own words."""
    config = json.loads((adapter / "adapter_config.json").read_text())
    for theirs, ours in (("r", "r"), ("lora_alpha", "alpha"), ("lora_dropout", "dropout")):
        expect(config[theirs] == wanted[ours], f"{name}: the adapter's {theirs} is {wanted[ours]}", config[theirs])
    tensors = read_safetensors(adapter / "adapter_model.safetensors")
    modules = modules_of(tensors)
    targets = ALL_LINEAR if wanted["target_modules"] == ["all-linear"] else wanted["target_modules"]
    expect({module.rpartition(".")[2] for module in modules} == set(targets), f"{name}: updates of {', '.join(targets)}", modules)
    named = config["target_modules"]
    if isinstance(named, str):  # a regular expression, where another part of the model has layers of these names
        expect(all(re.fullmatch(named, module) for module in modules), f"{name}: target_modules match them", named)
        expect(not re.fullmatch(named, IN_IMAGE_PART), f"{name}: and not {IN_IMAGE_PART}", named)
    else:
        expect(set(named) == set(targets), f"{name}: target_modules name them", named)
    still = [module for module in modules if not any(tensors[f"base_model.model.{module}.lora_B.weight"])]
    expect(modules and not still, f"{name}: all {len(modules)} updates moved", f"but for {still}")


def check_steps(name, case, folder, quick):
    """A few steps on a tiny model, with everything else as the file has it but the length of bins."""
    config = CONFIGS / f"{name}.yaml"
    processes = 1 if quick and name not in QUICK_ON_TWO else min(case.devices, MAX_PROCESSES)
    num_steps = 1 if quick and name not in QUICK_IN_TWO_STEPS else STEPS
    overrides = [f"train.max_steps={num_steps}", f"model.max_seq_len={SEQUENCE}"]
    done = folder.run("train", "--config", config, *on_cpu(processes), *overrides)
    if not expect(done.returncode == 0, f"{name}: {num_steps} steps", f"exit code {done.returncode}\n{done.stderr}"):
        return None
    resolved = json.loads(folder.run("config", "show", "--config", config, "--json", *overrides).stdout)
    run = folder.path / resolved["output"]["dir"]
    steps = [line for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "loss" in line]
    losses = [line["loss"] for line in steps]
    expect(len(losses) == num_steps and all(math.isfinite(line[key]) for line in steps for key in ("loss", "grad_norm")),
           f"{name}: {num_steps} finite losses", losses)
    world_size = json.loads((run / "run.json").read_text())["world_size"]
    expect(world_size == processes, f"{name}: number of processes: {processes}", world_size)
    if resolved["tuning"]["mode"] in ("lora", "qlora"):
        check_adapter(name, run / "adapter", resolved["tuning"]["lora"])
    else:
        base = read_safetensors(folder.path / resolved["model"]["name"] / "model.safetensors")
        trained = read_safetensors(run / "model/model.safetensors")
        expect(trained.keys() == base.keys() and trained != base, f"{name}: a model of the same tensors, other values")
    return None


def make_models(cases, shapes, tinies):
    for number, model in enumerate(sorted({case.model for case in cases.values()})):
        write_model(shapes / model, RELEASED[model])
        write_model(tinies / model, tiny(RELEASED[model]), random.Random(number))
    for case in cases.values():
        if case.gguf:
            (tinies / case.gguf).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(GGUF, tinies / case.gguf)


def check_lists():
    files = {path.stem for path in CONFIGS.glob("*.yaml")}
    expect(files == set(CASES), "every file has a case here, every case a file", sorted(files ^ set(CASES)))
    page = (CONFIGS / "README.md").read_text()
    for name in sorted(files):
        expect(f"[{name}.yaml]({name}.yaml)" in page, f"configs/README.md names {name}.yaml")
        case = CASES.get(name)
        text = (CONFIGS / f"{name}.yaml").read_text()
        if case and not case.gguf:
            expect(f"configs/{name}.yaml" in text, f"{name}: its first lines say how to start it")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--quick", action="store_true", help="fewer steps and processes, as in `make test`")
    options = parser.parse_args()
    cases = {name: CASES[name] for name in options.only}
    check_lists()
    with tempfile.TemporaryDirectory(prefix="sftrun-configs-") as scratch:
        shapes, tinies = pathlib.Path(scratch) / "shapes", pathlib.Path(scratch) / "tiny"
        make_models(cases, shapes, tinies)
        of_shapes, of_tinies = (Folder(options.sftrun.resolve(), path) for path in (shapes, tinies))
        for name, case in cases.items():
            check_shape(name, case, of_shapes)
            if not options.quick or name not in QUICK_WITHOUT_STEPS:
                check_steps(name, case, of_tinies, options.quick)
    for failure in failures:
        print(f"FAIL {failure}")
    print("configs: failed" if failures else "configs: all as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
