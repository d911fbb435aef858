#!/usr/bin/env python3
"""The real TensorBoard and MLflow show a run. Needs the packages tensorboard and mlflow-skinny; no network.

    tests/parity/trackers.py --sftrun build/bin/sftrun

- scripts/with_tensorboard.sh, as `make train-distributed-tb` calls it, while another program listens on the wanted port, and one has the next
  without listening yet: TensorBoard gets the one after them, serves the losses of metrics.jsonl, the configuration and the hyperparameters, and ends with the training
- scripts/to_mlflow.py, as docs/experiment-trackers.md says: the values, settings and texts arrive in a local folder; a second copy replaces
  the first; a directory without event files is refused
"""

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parents[2]
TIMEOUT = 120  # s
RUN = """\
model: {{ name: {model}, max_seq_len: 128 }}
tuning: {{ lora: {{ r: 4, target_modules: [q_proj, v_proj] }} }}
data: {{ train: {folder}/train.jsonl }}
train: {{ max_steps: 5, epochs: 50, global_batch_size: 4 }}
output: {{ dir: {folder}/run }}
"""


def expect(what, holds, detail=""):
    if not holds:
        sys.exit(f"{what}: {detail}")
    print(f"ok   {what}", flush=True)


def write_inputs(folder):
    records = [{"messages": [{"role": "user", "content": f"What comes after {n}?"},
                             {"role": "assistant", "content": f"The answer is {n + 1}."}]} for n in range(24)]
    (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "run.yaml").write_text(RUN.format(model=ROOT / "tests/data/models/tied-gqa", folder=folder))


def losses_of(folder):
    return {line["step"]: float(np.float32(line["loss"])) for line in map(json.loads, (folder / "run/metrics.jsonl").read_text().splitlines())}


def get(url):
    with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
        return json.load(answer)


def get_when(url, holds):
    """The answer as soon as it holds: TensorBoard reads files every few seconds."""
    deadline, answer = time.monotonic() + TIMEOUT, None
    while time.monotonic() < deadline:
        try:
            answer = get(url)
            if holds(answer):
                return answer
        except (urllib.error.URLError, ConnectionError):
            pass
        time.sleep(0.1)
    sys.exit(f"{url}: {answer}")


def two_ports_of_others(stack):
    """@return the first of two neighbours: a program listens on it, and another has the second, but does not listen yet."""
    while True:
        first, second = (stack.enter_context(socket.socket()) for _ in range(2))
        first.bind(("127.0.0.1", 0))
        try:
            second.bind(("127.0.0.1", first.getsockname()[1] + 1))
        except (OSError, OverflowError):
            continue
        first.listen()
        return first.getsockname()[1]


def check_what_is_served(data, folder):
    values = get_when(f"{data}/plugin/scalars/tags", lambda runs: "train/loss" in runs.get("tensorboard", {}))["tensorboard"]
    expect("tags of every kind", {"time/forward", "rank_0/cpu_utilization", "train/learning_rate"} <= values.keys(), values)
    shown = get_when(f"{data}/plugin/scalars/scalars?run=tensorboard&tag=train/loss", lambda points: len(points) == 5)
    expect("the losses", {step: value for _, step, value in shown} == losses_of(folder), (shown, losses_of(folder)))
    texts = get(f"{data}/plugin/text/tags")
    expect("the configuration", texts.get("tensorboard") == ["config"], texts)


def check_tensorboard(sftrun, folder):
    with contextlib.ExitStack() as stack:
        taken = two_ports_of_others(stack)
        # Trains, and goes on until this test has seen what it wants.
        words = f"'{sftrun}' train --config run.yaml --device cpu >/dev/null 2>&1 && until [ -e seen ]; do sleep 0.1; done; exit 7"
        path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
        script = subprocess.Popen([ROOT / "scripts/with_tensorboard.sh", "run", "sh", "-c", words], cwd=folder, stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, env=os.environ | {"PATH": path, "TENSORBOARD_PORT": str(taken)})
        said = script.stdout.readline() + script.stdout.readline()
        found = re.search(r"TensorBoard: http://localhost:(\d+) \(run\)", said)
        expect("another port than those that are taken", f"port {taken} is taken" in said and found and int(found[1]) > taken + 1, said)
        data = f"http://localhost:{found[1]}/data"
        check_what_is_served(data, folder)
        (folder / "seen").touch()
        output, errors = script.communicate(timeout=TIMEOUT)
        expect("the exit code is the command's", script.returncode == 7, (script.returncode, output, errors))
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        try:
            get(f"{data}/plugins_listing")
        except (urllib.error.URLError, ConnectionError):
            break
        time.sleep(0.1)
    else:
        sys.exit("TensorBoard was not ended")
    print("ok   TensorBoard ends with the command", flush=True)


def to_mlflow(folder, *directories):
    return subprocess.run([sys.executable, ROOT / "scripts/to_mlflow.py", *directories, "--tracking-uri", f"file:{folder}/mlruns"], cwd=folder,
                          capture_output=True, text=True, timeout=TIMEOUT)


def check_mlflow(folder):
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # of this test's own client
    import mlflow
    for _ in range(2):
        done = to_mlflow(folder, "run")
        expect("a copy into MLflow", done.returncode == 0 and "metrics" in done.stdout, done.stdout + done.stderr)
    client = mlflow.MlflowClient(tracking_uri=f"file:{folder}/mlruns")
    runs = client.search_runs([client.get_experiment_by_name("sftrun").experiment_id])
    expect("the second copy replaces the first", len(runs) == 1 and runs[0].info.run_name == "run", runs)
    run = runs[0]
    losses = {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, "train/loss")}
    expect("the losses in MLflow", losses == losses_of(folder), losses)
    expect("the settings in MLflow", run.data.params["tuning.lora.r"] == "4.0" and run.data.params["train.optimizer"] == "adamw", run.data.params)
    text = mlflow.artifacts.load_text(f"{run.info.artifact_uri}/texts/config/step-000000.md")
    expect("the texts in MLflow", "max_steps: 5" in text, text)
    shutil.rmtree(folder / "run/tensorboard")
    done = to_mlflow(folder, "run")
    runs = client.search_runs([client.get_experiment_by_name("sftrun").experiment_id])
    losses = {metric.step: float(np.float32(metric.value)) for metric in client.get_metric_history(runs[0].info.run_id, "train/loss")}
    expect("a copy of metrics.jsonl", done.returncode == 0 and len(runs) == 1 and losses == losses_of(folder), done.stdout + done.stderr)
    expect("its settings", runs[0].data.params["tuning.lora.r"] == "4", runs[0].data.params)
    wrong = to_mlflow(folder, "nowhere")
    expect("a directory that is no run is refused", wrong.returncode == 2 and "nowhere has neither event files nor metrics.jsonl" in wrong.stderr, wrong.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    sftrun = parser.parse_args().sftrun.resolve()
    with tempfile.TemporaryDirectory(prefix="sftrun-trackers-") as folder:
        write_inputs(pathlib.Path(folder))
        check_tensorboard(sftrun, pathlib.Path(folder))
        check_mlflow(pathlib.Path(folder))


if __name__ == "__main__":
    main()
