"""Preference objectives beside TRL's trainers and beside their plain formulas, on a CPU in fp32.

    python tests/parity/preference_parity.py --sftrun build/bin/sftrun [--only training formula reference] [--cases sigmoid kto] [--seed N]

training   5 steps of LoRA on a tiny Llama for every objective and loss that TRL 1.16 has, through DPOTrainer, CPOTrainer, ORPOTrainer or KTOTrainer:
           loss, gradient norm, metrics; the first losses are known (ln 2, 1 / (2 beta)^2, 0.5 w, 1.0, …). 1 and 2 processes x accumulation 1 and 2,
           packed or not: the same losses. TRL has one micro-batch a step, because it takes means over micro-batches
formula    a Llama of a random shape (--seed) and random adapters: loss, metrics and gradient norm of the first step are those of the formulas
           (scripts/fixtures/preference_formulas.py) of log-probabilities by transformers in fp64, with the base model as the reference
reference  train.reference: start with an adapter that exists, beside TRL; full training, beside TRL; base, an adapter, a model, by the formula;
           precomputed log-probabilities of the reference

--quick trains 3 steps, divides each case in one way, packs every fourth case, and checks some formulas.
"""

from __future__ import annotations

import argparse
import itertools
import json
import logging
import math
import os
import random
import sys
import tempfile
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace

from harness import Sftrun, Verdicts  # noqa: I001  (sets sys.path)

os.environ["HF_HUB_OFFLINE"] = "1"

import datasets
import preference_formulas as formulas
import torch
import yaml
from dpo_parity import chat_records, make_model, make_tokenizer, text_records, write_jsonl
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer
from trl.experimental.cpo import CPOConfig, CPOTrainer
from trl.experimental.orpo import ORPOConfig, ORPOTrainer

STEPS, QUICK_STEPS, BATCH, LEARNING_RATE, MAX_GRAD_NORM = 5, 3, 4, 0.02, 0.5
LOSS, GRAD_NORM, METRIC, SAME, STEEP, FORMULA = 1e-5, 1e-4, 1e-4, 1e-6, 5e-6, 1e-6
LOG_P = 2e-6  # rounding of a document's log p in fp32, which is about -40
LORA = {"r": 4, "alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
SHARES = [(1, 1), (1, 2), (2, 1), (2, 2)]  # processes and accumulation
FULL_LEARNING_RATE = 1e-4  # Adam moves a value whose gradient is rounding as far as any other
MAX_TRIES = 10
PACKED_BINS, PACKED_LENGTH = 4, 257  # a step of as many bins as `BATCH`; the end of the lengths that are tried for them


# ---- Cases


@dataclass(frozen=True)
class Case:
    """settings are keys of `train`, among them `objective` and `beta`."""

    name: str
    settings: dict
    batch: int = BATCH
    first: float | None = None  # loss before the first update
    in_trl: bool = True
    learning_rate: float = LEARNING_RATE

    @property
    def objective(self) -> str:
        return self.settings["objective"]

    @property
    def beta(self) -> float:
        return self.settings["beta"]

    @property
    def mixture(self) -> dict[str, float]:
        return formulas.mixture_of({**formulas.DEFAULTS, **self.settings})

    @property
    def same(self) -> float:
        """Of two divisions of a batch. Losses with a steep slope (exponentials of log-ratios, squares, no reference) magnify rounding."""
        is_steep = "f_divergence" in self.settings or self.objective == "cpo" or "sppo_hard" in self.mixture
        return STEEP if is_steep else SAME

    @property
    def is_judged(self) -> bool:
        return self.objective == "kto"

    @property
    def has_reference(self) -> bool:
        return self.objective in ("dpo", "ipo", "kto")


def first_loss(settings: dict) -> float:
    """Of dpo where the policy is the reference: every log-ratio is 0."""
    nothing = torch.zeros(1, dtype=torch.float64)
    s = {**formulas.DEFAULTS, **settings}
    known = {
        "sigmoid": math.log(2), "robust": math.log(2), "sigmoid_norm": math.log(2), "hinge": 1.0, "apo_zero": 1.0, "apo_down": 1.0,
        "nca_pair": 2 * math.log(2), "bco_pair": 2 * math.log(2), "ipo": 1 / (2 * s["beta"]) ** 2, "sppo_hard": 2 / (2 * s["beta"]) ** 2,
        "discopop": (math.log(2) + 1) / 2,
    }
    pairs = formulas.Pairs(nothing, nothing, nothing, nothing, s["beta"], s["label_smoothing"], s["discopop_tau"])
    known["exo_pair"] = formulas.exo_pair(pairs).item()
    return sum(weight * known[name] for name, weight in formulas.mixture_of(s).items())


def dpo_case(loss: str | dict, beta: float = 0.3, in_trl: bool = True, **settings) -> Case:
    given = [loss] if isinstance(loss, str) else [f"{weight} {name}" for name, weight in loss.items()]
    name = ", ".join([" + ".join(given)] + [f"{key} {value}" for key, value in settings.items()])
    settings = {"objective": "dpo", "loss_type": loss, "beta": beta, **settings}
    has_known_first = "sft" not in formulas.mixture_of(settings)
    return Case(name, settings, first=first_loss(settings) if has_known_first else None, in_trl=in_trl)


def other_case(objective: str, name: str = "", beta: float = 0.3, **settings) -> Case:
    extra = {key: value for key, value in settings.items() if key not in ("batch", "first")}
    label = ", ".join([objective, *([name] if name else []), *(f"{key} {value}" for key, value in extra.items())])
    return Case(label, {"objective": objective, "beta": beta, **extra}, settings.get("batch", BATCH), settings.get("first"))


def all_cases() -> list[Case]:
    mpo = {"sigmoid": 0.8, "bco_pair": 0.2, "sft": 1.0}
    divergences = [{"f_divergence": "forward_kl"}, {"f_divergence": "js_divergence"}]
    divergences += [{"f_divergence": "alpha_divergence", "f_alpha_divergence_coef": value} for value in (0.5, 0.3, 2.0)]
    losses = ["sigmoid", "ipo", "hinge", "robust", "sigmoid_norm", "exo_pair", "discopop"]
    return [
        *(dpo_case(loss) for loss in formulas.LOSSES),
        dpo_case("robust", label_smoothing=0.2),
        dpo_case("exo_pair", label_smoothing=0.05),
        dpo_case("sigmoid", label_smoothing=0.1, in_trl=False),
        dpo_case("sigmoid_norm", label_smoothing=0.1, in_trl=False),
        dpo_case("discopop", discopop_tau=0.4),
        other_case("ipo", "the objective", first=1 / (2 * 0.3) ** 2),
        dpo_case(mpo),
        dpo_case({"sigmoid": 1.0, "sft": 0.2}),
        dpo_case({"ipo": 0.5, "apo_down": 2.0}),
        dpo_case({"sft": 1.0}),
        dpo_case("sigmoid", ld_alpha=0.4),
        dpo_case("sigmoid", ld_alpha=0.0),
        dpo_case(mpo, ld_alpha=0.7),
        dpo_case("ipo", ld_alpha=0.5),
        *(dpo_case(loss, **divergence) for loss, divergence in zip(itertools.cycle(losses), divergences * 2)),
        other_case("cpo", loss_type="sigmoid"),
        other_case("cpo", loss_type="sigmoid", label_smoothing=0.1, cpo_alpha=0.4),
        other_case("cpo", loss_type="sigmoid", cpo_alpha=0.0),
        other_case("cpo", loss_type="hinge"),
        other_case("cpo", loss_type="ipo"),
        other_case("simpo", beta=2.0),
        other_case("simpo", beta=2.0, simpo_gamma=1.2, cpo_alpha=0.5),
        other_case("simpo", beta=2.0, label_smoothing=0.1),
        other_case("orpo", beta=0.3),
        other_case("orpo", "beta 1", beta=1.0),
        other_case("kto"),
        other_case("kto", desirable_weight=1.5, undesirable_weight=0.6),
        other_case("kto", "two examples a step", batch=2),
    ]


# ---- Records and runs


def preference_records(case: Case, rng: random.Random, count: int, chats: bool) -> list[dict]:
    """Texts have an answer of nothing but its end, and a pair of equal answers."""
    records = chat_records(rng, count) if chats else [separated(record) for record in text_records(rng, count)]
    if not chats:
        records[1]["rejected"], records[-1]["chosen"] = "", ""
        records[2]["rejected"] = records[2]["chosen"]
    return [judge(record, rng) for record in records] if case.is_judged else records


def separated(record: dict) -> dict:
    """No token spans prompt and answer: the trainers of TRL divide such a token in two ways."""
    return {**record, "prompt": record["prompt"].strip() + " =>"}


def judge(record: dict, rng: random.Random) -> dict:
    label = rng.random() < 0.5
    return {"prompt": record["prompt"], "completion": record["chosen" if label else "rejected"], "label": label}


def write_run(path: Path, model: Path, train_file: Path, case: Case, **sections) -> Path:
    train = {
        "max_steps": STEPS, "batch_size": case.batch, "grad_accum": 1, "learning_rate": case.learning_rate, "scheduler": "linear", "warmup_steps": 0,
        "max_grad_norm": MAX_GRAD_NORM, "save_every": "0", **case.settings,
    }
    run = {
        "model": {"name": str(model), "max_seq_len": 256, "dtype": "fp32"},
        "tuning": {"mode": "lora", "lora": LORA},
        "data": {"train": str(train_file), "shuffle": False, "packing": False, "cache_dir": "none"},
        "train": train,
        "output": {"tensorboard": False},
    }
    for section, values in sections.items():
        run[section] = {**run[section], **values}
    path.write_text(yaml.safe_dump(run))
    return path


@dataclass
class Bench:
    """What the parts share."""

    sftrun: Sftrun
    scratch: Path
    verdicts: Verdicts
    quick: bool
    seed: int
    names: list[str] | None
    runs: itertools.count = field(default_factory=itertools.count)
    packed_lengths: dict[bool, int] = field(default_factory=dict)  # by whether records are judged

    @cached_property
    def cases(self) -> list[Case]:
        return [case for case in all_cases() if self.names is None or any(name in case.name for name in self.names)]

    @cached_property
    def model(self) -> Path:
        return make_model(self.scratch / "model", adds_bos=True)

    @cached_property
    def initial(self) -> Path:
        """The adapter that sftrun starts from, for TRL: a step without a learning rate changes nothing."""
        case = dpo_case("sigmoid")
        data = write_jsonl(self.scratch / "initial.jsonl", preference_records(case, random.Random(1), BATCH * 2, False))
        config = write_run(self.scratch / "initial.yaml", self.model, data, Case("dpo", {"objective": "dpo", "beta": 0.3}))
        output = self.scratch / "initial"
        self.sftrun.train(config, output, train__max_steps=1, train__learning_rate=0)
        return output / "adapter"

    def train(self, config: Path, processes: int = 1, **overrides) -> list[dict]:
        """@return metrics by step"""
        return self.sftrun.train(config, self.scratch / f"run-{next(self.runs)}", processes, **overrides)

    def train_shared(self, config: Path, case: Case, share: tuple[int, int], **overrides) -> list[dict]:
        processes, accumulation = share
        size = {"train__batch_size": case.batch // (processes * accumulation), "train__grad_accum": accumulation}
        return self.train(config, processes, train__gradient_checkpointing=accumulation == 2, **size, **overrides)


# ---- TRL


class PaperKTOTrainer(KTOTrainer):
    """TRL scores prompt i with answer i - 1; the paper, its authors' code and sftrun with answer i + 1. With two examples a step it is the same."""

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        prepared = super()._prepare_dataset(dataset, processing_class, args, dataset_name)
        rotate = lambda batch: {"KL_completion_ids": batch["completion_ids"][1:] + batch["completion_ids"][:1]}  # noqa: E731
        return prepared.map(rotate, batched=True, batch_size=args.per_device_train_batch_size)


def trl_arguments(case: Case) -> tuple[type, type, dict]:
    """@return trainer, configuration and what it is made with"""
    s = {**formulas.DEFAULTS, **case.settings}
    smoothing = s["label_smoothing"] or 0.0
    if case.objective == "kto":
        weights = {key: s[key] for key in ("desirable_weight", "undesirable_weight")}
        return (KTOTrainer if case.batch == 2 else PaperKTOTrainer), KTOConfig, {"max_length": None, **weights}
    if case.objective == "orpo":
        return ORPOTrainer, ORPOConfig, {"max_length": 256}
    if case.objective in ("cpo", "simpo"):
        is_simpo = case.objective == "simpo"
        alpha = formulas.CPO_ALPHA[case.objective] if s["cpo_alpha"] is None else s["cpo_alpha"]
        settings = {"loss_type": "simpo" if is_simpo else s["loss_type"], "label_smoothing": smoothing, "cpo_alpha": alpha}
        return CPOTrainer, CPOConfig, {"max_length": 256, "simpo_gamma": s["simpo_gamma"], **settings}
    if "exo_pair" in case.mixture:
        smoothing = smoothing or formulas.EXO_SMOOTHING
    return DPOTrainer, DPOConfig, {
        "max_length": None, "loss_type": list(case.mixture), "loss_weights": list(case.mixture.values()), "label_smoothing": smoothing,
        "ld_alpha": s["ld_alpha"], "f_divergence_type": s["f_divergence"], "f_alpha_divergence_coef": s["f_alpha_divergence_coef"],
        "discopop_tau": s["discopop_tau"],
    }


def start_from(model: torch.nn.Module, adapter: Path) -> None:
    initial = load_file(adapter / "adapter_model.safetensors")
    loaded = 0
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                parameter.copy_(initial[name.replace(".default.", ".")])
                loaded += 1
    assert loaded == len(initial), f"{loaded} of {len(initial)} tensors"


def train_with_trl(case: Case, records: list[dict], model, tokenizer, adapter: Path | None, scratch: Path) -> list[dict]:
    """@param adapter what a new adapter starts from; none: the model trains as it is   @return what TRL logs of each step"""
    trainer_class, config_class, settings = trl_arguments(case)
    arguments = config_class(
        output_dir=str(scratch / "trl"), per_device_train_batch_size=case.batch, gradient_accumulation_steps=1, max_steps=STEPS,
        learning_rate=case.learning_rate, lr_scheduler_type="linear", warmup_steps=0, max_grad_norm=MAX_GRAD_NORM, weight_decay=0.0,
        optim="adamw_torch",
        beta=case.beta, bf16=False, gradient_checkpointing=False, train_sampling_strategy="sequential", logging_steps=1, save_strategy="no",
        report_to="none", use_cpu=True, seed=1, disable_tqdm=True, remove_unused_columns=False, **settings,
    )
    lora = LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=LORA["target_modules"], task_type="CAUSAL_LM")
    tokenizer.pad_token = tokenizer.eos_token
    trainer = trainer_class(
        model=model, args=arguments, train_dataset=datasets.Dataset.from_list(records), processing_class=tokenizer,
        peft_config=lora if adapter else None,
    )
    require_same_tokens(case, trainer, records, tokenizer)
    if adapter:
        start_from(trainer.model, adapter)
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def prepared_by_trl(records: list[dict], tokenizer, is_judged: bool) -> list[dict]:
    """prompt_ids, and completion_ids, or chosen_ids and rejected_ids"""
    trainer = SimpleNamespace(_tokenizer=tokenizer, calculate_KL=False, desirable_weight=1.0, undesirable_weight=1.0)
    arguments = SimpleNamespace(dataset_num_proc=None, max_length=None, truncation_mode="keep_start")
    kind = KTOTrainer if is_judged else DPOTrainer
    return list(kind._prepare_dataset(trainer, datasets.Dataset.from_list(records), tokenizer, arguments, "train"))


def require_same_tokens(case: Case, trainer, records: list[dict], tokenizer) -> None:
    """CPOTrainer and ORPOTrainer have a tokenization of their own."""
    if not hasattr(trainer, "tokenize_row"):
        return
    expected = [row["prompt_ids"] + row[f"{key}_ids"] for row in prepared_by_trl(records, tokenizer, False) for key in ("chosen", "rejected")]
    rows = list(trainer.train_dataset)
    assert expected == [row[f"{key}_input_ids"] for row in rows for key in ("chosen", "rejected")], f"{case.name}: other tokens than DPOTrainer's"
    labels = [sum(label != -100 for label in row["chosen_labels"]) for row in rows]
    assert labels == [len(row["chosen_ids"]) for row in prepared_by_trl(records, tokenizer, False)], f"{case.name}: other labels than DPOTrainer's"


# ---- Training


def names_of(lines: list[dict]) -> list[str]:
    known = ("rewards/", "logps/", "nll_loss", "log_odds", "kl")
    return sorted({name for line in lines for name in line if name.startswith(known) and not name.startswith("eval")})


def worst_of(ours: list[dict], theirs: list[dict], name: str) -> float:
    """Largest difference over the steps in which `theirs` has a value."""
    pairs = [(a.get(name), b[name]) for a, b in zip(ours, theirs) if b.get(name) is not None]
    return max(abs(a - b) / max(1, abs(b)) if a is not None else math.inf for a, b in pairs)


def compare(verdicts: Verdicts, name: str, ours: list[dict], theirs: list[dict], limits: tuple[float, float, float], skipped: tuple = ()) -> None:
    loss, grad_norm, metric = limits
    verdicts.expect(f"{name}: steps", len(ours) == len(theirs), f"{len(ours)}, {len(theirs)}")
    metrics = [one for one in names_of(theirs) if one not in skipped]
    for key, limit in {"loss": loss, "grad_norm": grad_norm}.items():
        verdicts.below(f"{name}: {key}", worst_of(ours, theirs, key), limit)
    worst = {one: worst_of(ours, theirs, one) for one in metrics}
    furthest = max(worst, key=worst.get)
    verdicts.below(f"{name}: {len(metrics)} metrics, {furthest}", worst[furthest], metric)


def expected_first(case: Case, records: list[dict]) -> float | None:
    if not case.is_judged:
        return case.first
    s = {**formulas.DEFAULTS, **case.settings}
    weights = [s["desirable_weight" if record["label"] else "undesirable_weight"] for record in records[: case.batch]]
    return 0.5 * sum(weights) / len(weights)


def check_case(bench: Bench, case: Case, number: int) -> None:
    verdicts = bench.verdicts
    rng = random.Random(7 if case.is_judged else 5)  # with 7 the z of KTO is above 0 in the first steps
    chats = case.has_reference and number % 3 == 2  # CPOTrainer and ORPOTrainer put BOS and EOS around rendered conversations
    records = preference_records(case, rng, STEPS * case.batch, chats)
    config = write_run(bench.scratch / "run.yaml", bench.model, write_jsonl(bench.scratch / "run.jsonl", records), case)
    shares = [share for share in SHARES if case.batch % (share[0] * share[1]) == 0]
    if bench.quick:
        shares = [shares[number % len(shares)]]
    runs = {share: bench.train_shared(config, case, share) for share in shares}
    first = next(iter(runs.values()))
    if case.in_trl:
        base = AutoModelForCausalLM.from_pretrained(bench.model, dtype=torch.float32)
        theirs = train_with_trl(case, records, base, AutoTokenizer.from_pretrained(bench.model), bench.initial, bench.scratch)
        skipped = ("nll_loss",) if theirs[0].get("nll_loss") == 0 else ()  # TRL does not compute it where cpo_alpha is 0
        compare(verdicts, f"{case.name}: TRL", first, theirs, (LOSS, GRAD_NORM, METRIC), skipped)
        if case.is_judged:
            verdicts.expect(f"{case.name}: z is above 0 in some step", max(line["kl"] for line in theirs) > 0.01)
    losses = [line["loss"] for line in first]
    verdicts.expect(f"{case.name}: training moves the loss", max(losses) - min(losses) > 1000 * LOSS, f"{max(losses) - min(losses):.1e}")
    if (known := expected_first(case, records)) is not None:
        verdicts.below(f"{case.name}: first loss is {known:.4f}", abs(first[0]["loss"] - known) / max(1, known), SAME)
    for (processes, accumulation), run in list(runs.items())[1:]:
        compare(verdicts, f"{case.name}: {processes} x {accumulation}", run, first, (case.same, GRAD_NORM, METRIC))


def packed_length(bench: Bench, case: Case, config: Path, count: int, tokens: int) -> int:
    """A length at which all records are in `PACKED_BINS` bins, so that packed and not packed a step has the same records."""
    for length in range(tokens // PACKED_BINS, PACKED_LENGTH, 2):
        overrides = {"train__max_steps": 1, "data__packing": True, "model__max_seq_len": length}
        (line,) = bench.train(config, train__batch_size=PACKED_BINS, **overrides)
        # One bin less does not hold them.
        if line["examples"] == count and bench.train(config, train__batch_size=PACKED_BINS - 1, **overrides)[0]["examples"] < count:
            return length
    raise RuntimeError(f"{case.name}: no length gives {PACKED_BINS} bins")


def check_packing(bench: Bench, case: Case, number: int) -> None:
    """Every step has all records."""
    count = 3 * PACKED_BINS
    records = preference_records(case, random.Random(8), count, False)
    config = write_run(bench.scratch / "packed.yaml", bench.model, write_jsonl(bench.scratch / "packed.jsonl", records), case)
    whole = bench.train(config, train__batch_size=count)
    if case.is_judged not in bench.packed_lengths:
        bench.packed_lengths[case.is_judged] = packed_length(bench, case, config, count, whole[0]["tokens"])
    packed = replace(case, batch=PACKED_BINS)
    shares = [SHARES[number // 4 % 4]] if bench.quick else SHARES
    for share in shares:
        run = bench.train_shared(config, packed, share, data__packing=True, model__max_seq_len=bench.packed_lengths[case.is_judged])
        compare(bench.verdicts, f"{case.name}: packed, {share[0]} x {share[1]}", run, whole, (case.same, GRAD_NORM, METRIC))


def guarded(bench: Bench, name: str, check) -> None:
    """A run that is refused fails its case, and no other."""
    try:
        check()
    except (RuntimeError, AssertionError) as error:
        bench.verdicts.expect(name, False, str(error))


def check_training(bench: Bench) -> None:
    for number, case in enumerate(all_cases()):  # a number of its own, whichever others run
        if case not in bench.cases:
            continue
        guarded(bench, case.name, lambda: check_case(bench, case, number))
        if not bench.quick or number % 4 == 0:
            guarded(bench, f"{case.name}: packed", lambda: check_packing(bench, case, number))


# ---- Formulas


def random_model(directory: Path, rng: random.Random) -> Path:
    tokenizer = make_tokenizer(adds_bos=rng.random() < 0.5)
    heads, kv_groups, head_dim = rng.choice([2, 4, 6]), rng.choice([1, 2]), rng.choice([8, 12, 16])
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=heads * head_dim, intermediate_size=rng.randrange(24, 90, 2), num_hidden_layers=rng.randint(1, 3),
        num_attention_heads=heads, num_key_value_heads=heads // kv_groups, max_position_embeddings=256, initializer_range=rng.uniform(0.1, 0.25),
        bos_token_id=0, eos_token_id=1, tie_word_embeddings=rng.random() < 0.5,
    )
    torch.manual_seed(rng.randrange(1 << 30))
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def random_adapter(directory: Path, model: Path, rng: random.Random) -> Path:
    """B is not 0, as in an adapter that was trained."""
    torch.manual_seed(rng.randrange(1 << 30))
    lora = LoraConfig(r=LORA["r"], lora_alpha=LORA["alpha"], target_modules=LORA["target_modules"], task_type="CAUSAL_LM")
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), lora)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(directory)
    return directory


def load_in_fp64(model: Path, adapter: Path | None, trainable: bool = False) -> torch.nn.Module:
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(base, adapter, is_trainable=trainable) if adapter else base
    return adapted.double().eval()


def log_probabilities(model: torch.nn.Module, prompt: list[int], answer: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """log p of the prompt's tokens but the first, and of the answer's tokens. Nothing predicts the first token."""
    tokens = torch.tensor(prompt + answer)
    rows = torch.log_softmax(model(tokens[None]).logits[0, :-1], -1).gather(1, tokens[1:, None])[:, 0]
    split = max(0, len(prompt) - 1)
    return rows[:split], rows[split:]


def mismatched(rows: list[dict]) -> list[dict]:
    return [{"prompt_ids": row["prompt_ids"], "completion_ids": rows[(i + 1) % len(rows)]["completion_ids"]} for i, row in enumerate(rows)]


Model = tuple[Path, Path | None]  # and an adapter


def documents_of(model: torch.nn.Module, rows: list[dict]) -> tuple[list, list]:
    """Log-probabilities of prompts and of answers, one of each for a document."""
    keys = [key for key in ("completion_ids", "chosen_ids", "rejected_ids") if key in rows[0]]
    both = [log_probabilities(model, row["prompt_ids"], row[key]) for row in rows for key in keys]
    return [prompt for prompt, _ in both], [answer for _, answer in both]


def value_by_formula(case: Case, records: list[dict], tokenizer, policy: torch.nn.Module, reference: torch.nn.Module) -> tuple:
    """@return the value, and log p of the answers' tokens by the policy"""
    rows = prepared_by_trl(records, tokenizer, case.is_judged)
    prompts, answers = documents_of(policy, rows)
    if case.objective == "orpo":
        return formulas.orpo(case.settings, answers, prompts[0::2]), answers
    if not case.has_reference:
        return formulas.cpo(case.settings, answers), answers
    with torch.no_grad():
        of_reference = documents_of(reference, rows)[1]
    if not case.is_judged:
        return formulas.dpo(case.settings, answers, of_reference), answers
    with torch.no_grad():
        others = [formulas.sums_of(documents_of(model, mismatched(rows))[1]) for model in (policy, reference)]
    desirable = [record["label"] for record in records]
    return formulas.kto(case.settings, answers, of_reference, desirable, formulas.kl_of(others[0] - others[1])), answers


def step_by_formula(case: Case, records: list[dict], trained: Model, reference: Model) -> dict:
    """The first line of metrics.jsonl, and `slope`: by how much more the loss changes than log p of each document."""
    policy = load_in_fp64(*trained, trainable=True)
    value, answers = value_by_formula(case, records, AutoTokenizer.from_pretrained(trained[0]), policy, load_in_fp64(*reference))
    slopes = torch.autograd.grad(value.loss, answers, retain_graph=True, allow_unused=True)  # sft does not read rejected answers
    value.loss.backward()
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.requires_grad]
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    return {
        "loss": value.loss.item(), "grad_norm": norm, "slope": sum(slope.abs().max().item() for slope in slopes if slope is not None),
        **{name: float(total / divisor) for name, (total, divisor) in value.metrics.items()},
    }


def formula_limits(expected: dict) -> tuple[float, float, float]:
    """Policy and reference are rounded."""
    return max(FORMULA, 2 * LOG_P * expected["slope"]), GRAD_NORM, METRIC


def formula_cases(bench: Bench) -> list[Case]:
    """In --quick: an example of each objective, and some losses."""
    if not bench.quick:
        return bench.cases
    shuffled = random.Random(bench.seed).sample(bench.cases, len(bench.cases))
    of_objectives = {case.objective: case for case in shuffled}
    return list({case.name: case for case in [*of_objectives.values(), *shuffled[:8]]}.values())


def check_formula(bench: Bench) -> None:
    rng = random.Random(bench.seed)
    model = random_model(bench.scratch / "random-model", rng)
    adapter = random_adapter(bench.scratch / "random-adapter", model, rng)
    tuning = {"lora": {**LORA, "init_from": str(adapter)}}

    def check(case: Case, share: tuple[int, int]) -> None:
        batch = replace(case, batch=2 * BATCH)
        for _ in range(MAX_TRIES):
            records = preference_records(case, rng, batch.batch, chats=False)
            expected = step_by_formula(batch, records, (model, adapter), (model, None))
            if expected.get("kl", 1) > 0:
                break  # KTO: z is not cut off at 0
        train = {"max_steps": 1, **({"reference": "base"} if case.has_reference else {})}
        data = write_jsonl(bench.scratch / "formula.jsonl", records)
        config = write_run(bench.scratch / "formula.yaml", model, data, batch, train=train, tuning=tuning)
        ours = bench.train_shared(config, batch, share)
        compare(bench.verdicts, f"formula, {case.name}, {share[0]} x {share[1]}", ours, [expected], formula_limits(expected))

    for number, case in enumerate(formula_cases(bench)):
        guarded(bench, f"formula, {case.name}", lambda: check(case, SHARES[number % 4]))


# ---- References


def check_reference(bench: Bench) -> None:
    rng = random.Random(3)
    case = dpo_case("sigmoid")
    records = preference_records(case, rng, STEPS * case.batch, chats=False)
    data = write_jsonl(bench.scratch / "reference.jsonl", records)
    adapters = [random_adapter(bench.scratch / f"adapter-{i}", bench.model, rng) for i in range(2)]
    other = make_other_model(bench)
    tokenizer = AutoTokenizer.from_pretrained(bench.model)

    def run(name: str, train: dict, tuning: dict, **sections) -> list[dict]:
        return bench.train(write_run(bench.scratch / f"reference-{name}.yaml", bench.model, data, case, train=train, tuning=tuning, **sections))

    from_adapter = {"lora": {**LORA, "init_from": str(adapters[0])}}

    def start() -> None:
        base = AutoModelForCausalLM.from_pretrained(bench.model, dtype=torch.float32)
        theirs = train_with_trl(case, records, PeftModel.from_pretrained(base, adapters[0], is_trainable=True), tokenizer, None, bench.scratch)
        for train in ({}, {"reference": "start"}):
            ours = run("start", train, from_adapter)
            compare(bench.verdicts, f"reference {train.get('reference', 'by default')}, init_from", ours, theirs, (LOSS, GRAD_NORM, METRIC))
            bench.verdicts.below("its first loss is ln 2", abs(ours[0]["loss"] - math.log(2)), SAME)

    def full() -> None:
        base = AutoModelForCausalLM.from_pretrained(bench.model, dtype=torch.float32)
        slow = replace(case, learning_rate=FULL_LEARNING_RATE)
        theirs = train_with_trl(slow, records, base, tokenizer, None, bench.scratch)
        ours = run("full", {"learning_rate": FULL_LEARNING_RATE}, {"mode": "full"})
        compare(bench.verdicts, "full training", ours, theirs, (LOSS, GRAD_NORM, METRIC))

    def by_formula() -> None:
        for name, reference, model, adapter in (
            ("base", "base", bench.model, None), ("an adapter", adapters[1], bench.model, adapters[1]), ("a model", other, other, None),
        ):
            def check() -> None:
                expected = step_by_formula(case, records[: case.batch], (bench.model, adapters[0]), (model, adapter))
                ours = run("path", {"reference": str(reference), "max_steps": 1}, from_adapter)
                compare(bench.verdicts, f"reference: {name}", ours, [expected], formula_limits(expected))

            guarded(bench, f"reference: {name}", check)

    def precomputed() -> None:
        online = run("online", {"reference": "base"}, from_adapter)
        cache = {"cache_dir": str(bench.scratch / "cache")}
        for times in ("written", "read"):
            ours = run("precomputed", {"reference": "base", "reference_logps": "precomputed"}, from_adapter, data=cache)
            compare(bench.verdicts, f"reference_logps: precomputed, {times}", ours, online, (SAME, GRAD_NORM, METRIC))

    for name, check in {"start": start, "full": full, "formula": by_formula, "precomputed": precomputed}.items():
        guarded(bench, f"reference, {name}", check)


def make_other_model(bench: Bench) -> Path:
    """Other weights with the same tokenizer."""
    directory = bench.scratch / "other-model"
    config = LlamaConfig.from_pretrained(bench.model)
    torch.manual_seed(23)
    LlamaForCausalLM(config).save_pretrained(directory)
    AutoTokenizer.from_pretrained(bench.model).save_pretrained(directory)
    return directory


PARTS = {"training": check_training, "formula": check_formula, "reference": check_reference}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--cases", nargs="+", help="parts of names of cases")
    any_seed = random.SystemRandom().randrange(1 << 30)
    parser.add_argument("--seed", type=int, default=any_seed, help="of the random shape; by default another each time")
    parser.add_argument("--quick", action="store_true", help="a part of each, as in `make test`: see above")
    args = parser.parse_args()
    if args.quick:
        global STEPS
        STEPS = QUICK_STEPS
    torch.set_num_threads(1)  # the models are tiny: a second thread waits, and takes a processor for it
    datasets.disable_progress_bars()
    datasets.disable_caching()
    logging.getLogger("trl").setLevel(logging.ERROR)
    verdicts = Verdicts()
    print(f"--seed {args.seed}")
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Sftrun(args.sftrun), Path(temporary), verdicts, args.quick, args.seed, args.cases)
        for part in args.only:
            PARTS[part](bench)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
