#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"

/// A model's metadata in a GGUF file, as llama.cpp's convert_hf_to_gguf.py writes it: the inverse
/// of `ArchSpec::from_gguf`.
namespace sftrun::spec {

/// Small tensors that describe the RoPE scaling.
inline constexpr const char* kGgufRopeDivisors = "rope_freqs.weight";
inline constexpr const char* kGgufShortFactors = "rope_factors_short.weight";
inline constexpr const char* kGgufLongFactors = "rope_factors_long.weight";
/// The divisor in rope_freqs.weight for a frequency that does not rotate.
inline constexpr float kDoesNotTurn = 1e30F;

struct GgufDescription {
  /// The model as a GGUF reader sees it: under the name of a related family if llama.cpp uses that
  /// (Mistral is stored as llama), and the text part of a larger model as a separate model.
  /// Tensors are those of the original model in the same order, with such a model's names.
  ArchSpec arch;
  /// general.architecture and the keys below the architecture's prefix. Integers are stored as
  /// UINT32 (INT32 in lists), other numbers as FLOAT32.
  nlohmann::ordered_json metadata;
  /// By GGUF name: the tensors above.
  std::map<std::string, std::vector<float>> tensors;
  /// What the file cannot express, and its effect; empty: nothing relevant.
  std::string lost;
};

/// @throws DataError if GGUF or llama.cpp cannot express a setting that changes the model's output;
/// names its key in config.json
GgufDescription describe_in_gguf(const ArchSpec& arch, const std::string& where);

/// general.architecture for such a model: "llama".
std::string gguf_architecture(const ArchSpec& arch);
/// False if llama.cpp always uses the embedding as the head of such a model (Gemma 2), and rejects
/// files with a head.
bool gguf_reads_head(const ArchSpec& arch);
/// Whether a SentencePiece vocabulary of such a model is stored with merges (Gemma 4).
bool gguf_keeps_merges(const ArchSpec& arch);
/// Whether llama-quantize treats the model as its "70B" models, which get more bits in some types.
bool gguf_is_70b(const ArchSpec& arch);

}  // namespace sftrun::spec
