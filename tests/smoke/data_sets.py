#!/usr/bin/env python3
"""Runs over data of every kind: several files and formats mixed, streamed, grouped by length, from the cache.

    tests/smoke/data_sets.py --sftrun build/bin/sftrun

Any number of processes, and a run that was stopped and resumed, must see the same batches; the same records in another file format
must give the same losses. Tables are written by pyarrow where it is installed, CSV and gzip by Python itself.

With --quick some files are only previewed (the same tokens and labels instead of the same losses) or dry-run, and fewer runs are stopped.
"""

import argparse
import csv
import gzip
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
RUN = """\
model: {{ name: {model}, max_seq_len: 96, dtype: fp32 }}
tuning: {{ lora: {{ r: 4, alpha: 8, dropout: 0.1 }} }}
data: {{ {data} }}
train: {{ max_steps: {steps}, global_batch_size: 4, learning_rate: 2.0e-2, warmup_steps: 0, save_steps: 5 }}
output: {{ dir: {folder}/{name}, tensorboard: false }}
"""
STEPS = 12
RELATIVE = 2.0e-5  # sums in another order, in fp32


class Runs:
    def __init__(self, sftrun, folder, quick):
        self.sftrun, self.folder, self.quick, self.known = sftrun, pathlib.Path(folder), quick, {}
        self.environment = {**os.environ, "XDG_CACHE_HOME": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}

    def write_yaml(self, name, data, steps=STEPS):
        yaml = self.folder / f"{name}.yaml"
        yaml.write_text(RUN.format(model=MODEL, data=data, folder=self.folder, name=name, steps=steps))
        return yaml

    def command(self, name, data, processes, steps):
        yaml = self.write_yaml(name, data, steps)
        return [self.sftrun, "train", "--config", yaml, "--nproc-per-node", str(processes), "--device", "cpu"]

    def train(self, name, data, processes=1, steps=STEPS, code=0):
        command = [str(part) for part in self.command(name, data, processes, steps)]
        print("$", *command, f"  # {data}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=self.environment)
        if done.returncode != code:
            sys.exit(f"FAILED {name}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        self.output = done.stdout + done.stderr
        return self.losses(name)

    def check(self, name, data, code=0):
        """A run; with --quick a dry one."""
        if not self.quick:
            self.train(name, data, code=code)
            return
        self.write_yaml(name, data)
        self.output = self.look(name, ["train", "--dry-run", "--nproc-per-node", "1", "--device", "cpu"], code)

    def previewed(self, name, data):
        """Tokens and labels of every record that is used."""
        self.write_yaml(name, data)
        done = subprocess.run([self.sftrun, "preview", "--config", str(self.folder / f"{name}.yaml"), "--json", "-n", "1000"], capture_output=True,
                              text=True, timeout=120, env=self.environment)
        if done.returncode != 0:
            sys.exit(f"FAILED preview of {name}: exit code {done.returncode}\n{done.stderr}")
        [data_set] = json.loads(done.stdout)["data_sets"]
        self.output = done.stderr
        return [(sequence["input_ids"], sequence["labels"]) for sequence in data_set["sequences"] if sequence["num_kept"] > 0]

    def same_data(self, name, data, other_name, other_data, what):
        """The same losses; with --quick the same tokens and labels."""
        see = self.previewed if self.quick else self.train
        if other_name not in self.known:
            self.known[other_name] = see(other_name, other_data)
        require(see(name, data) == self.known[other_name] and len(self.known[other_name]) > 0, what)

    def look(self, name, command, code=0):
        """What another command says of a run's configuration."""
        done = subprocess.run([self.sftrun, *command, "--config", str(self.folder / f"{name}.yaml")], capture_output=True, text=True,
                              timeout=120, env=self.environment)
        if done.returncode != code:
            sys.exit(f"FAILED {command} of {name}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def losses(self, name):
        path = self.folder / name / "metrics.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [metrics["loss"] for metrics in map(json.loads, lines) if "loss" in metrics]

    def stop_after(self, name, data, processes, step):
        """SIGTERM once `step` steps are done."""
        process = subprocess.Popen([str(p) for p in self.command(name, data, processes, STEPS)], env=self.environment,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        deadline = time.time() + 120
        while len(self.losses(name)) < step and process.poll() is None and time.time() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=120)
        if process.returncode != 75:
            sys.exit(f"FAILED {name}: exit code {process.returncode}, not 75, when stopped\n{output}")

    def check_resumed(self, name, data, losses, what, step=4):
        self.stop_after(f"{name}-stopped", data, 1, step)
        require(step <= len(self.losses(f"{name}-stopped")) < STEPS, f"{what}: stopped before its end")
        require(self.train(f"{name}-stopped", data) == losses, f"{what}, stopped and resumed: the same losses, bit for bit")


def require(condition, what):
    if not condition:
        sys.exit(f"FAILED: {what}")
    print("ok  ", what, flush=True)


def same(a, b, what):
    worst = max((abs(x - y) / abs(x) for x, y in zip(a, b)), default=1)
    require(len(a) == len(b) > 0 and worst < RELATIVE, f"{what} (largest relative difference {worst:.1e})")


def turns(number):
    return {"messages": [{"role": "user", "content": f"What comes after {number}?"},
                         {"role": "assistant", "content": "It is " + "very " * (number % 7) + f"{number + 1}."}]}


def write_all(folder):
    """The same conversations as lines, as one array, compressed; questions and answers as lines and as tables."""
    chat = [turns(i) for i in range(90)]
    lines = "".join(json.dumps(r) + "\n" for r in chat)
    (folder / "chat.jsonl").write_text(lines)
    (folder / "chat.json").write_text(json.dumps(chat, indent=1))
    with gzip.open(folder / "chat.jsonl.gz", "wt") as out:
        out.write(lines)
    (folder / "parts").mkdir()
    for part in range(3):
        (folder / "parts" / f"{part}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in chat[30 * part:30 * part + 30]))
    questions = [{"question": f"{i} plus\n\"{i}\", please?", "answer": str(2 * i)} for i in range(40)]
    (folder / "pairs.jsonl").write_text("".join(json.dumps({"prompt": q["question"], "completion": q["answer"]}) + "\n" for q in questions))
    with open(folder / "pairs.csv", "w", newline="") as out:
        writer = csv.DictWriter(out, ["question", "answer"])
        writer.writeheader()
        writer.writerows(questions)
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    (folder / "set" / "data").mkdir(parents=True)
    for i, rows in enumerate([chat[:50], chat[50:]]):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "set" / "data" / f"train-0000{i}-of-00002.parquet",
                                    row_group_size=7)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(chat[:5]), folder / "set" / "data" / "test-00000-of-00001.parquet")
    return True


def check_formats(runs, folder, has_tables):
    reference = runs.train("lines", f"train: {folder}/chat.jsonl")
    require("cached in" in runs.output, "what is tokenised is kept")
    require(runs.train("again", f"train: {folder}/chat.jsonl") == reference, "a second run has the same losses, bit for bit")
    require("cached in" not in runs.output and "is tokenized already" in runs.output, "and takes what was kept, and says so")
    (folder / "link.jsonl").symlink_to(folder / "chat.jsonl")
    runs.train("link", f"train: {folder}/link.jsonl")
    require("is tokenized already" in runs.output, "a link to the file is the same data")
    same(reference, runs.train("two", f"train: {folder}/chat.jsonl", processes=2), "two processes")
    for name, path in [("array", "chat.json"), ("gzip", "chat.jsonl.gz"), ("glob", "parts/*.jsonl"), ("folder", "parts")]:
        runs.same_data(name, f"train: '{folder}/{path}'", "lines", f"train: {folder}/chat.jsonl", f"{path} is the same data")
    if has_tables:
        runs.same_data("tables", f"train: {folder}/set", "lines", f"train: {folder}/chat.jsonl", "a folder of Parquet files is the same data")
    mapped = "fields: {prompt: question, completion: answer}"
    runs.same_data("csv", f"train: {folder}/pairs.csv, {mapped}", "pairs", f"train: {folder}/pairs.jsonl", "CSV by data.fields is the same data")


CALLS = ("{% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.role == 'assistant' %}{% generation %}"
         "{% for c in m.tool_calls or [] %}{{ c.function | tojson }}{% endfor %}{{ eos_token }}{% endgeneration %}{% endif %}{% endfor %}")


def check_kinds(runs, folder, has_tables):
    """Numbers, missing values and nested values have the same tokens from every kind of file."""
    def record(**arguments):
        call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
        return {"messages": [{"role": "user", "content": "Call it."}, {"role": "assistant", "content": "", "tool_calls": [call]}]}

    def tokens(name):
        command = [runs.sftrun, "preview", "--config", str(runs.write_yaml("kinds", f"train: {folder}/{name}")), "--json", "-n", "50",
                   f"model.chat_template={CALLS}", "model.max_seq_len=4096"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=runs.environment)
        if done.returncode != 0:
            sys.exit(f"FAILED preview of {name}: exit code {done.returncode}\n{done.stderr}")
        [data_set] = json.loads(done.stdout)["data_sets"]
        return ["".join(sequence["tokens"]) for sequence in data_set["sequences"]]

    records = [record(x=3.0, n=2**62), record(x=-0.0, items=[{"a": 1.5}, {"b": "t"}]), record(x=1e22, n=-7), record(n=2**63 - 1)]
    longs = [record(n=12345678901234567890123, deep=[{"n": -(10**60)}])]
    (folder / "kinds.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (folder / "longs.jsonl").write_text("".join(json.dumps(r) + "\n" for r in longs))
    wanted = tokens("kinds.jsonl")
    require('"n": 4611686018427387904' in wanted[0] and '"x": 3.0' in wanted[0], f"numbers are written as Python does: {wanted[0]}")
    require("12345678901234567890123" in tokens("longs.jsonl")[0] and "-1" + 60 * "0" in tokens("longs.jsonl")[0], "also long ones")
    with_nulls = json.loads(json.dumps(records))
    for one in with_nulls:
        one.update(tools=None, conversations=None)
        for message in one["messages"]:
            message.update({key: message.get(key) for key in ("tool_calls", "weight", "train", "name")})
    (folder / "nulls.jsonl").write_text("".join(json.dumps(r) + "\n" for r in with_nulls))
    require(tokens("nulls.jsonl") == wanted, "null is missing")
    for name, rows, known in [("kinds", records, wanted), ("longs", longs, tokens("longs.jsonl"))]:
        with open(folder / f"{name}.csv", "w", newline="") as out:
            csv.writer(out).writerows([["messages", "tools"], *([json.dumps(r["messages"]), ""] for r in rows)])
        require(tokens(f"{name}.csv") == known, f"{name} as JSON in a CSV file")
    if not has_tables:
        return
    import pyarrow
    import pyarrow.parquet
    table = pyarrow.Table.from_pylist(records)
    pyarrow.parquet.write_table(table, folder / "kinds.parquet")
    with pyarrow.OSFile(str(folder / "kinds.arrow"), "wb") as out, pyarrow.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    for name in ("kinds.parquet", "kinds.arrow"):
        require(tokens(name) == wanted, f"{name} is the same data")


def check_mixtures(runs, folder):
    data = (f"train: [{{path: {folder}/chat.jsonl, weight: 0.5}}, {{path: {folder}/pairs.csv, weight: 2, max_samples: 30, "
            "fields: {prompt: question, completion: answer}}], packing: false")
    one = runs.train("mix-1", data)
    require("tokens of an epoch" in runs.output and "weight 0.5" in runs.output, "the mixture is said")
    validated = f"train: {folder}/chat.jsonl, val: [{{path: {folder}/chat.jsonl}}, {folder}/chat.jsonl]"
    runs.train("mix-val", validated)
    said = [line for line in runs.output.splitlines() if "data: tokens of" in line]
    require(len(said) == 1 and "tokens of an evaluation" in said[0] and "weight" not in said[0], "validation has no weights")
    same(one, runs.train("mix-2", data, processes=2), "a mixture on two processes")
    runs.stop_after("mix-stopped", data, 2, 4)
    require(len(runs.losses("mix-stopped")) < STEPS, "the run was stopped before its end")
    same(one, runs.train("mix-stopped", data, processes=2), "a mixture, stopped and resumed")
    grouped = f"train: {folder}/chat.jsonl, packing: false, group_by_length: true"
    one = runs.train("length-1", grouped)
    same(one, runs.train("length-2", grouped, processes=2), "batches grouped by length on two processes")
    if not runs.quick:
        runs.check_resumed("length", grouped, one, "batches grouped by length")


def check_streams(runs, folder, has_tables):
    data = (f"train: [{folder}/parts/0.jsonl, {{path: '{folder}/parts/[12].jsonl', weight: 2}}], val: {folder}/pairs.jsonl, "
            "streaming: true, shuffle_buffer: 24")
    one = runs.train("stream-1", data)
    require("is streamed" in runs.output, "streaming is said")
    same(one, runs.train("stream-2", data, processes=2), "a stream on two processes")
    for step in (7,) if runs.quick else (2, 7):
        name = f"stream-stopped-{step}"
        runs.stop_after(name, data, 2, step)
        same(one, runs.train(name, data, processes=1), f"a stream on two processes, stopped after {step} steps, resumed on one")
    mapped = "fields: {prompt: question, completion: answer}"
    compressed = f"train: [{folder}/chat.jsonl.gz, {{path: {folder}/pairs.csv, {mapped}}}"
    data = f"{compressed}{f', {folder}/set' if has_tables else ''}], val: {folder}/pairs.jsonl, streaming: true, shuffle_buffer: 24"
    runs.check_resumed("stream-kinds", data, runs.train("stream-kinds", data), "a stream of gzip, CSV and Parquet files")
    without = f"train: {folder}/chat.jsonl, streaming: true"
    runs.train("stream-epochs", without, steps="null", code=2)
    require("train.max_steps" in runs.output, "a stream needs max_steps")


def check_bad_data(runs, folder):
    runs.check("missing-column", f"train: {folder}/pairs.csv, fields: {{prompt: query, completion: answer}}", code=3)
    require('no "query"' in runs.output and "pairs.csv, row 1" in runs.output, "a missing column is named with its row")
    (folder / "bad.jsonl").write_text(json.dumps(turns(1)) + "\n" + json.dumps(turns(2)) + "\n{\"messages\": 3}\n")
    runs.train("bad-stream", f"train: {folder}/bad.jsonl, streaming: true", processes=2, code=3)
    require("bad.jsonl:3" in runs.output, "a bad record in a stream is named")
    (folder / "cut.csv.gz").write_bytes(gzip.compress(b"prompt,completion\n" + b"a,b\n" * 1000)[:60])
    runs.check("cut", f"train: {folder}/cut.csv.gz", code=3)
    require("cut.csv.gz" in runs.output, "a cut file is named")


def check_bad_records(runs, folder, has_tables):
    """Bad records of every kind of file: all in one error, or left out and counted."""
    good = [turns(i) for i in range(60)]
    text = [json.dumps(record) for record in good]
    (folder / "good.jsonl").write_text("\n".join(text) + "\n")
    spoilt = [*text[:20], '{"messages": [', *text[20:40], '{"messages": 3}', *text[40:]]
    (folder / "spoilt.jsonl").write_text("\n".join(spoilt) + "\n")
    (folder / "spoilt.json").write_text("[" + ", ".join([*text[:20], '{"messages": 3}', *text[20:]]) + "]")
    runs.train("bad-all", f"train: {folder}/spoilt.jsonl", code=3)
    for part in ("2 records cannot be used", "spoilt.jsonl:21:15: malformed JSON", "spoilt.jsonl:42: ", "data.bad_records: skip"):
        require(part in runs.output, f"bad records come in one message: {part}")
    runs.train("bad-skip", f"train: {folder}/spoilt.jsonl, bad_records: skip")
    require("2 bad records left out (data.bad_records: skip): " in runs.output, "they are counted when tokenised")
    require("2 bad records left out of the training data" in runs.output, "and in the run's summary")
    runs.same_data("bad-skip", f"train: {folder}/spoilt.jsonl, bad_records: skip", "good", f"train: {folder}/good.jsonl",
                   "without its bad records it is the same data")
    runs.same_data("bad-array", f"train: {folder}/spoilt.json, bad_records: skip", "good", f"train: {folder}/good.jsonl",
                   "an array without its bad element")
    stream = f"train: {folder}/spoilt.jsonl, val: {folder}/good.jsonl, streaming: true, shuffle_buffer: 24, bad_records: skip"
    one = runs.train("bad-stream-skip", stream)
    require("bad records left out of the training data" in runs.output, "a stream counts them, too")
    if not runs.quick:
        runs.check_resumed("bad-stream-skip", stream, one, "a stream with bad records left out", step=6)

    (folder / "spoilt.csv").write_text("prompt,completion\n" + "What is it?,It is a test.\n" * 30 + "one\nand,two,three\n" + "Who?,Me.\n" * 30)
    runs.check("bad-csv", f"train: {folder}/spoilt.csv", code=3)
    require("2 records cannot be used" in runs.output and "spoilt.csv, row 32: expected 2 columns, got 3" in runs.output,
            "rows of a CSV file are told by their numbers")
    left_out = "left out" if runs.quick else "left out of the training data"
    runs.check("bad-csv-skip", f"train: {folder}/spoilt.csv, bad_records: skip")
    require(f"2 bad records {left_out}" in runs.output, "rows of a CSV file are left out")
    if has_tables:
        import pyarrow
        import pyarrow.parquet
        column = pyarrow.array([b"some text, long enough"] * 20 + [b"\xff\xfe"] + [b"another text"] * 20, pyarrow.binary())
        pyarrow.parquet.write_table(pyarrow.table({"text": column}), folder / "spoilt.parquet")
        runs.check("bad-parquet", f"train: {folder}/spoilt.parquet", code=3)
        require("spoilt.parquet, row 21" in runs.output, "a row of a Parquet file is named")
        runs.check("bad-parquet-skip", f"train: {folder}/spoilt.parquet, bad_records: skip")
        require(f"1 bad record {left_out}" in runs.output, "a row of a Parquet file is left out")

    for command in (["preview", "-n", "50"], ["config", "check"], ["train", "--dry-run", "--nproc-per-node", "1"]):
        name = " ".join(command)
        answer = runs.look("bad-all", command, code=3)
        require("2 records cannot be used" in answer and "spoilt.jsonl:21" in answer, f"{name} tells all bad records")
        answer = runs.look("bad-skip", command)
        require("spoilt.jsonl:21" in answer and "2 " in answer, f"{name} warns of what is left out")
    (folder / "bad-first.jsonl").write_text(3 * "oops\n" + "\n".join(text) + "\n")
    runs.write_yaml("bad-first", f"train: {folder}/bad-first.jsonl, bad_records: skip")
    for command in (["preview"], ["config", "check"], ["train", "--dry-run", "--nproc-per-node", "1"]):
        require("3 bad records left out" in runs.look("bad-first", command), f"{' '.join(command)} takes bad records in front")
    (folder / "bad-last.jsonl").write_text("\n".join(text) + "\noops\n")
    runs.write_yaml("bad-last", f"train: {folder}/bad-last.jsonl")
    for command in (["preview"], ["preview", "--json"], ["preview", "--html", str(folder / "page.html")]):
        require("bad-last.jsonl:61" in runs.look("bad-last", command, code=3), f"{' '.join(command[:2])} refuses what training refuses")


def check_warnings(runs, folder):
    """What preview says is what training says."""
    call = {"type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    odd = [turns(1), {"messages": [{"role": "assistant", "content": "Hello."}, *turns(2)["messages"]]},
           {"messages": [turns(3)["messages"][0], {"role": "assistant", "content": ""}]},
           {"messages": [turns(4)["messages"][0], {"role": "assistant", "content": None, "tool_calls": [call]},
                         {"role": "tool", "content": "5"}, {"role": "assistant", "content": "It is 5."}],
            "tools": [{"type": "function", "function": {"name": "add"}}], "history": [["a", "b"]]}, *map(turns, range(40))]
    (folder / "odd.jsonl").write_text("".join(json.dumps(r) + "\n" for r in odd))
    (folder / "call.jsonl").write_text(json.dumps(odd[3]) + "\n")
    commands = (["score", "--device", "cpu"], ["tokenize", "--chat"], ["generate", "--device", "cpu", "--max-new-tokens", "2"])
    for command in commands[:2] if runs.quick else commands:
        done = subprocess.run([runs.sftrun, *command, "--model", MODEL, "--input", folder / "call.jsonl", "--output", folder / "called.jsonl"],
                              capture_output=True, text=True, timeout=120, env=runs.environment)
        require(done.returncode == 0 and (folder / "called.jsonl").stat().st_size > 0,
                f"{command[0]} takes content that is null beside tool calls" + (f"\n{done.stderr}" if done.returncode else ""))
        (folder / "called.jsonl").unlink()
    runs.train("odd", f"train: {folder}/odd.jsonl, val_split: 10")
    require("data.val_split: 34 examples to train on, 10 held out" in runs.output, "val_split says how many each side has")
    said = {line.partition("data: ")[2] for line in runs.output.splitlines() if "[warning]" in line and "data: " in line}
    for part in ("conversations begin with an assistant turn (1)", "answers are empty (1)", "the chat template omits the calls",
                 "conversations have tools", '"history", which is not read'):
        require(any(part in warning for warning in said), f"training warns: {part}")
    shown = runs.look("odd", ["preview", "-n", "1"])
    for warning in said:
        require(warning in shown, f"and so does preview: {warning[:60]}")


def check_pairs_as_input(runs, folder):
    """The layout of ultrafeedback_binarized: the chosen conversation also as "messages"."""
    chosen, rejected = turns(1)["messages"], [turns(1)["messages"][0], {"role": "assistant", "content": "No."}]
    (folder / "both.jsonl").write_text(json.dumps({"messages": chosen, "chosen": chosen, "rejected": rejected}) + "\n")

    def ask(*command):
        return subprocess.run([runs.sftrun, *command, "--model", MODEL, "--input", folder / "both.jsonl", "--output", folder / "asked.jsonl"],
                              capture_output=True, text=True, timeout=120, env=runs.environment)
    done = ask("tokenize", "--chat")
    written = json.loads((folder / "asked.jsonl").read_text()) if done.returncode == 0 else {}
    require("chosen_input_ids" in written and "rejected_completion_mask" in written and "input_ids" not in written,
            f"tokenize writes both answers of a pair that has messages, too\n{done.stderr}")
    done = ask("tokenize", "--overwrite")
    require(done.returncode == 3 and "give --chat" in done.stderr, f"and asks for --chat\n{done.stderr}")
    done = ask("score", "--device", "cpu", "--overwrite")
    require(done.returncode == 3 and "two answers in a record" in done.stderr, f"score refuses it\n{done.stderr}")


def check_faulty_sets(runs, folder):
    (folder / "mixed").mkdir()
    (folder / "mixed/a.jsonl").write_text(json.dumps(turns(1)) + "\n")
    (folder / "mixed/b.jsonl").write_text(json.dumps({"instruction": "Add.", "output": "3"}) + "\n")
    (folder / "pairs-of-answers.jsonl").write_text(json.dumps({"prompt": "p", "chosen": "a", "rejected": "b"}) + "\n")
    runs.check("faulty", f"train: ['{folder}/mixed/*.jsonl', {folder}/chat.jsonl, {folder}/pairs-of-answers.jsonl]", code=3)
    require("must have the same format" in runs.output and "mixed/b.jsonl:1" in runs.output, "a file of another format is named")
    require("this is preference data" in runs.output, "and of the next data set, that it is preference data")
    require("chat.jsonl holds" not in runs.output, "before anything is tokenised")
    for command in (["preview"], ["config", "check"], ["train", "--dry-run", "--nproc-per-node", "1"]):
        answer = runs.look("faulty", command, code=3)
        require("must have the same format" in answer and "this is preference data" in answer, f"{' '.join(command)} tells both")
    runs.train("absent", f"train: [{folder}/one.jsonl, {folder}/two.jsonl]", code=3)
    require("one.jsonl" in runs.output and "two.jsonl" in runs.output, "all files that are missing are told")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--quick", action="store_true", help="with previews and dry runs in place of some runs, as in `make test`")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sftrun-data-") as name:
        folder = pathlib.Path(name)
        has_tables = write_all(folder)
        runs = Runs(options.sftrun, folder, options.quick)
        check_formats(runs, folder, has_tables)
        check_kinds(runs, folder, has_tables)
        check_mixtures(runs, folder)
        check_streams(runs, folder, has_tables)
        check_bad_data(runs, folder)
        check_bad_records(runs, folder, has_tables)
        check_warnings(runs, folder)
        check_pairs_as_input(runs, folder)
        check_faulty_sets(runs, folder)
    print("data sets: all as they should be" + ("" if has_tables else " (without pyarrow: no tables)"))


if __name__ == "__main__":
    main()
