#!/usr/bin/env python3
"""Sends a run to Weights & Biases or Trackio. See docs/experiment-trackers.md.

    pip install wandb        # or trackio
    scripts/to_tracker.py wandb runs/run_lora [--project NAME] [--name NAME]

`sftrun train` holds this file, too: with `output.report_to: [wandb]` it starts it as a program that reads lines of JSON and answers each.
The first line has the names, then there is a line for each of metrics.jsonl, and the last one says how the run ended.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import uuid

PARTS = ("data", "forward", "backward", "communication", "optimizer", "other")


class Wandb:
    def begin(self, names, settings):
        import wandb
        self.run_id = names.get("id") or uuid.uuid4().hex[:12]
        mode = os.environ.get("WANDB_MODE")
        if not mode and not wandb.api.api_key:
            mode = "offline"
            print("wandb: not logged in (`wandb login`, WANDB_API_KEY), so the run is written to files", file=sys.stderr)
        self.run = wandb.init(project=names["project"], name=names["name"], id=self.run_id, resume="allow", mode=mode, config=settings,
                              dir=os.environ.get("WANDB_DIR") or names["run_dir"], settings=wandb.Settings(console="off"))
        noted = {"id": self.run_id}
        if self.run.url:
            noted["url"] = self.run.url
        elif mode == "offline":
            noted["sync"] = f"wandb sync {pathlib.Path(self.run.dir).parent}"
        return noted

    def log(self, step, values):
        self.run.log(values, step=step)

    def end(self, status):
        self.run.finish(exit_code=0 if status == "finished" else 1)


class Trackio:
    def begin(self, names, settings):
        import trackio
        self.trackio = trackio
        name = names.get("id") or f"{names['name']}-{time.strftime('%Y%m%d-%H%M%S')}"
        trackio.init(project=names["project"], name=name, config=settings, resume="allow", embed=False, auto_log_gpu=False, auto_log_cpu=False)
        return {"id": name, "show": f"trackio show --project {names['project']}"}

    def log(self, step, values):
        self.trackio.log(values, step=step)

    def end(self, status):
        self.trackio.finish()


TRACKERS = {"wandb": Wandb, "trackio": Trackio}


def values_of(line):
    """The values of a line of metrics.jsonl, named as in the TensorBoard files."""
    is_evaluation = "eval_loss" in line or "eval_seconds" in line
    values = {}
    for key, value in line.items():
        if isinstance(value, list):
            values.update({f"rank_{rank}/{key.removesuffix('_per_rank')}": one for rank, one in enumerate(value)})
        elif isinstance(value, dict):
            values.update({f"eval/loss/{name}": one for name, one in value.items()})
        elif is_evaluation:
            values["eval/" + key.removeprefix("eval_")] = value
        elif key.removesuffix("_seconds") in PARTS and key.endswith("_seconds"):
            values["time/" + key.removesuffix("_seconds")] = value
        else:
            values["train/" + key] = value
    return {name: value for name, value in values.items()
            if name not in ("train/step", "eval/step") and isinstance(value, (int, float)) and not isinstance(value, bool)}


def settings_of(run_directory):
    """config.resolved.yaml; {} without PyYAML."""
    try:
        import yaml
        return yaml.safe_load((run_directory / "config.resolved.yaml").read_text())
    except (ImportError, OSError):
        return {}


def answer_lines(tracker):
    """Standard output is for answers: what the package prints goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for text in sys.stdin:
        line, answer = json.loads(text), {}
        if "begin" in line:
            try:
                answer = tracker.begin(line["begin"], line["settings"])
            except ImportError as missing:
                answer = {"missing": missing.name}
        elif "end" in line:
            tracker.end(line["end"])
        else:
            tracker.log(line["step"], line["values"])
        print(json.dumps(answer), file=answers)


def send(tracker, run_directory, project, name):
    names = {"project": project, "name": name or run_directory.resolve().name, "run_dir": str(run_directory)}
    noted = tracker.begin(names, settings_of(run_directory))
    lines = [json.loads(text) for text in (run_directory / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        tracker.log(line["step"], values_of(line))
    tracker.end("finished")
    print(f"{run_directory}: {len(lines)} lines -> " + ", ".join(f"{key} {value}" for key, value in noted.items()))


def main():
    if sys.argv[2:] == ["--answer-lines"]:
        return answer_lines(TRACKERS[sys.argv[1]]())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tracker", choices=TRACKERS)
    parser.add_argument("run_directories", nargs="+", type=pathlib.Path, metavar="RUN_DIRECTORY")
    parser.add_argument("--project", default="sftrun", help="[sftrun]")
    parser.add_argument("--name", help="[that of the run directory]")
    options = parser.parse_args()
    for directory in options.run_directories:
        if not (directory / "metrics.jsonl").is_file():
            sys.exit(f"error: {directory} has no metrics.jsonl\n  fix: name a run directory of `sftrun train`")
        try:
            send(TRACKERS[options.tracker](), directory, options.project, options.name)
        except ImportError as missing:
            sys.exit(f"error: {missing.name} is not installed\n  fix: pip install {options.tracker}")


if __name__ == "__main__":
    main()
