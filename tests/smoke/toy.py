#!/usr/bin/env python3
"""The toy set, `make smoke`, and the commands of a fresh clone that train on the toy set.

    tests/smoke/toy.py --sftrun build/bin/sftrun

data     the files are what scripts/smoke/data.py writes; no question twice; rejected answers are others; every form gives the same tokens and labels
smoke    scripts/smoke/run.sh passes; its check fails for a run whose loss did not fall
make     `make train-distributed CONFIG=configs/run_bnb.yaml` trains and says that the data are the toy set, measures ROUGE on a base in 4 bits, and says nothing of
         the toy set with other data; a model that cannot be downloaded is one message; without NUM_GPUS= the number of processes is that of Accelerate's file
script   scripts/launch/sftrun.sh with CONFIG alone trains on one machine, and says what is missing for two

Standard library only.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOY, SMOKE = ROOT / "data/toy", ROOT / "scripts/smoke"
FORMS = ("train.jsonl", "sharegpt.jsonl", "alpaca.csv", "train.parquet")
NOTICE = "the toy set of this repository"
TIMEOUT = 120  # s, of one command

failures = []


def expect(holds, what, otherwise=""):
    if not holds:
        failures.append(what)
    print(f"{'ok  ' if holds else 'FAIL'} {what}" + (f": {otherwise}" if otherwise and not holds else ""), flush=True)
    return holds


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Machine:
    def __init__(self, sftrun, folder):
        self.sftrun, self.folder, self.model = sftrun, folder, folder / "smoke/model"
        # Variables of make and of sftrun would change what the commands do.
        kept = {name: value for name, value in os.environ.items() if not re.match("SFTRUN|MAKE|MFLAGS|TRAIN_|MODEL_|HF_|(CONFIG|NUM_GPUS|NNODES|MASTER_ADDR|SEED)$", name)}
        self.environment = kept | {"XDG_CONFIG_HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
                                   "SFTRUN": str(sftrun)}

    def run(self, *words, **variables):
        """@return exit code, output and errors together"""
        done = subprocess.run([str(word) for word in words], cwd=ROOT, env=self.environment | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=TIMEOUT)
        return done.returncode, done.stdout

    def make(self, *words, run="made", **variables):
        return self.run("make", "-s", "train-distributed", f"SFTRUN={self.sftrun}", *words, SFTRUN_OUTPUT__DIR=str(self.folder / run), **variables)


def check_data(machine):
    code, said = machine.run(SMOKE / "data.py", "--check")
    expect(code == 0, "data: the files are those of scripts/smoke/data.py", said)
    train, held_out = records(TOY / "train.jsonl"), records(TOY / "val.jsonl")
    questions = {record["messages"][0]["content"] for record in train + held_out}
    expect((len(train), len(held_out), len(questions)) == (180, 20, 200), "data: 200 different questions, 20 of them held out", len(questions))
    answers = [record["messages"][1]["content"] for record in held_out]
    kinds = [sum(bool(re.search(kind, answer)) for answer in answers) for kind in (r"^The symbol of", r"^Element \d+ is", r"is in group \d+, period", r"at room temperature\.$")]
    expect(kinds == [4] * 4, "data: four of each kind of question are held out", kinds)
    expect(all(record["chosen"] != record["rejected"] for record in records(TOY / "preference.jsonl") + records(TOY / "preference-val.jsonl")),
           "data: rejected answers are others")
    tokens = {}
    for form in FORMS:
        output = machine.folder / "tokens.jsonl"
        code, said = machine.run(machine.sftrun, "tokenize", "--chat", "--model", machine.model, "--input", TOY / form, "--output", output)
        if code != 0 and "install Apache Arrow" in said:
            print(f"SKIPPED {form}: {said.strip()}")
        elif expect(code == 0, f"data: {form} is read", said):
            tokens[form] = [(record["input_ids"], record["assistant_mask"]) for record in records(output)]
    expect(len(tokens) >= 2 and all(value == tokens[FORMS[0]] for value in tokens.values()) and len(tokens[FORMS[0]]) == 180,
           "data: all forms have the same tokens and labels")


def check_smoke(machine):
    code, said = machine.run(SMOKE / "run.sh", machine.folder / "smoke")
    expect(code == 0 and "smoke: passed: 2 processes" in said, "smoke: two processes train, and the answers are those taught", said)
    (machine.folder / "poor").mkdir()
    for entry in (machine.folder / "smoke/run").iterdir():
        if entry.name != "metrics.jsonl":
            (machine.folder / "poor" / entry.name).symlink_to(entry)
    lines = records(machine.folder / "smoke/run/metrics.jsonl")
    (machine.folder / "poor/metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines[:2]))
    code, said = machine.run(SMOKE / "check.py", "--sftrun", machine.sftrun, "--run", machine.folder / "poor")
    expect(code == 1 and "FAILED: the loss fell" in said, "smoke: the check fails for a run of one step", said)


def check_make(machine):
    tiny = f"MODEL_NAME={machine.model}"
    code, said = machine.make("CONFIG=configs/run_bnb.yaml", tiny, "NUM_GPUS=2", "TRAIN_MAX_STEPS=3")
    metrics = records(machine.folder / "made/metrics.jsonl") if code == 0 else [{}]
    expect(code == 0 and NOTICE in said and "SFTRUN_DATA__TRAIN" in said, "make: train-distributed of run_bnb.yaml trains on the toy set and says so", said)
    expect(any("eval_rouge_l" in line for line in metrics), "make: ROUGE is measured while it trains", metrics[-1])
    resolved = (machine.folder / "made/config.resolved.yaml").read_text() if code == 0 else ""
    expect("mode: qlora" in resolved and "backend: bnb" in resolved and "quant: nf4" in resolved, "make: the base is in 4 bits, on the backend bnb", resolved)
    own = machine.folder / "own.jsonl"
    own.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Good morning"}]}) + "\n")
    code, said = machine.make("CONFIG=configs/run_bnb.yaml", tiny, "TRAIN_MAX_STEPS=1", run="own", SFTRUN_DATA__TRAIN=str(own), SFTRUN_DATA__VAL="none",
                              SFTRUN_TRAIN__EVAL_STRATEGY="no", SFTRUN_TRAIN__PREDICT_WITH_GENERATE="false")
    expect(code == 0 and NOTICE not in said, "make: nothing is said of the toy set with other data", said)
    code, said = machine.make("CONFIG=configs/run_bnb.yaml", run="none")
    expect(code != 0 and said.count("error:") == 1 and "HuggingFaceTB/SmolLM2-135M-Instruct" in said and "fix:" in said and "make smoke" in said,
           "make: a model that cannot be downloaded is one message with what to do", said)
    code, said = machine.make("CONFIG=configs/run_lora.yaml", tiny, "TRAIN_MAX_STEPS=1", run="file",
                              SFTRUN_PARALLEL__ACCELERATE=str(ROOT / "configs/accelerate/multi_cpu.yaml"))
    processes = json.loads((machine.folder / "file/run.json").read_text())["world_size"] if code == 0 else said
    expect(processes == 2, "make: without NUM_GPUS= the processes are those of Accelerate's file", processes)


def check_script(machine):
    script = ROOT / "scripts/launch/sftrun.sh"
    options = (f"model.name={machine.model}", "train.max_steps=1", f"output.dir={machine.folder / 'script'}", "--device", "cpu")
    code, said = machine.run(script, *options, CONFIG="configs/run_lora.yaml")
    expect(code == 0 and (machine.folder / "script/adapter/adapter_model.safetensors").is_file(), "script: one machine needs CONFIG alone", said)
    code, said = machine.run(script, *options, CONFIG="configs/run_lora.yaml", NNODES="2")
    expect(code != 0 and "MASTER_ADDR=node-a" in said, "script: two machines need MASTER_ADDR", said)
    code, said = machine.run(script, *options)
    expect(code != 0 and "CONFIG=run.yaml" in said, "script: without CONFIG it says so", said)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sftrun-toy-") as folder:
        machine = Machine(options.sftrun.resolve(), pathlib.Path(folder))
        check_smoke(machine)  # writes the model
        check_data(machine)
        check_make(machine)
        check_script(machine)
    for failure in failures:
        print(f"FAIL {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
