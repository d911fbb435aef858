#pragma once

#include <filesystem>
#include <string>

#include "merged_tensor.h"
#include "sftrun/core/file.h"
#include "sftrun/export/merge.h"
#include "sftrun/weights/mmproj.h"

/// The image side of a merged model as a file for llama.cpp ("mmproj"), beside the text model's.
namespace sftrun::exporting {

struct ImageSide {
  weights::MmprojPlan plan;
  std::string dtype;  ///< f32, f16 or bf16

  /// "mmproj-mine-F16.gguf" of "mine"
  std::string name_in(const std::string& model) const;
};

/// Beside the file that `output` names: "mmproj-mine.gguf" beside "mine.gguf".
std::filesystem::path image_file_beside(const MergeOptions& options);

/// @param base its model has an image side
/// @throws ConfigError if the file beside `output` exists and is not to be replaced; DeviceError if
/// something else has its name
ImageSide plan_image_side(const MergeOptions& options, const weights::Checkpoint& base);

/// The caller commits the file.
void write_image_side(const ImageSide& images, const weights::Checkpoint& base,
                      MergedWeights& merged, AtomicFile& file);

}  // namespace sftrun::exporting
