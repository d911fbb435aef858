#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "sftrun/weights/checkpoint.h"

/// Base weights that an adapter's directory replaces. PEFT saves embedding and head if the
/// vocabulary was resized (`save_embedding_layers`), and the trained rows of single tokens
/// (`trainable_token_indices`). The tokenizer with the added tokens is saved in the same directory.
namespace sftrun::weights {

/// The base model as it was when the adapter was trained.
struct AdapterBase {
  /// The base itself if nothing is replaced. Otherwise it has the adapter's vocabulary, its head is
  /// separate from the embedding if the adapter has different rows for it, and its EOS tokens
  /// include the adapter's.
  std::shared_ptr<const Checkpoint> checkpoint;
  /// Tensors whose values differ from the base's.
  std::set<std::string> replaced;
  bool is_resized = false;  ///< whether the vocabulary was resized
  /// The adapter's directory, if its tokenizer differs from the base's.
  std::optional<std::filesystem::path> text_directory;
  /// EOS of that tokenizer, if it is not an EOS of the base.
  std::optional<int64_t> new_eos;
};

/// @param base as for Checkpoint::open   @param adapter a directory in PEFT's layout
/// @throws DataError naming file and tensor: rows that do not fit the model, an embedding and a
/// head of different vocabulary sizes, tokens without rows in the model
AdapterBase open_adapter_base(const std::filesystem::path& base,
                              const std::filesystem::path& adapter);

/// Warns if the adapter has another tokenizer.
/// @throws DataError if the adapter replaces weights of `base`: the base would not be the model
/// that the adapter was trained on
void require_own_base(const Checkpoint& base, const std::filesystem::path& base_path,
                      const std::filesystem::path& adapter);

}  // namespace sftrun::weights
