"""Parity of every model family of scripts/fixtures/families.py, on tiny random models, in fp32 on the CPU.

    python tests/parity/families_parity.py --sftrun build/bin/sftrun [--only llama gemma3 …] [--write]

elements   logits, and the gradients of all parameters and of an adapter's A and B, one by one: the engine's unit tests (`engine_tests`
           beside sftrun, or --engine-tests) compare them with the fixtures of tests/data/families, and report what they saw
score      `sftrun score`, which packs its records, against transformers record by record
LoRA       5 steps of all linear layers from one PEFT adapter, unpacked and packed: loss (and load-balancing loss, of kinds that have
           one) to 1e-5 relative and gradient norm to 1e-4 of the reference; the adapter that was written, loaded by PEFT, gives the
           reference's logits
full       the same of all parameters; transformers loads the model that was written
generate   greedy continuations of three prompts in batches of 3 and 2, of each alone by transformers
merge      the merged model, loaded by transformers, gives the logits of the adapter on its base
experts    an adapter with tensors of single experts, as older PEFT wrote them, scores and merges as PEFT's conversion of it
vllm       what `sftrun merge --format vllm` writes of the trained adapter scores as that adapter
gguf       the model as a GGUF file scores as transformers' model, and merged with an adapter becomes a directory that
           transformers loads, with the logits of the adapter on the directory; transformers' own reader finds the weights

--write puts the table of what was measured into docs/models.md. Without --write and --only, that page must have these families and columns.

--quick leaves out `elements`, whose unit tests `make test` runs anyway, and of each family a part of the checks (QUICK). Runs have 3 steps.
Only families with `full` train packed batches, and `full` has no others. Only `qwen3_moe` trains in two processes and has an adapter of single
experts. Continuations have 10 tokens, in batches of 2. Only the adapters of `llama`, `mixtral` and `gemma4_moe` are written for vLLM.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import json
import math
import os
import random
import re
import string
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from harness import (  # noqa: I001  (sets sys.path)
    REPOSITORY,
    Measured,
    ModelCase,
    Sftrun,
    Verdicts,
    check_in_copies,
    compare_metrics,
    load_adapter,
    relative_to_largest,
    train_section,
)

import peft
import torch
import transformers
import yaml
import family_gguf
from adapters import TEXT_PART_LINEAR, adapt, adapted_experts, fill_b
from families import KINDS, TOKENIZER, build, load, make_config, num_experts_taken, routes_clearly, save_with_tokenizer
from peft import PeftModel
from reference_training import (
    IGNORE_INDEX,
    Document,
    Recipe,
    balances_load,
    encode_record,
    log_probability_of_labels,
    logits_of,
    train,
)
from released_configs import CONFIGS
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

DOCUMENT = REPOSITORY / "docs" / "models.md"
GGUF_SEED = 1000  # of the weights of models that are stored as GGUF
LOGITS, GRADIENTS = 1e-5, 1e-4  # those of tests/model/families_test.cpp
SCORE, LOSS, GRAD_NORM, TRAINED_LOGITS, MERGED_LOGITS = 1e-5, 1e-5, 1e-4, 1e-3, 1e-4
GGUF_WEIGHT = 1e-6  # of norms that llama.cpp adds 1 to
ON_CPU, IN_FP32 = ["--device", "cpu"], ["--dtype", "fp32"]
NEW_TOKENS, NEAR_TIE = 24, 1e-3
QUICK_NEW_TOKENS, QUICK_STEPS = 10, 3
PAST_ITS_LENGTH = "llama_dynamic"  # in 24 tokens a continuation passes the length from which this kind's RoPE changes
SCORED_LENGTHS = [1, 2, 3, 5, 8, 12, 17, 26, 40, 61, 88, 120]
TRAINED_LENGTHS = [4, 9, 23, 47, 70, 96]  # the packed run's batch is three bins of 128
PROMPT_LENGTHS = [13, 3, 40, 20, 7, 60, 30, 10]  # the first three without near ties
RANK = 4
OLD_EXPERTS = ("mixtral", "qwen3_moe")  # kinds of which PEFT before transformers 5 adapted each expert's matrices as modules
# With --quick:
QUICK_TWO_PROCESSES = QUICK_OLD_EXPERTS = "qwen3_moe"
QUICK_VLLM = ("llama", "mixtral", "gemma4_moe")  # of other kinds only what the log says is checked


def five_steps(learning_rate: float) -> Recipe:
    """Every step takes all documents, so that packing cannot change which ones."""
    return Recipe(
        max_steps=5,
        global_batch_size=len(TRAINED_LENGTHS),
        learning_rate=learning_rate,
        scheduler="cosine",
        warmup_steps=0,
        weight_decay=0.01,
        max_grad_norm=1.0,
    )


LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
RECIPES = {"LoRA": five_steps(1e-2), "full": five_steps(2e-3)}
TWO_PROCESSES = "two processes"
BATCHES = {
    "unpacked": {"data__packing": False, "train__batch_size": 3, "train__grad_accum": 2},
    "packed": {"data__packing": True, "train__batch_size": 3, "train__grad_accum": 1},
    # Two of the four micro-batches are empty. Only for kinds with a load-balancing loss.
    TWO_PROCESSES: {"data__packing": False, "train__batch_size": 3, "train__grad_accum": 2, "processes": 2},
}
MICRO_BATCHES = {"unpacked": 3, "packed": len(TRAINED_LENGTHS), TWO_PROCESSES: 3}  # in documents
# The columns of docs/models.md. Each holds the largest value of these checks.
COLUMNS = {
    "logits": ["elements: logits"],
    "gradients": ["elements: gradients"],
    "LoRA gradients": ["elements: adapter_gradients"],
    "score": ["score: log-probability"],
    "LoRA loss, unpacked": ["LoRA unpacked: loss"],
    "LoRA loss, packed": ["LoRA packed: loss"],
    "load balance": ["LoRA unpacked: aux_loss", "LoRA packed: aux_loss", "full unpacked: aux_loss", "full packed: aux_loss"],
    "LoRA gradient norm": ["LoRA unpacked: grad_norm", "LoRA packed: grad_norm"],
    "full loss": ["full unpacked: loss", "full packed: loss"],
    "merged logits": ["merge: logits"],
    "GGUF": ["gguf: log-probability", "gguf: logits of what it merges to"],
}


@dataclass(frozen=True)
class Case(ModelCase):
    """A model of a kind."""

    tokenizer: Tokenizer
    quick: bool = False  # the part of `make test`


def make_case(name: str, sftrun: Sftrun, verdicts: Measured, scratch: Path, quick: bool = False) -> Case:
    case = Case(name, sftrun, verdicts, scratch / name, Tokenizer.from_file(str(TOKENIZER / "tokenizer.json")), quick)
    save_with_tokenizer(build(KINDS[name], KINDS[name].seed), case.base)
    return case


def texts(lengths: list[int], seed: int) -> list[dict]:
    characters = string.ascii_letters + string.digits + " .,:;!?()\n"
    rng = random.Random(seed)
    return [{"text": "".join(rng.choices(characters, k=length))} for length in lengths]


def probe(case: Case) -> list[int]:
    """Token ids whose logits say whether two models are the same one."""
    return case.tokenizer.encode(texts([100], seed=4)[0]["text"]).ids


@torch.no_grad()
def clear_probe(case: Case, model) -> list[int]:
    """The same for a text in which rounding cannot change which experts a token gets."""
    if not num_experts_taken(model.config):
        return probe(case)
    for seed in range(4, 200):
        ids = case.tokenizer.encode(texts([40], seed=seed)[0]["text"]).ids
        if routes_clearly(model, torch.tensor(ids)):
            return ids
    raise SystemExit(f"{case.name}: every text has near ties")


# ---- Element by element


def engine_report(program: Path, kinds: list[str]) -> list[dict]:
    """The engine's unit tests of these kinds, those that failed among them, with what each recorded."""
    if not program.exists():
        raise SystemExit(f"{program} is not there: build engine_tests, or name it with --engine-tests")
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory) / "report.json"
        tests = ":".join(f"Kinds/Families.*/{kind}" for kind in kinds)
        subprocess.run([program, f"--gtest_filter={tests}", f"--gtest_output=json:{report}"], stdout=subprocess.DEVNULL, check=False)
        return [test for suite in json.loads(report.read_text())["testsuites"] for test in suite["testsuite"]]


def check_elements(verdicts: Measured, program: Path, kinds: list[str]) -> None:
    tests = engine_report(program, kinds)
    for kind in kinds:
        own = [test for test in tests if test["name"].endswith(f"/{kind}")]
        failed = [test["name"] for test in own if "failures" in test]
        verdicts.expect(f"{kind}, elements: {len(own)} unit tests", len(own) > 0 and not failed, ", ".join(failed))
        for what, limit in {"logits": LOGITS, "gradients": GRADIENTS, "adapter_gradients": GRADIENTS}.items():
            seen = [float(test[what]) for test in own if what in test]
            verdicts.below(f"{kind}, elements: {what}", max(seen, default=math.nan), limit)


# ---- What the kinds cover


def check_ropes(verdicts: Measured) -> None:
    """Every type of RoPE that transformers has is in a kind."""
    kinds = {}
    for name, kind in KINDS.items():
        config = make_config(kind)
        ropes = getattr(config, "text_config", config).rope_parameters
        for rope in [ropes] if "rope_type" in ropes else ropes.values():
            kinds.setdefault(rope["rope_type"], name)
    for rope in ("default", *ROPE_INIT_FUNCTIONS):
        verdicts.expect(f"RoPE `{rope}` is in a kind", rope in kinds, kinds.get(rope, ""))


def check_balance(case: Case) -> None:
    """Kinds have a load-balancing loss where transformers' class has one, and not otherwise (Gemma 4)."""
    config = AutoConfig.from_pretrained(case.base)
    has_one = num_experts_taken(config) > 0 and hasattr(config, "router_aux_loss_coef")
    case.expect("load balance: as the class", getattr(config, "output_router_logits", False) == has_one, "balanced" if has_one else "none")


# ---- Scores


def logprob(scored: dict) -> float:
    """A text of one token has nothing to score: null."""
    return scored["logprob"] or 0.0


def scored_document(text: str, tokenizer: Tokenizer) -> Document:
    """Labels as `score` counts them: no EOS is added, for nobody wrote one."""
    tokens = tokenizer.encode(text).ids
    return Document(tokens, [IGNORE_INDEX] + tokens[1:])


def log_probability(model, document: Document) -> float:
    return log_probability_of_labels(logits_of(model, document.tokens), document.labels).item()


def score_difference(case: Case, path: Path, model) -> float:
    """Of `sftrun score` on a directory or GGUF file, relative to transformers' model."""
    records = texts(SCORED_LENGTHS, seed=1)
    scores = case.sftrun.jsonl("score", records, case.directory, "--model", str(path), *ON_CPU, *IN_FP32)
    documents = [scored_document(record["text"], case.tokenizer) for record in records]
    counts = [score["tokens"] for score in scores]
    case.expect(f"score of {path.name}: labelled tokens", counts == [document.label_tokens for document in documents], str(counts))
    expected = [log_probability(model, document) for document in documents]
    return max(abs(logprob(s) - e) / max(abs(e), 1.0) for s, e in zip(scores, expected))


def check_score(case: Case) -> None:
    case.below("score: log-probability", score_difference(case, case.base, load(case.base)), SCORE)


# ---- Training


def write_adapter(base: Path, adapter: Path) -> Path:
    torch.manual_seed(21)
    model = adapt(load(base), RANK)
    fill_b(model)
    model.save_pretrained(adapter, save_embedding_layers=False)
    return adapter


def write_run_yaml(case: Case, mode: str, recipe: Recipe) -> Path:
    tuning: dict = {"mode": mode.lower()}
    if mode == "LoRA":
        adapter = write_adapter(case.base, case.directory / "init_adapter")
        tuning["lora"] = {"r": RANK, "alpha": 2 * RANK, "target_modules": ["all-linear"], "init_from": str(adapter)}
        if experts := adapted_experts(AutoConfig.from_pretrained(case.base)):
            tuning["lora"]["target_parameters"] = experts
    records = case.directory / "records.jsonl"
    records.write_text("".join(json.dumps(record) + "\n" for record in texts(TRAINED_LENGTHS, seed=2)))
    config = {
        "model": {"name": str(case.base), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": tuning,
        "data": {"train": str(records), "format": "text", "shuffle": False},
        "train": train_section(recipe),
        "output": {"tensorboard": False},
    }
    path = case.directory / f"{mode}.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def train_reference(case: Case, mode: str, recipe: Recipe, micro_batch_size: int):
    """@return metrics, and the trained model"""
    model = load(case.base)
    if mode == "LoRA":
        model = PeftModel.from_pretrained(model, case.directory / "init_adapter", is_trainable=True)
    eos = case.tokenizer.token_to_id("<|eos|>")
    documents = [encode_record(record, case.tokenizer, eos) for record in texts(TRAINED_LENGTHS, seed=2)]
    return train(model, documents, recipe, micro_batch_size=micro_batch_size), model


def load_trained(case: Case, run: Path):
    return load_adapter(load(case.base), run / "adapter") if (run / "adapter").exists() else load(run / "model")


def batches_of(case: Case, mode: str) -> list[str]:
    """With --quick LoRA is packed only where `full` is checked, too, and always trained unpacked: later checks take that run's adapter."""
    if not case.quick:
        return list(BATCHES)
    if mode == "full":
        return ["packed"]
    batches = ["unpacked", "packed"] if "full" in checks_of(case.name, quick=True) else ["unpacked"]
    return [*batches, TWO_PROCESSES] if case.name == QUICK_TWO_PROCESSES else batches


def check_training(case: Case, mode: str) -> None:
    recipe = dataclasses.replace(RECIPES[mode], max_steps=QUICK_STEPS) if case.quick else RECIPES[mode]
    config = write_run_yaml(case, mode, recipe)
    trained = None
    for batches in batches_of(case, mode):
        settings = BATCHES[batches]
        if batches == TWO_PROCESSES and not balances_load(trained[1]):
            continue
        if trained is None or balances_load(trained[1]):
            trained = train_reference(case, mode, recipe, MICRO_BATCHES[batches])
        reference, model = trained
        ids = clear_probe(case, model)
        expected = logits_of(model, ids)
        name, run = f"{mode} {batches}", case.directory / f"{mode}-{batches}"
        metrics = case.sftrun.train(config, run, **settings)
        compare_metrics(case.verdicts, f"{case.name}, {name}", metrics, reference, LOSS, GRAD_NORM)
        logits = logits_of(load_trained(case, run), ids)
        case.below(f"{name}: logits of what it wrote", relative_to_largest(logits, expected), TRAINED_LOGITS)


def check_lora(case: Case) -> None:
    check_training(case, "LoRA")
    check_names(case)


def check_full(case: Case) -> None:
    check_training(case, "full")


def layer_names(adapter: Path) -> set[str]:
    """PEFT names the layers that all-linear chose by their paths, sftrun by their last part; both write a pattern where
    another part of the model has layers of the same names."""
    targets = json.loads((adapter / "adapter_config.json").read_text())["target_modules"]
    if isinstance(targets, str):
        return set(LAYERS if targets == TEXT_PART_LINEAR else re.findall(r"\w+_proj", targets))
    return {name.rsplit(".")[-1] for name in targets}


def adapted_parameters(adapter: Path) -> set[str]:
    return set(json.loads((adapter / "adapter_config.json").read_text()).get("target_parameters") or [])


def check_names(case: Case) -> None:
    theirs, ours = case.directory / "init_adapter", case.directory / "LoRA-unpacked" / "adapter"
    layers = layer_names(ours)
    case.expect("LoRA: layers of all-linear", layers == layer_names(theirs), ", ".join(sorted(layers)))
    parameters = adapted_parameters(ours)
    case.expect("LoRA: parameters adapted", parameters == adapted_parameters(theirs), ", ".join(sorted(parameters)))
    tensors, expected = (set(load_file(adapter / "adapter_model.safetensors")) for adapter in (ours, theirs))
    case.expect("LoRA: tensor names of the adapter", tensors == expected, f"{len(tensors)} tensors")


def check_merge(case: Case) -> None:
    adapter, merged = case.directory / "LoRA-unpacked" / "adapter", case.directory / "merged"
    case.sftrun.run("merge", "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    adapted = load_adapter(load(case.base), adapter)
    ids = clear_probe(case, adapted)
    difference = relative_to_largest(logits_of(load(merged), ids), logits_of(adapted, ids))
    case.below("merge: logits", difference, MERGED_LOGITS)


# ---- Adapters of single experts


def write_old_adapter(case: Case) -> Path:
    """As PEFT wrote them when each matrix of an expert was a module: of experts, routers and q_proj, under the names of files."""
    torch.manual_seed(31)
    adapter, tensors, targets = case.directory / "old_adapter", {}, set()
    adapter.mkdir()
    for name, weight in load_file(case.base / "model.safetensors").items():
        module = name.removesuffix(".weight")
        leaf = module.rsplit(".", 1)[-1]
        if ".experts." not in module and leaf not in ("gate", "q_proj") or weight.dim() != 2:
            continue
        rows, columns = weight.shape
        targets.add(leaf)
        tensors[f"base_model.model.{module}.lora_A.weight"] = torch.randn(RANK, columns) * columns**-0.5
        tensors[f"base_model.model.{module}.lora_B.weight"] = 0.1 * torch.randn(rows, RANK)
    save_file(tensors, adapter / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": RANK, "lora_alpha": 2 * RANK, "target_modules": sorted(targets),
              "base_model_name_or_path": str(case.base)}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    return adapter


def check_old_experts(case: Case) -> None:
    if case.name not in OLD_EXPERTS or (case.quick and case.name != QUICK_OLD_EXPERTS):
        return
    adapter, merged = write_old_adapter(case), case.directory / "old_merged"
    adapted = load_adapter(load(case.base), adapter)
    records = [record for record in texts(SCORED_LENGTHS, seed=5)
               if routes_clearly(adapted, torch.tensor(case.tokenizer.encode(record["text"]).ids))]
    expected = [log_probability(adapted, scored_document(record["text"], case.tokenizer)) for record in records]
    converted = case.directory / "converted_adapter"  # gate_up_proj has a rank of its own there
    adapted.save_pretrained(converted)
    for name, directory in {"single experts": adapter, "single experts, converted by PEFT": converted}.items():
        scores = case.sftrun.jsonl("score", records, case.directory, "--adapter", str(directory), *ON_CPU, *IN_FP32)
        worst = max(abs(logprob(s) - e) / max(abs(e), 1.0) for s, e in zip(scores, expected, strict=True))
        case.below(f"adapter of {name}: log-probability of {len(records)} texts", worst, SCORE)
    case.sftrun.run("merge", "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    ids = clear_probe(case, adapted)
    difference = relative_to_largest(logits_of(load(merged), ids), logits_of(adapted, ids))
    case.below("adapter of single experts: merged logits", difference, MERGED_LOGITS)
    moved = relative_to_largest(logits_of(load(case.base), ids), logits_of(adapted, ids))
    case.expect("adapter of single experts: changes the model", moved > 0.01, f"{moved:.2f}")


# ---- Adapters for vLLM


# Kinds whose adapter vLLM cannot load, or only in part, without `--format vllm`: the level of the log line that says so when training starts.
SAID = {"mixtral": "warning", "qwen3_moe": "info", "qwen3_5_moe": "info", "gemma4_moe": "warning"}


def is_read_here(base: Path) -> bool:
    """For Gemma 4, vLLM's adapters name single experts, and values where they are the keys. sftrun does not read these."""
    config = AutoConfig.from_pretrained(base).get_text_config()
    return config.model_type != "gemma4_text" or not (num_experts_taken(config) or config.attention_k_eq_v)


def check_vllm(case: Case) -> None:
    adapter, written = case.directory / "LoRA-unpacked" / "adapter", case.directory / "for_vllm"
    log = (case.directory / "LoRA-unpacked" / "logs" / "rank-0.log").read_text()
    said = re.findall(r"\[(\w+)\] .*\bvLLM .* `sftrun merge --format vllm`", log)
    case.expect("vllm: said at the start of training", said == [SAID[case.name]] if case.name in SAID else not said, str(said))
    if case.quick and case.name not in QUICK_VLLM:
        return
    case.sftrun.run("merge", "--adapter", str(adapter), "--output", str(written), "--format", "vllm")
    if not is_read_here(case.base):
        return
    records = texts(SCORED_LENGTHS[1:], seed=6)  # of one token there is none
    one, other = (case.sftrun.jsonl("score", records, case.directory, "--adapter", str(directory), *ON_CPU, *IN_FP32)
                  for directory in (adapter, written))
    worst = max(abs(logprob(a) - logprob(b)) / max(abs(logprob(a)), 1.0) for a, b in zip(one, other, strict=True))
    case.below("vllm: log-probability", worst, SCORE)


# ---- GGUF


def save_gguf(case: Case) -> tuple[Path, list[Path]]:
    """A model that a GGUF file can describe, as directory and as file; Mixtral also as its first files were."""
    kind = KINDS[case.name]
    model = build(dataclasses.replace(kind, config={**kind.config, **family_gguf.config_changes(case.name)}), GGUF_SEED)
    directory, file = case.directory / "gguf-base", case.directory / "model.gguf"
    save_with_tokenizer(model, directory)
    family_gguf.write(file, model, TOKENIZER / "tokenizer.json")
    if family_gguf.FAMILIES[kind.family].read_by_transformers:
        difference = family_gguf.weight_difference_in_transformers(file, model)
        case.below("gguf: weights as transformers reads them", difference, GGUF_WEIGHT)
    if case.name != "mixtral":
        return directory, [file]
    apart = case.directory / "model-apart.gguf"
    family_gguf.write(apart, model, TOKENIZER / "tokenizer.json", experts_apart=True)
    return directory, [file, apart]


def check_gguf(case: Case) -> None:
    if family_gguf.is_text_part(case.name) or case.name in family_gguf.KINDS_WITHOUT_GGUF:
        return
    family = KINDS[case.name].family
    if family not in family_gguf.FAMILIES:
        case.expect("gguf: the family is tested", False, f"scripts/fixtures/family_gguf.py: add \"{family}\" to FAMILIES, or, if no GGUF file "
                    f"can hold this model, \"{case.name}\" to KINDS_WITHOUT_GGUF")
        return
    directory, files = save_gguf(case)
    for file in files:
        check_gguf_file(case, directory, file)


def check_gguf_file(case: Case, directory: Path, file: Path) -> None:
    case.below("gguf: log-probability", score_difference(case, file, load(directory)), SCORE)
    adapter, merged = write_adapter(directory, case.directory / f"{file.stem}-adapter"), case.directory / f"{file.stem}-merged"
    case.sftrun.run("merge", "--model", str(file), "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    adapted = load_adapter(load(directory), adapter)
    ids = clear_probe(case, adapted)
    difference = relative_to_largest(logits_of(load(merged), ids), logits_of(adapted, ids))
    case.below("gguf: logits of what it merges to", difference, MERGED_LOGITS)


# ---- Generation


@torch.no_grad()
def continuation(model, prompt: list[int], new_tokens: int) -> list[int] | None:
    """None where two tokens are so near that rounding may choose either."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        pad_token_id=model.generation_config.eos_token_id,
        output_logits=True,
        return_dict_in_generate=True,
    )
    first, second = torch.cat(out.logits).topk(2).values.unbind(-1)
    return out.sequences[0, len(prompt) :].tolist() if (first - second).min() >= NEAR_TIE else None


def greedy_references(case: Case, new_tokens: int) -> list[tuple[dict, str]]:
    model, found = load(case.base), []
    for record in texts(PROMPT_LENGTHS, seed=3):
        tokens = continuation(model, case.tokenizer.encode(record["text"]).ids, new_tokens)
        if tokens is not None:
            found.append(({"prompt": record["text"]}, case.tokenizer.decode(tokens)))
        if len(found) == 3:
            return found
    raise RuntimeError("near ties in the continuations of nearly every prompt: give the kind another seed (scripts/fixtures/families.py)")


def check_generate(case: Case) -> None:
    new_tokens = QUICK_NEW_TOKENS if case.quick and case.name != PAST_ITS_LENGTH else NEW_TOKENS
    references = greedy_references(case, new_tokens)
    greedy = ["--no-chat", "--temperature", "0", "--max-new-tokens", str(new_tokens), *ON_CPU, *IN_FP32]
    prompts = [record for record, _ in references]
    for batch_size in (2,) if case.quick else (3, 2):  # all side by side; one waits for another's row
        flags = ["--model", str(case.base), *greedy, "--batch-size", str(batch_size)]
        answers = case.sftrun.jsonl("generate", prompts, case.directory, *flags)
        for answer, (record, expected) in zip(answers, references, strict=True):
            same = answer["generated"] == expected
            detail = "" if same else f"{answer['generated']!r}, reference {expected!r}"
            case.expect(f"generate: batch {batch_size}, after {len(record['prompt'])} tokens", same, detail)


# ---- The page


def short(limit: float) -> str:
    return f"{limit:.0e}".replace("e-0", "e-")


ABOUT = """\
# Models

The `model_type` in config.json decides the family of a model. For each supported family, the table compares sftrun with transformers and
PEFT on a tiny model with random weights. The test model has the special features of its family switched on. The numbers are relative
differences, the largest that was measured. Released models differ from the test models in size, weights and stored precision; they were
not run for this table.

"""
BELOW = f"""
Everything is computed in fp32 on the CPU. Sliding windows are shorter than most of the texts. The first three columns are of smaller models
(`tests/data/families`; differences relative to the largest value of a tensor), as the unit tests `tests/model/families_test.cpp`
report them. The other columns are of the program itself.
Reference: VERSIONS.

`tests/parity/families_parity.py --write` wrote this page. Without `--write` the script measures again, and as `parity.families` in
`make test` a part of it. It fails if a difference is above its limit, or if the families or columns of this page are not those of the script.

| column | what is compared | limit |
|---|---|---|
| logits | every logit of two documents, packed, and of the second document alone | {short(LOGITS)} |
| gradients | every element of the gradient of every parameter, for the loss (with the load-balancing loss) of both documents, with the fused and the plain backend | {short(GRADIENTS)} |
| LoRA gradients | the same for every A and B of an adapter on all linear layers, experts and routers, compared with PEFT; without and with gradient checkpointing, which gives the same bits | {short(GRADIENTS)} |
| score | log-probabilities of {len(SCORED_LENGTHS)} texts of up to {max(SCORED_LENGTHS)} tokens from `sftrun score`, which packs them, and of each text alone | {short(SCORE)} |
| LoRA loss | every loss of 5 steps on all linear layers (with experts: attention, experts and routers), without and with packing; the reference computes each document alone | {short(LOSS)} |
| load balance | every load-balancing loss of the LoRA and full runs, for models whose config.json has `output_router_logits` | {short(LOSS)} |
| LoRA gradient norm | the gradient norm of every step before clipping; the worse of both runs | {short(GRAD_NORM)} |
| full loss | as LoRA loss, with all parameters trained; the worse of both runs | {short(LOSS)} |
| merged logits | `sftrun merge` of the trained adapter, loaded by transformers, and the adapter on its base in PEFT | {short(MERGED_LOGITS)} |
| GGUF | the model as a GGUF file: scores, and logits after merging an adapter into it; the worse of both. `mistral` is stored as `llama`, without windows; `olmo3` as `olmo2` with a window, `mixtral` as `llama` with experts; GGUF cannot describe dynamic RoPE | {short(MERGED_LOGITS)} |
| generation | {NEW_TOKENS} tokens of greedy `sftrun generate` after three prompts, and of each prompt alone with transformers' cache | equal |

Before transformers 5, PEFT wrote adapters of single experts for `mixtral` and `qwen3_moe` (`…experts.0.w1.lora_A.weight`). These score and
merge as PEFT's conversion of them, within the limits of the columns score and merged logits.

The trained weights, loaded by PEFT or transformers, give the logits of the model that the reference trained, within {short(TRAINED_LOGITS)} of the
largest logit.

## Released models of each family
The `model_type` in config.json decides; these released models have one from the table. For {len(CONFIGS)} of them `tests/parity/released_shapes_parity.py`
compares names and shapes of all tensors, and the number of parameters, with transformers, using their config.json.

"""

LIMITS = """
[images.md](images.md) says how models with images are trained. On texts alone their image part is not loaded, and unchanged. Others with images: Qwen2.5-VL (`qwen2_5_vl`), Qwen3-VL (`qwen3_vl`, `qwen3_vl_moe`), SmolVLM and Idefics 3
(`smolvlm`, `idefics3`), LLaVA (`llava`, `llava_next`), InternVL in transformers' layout (`internvl`), Mistral Small 3.1 and Pixtral (`mistral3`, `llava`). Their text part is one of the
families above. Names and shapes of all tensors of 38 configurations, released models among them, are compared with transformers (`tests/spec/vision_shapes_test.cpp`). Of tiny models of seven of them the
trained adapter loads in PEFT, and the merged model gives the same logits in transformers within 3e-6 (2026-11-29).

## Limits
- Qwen3-Next is not supported.
- The `mtp.*` tensors of Qwen3.5 are kept unchanged. They are left out if the base is a GGUF file, also of merged models.
"""


def cell(name: str, checks: list[str], values: dict[str, float]) -> str:
    measured = [values.get(f"{name}, {check}", float("nan")) for check in checks]
    return "–" if math.isnan(max(measured)) else f"{max(measured):.0e}"


def table_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def row(name: str, verdicts: Measured) -> str:
    differs = any(failure.startswith(f"{name}, generate") for failure in verdicts.failures)
    cells = [cell(name, checks, verdicts.values) for checks in COLUMNS.values()]
    first = [f"`{KINDS[name].family}`", KINDS[name].exercises]
    return table_line([*first, *cells, "differs" if differs else "equal"])


def page(verdicts: Measured) -> str:
    header = ["family", "what its test model has", *COLUMNS, "generation"]
    lines = [table_line(header), "|" + "---|" * len(header)]
    lines += [row(name, verdicts) for name in KINDS]
    versions = ", ".join(f"{package.__name__} {package.__version__}" for package in (transformers, peft, torch))
    models = [f"- `{kind.family}`: {kind.models}.\n" for kind in KINDS.values() if kind.models]
    return ABOUT + "\n".join(lines) + "\n" + BELOW.replace("VERSIONS", versions) + "".join(models) + LIMITS


def without_measurements(text: str) -> str:
    return re.sub(r"(?<=\| )(\de[-+]\d\d|–|equal|differs)(?= \|)|(?<=Reference: ).*", "…", text)


def check_page(verdicts: Measured) -> None:
    there = DOCUMENT.read_text(encoding="utf-8") if DOCUMENT.exists() else ""
    holds = without_measurements(there) == without_measurements(page(verdicts))
    advice = "" if holds else "run tests/parity/families_parity.py with --write"
    verdicts.expect(f"{DOCUMENT.relative_to(REPOSITORY)} has these families and columns", holds, advice)


def write_page(verdicts: Measured) -> None:
    if verdicts.failures:
        return print(f"\n{DOCUMENT} is not written: not all checks hold")
    DOCUMENT.write_text(page(verdicts), encoding="utf-8")


CHECKS = {
    "load balance": check_balance,
    "score": check_score,
    "LoRA": check_lora,
    "full": check_full,
    "generate": check_generate,
    "merge": check_merge,
    "adapter of single experts": check_old_experts,
    "vllm": check_vllm,
    "gguf": check_gguf,
}


# What `make test` leaves out: every family has LoRA and its scores, as a directory or as a GGUF file. The rest is divided among three groups
# of families.
QUICK = ({"full", "merge", "generate", "gguf"}, {"full", "gguf", "vllm", "load balance"}, {"score", "merge", "vllm", "generate", "load balance"})


assert {QUICK_TWO_PROCESSES, QUICK_OLD_EXPERTS, PAST_ITS_LENGTH, *QUICK_VLLM} <= KINDS.keys() and set().union(*QUICK) <= CHECKS.keys()


def checks_of(name: str, quick: bool) -> list[str]:
    left_out = QUICK[list(KINDS).index(name) % len(QUICK)] if quick else set()
    return [check for check in CHECKS if check not in left_out]


def check_family(case: Case, checks: list[str]) -> None:
    for name in checks:
        check = CHECKS[name]
        try:
            check(case)
        except Exception as error:  # transformers raises all kinds at what it cannot load
            case.expect(name, False, f"{type(error).__name__}: {error}")


def check_kind(name: str, sftrun: str, quick: bool) -> Measured:
    verdicts = Measured()
    with tempfile.TemporaryDirectory() as scratch:
        check_family(make_case(name, Sftrun(sftrun), verdicts, Path(scratch), quick), checks_of(name, quick))
    return verdicts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--engine-tests", help="default: beside sftrun; with --quick they are not run")
    parser.add_argument("--only", nargs="+", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    parser.add_argument("--write", action="store_true", help="write docs/models.md")
    parser.add_argument("--quick", action="store_true", help="a part of each family's checks, as in `make test`: see above")
    args = parser.parse_args()
    if args.write and (args.only or args.quick):
        parser.error("--write needs all families and checks: leave out --only and --quick")
    kinds = args.only or list(KINDS)
    # The models are tiny: a second thread waits, and takes a processor for it.
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    transformers.logging.set_verbosity_error()
    verdicts = Measured()
    check_ropes(verdicts)
    if not args.quick:
        check_elements(verdicts, Path(args.engine_tests or Path(args.sftrun).with_name("engine_tests")), kinds)
    check_in_copies(kinds, functools.partial(check_kind, sftrun=args.sftrun, quick=args.quick), verdicts)
    if args.write:
        write_page(verdicts)
    elif not args.only:
        check_page(verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
