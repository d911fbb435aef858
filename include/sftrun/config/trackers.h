#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "sftrun/config/run_config.h"

/// Experiment trackers that `output.report_to` names: one row each. What sends metrics to them is in
/// src/track/; TensorBoard's files are written by rank 0.
namespace sftrun::config {

struct TrackerRow {
  std::string_view name;   ///< in configurations
  std::string_view title;  ///< in messages; empty: nothing is sent
  /// Variables of the environment that are used where `output.tracking` says nothing.
  std::string_view project_variable = {}, name_variable = {}, uri_variable = {};
  std::string_view package = {};  ///< of Python, which must be installed; empty: none
  std::string_view send_later =
      {};  ///< a command that sends a run afterwards, without its directory

  bool is_live() const { return !title.empty(); }
};

inline constexpr std::string_view kTensorBoard = "tensorboard";

inline constexpr auto kTrackers =
    std::to_array<TrackerRow>({{.name = kTensorBoard, .title = ""},
                               {.name = "jsonl", .title = ""},
                               {.name = "mlflow",
                                .title = "MLflow",
                                .project_variable = "MLFLOW_EXPERIMENT_NAME",
                                .uri_variable = "MLFLOW_TRACKING_URI",
                                .send_later = "scripts/to_mlflow.py"},
                               {.name = "wandb",
                                .title = "Weights & Biases",
                                .project_variable = "WANDB_PROJECT",
                                .name_variable = "WANDB_NAME",
                                .package = "wandb",
                                .send_later = "scripts/to_tracker.py wandb"},
                               {.name = "trackio",
                                .title = "Trackio",
                                .project_variable = "TRACKIO_PROJECT",
                                .package = "trackio",
                                .send_later = "scripts/to_tracker.py trackio"}});

/// nullptr: there is none.
constexpr const TrackerRow* find_tracker(std::string_view name) {
  const auto* const found = std::ranges::find(kTrackers, name, &TrackerRow::name);
  return found == kTrackers.end() ? nullptr : found;
}

std::vector<std::string> tracker_names();
/// Those of the run that metrics are sent to.
std::vector<const TrackerRow*> live_trackers(const OutputConfig& output);
bool reports_to(const OutputConfig& output, std::string_view tracker);

/// Makes `tensorboard` and `report_to` say the same, where one of them is not set.
void settle_trackers(LoadedConfig& loaded);

}  // namespace sftrun::config
