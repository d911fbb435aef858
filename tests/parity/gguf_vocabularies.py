"""Vocabularies of GGUF files: bytes and merges trained here, with how the families themselves split texts as the reference. Where a
package carries the family's pattern it is taken from there; the others are as the families' tokenizer.json files have them, which
llama.cpp's src/llama-vocab.cpp cites."""
import importlib
import json
import re

from fuzz_text import FuzzText
from real_tokenizers import Case, package
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPECIAL = "<|endoftext|>"


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def of_transformers(family):
    return split(importlib.import_module(f"transformers.models.{family}.tokenization_{family}").PRETOKENIZE_REGEX)


def of_tekken():
    wheel = package("mistral-common")
    if not wheel:
        return None
    with wheel.open("mistral_common/data/tekken_240911.json") as file:  # of 19 MB
        return split(json.loads(re.search(r'"pattern": *("(?:[^"\\]|\\.)*")', file.read(100_000).decode("utf-8", "ignore"))[1]))


def of_gpt4o():
    from tiktoken_ext import openai_public

    openai_public.load_tiktoken_bpe = lambda *_, **__: {}  # the pattern alone is wanted, not the ranks, which it would download
    return split(openai_public.o200k_base()["pat_str"])


def of_starcoder():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])


# tokenizer.ggml.pre: what splits, whether texts are normalised to NFC, and whether a word of the vocabulary is taken without merges
FAMILIES = {"qwen2": (lambda: of_transformers("qwen2"), True, False), "qwen35": (lambda: of_transformers("qwen3_5"), True, False),
            "dbrx": (lambda: split(LLAMA3), False, False), "smaug-bpe": (lambda: split(LLAMA3), False, False),
            "llama-bpe": (lambda: split(LLAMA3), False, True), "gpt-4o": (of_gpt4o, False, False), "refact": (of_starcoder, False, False),
            "tekken": (of_tekken, False, True), "gpt-2": (lambda: pre_tokenizers.ByteLevel(add_prefix_space=False), False, False)}


def trained():
    """Merges trained on texts that are not split, so that they reach over every place where a family splits: a place too many or too
    few shows."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), decoders.ByteLevel()
    fuzz = FuzzText("gguf")
    corpus = fuzz.strings(3000) + [kind() for kind in (fuzz.contractions, fuzz.digits, fuzz.spaces, fuzz.pseudo_words) for _ in range(2000)]
    tokenizer.train_from_iterator([text[:100] for text in corpus], trainers.BpeTrainer(
        vocab_size=5000, special_tokens=[SPECIAL], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(SPECIAL, special=True, normalized=False)])
    return tokenizer


def gguf_vocabularies(folder):
    document = json.loads(trained().to_str())
    tokens = sorted(document["model"]["vocab"], key=document["model"]["vocab"].get)
    vocabulary = {"model": "gpt2", "tokens": tokens, "token_types": [3 if token == SPECIAL else 1 for token in tokens],
                  "merges": [" ".join(merge) for merge in document["model"]["merges"]], "bos": 0, "eos": 0}
    for pre, (splitting, nfc, ignore_merges) in FAMILIES.items():
        if not (found := splitting()):
            continue
        document["model"]["ignore_merges"] = ignore_merges
        tokenizer = Tokenizer.from_str(json.dumps(document))
        tokenizer.normalizer = normalizers.NFC() if nfc else None
        tokenizer.pre_tokenizer = found
        path = folder / f"gguf-{pre}.json"
        path.write_text(json.dumps({**vocabulary, "pre": pre}))
        yield Case(f"GGUF pre: {pre}", ("--gguf-vocab", str(path)), tokenizer)
