#!/usr/bin/env python3
"""Gives the program files that were made to crash it, to hang it or to fill the machine.

    tests/smoke/hostile_input.py --sftrun build/bin/sftrun [--only NAME] [--mutations 2000] [--seed 1]

Standard library only. The files are made here: some are small and become large only when they are read. With --mutations, so many
valid files of every kind are changed at random beside (mutated_input.py). Each command has 30 s of processor time (ten times that
under a sanitizer), ten times as much by the clock, and 4 GB of address space. It must end by itself, with the exit code of the case,
an error of a few lines that show at most 200 characters of a long text of the input (long_input.py), and no crash. With --every N, only one in N of the files that are made here, and none of the slowest.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zlib

import long_input
import mutated_input

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
USAGE, DATA, MEMORY, WORKER_FAILED = 2, 3, 4, 5
SECONDS, ADDRESS_SPACE = 30, 4_000_000 << 10
LONGEST_ANSWER = 20_000  # bytes: twenty problems with their places

YAML = """\
model: {{ name: model, max_seq_len: 128 {model} }}
tuning: {{ mode: {mode} {tuning} }}
data: {{ train: {train} {data} }}
train: {{ max_steps: 1 }}
output: {{ dir: run }}
"""
RECORD = {"messages": [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello there"}]}
CHECK, PREVIEW = ["config", "check", "--config", "run.yaml"], ["preview", "--config", "run.yaml"]
TRAIN = ["train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", "1"]
DRY_RUN = [*TRAIN, "--dry-run"]
TOKENIZE = ["tokenize", "--model", "model", "--input", "in.jsonl", "--output", "out.jsonl"]
CHAT = TOKENIZE[:3] + ["--chat"] + TOKENIZE[3:]

CASES = []


def case(wanted, says, *commands):
    """Adds a function that makes a folder's files; each of the commands must then end with one of `wanted`."""
    def add(make):
        CASES.append((make.__name__, wanted if isinstance(wanted, tuple) else (wanted,), says, commands, make))
        return make
    return add


def write_yaml(folder, train="train.jsonl", mode="lora", **parts):
    blocks = {name: "," + text if text else "" for name, text in
              {"model": "", "tuning": "lora: { r: 4 }" if mode == "lora" else "", "data": "", **parts}.items()}
    (folder / "run.yaml").write_text(YAML.format(train=train, mode=mode, **blocks))


def edit_json(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def chat_template(folder, text):
    (folder / "model/chat_template.jinja").write_text(text)
    (folder / "in.jsonl").write_text(json.dumps(RECORD) + "\n")


def write_gzip(path, head, block, times):
    """Head, then a block again and again, of which the compressed bytes are made once. The checksum is therefore wrong: a limit comes first."""
    compressor = zlib.compressobj(1, wbits=31)
    head, block = (compressor.compress(part) + compressor.flush(zlib.Z_FULL_FLUSH) for part in (head, block))
    path.write_bytes(head + block * times + compressor.flush())


# ---- Data

MIB = 1 << 20


@case(DATA, "a record of more than 256 MiB", PREVIEW)
def line_without_end_compressed(folder):
    write_gzip(folder / "bomb.jsonl.gz", b'{"text": "', b"a" * MIB, 600)
    write_yaml(folder, "bomb.jsonl.gz")


@case(DATA, "a record of more than 256 MiB", PREVIEW)
def line_without_end(folder):
    with open(folder / "train.jsonl", "wb") as out:
        out.truncate(3 << 30)  # of zeros, which take no space
        out.write(b'{"text": "')


@case(DATA, "a record of more than 256 MiB", PREVIEW)
def array_element_without_end(folder):
    write_gzip(folder / "bomb.json.gz", b'[{"text": "', b"a" * MIB, 600)
    write_yaml(folder, "bomb.json.gz")


@case(DATA, "more than 64 MiB of empty lines", PREVIEW)
def newlines_without_end(folder):
    write_gzip(folder / "bomb.jsonl.gz", b"", b"\n" * MIB, 2000)
    write_yaml(folder, "bomb.jsonl.gz")


@case(DATA, "more than 64 MiB of empty lines", PREVIEW)
def newlines_behind_a_record(folder):
    write_gzip(folder / "bomb.jsonl.gz", json.dumps(RECORD).encode(), b"\n" * MIB, 2000)
    write_yaml(folder, "bomb.jsonl.gz")


@case(DATA, "more than 64 MiB of empty lines", PREVIEW)
def newlines_in_csv(folder):
    write_gzip(folder / "bomb.csv.gz", b"text\n", b"\n" * MIB, 1000)
    write_yaml(folder, "bomb.csv.gz")


@case(DATA, "names more than 10000 columns", PREVIEW)
def csv_of_a_million_columns(folder):
    names = ",".join(f"c{i}" for i in range(1_000_000))
    (folder / "wide.csv").write_text(f"{names}\n{','.join('x' * 1_000_000)}\n")
    write_yaml(folder, "wide.csv")


@case(DATA, "a JSON object of too many keys", PREVIEW)
def line_of_five_million_keys(folder):
    keys = ",".join(f'"k{i}":1' for i in range(5_000_000))
    (folder / "train.jsonl").write_text("{" + keys + "}\n")


@case(DATA, "nested deeper", PREVIEW)
def line_of_brackets(folder):
    (folder / "train.jsonl").write_text('{"text": ' + "[" * 50_000_000 + "\n")


@case(DATA, "too many", PREVIEW)
def line_of_empty_lists(folder):
    (folder / "train.jsonl").write_text('{"text": "x", "more": [' + "[]," * 60_000_000 + "[]]}\n")


@case(DATA, "malformed JSON", PREVIEW, TRAIN)
def broken_line_of_200_megabytes(folder):
    (folder / "train.jsonl").write_text('{"text": "' + "a" * 200_000_000 + "\n")


@case(DATA, "beyond what a 64-bit float can hold", PREVIEW)
def long_literal(folder):
    (folder / "train.jsonl").write_text('{"text": ' + "1" * 100_000_000 + "x}\n")


@case(DATA, "", PREVIEW)
def long_key(folder):
    (folder / "train.jsonl").write_text(json.dumps({"k" * 10_000_000: "x"}) + "\n")


# ---- Files that are none

def special_file(folder, name, kind):
    path = folder / name
    if path.exists():
        path.unlink()
    if kind == "a named pipe":
        os.mkfifo(path)
    elif kind == "a socket":
        server = socket.socket(socket.AF_UNIX)
        here = os.open(folder, os.O_RDONLY)  # an address has 108 bytes at most
        server.bind(f"/proc/self/fd/{here}/{name}")
        os.close(here)
        server.close()
    else:
        path.symlink_to("/dev/zero")


def add_special_files():
    places = {"train.jsonl": (DATA, (PREVIEW, TRAIN)), "run.yaml": (DATA, (CHECK, PREVIEW)), "model/config.json": (DATA, (PREVIEW, DRY_RUN)),
              "model/tokenizer.json": (DATA, (PREVIEW,)), "model/tokenizer_config.json": (DATA, (PREVIEW,)),
              "model/model.safetensors": (DATA, (TRAIN,)), "model/chat_template.jinja": (DATA, (PREVIEW,)),
              "start/adapter_config.json": (DATA, (TRAIN,)), "start/adapter_model.safetensors": (DATA, (TRAIN,)),
              "model.gguf": (DATA, (TRAIN,))}
    for name, (code, commands) in places.items():
        for kind in ("a named pipe", "a socket", "a device"):
            def make(folder, name=name, kind=kind):
                if name.startswith("start/"):
                    write_adapter(folder)
                    write_yaml(folder, tuning="lora: { init_from: start }")
                if name == "model.gguf":
                    text = (folder / "run.yaml").read_text()
                    (folder / "run.yaml").write_text(text.replace("name: model,", "name: model.gguf,"))
                special_file(folder, name, kind)
            make.__name__ = f"{name} is {kind}"
            case(code, f"is {kind}, not a regular file", *commands)(make)


# ---- Adapters and expressions

def write_adapter(folder, **config):
    """A directory as PEFT has it, with nothing trained in it."""
    (folder / "start").mkdir(exist_ok=True)
    text = json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **config})
    (folder / "start/adapter_config.json").write_text(text)
    header = b"{}      "
    (folder / "start/adapter_model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


def adapter(folder, **config):
    write_adapter(folder, **config)
    write_yaml(folder, tuning="lora: { init_from: start }")


DEEP = "(" * 20_000 + "a" + ")" * 20_000
SLOW = "(?:[a-z_.]|[a-z_.]|[a-z_.])*[0-9][0-9][0-9]"


@case((USAGE, DATA), "is not a regular expression", TRAIN)
def adapter_of_deep_targets(folder):
    adapter(folder, target_modules=DEEP)


@case((USAGE, DATA), "is not a regular expression", TRAIN)
def adapter_of_deep_ranks(folder):
    adapter(folder, rank_pattern={DEEP: 4})


@case(USAGE, "is not a regular expression", CHECK, TRAIN)
def trainable_is_deep(folder):
    write_yaml(folder, mode="partial", tuning=f"trainable: ['{DEEP}']")


@case(USAGE, "takes too long", TRAIN, DRY_RUN)
def trainable_is_slow(folder):
    write_yaml(folder, mode="partial", tuning=f"trainable: ['{SLOW}']")


@case(USAGE, "is not a regular expression", CHECK)
def rank_pattern_is_deep(folder):
    write_yaml(folder, tuning=f"lora: {{ rank_pattern: {{ ? '{DEEP}' : 4 }} }}")


# ---- Configurations

@case(USAGE, "more problems", CHECK)
def yaml_of_40_000_unknown_keys(folder):
    with open(folder / "run.yaml", "a") as out:
        out.writelines(f"unknown_key_{i}: 1\n" for i in range(40_000))


@case(USAGE, "", CHECK)
def yaml_of_a_million_keys(folder):
    with open(folder / "run.yaml", "a") as out:
        out.writelines(f"k{i}: 1\n" for i in range(1_000_000))


@case(USAGE, "unknown key", CHECK)
def yaml_of_a_long_key(folder):
    with open(folder / "run.yaml", "a") as out:
        out.write(f"{'k' * 1000}: 1\n")


@case(USAGE, "", CHECK)
def yaml_of_a_long_value(folder):
    (folder / "run.yaml").write_text(f"tuning: {{ mode: {'x' * 5_000_000} }}\n")


@case(USAGE, "", CHECK)
def yaml_of_brackets(folder):
    (folder / "run.yaml").write_text("model: " + "[" * 1_000_000)


# ---- Models

@case(DATA, "", DRY_RUN)
def config_json_of_brackets(folder):
    (folder / "model/config.json").write_text('{"a":' * 1_000_000)


@case(DATA, "too many", DRY_RUN)
def config_json_of_a_million_keys(folder):
    (folder / "model/config.json").write_text("{" + ",".join(f'"k{i}":1' for i in range(1_000_000)) + "}")


@case(DATA, "", PREVIEW)
def tokenizer_json_of_brackets(folder):
    (folder / "model/tokenizer.json").write_text("[" * 20_000_000)


@case(DATA, "", PREVIEW)
def tokenizer_json_of_a_million_keys(folder):
    (folder / "model/tokenizer_config.json").write_text("{" + ",".join(f'"k{i}":1' for i in range(1_000_000)) + "}")


def normalizer(folder, *steps):
    edit_json(folder / "model/tokenizer.json", lambda t: t.update(normalizer={"type": "Sequence", "normalizers": list(steps)}))
    (folder / "in.jsonl").write_text(json.dumps({"text": "a" * 1000}) + "\n")


def replace_step(pattern, content):
    return {"type": "Replace", "pattern": {"String": pattern}, "content": content}


@case(DATA, "the tokenizer's normalizer makes a text", TOKENIZE)
def replace_that_multiplies(folder):
    normalizer(folder, *[replace_step("a", "a" * 50)] * 8)


@case(DATA, "the tokenizer's normalizer makes a text", TOKENIZE)
def replace_by_megabytes(folder):
    normalizer(folder, replace_step("a", "b" * 10_000_000))


@case(DATA, "the tokenizer's pattern", TOKENIZE)
def split_that_backtracks(folder):
    edit_json(folder / "model/tokenizer.json", lambda t: t.update(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(?:a|a)*[^ab]"}, "behavior": "Isolated", "invert": False}))
    (folder / "in.jsonl").write_text(json.dumps({"text": "a" * 10_000}) + "\n")


@case(DATA, "the tokenizer's pattern", TOKENIZE)
def split_of_parentheses(folder):
    edit_json(folder / "model/tokenizer.json", lambda t: t.update(
        pre_tokenizer={"type": "Split", "pattern": {"Regex": "(" * 8000 + ")" * 8000}, "behavior": "Isolated", "invert": False}))
    (folder / "in.jsonl").write_text(json.dumps({"text": "a"}) + "\n")


@case(DATA, "", TRAIN)
def safetensors_of_a_huge_header(folder):
    (folder / "model/model.safetensors").write_bytes((1 << 40).to_bytes(8, "little") + b"{")


@case(DATA, "", TRAIN)
def safetensors_of_a_million_tensors(folder):
    header = b"{" + b",".join(b'"t%d":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}' % i for i in range(1_000_000)) + b"}"
    (folder / "model/model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)


LONG_NAME = "a" * 5000


@case(DATA, "the shard aaa", TRAIN)
def index_of_a_long_file_name(folder):
    (folder / "model/model.safetensors").unlink()
    (folder / "model/model.safetensors.index.json").write_text(json.dumps({"weight_map": {"model.norm.weight": LONG_NAME}}))


@case(USAGE, "no such chat template file", PREVIEW, DRY_RUN, TRAIN)
def chat_template_of_a_long_file_name(folder):
    write_yaml(folder, model=f"chat_template: {LONG_NAME}")


@case((USAGE, DATA), "", DRY_RUN, TRAIN)
def model_of_a_long_name(folder):
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace("name: model,", f"name: {LONG_NAME},"))


@case((USAGE, DATA), "", CHECK, PREVIEW, TRAIN)
def data_of_a_long_name(folder):
    write_yaml(folder, LONG_NAME)


@case((USAGE, DATA), "", TRAIN)
def start_of_a_long_name(folder):
    write_yaml(folder, tuning=f"lora: {{ init_from: {LONG_NAME} }}")


@case((USAGE, DATA), "", TRAIN)
def output_of_a_long_name(folder):
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace("dir: run", f"dir: {LONG_NAME}"))


def gguf(folder, num_tensors, num_keys, body=b""):
    content = b"GGUF" + (3).to_bytes(4, "little") + num_tensors.to_bytes(8, "little") + num_keys.to_bytes(8, "little") + body
    (folder / "model.gguf").write_bytes(content)
    text = (folder / "run.yaml").read_text()
    (folder / "run.yaml").write_text(text.replace("name: model,", "name: model.gguf,"))


@case(DATA, "", TRAIN)
def gguf_of_endless_counts(folder):
    gguf(folder, (1 << 63) - 1, (1 << 63) - 1)


@case(DATA, "", TRAIN)
def gguf_of_an_endless_list(folder):
    name = b"tokenizer.ggml.tokens"
    gguf(folder, 0, 1, len(name).to_bytes(8, "little") + name + (9).to_bytes(4, "little") + (8).to_bytes(4, "little") +
         (1 << 60).to_bytes(8, "little"))


# ---- Chat templates

TOO_MUCH = "(limit reached)"


@case(DATA, TOO_MUCH, CHAT)
def template_that_searches(folder):
    chat_template(folder, "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 + 'b' %}"
                          "{% for i in range(100000) %}{% if b in a %}x{% endif %}{% endfor %}")


@case(0, "", CHAT)
def template_that_searches_once(folder):
    chat_template(folder, "{% set a = 'a' * 4000000 %}{% set b = 'a' * 2000000 + 'b' + 'a' * 1000 %}{{ messages[1].content }}{{ b in a }}"
                          "{{ a.find(b) }}{{ a.count(b) }}{{ a.replace(b, '') | length }}{{ a.split(b) | length }}")


@case(DATA, TOO_MUCH, CHAT)
def template_that_searches_from_the_right(folder):
    chat_template(folder, "{% set a = 'a' * 4000000 %}{% set b = 'b' + 'a' * 2000000 %}{{ a.rfind(b) }}")


@case(DATA, "more than 64 MiB", CHAT)
def template_that_replaces(folder):
    chat_template(folder, "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}")


@case(DATA, "64 MiB", CHAT)
def template_that_multiplies(folder):
    chat_template(folder, "{{ 'a' * 99999999999 }}")


@case(DATA, TOO_MUCH, CHAT)
def template_that_splits(folder):
    chat_template(folder, "{% set a = 'a ' * 30000000 %}{{ a.split() | length }}")


@case(DATA, TOO_MUCH, CHAT)
def template_of_100_000_variables(folder):
    chat_template(folder, "".join(f"{{% set v{i} = {i} %}}" for i in range(100_000)) + "{{ v99999 }}")


@case(DATA, TOO_MUCH, CHAT)
def template_of_loops(folder):
    chat_template(folder, "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}"
                          "{% endfor %}{% endfor %}{% endfor %}")


@case(DATA, "too deeply", CHAT)
def template_that_recurses(folder):
    chat_template(folder, "{% macro f(x) %}{{ f(x + 1) }}{% endmacro %}{{ f(0) }}")


@case(DATA, "", CHAT)
def template_of_brackets(folder):
    chat_template(folder, "{{ " + "(" * 1_000_000)


@case(DATA, "", CHAT)
def template_of_nested_ifs(folder):
    chat_template(folder, "{% if true %}" * 100_000 + "{% endif %}" * 100_000)


@case(DATA, "too many branches", CHAT)
def template_of_many_branches(folder):
    chat_template(folder, "{% if false %}" + "".join(f"{{% elif x{i} %}}{{% set v{i} = 1 %}}" for i in range(5_000)) + "{% endif %}")


SLOWEST = ("broken_line_of_200_megabytes", "template_that_splits")  # of 9 s each; others reach the same limits in less


# ---- Running

def good_folder(folder):
    shutil.copytree(MODELS / "tied-gqa", folder / "model", ignore=shutil.ignore_patterns("reference.*"))
    (folder / "train.jsonl").write_text((json.dumps(RECORD) + "\n") * 4)
    write_yaml(folder)


def run(program, folder, command, seconds, address_space):
    def limit():
        if address_space:
            resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    own = {k: v for k, v in os.environ.items() if not k.startswith("SFTRUN_")}
    environment = own | {"XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run([program, *command], cwd=folder, env=environment, capture_output=True, timeout=10 * seconds,
                              stdin=subprocess.DEVNULL, preexec_fn=limit)
        result = b"" if command[0] == "preview" else done.stdout  # which shows the data
        return done.returncode, (result + done.stderr).decode(errors="replace")
    except subprocess.TimeoutExpired:
        return None, ""


CRASH = ("terminate called", "what():", "frame #", "Assertion", "Sanitizer", "internal error", "Segmentation")


def is_overflow(code, text):
    """Weights or data that are no finite numbers, found at the first step."""
    return code == WORKER_FAILED and "finite" in text


def problem_of(command, code, text, wanted, says):
    """What is wrong with an answer; None: nothing."""
    if code not in wanted and not (0 in wanted and is_overflow(code, text)):
        return f"exit code {code}, expected {wanted}\n{text[:1500]}"
    if says not in text:
        return f"does not say \"{says}\"\n{text[:1500]}"
    if code != 0 and len(text) > LONGEST_ANSWER:
        return f"{len(text)} bytes of answer"
    if words := next((words for words in CRASH if words in text), None):
        return f"says \"{words}\"\n{text[:1500]}"
    num_errors = len(re.findall("^error: ", text, re.MULTILINE))
    if (code == 0) != (num_errors == 0) or num_errors > 1 and code != USAGE:
        return f"{num_errors} errors with exit code {code}\n{text[:1500]}"
    return None


def check(arguments, found):
    name, wanted, says, commands, make = found
    problems, slowest = [], 0
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        good_folder(folder)
        wanted = make(folder) or wanted
        for command in commands:
            title = f"{name}: {command[0]}"
            begin = time.monotonic()
            code, text = run(arguments.sftrun.resolve(), folder, command, arguments.seconds, arguments.address_space)
            slowest = max(slowest, time.monotonic() - begin)
            if code is None:
                problems.append(f"{title}: still running after {10 * arguments.seconds} s")
            elif problem := problem_of(command, code, text, wanted, says):
                problems.append(f"{title}: {problem}")
            elif quote := long_input.long_quotes(folder, text):
                problems.append(f"{title}: shows {len(quote)} characters of the input or more: {quote}")
        largest = max((p.stat().st_size for p in folder.glob("run/**/*") if p.is_file()), default=0)
        if largest > 50_000_000:
            problems.append(f"{name}: a file of {largest} bytes was written")
    if arguments.only:
        print(f"{name}: {slowest:.1f} s", flush=True)
    return problems, code, slowest


def train_adapter(arguments, folder):
    """A folder with an adapter."""
    good_folder(folder)
    code, text = run(arguments.sftrun.resolve(), folder, TRAIN, arguments.seconds, arguments.address_space)
    assert code == 0, text
    return folder / "run/adapter"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--mutations", type=int, default=0, help="files changed at random, beside the cases here (default 0)")
    parser.add_argument("--seed", type=int, default=1, help="of the changes (default 1)")
    parser.add_argument("--seconds", type=int, default=SECONDS, help="of processors")
    parser.add_argument("--address-space", type=int, default=ADDRESS_SPACE, help="bytes; 0: no limit (sanitizers)")
    parser.add_argument("--every", type=int, default=1, metavar="N",
                        help="one in N of the cases here, without the slowest, as in `make test` (default 1: all)")
    parser.add_argument("--jobs", type=int, default=2)
    arguments = parser.parse_args()
    add_special_files()
    long_input.add_cases(sys.modules[__name__])
    num_problems, codes, slowest = 0, collections.Counter(), (0, "")
    with tempfile.TemporaryDirectory() as directory, concurrent.futures.ThreadPoolExecutor(max_workers=arguments.jobs) as pool:
        cases = [found for found in CASES[::arguments.every] if arguments.every == 1 or found[0] not in SLOWEST]
        if arguments.mutations:
            kinds = mutated_input.make_kinds(sys.modules[__name__], train_adapter(arguments, pathlib.Path(directory)))
            cases += mutated_input.make_cases(kinds, arguments.mutations, arguments.seed)
        cases = [found for found in cases if arguments.only in found[0]]
        for (name, *_), (problems, code, seconds) in zip(cases, pool.map(lambda found: check(arguments, found), cases)):
            num_problems += len(problems)
            codes[code] += 1
            slowest = max(slowest, (seconds, name))
            for problem in problems:
                print("FAIL", problem, flush=True)
    print(f"seed {arguments.seed}: {len(cases)} cases ({arguments.mutations} changed at random), slowest {slowest[0]:.1f} s ({slowest[1]}), "
          f"exit codes {dict(codes.most_common())}, {num_problems} problems")
    return 1 if num_problems or not cases else 0


if __name__ == "__main__":
    sys.exit(main())
