#!/usr/bin/env python3
"""Runs every command of configs/examples/*/README.md as it stands, with a tiny random model in place of each model on the hub, and checks what comes out.

    tests/smoke/examples.py --sftrun build/bin/sftrun [--quick] [--only chat …]

The pages' bash blocks are run in order in a folder that has the repository's files, with `sftrun` on the CPU. A hub on this machine has the models by the names that the
configurations give them (tests/hub/fake_hub.py). `sftrun serve` runs while the blocks after it do; lines for two machines run at the same time. No command may warn. The
memory that the pages speak of is planned for the shapes of the real models. With --quick runs end after six steps. Standard library only.
"""

import argparse
import json
import math
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tests/hub"))
import fake_hub  # noqa: E402
from free_ports import free_port  # noqa: E402

EXAMPLES = ROOT / "configs/examples"
SHAPES = json.loads((ROOT / "tests/data/shapes.json").read_text())
ON_DEVICE = "train|generate|eval|score|serve"  # commands that take --device
QUICK_STEPS = 4
TIMEOUT = 300  # s, of a block
CONTEXT = 32768  # tokens, as the models that stand in the pages
# The runs are short on purpose.
OF_SHORT_RUNS = ("the model will learn little", "the batch is larger than an epoch", "evaluations for the patience", "train.epochs has no effect with train.max_steps")
MATTERS = re.compile("SFTRUN|TRAIN_|MODEL_|HF_|HUGGING|TRANSFORMERS_|MAKE|MFLAGS|NCCL_|(RANK|WORLD_SIZE|LOCAL_RANK|NUM_GPUS|NNODES|NODE_RANK|MASTER_ADDR|MASTER_PORT|CONFIG)$")

failures = []


def expect(holds, what, otherwise=""):
    if not holds:
        failures.append(what)
    print(f"{'ok  ' if holds else 'FAIL'} {what}" + (f": {otherwise}" if not holds and otherwise != "" else ""), flush=True)
    return holds


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def model_of(example):
    return re.search(r"^  name: (\S+)", (EXAMPLES / example / "run.yaml").read_text(), re.MULTILINE)[1]


class Checkout:
    """A folder with the repository's files, and a hub with tiny models by the names of real ones."""

    def __init__(self, sftrun, path, is_quick):
        self.path, self.programs, self.server, self.port = path / "checkout", path / "bin", None, free_port()
        self.is_quick = is_quick
        self.programs.mkdir()
        self.path.mkdir()
        for name in ("configs", "data", "docs", "scripts", "Makefile"):
            (self.path / name).symlink_to(ROOT / name)
        program = self.programs / "sftrun"
        program.write_text(f'#!/bin/bash\nif [[ "$1" =~ ^({ON_DEVICE})$ ]]; then exec {sftrun} "$@" --device cpu; fi\nexec {sftrun} "$@"\n')
        program.chmod(0o755)
        self.hub = fake_hub.FakeHub()
        kept = {name: value for name, value in os.environ.items() if not MATTERS.match(name) and not name.lower().endswith("_proxy")}
        self.environment = kept | {"PATH": f"{self.programs}:{os.environ['PATH']}", "MAKEFLAGS": f"SFTRUN={program}", "HF_ENDPOINT": self.hub.endpoint, "HF_HOME": str(path / "hub"),
                                   "XDG_CONFIG_HOME": str(path), "XDG_CACHE_HOME": str(path / "cache"), "OMP_NUM_THREADS": "1", "SFTRUN": str(program),
                                   "CUDA_VISIBLE_DEVICES": "", "MASTER_PORT": str(free_port())}
        if is_quick:
            self.environment["SFTRUN_TRAIN__MAX_STEPS"] = str(QUICK_STEPS)
        self.add_models(path / "tiny")

    def add_models(self, tiny):
        data = sorted(EXAMPLES.glob("*/data/*.jsonl"))
        subprocess.run([ROOT / "scripts/smoke/model.py", "--output", tiny, "--texts", *data], check=True, stdout=subprocess.DEVNULL)
        config = json.loads((tiny / "config.json").read_text())
        (tiny / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
        gguf = tiny.with_suffix(".gguf")
        subprocess.run([self.programs / "sftrun", "merge", "--quiet", "--model", tiny, "--output", gguf, "--dtype", "q8_0"], check=True, env=self.environment, stdout=subprocess.DEVNULL)
        files = {path.name: path.read_bytes() for path in tiny.iterdir()}
        for name in {model_of(example) for example in CHECKS}:
            if name.startswith("hf://"):
                owner, repository, file = name[5:].split("/")
                self.hub.add(f"{owner}/{repository}", {file: gguf.read_bytes()})
            else:
                self.hub.add(name, files)

    def start(self, text):
        text = text.replace("node-a", "127.0.0.1").replace("127.0.0.1:8000", f"127.0.0.1:{self.port}").replace("--port 8000", f"--port {self.port}")
        return subprocess.Popen(["bash", "-euo", "pipefail", "-c", text], cwd=self.path, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)

    def finish(self, process, name, text):
        """@return its standard output"""
        try:
            output, errors = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
            errors += f"\nended after {TIMEOUT} s"
        expect(process.returncode == 0, f"{name}: the commands end with 0", f"{process.returncode}\n{text}\n{output[-2000:]}\n{errors[-4000:]}")
        warnings = [line for line in errors.splitlines() if "[warning]" in line or line.startswith("warning")]
        warnings = [line for line in warnings if not self.is_quick or not any(words in line for words in OF_SHORT_RUNS)]
        expect(not warnings, f"{name}: no warning", "\n".join(warnings))
        return output

    def run_block(self, name, text):
        lines = text.splitlines()
        if "NNODES=2" in text:
            processes = [self.start(line) for line in lines]
            return "".join(self.finish(process, name, text) for process in processes)
        if "sftrun serve" in lines[-1]:
            output = self.finish(self.start("\n".join(lines[:-1])), name, text)
            self.server = self.start("exec " + lines[-1])
            self.wait_for_server()
            return output
        return self.finish(self.start(text), name, text)

    def wait_for_server(self):
        end = time.monotonic() + TIMEOUT
        while time.monotonic() < end and self.server.poll() is None:
            try:
                return urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5)
            except OSError:
                time.sleep(0.1)
        expect(False, "serving: the server starts", self.server.communicate()[1] if self.server.poll() is not None else "")
        return None

    def stop_server(self, name):
        if self.server:
            os.killpg(self.server.pid, signal.SIGTERM)
            self.finish(self.server, name, "sftrun serve")
            self.server = None

    def plan(self, example, shape, gpus):
        """What memory-check says of the example with the shape of the model that it names."""
        folder = self.path / "shapes" / shape
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(SHAPES[shape]))
        run = self.path / "shapes" / f"{example}.yaml"
        text = (EXAMPLES / example / "run.yaml").read_text()
        run.write_text(text.replace(model_of(example), str(folder)).replace(": data/", f": {EXAMPLES / example}/data/"))
        done = subprocess.run([self.programs / "sftrun", "memory-check", "--config", run, "--gpus", gpus, "--json"], env=self.environment, capture_output=True, text=True, timeout=TIMEOUT)
        return json.loads(done.stdout) if expect(done.returncode == 0, f"{example}: memory-check of {shape} on {gpus}", done.stderr) else {"fits": False, "peak_bytes": 0}


class Run:
    """A run directory, checked as every example's."""

    def __init__(self, checkout, name, falls=True):
        self.path, self.name = checkout.path / "runs" / name, name
        metrics = records(self.path / "metrics.jsonl")
        self.steps = [line for line in metrics if "loss" in line]
        self.evaluations = [line for line in metrics if "eval_loss" in line]
        self.report = json.loads((self.path / "run.json").read_text())
        self.settings = (self.path / "config.resolved.yaml").read_text()
        self.losses = [line["loss"] for line in self.steps]
        expect(self.report["status"] == "done" and (self.path / "adapter/adapter_model.safetensors").is_file(), f"{name}: the run is done and has an adapter", self.report["status"])
        expect(all(map(math.isfinite, self.losses)) and self.evaluations, f"{name}: finite losses, and evaluations", self.losses)
        if falls:
            quarter = max(1, len(self.losses) // 4)  # batches differ, most of all those of one record
            expect(sum(self.losses[-quarter:]) < sum(self.losses[:quarter]), f"{name}: the loss falls", self.losses)
            first, last = (line["eval_loss"] for line in (self.evaluations[0], self.evaluations[-1]))
            expect(len(self.evaluations) == 1 or last < first, f"{name}: the validation loss falls", (first, last))


def check_answers(checkout, example, name, questions, each=1):
    answers, asked = records(checkout.path / "runs" / example / name), records(EXAMPLES / example / "data" / questions)
    expect(len(answers) == each * len(asked) and all(isinstance(answer["generated"], str) and answer["finish_reason"] in ("stop", "length") for answer in answers),
           f"{example}: an answer for each of {len(asked)} records", answers[:1])
    return answers


def check_chat(checkout, output):
    Run(checkout, "chat")
    expect("library" in output and "trained on" in output, "chat: preview shows a record", output[:500])
    check_answers(checkout, "chat", "answers.jsonl", "desk-val.jsonl")


def check_completion(checkout, output):
    run = Run(checkout, "completion")
    expect(all(0 <= line["eval_token_accuracy"] <= 1 for line in run.evaluations), "completion: evaluations have the token accuracy", run.evaluations)
    for row in ("loss", "token_accuracy", "rouge_l", "exact_match"):
        expect(re.search(rf"^{row} +\d+\.\d+$", output, re.MULTILINE), f"completion: the table has {row}", output[-600:])


def check_domain(checkout, output):
    run = Run(checkout, "domain-adaptation")
    expect(run.evaluations[-1]["eval_perplexity"] < run.evaluations[0]["eval_perplexity"], "domain-adaptation: the perplexity falls", run.evaluations)
    texts = (EXAMPLES / "domain-adaptation/data/baking-val.txt").read_text().splitlines()
    scores = records(run.path / "scores.jsonl")
    expect([score["text"] for score in scores] == texts and all(score["logprob"] < 0 for score in scores), "domain-adaptation: a score for each text", scores)
    expect((run.path / "merged/model.safetensors").is_file() and (run.path / "merged/config.json").is_file(), "domain-adaptation: a merged model")


def check_tools(checkout, output):
    Run(checkout, "tool-calls")
    shown = output.replace("│", "")  # between tokens
    expect("<tool_call>" in shown and "find_book" in shown, "tool-calls: preview shows tools and a call", output[:500])
    answers = check_answers(checkout, "tool-calls", "answers.jsonl", "questions.jsonl")
    expect(all(answer["tools"] for answer in answers), "tool-calls: questions are asked with tools")


def check_reasoning(checkout, output):
    Run(checkout, "reasoning")
    expect("<think>" in output.replace("│", ""), "reasoning: preview shows the thoughts", output[:500])
    answers = check_answers(checkout, "reasoning", "answers.jsonl", "questions.jsonl")
    judged = records(checkout.path / "runs/reasoning/judged.jsonl")
    expect(len(judged) == len(answers) and {line["reward"] for line in judged} <= {0, 1}, "reasoning: each answer is judged", judged[:1])
    for question in records(EXAMPLES / "reasoning/data/questions.jsonl"):
        numbers = list(map(int, re.findall(r"\d+", question["messages"][0]["content"])))
        expect(question["answer"] == numbers[0] * numbers[1] - numbers[2], "reasoning: the right result", question)
    plan = checkout.plan("reasoning", "Qwen3-4B", "1x RTX4080")
    expect(plan["fits"], "reasoning: fits a GPU of 16 GB", plan["peak_bytes"])


def check_preferences(checkout, output):
    run = Run(checkout, "preferences", falls=False)
    expect(abs(run.losses[0] - math.log(2)) < 1e-3, "preferences: the first loss is ln 2", run.losses[0])
    expect(all("rewards/accuracies" in line and "rewards/margins" in line for line in run.steps), "preferences: steps have accuracies and margins", run.steps[0])
    expect(run.steps[-1]["rewards/margins"] > 0, "preferences: the margin rises", [line["rewards/margins"] for line in run.steps])
    expect("rewards/accuracies" in output, "preferences: eval prints accuracies", output[-800:])


def check_long(checkout, output):
    Run(checkout, "long-documents")
    expect("Largest model.max_seq_len" in output, "long-documents: memory-check names the largest length", output[:2000])
    check_answers(checkout, "long-documents", "answers.jsonl", "minutes-val.jsonl")
    longest = max(len(record["messages"][0]["content"]) for record in records(EXAMPLES / "long-documents/data/minutes.jsonl"))
    expect(longest > 2500, "long-documents: documents are long", longest)
    plan = checkout.plan("long-documents", "Qwen2.5-1.5B", "1x RTX4090")
    expect(plan["fits"] and plan["peak_bytes"] < 8e9, "long-documents: 7 GB", plan["peak_bytes"])


def check_several(checkout, output):
    one, divided, made, machines = (Run(checkout, name) for name in ("several-gpus", "several-gpus-fsdp", "several-gpus-make", "two-machines"))
    expect([run.report["world_size"] for run in (one, divided, made, machines)] == [2] * 4, "several-gpus: two processes each")
    expect((one.report["strategy"], divided.report["strategy"]) == ("ddp", "fsdp"), "several-gpus: ddp, then fsdp", divided.report["strategy"])
    for run in (divided, machines):
        expect(max(abs(a - b) for a, b in zip(one.losses, run.losses, strict=True)) < 1e-3, f"several-gpus: {run.name} has the losses of several-gpus", (one.losses, run.losses))
    expect("learning_rate: 0.0001" in made.settings and "max_seq_len: 1024" in made.settings, "several-gpus: make's variables are settings", made.settings)
    plan = checkout.plan("several-gpus", "Qwen2.5-7B", "2x RTX4090")
    expect(plan["fits"], "several-gpus: fits two GPUs of 24 GB", plan["peak_bytes"])


def check_qlora(checkout, output):
    run = Run(checkout, "qlora-24gb")
    expect("quant: nf4" in run.settings and "optimizer: adamw_8bit" in run.settings, "qlora-24gb: a base in NF4, an optimizer in 8 bits", run.settings)
    expect("fits" in output, "qlora-24gb: memory-check says what fits", output[:1500])
    expect((run.path / "merged/model.safetensors").is_file(), "qlora-24gb: a merged model")
    plan = checkout.plan("qlora-24gb", "Qwen2.5-7B", "1x RTX4090")
    expect(plan["fits"] and plan["peak_bytes"] < 12e9, "qlora-24gb: 11 GB on a GPU of 24", plan["peak_bytes"])


def check_gguf(checkout, output):
    run = Run(checkout, "gguf")
    expect("quant: gguf" in run.settings, "gguf: the blocks of the file are the base", run.settings)
    written = sorted(path.relative_to(run.path) for name in ("mine", "lora") for path in (run.path / name).iterdir())
    for file in ("mine/mine-Q8_0.gguf", "mine/Modelfile", "lora/lora-lora.gguf"):
        expect(pathlib.Path(file) in written, f"gguf: {file} is written", written)
    for path in (run.path / file for file in written if file.suffix == ".gguf"):
        expect(path.read_bytes()[:4] == b"GGUF", f"gguf: {path.name} is a GGUF file")


def check_evaluation(checkout, output):
    run = Run(checkout, "evaluation")
    Run(checkout, "evaluation-r4")
    expect(all("eval_rouge_l" in line and "eval_exact_match" in line for line in run.evaluations), "evaluation: ROUGE and exact matches", run.evaluations)
    expect(re.search(r"^ +base +adapter$", output, re.MULTILINE), "evaluation: the table has base and adapter", output[-1500:])
    asked = len(records(EXAMPLES / "evaluation/data/tickets-val.jsonl"))
    predictions = records(run.path / "predictions.jsonl")
    expect(len(predictions) == asked and all(json.loads(line["reference"])["topic"] and "generated" in line["adapter"] and "generated" in line["base"] for line in predictions),
           "evaluation: predictions with their references", predictions[:1])
    check_answers(checkout, "evaluation", "samples.jsonl", "tickets-val.jsonl", each=4)
    expect(len(records(run.path / "judged.jsonl")) == 4 * asked and len(records(run.path / "scores.jsonl")) == asked, "evaluation: rewards and scores")
    page = (checkout.path / "runs/comparison.html").read_text()
    expect("evaluation-r4" in page, "evaluation: a page with both runs")


def check_serving(checkout, output):
    Run(checkout, "serving")
    decoder, answers, rest = json.JSONDecoder(), [], output[output.index("{"):]
    while rest.strip():
        value, end = decoder.raw_decode(rest.lstrip())
        answers.append(value)
        rest = rest.lstrip()[end:]
    if expect(len(answers) == 3, "serving: three answers", output):
        models, chat, texts = answers
        expect([model["id"] for model in models["data"]][:1] == ["commands"] and len(models["data"]) == 2, "serving: the adapter and its base", models)
        expect(isinstance(chat["choices"][0]["message"]["content"], str) and chat["usage"]["completion_tokens"] <= 32, "serving: an answer to messages", chat)
        expect(len(texts["choices"]) == 2, "serving: a choice for each prompt", texts)
    checkout.stop_server("serving")


CHECKS = {"chat": check_chat, "completion": check_completion, "domain-adaptation": check_domain, "tool-calls": check_tools, "reasoning": check_reasoning,
          "preferences": check_preferences, "long-documents": check_long, "several-gpus": check_several, "qlora-24gb": check_qlora, "gguf": check_gguf,
          "evaluation": check_evaluation, "serving": check_serving}
ELSEWHERE = {"from-python"}  # needs Python packages: tests/python/examples_test.py


def check_lists():
    folders = {path.parent.name for path in EXAMPLES.glob("*/README.md")}
    expect(folders == set(CHECKS) | ELSEWHERE, "each folder has a check", sorted(folders ^ (set(CHECKS) | ELSEWHERE)))
    page = (EXAMPLES / "README.md").read_text()
    for name in sorted(folders):
        expect(f"]({name}/README.md)" in page, f"configs/examples/README.md names {name}")
        # Comments say why, for each setting that is not a default; the file's README says what to change.
        expect("**What comes out.**" in (EXAMPLES / name / "README.md").read_text() and "**For your data.**" in (EXAMPLES / name / "README.md").read_text(),
               f"{name}: the page says what comes out and what to change")
    done = subprocess.run([EXAMPLES / "make_data.py", "--check"], capture_output=True, text=True)
    expect(done.returncode == 0, "the data are what make_data.py writes", done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_STEPS} steps of each run")
    parser.add_argument("--only", nargs="+", choices=CHECKS, default=list(CHECKS))
    options = parser.parse_args()
    check_lists()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sftrun-examples-"))
    checkout = Checkout(options.sftrun.resolve(), folder.resolve(), options.quick)
    try:
        for name in options.only:
            begin, before = time.monotonic(), len(failures)
            blocks = re.findall(r"```bash\n(.*?)\n```", (EXAMPLES / name / "README.md").read_text(), re.DOTALL)
            output = "".join(checkout.run_block(name, block) for block in blocks)
            if len(failures) == before:
                CHECKS[name](checkout, output)
            print(f"{time.monotonic() - begin:4.1f} s  {name}", flush=True)
    finally:
        checkout.stop_server("the server")
        checkout.hub.close()
        shutil.rmtree(folder, ignore_errors=True)
    for failure in failures:
        print(f"FAIL {failure}")
    print("examples: failed" if failures else f"examples: {len(options.only)}, all as they should be")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
