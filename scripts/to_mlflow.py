#!/usr/bin/env python3
"""Copies runs into MLflow: scalars, settings and texts of a run directory's TensorBoard files, or without them its metrics.jsonl and
config.resolved.yaml. See docs/experiment-trackers.md.

    pip install tensorboard mlflow-skinny        # or mlflow, which also has the web page
    scripts/to_mlflow.py runs/run_lora [runs/… …] [--tracking-uri URI] [--experiment NAME]

Each run directory becomes one MLflow run with its name. The settings are its parameters, texts its artifacts. Copied again, for example
while the run goes on, the copy replaces the earlier one, which MLflow keeps as deleted.
"""

import argparse
import json
import os
import pathlib
import sys

from to_tracker import settings_of, values_of

MAX_METRICS, MAX_PARAMETERS = 1000, 100  # of one request, https://mlflow.org/docs/latest/rest-api.html
MAX_OF_A_VALUE = 6000                     # characters of a parameter
DIRECTORY_TAG = "sftrun.run_directory"

try:
    # A folder of files suffices for a copy. MLflow 3.17 refuses it unless this is set.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    import mlflow
    from mlflow.entities import Metric, Param
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata as hparams
except ImportError as missing:
    sys.exit(f"error: {missing.name} is not installed\n  fix: pip install tensorboard mlflow-skinny")


def fail(message, fix):
    print(f"error: {message}\n  fix: {fix}", file=sys.stderr)
    sys.exit(2)


def read_events(run_directory):
    """All events of a run, also of the files that a resumed run has begun."""
    events = EventAccumulator(str(run_directory / "tensorboard"), size_guidance={"scalars": 0, "tensors": 0})
    events.Reload()
    return events


def metrics_of(events):
    return [Metric(tag, event.value, int(event.wall_time * 1000), event.step)
            for tag in events.Tags()["scalars"] for event in events.Scalars(tag)]


def parameters_of(events):
    if hparams.SESSION_START_INFO_TAG not in events.Tags()["tensors"]:
        return []
    content = events.SummaryMetadata(hparams.SESSION_START_INFO_TAG).plugin_data.content
    settings = hparams.parse_session_start_info_plugin_data(content).hparams
    return [Param(name, str(getattr(value, value.WhichOneof("kind")))[:MAX_OF_A_VALUE]) for name, value in sorted(settings.items())]


def texts_of(events):
    """Name and text of each text of each step."""
    for tag in events.Tags()["tensors"]:
        if events.SummaryMetadata(tag).plugin_data.plugin_name == "text":
            for event in events.Tensors(tag):
                text = "\n\n".join(part.decode("utf-8", "replace") for part in event.tensor_proto.string_val)
                yield f"texts/{tag}/step-{event.step:06}.md", text


def has_events(run_directory):
    return any((run_directory / "tensorboard").glob("events.out.tfevents.*"))


def metrics_of_lines(run_directory):
    """Lines have no time: that of the beginning and how long steps took give it."""
    metrics, report = [], run_directory / "run.json"
    now = json.loads(report.read_text()).get("started_at", 0) if report.is_file() else 0
    for text in (run_directory / "metrics.jsonl").read_text().splitlines():
        line = json.loads(text)
        now += line.get("step_seconds", line.get("eval_seconds", 0))
        metrics += [Metric(name, float(value), int(now * 1000), line["step"]) for name, value in values_of(line).items()]
    return metrics


def flat(settings, prefix=""):
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield Param(prefix + name, str(value)[:MAX_OF_A_VALUE])


def contents_of(run_directory):
    """Metrics, parameters and texts."""
    if not has_events(run_directory):
        return metrics_of_lines(run_directory), list(flat(settings_of(run_directory))), []
    events = read_events(run_directory)
    return metrics_of(events), parameters_of(events), texts_of(events)


def copy(client, experiment, run_directory):
    metrics, parameters, texts = contents_of(run_directory)
    name = str(run_directory.resolve())
    earlier = client.search_runs([experiment], filter_string=f"tags.`{DIRECTORY_TAG}` = '{name}'")
    first = min((metric.timestamp for metric in metrics), default=None)
    run = client.create_run(experiment, start_time=first, run_name=run_directory.resolve().name,
                            tags={DIRECTORY_TAG: name}).info.run_id
    for begin in range(0, len(metrics), MAX_METRICS):
        client.log_batch(run, metrics=metrics[begin:begin + MAX_METRICS])
    for begin in range(0, len(parameters), MAX_PARAMETERS):
        client.log_batch(run, params=parameters[begin:begin + MAX_PARAMETERS])
    for path, text in texts:
        client.log_text(run, text, path)
    client.set_terminated(run, end_time=max((metric.timestamp for metric in metrics), default=None))
    for old in earlier:
        client.delete_run(old.info.run_id)
    print(f"{run_directory}: {len(metrics)} values of {len({metric.key for metric in metrics})} metrics, {len(parameters)} parameters -> MLflow run {run}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_directories", nargs="+", type=pathlib.Path, metavar="RUN_DIRECTORY")
    parser.add_argument("--tracking-uri", help="a folder (file:./mlruns), a database (sqlite:///mlflow.db) or a server (http://…) "
                        "[MLFLOW_TRACKING_URI, else MLflow's default]")
    parser.add_argument("--experiment", default="sftrun", help="[sftrun]")
    options = parser.parse_args()
    for directory in options.run_directories:
        if not has_events(directory) and not (directory / "metrics.jsonl").is_file():
            fail(f"{directory} has neither event files nor metrics.jsonl", "name a run directory of `sftrun train`")
        if "'" in str(directory.resolve()):
            fail(f"{directory}: MLflow cannot search for a path with a quotation mark", "rename the directory")
    client = mlflow.MlflowClient(tracking_uri=options.tracking_uri)
    found = client.get_experiment_by_name(options.experiment)
    experiment = found.experiment_id if found else client.create_experiment(options.experiment)
    for directory in options.run_directories:
        copy(client, experiment, directory)


if __name__ == "__main__":
    main()
