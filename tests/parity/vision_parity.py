"""Training on images: `sftrun train` beside transformers and PEFT, on tiny random vision-language models, in fp32 on the CPU.

    python tests/parity/vision_parity.py --sftrun build/bin/sftrun [--only qwen3_vl gemma3 …] [--recipes language projector …] [--diagnose]

processor  where AutoProcessor can be loaded without torchvision: it gives the reference's tokens and values of images
bench      `sftrun bench --images` with random weights: the processor's tokens of an image
preview    `sftrun preview` of conversations with images: the reference's tokens and labels
training   5 steps of each recipe (RECIPES), without and with packing, with gradient checkpointing, in two processes with ddp, fsdp, pipeline and tensor: loss
           to 1e-5 relative, gradient norm to 1e-4; what was written, loaded by PEFT on the whole model or by transformers, gives the
           reference's logits. The reference computes each conversation alone, in fp64: with Qwen3.5's delta nets transformers in fp32
           is off by 4e-5 in the second step
dpo        the same for pairs of answers to questions about images
qlora      the same with all matrices but the head in nf4, those of the tower and projector, too, as transformers with bitsandbytes
merge      the merged model, loaded by transformers, gives the logits of the adapter on its base; after QLoRA on texts alone its tower is the base's
expression `target_modules` as a regular expression: the modules that PEFT adapts, and PEFT loads the adapter
all-linear an adapter that PEFT made on all linear layers of the whole model: the same
score      `sftrun score` of conversations with images: transformers' log-probabilities to 1e-4
generate   greedy answers in batches: each token is the likeliest by a pass of transformers over all before it
outputs    `score` of what `generate` wrote to another folder, from a table and from JSON lines: that of the input
templates  a built-in chat template that a run saved: transformers renders the tokens of `preview` with it

--diagnose: where a training differs, one step of SGD shows the gradients of each tensor, and which of them differ.
--quick: 2 steps; each model has some of the recipes, one batch each (QUICK), and either bench or score.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import random
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import (  # noqa: I001  (sets sys.path)
    Measured,
    ModelCase,
    Sftrun,
    check_in_copies,
    compare_metrics,
    load_adapter,
    relative_to_largest,
    train_section,
)

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
import transformers
import yaml
from adapters import fill_b, name_in_files
from families import in_fp64
from make_images import random_pixels
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from quantised import Storage, round_weight
from reference_training import Document, Recipe, decay_groups, log_probability_of_labels, logits_of, train
from safetensors.torch import load_file
from transformers import AutoProcessor
from transformers.image_utils import load_image
from vision_models import MODELS, Reader, VisionModel, load, pictures_of, turn, write_folder, write_pictures

LOSS, GRAD_NORM, TRAINED_LOGITS, MERGED_LOGITS, SCORE, LN2 = 1e-5, 1e-4, 1e-3, 1e-4, 1e-4, 1e-6
DPO_LOSS = 5e-5  # a small difference of log-probabilities of about 100, which are sums in fp32
RANK, BETA, MAX_SEQ_LEN = 4, 0.3, 512
STEPS, QUICK_STEPS, QUICK_RECORDS = 5, 2, 8
WEIGHT_DECAY = 0.3  # large, so that losses show which tensors decay
PARTS = ("language", "projector", "vision")
NF4 = Storage("nf4", True, 64)
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]


@dataclass(frozen=True)
class Training:
    """A recipe: what is trained, and how a run's YAML says it."""

    parts: dict[str, str]  # "lora" or "full"; other parts are frozen
    tuning: dict
    learning_rate: float
    quantises: bool = False

    @property
    def has_adapter(self) -> bool:
        return "lora" in self.parts.values()


ALL = list(PARTS)
RECIPES = {
    "language": Training({"language": "lora"}, {"mode": "lora"}, 5e-3),
    "projector": Training({"projector": "full"}, {"mode": "full", "train_parts": ["projector"]}, 2e-3),
    "vision": Training({"vision": "full"}, {"mode": "full", "train_parts": ["vision"]}, 2e-3),
    "lora": Training(dict.fromkeys(PARTS, "lora"), {"mode": "lora", "train_parts": ALL}, 1e-2),
    "mixed": Training({"language": "lora", "projector": "full"}, {"mode": "lora", "train_parts": {"language": "lora", "projector": "full"}}, 5e-3),
    "full": Training(dict.fromkeys(PARTS, "full"), {"mode": "full", "train_parts": ALL}, 2e-3),
    # The same as `projector` and `full`, by the names of parameters.
    "named projector": Training({"projector": "full"}, {"mode": "partial", "trainable": "PROJECTOR", "train_parts": ["projector"]}, 2e-3),
    "named all": Training(dict.fromkeys(PARTS, "full"), {"mode": "partial", "trainable": ["."], "train_parts": ALL}, 2e-3),
    "qlora": Training({"language": "lora"}, {"mode": "qlora", "quant": "nf4", "double_quant": NF4.double, "quant_block_size": NF4.block_size},
                      1e-2, quantises=True),
}
UNPACKED = {"data__packing": False, "train__batch_size": 3, "train__grad_accum": 4}
PACKED = {"data__packing": True, "train__batch_size": 2, "train__grad_accum": 8}  # all of an epoch, in whatever number of packed sequences
CHECKPOINTED = {"train__gradient_checkpointing": True}
BATCHES = {
    "unpacked": UNPACKED,
    "packed": PACKED,
    "packed, checkpointing": PACKED | CHECKPOINTED,
    "ddp": PACKED | {"train__grad_accum": 4, "processes": 2, "parallel__strategy": "ddp"},
    "fsdp": UNPACKED | CHECKPOINTED | {"train__grad_accum": 2, "processes": 2, "parallel__strategy": "fsdp"},
    "tensor": UNPACKED | {"processes": 2, "parallel__strategy": "tensor"},
    "pipeline": PACKED | {"processes": 2, "parallel__strategy": "pipeline"},
}
MERGED = ("language", "lora", "mixed", "qlora")
# Of each model, in turns, with --quick.
QUICK = [{"language": "packed", "full": "packed, checkpointing"}, {"language": "unpacked", "projector": "packed"}, {"language": "fsdp", "mixed": "packed"},
         {"language": "packed, checkpointing", "lora": "unpacked"}, {"language": "ddp", "named all": "packed"}, {"language": "packed", "qlora": "packed"}]


def recipe_of(training: Training, steps: int, count: int) -> Recipe:
    """Every step takes all records, so that packing cannot change which ones."""
    return Recipe(max_steps=steps, global_batch_size=count, learning_rate=training.learning_rate, scheduler="cosine", warmup_steps=0,
                  weight_decay=WEIGHT_DECAY, max_grad_norm=1.0)


@dataclass(frozen=True)
class Case(ModelCase):
    """With the model's records."""

    reader: Reader
    conversations: list[list[dict]]
    documents: list[Document]
    options: argparse.Namespace

    @property
    def model(self) -> VisionModel:
        return MODELS[self.name]

    @property
    def steps(self) -> int:
        return QUICK_STEPS if self.options.quick else STEPS


# ---- Records


WORDS = "amber birch cobalt delta ember fjord glade heron inlet jetty knoll larch é".split()


def words(rng: random.Random, most: int) -> str:
    return " ".join(rng.choices(WORDS, k=rng.randint(1, most)))


def conversations(pictures: list[str], seed: int) -> list[list[dict]]:
    rng = random.Random(seed)
    image = iter([f"images/{name}" for name in pictures] * 3)
    answer = lambda most=3: turn("assistant", words(rng, most))  # noqa: E731
    made = [
        [turn("user", next(image), words(rng, 3)), answer()],
        [turn("user", words(rng, 3) + "\n", next(image)), answer()],
        [turn("user", words(rng, 2), next(image), next(image), "\n" + words(rng, 2)), answer()],  # two images side by side
        [{"role": "user", "content": words(rng, 5)}, {"role": "assistant", "content": words(rng, 5)}],  # none
        [turn("user", next(image)), answer(), turn("user", words(rng, 3)), answer()],
        [turn("user", words(rng, 2)), answer(), turn("user", next(image), words(rng, 1), next(image)), answer()],
        [turn("user", words(rng, 1)), answer(1)],  # none, short
    ]
    return made + [[turn("user", next(image), words(rng, 4)), answer(5)] for _ in range(5)]


def pairs_of_answers(pictures: list[str], seed: int) -> list[dict]:
    rng = random.Random(seed)
    prompts = [[turn("user", f"images/{name}", words(rng, 3))] for name in pictures[:5]]
    prompts += [[turn("user", words(rng, 4))], [turn("user", f"images/{pictures[0]}"), turn("assistant", "so"), turn("user", f"images/{pictures[5]}")]]
    answers = lambda: {key: [{"role": "assistant", "content": words(rng, 4)}] for key in ("chosen", "rejected")}  # noqa: E731
    return [{"prompt": prompt, **answers()} for prompt in prompts]


def write_jsonl(path: Path, records: list[dict]) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    return path


def make_case(name: str, sftrun: Sftrun, verdicts: Measured, scratch: Path, options: argparse.Namespace) -> Case:
    """With --quick the records are those of which there is one each."""
    directory = scratch / name
    pictures = write_pictures(directory / "images", seed=1)
    write_folder(MODELS[name], directory / "base", MODELS[name].kind.seed)
    reader = Reader(MODELS[name], directory / "base", directory)
    records = conversations(pictures, seed=2)[: QUICK_RECORDS if options.quick else None]
    write_jsonl(directory / "records.jsonl", [{"messages": messages} for messages in records])
    write_jsonl(directory / "pairs.jsonl", pairs_of_answers(pictures, seed=3))
    return Case(name, sftrun, verdicts, directory, reader, records, [reader.document(messages) for messages in records], options)


def write_run_yaml(case: Case, name: str, tuning: dict, recipe: Recipe, data: str = "records.jsonl", **train_settings) -> Path:
    config = {
        "model": {"name": str(case.base), "max_seq_len": MAX_SEQ_LEN, "dtype": "fp32"},
        "tuning": tuning,
        "data": {"train": str(case.directory / data), "shuffle": False, "cache_dir": "none"},
        "train": train_section(recipe) | train_settings,
        "output": {"tensorboard": False},
    }
    path = case.directory / f"{name.replace(' ', '-')}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


# ---- The reference


def unread_layers(module) -> tuple[str, ...]:
    """Layers of the tower after the one whose output is used."""
    used, count = getattr(module.config, "vision_feature_layer", -1), module.config.vision_config.to_dict().get("num_hidden_layers", 0)
    return tuple(f".encoder.layers.{layer}." for layer in range(count) if isinstance(used, int) and used < 0 and layer > count + used)


def linear_names(model: VisionModel, module, parts) -> list[str]:
    """Linear layers of these parts, but for the head, and for what of the tower nothing reads."""
    head, unread = module.get_output_embeddings(), (".head.", *unread_layers(module))
    return [name for name, part in module.named_modules()
            if isinstance(part, torch.nn.Linear) and part is not head and not any(u in name for u in unread) and model.part_of(name + ".") in parts]


def initial_adapter(case: Case, training: Training) -> Path:
    """One for all recipes that adapt the same parts."""
    adapted = [part for part, how in training.parts.items() if how == "lora"]
    path = case.directory / f"adapter-{'-'.join(adapted)}"
    if not path.exists():
        torch.manual_seed(21)
        module = load(case.base)
        config = LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules=linear_names(case.model, module, adapted), task_type="CAUSAL_LM")
        module = get_peft_model(module, config)
        fill_b(module)
        module.save_pretrained(path, save_embedding_layers=False)
    return path


def reference_model(case: Case, training: Training, adapter: Path | None = None):
    """Before training: the base with what is trained requiring a gradient.   @param adapter none: the initial one of such recipes"""
    module = load(case.base)
    if training.quantises:
        for name in linear_names(case.model, module, PARTS):
            round_weight(module.get_submodule(name).weight, NF4)
    full = [part for part, how in training.parts.items() if how == "full"]
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(case.model.part_of(name) in full)
    if not training.has_adapter:
        return module
    if case.name == "llava_next":  # PEFT saves modules, and this parameter is in none
        module.model.image_newline.requires_grad_(False)
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    module = PeftModel.from_pretrained(module, adapter or initial_adapter(case, training), is_trainable=True)
    for parameter in trained:  # PEFT freezes the base
        parameter.requires_grad_(True)
    return module


def adamw(module, recipe: Recipe) -> torch.optim.AdamW:
    """As transformers' Trainer makes it. But no norm decays: by its names the Trainer lets norms of two towers decay (`norm1`, `norm2` and `ln_q`
    of Qwen2.5-VL, `ln_pre` of Pixtral), and of no other tower."""
    norms = frozenset(f"{name}.weight" for name, part in module.named_modules() if "RMSNorm" in type(part).__name__)
    return torch.optim.AdamW(decay_groups(module, recipe.weight_decay, norms), lr=recipe.learning_rate, betas=recipe.betas, eps=recipe.epsilon)


def train_in_fp64(module, documents: list, recipe: Recipe, **options) -> list[dict]:
    """The trained model is in fp32 again."""
    with in_fp64(module):
        options.setdefault("optimizer", adamw(module, recipe))
        metrics = train(module, [widened(document) for document in documents], recipe, **options)
    module.float()
    return metrics


def widened(document: Document | Pair) -> Document | Pair:
    if isinstance(document, Pair):
        return Pair(widened(document.chosen), widened(document.rejected))
    wide = lambda value: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value  # noqa: E731
    return dataclasses.replace(document, inputs={name: wide(value) for name, value in document.inputs.items()})


def probe(case: Case) -> Document:
    """A conversation whose logits say whether two models are the same one: with two images in the second question."""
    return case.documents[5]


def probe_logits(case: Case, module) -> torch.Tensor:
    document = probe(case)
    return logits_of(module, document.tokens, **document.inputs)


# ---- Before training


def check_processor(case: Case) -> None:
    if not case.model.has_auto_processor:
        return
    processor = AutoProcessor.from_pretrained(case.base)
    for messages, document in zip(case.conversations, case.documents):
        text = case.reader.text_of(messages, marks_answers=False)
        images = [load_image(str(case.directory / name)) for name in pictures_of(messages)]
        output = processor(text=[text], images=[images] if images else None, add_special_tokens=False, return_tensors="pt")
        same = output["input_ids"][0].tolist() == document.tokens
        compared = [name for name in document.inputs if name in output]
        same &= ("pixel_values" in compared) == bool(images)
        if not same or not all(torch.equal(output[name], document.inputs[name]) for name in compared):
            return case.expect("processor: tokens and values of AutoProcessor", False, text)
    case.expect("processor: tokens and values of AutoProcessor", True, f"{len(case.documents)} conversations")


def previewed(case: Case, config: Path, count: int) -> list[dict]:
    printed = case.sftrun.run("preview", "--config", str(config), "-n", str(count), "--json", "data.packing=false")
    (data_set,) = json.loads(printed)["data_sets"]
    return data_set["sequences"]


def compare_tokens(case: Case, what: str, sequences: list[dict], documents: list[Document]) -> None:
    differ = []
    for n, (ours, theirs) in enumerate(zip(sequences, documents, strict=True)):
        labels = theirs.labels[:1] + ours["labels"][1:]  # nothing predicts the first token
        if ours["input_ids"] != theirs.tokens:
            differ.append(f"sequence {n}: tokens {case.reader.tokenizer.decode(ours['input_ids'])!r}, "
                          f"reference {case.reader.tokenizer.decode(theirs.tokens)!r}")
        elif labels != theirs.labels:
            places = [i for i, (a, b) in enumerate(zip(labels, theirs.labels)) if a != b]
            differ.append(f"sequence {n}: labels of tokens {places}")
    case.expect(f"{what}: tokens and labels", not differ, "; ".join(differ) or f"{len(documents)} sequences")


def check_preview(case: Case) -> None:
    recipe = recipe_of(RECIPES["language"], case.steps, len(case.documents))
    sequences = previewed(case, write_run_yaml(case, "preview", {"mode": "lora"}, recipe), len(case.documents))
    compare_tokens(case, "preview", sequences, case.documents)


@torch.no_grad()
def check_images_matter(case: Case) -> None:
    """Otherwise nothing below would show whether images are read."""
    document = probe(case)
    module = load(case.base)
    seen = logits_of(module, document.tokens, **document.inputs)
    other = logits_of(module, document.tokens, **{**document.inputs, "pixel_values": -document.inputs["pixel_values"]})
    moved = relative_to_largest(other, seen)
    case.expect("reference: other pixels give other logits", moved > 100 * TRAINED_LOGITS, f"{moved:.2f}")


def check_bench(case: Case) -> None:
    sizes = ["--images", "2", "--image-size", "40x28", "--seq-len", "300", "--batch-size", "2", "--steps", "2", "--dtype", "fp32", "--device", "cpu"]
    result = json.loads(case.sftrun.run("bench", "--arch", str(case.base / "config.json"), *sizes, "--json"))
    picture = random_pixels(np.random.default_rng(4), "RGB", 40, 28)
    values = case.reader.processor.image_processor(picture, **case.model.processor.call, return_tensors="np")
    text = case.reader.processor.counter.replace_image_token(values, 0)
    text = case.reader.processor.expanded(case.model.image.rstrip("\n"), [text])
    ids = case.reader.tokenizer(text, add_special_tokens=False)["input_ids"]
    expected = {"image_tokens": 2 * len(ids), "image_features": 2 * ids.count(case.reader.feature), "images": 2, "image_width": 40, "image_height": 28}
    case.expect("bench: tokens of images", all(result[key] == value for key, value in expected.items()), f"{expected}")
    seconds = sorted(result["step_seconds"])
    case.below("bench: images a second are those of the median step", abs(result["images_per_second"] * sum(seconds) / 2 / 4 - 1), 1e-6)
    case.expect("bench: preprocessing", result["preprocessed_images_per_second"] > result["images_per_second"], f"{result['preprocessed_images_per_second']:.0f} images/s")
    # Random weights know nothing of random labels.
    vocabulary = len(case.reader.tokenizer)
    case.expect("bench: loss", abs(result["loss"] - math.log(vocabulary)) < 0.3, f"{result['loss']:.3f}")


# ---- Training


def tuning_of(case: Case, training: Training) -> dict:
    tuning = dict(training.tuning)
    if case.name == "gemma3" and training.parts.get("projector") == "lora":  # it has a parameter, no linear layer, and sftrun says so
        tuning["train_parts"] = [part for part in tuning["train_parts"] if part != "projector"]
    if tuning.get("trainable") == "PROJECTOR":
        tuning["trainable"] = ["^" + name.replace(".", r"\.") for name in case.model.projector]
    if training.has_adapter:
        tuning["lora"] = {"r": RANK, "alpha": 2 * RANK, "target_modules": ["all-linear"], "init_from": str(initial_adapter(case, training))}
    return tuning


def load_trained(case: Case, run: Path, training: Training | None = None):
    """What a run wrote, by transformers and PEFT."""
    base = run / "model" if (run / "model").exists() else case.base
    module = load(base)
    if training and training.quantises:
        for name in linear_names(case.model, module, PARTS):
            round_weight(module.get_submodule(name).weight, NF4)
    return load_adapter(module, run / "adapter") if (run / "adapter").exists() else module


def batches_of(case: Case, recipe_name: str) -> list[str]:
    if case.options.quick:
        chosen = QUICK[list(MODELS).index(case.name) % len(QUICK)].get(recipe_name)
        return [chosen] if chosen else []
    if case.options.batches:
        return [batches for batches in BATCHES if batches in case.options.batches]
    # Formats of blocks are cut between blocks, and these models are narrower than one.
    return [batches for batches in BATCHES if batches != "tensor" or not RECIPES[recipe_name].quantises]


def limit_of_norms(case: Case, training: Training, recipe: Recipe, metrics: list[dict], reference: list[dict]) -> float:
    """GRAD_NORM. Where rounding grows from step to step, as Adam divides small gradients by their size, what transformers loses in fp32."""
    furthest = lambda lines: max(abs(line["grad_norm"] / of["grad_norm"] - 1) for line, of in zip(lines, reference))  # noqa: E731
    if furthest(metrics) <= GRAD_NORM:
        return GRAD_NORM
    module = reference_model(case, training)
    return max(GRAD_NORM, furthest(train(module, case.documents, recipe, optimizer=adamw(module, recipe))))


def check_recipe(case: Case, recipe_name: str) -> None:
    chosen = batches_of(case, recipe_name)
    if not chosen:
        return
    training = RECIPES[recipe_name]
    recipe = recipe_of(training, case.steps, len(case.documents))
    module = reference_model(case, training)
    reference = train_in_fp64(module, case.documents, recipe)
    falls = reference[-1]["loss"] < reference[0]["loss"]
    case.expect(f"{recipe_name}, reference: the loss falls", falls, f"{reference[0]['loss']:.3f} to {reference[-1]['loss']:.3f}")
    expected = probe_logits(case, module)
    config = write_run_yaml(case, recipe_name, tuning_of(case, training), recipe)
    for batches in chosen:
        if batches == "pipeline" and case.model.undivided:
            check_undivided(case, config)
            continue
        what, run = f"{recipe_name}, {batches}", case.directory / f"{recipe_name}-{batches}".replace(" ", "-").replace(",", "")
        failed = len(case.verdicts.failures)
        metrics = case.sftrun.train(config, run, **BATCHES[batches])
        compare_metrics(case.verdicts, f"{case.name}, {what}", metrics, reference, LOSS, limit_of_norms(case, training, recipe, metrics, reference))
        written = load_trained(case, run, training)
        case.below(f"{what}: logits of what it wrote", relative_to_largest(probe_logits(case, written), expected), TRAINED_LOGITS)
        if training.has_adapter:
            check_names(case, what, run, initial_adapter(case, training))
        if len(case.verdicts.failures) > failed and case.options.diagnose:
            diagnose(case, what, metrics, reference, training, BATCHES[batches])
    if recipe_name in MERGED:
        check_merge(case, recipe_name, case.directory / f"{recipe_name}-{chosen[0]}".replace(" ", "-").replace(",", ""))
    if training.quantises:
        check_texts_keep_tower(case, config)


def check_undivided(case: Case, config: Path) -> None:
    try:
        case.sftrun.train(config, case.directory / "undivided", **BATCHES["pipeline"])
    except RuntimeError as error:
        case.expect("pipeline: refused with the reason", case.model.undivided in str(error), str(error))
    else:
        case.expect("pipeline: refused with the reason", False, "it trained")


def check_names(case: Case, what: str, run: Path, initial: Path) -> None:
    written, expected = (set(load_file(adapter / "adapter_model.safetensors")) for adapter in (run / "adapter", initial))
    missing, further = sorted(expected - written), sorted(name for name in written - expected if "lora_" in name)
    case.expect(f"{what}: tensors of the adapter", not missing and not further, f"{len(written)}" if not missing and not further else
                f"missing {missing[:3]}, further {further[:3]}")


def check_merge(case: Case, recipe_name: str, run: Path) -> None:
    merged = case.directory / f"merged-{recipe_name}"
    case.sftrun.run("merge", "--adapter", str(run / "adapter"), "--output", str(merged), "--dtype", "f32")
    adapted = load_trained(case, run, RECIPES[recipe_name])
    case.below(f"{recipe_name}, merge: logits", relative_to_largest(probe_logits(case, load(merged)), probe_logits(case, adapted)), MERGED_LOGITS)
    kept = [file for file in ("preprocessor_config.json", "processor_config.json") if (case.base / file).exists()]
    case.expect(f"{recipe_name}, merge: files of the processor", all((merged / file).exists() for file in kept), ", ".join(kept))


def check_texts_keep_tower(case: Case, config: Path) -> None:
    """A run on texts alone does not load the tower, and so does not quantise it: neither does a command that uses the adapter."""
    texts, run, merged = (case.directory / name for name in ("texts.jsonl", "texts-qlora", "merged-texts-qlora"))
    record = {"messages": [{"role": "user", "content": "amber birch"}, {"role": "assistant", "content": "cobalt delta"}]}
    texts.write_text((json.dumps(record) + "\n") * 4)
    case.sftrun.train(config, run, **UNPACKED, data__train=str(texts), train__max_steps=1)
    adapter = ["--adapter", str(run / "adapter")]
    case.sftrun.run("generate", *adapter, "--prompt", "amber", "--max-new-tokens", "2", *ON_CPU)
    case.sftrun.run("merge", *adapter, "--output", str(merged), "--dtype", "f32")
    ours, base = (load(folder).state_dict() for folder in (merged, case.base))
    for part, same in (("vision", True), ("projector", True), ("language", False)):
        names = [name for name in base if case.model.part_of(name) == part]
        changed = [name for name in names if not torch.equal(ours[name], base[name])]
        case.expect(f"qlora on texts, merge: {part}", not changed if same else bool(changed), f"{len(changed)} of {len(names)} tensors differ")


def check_all_linear(case: Case) -> None:
    """PEFT's all-linear on the whole model has also layers whose output no feature takes: those of SigLIP's pooling head, the last ones of a tower."""
    torch.manual_seed(22)
    adapter, merged = case.directory / "adapter-all-linear", case.directory / "merged-all-linear"
    module = get_peft_model(load(case.base), LoraConfig(r=RANK, lora_alpha=2 * RANK, target_modules="all-linear", task_type="CAUSAL_LM"))
    fill_b(module)
    module.save_pretrained(adapter, save_embedding_layers=False)
    case.sftrun.run("merge", "--model", str(case.base), "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    case.below("all-linear, merge: logits", relative_to_largest(probe_logits(case, load(merged)), probe_logits(case, module)), MERGED_LOGITS)


def peft_names(case: Case, expression: str) -> set[str]:
    """Tensors of an adapter that PEFT makes. What it also adapts of the tower and nothing reads is left out."""
    module = load(case.base)
    unread = unread_layers(module)
    module = get_peft_model(module, LoraConfig(r=RANK, target_modules=expression, task_type="CAUSAL_LM"))
    return {name for name in get_peft_model_state_dict(module, save_embedding_layers=False) if not any(layer in name for layer in unread)}


def check_expressions(case: Case) -> None:
    """Parts that do not train have no adapters here: an expression that matches modules of theirs is refused."""
    recipe = recipe_of(RECIPES["language"], 1, len(case.documents))
    own = case.model.vision.replace(".", r"\.")
    inner = r"\.linear" if case.name.startswith("gemma4") else ""  # within what bounds its products
    text = r"model\.(?:language|text)_model\.layers\.[\d]+\..*(q|v|in|out)_proj"
    tower = rf"(?:{own}(?!.*(?:head\.|merger)).*(?:q_proj|v_proj|qkv|fc1|linear_fc1){inner}|{text})"
    for name, expression, parts in (("text", text, ["language"]), ("tower", tower, ["vision", "language"])):
        run, tuning = case.directory / f"expression-{name}", {"mode": "lora", "train_parts": parts, "lora": {"r": RANK, "target_modules": expression}}
        case.sftrun.train(write_run_yaml(case, f"expression-{name}", tuning, recipe), run, **UNPACKED)
        written, expected = set(load_file(run / "adapter" / "adapter_model.safetensors")), peft_names(case, expression)
        case.expect(f"expression, {name}: tensors of the adapter", written == expected and bool(written),
                    f"{len(written)}; {sorted(written ^ expected)[:3]}")
        loaded = PeftModel.from_pretrained(load(case.base), run / "adapter")
        case.expect(f"expression, {name}: PEFT's from adapter_config.json", set(get_peft_model_state_dict(loaded, save_embedding_layers=False)) == written,
                    f"{len(written)}")
    refused = {"mode": "lora", "lora": {"r": RANK, "target_modules": tower}}
    try:
        case.sftrun.train(write_run_yaml(case, "expression-refused", refused, recipe), case.directory / "expression-refused", **UNPACKED)
        case.expect("expression of a frozen part", False, "it was not refused")
    except RuntimeError as error:
        case.expect("expression of a frozen part", "of the vision part, which does not train" in str(error), "refused")


# ---- Preferences


@dataclass(frozen=True)
class Pair:
    chosen: Document
    rejected: Document

    @property
    def tokens(self) -> list[int]:
        return self.chosen.tokens + self.rejected.tokens

    @property
    def label_tokens(self) -> int:
        return self.chosen.label_tokens + self.rejected.label_tokens


def log_probability(module, document: Document) -> torch.Tensor:
    logits = module(input_ids=torch.tensor([document.tokens]), **document.inputs).logits[0]
    return log_probability_of_labels(logits, document.labels)


def preference_loss(module, pairs: list[Pair]) -> torch.Tensor:
    """DPO over the pairs; the reference model is the base."""
    losses = []
    for pair in pairs:
        with torch.no_grad(), module.disable_adapter():
            reference = log_probability(module, pair.chosen) - log_probability(module, pair.rejected)
        margin = log_probability(module, pair.chosen) - log_probability(module, pair.rejected) - reference
        losses.append(-torch.nn.functional.logsigmoid(BETA * margin))
    return torch.stack(losses).mean()


def check_dpo(case: Case) -> None:
    records = [json.loads(line) for line in (case.directory / "pairs.jsonl").read_text().splitlines()]
    pairs = [Pair(*(case.reader.answered(record["prompt"], record[key]) for key in ("chosen", "rejected"))) for record in records]
    training = dataclasses.replace(RECIPES["language"], learning_rate=3e-3)
    recipe = recipe_of(training, case.steps, len(pairs))
    tuning = {"mode": "lora", "lora": {"r": RANK, "alpha": 2 * RANK, "target_modules": ["all-linear"]}}
    config = write_run_yaml(case, "dpo", tuning, recipe, "pairs.jsonl", objective="dpo", beta=BETA)
    compare_tokens(case, "dpo, preview", previewed(case, config, len(pairs)), [d for pair in pairs for d in (pair.chosen, pair.rejected)])
    # The adapter that sftrun begins with: a step without a learning rate changes nothing.
    case.sftrun.train(config, case.directory / "dpo-initial", train__max_steps=1, train__learning_rate=0)
    module = reference_model(case, training, case.directory / "dpo-initial" / "adapter")
    reference = train_in_fp64(module, pairs, recipe, loss_of=preference_loss)
    case.below("dpo, reference: the first loss is ln 2", abs(reference[0]["loss"] - math.log(2)), LN2)
    case.expect("dpo, reference: the loss falls", reference[-1]["loss"] < reference[0]["loss"],
                f"{reference[0]['loss']:.3f} to {reference[-1]['loss']:.3f}")
    for packing in (True,) if case.options.quick else (False, True):
        what, run = f"dpo, {'packed' if packing else 'unpacked'}", case.directory / f"dpo-{packing}"
        metrics = case.sftrun.train(config, run, data__packing=packing, train__batch_size=2, train__grad_accum=4)
        compare_metrics(case.verdicts, f"{case.name}, {what}", metrics, reference, DPO_LOSS, GRAD_NORM)
        case.below(f"{what}: logits of what it wrote", relative_to_largest(probe_logits(case, load_trained(case, run)), probe_logits(case, module)),
                   TRAINED_LOGITS)


# ---- Scores


@torch.no_grad()
def check_score(case: Case) -> None:
    module = load(case.base)
    expected = [log_probability(module, document).item() for document in case.documents]
    records = [{"messages": messages} for messages in case.conversations]
    scores = case.sftrun.jsonl("score", records, case.directory, "--model", str(case.base), *ON_CPU)
    counts = [score["tokens"] for score in scores]
    case.expect("score: labelled tokens", counts == [document.label_tokens for document in case.documents], str(counts))
    case.below("score: log-probability", max(abs(s["logprob"] - e) / max(abs(e), 1.0) for s, e in zip(scores, expected, strict=True)), SCORE)


NEW_TOKENS, NEAR_TIE = 8, 1e-3


def greedy(case: Case, module, question: list[dict]) -> list[int] | None:
    """Tokens of a greedy answer, each by a pass over all before it; None: two tokens are nearly as likely."""
    document = case.reader.answered(question, [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}])
    start = next(i for i, label in enumerate(document.labels) if label >= 0)
    ids, images = document.tokens[:start], case.reader.images_of(question)[0]
    for _ in range(NEW_TOKENS):
        logits = logits_of(module, ids, **case.reader.inputs(ids, images))[-1]
        best = logits.topk(2)
        if (best.values[0] - best.values[1]) / logits.abs().max() < NEAR_TIE:
            return None
        ids = ids + [int(best.indices[0])]
        if ids[-1] == case.reader.feature:  # would need an image
            return None
    return ids[start:]


def check_generate(case: Case) -> None:
    """In batches, so that prompts are read beside the tokens of other answers."""
    module, records, expected = load(case.base), [], []
    for messages in case.conversations:
        question = messages[:-1]
        tokens = greedy(case, module, question)
        if tokens is not None and case.reader.tokenizer.eos_token_id not in tokens:
            records.append({"messages": question})
            expected.append(case.reader.tokenizer.decode(tokens, skip_special_tokens=True))
    flags = ["--model", str(case.base), "--temperature", "0", "--max-new-tokens", str(NEW_TOKENS), *ON_CPU, "--batch-size", "3"]
    answers = case.sftrun.jsonl("generate", records, case.directory, *flags)
    wrong = [(i, a["generated"], e) for i, (a, e) in enumerate(zip(answers, expected, strict=True)) if a["generated"] != e]
    case.expect(f"generate: greedy answers to {len(records)} of {len(case.conversations)} questions", records and not wrong, str(wrong[:2]))


# ---- Records that are written


def check_outputs(case: Case) -> None:
    """`generate` from a table with images as bytes, and from records with paths, to another folder: `score` of what it wrote is that of the input."""
    rows = [{"image": {"bytes": (case.directory / name).read_bytes(), "path": None}, "instruction": text["text"], "output": "glade heron"}
            for messages in case.conversations for name, text in [_first_image_and_text(messages)] if name]
    table, lines = case.directory / "rows.parquet", case.directory / "rows.jsonl"
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), table)
    write_jsonl(lines, [{"messages": messages} for messages in case.conversations])
    (case.directory / "elsewhere").mkdir(exist_ok=True)
    for source in (table, lines):
        written = [case.directory / "elsewhere" / f"{source.suffix[1:]}-{step}.jsonl" for step in ("answers", "scores", "before")]
        flags = ["--model", str(case.base), *ON_CPU]
        case.sftrun.run("generate", *flags, "--max-new-tokens", "2", "--input", str(source), "--output", str(written[0]), "--overwrite")
        case.sftrun.run("score", *flags, "--input", str(written[0]), "--output", str(written[1]))
        case.sftrun.run("score", *flags, "--input", str(source), "--output", str(written[2]))
        again, before = ([json.loads(line)["logprob"] for line in file.read_text().splitlines()] for file in written[1:])
        case.expect(f"outputs: scores of {len(before)} answered records of {source.suffix[1:]}", len(before) > 0 and again == before, "" if again == before else str((again, before)))


def _first_image_and_text(messages: list[dict]) -> tuple[str | None, dict | None]:
    content = messages[0]["content"]
    if isinstance(content, str) or {item["type"] for item in content} != {"image", "text"}:
        return None, None
    text = next(item for item in content if item["type"] == "text")
    return pictures_of(messages)[0], text


def check_built_in_templates(case: Case) -> None:
    """A built-in template that a run saves, rendered by transformers, gives the tokens of `preview`."""
    recipe = dataclasses.replace(recipe_of(RECIPES["language"], case.steps, len(case.documents)), max_steps=1)
    for name in ("chatml",) if case.model.form.end == "<|im_end|>" else ("vicuna", "mistral"):
        config = write_run_yaml(case, f"template {name}", {"mode": "lora"}, recipe)
        settings = yaml.safe_load(config.read_text())
        settings["model"]["chat_template"] = name
        config.write_text(yaml.safe_dump(settings))
        run = case.directory / f"template-{name}"
        case.sftrun.train(config, run)
        saved = (run / "adapter" / "chat_template.jinja").read_text()
        tokens = [sequence["input_ids"] for sequence in previewed(case, config, len(case.conversations))]
        text = lambda messages: case.reader.text_of(messages, marks_answers=False, template=saved)  # noqa: E731
        texts = [case.reader.expanded(text(messages), case.reader.images_of(messages)[1]) for messages in case.conversations]
        expected = [case.reader.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        wrong = [(case.reader.tokenizer.decode(ours), text) for ours, theirs, text in zip(tokens, expected, texts, strict=True) if ours != theirs]
        case.expect(f"built-in template {name}: tokens of {len(tokens)} conversations", not wrong, str(wrong[0]) if wrong else "")


# ---- Where runs part


def first_step_off(metrics: list[dict], reference: list[dict]) -> str:
    for ours, theirs in zip(metrics, reference):
        for key, limit in (("loss", LOSS), ("grad_norm", GRAD_NORM)):
            if not abs(ours[key] - theirs[key]) <= limit * abs(theirs[key]):
                return f"step {ours['step']}: {key} {ours[key]:.7g}, reference {theirs[key]:.7g}"
    return "no step"


def trained_tensors(case: Case, module) -> dict[str, torch.Tensor]:
    return {name_in_files(name).removeprefix("base_model.model."): parameter.detach() for name, parameter in module.named_parameters()}


def diagnose(case: Case, what: str, metrics: list[dict], reference: list[dict], training: Training, settings: dict) -> None:
    """Prints how the gradients differ: one step of plain SGD without clipping moves each tensor by its gradient times the learning rate."""
    print(f"     {case.name}, {what}: the first difference is in {first_step_off(metrics, reference)}")
    rate = 0.25
    recipe = dataclasses.replace(recipe_of(training, 1, len(case.documents)), learning_rate=rate, scheduler="constant", weight_decay=0.0, max_grad_norm=0.0)
    module = reference_model(case, training)
    before = {name: tensor.clone() for name, tensor in trained_tensors(case, module).items()}
    module.double()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate)
    trains = {name_in_files(name).removeprefix("base_model.model.") for name, p in module.named_parameters() if p.requires_grad}
    train_in_fp64(module, case.documents, recipe, optimizer=optimizer)
    run = case.directory / f"sgd-{what}".replace(" ", "-").replace(",", "")
    config = write_run_yaml(case, f"sgd-{what}", tuning_of(case, training), recipe, optimizer="sgd")
    case.sftrun.train(config, run, **settings)
    ours, theirs = trained_tensors(case, load_trained(case, run, training)), trained_tensors(case, module)
    rows = []
    for name, start in before.items():
        moved, expected = (ours[name] - start) / -rate, (theirs[name] - start) / -rate
        scale = max(expected.abs().max().item(), 1e-7)
        rows.append(((moved - expected).abs().max().item() / scale, name, moved.abs().max().item(), expected.abs().max().item(), name in trains))
    rows.sort(reverse=True)
    off = [row for row in rows if row[0] > 1e-3]
    print(f"     gradients: {len(off)} of {len(rows)} tensors differ by more than 1e-3 of their largest value")
    for worst, name, largest, expected, is_trained in off[:12]:
        print(f"       {worst:.1e} {name}: largest {largest:.3e}, reference {expected:.3e}{'' if is_trained else ' (frozen)'}", flush=True)


# ---- All of it


CHECKS = {
    "processor": check_processor,
    "bench": check_bench,
    "preview": check_preview,
    "images": check_images_matter,
    **{name: functools.partial(check_recipe, recipe_name=name) for name in RECIPES},
    "all-linear": check_all_linear,
    "expression": check_expressions,
    "dpo": check_dpo,
    "score": check_score,
    "generate": check_generate,
    "outputs": check_outputs,
    "templates": check_built_in_templates,
}
QUICK_MODELS = {"dpo": ("qwen2_5_vl", "gemma3"), "outputs": ("qwen2_5_vl",), "templates": ("qwen2_5_vl", "llava", "gemma3"),
                "expression": ("qwen2_5_vl", "llava"), "bench": list(MODELS)[::2], "score": list(MODELS)[1::2]}


def is_left_out(case: Case, name: str) -> bool:
    return case.options.quick and case.name not in QUICK_MODELS.get(name, MODELS)


def run_checks(case: Case) -> None:
    for name in case.options.recipes or CHECKS:
        if is_left_out(case, name):
            continue
        try:
            CHECKS[name](case)
        except Exception as error:  # transformers raises all kinds at what it cannot load
            case.expect(name, False, f"{type(error).__name__}: {error}")


def check_model(name: str, options: argparse.Namespace) -> Measured:
    verdicts = Measured()
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(options.keep or temporary)
        run_checks(make_case(name, Sftrun(options.sftrun), verdicts, scratch, options))
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=MODELS, metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--recipes", nargs="+", choices=CHECKS, metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--batches", nargs="+", choices=BATCHES, help="with --recipes")
    parser.add_argument("--diagnose", action="store_true", help="where a training differs, compare the gradients of each tensor")
    parser.add_argument("--keep", help="a new directory to write models and runs to, instead of a temporary one")
    parser.add_argument("--quick", action="store_true", help="a part of each model's checks, as in `make test`: see above")
    options = parser.parse_args()
    torch.set_num_threads(1)  # the models are tiny: a second thread waits, and takes a processor for it
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    verdicts = Measured()
    check_in_copies(options.only or list(MODELS), functools.partial(check_model, options=options), verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
