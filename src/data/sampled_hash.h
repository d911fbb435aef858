#pragma once

#include <filesystem>
#include <string>

namespace sftrun::data {

/// Fingerprint of a file's size, beginning and end, for large files.
std::string sampled_hash(const std::filesystem::path& file);

}  // namespace sftrun::data
