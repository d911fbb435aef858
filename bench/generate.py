"""Time of a token of generation on a CPU: `sftrun generate` beside transformers (+ bitsandbytes, where the model is in 4 bits), in turns.

    python bench/generate.py --sftrun build/bin/sftrun --peer-python .venv-ref/bin/python --model DIR [--model DIR …]

Each measurement is a process of its own that writes one greedy answer; the time of a token is that of a long answer less that of a short one,
over the tokens between them, so that loading does not count. Medians of the rounds. Prints a table for bench/RESULTS.md.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

PROMPT = "Tell me a long story about a fox."
SHORT, LONG = 8, 136
PEER = """
import json, sys, time, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
path, dtype, prompt, short, long = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[dtype])
inputs = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True, return_tensors="pt", return_dict=True)
def seconds(count):
    start = time.perf_counter()
    with torch.no_grad():
        model.generate(**inputs, max_new_tokens=count, min_new_tokens=count, do_sample=False)
    return time.perf_counter() - start
seconds(short)
print(json.dumps((seconds(long) - seconds(short)) / (long - short)))
"""


def of_sftrun(arguments, model, dtype):
    def seconds(count):
        command = [arguments.sftrun, "generate", "--model", model, "--prompt", PROMPT, "--dtype", dtype, "--device", "cpu",
                   "--max-new-tokens", str(count), "--json"]
        start = time.perf_counter()
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        written = json.loads(done.stdout)["generated_tokens"]
        if written != count:
            sys.exit(f"error: {model} ended its answer after {written} tokens\n  fix: name a model that writes {LONG}")
        return time.perf_counter() - start

    return (seconds(LONG) - seconds(SHORT)) / (LONG - SHORT)


def of_peer(arguments, model, dtype):
    command = [arguments.peer_python, "-W", "ignore", "-c", PEER, model, dtype, PROMPT, str(SHORT), str(LONG)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--sftrun", required=True, help="the program to measure")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with torch and transformers")
    parser.add_argument("--model", action="append", required=True, help="directory in Hugging Face layout; more than one are measured in turn")
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    print("| model | computed in | sftrun, ms a token | transformers, ms a token | ratio |\n|---|---|---|---|---|")
    for model in arguments.model:
        for dtype in arguments.dtypes:
            rounds = [(of_sftrun(arguments, model, dtype), of_peer(arguments, model, dtype)) for _ in range(arguments.rounds)]
            ours, theirs = (statistics.median(side) * 1e3 for side in zip(*rounds))
            print(f"| {model} | {dtype} | {ours:.1f} | {theirs:.1f} | {theirs / ours:.2f} |", flush=True)


if __name__ == "__main__":
    main()
