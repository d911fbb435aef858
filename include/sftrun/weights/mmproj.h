#pragma once

#include <optional>
#include <string>
#include <vector>

#include "sftrun/spec/mmproj.h"
#include "sftrun/weights/checkpoint.h"
#include "sftrun/weights/gguf_export.h"
#include "sftrun/weights/gguf_writer.h"

/// Writes the image side of a model as the file that llama.cpp reads beside the text model's (spec/mmproj.h).
namespace sftrun::weights {

struct MmprojOptions {
  std::string dtype = "f16";  ///< of matrices: f32, f16 or bf16
  std::string name;           ///< general.name
  spec::MmprojImages images;
  std::optional<int64_t> image_break;  ///< the id of `spec::kImageBreak`
};

/// A file to write, without the values of its tensors.
struct MmprojPlan {
  /// Why there is no file, as a clause; empty: there is one.
  std::string refused;
  GgufMetadata metadata;
  std::vector<GgufPiece> pieces;    ///< `source` is an index in `Checkpoint::tensors`
  std::vector<GgmlTypeInfo> types;  ///< one per piece
};

/// @param base a directory whose model has an image side
MmprojPlan plan_mmproj(const Checkpoint& base, const MmprojOptions& options);

/// The type in which the image side is stored beside a text model of this type: a float type itself, else f16.
/// @param mix as `GgufExportOptions::mix`
std::string mmproj_dtype(const Checkpoint& base, const std::string& mix);

}  // namespace sftrun::weights
