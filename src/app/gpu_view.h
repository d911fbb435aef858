#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/launch/gpu.h"

namespace sftrun::app {

/// The GPUs that CUDA shows, and what CUDA_VISIBLE_DEVICES hides.
struct GpuView {
  launch::GpuReport shown;  ///< `gpus` and `links` without the hidden ones, in CUDA's order
  std::vector<launch::GpuInfo> hidden;
  std::optional<launch::GpuVisibility> visibility;  ///< nullopt: the variable is not set

  bool has_slice() const { return visibility && !visibility->mig_slice.empty(); }
  size_t num_gpus() const { return has_slice() ? 1 : shown.gpus.size(); }
  /// What the variable does, in lines; empty: nothing.
  std::string visibility_text() const;
  /// {"index", "name", "uuid"} of each hidden GPU.
  nlohmann::ordered_json hidden_json() const;
};

GpuView view_of(launch::GpuReport all);

}  // namespace sftrun::app
