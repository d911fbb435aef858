#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "sftrun/core/error.h"

/// Paths of images, frames and files of features, as records have them.
namespace sftrun::data {

/// Whether it is an address of a file on this machine, as Qwen's examples write them: file:///data/1.png.
bool is_file_address(std::string_view text);

/// The file that a record names: an absolute path, a path relative to `folder`, or the address of a file. Characters that an address
/// has in percent encoding (%20) are decoded, unless a file has the name as it is written.
std::filesystem::path media_path(const std::string& written, const std::filesystem::path& folder);

/// A record names a file by a relative path, and there is no such file. If most records of a data set do, `data.image_root` helps.
class MissingFileError : public DataError {
 public:
  using DataError::DataError;
};

/// @param file media_path(written, folder)   @return whether it is not there, and depends on the folder
bool is_missing_below_folder(const std::string& written, const std::filesystem::path& file);

}  // namespace sftrun::data
