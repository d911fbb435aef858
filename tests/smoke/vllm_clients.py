"""vLLM itself reads what sftrun writes, and writes the answers of a run. A part of `make test-full`.

    python tests/smoke/vllm_clients.py --sftrun build/bin/sftrun --vllm .venv-vllm/bin/python

reads     a LoRA adapter, a merged reward model, a classifier and an embedding model of tiny random shape, in fp32: log-probabilities, scores and embeddings are
          those of `sftrun score` to 1e-4
writes    GRPO (`train.rollouts.engine: URL`) and on-policy distillation with answers of vLLM's server: its log-probabilities are those of training, each step has
          its own adapter, and none stays at the server, also when the run is stopped
judges    the reward model that vLLM serves gives rewards (`reward_model`): of texts and conversations those that vLLM itself computes of their tokens
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent))
os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from grpo_learnt import write_jsonl
from preferences_learnt import pair_of, write_model
from served_rollouts import free_port, served_models
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).resolve().parent
CLOSE = 1e-4
STEPS = 6
JUDGED = [("123", "odd"), ("7 4", "even"), ("9 0 1", "odd odd")]
TEMPLATE = "{% for message in messages %}{{ message.content }} {% endfor %}"  # so that a conversation has the tokens of its text
TEXTS = ["123 odd", "7 4 4 even", "9 0 1", "odd 5 5 even 2", "6", "8 8 8 8 8 odd odd"]
ENVIRONMENT = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "VLLM_LOGGING_LEVEL": "WARNING"}


def tiny_model(folder: Path) -> None:
    """As the other tests have it, but with heads of a size that vLLM's attention for CPUs has."""
    write_model(folder)
    config = LlamaConfig.from_pretrained(folder)
    config.hidden_size, config.head_dim = 128, 32
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


class Case:
    def __init__(self, sftrun: Path, vllm: Path, folder: Path):
        self.sftrun, self.vllm, self.folder, self.failures = sftrun, vllm, folder, []
        tiny_model(folder / "model")
        self.tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def expect(self, what: str, holds: bool, detail: str = "") -> None:
        print(f"  {'ok' if holds else 'FAILED':6} {what}{f': {detail}' if detail else ''}", flush=True)
        if not holds:
            self.failures.append(what)

    def command(self, *words) -> str:
        done = subprocess.run([self.sftrun, *map(str, words)], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            sys.exit(f"sftrun {words[0]} ended with {done.returncode}:\n{done.stderr[-3000:]}")
        return done.stderr

    def config(self, name: str, mode: str, records: list[dict], **train) -> Path:
        write_jsonl(self.folder / f"{name}.jsonl", records)
        settings = {"max_steps": STEPS, "global_batch_size": 8, "learning_rate": 1e-2, "scheduler": "constant", "warmup_steps": 0, "save_every": "0"}
        run = {"model": {"name": str(self.folder / "model"), "max_seq_len": 64, "dtype": "fp32"},
               "tuning": {"mode": mode} | ({"lora": {"r": 4, "alpha": 16}} if mode == "lora" else {}),
               "data": {"train": str(self.folder / f"{name}.jsonl"), "cache_dir": "none"},
               "train": settings | train, "output": {"dir": str(self.folder / name), "tensorboard": False}}
        path = self.folder / f"{name}.yaml"
        path.write_text(json.dumps(run))
        return path

    def train(self, config: Path) -> str:
        return self.command("train", "--config", config, "--device", "cpu", "--nproc-per-node", 1)

    def scored(self, *model) -> list[dict]:
        write_jsonl(self.folder / "texts.jsonl", [{"text": text} for text in TEXTS])
        self.command("score", *model, "--device", "cpu", "--dtype", "fp32", "--input", self.folder / "texts.jsonl", "--output", self.folder / "scored.jsonl")
        return [json.loads(line) for line in (self.folder / "scored.jsonl").read_text().splitlines()]

    def read_by_vllm(self, tasks: list[dict]) -> list:
        path = self.folder / "tasks.json"
        path.write_text(json.dumps(tasks))
        done = subprocess.run([self.vllm, HERE / "vllm_reader.py", path], capture_output=True, text=True, timeout=1800, env=os.environ | ENVIRONMENT)
        if done.returncode != 0:
            errors = [line for line in (done.stdout + done.stderr).splitlines() if "Error" in line]
            sys.exit("vLLM cannot read it:\n" + "\n".join(errors[:20]) + done.stderr[-2000:])
        return json.loads((self.folder / "tasks.json.answers").read_text())


def largest(pairs) -> float:
    return max(abs(a - b) for a, b in pairs)


def softmax(values: list[float]) -> list[float]:
    powers = [math.exp(value - max(values)) for value in values]
    return [power / sum(powers) for power in powers]


def reads(case: Case) -> None:
    ids = [case.tokenizer(text)["input_ids"] for text in TEXTS]
    numbers = range(100, 164)
    case.train(case.config("sft", "lora", [{"prompt": str(n), "completion": ["even", "odd"][n % 2]} for n in numbers]))
    case.train(case.config("reward", "lora", [pair_of(n) for n in numbers], objective="reward"))
    case.command("merge", "--adapter", case.folder / "reward" / "adapter", "--output", case.folder / "reward-merged")
    case.train(case.config("classify", "full", [{"text": str(n), "label": ["even", "odd"][n % 2]} for n in numbers], objective="classify"))
    case.train(case.config("embed", "full", [{"anchor": str(n), "positive": ["even", "odd"][n % 2] + " " + str(n)} for n in numbers], objective="embed"))
    tasks = [
        {"task": "logprobs", "model": case.folder / "model", "adapter": case.folder / "sft" / "adapter", "prompts": [tokens for tokens in ids if len(tokens) > 1]},
        {"task": "scores", "model": case.folder / "reward-merged", "prompts": [[*tokens, case.tokenizer.eos_token_id] for tokens in ids]},
        {"task": "scores", "model": case.folder / "classify" / "model", "prompts": ids},
        {"task": "scores", "model": case.folder / "reward-merged", "prompts": [case.tokenizer(f"{question} {answer}")["input_ids"] for question, answer in JUDGED]},
        {"task": "embeddings", "model": case.folder / "embed" / "model", "prompts": ids},
    ]
    logprobs, rewards, classes, judged, embeddings = case.read_by_vllm([{key: str(value) if isinstance(value, Path) else value for key, value in task.items()} for task in tasks])

    case.judged = [score for [score] in judged]
    own = [record["logprob"] for record, tokens in zip(case.scored("--adapter", case.folder / "sft" / "adapter"), ids) if len(tokens) > 1]
    base = [record["logprob"] for record, tokens in zip(case.scored("--model", case.folder / "model"), ids) if len(tokens) > 1]
    error = largest((a, sum(b)) for a, b in zip(own, logprobs))
    case.expect("an adapter: log-probabilities of texts", error < CLOSE, f"{error:.1e}")
    case.expect("which it changes", largest(zip(own, base)) > 100 * CLOSE)
    error = largest((record["score"], of_vllm[0]) for record, of_vllm in zip(case.scored("--model", case.folder / "reward-merged"), rewards))
    case.expect("a reward model: its scores", error < CLOSE, f"{error:.1e}")
    scored = case.scored("--model", case.folder / "classify" / "model")
    error = largest(pair for record, of_vllm in zip(scored, classes) for pair in zip(record["probs"].values() if isinstance(record["probs"], dict) else record["probs"], softmax(of_vllm)))
    case.expect("a classifier: its probabilities", error < CLOSE and len({record["label"] for record in scored}) == 2, f"{error:.1e}")
    error = largest(pair for record, of_vllm in zip(case.scored("--model", case.folder / "embed" / "model"), embeddings) for pair in zip(record["embedding"], of_vllm))
    case.expect("an embedding model: its vectors", error < CLOSE, f"{error:.1e}")


class Server:
    """vLLM's server of a model."""

    def __init__(self, case: Case, model: Path, *options: str):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}/v1"
        self.log = tempfile.TemporaryFile("w+")
        words = ["-m", "vllm.entrypoints.openai.api_server", "--model", model, "--served-model-name", "base", "--dtype", "float32", *options, "--enforce-eager", "--max-model-len", "64", "--gpu-memory-utilization", "0.1", "--host", "127.0.0.1", "--port", str(port)]
        self.process = subprocess.Popen([case.vllm, *words], stdout=self.log, stderr=subprocess.STDOUT, env=os.environ | ENVIRONMENT | {"VLLM_LOGGING_LEVEL": "INFO"},
                                        start_new_session=True)  # it starts processes of its own
        until = time.monotonic() + 900
        while not self.is_there():
            if self.process.poll() is not None or time.monotonic() > until:
                sys.exit(f"vLLM's server does not start:\n{self.text()[-4000:]}")
            time.sleep(1)

    def is_there(self) -> bool:
        try:
            served_models(self.url)
            return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def end(self, how: signal.Signals) -> None:
        """With all of its processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, how)
            self.process.wait(60)

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()


def writes(case: Case) -> None:
    server = Server(case, case.folder / "model", "--enable-lora", "--max-lora-rank", "16")
    rollouts = {"engine": server.url, "engine_model": "base", "max_new_tokens": 4, "num_samples": 2}
    rewards = [{"name": "exact_match", "label": "right"}, {"name": "length", "target": 2, "weight": 0.1}]
    questions = [{"prompt": str(n), "answer": ["even", "odd"][n % 2]} for n in range(100, 164)]
    grpo = {"objective": "grpo", "global_batch_size": 16, "save_steps": 2, "logging_steps": 1, "rollouts": rollouts | {"n": 4, "reward": rewards}}
    try:
        output = case.train(case.config("grpo", "lora", questions, **grpo))
        lines = [json.loads(line) for line in (case.folder / "grpo" / "metrics.jsonl").read_text().splitlines()]
        difference = max(line["sampling/sampling_logp_difference/mean"] for line in lines)
        case.expect("GRPO with vLLM's answers: log-probabilities", len(lines) == STEPS and difference < CLOSE, f"{difference:.1e}")
        case.expect("rewards that differ, and nothing to warn of", any(line["reward_std"] > 0 for line in lines) and "warning" not in output, output[-1500:] if "warning" in output else "")
        case.expect("no adapter stays at the server", served_models(server.url) == ["base"])

        student = [{"prompt": str(n), "completion": ["even", "odd"][n % 2]} for n in range(100, 164)]
        case.train(case.config("student", "lora", student, objective="distill", teacher=str(case.folder / "model"), kd_alpha=1, rollouts=rollouts | {"share": 0.5}))
        case.expect("on-policy distillation with vLLM's answers", len((case.folder / "student" / "metrics.jsonl").read_text().splitlines()) == STEPS)

        config = case.config("stopped", "lora", questions, **grpo | {"max_steps": 500})
        run = subprocess.Popen([case.sftrun, "train", "--config", config, "--device", "cpu", "--nproc-per-node", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        metrics = case.folder / "stopped" / "metrics.jsonl"
        while run.poll() is None and not (metrics.exists() and len(metrics.read_text().splitlines()) > 2):
            time.sleep(0.05)
        run.send_signal(signal.SIGTERM)
        output, _ = run.communicate(timeout=120)
        case.expect("nor of a run that is stopped", run.returncode == 75 and served_models(server.url) == ["base"], "" if run.returncode == 75 else output[-1500:])

        run = subprocess.Popen([case.sftrun, "train", "--config", config, "--device", "cpu", "--nproc-per-node", "1"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        done = len(metrics.read_text().splitlines())
        while run.poll() is None and len(metrics.read_text().splitlines()) < done + 2:
            time.sleep(0.05)
        server.end(signal.SIGKILL)
        output, _ = run.communicate(timeout=180)
        case.expect("vLLM is killed: the run ends, and names it", run.returncode == 5 and server.url in output, "" if run.returncode == 5 else f"{run.returncode}: {output[-1500:]}")
    finally:
        server.end(signal.SIGTERM)


def judges(case: Case) -> None:
    model = case.folder / "reward-merged"
    (model / "chat_template.jinja").write_text(TEMPLATE)
    server = Server(case, model, "--runner", "pooling")
    rewarded = case.folder / "rewarded.jsonl"
    try:
        for form, of in (("texts", lambda text: {"prompt": text + " "}), ("conversations", lambda text: {"messages": [{"role": "user", "content": text}]})):
            write_jsonl(case.folder / "answers.jsonl", [of(question) | {"generated": answer} for question, answer in JUDGED])
            case.command("reward", "--input", case.folder / "answers.jsonl", "--output", rewarded, "--reward", json.dumps({"name": "reward_model", "url": server.url}))
            error = largest((json.loads(line)["reward"], score) for line, score in zip(rewarded.read_text().splitlines(), case.judged))
            case.expect(f"a reward model that vLLM serves judges {form}", error < CLOSE, f"{error:.1e}")
    finally:
        server.end(signal.SIGTERM)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", type=Path, required=True)
    parser.add_argument("--vllm", type=Path, required=True, help="a Python that has vLLM")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        case = Case(args.sftrun.resolve(), args.vllm.absolute(), Path(directory))
        reads(case)
        judges(case)
        writes(case)
    print(f"{len(case.failures)} failed" if case.failures else "all held")
    sys.exit(1 if case.failures else 0)


if __name__ == "__main__":
    main()
