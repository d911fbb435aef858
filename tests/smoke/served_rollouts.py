"""Answers that a server writes (`train.rollouts.engine: URL`): a part of tests/smoke/rollouts.py.

A run of two processes whose server is killed ends with a checkpoint, and goes on as if nothing had happened once the server is there again. Servers that hang or
answer something else are named. A run that is stopped or ends by an error leaves no adapter at the server, and another model's answers are warned of.
"""

from __future__ import annotations

import http.server
import json
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

REWARDS = [{"name": "exact_match", "label": "right"}, {"name": "length", "target": 2, "weight": 0.1}]
STEPS = 8


class Served:
    """`sftrun serve`, whose port is kept for another one after it."""

    def __init__(self, program: Path, model: Path, port: int):
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([program, "serve", "--model", model, "--device", "cpu", "--dtype", "fp32", "--port", str(port), "--allow-adapter-updates", "--threads", "1"],
                                        stderr=self.log, stdout=subprocess.DEVNULL)
        while " (Ctrl-C stops)" not in self.text():
            if self.process.poll() is not None:
                raise RuntimeError(self.text())
            time.sleep(0.05)

    def text(self) -> str:
        self.log.seek(0)
        return self.log.read()

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(60)


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def config_of(case, name: str, url: str, **rollouts) -> Path:
    path = case.config(name, REWARDS, max_steps=STEPS, save_steps=2, logging_steps=1, rollouts={"engine": url, "num_samples": 2, **rollouts})
    run = json.loads(path.read_text())
    run["tuning"] = {"mode": "lora", "lora": {"r": 4}}
    path.write_text(json.dumps(run))
    return path


def answers_of(case, name: str) -> list[list[int]]:
    files = sorted((case.folder / name / "rollouts").glob("step-*.jsonl"))
    return [json.loads(line)["completion_ids"] for file in files for line in file.read_text().splitlines()]


def killed_server(case) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    server = Served(case.program, case.folder / "model", port)
    case.train(config_of(case, "served", url), processes=2)
    whole = case.lines("served")
    case.expect("the importance of the server's log-probabilities is reported", all("sampling/sampling_logp_difference/mean" in line for line in whole))
    case.expect("the server's log-probabilities are those of training", max(line["sampling/sampling_logp_difference/mean"] for line in whole) < 1e-5)
    text = server.text()
    loads, unloads = re.findall(r"adapter (\S+) loaded", text), re.findall(r"adapter (\S+) unloaded", text)
    case.expect("each step has an adapter, and none stays", len(loads) == STEPS and sorted(loads) == sorted(unloads), text[-1500:])
    case.expect("the folders of adapters are removed", not list((case.folder / "served" / "rollouts").glob("adapter-*")))

    config = config_of(case, "killed", url)
    run = case.start(config, processes=2)
    while run.poll() is None and len(case.lines("killed")) < 3:
        time.sleep(0.02)
    server.end(signal.SIGKILL)
    output, _ = run.communicate(timeout=120)
    done = len(case.lines("killed"))
    case.expect("a run whose server is gone ends", run.returncode == 5 and url in output and "the server of train.rollouts.engine" in output, f"{run.returncode}: {output[-1500:]}")
    saved = sorted((case.folder / "killed" / "checkpoints").glob("*"))
    case.expect("with a checkpoint of its last step", bool(saved) and saved[-1].name.endswith(f"{done:06}"), f"{done}: {saved}")
    server = Served(case.program, case.folder / "model", port)
    case.train(config, processes=2)
    server.end(signal.SIGTERM)
    again = case.lines("killed")
    case.expect("with the server it goes on: the same answers", answers_of(case, "served") == answers_of(case, "killed"))
    close = max(abs(a[key] - b[key]) for a, b in zip(whole, again) for key in ("loss", "reward"))
    case.expect("and losses", len(again) == STEPS and close < 1e-5, str(close))


def served_models(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/models", timeout=30) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def nothing_is_left(case) -> None:
    """A run that is stopped, or ends by an error, leaves no adapter at the server."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    server = Served(case.program, case.folder / "model", port)
    base = served_models(url)
    run = case.start(config_of(case, "stopped", url))
    while run.poll() is None and len(case.lines("stopped")) < 2:
        time.sleep(0.02)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=120)
    case.expect("a run that is stopped leaves no adapter at the server", run.returncode == 75 and served_models(url) == base, f"{run.returncode}: {output[-1500:]}")

    path = config_of(case, "failed", url)
    changed = json.loads(path.read_text())
    changed["train"]["rollouts"]["reward"] = [{"name": "program", "command": "exit 3", "restarts": 0}]
    path.write_text(json.dumps(changed))
    output = case.train(path, code=5)
    case.expect("nor does one that ends by an error", served_models(url) == base and "adapter" in server.text(), output[-1500:])
    server.end(signal.SIGTERM)


def another_model(case) -> None:
    """Its answers have probabilities that are far from those of the run's model."""
    server = Fault(lambda asked, right: (200, right))
    output = case.train(config_of(case, "another", server.url))
    case.expect("a server whose answers are another model's is warned of, once", output.count("hardly the model's own") == 1, output[-1500:])
    server.shutdown()


def distilled_student(case) -> None:
    """Its teacher is the same model, which finds the student's answers as likely as the student does."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    server = Served(case.program, case.folder / "model", port)
    path = config_of(case, "student", url, max_new_tokens=6, temperature=0.9, share=0.5)
    run = json.loads(path.read_text())
    del run["train"]["rollouts"]["reward"], run["train"]["rollouts"]["n"]
    run["train"] |= {"objective": "distill", "teacher": str(case.folder / "model"), "kd_alpha": 1, "kd_beta": 0.5, "global_batch_size": 4, "max_steps": 4, "learning_rate": 1e-2}
    records = [json.loads(line) for line in (case.folder / "prompts.jsonl").read_text().splitlines()]
    texts = case.folder / "answered.jsonl"
    texts.write_text("".join(json.dumps({"prompt": record["prompt"], "completion": " 1 2"}) + "\n" for record in records))
    run["data"]["train"] = str(texts)
    path.write_text(json.dumps(run))
    case.train(path, processes=2)
    server.end(signal.SIGTERM)
    lines = case.lines("student")
    case.expect("a server answers for a student that is distilled", len(lines) == 4 and all(0 < len(ids) <= 6 for ids in answers_of(case, "student")) and answers_of(case, "student") != [])
    kept = [json.loads(line) for line in (case.folder / "student" / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    case.expect("its answers stand beside the records, as sftrun generate writes them",
                bool(kept) and all({"prompt": line["prompt"], "completion": line["completion"]} in map(json.loads, texts.read_text().splitlines()) and "generated" in line for line in kept), str(kept))
    case.expect("and a teacher that is the same model finds nothing to teach", abs(lines[0]["loss"]) < 1e-9 and all(line["completions/mean_length"] > 0 for line in lines), str(lines))


class Fault(http.server.ThreadingHTTPServer):
    """A server that answers right but for one request."""

    daemon_threads = True

    def __init__(self, change):
        self.change = change  # (path, the right answer, a status) -> what is sent
        super().__init__(("127.0.0.1", 0), FaultHandler)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server_address[1]}/v1"


class FaultHandler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.reply({"data": [{"id": "model", "max_model_len": 64}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self.path.endswith("/completions"):
            return self.reply("Success")
        choice = {"token_ids": [5], "prompt_token_ids": body["prompt"], "logprobs": {"token_logprobs": [-1.0]}, "finish_reason": "length"}
        self.reply({"choices": [choice]})

    def reply(self, right) -> None:
        try:
            status, answer = self.server.change(self.path.removeprefix("/v1"), right)
            data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def log_message(self, *_) -> None:
        pass


def without(path: str, key: str):
    def change(asked, right):
        if asked == path:
            right = {"choices": [{name: value for name, value in right["choices"][0].items() if name != key}]}
        return 200, right
    return change


def instead(path: str, status: int, answer):
    return lambda asked, right: (status, answer) if asked == path else (200, right)


def hanging(asked, right):
    if asked == "/load_lora_adapter":
        time.sleep(20)
    return 200, right


def bad_servers(case, quick: bool) -> None:
    faults = [("no-ids", without("/completions", "token_ids"), 3, 'without "token_ids"'),
              ("refuses", instead("/load_lora_adapter", 404, '{"detail": "Not Found"}'), 5, "--allow-adapter-updates")]
    if not quick:
        faults += [("hangs", hanging, 5, "did not end within 1 s"),
                   ("html", instead("/completions", 200, "<html>Bad Gateway</html>"), 3, "<html>"),
                   ("other", instead("/models", 200, {"data": [{"id": "gpt"}]}), 2, "the server has no model"),
                   ("short", instead("/models", 200, {"data": [{"id": "model", "max_model_len": 5}]}), 2, "context of 5 tokens"),
                   ("nan", instead("/completions", 200, '{"choices": [{"token_ids": [1], "logprobs": {"token_logprobs": [NaN]}}]}'), 3, "choices"),
                   ("down", instead("/models", 503, "starting"), 5, "status 503")]
    for name, change, code, word in faults:
        server = Fault(change)
        run = case.start(config_of(case, f"fault-{name}", server.url, engine_timeout=1), processes=1 if quick else 2)
        output, _ = run.communicate(timeout=120)
        case.expect(f"a server that {name}: exit code {code}, named", run.returncode == code and word in output and server.url in output, f"{run.returncode}: {output[-1500:]}")
        server.shutdown()
