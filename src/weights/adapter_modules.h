#pragma once

#include <map>
#include <string>
#include <string_view>

#include "sftrun/spec/arch_spec.h"

/// The modules that an adapter's tensors are for, by the names used in files.
namespace sftrun::weights {

/// Endings of the names of tensors, after the module.
inline constexpr std::string_view kLoraA = ".lora_A.weight", kLoraB = ".lora_B.weight",
                                  kLoraEmbeddingA = ".lora_embedding_A",
                                  kLoraEmbeddingB = ".lora_embedding_B",
                                  kLoraMagnitude = ".lora_magnitude_vector",
                                  kWeightName = ".weight";
/// "model.layers.0.self_attn.q_proj" for the name of its A, B or magnitudes; empty for other names.
std::string module_of_update(const std::string& name);

/// A module of older transformers versions that is part of a larger tensor in newer ones.
struct OldModule {
  const spec::TensorSpec* whole = nullptr;  ///< the tensor that contains its weight
  /// In an experts' tensor: index of the expert, and of its matrix
  int64_t expert = 0, matrix = 0;
  int64_t matrices = 1;  ///< matrices per expert in the tensor
  int64_t rows = 0;
};

/// The modules of single experts' matrices and of renamed routers, by the names used in files.
std::map<std::string, OldModule> old_modules(const std::map<std::string, spec::TensorSpec>& specs);

std::map<std::string, spec::TensorSpec> specs_by_name(const spec::ArchSpec& arch);

}  // namespace sftrun::weights
