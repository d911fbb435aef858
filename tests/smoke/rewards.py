#!/usr/bin/env python3
"""`sftrun reward` of answers that `sftrun generate` has written, and of others.

    tests/smoke/rewards.py --sftrun build/bin/sftrun

Standard library only.
generated   generate -n 4 --logprobs, then reward: every function, weights, groups, the summary
formats     completions, lists of messages, messages without a prompt, --answer
programs    one that is killed with sftrun, one that dies, one that lies, one for each batch, one that leaves a process
stopped     batches that were judged before a command ended are not judged again, but with other settings or --overwrite
refused     mistakes in lists, records without a reference, a sum that is not finite
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
PROGRAMS = ROOT / "tests/reward/programs"
TIMEOUT = 120  # s, of one command


class Program:
    def __init__(self, path, folder):
        self.path, self.folder, self.failures, self.count = path, folder, [], 0

    def run(self, *words, code=0):
        done = subprocess.run([self.path, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != code:
            raise RuntimeError(f"{' '.join(map(str, words))}: exit code {done.returncode} instead of {code}\n{done.stdout}{done.stderr}")
        return done

    def reward(self, records, *words, code=0):
        (self.folder / "in.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        done = self.run("reward", "--input", "in.jsonl", "--output", "out.jsonl", *words, code=code)
        return done.stderr if code else [json.loads(line) for line in (self.folder / "out.jsonl").read_text().splitlines()]

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
        if not holds:
            self.failures.append(what)


CONFIG = f"""\
reward:
  - {{name: exact_match, key: reference}}
  - {{name: number, key: solution, weight: 2}}
  - {{name: regex, pattern: '\\d'}}
  - json
  - {{name: length, target: 12, unit: tokens, label: near, weight: 0.5}}
  - {{name: length, maximum: 40, margin: 20}}
  - format
  - repetition
  - {{name: rouge_l, key: reference}}
  - {{name: program, label: judge, command: exec python3 {PROGRAMS}/judge.py length, weight: 0.01}}
"""
LABELS = ["exact_match", "number", "regex", "json", "near", "length", "format", "repetition", "rouge_l", "judge"]
WEIGHTS = [1, 2, 1, 1, 0.5, 1, 1, 1, 1, 0.01]


def check_generated(program):
    records = [{"prompt": f"{n} and {n + 1} and", "reference": "7 and", "solution": n} for n in range(6)]
    (program.folder / "questions.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    program.run("generate", "--model", MODEL, "--device", "cpu", "--dtype", "fp32", "--no-chat", "--input", "questions.jsonl", "--output", "answers.jsonl",
                "-n", 4, "--temperature", 1, "--seed", 3, "--logprobs", "--max-new-tokens", 12)
    (program.folder / "rewards.yaml").write_text(CONFIG)
    done = program.run("reward", "--input", "answers.jsonl", "--output", "rewarded.jsonl", "--reward-config", "rewards.yaml", "--batch-size", 5, "--json")
    answers = [json.loads(line) for line in (program.folder / "answers.jsonl").read_text().splitlines()]
    rewarded = [json.loads(line) for line in (program.folder / "rewarded.jsonl").read_text().splitlines()]
    kept = [{key: value for key, value in row.items() if key not in ("reward", "rewards")} for row in rewarded]
    program.expect("generated: the records are kept, in order", kept == answers and len(answers) == 24)
    program.expect("generated: values by label", all(list(row["rewards"]) == LABELS for row in rewarded), rewarded[0]["rewards"])
    sums = [sum(weight * row["rewards"][label] for label, weight in zip(LABELS, WEIGHTS)) for row in rewarded]
    program.expect("generated: weighted sums", all(abs(row["reward"] - total) < 1e-12 for row, total in zip(rewarded, sums)))
    program.expect("generated: tokens are counted", all(abs(row["rewards"]["near"] - (1 - abs(len(row["completion_ids"]) - 12) / 12)) < 1e-12 for row in rewarded))
    program.expect("generated: the program has judged all", all(row["rewards"]["judge"] == len(row["generated"]) for row in rewarded))
    summary = json.loads(done.stdout)
    mean = sum(row["reward"] for row in rewarded) / 24
    program.expect("generated: the summary", abs(summary["reward"]["mean"] - mean) < 1e-12 and summary["reward"]["count"] == 24, summary)
    groups = {row["group"]: [] for row in rewarded}
    for row in rewarded:
        groups[row["group"]].append(row["reward"])
    equal = sum(len(set(rewards)) == 1 for rewards in groups.values())
    program.expect("generated: groups", summary["groups"] == 6 and summary["groups_without_difference"] == equal, summary)
    again = program.run("reward", "--input", "answers.jsonl", "--output", "-", "--reward-config", "rewards.yaml")
    program.expect("generated: another batch size, standard output", again.stdout == (program.folder / "rewarded.jsonl").read_text())
    program.expect("generated: the log", "reward: mean" in again.stderr and "have equal rewards" in again.stderr, again.stderr)


def check_formats(program):
    number = ["--reward", "number"]
    rows = program.reward([{"completion": "so 4", "answer": "#### 4"}, {"completion": [{"role": "assistant", "content": "5"}], "answer": 4},
                           {"prompt": "p", "generated": "4.0", "completion": "9", "answer": [3, 4]}, {"completion": "4", "answer": None}], *number)
    program.expect("formats: completions", [row["reward"] for row in rows] == [1, 0, 1, None], rows)
    rows = program.reward([{"text": "x", "said": "7", "answer": 7.50}], *number, "--answer", "said", "--reward", "{name: length, target: 2, weight: -1}")
    program.expect("formats: --answer, two flags", rows[0]["reward"] == -0.5 and rows[0]["rewards"] == {"number": 0, "length": 0.5}, rows)
    record = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "generated": "b"}
    command = """while read -r line; do printf '%s' "$line" | grep -c '"prompt":\\[{"role":"user","content":"q"}\\],'; done"""
    rows = program.reward([record], "--reward", json.dumps({"name": "program", "command": command}))
    program.expect("formats: messages are a prompt", rows[0]["reward"] == 1, rows)


def gone(folder):
    """Whether the program that wrote its process id has ended."""
    pid = int((folder / "pid").read_text())
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def check_programs(program):
    records = [{"completion": "a"}, {"completion": "lie"}]

    def judge(words, **settings):
        return "--reward", json.dumps({"name": "program", "command": f"python3 {PROGRAMS}/judge.py {words}"} | settings)

    said = program.reward(records, *judge(f"dies 1 {program.folder}"), code=5)
    program.expect("programs: one that dies", all(part in said for part in ("ended with exit code 3", "3 attempts", "no such judge", "judge.py dies")), said)
    said = program.reward(records, *judge("lies nan"), code=3)
    program.expect("programs: one that lies", "in.jsonl:2 with `nan`" in said, said)
    program.expect("programs: no output is left", not [path for path in program.folder.iterdir() if ".tmp" in path.name])
    one_each = {"name": "program", "command": "read -r line; echo 1; sleep 0.3", "restarts": 0}
    rows = program.reward(records * 2, "--batch-size", 1, "--reward", json.dumps(one_each))
    program.expect("programs: one for each batch needs no restarts", [row["reward"] for row in rows] == [1] * 4, rows)
    leaves = {"name": "program", "command": "setsid sleep 1000 & echo $! > pid; while read -r line; do echo 1; done"}
    program.reward(records, "--reward", json.dumps(leaves))
    program.expect("programs: what one leaves is killed at the end", gone(program.folder))
    for sent in (signal.SIGKILL, signal.SIGINT):
        (program.folder / "pid").unlink(missing_ok=True)
        command = "echo $$ > pid.new; mv pid.new pid; exec sleep 1000"
        process = subprocess.Popen([program.path, "reward", "--input", "in.jsonl", "--output", "out2.jsonl", "--reward",
                                    json.dumps({"name": "program", "command": command})], cwd=program.folder, stderr=subprocess.DEVNULL)
        for _ in range(200):
            if (program.folder / "pid").exists():
                break
            time.sleep(0.05)
        process.send_signal(sent)
        process.wait(TIMEOUT)
        program.expect(f"programs: ended with sftrun by {sent.name}", gone(program.folder))


def check_stopped(program):
    def lines(name):
        return (program.folder / name).read_text().splitlines()

    records = [{"completion": str(n)} for n in range(6)]
    command = "while read -r line; do echo x >> judged; [ $(wc -l < judged) -le 4 ] || [ -e 'go' ] || exit 3; echo 1; done"
    words = ["--batch-size", 2, "--reward", json.dumps({"name": "program", "command": command, "restarts": 0})]
    program.reward(records, *words, code=5)
    program.expect("stopped: finished batches are kept", len(lines("out.jsonl.part")) == 5, lines("out.jsonl.part"))
    with open(program.folder / "out.jsonl.part", "a") as part:
        part.write('{"completion": "4"')  # as a killed command leaves it
    (program.folder / "go").touch()
    done = program.run("reward", "--input", "in.jsonl", "--output", "out.jsonl", *words, "--json")
    rows = [json.loads(line) for line in lines("out.jsonl")]
    program.expect("stopped: the rest is judged", len(lines("judged")) == 7, lines("judged"))
    program.expect("stopped: all records, in order", [row["completion"] for row in rows] == list("012345") and all(row["reward"] == 1 for row in rows), rows)
    program.expect("stopped: the summary has all", json.loads(done.stdout)["reward"]["count"] == 6, done.stdout)
    program.expect("stopped: no part is left", not (program.folder / "out.jsonl.part").exists())
    for name in ("judged", "go"):
        (program.folder / name).unlink()
    program.reward(records, *words, code=5)
    (program.folder / "go").touch()
    done = program.run("reward", "--input", "in.jsonl", "--output", "out.jsonl", "--overwrite", *words)
    program.expect("stopped: --overwrite judges all", "judged before" not in done.stderr and len(lines("judged")) == 5 + 6, lines("judged"))


def check_refused(program):
    records = [{"completion": "a", "answer": 1}, {"completion": "a", "anwer": 1}]
    said = program.reward(records, "--reward", "numbr", "--reward", "{name: length, targt: 3}", code=2)
    program.expect("refused: names and keys", "did you mean `number`?" in said and "did you mean `target`?" in said and "--reward on the command line" in said, said)
    (program.folder / "wrong.yaml").write_text("- number\n- {name: regex, pattern: '('}\n")
    said = program.reward(records, "--reward-config", "wrong.yaml", code=2)
    program.expect("refused: a file with its line", "wrong.yaml:2:26" in said, said)
    marker = program.folder / "started"
    said = program.reward(records, "--reward", json.dumps({"name": "program", "command": f"touch {marker}; sleep 9"}), "--reward", "number", code=3)
    program.expect("refused: a record without a reference, before a program is started",
                   "in.jsonl:2" in said and "did you mean \"anwer\"?" in said and not marker.exists(), said)
    said = program.reward([{"prompt": "a"}], "--reward", "json", code=3)
    program.expect("refused: a record without an answer", "in.jsonl:1" in said and "--answer" in said, said)
    huge = [word for label in ("one", "two") for word in ("--reward", json.dumps({"name": "json", "label": label, "weight": 1e308}))]
    said = program.reward([{"completion": "x"}, {"completion": "1"}], *huge, code=3)
    program.expect("refused: a sum that is not finite", "in.jsonl:2" in said and "one (weight" in said and "two (weight" in said, said)
    said = program.reward(records, "--reward", "{name: program, command: ''}", "--reward", "{name: program, label: late, command: cat, timeout: 1e300}", code=2)
    program.expect("refused: a command that is empty, a time above its limit", "is empty" in said and "above 0 up to 1000000" in said, said)
    said = program.reward(records, code=2)
    program.expect("refused: no function", "--reward or --reward-config" in said, said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        program = Program(arguments.sftrun.resolve(), pathlib.Path(folder))
        for check in (check_generated, check_formats, check_programs, check_stopped, check_refused):
            check(program)
    print(f"{program.count - len(program.failures)} of {program.count} checks hold")
    return 1 if program.failures or not program.count else 0


if __name__ == "__main__":
    sys.exit(main())
