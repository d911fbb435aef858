#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "sftrun/config/base_record.h"
#include "sftrun/config/run_config.h"
#include "sftrun/export/run_result.h"
#include "sftrun/observe/run_report.h"
#include "sftrun/train/best_evaluation.h"

/// The README.md of a run's result.
namespace sftrun::engine {

/// What it is made from.
struct TrainedResult {
  const config::RunConfig& command;  ///< of this command
  const config::RunConfig& trained;  ///< that the run was trained with
  const exporting::RunResult& result;
  const config::BaseRecord* base_record = nullptr;  ///< of an adapter; null: a full model
  const observe::RunReport& report;
  const train::BestState* best = nullptr;  ///< null: there is none
  int64_t trained_steps = 0, total_steps = 0;
  std::optional<double> epochs;         ///< of `trained_steps`; null: unknown
  bool reads_images = false;            ///< see observe::ModelCard
  bool leaves_template_unused = false;  ///< see data::leaves_template_unused
};
/// With the metrics of the run's directory.
std::string card_text(const TrainedResult& training);

/// The settings that a complete run was trained with, from its directory. Those of this command,
/// which may name other data, if the file was removed or edited.
config::RunConfig trained_config(const config::RunConfig& command);

}  // namespace sftrun::engine
