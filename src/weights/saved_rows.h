#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/spec/arch_spec.h"
#include "sftrun/weights/peft.h"
#include "sftrun/weights/safetensors.h"

/// The base's embedding and head as saved in an adapter's file, in addition to the adapters.
namespace sftrun::weights {

inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// An adapter's tensors. A state dictionary that PEFT's save_pretrained did not write has the
/// adapter's name in theirs ("….lora_A.default.weight"), which is taken out as PEFT does.
SafetensorsFile open_adapter_file(const std::filesystem::path& path);

/// The rows of the base's embedding or head that an adapter's file contains.
struct SavedRows {
  std::string module;                      ///< "model.embed_tokens", "lm_head"
  const SafetensorsEntry* rows = nullptr;  ///< all rows: [vocab, hidden]; null: the base's are used
  const SafetensorsEntry* tokens = nullptr;  ///< single rows: [indices, hidden]; null: none
  std::vector<int64_t> indices;              ///< the rows that `tokens` replaces

  std::string tensor() const { return module + ".weight"; }
  bool is_empty() const { return rows == nullptr && tokens == nullptr; }
  /// Whether both contain the same values.
  bool has_same_values(const SavedRows& other) const;
};

/// Whether a tensor belongs to the base's embedding or head.   @param name without kPeftPrefix
bool is_embedding_or_head(const std::string& name, const AdapterConfig& config,
                          const spec::ArchSpec& arch);

/// @param arch of the base   @param module the embedding or the head
/// @throws DataError for rows of another shape or type, values that are NaN or infinite, and
/// indices that do not match the rows
SavedRows find_saved_rows(const SafetensorsFile& file, const std::string& where,
                          const AdapterConfig& config, const spec::ArchSpec& arch,
                          const std::string& module);

}  // namespace sftrun::weights
