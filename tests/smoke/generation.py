#!/usr/bin/env python3
"""`sftrun generate` of a file: batches, several processes, kills.

    tests/smoke/generation.py --sftrun build/bin/sftrun

Standard library only.
same        any batch size and number of processes gives the same answers in the order of the input, greedy and sampled
several     -n 4: an answer depends on the seed, its record and its number alone, not on the batch size, the processes, the other records or -n
killed      after SIGKILL the same command continues: what was answered stays, byte for byte, and an incomplete line is repaired
stopped     SIGTERM ends after the current step with exit code 75; the same command continues, also with another number of processes
launched    two launchers as two nodes, and two processes that torchrun would have started, give the same output
settings    other settings, another input: refused, until --overwrite
refused     flags that do not go together

With --quick two of the four batch sizes and numbers of processes for each way to sample, one kill, and one process at the end of `stopped`.
"""

import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

from free_ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
TIMEOUT = 120  # s, of one command
RECORDS, LONG = 60, 120


class Program:
    def __init__(self, path, folder, quick):
        self.path, self.folder, self.quick, self.failures, self.count = path, folder, quick, [], 0

    def command(self, *words):
        flags = ["--model", MODEL, "--device", "cpu", "--dtype", "fp32", "--no-chat"]
        return [str(word) for word in (self.path, "generate", *flags, *words)]

    def run(self, *words, code=0):
        done = subprocess.run(self.command(*words), cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode} instead of {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
        if not holds:
            self.failures.append(what)


def write_records(path, count):
    prompts = [" ".join(f"{n + k} and" for k in range(n * 7 % 13 + 1)) for n in range(count)]
    path.write_text("".join(json.dumps({"id": n, "prompt": prompt}) + "\n" for n, prompt in enumerate(prompts)))


def check_same(program):
    for name, sampling in (("greedy", []), ("sampled", ["--temperature", "0.9", "--top-p", "0.9", "--seed", "5"])):
        ask = ["--input", "in.jsonl", "--max-new-tokens", 12, *sampling, "--output"]
        program.run(*ask, f"{name}.jsonl", "--batch-size", 1)
        alone = (program.folder / f"{name}.jsonl").read_text()
        ids = [json.loads(line)["id"] for line in alone.splitlines()]
        program.expect(f"same: {name}: the order of the input", ids == list(range(RECORDS)), ids)
        ways = {"greedy": [(7, 1), (3, 2)], "sampled": [(64, 1), (8, 3)]}
        for batch, processes in ways[name] if program.quick else sum(ways.values(), []):
            program.run(*ask, "again.jsonl", "--batch-size", batch, "--nproc-per-node", processes, "--overwrite")
            program.expect(f"same: {name}: batch {batch}, {processes} processes", (program.folder / "again.jsonl").read_text() == alone)
    left = [path.name for path in program.folder.iterdir() if path.name.endswith(".parts")]
    program.expect("same: no folder is left", not left, left)


def check_several(program):
    sampled = ["--temperature", 1.2, "--seed", 5]
    drawn = [*sampled, "--max-new-tokens", 16, "--logprobs"]
    ask = ["--input", "in.jsonl", "--output", "again.jsonl", "--overwrite", *drawn]

    def lines(*words):
        program.run(*ask, *words)
        return [json.loads(line) for line in (program.folder / "again.jsonl").read_text().splitlines()]

    def without_rounding(rows):
        return [{key: value for key, value in row.items() if not key.endswith("logprobs")} for row in rows]

    alone = lines("-n", 4, "--batch-size", 1)
    places = [(row["id"], row["group"], row["answer_index"]) for row in alone]
    program.expect("several: one line for each answer, in order", places == [(i, i, k) for i in range(RECORDS) for k in range(4)], places[:9])
    texts = {row["generated"] for row in alone[:4]}
    program.expect("several: the answers to a prompt differ", len(texts) > 1, texts)
    for batch, processes in ((3, 2), (8, 1)) if program.quick else ((3, 1), (8, 1), (1, 2), (3, 2), (8, 2)):
        rows = lines("-n", 4, "--batch-size", batch, "--nproc-per-node", processes)
        program.expect(f"several: batch {batch}, {processes} processes: the same tokens", without_rounding(rows) == without_rounding(alone))
        apart = max((abs(a - b) for one, two in zip(rows, alone) for a, b in zip(one["logprobs"], two["logprobs"])), default=1)
        program.expect(f"several: batch {batch}, {processes} processes: the same log-probabilities", apart < 1e-4, apart)
    rows = lines("-n", 4, "--batch-size", 8, "--nproc-per-node", 2, "--strategy", "tensor")
    program.expect("several: a divided model: the same tokens", without_rounding(rows) == without_rounding(alone))
    for key in ("logprobs", "sampling_logprobs"):
        apart = max(abs(a - b) for one, two in zip(rows, alone) for a, b in zip(one[key], two[key]))
        program.expect(f"several: a divided model: the same {key}", apart < 1e-4, apart)
    two, one = lines("-n", 2, "--batch-size", 8), lines("--batch-size", 8)
    program.expect("several: -n 2 has the first two of -n 4", without_rounding(two) == [row for row in without_rounding(alone) if row["answer_index"] < 2])
    first = [row for row in without_rounding(alone) if row["answer_index"] == 0]
    keys = ("generated", "completion_ids", "finish_reason")
    program.expect("several: one answer is the first of -n 4", [[row[key] for key in keys] for row in one] == [[row[key] for key in keys] for row in first])
    program.expect("several: one answer has no group", "group" not in one[0] and "logprobs" in one[0], one[0].keys())
    input_lines = (program.folder / "in.jsonl").read_text().splitlines(keepends=True)
    (program.folder / "less.jsonl").write_text("".join(input_lines[:3]))
    program.run("--input", "less.jsonl", "--output", "less-out.jsonl", *drawn, "-n", 4, "--batch-size", 8)
    rows = [json.loads(line) for line in (program.folder / "less-out.jsonl").read_text().splitlines()]
    program.expect("several: records behind do not matter", without_rounding(rows) == without_rounding(alone)[:12])
    counts = [len(row["completion_ids"]) == len(row["logprobs"]) == len(row["sampling_logprobs"]) for row in alone]
    program.expect("several: a log-probability for each token", all(counts))
    stopped = [row for row in alone if row["finish_reason"] == "stop"]
    longest = [row for row in alone if row["finish_reason"] == "length"]
    program.expect("several: a stop token is among the tokens", all(len(row["completion_ids"]) == row["generated_tokens"] + 1 for row in stopped), len(stopped))
    program.expect("several: an answer that was cut has all its tokens", longest and all(len(row["completion_ids"]) == 16 for row in longest), len(longest))
    output = program.run("--prompt", "1 and", "--temperature", 1.2, "-n", 3, "--json", "--logprobs", "--max-new-tokens", 4)
    rows = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    program.expect("several: of --prompt", [row["answer_index"] for row in rows] == [0, 1, 2] and all(len(row["prompt_ids"]) == row["prompt_tokens"] for row in rows), output)
    said = program.run("--prompt", "x", "-n", 3, code=2)
    program.expect("several: refused without a temperature", "the greedy one" in said, said)
    said = program.run("--prompt", "x", "--logprobs", code=2)
    program.expect("several: log-probabilities are not text", "--logprobs has no effect" in said, said)
    code, text = interrupted(program, "several.jsonl", signal.SIGTERM, *sampled, "-n", 3, "--max-new-tokens", 48)
    program.expect("several: a stop keeps answers", code == 75 and f"of {3 * LONG} answers" in text, text)
    said = program.run("--input", "long.jsonl", "--output", "several.jsonl", *sampled, "-n", 2, "--max-new-tokens", 48, code=2)
    program.expect("several: another -n is refused", "num_answers was 3, now 2" in said, said)
    said = program.run("--input", "long.jsonl", "--output", "several.jsonl", *sampled, "-n", 3, "--max-new-tokens", 48)
    count = len((program.folder / "several.jsonl").read_text().splitlines())
    program.expect("several: the same command continues", "already answered" in said and count == 3 * LONG, (said, count))


def lines_in(parts):
    return sum(path.read_bytes().count(b"\n") for path in parts.glob("rank-*.jsonl"))


def interrupted(program, output, sent, *words):
    """Sends a signal once some more records are answered. @return the exit code, what it printed"""
    parts = program.folder / f"{output}.parts"
    before = lines_in(parts)
    process = subprocess.Popen(program.command("--input", "long.jsonl", "--output", output, *words), cwd=program.folder,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    begun = time.monotonic()
    while lines_in(parts) < before + 20 and process.poll() is None and time.monotonic() - begun < TIMEOUT:
        time.sleep(0.005)
    process.send_signal(sent)
    text, _ = process.communicate(timeout=TIMEOUT)
    return process.returncode, text


def check_killed(program):
    words = ["--max-new-tokens", 48, "--batch-size", 3]
    program.run("--input", "long.jsonl", "--output", "whole.jsonl", *words)
    whole = (program.folder / "whole.jsonl").read_text()
    for processes in (2,) if program.quick else (1, 2):
        output = f"killed-{processes}.jsonl"
        launch = ["--nproc-per-node", processes]
        code, text = interrupted(program, output, signal.SIGKILL, *words, *launch)
        parts = program.folder / f"{output}.parts"
        part = parts / "rank-0.jsonl"
        program.expect(f"killed: {processes} processes: killed before the end", code == -signal.SIGKILL and not (program.folder / output).exists(), text)
        time.sleep(0.5)  # workers end with their launcher
        # An answer that only a file can have: it must be kept, not computed again.
        lines = part.read_text().splitlines(keepends=True)
        first = json.loads(lines[0]) | {"generated": "kept from the file"}
        part.write_text(json.dumps(first) + "\n" + "".join(line for line in lines[1:] if line.endswith("\n")) + '{"record": 3, "gene')
        answered = lines_in(parts)
        text = program.run("--input", "long.jsonl", "--output", output, *words, *launch)
        program.expect(f"killed: {processes} processes: continues", f"{answered} of {LONG} records already answered" in text, text)
        expected = [json.loads(line) for line in whole.splitlines()]
        expected[first["record"]]["generated"] = first["generated"]
        got = [json.loads(line) for line in (program.folder / output).read_text().splitlines()]
        program.expect(f"killed: {processes} processes: all records, none computed again", got == expected)
        program.expect(f"killed: {processes} processes: no folder is left", not parts.exists())


def check_stopped(program):
    words = ["--max-new-tokens", 48, "--batch-size", 3]
    code, text = interrupted(program, "stopped.jsonl", signal.SIGTERM, *words, "--nproc-per-node", 2)
    program.expect("stopped: two processes: exit code 75", code == 75 and "finished work is kept" in text, (code, text))
    code, text = interrupted(program, "stopped.jsonl", signal.SIGTERM, *words)
    program.expect("stopped: one process: exit code 75", code == 75 and "rerun the same command to resume" in text, (code, text))
    program.run("--input", "long.jsonl", "--output", "stopped.jsonl", *words, "--nproc-per-node", 1 if program.quick else 3)
    same = (program.folder / "stopped.jsonl").read_text() == (program.folder / "whole.jsonl").read_text()
    program.expect("stopped: the result of an uninterrupted command", same)


def together(program, *starts):
    """Starts the commands at the same time. @return their outputs; raises if one fails.   @param starts (words, environment)"""
    processes = [subprocess.Popen(program.command(*words), cwd=program.folder, env=os.environ | environment, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True) for words, environment in starts]
    texts = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    if any(process.returncode != 0 for process in processes):
        raise RuntimeError("\n".join(texts))
    return texts


def check_launched(program):
    ask = ["--input", "in.jsonl", "--max-new-tokens", 12, "--batch-size", 2, "--output"]
    expected = (program.folder / "greedy.jsonl").read_text()
    port = free_port()
    nodes = [([*ask, "nodes.jsonl", "--nnodes", 2, "--node-rank", node, "--nproc-per-node", 1, "--master-addr", "127.0.0.1", "--master-port", port], {})
             for node in (0, 1)]
    together(program, *nodes)
    program.expect("launched: two nodes", (program.folder / "nodes.jsonl").read_text() == expected)
    port = free_port()
    ranks = [([*ask, "ranks.jsonl"], {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                      "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}) for rank in (0, 1)]
    together(program, *ranks)
    program.expect("launched: two processes of another launcher", (program.folder / "ranks.jsonl").read_text() == expected)


def check_settings(program):
    words = ["--max-new-tokens", 48]
    interrupted(program, "changed.jsonl", signal.SIGTERM, *words)
    ask = ["--input", "long.jsonl", "--output", "changed.jsonl"]
    said = program.run(*ask, "--max-new-tokens", 4, code=2)
    program.expect("settings: another number of tokens", "max_new_tokens was 48, now 4" in said and "--overwrite" in said, said)
    said = program.run("--input", "in.jsonl", "--output", "changed.jsonl", *words, code=2)
    program.expect("settings: another input", "input was" in said, said)
    said = program.run(*ask, "--max-new-tokens", 4, "--overwrite")
    program.expect("settings: --overwrite", "already answered" not in said, said)


def check_refused(program):
    ask = ["--input", "in.jsonl", "--output"]
    said = program.run(*ask, "-", "--nproc-per-node", 2, code=2)
    program.expect("refused: several processes and standard output", "several processes" in said, said)
    said = program.run(*ask, "x.jsonl", "--node-rank", 1, code=2)
    program.expect("refused: a node that is not there", "--node-rank 1 is not below --nnodes 1" in said, said)
    (program.folder / "bad.jsonl").write_text('{"prompt": "a"}\n{"question": "b"}\n')
    said = program.run("--input", "bad.jsonl", "--output", "bad-out.jsonl", "--nproc-per-node", 2, code=3)
    program.expect("refused: a record without a prompt is named once", said.count("bad.jsonl:2") == 1, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help="fewer numbers of processes and batch sizes, as in `make test`")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.sftrun.resolve(), pathlib.Path(folder), arguments.quick)
        write_records(program.folder / "in.jsonl", RECORDS)
        write_records(program.folder / "long.jsonl", LONG)
        for check in (check_same, check_several, check_launched, check_killed, check_stopped, check_settings, check_refused):
            check(program)
    print(f"{program.count - len(program.failures)} of {program.count} checks hold")
    return 1 if program.failures or not program.count else 0


if __name__ == "__main__":
    sys.exit(main())
