#!/usr/bin/env python3
"""Runs the fuzz targets, each from seeds that the repository's fixtures give, and keeps what they find.

    tests/fuzz/run.py --build build-fuzz --seconds 600 [--jobs 2] [target …]

Standard library only. The corpus grows in <build>/corpus/<target>; findings are in <build>/findings/<target>-*.
"""

import argparse
import base64
import concurrent.futures
import gzip
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import zlib

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def copies(*patterns):
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted(DATA.glob(pattern))]


def templates():
    """Every template of the rendering fixtures, wherever it stands in their JSON."""
    found = set()

    def collect(value):
        if isinstance(value, str) and "{" in value:
            found.add(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(json.loads((DATA / "text/jinja_cases.json").read_text()))
    return [text.encode() for text in sorted(found)]


def image_processors():
    """Two sizes, and the files of a model's folder with a NUL between them."""
    names = ("preprocessor_config.json", "processor_config.json", "config.json")
    for case in json.loads((DATA / "image_processors/cases.json").read_text())["cases"]:
        yield b"\x35\x54" + b"\0".join(json.dumps(case["files"].get(name, {})).encode() for name in names)


def feature_files():
    """Files as numpy.save writes them, of versions 1 and 2."""
    def npy(descr, shape, values, version=1, order="False"):
        header = f"{{'descr': '{descr}', 'fortran_order': {order}, 'shape': {shape}, }}\n".encode()
        return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + values

    yield npy("<f4", "(2, 3)", struct.pack("<6f", *range(6)))
    yield npy("<f8", "(1, 2, 2)", struct.pack("<4d", *range(4)), version=2)
    yield npy("<f2", "(3,)", struct.pack("<3e", *range(3)))
    yield npy("<f4", "(2, 1)", struct.pack("<2f", 1, 2), order="True")


def records():
    message = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": False}]
    shapes = [
        {"messages": message, "tools": [{"name": "f"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"prompt": message[:1], "completion": message[1:]},
        {"prompt": "p", "completion": "c"},
        {"prompt": "p", "completion": "c", "label": False},
        {"instruction": "i", "input": "", "output": "o"},
        {"text": "t\u00e9\U0001f600"},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
    ]
    return [json.dumps(shape).encode() + b"\n" for shape in shapes] + [b"\xef\xbb\xbf{}\r\n\r\n[1]\n"]


def json_files():
    """Lines, and the same as one array, each after a byte that says how they arrive."""
    lines = records()
    array = b"[" + b",\n ".join(line.strip() for line in lines[:-1]) + b"]"
    return [b"\x07" + text for text in [*lines, b"".join(lines[:-1]), array, b"\xef\xbb\xbf" + array + b"\n", b"[]", b"[{}, [1]]"]]


def tiktoken_files():
    """Small vocabularies in each of the forms that the target reads."""
    encode = lambda text: base64.b64encode(text).decode()  # noqa: E731
    tokens = [bytes([b]) for b in range(256)] + [b"he", b"ll", b"hell", b"hello", b" w"]
    ranked = "".join(f"{encode(token)} {rank}\n" for rank, token in enumerate(tokens))
    tekken = {"config": {"pattern": "\\w+|\\s+", "default_vocab_size": 300, "default_num_special_tokens": 20},
              "vocab": [{"rank": i, "token_bytes": encode(token)} for i, token in enumerate(tokens)]}
    vocab = {"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}
    return [ranked.encode(), json.dumps(tekken).encode(), (json.dumps(vocab) + "\n#version: 0.2\na b\n").encode()]


def protobuf_fields(*fields):
    """(number, value): integers, floats, bytes."""
    out = b""
    for number, value in fields:
        if isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        elif isinstance(value, int):
            out += varint(number << 3) + varint(value)
        else:
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def varint(value):
    out = b""
    while True:
        value, byte = value >> 7, value & 127
        out += bytes([byte | (128 if value else 0)])
        if not value:
            return out


def sentencepiece_models():
    """A model of each type; sentencepiece_model.proto has the numbers."""
    pieces = [("<unk>", 2), ("<s>", 3), ("</s>", 3), *((f"<0x{b:02X}>", 6) for b in range(256)), ("\u2581", 1), ("h", 1), ("e", 1), ("he", 1), ("\u2581he", 1), ("x", 4)]
    messages = b"".join(protobuf_fields((1, protobuf_fields((1, text.encode()), (2, -float(i)), (3, kind)))) for i, (text, kind) in enumerate(pieces))
    # A character map of a root alone, as long as it says.
    charsmap = struct.pack("<II", 4, 0) + b"\0"
    return [messages + protobuf_fields((2, protobuf_fields((3, kind), (35, 1), (40, 0), (41, 1), (42, 2))), (3, protobuf_fields((2, charsmap), (3, 1), (4, kind == 1))))
            for kind in (1, 2)]


def csv_files():
    """Each after a byte that names what is between fields and how long gzip members are."""
    texts = [b"a,b\n1,x\n2,y\n", b'\xef\xbb\xbf"a","\xc3\xbc"\r\n"two\nlines","quo""te"\r\n', b"a\n\n1\n\n", b'a,b\n"open,1\n', b"a,b\n1\n", b"a,b"]
    return [bytes([10 | tab]) + text.replace(b",", b"\t") if tab else bytes([10]) + text for text in texts for tab in (0, 1)]


def zstd_frame(text):
    """One raw block (RFC 8878); nothing in the standard library compresses."""
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(text)) + struct.pack("<I", len(text) << 3 | 1)[:3] + text


def compressed_files():
    """Members, frames, cut ones and a skippable one, each after a byte that says how they are read."""
    text = b"".join(records())
    member, frame, raw = gzip.compress(text, mtime=0), zstd_frame(text), zlib.compressobj(9, wbits=-15)
    stored = b"\x1f\x8b\x08\x08\0\0\0\0\0\xffname\0" + raw.compress(text) + raw.flush() + struct.pack("<II", zlib.crc32(text), len(text))
    skipped = b"\x50\x2a\x4d\x18\x03\0\0\0abc"
    run = b"\x28\xb5\x2f\xfd\xa0\0\x20\0\0\x03\0\x01x"  # 8192 times one byte
    files = [member, member + gzip.compress(b"more", mtime=0), member[:-5], member + b"\0\0", stored, frame, frame + skipped + frame, frame[:-1], run]
    return [b"\x11" + file for file in files]


KINDS = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}


def gguf_value(value):
    if isinstance(value, str):
        return 8, struct.pack("<Q", len(value.encode())) + value.encode()
    if isinstance(value, list):
        items = [gguf_value(item) for item in value]
        return 9, struct.pack("<IQ", items[0][0], len(items)) + b"".join(item for _, item in items)
    kind, form = KINDS[type(value)]
    return kind, struct.pack(form, value)


def gguf_vocab(**keys):
    """A GGUF file of metadata alone (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md)."""
    out = b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys))
    for key, value in keys.items():
        kind, data = gguf_value(value)
        name = ("tokenizer.chat_template" if key == "chat_template" else f"tokenizer.ggml.{key}").encode()
        out += struct.pack("<Q", len(name)) + name + struct.pack("<I", kind) + data
    return out + bytes(-len(out) % 32)


def gguf_vocabs():
    """One of each model that is read."""
    visible = ["h", "e", "l", "o", "\u0120", "he", "<s>", "</s>"]
    types = [1] * 6 + [3, 4]
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "\u2581", "h", "e", "he", "\u2581he"]
    piece_types, scores = [2, 3, 3] + [6] * 256 + [1] * 5, [-float(i) for i in range(len(pieces))]
    of_pieces = {"tokens": pieces, "token_type": piece_types, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    charsmap = list(struct.pack("<II", 4, 0) + b"\0")
    return [
        *(gguf_vocab(model="gpt2", pre=pre, tokens=visible, token_type=types, merges=["h e"], bos_token_id=6, eos_token_id=7, add_bos_token=True)
          for pre in ("gpt-2", "llama-bpe", "qwen2", "tekken", "default", "deepseek-v3")),
        gguf_vocab(model="llama", scores=scores, add_space_prefix=False, chat_template="{{ bos_token }}", **of_pieces),
        gguf_vocab(model="gemma4", merges=["h e"], padding_token_id=0, **of_pieces),
        gguf_vocab(model="t5", scores=scores, precompiled_charsmap=charsmap, remove_extra_whitespaces=True, **of_pieces),
    ]


def example_stores():
    """Files as ExampleWriter writes them (include/sftrun/data/example_store.h); the target sets the checksums."""
    def store(*examples, images=()):
        """@param images: the numbers of the examples that have an image each; its path is the first byte of the tokens"""
        half = struct.unpack("<I", struct.pack("<f", 0.5))[0]
        tokens = []
        for number, example in enumerate(examples):
            labelled = sum(token >> 31 for token in example)
            tokens += example + [half] * (((number + 1) % 4).bit_count() * labelled + number % 2)
        index, offset = b"", 0
        for number, example in enumerate(examples):
            labelled = sum(token >> 31 for token in example)
            columns, targets = (number + 1) % 4, number % 2  # weights and old log-probabilities; one target
            index += struct.pack("<QIIqiIIIII4BIddQ", offset, len(example), labelled, number, 0, number + 1, 0, images.count(number),
                                 len(example) // 2, targets, number % 3, columns, number % 3, number % 2, 0, float(labelled), 0.5, number)
            offset += len(example) + columns.bit_count() * labelled + targets
        tokens += [0] * (len(tokens) % 2)
        body, header = struct.pack(f"<{len(tokens)}I", *tokens), b'{"said":"beside"}'
        at = 8 + len(body)
        sums = bytes(8 * -(-at // 65536))
        index += b"".join(struct.pack("<QQIIII3Ii7Ii", 0, 1, 16, 8, 8, 1, 1, 2, 4, 1, 0, 1, 1, 0, 0, 0, 0, -1) for _ in images)
        return (b"sftrunE6" + body + index + sums + header
                + struct.pack("<6Q", at, len(examples), len(images), at + len(index + sums), len(header), 0) + b"sftrunE6")

    trained = 1 << 31
    return [store(), store([1, 2 | trained, 3]), store([5, 6 | trained], [7], [], [trained - 1, 8 | trained, 9 | trained]),
            store([ord("a"), 3, 4], images=(0,))]


def tokenizer_configs():
    """Three files with a NUL between them, after a byte that chooses the vocabulary."""
    token = {"content": "<x>", "lstrip": True, "normalized": False, "rstrip": True, "single_word": True, "special": True}
    configs = [
        ({"add_bos_token": True, "bos_token": "<s>", "eos_token": {"content": "</s>"}, "added_tokens_decoder": {"10": token, "11": {"content": "hello"}}}, {}, {}),
        ({"tokenizer_class": "Qwen2TokenizerFast", "add_prefix_space": True, "additional_special_tokens": ["<x>", token]}, {"unk_token": "<unk>"}, {}),
        ({"legacy": False, "extra_special_tokens": ["<y>"], "pad_token": None}, {"bos_token": token}, {"<x>": 12, "he ": 13}),
    ]
    return [bytes([kind]) + b"\0".join(json.dumps(file).encode() for file in files) for kind in range(4) for files in configs]


def hub_replies():
    """Replies as they come over the wire, a NUL between them, after a byte that chooses the question."""
    def reply(status, body="", **headers):
        lines = [f"HTTP/1.1 {status} X", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()), "", body]
        return "\r\n".join(lines).encode()

    commit, sha = "c" * 40, "a" * 64
    listing = [{"type": "directory", "path": "d"}, {"type": "file", "path": "d/c.json", "size": 5, "oid": commit},
               {"type": "file", "path": "m.bin", "size": 5, "oid": commit, "lfs": {"oid": sha, "size": 5, "pointerSize": 1}}]
    page = reply(200, json.dumps(listing), Link='<http://127.0.0.1/next>; rel="next", </last>; rel=last')
    answers = [
        (0, [reply(200, json.dumps({"sha": commit}))]),
        (0, [reply(404, "no", X_Error_Code="RevisionNotFound"), reply(429, '{"error": "slow hf_secret"}', Retry_After="0")]),
        (0, [reply(503, "busy", RateLimit='"api";r=0;t=0'), reply(401, "Invalid credentials", X_Error_Message="expired hf_secret")]),
        (1, [reply(200, json.dumps(listing))]), (1, [page, page]),
        (2, [reply(302, Location="https://storage/x?sig=1", X_Linked_Etag=f'"{sha}"', X_Linked_Size="5", X_Repo_Commit=commit)]),
        (2, [reply(307, Location="/moved"), reply(200, ETag='W/"abc"')]), (2, [reply(403, "gated", X_Error_Code="GatedRepo")]),
        (3, [reply(200, "hello", Content_Length=5)]), (3, [reply(200, "hel", Content_Length=5), reply(206, "lo", Content_Range="bytes 3-4/5")]),
        (3, [reply(200, "hel", Content_Length=5), reply(416), reply(200, "hello")]), (3, [reply(200, "hxllo"), reply(200, "hello")]),
    ]
    return [bytes([question]) + b"\0".join(replies) for question, replies in answers]


def safetensors(tensors):
    """name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def ones(*shape):
    return "BF16", list(shape), b"\x80\x3f" * math.prod(shape)


TINY = {"model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1,
        "num_key_value_heads": 1, "max_position_embeddings": 8, "tie_word_embeddings": True}
TINY_EXPERTS = TINY | {"model_type": "gpt_oss", "hidden_size": 32, "intermediate_size": 32, "head_dim": 8, "num_local_experts": 1,
                       "num_experts_per_tok": 1, "sliding_window": 4, "layer_types": ["full_attention"], "rope_theta": 1e4}


def tiny_llama():
    layer = "model.layers.0."
    linear = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    return {"model.embed_tokens.weight": ones(4, 8), "model.norm.weight": ones(8), f"{layer}input_layernorm.weight": ones(8),
            f"{layer}post_attention_layernorm.weight": ones(8), **{f"{layer}{name}.weight": ones(8, 8) for name in linear}}


def tiny_experts():
    layer = "model.layers.0."
    shapes = {"input_layernorm.weight": [32], "post_attention_layernorm.weight": [32], "mlp.router.weight": [1, 32], "mlp.router.bias": [1],
              "mlp.experts.down_proj_bias": [1, 32], "mlp.experts.gate_up_proj_bias": [1, 64], "self_attn.sinks": [1],
              "self_attn.o_proj.weight": [32, 8], "self_attn.o_proj.bias": [32],
              **{f"self_attn.{name}_proj.weight": [8, 32] for name in "qkv"}, **{f"self_attn.{name}_proj.bias": [8] for name in "qkv"}}
    blocks = {f"mlp.experts.{name}_{part}": ("U8", [1, rows, 1, *more], bytes([120]) * (rows * count))
              for name, rows in (("gate_up_proj", 64), ("down_proj", 32)) for part, more, count in (("blocks", [16], 16), ("scales", [], 1))}
    return {"model.embed_tokens.weight": ones(4, 32), "model.norm.weight": ones(32),
            **{layer + name: ones(*shape) for name, shape in shapes.items()}, **{layer + name: tensor for name, tensor in blocks.items()}}


def model_directories():
    """A tiny model in every form that a directory's matrices have, the query alone in fewer bits."""
    query = "model.layers.0.self_attn.q_proj"

    def four_bits(kind, nested):
        state = {"quant_type": kind, "blocksize": 64, "dtype": "bfloat16", "shape": [8, 8]}
        parts = {"absmax": ("F32", [1], struct.pack("<f", 1)), "quant_map": ("F32", [16], struct.pack("<16f", *(i / 8 - 1 for i in range(16))))}
        if nested:
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5}
            parts |= {"absmax": ("U8", [1], b"\1"), "nested_absmax": ("F32", [1], struct.pack("<f", 1)),
                      "nested_quant_map": ("F32", [256], struct.pack("<256f", *(i / 128 - 1 for i in range(256))))}
        text = json.dumps(state).encode()
        parts |= {f"quant_state.bitsandbytes__{kind}": ("U8", [len(text)], text)}
        return {f"{query}.weight": ("U8", [32, 1], bytes(range(32))), **{f"{query}.weight.{name}": part for name, part in parts.items()}}

    factors = struct.pack("<8f", *range(1, 9))
    eight = {f"{query}.weight": ("I8", [8, 8], bytes(range(64))), f"{query}.SCB": ("F32", [8], factors), f"{query}.weight_format": ("U8", [], b"\0")}
    e4m3 = {f"{query}.weight": ("F8_E4M3", [8, 8], bytes(range(64))), f"{query}.weight_scale": ("F32", [8, 1], factors)}
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False},
             "input_activations": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "token", "dynamic": True}}
    fp8 = {"quant_method": "compressed-tensors", "format": "float-quantized", "quantization_status": "compressed",
           "config_groups": {"group_0": group}, "ignore": ["lm_head"]}
    bits = lambda kind: {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": kind}  # noqa: E731
    forms = [(TINY, None, tiny_llama()), *((TINY, bits(kind), tiny_llama() | four_bits(kind, nested)) for kind in ("nf4", "fp4") for nested in (False, True)),
             (TINY, {"quant_method": "bitsandbytes", "load_in_8bit": True}, tiny_llama() | eight), (TINY, fp8, tiny_llama() | e4m3),
             (TINY_EXPERTS, {"quant_method": "mxfp4"}, tiny_experts())]
    return [json.dumps(config | ({"quantization_config": how} if how else {})).encode() + b"\0" + safetensors(tensors) for config, how, tensors in forms]


def adapter_directories():
    """Over TINY: updates of the query and of both ends, whole modules, rows of tokens, a resized vocabulary."""
    query, embedding = "model.layers.0.self_attn.q_proj", "model.embed_tokens"
    updates = {f"{query}.lora_A.weight": ones(2, 8), f"{query}.lora_B.weight": ones(8, 2)}
    of_ends = {f"{embedding}.lora_embedding_A": ones(2, 5), f"{embedding}.lora_embedding_B": ones(8, 2), f"{embedding}.base_layer.weight": ones(5, 8),
               "lm_head.lora_A.weight": ones(2, 8), "lm_head.lora_B.weight": ones(5, 2), "lm_head.base_layer.weight": ones(5, 8)}
    whole = {f"{embedding}.weight": ones(5, 8), f"{embedding}.original_module.weight": ones(5, 8), "lm_head.weight": ones(5, 8)}
    rows = {f"{embedding}.token_adapter.trainable_tokens_delta": ones(2, 8), "lm_head.token_adapter.trainable_tokens_delta": ones(1, 8)}
    config = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    adapters = [({}, {}), ({"target_modules": ["q_proj", "embed_tokens", "lm_head"]}, of_ends), ({"modules_to_save": ["embed_tokens"]}, whole),
                ({"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True}, whole),
                ({"trainable_token_indices": {"embed_tokens": [3, 1], "lm_head": [0]}}, rows)]
    return [json.dumps(config | more).encode() + b"\0" + safetensors({f"base_model.model.{name}": tensor for name, tensor in (updates | tensors).items()})
            for more, tensors in adapters]


SEEDS = {
    "model_directory": model_directories,
    "adapter_directory": adapter_directories,
    "safetensors": lambda: [seed.split(b"\0", 1)[1] for seed in model_directories() + adapter_directories()],
    "gguf": copies("weights/*.gguf", "converted/*-Q8_0.gguf"),
    "model_config": copies("models/*/*.json", "families/*/config.json"),
    "tokenizer_json": copies("text/*.tokenizer.json"),
    "sentencepiece_model": sentencepiece_models,
    "tiktoken": tiktoken_files,
    "jinja": templates,
    "image_file": copies("images/*.jpg", "images/*.png", "images/*.webp"),
    "image_processor": image_processors,
    "json_lines": records,
    "json_records": json_files,
    "csv": csv_files,
    "compressed": compressed_files,
    "parquet": copies("records/*.parquet"),
    "arrow_ipc": copies("records/*.arrow"),
    "gguf_vocab": gguf_vocabs,
    "example_store": example_stores,
    "features": feature_files,
    "tokenizer_config": tokenizer_configs,
    "hub_replies": hub_replies,
}
MAX_BYTES = {"safetensors": 16384, "gguf": 40960, "jinja": 8192, "json_lines": 4096, "json_records": 4096, "sentencepiece_model": 16384, "tiktoken": 16384,
              "csv": 4096, "compressed": 4096, "parquet": 16384, "arrow_ipc": 16384, "gguf_vocab": 32768, "example_store": 4096,
              "tokenizer_config": 4096, "hub_replies": 4096, "image_file": 8192, "features": 1024, "image_processor": 4096, "model_directory": 16384, "adapter_directory": 4096}

# An allocation far beyond any input is a finding in our own code, where `new` does not return; Arrow allocates what a file claims
# before it reads, and makes an error of what is refused.
ASAN_OPTIONS = "allocator_may_return_null=1:max_allocation_size_mb=128"


def fuzz(target, build, seconds):
    corpus, findings = build / "corpus" / target, build / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [build / "bin" / f"fuzz_{target}", corpus, f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096",
               f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", "-verbosity=0"]
    if target in MAX_BYTES:
        command.append(f"-max_len={MAX_BYTES[target]}")
    environment = os.environ | {"ASAN_OPTIONS": ASAN_OPTIONS}
    if pathlib.Path("/dev/shm").is_dir():
        environment["TMPDIR"] = "/dev/shm"
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    (build / "findings" / f"{target}.log").write_text(done.stderr)
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
    return target, done.returncode, runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("targets", nargs="*", default=sorted(SEEDS))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.build / "findings", ignore_errors=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(fuzz, target, arguments.build.resolve(), arguments.seconds) for target in arguments.targets]
        for future in concurrent.futures.as_completed(waiting):
            target, code, runs = future.result()
            failed += code != 0
            print(f"{target}: {runs} inputs, {'nothing found' if code == 0 else f'FINDING, see {arguments.build}/findings'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
