#include "sftrun/core/file.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "sftrun/core/entries.h"
#include "sftrun/core/errno_fix.h"
#include "sftrun/core/error.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/overwrite_file.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/strings.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

/// Hidden, and not a prefix of any name that readers of a folder look for.
constexpr const char* kTemporaryPrefix = ".tmp-";

std::string reason() {
  return std::strerror(errno);
}

[[noreturn]] void throw_write_error(const fs::path& path) {
  const int error = errno;
  throw DeviceError(fmt::format("cannot write: {}", std::strerror(error)), path.string(),
                    fix_for_write(error));
}

void write_all(int fd, const fs::path& path, const void* data, size_t num_bytes) {
  const char* cursor = static_cast<const char*>(data);
  while (num_bytes > 0) {
    const ssize_t written = ::write(fd, cursor, num_bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw_write_error(path);
    cursor += written;
    num_bytes -= static_cast<size_t>(written);
  }
}

}  // namespace

namespace {

/// Reads to the end. @param fd is closed
std::string read_all(int fd, const fs::path& path) {
  std::string text;
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
    text.reserve(static_cast<size_t>(info.st_size));
  char buffer[1 << 16];
  for (;;) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      const std::string why = reason();
      ::close(fd);
      throw DataError(fmt::format("cannot read file: {}", why), path.string());
    }
    if (got == 0) break;
    text.append(buffer, static_cast<size_t>(got));
  }
  ::close(fd);
  return text;
}

}  // namespace

std::string read_text_file(const fs::path& path) {
  return read_all(open_for_reading(path), path);
}

std::string read_standard_input() {
  constexpr const char* kPath = "/dev/stdin";
  const int fd = ::open(kPath, O_RDONLY | O_CLOEXEC);
  if (fd >= 0) return read_all(fd, kPath);
  const int error = errno;
  throw DataError(fmt::format("cannot open file: {}", std::strerror(error)), kPath,
                  fix_for_descriptors(error));
}

MappedFile::MappedFile(const fs::path& path) : path_(path) {
  const int fd = open_for_reading(path);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const std::string why = reason();
    ::close(fd);
    throw DataError(fmt::format("cannot read file: {}", why), path.string());
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* address = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    if (address == MAP_FAILED) {
      const std::string why = reason();
      ::close(fd);
      throw DataError(fmt::format("cannot map file: {}", why), path.string());
    }
    data_ = static_cast<const std::byte*>(address);
  }
  ::close(fd);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::release(std::span<const std::byte> part) const {
  if (!data_ || part.data() < data_ || part.data() + part.size() > data_ + size_) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<size_t>(part.data() - data_), last = first + part.size();
  // Whole pages only
  const size_t begin = (first + page - 1) / page * page, end = last / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

namespace {

/// Whether the path names an open file of a process, such as /dev/stdout: the link must stay.
bool names_descriptor(const fs::path& path) {
  const std::string text = path.lexically_normal().string();
  if (text == "/dev/stdout" || text == "/dev/stderr" || text.starts_with("/dev/fd/")) return true;
  return text.starts_with("/proc/") && text.find("/fd/") != std::string::npos;
}

/// Whether it must not be replaced by a file: a device, a pipe, or an open file of a process.
bool is_written_directly(const fs::path& path) {
  std::error_code code;
  const fs::file_status status = fs::status(path, code);
  return fs::is_character_file(status) || fs::is_fifo(status) || names_descriptor(path);
}

/// Opens what is written directly. A pipe without a reader is not waited for in open(2), which no
/// signal would end.
int open_directly(const fs::path& path) {
  constexpr int kMaxPolls = 100;
  constexpr std::chrono::milliseconds kBetweenPolls(100);
  for (int polls = 0;; ++polls) {
    const int fd = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NONBLOCK);
    std::error_code ignored;
    const bool lacks_reader = fd < 0 && errno == ENXIO && fs::is_fifo(path, ignored);
    if (lacks_reader && polls < kMaxPolls) {
      interruption_point();
      std::this_thread::sleep_for(kBetweenPolls);
      continue;
    }
    if (lacks_reader)
      throw DeviceError("cannot write: nobody reads the named pipe", path.string(),
                        "start the program that reads it first, or name a file");
    if (fd < 0) throw_write_error(path);
    ::fcntl(fd, F_SETFL, O_APPEND);
    return fd;
  }
}

}  // namespace

AtomicFile::AtomicFile(fs::path target, SpecialFile special) : target_(std::move(target)) {
  require_no_nul(target_);
  if (special == SpecialFile::kAllowed && is_written_directly(target_)) {
    fd_ = open_directly(target_);
    return;
  }
  require_place_for_file(target_);
  static std::atomic<unsigned> counter{0};
  const std::string name = target_.filename().string();
  temporary_ = target_.parent_path() /
               fmt::format("{}{}-{}-{}", kTemporaryPrefix, ::getpid(), counter++, name);
  const OpenedFile opened = open_file(temporary_, O_WRONLY | O_CREAT | O_TRUNC);
  if (opened.fd < 0)
    throw DeviceError("cannot write: " + opened.reason, target_.string(), opened.fix);
  fd_ = opened.fd;
}

AtomicFile::~AtomicFile() {
  if (fd_ < 0) return;
  ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

void remove_entries(const fs::path& directory, std::string_view prefix) {
  std::error_code code;
  for (const fs::path& path : readable_entries_of(directory))
    if (path.filename().string().starts_with(prefix)) fs::remove_all(path, code);
}

void remove_temporaries(const fs::path& directory) {
  remove_entries(directory, kTemporaryPrefix);
}

void AtomicFile::write(const void* data, size_t num_bytes) {
  write_all(fd_, target_, data, num_bytes);
}

void AtomicFile::sync() {
  SFTRUN_CHECK(fd_ >= 0);
  if (!temporary_.empty() && ::fsync(fd_) != 0) throw_write_error(target_);
}

void AtomicFile::commit() {
  SFTRUN_CHECK(fd_ >= 0);
  if (temporary_.empty()) {
    if (::close(std::exchange(fd_, -1)) != 0) throw_write_error(target_);
    return;
  }
  sync();
  const int fd = std::exchange(fd_, -1);
  if (::close(fd) != 0 || ::rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    ::unlink(temporary_.c_str());
    errno = error;
    throw_write_error(target_);
  }
  sync_directory(target_.parent_path());
}

void write_file_atomically(const fs::path& path, std::string_view text, SpecialFile special) {
  AtomicFile file(path, special);
  file.write(text);
  file.commit();
}

void overwrite_file(const fs::path& path, std::string_view text) {
  const int fd = open_for_writing(path, O_WRONLY);
  constexpr uintmax_t kBlock = 512;  // of st_blocks, on every file system
  struct stat info {};
  const bool fits =
      ::fstat(fd, &info) == 0 && text.size() <= static_cast<uintmax_t>(info.st_blocks) * kBlock;
  int error = fits ? 0 : ENOSPC;
  if (fits && ::pwrite(fd, text.data(), text.size(), 0) != static_cast<ssize_t>(text.size()))
    error = errno;
  if (error == 0 && ::ftruncate(fd, static_cast<off_t>(text.size())) != 0) error = errno;
  ::close(fd);
  errno = error;
  if (error != 0) throw_write_error(path);
}

void shrink_file(const fs::path& path, std::string_view content, std::string_view kept) {
  if (!content.starts_with(kept)) return write_file_atomically(path, kept);
  std::error_code code;
  fs::resize_file(path, kept.size(), code);
  if (code) {
    throw DeviceError("cannot shorten: " + code.message(), path.string(), "is the file writable?");
  }
}

bool holds_wildcards(std::string_view text) {
  return text.find_first_of("*?[") != std::string_view::npos;
}

bool is_glob(const fs::path& path) {
  return holds_wildcards(path.string()) && !leads_to_file(path);
}

std::vector<fs::path> expand_glob(const fs::path& pattern) {
  glob_t found{};
  std::vector<fs::path> paths;
  if (!can_be_path(pattern)) return paths;
  if (::glob(pattern.c_str(), GLOB_TILDE, nullptr, &found) == 0)
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

bool exists_or_matches(const fs::path& path) {
  return leads_to_file(path) || (is_glob(path) && !expand_glob(path).empty());
}

void sync_directory(const fs::path& path) {
  const int fd = ::open(path.empty() ? "." : path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // some file systems cannot open directories; the rename is atomic anyway
  ::fsync(fd);
  ::close(fd);
}

void make_directories(const fs::path& path) {
  require_no_nul(path);
  std::error_code code;
  fs::create_directories(path, code);
  if (code) {
    throw ConfigError(fmt::format("cannot create directory: {}", code.message()), path.string(),
                      "choose a directory you may write to");
  }
}

LineFile::LineFile(const fs::path& path)
    : path_(path), fd_(open_for_writing(path, O_WRONLY | O_CREAT | O_APPEND)) {}
LineFile::~LineFile() {
  if (fd_ >= 0) ::close(fd_);
}
LineFile::LineFile(LineFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}
LineFile& LineFile::operator=(LineFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  return *this;
}
void LineFile::append(std::string_view line) {
  SFTRUN_CHECK(fd_ >= 0);
  std::string whole(line);
  whole += '\n';
  write_all(fd_, path_, whole.data(), whole.size());
}
void LineFile::sync() {
  if (fd_ >= 0 && ::fsync(fd_) != 0) throw_write_error(path_);
}

}  // namespace sftrun
