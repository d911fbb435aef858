#pragma once

#include "fields/limits.h"
#include "sftrun/config/run_config.h"

namespace sftrun::config {

template <class Visitor>
void visit_fields(OutputConfig& output, Visitor&& field) {
  using enum OnResume;
  field(output.dir, "dir", a_path().otherwise("runs/<name of the YAML file>"), kAny,
        "Run directory.", "runs/first");
  field(output.tensorboard, "tensorboard", any(), kAny, "Write TensorBoard event files.", "true");
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
