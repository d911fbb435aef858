#!/usr/bin/env python3
"""Follows what errors and warnings advise, to the letter: the advice is accepted, and the message goes.

    tests/smoke/remedies.py --sftrun build/bin/sftrun            # a test
    tests/smoke/remedies.py --sftrun build/bin/sftrun --quick    # without the rows that load or train a model
    tests/smoke/remedies.py --sftrun build/bin/sftrun --show     # prints what each row provokes, for new rows

Standard library only. The rows are in remedy_table.py. Each says how a message is provoked, a part of the message, the
part of its advice that is followed, and the ways to follow it. After each, the command must succeed, without the message
and without a warning that was not there before. A way that ends in `=> TEXT` may lead to a message with this text:
where the advice leaves a choice, or where this machine lacks a GPU.

The sources are also read: every key and flag that a text in them names must exist, and every value after a key be legal.
"""

import argparse
import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

import bad_input
import remedy_table

ROOT = pathlib.Path(__file__).resolve().parents[2]
BASE = "model.name=model model.max_seq_len=128 data.train=train.jsonl train.max_steps=4 output.dir=run train.learning_rate=1e-5 --device=cpu"
TIMEOUT = 120  # s, of one command
ENGINE = ("generate", "score", "eval", "merge", "quantize", "bench", "chat")  # commands that load or write a model


def flat(text):
    return re.sub(r"\s+", " ", text)


def run(program, folder, command):
    """Exit code, and what was printed, without the folder's name.   @param command may begin with `env NAME=VALUE`"""
    variables = list(itertools.takewhile(lambda word: "=" in word, command[1:])) if command[:1] == ["env"] else []
    environment = bad_input.environment(folder) | dict(word.split("=", 1) for word in variables)
    command = command[1 + len(variables):] if variables else command
    done = subprocess.run([program, *command], cwd=folder, env=environment, capture_output=True, text=True,
                          errors="replace", timeout=TIMEOUT, stdin=subprocess.DEVNULL)
    return done.returncode, (done.stderr + done.stdout).replace(f"{folder}/", "").replace(str(folder), "")


def put(folder, files):
    """@param files names with texts, bytes or records; only records: those of train.jsonl"""
    if isinstance(files, list):
        files = {"train.jsonl": files}
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = bad_input.lines(*content)
        (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def words_of(text):
    """Words `name=value` and `--flag=value` by name; a flag without a value has None."""
    words = [word.partition("=") for word in shlex.split(text)]
    return {name: value if equals else None for name, equals, value in words}


def changed(words, change):
    """`name=value` sets, `~name` removes."""
    words = dict(words)
    for name, value in words_of(change).items():
        if not name.startswith("~"):
            words[name] = value
        else:
            assert name[1:] in words, f"{name[1:]} is not in the command"
            del words[name[1:]]
    return words


def dry_run(words):
    settings = (name if value is None else f"{name}={value}" for name, value in words.items())
    return ["train", "--dry-run", "--config", "empty.yaml", *settings]


class Row:
    """@param ways (files, command, text of a message that may come)"""

    def __init__(self, kind, prepare, command, message, remedy, ways):
        self.kind, self.prepare, self.command, self.message, self.remedy, self.ways = kind, prepare, command, message, remedy, ways

    def title(self):
        return f"{self.kind}: {' '.join(self.command[4:] if self.kind in ('settings', 'records') else self.command)}"[:200]


def rows_of_settings():
    for line in remedy_table.SETTINGS.replace("\\\n", "").splitlines():
        if not line.strip():
            continue
        settings, message, remedy, ways = (part.strip() for part in line.split(" | "))
        words = changed(words_of(BASE), settings)
        ways = [way.partition("=>") for way in ways.split(" ; ")]
        yield Row("settings", {}, dry_run(words), message, remedy,
                  [({}, dry_run(changed(words, change)), expected.strip()) for change, _, expected in ways])


def rows_of_records():
    for files, settings, message, remedy, ways in remedy_table.RECORDS:
        words = changed(words_of(BASE), settings)
        full = []
        for way in ways:
            other, change = way if isinstance(way, tuple) else ({}, way)
            change, _, expected = change.partition("=>")
            full.append((other, dry_run(changed(words, change)), expected.strip()))
        yield Row("records", files, dry_run(words), message, remedy, full)


def rows_of_commands():
    for prepare, command, message, remedy, ways in remedy_table.COMMANDS:
        full = []
        for way in ways:
            other, text = way if isinstance(way, tuple) else (prepare if isinstance(prepare, dict) else {}, way)
            text, _, expected = text.partition("=>")
            full.append((other, shlex.split(text), expected.strip()))
        yield Row("commands", prepare, shlex.split(command), message, remedy, full)


def rows_of_imports():
    for tool, content, message, remedy, ways in remedy_table.IMPORTS:
        def file_of(keys):
            return {"theirs.json": json.dumps({key: value for key, value in keys.items() if value is not None}, indent=1)}
        command = ["config", "import", "theirs.json", "--from", tool]
        yield Row("imports", file_of(content), command, message, remedy, [(file_of(content | way), command, "") for way in ways])


def is_slow(row):
    commands = [row.command, *(command for _, command, _ in row.ways)]
    trains = any(command[0] == "train" and "--dry-run" not in command for command in commands)
    return row.prepare in ("run", "two steps", "full") or trains or any(command[0] in ENGINE for command in commands)


def world(folder, program, prepare):
    """A good run, models to name, and the row's files."""
    bad_input.good_folder(folder, program)
    for model in bad_input.MODELS.iterdir():
        if model.name != "tied-gqa":
            (folder / model.name).symlink_to(model)
    put(folder, {"empty.yaml": "{}", **remedy_table.FILES})
    remedy_table.make_mixture(folder)
    if prepare == "run":
        bad_input.trained(*bad_input.TRAIN)(folder)
    elif prepare == "two steps":
        bad_input.trained(*remedy_table.STEPS.split(), "train.max_steps=2")(folder)
    elif prepare == "full":
        (folder / "full.yaml").write_text(remedy_table.FULL_YAML)
        bad_input.trained(*(word.replace("run.yaml", "full.yaml") for word in bad_input.TRAIN))(folder)


def warnings(text):
    """But for what is said of any adapter of the table's mixture of experts, of settings that a machine without GPUs ignores, and of batches
    of more than the table's few records."""
    found = re.findall(r"\[warning\] (.*)", text)
    return {warning for warning in found if not re.match(r"vLLM ignores|.* stored in F16, |\S+( \w+)? has no effect on a CPU|the batch is larger than an epoch", warning)}


@contextlib.contextmanager
def place_for(program, shared, row, *files):
    """A folder of the row's own; dry runs on the same files share one."""
    if row.kind == "settings":
        yield shared
        return
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        world(folder, program, row.prepare if isinstance(row.prepare, str) else {})
        for each in files:
            put(folder, each)
        yield folder


def follow(program, shared, row, show):
    """What is wrong with the row."""
    problems = []
    with place_for(program, shared, row, row.prepare if not isinstance(row.prepare, str) else {}) as folder:
        code, before = run(program, folder, row.command)
    if show:
        print(f"{row.title()}\n{before}\n")
    if row.message not in flat(before) or row.remedy not in flat(before):
        problems.append(f"{row.title()}\n  does not say `{row.message}` with `{row.remedy}`, but (exit {code}):\n{before[:1500]}")
    for files, command, expected in row.ways:
        with place_for(program, shared, row, row.prepare if row.kind == "records" else {}, files) as folder:
            code, after = run(program, folder, command)
        new = [text for text in warnings(after) - warnings(before) if not expected or expected not in text]
        met = expected and expected in flat(after)
        still = row.message in flat(after) and not met
        if still or new or code != 0 and not met or expected and not met:
            problems.append(f"{row.title()}\n  advice: {row.remedy}\n  followed: {' '.join(command)}\n  leads to (exit {code}):\n{after[:1500]}")
    return problems


# Names in the sources

LITERAL = re.compile(r'"(?:[^"\\\n]|\\.)*"')
SECTIONS = "model|tuning|data|train|parallel|output|callbacks"
# Parts of models, and files. Keys of other tools are in src/foreign and foreign_keys.yaml.
NO_KEYS = re.compile(r"model\.(layers|embed_tokens|norm|visual|language_model|per_layer|dropout|vocab|merges|old)"
                     r"|model\.(vision_tower|vision_model|multi_modal_projector|embed_vision|connector|text_model|image_newline)"
                     r"|output\.weight|train\.generation_$|.*\.(jsonl|gguf|log|h)$|.*safetensors")
# Of other programs, and those that sftrun's launcher gives its workers.
OTHER_FLAGS = {"--chip", "--curve-", "--cuda", "--fuse-qkv", "--ipc", "--logdir", "--max-lora-rank", "--merge", "--mmproj", "--mpirun_hostfile", "--shm-size",
               "--ulimit", "--num-beams", "--images-of-bin", "--max-micro-batch", "--model-path", "--result", "--worker-request", "--enable-lora", "--answer-lines"}
PROSE = {("train.predict_with_generate", "ROUGE"), ("train.predict_with_generate", "no"), ("train.gradient_checkpointing", "the")}


def words_of_schema(schema):
    found = set(map(str, schema.get("enum", []))) | ({str(schema["const"])} if "const" in schema else set())
    for kind in ("anyOf", "oneOf"):
        for part in schema.get(kind, []):
            found |= words_of_schema(part)
    types = schema.get("type", [])
    return found | ({"true", "false"} if "boolean" in (types if isinstance(types, list) else [types]) else set())


def settings_of(schema, before=""):
    """Every key and section, with the words that it takes; empty: others, too."""
    found = {}
    for name, part in schema.get("properties", {}).items():
        is_section = "properties" in part
        found[before + name] = set() if is_section else {word.lower() for word in words_of_schema(part)}
        found |= settings_of(part, f"{before}{name}.") if is_section else {}
    return found


def flags_of(program, folder):
    code, text = run(program, folder, ["--help"])
    assert code == 0, text
    commands = [[name] for name in re.findall(r"^  ([a-z][\w-]+) {2,}\S", text.partition("Subcommands:")[2], re.MULTILINE)]
    assert len(commands) > 10, f"commands: {commands}"
    code, text = run(program, folder, ["config", "--help"])
    commands += [["config", name] for name in re.findall(r"^  ([a-z]+) {2,}\S", text.partition("Subcommands:")[2], re.MULTILINE)]
    found = set()
    for command in [[], *commands]:
        found |= set(re.findall(r"--[a-z][\w-]*", run(program, folder, [*command, "--help"])[1]))
    return found


def check_names(program):
    """What texts of the sources name wrongly."""
    problems, num_keys, num_flags = [], 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        known = settings_of(json.loads(run(program, folder, ["config", "schema"])[1]))
        flags = flags_of(program, folder) | OTHER_FLAGS
    sources = [path for part in ("src", "include") for path in (ROOT / part).rglob("*") if path.suffix in (".cpp", ".h", ".cu", ".cuh", ".yaml")]
    for path in sources:
        ends, between = (r"\n +", " ") if path.suffix == ".yaml" else (r'"\s*\n\s*"', "")  # of the lines of a text
        joined = re.sub(ends, between, path.read_text())
        for literal in LITERAL.findall(joined):
            for key, value in re.findall(rf"(?<![\w./-])((?:{SECTIONS})\.[a-z_](?:[\w.]*\w)?)(?:(?:: |=)(\w+))?", literal):
                is_foreign = "foreign" in path.parts or path.name.startswith("foreign_key")
                if NO_KEYS.match(key) or is_foreign and key not in known:
                    continue
                num_keys += 1
                if key not in known:
                    problems.append(f"{path.relative_to(ROOT)}: no setting is named {key}: {literal}")
                elif value and known[key] and not value.isdigit() and value.lower() not in known[key] and (key, value) not in PROSE:
                    problems.append(f"{path.relative_to(ROOT)}: {key} does not take {value}: {literal}")
            for flag in re.findall(r"(?<![\w-])--[a-z][\w-]*", literal):
                num_flags += 1
                if flag not in flags:
                    problems.append(f"{path.relative_to(ROOT)}: no command has {flag}: {literal}")
    assert num_keys > 500 and num_flags > 100, f"only {num_keys} keys and {num_flags} flags were found"
    return problems, num_keys, num_flags


def wrong_example(program, folder, key):
    """What is wrong with the advice on a value that the setting does not take; whether there is advice on one."""
    check = ["config", "check", "--config", "run.yaml"]
    _, before = run(program, folder, [*check, f"{key}=[{{x: [1]}}]"])
    error = before.partition("error: ")[2]
    advice = re.search(r"fix: write, for example, (\w+): (.*)", error)
    if f"`{key}`" not in error or advice is None:
        return [], 0
    value = advice[2]
    _, after = run(program, folder, [*check, f"{key}={value}"])
    if advice[1] == key.split(".")[-1] and "; it takes" not in after:
        return [], 1
    return [f"{key}: its example {value} is refused:\n{after[:1500]}"], 1


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--show", action="store_true")
    parser.add_argument("--only", default="", help="rows whose command or message has this text")
    arguments = parser.parse_args()
    program = arguments.sftrun.resolve()

    rows = [row for row in [*rows_of_settings(), *rows_of_records(), *rows_of_imports(), *rows_of_commands()]
            if not (arguments.quick and is_slow(row)) and arguments.only in row.title() + row.message]
    problems, num_keys, num_flags = check_names(program)
    with tempfile.TemporaryDirectory() as name, concurrent.futures.ThreadPoolExecutor(max_workers=3) as pool:
        shared = pathlib.Path(name).resolve()
        world(shared, program, {})
        keys = settings_of(json.loads(run(program, shared, ["config", "schema"])[1]))
        examples = list(pool.map(lambda key: wrong_example(program, shared, key), keys))
        problems += [problem for found, _ in examples for problem in found]
        for found in pool.map(lambda row: follow(program, shared, row, arguments.show), rows):
            problems += found
    for problem in problems:
        print("FAIL", problem)
    num_examples = sum(count for _, count in examples)
    assert num_examples > 60, f"only {num_examples} settings have an example"
    print(f"{len(rows)} messages, {sum(len(row.ways) for row in rows)} ways to follow their advice, {num_examples} examples of values, "
          f"{num_keys} keys and {num_flags} flags named in texts, {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
