#include "file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>

#include "sftrun/core/error.h"
#include "sftrun/core/log.h"
#include "sftrun/core/open_file.h"

namespace sftrun::hub {
namespace {

constexpr double kPollS = 0.1;
constexpr auto kPatience = std::chrono::seconds(10);

}  // namespace

FileLock::FileLock(const std::filesystem::path& path, const ShouldStop& should_stop) {
  auto next_word = std::chrono::steady_clock::now() + kPatience;
  while (!try_lock(path)) {
    if (std::chrono::steady_clock::now() > next_word) {
      log::info("waiting for another download of the same file ({})", path.string());
      next_word += kPatience;
    }
    wait_s(kPollS, should_stop);
  }
}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);  // unlocks
}

bool FileLock::try_lock(const std::filesystem::path& path) {
  constexpr mode_t kForTheGroupToo = 0664;  // users who share a cache must be able to lock it, too
  const OpenedFile opened = open_file(path, O_RDWR | O_CREAT | O_NOFOLLOW, kForTheGroupToo);
  fd_ = opened.fd;
  if (fd_ < 0) {
    throw DeviceError("cannot open the lock: " + opened.reason, path.string(),
                      opened.error == 0
                          ? opened.fix
                          : "set HF_HOME or HF_HUB_CACHE to a directory with write permission");
  }
  struct stat held {};
  const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  const bool contended = !locked && (errno == EWOULDBLOCK || errno == EACCES || errno == EINTR);
  // If the file was unlinked between open and lock, the lock protects nothing: try again.
  exclusive_ = locked && ::fstat(fd_, &held) == 0 && held.st_nlink > 0;
  if (exclusive_ || (!locked && !contended)) return true;
  ::close(fd_);
  fd_ = -1;
  return false;
}

}  // namespace sftrun::hub
