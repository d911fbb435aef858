#!/usr/bin/env python3
"""Files of Accelerate and DeepSpeed as the settings of whole runs on two processes. Standard library only.

    tests/smoke/other_tools.py --sftrun build/bin/sftrun

A run with such a file must give the losses of the same run with plain keys, to the bit, and say in run.json which strategy
it used. The shipped files are used as they are, with the settings of a CPU on the command line. `make train-deepspeed` must
pass on its variables.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
TIMEOUT = 240  # s, of one run
RUN = """\
model: {{ name: {model}, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8 }} }}
data: {{ train: toy.jsonl }}
train: {{ max_steps: 4, learning_rate: 2.0e-2, warmup_steps: 0 }}
output: {{ dir: run }}
"""
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config: { fsdp_sharding_strategy: FULL_SHARD, fsdp_offload_params: false, fsdp_activation_checkpointing: true }
mixed_precision: 'no'
num_processes: 2
use_cpu: true
"""
DEEPSPEED = {"zero_optimization": {"stage": 2, "overlap_comm": True}, "bf16": {"enabled": False}, "gradient_clipping": 0.5,
             "train_batch_size": 4, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2,
             "optimizer": {"type": "AdamW", "params": {"lr": 2e-2, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.1}}}
ON_TWO = ["--device", "cpu", "--nproc-per-node", "2"]
# name, flags with a file, the same as plain keys, the strategy that run.json names
CASES = [
    ("accelerate", ["--accelerate-config", "accelerate.yaml", "train.global_batch_size=4"],
     [*ON_TWO, "train.global_batch_size=4", "parallel.strategy=fsdp", "model.dtype=fp32", "train.gradient_checkpointing=true"], "fsdp"),
    ("deepspeed", [*ON_TWO, "--deepspeed", "ds.json"],
     [*ON_TWO, "parallel.strategy=zero2", "train.bf16=false", "train.max_grad_norm=0.5", "train.batch_size=1", "train.grad_accum=2",
      "train.adam_beta1=0.8", "train.adam_beta2=0.9", "train.adam_epsilon=1e-6", "train.weight_decay=0.1"], "zero2"),
    ("shipped file of Accelerate", ["--accelerate-config", ROOT / "configs/accelerate/multi_cpu.yaml", "train.global_batch_size=4"],
     [*ON_TWO, "train.global_batch_size=4", "parallel.strategy=ddp", "model.dtype=fp32"], "ddp"),
    ("shipped file of DeepSpeed",
     [*ON_TWO, "--deepspeed", ROOT / "configs/deepspeed/zero2.json", "model.dtype=fp32", "train.global_batch_size=4"],
     [*ON_TWO, "parallel.strategy=zero2", "model.dtype=fp32", "train.global_batch_size=4"], "zero2"),
]


def record(number):
    return {"messages": [{"role": "user", "content": f"What comes after {number}?"},
                         {"role": "assistant", "content": f"The answer is {number + 1}."}]}


class Folder:
    def __init__(self, sftrun, path):
        self.sftrun, self.path = sftrun, path
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SFTRUN_")}
        self.environment = kept | {"XDG_CONFIG_HOME": str(path), "XDG_CACHE_HOME": str(path / "cache"), "OMP_NUM_THREADS": "1"}
        (path / "toy.jsonl").write_text("".join(json.dumps(record(n)) + "\n" for n in range(24)))
        (path / "run.yaml").write_text(RUN.format(model=MODEL))
        (path / "accelerate.yaml").write_text(ACCELERATE)
        (path / "ds.json").write_text(json.dumps(DEEPSPEED, indent=2))

    def train(self, directory, words):
        """Losses and gradient norms of every step, and run.json."""
        command = [self.sftrun, "train", "--config", "run.yaml", *words, f"output.dir={directory}"]
        print("$", *command, flush=True)
        done = subprocess.run([str(word) for word in command], cwd=self.path, env=self.environment, capture_output=True, text=True,
                              timeout=TIMEOUT)
        assert done.returncode == 0, done.stdout + done.stderr
        run = self.path / directory
        steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        return [(step["loss"], step["grad_norm"]) for step in steps], json.loads((run / "run.json").read_text())


def check_case(folder, number, case):
    name, with_file, with_keys, strategy = case
    of_file, report = folder.train(f"file-{number}", with_file)
    of_keys, _ = folder.train(f"keys-{number}", with_keys)
    assert len(of_file) == 4, of_file
    assert of_file == of_keys, f"{name}: {of_file} with the file, {of_keys} with keys"
    assert report["world_size"] == 2 and report["strategy"] == strategy, f"{name}: {report['world_size']} {report['strategy']}"
    print(f"ok   {name}: {strategy}, the same losses", flush=True)


def check_make():
    """What make would run; nothing is built."""
    command = ["make", "-n", "-C", ROOT, "train-deepspeed", "CONFIG=my run.yaml", "DEEPSPEED_CONFIG=my ds.json", "NUM_GPUS=2",
               "TRAIN_BATCH_SIZE=1", "MODEL_MAX_SEQ_LEN=1024"]
    text = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT).stdout
    for part in ("train --config 'my run.yaml'", "--deepspeed 'my ds.json'", "--nproc-per-node 2", "'train.batch_size=1'",
                 "'model.max_seq_len=1024'"):
        assert part in text, f"{part} is not in:\n{text}"
    text = subprocess.run(["make", "-n", "-C", ROOT, "train-deepspeed-tb", "CONFIG=r.yaml"], capture_output=True, text=True, check=True,
                          timeout=TIMEOUT).stdout
    for part in ("scripts/with_tensorboard.sh", "--deepspeed 'configs/deepspeed/zero2.json'"):
        assert part in text, f"{part} is not in:\n{text}"
    print("ok   make train-deepspeed passes on its variables", flush=True)


def check_tensorboard(path):
    """The script starts TensorBoard, returns the command's exit code, and ends TensorBoard. Without it the command runs, too. With the real
    program: tests/parity/trackers.py."""
    programs = path / "programs"
    programs.mkdir()
    stand_in = programs / "tensorboard"
    serves = "echo TensorBoard 1 at http://localhost:7007/ >&2\n"
    stand_in.write_text(f'#!/bin/sh\necho "$@" >{path}/arguments\ntrap "touch {path}/ended; exit 0" TERM\n{serves}while :; do sleep 0.05; done\n')
    stand_in.chmod(0o755)
    script = ROOT / "scripts/with_tensorboard.sh"
    environment = os.environ | {"PATH": f"{programs}:{os.environ['PATH']}", "TENSORBOARD_PORT": "7007"}
    done = subprocess.run([script, "runs/x", "sh", "-c", "exit 5"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 5, done
    assert "http://localhost:7007" in done.stdout, done.stdout
    assert (path / "arguments").read_text().split() == ["--logdir", "runs/x", "--port", "7007"]
    for _ in range(200):
        if (path / "ended").exists():
            break
        subprocess.run(["sleep", "0.05"], check=True)
    assert (path / "ended").exists(), "TensorBoard was not ended"
    bare = path / "bare"  # a PATH without TensorBoard
    bare.mkdir()
    for name in ("bash", "env"):
        (bare / name).symlink_to(f"/usr/bin/{name}")
    done = subprocess.run([script, "runs/x", "bash", "-c", "echo trained; exit 3"], env=environment | {"PATH": str(bare)}, cwd=bare,
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 3 and done.stdout == "trained\n" and "tensorboard was not found; training without it" in done.stderr, done
    for start, warning in (("", "TensorBoard did not start; training without it"), (serves, "TensorBoard has ended; training continues")):
        stand_in.write_text(f"#!/bin/sh\n{start}sleep 0.3\necho it is broken >&2\nexit 1\n")
        done = subprocess.run([script, "runs/x", "sh", "-c", "sleep 2; exit 4"], env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 4 and warning in done.stderr and "it is broken" in done.stderr, done
    print("ok   TensorBoard is started and ended", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sftrun-other-tools-") as scratch:
        folder = Folder(options.sftrun.resolve(), pathlib.Path(scratch))
        for number, case in enumerate(CASES):
            check_case(folder, number, case)
        check_tensorboard(folder.path)
    check_make()
    return 0


if __name__ == "__main__":
    sys.exit(main())
