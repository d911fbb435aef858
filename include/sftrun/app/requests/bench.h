#pragma once

#include "sftrun/app/requests/parts.h"

namespace sftrun::app {

/// Measures training on synthetic tokens.
struct BenchRequest {
  std::optional<std::string> arch, model;  ///< exactly one of them
  int64_t seq_len = 512, batch_size = 4, steps = 5;
  ComputeRequest compute;
  std::optional<PlannedImages> images;  ///< null: texts alone
  std::vector<std::string> overrides;   ///< for foreign::config_from_overrides
  config::Places places;                ///< of them, for errors
  std::optional<std::string> profile;   ///< folder
  bool json = false;

  SFTRUN_FIELDS(arch, model, seq_len, batch_size, steps, compute, images, overrides, places,
                profile, json)
};

}  // namespace sftrun::app
