#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"

/// adapter_model.safetensors as numbers, checked against the model they are for.
namespace sftrun::weights {

/// delta W = scale * b a; of an embedding [vocab, hidden] its transpose
struct LoraPair {
  int64_t in_features = 0, out_features = 0;
  int64_t num_experts = 0;    ///< of an experts' tensor; 0: of a linear layer
  bool of_embedding = false;  ///< in_features are its vocabulary, out_features its channels
  int64_t r = 0;
  double scale = 1;
  std::vector<float> a;  ///< [r, in_features]; [experts * r, in_features], the expert slow
  std::vector<float> b;  ///< [out_features, r]; [out_features, r * experts], the expert fast
  std::vector<float> magnitude;  ///< [out_features] of DoRA, else empty
};

struct AdapterTensors {
  std::map<std::string, LoraPair> lora;  ///< by module: "model.layers.0.self_attn.q_proj",
                                         ///< or experts' tensor: "….mlp.experts.down_proj"
  std::map<std::string, std::vector<float>>
      saved;  ///< modules_to_save, by tensor: "lm_head.weight"
};

/// adapter_config.json, with experts as PEFT 0.21 names them: older versions wrote an adapter of
/// each expert's matrices, w1 or gate_proj among the `target_modules`.
AdapterConfig load_adapter_config(const std::filesystem::path& directory,
                                  const spec::ArchSpec& arch);

/// Adapters of single experts come as those of all experts of a layer: gate's rank and up's one
/// after the other in A, and B block diagonal, as PEFT 0.21 converts them. Reads F32, F16 or BF16.
/// @throws DataError naming file, tensor and reason: an A without its B, another rank than r,
/// shapes that do not fit `arch`, modules that it does not have (with the nearest), values that are
/// not finite, tensors that belong to no supported kind of adapter, none at all.
AdapterTensors load_adapter(const std::filesystem::path& directory, const AdapterConfig& config,
                            const spec::ArchSpec& arch);

/// Writes adapter_model.safetensors, then adapter_config.json, each atomically. `tensors` carry
/// PEFT's names.
void write_adapter(const std::filesystem::path& directory, const AdapterConfig& config,
                   const std::vector<TensorToWrite>& tensors);

}  // namespace sftrun::weights
