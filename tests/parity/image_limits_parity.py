"""Limits of images (data.max_image_pixels, data.image_longest_edge) after training: what a run writes has them, for transformers and for sftrun.

    python tests/parity/image_limits_parity.py --sftrun build/bin/sftrun [--only smolvlm …]

files      the image processor of transformers, loaded from the adapter, the model, the merged and the quantised model, and for vLLM: the tokens that training had,
           which are fewer than without the limit
prompts    `generate` and `score` with the adapter, a checkpoint, the merged and the whole model have these tokens
merge      what merging changes is measured with images
parts      what `--dry-run` says of each part's parameters, and of those that train, is what the run counts
eval       `sftrun eval` gives the validation loss of training, by the same configuration
features   the same for a run with a projector of features, in full and with an adapter
card       the code of the model card answers a question about an image, where AutoProcessor can be loaded without torchvision
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import math
import os
import re
import sys
import tempfile
from functools import partial
from pathlib import Path

from harness import Measured, ModelCase, Sftrun, check_in_copies  # noqa: I001  (sets sys.path)

import numpy as np
import yaml
from image_processors_parity import token_counter
from vision_models import MODELS, Reader, VisionModel, turn, write_folder, write_pictures

LOSS, SCORE, DIVERGENCE = 1e-5, 1e-4, 1e-6
# A limit of each family that has one, by the key of `data`.
PIXELS, EDGE = "max_image_pixels", "image_longest_edge"
LIMITS = {
    "qwen2_5_vl": (PIXELS, 150),
    "qwen3_vl": (EDGE, 12),  # no key of its image processor says it
    "gemma4_vision": (PIXELS, 80 * 36),
    "smolvlm": (EDGE, 16),
    "idefics3": (EDGE, 16),
    "internvl": (PIXELS, 256),
    "mistral3": (EDGE, 12),
}
UNWRITTEN = {"qwen3_vl"}
LARGER = {"gemma4_vision": {"max_soft_tokens": 140}}  # so that there is something to lower
WITH_CARDS = [name for name, model in MODELS.items() if model.has_auto_processor]
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
LORA, FULL = {"mode": "lora", "lora": {"r": 2}}, {"mode": "full"}


def write_base(name: str, folder: Path) -> None:
    write_folder(MODELS[name], folder, MODELS[name].kind.seed)
    file = folder / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | LARGER.get(name, {})))


def reader_of(model: VisionModel, base: Path, folder: Path, pictures: Path) -> Reader:
    """With the image processor that transformers loads from a folder."""
    reader = Reader(model, base, pictures)
    processor = type(reader.processor.image_processor).from_pretrained(folder)
    reader.processor.image_processor, reader.processor.counter = processor, token_counter(model.processor, processor)
    return reader


def make_case(name: str, sftrun: Sftrun, verdicts: Measured, directory: Path) -> tuple[ModelCase, list[list[dict]]]:
    pictures = write_pictures(directory / "images", seed=1)
    write_base(name, directory / "base")
    conversations = [[turn("user", f"images/{picture}", "amber?"), turn("assistant", "birch")] for picture in pictures]
    lines = [json.dumps({"messages": messages}) + "\n" for messages in conversations]
    (directory / "records.jsonl").write_text("".join(lines))
    return ModelCase(name, sftrun, verdicts, directory), conversations


def write_run(case: ModelCase, name: str, tuning: dict, data: dict, **model) -> Path:
    config = {
        "model": {"name": str(case.base), "max_seq_len": 1024, "dtype": "fp32"} | model,
        "tuning": tuning,
        "data": {"train": str(case.directory / "records.jsonl"), "val": str(case.directory / "records.jsonl"), "cache_dir": "none"} | data,
        "train": {"max_steps": 2, "learning_rate": 1e-2, "global_batch_size": 4, "batch_size": 2},
        "output": {"dir": str(case.directory / name), "tensorboard": False},
    }
    path = case.directory / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train(case: ModelCase, name: str, tuning: dict, data: dict, **model) -> Path:
    """@return the run's directory"""
    case.sftrun.run("train", "--config", str(write_run(case, name, tuning, data, **model)), "--device", "cpu")
    return case.directory / name


def check_eval(case: ModelCase, run: Path) -> None:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    trained = [line["eval_loss"] for line in lines if "eval_loss" in line][-1]
    printed = json.loads(case.sftrun.run("eval", "--config", f"{run}.yaml", "--no-generate", "--json", *ON_CPU))
    (measured,) = (printed[key]["loss"] for key in ("adapter", "model") if key in printed)
    case.below(f"eval, {run.name}: the validation loss of training", abs(measured - trained) / trained, LOSS)


def check_parts(case: ModelCase, run: Path) -> None:
    """A dry run counts by the model's configuration, a run its parameters."""
    lines = case.sftrun.run("train", "--config", f"{run}.yaml", "--dry-run", "--device", "cpu").splitlines()
    planned = [line.removeprefix("# ") for line in lines if line.startswith("# parts: ")]
    counted = [line[line.index("parts: "):] for line in (run / "logs/rank-0.log").read_text().splitlines() if " parts: language" in line]
    case.expect(f"parts, {run.name}: the same in plan and log", len(planned) == 1 and planned == counted, f"{planned} and {counted}")


def tokens_of_previews(case: ModelCase, config: Path, count: int) -> list[int]:
    printed = json.loads(case.sftrun.run("preview", "--config", str(config), "-n", str(count), "--json", "data.packing=false"))
    return [len(sequence["input_ids"]) for sequence in printed["data_sets"][0]["sequences"]]


def prompt_tokens(case: ModelCase, *model: str) -> int:
    flags = [*model, *ON_CPU, "--image", str(case.directory / "images/1.jpg"), "--prompt", "amber?", "--max-new-tokens", "1", "--json"]
    return json.loads(case.sftrun.run("generate", *flags))["prompt_tokens"]


def written_results(case: ModelCase, run: Path, whole: Path) -> dict[str, list[str]]:
    """Flags by what they name, with the folders that have files of an image processor first."""
    merged, packed = case.directory / "merged", case.directory / "packed"
    case.sftrun.run("merge", "--adapter", str(run / "adapter"), "--output", str(merged), "--dtype", "f32", "--sample", "4", "--device", "cpu")
    report = json.loads((merged / "merge_report.json").read_text())
    case.below("merge, measured on records with images: divergence", abs(report["kl_divergence"]), DIVERGENCE)
    case.sftrun.run("quantize", "--model", str(merged), "--output", str(packed), "--method", "int8")
    return {"adapter": ["--adapter", str(run / "adapter")], "model": ["--model", str(whole / "model")], "merged": ["--model", str(merged)],
            "quantised": ["--model", str(packed)], "checkpoint": ["--adapter", str(run / "checkpoints/step-000002")]}


def check_limits(case: ModelCase, conversations: list[list[dict]]) -> None:
    key, limit = LIMITS[case.name]
    run, whole = train(case, "lora", LORA, {key: limit}), train(case, "full", FULL, {key: limit})
    trained = tokens_of_previews(case, Path(f"{run}.yaml"), len(conversations))
    without = reader_of(MODELS[case.name], case.base, case.base, case.directory)
    unlimited = [len(without.document(messages).tokens) for messages in conversations]
    case.expect("the limit makes fewer tokens", sum(trained) < sum(unlimited), f"{sum(trained)} and {sum(unlimited)}")
    results = written_results(case, run, whole)
    if case.name == "qwen2_5_vl":
        folder = case.directory / "vllm"
        case.sftrun.run("merge", "--adapter", str(run / "adapter"), "--output", str(folder), "--format", "vllm")
        results["vllm"] = ["", str(folder)]
    prompts = {what: prompt_tokens(case, *flags) for what, flags in results.items() if flags[0]}
    for what, (_, folder) in results.items():
        if what == "checkpoint" or case.name in UNWRITTEN:
            continue
        reader = reader_of(MODELS[case.name], case.base, Path(folder), case.directory)
        read = [len(reader.document(messages).tokens) for messages in conversations]
        case.expect(f"files, {what}: tokens by transformers' image processor", read == trained, f"{read} and {trained}")
    case.expect("prompts have the tokens of training", len(set(prompts.values())) == 1, str(prompts))
    case.expect("prompts have fewer tokens than with the base", prompts["adapter"] < prompt_tokens(case, "--model", str(case.base)))
    records = [json.loads(line) for line in (case.directory / "records.jsonl").read_text().splitlines()]
    scores = {what: [line["logprob"] for line in case.sftrun.jsonl("score", records, case.directory, *results[what], *ON_CPU)]
              for what in ("adapter", "merged", "checkpoint")}
    for what in ("merged", "checkpoint"):
        off = max(abs(a - b) for a, b in zip(scores["adapter"], scores[what], strict=True))
        case.below(f"score, {what}: as the adapter", off, SCORE)
    for directory in (run, whole):
        check_eval(case, directory), check_parts(case, directory)


def check_features(case: ModelCase, conversations: list[list[dict]]) -> None:
    rng = np.random.default_rng(3)
    lines = []
    for number, messages in enumerate(conversations):
        np.save(case.directory / f"{number}.npy", rng.standard_normal((6, 5)).astype(np.float32))
        user = messages[0] | {"content": [{"type": "features", "path": f"{number}.npy"}, *messages[0]["content"]]}
        lines.append(json.dumps({"messages": [user, *messages[1:]]}) + "\n")
    (case.directory / "records.jsonl").write_text("".join(lines))
    projectors = {"world": {"input_width": 5, "tokens": 3}}
    for name, tuning in (("projector", FULL | {"train_parts": ["projector"]}), ("both", LORA | {"train_parts": {"language": "lora", "projector": "full"}})):
        run = train(case, name, tuning, {}, projectors=projectors)
        check_eval(case, run), check_parts(case, run)


def code_of_card(folder: Path, base: Path) -> str:
    (code,) = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    return code.replace(f"path/to/{base.name}", str(base))


def check_card(case: ModelCase, conversations: list[list[dict]]) -> None:
    for name, tuning in (("lora", LORA), ("full", FULL)):
        run = train(case, f"card-{name}", tuning, {})
        folder = run / ("adapter" if name == "lora" else "model")
        (folder / "photo.png").write_bytes((case.directory / "images/0.png").read_bytes())
        printed, before = io.StringIO(), Path.cwd()
        os.chdir(folder)
        try:
            with contextlib.redirect_stdout(printed):
                exec(code_of_card(folder, case.base), {})  # noqa: S102
        finally:
            os.chdir(before)
        flags = ["--adapter" if name == "lora" else "--model", str(folder), *ON_CPU, "--image", str(folder / "photo.png"), "--max-new-tokens", "64"]
        ours = case.sftrun.run("generate", *flags, "--prompt", "What is this?")
        theirs = printed.getvalue()
        case.expect(f"card, {name}: its code answers", theirs.strip()[:12] == ours.strip()[:12], f"{theirs.strip()[:24]!r} and {ours.strip()[:24]!r}")


def check_model(name: str, options: argparse.Namespace) -> Measured:
    verdicts = Measured()
    checks = [check_limits] * (name in LIMITS) + [check_features] * (name == "gemma3") + [check_card] * (name in WITH_CARDS)
    for check in checks:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                check(*make_case(name, Sftrun(str(Path(options.sftrun).resolve())), verdicts, Path(scratch)))
            except Exception as error:  # of sftrun, or of transformers
                verdicts.expect(f"{name}, {check.__name__}", False, f"{type(error).__name__}: {error}")
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=sorted({*LIMITS, *WITH_CARDS}))
    parser.add_argument("--quick", action="store_true", help="some of the models")
    options = parser.parse_args()
    verdicts = Measured()
    names = options.only or (["qwen2_5_vl", "smolvlm", "gemma3", "idefics3"] if options.quick else sorted({*LIMITS, *WITH_CARDS}))
    check_in_copies(names, partial(check_model, options=options), verdicts)
    assert not any(math.isnan(value) for value in verdicts.values.values())
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
