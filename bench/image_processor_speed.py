#!/usr/bin/env python3
"""Image processors in one thread, sftrun and transformers with Pillow in turn; prints the table of bench/RESULTS.md.

    ninja -C build image_processor_speed && .venv-ref/bin/python bench/image_processor_speed.py build/bin/image_processor_speed [--rounds N] [--turns N]

From decoded pixels of 1024 x 768 to float32 values, with configurations of tests/parity/image_processors_parity.py. The figure of a program is the
processor time of the best round, which other programs on the machine change little.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "parity"))

import torch
import transformers
from image_processors_parity import CASES, Reference, write_model
from image_speed import picture
from transformers.utils import logging

NAMES = ("qwen2.5-vl 3b", "qwen3-vl", "gemma3 4b", "gemma4, defaults", "smolvlm2 500m", "llava 1.5", "llava-next", "mistral 3", "internvl 3")


def best_ms(rounds, work):
    best = 1e9
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, (time.process_time() - begin) * 1000)
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("image_processor_speed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    print(f"transformers {transformers.__version__}\n\n| processor | tokens | ms | images a second | transformers, ms | ratio |\n|---|---|---|---|---|---|")
    image = picture(1024, 768)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.png"
        image.save(file)
        for case in (case for case in CASES if case.name in NAMES):
            model = Path(folder) / case.name
            write_model(case, model)
            reference, ours, theirs = Reference(case), [], []
            for _ in range(arguments.turns):
                command = [arguments.image_processor_speed, str(model), str(file), "--rounds", str(arguments.rounds)]
                ours.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
                theirs.append(best_ms(arguments.rounds, lambda: reference.image_processor(image, **case.call, return_tensors="np")))
            best, peer = min(run["process_ms"] for run in ours), min(theirs)
            print(f"| {case.name} | {ours[0]['tokens']} | {best:.2f} | {1000 / best:.0f} | {peer:.1f} | {peer / best:.1f} |", flush=True)


if __name__ == "__main__":
    main()
