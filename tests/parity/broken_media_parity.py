"""Images and features that cannot be read during a run: `sftrun train` with data.bad_records: skip beside a run on data without their records.

    python tests/parity/broken_media_parity.py --sftrun build/bin/sftrun [--quick]

Damaged images whose headers are whole, and features with NaN, are found when a batch needs them. Their records keep their places, without labels, so
losses and gradient norms of each step are those of data without these records, whatever the batches and strategies.

training    a model with images, and one with features, in the batches and strategies of BATCHES
dpo         pairs of which one has a damaged image
evaluation  the loss on validation data with damaged images
messages    the warning of each file, once; the summary; without data.bad_records: skip the error, which names file, record and what to do
answers     of evaluations, to the other questions
generate    names the record; answers before it are kept, and the same command goes on after them
chat        goes on after a damaged image, also with several processes
resume      of a run whose image has changed
all broken  the run ends
"""

from __future__ import annotations

import argparse
import base64
import json
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import REPOSITORY, Measured, Sftrun, compare_metrics  # noqa: I001  (sets sys.path)

import numpy as np
import yaml
from PIL import Image
from vision_models import MODELS, write_folder

LOSS, GRAD_NORM, STEPS, RECORDS = 2e-6, 2e-5, 3, 12
BROKEN = (3, 8)  # records
SIDE = 24
MODEL = "qwen2_5_vl"
UNPACKED = {"data__packing": False, "train__batch_size": 1, "train__grad_accum": 12}
PACKED = {"data__packing": True, "train__batch_size": 2, "train__grad_accum": 8}
BATCHES = {
    "unpacked, one record a micro-batch": UNPACKED,
    "unpacked": {"data__packing": False, "train__batch_size": 4, "train__grad_accum": 3},
    "streamed": {"data__packing": False, "train__batch_size": 4, "train__grad_accum": 3, "data__streaming": True},
    "unit by unit": UNPACKED | {"parallel__fetch": "per_step"},
    "packed": PACKED,
    "packed, checkpointing": PACKED | {"train__gradient_checkpointing": True},
    "longest first": PACKED | {"train__longest_batch_first": True},
    "ddp": UNPACKED | {"train__grad_accum": 6, "processes": 2, "parallel__strategy": "ddp"},
    "fsdp": PACKED | {"train__grad_accum": 4, "processes": 2, "parallel__strategy": "fsdp"},
    "tensor": UNPACKED | {"processes": 2, "parallel__strategy": "tensor"},
    "pipeline": UNPACKED | {"processes": 2, "parallel__strategy": "pipeline"},
    "pipeline, packed": PACKED | {"processes": 2, "parallel__strategy": "pipeline"},
    # Each record several times in a step, which makes the same loss
    "weight 2": {"data__packing": False, "train__batch_size": 4, "train__grad_accum": 6, "weight": 2},
    "weight 3, fsdp": PACKED | {"processes": 2, "parallel__strategy": "fsdp", "weight": 3},
}
QUICK = ("unpacked, one record a micro-batch", "packed", "fsdp", "tensor", "pipeline", "weight 2")


def damage(path: Path) -> None:
    """In the middle of the pixels; header and end stay."""
    data = bytearray(path.read_bytes())
    begin = data.index(b"IDAT") + 6
    for at in range(begin, len(data) - 24):
        data[at] ^= 0xFF
    path.write_bytes(data)


def words(rng: random.Random, count: int) -> str:
    return " ".join(rng.choice(["red", "blue", "a", "cat", "two", "trees", "and", "sky"]) for _ in range(count))


def write_pictures(folder: Path) -> None:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(1)
    for number in range(RECORDS):
        size = (SIDE + 8 * (number % 3), SIDE, 3)
        Image.fromarray(rng.integers(0, 256, size, dtype=np.uint8)).save(folder / f"{number}.png")
    for number in BROKEN:
        damage(folder / f"{number}.png")


def asked(number: int, pictures: Path, rng: random.Random) -> list[dict]:
    content = [{"type": "image", "path": f"images/{number}.png"}, {"type": "text", "text": words(rng, 3)}]
    if number == BROKEN[0]:  # a whole image beside the damaged one
        content.insert(0, {"type": "image", "path": "images/0.png"})
    if number == BROKEN[1]:
        content[0] = {"type": "image", "base64": base64.b64encode((pictures / f"{number}.png").read_bytes()).decode()}
    return [{"role": "user", "content": content}]


def answer(rng: random.Random) -> dict:
    return {"role": "assistant", "content": [{"type": "text", "text": words(rng, rng.randint(1, 6))}]}


class Case:
    def __init__(self, name: str, sftrun: Sftrun, verdicts: Measured, directory: Path) -> None:
        self.name, self.sftrun, self.verdicts, self.directory = name, sftrun, verdicts, directory
        self.base = directory / "base"
        self.model: dict = {}
        self.tuning: dict = {"mode": "lora", "lora": {"r": 4, "target_modules": ["all-linear"], "dropout": 0}}
        self.expected: dict[str, list[dict]] = {}

    def write(self, title: str, records: list[dict]) -> None:
        """The records, and those of them that can be used."""
        for name, kept in ((title, range(len(records))), (f"{title}-whole", [i for i in range(len(records)) if i not in BROKEN])):
            (self.directory / f"{name}.jsonl").write_text("".join(json.dumps(records[i]) + "\n" for i in kept))

    def config(self, records: str, **train) -> Path:
        run = {
            "model": {"name": str(self.base), "max_seq_len": 512, "dtype": "fp32", **self.model},
            "tuning": self.tuning,
            "data": {"train": str(self.directory / f"{records}.jsonl"), "shuffle": False, "cache_dir": str(self.directory / "cache"), "bad_records": "skip"},
            "train": {"max_steps": STEPS, "learning_rate": 5e-3, "scheduler": "constant", "warmup_steps": 0, "eval_strategy": "no", "save_every": "0"} | train,
            "output": {"tensorboard": False},
        }
        path = self.directory / f"{records}-{'-'.join(train) or 'run'}.yaml"
        path.write_text(yaml.safe_dump(run))
        return path

    def train(self, records: str, run: Path, batches: dict, **train) -> list[dict]:
        settings = dict(batches)
        if weight := settings.pop("weight", None):
            settings["data__train"] = [{"path": str(self.directory / f"{records}.jsonl"), "weight": weight}]
        return self.sftrun.train(self.config(records, **train), run, **settings)

    def reference(self, records: str, batches: dict, **train) -> list[dict]:
        """Of the records that can be used, one at a time, in one process; with tensor parallelism in two, since adapters begin with other values. A weight
        multiplies the labels alone."""
        is_tensor = batches.get("parallel__strategy") == "tensor"
        name = f"{records}-reference-{is_tensor}"
        if name not in self.expected:
            count = len((self.directory / f"{records}-whole.jsonl").read_text().splitlines())
            alone = {"data__packing": False, "train__batch_size": 1, "train__grad_accum": count}
            divided = {"processes": 2, "parallel__strategy": "tensor"} if is_tensor else {}
            self.expected[name] = self.sftrun.train(self.config(f"{records}-whole", **train), self.directory / name, **alone, **divided)
        return [line | {"label_tokens": line["label_tokens"] * batches.get("weight", 1)} for line in self.expected[name]]

    def compare(self, what: str, ours: list[dict], theirs: list[dict]) -> None:
        for lines in (ours, theirs):
            for line in lines:
                line.pop("tokens")  # blank images have tokens
        for line in ours + theirs:
            line["tokens"] = 0
        compare_metrics(self.verdicts, f"{self.name}, {what}", ours, theirs, LOSS, GRAD_NORM)

    def logged(self, *arguments: str) -> tuple[int, str]:
        done = subprocess.run([self.sftrun.path, *arguments], capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout + done.stderr


def case_of_images(sftrun: Sftrun, verdicts: Measured, scratch: Path) -> Case:
    case = Case("images", sftrun, verdicts, scratch / "images-case")
    write_pictures(case.directory / "images")
    write_folder(MODELS[MODEL], case.base, MODELS[MODEL].kind.seed)
    rng = random.Random(2)
    case.write("records", [{"messages": [*asked(i, case.directory / "images", rng), answer(rng)]} for i in range(RECORDS)])
    case.write("pairs", [{"prompt": asked(i, case.directory / "images", rng), "chosen": [answer(rng)], "rejected": [answer(rng)]} for i in range(RECORDS)])
    return case


def case_of_features(sftrun: Sftrun, verdicts: Measured, scratch: Path) -> Case:
    case = Case("features", sftrun, verdicts, scratch / "features-case")
    (case.directory / "features").mkdir(parents=True)
    values = np.random.default_rng(3).standard_normal((RECORDS, 4, 8)).astype(np.float32)
    for number in BROKEN:
        values[number, 1, 2] = np.nan if number % 2 else np.inf
    for number in range(RECORDS):
        np.save(case.directory / "features" / f"{number}.npy", values[number])
    shutil.copytree(REPOSITORY / "tests" / "data" / "models" / "tied-gqa", case.base, ignore=shutil.ignore_patterns("reference.*"))
    case.model = {"projectors": {"world": {"input_width": 8, "hidden": 16}}}
    case.tuning = {"mode": "lora", "train_parts": {"projector": "full", "language": "lora"}, "lora": {"r": 4, "target_modules": ["all-linear"], "dropout": 0}}
    rng = random.Random(4)
    case.write("records", [{"features": f"features/{i}.npy", "prompt": words(rng, 3), "completion": " " + words(rng, 1 + i % 4)} for i in range(RECORDS)])
    return case


def check_training(case: Case, quick: bool) -> None:
    for batches in QUICK if quick else BATCHES:
        run = case.directory / batches.replace(",", "").replace(" ", "-")
        ours = case.train("records", run, BATCHES[batches])
        case.compare(batches, ours, case.reference("records", BATCHES[batches]))


def check_dpo(case: Case, quick: bool) -> None:
    train = {"objective": "dpo", "beta": 0.3}
    for batches in ("packed", "pipeline", "weight 2") if quick else ("unpacked", "packed", "ddp", "tensor", "pipeline", "weight 2"):
        ours = case.train("pairs", case.directory / f"dpo-{batches}", BATCHES[batches], **train)
        reference = case.reference("pairs", BATCHES[batches], **train)
        case.compare(f"dpo, {batches}", ours, reference)
        for metric in ("rewards/margins", "rewards/accuracies", "logps/chosen"):
            far = max(abs(a[metric] - b[metric]) / max(1, abs(b[metric])) for a, b in zip(ours, reference))
            case.verdicts.below(f"{case.name}, dpo, {batches}: {metric}", far, 1e-4)


def evaluations(run: Path) -> list[float]:
    return [line["eval_loss"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "eval_loss" in line]


def check_evaluation(case: Case) -> None:
    losses = {}
    for records, strategy in (("records-whole", "auto"), ("records", "auto"), ("records", "ddp"), ("records", "pipeline")):
        run = case.directory / f"eval-{records}-{strategy}"
        divided = {} if strategy == "auto" else {"processes": 2, "parallel__strategy": strategy}
        case.sftrun.train(case.config("records-whole"), run, **PACKED | {"train__grad_accum": 4}, data__val=case.directory / f"{records}.jsonl",
                          train__eval_strategy="steps", train__eval_steps=2, train__max_steps=2, train__eval_on_start=True, **divided)
        losses[records, strategy] = evaluations(run)
    expected = losses.pop(("records-whole", "auto"))
    for (_, strategy), found in losses.items():
        far = max(abs(a - b) / b for a, b in zip(found, expected, strict=True))
        case.verdicts.below(f"{case.name}, evaluation, {strategy}", far, 1e-5)


def check_messages(case: Case) -> None:
    source = case.directory / "records.jsonl"
    files = [f"images/{BROKEN[0]}.png", "bytes in the record"] if case.name == "images" else [f"features/{number}.npy" for number in BROKEN]
    settings = ["data.packing=false", "train.batch_size=4", "train.grad_accum=3"]
    command = ["train", "--config", str(case.config("records")), "--device", "cpu", f"output.dir={case.directory / 'messages'}", *settings]
    code, said = case.logged(*command)
    for number, file in zip(BROKEN, files):
        lines = [line for line in said.splitlines() if file in line and "something blank" in line]
        case.verdicts.expect(f"{case.name}, the warning of {file}", code == 0 and len(lines) == 1 and f"{source}:{number + 1}" in lines[0], said[-1500:] if len(lines) != 1 else "")
    case.verdicts.expect(f"{case.name}, the summary", "2 records trained without labels" in said)
    code, said = case.logged(*command, "data.bad_records=error", f"output.dir={case.directory / 'refused'}")
    named = all(part in said for part in (f"{source}:{BROKEN[0] + 1}, ", files[0], "data.bad_records: skip"))
    case.verdicts.expect(f"{case.name}, the error", code == 3 and named, said[-800:] if not named else "")


def check_answers(case: Case) -> None:
    """train.predict_with_generate leaves out the questions."""
    run = case.directory / "answers"
    case.sftrun.train(case.config("records-whole"), run, **PACKED | {"train__grad_accum": 4}, processes=2, data__val=case.directory / "records.jsonl",
                      train__eval_strategy="steps", train__eval_steps=2, train__max_steps=2, train__predict_with_generate=True,
                      train__generation_max_new_tokens=3)
    counts = [line["eval_answers"] for line in map(json.loads, (run / "metrics.jsonl").read_text().splitlines()) if "eval_answers" in line]
    case.verdicts.expect(f"{case.name}, answers of evaluations", counts == [RECORDS - len(BROKEN)], str(counts))


def check_generate(case: Case) -> None:
    rng = random.Random(5)
    questions, answers, parts = (case.directory / f"questions{end}" for end in (".jsonl", ".out", ".out.parts"))
    records = [{"messages": [{"role": "user", "content": [{"type": "image", "path": f"images/{i}.png"}, {"type": "text", "text": words(rng, 2)}]}]}
               for i in range(RECORDS)]
    questions.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["generate", "--model", str(case.base), "--input", str(questions), "--output", str(answers), "--device", "cpu", "--max-new-tokens", "2"]
    code, said = case.logged(*command, "--batch-size", "1")
    named = all(part in said for part in (f"{questions}:{BROKEN[0] + 1}, {case.directory}/images/{BROKEN[0]}.png", f"kept in {parts}"))
    case.verdicts.expect("generate, the error", code == 3 and named and not answers.exists(), said[-800:])
    kept = [json.loads(line)["record"] for line in (parts / "rank-0.jsonl").read_text().splitlines()]
    case.verdicts.expect("generate, answers before it", kept == list(range(BROKEN[0])), str(kept))
    code, said = case.logged(*command, "--nproc-per-node", "2", "--strategy", "pipeline", "--overwrite")
    case.verdicts.expect("generate, the error of a divided model", code == 3 and f"{questions}:{BROKEN[0] + 1}, " in said, said[-800:])
    shutil.rmtree(parts)
    before = {number: (case.directory / "images" / f"{number}.png").read_bytes() for number in BROKEN}
    case.logged(*command, "--batch-size", "1")
    for number in BROKEN:
        shutil.copy(case.directory / "images" / "0.png", case.directory / "images" / f"{number}.png")
    code, said = case.logged(*command)
    case.verdicts.expect("generate, again", code == 0 and f"{BROKEN[0]} of {RECORDS} records already answered" in said and answers.read_bytes().count(b"\n") == RECORDS, said[-800:])
    for number, data in before.items():
        (case.directory / "images" / f"{number}.png").write_bytes(data)


def check_chat(case: Case) -> None:
    images, saved = case.directory / "images", case.directory / "saved.jsonl"
    typed = [f"/image {images / '0.png'}", "a red cat", f"/image {images / f'{BROKEN[0]}.png'}", "blue", f"/image {images / '1.png'}", "sky", f"/save {saved}", "/quit"]
    conversations = []
    for divided in ([], ["--nproc-per-node", "2", "--strategy", "tensor"], ["--nproc-per-node", "2", "--strategy", "pipeline"]):
        command = [case.sftrun.path, "chat", "--model", str(case.base), "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", "3", *divided]
        done = subprocess.run(command, input="\n".join(typed) + "\n", capture_output=True, text=True, timeout=600)
        named = "is damaged" in done.stdout and f"{images}/{BROKEN[0]}.png" in done.stdout
        name = f"chat, {' '.join(divided) or 'one process'}"
        case.verdicts.expect(f"{name}: it goes on", done.returncode == 0 and named and saved.exists(), (done.stdout + done.stderr)[-800:])
        if saved.exists():
            conversations.append(json.loads(saved.read_text()))
            saved.unlink()
    turns = [[turn["role"] for turn in conversation["messages"]] for conversation in conversations]
    case.verdicts.expect("chat: without the message of the damaged image", turns == 3 * [2 * ["user", "assistant"]], str(turns))
    case.verdicts.expect("chat: the same conversation", all(one == conversations[0] for one in conversations), str(conversations)[:800])


def check_all_broken(case: Case) -> None:
    """A run does not go on where nothing can be read any more."""
    for number in range(RECORDS):
        if number not in BROKEN:
            damage(case.directory / "images" / f"{number}.png")
    code, said = case.logged("train", "--config", str(case.config("records")), "--device", "cpu", f"output.dir={case.directory / 'none'}",
                             "data.packing=false", "train.batch_size=1", "train.grad_accum=1", "train.max_steps=150")
    ends = code == 3 and "none of the last 100 records with images or features can be used" in said
    case.verdicts.expect(f"{case.name}, all are broken", ends, "" if ends else said[-800:])


def check_resume(case: Case) -> None:
    run = case.directory / "resumed"
    settings = ["data.packing=false", "train.batch_size=4", "train.grad_accum=3", f"output.dir={run}", "train.save_steps=1"]
    train = lambda steps: case.logged("train", "--config", str(case.config("records-whole")), "--device", "cpu", f"train.max_steps={steps}", *settings)  # noqa: E731
    code, said = train(1)
    case.verdicts.expect("resume: the first part", code == 0, said[-800:] if code else "")
    picture = case.directory / "images" / "5.png"
    before = picture.read_bytes()
    picture.touch()
    code, said = train(2)
    case.verdicts.expect("resume: an image that was touched", code == 0 and "1 of 10 images has changed" in said, said[-800:])
    Image.new("RGB", (SIDE, SIDE), (200, 3, 3)).save(picture)
    code, said = train(3)
    named = "1 of 10 images has changed" in said and "the training data differ: the images or features of " in said
    case.verdicts.expect("resume: another image", code == 2 and named and "--allow-changed-data" in said, said[-800:])
    picture.write_bytes(before)
    code, said = train(3)
    case.verdicts.expect("resume: the image as it was", code == 0, said[-800:] if code else "")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args()
    verdicts, sftrun = Measured(), Sftrun(str(Path(options.sftrun).resolve()))
    with tempfile.TemporaryDirectory(prefix="broken-media-") as scratch:
        for make in (case_of_images, case_of_features):
            case = make(sftrun, verdicts, Path(scratch))
            check_messages(case)
            check_training(case, options.quick)
            if case.name == "images":
                check_dpo(case, options.quick)
                check_evaluation(case)
                check_answers(case)
                check_generate(case)
                check_chat(case)
                check_resume(case)
                check_all_broken(case)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
