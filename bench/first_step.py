#!/usr/bin/env python3
"""Minutes and megabytes from a bare Debian 12 to the first trained step: sftrun's packages beside TRL and Axolotl.

    bench/first_step.py --packages dist [--roots FOLDER] [--only wheel archive trl axolotl] [--json FILE]

Each way starts in a root file system that has Python and nothing else (debootstrap, as root), installs with pip what its own documentation says, without a cache of
pip, and trains one step of the model and the toy set of `make smoke` on the CPU. `archive` unpacks the archive and installs LibTorch alone. Printed are the seconds of
the installation and of the step, the megabytes that pip downloaded (as it says) and those on the disk afterwards. The network's speed is in the first number, so ways are
compared in one run.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
spec = importlib.util.spec_from_file_location("packages_test", ROOT / "tests/package/packages_test.py")
packages_test = importlib.util.module_from_spec(spec)
spec.loader.exec_module(packages_test)

SETTINGS = ["--config", "/trial/run.yaml", "--device", "cpu", "--nproc-per-node", "1", "model.name=/trial/model", "data.train=/trial/toy/train.jsonl", "data.val=null",
            "train.max_steps=1", "train.eval_strategy=no", "train.eval_on_start=false"]
TRL = """
from datasets import load_dataset
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer
data = load_dataset("json", data_files="/trial/toy/train.jsonl", split="train")
settings = SFTConfig(output_dir="/trial/trl", max_steps=1, per_device_train_batch_size=4, use_cpu=True, bf16=False, report_to="none", save_strategy="no")
SFTTrainer(model="/trial/model", args=settings, train_dataset=data, peft_config=LoraConfig(r=8, target_modules="all-linear")).train()
"""
AXOLOTL = """
base_model: /trial/model
datasets: [{path: /trial/toy/train.jsonl, ds_type: json, type: chat_template}]
adapter: lora
lora_r: 8
lora_alpha: 16
lora_target_linear: true
sequence_len: 256
micro_batch_size: 4
gradient_accumulation_steps: 1
max_steps: 1
learning_rate: 0.001
optimizer: adamw_torch
output_dir: /trial/axolotl
"""
SPECIAL = {"trl": (["trl", "peft"], ["/opt/venv/bin/python", "/trial/step.py"], TRL, "step.py"),
           "axolotl": (["axolotl"], ["/opt/venv/bin/axolotl", "train", "/trial/step.yaml"], AXOLOTL, "step.yaml")}


def bytes_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def downloaded_mb(said):
    """Of pip's lines "Downloading torch-….whl (530.6 MB)"."""
    units = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
    return sum(float(number) * units[unit] for number, unit in re.findall(r"^\s*Downloading \S+ \(([\d.]+) (kB|MB|GB)\)", said, re.M))


def measure(way, system, packages, environment):
    """seconds of the installation and of the first step, megabytes; the reason where it fails"""
    shutil.rmtree(system.path / "opt/venv", ignore_errors=True)
    shutil.rmtree(system.path / "opt/sftrun", ignore_errors=True)
    wheel = packages_test.one(packages, "sftrun-*.whl")
    wanted, step = {"wheel": ([f"/trial/{wheel.name}"], ["/opt/venv/bin/sftrun", "train", *SETTINGS, "output.dir=/trial/wheel"]),
                    "archive": (["torch==2.11.*"], ["/opt/sftrun/bin/sftrun", "train", *SETTINGS, "output.dir=/trial/archive"])}.get(way, (None, None))
    if way in SPECIAL:
        wanted, step, text, name = SPECIAL[way]
        (system.path / "trial" / name).write_text(text)
    system.put(wheel, f"/trial/{wheel.name}")
    started = time.monotonic()
    system.run("python3", "-m", "venv", "/opt/venv", with_torch=False)
    if way == "archive":
        packages_test.unpack(system, packages)
    done = system.run("/opt/venv/bin/pip", "install", "--no-cache-dir", *wanted, environment=environment, with_torch=False)
    installed_s = time.monotonic() - started
    result = {"way": way, "install_s": round(installed_s, 1), "downloaded_mb": round(downloaded_mb(done.stdout)),
              "installed_mb": round(sum(bytes_of(system.path / folder) for folder in ("opt/venv", "opt/sftrun")) / 1e6)}
    if done.returncode != 0:
        return {**result, "failed": (done.stdout + done.stderr).strip().splitlines()[-3:]}
    started = time.monotonic()
    done = system.run(*step, environment={**environment, "VIRTUAL_ENV": "/opt/venv", "HF_HUB_OFFLINE": "1", "PATH": "/opt/venv/bin:/usr/bin:/bin"}, with_torch=False)
    result["first_step_s"] = round(time.monotonic() - started, 1)
    return result if done.returncode == 0 else {**result, "failed": (done.stdout + done.stderr).strip().splitlines()[-3:]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=pathlib.Path, required=True)
    parser.add_argument("--roots", type=pathlib.Path, default=ROOT / ".cache/package/roots")
    parser.add_argument("--only", nargs="+", choices=("wheel", "archive", *SPECIAL), default=["wheel", "archive", *SPECIAL])
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        sys.exit("error: this needs root and debootstrap")
    system = packages_test.BareSystem("bookworm", options.roots, pathlib.Path("/nonexistent/torch"))
    packages_test.prepare(system)
    environment = packages_test.reach_index(system)
    results = [measure(way, system, options.packages, environment) for way in options.only]
    for result in results:
        print(json.dumps(result), flush=True)
    if options.json:
        options.json.write_text("".join(json.dumps(result) + "\n" for result in results))


if __name__ == "__main__":
    main()
