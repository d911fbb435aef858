#!/usr/bin/env python3
"""Whole runs as a user makes them, on two processes, with a tiny model and toy records. Standard library only.

    tests/smoke/two_processes.py --sftrun build/bin/sftrun

Checks the exit code, that the loss falls, every file of the run directory, that no worker is left behind, and that the
adapter answers. Where batches do not divide evenly, one and two processes must compute the same. The numbers themselves
are compared with the reference in tests/parity.
"""

import argparse
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
MODEL = ROOT / "tests/data/models/tied-gqa"
STEPS = 12
RUN = """\
model: {{ name: {model}, max_seq_len: 128 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8, target_modules: all-linear }} }}
data: {{ train: {folder}/toy.jsonl, val: {folder}/held-out.jsonl }}
train: {{ max_steps: {steps}, epochs: 50, global_batch_size: 4, learning_rate: 2.0e-2, warmup_steps: 0, eval_strategy: epoch }}
output: {{ dir: {folder}/run }}
"""
# Five records by four: every second step has one record, and one of two ranks none.
UNEVEN_RECORDS, UNEVEN_EPOCHS = 5, 3
UNEVEN_RUN = """\
model: {{ name: {model}, max_seq_len: 128, dtype: fp32 }}
tuning: {{ mode: lora, lora: {{ r: 4, alpha: 8, target_modules: all-linear }} }}
data: {{ train: {folder}/uneven.jsonl, val: {folder}/uneven-held-out.jsonl, packing: false }}
train:
  {{ epochs: {epochs}, batch_size: 1, global_batch_size: 4, learning_rate: 2.0e-3, warmup_steps: 0, eval_batch_size: 1,
     eval_on_start: true, eval_strategy: epoch }}
output: {{ dir: {folder}/run-{processes} }}
"""
RELATIVE = 1.0e-5  # sums in another order, in fp32
EXPECTED_FILES = ["config.resolved.yaml", "run.json", "metrics.jsonl", "report.html", "logs/rank-0.log", "logs/rank-1.log",
                  "adapter/adapter_model.safetensors", "adapter/adapter_config.json"]


def record(number):
    return {"messages": [{"role": "user", "content": f"What comes after {number}?"},
                         {"role": "assistant", "content": f"The answer is {number + 1}."}]}


def write_lines(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))


def run(command, **options):
    print("$", *command, flush=True)
    return subprocess.run([str(part) for part in command], timeout=240, **options)


def processes_mentioning(text):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
        except OSError:
            continue
        if text.encode() in words and int(process.name) != os.getpid():
            found.append(process.name)
    return found


def metrics(run_directory):
    return [json.loads(line) for line in (run_directory / "metrics.jsonl").read_text().splitlines()]


def long_record(number):
    """The longer, the larger its number: a mean over ranks or micro-batches is not the mean over tokens."""
    return {"messages": [{"role": "user", "content": f"Count to {number}."},
                         {"role": "assistant", "content": " ".join(map(str, range(1, number + 1)))}]}


def uneven_losses(sftrun, folder, processes):
    """What is compared of each line of the metrics: name, step and loss."""
    path = folder / f"uneven-{processes}.yaml"
    path.write_text(UNEVEN_RUN.format(model=MODEL, folder=folder, epochs=UNEVEN_EPOCHS, processes=processes))
    run([sftrun, "train", "--config", path, "--nproc-per-node", str(processes), "--device", "cpu"], check=True)
    return [(name, line["step"], line[name]) for line in metrics(folder / f"run-{processes}")
            for name in ("loss", "eval_loss") if name in line]


def check_uneven_batches(sftrun, folder):
    """Neither a short last batch nor a rank without records changes what is computed."""
    write_lines(folder / "uneven.jsonl", [long_record(2 * n + 1) for n in range(UNEVEN_RECORDS)])
    write_lines(folder / "uneven-held-out.jsonl", [long_record(n) for n in (3, 8, 14)])
    one, two = (uneven_losses(sftrun, folder, processes) for processes in (1, 2))
    expected = [("loss", step) for step in range(1, 2 * UNEVEN_EPOCHS + 1)]
    expected += [("eval_loss", 2 * epoch) for epoch in range(UNEVEN_EPOCHS + 1)]
    failures = []
    for processes, losses in ((1, one), (2, two)):
        if sorted(line[:2] for line in losses) != sorted(expected):
            failures.append(f"losses of these steps on {processes} processes: {[line[:2] for line in losses]}")
    failures += [f"{name} of step {step}: {a} on one process, {b} on two" for (name, step, a), (*_, b) in zip(one, two)
                 if not abs(a - b) <= RELATIVE * abs(a)]
    return failures


STYLED = """{% for m in messages %}{% if m.role == 'user' %}{{ '(' + style + ') ' }}{% endif %}{{ m.role + ': ' + m.content + eos_token }}{% endfor %}
{%- if add_generation_prompt %}assistant: {% endif %}"""


def check_configured_template(sftrun, folder):
    """A template that was trained with, and its variables, go with the adapter, and are what it is asked, scored and merged with."""
    out = folder / "configured"
    (folder / "styled.jinja").write_text(STYLED)
    run([sftrun, "train", "--config", folder / "run.yaml", "--device", "cpu", f"model.chat_template={folder / 'styled.jinja'}",
         "data.chat_template_kwargs.style=brief", "train.max_steps=1", f"output.dir={out}"], check=True)
    run([sftrun, "merge", "--adapter", out / "adapter", "--output", out / "merged"], check=True)
    folders = ("adapter", "merged", "checkpoints/step-000001")
    failures = [f"{name} has another template" for name in folders if (out / name / "chat_template.jinja").read_text() != STYLED]
    failures += [f"{name} has other variables" for name in folders
                 if json.loads((out / name / "sftrun_chat.json").read_text()) != {"chat_template_kwargs": {"style": "brief"}}]
    write_lines(out / "in.jsonl", [record(5)])
    scores = []
    other = ["--chat-template-kwargs", '{"style": "verbose, with every detail"}']
    for model in (["--adapter", out / "adapter"], ["--model", out / "merged"], ["--model", MODEL], ["--adapter", out / "adapter", *other]):
        run([sftrun, "score", *model, "--input", out / "in.jsonl", "--output", out / "out.jsonl", "--device", "cpu", "--dtype", "fp32"], check=True)
        scores.append(json.loads((out / "out.jsonl").read_text())["logprob"])
    if abs(scores[0] / scores[1] - 1) > RELATIVE:
        failures.append(f"the adapter's score is {scores[0]}, the merged model's {scores[1]}")
    if scores[2] == scores[0]:
        failures.append("the base's own template scores as the run's")
    if scores[3] == scores[0]:
        failures.append("--chat-template-kwargs changes nothing")
    told = run([sftrun, "generate", "--adapter", out / "adapter", "--prompt", "a", "--max-new-tokens", "1", "--device", "cpu"],
               capture_output=True, text=True).stderr
    if 'chat_template_kwargs of the training run: {"style":"brief"}' not in told:
        failures.append(f"generate does not say which variables it uses: {told}")
    return failures


# What is warned of: by the front, of configuration, model and data; by the engine, of the data and of the configuration.
WARNED = ["data.val reads the same files as data.train", "model.revision has no effect", "more than the model's 128 positions",
          "records have the role", "tuning.double_quant changes nothing"]


def warnings_in(text):
    """The messages, without time and rank."""
    return [re.sub(r"^\[rank \d+\] ", "", line.split("[warning] ", 1)[1]) for line in text.splitlines() if "[warning] " in line]


def check_what_is_resolved(sftrun, folder, processes):
    """Log, run.json and config.resolved.yaml agree about what `auto` became, and every warning is shown once."""
    out, failures = folder / f"resolved-{processes}", []
    records = [{"messages": [{"role": "usr", "content": "Hello"}, *record(n)["messages"]]} for n in range(8)]
    write_lines(folder / "warned.jsonl", records)
    (folder / "model").is_dir() or shutil.copytree(MODEL, folder / "model")
    done = run([sftrun, "train", "--config", folder / "run.yaml", "--device", "cpu", "--nproc-per-node", str(processes), f"model.name={folder}/model",
                f"data.train={folder}/warned.jsonl", f"data.val={folder}/warned.jsonl", "model.revision=main", "model.max_seq_len=256",
                "tuning.double_quant=false", "train.max_steps=1", f"output.dir={out}"], capture_output=True, text=True)
    if done.returncode != 0:
        return [f"{processes} processes with warnings: {done.stderr}"]
    found = warnings_in(done.stderr)
    failures += [f"{processes} processes: shown {sum(part in one for one in found)} times: {part}\n{done.stderr}" for part in WARNED
                 if sum(part in one for one in found) != 1]
    failures += [f"{processes} processes: shown twice: {one}" for one in set(found) if found.count(one) > 1]
    strategy = "single" if processes == 1 else "ddp"
    report, written = json.loads((out / "run.json").read_text()), (out / "config.resolved.yaml").read_text()
    for what, holds in ((f"run.json says {strategy}", report["strategy"] == strategy),
                        (f"config.resolved.yaml says {strategy}", f"  strategy: {strategy}\n" in written),
                        (f"the log says {strategy}", f"parallel.strategy = {strategy}" in done.stderr),
                        ("config.resolved.yaml has run.json's dtype", f"  dtype: {report['dtype']}\n" in written),
                        ("the log has run.json's dtype", f"model.dtype = {report['dtype']}" in done.stderr),
                        ("quant is resolved", "  quant: none\n" in written)):
        if not holds:
            failures.append(f"{processes} processes: {what}, not {report['strategy']}, {report['dtype']}:\n{done.stderr}\n{written}")
    again = run([sftrun, "train", "--config", out / "config.resolved.yaml", "--nproc-per-node", str(processes), "--device", "cpu"],
                capture_output=True, text=True)
    if again.returncode != 0 or "already complete" not in again.stderr:
        failures.append(f"{processes} processes: config.resolved.yaml is another run: {again.stderr}")
    return failures


def check_resolved_quant(sftrun, folder):
    """What tuning.quant auto became is in config.resolved.yaml, and holds the same base again."""
    failures = []
    for model, mode, quant in (("bnb-nf4", "lora", "stored"), ("fp8-dynamic", "lora", "stored"), ("tied-gqa", "qlora", "nf4"),
                               ("llama3-gguf/model-Q8_0.gguf", "lora", "gguf"), ("llama3-gguf/model-Q8_0.gguf", "full", "none")):
        out = folder / f"quant-{len(list(folder.iterdir()))}"
        train = [sftrun, "train", "--device", "cpu", "--config"]
        done = run([*train, folder / "run.yaml", f"model.name={MODEL.parent / model}", f"tuning.mode={mode}", "model.chat_template=vicuna", "train.max_steps=1",
                    f"output.dir={out}"],
                   capture_output=True, text=True)
        again = run([*train, out / "config.resolved.yaml"], capture_output=True, text=True)
        written = (out / "config.resolved.yaml").read_text() if done.returncode == 0 else done.stderr
        if f"  quant: {quant}\n" not in written:
            failures.append(f"{mode} of {model}: tuning.quant is not {quant}:\n{written}")
        if "already complete" not in again.stderr:
            failures.append(f"{mode} of {model}: config.resolved.yaml is another run: {again.stderr}")
    return failures


def check_other_data(sftrun, folder):
    """Two ranks of one machine that read other records, as from a file that changes meanwhile."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "run.yaml").write_text(RUN.format(model=MODEL, folder=folder, steps=2))
    command = [sftrun, "train", "--config", folder / "run.yaml", "--device", "cpu", "data.train=data.jsonl", "data.val=data.jsonl", "data.cache_dir=none",
               f"output.dir={folder}/other"]
    ranks = []
    for rank in range(2):
        (folder / f"rank-{rank}").mkdir()
        write_lines(folder / f"rank-{rank}/data.jsonl", [record(n + rank) for n in range(4)])
        environment = os.environ | {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks.append(subprocess.Popen([str(part) for part in command], cwd=folder / f"rank-{rank}", env=environment, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    named = "rank 1 has another run than rank 0: the data set differs from that of rank 0" in said[0] and "files changed between the ranks' reads of them" in said[0]
    return [] if named and ranks[0].returncode == 2 else [f"other data on a rank of the same machine: {said}"]


def check(sftrun, folder):
    failures = []
    expect = lambda what, holds: failures.append(what) if not holds else None  # noqa: E731
    write_lines(folder / "toy.jsonl", [record(n) for n in range(2, 66)])
    write_lines(folder / "held-out.jsonl", [record(n) for n in range(66, 74)])
    (folder / "run.yaml").write_text(RUN.format(model=MODEL, folder=folder, steps=STEPS))

    done = run([sftrun, "train", "--config", folder / "run.yaml", "--nproc-per-node", "2", "--device", "cpu"])
    expect(f"exit code 0, not {done.returncode}", done.returncode == 0)
    for name in EXPECTED_FILES:
        expect(f"{name} is written", (folder / "run" / name).exists())
    if failures:
        return failures
    expect("no worker is left behind", not processes_mentioning(str(folder)))

    lines = metrics(folder / "run")
    losses = [line["loss"] for line in lines if "loss" in line]
    expect(f"{STEPS} training lines, not {len(losses)}", len(losses) == STEPS)
    expect(f"the loss falls: {losses[0]} to {losses[-1]}", losses[-1] < 0.8 * losses[0])
    expect("an evaluation line", any("eval_loss" in line for line in lines))
    expect("gpu_utilization is empty on a CPU", all(line["gpu_utilization"] == [] for line in lines if "loss" in line))
    expect("two ranks in loss_per_rank", all(len(line["loss_per_rank"]) == 2 for line in lines if "loss" in line))
    expect("world size 2 in run.json", json.loads((folder / "run/run.json").read_text())["world_size"] == 2)

    answer = run([sftrun, "generate", "--adapter", folder / "run/adapter", "--prompt", "What comes after 7?",
                  "--max-new-tokens", "8", "--device", "cpu"], capture_output=True, text=True)
    expect(f"the adapter finds its base model and answers: {answer.stderr}", answer.returncode == 0 and answer.stdout.strip())
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    with tempfile.TemporaryDirectory() as folder:
        failures = check(sftrun, pathlib.Path(folder)) + check_uneven_batches(sftrun, pathlib.Path(folder))
        failures += check_configured_template(sftrun, pathlib.Path(folder))
        for processes in (1, 2):
            failures += check_what_is_resolved(sftrun, pathlib.Path(folder), processes)
        failures += check_resolved_quant(sftrun, pathlib.Path(folder))
        failures += check_other_data(sftrun, pathlib.Path(folder))
    for failure in failures:
        print(f"FAIL {failure}")
    print("smoke: failed" if failures else "smoke: ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
