#include "metrics_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <string_view>

namespace sftrun::track {
namespace {

/// Closes what it has.
struct TailFile {
  explicit TailFile(const std::filesystem::path& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  ~TailFile() {
    if (fd >= 0) ::close(fd);
  }
  TailFile(const TailFile&) = delete;
  TailFile& operator=(const TailFile&) = delete;
  int fd;
};

}  // namespace

std::vector<TrackedLine> MetricsTail::read() {
  constexpr size_t kBytes = 1 << 16, kLongestLine = size_t{16} << 20;
  const TailFile file(path_);
  struct stat now {};
  if (file.fd < 0 || ::fstat(file.fd, &now) != 0) return {};
  if (now.st_ino != inode_ || now.st_size < offset_) inode_ = now.st_ino, offset_ = 0;
  std::string text;
  for (size_t wanted = kBytes; wanted <= kLongestLine; wanted *= 2) {  // a line may be longer
    text.resize(wanted);
    const ssize_t got = ::pread(file.fd, text.data(), text.size(), offset_);
    text.resize(got > 0 ? static_cast<size_t>(got) : 0);
    if (text.size() < wanted || text.find('\n') != std::string::npos) break;
  }
  std::vector<TrackedLine> lines;
  size_t begin = 0;
  for (size_t end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1)
    if (auto line = tracked_line(std::string_view(text).substr(begin, end - begin)))
      lines.push_back(std::move(*line));
  offset_ += static_cast<off_t>(begin);
  return lines;
}

}  // namespace sftrun::track
