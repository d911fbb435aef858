"""Training on features that another encoder computed (model.projectors): `sftrun train` beside torch and transformers, in fp32 on the CPU.

    python tests/parity/features_parity.py --sftrun build/bin/sftrun [--only llama gemma3] [--recipes projector …] [--quick]

A Llama with texts of prompt and completion, and a Gemma 3 with conversations of images and features. Two projectors: one makes 3 tokens of
each file's rows, one takes as many as there are. Files are .npy and .safetensors in fp16, bf16, fp32 and fp64.

preview    tokens and labels of the records
training   5 steps of each recipe (RECIPES), in different batches and strategies: loss to 1e-5 relative, gradient norm to 1e-4; what was written gives
           the reference's logits
fresh      new projectors begin as torch's nn.Linear does, and learn; the written model goes on where it was
merge      the merged model of an adapter, with its projectors: the same log-probabilities by `sftrun score`
score      log-probabilities of answers to 1e-4
generate   each greedy token is the likeliest by the reference

The reference puts the output of torch.nn.Sequential(Linear, GELU, Linear) in place of the embeddings, and computes in fp64.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import REPOSITORY, Measured, ModelCase, Sftrun, compare_metrics, relative_to_largest, train_section  # noqa: I001  (sets sys.path)

import numpy as np
import torch
import transformers
import yaml
from peft import LoraConfig, PeftModel, get_peft_model
from adapters import fill_b
from reference_training import IGNORE_INDEX, Document, Recipe, log_probability_of_labels, logits_of
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from vision_models import MODELS, Reader, load, turn, write_folder, write_pictures
from vision_parity import CHECKPOINTED, PACKED, train_in_fp64, widened, words

LOSS, GRAD_NORM, LOGITS, SCORE = 1e-5, 1e-4, 1e-3, 1e-4
STEPS, RANK, MAX_SEQ_LEN = 5, 4, 256
NEW_TOKENS, NEAR_TIE = 6, 1e-3
# By name: input_width, hidden, tokens (0: one for each row).
PROJECTORS = {"world": (24, 40, 3), "sound": (16, 20, 0)}
ROWS = {"world": [3, 7, 12, 5], "sound": [4, 6]}
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]


@dataclass(frozen=True)
class Training:
    parts: dict[str, str]  # "lora" or "full"
    tuning: dict
    learning_rate: float


RECIPES = {
    "projector": Training({"projector": "full"}, {"mode": "full", "train_parts": ["projector"]}, 5e-3),
    "lora": Training({"projector": "full", "language": "lora"}, {"mode": "lora", "train_parts": {"projector": "full", "language": "lora"}}, 5e-3),
    "full": Training({"projector": "full", "language": "full"}, {"mode": "full", "train_parts": ["projector", "language"]}, 2e-3),
}
UNPACKED = {"data__packing": False, "train__batch_size": 4, "train__grad_accum": 3}
BATCHES = {
    "unpacked": UNPACKED,
    "packed": PACKED,
    "packed, checkpointing": PACKED | CHECKPOINTED,
    "ddp": PACKED | {"train__grad_accum": 4, "processes": 2, "parallel__strategy": "ddp"},
    "fsdp": UNPACKED | CHECKPOINTED | {"train__grad_accum": 3, "train__batch_size": 2, "processes": 2, "parallel__strategy": "fsdp"},
    "zero2": PACKED | {"train__grad_accum": 4, "processes": 2, "parallel__strategy": "zero2"},
    "tensor": UNPACKED | {"processes": 2, "parallel__strategy": "tensor"},
    "pipeline": PACKED | {"processes": 2, "parallel__strategy": "pipeline"},
}
QUICK = {"projector": ["packed", "fsdp"], "lora": ["unpacked", "pipeline"], "full": ["packed, checkpointing"]}


# ---- Features


def projected_rows(name: str, values: np.ndarray) -> torch.Tensor:
    """What the projector takes: means of rows where it makes another number of tokens."""
    tokens = PROJECTORS[name][2]
    wide = torch.from_numpy(values.astype(np.float64))
    if tokens == 0 or tokens == len(values):
        return wide
    return torch.nn.functional.adaptive_avg_pool1d(wide.T[None], tokens)[0].T


def write_features(folder: Path, rng: np.random.Generator) -> list[tuple[str, str, np.ndarray]]:
    """@return of each file: the projector, the path, the values as they are read back"""
    folder.mkdir(parents=True)
    written = []
    for number in range(8):
        name = "sound" if number % 4 == 3 else "world"
        rows = ROWS[name][number % len(ROWS[name])]
        values = rng.standard_normal((rows, PROJECTORS[name][0])).astype([np.float32, np.float16, np.float64, np.float32][number % 4])
        path = folder / f"{number}.{'safetensors' if number in (3, 5, 7) else 'npy'}"
        if path.suffix == ".npy":
            np.save(path, values if number else values[None])  # [1, rows, width], too
        elif number == 5:
            save_numpy({"features": values, "other": np.zeros(3, np.float32)}, path)
        else:
            rounded = torch.from_numpy(values).bfloat16()
            save_file({"x": rounded}, path)
            values = rounded.float().numpy()
        written.append((name, f"{folder.name}/{path.name}", values.astype(np.float64)))
    return written


class Projected(torch.nn.Module):
    """A model whose embeddings of features' places are what projectors make of them."""

    def __init__(self, model, projectors: dict[str, torch.Tensor] | None = None) -> None:
        super().__init__()
        self.model = model
        self.config = model.config
        hidden = model.get_input_embeddings().weight.shape[1]
        self.projectors = torch.nn.ModuleDict(
            {name: torch.nn.Sequential(torch.nn.Linear(width, inner), torch.nn.GELU(), torch.nn.Linear(inner, hidden))
             for name, (width, inner, _) in PROJECTORS.items()})
        for name, values in (projectors or {}).items():
            _, projector, linear, kind = name.split(".")
            getattr(self.projectors[projector][{"linear_1": 0, "linear_2": 2}[linear]], kind).data.copy_(values)
        self.features = []
        model.get_input_embeddings().register_forward_hook(self.replaced)

    def replaced(self, _module, _inputs, embeddings: torch.Tensor) -> torch.Tensor:
        embeddings = embeddings.clone()
        for begin, name, values in self.features:
            rows = self.projectors[name](values.to(embeddings.dtype))
            embeddings[0, begin : begin + len(rows)] = rows
        return embeddings

    def forward(self, input_ids, features=(), **inputs):
        self.features = features
        return self.model(input_ids=input_ids, **inputs)


def projector_tensors(module: Projected) -> dict[str, torch.Tensor]:
    return {f"projectors.{name}.linear_{1 + number // 2}.{kind}": getattr(layers[number], kind).detach().clone().contiguous()
            for name, layers in module.projectors.items() for number in (0, 2) for kind in ("weight", "bias")}


# ---- Models and records


@dataclass(frozen=True)
class Case(ModelCase):
    records: list[dict]
    documents: list[Document]
    quick: bool

    def load(self, folder: Path):
        return load(folder) if self.name == "gemma3" else AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)


def stand_in(name: str, values: np.ndarray, eos: str) -> str:
    return eos * (PROJECTORS[name][2] or len(values))


def places(tokens: list[int], eos: int, used: list) -> list[tuple[int, str, torch.Tensor]]:
    """Of the files of a record, in order: each is a run of its tokens, and other runs of that token are shorter."""
    found, at = [], 0
    for name, values in used:
        rows = projected_rows(name, values)
        while tokens[at : at + len(rows)] != [eos] * len(rows):
            at += 1
        found.append((at, name, rows))
        at += len(rows)
    return found


def texts_with_features(files: list, tokenizer, rng: random.Random) -> tuple[list[dict], list[Document]]:
    """Prompts and completions, with the column `features`: a path, a map, a list."""
    records, documents = [], []
    for number in range(12):
        chosen = [files[number % len(files)]] + ([files[3]] if number % 3 == 2 else []) if number % 5 != 4 else []
        record = {"prompt": words(rng, 4), "completion": " " + words(rng, 4)}
        if chosen:
            maps = [{name: path} for name, path, _ in chosen]
            record["features"] = maps if len(maps) > 1 else maps[0]
        text = "".join(stand_in(name, values, tokenizer.eos_token) for name, _, values in chosen) + record["prompt"]
        prompt = tokenizer(text)["input_ids"]
        completion = tokenizer(record["completion"], add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        features = places(prompt, tokenizer.eos_token_id, [(name, values) for name, _, values in chosen])
        records.append(record)
        documents.append(Document(prompt + completion, [IGNORE_INDEX] * len(prompt) + completion, {"features": features}))
    return records, documents


def with_texts(messages: list[dict], files: dict, eos: str) -> list[dict]:
    part = lambda item: {"type": "text", "text": stand_in(item["projector"], files[item["path"]], eos)} if item["type"] == "features" else item  # noqa: E731
    return [m if isinstance(m["content"], str) else {**m, "content": [part(item) for item in m["content"]]} for m in messages]


def conversations_with_features(files: list, reader: Reader, pictures: list[str], rng: random.Random) -> tuple[list[dict], list[Document]]:
    """Parts of features among images and texts."""
    values_of = {path: values for _, path, values in files}
    part = lambda number: {"type": "features", "path": files[number][1], "projector": files[number][0]}  # noqa: E731
    records, documents = [], []
    eos, eos_id = reader.tokenizer.eos_token, reader.tokenizer.eos_token_id
    for number in range(10):
        content = [{"type": "text", "text": words(rng, 3)}]
        if number % 4 != 3:
            content.insert(number % 2, part(number % len(files)))
        if number % 3 != 1:
            content.append({"type": "image", "path": f"images/{pictures[number % len(pictures)]}"})
        if number == 5:
            content.append(part(3))
        messages = [{"role": "user", "content": content}, turn("assistant", words(rng, 3))]
        document = reader.document(with_texts(messages, values_of, eos))
        used = [(item["projector"], values_of[item["path"]]) for item in content if item["type"] == "features"]
        document.inputs["features"] = places(document.tokens, eos_id, used)
        records.append({"messages": messages})
        documents.append(document)
    return records, documents


def make_case(name: str, sftrun: Sftrun, verdicts: Measured, scratch: Path, quick: bool) -> Case:
    directory = scratch / name
    files = write_features(directory / "features", np.random.default_rng(4))
    rng = random.Random(5)
    if name == "gemma3":
        pictures = write_pictures(directory / "images", seed=1)
        write_folder(MODELS[name], directory / "base", MODELS[name].kind.seed)
        records, documents = conversations_with_features(files, Reader(MODELS[name], directory / "base", directory), pictures, rng)
    else:
        shutil.copytree(REPOSITORY / "tests" / "data" / "models" / "tied-gqa", directory / "base", ignore=shutil.ignore_patterns("reference.*"))
        records, documents = texts_with_features(files, AutoTokenizer.from_pretrained(directory / "base"), rng)
    (directory / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    case = Case(name, sftrun, verdicts, directory, records, documents, quick)
    add_projectors(case)
    return case


def add_projectors(case: Case) -> None:
    """To the base's files, so that both sides begin with the same."""
    torch.manual_seed(31)
    module = Projected(case.load(case.base))
    for parameter in module.projectors.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    (weights,) = case.base.glob("*.safetensors")
    save_file(load_file(weights) | projector_tensors(module), weights, {"format": "pt"})
    sizes = {name: {"input_width": width, "hidden": inner} | ({"tokens": tokens} if tokens else {})
             for name, (width, inner, tokens) in PROJECTORS.items()}
    (case.base / "projectors.json").write_text(json.dumps(sizes))


def stored_projectors(folder: Path) -> dict[str, torch.Tensor]:
    """Of a model, or of an adapter."""
    found = {}
    for file in sorted(folder.glob("*.safetensors")):
        for name, values in load_file(file).items():
            plain = name.removeprefix("base_model.model.")
            if plain.startswith("projectors."):
                found[plain] = values.float()
    return found


# ---- Checks


def recipe_of(training: Training, count: int) -> Recipe:
    return Recipe(max_steps=STEPS, global_batch_size=count, learning_rate=training.learning_rate, scheduler="cosine", warmup_steps=0,
                  weight_decay=0.2, max_grad_norm=1.0)


def initial_adapter(case: Case) -> Path:
    path = case.directory / "adapter"
    if not path.exists():
        torch.manual_seed(21)
        model = case.load(case.base)
        names = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and part is not model.get_output_embeddings()
                 and (case.name != "gemma3" or MODELS["gemma3"].part_of(name + ".") == "language")]
        model = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=names, task_type="CAUSAL_LM"))
        fill_b(model)
        model.save_pretrained(path, save_embedding_layers=False)
    return path


def is_language(case: Case, name: str) -> bool:
    return case.name != "gemma3" or MODELS["gemma3"].part_of(name) == "language"


def merger_is_frozen(name: str) -> bool:
    return "multi_modal_projector" not in name


def reference_model(case: Case, training: Training) -> Projected:
    model = case.load(case.base)
    trains_language = training.parts.get("language") == "full"
    for name, parameter in model.named_parameters():
        is_merger = not merger_is_frozen(name)  # it is of the projector part
        parameter.requires_grad_(is_merger or (trains_language and is_language(case, name)))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if training.parts.get("language") == "lora":
        model = PeftModel.from_pretrained(model, initial_adapter(case), is_trainable=True)
        for parameter in trained:
            parameter.requires_grad_(True)
    return Projected(model, stored_projectors(case.base))


def train_reference(case: Case, training: Training) -> tuple[Projected, list[dict]]:
    module, recipe = reference_model(case, training), recipe_of(training, len(case.documents))
    return module, train_in_fp64(module, case.documents, recipe)


def probe(case: Case, module: Projected) -> torch.Tensor:
    document = case.documents[5]
    return logits_of(module, document.tokens, **document.inputs)


def load_trained(case: Case, run: Path) -> Projected:
    if (run / "model").exists():
        return Projected(case.load(run / "model"), stored_projectors(run / "model"))
    model = PeftModel.from_pretrained(case.load(case.base), run / "adapter")
    return Projected(model, stored_projectors(run / "adapter"))


def write_yaml(case: Case, title: str, tuning: dict, recipe: Recipe, **model) -> Path:
    config = {
        "model": {"name": str(case.base), "max_seq_len": MAX_SEQ_LEN, "dtype": "fp32", **model},
        "tuning": tuning,
        "data": {"train": str(case.directory / "records.jsonl"), "shuffle": False, "cache_dir": "none"},
        "train": train_section(recipe),
        "output": {"tensorboard": False},
    }
    path = case.directory / f"{title}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def tuning_of(case: Case, training: Training) -> dict:
    if "lora" not in training.parts.values():
        return training.tuning
    return training.tuning | {"lora": {"r": RANK, "alpha": 2 * RANK, "target_modules": ["all-linear"], "init_from": str(initial_adapter(case))}}


def check_preview(case: Case) -> None:
    config = write_yaml(case, "preview", {"mode": "lora"}, recipe_of(RECIPES["lora"], 1))
    printed = case.sftrun.run("preview", "--config", str(config), "-n", str(len(case.documents)), "--json", "data.packing=false")
    (data_set,) = json.loads(printed)["data_sets"]
    differ = [number for number, (ours, theirs) in enumerate(zip(data_set["sequences"], case.documents, strict=True))
              if ours["input_ids"] != theirs.tokens or theirs.labels[:1] + ours["labels"][1:] != theirs.labels]
    case.verdicts.expect(f"{case.name}, preview: tokens and labels", not differ, f"records {differ}" if differ else f"{len(case.documents)} records")


def check_recipe(case: Case, name: str) -> None:
    training = RECIPES[name]
    module, reference = train_reference(case, training)
    expected = probe(case, module)
    recipe = recipe_of(training, len(case.documents))
    config = write_yaml(case, name, tuning_of(case, training), recipe)
    for batches in QUICK[name] if case.quick else BATCHES:
        what, run = f"{case.name}, {name}, {batches}", case.directory / f"{name}-{batches}".replace(",", "").replace(" ", "-")
        metrics = case.sftrun.train(config, run, **BATCHES[batches])
        compare_metrics(case.verdicts, what, metrics, reference, LOSS, GRAD_NORM)
        case.verdicts.below(f"{what}: logits of what it wrote", relative_to_largest(probe(case, load_trained(case, run)), expected), LOGITS)
    if name == "lora":
        check_merge(case, run)


def scores(case: Case, *model: str) -> list[float]:
    scored = case.sftrun.jsonl("score", case.records, case.directory, *model, *ON_CPU)
    return [record["logprob"] for record in scored]


def check_merge(case: Case, run: Path) -> None:
    merged = case.directory / "merged"
    case.sftrun.run("merge", "--adapter", str(run / "adapter"), "--output", str(merged), "--dtype", "f32")
    ours, theirs = scores(case, "--model", str(merged)), scores(case, "--model", str(case.base), "--adapter", str(run / "adapter"))
    case.verdicts.below(f"{case.name}, merge: scores", max(abs(a - b) for a, b in zip(ours, theirs)), SCORE)


def scored_document(case: Case, document: Document) -> Document:
    """`score` leaves out the EOS after a completion."""
    return document if case.name == "gemma3" else Document(document.tokens[:-1], document.labels[:-1], document.inputs)


def check_score(case: Case) -> None:
    module = Projected(case.load(case.base), stored_projectors(case.base))
    expected = []
    for document in case.documents:
        scored = scored_document(case, document)
        expected.append(log_probability_of_labels(logits_of(module, scored.tokens, **scored.inputs), scored.labels).item())
    ours = scores(case, "--model", str(case.base))
    case.verdicts.below(f"{case.name}, score", max(abs(a - b) / max(1, abs(b)) for a, b in zip(ours, expected, strict=True)), SCORE)


def greedy(case: Case, module: Projected, document: Document, image_token: int | None) -> list[int] | None:
    """Tokens of a greedy answer, each by a pass over all before it; None: two tokens are nearly as likely, or one stands for an image."""
    start = next(i for i, label in enumerate(document.labels) if label != IGNORE_INDEX)
    tokens = document.tokens[:start]
    for _ in range(NEW_TOKENS):
        inputs = dict(widened(document).inputs)
        if "token_type_ids" in inputs:
            types = inputs["token_type_ids"][:, :start]
            inputs["token_type_ids"] = torch.cat([types, torch.zeros((1, len(tokens) - start), dtype=types.dtype)], 1)
        logits = logits_of(module, tokens, **inputs)[-1]
        best = logits.topk(2)
        if (best.values[0] - best.values[1]) / logits.abs().max() < NEAR_TIE or best.indices[0] == image_token:
            return None
        tokens = tokens + [int(best.indices[0])]
    return tokens[start:]


def check_generate(case: Case) -> None:
    """In batches, so that prompts are read beside the tokens of other answers."""
    module, tokenizer = Projected(case.load(case.base), stored_projectors(case.base)), AutoTokenizer.from_pretrained(case.base)
    image_token = tokenizer.convert_tokens_to_ids(MODELS["gemma3"].feature) if case.name == "gemma3" else None
    asked, expected = [], []
    for record, document in zip(case.records, case.documents):
        tokens = greedy(case, module, document, image_token)
        if tokens is None or tokenizer.eos_token_id in tokens:
            continue
        expected.append(tokenizer.decode(tokens, skip_special_tokens=True))
        asked.append({"messages": record["messages"][:1]} if "messages" in record else {key: record[key] for key in record if key != "completion"})
    flags = ["--model", str(case.base), *ON_CPU, "--max-new-tokens", str(NEW_TOKENS), "--temperature", "0", "--batch-size", "3"]
    answers = case.sftrun.jsonl("generate", asked, case.directory, *flags, *(["--no-chat"] if case.name == "llama" else []))
    wrong = [(a["generated"], e) for a, e in zip(answers, expected, strict=True) if a["generated"] != e]
    case.verdicts.expect(f"{case.name}, generate: greedy answers", bool(answers) and not wrong, str(wrong[:2]) if wrong else f"{len(answers)} answers")


def check_fresh(case: Case) -> None:
    """On a base without projectors."""
    plain = case.directory / "plain"
    shutil.copytree(case.base, plain)
    (plain / "projectors.json").unlink()
    (weights,) = plain.glob("*.safetensors")
    save_file({name: values for name, values in load_file(weights).items() if not name.startswith("projectors.")}, weights, {"format": "pt"})
    sizes = json.loads((case.base / "projectors.json").read_text())
    recipe = recipe_of(RECIPES["projector"], len(case.documents))
    config = write_yaml(case, "fresh", RECIPES["projector"].tuning, recipe, name=str(plain), projectors=sizes)
    run = case.directory / "fresh"
    metrics = case.sftrun.train(config, run, **PACKED, train__max_steps=30)
    case.verdicts.expect(f"{case.name}, fresh: the loss falls", metrics[-1]["loss"] < metrics[0]["loss"], f"{metrics[0]['loss']:.3f} to {metrics[-1]['loss']:.3f}")
    start = case.directory / "start"
    case.sftrun.train(config, start, **PACKED, train__max_steps=1, train__learning_rate=0)
    begun = stored_projectors(start / "model")
    bound = {name: values.abs().max().item() * (PROJECTORS[name.split(".")[1]][int("linear_2" in name)]) ** 0.5 for name, values in begun.items()}
    case.verdicts.expect(f"{case.name}, fresh: uniform within 1 / sqrt(inputs)", all(0.8 < value <= 1 for value in bound.values()),
                         f"{min(bound.values()):.3f} to {max(bound.values()):.3f} of the bound")
    again = case.sftrun.train(write_yaml(case, "again", RECIPES["projector"].tuning, recipe, name=str(run / "model")), case.directory / "again", **PACKED,
                              train__max_steps=1)
    case.verdicts.expect(f"{case.name}, fresh: a second run goes on", again[0]["loss"] < metrics[-1]["loss"] * 1.02, f"{again[0]['loss']:.3f}")


def check_model(name: str, options: argparse.Namespace, verdicts: Measured, scratch: Path) -> None:
    case = make_case(name, Sftrun(options.sftrun), verdicts, scratch, options.quick)
    checks = {"preview": check_preview, **{recipe: (lambda case, recipe=recipe: check_recipe(case, recipe)) for recipe in RECIPES},
              "score": check_score, "generate": check_generate, "fresh": check_fresh}
    for check in options.recipes or checks:
        try:
            checks[check](case)
        except Exception as error:  # of sftrun, or of transformers
            verdicts.expect(f"{name}, {check}", False, f"{type(error).__name__}: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=("llama", "gemma3"))
    parser.add_argument("--recipes", nargs="+", help="checks to run")
    parser.add_argument("--keep", help="a new directory to write to")
    parser.add_argument("--quick", action="store_true", help="some of the batches of each recipe")
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    verdicts = Measured()
    with tempfile.TemporaryDirectory() as temporary:
        for name in options.only or ("llama", "gemma3"):
            check_model(name, options, verdicts, Path(options.keep or temporary))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
