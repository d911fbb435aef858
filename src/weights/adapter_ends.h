#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/safetensors.h"

/// A base's embedding and head in an adapter's file, beside the updates of them.
namespace sftrun::weights {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// What an adapter's file has of the base's embedding or head.
struct AdapterEnd {
  std::string module;                        ///< "model.embed_tokens", "lm_head"
  const SafetensorsEntry* rows = nullptr;    ///< all: [vocab, hidden]; null: the base's
  const SafetensorsEntry* tokens = nullptr;  ///< some: [indices, hidden]; null: none
  std::vector<int64_t> indices;              ///< of the rows that `tokens` take the place of

  std::string tensor() const { return module + ".weight"; }
  bool is_empty() const { return rows == nullptr && tokens == nullptr; }
  /// Whether both are the same values.
  bool holds_what(const AdapterEnd& other) const;
};

/// Whether a tensor is one of those.   @param name behind kPeftPrefix
bool is_of_base_end(const std::string& name, const AdapterConfig& config,
                    const spec::ArchSpec& arch);

/// @param arch the base's   @param module the embedding's or the head's
/// @throws DataError for rows of another shape or type, or that are not finite, and for indices
/// that are not theirs
AdapterEnd find_adapter_end(const SafetensorsFile& file, const std::string& where,
                            const AdapterConfig& config, const spec::ArchSpec& arch,
                            const std::string& module);

}  // namespace sftrun::weights
