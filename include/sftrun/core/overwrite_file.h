#pragma once

#include <filesystem>
#include <string_view>

namespace sftrun {

/// Replaces what the file holds within the space that it has on the disk already, for a full disk.
/// Not atomic. @throws DeviceError, and leaves the file as it is, if the space is too small
void overwrite_file(const std::filesystem::path& path, std::string_view text);

}  // namespace sftrun
