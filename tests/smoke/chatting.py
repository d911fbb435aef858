#!/usr/bin/env python3
"""`sftrun chat` from a pipe and at a terminal.

    tests/smoke/chatting.py --sftrun build/bin/sftrun

pipe       each line is a message; answers are those of `sftrun generate` to the same conversation; the commands of a conversation
adapters   /adapter switches, and the answers are those of that adapter
terminal   a pseudo-terminal: lines are edited, the arrow brings one back, Ctrl-C ends an answer, Ctrl-D the program
"""

import argparse
import json
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
TIMEOUT = 120


class Failures(list):
    count = 0

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
        if not holds:
            self.append(what)


def run(sftrun, *words, stdin="", code=0):
    done = subprocess.run([sftrun, *map(str, words)], input=stdin.encode(), capture_output=True, timeout=TIMEOUT)
    if done.returncode != code:
        raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout.decode()}{done.stderr.decode()}")
    return done.stdout.decode()


def answer_of(sftrun, folder, messages, *words):
    """`sftrun generate`'s answer to a conversation."""
    (folder / "in.jsonl").write_text(json.dumps({"messages": messages}) + "\n")
    run(sftrun, "generate", *ON_CPU, "--input", folder / "in.jsonl", "--output", folder / "out.jsonl", "--overwrite", "--max-new-tokens", 8, *words)
    return json.loads((folder / "out.jsonl").read_text())["generated"]


def chat(sftrun, lines, *words, code=0):
    return run(sftrun, "chat", *ON_CPU, "--max-new-tokens", 8, *words, stdin="".join(f"{line}\n" for line in lines), code=code)


def check_pipe(sftrun, folder, failures):
    saved = folder / "saved.jsonl"
    text = chat(sftrun, ["Hello", "two\\", "lines", f"/save {saved}", "/reset", "Again", f"/save {saved}"], "--model", MODEL, "--system", "Be brief.")
    first, second = (json.loads(line)["messages"] for line in saved.read_text().splitlines())
    failures.expect("a conversation has the system message and each turn",
                    [message["role"] for message in first] == ["system", "user", "assistant", "user", "assistant"] and first[3]["content"] == "two\nlines", first)
    failures.expect("/reset keeps the system message", [message["role"] for message in second] == ["system", "user", "assistant"], second)
    for turns in (first[:3], first, second):
        failures.expect("an answer is generate's", turns[-1]["content"] == answer_of(sftrun, folder, turns[:-1], "--model", MODEL), turns)
    failures.expect("answers are printed, each with a line end", all(message["content"] + "\n" in text for message in first + second
                                                                     if message["role"] == "assistant"), text)
    other = folder / "other.jsonl"
    text = chat(sftrun, ["/retry", "/help", "/hepl", "/save", f"/save {other}", "/system Talk.", "//etc", f"/save {other}", "", "/quit", "never"], "--model", MODEL)
    failures.expect("commands explain themselves", all(part in text for part in ("no answer yet", "/adapter NAME", "unknown command /hepl", "needs the name of a file", "no answer to save")), text)
    messages = json.loads(other.read_text())["messages"]
    failures.expect("/system begins anew with it, and two slashes are one",
                    messages[:2] == [{"role": "system", "content": "Talk."}, {"role": "user", "content": "/etc"}], messages)
    failures.expect("nothing is answered after /quit", "never" not in text)
    text = chat(sftrun, ["word " * 200, "/retry", "Hello"], "--model", MODEL)
    failures.expect("a conversation beyond the context says so and goes on", "context is 128" in text and "shorter message" in text and "no answer yet" in text, text)
    sampled = chat(sftrun, ["Hello", "/retry"], "--model", MODEL, "--temperature", 1, "--seed", 3).splitlines()
    failures.expect("/retry samples other tokens", len(sampled) >= 2 and sampled[0] != sampled[-1], sampled)


def check_adapters(sftrun, folder, failures):
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": p, "completion": p.upper()}) + "\n" for p in ("Hello", "what is", "a b c", "1 2 3")))
    (folder / "run.yaml").write_text(f"model: {{name: {MODEL}, max_seq_len: 64}}\ntuning: {{mode: lora, lora: {{r: 4}}}}\ndata: {{train: {folder}/train.jsonl}}\n"
                                     f"train: {{max_steps: 6, learning_rate: 0.05}}\noutput: {{dir: {folder}/tuned}}\n")
    run(sftrun, "train", "--config", folder / "run.yaml", "--device", "cpu")
    saved = folder / "switched.jsonl"
    text = chat(sftrun, ["/adapter", "Hello", f"/adapter {MODEL}", "Hello", "/adapter none", f"/save {saved}"], "--adapter", folder / "tuned")
    failures.expect("/adapter lists the models, and marks the present one", f"* tuned\n  {MODEL}\n" in text, text)
    failures.expect("/adapter with another name says which there are", f"there is no none; there are tuned, {MODEL}" in text, text)
    messages = json.loads(saved.read_text())["messages"]
    failures.expect("the adapter answers", messages[1]["content"] == answer_of(sftrun, folder, messages[:1], "--adapter", folder / "tuned"), messages)
    failures.expect("then the base answers in the same conversation", messages[3]["content"] == answer_of(sftrun, folder, messages[:3], "--model", MODEL), messages)
    text = chat(sftrun, [f"/adapter {MODEL.name}", "/adapter"], "--adapter", folder / "tuned")
    failures.expect("/adapter takes the last part of the base's path", f"({MODEL} answers now)" in text and f"* {MODEL}\n" in text, text)
    failures.expect("and they differ", answer_of(sftrun, folder, messages[:1], "--model", MODEL) != messages[1]["content"])


class Terminal:
    def __init__(self, *words):
        self.process, self.shown = None, ""
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.environ.update(TERM="xterm", LANG="C.UTF-8")
            os.execv(words[0], list(map(str, words)))

    def wait_for(self, pattern, after=0, seconds=TIMEOUT):
        """The end of the next match of what is shown."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if found := re.compile(pattern).search(self.shown, after):
                return found.end()
            if select.select([self.file], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.file, 65536).decode(errors="replace")
                except OSError:
                    break
        raise RuntimeError(f"{pattern!r} is not shown: {self.shown!r}")

    def type(self, text):
        os.write(self.file, text.encode())

    def type_until(self, text, pattern, after):
        for _ in range(10):
            self.type(text)
            try:
                return self.wait_for(pattern, after, seconds=3)
            except RuntimeError:
                pass
        return self.wait_for(pattern, after)


def with_long_answers(folder):
    """The model with a context in which an answer takes seconds."""
    model = folder / "model"
    shutil.copytree(MODEL, model)
    settings = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(settings | {"max_position_embeddings": 100_000}))
    return model


def check_terminal(sftrun, folder, failures):
    saved = folder / "typed.jsonl"
    terminal = Terminal(sftrun, "chat", *ON_CPU, "--model", with_long_answers(folder), "--max-new-tokens", "20000", "--temperature", "1", "--seed", "5")
    at = terminal.wait_for("/help lists.*\n.*> ")
    terminal.type("Hellp\x7fo\r")  # a backspace
    at = terminal.wait_for("\\n> ", at)
    terminal.type(f"/save {saved}\r")
    at = terminal.wait_for("\\n> ", terminal.wait_for("appended", at))
    failures.expect("lines are edited", json.loads(saved.read_text())["messages"][0]["content"] == "Hello", saved.read_text())
    terminal.type("\x1b[A\x1b[A")  # the arrow up, twice
    at = terminal.wait_for("Hello", at)
    terminal.type("\r")
    at = terminal.wait_for("\\n> ", at)
    at = terminal.type_until("\x03", "ends\\)", at)  # between the prompt and the read it is lost
    failures.expect("Ctrl-C at the prompt says how to end", True)
    for _ in range(10):  # an answer may end before the signal is there
        terminal.type("/reset\rlong\r")
        at = terminal.wait_for("long\r\n.", terminal.wait_for("new conversation", at))
        os.kill(terminal.pid, signal.SIGINT)
        at = terminal.wait_for("(\\(interrupted\\)|ends\\))\\s+> ", at)
        if "(interrupted)" in terminal.shown:
            break
    failures.expect("Ctrl-C ends an answer", "(interrupted)" in terminal.shown, terminal.shown[-500:])
    terminal.type("\x04")
    status = os.waitpid(terminal.pid, 0)[1]
    failures.expect("Ctrl-D ends the program with 0", os.waitstatus_to_exitcode(status) == 0, status)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    failures = Failures()
    for check in (check_pipe, check_adapters, check_terminal):
        with tempfile.TemporaryDirectory() as name:
            check(sftrun, pathlib.Path(name), failures)
    print(f"{failures.count - len(failures)} of {failures.count} passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
