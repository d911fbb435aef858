"""Training on the model's own answers beside torch and TRL's loss, and against itself.

    python tests/parity/rollouts_parity.py --sftrun build/bin/sftrun [--quick]

losses     `train.rollouts` of a tiny random model keeps all its answers. A loop in torch trains on them from the same start with
           `GRPOTrainer._compute_loss` (scripts/fixtures/make_grpo.py): its losses and gradient norms are the same, and in each of 5 steps its model
           gives the answers the log-probabilities and the entropy that were reported when they were sampled, so they are of the weights of that step;
           also where `sftrun serve` writes the answers with the adapter of each step (`rollouts.engine`), with the correction of its log-probabilities
           and with several steps on the same answers (`rollouts.num_iterations`), whose ratios are to the model that wrote them
divisions  1 and 2 processes x accumulation, fsdp, tensor, pipeline: the same answers, and losses to 1e-6
rewards    rewards of metrics.jsonl are those of `sftrun reward` on the answers

--quick leaves out some of the losses and divisions.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path

from harness import Served, Sftrun, Verdicts, difference  # noqa: I001  (sets sys.path)

import torch
from dpo_parity import make_model, words, write_jsonl, write_run
from grpo_parity import close, documents_of
from label_weights_parity import new_adapter
from make_grpo import DEFAULTS, IN_GROUP, loss_by_trl
from peft import PeftModel
from reference_training import Recipe, train
from transformers import AutoModelForCausalLM, AutoTokenizer

STEPS, GLOBAL_BATCH, PROMPTS, MAX_NEW_TOKENS = 5, 8, 10, 12
LOSS, GRAD_NORM, DIVIDED, SAMPLED = 1e-5, 1e-4, 1e-6, 2e-5
JUDGE = "import json, sys\nfor line in sys.stdin:\n    print(sum(map(ord, json.loads(line)['completion'])) % 7, flush=True)\n"
STOPS = 60  # tokens that end an answer, so that some end early
CASES = [
    {"beta": 0.2},
    {"loss_type": "grpo", "scale_rewards": "none"},
    {"loss_type": "dr_grpo", "mask_truncated_completions": True},
    {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.01, "beta": 0.1},
    {"temperature": 0.7, "sampling_correction": "token_truncate", "sampling_correction_max": 1.5},
    {"served": True, "beta": 0.1, "sampling_correction": "sequence_truncate", "num_iterations": 2},
    {"num_iterations": 3, "beta": 0.1, "epsilon": 0.02},
    {"num_iterations": 2, "loss_type": "cispo", "epsilon_high": 1.01},
]
QUICK_CASES = [0, 2, 4, 5, 6]


def rollouts_of(run: Path, step: int, iterations: int = 1) -> list[dict]:
    """The answers of a step, which an earlier one may have had."""
    step -= step % iterations
    lines = (run / "rollouts" / f"step-{step + 1:06}.jsonl").read_text().splitlines()
    return [json.loads(line) | {"group": 100 * step + json.loads(line)["group"]} for line in lines]


def answer_logits(model, record: dict) -> torch.Tensor:
    ids = torch.tensor([record["prompt_ids"] + record["completion_ids"]])
    return model(input_ids=ids).logits[0, len(record["prompt_ids"]) - 1 : -1]


def answers_in(records: list[dict], advantages: list[float]) -> dict:
    """As make_grpo.answers_of has them."""
    sampled = "sampling_logprobs" if "sampling_logprobs" in records[0] else "logprobs"
    return {
        "lengths": [len(record["completion_ids"]) for record in records],
        "old": [record["logprobs"] for record in records],
        "sampled": [record[sampled] for record in records],
        "advantages": advantages,
        "is_cut_short": [record["finish_reason"] == "length" for record in records],
    }


def reference(settings: dict, temperature: float, iterations: int, model: Path, adapter: Path, run: Path) -> list[dict]:
    """Trains on the answers of the run. @return losses, and how its model sees the answers of each step before it"""
    trained = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter, is_trainable=True)
    start = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32), adapter)
    documents = []
    for step in range(STEPS):
        documents += documents_of(settings, rollouts_of(run, step, iterations))
    seen, own = [], []  # own: what the model gave the answers of a server before the first step on them

    def logps(of_model, records: list[dict]) -> torch.Tensor:
        rows = [answer_logits(of_model, record).log_softmax(-1).gather(1, torch.tensor(record["completion_ids"])[:, None])[:, 0] for record in records]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).double()

    def loss_of(of_model, batch) -> torch.Tensor:
        records = [document.inputs["record"] for document in batch]
        with torch.no_grad():
            at_start = logps(start, records)
            is_first = len(seen) % iterations == 0
            seen.append(how_it_sees(of_model, records, temperature) if is_first else seen[-1])
            if "logprobs" not in records[0]:  # a server does not say what the model itself gives: it is that of the step
                if is_first:
                    own[:] = logps(of_model, records).tolist()
                records = [record | {"logprobs": row[: len(record["completion_ids"])]} for record, row in zip(records, own)]
        answers = answers_in(records, [document.inputs["advantage"] for document in batch])
        return loss_by_trl(settings, answers, logps(of_model, records), at_start, MAX_NEW_TOKENS)[0]

    recipe = Recipe(STEPS, GLOBAL_BATCH, learning_rate=2e-3, scheduler="linear", warmup_steps=0, max_grad_norm=0.5)
    return [line | said for line, said in zip(train(trained, documents, recipe, loss_of=loss_of), seen)]


def how_it_sees(model, records: list[dict], temperature: float) -> dict:
    """Mean entropy, and the largest difference from the log-probabilities of the records."""
    entropies, differences = [], []
    for record in records:
        logits = answer_logits(model, record).double()
        chosen = torch.tensor(record["completion_ids"])[:, None]
        entropies.append(torch.distributions.Categorical(logits=logits).entropy())
        for key, divisor in (("logprobs", 1), ("sampling_logprobs", temperature)):
            if key in record:
                own = (logits / divisor).log_softmax(-1).gather(1, chosen)[:, 0]
                differences.append((own - torch.tensor(record[key]).double()).abs().max().item())
    return {"entropy": torch.cat(entropies).mean().item(), "logprobs": max(differences)}


def check_losses(sftrun: Sftrun, scratch: Path, config, rewards: list[dict], model: Path, adapter: Path, quick: bool, verdicts: Verdicts) -> None:
    for number, change in enumerate(CASES):
        if quick and number not in QUICK_CASES:
            continue
        temperature, is_served, iterations = change.get("temperature", 1), change.get("served", False), change.get("num_iterations", 1)
        settings = DEFAULTS | {"has_old": iterations > 1} | {key: value for key, value in change.items() if key not in ("temperature", "served", "num_iterations")}
        name = " ".join(f"{key}={value}" for key, value in change.items())
        run = scratch / f"case-{number}"
        given = {key: value for key, value in settings.items() if DEFAULTS[key] != value and key != "has_old"} | {"sampling_correction": settings["sampling_correction"]}
        if is_served:
            with Served(sftrun, model, "--allow-adapter-updates") as url:
                ours = sftrun.train(config(f"case-{number}", given, {"engine": url, "num_iterations": iterations}), run, 2, train__batch_size=2, train__grad_accum=2)
        else:
            ours = sftrun.train(config(f"case-{number}", given, {"temperature": temperature, "num_iterations": iterations}), run, 1, train__batch_size=4, train__grad_accum=2)
        theirs = reference(settings, temperature, iterations, model, adapter, run)
        verdicts.below(f"{name}: log-probabilities of {STEPS} steps' answers", max(line["logprobs"] for line in theirs), SAMPLED)
        verdicts.below(f"{name}: loss", close(ours, theirs, "loss"), LOSS)
        verdicts.below(f"{name}: gradient norm", difference(ours, theirs, "grad_norm"), GRAD_NORM)
        if is_served:
            verdicts.expect(f"{name}: no entropy is reported", all("entropy" not in line for line in ours))
            verdicts.below(f"{name}: log-probabilities of the server", max(line["sampling/sampling_logp_difference/mean"] for line in ours), SAMPLED)
        else:
            verdicts.below(f"{name}: entropy", difference(ours, theirs, "entropy"), LOSS)
        judged = sftrun.jsonl("reward", [line for step in range(STEPS) for line in rollouts_of(run, step, iterations)], scratch, *(f"--reward={json.dumps(reward)}" for reward in rewards))
        verdicts.expect(f"{name}: rewards as of sftrun reward", all(line["reward"] == again["reward"] for line, again in
                                                                   zip((line for step in range(STEPS) for line in rollouts_of(run, step, iterations)), judged)))
        means = [sum(line["reward"] for line in rollouts_of(run, step, iterations)) / GLOBAL_BATCH for step in range(STEPS)]
        verdicts.below(f"{name}: mean reward", max(abs(mean - line["reward"]) for mean, line in zip(means, ours)), 1e-9)


def check_divisions(sftrun: Sftrun, scratch: Path, config, quick: bool, verdicts: Verdicts) -> None:
    ways = [(1, 1, {}), (1, 4, {}), (2, 1, {}), (2, 2, {}), (2, 1, {"parallel__strategy": "fsdp"}), (2, 1, {"parallel__strategy": "tensor"}),
            (2, 2, {"parallel__strategy": "pipeline"}), (2, 1, {"parallel__strategy": "zero2"}), (1, 2, {"train__gradient_checkpointing": True})]
    path = config("divisions", {"beta": 0.2}, {"batch_size": 3, "num_iterations": 2})
    first, texts = None, None
    for processes, accumulation, change in [ways[0], ways[3], ways[4], ways[5]] if quick else ways:
        parts = 1 if change.get("parallel__strategy") in ("tensor", "pipeline") else processes
        how = " ".join(f"{key.split('__')[1]}={value}" for key, value in change.items())
        name = f"{processes} x {accumulation} {how}".rstrip()
        run = scratch / f"division-{name.replace(' ', '-')}"
        ours = sftrun.train(path, run, processes, train__batch_size=GLOBAL_BATCH // (parts * accumulation), train__grad_accum=accumulation, **change)
        answers = [[line["completion_ids"] for line in rollouts_of(run, step, 2)] for step in range(STEPS)]
        if first is None:
            first, texts = ours, answers
            continue
        verdicts.expect(f"{name}: the same answers", answers == texts)
        verdicts.below(f"{name}: loss", close(ours, first, "loss"), DIVIDED)
        verdicts.below(f"{name}: gradient norm", difference(ours, first, "grad_norm"), 10 * DIVIDED)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    sftrun, verdicts, rng = Sftrun(args.sftrun), Verdicts(), random.Random(5)
    assert GLOBAL_BATCH % IN_GROUP == 0
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        model = make_model(scratch / "model", adds_bos=False, splits_words=True)
        stops = [AutoTokenizer.from_pretrained(model).eos_token_id, *range(100, 100 + STOPS)]
        (model / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
        (scratch / "judge.py").write_text(JUDGE)
        rewards = [{"name": "program", "label": "judge", "command": f"{sys.executable} {scratch / 'judge.py'}"}, {"name": "length", "target": 20, "weight": 0.5}]
        adapter = new_adapter(model, scratch / "adapter")
        data = write_jsonl(scratch / "prompts.jsonl", [{"prompt": words(rng, 6), "answer": words(rng, 2)} for _ in range(PROMPTS)])

        def config(name: str, settings: dict, rollouts: dict) -> Path:
            rollouts = {"n": IN_GROUP, "max_new_tokens": MAX_NEW_TOKENS, "reward": rewards, "num_samples": 100} | rollouts
            train_settings = {"objective": "grpo", "max_steps": STEPS, "learning_rate": 2e-3, "beta": 0.0, "rollouts": rollouts} | settings
            path = write_run(scratch / f"{name}.yaml", model, data, {f"train__{key}": value for key, value in train_settings.items()})
            path.write_text(path.read_text().replace("  lora:\n", f"  lora:\n    init_from: {adapter}\n"))
            return path

        check_losses(sftrun, scratch, config, rewards, model, adapter, args.quick, verdicts)
        check_divisions(sftrun, scratch, config, args.quick, verdicts)
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
