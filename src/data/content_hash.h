#pragma once

#include <filesystem>
#include <string>

namespace sftrun::data {

/// Fingerprint of a file's contents.
/// @param memory where hashes of files that have not changed since (path, size, time, inode) are
/// remembered; empty: nowhere
std::string content_hash(const std::filesystem::path& file, const std::filesystem::path& memory);

/// The same of a file's size, beginning and end: for files that nobody wants to read first.
std::string sampled_hash(const std::filesystem::path& file);

}  // namespace sftrun::data
