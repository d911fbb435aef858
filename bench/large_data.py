#!/usr/bin/env python3
"""How much memory a large data set takes: train a few steps on gigabytes of synthetic conversations, as JSON lines and as Parquet,
read whole (tokenised data kept on disk) and streamed.

    .venv-ref/bin/python bench/large_data.py --sftrun build/bin/sftrun [--gigabytes 3] [--folder FOLDER]

The model is tiny, with the demo model's tokenizer (scripts/demo/prepare.py fetches it): what is measured is the data. Resident memory is sampled from /proc for every process of the run (the largest of
the samples, the kernel's own VmHWM of each process, and what of it is anonymous), and the same is done for a run on 200 records: the difference is the data's.
"""
import argparse
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import threading
import time

import pyarrow
import pyarrow.parquet
import torch
import transformers

REPOSITORY = pathlib.Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPOSITORY / "tests" / "parity"), str(REPOSITORY / "scripts" / "fixtures")]

from demo_model import hf_directory  # noqa: E402

WORDS = 30000


def tiny_model(folder):
    target = folder / "model"
    if not (target / "config.json").exists():
        gguf = next((REPOSITORY / ".cache/models").glob("*.gguf"))
        demo = hf_directory(gguf.parent, gguf)
        config = transformers.AutoConfig.from_pretrained(demo)
        config.hidden_size, config.num_hidden_layers, config.intermediate_size = 64, 2, 128
        config.num_attention_heads, config.num_key_value_heads, config.head_dim = 4, 2, 16
        torch.manual_seed(1)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(target)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
            if (pathlib.Path(demo) / name).exists():
                shutil.copy(pathlib.Path(demo) / name, target / name)
    return target


def vocabulary(rng):
    letters = "eeeeeeetttttaaaaaooooiiiinnnnsssshhhrrrddllcumwfgypbvk"
    return ["".join(rng.choice(letters) for _ in range(rng.choice([2, 3, 3, 4, 5, 6, 7, 9]))) for _ in range(WORDS)]


def paragraph(rng, words):
    """Lengths are log-normal and words follow Zipf's law, as in chat data."""
    count = min(2000, max(3, int(rng.lognormvariate(4.0, 0.9))))
    return " ".join(words[min(WORDS - 1, int(rng.paretovariate(0.9)))] for _ in range(count)) + "."


def records(rng, words, pool):
    while True:
        yield {"messages": [{"role": "user", "content": rng.choice(pool)[:400]}, {"role": "assistant", "content": rng.choice(pool)}]}


def write_data(folder, gigabytes):
    rng = random.Random(1)
    words = vocabulary(rng)
    pool = [paragraph(rng, words) for _ in range(20000)]
    lines, table = folder / "large.jsonl", folder / "large.parquet"
    if lines.exists() and lines.stat().st_size >= gigabytes * 1e9 and table.exists():
        return lines, table
    turn = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    schema = pyarrow.schema([("messages", pyarrow.list_(turn))])
    source, written = records(rng, words, pool), 0
    with open(lines, "w") as out, pyarrow.parquet.ParquetWriter(table, schema, compression="none", use_dictionary=False) as parquet:
        while written < gigabytes * 1e9:
            chunk = [next(source) for _ in range(20000)]
            text = "".join(json.dumps(record) + "\n" for record in chunk)
            out.write(text)
            written += len(text)
            parquet.write_table(pyarrow.Table.from_pylist(chunk, schema=schema))
    return lines, table


def status_of(pid):
    values = {}
    try:
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("VmHWM", "VmRSS", "RssAnon", "PPid"):
                values[name] = int(rest.split()[0])
    except OSError:
        pass
    return values


class Watch(threading.Thread):
    """The largest memory of any process below `pid`, in KiB."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid, self.peak, self.anonymous, self.stopping = pid, 0, 0, False

    def run(self):
        while not self.stopping:
            family, grew = {self.pid}, True
            processes = {int(p.name): status_of(p.name) for p in pathlib.Path("/proc").glob("[0-9]*")}
            while grew:
                more = {pid for pid, values in processes.items() if values.get("PPid") in family} - family
                family |= more
                grew = bool(more)
            for pid in family:
                values = processes.get(pid, {})
                self.peak = max(self.peak, values.get("VmHWM", 0))
                self.anonymous = max(self.anonymous, values.get("RssAnon", 0))
            time.sleep(0.1)


def train(options, folder, name, data):
    yaml = folder / f"{name}.yaml"
    yaml.write_text(f"""\
model: {{ name: {options.model}, max_seq_len: 1024, dtype: fp32 }}
tuning: {{ lora: {{ r: 4 }} }}
data: {{ train: {data}, cache_dir: {folder}/cache }}
train: {{ max_steps: {options.steps}, batch_size: 1, global_batch_size: 8, save_every: '0' }}
output: {{ dir: {folder}/run-{name}-{int(time.time())}, tensorboard: false }}
""")
    start = time.time()
    process = subprocess.Popen([options.sftrun, "train", "--config", yaml, "--nproc-per-node", "1", "--device", "cpu"],
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ})
    watch = Watch(process.pid)
    watch.start()
    first_step = None
    for line in process.stdout:
        if "step 1/" in line and first_step is None:
            first_step = time.time() - start
        if options.verbose:
            print(line, end="", flush=True)
    code = process.wait()
    watch.stopping = True
    watch.join()
    if code != 0:
        raise SystemExit(f"{name} ended with {code}; see {yaml}")
    return {"name": name, "peak_mib": watch.peak / 1024, "anonymous_mib": watch.anonymous / 1024, "first_step_s": first_step,
            "seconds": time.time() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sftrun", required=True)
    parser.add_argument("--gigabytes", type=float, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--folder", default="/tmp/sftrun-large-data")
    parser.add_argument("--verbose", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path(options.folder)
    folder.mkdir(parents=True, exist_ok=True)
    options.model = tiny_model(folder)
    lines, table = write_data(folder, options.gigabytes)
    small = folder / "small.jsonl"
    with open(lines) as source, open(small, "w") as out:
        out.writelines(next(source) for _ in range(200))
    results = [train(options, folder, "small", small)]
    for name, data in [("lines", lines), ("lines again", lines), ("parquet", table), ("lines streamed", f"{lines}, streaming: true"),
                       ("parquet streamed", f"{table}, streaming: true")]:
        results.append(train(options, folder, name.replace(" ", "-"), data))
    print(f"{lines.stat().st_size / 1e9:.2f} GB of JSON lines, {table.stat().st_size / 1e9:.2f} GB of Parquet\n")
    print("| data | peak resident, MiB | over the small run | anonymous, MiB | first step after, s |\n|---|---|---|---|---|")
    for r in results:
        print(f"| {r['name']} | {r['peak_mib']:.0f} | {r['peak_mib'] - results[0]['peak_mib']:.0f} | {r['anonymous_mib']:.0f} | {r['first_step_s']:.1f} |")


if __name__ == "__main__":
    main()
