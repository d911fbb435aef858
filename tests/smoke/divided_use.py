#!/usr/bin/env python3
"""generate, score, eval, serve and chat with a model that several processes have together (--strategy, --tp, --pp) give what one process gives.

    tests/smoke/divided_use.py --sftrun build/bin/sftrun

Standard library only. Random tiny models: wide heads, tied, delta nets, experts, keys shared by layers, an adapter over them, and an adapter over
an NF4 base. Greedy answers in fp32 must be the same texts, scores and losses equal to 1e-6.
With --quick each model is used under one or two plans.
"""

import argparse
import concurrent.futures
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
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
import same_losses  # noqa: E402
import strategy_parity  # noqa: E402

TIMEOUT = 300  # s, of one command
RELATIVE = 1e-6
PLANS = {
    "tensor 2": (2, ["--strategy", "tensor"]),
    "pipeline 2": (2, ["--strategy", "pipeline"]),
    "fsdp 2": (2, ["--strategy", "fsdp"]),
    "pipeline 2 x tensor 2": (4, ["--pp", 2, "--tp", 2]),
    "two copies x tensor 2": (4, ["--tp", 2]),
    "fsdp 2 x tensor 2": (4, ["--strategy", "fsdp", "--tp", 2]),
    "device_map 2": (1, ["--strategy", "device_map", "--pp", 2]),
}


class Program:
    def __init__(self, path, folder, quick):
        self.path, self.folder, self.quick, self.failures, self.count = path, folder, quick, [], 0

    def run(self, *words, code=0):
        done = subprocess.run([self.path, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != code:
            raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def expect(self, what, holds, detail=""):
        self.count += 1
        if not holds:
            self.failures.append(what)
            print(f"FAILED: {what}: {str(detail)[-1500:]}", flush=True)

    def lines(self, command, output, *words):
        self.run(command, "--input", "records.jsonl", "--output", output, "--overwrite", "--device", "cpu", "--dtype", "fp32", *words)
        return [json.loads(line) for line in (self.folder / output).read_text().splitlines()]


def words_of(plan):
    processes, words = PLANS[plan]
    return [*words, *(["--nproc-per-node", processes] if processes > 1 else [])]


def use(program, name, model, plans):
    """@param model flags that name it"""
    greedy = ["--max-new-tokens", 9, "--batch-size", 3]
    answers, scores = program.lines("generate", "alone.jsonl", *model, *greedy, "--nproc-per-node", 1), program.lines(
        "score", "alone-scores.jsonl", *model, "--nproc-per-node", 1)
    program.expect(f"{name}: the answers are not trivial", len({line["generated"] for line in answers}) > 1, answers)
    prompt = program.run("generate", *model, *greedy, "--device", "cpu", "--dtype", "fp32", "--prompt", "one two three").stdout
    for plan in plans:
        divided = program.lines("generate", "divided.jsonl", *model, *greedy, *words_of(plan))
        program.expect(f"{name}: {plan}: the same answers", divided == answers, (divided, answers))
        scored = program.lines("score", "divided-scores.jsonl", *model, *words_of(plan))
        same = all(math.isclose(a["logprob"], b["logprob"], rel_tol=RELATIVE) and a["tokens"] == b["tokens"] for a, b in zip(scored, scores, strict=True))
        program.expect(f"{name}: {plan}: the same scores", same, (scored, scores))
        if plan.startswith("two copies"):  # one prompt is for one copy
            continue
        printed = program.run("generate", *model, *greedy, "--device", "cpu", "--dtype", "fp32", "--prompt", "one two three", *words_of(plan)).stdout
        program.expect(f"{name}: {plan}: --prompt prints the same", printed == prompt, (printed, prompt))


def train(program, name, model, **settings):
    config = {"model": {"name": str(model), "max_seq_len": 64, "dtype": "fp32"}, "data": {"train": "records.jsonl", "val": "records.jsonl"},
              "train": {"max_steps": 2, "learning_rate": 1e-2, "batch_size": 1}, "tuning": settings, "output": {"dir": name}}
    (program.folder / f"{name}.yaml").write_text(json.dumps(config))
    program.run("train", "--config", f"{name}.yaml", "--device", "cpu", "--nproc-per-node", 1)


def evaluate(program, run, plans):
    words = ["eval", "--config", f"{run}.yaml", "--device", "cpu", "--max-new-tokens", 5, "--json", "--base"]
    alone = json.loads(program.run(*words, "--nproc-per-node", 1).stdout)
    for plan in plans:
        divided = json.loads(program.run(*words, *words_of(plan)).stdout)
        for variant in ("base", "adapter"):
            same = all(math.isclose(divided[variant][key], alone[variant][key], rel_tol=RELATIVE)
                       for key in ("loss", "token_accuracy", "rouge_l", "exact_match", "label_tokens"))
            program.expect(f"eval of {run}: {plan}: {variant}: the same", same, (divided, alone))


def start_server(program, *words):
    """@return the process, and its address"""
    command = [program.path, "serve", "--device", "cpu", "--dtype", "fp32", "--port", 0, *words]
    server = subprocess.Popen([str(word) for word in command], cwd=program.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    seen = ""
    for line in server.stdout:
        seen += line
        if found := re.search(r"serving .* at (http://\S+)/v1", line):
            threading.Thread(target=server.stdout.read, daemon=True).start()
            program.expect("a server says once where it computes, and how its models are divided",
                           seen.count("computing in") == 1 and seen.count("the model is divided") <= 1, seen)
            return server, found[1]
    raise RuntimeError(f"the server ended: {seen}")


def ask(address, body):
    request = urllib.request.Request(f"{address}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
        return json.loads(answer.read())["choices"]


def serve(program, models, plans):
    """Several requests at a time to the base and an adapter."""
    words = ["--model", models, "--adapter", "tuned=lora", "--served-model-name", "base"]
    bodies = [{"model": model, "prompt": prompt, "max_tokens": 8, "temperature": temperature, "seed": 5, "logprobs": 2, "n": n}
              for model in ("base", "tuned") for prompt in ("one two", "three", "four five six") for temperature, n in ((0, 1), (1.0, 2))]
    seen = {}
    for plan in ["alone", *plans]:
        server, address = start_server(program, *words, *(words_of(plan) if plan != "alone" else []))
        try:
            with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
                seen[plan] = list(pool.map(lambda body: [[choice["text"], choice["finish_reason"]] for choice in ask(address, body)], bodies))
                time.sleep(0.5)  # the ranks rest
                again = ask(address, bodies[0])
                program.expect(f"serve: {plan}: the same answer after a rest", [[choice["text"], choice["finish_reason"]] for choice in again] == seen[plan][0], again)
            server.send_signal(signal.SIGTERM)
            program.expect(f"serve: {plan}: ends when it is told to", server.wait(TIMEOUT) == 0, server.returncode)
        finally:
            server.kill()
        program.expect(f"serve: {plan}: the same answers", seen[plan] == seen["alone"], (seen[plan], seen["alone"]))


def rank_of_server(server, rank):
    """The process id of a rank that this launcher has started."""
    for child in pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        if f"RANK={rank}".encode() in pathlib.Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
            return int(child)
    raise RuntimeError(f"no process of rank {rank}")


def lose_a_rank(program, model):
    """The rank stands still when the request comes, so that it cannot be answered before the rank is killed."""
    server, address = start_server(program, "--model", model, *words_of("tensor 2"))
    try:
        lost = rank_of_server(server, 1)
        os.kill(lost, signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(ask, address, {"model": str(model), "prompt": "one two", "max_tokens": 8})
            time.sleep(0.5)
            os.kill(lost, signal.SIGKILL)
            failure = asked.exception(TIMEOUT)
        program.expect("serve: a client learns that a rank is lost", getattr(failure, "code", None) == 503, repr(failure))
        program.expect("serve: which ends it", server.wait(TIMEOUT) == 5, server.returncode)
    finally:
        server.kill()


def chat(program, model, plans):
    """A conversation with two adapters, which standard input has. The base has a chat template."""
    words = ["chat", "--model", model, "--adapter", "one=lora", "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", 9]
    lines = "one two\n/adapter talking\nthree\n/adapter one\n/retry\n/adapter nobody\nfour five\n/quit\n"

    def run(extra):
        done = subprocess.run([str(word) for word in [program.path, *words, *extra]], cwd=program.folder, input=lines, capture_output=True, text=True, timeout=TIMEOUT)
        if done.returncode != 0:
            raise RuntimeError(f"chat {extra}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    alone = run([])
    program.expect("chat: the answers are not trivial", len(set(alone.splitlines())) > 4, alone)
    for plan in plans:
        divided = run(words_of(plan))
        program.expect(f"chat: {plan}: the same conversation", divided == alone, (divided, alone))
    waiting = subprocess.Popen([str(word) for word in [program.path, *words, *words_of(plans[0])]], cwd=program.folder, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        waiting.stdin.write("one two\n")
        waiting.stdin.flush()
        program.expect("chat: it answers", waiting.stdout.readline() == alone.splitlines(keepends=True)[0])
        waiting.send_signal(signal.SIGTERM)
        program.expect("chat: SIGTERM ends it while it reads a line", waiting.wait(TIMEOUT) == 75, waiting.returncode)
    finally:
        waiting.kill()


def without_being_told(program, model):
    """No flag names a division."""
    several = ["--nproc-per-node", 2]
    words = ["generate", "--model", model, "--device", "cpu", "--dtype", "fp32", "--max-new-tokens", 9]
    alone, divided = program.run(*words, "--prompt", "one two three"), program.run(*words, "--prompt", "one two three", *several)
    program.expect("processes that answer one prompt divide the model", "as with --strategy tensor --tp 2 --nproc-per-node 2: 2 processes answer together" in divided.stderr
                   and "the model is divided: tensor 2" in divided.stderr, divided.stderr)
    program.expect("the same answer", divided.stdout == alone.stdout, (divided.stdout, alone.stdout))
    mapped = program.run(*words, "--prompt", "one two three", "--device-map", "auto")
    program.expect("a device map on a device that holds the model divides nothing", mapped.stdout == alone.stdout and "divid" not in mapped.stderr, mapped.stderr)
    mapped = program.run(*words, "--prompt", "one two three", "--strategy", "device_map", "--pp", 2)
    program.expect("a device map is named as one", "the model is divided: device_map 2" in mapped.stderr, mapped.stderr)
    server, address = start_server(program, "--model", model, *several)
    try:
        text = ask(address, {"model": str(model), "prompt": "one two three", "max_tokens": 9, "temperature": 0})[0]["text"]
        program.expect("a server of two processes divides the model", text.strip() == alone.stdout.strip(), (text, alone.stdout))
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(TIMEOUT)
        server.kill()


def that_fits_nowhere(program, folder):
    """A model of 1 TiB, of whose files nothing is read but the headers."""
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((program.folder / "models/blocks" / name).read_bytes())
    wide = 1 << 17
    config = {"model_type": "llama", "hidden_size": wide, "intermediate_size": wide, "num_hidden_layers": 4, "num_attention_heads": 1024, "num_key_value_heads": 1024,
              "vocab_size": 256, "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))
    shapes = {"model.embed_tokens.weight": [256, wide], "model.norm.weight": [wide]}
    for layer in range(4):
        name = f"model.layers.{layer}."
        shapes |= {name + "input_layernorm.weight": [wide], name + "post_attention_layernorm.weight": [wide]}
        shapes |= {name + f"self_attn.{part}_proj.weight": [wide, wide] for part in "qkvo"}
        shapes |= {name + f"mlp.{part}_proj.weight": [wide, wide] for part in ("gate", "up", "down")}
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    with open(folder / "model.safetensors", "wb") as file:  # takes no room on the disk
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    start = time.monotonic()
    done = program.run("generate", "--model", folder, "--device", "cpu", "--prompt", "one", code=4)
    program.expect("a model that fits nowhere is refused with its size", "the model does not fit: it needs " in done.stderr and "fix: use a machine with more memory" in done.stderr,
                   done.stderr)
    program.expect("in a moment", time.monotonic() - start < 10, time.monotonic() - start)


def check_refusals(program, model):
    done = program.run("generate", "--model", model, "--device", "cpu", "--prompt", "one", "--strategy", "tensor", "--nproc-per-node", 1, code=2)
    program.expect("a strategy over processes needs several", "--nproc-per-node" in done.stderr and "there is one" in done.stderr, done.stderr)
    done = program.run("generate", "--model", model, "--device", "cpu", "--prompt", "one", "--tp", 3, "--nproc-per-node", 2, code=2)
    program.expect("a size that does not divide the processes names its flag", "--tp on the command line" in done.stderr, done.stderr)
    for command in (["serve"], ["chat"], ["generate", "--prompt", "one"]):
        done = program.run(*command, "--model", model, "--device", "cpu", "--tp", 2, "--nproc-per-node", 4, code=2)
        program.expect(f"{command[0]} has one copy", "`--tp 2` on 4 processes makes 2 copies" in done.stderr and "use --nproc-per-node 2" in done.stderr, done.stderr)
    for words in (["--pp", 40], ["--strategy", "pipeline"]):
        done = program.run("score", "--model", model, "--input", "records.jsonl", "--output", "x.jsonl", "--device", "cpu", *words, "--nproc-per-node", 40, code=2)
        program.expect("more stages than units are refused before a worker starts", "too few for 40 stages" in done.stderr and "rank" not in done.stderr, done.stderr)
    done = program.run("score", "--model", model, "--input", "records.jsonl", "--output", "x.jsonl", "--strategy", "device_map", "--nproc-per-node", 2, code=2)
    program.expect("device_map has one process", "--strategy pipeline" in done.stderr, done.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", type=pathlib.Path, required=True)
    parser.add_argument("--quick", action="store_true", help="a part, for `make test`")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        program = Program(args.sftrun.resolve(), folder, args.quick)
        same_losses.write_inputs(folder)
        strategy_parity.write_divisible_models(folder)
        models = folder / "models"
        texts = ["one two three four five", "two", "five four", "seven eight nine ten one two three", "three three three", "ten nine", "four", "one two three four " * 50]  # the last one needs more than one message
        (folder / "records.jsonl").write_text("".join(json.dumps({"prompt": text, "completion": " " + text[::-1]}) + "\n" for text in texts))
        train(program, "lora", models / "blocks", mode="lora", lora={"r": 4, "dora": True})
        train(program, "qlora", models / "blocks", mode="qlora", lora={"r": 4})
        every = list(PLANS)
        chosen = {
            "wide": (["--model", models / "blocks"], every),
            "DoRA": (["--adapter", "lora"], every),
            "QLoRA": (["--adapter", "qlora"], every),
            "tied": (["--model", same_losses.DATA / "train/models/tied"], every),
            "delta nets": (["--model", models / "qwen3_5_moe_twice"], every),
            "experts": (["--model", models / "gpt_oss_twice"], every),
            "shared keys": (["--model", models / "gemma4"], ["fsdp 2"]),
        }
        quick = {"wide": ["pipeline 2 x tensor 2", "device_map 2"], "QLoRA": ["fsdp 2 x tensor 2"], "tied": ["pipeline 2"], "delta nets": ["tensor 2", "fsdp 2"]}
        for name, (model, plans) in chosen.items():
            use(program, name, model, [plan for plan in plans if not program.quick or plan in quick.get(name, [])] if not program.quick or name in quick else [])
        evaluate(program, "qlora", ["tensor 2"] if program.quick else every)
        serve(program, models / "blocks", ["tensor 2"] if program.quick else ["tensor 2", "pipeline 2", "pipeline 2 x tensor 2", "device_map 2"])
        lose_a_rank(program, models / "blocks")
        shutil.copytree(models / "blocks", models / "talking")
        (models / "talking/chat_template.jinja").write_text("{% for message in messages %}{{ message['content'] }} {% endfor %}")
        chat(program, models / "talking", ["tensor 2"] if program.quick else ["tensor 2", "pipeline 2", "pipeline 2 x tensor 2", "device_map 2"])
        without_being_told(program, models / "blocks")
        that_fits_nowhere(program, folder / "huge")
        check_refusals(program, models / "blocks")
        print(f"{program.count - len(program.failures)} of {program.count} hold")
    return 1 if program.failures else 0


if __name__ == "__main__":
    sys.exit(main())
