#!/usr/bin/env python3
"""Data files as sftrun reads them, beside what wrote and reads them elsewhere: pyarrow, datasets, Python's csv, gzip, zstd.

    .venv-ref/bin/python tests/parity/records_parity.py build/bin/dump_records [--seed N] [--tables N]

Random tables of every column type that data sets use (nested, dictionary-encoded, with nulls), written with random options, must
come back as pyarrow gives them; subsets that a README.md declares must be chosen and read as `datasets` does; then cut and changed
files must end in an error or in records, never in a crash.
"""
import argparse
import csv
import decimal
import gzip
import io
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before datasets is imported

sys.path.append(str(Path(__file__).resolve().parents[2] / "scripts" / "fixtures"))

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from make_records import as_json

TEXTS = ["", "a", "naïve", "日本語", "two\nlines", "quo\"te", "com,ma", "tab\there", "\\", "emoji 👩‍👩‍👧", " lead", "trail ", "'", "{}", "null", "NaN",
         "007", "1e5", "true", "x" * 3000]


def text(rng):
    return "".join(rng.choice(TEXTS) for _ in range(rng.randint(0, 3)))


def maybe(rng, value):
    return None if rng.random() < 0.15 else value


TYPES = {
    "string": (pa.string(), lambda r: text(r)),
    "large_string": (pa.large_string(), lambda r: text(r)),
    "string_view": (pa.string_view(), lambda r: text(r)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), lambda r: r.choice(["train", "test", "é"])),
    "int64": (pa.int64(), lambda r: r.randint(-2**62, 2**62)),
    "uint8": (pa.uint8(), lambda r: r.randint(0, 255)),
    "int8": (pa.int8(), lambda r: r.randint(-128, 127)),
    "uint64": (pa.uint64(), lambda r: r.randint(0, 2**64 - 1)),
    "double": (pa.float64(), lambda r: r.choice([0.5, -1.25, 1e300, 3.0, -0.0, 1e15, 1e16, 5e-324, r.random(), r.randint(-10**6, 10**6) / 64])),
    "float": (pa.float32(), lambda r: r.choice([3.0, -0.0, r.random(), 1e30 * r.random()])),
    "half": (pa.float16(), lambda r: r.choice([3.0, -0.0, r.random()])),
    "decimal": (pa.decimal128(20, 3), lambda r: decimal.Decimal(r.randint(-10**19, 10**19)) / 1000),
    "whole": (pa.decimal256(60, 0), lambda r: decimal.Decimal(r.randint(-10**r.randint(0, 50), 10**50))),
    "map": (pa.map_(pa.string(), pa.float64()), lambda r: [(str(i), maybe(r, float(i))) for i in range(r.randint(0, 3))]),
    "numbered": (pa.map_(pa.int8(), pa.string()), lambda r: [(i, text(r)) for i in range(r.randint(0, 2))]),
    "bool": (pa.bool_(), lambda r: r.random() < 0.5),
    "list": (pa.list_(pa.string()), lambda r: [maybe(r, text(r)) for _ in range(r.randint(0, 3))]),
    "large_list": (pa.large_list(pa.int32()), lambda r: [r.randint(0, 9) for _ in range(r.randint(0, 3))]),
    "fixed_list": (pa.list_(pa.int16(), 2), lambda r: [r.randint(0, 9), r.randint(0, 9)]),
    "turns": (pa.list_(pa.struct([("role", pa.string()), ("content", pa.string()), ("weight", pa.int64())])),
              lambda r: [{"role": r.choice(["user", "assistant"]), "content": maybe(r, text(r)), "weight": maybe(r, 0)}
                         for _ in range(r.randint(0, 3))]),
    "struct": (pa.struct([("text", pa.list_(pa.string())), ("start", pa.int32())]),
               lambda r: {"text": [text(r)], "start": maybe(r, 3)}),
}


def without_nulls(value):
    """Fields that are null are left out, as JSON lines leave them out; nulls in lists stay."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def random_table(rng, names=None):
    names = names or rng.sample(sorted(TYPES), rng.randint(1, 6))
    rows = rng.choice([0, 1, 2, 50, 3000])
    columns, fields = [], []
    for name in names:
        kind, make = TYPES[name]
        columns.append(pa.array([maybe(rng, make(rng)) for _ in range(rows)], type=kind))
        fields.append(pa.field(name, kind))
    return pa.table(columns, schema=pa.schema(fields))


def dump(tool, path, *words):
    done = subprocess.run([tool, str(path), *words], capture_output=True, timeout=120)
    if done.returncode != 0:
        sys.exit(f"dump_records {path} ended with {done.returncode}: {done.stderr.decode()[-2000:]}")
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def dump_text(tool, path):
    """The lines as they are: 3.0 is not 3."""
    return subprocess.run([tool, str(path)], capture_output=True, timeout=120).stdout.decode().split("\n")[:-1]


def line_of(record):
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False)


class Check:
    def __init__(self, tool, folder):
        self.tool, self.folder, self.count = tool, Path(folder), 0

    def same(self, path, expected, what):
        """@param expected each record as a line of JSON"""
        found = dump_text(self.tool, path)
        wanted = [f"[{number + 1},{record}]" for number, record in enumerate(expected)]
        if found != wanted:
            for got, want in zip(found, wanted):
                if got != want:
                    sys.exit(f"FAILED {what}: {path}\n  got    {got}\n  wanted {want}")
            sys.exit(f"FAILED {what}: {len(found)} records, not {len(wanted)}: {found[-1:]}")
        self.count += 1


def check_tables(check, rng, tables):
    for i in range(tables):
        table = random_table(rng)
        path = check.folder / f"{i}.parquet"
        names = [n for n in table.column_names]
        plain = table if "string_view" not in names else table.drop_columns(["string_view"])
        expected, shown = ([as_json(row, pa.struct(one.schema)) for row in one.to_pylist()] for one in (table, plain))
        if plain.num_columns:
            pq.write_table(plain, path, compression=rng.choice(["snappy", "zstd", "gzip", "none", "brotli", "lz4"]),
                           row_group_size=rng.choice([1, 7, 1000, None]) if plain.num_rows else None,
                           use_dictionary=rng.random() < 0.5, data_page_version=rng.choice(["1.0", "2.0"]))
            check.same(path, shown, "parquet")
        path = check.folder / f"{i}.arrow"
        with pa.OSFile(str(path), "wb") as out, rng.choice([pa.ipc.new_file, pa.ipc.new_stream])(out, table.schema) as writer:
            writer.write_table(table, max_chunksize=rng.choice([1, 100, 5000]))
        check.same(path, expected, "arrow")


def check_texts(check, rng, rounds):
    for i in range(rounds):
        rows = [{"a": text(rng), "b": text(rng), "ü": text(rng)} for _ in range(rng.choice([1, 5, 500]))]
        for delimiter, extension in [(",", "csv"), ("\t", "tsv")]:
            out = io.StringIO()
            writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, quoting=rng.choice([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
                                    lineterminator=rng.choice(["\n", "\r\n"]))
            writer.writeheader()
            writer.writerows(rows)
            content = rng.choice(["", "\ufeff"]) + out.getvalue()
            write(check, rng, i, extension, content.encode(), rows, "csv")
        records = [without_nulls(row) for row in random_table(rng, ["string", "turns", "double"]).to_pylist()]
        dumped = [json.dumps(record, ensure_ascii=rng.random() < 0.5) for record in records]
        write(check, rng, i, "jsonl", "".join(line + "\n" for line in dumped).encode(), records, "lines")


def write(check, rng, i, extension, content, records, what):
    path = check.folder / f"{i}.{extension}"
    path.write_bytes(content)
    records = [line_of(record) for record in records]
    check.same(path, records, what)
    half = rng.randint(0, len(content))
    members = gzip.compress(content[:half]) + gzip.compress(content[half:])  # as bgzip and pigz write them
    zipped = check.folder / f"{i}.{extension}.gz"
    zipped.write_bytes(rng.choice([members, gzip.compress(content)]) + bytes(rng.choice([0, 0, 1, 512, 100000])))  # tapes pad
    assert gzip.decompress(zipped.read_bytes()) == content
    check.same(zipped, records, what + " gzip")
    packed = check.folder / f"{i}.{extension}.zst"
    frames = [zstd_frame(content)] if rng.random() < 0.3 else [zstd_frame(content[:half]), zstd_frame(content[half:])]
    packed.write_bytes(b"".join(skippable(rng) + frame for frame in frames) + skippable(rng))
    check.same(packed, records, what + " zstd")


def zstd_frame(content):
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as frame:
        frame.write(content)
    return out.getvalue().to_pybytes()


def skippable(rng):
    """A frame that decoders skip, as pzstd writes one before every frame; or nothing."""
    if rng.random() < 0.5:
        return b""
    size = rng.choice([0, 4, 70000])
    return struct.pack("<II", 0x184D2A50 + rng.randrange(16), size) + rng.randbytes(size)


def check_datasets(check, rng):
    """What `datasets` writes."""
    rows = [without_nulls(row) for _ in range(9) for row in random_table(rng, ["string", "turns", "int64"]).to_pylist()]
    data = datasets.Dataset.from_list(rows)
    data.save_to_disk(check.folder / "saved", num_shards=2)
    found = []
    for shard in sorted((check.folder / "saved").glob("data-*.arrow")):
        found += [record for _, record in dump(check.tool, shard)]
    expected = [without_nulls(row) for row in data]
    assert found == expected, (found[:1], expected[:1])
    for suffix, save in [("json", data.to_json), ("parquet", data.to_parquet)]:
        save(str(check.folder / f"d.{suffix}"))
        found = [without_nulls(record) for _, record in dump(check.tool, check.folder / f"d.{suffix}")]
        assert found == expected, (suffix, found[:1], expected[:1])
    check.count += 3


# ---- Subsets: `configs` in the YAML head of a README.md

FILES = ["en/a.jsonl", "en/b.jsonl", "en/sub/c.jsonl", "en-x/a.jsonl", "fr/a.jsonl", "fr/train.jsonl", "fr/test.jsonl", "all/en[1].jsonl",
         ".hidden/a.jsonl", "__cache/a.jsonl", "en/.b.jsonl", "top.jsonl", "config.json", "dataset_info.json", "fr/notes.tex"]
ONE = "configs:\n- config_name: one\n  "
TWO = "configs:\n- {config_name: one, data_files: en/*.jsonl}\n- {config_name: two, data_files: fr/a.jsonl}\n"
SPLITS = ONE + "data_files:\n  - {split: train, path: en/*.jsonl}\n  - split: test\n    path: [fr/a.jsonl, 'fr/t*.jsonl']\n"
# What, the head, the subset, the split; both sides must read the same, or both refuse.
SUBSETS = [
    ("the only one", ONE + "data_files: en/*.jsonl\n", None, "train"),
    ("one file", ONE + "data_files: top.jsonl\n", None, "train"),
    ("a list", ONE + "data_files: [fr/a.jsonl, en/*.jsonl]\n", None, "train"),
    ("files that are named twice", ONE + "data_files: [en/b.jsonl, en/*.jsonl]\n", None, "train"),
    ("splits", SPLITS, None, "train"),
    ("another split", SPLITS, None, "test"),
    ("no such split", SPLITS, None, "extra"),
    ("the only one by its name", SPLITS, "one", "test"),
    ("by name", TWO, "two", "train"),
    ("none by that name", TWO, "three", "train"),
    ("several and no default", TWO, None, "train"),
    ("the default by its flag", TWO + "- {config_name: three, data_files: top.jsonl, default: true}\n", None, "train"),
    ("the default by its name", TWO + "- {config_name: default, data_files: top.jsonl}\n", None, "train"),
    ("two defaults", TWO + "- {config_name: default, data_files: top.jsonl}\n- {config_name: x, data_files: top.jsonl, default: true}\n",
     None, "train"),
    ("not the default, by name", TWO + "- {config_name: three, data_files: top.jsonl, default: true}\n", "one", "train"),
    ("a flag that is false", TWO + "- {config_name: three, data_files: top.jsonl, default: false}\n", None, "train"),
    ("the one that dataset_info is about", "dataset_info:\n  config_name: two\n  dataset_size: 3\n" + TWO, None, "train"),
    ("dataset_info about both", "dataset_info:\n- config_name: one\n- config_name: two\n" + TWO, None, "train"),
    ("two of one name", ONE + "data_files: top.jsonl\n- {config_name: one, data_files: fr/a.jsonl}\n", None, "train"),
    ("data_dir", ONE + "data_dir: en\n", None, "train"),
    ("data_dir with a slash", ONE + "data_dir: ./en-x/\n", None, "train"),
    ("data_dir with splits", ONE + "data_dir: fr\n", None, "train"),
    ("data_dir with splits, the other", ONE + "data_dir: fr\n", None, "test"),
    ("no such data_dir", ONE + "data_dir: de\n", None, "train"),
    ("files below data_dir", "configs:\n- {config_name: x, data_files: top.jsonl}\n- {config_name: one, data_dir: en, data_files: a.jsonl}\n",
     "one", "train"),
    ("neither files nor folder", "configs:\n- config_name: one\n", None, "train"),
    ("neither files nor folder, the other split", "configs:\n- config_name: one\n", "one", "test"),
    ("no such file", ONE + "data_files: [top.jsonl, de/a.jsonl]\n", None, "train"),
    ("a pattern without files", ONE + "data_files: [top.jsonl, de/*.jsonl]\n", None, "train"),
    ("only patterns without files", ONE + "data_files: de/*.jsonl\n", None, "train"),
    ("a folder", ONE + "data_files: en\n", None, "train"),
    ("a folder and back", ONE + "data_files: en/../fr/a.jsonl\n", None, "train"),
    ("stars in a name", ONE + "data_files: [top.jsonl, '**.jsonl']\n", None, "train"),
    ("a map", ONE + "data_files: {train: top.jsonl}\n", None, "train"),
    ("a list of both kinds", ONE + "data_files: [top.jsonl, {split: test, path: fr/a.jsonl}]\n", None, "train"),
    ("a split twice", ONE + "data_files: [{split: train, path: top.jsonl}, {split: train, path: fr/a.jsonl}]\n", None, "train"),
    ("configs that are no list", "configs: one\n", None, "train"),
    ("a config without a name", "configs:\n- data_files: top.jsonl\n", None, "train"),
    ("broken YAML", "configs: [\n", None, "train"),
    ("an empty list", "configs: []\nlanguage: en\n", None, "train"),
    ("no configs", "language: [en, fr]\n", None, "train"),
    ("no configs, and a name", "language: [en, fr]\n", "en", "train"),
    ("no configs, and the name of all", "language: [en, fr]\n", "default", "train"),
]
FOLDERS = ["*", "**", "en", "fr", "en*", "e?", "[ef]*", "[!e]*", "[^e]*", ".hidden", ".*", "__*", ".", "sub", "all", "{en,fr}"]
NAMES = ["*", "**", "*.jsonl", "a.jsonl", "?.jsonl", "[ab].*", "[!a]*", "*[1].jsonl", "en[[]1].jsonl", "[", "\\*", ".*", "config.json", "*.json", "t*"]


def random_pattern(rng):
    return "/".join([rng.choice(FOLDERS) for _ in range(rng.choice([0, 1, 1, 2]))] + [rng.choice(NAMES)])


def make_data_set(check, head, kind="\n"):
    folder = Path(tempfile.mkdtemp(dir=check.folder))
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(json.dumps({"file": name}) + "\n")
    (folder / "README.md").write_bytes(f"---\n{head}---\n# A data set\n---\n".replace("\n", kind).encode())
    return folder


def read_by_datasets(folder, name, split):
    """The records, or None where it refuses."""
    try:
        return datasets.load_dataset(str(folder), name, split=split, cache_dir=tempfile.mkdtemp(dir=folder.parent)).to_list()
    except Exception as error:
        assert "internet" not in str(error), error
        return None


def check_subset(check, what, head, name, split, kind="\n"):
    folder = make_data_set(check, head, kind)
    expected = read_by_datasets(folder, name, split)
    found = dump(check.tool, folder, split, *([name] if name else []))
    refused = bool(found) and isinstance(found[-1], dict)
    records = None if refused or not found else [record for _, record in found]
    if records != expected:
        sys.exit(f"FAILED subsets, {what}: {head}\n  {name=} {split=}\n  got    {found}\n  wanted {expected}")
    check.count += 1
    return expected is not None


def check_subsets(check, rng, rounds):
    read = [check_subset(check, what, *case) for what, *case in SUBSETS]
    assert sum(read) >= 20 and len(read) - sum(read) >= 12, (sum(read), len(read))
    check_subset(check, "lines that end as Windows'", SPLITS, None, "test", kind="\r\n")
    read = 0
    for i in range(rounds):
        patterns = [random_pattern(rng) for _ in range(rng.randint(1, 2))]
        read += check_subset(check, f"patterns {i}", ONE + f"data_files: {json.dumps(patterns)}\n", None, "train")
    assert read > rounds / 10, f"only {read} of {rounds} sets of patterns were read"


def check_broken(check, rng, rounds):
    """Cut and changed files: an error, or records; dump() ends the test where the reader crashes."""
    files = sorted(p for p in check.folder.iterdir() if p.is_file() and p.stat().st_size > 0)
    errors = 0
    for i in range(rounds):
        source = rng.choice(files)
        content = bytearray(source.read_bytes())
        if rng.random() < 0.4:
            content = content[:rng.randint(0, len(content))]
        for _ in range(rng.randint(0, 4)):
            if content:
                content[rng.randrange(len(content))] = rng.randrange(256)
        path = check.folder / f"broken-{i}{''.join(source.suffixes)}"
        path.write_bytes(content)
        found = dump(check.tool, path)
        errors += bool(found and isinstance(found[-1], dict))
        path.unlink()
        check.count += 1
    assert errors > rounds / 4, f"only {errors} of {rounds} were refused"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tool")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tables", type=int, default=40)
    options = parser.parse_args()
    datasets.disable_progress_bars()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        check = Check(options.tool, folder)
        check_tables(check, rng, options.tables)
        check_texts(check, rng, options.tables // 2)
        check_datasets(check, rng)
        check_subsets(check, rng, 2 * options.tables)
        check_broken(check, rng, 5 * options.tables)
    print(f"{check.count} files: records as pyarrow, csv and datasets have them")


if __name__ == "__main__":
    main()
