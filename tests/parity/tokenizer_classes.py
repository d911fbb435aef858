"""tokenizer.json beside a class of transformers 5 that puts its own normalizer and pre_tokenizer in place of the file's: we know it, and
only then; and of which texts it changes the tokens."""
import json
import random

from parity_record import Found
from tokenizer_directories import auto, fixture, write_directory
from tokenize_helper import lines_of, run_helper
from tokenizers import Tokenizer

MODEL_TYPES = ["llama", "mistral", "mixtral", "smollm3", "qwen2", "qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text",
               "phi3", "olmo2", "olmo3", "granite", "gpt_oss", "gemma3_text"]
CLASSES = [None, "GPT2Tokenizer", "GPT2TokenizerFast", "Qwen2Tokenizer", "Qwen2TokenizerFast", "Qwen3_5Tokenizer", "TokenizersBackend",
           "PreTrainedTokenizerFast"]
FIXTURES = ["smollm", "gpt2", "qwen2", "llama3"]
# What GemmaTokenizer and Phi-3's kind do to byte-level files is not told apart here.
UNKNOWN = {("gemma3_text", None)}


def splits(tokenizer, samples):
    """What decides the ids of a text beside the vocabulary."""
    normalized = [tokenizer.normalizer.normalize_str(s) if tokenizer.normalizer else s for s in samples]
    return [tokenizer.pre_tokenizer.pre_tokenize_str(s) if tokenizer.pre_tokenizer else s for s in normalized]


SAMPLES = ["Ab 123 don't\n\n  x", "e\u0301 \u0928\u093e\u092e\u0938\u094d\u0924\u0947", "a  b\t12,345.6", "'LL we'Re", "\u1100\u1161 12\n \n3"]


def compare_classes(helper, folder, count):
    combinations = [(m, c, f) for m in MODEL_TYPES for c in CLASSES for f in FIXTURES if (m, c) not in UNKNOWN]
    known = 0
    for number, (model_type, name, vocabulary) in enumerate(random.Random(1).sample(combinations, min(count, len(combinations)))):
        config = {"tokenizer_class": name} if name else {}
        directory = write_directory(folder / "classes" / str(number), {
            "tokenizer.json": fixture(vocabulary), "tokenizer_config.json": config, "config.json": {"model_type": model_type}})
        of_file = splits(Tokenizer.from_file(str(directory / "tokenizer.json")), SAMPLES)
        of_class = splits(auto(directory)._tokenizer, SAMPLES)
        records = [b"n"] + [b"c" + sample.encode() for sample in SAMPLES]
        class_name, *differ = map(json.loads, lines_of(run_helper(helper, ["--directory", str(directory)], records, "--mixed")))
        replaced = of_class != of_file
        if (class_name is not None) != replaced:
            raise AssertionError(f"{vocabulary}'s tokenizer.json, {name}, model_type {model_type}: transformers "
                                 f"{'replaces' if replaced else 'keeps'} its sections; our class: {class_name}")
        for sample, by_file, by_class, differs in zip(SAMPLES, of_file, of_class, differ):
            assert not differs or by_file != by_class, f"{sample!r} is split alike, and we say that its tokens differ"
        known += replaced
    print(f"tokenizer classes: {number + 1} directories, {known} of which AutoTokenizer reads in another way, as we know", flush=True)
    assert known, "none of the directories is read in another way"
    return Found("Directories: classes with sections of their own", number + 1)
