#include "guardian.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <array>

namespace sftrun::launch {
namespace {

constexpr size_t kMaxGroups = 4096;  // workers of one machine

/// Closes all descriptors except `kept`: the reader of an inherited pipe would wait forever.
void close_all_but(int kept) {
  const auto close_range = [](unsigned first, unsigned last) {
    return ::syscall(SYS_close_range, first, last, 0);
  };
  if (kept > 0) close_range(0, static_cast<unsigned>(kept) - 1);
  if (close_range(static_cast<unsigned>(kept) + 1, ~0u) == 0) return;
  const long most = std::min(::sysconf(_SC_OPEN_MAX), 65536L);  // Linux before 5.9
  for (int fd = 0; fd < most; ++fd) {
    if (fd != kept) ::close(fd);
  }
}

[[noreturn]] void guard(int pipe) {
  ::setsid();
  ::prctl(PR_SET_NAME, "sftrun-guard");
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  close_all_but(pipe);
  static std::array<pid_t, kMaxGroups> groups;  // zero: free
  pid_t message = 0;
  for (;;) {
    const ssize_t got = ::read(pipe, &message, sizeof message);  // writes of this size are atomic
    if (got < 0 && errno == EINTR) continue;
    if (got != sizeof message) break;
    const pid_t wanted = message > 0 ? 0 : -message;
    const auto place = std::find(groups.begin(), groups.end(), wanted);
    if (place != groups.end()) *place = std::max(message, 0);
  }
  for (const pid_t group : groups) {
    if (group > 0) ::kill(-group, SIGKILL);
  }
  ::_exit(0);
}

}  // namespace

Guardian::Guardian() {
  Pipe pipe = make_pipe();
  pid_ = ::fork();
  if (pid_ == 0) {
    pipe.write.reset();
    guard(pipe.read.get());
  }
  if (pid_ < 0) throw DeviceError(std::string("cannot fork: ") + std::strerror(errno));
  pipe_ = std::move(pipe.write);
}

Guardian::~Guardian() {
  pipe_.reset();
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void Guardian::tell(pid_t message) {
  // SIGPIPE is blocked in the supervisor. A killed guardian is not an error.
  while (::write(pipe_.get(), &message, sizeof message) < 0 && errno == EINTR) {
  }
}

}  // namespace sftrun::launch
