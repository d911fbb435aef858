"""Adapters with added tokens, resized vocabularies and trained rows of single tokens, as PEFT saves them, beside PEFT.

    .venv-ref/bin/python tests/parity/added_tokens_parity.py --sftrun build/bin/sftrun [--only both …]

Tiny models: with a head of its own and tied, byte-level and SentencePiece vocabularies. Tokens are added to the tokenizer, the vocabulary
grows (also to a multiple), shrinks or has rows to spare; embedding and head are trained whole, by updates, in single rows, or not at all.
score     log-probabilities of texts with added tokens, over the directory and over the base as a GGUF file: PEFT's
merge     as safetensors: transformers' logits are PEFT's, its tokenizer is the adapter's, ties and the end of a text are kept. As GGUF, from
          the directory and from the file: a token a row (gguf-py), and the same scores; in llama.cpp, where it is installed, the same ids
          and the same most likely tokens
generate  an added EOS ends what is generated
refused   what would lose them: adapters for llama.cpp and vLLM, training on, an embedding that grew without its head

--quick takes most variants, each on its first model, and asks four of them what is refused. Two are not written as GGUF, and two are merged over the
base as a GGUF file.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from harness import Sftrun, Verdicts, load_adapter, relative_to_largest  # and where what follows is found
import gguf_export_parity as gguf_export

import gguf
import numpy as np
import torch
import transformers as hf
from peft import LoraConfig, get_peft_model
from reference_training import logits_of

LOGITS, SCORE = 1e-5, 1e-5
RANK, NEW_TOKENS = 4, 24
END, CALL, WORD = "<|end_turn|>", "<|tool_call|>", "Zürich"  # the last is no special one
TEXTS = ["To open the door, turn the", f"Ein café in {WORD}: 12,50 €{END}", f"{CALL}def fibonacci(n):{END}", f"{CALL}{CALL} 2 + 2 = {WORD}"]
SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
             max_position_embeddings=256, initializer_range=0.3)
CLASSES = {"llama": (hf.LlamaConfig, hf.LlamaForCausalLM, {"tie_word_embeddings": False}),
           "qwen2": (hf.Qwen2Config, hf.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
           "gemma3": (hf.Gemma3TextConfig, hf.Gemma3ForCausalLM, {"sliding_window": 128, "query_pre_attn_scalar": 8})}
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]


@dataclass(frozen=True)
class Variant:
    """`tokens` are added ones, by their text, and one that was there."""

    name: str
    kinds: tuple[str, ...] = ("llama", "qwen2")
    spare: int = 0  # rows of the base without a token
    multiple: int | None = None  # of the resized vocabulary
    resize: bool = True
    add: bool = True
    lora: dict = field(default_factory=dict)
    tokens: dict[str, list[str]] | list[str] | None = None
    keeps_tie: bool = True
    both_forms: bool = False  # also over the base as a GGUF file
    quick: bool = True  # of `make test`; False: another variant has what is new in it beside more


ENDS_WITH_ADDED = "both trained"
# With --quick:
REFUSED = (ENDS_WITH_ADDED, "rows to spare", "updates of both, to a multiple", "single rows")
WITHOUT_GGUF = ("embedding trained, ties kept", "updates, ties kept")
IN_BOTH_FORMS = (ENDS_WITH_ADDED, "single rows")
BOTH = {"modules_to_save": ["embed_tokens", "lm_head"]}
VARIANTS = [
    Variant("not trained", both_forms=True, quick=False),
    Variant("to a multiple", multiple=16, quick=False),
    Variant("fewer rows than before", spare=13),
    Variant("rows to spare", spare=13, resize=False, lora=BOTH, keeps_tie=False),
    Variant(ENDS_WITH_ADDED, ("llama", "qwen2", "gemma3"), lora=BOTH, keeps_tie=False, both_forms=True),
    Variant("embedding trained", lora={"modules_to_save": ["embed_tokens"]}, keeps_tie=False, quick=False),
    Variant("embedding trained, ties kept", ("qwen2", "gemma3"), lora={"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}),
    Variant("updates of both", lora={"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, keeps_tie=False, quick=False),
    Variant("updates of both, to a multiple", multiple=16, lora={"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, keeps_tie=False),
    Variant("updates of the embedding", ("qwen2",), lora={"target_modules": ["q_proj", "embed_tokens"]}, keeps_tie=False, quick=False),
    Variant("updates, ties kept", ("qwen2",), lora={"target_modules": ["q_proj", "embed_tokens"], "ensure_weight_tying": True}, keeps_tie=False),
    Variant("single rows", ("llama", "qwen2", "gemma3"), tokens=[WORD, "a", CALL, END], both_forms=True),
    Variant("single rows, not resized", ("llama", "qwen2"), resize=False, add=False, tokens=["b", "a"], both_forms=True),
    Variant("single rows of both", tokens={"embed_tokens": [CALL, "a"], "lm_head": [END, "a", "b"]}, keeps_tie=False),
    Variant("single rows of the head", resize=False, add=False, tokens={"lm_head": ["a", "b"]}, keeps_tie=False, quick=False),
]
assert {*REFUSED, *WITHOUT_GGUF, *IN_BOTH_FORMS} <= {variant.name for variant in VARIANTS if variant.quick}


@dataclass(frozen=True)
class Case:
    name: str
    sftrun: Sftrun
    verdicts: Verdicts
    scratch: Path
    variant: Variant
    quick: bool = False

    base, adapter = (property(lambda self, part=part: self.scratch / part) for part in ("base", "adapter"))

    def below(self, what: str, value: float, limit: float) -> None:
        self.verdicts.below(f"{self.name}, {what}", value, limit)

    def expect(self, what: str, holds: bool, detail: str = "") -> None:
        self.verdicts.expect(f"{self.name}, {what}", holds, detail)


# ---- PEFT's side


def make_base(kind: str, directory: Path, spare: int) -> None:
    directory.mkdir(parents=True)
    size = (gguf_export.tiny_pieces if kind == "gemma3" else gguf_export.tiny_bytes)(directory)
    config, model, more = CLASSES[kind]
    special = dict(bos_token_id=2, eos_token_id=1, pad_token_id=0) if kind == "gemma3" else dict(bos_token_id=0, eos_token_id=2)
    torch.manual_seed(sum(kind.encode()))
    model(config(**SIZES, vocab_size=size + spare, **special, **more)).float().save_pretrained(directory)


def load(directory: Path):
    return hf.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()


def indices_of(tokens, tokenizer):
    if isinstance(tokens, dict):
        return {module: indices_of(texts, tokenizer) for module, texts in tokens.items()}
    return tokens and [tokenizer.convert_tokens_to_ids(text) for text in tokens]


def resized(case: Case, tokenizer):
    model = load(case.base)
    if case.variant.resize:
        torch.manual_seed(3)  # the new rows are drawn
        model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=case.variant.multiple)
    return model


@torch.no_grad()
def make_adapter(case: Case):
    """@return PEFT's model and tokenizer"""
    tokenizer = hf.AutoTokenizer.from_pretrained(case.base)
    if case.variant.add:
        tokenizer.add_special_tokens({"additional_special_tokens": [CALL, END]})
        tokenizer.add_tokens([WORD])
        tokenizer.eos_token = END
    model = resized(case, tokenizer)
    keys = {"target_modules": ["q_proj", "v_proj", "down_proj"], **case.variant.lora}
    keys["trainable_token_indices"] = indices_of(case.variant.tokens, tokenizer)
    torch.manual_seed(17)
    peft = get_peft_model(model, LoraConfig(r=RANK, lora_alpha=8, task_type="CAUSAL_LM", **keys)).eval()
    for name, parameter in peft.named_parameters():
        if "lora_B" in name or "lora_embedding_A" in name:
            parameter.normal_(std=0.1)
        elif parameter.requires_grad and "lora_" not in name:
            parameter.mul_(1 + 0.3 * torch.randn_like(parameter))
    if case.variant.name == ENDS_WITH_ADDED:  # what follows a prompt is most likely to be the end
        head = peft.get_output_embeddings().modules_to_save["default"].weight
        for text in gguf_export.PROMPTS[:3]:
            head[tokenizer.eos_token_id] += 1.5 * head[logits_of(peft, ids_of(tokenizer, text))[-1].argmax()]
    peft.save_pretrained(case.adapter)
    tokenizer.save_pretrained(case.adapter)
    return peft, tokenizer


def ids_of(tokenizer, text: str) -> list[int]:
    return tokenizer(text)["input_ids"]


def log_probability(model, ids: list[int]) -> float:
    log_probabilities = logits_of(model, ids)[:-1].double().log_softmax(-1)
    return log_probabilities.gather(1, torch.tensor(ids[1:])[:, None]).sum().item()


# ---- What is compared


def texts_of(case: Case) -> list[str]:
    return TEXTS if case.variant.add else gguf_export.PROMPTS[:6]


def check_score(case: Case, what: str, peft, tokenizer, model: Path, *adapter: str) -> None:
    texts = texts_of(case)
    scores = case.sftrun.jsonl("score", [{"text": text} for text in texts], case.scratch, "--model", str(model), *adapter, *ON_CPU)
    expected = [log_probability(peft, ids_of(tokenizer, text)) for text in texts]
    case.below(f"{what}: score", max(abs(s["logprob"] - e) / abs(e) for s, e in zip(scores, expected, strict=True)), SCORE)


def merge(case: Case, model: Path, name: str, *more: str) -> Path:
    output = case.scratch / name
    case.sftrun.run("merge", "--model", str(model), "--adapter", str(case.adapter), "--output", str(output), *more)
    return output


def eos_ids(directory: Path, file: str) -> list[int]:
    eos = json.loads((directory / file).read_text()).get("eos_token_id", [])
    return eos if isinstance(eos, list) else [eos]


def check_directory(case: Case, what: str, peft, tokenizer, merged: Path) -> None:
    model, own = load(merged), hf.AutoTokenizer.from_pretrained(merged)
    worst = max(relative_to_largest(logits_of(model, ids_of(tokenizer, text)), logits_of(peft, ids_of(tokenizer, text))) for text in texts_of(case))
    case.below(f"{what}: logits", worst, LOGITS)
    case.expect(f"{what}: its tokenizer", all(ids_of(own, text) == ids_of(tokenizer, text) for text in texts_of(case)) and len(own) == len(tokenizer)
                and own.all_special_tokens == tokenizer.all_special_tokens)
    was_tied = load(case.base).config.tie_word_embeddings
    case.expect(f"{what}: tied", model.config.tie_word_embeddings == (was_tied and case.variant.keeps_tie), str(model.config.tie_word_embeddings))
    if case.variant.add:
        ends = [eos_ids(merged, file) for file in ("config.json", "generation_config.json") if (merged / file).exists()]
        case.expect(f"{what}: the added EOS ends texts", all(tokenizer.eos_token_id in ids for ids in ends), str(ends))


def check_gguf(case: Case, what: str, peft, tokenizer, merged: Path) -> None:
    file = gguf_export.only_gguf(merged)
    reader = gguf.GGUFReader(file)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    types = reader.fields["tokenizer.ggml.token_type"].contents()
    rows = {tensor.name: tensor.data.shape[0] for tensor in reader.tensors if tensor.name in ("token_embd.weight", "output.weight")}
    case.expect(f"{what}: a token a row", all(count == len(tokens) == len(types) for count in rows.values()), str(rows))
    if case.variant.add:
        kinds = [types[tokens.index(text)] for text in (CALL, END, WORD)]
        case.expect(f"{what}: added tokens", kinds == [gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, gguf.TokenType.USER_DEFINED], str(kinds))
        eos = reader.fields["tokenizer.ggml.eos_token_id"].contents()
        case.expect(f"{what}: EOS", eos == tokenizer.eos_token_id, str(eos))
    check_score(case, what, peft, tokenizer, file)
    if not gguf_export.llama_cpp:
        return
    client = gguf_export.Client(file)
    prompts = [ids_of(tokenizer, text) for text in texts_of(case)]
    case.expect(f"{what}: llama.cpp's ids", all(client.tokenize(text, special=True) == ids for text, ids in zip(texts_of(case), prompts)))
    logits = [(client.logits(ids), logits_of(peft, ids)[-1].numpy()) for ids in prompts]
    most = [len(gguf_export.top_of(a[: len(b)]) & gguf_export.top_of(b)) for a, b in logits]
    case.expect(f"{what}: llama.cpp's top {gguf_export.TOP}", min(most) >= gguf_export.SHARED, str(most))
    worst = max(float(np.abs(a[: len(b)] - b).max() / np.abs(b).max()) for a, b in logits)
    case.below(f"{what}: llama.cpp's logits", worst, 1e-2)


def check_generate(case: Case, peft, tokenizer) -> None:
    prompts = [text.removesuffix(END) for text in TEXTS] + gguf_export.PROMPTS
    records = [{"prompt": text} for text in prompts]
    greedy = ["--no-chat", "--temperature", "0", "--max-new-tokens", str(NEW_TOKENS)]
    answers = case.sftrun.jsonl("generate", records, case.scratch, "--model", str(case.base), "--adapter", str(case.adapter), *greedy, *ON_CPU)
    ended = 0
    for text, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([ids_of(tokenizer, text)])
        with torch.no_grad():
            out = peft.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW_TOKENS, pad_token_id=0,
                                eos_token_id=[tokenizer.eos_token_id, *eos_ids(case.base, "config.json")])[0, ids.shape[1] :].tolist()
        ended += tokenizer.eos_token_id in out
        expected = tokenizer.decode([token for token in out if token != tokenizer.eos_token_id], skip_special_tokens=True)
        case.expect(f"generate: after {text[:20]!r}", answer["generated"] == expected, "" if answer["generated"] == expected else f"{answer['generated']!r} for {expected!r}")
    case.expect("generate: some end with it", ended > 0, f"{ended} of {len(prompts)}")


def refusal(case: Case, *arguments: str) -> str:
    result = subprocess.run([case.sftrun.path, *arguments], capture_output=True, text=True)
    return (result.stdout + result.stderr) if result.returncode != 0 else ""


def check_refused(case: Case) -> None:
    for form in ("lora-gguf", "vllm"):
        said = refusal(case, "merge", "--model", str(case.base), "--adapter", str(case.adapter), "--output", str(case.scratch / form), "--format", form)
        case.expect(f"refused: {form}", "merge" in said and not (case.scratch / form).exists(), said.strip().splitlines()[0] if said else "nothing")
    records, config = case.scratch / "records.jsonl", case.scratch / "run.yaml"
    records.write_text(json.dumps({"text": "one"}) + "\n")
    lora = json.loads((case.adapter / "adapter_config.json").read_text())
    config.write_text(json.dumps({  # which is YAML
        "model": {"name": str(case.base), "dtype": "fp32"}, "data": {"train": str(records), "format": "text"},
        "tuning": {"mode": "lora", "lora": {"r": RANK, "alpha": 8, "target_modules": lora["target_modules"], "init_from": str(case.adapter),
                                            **({"modules_to_save": lora["modules_to_save"]} if lora["modules_to_save"] else {})}},
        "train": {"max_steps": 1}, "output": {"dir": str(case.scratch / "run")}}))
    is_there = not case.variant.resize and case.variant.tokens is None  # all but the tokenizer
    result = subprocess.run([case.sftrun.path, "train", "--config", str(config), "--device", "cpu"], capture_output=True, text=True)
    said = result.stdout + result.stderr
    wanted = "the adapter's tokenizer differs from the base's" if is_there else "replaces rows of the base's embedding or head"
    case.expect(f"{'warned of' if is_there else 'refused'}: training on", wanted in said and (result.returncode == 0) == is_there,
                next((line for line in said.splitlines() if "base's" in line), said[-300:]))


def check_variant(case: Case, kind: str) -> None:
    make_base(kind, case.base, case.variant.spare)
    peft, tokenizer = make_adapter(case)
    again = load_adapter(resized(case, tokenizer), case.adapter)  # what PEFT itself has of what it saved
    ids = ids_of(tokenizer, texts_of(case)[1])
    case.below("PEFT loads it", relative_to_largest(logits_of(again, ids), logits_of(peft, ids)), LOGITS)
    check_score(case, "adapter", peft, tokenizer, case.base, "--adapter", str(case.adapter))
    check_directory(case, "merged", peft, tokenizer, merge(case, case.base, "merged", "--dtype", "f32"))
    if not (case.quick and case.variant.name in WITHOUT_GGUF):
        check_gguf(case, "GGUF", peft, tokenizer, merge(case, case.base, "gguf", "--format", "gguf", "--dtype", "f32"))
    if kind == case.variant.kinds[0] and (case.variant.name in REFUSED or not case.quick):
        check_refused(case)
    if case.variant.name == ENDS_WITH_ADDED:
        check_generate(case, peft, tokenizer)
    if not case.variant.both_forms or (case.quick and case.variant.name not in IN_BOTH_FORMS):
        return
    plain = case.scratch / "plain"
    get_peft_model(load(case.base), LoraConfig(r=2, target_modules=["q_proj"], task_type="CAUSAL_LM")).save_pretrained(plain)
    case.sftrun.run("merge", "--model", str(case.base), "--adapter", str(plain), "--output", str(case.scratch / "file"), "--format", "gguf", "--dtype", "f32")
    file = gguf_export.only_gguf(case.scratch / "file")
    check_score(case, "adapter over GGUF", peft, tokenizer, file, "--adapter", str(case.adapter))
    check_directory(case, "merged of GGUF", peft, tokenizer, merge(case, file, "of-file", "--dtype", "f32"))
    check_gguf(case, "GGUF of GGUF", peft, tokenizer, merge(case, file, "gguf-of-file", "--format", "gguf"))


def check_lost_rows(sftrun: Sftrun, verdicts: Verdicts, scratch: Path) -> None:
    """PEFT leaves out an untied head that grew beside an adapted embedding."""
    case = Case("a head that was not saved", sftrun, verdicts, scratch, Variant("", lora={"target_modules": ["q_proj", "embed_tokens"]}))
    make_base("llama", case.base, 0)
    make_adapter(case)
    said = refusal(case, "merge", "--model", str(case.base), "--adapter", str(case.adapter), "--output", str(scratch / "merged"))
    case.expect("refused", "embedding and head have different sizes" in said and not (scratch / "merged").exists(), said.strip().splitlines()[0] if said else "nothing")


def check_too_many_tokens(sftrun: Sftrun, verdicts: Verdicts, scratch: Path) -> None:
    """Tokens that have no rows, as where nobody resized: the base's tokenizer stays, and it is said."""
    case = Case("tokens without rows", sftrun, verdicts, scratch, Variant("", resize=False))
    make_base("llama", case.base, 0)
    make_adapter(case)
    merged = scratch / "merged"
    command = [sftrun.path, "merge", "--model", str(case.base), "--adapter", str(case.adapter), "--output", str(merged)]
    said = subprocess.run(command, capture_output=True, text=True)
    case.expect("warned of", "using the base's tokenizer" in said.stdout + said.stderr, said.stderr.strip())
    same = (merged / "tokenizer.json").read_bytes() == (case.base / "tokenizer.json").read_bytes()
    case.expect("the base's tokenizer", said.returncode == 0 and same)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--only", nargs="+", default=[], help="variants whose names hold one of these words")
    parser.add_argument("--quick", action="store_true", help="most variants, and less of each, as in `make test`: see above")
    parser.add_argument("--gguf-py-only", action="store_true", help="without llama.cpp, also where it is installed")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    if arguments.gguf_py_only:
        gguf_export.llama_cpp = None
    verdicts, sftrun = Verdicts(), Sftrun(arguments.sftrun)
    for variant in VARIANTS:
        if arguments.only and not any(word in variant.name for word in arguments.only):
            continue
        if arguments.quick and not variant.quick:
            continue
        for kind in variant.kinds[:1] if arguments.quick else variant.kinds:
            with tempfile.TemporaryDirectory() as scratch:
                case = Case(f"{variant.name}, {kind}", sftrun, verdicts, Path(scratch), variant, arguments.quick)
                try:
                    check_variant(case, kind)
                except RuntimeError as error:
                    case.expect("runs", False, str(error))
    for check in [] if arguments.only else [check_lost_rows, check_too_many_tokens]:
        with tempfile.TemporaryDirectory() as scratch:
            check(sftrun, verdicts, Path(scratch))
    return verdicts.exit_code()


if __name__ == "__main__":
    sys.exit(main())
