#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "sftrun/app/requests/merge.h"
#include "sftrun/weights/checkpoint.h"

/// Measures the effect of merging. An adapter that was trained on a quantised base does not fit other
/// values exactly: merged into them, or quantised again, the model gives other answers.
namespace sftrun::engine {

struct MergedModel {
  std::shared_ptr<const weights::Checkpoint> base;  ///< that was merged into
  std::filesystem::path base_path, adapter;
  std::optional<std::filesystem::path> report_directory;  ///< where merge_report.json goes
  std::filesystem::path written;                          ///< a directory, or a .gguf file
  std::string stored;                                     ///< how, in words
  bool is_below_8_bits = false;                           ///< some of its matrices, than 8
  bool as_stored = false;                                 ///< merged into the base's own values
};

/// Over a sample of the run's data (validation data where it has some): mean loss of a labelled
/// token by the adapter over the base as it was trained, and by what was merged, and the mean of
/// KL(adapter || merged), in nats. Computed in fp32. Logs them, and writes merge_report.json. If
/// the base was not quantised nothing is measured, unless `sample` asks for it. Problems are warnings,
/// not errors.
/// @return what merge_report.json holds; null: nothing was measured
nlohmann::ordered_json report_difference(const MergedModel& model,
                                         const app::MergeRequest& request);

}  // namespace sftrun::engine
