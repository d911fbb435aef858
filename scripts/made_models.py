"""Parts of the scripts that write small models with random weights: a byte-level BPE tokenizer, and a file of weights. Standard library only."""

import array
import collections
import json
import math
import random
import re
import struct
import sys

# As GPT-2 divides text into words before BPE.
WORDS = re.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+(?!\S)|\s+")


def byte_symbols():
    """The character that stands for each byte in byte-level BPE (GPT-2, bytes_to_unicode)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def merges_of(words, max_merges=None):
    """BPE: the most frequent pair of neighbours is merged until each word is one token (Sennrich et al., arXiv:1508.07909).

    @param words a Counter of tuples of symbols   @param max_merges None: all
    """
    merges = []
    while len(merges) != max_merges:
        pairs = collections.Counter()
        for word, count in words.items():
            for pair in zip(word, word[1:]):
                pairs[pair] += count
        if not pairs:
            return merges
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        words = collections.Counter({merged(word, best): count for word, count in words.items()})
    return merges


def merged(word, pair):
    result = []
    for symbol in word:
        if result and (result[-1], symbol) == pair:
            result[-1] += symbol
        else:
            result.append(symbol)
    return tuple(result)


def byte_level_bpe(texts, special, max_merges=None):
    """@param special texts of control tokens   @param max_merges None: until each word is a token   @return tokenizer.json, ids of the control tokens"""
    symbols = byte_symbols()
    words = collections.Counter()
    for text in texts:
        words.update(tuple(symbols[byte] for byte in word.encode()) for word in WORDS.findall(text))
    merges = merges_of(words, max_merges)
    vocab = {symbol: i for i, symbol in enumerate([*symbols.values(), *dict.fromkeys(a + b for a, b in merges)])}
    ids = {token: len(vocab) + i for i, token in enumerate(special)}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    added = [{"id": i, "content": token, **flags, "special": True} for token, i in ids.items()]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": False,
             "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": [list(pair) for pair in merges]}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None, "pre_tokenizer": byte_level,
            "post_processor": None, "decoder": byte_level, "model": model}, ids


def write_weights(path, shapes, seed):
    """Writes a safetensors file of fp32.

    @param shapes name, shape and standard deviation of each tensor; None for norms, which are 1   @return number of values
    """
    rng = random.Random(seed)
    header, tensors, offset = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape, deviation in shapes:
        number = math.prod(shape)
        random_values = (rng.gauss(0.0, deviation) if deviation else 0.0 for _ in range(number))
        values = array.array("f", random_values if deviation is not None else [1.0] * number)
        if sys.byteorder == "big":
            values.byteswap()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + 4 * number]}
        offset += 4 * number
        tensors.append(values)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for values in tensors:
            values.tofile(file)
    return offset // 4
