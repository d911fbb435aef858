#pragma once

#include "fields/data.h"
#include "fields/model.h"
#include "fields/output.h"
#include "fields/parallel.h"
#include "fields/rollouts.h"
#include "fields/train.h"
#include "fields/tuning.h"
#include "sftrun/config/run_config.h"

/// Every field of the configuration, once: its name, its limits, whether it may change when a run
/// resumes, what it means, an example. YAML, overrides, environment, JSON, validation, a run's
/// identity, docs/configuration.md and the JSON Schema are visitors over this list; defaults are in
/// run_config.h.
namespace sftrun::config {

/// Calls `section(name, part, help)` for every section, a section before those inside it.
template <class Visitor>
void visit_sections(RunConfig& config, Visitor&& section) {
  section("model", config.model, "The base model.");
  section("tuning", config.tuning, "What is trained, and the format of the base.");
  section("tuning.lora", config.tuning.lora, "LoRA, for the modes lora and qlora.");
  section("data", config.data, "Training and validation data.");
  section("train", config.train, "Optimization, evaluation and checkpoints.");
  section("train.rollouts", config.train.rollouts,
          "Answers that the model writes between steps, and is trained on (docs/grpo.md, "
          "docs/distillation.md).");
  section("parallel", config.parallel, "Distributed training.");
  section("parallel.offload", config.parallel.offload,
          "What a GPU keeps in host memory, which is locked for fast copies. Losses stay the "
          "same.");
  section("output", config.output, "Output files.");
  section("output.tracking", config.output.tracking, "Names for experiment trackers.");
  section("callbacks", config.callbacks, "A command at events of the run.");
}

}  // namespace sftrun::config
