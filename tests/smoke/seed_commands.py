#!/usr/bin/env python3
"""Runs the command lines of docs/coming-from/*.md, as a reader would copy them, with tiny models on the CPU.

    tests/smoke/seed_commands.py --sftrun build/bin/sftrun [--quick] [--only PART_OF_A_LINE]

The tables of each section "Commands" are read. Every line of sftrun or make is run in bash; lines of two machines are run twice at
the same time. A line with an override must show its value in config.resolved.yaml, and run.json the number of processes. What is
not run is in a list here, with a reason; a list that does not fit the document is an error. Standard library only.

With --quick only one line of each kind trains (TRAIN_IN_QUICK). The others are dry runs, which show the values and the number of
processes, too.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

from free_ports import free_port
from released_models import RELEASED, ROOT, tiny, write_model

DOCUMENTS = sorted((ROOT / "docs/coming-from").glob("*.md"))
MODELS = ("HuggingFaceTB/SmolLM2-135M-Instruct", "unsloth/Llama-3.2-1B-Instruct", "openai/gpt-oss-20b")
SMOL = MODELS[0]
TIMEOUT = 240  # s, of one line
RECORDS = 256  # a step of up to 64 bins with about four records each
MATTERS = re.compile("SFTRUN|TRAIN_|MODEL_|CUDA_|NCCL_|MASTER_|FORCE_|UNSLOTH_|MAKE|MFLAGS|"
                     "(RANK|WORLD_SIZE|LOCAL_RANK|NUM_GPUS|CONFIG|DEEPSPEED_CONFIG)$")  # variables that would change what a line does

OTHER_TOOLS = {"accelerate", "axolotl", "bash", "deepspeed", "llamafactory-cli", "nvidia-smi", "pip", "python", "python3", "torchrun",
               "trl", "tune", "watch", "NUM_GPUS=$(nvidia-smi"}
WORDS = {"PREFIX=", "parallel.accelerate"}  # in the right column, but not a command line
WITHOUT_EQUIVALENT = {
    "bash run_amd_all.sh": "AMD GPUs are not supported",
    "pip install accelerate": "Accelerate is not needed",
}
NOT_RUN = {
    "make setup": "it installs packages",
    "make build": "it builds the program that is tested here",
    "make install": "it builds and installs the program",
}
# They must fail. When one works, it belongs among the lines that are run, and the document must not say "not yet".
NOT_YET = {
}
EXPECTED_OUTPUT = {
    "export FORCE_SINGLE_GPU=1": "FORCE_SINGLE_GPU=1: one process",
    "export UNSLOTH_FORCE_SINGLE_GPU=1": "UNSLOTH_FORCE_SINGLE_GPU=1: one process",
    "make setup-accelerate": "machine.yaml. Runs on this machine read it.",
    "sftrun config init --machine": "machine.yaml. Runs on this machine read it.",
    "sftrun gpu-info": "Number of GPUs",
    "make gpu-info": "Number of GPUs",
    "make memory-check": "Memory of the host:",
    "make memory-check CONFIG=configs/run_bnb.yaml": "Margin of error:",
}
TRAIN_IN_QUICK = {
    "sftrun train --config run.yaml --nproc-per-node 1",
    "sftrun train --config run.yaml --accelerate-config default_config.yaml",
    "sftrun train --config run.yaml --accelerate-config configs/accelerate/multi_gpu_fsdp.yaml train.gradient_checkpointing=true",
    "sftrun train --config run.yaml --nnodes 2 --node-rank 0 --master-addr 192.168.1.1 --master-port 29500",
    "sftrun train --config run.yaml --accelerate-config multi_node_config.yaml --nnodes 2 --node-rank 0 --master-addr 192.168.1.1 --master-port 29500",
    "sftrun train --config run.yaml --nproc-per-node 4 --deepspeed ds_config.json",
    "RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=12355 sftrun train --config run.yaml",
    "sftrun train --config from-axolotl.yaml",
    "make train-distributed CONFIG=configs/run_bnb.yaml NUM_GPUS=2",
    "make train-distributed-tb CONFIG=configs/run_bnb.yaml",
    "make train-deepspeed CONFIG=your_config.yaml DEEPSPEED_CONFIG=configs/deepspeed_custom.json",
    "make train-distributed CONFIG=multi_node_run.yaml",
    "export FORCE_SINGLE_GPU=1",
}

RUN = f"""\
model: {{ name: {SMOL}, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 8, alpha: 16, target_modules: [q_proj, v_proj] }} }}
data: {{ train: data/train.jsonl }}
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: MULTI_GPU
downcast_bf16: 'no'
gpu_ids: all
machine_rank: 0
main_training_function: main
mixed_precision: bf16
num_machines: 1
num_processes: 2
rdzv_backend: static
same_network: true
use_cpu: false
"""
DEEPSPEED = """\
// deepspeed_config.json
{
  "train_batch_size": 16,
  "gradient_accumulation_steps": 1,
  "fp16": {"enabled": false},
  "bf16": {"enabled": true},
  "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
}
"""
AXOLOTL = f"""\
base_model: {SMOL}
load_in_4bit: true
adapter: qlora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
datasets: [{{ path: data/train.jsonl, type: chat_template }}]
sequence_len: 128
sample_packing: true
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 0.0002
bf16: auto
"""
LLAMA_FACTORY = f"""\
model_name_or_path: {SMOL}
stage: sft
do_train: true
finetuning_type: lora
lora_target: q_proj,v_proj
dataset: toy
dataset_dir: data
cutoff_len: 128
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
learning_rate: 1.0e-4
num_train_epochs: 1.0
output_dir: saves/toy
"""
DATASET_INFO = {"toy": {"file_name": "train.jsonl", "formatting": "sharegpt", "columns": {"messages": "messages"},
                        "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}}}
TRL = f"""\
model_name_or_path: {SMOL}
dataset_name: data/train.jsonl
assistant_only_loss: true
use_peft: true
max_length: 128
per_device_train_batch_size: 2
gradient_accumulation_steps: 4
num_train_epochs: 1
output_dir: outputs/trl
"""
TORCHTUNE = f"""\
model: {{ _component_: torchtune.models.llama3_2.lora_llama3_2_1b, lora_attn_modules: ['q_proj', 'v_proj'], lora_rank: 8, lora_alpha: 16 }}
tokenizer: {{ _component_: torchtune.models.llama3.llama3_tokenizer, path: {SMOL}/tokenizer.model, max_seq_len: 128 }}
checkpointer: {{ _component_: torchtune.training.FullModelHFCheckpointer, checkpoint_dir: {SMOL}, checkpoint_files: [model.safetensors] }}
dataset: {{ _component_: torchtune.datasets.chat_dataset, source: json, data_files: data/train.jsonl, conversation_column: messages,
            conversation_style: openai }}
batch_size: 2
epochs: 1
gradient_accumulation_steps: 2
optimizer: {{ _component_: torch.optim.AdamW, lr: 3e-4 }}
dtype: bf16
"""

failures = []


def expect(holds, what, otherwise=""):
    if not holds:
        failures.append(what)
        print(f"FAIL {what}: {otherwise}", flush=True)
    return holds


def commands_of(document):
    return document.read_text().partition("\n## Commands\n")[2].partition("\n## ")[0]


def rows():
    """The two cells of each row in the sections "Commands"."""
    for line in [line for document in DOCUMENTS for line in commands_of(document).splitlines()]:
        if not line.startswith("|") or line.startswith(("|---", "| there |")):
            continue
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        assert len(cells) == 2, f"not two cells: {line}"
        yield cells


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


def is_of_here(text):
    return re.match(r"([A-Z_]+=\S+ )*(sftrun|make) ", text) is not None


def lines_of_document():
    """What is to be run, in the document's order; each line once."""
    found, not_run = {}, set()
    for there, here in rows():
        is_same = here.startswith(("the same", "no effect"))
        exports = [text for text in code(there) if text.startswith("export ")]
        if exports and is_same:
            found["; ".join(exports)] = None
        for text in code(there):
            if is_of_here(text):
                found[text] = None
            elif not text.startswith("export "):
                expect(text.split()[0] in OTHER_TOOLS, f"`{text}` is a line of another tool", "its first word is not in OTHER_TOOLS")
        for text in code(here):
            if is_of_here(text):
                found[text] = None
            else:
                expect(text in WORDS, f"`{text}` in the right column is a line to run", "or else it belongs into WORDS")
        if not is_same and not any(map(is_of_here, code(here))):
            not_run.update(text for text in code(there) if not is_of_here(text))
    for text in [text for text in found if text in NOT_RUN]:
        del found[text]
        not_run.add(text)
    listed = {*WITHOUT_EQUIVALENT, *NOT_RUN}
    expect(not_run == listed, "the lists of lines that are not run fit the document", sorted(not_run ^ listed))
    said = {text for there, here in rows() if here.startswith("not yet") for text in code(there)}
    expect(said == set(NOT_YET), "the document says \"not yet\" of the lines in NOT_YET", sorted(said ^ set(NOT_YET)))
    everything = {text for row in rows() for cell in row for text in code(cell)}
    named = EXPECTED_OUTPUT.keys() | WORDS | TRAIN_IN_QUICK
    expect(named <= everything, "EXPECTED_OUTPUT, WORDS and TRAIN_IN_QUICK are of lines in the document", sorted(named - everything))
    return list(found)


def record(number):
    return {"messages": [{"role": "user", "content": f"What comes after {number}?"},
                         {"role": "assistant", "content": f"The answer is {number + 1}."}]}


def write_program(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


class Checkout:
    """A folder like a checkout with the reader's files, and a second one: the checkout on another machine."""

    def __init__(self, sftrun, path):
        self.flags = ""  # of every `sftrun train`
        self.folder, self.other = path / "checkout", path / "other-machine"
        self.programs, self.logdir = path / "bin", path / "logdir"
        self.port = 0
        self.programs.mkdir()
        write_program(self.programs / "sftrun", f'[ "$1" != train ] || exec {sftrun} "$@" --device cpu $SEED_FLAGS\nexec {sftrun} "$@"')
        write_program(self.programs / "tensorboard", f'echo "$2" >{self.logdir}\necho "TensorBoard 1 at http://localhost:$4/"\nexec sleep {TIMEOUT}')
        self.write_files()
        kept = {name: value for name, value in os.environ.items() if not MATTERS.match(name)}
        self.environment = kept | {
            "PATH": f"{self.programs}:{os.environ['PATH']}", "MAKEFLAGS": f"SFTRUN={self.programs}/sftrun", "HF_HUB_OFFLINE": "1",
            "XDG_CONFIG_HOME": str(path), "XDG_CACHE_HOME": str(path / "cache"), "OMP_NUM_THREADS": "1",
            "SFTRUN_TRAIN__MAX_STEPS": "1"}

    def write_files(self):
        folder = self.folder
        for name in ("data", "configs"):
            (folder / name).mkdir(parents=True)
        for name in ("Makefile", "scripts", *(f"configs/{path.name}" for path in (ROOT / "configs").iterdir())):
            (folder / name).symlink_to(ROOT / name)
        (folder / "data/toy").symlink_to(ROOT / "data/toy")
        for number, name in enumerate(MODELS):
            write_model(folder / name, tiny(RELEASED[name]), random.Random(number))
        for name, count in (("train", RECORDS), ("val", 8)):
            (folder / f"data/{name}.jsonl").write_text("".join(json.dumps(record(i)) + "\n" for i in range(count)))
        (folder / "data/dataset_info.json").write_text(json.dumps(DATASET_INFO))
        for name, text in (("run.yaml", RUN), ("your_config.yaml", RUN), ("configs/your_config.yaml", RUN),
                           ("multi_node_run.yaml", RUN + "parallel: { accelerate: multi_node_config.yaml }\n"),
                           ("default_config.yaml", ACCELERATE), ("ds_config.json", DEEPSPEED),
                           ("axolotl.yml", AXOLOTL), ("llama_factory.yaml", LLAMA_FACTORY), ("trl.yaml", TRL),
                           ("torchtune.yaml", TORCHTUNE)):
            (folder / name).write_text(text)
        self.other.mkdir()
        for entry in folder.iterdir():
            (self.other / entry.name).symlink_to(entry)

    def choose_port(self):
        self.port = free_port()
        two_machines = ACCELERATE.replace("num_machines: 1", "num_machines: 2")
        two_machines += f"main_process_ip: 127.0.0.1\nmain_process_port: {self.port}\n"
        (self.folder / "multi_node_config.yaml").write_text(two_machines)
        (self.other / "multi_node_config.yaml").write_text(two_machines.replace("machine_rank: 0", "machine_rank: 1"))

    def start(self, line, run_directory, folder):
        text = line.replace("192.168.1.1", "127.0.0.1")
        text = re.sub(r"\b(29500|12355)\b", str(self.port), text)
        if text.startswith("export "):
            text += "; sftrun train --config run.yaml"
        environment = self.environment | {"SFTRUN_OUTPUT__DIR": str(run_directory), "SEED_FLAGS": self.flags}
        if "deepspeed" in line and line.startswith("make"):
            environment["NUM_GPUS"] = "2"  # as on a machine with two
        return subprocess.Popen(["bash", "-c", text], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                start_new_session=True)

    def run(self, line, run_directory):
        """Exit codes and outputs of the line, and of the line for the second machine or the second process."""
        self.choose_port()
        processes = [self.start(line, run_directory, self.folder)]
        second = re.sub(r"\b((?:node[-_]rank|LOCAL_RANK|RANK)[= ])0", r"\g<1>1", line)
        if second != line or "multi_node_run" in line:
            processes.append(self.start(second, run_directory, self.other if "RANK=" not in line else self.folder))
        try:
            if line.endswith("--watch"):
                processes[0].stdout.readline()
                os.killpg(processes[0].pid, signal.SIGINT)
            outputs = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
        codes = [process.returncode for process in processes]
        return [code if code >= 0 else 128 - code for code in codes], outputs


def wanted_processes(line, checkout):
    number = re.search(r"(?:nproc[-_]per[-_]node[= ]|NUM_GPUS=)(\d+)", line)
    nodes = re.search(r"--nnodes[= ](\d+)", line)
    file = re.search(r"--accelerate-config (\S+)", line)
    world = re.search(r"WORLD_SIZE=(\d+)", line)
    if number:
        return int(number[1]) * int(nodes[1] if nodes else 1)
    if file:
        count = re.search(r"num_processes: (\d+)", (checkout.folder / file[1]).read_text())
        return int(count[1]) if count else 1
    if "multi_node_run" in line or "make train-deepspeed" in line:
        return 2
    return int((world or nodes or [1, 1])[1])


def wanted_values(line):
    """section.key: value, as overrides of sftrun or variables of make say."""
    values = dict(re.findall(r"\s([a-z]+\.[a-z_]+)=(\S+)", line))
    for section, key, value in re.findall(r"\s(TRAIN|MODEL)_([A-Z_]+)=(\S+)", line):
        values[f"{section}.{key}".lower()] = value
    return values


def resolved_values(text):
    values, section = {}, ""
    for line in text.splitlines():
        if found := re.match(r"(\w+):$", line):
            section = found[1]
        elif found := re.match(r"  (\w+): (.+)$", line):
            values[f"{section}.{found[1]}"] = found[2].strip('"')
    return values


def same_value(one, other):
    try:
        return float(one) == float(other)
    except (TypeError, ValueError):
        return one == other


def wanted_strategy(line, processes):
    if processes == 1:
        return "single"
    for part, strategy in (("fsdp", "fsdp"), ("deepspeed_custom", "zero3"), ("deepspeed", "zero2")):
        if part in line:
            return strategy
    return "ddp"


def check_run(line, run, checkout):
    expect((run / "adapter/adapter_model.safetensors").is_file(), f"`{line}` writes an adapter", f"none in {run}")
    report = json.loads((run / "run.json").read_text())
    processes = wanted_processes(line, checkout)
    expect(report["status"] == "done" and report["last_step"] == 1, f"`{line}` ends after a step", report["status"])
    expect(report["world_size"] == processes, f"`{line}` trains on {processes}", report["world_size"])
    strategy = wanted_strategy(line, processes)
    expect(report["strategy"] == strategy, f"`{line}` trains with {strategy}", report["strategy"])
    check_values(line, resolved_values((run / "config.resolved.yaml").read_text()))
    check_tensorboard(line, run, checkout)


def check_dry_run(line, text, run, checkout):
    """What the launch and the resolved configuration say."""
    launch = re.search(r"^# launch: .*", text, re.MULTILINE)
    found = launch and (re.search(r"world size (\d+)", launch[0]) or re.search(r"\b(\d+) workers?\b", launch[0]))
    processes, values = wanted_processes(line, checkout), resolved_values(text)
    expect(found and int(found[1]) == processes, f"`{line}` would train on {processes}", launch and launch[0])
    strategy = wanted_strategy(line, processes)
    expect(values.get("parallel.strategy") == strategy, f"`{line}` would train with {strategy}", values.get("parallel.strategy"))
    check_values(line, values)
    check_tensorboard(line, run, checkout)
    expect(not run.exists(), f"`{line}` as a dry run writes nothing", run)


def check_values(line, values):
    for key, value in wanted_values(line).items():
        expect(same_value(values.get(key), value), f"`{line}` sets {key}", values.get(key))


def check_tensorboard(line, run, checkout):
    if "-tb " in line:
        expect(checkout.logdir.read_text().strip() == str(run), f"`{line}` shows the run in TensorBoard", checkout.logdir.read_text())
        checkout.logdir.unlink()


def trains(line):
    return "train " in line or line.startswith(("make train", "export "))


def check_line(line, number, checkout, is_quick):
    is_dry = is_quick and trains(line) and line not in TRAIN_IN_QUICK
    checkout.flags = "--dry-run" if is_dry else ""
    named = re.search(r"output\.dir=(\S+)", line)
    run = checkout.folder / (named[1] if named else f"runs/{number}")
    begin = time.monotonic()
    codes, outputs = checkout.run(line, run)
    print(f"{time.monotonic() - begin:4.1f} s  {line}{' (dry run)' if is_dry else ''}", flush=True)
    wanted = 130 if line.endswith("--watch") else 0
    if not expect(set(codes) == {wanted}, f"`{line}` ends with exit code {wanted}", f"{codes}\n" + "\n".join(outputs)):
        return
    text = EXPECTED_OUTPUT.get(line, "")
    expect(text in outputs[0], f"`{line}` prints {text}", outputs[0])
    if is_dry:
        check_dry_run(line, outputs[0], run, checkout)
    elif trains(line):
        check_run(line, run, checkout)


def check_not_yet(line, checkout):
    codes, outputs = checkout.run(line, checkout.folder / "runs/not-yet")
    expect(codes != [0] and "No rule to make target" in outputs[0], f"`{line}` does not exist yet ({NOT_YET[line]})",
           f"it does now; take it out of NOT_YET, and say so in the document\n{outputs[0]}")
    print(f"not yet: {line}: {NOT_YET[line]}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="one line of each kind trains, the others are dry runs")
    parser.add_argument("--only", default="", help="only lines with these words")
    options = parser.parse_args()
    lines = [line for line in lines_of_document() if options.only in line]
    with tempfile.TemporaryDirectory(prefix="sftrun-seed-commands-") as scratch:
        checkout = Checkout(options.sftrun.resolve(), pathlib.Path(scratch).resolve())
        for number, line in enumerate(lines):
            if line in NOT_YET:
                check_not_yet(line, checkout)
            else:
                check_line(line, number, checkout, options.quick)
    for failure in failures:
        print(f"FAIL {failure}")
    print(f"seed commands: {'failed' if failures else f'{len(lines)} lines, all as they should be'}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
