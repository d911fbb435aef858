#!/usr/bin/env python3
"""generate, score, tokenize and preview as users call them, with a tiny model.

    tests/smoke/inference.py --sftrun build/bin/sftrun

Standard library only; Parquet where pyarrow is there.
inputs      the same records as JSON lines, a JSON array, CSV, TSV, Parquet, gzip and standard input give the same answers and scores
formats     messages, ShareGPT, Alpaca and prompts ask the same question
stop        an answer ends before its stop text, wherever that begins, also where it is printed as it comes
penalty     --repetition-penalty changes a greedy answer that repeats itself
summaries   score --json and preview --json
models      a directory of one .gguf file, and --adapter with a run's directory
adapters    score with adapters of some modules or layers gives PEFT's numbers (scripts/fixtures/make_partial_adapters.py)
messages    dtype and device, and that an output is not overwritten

With --quick each kind of file is given to tokenize and to one of generate and score, and an answer is stopped at one place.
"""

import argparse
import csv
import gzip
import json
import math
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODELS = ROOT / "tests/data/models"
MODEL, GGUF = MODELS / "tied-gqa", MODELS / "llama3-gguf/model-Q8_0.gguf"
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
TIMEOUT = 120  # s, of one command

RUN = """\
model: {{ name: {model}, max_seq_len: 64 }}
tuning: {{ mode: lora, lora: {{ r: 4 }} }}
data: {{ train: train.jsonl }}
train: {{ max_steps: 1 }}
output: {{ dir: run }}
"""


class Program:
    def __init__(self, path, folder, quick):
        self.path, self.folder, self.quick, self.failures, self.count = path, folder, quick, [], 0

    def run(self, *words, stdin="", code=0):
        done = subprocess.run([self.path, *map(str, words)], cwd=self.folder, input=stdin.encode(), capture_output=True, timeout=TIMEOUT)
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()  # line ends as they are
        if done.returncode != code:
            raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def lines(self, command, source, *words, stdin=""):
        done = self.run(command, "--model", MODEL, "--input", source, "--output", "-", *words, stdin=stdin)
        return [json.loads(line) for line in done.stdout.split("\n")[:-1]]

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}")
        if not holds:
            self.failures.append(what)


def write_inputs(folder, records):
    """The records in every kind of file. @return their names, JSON lines first"""
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "in.jsonl").write_text(lines)
    (folder / "in.json").write_text(json.dumps(records, indent=2))
    (folder / "in.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name, delimiter in (("in.csv", ","), ("in.tsv", "\t")):
        with open(folder / name, "w", newline="") as file:
            writer = csv.DictWriter(file, records[0], delimiter=delimiter)
            writer.writeheader()
            writer.writerows(records)
    names = ["in.jsonl", "in.json", "in.jsonl.gz", "in.csv", "in.tsv"]
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return names
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(records), folder / "in.parquet")
    with pyarrow.ipc.new_file(folder / "in.arrow", pyarrow.Table.from_pylist(records).schema) as file:
        file.write_table(pyarrow.Table.from_pylist(records))
    return [*names, "in.parquet", "in.arrow"]


def check_inputs(program):
    records = [{"id": f"{n:03}", "prompt": f"{n} and", "completion": f" {n + 1}, \"yes\"", "note": "kept, too"} for n in range(5)]
    names = write_inputs(program.folder, records)
    generate = ["--max-new-tokens", 4, *ON_CPU]
    expected = {command: program.lines(command, names[0], *words) for command, words in
                (("generate", generate), ("score", ON_CPU), ("tokenize", []))}
    for command, added in (("generate", "generated"), ("score", "logprob"), ("tokenize", "input_ids")):
        answers = expected[command]
        program.expect(f"inputs: {command} adds {added} and keeps the rest",
                       [{key: answer[key] for key in records[0]} for answer in answers] == records and all(added in a for a in answers), answers)
    for name in names[1:]:
        left_out = {"score" if name in ("in.json", "in.parquet") else "generate"} if program.quick else set()
        for command, words in (("generate", generate), ("score", ON_CPU), ("tokenize", [])):
            if command in left_out:
                continue
            got = program.lines(command, name, *words)
            program.expect(f"inputs: {command} of {name}", got == expected[command], got)
    for name in ("in.json",) if program.quick else ("in.json", "in.jsonl"):
        stdin = (program.folder / name).read_text()
        program.expect("inputs: score of standard input", program.lines("score", "-", *ON_CPU, stdin=stdin) == expected["score"])
    (program.folder / "bad.csv").write_text("question\nwhat?\n")
    for command in ("generate",) if program.quick else ("generate", "score"):
        done = program.run(command, "--model", MODEL, "--input", "bad.csv", "--output", "-", *ON_CPU, code=3)
        program.expect(f"inputs: {command} names the row without a prompt", "bad.csv, row 1" in done.stderr and '"question"' in done.stderr, done.stderr)


def check_formats(program):
    turns = [("system", "Be short."), ("user", "1 and")]
    asked = [
        {"messages": [{"role": role, "content": text} for role, text in turns]},
        {"messages": [{"role": role, "content": text} for role, text in [*turns, ("assistant", "2")]]},
        {"conversations": [{"from": {"user": "human"}.get(role, role), "value": text} for role, text in [*turns, ("gpt", "2")]]},
        {"instruction": "1 and", "system": "Be short.", "output": "2"},
        {"prompt": [{"role": role, "content": text} for role, text in turns]},
    ]
    (program.folder / "asked.jsonl").write_text("".join(json.dumps(record) + "\n" for record in asked))
    answers = [line["generated"] for line in program.lines("generate", "asked.jsonl", "--max-new-tokens", 6, *ON_CPU)]
    done = program.run("generate", "--model", MODEL, "--prompt", "1 and", "--system", "Be short.", "--max-new-tokens", 6, *ON_CPU)
    program.expect("formats: one question in every format has one answer", set(answers) == {done.stdout[:-1]}, answers)


def check_stop(program):
    ask = ["generate", "--model", MODEL, "--prompt", "1 and 2 and", "--no-chat", "--max-new-tokens", 24, *ON_CPU]
    whole = json.loads(program.run(*ask, "--json").stdout)
    text = whole["generated"]
    program.expect("stop: an answer to stop", len(text) > 12 and whole["finish_reason"] == "length", text)
    places = range(1, len(text) - 3, max(1, len(text) // 3))
    for begin in places[1:2] if program.quick else places:
        stop = text[begin:begin + 3]
        stopped = ["--stop", "never there", f"--stop={stop}"]
        answer = json.loads(program.run(*ask, *stopped, "--json").stdout)
        holds = answer["generated"] == text[:text.find(stop)] and answer["finish_reason"] == "stop"
        program.expect(f"stop: before {stop!r}", holds and answer["generated_tokens"] <= whole["generated_tokens"], answer)
        printed = program.run(*ask, *stopped).stdout
        program.expect(f"stop: printed before {stop!r}", printed == text[:text.find(stop)] + "\n", printed)
    (program.folder / "stop.jsonl").write_text('{"prompt": "1 and 2 and"}\n{"prompt": "1 and 2 and"}\n')
    answers = program.lines("generate", "stop.jsonl", "--no-chat", "--max-new-tokens", 24, f"--stop={text[5:9]}", *ON_CPU)
    program.expect("stop: in a file", {a["generated"] for a in answers} == {text[:text.find(text[5:9])]}, answers)

    penalized = json.loads(program.run(*ask, "--repetition-penalty", 1.5, "--json").stdout)["generated"]
    program.expect("penalty: another answer", penalized != text, penalized)
    if not program.quick:
        one = json.loads(program.run(*ask, "--repetition-penalty", 1, "--json").stdout)["generated"]
        program.expect("penalty: 1 is none", one == text, one)


def check_summaries(program):
    (program.folder / "texts.jsonl").write_text("".join(json.dumps({"text": f"{n} and {n + 1}"}) + "\n" for n in range(6)) + '{"text": "a"}\n')
    done = program.run("score", "--model", MODEL, "--input", "texts.jsonl", "--output", "scored.jsonl", "--json", *ON_CPU)
    summary = json.loads(done.stdout)
    lines = [json.loads(line) for line in (program.folder / "scored.jsonl").read_text().splitlines()]
    logprob, tokens = sum(line["logprob"] or 0 for line in lines), sum(line["tokens"] for line in lines)
    program.expect("summaries: score --json adds the records up",
                   (summary["records"], summary["records_without_tokens"], summary["tokens"]) == (7, 1, tokens)
                   and math.isclose(summary["mean_logprob"], logprob / tokens) and math.isclose(summary["perplexity"], math.exp(-logprob / tokens)),
                   summary)
    (program.folder / "run.yaml").write_text(RUN.format(model=MODEL))
    message = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello there"}]
    (program.folder / "train.jsonl").write_text(json.dumps({"messages": message}) + "\n")
    [data_set] = json.loads(program.run("preview", "--config", "run.yaml", "--json").stdout)["data_sets"]
    [sequence] = data_set["sequences"]
    ids, labels = sequence["input_ids"], sequence["labels"]
    trained = "".join(token for token, label in zip(sequence["tokens"], labels) if label != -100)
    program.expect("summaries: preview --json has the answer labelled", trained.startswith("hello there") and all(
        label in (-100, token) for token, label in zip(ids, labels)) and len(sequence["origins"]) == len(ids), sequence)


def check_models(program):
    (program.folder / "gguf").mkdir()
    shutil.copy(GGUF, program.folder / "gguf/model.gguf")
    ask = ["--prompt", "hello", "--no-chat", "--max-new-tokens", 4, *ON_CPU]
    by_file = program.run("generate", "--model", GGUF, *ask).stdout
    program.expect("models: a directory of one .gguf file", program.run("generate", "--model", "gguf", *ask).stdout == by_file)
    (program.folder / "run.yaml").write_text(RUN.format(model="gguf"))
    (program.folder / "train.jsonl").write_text(json.dumps({"text": "hello there"}) + "\n")
    program.run("train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", 1)
    by_run, by_adapter = (program.run("generate", "--adapter", path, *ask).stdout for path in ("run", "run/adapter"))
    program.expect("models: --adapter with a run's directory", by_run == by_adapter, by_run)


def check_adapters(program):
    folder = ROOT / "tests/data/weights/partial_adapters"
    scores = json.loads((folder / "scores.json").read_text())
    text = json.dumps({"text": scores.pop("text")})
    scores.pop("base")
    chosen = ("excluded", "default_names", "some_layers") if program.quick else scores
    for name in chosen:
        words = ["score", "--model", MODEL, "--adapter", folder / name, "--input", "-", "--output", "-", *ON_CPU]
        done = program.run(*words, stdin=text + "\n")
        is_close = math.isclose(json.loads(done.stdout)["logprob"], scores[name], abs_tol=1e-3)
        program.expect(f"adapters: {name}", is_close, f"{done.stdout} instead of {scores[name]}")
        is_partial = name in ("some_layers", "lacks_module")
        program.expect(f"adapters: {name} is warned of" if is_partial else f"adapters: no warning of {name}",
                       ("have no tensors" in done.stderr) == is_partial, done.stderr)


def check_messages(program):
    variables = ["--chat-template-kwargs", '{"style": 1}']
    for dtype in ("bf16",) if program.quick else ("fp32", "bf16"):
        said = program.run("generate", "--model", MODEL, "--prompt", "a", "--max-new-tokens", 1, "--device", "cpu", "--dtype", dtype, *variables).stderr
        program.expect(f"messages: {dtype}", f"computing in {dtype} on the CPU" in said, said)
        program.expect("messages: a variable that the template does not read", said.count("`style` has no effect: the chat template does not") == 1, said)
    words = ["score", "--model", MODEL, "--input", "texts.jsonl", "--output", "once.jsonl", *ON_CPU]
    said = program.run(*words, *variables).stderr
    program.expect("messages: variables without a conversation", said.count("no prompt or record is a conversation") == 1, said)
    program.expect("messages: dtype and device of score", "computing in fp32 on the CPU" in said, said)
    before = (program.folder / "once.jsonl").read_text()
    words = ["generate", *words[1:], "--max-new-tokens", 1]
    refused = program.run(*words, code=2).stderr
    program.expect("messages: an output is not overwritten", "once.jsonl exists" in refused and "--overwrite" in refused, refused)
    program.expect("messages: nothing of it is lost", (program.folder / "once.jsonl").read_text() == before)
    said = program.run(*words, "--overwrite", *variables).stderr
    program.expect("messages: variables without a conversation to answer", said.count("no prompt or record is a conversation") == 1, said)
    program.expect("messages: --overwrite", "generated" in (program.folder / "once.jsonl").read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="fewer commands, as in `make test`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.sftrun.resolve(), pathlib.Path(folder), arguments.quick)
        for check in (check_inputs, check_formats, check_stop, check_summaries, check_models, check_adapters, check_messages):
            check(program)
    print(f"{program.count - len(program.failures)} of {program.count} checks hold")
    return 1 if program.failures or not program.count else 0


if __name__ == "__main__":
    sys.exit(main())
