#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/gguf_writer.h"

/// A model as a GGUF file: what llama.cpp's convert_hf_to_gguf.py and llama-quantize make of it.
namespace sftrun::weights {

/// Words for how a file's tensors are stored: "f16", "q4_k_m", …
std::vector<std::string> gguf_mixes();

/// How values of a checkpoint's tensor become those of one of a file.
struct GgufPiece {
  std::string name;            ///< "blk.0.ffn_gate_exps.weight"
  std::vector<int64_t> shape;  ///< slowest dimension first
  size_t source = 0;           ///< which of the checkpoint's tensors
  int64_t layer = -1;          ///< -1: outside the layers
  int64_t row_size = 0;        ///< numbers that stay together
  /// Of each row here the row there; empty: the same one.
  std::vector<int64_t> rows;
  /// Of each number of a row here the place there; empty: the same one.
  std::vector<int64_t> columns;
  bool adds_one = false;   ///< Gemma's norms
  bool minus_exp = false;  ///< the decay of delta nets
  int64_t num_rows() const;
};
/// Every tensor of a file, in the order of `tensor_specs`. The pieces of one source stand together.
/// @param arch `spec::GgufDescription::arch`
std::vector<GgufPiece> gguf_pieces(const spec::ArchSpec& arch);
/// Rows [first, first + count) of a piece.
/// @param source the checkpoint's whole tensor   @param[out] rows [count, row_size]
void fill_rows(const GgufPiece& piece, const float* source, int64_t first, int64_t count,
               float* rows);

/// Whether llama.cpp reads a head beside the embedding: of Gemma and Gemma 2 it takes the
/// embedding, and refuses files with both.
bool llama_cpp_reads_head(const spec::ArchSpec& arch);

/// A file about to be written: everything but the tensors' values.
struct GgufPlan {
  GgufMetadata metadata;
  std::vector<GgufPiece> pieces;
  std::vector<GgmlTypeInfo> types;  ///< of each piece
  /// Small tensors beside the weights, and what only the base file knows.
  std::vector<GgufTensorToWrite> beside;
  /// What a base file holds of a piece in that very type: to be copied as it is, where the weights
  /// are not changed. Empty: nothing.
  std::vector<std::span<const std::byte>> stored;
  std::string type_name;                     ///< "Q4_K_M", for file names
  std::optional<std::string> chat_template;  ///< that the file has
  std::string
      added_bos;  ///< the text of the token that readers put before every prompt; empty: none
  std::shared_ptr<GgufFile> base;  ///< keeps `stored` and `beside` where they are
};

struct GgufExportOptions {
  std::filesystem::path base_path;
  std::string mix = "auto";                  ///< "auto": as the base has it
  std::string name;                          ///< general.name of what comes from a directory
  std::optional<std::string> chat_template;  ///< in the place of the base's own
  /// Whether a tensor's values are not the base's; by name in the checkpoint.
  std::function<bool(const std::string&)> is_changed;
  /// The head is no longer the embedding that the base ties it to: the last piece, whose `source`
  /// is one beyond the base's tensors of the text model.
  bool parts_head = false;
  /// The tokens are not those that the base's files have.
  bool has_own_tokens = false;
};

/// Of a directory: metadata of its configuration and tokenizer. Of a GGUF file: its own metadata,
/// and whatever tensors this program does not read.
/// @throws DataError for what GGUF has no word for
GgufPlan plan_gguf(const Checkpoint& base, const GgufExportOptions& options);

}  // namespace sftrun::weights
