#pragma once

#include <filesystem>

namespace sftrun {

/// Whether a directory has a file that it may lack. A link that leads nowhere is no absent file: its directory was copied without the
/// file, or a cache was pruned, and what the file says would be ignored in silence.
/// @throws DataError naming the link and its target
bool has_optional_file(const std::filesystem::path& path);

}  // namespace sftrun
