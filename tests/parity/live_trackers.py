#!/usr/bin/env python3
"""Experiment trackers get a run while it trains (output.report_to). No network.

    tests/parity/live_trackers.py --sftrun build/bin/sftrun 
    tests/parity/live_trackers.py --sftrun build/bin/sftrun --real .venv-trackers/bin/python

A small server keeps runs as MLflow does, with its limits, and can fail in several ways:
- each value of metrics.jsonl arrives once, with its step; settings, status and link are there
- the requests are those of mlflow-skinny's own client: methods, paths and keys
- a server that is down, refuses, loses answers or hangs changes neither losses nor the exit code, and what it missed arrives when it is back
- a run that was killed and resumed is one run, in which no step appears twice
- a package that is not installed is one warning

--real PYTHON: an environment with mlflow, wandb and trackio. A run and its continuation arrive in MLflow's own server, and both packages write
their files without a network.
"""

import argparse
import collections
import contextlib
import http.server
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
from to_tracker import values_of  # noqa: E402

TIMEOUT = 120  # s
RUN = """\
model: {{ name: {model}, max_seq_len: 128 }}
tuning: {{ lora: {{ r: 4, target_modules: [q_proj, v_proj] }} }}
data: {{ train: {folder}/train.jsonl, val: {folder}/train.jsonl }}
train: {{ max_steps: 5, epochs: 50, global_batch_size: 4, eval_steps: 2, scheduler: constant, save_steps: 1 }}
output: {{ dir: {folder}/run, report_to: [mlflow] }}
"""


def expect(what, holds, detail=""):
    if not holds:
        sys.exit(f"{what}: {detail}")
    print(f"ok   {what}", flush=True)


class MlflowServer(http.server.ThreadingHTTPServer):
    """What the REST API of MLflow answers. `fault(path)` says how a request fails: a status, "hang", or "lost" (done, but not answered)."""
    daemon_threads = True

    def __init__(self, port=0, fault=lambda path: None):
        super().__init__(("127.0.0.1", port), Handler)
        self.fault, self.lock = fault, threading.Lock()
        self.experiments, self.runs, self.requests = {}, {}, []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request, client_address):
        pass

    def answer(self, call, data):
        with self.lock:
            return getattr(self, call.replace("/", "_").replace("-", "_"))(data)

    def experiments_get_by_name(self, data):
        if data["experiment_name"] not in self.experiments:
            return 404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such experiment"}
        return 200, {"experiment": {"experiment_id": self.experiments[data["experiment_name"]], "name": data["experiment_name"]}}

    def experiments_create(self, data):
        self.experiments[data["name"]] = str(len(self.experiments) + 1)
        return 200, {"experiment_id": self.experiments[data["name"]]}

    def info(self, run_id):
        run = self.runs[run_id]
        return {"info": {"run_id": run_id, "run_uuid": run_id, "experiment_id": run["experiment_id"], "status": run["status"],
                         "artifact_uri": "file:/nowhere", "lifecycle_stage": "active", "start_time": 1},
                "data": {"metrics": [{"key": key, "value": max(points)[2], "timestamp": 1, "step": max(points)[0]}
                                     for key, points in run["metrics"].items()]}}

    def runs_create(self, data):
        run_id = f"run{len(self.runs)}"
        self.runs[run_id] = {"experiment_id": data["experiment_id"], "name": data["run_name"], "status": "RUNNING", "params": {},
                             "tags": {tag["key"]: tag["value"] for tag in data["tags"]}, "metrics": collections.defaultdict(list)}
        return 200, {"run": self.info(run_id)}

    def runs_get(self, data):
        return 200, {"run": self.info(data["run_id"])}

    def runs_search(self, data):
        wanted = data["filter"].split("'")[1]
        return 200, {"runs": [self.info(run_id) for run_id, run in self.runs.items() if wanted in run["tags"].values()]}

    def runs_log_batch(self, data):
        run, metrics, params = self.runs[data["run_id"]], data.get("metrics", []), data.get("params", [])
        names = [metric["key"] for metric in metrics]
        assert len(metrics) <= 1000 and len(params) <= 100 and all(len(param["value"]) <= 6000 for param in params), "limits"
        assert not any(name.startswith("/") or "//" in name for name in names), names
        for metric in metrics:
            run["metrics"][metric["key"]].append((metric["step"], metric["timestamp"], metric["value"]))
        for param in params:
            assert run["params"].setdefault(param["key"], param["value"]) == param["value"], param
        return 200, {}

    def runs_update(self, data):
        self.runs[data["run_id"]]["status"] = data["status"]
        return 200, {"run_info": self.info(data["run_id"])["info"]}


class Handler(http.server.BaseHTTPRequestHandler):
    def handle_any(self):
        url = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        data = json.loads(body) if body else dict(urllib.parse.parse_qsl(url.query))
        call = url.path.removeprefix("/api/2.0/mlflow/")
        self.server.requests.append((self.command, call, data, dict(self.headers)))
        fault = self.server.fault(call)
        if fault == "hang":
            time.sleep(TIMEOUT)
        status, answer = (fault, {"message": "as the test wants"}) if isinstance(fault, int) else self.server.answer(call, data)
        if fault == "lost":
            return self.connection.shutdown(socket.SHUT_RDWR)
        text = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_PATCH = handle_any

    def log_message(self, *words):
        pass


class Program:
    def __init__(self, sftrun, folder):
        self.sftrun, self.folder = sftrun, folder
        records = [{"messages": [{"role": "user", "content": f"What comes after {n}?"},
                                 {"role": "assistant", "content": f"The answer is {n + 1}."}]} for n in range(24)]
        (folder / "train.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
        (folder / "run.yaml").write_text(RUN.format(model=ROOT / "tests/data/models/tied-gqa", folder=folder))

    def start(self, name, *words, uri="", **variables):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MLFLOW_", "WANDB_", "TRACKIO_", "VIRTUAL_ENV"))}
        command = [self.sftrun, "train", "--config", "run.yaml", "--device", "cpu", f"output.dir={self.folder / name}", *words]
        return subprocess.Popen(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                env=clean | {"MLFLOW_TRACKING_URI": uri} | variables)

    def train(self, name, *words, code=0, **options):
        """@return what it said"""
        run = self.start(name, *words, **options)
        said, _ = run.communicate(timeout=TIMEOUT)
        expect(f"{name}: exit code {code}", run.returncode == code, said)
        return said

    def lines(self, name):
        return [json.loads(text) for text in (self.folder / name / "metrics.jsonl").read_text().splitlines()]

    def losses(self, name):
        return [line["loss"] for line in self.lines(name) if "loss" in line]


def points_of_file(lines):
    """(metric, step, value) of each value of metrics.jsonl."""
    return sorted((key, line["step"], float(value)) for line in lines for key, value in values_of(line).items())


def points_of(run):
    return sorted((key, step, value) for key, points in run["metrics"].items() for step, _, value in points)


def check_whole_run(what, program, name, server):
    expect(f"{what}: one run", len(server.runs) == 1, server.runs)
    run = next(iter(server.runs.values()))
    wanted, got = points_of_file(program.lines(name)), points_of(run)
    expect(f"{what}: each value once", wanted == got, (set(wanted) ^ set(got), len(wanted), len(got)))
    expect(f"{what}: FINISHED", run["status"] == "FINISHED", run["status"])
    return run


def check_plain(program):
    server = MlflowServer()
    said = program.train("plain", "output.tracking.project=mine", "output.tracking.name=first", uri=server.uri)
    run = check_whole_run("MLflow", program, "plain", server)
    expect("names", run["name"] == "first" and "mine" in server.experiments, (run["name"], server.experiments))
    expect("settings", run["params"]["tuning.lora.r"] == "4" and run["params"]["train.scheduler"] == "constant", run["params"])
    times = [point[1] for point in sorted(run["metrics"]["train/loss"])]
    expect("times", times == sorted(times) and abs(times[-1] / 1000 - time.time()) < TIMEOUT, times)
    noted = json.loads((program.folder / "plain/run.json").read_text())["trackers"]["mlflow"]
    expect("the link", noted["url"] in said and noted["url"].endswith("/runs/run0"), (noted, said))
    expect("no event files", not (program.folder / "plain/tensorboard").exists())
    return server


def shapes(requests):
    return {(method, call, part, *(sorted(data[part][0]) if part in ("metrics", "params", "tags") and data[part] else ()))
            for method, call, data, _ in requests for part in data}


def check_requests(server):
    """Those of the client of MLflow have the same methods, paths and keys, and more keys that are optional."""
    import mlflow
    from mlflow.entities import Metric, Param
    peer = MlflowServer()
    client = mlflow.MlflowClient(tracking_uri=peer.uri)
    if client.get_experiment_by_name("mine") is None:
        experiment = client.create_experiment("mine")
    run_id = client.create_run(experiment, start_time=1, run_name="first", tags={"a": "b"}).info.run_id
    client.log_batch(run_id, metrics=[Metric("a", 1.0, 1, 1)])
    client.log_batch(run_id, params=[Param("a", "b")])
    client.set_terminated(run_id)
    ours, theirs = shapes(server.requests), shapes(peer.requests)
    expect("the requests of MLflow's client", ours <= theirs, ours - theirs)


def check_sign_in(program):
    server = MlflowServer()
    program.train("token", uri=server.uri, MLFLOW_TRACKING_TOKEN="abc")
    expect("a token", {headers.get("Authorization") for *_, headers in server.requests} == {"Bearer abc"})
    server = MlflowServer()
    program.train("password", uri=server.uri, MLFLOW_TRACKING_USERNAME="me", MLFLOW_TRACKING_PASSWORD="secret")
    expect("a password", {headers.get("Authorization") for *_, headers in server.requests} == {"Basic bWU6c2VjcmV0"})


def check_faults(program):
    plain = program.losses("plain")

    def same(name, said, server=None):
        expect(f"{name}: the same losses", program.losses(name) == plain, program.losses(name))
        expect(f"{name}: one warning", said.count("gets no metrics for now") == 1, said)
        if server is not None:
            check_whole_run(name, program, name, server)
        else:
            expect(f"{name}: how to send the rest", f"scripts/to_mlflow.py {program.folder / name}" in said, said)

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{free.getsockname()[1]}"
    began = time.monotonic()
    same("down", program.train("down", uri=nowhere))
    expect("down: nobody waits", time.monotonic() - began < 30, time.monotonic() - began)
    for status in (500, 429, 403):
        failures = iter([status] * 2)
        server = MlflowServer(fault=lambda path, failures=failures: next(failures, None))
        same(f"status{status}", program.train(f"status{status}", uri=server.uri), server)
    calls = collections.Counter()

    def loses(path):
        calls[path] += 1
        return "lost" if path in ("runs/create", "runs/log-batch") and calls[path] in (1, 3) else None
    server = MlflowServer(fault=loses)
    said = program.train("lost", uri=server.uri)
    expect("lost: the same losses", program.losses("lost") == plain)
    check_whole_run("lost", program, "lost", server)
    began = time.monotonic()
    said = program.train("hangs", uri=MlflowServer(fault=lambda path: "hang").uri)
    expect("hangs: the same losses", program.losses("hangs") == plain)
    expect("hangs: how to send the rest", f"scripts/to_mlflow.py {program.folder / 'hangs'}" in said, said)
    expect("hangs: at most some seconds", time.monotonic() - began < 40, time.monotonic() - began)


def check_kill_and_resume(program):
    server = MlflowServer()
    words = ["train.max_steps=400", "train.eval_steps=200", "train.save_steps=1"]  # a run without a checkpoint would begin anew
    run = program.start("killed", *words, uri=server.uri)
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline and not (server.runs and max(server.runs["run0"]["metrics"]["train/loss"], default=(0,))[0] >= 3):
        time.sleep(0.02)
    run.send_signal(signal.SIGKILL)
    run.communicate(timeout=TIMEOUT)
    done = max(step for step, *_ in server.runs["run0"]["metrics"]["train/loss"])
    expect("killed while it trains", 3 <= done < 400, done)
    program.train("killed", f"train.max_steps={done + 20}", *words[1:], uri=server.uri)
    expect("killed: one run", len(server.runs) == 1, server.runs)
    steps = sorted(step for step, *_ in server.runs["run0"]["metrics"]["train/loss"])
    expect("killed: each step once", steps == list(range(1, done + 21)), steps)
    expect("killed: FINISHED", server.runs["run0"]["status"] == "FINISHED")


def check_missing(program):
    said = program.train("missing", "output.report_to=[wandb]")
    expect("a package that is missing", "pip install wandb" in said and f"scripts/to_tracker.py wandb {program.folder / 'missing'}" in said, said)
    said = program.train("no-server", "output.report_to=[mlflow]")
    expect("no server is named", "set output.tracking.uri or MLFLOW_TRACKING_URI" in said, said)


def wait_for(url):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    sys.exit(f"{url} does not answer")


def check_real_mlflow(program, python):
    import mlflow
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    uri = f"http://127.0.0.1:{port}"
    log = open(program.folder / "server.log", "w")
    server = subprocess.Popen([python, "-m", "mlflow", "server", "--port", str(port), "--backend-store-uri", f"sqlite:///{program.folder}/db",
                               "--default-artifact-root", str(program.folder / "artifacts"), "--workers", "1"], cwd=program.folder,
                              stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"{uri}/health")
        program.train("real", uri=uri)
        program.train("real", "train.max_steps=7", uri=uri)
        client = mlflow.MlflowClient(tracking_uri=uri)
        runs = client.search_runs([client.get_experiment_by_name("sftrun").experiment_id])
        expect("MLflow's server: one run", len(runs) == 1 and runs[0].info.status == "FINISHED" and runs[0].info.run_name == "real", runs)
        got = sorted((key, metric.step, metric.value) for key in runs[0].data.metrics
                     for metric in client.get_metric_history(runs[0].info.run_id, key))
        expect("MLflow's server: each value once", got == points_of_file(program.lines("real")), got)
        expect("MLflow's server: settings", runs[0].data.params["tuning.lora.r"] == "4", runs[0].data.params)
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()


def check_real_packages(program, python):
    environment = {"VIRTUAL_ENV": str(pathlib.Path(python).parent.parent), "HOME": str(program.folder), "TRACKIO_DIR": str(program.folder / "trackio")}
    said = program.train("packages", "output.report_to=[wandb, trackio]", "train.max_steps=300", "train.eval_steps=100", **environment)
    noted = json.loads((program.folder / "packages/run.json").read_text())["trackers"]
    expect("files of Weights & Biases", noted["wandb"]["sync"].startswith("wandb sync ") and noted["wandb"]["sync"] in said, (noted, said))
    files = list(pathlib.Path(noted["wandb"]["sync"].removeprefix("wandb sync ")).glob("*.wandb"))
    expect("an offline run", len(files) == 1 and files[0].stat().st_size > 1000, files)
    expect("Trackio has its run", noted["trackio"]["id"].startswith("packages"), noted)
    show = subprocess.run([python, "-m", "trackio.cli", "get", "metric", "--project", "sftrun", "--run", noted["trackio"]["id"], "--metric",
                           "train/loss", "--json"], env=os.environ | environment, capture_output=True, text=True, timeout=TIMEOUT)
    values = [point["value"] for point in json.loads(show.stdout)["values"]] if show.returncode == 0 else show.stderr
    expect("Trackio has the losses", values == program.losses("packages"), values)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sftrun", required=True, type=pathlib.Path)
    parser.add_argument("--real", help="Python with mlflow, wandb and trackio")
    options = parser.parse_args()
    if options.real and not pathlib.Path(options.real).exists():
        print(f"skipped: {options.real} does not exist (scripts/bootstrap.sh --trackers)")
        sys.exit(77)
    with tempfile.TemporaryDirectory(prefix="sftrun-live-trackers-") as folder:
        program = Program(options.sftrun.resolve(), pathlib.Path(folder))
        if options.real:
            check_real_mlflow(program, options.real)
            check_real_packages(program, options.real)
            return
        server = check_plain(program)
        check_requests(server)
        check_sign_in(program)
        check_faults(program)
        check_kill_and_resume(program)
        check_missing(program)


if __name__ == "__main__":
    main()
