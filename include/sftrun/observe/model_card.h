#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sftrun/observe/run_summary.h"

/// README.md beside a trained model, as the hub shows it: metadata in YAML between two lines of
/// dashes, then Markdown (huggingface.co/docs/hub/model-cards).
namespace sftrun::observe {

struct ModelCard {
  std::string base_model;         ///< as the run named it: owner/name on the hub, or a path
  bool is_on_hub = false;         ///< whether the base's name is one of the hub's
  bool is_adapter = true;         ///< in PEFT's layout; else a whole model
  bool is_quantised = false;      ///< the base was held in fewer bits while training
  std::string version;            ///< of sftrun
  std::vector<std::string> data;  ///< names of data sets and files
  std::vector<std::pair<std::string, std::string>> settings;  ///< name and value, in order
  RunSummary summary;
};

std::string to_markdown(const ModelCard& card);

}  // namespace sftrun::observe
