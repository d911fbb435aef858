"""Valid files of every kind that sftrun reads, changed at random: cases for hostile_input.py. Standard library only.

A case's answer must be an error of one message, or success where the changed file is still a valid one, as far as
Python's own readers can tell (`still_valid`): what they refuse must not be trained on.
"""

import gzip
import json
import pathlib
import random
import shutil
import struct
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/fuzz"))
from run import zstd_frame  # noqa: E402

RECORDS = ROOT / "tests/data/records"
MODELS = ROOT / "tests/data/models"
REFUSED, ANY = (2, 3, 4), (0, 2, 3, 4)

NUMBERS = ["-1", "0", "1e999", "-0.0", "NaN", "2147483648", "-9223372036854775809", "18446744073709551616", "1" * 400, "0.1", "1e-320"]
VALUES = [None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -2**63, 1e308, 0.5, "", "x", "\u0000", "\ud800",
          "a" * 100_000, "../../etc/passwd", [], {}, [[]], [None], {"": None}, [0] * 10_000, "{{ x }}", "(" * 500, "%s%n"]
INTEGERS = [0, 1, 2, 7, 255, 2**15, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]

WORDS = ["~", "[", "{", "*a", "&a", "!!binary x", "a: b: c", "'", "\t", "?", "|", "%"]
RAW = [*NUMBERS, "01", ".5", "+1", "tru", "'x'", "{,}", '"\\x"', '{"a":1,"a":2}', "[" * 2000]

RICH_YAML = """\
model: { name: model, max_seq_len: 128, dtype: fp32, attention: auto }
tuning:
  mode: lora
  backend: fused
  lora: { r: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, v_proj], rslora: true }
data: { train: train.jsonl, val_split: 0.1, packing: true, loss_on: assistant, seed: 3, shuffle: true }
train:
  epochs: 2
  global_batch_size: 4
  learning_rate: 1.0e-3
  scheduler: cosine
  warmup_ratio: 0.1
  weight_decay: 0.01
  save_every: 10m
  eval_strategy: epoch
parallel: { strategy: auto, timeout: 5m }
output: { dir: run, tensorboard: false }
"""

# Pieces of templates; XX stands for another piece.
JINJA = ["{{ messages }}", "{{ messages[0].content }}", "{{ messages[-9].role }}", "{% for m in messages %}XX{% endfor %}", "{{ x.y.z }}",
         "{% if messages %}XX{% else %}XX{% endif %}", "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }}", "{{ 'a' * 9999 }}",
         "{% macro f(a, b=2) %}XX{% endmacro %}{{ f(1) }}", "{{ range(10 ** 9) | list }}", "{{ 10 ** 400 }}", "{{ 1 // 0 }}", "{{ 5 % 0 }}",
         "{{ 'a' % 3 }}",
         "{{ messages | tojson(indent=4) }}", "{{ messages | map(attribute='role') | join(',') }}", "{{ '%d' % 'x' }}",
         "{{ '{:>9999999999}'.format(1) }}",
         "{{ raise_exception('no') }}", "{{ strftime_now('%Y') }}", "{{ messages[0:1:-1] }}", "{{ messages[::0] }}", "{{ (1, 2)[5] }}",
         "{{ none.x }}",
         "{% for a in messages recursive %}{{ loop(messages) }}{% endfor %}", "{{ messages | sort(attribute='content') }}",
         "{% generation %}XX{% endgeneration %}",
         "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "{% raw %}{{ x }}{% endraw %}", "{# XX #}", "{{", "{%",
         "}}", "%}", "{#",
         "{% endfor %}", "{% if %}", "{{ 'a' | foo }}", "{{ foo() }}", "{{ dict(a=1).items() | list }}", "{{ [1] + ['a'] }}", "{{ 'a' + 1 }}",
         "{{ -'a' }}",
         "{{ 'abc' | replace('', 'x' * 999) }}", "{{ cycler }}", "{% include 'x' %}", "{% extends 'x' %}", "{% import 'x' as y %}",
         "{{ ''.__class__ }}", "{% set messages = messages[1:] %}", "{{ messages[0]['content'].split('') }}",
         "{{ 'x'.center(99999999999) }}", "{{ 'a,b'.split(',', -5)[7] }}",
         "{% call f() %}XX{% endcall %}", "{% filter upper %}XX{% endfilter %}", "{% with a = 1 %}XX{% endwith %}", "{% do x %}",
         "{{ x is foo }}", "\ufffe", "\0"]


# Changes of bytes

def flip_bits(content, choice):
    for _ in range(choice.choice([1, 1, 4, 64])):
        content[choice.randrange(len(content))] ^= 1 << choice.randrange(8)


def overwrite(content, choice):
    at = choice.randrange(len(content))
    block = choice.choice([b"\0", b"\xff", b"\x80", b" "]) * choice.choice([1, 8, 64])
    content[at:at + len(block)] = block[:len(content) - at]


def cut(content, choice):
    del content[choice.randrange(len(content)):]


def lose(content, choice):
    at = choice.randrange(len(content))
    del content[at:at + choice.choice([1, 2, 8, 64])]


def insert(content, choice):
    at = choice.randrange(len(content) + 1)
    content[at:at] = choice.randbytes(choice.choice([1, 2, 8, 64]))


def repeat(content, choice):
    at = choice.randrange(len(content))
    content[at:at] = content[at:at + choice.choice([1, 8, 64])] * choice.choice([1, 100, 10_000])


def exchange(content, choice):
    first, second = sorted((choice.randrange(len(content)), choice.randrange(len(content))))
    size = min(32, second - first, len(content) - second)
    content[first:first + size], content[second:second + size] = content[second:second + size], content[first:first + size]


def set_integer(content, choice):
    """An integer of a binary format, wherever it may stand; most often near the beginning or the end."""
    size = choice.choice([1, 2, 4, 8])
    reach = choice.choice([64, 1024, len(content)])
    reach = min(reach, len(content))
    at = choice.choice([choice.randrange(reach), max(0, len(content) - 1 - choice.randrange(reach))])
    value = (choice.choice(INTEGERS) % (1 << (8 * size))).to_bytes(size, "little")
    content[at:at + size] = value


BYTES = [flip_bits, overwrite, cut, lose, insert, repeat, exchange]
BINARY = [*BYTES, set_integer, set_integer]


def change_bytes(content, choice, changes=BYTES):
    content = bytearray(content)
    change = choice.choice(changes)
    change(content, choice)
    return bytes(content)


def change_text(text, choice):
    """A number, a word or a line of a text becomes another."""
    lines = text.splitlines(keepends=True)
    at = choice.randrange(len(lines))
    kind = choice.choice(["number", "word", "line gone", "line twice", "indent", "join"])
    if kind in ("number", "word"):
        words = lines[at].split(" ")
        wanted = [i for i, word in enumerate(words) if any(c.isdigit() for c in word) == (kind == "number")]
        if wanted:
            words[choice.choice(wanted)] = choice.choice(NUMBERS if kind == "number" else WORDS)
        lines[at] = " ".join(words)
    elif kind == "line gone":
        del lines[at]
    elif kind == "line twice":
        lines.insert(at, choice.choice(lines))
    elif kind == "indent":
        lines[at] = choice.choice([" ", "\t", "        "]) + lines[at]
    else:
        lines[at] = lines[at].rstrip("\n")
    return "".join(lines)


# Changes of JSON

def paths(value, at=()):
    """Of everything in a JSON value."""
    yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from paths(inner, (*at, key))


def change_json(text, choice):
    """One value of it is another, is gone, is nested, or stands twice."""
    value = json.loads(text)
    where = choice.choice(list(paths(value))[1:])
    parent = value
    for key in where[:-1]:
        parent = parent[key]
    kind = choice.choice(["value", "value", "value", "gone", "nested", "key", "raw"])
    if kind == "value":
        parent[where[-1]] = choice.choice(VALUES)
    elif kind == "gone":
        del parent[where[-1]]
    elif kind == "nested":
        inner = parent[where[-1]]
        for _ in range(choice.choice([1, 50, 500])):
            inner = choice.choice([[inner], {"a": inner}])
        parent[where[-1]] = inner
    elif kind == "key" and isinstance(parent, dict):
        parent[choice.choice(["", "x" * 1000, "\u0000", str(where[-1]).upper(), "type", "model_type"])] = parent.pop(where[-1])
    else:
        parent[where[-1]] = "\u0001RAW"
    return json.dumps(value).replace('"\\u0001RAW"', choice.choice(RAW)).encode()


def is_json(content):
    try:
        json.loads(content.decode())
        return True
    except (ValueError, RecursionError):
        return False


# Data

def message(number):
    return {"messages": [{"role": "user", "content": f"What is {number}? ü"}, {"role": "assistant", "content": f"It is {number}."}]}


LINES = "".join(json.dumps(message(n)) + "\n" for n in range(3))
CSV = "text,more\n" + "".join(f'"a text of ""{n}"", and\nmore",{n}\n' for n in range(4))


def lines_are_valid(content):
    """Of each record that a dry run reads, a JSON object."""
    try:
        lines = [line for line in content.decode("utf-8-sig").split("\n") if line.strip()]
        return bool(lines) and all(isinstance(json.loads(line), dict) for line in lines)
    except (ValueError, RecursionError):
        return False


def array_is_valid(content):
    return content.lstrip()[:1] != b"[" and lines_are_valid(content) or is_json(content)


def text_is_valid(content):
    try:
        content.decode()
        return b"\0" not in content
    except ValueError:
        return False


def gzip_is_valid(content):
    try:
        return lines_are_valid(gzip.decompress(content))
    except (OSError, EOFError, ValueError):
        return False
    except Exception:  # zlib.error has no common base
        return False


def json_lines(choice):
    if choice.random() < 0.5:
        return change_bytes(LINES.encode(), choice)
    lines = LINES.encode().splitlines()
    at = choice.randrange(len(lines))
    lines[at] = change_json(lines[at], choice)
    return b"\n".join(lines) + b"\n"


def json_array(choice):
    array = json.dumps([message(n) for n in range(3)])
    return change_json(array, choice) if choice.random() < 0.6 else change_bytes(array.encode(), choice)


def csv(choice):
    return change_text(CSV, choice).encode(errors="surrogatepass") if choice.random() < 0.3 else change_bytes(CSV.encode(), choice)


def gzipped(choice):
    if choice.random() < 0.3:
        return gzip.compress(json_lines(choice), mtime=0)
    return change_bytes(gzip.compress(LINES.encode(), mtime=0), choice, BINARY)


def zstd(choice):
    return change_bytes(zstd_frame(LINES.encode()), choice, BINARY)


def from_file(path, changes=BINARY):
    return lambda choice: change_bytes(path.read_bytes(), choice, changes)


# Models

def json_file(path):
    def change(choice):
        text = path.read_text()
        return change_json(text, choice) if choice.random() < 0.8 else change_bytes(text.encode(), choice)
    return change


def split_safetensors(content):
    [size] = struct.unpack_from("<Q", content)
    return content[8:8 + size], content[8 + size:]


def safetensors(path):
    """Mostly its header, in which its length is right again."""
    def change(choice):
        content = path().read_bytes()
        if choice.random() < 0.3:
            return change_bytes(content, choice, BINARY)
        header, data = split_safetensors(content)
        header = change_json(header.decode(), choice) if choice.random() < 0.8 else change_bytes(header, choice)
        return struct.pack("<Q", len(header)) + header + data
    return change


BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
        "I64": 64, "U64": 64, "F64": 64}


def is_safetensors(content):
    """As the format's own reader has it: every tensor has its bytes, and there are no others."""
    try:
        header, data = split_safetensors(content)
        tensors = json.loads(header.decode())
        metadata = tensors.pop("__metadata__", {}) if isinstance(tensors, dict) else {}
        at = 0
        for tensor in sorted(tensors.values(), key=lambda tensor: tensor["data_offsets"]):
            begin, end = tensor["data_offsets"]
            count = 1
            for size in tensor["shape"]:
                assert isinstance(size, int) and size >= 0
                count *= size
            assert begin == at and (end - begin) * 8 == count * BITS[tensor["dtype"]]
            at = end
        return at == len(data) and isinstance(metadata, dict)
    except Exception:  # whatever Python finds wrong
        return False


def template(choice):
    def piece(depth):
        text = choice.choice(JINJA)
        while "XX" in text:
            text = text.replace("XX", piece(depth + 1) if depth < 6 else "y", 1)
        return text
    if choice.random() < 0.3:
        return change_bytes((MODELS / "tied-gqa/chat_template.jinja").read_bytes(), choice)
    return "".join(piece(0) for _ in range(choice.randint(1, 6))).encode(errors="surrogatepass")


def yaml(choice):
    return change_text(RICH_YAML, choice).encode() if choice.random() < 0.7 else change_bytes(RICH_YAML.encode(), choice)


def other_tool(choice):
    """A configuration of another tool."""
    path = choice.choice(sorted([*(ROOT / "configs").glob("accelerate/*"), *(ROOT / "configs").glob("deepspeed/*"),
                                 *(ROOT / "tests/data/foreign").glob("*.yaml")]))
    return change_text(path.read_text(), choice).encode() if choice.random() < 0.7 else change_bytes(path.read_bytes(), choice)


# Cases

def always(content):
    return True


class Kind:
    """Files of one kind: where the changed one goes, what reads it, and how many of a hundred cases are of this kind."""

    def __init__(self, share, name, change, still_valid, *commands, prepare=lambda folder: None):
        self.share, self.name, self.change = share, name, change
        self.still_valid, self.commands, self.prepare = still_valid, commands, prepare


def text_column(name):
    """A preview of a table, of which one column is the text."""
    return lambda folder: set_yaml(folder, "train: train.jsonl", f"train: {name}, format: text, fields: {{ text: kind }}")


def set_yaml(folder, old, new):
    text = (folder / "run.yaml").read_text()
    assert old in text
    (folder / "run.yaml").write_text(text.replace(old, new))


def data_file(name, more=""):
    return lambda folder: set_yaml(folder, "train: train.jsonl", f"train: {name}{more}")


def gguf_model(folder):
    set_yaml(folder, "name: model,", "name: model.gguf,")


def make_kinds(hostile, adapter):
    """@param adapter a folder with a trained one"""
    model, gguf = MODELS / "tied-gqa", MODELS / "llama3-gguf/model-Q8_0.gguf"
    sharded = MODELS / "linear-bias-sharded"

    def with_adapter(folder):
        shutil.copytree(adapter, folder / "start")
        hostile.write_yaml(folder, tuning="lora: { init_from: start }")

    def in_shards(folder):
        shutil.rmtree(folder / "model")
        shutil.copytree(sharded, folder / "model", ignore=shutil.ignore_patterns("reference.*"))

    def for_chat(folder):
        (folder / "in.jsonl").write_text(json.dumps(hostile.RECORD) + "\n")

    def for_text(folder):
        (folder / "in.jsonl").write_text(json.dumps({"text": "hello  world\u00e9\U0001f600 12345\n\n<|turn|>"}) + "\n")

    preview, dry_run, train = hostile.PREVIEW, hostile.DRY_RUN, hostile.TRAIN
    return [
        Kind(11, "run.yaml", yaml, text_is_valid, hostile.CHECK),
        Kind(4, "other.yaml", other_tool, text_is_valid, ["config", "import", "other.yaml"]),
        Kind(3, "ds.json", json_file(ROOT / "configs/deepspeed/zero3.json"), text_is_valid, [*hostile.CHECK, "parallel.deepspeed=ds.json"]),
        Kind(8, "train.jsonl", json_lines, lines_are_valid, dry_run),
        Kind(6, "train.json", json_array, array_is_valid, dry_run, prepare=data_file("train.json")),
        Kind(6, "train.csv", csv, text_is_valid, dry_run, prepare=data_file("train.csv", ", format: text")),
        Kind(5, "train.jsonl.gz", gzipped, gzip_is_valid, dry_run, prepare=data_file("train.jsonl.gz")),
        Kind(5, "train.jsonl.zst", zstd, always, dry_run, prepare=data_file("train.jsonl.zst")),
        Kind(4, "plain.parquet", from_file(RECORDS / "plain.parquet"), always, preview, prepare=text_column("plain.parquet")),
        Kind(4, "packed.parquet", from_file(RECORDS / "packed.parquet"), always, preview, prepare=text_column("packed.parquet")),
        Kind(4, "file.arrow", from_file(RECORDS / "file.arrow"), always, preview, prepare=text_column("file.arrow")),
        Kind(4, "packed.arrow", from_file(RECORDS / "packed.arrow"), always, preview, prepare=text_column("packed.arrow")),
        Kind(9, "model/config.json", json_file(model / "config.json"), is_json, dry_run),
        Kind(10, "model/tokenizer.json", json_file(model / "tokenizer.json"), is_json, hostile.TOKENIZE, prepare=for_text),
        Kind(3, "model/tokenizer_config.json", json_file(model / "tokenizer_config.json"), is_json, hostile.CHAT, prepare=for_chat),
        Kind(8, "model/chat_template.jinja", template, always, hostile.CHAT, prepare=for_chat),
        Kind(3, "model/model.safetensors", safetensors(lambda: model / "model.safetensors"), is_safetensors, train),
        Kind(2, "model/model.safetensors.index.json", json_file(sharded / "model.safetensors.index.json"), is_json, train,
             prepare=in_shards),
        Kind(4, "model.gguf", from_file(gguf), always, dry_run, prepare=gguf_model),
        Kind(2, "model.gguf", from_file(gguf), always, train, prepare=gguf_model),
        Kind(1, "start/adapter_config.json", json_file(adapter / "adapter_config.json"), is_json, train, prepare=with_adapter),
        Kind(1, "start/adapter_model.safetensors", safetensors(lambda: adapter / "adapter_model.safetensors"), is_safetensors, train,
             prepare=with_adapter),
    ]


def make_case(kind, seed, number):
    choice = random.Random(f"{seed} {number}")

    def make(folder):
        kind.prepare(folder)
        content = kind.change(choice)
        (folder / kind.name).write_bytes(content)
        return ANY if kind.still_valid(content) else REFUSED
    make.__name__ = f"changed {kind.name}, seed {seed}, number {number}"
    return make.__name__, ANY, "", kind.commands, make


def make_cases(kinds, count, seed):
    """Every kind in turn, as often as its share says."""
    total = sum(kind.share for kind in kinds)
    order = sorted(((i + 0.5) * total / kind.share, number) for number, kind in enumerate(kinds) for i in range(count * kind.share // total + 1))
    return [make_case(kinds[number], seed, i) for i, (_, number) in enumerate(order[:count])]
