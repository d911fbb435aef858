#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

/// Reads and writes adapter_model.safetensors, checked against the base model.
namespace sftrun::weights {

/// delta W = scale * b a; for an embedding [vocab, hidden] the transpose of that
struct LoraPair {
  int64_t in_features = 0, out_features = 0;
  int64_t num_experts = 0;    ///< for an experts' tensor; 0: for a linear layer
  bool of_embedding = false;  ///< in_features is the vocabulary size, out_features the hidden size
  int64_t r = 0;
  double scale = 1;
  std::vector<float> a;  ///< [r, in_features]; experts: [experts * r, in_features], expert-major
  std::vector<float> b;  ///< [out_features, r]; experts: [out_features, r * experts], expert-minor
  std::vector<float> magnitude;  ///< [out_features] with DoRA, else empty
};

struct AdapterTensors {
  /// By module: "model.layers.0.self_attn.q_proj", or by experts' tensor: "….mlp.experts.down_proj"
  std::map<std::string, LoraPair> lora;
  std::map<std::string, std::vector<float>>
      saved;  ///< modules_to_save, by tensor: "lm_head.weight"
};

/// Reads adapter_config.json, with experts as in PEFT 0.21. Older versions wrote an adapter for
/// each expert's matrices, with w1 or gate_proj in `target_modules`. The targets are the modules
/// that have tensors.
AdapterConfig load_adapter_config(const std::filesystem::path& directory,
                                  const spec::ArchSpec& arch);
/// The same with the targets that the file names, also of modules without tensors.
AdapterConfig load_named_targets(const std::filesystem::path& directory,
                                 const spec::ArchSpec& arch);

/// Adapters of single experts are combined into one for all experts of a layer, as PEFT 0.21
/// converts them: A has gate's ranks, then up's, and B is block diagonal. Reads F32, F16 or BF16.
/// @throws DataError naming file, tensor and reason: an A without B, a rank other than r, shapes
/// that do not fit `arch`, modules that it does not have (with the nearest name), values that are
/// NaN or infinite, tensors of an unsupported kind of adapter, no tensors
AdapterTensors load_adapter(const std::filesystem::path& directory, const AdapterConfig& config,
                            const spec::ArchSpec& arch);

/// Hash of the bytes of the file with its tensors; empty: there is none, as load_adapter says.
/// @throws DataError if it cannot be read
std::string adapter_hash(const std::filesystem::path& directory);

/// For what writes a text model: it would leave out updates of tower and projector.
/// @throws DataError naming the first
void require_text_adapter(const AdapterTensors& adapter, const spec::ArchSpec& arch,
                          const std::filesystem::path& directory);

/// Writes adapter_model.safetensors, sftrun_base.json if `base_record` is set, and last
/// adapter_config.json, each atomically.
/// @param tensors with PEFT's names
void write_adapter(const std::filesystem::path& directory, const AdapterConfig& config,
                   const std::vector<TensorToWrite>& tensors);

}  // namespace sftrun::weights
