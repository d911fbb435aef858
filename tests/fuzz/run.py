#!/usr/bin/env python3
"""Runs the fuzz targets, each from seeds that the repository's fixtures give, and keeps what they find.

    tests/fuzz/run.py --build build-fuzz --seconds 600 [--jobs 2] [target …]

Standard library only. The corpus grows in <build>/corpus/<target>; findings are in <build>/findings/<target>-*.
"""

import argparse
import base64
import concurrent.futures
import json
import pathlib
import shutil
import struct
import subprocess
import sys

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


def records():
    message = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": False}]
    shapes = [
        {"messages": message, "tools": [{"name": "f"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"prompt": message[:1], "completion": message[1:]},
        {"prompt": "p", "completion": "c"},
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


SEEDS = {
    "safetensors": copies("weights/*.safetensors", "models/*/*.safetensors"),
    "gguf": copies("weights/*.gguf", "models/*/*.gguf", "families/*/*.gguf"),
    "model_config": copies("models/*/*.json", "families/*/config.json"),
    "tokenizer_json": copies("text/*.tokenizer.json"),
    "sentencepiece_model": sentencepiece_models,
    "tiktoken": tiktoken_files,
    "jinja": templates,
    "json_lines": records,
    "json_records": json_files,
}
MOST_BYTES = {"jinja": 8192, "json_lines": 4096, "json_records": 4096, "sentencepiece_model": 16384, "tiktoken": 16384}


def fuzz(target, build, seconds):
    corpus, findings = build / "corpus" / target, build / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [build / "bin" / f"fuzz_{target}", corpus, f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096",
               f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", "-verbosity=0"]
    if target in MOST_BYTES:
        command.append(f"-max_len={MOST_BYTES[target]}")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
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
