#pragma once

#include <filesystem>
#include <string>

#include "sftrun/images/processor.h"

/// The limits of images of a run, beside what it wrote.
namespace sftrun::images {

/// `sftrun_images.json` beside an adapter, model or checkpoint: {"max_image_pixels": 200704, "image_longest_edge": 768}, the keys of `data` in
/// the run's configuration; a limit that was not set is not there. Without the file, or for a path that is not a directory, no limits.
/// @throws DataError for a damaged file
ImageCaps read_caps(const std::filesystem::path& folder);
/// Writes that file, if there is a limit.   @throws DeviceError
void write_caps(const std::filesystem::path& folder, const ImageCaps& caps);

/// "data.max_image_pixels 200704, data.image_longest_edge 768"
std::string words_of(const ImageCaps& caps);

/// Lowers the limits in a folder's copies of a model's files (preprocessor_config.json, processor_config.json, video_preprocessor_config.json), in
/// keys that transformers' processors read: `size`, `max_soft_tokens`, `max_patches`. Files that the folder does not have are not made, with
/// one exception: videos whose settings are in preprocessor_config.json get a file of their own.
/// @param model the folder of the model that the files are copies of
/// @throws ConfigError as with_caps; DataError if the processor of images cannot be read; DeviceError
void lower_limits(const std::filesystem::path& folder, const std::filesystem::path& model,
                  const ImageCaps& caps);

/// Which limits no key of transformers' processors says.
CapUse unwritten_limits(const ImageProcessor& processor, const ImageCaps& caps);

}  // namespace sftrun::images
