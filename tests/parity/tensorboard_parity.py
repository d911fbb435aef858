"""The tensorboard package reads every tag and value of our event files: of a helper's, also across a resumed run, and of training on
two processes, where each value must be the one in metrics.jsonl.

usage: tensorboard_parity.py WRITE_EVENT_FILES SFTRUN      (the helper built from tests/observe/write_event_files.cpp, and the program)
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.plugins.hparams import metadata as hparams_metadata

ROOT = pathlib.Path(__file__).resolve().parents[2]
HPARAMS = hparams_metadata.SESSION_START_INFO_TAG


def scalars(accumulator, tag):
    return {event.step: event.value for event in accumulator.Scalars(tag)}


def expect(what, actual, expected):
    if actual != expected:
        sys.exit(f"{what}: expected {expected}, tensorboard read {actual}")


def hparams(accumulator):
    content = accumulator.SummaryMetadata(HPARAMS).plugin_data.content
    found = hparams_metadata.parse_session_start_info_plugin_data(content)
    return {name: getattr(value, value.WhichOneof("kind")) for name, value in found.hparams.items()}


def flat(settings, prefix=""):
    """The settings that TensorBoard should have, by name."""
    found = {}
    for key, value in settings.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        elif value is not None:
            found[prefix + key] = value
    return found


def expected_scalars(lines):
    """The scalars by tag and step that metrics.jsonl stands for, of training without what is particular to some runs."""
    tags = {}
    for line in lines:
        for name in ("loss", "grad_norm", "learning_rate", "tokens_per_second", "step_seconds", "epoch"):
            if name in line:
                tags.setdefault(f"train/{name}", {})[line["step"]] = line[name]
        for part in ("data", "forward", "backward", "communication", "optimizer", "other"):
            if f"{part}_seconds" in line:
                tags.setdefault(f"time/{part}", {})[line["step"]] = line[f"{part}_seconds"]
        for rank, loss in enumerate(line.get("loss_per_rank", [])):
            tags.setdefault(f"rank_{rank}/loss", {})[line["step"]] = loss
            for name in ("peak_memory_bytes", "memory_used_bytes", "cpu_utilization"):
                tags.setdefault(f"rank_{rank}/{name}", {})[line["step"]] = line[name][rank]
        for name in ("loss", "perplexity"):
            if f"eval_{name}" in line:
                tags.setdefault(f"eval/{name}", {})[line["step"]] = line[f"eval_{name}"]
    return tags


def check_training(sftrun):
    """Every tag of a run on two processes, against its metrics.jsonl and its settings."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        records = [{"messages": [{"role": "user", "content": f"What comes after {n}?"},
                                 {"role": "assistant", "content": f"The answer is {n + 1}."}]} for n in range(24)]
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "run.yaml").write_text(
            f"model: {{ name: {ROOT}/tests/data/models/tied-gqa, max_seq_len: 128 }}\n"
            "tuning: { lora: { r: 4, target_modules: [q_proj, v_proj] } }\n"
            f"data: {{ train: {folder}/train.jsonl, val: {folder}/train.jsonl }}\n"
            "train: { max_steps: 6, epochs: 50, global_batch_size: 4, eval_steps: 3 }\n"
            f"output: {{ dir: {folder}/run }}\n")
        subprocess.run([sftrun, "train", "--config", folder / "run.yaml", "--device", "cpu", "--nproc-per-node", "2"], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        lines = [json.loads(line) for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
        run = EventAccumulator(str(folder / "run/tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
        run.Reload()
        expected = expected_scalars(lines)
        expect("scalar tags of the run", sorted(run.Tags()["scalars"]), sorted(expected))
        for tag, values in expected.items():
            expect(tag, scalars(run, tag), {step: float(np.float32(value)) for step, value in values.items()})
        for line in lines:
            if "loss" in line:
                parts = sum(line[f"{part}_seconds"] for part in ("data", "forward", "backward", "communication", "optimizer", "other"))
                if not 0.999 < parts / line["step_seconds"] < 1.05:
                    sys.exit(f"step {line['step']}: its parts take {parts} s, the step {line['step_seconds']} s")
                for part in ("forward", "backward", "communication"):
                    if not line[f"{part}_seconds"] > 0:
                        sys.exit(f"step {line['step']}: no time in {part} on two processes")
                if not all(bytes_ > 1 << 20 for bytes_ in line["memory_used_bytes"]) or not all(p > 0 for p in line["cpu_utilization"]):
                    sys.exit(f"step {line['step']}: memory {line['memory_used_bytes']}, processors {line['cpu_utilization']}")
        text = run.Tensors("config")[0].tensor_proto.string_val[0].decode()
        resolved = (folder / "run/config.resolved.yaml").read_text()
        expect("the configuration as text", text, f"```yaml\n{resolved}```")
        read, settings = hparams(run), flat(yaml.safe_load(resolved))
        for name in ("train.learning_rate", "tuning.lora.r", "data.packing", "train.optimizer"):
            expect(f"hyperparameter {name}", read[name], settings[name])
        return len(expected)


def main():
    with tempfile.TemporaryDirectory() as directory:
        subprocess.run([sys.argv[1], directory], check=True)
        files = sorted(os.listdir(directory))
        expect("number of event files", len(files), 2)

        run = EventAccumulator(directory, size_guidance={"scalars": 0, "tensors": 0})
        run.Reload()
        expect("scalar tags", sorted(run.Tags()["scalars"]), ["train/learning_rate", "train/loss"])
        f32 = lambda values: {step: float(np.float32(value)) for step, value in values.items()}
        first = {step: 2.5 / step for step in (1, 2, 3)}
        second = {step: 100.0 + step for step in (4, 5, 6)}
        expect("train/loss", scalars(run, "train/loss"), f32(first | second))
        expect("train/learning_rate", scalars(run, "train/learning_rate"),
               f32({step: 1e-4 * step for step in (1, 2, 3)}))

        expect("text and hparams tags", sorted(run.Tags()["tensors"]), [HPARAMS, "config"])
        expect("hyperparameters", hparams(run), {"model.name": "größe", "train.learning_rate": 2e-4, "train.bf16": True, "train.fp16": False,
                                                 "train.stages": "[1,2]"})
        metadata = run.SummaryMetadata("config")
        expect("plugin of the text", metadata.plugin_data.plugin_name, "text")
        tensor = run.Tensors("config")[0].tensor_proto
        expect("text", [value.decode() for value in tensor.string_val],
               ["| key | value |\n|---|---|\n| model.name | größe 模型 |\n"])
        expect("shape of the text", [dim.size for dim in tensor.tensor_shape.dim], [1])

        # The resumed file alone tells readers to forget what they saw of steps after the checkpoint.
        starts = [event.step for event in EventFileLoader(os.path.join(directory, files[1])).Load()
                  if event.HasField("session_log")]
        expect("steps of SessionLog START", starts, [4])
    tags = check_training(sys.argv[2])
    print(f"tensorboard reads our event files: 9 scalars, 1 text, 5 hyperparameters, 1 session start; {tags} tags of training on two processes")


if __name__ == "__main__":
    main()
