"""The work of bench/compare.py: documents with the lengths of bench/lengths.json or of one length, and the packed sequences that `sftrun train` makes of them.

A folder of work has train.jsonl (`prompt` and `completion`, words of a tokenizer of whole words), rows.jsonl (the same, packed: one line for each sequence in
the order in which `sftrun train` takes them, with `input_ids`, `labels` and `seq_lengths`, which TRL reads) and work.json. All sides can so train on the same tokens in
the same steps. Every answer ends in <eos>, as sftrun and TRL append it. Standard library only.
"""

import array
import collections
import json
import pathlib
import random
import struct

HERE = pathlib.Path(__file__).resolve().parent
IGNORE_INDEX = -100
EOS, PAD, FIRST_WORD = 0, 1, 2
MOST_WORDS = 4096  # of the tokenizer; a model's vocabulary may be larger
UNIFORM = "uniform"  # documents as long as a packed sequence, every token but the first labelled
SEED = 42  # of the run's order (data.seed's default)
WINDOW = 8192  # documents that are packed together (src/data/packing.h)
MASK32 = 0xFFFFFFFF


class RandomStream:
    """sftrun::RandomStream (src/core/rng.cpp): Philox4x32-10 by counter."""

    def __init__(self, seed, stream):
        self.key = (seed & MASK32, seed >> 32)
        self.counter, self.stream, self.block = 0, stream, []

    def next_u32(self):
        if not self.block:
            words = (self.counter & MASK32, self.counter >> 32, self.stream & MASK32, self.stream >> 32)
            self.block, self.counter = list(philox(words, self.key))[::-1], self.counter + 1
        return self.block.pop()

    def next_below(self, bound):
        limit = 2**64 - 1 - (2**64 - 1) % bound
        while True:
            value = self.next_u32() << 32 | self.next_u32()
            if value < limit:
                return value % bound


def philox(counter, key):
    for _ in range(10):
        first, second = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = ((second >> 32) ^ counter[1] ^ key[0], second & MASK32, (first >> 32) ^ counter[3] ^ key[1], first & MASK32)
        key = ((key[0] + 0x9E3779B9) & MASK32, (key[1] + 0xBB67AE85) & MASK32)
    return counter


def shuffled(items, stream):
    items = list(items)
    for left in range(len(items), 1, -1):
        other = stream.next_below(left)
        items[left - 1], items[other] = items[other], items[left - 1]
    return items


def bins_of(lengths, capacity, seed=SEED, window=WINDOW):
    """Documents of each packed sequence of the first epoch, in the order of `sftrun train` (src/data/batch_plan.cpp, packing.cpp): shuffled, packed first-fit decreasing over windows of
    that order, of which the emptiest sequence is packed again in the next window, then the sequences of a window shuffled."""
    order = shuffled(range(len(lengths)), RandomStream(seed, 0))
    packed, carried, bin_order = [], [], RandomStream(seed, 1)
    lengths_at = [lengths[i] for i in order]
    for begin in range(0, len(order), window):
        end = min(begin + window, len(order))
        bins = packed_window(carried + list(range(begin, end)), lengths_at, capacity)
        if end < len(order):
            totals = [sum(lengths_at[place] for place in places) for places in bins]
            carried = bins.pop(totals.index(min(totals)))
        packed += shuffled(bins, bin_order)
    return [[order[place] for place in places] for places in packed]


def packed_window(places, lengths_at, capacity):
    free, bins = [], []
    for place in sorted(places, key=lambda place: -lengths_at[place]):  # stable
        found = next((i for i, left in enumerate(free) if left >= lengths_at[place]), len(free))
        if found == len(free):
            free.append(capacity)
            bins.append([])
        free[found] -= lengths_at[place]
        bins[found].append(place)
    return sorted(sorted(places) for places in bins)


def documents(lengths, seq_len, num_sequences, seed=1):
    """(tokens before the answer, tokens of the answer) of documents that fill about so many sequences. Longer ones than a sequence are left out, as sftrun and others do with chats."""
    if lengths == UNIFORM:
        return [(1, seq_len - 1)] * num_sequences
    pairs = [pair for pair in json.loads((HERE / "lengths.json").read_text())[lengths]["pairs"] if sum(pair) <= seq_len and pair[1] >= 1]
    if not pairs:
        raise ValueError(f"no document of {lengths} has at most {seq_len} tokens")
    chosen, tokens, rng = [], 0, random.Random(seed)
    while tokens < num_sequences * seq_len:
        chosen.append(tuple(rng.choice(pairs)))
        tokens += sum(chosen[-1])
    return chosen


def words_of(num_tokens, vocab, rng):
    return rng.choices(range(FIRST_WORD, vocab), k=num_tokens)


def tokenizer_files(vocab):
    """A tokenizer of whole words between spaces, for the reference's library and for sftrun."""
    special = [{"id": i, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, token in ((EOS, "<eos>"), (PAD, "<pad>"))]
    vocabulary = {"<eos>": EOS, "<pad>": PAD} | {f"w{i}": i for i in range(FIRST_WORD, vocab)}
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"},
                 "post_processor": None, "decoder": None, "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<pad>"}}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "pad_token": "<pad>", "bos_token": None, "unk_token": "<pad>",
                "chat_template": "{% for message in messages %}{{ message.content }}{% if message.role == 'assistant' %}<eos>{% else %} {% endif %}{% endfor %}"}
    return {"tokenizer.json": json.dumps(tokenizer), "tokenizer_config.json": json.dumps(settings)}


def write(folder, vocab_size, lengths, seq_len, num_sequences, seed=1):
    """Writes train.jsonl, rows.jsonl and work.json.   @return work.json's contents"""
    vocab, rng = min(vocab_size, MOST_WORDS), random.Random(seed)
    pairs = documents(lengths, seq_len, num_sequences, seed)
    tokens = [(words_of(prompt, vocab, rng), [*words_of(answer - 1, vocab, rng), EOS]) for prompt, answer in pairs]
    with (folder / "train.jsonl").open("w") as file:
        for prompt, answer in tokens:
            before, after = (" ".join(f"w{i}" for i in part) for part in (prompt, answer[:-1]))
            file.write(json.dumps({"prompt": before + " " if before else "", "completion": after}) + "\n")
    rows = []
    for places in bins_of([sum(pair) for pair in pairs], seq_len):
        row = collections.defaultdict(list)
        for prompt, answer in (tokens[place] for place in places):
            row["input_ids"] += prompt + answer
            row["labels"] += [IGNORE_INDEX] * len(prompt) + answer
            row["seq_lengths"].append(len(prompt) + len(answer))
        rows.append(row)
    with (folder / "rows.jsonl").open("w") as file:
        file.writelines(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    used, labels = sum(sum(pair) for pair in pairs), sum(answer for _, answer in pairs)
    work = {"lengths": lengths, "seq_len": seq_len, "sequences": len(rows), "documents": len(pairs), "tokens": used, "labelled": labels / used,
            "filled": used / (len(rows) * seq_len), "longest": max(sum(pair) for pair in pairs), "median": sorted(sum(pair) for pair in pairs)[len(pairs) // 2]}
    (folder / "work.json").write_text(json.dumps(work))
    return work


def read_rows(folder):
    with pathlib.Path(folder, "rows.jsonl").open() as file:
        return [json.loads(line) for line in file]


def write_small_llama(folder, config, seed=0):
    """model.safetensors, in fp32, and config.json of a small Llama with random weights, and its tokenizer: for rehearsals, where no Python has torch."""
    hidden, heads, kv_heads, head_dim = config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
    shapes = {"model.embed_tokens.weight": (config["vocab_size"], hidden), "model.norm.weight": (hidden,)}
    for layer in range(config["num_hidden_layers"]):
        linears = {"self_attn.q_proj": (heads * head_dim, hidden), "self_attn.k_proj": (kv_heads * head_dim, hidden), "self_attn.v_proj": (kv_heads * head_dim, hidden),
                   "self_attn.o_proj": (hidden, heads * head_dim), "mlp.gate_proj": (config["intermediate_size"], hidden), "mlp.up_proj": (config["intermediate_size"], hidden),
                   "mlp.down_proj": (hidden, config["intermediate_size"]), "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
        shapes |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in linears.items()}
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    rng, header, data = random.Random(seed), {}, array.array("f")
    for name, shape in shapes.items():
        begin = 4 * len(data)
        data.extend([1.0] * shape[0] if len(shape) == 1 else (rng.gauss(0, 0.02) for _ in range(shape[0] * shape[1])))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, 4 * len(data)]}
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data.tobytes())
    settings = config | {"eos_token_id": EOS, "pad_token_id": PAD, "bos_token_id": None}
    for name, content in {"config.json": json.dumps(settings), **tokenizer_files(min(config["vocab_size"], MOST_WORDS))}.items():
        (folder / name).write_text(content)
