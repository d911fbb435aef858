#include "child_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "c_strings.h"

namespace sftrun::launch {
namespace {

constexpr int kCannotStart = 127;

/// Everything that the child needs between fork and exec, where nothing may allocate: a thread of the
/// launcher (core/console_writer.h) may hold the allocator's lock.
struct Prepared {
  const char* executable;
  std::vector<char*> argv, envp;
  cpu_set_t* cpus = nullptr;
  size_t cpus_bytes = 0;
  pid_t parent;
  bool leads_group;
  int in, out, err, status, activity, failure;
};

[[noreturn]] void fail_in_child(int failure_pipe) {
  const int error = errno;
  // If this write fails, the exit status remains.
  if (::write(failure_pipe, &error, sizeof error) < 0) ::_exit(kCannotStart);
  ::_exit(kCannotStart);
}

/// Unblocks the signals that the launcher blocks because it reads them from a descriptor.
void unblock_signals() {
  // A shell's background jobs ignore SIGINT, but a worker must receive it from the launcher before
  // it has installed its own handlers. The other signals that the launcher ignores stay ignored.
  for (const int number : {SIGINT, SIGTERM}) ::signal(number, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

[[noreturn]] void become_worker(const Prepared& child) {
  if (child.leads_group) ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  // If the parent died before the line above took effect, no signal arrives.
  if (::getppid() != child.parent) ::_exit(kCannotStart);
  if (child.cpus)
    ::sched_setaffinity(0, child.cpus_bytes,
                        child.cpus);  // optional: the worker also runs without it
  if (::dup2(child.in, STDIN_FILENO) < 0 || ::dup2(child.out, STDOUT_FILENO) < 0 ||
      ::dup2(child.err, STDERR_FILENO) < 0 || ::fcntl(child.status, F_SETFD, 0) != 0) {
    fail_in_child(child.failure);
  }
  if (child.activity >= 0) ::fcntl(child.activity, F_SETFD, 0);
  unblock_signals();
  ::execve(child.executable, child.argv.data(), child.envp.data());
  fail_in_child(child.failure);
}

class CpuSet {
 public:
  explicit CpuSet(const std::vector<int>& cpus) {
    if (cpus.empty()) return;
    const size_t most = static_cast<size_t>(*std::max_element(cpus.begin(), cpus.end())) + 1;
    set_ = CPU_ALLOC(most);
    num_bytes_ = CPU_ALLOC_SIZE(most);
    CPU_ZERO_S(num_bytes_, set_);
    for (const int cpu : cpus) CPU_SET_S(static_cast<size_t>(cpu), num_bytes_, set_);
  }
  ~CpuSet() {
    if (set_) CPU_FREE(set_);
  }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  cpu_set_t* get() const { return set_; }
  size_t num_bytes() const { return num_bytes_; }

 private:
  cpu_set_t* set_ = nullptr;
  size_t num_bytes_ = 0;
};

/// The errno with which the child failed to start; 0 after exec has closed the pipe.
int start_error(int failure_pipe) {
  int error = 0;
  ssize_t got;
  do {
    got = ::read(failure_pipe, &error, sizeof error);
  } while (got < 0 && errno == EINTR);
  return got == sizeof error ? error : 0;
}

/// dup2 would overwrite a descriptor of 0, 1 or 2 (if the launcher was started with closed
/// streams).
UniqueFd above_standard_streams(UniqueFd fd) {
  if (fd.get() > STDERR_FILENO) return fd;
  UniqueFd moved(::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (moved) return moved;
  const int error = errno;
  throw DeviceError(std::string("cannot start a worker: ") + std::strerror(error), "fcntl",
                    fix_for_descriptors(error));
}

/// /dev/null, the standard input of workers.
UniqueFd open_null() {
  constexpr const char* kPath = "/dev/null";
  UniqueFd null(::open(kPath, O_RDWR | O_CLOEXEC));
  if (null) return above_standard_streams(std::move(null));
  const int error = errno;
  const std::string fix = fix_for_descriptors(error);
  throw DeviceError(std::string("cannot start a worker: ") + std::strerror(error), kPath,
                    fix.empty() ? "the system needs this device, readable and writable for all "
                                  "(mknod -m 666 /dev/null c 1 3)"
                                : fix);
}

}  // namespace

ChildProcess start_child(const ChildSpec& spec) {
  Pipe out = make_pipe(), err = make_pipe(), status = make_pipe(), failure = make_pipe();
  for (Pipe* pipe : {&out, &err, &status, &failure}) {
    pipe->write = above_standard_streams(std::move(pipe->write));
  }
  const UniqueFd null = open_null();
  std::vector<std::string> arguments = spec.arguments, variables;
  Environment environment = spec.environment;
  environment["SFTRUN_STATUS_FD"] = std::to_string(status.write.get());
  if (spec.activity >= 0) environment["SFTRUN_ACTIVITY_FD"] = std::to_string(spec.activity);
  for (const auto& [name, value] : environment) variables.push_back(name + "=" + value);
  const CpuSet cpus(spec.cpus);
  const Prepared prepared{.executable = spec.executable.c_str(),
                          .argv = c_strings(arguments),
                          .envp = c_strings(variables),
                          .cpus = cpus.get(),
                          .cpus_bytes = cpus.num_bytes(),
                          .parent = ::getpid(),
                          .leads_group = !spec.has_terminal,
                          .in = spec.has_terminal ? STDIN_FILENO : null.get(),
                          .out = spec.has_terminal ? STDOUT_FILENO : out.write.get(),
                          .err = err.write.get(),
                          .status = status.write.get(),
                          .activity = spec.activity,
                          .failure = failure.write.get()};
  const pid_t pid = ::fork();
  if (pid == 0) become_worker(prepared);
  if (pid < 0) {
    throw DeviceError(std::string("cannot start a worker: ") + std::strerror(errno), "fork",
                      "raise the limit of processes (ulimit -u, pids.max), or start fewer workers");
  }
  if (prepared.leads_group)
    ::setpgid(pid, pid);  // here and in the child, because either may run first
  failure.write.reset();
  if (const int error = start_error(failure.read.get()); error != 0) {
    ::waitpid(pid, nullptr, 0);
    throw DeviceError(std::string("cannot start a worker: ") + std::strerror(error),
                      spec.executable);
  }
  for (Pipe* pipe : {&out, &err, &status}) set_nonblocking(pipe->read.get());
  return {.pid = pid,
          .out = std::move(out.read),
          .err = std::move(err.read),
          .status = std::move(status.read)};
}

}  // namespace sftrun::launch
