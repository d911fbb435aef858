"""Training on sampled answers beside TRL's loss, and against itself.

    python tests/parity/grpo_parity.py --sftrun build/bin/sftrun [--quick]

Answers of a tiny random model are made up, with log-probabilities of a model that has moved a little, rewards and groups.

losses     every loss type, levels of ratios, clipping, KL to the reference, scales of rewards, corrections: 5 steps beside a loop in torch whose
           loss is `GRPOTrainer._compute_loss` (scripts/fixtures/make_grpo.py) with the divisors of the whole batch
divisions  1 and 2 processes x accumulation 1, 2 and 4, packed or not; fsdp, tensor, pipeline; gradient checkpointing: the same to 1e-6
records    token ids and texts give the same run; answers that are cut short; masks of tokens that tools wrote

--quick leaves out most of the losses and divisions.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from harness import Sftrun, Verdicts, difference  # noqa: I001  (sets sys.path)

import torch
from dpo_parity import make_model, words, write_jsonl, write_run
from label_weights_parity import new_adapter
from make_grpo import DEFAULTS, IN_GROUP, advantages_of, loss_by_trl
from peft import PeftModel
from reference_training import IGNORE_INDEX, Document, Recipe, train
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, GLOBAL_BATCH, GROUPS, MAX_LENGTH = 5, 8, 6, 24
LOSS, GRAD_NORM, DIVIDED = 1e-5, 1e-4, 1e-6
NAMES = ["kl", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio"]
CASES = [
    {"beta": 0.2},
    {"loss_type": "grpo", "epsilon_high": 0.28, "scale_rewards": "batch"},
    {"loss_type": "bnpo", "delta": 1.6, "mask_truncated_completions": True},
    {"loss_type": "dr_grpo", "beta": 0.04, "scale_rewards": "none"},
    {"loss_type": "cispo", "epsilon_high": 1.2},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01, "beta": 0.1},
    {"sampling_correction": "token_truncate", "sampling_correction_max": 1.5},
    {"sampling_correction": "sequence_mask", "loss_type": "grpo", "mask_truncated_completions": True},
    {"has_old": False, "beta": 0.3},
]
QUICK_CASES = [0, 3, 5, 6]


# ---- Records


def log_probabilities(model, prompt: list[int], completion: list[int]) -> torch.Tensor:
    ids = torch.tensor([prompt + completion])
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1]
    return logits.log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0]


@torch.no_grad()
def sampled_records(rng: random.Random, model, tokenizer) -> list[dict]:
    """In groups of IN_GROUP answers to one prompt, shuffled; `logprobs` as a model near this one has them."""
    records = []
    for group in range(GROUPS):
        prompt = tokenizer(words(rng, 6))["input_ids"]
        for _ in range(IN_GROUP):
            completion = [rng.randrange(4, len(tokenizer)) for _ in range(rng.randint(1, 14))]
            now = log_probabilities(model, prompt, completion).tolist()
            records.append({
                "prompt_ids": prompt, "completion_ids": completion, "group": group,
                "logprobs": [min(0.0, value + rng.gauss(0, 0.3)) for value in now],
                "sampling_logprobs": [min(0.0, value + rng.gauss(0, 0.4)) for value in now],
                "reward": rng.choice([0, 1, rng.random()]),
                "finish_reason": rng.choice(["stop", "stop", "length"]),
            })
    return records


def records_for(settings: dict, records: list[dict]) -> list[dict]:
    left_out = ([] if settings["has_old"] else ["logprobs"]) + (["sampling_logprobs"] if settings["sampling_correction"] == "off" else [])
    return [{key: value for key, value in record.items() if key not in left_out} for record in records]


# ---- The reference



def answers_in(batch: list[Document]) -> dict:
    """As make_grpo.answers_of has them."""
    records = [document.inputs["record"] for document in batch]
    return {
        "lengths": [len(record["completion_ids"]) for record in records],
        "old": [record["logprobs"] for record in records],
        "sampled": [record["sampling_logprobs"] for record in records],
        "advantages": [document.inputs["advantage"] for document in batch],
        "is_cut_short": [record["finish_reason"] == "length" for record in records],
    }


def documents_of(settings: dict, records: list[dict]) -> list[Document]:
    by_group = sorted(records, key=lambda record: record["group"])
    advantages = advantages_of({"rewards": [record["reward"] for record in by_group]}, settings["scale_rewards"]).tolist()
    of_record = {id(record): advantage for record, advantage in zip(by_group, advantages)}
    documents = []
    for record in records:
        tokens = record["prompt_ids"] + record["completion_ids"]
        labels = [IGNORE_INDEX] * len(record["prompt_ids"]) + record["completion_ids"]
        documents.append(Document(tokens, labels, {"record": record, "advantage": of_record[id(record)]}))
    return documents


def padded_log_probabilities(model, batch: list[Document]) -> torch.Tensor:
    rows = [log_probabilities(model, d.inputs["record"]["prompt_ids"], d.inputs["record"]["completion_ids"]) for d in batch]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).double()


def reference(settings: dict, model: Path, adapter: Path, documents: list[Document]) -> list[dict]:
    trained = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter, is_trainable=True)
    start = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
    metrics = []

    def loss_of(of_model, batch: list[Document]) -> torch.Tensor:
        with torch.no_grad():
            at_start = padded_log_probabilities(start, batch)
        loss, said = loss_by_trl(settings, answers_in(batch), padded_log_probabilities(of_model, batch), at_start, MAX_LENGTH)
        metrics.append(said)
        return loss

    recipe = Recipe(STEPS, GLOBAL_BATCH, learning_rate=2e-3, scheduler="linear", warmup_steps=0, max_grad_norm=0.5)
    lines = train(trained, documents, recipe, loss_of=loss_of)
    return [line | said for line, said in zip(lines, metrics)]


# ---- Checks


def close(ours: list[dict], theirs: list[dict], key: str) -> float:
    """The largest difference, of values that may be 0."""
    return max(abs(a[key] - b[key]) / max(1.0, abs(b[key])) for a, b in zip(ours, theirs))


def settings_of(settings: dict, adapter: Path) -> dict:
    given = {f"train__{key}": value for key, value in settings.items() if DEFAULTS[key] != value and key != "has_old"}
    if settings["sampling_correction"] == "off":
        given["train__sampling_correction"] = "off"
    if settings["loss_type"] == "dr_grpo":
        given["train__max_completion_length"] = MAX_LENGTH
    return given | {"tuning__lora__init_from": adapter, "train__learning_rate": 2e-3}


def check_losses(sftrun: Sftrun, scratch: Path, config: Path, model: Path, adapter: Path, records: list[dict], quick: bool, verdicts: Verdicts) -> None:
    for number, change in enumerate(CASES):
        if quick and number not in QUICK_CASES:
            continue
        settings = DEFAULTS | change
        name = " ".join(f"{key}={value}" for key, value in change.items())
        data = write_jsonl(scratch / f"case-{number}.jsonl", records_for(settings, records))
        share = {"data__train": data, "train__batch_size": 4, "train__grad_accum": 2}
        ours = sftrun.train(config, scratch / f"case-{number}", 1, **settings_of(settings, adapter), **share)
        theirs = reference(settings, model, adapter, documents_of(settings, records))
        # The loss itself may be near 0: advantages of a group add up to 0.
        verdicts.below(f"{name}: loss", close(ours, theirs, "loss"), LOSS)
        verdicts.below(f"{name}: gradient norm", difference(ours, theirs, "grad_norm"), GRAD_NORM)
        for metric in NAMES:
            if metric in theirs[0]:
                verdicts.below(f"{name}: {metric}", close(ours, theirs, metric), LOSS)


def check_divisions(sftrun: Sftrun, scratch: Path, config: Path, adapter: Path, data: Path, quick: bool, verdicts: Verdicts) -> None:
    ways = [(1, 1, {}), (1, 4, {}), (2, 1, {}), (2, 2, {}), (2, 1, {"parallel__strategy": "fsdp"}), (2, 1, {"parallel__strategy": "tensor"}),
            (2, 2, {"parallel__strategy": "pipeline"}), (1, 2, {"train__gradient_checkpointing": True}), (1, 2, {"data__packing": True}),
            (2, 1, {"data__packing": True}), (2, 2, {"data__packing": True, "parallel__strategy": "zero2"})]
    for loss in ("dapo",) if quick else ("dapo", "grpo", "cispo"):
        settings = settings_of(DEFAULTS | {"beta": 0.2, "loss_type": loss}, adapter)
        first = {}
        for processes, accumulation, change in [ways[0], ways[3], ways[4], ways[8], ways[9]] if quick else ways:
            parts = 1 if change.get("parallel__strategy") in ("tensor", "pipeline") else processes
            share = {"data__train": data, "train__batch_size": GLOBAL_BATCH // (parts * accumulation), "train__grad_accum": accumulation}
            packing = bool(change.get("data__packing"))
            if packing:
                share["train__batch_size"] = max(1, 4 // (parts * accumulation))
            how = " ".join(f"{key.split('__')[1]}={value}" for key, value in change.items())
            name = f"{loss}, {processes} x {accumulation} {how}".rstrip()
            ours = sftrun.train(config, scratch / f"division-{name.replace(' ', '-')}", processes, **settings, **share, **change)
            if packing in first:
                verdicts.below(f"{name}: loss", close(ours, first[packing], "loss"), DIVIDED)
                verdicts.below(f"{name}: gradient norm", difference(ours, first[packing], "grad_norm"), 10 * DIVIDED)
            first.setdefault(packing, ours)


def check_records(sftrun: Sftrun, scratch: Path, config: Path, adapter: Path, tokenizer, verdicts: Verdicts) -> None:
    rng = random.Random(9)
    texts = [{"prompt": words(rng, 4) + ":", "completion": " " + words(rng, 5), "reward": rng.random(), "group": i % 4} for i in range(16)]
    ids = []
    for record in texts:
        prompt = tokenizer(record["prompt"])["input_ids"]
        whole = tokenizer(record["prompt"] + record["completion"])["input_ids"] + [tokenizer.eos_token_id]
        assert whole[: len(prompt)] == prompt
        ids.append({"prompt_ids": prompt, "completion_ids": whole[len(prompt) :], "reward": record["reward"], "group": record["group"]})
    settings = settings_of(DEFAULTS | {"beta": 0.1}, adapter) | {"train__batch_size": 8, "train__grad_accum": 1}
    runs = [sftrun.train(config, scratch / name, 1, data__train=write_jsonl(scratch / f"{name}.jsonl", records), **settings)
            for name, records in (("texts", texts), ("ids", ids))]
    verdicts.expect("texts and their ids: the same run", [[line[k] for k in ("loss", "grad_norm", "reward")] for line in runs[0]]
                    == [[line[k] for k in ("loss", "grad_norm", "reward")] for line in runs[1]])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sftrun, verdicts, rng = Sftrun(args.sftrun), Verdicts(), random.Random(5)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        model = make_model(scratch / "model", adds_bos=False, splits_words=True)
        tokenizer = AutoTokenizer.from_pretrained(model)
        adapter = new_adapter(model, scratch / "adapter")
        start = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
        records = sampled_records(rng, start, tokenizer)
        rng.shuffle(records)
        data = write_jsonl(scratch / "records.jsonl", records)
        config = write_run(scratch / "run.yaml", model, data, {"train__objective": "grpo", "train__max_steps": STEPS})
        config.write_text(config.read_text().replace("  beta: 0.3\n", ""))
        check_losses(sftrun, scratch, config, model, adapter, records, args.quick, verdicts)
        check_divisions(sftrun, scratch, config, adapter, data, args.quick, verdicts)
        check_records(sftrun, scratch, config, adapter, tokenizer, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
