#include "sftrun/core/file_hash.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/file.h"
#include "sftrun/core/input_file.h"
#include "sftrun/core/interruption.h"
#include "sftrun/core/log.h"
#include "sftrun/core/presence.h"
#include "sftrun/core/xxh3.h"

namespace sftrun {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kPieceBytes = uint64_t{4} << 20;  // changing it changes all hashes
constexpr int64_t kMaxThreads = 8;  // more threads do not read faster from any disk

int64_t nanoseconds(const timespec& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

/// The properties by which a change of a file is detected. Unlike mtime, which `cp -p`, rsync and
/// editors set, ctime cannot be set by programs.
std::string state_of(const fs::path& file, uint64_t begin, const struct stat& info) {
  std::error_code ignored;
  return fmt::format("{} {} {} {} {} {} {}", begin, info.st_size, nanoseconds(info.st_mtim),
                     nanoseconds(info.st_ctim), info.st_ino, info.st_dev,
                     fs::absolute(file, ignored).lexically_normal().string());
}

/// Whether the last change is old enough. A file that changed a moment ago may change again within
/// the clock's resolution; a time in the future proves nothing. Uses ctime, because extracted
/// archives may have any mtime.
bool is_settled(const struct stat& info) {
  constexpr int64_t kTickNs = 3'000'000'000;
  const int64_t now = std::chrono::duration_cast<std::chrono::nanoseconds>(
                          std::chrono::system_clock::now().time_since_epoch())
                          .count();
  return now - nanoseconds(info.st_ctim) > kTickNs;
}

/// Lines with state, hash, and the hash of both, which detects damaged entries.
std::string entry_of(const std::string& state, const std::string& hash) {
  return fmt::format("{}\n{}\n{}\n", state, hash, xxh3_128(state + "\n" + hash));
}

/// The cached hash for this state; empty: none.
std::string recalled(const fs::path& entry, const std::string& state) {
  constexpr size_t kHashDigits = 32;
  if (!is_plain_file(entry)) return {};
  try {
    const std::string text = read_text_file(entry);
    if (text.size() < state.size() + 1 + kHashDigits) return {};
    std::string hash = text.substr(state.size() + 1, kHashDigits);
    return text == entry_of(state, hash) ? hash : "";
  } catch (const DataError&) {
    return {};
  }
}

void remember(const fs::path& entry, const std::string& text) {
  std::error_code ignored;
  fs::create_directories(entry.parent_path(), ignored);
  try {
    write_file_atomically(entry, text);
  } catch (const DeviceError& error) {
    log::debug("a file's hash is not kept: {}", error.what());
  }
}

class Hashing {
 public:
  Hashing(const InputFile& file, uint64_t begin, uint64_t end, std::stop_token stop)
      : file_(file),
        begin_(begin),
        end_(end),
        pieces_((end - begin + kPieceBytes - 1) / kPieceBytes),
        stop_(std::move(stop)) {}

  std::string result() {
    const auto cpus = static_cast<int64_t>(std::thread::hardware_concurrency());
    const auto useful = std::min<int64_t>(kMaxThreads, static_cast<int64_t>(pieces_.size()));
    {
      std::vector<std::jthread> helpers;
      for (int64_t i = 1; i < std::min(cpus, useful); ++i) helpers.emplace_back([this] { work(); });
      work();
    }
    if (stop_.stop_requested()) throw FileHashes::Stopped();
    if (failure_) std::rethrow_exception(failure_);
    std::string all = fmt::format("{}", end_ - begin_);
    for (const std::string& piece : pieces_) all += piece;
    return xxh3_128(all);
  }

 private:
  void work() {
    try {
      std::vector<std::byte> buffer(std::min(kPieceBytes, end_ - begin_));
      for (;;) {
        const size_t i = next_.fetch_add(1);
        if (i >= pieces_.size() || stop_.stop_requested()) return;
        interruption_point();
        const uint64_t offset = begin_ + i * kPieceBytes;
        const std::span bytes = std::span(buffer).first(std::min(kPieceBytes, end_ - offset));
        file_.read(offset, bytes);
        pieces_[i] = xxh3_128(bytes);
      }
    } catch (...) {
      const std::scoped_lock lock(mutex_);
      failure_ = std::current_exception();
      next_ = pieces_.size();
    }
  }

  const InputFile& file_;
  uint64_t begin_, end_;
  std::vector<std::string> pieces_;
  std::stop_token stop_;
  std::atomic<size_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr failure_;
};

}  // namespace

fs::path user_cache() {  // XDG Base Directory Specification
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "sftrun";
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/')
    return fs::path(home) / ".cache" / "sftrun";
  return {};
}

std::string FileHashes::of(const fs::path& path, uint64_t begin,
                           const std::stop_token& stop) const {
  const InputFile file(path);
  const struct stat before = file.status();
  const bool settled = is_settled(before);
  const std::string state = state_of(path, begin, before);
  std::error_code ignored;
  const fs::path entry =
      memory_ / xxh3_128(fmt::format("{} {}", begin, fs::absolute(path, ignored).string()));
  if (!memory_.empty() && settled) {
    if (std::string hash = recalled(entry, state); !hash.empty()) return hash;
  }
  const auto end = static_cast<uint64_t>(before.st_size);
  std::string hash = Hashing(file, std::min(begin, end), end, stop).result();
  if (!memory_.empty() && settled && state_of(path, begin, file.status()) == state)
    remember(entry, entry_of(state, hash));
  return hash;
}

}  // namespace sftrun
