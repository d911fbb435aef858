#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <optional>
#include <string>

#include "sftrun/config/run_config.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/peft.h"

/// What a run leaves behind: adapter/ or model/ in its directory.
namespace sftrun::engine {

struct RunResult {
  std::filesystem::path run_dir;
  std::optional<weights::AdapterConfig> adapter;  ///< nullopt: the whole model
  const weights::Checkpoint& base;
  std::filesystem::path base_path;  ///< its directory or .gguf file
  at::ScalarType dtype;             ///< of a whole model's file: fp32, else bf16
  /// The template that was trained with, where it is not the base's own.
  std::optional<std::string> chat_template = {};

  std::filesystem::path target() const { return run_dir / (adapter ? "adapter" : "model"); }
  bool exists() const { return std::filesystem::exists(target()); }
};

/// Written aside and renamed, so that it is whole or not there. An earlier one is kept under
/// another name.
/// @param card its README.md   @param checkpoint the last one, which has what this makes a result
/// of
/// @throws DeviceError; DataError where the base is gone, with what to do with the checkpoint
void export_result(const RunResult& result, model::Decoder& decoder, const std::string& card,
                   const std::filesystem::path& checkpoint);

/// Before the first step: whether the disk takes a checkpoint and the result. Warns if it takes no
/// second checkpoint, which is written before the first goes.
/// @throws DeviceError with the figures
void require_disk_space(const RunResult& result, model::Decoder& decoder,
                        const config::TrainConfig& settings);

}  // namespace sftrun::engine
