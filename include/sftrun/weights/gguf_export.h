#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf.h"
#include "sftrun/weights/gguf_writer.h"

/// Writes a model as a GGUF file, as llama.cpp's convert_hf_to_gguf.py and llama-quantize do.
namespace sftrun::weights {

/// Names of the supported file types: "f16", "q4_k_m", …
std::vector<std::string> gguf_mixes();

/// Maps values of a checkpoint's tensor to a tensor of the file.
struct GgufPiece {
  std::string name;            ///< "blk.0.ffn_gate_exps.weight"
  std::vector<int64_t> shape;  ///< slowest dimension first
  size_t source = 0;           ///< index in the checkpoint's tensors
  int64_t layer = -1;          ///< -1: outside the layers
  int64_t row_size = 0;        ///< values per row, which stay together
  /// For each row of the piece the row in `source`; empty: the same one.
  std::vector<int64_t> rows;
  /// For each position in a row of the piece the position in `source`; empty: the same one.
  std::vector<int64_t> columns;
  bool adds_one = false;   ///< Gemma's norms
  bool minus_exp = false;  ///< the decay of delta nets is stored as -exp(w)
  int64_t num_rows() const;
};
/// All tensors of a file, in the order of `tensor_specs`. Pieces with the same source are adjacent.
/// @param arch `spec::GgufDescription::arch`
std::vector<GgufPiece> gguf_pieces(const spec::ArchSpec& arch);
/// Computes rows [first, first + count) of a piece.
/// @param source the checkpoint's whole tensor   @param[out] rows [count, row_size]
void fill_rows(const GgufPiece& piece, const float* source, int64_t first, int64_t count,
               float* rows);

/// A file to write, without the values of its tensors.
struct GgufPlan {
  GgufMetadata metadata;
  std::vector<GgufPiece> pieces;
  std::vector<GgmlTypeInfo> types;  ///< one per piece
  /// Small additional tensors, and tensors of the base file that this program does not use.
  std::vector<GgufTensorToWrite> beside;
  /// For each piece its bytes in the base file if that has the same type; they are copied if the
  /// weights are unchanged. Empty: none.
  std::vector<std::span<const std::byte>> stored;
  std::string type_name;                     ///< "Q4_K_M", for file names
  std::optional<std::string> chat_template;  ///< the template written to the file
  std::string added_bos;  ///< text of the token that is added before every prompt; empty: none
  std::shared_ptr<GgufFile> base;  ///< keeps the mapping of `stored` and `beside` alive
};

/// Matrices of a quantised file type whose rows are not whole blocks of any type: they are F16.
struct UnquantisedMatrices {
  size_t count = 0, num_matrices = 0;  ///< `num_matrices` would be quantised
  std::string first;                   ///< the name of one; empty: there is none
  int64_t row_size = 0;                ///< of `first`
};
/// @param mix as `GgufExportOptions::mix`; other than quantised types have none
UnquantisedMatrices unquantised_matrices(const std::string& mix,
                                         const std::vector<GgufPiece>& pieces,
                                         const std::vector<GgmlTypeInfo>& types);

struct GgufExportOptions {
  std::filesystem::path base_path;
  std::string mix = "auto";                  ///< "auto": the type of the base
  std::string name;                          ///< general.name, for a base in a directory
  std::optional<std::string> chat_template;  ///< replaces the base's template
  /// Whether a tensor's values differ from the base's; by the checkpoint's names.
  std::function<bool(const std::string&)> is_changed;
  /// The head is separate although it is tied to the embedding in the base. It is the last piece;
  /// its `source` is one past the base's tensors of the text model.
  bool unties_head = false;
  /// The vocabulary differs from that in the base's files.
  bool has_own_tokens = false;
};

/// For a directory: writes metadata from its configuration and tokenizer. For a GGUF file: copies
/// its metadata and the tensors that this program does not use.
/// @throws DataError for properties that GGUF cannot express
GgufPlan plan_gguf(const Checkpoint& base, const GgufExportOptions& options);

}  // namespace sftrun::weights
