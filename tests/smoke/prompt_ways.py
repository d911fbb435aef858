#!/usr/bin/env python3
"""train, preview, tokenize, eval, score, generate and serve give a prompt the same tokens, whatever the tokenizer's post-processor adds.

    tests/smoke/prompt_ways.py --sftrun build/bin/sftrun

Standard library only. Each command runs as a process, with a tiny model whose tokenizer.json has a post-processor that prepends BOS, also with one that
appends EOS too.
The records are one prompt that is a text and one that is a conversation. What a command says of its tokens is compared:

tokenize, preview    the ids
train                the ids and labels of the token cache, and the loss of the first step
eval                 the loss, and greedy answers
score                the number of labelled tokens and their log-probability
generate             the number of a prompt's tokens, and greedy answers
serve                the same, and with echo the tokens and their log-probabilities
"""

import argparse
import json
import math
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
BOS, EOS = "<|turn|>", "<|end|>"  # of that model, whose own tokenizer adds nothing
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
NEW_TOKENS = 6
TIMEOUT = 120  # s, of one command

PROMPT, COMPLETION = "1 and", " 2, 3"
RECORDS = [
    {"prompt": PROMPT, "completion": COMPLETION},
    {"prompt": [{"role": "user", "content": PROMPT}], "completion": [{"role": "assistant", "content": COMPLETION}]},
]
ASKED = f"{BOS}user\n{PROMPT}{EOS}\n{BOS}assistant\n"  # what the chat template writes
ANSWER = f"{COMPLETION}{EOS}"  # with a label; the template writes a line break after it

RUN = """\
model: {{ name: {model}, dtype: fp32, max_seq_len: 64 }}
tuning: {{ mode: lora, lora: {{ r: 2, dropout: 0 }} }}
data: {{ train: train.jsonl, val: val.jsonl, cache_dir: cache, shuffle: false, packing: false }}
train: {{ max_steps: 1, batch_size: 2, grad_accum: 1 }}
output: {{ dir: run, tensorboard: false }}
"""


def template(bos, eos):
    def special(name):
        return {"SpecialToken": {"id": name, "type_id": 0}}
    return {
        "type": "TemplateProcessing",
        "single": [special(BOS)] * bos + [{"Sequence": {"id": "A", "type_id": 0}}] + [special(EOS)] * eos,
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {name: {"id": name, "ids": [id_of(name)], "tokens": [name]} for name in (BOS, EOS)},
    }


def id_of(name):
    tokens = json.loads((MODEL / "tokenizer.json").read_text())["added_tokens"]
    return next(token["id"] for token in tokens if token["content"] == name)


def in_sequence(processor):
    """As Llama 3's tokenizer.json has it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    return {"type": "Sequence", "processors": [byte_level, processor]}


class Checks:
    def __init__(self, sftrun, folder, name):
        self.sftrun, self.folder, self.name, self.count, self.failures = sftrun, folder, name, 0, []

    def run(self, *words):
        done = subprocess.run([self.sftrun, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def equal(self, what, got, expected):
        self.count += 1
        same = math.isclose(got, expected, rel_tol=1e-4) if isinstance(expected, float) else got == expected
        print(f"{'ok  ' if same else 'FAIL'} {self.name}: {what}{'' if same else f': {got} instead of {expected}'}")
        if not same:
            self.failures.append(what)


def cached_tokens(file):
    """@return ids and labels (-100: none) of a file of tokenized examples, one after another (include/sftrun/data/example_store.h)"""
    data = file.read_bytes()
    [index] = struct.unpack_from("<Q", data, len(data) - 56)
    marked = struct.unpack_from(f"<{(index - 8) // 4}I", data, 8)
    label_bit = 1 << 31
    return [token % label_bit for token in marked], [token - label_bit if token >= label_bit else -100 for token in marked]


class Server:
    def __init__(self, checks):
        self.process = subprocess.Popen([checks.sftrun, "serve", "--model", "model", "--port", "0", *ON_CPU], cwd=checks.folder,
                                        stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"http://[\d.]+:\d+/v1", line):
                self.url = found[0]
                return
        raise RuntimeError("sftrun serve ended")

    def post(self, path, body):
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
            return json.load(response)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.stderr.read()
        self.process.wait(TIMEOUT)


def check(sftrun, name, processor, bos, eos):
    with tempfile.TemporaryDirectory() as folder:
        checks = Checks(sftrun, pathlib.Path(folder), name)
        write_inputs(checks.folder)
        plain = [line["input_ids"] for line in tokenize(checks, "texts.jsonl")]  # of the tokenizer that adds nothing
        tokenizer = json.loads((MODEL / "tokenizer.json").read_text())
        (checks.folder / "model/tokenizer.json").write_text(json.dumps(tokenizer | {"post_processor": processor}))
        first, last = [id_of(BOS)] * bos, [id_of(EOS)]
        text, asked, answered = first + plain[0], plain[2], plain[3]
        whole_text = first + plain[1]
        # A text that is trained on ends with EOS, whatever the post-processor does.
        trained = [whole_text + last, answered]
        starts = [len(text), len(asked)]
        labels = [[-100] * start + ids[start:] for start, ids in zip(starts, trained)]
        labels[1][-1] = -100  # the line break that the template writes after the answer

        checks.equal("tokenize", [line["input_ids"] for line in tokenize(checks, "texts.jsonl")][1], whole_text + last * eos)
        checks.equal("tokenize --chat", tokenize(checks, "chats.jsonl", "--chat")[0]["input_ids"], answered)
        sequences = json.loads(checks.run("preview", "--config", "run.yaml", "--json"))["data_sets"][0]["sequences"]
        checks.equal("preview", [s["input_ids"] for s in sequences], trained)
        checks.equal("preview, labels", [s["labels"] for s in sequences], labels)

        checks.run("train", "--config", "run.yaml", "--device", "cpu", "--nproc-per-node", 1)
        num_tokens = sum(map(len, trained))
        files = list(checks.folder.glob("cache/*/examples"))
        checks.equal("train, files of train.jsonl and val.jsonl", len(files), 2)
        for file in files:
            ids, marks = cached_tokens(file)
            checks.equal("train", ids[:num_tokens], sum(trained, []))
            checks.equal("train, labels", marks[:num_tokens], sum(labels, []))
        steps = [json.loads(line) for line in (checks.folder / "run/metrics.jsonl").read_text().splitlines()]
        loss = next(step["loss"] for step in steps if step.get("step") == 1 and "loss" in step)
        evaluated = json.loads(checks.run("eval", "--config", "run.yaml", "--adapter", "none", "--json", "--predictions", "answers.jsonl",
                                          "--max-new-tokens", NEW_TOKENS, *ON_CPU))["base"]
        checks.equal("eval, loss", evaluated["loss"], float(loss))
        checks.equal("eval, labels", evaluated["label_tokens"], sum(label != -100 for of_one in labels for label in of_one))
        answers = [json.loads(line)["base"]["generated"] for line in (checks.folder / "answers.jsonl").read_text().splitlines()]

        for words, prompt, answer in ((["--no-chat"], text, answers[0]), (["--chat"], asked, answers[1])):
            said = json.loads(checks.run("generate", "--model", "model", "--prompt", PROMPT, *words, "--json", "--max-new-tokens", NEW_TOKENS, *ON_CPU))
            checks.equal(f"generate {words[0]}", (said["prompt_tokens"], said["generated"]), (len(prompt), answer))

        scores = [json.loads(line) for line in checks.run("score", "--model", "model", "--input", "train.jsonl", "--output", "-", *ON_CPU).splitlines()]
        checks.equal("score, labels", [score["tokens"] for score in scores], [len(whole_text) - len(text), len(answered) - 1 - len(asked)])
        with Server(checks) as server:
            greedy = {"temperature": 0, "max_tokens": NEW_TOKENS}
            said = server.post("/completions", greedy | {"prompt": PROMPT})
            checks.equal("serve, a text", (said["usage"]["prompt_tokens"], said["choices"][0]["text"]), (len(text), answers[0]))
            said = server.post("/chat/completions", greedy | {"messages": RECORDS[1]["prompt"]})
            checks.equal("serve, a conversation", (said["usage"]["prompt_tokens"], said["choices"][0]["message"]["content"]), (len(asked), answers[1]))
            echo = {"echo": True, "max_tokens": 0, "logprobs": 0}
            [said] = server.post("/completions", echo | {"prompt": PROMPT + COMPLETION})["choices"]
            checks.equal("serve, tokens of a text", said["logprobs"]["tokens"], sequences[0]["tokens"][:len(whole_text)])
            checks.equal("score, a text", scores[0]["logprob"], sum(said["logprobs"]["token_logprobs"][len(text):]))
            [said] = server.post("/completions", echo | {"prompt": answered})["choices"]
            checks.equal("score, a conversation", scores[1]["logprob"], sum(said["logprobs"]["token_logprobs"][len(asked):-1]))
            [said] = server.post("/completions", echo | {"prompt": whole_text + last})["choices"]
            sums = sum(said["logprobs"]["token_logprobs"][len(text):]) + scores[1]["logprob"]
            checks.equal("train, loss", float(loss), -sums / evaluated["label_tokens"])
        return checks


def write_inputs(folder):
    shutil.copytree(MODEL, folder / "model")
    lines = "".join(json.dumps(record) + "\n" for record in RECORDS)
    for name in ("train.jsonl", "val.jsonl"):
        (folder / name).write_text(lines)
    texts = (PROMPT, PROMPT + COMPLETION, ASKED, ASKED + ANSWER + "\n")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (folder / "chats.jsonl").write_text(json.dumps({"messages": RECORDS[1]["prompt"] + RECORDS[1]["completion"]}) + "\n")
    (folder / "run.yaml").write_text(RUN.format(model="model"))


def tokenize(checks, source, *words):
    return [json.loads(line) for line in checks.run("tokenize", "--model", "model", "--input", source, "--output", "-", *words).splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    done = [check(sftrun, "BOS and EOS", template(True, True), True, True),
            check(sftrun, "BOS, as Llama 3", in_sequence(template(True, False)), True, False)]
    count, failures = sum(checks.count for checks in done), sum(len(checks.failures) for checks in done)
    print(f"{count - failures} of {count} checks hold")
    return 1 if failures or not count else 0


if __name__ == "__main__":
    sys.exit(main())
