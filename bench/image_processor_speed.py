#!/usr/bin/env python3
"""Image processors in one thread, sftrun and transformers in turn; prints the table of bench/RESULTS.md.

    ninja -C build image_processor_speed && .venv-ref/bin/python bench/image_processor_speed.py build/bin/image_processor_speed [--rounds N] [--turns N]

From decoded pixels of 1024 x 768 to float32 values, with configurations of tests/parity/image_processors_parity.py. The figure of a program is the
processor time of the best round, which other programs on the machine change little. transformers has two classes for each processor: with torchvision
(the fast ones, which it takes where torchvision is installed) and with Pillow. torchvision is taken from .cache/torchvision, where `make bench` puts it:
the parity tests need an environment without it.
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

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests" / "parity"))
sys.path.append(str(ROOT / ".cache" / "torchvision"))

import torch
import transformers
from image_processors_parity import CASES, class_of, write_model
from image_speed import picture
from transformers.utils import is_torchvision_available, logging

NAMES = ("qwen2.5-vl 3b", "qwen3-vl", "gemma3 4b", "gemma4, defaults", "smolvlm2 500m", "idefics3, defaults", "llava 1.5", "siglip 384", "llava-next", "pixtral 12b",
         "mistral 3", "internvl 3")


def best_ms(rounds, work):
    best = 1e9
    for _ in range(rounds):
        begin = time.process_time()
        work()
        best = min(best, (time.process_time() - begin) * 1000)
    return best


def processors_of(case):
    """The classes of transformers, by their backend."""
    made = {"Pillow": class_of(case.module, case.image_class + "Pil", "image_processing_pil")(**case.settings)}
    if is_torchvision_available():
        made["torchvision"] = class_of(case.module, case.image_class, "image_processing")(**case.settings)
    return made


def row_of(case, model, file, image, arguments):
    command = [arguments.image_processor_speed, str(model), str(file), "--rounds", str(arguments.rounds)]
    processors, ours = processors_of(case), []
    theirs = {backend: [] for backend in processors}
    for _ in range(arguments.turns):
        ours.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
        for backend, processor in processors.items():
            kind = "np" if backend == "Pillow" else "pt"
            theirs[backend].append(best_ms(arguments.rounds, lambda: processor(image, **case.call, return_tensors=kind)))
    best = min(run["process_ms"] for run in ours)
    peers = "".join(f" {min(times):.1f} | {min(times) / best:.1f} |" for times in theirs.values())
    return f"| {case.name} | {ours[0]['tokens']} | {best:.2f} | {1000 / best:.0f} |{peers}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("image_processor_speed")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    backends = ["Pillow", "torchvision"] if is_torchvision_available() else ["Pillow"]
    heads = "".join(f" with {backend}, ms | ratio |" for backend in backends)
    print(f"transformers {transformers.__version__}\n\n| processor | tokens | ms | images a second |{heads}\n|{'---|' * (4 + 2 * len(backends))}")
    image = picture(1024, 768)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "image.png"
        image.save(file)
        for case in (case for case in CASES if case.name in NAMES):
            model = Path(folder) / case.name
            write_model(case, model)
            print(row_of(case, model, file, image, arguments), flush=True)


if __name__ == "__main__":
    main()
