#include "sftrun/core/input_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "sftrun/core/error.h"
#include "sftrun/core/open_file.h"

namespace sftrun {
namespace {

[[noreturn]] void throw_shortened(const std::filesystem::path& path) {
  throw DataError("the file became shorter while it was read", path.string(),
                  "write files under another name, and rename them when they are complete");
}

}  // namespace

InputFile::InputFile(const std::filesystem::path& path) : path_(path), fd_(open_for_reading(path)) {
  try {
    size_ = static_cast<uint64_t>(status().st_size);
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

InputFile::~InputFile() {
  if (fd_ >= 0) ::close(fd_);
}

InputFile::InputFile(InputFile&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)), size_(other.size_) {}

InputFile& InputFile::operator=(InputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  return *this;
}

void InputFile::fail() const {
  throw DataError(fmt::format("cannot read file: {}", std::strerror(errno)), path_.string());
}

struct stat InputFile::status() const {
  struct stat info {};
  if (::fstat(fd_, &info) != 0) fail();
  return info;
}

void InputFile::read(uint64_t offset, std::span<std::byte> into) const {
  for (size_t done = 0; done < into.size();) {
    const ssize_t got =
        ::pread(fd_, into.data() + done, into.size() - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail();
    if (got == 0) throw_shortened(path_);
    done += static_cast<size_t>(got);
  }
}

std::string InputFile::read(uint64_t offset, uint64_t num_bytes) const {
  if (offset > size_ || num_bytes > size_ - offset) throw_shortened(path_);
  std::string bytes(num_bytes, '\0');
  read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

}  // namespace sftrun
