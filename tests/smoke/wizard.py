#!/usr/bin/env python3
"""The files that `sftrun config init` writes, used by real runs. Standard library only.

    tests/smoke/wizard.py --sftrun build/bin/sftrun

objective  data with pairs, rewards, judgements, classes and queries get the objective that reads them
prompts    data without answers get train.rollouts, with what judges the answers
columns    questions and answers of usual names are mapped, for sft and for rollouts; --objective takes what the records fit, and names what they lack
run        the YAML of a run trains a tiny model, with LoRA, QLoRA and all weights
machine    the machine file starts two processes; with two machines, their launchers find each other
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

from free_ports import free_port

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
TIMEOUT = 240  # s, of one command
MATTERS = ("SFTRUN", "NCCL_", "GLOO_", "CUDA_", "MASTER_", "RANK", "WORLD_SIZE", "LOCAL_", "SLURM", "OMPI", "PMI")

failures = []


def expect(what, holds, detail=""):
    print(f"{'ok  ' if holds else 'FAIL'} {what}{'' if holds else f': {detail}'}", flush=True)
    if not holds:
        failures.append(what)


class Machine:
    """A machine with a place of its own for its settings."""

    def __init__(self, program, folder, name):
        self.program, self.folder = program, folder
        kept = {key: value for key, value in os.environ.items() if not key.startswith(MATTERS)}
        self.environment = kept | {"XDG_CONFIG_HOME": str(folder / name), "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}

    def start(self, *words):
        return subprocess.Popen([self.program, *map(str, words)], cwd=self.folder, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def run(self, *words):
        process = self.start(*words)
        output = process.communicate(timeout=TIMEOUT)[0]
        if process.returncode != 0:
            raise RuntimeError(f"sftrun {' '.join(map(str, words))}: exit code {process.returncode}\n{output}")
        return output


def report_of(folder):
    return json.loads((folder / "run.json").read_text())


def check_runs(machine, folder):
    for mode, result in (("lora", "adapter"), ("qlora", "adapter"), ("full", "model")):
        machine.run("config", "init", "--model", MODEL, "--data", "train.jsonl", "--max-seq-len", 64, "--mode", mode, "-o", f"{mode}.yaml")
        machine.run("train", "--config", f"{mode}.yaml", "--device", "cpu", "train.max_steps=1")
        run = folder / "runs" / mode
        expect(f"run: {mode}", report_of(run)["status"] == "done" and (run / result).is_dir(), sorted(run.iterdir()))


def check_objectives(machine, folder):
    for objective, record in {"dpo": {"prompt": "a", "chosen": "b", "rejected": "c"}, "grpo": {"prompt": "a", "completion": "b", "reward": 1},
                              "kto": {"prompt": "a", "completion": "b", "label": True}, "classify": {"text": "a", "label": "b"},
                              "embed": {"query": "a", "pos": ["b"]}, "sft": {"text": "a"}}.items():
        (folder / f"{objective}.jsonl").write_text(json.dumps(record) + "\n")
        machine.run("config", "init", "--model", MODEL, "--data", f"{objective}.jsonl", "--max-seq-len", 64, "-o", f"of-{objective}.yaml")
        shown = machine.run("config", "show", "--config", f"of-{objective}.yaml")
        expect(f"objective: {objective}", re.search(rf"^  objective: {objective}$", shown, re.MULTILINE), shown)


def check_prompts(machine, folder):
    """Prompts that the run itself answers: what judges them is proposed by the record, or asked for."""
    records = {"number": {"prompt": "a", "answer": 3}, "exact_match": {"messages": [{"role": "user", "content": "a"}], "solution": "b"}, "length": {"prompt": "a"}}
    for name, record in records.items():
        (folder / f"{name}.jsonl").write_text(json.dumps(record) + "\n")
        words = ["config", "init", "--model", MODEL, "--data", f"{name}.jsonl", "--max-seq-len", 64, "-o", f"to-{name}.yaml"]
        if name == "length":  # nothing to compare an answer with
            refused = machine.start(*words)
            said = refused.communicate(timeout=TIMEOUT)[0]
            expect("prompts: what judges is asked for", refused.returncode == 2 and "--reward" in said, said)
            words += ["--reward", "{name: length, target: 3}"]
        machine.run(*words)
        shown = machine.run("config", "show", "--config", f"to-{name}.yaml")
        expect(f"prompts: {name}", all(re.search(wanted, shown, re.MULTILINE) for wanted in ("^  objective: grpo$", f"reward: .*{name}", "^    max_new_tokens: 32$")), shown)
    machine.run("train", "--config", "to-exact_match.yaml", "--device", "cpu", "--dry-run")
    refused = machine.start("config", "init", "--model", MODEL, "--data", "train.jsonl", "--reward", "number", "-o", "idle.yaml")
    said = refused.communicate(timeout=TIMEOUT)[0]
    expect("prompts: --reward without prompts is refused", refused.returncode == 2 and "--reward has no effect" in said, said)


def check_columns(machine, folder):
    """GSM8K's columns; objectives by name."""
    (folder / "gsm8k.jsonl").write_text("".join(json.dumps({"question": f"{i} and 1?", "answer": f"so\n#### {i + 1}"}) + "\n" for i in range(4)))
    (folder / "math.jsonl").write_text(json.dumps({"problem": "a?", "solution": "so \\boxed{3}"}) + "\n")
    pairs = {"prompt": "a", "chosen": "b", "rejected": "c"}
    (folder / "pairs.jsonl").write_text(json.dumps(pairs) + "\n")
    dolly = {"instruction": "a?", "context": "c", "response": "b", "category": "qa"}
    (folder / "dolly.jsonl").write_text(json.dumps(dolly) + "\n")
    (folder / "thumbs.jsonl").write_text(json.dumps({"prompt": "a", "completion": "b", "thumbs_up": False}) + "\n")
    said = machine.run("config", "init", "--model", MODEL, "--max-seq-len", 64, "-o", "columns-dolly.yaml", "--data", "dolly.jsonl")
    expect("columns: what is not read is named", 'does not read: "category" (' in said, said)
    for name, words, wanted in (
            ("dolly", ["dolly.jsonl", "--overwrite"], ("fields: {output: response, input: context}",)),
            ("fields", ["dolly.jsonl", "--fields", "instruction=context,output=response"], ("fields: {instruction: context, output: response}",)),
            ("thumbs", ["thumbs.jsonl"], ("objective: kto", "fields: {label: thumbs_up}")),
            ("rewards", ["gsm8k.jsonl", "--reward", "number", "--reward", "{name: length, maximum: 9}"], ("reward: [number, {name: length, maximum: 9}]",)),
            ("sft", ["gsm8k.jsonl"], ("fields: {instruction: question, output: answer}", "eval_strategy")),
            ("rollouts", ["gsm8k.jsonl", "--reward", "number"], ("objective: grpo", "fields: {prompt: question}", "reward: [number]")),
            ("chosen", ["gsm8k.jsonl", "--objective", "grpo"], ("objective: grpo", "fields: {prompt: question}", "reward: [number]")),
            ("key", ["math.jsonl", "--reward", "number"], ("fields: {prompt: problem}", "reward: [{name: number, key: solution}]")),
            ("simpo", ["pairs.jsonl", "--objective", "simpo"], ("objective: simpo", "learning_rate: 5.0e-6")),
            ("reward", ["pairs.jsonl", "--objective", "reward"], ("objective: reward", "learning_rate: 1.0e-4")),
            ("distill", ["gsm8k.jsonl", "--objective", "distill", "--teacher", MODEL], ("objective: distill", f"teacher: {MODEL}"))):
        machine.run("config", "init", "--model", MODEL, "--max-seq-len", 64, "-o", f"columns-{name}.yaml", "--data", *words)
        written = (folder / f"columns-{name}.yaml").read_text()
        expect(f"columns: {name}", all(part in written for part in wanted), written)
    machine.run("train", "--config", "columns-rollouts.yaml", "--device", "cpu", "--dry-run")
    for name, words, code, parts in (
            ("lacks pairs", ["gsm8k.jsonl", "--objective", "dpo"], 3, ('no "chosen" and "rejected"', '"question"')),
            ("lacks a label", ["pairs.jsonl", "--objective", "classify"], 3, ("label",)),
            ("lacks the key", ["number.jsonl", "--reward", "{name: number, key: other}"], 2, ('the key "other"', 'its keys: "prompt", "answer"', "{name: number, key: answer}")),
            ("lacks every key", ["length.jsonl", "--reward", "number"], 2, ('the key "answer"', 'its keys: "prompt"')),
            ("idle reward", ["pairs.jsonl", "--objective", "dpo", "--reward", "number"], 2, ("--reward has no effect with the objective dpo",)),
            ("no such field", ["gsm8k.jsonl", "--fields", "question=answer"], 2, ("`question` is no name of data.fields",)),
            ("no such column", ["gsm8k.jsonl", "--fields", "instruction=asked,output=answer"], 3, ('the record has no "asked"',)),
            ("idle teacher", ["pairs.jsonl", "--teacher", MODEL], 2, ("--teacher has no effect",))):
        refused = machine.start("config", "init", "--model", MODEL, "-o", "refused.yaml", "--data", *words)
        said = refused.communicate(timeout=TIMEOUT)[0]
        expect(f"columns: {name}", refused.returncode == code and all(part in said for part in parts) and not (folder / "refused.yaml").exists(), said)


def check_machines(machine, other, folder):
    machine.run("config", "init", "--machine", "--devices", 2, "--strategy", "zero2", "--dtype", "fp32")
    machine.run("train", "--config", "lora.yaml", "train.max_steps=1", "output.dir=runs/two")
    report = report_of(folder / "runs/two")
    expect("machine: processes, strategy and dtype of the file",
           (report["world_size"], report["strategy"], report["dtype"]) == (2, "zero2", "fp32"), report)
    master = f"127.0.0.1:{free_port()}"
    said = machine.run("config", "init", "--machine", "--devices", 1, "--strategy", "ddp", "--nodes", 2, "--node-rank", 0, "--master", master)
    there = re.search("^On machine 1: sftrun (.*)$", said, re.MULTILINE)[1]  # the command for the other machine
    other.run(*there.split(), "--devices", 1)
    launchers = [one.start("train", "--config", "lora.yaml", "train.max_steps=1", "output.dir=runs/nodes") for one in (machine, other)]
    outputs = [launcher.communicate(timeout=TIMEOUT)[0] for launcher in launchers]
    expect("machine: two machines", [launcher.returncode for launcher in launchers] == [0, 0], "\n".join(outputs))
    expect("machine: one run on both", report_of(folder / "runs/nodes")["world_size"] == 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="sftrun-wizard-") as scratch:
        folder = pathlib.Path(scratch)
        records = [{"text": f"After {i} comes {i + 1}, and after that {i + 2}."} for i in range(120)]
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        sftrun = options.sftrun.resolve()
        machine = Machine(sftrun, folder, "machine-0")
        check_objectives(machine, folder)
        check_prompts(machine, folder)
        check_columns(machine, folder)
        check_runs(machine, folder)
        check_machines(machine, Machine(sftrun, folder, "machine-1"), folder)
    print(f"{len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
