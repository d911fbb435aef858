#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "sftrun/weights/checkpoint.h"

/// The files by which sentence-transformers loads a model, or an adapter, as one that embeds texts: modules.json and
/// what it names.
namespace sftrun::weights {

/// How texts become embeddings.
struct EmbeddingSettings {
  bool is_mean = false;  ///< of all tokens; else the hidden state of the last one
  bool normalizes = true;
  std::string query_prompt, document_prompt;  ///< before each text
  int64_t max_seq_length = 0;  ///< of texts with their special tokens; longer ones are cut
};

/// @param width of an embedding
void write_embedding_files(const std::filesystem::path& folder, const EmbeddingSettings& settings,
                           int64_t width);

/// Whether the folder, which may be a file or missing, is a model or an adapter that embeds texts. Its pooling may be of another
/// kind than `read_embedding_files` reads.
bool is_embedding_model(const std::filesystem::path& folder);

/// Why an embedding model is refused: "{model} embeds texts (it has a modules.json), and {why}".
struct EmbedderRefusal {
  std::string model = "the model", why = "gives no tokens";
  std::string where = {}, fix = {};
};
/// @param folder as `is_embedding_model`   @throws ConfigError if it is one
void refuse_embedding_model(const std::filesystem::path& folder, const EmbedderRefusal& refusal);

/// nullopt: the folder is no embedding model.
/// @throws DataError for modules and pooling of other kinds
std::optional<EmbeddingSettings> read_embedding_files(const std::filesystem::path& folder);

/// The model as one whose language-model head is its embedding matrix, so that no head of its own is
/// loaded, trained or written.
std::shared_ptr<const Checkpoint> without_head(std::shared_ptr<const Checkpoint> model);

}  // namespace sftrun::weights
