#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/config/run_config.h"
#include "sftrun/core/presence.h"
#include "sftrun/images/processor.h"
#include "sftrun/model/adapter_io.h"
#include "sftrun/model/decoder.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/embedding_files.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/safetensors.h"

/// What a run leaves behind: adapter/ or model/ in its directory.
namespace sftrun::exporting {

struct RunResult {
  std::filesystem::path run_dir;
  std::optional<weights::AdapterConfig> adapter;  ///< nullopt: the whole model
  const weights::Checkpoint& base;
  std::filesystem::path base_path;  ///< its directory or .gguf file
  at::ScalarType dtype;             ///< of a whole model's file: fp32, else bf16
  /// The template that was trained with, where it is not the base's own.
  std::optional<std::string> chat_template = {};
  nlohmann::ordered_json template_variables = {};  ///< of the chat template, in training
  images::ImageCaps image_caps = {};  ///< of images in training; none if the model reads none
  std::optional<weights::EmbeddingSettings> embedding = {};  ///< nullopt: it embeds nothing

  std::filesystem::path target() const { return run_dir / (adapter ? "adapter" : "model"); }
  bool exists() const { return leads_to_file(target()); }
};

/// The tensors of the result: the adapter, or the whole model.
/// @param masters values of trained parameters; called when a tensor is written
std::vector<weights::TensorToWrite> result_tensors(
    const RunResult& result, model::Decoder& decoder,
    const model::MasterValues& masters = model::own_masters());

/// Writes the result under a temporary name and renames it. An earlier result is renamed and kept.
/// @param tensors of `result_tensors`   @param card its README.md
/// @param checkpoint the last one, from which the result can be written again
/// @throws DeviceError; DataError if the base was removed, with what to do with the checkpoint
void export_result(const RunResult& result, const std::vector<weights::TensorToWrite>& tensors,
                   const std::string& card, const std::filesystem::path& checkpoint);

/// The size of the result's weights.   @param trained_values number of trained parameters
uint64_t result_bytes(const RunResult& result, uint64_t trained_values);

/// Sets the base's name and revision in an adapter's configuration. For a GGUF file, which few
/// programs read, it is the model that the file was converted from.
/// @param path of the base: a directory or a .gguf file
void name_base(weights::AdapterConfig& adapter, const config::ModelConfig& model,
               const std::filesystem::path& path);

}  // namespace sftrun::exporting
