#include "sftrun/core/standard_streams.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"

namespace sftrun {
namespace {

/// @param error errno; 0: unknown, because an earlier write has failed
[[noreturn]] void throw_output_error(int error) {
  std::string fix = fix_for_write(error);
  if (error == EBADF) fix = "standard output is closed: redirect it to a file, or to /dev/null";
  if (error == EPIPE) fix = "the program that read it has ended";
  throw DeviceError(error == 0 ? "the result could not be written"
                               : fmt::format("cannot write the result: {}", std::strerror(error)),
                    "standard output", fix);
}

/// Waits until something can be written.   @throws Error with the code of a stop
void wait_for_reader(const std::function<int()>& stop_code) {
  constexpr int kPollMs = 100;
  for (;;) {
    pollfd output{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
    if (::poll(&output, 1, kPollMs) > 0) return;
    if (const int code = stop_code ? stop_code() : 0)
      throw Error(static_cast<ExitCode>(code), "stopped while nobody read the result",
                  "standard output");
  }
}

}  // namespace

void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    const int access = fd == STDERR_FILENO ? O_WRONLY : O_RDONLY;
    // It gets the lowest free number, which is fd. Without the device a directory keeps the number.
    if (::open("/dev/null", access) < 0) ::open("/", O_RDONLY);
  }
}

void write_standard_output(std::string_view text, const std::function<int()>& stop_code) {
  require_standard_output();
  constexpr size_t kMaxAtOnce = 4096;  // a pipe that can be written has room for it
  while (!text.empty()) {
    wait_for_reader(stop_code);
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), std::min(text.size(), kMaxAtOnce));
    if (written < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (written < 0) throw_output_error(errno);
    text.remove_prefix(static_cast<size_t>(written));
  }
}

void require_standard_output(int known_error) {
  const bool has_failed = std::ferror(stdout) != 0;
  errno = 0;
  if (std::fflush(stdout) != 0) throw_output_error(errno);
  if (has_failed) throw_output_error(known_error);
}

}  // namespace sftrun
