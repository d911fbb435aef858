"""The model and the pictures of `make demo-vision` (scripts/demo_vision) in transformers and in sftrun, in fp32 on the CPU.

    python tests/parity/demo_vision_parity.py --sftrun build/bin/sftrun

made     a run of pictures.py again gives the same bytes; training and held-out pictures differ; held-out questions are of all kinds
files    transformers loads the model, with sftrun's tokens and labels
score    `sftrun score` of held-out records: transformers' log-probabilities to 1e-4, before and after training
train    two steps of the demo's configuration: the first loss is transformers', to 1e-5, and the second is lower
show     show.py counts the answers of both models, writes the page, and fails, as two steps teach too little
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import REPOSITORY, Sftrun, Verdicts

import torch
from image_processors_parity import Case as ProcessorCase
from reference_training import Document, log_probability_of_labels, logits_of
from vision_models import MODELS, Form, Reader, load

DEMO = REPOSITORY / "scripts" / "demo_vision"
SCORE, LOSS = 1e-4, 1e-5
NUMBER_TRAIN, NUMBER_HELDOUT = 24, 8
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
FORM = Form(("<|user|>", ""), ("<|assistant|>", ""), "<|end|>")  # the reference's copy of the chat template


def run(script: str, *arguments) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, str(DEMO / script), *map(str, arguments)], capture_output=True, text=True)


def records_of(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def make(folder: Path) -> Path:
    run("pictures.py", "--output", folder, "--train", NUMBER_TRAIN, "--heldout", NUMBER_HELDOUT).check_returncode()
    return folder


def check_pictures(scratch: Path, verdicts: Verdicts) -> Path:
    pictures, again = make(scratch / "pictures"), make(scratch / "again")
    files = sorted(path.relative_to(pictures) for path in pictures.rglob("*.*"))
    same = all((pictures / path).read_bytes() == (again / path).read_bytes() for path in files)
    verdicts.expect("made: the same bytes again", same and len(files) == NUMBER_TRAIN + NUMBER_HELDOUT + 2, f"{len(files)} files")
    contents = {path.read_bytes() for path in (pictures / "images").iterdir()}
    verdicts.expect("made: no picture twice", len(contents) == NUMBER_TRAIN + NUMBER_HELDOUT, str(len(contents)))
    kinds = [record["kind"] for record in records_of(pictures / "heldout.jsonl")]
    verdicts.expect("made: kinds of held-out questions", kinds == ["colour", "shape", "count", "digit"] * 2, str(kinds))
    return pictures


def reader_of(folder: Path, pictures: Path) -> Reader:
    settings = json.loads((folder / "preprocessor_config.json").read_text())
    settings = {key: value for key, value in settings.items() if not key.endswith(("_type", "_class"))}
    case = ProcessorCase("demo_vision", "qwen2_vl", "Qwen2VLImageProcessor", settings, "qwen2_5_vl.Qwen2_5_VLProcessor")
    return Reader(dataclasses.replace(MODELS["qwen2_5_vl"], processor=case, form=FORM), folder, pictures)


def check_files(sftrun: Sftrun, config: list[str], documents: list[Document], verdicts: Verdicts) -> None:
    printed = sftrun.run("preview", *config, "data.packing=false", "-n", str(NUMBER_TRAIN), "--json")
    sequences = json.loads(printed)["data_sets"][0]["sequences"]
    verdicts.expect("files: tokens", [s["input_ids"] for s in sequences] == [d.tokens for d in documents], f"{len(documents)} sequences")
    verdicts.expect("files: labels", [s["labels"][1:] for s in sequences] == [d.labels[1:] for d in documents])


@torch.no_grad()
def log_probabilities(folder: Path, documents: list[Document]) -> list[float]:
    model = load(folder)
    return [log_probability_of_labels(logits_of(model, d.tokens, **d.inputs), d.labels).item() for d in documents]


def check_score(what: str, sftrun: Sftrun, folder: Path, reader: Reader, records: list[dict], verdicts: Verdicts) -> None:
    documents = [reader.document(record["messages"]) for record in records]
    expected = log_probabilities(folder, documents)
    scores = sftrun.jsonl("score", records, reader.pictures, "--model", str(folder), *ON_CPU)
    verdicts.expect(f"score {what}: labelled tokens", [s["tokens"] for s in scores] == [d.label_tokens for d in documents])
    worst = max(abs(s["logprob"] - e) / max(abs(e), 1.0) for s, e in zip(scores, expected, strict=True))
    verdicts.below(f"score {what}: log-probability", worst, SCORE)


def check_train(sftrun: Sftrun, model: Path, output: Path, overrides: dict, documents: list[Document], verdicts: Verdicts) -> None:
    """Each step takes all records: they fit into the packed sequences of one."""
    expected = -sum(log_probabilities(model, documents)) / sum(d.label_tokens for d in documents)
    first, second = sftrun.train(DEMO / "run.yaml", output, **overrides, train__max_steps=2, train__warmup_ratio=0, train__eval_strategy="no",
                                 model__dtype="fp32")
    verdicts.below("train: first loss", abs(first["loss"] - expected) / expected, LOSS)
    verdicts.expect("train: second loss is lower", second["loss"] < first["loss"], f"{first['loss']:.4f} -> {second['loss']:.4f}")


def check_show(sftrun: Sftrun, model: Path, pictures: Path, output: Path, verdicts: Verdicts) -> None:
    shown = run("show.py", "--sftrun", sftrun.path, "--model", model, "--pictures", pictures, "--run", output)
    says = shown.stderr.strip()[-300:]
    verdicts.expect("show: fails, as too few answers are right", shown.returncode == 1 and "of the answers are right" in says, says)
    right = [sum(r["generated"].strip() == r["messages"][-1]["content"] for r in records_of(output / "answers" / name))
             for name in ("before.jsonl", "after.jsonl")]
    row = next((line.split() for line in shown.stdout.splitlines() if line.startswith("  all")), [])
    verdicts.expect("show: shares", row == ["all", str(NUMBER_HELDOUT), *(f"{r / NUMBER_HELDOUT:.1%}" for r in right)], str(row))
    page = (output / "pictures.html").read_text()
    verdicts.expect("show: pictures on the page", page.count("data:image/png;base64,") >= NUMBER_HELDOUT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    sftrun, verdicts = Sftrun(parser.parse_args().sftrun), Verdicts()
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        pictures = check_pictures(scratch, verdicts)
        model, output = scratch / "model", scratch / "run"
        run("model.py", "--output", model).check_returncode()
        reader = reader_of(model, pictures)
        heldout = [{"messages": record["messages"]} for record in records_of(pictures / "heldout.jsonl")]
        documents = [reader.document(record["messages"]) for record in records_of(pictures / "train.jsonl")]
        data = {"data__train": pictures / "train.jsonl", "data__val": pictures / "heldout.jsonl", "data__cache_dir": "none"}
        overrides = {"model__name": model, **data}
        settings = [f"{key.replace('__', '.')}={value}" for key, value in overrides.items()]
        check_files(sftrun, ["--config", str(DEMO / "run.yaml"), *settings], documents, verdicts)
        check_score("before", sftrun, model, reader, heldout, verdicts)
        check_train(sftrun, model, output, overrides, documents, verdicts)
        check_score("after", sftrun, output / "model", reader, heldout, verdicts)
        check_show(sftrun, model, pictures, output, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
