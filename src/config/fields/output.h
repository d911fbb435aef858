#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

template <class Visitor>
void visit_fields(OutputConfig& output, Visitor&& field) {
  using enum OnResume;
  field(output.dir, "dir", a_path().otherwise("runs/<name of the YAML file>"), kAny,
        "Run directory.", "runs/first");
  field(output.report_to, "report_to", any(), kAny,
        "Where metrics go while the run trains: tensorboard, jsonl, mlflow, wandb, trackio "
        "(docs/experiment-trackers.md). metrics.jsonl is always written, with or without `jsonl`.",
        "[tensorboard, mlflow]");
  field(output.tensorboard, "tensorboard", any(), kAny,
        "Write TensorBoard event files; false is `report_to` without tensorboard.", "true");
}

template <class Visitor>
void visit_fields(TrackingConfig& tracking, Visitor&& field) {
  using enum OnResume;
  field(tracking.project, "project", any().otherwise("the tracker's variable, else sftrun"), kAny,
        "Experiment (MLflow) or project (Weights & Biases, Trackio).", "my-project");
  field(tracking.name, "name",
        any().otherwise("the tracker's variable, else the name of the run directory"), kAny,
        "Name of the run.", "first");
  field(tracking.uri, "uri", any().otherwise("MLFLOW_TRACKING_URI"), kAny,
        "Address of the MLflow server. Its token or password is read from the environment.",
        "http://localhost:5000");
}

template <class Visitor>
void visit_fields(CallbacksConfig& callbacks, Visitor&& field) {
  using enum OnResume;
  field(callbacks.command, "command", any().otherwise("none"), kAny,
        "A command that rank 0 starts with `sh -c` at events of the run, which it reads as JSON "
        "from its standard input and in SFTRUN_ variables (docs/callbacks.md).",
        "'./notify.sh \"$SFTRUN_EVENT\"'");
  field(callbacks.events, "events", any(), kAny,
        "Events that start the command: checkpoint, evaluation, end, failure.", "[end, failure]");
  field(callbacks.timeout, "timeout", any(), kAny,
        "Time after which a command is ended (90s, 10m; a number alone is seconds).", "5m");
}

}  // namespace sftrun::config
