#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

/// Entries of folders. Failures are errors with the path and the reason, unless another word is said.
namespace sftrun {

/// In the order of the file system.   @throws DataError
std::vector<std::filesystem::path> entries_of(const std::filesystem::path& folder);
/// Those that can be read; none of what is no folder.
std::vector<std::filesystem::path> readable_entries_of(const std::filesystem::path& folder);
/// @throws DataError
uint64_t bytes_of_file(const std::filesystem::path& file);
/// Also if it is absent.   @throws DeviceError
void remove_entry(const std::filesystem::path& path);
/// @throws DeviceError
void move_entry(const std::filesystem::path& from, const std::filesystem::path& to);
/// $TMPDIR, or /tmp.   @throws DeviceError if it is no folder
std::filesystem::path folder_for_temporaries();

}  // namespace sftrun
