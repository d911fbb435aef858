#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "commands.h"
#include "planned_images.h"
#include "run_check.h"
#include "run_resolution.h"
#include "sftrun/plan/answers_memory.h"
#include "sftrun/plan/memory_change.h"
#include "sftrun/plan/memory_plan.h"

/// What `sftrun memory-check --config` finds out and prints.
namespace sftrun::app {

/// The devices of a plan.
struct PlannedDevices {
  RunPlace place;    ///< `devices.memory_bytes`: of the smallest device
  std::string text;  ///< "2 x RTX 4090"
  bool are_here = false;
};

struct StrategyRow {
  plan::StrategyChoice choice;
  std::optional<plan::MemoryPlan> plan;  ///< null: refused
};

struct MemoryReport {
  config::RunConfig config;  ///< resolved
  spec::ArchSpec arch;
  PlannedDevices devices;
  plan::MemoryPlan plan;
  std::optional<plan::AnswersMemory> answers;  ///< null: evaluations write none
  std::vector<plan::LayerKind> kinds;
  std::vector<StrategyRow> strategies;
  int64_t largest_batch_size = 0;          ///< with sequences of model.max_seq_len tokens
  int64_t largest_batch_size_of_data = 0;  ///< with the sequences of the run's data
  plan::LongestSequences longest;
  std::optional<plan::CheapestChange> change;  ///< null: the run fits, or no change is enough
  std::vector<std::string> notes;
  std::optional<PlannedImages> images;  ///< of the flags
  std::string images_of_data;  ///< see plan_images_of_data; empty: the flags', or texts alone

  int64_t memory_bytes() const { return static_cast<int64_t>(devices.place.devices.memory_bytes); }
  /// Whether a step does.
  bool fits() const { return plan.needed() <= memory_bytes(); }
  bool answers_fit() const { return !answers || answers->peak() <= memory_bytes(); }
};

/// The devices that the flags name.   @throws ConfigError for unknown cards, or if there are none
PlannedDevices planned_devices(const TrainOptions& options, const config::RunConfig& config);

/// Reads configuration and model.   @throws as `sftrun train --dry-run`, data left out; with images ConfigError
/// for a model that reads text alone
MemoryReport memory_report(const TrainOptions& options,
                           const std::optional<PlannedImages>& images = {});

std::string as_text(const MemoryReport& report);
nlohmann::ordered_json as_json(const MemoryReport& report);

/// As in the YAML: "true" for whole layers.
std::string checkpointing_word(config::Checkpointing again);

/// What docs/memory.md says of the error of a plan: a share of the tensors, and bytes of the process.
inline constexpr double kTensorError = 0.05;
int64_t process_error_bytes(bool on_gpu);

}  // namespace sftrun::app
