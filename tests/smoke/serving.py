#!/usr/bin/env python3
"""`sftrun serve` and its clients: openai's Python package, lm-evaluation-harness, and hostile ones.

    .venv-ref/bin/python tests/smoke/serving.py --sftrun build/bin/sftrun [--model DIR] [--only NAME …] [--quick]

openai      models, completions, chats, streams, several choices, log-probabilities, stop texts, and errors as openai's classes
answers     equal to those of `sftrun generate`, alone and in batches, for the base model and for adapters by name
harness     lm-evaluation-harness gives the same scores through `local-completions` as with its transformers backend
heads       reward models and classifiers: transformers' and PEFT's scores by /classify, /score and /pooling, one by one, many at a time, and of
            a divided model; beside a language model; hostile bodies
load        more answers than may wait are refused with 429, and what was accepted is answered
hostile     damaged HTTP and JSON, wrong types, huge bodies, clients that vanish: an error for each, and the server goes on
memory      requests that need more memory than there is: an error for each, and the server goes on
stop        SIGTERM during an answer: the client gets an error, the exit code is 0

--model runs `harness` with another model than the tiny one of the tests (a directory in Hugging Face layout). --quick sends fewer
random bodies.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import openai

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
ON_CPU = ["--device", "cpu", "--dtype", "fp32"]
TIMEOUT = 300  # s, of one command or request
RANDOM_BODIES, RANDOM_BODIES_QUICK = 400, 150

PROMPTS = ["Hello world", "The quick brown fox", "what is", "1 2 3 4", "a", "Once upon a time there was a", "def f(x):", "?"]


class Failures(list):
    count = 0

    def expect(self, what, holds, detail=""):
        self.count += 1
        print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
        if not holds:
            self.append(what)


class Server:
    """A running `sftrun serve`; ended by SIGTERM at the end of the block."""

    def __init__(self, sftrun, *words, env=None):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([sftrun, "serve", *ON_CPU, "--port", "0", *map(str, words)], stderr=self.log, stdout=subprocess.DEVNULL,
                                        env={**os.environ, **(env or {})})
        for _ in range(1200):
            found = re.search(r"at (http://\S+:(\d+)/v1) ", self.text())
            if found or self.process.poll() is not None:
                break
            time.sleep(0.05)
        if not found:
            raise RuntimeError(f"sftrun serve does not start: {self.text()}")
        self.url, self.port = found[1], int(found[2])

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def client(self, key="none"):
        return openai.OpenAI(base_url=self.url, api_key=key, max_retries=0, timeout=TIMEOUT)

    def stop(self, how=signal.SIGTERM):
        if self.process.poll() is None:
            self.process.send_signal(how)
        return self.process.wait(60)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


def generated(sftrun, folder, prompts, *words):
    """The answers of `sftrun generate` to texts that are continued."""
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    subprocess.run([sftrun, "generate", *ON_CPU, "--input", source, "--output", output, "--overwrite", *map(str, words)], check=True,
                   capture_output=True, timeout=TIMEOUT)
    return [json.loads(line)["generated"] for line in output.read_text().splitlines()]


def raised(kind, call):
    try:
        call()
    except kind as error:
        return error
    except Exception as error:  # noqa: BLE001 - reported as the wrong kind
        return f"{type(error).__name__}: {error}"
    return "no error"


# ---- openai


def check_openai(options, failures):
    with Server(options.sftrun, "--model", MODEL, "--token", "secret") as server:
        client, name = server.client("secret"), str(MODEL)
        models = [model.id for model in client.models.list()]
        failures.expect("models.list has the model", models == [name], models)
        failures.expect("models.retrieve", client.models.retrieve(name).id == name)

        answer = client.completions.create(model=name, prompt="Hello world", max_tokens=5, temperature=0)
        failures.expect("a completion has text and numbers of tokens", answer.choices[0].text and answer.usage.completion_tokens == 5, answer)
        scored = client.completions.create(model=name, prompt="Hello world", max_tokens=2, temperature=0, logprobs=3, echo=True)
        entry = scored.choices[0].logprobs
        joined = "".join(token for token in entry.tokens if not token.startswith("bytes:"))
        failures.expect("echo with logprobs: tokens, offsets and a null for the first",
                        entry.token_logprobs[0] is None and all(value <= 0 for value in entry.token_logprobs[1:]) and joined.startswith("Hello world")
                        and entry.text_offset[0] == 0 and len(entry.tokens) == len(entry.top_logprobs) == len(entry.text_offset), entry)
        first = client.completions.create(model=name, prompt="Hello world", max_tokens=5, temperature=0, logprobs=1).choices[0]
        failures.expect("greedy tokens are the likeliest",
                        all(value == max(top.values()) for value, top in zip(first.logprobs.token_logprobs, first.logprobs.top_logprobs)), first)
        only_prompt = client.completions.create(model=name, prompt=[5, 6, 7], max_tokens=0, echo=True, logprobs=0).choices[0]
        failures.expect("max_tokens 0 with echo scores the prompt only", len(only_prompt.logprobs.tokens) == 3, only_prompt)

        messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        chat = client.chat.completions.create(model=name, messages=messages, max_completion_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
        failures.expect("a chat has a message and its log-probabilities",
                        chat.choices[0].message.role == "assistant" and len(chat.choices[0].logprobs.content) == 6
                        and len(chat.choices[0].logprobs.content[0].top_logprobs) == 2, chat)
        pieces, usage, finish = "", None, None
        with client.chat.completions.create(model=name, messages=messages, max_tokens=6, temperature=0, stream=True,
                                            stream_options={"include_usage": True}) as stream:
            for chunk in stream:
                usage = chunk.usage or usage
                for choice in chunk.choices:
                    pieces += choice.delta.content or ""
                    finish = choice.finish_reason or finish
        failures.expect("a stream has the same text", pieces == chat.choices[0].message.content and finish == "length", (pieces, chat))
        failures.expect("a stream ends with the numbers of tokens", usage and usage.completion_tokens == 6, usage)

        several = client.completions.create(model=name, prompt=["Hello", "what"], n=3, max_tokens=8, seed=7, temperature=1)
        again = client.completions.create(model=name, prompt=["Hello", "what"], n=3, max_tokens=8, seed=7, temperature=1)
        texts = [choice.text for choice in sorted(several.choices, key=lambda choice: choice.index)]
        failures.expect("n choices for each prompt, all different", len(set(texts)) == 6, texts)
        failures.expect("a seed repeats them", texts == [choice.text for choice in sorted(again.choices, key=lambda choice: choice.index)])
        sampled = {"model": name, "prompt": "Hello", "max_tokens": 40, "temperature": 1, "seed": 7}
        whole = client.completions.create(**sampled).choices[0].text
        stop = next(char for char in whole[4:] if char != "\ufffd")
        cut = client.completions.create(**sampled, stop=[stop, "never there"]).choices[0]
        failures.expect("a stop text ends the answer before it", cut.text == whole[:whole.index(stop)] and cut.finish_reason == "stop", (cut, whole))

        for what, kind, call in [
                ("a wrong token is an AuthenticationError", openai.AuthenticationError, lambda: server.client("wrong").models.list()),
                ("an unknown model is a NotFoundError", openai.NotFoundError, lambda: client.completions.create(model="gpt", prompt="x")),
                ("a prompt beyond the context is a BadRequestError", openai.BadRequestError,
                 lambda: client.completions.create(model=name, prompt=[3] * 127, max_tokens=100)),
                ("an unsupported parameter is a BadRequestError", openai.BadRequestError,
                 lambda: client.completions.create(model=name, prompt="x", presence_penalty=1)),
                ("an unknown parameter is a BadRequestError", openai.BadRequestError,
                 lambda: client.completions.create(model=name, prompt="x", extra_body={"tempreature": 1})),
                ("an assistant's last message is a BadRequestError", openai.BadRequestError,
                 lambda: client.chat.completions.create(model=name, messages=[{"role": "assistant", "content": "x"}]))]:
            error = raised(kind, call)
            failures.expect(what, isinstance(error, kind), error)
        failures.expect("a misspelt parameter is named, with the right one", "temperature" in str(raised(
            openai.BadRequestError, lambda: client.completions.create(model=name, prompt="x", extra_body={"tempreature": 1}))))


# ---- answers


def train_adapters(options, folder):
    """Two runs of a few steps, whose adapters answer differently."""
    (folder / "train.jsonl").write_text("".join(json.dumps({"prompt": p, "completion": p.upper()}) + "\n" for p in PROMPTS))
    for seed in (1, 2):
        (folder / f"run{seed}.yaml").write_text(
            f"model: {{name: {MODEL}, max_seq_len: 64}}\ntuning: {{mode: lora, lora: {{r: 4}}}}\ndata: {{train: {folder}/train.jsonl}}\n"
            f"train: {{max_steps: 6, learning_rate: 0.05, seed: {seed}}}\noutput: {{dir: {folder}/run{seed}}}\n")
        subprocess.run([options.sftrun, "train", "--config", folder / f"run{seed}.yaml", "--device", "cpu"], check=True, capture_output=True, timeout=TIMEOUT)
    return folder / "run1", folder / "run2"


def check_answers(options, failures):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        runs = train_adapters(options, folder)
        limit = ["--max-new-tokens", 24]
        expected = {"base": generated(options.sftrun, folder, PROMPTS, "--model", MODEL, *limit),
                    "one": generated(options.sftrun, folder, PROMPTS, "--adapter", runs[0], *limit),
                    "run2": generated(options.sftrun, folder, PROMPTS, "--adapter", runs[1], *limit)}
        failures.expect("the adapters and the base answer differently", len({tuple(texts) for texts in expected.values()}) == 3)
        with Server(options.sftrun, "--model", MODEL, "--adapter", f"one={runs[0]}", "--adapter", f"{runs[1]}/", "--batch-size", 5) as server:
            client = server.client()
            names = [model.id for model in client.models.list()]
            failures.expect("adapters are named, or have the name of their run", names == ["one", "run2", str(MODEL)], names)

            def ask(job):
                model, prompt = job
                return client.completions.create(model=names[2] if model == "base" else model, prompt=prompt, max_tokens=24, temperature=0).choices[0].text

            jobs = [(model, prompt) for prompt in PROMPTS for model in expected]
            right = [text for index in range(len(PROMPTS)) for text in (expected[model][index] for model in expected)]
            failures.expect("one after the other: as generate", [ask(job) for job in jobs] == right)
            with concurrent.futures.ThreadPoolExecutor(16) as pool:
                failures.expect("16 at a time, three models mixed: as generate", list(pool.map(ask, jobs)) == right)
            whole = client.completions.create(model="one", prompt=PROMPTS, max_tokens=24, temperature=0)
            failures.expect("a request with all prompts: as generate", [choice.text for choice in whole.choices] == expected["one"])
            with urllib.request.urlopen(urllib.request.Request(f"{server.url}/completions", json.dumps({"prompt": "a", "max_tokens": 2}).encode(),
                                                               {"Content-Type": "application/json"}), timeout=TIMEOUT) as answer:
                failures.expect("a request that names no model is for the first adapter", json.load(answer)["model"] == "one")
        check_updates(options, runs, expected, folder, failures)


def check_updates(options, runs, expected, folder, failures):
    """Adapters that clients load, replace and unload while others are answered."""
    with Server(options.sftrun, "--model", MODEL, "--allow-adapter-updates", "--batch-size", 4) as server:
        client = server.client()

        def change(verb, **body):
            reply = exchange(server.port, post(json.dumps(body).encode(), f"/v1/{verb}_lora_adapter"))
            return int(reply.split(b" ")[1])

        def answers(model):
            return [client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0).choices[0].text for prompt in PROMPTS]

        failures.expect("an adapter is loaded by its path", change("load", lora_name="new", lora_path=f"{runs[0]}/adapter") == 200)
        failures.expect("its answers are those of generate", answers("new") == expected["one"])
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            base = pool.submit(answers, str(MODEL))
            replaced = change("load", lora_name="new", lora_path=f"{runs[1]}/adapter", load_inplace=True)
            failures.expect("an adapter is replaced in place, while others are answered", replaced == 200 and base.result() == expected["base"])
        failures.expect("answers are those of the new one", answers("new") == expected["run2"])
        failures.expect("a name is loaded once", change("load", lora_name="new", lora_path=f"{runs[0]}/adapter") == 400)
        (folder / "damaged").mkdir()
        (folder / "damaged/adapter_config.json").write_text((runs[0] / "adapter/adapter_config.json").read_text())
        (folder / "damaged/adapter_model.safetensors").write_bytes((runs[0] / "adapter/adapter_model.safetensors").read_bytes()[:999])
        statuses = [change("load", lora_name="bad", lora_path=str(path)) for path in (folder, folder / "damaged", "/dev/zero", "/proc/self/mem", MODEL)]
        failures.expect("what is no adapter of this model is refused", statuses == [400] * 5, statuses)
        failures.expect("an adapter is unloaded", change("unload", lora_name="new") == 200 and change("unload", lora_name="new") == 404)
        error = raised(openai.NotFoundError, lambda: answers("new"))
        failures.expect("then it is not found", isinstance(error, openai.NotFoundError), error)
        failures.expect("the base still answers", answers(str(MODEL)) == expected["base"])


# ---- heads of scores


HEADS_BOUND = 1e-5  # of probabilities, and of scores relative to the largest


def check_heads(options, failures):
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path.insert(0, str(ROOT / "tests/parity"))
    import heads_parity as heads
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in (heads.CASES[1], heads.CASES[2], heads.CASES[3]):
            directory = folder / case.name.replace(", ", "-").replace(" ", "-")
            base = heads.make_model(directory, "llama", case)
            model = heads.AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32).eval()
            with Server(options.sftrun, "--model", base, "--batch-size", 5) as server:
                compare_scores(server, str(base), heads, model, case, base, failures)
        check_trained_head(options, heads, folder, failures)


def scored_bodies(heads, case):
    """A request for each text of the records, and what transformers reads of it."""
    bodies = []
    for record in heads.make_records(case, 8):
        for one in heads.scored_records(record, case):
            bodies.append(({"messages": one["messages"]} if case.chats else {"input": one["text"]}, one))
    return bodies


def compare_scores(server, name, heads, model, case, base, failures):
    import torch

    tokenizer = heads.PreTrainedTokenizerFast.from_pretrained(base)
    bodies = scored_bodies(heads, case)
    sequences = [tokenizer.apply_chat_template(one["messages"], return_dict=False) if case.chats else tokenizer(one["text"])["input_ids"]
                 for _, one in bodies]
    with torch.no_grad():
        scores = heads.scores_of(model, sequences)
    probs = scores.sigmoid() if case.is_reward or case.problem_type == "multi_label_classification" else scores.softmax(1)
    client = server.client()

    def ask(path, body):
        return client.post(path, body={"model": name, **body}, cast_to=object)

    def off(answers, key, expected):
        return (torch.tensor([answer["data"][0][key] for answer in answers], dtype=torch.float64).view(expected.shape) - expected).abs().max().item()

    alone = [ask("/classify", body) for body, _ in bodies]
    labels = [model.config.id2label[row.argmax().item()] for row in scores]
    failures.expect(f"{case.name}: probabilities", off(alone, "probs", probs) < HEADS_BOUND, off(alone, "probs", probs))
    failures.expect(f"{case.name}: labels", [answer["data"][0]["label"] for answer in alone] == labels, labels)
    failures.expect(f"{case.name}: numbers of tokens", [answer["usage"]["prompt_tokens"] for answer in alone] == [len(ids) for ids in sequences])
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        raw = list(pool.map(lambda body: ask("/pooling", {**body, "use_activation": False}), [body for body, _ in bodies * 4]))
    worst = off(raw, "data", scores.repeat(4, 1)) / scores.abs().max().item()
    failures.expect(f"{case.name}: scores, 16 requests at a time", worst < HEADS_BOUND, worst)
    whole = ask("/classify", {"input": sequences})["data"]
    worst = (torch.tensor([entry["probs"] for entry in whole]) - probs).abs().max().item()
    failures.expect(f"{case.name}: one request with the token ids of all texts", worst < HEADS_BOUND and [e["index"] for e in whole] == list(range(len(whole))), worst)
    if case.is_reward:
        pairs = client.post("/score", body={"text_1": "what", "text_2": [" is", " was it"], "use_activation": False}, cast_to=object)["data"]
        ids = [tokenizer(text + tokenizer.eos_token)["input_ids"] for text in ("what is", "what was it")]
        worst = (torch.tensor([pair["score"] for pair in pairs]) - heads.scores_of(model, ids)[:, 0]).abs().max().item()
        failures.expect("pairs of texts, which end with EOS", worst < HEADS_BOUND, worst)
    else:
        error = raised(openai.BadRequestError, lambda: client.post("/score", body={"text_1": "a", "text_2": "b"}, cast_to=object))
        failures.expect(f"{case.name}: /score needs one score", isinstance(error, openai.BadRequestError) and "/classify" in str(error), error)
    for path in ("completions", "chat/completions"):
        error = raised(openai.BadRequestError, lambda path=path: client.post(f"/{path}", body={"prompt": "a", "messages": []}, cast_to=object))
        failures.expect(f"{case.name}: {path} name what to use", isinstance(error, openai.BadRequestError) and "/classify" in str(error), error)
    check_hostile_scores(server, case, failures)


def check_hostile_scores(server, case, failures):
    chance = random.Random(5)
    words = ["input", "messages", "text_1", "text_2", "queries", "documents", "use_activation", "model", "add_special_tokens", "encoding_format", "task", "x"]
    values = [None, True, 0, -1, 1e300, "a", "", [], [[]], [[[]]], [1, 2], [-1], [10**12], ["a", 1], ["a"] * 3, {}, {"a": 1}, [None], "\0", "a" * 5000,
              [{"role": "user", "content": "hi"}], [{"role": "user"}], [{"role": "user", "content": [{"type": "features", "features": "/etc/passwd"}]}],
              [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]]
    strange = []
    for _ in range(120):
        body = {chance.choice(words): chance.choice(values) for _ in range(chance.randrange(5))}
        path = chance.choice(["/classify", "/v1/classify", "/score", "/v1/score", "/pooling"])
        reply = exchange(server.port, post(json.dumps(body).encode(), path))
        if not re.match(rb"HTTP/1.1 (200|4\d\d) ", reply):
            strange.append((path, body, reply[:200]))
    for body in (b"{", b"[]", b"", b'{"input": "\xff"}', b'{"input": "\\ud800"}', b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}"):
        reply = exchange(server.port, post(body, "/classify"))
        if not re.match(rb"HTTP/1.1 4\d\d ", reply):
            strange.append((body[:50], reply[:200]))
    failures.expect(f"{case.name}: random and damaged bodies: an answer or an error of the request", not strange, strange[:3])
    failures.expect(f"{case.name}: no request failed inside", "failed" not in server.text(), server.text()[-2000:])


def check_trained_head(options, heads, folder, failures):
    """An adapter with a head on a causal model, served beside that model; the same divided over two processes."""
    import torch

    case = heads.CASES[2]
    base = heads.make_model(folder / "causal", "llama", None)
    data = heads.write_jsonl(folder / "train.jsonl", heads.make_records(case, 12))
    run = heads.write_run(folder / "run.yaml", base, data, case, "lora", train={"max_steps": 2})
    subprocess.run([options.sftrun, "train", "--config", run, "--device", "cpu", f"output.dir={folder}/moods"], check=True, capture_output=True, timeout=TIMEOUT)
    labels = {key: value for key, value in json.loads((folder / "moods/adapter/labels.json").read_text()).items() if value is not None}
    labels["id2label"] = {int(i): name for i, name in labels["id2label"].items()}
    model = heads.AutoModelForSequenceClassification.from_pretrained(base, dtype=torch.float32, **labels)
    model = heads.PeftModel.from_pretrained(model, folder / "moods/adapter").eval()
    tokenizer = heads.PreTrainedTokenizerFast.from_pretrained(base)
    texts = [record["text"] for record in heads.make_records(case, 6)]
    with torch.no_grad():
        probs = heads.scores_of(model, [tokenizer(text)["input_ids"] for text in texts]).softmax(1)
    for what, words in (("an adapter", []), ("tensor parallel", ["--tp", 2, "--nproc-per-node", 2]), ("a pipeline", ["--pp", 2, "--nproc-per-node", 2])):
        with Server(options.sftrun, "--model", base, "--adapter", folder / "moods", *words) as server:
            client = server.client()
            answer = client.post("/classify", body={"model": "moods", "input": texts}, cast_to=object)
            worst = (torch.tensor([entry["probs"] for entry in answer["data"]]) - probs).abs().max().item()
            failures.expect(f"{what}: PEFT's probabilities", worst < HEADS_BOUND, worst)
            completion = client.completions.create(model=str(base), prompt="a", max_tokens=2, temperature=0)
            failures.expect(f"{what}: its base still writes", completion.usage.completion_tokens >= 1, completion)
            again = client.post("/classify", body={"input": texts[:1]}, cast_to=object)["data"][0]["probs"]
            failures.expect(f"{what}: and the adapter, the first model, still scores", (torch.tensor(again) - probs[0]).abs().max().item() < HEADS_BOUND, again)
            error = raised(openai.BadRequestError, lambda client=client: client.post("/classify", body={"model": str(base), "input": "a"}, cast_to=object))
            failures.expect(f"{what}: its base has no scores", isinstance(error, openai.BadRequestError) and "head of scores" in str(error), error)
            failures.expect(f"{what}: it ends with exit code 0", server.stop() == 0, server.text()[-2000:])


# ---- lm-evaluation-harness


def make_tasks(folder, long_enough):
    """Three tasks from made data: multiple choice, perplexity of texts, and generated answers."""
    chance = random.Random(3)
    numbers = [(chance.randrange(10), chance.randrange(10)) for _ in range(24)]
    rows = {"sums": [{"question": f"{a} + {b} =", "choices": [f" {a + b + shift}" for shift in (0, 1, 2, 10)], "answer": 0} for a, b in numbers],
            "texts": [{"text": " ".join(chance.choice(["the", "cat", "sat", "on", "a", "mat", "and", "then", "it", "ran"])
                                        for _ in range(long_enough))} for _ in range(8)],
            "repeat": [{"question": f"{a} {b} {a} {b} {a}", "answer": f" {b}"} for a, b in numbers[:10]]}
    for name, content in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in content))
    settings = {
        "sums": {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{answer}}",
                 "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]},
        "texts": {"output_type": "loglikelihood_rolling", "doc_to_text": "", "doc_to_target": "{{text}}",
                  "metric_list": [{"metric": "word_perplexity"}, {"metric": "bits_per_byte"}]},
        "repeat": {"output_type": "generate_until", "doc_to_text": "{{question}}", "doc_to_target": "{{answer}}",
                   "generation_kwargs": {"until": ["\n"], "max_gen_toks": 8, "do_sample": False}, "metric_list": [{"metric": "exact_match"}]}}
    for name, setting in settings.items():
        task = {"task": f"sftrun_{name}", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / f"{name}.jsonl")}},
                "test_split": "test", **setting}
        (folder / f"{name}.yaml").write_text(json.dumps(task))  # JSON is YAML
    return [f"sftrun_{name}" for name in settings]


# Runs lm_eval with each of the lists of arguments, and without its own 14,000 tasks: to import and to list them takes longer than these tasks.
LM_EVAL = """
import functools, json, sys, time
from lm_eval.__main__ import cli_evaluate
from lm_eval.tasks import TaskManager
TaskManager.__init__ = functools.partialmethod(TaskManager.__init__, include_defaults=False)
for words in json.loads(sys.argv[1]):
    begin, sys.argv = time.monotonic(), ["lm_eval", *words]
    cli_evaluate()
    print(f"seconds: {time.monotonic() - begin:.1f}")
"""


def harness(folder, tasks, models):
    """For each of the models, by output folder: scores, and each sample's answers, of a run of lm_eval."""
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "TOKENIZERS_PARALLELISM": "false",
           "OPENAI_API_KEY": "none"}
    runs = [["run", "--tasks", *tasks, "--include_path", folder, "--output_path", folder / output, "--log_samples", *words]
            for output, words in models.items()]
    done = subprocess.run([sys.executable, "-c", LM_EVAL, json.dumps([list(map(str, words)) for words in runs])], env=env, capture_output=True, text=True,
                          timeout=2400)
    results = {output: list((folder / output).rglob("results_*.json")) for output in models}
    if done.returncode or not all(results.values()):
        raise RuntimeError(f"lm_eval fails:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    print(", ".join(f"{output} {seconds} s" for output, seconds in zip(models, re.findall(r"^seconds: (\S+)$", done.stdout, re.MULTILINE))))
    for output, files in results.items():
        scores = {(task, key): value for task, values in json.loads(files[0].read_text())["results"].items() for key, value in values.items()
                  if isinstance(value, float) and "stderr" not in key}
        samples = {path.name.split("_20")[0]: [json.loads(line)["filtered_resps"] for line in path.read_text().splitlines()]
                   for path in (folder / output).rglob("samples_*.jsonl")}
        yield scores, samples


def numbers_of(value):
    if isinstance(value, (list, tuple)):
        return [number for one in value for number in numbers_of(one)]
    try:
        return [float(value)]
    except (TypeError, ValueError):
        return []


def check_harness(options, failures):
    model = options.model or MODEL
    with tempfile.TemporaryDirectory() as name, Server(options.sftrun, "--model", model) as server:
        folder = pathlib.Path(name)
        tasks = make_tasks(folder, 20 if model == MODEL else 120)
        context = json.loads((pathlib.Path(model) / "config.json").read_text())["max_position_embeddings"]
        length = min(context, 1024) - 1
        (own, own_samples), (served, served_samples) = harness(folder, tasks, {
            "transformers": ["--model", "hf", "--model_args", f"pretrained={model},dtype=float32,max_length={length}", "--device", "cpu", "--batch_size", 8],
            "served": ["--model", "local-completions", "--model_args",
                       f"model={model},base_url={server.url}/completions,tokenizer={model},num_concurrent=4,max_length={length}", "--batch_size", 8]})
        failures.expect("the same scores are there", own.keys() == served.keys() and len(own) >= 5, (own, served))
        for key, value in own.items():
            limit = 1e-4 * max(1, abs(value))
            failures.expect(f"{key[0]} {key[1]}: {value:.6f} and {served.get(key, float('nan')):.6f}", abs(served.get(key, float("nan")) - value) <= limit)
        for task, expected in own_samples.items():
            mine, theirs = numbers_of(served_samples[task]), numbers_of(expected)
            worst = max((abs(a - b) for a, b in zip(mine, theirs)), default=0)
            failures.expect(f"{task}: {len(theirs)} log-likelihoods of samples, largest difference {worst:.2e}", len(mine) == len(theirs) and worst < 2e-3)
        repeated = next(task for task in own_samples if "repeat" in task)
        failures.expect("generated answers are the same", served_samples[repeated] == own_samples[repeated],
                        (served_samples[repeated][:3], own_samples[repeated][:3]))


# ---- load, hostile clients, stop


def check_load(options, failures):
    with Server(options.sftrun, "--model", MODEL, "--batch-size", 2, "--max-waiting", 3) as server:
        client = server.client()

        def ask(number):
            try:
                client.completions.create(model=str(MODEL), prompt=[number + 5], max_tokens=100, temperature=0)
                return 200
            except openai.APIStatusError as error:
                return error.status_code

        with concurrent.futures.ThreadPoolExecutor(40) as pool:
            codes = list(pool.map(ask, range(40)))
        failures.expect("busy: some requests are answered, others refused with 429", set(codes) == {200, 429}, codes)
        failures.expect("then it answers again", ask(1) == 200)
        error = raised(openai.BadRequestError, lambda: client.completions.create(model=str(MODEL), prompt=["a"] * 6, max_tokens=1))
        failures.expect("more answers in one request than can ever wait: 400", isinstance(error, openai.BadRequestError), error)
    with Server(options.sftrun, "--model", MODEL, "--cache-memory", "12KB") as server:
        error = raised(openai.BadRequestError, lambda: server.client().completions.create(model=str(MODEL), prompt=[5] * 20, max_tokens=100))
        failures.expect("an answer that needs more cache than there is: 400 that says so", "key-value cache" in str(error), error)
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            texts = list(pool.map(lambda _: server.client().completions.create(model=str(MODEL), prompt="a", max_tokens=10, temperature=0).choices[0].text,
                                  range(8)))
        failures.expect("little cache: answers wait for each other", len(set(texts)) == 1, texts)


def exchange(port, data, wait=10):
    """What the server sends in reply to these bytes."""
    with socket.create_connection(("127.0.0.1", port), timeout=wait) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            reply = b""
            while part := connection.recv(65536):
                reply += part
            return reply
        except OSError:
            return b""


def post(body, path="/v1/completions", headers=""):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nConnection: close\r\n"
            f"{headers}\r\n").encode() + body


def check_hostile(options, failures):
    chance = random.Random(options.seed)
    with Server(options.sftrun, "--model", MODEL) as server:
        client = server.client()

        def is_well():
            return client.completions.create(model=str(MODEL), prompt="a", max_tokens=2).usage.completion_tokens == 2

        deep = b'{"prompt": ' + b"[" * 100000 + b"]" * 100000 + b"}"
        cases = {"not JSON": b"{", "nothing": b"", "a list": b"[]", "deep": deep, "not UTF-8": b'{"prompt": "\xff\xfe"}',
                 "lone surrogate": b'{"prompt": "\\ud800"}', "token ids beyond the vocabulary": b'{"prompt": [99999999999]}',
                 "negative token ids": b'{"prompt": [-1]}', "mixed prompt": b'{"prompt": [1, "a"]}', "empty prompt": b'{"prompt": ""}',
                 "n of 1e300": b'{"prompt": "a", "n": 1e300}', "max_tokens of 1e30": b'{"prompt": "a", "max_tokens": 1e30}',
                 "max_tokens of -5": b'{"prompt": "a", "max_tokens": -5}', "NaN": b'{"prompt": "a", "temperature": NaN}',
                 "stop of nothing": b'{"prompt": "a", "stop": [""]}', "model of another type": b'{"prompt": "a", "model": {"a": 1}}',
                 "many keys": b'{"prompt": "a"' + b"".join(b', "k%d": 1' % i for i in range(20000)) + b"}"}
        for what, body in cases.items():
            reply = exchange(server.port, post(body))
            failures.expect(f"{what}: an error of the request", re.match(rb"HTTP/1.1 4\d\d ", reply) and b'"error"' in reply, reply[:200])
        for what, body in {"no messages": b"{}", "messages of numbers": b'{"messages": [1, 2]}', "a message without content": b'{"messages": [{"role": "user"}]}',
                           "an unknown role": b'{"messages": [{"role": "\\u0000", "content": "x"}]}', "images": json.dumps(
                               {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]}]}).encode()}.items():
            reply = exchange(server.port, post(body, "/v1/chat/completions"))
            failures.expect(f"chat, {what}: an error or an answer", re.match(rb"HTTP/1.1 (200|4\d\d) ", reply), reply[:200])
        for what, data in {"garbage": os.urandom(3000), "an endless header": b"GET / HTTP/1.1\r\nX: " + b"a" * 300000, "an endless line": b"G" * 300000,
                           "a hundred thousand headers": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 100000, "another name": b"GET /v1/models HTTP/1.1\r\nHost: a.b\r\n\r\n",
                           "a form": post(b"prompt=a").replace(b"application/json", b"text/plain"), "a wrong length": post(b"{}").replace(b": 2\r\n", b": -2\r\n"),
                           "two lengths": post(b"{}", headers="Content-Length: 40\r\n"),
                           "two equal lengths": post(b"{}", headers="Content-Length: 2\r\n"), "two kinds of length": post(b"{}", headers="Transfer-Encoding: chunked\r\n"),
                           "two names": post(b"{}", headers="Host: localhost\r\n"), "another path": b"GET /../../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           "an escaped NUL": b"GET /health%00 HTTP/1.1\r\nHost: localhost\r\n\r\n", "no name": b"GET /v1/models HTTP/1.1\r\nHost:\r\n\r\n",
                           "another name in the target": b"GET http://a.b/v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n",
                           "a compressed body": post(b"{}", headers="Content-Encoding: gzip\r\n"),
                           "another method": b"DELETE /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"}.items():
            reply = exchange(server.port, data)
            failures.expect(f"{what}: refused", reply == b"" or re.match(rb"HTTP/1.\d 4\d\d ", reply), reply[:200])
        reply = exchange(server.port, b"GET http://localhost/v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        failures.expect("a target in absolute form: answered", reply.startswith(b"HTTP/1.1 200 "), reply[:200])
        for size in (17 << 20, 80 << 20):
            reply = exchange(server.port, post(b"a" * size))
            failures.expect(f"a body of {size >> 20} MiB: refused", reply == b"" or b" 413 " in reply[:20], reply[:100])
        words = ["prompt", "n", "stop", "stream", "logprobs", "echo", "max_tokens", "temperature", "top_p", "top_k", "seed", "stream_options", "model", "messages"]
        values = [None, True, 0, 1, -1, 0.5, 1e9, "a", "", [], [[]], [1, 2], ["a"], {}, {"a": 1}, [None]]
        strange = []
        num_random = RANDOM_BODIES_QUICK if options.quick else RANDOM_BODIES
        for _ in range(num_random):
            body = {chance.choice(words): chance.choice(values) for _ in range(chance.randrange(6))}
            body.setdefault("max_tokens", 2)
            reply = exchange(server.port, post(json.dumps(body).encode(), chance.choice(["/v1/completions", "/v1/chat/completions"])))
            if not re.match(rb"HTTP/1.1 (200|4\d\d) ", reply):
                strange.append((body, reply[:200]))
        failures.expect(f"{num_random} random bodies: an answer or an error of the request", not strange, strange[:3])
        silent = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(100)]
        for connection in silent:
            connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: loc")
        failures.expect("a hundred silent clients: it answers others", is_well())
        for connection in silent:
            connection.close()
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(post(json.dumps({"prompt": "a", "max_tokens": 120, "stream": chance.random() < 0.5}).encode()))
                time.sleep(chance.random() * 0.02)
        failures.expect("twenty clients that vanish: it answers others", is_well())
        for _ in range(100):
            load = json.load(urllib.request.urlopen(f"http://127.0.0.1:{server.port}/health", timeout=TIMEOUT))
            if load["active"] == load["waiting"] == 0:
                break
            time.sleep(0.1)
        failures.expect("and generates nothing for those that vanished", load["active"] == load["waiting"] == 0, load)
        failures.expect("no request failed inside", "failed" not in server.text(), server.text()[-2000:])
        failures.expect("it ends with exit code 0", server.stop() == 0, server.text()[-2000:])
    with Server(options.sftrun, "--model", MODEL, "--max-request-size", "100KiB") as server:
        large, small = (exchange(server.port, post(json.dumps({"prompt": "a" * size, "max_tokens": 1}).encode())) for size in (110_000, 90_000))
        failures.expect("above --max-request-size: refused, and the flag is named", b" 413 " in large[:20] and b"--max-request-size" in large, large[:300])
        failures.expect("below it: read", b" 413 " not in small[:20] and b"context" in small, small[:300])
    for what, words, env in (("an empty token", ["--token", ""], {}), ("an empty variable", [], {"SFTRUN_SERVE_TOKEN": ""}),
                             ("a context beyond the model's", ["--max-model-len", "100000"], {}), ("a size that is none", ["--max-request-size", "much"], {})):
        done = subprocess.run([options.sftrun, "serve", *ON_CPU, "--model", MODEL, "--port", "0", *words], capture_output=True, text=True, timeout=TIMEOUT,
                              env={**os.environ, **env})
        failures.expect(f"{what}: exit code 2", done.returncode == 2, done)
    taken = socket.create_server(("127.0.0.1", 0))
    done = subprocess.run([options.sftrun, "serve", *ON_CPU, "--model", MODEL, "--port", str(taken.getsockname()[1])], capture_output=True, text=True, timeout=TIMEOUT)
    failures.expect("a port that is taken: exit code 2 and another port to try", done.returncode == 2 and "--port" in done.stderr, done)


def address_space(process):
    return int(pathlib.Path(f"/proc/{process.pid}/statm").read_text().split()[0]) * resource.getpagesize()


def settled_address_space(process):
    """Threads may begin a little after the server says that it serves, and each takes some."""
    sizes = [address_space(process)]
    while len(sizes) < 5 or len(set(sizes[-5:])) > 1:
        time.sleep(0.1)
        sizes.append(address_space(process))
    return sizes[-1]


def check_memory(options, failures):
    with Server(options.sftrun, "--model", MODEL, "--threads", 8) as server:
        space = settled_address_space(server.process)
        resource.prlimit(server.process.pid, resource.RLIMIT_AS, (space + (10 << 20), resource.RLIM_INFINITY))
        reply = exchange(server.port, post(b'{"prompt": "a", "max_tokens": 2}'), wait=TIMEOUT)
        failures.expect("10 MiB left before the first answer: it has its threads already", re.match(rb"HTTP/1.1 (200|503) ", reply) and server.process.poll() is None,
                        f"{reply[:200]} {server.text()[-500:]}")
    limit = space + (100 << 20)
    done = subprocess.run([options.sftrun, "serve", *ON_CPU, "--model", MODEL, "--port", "0", "--threads", "256"], capture_output=True, text=True, timeout=TIMEOUT,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    failures.expect("threads beyond the memory: exit code 4, one error and what to do",
                    done.returncode == 4 and done.stderr.count("error:") == 1 and "lower --threads" in done.stderr and "libgomp" not in done.stderr, done)
    ids = b",".join([b"1"] * 3_000_000)
    messages = b",".join([b'{"role": "user", "content": "a"}'] * 300_000)
    requests = {"token ids": post(b'{"prompt": [' + ids + b"]}"), "stop texts": post(b'{"prompt": "a", "stop": [' + ids + b"]}"),
                "no object": post(b"[" + ids + b"]"), "an unknown key": post(b'{"prompt": "a", "a": [[' + ids + b"]]}"),
                "messages": post(b'{"messages": [' + messages + b"]}", "/v1/chat/completions"),
                "text": post(b'{"prompt": "' + b"a" * 15_000_000 + b'"}')}
    with Server(options.sftrun, "--model", MODEL) as server:
        for megabytes in (400, 200, 120, 80, 60, 40, 30):
            space = address_space(server.process) + (megabytes << 20)
            resource.prlimit(server.process.pid, resource.RLIMIT_AS, (space, resource.RLIM_INFINITY))
            strange = {}
            for what, request in requests.items():
                if server.process.poll() is not None:
                    return failures.expect(f"{megabytes} MiB left: it goes on after {what}", False, server.text()[-500:])
                reply = exchange(server.port, request, wait=TIMEOUT)
                if not (re.match(rb"HTTP/1.1 (4\d\d|503) ", reply) and b'"error"' in reply):
                    strange[what] = reply[:200]
            failures.expect(f"{megabytes} MiB left: long requests get an error", not strange, f"{strange} {server.text()[-500:]}")
            small = exchange(server.port, post(b'{"prompt": "a", "max_tokens": 2}'), wait=TIMEOUT)
            failures.expect(f"{megabytes} MiB left: the next request is answered", b" 200 " in small[:20], f"{small[:200]} {server.text()[-500:]}")
        failures.expect("it ends with exit code 0", server.stop() == 0, server.text()[-2000:])


def check_stop(options, failures):
    with Server(options.sftrun, "--model", MODEL) as server:
        client, received = server.client(), []
        with client.completions.create(model=str(MODEL), prompt=["a"] * 64, n=4, max_tokens=120, stream=True) as stream:
            try:
                for chunk in stream:
                    if not received:
                        server.process.send_signal(signal.SIGTERM)
                    received.append(chunk)
                ended = "without an error"
            except openai.APIError as error:
                ended = str(error)
        failures.expect("SIGTERM: the client's stream ends with an error that says so", "stopping" in ended, ended)
        failures.expect("and the exit code is 0", server.process.wait(60) == 0, server.text())


CHECKS = {"openai": check_openai, "answers": check_answers, "heads": check_heads, "harness": check_harness, "load": check_load, "hostile": check_hostile,
          "memory": check_memory, "stop": check_stop}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="fewer random bodies")
    options = parser.parse_args()
    options.sftrun = options.sftrun.resolve()
    failures = Failures()
    for name in options.only:
        print(f"== {name}")
        CHECKS[name](options, failures)
    print(f"{failures.count - len(failures)} of {failures.count} passed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
