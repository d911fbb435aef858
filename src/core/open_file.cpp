#include "sftrun/core/open_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

/// The kind of a special file; "" for a regular file or a directory.
std::string_view special_kind(mode_t mode) {
  if (S_ISFIFO(mode)) return "a named pipe";
  if (S_ISSOCK(mode)) return "a socket";
  if (S_ISCHR(mode) || S_ISBLK(mode)) return "a device";
  return {};
}

/// "" for a regular file.
std::string reason_of(mode_t mode) {
  if (S_ISDIR(mode)) return std::strerror(EISDIR);
  const std::string_view kind = special_kind(mode);
  return kind.empty() ? "" : fmt::format("is {}, not a regular file", kind);
}

bool is_for_writing(int flags) {
  return (flags & O_ACCMODE) != O_RDONLY;
}

OpenedFile not_regular(mode_t mode, int flags) {
  OpenedFile refused{.reason = reason_of(mode)};
  if (refused.reason.empty()) return refused;
  if (is_for_writing(flags))
    refused.fix = "remove or rename it, or choose another path";
  else
    refused.fix = S_ISDIR(mode) ? "name a file, or remove or rename the directory"
                                : "write its contents to a file, and name that file";
  return refused;
}

/// What stands in the way, without opening it: opening alone may start what a device does.
OpenedFile obstacle_to(const fs::path& path, int flags) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return {};  // opening says why
  return not_regular(info.st_mode, flags);
}

[[noreturn]] void fail_to_write(const OpenedFile& failed, const fs::path& path) {
  throw DeviceError("cannot write: " + failed.reason, path.string(), failed.fix);
}

}  // namespace

OpenedFile open_file(const fs::path& path, int flags, mode_t mode) {
  require_no_nul(path);
  OpenedFile opened = obstacle_to(path, flags);
  if (!opened.reason.empty()) return opened;
  // A pipe may take the file's place meanwhile: with O_NONBLOCK opening it does not wait.
  opened.fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, mode);
  if (opened.fd < 0) {
    opened.error = errno;
    opened.reason = std::strerror(opened.error);
    opened.fix =
        is_for_writing(flags) ? fix_for_write(opened.error) : fix_for_descriptors(opened.error);
    return opened;
  }
  struct stat info {};
  if (::fstat(opened.fd, &info) == 0) {
    if (OpenedFile refused = not_regular(info.st_mode, flags); !refused.reason.empty()) {
      ::close(opened.fd);
      return refused;
    }
  }
  ::fcntl(opened.fd, F_SETFL, flags & ~(O_CREAT | O_EXCL | O_TRUNC | O_NOFOLLOW));
  return opened;
}

int open_for_writing(const fs::path& path, int flags, mode_t mode) {
  const OpenedFile opened = open_file(path, flags, mode);
  if (opened.fd < 0) fail_to_write(opened, path);
  return opened.fd;
}

void require_no_nul(const fs::path& path) {
  if (can_be_path(path)) return;
  throw DataError("the file's name has a NUL byte", excerpt(path.native().c_str()), "rename it");
}

void require_place_for_file(const fs::path& path) {
  require_no_nul(path);
  const OpenedFile found = obstacle_to(path, O_WRONLY);
  if (!found.reason.empty()) fail_to_write(found, path);
}

int open_for_reading(const fs::path& path) {
  const OpenedFile opened = open_file(path, O_RDONLY);
  if (opened.fd >= 0) return opened.fd;
  throw DataError("cannot open file: " + opened.reason, path.string(), opened.fix);
}

void require_no_special_file(const fs::path& path) {
  require_no_nul(path);
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || special_kind(info.st_mode).empty()) return;
  const OpenedFile refused = not_regular(info.st_mode, O_RDONLY);
  throw DataError("cannot open file: " + refused.reason, path.string(), refused.fix);
}

}  // namespace sftrun
