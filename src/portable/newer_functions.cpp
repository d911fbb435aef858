/// Functions of the C library that programs for older systems (glibc 2.28) are linked with, because the
/// library there may lack them. scripts/package/older_system.py puts them into such programs only.
/// Each is marked with the version of glibc that has it first.

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdlib>

extern "C" {

// ---- 2.33: stat and its relatives; before, headers made calls of these of them.

constexpr int kStatVersion = 1;   // _STAT_VER_LINUX of x86-64
constexpr int kMknodVersion = 0;  // _MKNOD_VER_LINUX
int __xstat(int version, const char* path, struct stat* status);
int __fxstat(int version, int file, struct stat* status);
int __lxstat(int version, const char* path, struct stat* status);
int __fxstatat(int version, int directory, const char* path, struct stat* status, int flags);
int __xmknod(int version, const char* path, mode_t mode, dev_t* device);

int stat(const char* path, struct stat* status) noexcept {
  return __xstat(kStatVersion, path, status);
}
int fstat(int file, struct stat* status) noexcept {
  return __fxstat(kStatVersion, file, status);
}
int lstat(const char* path, struct stat* status) noexcept {
  return __lxstat(kStatVersion, path, status);
}
int fstatat(int directory, const char* path, struct stat* status, int flags) noexcept {
  return __fxstatat(kStatVersion, directory, path, status, flags);
}
// struct stat64 is the same on x86-64.
int stat64(const char* path, struct stat64* status) noexcept {
  return stat(path, reinterpret_cast<struct stat*>(status));
}
int fstat64(int file, struct stat64* status) noexcept {
  return fstat(file, reinterpret_cast<struct stat*>(status));
}
int lstat64(const char* path, struct stat64* status) noexcept {
  return lstat(path, reinterpret_cast<struct stat*>(status));
}
int mknod(const char* path, mode_t mode, dev_t device) noexcept {
  return __xmknod(kMknodVersion, path, mode, &device);
}

// ---- 2.32: whether the process has one thread only. Code of the standard library then counts
// references without atomic operations; "no" is always right.
char __libc_single_threaded = 0;

// ---- 2.32: "TERM" of SIGTERM.
const char* sigabbrev_np(int signal) noexcept {
  struct Named {
    int signal;
    const char* name;
  };
  static constexpr std::array<Named, 31> kNames = {
      {{SIGHUP, "HUP"},   {SIGINT, "INT"},       {SIGQUIT, "QUIT"}, {SIGILL, "ILL"},
       {SIGTRAP, "TRAP"}, {SIGABRT, "ABRT"},     {SIGBUS, "BUS"},   {SIGFPE, "FPE"},
       {SIGKILL, "KILL"}, {SIGUSR1, "USR1"},     {SIGSEGV, "SEGV"}, {SIGUSR2, "USR2"},
       {SIGPIPE, "PIPE"}, {SIGALRM, "ALRM"},     {SIGTERM, "TERM"}, {SIGSTKFLT, "STKFLT"},
       {SIGCHLD, "CHLD"}, {SIGCONT, "CONT"},     {SIGSTOP, "STOP"}, {SIGTSTP, "TSTP"},
       {SIGTTIN, "TTIN"}, {SIGTTOU, "TTOU"},     {SIGURG, "URG"},   {SIGXCPU, "XCPU"},
       {SIGXFSZ, "XFSZ"}, {SIGVTALRM, "VTALRM"}, {SIGPROF, "PROF"}, {SIGWINCH, "WINCH"},
       {SIGPOLL, "POLL"}, {SIGPWR, "PWR"},       {SIGSYS, "SYS"}}};
  for (const Named& named : kNames)
    if (named.signal == signal) return named.name;
  return nullptr;
}

// ---- 2.34: closes the files from `first` on in the program that is spawned. Those that another thread
// opens between this and the spawn stay open, unless they are opened with O_CLOEXEC.
int posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t* actions,
                                             int first) noexcept {
  DIR* const listing = opendir("/proc/self/fd");
  if (listing == nullptr) return errno;
  int failure = 0;
  while (const dirent* entry = readdir(listing)) {
    const int file = entry->d_name[0] == '.' ? -1 : std::atoi(entry->d_name);
    if (file >= first && file != dirfd(listing) && failure == 0)
      failure = posix_spawn_file_actions_addclose(actions, file);
  }
  closedir(listing);
  return failure;
}

// ---- 2.30: waits until a time of `clock`. A condition variable waits by the real-time clock, so the
// time that is left is added to its time; a step of that clock meanwhile makes the wait longer or
// shorter, as with every GCC on glibc before 2.30.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const timespec* until) {
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  constexpr int64_t kSecond = 1'000'000'000;
  const auto nanoseconds = [](const timespec& time) {
    return time.tv_sec * kSecond + time.tv_nsec;
  };
  timespec now, real;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &real) != 0) return errno;
  const int64_t end = nanoseconds(real) + nanoseconds(*until) - nanoseconds(now);
  const timespec real_end = {.tv_sec = end / kSecond, .tv_nsec = end % kSecond};
  return pthread_cond_timedwait(condition, mutex, &real_end);
}

// ---- 2.36: random bytes that cannot fail.
void arc4random_buf(void* bytes, size_t size) noexcept {
  auto* at = static_cast<unsigned char*>(bytes);
  while (size > 0) {
    const ssize_t got = getrandom(at, size, 0);
    if (got < 0 && errno != EINTR) std::abort();
    if (got <= 0) continue;
    at += got;
    size -= static_cast<size_t>(got);
  }
}
uint32_t arc4random() noexcept {
  uint32_t value = 0;
  arc4random_buf(&value, sizeof value);
  return value;
}

}  // extern "C"
