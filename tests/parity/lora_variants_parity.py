"""LoRA's variants beside peft, on tiny models of several families with odd widths, in fp32 on the CPU.

    python tests/parity/lora_variants_parity.py --sftrun build/bin/sftrun [--only patterns dora …] [--quick]

Of every variant, from one adapter that PEFT made (PiSSA: from none):
PEFT to us   `sftrun score` and `sftrun merge` of PEFT's adapter: log-probabilities and logits of PEFT's model
training     5 steps (12 of embeddings and heads): losses to 1e-5 relative, gradient norms to 1e-4, with both backends where both have their own code
processes    of some, two processes against one
us to PEFT   the names and values of the tensors that were written, and their logits, loaded by PEFT
merge        of what was written: loaded by transformers, the same logits

--quick takes most variants, each on its first family, with 3 steps. One variant has both backends. PEFT's adapter of a variant is merged, or ours
where none of PEFT's is; of PiSSA ours and PEFT's trained one. Dropout is compared over dense bases only. That NEFTune, LoRA+ and dropout change the
losses is seen without --quick.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path

from families_parity import (  # noqa: I001  (sets sys.path)
    IN_FP32,
    ON_CPU,
    SCORED_LENGTHS,
    TRAINED_LENGTHS,
    Case,
    Measured,
    clear_probe,
    five_steps,
    log_probability,
    logprob,
    make_case,
    scored_document,
    texts,
)

import numpy as np
import torch
import yaml
from families import load
from harness import Sftrun, compare_metrics, load_adapter, relative_to_largest
from peft import LoraConfig, PeftModel, get_peft_model
from peft.optimizers import create_loraplus_optimizer
from reference_training import Recipe, encode_record, logits_of, train
from safetensors.torch import load_file
from transformers import AutoConfig

LOSS, GRAD_NORM, LOGITS, SCORE = 1e-5, 1e-4, 1e-4, 1e-5
TENSORS = 2e-3  # Adam divides by the gradient's own size: where that is near zero, rounding moves a weight visibly
RANK, ALPHA, SEED = 5, 9, 42
RECIPE: Recipe = five_steps(5e-3)
QUICK_STEPS = 3  # one more than the first checkpoint has
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ENDS = ["embed_tokens", "lm_head"]
BATCHES = {"data__packing": False, "train__batch_size": 2, "train__grad_accum": 3}


@dataclass(frozen=True)
class Variant:
    name: str
    kinds: list[str]
    lora: dict = field(default_factory=dict)  # of tuning.lora
    peft: dict = field(default_factory=dict)  # of LoraConfig
    train: dict = field(default_factory=dict)
    backends: list[str] = field(default_factory=lambda: ["fused"])
    quant: str | None = None
    ends: list[str] = field(default_factory=list)  # targets beside the linear layers
    quant_embeddings: bool = False
    steps: int | None = None
    quick: bool = True  # of `make test`; False: another variant has what is new in it beside more

    @property
    def recipe(self) -> Recipe:
        return replace(RECIPE, max_steps=self.steps or (12 if self.ends else RECIPE.max_steps))

    @property
    def is_pissa(self) -> bool:
        return self.lora.get("init") == "pissa"


def same(**keys) -> dict:
    """What both sides call the same."""
    return {"lora": keys, "peft": keys}


BOTH = ["fused", "bnb"]
RANKS = {"self_attn.o_proj": 3, "layers.1.mlp.(down|up)_proj": 7, "^model.layers.0.self_attn.q_proj": 2}
ALPHAS = {"v_proj": 3.5, "down_proj": 12}
DORA = {"lora": {"dora": True}, "peft": {"use_dora": True}}


def joined(first: dict, second: dict) -> dict:
    return {side: {**first.get(side, {}), **second.get(side, {})} for side in ("lora", "peft")}


VARIANTS = [
    Variant("patterns", ["llama", "gemma3"], **same(rank_pattern=RANKS, alpha_pattern=ALPHAS), quick=False),
    Variant("patterns, rank-stabilised", ["qwen2"],
            lora={"rank_pattern": RANKS, "alpha_pattern": ALPHAS, "rslora": True},
            peft={"rank_pattern": RANKS, "alpha_pattern": ALPHAS, "use_rslora": True}, quick=False),
    Variant("modules_to_save", ["llama"], **same(modules_to_save=["lm_head", "embed_tokens", "norm"]), quick=False),
    Variant("modules_to_save: a tied head", ["qwen2"], **same(modules_to_save=["lm_head"]), quick=False),
    Variant("modules_to_save: a tied embedding", ["gemma3"], **same(modules_to_save=["embed_tokens"]), quick=False),
    Variant("modules_to_save: both of a tie", ["granite"], **same(modules_to_save=["lm_head", "embed_tokens"]), backends=BOTH),
    Variant("modules_to_save: linear layers", ["llama"], **same(modules_to_save=["layers.0.mlp", "v_proj"])),
    Variant("dora", ["llama", "gemma3"], **DORA, backends=BOTH, quick=False),
    Variant("dora with the rest", ["qwen2"], backends=BOTH,
            **joined(DORA, joined(same(rank_pattern=RANKS, alpha_pattern=ALPHAS, modules_to_save=["lm_head"]),
                                  {"lora": {"rslora": True}, "peft": {"use_rslora": True}}))),
    Variant("dora over nf4", ["llama"], **DORA, backends=BOTH, quant="nf4"),
    Variant("neftune", ["llama", "granite", "gemma3"], train={"neftune_noise_alpha": 6.5}),
    Variant("loraplus", ["qwen2"], train={"loraplus_lr_ratio": 4}, quick=False),
    Variant("loraplus with dora, norms and a whole head", ["llama"], **joined(DORA, same(modules_to_save=["norm", "lm_head"])),
            train={"loraplus_lr_ratio": 3.5, "weight_decay": 0.0}),  # peft lets RMSNorms decay here, against the Trainer's rule
    Variant("embedding and head", ["llama", "gemma3", "granite"], ends=ENDS, backends=BOTH,
            lora={"target_modules": ["all-linear", *ENDS]}, quick=False),
    Variant("embedding and head: patterns, rank-stabilised", ["qwen2"], ends=ENDS,
            lora={"rank_pattern": {"embed_tokens": 3, "lm_head": 7}, "alpha_pattern": {"lm_head": 4}, "rslora": True},
            peft={"rank_pattern": {"embed_tokens": 3, "lm_head": 7}, "alpha_pattern": {"lm_head": 4}, "use_rslora": True}),
    Variant("embedding alone, tied", ["gemma3"], ends=["embed_tokens"], quick=False),
    Variant("head alone, tied", ["qwen2"], ends=["lm_head"], quick=False),
    Variant("embedding beside a whole head", ["llama", "qwen2"], ends=["embed_tokens"], **same(modules_to_save=["lm_head"]), quick=False),
    Variant("head beside a whole embedding, tied", ["qwen2"], ends=["lm_head"], **same(modules_to_save=["embed_tokens"])),
    Variant("embedding and head of a text part", ["gemma3_images"], ends=ENDS),
    # Later the reference parts from itself, documents padded against one by one: 2e-4 of the gradient norm in the sixth of 12 steps.
    Variant("embedding and head, channels of every layer", ["gemma4"], ends=ENDS, steps=2),
    Variant("embedding and head, dora", ["llama", "gemma3"], ends=ENDS, **DORA, backends=BOTH),
    Variant("embedding and head over nf4", ["llama", "qwen2"], ends=ENDS, backends=BOTH, quant="nf4", quant_embeddings=True),
    Variant("embedding and head, neftune", ["granite"], ends=ENDS, train={"neftune_noise_alpha": 6.5}),
    Variant("embedding and head, loraplus", ["qwen2"], ends=ENDS, train={"loraplus_lr_ratio": 4}),
    Variant("head, pissa", ["llama"], ends=["lm_head"], lora={"init": "pissa"}, peft={"init_lora_weights": "pissa"}),
    Variant("pissa", ["llama", "gemma3"], lora={"init": "pissa"}, peft={"init_lora_weights": "pissa"}, backends=BOTH),
    Variant("pissa with dora", ["qwen2"], **joined(DORA, {"lora": {"init": "pissa"}, "peft": {"init_lora_weights": "pissa"}})),
]


WITH_BOTH_BACKENDS = "dora with the rest"  # with --quick
WITH_TWO_PROCESSES = ["dora", "dora with the rest", "neftune", "pissa", "modules_to_save: both of a tie", "embedding and head",
                      "embedding and head, dora"]
WITH_RESUMING = ["embedding and head", "embedding and head, dora"]


# ---- The reference's side


def base_for(case: Case, variant: Variant):
    if variant.quant is None:
        return load(case.base)
    from quantised import Storage, quantised_base, quantise_embeddings

    model = quantised_base(case.base, Storage(variant.quant, True, 64))
    if variant.quant_embeddings:
        quantise_embeddings(model, Storage(variant.quant, True, 64))
    return model


def targets_of(model, variant: Variant) -> list[str] | str:
    names = LINEAR + variant.ends
    if not hasattr(model.config, "text_config"):
        return names
    return rf"model\.language_model\.(?:.*\.)?(?:{'|'.join(names)})" + (r"|lm_head" if "lm_head" in names else "")


@torch.no_grad()
def adapted(case: Case, variant: Variant):
    """PEFT's model, moved off the values that an untrained one has."""
    torch.manual_seed(17)
    base = load(case.base)
    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=targets_of(base, variant), task_type="CAUSAL_LM", **variant.peft)
    model = get_peft_model(base, config)
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad or variant.is_pissa:
            continue
        if "lora_B" in name:  # zeros would hide the gradient of lora_A
            parameter.normal_(std=0.1)
        elif "lora_embedding_A" in name:  # likewise, of B
            parameter.normal_(std=0.02)
        elif "lora_magnitude_vector" in name or "modules_to_save" in name:
            parameter.mul_(1 + 0.1 * torch.randn_like(parameter))
    return model


def philox(counter: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of counters [n, 4] -> [n, 4] uint32."""
    c = [counter[:, i].astype(np.uint64) for i in range(4)]
    k0, k1 = key
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        c = [(p1 >> shift) ^ c[1] ^ np.uint64(k0), p1 & low, (p0 >> shift) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return np.stack(c, axis=1).astype(np.uint32)


class Noise:
    """transformers' neftune_post_forward_hook with numbers that both sides can make. Documents pass in order, a whole step after the
    other; each is one forward pass."""

    def __init__(self, alpha: float):
        self.alpha, self.passes = alpha, 0
        self.values: list[torch.Tensor] = []

    def __call__(self, module, _input, output):
        if not module.training:
            return output
        step, document = divmod(self.passes, RECIPE.global_batch_size)
        self.passes += 1
        length, channels = output.shape[1:]
        blocks = -(-channels // 4)
        counter = np.array([(block, position, document, 0xFFFFFFFF) for position in range(length) for block in range(blocks)])
        words = philox(counter, (SEED ^ step, 0)).reshape(length, blocks * 4)[:, :channels]
        unit = torch.from_numpy((words >> 8).astype(np.float32)) * 2.0**-23 - 1
        self.values.append(unit.flatten())
        return output + unit * (self.alpha / (length * channels) ** 0.5)


def optimizer_of(model, variant: Variant):
    ratio = variant.train.get("loraplus_lr_ratio")
    if ratio is None:
        return None
    return create_loraplus_optimizer(model, torch.optim.AdamW, lr=RECIPE.learning_rate, loraplus_lr_ratio=ratio,
                                     loraplus_weight_decay=variant.train.get("weight_decay", RECIPE.weight_decay), betas=RECIPE.betas, eps=RECIPE.epsilon)


def train_reference(case: Case, variant: Variant, adapter: Path):
    """@return metrics, and the trained model. With NEFTune it trains in fp64: for Gemma 3 the logits of transformers' fp32 differ from those by
    1.6e-4 after 5 steps, ours by 3e-5 (2026-11-29)."""
    model = adapted(case, variant) if variant.is_pissa else PeftModel.from_pretrained(base_for(case, variant), adapter, is_trainable=True)
    if "neftune_noise_alpha" in variant.train:
        model = model.double()
    eos = case.tokenizer.token_to_id("<|eos|>")
    documents = [encode_record(record, case.tokenizer, eos) for record in texts(TRAINED_LENGTHS, seed=2)]
    if alpha := variant.train.get("neftune_noise_alpha"):
        noise = Noise(alpha)
        model.get_input_embeddings().register_forward_hook(noise)
    metrics = train(model, documents, variant.recipe, optimizer=optimizer_of(model, variant))
    if alpha:
        values = torch.cat(noise.values)
        case.expect("noise is uniform", abs(values.mean()) < 0.02 and abs(values.var() - 1 / 3) < 0.01 and values.abs().max() > 0.999,
                    f"mean {values.mean():.4f}, variance {values.var():.4f}")
    return metrics, model


# ---- PEFT's adapters here


def check_read(case: Case, variant: Variant, model, adapter: Path) -> None:
    """@param model what `adapter` is on its base, in PEFT"""
    records = texts(SCORED_LENGTHS, seed=1)
    arguments = ["--model", str(case.base), "--adapter", str(adapter)]
    scores = case.sftrun.jsonl("score", records, case.directory, *arguments, *ON_CPU, *IN_FP32)
    expected = [log_probability(model, scored_document(record["text"], case.tokenizer)) for record in records]
    worst = max(abs(logprob(s) - e) / max(abs(e), 1.0) for s, e in zip(scores, expected))
    case.below("PEFT's adapter: score", worst, SCORE)
    check_merge(case, "PEFT's adapter", model, adapter)


def check_merge(case: Case, what: str, model, adapter: Path) -> None:
    merged = case.directory / "merged"
    case.sftrun.run("merge", "--model", str(case.base), "--adapter", str(adapter), "--output", str(merged), "--dtype", "f32")
    ids = clear_probe(case, model)
    loaded = load(merged)
    case.below(f"{what}: logits merged", relative_to_largest(logits_of(loaded, ids), logits_of(model, ids)), LOGITS)
    config = model.peft_config["default"]
    parted = any(end in name for end in ENDS for name in [*(config.modules_to_save or []), *([config.target_modules] if isinstance(config.target_modules, str) else config.target_modules)])
    tied = loaded.config.tie_word_embeddings
    case.expect(f"{what}: a tie stays unless it parts", tied == (AutoConfig.from_pretrained(case.base).tie_word_embeddings and not parted), str(tied))
    shutil.rmtree(merged)


# ---- Training


def write_run_yaml(case: Case, variant: Variant, adapter: Path | None) -> Path:
    lora = {"r": RANK, "alpha": ALPHA, "target_modules": LINEAR + variant.ends, **variant.lora}
    if adapter:
        lora["init_from"] = str(adapter)
    tuning = {"mode": "qlora" if variant.quant else "lora", "lora": lora}
    if variant.quant:
        tuning["quant"] = variant.quant
        tuning["quant_embeddings"] = variant.quant_embeddings
    records = case.directory / "records.jsonl"
    records.write_text("".join(json.dumps(record) + "\n" for record in texts(TRAINED_LENGTHS, seed=2)))
    recipe = {key: getattr(variant.recipe, key) for key in ("max_steps", "learning_rate", "scheduler", "warmup_steps", "weight_decay", "max_grad_norm")}
    config = {
        "model": {"name": str(case.base), "max_seq_len": 128, "dtype": "fp32"},
        "tuning": tuning,
        "data": {"train": str(records), "format": "text", "shuffle": False},
        "train": {**recipe, "eval_strategy": "no", "save_every": "0", "seed": SEED, **variant.train},
        "output": {"tensorboard": False},
    }
    path = case.directory / "run.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return path


def reads_theirs(case: Case, variant: Variant) -> bool:
    """Whether PEFT's adapter is scored and merged before training. With --quick not of PiSSA, whose trained adapter is."""
    return not variant.train and not variant.quant and not (case.quick and variant.is_pissa)


def check_written(case: Case, what: str, variant: Variant, model, run: Path) -> None:
    """The adapter of a run, in PEFT, and merged: that hangs on the file alone, and is not asked of every backend's. With --quick not if PEFT's
    was merged: names and tensors are the same."""
    ids = clear_probe(case, model)
    loaded = load_adapter(base_for(case, variant), run / "adapter")
    case.below(f"{what}: logits in PEFT", relative_to_largest(logits_of(loaded, ids), logits_of(model, ids)), LOGITS)
    if not variant.quant and what == variant.backends[0] and not (case.quick and reads_theirs(case, variant)):
        check_merge(case, what, model, run / "adapter")
    if variant.is_pissa:
        return  # of another rank than PEFT's own
    model.save_pretrained(case.directory / "theirs", save_embedding_layers=False)
    ours, theirs = (load_file(path / "adapter_model.safetensors") for path in (run / "adapter", case.directory / "theirs"))
    case.expect(f"{what}: names of tensors", set(ours) == set(theirs), f"{len(ours)}")
    case.below(f"{what}: tensors", max(relative_to_largest(ours[key], theirs[key]) for key in set(ours) & set(theirs)), TENSORS)


def check_resume(case: Case, config: Path, whole: Path) -> None:
    """A copy of a run as a crash a step after its first checkpoint (of those that are left) leaves it."""
    crashed = case.directory / "crashed"
    shutil.copytree(whole, crashed)
    shutil.rmtree(crashed / "adapter")
    first = min((crashed / "checkpoints").glob("step-*"))
    for checkpoint in (crashed / "checkpoints").iterdir():
        if checkpoint != first:
            shutil.rmtree(checkpoint) if checkpoint.is_dir() else checkpoint.unlink()
    steps = int(first.name.removeprefix("step-")) + 1
    lines = (crashed / "metrics.jsonl").read_text().splitlines()
    (crashed / "metrics.jsonl").write_text("\n".join(lines[:steps]) + "\n")
    case.sftrun.train(config, crashed, **BATCHES, train__save_steps=2)
    adapters = [(run / "adapter" / "adapter_model.safetensors").read_bytes() for run in (whole, crashed)]
    case.expect("resumed: adapter, byte for byte", adapters[0] == adapters[1])


def check_variant(case: Case, variant: Variant) -> None:
    adapter = case.directory / "peft"
    made = adapted(case, variant)
    # By default PEFT saves the base's embedding and head beside updates of theirs; it would put them over those in 4 bits.
    made.save_pretrained(adapter, save_embedding_layers="auto" if variant.ends and not variant.quant else False)
    if reads_theirs(case, variant):
        check_read(case, variant, made.eval(), adapter)
    config = write_run_yaml(case, variant, None if variant.is_pissa else adapter)
    expected, model = train_reference(case, variant, adapter)
    model.eval()
    plain = dict(variant.train)
    for backend in variant.backends:
        run = case.directory / backend
        metrics = case.sftrun.train(config, run, **BATCHES, tuning__backend=backend, train__save_steps=2)
        compare_metrics(case.verdicts, f"{case.name}, {backend}", metrics, expected, LOSS, GRAD_NORM)
        check_written(case, backend, variant, model, run)
    if variant.name in WITH_TWO_PROCESSES and case.name.endswith(variant.kinds[0]):
        share = {**BATCHES, "train__batch_size": 1}
        two = case.sftrun.train(config, case.directory / "two", 2, **share)
        compare_metrics(case.verdicts, f"{case.name}, two processes", two, metrics, LOSS, GRAD_NORM)
    if variant.is_pissa or variant.name in WITH_RESUMING:
        check_resume(case, config, case.directory / "fused")
    if variant.is_pissa:
        trained = case.directory / "trained"
        model.save_pretrained(trained, save_embedding_layers=False)
        check_read(case, variant, model, trained)
    if plain and not case.quick:
        without = case.sftrun.train(config, case.directory / "without", **BATCHES, **{f"train__{key}": "null" for key in plain})
        acts = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(without, expected))
        case.expect("acts", acts > 100 * LOSS, f"{acts:.1e}")


def check_dropout(sftrun: Sftrun, verdicts: Measured, scratch: Path, quick: bool) -> None:
    """peft's masks are not ours: the fused backend against the plain one, which has peft's formula line by line, under autograd."""
    for quant in (None,) if quick else (None, "nf4"):
        variant = Variant("dora", ["llama"], **DORA, quant=quant, ends=ENDS, steps=QUICK_STEPS if quick else None)
        case = make_case("llama", sftrun, verdicts, scratch / f"dropout-{quant}")
        case = Case(f"dora with dropout, {quant or 'dense'}", *list(vars(case).values())[1:])
        adapter = case.directory / "peft"
        adapted(case, variant).save_pretrained(adapter)
        config = write_run_yaml(case, variant, adapter)
        settings = {**BATCHES, "tuning__lora__dropout": 0.3}
        runs = [sftrun.train(config, case.directory / name, **settings, tuning__backend=name) for name in BOTH]
        compare_metrics(verdicts, case.name, *runs, LOSS, GRAD_NORM)
        if not quick:
            without = sftrun.train(config, case.directory / "without", **BATCHES)
            acts = max(abs(a["loss"] / b["loss"] - 1) for a, b in zip(runs[0], without))
            case.expect("dropout acts", acts > 100 * LOSS, f"{acts:.1e}")
        checkpointed = sftrun.train(config, case.directory / "checkpointed", **settings, train__gradient_checkpointing=True)
        compare_metrics(verdicts, f"{case.name}, checkpointed", checkpointed, runs[0], LOSS, GRAD_NORM)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", default=[], help="variants whose names hold one of these words")
    parser.add_argument("--quick", action="store_true", help="most variants, and less of each, as in `make test`: see above")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    verdicts, sftrun = Measured(), Sftrun(arguments.sftrun)

    def wanted(name: str) -> bool:
        return not arguments.only or any(word in name for word in arguments.only)

    for variant in filter(lambda variant: wanted(variant.name), VARIANTS):
        if arguments.quick:
            if not variant.quick:
                continue
            backends = variant.backends if variant.name == WITH_BOTH_BACKENDS else variant.backends[:1]
            variant = replace(variant, kinds=variant.kinds[:1], backends=backends, steps=variant.steps or QUICK_STEPS)
        for kind in variant.kinds:
            with tempfile.TemporaryDirectory() as scratch:
                case = make_case(kind, sftrun, verdicts, Path(scratch), arguments.quick)
                case = Case(f"{variant.name}, {kind}", *list(vars(case).values())[1:])
                try:
                    check_variant(case, variant)
                except RuntimeError as error:
                    case.expect("runs", False, str(error))
    if wanted("dropout"):
        with tempfile.TemporaryDirectory() as scratch:
            check_dropout(sftrun, verdicts, Path(scratch), arguments.quick)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
