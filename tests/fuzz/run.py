#!/usr/bin/env python3
"""Runs the fuzz targets, each from seeds that the repository's fixtures give, and keeps what they find.

    tests/fuzz/run.py --build build-fuzz --seconds 600 [--jobs 2] [target …]

Standard library only. The corpus grows in <build>/corpus/<target>; findings are in <build>/findings/<target>-*.
"""

import argparse
import concurrent.futures
import json
import pathlib
import shutil
import subprocess
import sys

DATA = pathlib.Path(__file__).resolve().parents[1] / "data"


def copies(*patterns):
    return lambda: [path.read_bytes() for pattern in patterns for path in sorted(DATA.glob(pattern))]


def templates():
    """Every template of the rendering fixtures, wherever it stands in their JSON."""
    found = set()

    def collect(value):
        if isinstance(value, str) and "{" in value:
            found.add(value)
        elif isinstance(value, dict):
            for item in value.values():
                collect(item)
        elif isinstance(value, list):
            for item in value:
                collect(item)

    collect(json.loads((DATA / "text/jinja_cases.json").read_text()))
    return [text.encode() for text in sorted(found)]


def records():
    message = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a", "train": False}]
    shapes = [
        {"messages": message, "tools": [{"name": "f"}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"prompt": message[:1], "completion": message[1:]},
        {"prompt": "p", "completion": "c"},
        {"instruction": "i", "input": "", "output": "o"},
        {"text": "t\u00e9\U0001f600"},
        {"messages": [{"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
    ]
    return [json.dumps(shape).encode() + b"\n" for shape in shapes] + [b"\xef\xbb\xbf{}\r\n\r\n[1]\n"]


SEEDS = {
    "safetensors": copies("weights/*.safetensors", "models/*/*.safetensors"),
    "gguf": copies("weights/*.gguf", "models/*/*.gguf"),
    "model_config": copies("models/*/*.json"),
    "tokenizer_json": copies("text/*.tokenizer.json"),
    "jinja": templates,
    "json_lines": records,
}
MOST_BYTES = {"jinja": 8192, "json_lines": 4096}


def fuzz(target, build, seconds):
    corpus, findings = build / "corpus" / target, build / "findings"
    corpus.mkdir(parents=True, exist_ok=True)
    findings.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[target]()):
        (corpus / f"seed-{number}").write_bytes(seed)
    command = [build / "bin" / f"fuzz_{target}", corpus, f"-max_total_time={seconds}", "-timeout=30", "-rss_limit_mb=4096",
               f"-artifact_prefix={findings}/{target}-", "-print_final_stats=1", "-verbosity=0"]
    if target in MOST_BYTES:
        command.append(f"-max_len={MOST_BYTES[target]}")
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    (build / "findings" / f"{target}.log").write_text(done.stderr)
    runs = next((line.split()[-1] for line in done.stderr.splitlines() if "number_of_executed_units" in line), "?")
    return target, done.returncode, runs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("targets", nargs="*", default=sorted(SEEDS))
    arguments = parser.parse_args()
    shutil.rmtree(arguments.build / "findings", ignore_errors=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [pool.submit(fuzz, target, arguments.build.resolve(), arguments.seconds) for target in arguments.targets]
        for future in concurrent.futures.as_completed(waiting):
            target, code, runs = future.result()
            failed += code != 0
            print(f"{target}: {runs} inputs, {'nothing found' if code == 0 else f'FINDING, see {arguments.build}/findings'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
