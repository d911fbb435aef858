"""Every kind of section of a tokenizer.json on its own, around a model that shows what the section did: each character is its
bytes' tokens, and the last of a word has the bytes of `</w>` behind it."""
import io
import json

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from fuzz_text import FuzzText

SPACE = "▁"


def showing():
    return Tokenizer(models.BPE(vocab={f"<0x{byte:02X}>": byte for byte in range(256)}, merges=[], byte_fallback=True, end_of_word_suffix="</w>"))


def words():
    """Each word is one token: the library's offsets of bytes that stand in for characters are not those of the text."""
    return Tokenizer(models.WordLevel(vocab={"<unk>": 0}, unk_token="<unk>"))


def nmt_nfkc():
    """SentencePiece's standard map of characters."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c d e f g h i j"] * 20), model_writer=model, vocab_size=24,
                                             model_type="char", normalization_rule_name="nmt_nfkc_cf", minloglevel=2)
    return sentencepiece_model_pb2.ModelProto.FromString(model.getvalue()).normalizer_spec.precompiled_charsmap


def normalizer_parts():
    n = normalizers
    yield from {
        "NFC": n.NFC(), "NFD": n.NFD(), "NFKC": n.NFKC(), "NFKD": n.NFKD(), "Lowercase": n.Lowercase(), "StripAccents": n.StripAccents(),
        "NFD, StripAccents, Lowercase": n.Sequence([n.NFD(), n.StripAccents(), n.Lowercase()]), "Nmt": n.Nmt(), "Strip": n.Strip(),
        "Strip right": n.Strip(left=False, right=True), "Prepend": n.Prepend(SPACE), "Replace": n.Replace("the", "THE "),
        "Replace pattern": n.Replace(Regex(r"\s+|[aeiou]{2}"), "<>"), "Replace spaces": n.Replace(Regex(" {2,}"), SPACE), "ByteLevel": n.ByteLevel(),
        "BertNormalizer": n.BertNormalizer(), "BertNormalizer cased": n.BertNormalizer(lowercase=False),
        "BertNormalizer bare": n.BertNormalizer(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=True),
        "Precompiled": n.Precompiled(nmt_nfkc()),
        "Albert": n.Sequence([n.Replace("``", '"'), n.NFKD(), n.StripAccents(), n.Lowercase(), n.Precompiled(nmt_nfkc()), n.Replace(Regex(" {2,}"), " ")]),
    }.items()


def pre_tokenizer_parts():
    p = pre_tokenizers
    parts = {
        "BertPreTokenizer": p.BertPreTokenizer(), "ByteLevel": p.ByteLevel(), "CharDelimiterSplit": p.CharDelimiterSplit("e"), "Digits": p.Digits(),
        "Digits apart": p.Digits(individual_digits=True), "Whitespace": p.Whitespace(), "WhitespaceSplit": p.WhitespaceSplit(),
        "UnicodeScripts": p.UnicodeScripts(), "FixedLength": p.FixedLength(3), "Metaspace": p.Metaspace(SPACE, "always"),
        "Metaspace first": p.Metaspace(SPACE, "first"), "Metaspace never": p.Metaspace(SPACE, "never"),
        "Metaspace unsplit": p.Metaspace(SPACE, "first", split=False), "T5": p.Sequence([p.WhitespaceSplit(), p.Metaspace(SPACE, "always")]),
        "Metaspace within": p.Sequence([p.Punctuation(), p.Metaspace(SPACE, "first"), p.Digits()]),
        "ByteLevel twice": p.Sequence([p.ByteLevel(add_prefix_space=False), p.ByteLevel(use_regex=False)]),
        "ByteLevel and Metaspace": p.Sequence([p.ByteLevel(add_prefix_space=False), p.Metaspace("Ġ", "always")]),
        "ByteLevel and Split": p.Sequence([p.ByteLevel(), p.Split(Regex("Ġ|[aeiou]+"), "merged_with_next"), p.Whitespace()]),
    }
    for behavior in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        parts[f"Punctuation {behavior}"] = p.Punctuation(behavior)
        parts[f"Split {behavior}"] = p.Split(Regex(r"\s+|[aeiou]|\d"), behavior)
        parts[f"Split inverted, {behavior}"] = p.Split(Regex(r"\p{L}+|\n"), behavior, invert=True)
        parts[f"Split of a text, {behavior}"] = p.Split("th", behavior)
    yield from parts.items()


def decoder_parts():
    d = decoders
    parts = {
        "none": None, "ByteLevel": d.ByteLevel(), "WordPiece": d.WordPiece(), "WordPiece as it is": d.WordPiece("##", False), "BPEDecoder": d.BPEDecoder(),
        "Metaspace": d.Metaspace(SPACE, "always"), "Metaspace never": d.Metaspace(SPACE, "never"), "CTC": d.CTC(pad_token="<pad>", word_delimiter_token="|"),
        "CTC as it is": d.CTC("<pad>", "|", False), "Replace": d.Replace("a", "<>"), "Replace pattern": d.Replace(Regex("[aeiou]"), "_"), "Fuse": d.Fuse(),
        "ByteFallback": d.ByteFallback(), "Strip": d.Strip("#", 2, 0), "Strip left": d.Strip("#", 1, 0),
        "SentencePiece": d.Sequence([d.Replace(SPACE, " "), d.ByteFallback(), d.Fuse(), d.Strip(" ", 1, 0)]),
        "ByteLevel and more": d.Sequence([d.ByteLevel(), d.Replace("e", "E"), d.Strip("E", 1, 1)]),
    }
    for name, decoder in parts.items():
        tokenizer = Tokenizer(models.WordLevel(vocab={token: i for i, token in enumerate(decoder_tokens())}, unk_token="<unk>"))
        tokenizer.add_special_tokens([AddedToken("<s>", normalized=False), AddedToken("<pad>", normalized=False)])
        tokenizer.add_tokens([AddedToken("Plain", normalized=True)])
        tokenizer.normalizer = normalizers.Lowercase()
        if decoder is not None:
            tokenizer.decoder = decoder
        yield name, tokenizer


def decoder_tokens():
    words = ["<unk>", "<s>", "<pad>", "|", "a", "##b", "###", "#", "##ing", "the", "do", "not", "n't", "'s", "'", "'m", "'ve", ".", ",", "?", "!", " .", "it",
             SPACE, SPACE + "a", "b" + SPACE, SPACE * 3, "end</w>", "</w>", "mid", "Ġthe", "Ċ", "é", "Ã", "©", "Ãī", "中", "<0x41>", "<0xE4>", "<0xB8>", "<0xAD>",
             "<0xFF>", "<0x+1>", "<0xg0>", "<0x 1>", " ", "", "do not", " 're", "EE", "e"]
    return words


def post_processor_parts():
    q = processors
    yield from {
        "BertProcessing": q.BertProcessing(("<0x02>", 2), ("<0x01>", 1)), "RobertaProcessing": q.RobertaProcessing(("<0x02>", 2), ("<0x01>", 1), trim_offsets=False),
        "TemplateProcessing": q.TemplateProcessing(single="[A] [B] $A [C] [A]", pair="$A $B", special_tokens=[("[A]", 1), ("[B]", 2), ("[C]", 3)]),
        "Sequence": q.Sequence([q.ByteLevel(trim_offsets=False), q.TemplateProcessing(single="[A] $A [B]", pair="$A $B", special_tokens=[("[A]", 1), ("[B]", 2)]),
                                q.BertProcessing(("<0x04>", 4), ("<0x03>", 3))]),
    }.items()


def flags(tokenizer):
    """Added tokens with every combination of flags, before a normalizer that changes texts."""
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "first")
    bits = [dict(zip(("lstrip", "rstrip", "single_word", "normalized", "special"), map(bool, map(int, f"{i:05b}")))) for i in range(32)]
    tokenizer.add_tokens([AddedToken(f"<Tok{chr(65 + i % 26)}{i // 26}>" if i % 3 else f"Wort{chr(65 + i % 26)}", **flag) for i, flag in enumerate(bits)])
    return tokenizer


def trained_models(folder):
    """Models of every kind, trained on text made here."""
    from tokenizers import trainers

    fuzz = FuzzText("trained")
    corpus = [fuzz.pseudo_words() for _ in range(3000)] + [fuzz.sentence() for _ in range(900)] + [fuzz.code() for _ in range(100)]
    specials = ["<unk>", "<s>", "</s>"]

    def unigram(byte_fallback, unk):
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.Sequence([normalizers.Precompiled(nmt_nfkc()), normalizers.Replace(Regex(" {2,}"), " ")])
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(SPACE, "always")
        bytes_ = [f"<0x{b:02X}>" for b in range(256)] if byte_fallback else []
        tokenizer.train_from_iterator(corpus, trainers.UnigramTrainer(vocab_size=1500 + len(bytes_), special_tokens=specials + bytes_, unk_token="<unk>",
                                                                      show_progress=False))
        document = json.loads(tokenizer.to_str())
        document["model"]["byte_fallback"] = byte_fallback
        document["added_tokens"] = [t for t in document["added_tokens"] if not t["content"].startswith("<0x")]
        if not unk:
            document["pre_tokenizer"]["split"] = False
        document["decoder"] = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": True}
        return Tokenizer.from_str(json.dumps(document))

    def word_piece():
        tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
        tokenizer.normalizer = normalizers.BertNormalizer()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=1500, special_tokens=["[UNK]", "[CLS]", "[SEP]"], limit_alphabet=150,
                                                                        show_progress=False))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer

    def word_level():
        tokenizer = Tokenizer(models.WordLevel(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(corpus, trainers.WordLevelTrainer(vocab_size=1500, special_tokens=specials, show_progress=False))
        return tokenizer

    def prefixed_bpe():
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##", end_of_word_suffix="</w>", fuse_unk=True))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=1500, special_tokens=specials, continuing_subword_prefix="##",
                                                                  end_of_word_suffix="</w>", limit_alphabet=150, show_progress=False))
        tokenizer.decoder = decoders.BPEDecoder()
        return tokenizer

    for name, tokenizer in (("Unigram", unigram(False, True)), ("Unigram with bytes, unsplit", unigram(True, False)), ("WordPiece", word_piece()),
                            ("WordLevel", word_level()), ("BPE with prefix and suffix", prefixed_bpe())):
        yield name, tokenizer
