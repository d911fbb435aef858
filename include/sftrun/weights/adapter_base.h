#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "sftrun/weights/checkpoint.h"

/// What an adapter's directory has in place of what is its base's own: PEFT saves embedding and
/// head where their vocabulary was resized (`save_embedding_layers`) and the rows of single tokens
/// that were trained (`trainable_token_indices`); the tokenizer that tokens were added to lies
/// beside them.
namespace sftrun::weights {

/// A base as the model had it that an adapter was trained in.
struct AdapterBase {
  /// The base itself where nothing of it is replaced. Its vocabulary is the adapter's, its head is
  /// parted from the embedding where the adapter has other rows of it, and among the tokens that
  /// end a text is the adapter's EOS.
  std::shared_ptr<const Checkpoint> checkpoint;
  /// Tensors whose values are not the base's.
  std::set<std::string> replaced;
  bool is_resized = false;  ///< the vocabulary
  /// The adapter's directory, where its tokenizer is another than the base's.
  std::optional<std::filesystem::path> text_directory;
  /// Of that tokenizer, where the base does not end texts with it.
  std::optional<int64_t> new_eos;
};

/// @param base as Checkpoint::open takes it   @param adapter a directory in PEFT's layout
/// @throws DataError naming file and tensor: rows that do not belong to such a model, an embedding
/// or head that is not resized with the other, tokens that the model has no rows of
AdapterBase open_adapter_base(const std::filesystem::path& base,
                              const std::filesystem::path& adapter);

/// @throws DataError where the adapter replaces weights of `base`: updates beside those that it was
/// trained with would mean another model. Of another tokenizer it warns.
void require_own_base(const Checkpoint& base, const std::filesystem::path& base_path,
                      const std::filesystem::path& adapter);

}  // namespace sftrun::weights
