#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

/// What a GGUF file says of a model beside its weights, the way llama.cpp's convert_hf_to_gguf.py
/// writes it: the inverse of `ArchSpec::from_gguf`.
namespace sftrun::spec {

/// Small tensors beside the weights that say how positions turn.
inline constexpr const char* kGgufRopeDivisors = "rope_freqs.weight";
inline constexpr const char* kGgufShortFactors = "rope_factors_short.weight";
inline constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
/// What a rope_freqs.weight divides a frequency by that does not turn.
inline constexpr float kDoesNotTurn = 1e30F;

struct GgufDescription {
  /// The model as a reader of the file has it: families that llama.cpp calls as their relatives
  /// under those names (Mistral a llama), the text part of a larger model on its own. Tensors are
  /// those of the model itself, in the same order, under the names of such a model.
  ArchSpec arch;
  /// Keys below the architecture's prefix, and general.architecture. Integers are stored as UINT32
  /// (in lists INT32), other numbers as FLOAT32.
  nlohmann::ordered_json metadata;
  /// By name, as above.
  std::map<std::string, std::vector<float>> tensors;
  /// What the file does not hold, and what that means; empty: nothing of note is lost.
  std::string lost;
};

/// @throws DataError for a model of which GGUF, or llama.cpp, has no word for what changes its
/// answers: the key of its config.json is named
GgufDescription describe_in_gguf(const ArchSpec& arch, const std::string& where);

/// general.architecture of the files such a model is stored in: "llama".
std::string gguf_architecture(const ArchSpec& arch);

}  // namespace sftrun::spec
