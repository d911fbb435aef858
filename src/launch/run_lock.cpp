#include "sftrun/launch/run_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/log.h"
#include "sftrun/core/open_file.h"
#include "sftrun/core/strings.h"
#include "sftrun/observe/system.h"

namespace sftrun::launch {
namespace {

std::string read_owner(int fd) {
  char text[256] = {};
  const ssize_t got = ::pread(fd, text, sizeof text - 1, 0);
  return got > 0 ? std::string(trim(text)) : "another process";
}

}  // namespace

RunLock::RunLock(const std::filesystem::path& run_dir, int node_rank, const char* setting) {
  make_directories(run_dir);
  const auto path = run_dir / (node_rank == 0 ? ".lock" : fmt::format(".lock-{}", node_rank));
  const OpenedFile opened = open_file(path, O_RDWR | O_CREAT);
  if (opened.fd < 0) {
    const std::string fix = opened.error == 0 ? opened.fix : fix_for_descriptors(opened.error);
    throw ConfigError(
        "cannot write to the run directory: " + opened.reason, path.string(),
        fix.empty() ? fmt::format("choose an {} with write permission", setting) : fix);
  }
  fd_ = opened.fd;
  if (::flock(fd_, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {  // some network file systems
      log::warn(
          "{}: this file system does not support locks ({}); do not start two runs in this "
          "directory",
          run_dir.string(), std::strerror(errno));
      return;
    }
    const std::string owner = read_owner(fd_);
    ::close(fd_);
    throw ConfigError(fmt::format("another run is using this run directory: {}", owner),
                      path.string(),
                      fmt::format("wait for it, stop it, or choose another {}", setting));
  }
  const std::string owner = fmt::format("pid {} on {}\n", ::getpid(), observe::host_name());
  // Only for the message above.
  if (::ftruncate(fd_, 0) == 0 && ::pwrite(fd_, owner.data(), owner.size(), 0) < 0) return;
}

RunLock::~RunLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace sftrun::launch
