"""Models' directories whose tokens stand in several files: tokenizer.json, or a vocabulary without one, and beside it
tokenizer_config.json, special_tokens_map.json, added_tokens.json. The reference is what AutoTokenizer makes of the same directory."""
import json
import pathlib
import random
import shutil

from real_tokenizers import Case, by_scores

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests/data/text"
FAST = {"tokenizer_class": "PreTrainedTokenizerFast"}
NUM_RANDOM, NUM_RANDOM_QUICK = 40, 10


def flags(content, typed=False, **given):
    """A token as files write it; `typed` as tokenizer_config.json does outside of added_tokens_decoder."""
    token = {"content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True, **given}
    return {"__type": "AddedToken", **token} if typed else token


def untyped(content, **given):
    """As special_tokens_map.json has it."""
    token = flags(content, **given)
    del token["special"]
    return token


def auto(directory):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(directory)


def fixture(name):
    return json.loads((FIXTURES / f"{name}.tokenizer.json").read_text(encoding="utf-8"))


def write_directory(folder, files):
    folder.mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


def beside_tokenizer_json():
    """Name, tokenizer.json, tokenizer_config.json, and other files."""
    smollm, llama, gemma, qwen = (fixture(name) for name in ("smollm", "llama2", "gemma", "qwen2"))
    in_model = next(t for t, i in sorted(smollm["model"]["vocab"].items(), key=lambda item: item[1]) if i > 300 and t.isalpha() and len(t) > 2)
    first = smollm["added_tokens"][0]["content"]
    last_id = max(smollm["model"]["vocab"].values())
    decoder = lambda **tokens: {**FAST, "added_tokens_decoder": {key[1:]: token for key, token in tokens.items()}}  # noqa: E731
    yield "added_tokens_decoder", smollm, decoder(_5000=flags("<new>"), _4000=flags("<old>", normalized=True, special=False, lstrip=True),
                                                  _4001=flags("Wort", single_word=True), _4002=flags("<sp>", rstrip=True)), {}
    yield "ids of other tokens", smollm, decoder(_7=flags("<a>"), **{f"_{last_id}": flags("<b>"), f"_{last_id + 1}": flags("<c>")}), {}
    yield "other flags", smollm, decoder(_0=flags(first, lstrip=True, rstrip=True, special=False, normalized=True), _9999=flags(in_model)), {}
    yield "empty decoder", smollm, {**decoder(), "pad_token": "<pad>"}, {
        "special_tokens_map.json": {"additional_special_tokens": ["<not read>"], "pad_token": "<nor this>"}, "added_tokens.json": {"<neither>": 5000}}
    yield "extra list", smollm, {**FAST, "extra_special_tokens": ["<new>", first, flags("<x y>", True, lstrip=True), flags("<z>", True, special=False,
                                                                                                                          normalized=True)]}, {}
    yield "extra names", llama, {**FAST, "extra_special_tokens": {"image_token": "<image>", "video_token": flags("<video>", True, rstrip=True)}}, {}
    yield "additional and extra", smollm, {**FAST, "additional_special_tokens": ["<one>"], "extra_special_tokens": ["<two>"]}, {}
    yield "additional", gemma, {**FAST, "additional_special_tokens": ["<one>", in_model, flags("<two>", True)]}, {}
    yield "named", smollm, {**FAST, "pad_token": "<pad>", "eos_token": flags("<eos new>", True, normalized=True, special=False), "bos_token": in_model,
                            "mask_token": flags("<mask>", True, lstrip=True), "cls_token": None, "image_token": "<image>",
                            "audio_token": flags("<audio>", True), "add_bos_token": True}, {}
    yield "map", llama, {**FAST, "pad_token": "<pad>", "eos_token": "<e>"}, {
        "special_tokens_map.json": {"eos_token": untyped("<end>", lstrip=True), "pad_token": None, "unk_token": "<unk>", "own_token": "<own>",
                                    "additional_special_tokens": ["<one>", "<two>"]}}
    yield "map with extra", qwen, {**FAST, "extra_special_tokens": ["<one>"]}, {
        "special_tokens_map.json": {"extra_special_tokens": ["<two>", "<one>", untyped("<three>", rstrip=True)], "additional_special_tokens": ["<lost>"]}}
    yield "map with names", qwen, {**FAST, "image_token": "<i>", "extra_special_tokens": {"video_token": "<v>"}}, {
        "special_tokens_map.json": {"image_token": "<j>", "audio_token": "<a>", "extra_special_tokens": {"video_token": "<w>", "more_token": "<m>"}}}
    yield "old files", smollm, {**FAST, "pad_token": "<pad>"}, {
        "added_tokens.json": {"<new>": 5000, "<pad>": 4990, "<sp>": 4000, first: 4001},
        "special_tokens_map.json": {"additional_special_tokens": ["<new>"], "sep_token": "<sp>"}}
    yield "old ids of tokenizer.json", smollm, {**FAST, "pad_token": "<lost>"}, {
        "added_tokens.json": {"<lost>": smollm["added_tokens"][0]["id"], "<kept>": 5000}}
    yield "padding", {**smollm, "padding": {"strategy": {"Fixed": 20}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0,
                                            "pad_token": "<filled>"}}, FAST, {}
    yield "Qwen2Tokenizer", qwen, {"tokenizer_class": "Qwen2Tokenizer", "pad_token": flags("<pad>", True, lstrip=True),
                                   "extra_special_tokens": [flags("<new>", True, rstrip=True), "<plain>"]}, {}
    yield "none", gemma, FAST, {}


def random_token(rng, names):
    content = rng.choice(names)
    bits = {key: rng.random() < 0.3 for key in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    return content, bits


def random_files(rng, names, num_ids):
    """Any tokens in any of the files, in forms that transformers takes."""
    def in_config():
        content, bits = random_token(rng, names)
        return content if rng.random() < 0.5 else flags(content, True, **bits)

    def in_map():
        content, bits = random_token(rng, names)
        return content if rng.random() < 0.5 else untyped(content, **{k: v for k, v in bits.items() if k != "special"})

    def decoder():
        ids = rng.sample(range(num_ids + 8), rng.randint(0, 8))
        return {str(i): flags(content, **bits) for i in ids for content, bits in [random_token(rng, names)]}

    keys = ["bos_token", "eos_token", "unk_token", "pad_token", "mask_token", "image_token", "other_token"]
    some = lambda: rng.sample(keys, rng.randint(0, 4))  # noqa: E731
    texts = lambda: [rng.choice(names) for _ in range(rng.randint(0, 3))]  # noqa: E731
    config, special_map = {**FAST, **{key: in_config() for key in some()}}, {key: in_map() for key in some()}
    if rng.random() < 0.4:
        config["added_tokens_decoder"] = decoder()
    if rng.random() < 0.5:
        config["extra_special_tokens"] = [in_config() for _ in range(3)] if rng.random() < 0.6 else {f"x{i}_token": in_config() for i in range(2)}
    if rng.random() < 0.4:
        config["additional_special_tokens"] = texts()
    if rng.random() < 0.4:
        special_map["additional_special_tokens"] = texts()
    if rng.random() < 0.3:
        special_map["extra_special_tokens"] = [in_map() for _ in range(2)]
    files = {"special_tokens_map.json": special_map} if rng.random() < 0.7 else {}
    if rng.random() < 0.5:
        files["added_tokens.json"] = {content: i for content, i in zip(texts(), rng.sample(range(num_ids + 8), 3))}
    return config, files


def at_random(count):
    for seed in range(count):
        rng = random.Random(seed)
        document = fixture(rng.choice(["smollm", "llama2", "gemma", "unigram", "qwen2"]))
        names = [t["content"] for t in document["added_tokens"]] + ["<new>", "<x y>", "Wort", "<Tok>", "a", "<pad>", "the", "<n1>", "<n2>"]
        size = len(document["model"]["vocab"])
        yield f"random {seed}", document, *random_files(rng, names, size)


def without_tokenizer_json(folder, pieces):
    """Vocabularies of bytes, and of a SentencePiece model."""
    for name, vocab, config, files in (
            ("GPT2Tokenizer", "gpt2", {"pad_token": "<pad>"}, {"added_tokens.json": {"<new>": 5000, "<sp>": 4000},
                                                              "special_tokens_map.json": {"additional_special_tokens": ["<new>"], "sep_token": "<sp>"}}),
            ("Qwen2Tokenizer", "qwen2", {"added_tokens_decoder": {"5000": flags("<new>"), "4000": flags("<sp>", special=False, normalized=True)},
                                         "extra_special_tokens": ["<more>"]}, {"special_tokens_map.json": {"pad_token": "<not read>"}}),
            ("Qwen2Tokenizer", "qwen2", {"extra_special_tokens": {"image_token": "<image>"}}, {"added_tokens.json": {"<new>": 5000}})):
        model = fixture(vocab)["model"]
        merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
        directory = write_directory(folder / f"{name}-{len(files)}-{len(config)}", {
            "vocab.json": model["vocab"], "merges.txt": "#version: 0.2\n" + "\n".join(merges) + "\n",
            "tokenizer_config.json": {"tokenizer_class": name, **config}, **files})
        yield f"{name}, {', '.join([*config, *files])}", directory, auto(directory)._tokenizer
    for name, config, files in (
            ("old files", {}, {"added_tokens.json": {"<new>": 5000, "<pad>": 4000}, "special_tokens_map.json": {"pad_token": "<pad>"}}),
            ("decoder", {"added_tokens_decoder": {"5000": flags("<new>"), "4000": flags("<sp>", special=False, lstrip=True)}, "pad_token": "<pad>"}, {}),
            ("extra", {"extra_special_tokens": ["<one>", "<two>"], "image_token": "<image>"}, {})):
        directory = write_directory(folder / f"pieces {name}", {"tokenizer_config.json": {
            "tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}, **files})
        shutil.copy(pieces, directory / "tokenizer.model")
        yield f"LlamaTokenizer, {name}", directory, by_scores(auto(directory)._tokenizer, directory / "tokenizer.model")


def directories(folder, pieces, is_quick):
    """@param pieces a SentencePiece model of BPE"""
    for kinds in (beside_tokenizer_json(), at_random(NUM_RANDOM_QUICK if is_quick else NUM_RANDOM)):
        for name, document, config, files in kinds:
            directory = write_directory(folder / "directories" / name, {"tokenizer.json": document, "tokenizer_config.json": config, **files})
            yield Case(f"directory: {name}", ("--directory", str(directory)), auto(directory)._tokenizer, directory=directory)
    for name, directory, tokenizer in without_tokenizer_json(folder / "directories", pieces):
        yield Case(f"directory: {name}", ("--directory", str(directory)), tokenizer, directory=directory)
