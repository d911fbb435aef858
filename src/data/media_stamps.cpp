#include "media_stamps.h"

#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <vector>

#include "sftrun/core/error.h"
#include "sftrun/core/hash.h"
#include "sftrun/core/strings.h"
#include "sftrun/core/xxh3.h"
#include "sftrun/data/parallel_for.h"

namespace sftrun::data {
namespace {

MediaStamp stamp_of(const std::string& path, bool is_image) {
  MediaStamp stamp{.is_image = is_image};
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return stamp;
  constexpr int64_t kNanoseconds = 1'000'000'000;
  stamp.size = info.st_size;
  stamp.mtime_ns = info.st_mtim.tv_sec * kNanoseconds + info.st_mtim.tv_nsec;
  return stamp;
}

/// Parts of a file, which images that differ have differently: headers, compressed data, checksums.
std::string contents_of(const InputFile& file) {
  constexpr uint64_t kPart = 4096;
  const uint64_t size = file.size();
  Fingerprint fingerprint;
  fingerprint.add(size);
  if (size <= 3 * kPart) return fingerprint.add(xxh3_128(file.read(0, size))).hex();
  for (const uint64_t begin : {uint64_t{0}, size / 2, size - kPart})
    fingerprint.add(xxh3_128(file.read(begin, kPart)));
  return fingerprint.hex();
}

/// An entry of `packed`, before the bytes of its path.
struct PackedStamp {
  int64_t size = 0, mtime_ns = 0;
  uint32_t is_image = 0, path_size = 0;
};
static_assert(sizeof(PackedStamp) == 24);

struct NotedFile {
  MediaStamp stamp;
  std::string_view path;
};

std::vector<NotedFile> unpacked(std::string_view packed) {
  std::vector<NotedFile> files;
  while (!packed.empty()) {
    PackedStamp entry;
    if (packed.size() < sizeof(entry)) throw DataError("the list of images is damaged");
    std::memcpy(&entry, packed.data(), sizeof(entry));
    packed.remove_prefix(sizeof(entry));
    if (packed.size() < entry.path_size) throw DataError("the list of images is damaged");
    files.push_back(
        {{entry.size, entry.mtime_ns, entry.is_image != 0}, packed.substr(0, entry.path_size)});
    packed.remove_prefix(entry.path_size);
  }
  return files;
}

std::string words_for(const std::vector<NotedFile>& files) {
  const auto is_image = [](const NotedFile& file) { return file.stamp.is_image; };
  if (std::all_of(files.begin(), files.end(), is_image)) return "images";
  return std::none_of(files.begin(), files.end(), is_image) ? "files of features"
                                                            : "images and files of features";
}

}  // namespace

bool MediaStamps::note(const std::string& path, bool is_image) {
  {
    const std::scoped_lock lock(mutex_);
    if (files_.contains(path)) return false;
  }
  const MediaStamp stamp = stamp_of(path, is_image);
  const std::scoped_lock lock(mutex_);
  return files_.try_emplace(path, Noted{.stamp = stamp}).second;
}

void MediaStamps::note_contents(const std::string& written, const InputFile& file) {
  const std::string contents = contents_of(file);
  const std::scoped_lock lock(mutex_);
  Noted& noted = files_.at(file.path().string());
  noted.contents = contents;
  noted.written = written;
}

std::string MediaStamps::packed() const {
  const std::scoped_lock lock(mutex_);
  std::string packed;
  for (const auto& [path, noted] : files_) {
    const PackedStamp entry{noted.stamp.size, noted.stamp.mtime_ns, noted.stamp.is_image ? 1U : 0U,
                            static_cast<uint32_t>(path.size())};
    packed.append(reinterpret_cast<const char*>(&entry), sizeof(entry));
    packed += path;
  }
  return packed;
}

std::string MediaStamps::fingerprint() const {
  const std::scoped_lock lock(mutex_);
  std::multiset<std::string> files;  // the same order wherever the data are
  for (const auto& [path, noted] : files_)
    if (!noted.contents.empty()) files.insert(noted.contents + noted.written);
  if (files.empty()) return {};
  Fingerprint fingerprint;
  for (const std::string& file : files) fingerprint.add(file);
  return fingerprint.hex();
}

std::optional<std::string> find_media_change(std::string_view packed, int64_t most) {
  constexpr int kThreads = 16;
  const std::vector<NotedFile> files = unpacked(packed);
  const auto all = std::ssize(files);
  const int64_t count = std::min(all, most);
  std::vector<uint8_t> has_changed(static_cast<size_t>(count));
  const auto file_at = [&](int64_t i) -> const NotedFile& {
    return files[static_cast<size_t>(count == all ? i : i * all / count)];
  };
  parallel_for(count, count > kThreads ? kThreads : 1, [&](int64_t i) {
    const NotedFile& file = file_at(i);
    const bool is_same = stamp_of(std::string(file.path), file.stamp.is_image) == file.stamp;
    has_changed[static_cast<size_t>(i)] = is_same ? 0 : 1;
  });
  const auto first = std::find(has_changed.begin(), has_changed.end(), 1);
  if (first == has_changed.end()) return std::nullopt;
  const int64_t changed = std::count(first, has_changed.end(), 1);
  return fmt::format("{} of {} {} {} changed since they were tokenized (first: {})", changed, count,
                     words_for(files), changed == 1 ? "has" : "have",
                     file_at(first - has_changed.begin()).path);
}

}  // namespace sftrun::data
