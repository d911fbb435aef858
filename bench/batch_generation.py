#!/usr/bin/env python3
"""Tokens per second of many answers on a CPU: `sftrun generate` beside transformers' batches and llama-cpp-python, in turns.

    python bench/batch_generation.py --sftrun build/bin/sftrun --peer-python .venv-ref/bin/python --model DIR --input FILE
                                     [--stored FILE] [--llama-python PYTHON --gguf FILE] [--processes 2]

Greedy answers to the conversations of FILE (records with "messages"; their last answer is ignored). Every side applies the model's chat
template, ends an answer at the model's stop tokens or at --max-new-tokens, and counts the tokens that it writes. transformers pads each batch
on the left, and a batch ends with its longest answer. llama-cpp-python answers one prompt after the other: its high-level interface has no batches.
A side's time begins when its model is loaded. Medians of the rounds. Prints a table for bench/RESULTS.md.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TRANSFORMERS = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, dtype, source, batch, most = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
tokenizer = AutoTokenizer.from_pretrained(path, padding_side="left")
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
model = AutoModelForCausalLM.from_pretrained(path, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
prompts = [tokenizer.apply_chat_template(json.loads(line)["messages"], add_generation_prompt=True, tokenize=False) for line in open(source)]
ends = model.generation_config.eos_token_id
ends = set(ends if isinstance(ends, list) else [ends]) | {tokenizer.eos_token_id}
def answer(texts, count):
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    with torch.no_grad():
        return model.generate(**inputs, max_new_tokens=count, do_sample=False, eos_token_id=list(ends), pad_token_id=tokenizer.pad_token_id)[:, inputs.input_ids.shape[1]:]
answer(prompts[:1], 2)
start, tokens, answers = time.perf_counter(), 0, []
for first in range(0, len(prompts), batch):
    for row in answer(prompts[first:first + batch], most).tolist():
        end = next((i for i, token in enumerate(row) if token in ends), len(row))
        tokens += end
        answers.append(tokenizer.decode(row[:end], skip_special_tokens=True))
print(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens, "answers": answers}))
"""

LLAMA = """
import json, os, sys, time
from llama_cpp import Llama
path, source, most, threads = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
model = Llama(path, n_ctx=2048, n_threads=threads, n_threads_batch=threads, verbose=False)
records = [json.loads(line)["messages"] for line in open(source)]
start, tokens = time.perf_counter(), 0
for messages in records:
    tokens += model.create_chat_completion(messages, max_tokens=most, temperature=0)["usage"]["completion_tokens"]
print(json.dumps({"seconds": time.perf_counter() - start, "tokens": tokens}), flush=True)
os._exit(0)  # its destructor crashes in some versions
"""


def last_json(command):
    return json.loads(subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def of_sftrun(options, source, dtype, folder, processes=1, model=None):
    """Loading counts for nothing: the time of one record with one token is taken away."""

    def seconds(records, most):
        output = folder / "out.jsonl"
        command = [options.sftrun, "generate", "--model", model or options.model, "--input", records, "--output", output, "--overwrite", "--dtype", dtype,
                   "--device", "cpu", "--batch-size", options.batch_size, "--max-new-tokens", most]
        if processes > 1 or options.processes > 1:
            command += ["--nproc-per-node", processes, "--threads", options.threads // max(processes, options.processes)]
        start = time.perf_counter()
        subprocess.run(list(map(str, command)), check=True, capture_output=True)
        return time.perf_counter() - start, [json.loads(line) for line in output.read_text().splitlines()]

    one = folder / "one.jsonl"
    one.write_text(source.read_text().splitlines()[0] + "\n")
    (loading, _), (whole, records) = seconds(one, 1), seconds(source, options.max_new_tokens)
    return {"seconds": whole - loading, "tokens": sum(record["generated_tokens"] for record in records), "answers": [record["generated"] for record in records]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--model", required=True, help="directory in Hugging Face layout")
    parser.add_argument("--input", required=True, type=pathlib.Path, help="JSON lines with messages")
    parser.add_argument("--records", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2, help="of the machine, for llama-cpp-python and for --processes")
    parser.add_argument("--processes", type=int, default=1, help="above 1: only the ratio of this many processes to one, each with its share of the threads")
    parser.add_argument("--stored", help="the same model as a quantised GGUF file, which sftrun also reads as it is stored")
    parser.add_argument("--llama-python", help="a Python with llama-cpp-python")
    parser.add_argument("--gguf", help="the model for llama-cpp-python")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        source = folder / "in.jsonl"
        lines = options.input.read_text().splitlines()[:options.records]
        source.write_text("".join(json.dumps({"messages": [m for m in json.loads(line)["messages"] if m["role"] != "assistant"]}) + "\n" for line in lines))
        for dtype in options.dtypes:
            sides = {"sftrun": lambda: of_sftrun(options, source, dtype, folder)}
            if options.processes > 1:
                sides[f"sftrun, {options.processes} processes"] = lambda: of_sftrun(options, source, dtype, folder, options.processes)
            else:
                sides["transformers"] = lambda: last_json([options.peer_python, "-W", "ignore", "-c", TRANSFORMERS, options.model, dtype, source,
                                                           options.batch_size, options.max_new_tokens])
                if options.stored:
                    sides["sftrun, as stored"] = lambda: of_sftrun(options, source, dtype, folder, model=options.stored)
                if options.llama_python:
                    sides["llama-cpp-python"] = lambda: last_json([options.llama_python, "-c", LLAMA, options.gguf, source, options.max_new_tokens,
                                                                   options.threads])
            rounds = [{side: measure() for side, measure in sides.items()} for _ in range(options.rounds)]
            rates = {side: statistics.median(one[side]["tokens"] / one[side]["seconds"] for one in rounds) for side in sides}
            print(f"{dtype}: " + ", ".join(f"{side} {rate:.1f} tokens/s ({rates['sftrun'] / rate:.2f})" for side, rate in rates.items()), flush=True)
            if "transformers" in sides:
                mine, theirs = rounds[0]["sftrun"]["answers"], rounds[0]["transformers"]["answers"]
                print(f"{dtype}: {sum(a == b for a, b in zip(mine, theirs))} of {len(theirs)} answers are equal")


if __name__ == "__main__":
    main()
