#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>

/// Opens regular files. To open a named pipe waits for its other end, for ever if nobody has it, and
/// what is written to a device or read from it may have no end.
namespace sftrun {

/// Whether a path may lead to a named pipe or a device: where a user names an output on the command
/// line, as in `--output /dev/stdout`.
enum class SpecialFile : uint8_t { kRefused, kAllowed };

/// A descriptor, or why there is none.
struct OpenedFile {
  int fd = -1;         ///< the caller closes it
  int error = 0;       ///< of the system; 0 without a descriptor: it is no regular file
  std::string reason;  ///< "Permission denied", "is a named pipe, not a regular file"
  std::string fix;     ///< may be empty where there is an error of the system
};

/// Opens a regular file, and never waits for it.   @param flags of open(2); O_CLOEXEC is added
OpenedFile open_file(const std::filesystem::path& path, int flags, mode_t mode = 0644);
/// @return a descriptor, which the caller closes   @throws DeviceError naming the path and the reason
int open_for_writing(const std::filesystem::path& path, int flags, mode_t mode = 0644);
/// @return a descriptor, which the caller closes   @throws DataError naming the path and the reason
int open_for_reading(const std::filesystem::path& path);

/// @throws DataError for a name with a NUL byte, which the system would cut there
void require_no_nul(const std::filesystem::path& path);
/// @throws DeviceError if the name is that of a directory or a special file, so that no regular file
/// can be written there
void require_place_for_file(const std::filesystem::path& path);

/// @throws DataError for a named pipe, a socket or a device. Missing and inaccessible files, and
/// directories, are left to the function that opens them.
void require_no_special_file(const std::filesystem::path& path);

}  // namespace sftrun
